/* Values that live between runs: states, assignments to them and their order, and attention over a cache that
 * fills up. */
#include "../test.h"

#define FLOATS(...) ((const float[]){__VA_ARGS__})
static const gpunn_init zeros = {GPUNN_INIT_ZEROS, 0, 0}, fives = {GPUNN_INIT_CONSTANT, 5, 0};

static void expect(fixture *f, gpunn_tensor *t, const float *wanted, int count)
{
    float got[64];
    OK(f->dev, gpunn_read(t, got, (size_t)count * sizeof *got));
    for (int i = 0; i < count; i++)
        if (!(fabsf(got[i] - wanted[i]) <= 1e-5f))
            fail_msg("number %d is %g, not %g", i, (double)got[i], (double)wanted[i]);
}

static void run(fixture *f, gpunn_tensor *y)
{
    OK(f->dev, gpunn_forward(&y, 1));
}

static gpunn_tensor *scalar_input(fixture *f, const char *name, gpunn_dtype dtype)
{
    return MADE(f->dev, gpunn_input(f->model, name, dtype, GPUNN_SHAPE(0)));
}

static void put(fixture *f, gpunn_tensor *t, int64_t value)
{
    OK(f->dev, gpunn_write(t, &value, sizeof value));
}

/* A run reads what the one before has left; writing, resetting and reading it come between. */
static void test_sum(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(2)));
    gpunn_tensor *sum = MADE(f->dev, gpunn_state(f->model, "sum", GPUNN_SHAPE(2), fives));
    gpunn_tensor *y = MADE(f->dev, gpunn_add(sum, x)), *other = MADE(f->dev, gpunn_relu(x));
    MADE(f->dev, gpunn_assign(sum, y));
    OK(f->dev, gpunn_write(x, FLOATS(1, 2), 8));
    expect(f, sum, FLOATS(5, 5), 2);
    for (int i = 1; i <= 4; i++) {
        run(f, y);
        expect(f, y, FLOATS(5 + (float)i, 5 + 2 * (float)i), 2);
        expect(f, sum, FLOATS(5 + (float)i, 5 + 2 * (float)i), 2);
    }
    run(f, other); /* does not read the state */
    expect(f, sum, FLOATS(9, 13), 2);
    OK(f->dev, gpunn_write(sum, FLOATS(0, 1), 8));
    run(f, y);
    expect(f, sum, FLOATS(1, 3), 2);
    OK(f->dev, gpunn_reset_states(f->model));
    expect(f, sum, FLOATS(5, 5), 2);
    run(f, y);
    expect(f, sum, FLOATS(6, 7), 2);
}

/* A preparation allocates what the run needs, but computes nothing. */
static void test_prepare(void **state)
{
    fixture      *f = *state;
    float         out[4];
    gpunn_tensor *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2)));
    gpunn_tensor *sum = MADE(f->dev, gpunn_state(f->model, "sum", GPUNN_SHAPE(2), fives));
    gpunn_tensor *y = MADE(f->dev, gpunn_add(sum, gpunn_sum(x, GPUNN_AXES(0), false)));
    gpunn_tensor *both[] = {y, NULL};
    MADE(f->dev, gpunn_assign(sum, y));
    for (int samples = 1; samples <= 2; samples++) {
        OK(f->dev, gpunn_write(x, FLOATS(1, 2, 3, 4), (size_t)samples * 8));
        OK(f->dev, gpunn_forward_prepare(&y, 1));
        FAILS(f->dev, gpunn_read(y, out, 8), GPUNN_ERR_STATE, "has not been computed");
        expect(f, sum, FLOATS(5, 5), 2);
    }
    const long calls = f->memory.calls;
    for (int samples = 1; samples <= 2; samples++) {
        OK(f->dev, gpunn_write(x, FLOATS(1, 2, 3, 4), (size_t)samples * 8));
        run(f, y);
    }
    expect(f, y, FLOATS(10, 13), 2);
    if (f->backend->type == GPUNN_DEVICE_CPU) assert_int_equal(f->memory.calls, calls);
    FAILS(NULL, gpunn_forward_prepare(NULL, 1), GPUNN_ERR_ARGUMENT, "gpunn_forward_prepare: there are no");
    FAILS(NULL, gpunn_forward_prepare(both + 1, 1), GPUNN_ERR_ARGUMENT, "gpunn_forward_prepare");
    FAILS(f->dev, gpunn_forward_prepare(both, 2), GPUNN_ERR_ARGUMENT, "gpunn_forward_prepare: output 1");
}

/* Blocks of several lengths through a streaming convolution give the values of the whole sequence. */
static void test_stream(void **state)
{
    enum { N = 2, IN = 6, OUT = 4, LENGTH = 23, PADDED = LENGTH + 4 }; /* of the whole's result: 4 behind */
    static const int blocks[] = {1, 4, 1, 7, 10};
    fixture         *f = *state;
    const int64_t    length = gpunn_size(f->model, "T");
    gpunn_tensor    *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(N, IN, length)));
    gpunn_tensor    *y = MADE(f->dev, gpunn_conv1d(x, "conv", .out_channels = OUT, .kernel_size = 3,
                                                   .dilation = 2, .groups = 2, .stateful = true));
    gpunn_tensor    *whole = MADE(f->dev, gpunn_conv1d(x, NULL, .out_channels = OUT, .kernel_size = 3,
                                                       .dilation = 2, .groups = 2, .padding = 4,
                                                       .weight = gpunn_find(f->model, "conv.weight"),
                                                       .bias = gpunn_find(f->model, "conv.bias")));
    /* the same in lists */
    gpunn_tensor *twin = MADE(f->dev,
                              gpunn_conv1d(x, "twin", .out_channels = OUT, .kernel_shape = {3},
                                           .dilations = {2}, .strides = {1}, .groups = 2, .stateful = true,
                                           .weight = gpunn_find(f->model, "conv.weight"),
                                           .bias = gpunn_find(f->model, "conv.bias")));
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(gpunn_mul(y, twin), GPUNN_ALL, false)), *both[] = {y, twin};
    float all[N * IN * LENGTH], part[N * IN * LENGTH], wanted[N * OUT * PADDED], got[N * OUT * LENGTH];
    for (int i = 0; i < COUNT(all); i++) all[i] = sinf(1.3f * (float)i);
    OK(f->dev, gpunn_write_shape(x, all, GPUNN_SHAPE(N, IN, LENGTH)));
    run(f, whole);
    OK(f->dev, gpunn_read(whole, wanted, sizeof wanted));
    for (int round = 0, begin = 0; round < 2 * COUNT(blocks); begin += blocks[round++ % COUNT(blocks)]) {
        const int size = blocks[round % COUNT(blocks)];
        if (round == COUNT(blocks)) begin = 0, OK(f->dev, gpunn_reset_states(f->model));
        for (int row = 0; row < N * IN; row++)
            memcpy(part + row * size, all + row * LENGTH + begin, (size_t)size * sizeof *part);
        OK(f->dev, gpunn_write_shape(x, part, GPUNN_SHAPE(N, IN, size)));
        OK(f->dev, round % 2 ? gpunn_backward(loss) : gpunn_forward(both, 2)); /* both continue the stream */
        for (int k = 0; k < 2 && round % 2 == 0; k++) {
            OK(f->dev, gpunn_read(both[k], got, (size_t)(N * OUT * size) * sizeof *got));
            for (int i = 0; i < N * OUT * size; i++)
                assert_true(fabsf(got[i] - wanted[i / size * PADDED + begin + i % size]) <= 2e-6f);
        }
    }
}

static void test_bad_streams(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(2, 3, 8)));
    gpunn_tensor *any = MADE(f->dev, gpunn_input(f->model, "any", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3, 8)));
    gpunn_tensor *image = MADE(f->dev, gpunn_input(f->model, "image", GPUNN_F32, GPUNN_SHAPE(2, 3, 8, 8)));
    FAILS_NULL(f->dev, gpunn_conv1d(any, "c", .out_channels = 4, .kernel_size = 3, .stateful = true),
               GPUNN_ERR_SHAPE, "fixed number of sequences");
    FAILS_NULL(f->dev, gpunn_conv1d(x, NULL, .out_channels = 4, .kernel_size = 3, .stateful = true),
               GPUNN_ERR_ARGUMENT, "give the layer a name");
    FAILS_NULL(f->dev,
               gpunn_conv1d(x, "c", .out_channels = 4, .kernel_size = 3, .stride = 2, .stateful = true),
               GPUNN_ERR_ARGUMENT, "a stride of 1");
    FAILS_NULL(f->dev, gpunn_conv1d(x, "c", .out_channels = 4, .stateful = true), GPUNN_ERR_ARGUMENT,
               "kernel_size is 0");
    FAILS_NULL(f->dev,
               gpunn_conv1d(x, "c", .out_channels = 4, .kernel_size = 3, .padding = 1, .stateful = true),
               GPUNN_ERR_ARGUMENT, "padding is not used");
    FAILS_NULL(f->dev,
               gpunn_conv1d(x, "c", .out_channels = 5, .kernel_size = 3, .groups = 3, .stateful = true),
               GPUNN_ERR_ARGUMENT, "groups is 3");
    FAILS_NULL(f->dev, gpunn_conv2d(image, "c", .out_channels = 4, .kernel_size = 3, .stateful = true),
               GPUNN_ERR_ARGUMENT, "stateful is for gpunn_conv1d");
    assert_null(gpunn_find(f->model, "c.past"));
    MADE(f->dev,
         gpunn_conv1d(x, "c", .out_channels = 4, .kernel_size = 1, .stateful = true)); /* keeps nothing */
    assert_null(gpunn_find(f->model, "c.past"));
}

