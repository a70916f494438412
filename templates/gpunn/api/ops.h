#ifndef GPUNN__API_OPS_H
#define GPUNN__API_OPS_H
#include "api/model.h"

/* ==== >>ops ============================================================================================== *
 * The table of all elementwise ops. To add one, add a line here. Enum, name, builder, gpunn_expr, CPU loops,
 * CUDA kernels, fused kernels and tests follow from it.
 *
 * Columns: enum GPUNN_OP_*, name (torch's), attributes with their defaults, forward, then the derivative for
 * each operand. Forward reads the operands (x, or a, b, c) and the attributes. A derivative may also read y,
 * the result, and g, the gradient of y. A derivative that is just 0 means no gradient. K(0.0) is a gradient:
 * a parameter behind it gets zeros, and weight decay, as in PyTorch. Training keeps in memory what the
 * derivatives mention. Prefer y to x where it is as exact, since y is often kept anyway and x may then be
 * overwritten.
 *
 * The language is valid C and valid Python. It has only + - * /, comparisons, numbers (K(0.5) if not an
 * integer) and calls of
 *     where(condition, then, else) min max abs sign floor exp expm1 log log1p sqrt tanh erf sigmoid sin cos
 *     pow floordiv exp2 log2 log10 sinh cosh atan2 hypot fmod remainder.
 * min and max propagate NaN; sign(0) is 0. floordiv is Python's //, of the exact quotient, and remainder is
 * Python's %. Kinks and NaN behave as in PyTorch: write comparisons so that NaN takes its branch. */
