#ifndef GPUNN__API_TRAIN_H
#define GPUNN__API_TRAIN_H
#include "api/builders.h"

/* ==== >>train ========================================================================================================= *
 * Not thread-safe per device. */

/* Evaluation mode: computes just what the outputs need. Inputs must have been written. */
GPUNN_API gpunn_status gpunn_forward(gpunn_tensor *const *outputs, int count);
/* The same in training mode, without gradients: dropout drops, anew in each call, batch_norm has its batch's statistics and moves
 * the running ones. For statistics of other data, or many guesses of one network. */
GPUNN_API gpunn_status gpunn_forward_training(gpunn_tensor *const *outputs, int count);
typedef enum gpunn_mode {
    GPUNN_MODE_TRAINING = 0,
    GPUNN_MODE_EVALUATION /* dropout off; batch_norm has its running statistics, which stay as they are */
} gpunn_mode;
#define GPUNN_MAX_LOSSES 7 /* of a forward pass, beside the first */
typedef struct gpunn_backward_args {
    int              args_;
    gpunn_mode       mode;
    gpunn_optimizer *optimizer;   /* gradients of what it trains alone; NULL: of all parameters */
    bool             inputs_only; /* of none: only of what gpunn_retain_grad names; those of parameters stay what they are */
    /* Further losses of the same forward pass, which holds what their gradients need; ends at the first NULL. Each has then, in
     * this order, a gpunn_backward of its own with .retained and the same arguments above, before anything else runs and before
     * what the pass has read changes. */
    gpunn_tensor *then[GPUNN_MAX_LOSSES];
    bool retained; /* no forward pass; GPUNN_ERR_STATE where there is none to go on from. Fused kernels stay out of such passes */
} gpunn_backward_args;
/* Forward, and gradients of the scalar loss added to what gpunn_zero_grad left. In evaluation mode nothing else changes: neither
 * running statistics nor what dropout will drop next. Each loss can be read after its forward pass. */
GPUNN_API gpunn_status gpunn_backward_(gpunn_tensor *loss, gpunn_backward_args args);
#define gpunn_backward(...) gpunn_backward_(GPUNN_NAMED(gpunn_backward_args, __VA_ARGS__))
/* torch.autograd.backward(outputs, gradients): the same from gradients that the program gives, gradients[i] of F32 values
 * outputs[i], as many; so a model is one differentiable piece of a larger program. In memory of the host or of the GPU. The
 * forward pass is done anew, in training mode. */
GPUNN_API gpunn_status gpunn_backward_from(gpunn_tensor *const *outputs, const void *const *gradients, int count);
/* zero_grad, backward, clipping as set on the optimizer, update. A loss or gradient that is NaN or infinite gives
 * GPUNN_ERR_NUMERIC, and weights, running statistics and states stay as they were (those of gpunn_backward have moved before
 * gpunn_optimizer_step); parts that have been accumulated are dropped, as by gpunn_zero_grad. No checkpoint has them:
 * amid them there is none (GPUNN_ERR_STATE). */
typedef struct gpunn_train_step_args {
    int args_;
    int accumulate; /* calls for one update, each with a part of its batch; 1. The update has the mean of their gradients */
} gpunn_train_step_args;
GPUNN_API gpunn_status gpunn_train_step_(gpunn_optimizer *opt, gpunn_tensor *loss, gpunn_train_step_args args);
#define gpunn_train_step(opt, ...) gpunn_train_step_((opt), GPUNN_NAMED(gpunn_train_step_args, __VA_ARGS__))
GPUNN_API gpunn_status gpunn_zero_grad(gpunn_model *model);

/* Of an input, a parameter, a buffer, what a layer computes, or a gradient that it gives. */
typedef struct gpunn_layer_statistics {
    const char *op, *layer;  /* "linear", "fc1"; "input", "x"; layer "": it has no name */
    const char *gradient_of; /* NULL: of the value; "fc1.weight": of its gradient; "" where that has no name */
    int64_t     count, zeros, nans, infinities;
    double      mean, deviation, min, max; /* of the finite numbers; NaN: there are none */
} gpunn_layer_statistics;
typedef struct gpunn_inspect_args {
    int        args_;
    gpunn_mode mode;
    bool (*on_layer)(void *user, const gpunn_layer_statistics *layer); /* false ends it */
    void *user;
    bool  forward_only; /* no backward pass: of any value, and gradients stay what they are */
} gpunn_inspect_args;
/* Forward and backward of the loss for the eye, as torch's hooks see them: after each layer, in the order of their computation,
 * on_layer is told what it holds, summed up on the device. Dropout drops what it dropped in the last training step; running
 * statistics stay; gradients begin anew, as after gpunn_zero_grad, and values must be computed again before they are read.
 * Slow. */
