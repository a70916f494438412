/* The elementwise ops and the formulas with torch's names, over all of float: both zeros, subnormal numbers, every power of 2 and
 * of 10, the ends of the range and random bits, against the same in double by the C library; and where they have kinks, at
 * infinities and NaN, against PyTorch (tests/golden/points.py). A row of the tables without its truth here does not compile;
 * test_table.py asks for those of the formulas. */
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
    return fabs(y) > 1e6 || slope > FLT_MAX ? INFINITY : fabs(y) * (fmax(fabs(y), 1) * slope * fabs(log(fabs(x))) + 1e-31);
}

/* A factor as small as FLT_MIN may have lost its bits: those of another times it. */
#define SMALL 1e-31

/* clang-format off */
/* X(name, value, its slack, derivative, its slack) of x. The slack is of the size of what cancels in PyTorch's formula: its last
 * places are allowed to differ, beside those of the result. */
#define UNARY_TRUTHS(X)                                                                                                        \
    X(relu, x > 0 ? x : 0, 0, step(x), 0)                                                                                      \
    X(relu6, clip(x, 0, 6), 0, inside(x, 0, 6), isnan(x) ? INFINITY : 0)                                                       \
    X(sigmoid, sigmoid(x), 0, sigmoid(x) * sigmoid(-x), sigmoid(x))                                                            \
    X(tanh, tanh(x), 0, 1 / (cosh(x) * cosh(x)), 1)                                                                            \
    X(silu, x * sigmoid(x), fabs(x) * SMALL, sigmoid(x) * (1 + x * sigmoid(-x)), 1 + fmin(fabs(x), 20))                        \
    X(mish, x * tanh(log1p(exp(x))), fabs(x) * SMALL,                                                                          \
      tanh(log1p(exp(x))) + x * sigmoid(x) / pow(cosh(log1p(exp(x))), 2), 2)                                                   \
    X(gelu, x * cdf(x), fabs(x), cdf(x) + x * pdf(x), 1)                                                                       \
    X(gelu_tanh, 0.5 * x * (1 + angle(x)), fabs(x),                                                                            \
      0.5 * (1 + angle(x)) + 0.5 * x * (1 - angle(x) * angle(x)) * 0.79788456080286536 * (1 + 0.134145 * x * x),               \
      fabs(x) < 1e18 ? 8 : INFINITY)                                                                                           \
    X(softsign, x / (1 + fabs(x)), 0, 1 / ((1 + fabs(x)) * (1 + fabs(x))), SMALL)                                              \
    X(logsigmoid, x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x)), 0, sigmoid(-x), 0)                                              \
    X(hardsigmoid, clip(x + 3, 0, 6) / 6, 0, inside(x, -3, 3) / 6, 0)                                                          \
    X(hardswish, x * clip(x + 3, 0, 6) / 6, x < 5e37 ? 0 : INFINITY, x <= -3 ? 0 : x >= 3 ? 1 : x / 3 + 0.5, 0.5)              \
    X(selu, 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * expm1(x)), 0,                                               \
      1.0507009873554805 * (x > 0 ? 1 : 1.6732632423543772 * exp(x)), 0)                                                       \
    X(abs, fabs(x), 0, sign(x), 0)                                                                                             \
    X(neg, -x, 0, -1, 0)                                                                                                       \
    X(sign, sign(x), 0, 0, 0)                                                                                                  \
    X(floor, floor(x), 0, 0, 0)                                                                                                \
    X(detach, x, 0, 0, 0)                                                                                                      \
    X(exp, exp(x), 0, exp(x), 0)                                                                                               \
    X(expm1, expm1(x), 0, exp(x), 1)                                                                                           \
    X(log, log(x), 0, 1 / x, 0)                                                                                                \
    X(log1p, log1p(x), 0, 1 / (x + 1), 0)                                                                                      \
    X(sqrt, sqrt(x), 0, 0.5 / sqrt(x), 0)                                                                                      \
    X(rsqrt, 1 / sqrt(x), 0, -0.5 * pow(1 / sqrt(x), 3), pow(1 / sqrt(x), 3) + SMALL)                                          \
    X(reciprocal, 1 / x, 0, -1 / x / x, SMALL)                                                                                 \
    X(square, x * x, 0, 2 * x, 0)                                                                                              \
    X(erf, erf(x), 0, 1.1283791670955126 * exp(-x * x), x * x * exp(-x * x))                                                   \
    X(sin, sin(x), 0.25, cos(x), 0.25)                                                                                         \
    X(cos, cos(x), 0.25, -sin(x), 0.25)                                                                                        \
    X(exp2, exp2(x), 0, 0.69314718055994531 * exp2(x), x < 128 ? 0 : INFINITY)                                                 \
    X(log2, log2(x), 0, 1.4426950408889634 / x, 0)                                                                             \
    X(log10, log10(x), 0, 0.43429448190325183 / x, 0)                                                                          \
    X(sinh, sinh(x), 0, cosh(x), 0)                                                                                            \
    X(cosh, cosh(x), 0, sinh(x), 0)                                                                                            \
    X(asin, asin(x), 0, 1 / sqrt((1 - x) * (1 + x)), 0)                                                                        \
    X(acos, acos(x), 0, -1 / sqrt((1 - x) * (1 + x)), 0)                                                                       \
    X(atan, atan(x), 0, 1 / (x * x + 1), SMALL)                                                                                \
    X(asinh, asinh(x), 0, 1 / sqrt(x * x + 1), 0)                                                                              \
    X(acosh, acosh(x), 0, 1 / sqrt((x - 1) * (x + 1)), 0)                                                                      \
    X(atanh, atanh(x), 0, 1 / ((1 - x) * (1 + x)), SMALL)
