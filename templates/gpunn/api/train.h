#ifndef GPUNN__API_TRAIN_H
#define GPUNN__API_TRAIN_H
#include "api/builders.h"

/* ==== >>train ============================================================================================ *
 * Running a model: forward and backward passes, optimizers, learning-rate schedules. Not thread-safe per
 * device. */

/* Runs the model in evaluation mode and computes only what the outputs need. All inputs must have been
 * written. */
GPUNN_API gpunn_status gpunn_forward(gpunn_tensor *const *outputs, int count);
/* Prepares gpunn_forward for the same outputs and the sizes that the inputs have now: makes the plan and
 * allocates all memory, but computes nothing. States stay as they are. Nothing can be read before the next
 * run. A program with blocks of several sizes writes a block of each size, of any values, and prepares it.
 * Up to 32 preparations are kept (gpunn_set_plan_limit).
 * Real-time threads: on a CPU device with .threads = 1, later calls of gpunn_write, gpunn_forward and
 * gpunn_read for prepared sizes allocate nothing, take no lock, make no system call and read no clock. This
 * does not hold for calls that fail, for custom ops of the program, or after the model has been changed. On a
 * GPU the first run after the preparation still captures its graph. */
GPUNN_API gpunn_status gpunn_forward_prepare(gpunn_tensor *const *outputs, int count);
/* gpunn_forward in training mode, without gradients. Dropout is active, with new random elements in each
 * call. batch_norm uses its batch's statistics and updates the running ones. Use it to adapt the statistics
 * to other data, or to sample several predictions of one network. */
GPUNN_API gpunn_status gpunn_forward_training(gpunn_tensor *const *outputs, int count);
/* How layers behave that differ in training: dropout and batch_norm. */
typedef enum gpunn_mode {
    GPUNN_MODE_TRAINING = 0,
    GPUNN_MODE_EVALUATION /* dropout off; batch_norm uses its running statistics and leaves them unchanged */
} gpunn_mode;
#define GPUNN_MAX_LOSSES 7 /* of a forward pass, beside the first */
typedef struct gpunn_backward_args {
    int              args_;
    gpunn_mode       mode;      /* of the forward pass */
    gpunn_optimizer *optimizer; /* computes gradients only of what it trains; NULL: of all parameters */
    /* computes only gradients named by gpunn_retain_grad; those of parameters stay unchanged */
    bool inputs_only;
    /* Further losses of the same forward pass, which keeps what their gradients need; the list ends at the
     * first NULL. For each loss in `then`, in this order, call gpunn_backward again with .retained and the
     * same arguments above. Do so before anything else runs and before anything that the pass has read
     * changes. */
    gpunn_tensor *then[GPUNN_MAX_LOSSES];
    /* Skips the forward pass. GPUNN_ERR_STATE if there is none to continue from. Fused kernels are not used
     * in such passes. */
    bool retained;
} gpunn_backward_args;
/* Runs the forward pass and adds the gradients of the scalar loss to the existing ones (see gpunn_zero_grad).
 * In evaluation mode nothing else changes: neither running statistics nor the random state of dropout. Each
 * loss can be read after its forward pass. */
GPUNN_API gpunn_status gpunn_backward_(gpunn_tensor *loss, gpunn_backward_args args);
#define gpunn_backward(...) gpunn_backward_(GPUNN_NAMED(gpunn_backward_args, __VA_ARGS__))
/* torch.autograd.backward(outputs, gradients): the same from gradients that the program provides. It makes a
 * model one differentiable piece of a larger program. gradients[i] is F32, has as many elements as
 * outputs[i], and is in host or GPU memory. The forward pass runs again, in training mode. */
GPUNN_API gpunn_status gpunn_backward_from(gpunn_tensor *const *outputs, const void *const *gradients,
                                           int count);
/* One training step: gpunn_zero_grad, gpunn_backward, clipping as set on the optimizer, update. If the loss
 * or a gradient is NaN or infinite, it returns GPUNN_ERR_NUMERIC. Weights, running statistics and optimizer
 * states then stay as they were, and accumulated gradients are dropped, as by gpunn_zero_grad. (With
 * gpunn_backward and gpunn_optimizer_step, the running statistics have already moved.) A checkpoint cannot
 * hold accumulated gradients, so saving one amid them is GPUNN_ERR_STATE.
 * A rejected step counts neither in Adam's corrections nor in averages, nor in gpunn_step_count. On a GPU
 * that number is right from the report of the rejection on, or, with a .stream of the program's own, from the
 * next checkpoint on. */
typedef struct gpunn_train_step_args {
    int args_;
    /* calls per update, each with a part of the batch, default 1. The update uses the mean of their
     * gradients */
    int accumulate;
} gpunn_train_step_args;
GPUNN_API gpunn_status gpunn_train_step_(gpunn_optimizer *opt, gpunn_tensor *loss,
                                         gpunn_train_step_args args);
#define gpunn_train_step(opt, ...) gpunn_train_step_((opt), GPUNN_NAMED(gpunn_train_step_args, __VA_ARGS__))
/* Sets all gradients to 0, so that the next backward pass does not add to old ones. */
GPUNN_API gpunn_status gpunn_zero_grad(gpunn_model *model);

