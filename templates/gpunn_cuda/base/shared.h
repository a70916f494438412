#ifndef GPUNN__CUDA_BASE_SHARED_H
#define GPUNN__CUDA_BASE_SHARED_H
#include "base/context.h"

/* ==== >>base/shared ===================================================================================== */
/* Interfaces that one part offers to the ops of others: matrix products, cuDNN, sums and the steps'
 * epilogue. */

/* Marks a range, from here to the end of the block, in NVIDIA's profilers. Its name consists of layer and
 * op. */
struct gpunn__range {
#if defined(GPUNN__NVTX)
    explicit gpunn__range(const gpunn_step *step)
    {
        char text[160];
        (void)snprintf(text, sizeof text, "%.100s%s%s%s", step->name, *step->name ? " " : "",
                       gpunn_op_name(step->op), step->backward ? " backward" : "");
        (void)nvtxRangePushA(text);
    }
    explicit gpunn__range(const char *what)
    {
        (void)nvtxRangePushA(what);
    }
    ~gpunn__range()
    {
        (void)nvtxRangePop();
    }
#else
    template <typename T> explicit gpunn__range(T)
    {
    }
#endif
};

/* Row-major d[batch][m][n] = act(op(a)[m][k] op(b)[k][n] + bias[n] + residual), accumulated in F32. */
typedef enum gpunn__activation {
    GPUNN__NO_ACTIVATION = 0,
    GPUNN__RELU,
    GPUNN__GELU_TANH,
    GPUNN__GELU_TANH_DERIVATIVE, /* d = op(a) op(b) * act'(aux) */
    GPUNN__RELU_DERIVATIVE
} gpunn__activation;
typedef struct gpunn__product {
    int64_t m, n, k, batch;
    bool    transpose_a, transpose_b; /* a is stored [k][m]; b is stored [n][k] */
    /* elements between stored rows; residual has the stride of d */
    int64_t lda, ldb, ldd;
    /* elements between products of the batch; 0: shared by all */
    int64_t stride_a, stride_b, stride_d;
    /* of a and b; of d, residual and aux. U8: bytes with a sign, and d is I32; b is transposed, and nothing
     * is fused */
    gpunn_dtype dtype, d_dtype;
    /* F32: exact products; TF32: rounds the operands if dtype is F32 */
    gpunn_precision   precision;
    bool              accumulate; /* d += */
    gpunn__activation activation;
    bool              keep_nan; /* relu must propagate NaN, which the library does not guarantee */
    const void       *a, *b;
    void             *d;
    const void       *bias; /* F32 or d_dtype (bias_dtype); NULL: none */
    gpunn_dtype       bias_dtype;
    const void       *residual; /* NULL: none; never together with accumulate */
    /* layout of d, batch 1. GELU_TANH: receives its argument, if non-NULL. GELU_TANH_DERIVATIVE: that
     * argument. RELU_DERIVATIVE: relu's result. */
    void *aux;
    /* [m], with batch 1 and transpose_a: op(a) summed over k; NULL: not needed; never with bias */
    float *row_sums;
    void  *workspace; /* only with row_sums: what gpunn__cuda_channel_sums needs for [k][m] */
} gpunn__product;
/* The interface to cuBLASLt. prepare checks whether there is an algorithm; it only compares pointers with
 * NULL. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_product_prepare(gpunn__cuda *cuda, const gpunn__product *p);
GPUNN__INTERNAL gpunn_status gpunn__cuda_product(gpunn__cuda *cuda, const gpunn__product *p);

/* Rows of a weight that is stored as blocks. A row out of range is NaN. */
typedef struct gpunn__block_rows {
    const void *blocks, *index; /* index: [count]; NULL: rows 0 .. count - 1 */
    gpunn_dtype index_type, to_type;
    void       *to;              /* [count][width] */
    int64_t     count, n, width; /* n: rows of the weight */
} gpunn__block_rows;
GPUNN__INTERNAL gpunn_status gpunn__cuda_block_rows(gpunn__cuda *cuda, gpunn_dtype format,
                                                    const gpunn__block_rows *r);
