#ifndef GPUNN__PLAN_STEPS_H
#define GPUNN__PLAN_STEPS_H
#include "base/forward_declarations.h"

/* ==== >>plan/steps ================================================================================================= *
 * A plan is the work of one (outputs, mode, batch size): steps in order, each with its operands' places. Every value, gradient,
 * saved value and workspace is a slot with a lifetime in steps; slots share the arena. Made once, then only run. */
typedef struct gpunn__slot {
    size_t             bytes;
    int                first, last; /* steps that write it first and read it last; INT_MAX: the program reads it */
    size_t             offset;      /* in the arena */
    int                parent;      /* the slot whose memory this one shares, or itself */
    const gpunn__lent *lent;        /* memory of the program's that it is; NULL: the arena */
} gpunn__slot;

typedef enum gpunn__place { GPUNN__IN_SLOT, GPUNN__IN_TENSOR, GPUNN__IN_HALF, GPUNN__IN_GRADIENT, GPUNN__IN_ONE } gpunn__place;

/* A pointer of a step to set once the memory is there. index: slot, or tensor id. */
typedef struct gpunn__binding {
    void       **pointer;
    gpunn__place place;
    int          index;
} gpunn__binding;

typedef enum gpunn__aim { GPUNN__EVALUATE, GPUNN__TRAIN, GPUNN__TRAIN_FROM, GPUNN__TRAIN_FORWARD } gpunn__aim; /* _FROM: seeded */

/* What a plan is asked for. */
typedef struct gpunn__request {
    gpunn_tensor *const   *outputs; /* training: the losses, unless seeded */
    int                    output_count;
    bool                   training, seeded;
    bool                   forward_only; /* training: without gradients */
    bool                   evaluates;    /* training: in evaluation mode */
    bool                   inputs_only;  /* training: gradients of no parameters */
    const gpunn_optimizer *opt;          /* training: gradients of what it trains alone; NULL: of all parameters */
} gpunn__request;

GPUNN__INTERNAL uint64_t gpunn__scope(const gpunn__request *request);

GPUNN__INTERNAL gpunn__request gpunn__ask(gpunn_tensor *const *outputs, int count, gpunn__aim aim);

typedef struct gpunn__planned { /* a tensor within a plan */
    int               root;     /* the tensor whose memory a value is: itself, or through reshapes and merged steps another */
    int               gradient_root;             /* the same for gradients: reshapes only */
    int               value_slot, gradient_slot; /* by root; -1: none */
    int               beside;        /* of a value with a part: what lies behind it in memory: k's, v's; -1: nothing */
    gpunn_dtype       storage;       /* of the value, and of its gradient, in memory */
    bool              channels_last; /* the value, and its gradient, with channels last */
    signed char       part;          /* of q, k and v that one product makes, with weight, bias and gradients: 1: of q,
                                      described as all three; 2: of k or v, which are no steps or operands; else 0 */
    gpunn_attributes *attr;          /* with the sizes of this plan, in its list; NULL: the node's own */
} gpunn__planned;

/* The backward steps of one loss, behind the forward ones in the first pass; others go on from what that has left. */
typedef struct gpunn__backpass {
    int   begin, end;                 /* steps */
    int   reached_begin, reached_end; /* in the plan's table */
    bool  differentiates;             /* has backward steps */
    int  *gradients;                  /* of several passes: by tensor id, the slot of the gradient */
    void *captured;                   /* the backend's, of gpunn_run */
} gpunn__backpass;