/* Statistics of one tensor: an input, a parameter, a buffer, a layer's result, or a gradient. */
typedef struct gpunn_layer_statistics {
    const char *op, *layer; /* "linear", "fc1"; for an input "input", "x"; layer "": it has no name */
    /* NULL: statistics of the value; "fc1.weight": of its gradient; "": of the gradient of a value without a
     * name */
    const char *gradient_of;
    int64_t     count, zeros, nans, infinities; /* number of elements, and of those that are such */
    double      mean, deviation, min, max;      /* over finite numbers; NaN: there are none */
} gpunn_layer_statistics;
typedef struct gpunn_inspect_args {
    int        args_;
    gpunn_mode mode;                                                   /* of the forward pass */
    bool (*on_layer)(void *user, const gpunn_layer_statistics *layer); /* false ends it */
    void *user;                                                        /* first argument of on_layer */
    bool  forward_only; /* no backward pass: statistics of any value; gradients stay unchanged */
} gpunn_inspect_args;
/* Runs forward and backward of the loss for inspection, as torch's hooks do. It calls on_layer after each
 * layer, in the order of computation, with statistics computed on the device. Dropout drops the same elements
 * as in the last training step, and running statistics stay. Gradients start anew, as after gpunn_zero_grad.
 * Values must be computed again before they are read. Slow. */
GPUNN_API gpunn_status gpunn_inspect_(gpunn_tensor *loss, gpunn_inspect_args args);
#define gpunn_inspect(...) gpunn_inspect_(GPUNN_NAMED(gpunn_inspect_args, __VA_ARGS__))
/* Finds where a NaN or infinity comes from. It returns GPUNN_ERR_NUMERIC, and gpunn_error names the first
 * layer with such a value or gradient. */
GPUNN_API gpunn_status gpunn_check_nan(gpunn_tensor *loss);
/* Scales all gradients so that their joint 2-norm is at most max_norm. total_norm (may be NULL) receives the
 * norm before scaling. */
GPUNN_API gpunn_status gpunn_clip_grad_norm(gpunn_model *model, float max_norm, float *total_norm);
/* Clamps each element of all gradients to -clip_value .. clip_value. */
GPUNN_API gpunn_status gpunn_clip_grad_value(gpunn_model *model, float clip_value);

/* The optimizers. All code of an optimizer follows from its row here: the struct of its settings, checks,
 * specs, checkpoints, CPU loop, CUDA kernel and generated kernels. Only the macro with its name, below, is
 * written by hand. Columns:
 *     settings   torch's names and defaults, lr first. NUMBER(SIZE, ...) is >= 0, SHARE in [0, 1), ANY
 *                finite, COUNT in [0, 100), CHOICE an enum's value
 *     states     s0, s1, s2: numbers per parameter, initially 0. STATE(ALWAYS), or STATE(setting) if it is
 *     not
 *                needed while that setting is 0; then read it only inside where(setting, ...)
 *     once       ONCE(name, value): computed once per update, in double, from the settings, step (1, 2, ...)
 *                and the names before it
 *     step       update of each parameter p from its gradient g (clipped, negated to maximize), all in float
 * The language is that of >>ops plus assignments, with float before a new name. ONCE also has C's sqrt and
 * pow, power(base, whole exponent) and nadam_product. Some settings have further effects. eps: without it
 * zeros would not stay zeros. weight_decay: 0 where gpunn_set_decay says so. initial_accumulator_value: the
 * initial s0. beta1 and beta2: called "betas" in a spec; ns_a, ns_b and ns_c: "ns_coefficients". */
