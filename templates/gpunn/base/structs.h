#ifndef GPUNN__BASE_STRUCTS_H
#define GPUNN__BASE_STRUCTS_H
#include "common/updates.h"

/* ==== >>base/structs ==================================================================================== */
/* The structs behind the public types: device, group, tensor, model and optimizer. */
#define GPUNN__ALIGN 64 /* bytes; alignment of every block handed to a backend */
#define GPUNN__ERROR_SIZE 768

typedef struct gpunn__error {
    gpunn_status status;
    char         text[GPUNN__ERROR_SIZE];
} gpunn__error;

struct gpunn_device {
    gpunn_device_args    args;
    const gpunn_backend *backend;
    void                *context;
    gpunn_backend_info   info;
    gpunn__error         error;
    size_t               allocated, peak; /* bytes of backend memory */
    gpunn_model         *models;          /* linked list */
    bool                 closed;          /* closed by the program: freed with the last model */
    /* path:line:column of the text being read, put before messages; NULL: none */
    const char *place;
    /* [steps + 1]: receives the seconds of the next runs; NULL: no timing */
    double                 *timing;
    const gpunn_custom_op **customs; /* registered */
    int                     custom_count;
    int                     groups; /* open groups */
};

/* A rank's contribution to the all-reduce of statuses that precedes every call common to all ranks. */
typedef struct gpunn__rank_status {
    int32_t  status;
    float    loss;
    uint32_t what; /* hash of the call it is about to make */
} gpunn__rank_status;
struct gpunn_group {
    gpunn_device    *dev;
    gpunn_group_args args;     /* the engine; its functions are NULL in a group of one */
    int              users;    /* number of optimizers and loaders */
    bool             closed;   /* closed by the program: freed with the last user */
    gpunn_status     broken;   /* status of a failed engine; GPUNN_OK: it works */
    int              process;  /* process id that opened it: a forked child is no rank */
    bool             reported; /* all ranks know of the last failure */
    /* some rank's device is no CPU: data is copied through host memory, which may fail */
    bool                copies;
    bool                unlike;     /* the ranks' devices round differently: weights may drift apart */
    int64_t             reductions; /* number of all-reduces of statuses so far */
    gpunn__rank_status *statuses;   /* [size] */
    /* GPUNN__GROUP_PIECE bytes of host memory for data of a device; NULL: not needed so far */
    char    *piece;
    int64_t *counts; /* [size]: parts of a reduce_scatter */
    /* with .bf16_gradients: GPUNN__GROUP_PIECE bytes to exchange; NULL: without */
    uint16_t       *bf16;
    void           *joined_bf16; /* the same in memory of a joined device: gpunn__joined_count() values */
    bool            joined;      /* the device communicates with those of the other ranks itself */
    gpunn_exchange *exchanges;   /* of the next run, if it has joined */
    int             exchange_count, exchange_capacity;
};

typedef enum gpunn__kind {
    GPUNN__INPUT = 1,
    GPUNN__PARAMETER,
    GPUNN__BUFFER,
    GPUNN__CONSTANT,
    GPUNN__VALUE
} gpunn__kind;

/* Gradient of a table as rows: float values[capacity][columns] and, at the next multiple of GPUNN__ALIGN
 * bytes, int64_t rows[capacity], as gpunn_step describes them. */
typedef struct gpunn__compact {
    float  *values;         /* backend memory; NULL: no training step has been planned */
    int64_t capacity, used; /* entries; used: the most that can have a row */
    /* backend memory: the entries of all ranks, laid out like these, and the workspace of their sum; NULL:
     * no ranks so far */
    float *gathered;
    size_t gathered_bytes;
} gpunn__compact;

typedef struct gpunn__user_memory { /* user-owned memory */
    void  *data;                    /* NULL: none */
    size_t bytes;
} gpunn__user_memory;

