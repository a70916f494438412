#ifndef GPUNN__CPU_VECTORS_H
#define GPUNN__CPU_VECTORS_H
#include "base/math.h"
#include "cpu/levels.h"

/* ==== >>cpu/vectors ====================================================================================== *
 * Vectors of 16, 8 and 4 floats with one set of names. The kernels for matrix products and convolutions are
 * built from them. A kernel is written once, in a file that is included for each vector type: GPUNN__VECTOR
 * is the type, GPUNN__VECTOR_LANES its floats, GPUNN__TARGET an attribute of its functions.
 * GPUNN__V(_fma) is its gpunn__v16_fma. */
#define GPUNN__JOIN(a, b) a##b
#define GPUNN__OF_TYPE(type, name) GPUNN__JOIN(type, name)
#define GPUNN__V(name) GPUNN__OF_TYPE(GPUNN__VECTOR, name)

#ifdef GPUNN__VECTORS
typedef float gpunn__quad __attribute__((vector_size(16)));
typedef float gpunn__quad_memory __attribute__((vector_size(16), aligned(4), may_alias));

#if defined(__clang__)
#define GPUNN__UNROLL _Pragma("clang loop unroll(full)")
#define GPUNN__SHUFFLE(x, y, a, b, c, d) __builtin_shufflevector(x, y, a, b, c, d)
#else
typedef int gpunn__quad_index __attribute__((vector_size(16)));
#define GPUNN__UNROLL _Pragma("GCC unroll 16")
#if defined(__CUDACC__)
#pragma nv_diag_suppress 1675 /* nvcc does not know that pragma, but passes it on */
#endif
#define GPUNN__SHUFFLE(x, y, a, b, c, d) __builtin_shuffle(x, y, __extension__(gpunn__quad_index){a, b, c, d})
#endif

/* Prefetches `bytes` bytes and returns their end. */
GPUNN__INLINE const char *gpunn__prefetch(const char *from, const int bytes)
{
    GPUNN__UNROLL
    for (int line = 0; line < bytes; line += 64) __builtin_prefetch(from + line);
    return from + bytes;
}

/* Transposes a 4 x 4 square. */
GPUNN__INLINE void gpunn__transpose4(gpunn__quad q[4])
{
    gpunn__quad a = GPUNN__SHUFFLE(q[0], q[1], 0, 4, 1, 5), b = GPUNN__SHUFFLE(q[0], q[1], 2, 6, 3, 7);
    gpunn__quad c = GPUNN__SHUFFLE(q[2], q[3], 0, 4, 1, 5), d = GPUNN__SHUFFLE(q[2], q[3], 2, 6, 3, 7);
    q[0] = GPUNN__SHUFFLE(a, c, 0, 1, 4, 5);
    q[1] = GPUNN__SHUFFLE(a, c, 2, 3, 6, 7);
    q[2] = GPUNN__SHUFFLE(b, d, 0, 1, 4, 5);
    q[3] = GPUNN__SHUFFLE(b, d, 2, 3, 6, 7);
}

/* Keeps x in a register. gcc would read x from memory again for each product, which is more loads than the
 * processor can execute alongside the products. */
#if defined(__x86_64__) && !defined(__clang__)
#define GPUNN__HOLD(x) __asm__("" : "+v"(x))
#else
#define GPUNN__HOLD(x)
#endif

