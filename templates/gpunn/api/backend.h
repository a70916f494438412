#ifndef GPUNN__API_BACKEND_H
#define GPUNN__API_BACKEND_H
#include "api/data.h"

/* ==== >>backend ========================================================================================== *
 * Interface that a compute backend implements. Programs need nothing from this section. The core plans; the
 * backend computes. All tensors are contiguous and row-major in the backend's memory. A device calls its
 * backend from one thread at a time. */
#define GPUNN_BACKEND_ABI 26
#define GPUNN_MAX_OPERANDS 64 /* for concat; other ops have at most 13 */

/* Constants of one node. Each op reads only the fields that name it. */
typedef struct gpunn_attributes {
    float value[2];         /* elementwise */
    float dropout_p, scale; /* dropout, attention; scale: attention, roi_align, quantised ops */
    float fill;             /* pad */
    float label_smoothing;  /* cross_entropy */
    int   kernel[3];        /* conv, pools: one per spatial axis, the first in [0] */
    int   stride[3], padding[3], dilation[3];
    int   output_padding[3]; /* conv_transpose */
    int   size[3];           /* adaptive pools, interpolate, roi_align: size of the result */
    /* reshape, expand: shape of the result; affine_grid: its spatial sizes; interpolate: those that vary */
    gpunn_shape shape;
    gpunn_dtype dtype;                        /* cast */
    int         groups;                       /* conv, group_norm; instance_norm: number of channels */
    bool        ceil_mode, count_exclude_pad; /* pools */
    float       eps, momentum;                /* batch_norm, instance_norm; other norms: eps */
    bool        sync;                         /* batch_norm: over all ranks of the step */
    /* ops along one axis; >= 0. layer_norm, rms_norm: the first axis normalised */
    int      axis;
    int      order[GPUNN_MAX_RANK];  /* permute */
    uint32_t axes;                   /* sum, max, gradient_energy: bit i set: reduce axis i */
    bool     keepdim;                /* sum, max, argmax */
    int      k;                      /* topk_indices; roi_align: sampling_ratio */
    bool     largest;                /* topk_indices */
    bool     mean;                   /* sum: divide by the number of elements summed */
    int64_t  start, end, step;       /* slice */
    int64_t  before[GPUNN_MAX_RANK]; /* pad */
    int64_t  after[GPUNN_MAX_RANK];  /* pad */
    int      hidden_size;            /* rnn, lstm, gru */
    bool     relu, bidirectional;    /* rnn, lstm, gru; relu: rnn */
    /* rnn, lstm, gru: after the last step the result holds h_n and, for lstm, c_n, each with the memory of
     * [directions, n, hidden] */
    bool                   states;
    bool                   transpose_a, transpose_b; /* matmul */
    bool                   enable_gqa;               /* attention: k and v may have fewer heads */
    bool                   is_causal, heads_last;    /* attention; packed q, k, v are always heads_last */
    gpunn_reduction        reduction;                /* cross_entropy, nll, ctc_loss: MEAN, SUM or NONE */
    int                    blank;                    /* ctc_loss */
    const gpunn_custom_op *custom;                   /* custom, with its numbers */
    float                  numbers[GPUNN_CUSTOM_NUMBERS];
    bool                   zero_infinity, batch_first; /* ctc_loss */
    bool                   in_training;                /* assign, which also reads axis */
    /* cross_entropy, nll; embedding: padding_idx, -1 for none */
    int64_t ignore_index;
    /* dropout, attention with dropout, random numbers: number of this node among the model's random nodes */
    uint32_t random_stream;
    /* grid_sample: gpunn_grid_mode; interpolate: gpunn_interpolate_mode; pad: gpunn_pad_mode; integer:
     * gpunn_integer_op */
    int     mode;
    int     padding_mode;  /* grid_sample: gpunn_grid_padding */
    bool    align_corners; /* grid_sample, affine_grid, interpolate; roi_align: aligned */
    float   ratio[3];      /* interpolate: cells of x per cell of the result, one per spatial axis */
    int     n_levels, log2_hashmap_size, base_resolution; /* hash_grid_encoding */
    float   per_level_scale;
    int64_t number;             /* integer: its last operand, if not a tensor */
    float   temperature, top_p; /* sample */
    bool    right;              /* searchsorted */
    bool    sparse;             /* embedding, hash_grid: weight's gradient is sparse, see gpunn_step */
    /* quantised ops: of the operands x, or a and b; and of the result, beside scale */
    float x_scale, b_scale;
    int   x_zero_point, b_zero_point, zero_point, quant_min, quant_max;
} gpunn_attributes;

