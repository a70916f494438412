/* The elementwise functions of gpunn.h for GPUs, as in gpunn_cuda.cu. Functions with _fast in their names are
 * for values that are stored in 16 bits. Their errors are within 2^-10, and denormals become 0. */

${fn} float ${name}_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

${fn} float ${name}_min(float a, float b)
{
    return a < b || a != a ? a : b;
}

${fn} float ${name}_max(float a, float b)
{
    return a > b || a != a ? a : b;
}

${fn} float ${name}_abs(float x)
{
    return fabsf(x);
}

/* The floor of the exact quotient p / q: 9 for 1 and 0.1f. */
${fn} float ${name}_floordiv(float p, float q)
{
    const float rest = fmodf(p, q),
                whole = (p - rest) / q - (rest != 0 && (q < 0) != (rest < 0) ? 1.0f : 0.0f);
    const float low = floorf(whole);
    return q == 0 ? p / q : whole == 0 ? copysignf(0, p / q) : low + (whole - low > 0.5f ? 1.0f : 0.0f);
}

${fn} float ${name}_fmod(float p, float q)
{
    return fmodf(p, q);
}

/* PyTorch's remainder: it has the sign of q. Only the final addition rounds. */
${fn} float ${name}_remainder(float p, float q)
{
    const float rest = fmodf(p, q);
    return rest != 0 && (rest < 0) != (q < 0) ? rest + q : rest;
}

${fn} float ${name}_sign(float x)
{
    return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f;
}

${fn} float ${name}_floor(float x)
{
    return floorf(x);
}

${fn} float ${name}_exp(float x)
{
    return expf(x);
}

${fn} float ${name}_expm1(float x)
{
    return expm1f(x);
}

${fn} float ${name}_log(float x)
{
    return logf(x);
}

${fn} float ${name}_log1p(float x)
{
    return log1pf(x);
}

${fn} float ${name}_exp2(float x)
{
    return exp2f(x);
}

${fn} float ${name}_log2(float x)
{
    return log2f(x);
}

/* x = 2^n m with sqrt(1/2) <= m < sqrt(2). log10(2) is split in two; the high part has 13 bits. Unlike
 * log10f, powers of 10 give exact results. */
${fn} float ${name}_log10(float x)
{
    float normal = x < 1.17549435e-38f ? x * 8388608.0f : x;
    int   exponent = (int)(__float_as_uint(normal) - 0x3f3504f3u) >> 23;
    float m = __uint_as_float(__float_as_uint(normal) - ((unsigned)exponent << 23));
    float n = (float)exponent - (x < 1.17549435e-38f ? 23.0f : 0.0f);
    float y = fmaf(n, 0.301025391f, fmaf(n, 4.60503907e-6f, log10f(m)));
    return x > 0 && x < INFINITY ? y : x == 0 ? -INFINITY : x < 0 ? NAN : x;
}

${fn} float ${name}_sinh(float x)
{
    return sinhf(x);
}

${fn} float ${name}_cosh(float x)
{
    return coshf(x);
}

${fn} float ${name}_atan2(float y, float x)
{
    return atan2f(y, x);
}

${fn} float ${name}_hypot(float x, float y)
{
    return hypotf(x, y);
}

${fn} float ${name}_sqrt(float x)
{
    return sqrtf(x);
}

${fn} float ${name}_rsqrt(float x)
{
    return 1 / sqrtf(x);
}

${fn} float ${name}_tanh(float x)
{
    return tanhf(x);
}

${fn} float ${name}_erf(float x)
{
    return erff(x);
}

/* erf with a bound on the absolute error only: for results that are added to a number not near 0. */
${fn} float ${name}_erf_near(float x)
{
    return erff(x);
}

${fn} float ${name}_erf_gauss(float x, float *gauss)
{
    *gauss = expf(-x * x);
    return erff(x);
}

${fn} float ${name}_sigmoid(float x)
{
    float e = expf(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1 + e);
}

${fn} float ${name}_pow(float x, float exponent)
{
    return powf(x, exponent);
}

/* Word i of 1 / (2 pi) in binary: word 0 is 0, word 1 holds the first 32 bits after the binary point, and so
 * on. */
${fn} unsigned ${name}_turns(unsigned i)
{
    return i == 0   ? 0
           : i == 1 ? 0x28BE60DBu
           : i == 2 ? 0x9391054Au
           : i == 3 ? 0x7F09D5F4u
           : i == 4 ? 0x7D4D3770u
           : i == 5 ? 0x36D8A566u
           : i == 6 ? 0x4F10E410u
                    : 0x7F9458EAu;
}

/* sin(x + quadrants pi / 2). Unlike in sinf, the reduction of large x needs no local memory. x / (2 pi),
 * without whole turns, is the product of x's 32-bit significand and the 96 relevant bits of 1 / (2 pi). */
