/* Random numbers as layers: what they are, when they change, and that every backend draws the same. */
#include "../test.h"

enum { WIDTH = 37 };

typedef struct pair {
    gpunn_tensor *x, *uniform, *normal, *loss, *offset;
} pair;

static pair pair_make(gpunn_model *model)
{
    pair p = {.x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, WIDTH))};
    p.offset = gpunn_parameter(model, "offset", GPUNN_SHAPE(WIDTH),
                               (gpunn_init){GPUNN_INIT_CONSTANT, 0.5f, 0});
    p.uniform = gpunn_rand(model, gpunn_tensor_shape(p.x));
    p.normal = gpunn_randn_like(p.x);
    gpunn_tensor *sample = gpunn_add(gpunn_add(p.x, p.uniform), gpunn_mul(p.offset, p.normal));
    p.loss = gpunn_sum(gpunn_dropout(sample, 0.5f), GPUNN_ALL, false);
    (void)gpunn_keep(p.uniform), (void)gpunn_keep(p.normal);
    return p;
}

static void pair_write(gpunn_device *dev, const pair *p, int batch)
{
    float *zeros = calloc((size_t)batch * WIDTH, sizeof *zeros);
    OK(dev, write_floats(p->x, zeros, batch * WIDTH));
    free(zeros);
}

static float *drawn(gpunn_device *dev, gpunn_tensor *t, int count)
{
    float *values = malloc((size_t)count * sizeof *values);
    OK(dev, gpunn_read(t, values, (size_t)count * sizeof *values));
    return values;
}

static float *evaluated(gpunn_device *dev, const pair *p, bool normal, int count)
{
    gpunn_tensor *outputs[] = {p->uniform, p->normal};
    OK(dev, gpunn_forward(outputs, 2));
    return drawn(dev, outputs[normal], count);
}

static int equal_values(const float *a, const float *b, int count)
{
    int equal = 0;
    for (int i = 0; i < count; i++) equal += a[i] == b[i];
    return equal;
}

/* ---- what is drawn ---- */
/* Word i % 4 of Philox4x32-10 for pack i / 4. */
static void words_of(uint64_t seed, uint64_t draw, uint32_t random_stream, uint32_t pack, uint32_t word[4])
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, next[4];
    word[0] = pack, word[1] = random_stream, word[2] = (uint32_t)draw, word[3] = (uint32_t)(draw >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * word[0], b = (uint64_t)0xCD9E8D57u * word[2];
        next[0] = (uint32_t)(b >> 32) ^ word[1] ^ key[0], next[1] = (uint32_t)b;
        next[2] = (uint32_t)(a >> 32) ^ word[3] ^ key[1], next[3] = (uint32_t)a;
        memcpy(word, next, sizeof next);
        key[0] += 0x9E3779B9u, key[1] += 0xBB67AE85u;
    }
}

static double expected(bool normal, uint64_t seed, uint64_t draw, uint32_t random_stream, int i)
{
    uint32_t word[4];
    words_of(seed, draw, random_stream, (uint32_t)i / 4, word);
    if (!normal) return (word[i % 4] >> 8) / 16777216.0;
    const double radius = sqrt(-2 * log((word[i & 2] + 1.0) / 4294967296.0)),
                 angle = word[(i & 2) + 1] * (2 * acos(-1) / 4294967296.0);
    return radius * (i % 2 ? sin(angle) : cos(angle));
}

static void check_drawn(const float *values, int count, bool normal, uint64_t seed, uint64_t draw,
                        uint32_t random_stream)
{
    for (int i = 0; i < count; i++) {
        const double wanted = expected(normal, seed, draw, random_stream, i);
        if (!(fabs(values[i] - wanted) <= (normal ? 4e-6 : 0)))
            fail_msg("%s %d: %.9g instead of %.9g", normal ? "randn" : "rand", i, (double)values[i], wanted);
    }
}

