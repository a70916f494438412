/* Makes the plan of every graph that gpunn_cuda.cu hands to cuDNN, for a card that need not be here: plans
 * CARD.json [attention] The file describes the card to cuDNN. Nothing is run. check.py compiles this and runs
 * it for each card. With `attention` two plans that are compiled at run time, to see whether the libraries
 * for that are found. */
#if __has_include(<cudnn.h>) && !defined(GPUNN_NO_CUDNN)
#include <cudnn.h>
#endif
#if defined(CUDNN_MAJOR) && CUDNN_MAJOR == 9 && CUDNN_VERSION >= 90800
#include <cuda_runtime.h>

static void *described;
#define GPUNN__DNN_DESCRIBED described
/* A stream and its events, so that plans can be compared: a plan takes what the test says. */
static cudaError_t is_capturing(cudaStream_t stream, cudaStreamCaptureStatus *status);
static cudaError_t event_create(cudaEvent_t *event);
static cudaError_t event_destroy(cudaEvent_t event);
static cudaError_t event_touch(cudaEvent_t event, cudaStream_t stream);
static cudaError_t event_elapsed(float *milliseconds, cudaEvent_t begin, cudaEvent_t end);
#define cudaStreamIsCapturing is_capturing
#define cudaEventCreate event_create
#define cudaEventDestroy event_destroy
#define cudaEventRecord event_touch
#define cudaEventSynchronize(event) event_touch((event), NULL)
#define cudaEventElapsedTime event_elapsed
#include "../../gpunn_cuda.cu"

typedef struct layer {
    const char *name;
    int64_t     n, c, h, w, k, kernel, stride, padding, dilation, groups;
    int64_t     d; /* 0: two axes */
} layer;
static const layer layers[] = {
    {"3x3", 64, 64, 56, 56, 64, 3, 1, 1, 1, 1},
    {"3x3, one image", 1, 64, 56, 56, 64, 3, 1, 1, 1, 1},
    {"7x7/2 of 3 channels", 64, 3, 224, 224, 64, 7, 2, 3, 1, 1},
    {"1x1", 64, 256, 14, 14, 1024, 1, 1, 0, 1, 1},
    {"1x1/2", 64, 256, 56, 56, 512, 1, 2, 0, 1, 1},
    {"5x5 of 1 channel", 64, 1, 28, 28, 6, 5, 1, 2, 1, 1},
    {"5x5 of 6 channels", 64, 6, 14, 14, 16, 5, 1, 0, 1, 1},
    {"depthwise 3x3", 64, 32, 28, 28, 32, 3, 1, 1, 1, 32},
    {"3x3 in 4 groups", 64, 64, 28, 28, 64, 3, 1, 1, 1, 4},
    {"dilated 3x3", 8, 64, 33, 33, 64, 3, 1, 2, 2, 1},
    {"one axis", 16, 64, 1, 500, 128, 1, 1, 0, 1, 1},
    {"3x3x3", 2, 32, 24, 24, 64, 3, 1, 1, 1, 1, 24},
    {"2x2x2/2", 2, 32, 24, 24, 16, 2, 2, 0, 1, 1, 24},
    {"3x3x3 of 1 channel", 2, 1, 48, 48, 8, 3, 1, 1, 1, 1, 48},
    {"depthwise 3x3x3", 2, 16, 16, 16, 16, 3, 1, 1, 1, 16, 16},
    {"odd sizes", 3, 5, 13, 9, 7, 3, 2, 1, 2, 1},
};
static const struct {
    const char     *name;
    gpunn_dtype     dtype;
    gpunn_precision precision;
} modes[] = {
    {"f32", GPUNN_F32, GPUNN_PRECISION_F32},
    {"tf32", GPUNN_F32, GPUNN_PRECISION_TF32},
    {"f16", GPUNN_F16, GPUNN_PRECISION_F16},
    {"bf16", GPUNN_BF16, GPUNN_PRECISION_BF16},
};
/* y = relu(conv + residual + bias): the parts that follow a forward convolution, as bits. */
enum { BIAS = 1, RESIDUAL = 2, RELU = 4, COMBINATIONS = 8 };
enum { LAYERS = sizeof layers / sizeof *layers, MODES = sizeof modes / sizeof *modes };

static gpunn__cuda      cuda;
static gpunn__libraries libraries;
static char             card[128];
static int              capability, tests;

static void *reallocate(void *user, void *ptr, size_t old_size, size_t new_size)
{
    (void)user, (void)old_size;
    if (new_size > 0) return realloc(ptr, new_size);
    free(ptr);
    return NULL;
}

static void report(int failures, const char *format, ...)
{
    va_list list;
    printf("%s %d - %s ", failures == 0 ? "ok" : "not ok", ++tests, card);
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
}

