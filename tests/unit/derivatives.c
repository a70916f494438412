/* gpunn_grad and what is made of it: against the backward pass, central differences, and PyTorch. */
#include "../test.h"

/* ---- every op that has a derivative: the gradient is the backward pass's, its derivatives are central
 * differences' -- */
enum { N = 3, MOST = 6 }; /* the batch; tensors by which is differentiated */

typedef struct op_case {
    const char *name;
    gpunn_shape shape; /* of x, each number of which lies within `scale` of `shift` */
    float       scale, shift;
    gpunn_tensor *(*build)(gpunn_model *model, gpunn_tensor *x);
    unsigned varying; /* axes of x, a bit each, whose sizes vary */
} op_case;

static gpunn_tensor *weight(gpunn_model *model, const char *name, gpunn_shape shape, float low, float high)
{
    return gpunn_parameter(model, name, shape, (gpunn_init){GPUNN_INIT_UNIFORM, low, high});
}

#define UNARY(ENUM, name, ...)                                             \
    static gpunn_tensor *build_##name(gpunn_model *model, gpunn_tensor *x) \
    {                                                                      \
        (void)model;                                                       \
        return gpunn_add(gpunn_##name(x), x);                              \
    }
GPUNN_UNARY_OPS(UNARY)
#define BINARY(ENUM, name, ...)                                                 \
    static gpunn_tensor *build_##name(gpunn_model *model, gpunn_tensor *x)      \
    {                                                                           \
        gpunn_tensor *a = weight(model, "a", GPUNN_SHAPE(2, 1), 0.1f, 0.2f);    \
        gpunn_tensor *b = weight(model, "b", GPUNN_SHAPE(4), 1.1f, 1.4f);       \
        gpunn_tensor *both = gpunn_add(gpunn_##name(a, x), gpunn_##name(x, b)); \
        return gpunn_add(both, gpunn_mul(x, gpunn_mul(a, b)));                  \
    }
GPUNN_BINARY_OPS(BINARY)
/* Terms of losses have no builder of their own but gpunn_expr. */
#define TERM(ENUM, name, ...)                                                       \
    static gpunn_tensor *build_##name(gpunn_model *model, gpunn_tensor *x)          \
    {                                                                               \
        gpunn_tensor *args[] = {x, weight(model, "b", GPUNN_SHAPE(4), 0.1f, 0.2f)}; \
        return gpunn_expr(#name "(x, y)", args, 2);                                 \
    }
GPUNN_LOSS_OPS(TERM)
GPUNN_LOSS1_OPS(TERM)

#define CASE(name, expression)                                             \
    static gpunn_tensor *build_##name(gpunn_model *model, gpunn_tensor *x) \
    {                                                                      \
        (void)model;                                                       \
        return expression;                                                 \
    }
CASE(leaky_relu, gpunn_leaky_relu(x, 0.1f))
CASE(elu, gpunn_elu(x, 1.5f))
CASE(celu, gpunn_celu(x, 1.5f))
CASE(hardshrink, gpunn_hardshrink(x, 0.1f))
CASE(add_scalar, gpunn_square(gpunn_add_scalar(x, 2)))
CASE(mul_scalar, gpunn_square(gpunn_mul_scalar(x, 2)))
CASE(pow_scalar, gpunn_pow_scalar(x, 3))
CASE(hardtanh, gpunn_square(gpunn_hardtanh(x, -1, 0.2f)))
CASE(acosh_above_1, gpunn_acosh(gpunn_add_scalar(x, 1)))
CASE(clamp, gpunn_square(gpunn_clamp(x, 0, INFINITY)))
CASE(softplus, gpunn_softplus(x, 2, 20))
CASE(where, gpunn_where(gpunn_gt(x, gpunn_mul_scalar(x, 0.5f)), gpunn_sin(x), gpunn_square(x)))
CASE(linear, gpunn_tanh(gpunn_linear(x, "l", .out_features = 5)))
CASE(linear_one_row, gpunn_tanh(gpunn_linear(gpunn_sum(x, GPUNN_AXES(0, 1), false), "l", .out_features = 5)))
CASE(matmul, gpunn_tanh(gpunn_matmul(x, weight(model, "w", GPUNN_SHAPE(4, 5), -1, 1))))
CASE(matmul_ab, gpunn_matmul(x, gpunn_sin(x), .transpose_b = true))
CASE(matmul_ta, gpunn_matmul(weight(model, "w", GPUNN_SHAPE(2, 5), -1, 1), gpunn_sin(x), .transpose_a = true))
CASE(matmul_tt, gpunn_matmul(gpunn_sin(x), weight(model, "w", GPUNN_SHAPE(5, 2), -1, 1), .transpose_a = true,
                             .transpose_b = true))
/* [batch, batch]: all pairs of samples */
static gpunn_tensor *pairs(gpunn_tensor *x)
{
    gpunn_tensor *row = gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, 8));
    return gpunn_matmul(row, gpunn_sin(row), .transpose_b = true);
}
CASE(pairs, gpunn_square(pairs(x)))
CASE(pairs_mean, gpunn_mean(gpunn_square(pairs(x)), GPUNN_AXES(0, 1), true))
CASE(pairs_mean_of_rows, gpunn_mean(gpunn_square(pairs(x)), GPUNN_AXES(1), false))
CASE(conv1d, gpunn_sin(gpunn_conv1d(x, "c", .out_channels = 3, .kernel_size = 2, .padding = 1)))
CASE(conv1d_long, gpunn_sin(gpunn_conv1d(x, "c", .out_channels = 2, .kernel_size = 130, .padding = 65)))
CASE(conv2d, gpunn_sin(gpunn_conv2d(x, "c", .out_channels = 6, .kernel_shape = {3, 2}, .strides = {2, 1},
                                    .paddings = {1, 0}, .dilations = {1, 2}, .groups = 2)))
CASE(conv3d, gpunn_sin(gpunn_conv3d(x, "c", .out_channels = 2, .kernel_size = 2, .stride = 2, .padding = 1)))
CASE(conv_transpose1d, gpunn_sin(gpunn_conv_transpose1d(x, "c", .out_channels = 3, .kernel_size = 3,
                                                        .dilation = 2, .padding = 1)))
CASE(conv_transpose2d,
     gpunn_sin(gpunn_conv_transpose2d(x, "c", .out_channels = 6, .kernel_size = 3, .stride = 2, .padding = 1,
                                      .output_padding = 1, .groups = 2)))
CASE(conv_transpose3d,
     gpunn_sin(gpunn_conv_transpose3d(x, "c", .out_channels = 2, .kernel_size = 2, .stride = 2)))
CASE(sum, gpunn_square(gpunn_sum(x, GPUNN_AXES(0, 2), false)))
CASE(mean, gpunn_square(gpunn_mean(x, GPUNN_AXES(-1), true)))
CASE(mean_of_batch, gpunn_square(gpunn_mean(x, GPUNN_AXES(0, 1), false)))
CASE(max, gpunn_square(gpunn_max(x, GPUNN_AXES(0, 2), false)))
CASE(cumsum, gpunn_square(gpunn_cumsum(x, 1)))
CASE(cross, gpunn_cross(gpunn_sin(gpunn_slice(x, 2, 0, 3, 1)), gpunn_slice(x, 2, 1, 4, 1), 2))
CASE(logcumsumexp, gpunn_sin(gpunn_logcumsumexp(x, 1)))
CASE(softmax, gpunn_softmax(x, -1))
CASE(log_softmax, gpunn_log_softmax(x, 1))
CASE(reshape, gpunn_square(gpunn_reshape(x, GPUNN_SHAPE(2 * GPUNN_BATCH, 4))))
CASE(permute, gpunn_square(gpunn_permute(x, GPUNN_AXES(1, 2, 0))))
CASE(expand, gpunn_sin(gpunn_expand(gpunn_sum(x, GPUNN_AXES(1), true), GPUNN_SHAPE(5, GPUNN_BATCH, 3, 4))))
CASE(concat, gpunn_square(gpunn_concat((gpunn_tensor *[]){x, gpunn_sin(x), x}, 3, 1)))
CASE(slice, gpunn_square(gpunn_slice(x, 2, 1, 3, 1)))
CASE(slice_steps, gpunn_square(gpunn_slice(x, 3, 1, GPUNN_END_OF_AXIS, 2)))
CASE(pad, gpunn_square(gpunn_pad(x, .before = {0, 1, 2}, .after = {0, 0, 1}, .value = 2)))
CASE(layer_norm, gpunn_layer_norm(x, "n", .dims = 2))
CASE(layer_norm_plain, gpunn_layer_norm(x, "n", .no_affine = true))
CASE(rms_norm, gpunn_rms_norm(x, "n"))
CASE(group_norm, gpunn_group_norm(x, "n", .num_groups = 2))
CASE(instance_norm, gpunn_instance_norm2d(x, "n"))
CASE(batch_norm2d, gpunn_batch_norm2d(x, "n", .no_running_stats = true))
static gpunn_tensor *drawn(gpunn_model *model, gpunn_shape shape, int64_t count)
{
    float        *values = test_randoms(count, 9, 1);
    gpunn_tensor *t = gpunn_constant(model, shape, values);
    free(values);
    return t;
}

/* distinct numbers, so that no step of the differences moves a maximum */
static gpunn_tensor *apart(gpunn_model *model, gpunn_tensor *x)
{
    return gpunn_add(gpunn_mul_scalar(x, 0.05f),
                     gpunn_mul_scalar(drawn(model, GPUNN_SHAPE(4, 5, 6), 120), 2));
}
CASE(max_pool1d,
     gpunn_square(gpunn_max_pool1d(gpunn_reshape(apart(model, x), GPUNN_SHAPE(GPUNN_BATCH, 4, 30)),
                                   .kernel_size = 3, .stride = 2, .padding = 1)))
CASE(max_pool2d, gpunn_square(gpunn_max_pool2d(apart(model, x), .kernel_shape = {3, 2}, .stride = 2,
                                               .padding = 1, .ceil_mode = true)))
CASE(max_pool3d,
     gpunn_square(gpunn_max_pool3d(gpunn_reshape(apart(model, x), GPUNN_SHAPE(GPUNN_BATCH, 1, 4, 5, 6)),
                                   .kernel_size = 2)))
CASE(avg_pool2d, gpunn_square(gpunn_avg_pool2d(x, .kernel_size = 2)))
CASE(avg_pool2d_edges,
     gpunn_square(gpunn_avg_pool2d(x, .kernel_shape = {3, 4}, .stride = 2, .padding = 1, .ceil_mode = true)))
CASE(avg_pool2d_inside, gpunn_square(gpunn_avg_pool2d(x, .kernel_size = 3, .stride = 1, .padding = 1,
                                                      .count_exclude_pad = true)))
CASE(avg_pool3d, gpunn_square(gpunn_avg_pool3d(gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, 1, 4, 5, 6)),
                                               .kernel_size = 2, .padding = 1)))