/* By the definition, in training and in evaluation, of several sizes: so they are the same on every
 * backend. */
static void test_values(void **state)
{
    fixture         *f = *state;
    const uint64_t   seed = UINT64_C(0x123456789ABCDEF);
    gpunn_device    *dev = MADE(NULL, gpunn_device_open(ON(f->backend), .seed = seed));
    gpunn_model     *model = MADE(dev, gpunn_model_create(dev));
    pair             p = pair_make(model);
    const int        batches[] = {1, 3, 40};
    gpunn_optimizer *o = MADE(dev, gpunn_sgd(model, .lr = 1e-3f));
    for (int k = 0; k < COUNT(batches); k++)
        for (int normal = 0; normal < 2; normal++) {
            const int count = batches[k] * WIDTH, step = 2 * k + normal + 1;
            pair_write(dev, &p, batches[k]);
            OK(dev, gpunn_train_step(o, p.loss));
            float *values = drawn(dev, normal ? p.normal : p.uniform, count);
            check_drawn(values, count, normal, seed, (uint64_t)step << 24, (uint32_t)normal);
            free(values);
            for (int run = 1; run < 4; run++) {
                values = evaluated(dev, &p, normal, count);
                check_drawn(values, count, normal, seed, ((uint64_t)step << 24) + (uint64_t)run,
                            (uint32_t)normal);
                free(values);
            }
        }
    gpunn_optimizer_destroy(o);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

/* Moments of many, correlation of neighbours, and the share of each of 64 equal parts of the distribution
 * (chi squared). */
static void test_statistics(void **state)
{
    fixture  *f = *state;
    pair      p = pair_make(f->model);
    const int batch = 1500, count = batch * WIDTH;
    pair_write(f->dev, &p, batch);
    for (int normal = 0; normal < 2; normal++) {
        float *x = evaluated(f->dev, &p, normal, count);
        double mean = 0, square = 0, fourth = 0, beside = 0, chi = 0, parts[64] = {0};
        for (int i = 0; i < count; i++) {
            const double centred = normal ? x[i] : (x[i] - 0.5) * sqrt(12),
                         next = i + 1 < count ? (normal ? x[i + 1] : (x[i + 1] - 0.5) * sqrt(12)) : 0;
            const double place = normal ? 0.5 * erfc(-x[i] / sqrt(2)) : x[i];
            assert_true(normal || (x[i] >= 0 && x[i] < 1));
            mean += centred / count, square += centred * centred / count, fourth += pow(centred, 4) / count;
            beside += centred * next / count;
            parts[(int)fmin(place * 64, 63)]++;
        }
        for (int k = 0; k < 64; k++) chi += pow(parts[k] - count / 64.0, 2) / (count / 64.0);
        const double error = 1 / sqrt(count); /* of a mean of numbers with deviation 1 */
        assert_true(fabs(mean) < 4 * error && fabs(square - 1) < 6 * error && fabs(beside) < 4 * error);
        assert_true(fabs(fourth - (normal ? 3 : 1.8)) < (normal ? 40 : 10) * error);
        assert_true(chi > 63 - 4 * sqrt(126) && chi < 63 + 5 * sqrt(126));
        free(x);
    }
}

/* ---- when it changes ---- */
static void test_fresh(void **state)
{
    fixture         *f = *state;
    gpunn_device    *dev = f->dev;
    gpunn_model     *again = MADE(dev, gpunn_model_create(dev));
    pair             p[] = {pair_make(f->model), pair_make(again)};
    gpunn_optimizer *o[] = {MADE(dev, gpunn_adam(f->model)), MADE(dev, gpunn_adam(again))};
    const int        count = 4 * WIDTH;
    for (int i = 0; i < 2; i++) pair_write(dev, &p[i], 4);
    for (int step = 0; step < 5; step++) {
        float *drawn_by[2];
        for (int i = 0; i < 2; i++) {
            OK(dev, gpunn_train_step(o[i], p[i].loss));
            drawn_by[i] = drawn(dev, p[i].normal, count);
        }
        assert_int_equal(equal_values(drawn_by[0], drawn_by[1], count), count);
        float *one = evaluated(dev, &p[0], true, count), *other = evaluated(dev, &p[0], true, count);
        OK(dev, gpunn_backward(p[0].loss, .mode = GPUNN_MODE_EVALUATION)); /* only one of the two models */
        float *third = drawn(dev, p[0].normal, count);
        assert_true(equal_values(one, other, count) < 3 && equal_values(one, drawn_by[0], count) < 3);
        assert_true(equal_values(third, other, count) < 3);
        OK(dev, gpunn_zero_grad(f->model));
        free(drawn_by[0]), free(drawn_by[1]), free(one), free(other), free(third);
    }
    check_same_weights(dev, f->model, dev, again);
    gpunn_optimizer_destroy(o[1]);
    gpunn_model_destroy(again);
    gpunn_optimizer_destroy(o[0]);
}

/* Training goes on with the numbers that it would have drawn. */
static void test_resumed(void **state)
{
    fixture         *f = *state;
    gpunn_device    *dev = f->dev;
    pair             p = pair_make(f->model);
    gpunn_optimizer *o = MADE(dev, gpunn_adam(f->model));
    const char      *path = test_path(f, "checkpoint");
    const int        count = 2 * WIDTH;
    float           *first[2], *second[2];
    pair_write(dev, &p, 2);
    OK(dev, gpunn_train_step(o, p.loss));
    OK(dev, gpunn_checkpoint_save(o, NULL, path));
    for (int round = 0; round < 2; round++) {
        first[round] = evaluated(dev, &p, false, count);
        OK(dev, gpunn_train_step(o, p.loss));
        second[round] = drawn(dev, p.uniform, count);
        OK(dev, gpunn_checkpoint_load(o, NULL, path));
    }
    assert_int_equal(equal_values(first[0], first[1], count), count);
    assert_int_equal(equal_values(second[0], second[1], count), count);
    for (int round = 0; round < 2; round++) free(first[round]), free(second[round]);
    gpunn_optimizer_destroy(o);
    (void)remove(path);
}

/* ---- gradients ---- */
/* Of mean + exp(spread) e by spread: exp(spread) e; nothing goes to what only told the shape. As tensors
 * too. */
static void test_gradients(void **state)
{
    fixture      *f = *state;
    gpunn_device *dev = f->dev;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 8)),
                 *e = gpunn_keep(gpunn_randn_like(x));
    gpunn_tensor *loss = gpunn_sum(gpunn_mul(gpunn_exp(x), e), GPUNN_ALL, false),
                 *by_x = gpunn_keep(gpunn_grad(loss, x));
    gpunn_tensor *shape_only = gpunn_sum(gpunn_rand_like(x), GPUNN_ALL, false);
    float         values[16], noise[16], gradient[16], as_tensor[16];
    MADE(dev, by_x), MADE(dev, gpunn_retain_grad(x)), MADE(dev, shape_only);
    for (int i = 0; i < 16; i++) values[i] = 0.1f * (float)i - 0.7f;
    OK(dev, write_floats(x, values, 16));
    OK(dev, gpunn_backward(loss, .inputs_only = true));
    OK(dev, gpunn_read_grad(x, gradient, sizeof gradient));
    OK(dev, gpunn_read(e, noise, sizeof noise));
    for (int i = 0; i < 16; i++) assert_true(fabs(gradient[i] - exp((double)values[i]) * noise[i]) < 1e-5);
    gpunn_tensor *outputs[] = {by_x, e};
    OK(dev, gpunn_forward(outputs, 2));
    OK(dev, gpunn_read(by_x, as_tensor, sizeof as_tensor));
    OK(dev, gpunn_read(e, noise, sizeof noise));
    for (int i = 0; i < 16; i++) assert_true(fabs(as_tensor[i] - exp((double)values[i]) * noise[i]) < 1e-5);
    FAILS(dev, gpunn_backward(shape_only, .inputs_only = true), GPUNN_ERR_STATE,
          "no gradient flows from the loss");
}

