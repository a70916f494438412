/* Memory of the program's as a tensor's: inputs, values, parameters and gradients, beside the same without.
 * Its memory is the host's or, on the emulated GPU, the caller's. Then weights that change between two runs,
 * in such memory and in all other ways. */
#include "../test.h"

#include "../emulator/memory.h"

typedef struct place {
    test_memory      memory;
    gpunn_device    *dev;
    gpunn_model     *model;
    net              n;
    gpunn_optimizer *opt;
} place;
static void place_open(place *p, gpunn_precision precision)
{
    const test_backend *backend = first_backend();
    memset(p, 0, sizeof *p);
    test_memory_init(&p->memory);
    stream = is_emulated(backend) ? caller_stream() : NULL;
    p->dev = MADE(NULL, gpunn_device_open(ON(backend), .stream = stream, .seed = 3, .threads = 2,
                                          .realloc_fn = hook_realloc, .user = &p->memory));
    p->model = MADE(p->dev, gpunn_model_create(p->dev, .precision = precision));
    p->n = net_make(p->model);
    p->opt = MADE(p->dev, gpunn_adam(p->model, .lr = 0.01f));
    gpunn_set_clip_norm(p->opt, 1);
    gpunn_set_ema(p->opt, 0.9f);
}
static void place_close(place *p)
{
    gpunn_optimizer_destroy(p->opt);
    gpunn_model_destroy(p->model);
    gpunn_device_close(p->dev);
    if (stream) caller_end(stream);
    stream = NULL;
    test_memory_check(&p->memory);
}
static const gpunn_precision precisions[] = {GPUNN_PRECISION_F32, GPUNN_PRECISION_TF32, GPUNN_PRECISION_BF16,
                                             GPUNN_PRECISION_F16};

/* What bound memory holds is what gpunn_read gives, whatever a value is stored as, and under each of its
 * names. */
static void check_value(place *p, gpunn_tensor *t, void *bound)
{
    size_t bytes = gpunn_tensor_bytes(t);
    char  *seen = malloc(bytes), *read = malloc(bytes);
    OK(p->dev, gpunn_read(t, read, bytes));
    look(seen, bound, bytes);
    if (memcmp(seen, read, bytes) != 0) fail_msg("'%s' differs", gpunn_tensor_name(t));
    assert_ptr_equal(gpunn_data(t), bound);
    free(seen), free(read);
}
static void check_gradient(place *p, gpunn_tensor *t, void *bound)
{
    size_t bytes = gpunn_tensor_bytes(t);
    char  *seen = malloc(bytes), *read = malloc(bytes);
    OK(p->dev, gpunn_read_grad(t, read, bytes));
    look(seen, bound, bytes);
    assert_memory_equal(seen, read, bytes);
    assert_ptr_equal(gpunn_data_grad(t), bound);
    free(seen), free(read);
}

static void test_values(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(precisions); i++) {
        place p;
        place_open(&p, precisions[i]);
        gpunn_model  *model = p.model;
        gpunn_tensor *weight = gpunn_find(model, "fc1.weight");
        gpunn_tensor *image = MADE(p.dev, gpunn_conv2d(p.n.x, "conv9", .out_channels = 4, .kernel_size = 3));
        gpunn_tensor *outputs[] = {
            p.n.logits,
            gpunn_set_name(gpunn_reshape(p.n.logits, GPUNN_SHAPE(3 * GPUNN_BATCH)), "reshaped"),
            gpunn_set_name(gpunn_argmax(p.n.logits, 1, false), "argmax"),
            gpunn_set_name(gpunn_reshape(p.n.x, GPUNN_SHAPE(GPUNN_BATCH, 36)), "input"),
            gpunn_set_name(gpunn_reshape(weight, GPUNN_SHAPE(gpunn_tensor_shape(weight).dim[0] *
                                                             gpunn_tensor_shape(weight).dim[1])),
                           "weight"),
            p.n.loss,
            image,
            gpunn_set_name(gpunn_relu(image), "relu"),
            gpunn_set_name(gpunn_gt(image, gpunn_relu(image)), "bool")};
        void *bound[COUNT(outputs)];
        for (int k = 0; k < COUNT(outputs); k++) {
            net_write(p.dev, p.n, 5, 1);
            size_t bytes = gpunn_tensor_bytes(MADE(p.dev, outputs[k]));
            OK(p.dev, gpunn_forward(&outputs[k], 1));
            bytes = gpunn_tensor_bytes(outputs[k]);
            bound[k] = take(bytes, NULL);
            OK(p.dev, gpunn_bind(outputs[k], bound[k], bytes));
        }
        for (int64_t batch = 5; batch >= 2; batch -= 3) /* the memory has room for more */
            for (int run = 0; run < 3; run++) {
                net_write(p.dev, p.n, batch, (uint32_t)run);
                OK(p.dev, gpunn_forward(outputs, COUNT(outputs)));
                for (int k = 0; k < COUNT(outputs); k++) check_value(&p, outputs[k], bound[k]);
            }
        net_write(p.dev, p.n, 6, 1);
        FAILS(p.dev, gpunn_forward(outputs, COUNT(outputs)), GPUNN_ERR_SHAPE, "bound", "bytes");
        for (int k = 0; k < COUNT(outputs); k++) {
            OK(p.dev, gpunn_bind(outputs[k], NULL, 0));
            give(bound[k]);
        }
        OK(p.dev, gpunn_forward(outputs, COUNT(outputs)));
        place_close(&p);
    }
}

/* A training run with everything bound gives the bits of one with nothing bound. */
enum { STEPS = 6, BATCH = 8 };
static void test_training(void **state)
{
    (void)state;
    static const char *const names[] = {"conv1.weight", "bn1.running_mean", "bn2.weight",
                                        "fc1.weight",   "fc1.bias",         "fc2.weight"};
    for (int i = 0; i < COUNT(precisions); i++) {
        place  a, b;
        float *values[2 * COUNT(names)] = {NULL}, loss[2][STEPS];
        int    count = 0;
        place_open(&a, precisions[i]);
        for (int step = 0; step < STEPS; step++) {
            net_write(a.dev, a.n, BATCH, (uint32_t)step);
            OK(a.dev, gpunn_train_step(a.opt, a.n.loss));
            loss[0][step] = gpunn_item(a.n.loss);
        }
        OK(a.dev, gpunn_ema_swap(a.opt));
        int64_t na, nb;
        float  *wa = read_weights(a.dev, a.model, &na);
        place_close(&a);
        place_open(&b, precisions[i]);
        for (int k = 0; k < COUNT(names); k++) {
            gpunn_tensor *t = MADE(b.dev, gpunn_find(b.model, names[k]));
            size_t        bytes = gpunn_tensor_bytes(t);
            float        *start = malloc(bytes);
            OK(b.dev, gpunn_read(t, start, bytes));
            OK(b.dev, gpunn_bind(t, values[count] = take(bytes, start), bytes));
            count++;
            if (k != 1 && k != 4) {
                OK(b.dev, gpunn_bind_grad(t, values[count] = take(bytes, NULL), bytes));
                count++;
            }
            free(start);
        }
        for (int step = 0; step < STEPS; step++) {
            net_write(b.dev, b.n, BATCH, (uint32_t)step);
            OK(b.dev, gpunn_train_step(b.opt, b.n.loss));
            loss[1][step] = gpunn_item(b.n.loss);
        }
        assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
        check_value(&b, gpunn_find(b.model, "conv1.weight"), values[0]);
        check_gradient(&b, gpunn_find(b.model, "conv1.weight"), values[1]);
        OK(b.dev, gpunn_ema_swap(b.opt));
        for (int k = 0; k < COUNT(names); k++) { /* takes the values along */
            OK(b.dev, gpunn_bind(gpunn_find(b.model, names[k]), NULL, 0));
            OK(b.dev, gpunn_bind_grad(gpunn_find(b.model, names[k]), NULL, 0));
        }
        while (count > 0) give(values[--count]);
        float *wb = read_weights(b.dev, b.model, &nb);
        assert_int_equal(na, nb);
        assert_memory_equal(wa, wb, (size_t)na * sizeof *wa);
        free(wa), free(wb);
        place_close(&b);
    }
}

