/* The seam of gpunn_cuda.cu, where a GPU has cuBLASLt and cuDNN, as plain loops. Included by gpunn_cuda.cu
 * instead of what calls them. Sums in double; each function runs in its stream's turn. */
#ifndef EMULATOR_REFERENCE_H
#define EMULATOR_REFERENCE_H
#include <vector>

enum { REFERENCE_WORKSPACE = 64 }; /* bytes that a convolution asks for, and spoils */

GPUNN__INTERNAL gpunn_status gpunn__libraries_open(gpunn__cuda *cuda)
{
    (void)cuda;
    return GPUNN_OK;
}
GPUNN__INTERNAL gpunn_status gpunn__libraries_stream(gpunn__cuda *cuda)
{
    (void)cuda;
    return GPUNN_OK;
}
GPUNN__INTERNAL void gpunn__libraries_close(gpunn__cuda *cuda)
{
    (void)cuda;
}
GPUNN__INTERNAL void gpunn__libraries_report(void (*write)(void *user, const char *text), void *user)
{
    write(user, "emulated: products and convolutions by plain loops");
}

/* rows x columns of what is stored with ld, transposed or not */
static std::vector<double> reference_matrix(const void *data, gpunn_dtype dtype, int64_t rows,
                                            int64_t columns, int64_t ld, int64_t first, bool transposed,
                                            bool tf32)
{
    std::vector<double> matrix((size_t)(rows * columns));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            const int64_t at = first + (transposed ? c * ld + r : r * ld + c);
            float         x = dtype == GPUNN_U8 ? ((const int8_t *)data)[at] : gpunn__load(data, dtype, at);
            if (tf32 && x - x == 0) x = __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xFFFFE000u);
            matrix[(size_t)(r * columns + c)] = x;
        }
    return matrix;
}

/* max(x, 0), which may make 0 of NaN. */
static double reference_relu(double x)
{
    return x > 0 ? x : x != x && emulator_nan() ? x : 0;
}

/* For loops over vectors of their own. */
#define REFERENCE_FAST __attribute__((no_sanitize("address"), no_sanitize("undefined")))

/* row[n] = a[k] b[k][n] */
REFERENCE_FAST static void reference_row(double *row, const double *a, const double *b, int64_t n, int64_t k)
{
    for (int64_t j = 0; j < n; j++) row[j] = 0;
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < n; j++) row[j] += a[i] * b[i * n + j];
}