static gpunn__convolution convolution(const layer *a, int mode, gpunn__conv_kind kind, int parts,
                                      bool channels_last)
{
    gpunn__convolution conv;
    memset(&conv, 0, sizeof conv);
    conv.tag = GPUNN__CONV_TAG;
    conv.kind = kind;
    conv.dtype = modes[mode].dtype;
    conv.precision = modes[mode].precision;
    conv.axes = a->d ? 3 : 2;
    conv.n = a->n, conv.c = a->c, conv.d = a->d ? a->d : 1, conv.h = a->h, conv.w = a->w;
    conv.k = a->k, conv.kd = a->d ? a->kernel : 1, conv.kh = conv.kw = a->kernel;
    conv.o = a->d ? (a->d + 2 * a->padding - a->dilation * (a->kernel - 1) - 1) / a->stride + 1 : 1;
    conv.p = (a->h + 2 * a->padding - a->dilation * (a->kernel - 1) - 1) / a->stride + 1;
    conv.q = (a->w + 2 * a->padding - a->dilation * (a->kernel - 1) - 1) / a->stride + 1;
    for (int i = 0; i < 3; i++) {
        const bool there = i > 0 || a->d;
        conv.stride[i] = there ? a->stride : 1, conv.padding[i] = there ? a->padding : 0;
        conv.dilation[i] = there ? a->dilation : 1;
    }
    conv.groups = a->groups;
    conv.bias = (parts & BIAS) != 0, conv.residual = (parts & RESIDUAL) != 0, conv.relu = (parts & RELU) != 0;
    conv.channels_last = channels_last;
    return conv;
}

static void print(const layer *a, const gpunn__convolution *conv, const char *text)
{
    static const char *const kinds[] = {"forward", "data gradient", "filter gradient"};
    printf("# %s: %s%s%s%s: %s\n", a->name, kinds[conv->kind], conv->residual ? " + residual" : "",
           conv->bias ? " + bias" : "", conv->relu ? " + relu" : "", text);
}

/* Whether the plan, as cuDNN writes it down, is of the convolution's dtype; sums are F32 in all of them. */
static bool has_dtype(const gpunn__dnn_plan *plan, int64_t dtype)
{
    int64_t length = 0, got = 0;
    if (libraries.cudnnBackendGetAttribute(plan->descriptor, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                           CUDNN_TYPE_CHAR, 0, &length, NULL) != CUDNN_STATUS_SUCCESS)
        return false;
    char *json = (char *)calloc((size_t)length + 1, 1);
    bool  good = libraries.cudnnBackendGetAttribute(
                     plan->descriptor, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, length,
                     &got, json) == CUDNN_STATUS_SUCCESS;
    good = good && (strstr(json, "\"CUDNN_DATA_HALF\"") != NULL) == (dtype == GPUNN_F16) &&
           (strstr(json, "\"CUDNN_DATA_BFLOAT16\"") != NULL) == (dtype == GPUNN_BF16);
    free(json);
    return good;
}

/* What cuDNN itself says of the engine behind a plan; NULL: nothing that breaks a promise. */
static const char *broken_promise(const gpunn__dnn_plan *plan, const gpunn__convolution *conv)
{
    cudnnBackendDescriptor_t    config = NULL, engine = NULL;
    cudnnBackendNumericalNote_t notes[64];
    int64_t                     one, count = 0;
    const char                 *broken = NULL;
    cudnnStatus_t status = libraries.cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                                                                  &config);
    if (!status) status = libraries.cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine);
    if (!status)
        status = libraries.cudnnBackendGetAttribute(plan->descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one, &config);
    if (!status)
        status = libraries.cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one, &engine);
    if (!status)
        status = libraries.cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                    CUDNN_TYPE_NUMERICAL_NOTE, 64, &count, notes);
    if (status) broken = "its plan does not tell its engine";
    if (!broken && !has_dtype(plan, conv->dtype)) broken = "its plan is of another dtype";
    for (int64_t i = 0; i < count && !broken; i++) {
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) broken = "the bits may vary from run to run";
        if (notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) broken = "operands are rounded";
        if (notes[i] == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION) broken = "sums are not in F32";
        if (notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE && conv->precision == GPUNN_PRECISION_F32)
            broken = "products are in TF32";
    }
    if (config) (void)libraries.cudnnBackendDestroyDescriptor(config);
    if (engine) (void)libraries.cudnnBackendDestroyDescriptor(engine);
    return broken;
}

/* Whether the graph has a plan that keeps every promise; what it has not is printed. */
static bool planned(const layer *a, const gpunn__convolution *conv)
{
    size_t       bytes = 0, again = 1;
    gpunn_status status = gpunn__dnn_prepare(&cuda, conv, &bytes);
    if (status != GPUNN_OK) return print(a, conv, cuda.text), false;
    gpunn__dnn_choice *choice = gpunn__dnn_entry(&cuda, conv);
    const char        *broken = NULL;
    for (int i = 0; i < choice->count && !broken; i++) broken = broken_promise(&choice->plans[i], conv);
    if (bytes > cuda.args.workspace_limit) broken = "it takes more workspace than the limit";
    if (choice->count > 1 && !cuda.args.benchmark)
        broken = "several plans, and nobody asked for a comparison";
    cudnnBackendDescriptor_t first = choice->plans[0].descriptor;
    if (gpunn__dnn_prepare(&cuda, conv, &again) != GPUNN_OK || again != bytes ||
        choice->plans[0].descriptor != first)
        broken = "asked again, the answer is another";
    if (broken) print(a, conv, broken);
    return broken == NULL;
}

