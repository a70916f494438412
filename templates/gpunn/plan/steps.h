#ifndef GPUNN__PLAN_STEPS_H
#define GPUNN__PLAN_STEPS_H
#include "base/forward_declarations.h"

/* ==== >>plan/steps ======================================================================================= *
 * A plan is the list of steps that computes given outputs in one mode at one batch size. The planner makes it
 * once; runs reuse it. Every value, gradient, saved value and workspace is a slot with a lifetime in steps.
 * Slots whose lifetimes do not overlap share memory in the arena. */
typedef struct gpunn__slot {
    size_t bytes;
    /* first step that writes it, last step that reads it; INT_MAX: the program reads it */
    int                       first, last;
    size_t                    offset;      /* bytes from the start of the arena */
    int                       parent;      /* index of the slot whose memory it shares, or its own index */
    const gpunn__user_memory *user_memory; /* user-owned memory that holds it; NULL: it lies in the arena */
} gpunn__slot;

typedef enum gpunn__place {
    GPUNN__IN_SLOT,
    GPUNN__IN_TENSOR,
    GPUNN__IN_HALF,
    GPUNN__IN_GRADIENT,
    GPUNN__IN_ONE
} gpunn__place;

/* A pointer in a step that gpunn__plan_bind sets once memory exists.
 * index is a slot or a tensor id, by place. */
typedef struct gpunn__binding {
    void       **pointer;
    gpunn__place place;
    int          index;
} gpunn__binding;

/* _FROM: seeded */
typedef enum gpunn__aim { GPUNN__EVALUATE, GPUNN__TRAIN, GPUNN__TRAIN_FROM, GPUNN__TRAIN_FORWARD } gpunn__aim;

/* A table to whose sparse gradient steps of a plan add. */
typedef struct gpunn__sparse_use {
    gpunn_tensor *table;
    int64_t       rows, capacity; /* the most rows that they add; entries of the gradient */
} gpunn__sparse_use;

/* What a plan is made for. Most fields apply to training only. */
typedef struct gpunn__request {
    gpunn_tensor *const   *outputs; /* in training: the losses, unless seeded */
    int                    output_count;
    bool                   training, seeded;
    bool                   forward_only; /* no gradients */
    bool                   evaluates;    /* ops act as in evaluation mode */
    bool                   inputs_only;  /* no parameter gets a gradient */
    const gpunn_optimizer *opt;          /* only its parameters get gradients; NULL: all do */
    bool                   renews;       /* gradients are not added to earlier ones */
} gpunn__request;

/* Identifies the set of parameters that get gradients, so that plans for
 * different optimizers differ. 0: all parameters. */
GPUNN__INTERNAL uint64_t gpunn__scope(const gpunn__request *request);

/* A request with everything else at its default. */
GPUNN__INLINE gpunn__request gpunn__request_of(gpunn_tensor *const *outputs, int count, gpunn__aim aim)
{
    gpunn__request request;
    memset(&request, 0, sizeof request);
    request.outputs = outputs;
    request.output_count = count;
    request.training = aim != GPUNN__EVALUATE;
    request.seeded = aim == GPUNN__TRAIN_FROM;
    request.forward_only = aim == GPUNN__TRAIN_FORWARD;
    return request;
}

typedef struct gpunn__plan_tensor { /* a tensor within a plan */
    /* id of the tensor that owns its memory: itself, or another through reshapes and merged steps */
    int root;
    int gradient_root;             /* the same for gradients, which follow reshapes only */
    int value_slot, gradient_slot; /* valid at the root; -1: none */
    /* with a part: the tensor behind it in memory (that of k, then of v); -1: none */
    int         beside;
    gpunn_dtype storage;       /* dtype in memory of the value and of its gradient */
    bool        channels_last; /* the value and its gradient are stored with channels last */
    bool        is_output;     /* requested by the run */
    signed char part; /* for q, k and v from one product, with their weights, biases and gradients. 1: q's,
                                        described as all three; 2: k's or v's, which are neither steps nor
                                        operands; 0: anything else */
    /* attributes with this plan's sizes, in plan->sized; NULL: use the node's own */
    gpunn_attributes *attr;
} gpunn__plan_tensor;

/* The backward steps of one loss. The first pass also holds the forward steps;
 * later passes continue from what it left. */
