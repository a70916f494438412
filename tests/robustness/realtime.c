/* The promise of gpunn_forward_prepare: with one thread, prepared runs allocate nothing, take no lock, read
 * no clock and make no system call. The linker sends the functions below to counters (build.ninja). System
 * calls end a process in the kernel's strict mode, which allows read, write and exit alone. */
#include "../test.h"
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

static long counted;
#define COUNTED(result, name, parameters, arguments) \
    result __real_##name parameters;                 \
    result __wrap_##name parameters;                 \
    result __wrap_##name parameters                  \
    {                                                \
        counted++;                                   \
        return __real_##name arguments;              \
    }
COUNTED(void *, malloc, (size_t size), (size))
COUNTED(void *, calloc, (size_t count, size_t size), (count, size))
COUNTED(void *, realloc, (void *memory, size_t size), (memory, size))
COUNTED(int, pthread_mutex_lock, (pthread_mutex_t * mutex), (mutex))
COUNTED(int, pthread_mutex_trylock, (pthread_mutex_t * mutex), (mutex))
COUNTED(int, pthread_cond_broadcast, (pthread_cond_t * condition), (condition))
COUNTED(int, clock_gettime, (clockid_t clock, struct timespec *now), (clock, now))
COUNTED(int, sched_yield, (void), ())

/* A network of one output for blocks x [N, steps, 8]. */
typedef gpunn_tensor *(*network)(gpunn_tensor *x);

static gpunn_tensor *perceptron(gpunn_tensor *x)
{
    return gpunn_softmax(gpunn_linear(gpunn_gelu(gpunn_layer_norm(x, "norm")), "out", .out_features = 3), 2);
}

static gpunn_tensor *streams(gpunn_tensor *x)
{
    gpunn_tensor *sound = gpunn_permute(x, GPUNN_AXES(0, 2, 1)); /* [1, 8, steps] */
    gpunn_tensor *y = gpunn_conv1d(sound, "conv", .out_channels = 8, .kernel_size = 3, .stateful = true);
    gpunn_tensor *h = gpunn_gru(gpunn_permute(y, GPUNN_AXES(2, 0, 1)), "gru", .hidden_size = 20,
                                .num_layers = 2, .stateful = true);
    return gpunn_lstm(h, "lstm", .hidden_size = 5, .stateful = true);
}

static gpunn_tensor *images(gpunn_tensor *x)
{
    gpunn_tensor *turned = gpunn_permute(x, GPUNN_AXES(0, 2, 1)); /* [N, 8, steps] */
    gpunn_tensor *y = gpunn_conv1d(turned, "conv", .out_channels = 16, .kernel_size = 3, .padding = 1);
    return gpunn_max(gpunn_relu(gpunn_batch_norm1d(y, "norm")), GPUNN_AXES(2), false);
}

static gpunn_tensor *attention(gpunn_tensor *x)
{
    return gpunn_multi_head_attention(x, x, x, "attention", .num_heads = 2, .batch_first = true);
}

static gpunn_tensor *integers(gpunn_tensor *x)
{
    gpunn_tensor *best = gpunn_argmax(x, 2, false);
    return gpunn_sum(gpunn_embedding(best, "table", .num_embeddings = 8, .embedding_dim = 4), GPUNN_AXES(1),
                     false);
}

typedef struct block {
    gpunn_shape shape;
    float      *values;
} block;

enum { BLOCKS = 3 };

typedef struct stream {
    gpunn_tensor *x, *y;
    block         blocks[BLOCKS];
    float         out[4096];
} stream;

/* What the real-time thread does. Returns false on failure. */
static bool run_blocks(stream *s)
{
    for (int i = 0; i < 3 * BLOCKS; i++) {
        const block *b = &s->blocks[i % BLOCKS];
        if (gpunn_write_shape(s->x, b->values, b->shape) != GPUNN_OK || gpunn_forward(&s->y, 1) != GPUNN_OK ||
            gpunn_read(s->y, s->out, gpunn_tensor_bytes(s->y)) != GPUNN_OK)
            return false;
    }
    return true;
}

/* The same in a process that may make no system call. Returns its wait status. */
static int run_confined(stream *s)
{
    int         status = -1;
    const pid_t child = fork();
    if (child == 0) {
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) _exit(77);
        (void)syscall(SYS_exit, run_blocks(s) ? 0 : 1); /* exit() would make another system call */
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

static void prepare(gpunn_device *dev, stream *s, bool one_sample)
{
    static const int64_t sizes[BLOCKS][2] = {{1, 16}, {1, 64}, {3, 5}};
    for (int i = 0; i < BLOCKS; i++) {
        const int64_t samples = one_sample ? 1 : sizes[i][0];
        s->blocks[i].shape = GPUNN_SHAPE(samples, sizes[i][1], 8);
        s->blocks[i].values = test_randoms(samples * sizes[i][1] * 8, (uint32_t)i, 1);
        OK(dev, gpunn_write_shape(s->x, s->blocks[i].values, s->blocks[i].shape));
        OK(dev, gpunn_forward_prepare(&s->y, 1));
    }
}

static void test_network(void **state)
{
    static stream        s;
    const network *const build = *state;
    const bool           stateful = *build == streams;
    gpunn_device        *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 1, .seed = 1);
    gpunn_model         *model = MADE(dev, gpunn_model_create(dev, .inference = true));
    const int64_t        steps = gpunn_size(model, "steps");
    s.x = MADE(dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(stateful ? 1 : GPUNN_BATCH, steps, 8)));
    s.y = MADE(dev, (*build)(s.x));
    prepare(dev, &s, stateful);
    counted = 0;
    assert_true(run_blocks(&s));
    assert_int_equal(counted, 0);
    const int status = run_confined(&s);
    for (int i = 0; i < BLOCKS; i++) free(s.blocks[i].values);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) SKIP("the kernel has no strict mode");
    assert_int_equal(status, 0);
}

int main(void)
{
    static network          builds[] = {perceptron, streams, images, attention, integers};
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(test_network, &builds[0]),
                                       cmocka_unit_test_prestate(test_network, &builds[1]),
                                       cmocka_unit_test_prestate(test_network, &builds[2]),
                                       cmocka_unit_test_prestate(test_network, &builds[3]),
                                       cmocka_unit_test_prestate(test_network, &builds[4])};
    return cmocka_run_group_tests_name("realtime", tests, NULL, NULL);
}