#define GPUNN__VECTOR_SUMS(isa, TARGET, LANES)                                        \
    /* min(relu(x), most); 0 where x <= 0, so NaN stays */                            \
    TARGET GPUNN__INLINE gpunn__##isa gpunn__##isa##_relu(gpunn__##isa x, float most) \
    {                                                                                 \
        x = (gpunn__##isa)((gpunn__##isa##_bits)x & ~(gpunn__##isa##_bits)(x <= 0));  \
        return gpunn__##isa##_min(gpunn__##isa##_set(most), x);                       \
    }                                                                                 \
    TARGET GPUNN__INLINE gpunn__quad gpunn__##isa##_fold(                             \
        gpunn__##isa v) /* sums every fourth lane: four sums */                       \
    {                                                                                 \
        union {                                                                       \
            gpunn__##isa v;                                                           \
            gpunn__quad  quad[LANES / 4];                                             \
        } u;                                                                          \
        u.v = v;                                                                      \
        gpunn__quad s = u.quad[0];                                                    \
        GPUNN__UNROLL                                                                 \
        for (int i = 1; i < LANES / 4; i++) s += u.quad[i];                           \
        return s;                                                                     \
    }                                                                                 \
    /* the sums of four vectors */                                                    \
    TARGET GPUNN__INLINE gpunn__quad gpunn__##isa##_totals(const gpunn__##isa v[4])   \
    {                                                                                 \
        gpunn__quad q[4];                                                             \
        GPUNN__UNROLL                                                                 \
        for (int i = 0; i < 4; i++) q[i] = gpunn__##isa##_fold(v[i]);                 \
        gpunn__transpose4(q);                                                         \
        return (q[0] + q[2]) + (q[1] + q[3]);                                         \
    }

/* Each vector type provides unaligned memory, set, fma, min, max, load, store, gather, half and transpose.
 * min and max return b where a or b is NaN. load and store access the first `count` lanes; load sets the
 * others to 0. gather loads groups of four floats, each group `stride` after the one before. half converts
 * from F16, bfloat from BF16. transpose transposes each 4 x 4 square in four vectors. */
#ifdef GPUNN__AVX512
typedef float gpunn__v16 __attribute__((vector_size(64)));
typedef float gpunn__v16_memory __attribute__((vector_size(64), aligned(4), may_alias));
typedef int   gpunn__v16_bits __attribute__((vector_size(64)));
GPUNN__AVX512 GPUNN__INLINE gpunn__v16 gpunn__v16_set(float x)
{
    return (gpunn__v16)_mm512_set1_ps(x);
}
GPUNN__AVX512 GPUNN__INLINE gpunn__v16 gpunn__v16_fma(gpunn__v16 a, gpunn__v16 b, gpunn__v16 c)
{
    return (gpunn__v16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
GPUNN__AVX512 GPUNN__INLINE gpunn__v16 gpunn__v16_min(gpunn__v16 a, gpunn__v16 b)
{
    return (gpunn__v16)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
}
GPUNN__AVX512 GPUNN__INLINE gpunn__v16 gpunn__v16_max(gpunn__v16 a, gpunn__v16 b)
{
    return (gpunn__v16)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
}
GPUNN__AVX512 GPUNN__INLINE gpunn__v16 gpunn__v16_load(const float *p, int count)
{
    return (gpunn__v16)_mm512_maskz_loadu_ps((__mmask16)(0xffffu >> (16 - count)), p);
}
GPUNN__AVX512 GPUNN__INLINE void gpunn__v16_store(float *p, int count, gpunn__v16 x)
{
    _mm512_mask_storeu_ps(p, (__mmask16)(0xffffu >> (16 - count)), (__m512)x);
}
GPUNN__AVX512 GPUNN__INLINE gpunn__v16 gpunn__v16_gather(const float *p, int64_t stride)
{
    __m512 v = _mm512_insertf32x4(_mm512_castps128_ps512(_mm_loadu_ps(p)), _mm_loadu_ps(p + stride), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(p + 2 * stride), 2);
    return (gpunn__v16)_mm512_insertf32x4(v, _mm_loadu_ps(p + 3 * stride), 3);
}
GPUNN__AVX512 GPUNN__INLINE void gpunn__v16_transpose(gpunn__v16 v[4])
{
    const __mmask16 all = 0xffff; /* without a mask, gcc 12 warns about its own header */
    const __m512    q0 = (__m512)v[0], q1 = (__m512)v[1], q2 = (__m512)v[2], q3 = (__m512)v[3];
    const __m512    a = _mm512_maskz_unpacklo_ps(all, q0, q1), b = _mm512_maskz_unpackhi_ps(all, q0, q1);
    const __m512    c = _mm512_maskz_unpacklo_ps(all, q2, q3), d = _mm512_maskz_unpackhi_ps(all, q2, q3);
    v[0] = (gpunn__v16)_mm512_maskz_shuffle_ps(all, a, c, 0x44);
    v[1] = (gpunn__v16)_mm512_maskz_shuffle_ps(all, a, c, 0xee);
    v[2] = (gpunn__v16)_mm512_maskz_shuffle_ps(all, b, d, 0x44);
    v[3] = (gpunn__v16)_mm512_maskz_shuffle_ps(all, b, d, 0xee);
}
GPUNN__AVX512 GPUNN__INLINE gpunn__v16 gpunn__v16_half(const char *p)
{
    return (gpunn__v16)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i *)(const void *)p));
}
GPUNN__AVX512 GPUNN__INLINE gpunn__v16 gpunn__v16_bfloat(const char *p)
{
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return (gpunn__v16)((gpunn__v16_bits)_mm512_maskz_cvtepu16_epi32(0xffff, half) << 16);
}
GPUNN__VECTOR_SUMS(v16, GPUNN__AVX512, 16)
#endif