struct gpunn__plan {
    gpunn__plan      *next;
    gpunn_tensor    **outputs; /* as asked for; training: the losses, unless seeded or forward_only */
    int               output_count;
    bool              training, evaluates, seeded, forward_only;
    bool              meets_ranks; /* some step has ranks */
    gpunn__backpass  *passes;      /* one, or of each loss one */
    int               pass_count;
    int               passed;                   /* the pass that ran last; -1: the first has failed */
    uint64_t          written, weights_version; /* of the model, when the first one had run */
    gpunn__lent      *seed;        /* seeded: gradients of the outputs, from which the backward pass starts instead */
    void             *seed_memory; /* of those that came from the host; NULL: none did */
    size_t            seed_bytes;
    uint64_t          scope;         /* of the optimizer whose parameters alone have gradients; 0: all have */
    int64_t           batch, *sizes; /* sizes: values of the model's, by place */
    int               size_count;
    uint64_t          generation; /* of the model, at the last binding; 0: never bound */
    uint64_t          lending;    /* the same */
    uint64_t          signature;  /* of all pointers */
    gpunn_step       *steps;      /* forward ones, then backward ones, then assignments */
    int               forward_count, step_count, step_capacity;
    gpunn__slot      *slots;
    int               slot_count, slot_capacity;
    gpunn__binding   *bindings;
    int               binding_count, binding_capacity;
    gpunn__planned   *tensors; /* by tensor id */
    int               tensor_count;
    bool              half, channels_last; /* products read 16 bits, convolutions channels_last values: see gpunn__mark_storage */
    int              *inputs;              /* ids of the inputs that it reads */
    int               input_count;
    int              *reached;     /* ids of the parameters whose gradient it writes */
    bool            **first_write; /* per reached parameter: the accumulate flag of the step that writes it first */
    bool             *was_reached; /* per reached parameter: before the last run */
    int               reached_count;
    size_t            arena_bytes, cache_bytes;
    gpunn_attributes  attr[3]; /* of steps that no node asks for: channels from last to second place, back; as they are */
    gpunn_attributes *sized;   /* of nodes whose attributes hold sizes */
    int               sized_count;
    size_t            table_bytes; /* of the block at outputs: it and all tables by id */
    gpunn_kept       *kept;        /* what training runs change beside weights, by the steps; NULL: nothing so far */
    int               kept_count;
    float            *kept_memory; /* on the device: the copies, then the list once more */
    size_t            kept_bytes;
};

typedef struct gpunn__group { /* nodes that one fused kernel computes */
    const gpunn_kernel *kernel;
    const int          *tensors; /* ids: nodes, then externals */
    int                 slot;    /* of the first value that it keeps for its backward step; the others follow */
} gpunn__group;

typedef struct gpunn__draft { /* a tensor while a plan is made */
    bool wants;               /* a gradient is asked for, by the tensor or by what it is made of */
    bool feeds_loss;          /* the loss depends on it */
    bool retained;            /* by gradient root: the program reads the gradient */
    bool activates;           /* relu or gelu_tanh whose derivative the backward step of the linear that reads it applies */
    bool normed;              /* the backward step of the batch norm that it is merged into applies its derivative */
    int  uses;                /* nodes that read it */
    int  head;                /* by the last node of a merged chain: the layer that computes it; others: the node itself */
    int  next;                /* by a node of a chain: the following one; -1: none */
    int  writes;              /* by gradient root: contributions so far in the backward pass */
    int  writer;              /* by gradient root: the step that wrote it last, as grad_in[0]; -1: none */
    int  cast;                /* by root: the slot of a 16-bit copy of an F32 value; -1: none yet */
    int  transposed;          /* by operand: the slot of a copy with its channels in the other place; -1: none yet */
    int  filter;              /* by weight: the slot of the filters with channels last; -1: none */
    int  more;                /* by gradient root: the slot of a second part of the gradient; -1: it is one */
    int  gathered;            /* by weight: the slot of their gradient, which the last step brings to its place; -1: none */
    int  place;               /* when it is computed; the nodes of a group share one */
    int  group;               /* by node: index in groups; -1: none */
    int  version;             /* by state: 1 + the assignment whose value it holds; 0: that of the run before */
    int  again;               /* by node with a step: the part whose values that makes again; 0: none, or it has */
} gpunn__draft;