/* Refused as it should be: no failure, a sentence, and the same answer when asked again. */
static bool refused(const layer *a, const gpunn__convolution *conv, int *supported)
{
    size_t       bytes = 0;
    gpunn_status status = gpunn__dnn_prepare(&cuda, conv, &bytes);
    if (status == GPUNN_OK) (*supported)++;
    if (status == GPUNN_OK) return true;
    bool good = status == GPUNN_ERR_UNSUPPORTED && strstr(cuda.text, "cuDNN") != NULL;
    good = good && gpunn__dnn_prepare(&cuda, conv, &bytes) == GPUNN_ERR_UNSUPPORTED;
    if (!good) print(a, conv, cuda.text);
    return good;
}

static void check_mode(int mode, bool channels_last)
{
    bool too_old = modes[mode].dtype == GPUNN_BF16 && capability < 80;
    int  graphs = 0, failures = 0, supported = 0;
    for (int l = 0; l < LAYERS; l++) {
        for (int kind = GPUNN__CONV_FORWARD; kind <= GPUNN__CONV_FILTER; kind++) {
            for (int parts = 0; parts < (kind == GPUNN__CONV_FORWARD ? COMBINATIONS : 1); parts++) {
                /* Without a bias an engine is made at run time, which takes as long as all else: for the last
                 * layer only. */
                if (parts != 0 && !(parts & BIAS) && (!channels_last || l < LAYERS - 1)) continue;
                gpunn__convolution conv = convolution(&layers[l], mode, (gpunn__conv_kind)kind, parts,
                                                      channels_last);
                failures += !(too_old ? refused(&layers[l], &conv, &supported) : planned(&layers[l], &conv));
                graphs++;
            }
        }
    }
    const char *layout = channels_last ? "NHWC" : "NCHW";
    if (too_old)
        report(failures,
               "%s %s: expected, %d of %d graphs refused (no bf16 before sm_80): matrix products instead",
               modes[mode].name, layout, graphs - supported - failures, graphs);
    else
        report(failures, "%s %s: %d graphs", modes[mode].name, layout, graphs);
}

/* cuDNN has no engine for a residual or a relu without a bias in NCHW. */
static void check_refusals(void)
{
    int graphs = 0, failures = 0, supported = 0;
    for (int mode = 0; mode < MODES; mode++)
        for (int parts = 1; parts < COMBINATIONS; parts++) {
            if (parts & BIAS) continue;
            gpunn__convolution conv = convolution(&layers[0], mode, GPUNN__CONV_FORWARD, parts, false);
            failures += !refused(&layers[0], &conv, &supported);
            graphs++;
        }
    report(failures,
           "NCHW: expected, %d of %d graphs of a residual or relu without a bias refused: a pass of ours "
           "after the convolution",
           graphs - supported - failures, graphs);
}

static void check_arguments(void)
{
    const layer       *a = &layers[0];
    gpunn__convolution conv = convolution(a, 2, GPUNN__CONV_FILTER, 0, true);
    int                failures = 0;
    conv.n++; /* not the one that is cached */
    cuda.args.benchmark = true;
    failures += !planned(a, &conv);
    if (gpunn__dnn_entry(&cuda, &conv)->count < 2) print(a, &conv, "one plan to compare"), failures++;
    cuda.args.benchmark = false;
    report(failures, "benchmark: %d plans to compare", gpunn__dnn_entry(&cuda, &conv)->count);

    failures = 0;
    conv.n++;
    cuda.args.deterministic = true;
    failures += !planned(a, &conv);
    cuda.args.deterministic = false;
    report(failures, "deterministic");

    int    supported = 0;
    size_t limit = cuda.args.workspace_limit;
    failures = 0;
    conv.n++, conv.channels_last = 0; /* NCHW in half precision is transposed in the workspace */
    cuda.args.workspace_limit = 1000;
    failures += !refused(a, &conv, &supported);
    if (supported)
        failures += !planned(a, &conv);
    else if (!strstr(cuda.text, "workspace_limit"))
        print(a, &conv, cuda.text), failures++;
    cuda.args.workspace_limit = limit;
    report(failures, "workspace_limit of 1000 bytes: %s", supported ? "kept" : "refused");
}

