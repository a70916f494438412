#ifndef GPUNN__API_BACKEND_H
#define GPUNN__API_BACKEND_H
#include "api/data.h"

/* ==== >>backend ======================================================================================================= *
 * What a backend provides, for its authors; programs need nothing from here. The core plans, the backend computes. All tensors
 * are contiguous and row-major in the backend's memory. A device calls its backend from one thread at a time. */
#define GPUNN_BACKEND_ABI 18
#define GPUNN_MAX_OPERANDS 64 /* concat takes that many; no other op more than 12 */

/* The constants of one node; each op reads only the fields named beside it. */
typedef struct gpunn_attributes {
    float                  value[2];         /* elementwise */
    float                  dropout_p, scale; /* dropout, attention; scale: attention, roi_align */
    float                  fill;             /* pad */
    float                  label_smoothing;  /* cross_entropy */
    int                    kernel[3];        /* conv, pools: one per spatial axis, the first in [0] */
    int                    stride[3], padding[3], dilation[3];
    int                    output_padding[3];            /* conv_transpose */
    int                    size[3];                      /* adaptive pools, interpolate, roi_align: of the result */
    gpunn_shape            shape;                        /* reshape, expand: of the result; affine_grid: its spatial sizes;
                                                            interpolate: those that vary */
    gpunn_dtype            dtype;                        /* cast */
    int                    groups;                       /* conv, group_norm; instance_norm: the channels */
    bool                   ceil_mode, count_exclude_pad; /* pools */
    float                  eps, momentum;                /* batch_norm, instance_norm; other norms: eps */
    bool                   sync;                         /* batch_norm: with a step's ranks */
    int                    axis; /* of ops along one; >= 0. layer_norm, rms_norm: the first of those normalised */
    int                    order[GPUNN_MAX_RANK];  /* permute */
    uint32_t               axes;                   /* sum, max, gradient_energy: bit i set: axis i is reduced */
    bool                   keepdim;                /* sum, max, argmax */
    int                    k;                      /* topk_indices; roi_align: sampling_ratio */
    bool                   largest;                /* topk_indices */
    bool                   mean;                   /* sum: divide by the number of elements summed */
    int64_t                start, end, step;       /* slice */
    int64_t                before[GPUNN_MAX_RANK]; /* pad */
    int64_t                after[GPUNN_MAX_RANK];  /* pad */
    int                    hidden_size;            /* rnn, lstm, gru */
    bool                   relu, bidirectional;    /* rnn, lstm, gru; relu: rnn */
    bool                   states;                 /* rnn, lstm, gru: behind the last step stand h_n and, lstm, c_n, each with the
                                                     memory of [directions, n, hidden] */
    bool                   transpose_a, transpose_b; /* matmul */
    bool                   enable_gqa;               /* attention: k and v may have fewer heads */
    bool                   is_causal, heads_last;    /* attention; q, k and v in one are heads_last without saying so */
    gpunn_reduction        reduction;                /* cross_entropy, nll, ctc_loss: MEAN, SUM or NONE */
    int                    blank;                    /* ctc_loss */
    const gpunn_custom_op *custom;                   /* custom, and its numbers */
    float                  numbers[GPUNN_CUSTOM_NUMBERS];
    bool                   zero_infinity, batch_first; /* ctc_loss */
    bool                   in_training;                /* assign, which reads axis too */
    int64_t                ignore_index;               /* cross_entropy, nll; embedding: padding_idx, -1 without */
    uint32_t site;          /* dropout, attention with dropout, random numbers: number of this node among the model's such ones */
    int      mode;          /* grid_sample: gpunn_grid_mode; interpolate: gpunn_interpolate_mode; pad: gpunn_pad_mode;
                                                     integer: gpunn_integer_op */
    int      padding_mode;  /* grid_sample: gpunn_grid_padding */
    bool     align_corners; /* grid_sample, affine_grid, interpolate; roi_align: aligned */
    float    ratio[3];      /* interpolate: cells of x for one of the result, one per spatial axis */
    int      n_levels, log2_hashmap_size, base_resolution; /* hash_grid_encoding */
    float    per_level_scale;
    int64_t  number; /* integer: its last operand, where that is no tensor */
} gpunn_attributes;