typedef struct gpunn__backpass {
    int   begin, end;                 /* range of steps */
    int   reached_begin, reached_end; /* range in plan->reached */
    bool  differentiates;             /* it has backward steps */
    int  *gradients;                  /* with several passes: gradient slot by tensor id */
    void *captured;                   /* run captured by the backend, owned by it; for gpunn_run */
} gpunn__backpass;

typedef struct gpunn__chunk { /* memory of a plan, handed out piece by piece */
    struct gpunn__chunk *next;
    size_t               bytes, used;
} gpunn__chunk;

struct gpunn__plan {
    gpunn__plan *next;
    /* outputs requested; in training the losses, unless seeded or forward_only */
    gpunn_tensor      **outputs;
    int                 output_count;
    bool                training, evaluates, seeded, forward_only;
    bool                communicates; /* some step communicates with other ranks */
    gpunn__backpass    *passes;       /* one per loss, or a single one */
    int                 pass_count;
    int                 passed;                   /* the pass that ran last; -1: the first pass failed */
    uint64_t            written, weights_version; /* the model's counters after the first pass */
    gpunn__user_memory *seed;                     /* seeded: output gradients that start the backward pass */
    /* device copy of seeds that came from the host; NULL: there are none */
    void  *seed_memory;
    size_t seed_bytes;
    /* of the optimizer, if only its parameters get gradients; 0: all parameters */
    uint64_t            scope;
    int64_t             batch, *sizes; /* sizes: by place in model->sizes */
    int                 size_count;
    uint64_t            generation;          /* model->generation at the last binding; 0: never bound */
    uint64_t            user_memory_version; /* model->user_memory_version at the last binding */
    uint64_t            signature;           /* hash of all bound pointers */
    gpunn_step         *steps;               /* forward, then backward, then late assignments */
    int                 forward_count, step_count, step_capacity;
    gpunn__slot        *slots;
    int                 slot_count, slot_capacity;
    gpunn__binding     *bindings;
    int                 binding_count, binding_capacity;
    gpunn__plan_tensor *tensors; /* indexed by tensor id */
    int                 tensor_count;
    /* products read 16-bit values; convolutions read channels-last values: see gpunn__mark_storage */
    bool half, channels_last;
    bool filters_last; /* convolutions read channels-last weights */
    bool packs_anew;   /* evaluation: a run computes a weight of which steps keep a packed copy */
    int *inputs;       /* ids of the inputs it reads */
    int  input_count;
    int *reached; /* ids of the parameters whose gradients it writes */
    /* per reached parameter: accumulate flag of the first step that writes its gradient */
    bool **first_write;
    bool  *was_reached; /* per reached parameter: grad_reached before the last run */
    int    reached_count;
    size_t arena_bytes, cache_bytes;
    /* of steps without a node: permute from channels last, to channels last, identity */
    gpunn_attributes   attr[3];
    gpunn_step_fused   unfused; /* of steps without fused ops */
    gpunn__chunk      *chunks;  /* memory of the steps' operands, newest first */
    gpunn__sparse_use *sparse;  /* in chunks */
    int                sparse_count;
    gpunn_attributes  *sized; /* of nodes whose attributes contain variable sizes */
    int                sized_count;
    size_t             table_bytes; /* size of the block at outputs, which also holds all tables by id */
    /* what training steps change in place besides weights, to be restored; NULL: not bound yet */
    gpunn_kept *kept;
    int         kept_count;
    float      *kept_memory; /* device memory: the copies, then the list itself */
    size_t      kept_bytes;
};

typedef struct gpunn__fused { /* nodes computed by one fused kernel */
    const gpunn_kernel *kernel;
    const int          *tensors; /* ids: nodes, then externals */
    int                 slot;    /* of the first value kept for its backward step; the others follow */
} gpunn__fused;