struct gpunn_tensor {
    /* What planning reads of every tensor stands first, in few cache lines. */
    gpunn_model   *model;
    int            id; /* index in model->tensors; operands have smaller ones */
    gpunn__kind    kind;
    gpunn_dtype    dtype;
    int            rank;
    gpunn_op       op; /* of a value */
    int            input_count;
    gpunn_tensor **inputs; /* an absent optional operand is NULL */
    int            part;   /* checkpoint segment that recomputes it; 0: none */
    bool           keep, retain_grad;
    bool           doubles; /* F32 inputs and values: the program holds them as F64 */
    /* made by one derivative and reused by others; not set if it depends on the incoming gradient */
    bool shared;
    /* parameters: the dtype of 16 bits or blocks in which alone it is stored, see
     * gpunn__find_storage; GPUNN_DTYPE_DEFAULT: none */
    gpunn_dtype storage;
    gpunn_dtype requested_storage; /* of gpunn_set_storage; GPUNN_DTYPE_DEFAULT: the model's */
    int         adapter;           /* 1 + the index of the adapter that gpunn_lora made it for; 0: none */
    /* used instead of its own memory: [0] for the value, [1] for the gradient */
    gpunn__user_memory user_memory[2];
    /* -k: k times the batch; below GPUNN__NO_SIZE: a handle, see >>base/sizes */
    int64_t                        dim[GPUNN_MAX_RANK];
    const struct gpunn__operation *operation; /* computes the op on the CPU */
    char                          *name;      /* NULL: none */
    char                          *layer;     /* layer name for messages; NULL: none */
    /* Parameters, buffers and constants only: */
    bool  trainable, decay;
    bool  frozen;       /* running_mean only: gpunn_freeze_statistics */
    bool  base;         /* frozen by gpunn_lora or as blocks: neither gradient nor optimizer state */
    bool  state, saved; /* buffers only: gpunn_state; gpunn_set_saved */
    bool  bound; /* bound before it was laid out, so it stays F32, or blocks: gpunn__has_bound_blocks */
    bool  grad_reached; /* parameters: a backward pass has written the gradient since gpunn_zero_grad */
    float lr_scale;
    /* in the model's weights, in floats; -1: not laid out */
    int64_t    offset;
    int64_t    gradient_offset; /* of a parameter in the model's gradients */
    int64_t    padding;         /* 1 + the row that starts as 0, regardless of init; 0: none */
    gpunn_init init;
    float     *constant; /* host copy of a constant's values */
    /* Inputs only: */
    void   *data; /* backend memory, or user-owned memory */
    size_t  capacity;
    int64_t batch;                /* of the last write; 0: never written; 1 if the shape has no batch */
    int64_t held[GPUNN_MAX_RANK]; /* shape of the last write */
    /* for messages: the builder whose last op this is; NULL: the op itself */
    const char *built_by;
    /* next in its chain of the model's index, by gpunn__key; only a layer's first tensor is in the index */
    gpunn_tensor    *next[2];
    gpunn_dlpack    *managed; /* owner of user_memory[0]; NULL: none */
    gpunn_attributes attr;
    bool             sparse; /* table whose gradient is in `compact` */
    gpunn__compact   compact;
};

typedef struct gpunn__plan        gpunn__plan;        /* >>plan/plan */
typedef struct gpunn__calibration gpunn__calibration; /* >>train/calibrate */

/* What a spec contains beside tensors (>>io/spec_reader). */
typedef struct gpunn__recipe {
    bool              is_set;
    gpunn_update_kind kind;
    float             setting[GPUNN_SETTINGS], clip_norm, clip_value, average_decay;
} gpunn__recipe;
typedef struct gpunn__kept { /* of a file, by gpunn_load */
    char  *at;               /* NULL: none */
    size_t bytes, used;      /* used: by tensors so far */
    bool   mapped;           /* a whole file; false: memory for the blocks alone */
} gpunn__kept;
typedef struct gpunn__metadata { /* by the program: gpunn_set_metadata */
    char *key, *value;
} gpunn__metadata;
typedef struct gpunn__spec {
    char            *name; /* NULL: none */
    gpunn_tensor    *loss, **outputs;
    int              output_count, output_capacity;
    gpunn__recipe    recipe;
    gpunn__metadata *metadata;
    int              metadata_count, metadata_capacity;
} gpunn__spec;

/* An adapter on a layer: sum = product + scaled, where `product` is the layer itself and scaled =
 * alpha / rank B A dropout(x). While the adapter is not enabled, sum is another name of product. */
typedef struct gpunn__branch {
    gpunn_tensor *sum, *product, *scaled;
} gpunn__branch;
typedef struct gpunn__adapter { /* by gpunn_lora */
    char          *name;
    int            rank;
    float          alpha, dropout;
    gpunn__branch *branches; /* in the order of the graph */
    int            branch_count, capacity;
} gpunn__adapter;

enum { GPUNN__MOST_TENSORS = 1 << 20 }; /* per model */

enum { GPUNN__MAX_PLANS = 32 }; /* default limit of cached plans per model */

