/* simple_nn_inference.h - written by the generator of gpunn: do not edit.
 *
 * gpunn 0.2, templates c9514ad691f1
 * spec sha256 f747829dacd7b34a0908812bd8cf3afc76481dcc0a213d6ff68a5a714731227d
 * renew it with: python3 -m generator examples/kernels/simple_nn.json -o examples/plain_c/simple_nn --inference --outputs t9 --weights examples/plain_c/simple_nn.safetensors
 */
#ifndef SIMPLE_NN_INFERENCE_H
#define SIMPLE_NN_INFERENCE_H
#include <stdbool.h>
#include <stdint.h>

/* The model as plain C99: no allocation, no library, no hidden state. One C file of the program must
 * define this before it includes this file:
 *     #define SIMPLE_NN_INFERENCE_IMPLEMENTATION
 * A call takes 1050 multiplications for one sample.
 * Pass &simple_nn_trained as the weights.
 */
#ifdef __cplusplus
extern "C" {
#endif
#ifndef SIMPLE_NN_WEIGHTS
#define SIMPLE_NN_WEIGHTS
typedef struct simple_nn_weights {
    float fc1_weight[1000]; /* fc1.weight [50,20] */
    float fc1_bias[50]; /* fc1.bias [50] */
    float fc2_weight[50]; /* fc2.weight [1,50] */
    float fc2_bias[1]; /* fc2.bias [1] */
} simple_nn_weights;
#endif
extern const simple_nn_weights simple_nn_trained;
/* Scratch memory for the values between steps. Each thread that calls needs its own. */
#define SIMPLE_NN_SCRATCH_BYTES 200
typedef struct simple_nn_scratch {
    float f32[50];
} simple_nn_scratch;
void simple_nn_forward(const simple_nn_weights *weights, const float *x, float *t9,
                       simple_nn_scratch *scratch);
#ifdef __cplusplus
}
#endif
#endif

#ifdef SIMPLE_NN_INFERENCE_IMPLEMENTATION
#include <float.h>
#include <stddef.h>

#define SIMPLE_NN_FN static inline

SIMPLE_NN_FN float simple_nn_float_of(uint32_t bits)
{
    union { uint32_t bits; float value; } both;
    both.bits = bits;
    return both.value;
}

SIMPLE_NN_FN uint32_t simple_nn_bits_of(float value)
{
    union { uint32_t bits; float value; } both;
    both.value = value;
    return both.bits;
}

/* The elementwise functions of gpunn.h for CPUs. They have no branches and no lookup tables, so that
 * compilers vectorize loops over them. Errors are within 3 ulp (sin and cos: 1e-7 absolute, for |x| up to
 * 1e9). Infinities, NaN and values outside the domain give C's results. Results below 2^-125 may be 0.
 * Denormal operands count as 0. */

SIMPLE_NN_FN float simple_nn_where(bool condition, float a, float b)
{
    return condition ? a : b;
}

