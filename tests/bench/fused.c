/* fused.c - the chain y = gelu(x * scale + shift) + r over 64x256x28x28 floats, scale and shift by channel,
 * forward and backward (gradients of x, scale and shift; r's is y's), in one of three ways.
 * tests/bench/run.py runs them in turns, and PyTorch's.
 *
 * Usage: fused generated|hand|plain THREADS      prints: NAME THREADS median-ms minimum-ms peak-RSS-MiB
 *     generated   the kernels that the generator makes of fused.json
 *     hand        one loop in each direction, written by hand with AVX-512; says so where that is missing
 *     plain       gpunn's single ops, in place where a plan would have them so
 * With BENCH_BRIEF in the environment nothing is repeated for accuracy. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"

#define FUSED_KERNELS_IMPLEMENTATION
#include "fused_kernels.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#ifndef FUSED_BATCH
#define FUSED_BATCH 64
#endif
enum { BATCH = FUSED_BATCH, CHANNELS = 256, PLANE = 28 * 28, COUNT = BATCH * CHANNELS * PLANE, REPEATS = 9 };

typedef struct chain {
    float *x, *scale, *shift, *r, *y, *grad_y, *grad_x, *grad_scale, *grad_shift;
    float *before, *activated; /* plain: gelu's operand and result */
    void  *workspace;
    int    threads;
    void  *context; /* of the backend */
} chain;

static void fail(const char *what)
{
    fprintf(stderr, "fused: %s\n", what);
    exit(1);
}

static float *floats(int64_t count, float low, float high)
{
    static uint32_t state = 1;
    float          *x = (float *)aligned_alloc(64, (size_t)count * sizeof(float));
    if (x == NULL) fail("out of memory");
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = low + (high - low) * (float)(state >> 8) / 16777216.0f;
    }
    return x;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double peak_memory(void)
{
    long  kib = 0;
    char  line[128];
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1) break;
    if (file) fclose(file);
    return (double)kib / 1024;
}

/* ---- generated ----------------------------------------------------------------------------------------- */
static void run_generated(chain *c, int direction)
{
    const gpunn_kernel_program *program = &fused_kernels.kernels[0].program[direction];
    float                      *values[] = {c->x, c->scale, c->shift, c->r};
    float                      *gradients[] = {c->grad_x, c->grad_scale, c->grad_shift, NULL};
    void                       *data[16];
    unsigned char               accumulate[16] = {0};
    gpunn_kernel_call           call;
    memset(&call, 0, sizeof call);
    for (int i = 0; i < program->operand_count; i++) {
        const gpunn_kernel_operand *o = &program->operands[i];
        if (o->role == GPUNN_KERNEL_KEPT || (o->index < 0 && o->index != -4))
            fail("fused.json makes another group");
        if (o->role == GPUNN_KERNEL_VALUE)
            data[i] = o->index < 0 ? c->y : values[o->index];
        else
            data[i] = o->index < 0 ? c->grad_y : gradients[o->index];
    }
    call.data = data;
    call.lanes = gpunn__widest_vector();
    call.accumulate = accumulate;
    call.batch = BATCH;
    call.threads = c->threads;
    call.workspace = c->workspace;
    if (program->cpu(&call) != 0) fail("a kernel failed");
}

static void generated(chain *c)
{
    run_generated(c, GPUNN_KERNEL_FORWARD);
    run_generated(c, GPUNN_KERNEL_BACKWARD);
}

/* ---- by hand: erf by Abramowitz and Stegun, 7.1.26, which shares its exp with the derivative ----------- */
#ifdef __AVX512F__
static inline __m512 set(float x)
{
    return _mm512_set1_ps(x);
}