struct gpunn_value {
    void       *data; /* NULL: not wanted or not there */
    gpunn_dtype dtype;
    int         rank;
    int64_t     dim[GPUNN_MAX_RANK]; /* real sizes; an empty batch does not occur */
    int64_t     count;               /* product of dim; 1 for a scalar */
    bool        channels_last;       /* of rank 4: dim says n, c, h, w, but memory is n, h, w, c */
};

/* A count that goes on when the program replays a run that it has captured. */
typedef struct gpunn_count {
    uint64_t told; /* what the host counted at the last run outside a capture */
    uint64_t now;  /* the same with the replays, of which the host does not know */
} gpunn_count;
enum { GPUNN_COUNT_SEED, GPUNN_COUNT_STEP, GPUNN_COUNT_DRAW, GPUNN_RUN_COUNTS };

typedef struct gpunn_run_state {
    uint64_t     seed;            /* of the device */
    uint64_t     step;            /* number of this training step: keys dropout */
    uint64_t     draw;            /* keys random numbers: step << 24, in evaluation one more than in the run before */
    uint64_t     weights_version; /* changes whenever a parameter or buffer may have changed: invalidates step->cache */
    gpunn_count *counts; /* of the first three, GPUNN_RUN_COUNTS in backend memory; NULL: the program cannot capture runs */
} gpunn_run_state;

/* Of a model that several ranks train together. */
typedef struct gpunn_ranks {
    int  rank, size;
    bool joined; /* the device exchanges with theirs by itself (ranks_join); else: */
    /* Gives each rank the parts of all: parts[size][bytes] in the host's memory, of which [rank] is its own. */
    gpunn_status (*gather)(void *user, void *parts, size_t bytes);
    void *user;
} gpunn_ranks;

typedef struct gpunn_kernel        gpunn_kernel; /* >>kernels */
typedef struct gpunn_kernel_launch gpunn_kernel_launch;
#define GPUNN_KERNEL_SITES 8     /* random nodes of one fused kernel */
#define GPUNN_KERNEL_OPERANDS 64 /* and its operands, at most */

/* Operands are those of the op's row (>>ops), with data NULL for a weight, bias, mask, position, lengths and initial state that
 * there is not. BATCH_NORM, INSTANCE_NORM: a training forward updates running_mean and running_var in place, unless data is NULL.
 * ATTENTION: all of q, k and v may be in the first, of rank 5; lengths stand there where there are any. RNN, LSTM, GRU: x is
 * [length, n, features], and the last four come for each direction. ASSIGN: out is the state's own memory. CONCAT, CUSTOM: as
 * many as there are. GROUP: those of its program, gradients that it writes in grad_in, with accumulate, all others in in.
 * RELAYOUT (of a backend with channels_last): what it copies in in, and where to, with channels and dtype as wanted there, in
 * grad_in, with accumulate. */
