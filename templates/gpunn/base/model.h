#ifndef GPUNN__BASE_MODEL_H
#define GPUNN__BASE_MODEL_H
#include "base/structs.h"

/* ==== >>base/model ====================================================================================== */
/* Creates and frees models, and finds tensors by name or layer. */
/* Bytes of a sparse table's gradient with this capacity. */
GPUNN__INTERNAL size_t gpunn__compact_bytes(const gpunn_tensor *t, int64_t capacity);

/* Bytes of so many entries of a sparse table that are gathered from all ranks, without the workspace. */
GPUNN__INTERNAL size_t gpunn__gathered_bytes(const gpunn_tensor *t, int64_t entries);

/* Precision that the model's device actually uses. */
GPUNN__INTERNAL gpunn_precision gpunn__precision_of(const gpunn_model *model);

/* Logs a warning if the device lacks the model's precision. Call it once the model is on its device. */
GPUNN__INTERNAL void gpunn__log_precision(const gpunn_model *model);

/* Fails if the dtype is a format of blocks and the program leaves those out. name: what has the dtype. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__check_blocks(gpunn_device *dev, const char *caller, const char *name,
                                                  gpunn_dtype dtype);

/* Whether a model on this device can store its weights as .weights says. */
GPUNN__INTERNAL bool gpunn__weights_fit(gpunn_device *dev, const char *caller, const gpunn_model_args *args);

/* FNV-1a hash of a text. */
GPUNN__INTERNAL uint32_t gpunn__hash(const char *text);

/* First tensor with that name or layer; NULL: none. */
GPUNN__INTERNAL gpunn_tensor *gpunn__index_find(gpunn_model *model, gpunn__key key, const char *text);

/* Makes space in the index for one more tensor; false on an error. */
GPUNN__INTERNAL bool gpunn__index_grow(gpunn_model *model, gpunn__key key);

/* Adds t to the index, which must have space. Of a layer's tensors only the first is kept. */
GPUNN__INTERNAL void gpunn__index_add(gpunn_tensor *t, gpunn__key key);

/* Removes t from the index, if it is there. */
GPUNN__INTERNAL void gpunn__index_remove(gpunn_tensor *t, gpunn__key key);

/* Waits for work on the bound DLPack memory, then calls its deleter. */
GPUNN__INTERNAL void gpunn__dlpack_release(gpunn_device *dev, gpunn_tensor *t);

/* Frees the gradient of a sparse table, if there is one. */
GPUNN__INTERNAL void gpunn__compact_free(gpunn_device *dev, gpunn_tensor *t);

/* Frees a tensor with all that it owns. */
GPUNN__INTERNAL void gpunn__tensor_free(gpunn_device *dev, gpunn_tensor *t);

struct gpunn_session {
    gpunn_model *model;
    int          states;
    char        *memory; /* values of all states, each at a multiple of GPUNN__ALIGN bytes */
    size_t       bytes;
};

/* Frees a session and its values; NULL is allowed. */
GPUNN__INTERNAL void gpunn__session_free(gpunn_device *dev, gpunn_session *session);

/* Frees the record of an adapter, whose tensors stay. */
GPUNN__INTERNAL void gpunn__adapter_free(gpunn_device *dev, gpunn__adapter *adapter);

/* Frees a model that is closed and has no optimizers, loaders or sessions left. */
GPUNN__INTERNAL void gpunn__model_release(gpunn_model *model);

#endif /* GPUNN__BASE_MODEL_H */