struct gpunn_value {
    void       *data; /* NULL: not wanted or absent */
    gpunn_dtype dtype;
    int         rank;
    int64_t     dim[GPUNN_MAX_RANK]; /* actual sizes; a batch is never empty */
    int64_t     count;               /* product of dim; 1 for a scalar */
    bool        channels_last;       /* for rank 4: dim is n, c, h, w, but memory is n, h, w, c */
};

/* A counter that continues when the program replays a captured run. */
typedef struct gpunn_count {
    uint64_t host; /* the host's count at the last run outside a capture */
    uint64_t now;  /* the same plus replays, which the host does not see */
} gpunn_count;
enum { GPUNN_COUNT_SEED, GPUNN_COUNT_STEP, GPUNN_COUNT_DRAW, GPUNN_RUN_COUNTS };

typedef struct gpunn_run_state {
    uint64_t seed; /* of the device */
    uint64_t step; /* number of this training step; key of dropout */
    /* key of random numbers: step << 24; in evaluation one more than in the previous run */
    uint64_t draw;
    /* changes whenever a parameter or buffer may have changed; invalidates step->cache */
    uint64_t weights_version;
    /* of the first three fields: GPUNN_RUN_COUNTS entries in backend memory; NULL: runs cannot be captured */
    gpunn_count *counts;
} gpunn_run_state;

/* The ranks that train a model together. */
typedef struct gpunn_ranks {
    int  rank, size;
    bool joined; /* the device itself communicates with the other ranks (ranks_join); else use gather: */
    /* All-gather in host memory: parts[size][bytes]; on entry [rank] is this rank's. */
    gpunn_status (*gather)(void *user, void *parts, size_t bytes);
    void *user;
} gpunn_ranks;

/* The convolutions of images in a run. */
typedef struct gpunn_images {
    bool            training;
    gpunn_precision precision;
    int64_t         largest;  /* elements of the largest result */
    double          products; /* multiplications */
    double          wide;     /* those of depthwise convolutions, or with 16 or more channels a group */
    bool            filters;  /* set by the backend: weights shall have channels last too */
} gpunn_images;

typedef struct gpunn_kernel        gpunn_kernel; /* >>kernels */
typedef struct gpunn_kernel_launch gpunn_kernel_launch;
#define GPUNN_KERNEL_RANDOM_STREAMS 8 /* most random nodes of one fused kernel */
#define GPUNN_KERNEL_OPERANDS 64      /* most operands of one fused kernel */

/* Ops that the plan has fused into a step, applied in this order to the result with its bias. They occur in
 * the forward of LINEAR and convolutions and, for backends with info.merged_norm, of BATCH_NORM in training:
 * residual and relu. Its backward step also has relu. Then grad_out and out (read if there is a residual) are
 * those after the relu, and grad_in[5] is the gradient of the residual. */
typedef struct gpunn_step_fused {
    /* batch_norm with running statistics: weight, bias, running_mean, running_var */
    gpunn_value scale, shift, mean, variance;
    bool        norm;
    float       eps;
    gpunn_value residual; /* added; shape of out, never the same memory */
    bool        relu;
    bool        gelu_tanh; /* LINEAR */
    gpunn_value before;    /* receives the input of gelu_tanh; data NULL: not wanted */
    /* any unary op, last (info.merged_activations, evaluation of convolutions with channels last) */
    const struct gpunn__operation *activation;
    const gpunn_attributes        *activation_attr;
    gpunn_value more; /* backward of BATCH_NORM with a residual: added to grad_out; data NULL: nothing */
    /* Backward of LINEAR only. x is the result of this activation, and nothing else reads x. grad_in[0] is
     * the gradient of the activation's input. RELU: the mask follows from x; GELU_TANH: its input is in
     * `before`; NONE: plain x */
    gpunn_op activated;
    /* LAYER_NORM, RMS_NORM: receives a 16-bit copy of out or, in backward, of grad_in[0] after accumulation;
     * data NULL: not wanted */
    gpunn_value half;
    /* A step of a strip-mined chain (backend->strips). n > 0: run computes the n steps before this one in the
     * plan too. -1: a later step computes this one, and out has no memory. */
    int strips;
} gpunn_step_fused;

