#ifndef GPUNN__CUDA_BASE_LIBRARIES_H
#define GPUNN__CUDA_BASE_LIBRARIES_H
#include "base/context.h"

/* ==== >>base/libraries =================================================================================== *
 * cuBLASLt and cuDNN are opened only after a GPU was found, so a program pays nothing on a machine without
 * one. They stay loaded when the device closes, because unloading them in a living process is not safe. */
#ifndef GPUNN__EMULATOR

#include <cublasLt.h>
#if __has_include(<cudnn.h>) && !defined(GPUNN_NO_CUDNN)
#include <cudnn.h>
#endif
#if defined(CUDNN_MAJOR) && CUDNN_MAJOR == 9
#define GPUNN__CUDNN 1
#else
#define GPUNN__CUDNN 0 /* convolutions are computed as products */
#endif
#ifdef _WIN32
#ifndef NOMINMAX
#define NOMINMAX
#endif
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#else
#include <dlfcn.h>
#include <glob.h>
#include <unistd.h>
#endif

/* clang-format off */
#define GPUNN__LT_FUNCTIONS(X)                                                                               \
    X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy)            \
    X(cublasLtMatmulDescSetAttribute) X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy)           \
    X(cublasLtMatrixLayoutSetAttribute) X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceDestroy) \
    X(cublasLtMatmulPreferenceSetAttribute) X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmul)              \
    X(cublasLtGetStatusString)
#define GPUNN__DNN_FUNCTIONS(X)                                                                        \
    X(cudnnCreate) X(cudnnDestroy) X(cudnnSetStream) X(cudnnGetErrorString) X(cudnnGetLastErrorString) \
    X(cudnnBackendCreateDescriptor) X(cudnnBackendDestroyDescriptor) X(cudnnBackendSetAttribute)       \
    X(cudnnBackendGetAttribute) X(cudnnBackendFinalize) X(cudnnBackendExecute)                         \
    X(cudnnCreateRNNDescriptor) X(cudnnDestroyRNNDescriptor) X(cudnnSetRNNDescriptor_v8)               \
    X(cudnnCreateRNNDataDescriptor) X(cudnnDestroyRNNDataDescriptor) X(cudnnSetRNNDataDescriptor)      \
    X(cudnnCreateTensorDescriptor) X(cudnnDestroyTensorDescriptor) X(cudnnSetTensorNdDescriptor)       \
    X(cudnnGetRNNWeightSpaceSize) X(cudnnGetRNNWeightParams) X(cudnnGetRNNTempSpaceSizes)              \
    X(cudnnRNNForward) X(cudnnRNNBackwardData_v8) X(cudnnRNNBackwardWeights_v8)
/* clang-format on */

typedef struct gpunn__module {
    void  *handle; /* NULL: not open */
    char   path[512];
    size_t version;      /* as reported by the library */
    char   failure[320]; /* why a file that exists does not load */
} gpunn__module;

struct gpunn__libraries {
    gpunn__module    lt_module, dnn_module;
    cublasLtHandle_t lt;
    void            *lt_workspace; /* shared by all products */
    size_t           lt_workspace_bytes;
    bool             dnn_sought;
    gpunn_status     dnn_status; /* result of the search */
#define GPUNN__X(name) decltype(&::name) name;
    GPUNN__LT_FUNCTIONS(GPUNN__X)
#if GPUNN__CUDNN
    cudnnHandle_t dnn;
    GPUNN__DNN_FUNCTIONS(GPUNN__X)
#endif
#undef GPUNN__X
};

#ifdef _WIN32
#define GPUNN__LT_FILE "cublasLt64_%d.dll"
#define GPUNN__DNN_FILE "cudnn64_%d.dll"
#define GPUNN__PLACES "the program's folder, PATH, $%s and $CUDA_PATH\\bin"
#else
#define GPUNN__LT_FILE "libcublasLt.so.%d"
#define GPUNN__DNN_FILE "libcudnn.so.%d"
#define GPUNN__PLACES                                                                                      \
    "the loader's path, $%s, $CUDA_HOME, /usr/local/cuda, the program's folder and the nvidia folders of " \
    "Python's site-packages"
#endif

/* Address of a function of the library; NULL if it lacks it. */
GPUNN__INTERNAL void *gpunn__module_symbol(const gpunn__module *module, const char *name);

/* Opens a library. It is searched by name, then in the folder that the environment variable names, next to
 * the toolkit, next to the program, and in Python's wheels. */
GPUNN__INTERNAL bool gpunn__module_find(gpunn__module *module, const char *file, const char *variable);

/* Sets module->path to the path from which the loader has actually loaded it. */
GPUNN__INTERNAL void gpunn__module_locate(gpunn__module *module, const char *function);
/* Loads the files next to the module that match the pattern. */
GPUNN__INTERNAL void gpunn__module_beside(const gpunn__module *module, const char *pattern);

/* Opens cuDNN on the first call; later calls return the first one's result. */
GPUNN__INTERNAL gpunn_status gpunn__libraries_dnn(gpunn__cuda *cuda);
#endif

/* Makes the libraries use cuda->stream. */
GPUNN__INTERNAL gpunn_status gpunn__libraries_stream(gpunn__cuda *cuda);

#endif /* GPUNN__CUDA_BASE_LIBRARIES_H */
