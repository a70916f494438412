#ifndef GPUNN__GRAPH_ARGUMENTS_H
#define GPUNN__GRAPH_ARGUMENTS_H
#include "base/structs.h"

/* ==== >>graph/arguments ================================================================================== *
 * The table of the arguments of every builder outside the elementwise tables. The spec reader, the canonical
 * text, the defaults that the spec writer omits and generator/model.schema.json (python3 -m generator.schema)
 * follow from it.
 *
 * K(struct, key, kind, default, member, about): an argument. key is torch's name and the spec's. member is
 * the field of gpunn_<struct>_args. about is a sentence for the schema.
 * A(key, kind, member): how the canonical text writes the argument of a node, from which member of
 * gpunn_attributes. The entries are in the text's order.
 * S(key, kind, place): where a node has a value that its text omits, for the spec writer. place is
 * GPUNN__MEMBER of gpunn_attributes or GPUNN__AT of a shape. */
typedef enum gpunn__key_kind {
    /* int and float: a 0 that is not the default is passed as GPUNN_ZERO */
    GPUNN__K_COUNT,   /* >= 1 */
    GPUNN__K_AMOUNT,  /* >= 0 */
    GPUNN__K_CELLS,   /* 0 or odd */
    GPUNN__K_BYTE,    /* 0 to 255 */
    GPUNN__K_INTEGER, /* any */
    GPUNN__K_AXIS,    /* -8 to 7; 0 stays 0 */
    /* int[3]: one for each spatial axis, or one for all */
    GPUNN__K_WINDOW,  /* >= 1 */
    GPUNN__K_PADDING, /* >= 0 */
    GPUNN__K_SIZES,   /* as WINDOW, with as many entries as x has spatial axes */
    GPUNN__K_FACTORS, /* double[3], as SIZES */
    /* int64_t */
    GPUNN__K_INDEX,
    GPUNN__K_END,  /* absent: GPUNN_END_OF_AXIS */
    GPUNN__K_STEP, /* >= 1 */
    GPUNN__K_WIDE, /* any */
    /* int64_t[GPUNN_MAX_RANK] */
    GPUNN__K_SHAPE,   /* sizes, "N" for the batch */
    GPUNN__K_AMOUNTS, /* >= 0, one for each axis */
    GPUNN__K_COUNTS,  /* >= 1 */
    /* float */
    GPUNN__K_NUMBER,   /* any finite number */
    GPUNN__K_POSITIVE, /* > 0 */
    GPUNN__K_SCALE,    /* >= 0 */
    GPUNN__K_SHARE,    /* 0 to 1 */
    GPUNN__K_EXTENDED, /* any number, or infinite */
    /* bool */
    GPUNN__K_FLAG,
    GPUNN__K_UNLESS,  /* the member has the opposite value */
    GPUNN__K_NO_BIAS, /* as UNLESS; the key may instead name a parameter ... */
    GPUNN__K_BIAS,    /* ... which this one takes */
    /* an enumeration: the index of a word */
    GPUNN__K_DTYPE,
    GPUNN__K_REDUCTION,
    GPUNN__K_CLASS_REDUCTION,
    GPUNN__K_GRID_MODE,
    GPUNN__K_GRID_PADDING,
    GPUNN__K_INTERPOLATE_MODE,
    GPUNN__K_PAD_MODE,
    GPUNN__K_INTEGER_OP,
    GPUNN__K_ACTIVATION, /* bool */
    /* others */
    GPUNN__K_AXES,      /* gpunn_axes */
    GPUNN__K_REFERENCE, /* gpunn_tensor * */
    GPUNN__K_TEXT,      /* const char * */
    /* parsed by the row itself */
    GPUNN__K_INIT,
    GPUNN__K_ELEMENTS,
    GPUNN__K_REFERENCES,
    GPUNN__K_FORMULA,
    GPUNN__K_CONSTS,
    GPUNN__K_NUMBERS,
    GPUNN__K_NAME,
    GPUNN__K_RESULT /* SHAPE */
} gpunn__key_kind;

/* How the canonical text writes an attribute. */
typedef enum gpunn__attribute_kind {
    GPUNN__A_BOOL,
    GPUNN__A_NOT, /* a bool stored as its opposite */
    GPUNN__A_INT,
    GPUNN__A_LAST, /* int: first of the last axes; the text has their number */
    GPUNN__A_INT64,
    GPUNN__A_DIM, /* int64_t, or a handle of a varying size */
    GPUNN__A_ROW, /* int64_t: -1 for none */
    GPUNN__A_FLOAT,
    GPUNN__A_WINDOW,          /* int for each spatial axis */
    GPUNN__A_ORDER,           /* int for each axis */
    GPUNN__A_SIZES,           /* int64_t for each axis */
    GPUNN__A_AXES,            /* a bit for each axis */
    GPUNN__A_CLASS_REDUCTION, /* this and the next five are in the order of their GPUNN__K_ kinds */
    GPUNN__A_GRID_MODE,
    GPUNN__A_GRID_PADDING,
    GPUNN__A_INTERPOLATE_MODE,
    GPUNN__A_PAD_MODE,
    GPUNN__A_INTEGER_OP,
    GPUNN__A_RATIOS, /* float for each spatial axis */
    GPUNN__A_CUSTOM, /* the op's name */
    GPUNN__A_NUMBERS,
    /* values that the text omits: */
    GPUNN__A_SIZE,      /* size of an axis; negative axes count from the end */
    GPUNN__A_COUNT,     /* number of elements of an operand */
    GPUNN__A_ALONG,     /* int: an axis of the result, whose size it is */
    GPUNN__A_SPATIAL,   /* sizes of all axes from that one on */
    GPUNN__A_EXISTS,    /* whether an operand exists, provided the one before it does */
    GPUNN__A_SAME_RANK, /* whether the result has as many axes as its first operand */
} gpunn__attribute_kind;

/* Names are arrays. A pointer takes 24 bytes more in a position-independent program, for its relocation. */
typedef struct gpunn__argument {
    char            name[24], field[24]; /* in a spec, empty at the end of a list; in C */
    double          otherwise;           /* the default */
    gpunn__key_kind kind;
    unsigned        member;
} gpunn__argument;
typedef struct gpunn__attribute {
    const char           *name;
    gpunn__attribute_kind kind;
    size_t                place; /* GPUNN__MEMBER or GPUNN__AT */
} gpunn__attribute;