typedef struct gpunn__builder_tensor { /* a tensor while a plan is made */
    bool wants;                        /* it needs a gradient: requested for it or for one of its operands */
    bool feeds_loss;                   /* the loss depends on it */
    bool retained;                     /* by gradient root: the program reads the gradient */
    /* relu or gelu_tanh whose derivative is applied by the backward step of the linear that reads it */
    bool activates;
    /* its derivative is applied by the backward step of the batch norm that it is merged into */
    bool normed;
    bool varies; /* computed from an input, a state or random numbers */
    int  uses;   /* number of operands, over all needed nodes, that read it */
    /* by the last node of a merged chain: id of the layer that computes it; other nodes: their own id */
    int head;
    int next;       /* by a node of a chain: id of the next node; -1: none */
    int writes;     /* by gradient root: contributions so far in the backward pass */
    int writer;     /* by gradient root: the step that wrote it last, as grad_in[0]; -1: none */
    int cast;       /* by root: slot of the 16-bit copy of an F32 value; -1: none yet */
    int transposed; /* by operand: slot of its copy in the other channel order; -1: none yet */
    int filter;     /* by weight: slot of the filters with channels last; -1: none */
    /* by gradient root: slot of a second part of the gradient, still to be added; -1: none */
    int more;
    /* by weight: slot of the filter gradient, which the last step copies to the parameter's gradient; -1:
     * none */
    int gathered;
    int place; /* position in execution order; the nodes of a fused group share one */
    int fused; /* by node: index in b->fused; -1: none */
    /* by gradient root: the next one whose gradient has the same memory, in a ring; itself if alone */
    int sharing;
    int saved; /* by node: slot of what its last forward step saves; -1: nothing */
    /* by state: 1 + id of the assignment whose value it holds; 0: the value from before the run */
    int version;
    /* by node with a step: the checkpoint segment that recomputes its values; 0: none, or already
     * recomputed */
    int again;
} gpunn__builder_tensor;

typedef struct gpunn__lists { /* a list of numbers for each tensor, one after another */
    int *end;                 /* by tensor id: end of its list in items */
    int *items;
} gpunn__lists;

/* What the tensors of a model have. A pass over all tensors that would find nothing is left out. */
typedef struct gpunn__contents {
    bool keeps, retains, user_memory; /* gpunn_keep, gpunn_retain_grad, memory of the program */
    bool assigns, convolutions, integers, attention, expands;
} gpunn__contents;

typedef struct gpunn__builder { /* exists while a plan is made */
    gpunn_model           *model;
    gpunn__plan           *plan;
    const gpunn__request  *request;
    gpunn__builder_tensor *tensors; /* by tensor id, like the next three */
    bool                  *needed;  /* computed in this plan */
    bool                  *scratch;
    gpunn__contents        has;
    /* by last node: fused groups with this many nodes or more are rejected; survives a restart of planning */
    int          *rejected;
    int          *order; /* node by place; for a fused group its last node */
    int           place_count;
    gpunn__fused *fused;
    int           fused_count;
    int          *ids; /* of the tensors of matched fused groups */
    int           id_count;
    gpunn__lists  readers;       /* by operand: the nodes that read it, in rising order */
    gpunn__lists  contributions; /* by gradient root: the places that add to it, in rising order */
    gpunn__lists  segments;   /* by checkpoint segment: the nodes whose steps it runs again, in their order */
    gpunn__lists  recomputed; /* by checkpoint segment: the tensors that these steps compute */
    int          *nodes;      /* by step: id of the tensor that it is made for */
    bool          again;      /* a fused group was rejected, so planning must restart */
    bool          repeats;    /* the steps being added recompute earlier ones */
    int           pass;       /* the pass being planned */
} gpunn__builder;

/* Where the list of tensor `id` begins in lists->items. */
GPUNN__INTERNAL int gpunn__list_begin(const gpunn__lists *lists, int id);

/* Lists are filled in two equal passes: the first counts, then gpunn__open_lists, the second adds. */
GPUNN__INTERNAL void gpunn__list_add(gpunn__lists *lists, int id, int item, bool counts);
GPUNN__INTERNAL void gpunn__open_lists(gpunn__lists *lists, int count);

/* One more than the highest number of a checkpoint segment; the last one is of recurrent layers. */
GPUNN__INTERNAL int gpunn__segment_count(const gpunn__builder *b);

/* Fills b->readers. */
GPUNN__INTERNAL void gpunn__list_readers(gpunn__builder *b);

/* The attributes of a node, with this plan's sizes. */
GPUNN__INTERNAL const gpunn_attributes *gpunn__attr_of(const gpunn__plan *plan, const gpunn_tensor *t);

/* The tensor that a step is made for. */
GPUNN__INTERNAL gpunn_tensor *gpunn__node_of(const gpunn__builder *b, const gpunn_step *step);

/* Appends a slot that lives in step `first`. Returns its index, or -1 if out of memory. */
GPUNN__INTERNAL int gpunn__new_slot(gpunn__builder *b, size_t bytes, int first);

