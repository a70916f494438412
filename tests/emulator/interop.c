/* gpunn in a program with CUDA of its own (caller.cpp): its stream, its memory, its captures, its device and
 * its errors, counted on the emulated GPU. */
#include "../test.h"

#include "caller.h"
#include "emulator.h"

static void *test_user; /* of hook_realloc: the test's memory */

static int setup(void **state)
{
    test_memory *memory = malloc(sizeof *memory);
    test_memory_init(memory);
    *state = test_user = memory;
    gpunn_clear_error(NULL);
    emulator_set("EMULATOR_DEVICES", "2");
    caller_set_device(0);
    return 0;
}
static int teardown(void **state)
{
    caller_set_device(0);
    caller_forget();
    emulator_set("EMULATOR_STREAMS", "late");
    test_memory_check(*state);
    free(*state);
    if (emulator_held() != 0) fail_msg("%ld objects of the runtime are left", emulator_held());
    if (emulator_faults() != 0) fail_msg("%s", emulator_fault());
    return 0;
}

static gpunn_device *open_with(void *stream)
{
    return MADE(NULL, gpunn_device_open(.stream = stream, .seed = 7, .threads = 1, .realloc_fn = hook_realloc,
                                        .user = test_user));
}

/* ---- streams ---- */
enum { STEPS = 6, BATCH = 8 };
/* The losses of steps on that stream. The first two steps are warm, and captured; the others must not
 * wait. */