typedef enum gpunn__row_kind { GPUNN__SOURCE, GPUNN__OP, GPUNN__LAYER, GPUNN__STACK } gpunn__row_kind;
enum { GPUNN__MANY = -1, GPUNN__OWN = -2 };

/* Special defaults: NEEDED: the key is required. NONE: no default, or the builder derives it. EMPTY: [] or
 * {}. */
#define GPUNN__NEEDED (-1e300)
#define GPUNN__NONE (-2e300)
#define GPUNN__EMPTY (-3e300)

/* The arguments of builders that have no argument struct. */
typedef struct gpunn__plain_args {
    int         args_;
    int         axis, count, size[3];
    bool        keepdim, largest, align_corners, saved;
    float       number, other;
    int64_t     start, end, step;
    gpunn_shape shape;
    gpunn_axes  axes;
    gpunn_dtype dtype;
    const char *text;

    gpunn_integer_op operation;
} gpunn__plain_args;
typedef struct gpunn__assign_args {
    int           args_;
    int           axis;
    gpunn_tensor *position;
    bool          in_training;
} gpunn__assign_args;

/* clang-format off */
#define GPUNN__EXPR_ARGS(K, A, S)                                                                         \
    K(_plain, expression, FORMULA, GPUNN__NEEDED, args_,                                                  \
      "Over x, y, z or x0 to x7, or the names of inputs; operators, pi, elementwise ops, max, min; sum, " \
      "mean along axes.")                                                                                 \
    K(_plain, consts, CONSTS, GPUNN__EMPTY, args_, "Numbers that the formula calls by name.")

/* Formulas inside builders of >>layers/basic and >>layers/losses. local_response_norm: y is the mean of x^2
 * over the neighbourhood. multi_margin: x, own = -x of the label, and the class numbers; the WEIGHTED formula
 * then applies class weights. rrelu: mode is as in gpunn__mode, random is uniform in [0, 1). */
#define GPUNN__LOCAL_RESPONSE "x * (k + alpha * y) ** power"
#define GPUNN__MULTI_MARGIN \
    "where(label == classes, 0, relu(margin + own + x) if p == 1 else relu(margin + own + x) ** 2)"
#define GPUNN__MULTI_MARGIN_WEIGHTED \
    "x * sum(where(label == classes, weight, 0), 1, keepdim=True)"
#define GPUNN__RRELU \
    "x if x > 0 else x * ((lower + upper) / 2 if mode == 1 else lower + (upper - lower) * random)"

/* Builders made of other ops, each by a formula (>>graph/expr). The formula's names are its operands, the
 * tensors and numbers among its keys, and rank, the rank of the first operand. F(X, name, operand count,
 * operand names, check (gpunn__fits_*), keys, struct, form, formula, about). A key "reduction" reduces the
 * formula's result. form: ARGS for gpunn_name_(operands, args), PLAIN for gpunn_name(operands), OWN if
 * >>layers/basic has the builder. */
