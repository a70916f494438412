#ifndef GPUNN__API_BUILDERS_H
#define GPUNN__API_BUILDERS_H
#include "api/ops.h"

/* ==== >>builders ====================================================================================================== *
 * Each appends a node to its operands' model and returns it, or NULL after an error, or when an operand is NULL (then the first
 * error stays). Not thread-safe per device. Operands belong to one model; F32 unless stated. Values carry no name until
 * gpunn_set_name. */

/* Elementwise, from the tables of >>ops, which have the formulas. Operands broadcast; torch's defaults of attributes stand
 * there. (python3 -m generator.prototypes writes these lines, and those of the losses that are formulas.) */
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

/* Those above and below that GPUNN_INTEGER_OPS names take integers too, I64, I32, U8 and BOOL, where all operands are such
 * (where's condition may be of any dtype). Comparisons and logical ops of integers give BOOL, the others the largest of their
 * operands' dtypes, to whose bits the exact result wraps around; of BOOL, whether it is not 0. No gradient. A division by 0 is
 * GPUNN_ERR_ARGUMENT of the run; on a GPU, which does not stop, its quotient is 0 and its remainder the dividend.
 * gpunn_integer_scalar: op with a number in the place of its last operand, x // 4 or x < 10, in x's dtype, I64 where that is
 * BOOL; gpunn_where_scalar: x where the condition holds, else the number, in the same dtype. */
GPUNN_API gpunn_tensor *gpunn_integer_scalar(gpunn_integer_op op, gpunn_tensor *x, int64_t value);
GPUNN_API gpunn_tensor *gpunn_where_scalar(gpunn_tensor *condition, gpunn_tensor *x, int64_t value);

/* Formulas by torch's names, of ops above (GPUNN__FORMULAS in >>graph/arguments). */
GPUNN_API gpunn_tensor *gpunn_softshrink(gpunn_tensor *x, float lambd);
GPUNN_API gpunn_tensor *gpunn_threshold(gpunn_tensor *x, float threshold, float value);
GPUNN_API gpunn_tensor *gpunn_logit(gpunn_tensor *x, float eps); /* of x kept within eps and 1 - eps; below 0: of x */
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
GPUNN_API gpunn_tensor *gpunn_trunc_divide(gpunn_tensor *x, gpunn_tensor *y); /* x / y rounded towards 0, without gradient */

/* A formula in the tables' language over x, y, z (args 0 to 2) or x0 to x7: + - * / **, < <= > >= == != (which chain), and or
 * not, a if c else b, parentheses, numbers, the constant pi, and every elementwise op by name, its attributes as further
 * numbers ("x * sigmoid(1.702 * x)", "where(x > 0, x, leaky_relu(x, 0.2))"); max, min, floordiv, K(number), where. All mean what
 * they mean in Python. Values that are used again get names first: "t = max(x, 0); t ** 2 + t". Broadcasts.
 * Along axes: sum, mean, amax (gpunn_max) and norm(x, p, ...), of all axes or of those listed, where 2: is the third and all that
 * follow, with keepdim=True or without: "x - mean(x, 2:, keepdim=True)"; argmax, softmax, log_softmax and cumsum, along one axis;
 * window_mean(x, k), the mean of the k cells around each along every axis after the second. Operands of other dtypes are for
 * float(y), gpunn_cast to F32: "mean(float(argmax(x, 1)) == float(y))". Where a number decides, as in "x if 1 else y", the part
 * that is not taken adds no nodes. */
GPUNN_API gpunn_tensor *gpunn_expr(const char *expression, gpunn_tensor *const *args, int arg_count);

/* -- layers: parameters are called name.weight, name.bias, ... as torch.nn's; name must be unique; "" or NULL is an error -- */

typedef struct gpunn_linear_args {
    int           args_;
    int           out_features;
    bool          no_bias;
    gpunn_tensor *weight; /* a parameter [out, in], of another layer say, in place of one of its own; tells out_features too */
    gpunn_tensor *bias;   /* the same, [out] */
} gpunn_linear_args;
/* x [..., in] -> [..., out]; weight [out, in], bias [out]. A shared weight gathers the gradients of all that read it. */
GPUNN_API gpunn_tensor *gpunn_linear_(gpunn_tensor *x, const char *name, gpunn_linear_args args);
#define gpunn_linear(x, ...) gpunn_linear_((x), GPUNN_NAMED(gpunn_linear_args, __VA_ARGS__))

typedef struct gpunn_bilinear_args {
    int  args_;
    int  out_features;
    bool no_bias;
} gpunn_bilinear_args;
/* torch.nn.Bilinear: x1 [..., in1], x2 [..., in2] of as many rows -> [..., out], each output x1 W x2 with its own W of weight
 * [out, in1, in2], plus bias [out]. It holds the products of all pairs, rows * in1 * in2. */
GPUNN_API gpunn_tensor *gpunn_bilinear_(gpunn_tensor *x1, gpunn_tensor *x2, const char *name, gpunn_bilinear_args args);
#define gpunn_bilinear(x1, x2, ...) gpunn_bilinear_((x1), (x2), GPUNN_NAMED(gpunn_bilinear_args, __VA_ARGS__))

typedef struct gpunn_conv_args {
    int args_;
    int out_channels, kernel_size, stride, padding, dilation, groups;               /* the same along all axes ... */
    int output_padding;                                                             /* transposed only */
    int kernel_shape[3], strides[3], paddings[3], dilations[3], output_paddings[3]; /* ... or one per spatial axis, where not 0 */
    bool          no_bias;
    gpunn_tensor *weight; /* a tensor of the weight's shape, computed or another layer's, in place of a parameter of its own */
    gpunn_tensor *bias;   /* a parameter [out], the same */
    int padding_end, paddings_end[3]; /* the padding behind each axis, by default as padding, which is the one before it: not of
                                         transposed convolutions, and by a gpunn_pad where they differ */
} gpunn_conv_args;
/* x [n, in, length] (1d), [n, in, height, width] (2d), [n, in, depth, height, width] (3d) -> [n, out, ...], along each axis
 * (size + padding + padding_end - dilation (kernel - 1) - 1) / stride + 1; weight [out, in / groups, kernel ...], bias [out].
 * torch's padding="same" is .padding = dilation (kernel - 1) / 2, rounded down, and the rest as .padding_end. */
GPUNN_API gpunn_tensor *gpunn_conv1d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
GPUNN_API gpunn_tensor *gpunn_conv2d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
GPUNN_API gpunn_tensor *gpunn_conv3d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
#define gpunn_conv1d(x, ...) gpunn_conv1d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))
#define gpunn_conv2d(x, ...) gpunn_conv2d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))
#define gpunn_conv3d(x, ...) gpunn_conv3d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))
/* The gradient of such a convolution for its input, as a layer: along each axis (size - 1) stride - 2 padding + dilation (kernel
 * - 1) + output_padding + 1, where output_padding is less than stride or dilation; weight [in, out / groups, kernel ...]. */
GPUNN_API gpunn_tensor *gpunn_conv_transpose1d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
GPUNN_API gpunn_tensor *gpunn_conv_transpose2d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
GPUNN_API gpunn_tensor *gpunn_conv_transpose3d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
#define gpunn_conv_transpose1d(x, ...) gpunn_conv_transpose1d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))
#define gpunn_conv_transpose2d(x, ...) gpunn_conv_transpose2d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))
#define gpunn_conv_transpose3d(x, ...) gpunn_conv_transpose3d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))

typedef struct gpunn_pool_args {
    int  args_;
    int  kernel_size, stride, padding;             /* stride defaults to the kernel */
    int  kernel_shape[3], strides[3], paddings[3]; /* one per spatial axis, where not 0 */
    bool ceil_mode, count_exclude_pad;             /* the latter: average over real elements only */
    int  padding_end, paddings_end[3]; /* the padding behind each axis, by default as padding, which is the one before it */
    int  dilation, dilations[3];       /* max_pool: from one cell of a window to the next, 1 */
} gpunn_pool_args;
/* x [n, c, l] (1d), [n, c, h, w] (2d), [n, c, d, h, w] (3d); the maximum pads with -inf and hands on NaN; the gradient goes to
 * the first maximum. With ceil_mode a window that starts in the padding behind does not count. Where padding_end differs a
 * gpunn_pad comes first; with dilation, for which sizes must be fixed, as many copies of x as a window has cells along an axis. A
 * global pool is an adaptive one to size 1. */
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
    float norm_type;                   /* p, above 0, 2 */
    int   kernel_size, stride;         /* stride defaults to the kernel */
    int   kernel_shape[3], strides[3]; /* one per spatial axis, where not 0 */
    bool  ceil_mode;
} gpunn_lp_pool_args;
/* torch.nn.LPPool1d and so on: of each window (sum of x^p)^(1/p), NaN where the sum is below 0; the gradient at 0 is 0. With
 * ceil_mode a window that ends outside x counts, as torch's does, by the mean of its cells. */
