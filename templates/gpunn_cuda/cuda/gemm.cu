#include "cuda/gemm.h"

/* Whether alternatives may be timed now for .benchmark. Not if the device is deterministic, where results may
 * not vary. Not during a stream capture: the next run outside one does it. */
static gpunn_status gpunn__may_time(gpunn__cuda *cuda, bool *may)
{
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    *may = cuda->args.benchmark && !cuda->args.deterministic;
    if (*may) GPUNN__CUDA(cuda, cudaStreamIsCapturing(cuda->stream, &capture));
    *may = *may && capture == cudaStreamCaptureStatusNone;
    return GPUNN_OK;
}

typedef gpunn_status (*gpunn__timed)(gpunn__cuda *cuda, const void *what);

static gpunn_status gpunn__time_between(gpunn__cuda *cuda, gpunn__timed run, const void *what,
                                        cudaEvent_t begin, cudaEvent_t end, float *milliseconds)
{
    GPUNN__TRY(run(cuda, what)); /* warm-up: loads the kernels */
    GPUNN__CUDA(cuda, cudaEventRecord(begin, cuda->stream));
    for (int repeat = 0; repeat < 4; repeat++) GPUNN__TRY(run(cuda, what));
    GPUNN__CUDA(cuda, cudaEventRecord(end, cuda->stream));
    GPUNN__CUDA(cuda, cudaEventSynchronize(end));
    GPUNN__CUDA(cuda, cudaEventElapsedTime(milliseconds, begin, end));
    return GPUNN_OK;
}

/* Times four runs, after one to warm up. */
static gpunn_status gpunn__time(gpunn__cuda *cuda, gpunn__timed run, const void *what, float *milliseconds)
{
    cudaEvent_t begin, end;
    GPUNN__CUDA(cuda, cudaEventCreate(&begin));
    gpunn_status status = gpunn__cuda_check(cuda, cudaEventCreate(&end), "cudaEventCreate");
    if (status == GPUNN_OK) {
        status = gpunn__time_between(cuda, run, what, begin, end, milliseconds);
        (void)cudaEventDestroy(end);
    }
    (void)cudaEventDestroy(begin);
    return status;
}

#ifdef GPUNN__EMULATOR
#include "reference.h" /* tests/emulator: products and convolutions in plain code */
#else
/* cuBLASLt is column-major, so a row-major matrix is its own transpose there. D = A B becomes D^T = B^T A^T:
 * the operands swap places, and nothing is copied. */
enum { GPUNN__PRODUCT_TAG = 0x70726F64, GPUNN__ALGORITHMS = 8 };

typedef struct gpunn__product_key { /* a key of the cache: no padding */
    int64_t tag, m, n, k, batch, transpose_a, transpose_b, lda, ldb, ldd, stride_a, stride_b, stride_d, dtype,
        d_dtype, precision, accumulate, activation, bias_dtype, residual, aux,
        row_sums;                                                      /* bias_dtype: -1 without a bias */
    int64_t align_a, align_b, align_c, align_d, align_bias, align_aux; /* in bytes */
} gpunn__product_key;

typedef struct gpunn__algorithms {
    cublasLtMatmulDesc_t   operation;
    cublasLtMatrixLayout_t a, b, d; /* as cuBLASLt sees them: a is the product's b */
    cublasLtMatmulAlgo_t   algorithm[GPUNN__ALGORITHMS];
    int                    count, chosen; /* count: 0 if there is none; chosen: index of the one that runs */
    bool                   timed;
} gpunn__algorithms;

static void gpunn__algorithms_free(gpunn__cuda *cuda, void *value)
{
    gpunn__algorithms *all = (gpunn__algorithms *)value;
    if (all->operation) cuda->libraries->cublasLtMatmulDescDestroy(all->operation);
    if (all->a) cuda->libraries->cublasLtMatrixLayoutDestroy(all->a);
    if (all->b) cuda->libraries->cublasLtMatrixLayoutDestroy(all->b);
    if (all->d) cuda->libraries->cublasLtMatrixLayoutDestroy(all->d);
}

static gpunn_status gpunn__algorithms_check(gpunn__cuda *cuda, cublasStatus_t status, const char *call)
{
    if (status == CUBLAS_STATUS_SUCCESS) return GPUNN_OK;
    const bool unsupported = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
                             status == CUBLAS_STATUS_ARCH_MISMATCH;
    gpunn_status meaning = unsupported ? GPUNN_ERR_UNSUPPORTED : GPUNN_ERR_DEVICE;
    if (status == CUBLAS_STATUS_ALLOC_FAILED) meaning = GPUNN_ERR_MEMORY;
    return gpunn__cuda_fail(cuda, meaning, "%s: %s", call, cuda->libraries->cublasLtGetStatusString(status));
}
#define GPUNN__LT(call) GPUNN__TRY(gpunn__algorithms_check(cuda, cuda->libraries->call, #call))
/* Sets an attribute to a value of the given type. */
#define GPUNN__LT_SET(function, object, attribute, type, value)             \
    do {                                                                    \
        const type value_ = (value);                                        \
        GPUNN__LT(function((object), (attribute), &value_, sizeof value_)); \
    } while (0)