/* A fused kernel with what it is called with. */
typedef struct gpunn_step_fusion {
    const gpunn_kernel        *kernel;
    const gpunn_kernel_launch *launch; /* on a GPU; NULL: the .cu file is not linked */
    int                        direction;
    int64_t                    batch;
    uint32_t                   random_streams[GPUNN_KERNEL_RANDOM_STREAMS];
    void                      *half[GPUNN_KERNEL_OPERANDS]; /* as in gpunn_kernel_call */
} gpunn_step_fusion;

/* One op of a plan, forward or backward. Operands are those of the op's row (>>ops). An absent weight, bias,
 * mask, position, lengths or initial state has data NULL.
 * - BATCH_NORM, INSTANCE_NORM: a training forward updates running_mean and running_var in place, unless data
 *   is NULL.
 * - ATTENTION: the first operand may hold all of q, k and v, with rank 5. lengths, if used, are at their
 *   place.
 * - RNN, LSTM, GRU: x is [length, n, features]; the last four operands repeat for each direction. reset is
 *   [length, n]: sequences for which it is not 0 continue from zeros at that step.
 * - ASSIGN: out is the state's own memory.
 * - CONCAT, CUSTOM: any number of operands.
 * - FUSION: the operands of its program; gradients that it writes are in grad_in, with accumulate, all others
 *   in `in`.
 * - EMBEDDING, HASH_GRID with attr->sparse, backward: grad_in[1] is [entries, columns], the sums for
 *   `entries` rows at most. The I64 numbers of these rows follow at the next multiple of 64 bytes; they
 *   differ. -1: an entry without a row, which is 0. With accumulate it adds to these rows, and finds room for
 *   the new ones.
 * - RELAYOUT (backends with channels_last): source in `in`; destination in grad_in, with the wanted channels
 *   and dtype, and accumulate.
 * A large plan has many steps. What only few of them need stands behind pointers, so that they stay small. */
typedef struct gpunn_step {
    gpunn_op op;
    /* false: compute out from in. true: compute grad_in from grad_out and the operands the op table lists */
    bool backward;
    bool inference; /* inference model: no cache that copies the weights, but those of small layers */
    /* Of the plan. In training, dropout is active. batch_norm uses the batch's statistics and updates the
     * running ones; instance_norm does the same with each sample's. */
    bool training;
    /* In training: attention drops nothing; batch_norm and instance_norm use the running statistics and leave
     * them unchanged. */
    bool                           evaluates;
    gpunn_precision                precision; /* of the model on this device */
    int                            input_count;
    const struct gpunn__operation *operation; /* how the CPU backend computes it */
    const char                    *name;      /* name of the layer, "" if it has none */
    const gpunn_attributes        *attr;
    gpunn_step_fused              *fused;  /* in a plan never NULL: all zeros if nothing is fused */
    gpunn_step_fusion             *fusion; /* FUSION only */
    /* [input_count]; backward: data NULL if the op table says it is not read */
    gpunn_value *in;
    gpunn_value *grad_in;    /* backward, [input_count]: data NULL where not wanted */
    bool        *accumulate; /* backward, [input_count]: grad_in += instead of = */
    gpunn_value  out;        /* backward: data NULL if not read */
    gpunn_value  grad_out;
    /* Aliasing. Forward: out.data may equal in[0].data (or in[1].data) for elementwise ops. Backward:
     * grad_in[i].data may equal grad_out.data for elementwise ops if accumulate[i] is false and i is the only
     * wanted gradient. */
    /* Written by the forward step, read by its backward step. prepare sets saved_bytes in the forward step;
     * the core gives both steps the same pointer and size. */
    void  *saved;
    size_t saved_bytes;
    void  *workspace; /* scratch memory of this step; prepare sets workspace_bytes */
    size_t workspace_bytes;
    /* Evaluation plans: memory kept between runs, for example for packed weights; prepare sets cache_bytes.
     * NULL in training. */
    void  *cache;
    size_t cache_bytes;
    /* set by the backend: state->weights_version when cache was filled; starts at 0 */
    uint64_t               cache_version;
    const gpunn_run_state *state;
    /* BATCH_NORM with sync in training, several ranks: those that share the batch; else NULL */
    const gpunn_ranks *ranks;
} gpunn_step;