GPUNN_API gpunn_status gpunn_inspect_(gpunn_tensor *loss, gpunn_inspect_args args);
#define gpunn_inspect(...) gpunn_inspect_(GPUNN_NAMED(gpunn_inspect_args, __VA_ARGS__))
/* The same, to find where NaN or infinity comes from: GPUNN_ERR_NUMERIC, and gpunn_error names the first layer with such a value
 * or gradient. */
GPUNN_API gpunn_status gpunn_check_nan(gpunn_tensor *loss);
/* Scales all gradients so that their 2-norm is at most max_norm; total_norm (may be NULL) receives the norm before. */
GPUNN_API gpunn_status gpunn_clip_grad_norm(gpunn_model *model, float max_norm, float *total_norm);
GPUNN_API gpunn_status gpunn_clip_grad_value(gpunn_model *model, float clip_value);

/* Every optimizer, once: the struct of its settings, its checks, specs, checkpoints, CPU loop, CUDA kernel and generated kernels
 * follow from its row; of what is below only the macro with its name does not. Columns:
 *     settings   torch's names and defaults, lr first: NUMBER(SIZE, ...) is 0 or more, SHARE from 0 to below 1, ANY finite
 *     states     s0, s1, s2, numbers for each parameter, from 0 on: STATE(ALWAYS), or STATE(setting) where none is needed while
 *                that is 0; then it is read only behind where(setting, ...)
 *     once       ONCE(name, value): for a whole update, in double, by the settings, step (1, 2, ...) and the names before it
 *     step       for each parameter p: its gradient g, clipped, and negated to maximize; all of it is float
 * Language: that of >>ops, and assignments, with float where a name is new. ONCE has C's sqrt and pow, power(base, whole
 * exponent) and nadam_product. Settings that more follows from: eps, without which zeros would not stay zeros;
 * weight_decay, which is 0 where gpunn_set_decay says so; initial_accumulator_value, from which s0 starts; beta1 and
 * beta2, which are "betas" in a spec. */