/* Depthwise convolutions are handed to cuDNN from 9.24 on. */
static void check_depthwise(void)
{
    const size_t version = libraries.dnn_module.version;
    int          failures = 0;
    libraries.dnn_sought = true; /* and found */
    for (int l = 0; l < LAYERS; l++)
        for (int after = 0; after < 2; after++) {
            const bool               depthwise = strncmp(layers[l].name, "depthwise", 9) == 0;
            const gpunn__convolution conv = convolution(&layers[l], 2, GPUNN__CONV_FORWARD, 0, true);
            size_t                   bytes;
            bool                     fits = false;
            libraries.dnn_module.version = after ? 92400 : 92300;
            const gpunn_status status = gpunn__conv_fits(&cuda, &conv, &bytes, &fits);
            const bool         good = status == GPUNN_OK && fits == (after || !depthwise);
            if (!good) print(&layers[l], &conv, cuda.text), failures++;
            if (good && !fits && !strstr(cuda.text, "before 9.24"))
                print(&layers[l], &conv, cuda.text), failures++;
        }
    libraries.dnn_module.version = version;
    report(failures, "depthwise convolutions, before cuDNN 9.24 and after");
}

/* ---- attention ---- */
typedef struct rows {
    const char *name;
    int64_t     n, heads, kv_heads, l, s, e;
    int         layout;  /* 0: [n, heads, l, e]; 1: heads last; 2: q, k and v in one */
    int64_t     bias[3]; /* the mask's samples, heads and rows; 0: there is none */
} rows;
static const rows attentions[] = {
    {"BERT", 8, 12, 12, 128, 128, 64, 1, {0}},
    {"GPT-2", 4, 12, 12, 1024, 1024, 64, 2, {0}},
    {"heads first", 2, 16, 16, 512, 512, 128, 0, {0}},
    {"shared keys", 2, 8, 2, 256, 256, 64, 1, {0}},
    {"decoder", 3, 8, 8, 17, 77, 32, 1, {0}},
    {"masked BERT", 8, 12, 12, 384, 384, 64, 1, {8, 1, 1}},
    {"masked GPT-2", 4, 12, 12, 200, 200, 64, 2, {4, 1, 1}},
    {"mask of pairs", 3, 8, 8, 17, 77, 32, 1, {1, 1, 17}},
    {"mask of all, shared keys", 2, 8, 2, 64, 192, 64, 0, {2, 8, 64}},
};

static void attention_steps(const rows *r, int64_t step[3], int64_t heads, int64_t length)
{
    const int64_t width = (r->layout == 2 ? 3 : 1) * heads * r->e;
    step[0] = length * width, step[1] = r->layout ? r->e : length * r->e, step[2] = r->layout ? width : r->e;
}

static gpunn__dnn_attention attention(const rows *r, gpunn_dtype dtype, bool causal, bool backward)
{
    gpunn__dnn_attention a;
    memset(&a, 0, sizeof a);
    a.tag = GPUNN__ATTENTION_TAG;
    a.backward = backward, a.dtype = dtype, a.causal = causal;
    a.n = r->n, a.heads = r->heads, a.kv_heads = r->kv_heads, a.l = r->l, a.s = r->s, a.e = a.ev = r->e;
    attention_steps(r, a.q, r->heads, r->l), attention_steps(r, a.k, r->kv_heads, r->s),
        attention_steps(r, a.v, r->kv_heads, r->s);
    rows whole = *r;
    whole.layout = r->layout == 2 ? 1 : r->layout;
    attention_steps(&whole, a.y, r->heads, r->l);
    a.padded = backward && (a.l % GPUNN__ATTENTION_TILE != 0 || a.s % GPUNN__ATTENTION_TILE != 0);
    memcpy(a.bias, r->bias, sizeof r->bias);
    if (a.bias[0]) a.bias[3] = (a.s + 15) / 16 * 16;
    if (!backward) return a;
    memcpy(a.dy, a.y, sizeof a.y), memcpy(a.dq, a.q, sizeof a.q), memcpy(a.dk, a.k, sizeof a.k),
        memcpy(a.dv, a.v, sizeof a.v);
    return a;
}

static bool attention_expected(void)
{
    return capability >= 80 && libraries.dnn_module.version >= 91002;
}

/* Whether the attention has a plan that keeps its promises, or, where it may not have one, none. */
static bool attends(const char *name, const gpunn__dnn_attention *a)
{
    const gpunn_dtype  dtype = (gpunn_dtype)a->dtype;
    gpunn__convolution like; /* what promises are asked of */
    size_t             bytes = 0;
    memset(&like, 0, sizeof like);
    like.dtype = dtype, like.precision = dtype == GPUNN_F16 ? GPUNN_PRECISION_F16 : GPUNN_PRECISION_BF16;
    const gpunn_status status = gpunn__dnn_attention_prepare(&cuda, a, &bytes);
    const char        *broken = NULL;
    if (status == GPUNN_OK) broken = broken_promise(&gpunn__dnn_attention_entry(&cuda, a)->plans[0], &like);
    if (status == GPUNN_OK && bytes > cuda.args.workspace_limit)
        broken = "it takes more workspace than the limit";
    const bool good = attention_expected() ? status == GPUNN_OK && !broken : status == GPUNN_ERR_UNSUPPORTED;
    if (!good) printf("# %s%s: %s\n", name, a->causal ? ", causal" : "", broken ? broken : cuda.text);
    return good;
}

