/* Building graphs: shape rules, sentences of errors, names, gpunn_expr, and that a failed call leaves nothing
 * behind. No kernel runs here: the device's backend computes nothing. */
#define GPUNN_STATIC /* a copy of its own: it looks inside */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"

#include <setjmp.h>
#include <cmocka.h>

/* ---- a device whose host memory is counted and can fail ---- */
typedef struct memory {
    size_t held;
    long   allocations, fail_at; /* fail_at < 0: never */
} memory;

static void *counted_realloc(void *user, void *ptr, size_t old_size, size_t new_size)
{
    memory *m = (memory *)user;
    if (new_size > old_size && m->allocations++ == m->fail_at) return NULL;
    m->held += new_size - old_size;
    if (new_size != 0) return realloc(ptr, new_size);
    free(ptr);
    return NULL;
}

static void *open_nothing(const gpunn_device_args *args, char *message, size_t size)
{
    (void)message;
    (void)size;
    return args->user;
}

static void close_nothing(void *context)
{
    (void)context;
}

static void tell_nothing(void *context, gpunn_backend_info *info)
{
    (void)context;
    info->type = GPUNN_DEVICE_CPU;
    info->threads = 1;
}

static gpunn_backend nothing = {
    .abi = GPUNN_BACKEND_ABI, .open = open_nothing, .close = close_nothing, .info = tell_nothing};

typedef struct fixture {
    memory        memory;
    gpunn_device *dev;
    gpunn_model  *model;
    gpunn_tensor *image, *rows, *labels, *three; /* [batch, 6, 14, 14], [batch, 20], i64 [batch], [3] */
} fixture;

static int setup(void **state)
{
    fixture *f = (fixture *)calloc(1, sizeof *f);
    f->memory.fail_at = -1;
    f->dev = gpunn_device_open(.realloc_fn = counted_realloc, .user = &f->memory, .backend = &nothing);
    f->model = gpunn_model_create(f->dev);
    f->image = gpunn_input(f->model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 6, 14, 14));
    f->rows = gpunn_input(f->model, "rows", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 20));
    f->labels = gpunn_input(f->model, "labels", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    f->three = gpunn_input(f->model, "three", GPUNN_F32, GPUNN_SHAPE(3));
    gpunn_clear_error(NULL);
    *state = f;
    return f->three ? 0 : -1;
}

static int teardown(void **state)
{
    fixture *f = (fixture *)*state;
    gpunn_model_destroy(f->model);
    gpunn_device_close(f->dev);
    int leaked = f->memory.held != 0;
    free(f);
    return leaked;
}

/* ---- helpers ---- */
#define REFUSED(f, status, sentence, call)                          \
    do {                                                            \
        int tensors_before = (f)->model->tensor_count;              \
        assert_null(call);                                          \
        assert_string_equal(gpunn_error((f)->dev), sentence);       \
        assert_int_equal(gpunn_last_status((f)->dev), status);      \
        assert_int_equal((f)->model->tensor_count, tensors_before); \
        gpunn_clear_error((f)->dev);                                \
    } while (0)

static void check_shape(const fixture *f, const gpunn_tensor *t, gpunn_shape wanted)
{
    if (t == NULL) fail_msg("%s", gpunn_error(f->dev));
    gpunn_shape shape = gpunn_tensor_shape(t);
    assert_memory_equal(&shape, &wanted, sizeof shape);
}

#define B GPUNN_BATCH
#define SHAPE GPUNN_SHAPE
static gpunn_tensor *input(fixture *f, gpunn_shape shape)
{
    char name[32];
    (void)snprintf(name, sizeof name, "input%d", f->model->tensor_count);
    gpunn_tensor *t = gpunn_input(f->model, name, GPUNN_F32, shape);
    if (t == NULL) fail_msg("%s", gpunn_error(f->dev));
    return t;
}

/* ---- inputs, parameters, constants, names ---- */
static void test_inputs(void **state)
{
    fixture *f = (fixture *)*state;
    check_shape(f, gpunn_input(f->model, "scalar", GPUNN_DTYPE_DEFAULT, SHAPE(0)), SHAPE(0));
    assert_int_equal(gpunn_tensor_dtype(gpunn_find(f->model, "scalar")), GPUNN_F32);
    check_shape(f, gpunn_input(f->model, "deep", GPUNN_U8, SHAPE(1, 2, 3, B, 5, 6, 7, 8)),
                SHAPE(1, 2, 3, B, 5, 6, 7, 8));
    REFUSED(f, GPUNN_ERR_SHAPE, "input 'a': shape [3, 0, 4] has a dimension 0; the smallest is 1",
            gpunn_input(f->model, "a", GPUNN_F32, SHAPE(3, 0, 4)));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "input 'a': shape [batch, batch] is not allowed here; dimensions are 1 or more, and one of them "
            "may be GPUNN_BATCH or a multiple of it",
            gpunn_input(f->model, "a", GPUNN_F32, SHAPE(B, B)));
    REFUSED(
        f, GPUNN_ERR_SHAPE,
        "input 'a': shape [2 batch, batch] is not allowed here; dimensions are 1 or more, and one of them "
        "may be GPUNN_BATCH or a multiple of it",
        gpunn_input(f->model, "a", GPUNN_F32, SHAPE(2 * B, B)));
    check_shape(f, gpunn_input(f->model, "doubled", GPUNN_F32, SHAPE(3, 2 * B)), SHAPE(3, 2 * B));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "input 'a': shape [batch, 1073741824, 1073741824] has more than 2^59 elements; use smaller sizes",
            gpunn_input(f->model, "a", GPUNN_F32, SHAPE(B, 1 << 30, 1 << 30)));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "input 'a': shape [9223372036854775807] has more than 2^59 elements; use smaller sizes",
            gpunn_input(f->model, "a", GPUNN_F32, SHAPE(INT64_MAX)));
    REFUSED(f, GPUNN_ERR_DTYPE,
            "input 'a': an input cannot have dtype f16; use f32, f64, i64, i32, u8 or bool",
            gpunn_input(f->model, "a", GPUNN_F16, SHAPE(3)));
    REFUSED(f, GPUNN_ERR_DTYPE,
            "input 'a': an input cannot have dtype no gpunn_dtype; use f32, f64, i64, i32, u8 or bool",
            gpunn_input(f->model, "a", (gpunn_dtype)77, SHAPE(3)));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "input 'rows': the name 'rows' is already taken; names are unique in a model",
            gpunn_input(f->model, "rows", GPUNN_F32, SHAPE(3)));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "input: the name is missing; pass one",
            gpunn_input(f->model, "", GPUNN_F32, SHAPE(3)));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "input: the name is missing; pass one",
            gpunn_input(f->model, NULL, GPUNN_F32, SHAPE(3)));
}

static void test_parameters(void **state)
{
    fixture   *f = (fixture *)*state;
    gpunn_init kaiming = {GPUNN_INIT_KAIMING_UNIFORM, 0, 0}, uniform = {GPUNN_INIT_UNIFORM, 1, -1},
               normal = {GPUNN_INIT_NORMAL, 0, -1};
    gpunn_init none = {GPUNN_INIT_DEFAULT, 0, 0}, wrong = {(gpunn_init_kind)99, 0, 0},
               nan = {GPUNN_INIT_CONSTANT, NAN, 0};
    float         values[6] = {1, 2, 3, 4, 5, 6};
    gpunn_tensor *w = gpunn_parameter(f->model, "w", SHAPE(2, 3), kaiming);
    check_shape(f, w, SHAPE(2, 3));
    check_shape(f, gpunn_constant(f->model, SHAPE(2, 3), values), SHAPE(2, 3));
    assert_int_equal(gpunn_parameter_count(f->model), 1);
    assert_ptr_equal(gpunn_parameter_at(f->model, 0), w);
    assert_null(gpunn_parameter_at(f->model, 1));
    assert_null(gpunn_parameter_at(f->model, -1));
    assert_int_equal(gpunn_tensor_bytes(w), 24);
    REFUSED(f, GPUNN_ERR_SHAPE,
            "parameter 'v': shape [batch] is not allowed here; dimensions are 1 or more, and none may be "
            "GPUNN_BATCH",
            gpunn_parameter(f->model, "v", SHAPE(B), none));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "constant: shape [batch, 3] is not allowed here; dimensions are 1 or more, and none may be "
            "GPUNN_BATCH",
            gpunn_constant(f->model, SHAPE(B, 3), values));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "constant: values is NULL; pass as many floats as the shape has elements",
            gpunn_constant(f->model, SHAPE(3), NULL));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "parameter 'w': the name 'w' is already taken; names are unique in a model",
            gpunn_parameter(f->model, "w", SHAPE(3), none));
    REFUSED(
        f, GPUNN_ERR_ARGUMENT,
        "parameter '__metadata__': the name '__metadata__' is reserved in safetensors files; choose another",
        gpunn_parameter(f->model, "__metadata__", SHAPE(3), none));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "parameter 'v': initial values: a shape of rank below 2 has no fan-in; set .a to the fan-in",
            gpunn_parameter(f->model, "v", SHAPE(3), kaiming));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "parameter 'v': initial values: a is above b; a is the lower bound",
            gpunn_parameter(f->model, "v", SHAPE(3), uniform));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "parameter 'v': initial values: b is negative; it is the standard deviation",
            gpunn_parameter(f->model, "v", SHAPE(3), normal));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "parameter 'v': initial values: the kind is unknown; use one of gpunn_init_kind",
            gpunn_parameter(f->model, "v", SHAPE(3), wrong));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "parameter 'v': initial values: a or b is not finite; use finite numbers",
            gpunn_parameter(f->model, "v", SHAPE(3), nan));
    char long_name[300];
    memset(long_name, 'n', sizeof long_name);
    long_name[256] = 0;
    assert_null(gpunn_parameter(f->model, long_name, SHAPE(3), none));
    assert_non_null(strstr(gpunn_error(f->dev), "is longer than 255 bytes; choose another"));
    gpunn_clear_error(f->dev);
    long_name[255] = 0;
    assert_non_null(gpunn_parameter(f->model, long_name, SHAPE(3), none));
}

static void test_settings(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_init    init = {GPUNN_INIT_CONSTANT, 2, 0}, bad = {GPUNN_INIT_KAIMING_UNIFORM, -1, 0};
    gpunn_tensor *y = gpunn_linear(f->rows, "fc", .out_features = 2), *w = gpunn_find(f->model, "fc.weight");
    assert_non_null(y);
    assert_int_equal(gpunn_set_trainable(w, false), GPUNN_OK);
    assert_int_equal(gpunn_set_lr_scale(w, 0.5f), GPUNN_OK);
    assert_int_equal(gpunn_set_decay(w, false), GPUNN_OK);
    assert_int_equal(gpunn_set_init(w, init), GPUNN_OK);
    assert_false(w->trainable || w->decay);
    assert_float_equal(w->lr_scale, 0.5f, 0);
    assert_int_equal(w->init.kind, GPUNN_INIT_CONSTANT);
    REFUSED(f, GPUNN_ERR_ARGUMENT, "gpunn_set_lr_scale 'fc.weight': scale is -1; use 0 or a positive number",
            gpunn_set_lr_scale(w, -1) == GPUNN_OK ? w : NULL);
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "gpunn_set_trainable 'rows': the tensor is not a parameter; only parameters have this setting",
            gpunn_set_trainable(f->rows, true) == GPUNN_OK ? w : NULL);
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "gpunn_set_decay: the tensor is not a parameter; only parameters have this setting",
            gpunn_set_decay(y, true) == GPUNN_OK ? w : NULL);
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "gpunn_set_init 'fc.weight': initial values: a is negative; it is the fan-in, 0 to take it from "
            "the shape",
            gpunn_set_init(w, bad) == GPUNN_OK ? w : NULL);
    assert_ptr_equal(gpunn_keep(y), y);
    assert_ptr_equal(gpunn_retain_grad(y), y);
    REFUSED(f, GPUNN_ERR_DTYPE, "gpunn_retain_grad: x is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_retain_grad(f->labels));
}

static void test_names(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *y = gpunn_relu(f->rows);
    assert_string_equal(gpunn_tensor_name(y), "");
    assert_string_equal(gpunn_tensor_name(NULL), "");
    assert_ptr_equal(gpunn_set_name(y, "hidden"), y);
    assert_ptr_equal(gpunn_set_name(y, "hidden"), y);
    assert_ptr_equal(gpunn_find(f->model, "hidden"), y);
    assert_ptr_equal(gpunn_set_name(y, "features"), y);
    assert_null(gpunn_find(f->model, "hidden"));
    assert_null(gpunn_find(f->model, NULL));
    assert_null(gpunn_find(NULL, "rows"));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "gpunn_set_name: the name 'rows' is already taken; names are unique in a model",
            gpunn_set_name(y, "rows"));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "gpunn_set_name: the name is missing; pass one", gpunn_set_name(y, ""));
    assert_string_equal(gpunn_tensor_name(y), "features");
    assert_string_equal(gpunn_dtype_name(GPUNN_BF16), "bf16");
    assert_int_equal(gpunn_dtype_size(GPUNN_I64), 8);
    assert_int_equal(gpunn_dtype_size((gpunn_dtype)-1), 0);
    assert_int_equal(gpunn_dtype_size(GPUNN_DTYPE_COUNT), 0);
}

/* NULL in, NULL out; an error is recorded only where there is none yet. */
static void test_null_operands(void **state)
{
    fixture *f = (fixture *)*state;
    REFUSED(f, GPUNN_ERR_ARGUMENT, "add: b is NULL", gpunn_add(f->rows, NULL));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "add: a is NULL", gpunn_add(NULL, f->rows));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "cross_entropy: labels is NULL", gpunn_cross_entropy(f->rows, NULL));
    assert_null(gpunn_linear(NULL, "fc1", .out_features = 3));
    assert_string_equal(gpunn_error(NULL), "linear 'fc1': x is NULL");
    assert_null(gpunn_relu(NULL));
    assert_string_equal(gpunn_error(NULL), "linear 'fc1': x is NULL");
    gpunn_clear_error(NULL);
    assert_null(gpunn_input(NULL, "x", GPUNN_F32, SHAPE(3)));
    assert_string_equal(gpunn_error(NULL), "input 'x': the model is NULL");
    gpunn_clear_error(NULL);
    assert_null(gpunn_add(gpunn_reshape(f->three, SHAPE(4)), f->rows));
    assert_non_null(strstr(gpunn_error(f->dev), "reshape: "));
    gpunn_clear_error(f->dev);
    gpunn_model  *other = gpunn_model_create(f->dev);
    gpunn_tensor *x = gpunn_input(other, "x", GPUNN_F32, SHAPE(3));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "mul: b belongs to another model; all operands must belong to one",
            gpunn_mul(f->three, x));
    REFUSED(f, GPUNN_ERR_DTYPE, "mul: b is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_mul(f->rows, f->labels));
    gpunn_model_destroy(other);
    /* A chain behind a failure has nothing to add to it, here or among the failures without a device. */
    gpunn_clear_error(NULL);
    assert_null(gpunn_relu(gpunn_sqrt(gpunn_add(f->three, input(f, SHAPE(4))))));
    assert_string_equal(gpunn_error(NULL), "");
    gpunn_clear_error(f->dev);
    assert_null(gpunn_relu(NULL));
    assert_string_equal(gpunn_error(NULL), "relu: x is NULL");
    gpunn_clear_error(NULL);
}

/* ---- elementwise ---- */
static void test_broadcasting(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *column = input(f, SHAPE(4, 1)), *scalar = input(f, SHAPE(0)), *four = input(f, SHAPE(B, 4)),
                 *one = input(f, SHAPE(1, 4));
    check_shape(f, gpunn_add(column, f->three), SHAPE(4, 3));
    check_shape(f, gpunn_add(scalar, f->image), SHAPE(B, 6, 14, 14));
    check_shape(f, gpunn_maximum(one, four), SHAPE(B, 4));
    check_shape(f, gpunn_where(column, f->three, scalar), SHAPE(4, 3));
    check_shape(f, gpunn_clamp(four, 0, 1), SHAPE(B, 4));
    REFUSED(f, GPUNN_ERR_SHAPE, "add: shapes [batch, 4] and [3] do not broadcast (axis 1: 4 against 3)",
            gpunn_add(four, f->three));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "sub: shapes [4, 1] and [batch, 4] do not broadcast (axis 0: 4 against batch); the batch "
            "broadcasts only with itself and 1",
            gpunn_sub(column, four));
    gpunn_tensor *twice = gpunn_concat((gpunn_tensor *[]){four, four}, 2, 0);
    check_shape(f, twice, SHAPE(2 * B, 4));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "mul: shapes [2 batch, 4] and [batch, 4] do not broadcast (axis 0: 2 batch against batch); the "
            "batch broadcasts only with itself and 1",
            gpunn_mul(twice, four));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "leaky_relu: an attribute is NaN; pass a number",
            gpunn_leaky_relu(four, NAN));
}

/* ---- layers ---- */
static void test_linear(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *y = gpunn_linear(f->rows, "fc1", .out_features = 50),
                 *w = gpunn_find(f->model, "fc1.weight");
    gpunn_tensor *across = input(f, SHAPE(3, B)), *scalar = input(f, SHAPE(0));
    check_shape(f, y, SHAPE(B, 50));
    check_shape(f, w, SHAPE(50, 20));
    check_shape(f, gpunn_find(f->model, "fc1.bias"), SHAPE(50));
    assert_float_equal(gpunn_find(f->model, "fc1.bias")->init.a, 20, 0);
    check_shape(f, gpunn_linear(f->three, "fc2", .out_features = 5, .no_bias = true), SHAPE(5));
    check_shape(f, gpunn_linear(input(f, SHAPE(2, 7, B, 9)), "fc3", .out_features = 5), SHAPE(2, 7, B, 5));
    assert_null(gpunn_find(f->model, "fc2.bias"));
    assert_string_equal(y->layer, "fc1");
    REFUSED(f, GPUNN_ERR_ARGUMENT, "linear 'fc4': out_features is 0; set .out_features to 1 or more",
            gpunn_linear(f->rows, "fc4"));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "linear 'fc4': out_features is -3; set .out_features to 1 or more",
            gpunn_linear(f->rows, "fc4", .out_features = -3));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "linear 'fc1': the name is taken by another layer; names are unique in a model",
            gpunn_linear(f->rows, "fc1", .out_features = 3));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "linear: the layer needs a name, since the names of its parameters begin with it",
            gpunn_linear(f->rows, "", .out_features = 3));
    REFUSED(f, GPUNN_ERR_DTYPE, "linear 'fc4': x is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_linear(f->labels, "fc4", .out_features = 3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "linear 'fc4': axis 1 of x [3, batch] is the batch; use gpunn_permute or gpunn_reshape so that "
            "this axis has a fixed size",
            gpunn_linear(across, "fc4", .out_features = 3));
    REFUSED(f, GPUNN_ERR_SHAPE, "linear 'fc4': x is [], but [..., features] is needed; gpunn_reshape it",
            gpunn_linear(scalar, "fc4", .out_features = 3));
    /* The weight is taken away again when the bias cannot be made. */
    gpunn_init none = {GPUNN_INIT_DEFAULT, 0, 0};
    assert_non_null(gpunn_parameter(f->model, "fc5.bias", SHAPE(1), none));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "linear 'fc5': the name 'fc5.bias' is already taken; names are unique in a model",
            gpunn_linear(f->rows, "fc5", .out_features = 3));
    assert_null(gpunn_find(f->model, "fc5.weight"));
}

static void test_conv2d(void **state)
{
    fixture *f = (fixture *)*state;
    check_shape(f, gpunn_conv2d(f->image, "c1", .out_channels = 16, .kernel_size = 5), SHAPE(B, 16, 10, 10));
    check_shape(f, gpunn_find(f->model, "c1.weight"), SHAPE(16, 6, 5, 5));
    assert_float_equal(gpunn_find(f->model, "c1.weight")->init.a, 150, 0);
    check_shape(f,
                gpunn_conv2d(f->image, "c2", .out_channels = 9, .kernel_size = 3, .padding = 1, .stride = 2,
                             .groups = 3),
                SHAPE(B, 9, 7, 7));
    check_shape(f, gpunn_find(f->model, "c2.weight"), SHAPE(9, 2, 3, 3));
    check_shape(f,
                gpunn_conv2d(f->image, "c3", .out_channels = 2, .padding = 1, .kernel_shape = {3, 5},
                             .paddings = {0, GPUNN_ZERO}),
                SHAPE(B, 2, 14, 10));
    check_shape(f, gpunn_conv2d(f->image, "c4", .out_channels = 2, .kernel_size = 3, .dilations = {6, 1}),
                SHAPE(B, 2, 2, 12));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "conv2d 'c': out_channels is 0; set .out_channels to 1 or more",
            gpunn_conv2d(f->image, "c", .kernel_size = 3));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "conv2d 'c': kernel_size is 0; set .kernel_size, or .kernel_shape for each axis, to 1 or more",
            gpunn_conv2d(f->image, "c", .out_channels = 3));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "conv2d 'c': kernel_size is 0; set .kernel_size, or .kernel_shape for each axis, to 1 or more",
            gpunn_conv2d(f->image, "c", .out_channels = 3, .kernel_shape = {3}));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "conv2d 'c': stride is -1; set .stride, or .strides for each axis, to 1 or more",
            gpunn_conv2d(f->image, "c", .out_channels = 3, .kernel_size = 3, .stride = -1));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "conv2d 'c': padding is -2; set .padding, or .paddings for each axis, to 0 or more",
            gpunn_conv2d(f->image, "c", .out_channels = 3, .kernel_size = 3, .paddings = {1, -2}));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "conv2d 'c': dilation is 0; set .dilation, or .dilations for each axis, to 1 or more",
            gpunn_conv2d(f->image, "c", .out_channels = 3, .kernel_size = 3, .dilation = GPUNN_ZERO));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "conv2d 'c': kernel_shape[2] is set, but the window has 2 axes; leave it out",
            gpunn_conv2d(f->image, "c", .out_channels = 3, .kernel_shape = {3, 3, 3}));
    REFUSED(
        f, GPUNN_ERR_ARGUMENT,
        "conv2d 'c': groups is 4, but the input has 6 channels and out_channels is 8; it must divide both",
        gpunn_conv2d(f->image, "c", .out_channels = 8, .kernel_size = 3, .groups = 4));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "conv2d 'c': the window spans 17 along axis 2, but the padded input only 14 (input [batch, 6, "
            "14, 14], kernel 9, "
            "dilation 2, padding 0); use a smaller kernel or more padding",
            gpunn_conv2d(f->image, "c", .out_channels = 8, .kernel_size = 9, .dilation = 2));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "conv2d 'c': x is [batch, 20], but [n, channels, height, width] is needed; gpunn_reshape it",
            gpunn_conv2d(f->rows, "c", .out_channels = 8, .kernel_size = 9));
}

static void test_convolutions(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *line = gpunn_input(f->model, "line", GPUNN_F32, GPUNN_SHAPE(B, 6, 20));
    gpunn_tensor *volume = gpunn_input(f->model, "volume", GPUNN_F32, GPUNN_SHAPE(B, 4, 5, 6, 7));
    check_shape(
        f,
        gpunn_conv1d(line, "l1", .out_channels = 8, .kernel_size = 5, .stride = 2, .padding = 1, .groups = 2),
        SHAPE(B, 8, 9));
    check_shape(f, gpunn_find(f->model, "l1.weight"), SHAPE(8, 3, 5));
    check_shape(f, gpunn_find(f->model, "l1.bias"), SHAPE(8));
    check_shape(
        f, gpunn_conv3d(volume, "v1", .out_channels = 3, .kernel_shape = {1, 2, 3}, .strides = {2, 1, 3}),
        SHAPE(B, 3, 3, 5, 2));
    check_shape(f, gpunn_find(f->model, "v1.weight"), SHAPE(3, 4, 1, 2, 3));
    assert_float_equal(gpunn_find(f->model, "v1.bias")->init.a, 24, 0);
    check_shape(f, gpunn_conv_transpose1d(line, "l2", .out_channels = 4, .kernel_size = 5, .groups = 2),
                SHAPE(B, 4, 24));
    check_shape(f,
                gpunn_conv_transpose2d(f->image, "i2", .out_channels = 9, .kernel_size = 3, .stride = 2,
                                       .padding = 1, .output_padding = 1, .groups = 3),
                SHAPE(B, 9, 28, 28));
    check_shape(f, gpunn_find(f->model, "i2.weight"), SHAPE(6, 3, 3, 3));
    check_shape(f, gpunn_find(f->model, "i2.bias"), SHAPE(9));
    assert_float_equal(gpunn_find(f->model, "i2.weight")->init.a, 27, 0);
    assert_float_equal(gpunn_find(f->model, "i2.bias")->init.a, 27, 0);
    check_shape(f,
                gpunn_conv_transpose3d(volume, "v2", .out_channels = 2, .kernel_size = 2,
                                       .strides = {2, 3, 1}, .dilation = 2, .output_paddings = {1, 2, 0}),
                SHAPE(B, 2, 12, 20, 9));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "conv1d 'c': x is [batch, 6, 14, 14], but [n, channels, length] is needed; gpunn_reshape it",
            gpunn_conv1d(f->image, "c", .out_channels = 3, .kernel_size = 3));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "conv1d 'c': strides[1] is set, but the window has 1 axis; leave it out",
            gpunn_conv1d(line, "c", .out_channels = 3, .kernel_size = 3, .strides = {1, 2}));
    check_shape(
        f,
        gpunn_conv2d(f->image, "uneven", .out_channels = 3, .kernel_size = 4, .padding = 1, .padding_end = 2),
        SHAPE(B, 3, 14, 14));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "conv_transpose2d 'c': padding_end is not used by transposed convolutions; leave it out and "
            "gpunn_slice the result",
            gpunn_conv_transpose2d(f->image, "c", .out_channels = 3, .kernel_size = 4, .padding_end = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "conv2d 'c': padding_end is -1; set .padding_end, or .paddings_end for each axis, to 0 or more",
            gpunn_conv2d(f->image, "c", .out_channels = 3, .kernel_size = 4, .padding_end = -1));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "conv3d 'c': output_padding is 1, but only transposed convolutions have one; leave it out",
            gpunn_conv3d(volume, "c", .out_channels = 3, .kernel_size = 3, .output_paddings = {0, 1, 0}));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "conv_transpose2d 'c': output_padding is 2 along axis 3; it must be less than the stride, 2, or "
            "the dilation, 1",
            gpunn_conv_transpose2d(f->image, "c", .out_channels = 3, .kernel_size = 3, .stride = 2,
                                   .output_paddings = {1, 2}));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "conv_transpose2d 'c': output_padding is -1; set .output_padding, or .output_paddings for each "
            "axis, to 0 or more",
            gpunn_conv_transpose2d(f->image, "c", .out_channels = 3, .kernel_size = 3, .output_padding = -1));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "conv_transpose1d 'c': the padding, 11, leaves nothing along axis 2 (input [batch, 6, 20], "
            "kernel 3, dilation 1, "
            "stride 1); use a smaller padding",
            gpunn_conv_transpose1d(line, "c", .out_channels = 3, .kernel_size = 3, .padding = 11));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "conv_transpose3d 'c': groups is 3, but the input has 4 channels and out_channels is 6; it must "
            "divide both",
            gpunn_conv_transpose3d(volume, "c", .out_channels = 6, .kernel_size = 2, .groups = 3));
}