#define GPUNN_SETTINGS 13      /* at most */
#define GPUNN_UPDATE_NUMBERS 8 /* of ONCE, at most */
/* >>optimizers begin */
/* clang-format off */
/* X(ENUM, name, settings, states, once, step) */
#define GPUNN_OPTIMIZERS(X, NUMBER, FLAG, STATE, ONCE)                                                      \
    X(SGD, sgd,                                                                                             \
      NUMBER(SIZE, lr, K(1e-3)) NUMBER(SIZE, momentum, 0) NUMBER(ANY, dampening, 0)                         \
      NUMBER(SIZE, weight_decay, 0) FLAG(nesterov) FLAG(maximize),                                          \
      STATE(momentum),                                                                                      \
      ONCE(keep, where(step == 1, 0, momentum)) ONCE(take, where(step == 1, 1, 1 - dampening))              \
      ONCE(ahead, where(momentum, nesterov, 1))                                                             \
      ONCE(behind, where(nesterov, momentum, where(momentum, 1, 0))),                                       \
      g = g + weight_decay * p;                                                                             \
      s0 = where(momentum, keep * s0 + take * g, 0);                                                        \
      p = p - lr * (ahead * g + behind * s0);)                                                              \
    X(ADAM, adam,                                                                                           \
      NUMBER(SIZE, lr, K(1e-3)) NUMBER(SHARE, beta1, K(0.9)) NUMBER(SHARE, beta2, K(0.999))                 \
      NUMBER(SIZE, eps, K(1e-8)) NUMBER(SIZE, weight_decay, 0) FLAG(maximize),                              \
      STATE(ALWAYS) STATE(ALWAYS),                                                                          \
      ONCE(take1, 1 - beta1) ONCE(take2, 1 - beta2)                                                         \
      ONCE(rate, lr / (1 - power(beta1, step))) ONCE(root_scale, 1 / sqrt(1 - power(beta2, step))),         \
      g = g + weight_decay * p;                                                                             \
      s0 = beta1 * s0 + take1 * g;                                                                          \
      s1 = beta2 * s1 + take2 * g * g;                                                                      \
      p = p - rate * (s0 / (sqrt(s1) * root_scale + eps));)                                                 \
    X(ADAMW, adamw,                                                                                         \
      NUMBER(SIZE, lr, K(1e-3)) NUMBER(SHARE, beta1, K(0.9)) NUMBER(SHARE, beta2, K(0.999))                 \
      NUMBER(SIZE, eps, K(1e-8)) NUMBER(SIZE, weight_decay, K(0.01)) FLAG(maximize),                        \
      STATE(ALWAYS) STATE(ALWAYS),                                                                          \
      ONCE(take1, 1 - beta1) ONCE(take2, 1 - beta2) ONCE(shrink, 1 - lr * weight_decay)                     \
      ONCE(rate, lr / (1 - power(beta1, step))) ONCE(root_scale, 1 / sqrt(1 - power(beta2, step))),         \
      s0 = beta1 * s0 + take1 * g;                                                                          \
      s1 = beta2 * s1 + take2 * g * g;                                                                      \
      p = p * shrink - rate * (s0 / (sqrt(s1) * root_scale + eps));)                                        \
    X(RMSPROP, rmsprop,                                                                                     \
      NUMBER(SIZE, lr, K(1e-2)) NUMBER(SIZE, alpha, K(0.99)) NUMBER(SIZE, eps, K(1e-8))                     \
      NUMBER(SIZE, weight_decay, 0) NUMBER(SIZE, momentum, 0) FLAG(centered) FLAG(maximize),                \
      STATE(ALWAYS) STATE(momentum) STATE(centered),                                                        \
      ONCE(take, 1 - alpha),                                                                                \
      g = g + weight_decay * p;                                                                             \
      s0 = alpha * s0 + take * g * g;                                                                       \
      s2 = where(centered, s2 + take * (g - s2), 0);                                                        \
      float move = g / (sqrt(s0 - s2 * s2) + eps);                                                          \
      s1 = where(momentum, momentum * s1 + move, move);                                                     \
      p = p - lr * s1;)                                                                                     \
    X(ADAGRAD, adagrad,                                                                                     \
      NUMBER(SIZE, lr, K(1e-2)) NUMBER(SIZE, eps, K(1e-10)) NUMBER(SIZE, lr_decay, 0)                       \
      NUMBER(SIZE, weight_decay, 0) NUMBER(SIZE, initial_accumulator_value, 0) FLAG(maximize),              \
      STATE(ALWAYS),                                                                                        \
      ONCE(rate, lr / (1 + (step - 1) * lr_decay)),                                                         \
      g = g + weight_decay * p;                                                                             \
      s0 = s0 + g * g;                                                                                      \
      p = p - rate * (g / (sqrt(s0) + eps));)                                                               \
    X(ADAMAX, adamax,                                                                                       \
      NUMBER(SIZE, lr, K(2e-3)) NUMBER(SHARE, beta1, K(0.9)) NUMBER(SHARE, beta2, K(0.999))                 \
      NUMBER(SIZE, eps, K(1e-8)) NUMBER(SIZE, weight_decay, 0) FLAG(maximize),                              \
      STATE(ALWAYS) STATE(ALWAYS),                                                                          \
      ONCE(take1, 1 - beta1) ONCE(rate, lr / (1 - power(beta1, step))),                                     \
      g = g + weight_decay * p;                                                                             \
      s0 = beta1 * s0 + take1 * g;                                                                          \
      s1 = max(beta2 * s1, abs(g) + eps);                                                                   \
      p = p - rate * (s0 / s1);)                                                                            \
    X(NADAM, nadam,                                                                                         \
      NUMBER(SIZE, lr, K(2e-3)) NUMBER(SHARE, beta1, K(0.9)) NUMBER(SHARE, beta2, K(0.999))                 \
      NUMBER(SIZE, eps, K(1e-8)) NUMBER(SIZE, weight_decay, 0) NUMBER(SIZE, momentum_decay, K(4e-3))        \
      FLAG(decoupled_weight_decay) FLAG(maximize),                                                          \
      STATE(ALWAYS) STATE(ALWAYS),                                                                          \
      ONCE(take1, 1 - beta1) ONCE(take2, 1 - beta2)                                                         \
      ONCE(shrink, where(decoupled_weight_decay, 1 - lr * weight_decay, 1))                                 \
      ONCE(product, nadam_product(power(beta1, step), momentum_decay, step))                                \
      ONCE(next, beta1 * (1 - 0.5 * pow(0.96, (step + 1) * momentum_decay)))                                \
      ONCE(lead, lr * (1 - beta1 * (1 - 0.5 * pow(0.96, step * momentum_decay))) / (1 - product))           \
      ONCE(rate, lr * (next / (1 - product * next))) ONCE(root_scale, 1 / sqrt(1 - power(beta2, step))),    \
      g = where(decoupled_weight_decay, g, g + weight_decay * p);                                           \
      s0 = beta1 * s0 + take1 * g;                                                                          \
      s1 = beta2 * s1 + take2 * g * g;                                                                      \
      p = p * shrink - (lead * g + rate * s0) / (sqrt(s1) * root_scale + eps);)                             \
    X(RADAM, radam,                                                                                         \
      NUMBER(SIZE, lr, K(1e-3)) NUMBER(SHARE, beta1, K(0.9)) NUMBER(SHARE, beta2, K(0.999))                 \
      NUMBER(SIZE, eps, K(1e-8)) NUMBER(SIZE, weight_decay, 0) FLAG(decoupled_weight_decay) FLAG(maximize), \
      STATE(ALWAYS) STATE(ALWAYS),                                                                          \
      ONCE(take1, 1 - beta1) ONCE(take2, 1 - beta2)                                                         \
      ONCE(shrink, where(decoupled_weight_decay, 1 - lr * weight_decay, 1))                                 \
      ONCE(power2, power(beta2, step)) ONCE(most, 2 / (1 - beta2) - 1)                                      \
      ONCE(length, most - 2 * step * power2 / (1 - power2)) ONCE(enough, where(length > 5, 1, 0))           \
      ONCE(rate, lr * (where(length > 5, sqrt((1 - power2) * (length - 4) * (length - 2) * most /           \
                                              ((most - 4) * (most - 2) * length)),                          \
                                              1) / (1 - power(beta1, step)))),                              \
      g = where(decoupled_weight_decay, g, g + weight_decay * p);                                           \
      s0 = beta1 * s0 + take1 * g;                                                                          \
      s1 = beta2 * s1 + take2 * g * g;                                                                      \
      p = p * shrink - rate * where(enough, s0 / (sqrt(s1) + eps), s0);)                                    \
    X(LION, lion,                                                                                           \
      NUMBER(SIZE, lr, K(1e-4)) NUMBER(SHARE, beta1, K(0.9)) NUMBER(SHARE, beta2, K(0.99))                  \
      NUMBER(SIZE, weight_decay, 0) FLAG(maximize),                                                         \
      STATE(ALWAYS),                                                                                        \
      ONCE(take1, 1 - beta1) ONCE(take2, 1 - beta2) ONCE(shrink, 1 - lr * weight_decay),                    \
      float way = beta1 * s0 + take1 * g;                                                                   \
      s0 = beta2 * s0 + take2 * g;                                                                          \
      p = p * shrink - lr * where(way > 0, 1, where(way < 0, -1, way));)                                    \
    X(ADADELTA, adadelta,                                                                                   \
      NUMBER(SIZE, lr, 1) NUMBER(SHARE, rho, K(0.9)) NUMBER(SIZE, eps, K(1e-6))                             \
      NUMBER(SIZE, weight_decay, 0) FLAG(maximize),                                                         \
      STATE(ALWAYS) STATE(ALWAYS),                                                                          \
      ONCE(take, 1 - rho),                                                                                  \
      g = g + weight_decay * p;                                                                             \
      s0 = rho * s0 + take * g * g;                                                                         \
      float delta = sqrt((s1 + eps) / (s0 + eps)) * g;                                                      \
      s1 = rho * s1 + take * delta * delta;                                                                 \
      p = p - lr * delta;)
