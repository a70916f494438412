#ifndef GPUNN__CPU_PIXELS_H
#define GPUNN__CPU_PIXELS_H
#include "cpu/vectors.h"
#include "cpu/context.h"

/* ==== >>cpu/pixels ======================================================================================= *
 * Images in two layouts: planes, one for each channel, and pixel-major, [pixel][channel]. */

/* Converts planes to dst[pixel][channel]; stride: distance between pixels of dst. */
GPUNN__INTERNAL void gpunn__to_pixels(const float *src, int64_t plane, int64_t channels, int64_t pixels,
                                      float *dst, int64_t stride);

/* A thread's share in converting the planes of n images, `cells` each, to pixel-major layout. */
GPUNN__INTERNAL void gpunn__images_to_pixels(const float *src, int64_t n, int64_t channels, int64_t cells,
                                             float *dst, int index, int threads);

/* Copies images with channels last to planes, or planes to channels last. */
GPUNN__INTERNAL void gpunn__copy_images(const gpunn_value *images, const float *from, float *to,
                                        bool to_planes);

/* Where results go: dst = relu(src * scale + shift + residual), or dst += src. */
typedef struct gpunn__planes {
    float  *dst;
    int64_t plane;
    /* per channel, per channel, same layout as dst; each may be NULL */
    const float *scale, *shift, *residual;
    bool         relu, add;
    bool         last; /* dst is pixel-major, `plane` floats from pixel to pixel; without add */
} gpunn__planes;

/* Converts src[pixel][channel], `stride` floats from pixel to pixel, to the layout of `to`. */
GPUNN__INTERNAL void gpunn__from_pixels(const float *src, int64_t stride, int64_t channels, int64_t pixels,
                                        const gpunn__planes *to);

/* The same results from channel c and cell `at` on. */
GPUNN__INLINE gpunn__planes gpunn__planes_from(gpunn__planes to, int64_t c, int64_t at)
{
    to.dst += at;
    if (to.residual) to.residual += at;
    if (to.scale) to.scale += c;
    if (to.shift) to.shift += c;
    return to;
}

#endif /* GPUNN__CPU_PIXELS_H */