/* Two states that exchange their values, by copies; without these one would be read too late. */
static void test_order(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *a = MADE(f->dev, gpunn_state(f->model, "a", GPUNN_SHAPE(2), zeros));
    gpunn_tensor *b = MADE(f->dev, gpunn_state(f->model, "b", GPUNN_SHAPE(2), fives));
    gpunn_tensor *x = MADE(f->dev, gpunn_mul_scalar(a, 1)), *y = MADE(f->dev, gpunn_mul_scalar(b, 1)),
                 *both[] = {x, y};
    MADE(f->dev, gpunn_assign(a, y));
    MADE(f->dev, gpunn_assign(b, x));
    OK(f->dev, gpunn_forward(both, 2));
    expect(f, a, FLOATS(5, 5), 2);
    expect(f, b, FLOATS(0, 0), 2);
    gpunn_tensor *c = MADE(f->dev, gpunn_state(f->model, "c", GPUNN_SHAPE(2), zeros));
    gpunn_tensor *new_c = MADE(f->dev, gpunn_assign(c, gpunn_add_scalar(c, 3)));
    gpunn_tensor *after = MADE(f->dev, gpunn_add(new_c, gpunn_exp(c)));
    FAILS(f->dev, gpunn_forward(&after, 1), GPUNN_ERR_STATE, "state 'c' is read after an assignment");
    gpunn_tensor *right = MADE(f->dev, gpunn_relu(gpunn_reshape(new_c, GPUNN_SHAPE(2, 1))));
    run(f, right);
    expect(f, right, FLOATS(3, 3), 2);
    gpunn_tensor *twice = MADE(f->dev, gpunn_assign(new_c, gpunn_add_scalar(new_c, 1)));
    run(f, twice);
    expect(f, twice, FLOATS(7, 7), 2);
    expect(f, c, FLOATS(7, 7), 2);
}

/* Places of a state, given by an input, by another state or for each sample. */
static void test_places(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *at = scalar_input(f, "at", GPUNN_I64);
    gpunn_tensor *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(2, GPUNN_BATCH, 1)));
    gpunn_tensor *cache = MADE(f->dev, gpunn_state(f->model, "cache", GPUNN_SHAPE(2, 4, 1), zeros));
    gpunn_tensor *all = MADE(f->dev, gpunn_assign_at(cache, 1, at, x));
    OK(f->dev, gpunn_write(x, FLOATS(1, 2, 3, 4), 16)); /* two rows of each sample */
    put(f, at, 1);
    run(f, all);
    expect(f, cache, FLOATS(0, 1, 2, 0, 0, 3, 4, 0), 8);
    OK(f->dev, gpunn_write(x, FLOATS(8, 9), 8));
    put(f, at, 3);
    run(f, all);
    expect(f, cache, FLOATS(0, 1, 2, 8, 0, 3, 4, 9), 8);
    put(f, at, 4);
    if (f->backend->type == GPUNN_DEVICE_CPU)
        FAILS(f->dev, gpunn_forward(&all, 1), GPUNN_ERR_ARGUMENT,
              "assign: writing 1 at position 4 exceeds the state's 4");
    else
        run(f, all);
    expect(f, cache, FLOATS(0, 1, 2, 8, 0, 3, 4, 9), 8);
    gpunn_tensor *each = MADE(f->dev, gpunn_input(f->model, "each", GPUNN_I32, GPUNN_SHAPE(2)));
    gpunn_tensor *apart = MADE(f->dev, gpunn_assign_at(cache, 1, each, x));
    const int32_t places[] = {2, 0};
    OK(f->dev, gpunn_write(each, places, sizeof places));
    run(f, apart);
    expect(f, cache, FLOATS(0, 1, 8, 8, 9, 3, 4, 9), 8);
    gpunn_tensor *count = MADE(f->dev, gpunn_state(f->model, "count", GPUNN_SHAPE(0), zeros));
    gpunn_tensor *line = MADE(f->dev, gpunn_state(f->model, "line", GPUNN_SHAPE(4), zeros));
    gpunn_tensor *one = MADE(f->dev, gpunn_reshape(gpunn_add_scalar(count, 1), GPUNN_SHAPE(1)));
    gpunn_tensor *counted = MADE(f->dev, gpunn_assign_at(line, 0, gpunn_cast(count, GPUNN_I64), one));
    MADE(f->dev, gpunn_assign(count, gpunn_reshape(one, GPUNN_SHAPE(0))));
    for (int i = 0; i < 3; i++) run(f, counted);
    expect(f, line, FLOATS(1, 2, 3, 0), 4);
}

/* Of four classes with the probabilities 0.15, 0.5, 0.05 and 0.3. */
static void check_sample(fixture *f, gpunn_tensor *y, gpunn_tensor *draw, const float *draws,
                         const int64_t *wanted)
{
    int64_t got[4];
    MADE(f->dev, y);
    OK(f->dev, gpunn_write(draw, draws, 4 * sizeof *draws));
    run(f, y);
    OK(f->dev, gpunn_read(y, got, sizeof got));
    for (int i = 0; i < 4; i++)
        if (got[i] != wanted[i])
            fail_msg("draw %g gives class %d, not %d", (double)draws[i], (int)got[i], (int)wanted[i]);
}

#define CLASSES(...) ((const int64_t[]){__VA_ARGS__})
static void test_sample(void **state)
{
    fixture      *f = *state;
    const float   row[] = {logf(0.15f), logf(0.5f), logf(0.05f), logf(0.3f)};
    gpunn_tensor *draw = MADE(f->dev, gpunn_input(f->model, "draw", GPUNN_F32, GPUNN_SHAPE(4)));
    gpunn_tensor *one = MADE(f->dev, gpunn_constant(f->model, GPUNN_SHAPE(1, 4), row));
    gpunn_tensor *x = MADE(f->dev, gpunn_expand(one, GPUNN_SHAPE(4, 4)));
    check_sample(f, gpunn_sample(x, draw, .top_k = 0), draw, FLOATS(0, 0.49f, 0.51f, 0.79f),
                 CLASSES(1, 1, 3, 3));
    check_sample(f, gpunn_sample(x, draw, .top_k = 9), draw, FLOATS(0.81f, 0.94f, 0.96f, 0.9999999f),
                 CLASSES(0, 0, 2, 2));
    /* 5/8 and 3/8 */
    check_sample(f, gpunn_sample(x, draw, .top_k = 2), draw, FLOATS(0.62f, 0.63f, 0.99f, 0),
                 CLASSES(1, 3, 3, 1));
    check_sample(f, gpunn_sample(x, draw, .top_p = 0.79f), draw, FLOATS(0.62f, 0.63f, 0.99f, 0),
                 CLASSES(1, 3, 3, 1));
    check_sample(f, gpunn_sample(x, draw, .top_p = 0.4f), draw, FLOATS(0, 0.3f, 0.6f, 0.99f),
                 CLASSES(1, 1, 1, 1));
    /* squared: 0.25, 0.09, 0.0225 and 0.0025 of 0.365 */
    check_sample(f, gpunn_sample(x, draw, .temperature = 0.5f), draw, FLOATS(0.68f, 0.69f, 0.94f, 0.995f),
                 CLASSES(1, 3, 0, 2));
    check_sample(f, gpunn_sample(x, draw, .temperature = GPUNN_ZERO), draw, FLOATS(0, 0.3f, 0.6f, 0.99f),
                 CLASSES(1, 1, 1, 1));
    FAILS_NULL(f->dev, gpunn_sample(x, NULL, .top_k = 2), GPUNN_ERR_ARGUMENT, "draw is NULL");
    FAILS_NULL(f->dev, gpunn_sample(x, one, .top_k = 2), GPUNN_ERR_SHAPE,
               "draw needs one number for each row, [n]");
    FAILS_NULL(f->dev, gpunn_sample(draw, draw, .top_k = 2), GPUNN_ERR_SHAPE, "[n, classes] is needed");
    FAILS_NULL(f->dev, gpunn_sample(x, draw, .top_p = 1.5f), GPUNN_ERR_ARGUMENT, "top_p 1.5");
    FAILS_NULL(f->dev, gpunn_sample(x, draw, .temperature = -1), GPUNN_ERR_ARGUMENT, "temperature is -1");
}

/* A text of which nothing is read before its end: from each of three tokens there are two ways on. */
static void test_text(void **state)
{
    fixture    *f = *state;
    const float table[] = {-99, 1, 1, 2, -99, 2, 3, 3, -99}, draws[] = {0.2f, 0.7f, 0.1f, 0.9f, 0.4f, 0.6f},
                wanted[] = {1, 2, 0, 2, 0, 2};
    gpunn_tensor *uniform = MADE(f->dev, gpunn_input(f->model, "draws", GPUNN_F32, GPUNN_SHAPE(6)));
    gpunn_tensor *token = MADE(f->dev, gpunn_state(f->model, "token", GPUNN_SHAPE(1), zeros));
    gpunn_tensor *count = MADE(f->dev, gpunn_state(f->model, "count", GPUNN_SHAPE(1), zeros));
    gpunn_tensor *text = MADE(f->dev, gpunn_state(f->model, "text", GPUNN_SHAPE(6), fives));
    gpunn_tensor *rows = MADE(f->dev, gpunn_constant(f->model, GPUNN_SHAPE(3, 3), table));
    gpunn_tensor *at = MADE(f->dev, gpunn_cast(count, GPUNN_I64));
    gpunn_tensor *x = MADE(f->dev, gpunn_embedding(gpunn_cast(token, GPUNN_I64), "rows", .weight = rows));
    gpunn_tensor *next = MADE(f->dev, gpunn_sample(x, gpunn_index_select(uniform, 0, at), .top_p = 0.99f));
    gpunn_tensor *value = MADE(f->dev, gpunn_cast(next, GPUNN_F32));
    gpunn_tensor *said = MADE(f->dev, gpunn_assign_at(text, 0, gpunn_reshape(at, GPUNN_SHAPE(0)), value));
    MADE(f->dev, gpunn_assign(token, value));
    MADE(f->dev, gpunn_assign(count, gpunn_add_scalar(count, 1)));
    OK(f->dev, gpunn_write(uniform, draws, sizeof draws));
    for (int i = 0; i < 6; i++) run(f, said);
    expect(f, text, wanted, 6);
}

