/* A program in which one test breaks the emulated GPU for all that come behind it: test_run.py sees what
 * tests/run.py makes of that. */
#include "../emulator/emulator.h"
#include "../test.h"

static void works(void **state)
{
    fixture      *f = *state;
    const float   value = -1;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(1)), *y = gpunn_relu(x);
    OK(f->dev, write_floats(x, &value, 1));
    OK(f->dev, gpunn_forward(&y, 1));
    OK(f->dev, gpunn_synchronize(f->dev));
}

static void breaks(void **state)
{
    emulator_fail(1, 700); /* cudaErrorIllegalAddress */
    works(state);
}

static void fails(void **state)
{
    (void)state;
    fail();
}

int main(void)
{
    const struct CMUnitTest tests[] = {test_with_device(works),
                                       {"breaks", breaks, fixture_setup, fixture_teardown, NULL},
                                       test_with_device(fails),
                                       test_with_device(breaks),
                                       {"last", works, fixture_setup, fixture_teardown, NULL}};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