#ifdef GPUNN__AVX2
typedef float                       gpunn__v8 __attribute__((vector_size(32)));
typedef float                       gpunn__v8_memory __attribute__((vector_size(32), aligned(4), may_alias));
typedef int                         gpunn__v8_bits __attribute__((vector_size(32)));
GPUNN__AVX2 GPUNN__INLINE gpunn__v8 gpunn__v8_set(float x)
{
    return (gpunn__v8)_mm256_set1_ps(x);
}
GPUNN__AVX2 GPUNN__INLINE gpunn__v8 gpunn__v8_fma(gpunn__v8 a, gpunn__v8 b, gpunn__v8 c)
{
    return (gpunn__v8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
GPUNN__AVX2 GPUNN__INLINE gpunn__v8 gpunn__v8_min(gpunn__v8 a, gpunn__v8 b)
{
    return (gpunn__v8)_mm256_min_ps((__m256)a, (__m256)b);
}
GPUNN__AVX2 GPUNN__INLINE gpunn__v8 gpunn__v8_max(gpunn__v8 a, gpunn__v8 b)
{
    return (gpunn__v8)_mm256_max_ps((__m256)a, (__m256)b);
}
GPUNN__AVX2 GPUNN__INLINE __m256i gpunn__v8_mask(int count)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
GPUNN__AVX2 GPUNN__INLINE gpunn__v8 gpunn__v8_load(const float *p, int count)
{
    return count == 8 ? (gpunn__v8)_mm256_loadu_ps(p)
                      : (gpunn__v8)_mm256_maskload_ps(p, gpunn__v8_mask(count));
}
GPUNN__AVX2 GPUNN__INLINE void gpunn__v8_store(float *p, int count, gpunn__v8 x)
{
    if (count == 8)
        _mm256_storeu_ps(p, (__m256)x);
    else
        _mm256_maskstore_ps(p, gpunn__v8_mask(count), (__m256)x);
}
GPUNN__AVX2 GPUNN__INLINE gpunn__v8 gpunn__v8_gather(const float *p, int64_t stride)
{
    return (gpunn__v8)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + stride),
                                           1);
}
GPUNN__AVX2 GPUNN__INLINE void gpunn__v8_transpose(gpunn__v8 v[4])
{
    __m256 a = _mm256_unpacklo_ps((__m256)v[0], (__m256)v[1]),
           b = _mm256_unpackhi_ps((__m256)v[0], (__m256)v[1]);
    __m256 c = _mm256_unpacklo_ps((__m256)v[2], (__m256)v[3]),
           d = _mm256_unpackhi_ps((__m256)v[2], (__m256)v[3]);
    v[0] = (gpunn__v8)_mm256_shuffle_ps(a, c, 0x44);
    v[1] = (gpunn__v8)_mm256_shuffle_ps(a, c, 0xee);
    v[2] = (gpunn__v8)_mm256_shuffle_ps(b, d, 0x44);
    v[3] = (gpunn__v8)_mm256_shuffle_ps(b, d, 0xee);
}
GPUNN__AVX2 GPUNN__INLINE gpunn__v8 gpunn__v8_half(const char *p)
{
    return (gpunn__v8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
GPUNN__AVX2 GPUNN__INLINE gpunn__v8 gpunn__v8_bfloat(const char *p)
{
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (gpunn__v8)((gpunn__v8_bits)_mm256_cvtepu16_epi32(half) << 16);
}
GPUNN__VECTOR_SUMS(v8, GPUNN__AVX2, 8)
#endif

#ifdef GPUNN__BASELINE
typedef gpunn__quad        gpunn__v4;
typedef gpunn__quad_memory gpunn__v4_memory;
typedef int                gpunn__v4_bits __attribute__((vector_size(16)));
GPUNN__INLINE gpunn__v4    gpunn__v4_set(float x)
{
    gpunn__v4 v = {x, x, x, x};
    return v;
}
GPUNN__INLINE gpunn__v4 gpunn__v4_fma(gpunn__v4 a, gpunn__v4 b, gpunn__v4 c)
{
#if defined(__aarch64__)
    return (gpunn__v4)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
GPUNN__INLINE gpunn__v4 gpunn__v4_min(gpunn__v4 a, gpunn__v4 b)
{
    const gpunn__v4_bits less = a < b;
    return (gpunn__v4)(((gpunn__v4_bits)a & less) | ((gpunn__v4_bits)b & ~less));
}
GPUNN__INLINE gpunn__v4 gpunn__v4_load(const float *p, int count)
{
    if (count == 4) return *(const gpunn__v4_memory *)p;
    gpunn__v4 v = {count > 0 ? p[0] : 0, count > 1 ? p[1] : 0, count > 2 ? p[2] : 0, 0};
    return v;
}
GPUNN__INLINE void gpunn__v4_store(float *p, int count, gpunn__v4 x)
{
    if (count == 4)
        *(gpunn__v4_memory *)p = x;
    else
        for (int i = 0; i < count; i++) p[i] = x[i];
}
GPUNN__INLINE gpunn__v4 gpunn__v4_gather(const float *p, int64_t stride)
{
    (void)stride;
    return *(const gpunn__v4_memory *)p;
}
GPUNN__INLINE void gpunn__v4_transpose(gpunn__v4 v[4])
{
    gpunn__transpose4(v);
}
GPUNN__INLINE gpunn__v4 gpunn__v4_half(const char *p)
{
#if defined(__aarch64__)
    return (gpunn__v4)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *)p)));