#define ATTRIBUTE_TRUTHS(X)                                                                                                    \
    X(leaky_relu, x > 0 ? x : 0.01f * x, 0, x > 0 ? 1 : 0.01f, 0)                                                              \
    X(elu, x > 0 ? x : expm1(x), 0, x > 0 ? 1 : exp(x), 0)                                                                     \
    X(celu, x > 0 ? x : expm1(x), 0, x > 0 ? 1 : exp(x), 0)                                                                    \
    X(hardshrink, fabs(x) <= 0.5 ? 0 : x, 0, fabs(x) <= 0.5 ? 0 : 1, 0)                                                        \
    X(add_scalar, x + 0.5, 0, 1, 0)                                                                                            \
    X(mul_scalar, x * 1.75, 0, 1.75, 0)                                                                                        \
    X(pow_scalar, pow(x, 2.5), 0, 2.5 * pow(x, 1.5), SMALL)                                                                    \
    X(hardtanh, clip(x, -1, 1), 0, inside(x, -1, 1), isnan(x) ? INFINITY : 0)                                                  \
    X(clamp, clip(x, -1, 2), 0, inside(x, -1, 2), 0)                                                                           \
    X(softplus, x > 20 ? x : log1p(exp(x)), 0, x > 20 ? 1 : sigmoid(x), 0)