CASE(adaptive_max_pool2d, gpunn_square(gpunn_adaptive_max_pool2d(apart(model, x), 1, 3)))
CASE(adaptive_avg_pool2d, gpunn_square(gpunn_adaptive_avg_pool2d(x, 1, 1)))
CASE(adaptive_avg_pool3d,
     gpunn_square(gpunn_adaptive_avg_pool3d(gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, 1, 4, 5, 6)), 2, 5, 3)))
#define ATTENTION(...) gpunn_scaled_dot_product_attention(x, gpunn_sin(x), gpunn_cos(x), __VA_ARGS__)
CASE(attention, ATTENTION(.scale = 0.5f))
CASE(attention_causal, ATTENTION(.is_causal = true, .mask = drawn(model, GPUNN_SHAPE(4, 5, 5), 100)))
/* The third row sees no key. */
static gpunn_tensor *seen(gpunn_model *model)
{
    static const float values[16] = {1, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1};
    return gpunn_cast(gpunn_constant(model, GPUNN_SHAPE(4, 4), values), GPUNN_BOOL);
}
CASE(attention_masked,
     gpunn_scaled_dot_product_attention(gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, 4, 5, 6)), gpunn_sin(x), x,
                                        .heads_last = true, .mask = seen(model)))
CASE(attention_of_groups, gpunn_scaled_dot_product_attention(x, gpunn_slice(gpunn_sin(x), 1, 0, 2, 1),
                                                             gpunn_slice(x, 1, 2, 4, 1), .enable_gqa = true))
CASE(attention_packed,
     gpunn_scaled_dot_product_attention(gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, 2, 3, 4, 5)), NULL, NULL))
CASE(interpolate1d, gpunn_square(gpunn_interpolate(gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, 4, 30)),
                                                   .scale_factor = 1.7, .mode = GPUNN_INTERPOLATE_LINEAR)))
CASE(interpolate2d, gpunn_square(gpunn_interpolate(x, .scale_factor = 2)))
CASE(interpolate2d_cubic, gpunn_square(gpunn_interpolate(x, .size = {3, 11}, .mode = GPUNN_INTERPOLATE_CUBIC,
                                                         .align_corners = true)))
CASE(interpolate3d, gpunn_square(gpunn_interpolate(gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, 1, 4, 5, 6)),
                                                   .size = {5, 2, 7}, .mode = GPUNN_INTERPOLATE_LINEAR)))
CASE(einsum, gpunn_einsum("bij,bkj->bik", (gpunn_tensor *[]){x, gpunn_sin(x)}, 2))
CASE(mse_loss, gpunn_mse_loss(gpunn_sin(x), gpunn_cos(x)))

