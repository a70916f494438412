#include "cuda/reduce.h"
#include "cuda/gemm.h"
#include "cuda/conv.h"

/* ==== >>cuda/attention =================================================================================== *
 * softmax(q k^T scale + mask) v. For 16-bit operands without dropout, cuDNN's fused attention does it.
 * cuDNN's dropout either draws by itself or reads l x s stored draws, but gpunn's dropout must be the same
 * on every backend. The general way is products of all heads with one kernel between them, which scales,
 * masks, applies softmax and drops. The backward pass recomputes the scores. Weights have the operands'
 * dtype, scores are F32. */
/* ---- cuDNN's fused attention: graphs of products, maps and reductions that it recognizes as a whole ---- */

#if GPUNN__CUDNN

enum {
    GPUNN__DNN_Q = 1, /* ids of tensors */
    GPUNN__DNN_K,
    GPUNN__DNN_V,
    GPUNN__DNN_O,
    GPUNN__DNN_LSE,
    GPUNN__DNN_DO,
    GPUNN__DNN_DQ,
    GPUNN__DNN_DK,
    GPUNN__DNN_DV,
    GPUNN__DNN_SUMS,
    GPUNN__DNN_DQ_SUMS,
    GPUNN__DNN_BIASES,
    GPUNN__DNN_ROWS,
    GPUNN__DNN_KEYS,
    GPUNN__DNN_SCALE, /* scalars passed from the host */
    GPUNN__DNN_ONE,
    GPUNN__DNN_MASKED,
    GPUNN__DNN_ATTENTION_BETWEEN, /* ids from here on are virtual tensors, never stored */
    GPUNN__DNN_ATTENTION_OPERATIONS = 32
};

typedef struct gpunn__dnn_flow { /* a graph under construction */
    gpunn__dnn_builder         *builder;
    const gpunn__dnn_attention *a;
    int64_t                     between;    /* the next id of a virtual tensor */
    cudnnBackendDescriptor_t    rows, keys; /* lengths per sample; NULL: all rows and keys */
    int                         count;
    cudnnBackendDescriptor_t    operations[GPUNN__DNN_ATTENTION_OPERATIONS];
} gpunn__dnn_flow;

static cudnnBackendDescriptor_t gpunn__dnn_value(gpunn__dnn_flow *flow, int64_t name, cudnnDataType_t type,
                                                 const int64_t dim[4], const int64_t stride[4])
{
    gpunn__dnn_builder      *builder = flow->builder;
    cudnnBackendDescriptor_t tensor = gpunn__dnn_make(builder, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const bool between = name == 0, number = name >= GPUNN__DNN_SCALE && name <= GPUNN__DNN_MASKED;
    gpunn__dnn_check_sizes(builder, 4, dim);
    gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    gpunn__dnn_set_int(builder, tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, between ? flow->between++ : name);
    gpunn__dnn_set_int(builder, tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16);
    gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &between);
    if (number)
        gpunn__dnn_set(builder, tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &number);
    gpunn__dnn_finalize(builder, tensor);
    return tensor;
}

static cudnnDataType_t gpunn__dnn_half(const gpunn__dnn_flow *flow)
{
    return flow->a->dtype == GPUNN_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

/* The rows of each head in memory. transposed: rows and columns exchanged. */
static cudnnBackendDescriptor_t gpunn__dnn_rows(gpunn__dnn_flow *flow, int64_t name, int64_t heads,
                                                int64_t rows, int64_t e, const int64_t step[3],
                                                bool transposed)
{
    const int64_t dim[4] = {flow->a->n, heads, transposed ? e : rows, transposed ? rows : e};
    const int64_t stride[4] = {step[0], step[1], transposed ? 1 : step[2], transposed ? step[2] : 1};
    return gpunn__dnn_value(flow, name, gpunn__dnn_half(flow), dim, stride);
}

/* A virtual matrix per head of q. transposed: [columns, rows] of the same memory. */
static cudnnBackendDescriptor_t gpunn__dnn_matrix(gpunn__dnn_flow *flow, cudnnDataType_t type, int64_t rows,
                                                  int64_t columns, bool transposed)
{
    const int64_t heads = flow->a->heads,
                  dim[4] = {flow->a->n, heads, transposed ? columns : rows, transposed ? rows : columns};
    const int64_t stride[4] = {heads * rows * columns, rows * columns, transposed ? 1 : columns,
                               transposed ? columns : 1};
    return gpunn__dnn_value(flow, 0, type, dim, stride);
}

static cudnnBackendDescriptor_t gpunn__dnn_scores(gpunn__dnn_flow *flow, cudnnDataType_t type)
{
    return gpunn__dnn_matrix(flow, type, flow->a->l, flow->a->s, false);
}

/* One F32 per row of each head of q. */
static cudnnBackendDescriptor_t gpunn__dnn_column(gpunn__dnn_flow *flow, int64_t name)
{
    const int64_t dim[4] = {flow->a->n, flow->a->heads, flow->a->l, 1};
    const int64_t stride[4] = {flow->a->heads * flow->a->l, flow->a->l, 1, 1};
    return gpunn__dnn_value(flow, name, CUDNN_DATA_FLOAT, dim, stride);
}

static cudnnBackendDescriptor_t gpunn__dnn_number(gpunn__dnn_flow *flow, int64_t name)
{
    const int64_t one[4] = {1, 1, 1, 1};
    return gpunn__dnn_value(flow, name, CUDNN_DATA_FLOAT, one, one);
}

/* The number of rows or keys of each sample. NULL: all. */
static cudnnBackendDescriptor_t gpunn__dnn_lengths(gpunn__dnn_flow *flow, int64_t name)
{
    const int64_t dim[4] = {flow->a->n, 1, 1, 1}, stride[4] = {1, 1, 1, 1};
    return flow->a->padded ? gpunn__dnn_value(flow, name, CUDNN_DATA_INT32, dim, stride) : NULL;
}

/* Adds the operation to [m][n] = a [m][k] b [k][n]. The descriptors m, n and k hold the sizes of each sample;
 * NULL: the full size. */
static cudnnBackendDescriptor_t gpunn__dnn_product(gpunn__dnn_flow *flow, cudnnBackendDescriptor_t a,
                                                   cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t m,
                                                   cudnnBackendDescriptor_t n, cudnnBackendDescriptor_t k,
                                                   cudnnBackendDescriptor_t to)
{
    gpunn__dnn_builder      *builder = flow->builder;
    cudnnBackendDescriptor_t product = gpunn__dnn_make(builder, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    gpunn__dnn_set_type(builder, product, CUDNN_ATTR_MATMUL_COMP_TYPE, GPUNN_F32);
    gpunn__dnn_finalize(builder, product);
    cudnnBackendDescriptor_t operation = gpunn__dnn_make(builder, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, to);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, product);
    if (m) gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m);
    if (n) gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n);
    if (k) gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k);
    gpunn__dnn_finalize(builder, operation);
    flow->operations[flow->count++] = operation;
    return to;
}

/* Adds the operation to = mode(x), mode(x, b), or, for BINARY_SELECT, t ? x : b. axis: for GEN_INDEX, else
 * -1. */