/* Numbers that are the same for all elements of an optimizer's update (gpunn_update). */
typedef struct gpunn_update_numbers {
    bool  go;                         /* false: do not update */
    float scale;                      /* g = clamp(gradient * scale, +-gradient_limit) */
    float lr;                         /* setting[0] in this step */
    float once[GPUNN_UPDATE_NUMBERS]; /* columns ONCE of the kind's row */
} gpunn_update_numbers;
typedef struct gpunn_update        gpunn_update;
typedef struct gpunn_kernel_update gpunn_kernel_update; /* >>kernels */
/* numbers: device memory. Returns 0 or a negated cudaError_t. */
typedef int (*gpunn_kernel_update_launch)(const gpunn_update *update, const gpunn_update_numbers *numbers,
                                          void *stream);

/* All kinds of updates of parameters: X for the optimizers, for averages, where g is the parameter, and for
 * ADAM's updates of sparse tables; TRUST for optimizers with a trust ratio, in the same form. */
/* clang-format off */
#define GPUNN_UPDATES(X, TRUST, NUMBER, FLAG, STATE, ONCE)                           \
    GPUNN_OPTIMIZERS(X, NUMBER, FLAG, STATE, ONCE)                                   \
    GPUNN_TRUST_OPTIMIZERS(TRUST, NUMBER, FLAG, STATE, ONCE)                         \
    GPUNN_MATRIX_OPTIMIZERS(X, NUMBER, FLAG, STATE, ONCE)                            \
    X(AVERAGE, average, NUMBER(SHARE, lr, 0), , ONCE(first, where(step == 1, 1, 0)), \
      p = where(first, g, p + lr * (g - p));)                                        \
    X(SPARSE_ADAM, sparse_adam,                                                      \
      NUMBER(SIZE, lr, 0) NUMBER(SHARE, beta1, 0) NUMBER(SHARE, beta2, 0)            \
      NUMBER(SIZE, eps, 0),                                                          \
      STATE(ALWAYS) STATE(ALWAYS),                                                   \
      ONCE(take1, 1 - beta1) ONCE(take2, 1 - beta2)                                  \
      ONCE(rate, lr * sqrt(1 - power(beta2, step)) / (1 - power(beta1, step))),      \
      s0 = s0 + take1 * (g - s0);                                                    \
      s1 = s1 + take2 * (g * g - s1);                                                \
      p = p - rate * (s0 / (sqrt(s1) + eps));)
typedef enum gpunn_update_kind {
#define GPUNN__X(ENUM, ...) GPUNN_UPDATE_##ENUM,
    GPUNN_UPDATES(GPUNN__X, GPUNN__X, , , , )
#undef GPUNN__X
    GPUNN_UPDATE_COUNT
} gpunn_update_kind;
/* clang-format on */
/* One update over a contiguous range; with a trust ratio, and for a matrix, over one parameter. */
struct gpunn_update {
    gpunn_update_kind kind;
    float             setting[GPUNN_SETTINGS]; /* settings in the kind's row, flags as 0 or 1 */
    int64_t           count;
    /* parameter NULL: another rank's share; its gradients count only in norms */
    float       *parameter, *state[3];
    const float *gradient;
    void        *half;           /* also receives the new parameters in half_dtype; NULL: not wanted */
    gpunn_dtype  half_dtype;     /* F16 or BF16 */
    int64_t      step;           /* 1 for the first update of this range */
    float        gradient_scale; /* gradients are read as gradient * gradient_scale ... */
    float        gradient_limit; /* ... clamped to +-limit when limit > 0 */
    /* in a gpunn_run: limit of the norm of the scaled gradients over all updates of that group; 0: off */
    float                      clip_norm;
    int                        clip_group; /* 0, 1, ... */
    const gpunn_kernel_update *fused;      /* generated kernel for exactly this update; NULL: none */
    /* the same on a GPU; runs after a kernel that sets its numbers */
    gpunn_kernel_update_launch fused_launch;
    /* run->counts [first, last) are its step counts; both 0: its step advances with count 0 */
    int first, last;
    /* Sparse: the gradient is [count / columns][columns]. Its line i belongs to row rows[i] of parameter,
     * state and half, or to none if that is below 0. SGD, ADAGRAD and SPARSE_ADAM only. NULL: dense. */
    const int64_t *rows;
    int64_t        columns;   /* MUON: the parameter is [count / columns][columns] */
    void          *workspace; /* MUON: device memory for its iteration */
};