/* Follows parents to the slot that owns the memory. */
GPUNN__INTERNAL gpunn__slot *gpunn__slot_of(gpunn__plan *plan, int slot);

/* Zeroed memory that lives as long as the plan. NULL if out of memory. */
GPUNN__INTERNAL void *gpunn__plan_take(gpunn__builder *b, size_t bytes);

/* The fused ops of a step, made if it has none. NULL if out of memory. */
GPUNN__INTERNAL gpunn_step_fused *gpunn__fuse(gpunn__builder *b, gpunn_step *step);

/* Registers a pointer for gpunn__plan_bind to set. Returns false if out of memory. */
GPUNN__INTERNAL bool gpunn__bind(gpunn__builder *b, void **pointer, gpunn__place place, int index);

/* Discards the plan's captured runs. */
GPUNN__INTERNAL void gpunn__plan_forget(gpunn_device *dev, gpunn__plan *plan);

GPUNN__INTERNAL void gpunn__plan_free(gpunn_device *dev, gpunn__plan *plan);

/* Drops the least recently used plans beyond the model's limits on count
 * and bytes. The newest plan always stays. */
GPUNN__INTERNAL void gpunn__limit_plans(gpunn_model *model);

/* The name of a tensor in messages. */
GPUNN__INTERNAL const char *gpunn__called(const gpunn_tensor *t);

/* Marks in `needed` every tensor that the marked ones are computed from. */
GPUNN__INTERNAL void gpunn__mark_operands(const gpunn_model *model, bool *needed);

/* Marks kept tensors for a training step, as long as they need no input that the loss does not need. */
GPUNN__INTERNAL void gpunn__mark_kept(const gpunn_model *model, bool *needed, bool *scratch);

/* Marks assignments to the states that a run reads, as long as they
 * need no input that the outputs do not need. */
GPUNN__INTERNAL void gpunn__mark_assigns(const gpunn_model *model, bool training, bool *needed,
                                         bool *scratch);

/* The tensor that a step of t reads as operand i. Indices that gpunn_expand copied to all lines of a gather
 * or scatter_add are read as that one line, of size 1 along all other axes. */
GPUNN__INTERNAL gpunn_tensor *gpunn__source(const gpunn_tensor *t, int i);

/* Whether t is an image of fixed size for which channels first and channels last differ in memory. */
GPUNN__INTERNAL bool gpunn__has_layouts(const gpunn_tensor *t);

/* Whether t is its first operand under another name, so that it needs no step. */
GPUNN__INTERNAL bool gpunn__is_alias(const gpunn__plan *plan, const gpunn_tensor *t);

/* Whether a node communicates with other ranks in this plan. */
GPUNN__INTERNAL bool gpunn__communicates(const gpunn__plan *plan, const gpunn_tensor *t);

GPUNN__INTERNAL bool gpunn__is_output(const gpunn__plan *plan, const gpunn_tensor *t);

/* Whether the program can read the value under its own name. Such a value cannot be merged away. */
GPUNN__INTERNAL bool gpunn__is_visible(const gpunn__plan *plan, const gpunn_tensor *t);

/* Whether an operand is stored in a state. Such a node must run at its place in
 * the order, so it is not merged or grouped. */
GPUNN__INTERNAL bool gpunn__reads_state(const gpunn__builder *b, const gpunn_tensor *t);

/* Sets the roots of reshapes and other aliases, counts uses, and resets the gpunn__builder_tensor of each. */
GPUNN__INTERNAL void gpunn__mark_roots(gpunn__builder *b);

/* Merges nodes that can be computed by the step of the layer before them into chains. */
GPUNN__INTERNAL void gpunn__mark_chains(gpunn__builder *b);

/* Operand i of t, or NULL if there is none or it is part of another operand (part 2). */
GPUNN__INTERNAL const gpunn_tensor *gpunn__operand_of(const gpunn__plan *plan, const gpunn_tensor *t, int i);

/* Whether the op of node t has a gradient with respect to operand i, provided that it is F32. */
GPUNN__INTERNAL bool gpunn__has_derivative(const gpunn_tensor *t, int i);

/* Whether a node's backward step computes the gradient of this operand in this plan. */
GPUNN__INTERNAL bool gpunn__passes_gradient(const gpunn__builder *b, const gpunn_tensor *node, int operand);