static cudnnBackendDescriptor_t gpunn__dnn_apply(gpunn__dnn_flow *flow, cudnnPointwiseMode_t mode,
                                                 int64_t axis, cudnnBackendDescriptor_t x,
                                                 cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t t,
                                                 cudnnBackendDescriptor_t to)
{
    gpunn__dnn_builder *builder = flow->builder;
    const bool          choice = mode == CUDNN_POINTWISE_CMP_GE || mode == CUDNN_POINTWISE_CMP_LT ||
                        mode == CUDNN_POINTWISE_LOGICAL_AND;
    const cudnnDataType_t    type = choice ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t function = gpunn__dnn_make(builder, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    gpunn__dnn_set(builder, function, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    gpunn__dnn_set(builder, function, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (axis >= 0) gpunn__dnn_set_int(builder, function, CUDNN_ATTR_POINTWISE_AXIS, axis);
    gpunn__dnn_finalize(builder, function);
    cudnnBackendDescriptor_t operation = gpunn__dnn_make(builder,
                                                         CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b) gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t) gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to);
    gpunn__dnn_finalize(builder, operation);
    flow->operations[flow->count++] = operation;
    return to;
}

static cudnnBackendDescriptor_t gpunn__dnn_reduce(gpunn__dnn_flow *flow, cudnnReduceTensorOp_t mode,
                                                  cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t to)
{
    gpunn__dnn_builder      *builder = flow->builder;
    cudnnBackendDescriptor_t reduction = gpunn__dnn_make(builder, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    gpunn__dnn_set_type(builder, reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, GPUNN_F32);
    gpunn__dnn_set(builder, reduction, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
                   &mode);
    gpunn__dnn_finalize(builder, reduction);
    cudnnBackendDescriptor_t operation = gpunn__dnn_make(builder,
                                                         CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to);
    gpunn__dnn_link(builder, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
    gpunn__dnn_finalize(builder, operation);
    flow->operations[flow->count++] = operation;
    return to;
}

/* Adds an operation that copies x into `to`, which has other strides. */
static cudnnBackendDescriptor_t gpunn__dnn_relayout(gpunn__dnn_flow *flow, cudnnBackendDescriptor_t x,
                                                    cudnnBackendDescriptor_t to)
{
    cudnnBackendDescriptor_t operation = gpunn__dnn_make(flow->builder,
                                                         CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    gpunn__dnn_link(flow->builder, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    gpunn__dnn_link(flow->builder, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to);
    gpunn__dnn_finalize(flow->builder, operation);
    flow->operations[flow->count++] = operation;
    return to;
}

/* The index of each score's row (axis 2) or key (axis 3). */
static cudnnBackendDescriptor_t gpunn__dnn_index(gpunn__dnn_flow *flow, cudnnBackendDescriptor_t x,
                                                 int64_t axis)
{
    return gpunn__dnn_apply(flow, CUDNN_POINTWISE_GEN_INDEX, axis, x, NULL, NULL,
                            gpunn__dnn_scores(flow, CUDNN_DATA_INT32));
}

/* Compares a with b by mode, for each score. */
static cudnnBackendDescriptor_t gpunn__dnn_compare_each(gpunn__dnn_flow *flow, cudnnPointwiseMode_t mode,
                                                        cudnnBackendDescriptor_t a,
                                                        cudnnBackendDescriptor_t b)
{
    return gpunn__dnn_apply(flow, mode, -1, a, b, NULL, gpunn__dnn_scores(flow, CUDNN_DATA_BOOLEAN));
}

/* The scores x, with -inf where seen is false. */
static cudnnBackendDescriptor_t gpunn__dnn_select(gpunn__dnn_flow *flow, cudnnBackendDescriptor_t x,
                                                  cudnnBackendDescriptor_t seen)
{
    return gpunn__dnn_apply(flow, CUDNN_POINTWISE_BINARY_SELECT, -1, x,
                            gpunn__dnn_number(flow, GPUNN__DNN_MASKED), seen,
                            gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
}

/* The scores x, with -inf where the key comes after the row. */
static cudnnBackendDescriptor_t gpunn__dnn_causal(gpunn__dnn_flow *flow, cudnnBackendDescriptor_t x)
{
    if (!flow->a->causal) return x;
    cudnnBackendDescriptor_t row = gpunn__dnn_index(flow, x, 2), key = gpunn__dnn_index(flow, x, 3);
    return gpunn__dnn_select(flow, x, gpunn__dnn_compare_each(flow, CUDNN_POINTWISE_CMP_GE, row, key));
}

/* The scores q k^T scale + bias, with -inf beyond the lengths. k is transposed. */
static cudnnBackendDescriptor_t gpunn__dnn_pairs(gpunn__dnn_flow *flow, cudnnBackendDescriptor_t q,
                                                 cudnnBackendDescriptor_t k, cudnnBackendDescriptor_t scale)
{
    const int64_t *const     has = flow->a->bias;
    cudnnBackendDescriptor_t x = gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT);
    x = gpunn__dnn_product(flow, q, k, flow->rows, flow->keys, NULL, x);
    x = gpunn__dnn_apply(flow, CUDNN_POINTWISE_MUL, -1, x, scale, NULL,
                         gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    if (has[0]) {
        const int64_t            dim[4] = {has[0], has[1], has[2], flow->a->s};
        const int64_t            stride[4] = {has[1] * has[2] * has[3], has[2] * has[3], has[3], 1};
        cudnnBackendDescriptor_t bias = gpunn__dnn_value(flow, GPUNN__DNN_BIASES, CUDNN_DATA_FLOAT, dim,
                                                         stride);
        x = gpunn__dnn_apply(flow, CUDNN_POINTWISE_ADD, -1, x, bias, NULL,
                             gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    }
    if (!flow->a->padded) return x;
    cudnnBackendDescriptor_t row = gpunn__dnn_index(flow, x, 2), key = gpunn__dnn_index(flow, x, 3);
    row = gpunn__dnn_compare_each(flow, CUDNN_POINTWISE_CMP_LT, row, flow->rows);
    key = gpunn__dnn_compare_each(flow, CUDNN_POINTWISE_CMP_LT, key, flow->keys);
    return gpunn__dnn_select(flow, x, gpunn__dnn_compare_each(flow, CUDNN_POINTWISE_LOGICAL_AND, row, key));
}

/* x = mask(q k^T scale), e = exp(x - max x), o = (e / sum e) v, lse = max x + log sum e. */
static void gpunn__dnn_attention_forward(gpunn__dnn_flow *flow)
{
    const gpunn__dnn_attention *a = flow->a;
    cudnnBackendDescriptor_t    q = gpunn__dnn_rows(flow, GPUNN__DNN_Q, a->heads, a->l, a->e, a->q, false);
    cudnnBackendDescriptor_t    k = gpunn__dnn_rows(flow, GPUNN__DNN_K, a->kv_heads, a->s, a->e, a->k, true);
    cudnnBackendDescriptor_t    x = gpunn__dnn_pairs(flow, q, k, gpunn__dnn_number(flow, GPUNN__DNN_SCALE));
    x = gpunn__dnn_causal(flow, x);
    cudnnBackendDescriptor_t top = gpunn__dnn_reduce(flow, CUDNN_REDUCE_TENSOR_MAX, x,
                                                     gpunn__dnn_column(flow, 0));
    x = gpunn__dnn_apply(flow, CUDNN_POINTWISE_SUB, -1, x, top, NULL,
                         gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    x = gpunn__dnn_apply(flow, CUDNN_POINTWISE_EXP, -1, x, NULL, NULL,
                         gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    cudnnBackendDescriptor_t sum = gpunn__dnn_reduce(flow, CUDNN_REDUCE_TENSOR_ADD, x,
                                                     gpunn__dnn_column(flow, 0));
    cudnnBackendDescriptor_t log = gpunn__dnn_apply(flow, CUDNN_POINTWISE_LOG, -1, sum, NULL, NULL,
                                                    gpunn__dnn_column(flow, 0));
    (void)gpunn__dnn_apply(flow, CUDNN_POINTWISE_ADD, -1, top, log, NULL,
                           gpunn__dnn_column(flow, GPUNN__DNN_LSE));
    x = gpunn__dnn_apply(flow, CUDNN_POINTWISE_DIV, -1, x, sum, NULL,
                         gpunn__dnn_scores(flow, gpunn__dnn_half(flow)));
    cudnnBackendDescriptor_t v = gpunn__dnn_rows(flow, GPUNN__DNN_V, a->kv_heads, a->s, a->ev, a->v, false);
    (void)gpunn__dnn_product(flow, x, v, flow->rows, NULL, flow->keys,
                             gpunn__dnn_rows(flow, GPUNN__DNN_O, a->heads, a->l, a->ev, a->y, false));
}

/* The gradient of k or v: left right, summed over the heads of q that share one head of k or v. */
static void gpunn__dnn_shared(gpunn__dnn_flow *flow, cudnnBackendDescriptor_t left,
                              cudnnBackendDescriptor_t right, int64_t name, int64_t e, const int64_t step[3])
{
    const gpunn__dnn_attention *a = flow->a;
    cudnnBackendDescriptor_t    to = gpunn__dnn_rows(flow, name, a->kv_heads, a->s, e, step, false);
    if (a->heads == a->kv_heads) {
        (void)gpunn__dnn_product(flow, left, right, flow->keys, NULL, flow->rows, to);
        return;
    }
    cudnnBackendDescriptor_t each = gpunn__dnn_matrix(flow, gpunn__dnn_half(flow), a->s, e, false);
    (void)gpunn__dnn_product(flow, left, right, flow->keys, NULL, flow->rows, each);
    (void)gpunn__dnn_reduce(flow, CUDNN_REDUCE_TENSOR_ADD, each, to);
}

/* p = exp(mask(q k^T scale - lse)), sums = the row sums of do o, dv = p^T do, ds = p (do v^T - sums) scale,
 * dk = ds^T q, dq = ds k. Without `adds` the result is bitwise reproducible, but the workspace takes 2 bytes
 * per score. With it, dq is summed in F32 in memory: every tile of keys adds to the sum as it ends. From
 * cuDNN 9.6 on, cuDNN sets this sum to 0 itself. */
static void gpunn__dnn_attention_backward(gpunn__dnn_flow *flow)
{
    const gpunn__dnn_attention *a = flow->a;
    const cudnnDataType_t       half = gpunn__dnn_half(flow);
    cudnnBackendDescriptor_t    q = gpunn__dnn_rows(flow, GPUNN__DNN_Q, a->heads, a->l, a->e, a->q, false);
    cudnnBackendDescriptor_t    o = gpunn__dnn_rows(flow, GPUNN__DNN_O, a->heads, a->l, a->ev, a->y, false);
    cudnnBackendDescriptor_t d_o = gpunn__dnn_rows(flow, GPUNN__DNN_DO, a->heads, a->l, a->ev, a->dy, false);
    cudnnBackendDescriptor_t scale = gpunn__dnn_number(flow, GPUNN__DNN_SCALE);
    cudnnBackendDescriptor_t both = gpunn__dnn_apply(
        flow, CUDNN_POINTWISE_MUL, -1, d_o, o, NULL,
        gpunn__dnn_matrix(flow, CUDNN_DATA_FLOAT, a->l, a->ev, false));
    cudnnBackendDescriptor_t sums = gpunn__dnn_reduce(flow, CUDNN_REDUCE_TENSOR_ADD, both,
                                                      gpunn__dnn_column(flow, 0));
    sums = gpunn__dnn_apply(flow, CUDNN_POINTWISE_MUL, -1, sums, gpunn__dnn_number(flow, GPUNN__DNN_ONE),
                            NULL, gpunn__dnn_column(flow, GPUNN__DNN_SUMS));
    cudnnBackendDescriptor_t k = gpunn__dnn_rows(flow, GPUNN__DNN_K, a->kv_heads, a->s, a->e, a->k, true);
    cudnnBackendDescriptor_t p = gpunn__dnn_pairs(flow, q, k, scale);
    p = gpunn__dnn_apply(flow, CUDNN_POINTWISE_SUB, -1, p, gpunn__dnn_column(flow, GPUNN__DNN_LSE), NULL,
                         gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    p = gpunn__dnn_causal(flow, p);
    p = gpunn__dnn_apply(flow, CUDNN_POINTWISE_EXP, -1, p, NULL, NULL,
                         gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    cudnnBackendDescriptor_t transposed = gpunn__dnn_relayout(
        flow, p, gpunn__dnn_matrix(flow, half, a->l, a->s, true));
    gpunn__dnn_shared(flow, transposed, d_o, GPUNN__DNN_DV, a->ev, a->dv);
    cudnnBackendDescriptor_t v = gpunn__dnn_rows(flow, GPUNN__DNN_V, a->kv_heads, a->s, a->ev, a->v, true);
    cudnnBackendDescriptor_t ds = gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT);
    ds = gpunn__dnn_product(flow, d_o, v, flow->rows, flow->keys, NULL, ds);
    ds = gpunn__dnn_apply(flow, CUDNN_POINTWISE_SUB, -1, ds, sums, NULL,
                          gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    ds = gpunn__dnn_apply(flow, CUDNN_POINTWISE_MUL, -1, ds, p, NULL,
                          gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    ds = gpunn__dnn_apply(flow, CUDNN_POINTWISE_MUL, -1, ds, scale, NULL,
                          gpunn__dnn_scores(flow, CUDNN_DATA_FLOAT));
    transposed = gpunn__dnn_relayout(flow, ds, gpunn__dnn_matrix(flow, half, a->l, a->s, true));
    gpunn__dnn_shared(flow, transposed, q, GPUNN__DNN_DK, a->e, a->dk);
    /* strides of the rows in memory: the engine reads k again, by these */
    const int64_t dim[4] = {a->n, a->kv_heads, a->s, a->e}, stride[4] = {a->k[0], a->k[1], a->k[2], 1};
    k = gpunn__dnn_relayout(flow, k, gpunn__dnn_value(flow, 0, CUDNN_DATA_FLOAT, dim, stride));
    cudnnBackendDescriptor_t dq = gpunn__dnn_rows(flow, GPUNN__DNN_DQ, a->heads, a->l, a->e, a->dq, false);
    if (!a->adds) {
        (void)gpunn__dnn_product(flow, ds, k, flow->rows, NULL, flow->keys, dq);
        return;
    }
    const int64_t sum_dim[4] = {a->n, a->heads, a->l, a->e},
                  sum_stride[4] = {a->heads * a->l * a->e, a->l * a->e, a->e, 1};
    cudnnBackendDescriptor_t sum = gpunn__dnn_value(flow, GPUNN__DNN_DQ_SUMS, CUDNN_DATA_FLOAT, sum_dim,
                                                    sum_stride);
    sum = gpunn__dnn_product(flow, ds, k, flow->rows, NULL, flow->keys, sum);
    (void)gpunn__dnn_apply(flow, CUDNN_POINTWISE_IDENTITY, -1, sum, NULL, NULL, dq);
}

static cudnnBackendDescriptor_t gpunn__dnn_attention_graph(gpunn__dnn_builder *builder)
{
    gpunn__dnn_flow flow;
    memset(&flow, 0, sizeof flow);
    flow.builder = builder;
    flow.a = builder->attention;
    flow.between = GPUNN__DNN_ATTENTION_BETWEEN;
    flow.rows = gpunn__dnn_lengths(&flow, GPUNN__DNN_ROWS);
    flow.keys = gpunn__dnn_lengths(&flow, GPUNN__DNN_KEYS);
    if (flow.a->backward)
        gpunn__dnn_attention_backward(&flow);
    else
        gpunn__dnn_attention_forward(&flow);
    return gpunn__dnn_operations(builder, flow.count, flow.operations);
}

static gpunn__dnn_choice *gpunn__dnn_attention_entry(gpunn__cuda *cuda, const gpunn__dnn_attention *a)
{
    bool fresh;
    return (gpunn__dnn_choice *)gpunn__cuda_cached(cuda, a, sizeof *a, sizeof(gpunn__dnn_choice),
                                                   gpunn__dnn_forget, &fresh);
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_prepare(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                          size_t *workspace_bytes)
{
    /* cuDNN ignores lengths up to 9.9 and has errors in 9.10.0 and 9.10.1 */
    if (cuda->libraries->dnn_module.version < 91002)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "attention needs cuDNN 9.10.2 or later");
    gpunn__dnn_choice *choice = gpunn__dnn_attention_entry(cuda, a);
    if (!choice) return GPUNN_ERR_MEMORY;
    if (!choice->searched) GPUNN__TRY(gpunn__dnn_search(cuda, NULL, a, gpunn__dnn_attention_graph, choice));
    if (choice->count == 0)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "cuDNN has no plan for this attention: %s",
                                choice->reason);
    *workspace_bytes = 0;
    for (int i = 0; i < choice->count; i++)
        if ((size_t)choice->plans[i].workspace > *workspace_bytes)
            *workspace_bytes = (size_t)choice->plans[i].workspace;
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_run(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                      const gpunn__dnn_attention_data *data)
{
    static const float one = 1, masked = -INFINITY;
    const struct {
        int64_t     name;
        const void *pointer;
        bool        used;
    } all[] = {{GPUNN__DNN_Q, data->q, true},
               {GPUNN__DNN_K, data->k, true},
               {GPUNN__DNN_V, data->v, true},
               {GPUNN__DNN_O, data->y, true},
               {GPUNN__DNN_LSE, data->lse, true},
               {GPUNN__DNN_SCALE, &data->scale, true},
               {GPUNN__DNN_MASKED, &masked, a->causal || a->padded},
               {GPUNN__DNN_BIASES, data->bias, a->bias[0] != 0},
               {GPUNN__DNN_ROWS, data->lengths, a->padded != 0},
               {GPUNN__DNN_KEYS, data->lengths + (a->padded ? a->n : 0), a->padded != 0},
               {GPUNN__DNN_DO, data->dy, a->backward != 0},
               {GPUNN__DNN_DQ, data->dq, a->backward != 0},
               {GPUNN__DNN_DK, data->dk, a->backward != 0},
               {GPUNN__DNN_DV, data->dv, a->backward != 0},
               {GPUNN__DNN_SUMS, data->sums, a->backward != 0},
               {GPUNN__DNN_DQ_SUMS, data->dq_sums, a->adds != 0},
               {GPUNN__DNN_ONE, &one, a->backward != 0}};
    gpunn__dnn_choice *choice = gpunn__dnn_attention_entry(cuda, a);
    if (!choice) return GPUNN_ERR_MEMORY;
    if (choice->count == 0) return gpunn__cuda_fail(cuda, GPUNN_ERR_STATE, "this attention was not prepared");
    int64_t     count = 0, names[sizeof all / sizeof *all];
    const void *pointers[sizeof all / sizeof *all];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].used) names[count] = all[i].name, pointers[count++] = all[i].pointer;
    return gpunn__dnn_launch(cuda, choice, count, names, pointers, data->workspace, true);
}
#elif !defined(GPUNN__EMULATOR) /* no cudnn.h: products and a kernel between them */
GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_prepare(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                          size_t *workspace_bytes)
{
    (void)a, (void)workspace_bytes;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                            "gpunn_cuda.cu was compiled where there was no cudnn.h");
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_run(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                      const gpunn__dnn_attention_data *data)
{
    (void)data;
    return gpunn__dnn_attention_prepare(cuda, a, NULL);
}
#endif
typedef struct gpunn__attention {
    /* rows of s scores, [n, heads, l]. x: the scores q k^T; gradient: dy v^T; out: the weights or ds */
    gpunn__along   a;
    int64_t        heads, l;
    const void    *mask; /* NULL: none */
    bool           choice, causal;
    gpunn__lengths lengths;
    int64_t        mask_step[4]; /* strides over samples, heads, rows and keys */
    float          scale;
    /* per row, the largest score and 1 / the sum of exp (0: it sees no key); NULL: not wanted */
    float2 *sums;
    /* backward: floats per row in sums. 2, or 1 if cuDNN has saved the log of the sum of exp */
    int                        apart;
    void                      *weights; /* backward: receives the weights after dropout, in out's dtype */
    const gpunn__device_state *state;
    unsigned                   random_stream, keep; /* keep 65536: nothing is dropped */
} gpunn__attention;

/* What the scores of one row share. */
typedef struct gpunn__attention_row {
    int64_t mask, end; /* mask: offset of the row's mask; end: number of keys that it sees */
    float   scale;     /* NaN if the length is out of range */
} gpunn__attention_row;

__device__ __forceinline__ gpunn__attention_row gpunn__attention_row_of(const gpunn__attention &t,
                                                                        int64_t                 index)
{
    const int64_t head = gpunn__quotient(index, t.l), sample = gpunn__quotient(head, t.heads),
                  row = index - head * t.l;
    const int64_t        length = index < t.a.rows ? gpunn__length_of(&t.lengths, sample, t.a.n) : t.a.n;
    const bool           fits = length >= 0 && length <= t.a.n;
    gpunn__attention_row own = {
        sample * t.mask_step[0] + (head - sample * t.heads) * t.mask_step[1] + row * t.mask_step[2],
        fits ? gpunn__keys_seen(&t.lengths, length, t.causal, row, t.l) : t.a.n, fits ? t.scale : NAN};
    return own;
}

/* Loads, scales and masks scores i .. i + N - 1, which belong to keys from c on. */
template <int N>
__device__ __forceinline__ void gpunn__attention_scores(const gpunn__attention     &t,
                                                        const gpunn__attention_row &row, int64_t i, int64_t c,
                                                        float *v)
{
    gpunn__strided_load<N>(t.a.x, GPUNN_F32, i, 1, v);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int64_t at = row.mask + (c + j) * t.mask_step[3];
        v[j] *= row.scale;
        if (t.mask && !t.choice) v[j] += ((const float *)t.mask)[at];
        if (c + j >= row.end || (t.mask && t.choice && !((const unsigned char *)t.mask)[at]))
            v[j] = -INFINITY;
    }
}

/* The dropout factors of weights i .. i + N - 1. If N is 8, i is a multiple of 8. */
template <int N>
__device__ __forceinline__ void gpunn__attention_drop(const gpunn__attention &t, int64_t i, float *factor)
{
    const float scale = gpunn__drop_scale(t.keep);
    uint32_t    word[4];
    gpunn__drop_draw(t.state, t.random_stream, (uint64_t)i / GPUNN__PACK, word);
#pragma unroll
    for (int j = 0; j < GPUNN__PACK; j++) {
        const float kept = gpunn__drop_factor(word, j, t.keep, scale);
        if (N == GPUNN__PACK)
            factor[j] = kept;
        else if (j == (int)(i % GPUNN__PACK))
            factor[0] = kept;
    }
}

/* First pass over a row: the largest score and the sum of exp(score - largest). */
struct gpunn__attention_sum {
    const gpunn__attention     &t;
    const gpunn__attention_row &row;
    float                       top, sum;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float v[N], most = top;
        gpunn__attention_scores<N>(t, row, i, c, v);
#pragma unroll
        for (int j = 0; j < N; j++) most = v[j] > most ? v[j] : most;
        sum *= expf(top - most);
        top = most;
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = expf(v[j] - most);
        sum += gpunn__pack_reduce<N>(v, gpunn__add());
    }
};

/* Second pass over a row: writes the weights, after dropout. */
struct gpunn__attention_weigh {
    const gpunn__attention     &t;
    const gpunn__attention_row &row;
    float                       top, factor;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float v[N], kept[N];
        gpunn__attention_scores<N>(t, row, i, c, v);
        if (t.keep < 65536) gpunn__attention_drop<N>(t, i, kept);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = expf(v[j] - top) * factor * (t.keep < 65536 ? kept[j] : 1);
        gpunn__strided_store<N>(t.a.out, t.a.out_type, i, 1, v, false);
    }
};

static __global__ void __launch_bounds__(GPUNN__THREADS) gpunn__attention_kernel(const gpunn__attention t)
{
    GPUNN__FOLLOW();
    for (int64_t first = gpunn__along_first(t.a); first < t.a.rows; first += gpunn__along_step(t.a)) {
        const gpunn__strided_row   row = gpunn__along_row(t.a, first);
        const gpunn__attention_row own = gpunn__attention_row_of(t, row.index);
        gpunn__attention_sum       s = {t, own, -3.402823466e38f, 0};
        gpunn__strided_visit(row, s);
        const float            top = gpunn__lanes_reduce(s.top, gpunn__larger(), t.a.lanes);
        const float            sum = gpunn__lanes_reduce(s.sum * expf(s.top - top), gpunn__add(), t.a.lanes);
        gpunn__attention_weigh weigh = {t, own, top, sum == 0 ? 0 : 1 / sum};
        gpunn__strided_visit(row, weigh);
        if (t.sums && row.index < t.a.rows && row.thread == 0)
            t.sums[row.index] = make_float2(top, weigh.factor);
    }
}

/* Recomputes p, the weights before dropout, and dp, multiplied by the dropout factors. */
template <int N>
__device__ __forceinline__ void gpunn__attention_again(const gpunn__attention     &t,
                                                       const gpunn__attention_row &row, float2 sums,
                                                       int64_t i, int64_t c, float *p, float *dp, float *kept)
{
    gpunn__attention_scores<N>(t, row, i, c, p);
    gpunn__strided_load<N>(t.a.gradient, GPUNN_F32, i, 1, dp);
    if (t.keep < 65536) gpunn__attention_drop<N>(t, i, kept);
#pragma unroll
    for (int j = 0; j < N; j++) {
        kept[j] = t.keep < 65536 ? kept[j] : 1;
        p[j] = expf(p[j] - sums.x) * sums.y;
        dp[j] *= kept[j];
    }
}

/* First backward pass over a row: the sum of p dp. */
struct gpunn__attention_dot {
    const gpunn__attention     &t;
    const gpunn__attention_row &row;
    float2                      sums;
    float                       sum;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float p[N], dp[N], kept[N];
        gpunn__attention_again<N>(t, row, sums, i, c, p, dp, kept);
#pragma unroll
        for (int j = 0; j < N; j++) dp[j] *= p[j];
        sum += gpunn__pack_reduce<N>(dp, gpunn__add());
    }
};

/* Second backward pass over a row: writes the weights and ds = p (dp - sum) scale. */
struct gpunn__attention_ds_visit {
    const gpunn__attention     &t;
    const gpunn__attention_row &row;
    float2                      sums;
    float                       sum;

    template <int N> __device__ __forceinline__ void at(int64_t i, int64_t c)
    {
        float p[N], dp[N], kept[N];
        gpunn__attention_again<N>(t, row, sums, i, c, p, dp, kept);
#pragma unroll
        for (int j = 0; j < N; j++) {
            dp[j] = p[j] * (dp[j] - sum) * t.scale;
            p[j] *= kept[j];
        }
        gpunn__strided_store<N>(t.weights, t.a.out_type, i, 1, p, false);
        gpunn__strided_store<N>(t.a.out, t.a.out_type, i, 1, dp, false);
    }
};

/* The weights and ds may overwrite the scores and dp. */
static __global__ void __launch_bounds__(GPUNN__THREADS, 3)
    gpunn__attention_backward_kernel(const gpunn__attention t)
{
    GPUNN__FOLLOW();
    for (int64_t first = gpunn__along_first(t.a); first < t.a.rows; first += gpunn__along_step(t.a)) {
        const gpunn__strided_row   row = gpunn__along_row(t.a, first);
        const gpunn__attention_row own = gpunn__attention_row_of(t, row.index);
        const float         *saved = (const float *)t.sums + (row.index < t.a.rows ? row.index : 0) * t.apart;
        const float2         sums = make_float2(saved[0], t.apart == 2 ? saved[1] : 1);
        gpunn__attention_dot dot = {t, own, sums, 0};
        gpunn__strided_visit(row, dot);
        gpunn__attention_ds_visit dx_visit = {t, own, sums,
                                              gpunn__lanes_reduce(dot.sum, gpunn__add(), t.a.lanes)};
        gpunn__strided_visit(row, dx_visit);
    }
}

/* d[m][n] (=, +=) a b for every head of q. With sum, d is a head of k: the products of the heads of q that it
 * serves are added up. */
static gpunn_status gpunn__attention_product(gpunn__cuda *cuda, const gpunn_step *step,
                                             const gpunn__attention_shape *c, int64_t m, int64_t n, int64_t k,
                                             const gpunn__heads *a, bool transpose_a, const gpunn__heads *b,
                                             bool transpose_b, const gpunn__heads *d, bool sum,
                                             bool accumulate, gpunn__action action)
{
    const gpunn__heads *const value[3] = {a, b, d};
    const int64_t             heads_per_kv = c->heads / c->kv_heads;
    /* strides between the heads of q that share a head of k, and between heads of k */
    int64_t        inner[3], outer[3];
    gpunn__walk    kept, summed;
    gpunn__product p;
    memset(&p, 0, sizeof p);
    memset(&kept, 0, sizeof kept);
    memset(&summed, 0, sizeof summed);
    p.m = m, p.n = n, p.k = k, p.batch = 1;
    p.transpose_a = transpose_a, p.transpose_b = transpose_b;
    p.lda = a->rows, p.ldb = b->rows, p.ldd = d->rows;
    p.dtype = a->dtype, p.d_dtype = d->dtype, p.precision = step->precision;
    p.a = a->data, p.b = b->data, p.d = d->data;
    p.accumulate = accumulate;
    for (int i = 0; i < 3; i++) {
        const bool shared = i == (sum ? 2 : 1) &&
                            heads_per_kv > 1; /* this operand has a head per head of k */
        inner[i] = shared ? 0 : value[i]->heads;
        outer[i] = shared ? value[i]->heads : heads_per_kv * value[i]->heads;
    }
    gpunn__axes_add(sum ? &summed : &kept, heads_per_kv, inner[0], inner[1], inner[2]);
    gpunn__axes_add(&kept, c->kv_heads, outer[0], outer[1], outer[2]);
    gpunn__axes_add(&kept, c->n, a->samples, b->samples, d->samples);
    return gpunn__repeated_products(cuda, p, kept, &summed, action);
}

/* Workspace for the scores of every head. */
static gpunn__heads gpunn__attention_head_scores(gpunn__arena *arena, const gpunn__attention_shape *c,
                                                 gpunn_dtype dtype)
{
    const int64_t samples = c->heads * c->l * c->s;
    gpunn__heads  h = {(char *)gpunn__arena_take(arena, gpunn__bytes(dtype, c->n * samples)), dtype, samples,
                       c->l * c->s, c->s};
    return h;
}

static gpunn__attention gpunn__attention_of(gpunn__cuda *cuda, const gpunn_step *step,
                                            const gpunn__attention_shape *c)
{
    const gpunn_value *mask = &step->in[3];
    gpunn__attention   t;
    memset(&t, 0, sizeof t);
    t.a.rows = c->n * c->heads * c->l;
    t.a.n = c->s;
    t.a.inner = 1;
    t.a.lanes = gpunn__lanes_of(cuda, t.a.rows, t.a.n, 1);
    t.heads = c->heads;
    t.l = c->l;
    t.mask = mask->data;
    t.choice = mask->dtype == GPUNN_BOOL;
    t.causal = step->attr->is_causal;
    t.lengths = gpunn__attention_lengths(step);
    gpunn__attention_mask_steps(mask, t.mask_step);
    t.scale = step->attr->scale;
    t.sums = step->training ? (float2 *)step->saved : NULL;
    t.apart = step->saved_bytes == (size_t)t.a.rows * sizeof *t.sums ? 2 : 1;
    t.state = cuda->state;
    t.random_stream = step->attr->random_stream;
    t.keep = gpunn__drop_keep(step);
    return t;
}

static void gpunn__attention_steps(int64_t step[3], const gpunn__heads *h)
{
    step[0] = h->samples, step[1] = h->heads, step[2] = h->rows;
}

/* ---- around cuDNN's attention: the mask as added F32 numbers, and rows that see no key ----
 * cuDNN gives NaN for a row that is all -inf. The mask therefore uses large finite numbers, beside which
 * every score vanishes. The log sum exp of a row shows whether it saw nothing but these. */

#define GPUNN__HIDDEN (-2e30f)        /* a key that is not seen */
#define GPUNN__LEAST (-1e30f)         /* a mask's lowest value other than -inf */
enum { GPUNN__ATTENTION_TILE = 128 }; /* rows and keys per tile, the most in cuDNN's kernels */

/* Writes to [rows][pitch] a mask of rows of s or, if mask_s is 1, of one number per row. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__attention_bias_kernel(const void *mask, bool choice, int64_t mask_s, float *to, int64_t rows,
                                 int64_t s, int64_t pitch)
{
    GPUNN__FOLLOW();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * pitch;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = gpunn__quotient(i, pitch), c = i - row * pitch,
                      at = mask_s == 1 ? row : row * mask_s + c;
        float x = GPUNN__HIDDEN;
        if (c < s && choice)
            x = ((const unsigned char *)mask)[at] ? 0 : GPUNN__HIDDEN;
        else if (c < s && ((const float *)mask)[at] != -INFINITY) /* NaN stays NaN */
            x = ((const float *)mask)[at] < GPUNN__LEAST ? GPUNN__LEAST : ((const float *)mask)[at];
        to[i] = x;
    }
}

static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__attention_lengths_kernel(int *to, int64_t n, int rows, int keys)
{
    GPUNN__FOLLOW();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < 2 * n;
         i += (int64_t)gridDim.x * blockDim.x)
        to[i] = i < n ? rows : keys;
}

/* Sets rows that see no key to 0, and their lse so that their weights are 0 in the backward pass, too. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__attention_unseen_kernel(const gpunn__dnn_attention a, float *lse, void *y)
{
    GPUNN__FOLLOW();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.n * a.heads * a.l;
         i += (int64_t)gridDim.x * blockDim.x) {
        if (!(lse[i] < 0.5f * (GPUNN__HIDDEN + GPUNN__LEAST))) continue;
        const int64_t head = gpunn__quotient(i, a.l), sample = gpunn__quotient(head, a.heads),
                      row = i - head * a.l;
        const int64_t first = sample * a.y[0] + (head - sample * a.heads) * a.y[1] + row * a.y[2];
        for (int64_t c = 0; c < a.ev; c++) gpunn__store(y, (gpunn_dtype)a.dtype, first + c, 0);
        lse[i] = -GPUNN__HIDDEN;
    }
}

/* Runs cuDNN's attention, with the kernels that prepare lengths and mask and clear unseen rows. */
static gpunn_status gpunn__attention_run(gpunn__cuda *cuda, const gpunn_value *mask,
                                         const gpunn__dnn_attention *a, const gpunn__dnn_attention_data *data)
{
    const int64_t rows = a->bias[0] * a->bias[1] * a->bias[2], lines = a->n * a->heads * a->l;
    if (a->padded)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__attention_lengths_kernel, gpunn__blocks(cuda, 2 * a->n, 1),
                                 GPUNN__THREADS, data->lengths, a->n, (int)a->l, (int)a->s));
    if (rows)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__attention_bias_kernel,
                                 gpunn__blocks(cuda, rows * a->bias[3], 1), GPUNN__THREADS, mask->data,
                                 mask->dtype == GPUNN_BOOL, mask->rank ? mask->dim[mask->rank - 1] : 1,
                                 data->bias, rows, a->s, a->bias[3]));
    GPUNN__TRY(gpunn__dnn_attention_run(cuda, a, data));
    if (!rows || a->backward) return GPUNN_OK;
    return GPUNN__LAUNCH(cuda, gpunn__attention_unseen_kernel, gpunn__blocks(cuda, lines, 1), GPUNN__THREADS,
                         *a, (float *)data->lse, data->y);
}

