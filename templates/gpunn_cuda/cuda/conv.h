#ifndef GPUNN__CUDA_CUDA_CONV_H
#define GPUNN__CUDA_CUDA_CONV_H
#include "base/libraries.h"
#include "base/shared.h"

/* ==== >>cuda/conv ======================================================================================== *
 * Convolutions through cuDNN's graph API. A convolution becomes a graph of one to four operations, for which
 * cuDNN's heuristics propose engines, best first. gpunn takes the first engine that the device can run and
 * that meets its guarantees (gpunn__dnn_suits). The choice is made once per gpunn__convolution and cached. */
#if GPUNN__CUDNN

enum {
    GPUNN__DNN_DESCRIPTORS = 256, /* most descriptors of one builder */
    GPUNN__DNN_CONFIGS = 96,      /* most engine configurations of one heuristic */
    GPUNN__DNN_NOTES = 32,        /* most numerical notes of one engine */
    GPUNN__DNN_CANDIDATES = 8,    /* most plans that a benchmark compares */
    GPUNN__DNN_WARM = 1,          /* warm-up runs of a plan before it is timed */
    GPUNN__DNN_TIMED = 4,         /* timed runs of a plan */
};

typedef struct gpunn__dnn_plan {
    cudnnBackendDescriptor_t descriptor;
    int64_t                  workspace;
} gpunn__dnn_plan;

/* The cache entry of a gpunn__convolution: its plans, or why there are none. */
typedef struct gpunn__dnn_choice {
    bool searched;
    /* 0: no plan; above 1: the next run outside a capture compares them */
    int             count;
    gpunn__dnn_plan plans[GPUNN__DNN_CANDIDATES]; /* a run executes the first */
    char            reason[256];                  /* why there is no plan */
} gpunn__dnn_choice;

/* Builds cuDNN descriptors and owns those in `made`. After a failure, which status and text describe, it
 * makes no more calls. */
typedef struct gpunn__dnn_builder {
    gpunn__cuda                *cuda;
    const gpunn__convolution   *conv; /* exactly one of conv and attention is non-NULL */
    const gpunn__dnn_attention *attention;
    gpunn_status                status;
    char                        text[256];
    int                         count;
    cudnnBackendDescriptor_t    descriptors[GPUNN__DNN_DESCRIPTORS];
} gpunn__dnn_builder;

/* Converts a cuDNN status to a gpunn status. On failure, text receives the call's name, cuDNN's name of the
 * error and its detail. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_check(gpunn__cuda *cuda, cudnnStatus_t status, const char *call,
                                              char *text, size_t size);

/* Calls a cuDNN function unless an earlier call has failed. Yields true if the call succeeded. */
#define GPUNN__DNN(builder, function, ...)                                                               \
    ((builder)->status == GPUNN_OK &&                                                                    \
     ((builder)->status = gpunn__dnn_check((builder)->cuda,                                              \
                                           (builder)->cuda->libraries->function(__VA_ARGS__), #function, \
                                           (builder)->text, sizeof(builder)->text)) == GPUNN_OK)

/* Creates a descriptor, which the builder owns. Returns NULL after a failure. */
GPUNN__INTERNAL cudnnBackendDescriptor_t gpunn__dnn_make(gpunn__dnn_builder          *builder,
                                                         cudnnBackendDescriptorType_t type);

/* Sets an attribute to `count` values of the given type. The next three set one integer, data type or
 * descriptor. */
GPUNN__INTERNAL void gpunn__dnn_set(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                    int64_t count, const void *values);

GPUNN__INTERNAL void gpunn__dnn_set_int(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                        cudnnBackendAttributeName_t name, int64_t value);

GPUNN__INTERNAL void gpunn__dnn_set_type(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                         cudnnBackendAttributeName_t name, gpunn_dtype dtype);

GPUNN__INTERNAL void gpunn__dnn_link(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                     cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t other);

/* Fails unless all sizes fit into 32 bits. cuDNN reports a larger one and then divides by 0 (9.14). */
GPUNN__INTERNAL void gpunn__dnn_check_sizes(gpunn__dnn_builder *builder, int64_t count, const int64_t *sizes);

GPUNN__INTERNAL void gpunn__dnn_finalize(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor);

/* Creates the graph of these operations. */
GPUNN__INTERNAL cudnnBackendDescriptor_t gpunn__dnn_operations(gpunn__dnn_builder *builder, int64_t count,
                                                               const cudnnBackendDescriptor_t *operations);

/* Clears GPUNN_ERR_UNSUPPORTED, so that the next candidate can be tried. text keeps the reason. */
GPUNN__INTERNAL void gpunn__dnn_clear_unsupported(gpunn__dnn_builder *builder);

/* Destroys the plans of a gpunn__dnn_choice. */
GPUNN__INTERNAL void gpunn__dnn_forget(gpunn__cuda *cuda, void *value);

/* Reports a failure of cuDNN. GPUNN_ERR_UNSUPPORTED becomes GPUNN_ERR_DEVICE: what was prepared must run. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_fail(gpunn__cuda *cuda, gpunn_status status, const char *text);

/* Fills choice with plans for the graph, or with the reason why there is none; both return GPUNN_OK. Either
 * conv or attention is non-NULL. Nondeterministic engines are tried last, and never if the device is opened
 * as deterministic. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_search(
    gpunn__cuda *cuda, const gpunn__convolution *conv, const gpunn__dnn_attention *attention,
    cudnnBackendDescriptor_t (*make_graph)(gpunn__dnn_builder *builder), gpunn__dnn_choice *choice);

/* Runs a plan on tensors given as ids (names) and device pointers. If there are several plans and the graph
 * is repeatable (no output is also an input), it times them first and keeps the fastest. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_launch(gpunn__cuda *cuda, gpunn__dnn_choice *choice, int64_t count,
                                               const int64_t *names, const void *const *pointers,
                                               void *workspace, bool repeatable);
#endif

#ifndef GPUNN__EMULATOR
GPUNN__INTERNAL bool gpunn__dnn_available(gpunn__cuda *cuda)
{
    return gpunn__libraries_dnn(cuda) == GPUNN_OK;
}

GPUNN__INTERNAL size_t gpunn__dnn_version(const gpunn__cuda *cuda)
{
    return cuda->libraries->dnn_module.version;
}
#endif

typedef enum gpunn__dnn_kind {
    GPUNN__DNN_CONVOLUTION,
    GPUNN__DNN_DEPTHWISE,
    GPUNN__DNN_ATTENTION
} gpunn__dnn_kind;

/* Logs a warning that says why an available cuDNN does not do a step, once per device and kind. */
GPUNN__INTERNAL void gpunn__dnn_slower(gpunn__cuda *cuda, const gpunn_step *step, gpunn__dnn_kind kind,
                                       const char *why);

#endif /* GPUNN__CUDA_CUDA_CONV_H */