typedef struct gpunn_step {
    gpunn_op                       op;
    const struct gpunn__operation *operation; /* how the CPU backend computes it */
    bool backward;  /* false: out from in. true: grad_in from grad_out and what the op table says it reads */
    bool inference; /* of the model: no cache that is a copy of the weights */
    bool training;  /* of the plan: dropout drops, batch_norm takes the batch's statistics and updates the running ones, as
                           instance_norm does with each sample's */
    bool evaluates; /* in training: attention drops nothing, batch_norm and instance_norm take the running statistics and
                           leave them alone */
    gpunn_precision         precision; /* of the model on this device */
    const char             *name;      /* the layer's, "" when it has none */
    const gpunn_attributes *attr;
    int                     input_count;
    gpunn_value            *in;         /* [input_count]; backward: data NULL where the table says it is not read */
    gpunn_value             out;        /* backward: data NULL where not read */
    gpunn_value            *grad_in;    /* backward, [input_count]: data NULL where not wanted */
    bool                   *accumulate; /* backward, [input_count]: grad_in += instead of = */
    gpunn_value             grad_out;
    gpunn_value             half; /* LAYER_NORM, RMS_NORM: receives in 16 bits too what out, backward grad_in[0] with all that it
                                     is added to, receives in F32; data NULL: not wanted */
    /* What the plan has merged into the step, applied in this order to the result with its bias. Forward of LINEAR and
     * convolutions, and, of a backend with info.merged_norm, BATCH_NORM in training: residual and relu. Its backward step has
     * relu too, then grad_out and out (read where there is a residual) are those after the relu, and grad_in[5] is the
     * residual's. */
    struct {
        gpunn_value scale, shift, mean, variance; /* batch_norm by running statistics: weight, bias, running_mean, running_var */
        bool        norm;
        float       eps;
        gpunn_value residual; /* added; shape of out, never out's own memory */
        bool        relu;
        bool        gelu_tanh; /* LINEAR */
        gpunn_value before;    /* receives what gelu_tanh is applied to; data NULL: not wanted */
        gpunn_value more;      /* BATCH_NORM's backward step with a residual: to be added to grad_out; data NULL: nothing */
    } fused;
    /* Backward of LINEAR only: its x is the result of an activation that nobody else reads, and grad_in[0] is the gradient of
     * what the activation was applied to. */
    struct {
        gpunn_op    op;     /* RELU: x itself tells where it let pass; GELU_TANH; NONE: x as it is */
        gpunn_value before; /* GELU_TANH: what it was applied to */
    } activated;
    struct { /* GROUP only */
        const gpunn_kernel        *kernel;
        const gpunn_kernel_launch *launch; /* on a GPU; NULL: its file is not linked */
        int                        direction;
        int64_t                    batch;
        uint32_t                   sites[GPUNN_KERNEL_SITES];
        void                      *half[GPUNN_KERNEL_OPERANDS]; /* as gpunn_kernel_call has it */
    } group;
    /* In forward: out.data may equal in[0].data (or in[1].data) for elementwise ops. In backward: grad_in[i].data may equal
     * grad_out.data for elementwise ops when accumulate[i] is false and i is the only wanted gradient. */
    void  *saved; /* written by the forward step, read by its backward step; prepare sets saved_bytes in the forward one, and
                           the core gives both steps the same pointer and size */
    size_t saved_bytes;
    void  *workspace; /* scratch of this step; prepare sets workspace_bytes */
    size_t workspace_bytes;
    void *cache; /* evaluation plans: kept between runs, for example packed weights; prepare sets cache_bytes; NULL in training */
    size_t   cache_bytes;
    uint64_t cache_version; /* the backend's note of state->weights_version at which cache was filled; starts at 0 */
    const gpunn_run_state *state;
    const gpunn_ranks     *ranks; /* BATCH_NORM with sync, in training: whose batches are one, several; else NULL */
} gpunn_step;

/* What is the same for all elements of an optimizer's update (gpunn_update). */
typedef struct gpunn_update_numbers {
    bool  go;                   /* false: change nothing */
    float scale;                /* g = clamp(gradient * scale, +-gradient_limit) */
    float lr;                   /* setting[0] of this step */
    float once[GPUNN_SETTINGS]; /* of the kind's row */
} gpunn_update_numbers;
typedef struct gpunn_update        gpunn_update;
typedef struct gpunn_kernel_update gpunn_kernel_update; /* >>kernels */
/* numbers: device memory. 0, or a cudaError_t, negated. */
typedef int (*gpunn_kernel_update_launch)(const gpunn_update *update, const gpunn_update_numbers *numbers, void *stream);

/* All that is done to parameters: X for the optimizers and for averages, of which g is the parameter; TRUST as X. */
/* clang-format off */
#define GPUNN_UPDATES(X, TRUST, NUMBER, FLAG, STATE, ONCE)                                                                     \
    GPUNN_OPTIMIZERS(X, NUMBER, FLAG, STATE, ONCE)                                                                             \
    GPUNN_TRUST_OPTIMIZERS(TRUST, NUMBER, FLAG, STATE, ONCE)                                                                   \
    X(AVERAGE, average, NUMBER(SHARE, lr, 0), , ONCE(first, where(step == 1, 1, 0)), p = where(first, g, p + lr * (g - p));)