static void test_pools(void **state)
{
    fixture *f = (fixture *)*state;
    check_shape(f, gpunn_max_pool2d(f->image, .kernel_size = 2), SHAPE(B, 6, 7, 7));
    check_shape(f, gpunn_avg_pool2d(f->image, .kernel_size = 3, .stride = 2, .ceil_mode = true),
                SHAPE(B, 6, 7, 7));
    check_shape(f, gpunn_avg_pool2d(f->image, .kernel_size = 3, .strides = {1, 0}, .padding = 1),
                SHAPE(B, 6, 14, 5));
    check_shape(f, gpunn_adaptive_avg_pool2d(f->image, 1, 20), SHAPE(B, 6, 1, 20));
    check_shape(f, gpunn_adaptive_max_pool2d(f->image, 3, 2), SHAPE(B, 6, 3, 2));
    gpunn_tensor *rows = gpunn_reshape(f->image, GPUNN_SHAPE(B, 6, 196)),
                 *volume = gpunn_reshape(f->image, GPUNN_SHAPE(B, 6, 4, 7, 7));
    check_shape(f, gpunn_max_pool1d(rows, .kernel_size = 3, .stride = 2, .padding = 1), SHAPE(B, 6, 98));
    check_shape(f, gpunn_avg_pool1d(rows, .kernel_shape = {4}, .ceil_mode = true), SHAPE(B, 6, 49));
    check_shape(f, gpunn_adaptive_max_pool1d(rows, 5), SHAPE(B, 6, 5));
    check_shape(f, gpunn_adaptive_avg_pool1d(rows, 200), SHAPE(B, 6, 200));
    check_shape(f, gpunn_max_pool3d(volume, .kernel_shape = {2, 3, 1}, .strides = {1, 2, 3}),
                SHAPE(B, 6, 3, 3, 3));
    check_shape(f, gpunn_avg_pool3d(volume, .kernel_size = 2, .paddings = {0, 1, 0}), SHAPE(B, 6, 2, 4, 3));
    check_shape(f, gpunn_adaptive_max_pool3d(volume, 1, 2, 3), SHAPE(B, 6, 1, 2, 3));
    check_shape(f, gpunn_adaptive_avg_pool3d(volume, 4, 8, 7), SHAPE(B, 6, 4, 8, 7));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "max_pool1d: x is [batch, 6, 14, 14], but [n, channels, length] is needed; gpunn_reshape it",
            gpunn_max_pool1d(f->image, .kernel_size = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "avg_pool1d: kernel_shape[1] is set, but the window has 1 axis; leave it out",
            gpunn_avg_pool1d(rows, .kernel_shape = {2, 2}));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "max_pool3d: padding is 1, more than half of the kernel's 1; use a smaller padding",
            gpunn_max_pool3d(volume, .kernel_shape = {2, 2, 1}, .padding = 1));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "adaptive_max_pool3d: the result's size along axis 4 is -1; it must be 1 or more",
            gpunn_adaptive_max_pool3d(volume, 1, 1, -1));
    REFUSED(
        f, GPUNN_ERR_SHAPE,
        "adaptive_avg_pool1d: x is [batch, 6, 14, 14], but [n, channels, length] is needed; gpunn_reshape it",
        gpunn_adaptive_avg_pool1d(f->image, 1));
}

static void test_interpolate(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *rows = gpunn_reshape(f->image, GPUNN_SHAPE(B, 6, 196));
    check_shape(f, gpunn_interpolate(f->image, .scale_factor = 2), SHAPE(B, 6, 28, 28));
    check_shape(f, gpunn_interpolate(f->image, .size = {3, 20}, .mode = GPUNN_INTERPOLATE_LINEAR),
                SHAPE(B, 6, 3, 20));
    check_shape(f, gpunn_interpolate(f->image, .scale_factor = 1.3, .scale_factors = {0, 0.5}),
                SHAPE(B, 6, 18, 7));
    check_shape(f, gpunn_interpolate(rows, .size = {3}, .mode = GPUNN_INTERPOLATE_AREA), SHAPE(B, 6, 3));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "interpolate: size is 0 and scale_factor 0 along axis 2; set .size to 1 to 2^31 - 1 or "
            ".scale_factor to 1e-9 to 1e9",
            gpunn_interpolate(f->image));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "interpolate: size is 7 and scale_factor -1 along axis 3; set .size to 1 to 2^31 - 1 or "
            ".scale_factor to 1e-9 to 1e9",
            gpunn_interpolate(f->image, .size = {7, 7}, .scale_factors = {1, -1}));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "interpolate: scale_factor 0.05 gives size 0 for the 14 along axis 2; use another factor",
            gpunn_interpolate(f->image, .scale_factor = 0.05));
    const int64_t width = gpunn_size(f->model, "W");
    gpunn_tensor *wide = gpunn_input(f->model, "wide", GPUNN_F32, SHAPE(B, 1, 4, width));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "interpolate: scale_factor 0.31 gives no formula for axis 3, which varies; use a multiple of "
            "1/64, or .size",
            gpunn_interpolate(wide, .scale_factor = 0.31));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "interpolate: size[1] or scale_factors[1] is set, but x has 1 spatial axis; leave it out",
            gpunn_interpolate(rows, .size = {3, 3}));
    check_shape(f, gpunn_interpolate(f->image, .scale_factor = 1.5, .mode = GPUNN_INTERPOLATE_CUBIC),
                SHAPE(B, 6, 21, 21));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "interpolate: x is [batch, 6, 196], but GPUNN_INTERPOLATE_CUBIC needs [n, channels, height, "
            "width]; gpunn_reshape it",
            gpunn_interpolate(rows, .size = {3}, .mode = GPUNN_INTERPOLATE_CUBIC));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "interpolate: .align_corners is used by GPUNN_INTERPOLATE_LINEAR and _CUBIC alone; leave it out",
            gpunn_interpolate(f->image, .scale_factor = 2, .align_corners = true));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "interpolate: mode is 9; use one of gpunn_interpolate_mode",
            gpunn_interpolate(f->image, .scale_factor = 2, .mode = (gpunn_interpolate_mode)9));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "max_pool2d: kernel_size is 0; set .kernel_size, or .kernel_shape for each axis, to 1 or more",
            gpunn_max_pool2d(f->image));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "max_pool2d: .count_exclude_pad is for avg_pool1d, not used here; leave it out",
            gpunn_max_pool2d(f->image, .kernel_size = 2, .count_exclude_pad = true));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "max_pool2d: padding is 2, more than half of the kernel's 3; use a smaller padding",
            gpunn_max_pool2d(f->image, .kernel_size = 3, .padding = 2));
    check_shape(f, gpunn_max_pool2d(f->image, .kernel_size = 3, .stride = 2, .padding_end = 1),
                SHAPE(B, 6, 7, 7));
    check_shape(f, gpunn_max_pool2d(f->image, .kernel_size = 3, .stride = 1, .dilations = {4, 1}),
                SHAPE(B, 6, 6, 12));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "avg_pool2d: padding is 2, more than half of the kernel's 2; use a smaller padding",
            gpunn_avg_pool2d(f->image, .kernel_size = 2, .paddings_end = {0, 2}));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "avg_pool2d: dilation is 2, but only max_pool has one; leave it out",
            gpunn_avg_pool2d(f->image, .kernel_size = 2, .dilation = 2));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "max_pool2d: the window spans 16 along axis 2, but the padded input only 14 (input [batch, 6, "
            "14, 14]); use a smaller "
            "kernel or more padding",
            gpunn_max_pool2d(f->image, .kernel_size = 4, .dilation = 5));
    check_shape(f, gpunn_lp_pool2d(f->image, .norm_type = 3, .kernel_size = 2), SHAPE(B, 6, 7, 7));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "lp_pool2d: norm_type is -1; use a positive number",
            gpunn_lp_pool2d(f->image, .norm_type = -1, .kernel_size = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "lp_pool2d: kernel_size is 0; set .kernel_size, or .kernel_shape for each axis, to 1 or more",
            gpunn_lp_pool2d(f->image));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "avg_pool2d: the window spans 15 along axis 2, but the padded input only 14 (input [batch, 6, "
            "14, 14], kernel 15, "
            "dilation 1, padding 0); use a smaller kernel or more padding",
            gpunn_avg_pool2d(f->image, .kernel_size = 15));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "adaptive_avg_pool2d: the result's size along axis 2 is 0; it must be 1 or more",
            gpunn_adaptive_avg_pool2d(f->image, 0, 3));
}

static void test_sampling(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *volume = gpunn_input(f->model, "volume", GPUNN_F32, SHAPE(2, 3, 4, 5, 6));
    gpunn_tensor *grid = gpunn_input(f->model, "grid", GPUNN_F32, SHAPE(B, 7, 8, 2));
    gpunn_tensor *grid3 = gpunn_input(f->model, "grid3", GPUNN_F32, SHAPE(2, 7, 8, 9, 3));
    gpunn_tensor *theta = gpunn_input(f->model, "theta", GPUNN_F32, SHAPE(B, 2, 3));
    gpunn_tensor *theta3 = gpunn_input(f->model, "theta3", GPUNN_F32, SHAPE(2, 3, 4));
    gpunn_tensor *whole = gpunn_input(f->model, "whole", GPUNN_I64, SHAPE(B, 2, 3));
    gpunn_tensor *large = gpunn_input(f->model, "large", GPUNN_F32, SHAPE(B, 1, 1 << 15, (1 << 15) + 1));
    check_shape(f, gpunn_grid_sample(f->image, grid), SHAPE(B, 6, 7, 8));
    check_shape(f, gpunn_grid_sample(volume, grid3, .mode = GPUNN_GRID_NEAREST), SHAPE(2, 3, 7, 8, 9));
    check_shape(f, gpunn_affine_grid(theta, SHAPE(4, 5), false), SHAPE(B, 4, 5, 2));
    check_shape(f, gpunn_affine_grid(theta3, SHAPE(4, 5, 6), true), SHAPE(2, 4, 5, 6, 3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "grid_sample: x is [batch, 6, 14, 14] and grid [2, 7, 8, 9, 3]; the grid of images must have as "
            "many samples, [n, "
            "out_h, out_w, 2]",
            gpunn_grid_sample(f->image, grid3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "grid_sample: x is [2, 3, 4, 5, 6] and grid [batch, 7, 8, 2]; the grid of volumes must have as "
            "many samples, [n, "
            "out_d, out_h, out_w, 3]",
            gpunn_grid_sample(volume, grid));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "grid_sample: x is [batch, 20], but [n, channels, height, width] or [n, channels, depth, height, "
            "width] is needed; "
            "gpunn_reshape it",
            gpunn_grid_sample(f->rows, grid));
    REFUSED(
        f, GPUNN_ERR_SHAPE,
        "grid_sample: a channel of x [batch, 1, 32768, 32769] has more than 2^30 cells; use smaller sizes",
        gpunn_grid_sample(large, grid));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "grid_sample: mode is 2; use one of gpunn_grid_mode",
            gpunn_grid_sample(f->image, grid, .mode = (gpunn_grid_mode)2));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "grid_sample: padding_mode is -1; use one of gpunn_grid_padding",
            gpunn_grid_sample(f->image, grid, .padding_mode = (gpunn_grid_padding)-1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "grid_sample: grid is NULL", gpunn_grid_sample(f->image, NULL));
    gpunn_tensor *boxes = gpunn_input(f->model, "boxes", GPUNN_F32, SHAPE(7, 5));
    check_shape(f, gpunn_roi_align(f->image, boxes, .output_size = 3), SHAPE(7, 6, 3, 3));
    check_shape(f, gpunn_roi_align(f->image, boxes, .output_size = 3, .output_shape = {0, 2}),
                SHAPE(7, 6, 3, 2));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "roi_align: boxes is [batch, 20], but [k, 5] is needed: for each box the sample's number, x1, "
            "y1, x2 and y2",
            gpunn_roi_align(f->image, f->rows, .output_size = 3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "roi_align: x is [2, 3, 4, 5, 6], but [n, channels, height, width] is needed; gpunn_reshape it",
            gpunn_roi_align(volume, boxes, .output_size = 3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "roi_align: a channel of x [batch, 1, 32768, 32769] has more than 2^30 cells; use smaller sizes",
            gpunn_roi_align(large, boxes, .output_size = 3));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "roi_align: output_size is 0; set .output_size, or .output_shape for each axis, to 1 or more",
            gpunn_roi_align(f->image, boxes, .output_shape = {3}));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "roi_align: output_shape[2] is set, but the window has 2 axes; leave it out",
            gpunn_roi_align(f->image, boxes, .output_shape = {3, 2, 1}));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "roi_align: spatial_scale is -1; use a positive number",
            gpunn_roi_align(f->image, boxes, .output_size = 3, .spatial_scale = -1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "roi_align: sampling_ratio is -1; set .sampling_ratio to 0 or more",
            gpunn_roi_align(f->image, boxes, .output_size = 3, .sampling_ratio = -1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "roi_align: boxes is NULL",
            gpunn_roi_align(f->image, NULL, .output_size = 3));
    REFUSED(f, GPUNN_ERR_DTYPE, "affine_grid: theta is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_affine_grid(whole, SHAPE(4, 5), false));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "affine_grid: theta is [batch, 2, 3] and size is [4, 5, 6]; use [n, 2, 3] with two sizes, or [n, "
            "3, 4] with three",
            gpunn_affine_grid(theta, SHAPE(4, 5, 6), false));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "affine_grid: shape [batch, 5] is not allowed here; dimensions are 1 or more, and none may be "
            "GPUNN_BATCH",
            gpunn_affine_grid(theta, SHAPE(B, 5), false));
}

static void test_other_layers(void **state)
{
    fixture *f = (fixture *)*state;
    check_shape(f, gpunn_batch_norm2d(f->image, "bn1"), SHAPE(B, 6, 14, 14));
    check_shape(f, gpunn_find(f->model, "bn1.running_var"), SHAPE(6));
    check_shape(f, gpunn_batch_norm1d(f->rows, "bn2", .no_affine = true), SHAPE(B, 20));
    assert_null(gpunn_find(f->model, "bn2.weight"));
    assert_int_equal(gpunn_parameter_count(f->model), 6);
    assert_int_equal(gpunn_find(f->model, "bn1.weight")->init.kind, GPUNN_INIT_CONSTANT);
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "batch_norm1d 'bn2': the name is taken by another layer; names are unique in a model",
            gpunn_batch_norm1d(f->rows, "bn2"));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "batch_norm1d 'bn': eps is 0; use a positive number",
            gpunn_batch_norm1d(f->rows, "bn", .eps = GPUNN_ZERO));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "batch_norm1d 'bn': momentum is 1.5; use a number from 0 to 1",
            gpunn_batch_norm1d(f->rows, "bn", .momentum = 1.5f));
    REFUSED(
        f, GPUNN_ERR_SHAPE,
        "batch_norm2d 'bn': x is [batch, 20], but [n, channels, height, width] is needed; gpunn_reshape it",
        gpunn_batch_norm2d(f->rows, "bn"));
    gpunn_tensor *volume = gpunn_reshape(f->image, SHAPE(B, 6, 2, 7, 14));
    check_shape(f, gpunn_batch_norm3d(volume, "bn3"), SHAPE(B, 6, 2, 7, 14));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "batch_norm2d 'bn': x is [batch, 6, 2, 7, 14], but [n, channels, height, width] is needed; "
            "gpunn_reshape it",
            gpunn_batch_norm2d(volume, "bn"));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "batch_norm1d 'bn': x is [batch, 6, 14, 14], but [n, channels] or [n, channels, length] is "
            "needed; gpunn_reshape it",
            gpunn_batch_norm1d(f->image, "bn"));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "batch_norm3d 'bn': x is [batch, 6, 14, 14], but [n, channels, depth, height, width] is needed; "
            "gpunn_reshape it",
            gpunn_batch_norm3d(f->image, "bn"));
    check_shape(f, gpunn_group_norm(f->image, "gn1", .num_groups = 3), SHAPE(B, 6, 14, 14));
    check_shape(f, gpunn_find(f->model, "gn1.bias"), SHAPE(6));
    assert_float_equal(gpunn_find(f->model, "gn1.weight")->init.a, 1, 0);
    assert_float_equal(gpunn_group_norm(f->rows, "gn2", .num_groups = 5, .no_affine = true)->attr.eps, 1e-5f,
                       0);
    assert_null(gpunn_find(f->model, "gn2.weight"));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "group_norm 'gn': num_groups is 4, but x [batch, 6, 14, 14] has 6 channels; it must divide them",
            gpunn_group_norm(f->image, "gn", .num_groups = 4));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "group_norm 'gn': num_groups is 0; set .num_groups to 1 or more",
            gpunn_group_norm(f->rows, "gn"));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "group_norm 'gn': eps is -1; use a positive number",
            gpunn_group_norm(f->image, "gn", .num_groups = 2, .eps = -1));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "group_norm 'gn': x is [3], but [n, channels, ...] is needed; gpunn_reshape it",
            gpunn_group_norm(f->three, "gn", .num_groups = 1));
    check_shape(f, gpunn_instance_norm2d(f->image, "in1", .affine = true), SHAPE(B, 6, 14, 14));
    assert_int_equal(gpunn_instance_norm3d(volume, "in2")->attr.groups, 6);
    assert_null(gpunn_find(f->model, "in2.weight"));
    check_shape(f, gpunn_instance_norm1d(gpunn_reshape(f->image, SHAPE(B, 6, 196)), "in3"), SHAPE(B, 6, 196));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "instance_norm2d 'in': x is [batch, 20], but [n, channels, height, width] is needed; "
            "gpunn_reshape it",
            gpunn_instance_norm2d(f->rows, "in"));
    gpunn_tensor *dots = gpunn_reshape(f->rows, SHAPE(B, 20, 1, 1));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "instance_norm2d 'in': x is [batch, 20, 1, 1]: one value per channel cannot be normalised; use "
            "larger images",
            gpunn_instance_norm2d(dots, "in"));
    check_shape(f, gpunn_batch_norm2d(f->image, "bn4", .no_running_stats = true), SHAPE(B, 6, 14, 14));
    check_shape(f, gpunn_batch_norm1d(f->rows, "bn5", .no_running_stats = true, .no_affine = true),
                SHAPE(B, 20));
    check_shape(f, gpunn_find(f->model, "bn4.bias"), SHAPE(6));
    assert_null(gpunn_find(f->model, "bn4.running_mean"));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "batch_norm2d 'bn': .sync needs running statistics; leave out .sync or .no_running_stats",
            gpunn_batch_norm2d(f->image, "bn", .sync = true, .no_running_stats = true));
    check_shape(f, gpunn_instance_norm3d(volume, "in4", .track_running_stats = true), SHAPE(B, 6, 2, 7, 14));
    check_shape(f, gpunn_find(f->model, "in4.running_var"), SHAPE(6));
    assert_null(gpunn_find(f->model, "in4.weight"));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "instance_norm2d 'in': momentum is 1.5; use a number from 0 to 1",
            gpunn_instance_norm2d(f->image, "in", .track_running_stats = true, .momentum = 1.5f));
    check_shape(f, gpunn_embedding(f->labels, "words", .num_embeddings = 9, .embedding_dim = 20),
                SHAPE(B, 20));
    check_shape(f, gpunn_find(f->model, "words.weight"), SHAPE(9, 20));
    assert_float_equal(gpunn_find(f->model, "words.weight")->init.b, 1, 0);
    check_shape(f, gpunn_linear(f->rows, "tied", .weight = gpunn_find(f->model, "words.weight")),
                SHAPE(B, 9));
    check_shape(f, gpunn_find(f->model, "tied.bias"), SHAPE(9));
    assert_null(gpunn_find(f->model, "tied.weight"));
    assert_int_equal(
        gpunn_embedding(f->labels, "w1", .num_embeddings = 9, .embedding_dim = 2)->attr.ignore_index, -1);
    assert_int_equal(
        gpunn_embedding(f->labels, "w2", .num_embeddings = 9, .embedding_dim = 2, .padding_idx = GPUNN_ZERO)
            ->attr.ignore_index,
        0);
    assert_int_equal(
        gpunn_embedding(f->labels, "w3", .weight = gpunn_find(f->model, "words.weight"), .padding_idx = -1)
            ->attr.ignore_index,
        8);
    assert_int_equal(
        gpunn_embedding(f->labels, "w4", .num_embeddings = 9, .embedding_dim = 2, .padding_idx = -9)
            ->attr.ignore_index,
        0);
    assert_int_equal(
        gpunn_embedding(f->labels, "w5", .num_embeddings = 9, .embedding_dim = 2, .padding_idx = 8)
            ->attr.ignore_index,
        8);
    REFUSED(f, GPUNN_ERR_DTYPE, "embedding 'e': tokens is f32, but integers are needed; use i64 or i32",
            gpunn_embedding(f->rows, "e", .num_embeddings = 9, .embedding_dim = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "embedding 'words': the name is taken by another layer; names are unique in a model",
            gpunn_embedding(f->labels, "words", .num_embeddings = 9, .embedding_dim = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "embedding 'e': num_embeddings is 0; set .num_embeddings to 1 or more",
            gpunn_embedding(f->labels, "e", .embedding_dim = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "embedding 'e': padding_idx is 9, but there are 9 rows; use -9 to 8",
            gpunn_embedding(f->labels, "e", .num_embeddings = 9, .embedding_dim = 2, .padding_idx = 9));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "embedding 'e': padding_idx is -10, but there are 9 rows; use -9 to 8",
            gpunn_embedding(f->labels, "e", .num_embeddings = 9, .embedding_dim = 2, .padding_idx = -10));
    REFUSED(
        f, GPUNN_ERR_SHAPE,
        "embedding 'e': .weight is [9, 20], but [num_embeddings, embedding_dim] is needed, where "
        "embedding_dim is 2",
        gpunn_embedding(f->labels, "e", .embedding_dim = 2, .weight = gpunn_find(f->model, "words.weight")));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "linear 'l': .weight is [9, 20], but [out_features, x's features] is needed, where x's features "
            "is 14",
            gpunn_linear(f->image, "l", .weight = gpunn_find(f->model, "words.weight")));
    REFUSED(
        f, GPUNN_ERR_SHAPE,
        "linear 'l': .weight is [9, 20], but [out_features, x's features] is needed, where out_features is 8",
        gpunn_linear(f->rows, "l", .out_features = 8, .weight = gpunn_find(f->model, "words.weight")));
    gpunn_tensor *computed = gpunn_neg(gpunn_find(f->model, "words.weight"));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "linear 'l': .weight is not a parameter; use gpunn_matmul with .transpose_b",
            gpunn_linear(f->rows, "l", .weight = computed));
    check_shape(f, gpunn_layer_norm(f->rows, "ln1"), SHAPE(B, 20));
    check_shape(f, gpunn_layer_norm(f->image, "ln2", .dims = 3), SHAPE(B, 6, 14, 14));
    check_shape(f, gpunn_find(f->model, "ln2.weight"), SHAPE(6, 14, 14));
    check_shape(f, gpunn_find(f->model, "ln2.bias"), SHAPE(6, 14, 14));
    assert_float_equal(gpunn_find(f->model, "ln2.weight")->init.a, 1, 0);
    assert_float_equal(gpunn_find(f->model, "ln2.bias")->init.a, 0, 0);
    assert_int_equal(gpunn_layer_norm(f->image, "ln3", .dims = 2, .no_bias = true)->attr.axis, 2);
    check_shape(f, gpunn_find(f->model, "ln3.weight"), SHAPE(14, 14));
    assert_null(gpunn_find(f->model, "ln3.bias"));
    check_shape(f, gpunn_rms_norm(f->image, "rms1"), SHAPE(B, 6, 14, 14));
    check_shape(f, gpunn_find(f->model, "rms1.weight"), SHAPE(14));
    assert_null(gpunn_find(f->model, "rms1.bias"));
    assert_float_equal(gpunn_rms_norm(f->three, "rms2", .no_affine = true)->attr.eps, 1.1920929e-7f, 0);
    assert_null(gpunn_find(f->model, "rms2.weight"));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "layer_norm: the layer needs a name, since the names of its parameters begin with it",
            gpunn_layer_norm(f->rows, ""));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "rms_norm 'ln1': the name is taken by another layer; names are unique in a model",
            gpunn_rms_norm(f->rows, "ln1"));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "layer_norm 'ln': dims is 3, but x is [batch, 20]; use a number from 1 to its rank, 2",
            gpunn_layer_norm(f->rows, "ln", .dims = 3));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "rms_norm 'ln': dims is 0; set .dims to 1 or more",
            gpunn_rms_norm(f->rows, "ln", .dims = GPUNN_ZERO));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "layer_norm 'ln': axis 0 of x [batch, 20] is the batch; use gpunn_permute or gpunn_reshape so "
            "that this axis has a fixed size",
            gpunn_layer_norm(f->rows, "ln", .dims = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "layer_norm 'ln': eps is -1; use a positive number",
            gpunn_layer_norm(f->rows, "ln", .eps = -1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "rms_norm 'ln': .no_bias is for layer_norm, not used here; leave it out",
            gpunn_rms_norm(f->rows, "ln", .no_bias = true));
    check_shape(f, gpunn_dropout(f->rows, 0.5f), SHAPE(B, 20));
    assert_int_equal(f->model->random_streams, 1);
    REFUSED(f, GPUNN_ERR_ARGUMENT, "dropout: p is 1.5; use a probability from 0 to 1",
            gpunn_dropout(f->rows, 1.5f));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "dropout: p is nan; use a probability from 0 to 1",
            gpunn_dropout(f->rows, NAN));
    check_shape(f, gpunn_rand(f->model, SHAPE(2 * B, 3)), SHAPE(2 * B, 3));
    assert_int_equal(f->model->random_streams, 2);
    check_shape(f, gpunn_rrelu(f->rows, 0.125f, 0.125f), SHAPE(B, 20));
    const float slopes[][2] = {{0.5f, 0.25f}, {0.25f, NAN}, {-INFINITY, 0.25f}, {0.5f, INFINITY}};
    const char *told[] = {"0.5 to 0.25", "0.25 to nan", "-inf to 0.25", "0.5 to inf"};
    for (int i = 0; i < 4; i++) {
        char sentence[128];
        (void)snprintf(sentence, sizeof sentence,
                       "rrelu: the slopes go from %s; use two numbers, the smaller one first", told[i]);
        REFUSED(f, GPUNN_ERR_ARGUMENT, sentence, gpunn_rrelu(f->rows, slopes[i][0], slopes[i][1]));
    }
    check_shape(f, gpunn_prelu(f->image, "p1", 0, 0), SHAPE(B, 6, 14, 14));
    check_shape(f, gpunn_prelu(f->image, "p2", 6, 0.1f), SHAPE(B, 6, 14, 14));
    check_shape(f, gpunn_prelu(f->rows, "p3", 20, 0.1f), SHAPE(B, 20));
    check_shape(f, gpunn_find(f->model, "p2.weight"), SHAPE(6));
    assert_float_equal(gpunn_find(f->model, "p1.weight")->init.a, 0.25, 0);
    REFUSED(
        f, GPUNN_ERR_SHAPE,
        "prelu 'p': num_parameters is 5, but must be 1 or the channels of axis 1 (input [batch, 6, 14, 14])",
        gpunn_prelu(f->image, "p", 5, 0));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "prelu 'p1': the name is taken by another layer; names are unique in a model",
            gpunn_prelu(f->image, "p1", 0, 0));
}