/* Optimizers with a trust ratio: p = p - lr * ratio * move. `norms` is |p| / |move| over a whole parameter,
 * or 1 if either is 0.
 * X(ENUM, name, settings, states, once, step, move, ratio) */
#define GPUNN_TRUST_OPTIMIZERS(X, NUMBER, FLAG, STATE, ONCE)                                             \
    X(LAMB, lamb,                                                                                        \
      NUMBER(SIZE, lr, K(1e-3)) NUMBER(SHARE, beta1, K(0.9)) NUMBER(SHARE, beta2, K(0.999))              \
      NUMBER(SIZE, eps, K(1e-6))                                                                         \
      NUMBER(SIZE, weight_decay, K(0.01)) NUMBER(SIZE, trust_clip, 0) FLAG(always_adapt) FLAG(maximize), \
      STATE(ALWAYS) STATE(ALWAYS),                                                                       \
      ONCE(take1, 1 - beta1) ONCE(take2, 1 - beta2)                                                      \
      ONCE(lead, 1 / (1 - power(beta1, step))) ONCE(root_scale, 1 / sqrt(1 - power(beta2, step))),       \
      s0 = beta1 * s0 + take1 * g;                                                                       \
      s1 = beta2 * s1 + take2 * g * g;,                                                                  \
      s0 * lead / (sqrt(s1) * root_scale + eps) + weight_decay * p,                                      \
      where(weight_decay + always_adapt == 0, 1, where(trust_clip > 0, min(norms, trust_clip), norms)))
/* Optimizers of matrices. The step leaves the matrix to orthogonalize in s1. After the Newton-Schulz
 * iteration p = p * shrink - lr * ratio * s1; shrink is the first ONCE. Other parameters are updated as by
 * ADAMW.
 * X(ENUM, name, settings, states, once, step) */
