/* The elementwise ops and the formulas with torch's names, over all of float: both zeros, subnormal numbers,
 * every power of 2 and of 10, the ends of the range and random bits, against the same in double by the C
 * library; and where they have kinks, at infinities and NaN, against PyTorch (tests/golden/points.py). A row
 * of the tables without its truth here does not compile; test_table.py asks for those of the formulas. */
#include "../test.h"

#include <float.h>

static double step(double x)
{
    return x > 0 ? 1 : 0;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double cdf(double x)
{
    return 0.5 * erfc(-x * 0.70710678118654752);
}

static double pdf(double x)
{
    return 0.39894228040143268 * exp(-0.5 * x * x);
}

static double inside(double x, double low, double high)
{
    return x > low && x < high ? 1 : 0;
}

static double clip(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

static double angle(double x) /* of gelu_tanh */
{
    return tanh(0.79788456080286536 * (x + 0.044715 * x * x * x));
}

static double digamma(double x)
{
    double sum = 0;
    if (x < 0) return digamma(1 - x) - M_PI / tan(M_PI * (x - rint(x)));
    for (; x < 12; x++) sum -= 1 / x;
    const double q = 1 / (x * x);
    return sum + log(x) - 0.5 / x - q * (1.0 / 12 - q * (1.0 / 120 - q * (1.0 / 252 - q / 240)));
}

static double most(double a, double b) /* NaN stays */
{
    return isnan(a) || a > b ? a : b;
}

/* Both steps of one that has a kink where both operands are equal. */
static double larger(double a, double b)
{
    return a > b ? 1 : a < b ? 0 : 0.5;
}

static double sign(double x)
{
    return (x > 0) - (x < 0);
}

static double remains(double x, double y)
{
    const double rest = fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

/* Of terms that may overflow in floats. */
static double sum_of(double a, double b)
{
    return a + b > FLT_MAX ? INFINITY : a + b;
}

/* Any result will do where the rest is subnormal, which may count as 0. */
static double lost_rest(double x, double y)
{
    const double rest = fabs(fmod(x, y));
    return rest > 0 && rest < FLT_MIN ? INFINITY : 0;
}

/* Of y pow(x, y - 1) in floats, which y - 1 and what pow gives have to be. */
static double slope_slack(double x, double y)
{
    const double slope = fabs(pow(x, y - 1));
    return fabs(y) > 1e6 || slope > FLT_MAX
               ? INFINITY
               : fabs(y) * (fmax(fabs(y), 1) * slope * fabs(log(fabs(x))) + 1e-31);
}

/* A factor as small as FLT_MIN may have lost its bits: those of another times it. */
#define SMALL 1e-31

/* clang-format off */
/* X(name, value, its slack, derivative, its slack) of x. The slack is of the size of what cancels in
 * PyTorch's formula: its last places are allowed to differ, beside those of the result. PyTorch's lgamma is
 * 7000 ulp off near its zeros below 0, 3e-8, and the derivative 15 ulp above 0 and 153 near its own zero,
 * 8e-7. */
#define UNARY_TRUTHS(X)                                                                                      \
    X(relu, x > 0 ? x : 0, 0, step(x), 0)                                                                    \
    X(relu6, clip(x, 0, 6), 0, inside(x, 0, 6), isnan(x) ? INFINITY : 0)                                     \
    X(sigmoid, sigmoid(x), 0, sigmoid(x) * sigmoid(-x), sigmoid(x))                                          \
    X(tanh, tanh(x), 0, 1 / (cosh(x) * cosh(x)), 1)                                                          \
    X(silu, x * sigmoid(x), fabs(x) * SMALL, sigmoid(x) * (1 + x * sigmoid(-x)), 1 + fmin(fabs(x), 20))      \
    X(mish, x * tanh(log1p(exp(x))), fabs(x) * SMALL,                                                        \
      tanh(log1p(exp(x))) + x * sigmoid(x) / pow(cosh(log1p(exp(x))), 2), 2)                                 \
    X(gelu, x * cdf(x), fabs(x), cdf(x) + x * pdf(x), 1)                                                     \
    X(gelu_tanh, 0.5 * x * (1 + angle(x)), fabs(x),                                                          \
      0.5 * (1 + angle(x)) + 0.5 * x * (1 - angle(x) * angle(x)) * 0.79788456080286536 * (1 + 0.134145 * x * x), \
      fabs(x) < 1e18 ? 8 : INFINITY)                                                                         \
    X(softsign, x / (1 + fabs(x)), 0, 1 / ((1 + fabs(x)) * (1 + fabs(x))), SMALL)                            \
    X(logsigmoid, x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x)), 0, sigmoid(-x), 0)                            \
    X(hardsigmoid, clip(x + 3, 0, 6) / 6, 0, inside(x, -3, 3) / 6, 0)                                        \
    X(hardswish, x * clip(x + 3, 0, 6) / 6, x < 5e37 ? 0 : INFINITY, x <= -3 ? 0 : x >= 3 ? 1 : x / 3 + 0.5, \
      0.5)                                                                                                   \
    X(selu, 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * expm1(x)), 0,                             \
      1.0507009873554805 * (x > 0 ? 1 : 1.6732632423543772 * exp(x)), SMALL)                                 \
    X(abs, fabs(x), 0, sign(x), 0)                                                                           \
    X(neg, -x, 0, -1, 0)                                                                                     \
    X(sign, sign(x), 0, 0, 0)                                                                                \
    X(floor, floor(x), 0, 0, 0)                                                                              \
    X(detach, x, 0, 0, 0)                                                                                    \
    X(exp, exp(x), 0, exp(x), 0)                                                                             \
    X(expm1, expm1(x), 0, exp(x), 1)                                                                         \
    X(log, log(x), 0, 1 / x, 0)                                                                              \
    X(log1p, log1p(x), 0, 1 / (x + 1), 0)                                                                    \
    X(sqrt, sqrt(x), 0, 0.5 / sqrt(x), 0)                                                                    \
    X(rsqrt, 1 / sqrt(x), 0, -0.5 * pow(1 / sqrt(x), 3), pow(1 / sqrt(x), 3) + SMALL)                        \
    X(reciprocal, 1 / x, 0, -1 / x / x, SMALL)                                                               \
    X(square, x * x, 0, 2 * x, 0)                                                                            \
    X(erf, erf(x), 0, 1.1283791670955126 * exp(-x * x), x * x * exp(-x * x))                                 \
    X(sin, sin(x), 0.25, cos(x), 0.25)                                                                       \
    X(cos, cos(x), 0.25, -sin(x), 0.25)                                                                      \
    X(exp2, exp2(x), 0, 0.69314718055994531 * exp2(x), x < 128 ? 0 : INFINITY)                               \
    X(log2, log2(x), 0, 1.4426950408889634 / x, 0)                                                           \
    X(log10, log10(x), 0, 0.43429448190325183 / x, 0)                                                        \
    X(sinh, sinh(x), 0, cosh(x), 0)                                                                          \
    X(cosh, cosh(x), 0, sinh(x), 0)                                                                          \
    X(asin, asin(x), 0, 1 / sqrt((1 - x) * (1 + x)), 0)                                                      \
    X(acos, acos(x), 0, -1 / sqrt((1 - x) * (1 + x)), 0)                                                     \
    X(atan, atan(x), 0, 1 / (x * x + 1), SMALL)                                                              \
    X(asinh, asinh(x), 0, 1 / sqrt(x * x + 1), 0)                                                            \
    X(acosh, acosh(x), 0, 1 / sqrt((x - 1) * (x + 1)), 0)                                                    \
    X(atanh, atanh(x), 0, 1 / ((1 - x) * (1 + x)), SMALL)