/* Classes 0 to 3 or places, the same for each sample. */
static gpunn_tensor *numbers(gpunn_model *model, int64_t channels, int64_t height, int64_t width)
{
    gpunn_tensor *t = drawn(model, GPUNN_SHAPE(1, channels, height, width), channels * height * width);
    t = gpunn_expand(gpunn_expr("2 + 1.99 * x", &t, 1), GPUNN_SHAPE(GPUNN_BATCH, channels, height, width));
    return gpunn_cast(t, GPUNN_I64);
}

static gpunn_tensor *classes(gpunn_model *model)
{
    return gpunn_reshape(numbers(model, 1, 5, 6), GPUNN_SHAPE(GPUNN_BATCH, 5, 6));
}
CASE(cross_entropy, gpunn_cross_entropy(x, classes(model)))
CASE(cross_entropy_all,
     gpunn_cross_entropy(x, classes(model), .reduction = GPUNN_REDUCE_NONE, .ignore_index = 1,
                         .label_smoothing = 0.1f, .weight = gpunn_exp(drawn(model, GPUNN_SHAPE(4), 4))))
CASE(cross_entropy_sum,
     gpunn_cross_entropy(x, classes(model), .reduction = GPUNN_REDUCE_SUM, .ignore_index = 3))
CASE(nll_loss, gpunn_nll_loss(gpunn_log_softmax(x, 1), classes(model), .ignore_index = 2,
                              .weight = gpunn_exp(drawn(model, GPUNN_SHAPE(4), 4))))
CASE(gather, gpunn_square(gpunn_gather(x, 3, numbers(model, 4, 5, 3))))
CASE(gather_less, gpunn_square(gpunn_gather(x, 3, numbers(model, 2, 4, 7))))
CASE(gather_nd, gpunn_square(gpunn_gather_nd(x, numbers(model, 4, 5, 2), 1)))
CASE(scatter, gpunn_square(gpunn_scatter(gpunn_sin(x), 2, numbers(model, 4, 2, 6),
                                         gpunn_cos(gpunn_slice(x, 2, 3, 5, 1)))))
CASE(scatter_add,
     gpunn_square(gpunn_scatter_add(x, 2, numbers(model, 4, 2, 6), gpunn_sin(gpunn_slice(x, 2, 3, 5, 1)))))
CASE(embedding, gpunn_square(gpunn_add(gpunn_embedding(classes(model), "e", .num_embeddings = 4,
                                                       .embedding_dim = 4, .padding_idx = 2),
                                       gpunn_permute(x, GPUNN_AXES(0, 2, 3, 1)))))

#define ROWS                  \
    {                         \
        {                     \
            GPUNN_BATCH, 2, 4 \
        }                     \
    }
#define IMAGE                    \
    {                            \
        {                        \
            GPUNN_BATCH, 4, 5, 6 \
        }                        \
    }
#define BELOW(ENUM, name, ...) {#name "_below_0", ROWS, 0.3f, -0.55f, build_##name, 0},
#define ABOVE(ENUM, name, ...) {#name, ROWS, 0.3f, 0.55f, build_##name, 0},
#define TABLE(name, shape) {#name, shape, 1, 0, build_##name, 0},
/* The sizes of `axes`, a bit each, vary. */
#define SIZES(name, shape, axes) {#name "_of_sizes", shape, 1, 0, build_##name, axes},
static const op_case cases[] = {
    GPUNN_UNARY_OPS(BELOW) GPUNN_UNARY_OPS(ABOVE) GPUNN_UNARY1_OPS(BELOW) GPUNN_UNARY1_OPS(
        ABOVE) GPUNN_UNARY2_OPS(BELOW) GPUNN_UNARY2_OPS(ABOVE) GPUNN_BINARY_OPS(ABOVE) GPUNN_LOSS_OPS(ABOVE)
        GPUNN_LOSS1_OPS(ABOVE) GPUNN_TERNARY_OPS(BELOW) GPUNN_TERNARY_OPS(ABOVE) ABOVE(ACOSH, acosh_above_1)
            TABLE(linear, ROWS) TABLE(linear_one_row, ROWS) TABLE(matmul, ROWS) TABLE(matmul_ab, ROWS)
                TABLE(matmul_ta, ROWS) TABLE(matmul_tt, ROWS) TABLE(conv1d, ROWS) TABLE(conv1d_long, ROWS)
                    TABLE(conv2d, IMAGE){"conv3d", {{GPUNN_BATCH, 2, 3, 4, 3}}, 1, 0, build_conv3d, 0},
    TABLE(conv_transpose1d, ROWS) TABLE(conv_transpose2d, IMAGE){
        "conv_transpose3d", {{GPUNN_BATCH, 2, 2, 3, 2}}, 1, 0, build_conv_transpose3d, 0},
    TABLE(sum, ROWS) TABLE(mean, ROWS) TABLE(mean_of_batch, ROWS) TABLE(max, ROWS) TABLE(cumsum, ROWS) TABLE(
        softmax, ROWS) TABLE(log_softmax, ROWS) TABLE(reshape, ROWS) TABLE(permute, ROWS) TABLE(expand, ROWS)
        TABLE(concat, ROWS) TABLE(slice, ROWS) TABLE(slice_steps, IMAGE) TABLE(pad, ROWS) TABLE(
            layer_norm, ROWS) TABLE(layer_norm_plain, ROWS) TABLE(rms_norm, ROWS) TABLE(group_norm, IMAGE)
            TABLE(instance_norm, IMAGE) TABLE(batch_norm2d, IMAGE) TABLE(einsum, ROWS) TABLE(mse_loss, ROWS)
                TABLE(cross_entropy, IMAGE) TABLE(cross_entropy_all, IMAGE) TABLE(cross_entropy_sum, IMAGE)
                    TABLE(nll_loss, IMAGE) TABLE(gather, IMAGE) TABLE(gather_less, IMAGE)
                        TABLE(gather_nd, IMAGE) TABLE(scatter, IMAGE) TABLE(scatter_add, IMAGE) TABLE(
                            embedding, IMAGE) TABLE(logcumsumexp, ROWS) TABLE(cross, ROWS)
                            TABLE(pairs, ROWS) TABLE(pairs_mean, ROWS) TABLE(pairs_mean_of_rows, ROWS) TABLE(
                                max_pool1d, IMAGE) TABLE(max_pool2d, IMAGE) TABLE(max_pool3d, IMAGE)
                                TABLE(avg_pool2d, IMAGE) TABLE(avg_pool2d_edges, IMAGE) TABLE(
                                    avg_pool2d_inside,
                                    IMAGE) TABLE(avg_pool3d, IMAGE) TABLE(adaptive_max_pool2d, IMAGE)
                                    TABLE(adaptive_avg_pool2d, IMAGE) TABLE(adaptive_avg_pool3d, IMAGE) TABLE(
                                        interpolate1d, IMAGE) TABLE(interpolate2d, IMAGE)
                                        TABLE(interpolate2d_cubic, IMAGE) TABLE(interpolate3d, IMAGE) SIZES(
                                            interpolate2d, IMAGE,
                                            12) TABLE(attention, IMAGE) TABLE(attention_causal, IMAGE)
                                            TABLE(attention_masked, IMAGE) TABLE(attention_of_groups, IMAGE)
                                                TABLE(attention_packed, IMAGE) SIZES(attention, IMAGE, 4)
                                                    SIZES(avg_pool2d_inside, IMAGE, 13) SIZES(mean, ROWS, 4)
                                                        SIZES(logcumsumexp, ROWS, 2) SIZES(cross, ROWS, 2)
                                                            SIZES(concat, ROWS, 2) SIZES(slice, ROWS, 4)
                                                                SIZES(slice_steps, IMAGE, 8) SIZES(
                                                                    pad, ROWS, 6) SIZES(group_norm, IMAGE, 13)
                                                                    SIZES(batch_norm2d, IMAGE, 4)
                                                                        SIZES(conv1d, ROWS, 4)
                                                                            SIZES(conv2d, IMAGE, 13) SIZES(
                                                                                conv_transpose2d, IMAGE, 12)};