/* A collective exchange between ranks whose devices communicate themselves. */
typedef struct gpunn_exchange {
    float  *values;
    int64_t count;
    int     root; /* rank whose values all receive (broadcast), or GPUNN_MEAN: the mean over all ranks */
    /* Number of steps of the run after which the values are complete, or one of the constants below. Never
     * less than in the previous exchange. */
    int  after;
    bool collects; /* instead: rank `root` alone receives the mean over all ranks */
    /* send a mean as BF16 through this device memory; NULL: as F32. All exchanges share it */
    void   *bf16;
    int64_t bf16_count; /* capacity of bf16, a multiple of 16 */
} gpunn_exchange;
enum { GPUNN_MEAN = -1, GPUNN_AFTER_UPDATES = INT32_MAX };
/* Exchange of the loss if ranks see only the means of their own shares of the gradients. A rank that finds a
 * gradient not finite sends NaN. */
enum { GPUNN_AFTER_CHECK = INT32_MAX - 1 };
enum { GPUNN_RANKS_ID = 128 }; /* bytes of the id by which ranks find each other */

/* Conversion of byte images to floats: (x / 255 - mean) / std, rounded after each operation. Each image has 1
 * to 4 channels of `plane` pixels, one after another. */
typedef struct gpunn_pixels {
    int64_t plane;
    int     channels;
    float   mean[4], std[4]; /* per channel; std not 0 */
} gpunn_pixels;

/* Floats that steps of a training run change in place (running statistics and states), with memory for a copy
 * of their old values. */
typedef struct gpunn_kept {
    float  *values, *copy;
    int64_t count;
} gpunn_kept;

/* One whole run of a plan, for backends that execute it as one piece. Steps run in order. Each exchange
 * starts as soon as its values are complete. Then come the updates, then the exchanges after updates. */
typedef struct gpunn_run {
    gpunn_step *steps;
    int         step_count;
    /* changes when a pointer or flag in steps has changed since the last run with this `captured` */
    uint64_t               signature;
    const gpunn_run_state *state;
    const float           *loss; /* training: device memory, one float; NULL in evaluation */
    /* F16 training: is set to loss_scale[0], or 1, before the steps; else NULL */
    float *loss_gradient;
    /* if the loss or any of their gradients is not finite, none of them happens */
    const gpunn_update *updates;
    int                 update_count;
    /* With the ranks that the device has joined, which are about to do the same. They run in any case; part
     * of signature. */
    const gpunn_exchange *exchanges;
    int                   exchange_count;
    /* F16 training, or skips: device memory; [0] scale, [1] steps since it changed, [2] updates skipped */
    float *loss_scale;
    void  *captured; /* owned by the backend, initially NULL; passed to `forget` when the plan is freed */
    /* The training step whose loss or gradient was not finite; 0: before the first one. The backend sets it
     * and is_bad as soon as it knows, perhaps in a later run, or in a run without any work (for a device that
     * has joined ranks: only there). */
    uint64_t bad_step;
    float    bad_value;
    bool     bad_norm; /* bad_value is a gradient */
    /* After a failure: the step that failed; NULL: none in particular. */
    const gpunn_step *failed;
    const float      *bad_gradient; /* with bad_norm: address of bad_value; NULL: in another rank's share */
    /* Ranges that the run copies before its steps, and restores if its loss or a gradient is not finite. The
     * list is in device memory. */
    const gpunn_kept *kept;
    int               kept_count;
    /* count a loss or gradient that is not finite in loss_scale[2] instead of reporting it */
    bool skips;
    bool scales; /* F16: adjust loss_scale[0] by the gradients */
    /* Backend memory. [0] counts updates of this optimizer, of which this is number `update`; the others
     * count those of one parameter each. NULL: runs cannot be captured. */
    gpunn_count *counts;
    int64_t      update;
    bool         trains; /* training step: state->step has advanced */
    /* Set by the backend if the program captures the run: it has not run, and its replays count
     * themselves. */
    bool captured_only;
    /* Backend memory, laid out as `counts`: the number of updates that were rejected and reported, not
     * skipped. Each rejection increments all of them. They are subtracted from the step of an update. NULL:
     * no updates. */
    int64_t *rejected;
    /* A training run: memory in which its steps write gradients of parameters, with fewer than 16 zeros
     * between neighbours. */
    const float *gradients;
    int64_t      gradient_count;
    /* Backend memory; 0: all gradients of an optimizer are finite. Steps without updates leave that there of
     * those that they write, updates without steps of those that they read, which is_checked spares where it
     * is 0 already. NULL: nobody asks. */
    uint64_t *doubt;
    bool      is_checked;
    bool      is_bad; /* set with bad_step */
} gpunn_run;

