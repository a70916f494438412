#ifndef GPUNN__API_KERNELS_H
#define GPUNN__API_KERNELS_H
#include "api/backend.h"

/* ==== >>kernels ======================================================================================================= *
 * Fused kernels for one model: python3 -m generator MODEL.json -o NAME writes NAME_kernels.h and NAME_kernels.cu, which define
 * one gpunn_kernel_set. What follows is the contract between those files and this one; programs need only gpunn_use_kernels. */
typedef struct gpunn_kernel_set gpunn_kernel_set;
typedef enum gpunn_kernel_policy {
    GPUNN_KERNELS_AUTO = 0, /* use what fits; log one line with the command that renews the file when some does not */
    GPUNN_KERNELS_STRICT,   /* a set that does not fit the model as it is: GPUNN_ERR_STATE */
    GPUNN_KERNELS_OFF       /* as without; so does the environment variable GPUNN_KERNELS=off */
} gpunn_kernel_policy;
typedef struct gpunn_kernels_args {
    int                 args_;
    gpunn_kernel_policy policy;
} gpunn_kernels_args;
/* Call it when the model is built; set NULL: none any more. The set must outlive the model. Results are those of the single ops
 * but for rounding; dropout draws the same. On a GPU what the library does in fewer launches stays with it: groups so small that
 * it does several in one, in training a batch norm with the sum and the relu behind it, updates of all kinds but NAdam. Errors: a
 * set for another GPUNN_KERNELS_ABI (GPUNN_ERR_UNSUPPORTED), STRICT's. */
GPUNN_API gpunn_status gpunn_use_kernels_(gpunn_model *model, const gpunn_kernel_set *set, gpunn_kernels_args args);
#define gpunn_use_kernels(model, ...) gpunn_use_kernels_((model), GPUNN_NAMED(gpunn_kernels_args, __VA_ARGS__))

#define GPUNN_KERNELS_ABI 7
#define GPUNN_KERNEL_COUNTERS 256

/* Memory that a kernel reads or writes. Tensors of a group are numbered: externals 0, 1, ... and nodes -1, -2, ... */
typedef enum gpunn_kernel_role {
    GPUNN_KERNEL_VALUE = 0, /* of tensor index */
    GPUNN_KERNEL_GRADIENT,  /* of tensor index */
    GPUNN_KERNEL_KEPT       /* number index of what the forward kernel keeps for the backward one */
} gpunn_kernel_role;
typedef struct gpunn_kernel_operand {
    unsigned char role, read, written;
    unsigned char dtype; /* of the CUDA kernel; C kernels compute F32 where it is F16 or BF16 */
    unsigned char half;  /* F16 or BF16, in which the CUDA kernel can write it besides; 0: it cannot */
    signed char   index;
    /* A gradient that equals another operand's memory after the run (a masked gradient handed on): number of that operand, which
     * is the gradient of a node, read and written in place. Where the plan can, it lets both be one memory and passes NULL here.
     * -1: none. */
    signed char shares;
} gpunn_kernel_operand;
typedef struct gpunn_kernel_call {
    void *const         *data;       /* per operand; NULL: a written one that is not wanted, or an optional one not there */
    const unsigned char *accumulate; /* per operand: += instead of =; only ever set for gradients of externals */
    void *const         *half;       /* CUDA, per operand: receives in 16 bits too what it receives in all; NULL: not wanted */
    int64_t              batch;
    const uint32_t      *sites;  /* per random node of the group, in order: its number among the model's */
    const uint64_t      *random; /* seed, step; CUDA: device memory */
    void                *workspace;
    void                *cache;           /* CPU: cpu_cache bytes that stay between calls; NULL where the program needs none */
    bool                 stale;           /* CPU: weights may have changed since the last call, or there has been none */
    int                  threads;         /* CPU */
    int                  lanes;           /* CPU: floats of its widest vectors */
    int                  multiprocessors; /* CUDA */
    unsigned            *counters;        /* CUDA: GPUNN_KERNEL_COUNTERS zeros in device memory, which it leaves so */
    void                *stream;          /* CUDA: cudaStream_t */
} gpunn_kernel_call;
/* 0: done. GPUNN_ERR_ARGUMENT: a label is no class, or an index no row of its embedding (CPU). Else a cudaError_t,
 * negated (CUDA). */