/* The sum of t's elements, each times a number of its own. */
static gpunn_tensor *weighted(gpunn_model *model, gpunn_tensor *t, uint32_t seed)
{
    gpunn_shape shape = gpunn_tensor_shape(t);
    int64_t     count = 1;
    for (int i = 0; i < shape_rank(shape); i++) {
        if (shape.dim[i] < 0) shape.dim[i] = 1;
        count *= shape.dim[i];
    }
    float        *numbers = test_randoms(count, seed, 1);
    gpunn_tensor *sum = gpunn_sum(gpunn_mul(t, gpunn_constant(model, shape, numbers)), GPUNN_ALL, false);
    free(numbers);
    return sum;
}

/* A model of one op, and by what is differentiated: x and all parameters. */
typedef struct subject {
    gpunn_device *dev;
    gpunn_model  *model;
    gpunn_tensor *x, *v, *y, *by[MOST];
    int           count;
    gpunn_shape   shape; /* of x */
    int64_t       size;
    float        *at, *along;
} subject;

static subject subject_make(fixture *f, const op_case *c)
{
    subject     s = {.dev = f->dev, .model = f->model, .shape = c->shape, .size = N, .count = 1};
    gpunn_shape shape = c->shape;
    for (int i = 0; i < shape_rank(c->shape); i++) {
        const char name[2] = {(char)('a' + i), 0};
        if (c->varying >> i & 1) shape.dim[i] = gpunn_size(f->model, name, .max = 64);
    }
    s.by[0] = s.x = gpunn_input(f->model, "x", GPUNN_F32, shape);
    s.v = gpunn_input(f->model, "v", GPUNN_F32, shape);
    s.y = MADE(f->dev, c->build(f->model, s.x));
    for (int i = 0; i < gpunn_parameter_count(f->model); i++)
        s.by[s.count++] = gpunn_parameter_at(f->model, i);
    s.shape.dim[0] = N;
    for (int i = 1; i < shape_rank(c->shape); i++) s.size *= c->shape.dim[i];
    s.at = test_randoms(s.size, 7, c->scale);
    s.along = test_randoms(s.size, 8, 1);
    for (int64_t i = 0; i < s.size; i++) s.at[i] += c->shift;
    (void)gpunn_retain_grad(s.x);
    return s;
}

static void subject_free(subject *s)
{
    free(s->at), free(s->along);
}

/* Writes x, moved along v. */
static void subject_move(const subject *s, float by)
{
    float *x = malloc((size_t)s->size * sizeof *x);
    for (int64_t i = 0; i < s->size; i++) x[i] = s->at[i] + by * s->along[i];
    OK(s->dev, gpunn_write_shape(s->x, x, s->shape));
    OK(s->dev, gpunn_write_shape(s->v, s->along, s->shape));
    free(x);
}

static float *value_at(const subject *s, gpunn_tensor *t, float by, int64_t *n)
{
    subject_move(s, by);
    OK(s->dev, gpunn_forward(&t, 1));
    return read_floats(s->dev, t, n);
}

/* The gradients of a loss as nodes are those of the backward pass. */
static void check_nodes(const subject *s, gpunn_tensor *loss)
{
    gpunn_tensor *nodes[MOST];
    OK(s->dev, gpunn_grads(loss, s->by, s->count, nodes));
    for (int i = 0; i < s->count; i++) {
        int64_t n;
        float  *actual = value_at(s, nodes[i], 0, &n), *expected = malloc((size_t)n * sizeof *expected + 1);
        OK(s->dev, gpunn_zero_grad(s->model));
        OK(s->dev, gpunn_backward(loss));
        OK(s->dev, gpunn_read_grad(s->by[i], expected, (size_t)n * sizeof *expected));
        check_close(actual, expected, n, 2e-4, 2e-4);
        free(actual), free(expected);
    }
}

/* `derivative` is that of t along v. */
static void check_differences(const subject *s, gpunn_tensor *t, gpunn_tensor *derivative)
{
    const float e = 1.0f / 256;
    int64_t     n;
    float      *before = value_at(s, t, -e, &n), *behind = value_at(s, t, e, NULL),
          *actual = value_at(s, derivative, 0, NULL);
    double largest = 1;
    for (int64_t i = 0; i < n; i++) {
        behind[i] = (behind[i] - before[i]) / (2 * e);
        largest = fmax(largest, fabs((double)behind[i]));
    }
    check_close(actual, behind, n, 2e-3, 2e-3 * largest);
    free(before), free(behind), free(actual);
}

static void check_same(const subject *s, gpunn_tensor *a, gpunn_tensor *b)
{
    int64_t n;
    float  *actual = value_at(s, a, 0, &n), *expected = value_at(s, b, 0, NULL);
    check_close(actual, expected, n, 2e-4, 2e-4);
    free(actual), free(expected);
}

static void test_op(void **state)
{
    fixture      *f = *state;
    subject       s = subject_make(f, f->data);
    gpunn_tensor *sum = weighted(f->model, s.y, 3);
    check_nodes(&s, sum);
    gpunn_tensor *along = MADE(f->dev, gpunn_jvp(s.y, s.x, s.v));
    check_differences(&s, s.y, along);
    check_differences(&s, along, MADE(f->dev, gpunn_jvp(along, s.x, s.v)));
    gpunn_tensor *first = MADE(f->dev, gpunn_grad(sum, s.x)),
                 *second = MADE(f->dev, gpunn_hvp(sum, s.x, s.v));
    check_differences(&s, first, second);
    /* reverse over forward */
    check_same(&s, second, MADE(f->dev, gpunn_grad(weighted(f->model, along, 3), s.x)));
    check_nodes(&s, gpunn_add(gpunn_add(sum, weighted(f->model, second, 5)), weighted(f->model, along, 6)));
    subject_free(&s);
}