/* >>ops begin */
/* clang-format off */
/* X(ENUM, name, forward, derivative) */
#define GPUNN_UNARY_OPS(X)                                                                             \
    X(RELU, relu, where(x <= 0, 0, x), where(y <= 0, 0, g))                                            \
    X(RELU6, relu6, where(x < 0, 0, where(x > 6, 6, x)), where(y <= 0, 0, where(y >= 6, 0, g)))        \
    X(SIGMOID, sigmoid, sigmoid(x), g * (1 - y) * y)                                                   \
    X(TANH, tanh, tanh(x), g * (1 - y * y))                                                            \
    X(SILU, silu, x * sigmoid(x), g * sigmoid(x) * (1 + x * (1 - sigmoid(x))))                         \
    X(MISH, mish, x * tanh(log1p(exp(x))),                                                             \
      g * (tanh(log1p(exp(x))) + x * sigmoid(x) * (1 - tanh(log1p(exp(x))) * tanh(log1p(exp(x))))))    \
    X(GELU, gelu, K(0.5) * x * (1 + erf(K(0.70710678) * x)),                                           \
      g * (K(0.5) * (1 + erf(K(0.70710678) * x)) + x * K(0.39894228) * exp(-K(0.5) * x * x)))          \
    X(GELU_TANH, gelu_tanh, K(0.5) * x * (1 + tanh(K(0.7978846) * (x + K(0.044715) * x * x * x))),     \
      g * (K(0.5) * (1 + tanh(K(0.7978846) * (x + K(0.044715) * x * x * x))) + K(0.5) *                \
        (1 + tanh(K(0.7978846) * (x + K(0.044715) * x * x * x))) *                                     \
        (1 - tanh(K(0.7978846) * (x + K(0.044715) * x * x * x))) *                                     \
        x * K(0.7978846) * (1 + K(0.134145) * x * x)))                                                 \
    X(SOFTSIGN, softsign, x / (1 + abs(x)), g / ((1 + abs(x)) * (1 + abs(x))))                         \
    X(LOGSIGMOID, logsigmoid, min(x, 0) - log1p(exp(-abs(x))), g * sigmoid(-x))                        \
    X(HARDSIGMOID, hardsigmoid, min(max(x + 3, 0), 6) / 6, where(abs(x) < 3, g / 6, 0))                \
    X(HARDSWISH, hardswish, x * min(max(x + 3, 0), 6) / 6, where(x <= -3, 0,                           \
      where(x >= 3, g, g * (x / 3 + K(0.5)))))                                                         \
    X(SELU, selu, K(1.050701) * where(x > 0, x, K(1.6732632) * expm1(x)),                              \
      g * where(x <= 0, K(1.7580993) * exp(x), K(1.050701)))                                           \
    X(ABS, abs, abs(x), g * sign(x))                                                                   \
    X(NEG, neg, -x, -g)                                                                                \
    X(SIGN, sign, sign(x), K(0.0))                                                                     \
    X(FLOOR, floor, floor(x), K(0.0))                                                                  \
    X(DETACH, detach, x, 0)                                                                            \
    X(EXP, exp, exp(x), g * y)                                                                         \
    X(EXPM1, expm1, expm1(x), g * (y + 1))                                                             \
    X(LOG, log, log(x), g / x)                                                                         \
    X(LOG1P, log1p, log1p(x), g / (x + 1))                                                             \
    X(SQRT, sqrt, sqrt(x), g / (2 * y))                                                                \
    X(RSQRT, rsqrt, 1 / sqrt(x), -K(0.5) * g * y * y * y)                                              \
    X(RECIPROCAL, reciprocal, 1 / x, -g * y * y)                                                       \
    X(SQUARE, square, x * x, 2 * g * x)                                                                \
    X(ERF, erf, erf(x), g * K(1.1283792) * exp(-x * x))                                                \
    X(SIN, sin, sin(x), g * cos(x))                                                                    \
    X(COS, cos, cos(x), -g * sin(x))                                                                   \
    X(EXP2, exp2, exp2(x), g * y * K(0.6931472))                                                       \
    X(LOG2, log2, log2(x), g * K(1.442695) / x)                                                        \
    X(LOG10, log10, log10(x), g * K(0.43429448) / x)                                                   \
    X(SINH, sinh, sinh(x), g * cosh(x))                                                                \
    X(COSH, cosh, cosh(x), g * sinh(x))                                                                \
    X(ASIN, asin, atan2(x, sqrt((1 - x) * (1 + x))), g / sqrt((1 - x) * (1 + x)))                      \
    X(ACOS, acos, atan2(sqrt((1 - x) * (1 + x)), x), -g / sqrt((1 - x) * (1 + x)))                     \
    X(ATAN, atan, atan2(x, 1), g / (x * x + 1))                                                        \
    X(ASINH, asinh,                                                                                    \
      where(abs(x) < K(3e-4), x, sign(x) * (where(abs(x) > 4096, K(0.6931472), 0) +                    \
            log1p(where(abs(x) > 4096, abs(x) - 1, abs(x) + x * x / (1 + sqrt(x * x + 1)))))),         \
      where(abs(x) > K(1e9), g / abs(x), g / sqrt(x * x + 1)))                                         \
    X(ACOSH, acosh,                                                                                    \
      where(x > 4096, K(0.6931472), 0) + log1p(x - 1 + where(x > 4096, 0, sqrt(x - 1) * sqrt(x + 1))), \
      where(abs(x) > K(1e9), g / abs(x), g / sqrt((x - 1) * (x + 1))))                                 \
    X(ATANH, atanh, K(0.5) * (log1p(x) - log1p(-x)), g / ((1 - x) * (1 + x)))
/* X(ENUM, name, attribute, default, forward, derivative) */
#define GPUNN_UNARY1_OPS(X)                                                                                  \
    X(LEAKY_RELU, leaky_relu, negative_slope, K(0.01), where(x > 0, x, x * negative_slope),                  \
      where(x > 0, g, g * negative_slope))                                                                   \
    X(ELU, elu, alpha, 1, where(x > 0, x, alpha * expm1(x)), where(x <= 0, g * alpha * exp(x), g))           \
    X(CELU, celu, alpha, 1, where(x > 0, x, alpha * expm1(x / alpha)), where(x <= 0, g * exp(x / alpha), g)) \
    X(HARDSHRINK, hardshrink, lambd, K(0.5), where(abs(x) <= lambd, 0, x), where(abs(x) <= lambd, 0, g))     \
    X(ADD_SCALAR, add_scalar, value, 0, x + value, g)                                                        \
    X(MUL_SCALAR, mul_scalar, value, 1, x * value, g * value)                                                \
    X(POW_SCALAR, pow_scalar, exponent, 1, pow(x, exponent), where(exponent == 0, 0,                         \
      g * exponent * pow(x, exponent - 1)))