static void reference_product(const gpunn__product p)
{
    bool tf32 = p.precision == GPUNN_PRECISION_TF32 && p.dtype == GPUNN_F32;
    for (int64_t batch = 0; batch < p.batch; batch++) {
        std::vector<double> a = reference_matrix(p.a, p.dtype, p.m, p.k, p.lda, batch * p.stride_a,
                                                 p.transpose_a, tf32);
        std::vector<double> b = reference_matrix(p.b, p.dtype, p.k, p.n, p.ldb, batch * p.stride_b,
                                                 p.transpose_b, tf32);
        std::vector<double> row((size_t)p.n);
        for (int64_t i = 0; i < p.m; i++) {
            reference_row(row.data(), &a[(size_t)(i * p.k)], b.data(), p.n, p.k);
            for (int64_t j = 0; j < p.n; j++) {
                int64_t at = batch * p.stride_d + i * p.ldd + j;
                float   y = (float)row[(size_t)j];
                if (p.d_dtype == GPUNN_I32) {
                    ((int32_t *)p.d)[at] = (int32_t)row[(size_t)j];
                    continue;
                }
                if (p.bias) y += gpunn__load(p.bias, p.bias_dtype, j);
                if (p.residual) y += gpunn__load(p.residual, p.d_dtype, at);
                if (p.activation == GPUNN__RELU) y = (float)reference_relu(y);
                if (p.activation == GPUNN__GELU_TANH && p.aux) gpunn__store(p.aux, p.d_dtype, at, y);
                double x = p.activation == GPUNN__GELU_TANH_DERIVATIVE ? gpunn__load(p.aux, p.d_dtype, at)
                                                                       : y;
                double t = tanh(0.7978845608 * (x + 0.044715 * x * x * x));
                if (p.activation == GPUNN__GELU_TANH) y = (float)(0.5 * x * (1 + t));
                if (p.activation == GPUNN__GELU_TANH_DERIVATIVE)
                    y *= (float)(0.5 * (1 + t) * (1 + x * (1 - t) * 0.7978845608 * (1 + 0.134145 * x * x)));
                if (p.accumulate) y += gpunn__load(p.d, p.d_dtype, at);
                gpunn__store(p.d, p.d_dtype, at, y);
            }
            if (p.row_sums) {
                double sum = 0;
                for (int64_t k = 0; k < p.k; k++) sum += a[(size_t)(i * p.k + k)];
                p.row_sums[i] = (float)sum;
            }
        }
    }
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_product_prepare(gpunn__cuda *cuda, const gpunn__product *p)
{
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->batch < 1)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE, "an empty product");
    if (p->row_sums && (p->bias || p->batch != 1))
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE, "row sums beside a bias or in a batch");
    if (p->residual && p->accumulate)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE, "a residual and accumulation");
    if (p->aux && (p->batch != 1 || p->accumulate))
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE, "an activation noted in a batch or of a sum");
    if (p->activation == GPUNN__RELU_DERIVATIVE)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "no mask");
    if (p->aux && p->ldd % 8)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "rows of what gelu is applied to");
    if (p->dtype == GPUNN_U8 && (p->transpose_a || !p->transpose_b || p->n % 4 || p->k % 4 || p->bias ||
                                 p->residual || p->accumulate || p->d_dtype != GPUNN_I32))
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "a product of bytes in another form");
    if (p->bias && p->bias_dtype != p->d_dtype)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "a bias of another dtype");
    return GPUNN_OK;
}
GPUNN__INTERNAL gpunn_status gpunn__cuda_product(gpunn__cuda *cuda, const gpunn__product *p)
{
    GPUNN__TRY(gpunn__cuda_product_prepare(cuda, p));
    for (const void *operand : {p->a, p->b, (const void *)p->d})
        if ((uintptr_t)operand % (uintptr_t)emulator_alignment() != 0)
            return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                                    "an operand at an address of too few zero bits");
    gpunn__product    product = *p;
    const bool        more = p->activation != GPUNN__NO_ACTIVATION || p->row_sums;
    const cudaError_t error = emulator_call(
        cuda->stream, more ? "product and more" : "product", [=] { reference_product(product); },
        more ? emulator_epilogue() : 1);
    return gpunn__cuda_launched(cuda, error, "product");
}

