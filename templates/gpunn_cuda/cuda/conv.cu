#include "cuda/conv.h"
#include "base/errors.h"
#include "cuda/gemm.h"

#if GPUNN__CUDNN

/* A CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR that replaces the machine's device. Plans can be made for it but not
 * run. */
#ifndef GPUNN__DNN_DESCRIBED
#define GPUNN__DNN_DESCRIBED NULL
#endif
/* Ids of a graph's tensors. Those from BETWEEN on are virtual: cuDNN never stores them. */
enum {
    GPUNN__DNN_X = 1,
    GPUNN__DNN_W,
    GPUNN__DNN_Y,
    GPUNN__DNN_BIAS,
    GPUNN__DNN_RESIDUAL,
    GPUNN__DNN_BETWEEN
};

GPUNN__INTERNAL gpunn_status gpunn__dnn_check(gpunn__cuda *cuda, cudnnStatus_t status, const char *call,
                                              char *text, size_t size)
{
    if (status == CUDNN_STATUS_SUCCESS) return GPUNN_OK;
    char detail[160] = "";
    cuda->libraries->cudnnGetLastErrorString(detail, sizeof detail);
    (void)snprintf(text, size, "%s: %s%s%s", call, cuda->libraries->cudnnGetErrorString(status),
                   *detail ? ": " : "", detail);
    if (status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
        status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
        return GPUNN_ERR_MEMORY;
    bool broken = status < CUDNN_STATUS_BAD_PARAM || status >= CUDNN_STATUS_EXECUTION_FAILED;
    return broken ? GPUNN_ERR_DEVICE : GPUNN_ERR_UNSUPPORTED;
}

GPUNN__INTERNAL cudnnBackendDescriptor_t gpunn__dnn_make(gpunn__dnn_builder          *builder,
                                                         cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t descriptor = NULL;
    if (GPUNN__DNN(builder, cudnnBackendCreateDescriptor, type, &descriptor))
        builder->descriptors[builder->count++] = descriptor;
    return descriptor;
}

/* Destroys all descriptors but the first `count`. */
static void gpunn__dnn_release(gpunn__dnn_builder *builder, int count)
{
    while (builder->count > count)
        (void)builder->cuda->libraries->cudnnBackendDestroyDescriptor(builder->descriptors[--builder->count]);
}

GPUNN__INTERNAL void gpunn__dnn_set(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                    int64_t count, const void *values)
{
    (void)GPUNN__DNN(builder, cudnnBackendSetAttribute, descriptor, name, type, count, values);
}

GPUNN__INTERNAL void gpunn__dnn_set_int(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                        cudnnBackendAttributeName_t name, int64_t value)
{
    gpunn__dnn_set(builder, descriptor, name, CUDNN_TYPE_INT64, 1, &value);
}

GPUNN__INTERNAL void gpunn__dnn_set_type(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                         cudnnBackendAttributeName_t name, gpunn_dtype dtype)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    if (dtype == GPUNN_F16) type = CUDNN_DATA_HALF;
    if (dtype == GPUNN_BF16) type = CUDNN_DATA_BFLOAT16;
    gpunn__dnn_set(builder, descriptor, name, CUDNN_TYPE_DATA_TYPE, 1, &type);
}

GPUNN__INTERNAL void gpunn__dnn_link(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                                     cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t other)
{
    gpunn__dnn_set(builder, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other);
}

GPUNN__INTERNAL void gpunn__dnn_finalize(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor)
{
    (void)GPUNN__DNN(builder, cudnnBackendFinalize, descriptor);
}

/* Reads an attribute. Writes at most `count` values and returns how many there are. */
static int64_t gpunn__dnn_get(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t descriptor,
                              cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                              int64_t count, void *values)
{
    int64_t got = 0;
    (void)GPUNN__DNN(builder, cudnnBackendGetAttribute, descriptor, name, type, count, &got, values);
    return got;
}

GPUNN__INTERNAL void gpunn__dnn_check_sizes(gpunn__dnn_builder *builder, int64_t count, const int64_t *sizes)
{
    for (int64_t i = 0; i < count && builder->status == GPUNN_OK; i++) {
        if (sizes[i] <= INT32_MAX) continue;
        builder->status = GPUNN_ERR_UNSUPPORTED;
        (void)snprintf(builder->text, sizeof builder->text, "it counts in 32 bits");
    }
}

/* A contiguous tensor. shape is n, c, d, h, w; a convolution of two axes omits d. */
static cudnnBackendDescriptor_t gpunn__dnn_tensor(gpunn__dnn_builder *builder, int64_t name,
                                                  const int64_t shape[5])
{
    bool    between = name >= GPUNN__DNN_BETWEEN, last = builder->conv->channels_last != 0;
    int64_t rank = builder->conv->axes + 2, dim[5] = {shape[0], shape[1]}, stride[5];
    for (int64_t i = 2; i < rank; i++) dim[i] = shape[i + 5 - rank];
    stride[rank - 1] = last ? dim[1] : 1;
    for (int64_t i = rank - 2; i > 1; i--) stride[i] = stride[i + 1] * dim[i + 1];
    stride[1] = last ? 1 : stride[2] * dim[2];
    stride[0] = (last ? stride[2] * dim[2] : stride[1] * dim[1]);
    gpunn__dnn_check_sizes(builder, rank, dim);

    cudnnBackendDescriptor_t tensor = gpunn__dnn_make(builder, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    gpunn__dnn_set_type(builder, tensor, CUDNN_ATTR_TENSOR_DATA_TYPE,
                        between ? GPUNN_F32 : (gpunn_dtype)builder->conv->dtype);
    gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, dim);
    gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, stride);
    gpunn__dnn_set_int(builder, tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, name);
    gpunn__dnn_set_int(builder, tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16);
    gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &between);
    gpunn__dnn_finalize(builder, tensor);
    return tensor;
}

