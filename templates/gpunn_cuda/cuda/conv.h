#ifndef GPUNN__CUDA_CUDA_CONV_H
#define GPUNN__CUDA_CUDA_CONV_H
#include "base/libraries.h"
#include "base/shared.h"

/* ==== >>cuda/conv ================================================================================================== *
 * cuDNN's graphs. A convolution is a graph of one to four operations; heuristics name engines for it, the best first, and the
 * first that the device can run and that keeps gpunn's promises (gpunn__dnn_suits) is taken, once for a gpunn__convolution. */
#if GPUNN__CUDNN

enum {
    GPUNN__DNN_MADE = 256,     /* descriptors of a builder */
    GPUNN__DNN_CONFIGS = 96,   /* of one heuristic */
    GPUNN__DNN_NOTES = 32,     /* of an engine */
    GPUNN__DNN_CANDIDATES = 8, /* plans that a benchmark compares */
    GPUNN__DNN_WARM = 1,       /* runs of each before it is timed, */
    GPUNN__DNN_TIMED = 4,      /* and timed ones */
};

typedef struct gpunn__dnn_plan {
    cudnnBackendDescriptor_t descriptor;
    int64_t                  workspace;
} gpunn__dnn_plan;

/* What the cache holds for a gpunn__convolution. */
typedef struct gpunn__dnn_choice {
    bool            searched;
    int             count;                        /* 0: cuDNN cannot; several: the next run that is not captured compares them */
    gpunn__dnn_plan plans[GPUNN__DNN_CANDIDATES]; /* a run takes the first */
    char            refusal[256];                 /* why there is none */
} gpunn__dnn_choice;

/* Descriptors in the making. After a failure, which status and text describe, nothing more is called. */
typedef struct gpunn__dnn_builder {
    gpunn__cuda                *cuda;
    const gpunn__convolution   *conv; /* one of these two */
    const gpunn__dnn_attention *attention;
    gpunn_status                status;
    char                        text[256];
    int                         count;
    cudnnBackendDescriptor_t    made[GPUNN__DNN_MADE];
} gpunn__dnn_builder;

/* The status of a call of cuDNN; text: its name, what cuDNN calls the error and what it adds. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_check(gpunn__cuda *cuda, cudnnStatus_t status, const char *call, char *text, size_t size);

/* Calls a function of cuDNN unless an earlier call has failed; whether it succeeded. */
#define GPUNN__DNN(builder, function, ...)                                                                                \
    ((builder)->status == GPUNN_OK &&                                                                                     \
     ((builder)->status = gpunn__dnn_check((builder)->cuda, (builder)->cuda->libraries->function(__VA_ARGS__), #function, \
                                           (builder)->text, sizeof(builder)->text)) == GPUNN_OK)

GPUNN__INTERNAL cudnnBackendDescriptor_t gpunn__dnn_make(gpunn__dnn_builder *builder, cudnnBackendDescriptorType_t type);

GPUNN__INTERNAL void gpunn__dnn_set(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                                    const void *values);

GPUNN__INTERNAL void gpunn__dnn_set_int(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                        cudnnBackendAttributeName_t name, int64_t value);

GPUNN__INTERNAL void gpunn__dnn_set_type(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                         cudnnBackendAttributeName_t name, gpunn_dtype dtype);

GPUNN__INTERNAL void gpunn__dnn_link(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                     cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t other);

GPUNN__INTERNAL void gpunn__dnn_finalize(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor);

/* The graph of these operations. */
GPUNN__INTERNAL cudnnBackendDescriptor_t gpunn__dnn_operations(gpunn__dnn_builder *builder, int64_t count,
                                                               const cudnnBackendDescriptor_t *operations);

/* A refusal is no failure: the next one is asked. text keeps it. */
GPUNN__INTERNAL void gpunn__dnn_forgive(gpunn__dnn_builder *builder);

GPUNN__INTERNAL void gpunn__dnn_forget(gpunn__cuda *cuda, void *value);

/* What was prepared and cannot run is not refused: it failed. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_fail(gpunn__cuda *cuda, gpunn_status status, const char *text);

GPUNN__INTERNAL gpunn_status gpunn__dnn_search(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                               const gpunn__dnn_attention *attention,
                                               cudnnBackendDescriptor_t (*make_graph)(gpunn__dnn_builder *builder),
                                               gpunn__dnn_choice *choice);

/* Runs the plan on these tensors, by their names; the fastest of several if they can be compared: repeated, that is. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_launch(gpunn__cuda *cuda, gpunn__dnn_choice *choice, int64_t count, const int64_t *names,
                                               const void *const *pointers, void *workspace, bool repeatable);
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

typedef enum gpunn__dnn_kind { GPUNN__DNN_CONVOLUTION, GPUNN__DNN_DEPTHWISE, GPUNN__DNN_ATTENTION } gpunn__dnn_kind;

/* Tells the log why cuDNN, which is there, does not do a step: once a device for each kind. */
GPUNN__INTERNAL void gpunn__dnn_slower(gpunn__cuda *cuda, const gpunn_step *step, gpunn__dnn_kind kind, const char *why);

#endif /* GPUNN__CUDA_CUDA_CONV_H */