/* A tensor of a convolution: dim in the order n, c, d, h, w, wherever its channels are stored. */
struct reference_tensor {
    std::vector<double> value;
    int64_t             count, stride[5];
    reference_tensor(const int64_t dim[5], bool channels_last)
    {
        stride[4] = channels_last ? dim[1] : 1;
        for (int i = 4; i > 2; i--) stride[i - 1] = stride[i] * dim[i];
        stride[1] = channels_last ? 1 : stride[2] * dim[2];
        stride[0] = dim[1] * dim[2] * dim[3] * dim[4];
        count = stride[0] * dim[0];
        value.resize((size_t)count);
    }
    void load(const void *data, gpunn_dtype dtype, bool tf32)
    {
        value = reference_matrix(data, dtype, 1, count, count, 0, false, tf32);
    }
    void store(void *data, gpunn_dtype dtype) const
    {
        for (int64_t i = 0; i < count; i++) gpunn__store(data, dtype, i, (float)value[(size_t)i]);
    }
    double *at(int64_t i, int64_t j, int64_t k, int64_t l)
    {
        return &value[(size_t)(i * stride[0] + j * stride[1] + k * stride[2] + l * stride[3])];
    }
};
REFERENCE_FAST static void reference_convolution(const gpunn__convolution conv, const gpunn__conv_data data)
{
    emulator_count_cudnn("convolution");
    gpunn_dtype dtype = (gpunn_dtype)conv.dtype;
    bool tf32 = conv.precision == GPUNN_PRECISION_TF32 && dtype == GPUNN_F32, last = conv.channels_last != 0;
    bool forward = conv.kind == GPUNN__CONV_FORWARD, to_x = conv.kind == GPUNN__CONV_DATA;
    const int64_t    inner = conv.c / conv.groups;
    const int64_t    x_dim[5] = {conv.n, conv.c, conv.d, conv.h, conv.w};
    const int64_t    w_dim[5] = {conv.k, inner, conv.kd, conv.kh, conv.kw};
    const int64_t    y_dim[5] = {conv.n, conv.k, conv.o, conv.p, conv.q};
    reference_tensor x(x_dim, last), w(w_dim, last), y(y_dim, last);
    if (!to_x) x.load(data.x, dtype, tf32);
    if (forward || to_x) w.load(data.w, dtype, tf32);
    if (!forward) y.load(data.y, dtype, tf32);
    /* one row of y, filter after filter, from one row of x through one row of a filter */
    const auto row = [&](int64_t n, int64_t k, int64_t c, int64_t t, int64_t r, int64_t o, int64_t p) {
        int64_t depth = o * conv.stride[0] - conv.padding[0] + t * conv.dilation[0];
        int64_t height = p * conv.stride[1] - conv.padding[1] + r * conv.dilation[1];
        if (depth < 0 || depth >= conv.d || height < 0 || height >= conv.h) return;
        double *filter = w.at(k, c, t, r), *out = y.at(n, k, o, p);
        double *in = x.at(n, k / (conv.k / conv.groups) * inner + c, depth, height);
        for (int64_t s = 0; s < conv.kw; s++) {
            double factor = filter[s * w.stride[4]], sum = 0;
            for (int64_t q = 0; q < conv.q; q++) {
                int64_t column = q * conv.stride[2] - conv.padding[2] + s * conv.dilation[2];
                if (column < 0 || column >= conv.w) continue;
                double &from = in[column * x.stride[4]], &to = out[q * y.stride[4]];
                if (forward)
                    to += from * factor;
                else if (to_x)
                    from += to * factor;
                else
                    sum += from * to;
            }
            if (!forward && !to_x) filter[s * w.stride[4]] += sum;
        }
    };
    for (int64_t n = 0; n < conv.n; n++)
        for (int64_t k = 0; k < conv.k; k++)
            for (int64_t c = 0; c < inner; c++)
                for (int64_t t = 0; t < conv.kd; t++)
                    for (int64_t r = 0; r < conv.kh; r++)
                        for (int64_t o = 0; o < conv.o; o++)
                            for (int64_t p = 0; p < conv.p; p++) row(n, k, c, t, r, o, p);
    for (int64_t i = 0; forward && i < y.count; i++) {
        double &value = y.value[(size_t)i];
        if (conv.residual) value += gpunn__load(data.residual, dtype, i);
        if (conv.bias) value += gpunn__load(data.bias, dtype, i / y.stride[1] % conv.k);
        if (conv.relu) value = reference_relu(value);
    }
    memset(data.workspace, 0xFF, REFERENCE_WORKSPACE);
    (forward ? y : to_x ? x : w).store(forward ? data.y : to_x ? data.x : data.w, dtype);
}

GPUNN__INTERNAL bool gpunn__dnn_available(gpunn__cuda *cuda)
{
    (void)cuda;
    return emulator_cudnn() != 0;
}
GPUNN__INTERNAL size_t gpunn__dnn_version(const gpunn__cuda *cuda)
{
    (void)cuda;
    return emulator_version();
}
GPUNN__INTERNAL gpunn_status gpunn__dnn_prepare(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                                size_t *workspace_bytes)
{
    (void)conv;
    *workspace_bytes = REFERENCE_WORKSPACE;
    return gpunn__dnn_available(cuda) && emulator_convolutions()
               ? GPUNN_OK
               : gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "no cuDNN");
}
GPUNN__INTERNAL gpunn_status gpunn__dnn_run(gpunn__cuda *cuda, const gpunn__convolution *conv,
                                            const gpunn__conv_data *data)
{
    gpunn__convolution what = *conv;
    gpunn__conv_data   where = *data;
    if (where.workspace == NULL)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE, "a convolution without its workspace");
    const cudaError_t error = emulator_call(cuda->stream, "convolution",
                                            [=] { reference_convolution(what, where); });
    return gpunn__cuda_launched(cuda, error, "convolution");
}

/* y and lse, or dq, dk and dv, of one head of q; gradients of k and v go to sums in F64. As cuDNN's, it makes
 * NaN of a row whose scores are all -inf and, in a backward pass of partial tiles without lengths, of a row
 * whose log sum exp is below -88; of sequences of length 1 it has no backward pass. */