#define GPUNN_SETTINGS 8 /* at most, and of ONCE */
/* >>optimizers begin */
/* clang-format off */
/* X(ENUM, name, settings, states, once, step) */
#define GPUNN_OPTIMIZERS(X, NUMBER, FLAG, STATE, ONCE)                                                                         \
    X(SGD, sgd,                                                                                                                \
      NUMBER(SIZE, lr, K(1e-3)) NUMBER(SIZE, momentum, 0) NUMBER(ANY, dampening, 0) NUMBER(SIZE, weight_decay, 0)              \
      FLAG(nesterov) FLAG(maximize),                                                                                           \
      STATE(momentum),                                                                                                         \
      ONCE(keep, where(step == 1, 0, momentum)) ONCE(take, where(step == 1, 1, 1 - dampening))                                 \
      ONCE(ahead, where(momentum, nesterov, 1)) ONCE(behind, where(nesterov, momentum, where(momentum, 1, 0))),                \
      g = g + weight_decay * p;                                                                                                \
      s0 = where(momentum, keep * s0 + take * g, 0);                                                                           \
      p = p - lr * (ahead * g + behind * s0);)                                                                                 \
    X(ADAM, adam,                                                                                                              \
      NUMBER(SIZE, lr, K(1e-3)) NUMBER(SHARE, beta1, K(0.9)) NUMBER(SHARE, beta2, K(0.999)) NUMBER(SIZE, eps, K(1e-8))         \
      NUMBER(SIZE, weight_decay, 0) FLAG(maximize),                                                                            \
      STATE(ALWAYS) STATE(ALWAYS),                                                                                             \
      ONCE(take1, 1 - beta1) ONCE(take2, 1 - beta2)                                                                            \
      ONCE(rate, lr / (1 - power(beta1, step))) ONCE(root_scale, 1 / sqrt(1 - power(beta2, step))),                            \
      g = g + weight_decay * p;                                                                                                \
      s0 = beta1 * s0 + take1 * g;                                                                                             \
      s1 = beta2 * s1 + take2 * g * g;                                                                                         \
      p = p - rate * (s0 / (sqrt(s1) * root_scale + eps));)                                                                    \
    X(ADAMW, adamw,                                                                                                            \
      NUMBER(SIZE, lr, K(1e-3)) NUMBER(SHARE, beta1, K(0.9)) NUMBER(SHARE, beta2, K(0.999)) NUMBER(SIZE, eps, K(1e-8))         \
      NUMBER(SIZE, weight_decay, K(0.01)) FLAG(maximize),                                                                      \
      STATE(ALWAYS) STATE(ALWAYS),                                                                                             \
      ONCE(take1, 1 - beta1) ONCE(take2, 1 - beta2) ONCE(shrink, 1 - lr * weight_decay)                                        \
      ONCE(rate, lr / (1 - power(beta1, step))) ONCE(root_scale, 1 / sqrt(1 - power(beta2, step))),                            \
      s0 = beta1 * s0 + take1 * g;                                                                                             \
      s1 = beta2 * s1 + take2 * g * g;                                                                                         \
      p = p * shrink - rate * (s0 / (sqrt(s1) * root_scale + eps));)                                                           \
    X(RMSPROP, rmsprop,                                                                                                        \
      NUMBER(SIZE, lr, K(1e-2)) NUMBER(SIZE, alpha, K(0.99)) NUMBER(SIZE, eps, K(1e-8)) NUMBER(SIZE, weight_decay, 0)          \
      NUMBER(SIZE, momentum, 0) FLAG(centered) FLAG(maximize),                                                                 \
      STATE(ALWAYS) STATE(momentum) STATE(centered),                                                                           \
      ONCE(take, 1 - alpha),                                                                                                   \
      g = g + weight_decay * p;                                                                                                \
      s0 = alpha * s0 + take * g * g;                                                                                          \
      s2 = where(centered, s2 + take * (g - s2), 0);                                                                           \
      float move = g / (sqrt(s0 - s2 * s2) + eps);                                                                             \
      s1 = where(momentum, momentum * s1 + move, move);                                                                        \
      p = p - lr * s1;)                                                                                                        \
    X(ADAGRAD, adagrad,                                                                                                        \
      NUMBER(SIZE, lr, K(1e-2)) NUMBER(SIZE, eps, K(1e-10)) NUMBER(SIZE, lr_decay, 0) NUMBER(SIZE, weight_decay, 0)            \
      NUMBER(SIZE, initial_accumulator_value, 0) FLAG(maximize),                                                               \
      STATE(ALWAYS),                                                                                                           \
      ONCE(rate, lr / (1 + (step - 1) * lr_decay)),                                                                            \
      g = g + weight_decay * p;                                                                                                \
      s0 = s0 + g * g;                                                                                                         \
      p = p - rate * (g / (sqrt(s0) + eps));)                                                                                  \
    X(ADAMAX, adamax,                                                                                                          \
      NUMBER(SIZE, lr, K(2e-3)) NUMBER(SHARE, beta1, K(0.9)) NUMBER(SHARE, beta2, K(0.999)) NUMBER(SIZE, eps, K(1e-8))         \
      NUMBER(SIZE, weight_decay, 0) FLAG(maximize),                                                                            \
      STATE(ALWAYS) STATE(ALWAYS),                                                                                             \
      ONCE(take1, 1 - beta1) ONCE(rate, lr / (1 - power(beta1, step))),                                                        \
      g = g + weight_decay * p;                                                                                                \
      s0 = beta1 * s0 + take1 * g;                                                                                             \
      s1 = max(beta2 * s1, abs(g) + eps);                                                                                      \
      p = p - rate * (s0 / s1);)                                                                                               \
    X(NADAM, nadam,                                                                                                            \
      NUMBER(SIZE, lr, K(2e-3)) NUMBER(SHARE, beta1, K(0.9)) NUMBER(SHARE, beta2, K(0.999)) NUMBER(SIZE, eps, K(1e-8))         \
      NUMBER(SIZE, weight_decay, 0) NUMBER(SIZE, momentum_decay, K(4e-3)) FLAG(decoupled_weight_decay) FLAG(maximize),         \
      STATE(ALWAYS) STATE(ALWAYS),                                                                                             \
      ONCE(take1, 1 - beta1) ONCE(take2, 1 - beta2) ONCE(shrink, where(decoupled_weight_decay, 1 - lr * weight_decay, 1))      \
      ONCE(product, nadam_product(power(beta1, step), momentum_decay, step))                                                   \
      ONCE(next, beta1 * (1 - 0.5 * pow(0.96, (step + 1) * momentum_decay)))                                                   \
      ONCE(lead, lr * (1 - beta1 * (1 - 0.5 * pow(0.96, step * momentum_decay))) / (1 - product))                              \
      ONCE(rate, lr * (next / (1 - product * next))) ONCE(root_scale, 1 / sqrt(1 - power(beta2, step))),                       \
      g = where(decoupled_weight_decay, g, g + weight_decay * p);                                                              \
      s0 = beta1 * s0 + take1 * g;                                                                                             \
      s1 = beta2 * s1 + take2 * g * g;                                                                                         \
      p = p * shrink - (lead * g + rate * s0) / (sqrt(s1) * root_scale + eps);)                                                \
    X(RADAM, radam,                                                                                                            \
      NUMBER(SIZE, lr, K(1e-3)) NUMBER(SHARE, beta1, K(0.9)) NUMBER(SHARE, beta2, K(0.999)) NUMBER(SIZE, eps, K(1e-8))         \
      NUMBER(SIZE, weight_decay, 0) FLAG(decoupled_weight_decay) FLAG(maximize),                                               \
      STATE(ALWAYS) STATE(ALWAYS),                                                                                             \
      ONCE(take1, 1 - beta1) ONCE(take2, 1 - beta2) ONCE(shrink, where(decoupled_weight_decay, 1 - lr * weight_decay, 1))      \
      ONCE(power2, power(beta2, step)) ONCE(most, 2 / (1 - beta2) - 1)                                                         \
      ONCE(length, most - 2 * step * power2 / (1 - power2)) ONCE(enough, where(length > 5, 1, 0))                              \
      ONCE(rate, lr * (where(length > 5, sqrt((1 - power2) * (length - 4) * (length - 2) * most /                              \
                                              ((most - 4) * (most - 2) * length)), 1) / (1 - power(beta1, step)))),            \
      g = where(decoupled_weight_decay, g, g + weight_decay * p);                                                              \
      s0 = beta1 * s0 + take1 * g;                                                                                             \
      s1 = beta2 * s1 + take2 * g * g;                                                                                         \
      p = p * shrink - rate * where(enough, s0 / (sqrt(s1) + eps), s0);)                                                       \
    X(LION, lion,                                                                                                              \
      NUMBER(SIZE, lr, K(1e-4)) NUMBER(SHARE, beta1, K(0.9)) NUMBER(SHARE, beta2, K(0.99)) NUMBER(SIZE, weight_decay, 0)       \
      FLAG(maximize),                                                                                                          \
      STATE(ALWAYS),                                                                                                           \
      ONCE(take1, 1 - beta1) ONCE(take2, 1 - beta2) ONCE(shrink, 1 - lr * weight_decay),                                       \
      float way = beta1 * s0 + take1 * g;                                                                                      \
      s0 = beta2 * s0 + take2 * g;                                                                                             \
      p = p * shrink - lr * where(way > 0, 1, where(way < 0, -1, way));)                                                       \
    X(ADADELTA, adadelta,                                                                                                      \
      NUMBER(SIZE, lr, 1) NUMBER(SHARE, rho, K(0.9)) NUMBER(SIZE, eps, K(1e-6)) NUMBER(SIZE, weight_decay, 0) FLAG(maximize),  \
      STATE(ALWAYS) STATE(ALWAYS),                                                                                             \
      ONCE(take, 1 - rho),                                                                                                     \
      g = g + weight_decay * p;                                                                                                \
      s0 = rho * s0 + take * g * g;                                                                                            \
      float delta = sqrt((s1 + eps) / (s0 + eps)) * g;                                                                         \
      s1 = rho * s1 + take * delta * delta;                                                                                    \
      p = p - lr * delta;)