/* Every graph has a plan, from sm_80 on; before there is none. */
static void check_attention(gpunn_dtype dtype, bool backward)
{
    const char *name = dtype == GPUNN_F16 ? "f16" : "bf16", *pass = backward ? "backward" : "forward";
    int         graphs = 0, failures = 0;
    for (size_t i = 0; i < sizeof attentions / sizeof *attentions; i++)
        for (int causal = 0; causal < 2; causal++)
            for (int adds = 0; adds <= backward; adds++, graphs++) {
                gpunn__dnn_attention a = attention(&attentions[i], dtype, causal, backward);
                a.adds = adds;
                failures += !attends(attentions[i].name, &a);
            }
    report(failures, "%s attention, %s: %d graphs%s", name, pass, graphs,
           attention_expected() ? "" : ", expected, refused before sm_80 and cuDNN 9.10.2");
}

/* One forward and one backward pass, by the libraries of that folder. */
static void check_libraries(void)
{
    int failures = 0;
    for (int backward = 0; backward < 2; backward++) {
        const gpunn__dnn_attention a = attention(&attentions[0], GPUNN_BF16, true, backward);
        failures += !attends(attentions[0].name, &a);
    }
    report(failures, "attention by %s", libraries.dnn_module.path);
}

/* A backward pass keeps the scores where the limit of the workspace allows it, and adds to dq where it does
 * not; but no addition where results may never vary, and nothing then on compute capability 10.x. */
static void check_forms(void)
{
    static const struct {
        rows shape;
        bool adds;
    } forms[] = {
        {{"GPT-2, 8 at once", 8, 12, 12, 1024, 1024, 64, 2, {0}}, false},
        {{"GPT-2, 11 at once", 11, 12, 12, 1024, 1024, 64, 2, {0}}, true},
        {{"GPT-2, 16 at once", 16, 12, 12, 1024, 1024, 64, 2, {0}}, true},
        {{"GPT-2, 32 at once", 32, 12, 12, 1024, 1024, 64, 2, {0}}, true},
        {{"4096 rows", 1, 12, 12, 4096, 4096, 64, 2, {0}}, true},
        {{"4000 rows, shared keys, masked", 2, 16, 4, 4000, 4000, 128, 1, {2, 1, 1}}, true},
    };
    int graphs = 0, failures = 0;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (int deterministic = 0; deterministic < 2; deterministic++, graphs++) {
            const gpunn__dnn_attention first = attention(&forms[i].shape, GPUNN_BF16, true, true);
            gpunn__dnn_attention       a = first;
            const bool                 any_order = deterministic && capability / 10 == 10;
            const bool refused = !attention_expected() || any_order || (deterministic && forms[i].adds);
            size_t     bytes = 0;
            cuda.args.deterministic = deterministic;
            const gpunn_status status = gpunn__attention_plan(&cuda, &a, &bytes);
            bool               good = status == (refused ? GPUNN_ERR_UNSUPPORTED : GPUNN_OK);
            if (status == GPUNN_OK)
                good = good && a.adds == forms[i].adds && attends(forms[i].shape.name, &a);
            if (good && refused && attention_expected())
                good = a.adds == 0 && strstr(cuda.text, "deterministic") &&
                       (any_order || strstr(cuda.text, "workspace_limit is 268435456; "));
            if (!good)
                printf("# %s: adds %d, %s\n", forms[i].shape.name, (int)a.adds,
                       status == GPUNN_OK ? "" : cuda.text);
            failures += !good;
        }
    cuda.args.deterministic = false;
    report(failures, "attention, backward: the form of %d", graphs);
}

/* ---- calls that fail: between gpunn_cuda.cu and cuDNN ---- */
static gpunn__libraries real;
/* descriptors; call number fail_in fails; whether one has */
static int                      alive, fail_in, failed;
static int64_t                  names[8], named; /* what the last variant pack was given */
static void                    *pointers[8], *workspace;
static cudnnBackendDescriptor_t executed;

static bool fails(void)
{
    if (fail_in == 0 || --fail_in > 0) return false;
    failed++;
    return true;
}

#define FAILURE CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED
static cudnnStatus_t create(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor)
{
    if (fails()) return FAILURE;
    cudnnStatus_t status = real.cudnnBackendCreateDescriptor(type, descriptor);
    alive += status == CUDNN_STATUS_SUCCESS;
    return status;
}

static cudnnStatus_t destroy(cudnnBackendDescriptor_t descriptor)
{
    alive--;
    return real.cudnnBackendDestroyDescriptor(descriptor);
}

static cudnnStatus_t set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (fails()) return FAILURE;
    if (name == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS && count <= 8)
        memcpy(names, values, sizeof *names * (size_t)(named = count));
    if (name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS && count == named)
        memcpy(pointers, values, sizeof *pointers * (size_t)count);
    if (name == CUDNN_ATTR_VARIANT_PACK_WORKSPACE) memcpy(&workspace, values, sizeof workspace);
    return real.cudnnBackendSetAttribute(descriptor, name, type, count, values);
}

