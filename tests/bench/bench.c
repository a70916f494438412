/* bench.c - one workload of gpunn, timed. tests/bench/run.py runs it alternately with its twin in
 * bench_torch.py.
 *
 * Usage: bench NAME THREADS      prints: NAME THREADS median-ms minimum-ms peak-RSS-MiB
 * Names: sgemm1024 sgemm256 mlp20 lenet4 lenet128 mlp784 lstm gru resnet_forward resnet_train bert1 bert8 gpt
 *        register48 register96 register192 cnn3d adam attention8192 attention4096 attention1500 table_sgd
 *        table_adam; resnet18 gpt2 and, with each block recomputed, resnet18_recompute gpt2_recompute, or with
 *        parts that fit into 70 % of the bytes, resnet18_within70 gpt2_within70; of precision BF16 bert1_bf16
 *        bert8_bf16 gpt_bf16
 * With BENCH_BRIEF in the environment the larger ones are small, and nothing is repeated for accuracy: a test
 * that they run. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"

#include "workloads.h"

static bool brief;

static int size(int full, int small)
{
    return brief ? small : full;
}

/* MiB of this program's own; getrusage would count what stood in the process before exec. */
static double peak_memory(void)
{
    long  kib = 0;
    char  line[128];
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1) break;
    if (file) fclose(file);
    return (double)kib / 1024;
}

static void make_sgemm(workload *w, int n)
{
    gpunn_tensor *a = input(w, "a", 1, GPUNN_SHAPE(n, n)), *b = input(w, "b", 1, GPUNN_SHAPE(n, n));
    w->output = gpunn_matmul(a, b);
}

/* 8 heads of `rows` rows of 64 elements, causal; 6 heads, as Whisper's smallest encoder has, not causal. */
static void make_attention(workload *w, int rows, bool causal, bool train)
{
    const gpunn_init  normal = {GPUNN_INIT_NORMAL, 0, 1};
    const gpunn_shape heads = GPUNN_SHAPE(1, causal ? 8 : 6, rows, 64);
    gpunn_tensor     *q = gpunn_parameter(w->model, "q", heads, normal);
    gpunn_tensor     *k = gpunn_parameter(w->model, "k", heads, normal);
    gpunn_tensor     *v = gpunn_parameter(w->model, "v", heads, normal);
    w->output = gpunn_scaled_dot_product_attention(q, k, v, .is_causal = causal);
    if (!train) return;
    w->loss = gpunn_mean(gpunn_square(w->output), GPUNN_ALL, false);
    w->opt = gpunn_sgd(w->model, .lr = 0.01f);
}

static void make_adam(workload *w)
{
    w->opt = gpunn_adam(w->model, .lr = 0.001f);
    make_parameters(w, size(10000000, 10000), 64);
}

enum { TABLE_TOKENS = 2048, TABLE_BATCHES = 64 };
static int64_t table_tokens[TABLE_BATCHES][TABLE_TOKENS];

static void renew_tokens(workload *w)
{
    static int         batch;
    const gpunn_status status = gpunn_write(gpunn_find(w->model, "tokens"), table_tokens[batch],
                                            sizeof *table_tokens);
    if (status != GPUNN_OK) die(w);
    batch = (batch + 1) % TABLE_BATCHES;
}