static void train_on(void *stream, float loss[STEPS])
{
    gpunn_device    *dev = open_with(stream);
    gpunn_model     *model = MADE(dev, gpunn_model_create(dev));
    net              n = net_make(model);
    gpunn_optimizer *opt = MADE(dev, gpunn_sgd(model, .lr = 0.1f, .momentum = 0.9f));
    long             waits = 0, captures = 0, launches = emulator_graph_launches();
    assert_int_equal(gpunn_device_type(dev), GPUNN_DEVICE_CUDA);
    for (int step = 0; step < STEPS; step++) {
        const long before = emulator_waits(), begun = emulator_captures();
        net_write(dev, n, BATCH, (uint32_t)step);
        OK(dev, gpunn_train_step(opt, n.loss));
        if (step >= 2) waits += emulator_waits() - before, captures += emulator_captures() - begun;
        loss[step] = gpunn_item(n.loss);
    }
    assert_int_equal(waits, 0);
    assert_int_equal(captures, 0);
    assert_int_equal(emulator_graph_launches() - launches, STEPS - 1);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

static void test_streams(void **state)
{
    (void)state;
    float own[STEPS], given[STEPS];
    /* the second cannot be captured, but graphs run there */
    void *streams[] = {caller_stream(), caller_legacy_stream()};
    train_on(NULL, own);
    for (int i = 0; i < COUNT(streams); i++) {
        train_on(streams[i], given);
        assert_memory_equal(own, given, sizeof own);
    }
    caller_end(streams[0]);
}

/* A stream of another GPU, one that is being captured, and one for the CPU. */
static void test_bad_streams(void **state)
{
    (void)state;
    caller_set_device(1);
    void *stream = caller_stream();
    caller_set_device(0);
    FAILS_NULL(NULL, gpunn_device_open(.stream = stream), GPUNN_ERR_DEVICE, "stream", "GPU 0", "index");
    assert_int_equal(caller_device(), 0);
    assert_int_equal(caller_pending(), 0);
    gpunn_device_close(MADE(NULL, gpunn_device_open(.stream = stream, .index = 1)));
    assert_int_equal(caller_device(), 0);
    gpunn_device_close(MADE(NULL, gpunn_device_open(.stream = stream, .type = GPUNN_DEVICE_CPU)));
    caller_end(stream);
    stream = caller_stream();
    caller_begin_capture(stream);
    FAILS_NULL(NULL, gpunn_device_open(.stream = stream), GPUNN_ERR_DEVICE, "captured", "before");
    void *graph = caller_end_capture(stream);
    assert_non_null(graph);
    caller_forget_graph(graph);
    caller_end(stream);
}

/* Every call leaves the program's device and its pending error alone. */
static void test_left_alone(void **state)
{
    (void)state;
#define LEFT(call)                                                              \
    do {                                                                        \
        call;                                                                   \
        if (caller_device() != 1) fail_msg(#call " changed the device");        \
        if (caller_pending() == 0) fail_msg(#call " took the program's error"); \
    } while (0)
    gpunn_device    *dev;
    gpunn_model     *model;
    gpunn_optimizer *opt;
    net              n;
    float           *large = test_randoms(100000, 1, 1), loss = 0;
    caller_set_device(1);
    caller_err();
    LEFT(assert_int_equal(gpunn_cuda_device_count(), 2));
    LEFT(dev = open_with(NULL));
    LEFT(model = MADE(dev, gpunn_model_create(dev)));
    LEFT(n = net_make(model));
    gpunn_tensor *big = MADE(dev, gpunn_input(model, "big", GPUNN_F32, GPUNN_SHAPE(100000)));
    LEFT(opt = MADE(dev, gpunn_adam(model, .lr = 0.01f)));
    gpunn_set_clip_norm(opt, 1);
    for (int i = 0; i < 3; i++) {
        LEFT(net_write(dev, n, BATCH, 1));
        LEFT(OK(dev, gpunn_train_step(opt, n.loss)));
        LEFT(OK(dev, write_floats(big, large, 100000))); /* while the device is busy */
        LEFT(loss = gpunn_item(n.loss));
        assert_true(isfinite(loss));
        LEFT(OK(dev, gpunn_forward(&n.logits, 1)));
    }
    LEFT(OK(dev, gpunn_zero_grad(model)));
    LEFT(OK(dev, gpunn_backward(n.loss)));
    LEFT(OK(dev, gpunn_clip_grad_norm(model, 1, &loss)));
    LEFT(OK(dev, gpunn_optimizer_step(opt)));
    LEFT(OK(dev, gpunn_synchronize(dev)));
    LEFT(gpunn_empty_cache(dev));
    LEFT(gpunn_optimizer_destroy(opt));
    LEFT(gpunn_model_destroy(model));
    LEFT(gpunn_device_close(dev));
    free(large);
#undef LEFT
}

/* ---- memory from the program ---- */
static struct {
    void  *stream;
    long   taken, given, left; /* left: allocations until they fail; 0: they never do */
    size_t shift, bytes;
} pool;
static void *pool_malloc(void *user, size_t bytes, void *stream)
{
    assert_ptr_equal(user, test_user);
    assert_non_null(stream);
    if (pool.left > 0 && --pool.left == 0) return NULL;
    pool.taken++;
    pool.bytes += bytes;
    return (char *)caller_malloc(bytes + pool.shift) + pool.shift;
}
static void pool_free(void *user, void *ptr, size_t bytes, void *stream)
{
    assert_ptr_equal(user, test_user);
    assert_non_null(stream);
    pool.given++;
    pool.bytes -= bytes;
    caller_free((char *)ptr - pool.shift);
}
static void test_allocator(void **state)
{
    (void)state;
    memset(&pool, 0, sizeof pool);
    for (long fails = 0; fails < 12; fails++) {
        pool.left = fails;
        gpunn_device *dev = gpunn_device_open(.cuda_malloc_fn = pool_malloc, .cuda_free_fn = pool_free,
                                              .type = GPUNN_DEVICE_CUDA, .realloc_fn = hook_realloc,
                                              .user = test_user);
        if (dev) {
            gpunn_model     *model = MADE(dev, gpunn_model_create(dev));
            net              n = net_make(model);
            gpunn_optimizer *opt = MADE(dev, gpunn_adam(model, .lr = 0.01f));
            float           *x = test_randoms(BATCH * NET_X, 1, 1);
            int64_t          t[BATCH] = {0};
            gpunn_status     status = write_floats(n.x, x, BATCH * NET_X);
            if (status == GPUNN_OK) status = gpunn_write(n.t, t, sizeof t);
            if (status == GPUNN_OK) status = gpunn_train_step(opt, n.loss);
            if (status != GPUNN_OK) assert_int_equal(status, GPUNN_ERR_MEMORY);
            if (fails == 0) assert_true(pool.bytes >= gpunn_memory_allocated(dev));
            assert_true(gpunn_memory_reserved(dev) == pool.bytes);
            free(x);
            gpunn_optimizer_destroy(opt);
            gpunn_model_destroy(model);
        } else
            assert_non_null(strstr(gpunn_error(NULL), "memory"));
        assert_int_equal(dev == NULL, fails >= 1 && fails <= 3);
        gpunn_clear_error(NULL);
        gpunn_device_close(dev);
        assert_int_equal(pool.taken, pool.given);
    }
    pool.shift = 64;
    FAILS_NULL(NULL,
               gpunn_device_open(.cuda_malloc_fn = pool_malloc, .cuda_free_fn = pool_free,
                                 .type = GPUNN_DEVICE_CUDA, .realloc_fn = hook_realloc, .user = test_user),
               GPUNN_ERR_DEVICE, "cuda_malloc_fn", "256");
    FAILS_NULL(NULL, gpunn_device_open(.cuda_malloc_fn = pool_malloc), GPUNN_ERR_ARGUMENT, "cuda_free_fn");
    assert_int_equal(pool.taken, pool.given);
    assert_true(pool.taken > 20);
}

/* ---- the program's memory ---- */
/* Two buffers of inputs and three of results in turn, written and read by the program's kernels: after each
 * has had its turn nothing is captured, waited for or copied to the host. */
static void test_double_buffers(void **state)
{
    (void)state;
    enum { IN = 2, OUT = 3, ROUNDS = 4 * IN * OUT };
    void         *stream = caller_stream();
    gpunn_device *dev = open_with(stream);
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *x = MADE(dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 10)));
    gpunn_tensor *y = MADE(dev, gpunn_mul_scalar(x, 3)),
                 *w = MADE(dev, gpunn_linear(x, "w", .out_features = 10));
    gpunn_tensor    *loss = MADE(dev, gpunn_mse_loss(w, y));
    gpunn_optimizer *opt = MADE(dev, gpunn_sgd(model, .lr = 0.01f));
    const size_t     count = BATCH * 10, bytes = count * sizeof(float);
    float *in[IN], *out[OUT], *start = test_randoms((int64_t)count, 1, 1), seen[BATCH * 10], factor[IN];
    long   waits = 0, captures = 0, copies = 0;
    for (int i = 0; i < IN; i++)
        caller_put(in[i] = caller_malloc(bytes), start, bytes, stream), factor[i] = 1;
    for (int i = 0; i < OUT; i++) out[i] = caller_malloc(bytes);
    for (int round = 0; round < ROUNDS; round++) {
        if (round == 3 * IN * OUT)
            waits = emulator_waits(), captures = emulator_captures(), copies = emulator_host_copies();
        OK(dev, gpunn_bind(x, in[round % IN], bytes));
        OK(dev, gpunn_bind(y, out[round % OUT], bytes));
        caller_scale(in[round % IN], count, 1.01f, stream); /* before, and after, in the stream's order */
        factor[round % IN] *= 1.01f;
        OK(dev, gpunn_forward(&y, 1));
        OK(dev, gpunn_train_step(opt, loss));
        caller_scale(out[round % OUT], count, 2, stream);
    }
    assert_int_equal(emulator_waits() - waits, 0);
    assert_int_equal(emulator_captures() - captures, 0);
    assert_int_equal(emulator_host_copies() - copies, 0);
    caller_get(seen, out[(ROUNDS - 1) % OUT], bytes, stream);
    for (size_t i = 0; i < count; i++) start[i] *= 6 * factor[(ROUNDS - 1) % IN];
    check_close(seen, start, (int64_t)count, 1e-5, 1e-6);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    for (int i = 0; i < IN; i++) caller_free(in[i]);
    for (int i = 0; i < OUT; i++) caller_free(out[i]);
    free(start);
    caller_end(stream);
}

static float *aligned(float *memory)
{
    return memory + (64 - (uintptr_t)memory % 64) % 64 / sizeof *memory;
}

static void test_bad_memory(void **state)
{
    (void)state;
    gpunn_device *dev = open_with(NULL);
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *x = MADE(dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 10)));
    float         host[64 + 16];
    float        *near = caller_malloc(400), *far;
    void         *pinned = caller_pinned(400);
    caller_set_device(1);
    far = caller_malloc(400);
    caller_set_device(0);
    FAILS(dev, gpunn_bind(x, aligned(host), 40), GPUNN_ERR_ARGUMENT, "gpunn_bind", "'x'", "host",
          "gpunn_write");
    FAILS(dev, gpunn_bind(x, pinned, 40), GPUNN_ERR_ARGUMENT, "host");
    FAILS(dev, gpunn_bind(x, far, 40), GPUNN_ERR_ARGUMENT, "GPU 1", "GPU 0");
    FAILS(dev, gpunn_bind(x, near + 1, 40), GPUNN_ERR_ARGUMENT, "64 bytes");
    FAILS(dev, gpunn_bind(x, near, 440), GPUNN_ERR_SHAPE, "less than 440");
    OK(dev, gpunn_bind(x, near, 400));
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    caller_free(near), caller_free(far), caller_free(pinned);
}

