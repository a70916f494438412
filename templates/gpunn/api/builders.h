#ifndef GPUNN__API_BUILDERS_H
#define GPUNN__API_BUILDERS_H
#include "api/ops.h"

/* ==== >>builders ========================================================================================= *
 * Builders append a node to the model of their operands and return its value. They return NULL on an error,
 * or if an operand is NULL; in the second case the first error is kept. Operands belong to one model and are
 * F32 unless stated otherwise. A value has no name until gpunn_set_name. Builders are not thread-safe per
 * device. */

/* -- elementwise ops -- */
/* Elementwise, from the tables of >>ops, which have the formulas. Operands broadcast. Attributes have torch's
 * defaults there. (python3 -m generator.prototypes writes these lines, and those of the losses that are
 * formulas.) */
GPUNN_API gpunn_tensor *gpunn_relu(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_relu6(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_sigmoid(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_tanh(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_silu(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_mish(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_gelu(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_gelu_tanh(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_softsign(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_logsigmoid(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_hardsigmoid(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_hardswish(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_selu(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_abs(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_neg(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_sign(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_floor(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_detach(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_exp(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_expm1(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_log(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_log1p(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_sqrt(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_rsqrt(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_reciprocal(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_square(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_erf(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_sin(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_cos(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_exp2(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_log2(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_log10(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_sinh(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_cosh(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_asin(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_acos(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_atan(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_asinh(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_acosh(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_atanh(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_leaky_relu(gpunn_tensor *x, float negative_slope);
GPUNN_API gpunn_tensor *gpunn_elu(gpunn_tensor *x, float alpha);
GPUNN_API gpunn_tensor *gpunn_celu(gpunn_tensor *x, float alpha);
GPUNN_API gpunn_tensor *gpunn_hardshrink(gpunn_tensor *x, float lambd);
GPUNN_API gpunn_tensor *gpunn_add_scalar(gpunn_tensor *x, float value);
GPUNN_API gpunn_tensor *gpunn_mul_scalar(gpunn_tensor *x, float value);
GPUNN_API gpunn_tensor *gpunn_pow_scalar(gpunn_tensor *x, float exponent);
GPUNN_API gpunn_tensor *gpunn_hardtanh(gpunn_tensor *x, float min_val, float max_val);
GPUNN_API gpunn_tensor *gpunn_clamp(gpunn_tensor *x, float min, float max);
GPUNN_API gpunn_tensor *gpunn_softplus(gpunn_tensor *x, float beta, float threshold);
GPUNN_API gpunn_tensor *gpunn_add(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_sub(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_mul(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_div(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_floor_divide(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_pow(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_maximum(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_minimum(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_eq(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_ne(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_lt(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_le(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_gt(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_ge(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_parametric_relu(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_atan2(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_hypot(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_logaddexp(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_fmod(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_remainder(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_API gpunn_tensor *gpunn_where(gpunn_tensor *a, gpunn_tensor *b, gpunn_tensor *c);

/* Integer arithmetic. The elementwise builders listed in GPUNN_INTEGER_OPS also take integers: I64, I32, U8
 * and BOOL. All operands must then be integers (the condition of gpunn_where may have any dtype). Comparisons
 * and logical ops return BOOL. The other ops return the largest of their operands' dtypes; the exact result
 * wraps around to its bits, and for BOOL it is whether the result is not 0. Integers have no gradient. A
 * division by 0 fails the run with GPUNN_ERR_ARGUMENT. A GPU does not stop: there the quotient is 0 and the
 * remainder is the dividend.
 * gpunn_integer_scalar: op with a number as its last operand, such as x // 4 or x < 10. The number has x's
 * dtype, or I64 if that is BOOL.
 * gpunn_where_scalar: x where the condition holds, else the number, in the same dtype. */
GPUNN_API gpunn_tensor *gpunn_integer_scalar(gpunn_integer_op op, gpunn_tensor *x, int64_t value);
GPUNN_API gpunn_tensor *gpunn_where_scalar(gpunn_tensor *condition, gpunn_tensor *x, int64_t value);

/* -- formulas -- */
/* Formulas made of the ops above, with torch's names (GPUNN__FORMULAS in >>graph/arguments). */
GPUNN_API gpunn_tensor *gpunn_softshrink(gpunn_tensor *x, float lambd);
GPUNN_API gpunn_tensor *gpunn_threshold(gpunn_tensor *x, float threshold, float value);
GPUNN_API gpunn_tensor *gpunn_tan(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_ceil(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_round(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_trunc(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_frac(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_erfc(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_lgamma(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_tanhshrink(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_logical_not(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_logical_and(gpunn_tensor *x, gpunn_tensor *y);
GPUNN_API gpunn_tensor *gpunn_logical_or(gpunn_tensor *x, gpunn_tensor *y);
GPUNN_API gpunn_tensor *gpunn_logical_xor(gpunn_tensor *x, gpunn_tensor *y);
GPUNN_API gpunn_tensor *gpunn_isnan(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_isinf(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_isfinite(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_xlogy(gpunn_tensor *x, gpunn_tensor *y);
/* log(x / (1 - x)). x is clamped to eps .. 1 - eps; eps < 0: not clamped. */
GPUNN_API gpunn_tensor *gpunn_logit(gpunn_tensor *x, float eps);
/* x / y rounded towards 0; no gradient */
GPUNN_API gpunn_tensor *gpunn_trunc_divide(gpunn_tensor *x, gpunn_tensor *y);

/* Builds the nodes of a formula in the language of the op tables. The operands broadcast.
 * Names: x, y, z (args 0 to 2) or x0 to x7, and the constant pi. Operators: + - * / **, < <= > >= == !=
 * (which chain), and or not, a if c else b, and parentheses. All have Python's meaning.
 * Functions: every elementwise op by name, with its attributes as further numbers, such as "x * sigmoid(1.702
 * * x)" or "where(x > 0, x, leaky_relu(x, 0.2))"; also max, min, floordiv, K(number) and where. A value that
 * is used again gets a name first: "t = max(x, 0); t ** 2 + t".
 * Reductions: sum, mean, amax (gpunn_max) and norm(x, p, ...), over all axes or those listed. 2: means the
 * third axis and all after it. keepdim=True keeps the axes: "x - mean(x, 2:, keepdim=True)".
 * Along one axis: argmax, softmax, log_softmax and cumsum. window_mean(x, k) is the mean of the k cells
 * around each cell, along every axis after the second.
 * Operands of other dtypes need float(y), which is gpunn_cast to F32: "mean(float(argmax(x, 1)) ==
 * float(y))". If a number decides a condition, as in "x if 1 else y", the branch not taken adds no nodes. */
GPUNN_API gpunn_tensor *gpunn_expr(const char *expression, gpunn_tensor *const *args, int arg_count);

/* -- layers: parameters are named name.weight, name.bias, ... as in torch.nn; name must be unique, "" or NULL
 * is an error. A linear layer, convolution or embedding that creates no parameters, because .weight and .bias
 * or .no_bias are given, may have no name; it is then called by its op and a number -- */

typedef struct gpunn_linear_args {
    int  args_;
    int  out_features;
    bool no_bias;
    /* existing parameter [out, in], e.g. of another layer, instead of a new one; also sets out_features */
    gpunn_tensor *weight;
    gpunn_tensor *bias; /* existing parameter [out], instead of a new one */
} gpunn_linear_args;
/* y = x weight^T + bias. x [..., in] -> [..., out]; weight [out, in], bias [out]. The gradient of a shared
 * weight is the sum over all layers that read it. */
GPUNN_API gpunn_tensor *gpunn_linear_(gpunn_tensor *x, const char *name, gpunn_linear_args args);
#define gpunn_linear(x, ...) gpunn_linear_((x), GPUNN_NAMED(gpunn_linear_args, __VA_ARGS__))

typedef struct gpunn_bilinear_args {
    int  args_;
    int  out_features; /* required: features of the result */
    bool no_bias;      /* torch's bias=False */
} gpunn_bilinear_args;
/* torch.nn.Bilinear: output o of each row is x1 W_o x2 + bias_o. x1 [..., in1] and x2 [..., in2] have the
 * same number of rows -> [..., out]; weight [out, in1, in2], bias [out]. It stores the products of all pairs,
 * rows * in1 * in2 values. */
GPUNN_API gpunn_tensor *gpunn_bilinear_(gpunn_tensor *x1, gpunn_tensor *x2, const char *name,
                                        gpunn_bilinear_args args);
#define gpunn_bilinear(x1, x2, ...) gpunn_bilinear_((x1), (x2), GPUNN_NAMED(gpunn_bilinear_args, __VA_ARGS__))

typedef struct gpunn_conv_args {
    int args_;
    /* the same along all axes ... */
    int out_channels, kernel_size, stride, padding, dilation, groups;
    /* transposed convolutions only */
    int output_padding;
    /* ... or one per spatial axis, where not 0 */
    int  kernel_shape[3], strides[3], paddings[3], dilations[3], output_paddings[3];
    bool no_bias;
    /* tensor of the weight's shape, computed or another layer's, instead of a new parameter */
    gpunn_tensor *weight;
    gpunn_tensor *bias; /* existing parameter [out], instead of a new one */
    /* Padding after each axis; default: the padding before it (padding, paddings). If they differ, a
     * gpunn_pad comes first. Not for transposed convolutions. */
    int padding_end, paddings_end[3];
    /* gpunn_conv1d: each run continues the sequence of the previous one, in training too. The state name.past
     * [n, in, dilation (kernel - 1)] holds the last elements of x, 0 at first, and stands before x in place
     * of padding. So the result is as long as x, and blocks of any lengths give the values of the whole
     * sequence. No gradient flows between runs. The stride must be 1, and n fixed or .capacity given. */
    bool stateful;
    int  capacity; /* with .stateful and a varying n: the largest n, as in gpunn_rnn_args */
} gpunn_conv_args;
/* Convolution. x [n, in, length] (1d), [n, in, height, width] (2d) or [n, in, depth, height, width] (3d) ->
 * [n, out, ...]. The size along each axis becomes (size + padding + padding_end - dilation (kernel - 1) - 1)
 * / stride + 1. weight [out, in / groups, kernel ...], bias [out]. For torch's padding="same", set .padding
 * to dilation (kernel - 1) / 2, rounded down, and .padding_end to the rest. */
GPUNN_API gpunn_tensor *gpunn_conv1d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
GPUNN_API gpunn_tensor *gpunn_conv2d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
GPUNN_API gpunn_tensor *gpunn_conv3d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
#define gpunn_conv1d(x, ...) gpunn_conv1d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))
#define gpunn_conv2d(x, ...) gpunn_conv2d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))
#define gpunn_conv3d(x, ...) gpunn_conv3d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))
/* Transposed convolution: the gradient of such a convolution with respect to its input, as a layer. The size
 * along each axis becomes (size - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1.
 * output_padding is less than stride or dilation. weight [in, out / groups, kernel ...]. */
GPUNN_API gpunn_tensor *gpunn_conv_transpose1d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
GPUNN_API gpunn_tensor *gpunn_conv_transpose2d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
GPUNN_API gpunn_tensor *gpunn_conv_transpose3d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
#define gpunn_conv_transpose1d(x, ...) gpunn_conv_transpose1d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))
#define gpunn_conv_transpose2d(x, ...) gpunn_conv_transpose2d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))
#define gpunn_conv_transpose3d(x, ...) gpunn_conv_transpose3d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))

typedef struct gpunn_pool_args {
    int  args_;
    int  kernel_size, stride, padding;             /* default of stride: the kernel size */
    int  kernel_shape[3], strides[3], paddings[3]; /* one per spatial axis, where not 0 */
    bool ceil_mode, count_exclude_pad;             /* count_exclude_pad: average over real elements only */
    /* Padding after each axis; default: the padding before it (padding, paddings). */
    int padding_end, paddings_end[3];
    int dilation, dilations[3]; /* max_pool: distance between the cells of a window, default 1 */
} gpunn_pool_args;
/* Pooling: the maximum (max_pool) or the mean (avg_pool) of each window. x [n, c, l] (1d), [n, c, h, w]
 * (2d) or [n, c, d, h, w] (3d). The maximum pads with -inf and propagates NaN; its gradient goes to the
 * first maximum. With ceil_mode, a window that starts in the padding after an axis does not count. If
 * padding_end differs from padding, a gpunn_pad comes first. Dilation needs fixed sizes, and as many
 * copies of x as a window has cells along an axis. For global pooling, use adaptive pooling to size 1.
 * gpunn_max_pool2d also takes U8, with neither of the two; it has no gradient then. */
GPUNN_API gpunn_tensor *gpunn_max_pool1d_(gpunn_tensor *x, gpunn_pool_args args);
GPUNN_API gpunn_tensor *gpunn_max_pool2d_(gpunn_tensor *x, gpunn_pool_args args);
GPUNN_API gpunn_tensor *gpunn_max_pool3d_(gpunn_tensor *x, gpunn_pool_args args);
GPUNN_API gpunn_tensor *gpunn_avg_pool1d_(gpunn_tensor *x, gpunn_pool_args args);
GPUNN_API gpunn_tensor *gpunn_avg_pool2d_(gpunn_tensor *x, gpunn_pool_args args);
GPUNN_API gpunn_tensor *gpunn_avg_pool3d_(gpunn_tensor *x, gpunn_pool_args args);
#define gpunn_max_pool1d(...) gpunn_max_pool1d_(GPUNN_NAMED(gpunn_pool_args, __VA_ARGS__))
#define gpunn_max_pool2d(...) gpunn_max_pool2d_(GPUNN_NAMED(gpunn_pool_args, __VA_ARGS__))
#define gpunn_max_pool3d(...) gpunn_max_pool3d_(GPUNN_NAMED(gpunn_pool_args, __VA_ARGS__))
#define gpunn_avg_pool1d(...) gpunn_avg_pool1d_(GPUNN_NAMED(gpunn_pool_args, __VA_ARGS__))
#define gpunn_avg_pool2d(...) gpunn_avg_pool2d_(GPUNN_NAMED(gpunn_pool_args, __VA_ARGS__))
#define gpunn_avg_pool3d(...) gpunn_avg_pool3d_(GPUNN_NAMED(gpunn_pool_args, __VA_ARGS__))
typedef struct gpunn_lp_pool_args {
    int   args_;
    float norm_type;                   /* p > 0, default 2 */
    int   kernel_size, stride;         /* kernel_size: required; stride: default: the kernel size */
    int   kernel_shape[3], strides[3]; /* one per spatial axis, where not 0 */
    bool  ceil_mode;                   /* the last window may end outside x */
} gpunn_lp_pool_args;
/* torch.nn.LPPool1d, LPPool2d, LPPool3d: (sum of x^p)^(1/p) of each window. It is NaN where the sum is below
 * 0; the gradient at 0 is 0. With ceil_mode, a window that ends outside x counts with the mean of its cells,
 * as in torch. */
GPUNN_API gpunn_tensor *gpunn_lp_pool1d_(gpunn_tensor *x, gpunn_lp_pool_args args);
GPUNN_API gpunn_tensor *gpunn_lp_pool2d_(gpunn_tensor *x, gpunn_lp_pool_args args);
GPUNN_API gpunn_tensor *gpunn_lp_pool3d_(gpunn_tensor *x, gpunn_lp_pool_args args);
#define gpunn_lp_pool1d(...) gpunn_lp_pool1d_(GPUNN_NAMED(gpunn_lp_pool_args, __VA_ARGS__))
#define gpunn_lp_pool2d(...) gpunn_lp_pool2d_(GPUNN_NAMED(gpunn_lp_pool_args, __VA_ARGS__))
#define gpunn_lp_pool3d(...) gpunn_lp_pool3d_(GPUNN_NAMED(gpunn_lp_pool_args, __VA_ARGS__))
/* Adaptive pooling to a given size: the maximum (max) or the mean (avg) of each window. Window i of an axis
 * of n cells is the cells i n / out to ((i + 1) n + out - 1) / out - 1. */
GPUNN_API gpunn_tensor *gpunn_adaptive_max_pool1d(gpunn_tensor *x, int out);
GPUNN_API gpunn_tensor *gpunn_adaptive_max_pool2d(gpunn_tensor *x, int out_h, int out_w);
GPUNN_API gpunn_tensor *gpunn_adaptive_max_pool3d(gpunn_tensor *x, int out_d, int out_h, int out_w);
GPUNN_API gpunn_tensor *gpunn_adaptive_avg_pool1d(gpunn_tensor *x, int out);
GPUNN_API gpunn_tensor *gpunn_adaptive_avg_pool2d(gpunn_tensor *x, int out_h, int out_w);
GPUNN_API gpunn_tensor *gpunn_adaptive_avg_pool3d(gpunn_tensor *x, int out_d, int out_h, int out_w);

/* How a value between cells follows from those around it, and what cells outside are. */
typedef enum gpunn_grid_mode { GPUNN_GRID_BILINEAR = 0, GPUNN_GRID_NEAREST } gpunn_grid_mode;
typedef enum gpunn_grid_padding {
    GPUNN_GRID_ZEROS = 0,
    GPUNN_GRID_BORDER,
    GPUNN_GRID_REFLECTION
} gpunn_grid_padding;
typedef struct gpunn_grid_args {
    int                args_;
    gpunn_grid_mode    mode; /* BILINEAR is trilinear in volumes */
    gpunn_grid_padding padding_mode;
    /* true: -1 and 1 are the centres of the outermost cells; false: their outer edges */
    bool align_corners;
} gpunn_grid_args;
/* torch.nn.functional.grid_sample: the values of x at the points of grid. x [n, c, h, w], grid [n, oh, ow, 2]
 * -> [n, c, oh, ow]; x [n, c, d, h, w], grid [n, od, oh, ow, 3] -> [n, c, od, oh, ow]. A point is (x, y) or
 * (x, y, z). Its coordinates run from -1 to 1 along the last axis of x, the one before, and the one before
 * that. Both operands have gradients; that of x is as reproducible as all others.
 * Coordinates that are not finite have no gradient and behave as in torch's CUDA kernels, with or without
 * align_corners. With ZEROS they are outside, which gives 0. With BORDER they mean cell 0, but inf means the
 * last cell. With REFLECTION they mean cell 0.
 * (torch on a CPU differs. Images with bilinear ZEROS give NaN. In volumes NaN means the last cell. Bilinear
 * gradients of images with the other two paddings have no result: 2.15 crashes.) */
GPUNN_API gpunn_tensor *gpunn_grid_sample_(gpunn_tensor *x, gpunn_tensor *grid, gpunn_grid_args args);
#define gpunn_grid_sample(x, ...) gpunn_grid_sample_((x), GPUNN_NAMED(gpunn_grid_args, __VA_ARGS__))
/* torch.nn.functional.affine_grid: the grid that samples through the affine matrices theta [n, 2, 3] (or [n,
 * 3, 4]). size is the result's {h, w} (or {d, h, w}). Returns [n, h, w, 2] (or [n, d, h, w, 3]), F32 in every
 * precision. */
GPUNN_API gpunn_tensor *gpunn_affine_grid(gpunn_tensor *theta, gpunn_shape size, bool align_corners);

typedef struct gpunn_roi_args {
    int   args_;
    int   output_size;     /* bins along both axes ... */
    int   output_shape[3]; /* ... or along height, then width, where not 0 */
    float spatial_scale;   /* cells of x per unit of the boxes, default 1 */
    /* samples along each axis of a bin; 0: the number of cells it covers, rounded up */
    int sampling_ratio;
    /* true: a cell's centre is half a cell from its corner; false: it is the corner, and a box is at least
     * one cell */
    bool aligned;
} gpunn_roi_args;
/* torchvision.ops.roi_align: the mean of bilinear samples of each bin. x [n, c, h, w]; boxes [k, 5] rows of
 * sample index, x1, y1, x2, y2 -> [k, c, output_shape]. A sample up to one cell outside x takes the nearest
 * cell; further away, or where a coordinate is NaN, it is 0. Only x has a gradient; it is as reproducible as
 * all others. Without sampling_ratio, a bin has at most 2^20 samples along an axis. A sample index out of
 * range fails with GPUNN_ERR_ARGUMENT on a CPU; on a GPU the box's values are NaN. */
GPUNN_API gpunn_tensor *gpunn_roi_align_(gpunn_tensor *x, gpunn_tensor *boxes, gpunn_roi_args args);
#define gpunn_roi_align(x, ...) gpunn_roi_align_((x), GPUNN_NAMED(gpunn_roi_args, __VA_ARGS__))

/* How results follow from the cells of x around them. */
typedef enum gpunn_interpolate_mode {
    GPUNN_INTERPOLATE_NEAREST = 0,
    GPUNN_INTERPOLATE_NEAREST_EXACT,
    GPUNN_INTERPOLATE_LINEAR, /* bilinear in images, trilinear in volumes */
    GPUNN_INTERPOLATE_AREA,   /* adaptive_avg_pool */
    /* torch's bicubic, images only: Keys's kernel with a = -0.75, not antialiased */
    GPUNN_INTERPOLATE_CUBIC
} gpunn_interpolate_mode;
typedef struct gpunn_interpolate_args {
    int args_;
    /* Size of the result, one per spatial axis. Default: the size of x times scale_factor, rounded down. */
    int64_t                size[3];
    double                 scale_factor;     /* the same along all axes ... */
    double                 scale_factors[3]; /* ... or one per spatial axis, where not 0 */
    gpunn_interpolate_mode mode;
    /* LINEAR, CUBIC: true keeps the centres of the outermost cells in place; false keeps their outer edges */
    bool align_corners;
} gpunn_interpolate_args;
/* torch.nn.functional.interpolate, nn.Upsample. x [n, c, l], [n, c, h, w] or [n, c, d, h, w]. A non-zero
 * scale_factor determines where results lie in x, even if size is set too; otherwise the sizes do. */
GPUNN_API gpunn_tensor *gpunn_interpolate_(gpunn_tensor *x, gpunn_interpolate_args args);
#define gpunn_interpolate(...) gpunn_interpolate_(GPUNN_NAMED(gpunn_interpolate_args, __VA_ARGS__))

typedef struct gpunn_batch_norm_args {
    int   args_;
    float eps;      /* 1e-5 */
    float momentum; /* weight of the new batch in the running statistics, default 0.1 */
    bool  no_affine;
    /* in training, statistics over the batches of all ranks the model is distributed to: gpunn_distribute */
    bool sync;
    /* torch's track_running_stats = False: batch statistics in evaluation too; not with sync */
    bool no_running_stats;
} gpunn_batch_norm_args;
/* Batch normalisation. x [n, c] or [n, c, l] (1d), [n, c, h, w] (2d), [n, c, d, h, w] (3d). Parameters
 * weight, bias [c]; buffers running_mean, running_var (unbiased) [c]. A training step over one value per
 * channel is an error, as in PyTorch.
 * sync is torch's SyncBatchNorm. All ranks then take part in each run in training mode, including that of
 * gpunn_backward.
 * no_running_stats creates no buffers. It is computed as a group_norm over channels that hold all samples,
 * with a permutation before and after. For one value per channel the result is the bias. */
GPUNN_API gpunn_tensor *gpunn_batch_norm1d_(gpunn_tensor *x, const char *name, gpunn_batch_norm_args args);
#define gpunn_batch_norm1d(x, ...) gpunn_batch_norm1d_((x), GPUNN_NAMED(gpunn_batch_norm_args, __VA_ARGS__))
GPUNN_API gpunn_tensor *gpunn_batch_norm2d_(gpunn_tensor *x, const char *name, gpunn_batch_norm_args args);
#define gpunn_batch_norm2d(x, ...) gpunn_batch_norm2d_((x), GPUNN_NAMED(gpunn_batch_norm_args, __VA_ARGS__))
GPUNN_API gpunn_tensor *gpunn_batch_norm3d_(gpunn_tensor *x, const char *name, gpunn_batch_norm_args args);
#define gpunn_batch_norm3d(x, ...) gpunn_batch_norm3d_((x), GPUNN_NAMED(gpunn_batch_norm_args, __VA_ARGS__))

typedef struct gpunn_group_norm_args {
    int   args_;
    int   num_groups; /* divides the channels */
    float eps;        /* 1e-5 */
    bool  no_affine;
} gpunn_group_norm_args;
/* Group normalisation. x [n, c, ...]: (x - mean) / sqrt(variance + eps) * weight + bias, where mean and
 * variance are over each group of channels. weight, bias [c]. */
GPUNN_API gpunn_tensor *gpunn_group_norm_(gpunn_tensor *x, const char *name, gpunn_group_norm_args args);
#define gpunn_group_norm(x, ...) gpunn_group_norm_((x), GPUNN_NAMED(gpunn_group_norm_args, __VA_ARGS__))

typedef struct gpunn_instance_norm_args {
    int   args_;
    float eps;    /* 1e-5 */
    bool  affine; /* weight and bias [c]; default, as in torch: none */
    bool  track_running_stats;
    float momentum; /* weight of the new batch in the running statistics, default 0.1 */
} gpunn_instance_norm_args;
/* Instance normalisation: group_norm with one group per channel. x [n, c, l] (1d), [n, c, h, w] (2d), [n, c,
 * d, h, w] (3d). With track_running_stats it has the buffers running_mean, running_var [c], as batch_norm.
 * Training moves them towards the means over n of each sample's mean and unbiased variance; evaluation uses
 * them. */
GPUNN_API gpunn_tensor *gpunn_instance_norm1d_(gpunn_tensor *x, const char *name,
                                               gpunn_instance_norm_args args);
#define gpunn_instance_norm1d(x, ...) \
    gpunn_instance_norm1d_((x), GPUNN_NAMED(gpunn_instance_norm_args, __VA_ARGS__))
GPUNN_API gpunn_tensor *gpunn_instance_norm2d_(gpunn_tensor *x, const char *name,
                                               gpunn_instance_norm_args args);
#define gpunn_instance_norm2d(x, ...) \
    gpunn_instance_norm2d_((x), GPUNN_NAMED(gpunn_instance_norm_args, __VA_ARGS__))
GPUNN_API gpunn_tensor *gpunn_instance_norm3d_(gpunn_tensor *x, const char *name,
                                               gpunn_instance_norm_args args);
#define gpunn_instance_norm3d(x, ...) \
    gpunn_instance_norm3d_((x), GPUNN_NAMED(gpunn_instance_norm_args, __VA_ARGS__))

typedef struct gpunn_layer_norm_args {
    int   args_;
    int   dims; /* number of last axes normalised together, default 1; none may be GPUNN_BATCH */
    float eps;  /* layer_norm: 1e-5; rms_norm: 1.1920929e-7 */
    bool  no_affine, no_bias; /* neither weight nor bias; no bias alone */
} gpunn_layer_norm_args;
/* layer_norm: (x - mean) / sqrt(variance + eps) * weight + bias over the last `dims` axes. rms_norm: x /
 * sqrt(mean of x^2 + eps) * weight, without bias. weight and bias have the shape of those axes. */
GPUNN_API gpunn_tensor *gpunn_layer_norm_(gpunn_tensor *x, const char *name, gpunn_layer_norm_args args);
#define gpunn_layer_norm(x, ...) gpunn_layer_norm_((x), GPUNN_NAMED(gpunn_layer_norm_args, __VA_ARGS__))
GPUNN_API gpunn_tensor *gpunn_rms_norm_(gpunn_tensor *x, const char *name, gpunn_layer_norm_args args);
#define gpunn_rms_norm(x, ...) gpunn_rms_norm_((x), GPUNN_NAMED(gpunn_layer_norm_args, __VA_ARGS__))

typedef struct gpunn_local_response_norm_args {
    int   args_;
    int   size;           /* channels in a neighbourhood */
    float alpha, beta, k; /* 1e-4, 0.75, 1 */
} gpunn_local_response_norm_args;
/* x / (k + alpha * m)^beta. x [n, c, ...]; m is the mean of x^2 over the `size` channels around each one,
 * size / 2 of them before it. Channels out of range count as 0. There are no parameters. */
GPUNN_API gpunn_tensor *gpunn_local_response_norm_(gpunn_tensor *x, gpunn_local_response_norm_args args);
#define gpunn_local_response_norm(...) \
    gpunn_local_response_norm_(GPUNN_NAMED(gpunn_local_response_norm_args, __VA_ARGS__))

typedef struct gpunn_embedding_args {
    int args_;
    int num_embeddings, embedding_dim;
    /* Row that starts as 0 and gets no gradient; negative values count from the end. 0: none; GPUNN_ZERO: row
     * 0. */
    int padding_idx;
    /* existing tensor [num_embeddings, embedding_dim] instead of a new parameter; also sets both numbers */
    gpunn_tensor *weight;
    /* the gradient of the table holds only the rows of the batch, as described below */
    bool sparse;
} gpunn_embedding_args;
/* Looks up rows of weight. tokens, I64 or I32 of any shape [...] -> [..., embedding_dim]; weight
 * [num_embeddings, embedding_dim] starts as N(0, 1). A token outside 0 .. num_embeddings - 1 fails the run
 * with GPUNN_ERR_ARGUMENT on the CPU; on a GPU its row is NaN.
 * With .sparse a step reads and writes only the rows of its tokens, and no gradient of the whole table is
 * stored. Equal tokens are summed first, in the order of the tokens.
 * - gpunn_sgd and gpunn_adagrad give the numbers that they give without .sparse.
 * - gpunn_adam becomes torch.optim.SparseAdam for this table. A row that no token refers to keeps its value
 *   and both of its moments. A dense Adam moves every row in every step, and shrinks its moments. The
 *   corrections count all steps of the table. eps is added to the root of the uncorrected second moment.
 * - Momentum, weight decay and other optimizers fail with GPUNN_ERR_UNSUPPORTED, since they would change
 *   every row. gpunn_set_decay(table, false) spares the table, and .parameters or .prefix give it an
 *   optimizer of its own.
 * - Several ranks exchange the rows of their tokens, not the table: gpunn_distribute. A group with .shard
 *   fails with GPUNN_ERR_UNSUPPORTED.
 * Gradients are accumulated, clipped and checked as dense ones. gpunn_read_grad gives a dense copy in host
 * memory; gpunn_data_grad and gpunn_bind_grad fail. Optimizer states and checkpoints are those of the whole
 * table. gpunn_set_ema averages all rows, so its steps take the time of the whole table.
 * Another embedding may read the table by .weight, and is sparse too. A training step fails with
 * GPUNN_ERR_UNSUPPORTED if any other op gives the table a gradient, as a linear layer with tied weights. */
GPUNN_API gpunn_tensor *gpunn_embedding_(gpunn_tensor *tokens, const char *name, gpunn_embedding_args args);
#define gpunn_embedding(tokens, ...) \
    gpunn_embedding_((tokens), GPUNN_NAMED(gpunn_embedding_args, __VA_ARGS__))

typedef struct gpunn_rnn_args {
    int  args_;
    int  hidden_size, num_layers; /* hidden_size: required; num_layers: default 1 */
    bool relu;                    /* rnn: relu instead of tanh */
    bool no_bias;                 /* torch's bias=False */
    /* x and the result are [n, length, ...]; a second direction reads each sequence from its end */
    bool batch_first, bidirectional;
    /* lstm: width of h and of the results, less than hidden_size. Adds a parameter weight_hr_l0 [proj_size,
     * hidden_size], ..._reverse; c keeps hidden_size. 0: no projection. */
    int proj_size;
    /* Appends h_n and, for lstm, c_n to the result, each as one row of the memory of [directions, n,
     * hidden_size]. One layer only, not batch_first. */
    bool states;
    /* Each run continues from the state in which the previous one ended, in training too. No gradient flows
     * between runs. h_0 and, for lstm, c_0 are states name.h and name.c. n must be fixed, or .capacity given.
     */
    bool  stateful;
    float dropout; /* between layers */
    /* [num_layers * directions, n, hidden_size; h_0: or proj_size]; NULL: 0. c_0: lstm */
    gpunn_tensor  *h_0, *c_0;
    gpunn_tensor  *lengths;    /* I64 or I32 [n]: number of steps of each sequence, 1 to length; NULL: all */
    gpunn_tensor **h_n, **c_n; /* receive the final states, in the shapes of h_0 and c_0. c_n: lstm */
    /* Weights of another layer, instead of new parameters; name may be NULL. The order is, for each layer and
     * each direction: weight_ih, weight_hh, without no_bias bias_ih, bias_hh, and with proj_size weight_hr.
     * Values computed from parameters alone are allowed too. */
    gpunn_tensor *const *weights;
    /* Sequences for which it is not 0 begin anew, as after the end of an episode. [length, n] (batch_first:
     * [n, length]): the states are 0 before that step, and no gradient passes there; not with bidirectional.
     * With .stateful also [n]: they are 0 before the first step. Of any dtype. With steps, or with a length
     * of 1, a GPU does not use cuDNN. */
    gpunn_tensor *reset;
    /* With .stateful and a varying n, such as GPUNN_BATCH: the largest n. The states have so many rows, 0 at
     * first, and sequence i of a run continues row i. The rows from n on keep their values for a later run.
     * A larger n fails with GPUNN_ERR_SHAPE. */
    int capacity;
} gpunn_rnn_args;
/* Recurrent layers, as in torch.nn. x [length, n, features] (batch_first: [n, length, features]) -> [length,
 * n, directions * hidden_size], or with proj_size in place of hidden_size. The parameters have torch's names
 * weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_ih_l0_reverse, ..., weight_ih_l1, .... Gates are
 * in the order i, f, g, o (lstm) and r, z, n (gru).
 * lengths has the effect of pack_padded_sequence and pad_packed_sequence. Results after a sequence's end are
 * 0, final states are those at its end, and the reverse direction starts there. A length outside 1 .. length
 * fails with GPUNN_ERR_ARGUMENT on the CPU; on a GPU that sequence's results are NaN.
 * With proj_size a step still multiplies by [4 hidden_size, hidden_size], the product of weight_hh and
 * weight_hr. The results are projected after the last step. */
GPUNN_API gpunn_tensor *gpunn_rnn_(gpunn_tensor *x, const char *name, gpunn_rnn_args args);
GPUNN_API gpunn_tensor *gpunn_lstm_(gpunn_tensor *x, const char *name, gpunn_rnn_args args);
GPUNN_API gpunn_tensor *gpunn_gru_(gpunn_tensor *x, const char *name, gpunn_rnn_args args);
#define gpunn_rnn(x, ...) gpunn_rnn_((x), GPUNN_NAMED(gpunn_rnn_args, __VA_ARGS__))
#define gpunn_lstm(x, ...) gpunn_lstm_((x), GPUNN_NAMED(gpunn_rnn_args, __VA_ARGS__))
#define gpunn_gru(x, ...) gpunn_gru_((x), GPUNN_NAMED(gpunn_rnn_args, __VA_ARGS__))
typedef struct gpunn_cell_args {
    int            args_;
    int            hidden_size;   /* required: features of h and c */
    bool           relu, no_bias; /* as in gpunn_rnn_args */
    gpunn_tensor  *h, *c;         /* [n, hidden_size]; NULL: 0. c: lstm */
    gpunn_tensor **c_n;           /* receives the new c: lstm */
    /* weights of another cell instead of new parameters, in the order below; name may be NULL */
    gpunn_tensor *const *weights;
} gpunn_cell_args;
/* One step of a recurrent layer. x [n, features] -> the new h [n, hidden_size]. As torch.nn.RNNCell, LSTMCell
 * and GRUCell, with their parameters weight_ih, weight_hh, bias_ih, bias_hh. */
GPUNN_API gpunn_tensor *gpunn_rnn_cell_(gpunn_tensor *x, const char *name, gpunn_cell_args args);
GPUNN_API gpunn_tensor *gpunn_lstm_cell_(gpunn_tensor *x, const char *name, gpunn_cell_args args);
GPUNN_API gpunn_tensor *gpunn_gru_cell_(gpunn_tensor *x, const char *name, gpunn_cell_args args);
#define gpunn_rnn_cell(x, ...) gpunn_rnn_cell_((x), GPUNN_NAMED(gpunn_cell_args, __VA_ARGS__))
#define gpunn_lstm_cell(x, ...) gpunn_lstm_cell_((x), GPUNN_NAMED(gpunn_cell_args, __VA_ARGS__))
#define gpunn_gru_cell(x, ...) gpunn_gru_cell_((x), GPUNN_NAMED(gpunn_cell_args, __VA_ARGS__))

/* In training steps, zeroes each element with probability p and scales the rest by 1 / (1 - p). In evaluation
 * it returns x. 0 <= p <= 1; p is rounded to a multiple of 1/65536. */
GPUNN_API gpunn_tensor *gpunn_dropout(gpunn_tensor *x, float p);

/* torch.nn.GLU: the first half of x along an axis times the sigmoid of the second half. torch's default axis
 * is -1. */
GPUNN_API gpunn_tensor *gpunn_glu(gpunn_tensor *x, int axis);

/* torch.nn.RReLU: x where x > 0, elsewhere x times a slope. In training steps the slope is random for each
 * element, from lower to upper; in evaluation it is their mean. torch's defaults are 1/8 and 1/3. */
GPUNN_API gpunn_tensor *gpunn_rrelu(gpunn_tensor *x, float lower, float upper);

/* max(x, 0) + weight * min(x, 0). num_parameters is 1 (also for 0) or the size of axis 1. weight starts at
 * init (0: 0.25). For an existing weight, as in torch.nn.functional.prelu, use gpunn_parametric_relu(x,
 * weight). */
GPUNN_API gpunn_tensor *gpunn_prelu(gpunn_tensor *x, const char *name, int num_parameters, float init);

/* -- shapes -- */
/* The elements of x in another shape of as many. GPUNN_BATCH * k stands where the batch goes. */
GPUNN_API gpunn_tensor *gpunn_reshape(gpunn_tensor *x, gpunn_shape shape);
/* All axes after the first as one: [n, ...] -> [n, rest]. */
GPUNN_API gpunn_tensor *gpunn_flatten(gpunn_tensor *x);
/* The axes in another order: y.dim[i] = x.dim[order[i]]. */
GPUNN_API gpunn_tensor *gpunn_permute(gpunn_tensor *x, gpunn_axes order);
/* torch.transpose: two axes change places. Negative axes count from the end. */
GPUNN_API gpunn_tensor *gpunn_transpose(gpunn_tensor *x, int dim0, int dim1);
/* torch.cat: joins tensors along an axis. Their other axes are equal. */
GPUNN_API gpunn_tensor *gpunn_concat(gpunn_tensor *const *tensors, int count, int axis);
/* x[start:end:step] along one axis, as in Python. step >= 1; the axis may not be GPUNN_BATCH. end
 * GPUNN_END_OF_AXIS: to the end. */
#define GPUNN_END_OF_AXIS INT64_MAX
GPUNN_API gpunn_tensor *gpunn_slice(gpunn_tensor *x, int axis, int64_t start, int64_t end, int64_t step);

/* What padding fills in on an axis of n elements. REFLECT mirrors the axis at its ends without repeating them
 * (up to n - 1 on each side). REPLICATE repeats the end elements. CIRCULAR continues at the other end (up to
 * n). */
typedef enum gpunn_pad_mode {
    GPUNN_PAD_CONSTANT = 0,
    GPUNN_PAD_REFLECT,
    GPUNN_PAD_REPLICATE,
    GPUNN_PAD_CIRCULAR
} gpunn_pad_mode;
typedef struct gpunn_pad_args {
    int args_;
    /* per axis of x, >= 0; 0 along GPUNN_BATCH */
    int64_t        before[GPUNN_MAX_RANK], after[GPUNN_MAX_RANK];
    gpunn_pad_mode mode;
    float          value; /* CONSTANT only */
} gpunn_pad_args;
/* x with more elements before and after each axis. An axis of n becomes before + n + after. */
GPUNN_API gpunn_tensor *gpunn_pad_(gpunn_tensor *x, gpunn_pad_args args);
#define gpunn_pad(...) gpunn_pad_(GPUNN_NAMED(gpunn_pad_args, __VA_ARGS__))
/* Copies x along its axes of size 1 and along new leading axes. shape may contain GPUNN_BATCH. Ops that
 * broadcast do not need it. */
GPUNN_API gpunn_tensor *gpunn_expand(gpunn_tensor *x, gpunn_shape shape);
/* torch.rand (uniform in [0, 1)) and torch.randn (mean 0, standard deviation 1). The numbers differ in every
 * run, in evaluation too. F32, without gradient; shape may contain GPUNN_BATCH, as a shape from
 * gpunn_tensor_shape can. The numbers depend on the device's seed, the node's place among the model's random
 * layers and the number of the run (RANDOM NUMBERS). */
GPUNN_API gpunn_tensor *gpunn_rand(gpunn_model *model, gpunn_shape shape);
GPUNN_API gpunn_tensor *gpunn_randn(gpunn_model *model, gpunn_shape shape);
/* gpunn_rand and gpunn_randn in the shape of x, F32. The values of x are not read. */
GPUNN_API gpunn_tensor *gpunn_rand_like(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_randn_like(gpunn_tensor *x);
/* Repeats x repeats[i] times along axis i. The axes are aligned at the last one. */
GPUNN_API gpunn_tensor *gpunn_tile(gpunn_tensor *x, gpunn_shape repeats);
/* Joins tensors of one shape along a new axis. */
GPUNN_API gpunn_tensor *gpunn_stack(gpunn_tensor *const *tensors, int count, int axis);
/* Split into slices of `size` along an axis, where the last is smaller if `size` does not divide the axis; or
 * into `chunks` parts, all but the last of one size. The results go to parts, which holds `capacity` entries.
 * Returns their number, or 0 on an error. */
GPUNN_API int gpunn_split(gpunn_tensor *x, int64_t size, int axis, gpunn_tensor **parts, int capacity);
GPUNN_API int gpunn_chunk(gpunn_tensor *x, int chunks, int axis, gpunn_tensor **parts, int capacity);
typedef enum gpunn_indexing { GPUNN_INDEXING_IJ = 0, GPUNN_INDEXING_XY } gpunn_indexing;
/* torch.meshgrid: expands 1 to 8 F32 coordinates [n0], [n1], ... to as many grids [n0, n1, ...]. grids[i] has
 * the values of coordinates[i] along axis i. XY: [n1, n0, ...], axes 0 and 1 exchanged. On an error all grids
 * are NULL. */
GPUNN_API gpunn_status gpunn_meshgrid(gpunn_tensor *const *coordinates, int count, gpunn_indexing indexing,
                                      gpunn_tensor **grids);
/* index I64, I32 or U8 [...] -> F32 [..., classes]: 1 at the index, 0 elsewhere. An index that is no class
 * gives all 0. */
GPUNN_API gpunn_tensor *gpunn_one_hot(gpunn_tensor *index, int classes);
/* Marks where a padded batch has values. lengths I64 or I32 [n] -> F32 [n, size]: row i is 1 in its first
 * lengths[i] places, then 0. size is a number or a gpunn_size. Lengths above size count as size, those below
 * 0 as 0. Use it as a factor before averaging, as a factor of a loss with .reduction none or, after
 * gpunn_cast to BOOL, as an attention mask. */
GPUNN_API gpunn_tensor *gpunn_sequence_mask(gpunn_tensor *lengths, int64_t size);
/* Encodings of coordinates x [..., d] for neural fields, concatenated over the coordinates.
 * frequency: sin(pi x), cos(pi x), sin(2 pi x), cos(2 pi x), sin(4 pi x), ...: [..., d * 2 * frequencies], 1
 * to 32 frequencies.
 * one_blob: exp(-(bins x - i - 0.5)^2 / 2), a bump over each of the bins of 0 to 1: [..., d * bins], 1 to 256
 * bins.
 * spherical_harmonics: x is a direction [..., 3] of length 1; the real harmonics of degrees below `degree` (1
 * to 4), with tiny-cuda-nn's constants and order: [..., degree * degree].
 * Use F32: with 16-bit storage a GPU rounds the arguments of sin and exp, which turns high frequencies to
 * noise. */
GPUNN_API gpunn_tensor *gpunn_frequency_encoding(gpunn_tensor *x, int frequencies);
GPUNN_API gpunn_tensor *gpunn_one_blob_encoding(gpunn_tensor *x, int bins);
GPUNN_API gpunn_tensor *gpunn_spherical_harmonics_encoding(gpunn_tensor *x, int degree);
typedef struct gpunn_hash_grid_args {
    int args_;
    int n_levels, n_features_per_level; /* 16, at most 32; 2, at most 8 */
    int log2_hashmap_size;              /* log2 of the most rows of a level, 4 to 28, default 19 */
    int base_resolution;                /* cells along each axis of the first level, default 16 */
    /* factor of the cells from one level to the next, at least 1, default 2 */
    float per_level_scale;
    bool  sparse; /* the gradient of weight holds only the rows of the batch, as described below */
} gpunn_hash_grid_args;
/* Multi-resolution hash encoding (Mueller et al. 2022) of points x [..., d] in 0 to 1, d 2 or 3. In each
 * level the rows of weight at the corners of the point's cell are interpolated: [..., n_levels *
 * n_features_per_level]. weight [rows, n_features_per_level] starts as U(-1e-4, 1e-4) and holds the levels
 * one after another. Rows, hash and resolutions equal tiny-cuda-nn's, so its weights fit. Points outside get
 * the rows their hash gives. The gradients of both operands are the same in every run.
 * With .sparse the table's gradient has the rules and optimizers of gpunn_embedding's. It needs about 40 + 12
 * n_features_per_level bytes for each point, level and corner of a cell, of which there are 2^d. A dense one
 * needs 4 n_features_per_level for each row, on a GPU 12. So .sparse suits batches that are small for the
 * table. */
GPUNN_API gpunn_tensor *gpunn_hash_grid_encoding_(gpunn_tensor *x, const char *name,
                                                  gpunn_hash_grid_args args);
#define gpunn_hash_grid_encoding(x, ...) \
    gpunn_hash_grid_encoding_((x), GPUNN_NAMED(gpunn_hash_grid_args, __VA_ARGS__))
/* torch.gather: y[i][j][k] = x[i][index[i][j][k]][k] for axis 1 of three. index is I64 or I32 of x's rank;
 * along the other axes it is not larger than x. An index outside x's axis behaves like a bad token of
 * gpunn_embedding. Ops that only copy (reshape, permute, concat, slice, pad with a constant, expand, tile,
 * stack, gather, ...) also take integers. */
GPUNN_API gpunn_tensor *gpunn_gather(gpunn_tensor *x, int axis, gpunn_tensor *index);
/* torch.scatter_add: a copy of x with y[i][index[i][j][k]][k] += src[i][j][k] for axis 1 of three. index is
 * I64 or I32 and has src's shape, which is x's except along the axis. Sums run in the order of the indices;
 * on a GPU, with more than 1024 indices along the axis, in an order that the indices determine. An index
 * outside x's axis behaves as in gpunn_gather. */
GPUNN_API gpunn_tensor *gpunn_scatter_add(gpunn_tensor *x, int axis, gpunn_tensor *index, gpunn_tensor *src);
/* torch.scatter: the same, but src replaces the element. If several indices name one place, the last along
 * the axis wins and alone gets the gradient (torch leaves both open). x and src may be integers of one
 * dtype. */
GPUNN_API gpunn_tensor *gpunn_scatter(gpunn_tensor *x, int axis, gpunn_tensor *index, gpunn_tensor *src);
/* torch.index_select: the slices of x along an axis that index [count], I64 or I32, names. */
GPUNN_API gpunn_tensor *gpunn_index_select(gpunn_tensor *x, int axis, gpunn_tensor *index);
/* torch.index_add: a copy of x in which slice i of src along an axis is added to slice index[i]. */
GPUNN_API gpunn_tensor *gpunn_index_add(gpunn_tensor *x, int axis, gpunn_tensor *index, gpunn_tensor *src);
/* ONNX's GatherND. x [b ..., d1, ..., dk, rest ...] with batch_dims axes b; index [b ..., places ..., k], I64
 * or I32 -> [b ..., places ..., rest ...]. Each k numbers of index, counted from 0, select along the k axes
 * after the b's. It equals torch's x[i1, ..., ik] with such indices stacked along a new last axis. Of d1 to
 * dk only d1 may vary between runs. An index outside its axis behaves as in gpunn_gather. */
GPUNN_API gpunn_tensor *gpunn_gather_nd(gpunn_tensor *x, gpunn_tensor *index, int batch_dims);
/* gpunn_flip reverses the elements along the axes. gpunn_roll moves each element `shift` places on along an
 * axis; the last ones come first. */
GPUNN_API gpunn_tensor *gpunn_flip(gpunn_tensor *x, gpunn_axes axes);
GPUNN_API gpunn_tensor *gpunn_roll(gpunn_tensor *x, int64_t shift, int axis);
/* Images [n, c * factor^2, h, w] -> [n, c, h * factor, w * factor]: the channels of each pixel become a
 * square of pixels. unshuffle is the inverse. */
GPUNN_API gpunn_tensor *gpunn_pixel_shuffle(gpunn_tensor *x, int factor);
GPUNN_API gpunn_tensor *gpunn_pixel_unshuffle(gpunn_tensor *x, int factor);
/* The same with the places of a square before the channels: [n, factor^2 * c, h, w] -> [n, c, h * factor, w *
 * factor]. ONNX's DepthToSpace in mode DCR, and SpaceToDepth. */
GPUNN_API gpunn_tensor *gpunn_depth_to_space(gpunn_tensor *x, int factor);
GPUNN_API gpunn_tensor *gpunn_space_to_depth(gpunn_tensor *x, int factor);
typedef struct gpunn_unfold_args {
    int args_;
    /* kernel_size: required; stride, dilation: default 1; the same along both axes ... */
    int kernel_size, stride, padding, dilation;
    /* ... or one for each axis, where not 0; the third entry stays 0 */
    int     kernel_shape[3], strides[3], paddings[3], dilations[3];
    int64_t output_size[2]; /* fold: required, h and w */
} gpunn_unfold_args;
/* torch.nn.Unfold: each window that a convolution of x [n, c, h, w] would read, as a column: [n, c kh kw,
 * windows]. h and w must be fixed. torch.nn.Fold: adds such columns up where they came from: [n, c, h, w].
 * Each is the gradient of the other. They are made of kh + kw slices and store as many copies of x as a
 * window has cells. */
GPUNN_API gpunn_tensor *gpunn_unfold_(gpunn_tensor *x, gpunn_unfold_args args);
GPUNN_API gpunn_tensor *gpunn_fold_(gpunn_tensor *x, gpunn_unfold_args args);
#define gpunn_unfold(...) gpunn_unfold_(GPUNN_NAMED(gpunn_unfold_args, __VA_ARGS__))
#define gpunn_fold(...) gpunn_fold_(GPUNN_NAMED(gpunn_unfold_args, __VA_ARGS__))
/* Matrices [..., rows, columns] with zeros above (tril) or below (triu) a diagonal. `diagonal` counts columns
 * to the right of the main one. */
GPUNN_API gpunn_tensor *gpunn_tril(gpunn_tensor *x, int diagonal);
GPUNN_API gpunn_tensor *gpunn_triu(gpunn_tensor *x, int diagonal);
/* The diagonal of such matrices that is `offset` columns to the right of the main one (negative: to the
 * left): [..., its length]. */
GPUNN_API gpunn_tensor *gpunn_diagonal(gpunn_tensor *x, int offset);
/* x, but `value` where mask is not 0. mask broadcasts to x; value may be infinite. */
GPUNN_API gpunn_tensor *gpunn_masked_fill(gpunn_tensor *x, gpunn_tensor *mask, float value);
/* The elements in another dtype: F32, I64, I32, U8 or BOOL. Floats are rounded towards 0. No gradient. */
GPUNN_API gpunn_tensor *gpunn_cast(gpunn_tensor *x, gpunn_dtype dtype);

/* -- 8-bit numbers, for evaluation: q of dtype U8 stands for (q - zero_point) scale. No gradient: a training
 * run is refused. On a GPU layers need compute capability 7.5; results are the CPU's -- */
typedef struct gpunn_quantize_args {
    int   args_;
    float scale;      /* required, above 0 */
    int   zero_point; /* 0 to 255 */
} gpunn_quantize_args;
/* torch.quantize_per_tensor: x / scale, rounded half to even, plus zero_point, saturated to 0 .. 255. F32 ->
 * U8. NaN becomes 0. */
GPUNN_API gpunn_tensor *gpunn_quantize_per_tensor_(gpunn_tensor *x, gpunn_quantize_args args);
#define gpunn_quantize_per_tensor(...) \
    gpunn_quantize_per_tensor_(GPUNN_NAMED(gpunn_quantize_args, __VA_ARGS__))
/* torch.dequantize: (x - zero_point) scale. U8 -> F32. */
GPUNN_API gpunn_tensor *gpunn_dequantize_(gpunn_tensor *x, gpunn_quantize_args args);
#define gpunn_dequantize(...) gpunn_dequantize_(GPUNN_NAMED(gpunn_quantize_args, __VA_ARGS__))
typedef struct gpunn_quantized_add_args {
    int   args_;
    float a_scale, b_scale;           /* of the operands; required */
    int   a_zero_point, b_zero_point; /* 0 to 255 */
    float scale;                      /* of the result; required */
    int   zero_point;                 /* 0 to 255 */
    int   quant_min, quant_max;       /* bounds of the result; default 0 and 255; zero_point for a relu */
} gpunn_quantized_add_args;
/* torch.ops.quantized.add: the sum of U8 tensors of one shape, quantised as by gpunn_quantize_per_tensor. */
GPUNN_API gpunn_tensor *gpunn_quantized_add_(gpunn_tensor *a, gpunn_tensor *b, gpunn_quantized_add_args args);
#define gpunn_quantized_add(a, ...) \
    gpunn_quantized_add_((a), GPUNN_NAMED(gpunn_quantized_add_args, __VA_ARGS__))
typedef struct gpunn_quantized_linear_args {
    int   args_;
    float x_scale;              /* required */
    int   x_zero_point;         /* 0 to 255 */
    float scale;                /* of the result; required */
    int   zero_point;           /* 0 to 255 */
    int   quant_min, quant_max; /* bounds of the result; default 0 and 255; zero_point for a relu */
} gpunn_quantized_linear_args;
/* torch.ops.quantized.linear: x weight^T + bias for x U8 [..., in] -> U8 [..., out]. weight [out, in], bias
 * [out] and weight_scale [out] are F32. A row of the weight is rounded to -128 .. 127 times its scale, the
 * bias to multiples of x_scale weight_scale. Sums are integers, and exact. They are multiplied by x_scale
 * weight_scale / scale, rounded half to even, and saturated. `in` is at most 32768. The device keeps the
 * rounded weight beside the given one. */
GPUNN_API gpunn_tensor *gpunn_quantized_linear_(gpunn_tensor *x, gpunn_tensor *weight,
                                                gpunn_tensor *weight_scale, gpunn_tensor *bias,
                                                gpunn_quantized_linear_args args);
#define gpunn_quantized_linear(x, weight, weight_scale, ...) \
    gpunn_quantized_linear_((x), (weight), (weight_scale),   \
                            GPUNN_NAMED(gpunn_quantized_linear_args, __VA_ARGS__))
/* torch.ops.quantized.linear_dynamic: the same for x F32 -> F32. Each run takes x_scale and x_zero_point from
 * the smallest and largest number of x and 0, as ONNX's DynamicQuantizeLinear. bias is not rounded. A NaN in
 * x makes all results NaN. */
GPUNN_API gpunn_tensor *gpunn_quantized_linear_dynamic(gpunn_tensor *x, gpunn_tensor *weight,
                                                       gpunn_tensor *weight_scale, gpunn_tensor *bias);
typedef struct gpunn_quantized_conv_args {
    int args_;
    /* as in gpunn_conv_args: along both axes, or for each where not 0; the third entry stays 0 */
    int   stride, padding, dilation, groups;
    int   strides[3], paddings[3], dilations[3];
    float x_scale;              /* required */
    int   x_zero_point;         /* 0 to 255 */
    float scale;                /* of the result; required */
    int   zero_point;           /* 0 to 255 */
    int   quant_min, quant_max; /* bounds of the result; default 0 and 255; zero_point for a relu */
} gpunn_quantized_conv_args;
/* torch.ops.quantized.conv2d: a convolution with the numbers of gpunn_quantized_linear. x U8 [n, in, h, w] ->
 * U8 [n, out, ...]. weight [out, in / groups, kh, kw], weight_scale [out], bias [out]. in, h and w do not
 * vary. in / groups kh kw is at most 32768. */
GPUNN_API gpunn_tensor *gpunn_quantized_conv2d_(gpunn_tensor *x, gpunn_tensor *weight,
                                                gpunn_tensor *weight_scale, gpunn_tensor *bias,
                                                gpunn_quantized_conv_args args);
#define gpunn_quantized_conv2d(x, weight, weight_scale, ...) \
    gpunn_quantized_conv2d_((x), (weight), (weight_scale),   \
                            GPUNN_NAMED(gpunn_quantized_conv_args, __VA_ARGS__))

/* -- reductions: keepdim keeps each axis with size 1; sums of integers are I64, extremes and products keep
 * their dtype -- */
/* Sum or mean over the axes. */
GPUNN_API gpunn_tensor *gpunn_sum(gpunn_tensor *x, gpunn_axes axes, bool keepdim);
GPUNN_API gpunn_tensor *gpunn_mean(gpunn_tensor *x, gpunn_axes axes, bool keepdim);
/* torch.amax: the largest element over the axes. Ties share the gradient. */
GPUNN_API gpunn_tensor *gpunn_max(gpunn_tensor *x, gpunn_axes axes, bool keepdim);
/* torch.amin: the smallest element over the axes. Ties share the gradient. */
GPUNN_API gpunn_tensor *gpunn_min(gpunn_tensor *x, gpunn_axes axes, bool keepdim);
/* Variance (var) and standard deviation (std): the sum of squared distances from the mean, divided by
 * count - correction, and its root. torch's default correction is 1. A correction other than 0 needs a
 * count that does not vary. The gradient of the root at 0 is 0. */
GPUNN_API gpunn_tensor *gpunn_var(gpunn_tensor *x, gpunn_axes axes, int correction, bool keepdim);
GPUNN_API gpunn_tensor *gpunn_std(gpunn_tensor *x, gpunn_axes axes, int correction, bool keepdim);
/* (sum of |x|^p)^(1/p), p > 0. INFINITY gives the largest |x|. The gradient at 0 is 0. */
GPUNN_API gpunn_tensor *gpunn_norm(gpunn_tensor *x, float p, gpunn_axes axes, bool keepdim);
/* torch.nn.PairwiseDistance: gpunn_norm of x1 - x2 + eps along the last axis. torch's eps is 1e-6. */
GPUNN_API gpunn_tensor *gpunn_pairwise_distance(gpunn_tensor *x1, gpunn_tensor *x2, float p, float eps);
/* torch.cdist: norms of the differences of all pairs of rows. x1 [..., m, d], x2 [..., n, d] -> [..., m, n].
 * It stores all m n d differences. A matrix product would need less memory, but would round small distances
 * away. */
GPUNN_API gpunn_tensor *gpunn_cdist(gpunn_tensor *x1, gpunn_tensor *x2, float p);
/* log(sum of exp(x)) over the axes, without overflow. */
GPUNN_API gpunn_tensor *gpunn_logsumexp(gpunn_tensor *x, gpunn_axes axes, bool keepdim);
/* torch.linalg.cross: the vector products of a and b, F32 of one shape, whose size along the axis is 3.
 * The result has that shape. Nothing is broadcast; see gpunn_expand. */
GPUNN_API gpunn_tensor *gpunn_cross(gpunn_tensor *a, gpunn_tensor *b, int axis);
/* torch.logcumsumexp: log(sum of exp(x)) of the elements up to each one along an axis, whose size may vary. x
 * is F32 of any shape; the result has that shape. The gradient of -inf is 0. */
GPUNN_API gpunn_tensor *gpunn_logcumsumexp(gpunn_tensor *x, int axis);
/* Products along an axis whose size does not vary: of all its elements (prod), or of those up to each one
 * (cumprod). */
GPUNN_API gpunn_tensor *gpunn_prod(gpunn_tensor *x, int axis, bool keepdim);
GPUNN_API gpunn_tensor *gpunn_cumprod(gpunn_tensor *x, int axis);
/* The largest (smallest) of the elements up to each one: the values of torch.cummax and torch.cummin. Ties
 * share the gradient. */
GPUNN_API gpunn_tensor *gpunn_cummax(gpunn_tensor *x, int axis);
GPUNN_API gpunn_tensor *gpunn_cummin(gpunn_tensor *x, int axis);
/* torch.cummax and torch.cummin: the same, with their indices (I64). Among ties the last is chosen and gets
 * the gradient. */
GPUNN_API gpunn_tensor *gpunn_cummax_with_indices(gpunn_tensor *x, int axis, gpunn_tensor **indices);
GPUNN_API gpunn_tensor *gpunn_cummin_with_indices(gpunn_tensor *x, int axis, gpunn_tensor **indices);
/* Measures how uneven a field is. Scalar: the mean squared difference of neighbours along each axis, summed
 * over the axes. */
GPUNN_API gpunn_tensor *gpunn_gradient_energy(gpunn_tensor *x, gpunn_axes axes);
GPUNN_API gpunn_tensor *gpunn_argmax(gpunn_tensor *x, int axis, bool keepdim); /* I64, the first maximum */
GPUNN_API gpunn_tensor *gpunn_argmin(gpunn_tensor *x, int axis, bool keepdim); /* I64, the first minimum */
/* torch.max(x, dim) and torch.min(x, dim): returns the values. *indices (may be NULL) receives their places,
 * as in gpunn_argmax and gpunn_argmin; the gradient goes there. */
GPUNN_API gpunn_tensor *gpunn_max_with_indices(gpunn_tensor *x, int axis, bool keepdim,
                                               gpunn_tensor **indices);
GPUNN_API gpunn_tensor *gpunn_min_with_indices(gpunn_tensor *x, int axis, bool keepdim,
                                               gpunn_tensor **indices);
/* The k largest in falling order, or the k smallest in rising order. Among ties the first come first; NaN is
 * above all numbers. *indices (may be NULL) receives their places, I64. */
GPUNN_API gpunn_tensor *gpunn_topk(gpunn_tensor *x, int k, int axis, bool largest, gpunn_tensor **indices);
/* The indices of gpunn_topk alone, I64. */
GPUNN_API gpunn_tensor *gpunn_topk_indices(gpunn_tensor *x, int k, int axis, bool largest);
typedef struct gpunn_searchsorted_args {
    int  args_;
    bool right; /* elements equal to the value come before it, too */
} gpunn_searchsorted_args;
/* torch.searchsorted: how many elements of a row of sorted_sequence [..., n], in rising order, come before
 * each of the row's values [..., m] -> I64 [..., m], 0 to n. All elements come before NaN. Both have one
 * dtype: F32, I64, I32, U8 or BOOL. n and m may vary. If a row is not sorted, its results are any of 0 to n.
 * No gradient. */
GPUNN_API gpunn_tensor *gpunn_searchsorted_(gpunn_tensor *sorted_sequence, gpunn_tensor *values,
                                            gpunn_searchsorted_args args);
#define gpunn_searchsorted(sorted_sequence, ...) \
    gpunn_searchsorted_((sorted_sequence), GPUNN_NAMED(gpunn_searchsorted_args, __VA_ARGS__))
/* torch.bucketize: the same for x of any shape and one row of boundaries [n]. */
GPUNN_API gpunn_tensor *gpunn_bucketize_(gpunn_tensor *x, gpunn_tensor *boundaries,
                                         gpunn_searchsorted_args args);
#define gpunn_bucketize(x, ...) gpunn_bucketize_((x), GPUNN_NAMED(gpunn_searchsorted_args, __VA_ARGS__))
/* Sorts an axis whose size does not vary, in the order of gpunn_topk; it is stable. */
GPUNN_API gpunn_tensor *gpunn_sort(gpunn_tensor *x, int axis, bool descending, gpunn_tensor **indices);
/* The indices of gpunn_sort alone, I64. */
GPUNN_API gpunn_tensor *gpunn_argsort(gpunn_tensor *x, int axis, bool descending);
GPUNN_API gpunn_tensor *gpunn_cumsum(gpunn_tensor *x, int axis); /* the sum of the elements up to each one */
/* softmax: exp(x) / (sum of exp(x)) along an axis. log_softmax: its logarithm, F32 in every precision. */
GPUNN_API gpunn_tensor *gpunn_softmax(gpunn_tensor *x, int axis);
GPUNN_API gpunn_tensor *gpunn_log_softmax(gpunn_tensor *x, int axis);

typedef struct gpunn_matmul_args {
    int  args_;
    bool transpose_a, transpose_b; /* transposes the last two axes */
} gpunn_matmul_args;
/* torch.matmul for rank >= 2: [..., m, k] x [..., k, n] -> [..., m, n]; leading axes broadcast. */
GPUNN_API gpunn_tensor *gpunn_matmul_(gpunn_tensor *a, gpunn_tensor *b, gpunn_matmul_args args);
#define gpunn_matmul(a, ...) gpunn_matmul_((a), GPUNN_NAMED(gpunn_matmul_args, __VA_ARGS__))
/* torch.einsum of one or two tensors, made of products, sums and permutations: "...ij,jk->...ik". A letter
 * names an axis; twice in one tensor it means a diagonal. "..." stands for all axes without a letter, which
 * broadcast. Without "->" the result has these axes first, then the letters that occur once, in alphabetical
 * order. */
GPUNN_API gpunn_tensor *gpunn_einsum(const char *equation, gpunn_tensor *const *tensors, int count);

/* Scaling of Fourier transforms: torch.fft's norm. */
typedef enum gpunn_fft_norm {
    GPUNN_FFT_BACKWARD = 0, /* scales irfft by 1 / n */
    GPUNN_FFT_ORTHO,        /* scales both by 1 / sqrt(n) */
    GPUNN_FFT_FORWARD       /* scales rfft by 1 / n */
} gpunn_fft_norm;
/* Real Fourier transforms along an axis of fixed size n: torch.view_as_real(torch.fft.rfft(x)), and its
 * inverse irfft to n real numbers. x [..., n, ...] -> [..., n / 2 + 1, ..., 2]: frequencies 0 to n / 2
 * replace the axis, and a new last axis holds real and imaginary part. `axis` counts the axes of the real
 * tensor. They are products by constant matrices: one up to n = 64, above that one for each factor of n.
 * The largest factor p costs p steps per number, and 16 n bytes. */
GPUNN_API gpunn_tensor *gpunn_rfft(gpunn_tensor *x, int axis, gpunn_fft_norm norm);
GPUNN_API gpunn_tensor *gpunn_irfft(gpunn_tensor *x, int64_t n, int axis, gpunn_fft_norm norm);

/* -- states (STATES) -- */
typedef struct gpunn_assign_args {
    int  args_;
    bool in_training; /* the assignment also happens in training steps, at their end */
} gpunn_assign_args;
/* Assigns the value, which has the state's shape, to the state. Returns the state as it is from then on;
 * `state` itself still means the old value. An op that would read the old value too late is GPUNN_ERR_STATE.
 * No gradient. */
GPUNN_API gpunn_tensor *gpunn_assign_(gpunn_tensor *state, gpunn_tensor *value, gpunn_assign_args args);
#define gpunn_assign(state, ...) gpunn_assign_((state), GPUNN_NAMED(gpunn_assign_args, __VA_ARGS__))
/* Assigns a part of the state, at places position .. position + m - 1 of the axis. The value has the state's
 * shape, except that its size m along the axis is at most the state's; a batch that is larger fails with
 * GPUNN_ERR_SHAPE. position is I64 or I32: one number or, along an axis other than 0, one for each sample of
 * axis 0. A position that does not fit is GPUNN_ERR_ARGUMENT on the CPU; a GPU leaves that sample unchanged.
 */
GPUNN_API gpunn_tensor *gpunn_assign_at_(gpunn_tensor *state, int axis, gpunn_tensor *position,
                                         gpunn_tensor *value, gpunn_assign_args args);
#define gpunn_assign_at(state, axis, position, ...) \
    gpunn_assign_at_((state), (axis), (position), GPUNN_NAMED(gpunn_assign_args, __VA_ARGS__))

/* -- sampling -- */
typedef struct gpunn_sample_args {
    int   args_;
    float temperature; /* default 1; GPUNN_ZERO: always the likeliest class, and draw may be NULL */
    int   top_k;       /* keeps the top_k likeliest classes; 0: all */
    /* keeps the fewest of these that together have this share of their probability; default 1 */
    float top_p;
} gpunn_sample_args;
/* Draws a class for each row of logits [n, classes] -> I64 [n], with probabilities softmax(logits /
 * temperature). draw F32 [n], in [0, 1), decides: 0 gives the likeliest class. The same number gives the same
 * class on every device. Among equal logits the first comes first. A class that is 2^33 times less likely
 * than the likeliest is never drawn. If the largest logit is infinite, or one is NaN, the first such class is
 * drawn. At most 2^32 - 1 classes. No gradient. */
GPUNN_API gpunn_tensor *gpunn_sample_(gpunn_tensor *logits, gpunn_tensor *draw, gpunn_sample_args args);
#define gpunn_sample(logits, ...) gpunn_sample_((logits), GPUNN_NAMED(gpunn_sample_args, __VA_ARGS__))

/* -- attention -- */
typedef struct gpunn_attention_args {
    int args_;
    /* [n, heads, l, s], broadcast over axes of 1 or missing ones. BOOL: true takes part; F32: added; no
     * gradient */
    gpunn_tensor *mask;
    bool          is_causal; /* row i sees keys 0 .. i only; combined with mask if both are set */
    float         dropout_p; /* dropout of the attention weights, in training */
    float         scale;     /* default 1 / sqrt(e) */
    /* k and v have kv_heads, a divisor of heads; each serves heads / kv_heads neighbouring heads */
    bool enable_gqa;
    bool heads_last; /* all values are [n, l, heads, e] instead of [n, heads, l, e] */
    /* Number of valid keys, 0 to s, I64 or I32, one for all samples or [n]. With is_causal the rows of q are
     * the last of them: row i sees keys 0 .. length - l + i. NULL: all keys, and rows start at 0. */
    gpunn_tensor *lengths;
} gpunn_attention_args;
/* torch's scaled_dot_product_attention: softmax(q k^T scale + mask) v. q [n, heads, l, e], k [n, heads, s,
 * e], v [n, heads, s, ev] -> [n, heads, l, ev]. Or all three packed, as one linear layer makes them: q [n, l,
 * 3, heads, e], k and v NULL -> [n, l, heads, e].
 * A row that sees no key is 0 and gives no gradient. A length out of range is GPUNN_ERR_ARGUMENT on the CPU;
 * on a GPU it makes its sample NaN. The CPU's work is proportional to the lengths.
 * The CPU stores no l x s matrix; a GPU stores none where cuDNN's fused attention serves, which it does not
 * with lengths. Three linear layers of one value that make q, k and v are computed as one if they are created
 * in this order, are equal, and have multiples of 16 elements. */
GPUNN_API gpunn_tensor *gpunn_scaled_dot_product_attention_(gpunn_tensor *q, gpunn_tensor *k, gpunn_tensor *v,
                                                            gpunn_attention_args args);
#define gpunn_scaled_dot_product_attention(q, k, ...) \
    gpunn_scaled_dot_product_attention_((q), (k), GPUNN_NAMED(gpunn_attention_args, __VA_ARGS__))

typedef struct gpunn_rotary_args {
    int   args_;
    float theta; /* default 10000 */
    int   dims;  /* number of first features of each head that rotate, even; 0: all */
    /* pairs are features 2 i and 2 i + 1 (GPT-J) instead of i and i + dims / 2 (Llama, NeoX) */
    bool          interleaved;
    bool          heads_last;  /* x is [n, l, heads, e] instead of [n, heads, l, e] */
    gpunn_tensor *frequencies; /* [dims / 2], replaces theta's: those of Llama 3.1 or of a longer context */
} gpunn_rotary_args;
/* Rotary positions (RoFormer) for queries and for keys: rotates pair i of each row of x by the angle position
 * * theta^(-2 i / dims). positions: I64 or I32 [l] or [n, l], no gradient. Rotate the rows of cached keys
 * before gpunn_assign_at. */
GPUNN_API gpunn_tensor *gpunn_rotary_embedding_(gpunn_tensor *x, gpunn_tensor *positions,
                                                gpunn_rotary_args args);
#define gpunn_rotary_embedding(x, ...) \
    gpunn_rotary_embedding_((x), GPUNN_NAMED(gpunn_rotary_args, __VA_ARGS__))

typedef struct gpunn_multi_head_attention_args {
    int           args_;
    int           num_heads;
    float         dropout;          /* dropout of the attention weights, in training */
    bool          batch_first;      /* all tensors are [n, rows, e], the faster layout; else [rows, n, e] */
    gpunn_tensor *key_padding_mask; /* [n, s], BOOL: true is ignored (as in torch.nn); F32: added */
    gpunn_tensor *attn_mask;        /* [l, s] or [n heads, l, s]; values as key_padding_mask */
    bool          is_causal;        /* row i sees keys 0 .. i only */
    /* receives the probabilities, [n, l, s], averaged over heads; NULL: not computed */
    gpunn_tensor **weights;
    /* weights are those of each head, [n, heads, l, s]; torch's average_attn_weights=False */
    bool head_weights;
} gpunn_multi_head_attention_args;
/* torch.nn.MultiheadAttention of query [.., e], key, value. The parameters are name.in_proj_weight [3 e, e],
 * in_proj_bias, out_proj.weight and out_proj.bias. If key or value has another size, q_proj_weight,
 * k_proj_weight and v_proj_weight replace in_proj_weight.
 * .weights (torch's need_weights=True) costs an extra product and n heads l s floats, which the result does
 * not need. The weights are those before dropout, and NaN in a row that sees no key. */
GPUNN_API gpunn_tensor *gpunn_multi_head_attention_(gpunn_tensor *query, gpunn_tensor *key,
                                                    gpunn_tensor *value, const char *name,
                                                    gpunn_multi_head_attention_args args);
#define gpunn_multi_head_attention(query, key, value, ...) \
    gpunn_multi_head_attention_((query), (key), (value),   \
                                GPUNN_NAMED(gpunn_multi_head_attention_args, __VA_ARGS__))

typedef struct gpunn_transformer_args {
    int   args_;
    int   nhead;
    int   num_layers;      /* layers of a stack, default 6 */
    int   dim_feedforward; /* default 2048 */
    float dropout;         /* everywhere, default 0.1; GPUNN_ZERO: none */
    bool  gelu;            /* activation gelu instead of relu */
    float layer_norm_eps;  /* 1e-5 */
    bool  batch_first;     /* [n, rows, e] instead of [rows, n, e] */
    bool  norm_first;
    bool  norm; /* stack: a layer_norm at its end */
    /* torch's src_mask or tgt_mask; masks as in gpunn_multi_head_attention */
    gpunn_tensor *mask;
    gpunn_tensor *key_padding_mask;        /* torch's src_key_padding_mask or tgt_key_padding_mask */
    bool          is_causal;               /* for src or tgt */
    gpunn_tensor *memory_mask;             /* decoder only */
    gpunn_tensor *memory_key_padding_mask; /* decoder only */
} gpunn_transformer_args;
/* torch.nn.TransformerEncoderLayer and TransformerDecoderLayer. Below `name` the parameters have torch's
 * names: self_attn, multihead_attn, linear1, linear2, norm1 to norm3. Stacks of them: name.layers.0 ...,
 * name.norm. */
GPUNN_API gpunn_tensor *gpunn_transformer_encoder_layer_(gpunn_tensor *src, const char *name,
                                                         gpunn_transformer_args args);
GPUNN_API gpunn_tensor *gpunn_transformer_decoder_layer_(gpunn_tensor *tgt, gpunn_tensor *memory,
                                                         const char *name, gpunn_transformer_args args);
GPUNN_API gpunn_tensor *gpunn_transformer_encoder_(gpunn_tensor *src, const char *name,
                                                   gpunn_transformer_args args);
GPUNN_API gpunn_tensor *gpunn_transformer_decoder_(gpunn_tensor *tgt, gpunn_tensor *memory, const char *name,
                                                   gpunn_transformer_args args);
#define gpunn_transformer_encoder_layer(src, ...) \
    gpunn_transformer_encoder_layer_((src), GPUNN_NAMED(gpunn_transformer_args, __VA_ARGS__))
#define gpunn_transformer_decoder_layer(tgt, memory, ...) \
    gpunn_transformer_decoder_layer_((tgt), (memory), GPUNN_NAMED(gpunn_transformer_args, __VA_ARGS__))
#define gpunn_transformer_encoder(src, ...) \
    gpunn_transformer_encoder_((src), GPUNN_NAMED(gpunn_transformer_args, __VA_ARGS__))
#define gpunn_transformer_decoder(tgt, memory, ...) \
    gpunn_transformer_decoder_((tgt), (memory), GPUNN_NAMED(gpunn_transformer_args, __VA_ARGS__))

/* -- losses: a scalar, or the input's shape without reduction -- */
/* What becomes of the losses of all elements. */
typedef enum gpunn_reduction {
    GPUNN_REDUCE_MEAN = 0,
    GPUNN_REDUCE_SUM,
    GPUNN_REDUCE_NONE,
    GPUNN_REDUCE_BATCHMEAN /* sum / batch: kl_div's mathematical mean */
} gpunn_reduction;

typedef struct gpunn_loss_args {
    int             args_;
    gpunn_reduction reduction;
    float           delta;      /* huber: default 1 */
    float           beta;       /* smooth_l1: default 1; GPUNN_ZERO makes it l1 */
    gpunn_tensor   *weight;     /* bce, bce_with_logits: factor of each element, broadcast */
    gpunn_tensor   *pos_weight; /* bce_with_logits: factor of the positive part, broadcast */
    bool            log_target; /* kl_div */
    /* gaussian_nll, poisson_nll: include the terms of the density that do not depend on input */
    bool full;
    /* gaussian_nll: lower bound of var, 1e-6; poisson_nll: added inside the logarithm, 1e-8 */
    float eps;
    bool  no_log_input; /* poisson_nll: input is the rate itself, not its logarithm */
} gpunn_loss_args;
/* Losses of each element x of input and t of target. Both have one shape; broadcasting is an error. The
 * gradient goes to all operands.
 * - mse_loss: (x - t)^2.
 * - l1_loss: |x - t|.
 * - huber_loss: (x - t)^2 / 2 where |x - t| < delta, else delta (|x - t| - delta / 2).
 * - smooth_l1_loss: (x - t)^2 / (2 beta) where |x - t| < beta, else |x - t| - beta / 2.
 * - bce_loss: -t log x - (1 - t) log(1 - x). input in [0, 1]; log clamped at -100.
 * - bce_with_logits: the same of sigmoid(x), exact for large x too.
 * - kl_div: t (log t - x); input holds log-probabilities.
 * - gaussian_nll_loss: (log var + (x - t)^2 / var) / 2; var broadcasts to input. Its gradient ignores the
 *   bound by eps, as torch's does.
 * - poisson_nll_loss: exp(x) - t x, or with a rate as input x - t log(x + eps). */
GPUNN_API gpunn_tensor *gpunn_mse_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_l1_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_huber_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_smooth_l1_loss_(gpunn_tensor *input, gpunn_tensor *target,
                                              gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_bce_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_bce_with_logits_(gpunn_tensor *input, gpunn_tensor *target,
                                               gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_kl_div_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_gaussian_nll_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_tensor *var,
                                                 gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_poisson_nll_loss_(gpunn_tensor *input, gpunn_tensor *target,
                                                gpunn_loss_args args);
#define gpunn_mse_loss(input, ...) gpunn_mse_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_l1_loss(input, ...) gpunn_l1_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_huber_loss(input, ...) gpunn_huber_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_smooth_l1_loss(input, ...) \
    gpunn_smooth_l1_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_bce_loss(input, ...) gpunn_bce_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_bce_with_logits(input, ...) \
    gpunn_bce_with_logits_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_kl_div(input, ...) gpunn_kl_div_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_gaussian_nll_loss(input, target, ...) \
    gpunn_gaussian_nll_loss_((input), (target), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_poisson_nll_loss(input, ...) \
    gpunn_poisson_nll_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))

typedef struct gpunn_ncc_args {
    int   args_;
    int   window; /* cells along each axis, odd; 0: one window over the whole image */
    float eps;    /* 1e-5 */
} gpunn_ncc_args;
/* Negative normalised cross-correlation of images or volumes [n, c, ...] with one to three spatial axes, for
 * registration. With window 0: -mean of S(ab) / sqrt(S(aa) S(bb) + eps). S sums over one channel of a sample;
 * a and b are input and target minus their means. Otherwise the local squared form of VoxelMorph: -mean of
 * S(ab)^2 / (S(aa) S(bb) + eps), with the sums and means of the window around each cell. Cells outside the
 * image count as 0. */
GPUNN_API gpunn_tensor *gpunn_ncc_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_ncc_args args);
#define gpunn_ncc_loss(input, ...) gpunn_ncc_loss_((input), GPUNN_NAMED(gpunn_ncc_args, __VA_ARGS__))

typedef struct gpunn_class_loss_args {
    int             args_;
    gpunn_reduction reduction;
    int             ignore_index;    /* default -100; GPUNN_ZERO for 0 */
    float           label_smoothing; /* cross_entropy only */
    gpunn_tensor   *weight;          /* [classes] */
} gpunn_class_loss_args;
/* Cross-entropy of logits and negative log-likelihood of log-probabilities. logits [n, classes, ...], labels
 * I64, I32 or U8 [n, ...].
 * A label outside 0 .. classes - 1 that is not ignore_index changes no weight: the run fails with
 * GPUNN_ERR_ARGUMENT on the CPU; on a GPU the loss is NaN. If all labels are ignored, the gradient is 0 as in
 * torch and the mean is -0 (torch: NaN). By this -0 gpunn_fit and gpunn_evaluate recognise the batch and
 * leave it out of their means. */
GPUNN_API gpunn_tensor *gpunn_cross_entropy_(gpunn_tensor *logits, gpunn_tensor *labels,
                                             gpunn_class_loss_args args);
GPUNN_API gpunn_tensor *gpunn_nll_loss_(gpunn_tensor *log_probabilities, gpunn_tensor *labels,
                                        gpunn_class_loss_args args);
#define gpunn_cross_entropy(logits, ...) \
    gpunn_cross_entropy_((logits), GPUNN_NAMED(gpunn_class_loss_args, __VA_ARGS__))
#define gpunn_nll_loss(log_probabilities, ...) \
    gpunn_nll_loss_((log_probabilities), GPUNN_NAMED(gpunn_class_loss_args, __VA_ARGS__))

typedef struct gpunn_margin_args {
    int             args_;
    gpunn_reduction reduction; /* MEAN, SUM or NONE */
    /* default 1 for hinge_embedding, multi_margin, triplet; 0 for margin_ranking, cosine_embedding */
    float margin;
    /* triplet: order of the norm, default 2, INFINITY for the maximum; multi_margin: 1 or 2, default 1 */
    float p;
    float eps; /* triplet: added to each difference, default 1e-6 */
    /* triplet: measures the negative from the anchor or the positive, whichever is nearer to it */
    bool          swap;
    gpunn_tensor *weight; /* multi_margin: [classes] */
} gpunn_margin_args;
/* torch.nn's losses of these names. Targets are F32, 1 or -1.
 * hinge_embedding: x and target have one shape; x where target is 1, max(0, margin - x) where it is -1.
 * soft_margin: log(1 + exp(-target x)); one shape.
 * margin_ranking: max(0, margin - target (x1 - x2)); all of one shape.
 * multi_margin: x [n, classes], labels as in cross_entropy; the mean over all classes c of max(0, margin -
 * x[label] + x[c])^p, where c = label counts as 0.
 * triplet: max(0, margin + |anchor - positive + eps| - |anchor - negative + eps|) over the last axis; all of
 * one shape.
 * cosine_embedding: x1 and x2 [n, features], target [n], or all with one axis less; 1 - cosine where target
 * is 1, max(0, cosine - margin) where it is -1. */
GPUNN_API gpunn_tensor *gpunn_hinge_embedding_loss_(gpunn_tensor *x, gpunn_tensor *target,
                                                    gpunn_margin_args args);
GPUNN_API gpunn_tensor *gpunn_soft_margin_loss_(gpunn_tensor *x, gpunn_tensor *target,
                                                gpunn_margin_args args);
GPUNN_API gpunn_tensor *gpunn_margin_ranking_loss_(gpunn_tensor *x1, gpunn_tensor *x2, gpunn_tensor *target,
                                                   gpunn_margin_args args);
GPUNN_API gpunn_tensor *gpunn_multi_margin_loss_(gpunn_tensor *x, gpunn_tensor *labels,
                                                 gpunn_margin_args args);
GPUNN_API gpunn_tensor *gpunn_triplet_margin_loss_(gpunn_tensor *anchor, gpunn_tensor *positive,
                                                   gpunn_tensor *negative, gpunn_margin_args args);
GPUNN_API gpunn_tensor *gpunn_cosine_embedding_loss_(gpunn_tensor *x1, gpunn_tensor *x2, gpunn_tensor *target,
                                                     gpunn_margin_args args);
#define gpunn_hinge_embedding_loss(x, ...) \
    gpunn_hinge_embedding_loss_((x), GPUNN_NAMED(gpunn_margin_args, __VA_ARGS__))
#define gpunn_soft_margin_loss(x, ...) \
    gpunn_soft_margin_loss_((x), GPUNN_NAMED(gpunn_margin_args, __VA_ARGS__))
#define gpunn_margin_ranking_loss(x1, x2, ...) \
    gpunn_margin_ranking_loss_((x1), (x2), GPUNN_NAMED(gpunn_margin_args, __VA_ARGS__))
#define gpunn_multi_margin_loss(x, ...) \
    gpunn_multi_margin_loss_((x), GPUNN_NAMED(gpunn_margin_args, __VA_ARGS__))
#define gpunn_triplet_margin_loss(anchor, positive, ...) \
    gpunn_triplet_margin_loss_((anchor), (positive), GPUNN_NAMED(gpunn_margin_args, __VA_ARGS__))
#define gpunn_cosine_embedding_loss(x1, x2, ...) \
    gpunn_cosine_embedding_loss_((x1), (x2), GPUNN_NAMED(gpunn_margin_args, __VA_ARGS__))
/* sum x1 x2 / (max(|x1|, eps) max(|x2|, eps)) along an axis that has the same size in both. The other axes
 * broadcast. eps 0: 1e-8. */
GPUNN_API gpunn_tensor *gpunn_cosine_similarity(gpunn_tensor *x1, gpunn_tensor *x2, int axis, float eps);

typedef struct gpunn_dice_args {
    int             args_;
    gpunn_reduction reduction; /* MEAN, SUM or NONE */
    /* default 1e-5; GPUNN_ZERO: 0 / 0 where neither x nor target has anything of a class */
    float smooth;
    bool  squared; /* x^2 and target^2 in the denominator */
    bool  batch;   /* sums over all samples of the batch */
} gpunn_dice_args;
/* Soft Dice loss, as MONAI's: 1 - (2 sum x target + smooth) / (sum x + sum target + smooth) for each sample
 * and class, summed over the axes after the classes. x: probabilities (gpunn_sigmoid, gpunn_softmax). x and
 * target have one shape, [n, classes, ...] (one class: binary). NONE returns [n, classes], with batch
 * [classes]. */
GPUNN_API gpunn_tensor *gpunn_dice_loss_(gpunn_tensor *x, gpunn_tensor *target, gpunn_dice_args args);
#define gpunn_dice_loss(x, ...) gpunn_dice_loss_((x), GPUNN_NAMED(gpunn_dice_args, __VA_ARGS__))

typedef struct gpunn_ctc_args {
    int             args_;
    gpunn_reduction reduction;     /* MEAN: of each loss / target length; SUM; NONE: [n] */
    int             blank;         /* class that means "no label", default 0 */
    bool            zero_infinity; /* a target too long for its input costs 0 instead of infinity */
    bool            batch_first;   /* log_probabilities [n, t, classes] instead of [t, n, classes] */
} gpunn_ctc_args;
/* torch.nn.CTCLoss. log_probabilities [t, n, classes] (gpunn_log_softmax); targets [n, longest], with any
 * labels after a target's end; input_lengths and target_lengths [n]. These three are I64 or I32. The gradient
 * is that of the formula. torch's own has exp(log probability) added, which log_softmax's backward removes
 * again. A length or label out of range behaves as in cross_entropy. */
GPUNN_API gpunn_tensor *gpunn_ctc_loss_(gpunn_tensor *log_probabilities, gpunn_tensor *targets,
                                        gpunn_tensor *input_lengths, gpunn_tensor *target_lengths,
                                        gpunn_ctc_args args);
#define gpunn_ctc_loss(log_probabilities, targets, input_lengths, ...) \
    gpunn_ctc_loss_((log_probabilities), (targets), (input_lengths), GPUNN_NAMED(gpunn_ctc_args, __VA_ARGS__))

/* -- custom ops -- */
#define GPUNN_CUSTOM_INPUTS 16          /* most operands of a custom op */
#define GPUNN_CUSTOM_NUMBERS 8          /* most settings of one use of it */
typedef struct gpunn_value gpunn_value; /* >>backend: data, dtype, rank, dim, count */
/* Argument of a custom op's functions. All pointers are to memory of the device, contiguous and row-major,
 * F32 where the operand is. */
typedef struct gpunn_custom_call {
    /* operands, result: forward writes out->data; backward may read all of them */
    const gpunn_value *in, *out;
    const gpunn_value *grad_out; /* backward: gradient of the result */
    /* backward: gradient of each operand; write all of it (`=`); data NULL: not wanted */
    const gpunn_value *grad_in;
    int                input_count; /* number of operands */
    const float       *numbers;     /* as given to gpunn_custom */
    void              *user;        /* the op's */
    /* as many bytes as the op's workspace function asked for; 64-byte aligned */
    void *workspace;
    int   threads; /* CPU: number of threads to use */
    /* CUDA: cudaStream_t to launch on. Only launch: the call is captured and replayed */
    void *stream;
} gpunn_custom_call;
/* For the CPU functions of a custom op. Calls task(arg, index, threads) for each index below `threads`, in
 * parallel on the device's thread pool, and returns when all calls have returned. There may be fewer threads
 * than requested, so a task must split its work by its own `threads` argument. Within a task, or outside such
 * a function, gpunn_parallel runs the task on the calling thread only. */
GPUNN_API void gpunn_parallel(int threads, void (*task)(void *arg, int index, int threads), void *arg);
/* Returns 0 on success. Otherwise it returns a cudaError_t on CUDA, and any number elsewhere. */
typedef int (*gpunn_custom_function)(const gpunn_custom_call *call);
/* An op of the program's own. */
typedef struct gpunn_custom_op {
    const char *name;   /* used in messages and specs: letters, digits, '_', '.', '-' */
    int         inputs; /* number of operands, at most GPUNN_CUSTOM_INPUTS */
    /* Computes the result's shape from the operands' (GPUNN_BATCH where the batch is). Returns false if they
     * do not fit. NULL: the shape of the first operand. */
    bool (*shape)(const gpunn_shape *inputs, const float *numbers, gpunn_shape *result);
    gpunn_custom_function forward, backward; /* CPU; backward NULL: no gradients */
    /* GPU; NULL: planning the op on a GPU is an error */
    gpunn_custom_function cuda_forward, cuda_backward;
    unsigned              no_gradient; /* bit i: operand i has no gradient */
    /* bytes needed; data is not set yet. NULL: none */
    size_t (*workspace)(const gpunn_custom_call *call, bool backward);
    void *user; /* handed to each call, as call->user */
} gpunn_custom_op;
typedef struct gpunn_custom_args {
    int   args_;
    float numbers[GPUNN_CUSTOM_NUMBERS]; /* settings of this use of the op */
} gpunn_custom_args;
/* Appends a custom op. op must outlive the model. Operands have any dtype; the result is F32. Training keeps
 * operands and result for the backward pass. */
GPUNN_API gpunn_tensor *gpunn_custom_(const gpunn_custom_op *op, gpunn_tensor *const *inputs,
                                      gpunn_custom_args args);
#define gpunn_custom(op, ...) gpunn_custom_((op), GPUNN_NAMED(gpunn_custom_args, __VA_ARGS__))
/* Registers op so that gpunn_spec_load finds it by its name; op must outlive the device. gpunn_find_custom
 * returns NULL if there is no such op. */
GPUNN_API gpunn_status           gpunn_register_custom(gpunn_device *dev, const gpunn_custom_op *op);
GPUNN_API const gpunn_custom_op *gpunn_find_custom(const gpunn_device *dev, const char *name);

/* -- derivatives: gradients as nodes, for use in a loss or to be differentiated again -- */
typedef struct gpunn_grad_args {
    int args_;
    /* gradient of y, of y's shape; NULL: ones, which gives the gradient of y's sum */
    gpunn_tensor *grad_output;
} gpunn_grad_args;
#ifndef GPUNN_NO_DERIVATIVES
/* torch.autograd.grad(y, x, create_graph=True): the gradient of y with respect to x. x is an input, a
 * parameter or an intermediate value. The result is F32 and has x's shape; it is zeros if y does not depend
 * on x.
 * It differentiates, to any order, the elementwise ops, linear, matmul, einsum, convolutions and
 * transposed ones, scaled_dot_product_attention (without lengths and dropout; all weights are in memory),
 * interpolate, max and average pools (adaptive ones whose windows are equal), sum, mean, max, cumsum,
 * logcumsumexp (with all pairs of a line in memory), softmax, log_softmax, cross, cross_entropy, nll_loss,
 * layer_norm, rms_norm, group_norm, instance_norm, reshape, expand, permute, concat, slice, pad with a
 * constant, gather, scatter_add, scatter, embedding, and all that is made of these. Any other op between x
 * and y is GPUNN_ERR_UNSUPPORTED, with its name.
 * Each call adds nodes: call it while building the model, not in each step. */
GPUNN_API gpunn_tensor *gpunn_grad_(gpunn_tensor *y, gpunn_tensor *x, gpunn_grad_args args);
#define gpunn_grad(y, ...) gpunn_grad_((y), GPUNN_NAMED(gpunn_grad_args, __VA_ARGS__))
/* The gradients with respect to `count` inputs at once, written to `gradients`. After a failure these are
 * NULL. */
GPUNN_API gpunn_status gpunn_grads_(gpunn_tensor *y, gpunn_tensor *const *inputs, int count,
                                    gpunn_tensor **gradients, gpunn_grad_args args);
#define gpunn_grads(y, inputs, count, ...) \
    gpunn_grads_((y), (inputs), (count), GPUNN_NAMED(gpunn_grad_args, __VA_ARGS__))
/* torch.func.jvp: the derivative of y along v, which has x's shape. It is the Jacobian times v, has y's
 * shape, and is zeros if y does not depend on x. It uses forward mode: v is propagated from x to y, op by op.
 * Ops and errors are as for gpunn_grad. */
GPUNN_API gpunn_tensor *gpunn_jvp(gpunn_tensor *y, gpunn_tensor *x, gpunn_tensor *v);
/* The Hessian of y's sum with respect to x, times v, in x's shape: gpunn_jvp of gpunn_grad. */
GPUNN_API gpunn_tensor *gpunn_hvp(gpunn_tensor *y, gpunn_tensor *x, gpunn_tensor *v);
#endif
typedef struct gpunn_laplacian_args {
    int            args_;
    int            coordinates; /* use only the first so many, such as space before time; 0: all */
    gpunn_tensor **gradient;    /* receives gpunn_grad(y, x), which is computed anyway; NULL: not wanted */
} gpunn_laplacian_args;
#ifndef GPUNN_NO_DERIVATIVES
/* The sum of the second derivatives of y by each of x's coordinates. x [n, d], y [n, 1] or [n] -> [n, 1].
 * Sample i of y must depend on row i of x alone. Ops and errors are as for gpunn_grad; other shapes are
 * GPUNN_ERR_SHAPE. */
GPUNN_API gpunn_tensor *gpunn_laplacian_(gpunn_tensor *y, gpunn_tensor *x, gpunn_laplacian_args args);
#define gpunn_laplacian(y, ...) gpunn_laplacian_((y), GPUNN_NAMED(gpunn_laplacian_args, __VA_ARGS__))
#endif

/* -- metrics: scalars without gradient -- */
/* The share of rows of logits [n, classes] whose argmax is the label. labels: integers [n]. */
GPUNN_API gpunn_tensor *gpunn_accuracy(gpunn_tensor *logits, gpunn_tensor *labels);
/* The share of elements with (prob > 0.5) == (target > 0.5). Both have one shape. */
GPUNN_API gpunn_tensor *gpunn_binary_accuracy(gpunn_tensor *prob, gpunn_tensor *target);
/* The share of samples whose label is among the k largest logits. Shapes are as for gpunn_accuracy. */
GPUNN_API gpunn_tensor *gpunn_top_k_accuracy(gpunn_tensor *logits, gpunn_tensor *labels, int k);

#endif /* GPUNN__API_BUILDERS_H */