static void test_refusals(void **state)
{
    fixture      *f = *state;
    gpunn_device *dev = f->dev;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(2, 3)),
                 *at = scalar_input(f, "at", GPUNN_I64);
    gpunn_tensor *s = MADE(dev, gpunn_state(f->model, "s", GPUNN_SHAPE(2, 2), zeros));
    FAILS_NULL(dev, gpunn_assign(x, x), GPUNN_ERR_ARGUMENT, "is not a state");
    FAILS_NULL(dev, gpunn_assign(s, x), GPUNN_ERR_SHAPE,
               "the value is [2, 3] and the state [2, 2]; they must be equal");
    FAILS_NULL(dev, gpunn_assign_at(s, 1, at, x), GPUNN_ERR_SHAPE, "only along the axis");
    FAILS_NULL(dev, gpunn_assign_at(s, 2, at, s), GPUNN_ERR_ARGUMENT, "axis");
    FAILS_NULL(dev, gpunn_assign_at(s, 0, x, s), GPUNN_ERR_DTYPE, "the position is f32");
    FAILS_NULL(dev, gpunn_assign(s, NULL), GPUNN_ERR_ARGUMENT, "the value is NULL");
    FAILS_NULL(dev, gpunn_state(f->model, "s", GPUNN_SHAPE(2), zeros), GPUNN_ERR_ARGUMENT, "'s'");
    FAILS_NULL(dev, gpunn_state(f->model, "b", GPUNN_SHAPE(GPUNN_BATCH), zeros), GPUNN_ERR_SHAPE, "atch");
    FAILS(dev, gpunn_set_saved(x, true), GPUNN_ERR_ARGUMENT, "is not a state");
    assert_int_equal(gpunn_reset_states(NULL), GPUNN_ERR_ARGUMENT);
}

/* An assignment happens where its inputs have been written anyway: of two ways into one state each run takes
 * its own. */
static void test_two_ways(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(1)));
    gpunn_tensor *z = MADE(f->dev, gpunn_input(f->model, "z", GPUNN_F32, GPUNN_SHAPE(1)));
    gpunn_tensor *s = MADE(f->dev, gpunn_state(f->model, "s", GPUNN_SHAPE(1), zeros));
    gpunn_tensor *by_x = MADE(f->dev, gpunn_add(s, x)), *by_z = MADE(f->dev, gpunn_sub(s, z));
    MADE(f->dev, gpunn_assign(s, by_x));
    MADE(f->dev, gpunn_assign(s, by_z));
    OK(f->dev, gpunn_write(x, FLOATS(2), 4));
    run(f, by_x); /* z has never been written */
    expect(f, s, FLOATS(2), 1);
    OK(f->dev, gpunn_write(z, FLOATS(5), 4));
    run(f, by_z);
    expect(f, s, FLOATS(-3), 1);
}

/* Training leaves states alone, or makes its assignments behind the backward pass, which reads the old
 * value. */
static void test_training(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(1)));
    gpunn_tensor *w = MADE(f->dev, gpunn_parameter(f->model, "w", GPUNN_SHAPE(1), fives));
    gpunn_tensor *kept = MADE(f->dev, gpunn_state(f->model, "kept", GPUNN_SHAPE(1), fives));
    gpunn_tensor *left = MADE(f->dev, gpunn_state(f->model, "left", GPUNN_SHAPE(1), fives));
    gpunn_tensor *y = MADE(f->dev, gpunn_add(gpunn_mul(kept, w), gpunn_mul(left, x)));
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(y, GPUNN_ALL, false));
    float         grad;
    MADE(f->dev, gpunn_assign(kept, gpunn_add_scalar(y, 1), .in_training = true));
    MADE(f->dev, gpunn_assign(left, gpunn_add_scalar(y, 1)));
    OK(f->dev, gpunn_write(x, FLOATS(1), 4));
    OK(f->dev, gpunn_backward(loss));
    OK(f->dev, gpunn_read_grad(w, &grad, sizeof grad));
    assert_true(grad == 5);
    expect(f, kept, FLOATS(31), 1);
    expect(f, left, FLOATS(5), 1);
    OK(f->dev, gpunn_zero_grad(f->model));
    OK(f->dev, gpunn_backward(loss));
    OK(f->dev, gpunn_read_grad(w, &grad, sizeof grad));
    assert_true(grad == 31);
    expect(f, kept, FLOATS(161), 1);
    run(f, loss); /* 161 * 5 + 5 + 1 */
    expect(f, left, FLOATS(811), 1);
}

/* No file has a state that was not asked for. */
static void test_saved(void **state)
{
    fixture      *f = *state;
    const char   *path = test_path(f, "states.safetensors");
    gpunn_tensor *s = MADE(f->dev, gpunn_state(f->model, "s", GPUNN_SHAPE(2), fives));
    MADE(f->dev, gpunn_parameter(f->model, "w", GPUNN_SHAPE(1), fives));
    assert_int_equal(gpunn_parameter_count(f->model), 1);
    OK(f->dev, gpunn_save(f->model, path));
    OK(f->dev, gpunn_write(s, FLOATS(1, 2), 8));
    OK(f->dev, gpunn_load(f->model, path));
    expect(f, s, FLOATS(1, 2), 2);
    gpunn_model  *fresh = gpunn_model_create(f->dev); /* whose first weights are the file's */
    gpunn_tensor *again = MADE(f->dev, gpunn_state(fresh, "s", GPUNN_SHAPE(2), fives));
    MADE(f->dev, gpunn_parameter(fresh, "w", GPUNN_SHAPE(1), zeros));
    OK(f->dev, gpunn_load(fresh, path));
    expect(f, again, FLOATS(5, 5), 2);
    gpunn_model_destroy(fresh);
    OK(f->dev, gpunn_set_saved(s, true));
    FAILS(f->dev, gpunn_load(f->model, path), GPUNN_ERR_FORMAT, "s");
    OK(f->dev, gpunn_save(f->model, path));
    OK(f->dev, gpunn_reset_states(f->model));
    expect(f, s, FLOATS(5, 5), 2);
    OK(f->dev, gpunn_load(f->model, path));
    expect(f, s, FLOATS(1, 2), 2);
    (void)remove(path);
    gpunn_device *other = gpunn_device_open(ON(f->backend), .seed = 2, .realloc_fn = hook_realloc,
                                            .user = &f->memory);
    OK(f->dev, gpunn_model_to(f->model, other)); /* a state moves with its model */
    expect(f, s, FLOATS(1, 2), 2);
    gpunn_device *first = f->dev;
    f->dev = other;
    gpunn_device_close(first);
}

/* Each session counts for itself, on one model, and the model's own states stay; files have those in use. */
static void test_sessions(void **state)
{
    fixture      *f = *state;
    const char   *path = test_path(f, "session.safetensors");
    gpunn_tensor *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(2)));
    FAILS_NULL(f->dev, gpunn_session_create(f->model), GPUNN_ERR_STATE, "no states");
    gpunn_tensor  *s = MADE(f->dev, gpunn_state(f->model, "s", GPUNN_SHAPE(2), fives));
    gpunn_tensor  *steps = MADE(f->dev, gpunn_state(f->model, "steps", GPUNN_SHAPE(0), fives));
    gpunn_tensor  *sum = MADE(f->dev, gpunn_assign(s, gpunn_add(s, x)));
    gpunn_tensor  *outputs[] = {sum, MADE(f->dev, gpunn_assign(steps, gpunn_add_scalar(steps, 1)))};
    float          expected[3] = {5, 5, 5}, added[3] = {0, 1, 10};
    gpunn_session *session[3] = {NULL, MADE(f->dev, gpunn_session_create(f->model)), NULL};
    OK(f->dev, gpunn_use_session(f->model, NULL));
    OK(f->dev, gpunn_set_saved(s, true));
    for (int turn = 0; turn < 9; turn++) {
        const int     who = turn * 2 % 3;
        const float   step[] = {added[who] + 1, added[who] + 1};
        const int64_t count = turn / 3 + 1;
        if (session[who] == NULL && who) session[who] = MADE(f->dev, gpunn_session_create(f->model));
        OK(f->dev, gpunn_use_session(f->model, session[who]));
        OK(f->dev, gpunn_write(x, step, sizeof step));
        OK(f->dev, gpunn_forward(outputs, 2));
        expected[who] += step[0];
        expect(f, sum, FLOATS(expected[who], expected[who]), 2);
        expect(f, s, FLOATS(expected[who], expected[who]), 2);
        expect(f, steps, FLOATS(5 + (float)count), 1);
    }
    const long calls = f->memory.calls;
    for (int who = 0; who < 3; who++) OK(f->dev, gpunn_use_session(f->model, session[who]));
    assert_int_equal(f->memory.calls, calls);
    OK(f->dev, gpunn_save(f->model, path)); /* of session 2 */
    OK(f->dev, gpunn_reset_states(f->model));
    expect(f, s, FLOATS(5, 5), 2);
    OK(f->dev, gpunn_use_session(f->model, session[1]));
    OK(f->dev, gpunn_load(f->model, path));
    expect(f, s, FLOATS(expected[2], expected[2]), 2);
    gpunn_session_destroy(session[1]); /* the one in use */
    expect(f, s, FLOATS(expected[0], expected[0]), 2);
    expect(f, steps, FLOATS(8), 1);
    (void)remove(path);

    float          own[2];
    gpunn_model   *model = MADE(f->dev, gpunn_model_create(f->dev));
    gpunn_tensor  *bound = MADE(f->dev, gpunn_state(model, "bound", GPUNN_SHAPE(2), fives));
    gpunn_session *foreign = MADE(f->dev, gpunn_session_create(model));
    FAILS(f->dev, gpunn_use_session(f->model, foreign), GPUNN_ERR_ARGUMENT, "another model");
    FAILS(f->dev, gpunn_bind(s, own, sizeof own), GPUNN_ERR_STATE, "'s'", "session");
    gpunn_device *other = gpunn_device_open(ON(f->backend), .seed = 2, .realloc_fn = hook_realloc,
                                            .user = &f->memory);
    FAILS(other, gpunn_model_to(f->model, other), GPUNN_ERR_STATE, "sessions");
    gpunn_device_close(other);
    MADE(f->dev, gpunn_state(f->model, "late", GPUNN_SHAPE(1), fives));
    FAILS(f->dev, gpunn_use_session(f->model, session[2]), GPUNN_ERR_STATE, "'late'", "newer");
    if (gpunn_device_type(f->dev) == GPUNN_DEVICE_CPU) {
        OK(f->dev, gpunn_bind(bound, own, sizeof own));
        FAILS(f->dev, gpunn_use_session(model, foreign), GPUNN_ERR_STATE, "'bound'", "unbind");
        OK(f->dev, gpunn_bind(bound, NULL, 0));
    }
    gpunn_model_destroy(model); /* freed with its session */
    gpunn_session_destroy(foreign);
    gpunn_session_destroy(session[2]);
    gpunn_session_destroy(NULL);
}