GPUNN_API gpunn_tensor *gpunn_lp_pool1d_(gpunn_tensor *x, gpunn_lp_pool_args args);
GPUNN_API gpunn_tensor *gpunn_lp_pool2d_(gpunn_tensor *x, gpunn_lp_pool_args args);
GPUNN_API gpunn_tensor *gpunn_lp_pool3d_(gpunn_tensor *x, gpunn_lp_pool_args args);
#define gpunn_lp_pool1d(...) gpunn_lp_pool1d_(GPUNN_NAMED(gpunn_lp_pool_args, __VA_ARGS__))
#define gpunn_lp_pool2d(...) gpunn_lp_pool2d_(GPUNN_NAMED(gpunn_lp_pool_args, __VA_ARGS__))
#define gpunn_lp_pool3d(...) gpunn_lp_pool3d_(GPUNN_NAMED(gpunn_lp_pool_args, __VA_ARGS__))
/* Window i of an axis of n cells is cells i n / out .. ((i + 1) n + out - 1) / out - 1. */
GPUNN_API gpunn_tensor *gpunn_adaptive_max_pool1d(gpunn_tensor *x, int out);
GPUNN_API gpunn_tensor *gpunn_adaptive_max_pool2d(gpunn_tensor *x, int out_h, int out_w);
GPUNN_API gpunn_tensor *gpunn_adaptive_max_pool3d(gpunn_tensor *x, int out_d, int out_h, int out_w);
GPUNN_API gpunn_tensor *gpunn_adaptive_avg_pool1d(gpunn_tensor *x, int out);
GPUNN_API gpunn_tensor *gpunn_adaptive_avg_pool2d(gpunn_tensor *x, int out_h, int out_w);
GPUNN_API gpunn_tensor *gpunn_adaptive_avg_pool3d(gpunn_tensor *x, int out_d, int out_h, int out_w);

typedef enum gpunn_grid_mode { GPUNN_GRID_BILINEAR = 0, GPUNN_GRID_NEAREST } gpunn_grid_mode;
typedef enum gpunn_grid_padding { GPUNN_GRID_ZEROS = 0, GPUNN_GRID_BORDER, GPUNN_GRID_REFLECTION } gpunn_grid_padding;
typedef struct gpunn_grid_args {
    int                args_;
    gpunn_grid_mode    mode; /* BILINEAR is trilinear in volumes */
    gpunn_grid_padding padding_mode;
    bool               align_corners; /* -1 and 1 are the centres of the outermost cells, else their outer edges */
} gpunn_grid_args;
/* torch's: x [n, c, h, w] at the points of grid [n, oh, ow, 2] -> [n, c, oh, ow]; x [n, c, d, h, w], grid [n, od, oh, ow, 3] ->
 * [n, c, od, oh, ow]. A point is x, y (, z): -1 to 1 along the last axis of x, the one before (, and that before). Gradients for
 * both, x's as reproducible as all others. Coordinates that are not finite are what they are to torch's CUDA kernels, with or
 * without align_corners: outside with ZEROS, which makes 0; cell 0 with BORDER, but inf the last cell; cell 0 with REFLECTION; no
 * gradient for themselves. (torch on a CPU gives NaN for images with bilinear ZEROS, the last cell for NaN in volumes, and no
 * result for bilinear gradients of images with the other two: 2.15 crashes.) */
GPUNN_API gpunn_tensor *gpunn_grid_sample_(gpunn_tensor *x, gpunn_tensor *grid, gpunn_grid_args args);
#define gpunn_grid_sample(x, ...) gpunn_grid_sample_((x), GPUNN_NAMED(gpunn_grid_args, __VA_ARGS__))
/* torch's: the grid that samples through theta [n, 2, 3] (or [n, 3, 4]) for a result of size {h, w} (or {d, h, w}): [n, h, w, 2]
 * (or [n, d, h, w, 3]), F32 in every precision. */
GPUNN_API gpunn_tensor *gpunn_affine_grid(gpunn_tensor *theta, gpunn_shape size, bool align_corners);

typedef struct gpunn_roi_args {
    int   args_;
    int   output_size;     /* bins along both axes ... */
    int   output_shape[3]; /* ... or along height, then width, where not 0 */
    float spatial_scale;   /* cells of x for one unit of the boxes, 1 */
    int   sampling_ratio;  /* samples along each axis of a bin; 0: as many as the cells that it covers, rounded up */
    bool  aligned; /* a cell's centre is half a cell from its corner; else it is its corner, and no box less than a cell */
} gpunn_roi_args;
/* torchvision.ops.roi_align: x [n, c, h, w], boxes [k, 5] of a sample's number and x1, y1, x2, y2 -> [k, c, output_shape]: of
 * each bin the mean of bilinear samples. Up to one cell outside x a sample is what the nearest cell is, further away 0, as where
 * a coordinate is no number. Only x has a gradient, as reproducible as all others. A number of a sample that there is not is
 * GPUNN_ERR_ARGUMENT on a CPU; on a GPU the box's values are NaN. Without sampling_ratio a bin has 2^20 samples along an axis at
 * most. */
GPUNN_API gpunn_tensor *gpunn_roi_align_(gpunn_tensor *x, gpunn_tensor *boxes, gpunn_roi_args args);
#define gpunn_roi_align(x, ...) gpunn_roi_align_((x), GPUNN_NAMED(gpunn_roi_args, __VA_ARGS__))

typedef enum gpunn_interpolate_mode {
    GPUNN_INTERPOLATE_NEAREST = 0,
    GPUNN_INTERPOLATE_NEAREST_EXACT,
    GPUNN_INTERPOLATE_LINEAR, /* in images bilinear, in volumes trilinear */
    GPUNN_INTERPOLATE_AREA,   /* adaptive_avg_pool */
    GPUNN_INTERPOLATE_CUBIC   /* torch's bicubic, of images alone: Keys's kernel with a = -0.75, not antialiased */
} gpunn_interpolate_mode;
typedef struct gpunn_interpolate_args {
    int                    args_;
    int64_t                size[3]; /* of the result, one per spatial axis; or what scale_factor makes of x's, rounded down */
    double                 scale_factor;     /* the same along all axes ... */
    double                 scale_factors[3]; /* ... or one per spatial axis, where not 0 */
    gpunn_interpolate_mode mode;
    bool align_corners; /* LINEAR, CUBIC: the centres of the outermost cells stay where they are, else their outer edges */
} gpunn_interpolate_args;
/* torch.nn.functional.interpolate, nn.Upsample: x [n, c, l], [n, c, h, w] or [n, c, d, h, w]. A scale_factor that is given tells
 * where results lie in x, even where size is given too; else the sizes do. */
GPUNN_API gpunn_tensor *gpunn_interpolate_(gpunn_tensor *x, gpunn_interpolate_args args);
#define gpunn_interpolate(...) gpunn_interpolate_(GPUNN_NAMED(gpunn_interpolate_args, __VA_ARGS__))

typedef struct gpunn_batch_norm_args {
    int   args_;
    float eps;      /* 1e-5 */
    float momentum; /* share of the new batch in the running statistics, 0.1 */
    bool  no_affine;
    bool  sync;             /* in training, over the batches of all ranks that the model is distributed to: gpunn_distribute */
    bool  no_running_stats; /* torch's track_running_stats = False: by the batch's statistics in evaluation too; not with sync */
} gpunn_batch_norm_args;
/* x [n, c] or [n, c, l] (1d), [n, c, h, w] (2d), [n, c, d, h, w] (3d); weight, bias, and the buffers running_mean, running_var
 * (unbiased) [c]. A training step over one value per channel is an error, as in PyTorch. sync is torch's SyncBatchNorm; runs in
 * training mode, gpunn_backward's too, are then common to all ranks. With no_running_stats it is the group_norm of channels that
 * have all samples, which are brought together and back: there are no buffers, and of one value per channel the bias is left. */
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
/* x [n, c, ...]: (x - mean) / sqrt(variance + eps) over the channels of each group together, times weight plus bias, both [c]. */
GPUNN_API gpunn_tensor *gpunn_group_norm_(gpunn_tensor *x, const char *name, gpunn_group_norm_args args);
#define gpunn_group_norm(x, ...) gpunn_group_norm_((x), GPUNN_NAMED(gpunn_group_norm_args, __VA_ARGS__))

typedef struct gpunn_instance_norm_args {
    int   args_;
    float eps;    /* 1e-5 */
    bool  affine; /* with weight and bias [c]; torch's default is without */
    bool  track_running_stats;
    float momentum; /* share of the new batch in the running statistics, 0.1 */
} gpunn_instance_norm_args;
/* group_norm of as many groups as channels: x [n, c, l] (1d), [n, c, h, w] (2d), [n, c, d, h, w] (3d). With track_running_stats
 * it has batch_norm's buffers running_mean, running_var [c], which training moves towards the means over n of each sample's mean
 * and unbiased variance; evaluation takes them, as batch_norm does. */
GPUNN_API gpunn_tensor *gpunn_instance_norm1d_(gpunn_tensor *x, const char *name, gpunn_instance_norm_args args);
#define gpunn_instance_norm1d(x, ...) gpunn_instance_norm1d_((x), GPUNN_NAMED(gpunn_instance_norm_args, __VA_ARGS__))
GPUNN_API gpunn_tensor *gpunn_instance_norm2d_(gpunn_tensor *x, const char *name, gpunn_instance_norm_args args);
#define gpunn_instance_norm2d(x, ...) gpunn_instance_norm2d_((x), GPUNN_NAMED(gpunn_instance_norm_args, __VA_ARGS__))
GPUNN_API gpunn_tensor *gpunn_instance_norm3d_(gpunn_tensor *x, const char *name, gpunn_instance_norm_args args);
#define gpunn_instance_norm3d(x, ...) gpunn_instance_norm3d_((x), GPUNN_NAMED(gpunn_instance_norm_args, __VA_ARGS__))

typedef struct gpunn_layer_norm_args {
    int   args_;
    int   dims; /* how many of the last axes are normalised together, 1; none may be GPUNN_BATCH */
    float eps;  /* layer_norm: 1e-5; rms_norm: 1.1920929e-7 */
    bool  no_affine, no_bias;
} gpunn_layer_norm_args;
/* (x - mean) / sqrt(variance + eps) * weight + bias over those axes, of whose shape weight and bias are; rms_norm, which has no
 * bias: x / sqrt(mean of x^2 + eps) * weight. */
