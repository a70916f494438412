/* The elementwise functions of gpunn.h for CPUs. They have no branches and no lookup tables, so that
 * compilers vectorize loops over them. Errors are within 3 ulp (sin and cos: 1e-7 absolute, for |x| up to
 * 1e9). Infinities, NaN and values outside the domain give C's results. Results below 2^-125 may be 0.
 * Denormal operands count as 0. */

${fn} float ${name}_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

${fn} uint32_t ${name}_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

${fn} float ${name}_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

/* PyTorch's minimum and maximum: NaN if an operand is NaN. */
${fn} float ${name}_min(float a, float b)
{
    return ${name}_where(a < b, a, ${name}_where(a != a, a, b));
}

${fn} float ${name}_max(float a, float b)
{
    return ${name}_where(a > b, a, ${name}_where(a != a, a, b));
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
    return ${name}_where(x > 0, 1, ${name}_where(x < 0, -1, 0));
}

${fn} float ${name}_floor(float x)
{
    return floorf(x);
}

/* x clamped to [low, high]; NaN stays NaN. */
${fn} float ${name}_limit(float x, float low, float high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
${fn} float ${name}_exp2i(int32_t n)
{
    return ${name}_float_of((uint32_t)(n + 127) << 23);
}

/* The nearest integer to x, for |x| < 2^22. */
${fn} int32_t ${name}_nearest(float x)
{
    const float magic = 12582912.0f; /* 1.5 2^23: adding it rounds x to an integer in the low bits */
    return (int32_t)(${name}_bits_of(x + magic) - ${name}_bits_of(magic));
}

/* exp(r) - 1 for |r| <= ln 2 / 2. */
${fn} float ${name}_expm1_near(float r)
{
    const float p = (0.00139465544f * r + 0.00836664438f) * (r * r) + (0.0416662805f * r + 0.16666542f);
    return r + r * r * (p * r + 0.5f);
}

/* Splits x = n ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^15. Returns exp(r) - 1. */
${fn} float ${name}_exp_reduce(float x, int32_t *n)
{
    *n = ${name}_nearest(x * 1.44269504f);
    const float k = (float)*n; /* ln 2 is split in two; the high part has 9 bits, so k times it is exact */
    return ${name}_expm1_near(x - k * 0.693359375f + k * 2.12194440e-4f);
}

${fn} float ${name}_exp(float x)
{
    int32_t     n;
    const float e = ${name}_exp_reduce(${name}_limit(x, -87.3f, 89), &n) + 1;
    return (e + e) * ${name}_exp2i(n - 1);
}

${fn} float ${name}_exp2(float x)
{
    const float   near = ${name}_limit(x, -126, 128);
    const int32_t n = ${name}_nearest(near);
    const float   e = ${name}_expm1_near((near - (float)n) * 0.693147181f) + 1;
    return ${name}_where(x < -126, 0, (e + e) * ${name}_exp2i(n - 1));
}

/* exp(x) - 1 for |x| <= 89. */
${fn} float ${name}_expm1_inside(float x)
{
    int32_t     n;
    const float e = ${name}_exp_reduce(x, &n);
    const float half_scale = ${name}_exp2i(n > -126 ? n - 1 : -127);
    return 2 * (half_scale * e + (half_scale - 0.5f));
}

${fn} float ${name}_expm1(float x)
{
    return ${name}_where(fabsf(x) < 1e-8f, x, ${name}_expm1_inside(${name}_limit(x, -89, 89)));
}

/* n ln 2 + log(1 + f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1. */
${fn} float ${name}_log_join(float n, float f)
{
    const float s = f * f;
    const float p = ((-0.0785961151f * f + 0.128816471f) * s + (-0.131287545f * f + 0.141811922f)) * (s * s) +
                    ((-0.166245535f * f + 0.200022861f) * s + (-0.250008106f * f + 0.333333164f));
    return (f - (0.5f * s - (s * f * p - n * 2.12194440e-4f))) + n * 0.693359375f;
}

/* The value of a logarithm: y for limit < x < inf, -inf at the limit, NaN below it, x itself if x is inf or
 * NaN. */
${fn} float ${name}_log_edges(float x, float limit, float y)
{
    const float outside = ${name}_where(x == limit, -INFINITY, ${name}_where(x < limit, NAN, x));
    return ${name}_where(x > limit, ${name}_where(x <= FLT_MAX, y, x), outside);
}

/* Returns n where x = 2^n m with sqrt(1/2) <= m < sqrt(2), for normal x > 0. */
${fn} int32_t ${name}_exponent(float x)
{
    return (int32_t)(${name}_bits_of(x) - 0x3f3504f3u) >> 23;
}

/* Splits finite x > 0 into 2^n (1 + f), with f in the range of log_join. Returns f. */
${fn} float ${name}_log_split(float x, float *n)
{
    const float   normal = ${name}_where(x < FLT_MIN, x * 8388608.0f, x);
    const int32_t exponent = ${name}_exponent(normal);
    *n = (float)exponent - ${name}_where(x < FLT_MIN, 23, 0);
    return ${name}_float_of(${name}_bits_of(normal) - ((uint32_t)exponent << 23)) - 1;
}

${fn} float ${name}_log(float x)
{
    float       n;
    const float f = ${name}_log_split(x, &n);
    return ${name}_log_edges(x, 0, ${name}_log_join(n, f));
}

/* Exact for powers of 2. */
${fn} float ${name}_log2(float x)
{
    float       n;
    const float f = ${name}_log_split(x, &n);
    return ${name}_log_edges(x, 0, n + ${name}_log_join(0, f) * 1.44269504f);
}

/* log10(2) is split in two; the high part has 13 bits, so n times it is exact. Powers of 10 give exact
 * results. */
${fn} float ${name}_log10(float x)
{
    float       n;
    const float f = ${name}_log_split(x, &n);
    return ${name}_log_edges(x, 0,
                             n * 0.301025391f + (n * 4.60503907e-6f + ${name}_log_join(0, f) * 0.434294482f));
}

${fn} float ${name}_log1p(float x)
{
    const int32_t n = ${name}_exponent(1 + x);
    const float   scale = ${name}_float_of((uint32_t)(129 - n) << 23); /* 4 2^-n: 2^-n may be denormal */
    const float   y = ${name}_log_join((float)n, 0.25f * x * scale + (0.25f * scale - 1));
    return ${name}_where(fabsf(x) < 1e-8f, x, ${name}_log_edges(x, -1, y));
}

/* 1 / sqrt(x) for normal x > 0, by Newton's method. C's sqrtf may set errno, which prevents vectorization. */
${fn} float ${name}_root(float x)
{
    float r = ${name}_float_of(0x5f375a86u - (${name}_bits_of(x) >> 1));
    r *= 1.5f - x * r * (0.5f * r);
    r *= 1.5f - x * r * (0.5f * r);
    return r * (1.5f - x * r * (0.5f * r));
}

/* x below 2^-60 is scaled by 2^64, so that the residual of the square is not denormal. */
${fn} float ${name}_sqrt(float x)
{
    const bool  tiny = x < 8.67361738e-19f;
    const float p = x * ${name}_where(tiny, 1.84467441e19f, 1), r = ${name}_root(p), s = p * r;
    const float y = (s + 0.5f * r * (p - s * s)) * ${name}_where(tiny, 2.32830644e-10f, 1);
    return ${name}_where(x >= FLT_MIN, ${name}_where(x <= FLT_MAX, y, x), ${name}_where(x < 0, NAN, x));
}

${fn} float ${name}_rsqrt(float x)
{
    const float r = ${name}_root(x), y = r + 0.5f * r * (1 - x * r * r);
    const float outside = ${name}_where(x < 0, NAN, ${name}_where(x < FLT_MIN, copysignf(INFINITY, x), x));
    return ${name}_where(x >= FLT_MIN, ${name}_where(x <= FLT_MAX, y, 0), outside);
}

${fn} float ${name}_sigmoid(float x)
{
    return 1 / (1 + ${name}_exp(-x));
}

${fn} float ${name}_tanh(float x)
{
    const float e = ${name}_expm1_inside(2 * ${name}_limit(fabsf(x), 0, 10));
    return copysignf(e / (e + 2), x);
}

/* Returns erf(x), within 2.5e-7; *gauss = exp(-x^2). For a = |x|, erf(a) = 1 - exp(-a^2) times a polynomial
 * in a. */
${fn} float ${name}_erf_gauss(float x, float *gauss)
{
    const float a = ${name}_limit(fabsf(x), 0, 9.38f); /* gauss is 0 there */
    int32_t     n;
    const float e = ${name}_exp_reduce(-(a * a), &n), scale = ${name}_exp2i(n);
    float       p = (0.000104428294f * a - 0.00159332412f) * a + 0.010871639f;
    p = ((p * a - 0.0446807411f) * a + 0.127030288f) * a - 0.275080752f;
    p = ((p * a + 0.489239109f) * a - 0.749611248f) * a + 0.999667174f;
    p = (p * a - 1.12836286f) * a + 0.999999868f;
    *gauss = scale * e + scale;
    return copysignf(1 - *gauss * p, x);
}

/* erf with a bound on the absolute error only. */
${fn} float ${name}_erf_near(float x)
{
    float gauss;
    return ${name}_erf_gauss(x, &gauss);
}

${fn} float ${name}_erf(float x)
{
    const float a = ${name}_limit(fabsf(x), 0, 4), s = x * x;
    const float p = ((-0.000620325445f * s + 0.00503218127f) * s - 0.0267914627f) * s + 0.112824552f;
    const float small_x = x + x * ((p * s - 0.376125515f) * s + 0.128379151f);
    /* erfc(a) = exp(-a q(a)) */
    const float q = ((-0.00021522498f * a + 0.00322512374f) * a - 0.0229223836f) * a + 0.105312094f;
    const float large_x = -${name}_expm1_inside(-a * ((q * a + 0.635680437f) * a + 1.1285255f));
    return ${name}_where(fabsf(x) > 0.875f, copysignf(large_x, x), small_x);
}

/* sin(x + quadrants pi / 2). */
${fn} float ${name}_sine(float x, int32_t quadrants)
{
    const double magic = 6755399441055744.0; /* 1.5 2^52: adding it rounds to an integer */
    /* NaN becomes 1e9 here; x - x at the end makes it NaN again. */
    const double from = (double)${name}_where(x < 1e9f, ${name}_where(x > -1e9f, x, -1e9f), 1e9f);
    const double turned = from * 0.63661977236758134 + magic, k = turned - magic;
    const float  near = (float)(from - k * 1.5707963267341256 - k * 6.0771005065061922e-11);
    const float  r = ${name}_limit(near, -0.79f, 0.79f), s = r * r;
    const float  sine = r + r * s *
                               ((-1.98559923e-4f + 2.86567956e-6f * s) * s * s +
                                (8.33338592e-3f * s - 1.66666672e-1f));
    const float  cosine = 1 + s * (((2.44677067e-5f * s - 1.38877297e-3f) * s + 4.16666567e-2f) * s - 0.5f);
    const int32_t  quadrant = (int32_t)k + quadrants;
    const uint32_t sign = ((uint32_t)quadrant & 2u) << 30;
    const float    y = ${name}_where((quadrant & 1) != 0, cosine, sine);
    return ${name}_float_of(${name}_bits_of(y) ^ sign) + (x - x);
}

${fn} float ${name}_sin(float x)
{
    return ${name}_sine(x, 0);
}

${fn} float ${name}_cos(float x)
{
    return ${name}_sine(x, 1);
}

/* x^y by 2^(y log2 |x|), in double. */
${fn} float ${name}_pow(float x, float y)
{
    const float   a = fabsf(x), scaled = ${name}_where(a < FLT_MIN, a * 16777216.0f, a);
    const int32_t n = ${name}_exponent(scaled);
    const float   whole = (float)n - ${name}_where(a < FLT_MIN, 24, 0), power = ${name}_where(a == 1, 0, y);
    const double  m = (double)${name}_float_of(${name}_bits_of(scaled) - ((uint32_t)n << 23));
    const double  f = (m - 1) / (m + 1), s = f * f;
    const double  p = ((((s / 13 + 1.0 / 11) * s + 1.0 / 9) * s + 1.0 / 7) * s + 0.2) * s * s + s / 3 + 1;
    const double  wide = (double)power * ((double)whole + 2.8853900817779268 * f * p),
                 high = wide > 140 ? 140 : wide;
    /* magic = 1.5 2^52: adding and subtracting it rounds t to an integer. */
    const double  t = high < -160 ? -160 : high, magic = 6755399441055744.0, k = (t + magic) - magic;
    const double  r = (t - k) * 0.69314718055994531;
    const double  q = ((((r / 5040 + 1.0 / 720) * r + 1.0 / 120) * r + 1.0 / 24) * r + 1.0 / 6) * r;
    const int32_t exponent = (int32_t)(k == k ? k : 0), half = exponent >> 1;
    const double  scale = (double)${name}_exp2i(half) * (double)${name}_exp2i(exponent - half);
    const float   inside = (float)((1 + r + r * r * (q + 0.5)) * scale);
    /* for |x| = 0, inf or NaN */
    const float edge = power * ${name}_where(a == 0, -INFINITY, a);
    const float outside = ${name}_where(edge > 0, INFINITY, ${name}_where(edge < 0, 0, edge));
    const float size = ${name}_where(a > 0 && a <= FLT_MAX, inside, outside);
    const bool  whole_y = floorf(y) == y, odd = whole_y && floorf(0.5f * y) != 0.5f * y;
    const float value = ${name}_where(odd, copysignf(size, x), size);
    const float real = ${name}_where(x < 0 && a <= FLT_MAX && !whole_y, NAN, value);
    return ${name}_where(x == 1 || y == 0, 1, real);
}

/* exp(a) / 2 for a >= 0. a is clamped to 90, whose result is infinite. */
${fn} float ${name}_half_exp(float a)
{
    int32_t     n;
    const float e = ${name}_exp_reduce(${name}_limit(a, 0, 90), &n) + 1;
    return (e + e) * ${name}_exp2i(n - 2);
}

${fn} float ${name}_sinh(float x)
{
    const float a = fabsf(x), e = ${name}_expm1_inside(${name}_limit(a, 0, 1)), h = ${name}_half_exp(a);
    const float size = ${name}_where(a < 1, 0.5f * (e + e / (e + 1)), h - 0.25f / h);
    return ${name}_where(a > 3e-4f, copysignf(size, x), x);
}

${fn} float ${name}_cosh(float x)
{
    const float h = ${name}_half_exp(fabsf(x));
    return h + 0.25f / h;
}

/* t is the tangent of an angle up to pi / 4. Above tan(pi / 8), pi / 4 is subtracted from the angle, so the
 * polynomial's argument is |u| <= tan(pi / 8). */
${fn} float ${name}_atan2(float y, float x)
{
    const float a = fabsf(x), b = fabsf(y), less = ${name}_where(b > a, a, b),
                more = ${name}_where(b > a, b, a);
    const float t = ${name}_where(less == more, ${name}_where(more > 0, 1, 0), less / more);
    const float u = ${name}_where(t > 0.414213562f, (t - 1) / (t + 1), t), q = u * u;
    const float p = (((-0.0607775748f * q + 0.105936393f) * q - 0.142435104f) * q + 0.199984699f) * q -
                    0.333333164f;
    const float eighth = ${name}_where(t > 0.414213562f, 0.785398163f, 0) + (u + u * q * p);
    const float quarter = ${name}_where(b > a, 1.57079633f - eighth, eighth);
    const bool  left = (${name}_bits_of(x) >> 31) != 0;
    return copysignf(${name}_where(left, 3.14159265f - quarter, quarter), y);
}

/* The operands are scaled by a power of 2, so that squares neither overflow nor underflow. */
${fn} float ${name}_hypot(float x, float y)
{
    const float a = fabsf(x), b = fabsf(y), most = ${name}_where(a > b, a, b);
    const bool  large = most > 1.12589991e15f, small = most < 8.88178420e-16f; /* 2^50, 2^-50 */
    const float big = 1.26765060e30f, tiny = 7.88860905e-31f;                  /* 2^100, 2^-100 */
    const float down = ${name}_where(large, tiny, ${name}_where(small, big, 1)), p = x * down, q = y * down;
    const float size = ${name}_sqrt(p * p + q * q) * ${name}_where(large, big, ${name}_where(small, tiny, 1));
    return ${name}_where(a > FLT_MAX, INFINITY, ${name}_where(b > FLT_MAX, INFINITY, size));
}

/* On a GPU these round values that are stored in 16 bits. On the CPU such values are stored as floats. */
${fn} float ${name}_round_bf16(float x)
{
    return x;
}

${fn} float ${name}_round_f16(float x)
{
    return x;
}

#define ${name}_div_fast(a, b) ((a) / (b))

#define ${name}_exp_fast ${name}_exp

#define ${name}_expm1_fast ${name}_expm1

#define ${name}_log_fast ${name}_log

#define ${name}_log1p_fast ${name}_log1p

#define ${name}_sqrt_fast ${name}_sqrt

#define ${name}_rsqrt_fast ${name}_rsqrt

#define ${name}_tanh_fast ${name}_tanh

#define ${name}_erf_fast ${name}_erf

#define ${name}_erf_near_fast ${name}_erf_near

#define ${name}_erf_gauss_fast ${name}_erf_gauss

#define ${name}_sigmoid_fast ${name}_sigmoid