/* A checkpoint has the states of gpunn_set_saved, and training goes on from them as if nothing had
 * happened. */
static void test_checkpoint(void **state)
{
    fixture         *f = *state;
    const char      *path = test_path(f, "states.ckpt");
    gpunn_tensor    *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(1)));
    gpunn_tensor    *seen = MADE(f->dev, gpunn_state(f->model, "seen", GPUNN_SHAPE(1), fives));
    gpunn_tensor    *w = MADE(f->dev, gpunn_parameter(f->model, "w", GPUNN_SHAPE(1), fives));
    gpunn_tensor    *loss = MADE(f->dev,
                                 gpunn_mean(gpunn_mul(gpunn_mul(w, w), gpunn_add(seen, x)), GPUNN_ALL, false));
    gpunn_optimizer *o = MADE(f->dev, gpunn_sgd(f->model, .lr = 0.01f, .momentum = 0.5f));
    float            at[3][2];
    MADE(f->dev, gpunn_assign(seen, gpunn_add(seen, x), .in_training = true));
    OK(f->dev, gpunn_set_saved(seen, true));
    /* four steps; the last two again; again, with the state not taken along */
    for (int run = 0; run < 3; run++) {
        if (run == 2) OK(f->dev, gpunn_set_saved(seen, false));
        if (run == 2) OK(f->dev, gpunn_checkpoint_save(o, NULL, path));
        for (int step = run ? 2 : 0; step < 4; step++) {
            OK(f->dev, gpunn_write(x, FLOATS((float)step + 1), 4));
            OK(f->dev, gpunn_train_step(o, loss));
            if (run == 0 && step == 1) OK(f->dev, gpunn_checkpoint_save(o, NULL, path));
        }
        OK(f->dev, gpunn_read(w, &at[run][0], 4));
        OK(f->dev, gpunn_read(seen, &at[run][1], 4));
        if (run == 0) OK(f->dev, gpunn_checkpoint_load(o, NULL, path));
        if (run == 0) expect(f, seen, FLOATS(8), 1);
    }
    assert_memory_equal(at[0], at[1], sizeof at[0]);
    assert_true(at[0][1] == 15 && at[2][1] == 22);
    OK(f->dev, gpunn_checkpoint_load(o, NULL, path));
    expect(f, seen, FLOATS(22), 1); /* not in the file: as it is */
    OK(f->dev, gpunn_set_saved(seen, true));
    FAILS(f->dev, gpunn_checkpoint_load(o, NULL, path), GPUNN_ERR_FORMAT, "seen");
    (void)remove(path);
    gpunn_optimizer_destroy(o);
}

/* Runs of a stateful layer are those of one that is given what the run before has left; training goes on,
 * too. */
static void test_stateful(void **state)
{
    fixture *f = *state;
    enum {
        LENGTH = 3,
        HIDDEN = 4,
        N = 2,
        LAYERS = 2,
        COUNT_OF_X = LENGTH * N * 5,
        SIZE = LAYERS * N * HIDDEN
    };
    float input[COUNT_OF_X], h[SIZE] = {0}, c[SIZE] = {0}, one[LENGTH * N * HIDDEN],
                             other[LENGTH * N * HIDDEN];
    gpunn_tensor *weights[4 * LAYERS], *h_n, *c_n;
    gpunn_tensor *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(LENGTH, N, 5)));
    gpunn_tensor *y = MADE(
        f->dev, gpunn_lstm(x, "rnn", .hidden_size = HIDDEN, .num_layers = LAYERS, .stateful = true));
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(y, GPUNN_ALL, false));
    gpunn_tensor *h_0 = MADE(f->dev, gpunn_input(f->model, "h_0", GPUNN_F32, GPUNN_SHAPE(LAYERS, N, HIDDEN)));
    gpunn_tensor *c_0 = MADE(f->dev, gpunn_input(f->model, "c_0", GPUNN_F32, GPUNN_SHAPE(LAYERS, N, HIDDEN)));
    for (int i = 0; i < COUNT(weights); i++) weights[i] = gpunn_parameter_at(f->model, i);
    gpunn_tensor *z = MADE(f->dev,
                           gpunn_lstm(x, NULL, .hidden_size = HIDDEN, .num_layers = LAYERS, .h_0 = h_0,
                                      .c_0 = c_0, .h_n = &h_n, .c_n = &c_n, .weights = weights));
    gpunn_tensor *all[] = {z, h_n, c_n};
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < COUNT_OF_X; i++) input[i] = (float)sin(round * 100 + i);
        OK(f->dev, gpunn_write(x, input, sizeof input));
        OK(f->dev, gpunn_write(h_0, h, sizeof h));
        OK(f->dev, gpunn_write(c_0, c, sizeof c));
        OK(f->dev, gpunn_forward(all, 3));
        OK(f->dev, gpunn_read(z, one, sizeof one));
        OK(f->dev, gpunn_read(h_n, h, sizeof h));
        OK(f->dev, gpunn_read(c_n, c, sizeof c));
        if (round % 2 == 0) {
            run(f, y);
            OK(f->dev, gpunn_read(y, other, sizeof other));
            for (int i = 0; i < COUNT(one); i++) assert_true(fabsf(one[i] - other[i]) <= 1e-6f);
        } else
            OK(f->dev, gpunn_backward(loss));
        expect(f, gpunn_find(f->model, "rnn.h"), h, SIZE);
        expect(f, gpunn_find(f->model, "rnn.c"), c, SIZE);
    }
    FAILS_NULL(f->dev, gpunn_gru(x, "g", .hidden_size = HIDDEN, .h_0 = h_0, .stateful = true),
               GPUNN_ERR_ARGUMENT, "leave them out");
    FAILS_NULL(f->dev, gpunn_gru(x, NULL, .hidden_size = HIDDEN, .stateful = true), GPUNN_ERR_ARGUMENT,
               "give the layer a name");
    gpunn_tensor *any = MADE(f->dev,
                             gpunn_input(f->model, "any", GPUNN_F32, GPUNN_SHAPE(LENGTH, GPUNN_BATCH, 5)));
    FAILS_NULL(f->dev, gpunn_gru(any, "g", .hidden_size = HIDDEN, .stateful = true), GPUNN_ERR_SHAPE,
               "fixed number");
    assert_null(gpunn_find(f->model, "g.h"));
}

/* The same in two directions and with projections. The final states are results too. */
static void test_stateful_projections(void **state)
{
    fixture *f = *state;
    enum { LENGTH = 3, HIDDEN = 5, WIDTH = 2, N = 2, ROWS = 4, PARTS = 5 * ROWS };
    float         input[LENGTH * N * 3], h[ROWS * N * WIDTH] = {0}, c[ROWS * N * HIDDEN] = {0};
    float         one[LENGTH * N * 2 * WIDTH], other[COUNT(one)];
    gpunn_tensor *weights[PARTS], *last[2][2];
    gpunn_tensor *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(LENGTH, N, 3))),
                 *h_0 = MADE(f->dev, gpunn_input(f->model, "h_0", GPUNN_F32, GPUNN_SHAPE(ROWS, N, WIDTH))),
                 *c_0 = MADE(f->dev, gpunn_input(f->model, "c_0", GPUNN_F32, GPUNN_SHAPE(ROWS, N, HIDDEN)));
    gpunn_rnn_args args = {.hidden_size = HIDDEN, .num_layers = 2, .proj_size = WIDTH, .bidirectional = true};
    args.stateful = true, args.h_n = &last[0][0], args.c_n = &last[0][1];
    gpunn_tensor *y = MADE(f->dev, gpunn_lstm_(x, "rnn", args));
    assert_int_equal(gpunn_parameter_count(f->model), PARTS);
    for (int i = 0; i < PARTS; i++) weights[i] = gpunn_parameter_at(f->model, i);
    args.stateful = false, args.h_n = &last[1][0], args.c_n = &last[1][1];
    args.h_0 = h_0, args.c_0 = c_0, args.weights = weights;
    gpunn_tensor *z = MADE(f->dev, gpunn_lstm_(x, NULL, args));
    gpunn_tensor *all[] = {z, last[1][0], last[1][1]}, *own[] = {y, last[0][0], last[0][1]};
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT(input); i++) input[i] = (float)sin(round * 100 + i);
        OK(f->dev, gpunn_write(x, input, sizeof input));
        OK(f->dev, gpunn_write(h_0, h, sizeof h));
        OK(f->dev, gpunn_write(c_0, c, sizeof c));
        OK(f->dev, gpunn_forward(all, 3));
        OK(f->dev, gpunn_read(z, one, sizeof one));
        OK(f->dev, gpunn_read(last[1][0], h, sizeof h));
        OK(f->dev, gpunn_read(last[1][1], c, sizeof c));
        OK(f->dev, gpunn_forward(own, 3));
        OK(f->dev, gpunn_read(y, other, sizeof other));
        for (int i = 0; i < COUNT(one); i++) assert_true(fabsf(one[i] - other[i]) <= 1e-6f);
        expect(f, last[0][0], h, COUNT(h));
        expect(f, last[0][1], c, COUNT(c));
        expect(f, gpunn_find(f->model, "rnn.h"), h, COUNT(h));
        expect(f, gpunn_find(f->model, "rnn.c"), c, COUNT(c));
    }
}

