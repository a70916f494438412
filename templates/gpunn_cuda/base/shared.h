#ifndef GPUNN__CUDA_BASE_SHARED_H
#define GPUNN__CUDA_BASE_SHARED_H
#include "base/context.h"

/* ==== >>base/shared ================================================================================================ */
/* From here to the end of the block, by layer and op, in what NVIDIA's profilers show of the host. */
struct gpunn__range {
#if defined(GPUNN__NVTX)
    explicit gpunn__range(const gpunn_step *step)
    {
        char text[160];
        (void)snprintf(text, sizeof text, "%.100s%s%s%s", step->name, *step->name ? " " : "", gpunn_op_name(step->op),
                       step->backward ? " backward" : "");
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

/* Row-major d[batch][m][n] = act(op(a)[m][k] op(b)[k][n] + bias[n] + residual), sums in F32. */
typedef enum gpunn__activation {
    GPUNN__NO_ACTIVATION = 0,
    GPUNN__RELU,
    GPUNN__GELU_TANH,
    GPUNN__GELU_TANH_DERIVATIVE, /* d = op(a) op(b) * act'(aux) */
    GPUNN__RELU_DERIVATIVE
} gpunn__activation;
typedef struct gpunn__product {
    int64_t           m, n, k, batch;
    bool              transpose_a, transpose_b;     /* a is stored [k][m]; b is stored [n][k] */
    int64_t           lda, ldb, ldd;                /* elements from row to row as stored; residual has d's */
    int64_t           stride_a, stride_b, stride_d; /* from one of the batch to the next; 0: the same for all */
    gpunn_dtype       dtype, d_dtype;               /* of a and b; of d, residual and aux */
    gpunn_precision   precision;                    /* F32: exact products; TF32: rounded operands where dtype is F32 */
    bool              accumulate;                   /* d += */
    gpunn__activation activation;
    bool              keep_nan; /* relu makes NaN of NaN, which the library does not promise */
    const void       *a, *b;
    void             *d;
    const void       *bias; /* F32 or d_dtype, see bias_dtype; NULL: none */
    gpunn_dtype       bias_dtype;
    const void       *residual;  /* NULL: none; never with accumulate */
    void             *aux;       /* as d, batch 1. GELU_TANH: receives its argument, if wanted; its derivative: that argument;
                                   RELU_DERIVATIVE: relu's result */
    float            *row_sums;  /* [m], batch 1, transpose_a: receives op(a) summed over k; NULL: not wanted; never with bias */
    void             *workspace; /* with row_sums: as gpunn__cuda_channel_sums wants it for [k][m] */
} gpunn__product;
/* The seam to cuBLASLt. prepare: whether there is an algorithm (pointers are only compared with NULL). */
GPUNN__INTERNAL gpunn_status gpunn__cuda_product_prepare(gpunn__cuda *cuda, const gpunn__product *p);
GPUNN__INTERNAL gpunn_status gpunn__cuda_product(gpunn__cuda *cuda, const gpunn__product *p);

/* The seam to cuDNN. All tensors contiguous and of one dtype, bias and residual too: x [n][c][d][h][w], y [n][k][o][p][q] and
 * filters [k][c / groups][kd][kh][kw], or, channels_last, [n][d][h][w][c], [n][o][p][q][k] and [k][kd][kh][kw][c / groups]. */
enum { GPUNN__CONV_TAG = 0x636F6E76 };
typedef enum gpunn__conv_kind { GPUNN__CONV_FORWARD, GPUNN__CONV_DATA, GPUNN__CONV_FILTER } gpunn__conv_kind;
typedef struct gpunn__convolution { /* all fields are set, no padding: it is the key of the plan's cache entry */
    int64_t tag;                    /* of the cache: GPUNN__CONV_TAG */
    int64_t kind;                   /* gpunn__conv_kind */
    int64_t dtype;                  /* gpunn_dtype of x, w, y */
    int64_t precision;              /* gpunn_precision */
    int64_t axes;                   /* 3, or 2: what goes along d is 1, as along h where there is but one axis */
    int64_t n, c, d, h, w;          /* x */
    int64_t k, kd, kh, kw;          /* filters */
    int64_t o, p, q;                /* y along d, h and w */
    int64_t stride[3], padding[3], dilation[3];
    int64_t groups;
    int64_t bias, residual, relu; /* 0 or 1, forward only: y = relu(conv + residual + bias[k]) */
    int64_t channels_last;        /* 0 or 1 */
} gpunn__convolution;
/* FORWARD x, w -> y; DATA w, y -> x; FILTER x, y -> w: what is computed is written, never added to. */
typedef struct gpunn__conv_data {
    void       *x, *w, *y;
    const void *bias, *residual;
    void       *workspace;
} gpunn__conv_data;

/* cuDNN's fused attention, of 16-bit values whose rows lie together: steps in elements from sample to sample, head to head and
 * row to row. What a mask adds to the scores is an F32 matrix of s columns: bias is how many samples, heads and rows it has (1:
 * the same one for all), and the step from row to row; 0: there is none. */
enum { GPUNN__ATTENTION_TAG = 0x61747465 };
typedef struct gpunn__dnn_attention { /* all fields are set, no padding: a key of the cache */
    int64_t tag, backward, dtype, n, heads, kv_heads, l, s, e, ev, causal;
    int64_t padded; /* it is told how many rows and keys there are, though all samples have l and s */
    int64_t adds;   /* backward: dq is summed in F32 in memory, in no order, instead of from matrices of l x s that are kept */
    int64_t bias[4];
    int64_t q[3], k[3], v[3], y[3], dy[3], dq[3], dk[3], dv[3]; /* gradients: 0 of a forward pass */
} gpunn__dnn_attention;
/* Forward: q, k, v -> y, lse (F32 [n, heads, l]); backward: all these and dy -> dq, dk, dv. What is computed is written. */
typedef struct gpunn__dnn_attention_data {
    void  *q, *k, *v, *y, *lse, *dy, *dq, *dk, *dv;
    void  *sums;    /* backward: room as lse's */
    void  *dq_sums; /* adds: room for F32 [n, heads, l, e] */
    float *bias;
    int   *lengths; /* [2][n]: rows, keys */
    float  scale;
    void  *workspace;
} gpunn__dnn_attention_data;
/* As gpunn__dnn_prepare and gpunn__dnn_run. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_prepare(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                          size_t *workspace_bytes);
GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_run(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                      const gpunn__dnn_attention_data *data);

/* cuDNN's rnn, lstm and gru: one layer of sequences that are all as long, in F32. */
enum { GPUNN__RNN_TAG = 0x726E6E };
typedef struct gpunn__dnn_rnn { /* all fields are set, no padding: a key of the cache */
    int64_t tag, op, relu, precision, training, length, batch, in, hidden, directions, bias;
} gpunn__dnn_rnn;
typedef struct gpunn__dnn_rnn_room {
    size_t  weights, workspace, reserve; /* bytes; reserve: from the forward pass of training to the backward pass */
    int64_t part[2][4]; /* of each direction, where in the weights weight_ih, weight_hh, bias_ih and bias_hh begin, in floats */
} gpunn__dnn_rnn_room;
/* Forward: x, h_0, c_0, weights -> y, h_n, c_n, reserve. Backward: these and dy, dh_n, dc_n -> dx, dh_0, dc_0; dweights are added
 * to. x [length, batch, in], y [length, batch, directions, hidden], states [directions, batch, hidden]. NULL: a state of 0, and
 * what is not wanted, of which dx and reserve never are. */
typedef struct gpunn__dnn_rnn_data {
    bool         backward;
    const float *x, *h_0, *c_0, *weights, *dy;
    float       *y, *h_n, *c_n, *dh_n, *dc_n, *dx, *dh_0, *dc_0, *dweights;
    void        *reserve, *workspace;
} gpunn__dnn_rnn_data;
/* As gpunn__dnn_prepare and gpunn__dnn_run. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_prepare(gpunn__cuda *cuda, const gpunn__dnn_rnn *key, gpunn__dnn_rnn_room *room);
GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_run(gpunn__cuda *cuda, const gpunn__dnn_rnn *key, const gpunn__dnn_rnn_data *data);

GPUNN__INTERNAL bool   gpunn__dnn_available(gpunn__cuda *cuda);
GPUNN__INTERNAL size_t gpunn__dnn_version(const gpunn__cuda *cuda); /* where it is available: 92400 is 9.24.0 */
/* Chooses the plan. workspace_bytes: what the run will get. GPUNN_ERR_UNSUPPORTED: there is no plan, take another way. */
GPUNN__INTERNAL gpunn_status gpunn__dnn_prepare(gpunn__cuda *cuda, const gpunn__convolution *conv, size_t *workspace_bytes);
GPUNN__INTERNAL gpunn_status gpunn__dnn_run(gpunn__cuda *cuda, const gpunn__convolution *conv, const gpunn__conv_data *data);

GPUNN__INTERNAL gpunn_status gpunn__libraries_open(gpunn__cuda *cuda); /* cuBLASLt; cuDNN is opened by the first op that asks */
GPUNN__INTERNAL void         gpunn__libraries_close(gpunn__cuda *cuda);
GPUNN__INTERNAL void         gpunn__libraries_report(void (*write)(void *user, const char *text), void *user);

/* out[channels] (F32) = or += the sums of x[n][channels][inner] over n and inner. */
GPUNN__INTERNAL size_t gpunn__cuda_channel_sums_workspace(const gpunn__cuda *cuda, int64_t n, int64_t channels, int64_t inner);
GPUNN__INTERNAL gpunn_status gpunn__cuda_channel_sums(gpunn__cuda *cuda, const void *x, gpunn_dtype dtype, int64_t n,
                                                      int64_t channels, int64_t inner, float *out, bool accumulate,
                                                      void *workspace);
/* The gradient of a broadcast operand: to = or += from summed over the axes along which `to` was broadcast to from's shape. */
GPUNN__INTERNAL size_t gpunn__cuda_sum_to_workspace(const gpunn__cuda *cuda, const gpunn_value *from, const gpunn_value *to);
GPUNN__INTERNAL gpunn_status gpunn__cuda_sum_to(gpunn__cuda *cuda, const gpunn_value *from, const gpunn_value *to,
                                                bool accumulate, void *workspace);
GPUNN__INTERNAL gpunn_status gpunn__cuda_map(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action); /* all elementwise ops */
/* What is left of the forward step of LINEAR or a convolution after the bare product stands in y (step->out's shape, channels on
 * axis 1, of LINEAR the last one): y = act(norm(y + bias) + residual), in one pass, from y (y_dtype) into step->out.data; each
 * part only if its flag is set (bias: step->in[2], the others as step->fused says). */
GPUNN__INTERNAL gpunn_status gpunn__cuda_finish(gpunn__cuda *cuda, const gpunn_step *step, const void *y, gpunn_dtype y_dtype,
                                                bool bias, bool norm, bool residual, bool relu);
/* After a run's steps: norm, clipping, finite check, updates, loss scale (>>cuda/optimizers). Launches only: kernels
 * read the numbers that vary from run to run, lr and step of update i, from cuda->state->lr[i] and ->update_step[i]. */
GPUNN__INTERNAL gpunn_status gpunn__cuda_updates(gpunn__cuda *cuda, const gpunn_run *run, int *begun);

#endif /* GPUNN__CUDA_BASE_SHARED_H */
