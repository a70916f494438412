#include "base/math.h"
#include "cpu/context.h"
#include "cpu/elementwise.h"
#include "cpu/optimizers.h"

/* ==== >>cpu/initial ====================================================================================== *
 * Draws initial values with Philox (>>common). Element i of tensor `id` uses word i % 4 of counter (i / 4
 * low, id, i / 4 high, 2^31). Dropout never reaches these counters: its fourth word is the high half of the
 * step.
 * All is computed in double and without libm, so every build gives the same numbers. Only where a compiler
 * makes fused multiply-adds does the last bit of about one in 10^7 normal numbers differ. */
enum { GPUNN__INITIAL_PACKS = 4 * GPUNN__DROP_PACKS, GPUNN__INITIAL_BLOCK = 4 * GPUNN__INITIAL_PACKS };

GPUNN__INLINE double gpunn__double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

GPUNN__INLINE uint64_t gpunn__double_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* n below 2^52 as a double: its bits behind those of 2^52, less 2^52. AVX2 has no such instruction. */
GPUNN__INLINE double gpunn__exact_double(uint64_t n)
{
    return gpunn__double_of(n | UINT64_C(0x4330000000000000)) - 4503599627370496.0;
}

/* log(x / 2^32) for x from 1 to 2^32. The next three functions have the polynomials of fdlibm (e_log.c,
 * k_sin.c, k_cos.c). */
GPUNN__INLINE double gpunn__log_share(double x)
{
    const uint64_t bits = gpunn__double_bits(x), power = (bits - UINT64_C(0x3FE6A09E00000000)) >> 52;
    const double   e = gpunn__exact_double(power) - 32, f = gpunn__double_of(bits - (power << 52)) - 1;
    const double   s = f / (2 + f), z = s * s, half = 0.5 * f * f;
    const double   r = z *
                     (6.666666666666735130e-01 +
                      z * (3.999999999940941908e-01 +
                           z * (2.857142874366239149e-01 +
                                z * (2.222219843214978396e-01 +
                                     z * (1.818357216161805012e-01 +
                                          z * (1.531383769920937332e-01 + z * 1.479819860511658591e-01))))));
    return e * 6.93147180369123816490e-01 - ((half - (s * (half + r) + e * 1.90821492927058770002e-10)) - f);
}

/* For x from -pi / 4 to pi / 4. */
GPUNN__INLINE double gpunn__sin_inside(double x)
{
    const double z = x * x;
    return x + x * z *
                   (-1.66666666666666324348e-01 +
                    z * (8.33333333332248946124e-03 +
                         z * (-1.98412698298579493134e-04 +
                              z * (2.75573137070700676789e-06 +
                                   z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)))));
}

GPUNN__INLINE double gpunn__cos_inside(double x)
{
    const double z = x * x, half = 0.5 * z, w = 1 - half;
    const double r = 4.16666666666666019037e-02 +
                     z * (-1.38888888888741095749e-03 +
                          z * (2.48015872894767294178e-05 +
                               z * (-2.75573143513906633035e-07 +
                                    z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11))));
    return w + (((1 - w) - half) + z * z * r);
}

/* cos and sin of 2 pi word / 2^32. They are those of an angle below pi / 4, perhaps exchanged or negated. */
GPUNN__INLINE void gpunn__turn(uint64_t word, double *cosine, double *sine)
{
    const uint64_t quarter = (word + (1u << 29)) >> 30, exchanged = 0 - (quarter & 1);
    const double   q = gpunn__exact_double(quarter);
    const double   angle = gpunn__exact_double(word) * (6.283185307179586 / 4294967296.0);
    const double   x = (angle - q * 1.57079632673412561417e+00) - q * 6.07710050650619224932e-11;
    const uint64_t s = gpunn__double_bits(gpunn__sin_inside(x)), c = gpunn__double_bits(gpunn__cos_inside(x));
    const uint64_t change = (s ^ c) & exchanged;
    *sine = gpunn__double_of((s ^ change) ^ (quarter & 2) << 62);
    *cosine = gpunn__double_of((c ^ change) ^ ((quarter + 1) & 2) << 62);
}