#define ATTRIBUTE_TRUTHS(X)                                                   \
    X(leaky_relu, x > 0 ? x : 0.01f * x, 0, x > 0 ? 1 : 0.01f, 0)             \
    X(elu, x > 0 ? x : expm1(x), 0, x > 0 ? 1 : exp(x), 0)                    \
    X(celu, x > 0 ? x : expm1(x), 0, x > 0 ? 1 : exp(x), 0)                   \
    X(hardshrink, fabs(x) <= 0.5 ? 0 : x, 0, fabs(x) <= 0.5 ? 0 : 1, 0)       \
    X(add_scalar, x + 0.5, 0, 1, 0)                                           \
    X(mul_scalar, x * 1.75, 0, 1.75, 0)                                       \
    X(pow_scalar, pow(x, 2.5), 0, 2.5 * pow(x, 1.5), SMALL)                   \
    X(hardtanh, clip(x, -1, 1), 0, inside(x, -1, 1), isnan(x) ? INFINITY : 0) \
    X(clamp, clip(x, -1, 2), 0, inside(x, -1, 2), 0)                          \
    X(softplus, x > 20 ? x : log1p(exp(x)), 0, x > 20 ? 1 : sigmoid(x), 0)
#define FORMULA_TRUTHS(X)                                                                            \
    X(softshrink, fabs(x) <= 0.5 ? 0 : x - 0.5 * sign(x), 0, fabs(x) <= 0.5 ? 0 : 1, 0)              \
    X(threshold, x <= 0.5 ? -20 : x, 0, x <= 0.5 ? 0 : 1, 0)                                         \
    X(logit, log(x / (1 - x)), 1, 1 / (x * (1 - x)), x < 0 || x > 1 ? INFINITY : 0)                  \
    X(tan, tan(x), 0.25 * (1 + tan(x) * tan(x)), 1 + tan(x) * tan(x), pow(1 + fabs(tan(x)), 3))      \
    X(ceil, ceil(x), 0, 0, 0)                                                                        \
    X(round, rint(x), 0, 0, 0)                                                                       \
    X(trunc, trunc(x), 0, 0, 0)                                                                      \
    X(frac, x - trunc(x), 0, 1, 0)                                                                   \
    X(erfc, erfc(x), 0, -1.1283791670955126 * exp(-x * x), x * x * exp(-x * x))                      \
    X(lgamma, lgamma(x), x < 0 ? lgamma(1 - x) : 0, digamma(x),                                      \
      isinf(x) ? INFINITY : 2 + (x < 0 ? fabs(digamma(1 - x)) + fabs(digamma(x)) * fmax(1, -x) : 0)) \
    X(tanhshrink, x - tanh(x), fmin(fabs(x), 1), tanh(x) * tanh(x), 1)                               \
    X(logical_not, x == 0, 0, 0, 0)                                                                  \
    X(isnan, isnan(x) != 0, 0, 0, 0)                                                                 \
    X(isinf, isinf(x) != 0, 0, 0, 0)                                                                 \
    X(isfinite, isfinite(x) != 0, 0, 0, 0)