/* Dimensions that vary between runs (>>base/sizes). */
enum { GPUNN__TERMS = 8, GPUNN__FACTORS = 4 };
typedef struct gpunn__size_term { /* factor * atom * atom ... */
    int64_t factor;
    int     atom[GPUNN__FACTORS]; /* places in the model's table, falling; 0: end */
} gpunn__size_term;
typedef struct gpunn__sum {
    int              count; /* -1: too long, or numbers too large */
    gpunn__size_term term[GPUNN__TERMS];
} gpunn__sum; /* sorted by falling atoms; no factor is 0 */
typedef struct gpunn__size {
    char       *name;               /* atom named by the program; NULL: none */
    char       *text;               /* others: the formula, the same in all models that have it */
    int64_t     min, max, multiple; /* of a named atom; max 0: no limit */
    gpunn__sum  sum;
    int64_t     divisor;  /* the atom is floor(sum / divisor); 0: a named atom, or no atom but the sum */
    int64_t     value;    /* named atom: its value divided by multiple, in the run whose values can be read */
    int64_t     found;    /* the same, according to the inputs as they are now; 0: unknown */
    const char *found_by; /* name of the input that determined `found` */
} gpunn__size;

/* Keys by which a model's tensors are found: hash tables whose chains link the tensors. */
typedef enum gpunn__key { GPUNN__BY_NAME, GPUNN__BY_LAYER } gpunn__key;
typedef struct gpunn__index {
    gpunn_tensor **chains;
    size_t         count, capacity; /* a power of 2, or 0 */
} gpunn__index;

struct gpunn_model {
    gpunn_device    *dev;
    gpunn_model     *next; /* in the device's list */
    gpunn_precision  precision;
    bool             inference;
    gpunn_dtype      storage;    /* .weights of gpunn_model_create */
    gpunn__kept     *kept;       /* blocks of files to which parameters are bound */
    int              kept_count; /* number of files */
    bool             has_sparse; /* some tensor is sparse */
    gpunn_optimizer *optimizers; /* linked list */
    int              children;   /* number of loaders and sessions */
    /* closed by the program: freed with the last optimizer, loader and session */
    bool closed;
    /* own: the model's own states, once a session has been used; session: the one in use */
    gpunn_session *own, *session;
    /* optimizer whose averages are exchanged with the parameters; NULL: none */
    gpunn_optimizer *swapped;
    gpunn_tensor   **tensors;
    int              tensor_count, tensor_capacity;
    int              tensor_limit; /* most tensors allowed */
    gpunn__index     index[2];     /* by gpunn__key */
    gpunn__size     *sizes;        /* place 0 is unused, place 1 is the batch */
    int              size_count, size_capacity;
    uint32_t         random_streams;
    /* Flat buffers: parameters (decayed ones first if laid out together), buffers and constants. Gradients
     * stand in the same order, without those of sparse tables and of weights that gpunn_lora froze. */
    float *weights, *gradients;
    /* floats laid out; sparse_count: of values without a place among the gradients */
    int64_t weight_count, gradient_count, sparse_count;
    /* floats up to the last tensor that has F32 storage */
    int64_t wide_count;
    int     laid_out;                           /* the first tensors, which have all been considered */
    int64_t weight_capacity, gradient_capacity; /* floats allocated */
    /* 16-bit copy of the weights, at the same offsets, for products of 16-bit plans; NULL: none */
    void   *half;
    int64_t half_capacity; /* elements allocated */
    bool    half_stale;    /* weights have changed since the copy was made */
    /* cache of plans, most recent first; last: the plan whose values can be read */
    gpunn__plan *plans, *last;
    int          max_plans;  /* limit of their number */
    size_t       plan_bytes; /* limit of their bytes; 0: none */
    void        *arena;
    size_t       arena_bytes;
    uint64_t     generation;          /* changes when a pointer that plans contain moves */
    uint64_t     user_memory_version; /* the same for user-owned memory */
    uint64_t     written;             /* changes when inputs or states are written */
    int          user_weights;        /* number of parameters and buffers in user-owned memory */
    int          user_doubles;        /* number of inputs bound to doubles */
    /* of the last run or, before the first, of the last write; 0: neither */
    int64_t         batch;
    gpunn_run_state state;
    bool            doubtful; /* some gradient may be infinite or NaN */
    /* grows when gradients, or which of them count, may have changed */
    uint64_t written_gradients;
    /* plan whose kept copies are restored if the call fails; NULL: none */
    gpunn__plan *undo;
    gpunn_ranks  ranks; /* size 0: none; user: the gpunn_group */
    uint64_t     salt;  /* this rank's part of state.seed */
    /* number of optimizers so far that train only some of its parameters */
    uint64_t                scopes;
    int                     parts;         /* number of checkpoint segments */
    const gpunn_kernel_set *kernels;       /* NULL: none */
    bool                    kernels_exact; /* the kernels' list of instances is for exactly this model */
    gpunn__adapter         *adapters;
    int                     adapter_count, adapter_capacity;
    int                     enabled;  /* 1 + the index of the enabled adapter; 0: none */
    bool                    has_base; /* some tensor is or was `base` */
    gpunn__spec             spec;
    gpunn__calibration     *calibration; /* by gpunn_calibrate; NULL: none */
};