GPUNN_API gpunn_tensor *gpunn_layer_norm_(gpunn_tensor *x, const char *name, gpunn_layer_norm_args args);
#define gpunn_layer_norm(x, ...) gpunn_layer_norm_((x), GPUNN_NAMED(gpunn_layer_norm_args, __VA_ARGS__))
GPUNN_API gpunn_tensor *gpunn_rms_norm_(gpunn_tensor *x, const char *name, gpunn_layer_norm_args args);
#define gpunn_rms_norm(x, ...) gpunn_rms_norm_((x), GPUNN_NAMED(gpunn_layer_norm_args, __VA_ARGS__))

typedef struct gpunn_local_response_norm_args {
    int   args_;
    int   size;           /* channels of a neighbourhood */
    float alpha, beta, k; /* 1e-4, 0.75, 1 */
} gpunn_local_response_norm_args;
/* x [n, c, ...] / (k + alpha * m)^beta, m the mean of x^2 over the size channels around each (size / 2 of them before it), where
 * those that do not exist count as 0. No parameters. */
GPUNN_API gpunn_tensor *gpunn_local_response_norm_(gpunn_tensor *x, gpunn_local_response_norm_args args);
#define gpunn_local_response_norm(...) gpunn_local_response_norm_(GPUNN_NAMED(gpunn_local_response_norm_args, __VA_ARGS__))

typedef struct gpunn_embedding_args {
    int           args_;
    int           num_embeddings, embedding_dim;
    int           padding_idx; /* a row that starts as 0 and gets no gradient, below 0 from the end; 0: none, GPUNN_ZERO: row 0 */
    gpunn_tensor *weight;      /* a tensor [num_embeddings, embedding_dim] in place of a parameter of its own; tells both */
} gpunn_embedding_args;
/* tokens, I64 or I32 of any shape [...] -> [..., embedding_dim], their rows of weight [num_embeddings, embedding_dim], which
 * starts as N(0, 1). A token outside 0 .. num_embeddings - 1: on the CPU the run fails with GPUNN_ERR_ARGUMENT, on a GPU its row
 * is NaN. */
GPUNN_API gpunn_tensor *gpunn_embedding_(gpunn_tensor *tokens, const char *name, gpunn_embedding_args args);
#define gpunn_embedding(tokens, ...) gpunn_embedding_((tokens), GPUNN_NAMED(gpunn_embedding_args, __VA_ARGS__))

typedef struct gpunn_rnn_args {
    int  args_;
    int  hidden_size, num_layers; /* num_layers: 1 */
    bool relu;                    /* rnn: relu instead of tanh */
    bool no_bias, batch_first, bidirectional;
    /* lstm: h and the results have this width, below hidden_size, by a parameter weight_hr_l0 [proj_size, hidden_size],
     * ..._reverse; c keeps hidden_size. 0: no such parameter. */
    int proj_size;
    /* One layer, not batch_first: the result goes on with h_n and, of lstm, c_n, each in a row of the memory of [directions, n,
     * hidden_size]. */
    bool states;
    /* Each run goes on where the one before ended, in training too, through which no gradient goes: h_0 and, of lstm, c_0 are
     * states name.h and name.c; n must be fixed. */
    bool                 stateful;
    float                dropout;    /* between layers */
    gpunn_tensor        *h_0, *c_0;  /* [num_layers * directions, n, hidden_size, or of h_0 proj_size]; NULL: 0. c_0: lstm */
    gpunn_tensor        *lengths;    /* I64 or I32 [n]: how many steps of each sequence exist, 1 to length; NULL: all */
    gpunn_tensor       **h_n, **c_n; /* receive the final states, of the shapes of h_0 and c_0. c_n: lstm */
    gpunn_tensor *const *weights;    /* instead of parameters of its own those of another layer, as many: for each layer and each
                                        direction weight_ih, weight_hh, without no_bias bias_ih, bias_hh, and with proj_size
                                        weight_hr; name may be NULL. Values that follow from parameters alone serve as well */
} gpunn_rnn_args;
/* x [length, n, features] (batch_first: [n, length, features]) -> [length, n, directions * hidden_size], or of proj_size, as
 * torch.nn's, with its parameters weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_ih_l0_reverse, ..., weight_ih_l1,
 * ...; gates in the order i, f, g, o and r, z, n. With lengths, as pack_padded_sequence and back: results behind a sequence's end
 * are 0, final states are those at its end, and the reverse direction starts there. A length outside 1 .. length fails with
 * GPUNN_ERR_ARGUMENT on the CPU; on a GPU that sequence's results are NaN. With proj_size a step still multiplies by
 * [4 hidden_size, hidden_size], the product of weight_hh and weight_hr, and the results are projected behind the last one. */
GPUNN_API gpunn_tensor *gpunn_rnn_(gpunn_tensor *x, const char *name, gpunn_rnn_args args);
GPUNN_API gpunn_tensor *gpunn_lstm_(gpunn_tensor *x, const char *name, gpunn_rnn_args args);
GPUNN_API gpunn_tensor *gpunn_gru_(gpunn_tensor *x, const char *name, gpunn_rnn_args args);
#define gpunn_rnn(x, ...) gpunn_rnn_((x), GPUNN_NAMED(gpunn_rnn_args, __VA_ARGS__))
#define gpunn_lstm(x, ...) gpunn_lstm_((x), GPUNN_NAMED(gpunn_rnn_args, __VA_ARGS__))
#define gpunn_gru(x, ...) gpunn_gru_((x), GPUNN_NAMED(gpunn_rnn_args, __VA_ARGS__))
typedef struct gpunn_cell_args {
    int                  args_;
    int                  hidden_size;
    bool                 relu, no_bias; /* relu: as gpunn_rnn_args' */
    gpunn_tensor        *h, *c;         /* [n, hidden_size]; NULL: 0. c: lstm */
    gpunn_tensor       **c_n;           /* receives the new c: lstm */
    gpunn_tensor *const *weights; /* instead of parameters of its own another cell's, in the order below; name may be NULL */
} gpunn_cell_args;
/* One step of such a layer, x [n, features] -> the new h [n, hidden_size]; torch.nn.RNNCell and so on, with their parameters
 * weight_ih, weight_hh, bias_ih, bias_hh. */
GPUNN_API gpunn_tensor *gpunn_rnn_cell_(gpunn_tensor *x, const char *name, gpunn_cell_args args);
GPUNN_API gpunn_tensor *gpunn_lstm_cell_(gpunn_tensor *x, const char *name, gpunn_cell_args args);
GPUNN_API gpunn_tensor *gpunn_gru_cell_(gpunn_tensor *x, const char *name, gpunn_cell_args args);
#define gpunn_rnn_cell(x, ...) gpunn_rnn_cell_((x), GPUNN_NAMED(gpunn_cell_args, __VA_ARGS__))
#define gpunn_lstm_cell(x, ...) gpunn_lstm_cell_((x), GPUNN_NAMED(gpunn_cell_args, __VA_ARGS__))
#define gpunn_gru_cell(x, ...) gpunn_gru_cell_((x), GPUNN_NAMED(gpunn_cell_args, __VA_ARGS__))

/* Zeroes each element with probability p in training steps and scales the rest by 1 / (1 - p); nothing in evaluation. 0 <= p <=
 * 1, rounded to a multiple of 1/65536. */
GPUNN_API gpunn_tensor *gpunn_dropout(gpunn_tensor *x, float p);

/* The first half of x along an axis times sigmoid of the second: torch.nn.GLU, there of axis -1. */
GPUNN_API gpunn_tensor *gpunn_glu(gpunn_tensor *x, int axis);

/* x where it is above 0, elsewhere x times a slope: in training steps a random one for each element, from lower to upper, in
 * evaluation their mean. torch.nn.RReLU, there 1/8 and 1/3. */
GPUNN_API gpunn_tensor *gpunn_rrelu(gpunn_tensor *x, float lower, float upper);

/* max(x, 0) + weight min(x, 0); num_parameters 1 (0) or the channels of axis 1; weight starts at init (0: 0.25). With a weight
 * that there is, as torch.nn.functional.prelu's: gpunn_parametric_relu(x, weight). */
GPUNN_API gpunn_tensor *gpunn_prelu(gpunn_tensor *x, const char *name, int num_parameters, float init);

/* -- shapes -- */
GPUNN_API gpunn_tensor *gpunn_reshape(gpunn_tensor *x, gpunn_shape shape); /* GPUNN_BATCH * k where the batch goes */
GPUNN_API gpunn_tensor *gpunn_flatten(gpunn_tensor *x);                    /* [n, ...] -> [n, rest] */
GPUNN_API gpunn_tensor *gpunn_permute(gpunn_tensor *x, gpunn_axes order);  /* y.dim[i] = x.dim[order[i]] */
GPUNN_API gpunn_tensor *gpunn_concat(gpunn_tensor *const *tensors, int count, int axis);
/* x[start:end:step] along one axis, as Python's, step >= 1; not along GPUNN_BATCH. end GPUNN_END_OF_AXIS: to the end. */
#define GPUNN_END_OF_AXIS INT64_MAX
GPUNN_API gpunn_tensor *gpunn_slice(gpunn_tensor *x, int axis, int64_t start, int64_t end, int64_t step);

/* An axis of n elements: REFLECT mirrors it at its ends, which are not repeated (up to n - 1 each side), REPLICATE repeats these,
 * CIRCULAR goes on at the other one (up to n). */