/* The convolution itself. conv->kind decides which of x, w and y it computes. */
static cudnnBackendDescriptor_t gpunn__dnn_convolve(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t x,
                                                    cudnnBackendDescriptor_t w, cudnnBackendDescriptor_t y)
{
    static const struct {
        cudnnBackendDescriptorType_t type;
        cudnnBackendAttributeName_t  x, w, y, window, alpha, beta;
    } kinds[] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
    };
    const gpunn__convolution *conv = builder->conv;
    cudnnConvolutionMode_t    mode = CUDNN_CROSS_CORRELATION;
    float                     alpha = 1, beta = 0;
    const int64_t             first = 3 - conv->axes;

    cudnnBackendDescriptor_t window = gpunn__dnn_make(builder, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    gpunn__dnn_set_int(builder, window, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, conv->axes);
    gpunn__dnn_set_type(builder, window, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, GPUNN_F32);
    gpunn__dnn_set(builder, window, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    gpunn__dnn_set(builder, window, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, conv->axes,
                   conv->padding + first);
    gpunn__dnn_set(builder, window, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, conv->axes,
                   conv->padding + first);
    gpunn__dnn_set(builder, window, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, conv->axes,
                   conv->dilation + first);
    gpunn__dnn_set(builder, window, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, conv->axes,
                   conv->stride + first);
    gpunn__dnn_finalize(builder, window);

    cudnnBackendDescriptor_t operation = gpunn__dnn_make(builder, kinds[conv->kind].type);
    gpunn__dnn_link(builder, operation, kinds[conv->kind].x, x);
    gpunn__dnn_link(builder, operation, kinds[conv->kind].w, w);
    gpunn__dnn_link(builder, operation, kinds[conv->kind].y, y);
    gpunn__dnn_link(builder, operation, kinds[conv->kind].window, window);
    gpunn__dnn_set(builder, operation, kinds[conv->kind].alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    gpunn__dnn_set(builder, operation, kinds[conv->kind].beta, CUDNN_TYPE_FLOAT, 1, &beta);
    gpunn__dnn_finalize(builder, operation);
    return operation;
}

/* to = from + other, or to = relu(from) with other NULL. */
static cudnnBackendDescriptor_t gpunn__dnn_pointwise(gpunn__dnn_builder      *builder,
                                                     cudnnBackendDescriptor_t from,
                                                     cudnnBackendDescriptor_t other,
                                                     cudnnBackendDescriptor_t to)
{
    cudnnPointwiseMode_t mode = other ? CUDNN_POINTWISE_ADD : CUDNN_POINTWISE_RELU_FWD;

    cudnnBackendDescriptor_t function = gpunn__dnn_make(builder, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    gpunn__dnn_set(builder, function, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    gpunn__dnn_set_type(builder, function, CUDNN_ATTR_POINTWISE_MATH_PREC, GPUNN_F32);
    gpunn__dnn_finalize(builder, function);

    cudnnBackendDescriptor_t operation = gpunn__dnn_make(builder,
                                                         CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, from);
    if (other) gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, other);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to);
    gpunn__dnn_finalize(builder, operation);
    return operation;
}

GPUNN__INTERNAL cudnnBackendDescriptor_t gpunn__dnn_operations(gpunn__dnn_builder *builder, int64_t count,
                                                               const cudnnBackendDescriptor_t *operations)
{
    cudnnBackendDescriptor_t graph = gpunn__dnn_make(builder, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    gpunn__dnn_set(builder, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
                   operations);
    if (!GPUNN__DNN_DESCRIBED)
        gpunn__dnn_set(builder, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                       &builder->cuda->libraries->dnn);
    gpunn__dnn_finalize(builder, graph);
    return graph;
}

/* The graph x, w -> convolution -> + residual -> + bias -> relu -> y. cuDNN has precompiled engines for this
 * order only. Without a bias it has none for a residual or relu: for NHWC it compiles one at run time, for
 * NCHW it has no plan. */
static cudnnBackendDescriptor_t gpunn__dnn_graph(gpunn__dnn_builder *builder)
{
    const gpunn__convolution *conv = builder->conv;
    int64_t                   x_shape[5] = {conv->n, conv->c, conv->d, conv->h, conv->w};
    int64_t                   w_shape[5] = {conv->k, conv->c / conv->groups, conv->kd, conv->kh, conv->kw};
    int64_t y_shape[5] = {conv->n, conv->k, conv->o, conv->p, conv->q}, bias_shape[5] = {1, conv->k, 1, 1, 1};
    int64_t count = 0, last = conv->residual + conv->bias + conv->relu;
    cudnnBackendDescriptor_t operations[4], y[4], x = gpunn__dnn_tensor(builder, GPUNN__DNN_X, x_shape);
    cudnnBackendDescriptor_t w = gpunn__dnn_tensor(builder, GPUNN__DNN_W, w_shape);
    for (int64_t i = 0; i < last; i++) y[i] = gpunn__dnn_tensor(builder, GPUNN__DNN_BETWEEN + i, y_shape);
    y[last] = gpunn__dnn_tensor(builder, GPUNN__DNN_Y, y_shape);

    operations[count++] = gpunn__dnn_convolve(builder, x, w, y[0]);
    if (conv->residual) {
        cudnnBackendDescriptor_t residual = gpunn__dnn_tensor(builder, GPUNN__DNN_RESIDUAL, y_shape);
        operations[count] = gpunn__dnn_pointwise(builder, y[count - 1], residual, y[count]), count++;
    }
    if (conv->bias) {
        cudnnBackendDescriptor_t bias = gpunn__dnn_tensor(builder, GPUNN__DNN_BIAS, bias_shape);
        operations[count] = gpunn__dnn_pointwise(builder, y[count - 1], bias, y[count]), count++;
    }
    if (conv->relu) operations[count] = gpunn__dnn_pointwise(builder, y[count - 1], NULL, y[count]), count++;

    return gpunn__dnn_operations(builder, count, operations);
}

/* Gets the heuristic's engine configurations for the graph, fastest first. Returns how many. */
static int64_t gpunn__dnn_configs(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t graph,
                                  cudnnBackendHeurMode_t   mode,
                                  cudnnBackendDescriptor_t configs[GPUNN__DNN_CONFIGS])
{
    cudnnBackendDescriptor_t heuristic = gpunn__dnn_make(builder, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    gpunn__dnn_link(builder, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    gpunn__dnn_set(builder, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
#if CUDNN_VERSION >= 90800
    if (GPUNN__DNN_DESCRIBED)
        gpunn__dnn_link(builder, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, GPUNN__DNN_DESCRIBED);
#endif
    gpunn__dnn_finalize(builder, heuristic);
    int64_t count = gpunn__dnn_get(builder, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, NULL);
    if (count > GPUNN__DNN_CONFIGS) count = GPUNN__DNN_CONFIGS;
    for (int64_t i = 0; i < count; i++)
        configs[i] = gpunn__dnn_make(builder, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t got = gpunn__dnn_get(builder, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, count, configs);
    return got < count ? got : count;
}

/* Whether the engine meets gpunn's guarantees: it sums in F32 and multiplies exactly if F32 precision is set.
 * Unless any_order is set, it also gives the same bits for the same inputs. */
static bool gpunn__dnn_suits(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t config, bool any_order)
{
    const gpunn__convolution *conv = builder->conv;
    bool exact = conv && conv->dtype == GPUNN_F32 && conv->precision == GPUNN_PRECISION_F32;
    cudnnBackendNumericalNote_t notes[GPUNN__DNN_NOTES];
    int                         before = builder->count;
    cudnnBackendDescriptor_t    engine = gpunn__dnn_make(builder, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    (void)gpunn__dnn_get(builder, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                         &engine);
    int64_t count = gpunn__dnn_get(builder, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                   CUDNN_TYPE_NUMERICAL_NOTE, GPUNN__DNN_NOTES, notes);
    gpunn__dnn_release(builder, before);

    bool suits = builder->status == GPUNN_OK && count <= GPUNN__DNN_NOTES;
    for (int64_t i = 0; i < count && suits; i++)
        suits = notes[i] != CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS &&
                notes[i] != CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION &&
                !(notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE && exact) &&
                !(notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC && !any_order);
    return suits;
}

GPUNN__INTERNAL void gpunn__dnn_clear_unsupported(gpunn__dnn_builder *builder)
{
    if (builder->status == GPUNN_ERR_UNSUPPORTED) builder->status = GPUNN_OK;
}

/* Fails with GPUNN_ERR_UNSUPPORTED if the workspace exceeds workspace_limit. */
static void gpunn__dnn_limit(gpunn__dnn_builder *builder, int64_t workspace)
{
    const size_t limit = builder->cuda->args.workspace_limit;
    if (builder->status != GPUNN_OK || (uint64_t)workspace <= limit) return;
    builder->status = GPUNN_ERR_UNSUPPORTED;
    (void)snprintf(builder->text, sizeof builder->text,
                   "it needs %lld bytes of workspace, but workspace_limit is %llu", (long long)workspace,
                   (unsigned long long)limit);
}

/* Adds the configuration's plan if the device can run it within workspace_limit. The workspace is queried
 * before the plan is made where cuDNN allows it, because compiling a plan takes up to a second. */
static void gpunn__dnn_add(gpunn__dnn_builder *builder, cudnnBackendDescriptor_t config,
                           gpunn__dnn_choice *choice)
{
    gpunn__libraries *libraries = builder->cuda->libraries;
    int               before = builder->count;
#if CUDNN_VERSION >= 90200
    int64_t needed = 0;
    (void)gpunn__dnn_get(builder, config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &needed);
    gpunn__dnn_clear_unsupported(builder);
    gpunn__dnn_limit(builder, needed);
#endif
    gpunn__dnn_plan plan = {gpunn__dnn_make(builder, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR), 0};
    gpunn__dnn_link(builder, plan.descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (!GPUNN__DNN_DESCRIBED)
        gpunn__dnn_set(builder, plan.descriptor, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                       &libraries->dnn);
#if CUDNN_VERSION >= 90800
    if (GPUNN__DNN_DESCRIBED)
        gpunn__dnn_link(builder, plan.descriptor, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, GPUNN__DNN_DESCRIBED);
#endif
    gpunn__dnn_finalize(builder, plan.descriptor);
    (void)gpunn__dnn_get(builder, plan.descriptor, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                         1, &plan.workspace);
    gpunn__dnn_limit(builder, plan.workspace);
    if (builder->status == GPUNN_OK) {
        choice->plans[choice->count++] = plan;
        builder->count = before;
    }
    gpunn__dnn_release(builder, before);
    gpunn__dnn_clear_unsupported(builder);
}

GPUNN__INTERNAL void gpunn__dnn_forget(gpunn__cuda *cuda, void *value)
{
    gpunn__dnn_choice *choice = (gpunn__dnn_choice *)value;
    while (choice->count > 0)
        (void)cuda->libraries->cudnnBackendDestroyDescriptor(choice->plans[--choice->count].descriptor);
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_fail(gpunn__cuda *cuda, gpunn_status status, const char *text)
{
    return gpunn__cuda_fail(cuda, status == GPUNN_ERR_UNSUPPORTED ? GPUNN_ERR_DEVICE : status, "cuDNN: %s",
                            text);
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_search(
    gpunn__cuda *cuda, const gpunn__convolution *conv, const gpunn__dnn_attention *attention,
    cudnnBackendDescriptor_t (*make_graph)(gpunn__dnn_builder *builder), gpunn__dnn_choice *choice)
{
    static const struct {
        cudnnBackendHeurMode_t mode;
        bool                   any_order;
    } rounds[] = {{CUDNN_HEUR_MODE_A, false},
                  {CUDNN_HEUR_MODE_FALLBACK, false},
                  {CUDNN_HEUR_MODE_A, true},
                  {CUDNN_HEUR_MODE_FALLBACK, true}};

    gpunn__dnn_builder       builder = {cuda, conv, attention, GPUNN_OK, "", 0, {}};
    cudnnBackendDescriptor_t configs[GPUNN__DNN_CONFIGS];
    cudnnBackendDescriptor_t graph = make_graph(&builder);
    int before = builder.count, wanted = cuda->args.benchmark ? GPUNN__DNN_CANDIDATES : 1;
    for (int r = 0;
         r < (cuda->args.deterministic ? 2 : 4) && choice->count == 0 && builder.status == GPUNN_OK; r++) {
        int64_t count = gpunn__dnn_configs(&builder, graph, rounds[r].mode, configs);
        for (int64_t i = 0; i < count && choice->count < wanted; i++)
            if (gpunn__dnn_suits(&builder, configs[i], rounds[r].any_order))
                gpunn__dnn_add(&builder, configs[i], choice);
        gpunn__dnn_release(&builder, before);
        gpunn__dnn_clear_unsupported(&builder);
    }
    gpunn__dnn_release(&builder, 0);
    gpunn__dnn_clear_unsupported(&builder);
    if (builder.status != GPUNN_OK) {
        gpunn__dnn_forget(cuda, choice);
        return gpunn__dnn_fail(cuda, builder.status, builder.text);
    }
    (void)snprintf(choice->reason, sizeof choice->reason, "%s",
                   *builder.text ? builder.text
                                 : "it has none for this shape, dtype and exactness on this GPU");
    choice->searched = true;
    return GPUNN_OK;
}

static gpunn__dnn_choice *gpunn__dnn_entry(gpunn__cuda *cuda, const gpunn__convolution *conv)
{
    bool fresh;
    return (gpunn__dnn_choice *)gpunn__cuda_cached(cuda, conv, sizeof *conv, sizeof(gpunn__dnn_choice),
                                                   gpunn__dnn_forget, &fresh);
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_prepare(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                                size_t *workspace_bytes)
{
    gpunn__dnn_choice *choice = gpunn__dnn_entry(cuda, conv);
    if (!choice) return GPUNN_ERR_MEMORY;
    if (!choice->searched) GPUNN__TRY(gpunn__dnn_search(cuda, conv, NULL, gpunn__dnn_graph, choice));
    if (choice->count == 0)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "cuDNN has no plan for this graph: %s",
                                choice->reason);
    *workspace_bytes = 0;
    for (int i = 0; i < choice->count; i++)
        if ((size_t)choice->plans[i].workspace > *workspace_bytes)
            *workspace_bytes = (size_t)choice->plans[i].workspace;
    return GPUNN_OK;
}

static gpunn_status gpunn__dnn_execute(gpunn__cuda *cuda, cudnnBackendDescriptor_t plan,
                                       cudnnBackendDescriptor_t pack)
{
    char          text[256];
    cudnnStatus_t result = cuda->libraries->cudnnBackendExecute(cuda->libraries->dnn, plan, pack);
    gpunn_status  status = gpunn__dnn_check(cuda, result, "cudnnBackendExecute", text, sizeof text);
    if (status == GPUNN_OK) return GPUNN_OK;
    GPUNN__TRY(gpunn__cuda_check(cuda, cudaGetLastError(), "cudnnBackendExecute"));
    return gpunn__dnn_fail(cuda, status, text);
}

/* Times GPUNN__DNN_TIMED runs of a plan, after GPUNN__DNN_WARM to warm up. */
static gpunn_status gpunn__dnn_time(gpunn__cuda *cuda, cudnnBackendDescriptor_t plan,
                                    cudnnBackendDescriptor_t pack, const cudaEvent_t events[2],
                                    float *milliseconds)
{
    for (int i = 0; i < GPUNN__DNN_WARM; i++) GPUNN__TRY(gpunn__dnn_execute(cuda, plan, pack));
    GPUNN__CUDA(cuda, cudaEventRecord(events[0], cuda->stream));
    for (int i = 0; i < GPUNN__DNN_TIMED; i++) GPUNN__TRY(gpunn__dnn_execute(cuda, plan, pack));
    GPUNN__CUDA(cuda, cudaEventRecord(events[1], cuda->stream));
    GPUNN__CUDA(cuda, cudaEventSynchronize(events[1]));
    GPUNN__CUDA(cuda, cudaEventElapsedTime(milliseconds, events[0], events[1]));
    return GPUNN_OK;
}

/* Times the plans and keeps only the fastest. Does nothing during a stream capture: the next run outside one
 * does it. */
static gpunn_status gpunn__dnn_compare(gpunn__cuda *cuda, gpunn__dnn_choice *choice,
                                       cudnnBackendDescriptor_t pack)
{
    cudaStreamCaptureStatus capture;
    cudaEvent_t             events[2] = {NULL, NULL};
    gpunn_status            status = GPUNN_OK;
    int                     best = 0;
    float                   least = 0, milliseconds = 0;
    GPUNN__CUDA(cuda, cudaStreamIsCapturing(cuda->stream, &capture));
    if (capture != cudaStreamCaptureStatusNone) return GPUNN_OK;
    for (int i = 0; i < 2 && status == GPUNN_OK; i++)
        status = gpunn__cuda_check(cuda, cudaEventCreate(&events[i]), "cudaEventCreate");
    for (int i = 0; i < choice->count && status == GPUNN_OK; i++) {
        status = gpunn__dnn_time(cuda, choice->plans[i].descriptor, pack, events, &milliseconds);
        if (i == 0 || milliseconds < least) least = milliseconds, best = i;
    }
    for (int i = 0; i < 2; i++)
        if (events[i]) (void)cudaEventDestroy(events[i]);
    if (status != GPUNN_OK) return status;
    gpunn__dnn_plan fastest = choice->plans[best];
    choice->plans[best] = choice->plans[--choice->count];
    gpunn__dnn_forget(cuda, choice);
    choice->plans[choice->count++] = fastest;
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_launch(gpunn__cuda *cuda, gpunn__dnn_choice *choice, int64_t count,
                                               const int64_t *names, const void *const *pointers,
                                               void *workspace, bool repeatable)
{
    gpunn__dnn_builder       builder = {cuda, NULL, NULL, GPUNN_OK, "", 0, {}};
    cudnnBackendDescriptor_t pack = gpunn__dnn_make(&builder, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    gpunn__dnn_set(&builder, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, names);
    gpunn__dnn_set(&builder, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count,
                   pointers);
    gpunn__dnn_set(&builder, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    gpunn__dnn_finalize(&builder, pack);

    gpunn_status status = builder.status;
    if (status != GPUNN_OK)
        status = gpunn__dnn_fail(cuda, status, builder.text);
    else if (choice->count > 1 && repeatable)
        status = gpunn__dnn_compare(cuda, choice, pack);
    if (status == GPUNN_OK) status = gpunn__dnn_execute(cuda, choice->plans[0].descriptor, pack);
    gpunn__dnn_release(&builder, 0);
    return status;
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_run(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                            const gpunn__conv_data *data)
{
    gpunn__dnn_choice *choice = gpunn__dnn_entry(cuda, conv);
    if (!choice) return GPUNN_ERR_MEMORY;
    if (choice->count == 0)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_STATE, "this convolution was not prepared");

    int64_t     count = 3, names[5] = {GPUNN__DNN_X, GPUNN__DNN_W, GPUNN__DNN_Y};
    const void *pointers[5] = {data->x, data->w, data->y};
    if (conv->bias) names[count] = GPUNN__DNN_BIAS, pointers[count++] = data->bias;
    if (conv->residual) names[count] = GPUNN__DNN_RESIDUAL, pointers[count++] = data->residual;
    /* in place, a second run would read the first one's result */
    const bool repeatable = !(conv->residual && data->residual == data->y);
    return gpunn__dnn_launch(cuda, choice, count, names, pointers, data->workspace, repeatable);
}
#elif !defined(GPUNN__EMULATOR) /* no cudnn.h: convolutions use matrix products */
GPUNN__INTERNAL gpunn_status gpunn__dnn_prepare(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                                size_t *workspace_bytes)
{
    (void)conv, (void)workspace_bytes;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                            "gpunn_cuda.cu was compiled where there was no cudnn.h");
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_run(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                            const gpunn__conv_data *data)
{
    (void)data;
    return gpunn__dnn_prepare(cuda, conv, NULL);
}
#endif

/* ---- the ops ------------------------------------------------------------------------------------------- */

static const char *gpunn__op_text(gpunn_op op)
{
    switch (op) {
#define GPUNN__X(ENUM, name, ...) \
    case GPUNN_OP_##ENUM: return #name;
        GPUNN_OTHER_OPS(GPUNN__X)
#undef GPUNN__X
    default: return "op";
    }
}

GPUNN__INTERNAL void gpunn__dnn_slower(gpunn__cuda *cuda, const gpunn_step *step, gpunn__dnn_kind kind,
                                       const char *why)
{
    char text[sizeof cuda->text + 256];
    if (cuda->slower >> kind & 1) return;
    cuda->slower |= 1u << kind;
    (void)snprintf(text, sizeof text, "%s%s%.100s%s%s uses a slower kernel, and perhaps others do: %s",
                   gpunn__op_text(step->op), *step->name ? " '" : "", step->name, *step->name ? "'" : "",
                   step->backward ? ", backward," : "", why);
    gpunn__cuda_log(cuda, GPUNN_LOG_WARNING, text);
}

/* x, w and y of a step. kind says which of them is computed; the other two are read. A transposed convolution
 * is the data gradient of the convolution that gpunn__convolution describes, so its result is x. */
typedef struct gpunn__conv_values {
    gpunn_value x, w, y;
    bool        gradient, accumulate; /* gradient: the result is a gradient; accumulate: it is added to */
} gpunn__conv_values;

static gpunn__conv_values gpunn__conv_values_of(const gpunn_step *step, gpunn__conv_kind kind)
{
    const bool         backward = step->backward, filter = kind == GPUNN__CONV_FILTER;
    const gpunn_value *out = backward ? &step->grad_out : &step->out;
    const gpunn_value *in = backward && !filter ? &step->grad_in[0] : &step->in[0];
    gpunn__conv_values v;
    v.x = gpunn__op_is(step->op, GPUNN__TRANSPOSED) ? *out : *in;
    v.y = gpunn__op_is(step->op, GPUNN__TRANSPOSED) ? *in : *out;
    v.w = filter ? step->grad_in[1] : step->in[1];
    v.gradient = backward;
    v.accumulate = backward && step->accumulate[filter ? 1 : 0];
    return v;
}

/* The one of the three values that is computed. */
static gpunn_value *gpunn__conv_result(gpunn__conv_values *v, gpunn__conv_kind kind)
{
    if (kind == GPUNN__CONV_FORWARD) return &v->y;
    return kind == GPUNN__CONV_DATA ? &v->x : &v->w;
}

/* The bare convolution of a step, without bias, residual and relu. */
static gpunn__convolution gpunn__convolution_of(const gpunn_step *step, gpunn__conv_kind kind)
{
    const gpunn_attributes  *attr = step->attr;
    const gpunn_value *const in = &step->in[0], *const out = step->backward ? &step->grad_out : &step->out;
    const gpunn_value *const        x = gpunn__op_is(step->op, GPUNN__TRANSPOSED) ? out : in,
                             *const y = gpunn__op_is(step->op, GPUNN__TRANSPOSED) ? in : out;
    int64_t                         size[3] = {1, 1, 1}, kernel[3] = {1, 1, 1}, output[3] = {1, 1, 1};
    gpunn__convolution              conv;
    memset(&conv, 0, sizeof conv);
    conv.tag = GPUNN__CONV_TAG;
    conv.kind = kind;
    conv.dtype = step->backward ? out->dtype : in->dtype;
    conv.precision = step->precision;
    conv.axes = x->rank == 5 ? 3 : 2;
    for (int i = 0; i < 3; i++) {
        const int from = i + x->rank - 5; /* axes of a lower rank are the last ones */
        conv.stride[i] = from < 0 ? 1 : attr->stride[from];
        conv.padding[i] = from < 0 ? 0 : attr->padding[from];
        conv.dilation[i] = from < 0 ? 1 : attr->dilation[from];
        if (from >= 0)
            size[i] = x->dim[2 + from], kernel[i] = attr->kernel[from], output[i] = y->dim[2 + from];
    }
    conv.n = x->dim[0], conv.c = x->dim[1], conv.d = size[0], conv.h = size[1], conv.w = size[2];
    conv.k = y->dim[1], conv.kd = kernel[0], conv.kh = kernel[1], conv.kw = kernel[2];
    conv.o = output[0], conv.p = output[1], conv.q = output[2];
    conv.groups = attr->groups;
    const gpunn_value *const w = kind == GPUNN__CONV_FILTER ? &step->grad_in[1] : &step->in[1];
    /* a tensor may look the same in both layouts */
    conv.channels_last = x->channels_last || y->channels_last || w->channels_last;
    return conv;
}

/* Whether the position of the channel axis, dim[1], affects the memory layout. */
static bool gpunn__has_place(const gpunn_value *value)
{
    return value->dim[1] > 1 && value->dim[2] * value->dim[3] > 1;
}

/* to = or += from. Both have the same shape; channels are second in one and last in the other (to_last: in
 * `to`). */
static gpunn_status gpunn__relayout(gpunn__cuda *cuda, const gpunn_value *to, bool to_last,
                                    const gpunn_value *from, bool accumulate)
{
    const int        last[4] = {0, 2, 3, 1}, second[4] = {0, 3, 1, 2};
    gpunn_attributes attr;
    gpunn_step       step;
    gpunn_value      target = *to;
    memset(&attr, 0, sizeof attr);
    memset(&step, 0, sizeof step);
    step.op = GPUNN_OP_PERMUTE;
    step.backward = true;
    step.attr = &attr;
    step.input_count = 1;
    step.grad_in = &target;
    step.grad_out = *from;
    step.accumulate = &accumulate;
    for (int i = 0; i < 4; i++) {
        attr.order[i] = to_last ? second[i] : last[i];
        *(to_last ? &target.dim[i] : &step.grad_out.dim[i]) = to->dim[last[i]];
    }
    target.channels_last = step.grad_out.channels_last = false; /* dim itself has the layout */
    return gpunn__cuda_permute(cuda, &step, GPUNN__BACKWARD);
}

/* im2col: columns[image][c][kd][kh][kw][o][p][q] is what the window at o, p, q reads of x at kd, kh, kw.
 * Padding reads as 0. A thread writes eight elements at a time. */
static __global__ void __launch_bounds__(GPUNN__THREADS, 3)
    gpunn__columns_kernel(gpunn__convolution v, const void *x, void *columns, gpunn_dtype dtype,
                          int64_t count)
{
    GPUNN__FOLLOW();
    const int64_t stride = (int64_t)gridDim.x * blockDim.x * GPUNN__PACK;
    for (int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * GPUNN__PACK; at < count;
         at += stride) {
        const int64_t line = gpunn__quotient(at, v.q), slice = gpunn__quotient(line, v.p),
                      cell = gpunn__quotient(slice, v.o);
        const int64_t row = gpunn__quotient(cell, v.kw), face = gpunn__quotient(row, v.kh);
        int64_t       plane = gpunn__quotient(face, v.kd); /* image * channels + channel */
        int64_t       q = at - line * v.q, p = line - slice * v.p, o = slice - cell * v.o;
        int64_t       s = cell - row * v.kw, r = row - face * v.kh, t = face - plane * v.kd;
        float         value[GPUNN__PACK];
#pragma unroll
        for (int i = 0; i < GPUNN__PACK; i++) {
            const int64_t d = o * v.stride[0] + t * v.dilation[0] - v.padding[0];
            const int64_t h = p * v.stride[1] + r * v.dilation[1] - v.padding[1];
            const int64_t w = q * v.stride[2] + s * v.dilation[2] - v.padding[2];
            const bool inside = at + i < count && d >= 0 && d < v.d && h >= 0 && h < v.h && w >= 0 && w < v.w;
            value[i] = inside ? gpunn__load(x, dtype, ((plane * v.d + d) * v.h + h) * v.w + w) : 0;
            if (++q < v.q) continue;
            q = 0;
            if (++p < v.p) continue;
            p = 0;
            if (++o < v.o) continue;
            o = 0;
            if (++s < v.kw) continue;
            s = 0;
            if (++r < v.kh) continue;
            r = 0;
            if (++t < v.kd) continue;
            t = 0;
            plane++;
        }
        if (at + GPUNN__PACK <= count) {
            gpunn__store8(columns, dtype, at, value);
            continue;
        }
#pragma unroll
        for (int i = 0; i < GPUNN__PACK; i++)
            if (at + i < count) gpunn__store(columns, dtype, at + i, value[i]);
    }
}

/* col2im: x = or += for every element the sum over the windows that cover it, with kd, kh and kw in order. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__gather_kernel(gpunn__convolution v, const float *columns, void *x, gpunn_dtype dtype,
                         int64_t count, bool accumulate)
{
    GPUNN__FOLLOW();
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = at / v.w, slice = row / v.h, plane = slice / v.d;
        const int64_t d = slice - plane * v.d + v.padding[0], h = row - slice * v.h + v.padding[1];
        const int64_t w = at - row * v.w + v.padding[2];
        float         sum = accumulate ? gpunn__load(x, dtype, at) : 0;
        for (int64_t t = 0; t < v.kd; t++) {
            const int64_t front = d - t * v.dilation[0], o = front / v.stride[0];
            if (front < 0 || o >= v.o || o * v.stride[0] != front) continue;
            for (int64_t r = 0; r < v.kh; r++) {
                const int64_t top = h - r * v.dilation[1], p = top / v.stride[1];
                if (top < 0 || p >= v.p || p * v.stride[1] != top) continue;
                for (int64_t s = 0; s < v.kw; s++) {
                    const int64_t left = w - s * v.dilation[2], q = left / v.stride[2];
                    if (left < 0 || q >= v.q || q * v.stride[2] != left) continue;
                    sum +=
                        columns[(((((plane * v.kd + t) * v.kh + r) * v.kw + s) * v.o + o) * v.p + p) * v.q +
                                q];
                }
            }
        }
        gpunn__store(x, dtype, at, sum);
    }
}

/* ---- depthwise: each channel of x has its own conv.k / conv.c filters ---------------- */

static bool gpunn__is_depthwise(const gpunn__convolution *conv)
{
    return conv->groups > 1 && conv->groups == conv->c;
}

/* The shape of one sample of x or y. An element is at first + ((d * h + its h) * w + its w) * step. */
typedef struct gpunn__volumes {
    int64_t c, d, h, w;
    bool    last; /* channels last */
} gpunn__volumes;
typedef struct gpunn__voxel {
    int64_t n, c, d, h, w;
} gpunn__voxel;

__device__ __forceinline__ int64_t gpunn__volume_first(const gpunn__volumes &v, int64_t n, int64_t c)
{
    return v.last ? n * v.d * v.h * v.w * v.c + c : (n * v.c + c) * v.d * v.h * v.w;
}

__device__ __forceinline__ int64_t gpunn__volume_step(const gpunn__volumes &v)
{
    return v.last ? v.c : 1;
}

__device__ __forceinline__ gpunn__voxel gpunn__voxel_of(const gpunn__volumes &v, int64_t at)
{
    const int64_t area = v.d * v.h * v.w, outer = gpunn__quotient(at, v.last ? v.c : area);
    const int64_t inner = at - outer * (v.last ? v.c : area), n = gpunn__quotient(outer, v.last ? area : v.c);
    const int64_t cell = v.last ? outer - n * area : inner, row = gpunn__quotient(cell, v.w),
                  d = gpunn__quotient(row, v.h);
    return {n, v.last ? inner : outer - n * v.c, d, row - d * v.h, cell - row * v.w};
}

typedef struct gpunn__depthwise {
    gpunn__convolution conv;
    gpunn__volumes     x, y;
    void              *x_data, *w_data, *y_data;
    gpunn_dtype        x_dtype, w_dtype, y_dtype;
    int64_t            count; /* elements of the result */
    bool               accumulate;
} gpunn__depthwise;

/* y = or += for every element the sum over its window of x, with kd, kh and kw in order. */
static __global__ void __launch_bounds__(GPUNN__THREADS, 3) gpunn__depthwise_kernel(const gpunn__depthwise v)
{
    GPUNN__FOLLOW();
    const gpunn__convolution &conv = v.conv;
    const int64_t             step = gpunn__volume_step(v.x);
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < v.count;
         at += (int64_t)gridDim.x * blockDim.x) {
        const gpunn__voxel y = gpunn__voxel_of(v.y, at);
        const int64_t      first = gpunn__volume_first(v.x, y.n, gpunn__quotient(y.c * conv.c, conv.k));
        float              sum = v.accumulate ? gpunn__load(v.y_data, v.y_dtype, at) : 0;
#pragma unroll 1
        for (int64_t t = 0; t < conv.kd; t++) {
            const int64_t d = y.d * conv.stride[0] + t * conv.dilation[0] - conv.padding[0];
            if (d < 0 || d >= conv.d) continue;
#pragma unroll 1
            for (int64_t r = 0; r < conv.kh; r++) {
                const int64_t h = y.h * conv.stride[1] + r * conv.dilation[1] - conv.padding[1];
                if (h < 0 || h >= conv.h) continue;
                const int64_t weights = ((y.c * conv.kd + t) * conv.kh + r) * conv.kw;
#pragma unroll 1
                for (int64_t s = 0; s < conv.kw; s++) {
                    const int64_t w = y.w * conv.stride[2] + s * conv.dilation[2] - conv.padding[2];
                    if (w < 0 || w >= conv.w) continue;
                    const int64_t from = first + ((d * conv.h + h) * conv.w + w) * step;
                    sum += gpunn__load(v.x_data, v.x_dtype, from) *
                           gpunn__load(v.w_data, v.w_dtype, weights + s);
                }
            }
        }
        gpunn__store(v.y_data, v.y_dtype, at, sum);
    }
}

/* x = or += for every element the sum over the windows that cover it, filter by filter, with kd, kh and kw in
 * order. */
static __global__ void __launch_bounds__(GPUNN__THREADS, 3)
    gpunn__depthwise_data_kernel(const gpunn__depthwise v)
{
    GPUNN__FOLLOW();
    const gpunn__convolution &conv = v.conv;
    const int64_t             step = gpunn__volume_step(v.y), filters = gpunn__quotient(conv.k, conv.c);
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < v.count;
         at += (int64_t)gridDim.x * blockDim.x) {
        const gpunn__voxel x = gpunn__voxel_of(v.x, at);
        float              sum = v.accumulate ? gpunn__load(v.x_data, v.x_dtype, at) : 0;
#pragma unroll 1
        for (int64_t i = 0; i < filters * conv.kd; i++) {
            const int64_t f = gpunn__quotient(i, conv.kd), t = i - f * conv.kd, k = x.c * filters + f;
            const int64_t front = x.d + conv.padding[0] - t * conv.dilation[0],
                          o = gpunn__quotient(front, conv.stride[0]);
            const int64_t first = gpunn__volume_first(v.y, x.n, k);
            if (front < 0 || o >= conv.o || o * conv.stride[0] != front) continue;
#pragma unroll 1
            for (int64_t r = 0; r < conv.kh; r++) {
                const int64_t top = x.h + conv.padding[1] - r * conv.dilation[1],
                              p = gpunn__quotient(top, conv.stride[1]);
                if (top < 0 || p >= conv.p || p * conv.stride[1] != top) continue;
                const int64_t weights = ((k * conv.kd + t) * conv.kh + r) * conv.kw;
#pragma unroll 1
                for (int64_t s = 0; s < conv.kw; s++) {
                    const int64_t left = x.w + conv.padding[2] - s * conv.dilation[2],
                                  q = gpunn__quotient(left, conv.stride[2]);
                    if (left < 0 || q >= conv.q || q * conv.stride[2] != left) continue;
                    const int64_t from = first + ((o * conv.p + p) * conv.q + q) * step;
                    sum += gpunn__load(v.y_data, v.y_dtype, from) *
                           gpunn__load(v.w_data, v.w_dtype, weights + s);
                }
            }
        }
        gpunn__store(v.x_data, v.x_dtype, at, sum);
    }
}

/* partial[part][k][kd][kh][kw], for channels second. A block sums the products of one weight over one part of
 * the images. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__depthwise_filter_kernel(const gpunn__depthwise v, float *partial, int64_t images)
{
    GPUNN__FOLLOW();
    const gpunn__convolution &conv = v.conv;
    const int64_t             weights = conv.k * conv.kd * conv.kh * conv.kw, area = conv.o * conv.p * conv.q;
    const int64_t part = blockIdx.x / weights, weight = blockIdx.x - part * weights, row = weight / conv.kw;
    const int64_t face = row / conv.kh, k = face / conv.kd, t = face - k * conv.kd, r = row - face * conv.kh;
    const int64_t s = weight - row * conv.kw, first = part * images, c = k * conv.c / conv.k;
    const int64_t count = (first + images < conv.n ? images : conv.n - first) * area;
    float         sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
        const int64_t image = gpunn__quotient(i, area), cell = i - image * area,
                      line = gpunn__quotient(cell, conv.q);
        const int64_t o = gpunn__quotient(line, conv.p), n = first + image;
        const int64_t d = o * conv.stride[0] + t * conv.dilation[0] - conv.padding[0];
        const int64_t h = (line - o * conv.p) * conv.stride[1] + r * conv.dilation[1] - conv.padding[1];
        const int64_t w = (cell - line * conv.q) * conv.stride[2] + s * conv.dilation[2] - conv.padding[2];
        if (d < 0 || d >= conv.d || h < 0 || h >= conv.h || w < 0 || w >= conv.w) continue;
        const int64_t from = (((n * conv.c + c) * conv.d + d) * conv.h + h) * conv.w + w;
        sum += gpunn__load(v.x_data, v.x_dtype, from) *
               gpunn__load(v.y_data, v.y_dtype, (n * conv.k + k) * area + cell);
    }
    sum = gpunn__block_reduce(sum, gpunn__add());
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/* Depthwise convolution without cuDNN. FILTER needs channels second. */
static gpunn_status gpunn__conv_depthwise(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                          const gpunn__conv_values *v, gpunn__arena *arena,
                                          gpunn__action action)
{
    const bool    filter = conv->kind == GPUNN__CONV_FILTER, data = conv->kind == GPUNN__CONV_DATA;
    const bool    last = conv->channels_last && !filter;
    const int64_t weights = conv->k * conv->kd * conv->kh * conv->kw,
                  blocks = (int64_t)cuda->multiprocessors * 8;
    const int64_t wanted = (blocks + weights - 1) / weights, images = (conv->n + wanted - 1) / wanted;
    const int64_t parts = (conv->n + images - 1) / images;
    float *const  partial = (float *)gpunn__arena_take(arena,
                                                      filter ? gpunn__bytes(GPUNN_F32, parts * weights) : 0);
    void *const   sums = gpunn__arena_take(
          arena, filter ? gpunn__cuda_channel_sums_workspace(cuda, parts, weights, 1) : 0);
    if (action == GPUNN__PREPARE) return GPUNN_OK;

    gpunn__depthwise d;
    memset(&d, 0, sizeof d);
    d.conv = *conv;
    d.x = {conv->c, conv->d, conv->h, conv->w, last};
    d.y = {conv->k, conv->o, conv->p, conv->q, last};
    d.x_data = v->x.data, d.w_data = v->w.data, d.y_data = v->y.data;
    d.x_dtype = v->x.dtype, d.w_dtype = v->w.dtype, d.y_dtype = v->y.dtype;
    d.count = data ? v->x.count : v->y.count;
    d.accumulate = v->accumulate;
    if (filter) {
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__depthwise_filter_kernel, (unsigned)(parts * weights),
                                 GPUNN__THREADS, d, partial, images));
        return gpunn__cuda_channel_sums(cuda, partial, GPUNN_F32, parts, weights, 1, (float *)v->w.data,
                                        v->accumulate, sums);
    }
    if (data)
        return GPUNN__LAUNCH(cuda, gpunn__depthwise_data_kernel, gpunn__blocks(cuda, d.count, 1),
                             GPUNN__THREADS, d);
    return GPUNN__LAUNCH(cuda, gpunn__depthwise_kernel, gpunn__blocks(cuda, d.count, 1), GPUNN__THREADS, d);
}

/* The product of one image and group, without its matrices. depth: rows of the columns. plain: the columns
 * are the image. */
static gpunn__product gpunn__lowered_product(const gpunn__convolution *conv, const gpunn__conv_values *v,
                                             int64_t depth, bool plain)
{
    const bool     data = conv->kind == GPUNN__CONV_DATA, filter = conv->kind == GPUNN__CONV_FILTER;
    const int64_t  area = conv->o * conv->p * conv->q, out = conv->k / conv->groups;
    gpunn__product p;
    memset(&p, 0, sizeof p);
    p.m = data ? depth : out, p.n = filter ? depth : area, p.k = filter ? area : depth;
    if (data) p.k = out;
    p.batch = 1;
    p.transpose_a = data, p.transpose_b = filter;
    p.lda = filter ? area : depth, p.ldb = area, p.ldd = p.n;
    p.dtype = (gpunn_dtype)conv->dtype;
    p.d_dtype = data ? v->x.dtype : v->y.dtype;
    if (filter || (data && !plain)) p.d_dtype = GPUNN_F32;
    p.precision = (gpunn_precision)conv->precision;
    p.accumulate = !filter && (plain || !data) && v->accumulate;
    return p;
}

/* A convolution without cuDNN, for channels second. It processes as many images at a time as workspace_limit
 * allows. For every image and group, im2col gives columns [c / groups * kd * kh * kw][o * p * q]:
 *    FORWARD  y = w columns
 *    DATA     columns = w^T y, which are then gathered into x
 *    FILTER   w = y columns^T, which are then summed over the images
 * Where windows are single adjacent cells, the columns are x itself. */
static gpunn_status gpunn__conv_lowered(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                        const gpunn__conv_values *v, gpunn__arena *arena,
                                        gpunn__action action)
{
    const bool    data = conv->kind == GPUNN__CONV_DATA, filter = conv->kind == GPUNN__CONV_FILTER;
    const int64_t cells = conv->kd * conv->kh * conv->kw,
                  strides = conv->stride[0] * conv->stride[1] * conv->stride[2];
    const bool    plain = cells * strides == 1 && conv->padding[0] + conv->padding[1] + conv->padding[2] == 0;
    const int64_t area = conv->o * conv->p * conv->q, depth = conv->c / conv->groups * cells,
                  out = conv->k / conv->groups;
    const int64_t x_image = conv->c * conv->d * conv->h * conv->w, y_image = conv->k * area,
                  columns_image = conv->groups * depth * area;
    const int64_t weights = conv->k * depth;

    const gpunn_dtype columns_dtype = data ? GPUNN_F32 : v->x.dtype;
    const size_t      columns_bytes = plain ? 0 : gpunn__bytes(columns_dtype, columns_image);
    const size_t      weights_bytes = filter ? gpunn__bytes(GPUNN_F32, weights) : 0;
    const size_t      images_most = cuda->args.workspace_limit / (columns_bytes + weights_bytes + 1);
    const int64_t     most = images_most < (size_t)conv->n ? (int64_t)images_most : conv->n;
    const int64_t     chunk = most < 1 ? 1 : most;
    void *const       columns = gpunn__arena_take(arena, (size_t)chunk * columns_bytes);
    void *const       partial = gpunn__arena_take(arena, (size_t)chunk * weights_bytes);
    void *const       sums = gpunn__arena_take(
              arena, filter ? gpunn__cuda_channel_sums_workspace(cuda, chunk, weights, 1) : 0);

    gpunn__product p = gpunn__lowered_product(conv, v, depth, plain);
    for (int64_t first = 0; first < conv->n; first += chunk) {
        const int64_t images = conv->n - first < chunk ? conv->n - first : chunk,
                      count = images * columns_image;
        void *const x = gpunn__element(v->x.data, v->x.dtype, first * x_image);
        void *const y = gpunn__element(v->y.data, v->y.dtype, first * y_image);
        void *const seen = plain ? x : columns;
        gpunn__walk kept, summed;
        memset(&kept, 0, sizeof kept);
        memset(&summed, 0, sizeof summed);
        if (filter) {
            p.a = y, p.b = seen, p.d = partial;
            gpunn__axes_add(&kept, conv->groups, out * area, depth * area, out * depth);
            gpunn__axes_add(&kept, images, y_image, columns_image, weights);
        } else if (data) {
            p.a = v->w.data, p.b = y, p.d = seen;
            gpunn__axes_add(&kept, conv->groups, out * depth, out * area, depth * area);
            gpunn__axes_add(&kept, images, 0, y_image, columns_image);
        } else {
            p.a = v->w.data, p.b = seen, p.d = y;
            gpunn__axes_add(&kept, conv->groups, out * depth, depth * area, out * area);
            gpunn__axes_add(&kept, images, 0, columns_image, y_image);
        }
        if (action == GPUNN__PREPARE) return gpunn__repeated_products(cuda, p, kept, &summed, action);
        if (!plain && !data)
            GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__columns_kernel, gpunn__blocks(cuda, count, GPUNN__PACK),
                                     GPUNN__THREADS, *conv, x, columns, v->x.dtype, count));
        GPUNN__TRY(gpunn__repeated_products(cuda, p, kept, &summed, action));
        if (!plain && data)
            GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__gather_kernel, gpunn__blocks(cuda, images * x_image, 1),
                                     GPUNN__THREADS, *conv, (const float *)columns, x, v->x.dtype,
                                     images * x_image, v->accumulate));
        if (filter)
            GPUNN__TRY(gpunn__cuda_channel_sums(cuda, partial, GPUNN_F32, images, weights, 1,
                                                (float *)v->w.data, v->accumulate || first > 0, sums));
    }
    return GPUNN_OK;
}

/* A convolution without cuDNN, for channels second or last. Tensors with channels last, filters included, are
 * converted to channels second, and results back. */
static gpunn_status gpunn__conv_without(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                        const gpunn__conv_values *v, gpunn__arena *arena,
                                        gpunn__action action)
{
    const bool relays_x = conv->channels_last && gpunn__has_place(&v->x),
               relays_y = conv->channels_last && gpunn__has_place(&v->y);
    const bool run = action != GPUNN__PREPARE, depthwise = gpunn__is_depthwise(conv),
               filter = conv->kind == GPUNN__CONV_FILTER;
    /* with one channel per filter both layouts are the same memory */
    const bool other_w = v->w.channels_last && !depthwise;
    const bool relays_w = other_w || (filter && v->w.dtype != GPUNN_F32);
    if (depthwise && !filter) return gpunn__conv_depthwise(cuda, conv, v, arena, action);
    gpunn__conv_values second = *v;
    if (filter) second.w.dtype = GPUNN_F32;
    second.w.channels_last = false;
    if (relays_w) second.w.data = gpunn__arena_take(arena, gpunn__bytes(second.w.dtype, v->w.count));
    if (relays_x) second.x.data = gpunn__arena_take(arena, gpunn__bytes(v->x.dtype, v->x.count));
    if (relays_y) second.y.data = gpunn__arena_take(arena, gpunn__bytes(v->y.dtype, v->y.count));
    second.accumulate = v->accumulate && !(conv->kind == GPUNN__CONV_DATA && relays_x) &&
                        !(conv->kind == GPUNN__CONV_FORWARD && relays_y);
    if (run && relays_x && conv->kind != GPUNN__CONV_DATA)
        GPUNN__TRY(gpunn__relayout(cuda, &second.x, false, &v->x, false));
    if (run && relays_y && conv->kind != GPUNN__CONV_FORWARD)
        GPUNN__TRY(gpunn__relayout(cuda, &second.y, false, &v->y, false));
    if (run && relays_w && !filter) GPUNN__TRY(gpunn__relayout(cuda, &second.w, false, &v->w, false));
    GPUNN__TRY(depthwise ? gpunn__conv_depthwise(cuda, conv, &second, arena, action)
                         : gpunn__conv_lowered(cuda, conv, &second, arena, action));
    if (run && relays_w && filter && !other_w)
        return gpunn__cuda_copy(cuda, v->w.data, v->w.dtype, second.w.data, GPUNN_F32, v->w.count, false);
    if (run && relays_w && filter) return gpunn__relayout(cuda, &v->w, true, &second.w, false);
    if (run && relays_x && conv->kind == GPUNN__CONV_DATA)
        return gpunn__relayout(cuda, &v->x, true, &second.x, v->accumulate);
    if (run && relays_y && conv->kind == GPUNN__CONV_FORWARD)
        return gpunn__relayout(cuda, &v->y, true, &second.y, v->accumulate);
    return GPUNN_OK;
}

/* A convolution by cuDNN with a workspace of `bytes`. cuDNN needs every tensor in conv's dtype, writes
 * without accumulating and, if channels are last, needs channels-last filters too. Whatever differs is staged
 * in the workspace. Whether a gradient accumulates may change from run to run. */
static gpunn_status gpunn__conv_with(gpunn__cuda *cuda, const gpunn__convolution *conv, gpunn__conv_values *v,
                                     const void *bias, const void *residual, size_t bytes,
                                     gpunn__arena *arena, gpunn__action action)
{
    const gpunn__conv_kind kind = (gpunn__conv_kind)conv->kind;
    const bool             filter = kind == GPUNN__CONV_FILTER;
    const bool             relays_w = conv->channels_last && gpunn__has_place(&v->w) && !v->w.channels_last;
    gpunn_value *const     result = gpunn__conv_result(v, kind);
    gpunn_value            aside = *result, w = v->w;
    aside.dtype = w.dtype = (gpunn_dtype)conv->dtype;
    void *const workspace = gpunn__arena_take(arena, bytes);
    if (relays_w && !filter) w.data = gpunn__arena_take(arena, gpunn__bytes(w.dtype, w.count));
    if (v->gradient && !(filter && v->w.channels_last))
        aside.data = gpunn__arena_take(arena, gpunn__bytes(aside.dtype, aside.count));
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    const bool direct = result->dtype == aside.dtype && !v->accumulate && !(filter && relays_w);
    if (direct) aside.data = result->data;
    if (relays_w && !filter) GPUNN__TRY(gpunn__relayout(cuda, &w, true, &v->w, false));
    gpunn__conv_data data = {v->x.data, w.data, v->y.data, bias, residual, workspace};
    if (kind == GPUNN__CONV_FORWARD)
        data.y = aside.data;
    else if (kind == GPUNN__CONV_DATA)
        data.x = aside.data;
    else
        data.w = aside.data;
    GPUNN__TRY(gpunn__dnn_run(cuda, conv, &data));
    if (direct) return GPUNN_OK;
    if (filter && relays_w) return gpunn__relayout(cuda, result, false, &aside, v->accumulate);
    return gpunn__cuda_copy(cuda, result->data, result->dtype, aside.data, aside.dtype, result->count,
                            v->accumulate);
}

/* Whether cuDNN has a plan, and the bytes of workspace that it needs. */
static gpunn_status gpunn__conv_fits(gpunn__cuda *cuda, const gpunn__convolution *conv, size_t *bytes,
                                     bool *fits)
{
    gpunn_status status = GPUNN_ERR_UNSUPPORTED;
    *fits = false;
    if (!gpunn__dnn_available(cuda)) return GPUNN_OK;
    if (gpunn__is_depthwise(conv) && gpunn__dnn_version(cuda) < 92400)
        (void)gpunn__cuda_fail(
            cuda, status, "cuDNN before 9.24 computes depthwise convolutions of alternating sizes wrongly");
    else
        status = gpunn__dnn_prepare(cuda, conv, bytes);
    *fits = status == GPUNN_OK;
    return status == GPUNN_ERR_UNSUPPORTED ? GPUNN_OK : status;
}

/* Logs why the step does not use cuDNN, after gpunn__conv_fits has set the text. */
static void gpunn__conv_slower(gpunn__cuda *cuda, const gpunn_step *step, const gpunn__convolution *conv)
{
    if (gpunn__dnn_available(cuda))
        gpunn__dnn_slower(cuda, step,
                          gpunn__is_depthwise(conv) ? GPUNN__DNN_DEPTHWISE : GPUNN__DNN_CONVOLUTION,
                          cuda->text);
}

/* Runs cuDNN's graph with bias and everything fused into the step, or the bare convolution followed by one
 * pass that does the rest. An F32 bias is rounded to the graph's dtype first. A result of another dtype is
 * staged in the workspace. */
static gpunn_status gpunn__conv_forward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn__conv_kind kind = gpunn__op_is(step->op, GPUNN__TRANSPOSED) ? GPUNN__CONV_DATA
                                                                            : GPUNN__CONV_FORWARD;
    const gpunn_value     *bias = &step->in[2], *residual = &step->fused->residual;
    gpunn__convolution     conv = gpunn__convolution_of(step, kind);
    gpunn__conv_values     v = gpunn__conv_values_of(step, kind);
    gpunn_value *const     y = gpunn__conv_result(&v, kind);
    gpunn__arena           arena = {(char *)step->workspace, 0};
    size_t                 bytes = 0;
    const gpunn_dtype      dtype = step->in[0].dtype;
    bool                   whole = !step->fused->norm && y->dtype == dtype &&
                 (residual->data == NULL || residual->dtype == dtype),
         fits = false;
    /* cuDNN's relu may turn NaN into 0, which would hide a bad loss */
    if (step->training && step->fused->relu) whole = false;
    if (kind == GPUNN__CONV_DATA) whole = false;
    if (whole) {
        conv.bias = bias->data != NULL, conv.residual = residual->data != NULL, conv.relu = step->fused->relu;
        GPUNN__TRY(gpunn__conv_fits(cuda, &conv, &bytes, &fits));
        whole = fits;
    }
    if (!whole) {
        conv.bias = conv.residual = conv.relu = 0;
        GPUNN__TRY(gpunn__conv_fits(cuda, &conv, &bytes, &fits));
    }
    if (!fits) gpunn__conv_slower(cuda, step, &conv);
    const bool  round = conv.bias && bias->dtype != dtype;
    const void *rounded = bias->data;
    if (round) rounded = gpunn__arena_take(&arena, gpunn__bytes(dtype, conv.k));
    if (fits && y->dtype != dtype) {
        y->data = gpunn__arena_take(&arena, gpunn__bytes(dtype, y->count));
        y->dtype = dtype;
    }
    if (round && action != GPUNN__PREPARE)
        GPUNN__TRY(gpunn__cuda_copy(cuda, (void *)rounded, dtype, bias->data, bias->dtype, conv.k, false));
    GPUNN__TRY(fits ? gpunn__conv_with(cuda, &conv, &v, rounded, residual->data, bytes, &arena, action)
                    : gpunn__conv_without(cuda, &conv, &v, &arena, action));
    if (action != GPUNN__PREPARE) return whole ? GPUNN_OK : gpunn__finish_all(cuda, step, y->data, y->dtype);
    step->workspace_bytes = arena.bytes;
    return GPUNN_OK;
}

/* One gradient of a backward step: the input's or the filters'. */
static gpunn_status gpunn__conv_gradient(gpunn__cuda *cuda, gpunn_step *step, gpunn__conv_kind kind,
                                         gpunn__action action)
{
    const gpunn__convolution conv = gpunn__convolution_of(step, kind);
    gpunn__conv_values       v = gpunn__conv_values_of(step, kind);
    gpunn__arena             arena = {(char *)step->workspace, 0};
    size_t                   bytes = 0;
    bool                     fits;
    if (gpunn__conv_result(&v, kind)->data == NULL) return GPUNN_OK;
    GPUNN__TRY(gpunn__check_operands(cuda, kind == GPUNN__CONV_FORWARD ? &v.x : &v.y,
                                     kind == GPUNN__CONV_FILTER ? &v.x : &v.w, gpunn__conv_result(&v, kind)));
    GPUNN__TRY(gpunn__conv_fits(cuda, &conv, &bytes, &fits));
    if (!fits) gpunn__conv_slower(cuda, step, &conv);
    GPUNN__TRY(fits ? gpunn__conv_with(cuda, &conv, &v, NULL, NULL, bytes, &arena, action)
                    : gpunn__conv_without(cuda, &conv, &v, &arena, action));
    if (action == GPUNN__PREPARE && step->workspace_bytes < arena.bytes) step->workspace_bytes = arena.bytes;
    return GPUNN_OK;
}

static gpunn_status gpunn__cuda_conv(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) step->workspace_bytes = 0;
    if (!step->backward) {
        GPUNN__TRY(gpunn__check_operands(cuda, &step->in[0], &step->in[1], &step->out));
        return gpunn__conv_forward(cuda, step, action);
    }
    GPUNN__TRY(gpunn__conv_gradient(
        cuda, step, gpunn__op_is(step->op, GPUNN__TRANSPOSED) ? GPUNN__CONV_FORWARD : GPUNN__CONV_DATA,
        action));
    GPUNN__TRY(gpunn__conv_gradient(cuda, step, GPUNN__CONV_FILTER, action));
    const gpunn_value *const dy = &step->grad_out;
    float *const             dbias = (float *)step->grad_in[2].data;
    const int64_t channels = dy->dim[1], area = dy->channels_last ? 1 : dy->count / (dy->dim[0] * channels);
    const int64_t n = dy->count / (channels * area);
    if (dbias == NULL || (action != GPUNN__PREPARE && step == cuda->summed)) return GPUNN_OK;
    if (action != GPUNN__PREPARE)
        return gpunn__cuda_channel_sums(cuda, dy->data, dy->dtype, n, channels, area, dbias,
                                        step->accumulate[2], step->workspace);
    const size_t bytes = gpunn__cuda_channel_sums_workspace(cuda, n, channels, area);
    if (step->workspace_bytes < bytes) step->workspace_bytes = bytes;
    return GPUNN_OK;
}

#define GPUNN__X(name)                                                                           \
    GPUNN__INTERNAL gpunn_status name(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action) \
    {                                                                                            \
        return gpunn__cuda_conv(cuda, step, action);                                             \
    }
GPUNN__X(gpunn__cuda_conv1d)
GPUNN__X(gpunn__cuda_conv2d)
GPUNN__X(gpunn__cuda_conv3d)
GPUNN__X(gpunn__cuda_conv_transpose1d)
GPUNN__X(gpunn__cuda_conv_transpose2d)
GPUNN__X(gpunn__cuda_conv_transpose3d)
#undef GPUNN__X