static void test_recurrent(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *steps = input(f, SHAPE(5, B, 4)), *sequences = input(f, SHAPE(B, 5, 4)), *h, *c;
    gpunn_tensor *start = input(f, SHAPE(4, B, 3)), *doubled[] = {start, start};
    gpunn_tensor *seven = gpunn_input(f->model, "seven", GPUNN_I32, SHAPE(7));
    check_shape(f, gpunn_lstm(steps, "a", .hidden_size = 3), SHAPE(5, B, 3));
    check_shape(f, gpunn_find(f->model, "a.weight_ih_l0"), SHAPE(12, 4));
    check_shape(f, gpunn_find(f->model, "a.weight_hh_l0"), SHAPE(12, 3));
    check_shape(f, gpunn_find(f->model, "a.bias_hh_l0"), SHAPE(12));
    assert_float_equal(gpunn_find(f->model, "a.bias_ih_l0")->init.b, 1 / sqrtf(3), 0);
    assert_float_equal(gpunn_find(f->model, "a.weight_ih_l0")->init.a, -1 / sqrtf(3), 0);
    check_shape(f,
                gpunn_gru(sequences, "b", .hidden_size = 3, .num_layers = 2, .batch_first = true,
                          .bidirectional = true, .dropout = 0.5f, .h_0 = start, .h_n = &h,
                          .lengths = f->labels),
                SHAPE(B, 5, 6));
    check_shape(f, h, SHAPE(4, B, 3));
    check_shape(f, gpunn_find(f->model, "b.weight_ih_l1_reverse"), SHAPE(9, 6));
    check_shape(f, gpunn_lstm(steps, "states", .hidden_size = 3, .states = true, .no_bias = true),
                SHAPE(7, B, 3));
    assert_null(gpunn_find(f->model, "states.bias_ih_l0"));
    gpunn_tensor *shared[] = {gpunn_find(f->model, "a.weight_ih_l0"), gpunn_find(f->model, "a.weight_hh_l0"),
                              gpunn_find(f->model, "a.bias_ih_l0"), gpunn_find(f->model, "a.bias_hh_l0")};
    const int     parameters = gpunn_parameter_count(f->model);
    check_shape(f, gpunn_lstm(steps, NULL, .hidden_size = 3, .weights = shared), SHAPE(5, B, 3));
    assert_int_equal(gpunn_parameter_count(f->model), parameters);
    REFUSED(f, GPUNN_ERR_SHAPE, "gru: weight_ih is [12, 4], but [9, 4] is needed",
            gpunn_gru(steps, NULL, .hidden_size = 3, .weights = shared));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "gru: .weights[0] is not a parameter; pass another layer's parameters",
            gpunn_gru(steps, NULL, .hidden_size = 3, .no_bias = true, .weights = doubled));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "lstm 'a': the name is taken by another layer; names are unique in a model",
            gpunn_lstm(steps, "a", .hidden_size = 3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "lstm 'l': x is [batch, 20], but [length, n, features] is needed; gpunn_reshape it",
            gpunn_lstm(f->rows, "l", .hidden_size = 3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "rnn 'l': axis 0 of x [batch, 5, 4] is the batch, but should be the length; set .batch_first",
            gpunn_rnn(sequences, "l", .hidden_size = 3));
    REFUSED(
        f, GPUNN_ERR_SHAPE,
        "rnn 'l': axis 1 of x [5, batch, 4] is the batch, but should be the length; leave out .batch_first",
        gpunn_rnn(steps, "l", .hidden_size = 3, .batch_first = true));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "rnn 'l': hidden_size is 0; set .hidden_size to 1 or more",
            gpunn_rnn(steps, "l"));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "rnn 'l': num_layers is -1; use 1 to 64",
            gpunn_rnn(steps, "l", .hidden_size = 3, .num_layers = -1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "rnn 'l': dropout is 2; use a probability from 0 to 1",
            gpunn_rnn(steps, "l", .hidden_size = 3, .num_layers = 2, .dropout = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "rnn 'l': .dropout is not used with one layer, since it acts between layers; leave it out",
            gpunn_rnn(steps, "l", .hidden_size = 3, .dropout = 0.5f));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "gru 'l': .relu is not used by this layer; leave it out",
            gpunn_gru(steps, "l", .hidden_size = 3, .relu = true));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "gru 'l': .c_n is not used by this layer; leave it out",
            gpunn_gru(steps, "l", .hidden_size = 3, .c_n = &c));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "gru 'l': .states is not used with several layers, batch_first, h_n or c_n; leave it out",
            gpunn_gru(steps, "l", .hidden_size = 3, .states = true, .h_n = &h));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "lstm 'l': .states is not used with several layers, batch_first, h_n or c_n; leave it out",
            gpunn_lstm(steps, "l", .hidden_size = 3, .states = true, .c_n = &c));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "gru 'l': .states is not used with several layers, batch_first, h_n or c_n; leave it out",
            gpunn_gru(steps, "l", .hidden_size = 3, .states = true, .num_layers = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "gru 'l': .states is not used with several layers, batch_first, h_n or c_n; leave it out",
            gpunn_gru(sequences, "l", .hidden_size = 3, .states = true, .batch_first = true));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "lstm 'l': .h_0 is [4, batch, 3], but [num_layers * directions, n, hidden_size], [1, batch, 3], "
            "is needed",
            gpunn_lstm(steps, "l", .hidden_size = 3, .h_0 = start, .c_n = &c));
    assert_null(c);
    gpunn_tensor *narrow[] = {shared[0], gpunn_parameter(f->model, "narrow", SHAPE(12, 2), (gpunn_init){0}),
                              shared[2], shared[3],
                              gpunn_parameter(f->model, "hr", SHAPE(2, 3), (gpunn_init){0})};
    check_shape(f,
                gpunn_lstm(sequences, "p", .hidden_size = 3, .proj_size = 2, .batch_first = true,
                           .bidirectional = true, .num_layers = 2, .h_n = &h, .c_n = &c),
                SHAPE(B, 5, 4));
    check_shape(f, h, SHAPE(4, B, 2));
    check_shape(f, c, SHAPE(4, B, 3));
    check_shape(f, gpunn_find(f->model, "p.weight_hr_l1_reverse"), SHAPE(2, 3));
    check_shape(f, gpunn_find(f->model, "p.weight_ih_l1"), SHAPE(12, 4));
    check_shape(f, gpunn_find(f->model, "p.weight_hh_l0"), SHAPE(12, 2));
    check_shape(f, gpunn_lstm(steps, NULL, .hidden_size = 3, .proj_size = 2, .weights = narrow),
                SHAPE(5, B, 2));
    const int before = gpunn_parameter_count(f->model);
    REFUSED(f, GPUNN_ERR_ARGUMENT, "gru 'l': .proj_size is not used by this layer; leave it out",
            gpunn_gru(steps, "l", .hidden_size = 3, .proj_size = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "lstm 'l': .states is not used with proj_size; h_n and c_n are; leave it out",
            gpunn_lstm(steps, "l", .hidden_size = 3, .proj_size = 2, .states = true));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "lstm 'l': proj_size is 3 and hidden_size 3; use 1 to hidden_size - 1, or 0 for none",
            gpunn_lstm(steps, "l", .hidden_size = 3, .proj_size = 3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "lstm 'l': .h_0 is [4, batch, 3], but [num_layers * directions, n, proj_size], [1, batch, 2], is "
            "needed",
            gpunn_lstm(steps, "l", .hidden_size = 3, .proj_size = 2, .h_0 = start));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "lstm: .weights[4] is [12], but weight_hr, [proj_size, hidden_size], [2, 3], is needed",
            gpunn_lstm(steps, NULL, .hidden_size = 3, .proj_size = 2,
                       .weights = (gpunn_tensor *[]){shared[0], narrow[1], shared[2], shared[3], shared[2]}));
    assert_int_equal(gpunn_parameter_count(f->model), before);
    REFUSED(f, GPUNN_ERR_DTYPE, "lstm 'l': lengths is f32; use i64 or i32",
            gpunn_lstm(steps, "l", .hidden_size = 3, .lengths = f->three));
    REFUSED(f, GPUNN_ERR_SHAPE, "lstm 'l': lengths is [7], but [batch] is needed",
            gpunn_lstm(steps, "l", .hidden_size = 3, .lengths = seven));
    gpunn_tensor *const h_1 = gpunn_lstm_cell(f->rows, "cell", .hidden_size = 3, .c_n = &c);
    check_shape(f, h_1, SHAPE(B, 3));
    check_shape(f, c, SHAPE(B, 3));
    gpunn_tensor *const cell[] = {gpunn_find(f->model, "cell.weight_ih"),
                                  gpunn_find(f->model, "cell.weight_hh"),
                                  gpunn_find(f->model, "cell.bias_ih"), gpunn_find(f->model, "cell.bias_hh")};
    check_shape(f, gpunn_lstm_cell(f->rows, NULL, .hidden_size = 3, .weights = cell, .h = h_1, .c = c),
                SHAPE(B, 3));
    REFUSED(f, GPUNN_ERR_SHAPE, "lstm 'l': .c is [batch, 20], but [n, hidden_size], [batch, 3], is needed",
            gpunn_lstm_cell(f->rows, "l", .hidden_size = 3, .c = f->rows, .c_n = &c));
    assert_null(c);
    REFUSED(f, GPUNN_ERR_ARGUMENT, "gru 'l': .c_n is not used by this layer; leave it out",
            gpunn_gru_cell(f->rows, "l", .hidden_size = 3, .c_n = &c));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "rnn 'l': hidden_size is 0; set .hidden_size to 1 or more",
            gpunn_rnn_cell(f->rows, "l"));
    REFUSED(f, GPUNN_ERR_SHAPE, "rnn 'l': x is [batch, 5, 4], but [n, features] is needed; gpunn_reshape it",
            gpunn_rnn_cell(sequences, "l", .hidden_size = 3));
}

/* ---- shapes ---- */
static void test_reshape(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *middle = input(f, SHAPE(3, B, 4));
    check_shape(f, gpunn_reshape(f->image, SHAPE(B, 1176)), SHAPE(B, 1176));
    check_shape(f, gpunn_reshape(f->rows, SHAPE(4, 5 * B)), SHAPE(4, 5 * B));
    check_shape(f, gpunn_reshape(f->labels, SHAPE(B, 1)), SHAPE(B, 1));
    assert_int_equal(gpunn_tensor_dtype(gpunn_reshape(f->labels, SHAPE(B, 1))), GPUNN_I64);
    check_shape(f, gpunn_reshape(input(f, SHAPE(1, 1)), SHAPE(0)), SHAPE(0));
    check_shape(f, gpunn_flatten(f->image), SHAPE(B, 1176));
    check_shape(f, gpunn_flatten(middle), SHAPE(3, 4 * B));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "reshape: [batch, 21] does not hold as many elements as [batch, 20]; GPUNN_BATCH is the size of "
            "the batch, not an inferred size",
            gpunn_reshape(f->rows, SHAPE(B, 21)));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "reshape: [20] does not hold as many elements as [batch, 20]; GPUNN_BATCH is the size of the "
            "batch, not an inferred size",
            gpunn_reshape(f->rows, SHAPE(20)));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "reshape: [batch, batch, 20] does not hold as many elements as [batch, 20]; GPUNN_BATCH is the "
            "size of the batch, not an inferred size",
            gpunn_reshape(f->rows, SHAPE(B, B, 20)));
    REFUSED(f, GPUNN_ERR_SHAPE, "reshape: shape [batch, 0, 20] has a dimension 0; the smallest is 1",
            gpunn_reshape(f->rows, SHAPE(B, 0, 20)));
    REFUSED(f, GPUNN_ERR_SHAPE, "flatten: x is [3], but [n, ...] is needed; gpunn_reshape it",
            gpunn_flatten(f->three));
    check_shape(f, gpunn_permute(middle, GPUNN_AXES(1, 2, 0)), SHAPE(B, 4, 3));
    check_shape(f, gpunn_permute(middle, GPUNN_AXES(-1, 0, 1)), SHAPE(4, 3, B));
    check_shape(f, gpunn_permute(input(f, SHAPE(0)), GPUNN_ALL), SHAPE(0));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "permute: 2 axes are listed for [3, batch, 4]; list each of its 3 axes",
            gpunn_permute(middle, GPUNN_AXES(1, 0)));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "permute: axis 1 is listed twice; name each axis once",
            gpunn_permute(middle, GPUNN_AXES(1, -2, 0)));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "permute: axis 3 is not one of [3, batch, 4]; use -3 to 2",
            gpunn_permute(middle, GPUNN_AXES(1, 3, 0)));
}

static void test_concat_slice_pad(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *a = input(f, SHAPE(B, 3)), *b = input(f, SHAPE(B, 4)), *fixed = input(f, SHAPE(5, 3)),
                 *two[2] = {a, b}, *mixed[2] = {a, fixed};
    gpunn_tensor *ten = input(f, SHAPE(B, 10));
    check_shape(f, gpunn_concat(two, 2, 1), SHAPE(B, 7));
    check_shape(f, gpunn_concat(two, 1, -1), SHAPE(B, 3));
    check_shape(f, gpunn_concat((gpunn_tensor *[]){a, gpunn_concat((gpunn_tensor *[]){a, a}, 2, 0)}, 2, 0),
                SHAPE(3 * B, 3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "concat: tensors[0] is [batch, 3] and tensors[1] [batch, 4]; they may differ only along axis 0, "
            "where all or none "
            "must be the batch",
            gpunn_concat(two, 2, 0));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "concat: tensors[0] is [batch, 3] and tensors[1] [5, 3]; they may differ only along axis 0, "
            "where all or none must "
            "be the batch",
            gpunn_concat(mixed, 2, 0));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "concat: axis 2 is not one of [batch, 3]; use -2 to 1",
            gpunn_concat(two, 2, 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "concat: tensors[1] is NULL",
            gpunn_concat((gpunn_tensor *[]){a, NULL}, 2, 2));
    assert_null(gpunn_concat(two, 0, 0));
    assert_string_equal(gpunn_error(NULL), "concat: got 0 tensors, but 1 to 64 can be joined at once");
    gpunn_clear_error(NULL);

    check_shape(f, gpunn_slice(ten, 1, 2, 9, 3), SHAPE(B, 3));
    check_shape(f, gpunn_slice(ten, -1, -4, GPUNN_END_OF_AXIS, 1), SHAPE(B, 4));
    check_shape(f, gpunn_slice(ten, 1, -100, 100, 1), SHAPE(B, 10));
    check_shape(f, gpunn_slice(ten, 1, INT64_MIN, -1, INT64_MAX), SHAPE(B, 1));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "slice: 5:5 along axis 1 of [batch, 10] is empty; at least one element must be left",
            gpunn_slice(ten, 1, 5, 5, 1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "slice: step is 0; use 1 or more", gpunn_slice(ten, 1, 0, 5, 0));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "slice: axis 0 of [batch, 10] is the batch, which cannot be cut; choose another axis",
            gpunn_slice(ten, 0, 0, 5, 1));

    check_shape(f, gpunn_pad(f->image, .before = {0, 0, 1, 2}, .after = {0, 0, 3, 4}, .value = -1),
                SHAPE(B, 6, 18, 20));
    check_shape(f, gpunn_pad(f->image, .before = {0, 5}, .after = {0, 0, 13}, .mode = GPUNN_PAD_REFLECT),
                SHAPE(B, 11, 27, 14));
    REFUSED(f, GPUNN_ERR_SHAPE, "pad: axis 0 of [batch, 10] is the batch; leave its padding at 0",
            gpunn_pad(ten, .before = {1}));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "pad: padding is 1 before and 10 after axis 1 of [batch, 10], but mode reflect allows at most 9 "
            "on each side; use less",
            gpunn_pad(ten, .before = {0, 1}, .after = {0, 10}, .mode = GPUNN_PAD_REFLECT));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "pad: padding is 11 before and 0 after axis 1 of [batch, 10], but mode circular allows at most "
            "10 on each side; use less",
            gpunn_pad(ten, .before = {0, 11}, .mode = GPUNN_PAD_CIRCULAR));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "pad: .value is not used by mode replicate; leave it out",
            gpunn_pad(ten, .before = {0, 11}, .mode = GPUNN_PAD_REPLICATE, .value = 1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "pad: mode is 4; use one of gpunn_pad_mode",
            gpunn_pad(ten, .mode = (gpunn_pad_mode)4));
    REFUSED(f, GPUNN_ERR_SHAPE, "pad: axis 2 of [batch, 10] does not exist; leave its padding at 0",
            gpunn_pad(ten, .after = {0, 0, 1}));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "pad: -1 before and 0 after axis 1 are out of range; use 0 or more, gpunn_slice to cut",
            gpunn_pad(ten, .before = {0, -1}));

    assert_int_equal(gpunn_tensor_dtype(gpunn_cast(f->labels, GPUNN_F32)), GPUNN_F32);
    assert_ptr_equal(gpunn_cast(f->labels, GPUNN_I64), f->labels);
    REFUSED(f, GPUNN_ERR_DTYPE, "cast: a cast to bf16 is not possible; use f32, i64, i32, u8 or bool",
            gpunn_cast(ten, GPUNN_BF16));
}