/* X(name, value, its slack, derivative by x, its slack, derivative by y, its slack). */
#define BINARY_TRUTHS(X)                                                                                    \
    X(add, x + y, 0, 1, 0, 1, 0)                                                                            \
    X(sub, x - y, 0, 1, 0, -1, 0)                                                                           \
    X(mul, x * y, 0, y, 0, x, 0)                                                                            \
    X(div, x / y, 0, 1 / y, 0, -x / y / y, SMALL * (1 + 1 / fabs(y)))                                       \
    X(floor_divide, y == 0 ? x / y : (x - remains(x, y)) / y, lost_rest(x, y), 0, 0, 0, 0)                  \
    X(pow, pow(x, y), 0, y == 0 ? 0 : y * pow(x, y - 1), slope_slack(x, y),                                 \
      pow(x, y) * log(x), x == 0 ? INFINITY : SMALL * 200)                                                  \
    X(maximum, x > y ? x : y, 0, larger(x, y), 0, larger(y, x), 0)                                          \
    X(minimum, x < y ? x : y, 0, larger(y, x), 0, larger(x, y), 0)                                          \
    X(eq, x == y, 0, 0, 0, 0, 0)                                                                            \
    X(ne, x != y, 0, 0, 0, 0, 0)                                                                            \
    X(lt, x < y, 0, 0, 0, 0, 0)                                                                             \
    X(le, x <= y, 0, 0, 0, 0, 0)                                                                            \
    X(gt, x > y, 0, 0, 0, 0, 0)                                                                             \
    X(ge, x >= y, 0, 0, 0, 0, 0)                                                                            \
    X(parametric_relu, x > 0 ? x : x * y, 0, x > 0 ? 1 : y, 0, x > 0 ? 0 : x, 0)                            \
    X(atan2, atan2(x, y), 0, x == 0 && y == 0 ? 0 : y / (x * x + y * y), fabs(y / (x * x + y * y)) + SMALL, \
      x == 0 && y == 0 ? 0 : -x / (x * x + y * y), fabs(x / (x * x + y * y)) + SMALL)                       \
    X(hypot, hypot(x, y), 0, x / hypot(x, y), hypot(x, y) > FLT_MAX ? INFINITY : 0, y / hypot(x, y),        \
      hypot(x, y) > FLT_MAX ? INFINITY : 0)                                                                 \
    X(logaddexp, fmax(x, y) + log1p(exp(-fabs(x - y))), fmin(fabs(fmax(x, y)),                              \
      1) + fabs(x - y) * exp(-fabs(x - y)) + SMALL,                                                         \
      sigmoid(x - y),                                                                                       \
      fabs(x - y) * sigmoid(x - y), sigmoid(y - x), fabs(x - y) * sigmoid(y - x))                           \
    X(fmod, fmod(x, y), 0, 1, 0, -truncf((float)x / (float)y), 0)                                           \
    X(remainder, remains(x, y), lost_rest(x, y), 1, 0, -(x - remains(x, y)) / y, lost_rest(x, y))
#define BINARY_FORMULA_TRUTHS(X)                                                                      \
    X(logical_and, x != 0 && y != 0, 0, 0, 0, 0, 0)                                                   \
    X(logical_or, x != 0 || y != 0, 0, 0, 0, 0, 0)                                                    \
    X(logical_xor, (x != 0) != (y != 0), 0, 0, 0, 0, 0)                                               \
    X(xlogy, x == 0 ? 0 : x * log(y), 0, log(y), x == 0 ? INFINITY : 0, x / y, x == 0 ? INFINITY : 0) \
    X(trunc_divide, y == 0 ? x / y : (x - fmod(x, y)) / y, lost_rest(x, y), 0, 0, 0, 0)
#define TERM_TRUTHS(X)                                                                                       \
    X(squared_error, (x - y) * (x - y), 0, 2 * (x - y), 0, 2 * (y - x), 0)                                   \
    X(absolute_error, fabs(x - y), 0, sign(x - y), 0, sign(y - x), 0)                                        \
    X(binary_cross_entropy, (y - 1) * most(log1p(-x), -100) - y * most(log(x), -100),                        \
      sum_of(fabs((y - 1) * fmax(log1p(-x), -100)), fabs(y * fmax(log(x), -100))),                           \
      (x - y) / fmax((1 - x) * x, 1e-12), 0,                                                                 \
      log1p(-x) - log(x), 1)                                                                                 \
    X(binary_cross_entropy_with_logits, (1 - y) * fmax(x, 0) - y * fmin(x, 0) + log1p(exp(-fabs(x))),        \
      fabs((1 - y) * x) + fabs(y * x), sigmoid(x) - y, 1 + fabs(y), -x, 0)                                   \
    X(kl_divergence, y == 0 ? 0 : y * log(y) - y * x, sum_of(fabs(y * log(y)), fabs(y * x)) + SMALL, -y, 0,  \
      log(y) + 1 - x,                                                                                        \
      fabs(log(y)) + 1 + fabs(x))                                                                            \
    X(kl_divergence_log, exp(y) * (y - x), y < 88 && fabs(x - y) < FLT_MAX ? SMALL * fabs(x - y) : INFINITY, \
      -exp(y),                                                                                               \
      0, exp(y) * (y - x) + exp(y),                                                                          \
      y < 88 && fabs(x - y) < FLT_MAX ? exp(y) * (1 + fabs(y - x)) + SMALL * fabs(x - y) : INFINITY)         \
    X(huber, fabs(x - y) < 1 ? 0.5 * (x - y) * (x - y) : fabs(x - y) - 0.5, 0, clip(x - y, -1, 1), 0,        \
      clip(y - x, -1, 1), 0)                                                                                 \
    X(smooth_l1, fabs(x - y) < 1 ? 0.5 * (x - y) * (x - y) : fabs(x - y) - 0.5, 0, clip(x - y, -1, 1), 0,    \
      clip(y - x, -1, 1), 0)