/* gpunn_write and gpunn_read from and to the GPU's own memory: what the host would see, without it. */
static void test_device_copies(void **state)
{
    (void)state;
    for (int precision = GPUNN_PRECISION_F32; precision <= GPUNN_PRECISION_F16; precision++) {
        void         *stream = caller_stream();
        gpunn_device *dev = open_with(stream);
        gpunn_model  *model = MADE(dev, gpunn_model_create(dev, .precision = (gpunn_precision)precision));
        net           n = net_make(model);
        gpunn_tensor *image = MADE(dev, gpunn_conv2d(n.x, "conv9", .out_channels = 4, .kernel_size = 3));
        gpunn_tensor *index = MADE(dev, gpunn_argmax(n.logits, 1, false)),
                     *weight = gpunn_find(model, "fc1.weight");
        gpunn_tensor *read[] = {n.x, n.logits, image, index, weight, n.loss};
        gpunn_tensor *loss = MADE(dev, gpunn_add(n.loss, gpunn_mean(image, GPUNN_ALL, false)));
        char         *device[COUNT(read)], *grads[3], host[1 << 14], seen[1 << 14];
        float        *x;
        int64_t      *t;
        for (int i = 0; i < COUNT(read); i++) device[i] = caller_malloc(sizeof host);
        for (int i = 0; i < COUNT(grads); i++) grads[i] = caller_malloc(sizeof host);
        for (int i = 0; i < 3; i++) gpunn_retain_grad(read[i]);
        net_data(BATCH, 1, &x, &t);
        caller_put(device[0], x, BATCH * NET_X * sizeof *x, stream);
        caller_put(device[1], t, BATCH * sizeof *t, stream);
        caller_put(device[2], x, 63 * sizeof *x, stream);
        net_write(dev, n, BATCH, 2);
        OK(dev, gpunn_forward(read + 1, COUNT(read) - 1));
        OK(dev, gpunn_backward(loss));
        const long waits = emulator_waits(), copies = emulator_host_copies();
        OK(dev, gpunn_write(n.x, device[0], BATCH * NET_X * sizeof *x));
        OK(dev, gpunn_write(n.t, device[1], BATCH * sizeof *t));
        OK(dev, gpunn_write(gpunn_find(model, "fc2.weight"), device[2],
                            gpunn_tensor_bytes(gpunn_find(model, "fc2.weight"))));
        OK(dev, gpunn_backward(loss));
        for (int i = 0; i < COUNT(grads); i++)
            OK(dev, gpunn_read_grad(read[i], grads[i], gpunn_tensor_bytes(read[i])));
        OK(dev, gpunn_forward(read + 1, COUNT(read) - 1));
        for (int i = 0; i < COUNT(read); i++)
            OK(dev, gpunn_read(read[i], device[i], gpunn_tensor_bytes(read[i])));
        assert_int_equal(emulator_waits() - waits, 0);
        assert_int_equal(emulator_host_copies() - copies, 0);
        for (int i = 0; i < COUNT(read); i++) {
            const size_t bytes = gpunn_tensor_bytes(read[i]);
            OK(dev, gpunn_read(read[i], host, bytes));
            caller_get(seen, device[i], bytes, stream);
            assert_memory_equal(host, seen, bytes);
        }
        OK(dev, gpunn_read(n.x, host, BATCH * NET_X * sizeof *x));
        assert_memory_equal(host, x, BATCH * NET_X * sizeof *x);
        OK(dev, gpunn_read(gpunn_find(model, "fc2.weight"), host,
                           gpunn_tensor_bytes(gpunn_find(model, "fc2.weight"))));
        assert_memory_equal(host, x, gpunn_tensor_bytes(gpunn_find(model, "fc2.weight")));
        gpunn_zero_grad(model);
        OK(dev, gpunn_backward(loss));
        for (int i = 0; i < COUNT(grads); i++) {
            const size_t bytes = gpunn_tensor_bytes(read[i]);
            if (i < 2) continue; /* dropout has gone on: only where it has no say */
            OK(dev, gpunn_read_grad(read[i], host, bytes));
            caller_get(seen, grads[i], bytes, stream);
            assert_memory_equal(host, seen, bytes);
        }
        caller_set_device(1);
        void *far = caller_malloc(1 << 12);
        caller_set_device(0);
        FAILS(dev, gpunn_write(n.t, far, BATCH * sizeof *t), GPUNN_ERR_ARGUMENT, "gpunn_write", "GPU 1");
        FAILS(dev, gpunn_write(n.t, device[0] + (1 << 14) - 8, BATCH * sizeof *t), GPUNN_ERR_SHAPE,
              "less than");
        FAILS(dev, gpunn_read(loss, far, sizeof *x), GPUNN_ERR_ARGUMENT, "gpunn_read", "GPU 1");
        for (int i = 0; i < COUNT(read); i++) caller_free(device[i]);
        for (int i = 0; i < COUNT(grads); i++) caller_free(grads[i]);
        caller_free(far);
        free(x), free(t);
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
        caller_end(stream);
    }
}

