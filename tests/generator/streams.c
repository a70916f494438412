/* NAME_inference.h of a model with states equals gpunn_forward, block by block. specs/streams.json has a GRU
 * of two layers, an LSTM, two streaming convolutions, a ring of slices with a position, and a sum that is
 * read before and after its assignment. */
#include "../test.h"
#define STREAMS_INFERENCE_IMPLEMENTATION
#include "../../build/generated/streams_inference.h"

enum { BLOCKS = 6, STEPS = 4 * 2 * 6, SUMS = 2 * 6, HEARD = 2 * 5 * 4 };

typedef struct outputs {
    float steps[STEPS], sums[SUMS], heard[HEARD];
} outputs;

static void expect(const float *got, const float *wanted, int count, int block)
{
    for (int i = 0; i < count; i++)
        if (!(fabsf(got[i] - wanted[i]) <= 2e-6f * fmaxf(1, fabsf(wanted[i]))))
            fail_msg("block %d: number %d is %g, not %g", block, i, (double)got[i], (double)wanted[i]);
}

/* One block of the sequence through both. */
static void compare(fixture *f, const streams_weights *weights, streams_states *states, int block)
{
    static streams_scratch scratch;
    gpunn_tensor          *results[] = {gpunn_spec_output(f->model, 0), gpunn_spec_output(f->model, 1),
                                        gpunn_spec_output(f->model, 2)};
    const int64_t          place[2] = {block, 7 - block};
    float                  x[24];
    outputs                got, wanted;
    for (int i = 0; i < 24; i++) x[i] = sinf(1.7f * (float)(24 * block + i));
    OK(f->dev, gpunn_write(gpunn_input_at(f->model, 0), x, sizeof x));
    OK(f->dev, gpunn_write(gpunn_input_at(f->model, 1), place, sizeof place));
    OK(f->dev, gpunn_forward(results, 3));
    OK(f->dev, gpunn_read(results[0], wanted.steps, sizeof wanted.steps));
    OK(f->dev, gpunn_read(results[1], wanted.sums, sizeof wanted.sums));
    OK(f->dev, gpunn_read(results[2], wanted.heard, sizeof wanted.heard));
    assert_true(streams_forward(weights, x, place, got.steps, got.sums, got.heard, states, &scratch));
    expect(got.steps, wanted.steps, STEPS, block);
    expect(got.sums, wanted.sums, SUMS, block);
    expect(got.heard, wanted.heard, HEARD, block);
}

static void test_blocks(void **state)
{
    fixture       *f = *state;
    streams_states states;
    gpunn_model_destroy(f->model);
    f->model = MADE(f->dev, gpunn_spec_load(f->dev, "tests/generator/specs/streams.json"));
    int64_t          total = 0;
    streams_weights *weights = (void *)read_weights(f->dev, f->model, &total); /* in the order of the spec */
    assert_int_equal(total * (int64_t)sizeof(float), sizeof *weights);
    for (int stream = 0; stream < 2; stream++) { /* the second begins as the first one did */
        streams_reset(&states);
        OK(f->dev, gpunn_reset_states(f->model));
        for (int block = 0; block < BLOCKS; block++) compare(f, weights, &states, block);
    }
    free(weights);
}

/* A position outside the ring. */
static void test_position(void **state)
{
    static streams_weights weights;
    static streams_scratch scratch;
    const int64_t          place[2] = {0, 8};
    float                  x[24] = {0};
    streams_states         states;
    outputs                got;
    (void)state;
    streams_reset(&states);
    assert_false(streams_forward(&weights, x, place, got.steps, got.sums, got.heard, &states, &scratch));
}

/* The distance to the exact value, in units in the last place of a float; 0 if both are NaN, or below
 * 2^-125. */
static double ulps(float got, double exact)
{
    int exponent;
    if (got != got || exact != exact) return got != got && exact != exact ? 0 : (double)INFINITY;
    (void)frexp(exact, &exponent);
    if (exponent <= -125 && fabsf(got) <= ldexpf(1, -125)) return 0;
    return fabs((double)got - exact) / ldexp(1, exponent - 24);
}

/* sigmoid and tanh of vectors, in each lane, at all sizes of x and beyond them. */
static void test_gates(void **state)
{
    static const float edges[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 87.3f, -87.3f, 88.8f, 1e-38f, 10, -10};
    float              x[STREAMS_WIDTH], s[STREAMS_WIDTH], t[STREAMS_WIDTH];
    (void)state;
    for (int64_t i = 0, n = 100000; i < n; i++) {
        for (int j = 0; j < STREAMS_WIDTH; j++) { /* the bits of floats, both signs in turn */
            const uint32_t bits = (uint32_t)(0x30000000u + (uint64_t)(i * STREAMS_WIDTH + j) * 0x13000000u /
                                                               (uint64_t)(n * STREAMS_WIDTH));
            x[j] = streams_float_of(bits | (uint32_t)(i & 1) << 31);
        }
        if (i < COUNT(edges)) x[i % STREAMS_WIDTH] = edges[i];
        streams_store(s, streams_sigmoids(streams_load(x)));
        streams_store(t, streams_tanhs(streams_load(x)));
        for (int j = 0; j < STREAMS_WIDTH; j++)
            if (!(ulps(s[j], 1 / (1 + exp(-(double)x[j]))) <= 4 && ulps(t[j], tanh((double)x[j])) <= 4))
                fail_msg("sigmoid(%.9g) is %.9g, tanh %.9g", (double)x[j], (double)s[j], (double)t[j]);
    }
}

int main(void)
{
    struct CMUnitTest tests[8];
    int               count = each_backend(tests, "blocks", test_blocks, NULL);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(test_position);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(test_gates);
    return _cmocka_run_group_tests("streams", tests, (size_t)count, NULL, NULL);
}