/* Chooses a plan. A backward pass prefers the reproducible form. If cuDNN has no plan for it and the device
 * need not be deterministic, it uses the form that adds in memory. On compute capability 10.x the first form
 * does not guarantee reproducibility: an engine adds in a fixed order or in any, as its knobs say, and
 * heuristics choose these (override_heuristics_query in cudnn-frontend's node for attention). */
static gpunn_status gpunn__attention_plan(gpunn__cuda *cuda, gpunn__dnn_attention *key, size_t *bytes)
{
    if (key->backward && cuda->args.deterministic && cuda->capability / 10 == 10)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                "on this GPU cuDNN's gradients are not deterministic");
    const gpunn_status status = gpunn__dnn_attention_prepare(cuda, key, bytes);
    if (status != GPUNN_ERR_UNSUPPORTED || !key->backward) return status;
    if (cuda->args.deterministic) {
        char why[sizeof cuda->text];
        (void)snprintf(why, sizeof why, "%s", cuda->text);
        return gpunn__cuda_fail(cuda, status,
                                "%.400s; the plans that need less workspace are not deterministic", why);
    }
    key->adds = 1;
    return gpunn__dnn_attention_prepare(cuda, key, bytes);
}

/* The reason why a 16-bit attention is not given to cuDNN, or NULL if there is none. */
static const char *gpunn__attention_obstacle(const gpunn_step *step, const gpunn__attention_shape *c)
{
    const gpunn_dtype dtype = step->in[0].dtype;
    if ((step->backward ? step->grad_out.dtype : step->out.dtype) != dtype)
        return "its result has another dtype";
    if (step->training && !step->evaluates && step->attr->dropout_p > 0)
        return "cuDNN uses its own random numbers for dropout_p";
    if (c->e % 8 != 0 || c->ev % 8 != 0) return "cuDNN needs head sizes that are multiples of 8";
    if (step->input_count > 4) return "the lengths are known only when it runs";
    if (c->l > INT32_MAX || c->s > INT32_MAX) return "cuDNN counts rows in 32 bits";
    /* Of size 8, cuDNN 9.14 made wrong gradients of q on an H200. */
    if (step->backward && (c->e % 16 != 0 || c->ev % 16 != 0))
        return "cuDNN's backward pass needs head sizes that are multiples of 16";
    if (step->backward && (c->l == 1 || c->s == 1))
        return "cuDNN has no backward pass for sequences of length 1";
    for (int i = 0; step->backward && i < (c->packed ? 1 : 3); i++)
        if (step->grad_in[i].data == NULL || step->grad_in[i].dtype != dtype || step->accumulate[i])
            return "cuDNN overwrites all gradients, in the dtype of the operands, and cannot accumulate";
    return NULL;
}