#define GPUNN_MATRIX_OPTIMIZERS(X, NUMBER, FLAG, STATE, ONCE)                                           \
    X(MUON, muon,                                                                                       \
      NUMBER(SIZE, lr, K(1e-3)) NUMBER(SIZE, weight_decay, K(0.1)) NUMBER(SIZE, momentum, K(0.95))      \
      NUMBER(ANY, ns_a, K(3.4445)) NUMBER(ANY, ns_b, -K(4.775)) NUMBER(ANY, ns_c, K(2.0315))            \
      NUMBER(SIZE, eps, K(1e-7)) NUMBER(COUNT, ns_steps, 5) NUMBER(CHOICE, adjust_lr_fn, 0)             \
      NUMBER(SIZE, adamw_lr, K(1e-3)) NUMBER(SHARE, beta1, K(0.9)) NUMBER(SHARE, beta2, K(0.999))       \
      FLAG(no_nesterov),                                                                                \
      STATE(ALWAYS) STATE(ALWAYS),                                                                      \
      ONCE(shrink, 1 - lr * weight_decay) ONCE(take, 1 - momentum),                                     \
      s0 = momentum * s0 + take * g;                                                                    \
      s1 = where(no_nesterov, s0, momentum * s0 + take * g);)
/* clang-format on */
/* >>optimizers end */

/* Selects parameters: those listed (the list is copied), and those whose names begin with prefix, including
 * ones made later. */
#define GPUNN__CHOSEN                                                           \
    gpunn_tensor *const *parameters;      /* these, in a list that is copied */ \
    int                  parameter_count; /* number of them */                  \
    const char          *prefix;          /* all whose name begins so, such as "generator." */
/* Settings for some of an optimizer's parameters. 0: the optimizer's setting; GPUNN_ZERO: 0. A parameter
 * belongs to the first group that matches. Schedules scale each lr; gpunn_set_lr changes only groups without
 * one. A group with a clip_norm has its norm computed separately. */
typedef struct gpunn_optimizer_group {
    GPUNN__CHOSEN
    float lr, weight_decay, beta1, beta2; /* as the optimizer's */
    float clip_norm, clip_value;          /* as in gpunn_set_clip_norm and gpunn_set_clip_value */
} gpunn_optimizer_group;
/* What an optimizer trains: the selected parameters, or all if neither list nor prefix is set. Several
 * optimizers may share a model, each with its own state, step count, schedule and averages. gpunn_train_step
 * then computes, clips and zeroes only the gradients of what its optimizer trains. Plans and graphs are kept
 * for each, so alternating costs nothing.
 * A parameter may belong to two optimizers only if neither has a selection. Otherwise creating the optimizer
 * returns NULL with GPUNN_ERR_ARGUMENT; if the layer is made later, the next step fails with
 * GPUNN_ERR_STATE. */
#define GPUNN__SELECTION                                                                    \
    GPUNN__CHOSEN                                                                           \
    /* Copied. They need no saving: a checkpoint is loaded into an optimizer made alike. */ \
    const gpunn_optimizer_group *groups;                                                    \
    int                          group_count; /* number of them */

/* Each optimizer equals torch.optim's of the same name, step by step. Weight decay applies to every
 * parameter, as there, except those excluded by gpunn_set_decay. A parameter that no backward pass has
 * reached since gpunn_zero_grad is left unchanged.
 * Not in torch:
 * - lion (Chen et al. 2023): p = (1 - lr weight_decay) p - lr sign(beta1 m + (1 - beta1) g), then m = beta2 m
 *   + (1 - beta2) g.
 * - lamb (You et al. 2020, in timm's and NVIDIA's form): p -= lr ratio u, where u is AdamW's step with both
 *   bias corrections, plus weight_decay p. ratio is |p| / |u| over the whole parameter. It is 1 if one of
 *   them is 0 or the parameter has no weight decay. Their clipping of all gradients to norm 1 is
 *   gpunn_set_clip_norm(opt, 1).
 * muon is torch.optim.Muon (Jordan 2024) for parameters of rank 2, computed in F32; torch rounds to BF16.
 * torch refuses all other parameters. Here the same optimizer updates them as gpunn_adamw does, with rate
 * adamw_lr, betas, eps 1e-8 and the same weight_decay. Schedules scale both rates; gpunn_set_lr changes only
 * lr.
 * - ns_a, ns_b, ns_c are torch's ns_coefficients, no_nesterov is its nesterov=False.
 * - adjust_lr_fn scales lr for a matrix [rows, columns]; the AdamW part ignores it.
 * - An embedding's table and the last layer often train better by a gpunn_adamw of their own, selected by
 *   .parameters. Call gpunn_backward, gpunn_optimizer_step for each optimizer, gpunn_zero_grad. */
typedef enum gpunn_adjust_lr {
    GPUNN_ADJUST_LR_ORIGINAL = 0,    /* lr sqrt(max(1, rows / columns)) */
    GPUNN_ADJUST_LR_MATCH_RMS_ADAMW, /* 0.2 lr sqrt(max(rows, columns)): takes AdamW's lr and weight_decay */
    GPUNN_ADJUST_LR_SPECTRAL_UNCLAMPED /* lr sqrt(rows / columns) */
} gpunn_adjust_lr;
/* clang-format off */
#define GPUNN__NUMBER(kind, key, usual) float key;
#define GPUNN__FLAG(key) bool key;
#define GPUNN__X(ENUM, name, settings, ...)                                                          \
    typedef struct gpunn_##name##_args { int args_; settings GPUNN__SELECTION } gpunn_##name##_args; \
    GPUNN_API gpunn_optimizer *gpunn_##name##_(gpunn_model *model, gpunn_##name##_args args);