/* Phi(z), and *e = exp(-z^2 / 2) */
static inline __m512 cdf(__m512 z, __m512 *e)
{
    __m512 a = _mm512_mul_ps(_mm512_abs_ps(z), set(0.70710678f)),
           d = _mm512_fmadd_ps(set(0.3275911f), a, set(1));
    __m512 t = _mm512_rcp14_ps(d);
    t = _mm512_mul_ps(t, _mm512_fnmadd_ps(d, t, set(2)));
    __m512 q = _mm512_fmadd_ps(set(1.061405429f), t, set(-1.453152027f));
    q = _mm512_fmadd_ps(q, t, set(1.421413741f));
    q = _mm512_fmadd_ps(q, t, set(-0.284496736f));
    q = _mm512_fmadd_ps(q, t, set(0.254829592f));
    __m512 power = _mm512_mul_ps(_mm512_mul_ps(a, a), set(-1.442695041f)), n = _mm512_roundscale_ps(power, 8);
    __m512 f = _mm512_sub_ps(power, n), p = _mm512_fmadd_ps(set(1.3333558e-3f), f, set(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, f, set(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, f, set(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, f, set(6.9314718e-1f));
    *e = _mm512_scalef_ps(_mm512_fmadd_ps(p, f, set(1)), n);
    __m512 half = _mm512_mul_ps(_mm512_mul_ps(_mm512_mul_ps(q, t), *e), set(0.5f));
    return _mm512_mask_sub_ps(half, _mm512_cmp_ps_mask(z, set(0), _CMP_GE_OQ), set(1), half);
}

static void hand_forward(void *arg, int index, int threads)
{
    const chain *c = (const chain *)arg;
    for (int i = index * BATCH * CHANNELS / threads; i < (index + 1) * BATCH * CHANNELS / threads; i++) {
        __m512  s = set(c->scale[i % CHANNELS]), b = set(c->shift[i % CHANNELS]), e;
        int64_t at = (int64_t)i * PLANE;
        for (int64_t j = at; j < at + PLANE; j += 16) {
            __m512 z = _mm512_fmadd_ps(_mm512_loadu_ps(c->x + j), s, b);
            _mm512_storeu_ps(c->y + j, _mm512_fmadd_ps(z, cdf(z, &e), _mm512_loadu_ps(c->r + j)));
        }
    }
}

static void hand_backward(void *arg, int index, int threads)
{
    const chain *c = (const chain *)arg;
    for (int k = index * CHANNELS / threads; k < (index + 1) * CHANNELS / threads; k++) {
        __m512 s = set(c->scale[k]), b = set(c->shift[k]), e, sum_scale = set(0), sum_shift = set(0);
        for (int n = 0; n < BATCH; n++) {
            int64_t at = ((int64_t)n * CHANNELS + k) * PLANE;
            for (int64_t j = at; j < at + PLANE; j += 16) {
                __m512 x = _mm512_loadu_ps(c->x + j), z = _mm512_fmadd_ps(x, s, b), p = cdf(z, &e);
                __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(z, e), set(0.39894228f), p);
                __m512 g = _mm512_mul_ps(slope, _mm512_loadu_ps(c->grad_y + j));
                sum_scale = _mm512_fmadd_ps(g, x, sum_scale);
                sum_shift = _mm512_add_ps(sum_shift, g);
                _mm512_storeu_ps(c->grad_x + j, _mm512_mul_ps(g, s));
            }
        }
        c->grad_scale[k] = _mm512_reduce_add_ps(sum_scale);
        c->grad_shift[k] = _mm512_reduce_add_ps(sum_shift);
    }
}

static void hand(chain *c)
{
    gpunn_parallel(c->threads, hand_forward, c);
    gpunn_parallel(c->threads, hand_backward, c);
}
#else
static void hand(chain *c)
{
    (void)c;
    fail("hand needs AVX-512");
}
#endif

/* ---- gpunn's single ops -------------------------------------------------------------------------------- */
static gpunn_value value(float *data, bool whole)
{
    gpunn_value v;
    memset(&v, 0, sizeof v);
    v.data = data;
    v.dtype = GPUNN_F32;
    v.rank = whole ? 4 : 3;
    const int64_t dim[4] = {BATCH, CHANNELS, 28, 28};
    for (int i = 0; i < v.rank; i++) v.dim[i] = whole ? dim[i] : i == 0 ? CHANNELS : 1;
    v.count = whole ? COUNT : CHANNELS;
    return v;
}

/* b NULL: unary. Gradients NULL: not wanted; grad NULL: forward. */
static void step(chain *c, const gpunn__operation *operation, float *a, float *b, bool narrow, float *out,
                 float *grad, float *grad_a, float *grad_b)
{
    static gpunn_attributes none;
    static gpunn_run_state  state;
    gpunn_value             in[2] = {value(a, true), value(b, !narrow)};
    gpunn_value             grad_in[2] = {value(grad_a, true), value(grad_b, !narrow)};
    bool                    accumulate[2] = {false, false};
    gpunn_step              s;
    memset(&s, 0, sizeof s);
    s.op = operation->op;
    s.operation = operation;
    s.backward = grad != NULL;
    s.training = true;
    s.precision = GPUNN_PRECISION_F32;
    s.name = "";
    s.attr = &none;
    s.input_count = b || narrow ? 2 : 1;
    s.in = in;
    s.out = value(out, true);
    s.grad_in = grad_in;
    s.accumulate = accumulate;
    s.grad_out = value(grad, true);
    s.state = &state;
    const gpunn_step    *failed;
    const gpunn_backend *cpu = gpunn__cpu_backend();
    if (cpu->prepare(c->context, &s) != GPUNN_OK) fail("an op failed");
    s.workspace = c->workspace;
    if (cpu->run(c->context, &s, 1, &failed) != GPUNN_OK) fail("an op failed");
}

static void plain(chain *c)
{
    step(c, &gpunn__operation_mul, c->x, c->scale, true, c->before, NULL, NULL, NULL);
    step(c, &gpunn__operation_add, c->before, c->shift, true, c->before, NULL, NULL, NULL);
    step(c, &gpunn__operation_gelu, c->before, NULL, false, c->activated, NULL, NULL, NULL);
    step(c, &gpunn__operation_add, c->activated, c->r, false, c->y, NULL, NULL, NULL);
    step(c, &gpunn__operation_gelu, c->before, NULL, false, NULL, c->grad_y, c->activated, NULL);
    step(c, &gpunn__operation_add, NULL, NULL, true, NULL, c->activated, NULL, c->grad_shift);
    step(c, &gpunn__operation_mul, c->x, c->scale, true, NULL, c->activated, c->grad_x, c->grad_scale);
}

/* ---- the same numbers, then time ----------------------------------------------------------------------- */
static void check(const chain *c)
{
    double worst = 0, sum = 0, size = 0;
    for (int64_t i = 0; i < COUNT; i += 997) {
        int64_t k = i / PLANE % CHANNELS;
        double  z = (double)c->x[i] * (double)c->scale[k] + (double)c->shift[k],
               p = 0.5 * erfc(-z * 0.7071067811865476);
        double slope = p + z * 0.3989422804014327 * exp(-0.5 * z * z);
        double forward = fabs(z * p + (double)c->r[i] - (double)c->y[i]);
        double backward = fabs(slope * (double)c->grad_y[i] * (double)c->scale[k] - (double)c->grad_x[i]);
        worst = forward > worst ? forward : worst;
        worst = backward > worst ? backward : worst;
    }
    for (int64_t n = 0; n < BATCH; n++)
        for (int64_t j = 0; j < PLANE; j++) {
            int64_t i = (n * CHANNELS + 7) * PLANE + j;
            double  g = (double)c->grad_x[i] / (double)c->scale[7];
            sum += g;
            size += fabs(g);
        }
    if (worst > 3e-6 || fabs(sum - (double)c->grad_shift[7]) > 1e-5 * size) fail("wrong numbers");
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    chain c;
    void (*run)(chain *) = NULL;
    memset(&c, 0, sizeof c);
    c.threads = argc == 3 ? atoi(argv[2]) : 0;
    if (argc == 3 && strcmp(argv[1], "generated") == 0) run = generated;
    if (argc == 3 && strcmp(argv[1], "plain") == 0) run = plain;
    if (argc == 3 && strcmp(argv[1], "hand") == 0) run = hand;
    if (run == NULL || c.threads < 1) {
        fprintf(stderr, "usage: %s generated|hand|plain THREADS\n", argv[0]);
        return 2;
    }
    c.x = floats(COUNT, -3, 3);
    c.r = floats(COUNT, -1, 1);
    c.grad_y = floats(COUNT, -1, 1);
    c.scale = floats(CHANNELS, 0.5f, 1.5f);
    c.shift = floats(CHANNELS, -0.5f, 0.5f);
    c.y = floats(COUNT, 0, 0);
    c.grad_x = floats(COUNT, 0, 0);
    c.grad_scale = floats(CHANNELS, 0, 0);
    c.grad_shift = floats(CHANNELS, 0, 0);
    c.workspace = floats(1 << 20, 0, 0);
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = c.threads);
    if (dev == NULL) fail("no device");
    c.context = dev->context;
    gpunn__current_pool = &((gpunn__cpu *)dev->context)->pool; /* kernels are called as its ops are */
    if (run == plain) {
        c.before = floats(COUNT, 0, 0);
        c.activated = floats(COUNT, 0, 0);
    }
    run(&c);
    check(&c);
    const bool brief = getenv("BENCH_BRIEF") != NULL;
    double     times[REPEATS], begin = now();
    int64_t    calls = 0;
    /* warm-up; then repeats of 0.2 s */
    for (; (now() - begin < 0.3 && !brief) || calls < (brief ? 1 : 3); calls++) run(&c);
    calls = brief ? 1 : (int64_t)(0.2 / ((now() - begin) / (double)calls)) + 1;
    for (int i = 0; i < REPEATS; i++) {
        begin = now();
        for (int64_t j = 0; j < calls; j++) run(&c);
        times[i] = (now() - begin) / (double)calls;
    }
    qsort(times, REPEATS, sizeof *times, compare);
    printf("%s %d %.6f %.6f %.1f\n", argv[1], c.threads, 1e3 * times[REPEATS / 2], 1e3 * times[0],
           peak_memory());
    return 0;
}