typedef enum gpunn_update_kind {
#define GPUNN__X(ENUM, ...) GPUNN_UPDATE_##ENUM,
    GPUNN_UPDATES(GPUNN__X, GPUNN__X, , , , )
#undef GPUNN__X
    GPUNN_UPDATE_COUNT
} gpunn_update_kind;
/* clang-format on */
/* One update over a contiguous range; with a trust ratio, of one parameter. */
struct gpunn_update {
    gpunn_update_kind          kind;
    float                      setting[GPUNN_SETTINGS]; /* of the kind's row, flags as 0 or 1 */
    int64_t                    count;
    float                     *parameter, *state[3]; /* parameter NULL: another rank's, whose gradients count in norms alone */
    const float               *gradient;
    void                      *half;           /* receives the new parameters in half_dtype too; NULL: not wanted */
    gpunn_dtype                half_dtype;     /* F16 or BF16 */
    int64_t                    step;           /* 1 for the first update of this range */
    float                      gradient_scale; /* gradients are read as gradient * gradient_scale ... */
    float                      gradient_limit; /* ... clamped to +-limit when limit > 0 */
    float                      clip_norm;  /* in a gpunn_run: of the gradients, so scaled, of all updates of that group; 0: off */
    int                        clip_group; /* 0, 1, ... */
    const gpunn_kernel_update *fused;      /* a generated kernel that does just this; NULL: none */
    gpunn_kernel_update_launch fused_launch; /* the same on a GPU, behind a kernel that decides its numbers */
    int first, last; /* its step is in the run's counts from first to before last; both 0: it grows with count 0 */
};

/* What ranks on devices make common to all. */
typedef struct gpunn_exchange {
    float  *values;
    int64_t count;
    int     root;       /* they become what that rank has, or GPUNN_MEAN of all ranks */
    int     after;      /* so many steps of the run they are complete, or one of those below; never before the exchange before */
    bool    collects;   /* instead, those of rank `root` become the mean of all ranks' */
    void   *bf16;       /* a mean travels as BF16 values, in this device memory; NULL: as F32. All exchanges share it */
    int64_t bf16_count; /* that it holds, a multiple of 16 */
} gpunn_exchange;
enum { GPUNN_MEAN = -1, GPUNN_AFTER_UPDATES = INT32_MAX };
/* Of the loss, where ranks see the means of their own shares' gradients alone: a rank that finds one that is not finite gives
 * NaN. */
enum { GPUNN_AFTER_CHECK = INT32_MAX - 1 };
enum { GPUNN_RANKS_ID = 128 }; /* bytes by which ranks find each other */

/* Images of bytes in each of whose 1 to 4 channels so many pixels lie one after another, and what becomes of these:
 * (x / 255 - mean) / std, rounded step by step. */
typedef struct gpunn_pixels {
    int64_t plane;
    int     channels;
    float   mean[4], std[4]; /* of each channel; std not 0 */
} gpunn_pixels;

/* Floats that steps of a training run change in place: running statistics and states; and room for what they were before. */
typedef struct gpunn_kept {
    float  *values, *copy;
    int64_t count;
} gpunn_kept;

/* One whole run of a plan, for backends that execute it as one piece: steps in order and exchanges, each as soon as its values
 * are there, then the updates, then exchanges that follow these. */