struct reference_heads {
    void          *data;
    gpunn_dtype    dtype;
    const int64_t *step;
    float          get(int64_t n, int64_t h, int64_t row, int64_t i) const
    {
        return gpunn__load(data, dtype, n * step[0] + h * step[1] + row * step[2] + i);
    }
    void put(int64_t n, int64_t h, int64_t row, int64_t i, double x) const
    {
        gpunn__store(data, dtype, n * step[0] + h * step[1] + row * step[2] + i, (float)x);
    }
};
GPUNN__INTERNAL size_t reference_attention_workspace(const gpunn__dnn_attention *a)
{
    return REFERENCE_WORKSPACE + (a->backward && !a->adds ? (size_t)(a->n * a->heads * a->l * a->s) * 2 : 0);
}
REFERENCE_FAST static void reference_attention(const gpunn__dnn_attention      a,
                                               const gpunn__dnn_attention_data data)
{
    emulator_count_cudnn(!a.backward ? "attention"
                         : a.adds    ? "attention's gradients, dq by adding"
                                     : "attention's gradients");
    for (int64_t i = 0; a.adds && i < a.n * a.heads * a.l * a.e; i++) ((float *)data.dq_sums)[i] = 0;
    const gpunn_dtype     dtype = (gpunn_dtype)a.dtype;
    const reference_heads q = {data.q, dtype, a.q}, k = {data.k, dtype, a.k}, v = {data.v, dtype, a.v},
                          y = {data.y, dtype, a.y}, dy = {data.dy, dtype, a.dy}, dq = {data.dq, dtype, a.dq},
                          dk = {data.dk, dtype, a.dk}, dv = {data.dv, dtype, a.dv};
    const int64_t group = a.heads / a.kv_heads;
    for (int64_t n = 0; n < a.n; n++)
        for (int64_t kv = 0; kv < a.kv_heads; kv++) {
            std::vector<double> dk_sum((size_t)(a.s * a.e)), dv_sum((size_t)(a.s * a.ev)), p((size_t)a.s),
                ds((size_t)a.s);
            for (int64_t row = 0; row < group * a.l; row++) {
                const int64_t h = kv * group + row / a.l, i = row % a.l,
                              keys = a.padded ? data.lengths[a.n + n] : a.s;
                const int64_t seen = a.causal && i + 1 < keys ? i + 1 : keys, *bias = a.bias;
                if (a.padded && i >= data.lengths[n]) continue;
                const float *added = data.bias + (bias[0] > 1 ? n * bias[1] * bias[2] * bias[3] : 0) +
                                     (bias[1] > 1 ? h * bias[2] * bias[3] : 0) +
                                     (bias[2] > 1 ? i * bias[3] : 0);
                float *lse = (float *)data.lse + (n * a.heads + h) * a.l + i;
                double top = -INFINITY, sum = 0, dot = 0;
                for (int64_t j = 0; j < seen; j++) {
                    p[(size_t)j] = 0;
                    for (int64_t x = 0; x < a.e; x++)
                        p[(size_t)j] += (double)q.get(n, h, i, x) * k.get(n, kv, j, x);
                    p[(size_t)j] = p[(size_t)j] * data.scale +
                                   (bias[0] ? added[j] * 1.442695f / 1.442695f : 0); /* in F32, for exp2 */
                    top = p[(size_t)j] > top ? p[(size_t)j] : top;
                }
                for (int64_t j = 0; j < seen; j++) sum += exp(p[(size_t)j] - top);
                if (!a.backward) *lse = (float)(top + log(sum));
                if (a.backward && !a.padded && (a.l % 128 || a.s % 128) && *lse < -88)
                    p.assign((size_t)a.s, NAN);
                if (a.backward && (a.l == 1 || a.s == 1)) p.assign((size_t)a.s, NAN);
                for (int64_t j = 0; j < seen; j++) p[(size_t)j] = exp(p[(size_t)j] - *lse);
                for (int64_t x = 0; x < a.ev && !a.backward; x++) {
                    double out = 0;
                    for (int64_t j = 0; j < seen; j++) out += p[(size_t)j] * v.get(n, kv, j, x);
                    y.put(n, h, i, x, out);
                }
                if (!a.backward) continue;
                for (int64_t x = 0; x < a.ev; x++) dot += (double)dy.get(n, h, i, x) * y.get(n, h, i, x);
                ((float *)data.sums)[(n * a.heads + h) * a.l + i] = (float)dot;
                for (int64_t j = 0; j < seen; j++) {
                    double dp = 0;
                    for (int64_t x = 0; x < a.ev; x++) {
                        dp += (double)dy.get(n, h, i, x) * v.get(n, kv, j, x);
                        dv_sum[(size_t)(j * a.ev + x)] += p[(size_t)j] * dy.get(n, h, i, x);
                    }
                    ds[(size_t)j] = p[(size_t)j] * (dp - dot) * data.scale;
                    for (int64_t x = 0; x < a.e; x++)
                        dk_sum[(size_t)(j * a.e + x)] += ds[(size_t)j] * q.get(n, h, i, x);
                }
                for (int64_t x = 0; x < a.e; x++) {
                    double out = 0;
                    for (int64_t j = 0; j < seen; j++) out += ds[(size_t)j] * k.get(n, kv, j, x);
                    float *sum = a.adds ? (float *)data.dq_sums + ((n * a.heads + h) * a.l + i) * a.e + x
                                        : NULL;
                    dq.put(n, h, i, x, sum ? *sum += (float)out : out);
                }
            }
            for (int64_t j = 0; a.backward && j < a.s; j++) {
                for (int64_t x = 0; x < a.e; x++) dk.put(n, kv, j, x, dk_sum[(size_t)(j * a.e + x)]);
                for (int64_t x = 0; x < a.ev; x++) dv.put(n, kv, j, x, dv_sum[(size_t)(j * a.ev + x)]);
            }
        }
    memset(data.workspace, 0xFF, reference_attention_workspace(&a));
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_prepare(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                          size_t *workspace_bytes)
{
    *workspace_bytes = reference_attention_workspace(a);
    if (!gpunn__dnn_available(cuda)) return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "no cuDNN");
    if (*workspace_bytes <= cuda->args.workspace_limit && *workspace_bytes <= emulator_workspace())
        return GPUNN_OK;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "it needs %zu bytes of workspace", *workspace_bytes);
}
GPUNN__INTERNAL gpunn_status gpunn__dnn_attention_run(gpunn__cuda *cuda, const gpunn__dnn_attention *a,
                                                      const gpunn__dnn_attention_data *data)
{
    gpunn__dnn_attention      what = *a;
    gpunn__dnn_attention_data where = *data;
    if (where.lse == NULL || where.workspace == NULL || (what.adds && where.dq_sums == NULL))
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE, "attention without its room");
    const cudaError_t error = emulator_call(cuda->stream, "attention",
                                            [=] { reference_attention(what, where); });
    return gpunn__cuda_launched(cuda, error, "attention");
}