/* X(ENUM, name, attribute 1, default 1, attribute 2, default 2, forward, derivative) */
#define GPUNN_UNARY2_OPS(X)                                                      \
    X(HARDTANH, hardtanh, min_val, -1, max_val, 1, where(x < min_val, min_val,   \
      where(x > max_val, max_val, x)),                                           \
      where(y <= min_val, 0, where(y >= max_val, 0, g)))                         \
    X(CLAMP, clamp, min, -INFINITY, max, INFINITY, min(max(x, min), max),        \
      where(x > min, where(x < max, g, where(max > K(3.4028235e38), g, 0)),      \
            where(min < -K(3.4028235e38), where(x < max, g, 0), 0)))             \
    X(SOFTPLUS, softplus, beta, 1, threshold, 20, where(x * beta > threshold, x, \
      log1p(exp(x * beta)) / beta),                                              \
      where(x * beta > threshold, g, g * sigmoid(x * beta)))
/* X(ENUM, name, forward, da, db) */
#define GPUNN_BINARY_OPS(X)                                                                       \
    X(ADD, add, a + b, g, g)                                                                      \
    X(SUB, sub, a - b, g, -g)                                                                     \
    X(MUL, mul, a * b, g * b, g * a)                                                              \
    X(DIV, div, a / b, g / b, -g * (y / b))                                                       \
    X(FLOOR_DIVIDE, floor_divide, floordiv(a, b), 0, 0)                                           \
    X(POW, pow, pow(a, b), where(b == 0, 0, g * b * pow(a, b - 1)),                               \
      g * y * log(where(a == 0, where(b >= 0, 1, 0), a)))                                         \
    X(MAXIMUM, maximum, max(a, b), where(a == b, g / 2, where(a < b, 0, g)),                      \
      where(a == b, g / 2, where(a > b, 0, g)))                                                   \
    X(MINIMUM, minimum, min(a, b), where(a == b, g / 2, where(a > b, 0, g)),                      \
      where(a == b, g / 2, where(a < b, 0, g)))                                                   \
    X(EQ, eq, where(a == b, 1, 0), 0, 0)                                                          \
    X(NE, ne, where(a != b, 1, 0), 0, 0)                                                          \
    X(LT, lt, where(a < b, 1, 0), 0, 0)                                                           \
    X(LE, le, where(a <= b, 1, 0), 0, 0)                                                          \
    X(GT, gt, where(a > b, 1, 0), 0, 0)                                                           \
    X(GE, ge, where(a >= b, 1, 0), 0, 0)                                                          \
    X(PARAMETRIC_RELU, parametric_relu, where(a > 0, a, a * b), where(a > 0, g, g * b),           \
      where(a > 0, 0, g * a))                                                                     \
    X(ATAN2, atan2, atan2(a, b), where(hypot(a, b) == 0, 0, g * (b / hypot(a, b)) / hypot(a, b)), \
      where(hypot(a, b) == 0, 0, -g * (a / hypot(a, b)) / hypot(a, b)))                           \
    X(HYPOT, hypot, hypot(a, b), g * (a / y), g * (b / y))                                        \
    X(LOGADDEXP, logaddexp, where(a > b, a, b) + log1p(exp(where(a == b, 0, -abs(a - b)))),       \
      g / (1 + exp(b - a)), g / (1 + exp(a - b)))                                                 \
    X(FMOD, fmod, fmod(a, b), g, -g * sign(a / b) * floor(abs(a / b)))                            \
    X(REMAINDER, remainder, remainder(a, b), g, -g * floordiv(a, b))
/* The same for the terms of losses, which gpunn_expr and specs also know. The loss builders reduce them. */
#define GPUNN_LOSS_OPS(X)                                                                                 \
    X(SQUARED_ERROR, squared_error, (a - b) * (a - b), 2 * g * (a - b), 2 * g * (b - a))                  \
    X(ABSOLUTE_ERROR, absolute_error, abs(a - b), g * sign(a - b), g * sign(b - a))                       \
    X(BINARY_CROSS_ENTROPY, binary_cross_entropy, (b - 1) * max(log1p(-a), -100) - b * max(log(a), -100), \
      g * (a - b) / max((1 - a) * a, K(1e-12)), g * (log1p(-a) - log(a)))                                 \
    X(BINARY_CROSS_ENTROPY_WITH_LOGITS, binary_cross_entropy_with_logits,                                 \
      (1 - b) * max(a, 0) - b * min(a, 0) + log1p(exp(-abs(a))), g * (sigmoid(a) - b), -g * a)            \
    X(KL_DIVERGENCE, kl_divergence, where(b == 0, 0, b * log(b)) - b * a, -g * b, g * (log(b) + 1 - a))   \
    X(KL_DIVERGENCE_LOG, kl_divergence_log, exp(b) * (b - a), -g * exp(b), g * (y + exp(b)))