/* More than is staged at once, from the host's own memory and from pinned, while the GPU is idle and while it
 * is busy. */
static void test_long_uploads(void **state)
{
    (void)state;
    enum { ROWS = 70, ROW = 1 << 18 }; /* 70 MiB */
    gpunn_device *dev = open_with(NULL);
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *x = MADE(dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, ROW)));
    gpunn_tensor *y = MADE(dev, gpunn_mul_scalar(x, 2)), *sum = MADE(dev, gpunn_sum(y, GPUNN_ALL, false));
    const size_t  count = (size_t)ROWS * ROW, bytes = count * sizeof(float);
    float        *pageable = malloc(bytes), *pinned = caller_pinned(bytes), *back = malloc(bytes);
    for (int way = 0; way < 4; way++) {
        float *from = way % 2 ? pinned : pageable;
        for (size_t i = 0; i < count; i++) from[i] = (float)((i * 2654435761u + (unsigned)way) % 8191);
        if (way >= 2) OK(dev, gpunn_forward(&sum, 1)); /* what is written waits behind it */
        const long waits = emulator_waits();
        OK(dev, gpunn_write(x, from, bytes));
        if (way == 2) assert_int_equal(emulator_waits() - waits, 0); /* both slots are there */
        memset(from, 0, bytes);
        OK(dev, gpunn_read(x, back, bytes));
        for (size_t i = 0; i < count; i++)
            if (back[i] != (float)((i * 2654435761u + (unsigned)way) % 8191))
                fail_msg("way %d: %zu arrived as %g", way, i, back[i]);
    }
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    free(pageable), free(back), caller_free(pinned);
}

/* A loader's batches are made where uploads leave fastest, or, where that is refused, in any memory; then
 * they arrive all the same. */
enum { SAMPLES = 23, SAMPLE = 5 };
static gpunn_status load_numbers(void *user, int64_t index, void *const *sample)
{
    if (caller_is_pinned(sample[0])) __atomic_fetch_add((int *)user, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < SAMPLE; i++) ((float *)sample[0])[i] = (float)(index * SAMPLE + i);
    return GPUNN_OK;
}
static void test_pinned_batches(void **state)
{
    (void)state;
    enum { OUT_OF_MEMORY = 2, BATCH = 4 };
    gpunn_device *dev = open_with(NULL);
    gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor *x = MADE(dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, SAMPLE)));
    float         read[BATCH * SAMPLE];
    bool          ends = false;
    for (long call = 0; !ends; call++) {
        const long before = emulator_calls(), held = emulator_held();
        int        pinned = 0;
        emulator_fail(call, OUT_OF_MEMORY);
        gpunn_loader *loader = MADE(
            dev, gpunn_loader_create(model, .fields = {{.input = x}}, .count = SAMPLES, .batch_size = BATCH,
                                     .load = load_numbers, .user = &pinned, .workers = (int)(call % 2)));
        emulator_fail(0, 0);
        ends = call > emulator_calls() - before;
        for (int64_t at = 0; gpunn_next(loader); at += BATCH) {
            const int count = SAMPLES - at < BATCH ? (int)(SAMPLES - at) : (int)BATCH;
            OK(dev, gpunn_read(x, read, (size_t)count * SAMPLE * sizeof *read));
            for (int i = 0; i < count * SAMPLE; i++) assert_true(read[i] == (float)(at * SAMPLE + i));
        }
        assert_int_equal(pinned, call == 0 || ends ? SAMPLES : 0);
        gpunn_loader_destroy(loader);
        /* the first uploads leave the way that they took */
        assert_in_range(emulator_held() - held, 0, call == 0 ? 8 : 0);
    }
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