GPUNN_OPTIMIZERS(GPUNN__X, GPUNN__NUMBER, GPUNN__FLAG, , )
GPUNN_TRUST_OPTIMIZERS(GPUNN__X, GPUNN__NUMBER, GPUNN__FLAG, , )
GPUNN_MATRIX_OPTIMIZERS(GPUNN__X, GPUNN__NUMBER, GPUNN__FLAG, , )
#undef GPUNN__NUMBER
#undef GPUNN__FLAG
#undef GPUNN__X
/* clang-format on */
#define gpunn_sgd(...) gpunn_sgd_(GPUNN_NAMED(gpunn_sgd_args, __VA_ARGS__))
#define gpunn_adam(...) gpunn_adam_(GPUNN_NAMED(gpunn_adam_args, __VA_ARGS__))
#define gpunn_adamw(...) gpunn_adamw_(GPUNN_NAMED(gpunn_adamw_args, __VA_ARGS__))
#define gpunn_rmsprop(...) gpunn_rmsprop_(GPUNN_NAMED(gpunn_rmsprop_args, __VA_ARGS__))
#define gpunn_adagrad(...) gpunn_adagrad_(GPUNN_NAMED(gpunn_adagrad_args, __VA_ARGS__))
#define gpunn_adamax(...) gpunn_adamax_(GPUNN_NAMED(gpunn_adamax_args, __VA_ARGS__))
#define gpunn_nadam(...) gpunn_nadam_(GPUNN_NAMED(gpunn_nadam_args, __VA_ARGS__))
#define gpunn_radam(...) gpunn_radam_(GPUNN_NAMED(gpunn_radam_args, __VA_ARGS__))
#define gpunn_lion(...) gpunn_lion_(GPUNN_NAMED(gpunn_lion_args, __VA_ARGS__))
#define gpunn_adadelta(...) gpunn_adadelta_(GPUNN_NAMED(gpunn_adadelta_args, __VA_ARGS__))
#define gpunn_lamb(...) gpunn_lamb_(GPUNN_NAMED(gpunn_lamb_args, __VA_ARGS__))
#define gpunn_muon(...) gpunn_muon_(GPUNN_NAMED(gpunn_muon_args, __VA_ARGS__))
/* Frees an optimizer and its state; NULL is allowed. The weights stay. */
GPUNN_API void gpunn_optimizer_destroy(gpunn_optimizer *opt);

/* Updates parameters from the existing gradients. Between calls of gpunn_train_step with .accumulate it ends
 * the accumulation. The update is then what the last of that many calls would have made, clipping
 * included. */
GPUNN_API gpunn_status gpunn_optimizer_step(gpunn_optimizer *opt);
/* Sets the base learning rate. A schedule scales it from now on. */
GPUNN_API void  gpunn_set_lr(gpunn_optimizer *opt, float lr);
GPUNN_API float gpunn_get_lr(const gpunn_optimizer *opt); /* learning rate of the next step */
/* Sets the norm to which gpunn_train_step scales larger gradients, as gpunn_clip_grad_norm. 0: off. */
GPUNN_API void gpunn_set_clip_norm(gpunn_optimizer *opt, float max_norm);
/* Sets the value to which gpunn_train_step clamps gradients, as gpunn_clip_grad_value. 0: off. */
GPUNN_API void    gpunn_set_clip_value(gpunn_optimizer *opt, float clip_value);
GPUNN_API int64_t gpunn_step_count(const gpunn_optimizer *opt); /* number of updates so far */
/* torch's AveragedModel with get_ema_multi_avg_fn(decay). After each update average = decay average + (1 -
 * decay) p for every parameter, frozen ones too; after the first update it is p. A skipped update does not
 * count. Running statistics are not averaged (use_buffers=False). Takes 4 bytes per parameter. 0 <= decay <
 * 1; 0 turns it off and frees the averages. */
GPUNN_API gpunn_status gpunn_set_ema(gpunn_optimizer *opt, float decay);
/* Exchanges parameters and averages, e.g. for gpunn_forward or gpunn_save; the next call exchanges them back.
 * In between, steps and checkpoints fail with GPUNN_ERR_STATE, and gpunn_optimizer_destroy leaves the
 * averages in the model. */
GPUNN_API gpunn_status gpunn_ema_swap(gpunn_optimizer *opt);
/* F16 on a GPU: the factor by which gpunn_train_step multiplies the loss; gradients that are read contain it
 * too. It doubles every 2000 steps and halves when gradients overflow; that update is skipped. *skipped (may
 * be NULL) receives the number of skipped steps, including those of gpunn_set_skip_nan. Returns 1 for other
 * precisions. Waits for the device. */
GPUNN_API float gpunn_loss_scale(gpunn_optimizer *opt, int64_t *skipped);
/* Skips steps whose loss or gradients are not finite. gpunn_train_step and gpunn_optimizer_step then return
 * GPUNN_OK and change neither weights, running statistics nor states. gpunn_loss_scale counts such steps;
 * gpunn_step_count and schedules advance. Accumulated gradients are dropped, on a GPU with the last part. All
 * ranks skip together. Default false: the step fails with GPUNN_ERR_NUMERIC. */