#define FORMULA_TRUTHS(X)                                                                                                      \
    X(softshrink, fabs(x) <= 0.5 ? 0 : x - 0.5 * sign(x), 0, fabs(x) <= 0.5 ? 0 : 1, 0)                                        \
    X(threshold, x <= 0.5 ? -20 : x, 0, x <= 0.5 ? 0 : 1, 0)                                                                   \
    X(logit, log(x / (1 - x)), 1, 1 / (x * (1 - x)), x < 0 || x > 1 ? INFINITY : 0)                                            \
    X(tan, tan(x), 0.25 * (1 + tan(x) * tan(x)), 1 + tan(x) * tan(x), pow(1 + fabs(tan(x)), 3))                                \
    X(ceil, ceil(x), 0, 0, 0)                                                                                                  \
    X(round, rint(x), 0, 0, 0)                                                                                                 \
    X(trunc, trunc(x), 0, 0, 0)                                                                                                \
    X(frac, x - trunc(x), 0, 1, 0)                                                                                             \
    X(erfc, erfc(x), 0, -1.1283791670955126 * exp(-x * x), x * x * exp(-x * x))                                                \
    X(lgamma, lgamma(x), x < 0 ? lgamma(1 - x) : 0, digamma(x),                                                                \
      isinf(x) ? INFINITY : 1 + (x < 0 ? fabs(digamma(x) * x) : 0))                                                            \
    X(tanhshrink, x - tanh(x), fmin(fabs(x), 1), tanh(x) * tanh(x), 1)                                                         \
    X(logical_not, x == 0, 0, 0, 0)                                                                                            \
    X(isnan, isnan(x) != 0, 0, 0, 0)                                                                                           \
    X(isinf, isinf(x) != 0, 0, 0, 0)                                                                                           \
    X(isfinite, isfinite(x) != 0, 0, 0, 0)
/* X(name, value, its slack, derivative by x, its slack, derivative by y, its slack). */
#define BINARY_TRUTHS(X)                                                                                                       \
    X(add, x + y, 0, 1, 0, 1, 0)                                                                                               \
    X(sub, x - y, 0, 1, 0, -1, 0)                                                                                              \
    X(mul, x * y, 0, y, 0, x, 0)                                                                                               \
    X(div, x / y, 0, 1 / y, 0, -x / y / y, SMALL * (1 + 1 / fabs(y)))                                                          \
    X(floor_divide, y == 0 ? x / y : (x - remains(x, y)) / y, lost_rest(x, y), 0, 0, 0, 0)                                     \
    X(pow, pow(x, y), 0, y == 0 ? 0 : y * pow(x, y - 1), slope_slack(x, y),                                                    \
      pow(x, y) * log(x), x == 0 ? INFINITY : SMALL * 200)                                                                     \
    X(maximum, x > y ? x : y, 0, larger(x, y), 0, larger(y, x), 0)                                                             \
    X(minimum, x < y ? x : y, 0, larger(y, x), 0, larger(x, y), 0)                                                             \
    X(eq, x == y, 0, 0, 0, 0, 0)                                                                                               \
    X(ne, x != y, 0, 0, 0, 0, 0)                                                                                               \
    X(lt, x < y, 0, 0, 0, 0, 0)                                                                                                \
    X(le, x <= y, 0, 0, 0, 0, 0)                                                                                               \
    X(gt, x > y, 0, 0, 0, 0, 0)                                                                                                \
    X(ge, x >= y, 0, 0, 0, 0, 0)                                                                                               \
    X(parametric_relu, x > 0 ? x : x * y, 0, x > 0 ? 1 : y, 0, x > 0 ? 0 : x, 0)                                               \
    X(atan2, atan2(x, y), 0, x == 0 && y == 0 ? 0 : y / (x * x + y * y), fabs(y / (x * x + y * y)) + SMALL,                    \
      x == 0 && y == 0 ? 0 : -x / (x * x + y * y), fabs(x / (x * x + y * y)) + SMALL)                                          \
    X(hypot, hypot(x, y), 0, x / hypot(x, y), hypot(x, y) > FLT_MAX ? INFINITY : 0, y / hypot(x, y),                           \
      hypot(x, y) > FLT_MAX ? INFINITY : 0)                                                           \
    X(logaddexp, fmax(x, y) + log1p(exp(-fabs(x - y))), fmin(fabs(fmax(x, y)), 1) + fabs(x - y) * exp(-fabs(x - y)),           \
      sigmoid(x - y),                                                                                                          \
      fabs(x - y) * sigmoid(x - y), sigmoid(y - x), fabs(x - y) * sigmoid(y - x))                                              \
    X(fmod, fmod(x, y), 0, 1, 0, -truncf((float)x / (float)y), 0)                                                              \
    X(remainder, remains(x, y), lost_rest(x, y), 1, 0, -(x - remains(x, y)) / y, lost_rest(x, y))