/* A sparse table 10 million x 16, other rows in each step. */
static void make_table(workload *w, bool adam)
{
    const int        table_rows = size(10000000, 10000);
    const gpunn_init start = {GPUNN_INIT_CONSTANT, 0.5f, 0};
    gpunn_tensor    *tokens = gpunn_input(w->model, "tokens", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *rows = gpunn_embedding(tokens, "table", .num_embeddings = table_rows, .embedding_dim = 16,
                                         .sparse = true);
    if (gpunn_set_init(gpunn_find(w->model, "table.weight"), start) != GPUNN_OK) die(w);
    for (int k = 0; k < TABLE_BATCHES; k++)
        for (int i = 0; i < TABLE_TOKENS; i++)
            table_tokens[k][i] = (int64_t)((0.5f + 0.5f * noise(i, (uint32_t)k)) * (float)(table_rows - 1));
    w->loss = gpunn_mean(gpunn_square(rows), GPUNN_ALL, false);
    w->opt = adam ? gpunn_adam(w->model, .lr = 0.001f) : gpunn_sgd(w->model, .lr = 0.01f);
    w->renew = renew_tokens;
}

/* Of a training step: so many percent of the bytes that it would hold. */
static void recompute_within(workload *w, int64_t batch, const char *name)
{
    const char *within = strstr(name, "_within");
    size_t      bytes = 0;
    if (within &&
        (gpunn_model_summary(w->model, .loss = w->loss, .batch_size = batch, .bytes = &bytes) != GPUNN_OK ||
         gpunn_recompute_within(w->loss, batch, bytes / 100 * (size_t)size(atoi(within + 7), 101)) !=
             GPUNN_OK))
        die(w);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc != 3 || atoi(argv[2]) < 1) {
        fprintf(stderr, "usage: %s NAME THREADS\n", argv[0]);
        return 2;
    }
    const char *name = argv[1];
    workload    w;
    memset(&w, 0, sizeof w);
    int threads = atoi(argv[2]);
    brief = getenv("BENCH_BRIEF") != NULL;
    w.dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 1, .threads = threads);
    if (w.dev == NULL) die(&w);
    w.model = gpunn_model_create(w.dev, .precision = strstr(name, "_bf16") ? GPUNN_PRECISION_BF16
                                                                           : GPUNN_PRECISION_F32);
    w.recomputes = strstr(name, "_recompute") != NULL;
    if (strcmp(name, "sgemm1024") == 0)
        make_sgemm(&w, size(1024, 100));
    else if (strcmp(name, "sgemm256") == 0)
        make_sgemm(&w, 256);
    else if (strcmp(name, "mlp20") == 0)
        make_mlp20(&w);
    else if (strcmp(name, "lenet4") == 0)
        make_lenet(&w, 4);
    else if (strcmp(name, "lenet128") == 0)
        make_lenet(&w, size(128, 4));
    else if (strcmp(name, "mlp784") == 0)
        make_mlp784(&w, 128, 256, 128);
    else if (strcmp(name, "lstm") == 0 || strcmp(name, "gru") == 0)
        make_rnn(&w, *name == 'g');
    else if (strcmp(name, "resnet_forward") == 0)
        make_resnet(&w, size(10, 1), 64, 5, false);
    else if (strcmp(name, "resnet_train") == 0)
        make_resnet(&w, size(32, 2), 64, 5, true);
    else if (strncmp(name, "bert1", 5) == 0 || strncmp(name, "bert8", 5) == 0)
        make_bert(&w, atoi(name + 4),
                  (transformer){.layers = size(12, 1), .width = 768, .heads = 12, .rows = size(128, 8)});
    else if (strcmp(name, "gpt") == 0 || strcmp(name, "gpt_bf16") == 0)
        make_gpt(&w, 4,
                 (transformer){
                     .layers = size(6, 1), .width = 384, .heads = 6, .rows = size(128, 8), .tokens = 1024});
    else if (strncmp(name, "register", 8) == 0 && atoi(name + 8) > 0)
        make_register(&w, size(atoi(name + 8), 16));
    else if (strncmp(name, "resnet18", 8) == 0) {
        make_resnet(&w, size(16, 2), size(224, 32), 1000, true);
        recompute_within(&w, size(16, 2), name);
    } else if (strncmp(name, "gpt2", 4) == 0) {
        make_gpt(&w, 1,
                 (transformer){.layers = size(12, 1),
                               .width = 768,
                               .heads = 12,
                               .rows = size(1024, 8),
                               .tokens = size(50304, 100)});
        recompute_within(&w, 1, name);
    } else if (strcmp(name, "cnn3d") == 0)
        make_cnn3d(&w, 4);
    else if (strcmp(name, "attention8192") == 0)
        make_attention(&w, size(8192, 70), true, false);
    else if (strcmp(name, "attention4096") == 0)
        make_attention(&w, size(4096, 70), true, true);
    else if (strcmp(name, "attention1500") == 0)
        make_attention(&w, size(1500, 70), false, false);
    else if (strcmp(name, "table_sgd") == 0 || strcmp(name, "table_adam") == 0)
        make_table(&w, strcmp(name, "table_adam") == 0);
    else if (strcmp(name, "adam") == 0)
        make_adam(&w);
    else {
        fprintf(stderr, "no workload %s\n", name);
        return 2;
    }
    if (gpunn_last_status(w.dev) != GPUNN_OK) die(&w);

    enum { REPEATS = 9 };
    double  times[REPEATS], begin;
    int64_t calls = 0;
    /* warm-up; then repeats of 0.2 s */
    for (begin = now(); (now() - begin < 0.3 && !brief) || calls < size(3, 1); calls++) run(&w);
    calls = brief ? 1 : (int64_t)(0.2 / ((now() - begin) / (double)calls)) + 1;
    for (int i = 0; i < REPEATS; i++) {
        begin = now();
        for (int64_t j = 0; j < calls; j++) run(&w);
        times[i] = (now() - begin) / (double)calls;
    }
    qsort(times, REPEATS, sizeof *times, compare);
    printf("%s %d %.6f %.6f %.1f\n", name, threads, 1e3 * times[REPEATS / 2], 1e3 * times[0], peak_memory());
    gpunn_optimizer_destroy(w.opt);
    gpunn_model_destroy(w.model);
    gpunn_device_close(w.dev);
    return 0;
}
