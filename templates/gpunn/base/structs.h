#ifndef GPUNN__BASE_STRUCTS_H
#define GPUNN__BASE_STRUCTS_H
#include "common/updates.h"

/* ==== >>base/structs =============================================================================================== */
#define GPUNN__ALIGN 64 /* bytes; of every block handed to a backend */
#define GPUNN__ERROR_SIZE 768

typedef struct gpunn__error {
    gpunn_status status;
    char         text[GPUNN__ERROR_SIZE];
} gpunn__error;

struct gpunn_device {
    gpunn_device_args       args;
    const gpunn_backend    *backend;
    void                   *context;
    gpunn_backend_info      info;
    gpunn__error            error;
    size_t                  allocated, peak; /* bytes of backend memory */
    gpunn_model            *models;          /* list */
    bool                    closed;          /* by the program: to be freed with the last model */
    const char             *place;           /* path:line:column of what is being read, put before messages; NULL: none */
    double                 *timing;          /* [steps + 1]: receives the seconds of the next runs; NULL: nobody asks */
    const gpunn_custom_op **customs;         /* registered */
    int                     custom_count;
    int                     groups; /* that live */
};

/* What a rank says before anything common to all. */
typedef struct gpunn__vote {
    int32_t  status;
    float    loss;
    uint32_t what; /* a hash of what it is about to do */
} gpunn__vote;
struct gpunn_group {
    gpunn_device    *dev;
    gpunn_group_args args;        /* an engine, whose functions are NULL in a group of one */
    int              users;       /* optimizers and loaders */
    bool             closed;      /* by the program: to be freed with the last of them */
    gpunn_status     broken;      /* its engine has failed; GPUNN_OK: it has not */
    int              process;     /* that opened it: one forked from it is no rank */
    bool             told;        /* the ranks know of the last failure */
    bool             copies;      /* some rank's device is no CPU: what goes through the host is copied, which may fail */
    bool             unlike;      /* the ranks' devices round in ways of their own: weights may drift apart */
    int64_t          agreed;      /* times that the ranks have voted */
    gpunn__vote     *votes;       /* [size] */
    char            *piece;       /* GPUNN__GROUP_PIECE bytes for what lies on a device; NULL: not needed so far */
    int64_t         *counts;      /* [size] of a reduce_scatter's parts */
    uint16_t        *bf16;        /* with .bf16_gradients: GPUNN__GROUP_PIECE bytes of what travels; NULL: without */
    void            *joined_bf16; /* the same in memory of a device that has joined: gpunn__joined_count() of them */
    bool             joined;      /* the device exchanges with those of the other ranks by itself */
    gpunn_exchange  *exchanges;   /* of the next run, if it has joined */
    int              exchange_count, exchange_capacity;
};

typedef enum gpunn__kind { GPUNN__INPUT = 1, GPUNN__PARAMETER, GPUNN__BUFFER, GPUNN__CONSTANT, GPUNN__VALUE } gpunn__kind;

typedef struct gpunn__lent { /* memory of the program's */
    void  *data;             /* NULL: none */
    size_t bytes;
} gpunn__lent;

struct gpunn_tensor {
    gpunn_model                   *model;
    int                            id; /* index in model->tensors: operands have smaller ones */
    gpunn__kind                    kind;
    gpunn_dtype                    dtype;
    int                            rank;
    int64_t                        dim[GPUNN_MAX_RANK]; /* -k: k times the batch; below GPUNN__NO_SIZE: see >>base/sizes */
    char                          *name;                /* NULL: none */
    gpunn_op                       op;                  /* of a value */
    const struct gpunn__operation *operation;           /* what computes that on the CPU */
    gpunn_attributes               attr;
    int                            input_count;
    gpunn_tensor                 **inputs;  /* an optional operand that is left out is NULL */
    char                          *layer;   /* name for messages; NULL: none */
    const char                    *made_by; /* the builder of which this is the last op, for messages; NULL: it is one op */
    gpunn_tensor *next[2]; /* in its chain of the model's index, by gpunn__key; of a layer only the first stands there */
    bool          keep, retain_grad;
    bool          shared;  /* by derivatives: what one has made, but not of the gradient that it hands on */
    int           part;    /* of the model that is recomputed; 0: none */
    gpunn__lent   lent[2]; /* in the place of its memory, and of its gradient's */
    gpunn_dlpack *managed; /* what owns the first; NULL: nothing */
    /* inputs */
    void   *data; /* backend memory, or what is lent; inputs only */
    size_t  capacity;
    int64_t batch;                /* of the last write; 0: never written; 1 when the shape has no batch */
    int64_t held[GPUNN_MAX_RANK]; /* the shape of the last write */
    /* parameters, buffers, constants */
    gpunn_init init;
    int64_t    padding; /* 1 + the row that starts as 0, whatever init says; 0: none */
    bool       trainable, decay;
    bool       frozen;       /* a running_mean: gpunn_freeze_statistics */
    bool       state, saved; /* a buffer: gpunn_state; gpunn_set_saved */
    bool       narrow;       /* kept in 16 bits and nothing else: gpunn__find_narrow */
    bool       bound;        /* before it was laid out, so that it is F32 */
    float      lr_scale;
    int64_t    offset;       /* in the model's weights, in floats; parameters: in the gradients too; -1: not laid out */
    float     *constant;     /* host copy of a constant's values */
    bool       grad_reached; /* parameters: a backward pass has written the gradient since zero_grad */
};