/* With a trust ratio: p = p - lr * ratio * move, where norms is |p| / |move| of a whole parameter, or 1 where either is 0.
 * X(ENUM, name, settings, states, once, step, move, ratio) */
#define GPUNN_TRUST_OPTIMIZERS(X, NUMBER, FLAG, STATE, ONCE)                                                                   \
    X(LAMB, lamb,                                                                                                              \
      NUMBER(SIZE, lr, K(1e-3)) NUMBER(SHARE, beta1, K(0.9)) NUMBER(SHARE, beta2, K(0.999)) NUMBER(SIZE, eps, K(1e-6))         \
      NUMBER(SIZE, weight_decay, K(0.01)) NUMBER(SIZE, trust_clip, 0) FLAG(always_adapt) FLAG(maximize),                       \
      STATE(ALWAYS) STATE(ALWAYS),                                                                                             \
      ONCE(take1, 1 - beta1) ONCE(take2, 1 - beta2)                                                                            \
      ONCE(lead, 1 / (1 - power(beta1, step))) ONCE(root_scale, 1 / sqrt(1 - power(beta2, step))),                             \
      s0 = beta1 * s0 + take1 * g;                                                                                             \
      s1 = beta2 * s1 + take2 * g * g;,                                                                                        \
      s0 * lead / (sqrt(s1) * root_scale + eps) + weight_decay * p,                                                            \
      where(weight_decay + always_adapt == 0, 1, where(trust_clip > 0, min(norms, trust_clip), norms)))