/* the most that a parameter can have: rule.state, and its average */
enum { GPUNN__AVERAGE = 3, GPUNN__STATES };
typedef struct gpunn__states {
    float  *data[GPUNN__STATES]; /* backend memory, `count` floats each, or NULL */
    int64_t begin, count;        /* range of all places that is stored here: all, or a rank's share */
} gpunn__states;

/* Progress of gpunn_fit with an optimizer. The next call continues from here, also after a checkpoint. */
enum { GPUNN__CURVES = 4 }; /* train loss, train metric, validation loss, validation metric; NaN if absent */
typedef struct gpunn__epoch {
    float  value[GPUNN__CURVES], lr;
    double seconds;
} gpunn__epoch;
typedef struct gpunn__fit_record {
    int           loss;       /* 1 + the loss's id; 0: no record */
    bool          validation; /* best is the validation loss; false: the training loss */
    float         best;
    int           best_epoch, epochs, capacity; /* epochs: completed; capacity: of history */
    gpunn__epoch *history;
    gpunn_array   kept; /* with .restore_best: the best weights, as gpunn_save_memory writes them */
} gpunn__fit_record;

typedef struct gpunn__chosen {
    gpunn_tensor **list;
    int            count;
    char          *prefix; /* NULL: none */
} gpunn__chosen;

typedef struct gpunn__param_group {
    gpunn__chosen chosen;
    float         setting[GPUNN_SETTINGS], clip_norm, clip_value; /* -1: the optimizer's setting */
} gpunn__param_group;

struct gpunn_optimizer {
    gpunn_model     *model;
    gpunn_optimizer *next; /* in the model's list */
    const char      *name; /* "gpunn_adam", for messages */
    /* kind and settings; the rest is set for each range of parameters */
    gpunn_update rule;
    /* states that this kind with these settings needs; average: gpunn_set_ema */
    bool          uses[GPUNN__STATES];
    gpunn__chosen chosen;
    /* identifies its plans among those of other optimizers; 0: it trains everything */
    uint64_t            scope;
    gpunn__param_group *param_groups;
    int                 param_group_count;
    /* Derived from the settings by gpunn__optimizer_update_fields: */
    float state_start; /* initial value of state 0 */
    int   decay;       /* index of weight_decay among the settings */
    /* an update keeps zeros, as in the gaps between parameters, zero; false if eps is 0 and 0 is divided by
     * it */
    bool keeps_zeros;
    /* Set from the first step on by gpunn__optimizer_prepare: */
    int            considered;     /* number of the model's tensors already examined for what it trains */
    gpunn_tensor **parameters;     /* by rising offset; those of layers added later follow */
    int64_t       *steps;          /* number of updates of each so far */
    int64_t       *places;         /* offset of each in the states, in floats */
    int           *param_group_of; /* group of each; -1: none */
    int            parameter_count;
    gpunn_update  *updates; /* two per parameter: its own update, and that of its average */
    gpunn__states  states;
    void          *workspace; /* MUON: for the largest matrix; NULL: not yet allocated */
    size_t         workspace_bytes;
    /* with sharded states, while a rank temporarily holds all of them: its share */
    gpunn__states share;
    /* shares: each rank has its share of the states; collected: `share` is set */
    bool  shares, collected;
    void *captured; /* the backend's capture of a run with updates only */
    /* GPU memory: scale, steps since it changed, updates skipped; NULL: not used */
    float *loss_scale;
    float  kept_scale[3]; /* the same values as last read; on a CPU only the last one is used */
    bool   skips;         /* skip steps whose loss or gradients are not finite */
    /* backend memory: step_count and steps; NULL: runs cannot be captured */
    gpunn_count *counts;
    /* backend memory: rejected updates to subtract from both; NULL: on a CPU */
    int64_t *rejected;
    int64_t  rejected_count; /* rejected updates that have been subtracted from step_count so far */
    /* the model's written_gradients when gpunn_run's doubt was set; 0: never */
    uint64_t checked;
    int64_t  state_count; /* floats of each state, over all ranks */
    int64_t  step_count;
    int      parts; /* calls of gpunn_train_step accumulated since the last update */
    float    lr, clip_norm, clip_value, average_decay;
    /* updates of the averages so far; with a loss scale it includes those skipped since the first */
    int64_t averaged;
    /* The schedule with its defaults filled in, and its position: */
    gpunn_schedule_args schedule;
    int64_t             schedule_step;
    /* product of all reductions; best metric so far, initially +-infinity */
    double plateau_scale, plateau_best;
    int    plateau_bad, plateau_cooldown;

    gpunn__fit_record fit;
    gpunn_group      *group; /* ranks that train together; NULL: none */
};

#endif /* GPUNN__BASE_STRUCTS_H */
