#ifndef GPUNN__CPU_CONV_H
#define GPUNN__CPU_CONV_H
#include "cpu/gemm.h"
#include "cpu/pixels.h"

/* A convolution with three axes. A transposed convolution is described by the convolution whose dx it
 * computes. */
typedef struct gpunn__conv {
    int threads;
    /* cg, og: input and output channels per group */
    int64_t      n, c, d, h, w, oc, od, oh, ow, groups, cg, og;
    int64_t      kd, kh, kw, sd, sh, sw, pd, ph, pw, dd, dh, dw; /* kernel, stride, padding, dilation */
    int64_t      taps, k;                                        /* k: cells of a window, taps * cg */
    int64_t      pixels;                                         /* output pixels of the batch */
    const float *x, *weight, *dy;
    float       *y, *dx, *dweight; /* NULL: not needed */
    bool         add_y, add_dx, add_dweight;
    /* Epilogue of a forward step, for y or, in a transposed convolution, dx. Per channel; scale NULL: 1. */
    float       *scale, *shift;
    const float *residual;
    bool         relu;
    float        most; /* of the relu; 0: any. Depthwise and pointwise, with channels last */
    /* an op that follows, with channels last; NULL: none. cpu: computes it on the calling thread */
    const gpunn__operation *activation;
    const gpunn_attributes *activation_attr;
    gpunn__cpu             *cpu;
    /* y and residual are [n][h][w][channels], and x unless it has planes; forward only */
    bool last, planes;
    /* rows of the image before the first one in x, of the result before the first one in y */
    int64_t x_first, y_first;
} gpunn__conv;

/* Allocates the workspace piece by piece. With base NULL it only measures. */
typedef struct gpunn__space {
    float *base;
    size_t bytes;
} gpunn__space;

GPUNN__INLINE float *gpunn__take(gpunn__space *space, int64_t floats)
{
    float *at = space->base ? space->base + space->bytes / sizeof(float) : NULL;
    space->bytes += ((size_t)floats * sizeof(float) + GPUNN__ALIGN - 1) / GPUNN__ALIGN * GPUNN__ALIGN;
    return at;
}

/* Applies the activation to count elements of y in place. */
GPUNN__INTERNAL void gpunn__conv_activate(const gpunn__conv *v, float *y, int64_t count);

/* Describes any convolution with three axes. A transposed convolution is described by the convolution whose
 * dx it computes: its operand plays the role of dy. */
GPUNN__INTERNAL gpunn__conv gpunn__conv_shape(const gpunn__cpu *cpu, const gpunn_step *step);

/* Combines the bias and a fused batch norm into scale and shift per channel. */
GPUNN__INTERNAL void gpunn__conv_epilogue(const gpunn_step *step, gpunn__conv *v, gpunn__space *space);

/* Whether the windows are single pixels, as far apart as those of the result. */
GPUNN__INLINE bool gpunn__conv_is_pointwise(const gpunn__conv *v)
{
    return v->taps * v->sd * v->sh * v->sw == 1 && v->pd + v->ph + v->pw == 0;
}

/* Packs the weights of a pointwise convolution with channels last and one group. */
GPUNN__INTERNAL void gpunn__pointwise_pack(const gpunn__conv *v, float *packed);

/* Computes rows [begin, end) of its first image. */
GPUNN__INTERNAL void gpunn__pointwise_rows(const gpunn__conv *v, float *packed, int64_t begin, int64_t end);

/* Whether each channel of images with channels last has a filter of its own. */
GPUNN__INLINE bool gpunn__conv_is_depthwise(const gpunn__conv *v)
{
    return v->last && v->cg == 1 && v->og == 1;
}

/* Floats that the packed weights of a depthwise convolution take. */
GPUNN__INLINE int64_t gpunn__depthwise_floats(const gpunn__conv *v)
{
    return v->taps * v->c;
}

/* Packs weight [channel][tap] as [tap][channel], multiplied by the scale of the channel. */
GPUNN__INTERNAL void gpunn__depthwise_pack(const gpunn__conv *v, float *packed);

/* Computes pixels [x, x_end) of a line; lines are numbered through the batch. */
GPUNN__INTERNAL void gpunn__depthwise_line(const gpunn__conv *v, const float *packed, int64_t line, int64_t x,
                                           int64_t x_end);

/* Computes a depthwise convolution. packed receives the weights unless it is ready. */
GPUNN__INTERNAL void gpunn__depthwise_run(const gpunn__conv *v, float *packed, bool ready);

/* A step with fused.strips. */
GPUNN__INTERNAL void gpunn__cpu_run_strips(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action);

/* gpunn_backend.strips */
GPUNN__INTERNAL bool gpunn__cpu_strips(void *context, const gpunn_step *steps);

#endif /* GPUNN__CPU_CONV_H */