/* clang-format on */
/* >>optimizers end */

/* Which parameters: those listed, which are copied, and those whose names begin with prefix, such as are made later too. */
#define GPUNN__CHOSEN                     \
    gpunn_tensor *const *parameters;      \
    int                  parameter_count; \
    const char          *prefix; /* such as "generator." */
/* Parameters of an optimizer with settings of their own. 0: the optimizer's; GPUNN_ZERO: 0. Each is of the first group that fits.
 * Schedules scale each lr; gpunn_set_lr is of those without one. Where a group has a clip_norm, its norm is taken apart. */
typedef struct gpunn_optimizer_group {
    GPUNN__CHOSEN
    float lr, weight_decay, beta1, beta2;
    float clip_norm, clip_value; /* as of gpunn_set_clip_norm */
} gpunn_optimizer_group;
/* What an optimizer trains: what is chosen; all where neither list nor prefix is given. Several optimizers may share a model out
 * among them, each with its own state, steps, schedule and averages; gpunn_train_step computes, clips and begins anew only the
 * gradients of what its optimizer trains. Plans and graphs are kept for each, so taking turns costs nothing. A parameter of two
 * optimizers, one of which has been told what it trains, is refused: NULL and GPUNN_ERR_ARGUMENT, or, where a layer is made
 * later, GPUNN_ERR_STATE by the next step. */
#define GPUNN__SELECTION                                                                                                   \
    GPUNN__CHOSEN                                                                                                          \
    const gpunn_optimizer_group *groups; /* copied; need no saving: a checkpoint is loaded into an optimizer made alike */ \
    int                          group_count;

/* Each equals torch.optim's of the same name, step by step. Weight decay applies to every parameter, as there, but those excluded
 * by gpunn_set_decay. A parameter that no backward pass has reached since gpunn_zero_grad is left alone.
 * Not in torch: lion (Chen et al. 2023) p = (1 - lr weight_decay) p - lr sign(beta1 m + (1 - beta1) g), then
 * m = beta2 m + (1 - beta2) g. lamb (You et al. 2020, in timm's and NVIDIA's form): u is AdamW's step with both bias corrections,
 * plus weight_decay p; p -= lr ratio u, where ratio is |p| / |u| over the whole parameter, and 1 where one of them is 0 or where
 * the parameter has no weight decay. Their clipping of all gradients to norm 1 is gpunn_set_clip_norm(opt, 1). */