#else
    gpunn__v4 v;
    gpunn__widen_floats(GPUNN_F16, p, 4, (float *)&v);
    return v;
#endif
}
GPUNN__INLINE gpunn__v4 gpunn__v4_bfloat(const char *p)
{
#if defined(__aarch64__)
    return (gpunn__v4)vshlq_n_u32(vmovl_u16(vreinterpret_u16_u8(vld1_u8((const uint8_t *)p))), 16);
#elif defined(__x86_64__)
    return (gpunn__v4)_mm_unpacklo_epi16(_mm_setzero_si128(),
                                         _mm_loadl_epi64((const __m128i *)(const void *)p));
#else
    gpunn__v4 v;
    gpunn__widen_floats(GPUNN_BF16, p, 4, (float *)&v);
    return v;
#endif
}
GPUNN__VECTOR_SUMS(v4, GPUNN__BASELINE, 4)
#endif
#else /* vectors of one float */
typedef float gpunn__v1, gpunn__v1_memory;
#define GPUNN__UNROLL
#define GPUNN__HOLD(x)
/* Nothing is prefetched without vectors. */
GPUNN__INLINE const char *gpunn__prefetch(const char *from, const int bytes)
{
    return from + bytes;
}
GPUNN__INLINE float gpunn__v1_set(float x)
{
    return x;
}
GPUNN__INLINE float gpunn__v1_fma(float a, float b, float c)
{
    return a * b + c;
}
GPUNN__INLINE float gpunn__v1_min(float a, float b)
{
    return a < b ? a : b;
}
GPUNN__INLINE float gpunn__v1_load(const float *p, int count)
{
    return count ? *p : 0;
}
GPUNN__INLINE void gpunn__v1_store(float *p, int count, float x)
{
    if (count) *p = x;
}
GPUNN__INLINE float gpunn__v1_relu(float x, float most)
{
    return gpunn__v1_min(most, x <= 0 ? 0 : x);
}
#endif

#endif /* GPUNN__CPU_VECTORS_H */