static void test_orders_and_copies(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *places = NULL, *parts[4], *two[2] = {f->rows, f->rows};
    check_shape(f, gpunn_topk(f->image, 3, -1, true, &places), SHAPE(B, 6, 14, 3));
    assert_int_equal(gpunn_tensor_dtype(places), GPUNN_I64);
    check_shape(f, gpunn_topk(f->rows, 20, 1, false, NULL), SHAPE(B, 20));
    check_shape(f, gpunn_topk_indices(f->rows, 1, 1, true), SHAPE(B, 1));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "topk_indices: k is 21, but axis 1 of [batch, 20] has 20 elements; use 1 to that number",
            gpunn_topk(f->rows, 21, 1, true, &places));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "topk_indices: k is 0, but axis 1 of [batch, 20] has 20 elements; use 1 to that number",
            gpunn_topk_indices(f->rows, 0, -1, true));
    REFUSED(f, GPUNN_ERR_SHAPE, "topk_indices: axis 0 of [batch, 20] is the batch; choose another axis",
            gpunn_topk(f->rows, 1, 0, true, NULL));
    check_shape(f, gpunn_cumsum(f->image, -2), SHAPE(B, 6, 14, 14));
    check_shape(f, gpunn_sort(f->image, 2, true, &places), SHAPE(B, 6, 14, 14));
    assert_int_equal(gpunn_tensor_dtype(places), GPUNN_I64);
    REFUSED(f, GPUNN_ERR_SHAPE, "argsort: axis 0 of [batch, 20] varies between runs; choose another axis",
            gpunn_argsort(f->rows, -2, true));
    check_shape(f, gpunn_min(f->image, GPUNN_AXES(0, 2), true), SHAPE(1, 6, 1, 14));
    check_shape(f, gpunn_var(f->image, GPUNN_ALL, 0, false), SHAPE(0));
    check_shape(f, gpunn_std(f->image, GPUNN_AXES(1, -1), 83, true), SHAPE(B, 1, 14, 1));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "var: correction is 1, but along these axes of [batch, 20] the number of elements varies; use "
            "correction 0",
            gpunn_std(f->rows, GPUNN_ALL, 1, false));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "var: correction is 20, but along these axes of [batch, 20] there are not more elements; use "
            "correction 0",
            gpunn_var(f->rows, GPUNN_AXES(1), 20, false));
    check_shape(f, gpunn_norm(f->image, 3, GPUNN_AXES(1), false), SHAPE(B, 14, 14));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "norm: p is 0; use a number above 0, or INFINITY",
            gpunn_norm(f->rows, 0, GPUNN_ALL, false));
    check_shape(f, gpunn_pairwise_distance(f->image, f->image, 1, 0), SHAPE(B, 6, 14));
    check_shape(f, gpunn_cdist(f->image, gpunn_slice(f->image, 2, 0, 9, 1), 2), SHAPE(B, 6, 14, 9));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "cdist: x1 is [batch, 20] and x2 is [batch, 6, 14, 14], but [..., m, d] and [..., n, d] with the "
            "same d and at most 7 axes are needed",
            gpunn_cdist(f->rows, f->image, 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "norm: p is -1; use a number above 0, or INFINITY",
            gpunn_cdist(f->rows, f->rows, -1));
    check_shape(f, gpunn_logsumexp(f->image, GPUNN_AXES(0, 1), false), SHAPE(14, 14));
    check_shape(f, gpunn_prod(f->image, 1, false), SHAPE(B, 14, 14));
    check_shape(f, gpunn_cumprod(f->image, -1), SHAPE(B, 6, 14, 14));
    check_shape(f, gpunn_cummax(f->image, 1), SHAPE(B, 6, 14, 14));
    REFUSED(f, GPUNN_ERR_SHAPE, "cummin: axis 0 of [batch, 20] varies between runs; choose another axis",
            gpunn_cummin(f->rows, 0));
    REFUSED(f, GPUNN_ERR_SHAPE, "prod: axis 0 of [batch, 20] varies between runs; choose another axis",
            gpunn_prod(f->rows, 0, false));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "cumsum: axis 2 is not one of [batch, 20]; use -2 to 1",
            gpunn_cumsum(f->rows, 2));
    check_shape(f, gpunn_logcumsumexp(f->image, 0), SHAPE(B, 6, 14, 14));
    check_shape(f, gpunn_searchsorted(f->image, f->image, .right = true), SHAPE(B, 6, 14, 14));
    assert_int_equal(gpunn_tensor_dtype(gpunn_searchsorted(f->labels, f->labels)), GPUNN_I64);
    check_shape(f, gpunn_bucketize(f->image, gpunn_constant(f->model, GPUNN_SHAPE(2), (float[]){0, 1})),
                SHAPE(B, 6, 14, 14));
    REFUSED(f, GPUNN_ERR_DTYPE, "searchsorted: sorted_sequence is f32 and values i64; gpunn_cast one of them",
            gpunn_searchsorted(f->rows, f->labels));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "searchsorted: given: sorted_sequence [batch, 20], values [batch, 6, 14, 14]; needed: any [..., "
            "n], any [..., m]",
            gpunn_searchsorted(f->rows, f->image));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "searchsorted: given: sorted_sequence [batch, 20], values [20 batch]; needed: any [..., n], any "
            "[..., m]",
            gpunn_bucketize(f->rows, f->rows));
    gpunn_tensor *vectors = gpunn_slice(f->rows, 1, 0, 3, 1);
    check_shape(f, gpunn_cross(vectors, vectors, -1), SHAPE(B, 3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "cross: given: a [batch, 3], b [batch, 20]; needed: f32 [..., 3, ...], f32 [..., 3, ...] along "
            "axis 1",
            gpunn_cross(vectors, f->rows, 1));
    REFUSED(
        f, GPUNN_ERR_SHAPE,
        "cross: given: a [batch, 3], b [batch, 3]; needed: f32 [..., 3, ...], f32 [..., 3, ...] along axis 0",
        gpunn_cross(vectors, vectors, 0));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "logcumsumexp: axis -3 is not one of [batch, 20]; use -2 to 1",
            gpunn_logcumsumexp(f->rows, -3));
    REFUSED(f, GPUNN_ERR_DTYPE, "logcumsumexp: x is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_logcumsumexp(f->labels, 0));
    check_shape(f, gpunn_argmin(f->image, 1, true), SHAPE(B, 1, 14, 14));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "argmin: axis 2 is not one of [batch, 20]; use -2 to 1",
            gpunn_argmin(f->rows, 2, false));
    check_shape(f, gpunn_one_hot(f->labels, 4), SHAPE(B, 4));
    REFUSED(f, GPUNN_ERR_DTYPE, "one_hot: index is f32, but class numbers are needed; use i64, i32 or u8",
            gpunn_one_hot(f->rows, 4));
    REFUSED(
        f, GPUNN_ERR_ARGUMENT,
        "one_hot: classes is 0 and index is [batch]; use 1 to 2^24 classes, and at most 8 axes in the result",
        gpunn_one_hot(f->labels, 0));
    check_shape(f, gpunn_frequency_encoding(f->rows, 6), SHAPE(B, 240));
    gpunn_tensor *total = gpunn_sum(f->rows, GPUNN_ALL, false);
    check_shape(f, gpunn_one_blob_encoding(f->image, 3), SHAPE(B, 6, 14, 42));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "frequency_encoding: frequencies is 33; use 1 to 32",
            gpunn_frequency_encoding(f->rows, 33));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "one_blob_encoding: bins is 0; use 1 to 256",
            gpunn_one_blob_encoding(f->rows, 0));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "spherical_harmonics_encoding: degree is 5; use 1 to 4",
            gpunn_spherical_harmonics_encoding(f->rows, 5));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "spherical_harmonics_encoding: x is [batch, 20], but its last axis must be x, y and z",
            gpunn_spherical_harmonics_encoding(f->rows, 2));
    gpunn_tensor *points = gpunn_input(f->model, "points", GPUNN_F32, SHAPE(B, 5, 3));
    check_shape(f, gpunn_hash_grid_encoding(points, "hashed"), SHAPE(B, 5, 32));
    /* 16^3 + 32^3 + 64^3 + 13 x 2^19 */
    check_shape(f, gpunn_find(f->model, "hashed.weight"), SHAPE(7114752, 2));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "hash_grid_encoding 'h': x is [batch, 20], but its last axis must be 2 or 3 coordinates",
            gpunn_hash_grid_encoding(f->rows, "h"));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "hash_grid_encoding 'h': n_levels is 33, n_features_per_level 2, log2_hashmap_size 19 and "
            "per_level_scale 2; give 1 "
            "to 32, "
            "1 to 8, 4 to 28, and 1 or more",
            gpunn_hash_grid_encoding(points, "h", .n_levels = 33));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "hash_grid_encoding 'h': 32 levels that begin with 16 cells and grow by 2 each would exceed 2^31 "
            "cells; use fewer levels or a smaller scale",
            gpunn_hash_grid_encoding(points, "h", .n_levels = 32));
    REFUSED(f, GPUNN_ERR_DTYPE, "one_blob_encoding: x is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_one_blob_encoding(f->labels, 2));
    REFUSED(f, GPUNN_ERR_SHAPE, "frequency_encoding: x is [], but 1 to 7 axes are needed",
            gpunn_frequency_encoding(total, 2));
    check_shape(f, gpunn_expand(f->three, SHAPE(B, 2, 3)), SHAPE(B, 2, 3));
    assert_ptr_equal(gpunn_expand(f->rows, SHAPE(B, 20)), f->rows);
    REFUSED(f, GPUNN_ERR_SHAPE,
            "expand: [3] does not expand to [batch, 4]; only axes of size 1 and new leading axes expand",
            gpunn_expand(f->three, SHAPE(B, 4)));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "expand: [batch, 20] does not expand to [20]; only axes of size 1 and new leading axes expand",
            gpunn_expand(f->rows, SHAPE(20)));
    check_shape(f, gpunn_tile(f->rows, SHAPE(3, 1, 2)), SHAPE(3, B, 40));
    check_shape(f, gpunn_tile(f->rows, SHAPE(2, 1)), SHAPE(2 * B, 20));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "tile: with one more axis for each repeated one, x would have 10 axes; 8 are possible",
            gpunn_tile(f->image, SHAPE(2, 2, 2, 2, 2)));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "tile: shape [batch] is not allowed here; dimensions are 1 or more, and none may be GPUNN_BATCH",
            gpunn_tile(f->rows, SHAPE(B)));
    check_shape(f, gpunn_stack(two, 2, 1), SHAPE(B, 2, 20));
    check_shape(f, gpunn_stack(two, 2, -1), SHAPE(B, 20, 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "stack: axis 3 is not an axis of the result; tensors of shape [batch, 20] give 3 axes, of which "
            "at most 8 are possible",
            gpunn_stack(two, 2, 3));
    assert_null(gpunn_stack(two, 0, 0));
    assert_string_equal(gpunn_error(NULL), "stack: got 0 tensors, but 1 to 64 can be joined at once");
    gpunn_clear_error(NULL);
    two[1] = f->three;
    REFUSED(f, GPUNN_ERR_SHAPE,
            "stack: tensors[0] is [batch, 20] and tensors[1] [3]; all must have one shape",
            gpunn_stack(two, 2, 0));
    assert_int_equal(gpunn_split(f->rows, 6, -1, parts, 4), 4);
    check_shape(f, parts[3], SHAPE(B, 2));
    assert_int_equal(gpunn_chunk(f->rows, 3, 1, parts, 4), 3);
    check_shape(f, parts[0], SHAPE(B, 7));
    check_shape(f, parts[2], SHAPE(B, 6));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "split: there are 5 parts, but parts has room for 4",
            gpunn_split(f->rows, 4, 1, parts, 4) ? f->rows : NULL);
    REFUSED(f, GPUNN_ERR_ARGUMENT, "chunk: 0 is neither a number of parts nor a size; use 1 or more",
            gpunn_chunk(f->rows, 0, 1, parts, 4) ? f->rows : NULL);
    REFUSED(f, GPUNN_ERR_SHAPE,
            "split: axis 0 of [batch, 20] is the batch, which cannot be cut; choose another axis",
            gpunn_split(f->rows, 1, 0, parts, 4) ? f->rows : NULL);
    assert_int_equal(gpunn_split(f->rows, INT64_MAX, 1, parts, 4), 1);
    assert_int_equal(gpunn_split(f->rows, INT64_MAX - 1, 1, parts, 4), 1);
    check_shape(f, parts[0], SHAPE(B, 20));
    assert_int_equal(gpunn_chunk(f->rows, INT32_MAX, 1, parts, 4), 0);
    assert_string_equal(gpunn_error(f->dev), "chunk: there are 20 parts, but parts has room for 4");
    gpunn_clear_error(f->dev);
    REFUSED(f, GPUNN_ERR_SHAPE,
            "tile: axis 1 of [batch, 20], repeated 9223372036854775807 times, has more than 2^59 elements",
            gpunn_tile(f->rows, SHAPE(1, INT64_MAX)));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "tile: axis 0 of [batch, 20], repeated 1152921504606846976 times, has more than 2^59 elements",
            gpunn_tile(f->rows, SHAPE(INT64_C(1) << 60, 1)));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "input 'i': shape [9223372036854775808 batch] has more than 2^59 elements; use smaller sizes",
            gpunn_input(f->model, "i", GPUNN_F32, SHAPE(INT64_MIN)));
    assert_null(gpunn_reshape(f->rows, SHAPE(INT64_MIN, 20)));
    gpunn_clear_error(f->dev);
    assert_null(gpunn_expand(f->rows, SHAPE(INT64_MIN, INT64_MIN, 20)));
    gpunn_clear_error(f->dev);
    REFUSED(f, GPUNN_ERR_DTYPE, "where: c is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_where(f->labels, f->rows, f->labels));
    gpunn_tensor *flag = gpunn_cast(f->rows, GPUNN_BOOL);
    check_shape(f, gpunn_where(flag, f->rows, f->rows), SHAPE(B, 20));
    REFUSED(f, GPUNN_ERR_SHAPE, "where: shapes [batch, 20] and [3] do not broadcast (axis 1: 20 against 3)",
            gpunn_where(flag, f->rows, f->three));
}

static void test_einsum(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *two[2] = {f->image, f->rows};
    check_shape(f, gpunn_einsum("bchw->bwc", two, 1), SHAPE(B, 14, 6));
    check_shape(f, gpunn_einsum("bchw, bf -> bfc", two, 2), SHAPE(B, 20, 6));
    assert_ptr_equal(gpunn_einsum("bchw", two, 1), f->image);
    two[0] = f->rows;
    gpunn_tensor *scores = gpunn_einsum("bi,bj->ij", two, 2); /* contracts the batch where it lies */
    check_shape(f, scores, SHAPE(20, 20));
    check_shape(f, gpunn_einsum("bi,bi", two, 2), SHAPE(0));
    check_shape(f, gpunn_einsum("bi,bi->", two, 2), SHAPE(0));
    check_shape(f, gpunn_einsum("...i,...j", two, 2), SHAPE(B, 20, 20));
    check_shape(f, gpunn_einsum("b...,bj->bj...", two, 2), SHAPE(B, 20, 20));
    check_shape(f, gpunn_einsum("bi...,bi...->...i", two, 2), SHAPE(20));
    static const char *const wrong[] = {"b1,bi",     "bbb,bi",         "bi",          "bi,bi,bi", "bi,bi->c",
                                        "bi,bi->bb", "bi;bi",          "bi,bi-b",     "..i,bi",   ". ..i,bi",
                                        "......,bi", "...,bi->......", "...i....,bi", "b7,bi"};
    for (int i = 0; i < (int)(sizeof wrong / sizeof *wrong); i++) {
        char text[256];
        (void)snprintf(
            text, sizeof text,
            "einsum: \"%s\" is not a valid equation, such as \"...ij,jk->...ik\"; name each tensor's axes by "
            "letters, its other axes by \"...\", and then the result's axes, each once",
            wrong[i]);
        REFUSED(f, GPUNN_ERR_ARGUMENT, text, gpunn_einsum(wrong[i], two, 2));
    }
    REFUSED(f, GPUNN_ERR_SHAPE,
            "einsum: b is batch and 20 in one tensor; a diagonal needs two equal, fixed sizes",
            gpunn_einsum("bb,bi", two, 2));
    check_shape(f, gpunn_einsum("bcii->bic", &f->image, 1), SHAPE(B, 14, 6));
    check_shape(f, gpunn_einsum("...ii", &f->image, 1), SHAPE(B, 6));
    REFUSED(f, GPUNN_ERR_SHAPE, "einsum: \"bij,bi\" has 3 letters for tensors[0], which is [batch, 20]",
            gpunn_einsum("bij,bi", two, 2));
    REFUSED(f, GPUNN_ERR_SHAPE, "einsum: \"bi,ib\": b is batch in tensors[0] and 20 in tensors[1]",
            gpunn_einsum("bi,ib", two, 2));
    REFUSED(f, GPUNN_ERR_SHAPE, "einsum: \"b...,...i\": ... is 20 in tensors[0] and batch in tensors[1]",
            gpunn_einsum("b...,...i", two, 2));
    REFUSED(f, GPUNN_ERR_SHAPE, "einsum: \"...bij,bi\" has 3 letters for tensors[0], which is [batch, 20]",
            gpunn_einsum("...bij,bi", two, 2));
    assert_null(gpunn_einsum("bi,bi,bi->b", two, 3));
    assert_string_equal(gpunn_error(NULL),
                        "einsum: got 3 tensors, but one or two are possible; multiply two at a time");
    gpunn_clear_error(NULL);
}

static void test_gather_nd(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *places = gpunn_input(f->model, "places", GPUNN_I32, SHAPE(B, 5, 2));
    gpunn_tensor *single = gpunn_input(f->model, "single", GPUNN_I64, SHAPE(B, 5, 1));
    check_shape(f, gpunn_gather_nd(f->image, places, 1), SHAPE(B, 5, 14));
    check_shape(f, gpunn_gather_nd(f->image, places, 0), SHAPE(B, 5, 14, 14));
    check_shape(f, gpunn_gather_nd(f->rows, single, 0), SHAPE(B, 5, 20));
#define BOTH                                                                                          \
    "use x [b ..., d1, ..., dk, rest ...] and index [b ..., places ..., k]; of d1 to dk only d1 may " \
    "vary, and the result may have 8 axes"
    REFUSED(f, GPUNN_ERR_SHAPE, "gather_nd: x is [batch, 20], index [batch, 5, 2] and batch_dims 1; " BOTH,
            gpunn_gather_nd(f->rows, places, 1));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "gather_nd: x is [batch, 6, 14, 14], index [batch, 5, 2] and batch_dims 3; " BOTH,
            gpunn_gather_nd(f->image, places, 3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "gather_nd: x is [batch, 6, 14, 14], index [batch, 5, 2] and batch_dims -1; " BOTH,
            gpunn_gather_nd(f->image, places, -1));
    REFUSED(f, GPUNN_ERR_DTYPE, "gather_nd: index is f32, but integers are needed; use i64 or i32",
            gpunn_gather_nd(f->image, f->rows, 0));
}

static void test_meshgrid(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *grids[9], *coordinates[9],
        *named = gpunn_input(f->model, "coordinates", GPUNN_F32, SHAPE(B));
    for (int i = 0; i < 9; i++) {
        const char name[] = {(char)('a' + i), 0};
        coordinates[i] = i == 1 ? named : gpunn_input(f->model, name, GPUNN_F32, SHAPE(2 + i));
    }
    assert_int_equal(gpunn_meshgrid(coordinates, 3, GPUNN_INDEXING_IJ, grids), GPUNN_OK);
    for (int i = 0; i < 3; i++) check_shape(f, grids[i], SHAPE(2, B, 4));
    assert_int_equal(gpunn_meshgrid(coordinates, 8, GPUNN_INDEXING_XY, grids), GPUNN_OK);
    for (int i = 0; i < 8; i++) check_shape(f, grids[i], SHAPE(B, 2, 4, 5, 6, 7, 8, 9));
    assert_int_equal(gpunn_meshgrid(coordinates, 9, GPUNN_INDEXING_IJ, grids), GPUNN_ERR_ARGUMENT);
    assert_string_equal(gpunn_error(NULL),
                        "meshgrid: count is 9 and indexing 0; use 1 to 8 and one of gpunn_indexing");
    gpunn_clear_error(NULL);
    coordinates[2] = f->rows;
    REFUSED(f, GPUNN_ERR_SHAPE, "meshgrid: tensors[2] is [batch, 20], but [n] is needed; flatten it",
            gpunn_meshgrid(coordinates, 3, GPUNN_INDEXING_IJ, grids) ? grids[0] : f->rows);
}

static void test_reductions(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *scalar = input(f, SHAPE(0));
    check_shape(f, gpunn_sum(f->image, GPUNN_ALL, false), SHAPE(0));
    check_shape(f, gpunn_mean(f->image, GPUNN_ALL, true), SHAPE(1, 1, 1, 1));
    check_shape(f, gpunn_max(f->image, GPUNN_AXES(0, -1), false), SHAPE(6, 14));
    check_shape(f, gpunn_sum(f->image, GPUNN_AXES(1, 0), true), SHAPE(1, 1, 14, 14));
    check_shape(f, gpunn_sum(scalar, GPUNN_ALL, false), SHAPE(0));
    gpunn_tensor *index = gpunn_cast(gpunn_slice(f->image, 2, 0, 3, 1), GPUNN_I32),
                 *large = gpunn_cast(f->image, GPUNN_I64);
    check_shape(f, gpunn_gather(f->image, -2, index), SHAPE(B, 6, 3, 14));
    check_shape(f, gpunn_gather(f->image, 3, gpunn_slice(index, 2, 0, 1, 1)), SHAPE(B, 6, 1, 14));
    assert_int_equal(gpunn_gather(f->image, 1, index)->inputs[0]->op, GPUNN_OP_SLICE);
    REFUSED(f, GPUNN_ERR_DTYPE, "gather: index is f32, but integers are needed; use i64 or i32",
            gpunn_gather(f->image, 1, f->image));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "gather: axis 4 is not one of [batch, 6, 14, 14]; use -4 to 3",
            gpunn_gather(f->image, 4, index));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "gather: x is [batch, 20] and index is [batch, 6, 3, 14]; both need the same number of axes, and "
            "only axis 1 of index may be larger than x's",
            gpunn_gather(f->rows, 1, index));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "gather: x is [batch, 6, 3, 14] and index is [batch, 6, 14, 14]; both need the same number of "
            "axes, and only axis 1 of index may be larger than x's",
            gpunn_gather(index->inputs[0], 1, large));
    gpunn_tensor *one = gpunn_input(f->model, "one", GPUNN_I64, GPUNN_SHAPE(3)), *added;
    gpunn_tensor *small = gpunn_cast(index, GPUNN_F32);
    check_shape(f, gpunn_scatter_add(f->image, -2, index, small), SHAPE(B, 6, 14, 14));
    REFUSED(f, GPUNN_ERR_DTYPE, "scatter_add: index is f32, but integers are needed; use i64 or i32",
            gpunn_scatter_add(f->image, 2, small, small));
    REFUSED(
        f, GPUNN_ERR_SHAPE,
        "scatter_add: given: x [batch, 6, 14, 14], index [batch, 6, 3, 14], src [batch, 6, 3, 14]; needed: "
        "f32 [..., n, ...], index [..., m, ...], f32 [..., m, ...] along axis 1",
        gpunn_scatter_add(f->image, 1, index, small));
    check_shape(f, gpunn_scatter(f->image, 2, index, small), SHAPE(B, 6, 14, 14));
    REFUSED(f, GPUNN_ERR_DTYPE, "scatter: x is f32 and src i32; gpunn_cast one of them",
            gpunn_scatter(f->image, 2, index, index));
    check_shape(f, added = gpunn_index_select(f->image, 1, one), SHAPE(B, 3, 14, 14));
    check_shape(f, gpunn_index_add(f->image, 1, one, added), SHAPE(B, 6, 14, 14));
    REFUSED(f, GPUNN_ERR_SHAPE, "index_select: index is [batch, 6, 3, 14], but [count] is needed; flatten it",
            gpunn_index_select(f->image, 1, index));
    gpunn_tensor *pixels = gpunn_input(f->model, "pixels", GPUNN_F32, SHAPE(B, 4, 2, 3)),
                 *line = gpunn_cast(one, GPUNN_F32);
    check_shape(f, gpunn_flip(f->image, GPUNN_ALL), SHAPE(B, 6, 14, 14));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "flip: axis 1 is listed twice; name each axis once",
            gpunn_flip(f->rows, GPUNN_AXES(1, -1)));
    check_shape(f, gpunn_roll(f->rows, -41, 1), SHAPE(B, 20));
    assert_ptr_equal(gpunn_roll(f->rows, 40, 1), f->rows);
    REFUSED(f, GPUNN_ERR_SHAPE, "roll: axis 0 of [batch, 20] varies between runs; choose another axis",
            gpunn_roll(f->rows, 1, 0));
    check_shape(f, gpunn_pixel_shuffle(pixels, 2), SHAPE(B, 1, 4, 6));
    check_shape(f, gpunn_depth_to_space(pixels, 2), SHAPE(B, 1, 4, 6));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "space_to_depth: factor is 3 and x is [batch, 6, 14, 14]; height and width must be a multiple of "
            "it, and not vary",
            gpunn_space_to_depth(f->image, 3));
    gpunn_tensor *half = gpunn_glu(f->image, 1);
    check_shape(f, half, SHAPE(B, 3, 14, 14));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "glu: axis 1 of x [batch, 3, 14, 14] cannot be halved; its size must be even, and not vary",
            gpunn_glu(half, 1));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "glu: axis 0 of x [batch, 20] cannot be halved; its size must be even, and not vary",
            gpunn_glu(f->rows, 0));
    gpunn_tensor *ten = gpunn_glu(f->rows, 1);
    check_shape(f, gpunn_bilinear(f->rows, ten, "pair", .out_features = 7), SHAPE(B, 7));
    check_shape(f, gpunn_find(f->model, "pair.weight"), SHAPE(7, 20, 10));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "bilinear 'b': x1 is [batch, 20] and x2 is [3]; both need 1 to 7 axes, with equal sizes except "
            "for the last axis",
            gpunn_bilinear(f->rows, f->three, "b", .out_features = 7));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "bilinear 'b': out_features is 0 for inputs of 20 and 10 features; set .out_features to 1 or "
            "more, so that there are at most 2^31 weights",
            gpunn_bilinear(f->rows, ten, "b"));
    gpunn_tensor *columns = gpunn_unfold(f->image, .kernel_shape = {3, 2}, .padding = 1, .stride = 2,
                                         .dilations = {2});
    check_shape(f, columns, SHAPE(B, 36, 48));
    check_shape(f,
                gpunn_fold(columns, .kernel_shape = {3, 2}, .padding = 1, .stride = 2, .dilations = {2},
                           .output_size = {14, 14}),
                SHAPE(B, 6, 14, 14));
    REFUSED(f, GPUNN_ERR_SHAPE, "unfold: x is [batch, 20], but [n, c, h, w] is needed; gpunn_reshape it",
            gpunn_unfold(f->rows, .kernel_size = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "unfold: kernel_size is 0; set .kernel_size, or .kernel_shape for each axis, to 1 or more",
            gpunn_unfold(f->image));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "unfold: output_size is not used by unfold; leave it out",
            gpunn_unfold(f->image, .output_size = {3, 3}));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "unfold: the window spans 15 along axis 2, but the padded input only 14 (input [batch, 6, 14, "
            "14], kernel 15, dilation "
            "1, padding 0); use a smaller kernel or more padding",
            gpunn_unfold(f->image, .kernel_size = 15));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "fold: output_size is 14, 0; set .output_size to h and w",
            gpunn_fold(columns, .kernel_size = 2, .output_size = {14}));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "fold: x is [batch, 36, 48], but [n, a multiple of 4, 169] is needed for windows of 2 x 2 at 13 "
            "x 13 places",
            gpunn_fold(columns, .kernel_size = 2, .output_size = {14, 14}));
    check_shape(f, gpunn_pixel_unshuffle(f->image, 7), SHAPE(B, 294, 2, 2));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "pixel_shuffle: factor is 2 and x is [batch, 6, 14, 14]; the channels must be a multiple of its "
            "square, and not vary",
            gpunn_pixel_shuffle(f->image, 2));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "pixel_unshuffle: factor is 0 and x is [batch, 6, 14, 14]; height and width must be a multiple "
            "of it, and not vary",
            gpunn_pixel_unshuffle(f->image, 0));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "pixel_shuffle: x is [batch, 20], but [n, c, h, w] is needed; gpunn_reshape it",
            gpunn_pixel_shuffle(f->rows, 2));
    check_shape(f, gpunn_tril(f->rows, -3), SHAPE(B, 20));
    check_shape(f, gpunn_diagonal(f->image, -3), SHAPE(B, 6, 11));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "diagonal: offset is 14 and x is [batch, 6, 14, 14]; rows and columns must not vary, and the "
            "diagonal must be inside",
            gpunn_diagonal(f->image, 14));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "diagonal: offset is 0 and x is [batch, 20]; rows and columns must not vary, and the diagonal "
            "must be inside",
            gpunn_diagonal(f->rows, 0));
    REFUSED(f, GPUNN_ERR_SHAPE, "diagonal: x is [3], but [..., rows, columns] is needed; gpunn_reshape it",
            gpunn_diagonal(line, 0));
    gpunn_tensor *plane = gpunn_sum(f->image, GPUNN_AXES(0, 1), false);
    check_shape(f, gpunn_masked_fill(f->image, f->image, INFINITY), SHAPE(B, 6, 14, 14));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "masked_fill: mask [batch, 6, 14, 14] is larger than x [14, 14]; it must broadcast to that",
            gpunn_masked_fill(plane, f->image, 0));
    REFUSED(f, GPUNN_ERR_SHAPE, "triu: x is [3], but [..., rows, columns] is needed; gpunn_reshape it",
            gpunn_triu(line, 0));
    gpunn_tensor *rows = gpunn_input(f->model, "places", GPUNN_I32, GPUNN_SHAPE(14));
    gpunn_tensor *factors = gpunn_parameter(f->model, "factors", GPUNN_SHAPE(6),
                                            (gpunn_init){GPUNN_INIT_ZEROS, 0, 0});
    check_shape(f, gpunn_rotary_embedding(f->image, rows, .dims = 12, .frequencies = factors),
                SHAPE(B, 6, 14, 14));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "rotary_embedding: positions is [14] and x is [batch, 6, 14, 14]; positions must be [l] or [n, "
            "l] with the n and l of x",
            gpunn_rotary_embedding(f->image, rows, .heads_last = true));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "rotary_embedding: .dims rotates 16 of a head's 14 features, in pairs; use an even number, at "
            "most that of the features",
            gpunn_rotary_embedding(f->image, rows, .dims = 16));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "rotary_embedding: .frequencies is [6], but [7], one for each pair of features, is needed",
            gpunn_rotary_embedding(f->image, rows, .frequencies = factors));
    REFUSED(f, GPUNN_ERR_DTYPE, "rotary_embedding: positions is f32, but integers are needed; use i64 or i32",
            gpunn_rotary_embedding(f->image, f->rows));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "rotary_embedding: x is [batch, 20], but [n, heads, l, e] or, with .heads_last, [n, l, heads, e] "
            "is needed; "
            "gpunn_reshape it",
            gpunn_rotary_embedding(f->rows, rows));
    check_shape(f, gpunn_argmax(f->image, 1, false), SHAPE(B, 14, 14));
    check_shape(f, gpunn_argmax(f->image, -1, true), SHAPE(B, 6, 14, 1));
    assert_int_equal(gpunn_tensor_dtype(gpunn_argmax(f->rows, 1, false)), GPUNN_I64);
    check_shape(f, gpunn_softmax(f->rows, -1), SHAPE(B, 20));
    check_shape(f, gpunn_log_softmax(f->rows, 0), SHAPE(B, 20));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "mean: axis 4 is not one of [batch, 6, 14, 14]; use -4 to 3",
            gpunn_mean(f->image, GPUNN_AXES(4), false));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "sum: axis 3 is listed twice; name each axis once",
            gpunn_sum(f->image, GPUNN_AXES(3, -1), false));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "softmax: x is a scalar, which has no axes", gpunn_softmax(scalar, 0));
    REFUSED(f, GPUNN_ERR_DTYPE, "mean: x is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_mean(f->labels, GPUNN_ALL, false));
    REFUSED(f, GPUNN_ERR_DTYPE, "topk_indices: x is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_topk_indices(f->labels, 1, 0, false));
    check_shape(f, gpunn_max_with_indices(f->image, -2, false, NULL), SHAPE(B, 6, 14));
    gpunn_tensor *places = NULL;
    check_shape(f, gpunn_min_with_indices(f->image, 1, true, &places), SHAPE(B, 1, 14, 14));
    check_shape(f, places, SHAPE(B, 1, 14, 14));
    assert_int_equal(gpunn_tensor_dtype(places), GPUNN_I64);
    REFUSED(f, GPUNN_ERR_ARGUMENT, "max_with_indices: axis 2 is not one of [batch, 20]; use -2 to 1",
            gpunn_max_with_indices(f->rows, 2, false, NULL));
    check_shape(f, gpunn_cummax_with_indices(f->rows, 1, &places), SHAPE(B, 20));
    check_shape(f, places, SHAPE(B, 20));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "cummin_with_indices: axis 0 of [batch, 20] varies between runs; choose another axis",
            gpunn_cummin_with_indices(f->rows, 0, NULL));
}