/* clang-format off */
#define GPUNN__NUMBER(kind, key, usual) float key;
#define GPUNN__FLAG(key) bool key;
#define GPUNN__X(ENUM, name, settings, ...)                                                                                    \
    typedef struct gpunn_##name##_args { int args_; settings GPUNN__SELECTION } gpunn_##name##_args;                           \
    GPUNN_API gpunn_optimizer *gpunn_##name##_(gpunn_model *model, gpunn_##name##_args args);
GPUNN_OPTIMIZERS(GPUNN__X, GPUNN__NUMBER, GPUNN__FLAG, , )
GPUNN_TRUST_OPTIMIZERS(GPUNN__X, GPUNN__NUMBER, GPUNN__FLAG, , )
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
GPUNN_API void gpunn_optimizer_destroy(gpunn_optimizer *opt);

/* The update alone, from the gradients there are. Amid calls of gpunn_train_step with .accumulate it ends them: the update is
 * what the last of as many would have made, clipping included. */
GPUNN_API gpunn_status gpunn_optimizer_step(gpunn_optimizer *opt);
GPUNN_API void         gpunn_set_lr(gpunn_optimizer *opt, float lr); /* the base rate; a schedule scales it from now on */
GPUNN_API float        gpunn_get_lr(const gpunn_optimizer *opt);     /* what the next step uses */
GPUNN_API void         gpunn_set_clip_norm(gpunn_optimizer *opt, float max_norm);    /* in gpunn_train_step; 0: off */
GPUNN_API void         gpunn_set_clip_value(gpunn_optimizer *opt, float clip_value); /* the same, per element */
GPUNN_API int64_t      gpunn_step_count(const gpunn_optimizer *opt);
/* torch's AveragedModel with get_ema_multi_avg_fn(decay): after each update average = decay average + (1 - decay) p of every
 * parameter, frozen ones too; p itself after the first. An update that is skipped counts for nothing. Running statistics are not
 * averaged (use_buffers=False). Takes 4 bytes a parameter. 0 <= decay < 1; 0: off, the averages are gone. */
GPUNN_API gpunn_status gpunn_set_ema(gpunn_optimizer *opt, float decay);
/* Exchanges parameters and averages, for gpunn_forward, gpunn_save, ...; the next call exchanges them back. In between, steps and
 * checkpoints are refused (GPUNN_ERR_STATE), and gpunn_optimizer_destroy leaves the averages in the model. */
GPUNN_API gpunn_status gpunn_ema_swap(gpunn_optimizer *opt);
/* F16 on a GPU: what gpunn_train_step multiplies the loss by (read gradients are too); it doubles every 2000 steps and halves
 * when gradients overflow, whose update is skipped and counted in *skipped (may be NULL). 1 for other precisions. Waits.
 * *skipped also counts the steps of gpunn_set_skip_nan. */
GPUNN_API float gpunn_loss_scale(gpunn_optimizer *opt, int64_t *skipped);
/* A step whose loss or gradients are not finite is skipped: gpunn_train_step and gpunn_optimizer_step return GPUNN_OK and change
 * neither weights nor running statistics nor states. gpunn_loss_scale counts such steps; gpunn_step_count and schedules go on.
 * Parts that have been accumulated are dropped, on a GPU with the last of them. Common to all ranks. At first false:
 * GPUNN_ERR_NUMERIC. */
GPUNN_API void gpunn_set_skip_nan(gpunn_optimizer *opt, bool skip);