#define TERNARY_TRUTHS(X) X(where, x != 0 ? y : x, 0, x == 0, 0, x != 0, 0) /* of x, y, x */
/* clang-format on */

/* Value and slack, then those of each gradient. */
typedef void (*truth)(double x, double y, double out[6]);
#define TRUTH1(name, f, slack, dx, slack_dx)                    \
    static void truth_##name(double x, double y, double out[6]) \
    {                                                           \
        (void)x, (void)y;                                       \
        out[0] = (f), out[1] = (slack);                         \
        out[2] = (dx), out[3] = (slack_dx);                     \
    }
#define TRUTH2(name, f, slack, dx, slack_dx, dy, slack_dy)      \
    static void truth_##name(double x, double y, double out[6]) \
    {                                                           \
        (void)x, (void)y;                                       \
        out[0] = (f), out[1] = (slack);                         \
        out[2] = (dx), out[3] = (slack_dx);                     \
        out[4] = (dy), out[5] = (slack_dy);                     \
    }
UNARY_TRUTHS(TRUTH1)
ATTRIBUTE_TRUTHS(TRUTH1)
FORMULA_TRUTHS(TRUTH1)
BINARY_TRUTHS(TRUTH2)
BINARY_FORMULA_TRUTHS(TRUTH2)
TERM_TRUTHS(TRUTH2)
TERNARY_TRUTHS(TRUTH2)

#define BUILDER(name, expression)                              \
    static gpunn_tensor *build_##name(gpunn_tensor *const *in) \
    {                                                          \
        return expression;                                     \
    }
#define OF_ONE(name, ...) BUILDER(name, gpunn_##name(in[0]))
#define OF_TWO(name, ...) BUILDER(name, gpunn_##name(in[0], in[1]))
#define OF_TERM(name, ...) BUILDER(name, gpunn_expr(#name "(x, y)", in, 2))
UNARY_TRUTHS(OF_ONE)
BUILDER(leaky_relu, gpunn_leaky_relu(in[0], 0.01f))
BUILDER(elu, gpunn_elu(in[0], 1))
BUILDER(celu, gpunn_celu(in[0], 1))
BUILDER(hardshrink, gpunn_hardshrink(in[0], 0.5f))
BUILDER(add_scalar, gpunn_add_scalar(in[0], 0.5f))
BUILDER(mul_scalar, gpunn_mul_scalar(in[0], 1.75f))
BUILDER(pow_scalar, gpunn_pow_scalar(in[0], 2.5f))
BUILDER(hardtanh, gpunn_hardtanh(in[0], -1, 1))
BUILDER(clamp, gpunn_clamp(in[0], -1, 2))
BUILDER(softplus, gpunn_softplus(in[0], 1, 20))
BUILDER(softshrink, gpunn_softshrink(in[0], 0.5f))
BUILDER(threshold, gpunn_threshold(in[0], 0.5f, -20))
BUILDER(logit, gpunn_logit(in[0], -1))
OF_ONE(tan)
OF_ONE(ceil)
OF_ONE(round)
OF_ONE(trunc)
OF_ONE(frac)
OF_ONE(erfc)
OF_ONE(lgamma)
OF_ONE(tanhshrink)
OF_ONE(logical_not)
OF_ONE(isnan)
OF_ONE(isinf)
OF_ONE(isfinite)
BINARY_TRUTHS(OF_TWO)
BINARY_FORMULA_TRUTHS(OF_TWO)
TERM_TRUTHS(OF_TERM)
BUILDER(where, gpunn_where(in[0], in[1], in[0]))

typedef struct row {
    const char *name;
    int         operands;
    truth       truth;
    gpunn_tensor *(*build)(gpunn_tensor *const *in);
} row;
#define OP1(ENUM, name, ...) {#name, 1, truth_##name, build_##name},
#define OP2(ENUM, name, ...) {#name, 2, truth_##name, build_##name},
#define ROW1(name, ...) {#name, 1, truth_##name, build_##name},
#define ROW2(name, ...) {#name, 2, truth_##name, build_##name},
static const row rows[] = {GPUNN_UNARY_OPS(OP1) GPUNN_UNARY1_OPS(OP1) GPUNN_UNARY2_OPS(OP1)
                               GPUNN_BINARY_OPS(OP2) GPUNN_LOSS_OPS(OP2) GPUNN_LOSS1_OPS(OP2)
                                   GPUNN_TERNARY_OPS(OP2) FORMULA_TRUTHS(ROW1) BINARY_FORMULA_TRUTHS(ROW2)};