/* Whether cuDNN runs the step. If so, sets its key, its data and the total workspace bytes. The workspace
 * holds lse (evaluation) or sums (backward), the bias, the lengths, the sum of dq and last cuDNN's own
 * workspace. */
static gpunn_status gpunn__attention_fused(gpunn__cuda *cuda, const gpunn_step *step,
                                           gpunn__dnn_attention *key, gpunn__dnn_attention_data *data,
                                           size_t *bytes, bool *fused)
{
    const gpunn__attention_shape c = gpunn__attention_shape_of(step);
    const gpunn_dtype            dtype = step->in[0].dtype;
    *fused = false;
    if (dtype == GPUNN_F32 || !gpunn__dnn_available(cuda)) return GPUNN_OK;
    const char *obstacle = gpunn__attention_obstacle(step, &c);
    if (obstacle) {
        gpunn__dnn_slower(cuda, step, GPUNN__DNN_ATTENTION, obstacle);
        return GPUNN_OK;
    }
    int64_t *const steps[] = {key->q, key->k, key->v, key->dq, key->dk, key->dv};
    void **const   pointers[] = {&data->q, &data->k, &data->v, &data->dq, &data->dk, &data->dv};
    memset(key, 0, sizeof *key);
    memset(data, 0, sizeof *data);
    key->tag = GPUNN__ATTENTION_TAG;
    key->backward = step->backward;
    key->dtype = dtype;
    key->n = c.n, key->heads = c.heads, key->kv_heads = c.kv_heads, key->l = c.l, key->s = c.s, key->e = c.e,
    key->ev = c.ev;
    key->causal = step->attr->is_causal;
    for (int i = 0; i < (step->backward ? 6 : 3); i++) {
        const gpunn_value *value = (i < 3 ? step->in : step->grad_in) + (c.packed ? 0 : i % 3);
        const gpunn__heads h = gpunn__attention_heads(&c, value, i % 3);
        gpunn__attention_steps(steps[i], &h);
        *pointers[i] = h.data;
    }
    const gpunn__heads out = gpunn__attention_heads(&c, &step->out, 3);
    gpunn__attention_steps(key->y, &out);
    if (step->backward) gpunn__attention_steps(key->dy, &out);
    data->y = step->out.data;
    data->dy = step->grad_out.data;
    data->scale = step->attr->scale;
    /* Backward kernels treat keys of a tile beyond the last one as scores of 0. That gives NaN for rows whose
     * log sum exp is below -88, unless the kernels know the lengths. */
    key->padded = step->backward && (c.l % GPUNN__ATTENTION_TILE != 0 || c.s % GPUNN__ATTENTION_TILE != 0);
    const gpunn_value *mask = &step->in[3];
    for (int d = 0; mask->data && d < 3; d++) {
        const int axis = d + mask->rank - 4;
        key->bias[d] = axis < 0 ? 1 : mask->dim[axis];
        key->bias[3] = (c.s + 15) / 16 * 16;
    }
    const int64_t bias = key->bias[0] * key->bias[1] * key->bias[2] * key->bias[3];
    gpunn__arena  arena = {(char *)step->workspace, 0};
    data->sums = gpunn__arena_take(
        &arena, step->backward || !step->training ? gpunn__bytes(GPUNN_F32, c.n * c.heads * c.l) : 0);
    data->lse = step->training ? step->saved : data->sums;
    data->bias = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, bias));
    data->lengths = (int *)gpunn__arena_take(&arena,
                                             key->padded ? 2 * (size_t)c.n * sizeof *data->lengths : 0);
    const gpunn_status status = gpunn__attention_plan(cuda, key, bytes);
    data->dq_sums = gpunn__arena_take(&arena,
                                      key->adds ? gpunn__bytes(GPUNN_F32, c.n * c.heads * c.l * c.e) : 0);
    data->workspace = gpunn__arena_take(&arena, 0);
    *bytes += arena.bytes;
    *fused = status == GPUNN_OK;
    if (status != GPUNN_ERR_UNSUPPORTED) return status;
    gpunn__dnn_slower(cuda, step, GPUNN__DNN_ATTENTION, cuda->text);
    return GPUNN_OK;
}