static cudnnStatus_t get(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t count, int64_t *got, void *values)
{
    return fails() ? FAILURE : real.cudnnBackendGetAttribute(descriptor, name, type, count, got, values);
}

static cudnnStatus_t finalize(cudnnBackendDescriptor_t descriptor)
{
    return fails() ? FAILURE : real.cudnnBackendFinalize(descriptor);
}

static cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                             cudnnBackendDescriptor_t pack)
{
    (void)handle, (void)pack;
    if (fails()) return FAILURE;
    executed = plan;
    return CUDNN_STATUS_SUCCESS;
}

/* Every call of a preparation and of a run fails once: a sentence, nothing left behind, and the next attempt
 * succeeds. */
static void check_failures(void)
{
    static char        memory[6];
    gpunn__convolution conv = convolution(&layers[0], 2, GPUNN__CONV_FORWARD, BIAS | RESIDUAL | RELU, true);
    gpunn__conv_data   data = {&memory[0], &memory[1], &memory[2], &memory[3], &memory[4], &memory[5]};
    int                failures = 0, calls = 0, before = alive;
    size_t             bytes;
    cuda.args.benchmark = true;
    for (bool ended = false; !ended; calls += !ended) {
        conv.n++;
        fail_in = calls + 1, failed = 0;
        gpunn_status status = gpunn__dnn_prepare(&cuda, &conv, &bytes);
        int          left = alive - before;
        ended = !failed;
        fail_in = 0;
        bool good = ended ? status == GPUNN_OK
                          : status == GPUNN_ERR_MEMORY && left == 0 && strstr(cuda.text, "cuDNN");
        good = gpunn__dnn_prepare(&cuda, &conv, &bytes) == GPUNN_OK && good;
        before += gpunn__dnn_entry(&cuda, &conv)->count;
        if (!good || alive != before) print(&layers[0], &conv, cuda.text), failures++;
    }
    cuda.args.benchmark = false;
    report(failures, "each of %d calls of a preparation fails once", calls);

    conv.n++;
    failures = gpunn__dnn_prepare(&cuda, &conv, &bytes) != GPUNN_OK;
    calls = 0, before++;
    for (bool ended = false; !ended; calls += !ended) {
        fail_in = calls + 1, failed = 0, executed = NULL;
        gpunn_status status = gpunn__dnn_run(&cuda, &conv, &data);
        ended = !failed;
        fail_in = 0;
        bool good = ended ? status == GPUNN_OK : status != GPUNN_OK && executed == NULL;
        if (!good || alive != before) print(&layers[0], &conv, cuda.text), failures++;
    }
    const void *expected[] = {NULL, data.x, data.w, data.y, data.bias, data.residual}; /* by name */
    bool        right = executed == gpunn__dnn_entry(&cuda, &conv)->plans[0].descriptor &&
                 workspace == data.workspace && named == 5;
    for (int64_t i = 0; i < named; i++)
        right = right && names[i] < GPUNN__DNN_BETWEEN && pointers[i] == expected[names[i]];
    if (!right) print(&layers[0], &conv, "the run does not get its tensors"), failures++;
    report(failures, "each of %d calls of a run fails once", calls);
}

/* ---- comparing plans ---- */
static cudnnBackendDescriptor_t fastest;
static bool                     capturing;
static int                      events;

static cudaError_t is_capturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    (void)stream;
    *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

static cudaError_t event_create(cudaEvent_t *event)
{
    if (fails()) return cudaErrorUnknown;
    *event = (cudaEvent_t)&events;
    events++;
    return cudaSuccess;
}

static cudaError_t event_destroy(cudaEvent_t event)
{
    (void)event;
    events--;
    return cudaSuccess;
}

static cudaError_t event_touch(cudaEvent_t event, cudaStream_t stream)
{
    (void)stream;
    return event == (cudaEvent_t)&events && !fails() ? cudaSuccess : cudaErrorUnknown;
}

static cudaError_t event_elapsed(float *milliseconds, cudaEvent_t begin, cudaEvent_t end)
{
    (void)begin, (void)end;
    *milliseconds = executed == fastest ? 1.0f : 2.0f;
    return fails() ? cudaErrorUnknown : cudaSuccess;
}