#define GPUNN__FORMULAS(F, X)                                                                                \
    F(X, mse_loss, 2, (input, target), SAME, LOSS, loss, ARGS, "squared_error(input, target)",               \
      "(x - t)^2; inputs x, t.")                                                                             \
    F(X, l1_loss, 2, (input, target), SAME, LOSS, loss, ARGS, "absolute_error(input, target)", "|x - t|.")   \
    F(X, huber_loss, 2, (input, target), SAME, HUBER, loss, ARGS, "huber(input, target, delta)",             \
      "torch.nn.HuberLoss.")                                                                                 \
    F(X, smooth_l1_loss, 2, (input, target), SAME, SMOOTH_L1, loss, ARGS,                                    \
      "smooth_l1(input, target, beta) if beta else absolute_error(input, target)",                           \
      "torch.nn.SmoothL1Loss; beta 0: l1_loss.")                                                             \
    F(X, bce_loss, 2, (input, target), SAME, BCE, loss, ARGS,                                                \
      "each = binary_cross_entropy(input, target);"                                                          \
      "each * weight if given(weight) else each",                                                            \
      "torch.nn.BCELoss.")                                                                                   \
    F(X, bce_with_logits, 2, (input, target), SAME, BCE_LOGITS, loss, ARGS,                                  \
      "each = (1 - target) * input - (1 + (pos_weight - 1) * target) * logsigmoid(input) if "                \
      "given(pos_weight)"                                                                                    \
      "       else binary_cross_entropy_with_logits(input, target);"                                         \
      "each * weight if given(weight) else each",                                                            \
      "torch.nn.BCEWithLogitsLoss.")                                                                         \
    F(X, kl_div, 2, (input, target), SAME, KL, loss, ARGS,                                                   \
      "kl_divergence_log(input, target) if log_target else kl_divergence(input, target)",                    \
      "torch.nn.KLDivLoss; the first input holds log-probabilities.")                                        \
    F(X, gaussian_nll_loss, 3, (input, target, var), VARIANCE, GAUSSIAN, loss, ARGS,                         \
      "var = var + detach(max(var, eps) - var);"                                                             \
      "each = 0.5 * (log(var) + (input - target) ** 2 / var);"                                               \
      "each + 0.5 * log(2 * pi) if full else each",                                                          \
      "inputs x, t, and the variance, which broadcasts to x; torch.nn.GaussianNLLLoss.")                     \
    F(X, poisson_nll_loss, 2, (input, target), SAME, POISSON, loss, ARGS,                                    \
      "each = exp(input) - target * input if log_input else input - target * log(input + eps);"              \
      "each + where(target > 1, target * log(max(target, 1)) - target + 0.5 * log(2 * pi * max(target, "     \
      "1)), 0) if full"                                                                                      \
      "     else each",                                                                                      \
      "torch.nn.PoissonNLLLoss.")                                                                            \
    F(X, ncc_loss, 2, (input, target), IMAGES, NCC, ncc, ARGS,                                               \
      "a = window_mean(input, window) if window else input - mean(input, 2:, keepdim=True);"                 \
      "b = window_mean(target, window) if window else target - mean(target, 2:, keepdim=True);"              \
      "ab = (window_mean(input * target, window) - a * b) ** 2 if window else sum(a * b, 2:);"               \
      "aa = window_mean(input ** 2, window) - a ** 2 if window else sum(a ** 2, 2:);"                        \
      "bb = window_mean(target ** 2, window) - b ** 2 if window else sum(b ** 2, 2:);"                       \
      /* windows have means, not sums: the quotient is smaller by the square of a window's cells */          \
      "-mean(ab / (aa * bb + eps / (window * window) ** (rank - 2)) if window else ab / sqrt(aa * bb + "     \
      "eps))",                                                                                               \
      "Minus the normalised cross-correlation of images [n, c, ...]: of the whole, or squared, in windows.") \
    F(X, hinge_embedding_loss, 2, (x, target), SAME, HINGE, margin, ARGS,                                    \
      "where(target != 1, relu(margin - x), 0) + where(target != -1, x, 0)",                                 \
      "inputs x, target of 1 and -1; torch.nn.HingeEmbeddingLoss.")                                          \
    F(X, soft_margin_loss, 2, (x, target), SAME, SOFT_MARGIN, margin, ARGS, "-logsigmoid(target * x)",       \
      "inputs x, target of 1 and -1; torch.nn.SoftMarginLoss.")                                              \
    F(X, margin_ranking_loss, 3, (x1, x2, target), SAME, RANKING, margin, ARGS,                              \
      "relu(margin - target * (x1 - x2))",                                                                   \
      "inputs x1, x2, target of 1 and -1; torch.nn.MarginRankingLoss.")                                      \
    F(X, triplet_margin_loss, 3, (anchor, positive, negative), TRIPLET, TRIPLET, margin, ARGS,               \
      "near = norm(anchor - positive + eps, p, -1);"                                                         \
      "far = norm(anchor - negative + eps, p, -1);"                                                          \
      "far = min(far, norm(positive - negative + eps, p, -1)) if swap else far;"                             \
      "relu(margin + near - far)",                                                                           \
      "inputs anchor, positive, negative; torch.nn.TripletMarginLoss.")                                      \
    F(X, cosine_embedding_loss, 3, (x1, x2, target), PAIRS, RANKING, margin, ARGS,                           \
      "ab = x1 * x2; aa = x1 ** 2; bb = x2 ** 2; ab = sum(ab, -1); aa = sum(aa, -1); bb = sum(bb, -1);"      \
      "cosine = ab / sqrt((aa + 1e-12) * (bb + 1e-12));"                                                     \
      "where(target == 1, 1 - cosine, 0) + where(target == -1, relu(cosine - margin), 0)",                   \
      "inputs x1, x2 [n, features], target of 1 and -1 [n]; torch.nn.CosineEmbeddingLoss.")                  \
    F(X, cosine_similarity, 2, (x1, x2), ALONG, COSINE, _plain, OWN,                                         \
      "ab = x1 * x2; aa = x1 ** 2; bb = x2 ** 2; ab = sum(ab, dim); aa = sum(aa, dim); bb = sum(bb, dim);"   \
      "ab / (sqrt(clamp(aa, eps * eps, 3.4028235e38)) * sqrt(clamp(bb, eps * eps, 3.4028235e38)))",          \
      "inputs x1, x2; torch.nn.CosineSimilarity.")                                                           \
    F(X, dice_loss, 2, (x, target), CHANNELS, DICE, dice, ARGS,                                              \
      "both = x * target; one = x ** 2 if squared else x; other = target ** 2 if squared else target;"       \
      "both = sum(both, 0, 2:) if batch else sum(both, 2:);"                                                 \
      "one = sum(one, 0, 2:) if batch else sum(one, 2:);"                                                    \
      "other = sum(other, 0, 2:) if batch else sum(other, 2:);"                                              \
      "1 - (2 * both + smooth) / (one + other + smooth)",                                                    \
      "inputs probabilities and target [n, classes, ...].")                                                  \
    F(X, accuracy, 2, (logits, labels), CLASSES, NO, _plain, PLAIN,                                          \
      "mean(float(argmax(logits, 1)) == float(labels))",                                                     \
      "The share of rows of logits [n, classes] whose argmax is the label.")                                 \
    F(X, binary_accuracy, 2, (prob, target), SAME, NO, _plain, PLAIN,                                        \
      "mean((prob > 0.5) == (target > 0.5))",                                                                \
      "The share with (probability > 0.5) == (target > 0.5).")                                               \
    F(X, softshrink, 1, (x), ANY, SOFTSHRINK, _plain, OWN,                                                   \
      "where(abs(x) <= lambd, 0, x - lambd * sign(x))", "torch.nn.Softshrink.")                              \
    F(X, threshold, 1, (x), ANY, THRESHOLD, _plain, OWN, "where(x <= threshold, value, x)",                  \
      "torch.nn.Threshold.")                                                                                 \
    F(X, logit, 1, (x), ANY, LOGIT, _plain, OWN,                                                             \
      "p = clamp(x, eps, 1 - eps) if eps >= 0 else x; log(p) - log1p(-p)",                                   \
      "torch.logit; with eps below 0, of all x.")                                                            \
    F(X, tan, 1, (x), ANY, NO, _plain, PLAIN, "sin(x) / cos(x)", "torch.tan.")                               \
    F(X, ceil, 1, (x), ANY, NO, _plain, PLAIN, "-floor(-x)", "torch.ceil.")                                  \
    F(X, round, 1, (x), ANY, NO, _plain, PLAIN,                                                              \
      "f = floor(x); d = x - f; "                                                                            \
      "f if d < 0.5 else f + 1 if d > 0.5 else 2 * floor(0.5 * f + 0.5) if d == 0.5 else detach(x)",         \
      "torch.round, to even where two are as near.")                                                         \
    F(X, trunc, 1, (x), ANY, NO, _plain, PLAIN, "sign(x) * floor(abs(x))", "torch.trunc.")                   \
    F(X, frac, 1, (x), ANY, NO, _plain, PLAIN, "x - sign(x) * floor(abs(x))", "torch.frac.")                 \
    /* From 0.47 on exp(-a^2) / (sqrt(pi) s) with s = a + p / q, scaled by exp(-9087 / 65536): sqrt(pi)      \
     * has 9 bits then. b is a, rounded down to 1 / 256, so that b * b and c are exact. Within 3 ulp.        \
     * The gradient is that of -erf. */                                                                      \
    F(X, erfc, 1, (x), ANY, NO, _plain, PLAIN,                                                               \
      "a = clamp(x, 0.47, 11); b = floor(256 * a) / 256; d = a - b; c = 1.54296875 * (b + 0.1796875); "      \
      "q = 16.5851955 + a * (23.5093117 + a * (15.5940599 + a * (5.59474897 + a))); "                        \
      "p = 1.54296875 * d + (9.83905315 + a * (4.65272331 + a * a * (-0.779934824 + -0.277251035 * a))) / "  \
      "q; "                                                                                                  \
      "r = exp(-b * b + -0.138656616) / (c + (p + (c + p) * expm1(d * (a + b)))); e = erf(x); "              \
      "detach(1 - e if x < 0.47 else r) + (detach(e) - e)",                                                  \
      "torch.erfc.")                                                                                         \
    /* t is lgamma(a), a = |x|. Below 7 it is a quotient, below 1 that of 1 + a, with the factors m and      \
     * m - 1, 0 at 1 and 2; from 7 on it is Stirling's series. Below 0 it is reflected, with                 \
     * f + f h v = sin(pi f) / pi. Within 4 ulp, below 0 of lgamma(1 - x), of which much may cancel. */      \
    F(X, lgamma, 1, (x), ANY, NO, _plain, PLAIN,                                                             \
      "n = x < 0; a = clamp(-x, 0, 8388608) if n else x; c = a < 1; "                                        \
      "m = clamp(a if c else a - 1, -1, 6); w = max(a, 6.99); l = log(a); "                                  \
      "p = 63.9478874 + m * (53.562252 + m * m * (-4.00418711 + -0.258585036 * m)); "                        \
      "q = 209.441391 + m * (343.658478 + m * (169.427383 + m * (26.9790936 + m))); "                        \
      "s = (w - 0.5) * (l - 1) + 0.418938533 + (0.0833333333 + -0.00277777778 / (w * w)) / w; "              \
      "t = m * (m - 1) * (p / q + 0.271889716) if a < 7 else s; u = a - floor(a); f = min(u, 1 - u); h = f " \
      "* f; "                                                                                                \
      "v = -1.64493406 + h * (0.811742187 + h * (-0.190747961 + h * (0.0261175465 + h * -0.00223714998))); " \
      "(-t if n else t) - (l if c != n else 0) - log(f + f * (h * v) if n else 1)",                          \
      "torch.lgamma.")                                                                                       \
    F(X, tanhshrink, 1, (x), ANY, NO, _plain, PLAIN, "x - tanh(x)", "torch.nn.Tanhshrink.")                  \
    F(X, logical_not, 1, (x), ANY, NO, _plain, PLAIN, "where(x == 0, 1, 0)", "1 where x is 0, else 0.")      \
    F(X, logical_and, 2, (x, y), ANY, NO, _plain, PLAIN, "x != 0 and y != 0",                                \
      "1 where both are not 0, else 0.")                                                                     \
    F(X, logical_or, 2, (x, y), ANY, NO, _plain, PLAIN, "x != 0 or y != 0",                                  \
      "1 where one or both are not 0, else 0.")                                                              \
    F(X, logical_xor, 2, (x, y), ANY, NO, _plain, PLAIN, "(x != 0) != (y != 0)",                             \
      "1 where one of them is 0, else 0.")                                                                   \
    F(X, isnan, 1, (x), ANY, NO, _plain, PLAIN, "where(x != x, 1, 0)", "1 where x is NaN, else 0.")          \
    F(X, isinf, 1, (x), ANY, NO, _plain, PLAIN, "where(abs(x) > 3.4028234e38, 1, 0)",                        \
      "1 where x is infinite, else 0.")                                                                      \
    F(X, isfinite, 1, (x), ANY, NO, _plain, PLAIN, "where(abs(x) <= 3.4028234e38, 1, 0)",                    \
      "1 where x is neither, else 0.")                                                                       \
    F(X, xlogy, 2, (x, y), ANY, NO, _plain, PLAIN,                                                           \
      "x * log(1 if x == 0 and (y <= 0 or y > 3.4028234e38) else y)", "torch.xlogy.")                        \
    F(X, trunc_divide, 2, (x, y), ANY, NO, _plain, PLAIN,                                                    \
      "sign(x) * where(y < 0, -1, where(1 / y < 0, -1, 1)) * floor_divide(abs(x), abs(y))",                  \
      "x / y rounded towards 0, without gradient: torch.div with rounding_mode trunc.")