/* Weights computed from parameters: evaluation follows when these change, and gradients reach them. */
static void test_computed_weights(void **state)
{
    enum { LENGTH = 3, N = 2, IN = 4, HIDDEN = 5, GATES = 3 * HIDDEN };
    fixture      *f = *state;
    float         input[LENGTH * N * IN], one[LENGTH * N * HIDDEN], other[COUNT(one)], scaled[GATES * IN];
    float         plain_gradient[GATES * IN], gradient[GATES * IN];
    gpunn_tensor *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(LENGTH, N, IN)));
    gpunn_tensor *y = MADE(f->dev, gpunn_gru(x, "plain", .hidden_size = HIDDEN));
    gpunn_tensor *weights[4], *plain = gpunn_parameter_at(f->model, 0);
    for (int i = 0; i < 4; i++) weights[i] = gpunn_parameter_at(f->model, i);
    gpunn_tensor *base = MADE(f->dev, gpunn_parameter(f->model, "base", GPUNN_SHAPE(GATES, IN), fives)),
                 *scale = MADE(f->dev, gpunn_parameter(f->model, "scale", GPUNN_SHAPE(1), fives));
    weights[0] = MADE(
        f->dev, gpunn_mul(base, gpunn_mul(scale, gpunn_constant(f->model, GPUNN_SHAPE(1), FLOATS(0.5f)))));
    gpunn_tensor *z = MADE(f->dev, gpunn_gru(x, NULL, .hidden_size = HIDDEN, .weights = weights));
    gpunn_tensor *loss[2] = {MADE(f->dev, gpunn_sum(gpunn_square(y), GPUNN_ALL, false)),
                             MADE(f->dev, gpunn_sum(gpunn_square(z), GPUNN_ALL, false))};
    gpunn_tensor *both[] = {y, z};
    for (int i = 0; i < COUNT(input); i++) input[i] = (float)sin(i);
    OK(f->dev, gpunn_write(x, input, sizeof input));
    for (int round = 0; round < 6; round++) {
        float      *values = test_randoms(GATES * IN, (uint32_t)(round / 2), 1);
        const float factor = (float)(1 + round % 2) * 0.25f, twice = 2 * factor;
        OK(f->dev, gpunn_write(base, values, sizeof scaled));
        OK(f->dev, gpunn_write(scale, &twice, sizeof twice));
        for (int i = 0; i < GATES * IN; i++) scaled[i] = factor * values[i];
        OK(f->dev, gpunn_write(plain, scaled, sizeof scaled));
        OK(f->dev, gpunn_forward(both, 2));
        OK(f->dev, gpunn_read(y, one, sizeof one));
        OK(f->dev, gpunn_read(z, other, sizeof other));
        for (int i = 0; i < COUNT(one); i++) assert_true(fabsf(one[i] - other[i]) <= 1e-6f);
        for (int i = 0; i < 2 && round == 3; i++) {
            OK(f->dev, gpunn_zero_grad(f->model));
            OK(f->dev, gpunn_backward(loss[i]));
            OK(f->dev, gpunn_read_grad(i ? base : plain, i ? gradient : plain_gradient, sizeof gradient));
        }
        for (int i = 0; i < GATES * IN && round == 3; i++)
            assert_true(fabsf(gradient[i] - factor * plain_gradient[i]) <= 1e-5f);
        free(values);
    }
    weights[0] = gpunn_add(base, gpunn_rand_like(base));
    FAILS_NULL(f->dev, gpunn_gru(x, NULL, .hidden_size = HIDDEN, .weights = weights), GPUNN_ERR_ARGUMENT,
               "parameter");
    weights[0] = gpunn_constant(f->model, GPUNN_SHAPE(GATES, IN), scaled);
    weights[0] = gpunn_neg(weights[0]); /* of no parameter */
    FAILS_NULL(f->dev, gpunn_gru(x, NULL, .hidden_size = HIDDEN, .weights = weights), GPUNN_ERR_ARGUMENT,
               "parameter");
}

/* A run starts the sequences anew that its mask names, and continues the others: as one that is given their
 * states, with zeros in the rows of the mask. */
static void test_reset(void **state)
{
    fixture *f = *state;
    enum { LENGTH = 2, HIDDEN = 3, N = 3, COUNT_OF_X = LENGTH * N * 2, SIZE = N * HIDDEN };
    static const uint8_t masks[][N] = {{0, 0, 0}, {0, 1, 0}, {1, 0, 1}, {0, 0, 0}, {1, 1, 1}};
    float input[COUNT_OF_X], h[SIZE] = {0}, c[SIZE] = {0}, wanted[LENGTH * SIZE], found[LENGTH * SIZE];
    gpunn_tensor *weights[4], *h_n, *c_n;
    gpunn_tensor *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(LENGTH, N, 2)));
    gpunn_tensor *mask = MADE(f->dev, gpunn_input(f->model, "mask", GPUNN_BOOL, GPUNN_SHAPE(N)));
    gpunn_tensor *y = MADE(f->dev,
                           gpunn_lstm(x, "rnn", .hidden_size = HIDDEN, .stateful = true, .reset = mask));
    gpunn_tensor *h_0 = MADE(f->dev, gpunn_input(f->model, "h_0", GPUNN_F32, GPUNN_SHAPE(1, N, HIDDEN)));
    gpunn_tensor *c_0 = MADE(f->dev, gpunn_input(f->model, "c_0", GPUNN_F32, GPUNN_SHAPE(1, N, HIDDEN)));
    const char   *names[] = {"rnn.weight_ih_l0", "rnn.weight_hh_l0", "rnn.bias_ih_l0", "rnn.bias_hh_l0"};
    for (int i = 0; i < COUNT(names); i++) weights[i] = MADE(f->dev, gpunn_find(f->model, names[i]));
    gpunn_tensor *z = MADE(f->dev, gpunn_lstm(x, NULL, .hidden_size = HIDDEN, .h_0 = h_0, .c_0 = c_0,
                                              .h_n = &h_n, .c_n = &c_n, .weights = weights));
    gpunn_tensor *all[] = {z, h_n, c_n};
    for (int round = 0; round < COUNT(masks); round++) {
        for (int i = 0; i < COUNT_OF_X; i++) input[i] = (float)sin(round * 100 + i);
        for (int i = 0; i < SIZE; i++)
            if (masks[round][i / HIDDEN]) h[i] = c[i] = 0;
        OK(f->dev, gpunn_write(x, input, sizeof input));
        OK(f->dev, gpunn_write(mask, masks[round], sizeof masks[round]));
        OK(f->dev, gpunn_write(h_0, h, sizeof h));
        OK(f->dev, gpunn_write(c_0, c, sizeof c));
        OK(f->dev, gpunn_forward(all, 3));
        OK(f->dev, gpunn_read(z, wanted, sizeof wanted));
        OK(f->dev, gpunn_read(h_n, h, sizeof h));
        OK(f->dev, gpunn_read(c_n, c, sizeof c));
        run(f, y);
        OK(f->dev, gpunn_read(y, found, sizeof found));
        for (int i = 0; i < COUNT(found); i++) assert_true(fabsf(found[i] - wanted[i]) <= 1e-6f);
        expect(f, gpunn_find(f->model, "rnn.h"), h, SIZE);
        expect(f, gpunn_find(f->model, "rnn.c"), c, SIZE);
    }
    FAILS_NULL(f->dev, gpunn_gru(x, "g", .hidden_size = 3, .reset = mask), GPUNN_ERR_ARGUMENT,
               "reset of sequences is for layers with .stateful; set both, or give it a value for each step");
    FAILS_NULL(f->dev, gpunn_gru(x, "g", .hidden_size = 3, .stateful = true, .reset = h_0), GPUNN_ERR_SHAPE,
               "reset is [1, 3, 3]; give [3]");
    assert_null(gpunn_find(f->model, "g.h"));
}