/* X(ENUM, name, attribute, default, forward, da, db) */
#define GPUNN_LOSS1_OPS(X)                                                                     \
    X(HUBER, huber, delta, 1, where(abs(a - b) < delta, K(0.5) * (a - b) * (a - b),            \
      delta * (abs(a - b) - K(0.5) * delta)),                                                  \
      where(abs(a - b) >= delta, g * delta * sign(a - b), g * (a - b)),                        \
      where(abs(a - b) >= delta, g * delta * sign(b - a), g * (b - a)))                        \
    X(SMOOTH_L1, smooth_l1, beta, 1,                                                           \
      where(abs(a - b) < beta, K(0.5) * (a - b) * (a - b) / beta, abs(a - b) - K(0.5) * beta), \
      where(abs(a - b) >= beta, g * sign(a - b), g * (a - b) / beta),                          \
      where(abs(a - b) >= beta, g * sign(b - a), g * (b - a) / beta))
/* X(ENUM, name, forward, da, db, dc) */
#define GPUNN_TERNARY_OPS(X)                                           \
    X(WHERE, where, where(a, b, c), 0, where(a, g, 0), where(a, 0, g))
#define GPUNN__ELEMENTWISE_OPS(X)                                                  \
    GPUNN_UNARY_OPS(X) GPUNN_UNARY1_OPS(X) GPUNN_UNARY2_OPS(X) GPUNN_BINARY_OPS(X) \
    GPUNN_LOSS_OPS(X) GPUNN_LOSS1_OPS(X) GPUNN_TERNARY_OPS(X)
/* clang-format on */
/* >>ops end */

/* clang-format off */
/* Ops that are not elementwise, with kernels gpunn__cpu_NAME and gpunn__cuda_NAME. Their attributes are in
 * gpunn_attributes (>>backend); gpunn_step says which operands may be missing.
 *
 * S(X, ENUM, name, operand count, operand names, operands that the backward pass reads (bit i: operand i),
 * whether it reads the result, operands that have a gradient (bit i; -1: all), traits (>>common/traits),
 * signature of shapes and dtypes (>>graph/infer), keys and struct of the arguments (>>graph/arguments), form,
 * about): ops whose builder follows from their row. form: ARGS for gpunn_name_(operands, args), AXIS for
 * gpunn_name(operands, axis). The attributes are the keys that a node's text has, flags or of 4 bytes. */
