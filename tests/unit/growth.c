/* How the work of building, planning and training grows with the graph. The library is compiled to count its
 * basic blocks as they run, so no clock is needed. Four times the nodes may take 4.4 times the work: the
 * searches among n nodes take log n each. */
#include "../test.h"

static uint64_t blocks;

void __sanitizer_cov_trace_pc(void); /* the compiler calls it in each block of the library */
void __sanitizer_cov_trace_pc(void)
{
    blocks++;
}

enum { NODES = 300, MORE = 4, WIDTH = 4 };

typedef struct graph {
    gpunn_device *dev;
    gpunn_model  *model;
    gpunn_tensor *x, *y;        /* y: what is evaluated */
    gpunn_tensor *loss;         /* NULL: only evaluated */
    gpunn_tensor *output[1200]; /* evaluated instead of y */
    int           output_count;
} graph;

static gpunn_tensor *linear(graph *g, gpunn_tensor *x, int i)
{
    char name[32];
    (void)snprintf(name, sizeof name, "l%d", i);
    return MADE(g->dev, gpunn_linear(x, name, .out_features = WIDTH));
}

static void end_with_loss(graph *g)
{
    g->loss = MADE(g->dev, gpunn_mean(gpunn_square(g->y), GPUNN_ALL, false));
}

static void layers(graph *g, int n)
{
    for (int i = 0; i < n; i++) g->y = MADE(g->dev, gpunn_tanh(linear(g, g->y, i)));
    end_with_loss(g);
}

/* One value with n readers, and a chain of n sums whose gradients share memory. */
static void heads(graph *g, int n)
{
    gpunn_tensor *trunk = linear(g, g->x, n);
    for (int i = 0; i < n; i++) {
        gpunn_tensor *one = MADE(g->dev, gpunn_mean(gpunn_square(linear(g, trunk, i)), GPUNN_ALL, false));
        g->loss = i ? MADE(g->dev, gpunn_add(g->loss, one)) : one;
    }
}

static void unrolled(graph *g, int n)
{
    g->y = linear(g, g->x, 0);
    gpunn_tensor *weight = gpunn_find(g->model, "l0.weight");
    for (int i = 1; i < n; i++) g->y = MADE(g->dev, gpunn_tanh(gpunn_matmul(g->y, weight)));
    end_with_loss(g);
}

static void parameters(graph *g, int n)
{
    const gpunn_init init = {GPUNN_INIT_CONSTANT, 0.01f, 0};
    for (int i = 0; i < n; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "p%d", i);
        g->y = MADE(g->dev, gpunn_add(g->y, gpunn_parameter(g->model, name, GPUNN_SHAPE(WIDTH), init)));
    }
    end_with_loss(g);
}

/* n sums with one value, which has n readers. */
static void residuals(graph *g, int n)
{
    gpunn_tensor *trunk = linear(g, g->x, n);
    for (int i = 0; i < n; i++) g->y = MADE(g->dev, gpunn_add(gpunn_tanh(linear(g, g->y, i)), trunk));
    end_with_loss(g);
}

/* Norms save values for their backward steps. */
static void norms(graph *g, int n)
{
    for (int i = 0; i < n; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "n%d", i);
        g->y = MADE(g->dev, gpunn_layer_norm(linear(g, g->y, i), name));
    }
    end_with_loss(g);
}

static void kept(graph *g, int n)
{
    for (int i = 0; i < n; i++) MADE(g->dev, gpunn_keep(linear(g, g->x, i)));
    g->y = linear(g, g->x, n);
    end_with_loss(g);
}

/* Each layer is a checkpoint segment of its own. */
static void segments(graph *g, int n)
{
    for (int i = 0; i < n; i++) {
        gpunn_tensor *first = g->y, *last = MADE(g->dev, gpunn_tanh(linear(g, gpunn_tanh(first), i)));
        OK(g->dev, gpunn_recompute(first, g->y = last));
    }
    end_with_loss(g);
}

static void outputs(graph *g, int n)
{
    for (int i = 0; i < n; i++) g->output[g->output_count++] = MADE(g->dev, gpunn_relu(linear(g, g->x, i)));
}

static void states(graph *g, int n)
{
    const gpunn_init zeros = {GPUNN_INIT_ZEROS, 0, 0};
    for (int i = 0; i < n; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "s%d", i);
        gpunn_tensor *state = MADE(g->dev, gpunn_state(g->model, name, GPUNN_SHAPE(WIDTH), zeros));
        g->y = MADE(g->dev, gpunn_add(g->y, state));
        MADE(g->dev, gpunn_assign(state, gpunn_add_scalar(state, 1)));
    }
}

static void indices(graph *g, int n)
{
    gpunn_tensor *line = MADE(g->dev, gpunn_cast(gpunn_slice(g->x, 1, 0, 1, 1), GPUNN_I64));
    for (int i = 0; i < n; i++) {
        gpunn_tensor *copies = MADE(g->dev, gpunn_expand(line, GPUNN_SHAPE(2, WIDTH)));
        g->y = MADE(g->dev, gpunn_gather(g->y, 0, copies));
    }
}