/* A recurrent layer. Its weights lie in an order of their own, with gaps; the forward pass of training leaves
 * the gates' values in the reserve, the backward pass reads and spoils them. */
enum { REFERENCE_GAP = 3 };
GPUNN__INTERNAL int64_t reference_gates(const gpunn__dnn_rnn &key)
{
    return key.op == GPUNN_OP_LSTM ? 4 : key.op == GPUNN_OP_GRU ? 3 : 1;
}
GPUNN__INTERNAL gpunn__dnn_rnn_sizes reference_sizes(const gpunn__dnn_rnn &key)
{
    const int64_t rows = reference_gates(key) * key.hidden,
                  size[4] = {rows * key.in, rows * key.hidden, rows, rows};
    gpunn__dnn_rnn_sizes sizes = {};
    int64_t              end = 0;
    for (int64_t d = key.directions; d-- > 0;)
        for (int i = key.bias ? 4 : 2; i-- > 0;) {
            sizes.part[d][i] = end + REFERENCE_GAP;
            end = sizes.part[d][i] + size[i];
        }
    sizes.weights = (size_t)end * sizeof(float);
    sizes.workspace = REFERENCE_WORKSPACE;
    sizes.reserve = (size_t)(key.directions * key.length * key.batch * 5 * key.hidden) * sizeof(float);
    return sizes;
}
static double reference_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* One direction of one sequence: its state before a step, of h and c, is h[] and c[] there. */
REFERENCE_FAST static void reference_recurrence(const gpunn__dnn_rnn &key, const gpunn__dnn_rnn_data &data,
                                                int64_t d, int64_t n, std::vector<double> &sums)
{
    const gpunn__dnn_rnn_sizes sizes = reference_sizes(key);
    const int64_t              H = key.hidden, I = key.in, G = reference_gates(key), L = key.length,
                  S = key.directions * H;
    const int64_t       state = (d * key.batch + n) * H, *part = sizes.part[d];
    const bool          lstm = key.op == GPUNN_OP_LSTM, gru = key.op == GPUNN_OP_GRU;
    const float        *w_ih = data.weights + part[0], *w_hh = data.weights + part[1];
    std::vector<double> h((size_t)H), c((size_t)H), a((size_t)(G * H)), r((size_t)(G * H)), before((size_t)H);
    auto                time = [&](int64_t s) { return d ? L - 1 - s : s; };
    auto                kept = [&](int64_t s) {
        return (float *)data.reserve + ((d * L + time(s)) * key.batch + n) * 5 * H; /* x[5][H] */
    };
    auto y = [&](int64_t s) { return data.y + (time(s) * key.batch + n) * S + d * H; };
    for (int64_t k = 0; k < H && !data.backward; k++) {
        h[(size_t)k] = data.h_0 ? data.h_0[state + k] : 0;
        c[(size_t)k] = lstm && data.c_0 ? data.c_0[state + k] : 0;
    }
    for (int64_t s = 0; s < L && !data.backward; s++) {
        const float *x = data.x + (time(s) * key.batch + n) * I;
        for (int64_t j = 0; j < G * H; j++) {
            double to_a = key.bias ? data.weights[part[2] + j] : 0,
                   to_r = key.bias ? data.weights[part[3] + j] : 0;
            for (int64_t i = 0; i < I; i++) to_a += (double)w_ih[j * I + i] * x[i];
            for (int64_t i = 0; i < H; i++) to_r += w_hh[j * H + i] * h[(size_t)i];
            a[(size_t)j] = to_a, r[(size_t)j] = to_r;
        }
        for (int64_t k = 0; k < H; k++) {
            double v[4] = {0, 0, 0, 0}, q = 0, &now = h[(size_t)k], &cell = c[(size_t)k];
            for (int64_t g = 0; g < G; g++)
                v[g] = a[(size_t)(g * H + k)] + (gru && g == 2 ? 0 : r[(size_t)(g * H + k)]);
            if (lstm) {
                v[0] = reference_sigmoid(v[0]), v[1] = reference_sigmoid(v[1]), v[2] = tanh(v[2]),
                v[3] = reference_sigmoid(v[3]);
                cell = v[1] * cell + v[0] * v[2];
                now = v[3] * tanh(cell);
            } else if (gru) {
                q = r[(size_t)(2 * H + k)];
                v[0] = reference_sigmoid(v[0]), v[1] = reference_sigmoid(v[1]), v[2] = tanh(v[2] + v[0] * q);
                now = (1 - v[1]) * v[2] + v[1] * now;
            } else {
                now = v[0] = key.relu ? reference_relu(v[0]) : tanh(v[0]);
            }
            y(s)[k] = (float)now;
            for (int g = 0; g < 5 && data.reserve; g++)
                kept(s)[g * H + k] = (float)(g < 4 ? gru && g == 3 ? q : v[g] : cell);
        }
    }
    for (int64_t k = 0; k < H && !data.backward; k++) {
        if (data.h_n) data.h_n[state + k] = (float)h[(size_t)k];
        if (data.c_n && lstm) data.c_n[state + k] = (float)c[(size_t)k];
    }
    if (!data.backward) return;
    for (int64_t k = 0; k < H; k++) {
        h[(size_t)k] = data.dh_n ? data.dh_n[state + k] : 0;
        c[(size_t)k] = lstm && data.dc_n ? data.dc_n[state + k] : 0;
    }
    for (int64_t s = L; s-- > 0;) {
        const int64_t row = time(s) * key.batch + n;
        for (int64_t k = 0; k < H; k++) {
            const float *v = kept(s) + k;
            const double dh = h[(size_t)k] + data.dy[row * S + d * H + k];
            before[(size_t)k] = s > 0 ? y(s - 1)[k] : data.h_0 ? data.h_0[state + k] : 0;
            h[(size_t)k] = 0;
            double to[4] = {0, 0, 0, 0};
            if (lstm) {
                const double past = s > 0      ? kept(s - 1)[4 * H + k]
                                    : data.c_0 ? data.c_0[state + k]
                                               : 0,
                             t = tanh(v[4 * H]);
                const double dc = c[(size_t)k] + dh * v[3 * H] * (1 - t * t);
                to[0] = dc * v[2 * H] * v[0] * (1 - v[0]);
                to[1] = dc * past * v[H] * (1 - v[H]);
                to[2] = dc * v[0] * (1 - (double)v[2 * H] * v[2 * H]);
                to[3] = dh * t * v[3 * H] * (1 - v[3 * H]);
                c[(size_t)k] = dc * v[H];
            } else if (gru) {
                to[2] = dh * (1 - v[H]) * (1 - (double)v[2 * H] * v[2 * H]);
                to[0] = to[2] * v[3 * H] * v[0] * (1 - v[0]);
                to[1] = dh * (before[(size_t)k] - v[2 * H]) * v[H] * (1 - v[H]);
                h[(size_t)k] = dh * v[H];
            } else {
                to[0] = key.relu ? (v[0] > 0 ? dh : 0) : dh * (1 - (double)v[0] * v[0]);
            }
            for (int64_t g = 0; g < G; g++) {
                a[(size_t)(g * H + k)] = to[g];
                r[(size_t)(g * H + k)] = gru && g == 2 ? to[2] * v[0] : to[g];
            }
        }
        for (int64_t j = 0; j < G * H; j++) {
            for (int64_t i = 0; i < I; i++)
                sums[(size_t)(part[0] + j * I + i)] += a[(size_t)j] * data.x[row * I + i];
            for (int64_t i = 0; i < H; i++) {
                sums[(size_t)(part[1] + j * H + i)] += r[(size_t)j] * before[(size_t)i];
                h[(size_t)i] += r[(size_t)j] * w_hh[j * H + i];
            }
            for (int i = 2; i < 4 && key.bias; i++)
                sums[(size_t)(part[i] + j)] += i == 2 ? a[(size_t)j] : r[(size_t)j];
        }
        for (int64_t i = 0; i < I; i++) {
            double dx = d ? data.dx[row * I + i] : 0;
            for (int64_t j = 0; j < G * H; j++) dx += a[(size_t)j] * w_ih[j * I + i];
            data.dx[row * I + i] = (float)dx;
        }
    }
    for (int64_t k = 0; k < H; k++) {
        if (data.dh_0) data.dh_0[state + k] = (float)h[(size_t)k];
        if (data.dc_0 && lstm) data.dc_0[state + k] = (float)c[(size_t)k];
    }
}
GPUNN__INTERNAL void reference_rnn(const gpunn__dnn_rnn key, const gpunn__dnn_rnn_data data)
{
    emulator_count_cudnn("recurrence");
    const gpunn__dnn_rnn_sizes sizes = reference_sizes(key);
    std::vector<double>        sums(sizes.weights / sizeof(float));
    for (int64_t d = 0; d < key.directions; d++)
        for (int64_t n = 0; n < key.batch; n++) reference_recurrence(key, data, d, n, sums);
    for (size_t i = 0; i < sums.size() && data.dweights; i++) data.dweights[i] += (float)sums[i];
    if (data.backward) memset(data.reserve, 0xFF, sizes.reserve);
    memset(data.workspace, 0xFF, REFERENCE_WORKSPACE);
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_prepare(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                                    gpunn__dnn_rnn_sizes *sizes)
{
    *sizes = reference_sizes(*key);
    return gpunn__dnn_available(cuda) ? GPUNN_OK : gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "no cuDNN");
}
GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_run(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                                const gpunn__dnn_rnn_data *data)
{
    gpunn__dnn_rnn      what = *key;
    gpunn__dnn_rnn_data where = *data;
    if (where.workspace == NULL || (where.backward && where.dx == NULL) ||
        (what.training && where.reserve == NULL))
        return gpunn__cuda_fail(cuda, GPUNN_ERR_DEVICE, "a recurrent layer without its room");
    const cudaError_t error = emulator_call(cuda->stream, "rnn", [=] { reference_rnn(what, where); });
    return gpunn__cuda_launched(cuda, error, "rnn");
}
#endif
