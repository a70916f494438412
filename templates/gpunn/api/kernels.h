#ifndef GPUNN__API_KERNELS_H
#define GPUNN__API_KERNELS_H
#include "api/backend.h"

/* ==== >>kernels ========================================================================================== *
 * Fused kernels for one model. `python3 -m generator MODEL.json -o NAME` writes NAME_kernels.h and
 * NAME_kernels.cu, which define one gpunn_kernel_set. This section is the contract between those files and
 * the library. Programs need only gpunn_use_kernels. */
typedef struct gpunn_kernel_set gpunn_kernel_set;
/* What gpunn_use_kernels does with kernels that match the model, and with those that do not. */
typedef enum gpunn_kernel_policy {
    /* use the kernels that match; if some do not, log one line with the command that regenerates the file */
    GPUNN_KERNELS_AUTO = 0,
    GPUNN_KERNELS_STRICT, /* a set that does not match the current model is GPUNN_ERR_STATE */
    GPUNN_KERNELS_OFF     /* no kernels; the environment variable GPUNN_KERNELS=off does the same */
} gpunn_kernel_policy;
typedef struct gpunn_kernels_args {
    int                 args_;
    gpunn_kernel_policy policy; /* what happens where the set does not match the model */
} gpunn_kernels_args;
/* Sets the fused kernels of a model. Call it after building the model; the set must outlive the model. set
 * NULL removes it. Results equal those of the single ops except for rounding; dropout draws the same numbers.
 * On a GPU the library keeps what it does in fewer launches itself. These are small groups of which it runs
 * several in one launch, batch norms in training with the sum and relu after them, and all updates but NAdam.
 * Errors: GPUNN_ERR_UNSUPPORTED if the set has another GPUNN_KERNELS_ABI, and those of STRICT. */
GPUNN_API gpunn_status gpunn_use_kernels_(gpunn_model *model, const gpunn_kernel_set *set,
                                          gpunn_kernels_args args);
#define gpunn_use_kernels(model, ...) \
    gpunn_use_kernels_((model), GPUNN_NAMED(gpunn_kernels_args, __VA_ARGS__))

#define GPUNN_KERNELS_ABI 7
#define GPUNN_KERNEL_COUNTERS 256

/* Role of the memory that a kernel reads or writes. Tensors of a group are numbered: externals 0, 1, ... and
 * nodes -1, -2, ... */
typedef enum gpunn_kernel_role {
    GPUNN_KERNEL_VALUE = 0, /* value of tensor `index` */
    GPUNN_KERNEL_GRADIENT,  /* gradient of tensor `index` */
    GPUNN_KERNEL_KEPT       /* entry `index` of what the forward kernel keeps for the backward one */
} gpunn_kernel_role;
typedef struct gpunn_kernel_operand {
    unsigned char role, read, written;
    unsigned char dtype; /* for the CUDA kernel; C kernels use F32 instead of F16 or BF16 */
    unsigned char half;  /* F16 or BF16: the CUDA kernel can write this copy too; 0: it cannot */
    signed char   index;
    /* For a gradient that equals another operand's memory after the run (a masked gradient passed on): number
     * of that operand. The latter is the gradient of a node, read and written in place. If possible the plan
     * gives both the same memory and passes NULL here. -1: none. */
    signed char shares;
} gpunn_kernel_operand;
typedef struct gpunn_kernel_call {
    /* per operand; NULL: an output that is not wanted, or an absent optional operand */
    void *const         *data;
    const unsigned char *accumulate; /* per operand: += instead of =; set only for gradients of externals */
    /* CUDA, per operand: receives the same values in 16 bits; NULL: not wanted */
    void *const *half;
    int64_t      batch;
    /* per random node of the group, in order: its number among the model's random nodes */
    const uint32_t *random_streams;
    const uint64_t *random; /* seed, step; CUDA: device memory */
    void           *workspace;
    /* CPU: cpu_cache bytes that persist between calls; NULL if the program needs none */
    void *cache;
    /* CPU: weights may have changed since the last call, or this is the first call */
    bool stale;
    int  threads;         /* CPU */
    int  lanes;           /* CPU: floats per widest vector */
    int  multiprocessors; /* CUDA */
    /* CUDA: GPUNN_KERNEL_COUNTERS zeros in device memory; the kernel leaves them 0 */
    unsigned *counters;
    void     *stream; /* CUDA: cudaStream_t */
} gpunn_kernel_call;
/* Returns 0 on success. CPU: GPUNN_ERR_ARGUMENT if a label is no class or an index is no row of its
 * embedding. CUDA: a negated cudaError_t. */