/* ---- networks of three layers against torch.autograd.grad(create_graph=True) and torch.func:
 * tests/golden/derivatives.py -- */
typedef gpunn_tensor *(*activation)(gpunn_tensor *x);
static gpunn_tensor *softplus(gpunn_tensor *x)
{
    return gpunn_softplus(x, 1, 20);
}

static gpunn_tensor *network(gpunn_tensor *x, activation act)
{
    gpunn_tensor *h = act(gpunn_linear(x, "0", .out_features = 8));
    h = act(gpunn_linear(h, "1", .out_features = 8));
    return gpunn_linear(h, "2", .out_features = 1);
}

/* d/dx of a column, [n, 1]. */
static gpunn_tensor *by_column(gpunn_tensor *y, gpunn_tensor *x, int column)
{
    return gpunn_slice(gpunn_grad(y, x), 1, column, column + 1, 1);
}

static void check_golden(const fixture *f, const golden *g, const char *name, const char *what,
                         gpunn_tensor *t)
{
    const golden_tensor *expected = golden_find(g, "%s/%s", name, what);
    float               *values = malloc(expected->bytes);
    OK(f->dev, gpunn_read(t, values, expected->bytes));
    check_close_at(values, (const float *)expected->data, expected->count, 2e-4, 2e-5, what, __FILE__,
                   __LINE__);
    free(values);
}

/* u by the first coordinate once, twice and three times, and by the second. */
typedef struct partials {
    gpunn_tensor *x, *xx, *xxx, *t;
} partials;

static partials partials_backward(gpunn_model *model, gpunn_tensor *u, gpunn_tensor *x)
{
    (void)model;
    gpunn_tensor *u_x = by_column(u, x, 0), *u_xx = by_column(u_x, x, 0);
    return (partials){u_x, u_xx, by_column(u_xx, x, 0), by_column(u, x, 1)};
}