static void check_dtype(gpunn_tensor *t, gpunn_dtype dtype)
{
    assert_non_null(t);
    assert_int_equal(gpunn_tensor_dtype(t), dtype);
}

static void test_integers(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *wide = f->labels, *narrow = gpunn_cast(f->labels, GPUNN_I32),
                 *byte = gpunn_cast(f->labels, GPUNN_U8);
    gpunn_tensor *flag = gpunn_cast(f->labels, GPUNN_BOOL), *plane = gpunn_cast(f->rows, GPUNN_I64);
    check_dtype(gpunn_add(wide, byte), GPUNN_I64);
    check_dtype(gpunn_sub(byte, narrow), GPUNN_I32);
    check_dtype(gpunn_mul(byte, flag), GPUNN_U8);
    check_dtype(gpunn_maximum(flag, flag), GPUNN_BOOL);
    check_dtype(gpunn_le(byte, wide), GPUNN_BOOL);
    check_dtype(gpunn_logical_not(wide), GPUNN_BOOL);
    check_dtype(gpunn_logical_and(f->rows, f->rows), GPUNN_F32);
    check_dtype(gpunn_where(f->labels, byte, narrow), GPUNN_I32);
    check_dtype(gpunn_where(gpunn_cast(f->labels, GPUNN_F32), flag, flag), GPUNN_BOOL);
    check_dtype(gpunn_where_scalar(f->labels, byte, 300), GPUNN_U8);
    check_dtype(gpunn_where_scalar(f->labels, flag, 1), GPUNN_I64);
    check_dtype(gpunn_integer_scalar(GPUNN_INTEGER_ADD, byte, 300), GPUNN_U8);
    check_dtype(gpunn_integer_scalar(GPUNN_INTEGER_ADD, flag, 1), GPUNN_I64);
    check_dtype(gpunn_integer_scalar(GPUNN_INTEGER_EQ, byte, 1), GPUNN_BOOL);
    check_dtype(gpunn_integer_scalar(GPUNN_INTEGER_NEG, byte, 0), GPUNN_U8);
    check_dtype(gpunn_sum(byte, GPUNN_ALL, false), GPUNN_I64);
    check_dtype(gpunn_max(byte, GPUNN_ALL, false), GPUNN_U8);
    check_dtype(gpunn_cumsum(gpunn_permute(gpunn_cast(plane, GPUNN_U8), GPUNN_AXES(1, 0)), 0), GPUNN_I64);
    check_shape(f, gpunn_mul(plane, gpunn_reshape(wide, SHAPE(B, 1))), SHAPE(B, 20));
    REFUSED(f, GPUNN_ERR_DTYPE, "remainder: b is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_remainder(f->rows, plane));
    REFUSED(f, GPUNN_ERR_DTYPE, "div: a is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_div(plane, plane));
    REFUSED(f, GPUNN_ERR_DTYPE, "add: x is f32, but integers are needed; convert it with gpunn_cast",
            gpunn_integer_scalar(GPUNN_INTEGER_ADD, f->rows, 1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "integer: op 23 is unknown; use one of gpunn_integer_op",
            gpunn_integer_scalar(GPUNN_INTEGER_COUNT, wide, 1));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "where: got 1 operands, but 3 are needed, the last of which may be a number",
            gpunn_integer_scalar(GPUNN_INTEGER_WHERE, wide, 1));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "add: shapes [batch, 20] and [batch] do not broadcast (axis 1: 20 against batch); the batch "
            "broadcasts only with itself and 1",
            gpunn_add(plane, wide));
    gpunn_tensor *unlike[] = {wide, narrow};
    REFUSED(f, GPUNN_ERR_DTYPE, "concat: tensors[0] is i64 and tensors[1] i32; gpunn_cast one of them",
            gpunn_concat(unlike, 2, 0));
    REFUSED(f, GPUNN_ERR_DTYPE, "pad: x is i64, which mode reflect does not pad; gpunn_cast it to f32",
            gpunn_pad(plane, .before = {0, 1}, .mode = GPUNN_PAD_REFLECT));
}

static void test_fourier(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *pairs = gpunn_rfft(f->image, -1, GPUNN_FFT_BACKWARD);
    check_shape(f, pairs, SHAPE(B, 6, 14, 8, 2));
    check_shape(f, gpunn_rfft(f->image, 1, GPUNN_FFT_ORTHO), SHAPE(B, 4, 14, 14, 2));
    check_shape(f, gpunn_irfft(pairs, 14, -1, GPUNN_FFT_BACKWARD), SHAPE(B, 6, 14, 14));
    check_shape(f, gpunn_irfft(pairs, 15, 3, GPUNN_FFT_BACKWARD), SHAPE(B, 6, 14, 15));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "rfft: x is [batch, 20] and axis is 0; 1 to 7 axes are possible, and axis must be another axis "
            "with a fixed size",
            gpunn_rfft(f->rows, 0, GPUNN_FFT_BACKWARD));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "irfft: x is [batch, 20] and axis is -1; the last axis must have size 2, for real and imaginary "
            "parts, and axis must be another axis with a fixed size",
            gpunn_irfft(f->rows, 38, -1, GPUNN_FFT_BACKWARD));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "irfft: n is 16 and x [batch, 6, 14, 8, 2]; n / 2 + 1 must be the size of axis 3",
            gpunn_irfft(pairs, 16, 3, GPUNN_FFT_BACKWARD));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "rfft: norm is 3; use one of gpunn_fft_norm",
            gpunn_rfft(f->rows, 1, (gpunn_fft_norm)3));
    REFUSED(f, GPUNN_ERR_DTYPE, "rfft: x is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_rfft(f->labels, 0, GPUNN_FFT_BACKWARD));
}

static void test_matmul(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *a = input(f, SHAPE(B, 2, 3)), *b = input(f, SHAPE(3, 5)), *bt = input(f, SHAPE(B, 5, 3)),
                 *seven = input(f, SHAPE(7, 3, 5));
    check_shape(f, gpunn_matmul(a, b), SHAPE(B, 2, 5));
    check_shape(f, gpunn_matmul(a, bt, .transpose_b = true), SHAPE(B, 2, 5));
    check_shape(f, gpunn_matmul(f->rows, f->rows, .transpose_a = true), SHAPE(20, 20));
    check_shape(f, gpunn_matmul(f->rows, f->rows, .transpose_b = true), SHAPE(B, B));
    check_shape(f, gpunn_matmul(input(f, SHAPE(4, 1, 2, 3)), bt, .transpose_b = true), SHAPE(4, B, 2, 5));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "matmul: a is [batch, 20] and b [3, 5]: the sizes summed over, 20 and 3, must be equal",
            gpunn_matmul(f->rows, b));
    REFUSED(
        f, GPUNN_ERR_SHAPE,
        "matmul: a is [3, 5] transposed and b [batch, 20]: the sizes summed over, 3 and batch, must be equal",
        gpunn_matmul(b, f->rows, .transpose_a = true));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "matmul: a is [3] and b [3, 5], but both need two axes or more; gpunn_reshape them",
            gpunn_matmul(f->three, b));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "matmul: leading axes [batch] and [7] do not broadcast (axis 0: batch against 7); the batch "
            "broadcasts only with itself and 1",
            gpunn_matmul(a, seven));
}

static void test_attention(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *q = input(f, SHAPE(B, 4, 7, 8)), *k = input(f, SHAPE(B, 4, 9, 8)),
                 *v = input(f, SHAPE(B, 4, 9, 5)), *pair = input(f, SHAPE(B, 2, 9, 8)),
                 *long_q = input(f, SHAPE(1, 2, B, 8)), *all = input(f, SHAPE(B, 7, 3, 4, 8)),
                 *five = input(f, SHAPE(2, 1, 1, 1, 9)),
                 *learned = gpunn_parameter(f->model, "learned", SHAPE(7, 9), (gpunn_init){0});
    check_shape(f, gpunn_scaled_dot_product_attention(q, k, v), SHAPE(B, 4, 7, 5));
    check_shape(f, gpunn_scaled_dot_product_attention(q, pair, pair, .enable_gqa = true), SHAPE(B, 4, 7, 8));
    check_shape(f, gpunn_scaled_dot_product_attention(q, q, q, .heads_last = true), SHAPE(B, 4, 7, 8));
    check_shape(f, gpunn_scaled_dot_product_attention(long_q, long_q, long_q, .is_causal = true),
                SHAPE(1, 2, B, 8));
    check_shape(f, gpunn_scaled_dot_product_attention(q, k, v, .mask = learned), SHAPE(B, 4, 7, 5));
    gpunn_tensor *y = gpunn_scaled_dot_product_attention(all, NULL, NULL, .dropout_p = 0.5f);
    check_shape(f, y, SHAPE(B, 7, 4, 8));
    assert_true(y->attr.scale == (float)(1 / sqrt(8.0)));
    assert_int_equal(y->attr.random_stream + 1, f->model->random_streams);
    REFUSED(f, GPUNN_ERR_SHAPE,
            "scaled_dot_product_attention: q is [batch, 20], but [n, heads, rows, e] is needed, or [n, rows, "
            "3, heads, e] for q, k and v in one; gpunn_reshape it",
            gpunn_scaled_dot_product_attention(f->rows, k, v));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "scaled_dot_product_attention: k is [batch, 7, 3, 4, 8], but [n, rows, heads, e] is needed, or "
            "[n, rows, 3, heads, e] for q, k and v in one; gpunn_reshape it",
            gpunn_scaled_dot_product_attention(q, all, v, .heads_last = true));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "scaled_dot_product_attention: k is NULL",
            gpunn_scaled_dot_product_attention(q, NULL, NULL));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "scaled_dot_product_attention: q is [1, 2, batch, 8]: the number and the size of the heads must "
            "be fixed, and below 2^31",
            gpunn_scaled_dot_product_attention(long_q, long_q, long_q, .heads_last = true));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "scaled_dot_product_attention: q is [batch, 4, 7, 8], k [batch, 4, 9, 8] and v [batch, 4, 7, 8]: "
            "all need the same n, q and k the same head size, and k and v the same rows and heads",
            gpunn_scaled_dot_product_attention(q, k, q));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "scaled_dot_product_attention: q has 4 heads, but k and v have 2; set .enable_gqa to share them",
            gpunn_scaled_dot_product_attention(q, pair, pair));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "scaled_dot_product_attention: q has 2 heads, but k and v have 4; the heads of k and v must "
            "divide those of q",
            gpunn_scaled_dot_product_attention(pair, k, v, .enable_gqa = true));
    REFUSED(f, GPUNN_ERR_DTYPE,
            "scaled_dot_product_attention: .mask is i64, but must be bool (true: takes part) or f32 (added "
            "to the scores); "
            "gpunn_cast it",
            gpunn_scaled_dot_product_attention(q, k, v, .mask = f->labels));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "scaled_dot_product_attention: [n, heads, l, s] and .mask [batch, 4, 7, 9] and [3] do not "
            "broadcast (axis 3: 9 "
            "against 3)",
            gpunn_scaled_dot_product_attention(q, k, v, .mask = f->three));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "scaled_dot_product_attention: .mask [2, 1, 1, 1, 9] is larger than [n, heads, l, s], here "
            "[batch, 4, 7, 9]; it must "
            "broadcast to that",
            gpunn_scaled_dot_product_attention(q, k, v, .mask = five));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "scaled_dot_product_attention: dropout_p is 1.5; use a number from 0 to 1",
            gpunn_scaled_dot_product_attention(q, k, v, .dropout_p = 1.5f));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "scaled_dot_product_attention: scale is inf; use a finite number",
            gpunn_scaled_dot_product_attention(q, k, v, .scale = INFINITY));
    REFUSED(f, GPUNN_ERR_DTYPE,
            "scaled_dot_product_attention: v is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_scaled_dot_product_attention(q, k, f->labels));
}

static void test_attention_layers(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *x = input(f, SHAPE(B, 7, 12)), *y = input(f, SHAPE(B, 5, 12)),
                 *z = input(f, SHAPE(B, 5, 9)),
                 *bias = gpunn_parameter(f->model, "shared", SHAPE(12), (gpunn_init){0});
    check_shape(f, gpunn_multi_head_attention(x, x, x, "a", .num_heads = 3, .batch_first = true),
                SHAPE(B, 7, 12));
    check_shape(f, gpunn_find(f->model, "a.in_proj_weight"), SHAPE(36, 12));
    check_shape(f, gpunn_find(f->model, "a.in_proj_bias"), SHAPE(36));
    check_shape(f, gpunn_find(f->model, "a.out_proj.weight"), SHAPE(12, 12));
    check_shape(f, gpunn_multi_head_attention(x, y, z, "b", .num_heads = 3, .batch_first = true),
                SHAPE(B, 7, 12));
    check_shape(f, gpunn_find(f->model, "b.v_proj_weight"), SHAPE(12, 9));
    gpunn_tensor *weights;
    check_shape(
        f, gpunn_multi_head_attention(x, y, z, "w", .num_heads = 3, .batch_first = true, .weights = &weights),
        SHAPE(B, 7, 12));
    check_shape(f, weights, SHAPE(B, 7, 5));
    check_shape(f,
                gpunn_multi_head_attention(x, x, x, "v", .num_heads = 3, .batch_first = true,
                                           .weights = &weights, .head_weights = true),
                SHAPE(B, 7, 12));
    check_shape(f, weights, SHAPE(B, 3, 7, 7));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "multi_head_attention 'h': head_weights is not used without .weights; leave it out",
            gpunn_multi_head_attention(x, x, x, "h", .num_heads = 3, .head_weights = true));
    REFUSED(
        f, GPUNN_ERR_ARGUMENT,
        "multi_head_attention 'h': num_heads is 5, but must divide the size of query [batch, 7, 12]",
        gpunn_multi_head_attention(x, x, x, "h", .num_heads = 5, .batch_first = true, .weights = &weights));
    assert_null(weights);
    check_shape(
        f, gpunn_transformer_encoder(x, "e", .nhead = 2, .num_layers = 2, .batch_first = true, .norm = true),
        SHAPE(B, 7, 12));
    check_shape(f, gpunn_find(f->model, "e.layers.1.linear1.weight"), SHAPE(2048, 12));
    check_shape(f, gpunn_find(f->model, "e.norm.weight"), SHAPE(12));
    check_shape(f, gpunn_transformer_decoder_layer(x, y, "d", .nhead = 2, .batch_first = true),
                SHAPE(B, 7, 12));
    check_shape(f, gpunn_find(f->model, "d.multihead_attn.in_proj_weight"), SHAPE(36, 12));
    check_shape(f, gpunn_find(f->model, "d.norm3.weight"), SHAPE(12));
    check_shape(f, gpunn_linear(x, "shares", .out_features = 12, .bias = bias), SHAPE(B, 7, 12));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "linear 'short': .bias is [12], but must be a parameter [5], and excludes .no_bias",
            gpunn_linear(x, "short", .out_features = 5, .bias = bias));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "multi_head_attention 'm': num_heads is 5, but must divide the size of query [batch, 7, 12]",
            gpunn_multi_head_attention(x, x, x, "m", .num_heads = 5));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "multi_head_attention: the layer needs a name, since the names of its parameters begin with it",
            gpunn_multi_head_attention(x, x, x, "", .num_heads = 3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "multi_head_attention 'm': key is [batch, 20], but [n, rows, size] (.batch_first) or [rows, n, "
            "size] is needed",
            gpunn_multi_head_attention(x, f->rows, x, "m", .num_heads = 3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "multi_head_attention 'm': query is [batch, 7, 12], key [batch, 5, 12] and value [batch, 7, 12]: "
            "all need the same n, "
            "key and value the same rows",
            gpunn_multi_head_attention(x, y, x, "m", .num_heads = 3, .batch_first = true));
    REFUSED(f, GPUNN_ERR_DTYPE,
            "multi_head_attention 'm': .attn_mask is i64, but must be bool (true: ignored) or f32 (added); "
            "gpunn_cast it",
            gpunn_multi_head_attention(x, x, x, "m", .num_heads = 3, .batch_first = true,
                                       .attn_mask = f->labels));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "multi_head_attention 'm': .key_padding_mask is [batch, 20], but [batch, 7] is needed",
            gpunn_multi_head_attention(x, x, x, "m", .num_heads = 3, .batch_first = true,
                                       .key_padding_mask = f->rows));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "transformer_encoder_layer 't': .memory_mask is for transformer_decoder_layer, not used here; "
            "leave it out",
            gpunn_transformer_encoder_layer(x, "t", .nhead = 2, .memory_mask = z));
    REFUSED(
        f, GPUNN_ERR_ARGUMENT,
        "transformer_encoder_layer 't': .num_layers is for transformer_encoder, not used here; leave it out",
        gpunn_transformer_encoder_layer(x, "t", .nhead = 2, .num_layers = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "transformer_decoder_layer 't': .norm is for transformer_encoder, not used here; leave it out",
            gpunn_transformer_decoder_layer(x, y, "t", .nhead = 2, .norm = true));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "transformer_encoder 't': num_layers is -1; set .num_layers to 1 or more",
            gpunn_transformer_encoder(x, "t", .nhead = 2, .num_layers = -1));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "multi_head_attention 't.layers.0.self_attn': num_heads is 5, but must divide the size of query "
            "[batch, 7, 12]",
            gpunn_transformer_encoder(x, "t", .nhead = 5, .batch_first = true));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "transformer_decoder_layer 't': memory is NULL",
            gpunn_transformer_decoder_layer(x, NULL, "t", .nhead = 2));
}

/* ---- losses ---- */
static void test_losses(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *t = input(f, SHAPE(B, 20)), *column = input(f, SHAPE(B, 1)), *weight = input(f, SHAPE(20)),
                 *large = input(f, SHAPE(20, 1, 20));
    check_shape(f, gpunn_mse_loss(f->rows, t), SHAPE(0));
    check_shape(f, gpunn_l1_loss(f->rows, t, .reduction = GPUNN_REDUCE_NONE), SHAPE(B, 20));
    check_shape(f, gpunn_huber_loss(f->rows, t, .delta = 2), SHAPE(0));
    check_shape(f, gpunn_smooth_l1_loss(f->rows, t, .beta = GPUNN_ZERO), SHAPE(0));
    check_shape(f, gpunn_bce_loss(f->rows, t, .weight = weight), SHAPE(0));
    check_shape(f,
                gpunn_bce_with_logits(f->rows, t, .weight = column, .pos_weight = weight,
                                      .reduction = GPUNN_REDUCE_SUM),
                SHAPE(0));
    check_shape(f, gpunn_kl_div(f->rows, t, .log_target = true, .reduction = GPUNN_REDUCE_BATCHMEAN),
                SHAPE(0));
    check_shape(f, gpunn_kl_div(f->three, f->three, .reduction = GPUNN_REDUCE_BATCHMEAN), SHAPE(0));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "mse_loss: input [batch, 20] and target [batch, 1] need the same shape, since this loss does not "
            "broadcast; gpunn_reshape one of them",
            gpunn_mse_loss(f->rows, column));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "mse_loss: .weight is for bce_loss, not used here; leave it out",
            gpunn_mse_loss(f->rows, t, .weight = weight));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "l1_loss: .delta is for huber_loss, not used here; leave it out",
            gpunn_l1_loss(f->rows, t, .delta = 1));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "bce_loss: .pos_weight is for bce_with_logits, not used here; leave it out",
            gpunn_bce_loss(f->rows, t, .pos_weight = weight));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "huber_loss: delta is -1; use a positive number",
            gpunn_huber_loss(f->rows, t, .delta = -1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "huber_loss: delta is 0; use a positive number",
            gpunn_huber_loss(f->rows, t, .delta = GPUNN_ZERO));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "smooth_l1_loss: beta is nan; use a finite number from 0 on",
            gpunn_smooth_l1_loss(f->rows, t, .beta = NAN));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "mse_loss: reduction is 9; use one of gpunn_reduction",
            gpunn_mse_loss(f->rows, t, .reduction = (gpunn_reduction)9));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "bce_loss: .weight [20, 1, 20] is larger than input [batch, 20]; it must broadcast to that",
            gpunn_bce_loss(f->rows, t, .weight = large));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "bce_loss: input and .weight [batch, 20] and [3] do not broadcast (axis 1: 20 against 3)",
            gpunn_bce_loss(f->rows, t, .weight = f->three));
}

static void test_registration_losses(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *other = gpunn_input(f->model, "other", GPUNN_F32, SHAPE(B, 6, 14, 13));
    check_shape(f, gpunn_ncc_loss(f->image, f->image), SHAPE(0));
    check_shape(f, gpunn_ncc_loss(f->image, gpunn_relu(f->image), .window = 9), SHAPE(0));
    check_shape(f, gpunn_gradient_energy(f->image, GPUNN_AXES(2, -1)), SHAPE(0));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "ncc_loss: window is 4; use an odd number, or 0 for the whole image",
            gpunn_ncc_loss(f->image, f->image, .window = 4));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "ncc_loss: eps is -1; use a finite number from 0 on",
            gpunn_ncc_loss(f->image, f->image, .eps = -1));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "ncc_loss: input [batch, 6, 14, 14] and target [batch, 6, 14, 13] need the same shape, since "
            "this loss does not broadcast; gpunn_reshape one of them",
            gpunn_ncc_loss(f->image, other));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "ncc_loss: x is [batch, 20], but [n, channels, ...] of one to three more axes is needed; "
            "gpunn_reshape it",
            gpunn_ncc_loss(f->rows, f->rows));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "gradient_energy: axis 2 is listed twice; name each axis once",
            gpunn_gradient_energy(f->image, GPUNN_AXES(2, -2)));
}

static void test_class_losses(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *weight = input(f, SHAPE(20)),
                 *pixels = gpunn_input(f->model, "pixels", GPUNN_U8, SHAPE(B, 14, 14));
    check_shape(f, gpunn_cross_entropy(f->rows, f->labels, .weight = weight, .label_smoothing = 0.1f),
                SHAPE(0));
    check_shape(f, gpunn_nll_loss(f->image, pixels, .reduction = GPUNN_REDUCE_NONE), SHAPE(B, 14, 14));
    gpunn_tensor *loss = gpunn_cross_entropy(f->rows, f->labels, .ignore_index = GPUNN_ZERO);
    assert_int_equal(loss->attr.ignore_index, 0);
    assert_int_equal(loss->input_count, 3);
    assert_null(loss->inputs[2]);
    check_shape(f, gpunn_accuracy(f->rows, f->labels), SHAPE(0));
    check_shape(f, gpunn_binary_accuracy(f->rows, f->rows), SHAPE(0));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "cross_entropy: logits [batch, 6, 14, 14] and labels [batch] do not fit; [n, classes, ...] and "
            "[n, ...] are needed",
            gpunn_cross_entropy(f->image, f->labels));
    REFUSED(f, GPUNN_ERR_DTYPE,
            "cross_entropy: labels is f32, but class numbers are needed; use i64, i32 or u8",
            gpunn_cross_entropy(f->rows, f->rows));
    REFUSED(f, GPUNN_ERR_DTYPE, "nll_loss: logits is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_nll_loss(f->labels, f->labels));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "cross_entropy: label_smoothing is 2; use a number from 0 to 1",
            gpunn_cross_entropy(f->rows, f->labels, .label_smoothing = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "nll_loss: .label_smoothing is for cross_entropy, not used here; leave it out",
            gpunn_nll_loss(f->rows, f->labels, .label_smoothing = 0.5f));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "cross_entropy: reduction is 3; use GPUNN_REDUCE_MEAN, _SUM or _NONE",
            gpunn_cross_entropy(f->rows, f->labels, .reduction = GPUNN_REDUCE_BATCHMEAN));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "cross_entropy: .weight is [3], but one number for each of the 20 classes is needed",
            gpunn_cross_entropy(f->rows, f->labels, .weight = f->three));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "accuracy: logits [3] and labels [batch] do not fit; [n, classes, ...] and [n, ...] are needed",
            gpunn_accuracy(f->three, f->labels));
}