/* A GPU in the host's memory takes the host's pinned memory, or any, for its own: nothing is copied. */
static void test_integrated(void **state)
{
    (void)state;
    enum { COUNT_IN = 32 };
    static float plain[2][COUNT_IN + 16];
    for (int kind = 1; kind <= 2; kind++) {
        emulator_set("EMULATOR_INTEGRATED", kind == 1 ? "1" : "2");
        gpunn_device *dev = open_with(NULL);
        gpunn_model  *model = MADE(dev, gpunn_model_create(dev));
        gpunn_tensor *x = MADE(dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 16)));
        gpunn_tensor *y = MADE(dev, gpunn_mul_scalar(x, 3));
        const size_t  bytes = COUNT_IN * sizeof(float);
        float        *in = kind == 1 ? caller_pinned(bytes) : aligned(plain[0]);
        float        *out = kind == 1 ? caller_pinned(bytes) : aligned(plain[1]);
        assert_non_null(strstr(gpunn_device_name(dev), "GiB shared,"));
        if (kind == 1) FAILS(dev, gpunn_bind(x, aligned(plain[0]), bytes), GPUNN_ERR_ARGUMENT, "host");
        OK(dev, gpunn_bind(x, in, bytes));
        OK(dev, gpunn_bind(y, out, bytes));
        const long copies = emulator_host_copies();
        for (int round = 0; round < 4; round++) {
            for (int i = 0; i < COUNT_IN; i++) in[i] = (float)(i + round);
            OK(dev, gpunn_forward(&y, 1));
            OK(dev, gpunn_synchronize(dev));
            for (int i = 0; i < COUNT_IN; i++) assert_true(out[i] == 3 * (float)(i + round));
        }
        assert_int_equal(emulator_host_copies() - copies, 0);
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
        if (kind == 1) caller_free(in), caller_free(out);
    }
    emulator_set("EMULATOR_INTEGRATED", "0");
}

/* What NVIDIA's profilers show: a range for each step that is launched, by layer and op, within that of the
 * run; all end. */
static void test_ranges(void **state)
{
    (void)state;
    gpunn_device    *dev = open_with(NULL);
    gpunn_model     *model = MADE(dev, gpunn_model_create(dev));
    net              n = net_make(model);
    gpunn_optimizer *opt = MADE(dev, gpunn_sgd(model, .lr = 0.1f));
    gpunn_tensor    *fc1 = MADE(dev, gpunn_linear(n.x, "alone", .out_features = 300));
    const char      *last;
    net_write(dev, n, BATCH, 1);
    OK(dev, gpunn_train_step(opt, n.loss));
    assert_int_equal(emulator_ranges(&last), 0);
    assert_string_equal(last, "gpunn training > update");
    OK(dev, gpunn_forward(&fc1, 1));
    assert_int_equal(emulator_ranges(&last), 0);
    assert_string_equal(last, "gpunn evaluation > alone linear");
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

/* ---- captures of the program's ---- */
/* Steps replayed by the program's own graph, between kernels of its own, are those that would have been:
 * masks, Adam's corrections, running statistics. What a capture cannot take is refused, and does not end
 * it. */
static void test_captured_by_program(void **state)
{
    (void)state;
    enum { WARM = 2, REPLAYS = 4 };
    for (int precision = GPUNN_PRECISION_F32; precision <= GPUNN_PRECISION_F16; precision++) {
        float  *weights[2], logits[2][BATCH * 3], host[BATCH * NET_X] = {0};
        int64_t total[2];
        for (int way = 0; way < 2; way++) {
            void         *stream = caller_stream(), *graph;
            gpunn_device *dev = open_with(stream);
            gpunn_model  *model = MADE(dev, gpunn_model_create(dev, .precision = (gpunn_precision)precision));
            net           n = net_make(model);
            gpunn_optimizer *opt = MADE(dev, gpunn_adam(model, .lr = 0.01f));
            float           *x = caller_malloc(sizeof host), *values;
            int64_t         *t;
            net_data(BATCH, 3, &values, &t);
            caller_put(x, values, sizeof host, stream);
            net_write(dev, n, BATCH, 3);
            OK(dev, gpunn_bind(n.x, x, sizeof host));
            OK(dev, gpunn_forward(&n.logits, 1));
            for (int step = 0; step < WARM; step++) OK(dev, gpunn_train_step(opt, n.loss));
            if (way == 1) {
                caller_begin_capture(stream);
                FAILS(dev, gpunn_forward(&n.accuracy, 1), GPUNN_ERR_STATE, "captured", "once before");
                FAILS(dev, gpunn_synchronize(dev), GPUNN_ERR_STATE, "captured", "waiting");
                FAILS(dev, gpunn_read(n.loss, host, sizeof *host), GPUNN_ERR_STATE, "captured", "host");
                caller_scale(x, BATCH * NET_X, 0.9f, stream);
                OK(dev, gpunn_train_step(opt, n.loss));
                OK(dev, gpunn_train_step(opt, n.loss));
                OK(dev, gpunn_forward(&n.logits, 1));
                graph = caller_end_capture(stream);
                assert_non_null(graph);
                for (int i = 0; i < REPLAYS; i++) caller_launch(graph, stream);
                OK(dev, gpunn_synchronize(dev));
                caller_forget_graph(graph);
            }
            for (int i = 0; i < REPLAYS && way == 0; i++) {
                caller_scale(x, BATCH * NET_X, 0.9f, stream);
                OK(dev, gpunn_train_step(opt, n.loss));
                OK(dev, gpunn_train_step(opt, n.loss));
                OK(dev, gpunn_forward(&n.logits, 1));
            }
            OK(dev, gpunn_read(n.logits, logits[way], sizeof logits[way]));
            weights[way] = read_weights(dev, model, &total[way]);
            OK(dev, gpunn_train_step(opt, n.loss)); /* the model goes on */
            gpunn_optimizer_destroy(opt);
            gpunn_model_destroy(model);
            gpunn_device_close(dev);
            caller_free(x);
            caller_end(stream);
            free(values), free(t);
        }
        assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
        assert_memory_equal(weights[0], weights[1], (size_t)total[0] * sizeof *weights[0]);
        free(weights[0]), free(weights[1]);
    }
}

/* A program that mixes runs and replays. The letters of a schedule are runs, and a digit those of the graph
 * of that number:
 *   a, b  steps of two optimizers that share the first model, each with its own loss and parameters
 *   c, d  steps of the one optimizer of the second model, whose two losses share some parameters
 *   e     an evaluation of the first model, with random numbers
 *   f     gpunn_backward and gpunn_optimizer_step instead of c
 *   g     an update of gradients accumulated over two calls, instead of c
 *   s     a look at the loss scales
 *   h     gpunn_backward in evaluation mode on the second model, whose gradients nobody uses */
enum { ALL = 2, MOST_WEIGHTS = 256 };
typedef struct player {
    void            *stream;
    gpunn_device    *dev;
    gpunn_model     *model[ALL];
    gpunn_tensor    *x[ALL], *loss[ALL][2], *drawn;
    gpunn_optimizer *opt[3];
    void            *graphs[3];
} player;

static void player_model(player *p, int m, gpunn_precision precision)
{
    gpunn_model  *model = p->model[m] = MADE(p->dev, gpunn_model_create(p->dev, .precision = precision));
    gpunn_tensor *x = p->x[m] = MADE(p->dev, gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 5)));
    gpunn_tensor *h = gpunn_relu(gpunn_linear(x, m ? "shared" : "maker", .out_features = 6));
    h = gpunn_add(gpunn_dropout(h, 0.5f), gpunn_mul_scalar(gpunn_randn_like(h), 0.1f));
    gpunn_tensor *first = gpunn_linear(h, m ? "one" : "judge", .out_features = 3);
    gpunn_tensor *second = m ? gpunn_linear(h, "other", .out_features = 2) : first;
    p->loss[m][0] = MADE(p->dev, gpunn_mean(gpunn_square(first), GPUNN_ALL, false));
    p->loss[m][1] = MADE(p->dev, gpunn_mean(gpunn_square(gpunn_add_scalar(second, -1)), GPUNN_ALL, false));
    if (m == 0) p->drawn = MADE(p->dev, gpunn_add(gpunn_rand_like(first), gpunn_mul_scalar(first, 1e-3f)));
}