static partials partials_forward(gpunn_model *model, gpunn_tensor *u, gpunn_tensor *x)
{
    static const float unit[2][2] = {{1, 0}, {0, 1}};
    gpunn_tensor      *along[2];
    for (int i = 0; i < 2; i++)
        along[i] = gpunn_expand(gpunn_constant(model, GPUNN_SHAPE(1, 2), unit[i]),
                                GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor *u_x = gpunn_jvp(u, x, along[0]), *u_xx = gpunn_jvp(u_x, x, along[0]);
    return (partials){u_x, u_xx, gpunn_jvp(u_xx, x, along[0]), gpunn_jvp(u, x, along[1])};
}

static partials partials_mixed(gpunn_model *model, gpunn_tensor *u, gpunn_tensor *x)
{
    (void)model;
    gpunn_tensor *gradient, *u_xx = gpunn_laplacian(u, x, .coordinates = 1, .gradient = &gradient);
    return (partials){gpunn_slice(gradient, 1, 0, 1, 1), u_xx, by_column(u_xx, x, 0),
                      gpunn_slice(gradient, 1, 1, 2, 1)};
}

static void test_torch(void **state)
{
    static const char *const names[] = {"tanh", "sin", "softplus"};
    static const activation  acts[] = {gpunn_tanh, gpunn_sin, softplus};
    static partials (*const partials_of[])(gpunn_model *, gpunn_tensor *, gpunn_tensor *) = {
        partials_backward, partials_forward, partials_mixed};
    fixture *f = *state;
    golden   g = golden_open("tests/golden/derivatives.safetensors");
    for (int at = 0; at < COUNT(names) * COUNT(partials_of); at++) {
        const int      i = at / COUNT(partials_of);
        gpunn_model   *model = MADE(f->dev, gpunn_model_create(f->dev));
        gpunn_tensor  *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
        gpunn_tensor  *v = gpunn_input(model, "v", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
        gpunn_tensor  *u = network(x, acts[i]);
        const partials s = partials_of[at % COUNT(partials_of)](model, u, x);
        /* Korteweg and de Vries' */
        gpunn_tensor *residual = gpunn_add(gpunn_add(s.xxx, gpunn_mul(u, s.x)), s.t);
        gpunn_tensor *loss = gpunn_mean(gpunn_square(residual), GPUNN_ALL, false), *by[6];
        gpunn_tensor *all[] = {
            s.x, s.xx, s.xxx, gpunn_jvp(u, x, v), gpunn_hvp(u, x, v), gpunn_laplacian(u, x), loss};
        static const char *const whats[] = {"u_x", "u_xx", "u_xxx", "jvp", "hvp", "laplacian", "loss"};
        for (int k = 0; k < 6; k++) {
            by[k] = gpunn_parameter_at(model, k);
            const golden_tensor *w = golden_find(&g, "%s/%s", names[i], gpunn_tensor_name(by[k]));
            OK(f->dev, gpunn_write(by[k], w->data, w->bytes));
        }
        OK(f->dev, gpunn_write(x, golden_get(&g, "x")->data, golden_get(&g, "x")->bytes));
        OK(f->dev, gpunn_write(v, golden_get(&g, "v")->data, golden_get(&g, "v")->bytes));
        OK(f->dev, gpunn_forward(all, COUNT(all)));
        for (int k = 0; k < COUNT(all); k++) check_golden(f, &g, names[i], whats[k], all[k]);
        OK(f->dev, gpunn_backward(loss));
        for (int k = 0; k < 6; k++) {
            float                gradient[64];
            const golden_tensor *expected = golden_find(&g, "%s/grad.%s", names[i], gpunn_tensor_name(by[k]));
            OK(f->dev, gpunn_read_grad(by[k], gradient, expected->bytes));
            check_close(gradient, (const float *)expected->data, expected->count, 1e-3, 1e-4);
        }
        gpunn_model_destroy(model);
    }
    golden_close(&g);
}

/* ---- Laplacians of networks that move samples about, against second derivatives along each coordinate -- */
enum { POINTS = 3, AXES = 2 };

static gpunn_tensor *last_layer(gpunn_tensor *h)
{
    return gpunn_linear(h, "last", .out_features = 1);
}

static gpunn_tensor *in_rows(gpunn_tensor *x)
{
    return last_layer(gpunn_mul(gpunn_tanh(gpunn_linear(x, "0", .out_features = 4)),
                                gpunn_sum(gpunn_sin(x), GPUNN_AXES(1), true)));
}

static gpunn_tensor *in_columns(gpunn_tensor *x)
{
    gpunn_tensor *h = gpunn_square(
        gpunn_permute(gpunn_tanh(gpunn_linear(x, "0", .out_features = 3)), GPUNN_AXES(1, 0)));
    return gpunn_sum(gpunn_softmax(h, 0), GPUNN_AXES(0), false); /* [n]: 1, which has no derivative */
}

static gpunn_tensor *in_columns_weighted(gpunn_tensor *x)
{
    gpunn_tensor *h = gpunn_softmax(
        gpunn_permute(gpunn_linear(gpunn_square(x), "0", .out_features = 3), GPUNN_AXES(1, 0)), 0);
    return gpunn_reshape(last_layer(gpunn_permute(h, GPUNN_AXES(1, 0))),
                         GPUNN_SHAPE(gpunn_tensor_shape(x).dim[0]));
}

/* a row for each coordinate: which sample it is of cannot be seen */
static gpunn_tensor *in_pairs(gpunn_tensor *x)
{
    const int64_t n = gpunn_tensor_shape(x).dim[0];
    gpunn_tensor *h = gpunn_tanh(
        gpunn_linear(gpunn_reshape(x, GPUNN_SHAPE(n * AXES, 1)), "0", .out_features = 3));
    return last_layer(gpunn_exp(gpunn_reshape(h, GPUNN_SHAPE(n, 3 * AXES))));
}

static gpunn_tensor *in_norms(gpunn_tensor *x)
{
    return last_layer(gpunn_layer_norm(
        gpunn_concat((gpunn_tensor *[]){gpunn_linear(x, "0", .out_features = 3), x}, 2, 1), "n"));
}

static gpunn_tensor *in_signals(gpunn_tensor *x)
{
    gpunn_tensor *h = gpunn_reshape(gpunn_exp(x), GPUNN_SHAPE(gpunn_tensor_shape(x).dim[0], 1, AXES));
    h = gpunn_sin(gpunn_conv1d(h, "0", .out_channels = 2, .kernel_size = 2, .padding = 1));
    return last_layer(gpunn_max(h, GPUNN_AXES(2), false));
}

static gpunn_tensor *straight(gpunn_tensor *x)
{
    return last_layer(x);
}

static void check_laplacian(fixture *f, int64_t samples, gpunn_tensor *(*build)(gpunn_tensor *x))
{
    static const float unit[AXES][AXES] = {{1, 0}, {0, 1}};
    gpunn_model       *model = MADE(f->dev, gpunn_model_create(f->dev));
    gpunn_tensor      *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(samples, AXES)), *sum = NULL,
                 *gradient = NULL;
    gpunn_tensor *y = MADE(f->dev, build(x)),
                 *laplacian = MADE(f->dev, gpunn_laplacian(y, x, .gradient = &gradient));
    float *values = test_randoms(POINTS * AXES, 11, 1), expected[POINTS], actual[POINTS],
          partials[2][POINTS * AXES];
    for (int i = 0; i < AXES; i++) {
        gpunn_tensor *v = gpunn_expand(gpunn_constant(model, GPUNN_SHAPE(1, AXES), unit[i]),
                                       GPUNN_SHAPE(samples, AXES));
        gpunn_tensor *second = MADE(f->dev, gpunn_jvp(gpunn_jvp(y, x, v), x, v));
        sum = sum ? gpunn_add(sum, second) : second;
    }
    gpunn_tensor *all[] = {laplacian, sum, gradient, gpunn_grad(y, x)};
    OK(f->dev, write_floats(x, values, POINTS * AXES));
    OK(f->dev, gpunn_forward(all, COUNT(all)));
    OK(f->dev, gpunn_read(laplacian, actual, sizeof actual));
    OK(f->dev, gpunn_read(sum, expected, sizeof expected));
    check_close(actual, expected, POINTS, 1e-4, 1e-4);
    for (int i = 0; i < 2; i++) OK(f->dev, gpunn_read(all[2 + i], partials[i], sizeof partials[i]));
    check_close(partials[0], partials[1], POINTS * AXES, 0, 0);
    assert_int_equal(gpunn_tensor_shape(laplacian).dim[1], 1);
    free(values);
    gpunn_model_destroy(model);
}

static void test_laplacians(void **state)
{
    static gpunn_tensor *(*const builds[])(gpunn_tensor *) = {
        in_rows, in_columns, in_columns_weighted, in_pairs, in_norms, in_signals, straight};
    for (int i = 0; i < COUNT(builds); i++) {
        check_laplacian(*state, GPUNN_BATCH, builds[i]);
        check_laplacian(*state, POINTS, builds[i]);
    }
}

/* ---- beside values ---- */
/* A model with derivatives in it is told by its spec, convolutions among them. */
static void test_spec(void **state)
{
    fixture      *f = *state;
    const char   *path = test_path(f, "derivatives.json");
    float        *values = test_randoms(N * 4 * 36, 3, 1);
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 4, 6, 6));
    gpunn_tensor *y = gpunn_conv2d(gpunn_sin(x), "c", .out_channels = 2, .kernel_size = 3, .stride = 2);
    y = gpunn_layer_norm(gpunn_tanh(gpunn_group_norm(y, "n", .num_groups = 1)), "l");
    gpunn_tensor *gradient = gpunn_grad(gpunn_square(y), x),
                 *penalty = gpunn_sum(gpunn_square(gradient), GPUNN_ALL, false);
    gpunn_tensor *by_weight = gpunn_add(
        gpunn_grad(penalty, gpunn_find(f->model, "c.weight")),
        gpunn_grad(gpunn_sum(gpunn_square(gpunn_jvp(y, x, x)), GPUNN_ALL, false),
                   gpunn_find(f->model, "c.weight")));
    gpunn_tensor *loss = gpunn_set_name(
        gpunn_add(penalty, gpunn_sum(gpunn_square(by_weight), GPUNN_ALL, false)), "loss");
    OK(f->dev, write_floats(x, values, N * 4 * 36));
    OK(f->dev, gpunn_forward(&loss, 1));
    const float expected = gpunn_item(loss);
    OK(f->dev, gpunn_spec_save(f->model, path, .loss = loss));
    gpunn_model *again = MADE(f->dev, gpunn_spec_load(f->dev, path));
    (void)remove(path);
    for (int i = 0; i < gpunn_parameter_count(f->model); i++) {
        int64_t n;
        float  *w = read_floats(f->dev, gpunn_parameter_at(f->model, i), &n);
        OK(f->dev, write_floats(gpunn_find(again, gpunn_tensor_name(gpunn_parameter_at(f->model, i))), w, n));
        free(w);
    }
    loss = MADE(f->dev, gpunn_find(again, "loss"));
    OK(f->dev, write_floats(gpunn_find(again, "x"), values, N * 4 * 36));
    OK(f->dev, gpunn_forward(&loss, 1));
    const float actual = gpunn_item(loss);
    check_close(&actual, &expected, 1, 0, 0);
    assert_true(expected > 0);
    gpunn_model_destroy(again);
    free(values);
}

