/* The cases of tests/golden/criteria.py, and gradients of the same losses. */
/* clang-format off */
#define IN_SUM .reduction = GPUNN_REDUCE_SUM
#define EACH .reduction = GPUNN_REDUCE_NONE
#define OF_X(text) gpunn_expr(text, (gpunn_tensor *[]){in("x")}, 1)
#define OF_X_T(text) gpunn_expr(text, (gpunn_tensor *[]){in("x"), in("t")}, 2)
#define CTC(...) gpunn_ctc_loss(gpunn_log_softmax(in("x"), -1), in("t"), in("i"), in("l"), __VA_ARGS__)
/* X(name before the dot, name after it, builder) */
#define CRITERIA_CASES(X)                                                                                                       \
    X(hinge_embedding_loss, "", gpunn_hinge_embedding_loss(in("x"), in("t")))                                                   \
    X(hinge_embedding_loss, "_sum", gpunn_hinge_embedding_loss(in("x"), in("t"), .margin = 0.3f, IN_SUM))                       \
    X(hinge_embedding_loss, "_none", gpunn_hinge_embedding_loss(in("x"), in("t"), .margin = -0.2f, EACH))                       \
    X(hinge_embedding_loss, "_edge", gpunn_hinge_embedding_loss(in("x"), in("t")))                                              \
    X(margin_ranking_loss, "", gpunn_margin_ranking_loss(in("a"), in("b"), in("t")))                                            \
    X(margin_ranking_loss, "_sum", gpunn_margin_ranking_loss(in("a"), in("b"), in("t"), .margin = 0.3f, IN_SUM))                \
    X(margin_ranking_loss, "_none", gpunn_margin_ranking_loss(in("a"), in("b"), in("t"), .margin = -0.2f, EACH))                \
    X(cosine_embedding_loss, "", gpunn_cosine_embedding_loss(in("a"), in("b"), in("t")))                                        \
    X(cosine_embedding_loss, "_sum", gpunn_cosine_embedding_loss(in("a"), in("b"), in("t"), .margin = 0.3f, IN_SUM))            \
    X(cosine_embedding_loss, "_none", gpunn_cosine_embedding_loss(in("a"), in("b"), in("t"), .margin = -0.2f, EACH))            \
    X(cosine_embedding_loss, "_one", gpunn_cosine_embedding_loss(in("a"), in("b"), in("t")))                                    \
    X(multi_margin_loss, "", gpunn_multi_margin_loss(in("x"), in("t")))                                                         \
    X(multi_margin_loss, "_weight", gpunn_multi_margin_loss(in("x"), in("t"), .weight = in("w")))                               \
    X(multi_margin_loss, "_2", gpunn_multi_margin_loss(in("x"), in("t"), .p = 2, .margin = 0.4f))                               \
    X(multi_margin_loss, "_2_weight", gpunn_multi_margin_loss(in("x"), in("t"), .margin = 0.4f, .p = 2, .weight = in("w")))     \
    X(multi_margin_loss, "_sum", gpunn_multi_margin_loss(in("x"), in("t"), IN_SUM))                                             \
    X(multi_margin_loss, "_sum_weight", gpunn_multi_margin_loss(in("x"), in("t"), IN_SUM, .weight = in("w")))                   \
    X(multi_margin_loss, "_none", gpunn_multi_margin_loss(in("x"), in("t"), EACH))                                              \
    X(multi_margin_loss, "_none_weight", gpunn_multi_margin_loss(in("x"), in("t"), EACH, .weight = in("w")))                    \
    X(multi_margin_loss, "_long", gpunn_multi_margin_loss(in("x"), in("t")))                                                    \
    X(triplet_margin_loss, "", gpunn_triplet_margin_loss(in("a"), in("p"), in("n")))                                            \
    X(triplet_margin_loss, "_swap", gpunn_triplet_margin_loss(in("a"), in("p"), in("n"), .swap = true))                         \
    X(triplet_margin_loss, "_1", gpunn_triplet_margin_loss(in("a"), in("p"), in("n"), .p = 1))                                  \
    X(triplet_margin_loss, "_3", gpunn_triplet_margin_loss(in("a"), in("p"), in("n"), .margin = 2, .p = 3))                     \
    X(triplet_margin_loss, "_inf", gpunn_triplet_margin_loss(in("a"), in("p"), in("n"), .p = INFINITY))                         \
    X(triplet_margin_loss, "_sum", gpunn_triplet_margin_loss(in("a"), in("p"), in("n"), IN_SUM, .eps = 0.1f))                   \
    X(triplet_margin_loss, "_none", gpunn_triplet_margin_loss(in("a"), in("p"), in("n"), EACH))                                 \
    X(triplet_margin_loss, "_one", gpunn_triplet_margin_loss(in("a"), in("p"), in("n")))                                        \
    X(triplet_margin_loss, "_edge", gpunn_triplet_margin_loss(in("a"), in("p"), in("n"), .eps = GPUNN_ZERO))                    \
    X(cosine_similarity, "", gpunn_cosine_similarity(in("a"), in("b"), 1, 0))                                                   \
    X(cosine_similarity, "_last", gpunn_cosine_similarity(in("a"), in("b"), -1, 0.5f))                                          \
    X(cosine_similarity, "_pairs", gpunn_cosine_similarity(in("a"), in("b"), 2, 0))                                             \
    X(cosine_similarity, "_zero", gpunn_cosine_similarity(in("a"), in("b"), 1, 0))                                              \
    X(dice_loss, "", gpunn_dice_loss(in("x"), in("t")))                                                                         \
    X(dice_loss, "_options", gpunn_dice_loss(in("x"), in("t"), IN_SUM, .smooth = 1, .squared = true))                           \
    X(dice_loss, "_none", gpunn_dice_loss(in("x"), in("t"), EACH))                                                              \
    X(dice_loss, "_batch", gpunn_dice_loss(in("x"), in("t"), EACH, .batch = true))                                              \
    X(dice_loss, "_binary", gpunn_dice_loss(in("x"), in("t")))                                                                  \
    X(dice_loss, "_flat", gpunn_dice_loss(in("x"), in("t"), .batch = true))                                                     \
    X(ctc_loss, "", CTC(.blank = 0))                                                                                            \
    X(ctc_loss, "_sum", CTC(IN_SUM, .blank = 2))                                                                                \
    X(ctc_loss, "_none", CTC(EACH, .blank = 5))                                                                                 \
    X(ctc_loss, "_first", CTC(.batch_first = true))                                                                             \
    X(ctc_loss, "_infinite", CTC(.blank = 3, .zero_infinity = true))                                                            \
    X(ctc_loss, "_repeats", CTC(.blank = 0))                                                                                    \
    X(ctc_loss, "_one", CTC(.blank = 0))                                                                                        \
    X(ctc_loss, "_long", CTC(.blank = 0))                                                                                       \
    X(gaussian_nll_loss, "", gpunn_gaussian_nll_loss(in("x"), in("t"), in("v")))                                                \
    X(gaussian_nll_loss, "_full", gpunn_gaussian_nll_loss(in("x"), in("t"), in("v"), .full = true, IN_SUM))                     \
    X(gaussian_nll_loss, "_none", gpunn_gaussian_nll_loss(in("x"), in("t"), in("v"), .eps = 0.5f, EACH))                        \
    X(gaussian_nll_loss, "_one", gpunn_gaussian_nll_loss(in("x"), in("t"), in("v")))                                            \
    X(soft_margin_loss, "", gpunn_soft_margin_loss(in("x"), in("t")))                                                           \
    X(soft_margin_loss, "_sum", gpunn_soft_margin_loss(in("x"), in("t"), IN_SUM))                                               \
    X(soft_margin_loss, "_none", gpunn_soft_margin_loss(in("x"), in("t"), EACH))                                                \
    X(poisson_nll_loss, "", gpunn_poisson_nll_loss(in("x"), in("t")))                                                           \
    X(poisson_nll_loss, "_full", gpunn_poisson_nll_loss(in("x"), in("t"), .full = true))                                        \
    X(poisson_nll_loss, "_rate", gpunn_poisson_nll_loss(in("x"), in("t"), IN_SUM, .no_log_input = true, .eps = 0.01f))          \
    X(poisson_nll_loss, "_full_rate", gpunn_poisson_nll_loss(in("x"), in("t"), EACH, .no_log_input = true, .full = true))       \
    X(formula, "_norm_2", OF_X("norm(x, 2, 1, 2, keepdim=True) * x"))                                                           \
    X(formula, "_norm_3", OF_X("norm(x, 3, 1:, keepdim=True) * x"))                                                             \
    X(formula, "_norm_1", OF_X("norm(x, 1, -2:, keepdim=True) * x"))                                                            \
    X(formula, "_norm_inf", OF_X("norm(x, 1 / 0, 2, 1, keepdim=True) * x"))                                                     \
    X(formula, "_norms", OF_X("t = x - mean(x, 2:, keepdim=True); t / sqrt(mean(t ** 2, 2:, keepdim=True) + 1e-5)"))            \
    X(formula, "_windows", OF_X("window_mean(x, 5)"))                                                                           \
    X(formula, "_volumes", OF_X("window_mean(x, 3)"))                                                                           \
    X(formula, "_distil", OF_X_T("-mean(sum(softmax(y, 1) * log_softmax(x, 1), 1))"))                                           \
    X(formula, "_logsumexp", OF_X("m = detach(amax(x, -1, keepdim=True)); sum(m, 1) + log(sum(exp(x - m), 1))"))          \
    X(formula, "_hits", OF_X_T("cumsum(x, 1) * mean(float(argmax(x, 1)) == float(y))"))                                         \
    X(named, "tan", gpunn_tan(in("x")))                                                                                         \
    X(named, "asin", gpunn_asin(in("x")))                                                                                       \
    X(named, "acos", gpunn_acos(in("x")))                                                                                       \
    X(named, "atan", gpunn_atan(in("x")))                                                                                       \
    X(named, "atanh", gpunn_atanh(in("x")))                                                                                     \
    X(named, "sinh", gpunn_sinh(in("x")))                                                                                       \
    X(named, "cosh", gpunn_cosh(in("x")))                                                                                       \
    X(named, "asinh", gpunn_asinh(in("x")))                                                                                     \
    X(named, "acosh", gpunn_acosh(in("x")))                                                                                     \
    X(named, "exp2", gpunn_exp2(in("x")))                                                                                       \
    X(named, "log2", gpunn_log2(in("x")))                                                                                       \
    X(named, "log10", gpunn_log10(in("x")))                                                                                     \
    X(named, "erfc", gpunn_erfc(in("x")))                                                                                       \
    X(named, "lgamma", gpunn_lgamma(in("x")))                                                                                   \
    X(named, "ceil", gpunn_ceil(in("x")))                                                                                       \
    X(named, "round", gpunn_round(in("x")))                                                                                     \
    X(named, "trunc", gpunn_trunc(in("x")))                                                                                     \
    X(named, "frac", gpunn_frac(in("x")))                                                                                       \
    X(named, "tanhshrink", gpunn_tanhshrink(in("x")))                                                                           \
    X(named, "logical_not", gpunn_logical_not(in("x")))                                                                         \
    X(named, "isnan", gpunn_isnan(in("x")))                                                                                     \
    X(named, "isinf", gpunn_isinf(in("x")))                                                                                     \
    X(named, "isfinite", gpunn_isfinite(in("x")))                                                                               \
    X(named, "atan2", gpunn_atan2(in("x"), in("y")))                                                                            \
    X(named, "hypot", gpunn_hypot(in("x"), in("y")))                                                                            \
    X(named, "logaddexp", gpunn_logaddexp(in("x"), in("y")))                                                                    \
    X(named, "xlogy", gpunn_xlogy(in("x"), in("y")))                                                                            \
    X(named, "remainder", gpunn_remainder(in("x"), in("y")))                                                                    \
    X(named, "fmod", gpunn_fmod(in("x"), in("y")))                                                                              \
    X(named, "softshrink", gpunn_softshrink(in("x"), 0.5f))                                                                     \
    X(named, "softshrink_specials", gpunn_softshrink(in("x"), 0.5f))                                                            \
    X(named, "xlogy_specials", gpunn_xlogy(in("x"), in("y")))                                                                 \
    X(named, "softshrink_0", gpunn_softshrink(in("x"), 0))                                                                      \
    X(named, "threshold", gpunn_threshold(in("x"), 0.1f, -20))                                                                  \
    X(named, "threshold_0", gpunn_threshold(in("x"), 0, 0))                                                                     \
    X(named, "logit", gpunn_logit(in("x"), -1))                                                                                 \
    X(named, "logit_eps", gpunn_logit(in("x"), 0.2f))