typedef enum gpunn_schedule_type {
    GPUNN_SCHEDULE_CONSTANT = 0,
    GPUNN_SCHEDULE_STEP,        /* lr gamma^(t / step_size) */
    GPUNN_SCHEDULE_MULTI_STEP,  /* lr gamma^(milestones passed) */
    GPUNN_SCHEDULE_EXPONENTIAL, /* lr gamma^t */
    GPUNN_SCHEDULE_COSINE,      /* min_lr + (lr - min_lr) (1 + cos(pi t / total_steps)) / 2, min_lr after total_steps */
    GPUNN_SCHEDULE_ONE_CYCLE,   /* torch's OneCycleLR with cosine annealing and momentum left alone; lr is max_lr */
    GPUNN_SCHEDULE_LINEAR,      /* after the warm-up linearly down to min_lr at total_steps */
    GPUNN_SCHEDULE_PLATEAU      /* torch's ReduceLROnPlateau: lr factor after patience calls without a better metric */
} gpunn_schedule_type;
typedef struct gpunn_schedule_args {
    int                 args_;
    gpunn_schedule_type type;
    int64_t             total_steps, step_size;
    int64_t             warmup_steps; /* the rate rises from 0 on them, before the schedule begins; total_steps has them in it */
    int64_t             milestones[16]; /* rising; ends at the first 0 */
    float               gamma;          /* 0.1; exponential: 0.95 */
    float               min_lr;
    float               pct_start, div_factor, final_div_factor; /* one-cycle: 0.3, 25, 1e4 */
    float               factor, threshold;                       /* plateau: 0.1, 1e-4 (relative) */
    int                 patience, cooldown;                      /* plateau: 10, 0 */
    bool                maximize;                                /* plateau: a better metric is a larger one */
} gpunn_schedule_args;
/* t counts calls of gpunn_schedule_step: the program decides whether a step is a batch or an epoch. */
GPUNN_API gpunn_status gpunn_set_schedule_(gpunn_optimizer *opt, gpunn_schedule_args args);
#define gpunn_set_schedule(...) gpunn_set_schedule_(GPUNN_NAMED(gpunn_schedule_args, __VA_ARGS__))
GPUNN_API gpunn_status gpunn_schedule_step(gpunn_optimizer *opt, float metric); /* metric: read by PLATEAU only */

/* ==== >>group ========================================================================================================= *
 * Processes that train one model together, its ranks: each computes the gradients of its own share of every batch and makes the
 * same update from their mean (torch's DistributedDataParallel). What is said to be common to all ranks waits for all of them to
 * call it, in the same order; a failure of one is then told to every rank, "rank 2: ...", and each call returns it. Ranks that do
 * different things are told so, GPUNN_ERR_STATE. Not thread-safe per device. */
typedef struct gpunn_group gpunn_group;
typedef enum gpunn_group_type { /* what carries gradients; all else goes through MPI, the folder or the functions */
                                GPUNN_GROUP_AUTO, /* NCCL between GPUs, where all ranks find it, else as HOST */
                                GPUNN_GROUP_NCCL, /* or GPUNN_ERR_UNSUPPORTED */
                                GPUNN_GROUP_HOST  /* as all else, through the host's memory */
} gpunn_group_type;
typedef struct gpunn_group_args {
    int              args_;
    double           timeout;      /* seconds, more than some steps take, that a rank waits for the others before it names those
                                    * that are missing; 600 */
    gpunn_group_type type;         /* the same on all ranks */
    bool             share_gpu;    /* two ranks on one GPU are as meant, not a mistake; they exchange through the host's memory */
    size_t           bucket_bytes; /* NCCL: gradients travel in parts of about so many, while backward makes the next; 25 MiB */
    bool             shard; /* each rank keeps and updates its share of the optimizers' states and averages alone (ZeRO-1) */
    /* Gradients travel as BF16 (torch's bf16_compress_hook), in half the bytes: each rank rounds its own to nearest even, they
     * are added up in F32 in the order of the ranks, the sum is rounded once more on its way back, and is divided by size in F32,
     * as which gradients are kept and used. All ranks have the same bits. NCCL, and an engine with .all_reduce_bf16, add up in
     * their own way, which may round between. */
    bool bf16_gradients;
    /* Ranks that no MPI has started (torchrun, srun, a script) meet in this folder, which all see and no other run has used, or,
     * on POSIX, at rank 0's "tcp://host:port", which any network that all trust reaches. NULL: GPUNN_STORE of the environment,
     * else MASTER_ADDR and MASTER_PORT. rank and size as below or, both 0, as torchrun, mpirun or srun says. */
    const char *store;
    /* An engine of the program's, which decides by itself how long it waits: the first three functions, or none. Each is called
     * by all ranks, with memory of the host's; what is not GPUNN_OK ends the group. */
    int rank, size; /* of such an engine: 0 <= rank < size */
    gpunn_status (*all_reduce)(void *user, float *values,
                               int64_t count);                         /* values: the sum of all ranks', the same bits on each */
    gpunn_status (*all_gather)(void *user, void *parts, size_t bytes); /* parts[size][bytes], of which [rank] is this rank's */
    gpunn_status (*broadcast)(void *user, void *memory, size_t bytes, int root); /* memory: what rank root has there */
    /* May be NULL: then all_reduce is called for it. values: a part for each rank, one behind the other, counts[r] >= 0 of rank
     * r's; this rank's becomes the sum of all ranks', the others' anything. Called with .shard; counts[size] are the same on all
     * ranks. */
    gpunn_status (*reduce_scatter)(void *user, float *values, const int64_t *counts);
    /* May be NULL: then all_gather is called for it, by which a rank hears size - 1 times as much as it says. As all_reduce, of
     * BF16; called with .bf16_gradients. */
    gpunn_status (*all_reduce_bf16)(void *user, uint16_t *values, int64_t count);
    const char *(*error)(void *user); /* one sentence about what failed last; may be NULL */
    void *user;
} gpunn_group_args;
/* dev: the models', which hears of failures. Common to all ranks. Where neither functions nor a folder are given, compiled with
 * -DGPUNN_MPI (mpicc), the ranks that mpirun or srun started, over MPI, which is begun, and ended with the group, unless the
 * program has begun it (of several groups the first is closed last); else a group of one. NULL on failure: gpunn_error(dev).
 * GPUNN_ERR_STATE: two ranks have opened the same GPU, a folder has files of another run, or several ranks are said to run and
 * not where they meet. Over TCP a rank waits twice .timeout for rank 0, which names who is missing; a process that ends is told
 * of at once. A CPU's threads become fewer where other ranks have the same processors (RANKS), which log_fn hears; what runs have
 * left on it cannot be read then. */