/* The first count numbers of blocks. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_block_values(gpunn__cuda *cuda, void *to, gpunn_dtype to_dtype,
                                                      const void *blocks, gpunn_dtype format, int64_t count);
/* The forward step of LINEAR with a weight that is stored as blocks. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_block_linear(gpunn__cuda *cuda, gpunn_step *step,
                                                      gpunn__action action);

/* The interface to cuDNN. All tensors are contiguous and of one dtype, including bias and residual. Shapes
 * are x [n][c][d][h][w], y [n][k][o][p][q] and filters [k][c / groups][kd][kh][kw]. With channels_last they
 * are [n][d][h][w][c], [n][o][p][q][k] and [k][kd][kh][kw][c / groups]. */
enum { GPUNN__CONV_TAG = 0x636F6E76 };
typedef enum gpunn__conv_kind { GPUNN__CONV_FORWARD, GPUNN__CONV_DATA, GPUNN__CONV_FILTER } gpunn__conv_kind;
/* all fields must be set and there is no padding: the key of the plan in the cache */
typedef struct gpunn__convolution {
    int64_t tag;           /* identifies this use of the cache: GPUNN__CONV_TAG */
    int64_t kind;          /* gpunn__conv_kind */
    int64_t dtype;         /* gpunn_dtype of x, w, y */
    int64_t precision;     /* gpunn_precision */
    int64_t axes;          /* 3, or 2: d, and with a single axis also h, has size 1 */
    int64_t n, c, d, h, w; /* x */
    int64_t k, kd, kh, kw; /* filters */
    int64_t o, p, q;       /* y along d, h and w */
    int64_t stride[3], padding[3], dilation[3];
    int64_t groups;
    int64_t bias, residual, relu; /* 0 or 1, forward only: y = relu(conv + residual + bias[k]) */
    int64_t channels_last;        /* 0 or 1 */
} gpunn__convolution;
/* FORWARD: x, w -> y. DATA: w, y -> x. FILTER: x, y -> w. Results are overwritten, never accumulated. */
typedef struct gpunn__conv_data {
    void       *x, *w, *y;
    const void *bias, *residual;
    void       *workspace;
} gpunn__conv_data;

/* cuDNN's fused attention, for 16-bit values with contiguous rows. Strides are in elements: between samples,
 * heads and rows. A mask that is added to the scores is an F32 matrix with s columns. bias holds its number
 * of samples, heads and rows (1: shared by all) and its row stride; 0: no mask. */
enum { GPUNN__ATTENTION_TAG = 0x61747465 };
typedef struct gpunn__dnn_attention { /* all fields must be set and there is no padding: a key of the cache */
    int64_t tag, backward, dtype, n, heads, kv_heads, l, s, e, ev, causal;
    int64_t padded; /* actual numbers of rows and keys are passed, although all samples have l and s */
    /* backward: sums dq in F32 in memory, in no fixed order, rather than keeping l x s matrices */
    int64_t adds;
    int64_t bias[4];
    /* strides of gradients are 0 in a forward pass */
    int64_t q[3], k[3], v[3], y[3], dy[3], dq[3], dk[3], dv[3];
} gpunn__dnn_attention;
/* Forward: q, k, v -> y, lse (F32 [n, heads, l]). Backward: all these and dy -> dq, dk, dv. Results are
 * overwritten. */
typedef struct gpunn__dnn_attention_data {
    void  *q, *k, *v, *y, *lse, *dy, *dq, *dk, *dv;
    void  *sums;    /* backward: buffer of lse's size */
    void  *dq_sums; /* with adds: buffer for F32 [n, heads, l, e] */
    float *bias;
    int   *lengths; /* [2][n]: rows, keys */
    float  scale;
    void  *workspace;
} gpunn__dnn_attention_data;
/* Like gpunn__dnn_prepare and gpunn__dnn_run. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_prepare(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                          size_t *workspace_bytes);
GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_run(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                      const gpunn__dnn_attention_data *data);

/* cuDNN's rnn, lstm and gru: one layer, sequences of equal length, in F32. */
enum { GPUNN__RNN_TAG = 0x726E6E };
typedef struct gpunn__dnn_rnn { /* all fields must be set and there is no padding: a key of the cache */
    int64_t tag, op, relu, precision, training, length, batch, in, hidden, directions, bias;
} gpunn__dnn_rnn;
typedef struct gpunn__dnn_rnn_sizes {
    /* bytes; reserve: kept from the forward pass of training to the backward pass */
    size_t weights, workspace, reserve;
    /* offsets of weight_ih, weight_hh, bias_ih and bias_hh in the weights, per direction, in floats */
    int64_t part[2][4];
} gpunn__dnn_rnn_sizes;
/* Forward: x, h_0, c_0, weights -> y, h_n, c_n, reserve. Backward: these and dy, dh_n, dc_n -> dx, dh_0,
 * dc_0; dweights are accumulated. x [length, batch, in], y [length, batch, directions, hidden], states
 * [directions, batch, hidden]. NULL means a zero state or an output that is not needed; dx and reserve are
 * always needed. */
