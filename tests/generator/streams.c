/* NAME_inference.h of a model with states equals gpunn_forward, block by block. specs/streams.json has a GRU of
 * two layers, an LSTM, a ring of slices with a position, and a sum that is read before and after its
 * assignment. */
#include "../test.h"
#define STREAMS_INFERENCE_IMPLEMENTATION
#include "../../build/generated/streams_inference.h"

enum { BLOCKS = 6, STEPS = 4 * 2 * 6, SUMS = 2 * 6 };

typedef struct outputs {
    float steps[STEPS], sums[SUMS];
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
    gpunn_tensor          *results[] = {gpunn_spec_output(f->model, 0), gpunn_spec_output(f->model, 1)};
    const int64_t          place[2] = {block, 7 - block};
    float                  x[24];
    outputs                got, wanted;
    for (int i = 0; i < 24; i++) x[i] = sinf(1.7f * (float)(24 * block + i));
    OK(f->dev, gpunn_write(gpunn_input_at(f->model, 0), x, sizeof x));
    OK(f->dev, gpunn_write(gpunn_input_at(f->model, 1), place, sizeof place));
    OK(f->dev, gpunn_forward(results, 2));
    OK(f->dev, gpunn_read(results[0], wanted.steps, sizeof wanted.steps));
    OK(f->dev, gpunn_read(results[1], wanted.sums, sizeof wanted.sums));
    assert_true(streams_forward(weights, x, place, got.steps, got.sums, states, &scratch));
    expect(got.steps, wanted.steps, STEPS, block);
    expect(got.sums, wanted.sums, SUMS, block);
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
    assert_false(streams_forward(&weights, x, place, got.steps, got.sums, &states, &scratch));
}

int main(void)
{
    struct CMUnitTest tests[8];
    int               count = each_backend(tests, "blocks", test_blocks, NULL);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(test_position);
    return _cmocka_run_group_tests("streams", tests, (size_t)count, NULL, NULL);
}