typedef struct gpunn__builder { /* alive while a plan is made */
    gpunn_model          *model;
    gpunn__plan          *plan;
    const gpunn__request *request;
    gpunn__draft         *tensors; /* by tensor id, like the next three */
    bool                 *needed;  /* computed in this plan */
    bool                 *scratch;
    int                  *refused; /* by last node: groups of so many nodes cannot be used; stays when planning begins anew */
    int                  *order;   /* by place: the node, of a group the last one */
    int                   place_count;
    gpunn__group         *groups;
    int                   group_count;
    int                  *ids; /* of the tensors of matched groups */
    int                   id_count;
    bool                  again;   /* planning must begin anew, since another group has been refused */
    bool                  repeats; /* steps that are being made have been made before */
    int                   pass;    /* that is being made */
} gpunn__builder;

GPUNN__INTERNAL int gpunn__new_slot(gpunn__builder *b, size_t bytes, int first);

GPUNN__INTERNAL gpunn__slot *gpunn__slot_of(gpunn__plan *plan, int slot);

GPUNN__INTERNAL bool gpunn__bind(gpunn__builder *b, void **pointer, gpunn__place place, int index);

/* Its captured runs. */
GPUNN__INTERNAL void gpunn__plan_forget(gpunn_device *dev, gpunn__plan *plan);

GPUNN__INTERNAL void gpunn__plan_free(gpunn_device *dev, gpunn__plan *plan);

/* Drops the plans behind the first that are more, or hold more bytes, than the model may keep. */
GPUNN__INTERNAL void gpunn__limit_plans(gpunn_model *model);

/* What messages call a tensor. */
GPUNN__INTERNAL const char *gpunn__called(const gpunn_tensor *t);

/* Marks in `needed` what the already marked tensors are computed from. */
GPUNN__INTERNAL void gpunn__mark_operands(const gpunn_model *model, bool *needed);

/* Training steps compute kept tensors too when these need no input that the loss does not need. */
GPUNN__INTERNAL void gpunn__mark_kept(const gpunn_model *model, bool *needed, bool *scratch);

/* Runs that read a state make its assignments when these need no input that the outputs do not need. */
GPUNN__INTERNAL void gpunn__mark_assigns(const gpunn_model *model, bool training, bool *needed, bool *scratch);

/* Images of which memory can tell where their channels are. */
GPUNN__INTERNAL bool gpunn__has_layouts(const gpunn_tensor *t);

/* Values that are their first operand under another name: no step. */
GPUNN__INTERNAL bool gpunn__is_alias(const gpunn__plan *plan, const gpunn_tensor *t);

/* Whether a node meets other ranks in this plan. */
GPUNN__INTERNAL bool gpunn__meets_ranks(const gpunn__plan *plan, const gpunn_tensor *t);

GPUNN__INTERNAL bool gpunn__is_output(const gpunn__plan *plan, const gpunn_tensor *t);

/* A value that somebody reads under its own name cannot be merged away. */
GPUNN__INTERNAL bool gpunn__is_visible(const gpunn__plan *plan, const gpunn_tensor *t);

/* What reads a state must do so at its place. */
GPUNN__INTERNAL bool gpunn__reads_state(const gpunn__builder *b, const gpunn_tensor *t);

GPUNN__INTERNAL void gpunn__mark_roots(gpunn__builder *b);

GPUNN__INTERNAL void gpunn__mark_chains(gpunn__builder *b);

GPUNN__INTERNAL gpunn_dtype gpunn__half_of(const gpunn_model *model);

/* An inference-only model of precision BF16 or F16 keeps weights that only products and embeddings read in these 16 bits. Looks
 * for them among those that have no memory yet. */
GPUNN__INTERNAL void gpunn__find_narrow(gpunn_model *model);

/* As which dtype memory has a weight. */
GPUNN__INTERNAL gpunn_dtype gpunn__kept_as(const gpunn_tensor *t);

