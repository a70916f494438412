/* Samples a second of training on the ranks that mpirun started, in all, beside tests/bench/ranks.py, which
 * does the same with PyTorch's DistributedDataParallel. Three models: an MLP 784-1024-1024-10 with a batch of
 * 256 in all, a GPT of 6 layers of width 384, 16 sequences of 64 tokens, and ResNet-18, 32 images of 64 x 64.
 * mpicc -O3 -march=native -DGPUNN_MPI -I. tests/bench/ranks.c -o build/ranks -lm && mpirun -n 2 build/ranks
 * mlp 60 shard behind that: each rank has its share of Adam's states alone. bf16: gradients travel as BF16.
 * The share of rank 0's time that passes in MPI is both what exchanging takes and waiting for the others. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "workloads.h"

enum { LENGTH = 64, WIDTH = 384, HEADS = 6, LAYERS = 6, VOCABULARY = 1024 };

static double in_mpi; /* seconds */

#ifdef GPUNN_MPI
/* In MPI's place, which keeps its own under the other name. A group asks until what it has begun is done. */
int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    static double since;
    if (since == 0) since = now();
    const int code = PMPI_Test(request, done, status);
    if (!*done) return code;
    in_mpi += now() - since;
    since = 0;
    return code;
}
#endif

typedef struct net {
    gpunn_tensor *x, *t, *loss;
    int           batch; /* of all ranks */
} net;

static net mlp(gpunn_model *model)
{
    net           n = {gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 784)),
                       gpunn_input(model, "t", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH)), NULL, 256};
    gpunn_tensor *h = gpunn_relu(gpunn_linear(n.x, "fc1", .out_features = 1024));
    h = gpunn_relu(gpunn_linear(h, "fc2", .out_features = 1024));
    n.loss = gpunn_cross_entropy(gpunn_linear(h, "fc3", .out_features = 10), n.t);
    return n;
}

static gpunn_tensor *block(gpunn_tensor *x, int i)
{
    char name[6][16];
    for (int k = 0; k < 6; k++) (void)snprintf(name[k], sizeof name[k], "h%d.%d", i, k);
    gpunn_tensor *h = gpunn_linear(gpunn_layer_norm(x, name[4]), name[0], .out_features = 3 * WIDTH);
    h = gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, LENGTH, 3, HEADS, WIDTH / HEADS));
    h = gpunn_reshape(gpunn_scaled_dot_product_attention(h, NULL, NULL, .is_causal = true),
                      GPUNN_SHAPE(GPUNN_BATCH, LENGTH, WIDTH));
    x = gpunn_add(x, gpunn_linear(h, name[1], .out_features = WIDTH));
    h = gpunn_gelu(gpunn_linear(gpunn_layer_norm(x, name[5]), name[2], .out_features = 4 * WIDTH));
    return gpunn_add(x, gpunn_linear(h, name[3], .out_features = WIDTH));
}

static net gpt(gpunn_model *model)
{
    net           n = {gpunn_input(model, "x", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, LENGTH)),
                       gpunn_input(model, "t", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, LENGTH)), NULL, 16};
    gpunn_tensor *h = gpunn_embedding(n.x, "wte", .num_embeddings = VOCABULARY, .embedding_dim = WIDTH);
    for (int i = 0; i < LAYERS; i++) h = block(h, i);
    h = gpunn_reshape(gpunn_layer_norm(h, "ln"), GPUNN_SHAPE(GPUNN_BATCH * LENGTH, WIDTH));
    n.loss = gpunn_cross_entropy(gpunn_linear(h, "head", .out_features = VOCABULARY),
                                 gpunn_reshape(n.t, GPUNN_SHAPE(GPUNN_BATCH * LENGTH)));
    return n;
}

static net resnet18(gpunn_model *model)
{
    workload w = {.model = model};
    net      n = {gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3, 64, 64)),
                  gpunn_input(model, "t", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH)), NULL, 32};
    n.loss = gpunn_cross_entropy(resnet(&w, n.x, 200), n.t);
    return n;
}

/* The inputs are zeros, a value like any other to what is timed. */
static bool train(gpunn_group *group, net n, gpunn_optimizer *opt, int steps, double *spent)
{
    const int64_t rows = n.batch / gpunn_group_size(group);
    const size_t  element = gpunn_tensor_dtype(n.x) == GPUNN_F32 ? sizeof(float) : sizeof(int64_t);
    const size_t x = (size_t)elements(n.x, rows) * element, t = (size_t)elements(n.t, rows) * sizeof(int64_t);
    char        *zeros = calloc(1, x > t ? x : t);
    bool         good = zeros && gpunn_distribute(opt, group) == GPUNN_OK;
    double       began = 0;
    for (int step = -3; step < steps && good; step++) { /* the first three do not count */
        if (step == 0) began = now(), in_mpi = 0;
        good = gpunn_write(n.x, zeros, x) == GPUNN_OK && gpunn_write(n.t, zeros, t) == GPUNN_OK &&
               gpunn_train_step(opt, n.loss) == GPUNN_OK;
    }
    *spent = now() - began;
    free(zeros);
    return good;
}

int main(int count, char **arguments)
{
    const int        steps = count > 2 ? atoi(arguments[2]) : 30;
    double           spent = 0;
    gpunn_device    *dev = gpunn_device_open(.seed = 1, .type = GPUNN_DEVICE_CPU);
    const char      *how = count > 3 ? arguments[3] : "";
    gpunn_group     *group = gpunn_group_open(dev, .shard = strcmp(how, "shard") == 0,
                                              .bf16_gradients = strcmp(how, "bf16") == 0);
    gpunn_model     *model = gpunn_model_create(dev);
    const char      *name = count > 1 ? arguments[1] : "";
    const net        n = strcmp(name, "gpt") == 0        ? gpt(model)
                         : strcmp(name, "resnet18") == 0 ? resnet18(model)
                                                         : mlp(model);
    gpunn_optimizer *opt = gpunn_adam(model);
    const bool       good = train(group, n, opt, steps, &spent);
    if (!good) fprintf(stderr, "%s\n", gpunn_error(dev));
    if (good && gpunn_group_rank(group) == 0)
        printf("%d ranks of %d threads: %.1f samples/s, %.1f MiB in each, %.0f %% of the time in MPI\n",
               gpunn_group_size(group), gpunn_device_threads(dev), steps * n.batch / spent,
               (double)gpunn_memory_peak(dev) / 1048576, 100 * in_mpi / spent);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    gpunn_group_close(group);
    gpunn_device_close(dev);
    return good ? 0 : 1;
}
