/* products.cu - asks cuBLASLt for every form of product that gpunn_cuda.cu makes of a linear layer. A line
 * for each: shape, dtypes and form; for operands that start at multiples of 64 bytes, of 16 and of one
 * element how many algorithms there are and the first one's number; behind a bar the first one's time at 64
 * bytes. products.py runs it and compares. Build: nvcc -std=c++17 -O1 -I. tests/gpu/products.cu gpunn.o -o
 * products       gpunn.o: gpunn.h with -DGPUNN_IMPLEMENTATION */
#include "../../gpunn_cuda.cu"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

typedef enum operands { LAYER, TO_WEIGHT, TO_INPUT } operands; /* y = x W^T; dW = dy^T x; dx = dy W */
typedef struct form {
    const char       *name;
    operands          of;
    gpunn__activation activation;
    bool              bias, residual, noted, row_sums;
} form;
static const form forms[] = {
    {"y", LAYER, GPUNN__NO_ACTIVATION, false, false, false, false},
    {"y+bias", LAYER, GPUNN__NO_ACTIVATION, true, false, false, false},
    {"y+bias+residual", LAYER, GPUNN__NO_ACTIVATION, true, true, false, false},
    {"relu(y+bias)", LAYER, GPUNN__RELU, true, false, false, false},
    {"gelu(y+bias)", LAYER, GPUNN__GELU_TANH, true, false, false, false},
    {"gelu(y+bias),y", LAYER, GPUNN__GELU_TANH, true, false, true, false},
    {"dW", TO_WEIGHT, GPUNN__NO_ACTIVATION, false, false, false, false},
    {"dW,dbias", TO_WEIGHT, GPUNN__NO_ACTIVATION, false, false, false, true},
    {"dx", TO_INPUT, GPUNN__NO_ACTIVATION, false, false, false, false},
    {"dx*gelu'", TO_INPUT, GPUNN__GELU_TANH_DERIVATIVE, false, false, true, false},
};
/* rows, out, in: GPT-2's and BERT's layers, a head of 50257 words and one of a multiple of 128, and small
 * networks */
static const int64_t shapes[][3] = {{8192, 2304, 768},  {8192, 768, 768},   {8192, 3072, 768},
                                    {8192, 768, 3072},  {1024, 768, 768},   {1024, 3072, 768},
                                    {8192, 50304, 768}, {8192, 50257, 768}, {512, 1024, 784},
                                    {512, 10, 1024},    {32, 50, 20},       {64, 1000, 512}};
typedef struct types {
    const char     *name;
    gpunn_dtype     dtype, d_dtype;
    gpunn_precision precision;
} types;
static const types all_types[] = {{"f32", GPUNN_F32, GPUNN_F32, GPUNN_PRECISION_F32},
                                  {"tf32", GPUNN_F32, GPUNN_F32, GPUNN_PRECISION_TF32},
                                  {"f16", GPUNN_F16, GPUNN_F16, GPUNN_PRECISION_F16},
                                  {"f16>f32", GPUNN_F16, GPUNN_F32, GPUNN_PRECISION_F16},
                                  {"bf16", GPUNN_BF16, GPUNN_BF16, GPUNN_PRECISION_BF16},
                                  {"bf16>f32", GPUNN_BF16, GPUNN_F32, GPUNN_PRECISION_BF16}};

enum { A, B, D, RESIDUAL, NOTED, BIAS, REGIONS, SLACK = 256, REPEATS = 8 };
static gpunn__cuda *cuda;
static char        *region[REGIONS];
static size_t       region_bytes;

static void demand(gpunn_status status)
{
    if (status == GPUNN_OK) return;
    (void)fprintf(stderr, "%s\n", cuda->text);
    exit(1);
}
static void demand_cuda(cudaError_t error)
{
    if (error == cudaSuccess) return;
    (void)fprintf(stderr, "%s\n", cudaGetErrorString(error));
    exit(1);
}

static void *reallocate(void *user, void *old, size_t old_size, size_t size)
{
    (void)user, (void)old_size;
    if (size) return realloc(old, size);
    free(old);
    return NULL;
}

/* 16-bit halves of floats between 1/2 and 1, of either sign; as F16 between 1.5 and 2, as F32 as they are. */
static __global__ void fill(uint16_t *halves, size_t count)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        const unsigned hash = (unsigned)i * 2654435761u;
        halves[i] = (uint16_t)(0x3F00u | (hash >> 16 & 0x807Fu));
    }
}

static void make_regions(void)
{
    for (int s = 0; s < COUNT(shapes); s++)
        for (int i = 0; i < 3; i++) {
            const size_t bytes = 4 * (size_t)(shapes[s][i] * shapes[s][(i + 1) % 3]) + SLACK;
            region_bytes = bytes > region_bytes ? bytes : region_bytes;
        }
    for (int i = 0; i < REGIONS; i++) {
        region[i] = (char *)gpunn__cuda_alloc(cuda, region_bytes);
        if (region[i] == NULL) demand(GPUNN_ERR_MEMORY);
        fill<<<1024, 256, 0, cuda->stream>>>((uint16_t *)region[i], region_bytes / 2);
        demand_cuda(cudaGetLastError());
    }
}