typedef enum gpunn_pad_mode { GPUNN_PAD_CONSTANT = 0, GPUNN_PAD_REFLECT, GPUNN_PAD_REPLICATE, GPUNN_PAD_CIRCULAR } gpunn_pad_mode;
typedef struct gpunn_pad_args {
    int            args_;
    int64_t        before[GPUNN_MAX_RANK], after[GPUNN_MAX_RANK]; /* per axis of x, >= 0; 0 along GPUNN_BATCH */
    gpunn_pad_mode mode;
    float          value; /* CONSTANT only */
} gpunn_pad_args;
GPUNN_API gpunn_tensor *gpunn_pad_(gpunn_tensor *x, gpunn_pad_args args);
#define gpunn_pad(...) gpunn_pad_(GPUNN_NAMED(gpunn_pad_args, __VA_ARGS__))
/* Copies along axes where x is 1 and along new ones in front; shape may have GPUNN_BATCH. Ops that broadcast need none of it. */
GPUNN_API gpunn_tensor *gpunn_expand(gpunn_tensor *x, gpunn_shape shape);
/* Random numbers, other ones in every run, in evaluation too: torch.rand, uniform in [0, 1), and torch.randn, normal with mean 0
 * and deviation 1. F32, without gradient; shape may have GPUNN_BATCH, as that of gpunn_tensor_shape has. They follow from the
 * device's seed, their place among the model's random layers and the number of the run (RANDOM NUMBERS). */
GPUNN_API gpunn_tensor *gpunn_rand(gpunn_model *model, gpunn_shape shape);
GPUNN_API gpunn_tensor *gpunn_randn(gpunn_model *model, gpunn_shape shape);
/* The same in the shape of x, F32, whose values do not matter. */
GPUNN_API gpunn_tensor *gpunn_rand_like(gpunn_tensor *x);
GPUNN_API gpunn_tensor *gpunn_randn_like(gpunn_tensor *x);
/* x so many times along each axis, aligned at the last. */
GPUNN_API gpunn_tensor *gpunn_tile(gpunn_tensor *x, gpunn_shape repeats);
/* Tensors of one shape along a new axis. */
GPUNN_API gpunn_tensor *gpunn_stack(gpunn_tensor *const *tensors, int count, int axis);
/* Slices of `size` along an axis, the last one smaller where it does not divide, or so many chunks, all but the last of one size;
 * into parts, which has room for `capacity`. Their number, 0 after an error. */
GPUNN_API int gpunn_split(gpunn_tensor *x, int64_t size, int axis, gpunn_tensor **parts, int capacity);
GPUNN_API int gpunn_chunk(gpunn_tensor *x, int chunks, int axis, gpunn_tensor **parts, int capacity);
typedef enum gpunn_indexing { GPUNN_INDEXING_IJ = 0, GPUNN_INDEXING_XY } gpunn_indexing;
/* torch.meshgrid: of count coordinates [n0], [n1], ..., 1 to 8 of them, F32, as many grids [n0, n1, ...], the values of
 * coordinates[i] along axis i of grids[i]; XY: [n1, n0, ...], axes 0 and 1 exchanged. After an error grids are NULL. */
GPUNN_API gpunn_status gpunn_meshgrid(gpunn_tensor *const *coordinates, int count, gpunn_indexing indexing, gpunn_tensor **grids);
/* index I64, I32 or U8 [...] -> F32 [..., classes]: 1 at the index, 0 elsewhere, all 0 for what is no class. */
GPUNN_API gpunn_tensor *gpunn_one_hot(gpunn_tensor *index, int classes);
/* lengths I64 or I32 [n] -> F32 [n, size]: 1 in as many places as each length says, 0 behind them; size is a number or a
 * gpunn_size. It tells where a padded batch has values: a factor of what is averaged, of a loss with .reduction none or, by
 * gpunn_cast to BOOL, a mask of attention. Lengths above size count as size, those below 0 as 0. */
GPUNN_API gpunn_tensor *gpunn_sequence_mask(gpunn_tensor *lengths, int64_t size);
/* What neural fields read in place of coordinates x [..., d]; for each of them in turn,
 * frequency: sin(pi x), cos(pi x), sin(2 pi x), cos(2 pi x), sin(4 pi x), ...: [..., d * 2 * frequencies], 1 to 32 frequencies;
 * one_blob: exp(-(bins x - i - 0.5)^2 / 2), a bump over each of the bins of 0 to 1: [..., d * bins], 1 to 256 bins;
 * spherical_harmonics: of all three, a direction of length 1, the real ones of degrees below 1 to 4, with the constants and in
 * the order of tiny-cuda-nn: [..., degree * degree].
 * F32: where a GPU keeps values in 16 bits it rounds what sin and exp are taken of, high frequencies to noise. */
GPUNN_API gpunn_tensor *gpunn_frequency_encoding(gpunn_tensor *x, int frequencies);
GPUNN_API gpunn_tensor *gpunn_one_blob_encoding(gpunn_tensor *x, int bins);
GPUNN_API gpunn_tensor *gpunn_spherical_harmonics_encoding(gpunn_tensor *x, int degree);
typedef struct gpunn_hash_grid_args {
    int   args_;
    int   n_levels, n_features_per_level; /* 16, at most 32; 2, at most 8 */
    int   log2_hashmap_size;              /* rows of a level at most, 19; 4 to 28 */
    int   base_resolution;                /* cells along each axis of the first level, 16 ... */
    float per_level_scale;                /* ... and so many times as many from one to the next, 2; at least 1 */
} gpunn_hash_grid_args;
/* Multi-resolution hash encoding (Mueller et al. 2022) of points x [..., d] in 0 to 1, d 2 or 3: in each level the rows of weight
 * that the corners of the point's cell have, interpolated: [..., n_levels * n_features_per_level]. weight [rows,
 * n_features_per_level] starts as U(-1e-4, 1e-4), level behind level; rows, hash and resolutions are tiny-cuda-nn's, so that its
 * weights fit. Points outside meet rows as the hash has them. Gradients of both are the same in every run. */
GPUNN_API gpunn_tensor *gpunn_hash_grid_encoding_(gpunn_tensor *x, const char *name, gpunn_hash_grid_args args);
#define gpunn_hash_grid_encoding(x, ...) gpunn_hash_grid_encoding_((x), GPUNN_NAMED(gpunn_hash_grid_args, __VA_ARGS__))
/* What only copies (reshape, permute, concat, slice, pad with a constant, expand, tile, stack, gather, ...) takes integers as
 * well. torch.gather: y[i][j][k] = x[i][index[i][j][k]][k] for axis 1 of three; index I64 or I32 of x's rank, along the other
 * axes not larger than x. An index outside x's axis: as a token of gpunn_embedding. */
GPUNN_API gpunn_tensor *gpunn_gather(gpunn_tensor *x, int axis, gpunn_tensor *index);
/* torch.scatter_add: a copy of x with y[i][index[i][j][k]][k] += src[i][j][k] for axis 1 of three; index I64 or I32, of src's
 * shape, which is x's but for the axis. Sums in the order of the indices, on a GPU above 1024 of them along
 * the axis in an order that they determine; an index outside x's axis: as gpunn_gather's. */
GPUNN_API gpunn_tensor *gpunn_scatter_add(gpunn_tensor *x, int axis, gpunn_tensor *index, gpunn_tensor *src);
/* torch.scatter: the same with src in the place of what stands there, of several for one place the last along the axis, to which
 * alone the gradient goes (torch leaves both open). x and src may be integers of one dtype. */
GPUNN_API gpunn_tensor *gpunn_scatter(gpunn_tensor *x, int axis, gpunn_tensor *index, gpunn_tensor *src);
/* torch.index_select: the slices of x along an axis that index [count], I64 or I32, names. */
GPUNN_API gpunn_tensor *gpunn_index_select(gpunn_tensor *x, int axis, gpunn_tensor *index);
/* torch.index_add: a copy of x to whose slices index[i] along an axis those of src are added. */
GPUNN_API gpunn_tensor *gpunn_index_add(gpunn_tensor *x, int axis, gpunn_tensor *index, gpunn_tensor *src);
/* ONNX's GatherND: x [b ..., d1, ..., dk, rest ...], with as many b as batch_dims, index [b ..., places ..., k], I64 or I32 ->
 * [b ..., places ..., rest ...]: what k numbers, from 0 on, pick of the k axes behind the b's; torch's x[i1, ..., ik] with such
 * indices stacked along a new last axis. Of d1 to dk only d1 may vary. An index outside its axis: as gpunn_gather's. */
GPUNN_API gpunn_tensor *gpunn_gather_nd(gpunn_tensor *x, gpunn_tensor *index, int batch_dims);
/* x with the order of the axes' elements reversed, and with each element `shift` places on along an axis, the last ones first. */
GPUNN_API gpunn_tensor *gpunn_flip(gpunn_tensor *x, gpunn_axes axes);
GPUNN_API gpunn_tensor *gpunn_roll(gpunn_tensor *x, int64_t shift, int axis);
/* Images [n, c * factor^2, h, w] -> [n, c, h * factor, w * factor], where each pixel's channels become a square of pixels, and
 * back. */
GPUNN_API gpunn_tensor *gpunn_pixel_shuffle(gpunn_tensor *x, int factor);
GPUNN_API gpunn_tensor *gpunn_pixel_unshuffle(gpunn_tensor *x, int factor);
/* The same with the places of a square before the channels, [n, factor^2 * c, h, w] -> [n, c, h * factor, w * factor]: ONNX's
 * DepthToSpace in its mode DCR, and SpaceToDepth. */