/* Weights that the program changes between two runs, in its own memory, count in the next. */
static void test_changed(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(precisions); i++) {
        place p;
        float logits[2][BATCH * 3], *weights;
        place_open(&p, precisions[i]);
        gpunn_tensor *t = MADE(p.dev, gpunn_find(p.model, "fc1.weight"));
        size_t        bytes = gpunn_tensor_bytes(t);
        weights = test_randoms((int64_t)(bytes / sizeof(float)), 3, 1);
        void *bound = take(bytes, weights);
        OK(p.dev, gpunn_bind(t, bound, bytes));
        for (int run = 0; run < 2; run++) {
            net_write(p.dev, p.n, BATCH, 1);
            OK(p.dev, gpunn_forward(&p.n.logits, 1));
            OK(p.dev, gpunn_forward(&p.n.logits, 1));
            OK(p.dev, gpunn_read(p.n.logits, logits[run], sizeof logits[run]));
            for (size_t k = 0; k < bytes / sizeof(float); k++) weights[k] *= 0.5f;
            if (stream)
                caller_put(bound, weights, bytes, stream);
            else
                memcpy(bound, weights, bytes);
        }
        assert_memory_not_equal(logits[0], logits[1], sizeof logits[0]);
        for (size_t k = 0; k < bytes / sizeof(float); k++) weights[k] *= 2; /* as in the second run */
        OK(p.dev, gpunn_bind(t, NULL, 0));
        OK(p.dev, gpunn_write(t, weights, bytes));
        OK(p.dev, gpunn_forward(&p.n.logits, 1));
        OK(p.dev, gpunn_read(p.n.logits, logits[0], sizeof logits[0]));
        assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
        give(bound);
        free(weights);
        place_close(&p);
    }
}

/* Gradients of an input, of values, and of one under two names; added up over two parts. */
static void test_gradients(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(precisions); i++) {
        place p;
        place_open(&p, precisions[i]);
        gpunn_tensor *image = MADE(p.dev, gpunn_conv2d(p.n.x, "conv9", .out_channels = 4, .kernel_size = 3));
        gpunn_tensor *flat = MADE(p.dev, gpunn_reshape(image, GPUNN_SHAPE(GPUNN_BATCH, 64)));
        gpunn_tensor *loss = MADE(p.dev,
                                  gpunn_add(p.n.loss, gpunn_mean(gpunn_mul(flat, flat), GPUNN_ALL, false)));
        gpunn_tensor *of[] = {p.n.x, p.n.logits, image, flat, gpunn_find(p.model, "conv9.weight")};
        void         *bound[COUNT(of)];
        net_write(p.dev, p.n, BATCH, 1);
        OK(p.dev, gpunn_forward(&loss, 1));
        for (int k = 0; k < COUNT(of); k++) {
            size_t bytes = gpunn_tensor_bytes(of[k]);
            bound[k] = take(bytes, NULL);
            OK(p.dev, gpunn_bind_grad(of[k], bound[k], bytes));
        }
        OK(p.dev, gpunn_zero_grad(p.model));
        for (int run = 0; run < 4; run++) {
            net_write(p.dev, p.n, BATCH, (uint32_t)run);
            OK(p.dev, gpunn_backward(loss));
            for (int k = 0; k < COUNT(of); k++) check_gradient(&p, of[k], bound[k]);
        }
        for (int k = 0; k < COUNT(of); k++) {
            OK(p.dev, gpunn_bind_grad(of[k], NULL, 0));
            give(bound[k]);
        }
        place_close(&p);
    }
}

static void test_inputs(void **state)
{
    (void)state;
    place p;
    place_open(&p, GPUNN_PRECISION_F32);
    float   *x;
    int64_t *t;
    float    written[BATCH * 3], bound[BATCH * 3];
    net_data(BATCH, 5, &x, &t);
    net_write(p.dev, p.n, BATCH, 5);
    OK(p.dev, gpunn_forward(&p.n.logits, 1));
    OK(p.dev, gpunn_read(p.n.logits, written, sizeof written));
    void *memory = take(BATCH * NET_X * sizeof *x, x);
    for (int64_t batch = BATCH; batch > 0; batch -= 3) {
        size_t bytes = (size_t)batch * NET_X * sizeof *x;
        OK(p.dev, gpunn_bind(p.n.x, memory, bytes));
        OK(p.dev, gpunn_forward(&p.n.logits, 1));
        OK(p.dev, gpunn_read(p.n.logits, bound, (size_t)batch * 3 * sizeof *bound));
        check_close(bound, written, batch * 3, 1e-5, 1e-6);
        check_value(&p, p.n.x, memory);
    }
    FAILS(p.dev, gpunn_write(p.n.x, x, BATCH * NET_X * sizeof *x), GPUNN_ERR_SHAPE, "'x'", "bound", "unbind");
    OK(p.dev, gpunn_write(p.n.x, x, NET_X * sizeof *x)); /* into the program's memory */
    check_value(&p, p.n.x, memory);
    OK(p.dev, gpunn_bind(p.n.x, NULL, 0));
    OK(p.dev, gpunn_bind(p.n.x, NULL, 0));
    FAILS(p.dev, gpunn_forward(&p.n.logits, 1), GPUNN_ERR_STATE, "'x'", "written");
    give(memory);
    free(x), free(t);
    place_close(&p);
}

/* Training data in the device's memory, of which each step draws rows by itself. */
static void test_drawn_rows(void **state)
{
    enum { ROWS = 301, DRAWN = 32, STEPS = 300 };
    static float cells[ROWS][3], fluxes[ROWS];
    static bool  seen[ROWS];
    uint32_t     random = 3;
    int          different = 0;
    place        p;
    (void)state;
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < 3; k++) cells[i][k] = test_random(&random);
        fluxes[i] = 2 * cells[i][0] - cells[i][1] + 0.5f;
        seen[i] = false;
    }
    place_open(&p, GPUNN_PRECISION_F32);
    void *const      memory[] = {take(sizeof cells, cells), take(sizeof fluxes, fluxes)};
    gpunn_model     *model = MADE(p.dev, gpunn_model_create(p.dev));
    gpunn_tensor    *all = gpunn_input(model, "cells", GPUNN_F32, GPUNN_SHAPE(ROWS, 3));
    gpunn_tensor    *wanted = gpunn_input(model, "fluxes", GPUNN_F32, GPUNN_SHAPE(ROWS, 1));
    gpunn_tensor    *chance = gpunn_rand(model, GPUNN_SHAPE(DRAWN));
    gpunn_tensor    *rows = gpunn_keep(gpunn_cast(gpunn_mul_scalar(chance, ROWS), GPUNN_I64));
    gpunn_tensor    *flux = gpunn_linear(gpunn_index_select(all, 0, rows), "flux", .out_features = 1);
    gpunn_tensor    *loss = MADE(p.dev, gpunn_mse_loss(flux, gpunn_index_select(wanted, 0, rows)));
    gpunn_optimizer *opt = MADE(p.dev, gpunn_adam(model, .lr = 0.05f));
    OK(p.dev, gpunn_bind(all, memory[0], sizeof cells));
    OK(p.dev, gpunn_bind(wanted, memory[1], sizeof fluxes));
    for (int step = 0; step < STEPS; step++) {
        int64_t drawn[DRAWN];
        OK(p.dev, gpunn_train_step(opt, loss));
        OK(p.dev, gpunn_read(rows, drawn, sizeof drawn));
        for (int i = 0; i < DRAWN; i++) {
            assert_in_range(drawn[i], 0, ROWS - 1);
            different += !seen[drawn[i]];
            seen[drawn[i]] = true;
        }
    }
    assert_int_equal(different, ROWS);
    const float right[] = {2, -1, 0, 0.5f};
    float       weight[3], bias;
    OK(p.dev, gpunn_read(gpunn_find(model, "flux.weight"), weight, sizeof weight));
    OK(p.dev, gpunn_read(gpunn_find(model, "flux.bias"), &bias, sizeof bias));
    check_close(weight, right, 3, 0, 1e-2);
    check_close(&bias, right + 3, 1, 0, 1e-2);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(model);
    give(memory[0]), give(memory[1]);
    place_close(&p);
}