GPUNN_API void gpunn_set_skip_nan(gpunn_optimizer *opt, bool skip);

/* How the learning rate follows from the base rate lr and the number of steps t. */
typedef enum gpunn_schedule_type {
    GPUNN_SCHEDULE_CONSTANT = 0,
    GPUNN_SCHEDULE_STEP,        /* lr gamma^(t / step_size) */
    GPUNN_SCHEDULE_MULTI_STEP,  /* lr gamma^(milestones passed) */
    GPUNN_SCHEDULE_EXPONENTIAL, /* lr gamma^t */
    /* min_lr + (lr - min_lr) (1 + cos(pi t / total_steps)) / 2; min_lr after total_steps */
    GPUNN_SCHEDULE_COSINE,
    /* torch's OneCycleLR with cosine annealing, without cycling the momentum; lr is max_lr */
    GPUNN_SCHEDULE_ONE_CYCLE,
    GPUNN_SCHEDULE_LINEAR, /* after the warm-up, linearly down to min_lr at total_steps */
    /* torch's ReduceLROnPlateau: lr * factor after `patience` calls without a better metric */
    GPUNN_SCHEDULE_PLATEAU
} gpunn_schedule_type;
typedef struct gpunn_schedule_args {
    int                 args_;
    gpunn_schedule_type type;        /* which formula */
    int64_t             total_steps; /* cosine, one-cycle, linear: after how many steps it ends */
    int64_t             step_size;   /* step: steps between two drops */
    /* the rate first rises from 0 over these steps; total_steps includes them */
    int64_t warmup_steps;
    int64_t milestones[16];                          /* rising; ends at the first 0 */
    float   gamma;                                   /* default 0.1; exponential: 0.95 */
    float   min_lr;                                  /* lowest rate of cosine, linear and plateau */
    float   pct_start, div_factor, final_div_factor; /* one-cycle: defaults 0.3, 25, 1e4 */
    float   factor, threshold;                       /* plateau: defaults 0.1, 1e-4 (relative) */
    int     patience, cooldown;                      /* plateau: defaults 10, 0 */
    bool    maximize;                                /* plateau: a larger metric is better */
} gpunn_schedule_args;
/* Sets the schedule. t counts calls of gpunn_schedule_step: the program decides whether a step is a batch or
 * an epoch. */
GPUNN_API gpunn_status gpunn_set_schedule_(gpunn_optimizer *opt, gpunn_schedule_args args);
#define gpunn_set_schedule(...) gpunn_set_schedule_(GPUNN_NAMED(gpunn_schedule_args, __VA_ARGS__))
/* Tells the schedule that a step has passed. metric: read by PLATEAU only, such as the validation loss. */
GPUNN_API gpunn_status gpunn_schedule_step(gpunn_optimizer *opt, float metric);

/* ==== >>group ============================================================================================ *
 * Data-parallel training. A group is a set of processes, its ranks, that train one model together (torch's
 * DistributedDataParallel). Each rank computes the gradients of its own share of every batch; all make the
 * same update from their mean. A call that is "common to all ranks" is collective: every rank must make it,
 * in the same order, and it waits for all. If one rank fails, every rank's call returns that failure, "rank
 * 2: ...". Ranks that make different calls get GPUNN_ERR_STATE. Not thread-safe per device. */