#define BINARY_FORMULA_TRUTHS(X)                                                                                               \
    X(logical_and, x != 0 && y != 0, 0, 0, 0, 0, 0)                                                                            \
    X(logical_or, x != 0 || y != 0, 0, 0, 0, 0, 0)                                                                             \
    X(logical_xor, (x != 0) != (y != 0), 0, 0, 0, 0, 0)                                                                        \
    X(xlogy, x == 0 ? 0 : x * log(y), 0, log(y), x == 0 ? INFINITY : 0, x / y, x == 0 ? INFINITY : 0)                          \
    X(trunc_divide, y == 0 ? x / y : (x - fmod(x, y)) / y, lost_rest(x, y), 0, 0, 0, 0)
#define TERM_TRUTHS(X)                                                                                                         \
    X(squared_error, (x - y) * (x - y), 0, 2 * (x - y), 0, 2 * (y - x), 0)                                                     \
    X(absolute_error, fabs(x - y), 0, sign(x - y), 0, sign(y - x), 0)                                                          \
    X(binary_cross_entropy, (y - 1) * most(log1p(-x), -100) - y * most(log(x), -100),                                          \
      sum_of(fabs((y - 1) * fmax(log1p(-x), -100)), fabs(y * fmax(log(x), -100))), (x - y) / fmax((1 - x) * x, 1e-12), 0,      \
      log1p(-x) - log(x), 1)                                                                                                   \
    X(binary_cross_entropy_with_logits, (1 - y) * fmax(x, 0) - y * fmin(x, 0) + log1p(exp(-fabs(x))),                          \
      fabs((1 - y) * x) + fabs(y * x), sigmoid(x) - y, 1 + fabs(y), -x, 0)                                                     \
    X(kl_divergence, y == 0 ? 0 : y * log(y) - y * x, sum_of(fabs(y * log(y)), fabs(y * x)) + SMALL, -y, 0, log(y) + 1 - x,    \
      fabs(log(y)) + 1 + fabs(x))                                                                                              \
    X(kl_divergence_log, exp(y) * (y - x), y < 88 && fabs(x - y) < FLT_MAX ? SMALL * fabs(x - y) : INFINITY, -exp(y),          \
      0, exp(y) * (y - x) + exp(y),                                                                                            \
      y < 88 && fabs(x - y) < FLT_MAX ? exp(y) * (1 + fabs(y - x)) + SMALL * fabs(x - y) : INFINITY)                           \
    X(huber, fabs(x - y) < 1 ? 0.5 * (x - y) * (x - y) : fabs(x - y) - 0.5, 0, clip(x - y, -1, 1), 0, clip(y - x, -1, 1), 0)   \
    X(smooth_l1, fabs(x - y) < 1 ? 0.5 * (x - y) * (x - y) : fabs(x - y) - 0.5, 0, clip(x - y, -1, 1), 0, clip(y - x, -1, 1), 0)
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
static const row rows[] = {GPUNN_UNARY_OPS(OP1) GPUNN_UNARY1_OPS(OP1) GPUNN_UNARY2_OPS(OP1) GPUNN_BINARY_OPS(OP2) GPUNN_LOSS_OPS(
    OP2) GPUNN_LOSS1_OPS(OP2) GPUNN_TERNARY_OPS(OP2) FORMULA_TRUTHS(ROW1) BINARY_FORMULA_TRUTHS(ROW2)};

/* ---- comparison ---- */
/* The last place of a float of that size. */
static double last_place(double x)
{
    return x == 0 || !(fabs(x) >= FLT_MIN) ? 0x1p-149 : ldexp(1, ilogb(x) - 23);
}