static void test_refused(void **state)
{
    (void)state;
    place p;
    place_open(&p, GPUNN_PRECISION_F32);
    gpunn_tensor *weight = MADE(p.dev, gpunn_find(p.model, "fc1.weight"));
    size_t        bytes = gpunn_tensor_bytes(weight);
    const float   one = 1;
    gpunn_tensor *constant = MADE(p.dev, gpunn_constant(p.model, GPUNN_SHAPE(1), &one));
    char         *memory = take(bytes + 64, NULL);
    FAILS(NULL, gpunn_bind(NULL, memory, bytes), GPUNN_ERR_ARGUMENT, "gpunn_bind", "NULL");
    FAILS(p.dev, gpunn_bind(weight, memory, bytes - 4), GPUNN_ERR_SHAPE, "fc1.weight", "bytes");
    FAILS(p.dev, gpunn_bind_grad(weight, memory, bytes + 4), GPUNN_ERR_SHAPE, "gpunn_bind_grad",
          "fc1.weight");
    FAILS(p.dev, gpunn_bind(weight, memory + 2, bytes), GPUNN_ERR_ARGUMENT, "not aligned to");
    FAILS(p.dev, gpunn_bind(p.n.x, memory, 10), GPUNN_ERR_SHAPE, "'x'", "multiple of");
    FAILS(p.dev, gpunn_bind(constant, memory, 4), GPUNN_ERR_STATE, "constant");
    FAILS(p.dev, gpunn_bind_grad(p.n.t, memory, 8), GPUNN_ERR_DTYPE, "f32");
    FAILS_NULL(p.dev, (void *)gpunn_data(p.n.logits), GPUNN_ERR_STATE, "computed");
    FAILS_NULL(NULL, (void *)gpunn_data_grad(NULL), GPUNN_ERR_ARGUMENT, "NULL");
    OK(p.dev, gpunn_bind(weight, memory, bytes));
    gpunn_device *other = MADE(
        NULL, gpunn_device_open(.type = GPUNN_DEVICE_CPU, .realloc_fn = hook_realloc, .user = &p.memory));
    FAILS(other, gpunn_model_to(p.model, other), GPUNN_ERR_STATE, "fc1.weight", "unbind");
    OK(p.dev, gpunn_bind(weight, NULL, 0));
    OK(other, gpunn_model_to(p.model, other));
    gpunn_device_close(p.dev);
    p.dev = other;
    give(memory);
    place_close(&p);
}

/* ---- gradients from the program ---- */
enum { FROM = 6 };
/* A network without chance, of outputs that are read on, renamed, activated or images; and the sum over them
 * of output times g. */
static void pieces(place *p, gpunn_tensor *outputs[FROM], gpunn_tensor *g[FROM], gpunn_tensor **sum)
{
    gpunn_tensor *x = p->n.x,
                 *image = MADE(p->dev,
                               gpunn_relu(gpunn_conv2d(x, "p1", .out_channels = 4, .kernel_size = 3)));
    gpunn_tensor *second = gpunn_conv2d(image, "p2", .out_channels = 4, .kernel_size = 3, .padding = 1);
    gpunn_tensor *flat = gpunn_reshape(second, GPUNN_SHAPE(GPUNN_BATCH, 64));
    gpunn_tensor *hidden = gpunn_relu(gpunn_linear(flat, "p3", .out_features = 16));
    gpunn_tensor *last = gpunn_linear(hidden, "p4", .out_features = 5);
    gpunn_tensor *all[FROM] = {image,  second, flat,
                               hidden, last,   gpunn_mean(gpunn_tanh(last), GPUNN_ALL, false)};
    *sum = NULL;
    for (int i = 0; i < FROM; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "g%d", i);
        outputs[i] = MADE(p->dev, all[i]);
        g[i] = MADE(p->dev, gpunn_input(p->model, name, GPUNN_F32, gpunn_tensor_shape(outputs[i])));
        gpunn_tensor *part = gpunn_sum(gpunn_mul(outputs[i], g[i]), GPUNN_ALL, false);
        *sum = MADE(p->dev, *sum ? gpunn_add(*sum, part) : part);
    }
}
static float *gradients_now(place *p, int64_t *count)
{
    static const char *const names[] = {"p1.weight", "p2.weight", "p2.bias", "p3.weight",
                                        "p4.weight", "p4.bias",   "x"};
    float                   *all = calloc(1 << 14, sizeof *all);
    *count = 0;
    for (int i = 0; i < COUNT(names); i++) {
        gpunn_tensor *t = MADE(p->dev, gpunn_find(p->model, names[i]));
        OK(p->dev, gpunn_read_grad(t, all + *count, gpunn_tensor_bytes(t)));
        *count += (int64_t)(gpunn_tensor_bytes(t) / sizeof *all);
    }
    return all;
}
/* Any of the outputs together give the vector-Jacobian product, which is the gradient of the sum; from host
 * and device memory. */
static void test_backward_from(void **state)
{
    (void)state;
    static const int sets[][FROM + 1] = {
        {0, -1}, {1, -1}, {3, -1}, {4, -1}, {5, 3, -1}, {0, 1, 2, 3, 4, 5, -1}, {4, 4, -1}};
    static const double tolerance[] = {1e-5, 2e-3, 3e-2, 5e-3};
    for (int i = 0; i < COUNT(precisions); i++) {
        place         p;
        gpunn_tensor *outputs[FROM], *g[FROM], *sum;
        place_open(&p, precisions[i]);
        pieces(&p, outputs, g, &sum);
        gpunn_retain_grad(p.n.x);
        net_write(p.dev, p.n, BATCH, 4);
        for (int set = 0; set < COUNT(sets); set++) {
            gpunn_tensor *from[FROM + 1];
            const void   *given[FROM + 1], *device[FROM + 1];
            void         *memory[FROM + 1];
            float        *values[FROM + 1];
            int           count = 0;
            int64_t       n, m;
            for (int k = 0; k < FROM; k++) { /* those that are left out: 0 */
                float *zeros = calloc(BATCH * 256, sizeof *zeros);
                size_t bytes = (size_t)(k == 5 ? 1 : BATCH) * sizeof(float);
                for (int d = 1; d < GPUNN_MAX_RANK && gpunn_tensor_shape(outputs[k]).dim[d]; d++)
                    bytes *= (size_t)gpunn_tensor_shape(outputs[k]).dim[d];
                OK(p.dev, gpunn_write(g[k], zeros, bytes));
                free(zeros);
            }
            for (const int *k = sets[set]; *k >= 0; k++, count++) {
                const size_t bytes = gpunn_tensor_bytes(g[*k]);
                from[count] = outputs[*k];
                given[count] = values[count] = test_randoms((int64_t)(bytes / sizeof(float)), 11, 0.1f);
                device[count] = memory[count] = take(bytes, values[count]);
                /* twice */
                for (size_t e = 0; e < bytes / sizeof(float) && set == COUNT(sets) - 1; e++)
                    values[count][e] *= 2;
                OK(p.dev, gpunn_write(g[*k], values[count], bytes));
                for (size_t e = 0; e < bytes / sizeof(float) && set == COUNT(sets) - 1; e++)
                    values[count][e] /= 2;
            }
            OK(p.dev, gpunn_zero_grad(p.model));
            OK(p.dev, gpunn_backward(sum));
            float *expected = gradients_now(&p, &n);
            for (int way = 0; way < 2; way++) {
                for (int again = 0; again < 3; again++) {
                    OK(p.dev, gpunn_zero_grad(p.model));
                    const float zero = 0;
                    const void *none = &zero;
                    OK(p.dev, gpunn_backward_from(&outputs[5], &none, 1)); /* what is added to */
                    OK(p.dev, gpunn_backward_from(from, way ? device : given, count));
                }
                float *actual = gradients_now(&p, &m);
                assert_int_equal(n, m);
                check_close(actual, expected, n, tolerance[i], tolerance[i]);
                free(actual);
            }
            for (int k = 0; k < count; k++) give(memory[k]), free(values[k]);
            free(expected);
        }
        place_close(&p);
    }
}