GPUNN_API gpunn_tensor *gpunn_depth_to_space(gpunn_tensor *x, int factor);
GPUNN_API gpunn_tensor *gpunn_space_to_depth(gpunn_tensor *x, int factor);
typedef struct gpunn_unfold_args {
    int     args_;
    int     kernel_size, stride, padding, dilation;                 /* the same along both axes ... */
    int     kernel_shape[3], strides[3], paddings[3], dilations[3]; /* ... or one for each, where not 0; the third stays 0 */
    int64_t output_size[2];                                         /* fold: h and w */
} gpunn_unfold_args;
/* torch.nn.Unfold: the windows that a convolution of x [n, c, h, w] would read, each as a column: [n, c kh kw, their number]; h
 * and w must be fixed. torch.nn.Fold: such columns added up where they came from, [n, c, h, w]. Each is the other's gradient.
 * They are made of kh + kw slices, and hold as many copies of x as a window has cells. */
GPUNN_API gpunn_tensor *gpunn_unfold_(gpunn_tensor *x, gpunn_unfold_args args);
GPUNN_API gpunn_tensor *gpunn_fold_(gpunn_tensor *x, gpunn_unfold_args args);
#define gpunn_unfold(...) gpunn_unfold_(GPUNN_NAMED(gpunn_unfold_args, __VA_ARGS__))
#define gpunn_fold(...) gpunn_fold_(GPUNN_NAMED(gpunn_unfold_args, __VA_ARGS__))
/* Matrices [..., rows, columns] with zeros above (tril) or below (triu) the diagonal, or the one so many columns to its right. */
GPUNN_API gpunn_tensor *gpunn_tril(gpunn_tensor *x, int diagonal);
GPUNN_API gpunn_tensor *gpunn_triu(gpunn_tensor *x, int diagonal);
/* Of these matrices the diagonal, or the one `offset` columns to its right (below 0: to its left): [..., its length]. */
GPUNN_API gpunn_tensor *gpunn_diagonal(gpunn_tensor *x, int offset);
/* x with `value` (any, infinite too) where mask, which broadcasts to it, is not 0. */
GPUNN_API gpunn_tensor *gpunn_masked_fill(gpunn_tensor *x, gpunn_tensor *mask, float value);
GPUNN_API gpunn_tensor *gpunn_cast(gpunn_tensor *x, gpunn_dtype dtype); /* between F32, I64, I32, U8, BOOL; no gradient */

/* -- reductions: keepdim leaves 1 in place of each axis; sums of integers are I64, extremes and products have their dtype -- */
GPUNN_API gpunn_tensor *gpunn_sum(gpunn_tensor *x, gpunn_axes axes, bool keepdim);
GPUNN_API gpunn_tensor *gpunn_mean(gpunn_tensor *x, gpunn_axes axes, bool keepdim);
GPUNN_API gpunn_tensor *gpunn_max(gpunn_tensor *x, gpunn_axes axes, bool keepdim); /* torch.amax: ties share the gradient */
GPUNN_API gpunn_tensor *gpunn_min(gpunn_tensor *x, gpunn_axes axes, bool keepdim); /* torch.amin, the same */
/* Of squared distances from the mean the sum, by their number less correction (torch's default: 1; other than 0 where that number
 * does not vary), and its root, whose gradient at 0 is 0. */
GPUNN_API gpunn_tensor *gpunn_var(gpunn_tensor *x, gpunn_axes axes, int correction, bool keepdim);
GPUNN_API gpunn_tensor *gpunn_std(gpunn_tensor *x, gpunn_axes axes, int correction, bool keepdim);
/* (sum of |x|^p)^(1/p), p above 0; INFINITY: the largest |x|. The gradient at 0 is 0. */
GPUNN_API gpunn_tensor *gpunn_norm(gpunn_tensor *x, float p, gpunn_axes axes, bool keepdim);
/* gpunn_norm of x1 - x2 + eps along their last axis; torch.nn.PairwiseDistance, whose eps is 1e-6. */
GPUNN_API gpunn_tensor *gpunn_pairwise_distance(gpunn_tensor *x1, gpunn_tensor *x2, float p, float eps);
/* torch.cdist: of x1 [..., m, d] and x2 [..., n, d] the norms of all rows' differences, [..., m, n]. Takes memory for m n d of
 * these: a product of matrices would need less, and round what lies close together away. */
GPUNN_API gpunn_tensor *gpunn_cdist(gpunn_tensor *x1, gpunn_tensor *x2, float p);
GPUNN_API gpunn_tensor *gpunn_logsumexp(gpunn_tensor *x, gpunn_axes axes, bool keepdim);
/* Products along an axis whose size does not vary, of all its elements and of those up to each. */
GPUNN_API gpunn_tensor *gpunn_prod(gpunn_tensor *x, int axis, bool keepdim);
GPUNN_API gpunn_tensor *gpunn_cumprod(gpunn_tensor *x, int axis);
/* The largest and smallest of the elements up to each, as torch.cummax's values; ties share the gradient. */
GPUNN_API gpunn_tensor *gpunn_cummax(gpunn_tensor *x, int axis);
GPUNN_API gpunn_tensor *gpunn_cummin(gpunn_tensor *x, int axis);
/* torch.cummax and torch.cummin: the same with their places, I64, of equals the last, to which the gradient goes. */
GPUNN_API gpunn_tensor *gpunn_cummax_with_indices(gpunn_tensor *x, int axis, gpunn_tensor **indices);
GPUNN_API gpunn_tensor *gpunn_cummin_with_indices(gpunn_tensor *x, int axis, gpunn_tensor **indices);
/* How uneven a field is, a scalar: for each of the axes the mean of the squared differences of neighbours along it, summed. */
GPUNN_API gpunn_tensor *gpunn_gradient_energy(gpunn_tensor *x, gpunn_axes axes);
GPUNN_API gpunn_tensor *gpunn_argmax(gpunn_tensor *x, int axis, bool keepdim); /* I64, the first maximum */
GPUNN_API gpunn_tensor *gpunn_argmin(gpunn_tensor *x, int axis, bool keepdim); /* I64, the first minimum */
/* torch.max(x, dim) and torch.min(x, dim): values, and in *indices (may be NULL) their places as of gpunn_argmax and
 * gpunn_argmin, to which the gradient goes. */
GPUNN_API gpunn_tensor *gpunn_max_with_indices(gpunn_tensor *x, int axis, bool keepdim, gpunn_tensor **indices);
GPUNN_API gpunn_tensor *gpunn_min_with_indices(gpunn_tensor *x, int axis, bool keepdim, gpunn_tensor **indices);
/* The k largest, falling, or smallest, rising; of equals the first, NaN above all. *indices (may be NULL): their places, I64. */
GPUNN_API gpunn_tensor *gpunn_topk(gpunn_tensor *x, int k, int axis, bool largest, gpunn_tensor **indices);
GPUNN_API gpunn_tensor *gpunn_topk_indices(gpunn_tensor *x, int k, int axis, bool largest); /* these alone */
/* All of an axis whose size does not vary, in the order of gpunn_topk, so that equals keep theirs. */
GPUNN_API gpunn_tensor *gpunn_sort(gpunn_tensor *x, int axis, bool descending, gpunn_tensor **indices);
GPUNN_API gpunn_tensor *gpunn_argsort(gpunn_tensor *x, int axis, bool descending); /* these alone */
GPUNN_API gpunn_tensor *gpunn_cumsum(gpunn_tensor *x, int axis);
GPUNN_API gpunn_tensor *gpunn_softmax(gpunn_tensor *x, int axis);
GPUNN_API gpunn_tensor *gpunn_log_softmax(gpunn_tensor *x, int axis);

typedef struct gpunn_matmul_args {
    int  args_;
    bool transpose_a, transpose_b; /* of the last two axes */
} gpunn_matmul_args;
/* torch.matmul for rank >= 2: [..., m, k] x [..., k, n] -> [..., m, n]; leading axes broadcast. */
GPUNN_API gpunn_tensor *gpunn_matmul_(gpunn_tensor *a, gpunn_tensor *b, gpunn_matmul_args args);
#define gpunn_matmul(a, ...) gpunn_matmul_((a), GPUNN_NAMED(gpunn_matmul_args, __VA_ARGS__))
/* torch.einsum of one or two tensors, as products, sums and permutations: "...ij,jk->...ik". A letter names an axis, twice in
 * one tensor a diagonal, "..." all axes without a letter, which broadcast; without "->" the result has these, and then the
 * letters that occur once, in alphabetical order. */
GPUNN_API gpunn_tensor *gpunn_einsum(const char *equation, gpunn_tensor *const *tensors, int count);

/* How transforms are scaled: torch.fft's norm. */
typedef enum gpunn_fft_norm {
    GPUNN_FFT_BACKWARD = 0, /* the inverse by 1 / n */
    GPUNN_FFT_ORTHO,        /* both by 1 / sqrt(n) */
    GPUNN_FFT_FORWARD       /* rfft by 1 / n */
} gpunn_fft_norm;
/* Fourier transforms of real numbers along an axis, whose size n is fixed; torch.view_as_real of torch.fft.rfft: real and
 * imaginary parts of frequencies 0 to n / 2 in the axis' place, of which a new last axis of 2 tells; and back, to n numbers. x
 * [..., n, ...] -> [..., n / 2 + 1, ..., 2]; axis counts those of the real tensor. Made of products by constant matrices: of one
 * up to n = 64, then of one for each factor of n, the largest p of them taking p steps a number, and 16 n bytes. */