#define GPUNN__FORMULA_ROW(X, name, count, names, fits, keys, args, form, formula, about) \
    X(OP, name, NONE, count, 0, keys, args, gpunn__composite(&gpunn__formula_of_##name, in, a), about)

#define GPUNN__SIGNATURE_ROW(X, ENUM, name, count, operands, reads, reads_out, backward, traits, signature, \
                             keys, args, form, about)                                                       \
    X(OP, name, ENUM, count, 0, keys, args, gpunn__signature_node(&gpunn__operation_##name, in, a), about)

/* X(kind, name, op, operands, spatial axes, keys, struct, call, about). kind: LAYER has parameters below its
 * name; STACK has those of its layers; SOURCE is a named tensor without operands. op: the op of the nodes
 * whose text has the keys; NONE if another row has it. operands: MANY for 1 to GPUNN_MAX_OPERANDS, OWN if the
 * row parses them. call: expression that builds it from in, name and the struct a. */
#define GPUNN__ROWS(X)                                                                                       \
    X(SOURCE, input, NONE, 0, 0, INPUT, _plain, gpunn_input(l->model, name, a->dtype, a->shape),             \
      "A value that the program writes before each run.")                                                    \
    X(SOURCE, parameter, NONE, 0, 0, PARAMETER, _plain, gpunn__make_parameter(l, e, a),                      \
      "A parameter of the model's own.")                                                                     \
    X(SOURCE, state, NONE, 0, 0, STATE, _plain, gpunn__make_state(l, e, a),                                  \
      "What runs leave to those that follow.")                                                               \
    X(OP, constant, NONE, 0, 0, CONSTANT, _plain, gpunn__make_constant(l, e, a),                             \
      "Values that never change.")                                                                           \
    X(LAYER, linear, LINEAR, 1, 0, LINEAR, linear, gpunn_linear_(in[0], name, *a),                           \
      "x [..., in] -> [..., out_features]; torch.nn.Linear.")                                                \
    X(LAYER, embedding, EMBEDDING, 1, 0, EMBEDDING, embedding, gpunn_embedding_(in[0], name, *a),            \
      "i64 or i32 tokens [...] -> [..., embedding_dim]; torch.nn.Embedding.")                                \
    X(LAYER, conv1d, CONV1D, 1, 1, CONV, conv, gpunn_conv1d_(in[0], name, *a),                               \
      "x [n, c, l]; torch.nn.Conv1d.")                                                                       \
    X(LAYER, conv2d, CONV2D, 1, 2, CONV, conv, gpunn_conv2d_(in[0], name, *a),                               \
      "x [n, c, h, w]; torch.nn.Conv2d.")                                                                    \
    X(LAYER, conv3d, CONV3D, 1, 3, CONV, conv, gpunn_conv3d_(in[0], name, *a),                               \
      "x [n, c, d, h, w]; torch.nn.Conv3d.")                                                                 \
    X(LAYER, conv_transpose1d, CONV_TRANSPOSE1D, 1, 1, CONV_TRANSPOSE, conv,                                 \
      gpunn_conv_transpose1d_(in[0], name, *a),                                                              \
      "x [n, c, l]; torch.nn.ConvTranspose1d.")                                                              \
    X(LAYER, conv_transpose2d, CONV_TRANSPOSE2D, 1, 2, CONV_TRANSPOSE, conv,                                 \
      gpunn_conv_transpose2d_(in[0], name, *a),                                                              \
      "x [n, c, h, w]; torch.nn.ConvTranspose2d.")                                                           \
    X(LAYER, conv_transpose3d, CONV_TRANSPOSE3D, 1, 3, CONV_TRANSPOSE, conv,                                 \
      gpunn_conv_transpose3d_(in[0], name, *a),                                                              \
      "x [n, c, d, h, w]; torch.nn.ConvTranspose3d.")                                                        \
    X(LAYER, batch_norm1d, BATCH_NORM, 1, 0, BATCH_NORM, batch_norm, gpunn_batch_norm1d_(in[0], name, *a),   \
      "x [n, c] or [n, c, l]; torch.nn.BatchNorm1d.")                                                        \
    X(LAYER, batch_norm2d, BATCH_NORM, 1, 0, BATCH_NORM, batch_norm, gpunn_batch_norm2d_(in[0], name, *a),   \
      "x [n, c, h, w]; torch.nn.BatchNorm2d.")                                                               \
    X(LAYER, batch_norm3d, BATCH_NORM, 1, 0, BATCH_NORM, batch_norm, gpunn_batch_norm3d_(in[0], name, *a),   \
      "x [n, c, d, h, w]; torch.nn.BatchNorm3d.")                                                            \
    X(LAYER, group_norm, GROUP_NORM, 1, 0, GROUP_NORM, group_norm, gpunn_group_norm_(in[0], name, *a),       \
      "x [n, c, ...], normalised over the channels of each group; torch.nn.GroupNorm.")                      \
    X(LAYER, instance_norm1d, INSTANCE_NORM, 1, 0, INSTANCE_NORM, instance_norm,                             \
      gpunn_instance_norm1d_(in[0], name, *a),                                                               \
      "x [n, c, l]: group_norm of as many groups as channels; torch.nn.InstanceNorm1d.")                     \
    X(LAYER, instance_norm2d, INSTANCE_NORM, 1, 0, INSTANCE_NORM, instance_norm,                             \
      gpunn_instance_norm2d_(in[0], name, *a),                                                               \
      "x [n, c, h, w]; torch.nn.InstanceNorm2d.")                                                            \
    X(LAYER, instance_norm3d, INSTANCE_NORM, 1, 0, INSTANCE_NORM, instance_norm,                             \
      gpunn_instance_norm3d_(in[0], name, *a),                                                               \
      "x [n, c, d, h, w]; torch.nn.InstanceNorm3d.")                                                         \
    X(LAYER, layer_norm, LAYER_NORM, 1, 0, LAYER_NORM, layer_norm, gpunn_layer_norm_(in[0], name, *a),       \
      "Normalises over the last axes; torch.nn.LayerNorm.")                                                  \
    X(LAYER, rms_norm, RMS_NORM, 1, 0, RMS_NORM, layer_norm, gpunn_rms_norm_(in[0], name, *a),               \
      "Divides by the root of the mean square over the last axes; torch.nn.RMSNorm.")                        \
    X(OP, rnn, RNN, 1, 0, RNN, rnn,                                                                          \
      gpunn__make_recurrent(l, e, a, &gpunn__operation_rnn),                                                 \
      "One layer of torch.nn.RNN: x [length, n, features], result [length, n, directions * hidden_size].")   \
    X(OP, lstm, LSTM, 1, 0, LSTM, rnn,                                                                       \
      gpunn__make_recurrent(l, e, a, &gpunn__operation_lstm),                                                \
      "One layer of torch.nn.LSTM: x [length, n, features], result [length, n, directions * hidden_size].")  \
    X(OP, gru, GRU, 1, 0, GRU, rnn,                                                                          \
      gpunn__make_recurrent(l, e, a, &gpunn__operation_gru),                                                 \
      "One layer of torch.nn.GRU: x [length, n, features], result [length, n, directions * hidden_size].")   \
    X(LAYER, prelu, NONE, 1, 0, PRELU, _plain, gpunn_prelu(in[0], name, a->count, a->number),                \
      "max(x, 0) + weight min(x, 0); torch.nn.PReLU.")                                                       \
    X(OP, matmul, MATMUL, 2, 0, MATMUL, matmul, gpunn_matmul_(in[0], in[1], *a),                             \
      "torch.matmul of [..., m, k] and [..., k, n]; leading axes broadcast.")                                \
    X(OP, scaled_dot_product_attention, ATTENTION, GPUNN__OWN, 0, ATTENTION, attention,                      \
      gpunn__make_attention(l, e, a),                                                                        \
      "torch's, of q [n, heads, l, e], k [n, heads, s, e], v [n, heads, s, ev]; or of all in one, [n, l, "   \
      "3, heads, e].")                                                                                       \
    X(OP, quantized_conv2d, QUANTIZED_CONV2D, 4, 2, QUANTIZED_CONV, quantized_conv,                          \
      gpunn_quantized_conv2d_(in[0], in[1], in[2], in[3], *a),                                               \
      "x u8 [n, c, h, w], weight [out, c / groups, kh, kw], weight_scale [out], bias [out] -> u8; "          \
      "torch.ops.quantized.conv2d.")                                                                         \
    X(OP, rotary_embedding, NONE, 2, 0, ROTARY, rotary, gpunn_rotary_embedding_(in[0], in[1], *a),           \
      "x [n, heads, l, e], positions i64 or i32 [l] or [n, l]: turns each pair of features by position * "   \
      "frequency.")                                                                                          \
    X(STACK, multi_head_attention, NONE, 3, 0, MULTI_HEAD, multi_head_attention,                             \
      gpunn_multi_head_attention_(in[0], in[1], in[2], name, *a),                                            \
      "query, key, value [n, rows, size]; torch.nn.MultiheadAttention.")                                     \
    X(STACK, transformer_encoder_layer, NONE, 1, 0, ENCODER_LAYER, transformer,                              \
      gpunn_transformer_encoder_layer_(in[0], name, *a),                                                     \
      "src [n, rows, size]; torch.nn.TransformerEncoderLayer.")                                              \
    X(STACK, transformer_decoder_layer, NONE, 2, 0, DECODER_LAYER, transformer,                              \
      gpunn_transformer_decoder_layer_(in[0], in[1], name, *a),                                              \
      "tgt, memory [n, rows, size]; torch.nn.TransformerDecoderLayer.")                                      \
    X(STACK, transformer_encoder, NONE, 1, 0, ENCODER, transformer,                                          \
      gpunn_transformer_encoder_(in[0], name, *a),                                                           \
      "src [n, rows, size]; torch.nn.TransformerEncoder: name.layers.0 and so on.")                          \
    X(STACK, transformer_decoder, NONE, 2, 0, DECODER, transformer,                                          \
      gpunn_transformer_decoder_(in[0], in[1], name, *a),                                                    \
      "tgt, memory [n, rows, size]; torch.nn.TransformerDecoder: name.layers.0 and so on.")                  \
    X(OP, max_pool1d, NONE, 1, 1, MAX_POOL, pool, gpunn_max_pool1d_(in[0], *a),                              \
      "x [n, c, l]; torch.nn.MaxPool1d.")                                                                    \
    X(OP, max_pool2d, MAX_POOL2D, 1, 2, MAX_POOL, pool, gpunn_max_pool2d_(in[0], *a),                        \
      "x [n, c, h, w]; torch.nn.MaxPool2d.")                                                                 \
    X(OP, max_pool3d, MAX_POOL3D, 1, 3, MAX_POOL, pool, gpunn_max_pool3d_(in[0], *a),                        \
      "x [n, c, d, h, w]; torch.nn.MaxPool3d.")                                                              \
    X(OP, avg_pool1d, NONE, 1, 1, AVG_POOL, pool, gpunn_avg_pool1d_(in[0], *a),                              \
      "x [n, c, l]; torch.nn.AvgPool1d.")                                                                    \
    X(OP, avg_pool2d, AVG_POOL2D, 1, 2, AVG_POOL, pool, gpunn_avg_pool2d_(in[0], *a),                        \
      "x [n, c, h, w]; torch.nn.AvgPool2d.")                                                                 \
    X(OP, avg_pool3d, AVG_POOL3D, 1, 3, AVG_POOL, pool, gpunn_avg_pool3d_(in[0], *a),                        \
      "x [n, c, d, h, w]; torch.nn.AvgPool3d.")                                                              \
    X(OP, adaptive_max_pool1d, NONE, 1, 1, ADAPTIVE_POOL, _plain,                                            \
      gpunn_adaptive_max_pool1d(in[0], a->size[0]),                                                          \
      "x [n, c, l] -> [n, c, output_size].")                                                                 \
    X(OP, adaptive_max_pool2d, NONE, 1, 2, ADAPTIVE_POOL, _plain,                                            \
      gpunn_adaptive_max_pool2d(in[0], a->size[0], a->size[1]),                                              \
      "x [n, c, h, w] -> [n, c, output_size].")                                                              \
    X(OP, adaptive_max_pool3d, NONE, 1, 3, ADAPTIVE_POOL, _plain,                                            \
      gpunn_adaptive_max_pool3d(in[0], a->size[0], a->size[1], a->size[2]),                                  \
      "x [n, c, d, h, w] -> [n, c, output_size].")                                                           \
    X(OP, adaptive_avg_pool1d, NONE, 1, 1, ADAPTIVE_POOL, _plain,                                            \
      gpunn_adaptive_avg_pool1d(in[0], a->size[0]),                                                          \
      "x [n, c, l] -> [n, c, output_size].")                                                                 \
    X(OP, adaptive_avg_pool2d, NONE, 1, 2, ADAPTIVE_POOL, _plain,                                            \
      gpunn_adaptive_avg_pool2d(in[0], a->size[0], a->size[1]),                                              \
      "x [n, c, h, w] -> [n, c, output_size].")                                                              \
    X(OP, adaptive_avg_pool3d, NONE, 1, 3, ADAPTIVE_POOL, _plain,                                            \
      gpunn_adaptive_avg_pool3d(in[0], a->size[0], a->size[1], a->size[2]),                                  \
      "x [n, c, d, h, w] -> [n, c, output_size].")                                                           \
    X(OP, grid_sample, GRID_SAMPLE, 2, 0, GRID, grid, gpunn_grid_sample_(in[0], in[1], *a),                  \
      "x [n, c, h, w] at the points of grid [n, oh, ow, 2]; x [n, c, d, h, w], grid [n, od, oh, ow, 3].")    \
    X(OP, roi_align, ROI_ALIGN, 2, 2, ROI, roi, gpunn_roi_align_(in[0], in[1], *a),                          \
      "x [n, c, h, w], boxes [k, 5] of a sample's number, x1, y1, x2, y2; torchvision.ops.roi_align.")       \
    X(OP, affine_grid, AFFINE_GRID, 1, 0, AFFINE_GRID, _plain,                                               \
      gpunn_affine_grid(in[0], a->shape, a->align_corners),                                                  \
      "The grid that samples through theta [n, 2, 3] or [n, 3, 4].")                                         \
    X(OP, interpolate, INTERPOLATE, 1, 0, INTERPOLATE, interpolate, gpunn_interpolate_(in[0], *a),           \
      "x [n, c, l], [n, c, h, w] or [n, c, d, h, w]; torch.nn.functional.interpolate.")                      \
    X(OP, local_response_norm, NONE, 1, 0, LOCAL_RESPONSE_NORM, local_response_norm,                         \
      gpunn_local_response_norm_(in[0], *a),                                                                 \
      "x [n, channels, ...] / (k + alpha * mean of x^2 over the channels around each)^beta.")                \
    X(OP, dropout, DROPOUT, 1, 0, DROPOUT, _plain, gpunn_dropout(in[0], gpunn__default_float(a->number, 0)), \
      "Zeroes elements with probability p in training; torch.nn.Dropout.")                                   \
    X(OP, rrelu, NONE, 1, 0, RRELU, _plain,                                                                  \
      gpunn_rrelu(in[0], gpunn__default_float(a->number, 0), gpunn__default_float(a->other, 0)),             \
      "x above 0, else x times a random slope from lower to upper in training, in evaluation their mean; "   \
      "torch.nn.RReLU.")                                                                                     \
    X(OP, rand_like, RAND_LIKE, 1, 0, NO, _plain, gpunn_rand_like(in[0]),                                    \
      "Uniform numbers from 0 to 1 in the shape of its input, other ones in every run.")                     \
    X(OP, randn_like, RANDN_LIKE, 1, 0, NO, _plain, gpunn_randn_like(in[0]), "The same, normal.")            \
    X(OP, reshape, NONE, 1, 0, SHAPE, _plain, gpunn_reshape(in[0], a->shape),                                \
      "Another shape of as many elements; \"N\" is the batch, not what is left over.")                       \
    X(OP, flatten, NONE, 1, 0, NO, _plain, gpunn_flatten(in[0]), "[n, ...] -> [n, rest].")                   \
    X(OP, permute, PERMUTE, 1, 0, PERMUTE, _plain, gpunn_permute(in[0], a->axes),                            \
      "Axis i of the result is axis dims[i] of x.")                                                          \
    X(OP, concat, CONCAT, GPUNN__MANY, 0, CONCAT, _plain, gpunn_concat(in, e->count, a->axis), "torch.cat.") \
    X(OP, slice, SLICE, 1, 0, SLICE, _plain, gpunn_slice(in[0], a->axis, a->start, a->end, a->step),         \
      "x[start:end:step] along one axis, as Python's.")                                                      \
    X(OP, pad, PAD, 1, 0, PAD, pad, gpunn_pad_(in[0], *a),                                                   \
      "before and after are lists by the axes of x, the missing ones 0.")                                    \
    X(OP, gather, GATHER, 2, 0, AXIS, _plain, gpunn_gather(in[0], a->axis, in[1]),                           \
      "x, then i64 or i32 indices of as many axes: torch.gather.")                                           \
    X(OP, scatter_add, SCATTER_ADD, 3, 0, AXIS, _plain, gpunn_scatter_add(in[0], a->axis, in[1], in[2]),     \
      "x, i64 or i32 indices, and as many values that are added there: torch.scatter_add.")                  \
    X(OP, scatter, SCATTER, 3, 0, AXIS, _plain, gpunn_scatter(in[0], a->axis, in[1], in[2]),                 \
      "The same with the values in the place of x's, of several for one place the last: torch.scatter.")     \
    X(OP, expand, NONE, 1, 0, SHAPE, _plain, gpunn_expand(in[0], a->shape),                                  \
      "Copies along axes of size 1 and new ones in front; ops that broadcast need none of it.")              \
    X(OP, tile, NONE, 1, 0, TILE, _plain, gpunn_tile(in[0], a->shape), "torch.tile.")                        \
    X(OP, stack, NONE, GPUNN__MANY, 0, CONCAT, _plain, gpunn_stack(in, e->count, a->axis), "torch.stack.")   \
    X(OP, one_hot, NONE, 1, 0, ONE_HOT, _plain, gpunn_one_hot(in[0], a->count),                              \
      "i64, i32 or u8 [...] -> f32 [..., num_classes].")                                                     \
    X(OP, frequency_encoding, NONE, 1, 0, FREQUENCY, _plain, gpunn_frequency_encoding(in[0], a->count),      \
      "[..., d] -> [..., d * 2 * num_frequencies]: sin and cos of pi, 2 pi, 4 pi, ... times each.")          \
    X(OP, one_blob_encoding, NONE, 1, 0, ONE_BLOB, _plain, gpunn_one_blob_encoding(in[0], a->count),         \
      "[..., d] -> [..., d * num_bins]: of each exp(-(num_bins x - i - 0.5)^2 / 2).")                        \
    X(LAYER, hash_grid_encoding, HASH_GRID, 1, 0, HASH_GRID, hash_grid,                                      \
      gpunn_hash_grid_encoding_(in[0], name, *a),                                                            \
      "[..., d] -> [..., n_levels * n_features_per_level]: features of a multi-resolution hash grid.")       \
    X(OP, spherical_harmonics_encoding, NONE, 1, 0, HARMONICS, _plain,                                       \
      gpunn_spherical_harmonics_encoding(in[0], a->count),                                                   \
      "[..., 3] -> [..., degree * degree]: the real spherical harmonics of degrees below degree, 1 to 4.")   \
    X(OP, cast, NONE, 1, 0, CAST, _plain, gpunn_cast(in[0], a->dtype),                                       \
      "Between f32, i64, i32, u8 and bool; without gradient.")                                               \
    X(OP, integer, INTEGER, GPUNN__MANY, 0, INTEGER, _plain,                                                 \
      gpunn__integer_node(a->operation, in, e->count, a->start),                                             \
      "An elementwise op of i64, i32, u8 and bool: of as many inputs as it has, or one less and a value.")   \
    X(OP, sum, SUM, 1, 0, SUM, _plain, gpunn_sum(in[0], a->axes, a->keepdim), "torch.sum.")                  \
    X(OP, mean, NONE, 1, 0, REDUCTION, _plain, gpunn_mean(in[0], a->axes, a->keepdim), "torch.mean.")        \
    X(OP, max, MAX, 1, 0, REDUCTION, _plain, gpunn_max(in[0], a->axes, a->keepdim),                          \
      "torch.amax: ties share the gradient.")                                                                \
    X(OP, gradient_energy, GRADIENT_ENERGY, 1, 0, DIMS, _plain, gpunn_gradient_energy(in[0], a->axes),       \
      "For each of the axes the mean of the squared differences of neighbours along it, summed: a scalar.")  \
    X(OP, argmax, ARGMAX, 1, 0, ARGMAX, _plain, gpunn_argmax(in[0], a->axis, a->keepdim),                    \
      "The first maximum, i64.")                                                                             \
    X(OP, argmin, NONE, 1, 0, ARGMAX, _plain, gpunn_argmin(in[0], a->axis, a->keepdim),                      \
      "The first minimum, i64.")                                                                             \
    X(OP, cumsum, CUMSUM, 1, 0, AXIS, _plain, gpunn_cumsum(in[0], a->axis), "torch.cumsum.")                 \
    X(OP, topk_indices, TOPK_INDICES, 1, 0, TOPK, _plain, gpunn_topk_indices(in[0], a->count, a->axis,       \
      a->largest),                                                                                           \
      "The places, i64, of the k largest or smallest in their order; gather takes the values.")              \
    X(OP, sample, SAMPLE, 2, 0, SAMPLE, sample, gpunn_sample_(in[0], in[1], *a),                             \
      "The class, i64 [n], that numbers from 0 to 1 [n] draw from softmax(logits / temperature) of each "    \
      "row [n, classes].")                                                                                   \
    X(OP, einsum, NONE, GPUNN__MANY, 0, EINSUM, _plain, gpunn_einsum(a->text, in, e->count),                 \
      "torch.einsum of one or two tensors.")                                                                 \
    X(OP, assign, ASSIGN, 2, 0, ASSIGN, _assign, gpunn__make_assign(in, a),                                  \
      "A state, or what an assignment gave, and its new value, or that of its places from position on.")     \
    X(OP, expr, NONE, GPUNN__OWN, 0, EXPR, _plain, gpunn__make_expr(l, e),                                   \
      "A formula over its inputs, in the language of gpunn_expr.")                                           \
    X(OP, cross_entropy, CROSS_ENTROPY, 2, 0, CROSS_ENTROPY, class_loss,                                     \
      gpunn_cross_entropy_(in[0], in[1], *a),                                                                \
      "logits [n, classes, ...], labels [n, ...]; torch.nn.CrossEntropyLoss.")                               \
    X(OP, nll_loss, NLL, 2, 0, NLL, class_loss, gpunn_nll_loss_(in[0], in[1], *a),                           \
      "log-probabilities [n, classes, ...], labels [n, ...]; torch.nn.NLLLoss.")                             \
    X(OP, multi_margin_loss, NONE, 2, 0, MULTI_MARGIN, margin, gpunn_multi_margin_loss_(in[0], in[1], *a),   \
      "inputs x [n, classes], labels [n]; torch.nn.MultiMarginLoss.")                                        \
    X(OP, ctc_loss, CTC_LOSS, 4, 0, CTC, ctc, gpunn_ctc_loss_(in[0], in[1], in[2], in[3], *a),               \
      "inputs log-probabilities [t, n, classes], targets [n, most], input lengths [n], target lengths [n]; " \
      "torch.nn.CTCLoss.")                                                                                   \
    X(OP, custom, CUSTOM, GPUNN__MANY, 0, CUSTOM, custom, gpunn__make_custom(l, e, a),                       \
      "An op of the program's own (gpunn_custom), which gpunn_register_custom must have told the device.")   \
    GPUNN_SIGNATURE_OPS(GPUNN__SIGNATURE_ROW, X)                                                             \
    GPUNN__FORMULAS(GPUNN__FORMULA_ROW, X)
/* clang-format on */
GPUNN__PRIVATE const char *const gpunn__pad_mode_names[] = {"constant", "reflect", "replicate", "circular"};
#define GPUNN__X(ENUM, name, ...) #name,
static const char *const gpunn__integer_names[] = {GPUNN_INTEGER_OPS(GPUNN__X)};
#undef GPUNN__X
/* The words of an enumeration kind (from DTYPE on), in the order of their values, and how messages describe
 * the values in C. */
typedef struct gpunn__choice {
    const char *const *words;
    int                count;
    const char        *in_c;
} gpunn__choice;
#define GPUNN__WORDS(words) words, (int)(sizeof(words) / sizeof *(words))

/* Words of an enumeration kind. */
GPUNN__INTERNAL const gpunn__choice *gpunn__choice_of(gpunn__key_kind kind);

/* The rows of the table. arguments and attributes are lists that end with a NULL name. */
typedef struct gpunn__row {
    const char             *name;
    gpunn__row_kind         kind;
    gpunn_op                op;
    int                     operands, axes;
    const char             *args; /* name of the argument struct */
    const gpunn__argument  *arguments;
    const gpunn__attribute *attributes;
} gpunn__row;
#define GPUNN__X(...) +1
enum { GPUNN__ROW_COUNT = 0 GPUNN__ROWS(GPUNN__X) };
#undef GPUNN__X
GPUNN__DECLARE(const gpunn__row gpunn__rows[GPUNN__ROW_COUNT])
/* For each row: where nodes have the keys that the canonical text omits. */
GPUNN__DECLARE(const gpunn__attribute *const gpunn__shown[GPUNN__ROW_COUNT])

/* The row with that name; NULL: none. */
GPUNN__INTERNAL const gpunn__row *gpunn__row_called(const char *name);

/* How the canonical text writes an op's attributes; ends with a NULL name. */
GPUNN__INTERNAL const gpunn__attribute *gpunn__attributes_of(gpunn_op op);

/* The value of a field of arguments. 0 stands for the default, GPUNN_ZERO for 0. */
GPUNN__INLINE int gpunn__default_int(int value, int standard)
{
    if (value == 0) return standard;
    return value == GPUNN_ZERO ? 0 : value;
}

GPUNN__INLINE float gpunn__default_float(float value, float standard)
{
    if (value == 0) return standard;
    return value == (float)GPUNN_ZERO ? 0 : value;
}

#endif /* GPUNN__GRAPH_ARGUMENTS_H */