/* By differences of what the outputs are, too. */
static void test_backward_from_differences(void **state)
{
    (void)state;
    place         p;
    gpunn_tensor *outputs[FROM], *g[FROM], *sum;
    float         x[NET_X], dx[NET_X], y[2][5], given[5] = {1, -2, 0.5f, 3, -1};
    const void   *gradient = given;
    place_open(&p, GPUNN_PRECISION_F32);
    pieces(&p, outputs, g, &sum);
    gpunn_retain_grad(p.n.x);
    float *random = test_randoms(NET_X, 9, 1);
    memcpy(x, random, sizeof x);
    free(random);
    OK(p.dev, gpunn_write(p.n.x, x, sizeof x));
    OK(p.dev, gpunn_backward_from(&outputs[4], &gradient, 1));
    OK(p.dev, gpunn_read_grad(p.n.x, dx, sizeof dx));
    for (int i = 0; i < NET_X; i += 5) {
        const float h = 1e-2f, middle = x[i];
        double      difference = 0;
        for (int side = 0; side < 2; side++) {
            x[i] = side ? middle + h : middle - h;
            OK(p.dev, gpunn_write(p.n.x, x, sizeof x));
            OK(p.dev, gpunn_forward(&outputs[4], 1));
            OK(p.dev, gpunn_read(outputs[4], y[side], sizeof y[side]));
        }
        x[i] = middle;
        for (int k = 0; k < 5; k++) difference += given[k] * (y[1][k] - y[0][k]) / (2 * h);
        if (!(fabs(difference - dx[i]) <= 2e-3 * (1 + fabs(difference))))
            fail_msg("x[%d]: %g by differences, %g", i, difference, dx[i]);
    }
    FAILS(NULL, gpunn_backward_from(NULL, &gradient, 1), GPUNN_ERR_ARGUMENT, "gpunn_backward_from");
    const void *nothing = NULL;
    FAILS(p.dev, gpunn_backward_from(&outputs[4], &nothing, 1), GPUNN_ERR_ARGUMENT, "gradient of output 0",
          "NULL");
    FAILS(p.dev, gpunn_backward_from(&p.n.t, &gradient, 1), GPUNN_ERR_DTYPE, "'t'", "f32");
    place_close(&p);
}

/* ---- DLPack ---- */
static int  deleted;
static void count_deleted(struct DLManagedTensorVersioned *self)
{
    deleted++;
    give(((gpunn_dlpack *)(void *)self)->context);
}
static void test_dlpack(void **state)
{
    (void)state;
    place p;
    place_open(&p, GPUNN_PRECISION_F32);
    const bool    gpu = stream != NULL;
    gpunn_tensor *weight = MADE(p.dev, gpunn_find(p.model, "fc1.weight"));
    float        *values = test_randoms(BATCH * NET_X + 16, 2, 1), expected[BATCH * 3], logits[BATCH * 3];
    /* of an axis of 1, any */
    int64_t                          shape[4] = {BATCH, 1, 6, 6}, stride[4] = {36, 77, 6, 1};
    gpunn_dlpack                     good = {.major = 1,
                                             .minor = 1,
                                             .deleter = count_deleted,
                                             .rank = 4,
                                             .shape = shape,
                                             .stride = stride,
                                             .device_type = gpu ? GPUNN_DLPACK_CUDA : GPUNN_DLPACK_CPU,
                                             .dtype_code = GPUNN_DLPACK_FLOAT,
                                             .dtype_bits = 32,
                                             .lanes = 1,
                                             .byte_offset = 64,
                                             .flags = GPUNN_DLPACK_READ_ONLY};
    struct DLManagedTensorVersioned *lent = (struct DLManagedTensorVersioned *)(void *)&good;
    deleted = 0;
    good.context = good.data = take((BATCH * NET_X + 16) * sizeof *values, values);
    OK(p.dev, write_floats(p.n.x, values + 16, BATCH * NET_X));
    OK(p.dev, gpunn_forward(&p.n.logits, 1));
    OK(p.dev, gpunn_read(p.n.logits, expected, sizeof expected));
#define REFUSED(field, wrong, says)                                                                         \
    do {                                                                                                    \
        gpunn_dlpack kept = good;                                                                           \
        good.field = wrong;                                                                                 \
        FAILS(p.dev, gpunn_bind_dlpack(p.n.x, lent), GPUNN_ERR_ARGUMENT, "gpunn_bind_dlpack", "'x'", says); \
        good = kept;                                                                                        \
    } while (0)
    REFUSED(major, 2, "version");
    REFUSED(device_type, 10, "memory");
    REFUSED(device_type, gpu ? GPUNN_DLPACK_CPU : GPUNN_DLPACK_CUDA, "memory");
    if (gpu) REFUSED(device_id, 1, "another GPU");
    REFUSED(dtype_code, GPUNN_DLPACK_INT, "dtype");
    REFUSED(dtype_code, GPUNN_DLPACK_BFLOAT, "dtype");
    REFUSED(dtype_bits, 16, "dtype");
    REFUSED(dtype_bits, 64, "dtype");
    REFUSED(lanes, 2, "dtype");
    REFUSED(rank, 3, "rank");
    REFUSED(byte_offset, 66, "not aligned to");
    stride[0] = 40;
    FAILS(p.dev, gpunn_bind_dlpack(p.n.x, lent), GPUNN_ERR_ARGUMENT, "row-major");
    stride[0] = 36, shape[2] = 5;
    FAILS(p.dev, gpunn_bind_dlpack(p.n.x, lent), GPUNN_ERR_ARGUMENT, "shape", "[batch, 1, 6, 6]");
    shape[2] = 6;
    FAILS(p.dev, gpunn_bind_dlpack(weight, lent), GPUNN_ERR_ARGUMENT, "read-only");
    FAILS(p.dev, gpunn_bind_dlpack(weight, NULL), GPUNN_ERR_ARGUMENT, "NULL");
    assert_int_equal(deleted, 0);
    OK(p.dev, gpunn_bind_dlpack(p.n.x, lent));
    OK(p.dev, gpunn_forward(&p.n.logits, 1));
    struct DLManagedTensorVersioned *out = MADE(p.dev, gpunn_to_dlpack(p.n.logits));
    gpunn_dlpack                    *seen = (gpunn_dlpack *)(void *)out;
    assert_int_equal(seen->rank, 2);
    assert_int_equal(seen->shape[0], BATCH);
    assert_int_equal(seen->shape[1], 3);
    assert_int_equal(seen->stride[0], 3);
    assert_int_equal(seen->stride[1], 1);
    assert_int_equal(seen->device_type, good.device_type);
    look(logits, (char *)seen->data + seen->byte_offset, sizeof logits);
    assert_memory_equal(logits, expected, sizeof logits);
    assert_int_equal(deleted, 0);
    OK(p.dev, gpunn_bind(p.n.x, NULL, 0));
    assert_int_equal(deleted, 1);
    seen->deleter(out);
    good.context = good.data = take((BATCH * NET_X + 16) * sizeof *values, values);
    OK(p.dev, gpunn_bind_dlpack(p.n.x, lent)); /* ends with the model */
    FAILS_NULL(NULL, gpunn_to_dlpack(NULL), GPUNN_ERR_ARGUMENT, "gpunn_to_dlpack", "NULL");
    free(values);
    gpunn_optimizer_destroy(p.opt);
    p.opt = NULL;
    gpunn_model_destroy(p.model);
    p.model = NULL;
    assert_int_equal(deleted, 2);
    place_close(&p);
#undef REFUSED
}

/* ---- inputs of a multiple of the batch ---- */

/* Such an input is the same as one with an axis of that many; bytes and shapes must fit whole samples. */
static void test_multiples(void **state)
{
    (void)state;
    place p;
    place_open(&p, GPUNN_PRECISION_F32);
    gpunn_tensor *cells = MADE(p.dev, gpunn_input(p.model, "cells", 0, GPUNN_SHAPE(4 * GPUNN_BATCH, 3)));
    gpunn_tensor *rows = MADE(p.dev, gpunn_input(p.model, "rows", 0, GPUNN_SHAPE(GPUNN_BATCH, 12)));
    gpunn_tensor *y = MADE(p.dev, gpunn_sub(gpunn_reshape(cells, GPUNN_SHAPE(GPUNN_BATCH, 12)), rows)),
                 *z = MADE(p.dev, gpunn_linear(cells, "l", .out_features = 2));
    float values[3 * 12], out[3 * 12];
    void *memory = take(sizeof values, NULL);
    for (int i = 0; i < 36; i++) values[i] = (float)i;
    OK(p.dev, gpunn_write(rows, values, sizeof values));
    for (int i = 0; i < 3; i++) {
        gpunn_tensor *both[] = {y, z};
        if (i == 0) OK(p.dev, gpunn_write(cells, values, sizeof values));
        if (i == 1) OK(p.dev, gpunn_write_shape(cells, values, GPUNN_SHAPE(12, 3)));
        if (i == 2) OK(p.dev, gpunn_bind(cells, memory, sizeof values));
        if (i == 2) OK(p.dev, gpunn_write(cells, values, sizeof values));
        OK(p.dev, gpunn_forward(both, 2));
        OK(p.dev, gpunn_read(y, out, sizeof out));
        for (int k = 0; k < 36; k++) assert_true(out[k] == 0);
        assert_int_equal(gpunn_tensor_sizes(z).dim[0], 12);
        assert_int_equal(gpunn_tensor_sizes(cells).dim[0], 12);
    }
    FAILS(p.dev, gpunn_write(cells, values, 6 * 3 * sizeof *values), GPUNN_ERR_SHAPE, "cells",
          "multiple of 48");
    FAILS(p.dev, gpunn_write_shape(cells, values, GPUNN_SHAPE(6, 3)), GPUNN_ERR_SHAPE, "[6, 3]", "4 batch");
    OK(p.dev, gpunn_write(cells, values, 8 * 3 * sizeof *values));
    FAILS(p.dev, gpunn_forward(&y, 1), GPUNN_ERR_SHAPE, "'cells' holds 2 samples", "'rows' 3");
    OK(p.dev, gpunn_bind(cells, NULL, 0));
    give(memory);
    place_close(&p);
}