GPUNN_API gpunn_tensor *gpunn_rfft(gpunn_tensor *x, int axis, gpunn_fft_norm norm);
GPUNN_API gpunn_tensor *gpunn_irfft(gpunn_tensor *x, int64_t n, int axis, gpunn_fft_norm norm);

/* -- states (STATES) -- */
typedef struct gpunn_assign_args {
    int  args_;
    bool in_training; /* training steps, too, make the assignment, as their last act */
} gpunn_assign_args;
/* The state gets the value, of its shape. Gives the state as it is from then on; the state itself is what it was before, and what
 * would read that too late is GPUNN_ERR_STATE. Without gradient. */
GPUNN_API gpunn_tensor *gpunn_assign_(gpunn_tensor *state, gpunn_tensor *value, gpunn_assign_args args);
#define gpunn_assign(state, ...) gpunn_assign_((state), GPUNN_NAMED(gpunn_assign_args, __VA_ARGS__))
/* The same for a part: the value, of the state's shape but along the axis, where it has any number m up to the state's
 * (GPUNN_BATCH, too), takes places position .. position + m - 1 there. position: I64 or I32, one number or, along another axis
 * than 0, one for each sample of axis 0; what does not fit is GPUNN_ERR_ARGUMENT on the CPU, and on a GPU leaves the sample as it
 * was. */
GPUNN_API gpunn_tensor *gpunn_assign_at_(gpunn_tensor *state, int axis, gpunn_tensor *position, gpunn_tensor *value,
                                         gpunn_assign_args args);
#define gpunn_assign_at(state, axis, position, ...) \
    gpunn_assign_at_((state), (axis), (position), GPUNN_NAMED(gpunn_assign_args, __VA_ARGS__))

/* -- drawing -- */
typedef struct gpunn_sample_args {
    int   args_;
    float temperature; /* 1; GPUNN_ZERO: always the likeliest class, and draw may be NULL */
    int   top_k;       /* only so many likeliest classes; 0: all */
    float top_p;       /* of these the fewest that together have this share of their probability; 1 */
} gpunn_sample_args;
/* A class for each row of logits [n, classes], I64 [n], with the probabilities softmax(logits / temperature). draw F32 [n], from
 * 0 to below 1, decides: 0 is the likeliest class, and the same number the same class on every device. No gradient. */
GPUNN_API gpunn_tensor *gpunn_sample_(gpunn_tensor *logits, gpunn_tensor *draw, gpunn_sample_args args);
#define gpunn_sample(logits, ...) gpunn_sample_((logits), GPUNN_NAMED(gpunn_sample_args, __VA_ARGS__))

/* -- attention -- */
typedef struct gpunn_attention_args {
    int           args_;
    gpunn_tensor *mask;       /* [n, heads, l, s], axes of 1 or none for all. BOOL: true takes part; F32: added; no gradient */
    bool          is_causal;  /* row i sees keys 0 .. i only; with a mask: and what that lets through */
    float         dropout_p;  /* of the weights, in training */
    float         scale;      /* 1 / sqrt(e) */
    bool          enable_gqa; /* k and v have kv_heads, a divisor of heads: each serves heads / kv_heads neighbours */
    bool          heads_last; /* all values are [n, l, heads, e] instead of [n, heads, l, e] */
    gpunn_tensor *lengths;    /* I64 or I32, one for all or [n]: only so many of the s keys, 0 to s, are there, of which, with
                                 is_causal, the rows of q are the last: row i sees keys 0 .. length - l + i; NULL: all, from row
                                 0 */
} gpunn_attention_args;
/* torch's: softmax(q k^T scale + mask) v of q [n, heads, l, e], k [n, heads, s, e], v [n, heads, s, ev] -> [n, heads, l, ev]. Or
 * all three in one, as a linear layer makes them: q [n, l, 3, heads, e], k and v NULL -> [n, l, heads, e]. A row that sees no key
 * is 0 and gives no gradient. A length out of range is GPUNN_ERR_ARGUMENT on the CPU, whose work follows the lengths, and on a
 * GPU makes its sample NaN. No memory of l x s on the CPU, and on a GPU where cuDNN's fused attention serves, which it does not
 * with lengths. Linear layers of one value that make q, k and v, created in this order and equal, in multiples of 16 elements,
 * are computed as one. */
GPUNN_API gpunn_tensor *gpunn_scaled_dot_product_attention_(gpunn_tensor *q, gpunn_tensor *k, gpunn_tensor *v,
                                                            gpunn_attention_args args);
#define gpunn_scaled_dot_product_attention(q, k, ...) \
    gpunn_scaled_dot_product_attention_((q), (k), GPUNN_NAMED(gpunn_attention_args, __VA_ARGS__))

typedef struct gpunn_rotary_args {
    int   args_;
    float theta;       /* 10000 */
    int   dims;        /* the first so many features of each head turn, an even number; 0: all */
    bool  interleaved; /* features 2 i and 2 i + 1 are a pair, as GPT-J's, instead of i and i + dims / 2, Llama's and NeoX's */
    bool  heads_last;  /* x is [n, l, heads, e] instead of [n, heads, l, e] */
    gpunn_tensor *frequencies; /* [dims / 2], in place of theta's: those of Llama 3.1 or of a longer context */
} gpunn_rotary_args;
/* Rotary positions (RoFormer) for queries and for keys: turns pair i of each row of x by the angle position * theta^(-2
 * i / dims). positions: I64 or I32 [l] or [n, l], no gradient. Of keys in a cache the rows turn before gpunn_assign_at. */
GPUNN_API gpunn_tensor *gpunn_rotary_embedding_(gpunn_tensor *x, gpunn_tensor *positions, gpunn_rotary_args args);
#define gpunn_rotary_embedding(x, ...) gpunn_rotary_embedding_((x), GPUNN_NAMED(gpunn_rotary_args, __VA_ARGS__))

typedef struct gpunn_multi_head_attention_args {
    int            args_;
    int            num_heads;
    float          dropout;          /* of the weights, in training */
    bool           batch_first;      /* all are [n, rows, e], the fast way; else [rows, n, e] */
    gpunn_tensor  *key_padding_mask; /* [n, s], BOOL: true is ignored (torch.nn's way here); F32: added */
    gpunn_tensor  *attn_mask;        /* [l, s] or [n heads, l, s], the same */
    bool           is_causal;        /* and row i sees keys 0 .. i only */
    gpunn_tensor **weights;          /* receives the probabilities, [n, l, s], the mean over heads; NULL: they are not computed */
    bool           head_weights;     /* those of each head, [n, heads, l, s]; torch's average_attn_weights=False */
} gpunn_multi_head_attention_args;
/* torch.nn.MultiheadAttention of query [.., e], key, value: parameters name.in_proj_weight [3 e, e] (where key or value has
 * another size: q_proj_weight, k_proj_weight, v_proj_weight), in_proj_bias, out_proj.weight, out_proj.bias.
 * .weights (torch's need_weights=True) costs a product and n heads l s floats of its own, since the result needs none of it; they
 * are those before dropout, and NaN in a row that sees no key. */
GPUNN_API gpunn_tensor *gpunn_multi_head_attention_(gpunn_tensor *query, gpunn_tensor *key, gpunn_tensor *value, const char *name,
                                                    gpunn_multi_head_attention_args args);
#define gpunn_multi_head_attention(query, key, value, ...) \
    gpunn_multi_head_attention_((query), (key), (value), GPUNN_NAMED(gpunn_multi_head_attention_args, __VA_ARGS__))

typedef struct gpunn_transformer_args {
    int           args_;
    int           nhead;
    int           num_layers;      /* of a stack, 6 */
    int           dim_feedforward; /* 2048 */
    float         dropout;         /* everywhere, 0.1; GPUNN_ZERO: none */
    bool          gelu;            /* activation gelu instead of relu */
    float         layer_norm_eps;  /* 1e-5 */
    bool          batch_first;     /* [n, rows, e] instead of [rows, n, e] */
    bool          norm_first;
    bool          norm;                    /* of a stack: a layer_norm at its end */
    gpunn_tensor *mask;                    /* src_mask, tgt_mask; masks as gpunn_multi_head_attention's */
    gpunn_tensor *key_padding_mask;        /* src_key_padding_mask, tgt_key_padding_mask */
    bool          is_causal;               /* of src, of tgt */
    gpunn_tensor *memory_mask;             /* decoder */
    gpunn_tensor *memory_key_padding_mask; /* decoder */
} gpunn_transformer_args;
/* torch.nn.TransformerEncoderLayer and TransformerDecoderLayer, with its names below name: self_attn, multihead_attn, linear1,
 * linear2, norm1 to norm3; and stacks of them: name.layers.0 ..., name.norm. */
GPUNN_API gpunn_tensor *gpunn_transformer_encoder_layer_(gpunn_tensor *src, const char *name, gpunn_transformer_args args);
GPUNN_API gpunn_tensor *gpunn_transformer_decoder_layer_(gpunn_tensor *tgt, gpunn_tensor *memory, const char *name,
                                                         gpunn_transformer_args args);
GPUNN_API gpunn_tensor *gpunn_transformer_encoder_(gpunn_tensor *src, const char *name, gpunn_transformer_args args);
GPUNN_API gpunn_tensor *gpunn_transformer_decoder_(gpunn_tensor *tgt, gpunn_tensor *memory, const char *name,
                                                   gpunn_transformer_args args);
#define gpunn_transformer_encoder_layer(src, ...) \
    gpunn_transformer_encoder_layer_((src), GPUNN_NAMED(gpunn_transformer_args, __VA_ARGS__))
