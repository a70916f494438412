#ifndef GPUNN__GRAPH_INFER_H
#define GPUNN__GRAPH_INFER_H
#include "base/forward_declarations.h"
#include "graph/tensors.h"

/* ==== >>graph/infer ====================================================================================== *
 * Infers dtype and shape of each op's result from its operands and attributes. GPUNN_OTHER_OPS names the
 * rules. Rules see no tensors, so they can be applied to any shapes. */
/* Dtype and shape of a value without its elements (torch's meta tensor). */
typedef struct gpunn__meta {
    gpunn_dtype        dtype; /* GPUNN_DTYPE_DEFAULT: an absent operand */
    int                rank;
    int64_t            dim[GPUNN_MAX_RANK];
    const gpunn_model *model; /* whose named sizes dim uses; NULL: no named sizes */
} gpunn__meta;

struct gpunn__inference {
    const gpunn__call      *call; /* for the beginning of error messages */
    gpunn_op                op;
    const gpunn_attributes *attr;
    int                     count;
    const gpunn__meta      *in;  /* [count] */
    gpunn__meta            *out; /* F32 in the shape of in[0], until the rule changes it */
    const char             *signature;
};

/* Dtype and shape of a tensor. */
GPUNN__INTERNAL gpunn__meta gpunn__meta_of(const gpunn_tensor *t);

/* Text of a shape for messages. */
GPUNN__INTERNAL const char *gpunn__meta_text(const gpunn__meta *meta, char text[128]);

GPUNN__INTERNAL bool gpunn__same_dims(const gpunn__meta *a, const gpunn__meta *b);

/* Checks that axes first .. last of x fit an int. They may be named sizes if `named`, but not depend on the
 * batch. */
GPUNN__INTERNAL bool gpunn__axes_fit(const gpunn__call *call, gpunn__meta x, int first, int last, bool named);

/* The same for axes whose sizes must be fixed. */
GPUNN__INTERNAL bool gpunn__axes_are_fixed(const gpunn__call *call, gpunn__meta x, int first, int last);

/* Checks the axes of x [n, channels, ...]; the spatial ones may be named sizes. */
GPUNN__INTERNAL bool gpunn__image_fits(const gpunn__call *call, gpunn__meta x);

/* Checks that x has a rank from lowest to highest; layout describes the axes in the message. */
GPUNN__INTERNAL bool gpunn__has_rank(const gpunn__call *call, gpunn__meta x, int lowest, int highest,
                                     const char *layout);

/* Checks that x is [n, channels, ...] with that many spatial axes, none of which is the batch. */
GPUNN__INTERNAL bool gpunn__has_axes(const gpunn__call *call, gpunn__meta x, int axes);

/* Checks that a tensor broadcasts to x's shape. */
GPUNN__INTERNAL bool gpunn__broadcasts_to(const gpunn__call *call, const gpunn_tensor *t, const char *name,
                                          const gpunn_tensor *x, const char *x_name);

/* Checks that logits [n, classes, ...] and labels [n, ...] match. */
GPUNN__INTERNAL bool gpunn__classes_fit(const gpunn__call *call, gpunn__meta logits, gpunn__meta labels);

/* Computes the spatial sizes of the result of a window that slides over x [n, c, ...]. */
GPUNN__INTERNAL bool gpunn__window_rule(const gpunn__inference *i);

/* torch's factor from outputs to cells of x along an axis; scale 0: not set. */
GPUNN__INTERNAL float gpunn__resize_ratio(int64_t in, int64_t out, bool align_corners, double scale);

/* clang-format off */
GPUNN__PRIVATE const char *const gpunn__recurrent_names[GPUNN__RECURRENT_OPERANDS] = {
    "x", "lengths", "h_0", "c_0", "reset", "weight_ih", "weight_hh", "bias_ih", "bias_hh",
    "weight_ih_reverse", "weight_hh_reverse", "bias_ih_reverse", "bias_hh_reverse"};
/* clang-format on */

/* Infers dtype and shape of the result; false on an error. */
GPUNN__INTERNAL bool gpunn__infer(const gpunn__call *call, const gpunn__operation *operation,
                                  const gpunn_attributes *attr, const gpunn__meta *in, int count,
                                  gpunn__meta *out);

#endif /* GPUNN__GRAPH_INFER_H */