/* A step that has derivatives in its loss allocates nothing after its first two and makes the loss fall. */
static void test_training(void **state)
{
    fixture         *f = *state;
    float           *values = test_randoms(32, 5, 1);
    gpunn_tensor    *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    gpunn_tensor    *u = network(x, gpunn_tanh), *gradient = gpunn_grad(u, x);
    gpunn_tensor    *loss = gpunn_mse_loss(gradient, gpunn_cos(x));
    gpunn_optimizer *opt = MADE(f->dev, gpunn_adam(f->model, .lr = 0.02f));
    float            first = 0;
    long             calls = 0;
    OK(f->dev, write_floats(x, values, 32));
    for (int step = 0; step < 60; step++) {
        OK(f->dev, gpunn_train_step(opt, loss));
        if (step == 0) first = gpunn_item(loss);
        if (step == 2) calls = f->memory.calls;
    }
    assert_int_equal(f->memory.calls, calls);
    assert_true(gpunn_item(loss) < 0.2f * first);
    gpunn_optimizer_destroy(opt);
    free(values);
}

static void test_zeros(void **state)
{
    fixture      *f = *state;
    float         values[4] = {1, 2, 3, 4}, actual[4], zeros[4] = {0};
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor *w = weight(f->model, "w", GPUNN_SHAPE(2), 1, 2);
    gpunn_tensor *beside = gpunn_add(gpunn_mul(gpunn_detach(gpunn_square(x)), w), gpunn_floor(x));
    gpunn_tensor *none[] = {gpunn_grad(beside, x),
                            gpunn_grad(x, beside),
                            gpunn_grad(gpunn_grad(gpunn_mul_scalar(x, 2), x), x),
                            gpunn_jvp(beside, x, x),
                            gpunn_jvp(x, beside, x),
                            gpunn_jvp(gpunn_jvp(gpunn_mul_scalar(x, 2), x, x), w, w)};
    OK(f->dev, write_floats(x, values, 4));
    OK(f->dev, gpunn_forward(none, COUNT(none)));
    for (int i = 0; i < COUNT(none); i++) {
        OK(f->dev, gpunn_read(none[i], actual, sizeof actual));
        check_close(actual, zeros, 4, 0, 0);
    }
    assert_ptr_equal(gpunn_grad(x, x, .grad_output = beside), beside);
    assert_ptr_equal(gpunn_jvp(x, x, beside), beside);
}

static void count_squares(void *user, const char *line)
{
    *(int *)user += strncmp(line, "square ", 7) == 0;
}

/* What derivatives make of values alone they make once, apart from the program's own nodes. */
static void test_shares(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor *y = gpunn_tanh(x), *own = gpunn_square(y), *first = gpunn_grad(y, x),
                 *again = gpunn_grad(y, x);
    gpunn_tensor *second = gpunn_grad(first, x);
    int           squares = 0;
    assert_ptr_not_equal(first, again);
    OK(f->dev, gpunn_model_summary(f->model, .outputs = {own, first, again, second}, .write = count_squares,
                                   .user = &squares));
    assert_int_equal(squares, 2); /* own, and that of 1 - y * y */
}

/* The gradient of a mean as ops is that of the backward pass. */
static void check_mean(const fixture *f, gpunn_tensor *x, gpunn_tensor *y, int64_t n)
{
    float        *expected = calloc((size_t)n, sizeof *expected), *actual;
    gpunn_tensor *mean = MADE(f->dev, gpunn_mean(y, GPUNN_ALL, false)),
                 *gradient = MADE(f->dev, gpunn_grad(mean, MADE(f->dev, gpunn_retain_grad(x))));
    OK(f->dev, gpunn_backward(mean));
    OK(f->dev, gpunn_read_grad(x, expected, (size_t)n * sizeof *expected));
    OK(f->dev, gpunn_forward(&gradient, 1));
    actual = read_floats(f->dev, gradient, &n);
    check_close(actual, expected, n, 1e-5, 1e-6);
    free(expected), free(actual);
}

/* Sizes that vary, and the batch on two axes, as between all pairs of samples. A product of such rows has no
 * gradient. */
static void test_sizes(void **state)
{
    enum { N = 4, T = 5, WIDTH = 3 };
    fixture      *f = *state;
    float        *values = test_randoms(N * T * WIDTH, 1, 1);
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32,
                                  GPUNN_SHAPE(GPUNN_BATCH, gpunn_size(f->model, "T"), WIDTH));
    gpunn_tensor *h = gpunn_layer_norm(gpunn_linear(gpunn_exp(x), "in", .out_features = 4), "norm");
    OK(f->dev, gpunn_write_shape(x, values, GPUNN_SHAPE(N, T, WIDTH)));
    check_mean(f, x, gpunn_square(gpunn_linear(gpunn_sin(h), "out", .out_features = 2)), N * T * WIDTH);

    gpunn_tensor *rows = gpunn_input(f->model, "rows", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, WIDTH)),
                 *across = gpunn_reshape(gpunn_exp(rows), GPUNN_SHAPE(1, GPUNN_BATCH, WIDTH)),
                 *pairs = gpunn_sub(gpunn_reshape(rows, GPUNN_SHAPE(GPUNN_BATCH, 1, WIDTH)), across);
    OK(f->dev, write_floats(rows, values, N * WIDTH));
    check_mean(f, rows, gpunn_tanh(pairs), N * WIDTH);
    FAILS_NULL(f->dev, gpunn_grad(gpunn_sin(gpunn_linear(pairs, "fc", .out_features = 2)), rows),
               GPUNN_ERR_SHAPE, "gpunn_grad", "[batch, batch, 2]", "the batch is on more than one");
    free(values);
}