/* ---- comparison ---- */
/* The last place of a float of that size. */
static double last_place(double x)
{
    return x == 0 || !(fabs(x) >= FLT_MIN) ? 0x1p-149 : ldexp(1, ilogb(x) - 23);
}

/* Within 4 last places. Subnormal numbers may be 0, also where they are parts of others. */
static bool agrees(double actual, double expected, double slack)
{
    if (isnan(expected) || isnan(actual) || slack == INFINITY)
        return (isnan(expected) && isnan(actual)) || slack == INFINITY;
    if (isinf(actual) || fabs(expected) > FLT_MAX)
        return fabs(expected) > FLT_MAX * (1 - 4e-7) && actual * expected > 0 &&
               fabs(actual) > FLT_MAX * (1 - 8e-7);
    const double near = fabs(expected) < 16 * FLT_MIN ? 2 * FLT_MIN : 4 * last_place(expected);
    return fabs(actual - expected) <= near + (slack > 0 ? 4 * last_place(slack) : 0);
}

/* ---- points ---- */
enum { SOME = 4096, MOST = 4 * 1000 + SOME }; /* random points of a round, and all of its points at most */

typedef struct points {
    const float *at[2];
    int64_t      count;
} points;

/* Those of PyTorch's values for so many operands. */
static points torch_points(const golden *file, int operands)
{
    const golden_tensor *x = golden_get(file, operands == 2 ? "a" : "x"),
                        *y = golden_get(file, operands == 2 ? "b" : "x");
    return (points){{x->data, y->data}, x->count};
}

/* Every power of 2 and of 10, both signs of each, and what follows on them. */
static int64_t listed_points(float *x)
{
    int64_t n = 0;
    for (int e = -149; e < 128; e++) x[n++] = ldexpf(1, e), x[n++] = -ldexpf(1, e);
    for (int e = -45; e < 39; e++) x[n++] = (float)pow(10, e), x[n++] = -(float)pow(10, e);
    for (int i = 0; i < 64; i++) x[n++] = (float)(i - 32) / 2;
    const int64_t listed = n;
    for (int64_t i = 0; i < listed; i++) x[n++] = nextafterf(x[i], INFINITY);
    return n;
}

/* Random bits, every other with an exponent near 0, after the listed points in the first round. */
static points round_points(int round)
{
    static float x[2][MOST];
    uint32_t     seed = (uint32_t)test_setting("GPUNN_TEST_SEED", 1) + (uint32_t)round;
    int64_t      n = round == 0 ? listed_points(x[0]) : 0;
    for (int i = 0; i < SOME; i++) {
        (void)test_random(&seed);
        uint32_t bits = (seed >> 16) | (seed * 2654435761u & 0xFFFF0000u);
        if (i % 2) bits = (bits & 0x87FFFFFFu) | 0x38000000u; /* 2^-15 to 2 */
        if (i % 4 == 3) bits += 0x02000000u;                  /* 2^-11 to 32 */
        memcpy(&x[0][n], &bits, sizeof bits);
        n += isfinite(x[0][n]);
    }
    for (int64_t i = 0; i < n; i++) x[1][i] = i % 3 ? x[0][(i * 31 + 7919) % n] : x[0][i];
    return (points){{x[0], x[1]}, n};
}

/* GPUNN_TEST_ROUNDS=n: as many times as many random points. */
static int rounds(void)
{
    return (int)test_setting("GPUNN_TEST_ROUNDS", 1);
}

/* ---- comparison of a row's results ---- */
typedef struct results {
    const row *row;
    float     *found[3]; /* value and gradients */
    int        parts;    /* of which so many are there */
    double     most;     /* |x| beyond which nothing is promised */
    int        bad;
} results;

static void complain(results *r, int part, double x, double y, double actual, double expected)
{
    static const char *const names[] = {"value", "derivative by x", "derivative by y"};
    if (r->bad++ < 8)
        print_error("%s of %s(%.9g, %.9g) is %.9g, should be %.9g\n", names[part], r->row->name, x, y, actual,
                    expected);
}

/* Whether 12 bits of significand tell it. */
static bool has_few_bits(double x)
{
    int exponent;
    return rint(frexp(x, &exponent) * 4096) == frexp(x, &exponent) * 4096;
}

/* A float as the CPU backend reads it. */
static double flushed(double x)
{
    return fabs(x) < FLT_MIN ? 0 * x : x;
}

/* Against PyTorch, or the truth where it is further off. */
static void compare_torch(results *r, const golden *file, const points *p)
{
    const golden_tensor *expected = golden_find(file, "%s", r->row->name);
    for (int k = 0; expected && k < r->parts; k++)
        for (int64_t i = 0; i < p->count; i++) {
            double       of[6] = {0};
            const double x = p->at[0][i], y = p->at[1][i], actual = r->found[k][i];
            const double wanted = ((const float *)expected->data)[k * p->count + i];
            r->row->truth(x, y, of);
            if ((flushed(x) != x && !isnan(x)) || fabs(x) > r->most) continue;
            if (!agrees(actual, wanted, of[2 * k + 1]) && !agrees(actual, of[2 * k], of[2 * k + 1]))
                complain(r, k, x, r->row->operands == 2 ? y : 0, actual, wanted);
        }
}