/* Pieces of sequences with resets at their steps give the values of the whole, in training too. */
static void test_reset_steps(void **state)
{
    fixture *f = *state;
    enum { PIECE = 3, LENGTH = 9, HIDDEN = 3, N = 2 };
    static const float mask[N][LENGTH] = {{0, 1, 0, 0, 0, 0, 2, 0, 0}, {0, 0, 1, 1, 0, 0, 0, 0, -1}};
    float              input[N][LENGTH], part[N][PIECE], anew[N][PIECE], wanted[N][LENGTH][HIDDEN];
    const int64_t      length = gpunn_size(f->model, "T");
    gpunn_tensor      *x = MADE(f->dev,
                                gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, length, 1)));
    gpunn_tensor *m = MADE(f->dev, gpunn_input(f->model, "m", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, length)));
    gpunn_tensor *y = MADE(f->dev, gpunn_gru(x, "g", .hidden_size = HIDDEN, .batch_first = true,
                                             .stateful = true, .reset = m, .capacity = 4));
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(y, GPUNN_ALL, false)), *weights[4];
    for (int i = 0; i < COUNT(weights); i++) weights[i] = gpunn_parameter_at(f->model, i);
    gpunn_tensor *whole = MADE(f->dev, gpunn_gru(x, NULL, .hidden_size = HIDDEN, .batch_first = true,
                                                 .reset = m, .weights = weights));
    for (int i = 0; i < N * LENGTH; i++) input[i / LENGTH][i % LENGTH] = (float)sin(i);
    OK(f->dev, gpunn_write_shape(x, input, GPUNN_SHAPE(N, LENGTH, 1)));
    OK(f->dev, gpunn_write_shape(m, mask, GPUNN_SHAPE(N, LENGTH)));
    run(f, whole);
    OK(f->dev, gpunn_read(whole, wanted, sizeof wanted));
    for (int first = 0; first < LENGTH; first += PIECE) {
        float got[N * PIECE * HIDDEN];
        for (int i = 0; i < N; i++) {
            memcpy(part[i], input[i] + first, sizeof part[i]);
            memcpy(anew[i], mask[i] + first, sizeof anew[i]);
        }
        OK(f->dev, gpunn_write_shape(x, part, GPUNN_SHAPE(N, PIECE, 1)));
        OK(f->dev, gpunn_write_shape(m, anew, GPUNN_SHAPE(N, PIECE)));
        OK(f->dev, first == PIECE ? gpunn_backward(loss) : gpunn_forward(&y, 1));
        if (first == PIECE) continue;
        OK(f->dev, gpunn_read(y, got, sizeof got));
        for (int i = 0; i < N * PIECE * HIDDEN; i++)
            assert_true(fabsf(got[i] - wanted[i / PIECE / HIDDEN][first + i / HIDDEN % PIECE][i % HIDDEN]) <=
                        1e-6f);
    }
    FAILS_NULL(f->dev,
               gpunn_gru(x, "b", .hidden_size = 3, .batch_first = true, .bidirectional = true, .reset = m),
               GPUNN_ERR_ARGUMENT, ".reset of steps is not used with bidirectional; leave it out");
    gpunn_tensor *turned = gpunn_permute(m, GPUNN_AXES(1, 0));
    FAILS_NULL(f->dev, gpunn_gru(x, "b", .hidden_size = 3, .batch_first = true, .reset = turned),
               GPUNN_ERR_SHAPE, "reset is [T, batch] and x [batch, T, 1]; give a value for each step");
}

/* Runs of few and many sequences: each is as a run of its own sequence alone, all through. Sequences that a
 * run lacks keep their state; a mask sets it to 0. */
static void test_capacity(void **state)
{
    fixture *f = *state;
    enum { LENGTH = 2, HIDDEN = 3, MOST = 4, COUNT_OF_X = LENGTH * MOST * 2, SIZE = MOST * HIDDEN };
    static const int     counts[] = {2, 4, 1, 3, 4};
    static const uint8_t masks[][MOST] = {{0, 0}, {0, 1, 0, 0}, {0}, {1, 0, 1}, {0, 0, 0, 1}};
    float input[COUNT_OF_X], h[SIZE] = {0}, c[SIZE] = {0}, wanted[LENGTH * SIZE], found[LENGTH * SIZE];
    gpunn_tensor *weights[4], *h_n, *c_n;
    gpunn_tensor *x = MADE(f->dev,
                           gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(LENGTH, GPUNN_BATCH, 2)));
    gpunn_tensor *mask = MADE(f->dev, gpunn_input(f->model, "mask", GPUNN_BOOL, GPUNN_SHAPE(GPUNN_BATCH)));
    gpunn_tensor *y = MADE(f->dev, gpunn_lstm(x, "rnn", .hidden_size = HIDDEN, .stateful = true,
                                              .reset = mask, .capacity = MOST));
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(y, GPUNN_ALL, false));
    gpunn_tensor *h_0 = MADE(f->dev,
                             gpunn_input(f->model, "h_0", GPUNN_F32, GPUNN_SHAPE(1, GPUNN_BATCH, HIDDEN)));
    gpunn_tensor *c_0 = MADE(f->dev,
                             gpunn_input(f->model, "c_0", GPUNN_F32, GPUNN_SHAPE(1, GPUNN_BATCH, HIDDEN)));
    const char   *names[] = {"rnn.weight_ih_l0", "rnn.weight_hh_l0", "rnn.bias_ih_l0", "rnn.bias_hh_l0"};
    for (int i = 0; i < COUNT(names); i++) weights[i] = MADE(f->dev, gpunn_find(f->model, names[i]));
    gpunn_tensor *z = MADE(f->dev, gpunn_lstm(x, NULL, .hidden_size = HIDDEN, .h_0 = h_0, .c_0 = c_0,
                                              .h_n = &h_n, .c_n = &c_n, .weights = weights));
    gpunn_tensor *all[] = {z, h_n, c_n};
    for (int round = 0; round < 2 * COUNT(counts); round++) {
        const int      n = counts[round % COUNT(counts)];
        const uint8_t *reset = masks[round % COUNT(counts)];
        const size_t   bytes = (size_t)(n * HIDDEN) * sizeof *h;
        for (int i = 0; i < COUNT_OF_X; i++) input[i] = (float)sin(round * 100 + i);
        for (int i = 0; i < n * HIDDEN; i++)
            if (reset[i / HIDDEN]) h[i] = c[i] = 0;
        OK(f->dev, gpunn_write(x, input, (size_t)(LENGTH * n * 2) * sizeof *input));
        OK(f->dev, gpunn_write(mask, reset, (size_t)n));
        OK(f->dev, gpunn_write(h_0, h, bytes));
        OK(f->dev, gpunn_write(c_0, c, bytes));
        OK(f->dev, gpunn_forward(all, 3));
        OK(f->dev, gpunn_read(z, wanted, LENGTH * bytes));
        OK(f->dev, gpunn_read(h_n, h, bytes));
        OK(f->dev, gpunn_read(c_n, c, bytes));
        if (round % 3) {
            run(f, y);
            OK(f->dev, gpunn_read(y, found, LENGTH * bytes));
            for (int i = 0; i < LENGTH * n * HIDDEN; i++) assert_true(fabsf(found[i] - wanted[i]) <= 1e-6f);
        } else
            OK(f->dev, gpunn_backward(loss));
        expect(f, gpunn_find(f->model, "rnn.h"), h, SIZE);
        expect(f, gpunn_find(f->model, "rnn.c"), c, SIZE);
    }
    OK(f->dev, gpunn_write(x, FLOATS(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 80));
    OK(f->dev, gpunn_write(mask, "\0\0\0\0\0", 5));
    FAILS(f->dev, gpunn_forward(&y, 1), GPUNN_ERR_SHAPE,
          "the state 'rnn.h' has 4 places along axis 1, but this run assigns 5");
    expect(f, gpunn_find(f->model, "rnn.h"), h, SIZE);
    FAILS_NULL(f->dev, gpunn_gru(x, "g", .hidden_size = 3, .capacity = 4), GPUNN_ERR_ARGUMENT,
               "capacity is for layers with .stateful; set both");
    FAILS_NULL(f->dev, gpunn_gru(x, "g", .hidden_size = 3, .stateful = true, .capacity = -1), GPUNN_ERR_SHAPE,
               "capacity -1");
    FAILS_NULL(f->dev, gpunn_gru(x, "g", .hidden_size = 3, .stateful = true, .reset = h_0, .capacity = 4),
               GPUNN_ERR_SHAPE, "reset is [1, batch, 3]; give [batch]");
    gpunn_tensor *fixed = MADE(f->dev, gpunn_input(f->model, "fixed", GPUNN_F32, GPUNN_SHAPE(LENGTH, 2, 2)));
    FAILS_NULL(f->dev, gpunn_gru(fixed, "g", .hidden_size = 3, .stateful = true, .capacity = 4),
               GPUNN_ERR_SHAPE, "x is [2, 2, 2] and capacity 4");
    assert_null(gpunn_find(f->model, "g.h"));
}

/* Runs of one step, which read the rows of their states in place of the mask: two layers and a varying number
 * of sequences, beside a layer that is given the states. */