typedef struct gpunn_run {
    gpunn_step *steps;
    int         step_count;
    uint64_t    signature; /* another one: a pointer or flag in steps has changed since the last run with this `captured` */
    const gpunn_run_state *state;
    const float           *loss;          /* training: device memory, one float; NULL in evaluation */
    float                 *loss_gradient; /* F16 training: receives loss_scale[0], or 1, before the steps; else NULL */
    const gpunn_update    *updates;       /* none of them may happen when the loss or one of their gradients is not finite */
    int                    update_count;
    const gpunn_exchange  *exchanges; /* with the ranks that the device has joined, who are about to do the same: this runs in any
                                      * case; part of signature */
    int                    exchange_count;
    float *loss_scale; /* F16 training, or skips: device memory; [0] scale, [1] steps since it changed, [2] updates skipped */
    void  *captured;   /* the backend's own, NULL at first; given to `forget` when the plan goes */
    /* Set as soon as the backend knows, which may be in a later run, even one without any work (of a device that has joined
     * ranks: only that): the training step whose loss, or whose gradient, was not finite; 0: none. */
    uint64_t bad_step;
    float    bad_value;
    bool     bad_norm; /* it is a gradient */
    /* After a failure: the step that it is about; NULL: none in particular. */
    const gpunn_step *failed;
    const float      *bad_gradient; /* with bad_norm: where bad_value lies; NULL: in another rank's share */
    /* The run copies so many ranges before its steps, and back where its loss or a gradient is not finite. The list is in device
     * memory. */
    const gpunn_kept *kept;
    int               kept_count;
    bool              skips;  /* a loss or gradient that is not finite is counted in loss_scale[2] and not told */
    bool              scales; /* F16: loss_scale[0] follows the gradients */
    /* Backend memory: [0] counts updates of this optimizer, of which this is number `update`, the others those of a parameter
     * each. NULL: the program cannot capture runs. */
    gpunn_count *counts;
    int64_t      update;
    bool         trains;        /* as a training step, by which state->step has grown */
    bool         captured_only; /* set where the program captures the run: it has not run, and its replays count themselves */
} gpunn_run;

/* Of numbers: how many there are of each kind, and of the finite ones more; without any, min and max mean nothing. */
typedef struct gpunn_value_sums {
    double finite, zeros, nans, infinities, sum, squares, min, max;
} gpunn_value_sums;
#define GPUNN_SUM_PARTS 128

typedef struct gpunn_backend_info {
    gpunn_device_type type;
    char              name[160];
    int               threads;
    bool              half;        /* computes on F16 values */
    bool              bf16;        /* and on BF16 ones */
    bool              merged_norm; /* BATCH_NORM in training takes a residual and a relu with it */
    int               alignment;   /* bytes, of the program's memory; 0: that of its elements */
    uint64_t          identity;    /* of a GPU, other than that of any other on any machine; 0: none */
} gpunn_backend_info;