typedef int (*gpunn_kernel_function)(const gpunn_kernel_call *call);
/* Bytes of workspace; SIZE_MAX: declined, such a batch is too large for this kernel. units: threads, or multiprocessors. */
typedef size_t (*gpunn_kernel_workspace)(int64_t batch, int units);
typedef struct gpunn_kernel_program {     /* one direction of one group */
    const gpunn_kernel_operand *operands; /* NULL: there is no such program */
    int                         operand_count;
    gpunn_kernel_function       cpu; /* NULL: for GPUs alone */
    gpunn_kernel_workspace      cpu_workspace;
    size_t                      cpu_cache; /* bytes of what it makes of weights; evaluation alone has any */
} gpunn_kernel_program;
struct gpunn_kernel_launch { /* the same direction on a GPU; in the table that the .cu file exports */
    gpunn_kernel_function  run;
    gpunn_kernel_workspace workspace;
};

enum { GPUNN_KERNEL_EVALUATION = 0, GPUNN_KERNEL_FORWARD, GPUNN_KERNEL_BACKWARD, GPUNN_KERNEL_DIRECTIONS };

typedef struct gpunn_kernel_node {
    const char        *text;     /* op, attributes, dtype and shape, as gpunn__node_text writes them */
    const signed char *operands; /* numbers of tensors; 127: left out */
    int                operand_count;
} gpunn_kernel_node;
typedef struct gpunn_kernel_kept {
    gpunn_dtype dtype;        /* on CUDA; F32 on the CPU where it is F16 or BF16 */
    int64_t     fixed, batch; /* elements: fixed + batch times the batch size */
} gpunn_kernel_kept;
typedef enum gpunn_kernel_layout {
    GPUNN_KERNEL_ANY = 0,
    GPUNN_KERNEL_CHANNELS_FIRST,
    GPUNN_KERNEL_CHANNELS_LAST
} gpunn_kernel_layout;
/* A group of nodes that one kernel computes, wherever in a model they stand. Nodes that no program writes must be read by
 * nobody outside. */
struct gpunn_kernel {
    const char              *name, *formula;
    const gpunn_kernel_node *nodes; /* in the order of their computation; the last one is an output */
    int                      node_count;
    const char *const       *externals; /* dtype and shape of each */
    int                      external_count;
    const gpunn_kernel_kept *kept;
    int                      kept_count;
    gpunn_kernel_layout      layout; /* of images on CUDA; ANY: all the same */
    /* The last node is the loss, whose gradient is known before: FORWARD writes the gradients of externals too, and there is no
     * BACKWARD. */
    bool                 loss;
    gpunn_kernel_program program[GPUNN_KERNEL_DIRECTIONS];
    /* What counts as the batch in calls and in `kept`, where other sizes vary too: the elements of tensor number `measured` by
     * `each`. each 0: the model's batch. */
    signed char     measured;
    int64_t         each;
    gpunn_precision precision; /* of the products among its nodes, on CUDA: for models of this one alone */
};
typedef struct gpunn_kernel_instance {
    int        kernel;
    const int *tensors; /* ids in the model: nodes, then externals */
} gpunn_kernel_instance;

struct gpunn_kernel_update {
    /* kind and settings must agree, but for lr, weight_decay, maximize and initial_accumulator_value, and half_dtype where half
     * is wanted. */
    gpunn_update_kind kind;
    float             setting[GPUNN_SETTINGS];
    gpunn_dtype       half_dtype;
    int (*cpu)(const gpunn_update *update, const gpunn_update_numbers *numbers, int threads, int lanes); /* lanes: as in a call */
};
typedef struct gpunn_kernel_cuda { /* what the .cu file exports */
    int      abi;
    uint64_t stamp;
    const gpunn_kernel_launch (*launch)[GPUNN_KERNEL_DIRECTIONS]; /* [kernel_count] */
    const gpunn_kernel_update_launch *update;                     /* [update_count] */
} gpunn_kernel_cuda;

struct gpunn_kernel_set {
    int                          abi;   /* GPUNN_KERNELS_ABI */
    uint64_t                     stamp; /* of the header's text; the .cu file was written with it */
    const char                  *name, *version, *spec_sha256, *command;
    const gpunn_kernel          *kernels;
    int                          kernel_count;
    int                          tensor_count; /* of the model with that hash */
    const gpunn_kernel_instance *evaluation, *training;
    int                          evaluation_count, training_count;
    const gpunn_kernel_update   *updates;
    int                          update_count;
    const gpunn_kernel_cuda     *cuda; /* NULL: NAME_kernels.cu is not linked */
};

#endif /* GPUNN__API_KERNELS_H */