/* Fails if the scores cannot fit: the general way stores whole matrices of them. */
static gpunn_status gpunn__attention_check(gpunn__cuda *cuda, const gpunn__attention_shape *c)
{
    const double scores = (double)(c->n * c->heads * c->l) * (double)c->s;
    if (scores < 1e15) return GPUNN_OK;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_MEMORY,
                            "%.0f scores do not fit a GPU's memory; use a smaller batch or shorter rows",
                            scores);
}

static gpunn_status gpunn__attention_forward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn__attention_shape c = gpunn__attention_shape_of(step);
    GPUNN__TRY(gpunn__attention_check(cuda, &c));
    gpunn__heads part[3];
    gpunn__arena arena = {(char *)step->workspace, 0};
    for (int i = 0; i < 3; i++) part[i] = gpunn__attention_heads(&c, &step->in[c.packed ? 0 : i], i);
    const gpunn__heads y = gpunn__attention_heads(&c, &step->out, 3);
    const gpunn__heads scores = gpunn__attention_head_scores(&arena, &c, GPUNN_F32);
    const bool         same = part[0].dtype == GPUNN_F32;
    const gpunn__heads weights = same ? scores : gpunn__attention_head_scores(&arena, &c, part[0].dtype);
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = arena.bytes;
        if (step->training) step->saved_bytes = (size_t)(c.n * c.heads * c.l) * sizeof(float2);
    }
    GPUNN__TRY(gpunn__attention_product(cuda, step, &c, c.l, c.s, c.e, &part[0], false, &part[1], true,
                                        &scores, false, false, action));
    if (action != GPUNN__PREPARE) {
        gpunn__attention t = gpunn__attention_of(cuda, step, &c);
        t.a.x = scores.data;
        t.a.out = weights.data;
        t.a.out_type = weights.dtype;
        GPUNN__TRY(
            GPUNN__LAUNCH(cuda, gpunn__attention_kernel, gpunn__along_blocks(cuda, &t.a), GPUNN__THREADS, t));
    }
    return gpunn__attention_product(cuda, step, &c, c.l, c.ev, c.s, &weights, false, &part[2], false, &y,
                                    false, false, action);
}