static void test_capacity_step(void **state)
{
    fixture *f = *state;
    enum { HIDDEN = 3, MOST = 4, LAYERS = 2, ROUNDS = 7 };
    float         h[LAYERS][MOST][HIDDEN] = {{{0}}}, now[LAYERS * MOST * HIDDEN], x_now[MOST * 2];
    float         wanted[MOST * HIDDEN], found[MOST * HIDDEN];
    gpunn_tensor *weights[4 * LAYERS], *h_n;
    gpunn_tensor *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, 2)));
    gpunn_tensor *mask = MADE(f->dev, gpunn_input(f->model, "mask", GPUNN_I32, GPUNN_SHAPE(GPUNN_BATCH)));
    gpunn_tensor *y = MADE(f->dev,
                           gpunn_gru(x, "rnn", .hidden_size = HIDDEN, .num_layers = LAYERS,
                                     .batch_first = true, .stateful = true, .reset = mask, .capacity = MOST));
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(y, GPUNN_ALL, false));
    gpunn_tensor *h_0 = MADE(
        f->dev, gpunn_input(f->model, "h_0", GPUNN_F32, GPUNN_SHAPE(LAYERS, GPUNN_BATCH, HIDDEN)));
    for (int i = 0; i < COUNT(weights); i++) weights[i] = gpunn_parameter_at(f->model, i);
    gpunn_tensor *z = MADE(f->dev, gpunn_gru(x, NULL, .hidden_size = HIDDEN, .num_layers = LAYERS, .h_0 = h_0,
                                             .batch_first = true, .h_n = &h_n, .weights = weights));
    gpunn_tensor *both[] = {z, h_n};
    for (int round = 0; round < ROUNDS; round++) {
        const int n = 1 + round * 3 % MOST;
        int32_t   reset[MOST];
        for (int i = 0; i < 2 * n; i++) x_now[i] = (float)sin(round * 100 + i);
        for (int i = 0; i < n; i++) reset[i] = (round + i) % 3 == 2 ? -1 : 0;
        for (int i = 0; i < LAYERS * n * HIDDEN; i++)
            now[i] = reset[i / HIDDEN % n] ? 0 : h[i / HIDDEN / n][i / HIDDEN % n][i % HIDDEN];
        OK(f->dev, gpunn_write(x, x_now, (size_t)(2 * n) * sizeof *x_now));
        OK(f->dev, gpunn_write(mask, reset, (size_t)n * sizeof *reset));
        OK(f->dev, gpunn_write(h_0, now, (size_t)(LAYERS * n * HIDDEN) * sizeof *now));
        OK(f->dev, gpunn_forward(both, 2));
        OK(f->dev, gpunn_read(z, wanted, (size_t)(n * HIDDEN) * sizeof *wanted));
        OK(f->dev, gpunn_read(h_n, now, (size_t)(LAYERS * n * HIDDEN) * sizeof *now));
        for (int i = 0; i < LAYERS * n * HIDDEN; i++) h[i / HIDDEN / n][i / HIDDEN % n][i % HIDDEN] = now[i];
        OK(f->dev, round % 2 ? gpunn_backward(loss) : gpunn_forward(&y, 1));
        if (round % 2 == 0) OK(f->dev, gpunn_read(y, found, (size_t)(n * HIDDEN) * sizeof *found));
        for (int i = 0; i < n * HIDDEN && round % 2 == 0; i++)
            assert_true(fabsf(found[i] - wanted[i]) <= 1e-6f);
        expect(f, gpunn_find(f->model, "rnn.h"), h[0][0], LAYERS * MOST * HIDDEN);
    }
}

/* The same for convolutions: blocks of one step for a number of sequences that varies. */
static void test_stream_capacity(void **state)
{
    static const int counts[] = {1, 3, 2, 1, 3};
    fixture         *f = *state;
    float            past[3][2] = {{0}};
    gpunn_tensor    *x = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, 1)));
    gpunn_tensor    *y = MADE(f->dev, gpunn_conv1d(x, "conv", .out_channels = 1, .kernel_size = 3,
                                                   .no_bias = true, .stateful = true, .capacity = 3));
    FAILS_NULL(f->dev, gpunn_conv1d(x, "c", .out_channels = 4, .kernel_size = 1, .capacity = 4),
               GPUNN_ERR_ARGUMENT, "capacity is for .stateful");
    OK(f->dev, gpunn_write(gpunn_find(f->model, "conv.weight"), FLOATS(1, 10, 100), 12));
    for (int round = 0; round < COUNT(counts); round++) {
        float new[3], sum[3];
        for (int i = 0; i < counts[round]; i++) {
            new[i] = (float)(3 * round + i + 1);
            sum[i] = past[i][0] + 10 * past[i][1] + 100 * new[i];
            past[i][0] = past[i][1], past[i][1] = new[i];
        }
        OK(f->dev, gpunn_write(x, new, (size_t)counts[round] * sizeof *new));
        run(f, y);
        expect(f, y, sum, counts[round]);
        expect(f, gpunn_find(f->model, "conv.past"), past[0], 6);
    }
}

/* ---- attention over a cache ---- */
enum { N = 2, HEADS = 4, KV = 2, CAPACITY = 11, E = 4 };

static float noise(int i)
{
    return (float)sin(12.9898 * (i + 1)) * 2;
}

/* By definition: rows are the last of `length`. */
static void reference(const float *q, const float *k, const float *v, int l, const int64_t *lengths,
                      bool causal, float *y)
{
    for (int row = 0; row < N * HEADS * l; row++) {
        const int i = row % l, head = row / l % HEADS, n = row / l / HEADS,
                  kv = (n * KV + head / (HEADS / KV)) * CAPACITY * E;
        const int seen = (int)lengths[n] - (causal ? l - 1 - i : 0);
        double    sum = 0, out[E] = {0};
        for (int j = 0; j < seen; j++) {
            double score = 0;
            for (int e = 0; e < E; e++) score += (double)q[row * E + e] * (double)k[kv + j * E + e];
            score = exp(score / sqrt(E));
            sum += score;
            for (int e = 0; e < E; e++) out[e] += score * (double)v[kv + j * E + e];
        }
        for (int e = 0; e < E; e++) y[row * E + e] = sum > 0 ? (float)(out[e] / sum) : 0;
    }
}

static void test_lengths(void **state)
{
    fixture *f = *state;
    enum { L = 3 };
    static float  q[N * HEADS * L * E], k[N * KV * CAPACITY * E], v[N * KV * CAPACITY * E];
    static float  wanted[N * HEADS * L * E], got[N * HEADS * L * E];
    const int64_t lengths[][N] = {{11, 11}, {3, 7}, {1, 0}, {10, 4}};
    gpunn_tensor *tq = MADE(f->dev,
                            gpunn_input(f->model, "q", GPUNN_F32, GPUNN_SHAPE(N, HEADS, GPUNN_BATCH, E)));
    gpunn_tensor *tk = MADE(f->dev, gpunn_input(f->model, "k", GPUNN_F32, GPUNN_SHAPE(N, KV, CAPACITY, E)));
    gpunn_tensor *tv = MADE(f->dev, gpunn_input(f->model, "v", GPUNN_F32, GPUNN_SHAPE(N, KV, CAPACITY, E)));
    gpunn_tensor *tl = MADE(f->dev, gpunn_input(f->model, "lengths", GPUNN_I64, GPUNN_SHAPE(N)));
    for (int i = 0; i < COUNT(q); i++) q[i] = noise(i);
    for (int i = 0; i < COUNT(k); i++) k[i] = noise(1000 + i), v[i] = noise(2000 + i);
    OK(f->dev, gpunn_write(tk, k, sizeof k));
    OK(f->dev, gpunn_write(tv, v, sizeof v));
    for (int causal = 0; causal < 2; causal++) {
        gpunn_tensor *y = MADE(f->dev, gpunn_scaled_dot_product_attention(tq, tk, tv, .is_causal = causal,
                                                                          .enable_gqa = true, .lengths = tl));
        for (int l = 1; l <= L; l += 2)
            for (int i = 0; i < COUNT(lengths); i++) {
                const size_t bytes = (size_t)(N * HEADS * l * E) * sizeof *q;
                OK(f->dev, gpunn_write(tq, q, bytes));
                OK(f->dev, gpunn_write(tl, lengths[i], sizeof lengths[i]));
                run(f, y);
                OK(f->dev, gpunn_read(y, got, bytes));
                reference(q, k, v, l, lengths[i], causal, wanted);
                for (int j = 0; j < N * HEADS * l * E; j++)
                    if (!(fabsf(got[j] - wanted[j]) <= 2e-5f))
                        fail_msg("causal %d, %d rows, lengths %d, number %d: %g, not %g", causal, l, i, j,
                                 (double)got[j], (double)wanted[j]);
            }
        const int64_t wrong[N] = {3, CAPACITY + 1};
        OK(f->dev, gpunn_write(tl, wrong, sizeof wrong));
        if (f->backend->type == GPUNN_DEVICE_CPU) {
            FAILS(f->dev, gpunn_forward(&y, 1), GPUNN_ERR_ARGUMENT,
                  "length 12 of sample 1 is outside 0 .. 11");
            continue;
        }
        run(f, y);
        OK(f->dev, gpunn_read(y, got, sizeof got));
        assert_true(isfinite(got[0]) && isnan(got[COUNT(got) - 1]));
    }
    gpunn_tensor *three = MADE(f->dev, gpunn_input(f->model, "three", GPUNN_I64, GPUNN_SHAPE(3)));
    FAILS_NULL(f->dev, gpunn_scaled_dot_product_attention(tq, tk, tv, .enable_gqa = true, .lengths = three),
               GPUNN_ERR_SHAPE, ".lengths is [3]");
    FAILS_NULL(f->dev, gpunn_scaled_dot_product_attention(tq, tk, tv, .enable_gqa = true, .lengths = tq),
               GPUNN_ERR_DTYPE, ".lengths is f32");
}

/* Keys and values go to the cache a few rows at a time; the results are those of the whole sequence at
 * once. */