GPUNN_API gpunn_group *gpunn_group_open_(gpunn_device *dev, gpunn_group_args args);
#define gpunn_group_open(...) gpunn_group_open_(GPUNN_NAMED(gpunn_group_args, __VA_ARGS__))
/* A group that has optimizers or loaders is freed with the last of them. The end of MPI waits for all ranks; after one was
 * missing, MPI is left as it is, and nothing waits. NULL is fine. */
GPUNN_API void gpunn_group_close(gpunn_group *group);
GPUNN_API int  gpunn_group_rank(const gpunn_group *group); /* 0 <= rank < size; 0 for NULL */
GPUNN_API int  gpunn_group_size(const gpunn_group *group); /* 1 for NULL */
/* Which of the ranks on this machine this process is, as mpirun, srun or torchrun says; 0 without them. */
GPUNN_API int gpunn_local_rank(void);
/* Makes the optimizer's model one that the ranks train together: weights and the optimizer's state become rank 0's, and dropout
 * drops other elements on each rank. Common to all ranks are from now on: gpunn_train_step, gpunn_optimizer_step, gpunn_fit,
 * gpunn_checkpoint_save and _load. A step averages the gradients over all ranks before clipping and update, and the loss, as the
 * program reads it; a loss or gradient that is not finite on one rank changes nothing on any, which GPUs that exchange by NCCL
 * may tell in a later call, as of the mean; running statistics are rank 0's after each update. A checkpoint is written by rank
 * 0 and read by each, by as many ranks as there are then. GPUNN_ERR_STATE: the ranks' models, optimizers or seeds differ, and
 * in what. NULL for group: an optimizer by itself again. With .shard, states take a rank 1 / size of their memory, and each
 * update is followed by an exchange of the parameters. Leaving the group, gpunn_distribute for layers that came later, and
 * gpunn_ema_swap are common to all ranks then; for the time of gpunn_checkpoint_save rank 0 has all states.
 * GPUNN_ERR_UNSUPPORTED: an optimizer with a trust ratio, whose norms are of whole parameters. Behind gpunn_train_step a rank
 * has the mean of its share of the gradients alone then, and of the others what the exchange has left there, unless they were
 * clipped by their norm, accumulated or scaled (F16), for which each rank needs all. */
GPUNN_API gpunn_status gpunn_distribute(gpunn_optimizer *opt, gpunn_group *group);

#endif /* GPUNN__API_TRAIN_H */