/* Within 4 last places. Subnormal numbers may be 0, also where they are parts of others. */
static bool agrees(double actual, double expected, double slack)
{
    if (isnan(expected) || isnan(actual) || slack == INFINITY) return (isnan(expected) && isnan(actual)) || slack == INFINITY;
    if (isinf(actual) || fabs(expected) > FLT_MAX)
        return fabs(expected) > FLT_MAX * (1 - 4e-7) && actual * expected > 0 && fabs(actual) > FLT_MAX * (1 - 8e-7);
    const double near = fabs(expected) < 16 * FLT_MIN ? 2 * FLT_MIN : 4 * last_place(expected);
    return fabs(actual - expected) <= near + (slack > 0 ? 4 * last_place(slack) : 0);
}

/* ---- runs ---- */
enum { SOME = 4096 }; /* random points of a row */

typedef struct sweep {
    const row    *row;
    gpunn_device *dev;
    gpunn_model  *model;
    gpunn_tensor *in[2], *out[3]; /* out[0]: the value; the others give operands that the row gives none a gradient of 0 */
    float        *found[3];       /* value and gradients */
} sweep;

static void sweep_open(sweep *s, fixture *f, const row *r)
{
    static const char *const names[] = {"x", "y"};
    s->row = r;
    s->dev = f->dev;
    s->model = f->model;
    for (int i = 0; i < r->operands; i++) {
        s->in[i] = MADE(f->dev, gpunn_input(f->model, names[i], GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH)));
        MADE(f->dev, gpunn_retain_grad(s->in[i]));
        s->out[i + 1] = MADE(f->dev, gpunn_neg(s->in[i]));
    }
    s->out[0] = MADE(f->dev, gpunn_keep(MADE(f->dev, r->build(s->in))));
}

static void sweep_run(sweep *s, const float *const *x, int64_t n)
{
    float *ones = malloc((size_t)n * sizeof *ones), *zeros = calloc((size_t)n, sizeof *zeros);
    for (int64_t i = 0; i < n; i++) ones[i] = 1;
    for (int i = 0; i < s->row->operands; i++) OK(s->dev, write_floats(s->in[i], x[i], n));
    OK(s->dev, gpunn_zero_grad(s->model));
    OK(s->dev, gpunn_backward_from(s->out, (const void *const[]){ones, zeros, zeros}, 1 + s->row->operands));
    for (int i = 0; i <= s->row->operands; i++) s->found[i] = malloc((size_t)n * sizeof **s->found);
    OK(s->dev, gpunn_read(s->out[0], s->found[0], (size_t)n * sizeof **s->found));
    for (int i = 0; i < s->row->operands; i++)
        OK(s->dev, gpunn_read_grad(s->in[i], s->found[i + 1], (size_t)n * sizeof **s->found));
    free(ones), free(zeros);
}

static const char *const parts[] = {"value", "derivative by x", "derivative by y"};