/* That ops which were added, or another device, read the narrow weights too. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__check_narrow(const gpunn__builder *b);

GPUNN__INTERNAL void gpunn__mark_storage(gpunn__builder *b);

/* NULL: there is none, or it comes with another one. */
GPUNN__INTERNAL const gpunn_tensor *gpunn__operand_of(const gpunn__plan *plan, const gpunn_tensor *t, int i);

/* Whether node t can give operand i a gradient (if it is F32). */
GPUNN__INTERNAL bool gpunn__has_slope(const gpunn_tensor *t, int i);

GPUNN__INTERNAL bool gpunn__passes_gradient(const gpunn__builder *b, const gpunn_tensor *node, int operand);

GPUNN__INTERNAL gpunn_tensor *gpunn__member(const gpunn__builder *b, const gpunn__group *group, int number);

GPUNN__INTERNAL const gpunn_kernel_program *gpunn__program(const gpunn__builder *b, const gpunn__group *group, bool backward);

/* A node's gradient in memory `root`, as the group reads it: and changes it, if that is asked for. NULL: it does not. */
GPUNN__INTERNAL const gpunn_kernel_operand *gpunn__gradient_operand(const gpunn__builder *b, const gpunn__group *group, int root,
                                                                    bool changes);

/* Whether training wants the gradient of an external from the group. */
GPUNN__INTERNAL bool gpunn__group_passes(const gpunn__builder *b, const gpunn__group *group, const gpunn_tensor *external);

GPUNN__INTERNAL bool gpunn__group_has_backward(const gpunn__builder *b, const gpunn__group *group);

/* Where a group wants the channels of its images. */
GPUNN__INTERNAL bool gpunn__group_wants_channels_last(const gpunn__builder *b, const gpunn__group *group);

/* Images whose channels stand elsewhere: the group needs a copy of them. */
GPUNN__INTERNAL bool gpunn__group_relayouts(const gpunn__builder *b, const gpunn__group *group, const gpunn_tensor *t);

enum { GPUNN__LEFT_OUT = 127 }; /* an operand that is not there; more tensors a pattern cannot number */

/* Finds the kernel's pattern at the model's tensor t, its last node, and writes all ids. Nodes that the last one does not depend
 * on are looked for among all tensors. */
GPUNN__INTERNAL bool gpunn__find_pattern(const gpunn_model *model, const gpunn_kernel *kernel, const gpunn_tensor *t,
                                         int *assigned);

GPUNN__INTERNAL void gpunn__mark_groups(gpunn__builder *b);

/* Planning begins anew, without the group. */
GPUNN__INTERNAL bool gpunn__refuse_group(gpunn__builder *b, const gpunn__group *group);

GPUNN__INTERNAL bool gpunn__mark_order(gpunn__builder *b);

enum {
    GPUNN__WEIGHT_ALIGN = 16
}; /* floats; of a model's weights the first is 1, the second where F16 training keeps its loss scale */

/* Floats with the zeros behind them. */
GPUNN__INTERNAL int64_t gpunn__aligned(int64_t count);

/* Of a model's weights: parameters that decay, other parameters, the rest, narrow ones; -1: of none. */
enum { GPUNN__NARROW_RANGE = 3, GPUNN__WEIGHT_RANGES };
GPUNN__INTERNAL int gpunn__weight_range(const gpunn_tensor *t);

/* As many floats as a weight's memory has. */
GPUNN__INTERNAL int64_t gpunn__floats_of(const gpunn_tensor *t);

GPUNN__INTERNAL bool gpunn__is_lent(const gpunn_tensor *t);

GPUNN__INTERNAL void gpunn__mark_parts(gpunn__builder *b);

GPUNN__INTERNAL void gpunn__describe(const gpunn__plan *plan, gpunn_value *value, const gpunn_tensor *t);

GPUNN__INTERNAL void gpunn__set_operation(gpunn_step *step, const gpunn__operation *operation);