/* The gradient of k (part 1) or v (part 2). If it is 16-bit and shared by heads of q, it is summed in F32
 * first. */
static gpunn_status gpunn__attention_shared(gpunn__cuda *cuda, gpunn_step *step,
                                            const gpunn__attention_shape *c, int part,
                                            const gpunn__heads *left, const gpunn__heads *right, size_t used,
                                            gpunn__action action)
{
    const int          operand = c->packed ? 0 : part;
    const int64_t      e = part == 1 ? c->e : c->ev;
    const gpunn_value *value = &step->grad_in[operand];
    gpunn__heads       d = gpunn__attention_heads(c, value, part);
    if (value->data == NULL) return GPUNN_OK;
    const bool  wide = value->dtype != GPUNN_F32 && c->heads != c->kv_heads;
    gpunn_value sums = *value;
    sums.data = gpunn__beyond((char *)step->workspace, used);
    sums.dtype = GPUNN_F32;
    if (wide) d = gpunn__attention_heads(c, &sums, part);
    if (wide && action == GPUNN__PREPARE &&
        step->workspace_bytes < used + gpunn__bytes(GPUNN_F32, value->count))
        step->workspace_bytes = used + gpunn__bytes(GPUNN_F32, value->count);
    GPUNN__TRY(gpunn__attention_product(cuda, step, c, c->s, e, c->l, left, true, right, false, &d, true,
                                        !wide && step->accumulate[operand], action));
    if (!wide || action == GPUNN__PREPARE) return GPUNN_OK;
    return gpunn__cuda_copy(cuda, value->data, value->dtype, d.data, GPUNN_F32, value->count,
                            step->accumulate[operand]);
}