#define GPUNN_SIGNATURE_OPS(S, X)                                                                          \
    S(X, SOFTMAX, softmax, 1, (x), 0, 1, 1, 0, "f32 [..., n, ...] -> f32 [..., n, ...]", AXIS, _plain,     \
      AXIS, "torch.softmax.")                                                                              \
    S(X, LOG_SOFTMAX, log_softmax, 1, (x), 0, 1, 1, GPUNN__KEEPS_F32,                                      \
      "f32 [..., n, ...] -> f32 [..., n, ...]", AXIS, _plain, AXIS, "torch.log_softmax.")                  \
    S(X, LOGCUMSUMEXP, logcumsumexp, 1, (x), 1, 1, 1, GPUNN__KEEPS_F32,                                    \
      "f32 [..., n, ...] -> f32 [..., n, ...]", AXIS, _plain, AXIS, "torch.logcumsumexp.")                 \
    S(X, CROSS, cross, 2, (a, b), 3, 0, 3, 0, "f32 [..., 3, ...], f32 [..., 3, ...] -> f32 [..., 3, ...]", \
      AXIS, _plain, AXIS, "a x b of the 3 elements along an axis; torch.linalg.cross.")                    \
    S(X, SEARCHSORTED, searchsorted, 2, (sorted_sequence, values), 0, 0, 0, 0,                             \
      "any [..., n], any [..., m] -> i64 [..., m]", SEARCHSORTED, searchsorted, ARGS,                      \
      "How many elements of a sorted sequence come before each value; torch.searchsorted.")              \
    S(X, QUANTIZE, quantize_per_tensor, 1, (x), 0, 0, 0, GPUNN__LOCAL | GPUNN__INTEGER,                    \
      "f32 [...] -> u8 [...]", QUANTIZE, quantize, ARGS, "torch.quantize_per_tensor, in 8 bits.")          \
    S(X, DEQUANTIZE, dequantize, 1, (x), 0, 0, 0, GPUNN__LOCAL | GPUNN__INTEGER | GPUNN__KEEPS_F32,        \
      "u8 [...] -> f32 [...]", QUANTIZE, quantize, ARGS, "(x - zero_point) scale; torch.dequantize.")      \
    S(X, QUANTIZED_ADD, quantized_add, 2, (a, b), 0, 0, 0, GPUNN__LOCAL | GPUNN__INTEGER,                  \
      "u8 [...], u8 [...] -> u8 [...]", QUANTIZED_ADD, quantized_add, ARGS,                                \
      "The sum of two quantised tensors; torch.ops.quantized.add.")                                        \
    S(X, QUANTIZED_LINEAR, quantized_linear, 4, (x, weight, weight_scale, bias), 0, 0, 0, GPUNN__INTEGER,  \
      "u8 [..., in], f32 [out, in], f32 [out], f32 [out] -> u8 [..., out]", QUANTIZED_LINEAR,              \
      quantized_linear, ARGS, "A linear layer of 8-bit numbers; torch.ops.quantized.linear.")              \
    S(X, QUANTIZED_LINEAR_DYNAMIC, quantized_linear_dynamic, 4, (x, weight, weight_scale, bias), 0, 0, 0,  \
      GPUNN__INTEGER | GPUNN__KEEPS_F32,                                                                   \
      "f32 [..., in], f32 [out, in], f32 [out], f32 [out] -> f32 [..., out]", NO, _plain, PLAIN,           \
      "The same of floats, which each run rounds to 8 bits; torch.ops.quantized.linear_dynamic.")
#define GPUNN__SIGNATURE_OP(X, ENUM, name, count, operands, reads, reads_out, backward, traits, signature, \
                            ...)                                                                           \
    X(ENUM, name, operands, reads, reads_out, backward, traits, GPUNN__SIGNATURE(signature))

/* X(ENUM, name, operand names, reads, reads the result, gradients, traits, rule): all these ops. The rule of
 * the result's shape is a function, GPUNN__RULE, or a signature. The last two, RELAYOUT and FUSION, occur
 * only in plans: RELAYOUT for filters of convolutions, FUSION for fused kernels. */