/* ---- doubles ---- */

static double *as_doubles(const float *values, int64_t count, double beyond)
{
    double *wide = malloc((size_t)count * sizeof *wide);
    for (int64_t i = 0; i < count; i++) wide[i] = (double)values[i] * (1 + beyond);
    return wide;
}
static double *read_doubles(place *p, gpunn_tensor *t, bool gradient)
{
    const size_t bytes = gpunn_tensor_bytes(t);
    double      *values = malloc(bytes);
    assert_int_equal(gpunn_tensor_dtype(t), GPUNN_F64);
    OK(p->dev, gradient ? gpunn_read_grad(t, values, bytes) : gpunn_read(t, values, bytes));
    return values;
}
static void assert_same_doubles(const double *wide, const float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (wide[i] != (double)values[i]) fail_msg("%lld: %g, not %g", (long long)i, wide[i], values[i]);
}

/* Numbers that floats do not hold are rounded to the nearest, from host and device memory. */
static void test_doubles_written(void **state)
{
    (void)state;
    place p;
    place_open(&p, GPUNN_PRECISION_F32);
    gpunn_tensor *x = MADE(p.dev, gpunn_input(p.model, "d", GPUNN_F64, GPUNN_SHAPE(GPUNN_BATCH, 2))),
                 *f = MADE(p.dev, gpunn_input(p.model, "f", 0, GPUNN_SHAPE(GPUNN_BATCH, 2)));
    gpunn_tensor *y = MADE(p.dev, gpunn_linear(x, "l", .out_features = 3)), *z = MADE(p.dev, gpunn_mul(f, f));
    double cells[4][2] = {{0.1, 1e300}, {-1e-300, 3}, {16777217, 5}, {1.0 / 3, 7}}, out[4][3], in[4][2];
    float  narrow[8], whole[12];
    for (int i = 0; i < 8; i++) narrow[i] = (float)cells[i / 2][i % 2];
    OK(p.dev, gpunn_write(x, cells, sizeof cells));
    assert_int_equal(gpunn_tensor_sizes(x).dim[0], 4);
    assert_int_equal(gpunn_tensor_bytes(x), sizeof cells);
    OK(p.dev, gpunn_read(x, in, sizeof in));
    assert_same_doubles(in[0], narrow, 8);
    OK(p.dev, gpunn_write_as(f, GPUNN_TYPED(cells), sizeof cells)); /* gpunn_write makes it a batch of 8 */
    assert_int_equal(gpunn_tensor_sizes(f).dim[0], 4);
    OK(p.dev, gpunn_read_as(f, GPUNN_TYPED(in), sizeof in));
    assert_same_doubles(in[0], narrow, 8);
    void *memory = take(sizeof cells, cells), *back = take(sizeof in, NULL);
    OK(p.dev, gpunn_write_as(f, GPUNN_F64, memory, sizeof cells));
    OK(p.dev, gpunn_read_as(f, GPUNN_F64, back, sizeof in));
    look(in, back, sizeof in);
    assert_same_doubles(in[0], narrow, 8);
    OK(p.dev, gpunn_write(x, memory, sizeof cells));
    OK(p.dev, gpunn_write_shape(x, cells, GPUNN_SHAPE(4, 2)));
    cells[0][1] = 2;
    OK(p.dev, gpunn_write(x, cells, sizeof cells));
    gpunn_tensor *both[] = {y, z};
    OK(p.dev, gpunn_set_dtype(y, GPUNN_F64));
    OK(p.dev, gpunn_forward(both, 2));
    OK(p.dev, gpunn_read_as(y, GPUNN_F32, whole, sizeof whole));
    OK(p.dev, gpunn_read(y, out, sizeof out));
    assert_same_doubles(out[0], whole, 12);
    FAILS(p.dev, gpunn_read(y, whole, sizeof whole), GPUNN_ERR_SHAPE, "f64", "48", "96");
    FAILS_NULL(p.dev, gpunn_data(y), GPUNN_ERR_STATE, "f32");
    OK(p.dev, gpunn_set_dtype(y, GPUNN_F32));
    OK(p.dev, gpunn_read(y, whole, sizeof whole));
    give(memory), give(back);
    place_close(&p);
}

/* Weights and integers, too. */
static void test_written_as(void **state)
{
    (void)state;
    place p;
    place_open(&p, GPUNN_PRECISION_F32);
    gpunn_tensor *bias = MADE(p.dev, gpunn_find(p.model, "fc2.bias"));
    double        wide[3] = {0.1, -2, 1e9}, seen[3];
    int           labels[4] = {2, 0, 1, 2};
    int64_t       kept[4];
    uint8_t       bytes[4];
    OK(p.dev, gpunn_write_as(bias, GPUNN_TYPED(wide), sizeof wide));
    OK(p.dev, gpunn_read_as(bias, GPUNN_TYPED(seen), sizeof seen));
    for (int i = 0; i < 3; i++) assert_true(seen[i] == (double)(float)wide[i]);
    void *memory = take(sizeof wide, wide);
    OK(p.dev, gpunn_write_as(bias, GPUNN_F64, memory, sizeof wide));
    give(memory);
    OK(p.dev, gpunn_write_as(p.n.t, GPUNN_TYPED(labels), sizeof labels)); /* gpunn_write makes two of four */
    OK(p.dev, gpunn_read(p.n.t, kept, sizeof kept));
    OK(p.dev, gpunn_read_as(p.n.t, GPUNN_TYPED(bytes), sizeof bytes));
    for (int i = 0; i < 4; i++) assert_true(kept[i] == labels[i] && bytes[i] == labels[i]);
    net_write(p.dev, p.n, 4, 1);
    float gradient[3];
    OK(p.dev, gpunn_backward(p.n.loss));
    OK(p.dev, gpunn_read_grad(bias, gradient, sizeof gradient));
    OK(p.dev, gpunn_read_grad_as(bias, GPUNN_TYPED(seen), sizeof seen));
    assert_same_doubles(seen, gradient, 3);
    FAILS(p.dev, gpunn_read_grad_as(bias, GPUNN_F64, seen, 12), GPUNN_ERR_SHAPE, "fc2.bias", "24");
    FAILS(NULL, gpunn_read_grad_as(NULL, GPUNN_F64, seen, 24), GPUNN_ERR_ARGUMENT, "NULL");
    FAILS(p.dev, gpunn_write_as(bias, GPUNN_F16, wide, 6), GPUNN_ERR_DTYPE, "fc2.bias", "f16");
    FAILS(p.dev, gpunn_read_as(bias, (gpunn_dtype)99, wide, 24), GPUNN_ERR_DTYPE, "fc2.bias");
    FAILS(p.dev, gpunn_write_as(bias, GPUNN_F64, wide, 16), GPUNN_ERR_SHAPE, "fc2.bias", "f64", "24");
    FAILS(p.dev, gpunn_write_as(p.n.logits, GPUNN_F64, wide, 24), GPUNN_ERR_STATE, "only inputs");
    FAILS(NULL, gpunn_write_as(NULL, GPUNN_F64, wide, 24), GPUNN_ERR_ARGUMENT, "NULL");
    FAILS(p.dev, gpunn_set_dtype(bias, GPUNN_F64), GPUNN_ERR_DTYPE, "fc2.bias", "only inputs");
    FAILS(p.dev, gpunn_set_dtype(p.n.x, GPUNN_BF16), GPUNN_ERR_DTYPE, "'x'");
    FAILS(p.dev, gpunn_set_dtype(p.n.t, GPUNN_F64), GPUNN_ERR_DTYPE, "i64");
    FAILS(NULL, gpunn_set_dtype(NULL, GPUNN_F64), GPUNN_ERR_ARGUMENT, "NULL");
    FAILS(p.dev, gpunn_bind_as(p.n.x, GPUNN_F64, wide, 24), GPUNN_ERR_DTYPE, "gpunn_set_dtype");
    FAILS(p.dev, gpunn_bind_as(bias, GPUNN_I32, wide, 24), GPUNN_ERR_DTYPE, "i32", "f32");
    place_close(&p);
}