/* A tensor of a fused group by its number in the kernel: -1, -2, ... are nodes, 0, 1, ... externals. */
GPUNN__INTERNAL gpunn_tensor *gpunn__member(const gpunn__builder *b, const gpunn__fused *fused, int number);

/* The kernel's program for the plan's mode and this direction. */
GPUNN__INTERNAL const gpunn_kernel_program *gpunn__program(const gpunn__builder *b, const gpunn__fused *fused,
                                                           bool backward);

/* The kernel operand through which a fused group reads the gradient with root `root`, or NULL. With `changes`
 * only an operand that the kernel also writes counts. */
GPUNN__INTERNAL const gpunn_kernel_operand *gpunn__gradient_operand(const gpunn__builder *b,
                                                                    const gpunn__fused *fused, int root,
                                                                    bool changes);

/* Whether a training plan needs the gradient of an external from the fused group. */
GPUNN__INTERNAL bool gpunn__fused_passes(const gpunn__builder *b, const gpunn__fused *fused,
                                         const gpunn_tensor *external);

/* Whether a training plan needs the gradient of any external from the fused group. */
GPUNN__INTERNAL bool gpunn__fused_has_backward(const gpunn__builder *b, const gpunn__fused *fused);

/* Whether the fused group reads its images with channels last. */
GPUNN__INTERNAL bool gpunn__fused_wants_channels_last(const gpunn__builder *b, const gpunn__fused *fused);

/* Whether t is an image in another channel order than the fused group's, so that the fused group needs a
 * copy. */
GPUNN__INTERNAL bool gpunn__fused_relayouts(const gpunn__builder *b, const gpunn__fused *fused,
                                            const gpunn_tensor *t);

enum { GPUNN__LEFT_OUT = 127 }; /* an omitted operand; also the most tensors that a pattern can number */

/* Matches the kernel's pattern with t as its last node and writes all ids to `assigned`. Nodes that the last
 * one does not depend on are searched among all tensors. */
GPUNN__INTERNAL bool gpunn__find_pattern(const gpunn_model *model, const gpunn_kernel *kernel,
                                         const gpunn_tensor *t, int *assigned);

/* Assigns nodes to the generated kernels that fit this plan. */
GPUNN__INTERNAL void gpunn__mark_fused(gpunn__builder *b);

/* Rejects the fused group and requests a restart of planning without it. Returns false. */
GPUNN__INTERNAL bool gpunn__reject_fused(gpunn__builder *b, const gpunn__fused *fused);

/* Orders the nodes so that each, or its whole fused group, runs after its
 * operands. Returns false if a fused group was rejected. */
GPUNN__INTERNAL bool gpunn__mark_order(gpunn__builder *b);

enum {
    GPUNN__WEIGHT_ALIGN = 16
}; /* floats; element 0 of a model's weights is the constant 1, element 1 the loss scale in F16 training */

/* Number of floats including the zeros that pad a weight to GPUNN__WEIGHT_ALIGN. */
GPUNN__INTERNAL int64_t gpunn__aligned(int64_t count);

/* The range of a weight in the model's memory: parameters that decay, other parameters, buffers and
 * constants, weights stored in 16 bits or blocks. -1: t is no weight. */
enum { GPUNN__STORAGE_RANGE = 3, GPUNN__WEIGHT_RANGES };
/* Which of these ranges holds t. */
GPUNN__INTERNAL int gpunn__weight_range(const gpunn_tensor *t);

/* Number of floats that a weight occupies. */
GPUNN__INTERNAL int64_t gpunn__floats_of(const gpunn_tensor *t);

/* Whether the value or the gradient lies in user-owned memory. */
GPUNN__INTERNAL bool gpunn__is_user_owned(const gpunn_tensor *t);

/* Finds attention whose q, k and v can come from one product. */
GPUNN__INTERNAL void gpunn__mark_parts(gpunn__builder *b);

/* Fills in dtype, channel order and shape of a tensor in this plan. data becomes NULL. */
GPUNN__INTERNAL void gpunn__describe(const gpunn__plan *plan, gpunn_value *value, const gpunn_tensor *t);

/* Makes the step run another op than its node's. */
GPUNN__INTERNAL void gpunn__set_operation(gpunn_step *step, const gpunn__operation *operation);

/* Appends an empty step that takes its name and attributes from a node. Allocates
 * input_count operands. NULL: out of memory. */
GPUNN__INTERNAL gpunn_step *gpunn__new_step(gpunn__builder *b, const gpunn_tensor *t, bool backward,
                                            int input_count);