/* The fastest of several plans stays, whichever it is; while it may not be known all do. */
static void check_comparison(void)
{
    static char        memory[6];
    gpunn__convolution conv = convolution(&layers[0], 2, GPUNN__CONV_FORWARD, BIAS | RESIDUAL, true);
    gpunn__conv_data   data = {&memory[0], &memory[1], &memory[2], &memory[3], &memory[4], &memory[5]};
    int                failures = 0, calls = 0, before = alive;
    size_t             bytes = 0, less = 0;
    cuda.args.benchmark = true;
    for (int which = 0; which < GPUNN__DNN_CANDIDATES; which++, before++) {
        conv.n = 200 + which;
        bool               good = gpunn__dnn_prepare(&cuda, &conv, &bytes) == GPUNN_OK;
        gpunn__dnn_choice *choice = gpunn__dnn_entry(&cuda, &conv);
        int                count = choice->count;
        if (count <= which) break;
        gpunn__dnn_plan expected = choice->plans[which];
        fastest = expected.descriptor;
        capturing = true;
        good = good && gpunn__dnn_run(&cuda, &conv, &data) == GPUNN_OK &&
               executed == choice->plans[0].descriptor;
        capturing = false;
        data.residual = data.y;
        good = good && gpunn__dnn_run(&cuda, &conv, &data) == GPUNN_OK && choice->count == count;
        data.residual = &memory[4];
        for (calls = 0;; calls++) {
            fail_in = calls + 1, failed = 0;
            gpunn_status status = gpunn__dnn_run(&cuda, &conv, &data);
            fail_in = 0;
            if (!failed) good = good && status == GPUNN_OK;
            if (!failed || choice->count != count) break;
            good = good && status != GPUNN_OK && events == 0 && alive == before + count;
        }
        good = good && gpunn__dnn_run(&cuda, &conv, &data) == GPUNN_OK && executed == fastest &&
               choice->count == 1;
        good = good && choice->plans[0].descriptor == fastest && events == 0 && alive == before + 1;
        good = good && gpunn__dnn_prepare(&cuda, &conv, &less) == GPUNN_OK &&
               less == (size_t)expected.workspace && less <= bytes;
        if (!good) print(&layers[0], &conv, cuda.text), failures++;
    }
    cuda.args.benchmark = false;
    if (calls < GPUNN__DNN_CANDIDATES) failures++;
    report(failures, "comparing plans: the fastest stays, after each of %d calls failed once", calls);
}

/* ---- recurrent layers: their descriptors; what follows asks a handle, for which there must be a card --- */
#define COUNTED(kind)                                                    \
    static cudnnStatus_t create_##kind(cudnn##kind##Descriptor_t *made)  \
    {                                                                    \
        if (fails()) return FAILURE;                                     \
        cudnnStatus_t status = real.cudnnCreate##kind##Descriptor(made); \
        alive += status == CUDNN_STATUS_SUCCESS;                         \
        return status;                                                   \
    }                                                                    \
    static cudnnStatus_t destroy_##kind(cudnn##kind##Descriptor_t made)  \
    {                                                                    \
        alive--;                                                         \
        return real.cudnnDestroy##kind##Descriptor(made);                \
    }
COUNTED(RNN)
COUNTED(RNNData)
COUNTED(Tensor)

static cudnnStatus_t set_states(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int rank,
                                const int *dim, const int *stride)
{
    return fails() ? FAILURE : real.cudnnSetTensorNdDescriptor(tensor, type, rank, dim, stride);
}

static gpunn_status describe_recurrent(const gpunn__dnn_rnn *key)
{
    gpunn__dnn_builder    builder = {&cuda, NULL, NULL, GPUNN_OK, "", 0, {}};
    gpunn__dnn_rnn_choice choice;
    memset(&choice, 0, sizeof choice);
    gpunn__dnn_rnn_describe(&builder, key, &choice);
    if (builder.status != GPUNN_OK) (void)gpunn__cuda_fail(&cuda, builder.status, "%s", builder.text);
    gpunn__dnn_rnn_forget(&cuda, &choice);
    return builder.status;
}

static void check_recurrent(void)
{
    const int op[] = {GPUNN_OP_RNN, GPUNN_OP_RNN, GPUNN_OP_LSTM, GPUNN_OP_GRU}, before = alive;
    int       failures = 0, layers = 0, calls = 0;
    for (int kind = 0; kind < 4; kind++)
        for (int options = 0; options < 8; options++, layers++) {
            const gpunn_precision precision = options & 1 ? GPUNN_PRECISION_TF32 : GPUNN_PRECISION_F32;
            gpunn__dnn_rnn key = {GPUNN__RNN_TAG,         op[kind],    kind == 0, precision, 1, 7, 5, 33, 17,
                                  1 + (options >> 1 & 1), options >> 2};
            bool           good = describe_recurrent(&key) == GPUNN_OK;
            if (!good) printf("# layer %d: %s\n", layers, cuda.text), failures++;
        }
    report(failures || alive != before, "recurrent layers: the descriptors of %d", layers);

    gpunn__dnn_rnn key = {
        GPUNN__RNN_TAG, GPUNN_OP_LSTM, 0, GPUNN_PRECISION_F32, 1, 2, 1 << 20, 3, 1 << 12, 1, 1};
    failures = describe_recurrent(&key) != GPUNN_ERR_UNSUPPORTED;
    gpunn__dnn_rnn_sizes sizes;
    key.batch = 5;
    failures += gpunn__dnn_rnn_prepare(&cuda, &key, &sizes) != GPUNN_ERR_UNSUPPORTED;
    report(failures || alive != before, "recurrent layers: too large, and without a card, are refused");

    failures = 0;
    for (failed = 1; failed && calls < 100; calls++) {
        fail_in = calls + 1, failed = 0;
        const gpunn_status status = describe_recurrent(&key);
        if (alive != before || status != (failed ? GPUNN_ERR_MEMORY : GPUNN_OK)) failures++;
    }
    fail_in = 0;
    report(failures || calls < 8, "recurrent layers: each of %d calls failed once", calls - 1);
}