/* x clamped to [low, high]; NaN stays NaN. */
SIMPLE_NN_FN float simple_nn_limit(float x, float low, float high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
SIMPLE_NN_FN float simple_nn_exp2i(int32_t n)
{
    return simple_nn_float_of((uint32_t)(n + 127) << 23);
}

/* The nearest integer to x, for |x| < 2^22. */
SIMPLE_NN_FN int32_t simple_nn_nearest(float x)
{
    const float magic = 12582912.0f; /* 1.5 2^23: adding it rounds x to an integer in the low bits */
    return (int32_t)(simple_nn_bits_of(x + magic) - simple_nn_bits_of(magic));
}

/* exp(r) - 1 for |r| <= ln 2 / 2. */
SIMPLE_NN_FN float simple_nn_expm1_near(float r)
{
    const float p = (0.00139465544f * r + 0.00836664438f) * (r * r) + (0.0416662805f * r + 0.16666542f);
    return r + r * r * (p * r + 0.5f);
}

/* Splits x = n ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^15. Returns exp(r) - 1. */
SIMPLE_NN_FN float simple_nn_exp_reduce(float x, int32_t *n)
{
    *n = simple_nn_nearest(x * 1.44269504f);
    const float k = (float)*n; /* ln 2 is split in two; the high part has 9 bits, so k times it is exact */
    return simple_nn_expm1_near(x - k * 0.693359375f + k * 2.12194440e-4f);
}

SIMPLE_NN_FN float simple_nn_exp(float x)
{
    int32_t     n;
    const float e = simple_nn_exp_reduce(simple_nn_limit(x, -87.3f, 89), &n) + 1;
    return (e + e) * simple_nn_exp2i(n - 1);
}

SIMPLE_NN_FN float simple_nn_sigmoid(float x)
{
    return 1 / (1 + simple_nn_exp(-x));
}

/* Vectors of SIMPLE_NN_WIDTH floats, at any alignment. Without vector registers, WIDTH is 1 and a vector is a
 * float. */
#if defined(__GNUC__) && (defined(__clang__) || __GNUC__ >= 9)
#if defined(__AVX__)
#define SIMPLE_NN_WIDTH 8
#elif defined(__SSE2__) || defined(__ARM_NEON) || defined(__ALTIVEC__) || defined(__wasm_simd128__)
#define SIMPLE_NN_WIDTH 4
#endif
#endif
#ifdef SIMPLE_NN_WIDTH
typedef float simple_nn_vector __attribute__((vector_size(4 * SIMPLE_NN_WIDTH), aligned(4), may_alias));
typedef int32_t simple_nn_integers __attribute__((vector_size(4 * SIMPLE_NN_WIDTH)));
#define SIMPLE_NN_INLINE static inline __attribute__((always_inline)) /* with sizes that are constants */
SIMPLE_NN_FN simple_nn_vector simple_nn_splat(float x)
{
    const simple_nn_vector zero = {0};
    return zero + x;
}
#else
#define SIMPLE_NN_WIDTH 1
#define SIMPLE_NN_INLINE SIMPLE_NN_FN
typedef float simple_nn_vector;
SIMPLE_NN_FN simple_nn_vector simple_nn_splat(float x)
{
    return x;
}
#endif

SIMPLE_NN_FN simple_nn_vector simple_nn_load(const float *x)
{
    return *(const simple_nn_vector *)x;
}

SIMPLE_NN_FN void simple_nn_store(float *y, simple_nn_vector v)
{
    *(simple_nn_vector *)y = v;
}

/* Full unrolling keeps arrays of vectors in registers. */
#if defined(__clang__)
#define SIMPLE_NN_FLAT _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define SIMPLE_NN_FLAT _Pragma("GCC unroll 8")
#else
#define SIMPLE_NN_FLAT
#endif

/* y[8]: the sums of the elements of eight vectors. pairs(a, b) adds neighbours: a0 + a1, ..., b0 + b1, ... */
#if SIMPLE_NN_WIDTH > 1 && defined(__clang__)
#define SIMPLE_NN_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#elif SIMPLE_NN_WIDTH > 1
#define SIMPLE_NN_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, __extension__(simple_nn_integers){__VA_ARGS__})
#endif
#if SIMPLE_NN_WIDTH == 8
SIMPLE_NN_FN simple_nn_vector simple_nn_pairs(simple_nn_vector a, simple_nn_vector b)
{
    return SIMPLE_NN_SHUFFLE(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
           SIMPLE_NN_SHUFFLE(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
}
SIMPLE_NN_FN simple_nn_vector simple_nn_fours(const simple_nn_vector *v)
{
    return simple_nn_pairs(simple_nn_pairs(v[0], v[1]), simple_nn_pairs(v[2], v[3]));
}
SIMPLE_NN_FN void simple_nn_totals(float *y, const simple_nn_vector *v)
{
    const simple_nn_vector a = simple_nn_fours(v), b = simple_nn_fours(v + 4);
    simple_nn_store(y, SIMPLE_NN_SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
                         SIMPLE_NN_SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15));
}
#elif SIMPLE_NN_WIDTH == 4
SIMPLE_NN_FN simple_nn_vector simple_nn_pairs(simple_nn_vector a, simple_nn_vector b)
{
    return SIMPLE_NN_SHUFFLE(a, b, 0, 2, 4, 6) + SIMPLE_NN_SHUFFLE(a, b, 1, 3, 5, 7);
}
SIMPLE_NN_FN simple_nn_vector simple_nn_fours(const simple_nn_vector *v)
{
    return simple_nn_pairs(simple_nn_pairs(v[0], v[1]), simple_nn_pairs(v[2], v[3]));
}
SIMPLE_NN_FN void simple_nn_totals(float *y, const simple_nn_vector *v)
{
    simple_nn_store(y, simple_nn_fours(v));
    simple_nn_store(y + 4, simple_nn_fours(v + 4));
}
#else
SIMPLE_NN_FN void simple_nn_totals(float *y, const simple_nn_vector *v)
{
    for (int i = 0; i < 8; ++i) y[i] = v[i];
}
#endif

/* y[n] += x[n] */
SIMPLE_NN_FN void simple_nn_accumulate(float *y, const float *x, int n)
{
    int i = 0;
    for (; i + SIMPLE_NN_WIDTH <= n; i += SIMPLE_NN_WIDTH)
        simple_nn_store(y + i, simple_nn_load(y + i) + simple_nn_load(x + i));
    for (; i < n; ++i) y[i] += x[i];
}

/* y[8] = w[8][n] x[n]. What is left of a row behind whole vectors is in its last vector, beside elements that
 * are taken with 0. */
SIMPLE_NN_INLINE void simple_nn_eight(float *y, const float *x, const float *w, int n)
{
    simple_nn_vector sum[8];
    float          last[SIMPLE_NN_WIDTH];
    int            i = 0;
    SIMPLE_NN_FLAT for (int row = 0; row < 8; ++row) sum[row] = simple_nn_splat(0);
    for (; i + SIMPLE_NN_WIDTH <= n; i += SIMPLE_NN_WIDTH) {
        const simple_nn_vector own = simple_nn_load(x + i);
        SIMPLE_NN_FLAT for (int row = 0; row < 8; ++row)
            sum[row] += own * simple_nn_load(w + row * n + i);
    }
    const int from = n - SIMPLE_NN_WIDTH;
    if (i < n && from >= 0) {
        for (int j = 0; j < SIMPLE_NN_WIDTH; ++j) last[j] = from + j < i ? 0 : x[from + j];
        SIMPLE_NN_FLAT for (int row = 0; row < 8; ++row)
            sum[row] += simple_nn_load(last) * simple_nn_load(w + row * n + from);
    }
    simple_nn_totals(y, sum);
    for (; i < n && from < 0; ++i)
        for (int row = 0; row < 8; ++row) y[row] += x[i] * (float)w[row * n + i];
}

/* The sum of a[i] * b[i]: four vectors of partial sums, plus the rest. */
SIMPLE_NN_FN float simple_nn_dot(const float *a, const float *b, int n)
{
    simple_nn_vector sum[4];
    float          total = 0, lane[SIMPLE_NN_WIDTH];
    int            i = 0;
    SIMPLE_NN_FLAT for (int j = 0; j < 4; ++j) sum[j] = simple_nn_splat(0);
    for (; i + 4 * SIMPLE_NN_WIDTH <= n; i += 4 * SIMPLE_NN_WIDTH)
        SIMPLE_NN_FLAT for (int j = 0; j < 4; ++j)
            sum[j] += simple_nn_load(a + i + j * SIMPLE_NN_WIDTH) *
                      simple_nn_load(b + i + j * SIMPLE_NN_WIDTH);
    for (; i + SIMPLE_NN_WIDTH <= n; i += SIMPLE_NN_WIDTH)
        sum[0] += simple_nn_load(a + i) * simple_nn_load(b + i);
    simple_nn_store(lane, (sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; i < n; ++i) total += a[i] * (float)b[i];
    for (int j = 0; j < SIMPLE_NN_WIDTH; ++j) total += lane[j];
    return total;
}

/* y[rows][out] = x[rows][in] w[out][in]^T + b[out]; b may be NULL. */
SIMPLE_NN_INLINE void simple_nn_linear(float *y, const float *x, const float *w, 
                                       const float *b, int rows, int in, int out)
{
    for (int i = 0; i < rows; ++i, x += in, y += out) {
        const float *row = w;
        int j = 0;
        for (; j + 8 <= out; j += 8, row += 8 * in) simple_nn_eight(y + j, x, row, in);
        for (; j < out; ++j, row += in) y[j] = simple_nn_dot(x, row, in);
        if (b) simple_nn_accumulate(y, b, out);
    }
}

SIMPLE_NN_FN void simple_nn_apply_relu(float x, float *result)
{
    *result = simple_nn_where(x <= 0, 0, x);
}

SIMPLE_NN_FN void simple_nn_apply_sigmoid(float x, float *result)
{
    *result = simple_nn_sigmoid(x);
}
const simple_nn_weights simple_nn_trained = {
    { /* fc1_weight */
        0.31337005f, 0.5370398f, -0.37747425f, 1.1209477f, -0.2033218f, 1.002814f, 1.5132529f, 0.071121134f,
        0.761164f, 0.6552506f, -0.27518523f, 1.0536286f, 0.5795986f, 0.2811143f, 0.24042445f, 0.4144894f,
        0.5260318f, 0.8784575f, -0.8902418f, 0.72591054f, -1.6746097f, 0.034419913f, -0.47613773f,
        -0.9070228f, -0.30410126f, -0.8960475f, -1.3355733f, -0.28894335f, -1.072016f, -0.7691143f,
        -0.7771421f, -1.1773026f, -0.4677784f, -0.9306272f, -0.6634491f, -0.3210667f, -0.94257873f,
        -0.25329322f, -1.5327005f, -0.7315352f, -0.9135935f, -1.0568844f, -0.77029485f, -0.7051933f,
        -0.8888353f, -0.89081603f, -0.9645295f, -0.5792158f, -0.9799015f, -0.62844616f, -1.0770122f,
        -0.81668997f, -0.7439875f, -0.72058034f, -0.7350739f, -0.6367223f, -0.8891496f, -0.71927744f,
        -0.8027379f, -1.0484359f, 0.28486764f, 0.80225736f, 0.019653898f, 0.4802773f, 0.74403745f, 0.9027388f,
        0.8482118f, 0.37209523f, 0.687096f, 0.7229371f, 0.64948857f, 0.7562091f, 0.95193565f, 0.9276911f,
        0.77676654f, 0.5418606f, 0.2438817f, 0.5591967f, 0.11393583f, 0.41295248f, -0.35389748f, -0.39852285f,
        -0.28590706f, -0.28602427f, -0.29860568f, -0.2696277f, -0.2962542f, -0.32121527f, -0.30763763f,
        -0.25327873f, -0.40354183f, -0.27530986f, -0.29063243f, -0.33132508f, -0.4447478f, -0.34578788f,
        -0.34385973f, -0.33651483f, -0.36387086f, -0.24593052f, -0.04236851f, -0.25728983f, -2.0504892f,
        -0.27924332f, -1.1105901f, -0.852115f, -1.1745797f, -1.4914771f, -1.4753869f, -2.2569172f,
        -0.22545181f, -0.21400161f, -1.7991465f, -1.6842525f, -0.28412744f, -1.2489858f, -0.6295171f,
        -2.1027584f, -1.2585015f, -1.1383879f, -0.5219262f, -0.53969175f, -0.5982671f, -0.44288322f,
        -0.6225609f, -0.6517338f, -0.48252547f, -0.47841787f, -0.50454444f, -0.56787044f, -0.55519766f,
        -0.6373102f, -0.595558f, -0.64186853f, -0.7318094f, -0.43169835f, -0.60281f, -0.5989666f,
        -0.59443986f, -0.5823016f, 0.18175851f, -0.20386945f, 0.56693923f, 0.45459074f, 0.27254367f,
        0.4835826f, 0.2787755f, 0.24460258f, 1.1111524f, 1.0931246f, -0.06031115f, 1.2380172f, 0.21134894f,
        -0.7409396f, 0.16503732f, 1.2429537f, 0.38309318f, 0.13905013f, 0.6296172f, 0.49606538f, -0.48577276f,
        -0.55785704f, -0.34293747f, -0.3942123f, -0.4479335f, -0.44078773f, -0.7881667f, -0.49006745f,
        -0.7693277f, -0.35360858f, -0.8912081f, -0.5457184f, -0.31744653f, -0.4422345f, -0.67686325f,
        -0.3736455f, -1.0046314f, -0.07183305f, -0.622895f, -0.29352692f, -0.56576395f, -0.4666326f,
        -0.5931638f, -0.03913137f, -0.5401213f, 0.05842267f, -0.17869316f, 0.20357974f, -0.16038978f,
        -0.16173726f, 0.05060362f, -0.36523527f, -0.98896056f, -0.9435822f, -1.5998548f, -0.5131951f,
        -0.7476834f, -0.8879299f, -0.40763324f, -0.3271173f, 0.24868214f, 0.43663597f, 0.78832895f,
        0.38823137f, 0.48164126f, 0.30084398f, 0.6847005f, 0.5194589f, 0.48079368f, 0.3026227f, 0.55735666f,
        0.52281106f, 0.39923918f, 0.31531566f, 0.62710726f, 0.595854f, 0.40632594f, 0.58770484f, 0.4751118f,
        0.47410247f, 0.10805022f, 0.113651395f, 0.05324549f, 0.054123614f, 0.33881438f, -0.0927694f,
        0.15120037f, -0.10304842f, 0.19629562f, 0.03390358f, -0.08179739f, -0.015352126f, 0.10664165f,
        0.17728263f, 0.14647146f, 0.069044314f, -0.045169845f, -0.07366526f, -0.09913231f, -0.117477715f,
        -0.6198212f, -0.6797004f, -0.56397355f, -0.5481938f, -0.38782752f, -0.45975256f, -0.56374925f,
        -0.36346263f, -0.546449f, -0.43755534f, -0.7201407f, -0.63311136f, -0.6437868f, -0.4687165f,
        -0.95047665f, -0.7138341f, -0.6709921f, -0.45409188f, -0.6978419f, -0.59197783f, -0.6442509f,
        -0.44632408f, -0.73080623f, -0.7473547f, -0.6072926f, -0.7278886f, -0.70140105f, -0.432958f,
        -0.5325765f, -0.51285046f, -0.6342085f, -0.6116274f, -0.6242182f, -0.7323321f, -0.71062195f,
        -0.5951704f, -0.565951f, -0.67401934f, -0.7415179f, -0.6742462f, 1.0207057f, 0.9553381f, -0.14245853f,
        0.9994475f, 1.2381475f, 1.2270668f, 0.28872895f, 1.0511682f, -0.050094508f, 0.8579575f, 1.6865548f,
        0.79216474f, 1.1821218f, 1.4695235f, 0.7858879f, 0.58863944f, 1.0599089f, 1.1399716f, 0.8513698f,
        0.054522466f, -0.36513558f, -0.4842015f, -0.3468454f, -0.46630007f, -0.33024552f, -0.13293178f,
        -0.6944658f, -0.50148565f, -0.3298506f, -0.034150977f, -0.8125211f, -0.7115287f, -0.52925557f,
        -0.51223886f, -0.6824502f, -0.7415309f, -0.867953f, -0.12510769f, -0.7150552f, -0.34434438f,
        0.40501738f, -0.24166572f, -0.5023976f, -0.10926027f, -0.4844335f, -0.20517531f, -0.25747702f,
        -0.68503505f, -0.36592293f, -0.61046344f, -0.22034422f, -0.056786012f, 0.037076198f, -0.3875731f,
        -0.15425417f, -0.105895385f, -0.17990923f, -0.33525366f, -0.22512618f, -0.28757197f, -0.54616696f,
        -0.3988007f, -0.9878277f, -0.7450356f, -1.1025776f, -0.6974813f, -0.23107822f, -0.88899493f,
        -0.41967994f, -0.94822896f, -0.76892143f, -1.0188668f, -1.0202805f, -0.95149523f, -1.0506476f,
        -0.84683603f, -0.3088564f, -1.1937022f, -0.3160769f, -1.0888481f, 0.5536574f, 0.62969077f, 0.7124102f,
        0.55585265f, 0.6297521f, 0.59681857f, 0.5428116f, 0.44367328f, 0.504837f, 0.5143237f, 0.51982474f,
        0.6249691f, 0.505783f, 0.56920207f, 0.65668154f, 0.66160923f, 0.5994124f, 0.60762995f, 0.72994167f,
        0.4247337f, 0.8089371f, 0.64449424f, 0.5532457f, 0.80275625f, 0.9173271f, 0.52740794f, 0.87419647f,
        0.64677286f, 0.6225338f, 0.7873887f, 0.60582805f, 0.45716578f, 0.5928171f, 0.21630074f, 0.60289186f,
        0.65758777f, 0.78884804f, 0.7829341f, 0.7429844f, 0.6599439f, -0.3627532f, -0.74787396f, -0.64835304f,
        -0.6732104f, -0.60855335f, -0.44253486f, -0.5545104f, -0.7000566f, -0.5443722f, -0.45687383f,
        -0.7122852f, -0.32124683f, -0.35444844f, -0.41303554f, -0.5397645f, -0.46500188f, -0.4709966f,
        -0.646168f, -0.5853509f, -0.60803276f, -0.66874754f, -0.5982082f, -0.6035207f, -0.49846482f,
        -0.639489f, -0.4588277f, -0.54840547f, -0.34500816f, -0.43544394f, -0.43907246f, -0.4576623f,
        -0.54111147f, -0.5887731f, -0.67481786f, -0.6440363f, -0.50347984f, -0.5016913f, -0.4792227f,
        -0.6645831f, -0.43094343f, 0.5986545f, 0.3822798f, 0.6605541f, 0.62146103f, 0.63075846f, 0.33043346f,
        0.62765825f, 0.37098226f, 0.46735f, 0.44480252f, 0.6243589f, 0.45851055f, 0.46880615f, 0.45049152f,
        0.66212964f, 0.5772608f, 0.41255093f, 0.45152313f, 0.53802854f, 0.5655028f, 1.2124631f, 0.6071726f,
        0.71870846f, 0.68032515f, 0.55073726f, 1.0296636f, 0.35847697f, 1.0026414f, 0.25875065f, 0.2932941f,
        0.3977309f, 0.4158287f, 0.9087244f, 0.31847608f, 0.5484101f, 0.5133589f, 0.84261507f, 0.5146716f,
        0.57361305f, 0.21592823f, 0.40908518f, 0.34892234f, 0.73346937f, 0.55380726f, 0.6283652f, 0.3849617f,
        0.6285039f, 0.62630165f, 0.55071366f, 0.30801973f, 0.8363295f, 0.36528337f, 0.42381918f, 0.43880618f,
        0.83383214f, 0.6394304f, 0.52415156f, 0.52602404f, 0.6415161f, 0.48788702f, 0.58068013f, 0.7713849f,
        0.47770426f, 0.6894905f, 0.6427639f, 0.5014216f, 0.6488865f, 0.6219054f, 0.7299029f, 0.5359397f,
        0.7105642f, 0.48220813f, 0.6546958f, 0.54811746f, 0.87561053f, 0.5060566f, 0.8691039f, 0.45559883f,
        0.78106385f, 0.74050957f, -0.46245146f, -0.47892627f, -0.5076219f, -0.33368567f, -0.45539308f,
        -0.51150036f, -0.29848593f, -0.3324364f, -0.32704327f, -0.47418565f, -0.3859418f, -0.471834f,
        -0.31517044f, -0.45155805f, -0.66195434f, -0.2640324f, -0.27621537f, -0.6222336f, -0.34585014f,
        -0.26544416f, -0.5566628f, -0.057954617f, -0.4091647f, -0.71131676f, -0.100210235f, -0.3626246f,
        -0.5677921f, -0.61006093f, -0.12613888f, -0.36017615f, -0.20309111f, -0.53361285f, -0.7789772f,
        -0.8610644f, -0.54496354f, -0.49949658f, -0.29072046f, -0.8916292f, -0.5049349f, -0.78058946f,
        -0.5843494f, -0.6566571f, -0.6361275f, -0.6944328f, -0.5962474f, -0.5423152f, -0.5061612f,
        -0.59762084f, -0.65239906f, -0.46294793f, -0.6371342f, -0.49927154f, -0.6115385f, -0.5995905f,
        -0.7329482f, -0.5645879f, -0.60902995f, -0.56904167f, -0.6182964f, -0.5907684f, -0.32833093f,
        -0.2995736f, -0.4726886f, -0.5345847f, -0.44071633f, -0.37051848f, -0.40286356f, -0.5198634f,
        -0.37484834f, -0.24045731f, -0.3474035f, -0.2727945f, -0.40341315f, -0.40342095f, -0.36638486f,
        -0.43942118f, -0.37035927f, -0.3719856f, -0.39640936f, -0.3956624f, -0.54255784f, -0.695856f,
        -0.5581558f, -0.42140362f, -0.4196868f, -0.4311627f, -0.5775758f, -0.34723908f, -0.552066f,
        -0.58679205f, -0.5530508f, -0.35864857f, -0.39558253f, -0.35871035f, -0.6072477f, -0.6503876f,
        -0.4234958f, -0.48918346f, -0.55283916f, -0.39695764f, 0.66324365f, 0.6799055f, 0.6687153f,
        0.72854847f, 0.65179676f, 0.60284525f, 0.6352933f, 0.5594302f, 0.67815554f, 0.5339175f, 0.69879925f,
        0.5994295f, 0.592286f, 0.59959716f, 0.8028777f, 0.7462631f, 0.6069853f, 0.65964735f, 0.7558812f,
        0.57073766f, -0.28749886f, -0.5405338f, -0.41693398f, -0.86152947f, -0.6871323f, -1.11564f,
        -1.0059885f, -1.121302f, -0.38637993f, -0.368301f, -0.7060863f, -0.065410525f, -0.24865127f,
        -0.5048276f, 0.5544383f, -1.2226475f, 0.20184772f, -0.17592834f, -1.1439275f, -0.4327031f, 0.6027102f,
        0.4893122f, 0.60468805f, 0.70508146f, 0.7438661f, 0.7813102f, 0.5593736f, 0.67133355f, 0.8684779f,
        0.48454672f, 0.6297081f, 0.49673048f, 0.5729827f, 0.5252228f, 0.80017024f, 0.8914052f, 0.6758651f,
        0.6069677f, 0.7886123f, 0.5125584f, 0.37710342f, 0.6538745f, 0.525981f, 0.7146024f, 0.78211087f,
        0.36796343f, 0.40221804f, 0.35402313f, 0.60152435f, 0.41060266f, 0.70670116f, 0.53547746f, 0.4658049f,
        0.22478369f, 0.6390098f, 0.71763605f, 0.6964085f, 0.7692129f, 0.5337751f, 0.30893636f, 1.4545242f,
        1.6285709f, 2.0607116f, 1.1563663f, 1.2312647f, 0.94968754f, 0.947559f, 0.17117296f, -0.4088186f,
        0.25590754f, 0.81748825f, 0.6809218f, -0.40831095f, 1.8220475f, 1.5862676f, 0.045023672f, 1.3542485f,
        -0.20349063f, 0.2350284f, 0.8341212f, -0.40377054f, -0.18630809f, -0.15296745f, -0.64691055f,
        -0.19227675f, -0.43662962f, -0.5798507f, -0.43784764f, -0.6280951f, -0.58065987f, -0.58269274f,
        -0.49558207f, -0.23955838f, -0.57072264f, -0.6260086f, -0.3483098f, -0.5499402f, -0.27945757f,
        -0.5962602f, -0.4705853f, 0.4865215f, 0.49745294f, 0.27510256f, 0.49236727f, 0.63376594f, 0.4074293f,
        0.59055346f, 0.29336256f, 0.45954692f, 0.3681671f, 0.6647136f, 0.5712622f, 0.3277946f, 0.4744967f,
        0.6375402f, 0.4494601f, 0.63206196f, 0.56114167f, 0.6996094f, 0.31919694f, -0.7227355f, -0.70053154f,
        -0.91110337f, -0.68425035f, -0.9140541f, -0.978924f, -0.5728596f, -0.9170351f, -0.698996f,
        -1.2837807f, -0.7874203f, -1.1163809f, -0.031576436f, -0.5319028f, -0.86343f, -0.27334073f,
        -0.39728698f, -0.4454404f, -0.7913002f, -0.89715916f, 0.32670248f, 1.2538075f, 0.3024566f, 0.8688383f,
        0.8460333f, 0.8598583f, 0.83399093f, 0.59646946f, 1.2222128f, 1.0734249f, 0.596867f, 0.64171606f,
        1.0113983f, 1.1633431f, 1.1159399f, 0.74266016f, 0.6523495f, 0.83589405f, 0.6974735f, 0.99550945f,
        -0.48138478f, -0.7529637f, -0.6030425f, -0.47664067f, -0.6926651f, -0.5473796f, -0.77143854f,
        -0.6324777f, -1.0937638f, -0.27598903f, -1.0640844f, -0.63082844f, -0.687083f, -0.6647573f,
        -0.43721327f, -0.40362045f, -1.1168967f, -0.21574467f, -0.5306165f, -0.5860436f, 1.0123572f,
        0.75573117f, 0.8351982f, 0.38569862f, -0.22140415f, 1.1854054f, 0.1705634f, 1.1579281f, 0.82452804f,
        0.43926618f, 0.94586533f, 0.916551f, 1.3241746f, 0.34221333f, 0.46648362f, 0.8771247f, 1.0029736f,
        0.7441766f, 0.46688476f, 0.0401781f, -0.62627983f, -0.8003527f, -0.48624432f, -0.5180711f,
        -0.5267475f, -0.3420807f, -0.38009036f, -0.52184916f, -0.38667297f, -0.33468843f, -0.5393286f,
        -0.40937942f, -0.41879153f, -0.26879516f, -0.64253116f, -0.52713674f, -0.34552127f, -0.20026281f,
        -0.32824498f, -0.6806405f, 0.61709493f, 0.60458773f, 0.3721124f, 0.7059803f, 0.64786345f, 0.5274098f,
        0.47990027f, 0.5928249f, 0.60204047f, 0.4694214f, 0.60075706f, 0.37966347f, 0.4155497f, 0.42611894f,
        0.58371896f, 0.5652081f, 0.68442476f, 0.6695912f, 0.6252032f, 0.6894974f, 0.38190442f, 0.5943832f,
        0.38367328f, 0.39572108f, 0.28590164f, 0.47185373f, 0.37961784f, 0.5489908f, 0.7270086f, 0.26641208f,
        0.6293553f, 0.5521626f, 0.67354095f, 0.41891903f, 0.68848217f, 0.58307385f, 0.33200356f, 0.43060085f,
        0.5938299f, 0.441195f, -0.5979246f, -0.6056082f, -0.6174715f, -0.7517471f, -0.70731336f, -0.4494641f,
        -0.321571f, -0.6596373f, -0.4200683f, -0.61089593f, -0.6081802f, -0.54606116f, -0.5243184f,
        -0.3807218f, -0.6226413f, -0.39377436f, -0.22777145f, -0.4707583f, -0.2917406f, -0.67163557f,
        -0.77160096f, -0.26836908f, -0.69894576f, -0.49059993f, -0.66500324f, -0.57779425f, -1.0221962f,
        -0.8098267f, -0.9625757f, -0.10151101f, -0.60612464f, -0.5811408f, -0.6747661f, -0.7234477f,
        -0.07250945f, -0.51326925f, -0.39909205f, -0.0704986f, -0.6197002f, -0.6960955f, -0.5181293f,
        -0.25273752f, -0.31621394f, -0.4211638f, -0.29207316f, -0.587985f, -0.5758752f, -0.3571073f,
        -0.44919527f, -0.5483691f, -0.6861441f, -0.6615025f, -0.41794628f, -0.48509583f, -0.4334493f,
        -0.4359672f, -0.6396985f, -0.49368396f, -0.7407966f, -0.3293258f, -1.2825613f, -0.80774516f,
        -0.6095296f, -0.5051924f, -0.4610818f, -0.6132711f, -0.29905608f, -0.8046088f, -0.8604942f,
        -0.4743548f, -1.245982f, -0.88054866f, -0.6029781f, -0.5354234f, -0.60001576f, -0.5136379f,
        -0.39539057f, -0.41729394f, -0.205283f, -1.1984994f, 0.3716721f, 0.30012542f, 0.23390482f, 0.5289626f,
        0.3974422f, 0.66782594f, 0.2649072f, 0.5023484f, 0.5452777f, 0.66048604f, 0.5888453f, 0.54250765f,
        0.7074919f, 0.62121093f, 0.49018037f, 0.58291715f, 0.40193135f, 0.5551243f, 0.30778107f, 0.35879835f
    },
    { /* fc1_bias */
        0.443101f, 0.5314277f, 0.53760135f, 0.57332134f, 0.2709795f, 0.29798216f, 0.31623417f, 0.58971936f,
        0.45036685f, 0.2480536f, 0.43917572f, -0.22966744f, 0.3843428f, 0.34350494f, 0.8928369f, 0.49442703f,
        0.18665218f, 0.75088704f, 0.5473742f, 0.76334405f, 0.45919827f, 0.4171529f, 0.5103356f, 0.7136485f,
        0.57267237f, 0.7091952f, 0.4513099f, 0.32367614f, 0.38347188f, 0.37765342f, 0.41654944f, 0.40397057f,
        0.37847105f, 0.43736875f, 0.7184856f, 0.7650698f, 0.45102268f, 0.6103178f, 0.5641526f, 0.8694337f,
        0.48339838f, 0.64698035f, 0.45856053f, 0.50002784f, 0.45682344f, 0.40767652f, 0.41337562f, 0.3553689f,
        0.5927657f, 0.57367975f
    },
    { /* fc2_weight */
        0.97362417f, -1.006515f, -1.0622691f, 0.6879164f, -0.45902023f, -1.7101835f, -0.60853475f,
        0.69886607f, -0.71054196f, -0.7894769f, 0.6614181f, -0.064567044f, -0.6147274f, -0.5941677f,
        1.1999322f, -0.60325646f, -0.38584298f, -0.95625716f, 0.6502956f, 0.7072544f, -0.5549265f,
        -0.59438485f, 0.638548f, 0.70200783f, 0.6782757f, 0.6384006f, -0.57581794f, -0.8187503f, -0.4755431f,
        -0.5578239f, -0.57032263f, 0.6329818f, -0.9374318f, 0.62075686f, 0.5223037f, 1.093232f, -0.6052939f,
        0.57085705f, -0.9631607f, 0.95102f, -0.75946075f, 0.9509349f, -0.55703926f, 0.60371333f, 0.70454836f,
        -0.58173776f, -0.8162525f, -0.5292138f, -0.73331255f, 0.67421025f
    },
    { /* fc2_bias */
        0.31819394f
    },
};


void simple_nn_forward(const simple_nn_weights *weights, const float *x, float *t9,
                       simple_nn_scratch *scratch)
{
    float *const fc1 = scratch->f32 + 0; /* fc1 [1,50] */
    simple_nn_linear(fc1, x, weights->fc1_weight, weights->fc1_bias, 1, 20, 50);
    for (int i = 0; i < 50; ++i)
        simple_nn_apply_relu(fc1[i], &fc1[i]);
    simple_nn_linear(t9, fc1, weights->fc2_weight, weights->fc2_bias, 1, 50, 1);
    simple_nn_apply_sigmoid(t9[0], &t9[0]);
}
#undef SIMPLE_NN_INFERENCE_IMPLEMENTATION
#endif