/* ---- rrelu ---- */
enum { SLOPES = 301 };
/* Each of y and of the gradient is 1 or `slope` times what is due, whose number i the layer drew in
 * stream 0. */
static void check_slopes(const float *y, const float *gradient, bool training, uint64_t seed, uint64_t draw)
{
    for (int i = 0; i < 2 * SLOPES; i++) {
        const float x = (float)(i - SLOPES) / 64;
        double      slope = training ? 0.1 + 0.3 * expected(false, seed, draw, 0, i) : 0.25;
        slope = x > 0 ? 1 : slope;
        if (!(fabs(y[i] - slope * (double)x) <= 1e-6) || !(fabs(gradient[i] - slope) <= 1e-6))
            fail_msg("rrelu of %g: %g and slope %g instead of %g", (double)x, (double)y[i],
                     (double)gradient[i], slope);
    }
}

static void test_rrelu(void **state)
{
    fixture       *f = *state;
    const uint64_t seed = 77;
    gpunn_device  *dev = MADE(NULL, gpunn_device_open(ON(f->backend), .seed = seed));
    gpunn_model   *model = MADE(dev, gpunn_model_create(dev));
    gpunn_tensor  *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, SLOPES));
    gpunn_tensor  *y = gpunn_keep(gpunn_rrelu(x, 0.1f, 0.4f)), *loss = gpunn_sum(y, GPUNN_ALL, false);
    float          values[2 * SLOPES], out[2 * SLOPES], gradient[2 * SLOPES];
    MADE(dev, gpunn_retain_grad(x));
    for (int i = 0; i < 2 * SLOPES; i++) values[i] = (float)(i - SLOPES) / 64;
    OK(dev, write_floats(x, values, 2 * SLOPES));
    for (int training = 0; training < 2; training++) {
        OK(dev, gpunn_backward(loss, .inputs_only = true,
                               .mode = training ? GPUNN_MODE_TRAINING : GPUNN_MODE_EVALUATION));
        OK(dev, gpunn_read(y, out, sizeof out));
        OK(dev, gpunn_read_grad(x, gradient, sizeof gradient));
        check_slopes(out, gradient, training, seed, (uint64_t)1 << 24);
    }
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
}