static void player_open(player *p, gpunn_precision precision)
{
    float x[4 * 5];
    memset(p, 0, sizeof *p);
    p->stream = caller_stream();
    p->dev = open_with(p->stream);
    for (int i = 0; i < COUNT(x); i++) x[i] = 0.3f * (float)(i % 7) - 0.8f;
    for (int m = 0; m < ALL; m++) {
        player_model(p, m, precision);
        OK(p->dev, gpunn_write(p->x[m], x, sizeof x));
    }
    p->opt[0] = MADE(p->dev, gpunn_adam(p->model[0], .lr = 0.02f, .prefix = "maker."));
    p->opt[1] = MADE(p->dev, gpunn_nadam(p->model[0], .lr = 0.01f, .prefix = "judge."));
    p->opt[2] = MADE(p->dev, gpunn_adam(p->model[1], .lr = 0.03f));
    OK(p->dev, gpunn_set_ema(p->opt[2], 0.9f));
}

static void player_close(player *p)
{
    for (int i = 0; i < COUNT(p->graphs); i++)
        if (p->graphs[i]) caller_forget_graph(p->graphs[i]);
    for (int i = 0; i < COUNT(p->opt); i++) gpunn_optimizer_destroy(p->opt[i]);
    for (int m = 0; m < ALL; m++) gpunn_model_destroy(p->model[m]);
    gpunn_device_close(p->dev);
    caller_end(p->stream);
}

static void play_one(player *p, char run)
{
    gpunn_optimizer *opt = p->opt[2];
    switch (run) {
    case 'a': OK(p->dev, gpunn_train_step(p->opt[0], p->loss[0][0])); break;
    case 'b': OK(p->dev, gpunn_train_step(p->opt[1], p->loss[0][1])); break;
    case 'c': OK(p->dev, gpunn_train_step(opt, p->loss[1][0])); break;
    case 'd': OK(p->dev, gpunn_train_step(opt, p->loss[1][1])); break;
    case 'e': OK(p->dev, gpunn_forward(&p->drawn, 1)); break;
    case 'f':
        OK(p->dev, gpunn_zero_grad(p->model[1]));
        OK(p->dev, gpunn_backward(p->loss[1][0]));
        OK(p->dev, gpunn_optimizer_step(opt));
        break;
    case 'g':
        for (int i = 0; i < 2; i++) OK(p->dev, gpunn_train_step(opt, p->loss[1][0], .accumulate = 2));
        break;
    case 's':
        for (int i = 0; i < COUNT(p->opt); i++) assert_true(gpunn_loss_scale(p->opt[i], NULL) >= 1);
        break;
    default: OK(p->dev, gpunn_backward(p->loss[1][0], .mode = GPUNN_MODE_EVALUATION)); break;
    }
}