typedef struct gpunn__plan gpunn__plan; /* >>plan/plan */

/* What a spec says beside tensors (>>io/spec_reader). */
typedef struct gpunn__recipe {
    bool              given;
    gpunn_update_kind kind;
    float             setting[GPUNN_SETTINGS], clip_norm, clip_value, average_decay;
} gpunn__recipe;
typedef struct gpunn__spec {
    char         *name; /* NULL: none */
    gpunn_tensor *loss, **outputs;
    int           output_count, output_capacity;
    gpunn__recipe recipe;
} gpunn__spec;

enum { GPUNN__MOST_TENSORS = 1 << 20 }; /* of a model */

enum { GPUNN__MAX_PLANS = 32 }; /* cached per model, unless it is told */

/* What varies between runs (>>base/sizes). */
enum { GPUNN__TERMS = 8, GPUNN__FACTORS = 4 };
typedef struct gpunn__size_term { /* factor * atom * atom ... */
    int64_t factor;
    int     atom[GPUNN__FACTORS]; /* places in the model's table, falling; 0: no more */
} gpunn__size_term;
typedef struct gpunn__sum {
    int              count; /* -1: too long, or numbers too large */
    gpunn__size_term term[GPUNN__TERMS];
} gpunn__sum; /* by falling atoms; no factor is 0 */
typedef struct gpunn__size {
    char       *name;               /* of an atom that the program has named; NULL: none */
    char       *text;               /* of others: the formula, which is the same in all models that have it */
    int64_t     min, max, multiple; /* of such a one; max 0: none */
    gpunn__sum  sum;
    int64_t     divisor; /* the atom is the sum by this, rounded down; 0: of a name, or no atom but the sum */
    int64_t     value;   /* of a name, in multiples: in the run whose values can be read */
    int64_t     found;   /* the same, in the inputs as they are; 0: none tells */
    const char *teller;  /* the input that tells it */
} gpunn__size;

/* What a model's tensors are found by: a hash table whose chains go through the tensors. */
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
    gpunn_optimizer *optimizers;    /* list */
    int              children;      /* loaders and sessions that live */
    bool             closed;        /* by the program: to be freed with the last optimizer, loader and session */
    gpunn_session   *own, *session; /* the model's own states, from the first use of a session on; the one in use */
    gpunn_optimizer *swapped;       /* whose averages are in the place of the parameters, and they in its; NULL: none */
    gpunn_tensor   **tensors;
    int              tensor_count, tensor_capacity;
    int              tensor_limit; /* no more than so many */
    gpunn__index     index[2];     /* by gpunn__key */
    gpunn__size     *sizes;        /* places 0 and 1 are nothing and the batch */
    int              size_count, size_capacity;
    uint32_t         random_sites;
    /* Flat memory: parameters (decayed ones first when laid out together), buffers, constants; gradients follow the same
     * offsets. */
    float                  *weights, *gradients;
    int64_t                 weight_count, gradient_count;       /* floats laid out; gradients cover [0, gradient_count) */
    int64_t                 wide_count;                         /* of them, those up to the last one that is not narrow */
    int                     laid_out;                           /* tensors considered so far */
    int64_t                 weight_capacity, gradient_capacity; /* floats allocated */
    void                   *half; /* the weights in 16 bits, by the same offsets, for products of half plans; NULL: none */
    int64_t                 half_capacity; /* elements allocated */
    bool                    half_stale;    /* weights have changed since it was made */
    gpunn__plan            *plans, *last;  /* cache, most recent first; last: whose values can be read */
    int                     max_plans;     /* there */
    size_t                  plan_bytes;    /* limit of all; 0: none */
    void                   *arena;
    size_t                  arena_bytes;
    uint64_t                generation;   /* changes when any pointer that plans are bound to moves */
    uint64_t                lending;      /* the same for memory of the program's */
    uint64_t                written;      /* changes whenever inputs or states are written */
    int                     lent_weights; /* parameters and buffers in such memory */
    int64_t                 batch;        /* of the last run, before it of the last write; 0 before */
    gpunn_run_state         state;
    bool                    doubtful;      /* some gradient may be infinite or NaN */
    gpunn__plan            *undo;          /* whose kept copies are to come back if the call fails; NULL: none */
    gpunn_ranks             ranks;         /* size 0: none; user: their gpunn_group */
    uint64_t                salt;          /* of this rank, in state.seed */
    uint64_t                scopes;        /* optimizers so far that train some of its parameters */
    int                     parts;         /* that are recomputed */
    const gpunn_kernel_set *kernels;       /* NULL: none */
    bool                    kernels_exact; /* its instances are this model's */
    gpunn__spec             spec;
};