/* A weight longer than one transfer to the device. */
static void test_long_weight(void **state)
{
    enum { N = (2 << 18) + 7 };
    const gpunn_init zeros = {GPUNN_INIT_ZEROS, 0, 0};
    double          *wide = malloc(N * sizeof *wide), *seen = malloc(N * sizeof *seen);
    int             *whole = malloc(N * sizeof *whole);
    (void)state;
    place p;
    place_open(&p, GPUNN_PRECISION_F32);
    gpunn_tensor *weight = MADE(p.dev, gpunn_parameter(p.model, "long", GPUNN_SHAPE(N), zeros));
    for (int i = 0; i < N; i++) wide[i] = whole[i] = i * 7 % 10007;
    OK(p.dev, gpunn_write_as(weight, GPUNN_F64, wide, N * sizeof *wide));
    OK(p.dev, gpunn_read_as(weight, GPUNN_F64, seen, N * sizeof *seen));
    assert_memory_equal(seen, wide, N * sizeof *wide);
    memset(seen, 0, N * sizeof *seen);
    OK(p.dev, gpunn_write_as(weight, GPUNN_F64, seen, N * sizeof *seen));
    OK(p.dev, gpunn_write_as(weight, GPUNN_I32, whole, N * sizeof *whole));
    OK(p.dev, gpunn_read_as(weight, GPUNN_F64, seen, N * sizeof *seen));
    assert_memory_equal(seen, wide, N * sizeof *wide);
    place_close(&p);
    free(wide), free(seen), free(whole);
}

/* Bound doubles are read and written by runs, in every precision, at several batches; so are gradients. */
static void test_doubles_bound(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(precisions); i++) {
        place p;
        place_open(&p, precisions[i]);
        gpunn_tensor *image = MADE(p.dev, gpunn_conv2d(p.n.x, "conv9", .out_channels = 4, .kernel_size = 3));
        gpunn_tensor *outputs[] = {gpunn_relu(image), image, p.n.logits, p.n.loss, p.n.x};
        void         *bound[COUNT(outputs)], *gradient;
        float        *values, *dx;
        int64_t      *t, count;
        net_data(5, 3, &values, &t);
        double *wide = as_doubles(values, 5 * NET_X, 1e-12);
        net_write(p.dev, p.n, 5, 3);
        MADE(p.dev, gpunn_retain_grad(p.n.x));
        OK(p.dev, gpunn_backward(p.n.loss, .mode = GPUNN_MODE_EVALUATION));
        dx = malloc(5 * NET_X * sizeof *dx);
        OK(p.dev, gpunn_read_grad(p.n.x, dx, 5 * NET_X * sizeof *dx));
        net_write(p.dev, p.n, 5, 4); /* other floats than the doubles that will be bound */
        OK(p.dev, gpunn_write(p.n.t, t, 5 * sizeof *t));
        for (int k = 0; k < COUNT(outputs); k++) OK(p.dev, gpunn_set_dtype(outputs[k], GPUNN_F64));
        for (int k = 0; k < COUNT(outputs); k++) {
            if (k < 4) OK(p.dev, gpunn_forward(&outputs[k], 1));
            const size_t bytes = gpunn_tensor_bytes(outputs[k]);
            bound[k] = take(bytes, k == 4 ? wide : NULL);
            OK(p.dev, gpunn_bind_as(outputs[k], GPUNN_F64, bound[k], bytes));
        }
        gradient = take(5 * NET_X * sizeof(double), NULL);
        OK(p.dev, gpunn_bind_grad(p.n.x, gradient, 5 * NET_X * sizeof(double)));
        FAILS(p.dev, gpunn_set_dtype(p.n.x, GPUNN_F32), GPUNN_ERR_STATE, "bound");
        for (int run = 0; run < 3; run++) {
            OK(p.dev, gpunn_forward(outputs, 4));
            for (int k = 0; k < COUNT(outputs); k++) {
                check_value(&p, outputs[k], bound[k]);
                if (k == 4) continue;
                const int64_t n = (int64_t)(gpunn_tensor_bytes(outputs[k]) / sizeof(double));
                double       *now = read_doubles(&p, outputs[k], false);
                float        *floats = malloc((size_t)n * sizeof *floats);
                OK(p.dev, gpunn_read_as(outputs[k], GPUNN_F32, floats, (size_t)n * sizeof *floats));
                assert_same_doubles(now, floats, n);
                free(now), free(floats);
            }
            OK(p.dev, gpunn_backward(p.n.loss, .mode = GPUNN_MODE_EVALUATION));
            check_gradient(&p, p.n.x, gradient);
            double *now = read_doubles(&p, p.n.x, true);
            assert_same_doubles(now, dx, 5 * NET_X);
            free(now);
        }
        /* a smaller batch in the same memory; writing goes into it, too */
        OK(p.dev, gpunn_write_as(p.n.x, GPUNN_F32, values, 2 * NET_X * sizeof *values));
        OK(p.dev, gpunn_write(p.n.t, t, 2 * sizeof *t));
        double *seen = malloc(2 * NET_X * sizeof *seen);
        look(seen, bound[4], 2 * NET_X * sizeof *seen);
        assert_same_doubles(seen, values, 2 * NET_X);
        OK(p.dev, gpunn_forward(outputs, 4));
        check_value(&p, outputs[2], bound[2]);
        FAILS(p.dev, gpunn_write(p.n.x, wide, 10 * NET_X * sizeof *wide), GPUNN_ERR_SHAPE, "bound", "unbind");
        OK(p.dev, gpunn_write(p.n.t, t, 5 * sizeof *t));
        FAILS(p.dev, gpunn_forward(&outputs[3], 1), GPUNN_ERR_SHAPE, "'x'");
        for (int k = 0; k < COUNT(outputs); k++) OK(p.dev, gpunn_bind(outputs[k], NULL, 0));
        OK(p.dev, gpunn_bind_grad(p.n.x, NULL, 0));
        OK(p.dev, gpunn_write(p.n.x, wide, 5 * NET_X * sizeof *wide));
        OK(p.dev, gpunn_forward(outputs, 4));
        for (int k = 0; k < COUNT(outputs); k++) give(bound[k]);
        give(gradient);
        float *again = read_floats(p.dev, MADE(p.dev, gpunn_find(p.model, "fc2.weight")), &count);
        free(again), free(seen), free(wide), free(values), free(t), free(dx);
        place_close(&p);
    }
}

/* gpunn_backward_from takes gradients of the outputs' dtype; DLPack has 64 bits. */
static void test_doubles_given(void **state)
{
    (void)state;
    place p;
    place_open(&p, GPUNN_PRECISION_F32);
    float       ones[15], first[3], second[3];
    double      wide[15];
    const void *floats = ones, *doubles = wide;
    for (int i = 0; i < 15; i++) wide[i] = (double)(ones[i] = 0.1f * (float)(i + 1));
    void         *taken = take(sizeof wide, wide);
    gpunn_tensor *bias = MADE(p.dev, gpunn_find(p.model, "fc2.bias"));
    net_write(p.dev, p.n, 5, 1);
    OK(p.dev, gpunn_backward_from(&p.n.logits, &floats, 1));
    OK(p.dev, gpunn_read_grad(bias, first, sizeof first));
    OK(p.dev, gpunn_set_dtype(p.n.logits, GPUNN_F64));
    for (int i = 0; i < 2; i++) { /* in host memory, then in the device's */
        OK(p.dev, gpunn_zero_grad(p.model));
        OK(p.dev, gpunn_backward_from(&p.n.logits, &doubles, 1));
        OK(p.dev, gpunn_read_grad(bias, second, sizeof second));
        assert_memory_equal(first, second, sizeof first);
        doubles = taken;
    }
    give(taken);
    void *bound = take(15 * sizeof(double), NULL);
    OK(p.dev, gpunn_bind(p.n.logits, bound, 15 * sizeof(double)));
    OK(p.dev, gpunn_forward(&p.n.logits, 1));
    gpunn_dlpack *seen = (gpunn_dlpack *)(void *)MADE(p.dev, gpunn_to_dlpack(p.n.logits));
    assert_int_equal(seen->dtype_bits, 64);
    assert_int_equal(seen->dtype_code, GPUNN_DLPACK_FLOAT);
    seen->deleter((struct DLManagedTensorVersioned *)(void *)seen);
    OK(p.dev, gpunn_bind(p.n.logits, NULL, 0));
    give(bound);
    place_close(&p);
}