static cudaDataType_t gpunn__lt_type(int64_t dtype)
{
    if (dtype == GPUNN_U8) return CUDA_R_8I;
    if (dtype == GPUNN_I32) return CUDA_R_32I;
    if (dtype == GPUNN_F32) return CUDA_R_32F;
    return dtype == GPUNN_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

/* The alignment of a pointer in bytes, at most 64, which is the alignment of values. */
static int64_t gpunn__alignment(const void *pointer)
{
    const uintptr_t bits = (uintptr_t)pointer | 64;
    return (int64_t)(bits & (0 - bits));
}

static gpunn_status gpunn__algorithms_layout(gpunn__cuda *cuda, cublasLtMatrixLayout_t *layout, int64_t dtype,
                                             int64_t rows, int64_t columns, int64_t ld, int64_t batch,
                                             int64_t stride)
{
    GPUNN__LT(
        cublasLtMatrixLayoutCreate(layout, gpunn__lt_type(dtype), (uint64_t)rows, (uint64_t)columns, ld));
    if (batch == 1) return GPUNN_OK;
    GPUNN__LT_SET(cublasLtMatrixLayoutSetAttribute, *layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, int32_t,
                  (int32_t)batch);
    GPUNN__LT_SET(cublasLtMatrixLayoutSetAttribute, *layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                  int64_t, stride);
    return GPUNN_OK;
}

/* Makes the descriptors of a product, with the epilogue for bias, activation and row sums. */
static gpunn_status gpunn__algorithms_describe(gpunn__cuda *cuda, const gpunn__product_key *key,
                                               gpunn__algorithms *all)
{
    const cublasComputeType_t floats = key->dtype == GPUNN_F32 && key->precision == GPUNN_PRECISION_TF32
                                           ? CUBLAS_COMPUTE_32F_FAST_TF32
                                           : CUBLAS_COMPUTE_32F;
    const bool                ta = key->transpose_a, tb = key->transpose_b, bias = key->bias_dtype >= 0;
    const bool                integers = key->dtype == GPUNN_U8;
    GPUNN__LT(cublasLtMatmulDescCreate(&all->operation, integers ? CUBLAS_COMPUTE_32I : floats,
                                       integers ? CUDA_R_32I : CUDA_R_32F));
    GPUNN__TRY(gpunn__algorithms_layout(cuda, &all->a, key->dtype, tb ? key->k : key->n, tb ? key->n : key->k,
                                        key->ldb, key->batch, key->stride_b));
    GPUNN__TRY(gpunn__algorithms_layout(cuda, &all->b, key->dtype, ta ? key->m : key->k, ta ? key->k : key->m,
                                        key->lda, key->batch, key->stride_a));
    GPUNN__TRY(gpunn__algorithms_layout(cuda, &all->d, key->d_dtype, key->n, key->m, key->ldd, key->batch,
                                        key->stride_d));
#define GPUNN__DESCRIBE(attribute, type, value)                                                           \
    GPUNN__LT_SET(cublasLtMatmulDescSetAttribute, all->operation, CUBLASLT_MATMUL_DESC_##attribute, type, \
                  value)
    GPUNN__DESCRIBE(TRANSA, int32_t, tb ? CUBLAS_OP_T : CUBLAS_OP_N);
    GPUNN__DESCRIBE(TRANSB, int32_t, ta ? CUBLAS_OP_T : CUBLAS_OP_N);
    const uint32_t epilogues[] = {0, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_DGELU};
    uint32_t       epilogue = epilogues[key->activation];
    if (bias) epilogue |= CUBLASLT_EPILOGUE_BIAS;
    if (key->row_sums) epilogue |= CUBLASLT_EPILOGUE_BGRADB;
    if (key->aux && key->activation == GPUNN__GELU_TANH) epilogue |= CUBLASLT_EPILOGUE_GELU_AUX;
    if (epilogue == 0) epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    /* The search uses these pointers only for their alignment. */
    if (bias || key->row_sums) GPUNN__DESCRIBE(BIAS_POINTER, void *, (void *)(uintptr_t)key->align_bias);
    if (key->aux) {
        GPUNN__DESCRIBE(EPILOGUE_AUX_POINTER, void *, (void *)(uintptr_t)key->align_aux);
        GPUNN__DESCRIBE(EPILOGUE_AUX_LD, int64_t, key->ldd);
    }
    GPUNN__DESCRIBE(EPILOGUE, uint32_t, epilogue);
#undef GPUNN__DESCRIBE
    return GPUNN_OK;
}

/* Finds algorithms that sum in F32 and in a fixed order, the one estimated to be fastest first. */
static gpunn_status gpunn__algorithms_search(gpunn__cuda *cuda, const gpunn__product_key *key,
                                             gpunn__algorithms *all, cublasLtMatmulPreference_t preference)
{
#define GPUNN__PREFER(attribute, type, value)                                                               \
    GPUNN__LT_SET(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_##attribute, type, \
                  value)
    GPUNN__PREFER(MAX_WORKSPACE_BYTES, uint64_t, cuda->libraries->lt_workspace_bytes);
    GPUNN__PREFER(REDUCTION_SCHEME_MASK, uint32_t, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    GPUNN__PREFER(MIN_ALIGNMENT_A_BYTES, uint32_t, (uint32_t)key->align_b);
    GPUNN__PREFER(MIN_ALIGNMENT_B_BYTES, uint32_t, (uint32_t)key->align_a);
    GPUNN__PREFER(MIN_ALIGNMENT_C_BYTES, uint32_t, (uint32_t)key->align_c);
    GPUNN__PREFER(MIN_ALIGNMENT_D_BYTES, uint32_t, (uint32_t)key->align_d);
#undef GPUNN__PREFER
    const gpunn__libraries         *libraries = cuda->libraries;
    cublasLtMatmulHeuristicResult_t result[GPUNN__ALGORITHMS];
    int                             count = 0;

    const cublasStatus_t status = libraries->cublasLtMatmulAlgoGetHeuristic(
        libraries->lt, all->operation, all->a, all->b, all->d, all->d, preference, GPUNN__ALGORITHMS, result,
        &count);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; i++)
        if (result[i].state == CUBLAS_STATUS_SUCCESS &&
            result[i].workspaceSize <= libraries->lt_workspace_bytes)
            all->algorithm[all->count++] = result[i].algo;
    return GPUNN_OK;
}

/* Finds or makes the cache entry of a product. placed: p's pointers are those of the run. Otherwise all
 * pointers count as aligned. Returns GPUNN_ERR_UNSUPPORTED if there is no algorithm. */
static gpunn_status gpunn__algorithms_find(gpunn__cuda *cuda, const gpunn__product *p, bool placed,
                                           gpunn__algorithms **found)
{
    gpunn__product_key key;
    memset(&key, 0, sizeof key);
    key.tag = GPUNN__PRODUCT_TAG;
    key.m = p->m, key.n = p->n, key.k = p->k, key.batch = p->batch;
    key.transpose_a = p->transpose_a, key.transpose_b = p->transpose_b;
    key.lda = p->lda, key.ldb = p->ldb, key.ldd = p->ldd;
    key.stride_a = p->stride_a, key.stride_b = p->stride_b, key.stride_d = p->stride_d;
    key.dtype = p->dtype, key.d_dtype = p->d_dtype, key.precision = p->precision;
    key.accumulate = p->accumulate, key.activation = p->activation,
    key.bias_dtype = p->bias ? p->bias_dtype : -1;
    key.residual = p->residual != NULL, key.aux = p->aux != NULL, key.row_sums = p->row_sums != NULL;
    const void *const c = p->residual ? p->residual : p->d, *const bias = p->bias ? p->bias : p->row_sums;
    key.align_a = gpunn__alignment(placed ? p->a : NULL);
    key.align_b = gpunn__alignment(placed ? p->b : NULL);
    key.align_c = gpunn__alignment(placed ? c : NULL);
    key.align_d = gpunn__alignment(placed ? p->d : NULL);
    key.align_bias = gpunn__alignment(placed ? bias : NULL);
    key.align_aux = gpunn__alignment(placed ? p->aux : NULL);
    bool               fresh;
    gpunn__algorithms *all = (gpunn__algorithms *)gpunn__cuda_cached(cuda, &key, sizeof key, sizeof *all,
                                                                     gpunn__algorithms_free, &fresh);
    if (all == NULL)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_MEMORY,
                                "out of host memory for the descriptors of a matrix product");
    /* cuBLASLt takes a bias only in the result's dtype, and relu's derivative only from its own relu's bit
     * mask. */
    const bool known = (p->bias == NULL || p->bias_dtype == p->d_dtype) &&
                       p->activation != GPUNN__RELU_DERIVATIVE;
    if (fresh && known) {
        cublasLtMatmulPreference_t preference;
        GPUNN__TRY(gpunn__algorithms_describe(cuda, &key, all));
        GPUNN__LT(cublasLtMatmulPreferenceCreate(&preference));
        gpunn_status status = gpunn__algorithms_search(cuda, &key, all, preference);
        cuda->libraries->cublasLtMatmulPreferenceDestroy(preference);
        GPUNN__TRY(status);
    }
    *found = all;
    return all->count > 0
               ? GPUNN_OK
               : gpunn__cuda_fail(
                     cuda, GPUNN_ERR_UNSUPPORTED,
                     "cuBLASLt has no algorithm for a matrix product of %lld x %lld by %lld x %lld",
                     (long long)p->m, (long long)p->k, (long long)p->k, (long long)p->n);
}