static void test_margin_losses(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *x = f->rows, *other = input(f, SHAPE(B, 20)), *narrow = input(f, SHAPE(B, 19)),
                 *sign = input(f, SHAPE(B)), *scalar = input(f, SHAPE(0)), *wide = input(f, SHAPE(B, 5, 20)),
                 *weight = input(f, SHAPE(20));
    gpunn_tensor *whole = gpunn_input(f->model, "whole", GPUNN_I64, SHAPE(B, 20)),
                 *pixels = gpunn_input(f->model, "pixels", GPUNN_U8, SHAPE(B, 14, 14));
    check_shape(f, gpunn_hinge_embedding_loss(x, other), SHAPE(0));
    check_shape(f, gpunn_hinge_embedding_loss(x, other, .margin = -2, .reduction = GPUNN_REDUCE_NONE),
                SHAPE(B, 20));
    check_shape(f, gpunn_margin_ranking_loss(x, other, other, .margin = 0.5f, .reduction = GPUNN_REDUCE_SUM),
                SHAPE(0));
    check_shape(f, gpunn_margin_ranking_loss(x, other, x, .reduction = GPUNN_REDUCE_NONE), SHAPE(B, 20));
    check_shape(f, gpunn_multi_margin_loss(x, f->labels, .p = 2, .weight = weight), SHAPE(0));
    check_shape(f, gpunn_multi_margin_loss(x, f->labels, .reduction = GPUNN_REDUCE_NONE), SHAPE(B));
    check_shape(f, gpunn_triplet_margin_loss(x, other, x, .p = INFINITY, .swap = true), SHAPE(0));
    check_shape(f,
                gpunn_triplet_margin_loss(wide, wide, wide, .p = 3, .eps = GPUNN_ZERO,
                                          .reduction = GPUNN_REDUCE_NONE),
                SHAPE(B, 5));
    check_shape(f,
                gpunn_cosine_embedding_loss(x, other, sign, .margin = 0.5f, .reduction = GPUNN_REDUCE_NONE),
                SHAPE(B));
    check_shape(f, gpunn_cosine_embedding_loss(f->three, f->three, scalar), SHAPE(0));
    check_shape(f, gpunn_cosine_similarity(wide, wide, 1, GPUNN_ZERO), SHAPE(B, 20));
    check_shape(f, gpunn_soft_margin_loss(x, other, .reduction = GPUNN_REDUCE_NONE), SHAPE(B, 20));
    check_shape(f, gpunn_gaussian_nll_loss(x, other, weight, .reduction = GPUNN_REDUCE_NONE), SHAPE(B, 20));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "gaussian_nll_loss: input and var [batch, 20] and [3] do not broadcast (axis 1: 20 against 3)",
            gpunn_gaussian_nll_loss(x, other, f->three));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "gaussian_nll_loss: eps is -1; use a positive number",
            gpunn_gaussian_nll_loss(x, other, x, .eps = -1));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "soft_margin_loss: .margin is for multi_margin_loss, not used here; leave it out",
            gpunn_soft_margin_loss(x, other, .margin = 1));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "hinge_embedding_loss: .p is for multi_margin_loss, not used here; leave it out",
            gpunn_hinge_embedding_loss(x, other, .p = 1));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "margin_ranking_loss: .eps is for triplet_margin_loss, not used here; leave it out",
            gpunn_margin_ranking_loss(x, other, other, .eps = 1));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "multi_margin_loss: .swap is for triplet_margin_loss, not used here; leave it out",
            gpunn_multi_margin_loss(x, f->labels, .swap = true));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "triplet_margin_loss: .weight is for multi_margin_loss, not used here; leave it out",
            gpunn_triplet_margin_loss(x, other, x, .weight = weight));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "cosine_embedding_loss: .p is for multi_margin_loss, not used here; leave it out",
            gpunn_cosine_embedding_loss(x, other, sign, .p = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "hinge_embedding_loss: reduction is 3; use GPUNN_REDUCE_MEAN, _SUM or _NONE",
            gpunn_hinge_embedding_loss(x, other, .reduction = GPUNN_REDUCE_BATCHMEAN));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "triplet_margin_loss: reduction is -1; use GPUNN_REDUCE_MEAN, _SUM or _NONE",
            gpunn_triplet_margin_loss(x, other, x, .reduction = (gpunn_reduction)-1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "margin_ranking_loss: margin is nan; use a finite number",
            gpunn_margin_ranking_loss(x, other, other, .margin = NAN));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "cosine_embedding_loss: margin is inf; use a finite number",
            gpunn_cosine_embedding_loss(x, other, sign, .margin = INFINITY));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "hinge_embedding_loss: input [batch, 20] and target [batch, 19] need the same shape, since this "
            "loss does not broadcast; gpunn_reshape one of them",
            gpunn_hinge_embedding_loss(x, narrow));
    REFUSED(f, GPUNN_ERR_DTYPE,
            "hinge_embedding_loss: target is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_hinge_embedding_loss(x, whole));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "hinge_embedding_loss: target is NULL",
            gpunn_hinge_embedding_loss(x, NULL));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "margin_ranking_loss: input [batch, 20] and target [batch, 19] need the same shape, since this "
            "loss does not broadcast; gpunn_reshape one of them",
            gpunn_margin_ranking_loss(x, narrow, x));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "margin_ranking_loss: input [batch, 20] and target [batch] need the same shape, since this loss "
            "does not broadcast; gpunn_reshape one of them",
            gpunn_margin_ranking_loss(x, other, sign));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "margin_ranking_loss: x2 is NULL", gpunn_margin_ranking_loss(x, NULL, x));
    REFUSED(f, GPUNN_ERR_SHAPE, "multi_margin_loss: x has 4 axes, but [n, classes] is needed",
            gpunn_multi_margin_loss(f->image, pixels));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "multi_margin_loss: logits [batch, 20] and labels [batch, 20] do not fit; [n, classes, ...] and "
            "[n, ...] are needed",
            gpunn_multi_margin_loss(x, whole));
    REFUSED(f, GPUNN_ERR_DTYPE,
            "multi_margin_loss: labels is f32, but class numbers are needed; use i64, i32 or u8",
            gpunn_multi_margin_loss(x, sign));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "multi_margin_loss: .p is 3; use 1 or 2",
            gpunn_multi_margin_loss(x, f->labels, .p = 3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "multi_margin_loss: .weight is [3], but one number for each of the 20 classes is needed",
            gpunn_multi_margin_loss(x, f->labels, .weight = f->three));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "multi_margin_loss: .weight is [batch, 20], but one number for each of the 20 classes is needed",
            gpunn_multi_margin_loss(x, f->labels, .weight = other));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "triplet_margin_loss: the anchor is a scalar; give it a last axis of features",
            gpunn_triplet_margin_loss(scalar, scalar, scalar));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "triplet_margin_loss: .p is -2; use a number above 0",
            gpunn_triplet_margin_loss(x, other, x, .p = -2));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "triplet_margin_loss: .p is 0; use a number above 0",
            gpunn_triplet_margin_loss(x, other, x, .p = GPUNN_ZERO));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "triplet_margin_loss: eps is inf; use a finite number",
            gpunn_triplet_margin_loss(x, other, x, .eps = INFINITY));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "triplet_margin_loss: input [batch, 20] and target [batch, 19] need the same shape, since this "
            "loss does not broadcast; gpunn_reshape one of them",
            gpunn_triplet_margin_loss(x, other, narrow));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "triplet_margin_loss: input [batch, 20] and target [batch, 19] need the same shape, since this "
            "loss does not broadcast; gpunn_reshape one of them",
            gpunn_triplet_margin_loss(x, narrow, other));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "triplet_margin_loss: negative is NULL",
            gpunn_triplet_margin_loss(x, other, NULL));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "cosine_embedding_loss: x1 [batch, 20] and target [] do not fit; [n, features] and [n], or "
            "[features] and [], are "
            "needed",
            gpunn_cosine_embedding_loss(x, other, scalar));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "cosine_embedding_loss: x1 [3] and target [3] do not fit; [n, features] and [n], or [features] "
            "and [], are needed",
            gpunn_cosine_embedding_loss(f->three, f->three, f->three));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "cosine_embedding_loss: x1 [batch, 20] and target [3] do not fit; [n, features] and [n], or "
            "[features] and [], are "
            "needed",
            gpunn_cosine_embedding_loss(x, other, f->three));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "cosine_embedding_loss: x1 [batch, 5, 20] and target [batch, 20] do not fit; [n, features] and "
            "[n], or [features] and "
            "[], are needed",
            gpunn_cosine_embedding_loss(wide, wide, x));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "cosine_embedding_loss: x1 [] and target [] do not fit; [n, features] and [n], or [features] and "
            "[], are needed",
            gpunn_cosine_embedding_loss(scalar, scalar, scalar));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "cosine_embedding_loss: input [batch, 20] and target [batch, 19] need the same shape, since this "
            "loss does not broadcast; gpunn_reshape one of them",
            gpunn_cosine_embedding_loss(x, narrow, sign));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "cosine_similarity: x1 [batch, 20] and x2 [20] need the same number of axes, and the same size "
            "of axis 1",
            gpunn_cosine_similarity(x, weight, -1, 0));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "cosine_similarity: x1 [batch, 20] and x2 [batch, 19] need the same number of axes, and the same "
            "size of axis 1",
            gpunn_cosine_similarity(x, narrow, 1, 0));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "cosine_similarity: eps is -1; use a finite number from 0 on",
            gpunn_cosine_similarity(x, other, 1, -1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "cosine_similarity: eps is inf; use a finite number from 0 on",
            gpunn_cosine_similarity(x, other, 1, INFINITY));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "cosine_similarity: axis 2 is not one of [batch, 20]; use -2 to 1",
            gpunn_cosine_similarity(x, other, 2, 0));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "cosine_similarity: x is a scalar, which has no axes",
            gpunn_cosine_similarity(scalar, scalar, 0, 0));
}

static void test_dice_loss(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *x = f->image, *other = input(f, SHAPE(B, 6, 14, 13));
    check_shape(f, gpunn_dice_loss(x, gpunn_relu(x)), SHAPE(0));
    check_shape(f, gpunn_dice_loss(x, x, .reduction = GPUNN_REDUCE_NONE, .squared = true), SHAPE(B, 6));
    check_shape(f, gpunn_dice_loss(x, x, .reduction = GPUNN_REDUCE_NONE, .batch = true, .smooth = GPUNN_ZERO),
                SHAPE(6));
    check_shape(f, gpunn_dice_loss(f->rows, f->rows, .reduction = GPUNN_REDUCE_NONE, .batch = true),
                SHAPE(20));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "dice_loss: input [batch, 6, 14, 14] and target [batch, 6, 14, 13] need the same shape, since "
            "this loss does not broadcast; gpunn_reshape one of them",
            gpunn_dice_loss(x, other));
    REFUSED(f, GPUNN_ERR_DTYPE, "dice_loss: target is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_dice_loss(x, f->labels));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "dice_loss: target is NULL", gpunn_dice_loss(x, NULL));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "dice_loss: reduction is 3; use GPUNN_REDUCE_MEAN, _SUM or _NONE",
            gpunn_dice_loss(x, x, .reduction = GPUNN_REDUCE_BATCHMEAN));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "dice_loss: reduction is -1; use GPUNN_REDUCE_MEAN, _SUM or _NONE",
            gpunn_dice_loss(x, x, .reduction = (gpunn_reduction)-1));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "dice_loss: x has 2 axes; [n, classes, ...] is needed; for [n, classes] set .batch = true",
            gpunn_dice_loss(f->rows, f->rows));
    REFUSED(f, GPUNN_ERR_SHAPE, "dice_loss: x has 1 axes; [n, classes, ...] is needed",
            gpunn_dice_loss(f->three, f->three, .batch = true));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "dice_loss: smooth is -1; use a finite number from 0 on",
            gpunn_dice_loss(x, x, .smooth = -1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "dice_loss: smooth is inf; use a finite number from 0 on",
            gpunn_dice_loss(x, x, .smooth = INFINITY));
}

static void test_ctc_loss(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *x = input(f, SHAPE(7, B, 5)), *first = input(f, SHAPE(B, 7, 5)),
                 *flat = input(f, SHAPE(7, 5)), *across = input(f, SHAPE(7, 4, B)),
                 *sign = input(f, SHAPE(B));
    gpunn_tensor *words = gpunn_input(f->model, "words", GPUNN_I32, SHAPE(B, 3)), *n = f->labels,
                 *small = gpunn_input(f->model, "small", GPUNN_U8, SHAPE(B)),
                 *column = gpunn_input(f->model, "column", GPUNN_I64, SHAPE(B, 1)),
                 *four = gpunn_input(f->model, "four", GPUNN_I64, SHAPE(4)),
                 *words4 = gpunn_input(f->model, "words4", GPUNN_I64, SHAPE(4, 3));
    check_shape(f, gpunn_ctc_loss(x, words, n, n), SHAPE(0));
    check_shape(
        f, gpunn_ctc_loss(x, words, n, n, .blank = 4, .zero_infinity = true, .reduction = GPUNN_REDUCE_NONE),
        SHAPE(B));
    check_shape(f, gpunn_ctc_loss(first, words, n, n, .batch_first = true, .reduction = GPUNN_REDUCE_SUM),
                SHAPE(0));
    REFUSED(f, GPUNN_ERR_DTYPE,
            "ctc_loss: log_probabilities is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_ctc_loss(column, words, n, n));
    REFUSED(f, GPUNN_ERR_DTYPE, "ctc_loss: targets is f32, but i64 or i32 is needed",
            gpunn_ctc_loss(x, f->rows, n, n));
    REFUSED(f, GPUNN_ERR_DTYPE, "ctc_loss: input_lengths is u8, but i64 or i32 is needed",
            gpunn_ctc_loss(x, words, small, n));
    REFUSED(f, GPUNN_ERR_DTYPE, "ctc_loss: target_lengths is f32, but i64 or i32 is needed",
            gpunn_ctc_loss(x, words, n, sign));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "ctc_loss: target_lengths is NULL", gpunn_ctc_loss(x, words, n, NULL));
#define UNFIT(x, targets, input_lengths, target_lengths, ordered)                                           \
    "ctc_loss: log_probabilities " x ", targets " targets " and lengths " input_lengths ", " target_lengths \
    " do not fit; " ordered ", [n, longest], [n] and [n] are needed"
    REFUSED(f, GPUNN_ERR_SHAPE, UNFIT("[7, 5]", "[batch, 3]", "[batch]", "[batch]", "[t, n, classes]"),
            gpunn_ctc_loss(flat, words, n, n));
    REFUSED(f, GPUNN_ERR_SHAPE, UNFIT("[7, batch, 5]", "[batch]", "[batch]", "[batch]", "[t, n, classes]"),
            gpunn_ctc_loss(x, n, n, n));
    REFUSED(f, GPUNN_ERR_SHAPE, UNFIT("[7, batch, 5]", "[4, 3]", "[batch]", "[batch]", "[t, n, classes]"),
            gpunn_ctc_loss(x, words4, n, n));
    REFUSED(f, GPUNN_ERR_SHAPE, UNFIT("[7, batch, 5]", "[batch, 3]", "[4]", "[batch]", "[t, n, classes]"),
            gpunn_ctc_loss(x, words, four, n));
    REFUSED(f, GPUNN_ERR_SHAPE,
            UNFIT("[7, batch, 5]", "[batch, 3]", "[batch]", "[batch, 1]", "[t, n, classes]"),
            gpunn_ctc_loss(x, words, n, column));
    REFUSED(f, GPUNN_ERR_SHAPE, UNFIT("[7, batch, 5]", "[batch, 3]", "[batch]", "[batch]", "[n, t, classes]"),
            gpunn_ctc_loss(x, words, n, n, .batch_first = true));
    REFUSED(f, GPUNN_ERR_SHAPE, UNFIT("[7, 4, batch]", "[4, 3]", "[4]", "[4]", "[t, n, classes]"),
            gpunn_ctc_loss(across, words4, four, four));
#undef UNFIT
    REFUSED(f, GPUNN_ERR_ARGUMENT, "ctc_loss: reduction is 3; use GPUNN_REDUCE_MEAN, _SUM or _NONE",
            gpunn_ctc_loss(x, words, n, n, .reduction = GPUNN_REDUCE_BATCHMEAN));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "ctc_loss: reduction is -1; use GPUNN_REDUCE_MEAN, _SUM or _NONE",
            gpunn_ctc_loss(x, words, n, n, .reduction = (gpunn_reduction)-1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "ctc_loss: blank is 5; use one of the 5 classes",
            gpunn_ctc_loss(x, words, n, n, .blank = 5));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "ctc_loss: blank is -1; set .blank to 0 or more",
            gpunn_ctc_loss(x, words, n, n, .blank = -1));
}

static bool refuse_shapes(const gpunn_shape *inputs, const float *numbers, gpunn_shape *result)
{
    (void)inputs;
    *result = SHAPE(B, 0, 3);
    return numbers[0] != 0;
}

static int compute_nothing(const gpunn_custom_call *call)
{
    (void)call;
    return 0;
}

static void test_custom(void **state)
{
    fixture        *f = (fixture *)*state;
    gpunn_custom_op op = {.name = "own", .inputs = 2, .forward = compute_nothing}, wrong = op;
    gpunn_tensor   *two[] = {f->rows, f->labels}, *half[] = {f->rows, NULL};
    check_shape(f, gpunn_custom(&op, two), SHAPE(B, 20));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "custom 'own': tensors[1] is NULL", gpunn_custom(&op, half));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "custom 'own': .numbers[7] is nan; use finite numbers",
            gpunn_custom(&op, two, .numbers = {1, 0, 0, 0, 0, 0, 0, NAN}));
    op.shape = refuse_shapes;
    REFUSED(f, GPUNN_ERR_SHAPE, "custom 'own': its shape function does not accept [batch, 20], [batch]",
            gpunn_custom(&op, two));
    REFUSED(f, GPUNN_ERR_SHAPE, "custom 'own': shape [batch, 0, 3] has a dimension 0; the smallest is 1",
            gpunn_custom(&op, two, .numbers = {1}));
    assert_null(gpunn_custom(&op, NULL));
    assert_string_equal(gpunn_error(NULL), "custom 'own': inputs is NULL");
    gpunn_clear_error(NULL);
#define WRONG(sentence)                                                               \
    do {                                                                              \
        assert_null(gpunn_custom(&wrong, two));                                       \
        assert_string_equal(gpunn_error(NULL), "custom: " sentence);                  \
        gpunn_clear_error(NULL);                                                      \
        assert_int_not_equal(gpunn_register_custom(f->dev, &wrong), GPUNN_OK);        \
        assert_string_equal(gpunn_error(f->dev), "gpunn_register_custom: " sentence); \
        gpunn_clear_error(f->dev);                                                    \
        wrong = op;                                                                   \
    } while (0)
    char long_name[65];
    memset(long_name, 'n', sizeof long_name);
    long_name[64] = 0;
    const char *const names[] = {NULL, "", "a b", long_name};
    for (int i = 0; i < 4; i++) {
        wrong.name = names[i];
        WRONG("the op's .name must have 1 to 63 letters, digits, '_', '.' or '-'");
    }
    wrong.name = long_name + 1;
    assert_int_equal(gpunn_register_custom(f->dev, &wrong), GPUNN_OK);
    wrong = op;
    wrong.inputs = 0;
    WRONG("the op's .inputs must be 1 to 16");
    wrong.inputs = GPUNN_CUSTOM_INPUTS + 1;
    WRONG("the op's .inputs must be 1 to 16");
    wrong.forward = NULL;
    WRONG("the op's .forward is NULL; a CPU function is always needed");
#undef WRONG
    assert_int_not_equal(gpunn_register_custom(f->dev, NULL), GPUNN_OK);
    assert_string_equal(gpunn_error(f->dev), "gpunn_register_custom: the op is NULL");
    gpunn_clear_error(f->dev);
    assert_int_not_equal(gpunn_register_custom(NULL, &op), GPUNN_OK);
    assert_string_equal(gpunn_error(NULL), "gpunn_register_custom: the device is NULL");
    gpunn_clear_error(NULL);
}

/* ---- transpose, and layers that create nothing and so need no name ---- */
static void test_transpose(void **state)
{
    fixture *f = (fixture *)*state;
    check_shape(f, gpunn_transpose(f->image, 1, -1), SHAPE(B, 14, 14, 6));
    check_shape(f, gpunn_transpose(f->rows, 0, 1), SHAPE(20, B));
    check_shape(f, gpunn_transpose(f->rows, -1, -1), SHAPE(B, 20));
    assert_memory_equal(gpunn_transpose(f->image, 3, 1)->attr.order, ((const int[]){0, 3, 2, 1}),
                        4 * sizeof(int));
    if (gpunn_transpose(f->rows, 0, 2)) fail_msg("accepted");
    assert_non_null(strstr(gpunn_error(f->dev), "transpose: axis 2"));
    gpunn_clear_error(f->dev);
    if (gpunn_transpose(NULL, 0, 1)) fail_msg("accepted");
    gpunn_clear_error(NULL);
}

static void test_names_left_out(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *w = gpunn_parameter(f->model, "w", SHAPE(5, 20), (gpunn_init){GPUNN_INIT_DEFAULT, 0, 0});
    gpunn_tensor *c = gpunn_parameter(f->model, "c", SHAPE(4, 6, 3, 3),
                                      (gpunn_init){GPUNN_INIT_DEFAULT, 0, 0});
    gpunn_tensor *a = gpunn_linear(f->rows, NULL, .weight = w, .no_bias = true),
                 *b = gpunn_linear(f->rows, "", .weight = w, .no_bias = true),
                 *d = gpunn_conv2d(f->image, NULL, .out_channels = 4, .kernel_size = 3, .no_bias = true,
                                   .weight = c),
                 *e = gpunn_embedding(f->labels, NULL, .weight = w);
    check_shape(f, a, SHAPE(B, 5));
    check_shape(f, d, SHAPE(B, 4, 12, 12));
    check_shape(f, e, SHAPE(B, 20));
    assert_string_not_equal(a->layer, b->layer);
    assert_int_equal(gpunn_parameter_count(f->model), 2);
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "linear: the layer needs a name, since the names of its parameters begin with it",
            gpunn_linear(f->rows, NULL, .weight = w));
}

