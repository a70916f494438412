#include "cpu/pixels.h"

#ifdef GPUNN__VECTORS
typedef int32_t gpunn__quad_bits __attribute__((vector_size(16)));
#endif

/* The 4 x 4 squares are transposed in registers. */
GPUNN__INTERNAL void gpunn__to_pixels(const float *src, int64_t plane, int64_t channels, int64_t pixels,
                                      float *dst, int64_t stride)
{
    int64_t c = 0;
#ifdef GPUNN__VECTORS
    for (; c + 4 <= channels; c += 4) {
        int64_t p = 0;
        for (; p + 4 <= pixels; p += 4) {
            gpunn__quad q[4];
            GPUNN__UNROLL
            for (int i = 0; i < 4; i++) q[i] = *(const gpunn__quad_memory *)(src + (c + i) * plane + p);
            gpunn__transpose4(q);
            GPUNN__UNROLL
            for (int i = 0; i < 4; i++) *(gpunn__quad_memory *)(dst + (p + i) * stride + c) = q[i];
        }
        for (; p < pixels; p++)
            for (int i = 0; i < 4; i++) dst[p * stride + c + i] = src[(c + i) * plane + p];
    }
#endif
    for (; c < channels; c++)
        for (int64_t p = 0; p < pixels; p++) dst[p * stride + c] = src[c * plane + p];
}

GPUNN__INTERNAL void gpunn__images_to_pixels(const float *src, int64_t n, int64_t channels, int64_t cells,
                                             float *dst, int index, int threads)
{
    int64_t p, end;
    gpunn__cpu_part(n * cells, 64, threads, index, &p, &end);
    while (p < end) {
        int64_t image = p / cells, at = p % cells, count = cells - at < end - p ? cells - at : end - p;
        if (count > 64) count = 64;
        gpunn__to_pixels(src + image * channels * cells + at, cells, channels, count, dst + p * channels,
                         channels);
        p += count;
    }
}

/* Finishes pixel-major results. */
GPUNN__VECTORIZED(gpunn__finish_pixels,
                  (const float *src, int64_t stride, int64_t channels, int64_t pixels,
                   const gpunn__planes *to),
                  (src, stride, channels, pixels, to))
{
    for (int64_t p = 0; p < pixels; p++, src += stride) {
        float *GPUNN__RESTRICT y = to->dst + p * to->plane;
        const float           *residual = to->residual ? to->residual + p * to->plane : NULL;
        if (to->scale)
            for (int64_t c = 0; c < channels; c++) y[c] = src[c] * to->scale[c];
        else
            memcpy(y, src, (size_t)channels * sizeof *y);
        if (to->shift)
            for (int64_t c = 0; c < channels; c++) y[c] += to->shift[c];
        if (residual)
            for (int64_t c = 0; c < channels; c++) y[c] += residual[c];
        if (to->relu)
            for (int64_t c = 0; c < channels; c++) y[c] = y[c] <= 0 ? 0 : y[c];
    }
}

GPUNN__INTERNAL void gpunn__from_pixels(const float *src, int64_t stride, int64_t channels, int64_t pixels,
                                        const gpunn__planes *to)
{
    int64_t c = 0;
    if (to->last) {
        gpunn__finish_pixels(src, stride, channels, pixels, to);
        return;
    }
#ifdef GPUNN__VECTORS
    for (; c + 4 <= channels; c += 4) {
        gpunn__quad scale = {1, 1, 1, 1}, shift = {0, 0, 0, 0};
        if (to->scale) scale = *(const gpunn__quad_memory *)(to->scale + c);
        if (to->shift) shift = *(const gpunn__quad_memory *)(to->shift + c);
        int64_t p = 0;
        for (; p + 4 <= pixels; p += 4) {
            gpunn__quad q[4];
            GPUNN__UNROLL
            for (int i = 0; i < 4; i++)
                q[i] = *(const gpunn__quad_memory *)(src + (p + i) * stride + c) * scale + shift;
            gpunn__transpose4(q);
            GPUNN__UNROLL
            for (int i = 0; i < 4; i++) {
                int64_t at = (c + i) * to->plane + p;
                if (to->add) q[i] += *(gpunn__quad_memory *)(to->dst + at);
                if (to->residual) q[i] += *(const gpunn__quad_memory *)(to->residual + at);
                if (to->relu) q[i] = (gpunn__quad)((gpunn__quad_bits)q[i] & ~(gpunn__quad_bits)(q[i] <= 0));
                *(gpunn__quad_memory *)(to->dst + at) = q[i];
            }
        }
        for (; p < pixels; p++)
            for (int i = 0; i < 4; i++) {
                int64_t at = (c + i) * to->plane + p;
                float   v = src[p * stride + c + i] * scale[i] + shift[i];
                if (to->add) v += to->dst[at];
                if (to->residual) v += to->residual[at];
                to->dst[at] = to->relu && v <= 0 ? 0 : v;
            }
    }
#endif
    for (; c < channels; c++)
        for (int64_t p = 0; p < pixels; p++) {
            int64_t at = c * to->plane + p;
            float   v = src[p * stride + c];
            if (to->scale) v *= to->scale[c];
            if (to->shift) v += to->shift[c];
            if (to->add) v += to->dst[at];
            if (to->residual) v += to->residual[at];
            to->dst[at] = to->relu && v <= 0 ? 0 : v;
        }
}

GPUNN__INTERNAL void gpunn__copy_images(const gpunn_value *images, const float *from, float *to,
                                        bool to_planes)
{
    const int64_t channels = images->dim[1], cells = images->dim[2] * images->dim[3];
    for (int64_t i = 0; i < images->dim[0]; i++, from += channels * cells, to += channels * cells)
        if (to_planes) /* the transpose is its own inverse */
            gpunn__to_pixels(from, channels, cells, channels, to, cells);
        else
            gpunn__to_pixels(from, cells, channels, cells, to, channels);
}