/* Box-Muller: words 2j and 2j + 1 give two values. */
GPUNN__VECTORIZED(gpunn__initial_normal,
                  (const uint32_t *words, int count, double mean, double deviation, float *y),
                  (words, count, mean, deviation, y))
{
    double radius[GPUNN__INITIAL_BLOCK / 2], cosine[GPUNN__INITIAL_BLOCK / 2], sine[GPUNN__INITIAL_BLOCK / 2];
    for (int j = 0; j < count / 2; j++)
        radius[j] = gpunn__sqrt_double(-2 * gpunn__log_share(gpunn__exact_double(words[2 * j]) + 1));
    for (int j = 0; j < count / 2; j++) gpunn__turn(words[2 * j + 1], &cosine[j], &sine[j]);
    for (int j = 0; j < count / 2; j++) {
        y[2 * j] = (float)(mean + deviation * radius[j] * cosine[j]);
        y[2 * j + 1] = (float)(mean + deviation * radius[j] * sine[j]);
    }
}

GPUNN__VECTORIZED(gpunn__initial_uniform,
                  (const uint32_t *words, int count, double low, double high, float *y),
                  (words, count, low, high, y))
{
    for (int j = 0; j < count; j++)
        y[j] = (float)(low + (high - low) * ((double)(int32_t)(words[j] >> 8) / 16777216.0));
}

/* The words of `count` packs from pack number `pack`. Both are multiples of 16. */
static void gpunn__initial_words(uint64_t seed, uint32_t id, uint64_t pack, int count, uint32_t words[][4])
{
    for (int i = 0; i < count; i += GPUNN__DROP_PACKS, pack += GPUNN__DROP_PACKS) {
        const uint32_t counter[4] = {(uint32_t)pack, id, (uint32_t)(pack >> 32), 0x80000000u};
        gpunn__philox_packs(seed, counter, words + i);
    }
}

/* Draws normal numbers with mean a and deviation b, or uniform ones from a to b. */
static void gpunn__draw_random(const gpunn_drawing *d, double a, double b, float *out)
{
    for (int64_t i = 0; i < d->count; i += GPUNN__INITIAL_BLOCK) {
        uint32_t  words[GPUNN__INITIAL_PACKS][4];
        float     y[GPUNN__INITIAL_BLOCK];
        const int n = (int)gpunn__least(d->count - i, GPUNN__INITIAL_BLOCK);
        const int packs = (n + 4 * GPUNN__DROP_PACKS - 1) / (4 * GPUNN__DROP_PACKS) * GPUNN__DROP_PACKS;
        gpunn__initial_words(d->seed, d->id, (uint64_t)(d->first + i) / 4, packs, words);
        (d->init.kind == GPUNN_INIT_NORMAL ? gpunn__initial_normal
                                           : gpunn__initial_uniform)(words[0], 4 * packs, a, b, y);
        memcpy(out + i, y, (size_t)n * sizeof *y);
    }
}

GPUNN__INTERNAL void gpunn__draw(const gpunn_drawing *d, float *out)
{
    const unsigned    denormals = gpunn__keep_denormals(); /* of a and b, too */
    const gpunn_init *init = &d->init;
    const double      a = (double)init->a, b = (double)init->b;
    if (init->kind == GPUNN_INIT_KAIMING_UNIFORM) {
        const double bound = 1.0 / sqrt(a > 0 ? a : (double)(d->fan_in > 0 ? d->fan_in : 1));
        gpunn__draw_random(d, -bound, bound, out);
    } else if (init->kind == GPUNN_INIT_NORMAL || init->kind == GPUNN_INIT_UNIFORM) {
        gpunn__draw_random(d, a, b, out);
    } else {
        for (int64_t i = 0; i < d->count; i++) out[i] = init->kind == GPUNN_INIT_CONSTANT ? init->a : 0;
    }
    gpunn__restore_denormals(denormals);
}

typedef struct gpunn__shared_drawing { /* a drawing of several threads */
    const gpunn_drawing *whole;
    float               *to;
} gpunn__shared_drawing;

static void gpunn__draw_task(void *arg, int thread, int threads)
{
    const gpunn__shared_drawing *shared = (const gpunn__shared_drawing *)arg;
    gpunn_drawing                part = *shared->whole;
    int64_t                      begin, end;
    gpunn__cpu_part(part.count, GPUNN__INITIAL_BLOCK, threads, thread, &begin, &end);
    part.first += begin;
    part.count = end - begin;
    gpunn__draw(&part, shared->to + begin);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_draw(void *context, const gpunn_drawing *drawing, float *to)
{
    enum { ONE_UNIT = 16 }; /* numbers: models that take less than a millisecond start no threads */
    gpunn__shared_drawing   shared = {drawing, to};
    const gpunn__cpu_before before = gpunn__cpu_begin(context);
    gpunn_parallel(gpunn__cpu_threads((const gpunn__cpu *)context, drawing->count / ONE_UNIT),
                   gpunn__draw_task, &shared);
    gpunn__cpu_end(before);
    return GPUNN_OK;
}