struct gpunn_backend {
    int abi; /* GPUNN_BACKEND_ABI */
    int (*device_count)(void);
    /* context: the backend's own data. On failure: NULL, and a sentence in message. */
    void *(*open)(const gpunn_device_args *args, char *message, size_t message_size);
    void (*close)(void *context);
    void (*info)(void *context, gpunn_backend_info *info);
    /* No more threads than that from now on; steps that are prepared for more are to be prepared anew. NULL: it has none. */
    void (*limit)(void *context, int threads);
    /* 64-byte aligned; NULL when there is no more. */
    void *(*alloc)(void *context, size_t bytes);
    void (*free)(void *context, void *ptr, size_t bytes);
    /* Memory of the host's from which uploads travel fastest, after close too; NULL, both: any does. host_alloc: NULL when there
     * is no more. */
    void *(*host_alloc)(void *context, size_t bytes);
    void (*host_free)(void *ptr);
    /* Each of these returns a status and, on failure, leaves a sentence in the text of `error`. */
    /* host: or the program's memory on the device, for which on_device is true; then both are copies in the order of the
     * calls. */
    gpunn_status (*upload)(void *context, void *device_ptr, const void *host, size_t bytes);
    gpunn_status (*download)(void *context, void *host, const void *device_ptr, size_t bytes);
    gpunn_status (*fill)(void *context, void *device_ptr, int byte, size_t bytes);
    /* Device to device, count pixels of images one after another. */
    gpunn_status (*normalize)(void *context, float *to, const uint8_t *from, int64_t count, const gpunn_pixels *pixels);
    gpunn_status (*synchronize)(void *context);
    /* Called once per step of a new plan, all data pointers NULL where absent and not yet valid where present (test them against
     * NULL only): checks support, sets saved_bytes (forward), workspace_bytes, cache_bytes. */
    gpunn_status (*prepare)(void *context, gpunn_step *step);
    gpunn_status (*run)(void *context, gpunn_step *step);
    gpunn_status (*update)(void *context, const gpunn_update *update);
    /* Sum of squares of count floats, accumulated in double. */
    gpunn_status (*sum_of_squares)(void *context, const float *values, int64_t count, double *result);
    /* Sums over that many parts of the values, or fewer and zeros. dtype: as of convert. */
    gpunn_status (*value_sums)(void *context, const void *values, gpunn_dtype dtype, int64_t count,
                               gpunn_value_sums parts[GPUNN_SUM_PARTS]);
    /* values[i] = clamp(values[i] * scale, +-limit); limit 0: no clamp. */
    gpunn_status (*scale)(void *context, float *values, int64_t count, float scale, float limit);
    /* Device to device, in the order of the calls; dtypes F32 or, of a backend with info.half, F16 and BF16. */
    gpunn_status (*convert)(void *context, void *to, gpunn_dtype to_dtype, const void *from, gpunn_dtype from_dtype,
                            int64_t count);
    /* Whether a run with convolutions, of a precision other than F32, is faster with channels_last values when the largest of
     * them gives so many elements; NULL: never. Then convolutions, batch_norm, pools and elementwise ops meet them: all of one
     * step's values of rank 4 or, of convolutions, all but weights and their gradients, which may have them so or not; that
     * gradient may have the dtype of grad_out then. */
    bool (*channels_last)(void *context, int64_t elements);
    /* NULL, all three: the core calls run and update itself. execute may return before the work is done. */
    gpunn_status (*execute)(void *context, gpunn_run *run);
    void (*forget)(void *context, void *captured);
    /* For gpunn_profile: as execute, or run of all steps where that is NULL, and tells the seconds of each; those of the updates
     * behind the steps'. Waits for the work. NULL: it cannot. */
    gpunn_status (*time)(void *context, gpunn_run *run, double *seconds);
    /* Bytes taken from the system, now and at most; trim gives back what is not in use. */
    void (*reserved)(void *context, size_t *now, size_t *peak);
    void (*trim)(void *context);
    /* What there is on this machine and what is missing, line by line; needs no context. NULL: nothing to tell. */
    void (*report)(void (*write)(void *user, const char *text), void *user);
    /* Whether steps can read and write the program's memory. NULL: any. */
    gpunn_status (*reaches)(void *context, const void *memory, size_t bytes);
    bool (*on_device)(void *context, const void *memory); /* NULL: none is */
    /* Whether the program is capturing its stream: execute then adds to that what it would launch. NULL: never. */
    bool (*capturing)(void *context);
    /* Exchanges between devices of several ranks, all four or, NULL, through the host's memory. id: made by rank 0 for all that
     * join; NULL: only whether that could be. join waits for all ranks, at most timeout seconds; so does from then on whatever
     * waits for the device. A device joins once at a time. */
    gpunn_status (*ranks_id)(void *context, char id[GPUNN_RANKS_ID]);
    gpunn_status (*ranks_join)(void *context, const char id[GPUNN_RANKS_ID], int rank, int size, double timeout);
    void (*ranks_leave)(void *context, bool waits); /* after `forget` of all runs that exchange; waits: for the other ranks */
    gpunn_status (*exchange)(void *context, const gpunn_exchange *exchanges, int count);
    /* The sentence of the last failure: what is wrong and the remedy; the core puts op, layer and shapes before it. */
    const char *(*error)(void *context);
    /* Whether count floats are finite, of a backend without execute; NULL: each update asks sum_of_squares. */
    bool (*finite)(void *context, const float *values, int64_t count);
};

#endif /* GPUNN__API_BACKEND_H */