/* ---- weights that change between two runs ---- *
 * Runs keep weights packed, folded into convolutions or rounded to 16 bits. After each way to change weights,
 * the next run gives the bits of a fresh model with the new weights. */
enum { LAYERS = 12, SAMPLES = 3, WIDE = 16, SIDE = 6, CELLS = SIDE * SIDE, WORDS = 11, MOST_WEIGHTS = 64 };

typedef struct layered {
    test_memory     *memory; /* of the device */
    gpunn_device    *dev;
    gpunn_model     *model;
    gpunn_tensor    *x, *tokens, *y[LAYERS], *loss;
    gpunn_optimizer *opt;
    void            *bound[MOST_WEIGHTS]; /* memory of the program's for each weight, or NULL */
} layered;

static gpunn_tensor *weight_of(gpunn_model *model, const char *name, int64_t rows, int64_t columns)
{
    const gpunn_init init = {GPUNN_INIT_NORMAL, 0, 0.3f};
    return gpunn_parameter(model, name, GPUNN_SHAPE(rows, columns), init);
}

/* A low-rank change beside a product's weight. */
static gpunn_tensor *adapted(gpunn_model *model)
{
    gpunn_tensor *down = weight_of(model, "down", CELLS, 2), *up = weight_of(model, "up", 2, 24);
    return gpunn_add(weight_of(model, "adapted", CELLS, 24), gpunn_matmul(down, up));
}

static void layered_layers(layered *m, gpunn_tensor *x, gpunn_tensor *rows)
{
    gpunn_tensor       *normed = gpunn_conv2d(x, "normed", .out_channels = 24, .kernel_size = 3);
    gpunn_tensor       *words = gpunn_embedding(m->tokens, "words", .num_embeddings = WORDS,
                                                .embedding_dim = CELLS);
    gpunn_tensor *const y[LAYERS] = {
        gpunn_linear(rows, "linear", .out_features = 24),
        gpunn_conv2d(x, "conv", .out_channels = 24, .kernel_size = 3, .padding = 1),
        gpunn_conv2d(x, "point", .out_channels = 32, .kernel_size = 1),
        gpunn_conv2d(x, "depthwise", .out_channels = WIDE, .groups = WIDE, .kernel_size = 3),
        gpunn_conv_transpose2d(x, "transposed", .out_channels = 8, .kernel_size = 3),
        gpunn_relu(gpunn_batch_norm2d(normed, "bn")),
        gpunn_batch_norm1d(gpunn_linear(gpunn_flatten(x), "flat", .out_features = 16), "flat.bn"),
        gpunn_lstm(rows, "lstm", .hidden_size = 20, .batch_first = true),
        gpunn_gru(rows, "gru", .hidden_size = 9, .batch_first = true, .bidirectional = true),
        words,
        gpunn_linear(rows, "tied", .weight = gpunn_find(m->model, "words.weight")),
        gpunn_matmul(rows, adapted(m->model))};
    memcpy(m->y, y, sizeof y);
}

static layered layered_make(gpunn_device *dev, gpunn_precision precision)
{
    layered m = {.dev = dev, .model = MADE(dev, gpunn_model_create(dev, .precision = precision))};
    float  *values = test_randoms(SAMPLES * WIDE * CELLS, 4, 1);
    int64_t words[SAMPLES * SIDE];
    for (int i = 0; i < COUNT(words); i++) words[i] = i * 5 % WORDS;
    m.x = gpunn_input(m.model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, WIDE, SIDE, SIDE));
    m.tokens = gpunn_input(m.model, "tokens", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, SIDE));
    layered_layers(&m, gpunn_retain_grad(m.x), gpunn_reshape(m.x, GPUNN_SHAPE(GPUNN_BATCH, WIDE, CELLS)));
    for (int i = 0; i < LAYERS; i++) {
        gpunn_tensor *part = gpunn_mean(gpunn_square(MADE(dev, m.y[i])), GPUNN_ALL, false);
        m.loss = MADE(dev, m.loss ? gpunn_add(m.loss, part) : part);
    }
    m.opt = MADE(dev, gpunn_sgd(m.model, .lr = 0.1f));
    MADE(dev, gpunn_state(m.model, "state", GPUNN_SHAPE(1), (gpunn_init){GPUNN_INIT_ZEROS, 0, 0}));
    OK(dev, write_floats(m.x, values, SAMPLES * WIDE * CELLS));
    OK(dev, gpunn_write(m.tokens, words, sizeof words));
    free(values);
    return m;
}

static void layered_end(layered *m)
{
    gpunn_optimizer_destroy(m->opt);
    gpunn_model_destroy(m->model);
    for (int i = 0; i < MOST_WEIGHTS; i++)
        if (m->bound[i]) give(m->bound[i]);
}

enum { EVALUATION, TRAINING, GRADIENT, MODES };
/* All results of a run, or the gradient of x; *bytes: of them all. */
static char *layered_run(layered *m, int mode, size_t *bytes)
{
    char *results = NULL;
    *bytes = 0;
    if (mode == GRADIENT) {
        OK(m->dev, gpunn_zero_grad(m->model));
        OK(m->dev, gpunn_backward(m->loss));
        results = malloc(*bytes = gpunn_tensor_bytes(m->x));
        OK(m->dev, gpunn_read_grad(m->x, results, *bytes));
        return results;
    }
    OK(m->dev, (mode == TRAINING ? gpunn_forward_training : gpunn_forward)(m->y, LAYERS));
    for (int i = 0; i < LAYERS; i++) {
        const size_t part = gpunn_tensor_bytes(m->y[i]);
        results = realloc(results, *bytes + part);
        OK(m->dev, gpunn_read(m->y[i], results + *bytes, part));
        *bytes += part;
    }
    return results;
}

/* New values of a weight: variances stay above 0. */
static float *new_values(layered *m, gpunn_tensor *t, int64_t *n)
{
    float *values = read_floats(m->dev, t, n);
    for (int64_t k = 0; k < *n; k++) values[k] = 0.75f * values[k] + 0.1f;
    return values;
}

/* Calls change with the new values of each weight. */
static void renew(layered *m,
                  void (*change)(layered *m, int i, gpunn_tensor *t, const float *values, size_t bytes))
{
    assert_in_range(gpunn_parameter_count(m->model), 1, MOST_WEIGHTS);
    for (int i = 0; i < gpunn_parameter_count(m->model); i++) {
        gpunn_tensor *t = gpunn_parameter_at(m->model, i);
        int64_t       n;
        float        *values = new_values(m, t, &n);
        change(m, i, t, values, (size_t)n * sizeof *values);
        free(values);
    }
}
static void write_weight(layered *m, int i, gpunn_tensor *t, const float *values, size_t bytes)
{
    (void)i;
    OK(m->dev, gpunn_write(t, values, bytes));
}
static void bind_weight(layered *m, int i, gpunn_tensor *t, const float *values, size_t bytes)
{
    OK(m->dev, gpunn_bind(t, m->bound[i] = take(bytes, values), bytes));
}
static void put_weight(layered *m, int i, gpunn_tensor *t, const float *values, size_t bytes)
{
    (void)m, (void)t;
    if (stream)
        caller_put(m->bound[i], values, bytes, stream);
    else
        memcpy(m->bound[i], values, bytes);
}
static void draw_weight(layered *m, int i, gpunn_tensor *t, const float *values, size_t bytes)
{
    (void)i, (void)values, (void)bytes;
    const gpunn_init init = {GPUNN_INIT_UNIFORM, 0.1f, 0.4f};
    if (strstr(gpunn_tensor_name(t), "running") == NULL) OK(m->dev, gpunn_set_init(t, init));
}