static gpunn_status gpunn__algorithms_run(gpunn__cuda *cuda, const gpunn__product *p, gpunn__algorithms *all,
                                          int algorithm)
{
    const bool    integers = p->dtype == GPUNN_U8;
    const int32_t unit = 1, none = 0;
    const float   one = 1, beta = p->accumulate || p->residual ? 1 : 0;
    GPUNN__LT(cublasLtMatmul(cuda->libraries->lt, all->operation, integers ? (const void *)&unit : &one, p->b,
                             all->a, p->a, all->b, integers ? (const void *)&none : &beta,
                             p->residual ? p->residual : p->d, all->d, p->d, all->d,
                             &all->algorithm[algorithm], cuda->libraries->lt_workspace,
                             cuda->libraries->lt_workspace_bytes, cuda->stream));
    return GPUNN_OK;
}

typedef struct gpunn__algorithm_run {
    const gpunn__product *p;
    gpunn__algorithms    *all;
    int                   algorithm;
} gpunn__algorithm_run;
static gpunn_status gpunn__algorithm_again(gpunn__cuda *cuda, const void *what)
{
    const gpunn__algorithm_run *run = (const gpunn__algorithm_run *)what;
    return gpunn__algorithms_run(cuda, run->p, run->all, run->algorithm);
}