static gpunn_status gpunn__attention_backward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    const gpunn__attention_shape c = gpunn__attention_shape_of(step);
    GPUNN__TRY(gpunn__attention_check(cuda, &c));
    gpunn__heads part[3];
    gpunn__arena arena = {(char *)step->workspace, 0};
    for (int i = 0; i < 3; i++) part[i] = gpunn__attention_heads(&c, &step->in[c.packed ? 0 : i], i);
    const bool         same = part[0].dtype == GPUNN_F32;
    const gpunn__heads dy = gpunn__attention_heads(&c, &step->grad_out, 3),
                       dq = gpunn__attention_heads(&c, &step->grad_in[0], 0);
    const gpunn__heads scores = gpunn__attention_head_scores(&arena, &c, GPUNN_F32);
    const gpunn__heads dp = gpunn__attention_head_scores(&arena, &c, GPUNN_F32);
    const gpunn__heads weights = same ? scores : gpunn__attention_head_scores(&arena, &c, part[0].dtype);
    const gpunn__heads ds = same ? dp : gpunn__attention_head_scores(&arena, &c, part[0].dtype);
    if (action == GPUNN__PREPARE) step->workspace_bytes = arena.bytes;
    GPUNN__TRY(gpunn__attention_product(cuda, step, &c, c.l, c.s, c.e, &part[0], false, &part[1], true,
                                        &scores, false, false, action));
    GPUNN__TRY(gpunn__attention_product(cuda, step, &c, c.l, c.s, c.ev, &dy, false, &part[2], true, &dp,
                                        false, false, action));
    if (action != GPUNN__PREPARE) {
        gpunn__attention t = gpunn__attention_of(cuda, step, &c);
        t.a.x = scores.data;
        t.a.gradient = dp.data;
        t.weights = weights.data;
        t.a.out = ds.data;
        t.a.out_type = ds.dtype;
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__attention_backward_kernel, gpunn__along_blocks(cuda, &t.a),
                                 GPUNN__THREADS, t));
    }
    if (dq.data) /* first, since all three may belong to one packed value */
        GPUNN__TRY(gpunn__attention_product(cuda, step, &c, c.l, c.e, c.s, &ds, false, &part[1], false, &dq,
                                            false, step->accumulate[0], action));
    GPUNN__TRY(gpunn__attention_shared(cuda, step, &c, 1, &ds, &part[0], arena.bytes, action));
    return gpunn__attention_shared(cuda, step, &c, 2, &weights, &dy, arena.bytes, action);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_scaled_dot_product_attention(gpunn__cuda *cuda, gpunn_step *step,
                                                                      gpunn__action action)
{
    const gpunn_value *in = step->in, *last = in[0].rank == 5 ? &in[0] : &in[2],
                      *y = step->backward ? &step->grad_out : &step->out;
    for (int i = 0; in[0].rank == 4 && i < 2; i++)
        GPUNN__TRY(gpunn__check_operands(cuda, &in[i], &in[i + 1], &in[i + 1]));
    GPUNN__TRY(gpunn__check_operands(cuda, step->backward ? y : last, last, y));
    gpunn__dnn_attention      key;
    gpunn__dnn_attention_data data;
    size_t                    bytes = 0;
    bool                      fused;
    GPUNN__TRY(gpunn__attention_fused(cuda, step, &key, &data, &bytes, &fused));
    if (fused && action == GPUNN__PREPARE) {
        step->workspace_bytes = bytes;
        if (step->training && !step->backward)
            step->saved_bytes = gpunn__bytes(GPUNN_F32, key.n * key.heads * key.l);
        return GPUNN_OK;
    }
    if (fused) return gpunn__attention_run(cuda, &in[3], &key, &data);
    return step->backward ? gpunn__attention_backward(cuda, step, action)
                          : gpunn__attention_forward(cuda, step, action);
}