/* ---- the ways ---- */
static void nothing(layered *m)
{
    (void)m;
}
static void by_write(layered *m)
{
    renew(m, write_weight);
}
static void by_bind(layered *m)
{
    renew(m, bind_weight);
}
static void in_bound_memory(layered *m)
{
    renew(m, put_weight);
}
static void by_unbind(layered *m)
{
    renew(m, put_weight);
    for (int i = 0; i < gpunn_parameter_count(m->model); i++)
        OK(m->dev, gpunn_bind(gpunn_parameter_at(m->model, i), NULL, 0));
}
static void by_set_init(layered *m)
{
    renew(m, draw_weight);
}
/* Another model's new weights, as a file in memory. */
static void by_load_memory(layered *m)
{
    layered     other = layered_make(m->dev, GPUNN_PRECISION_F32);
    gpunn_array file;
    renew(&other, write_weight);
    OK(m->dev, gpunn_save_memory(other.model, &file));
    OK(m->dev, gpunn_load_memory(m->model, file.data, file.bytes));
    gpunn_array_free(m->dev, &file);
    layered_end(&other);
}
static void through_file(layered *m, bool checkpoint)
{
    layered     other = layered_make(m->dev, GPUNN_PRECISION_F32);
    fixture     f = {.dev = m->dev};
    const char *path = test_path(&f, "weights");
    renew(&other, write_weight);
    OK(m->dev, checkpoint ? gpunn_checkpoint_save(other.opt, NULL, path) : gpunn_save(other.model, path));
    OK(m->dev, checkpoint ? gpunn_checkpoint_load(m->opt, NULL, path) : gpunn_load(m->model, path));
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(f.folder), 0);
    layered_end(&other);
}
static void by_load(layered *m)
{
    through_file(m, false);
}
static void by_checkpoint(layered *m)
{
    through_file(m, true);
}
static void by_train_step(layered *m)
{
    OK(m->dev, gpunn_train_step(m->opt, m->loss));
}
static void with_gradients(layered *m)
{
    OK(m->dev, gpunn_backward(m->loss));
}
static void by_optimizer_step(layered *m)
{
    OK(m->dev, gpunn_optimizer_step(m->opt));
}
static void with_averages(layered *m)
{
    OK(m->dev, gpunn_set_ema(m->opt, 0.9f));
    for (int step = 0; step < 2; step++) by_train_step(m);
}
static void by_swap(layered *m)
{
    OK(m->dev, gpunn_ema_swap(m->opt));
}
static void with_averages_in_use(layered *m)
{
    with_averages(m);
    by_swap(m);
}
/* In another session, whose states are the model's until it ends. */
static void in_session(layered *m)
{
    gpunn_session *session = MADE(m->dev, gpunn_session_create(m->model));
    OK(m->dev, gpunn_use_session(m->model, session));
    renew(m, write_weight);
    OK(m->dev, gpunn_use_session(m->model, NULL));
    gpunn_session_destroy(session);
}
/* On another device, then back. */
static void by_moving(layered *m)
{
    gpunn_device *dev = m->dev,
                 *other = MADE(NULL, gpunn_device_open(.type = GPUNN_DEVICE_CPU, .realloc_fn = hook_realloc,
                                                       .user = m->memory));
    OK(other, gpunn_model_to(m->model, other));
    m->dev = other;
    renew(m, write_weight);
    OK(dev, gpunn_model_to(m->model, dev));
    m->dev = dev;
    gpunn_device_close(other);
}
/* A new layer moves all weights in memory and leaves their values. */
static void by_growing(layered *m)
{
    gpunn_tensor *more = MADE(m->dev, gpunn_linear(gpunn_flatten(m->x), "more", .out_features = 50));
    OK(m->dev, gpunn_forward(&more, 1));
}
/* Running statistics alone, which evaluation folds into the convolution. */
static void by_statistics(layered *m)
{
    OK(m->dev, gpunn_forward_training(m->y, LAYERS));
}

typedef struct way {
    const char *name;
    void (*before)(layered *m), (*change)(layered *m);
    int changed; /* the number of first modes whose results change */
} way;
static way ways[] = {{"write", nothing, by_write, MODES},
                     {"load", nothing, by_load, MODES},
                     {"load_memory", nothing, by_load_memory, MODES},
                     {"checkpoint_load", nothing, by_checkpoint, MODES},
                     {"bind", nothing, by_bind, MODES},
                     {"bound memory", by_bind, in_bound_memory, MODES},
                     {"unbind", by_bind, by_unbind, MODES},
                     {"set_init", nothing, by_set_init, MODES},
                     {"train_step", nothing, by_train_step, MODES},
                     {"optimizer_step", with_gradients, by_optimizer_step, MODES},
                     {"ema_swap", with_averages, by_swap, MODES},
                     {"ema_swap back", with_averages_in_use, by_swap, MODES},
                     {"session", nothing, in_session, MODES},
                     {"model_to", nothing, by_moving, MODES},
                     {"growth", nothing, by_growing, 0},
                     {"statistics", nothing, by_statistics, EVALUATION + 1}};

/* A model of the same weights, whose first run this is. */
static char *fresh_run(layered *m, gpunn_precision precision, int mode, size_t *bytes)
{
    layered fresh = layered_make(m->dev, precision);
    for (int i = 0; i < gpunn_parameter_count(fresh.model); i++) {
        int64_t n;
        float  *values = read_floats(m->dev, gpunn_parameter_at(m->model, i), &n);
        OK(m->dev, write_floats(gpunn_parameter_at(fresh.model, i), values, n));
        free(values);
    }
    char *results = layered_run(&fresh, mode, bytes);
    layered_end(&fresh);
    return results;
}

static void check_way(const way *w, gpunn_precision precision, int mode)
{
    place  p;
    size_t bytes, count, same;
    place_open(&p, precision);
    layered m = layered_make(p.dev, precision);
    m.memory = &p.memory;
    w->before(&m);
    char *old = layered_run(&m, mode, &bytes);
    w->change(&m);
    char *new = layered_run(&m, mode, &count), *expected = fresh_run(&m, precision, mode, &same);
    assert_int_equal(bytes, count);
    assert_int_equal(bytes, same);
    if (memcmp(new, expected, bytes) != 0)
        fail_msg("precision %d, mode %d: results of old weights after %s", (int)precision, mode, w->name);
    if (mode < w->changed) assert_memory_not_equal(new, old, bytes);
    free(old), free(new), free(expected);
    layered_end(&m);
    place_close(&p);
}

static void test_way(void **state)
{
    static const gpunn_precision of[] = {GPUNN_PRECISION_F32, GPUNN_PRECISION_BF16};
    for (int i = 0; i < COUNT(of); i++)
        for (int mode = 0; mode < MODES; mode++) check_way(*state, of[i], mode);
}

int main(void)
{
    static struct CMUnitTest tests[16 + COUNT(ways)];
    const struct CMUnitTest  memory[] = {cmocka_unit_test(test_values),
                                         cmocka_unit_test(test_training),
                                         cmocka_unit_test(test_changed),
                                         cmocka_unit_test(test_gradients),
                                         cmocka_unit_test(test_inputs),
                                         cmocka_unit_test(test_drawn_rows),
                                         cmocka_unit_test(test_refused),
                                         cmocka_unit_test(test_backward_from),
                                         cmocka_unit_test(test_backward_from_differences),
                                         cmocka_unit_test(test_dlpack),
                                         cmocka_unit_test(test_doubles_written),
                                         cmocka_unit_test(test_written_as),
                                         cmocka_unit_test(test_long_weight),
                                         cmocka_unit_test(test_doubles_bound),
                                         cmocka_unit_test(test_doubles_given),
                                         cmocka_unit_test(test_multiples)};
    int                      count = 0;
    for (int i = 0; i < COUNT(memory); i++) tests[count++] = memory[i];
    for (int i = 0; i < COUNT(ways); i++) {
        struct CMUnitTest test = {ways[i].name, test_way, NULL, NULL, &ways[i]};
        tests[count++] = test;
    }
    return _cmocka_run_group_tests("bind", tests, (size_t)count, NULL, NULL);
}