static void compare_truth(results *r, const points *p)
{
    for (int64_t i = 0; i < p->count; i++) {
        double       of[6] = {0};
        const double x = p->at[0][i], y = p->at[1][i];
        if (flushed(x) != x || flushed(y) != y || flushed(x - y) != x - y || fabs(x) > r->most) continue;
        r->row->truth(x, y, of);
        for (int k = 0; k < r->parts; k++) {
            const double actual = r->found[k][i], wanted = of[2 * k], slack = of[2 * k + 1];
            const bool   exact = k == 0 && slack == 0 && fabs(wanted) >= FLT_MIN && fabs(wanted) <= FLT_MAX &&
                               has_few_bits(wanted);
            if (k > 0 && isnan(of[0])) continue; /* outside the domain: compare_torch */
            if (exact ? actual != wanted : !agrees(actual, wanted, slack))
                complain(r, k, x, r->row->operands == 2 ? y : 0, actual, wanted);
        }
    }
}

static void free_results(results *r)
{
    for (int k = 0; k < r->parts; k++) free(r->found[k]);
}

#ifndef GENERATED
/* ---- the library's ops: a model of each row ---- */
typedef struct sweep {
    gpunn_device *dev;
    gpunn_model  *model;
    int           operands;
    /* out[0]: the value; the others give operands that the row gives none a gradient of 0 */
    gpunn_tensor *in[2], *out[3];
} sweep;

static sweep sweep_open(fixture *f, const row *r)
{
    static const char *const names[] = {"x", "y"};
    sweep                    s = {f->dev, f->model, r->operands, {NULL}, {NULL}};
    for (int i = 0; i < r->operands; i++) {
        s.in[i] = MADE(f->dev, gpunn_input(f->model, names[i], GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH)));
        MADE(f->dev, gpunn_retain_grad(s.in[i]));
        s.out[i + 1] = MADE(f->dev, gpunn_neg(s.in[i]));
    }
    s.out[0] = MADE(f->dev, gpunn_keep(MADE(f->dev, r->build(s.in))));
    return s;
}

static void sweep_run(const sweep *s, const points *p, results *r)
{
    const int64_t n = p->count;
    float        *ones = malloc((size_t)n * sizeof *ones), *zeros = calloc((size_t)n, sizeof *zeros);
    for (int64_t i = 0; i < n; i++) ones[i] = 1;
    for (int i = 0; i < s->operands; i++) OK(s->dev, write_floats(s->in[i], p->at[i], n));
    OK(s->dev, gpunn_zero_grad(s->model));
    OK(s->dev, gpunn_backward_from(s->out, (const void *const[]){ones, zeros, zeros}, 1 + s->operands));
    r->parts = 1 + s->operands;
    for (int k = 0; k < r->parts; k++) r->found[k] = malloc((size_t)n * sizeof **r->found);
    OK(s->dev, gpunn_read(s->out[0], r->found[0], (size_t)n * sizeof **r->found));
    for (int i = 0; i < s->operands; i++)
        OK(s->dev, gpunn_read_grad(s->in[i], r->found[i + 1], (size_t)n * sizeof **r->found));
    free(ones), free(zeros);
}

static void test_row(void **state)
{
    fixture     *f = *state;
    results      r = {f->data, {NULL}, 0, INFINITY, 0};
    const sweep  s = sweep_open(f, r.row);
    golden       file = golden_open("tests/golden/points.safetensors");
    const points p = torch_points(&file, r.row->operands);
    sweep_run(&s, &p, &r);
    compare_torch(&r, &file, &p);
    free_results(&r);
    for (int round = 0; round < rounds(); round++) {
        const points some = round_points(round);
        sweep_run(&s, &some, &r);
        compare_truth(&r, &some);
        free_results(&r);
    }
    golden_close(&file);
    if (r.bad) fail_msg("%d results of %s are wrong", r.bad, r.row->name);
}

static int add_tests(struct CMUnitTest *tests)
{
    int count = 0;
    for (int i = 0; i < COUNT(rows); i++)
        count += each_backend(tests + count, rows[i].name, test_row, &rows[i]);
    return count;
}

/* The spec of a model of all rows: x and y have a column for each, values the negative of each one's result,
 * so that each is two ops, of which the generator makes one kernel; with a gradient, as a parameter stands
 * before it. */