/* Initial values of a tensor, or of a part of it. They are the same on every backend. */
typedef struct gpunn_drawing {
    gpunn_init init;
    uint64_t   seed;
    uint32_t   id;           /* of the tensor */
    int64_t    fan_in;       /* number of inputs of each result */
    int64_t    first, count; /* elements of the tensor; first is a multiple of 64 */
} gpunn_drawing;

/* Counts of each kind of number, and sums over the finite ones. If there are none, min and max are
 * undefined. */
typedef struct gpunn_value_sums {
    double finite, zeros, nans, infinities, sum, squares, min, max;
} gpunn_value_sums;
#define GPUNN_SUM_PARTS 128

typedef struct gpunn_backend_info {
    gpunn_device_type type;
    char              name[160];
    int               threads;
    bool              half;               /* supports F16 values */
    bool              bf16;               /* supports BF16 values too */
    bool              merged_norm;        /* BATCH_NORM in training can fuse a residual and a relu */
    bool              merged_activations; /* convolutions can apply any unary op (fused.activation) */
    /* in evaluation CONCAT, SLICE and PERMUTE receive operands and results in either layout, and convolutions
     * read less than 8 channels as planes */
    bool any_layout;
    /* required alignment of user-owned memory in bytes; 0: that of its elements */
    int      alignment;
    uint64_t identity; /* GPU: unique number among all GPUs of all machines; 0: none */
    bool     blocks;   /* LINEAR and EMBEDDING read weights stored as blocks, which have no gradient */
} gpunn_backend_info;