#define GPUNN_OTHER_OPS(X)                                                                                  \
    GPUNN_SIGNATURE_OPS(GPUNN__SIGNATURE_OP, X)                                                             \
    X(LINEAR, linear, (x, weight, bias), 3, 0, 7, GPUNN__PRODUCT, GPUNN__RULE(linear))                      \
    X(MATMUL, matmul, (a, b), 3, 0, 3, GPUNN__PRODUCT, GPUNN__RULE(matmul))                                 \
    X(CONV1D, conv1d, (x, weight, bias), 3, 0, 7, GPUNN__CONVOLUTION, GPUNN__RULE(conv))                    \
    X(CONV2D, conv2d, (x, weight, bias), 3, 0, 7, GPUNN__CONVOLUTION, GPUNN__RULE(conv))                    \
    X(CONV3D, conv3d, (x, weight, bias), 3, 0, 7, GPUNN__CONVOLUTION, GPUNN__RULE(conv))                    \
    X(CONV_TRANSPOSE1D, conv_transpose1d, (x, weight, bias), 3, 0, 7, GPUNN__TRANSPOSED,                    \
      GPUNN__RULE(conv_transpose))                                                                          \
    X(CONV_TRANSPOSE2D, conv_transpose2d, (x, weight, bias), 3, 0, 7, GPUNN__TRANSPOSED,                    \
      GPUNN__RULE(conv_transpose))                                                                          \
    X(CONV_TRANSPOSE3D, conv_transpose3d, (x, weight, bias), 3, 0, 7, GPUNN__TRANSPOSED,                    \
      GPUNN__RULE(conv_transpose))                                                                          \
    X(QUANTIZED_CONV2D, quantized_conv2d, (x, weight, weight_scale, bias), 0, 0, 0, GPUNN__INTEGER,         \
      GPUNN__RULE(quantized_conv))                                                                          \
    X(MAX_POOL2D, max_pool2d, (x), 0, 0, 1, GPUNN__MAX_POOL, GPUNN__RULE(window))                           \
    X(MAX_POOL3D, max_pool3d, (x), 0, 0, 1, GPUNN__MAX_POOL, GPUNN__RULE(window))                           \
    X(AVG_POOL2D, avg_pool2d, (x), 0, 0, 1, GPUNN__POOL, GPUNN__RULE(window))                               \
    X(AVG_POOL3D, avg_pool3d, (x), 0, 0, 1, GPUNN__POOL, GPUNN__RULE(window))                               \
    X(ADAPTIVE_MAX_POOL2D, adaptive_max_pool2d, (x), 0, 0, 1, GPUNN__MAX_POOL | GPUNN__ADAPTIVE_POOL,       \
      GPUNN__RULE(resize))                                                                                  \
    X(ADAPTIVE_MAX_POOL3D, adaptive_max_pool3d, (x), 0, 0, 1, GPUNN__MAX_POOL | GPUNN__ADAPTIVE_POOL,       \
      GPUNN__RULE(resize))                                                                                  \
    X(ADAPTIVE_AVG_POOL2D, adaptive_avg_pool2d, (x), 0, 0, 1, GPUNN__ADAPTIVE_POOL, GPUNN__RULE(resize))    \
    X(ADAPTIVE_AVG_POOL3D, adaptive_avg_pool3d, (x), 0, 0, 1, GPUNN__ADAPTIVE_POOL, GPUNN__RULE(resize))    \
    X(GRID_SAMPLE, grid_sample, (x, grid), 3, 0, 3, 0, GPUNN__RULE(grid_sample))                            \
    X(ROI_ALIGN, roi_align, (x, boxes), 2, 0, 1, 0, GPUNN__RULE(roi_align))                                 \
    X(AFFINE_GRID, affine_grid, (theta), 0, 0, 1, GPUNN__KEEPS_F32, GPUNN__RULE(affine_grid))               \
    X(HASH_GRID, hash_grid_encoding, (x, weight), 3, 0, 3, GPUNN__KEEPS_F32, GPUNN__RULE(hash_grid))        \
    X(INTERPOLATE, interpolate, (x), 0, 0, 1, 0, GPUNN__RULE(resize))                                       \
    X(BATCH_NORM, batch_norm, (x, weight, bias, running_mean, running_var), 3, 0, 7,                        \
      GPUNN__LOCAL | GPUNN__SAVES, GPUNN__RULE(norm))                                                       \
    X(RNN, rnn, (x, lengths, h_0, c_0, reset, weight_ih, weight_hh, bias_ih, bias_hh), 8191, 1, 8173,       \
      GPUNN__RECURRENT, GPUNN__RULE(recurrent))                                                             \
    X(LSTM, lstm, (x, lengths, h_0, c_0, reset, weight_ih, weight_hh, bias_ih, bias_hh), 8191, 1, 8173,     \
      GPUNN__RECURRENT, GPUNN__RULE(recurrent))                                                             \
    X(GRU, gru, (x, lengths, h_0, c_0, reset, weight_ih, weight_hh, bias_ih, bias_hh), 8191, 1, 8173,       \
      GPUNN__RECURRENT, GPUNN__RULE(recurrent))                                                             \
    X(LAYER_NORM, layer_norm, (x, weight, bias), 3, 0, 7, GPUNN__ROW_NORM, GPUNN__RULE(norm))               \
    X(RMS_NORM, rms_norm, (x, weight), 3, 0, 3, GPUNN__ROW_NORM, GPUNN__RULE(norm))                         \
    X(GROUP_NORM, group_norm, (x, weight, bias), 3, 0, 7, GPUNN__SAVES, GPUNN__RULE(group_norm))            \
    X(INSTANCE_NORM, instance_norm, (x, weight, bias, running_mean, running_var), 3, 0, 7, GPUNN__SAVES,    \
      GPUNN__RULE(norm))                                                                                    \
    X(EMBEDDING, embedding, (tokens, weight), 1, 0, 2, 0,                                                   \
      GPUNN__SIGNATURE("index [...], f32 [rows, columns] -> f32 [..., columns]"))                           \
    X(DROPOUT, dropout, (x), 0, 0, 1, 0, GPUNN__SIGNATURE("f32 [...] -> f32 [...]"))                        \
    X(RAND_LIKE, rand_like, (x), 0, 0, 0, GPUNN__KEEPS_F32, GPUNN__SIGNATURE("f32 [...] -> f32 [...]"))     \
    X(RANDN_LIKE, randn_like, (x), 0, 0, 0, GPUNN__KEEPS_F32, GPUNN__SIGNATURE("f32 [...] -> f32 [...]"))   \
    X(PERMUTE, permute, (x), 0, 0, 1, 0, GPUNN__RULE(permute))                                              \
    X(CONCAT, concat, (tensors), 0, 0, -1, 0, GPUNN__RULE(concat))                                          \
    X(SLICE, slice, (x), 0, 0, 1, 0, GPUNN__RULE(slice))                                                    \
    X(PAD, pad, (x), 0, 0, 1, 0, GPUNN__RULE(pad))                                                          \
    X(EXPAND, expand, (x), 0, 0, 1, 0, GPUNN__RULE(expand))                                                 \
    X(GATHER, gather, (x, index), 2, 0, 1, 0, GPUNN__RULE(gather))                                          \
    X(SCATTER_ADD, scatter_add, (x, index, src), 2, 0, 5, 0,                                                \
      GPUNN__SIGNATURE("f32 [..., n, ...], index [..., m, ...], f32 [..., m, ...] -> f32 [..., n, ...]"))   \
    X(SCATTER, scatter, (x, index, src), 2, 0, 5, 0,                                                        \
      GPUNN__SIGNATURE("any [..., n, ...], index [..., m, ...], any [..., m, ...] -> any [..., n, ...]"))   \
    X(SUM, sum, (x), 0, 0, 1, GPUNN__KEEPS_F32, GPUNN__RULE(reduce))                                        \
    X(GRADIENT_ENERGY, gradient_energy, (x), 1, 0, 1, GPUNN__KEEPS_F32,                                     \
      GPUNN__SIGNATURE("f32 [...] -> f32 []"))                                                              \
    X(MAX, max, (x), 1, 1, 1, 0, GPUNN__RULE(reduce))                                                       \
    X(CUMSUM, cumsum, (x), 0, 0, 1, GPUNN__KEEPS_F32,                                                       \
      GPUNN__SIGNATURE("f32 [..., n, ...] -> f32 [..., n, ...]"))                                           \
    X(TOPK_INDICES, topk_indices, (x), 0, 0, 0, 0, GPUNN__RULE(topk_indices))                               \
    X(SAMPLE, sample, (logits, draw), 0, 0, 0, 0, GPUNN__SIGNATURE("f32 [n, classes], f32 [n] -> i64 [n]")) \
    X(ARGMAX, argmax, (x), 0, 0, 0, 0, GPUNN__RULE(argmax))                                                 \
    X(ATTENTION, scaled_dot_product_attention, (q, k, v, mask, lengths), 31, 1, 7,                          \
      GPUNN__PRODUCT | GPUNN__SAVES, GPUNN__RULE(attention))                                                \
    X(CROSS_ENTROPY, cross_entropy, (logits, labels, weight), 7, 0, 1, GPUNN__KEEPS_F32,                    \
      GPUNN__RULE(class_loss))                                                                              \
    X(NLL, nll, (logits, labels, weight), 6, 0, 1, GPUNN__KEEPS_F32, GPUNN__RULE(class_loss))               \
    X(CTC_LOSS, ctc_loss, (log_probabilities, targets, input_lengths, target_lengths), 15, 0, 1,            \
      GPUNN__KEEPS_F32, GPUNN__RULE(ctc_loss))                                                              \
    X(CUSTOM, custom, (inputs), -1, 1, -1, GPUNN__KEEPS_F32, GPUNN__RULE(custom))                           \
    X(ASSIGN, assign, (state, value, position), 0, 0, 0, GPUNN__KEEPS_F32, GPUNN__RULE(assign))             \
    X(CAST, cast, (x), 0, 0, 0, 0, GPUNN__RULE(cast))                                                       \
    X(INTEGER, integer, (tensors), 0, 0, 0, 0, GPUNN__RULE(integer))                                        \
    X(RELAYOUT, relayout, (x), 0, 0, 0, 0, GPUNN__SIGNATURE("f32 [...] -> f32 [...]"))                      \
    X(FUSION, fusion, (inputs), 0, 0, 0, 0, GPUNN__SIGNATURE("f32 [...] -> f32 [...]"))