${fn} float ${name}_sine(float x, int quadrants)
{
    float turned = rintf(x * 0.636619772f), r;
    if (fabsf(x) < 1e5f) { /* subtracts pi / 2 in three parts */
        r = fmaf(-turned, 1.57079601f, x);
        r = fmaf(-turned, 3.13916473e-7f, r);
        r = fmaf(-turned, 5.39030253e-15f, r);
        quadrants += (int)turned;
    } else if (fabsf(x) < INFINITY) {
        unsigned bits = __float_as_uint(x), exponent = (bits >> 23 & 0xFF) - 126, word = exponent / 32,
                 shift = exponent % 32;
        uint64_t significand = bits << 8 | 0x80000000u, part[3];
#pragma unroll
        for (unsigned k = 0; k < 3; k++)
            part[k] = ((uint64_t)${name}_turns(word + k) << 32 | ${name}_turns(word + k + 1)) << shift >> 32;
        uint64_t turns = (significand * part[0] << 32) + significand * part[1] +
                         (significand * part[2] >> 32);
        int quadrant = (int)((turns + (1ull << 61)) >> 62);
        r = (float)(int64_t)(turns - ((uint64_t)quadrant << 62)) * 3.40612167e-19f; /* pi / 2 / 2^62 */
        r = x < 0 ? -r : r;
        quadrants += x < 0 ? -quadrant : quadrant;
    } else
        r = NAN;
    float s = r * r, sine = fmaf(fmaf(fmaf(fmaf(2.86567956e-6f, s, -1.98559923e-4f), s, 8.33338592e-3f), s,
                                      -1.66666672e-1f),
                                 r * s, r);
    float cosine = fmaf(fmaf(fmaf(fmaf(2.44677067e-5f, s, -1.38877297e-3f), s, 4.16666567e-2f), s, -0.5f), s,
                        1.0f);
    float y = quadrants & 1 ? cosine : sine;
    return quadrants & 2 ? -y : y;
}

${fn} float ${name}_sin(float x)
{
    return ${name}_sine(x, 0);
}

${fn} float ${name}_cos(float x)
{
    return ${name}_sine(x, 1);
}

/* x rounded to the 16-bit type, to nearest even. */
${fn} float ${name}_round_bf16(float x)
{
    unsigned bits = __float_as_uint(x);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(x), "f"(0.0f));
#else
    bits = x != x ? 0x7FFF0000u : (bits + 0x7FFFu + (bits >> 16 & 1)) & 0xFFFF0000u;
#endif
    return __uint_as_float(bits);
}

${fn} float ${name}_round_f16(float x)
{
    return __half2float(__float2half_rn(x));
}

/* Single instructions of the GPU. They flush denormals to 0. */
${fn} float ${name}_unit_exp2(float x)
{
#ifdef __CUDA_ARCH__
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
#else
    return exp2f(x);
#endif
}

${fn} float ${name}_unit_log2(float x)
{
#ifdef __CUDA_ARCH__
    asm("lg2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
#else
    return log2f(x);
#endif
}

${fn} float ${name}_unit_reciprocal(float x)
{
#ifdef __CUDA_ARCH__
    asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
#else
    return 1 / x;
#endif
}

${fn} float ${name}_sqrt_fast(float x)
{
#ifdef __CUDA_ARCH__
    asm("sqrt.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
#else
    return sqrtf(x);
#endif
}

${fn} float ${name}_rsqrt_fast(float x)
{
#ifdef __CUDA_ARCH__
    asm("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
#else
    return 1 / sqrtf(x);
#endif
}

${fn} float ${name}_tanh_fast(float x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
    asm("tanh.approx.f32 %0, %0;" : "+f"(x));
    return x;
#else
    return tanhf(x);
#endif
}

${fn} float ${name}_div_fast(float a, float b)
{
    return a * ${name}_unit_reciprocal(b);
}

${fn} float ${name}_exp_fast(float x)
{
    return ${name}_unit_exp2(x * 1.44269504f);
}

${fn} float ${name}_expm1_fast(float x)
{
    return fabsf(x) < 0.0625f ? fmaf(fmaf(x, 0.166666667f, 0.5f), x * x, x) : ${name}_exp_fast(x) - 1;
}

${fn} float ${name}_log_fast(float x)
{
    return ${name}_unit_log2(x) * 0.693147181f;
}

${fn} float ${name}_log1p_fast(float x)
{
    return fabsf(x) < 0.0625f ? fmaf(fmaf(fmaf(x, -0.25f, 0.333333333f), x, -0.5f), x * x, x)
                              : ${name}_log_fast(1 + x);
}

/* Returns erf(x) = 1 - (a polynomial in t) exp(-x^2); *gauss = exp(-x^2). Abramowitz and Stegun, 7.1.26;
 * within 2e-7. */
${fn} float ${name}_erf_gauss_fast(float x, float *gauss)
{
    float t = ${name}_unit_reciprocal(fmaf(0.3275911f, fabsf(x), 1));
    float p = fmaf(fmaf(fmaf(fmaf(1.061405429f, t, -1.453152027f), t, 1.421413741f), t, -0.284496736f), t,
                   0.254829592f);
    *gauss = ${name}_unit_exp2(x * x * -1.44269504f);
    return copysignf(fmaf(-p * t, *gauss, 1), x);
}

${fn} float ${name}_erf_near_fast(float x)
{
    float gauss;
    return ${name}_erf_gauss_fast(x, &gauss);
}

${fn} float ${name}_erf_fast(float x)
{
    float s = x * x;
    float small = x * fmaf(fmaf(fmaf(-0.0268661706f, s, 0.112837917f), s, -0.376126389f), s, 1.12837917f);
    return s < 0.0625f ? small : ${name}_erf_near_fast(x);
}

${fn} float ${name}_sigmoid_fast(float x)
{
    return ${name}_unit_reciprocal(1 + ${name}_exp_fast(-x));
}