#define gpunn_transformer_decoder_layer(tgt, memory, ...) \
    gpunn_transformer_decoder_layer_((tgt), (memory), GPUNN_NAMED(gpunn_transformer_args, __VA_ARGS__))
#define gpunn_transformer_encoder(src, ...) gpunn_transformer_encoder_((src), GPUNN_NAMED(gpunn_transformer_args, __VA_ARGS__))
#define gpunn_transformer_decoder(tgt, memory, ...) \
    gpunn_transformer_decoder_((tgt), (memory), GPUNN_NAMED(gpunn_transformer_args, __VA_ARGS__))

/* -- losses: a scalar, or the input's shape without reduction -- */
typedef enum gpunn_reduction {
    GPUNN_REDUCE_MEAN = 0,
    GPUNN_REDUCE_SUM,
    GPUNN_REDUCE_NONE,
    GPUNN_REDUCE_BATCHMEAN /* sum / batch: kl_div's mathematical mean */
} gpunn_reduction;

typedef struct gpunn_loss_args {
    int             args_;
    gpunn_reduction reduction;
    float           delta;        /* huber: 1 */
    float           beta;         /* smooth_l1: 1; GPUNN_ZERO makes it l1 */
    gpunn_tensor   *weight;       /* bce, bce_with_logits: factor of each element, broadcast */
    gpunn_tensor   *pos_weight;   /* bce_with_logits: factor of the positive part, broadcast */
    bool            log_target;   /* kl_div */
    bool            full;         /* gaussian_nll, poisson_nll: with the terms of the density that input is not in */
    float           eps;          /* gaussian_nll: what var is at least, 1e-6; poisson_nll: added within the logarithm, 1e-8 */
    bool            no_log_input; /* poisson_nll: input is the rate itself, not its logarithm */
} gpunn_loss_args;
/* input and target of one shape (no broadcasting: an error, not a surprise). mse: (x - t)^2. l1: |x - t|. bce: input in [0, 1],
 * log clamped at -100. kl_div: input holds log-probabilities. gaussian_nll: (log var + (x - t)^2 / var) / 2, where var broadcasts
 * to input; its gradient ignores that eps limits it, as torch's. poisson_nll: exp(x) - t x, or of a rate x - t log(x + eps). The
 * gradient goes to all operands. */
GPUNN_API gpunn_tensor *gpunn_mse_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_l1_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_huber_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_smooth_l1_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_bce_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_bce_with_logits_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_kl_div_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_gaussian_nll_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_tensor *var,
                                                 gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_poisson_nll_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
#define gpunn_mse_loss(input, ...) gpunn_mse_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_l1_loss(input, ...) gpunn_l1_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_huber_loss(input, ...) gpunn_huber_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_smooth_l1_loss(input, ...) gpunn_smooth_l1_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_bce_loss(input, ...) gpunn_bce_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_bce_with_logits(input, ...) gpunn_bce_with_logits_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_kl_div(input, ...) gpunn_kl_div_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_gaussian_nll_loss(input, target, ...) \
    gpunn_gaussian_nll_loss_((input), (target), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_poisson_nll_loss(input, ...) gpunn_poisson_nll_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))

typedef struct gpunn_ncc_args {
    int   args_;
    int   window; /* cells along each axis, odd; 0: one window, the whole image */
    float eps;    /* 1e-5 */
} gpunn_ncc_args;
/* Minus the normalised cross-correlation of images or volumes [n, c, ...] of one to three axes, for registration. With window 0
 * -mean of S(ab) / sqrt(S(aa) S(bb) + eps), S the sums over one channel of a sample, a and b input and target less their means.
 * Else its square around each cell, VoxelMorph's: -mean of S(ab)^2 / (S(aa) S(bb) + eps) with the sums and means of the window,
 * in which cells beside the image count as 0. */
GPUNN_API gpunn_tensor *gpunn_ncc_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_ncc_args args);
#define gpunn_ncc_loss(input, ...) gpunn_ncc_loss_((input), GPUNN_NAMED(gpunn_ncc_args, __VA_ARGS__))

typedef struct gpunn_class_loss_args {
    int             args_;
    gpunn_reduction reduction;
    int             ignore_index;    /* default -100; GPUNN_ZERO for 0 */
    float           label_smoothing; /* cross_entropy only */
    gpunn_tensor   *weight;          /* [classes] */
} gpunn_class_loss_args;
/* logits [n, classes, ...], labels I64, I32 or U8 [n, ...]; nll takes log-probabilities. A label outside 0 .. classes - 1 that is
 * not ignore_index changes no weight: on the CPU the run fails with GPUNN_ERR_ARGUMENT, on a GPU the loss is NaN. Where all
 * labels are ignored, the gradient is 0 as in torch, and the mean is -0 (torch: NaN), by which gpunn_fit and gpunn_evaluate
 * know the batch and leave it out of their means. */
GPUNN_API gpunn_tensor *gpunn_cross_entropy_(gpunn_tensor *logits, gpunn_tensor *labels, gpunn_class_loss_args args);
GPUNN_API gpunn_tensor *gpunn_nll_loss_(gpunn_tensor *log_probabilities, gpunn_tensor *labels, gpunn_class_loss_args args);
#define gpunn_cross_entropy(logits, ...) gpunn_cross_entropy_((logits), GPUNN_NAMED(gpunn_class_loss_args, __VA_ARGS__))
#define gpunn_nll_loss(log_probabilities, ...) \
    gpunn_nll_loss_((log_probabilities), GPUNN_NAMED(gpunn_class_loss_args, __VA_ARGS__))

typedef struct gpunn_margin_args {
    int             args_;
    gpunn_reduction reduction; /* MEAN, SUM or NONE */
    float           margin;    /* hinge_embedding, multi_margin, triplet: 1; margin_ranking, cosine_embedding: 0 */
    float           p;         /* triplet: of the norm, 2, INFINITY for the largest; multi_margin: 1 or 2, 1 */
    float           eps;       /* triplet: added to each difference, 1e-6 */
    bool            swap;      /* triplet: the nearer of anchor and positive counts for the negative */
    gpunn_tensor   *weight;    /* multi_margin: [classes] */
} gpunn_margin_args;
/* torch.nn's losses of these names. Targets are F32, 1 and -1. hinge_embedding: x and target of one shape; x where the target is
 * 1, max(0, margin - x) where it is -1. soft_margin: log(1 + exp(-target x)), of one shape. margin_ranking, all of one shape:
 * max(0, margin - target (x1 - x2)). multi_margin: x [n, classes], labels as cross_entropy's: the mean over all classes c of
 * max(0, margin - x[label] + x[c])^p but for c = label. triplet, all of one shape, over the last axis: max(0,
 * margin + |anchor - positive + eps| - |anchor - negative + eps|). cosine_embedding: x1 and x2 [n, features], target [n], or one
 * axis less: 1 - cosine where it is 1, max(0, cosine - margin) where it is -1. */
GPUNN_API gpunn_tensor *gpunn_hinge_embedding_loss_(gpunn_tensor *x, gpunn_tensor *target, gpunn_margin_args args);
GPUNN_API gpunn_tensor *gpunn_soft_margin_loss_(gpunn_tensor *x, gpunn_tensor *target, gpunn_margin_args args);
GPUNN_API gpunn_tensor *gpunn_margin_ranking_loss_(gpunn_tensor *x1, gpunn_tensor *x2, gpunn_tensor *target,
                                                   gpunn_margin_args args);
GPUNN_API gpunn_tensor *gpunn_multi_margin_loss_(gpunn_tensor *x, gpunn_tensor *labels, gpunn_margin_args args);
GPUNN_API gpunn_tensor *gpunn_triplet_margin_loss_(gpunn_tensor *anchor, gpunn_tensor *positive, gpunn_tensor *negative,
                                                   gpunn_margin_args args);
GPUNN_API gpunn_tensor *gpunn_cosine_embedding_loss_(gpunn_tensor *x1, gpunn_tensor *x2, gpunn_tensor *target,
                                                     gpunn_margin_args args);
#define gpunn_hinge_embedding_loss(x, ...) gpunn_hinge_embedding_loss_((x), GPUNN_NAMED(gpunn_margin_args, __VA_ARGS__))
#define gpunn_soft_margin_loss(x, ...) gpunn_soft_margin_loss_((x), GPUNN_NAMED(gpunn_margin_args, __VA_ARGS__))
#define gpunn_margin_ranking_loss(x1, x2, ...) gpunn_margin_ranking_loss_((x1), (x2), GPUNN_NAMED(gpunn_margin_args, __VA_ARGS__))
#define gpunn_multi_margin_loss(x, ...) gpunn_multi_margin_loss_((x), GPUNN_NAMED(gpunn_margin_args, __VA_ARGS__))
#define gpunn_triplet_margin_loss(anchor, positive, ...) \
    gpunn_triplet_margin_loss_((anchor), (positive), GPUNN_NAMED(gpunn_margin_args, __VA_ARGS__))
#define gpunn_cosine_embedding_loss(x1, x2, ...) \
    gpunn_cosine_embedding_loss_((x1), (x2), GPUNN_NAMED(gpunn_margin_args, __VA_ARGS__))
/* sum x1 x2 / (max(|x1|, eps) max(|x2|, eps)) along an axis of one size in both; the others broadcast. eps 0: 1e-8. */
GPUNN_API gpunn_tensor *gpunn_cosine_similarity(gpunn_tensor *x1, gpunn_tensor *x2, int axis, float eps);