/* Appends an empty step, named after a node, with room for that many operands. NULL: out of memory. */
GPUNN__INTERNAL gpunn_step *gpunn__new_step(gpunn__builder *b, const gpunn_tensor *t, bool backward, int input_count);

/* A step of a node as it stands, its operands described; more: room for that many behind them. */
GPUNN__INTERNAL gpunn_step *gpunn__node_step(gpunn__builder *b, const gpunn_tensor *t, bool backward, int more);

/* Points a step at memory of a slot, whose life reaches at least to that step. */
GPUNN__INTERNAL bool gpunn__use_slot(gpunn__builder *b, void **pointer, int index, int at);

GPUNN__INTERNAL bool gpunn__read_value(gpunn__builder *b, gpunn_value *value, const gpunn_tensor *t, int at);

/* Where a step wants the channels of an operand, or of its gradient. */
GPUNN__INTERNAL bool gpunn__wants_channels_last(const gpunn__builder *b, const gpunn_tensor *t, int operand);

/* An operand, and with it its gradient, whose channels are not where the step of t wants them. */
GPUNN__INTERNAL bool gpunn__is_misplaced(const gpunn__builder *b, const gpunn_tensor *t, int operand);

GPUNN__INTERNAL bool gpunn__read_operand(gpunn__builder *b, gpunn_value *value, const gpunn_tensor *t, int operand, int at);

/* dim in the order in which memory has it, as a value of its own. */
GPUNN__INTERNAL void gpunn__as_stored(gpunn_value *value, bool last);

GPUNN__PRIVATE const int gpunn__to_first[4] = {0, 3, 1, 2},
                         gpunn__to_channels_last[4] = {0, 2, 3, 1}; /* orders of permutations */

/* A permutation of images to channels last, or from there. */
GPUNN__INTERNAL gpunn_step *gpunn__relayout_step(gpunn__builder *b, const gpunn_tensor *image, bool to_last, bool backward);

/* The step that makes a copy of an image that t reads, with its channels where they are wanted, unless there is one already. */
GPUNN__INTERNAL bool gpunn__relayout_operand(gpunn__builder *b, const gpunn_tensor *t, int operand, bool to_last);

/* The steps that make copies of t's operands where it cannot read them as they are, unless there are some already. */
GPUNN__INTERNAL bool gpunn__copy_operands(gpunn__builder *b, const gpunn_tensor *t);

/* A slot for what a step gives in 16 bits beside `value`, a norm's one or operand i of a group; -1: out of memory. */
GPUNN__INTERNAL int gpunn__write_half(gpunn__builder *b, gpunn_step *step, int i, const gpunn_value *value, int at);

/* Whether a step makes F32 values of node t of which products want 16 bits. */
GPUNN__INTERNAL bool gpunn__wants_half(const gpunn__builder *b, const gpunn_tensor *t);

/* The step that computes `end`, from the layer at the head of its chain. */
GPUNN__INTERNAL bool gpunn__forward_step(gpunn__builder *b, const gpunn_tensor *end);

/* The step of an assignment, which writes the state's memory. */
GPUNN__INTERNAL bool gpunn__assign_step(gpunn__builder *b, const gpunn_tensor *t);

/* An assignment whose result nobody reads in this run is made at its end. */
GPUNN__INTERNAL bool gpunn__is_late(const gpunn__builder *b, const gpunn_tensor *t);

GPUNN__INTERNAL bool gpunn__late_steps(gpunn__builder *b);

/* An empty RELAYOUT step for `count` of them. */
GPUNN__INTERNAL gpunn_step *gpunn__filter_step(gpunn__builder *b, const gpunn_tensor *convolution, bool backward, int count);

GPUNN__INTERNAL bool gpunn__relayout_filters(gpunn__builder *b);

/* Whether the gradient of a convolution's weight waits for the last step. Nobody else may contribute to it. */
GPUNN__INTERNAL bool gpunn__gathers_filter(const gpunn__builder *b, const gpunn_tensor *t);

#endif /* GPUNN__PLAN_STEPS_H */