/* ---- what the tests above leave out of each rule: the other ends of ranges, each of several operands --- */
static void test_other_ends(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *deep = input(f, SHAPE(1, 1, 1, 1, 1, 1, 1, 3)), *two[2] = {f->rows, f->three};
    gpunn_tensor *codes = gpunn_input(f->model, "codes", GPUNN_I64, SHAPE(1, 1, 1, 1, 1, 1, 1, 3)),
                 *ranked = gpunn_input(f->model, "ranked", GPUNN_I64, SHAPE(B, 1)),
                 *flag = gpunn_cast(f->rows, GPUNN_BOOL),
                 *middle = gpunn_expand(gpunn_matmul(f->rows, f->rows, .transpose_b = true), SHAPE(3, B, B));
    REFUSED(f, GPUNN_ERR_DTYPE,
            "input 'a': an input cannot have dtype bf16; use f32, f64, i64, i32, u8 or bool",
            gpunn_input(f->model, "a", GPUNN_BF16, SHAPE(3)));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "clamp: an attribute is NaN; pass a number", gpunn_clamp(f->rows, 0, NAN));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "flatten: the axes after the first hold the batch more than once (x [3, batch, batch]); use "
            "gpunn_reshape",
            gpunn_flatten(middle));
    assert_null(gpunn_concat(two, 65, 0));
    assert_string_equal(gpunn_error(NULL), "concat: got 65 tensors, but 1 to 64 can be joined at once");
    gpunn_clear_error(NULL);
    assert_null(gpunn_stack(two, 65, 0));
    assert_string_equal(gpunn_error(NULL), "stack: got 65 tensors, but 1 to 64 can be joined at once");
    gpunn_clear_error(NULL);
    assert_null(gpunn_einsum("", two, 0));
    assert_string_equal(gpunn_error(NULL),
                        "einsum: got 0 tensors, but one or two are possible; multiply two at a time");
    gpunn_clear_error(NULL);
    REFUSED(f, GPUNN_ERR_SHAPE,
            "prelu 'p': num_parameters is 3, but must be 1 or the channels of axis 1 (input [3])",
            gpunn_prelu(f->three, "p", 3, 0));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "prelu 'p': init is inf; use a finite number",
            gpunn_prelu(f->rows, "p", 1, INFINITY));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "matmul: a is [batch, 20] and b [3], but both need two axes or more; gpunn_reshape them",
            gpunn_matmul(f->rows, f->three));

    /* layers */
    gpunn_tensor *w = gpunn_parameter(f->model, "w", SHAPE(20, 9), (gpunn_init){0}),
                 *b = gpunn_parameter(f->model, "b", SHAPE(20), (gpunn_init){0}),
                 *rank2 = input(f, SHAPE(20, 1)), *line = input(f, SHAPE(B, 6, 196));
    REFUSED(
        f, GPUNN_ERR_SHAPE,
        "linear 'l': .weight is [20], but [out_features, x's features] is needed, where out_features is 0",
        gpunn_linear(f->rows, "l", .weight = b));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "linear 'l': .bias is [20], but must be a parameter [20], and excludes .no_bias",
            gpunn_linear(f->rows, "l", .out_features = 20, .bias = b, .no_bias = true));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "linear 'l': .bias is [20, 9], but must be a parameter [20], and excludes .no_bias",
            gpunn_linear(f->rows, "l", .out_features = 20, .bias = w));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "linear 'l': .bias is [20, 1], but must be a parameter [20], and excludes .no_bias",
            gpunn_linear(f->rows, "l", .out_features = 20, .bias = rank2));
    REFUSED(f, GPUNN_ERR_DTYPE, "linear 'l': .bias is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_linear(f->rows, "l", .out_features = 20, .bias = f->labels));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "embedding 'e': tokens is [1, 1, 1, 1, 1, 1, 1, 3]; the result would have more than 8 axes; "
            "gpunn_reshape it",
            gpunn_embedding(codes, "e", .num_embeddings = 9, .embedding_dim = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "embedding 'e': embedding_dim is 0; set .embedding_dim to 1 or more",
            gpunn_embedding(f->labels, "e", .num_embeddings = 9));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "conv1d 'c': groups is -1; set .groups to 1 or more",
            gpunn_conv1d(line, "c", .out_channels = 8, .kernel_size = 3, .groups = -1));
    REFUSED(
        f, GPUNN_ERR_ARGUMENT,
        "conv2d 'c': groups is 3, but the input has 6 channels and out_channels is 8; it must divide both",
        gpunn_conv2d(f->image, "c", .out_channels = 8, .kernel_size = 3, .groups = 3));
    check_shape(f,
                gpunn_conv_transpose2d(f->image, "dilated", .out_channels = 2, .kernel_size = 2,
                                       .dilation = 2, .output_padding = 1),
                SHAPE(B, 2, 17, 17)); /* less than the dilation, not less than the stride */
    REFUSED(f, GPUNN_ERR_ARGUMENT, "batch_norm2d 'n': eps is inf; use a positive number",
            gpunn_batch_norm2d(f->image, "n", .eps = INFINITY));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "batch_norm2d 'n': momentum is -1; use a number from 0 to 1",
            gpunn_batch_norm2d(f->image, "n", .momentum = -1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "group_norm 'n': eps is inf; use a positive number",
            gpunn_group_norm(f->image, "n", .num_groups = 2, .eps = INFINITY));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "layer_norm 'n': eps is inf; use a positive number",
            gpunn_layer_norm(f->rows, "n", .eps = INFINITY));
    gpunn_tensor *steps = input(f, SHAPE(5, B, 4)), *flat = input(f, SHAPE(1, 3));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "rnn 'l': hidden_size is 268435456; set .hidden_size to 1 or more",
            gpunn_rnn(steps, "l", .hidden_size = INT32_MAX / 8 + 1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "gru 'l': num_layers is 65; use 1 to 64",
            gpunn_gru(steps, "l", .hidden_size = 3, .num_layers = 65));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "lstm 'l': dropout is -1; use a probability from 0 to 1",
            gpunn_lstm(steps, "l", .hidden_size = 3, .num_layers = 2, .dropout = -1));
    REFUSED(
        f, GPUNN_ERR_SHAPE,
        "lstm 'l': .c_0 is [1, 3], but [num_layers * directions, n, hidden_size], [1, batch, 3], is needed",
        gpunn_lstm(steps, "l", .hidden_size = 3, .c_0 = flat));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "rnn 'l': .c_0 is not used by this layer; leave it out",
            gpunn_rnn(steps, "l", .hidden_size = 3, .c_0 = flat));
    REFUSED(f, GPUNN_ERR_SHAPE, "gru 'l': lengths is [batch, 1], but [batch] is needed",
            gpunn_gru(steps, "l", .hidden_size = 3, .lengths = ranked));

    /* sampling */
    gpunn_tensor *grid = input(f, SHAPE(2, 7, 8, 2)), *grid3 = input(f, SHAPE(B, 7, 8, 3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "grid_sample: x is [batch, 6, 14, 14] and grid [2, 7, 8, 2]; the grid of images must have as "
            "many samples, [n, out_h, "
            "out_w, 2]",
            gpunn_grid_sample(f->image, grid));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "grid_sample: x is [batch, 6, 14, 14] and grid [batch, 7, 8, 3]; the grid of images must have as "
            "many samples, [n, "
            "out_h, out_w, 2]",
            gpunn_grid_sample(f->image, grid3));
    gpunn_tensor *fits = input(f, SHAPE(B, 7, 8, 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "grid_sample: mode is -1; use one of gpunn_grid_mode",
            gpunn_grid_sample(f->image, fits, .mode = (gpunn_grid_mode)-1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "grid_sample: padding_mode is 3; use one of gpunn_grid_padding",
            gpunn_grid_sample(f->image, fits, .padding_mode = (gpunn_grid_padding)3));
    gpunn_tensor *theta = input(f, SHAPE(B, 2, 3)), *wide = input(f, SHAPE(B, 2, 4));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "affine_grid: theta is [batch, 2, 3] and size is [4]; use [n, 2, 3] with two sizes, or [n, 3, 4] "
            "with three",
            gpunn_affine_grid(theta, SHAPE(4), false));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "affine_grid: theta is [batch, 20] and size is [4, 5]; use [n, 2, 3] with two sizes, or [n, 3, "
            "4] with three",
            gpunn_affine_grid(f->rows, SHAPE(4, 5), false));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "affine_grid: theta is [batch, 2, 4] and size is [4, 5]; use [n, 2, 3] with two sizes, or [n, 3, "
            "4] with three",
            gpunn_affine_grid(wide, SHAPE(4, 5), false));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "interpolate: mode is -1; use one of gpunn_interpolate_mode",
            gpunn_interpolate(f->image, .scale_factor = 2, .mode = (gpunn_interpolate_mode)-1));
    check_shape(f,
                gpunn_interpolate(f->image, .scale_factor = 2, .mode = GPUNN_INTERPOLATE_LINEAR,
                                  .align_corners = true),
                SHAPE(B, 6, 28, 28));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "interpolate: size[2] or scale_factors[2] is set, but x has 2 spatial axes; leave it out",
            gpunn_interpolate(f->image, .size = {3, 3}, .scale_factors = {0, 0, 2}));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "interpolate: size is 0 and scale_factor 2e+09 along axis 2; set .size to 1 to 2^31 - 1 or "
            ".scale_factor to 1e-9 to 1e9",
            gpunn_interpolate(f->image, .scale_factor = 2e9));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "interpolate: size is -1 and scale_factor 0 along axis 2; set .size to 1 to 2^31 - 1 or "
            ".scale_factor to 1e-9 to 1e9",
            gpunn_interpolate(f->image, .size = {-1, 3}));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "interpolate: scale_factor 1e+09 gives size 1.4e+10 for the 14 along axis 2; use another factor",
            gpunn_interpolate(f->image, .scale_factor = 1e9));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "pad: mode is -1; use one of gpunn_pad_mode",
            gpunn_pad(f->rows, .mode = (gpunn_pad_mode)-1));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "pad: 0 before and -1 after axis 1 are out of range; use 0 or more, gpunn_slice to cut",
            gpunn_pad(f->rows, .after = {0, -1}));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "pad: 576460752303423489 before and 0 after axis 1 are out of range; use 0 or more, gpunn_slice "
            "to cut",
            gpunn_pad(f->rows, .before = {0, GPUNN__MAX_COUNT + 1}));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "pad: 0 before and 576460752303423489 after axis 1 are out of range; use 0 or more, gpunn_slice "
            "to cut",
            gpunn_pad(f->rows, .after = {0, GPUNN__MAX_COUNT + 1}));

    /* copies */
    gpunn_tensor *deeps[2] = {deep, deep};
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "stack: axis 0 is not an axis of the result; tensors of shape [1, 1, 1, 1, 1, 1, 1, 3] give 9 "
            "axes, of which at most 8 are possible",
            gpunn_stack(deeps, 2, 0));
    two[1] = f->rows;
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "stack: axis -4 is not an axis of the result; tensors of shape [batch, 20] give 3 axes, of which "
            "at most 8 are possible",
            gpunn_stack(two, 2, -4));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "one_hot: classes is 16777217 and index is [batch]; use 1 to 2^24 classes, and at most 8 axes in "
            "the result",
            gpunn_one_hot(f->labels, (1 << 24) + 1));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "one_hot: classes is 4 and index is [1, 1, 1, 1, 1, 1, 1, 3]; use 1 to 2^24 classes, and at most "
            "8 axes in the result",
            gpunn_one_hot(codes, 4));
    REFUSED(f, GPUNN_ERR_DTYPE, "one_hot: index is bool, but class numbers are needed; use i64, i32 or u8",
            gpunn_one_hot(flag, 4));
    gpunn_tensor *square[2] = {middle, middle};
    REFUSED(f, GPUNN_ERR_UNSUPPORTED,
            "einsum: the product shares more than 6 axes, or joins axes that are the batch; gpunn_reshape "
            "the tensors",
            gpunn_einsum("aij,bij->ab", square, 2));

    REFUSED(f, GPUNN_ERR_UNSUPPORTED,
            "einsum: the product shares more than 6 axes, or joins axes that are the batch; gpunn_reshape "
            "the tensors",
            gpunn_einsum("abcdefgh,abcdefgh->abcdefg", deeps, 2));

    /* attention */
    gpunn_tensor *q = input(f, SHAPE(B, 4, 7, 8)), *few = input(f, SHAPE(3, 4, 7, 8)),
                 *thin = input(f, SHAPE(B, 4, 7, 6)), *two_heads = input(f, SHAPE(B, 2, 7, 8)),
                 *four = input(f, SHAPE(B, 7, 4, 4, 8)), *batched = input(f, SHAPE(7, 4, 3, B)),
                 *five = input(f, SHAPE(2, B, 4, 7, 7));
#define UNFIT(q, k, v)                                                         \
    "scaled_dot_product_attention: q is " q ", k " k " and v " v               \
    ": all need the same n, q and k the same head size, and k and v the same " \
    "rows and heads"
    REFUSED(f, GPUNN_ERR_SHAPE, UNFIT("[3, 4, 7, 8]", "[batch, 4, 7, 8]", "[batch, 4, 7, 8]"),
            gpunn_scaled_dot_product_attention(few, q, q));
    REFUSED(f, GPUNN_ERR_SHAPE, UNFIT("[batch, 4, 7, 8]", "[batch, 4, 7, 8]", "[3, 4, 7, 8]"),
            gpunn_scaled_dot_product_attention(q, q, few));
    REFUSED(f, GPUNN_ERR_SHAPE, UNFIT("[batch, 4, 7, 8]", "[batch, 4, 7, 6]", "[batch, 4, 7, 8]"),
            gpunn_scaled_dot_product_attention(q, thin, q));
    REFUSED(f, GPUNN_ERR_SHAPE, UNFIT("[batch, 4, 7, 8]", "[batch, 4, 7, 8]", "[batch, 2, 7, 8]"),
            gpunn_scaled_dot_product_attention(q, q, two_heads));
#undef UNFIT
    REFUSED(f, GPUNN_ERR_SHAPE,
            "scaled_dot_product_attention: q is [batch, 7, 4, 4, 8], but [n, rows, heads, e] is needed, or "
            "[n, rows, 3, heads, e] for q, k and v in one; gpunn_reshape it",
            gpunn_scaled_dot_product_attention(four, NULL, NULL));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "scaled_dot_product_attention: q is [7, 4, 3, batch]: the number and the size of the heads must "
            "be fixed, and below 2^31",
            gpunn_scaled_dot_product_attention(batched, batched, batched));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "scaled_dot_product_attention: .mask [2, batch, 4, 7, 7] is larger than [n, heads, l, s], here "
            "[batch, 4, 7, 7]; it "
            "must broadcast to that",
            gpunn_scaled_dot_product_attention(q, q, q, .mask = five));
    gpunn_tensor *single = input(f, SHAPE(1, 4, 7, 8)), *pair = input(f, SHAPE(2, 1, 1, 7));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "scaled_dot_product_attention: .mask [2, 1, 1, 7] is larger than [n, heads, l, s], here [1, 4, "
            "7, 7]; it must "
            "broadcast to that",
            gpunn_scaled_dot_product_attention(single, single, single, .mask = pair));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "scaled_dot_product_attention: dropout_p is -0.5; use a number from 0 to 1",
            gpunn_scaled_dot_product_attention(q, q, q, .dropout_p = -0.5f));
    gpunn_tensor *x = input(f, SHAPE(B, 7, 12)), *y = input(f, SHAPE(B, 5, 12)),
                 *other = input(f, SHAPE(4, 7, 12)), *last = input(f, SHAPE(7, 12, B));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "multi_head_attention 'm': query is [7, 12, batch], but [n, rows, size] (.batch_first) or [rows, "
            "n, size] is needed",
            gpunn_multi_head_attention(last, last, last, "m", .num_heads = 3));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "multi_head_attention 'm': num_heads is 0; set .num_heads to 1 or more",
            gpunn_multi_head_attention(x, x, x, "m"));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "multi_head_attention 'm': value is NULL",
            gpunn_multi_head_attention(x, x, NULL, "m", .num_heads = 3));
#define UNFIT(key, value)                                                             \
    "multi_head_attention 'm': query is [batch, 7, 12], key " key " and value " value \
    ": all need the same n, key and value "                                           \
    "the same rows"
    REFUSED(f, GPUNN_ERR_SHAPE, UNFIT("[batch, 7, 12]", "[4, 7, 12]"),
            gpunn_multi_head_attention(x, x, other, "m", .num_heads = 3, .batch_first = true));
    REFUSED(f, GPUNN_ERR_SHAPE, UNFIT("[4, 7, 12]", "[4, 7, 12]"),
            gpunn_multi_head_attention(x, other, other, "m", .num_heads = 3, .batch_first = true));
#undef UNFIT
    gpunn_tensor *mask = input(f, SHAPE(B, 7, 7)), *masks[3] = {mask, mask, mask},
                 *mask3 = gpunn_concat(masks, 3, 0);
    check_shape(
        f, gpunn_multi_head_attention(x, x, x, "m", .num_heads = 3, .batch_first = true, .attn_mask = mask3),
        SHAPE(B, 7, 12));
    REFUSED(
        f, GPUNN_ERR_SHAPE,
        "multi_head_attention 'k': .attn_mask is [3 batch, 7, 7], but [2 batch, 7, 7] is needed",
        gpunn_multi_head_attention(x, x, x, "k", .num_heads = 2, .batch_first = true, .attn_mask = mask3));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "multi_head_attention 'k': .key_padding_mask is [3], but [batch, 7] is needed",
            gpunn_multi_head_attention(x, x, x, "k", .num_heads = 2, .batch_first = true,
                                       .key_padding_mask = f->three));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "transformer_encoder_layer 't': .memory_key_padding_mask is for transformer_decoder_layer, not "
            "used here; leave it out",
            gpunn_transformer_encoder_layer(x, "t", .nhead = 2, .memory_key_padding_mask = f->rows));
    check_shape(f,
                gpunn_transformer_decoder(x, y, "td", .nhead = 2, .num_layers = 1, .dim_feedforward = 8,
                                          .batch_first = true),
                SHAPE(B, 7, 12));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "transformer_decoder 't': memory is NULL",
            gpunn_transformer_decoder(x, NULL, "t", .nhead = 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "transformer_decoder 't': num_layers is -3; set .num_layers to 1 or more",
            gpunn_transformer_decoder(x, y, "t", .nhead = 2, .num_layers = -3, .batch_first = true));
    REFUSED(f, GPUNN_ERR_ARGUMENT,
            "transformer_encoder: the layer needs a name, since the names of its parameters begin with it",
            gpunn_transformer_encoder(x, "", .nhead = 2));

    /* losses */
    REFUSED(f, GPUNN_ERR_SHAPE,
            "mse_loss: input [batch, 20] and target [3] need the same shape, since this loss does not "
            "broadcast; gpunn_reshape one of them",
            gpunn_mse_loss(f->rows, f->three));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "mse_loss: reduction is -1; use one of gpunn_reduction",
            gpunn_mse_loss(f->rows, f->rows, .reduction = (gpunn_reduction)-1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "huber_loss: delta is inf; use a positive number",
            gpunn_huber_loss(f->rows, f->rows, .delta = INFINITY));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "ncc_loss: window is -1; set .window to 0 or more",
            gpunn_ncc_loss(f->image, f->image, .window = -1));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "ncc_loss: eps is inf; use a finite number from 0 on",
            gpunn_ncc_loss(f->image, f->image, .eps = INFINITY));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "cross_entropy: label_smoothing is -1; use a number from 0 to 1",
            gpunn_cross_entropy(f->rows, f->labels, .label_smoothing = -1));
}

/* ---- gpunn_expr ---- */
/* Writes what a value is made of: op(operand, ..., attributes). */
static void describe(const gpunn_tensor *t, char *text, size_t size)
{
    if (t->kind == GPUNN__CONSTANT)
        (void)snprintf(text, size, "%g", (double)t->constant[0]);
    else if (t->kind != GPUNN__VALUE)
        (void)snprintf(text, size, "%s", t->name);
    else {
        size_t used = (size_t)snprintf(text, size, "%s(", gpunn_op_name(t->op));
        for (int i = 0; i < t->input_count && used < size; i++) {
            describe(t->inputs[i], text + used, size - used);
            used += strlen(text + used);
            if (i + 1 < t->input_count) used += (size_t)snprintf(text + used, size - used, ", ");
        }
        for (int i = 0; i < gpunn__op_attribute_count(t->op) && used < size; i++)
            used += (size_t)snprintf(text + used, size - used, ", %g", (double)t->attr.value[i]);
        if (used < size) (void)snprintf(text + used, size - used, ")");
    }
}

static void test_expr(void **state)
{
    static const char *const cases[][2] = {
        {"x", "x"},
        {" ( x ) ", "x"},
        {"x0 + x1 * x2", "add(x, mul(y, z))"},
        {"x - y - z", "sub(sub(x, y), z)"},
        {"x / y / z", "div(div(x, y), z)"},
        {"x - (y - z)", "sub(x, sub(y, z))"},
        {"-x * y", "mul(neg(x), y)"},
        {"- - x", "neg(neg(x))"},
        {"x + -y", "add(x, neg(y))"},
        {"x - 2", "add_scalar(x, -2)"},
        {"2 - x", "add_scalar(neg(x), 2)"},
        {"2 + x", "add_scalar(x, 2)"},
        {"3 * x", "mul_scalar(x, 3)"},
        {"x / 4", "mul_scalar(x, 0.25)"},
        {"x / 3", "div(x, 3)"},
        {"1 / x", "reciprocal(x)"},
        {"x ** 2", "square(x)"},
        {"-x ** y ** 3", "neg(pow(x, pow_scalar(y, 3)))"},
        {"2 ** -x", "pow(2, neg(x))"},
        {"x < y < z", "where(lt(x, y), lt(y, z), lt(x, y))"},
        {"x and y or not z", "where(where(x, y, x), where(x, y, x), eq(z, 0))"},
        {"x if y else z if x else y", "where(y, x, where(x, z, y))"},
        {"2 if 1 < 2 < 3 and not 0 else x", "2"},
        {"where(1, 2, x)", "where(1, 2, x)"},
        {"x if 0 else y", "y"},
        {"(x if 1 else 1 / 0 * y) if not (1 if 0 else 0) else z", "x"},
        {"1 and x or y", "where(x, x, y)"},
        {"1 or sum(x, 9)", "1"},
        {"0 and sum(x, 9)", "0"},
        {"x * True + False", "add_scalar(mul_scalar(x, 1), 0)"},
        {"x - mean(x, 1, keepdim=True)", "sub(x, sum(x))"},
        {"sum(x) / amax(x ** 2, 0, -1, keepdim=0)", "div(sum(x), max(square(x)))"},
        {"sum(x, 1:) + mean(x, -2:)", "add(sum(x), sum(x))"},
        {"norm(x, 2, 1)", "sqrt(sum(square(x)))"},
        {"norm(x, 1, 1, keepdim=True)", "sum(abs(x))"},
        {"norm(x, 1 / 0)", "max(abs(x))"},
        {"norm(x, 4, 0)", "pow_scalar(sum(pow_scalar(abs(x), 4)), 0.25)"},
        {"float(argmax(x, 0)) == float(y)", "eq(cast(argmax(x)), y)"},
        {"softmax(x, 1) * log_softmax(x, -1) - cumsum(x, 0)",
         "sub(mul(softmax(x), log_softmax(x)), cumsum(x))"},
        {"given(x)", "1"},
        {"t = x + y; u = t * t; t = 3; u * t", "mul_scalar(mul(add(x, y), add(x, y)), 3)"},
        {"2 / x", "div(2, x)"},
        {"x / 0", "div(x, 0)"},
        {"1 / 2 * x", "mul_scalar(x, 0.5)"},
        {"x * (2 + 3 * 4 - 1e1 / 5)", "mul_scalar(x, 12)"},
        {"x * K(0.5)", "mul_scalar(x, 0.5)"},
        {"x * .5e-1", "mul_scalar(x, 0.05)"},
        {"x * sqrt(4)", "mul_scalar(x, 2)"},
        {"x * pi", "mul_scalar(x, 3.14159)"},
        {"x < y", "lt(x, y)"},
        {"x + 1 >= y * 2", "ge(add_scalar(x, 1), mul_scalar(y, 2))"},
        {"(x == y) != z", "ne(eq(x, y), z)"},
        {"x > 0", "gt(x, 0)"},
        {"x * (1 < 2)", "mul_scalar(x, 1)"},
        {"max(x, 0) + min(0, y)", "add(maximum(x, 0), minimum(0, y))"},
        {"maximum(x, y)", "maximum(x, y)"},
        {"add(x, 2)", "add_scalar(x, 2)"},
        {"pow(x, 2)", "square(x)"},
        {"pow(x, 3)", "pow_scalar(x, 3)"},
        {"pow(x, y)", "pow(x, y)"},
        {"pow(2, x)", "pow(2, x)"},
        {"x * sigmoid(1.702 * x)", "mul(x, sigmoid(mul_scalar(x, 1.702)))"},
        {"where(x > 0, x, leaky_relu(x, 0.2))", "where(gt(x, 0), x, leaky_relu(x, 0.2))"},
        {"leaky_relu(x)", "leaky_relu(x, 0.01)"},
        {"softplus(x, 1 + 1)", "softplus(x, 2, 20)"},
        {"softplus(x, 2, -3)", "softplus(x, 2, -3)"},
        {"huber(x, y)", "huber(x, y, 1)"},
        {"smooth_l1(x, y, 2)", "smooth_l1(x, y, 2)"},
        {"sigmoid(0)", "sigmoid(0)"},
        {"7", "7"},
    };
    fixture      *f = (fixture *)*state;
    gpunn_model  *model = gpunn_model_create(f->dev);
    gpunn_tensor *args[3] = {gpunn_input(model, "x", GPUNN_F32, SHAPE(B, 3)),
                             gpunn_input(model, "y", GPUNN_F32, SHAPE(3)),
                             gpunn_input(model, "z", GPUNN_F32, SHAPE(B, 1))};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char          text[512];
        gpunn_tensor *t = gpunn_expr(cases[i][0], args, 3);
        if (t == NULL) fail_msg("%s", gpunn_error(f->dev));
        describe(t, text, sizeof text);
        assert_string_equal(text, cases[i][1]);
    }
    check_shape(f, gpunn_expr("y + z", args, 3), SHAPE(B, 3));
    int before = model->tensor_count; /* one constant 0.25, though it is used three times */
    assert_non_null(gpunn_expr("max(x, 0.25) + max(y, 0.25) + max(z, 1 / 4)", args, 3));
    assert_int_equal(model->tensor_count, before + 6);
    gpunn_model_destroy(model);
}

/* tests/generator/expected/expressions.txt, which tests/generator/test_parse.py reads too: an expression over
 * three inputs of ids 0 to 2, then its nodes, or "error". */
static void test_expr_as_the_generator(void **state)
{
    fixture *f = (fixture *)*state;
    FILE    *file = fopen("tests/generator/expected/expressions.txt", "rb");
    char     line[8192], expected[8192], text[8192];
    int      cases = 0;
    if (file == NULL) fail_msg("tests/generator/expected/expressions.txt cannot be read");
    while (fgets(line, sizeof line, file) && fgets(expected, sizeof expected, file)) {
        gpunn_model  *model = gpunn_model_create(f->dev);
        gpunn_tensor *args[3] = {gpunn_input(model, "x", GPUNN_F32, SHAPE(B, 4)),
                                 gpunn_input(model, "y", GPUNN_F32, SHAPE(B, 4)),
                                 gpunn_input(model, "z", GPUNN_F32, SHAPE(B, 4))};
        line[strcspn(line, "\n")] = 0;
        expected[strcspn(expected, "\n")] = 0;
        gpunn_tensor *t = gpunn_expr(line, args, 3);
        size_t        used = (size_t)snprintf(text, sizeof text, "%s", t ? "    " : "    error");
        for (int id = 3; id < model->tensor_count && used < sizeof text; id++) {
            const gpunn_tensor *node = model->tensors[id];
            bool                constant = node->kind == GPUNN__CONSTANT;
            char                along[512];
            gpunn__node_text(node, along, sizeof along);
            const char *op = gpunn__op_arity(node->op) ? gpunn_op_name(node->op) : along;
            used += (size_t)(constant ? snprintf(text + used, sizeof text - used, "%.9g",
                                                 (double)node->constant[0])
                                      : snprintf(text + used, sizeof text - used, "%s", op));
            for (int i = 0; !constant && i < gpunn__op_attribute_count(node->op) && used < sizeof text; i++)
                used += (size_t)snprintf(text + used, sizeof text - used, " %.9g",
                                         (double)node->attr.value[i]);
            for (int i = 0; i < node->input_count && used < sizeof text; i++)
                used += (size_t)snprintf(text + used, sizeof text - used, " #%d", node->inputs[i]->id);
            if (used < sizeof text) used += (size_t)snprintf(text + used, sizeof text - used, "; ");
        }
        if (t && used < sizeof text) (void)snprintf(text + used, sizeof text - used, "= #%d", t->id);
        if (strcmp(text, expected) != 0) fail_msg("%s\n%s\nbut expected\n%s", line, text, expected);
        gpunn_clear_error(f->dev);
        gpunn_model_destroy(model);
        cases++;
    }
    (void)fclose(file);
    assert_true(cases > 250);
}