typedef struct gpunn__dnn_rnn_data {
    bool         backward;
    const float *x, *h_0, *c_0, *weights, *dy;
    float       *y, *h_n, *c_n, *dh_n, *dc_n, *dx, *dh_0, *dc_0, *dweights;
    void        *reserve, *workspace;
} gpunn__dnn_rnn_data;
/* Like gpunn__dnn_prepare and gpunn__dnn_run. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_prepare(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                                    gpunn__dnn_rnn_sizes *sizes);
GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_run(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                                const gpunn__dnn_rnn_data *data);

/* Whether cuDNN can be used. */
GPUNN__INTERNAL bool   gpunn__dnn_available(gpunn__cuda *cuda);
GPUNN__INTERNAL size_t gpunn__dnn_version(const gpunn__cuda *cuda); /* if available: 92400 is 9.24.0 */
/* Chooses the plan. workspace_bytes: receives the size that a run needs. GPUNN_ERR_UNSUPPORTED: there is no
 * plan; use another algorithm. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_prepare(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                                size_t *workspace_bytes);
GPUNN__INTERNAL gpunn_status gpunn__dnn_run(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                            const gpunn__conv_data *data);

/* cuBLASLt; the first op that needs cuDNN opens it */
GPUNN__INTERNAL gpunn_status gpunn__libraries_open(gpunn__cuda *cuda);
GPUNN__INTERNAL void         gpunn__libraries_close(gpunn__cuda *cuda);
GPUNN__INTERNAL void         gpunn__libraries_report(void (*write)(void *user, const char *text), void *user);

/* out[channels] (F32) = or += x[n][channels][inner] summed over n and inner. */
GPUNN__INTERNAL size_t       gpunn__cuda_channel_sums_workspace(const gpunn__cuda *cuda, int64_t n,
                                                                int64_t channels, int64_t inner);
GPUNN__INTERNAL gpunn_status gpunn__cuda_channel_sums(gpunn__cuda *cuda, const void *x, gpunn_dtype dtype,
                                                      int64_t n, int64_t channels, int64_t inner, float *out,
                                                      bool accumulate, void *workspace);
/* The gradient of a broadcast operand: to = or += from, summed over the axes along which `to` was broadcast
 * to from's shape. */
GPUNN__INTERNAL size_t       gpunn__cuda_sum_to_workspace(const gpunn__cuda *cuda, const gpunn_value *from,
                                                          const gpunn_value *to);
GPUNN__INTERNAL gpunn_status gpunn__cuda_sum_to(gpunn__cuda *cuda, const gpunn_value *from,
                                                const gpunn_value *to, bool accumulate, void *workspace);
/* all elementwise ops */
GPUNN__INTERNAL gpunn_status gpunn__cuda_map(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action);
/* Completes the forward step of LINEAR or a convolution in one pass, after the bare product was stored to y.
 * y (y_dtype) has the shape of step->out, with channels on axis 1, or on the last axis for LINEAR.
 * step->out.data = act(norm(y + bias) + residual). Each part is applied only if its flag is set; bias is
 * step->in[2], the others are in step->fused-> */
GPUNN__INTERNAL gpunn_status gpunn__cuda_finish(gpunn__cuda *cuda, const gpunn_step *step, const void *y,
                                                gpunn_dtype y_dtype, bool bias, bool norm, bool residual,
                                                bool relu);
/* checks of gradients by kernels beside the steps (>>cuda/optimizers) */
typedef struct gpunn__checks gpunn__checks;
/* What follows a run's steps: gradient norm, clipping, finite check, updates, loss scale (>>cuda/optimizers).
 * It only launches kernels. They read the values that vary from run to run from cuda->state: lr[i] and
 * update_step[i] for update i. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_updates(gpunn__cuda *cuda, const gpunn_run *run,
                                                 gpunn__checks *checks, int *begun);

#endif /* GPUNN__CUDA_BASE_SHARED_H */