struct gpunn_backend {
    int abi; /* GPUNN_BACKEND_ABI */
    int (*device_count)(void);
    /* Returns the backend's own context. On failure it returns NULL and writes a sentence to message. */
    void *(*open)(const gpunn_device_args *args, char *message, size_t message_size);
    void (*close)(void *context);
    void (*info)(void *context, gpunn_backend_info *info);
    /* Limits the number of threads from now on. Steps prepared for more must be prepared again. NULL: the
     * backend has no threads. */
    void (*limit)(void *context, int threads);
    /* 64-byte aligned; NULL if out of memory. */
    void *(*alloc)(void *context, size_t bytes);
    void (*free)(void *context, void *ptr, size_t bytes);
    /* Host memory from which uploads are fastest, valid after close too. host_alloc returns NULL if out of
     * memory. Both NULL: any memory will do. */
    void *(*host_alloc)(void *context, size_t bytes);
    void (*host_free)(void *ptr);
    /* Each of the following returns a status. On failure, `error` returns a sentence about it. */
    /* host may also be user-owned memory on the device, for which on_device is true. Both copies are then
     * made in the order of the calls. */
    gpunn_status (*upload)(void *context, void *device_ptr, const void *host, size_t bytes);
    gpunn_status (*download)(void *context, void *host, const void *device_ptr, size_t bytes);
    gpunn_status (*fill)(void *context, void *device_ptr, int byte, size_t bytes);
    /* Device to device: `count` pixels of images one after another. NULL: the loader's threads convert. */
    gpunn_status (*normalize)(void *context, float *to, const uint8_t *from, int64_t count,
                              const gpunn_pixels *pixels);
    gpunn_status (*synchronize)(void *context);
    /* Called once per step of a new plan. It checks support and sets saved_bytes (forward), workspace_bytes
     * and cache_bytes. Data pointers are NULL if absent and not yet valid if present, so test them against
     * NULL only. */
    gpunn_status (*prepare)(void *context, gpunn_step *step);
    /* Runs steps in order. *failed becomes the one that failed, or NULL: none in particular. */
    gpunn_status (*run)(void *context, gpunn_step *steps, int count, const gpunn_step **failed);
    gpunn_status (*update)(void *context, const gpunn_update *update);
    /* Sum of squares of count floats, accumulated in double. */
    gpunn_status (*sum_of_squares)(void *context, const float *values, int64_t count, double *result);
    /* Sums over GPUNN_SUM_PARTS parts of the values, or over fewer with the rest 0. dtype: as in convert. */
    gpunn_status (*value_sums)(void *context, const void *values, gpunn_dtype dtype, int64_t count,
                               gpunn_value_sums parts[GPUNN_SUM_PARTS]);
    /* values[i] = clamp(values[i] * scale, +-limit); limit 0: no clamp. */
    gpunn_status (*scale)(void *context, float *values, int64_t count, float scale, float limit);
    /* Device to device, in the order of the calls, as gpunn_cast converts. dtypes: all but F16 and BF16; for
     * backends with info.half also F32, F16 and BF16 to one another. Blocks of info.blocks become F32. */
    gpunn_status (*convert)(void *context, void *to, gpunn_dtype to_dtype, const void *from,
                            gpunn_dtype from_dtype, int64_t count);
    /* Whether channels_last values are faster in a run with these convolutions. NULL: never. If so,
     * convolutions, batch_norm, pools and elementwise ops receive them: all rank-4 values of a step. Weights
     * of convolutions and their gradients may have either layout; such a gradient may then have the dtype of
     * grad_out. */
    bool (*channels_last)(void *context, gpunn_images *images);
    /* Executes a whole run; may return before the work is done. execute and forget NULL: the core calls run
     * and update itself. */
    gpunn_status (*execute)(void *context, gpunn_run *run);
    void (*forget)(void *context, void *captured);
    /* For gpunn_profile. Like execute, or like run of all steps if execute is NULL; writes the seconds of
     * each step, then of each update. Waits for the work. NULL: unsupported. */
    gpunn_status (*time)(void *context, gpunn_run *run, double *seconds);
    /* Bytes taken from the system, now and at most. trim returns unused memory. */
    void (*reserved)(void *context, size_t *now, size_t *peak);
    void (*trim)(void *context);
    /* Reports what this machine has and lacks, line by line; needs no context. NULL: nothing to report. */
    void (*report)(void (*write)(void *user, const char *text), void *user);
    /* Whether steps can access user-owned memory. NULL: any. */
    gpunn_status (*reaches)(void *context, const void *memory, size_t bytes);
    bool (*on_device)(void *context, const void *memory); /* NULL: no memory is */
    /* Whether the program is capturing its stream; execute then adds its launches to the capture. NULL:
     * never. */
    bool (*capturing)(void *context);
    /* Communication between devices of several ranks. All four or, if NULL, through host memory. ranks_id:
     * rank 0 makes an id for all that join; id NULL: only test for support. ranks_join waits for all ranks,
     * at most timeout seconds; from then on so does every wait for the device. A device joins one group at a
     * time. */
    gpunn_status (*ranks_id)(void *context, char id[GPUNN_RANKS_ID]);
    gpunn_status (*ranks_join)(void *context, const char id[GPUNN_RANKS_ID], int rank, int size,
                               double timeout);
    /* after `forget` of all runs that exchange; waits: wait for the other ranks */
    void (*ranks_leave)(void *context, bool waits);
    gpunn_status (*exchange)(void *context, const gpunn_exchange *exchanges, int count);
    /* Sentence about the last failure: what is wrong and how to fix it. The core prepends op, layer and
     * shapes. */
    const char *(*error)(void *context);
    /* Whether `count` floats are finite, for backends without execute. NULL: each update uses
     * sum_of_squares. */
    bool (*finite)(void *context, const float *values, int64_t count);
    /* Writes initial values to device memory. NULL: the core draws them on the host and uploads them. */
    gpunn_status (*draw)(void *context, const gpunn_drawing *drawing, float *to);
    /* Whether steps[0] shall be computed strip by strip within steps[1], the only reader of its result, in a
     * plan for evaluation. NULL: never. */
    bool (*strips)(void *context, const gpunn_step *steps);
};

#endif /* GPUNN__API_BACKEND_H */