static void test_refused(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *words = gpunn_input(f->model, "words", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, 3));
    assert_null(gpunn_randn_like(words));
    assert_non_null(strstr(gpunn_error(f->dev), "randn_like: x is i64"));
    gpunn_clear_error(f->dev);
    assert_null(gpunn_rand(f->model, GPUNN_SHAPE(GPUNN_BATCH, 0, 3)));
    assert_non_null(strstr(gpunn_error(f->dev), "rand: shape [batch, 0, 3] has a dimension 0"));
    gpunn_clear_error(f->dev);
    assert_null(gpunn_randn(NULL, GPUNN_SHAPE(2)));
    assert_non_null(strstr(gpunn_error(NULL), "randn: the model is NULL"));
    gpunn_clear_error(NULL);
}

int main(void)
{
    static struct CMUnitTest tests[32];
    int                      count = 0;
    count += each_backend(tests + count, "values", test_values, NULL);
    count += each_backend(tests + count, "statistics", test_statistics, NULL);
    count += each_backend(tests + count, "fresh", test_fresh, NULL);
    count += each_backend(tests + count, "resumed", test_resumed, NULL);
    count += each_backend(tests + count, "gradients", test_gradients, NULL);
    count += each_backend(tests + count, "rrelu", test_rrelu, NULL);
    count += each_backend(tests + count, "refused", test_refused, NULL);
    count += missing_backends(tests + count);
    return _cmocka_run_group_tests("random", tests, (size_t)count, NULL, NULL);
}