typedef struct gpunn_group gpunn_group; /* the ranks that train together */
/* transport of gradients; all else goes through MPI, the folder or the functions */
typedef enum gpunn_group_type {
    GPUNN_GROUP_AUTO, /* NCCL between GPUs if all ranks find it, else HOST */
    GPUNN_GROUP_NCCL, /* NCCL, or GPUNN_ERR_UNSUPPORTED */
    GPUNN_GROUP_HOST  /* through host memory, like all else */
} gpunn_group_type;
typedef struct gpunn_group_args {
    int args_;
    /* Seconds a rank waits for the others before it fails and names the missing ones. Must exceed the longest
     * step. Default 600. */
    double           timeout;
    gpunn_group_type type; /* the same on all ranks */
    /* two ranks on one GPU are intended, not a mistake; they exchange through host memory */
    bool share_gpu;
    /* NCCL: approximate size of a bucket of gradients, sent while backward computes the next; default 25
     * MiB */
    size_t bucket_bytes;
    /* each rank keeps and updates only its share of the optimizers' states and averages (ZeRO-1) */
    bool shard;
    /* Exchanges gradients as BF16, in half the bytes (torch's bf16_compress_hook). Each rank rounds its own
     * to nearest even. They are added in F32 in the order of the ranks; the sum is rounded once more on its
     * way back and divided by size in F32. Gradients are kept and used in F32, and all ranks have the same
     * bits. NCCL, and an engine with .all_reduce_bf16, sum in their own way, which may round in between. */
    bool bf16_gradients;
    /* Where ranks meet that MPI did not start (torchrun, srun, a script). It is a folder that all ranks see
     * and no other run has used or, on POSIX, rank 0's address "tcp://host:port" on a network that all trust.
     * NULL: GPUNN_STORE from the environment, else MASTER_ADDR and MASTER_PORT. rank and size are as below
     * or, if both are 0, as torchrun, mpirun or srun says. */
    const char *store;
    /* The program's own communication engine: the first three functions, or none. The engine decides how long
     * it waits. All ranks call each function, with host memory. A result other than GPUNN_OK ends the
     * group. */
    int rank, size; /* of such an engine: 0 <= rank < size */
    /* values: replaced by the sum over all ranks, the same bits on each */
    gpunn_status (*all_reduce)(void *user, float *values, int64_t count);
    /* parts[size][bytes]; on entry [rank] is this rank's */
    gpunn_status (*all_gather)(void *user, void *parts, size_t bytes);
    /* memory: receives rank root's */
    gpunn_status (*broadcast)(void *user, void *memory, size_t bytes, int root);
    /* May be NULL: then all_reduce is called instead. Called with .shard. values holds one part per rank, one
     * after another; part r has counts[r] >= 0 values. This rank's part becomes the sum over all ranks; the
     * others may become anything. counts[size] is the same on all ranks. */
    gpunn_status (*reduce_scatter)(void *user, float *values, const int64_t *counts);
    /* May be NULL: then all_gather is called instead, and a rank receives size - 1 times as much as it sends.
     * As all_reduce, for BF16 values. Called with .bf16_gradients. */
    gpunn_status (*all_reduce_bf16)(void *user, uint16_t *values, int64_t count);
    const char *(*error)(void *user); /* one sentence about the last failure; may be NULL */
    void *user;                       /* first argument of the functions above */
} gpunn_group_args;
#ifndef GPUNN_NO_RANKS
/* Opens a group; common to all ranks. dev is the models' device and receives the errors. Returns NULL on
 * failure: see gpunn_error(dev).
 * If neither functions nor a store are set and the program is compiled with -DGPUNN_MPI (mpicc), the ranks
 * are those that mpirun or srun started, over MPI. The group initialises MPI and finalises it when closed,
 * unless the program has initialised it. (Of several groups, close the first one last.) Otherwise it is a
 * group of one.
 * GPUNN_ERR_STATE: two ranks have opened the same GPU, the folder has files of another run, or the
 * environment announces several ranks but no place to meet. Over TCP a rank waits twice .timeout for rank 0,
 * which names the missing ranks; a process that ends is reported at once.
 * If ranks share processors, a CPU device uses fewer threads (RANKS) and reports it to log_fn. Results of
 * earlier runs on it can then not be read. */
GPUNN_API gpunn_group *gpunn_group_open_(gpunn_device *dev, gpunn_group_args args);
#define gpunn_group_open(...) gpunn_group_open_(GPUNN_NAMED(gpunn_group_args, __VA_ARGS__))
#endif
/* Closes a group; NULL is allowed. A group with optimizers or loaders is freed with the last of them.
 * Finalising MPI waits for all ranks. If a rank was missing, MPI is left as it is and nothing waits. */
GPUNN_API void gpunn_group_close(gpunn_group *group);
GPUNN_API int  gpunn_group_rank(const gpunn_group *group); /* number of this rank, from 0; 0 for NULL */
GPUNN_API int  gpunn_group_size(const gpunn_group *group); /* number of ranks; 1 for NULL */
/* Index of this process among the ranks on this machine, as mpirun, srun or torchrun says; 0 without them. */
GPUNN_API int gpunn_local_rank(void);
/* Makes the ranks train the optimizer's model together. Weights and the optimizer's state become rank 0's;
 * dropout drops other elements on each rank. From now on these calls are common to all ranks:
 * gpunn_train_step, gpunn_optimizer_step, gpunn_fit, gpunn_checkpoint_save and _load.
 * A step averages the gradients over all ranks before clipping and update; it also averages the loss, as the
 * program reads it. A loss or gradient that is not finite on one rank changes nothing on any. GPUs that
 * exchange by NCCL may report this in a later call, for the mean. Running statistics are rank 0's after each
 * update. Rank 0 writes checkpoints and every rank reads them; the number of ranks may change in between.
 * GPUNN_ERR_STATE names what differs between the ranks' models, optimizers or seeds. group NULL makes the
 * optimizer independent again.
 * For the table of an embedding with .sparse the ranks exchange row numbers and F32 rows, which takes memory
 * for the rows of all ranks. Their batches must then have the same size; GPUNN_ERR_STATE names what
 * differs.
 * With .shard a rank stores 1 / size of the states, and an exchange of parameters follows each update.
 * Leaving the group, gpunn_distribute for layers added later, and gpunn_ema_swap are then common to all
 * ranks. During gpunn_checkpoint_save rank 0 holds all states. GPUNN_ERR_UNSUPPORTED: gpunn_lamb and
 * gpunn_muon, which need whole parameters, and tables with .sparse. After gpunn_train_step a rank then has
 * the mean gradient of its share only; the rest is undefined. Gradients clipped by norm, accumulated or
 * scaled (F16) are complete, since each rank needs them all. */
GPUNN_API gpunn_status gpunn_distribute(gpunn_optimizer *opt, gpunn_group *group);

#endif /* GPUNN__API_TRAIN_H */
