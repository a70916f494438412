#ifndef GPUNN__BASE_MODEL_H
#define GPUNN__BASE_MODEL_H
#include "base/structs.h"

/* ==== >>base/model ================================================================================================= */
GPUNN__INTERNAL gpunn_precision gpunn__precision_of(const gpunn_model *model);

/* Once the model is on its device. */
GPUNN__INTERNAL void gpunn__tell_precision(const gpunn_model *model);

GPUNN__INTERNAL uint32_t gpunn__hash(const char *text);

GPUNN__INTERNAL gpunn_tensor *gpunn__index_find(gpunn_model *model, gpunn__key key, const char *text);

/* Room for one more; false after an error. */
GPUNN__INTERNAL bool gpunn__index_grow(gpunn_model *model, gpunn__key key);

/* Puts t there, for which there is room; of a layer's tensors the first stays. */
GPUNN__INTERNAL void gpunn__index_add(gpunn_tensor *t, gpunn__key key);

GPUNN__INTERNAL void gpunn__index_remove(gpunn_tensor *t, gpunn__key key);

/* Gives what owned memory of the program's back, once no work reads or writes it. */
GPUNN__INTERNAL void gpunn__dlpack_release(gpunn_device *dev, gpunn_tensor *t);

GPUNN__INTERNAL void gpunn__tensor_free(gpunn_device *dev, gpunn_tensor *t);

struct gpunn_session {
    gpunn_model *model;
    int          states;
    char        *memory; /* their values, each from a multiple of GPUNN__ALIGN bytes on */
    size_t       bytes;
};

GPUNN__INTERNAL void gpunn__session_free(gpunn_device *dev, gpunn_session *session);

/* Frees a model that is closed, and has neither optimizers nor loaders or sessions any more. */
GPUNN__INTERNAL void gpunn__model_release(gpunn_model *model);

#endif /* GPUNN__BASE_MODEL_H */