static void complain(int *bad, const sweep *s, int part, double x, double y, double actual, double expected)
{
    if ((*bad)++ < 8)
        print_error("%s of %s(%.9g, %.9g) is %.9g, should be %.9g\n", parts[part], s->row->name, x, y, actual, expected);
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
static void check_points(sweep *s, const golden *file, int *bad)
{
    const bool           pairs = s->row->operands == 2;
    const golden_tensor *x = golden_get(file, pairs ? "a" : "x"), *y = golden_get(file, pairs ? "b" : "x");
    const golden_tensor *expected = golden_find(file, "%s", s->row->name);
    if (expected == NULL) return;
    const float *at[] = {x->data, y->data}, *torch = expected->data;
    sweep_run(s, at, x->count);
    for (int k = 0; k <= s->row->operands; k++)
        for (int64_t i = 0; i < x->count; i++) {
            double       of[6] = {0};
            const double actual = s->found[k][i], wanted = torch[k * x->count + i];
            s->row->truth(at[0][i], at[1][i], of);
            if (flushed(at[0][i]) != at[0][i] && !isnan(at[0][i])) continue;
            if (!agrees(actual, wanted, of[2 * k + 1]) && !agrees(actual, of[2 * k], of[2 * k + 1]))
                complain(bad, s, k, at[0][i], pairs ? at[1][i] : 0, actual, wanted);
        }
    for (int k = 0; k <= s->row->operands; k++) free(s->found[k]);
}

/* Every power of 2 and of 10, both signs of each, what follows on them, and random bits, every other with an exponent near 0. */
static int64_t make_points(float *x, uint32_t seed)
{
    int64_t n = 0;
    for (int e = -149; e < 128; e++) x[n++] = ldexpf(1, e), x[n++] = -ldexpf(1, e);
    for (int e = -45; e < 39; e++) x[n++] = (float)pow(10, e), x[n++] = -(float)pow(10, e);
    for (int i = 0; i < 64; i++) x[n++] = (float)(i - 32) / 2;
    const int64_t listed = n;
    for (int64_t i = 0; i < listed; i++) x[n++] = nextafterf(x[i], INFINITY);
    for (int i = 0; i < SOME; i++) {
        (void)test_random(&seed);
        uint32_t bits = (seed >> 16) | (seed * 2654435761u & 0xFFFF0000u);
        if (i % 2) bits = (bits & 0x87FFFFFFu) | 0x38000000u; /* 2^-15 to 2 */
        if (i % 4 == 3) bits += 0x02000000u;                  /* 2^-11 to 32 */
        memcpy(&x[n], &bits, sizeof bits);
        n += isfinite(x[n]);
    }
    return n;
}

static void check_sweep(sweep *s, int *bad)
{
    static float  x[2][4 * 1000 + SOME];
    const int64_t n = make_points(x[0], (uint32_t)test_setting("GPUNN_TEST_SEED", 1)), shift = s->row->operands == 2 ? 7919 : 0;
    for (int64_t i = 0; i < n; i++) x[1][i] = i % 3 ? x[0][(i * 31 + shift) % n] : x[0][i];
    sweep_run(s, (const float *const[]){x[0], x[1]}, n);
    for (int64_t i = 0; i < n; i++) {
        double of[6] = {0};
        if (flushed(x[0][i]) != x[0][i] || flushed(x[1][i]) != x[1][i] ||
            flushed((double)x[0][i] - x[1][i]) != (double)x[0][i] - x[1][i])
            continue;
        s->row->truth(x[0][i], x[1][i], of);
        for (int k = 0; k <= s->row->operands; k++) {
            const double actual = s->found[k][i], wanted = of[2 * k], slack = of[2 * k + 1];
            const bool exact = k == 0 && slack == 0 && fabs(wanted) >= FLT_MIN && fabs(wanted) <= FLT_MAX && has_few_bits(wanted);
            if (k > 0 && isnan(of[0])) continue; /* outside the domain: check_points */
            if (exact ? actual != wanted : !agrees(actual, wanted, slack))
                complain(bad, s, k, x[0][i], s->row->operands == 2 ? x[1][i] : 0, actual, wanted);
        }
    }
    for (int k = 0; k <= s->row->operands; k++) free(s->found[k]);
}

static void test_row(void **state)
{
    fixture *f = *state;
    sweep    s;
    int      bad = 0;
    golden   file = golden_open("tests/golden/points.safetensors");
    memset(&s, 0, sizeof s);
    sweep_open(&s, f, f->data);
    check_points(&s, &file, &bad);
    check_sweep(&s, &bad);
    golden_close(&file);
    if (bad) fail_msg("%d results of %s are wrong", bad, s.row->name);
}

int main(void)
{
    static struct CMUnitTest tests[4 * COUNT(rows)];
    int                      count = 0;
    for (int i = 0; i < COUNT(rows); i++) count += each_backend(tests + count, rows[i].name, test_row, &rows[i]);
    count += missing_backends(tests + count);
    return _cmocka_run_group_tests("sweep", tests, (size_t)count, NULL, NULL);
}