/* The blocks that run to build a graph of n nodes, to run it twice and to free it. */
static uint64_t work(void (*build)(graph *g, int n), int n)
{
    const float values[2 * WIDTH] = {0};
    graph       g;
    memset(&g, 0, sizeof g);
    const uint64_t before = blocks;
    g.dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 1);
    g.model = MADE(g.dev, gpunn_model_create(g.dev));
    g.x = g.y = MADE(g.dev, gpunn_input(g.model, "x", GPUNN_F32, GPUNN_SHAPE(2, WIDTH)));
    build(&g, n);
    gpunn_optimizer *opt = g.loss ? MADE(g.dev, gpunn_adam(g.model, .lr = 0.01f)) : NULL;
    OK(g.dev, gpunn_write(g.x, values, sizeof values));
    if (g.output_count == 0) g.output[g.output_count++] = g.y;
    for (int i = 0; i < 2; i++)
        OK(g.dev, opt ? gpunn_train_step(opt, g.loss) : gpunn_forward(g.output, g.output_count));
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(g.model);
    gpunn_device_close(g.dev);
    return blocks - before;
}

static void test_growth(void **state)
{
    void (*const build)(graph * g, int n) = *(void (**)(graph *, int)) * state;
    const double few = (double)work(build, NODES), many = (double)work(build, MORE * NODES);
    if (!(many <= 1.1 * MORE * few))
        fail_msg("%d times the nodes take %.1f times the work", MORE, many / few);
}

/* The blocks of a forward pass that has been made before. */
static uint64_t run_of(gpunn_device *dev, gpunn_tensor *y)
{
    uint64_t before = 0;
    for (int i = 0; i < 3; i++) {
        before = blocks;
        OK(dev, gpunn_forward(&y, 1));
    }
    return blocks - before;
}

/* A run of one small layer does little besides its products. */
static void test_small_layers(void **state)
{
    enum { SIZE = 8 };
    static const int most[] = {600, 1200}; /* of 512 and 1071 */
    const float      values[SIZE] = {0};
    (void)state;
    for (int k = 0; k < COUNT(most); k++) {
        gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 1);
        gpunn_model  *model = gpunn_model_create(dev);
        gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32,
                                      k ? GPUNN_SHAPE(1, SIZE, 1) : GPUNN_SHAPE(1, SIZE));
        gpunn_tensor *y = k ? gpunn_conv1d(x, "y", .out_channels = SIZE, .kernel_size = 3, .stateful = true)
                            : gpunn_linear(x, "y", .out_features = SIZE);
        OK(dev, gpunn_write(x, values, sizeof values));
        const uint64_t work = run_of(dev, MADE(dev, y));
        if (work > (uint64_t)most[k]) fail_msg("%s: %d blocks", k ? "conv1d" : "linear", (int)work);
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
    }
}

/* One step of an LSTM from the states of some of 128 sequences, of which a mask starts some anew, is little
 * more work than one from given states. */
static void test_states_in_rows(void **state)
{
    enum { N = 64, SIZE = 16 };
    static const float   values[N * SIZE];
    static const uint8_t mask[N] = {1};
    uint64_t             work[2];
    (void)state;
    for (int k = 0; k < COUNT(work); k++) {
        gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 1);
        gpunn_model  *model = gpunn_model_create(dev);
        gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(1, GPUNN_BATCH, SIZE));
        gpunn_tensor *h = gpunn_input(model, "h", GPUNN_F32, GPUNN_SHAPE(1, GPUNN_BATCH, SIZE));
        gpunn_tensor *reset = gpunn_input(model, "reset", GPUNN_BOOL, GPUNN_SHAPE(GPUNN_BATCH));
        OK(dev, gpunn_write(x, values, sizeof values));
        OK(dev, gpunn_write(h, values, sizeof values));
        OK(dev, gpunn_write(reset, mask, sizeof mask));
        work[k] = run_of(dev, MADE(dev, k ? gpunn_lstm(x, "y", .hidden_size = SIZE, .stateful = true,
                                                       .capacity = 2 * N, .reset = reset)
                                          : gpunn_lstm(x, "y", .hidden_size = SIZE, .h_0 = h, .c_0 = h)));
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
    }
    if (!((double)work[1] <= 1.1 * (double)work[0]))
        fail_msg("%.3f times the work", (double)work[1] / (double)work[0]);
}

#define GROWTH(name)                                              \
    {                                                             \
#name, test_growth, NULL, NULL, &(void (*)(graph *, int)) \
        {                                                         \
            name                                                  \
        }                                                         \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {GROWTH(layers),
                                       GROWTH(heads),
                                       GROWTH(unrolled),
                                       GROWTH(parameters),
                                       GROWTH(residuals),
                                       GROWTH(norms),
                                       GROWTH(kept),
                                       GROWTH(segments),
                                       GROWTH(outputs),
                                       GROWTH(states),
                                       GROWTH(indices),
                                       cmocka_unit_test(test_small_layers),
                                       cmocka_unit_test(test_states_in_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