static int write_spec(const char *path)
{
    gpunn_device *dev = gpunn_device_open(.threads = 1);
    gpunn_model  *model = gpunn_model_create(dev);
    gpunn_tensor *one = gpunn_parameter(model, "one", GPUNN_SHAPE(1),
                                        (gpunn_init){GPUNN_INIT_CONSTANT, 1, 0}),
                 *of[2], *parts[COUNT(rows)];
    of[0] = gpunn_mul(gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, COUNT(rows))), one);
    of[1] = gpunn_mul(gpunn_input(model, "y", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, COUNT(rows))), one);
    for (int i = 0; i < COUNT(rows); i++) {
        gpunn_tensor *in[2] = {NULL, NULL};
        for (int k = 0; k < rows[i].operands; k++) in[k] = gpunn_slice(of[k], 1, i, i + 1, 1);
        parts[i] = gpunn_neg(rows[i].build(in));
    }
    const int     most = GPUNN_MAX_OPERANDS;
    gpunn_tensor *halves[] = {gpunn_concat(parts, most, 1),
                              gpunn_concat(parts + most, COUNT(rows) - most, 1)};
    gpunn_tensor *values = gpunn_set_name(gpunn_concat(halves, 2, 1), "values");
    const int     failed = gpunn_spec_save(model, path, .outputs = {values},
                                           .loss = gpunn_sum(values, GPUNN_ALL, false)) != GPUNN_OK;
    if (failed) print_error("%s\n", gpunn_error(dev));
    gpunn_device_close(dev);
    return failed;
}
#else
/* ---- what the generator makes of that model ---- */
#define GENERATED_INFERENCE_IMPLEMENTATION
#include "../../build/generated/sweep/generated_inference.h"
extern const gpunn_kernel_set generated_kernels;

enum { WIDTH = COUNT(rows) };

/* Column i, whose elements are negative, of [count, WIDTH]. */
static float *column_of(const float *all, int64_t count, int i)
{
    float *column = malloc((size_t)count * sizeof *column);
    for (int64_t k = 0; k < count; k++) column[k] = -all[k * WIDTH + i];
    return column;
}

/* Of all rows at all points: values, and gradients or NULL. */
typedef void (*runner)(fixture *f, const float *x, const float *y, int64_t count, float *found[3]);

static float *matrix(int64_t count)
{
    return malloc((size_t)(count * WIDTH) * sizeof(float));
}

static void write_inputs(fixture *f, const float *x, const float *y, int64_t count)
{
    OK(f->dev, write_floats(gpunn_input_at(f->model, 0), x, count * WIDTH));
    OK(f->dev, write_floats(gpunn_input_at(f->model, 1), y, count * WIDTH));
}

static void run_evaluation(fixture *f, const float *x, const float *y, int64_t count, float *found[3])
{
    gpunn_tensor *values = gpunn_spec_output(f->model, 0);
    (void)x, (void)y;
    OK(f->dev, gpunn_forward(&values, 1));
    OK(f->dev, gpunn_read(values, found[0] = matrix(count), gpunn_tensor_bytes(values)));
}

static void run_training(fixture *f, const float *x, const float *y, int64_t count, float *found[3])
{
    gpunn_tensor *values = MADE(f->dev, gpunn_keep(gpunn_spec_output(f->model, 0)));
    float        *ones = matrix(count);
    (void)x, (void)y;
    for (int64_t i = 0; i < count * WIDTH; i++) ones[i] = 1;
    for (int i = 0; i < 2; i++) MADE(f->dev, gpunn_retain_grad(gpunn_input_at(f->model, i)));
    OK(f->dev, gpunn_zero_grad(f->model));
    OK(f->dev, gpunn_backward_from(&values, (const void *const[]){ones}, 1)); /* a loss must not be NaN */
    free(ones);
    OK(f->dev, gpunn_read(values, found[0] = matrix(count), gpunn_tensor_bytes(values)));
    for (int i = 0; i < 2; i++)
        OK(f->dev, gpunn_read_grad(gpunn_input_at(f->model, i), found[i + 1] = matrix(count),
                                   gpunn_tensor_bytes(values)));
}

static void run_plain_c(fixture *f, const float *x, const float *y, int64_t count, float *found[3])
{
    static const generated_weights weights = {{1}};
    static generated_scratch       scratch;
    (void)f;
    found[0] = matrix(count);
    for (int64_t i = 0; i < count; i++)
        generated_forward(&weights, x + i * WIDTH, y + i * WIDTH, found[0] + i * WIDTH, &scratch);
}

/* To memory of count * WIDTH: an operand of each row. */
static void write_operand(float *all, const float *at, int64_t count)
{
    for (int64_t i = 0; i < count * WIDTH; i++) all[i] = at[i / WIDTH];
}

/* What of templates/math.h is right up to 1e9 only. */
static bool has_sine(const row *r)
{
    return strcmp(r->name, "sin") == 0 || strcmp(r->name, "cos") == 0 || strcmp(r->name, "tan") == 0;
}

/* file: PyTorch's values, of the rows of so many operands; NULL: the truth, of all rows. */
static void check_points(fixture *f, runner run, const points *p, const golden *file, int operands, int *bad)
{
    float     *x = matrix(p->count), *y = matrix(p->count), *found[3] = {NULL, NULL, NULL};
    const bool is_c = run == run_plain_c || f->backend->type == GPUNN_DEVICE_CPU;
    write_operand(x, p->at[0], p->count), write_operand(y, p->at[1], p->count);
    write_inputs(f, x, y, p->count);
    run(f, x, y, p->count, found);
    for (int i = 0; i < WIDTH; i++) {
        results r = {&rows[i],
                     {NULL},
                     found[1] ? 1 + rows[i].operands : 1,
                     is_c && has_sine(&rows[i]) ? 1e9 : INFINITY,
                     0};
        if (file && rows[i].operands != operands) continue;
        for (int k = 0; k < r.parts; k++) r.found[k] = column_of(found[k], p->count, i);
        if (file)
            compare_torch(&r, file, p);
        else
            compare_truth(&r, p);
        free_results(&r);
        *bad += r.bad;
    }
    free(x), free(y);
    for (int k = 0; k < 3; k++) free(found[k]);
}