static void test_cache(void **state)
{
    fixture *f = *state;
    enum { WIDTH = 8, LENGTH = 7, HEAD = WIDTH / 2 };
    float         x[LENGTH * WIDTH], whole[LENGTH * WIDTH], parts[LENGTH * WIDTH];
    gpunn_shape   heads = GPUNN_SHAPE(1, GPUNN_BATCH, 3, 2, HEAD), one = GPUNN_SHAPE(1, GPUNN_BATCH, 2, HEAD);
    gpunn_tensor *tx = MADE(f->dev, gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, WIDTH))),
                 *qkv[3], *cache[2];
    gpunn_tensor *at = scalar_input(f, "at", GPUNN_I64), *length = scalar_input(f, "length", GPUNN_I64);
    gpunn_tensor *h = MADE(f->dev, gpunn_reshape(gpunn_linear(tx, "qkv", .out_features = 3 * WIDTH), heads));
    gpunn_tensor *full = MADE(f->dev, gpunn_scaled_dot_product_attention(h, NULL, NULL, .is_causal = true));
    for (int i = 0; i < 3; i++) qkv[i] = MADE(f->dev, gpunn_reshape(gpunn_slice(h, 2, i, i + 1, 1), one));
    for (int i = 0; i < 2; i++) {
        cache[i] = MADE(f->dev, gpunn_state(f->model, i ? "v" : "k", GPUNN_SHAPE(1, LENGTH, 2, HEAD), zeros));
        cache[i] = MADE(f->dev, gpunn_assign_at(cache[i], 1, at, qkv[1 + i]));
    }
    gpunn_tensor *y = MADE(f->dev,
                           gpunn_scaled_dot_product_attention(qkv[0], cache[0], cache[1], .is_causal = true,
                                                              .heads_last = true, .lengths = length));
    for (int i = 0; i < COUNT(x); i++) x[i] = noise(i);
    OK(f->dev, gpunn_write(tx, x, sizeof x));
    run(f, full);
    OK(f->dev, gpunn_read(full, whole, sizeof whole));
    const int steps[] = {3, 1, 2, 1};
    for (int i = 0, done = 0; i < COUNT(steps); done += steps[i++]) {
        const size_t bytes = (size_t)(steps[i] * WIDTH) * sizeof *x;
        OK(f->dev, gpunn_write(tx, x + done * WIDTH, bytes));
        put(f, at, done);
        put(f, length, done + steps[i]);
        run(f, y);
        OK(f->dev, gpunn_read(y, parts + done * WIDTH, bytes));
    }
    for (int i = 0; i < COUNT(x); i++)
        if (!(fabsf(parts[i] - whole[i]) <= 1e-5f))
            fail_msg("number %d: %g, not %g", i, (double)parts[i], (double)whole[i]);
}

/* A step of attention over a cache beside a stream and a count: the same from a spec, again and again, as
 * from its builders. */
static void test_spec(void **state)
{
    fixture           *f = *state;
    static const char *names[] = {"keys", "stream.h", "count"};
    const char        *path = test_path(f, "states.json"), *weights = test_path(f, "states.safetensors");
    gpunn_tensor      *word = MADE(f->dev, gpunn_input(f->model, "word", GPUNN_I64, GPUNN_SHAPE(2, 1)));
    gpunn_tensor      *place = MADE(f->dev, gpunn_input(f->model, "place", GPUNN_I64, GPUNN_SHAPE(1)));
    gpunn_tensor      *x = gpunn_embedding(word, "table", .num_embeddings = 9, .embedding_dim = 4);
    gpunn_tensor      *keys = MADE(f->dev, gpunn_state(f->model, "keys", GPUNN_SHAPE(2, 6, 1, 4), zeros));
    gpunn_tensor      *count = MADE(f->dev, gpunn_state(f->model, "count", GPUNN_SHAPE(1), fives));
    OK(f->dev, gpunn_set_saved(keys, true));
    gpunn_tensor *q = gpunn_reshape(x, GPUNN_SHAPE(2, 1, 1, 4));
    gpunn_tensor *seen = gpunn_assign_at(keys, -3, place,
                                         gpunn_rotary_embedding(q, place, .heads_last = true));
    gpunn_tensor *length = gpunn_cast(gpunn_add_scalar(gpunn_cast(place, GPUNN_F32), 1), GPUNN_I64);
    gpunn_tensor *h = gpunn_scaled_dot_product_attention(q, seen, seen, .heads_last = true,
                                                         .lengths = length);
    h = gpunn_gru(gpunn_reshape(h, GPUNN_SHAPE(1, 2, 4)), "stream", .hidden_size = 3, .stateful = true);
    gpunn_tensor *once = gpunn_assign(count, gpunn_add_scalar(count, 1));
    MADE(f->dev, gpunn_assign(once, gpunn_mul_scalar(once, 2)));
    gpunn_tensor *y = MADE(f->dev, gpunn_mul(h, once));
    gpunn_model  *models[3] = {f->model, NULL, NULL};
    gpunn_tensor *outputs[3] = {y, NULL, NULL};
    OK(f->dev, gpunn_save(f->model, weights));
    for (int i = 1; i < 3; i++) {
        OK(f->dev, gpunn_spec_save(models[i - 1], path));
        models[i] = MADE(f->dev, gpunn_spec_load(f->dev, path));
        outputs[i] = MADE(f->dev, gpunn_spec_output(models[i], 0));
        assert_null(gpunn_spec_output(models[i], 1)); /* assignments are none */
        OK(f->dev, gpunn_load(models[i], weights));
    }
    for (int64_t turn = 0; turn < 5; turn++) {
        float first[12], got[12];
        for (int i = 0; i < 3; i++) {
            const int64_t words[] = {turn, 8 - turn};
            OK(f->dev, gpunn_write(gpunn_find(models[i], "word"), words, sizeof words));
            put(f, gpunn_find(models[i], "place"), turn);
            run(f, outputs[i]);
            OK(f->dev, gpunn_read(outputs[i], i ? got : first, 6 * sizeof *got));
            if (i) assert_memory_equal(got, first, 6 * sizeof *got);
            for (int k = 0; k < COUNT(names) && i; k++) {
                gpunn_tensor *one = gpunn_find(models[0], names[k]), *other = gpunn_find(models[i], names[k]);
                float         a[48], b[48];
                OK(f->dev, gpunn_read(one, a, gpunn_tensor_bytes(one)));
                OK(f->dev, gpunn_read(other, b, gpunn_tensor_bytes(one)));
                assert_memory_equal(a, b, gpunn_tensor_bytes(one));
            }
        }
        assert_true(first[0] == first[0] && first[0] != 0);
    }
    expect(f, gpunn_find(models[2], "count"), FLOATS(222), 1);
    gpunn_model_destroy(models[1]), gpunn_model_destroy(models[2]);
    (void)remove(path), (void)remove(weights);
}

/* What a spec says wrongly of states, each with a word of the sentence. */
static void test_bad_specs(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *entry, *word;
    } bad[] = {
        {"{\"op\": \"assign\", \"inputs\": [\"x\", \"x\"]}", "not a state"},
        {"{\"op\": \"assign\", \"inputs\": [\"gone\", \"x\"]}", "gone"},
        {"{\"op\": \"assign\", \"inputs\": [\"s\"]}", "inputs"},
        {"{\"op\": \"assign\", \"inputs\": [\"s\", \"x\"]}", "must be equal"},
        {"{\"op\": \"assign\", \"inputs\": [\"s\", \"s\"], \"position\": \"x\"}", "i64"},
        {"{\"op\": \"assign\", \"inputs\": [\"s\", \"s\"], \"position\": \"i\", \"axis\": 1}", "axis 1"},
        {"{\"op\": \"assign\", \"inputs\": [\"s\", \"s\"], \"at\": 1}", "\"at\""},
        {"{\"op\": \"state\", \"name\": \"s\", \"shape\": [2]}", "taken"},
        {"{\"op\": \"state\", \"name\": \"t\", \"shape\": [\"N\"]}", "shape"},
        {"{\"op\": \"state\", \"name\": \"t\", \"shape\": [2], \"saved\": 1}", "saved"},
        {"{\"op\": \"state\", \"name\": \"t\", \"shape\": [2], \"lr_scale\": 1}", "lr_scale"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        char text[600];
        (void)snprintf(text, sizeof text,
                       "{\"gpunn_spec\": 1, \"tensors\": [{\"op\": \"input\", \"name\": \"x\", \"shape\": "
                       "[2]}, {\"op\": \"input\", "
                       "\"name\": \"i\", \"dtype\": \"i64\", \"shape\": []}, {\"op\": \"state\", \"name\": "
                       "\"s\", \"shape\": [3]}, %s]}",
                       bad[i].entry);
        assert_null(gpunn_spec_load_memory(f->dev, text, strlen(text)));
        check_sentence(f->dev, gpunn_last_status(f->dev), __FILE__, __LINE__, bad[i].word,
                       "memory:1:", (const char *)NULL);
    }
}

int main(void)
{
    static const struct {
        const char        *name;
        CMUnitTestFunction run;
    } list[] = {{"sum", test_sum},
                {"order", test_order},
                {"places", test_places},
                {"sample", test_sample},
                {"text", test_text},
                {"refusals", test_refusals},
                {"two ways", test_two_ways},
                {"training", test_training},
                {"saved", test_saved},
                {"prepare", test_prepare},
                {"stream", test_stream},
                {"bad streams", test_bad_streams},
                {"stateful", test_stateful},
                {"stateful projections", test_stateful_projections},
                {"computed weights", test_computed_weights},
                {"reset", test_reset},
                {"reset of steps", test_reset_steps},
                {"lengths", test_lengths},
                {"capacity", test_capacity},
                {"capacity and single steps", test_capacity_step},
                {"capacity of a stream", test_stream_capacity},
                {"cache", test_cache},
                {"sessions", test_sessions},
                {"checkpoint", test_checkpoint},
                {"spec", test_spec},
                {"bad specs", test_bad_specs}};
    static struct CMUnitTest tests[64];
    int                      count = 0;
    for (int i = 0; i < COUNT(list); i++)
        count += each_backend(tests + count, list[i].name, list[i].run, NULL);
    count += missing_backends(tests + count);
    return _cmocka_run_group_tests("states", tests, (size_t)count, NULL, NULL);
}