/* What the loader of specs calls: operands and numbers under names of their own. */
static void test_expr_names(void **state)
{
    fixture                 *f = (fixture *)*state;
    gpunn_model             *model = gpunn_model_create(f->dev);
    static const char *const names[] = {"gate", "x"}, *const number_names[] = {"alpha", "x"};
    static const double numbers[] = {0.1, 5};
    char                text[512], many[64 * 16] = "";
    gpunn_tensor       *args[] = {gpunn_input(model, "in", GPUNN_F32, SHAPE(B, 3)),
                                  gpunn_input(model, "by", GPUNN_F32, SHAPE(B, 3))};
    describe(gpunn__expr("gate * alpha + x * (2 * alpha)", names, args, 2, number_names, numbers, 2, NULL),
             text, sizeof text);
    assert_string_equal(text, "add(mul_scalar(in, 0.1), mul_scalar(by, 0.2))");
    assert_null(gpunn__expr("y + alpha", names, args, 2, number_names, numbers, 2, NULL));
    assert_non_null(strstr(gpunn_error(f->dev), "unknown name 'y' at character 1"));
    gpunn_clear_error(f->dev);
    for (int i = 0; i < 53; i++)
        (void)snprintf(many + strlen(many), sizeof many - strlen(many), "t%d = x; ", i);
    (void)snprintf(many + strlen(many), sizeof many - strlen(many), "t52");
    assert_non_null(gpunn_expr(many, args, 2)); /* beside pi and x x0 y x1: 58 names */
    memmove(many + 9 * 7, many, strlen(many) + 1);
    for (int i = 0; i < 7; i++) memcpy(many + i * 9, "s0 = x;  ", 9);
    assert_null(gpunn_expr(many, args, 2));
    assert_non_null(strstr(gpunn_error(f->dev), "more than 64 names"));
    gpunn_clear_error(f->dev);
    gpunn_model_destroy(model);
}

static void test_expr_errors(void **state)
{
    static const char *const cases[][2] = {
        {"", "gpunn_expr: an operand is missing at character 1 of \"\""},
        {"x +", "gpunn_expr: an operand is missing at character 4 of \"x +\""},
        {"x * foo", "gpunn_expr: unknown name 'foo' at character 5 of \"x * foo\""},
        {"bar(x)", "gpunn_expr: unknown function 'bar' at character 1 of \"bar(x)\""},
        {"prod(x)", "gpunn_expr: unknown function 'prod' at character 1 of \"prod(x)\""},
        {"sum()", "gpunn_expr: too few arguments for 'sum' at character 1 of \"sum()\""},
        {"sum(x, y)", "gpunn_expr: an axis is needed here, a whole number at character 8 of \"sum(x, y)\""},
        {"sum(x, 0.5)",
         "gpunn_expr: an axis is needed here, a whole number at character 8 of \"sum(x, 0.5)\""},
        {"sum(x, 2:)", "gpunn_expr: x has no such axes for 'sum' at character 1 of \"sum(x, 2:)\""},
        {"sum(x, 2)", "sum: axis 2 is not one of [batch, 20]; use -2 to 1"},
        {"sum(x, keepdim=True, 1)",
         "gpunn_expr: ')' or ',' is missing at character 20 of \"sum(x, keepdim=True, 1)\""},
        {"sum(x, keepdim=x)",
         "gpunn_expr: an axis is needed here, a whole number at character 16 of \"sum(x, keepdim=x)\""},
        {"softmax(x)", "gpunn_expr: too few arguments for 'softmax' at character 1 of \"softmax(x)\""},
        {"softmax(x, 0, 1)",
         "gpunn_expr: too many arguments for 'softmax' at character 15 of \"softmax(x, 0, 1)\""},
        {"softmax(x, 0:)", "gpunn_expr: ')' or ',' is missing at character 13 of \"softmax(x, 0:)\""},
        {"argmax(x, keepdim=1)",
         "gpunn_expr: too few arguments for 'argmax' at character 1 of \"argmax(x, keepdim=1)\""},
        {"float(x, 1)", "gpunn_expr: too many arguments for 'float' at character 10 of \"float(x, 1)\""},
        {"norm(x)", "gpunn_expr: too few arguments for 'norm' at character 1 of \"norm(x)\""},
        {"norm(x, 0)",
         "gpunn_expr: a number above 0 is needed here for 'norm' at character 9 of \"norm(x, 0)\""},
        {"window_mean(x, 2)", "gpunn_expr: an odd number is needed here for 'window_mean' at character 16 of "
                              "\"window_mean(x, 2)\""},
        {"x if 1 else foo", "gpunn_expr: unknown name 'foo' at character 13 of \"x if 1 else foo\""},
        {"foo if $ else x", "gpunn_expr: unknown name 'foo' at character 1 of \"foo if $ else x\""},
        {"none(x)", "gpunn_expr: unknown function 'none' at character 1 of \"none(x)\""},
        {"K(x)", "gpunn_expr: a number is needed here, an attribute of 'K' at character 3 of \"K(x)\""},
        {"Kexp(x)", "gpunn_expr: unknown function 'Kexp' at character 1 of \"Kexp(x)\""},
        {"x = y", "gpunn_expr: ';' is missing at character 6 of \"x = y\""},
        {"t = y; ", "gpunn_expr: an operand is missing at character 8 of \"t = y; \""},
        {"x if y", "gpunn_expr: 'else' is missing at character 7 of \"x if y\""},
        {"x and", "gpunn_expr: an operand is missing at character 6 of \"x and\""},
        {"(x", "gpunn_expr: ')' is missing at character 3 of \"(x\""},
        {"x)", "gpunn_expr: unexpected ')' at character 2 of \"x)\""},
        {"x y", "gpunn_expr: unexpected 'y' at character 3 of \"x y\""},
        {"x * * 2", "gpunn_expr: unexpected '*' at character 5 of \"x * * 2\""},
        {"relu()", "gpunn_expr: too few arguments for 'relu' at character 1 of \"relu()\""},
        {"relu(x, 2)", "gpunn_expr: too many arguments for 'relu' at character 9 of \"relu(x, 2)\""},
        {"relu(x", "gpunn_expr: ')' or ',' is missing at character 7 of \"relu(x\""},
        {"relu(x,)", "gpunn_expr: too many arguments for 'relu' at character 8 of \"relu(x,)\""},
        {"add(x,)", "gpunn_expr: unexpected ')' at character 7 of \"add(x,)\""},
        {"leaky_relu(x, y)", "gpunn_expr: a number is needed here, an attribute of 'leaky_relu' at character "
                             "15 of \"leaky_relu(x, y)\""},
        {"x * 1.5f", "gpunn_expr: no number '1.5f' at character 5 of \"x * 1.5f\""},
        {"x * 1.2.3", "gpunn_expr: no number '1.2.' at character 5 of \"x * 1.2.3\""},
        {"x * 1e", "gpunn_expr: the exponent has no digits at character 6 of \"x * 1e\""},
        {"x * .", "gpunn_expr: no number '.' at character 5 of \"x * .\""},
        {"x * 1e39", "gpunn_expr: too large a number '1e39' at character 5 of \"x * 1e39\""},
        {"x * 1e99999999999",
         "gpunn_expr: too large a number '1e99999999999' at character 5 of \"x * 1e99999999999\""},
        {"x * (1 / 0)", "gpunn_expr: the number before this place is not finite as a float at character 12 "
                        "of \"x * (1 / 0)\""},
        {"x7", "gpunn_expr: unknown name 'x7' at character 1 of \"x7\""},
        {"x8", "gpunn_expr: unknown name 'x8' at character 1 of \"x8\""},
        {"x + w", "add: shapes [batch, 20] and [3] do not broadcast (axis 1: 20 against 3)"},
        {"relu(x) * (relu(x) + \t$)",
         "gpunn_expr: unexpected '$' at character 23 of \"relu(x) * (relu(x) + ?$)\""},
    };
    fixture      *f = (fixture *)*state;
    gpunn_tensor *args[2] = {f->rows, f->three};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        REFUSED(f, strncmp(cases[i][1], "add", 3) ? GPUNN_ERR_ARGUMENT : GPUNN_ERR_SHAPE, cases[i][1],
                gpunn_expr(strcmp(cases[i][0], "x + w") ? cases[i][0] : "x + y", args, 2));
    gpunn_tensor *mixed[2] = {f->rows, f->labels};
    check_shape(f, gpunn_expr("mean(float(argmax(x, 1)) == float(y))", mixed, 2), SHAPE(0));
    char deep[5000];
    memset(deep, '-', sizeof deep);
    deep[100] = 'x', deep[101] = 0;
    assert_null(gpunn_expr(deep, args, 2));
    assert_non_null(strstr(gpunn_error(f->dev), "nesting deeper than 64 at character 65"));
    gpunn_clear_error(f->dev);
    memset(deep, ' ', sizeof deep);
    deep[4999] = 0;
    REFUSED(f, GPUNN_ERR_ARGUMENT, "gpunn_expr: the expression is longer than 4096 characters; split it",
            gpunn_expr(deep, args, 2));
    REFUSED(f, GPUNN_ERR_ARGUMENT, "gpunn_expr: the expression is NULL", gpunn_expr(NULL, args, 2));
    REFUSED(f, GPUNN_ERR_DTYPE, "eq: b is i64, but f32 is needed; convert it with gpunn_cast",
            gpunn_expr("x == y", (gpunn_tensor *[]){f->rows, f->labels}, 2));
    assert_null(gpunn_expr("x", args, 9));
    assert_string_equal(gpunn_error(NULL), "gpunn_expr: got 9 arguments; 1 to 8 are possible");
}

/* ---- every builder, elementwise and else, once ---- */
static gpunn_tensor *build_model(gpunn_model *model)
{
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, SHAPE(B, 3, 16, 16)),
                 *t = gpunn_input(model, "t", GPUNN_I64, SHAPE(B));
    gpunn_tensor *h = gpunn_conv2d(x, "conv1", .out_channels = 8, .kernel_size = 3, .padding = 1);
    h = gpunn_prelu(gpunn_batch_norm2d(h, "bn1"), "prelu", 8, 0);
    h = gpunn_max_pool2d(h, .kernel_size = 2);
    gpunn_tensor *padding = gpunn_input(model, "padding", GPUNN_BOOL, SHAPE(B, 64));
    h = gpunn_reshape(h, SHAPE(B, 64, 8));
    h = gpunn_transformer_decoder_layer(h, gpunn_slice(h, 1, 0, 9, 1), "block", .nhead = 2,
                                        .dim_feedforward = 4, .batch_first = true,
                                        .key_padding_mask = padding, .is_causal = true);
    h = gpunn_flatten(gpunn_dropout(h, 0.5f));
    gpunn_tensor *args[1] = {gpunn_linear(h, "fc1", .out_features = 32)};
    h = gpunn_expr("x * sigmoid(1.702 * x) + max(x, 0.5) * min(x, 2)", args, 1);
    h = gpunn_set_name(gpunn_linear(h, "fc2", .out_features = 10), "logits");
    gpunn_tensor *p = gpunn_softmax(h, 1), *q = gpunn_add_scalar(p, 1);
    gpunn_tensor *loss = gpunn_add(gpunn_cross_entropy(h, t),
                                   gpunn_bce_with_logits(h, p, .pos_weight = p, .weight = q));
    float         half = 0.5f;
    return gpunn_add(gpunn_mul(loss, gpunn_constant(model, SHAPE(0), &half)), gpunn_accuracy(h, t));
}

/* Allocation n fails, for every n: NULL, nothing lost, and the device goes on working. */
static void test_out_of_memory(void **state)
{
    (void)state;
    for (long n = 0;; n++) {
        memory        m = {0, 0, -1};
        gpunn_device *dev = gpunn_device_open(.realloc_fn = counted_realloc, .user = &m, .backend = &nothing);
        gpunn_model  *model = gpunn_model_create(dev);
        m.fail_at = m.allocations + n;
        gpunn_tensor *loss = build_model(model);
        if (loss == NULL) {
            assert_int_equal(gpunn_last_status(dev), GPUNN_ERR_MEMORY);
            for (int i = 0; i < model->tensor_count; i++) { /* every tensor left is whole */
                const gpunn_tensor *t = model->tensors[i];
                assert_int_equal(t->id, i);
                assert_true(t->kind == GPUNN__VALUE || t->kind == GPUNN__CONSTANT || t->name);
                for (int j = 0; j < t->input_count; j++)
                    assert_true(t->inputs[j] == NULL || t->inputs[j]->id < i);
            }
            /* A layer is there as a whole or not at all. */
            assert_int_equal(gpunn_find(model, "conv1.weight") != NULL,
                             gpunn_find(model, "conv1.bias") != NULL);
            assert_int_equal(gpunn_find(model, "bn1.weight") != NULL,
                             gpunn_find(model, "bn1.running_var") != NULL);
            assert_int_equal(gpunn_find(model, "fc2.weight") != NULL, gpunn_find(model, "fc2.bias") != NULL);
            gpunn_clear_error(dev);
            gpunn_model *again = gpunn_model_create(dev);
            if (build_model(again) == NULL) fail_msg("%s", gpunn_error(dev));
            gpunn_model_destroy(again);
        }
        gpunn_model_destroy(model);
        gpunn_device_close(dev);
        assert_int_equal(m.held, 0);
        if (loss) break;
    }
}

/* Every elementwise builder appends one node with its own op. */
static void test_elementwise_table(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *x = f->rows, *two[] = {x, x}, *t;
    int           built = 0;
#define CHECK(ENUM, name, call)                       \
    t = call;                                         \
    assert_non_null(t);                               \
    assert_int_equal(t->op, GPUNN_OP_##ENUM);         \
    assert_string_equal(gpunn_op_name(t->op), #name); \
    check_shape(f, t, SHAPE(B, 20));                  \
    built++;
#define UNARY(ENUM, name, ...) CHECK(ENUM, name, gpunn_##name(x))
#define UNARY1(ENUM, name, ...) \
    CHECK(ENUM, name, gpunn_##name(x, 0.5f)) assert_float_equal(t->attr.value[0], 0.5f, 0);
#define UNARY2(ENUM, name, ...) \
    CHECK(ENUM, name, gpunn_##name(x, 0.5f, 2)) assert_float_equal(t->attr.value[1], 2, 0);
#define BINARY(ENUM, name, ...) CHECK(ENUM, name, gpunn_##name(x, x))
#define LOSS(ENUM, name, ...) CHECK(ENUM, name, gpunn_expr(#name "(x, y)", two, 2))
#define LOSS1(ENUM, name, ...)                                 \
    CHECK(ENUM, name, gpunn_expr(#name "(x, y, 0.5)", two, 2)) \
    assert_float_equal(t->attr.value[0], 0.5f, 0);
#define TERNARY(ENUM, name, ...) CHECK(ENUM, name, gpunn_##name(x, x, x))
    GPUNN_UNARY_OPS(UNARY)
    GPUNN_UNARY1_OPS(UNARY1)
    GPUNN_UNARY2_OPS(UNARY2)
    GPUNN_BINARY_OPS(BINARY)
    GPUNN_LOSS_OPS(LOSS)
    GPUNN_LOSS1_OPS(LOSS1)
    GPUNN_TERNARY_OPS(TERNARY)
    for (int op = 0; op < GPUNN_OP_COUNT; op++) built -= gpunn__op_elementwise((gpunn_op)op);
    assert_int_equal(built, 0);
}

/* The rule of a node, asked about x of another shape: the result's, or the sentence. */
static void check_other(fixture *f, const gpunn_tensor *node, gpunn_shape x, gpunn_shape wanted,
                        const char *sentence)
{
    const gpunn__call call = gpunn__call_of(f->model, gpunn_op_name(node->op), node->layer);
    gpunn__meta       in[GPUNN_MAX_OPERANDS], out;
    memset(in, 0, sizeof in);
    for (int i = 0; i < node->input_count; i++)
        if (node->inputs[i]) in[i] = gpunn__meta_of(node->inputs[i]);
    gpunn__take_shape(&in[0], &x);
    const int  tensors = f->model->tensor_count;
    const bool fits = gpunn__infer(&call, node->operation, &node->attr, in, node->input_count, &out);
    assert_int_equal(f->model->tensor_count, tensors);
    assert_string_equal(gpunn_error(f->dev), sentence ? sentence : "");
    assert_int_equal(fits, sentence == NULL);
    gpunn_clear_error(f->dev);
    if (fits) assert_memory_equal(out.dim, wanted.dim, (size_t)out.rank * sizeof *out.dim);
}

static void test_other_sizes(void **state)
{
    fixture            *f = *state;
    const gpunn_shape   none = {{0}};
    const gpunn_tensor *conv = gpunn_conv2d(f->image, "c", .out_channels = 9, .kernel_size = 5, .stride = 2);
    check_shape(f, conv, SHAPE(B, 9, 5, 5));
    check_other(f, conv, SHAPE(3, 6, 32, 5), SHAPE(3, 9, 14, 1), NULL);
    check_other(f, conv, SHAPE(3, 6, 32, 4), none,
                "conv2d 'c': the window spans 5 along axis 3, but the padded input only 4 (input [3, 6, 32, "
                "4], kernel 5, dilation "
                "1, padding 0); use a smaller kernel or more padding");
    check_other(f, conv, SHAPE(3, 7, 14, 14), none,
                "conv2d 'c': x is [3, 7, 14, 14], but the weight [9, 6, 5, 5] needs 6 along axis 1");
    const gpunn_tensor *linear = gpunn_linear(f->rows, "l", .out_features = 4);
    check_other(f, linear, SHAPE(7, 20), SHAPE(7, 4), NULL);
    check_other(f, linear, SHAPE(7, 21), none,
                "linear 'l': x is [7, 21], but the weight [4, 20] needs 20 along axis 1");
    const gpunn_tensor *norm = gpunn_layer_norm(f->image, "n", .dims = 2);
    check_other(f, norm, SHAPE(2, 9, 14, 14), SHAPE(2, 9, 14, 14), NULL);
    check_other(f, norm, SHAPE(2, 9, 14, 15), none,
                "layer_norm 'n': x is [2, 9, 14, 15], but the weight [14, 14] needs 14 along axis 3");
    const gpunn_tensor *heads = gpunn_reshape(f->rows, SHAPE(B, 4, 5));
    check_other(f, heads, SHAPE(B, 5, 4), SHAPE(B, 4, 5), NULL);
    check_other(f, heads, SHAPE(3, 20), none,
                "reshape: [batch, 4, 5] does not hold as many elements as [3, 20]; GPUNN_BATCH is the size "
                "of the batch, not an inferred size");
    const gpunn_tensor *sum = gpunn_sum(f->image, GPUNN_AXES(1, 3), true);
    check_other(f, sum, SHAPE(5, 2, 7, 1), SHAPE(5, 1, 7, 1), NULL);
}

/* What is too large, or has the batch on two axes, is refused by name. */
static void test_axes_refused(void **state)
{
    fixture      *f = (fixture *)*state;
    gpunn_tensor *row = gpunn_reshape(f->rows, SHAPE(B, 1, 20)), *long_axis = input(f, SHAPE((1 << 24) + 1));
    gpunn_tensor *twice = gpunn_add(row, gpunn_permute(row, GPUNN_AXES(1, 0, 2)));
    gpunn_tensor *vast = input(f, SHAPE((int64_t)1 << 58)), *filter = input(f, SHAPE(4, 6, 3, 2));
    check_shape(f, twice, SHAPE(B, B, 20));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "bucketize: the axes of x [batch, batch, 20] cannot be joined; gpunn_reshape it",
            gpunn_bucketize(twice, f->three));
    REFUSED(f, GPUNN_ERR_SHAPE,
            "rfft: the axes of x [batch, batch, 20] other than axis 2 hold the batch more than once; "
            "gpunn_reshape it",
            gpunn_rfft(twice, 2, GPUNN_FFT_BACKWARD));
    REFUSED(f, GPUNN_ERR_SHAPE, "flip: axis 0 of [16777217] has more than 2^24 elements",
            gpunn_flip(long_axis, GPUNN_AXES(0)));
    REFUSED(
        f, GPUNN_ERR_SHAPE,
        "frequency_encoding: the last axis of [288230376151711744] would be 8 times as long and have more "
        "than 2^59 elements",
        gpunn_frequency_encoding(vast, 4));
    REFUSED(f, GPUNN_ERR_SHAPE, "conv2d 'c': .weight is [4, 6, 3, 2], but [4, 6, 3, 3] is needed",
            gpunn_conv2d(f->image, "c", .out_channels = 4, .kernel_size = 3, .weight = filter));
}

/* X(name, shape of x, first and last axis that must be fixed, formula) */
/* clang-format off */
#define NEED_FIXED_AXES(X)                                                                                  \
    X(linear, SHAPE(2, 5), 1, 1, gpunn_linear(x, name, .out_features = 3))                                  \
    X(bilinear, SHAPE(2, 5), 1, 1, gpunn_bilinear(x, x, name, .out_features = 3))                           \
    X(batch_norm2d, SHAPE(2, 3, 4, 5), 1, 1, gpunn_batch_norm2d(x, name))                                   \
    X(group_norm, SHAPE(2, 4, 4, 5), 1, 1, gpunn_group_norm(x, name, .num_groups = 2))                      \
    X(instance_norm2d, SHAPE(2, 3, 4, 5), 1, 1, gpunn_instance_norm2d(x, name, .track_running_stats = true)) \
    X(layer_norm, SHAPE(2, 3, 4, 5), 2, 3, gpunn_layer_norm(x, name, .dims = 2))                            \
    X(rms_norm, SHAPE(2, 3, 4, 5), 1, 3, gpunn_rms_norm(x, name, .dims = 3))                                \
    X(local_response_norm, SHAPE(2, 3, 4, 5), 1, 3, gpunn_local_response_norm(x, .size = 3))                \
    X(max_pool2d, SHAPE(2, 3, 8, 9), 1, 3, gpunn_max_pool2d(x, .kernel_size = 2, .padding_end = 1,          \
      .ceil_mode = true))                                                                                   \
    X(dilated, SHAPE(2, 3, 8, 9), 1, 3, gpunn_max_pool2d(x, .kernel_size = 2, .dilation = 2))               \
    X(conv1d, SHAPE(2, 3, 8), 1, 1, gpunn_conv1d(x, name, .out_channels = 2, .kernel_size = 3))             \
    X(ncc_loss, SHAPE(2, 3, 8, 9), 1, 3, gpunn_ncc_loss(x, x, .window = 3))                                 \
    X(ncc_loss_volumes, SHAPE(2, 3, 8, 9, 8), 1, 4, gpunn_ncc_loss(x, x, .window = 3))                      \
    X(lstm_cell, SHAPE(2, 5), 1, 1, gpunn_lstm_cell(x, name, .hidden_size = 4))                             \
    X(unfold, SHAPE(2, 3, 8, 9), 1, 3, gpunn_unfold(x, .kernel_size = 2))                                   \
    X(fold, SHAPE(2, 12, 12), 1, 2, gpunn_fold(x, .kernel_size = 2, .output_size = {4, 5}))
/* clang-format on */
typedef struct fixed_case {
    const char *name;
    gpunn_shape shape;
    int         first, last;
    gpunn_tensor *(*make)(gpunn_tensor *x, const char *name);
} fixed_case;
#define X(op, shape, first, last, ...)                                 \
    static gpunn_tensor *fixed_##op(gpunn_tensor *x, const char *name) \
    {                                                                  \
        (void)name;                                                    \
        return __VA_ARGS__;                                            \
    }
NEED_FIXED_AXES(X)
#undef X

/* Each op names the axis that the batch or a varying size has, where it needs a number. No other is refused.
 */
static void test_fixed_axes(void **state)
{
#define X(op, shape, first, last, ...) {#op, shape, first, last, fixed_##op},
    const fixed_case cases[] = {NEED_FIXED_AXES(X)};
#undef X
    fixture      *f = (fixture *)*state;
    const int64_t open[2] = {gpunn_size(f->model, "W"), B};
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        const fixed_case *c = &cases[i];
        for (int at = 0; c->shape.dim[at] && at <= c->last; at++)
            for (int k = 0; k < 2; k++) {
                char        name[40], words[40];
                gpunn_shape shape = c->shape;
                shape.dim[at] = open[k];
                (void)snprintf(name, sizeof name, "%s%d%d", c->name, at, k);
                (void)snprintf(words, sizeof words, "axis %d of x", at);
                const bool          refused = at >= c->first;
                const gpunn_tensor *y = c->make(input(f, shape), name);
                if ((y == NULL) != refused || (refused && !strstr(gpunn_error(f->dev), words)))
                    fail_msg("%s: %s", name, y ? "not refused" : gpunn_error(f->dev));
                gpunn_clear_error(f->dev);
            }
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_inputs),
        TEST(test_parameters),
        TEST(test_settings),
        TEST(test_names),
        TEST(test_null_operands),
        TEST(test_broadcasting),
        TEST(test_linear),
        TEST(test_conv2d),
        TEST(test_convolutions),
        TEST(test_pools),
        TEST(test_interpolate),
        TEST(test_sampling),
        TEST(test_other_layers),
        TEST(test_recurrent),
        TEST(test_reshape),
        TEST(test_concat_slice_pad),
        TEST(test_orders_and_copies),
        TEST(test_einsum),
        TEST(test_integers),
        TEST(test_fourier),
        TEST(test_gather_nd),
        TEST(test_meshgrid),
        TEST(test_reductions),
        TEST(test_matmul),
        TEST(test_losses),
        TEST(test_attention),
        TEST(test_attention_layers),
        TEST(test_registration_losses),
        TEST(test_class_losses),
        TEST(test_margin_losses),
        TEST(test_dice_loss),
        TEST(test_ctc_loss),
        TEST(test_custom),
        TEST(test_other_sizes),
        TEST(test_other_ends),
        TEST(test_transpose),
        TEST(test_axes_refused),
        TEST(test_fixed_axes),
        TEST(test_names_left_out),
        TEST(test_expr),
        TEST(test_expr_as_the_generator),
        TEST(test_expr_names),
        TEST(test_expr_errors),
        TEST(test_elementwise_table),
        TEST(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