typedef struct gpunn_dice_args {
    int             args_;
    gpunn_reduction reduction; /* MEAN, SUM or NONE */
    float           smooth;    /* 1e-5; GPUNN_ZERO: 0 / 0 where neither has anything of a class */
    bool            squared;   /* x^2 and target^2 in the denominator */
    bool            batch;     /* all samples of the batch are one */
} gpunn_dice_args;
/* Soft Dice, MONAI's: 1 - (2 sum x target + smooth) / (sum x + sum target + smooth) for each sample and class, summed over the
 * axes that follow. x: probabilities (gpunn_sigmoid, gpunn_softmax), target of its shape, [n, classes, ...] (one class: binary).
 * NONE: [n, classes], with batch [classes]. */
GPUNN_API gpunn_tensor *gpunn_dice_loss_(gpunn_tensor *x, gpunn_tensor *target, gpunn_dice_args args);
#define gpunn_dice_loss(x, ...) gpunn_dice_loss_((x), GPUNN_NAMED(gpunn_dice_args, __VA_ARGS__))

typedef struct gpunn_ctc_args {
    int             args_;
    gpunn_reduction reduction;     /* MEAN: of each loss / target length; SUM; NONE: [n] */
    int             blank;         /* the class of no label, 0 */
    bool            zero_infinity; /* a target that does not fit its input's length costs 0 instead of infinity */
    bool            batch_first;   /* log_probabilities [n, t, classes] instead of [t, n, classes] */
} gpunn_ctc_args;
/* torch.nn.CTCLoss. log_probabilities [t, n, classes] (gpunn_log_softmax); targets [n, most] with any labels behind a target's
 * end; input_lengths and target_lengths [n]; these three I64 or I32. The gradient is that of the formula: torch's own has exp(log
 * probability) added, which log_softmax's backward takes away again. A length or label out of range: as cross_entropy's. */
GPUNN_API gpunn_tensor *gpunn_ctc_loss_(gpunn_tensor *log_probabilities, gpunn_tensor *targets, gpunn_tensor *input_lengths,
                                        gpunn_tensor *target_lengths, gpunn_ctc_args args);
#define gpunn_ctc_loss(log_probabilities, targets, input_lengths, ...) \
    gpunn_ctc_loss_((log_probabilities), (targets), (input_lengths), GPUNN_NAMED(gpunn_ctc_args, __VA_ARGS__))

/* -- an op of your own -- */
#define GPUNN_CUSTOM_INPUTS 16
#define GPUNN_CUSTOM_NUMBERS 8
typedef struct gpunn_value gpunn_value; /* >>backend: data, dtype, rank, dim, count */
/* What its functions get: memory of the device, contiguous and row-major, F32 where the operand is. */
typedef struct gpunn_custom_call {
    const gpunn_value *in, *out; /* operands, result: forward writes out->data; backward may read all of them */
    const gpunn_value *grad_out; /* backward: the gradient of the result, and, one an operand, ... */
    const gpunn_value *grad_in;  /* ... where each operand's goes: write it (=, all of it); data NULL: not wanted */
    int                input_count;
    const float       *numbers;   /* as given to gpunn_custom */
    void              *user;      /* the op's */
    void              *workspace; /* as many bytes as the op asked for; aligned to 64 */
    int                threads;   /* CPU: how many to use */
    void              *stream;    /* CUDA: the cudaStream_t to launch on. Only launch: the call is captured and replayed */
} gpunn_custom_call;
/* For CPU functions of gpunn_custom: task(arg, index, threads) for each index below `threads`, on the device's threads at once;
 * returns when all have. There may be fewer threads than asked for: a task splits its work by what it is told. A task that calls
 * this itself, or a caller outside of such a function, is the only thread. */
GPUNN_API void gpunn_parallel(int threads, void (*task)(void *arg, int index, int threads), void *arg);
/* 0: done. Otherwise, on CUDA, a cudaError_t; elsewhere any number. */
typedef int (*gpunn_custom_function)(const gpunn_custom_call *call);
typedef struct gpunn_custom_op {
    const char *name; /* in messages and specs: letters, digits, '_', '.', '-' */
    int         inputs;
    /* The result's shape from the operands' (GPUNN_BATCH where the batch is); false: they do not fit. NULL: the first one's. */
    bool (*shape)(const gpunn_shape *inputs, const float *numbers, gpunn_shape *result);
    gpunn_custom_function forward, backward;                           /* on the CPU; backward NULL: there are no gradients */
    gpunn_custom_function cuda_forward, cuda_backward;                 /* on a GPU; NULL: planning the op there is an error */
    unsigned              no_gradient;                                 /* bit i: operand i has none */
    size_t (*workspace)(const gpunn_custom_call *call, bool backward); /* bytes; data is not there yet. NULL: none */
    void *user;
} gpunn_custom_op;
typedef struct gpunn_custom_args {
    int   args_;
    float numbers[GPUNN_CUSTOM_NUMBERS]; /* settings of this use of the op */
} gpunn_custom_args;
/* op must outlive the model. Operands of any dtype; the result is F32. Training keeps operands and result for backward. */
GPUNN_API gpunn_tensor *gpunn_custom_(const gpunn_custom_op *op, gpunn_tensor *const *inputs, gpunn_custom_args args);
#define gpunn_custom(op, ...) gpunn_custom_((op), GPUNN_NAMED(gpunn_custom_args, __VA_ARGS__))
/* Lets gpunn_spec_load find the op by its name; it must outlive the device. gpunn_find_custom: NULL where there is none. */
GPUNN_API gpunn_status           gpunn_register_custom(gpunn_device *dev, const gpunn_custom_op *op);
GPUNN_API const gpunn_custom_op *gpunn_find_custom(const gpunn_device *dev, const char *name);

/* -- derivatives: gradients as nodes, to stand in a loss or be differentiated again -- */
typedef struct gpunn_grad_args {
    int           args_;
    gpunn_tensor *grad_output; /* the gradient of y, of its shape; NULL: ones, which makes it that of y's sum */
} gpunn_grad_args;
/* torch.autograd.grad(y, x, create_graph=True): the gradient of y by x, an input, a parameter or a value between, F32 and of x's
 * shape. Zeros where y does not depend on x. It goes through the elementwise ops, linear, matmul, einsum, convolutions and
 * transposed ones, sum, mean, max, cumsum, softmax, log_softmax, cross_entropy, nll_loss, layer_norm, rms_norm, group_norm,
 * instance_norm, reshape, expand, permute, concat, slice, pad with a constant, gather, scatter_add, scatter, embedding, and all
 * that is made of these, to any order; another op between x and y is GPUNN_ERR_UNSUPPORTED, with its name. Each call adds nodes:
 * make it while building, not at each step. */
GPUNN_API gpunn_tensor *gpunn_grad_(gpunn_tensor *y, gpunn_tensor *x, gpunn_grad_args args);
#define gpunn_grad(y, ...) gpunn_grad_((y), GPUNN_NAMED(gpunn_grad_args, __VA_ARGS__))
/* The same by `count` inputs at once, into gradients, which after a failure are NULL. */
GPUNN_API gpunn_status gpunn_grads_(gpunn_tensor *y, gpunn_tensor *const *inputs, int count, gpunn_tensor **gradients,
                                    gpunn_grad_args args);
#define gpunn_grads(y, inputs, count, ...) gpunn_grads_((y), (inputs), (count), GPUNN_NAMED(gpunn_grad_args, __VA_ARGS__))
/* torch.func.jvp's derivative of y along v, of x's shape: the Jacobian times v, of y's shape, zeros where y does not depend on x.
 * Forward mode: v is carried from x to y, op by op. Ops and errors as of gpunn_grad. */
GPUNN_API gpunn_tensor *gpunn_jvp(gpunn_tensor *y, gpunn_tensor *x, gpunn_tensor *v);
/* The Hessian of y's sum by x times v, of x's shape: gpunn_jvp of gpunn_grad. */
GPUNN_API gpunn_tensor *gpunn_hvp(gpunn_tensor *y, gpunn_tensor *x, gpunn_tensor *v);
typedef struct gpunn_laplacian_args {
    int            args_;
    int            coordinates; /* by the first so many, such as those of space before time; 0: by all */
    gpunn_tensor **gradient;    /* receives gpunn_grad(y, x), which is made on the way; NULL: not wanted */
} gpunn_laplacian_args;
/* The sum of the second derivatives of y, each by one of x's coordinates: x [n, d], y [n, 1] or [n], where sample i of y depends
 * on row i of x alone -> [n, 1]. Ops and errors as of gpunn_grad; other shapes are GPUNN_ERR_SHAPE. */
GPUNN_API gpunn_tensor *gpunn_laplacian_(gpunn_tensor *y, gpunn_tensor *x, gpunn_laplacian_args args);
#define gpunn_laplacian(y, ...) gpunn_laplacian_((y), GPUNN_NAMED(gpunn_laplacian_args, __VA_ARGS__))

/* -- metrics: scalars without gradient -- */
GPUNN_API gpunn_tensor *gpunn_accuracy(gpunn_tensor *logits,
                                       gpunn_tensor *labels); /* share of rows [n, classes] argmax gets right */
GPUNN_API gpunn_tensor *gpunn_binary_accuracy(gpunn_tensor *prob,
                                              gpunn_tensor *target); /* share with (prob > 0.5) == (target > 0.5) */
/* The share of samples whose label is among the k largest logits; shapes as of gpunn_accuracy. */
GPUNN_API gpunn_tensor *gpunn_top_k_accuracy(gpunn_tensor *logits, gpunn_tensor *labels, int k);

#endif /* GPUNN__API_BUILDERS_H */