enum { GPUNN__AVERAGE = 3, GPUNN__STATES }; /* what there can be for each parameter: rule.state, and its average */
typedef struct gpunn__states {
    float  *data[GPUNN__STATES]; /* backend memory, `count` floats each, or NULL */
    int64_t begin, count;        /* of all places, those that are here: all, or a rank's share */
} gpunn__states;

/* What gpunn_fit has done so far with an optimizer; its next call goes on from here, after a checkpoint too. */
enum { GPUNN__CURVES = 4 }; /* train loss, train metric, validation loss, validation metric; NaN where there is none */
typedef struct gpunn__epoch {
    float  value[GPUNN__CURVES], lr;
    double seconds;
} gpunn__epoch;
typedef struct gpunn__fit_record {
    int           loss;       /* 1 + its id; 0: nothing */
    bool          validation; /* whose loss is watched; false: the training loss */
    float         best;
    int           best_epoch, epochs, room; /* epochs done; room: of history */
    gpunn__epoch *history;
} gpunn__fit_record;

typedef struct gpunn__chosen {
    gpunn_tensor **list;
    int            count;
    char          *prefix; /* NULL: none */
} gpunn__chosen;

typedef struct gpunn__settings_group {
    gpunn__chosen chosen;
    float         setting[GPUNN_SETTINGS], clip_norm, clip_value; /* -1: the optimizer's */
} gpunn__settings_group;

struct gpunn_optimizer {
    gpunn_model           *model;
    gpunn_optimizer       *next;                /* in the model's list */
    const char            *name;                /* "gpunn_adam", for messages */
    gpunn_update           rule;                /* kind and settings; the rest is filled in for each range of parameters */
    bool                   uses[GPUNN__STATES]; /* what this kind with these settings needs; averages: gpunn_set_ema */
    gpunn__chosen          chosen;
    uint64_t               scope; /* of its plans, by which they are told from those of others; 0: it trains everything */
    gpunn__settings_group *groups;
    int                    group_count;
    /* What its settings say; gpunn__optimizer_settle: */
    float state_start; /* of state 0 */
    int   decay;       /* the place of weight_decay */
    bool  keeps_zeros; /* zeros, as they lie between parameters, stay zeros in an update: not where 0 is divided by an eps of 0 */
    /* From the first step on; gpunn__optimizer_prepare: */
    int            considered; /* tensors of the model, of which it has taken what it trains */
    gpunn_tensor **parameters; /* by rising offset; those of layers added later follow */
    int64_t       *steps;      /* updates of each so far */
    int64_t       *places;     /* of each in its states, in floats */
    int           *group_of;   /* of each; -1: none */
    int            parameter_count;
    gpunn_update  *updates; /* room for two a parameter: its own, and that of its average */
    gpunn__states  states;
    gpunn__states  share;             /* while all states are here although the ranks share them: what was */
    bool           shares, collected; /* the ranks have a share each; share is set */
    void          *captured;          /* the backend's, of a run with nothing but updates */
    float         *loss_scale;        /* on a GPU: memory of scale, steps since it changed, updates skipped; NULL: not used */
    float          kept_scale[3];     /* the same, as read last; on a CPU only the last of them */
    bool           skips;             /* steps whose loss or gradients are not finite */
    gpunn_count   *counts;            /* backend memory: of step_count and of steps; NULL: the program cannot capture runs */
    int64_t        state_count;       /* floats of each state, on all ranks */
    int64_t        step_count;
    int            parts; /* of the next update: calls of gpunn_train_step that have accumulated since the last one */
    float          lr, clip_norm, clip_value, average_decay;
    int64_t        averaged; /* updates of the averages so far; with a loss scale, also what that has skipped since its first */
    /* What the schedule is, defaults in place, and where it stands: */
    gpunn_schedule_args schedule;
    int64_t             schedule_step;
    double plateau_scale, plateau_best; /* the product of all reductions; the best metric so far, at first +-infinity */
    int    plateau_bad, plateau_cooldown;

    gpunn__fit_record fit;
    gpunn_group      *group; /* of ranks that train together; NULL: none */
};

#endif /* GPUNN__BASE_STRUCTS_H */