/* A model of all rows in the place of the fixture's. */
static void open_generated(fixture *f, const gpunn_kernel_set *set)
{
    gpunn_model_destroy(f->model);
    f->model = MADE(f->dev, gpunn_spec_load(f->dev, "build/generated/sweep/generated.json"));
    OK(f->dev, gpunn_use_kernels(f->model, set, .policy = GPUNN_KERNELS_STRICT));
}

static void test_generated(void **state)
{
    fixture     *f = *state;
    const runner run = *(const runner *)f->data;
    golden       file = golden_open("tests/golden/points.safetensors");
    int          bad = 0;
    open_generated(f, &generated_kernels);
    for (int operands = 1; operands <= 2; operands++) {
        const points p = torch_points(&file, operands);
        check_points(f, run, &p, &file, operands, &bad);
    }
    for (int round = 0; round < rounds(); round++) {
        const points p = round_points(round);
        check_points(f, run, &p, NULL, 0, &bad);
    }
    golden_close(&file);
    if (bad) fail_msg("%d results are wrong", bad);
}

/* ---- whether each row has kernels, and they are called ---- */
static int calls;
static int count_call(const gpunn_kernel_call *call)
{
    (void)call;
    calls++;
    return 0;
}

/* The set with functions that do nothing but count. */
static const gpunn_kernel_set *counting_set(void)
{
    static gpunn_kernel_set    set;
    static gpunn_kernel        kernels[WIDTH];
    static gpunn_kernel_cuda   cuda;
    static gpunn_kernel_launch launch[WIDTH][GPUNN_KERNEL_DIRECTIONS];
    set = generated_kernels;
    assert_int_equal(set.kernel_count, WIDTH);
    for (int i = 0; i < WIDTH; i++) {
        kernels[i] = set.kernels[i];
        for (int d = 0; d < GPUNN_KERNEL_DIRECTIONS; d++) {
            if (kernels[i].program[d].cpu) kernels[i].program[d].cpu = count_call;
            if (set.cuda) launch[i][d] = set.cuda->launch[i][d];
            if (launch[i][d].run) launch[i][d].run = count_call;
        }
    }
    if (set.cuda) {
        cuda = *set.cuda;
        cuda.launch = (const gpunn_kernel_launch(*)[GPUNN_KERNEL_DIRECTIONS])launch;
        set.cuda = &cuda;
    }
    set.kernels = kernels;
    return &set;
}

/* Of a row's kernels in a training step: none where the gradient is always 0, which the library's ops then
 * do. */
static int calls_of(const gpunn_kernel *kernel)
{
    const gpunn_kernel_program *backward = &kernel->program[GPUNN_KERNEL_BACKWARD];
    bool                        reads = backward->operands == NULL;
    for (int i = 0; backward->operands && i < backward->operand_count; i++)
        reads = reads ||
                (backward->operands[i].role == GPUNN_KERNEL_GRADIENT && backward->operands[i].index < 0);
    return reads ? 1 + (backward->operands != NULL) : 0;
}

static void test_calls(void **state)
{
    fixture                *f = *state;
    const gpunn_kernel_set *set = counting_set();
    float                   x[WIDTH] = {0}, *found[3] = {NULL, NULL, NULL};
    int                     wanted = 0;
    for (int i = 0; i < WIDTH; i++) wanted += calls_of(&set->kernels[i]);
    assert_true(wanted > 3 * WIDTH / 2);
    open_generated(f, set);
    write_inputs(f, x, x, 1);
    calls = 0;
    run_evaluation(f, x, x, 1, found);
    free(found[0]);
    assert_int_equal(calls, WIDTH);
    calls = 0;
    run_training(f, x, x, 1, found);
    for (int k = 0; k < 3; k++) free(found[k]);
    assert_int_equal(calls, wanted);
}

static int add_tests(struct CMUnitTest *tests)
{
    static const runner      runners[] = {run_evaluation, run_training, run_plain_c};
    static const char *const names[] = {"kernels of evaluation", "kernels of training", "plain C"};
    int                      count = 0;
    (void)setenv("EMULATOR_SHORT", "0", 1); /* so that groups are not too short to be fused */
    for (int i = 0; i < COUNT(runners); i++)
        count += each_backend(tests + count, names[i], test_generated, &runners[i]);
    return count + each_backend(tests + count, "each row has kernels", test_calls, NULL);
}
#endif

/* sweep --spec FILE writes the spec for the generator. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[4 * COUNT(rows)];
    int                      count = 0;
#ifndef GENERATED
    if (argc == 3 && strcmp(argv[1], "--spec") == 0) return write_spec(argv[2]);
#endif
    (void)argc, (void)argv;
    count += add_tests(tests);
    count += missing_backends(tests + count);
    return _cmocka_run_group_tests("sweep", tests, (size_t)count, NULL, NULL);
}