/* Times all algorithms and keeps the fastest, if gpunn__may_time allows it. */
static gpunn_status gpunn__algorithms_choose(gpunn__cuda *cuda, const gpunn__product *p,
                                             gpunn__algorithms *all)
{
    float best = 0, milliseconds;
    bool  may;
    GPUNN__TRY(gpunn__may_time(cuda, &may));
    if (!may) return GPUNN_OK;
    for (int i = 0; i < all->count; i++) {
        const gpunn__algorithm_run run = {p, all, i};
        GPUNN__TRY(gpunn__time(cuda, gpunn__algorithm_again, &run, &milliseconds));
        if (i > 0 && milliseconds >= best) continue;
        best = milliseconds;
        all->chosen = i;
    }
    all->timed = true;
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_product_prepare(gpunn__cuda *cuda, const gpunn__product *p)
{
    gpunn__algorithms *all;
    return gpunn__algorithms_find(cuda, p, false, &all);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_product(gpunn__cuda *cuda, const gpunn__product *p)
{
    gpunn__algorithms *all;
    GPUNN__TRY(gpunn__algorithms_find(cuda, p, true, &all));
    const void *const bias = p->bias ? p->bias : p->row_sums;
    if (bias)
        GPUNN__LT_SET(cublasLtMatmulDescSetAttribute, all->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                      void *, (void *)bias);
    if (p->aux)
        GPUNN__LT_SET(cublasLtMatmulDescSetAttribute, all->operation,
                      CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, void *, p->aux);
    /* Timing writes the result repeatedly, which would be wrong for an accumulating product. */
    if (!all->timed && all->count > 1 && !p->accumulate) GPUNN__TRY(gpunn__algorithms_choose(cuda, p, all));
    return gpunn__algorithms_run(cuda, p, all, all->chosen);
}
#undef GPUNN__LT_SET
#undef GPUNN__LT
#endif

/* ---- our own product, for what is too small for the library's launches or unsupported by it ------------ */

typedef struct gpunn__product_pair {
    gpunn__product p[2];
} gpunn__product_pair;

/* blockIdx.y is the index of the product. */
static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__product_kernel(gpunn__product_pair pair)
{
    GPUNN__FOLLOW();
    gpunn__product_make(&pair.p[blockIdx.y]);
}

GPUNN__INTERNAL int64_t gpunn__product_tiles(const gpunn__product *p)
{
    return (p->m + GPUNN__TILE - 1) / GPUNN__TILE * ((p->n + GPUNN__TILE - 1) / GPUNN__TILE) * p->batch;
}

GPUNN__INTERNAL bool gpunn__product_is_small(const gpunn__cuda *cuda, const gpunn__product *p)
{
    const int64_t pieces = (p->k + GPUNN__DEPTH - 1) / GPUNN__DEPTH;
    /* the library would need a second pass, so a longer sum pays */
    const bool apart = p->activation == GPUNN__RELU && p->keep_nan;
    return pieces <= (apart ? 8 : 2) && gpunn__product_tiles(p) * pieces <= 2 * cuda->multiprocessors;
}

/* Runs one or two products by our own kernel. */
static gpunn_status gpunn__product_own(gpunn__cuda *cuda, const gpunn__product *p, int count)
{
    gpunn__product_pair pair = {{p[0], p[count - 1]}};
    int64_t             blocks = 1, most = (int64_t)cuda->multiprocessors * 16;
    for (int i = 0; i < count; i++)
        if (gpunn__product_tiles(&p[i]) > blocks) blocks = gpunn__product_tiles(&p[i]);
    return GPUNN__LAUNCH(cuda, gpunn__product_kernel,
                         dim3((unsigned)(blocks < most ? blocks : most), (unsigned)count), GPUNN__THREADS,
                         pair);
}

/* ---- what follows a product's sums: in the library's epilogue, or in passes of ours ---- */

static gpunn_status gpunn__apply(gpunn__cuda *cuda, gpunn_op act, gpunn_value *x, const gpunn_value *y,
                                 gpunn_value *gradient)
{
    const gpunn_attributes none = {};
    bool                   accumulate = false;
    gpunn_step             step = gpunn__activation_step(act, x, y, gradient, &none, &accumulate);
    return gpunn__cuda_map(cuda, &step, step.backward ? GPUNN__BACKWARD : GPUNN__FORWARD);
}

/* The product without what separate passes can do after it. */
static gpunn__product gpunn__product_bare(gpunn__product p)
{
    if (p.activation == GPUNN__GELU_TANH && p.aux) p.d = p.aux;
    p.activation = GPUNN__NO_ACTIVATION;
    p.aux = NULL;
    p.row_sums = NULL;
    return p;
}

/* Runs the bare product, then row sums and activation in separate passes. */
static gpunn_status gpunn__product_apart(gpunn__cuda *cuda, const void *what)
{
    const gpunn__product *const p = (const gpunn__product *)what, bare = gpunn__product_bare(*p);
    const bool  relu = p->activation == GPUNN__RELU || p->activation == GPUNN__RELU_DERIVATIVE;
    const bool  backward = p->activation >= GPUNN__GELU_TANH_DERIVATIVE;
    gpunn_value x, d;
    GPUNN__TRY(gpunn__cuda_product(cuda, &bare));
    if (p->row_sums)
        GPUNN__TRY(
            gpunn__cuda_channel_sums(cuda, p->a, p->dtype, p->k, p->m, 1, p->row_sums, false, p->workspace));
    if (p->activation == GPUNN__NO_ACTIVATION) return GPUNN_OK;
    memset(&d, 0, sizeof d);
    d.rank = 1;
    d.dim[0] = d.count = p->m * p->n;
    d.dtype = p->d_dtype;
    d.data = p->d;
    x = d;
    x.data = backward ? p->aux : bare.d;
    return gpunn__apply(cuda, relu ? GPUNN_OP_RELU : GPUNN_OP_GELU_TANH, &x, backward ? &x : &d,
                        backward ? &d : NULL);
}

static gpunn_status gpunn__product_whole(gpunn__cuda *cuda, const void *what)
{
    return gpunn__cuda_product(cuda, (const gpunn__product *)what);
}

enum { GPUNN__CHOICE_TAG = 0x63686F69 };
typedef struct gpunn__choice_key { /* a key of the cache: no padding */
    int64_t tag, m, n, k, transpose_a, transpose_b, dtype, d_dtype, activation, aux, row_sums;
} gpunn__choice_key;
typedef struct gpunn__choice {
    bool timed, whole;
} gpunn__choice;

static gpunn_status gpunn__product_compare(gpunn__cuda *cuda, const gpunn__product *p, gpunn__choice *choice)
{
    float whole, apart;
    GPUNN__TRY(gpunn__time(cuda, gpunn__product_whole, p, &whole));
    GPUNN__TRY(gpunn__time(cuda, gpunn__product_apart, p, &apart));
    choice->whole = whole <= apart;
    choice->timed = true;
    return GPUNN_OK;
}

/* Whether the library's epilogue does all that p needs. On data-centre GPUs since Hopper, activations and row
 * sums are part of its kernels. On others it runs a separate pass for them that is slower than ours
 * (karpathy/llm.c #338, #591, #653). With .benchmark, both ways are timed. */
static gpunn_status gpunn__product_choose(gpunn__cuda *cuda, const gpunn__product *p, gpunn__action action,
                                          bool *whole)
{
    const bool         follows = p->activation != GPUNN__NO_ACTIVATION || p->row_sums;
    const bool         hides = p->activation == GPUNN__RELU && p->keep_nan;
    const gpunn_status status = hides ? GPUNN_ERR_UNSUPPORTED : gpunn__cuda_product_prepare(cuda, p);
    bool               may, fresh;
    *whole = status == GPUNN_OK && (!follows || (cuda->capability >= 90 && cuda->capability < 120));
    if (status != GPUNN_OK) return status == GPUNN_ERR_UNSUPPORTED ? GPUNN_OK : status;
    if (!follows || action == GPUNN__PREPARE || p->accumulate || !cuda->args.benchmark) return GPUNN_OK;
    const gpunn__choice_key key = {GPUNN__CHOICE_TAG,  p->m,     p->n,       p->k,          p->transpose_a,
                                   p->transpose_b,     p->dtype, p->d_dtype, p->activation, p->aux != NULL,
                                   p->row_sums != NULL};
    gpunn__choice *const choice = (gpunn__choice *)gpunn__cuda_cached(cuda, &key, sizeof key, sizeof *choice,
                                                                      NULL, &fresh);
    if (choice == NULL)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_MEMORY,
                                "out of host memory for the choice of a matrix product's passes");
    GPUNN__TRY(gpunn__may_time(cuda, &may));
    const gpunn_status compared = may && !choice->timed ? gpunn__product_compare(cuda, p, choice) : GPUNN_OK;
    if (choice->timed) *whole = choice->whole;
    /* unsupported at these addresses: gpunn__product_run handles it */
    return compared == GPUNN_ERR_UNSUPPORTED ? GPUNN_OK : compared;
}

/* Whether the library or, for small products, our own kernel computes p's sums with bias and residual. */
static gpunn_status gpunn__product_fits(gpunn__cuda *cuda, const gpunn__product *p, bool *fits)
{
    const gpunn__product bare = gpunn__product_bare(*p);
    const gpunn_status   status = gpunn__product_is_small(cuda, p) ? GPUNN_OK
                                                                   : gpunn__cuda_product_prepare(cuda, &bare);
    *fits = status == GPUNN_OK;
    return status == GPUNN_ERR_UNSUPPORTED ? GPUNN_OK : status;
}

/* Runs a product that fits: with the library's epilogue (whole) or with separate passes. The library may have
 * no algorithm for the alignment of these operands, which shows only now. Then our own kernel runs. */
static gpunn_status gpunn__product_run(gpunn__cuda *cuda, const gpunn__product *p, bool whole)
{
    gpunn_status status = whole ? gpunn__cuda_product(cuda, p) : GPUNN_ERR_UNSUPPORTED;
    if (status == GPUNN_ERR_UNSUPPORTED) status = gpunn__product_apart(cuda, p);
    return status == GPUNN_ERR_UNSUPPORTED ? gpunn__product_own(cuda, p, 1) : status;
}

GPUNN__INTERNAL gpunn_status gpunn__products(gpunn__cuda *cuda, const gpunn__product *p, int count,
                                             gpunn__action action)
{
    bool small = true;
    for (int i = 0; i < count; i++) small = small && gpunn__product_is_small(cuda, &p[i]);
    if (small && count > 0) return action == GPUNN__PREPARE ? GPUNN_OK : gpunn__product_own(cuda, p, count);
    for (int i = 0; i < count; i++) {
        const bool own = gpunn__product_is_small(cuda, &p[i]);
        bool       fits, whole = false;
        GPUNN__TRY(gpunn__product_fits(cuda, &p[i], &fits));
        if (fits && !own) GPUNN__TRY(gpunn__product_choose(cuda, &p[i], action, &whole));
        if (action == GPUNN__PREPARE) continue;
        if (own || !fits)
            GPUNN__TRY(gpunn__product_own(cuda, &p[i], 1));
        else
            GPUNN__TRY(gpunn__product_run(cuda, &p[i], whole));
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL void *gpunn__element(const void *data, gpunn_dtype dtype, int64_t index)
{
    return (char *)data + gpunn__bytes(dtype, index);
}

GPUNN__INTERNAL gpunn__product gpunn__make_product(const gpunn_step *step, int64_t m, int64_t n, int64_t k,
                                                   const gpunn_value *a, bool transpose_a,
                                                   const gpunn_value *b, bool transpose_b,
                                                   const gpunn_value *d)
{
    gpunn__product p;
    memset(&p, 0, sizeof p);
    p.m = m, p.n = n, p.k = k, p.batch = 1;
    p.transpose_a = transpose_a, p.transpose_b = transpose_b;
    p.lda = transpose_a ? m : k, p.ldb = transpose_b ? k : n, p.ldd = n;
    p.dtype = a->dtype, p.d_dtype = d->dtype, p.precision = step->precision;
    p.a = a->data, p.b = b->data, p.d = d->data;
    return p;
}

GPUNN__INTERNAL gpunn_status gpunn__check_operands(gpunn__cuda *cuda, const gpunn_value *a,
                                                   const gpunn_value *b, const gpunn_value *d)
{
    if (a->dtype == b->dtype && (d->dtype == a->dtype || d->dtype == GPUNN_F32)) return GPUNN_OK;
    return gpunn__cuda_fail(
        cuda, GPUNN_ERR_UNSUPPORTED,
        "a matrix product needs operands of one dtype, and a result of that dtype or F32; cast an operand");
}

GPUNN__INTERNAL gpunn_status gpunn__finish_all(gpunn__cuda *cuda, const gpunn_step *step, const void *y,
                                               gpunn_dtype y_dtype)
{
    const bool bias = step->in[2].data != NULL, residual = step->fused->residual.data != NULL;
    if (y == step->out.data && !bias && !residual && !step->fused->norm && !step->fused->relu)
        return GPUNN_OK;
    return gpunn__cuda_finish(cuda, step, y, y_dtype, bias, step->fused->norm, residual, step->fused->relu);
}

GPUNN__INTERNAL bool gpunn__linear_whole(const gpunn_step *step, gpunn__product *whole)
{
    const int64_t      in = step->in[1].dim[1], out = step->in[1].dim[0], rows = step->in[0].count / in;
    const gpunn_value *bias = &step->in[2], *residual = &step->fused->residual,
                      *before = &step->fused->before, *y = &step->out;
    *whole = gpunn__make_product(step, rows, out, in, &step->in[0], false, &step->in[1], true, y);
    whole->bias = bias->data;
    whole->bias_dtype = bias->dtype;
    whole->residual = residual->data;
    whole->activation = step->fused->gelu_tanh ? GPUNN__GELU_TANH : GPUNN__NO_ACTIVATION;
    if (step->fused->relu) whole->activation = GPUNN__RELU;
    whole->keep_nan = step->training; /* a bad loss must stay visible */
    whole->aux = before->data;
    return !step->fused->norm && (!before->data || before->dtype == y->dtype) &&
           (!residual->data || residual->dtype == y->dtype);
}

/* Where the argument of the activation is stored. */
static gpunn_value *gpunn__linear_before(gpunn_step *step)
{
    return step->fused->before.data ? &step->fused->before : &step->out;
}

GPUNN__INTERNAL gpunn__product gpunn__linear_bare(gpunn_step *step)
{
    const int64_t in = step->in[1].dim[1], out = step->in[1].dim[0], rows = step->in[0].count / in;
    return gpunn__make_product(step, rows, out, in, &step->in[0], false, &step->in[1], true,
                               gpunn__linear_before(step));
}

GPUNN__INTERNAL gpunn_status gpunn__linear_rest(gpunn__cuda *cuda, gpunn_step *step)
{
    gpunn_value *const before = gpunn__linear_before(step);
    gpunn_step         until = *step;
    until.out = *before;
    GPUNN__TRY(gpunn__finish_all(cuda, &until, before->data, before->dtype));
    return step->fused->gelu_tanh ? gpunn__apply(cuda, GPUNN_OP_GELU_TANH, before, &step->out, NULL)
                                  : GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__linear_forward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn__product bare = gpunn__linear_bare(step);
    gpunn__product       whole;
    bool                 fits = false;
    if (gpunn__linear_whole(step, &whole)) GPUNN__TRY(gpunn__product_fits(cuda, &whole, &fits));
    if (action == GPUNN__PREPARE) step->workspace_bytes = 0;
    GPUNN__TRY(gpunn__products(cuda, fits ? &whole : &bare, 1, action));
    return fits || action == GPUNN__PREPARE ? GPUNN_OK : gpunn__linear_rest(cuda, step);
}

GPUNN__INTERNAL gpunn__linear_gradients gpunn__linear_gradients_of(gpunn_step *step)
{
    const int64_t           in = step->in[1].dim[1], out = step->in[1].dim[0], rows = step->in[0].count / in;
    const gpunn_value      *dy = &step->grad_out, *dweight = &step->grad_in[1], *dx = &step->grad_in[0];
    gpunn__linear_gradients g = {};
    gpunn__product         *p = g.product;
    g.before = step->fused->activated == GPUNN_OP_RELU ? &step->in[0] : &step->fused->before;
    g.sums = step->grad_in[2].data && dweight->data && !step->accumulate[2];
    g.derived = step->fused->activated && dx->data && g.before->dtype == dx->dtype;
    if (dweight->data) {
        p[0] = gpunn__make_product(step, out, in, rows, dy, true, &step->in[0], false, dweight);
        p[0].accumulate = step->accumulate[1];
        p[0].row_sums = g.sums ? (float *)step->grad_in[2].data : NULL;
        p[0].workspace = step->workspace;
        g.count++;
    }
    if (dx->data) {
        p[g.count] = gpunn__make_product(step, rows, in, out, dy, false, &step->in[1], false, dx);
        p[g.count].accumulate = step->accumulate[0];
        if (g.derived) {
            p[g.count].activation = step->fused->activated == GPUNN_OP_RELU ? GPUNN__RELU_DERIVATIVE
                                                                            : GPUNN__GELU_TANH_DERIVATIVE;
            p[g.count].aux = g.before->data;
        }
        g.count++;
    }
    return g;
}

static gpunn_status gpunn__linear_backward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const int64_t      in = step->in[1].dim[1], out = step->in[1].dim[0], rows = step->in[0].count / in;
    const gpunn_value *dy = &step->grad_out;
    gpunn_value *const dx = &step->grad_in[0];
    float *const       dbias = (float *)step->grad_in[2].data;
    const gpunn__linear_gradients g = gpunn__linear_gradients_of(step);
    GPUNN__TRY(gpunn__products(cuda, g.product, g.count, action));
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = dbias ? gpunn__cuda_channel_sums_workspace(cuda, rows, out, 1) : 0;
        return GPUNN_OK;
    }
    if (dbias && !g.sums)
        GPUNN__TRY(gpunn__cuda_channel_sums(cuda, dy->data, dy->dtype, rows, out, 1, dbias,
                                            step->accumulate[2], step->workspace));
    return step->fused->activated && dx->data && !g.derived
               ? gpunn__apply(cuda, step->fused->activated, g.before, &step->in[0], dx)
               : GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_linear(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (gpunn__is_blocks(step->in[1].dtype)) return gpunn__cuda_block_linear(cuda, step, action);
    if (!step->backward) {
        GPUNN__TRY(gpunn__check_operands(cuda, &step->in[0], &step->in[1], &step->out));
        return gpunn__linear_forward(cuda, step, action);
    }
    if (step->grad_in[0].data)
        GPUNN__TRY(gpunn__check_operands(cuda, &step->grad_out, &step->in[1], &step->grad_in[0]));
    if (step->grad_in[1].data)
        GPUNN__TRY(gpunn__check_operands(cuda, &step->grad_out, &step->in[0], &step->grad_in[1]));
    return gpunn__linear_backward(cuda, step, action);
}

/* p with its operands moved to repetition `index` of the axes from `first` on. */
static gpunn__product gpunn__repeated(gpunn__product p, const gpunn__walk *all, int first, int64_t index)
{
    const int      rank = all->rank - first;
    const int64_t *dim = all->dim + first;
    if (rank <= 0) return p;
    p.a = gpunn__element(p.a, p.dtype, gpunn__offset(index, rank, dim, all->stride[0] + first));
    p.b = gpunn__element(p.b, p.dtype, gpunn__offset(index, rank, dim, all->stride[1] + first));
    p.d = gpunn__element(p.d, p.d_dtype, gpunn__offset(index, rank, dim, all->stride[2] + first));
    return p;
}

GPUNN__INTERNAL gpunn_status gpunn__repeated_products(gpunn__cuda *cuda, gpunn__product p, gpunn__walk kept,
                                                      const gpunn__walk *summed, gpunn__action action)
{
    const int64_t all = gpunn__axes_count(&kept), terms = gpunn__axes_count(summed);
    int           longest = 0;
    for (int d = 1; d < kept.rank; d++)
        if (kept.dim[d] > kept.dim[longest]) longest = d;
    if (kept.rank > 0) {
        p.batch = kept.dim[longest];
        p.stride_a = kept.stride[0][longest], p.stride_b = kept.stride[1][longest],
        p.stride_d = kept.stride[2][longest];
        kept.dim[longest] = kept.dim[0];
        for (int i = 0; i < 3; i++) kept.stride[i][longest] = kept.stride[i][0];
    }
    if (action == GPUNN__PREPARE) return gpunn__products(cuda, &p, 1, action);
    for (int64_t i = 0; i < all / p.batch; i++) {
        gpunn__product sum = gpunn__repeated(p, &kept, 1, i);
        for (int64_t s = 0; s < terms; s++) {
            const gpunn__product term = gpunn__repeated(sum, summed, 0, s);
            GPUNN__TRY(gpunn__products(cuda, &term, 1, action));
            sum.accumulate = true;
        }
    }
    return GPUNN_OK;
}

/* Runs p for every index of the leading axes of shape. a, b and d may each lack some of them or have size 1
 * there. d is summed over the axes that it lacks: in F32 in the workspace, if d has another dtype. */
static gpunn_status gpunn__broadcast_product(gpunn__cuda *cuda, gpunn_step *step, gpunn__product p,
                                             const gpunn_value *shape, const gpunn_value *a,
                                             const gpunn_value *b, const gpunn_value *d, gpunn__action action)
{
    const gpunn_value *const value[3] = {a, b, d};
    gpunn__walk              kept, summed;
    gpunn__axes_of(shape, 2, value, 3, &kept, &summed);
    const bool accumulate = p.accumulate;
    if (summed.rank == 0 || d->dtype == GPUNN_F32)
        return gpunn__repeated_products(cuda, p, kept, &summed, action);
    const size_t bytes = gpunn__bytes(GPUNN_F32, d->count);
    if (action == GPUNN__PREPARE && step->workspace_bytes < bytes) step->workspace_bytes = bytes;
    p.d = step->workspace;
    p.d_dtype = GPUNN_F32;
    p.accumulate = false;
    GPUNN__TRY(gpunn__repeated_products(cuda, p, kept, &summed, action));
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    return gpunn__cuda_copy(cuda, d->data, d->dtype, p.d, GPUNN_F32, d->count, accumulate);
}

/* c = op(a) op(b), da = dc op(b)^T, db = op(a)^T dc. A gradient is transposed if its operand is stored
 * transposed, and summed over the axes along which the operand was broadcast. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_matmul(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const bool  ta = step->attr->transpose_a, tb = step->attr->transpose_b;
    gpunn_value a, b, c;
    int64_t     m, n, k;
    gpunn__matmul_sizes(step, &a, &b, &c, &m, &n, &k);
    if (action == GPUNN__PREPARE) step->workspace_bytes = 0;
    if (!step->backward) {
        GPUNN__TRY(gpunn__check_operands(cuda, &a, &b, &c));
        const gpunn__product p = gpunn__make_product(step, m, n, k, &a, ta, &b, tb, &c);
        return gpunn__broadcast_product(cuda, step, p, &c, &a, &b, &c, action);
    }
    for (int i = 0; i < 2; i++) {
        const gpunn_value *const other = i == 0 ? &b : &a;
        gpunn_value              d = i == 0 ? a : b;
        d.data = step->grad_in[i].data;
        d.dtype = step->grad_in[i].dtype;
        if (d.data == NULL) continue;
        GPUNN__TRY(gpunn__check_operands(cuda, &c, other, &d));
        const bool               c_left = i == 0 ? !ta : tb;
        const gpunn_value *const left = c_left ? &c : other, *const right = c_left ? other : &c;
        gpunn__product p;
        if (i == 0)
            p = ta ? gpunn__make_product(step, k, m, n, left, tb, right, true, &d)
                   : gpunn__make_product(step, m, k, n, left, false, right, !tb, &d);
        else
            p = tb ? gpunn__make_product(step, n, k, m, left, true, right, ta, &d)
                   : gpunn__make_product(step, k, n, m, left, !ta, right, false, &d);
        p.accumulate = step->accumulate[i];
        GPUNN__TRY(gpunn__broadcast_product(cuda, step, p, &c, left, right, &d, action));
    }
    return GPUNN_OK;
}