/* replays: a digit launches its graph, which is captured now; else its runs follow one another. */
static void play(player *p, const char *const *graphs, const char *schedule, bool replays)
{
    for (int i = 0; graphs[i] && replays; i++) {
        caller_begin_capture(p->stream);
        for (const char *run = graphs[i]; *run; run++) play_one(p, *run);
        p->graphs[i] = caller_end_capture(p->stream);
        assert_non_null(p->graphs[i]);
    }
    for (const char *at = schedule; *at; at++) {
        const int i = *at - '0';
        if (i < 0 || i > 9) {
            play_one(p, *at);
        } else if (replays)
            caller_launch(p->graphs[i], p->stream);
        else
            for (const char *run = graphs[i]; *run; run++) play_one(p, *run);
    }
    OK(p->dev, gpunn_synchronize(p->dev));
}

/* All parameters, then what was drawn last. */
static int player_result(player *p, float values[MOST_WEIGHTS])
{
    int count = 0;
    for (int m = 0; m < ALL; m++) {
        int64_t total;
        float  *weights = read_weights(p->dev, p->model[m], &total);
        assert_in_range(count + total, 1, MOST_WEIGHTS - 12);
        memcpy(values + count, weights, (size_t)total * sizeof *weights);
        count += (int)total;
        free(weights);
    }
    play_one(p, 'e');
    OK(p->dev, gpunn_read(p->drawn, values + count, 12 * sizeof *values));
    return count + 12;
}

static void check_equal(const float *plain, const float *replayed, int count, const char *what)
{
    for (int i = 0; i < count; i++) {
        assert_true(isfinite(plain[i]));
        if (plain[i] != replayed[i])
            fail_msg("%s: number %d is %.9g, and replayed %.9g", what, i, (double)plain[i],
                     (double)replayed[i]);
    }
}

static const struct mix {
    const char *warm, *graphs[4], *schedule;
} mixes[] = {
    {"abab", {"ab"}, "00000000"},                 /* two optimizers over one model */
    {"abcdabcd", {"abcd"}, "000000"},             /* and two models */
    {"ababab", {"a", "b"}, "0b10a1a00b1"},        /* a graph each, among runs outside */
    {"ccdcdc", {"c", "cc", "d"}, "01c20d121c02"}, /* one optimizer captured three times */
    {"abcacbac", {"a"}, "0c0bc00abc0"},           /* replays of one, runs of the others */
    {"ebeabe", {"e", "ae"}, "0e1be0a1e01"},       /* random numbers of evaluation and of training */
    {"fcfc", {"f"}, "0c00f0c"},
    {"gcgc", {"g"}, "0c00g0c"},
    {"hchc", {"hc"}, "00h0c0"},
};

/* The numbers of steps, and with them corrections, averages and masks, are those of the same runs without any
 * graph. */
static void test_mixed_replays(void **state)
{
    (void)state;
    for (int precision = GPUNN_PRECISION_F32; precision <= GPUNN_PRECISION_F16; precision++)
        for (int i = 0; i < COUNT(mixes); i++) {
            float values[2][MOST_WEIGHTS];
            int   count = 0;
            char  what[64];
            if (precision != GPUNN_PRECISION_F32 && precision != GPUNN_PRECISION_F16) continue;
            for (int way = 0; way < 2; way++) {
                player p;
                player_open(&p, (gpunn_precision)precision);
                play(&p, mixes[i].graphs + 3, mixes[i].warm, false);
                play(&p, mixes[i].graphs, mixes[i].schedule, way == 1);
                OK(p.dev, gpunn_ema_swap(p.opt[2]));
                count = player_result(&p, values[way]);
                player_close(&p);
            }
            (void)snprintf(what, sizeof what, "precision %d, \"%s\"", precision, mixes[i].schedule);
            check_equal(values[0], values[1], count, what);
        }
}

/* Gradients that are known to be finite are not read once more before an update: it does not notice that they
 * are exchanged behind gpunn's back. They are known since the update before (way 0), or since gpunn_backward
 * (way 1). */
static void test_known_finite(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        void            *stream = caller_stream();
        gpunn_device    *dev = open_with(NULL);
        gpunn_model     *model = MADE(dev, gpunn_model_create(dev));
        gpunn_tensor    *p = gpunn_parameter(model, "p", GPUNN_SHAPE(5000),
                                             (gpunn_init){GPUNN_INIT_UNIFORM, 1, 2});
        gpunn_tensor    *loss = MADE(dev, gpunn_mean(gpunn_square(p), GPUNN_ALL, false));
        gpunn_optimizer *opt = MADE(dev, gpunn_sgd(model));
        const float      bad = NAN;
        for (int i = 0; i < 4; i++) {
            OK(dev, gpunn_zero_grad(model));
            OK(dev, gpunn_backward(loss));
            OK(dev, gpunn_optimizer_step(opt));
        }
        OK(dev, gpunn_zero_grad(model));
        OK(dev, gpunn_backward(loss));
        if (way == 0) OK(dev, gpunn_optimizer_step(opt));
        const void *gradient = gpunn_data_grad(p);
        void       *memory;
        memcpy(&memory, &gradient, sizeof memory);
        OK(dev, gpunn_synchronize(dev));
        caller_put(memory, &bad, sizeof bad, stream);
        caller_end(stream);
        OK(dev, gpunn_optimizer_step(opt));
        OK(dev, gpunn_synchronize(dev));
        gpunn_optimizer_destroy(opt);
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
    }
}