/* a, b, d and the residual lie `offset` bytes behind a multiple of 256, or one element behind it. */
static gpunn__product product(const int64_t shape[3], const types *type, const form *of, bool elements,
                              size_t offset)
{
    const int64_t rows = shape[0], out = shape[1], in = shape[2];
    const size_t  behind = elements ? gpunn__bytes(type->dtype, 1) : offset,
                 behind_d = elements ? gpunn__bytes(type->d_dtype, 1) : offset;
    gpunn__product p;
    memset(&p, 0, sizeof p);
    p.batch = 1;
    p.dtype = type->dtype, p.d_dtype = of->of == TO_WEIGHT ? GPUNN_F32 : type->d_dtype,
    p.bias_dtype = p.d_dtype;
    p.precision = type->precision;
    if (of->of == LAYER)
        p.m = rows, p.n = out, p.k = in, p.transpose_b = true, p.lda = p.ldb = in;
    else if (of->of == TO_WEIGHT)
        p.m = out, p.n = in, p.k = rows, p.transpose_a = true, p.lda = out, p.ldb = in;
    else
        p.m = rows, p.n = in, p.k = out, p.lda = out, p.ldb = in;
    p.ldd = p.n;
    p.a = region[A] + behind, p.b = region[B] + behind, p.d = region[D] + behind_d;
    p.activation = of->activation;
    if (of->bias) p.bias = region[BIAS];
    if (of->residual) p.residual = region[RESIDUAL] + behind_d;
    if (of->row_sums) p.row_sums = (float *)region[BIAS];
    if (of->noted) p.aux = region[NOTED];
    return p;
}

/* Below 0: the algorithm that was offered is refused. */
static float milliseconds(const gpunn__product *p, cudaEvent_t begin, cudaEvent_t end)
{
    float elapsed = 0;
    for (int i = -2; i < REPEATS; i++) { /* two to warm up */
        if (i == 0) demand_cuda(cudaEventRecord(begin, cuda->stream));
        const gpunn_status status = gpunn__cuda_product(cuda, p);
        if (status == GPUNN_ERR_UNSUPPORTED) return -1;
        demand(status);
    }
    demand_cuda(cudaEventRecord(end, cuda->stream));
    demand_cuda(cudaEventSynchronize(end));
    demand_cuda(cudaEventElapsedTime(&elapsed, begin, end));
    return elapsed / REPEATS;
}

int main(int argc, char **argv)
{
    if (argc > 1) return printf("usage: %s    products.py runs it\n", argv[0]) < 0;
    gpunn_device_args args;
    char              text[512];
    cudaEvent_t       begin, end;
    memset(&args, 0, sizeof args);
    args.realloc_fn = reallocate;
    cuda = (gpunn__cuda *)gpunn__cuda_open(&args, text, sizeof text);
    if (cuda == NULL) {
        (void)fprintf(stderr, "%s\n", text);
        return 1;
    }
    const auto attribute = (decltype(&cublasLtMatmulAlgoConfigGetAttribute))gpunn__module_symbol(
        &cuda->libraries->lt_module, "cublasLtMatmulAlgoConfigGetAttribute");
    if (attribute == NULL) {
        (void)fprintf(stderr, "cuBLASLt does not tell its algorithms' numbers\n");
        return 1;
    }
    demand_cuda(cudaEventCreate(&begin));
    demand_cuda(cudaEventCreate(&end));
    make_regions();
    printf("# %s, cuBLASLt %zu\n", cuda->name, cuda->libraries->lt_module.version);
    for (int s = 0; s < COUNT(shapes); s++)
        for (int t = 0; t < COUNT(all_types); t++)
            for (int f = 0; f < COUNT(forms); f++) {
                /* dW is F32 either way */
                if (forms[f].of == TO_WEIGHT && all_types[t].dtype != all_types[t].d_dtype) continue;
                printf("%lldx%lldx%lld %s %s:", (long long)shapes[s][0], (long long)shapes[s][1],
                       (long long)shapes[s][2], all_types[t].name, forms[f].name);
                float time = 0;
                for (int alignment = 0; alignment < 3; alignment++) {
                    const gpunn__product p = product(shapes[s], &all_types[t], &forms[f], alignment == 2,
                                                     alignment == 1 ? 16 : 0);
                    gpunn__algorithms   *found = NULL;
                    const gpunn_status   status = gpunn__algorithms_find(cuda, &p, true, &found);
                    int                  number = -1;
                    size_t               size;
                    if (status == GPUNN_OK)
                        (void)attribute(&found->algorithm[0], CUBLASLT_ALGO_CONFIG_ID, &number, sizeof number,
                                        &size);
                    else if (status != GPUNN_ERR_UNSUPPORTED)
                        demand(status);
                    printf(" %s %d/%d",
                           alignment == 0   ? "64"
                           : alignment == 1 ? "16"
                                            : "1",
                           status == GPUNN_OK ? found->count : 0, number);
                    if (alignment == 0 && status == GPUNN_OK) time = milliseconds(&p, begin, end);
                }
                if (time < 0)
                    printf(" | refused: %s\n", cuda->text);
                else
                    printf(" | %.4f ms\n", (double)time);
                (void)fflush(stdout);
            }
    for (int i = 0; i < REGIONS; i++) gpunn__cuda_free(cuda, region[i], region_bytes);
    demand_cuda(cudaEventDestroy(begin));
    demand_cuda(cudaEventDestroy(end));
    gpunn__cuda_close(cuda);
    return 0;
}