/* Targets of three samples with repeats, of lengths 2, 3 and 0. */
#define CTC_TARGETS integers(in, "t", (int64_t[]){2, 3, 0, 4, 4, 2, 3, 3, 3}, 3, 3)
#define CTC_INPUTS integers(in, "i", (int64_t[]){6, 5, 3}, 3, 0)
#define CTC_LENGTHS integers(in, "l", (int64_t[]){2, 3, 0}, 3, 0)
#define TOTAL(x) gpunn_sum(x, GPUNN_ALL, false)
#define CTC_OF(x, ...) gpunn_ctc_loss(x, CTC_TARGETS, CTC_INPUTS, CTC_LENGTHS, __VA_ARGS__)
/* X(name, first input, builder from that x) */
#define CRITERIA_GRADIENTS(X)                                                                                                   \
    X(margin_ranking_loss, XS(3, 4), gpunn_margin_ranking_loss(x, B("b", 3, 4), B("c", 3, 4), .margin = 9))                     \
    X(multi_margin_loss, XS(3, 3), gpunn_multi_margin_loss(x, labels(in, false), .margin = 9, .weight = constant(in, 3)))       \
    X(multi_margin_loss_2, XS(3, 3), gpunn_multi_margin_loss(x, labels(in, false), .margin = 9, .p = 2))                        \
    X(triplet_margin_loss, XS(3, 5), gpunn_triplet_margin_loss(x, B("p", 3, 5), B("n", 3, 5), .margin = 20))                    \
    X(triplet_margin_loss_3, XS(3, 5), gpunn_triplet_margin_loss(x, B("p", 3, 5), B("n", 3, 5), .margin = 20, .p = 3))          \
    X(cosine_similarity, XS(3, 5, 2), gpunn_cosine_similarity(x, B("b", 3, 5, 2), 1, 0))                                        \
    X(dice_loss, XS(3, 2, 5), gpunn_dice_loss(gpunn_sigmoid(x), gpunn_sigmoid(B("t", 3, 2, 5)), .squared = true))               \
    X(gaussian_nll_loss, XS(3, 4), gpunn_gaussian_nll_loss(x, B("t", 3, 4), gpunn_exp(B("v", 3, 1)), .full = true))             \
    X(poisson_nll_loss, XS(3, 4), gpunn_poisson_nll_loss(x, gpunn_exp(B("t", 3, 4)), .full = true))                             \
    X(soft_margin_loss, XS(3, 4), gpunn_soft_margin_loss(x, B("t", 3, 4)))                                                      \
    X(formula_norms, XS(3, 4, 5),                                                                                               \
      gpunn_expr("norm(x, 3, 1:) * norm(x, 2) - sum(norm(x, 1, 0, keepdim=True) * x, 1, 2)", &x, 1)) \
    X(formula_means, XS(3, 2, 4, 3),                                                                                            \
      gpunn_expr("t = x - mean(x, 2:, keepdim=True); window_mean(t ** 2, 3) * amax(t, -1, keepdim=True)", &x, 1))               \
    X(formula_softmax, XS(3, 4),                                                                                                \
      gpunn_expr("softmax(x, 1) * cumsum(x, 0) - log_softmax(x, -1) * float(argmax(x, 1, keepdim=True))", &x, 1)) \
    X(ctc_loss, XS(6, 3, 5), CTC_OF(x, .blank = 1))                                                                             \
    X(ctc_loss_none, XS(6, 3, 5), CTC_OF(x, EACH))                                                                              \
    X(ctc_loss_first, XS(6, 3, 5), gpunn_mul(CTC_OF(gpunn_permute(x, GPUNN_AXES(1, 0, 2)), .batch_first = true), TOTAL(x)))
/* clang-format on */