/* Updates of two optimizers that are refused in replays count nowhere: the same bits as without them, in
 * later replays and runs. */
static void test_refused_replays(void **state)
{
    (void)state;
    float  *trained[2], x[4 * 5], bad[4 * 5] = {0};
    int64_t count = 0;
    for (int i = 0; i < COUNT(x); i++) x[i] = 0.3f * (float)(i % 7) - 0.8f;
    bad[3] = NAN;
    for (int way = 0; way < 2; way++) {
        void            *stream = caller_stream();
        gpunn_device    *dev = open_with(stream);
        gpunn_model     *model = MADE(dev, gpunn_model_create(dev));
        gpunn_tensor    *in = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 5));
        gpunn_tensor    *h = gpunn_linear(gpunn_relu(gpunn_linear(in, "maker", .out_features = 6)), "judge",
                                          .out_features = 3);
        gpunn_tensor    *loss = MADE(dev, gpunn_mean(gpunn_square(h), GPUNN_ALL, false));
        gpunn_optimizer *opt[] = {gpunn_adam(model, .prefix = "maker."),
                                  gpunn_nadam(model, .prefix = "judge.")};
        /* steps, the capture of one, its replays, of a bad batch: B */
        const char *schedule = "ssscrrBrrsBsrs";
        void       *graph = NULL;
        OK(dev, gpunn_set_ema(opt[0], 0.9f));
        OK(dev, gpunn_write(in, x, sizeof x));
        for (const char *at = schedule; *at; at++) {
            if (*at == 'B' && way == 0) continue;
            if (*at == 'B') OK(dev, gpunn_write(in, bad, sizeof bad));
            if (*at == 'c') caller_begin_capture(stream);
            for (int i = 0; i < 2 && (*at == 's' || *at == 'c'); i++) OK(dev, gpunn_train_step(opt[i], loss));
            if (*at == 'c') graph = caller_end_capture(stream);
            if (*at == 'r' || *at == 'B') caller_launch(graph, stream);
            if (*at != 'B') continue;
            FAILS(dev, gpunn_synchronize(dev), GPUNN_ERR_NUMERIC, "changed nothing");
            gpunn_clear_error(dev);
            OK(dev, gpunn_write(in, x, sizeof x));
        }
        OK(dev, gpunn_ema_swap(opt[0]));
        trained[way] = read_weights(dev, model, &count);
        caller_forget_graph(graph);
        for (int i = 0; i < 2; i++) gpunn_optimizer_destroy(opt[i]);
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
        caller_end(stream);
    }
    check_equal(trained[0], trained[1], (int)count, "refused");
    free(trained[0]), free(trained[1]);
}

/* A checkpoint after replays has them: a program that loads it goes on like one that never captured anything,
 * on another device (way 1), and where the graphs are replayed on (way 2). */
static void test_checkpoint_after_replays(void **state)
{
    (void)state;
    static const char *const graphs[] = {"ab", NULL}, *const none[] = {NULL};
    fixture     folder = {.folder = ""};
    const char *path = test_path(&folder, "checkpoint");
    for (int precision = GPUNN_PRECISION_F32; precision <= GPUNN_PRECISION_F16; precision++) {
        float values[3][MOST_WEIGHTS];
        int   count = 0;
        for (int way = 0; way < 3; way++) {
            player p;
            player_open(&p, (gpunn_precision)precision);
            play(&p, none, "abab", false);
            play(&p, graphs, way ? "0000" : "000000ab", way > 0);
            if (way) {
                OK(p.dev, gpunn_checkpoint_save(p.opt[0], NULL, path));
                assert_int_equal(gpunn_step_count(p.opt[0]), 6);
                if (way == 2) play(&p, none, "0a0", true);
                if (way == 1) {
                    player_close(&p);
                    player_open(&p, (gpunn_precision)precision);
                }
                OK(p.dev, gpunn_checkpoint_load(p.opt[0], NULL, path));
                /* copies of the weights in 16 bits are made anew by a run outside */
                play(&p, way == 1 ? graphs : none, precision == GPUNN_PRECISION_F32 ? "00ab" : "ab00",
                     way == 2);
            }
            count = player_result(&p, values[way]);
            player_close(&p);
        }
        check_equal(values[0], values[1], count, "loaded");
        check_equal(values[0], values[2], count, "loaded and replayed");
    }
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(folder.folder), 0);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
    const struct CMUnitTest tests[] = {TEST(test_streams),        TEST(test_bad_streams),
                                       TEST(test_left_alone),     TEST(test_allocator),
                                       TEST(test_double_buffers), TEST(test_bad_memory),
                                       TEST(test_device_copies),  TEST(test_long_uploads),
                                       TEST(test_pinned_batches), TEST(test_integrated),
                                       TEST(test_ranges),         TEST(test_captured_by_program),
                                       TEST(test_mixed_replays),  TEST(test_refused_replays),
                                       TEST(test_known_finite),   TEST(test_checkpoint_after_replays)};
    return cmocka_run_group_tests_name("interop", tests, NULL, NULL);
}