/* Appends the step of a node by itself, with its operands described.
 * `more` operands are allocated behind them. */
GPUNN__INTERNAL gpunn_step *gpunn__node_step(gpunn__builder *b, const gpunn_tensor *t, bool backward,
                                             int more);

/* Binds a pointer to a slot and extends the slot's lifetime to step `at`. */
GPUNN__INTERNAL bool gpunn__use_slot(gpunn__builder *b, void **pointer, int index, int at);

/* Binds `value` to t, as step `at` reads it. Fails if t is a state that has been overwritten since. */
GPUNN__INTERNAL bool gpunn__read_value(gpunn__builder *b, gpunn_value *value, const gpunn_tensor *t, int at);

/* Whether a step wants an operand and its gradient with channels last. */
GPUNN__INTERNAL bool gpunn__wants_channels_last(const gpunn__builder *b, const gpunn_tensor *t, int operand);

/* Whether an operand and its gradient are stored in another channel order than the step of t wants. */
GPUNN__INTERNAL bool gpunn__is_misplaced(const gpunn__builder *b, const gpunn_tensor *t, int operand);

/* Binds `value` to an operand, or to its copy in the dtype and channel order that the step of t reads. */
GPUNN__INTERNAL bool gpunn__read_operand(gpunn__builder *b, gpunn_value *value, const gpunn_tensor *t,
                                         int operand, int at);

/* Reorders dim as the elements lie in memory (last: with channels last), so that the value can be
 * permuted. */
GPUNN__INTERNAL void gpunn__as_stored(gpunn_value *value, bool last);

/* permutations of axes */
GPUNN__PRIVATE const int gpunn__to_first[4] = {0, 3, 1, 2}, gpunn__to_channels_last[4] = {0, 2, 3, 1};

/* Appends a permutation of an image to channels last, or back. */
GPUNN__INTERNAL gpunn_step *gpunn__relayout_step(gpunn__builder *b, const gpunn_tensor *image, bool to_last,
                                                 bool backward);

/* Appends the step that copies an image in the channel order that t reads, unless a copy exists. */
GPUNN__INTERNAL bool gpunn__relayout_operand(gpunn__builder *b, const gpunn_tensor *t, int operand,
                                             bool to_last);

/* Appends the steps that copy those operands of t that it cannot read
 * as they are. Existing copies are reused. */
GPUNN__INTERNAL bool gpunn__copy_operands(gpunn__builder *b, const gpunn_tensor *t);

/* Makes a slot for a 16-bit copy of `value` that the step writes too: of a norm's result or gradient, or of
 * operand i of a fused group. -1: out of memory. */
GPUNN__INTERNAL int gpunn__write_half(gpunn__builder *b, gpunn_step *step, int i, const gpunn_value *value,
                                      int at);

/* Whether t is stored in F32 and some product reads it in 16 bits. */
GPUNN__INTERNAL bool gpunn__wants_half(const gpunn__builder *b, const gpunn_tensor *t);

/* Appends the step that computes `end`. It is the step of the layer at the head of the chain. */
GPUNN__INTERNAL bool gpunn__forward_step(gpunn__builder *b, const gpunn_tensor *end);

/* Appends an assignment. Its step writes the state's memory. */
GPUNN__INTERNAL bool gpunn__assign_step(gpunn__builder *b, const gpunn_tensor *t);

/* Whether t is an assignment whose result this run does not read. It then runs after all other steps. */
GPUNN__INTERNAL bool gpunn__is_late(const gpunn__builder *b, const gpunn_tensor *t);

/* Appends the late assignments. */
GPUNN__INTERNAL bool gpunn__late_steps(gpunn__builder *b);

/* Appends an empty RELAYOUT step for `count` filters. */
GPUNN__INTERNAL gpunn_step *gpunn__filter_step(gpunn__builder *b, const gpunn_tensor *convolution,
                                               bool backward, int count);

/* Appends the step that copies all filters to channels last, if there are any. */
GPUNN__INTERNAL bool gpunn__relayout_filters(gpunn__builder *b);

/* Whether the gradient of a convolution's weight is copied by the last
 * step. No other node may contribute to it. */
GPUNN__INTERNAL bool gpunn__gathers_filter(const gpunn__builder *b, const gpunn_tensor *t);

#endif /* GPUNN__PLAN_STEPS_H */