static gpunn_status describe(const char *path)
{
    char   json[4096], text[512];
    FILE  *file = fopen(path, "rb");
    size_t length = file ? fread(json, 1, sizeof json - 1, file) : 0;
    if (file) (void)fclose(file);
    json[length] = 0;
    const char *name = strstr(json, "\"deviceName\":"), *version = strstr(json, "\"deviceVer\":");
    if (!name || !version || sscanf(name + 13, " \"%127[^\"]", card) != 1 ||
        sscanf(version + 12, "%d", &capability) != 1)
        return gpunn__cuda_fail(&cuda, GPUNN_ERR_FORMAT, "%s describes no card", path);
    capability /= 10;
    cuda.capability = capability;
    gpunn_status status = gpunn__dnn_check(
        &cuda, libraries.cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &described),
        "cudnnBackendCreateDescriptor", text, sizeof text);
    if (status == GPUNN_OK)
        status = gpunn__dnn_check(
            &cuda,
            libraries.cudnnBackendSetAttribute(described, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                               CUDNN_TYPE_CHAR, (int64_t)length, json),
            path, text, sizeof text);
    if (status == GPUNN_OK)
        status = gpunn__dnn_check(&cuda, libraries.cudnnBackendFinalize(described), path, text, sizeof text);
    return status == GPUNN_OK ? status : gpunn__cuda_fail(&cuda, status, "%s", text);
}

/* quick: attention in one type a pass, as its plans take most of the time. */
static void check_all(bool quick)
{
    for (int mode = 0; mode < MODES; mode++)
        for (int channels_last = 0; channels_last < 2; channels_last++) check_mode(mode, channels_last);
    check_refusals();
    for (int i = 0; i < 4; i++)
        if (!quick || i / 2 == i % 2) check_attention(i / 2 ? GPUNN_BF16 : GPUNN_F16, i % 2);
    check_forms();
    check_depthwise();
    check_arguments();
    check_failures();
    check_comparison();
    check_recurrent();
}

int main(int argument_count, char **arguments)
{
    char       text[512];
    const bool attention_only = argument_count == 3 && strcmp(arguments[2], "attention") == 0;
    const bool quick = argument_count == 3 && strcmp(arguments[2], "quick") == 0;
    if (argument_count != 2 && !attention_only && !quick)
        return fprintf(stderr, "plans CARD.json [attention|quick]\n"), 2;
    cuda.libraries = &libraries;
    cuda.args.realloc_fn = reallocate;
    cuda.args.workspace_limit = (size_t)256 << 20;
    /* as a device does */
    if (!gpunn__lt_find(&libraries.lt_module, text, sizeof text)) return printf("skip: %s\n", text), 0;
    if (!gpunn__dnn_find(&libraries.dnn_module, text, sizeof text)) return printf("skip: %s\n", text), 0;
    if (gpunn__dnn_bind(&libraries, &libraries.dnn_module))
        return printf("skip: %s lacks %s\n", libraries.dnn_module.path,
                      gpunn__dnn_bind(&libraries, &libraries.dnn_module)),
               0;
    real = libraries;
    libraries.cudnnBackendCreateDescriptor = create;
    libraries.cudnnBackendDestroyDescriptor = destroy;
    libraries.cudnnBackendSetAttribute = set;
    libraries.cudnnBackendGetAttribute = get;
    libraries.cudnnBackendFinalize = finalize;
    libraries.cudnnBackendExecute = execute;
    libraries.cudnnCreateRNNDescriptor = create_RNN, libraries.cudnnDestroyRNNDescriptor = destroy_RNN;
    libraries.cudnnCreateRNNDataDescriptor = create_RNNData,
    libraries.cudnnDestroyRNNDataDescriptor = destroy_RNNData;
    libraries.cudnnCreateTensorDescriptor = create_Tensor,
    libraries.cudnnDestroyTensorDescriptor = destroy_Tensor;
    libraries.cudnnSetTensorNdDescriptor = set_states;
    if (describe(arguments[1]) != GPUNN_OK) return printf("not ok 1 - %s\n1..1\n", cuda.text), 1;
    if (attention_only)
        check_libraries();
    else
        check_all(quick);
    gpunn__cached_close(&cuda);
    (void)libraries.cudnnBackendDestroyDescriptor(described);
    report(alive, "%d descriptors are left at the end", alive);
    printf("1..%d\n", tests);
    return 0;
}
#else
#include <stdio.h>

int main(void)
{
    printf("skip: cudnn.h of cuDNN 9.8 or later is not on nvcc's include path\n");
    return 0;
}
#endif