static void test_misuse(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, 8, 8)),
                 *by[2] = {x, x}, *got[2] = {x, x};
    gpunn_tensor *labels = gpunn_input(f->model, "labels", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *pooled = gpunn_adaptive_max_pool2d(gpunn_sin(x), 3, 4);
    gpunn_tensor *normed = gpunn_batch_norm2d(gpunn_sin(x), "bn");
    const int     count = gpunn_parameter_count(f->model);
    FAILS_NULL(f->dev, gpunn_grad(gpunn_tanh(pooled), x), GPUNN_ERR_UNSUPPORTED,
               "grad: adaptive_max_pool2d has no derivative");
    FAILS_NULL(f->dev, gpunn_grad(normed, x), GPUNN_ERR_UNSUPPORTED, "batch_norm 'bn'", "gpunn_grad's list");
    FAILS_NULL(f->dev, gpunn_grad(gpunn_dropout(x, 0.5f), x), GPUNN_ERR_UNSUPPORTED, "dropout");
    FAILS_NULL(f->dev, gpunn_grad(gpunn_pad(x, .after = {0, 0, 1}, .mode = GPUNN_PAD_REFLECT), x),
               GPUNN_ERR_UNSUPPORTED, "pad");
    FAILS_NULL(f->dev, gpunn_grad(x, labels), GPUNN_ERR_DTYPE, "grad: x is i64");
    FAILS_NULL(f->dev, gpunn_grad(labels, x), GPUNN_ERR_DTYPE, "grad: y is i64");
    FAILS_NULL(f->dev, gpunn_grad(x, (gpunn_tensor *)NULL), GPUNN_ERR_ARGUMENT, "x is NULL");
    FAILS_NULL(f->dev, gpunn_grad(x, x, .grad_output = pooled), GPUNN_ERR_SHAPE,
               ".grad_output is [batch, 1, 3, 4]");
    FAILS(f->dev, gpunn_grads(x, by, 0, got), GPUNN_ERR_ARGUMENT, "got 0 inputs");
    FAILS(f->dev, gpunn_grads(pooled, by, 2, got), GPUNN_ERR_UNSUPPORTED, "adaptive_max_pool2d");
    assert_null(got[0]);
    assert_null(got[1]);
    FAILS_NULL(f->dev, gpunn_jvp(gpunn_tanh(pooled), x, x), GPUNN_ERR_UNSUPPORTED,
               "jvp: adaptive_max_pool2d has no derivative");
    FAILS_NULL(f->dev, gpunn_jvp(normed, x, x), GPUNN_ERR_UNSUPPORTED, "batch_norm 'bn'",
               "gpunn_grad's list");
    FAILS_NULL(f->dev, gpunn_hvp(pooled, x, x), GPUNN_ERR_UNSUPPORTED, "adaptive_max_pool2d");
    FAILS_NULL(f->dev, gpunn_jvp(labels, x, x), GPUNN_ERR_DTYPE, "jvp: y is i64");
    FAILS_NULL(f->dev, gpunn_jvp(x, x, pooled), GPUNN_ERR_SHAPE, "jvp: v is [batch, 1, 3, 4]");
    FAILS_NULL(f->dev, gpunn_hvp(x, x, (gpunn_tensor *)NULL), GPUNN_ERR_ARGUMENT, "hvp: v is NULL");
    FAILS_NULL(f->dev, gpunn_laplacian(x, gpunn_sum(x, GPUNN_ALL, false)), GPUNN_ERR_SHAPE,
               "laplacian: x is []");
    gpunn_tensor *rows = gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, 64)),
                 *sum = gpunn_sum(rows, GPUNN_AXES(1), false);
    FAILS_NULL(f->dev, gpunn_laplacian(sum, x), GPUNN_ERR_SHAPE, "x is [batch, 1, 8, 8]",
               "[samples, coordinates]");
    FAILS_NULL(f->dev, gpunn_laplacian(rows, rows, .gradient = got), GPUNN_ERR_SHAPE,
               "laplacian: y is [batch, 64], but x is");
    assert_null(got[0]);
    FAILS_NULL(f->dev, gpunn_laplacian(gpunn_sum(rows, GPUNN_ALL, false), rows), GPUNN_ERR_SHAPE, "y is []",
               "for each row");
    FAILS_NULL(f->dev, gpunn_laplacian(sum, rows, .coordinates = 65), GPUNN_ERR_ARGUMENT,
               ".coordinates is 65, but x has 64");
    FAILS_NULL(f->dev, gpunn_laplacian(sum, rows, .coordinates = -1), GPUNN_ERR_ARGUMENT,
               ".coordinates is -1");
    gpunn_tensor *wide = gpunn_sum(
        gpunn_adaptive_max_pool2d(gpunn_reshape(rows, GPUNN_SHAPE(GPUNN_BATCH, 1, 8, 8)), 3, 1),
        GPUNN_AXES(1, 2), false);
    FAILS_NULL(f->dev, gpunn_laplacian(wide, rows), GPUNN_ERR_UNSUPPORTED,
               "laplacian: adaptive_max_pool2d has no derivative");
    assert_int_equal(gpunn_parameter_count(f->model), count);
}

/* Whichever allocation fails: a sentence, no node left behind, and the next call works. */
static void test_allocations(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor *u = network(x, gpunn_tanh), *heads = gpunn_reshape(u, GPUNN_SHAPE(GPUNN_BATCH, 1, 1, 1));
    gpunn_tensor *pooled = gpunn_avg_pool2d(gpunn_scaled_dot_product_attention(heads, heads, heads),
                                            .kernel_size = 2, .padding = 1);
    for (int i = 0; i < 2; i++) {
        gpunn_tensor *made = NULL;
        for (long at = 1; made == NULL && at < 10000; at++) {
            f->memory.fail_at = f->memory.calls + at;
            made = i == 0 ? gpunn_laplacian(u, x) : gpunn_hvp(gpunn_sum(pooled, GPUNN_ALL, false), x, x);
            f->memory.fail_at = 0;
            if (made == NULL)
                check_sentence(f->dev, GPUNN_ERR_MEMORY, __FILE__, __LINE__, "memory", (const char *)NULL);
        }
        assert_non_null(made);
    }
}

/* The derivative of detach is not that of its values: test_zeros has it. */
static bool is_sound(const op_case *c)
{
    const bool for_positive = c->build == build_log || c->build == build_sqrt || c->build == build_rsqrt ||
                              c->build == build_log2 || c->build == build_log10;
    return c->build != build_detach && c->build != build_acosh && !(for_positive && c->shift < 0);
}

int main(void)
{
    static struct CMUnitTest tests[4 * COUNT(cases)];
    int                      count = 0;
    for (int i = 0; i < COUNT(cases); i++)
        if (is_sound(&cases[i])) count += each_backend(tests + count, cases[i].name, test_op, &cases[i]);
    count += each_backend(tests + count, "torch", test_torch, NULL);
    count += each_backend(tests + count, "laplacians", test_laplacians, NULL);
    count += each_backend(tests + count, "spec", test_spec, NULL);
    count += each_backend(tests + count, "training", test_training, NULL);
    count += each_backend(tests + count, "zeros", test_zeros, NULL);
    count += each_backend(tests + count, "shares", test_shares, NULL);
    count += each_backend(tests + count, "sizes that vary", test_sizes, NULL);
    count += each_backend(tests + count, "misuse", test_misuse, NULL);
    count += each_backend(tests + count, "allocations", test_allocations, NULL);
    count += missing_backends(tests + count);
    return _cmocka_run_group_tests("derivatives", tests, (size_t)count, NULL, NULL);
}