typedef int (*gpunn_kernel_function)(const gpunn_kernel_call *call);
/* Returns the bytes of workspace. SIZE_MAX: the batch is too large for this kernel. units: threads or
 * multiprocessors. */
typedef size_t (*gpunn_kernel_workspace)(int64_t batch, int units);
typedef struct gpunn_kernel_program {     /* one direction of one group */
    const gpunn_kernel_operand *operands; /* NULL: no such program */
    int                         operand_count;
    gpunn_kernel_function       cpu; /* NULL: GPU only */
    gpunn_kernel_workspace      cpu_workspace;
    size_t                      cpu_cache; /* bytes of data derived from weights; evaluation only */
} gpunn_kernel_program;
struct gpunn_kernel_launch { /* the same direction on a GPU; in the table that the .cu file exports */
    gpunn_kernel_function  run;
    gpunn_kernel_workspace workspace;
};

enum { GPUNN_KERNEL_EVALUATION = 0, GPUNN_KERNEL_FORWARD, GPUNN_KERNEL_BACKWARD, GPUNN_KERNEL_DIRECTIONS };

typedef struct gpunn_kernel_node {
    const char        *text;     /* op, attributes, dtype and shape, as written by gpunn__node_text */
    const signed char *operands; /* tensor numbers; 127: absent */
    int                operand_count;
} gpunn_kernel_node;
typedef struct gpunn_kernel_kept {
    gpunn_dtype dtype;        /* on CUDA; on the CPU F32 instead of F16 or BF16 */
    int64_t     fixed, batch; /* elements: fixed + batch * batch size */
} gpunn_kernel_kept;
typedef enum gpunn_kernel_layout {
    GPUNN_KERNEL_ANY = 0,
    GPUNN_KERNEL_CHANNELS_FIRST,
    GPUNN_KERNEL_CHANNELS_LAST
} gpunn_kernel_layout;
/* A group of nodes that one kernel computes, wherever it occurs in a model. Nodes that no program writes must
 * have no readers outside the group. */
struct gpunn_kernel {
    const char              *name, *formula;
    const gpunn_kernel_node *nodes; /* in order of computation; the last one is an output */
    int                      node_count;
    const char *const       *externals; /* dtype and shape of each */
    int                      external_count;
    const gpunn_kernel_kept *kept;
    int                      kept_count;
    gpunn_kernel_layout      layout; /* of images on CUDA; ANY: irrelevant */
    /* The last node is the loss, whose gradient is known in advance. FORWARD then also writes the gradients
     * of externals, and there is no BACKWARD. */
    bool                 loss;
    gpunn_kernel_program program[GPUNN_KERNEL_DIRECTIONS];
    /* Defines "batch" in calls and in `kept` if other sizes vary too: the elements of tensor `measured`
     * divided by `each`. each 0: the model's batch. */
    signed char measured;
    int64_t     each;
    /* CUDA: precision of its products; the kernel serves only models of this precision */
    gpunn_precision precision;
};
typedef struct gpunn_kernel_instance {
    int        kernel;
    const int *tensors; /* ids in the model: nodes, then externals */
} gpunn_kernel_instance;

struct gpunn_kernel_update {
    /* An update matches if kind and settings are equal, except lr, weight_decay, maximize and
     * initial_accumulator_value. half_dtype must match if half is wanted. */
    gpunn_update_kind kind;
    float             setting[GPUNN_SETTINGS];
    gpunn_dtype       half_dtype;
    /* lanes: as in gpunn_kernel_call */
    int (*cpu)(const gpunn_update *update, const gpunn_update_numbers *numbers, int threads, int lanes);
};
typedef struct gpunn_kernel_cuda { /* exported by the .cu file */
    int      abi;
    uint64_t stamp;
    const gpunn_kernel_launch (*launch)[GPUNN_KERNEL_DIRECTIONS]; /* [kernel_count] */
    const gpunn_kernel_update_launch *update;                     /* [update_count] */
} gpunn_kernel_cuda;

struct gpunn_kernel_set {
    int                          abi;   /* GPUNN_KERNELS_ABI */
    uint64_t                     stamp; /* hash of the header's text; the .cu file has the same one */
    const char                  *name, *version, *spec_sha256, *command;
    const gpunn_kernel          *kernels;
    int                          kernel_count;
    int                          tensor_count; /* number of tensors of the model with that hash */
    const gpunn_kernel_instance *evaluation, *training;
    int                          evaluation_count, training_count;
    const gpunn_kernel_update   *updates;
    int                          update_count;
    const gpunn_kernel_cuda     *cuda; /* NULL: NAME_kernels.cu is not linked */
};

#endif /* GPUNN__API_KERNELS_H */