/* An alias of its operand's memory. It takes part in shapes and gradients, but no backend runs it. */
#define GPUNN_ALIAS_OPS(X) X(RESHAPE, reshape, (x), 0, 0, 1, 0, GPUNN__RULE(reshape))

typedef enum gpunn_op {
    GPUNN_OP_NONE = 0,
#define GPUNN__X(ENUM, ...) GPUNN_OP_##ENUM,
    GPUNN__ELEMENTWISE_OPS(GPUNN__X) GPUNN_OTHER_OPS(GPUNN__X) GPUNN_ALIAS_OPS(GPUNN__X)
#undef GPUNN__X
    GPUNN_OP_COUNT
} gpunn_op;
/* clang-format on */

/* Name of an op, such as "conv2d". */
GPUNN_API const char *gpunn_op_name(gpunn_op op);

/* Elementwise integer ops, under the names of the float ops. X(ENUM, name, operands, whether the result is
 * BOOL, the value of operands a, b, c in 64 bits). */
/* clang-format off */
#define GPUNN_INTEGER_OPS(X)                                                                  \
    X(NEG, neg, 1, 0, (int64_t)(0 - (uint64_t)a))                                             \
    X(ABS, abs, 1, 0, a < 0 ? (int64_t)(0 - (uint64_t)a) : a)                                 \
    X(SIGN, sign, 1, 0, (a > 0) - (a < 0))                                                    \
    X(LOGICAL_NOT, logical_not, 1, 1, a == 0)                                                 \
    X(ADD, add, 2, 0, (int64_t)((uint64_t)a + (uint64_t)b))                                   \
    X(SUB, sub, 2, 0, (int64_t)((uint64_t)a - (uint64_t)b))                                   \
    X(MUL, mul, 2, 0, (int64_t)((uint64_t)a * (uint64_t)b))                                   \
    X(FLOOR_DIVIDE, floor_divide, 2, 0, gpunn__trunc_quotient(a, b) - gpunn__rounds_up(a, b)) \
    X(TRUNC_DIVIDE, trunc_divide, 2, 0, gpunn__trunc_quotient(a, b))                          \
    X(REMAINDER, remainder, 2, 0, gpunn__trunc_rest(a, b) + (gpunn__rounds_up(a, b) ? b : 0)) \
    X(FMOD, fmod, 2, 0, gpunn__trunc_rest(a, b))                                              \
    X(MAXIMUM, maximum, 2, 0, a > b ? a : b)                                                  \
    X(MINIMUM, minimum, 2, 0, a < b ? a : b)                                                  \
    X(EQ, eq, 2, 1, a == b)                                                                   \
    X(NE, ne, 2, 1, a != b)                                                                   \
    X(LT, lt, 2, 1, a < b)                                                                    \
    X(LE, le, 2, 1, a <= b)                                                                   \
    X(GT, gt, 2, 1, a > b)                                                                    \
    X(GE, ge, 2, 1, a >= b)                                                                   \
    X(LOGICAL_AND, logical_and, 2, 1, a != 0 && b != 0)                                       \
    X(LOGICAL_OR, logical_or, 2, 1, a != 0 || b != 0)                                         \
    X(LOGICAL_XOR, logical_xor, 2, 1, (a != 0) != (b != 0))                                   \
    X(WHERE, where, 3, 0, a != 0 ? b : c)
typedef enum gpunn_integer_op {
#define GPUNN__X(ENUM, ...) GPUNN_INTEGER_##ENUM,
    GPUNN_INTEGER_OPS(GPUNN__X)
#undef GPUNN__X
    GPUNN_INTEGER_COUNT
} gpunn_integer_op;
/* clang-format on */

#endif /* GPUNN__API_OPS_H */
