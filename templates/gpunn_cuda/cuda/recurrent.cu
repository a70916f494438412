#include "base/errors.h"
#include "base/memory.h"
#include "cuda/gemm.h"
#include "cuda/conv.h"

/* ==== >>cuda/recurrent =================================================================================== *
 * rnn, lstm and gru: one layer, F32 in all precisions. cuDNN keeps all weights in one buffer, so they are
 * gathered there from PyTorch's layout, and their gradients are scattered back. cuDNN has PyTorch's order of
 * gates (rnn; lstm i f g o; gru r z n, r after the product) and its two biases.
 * Without cuDNN, the algorithm and the saved rows of gates are those of gpunn.h's >>cpu/recurrent. It takes
 * one product over all steps for the input, one for each gradient of a weight, and a product and a kernel
 * per step. */
#if GPUNN__CUDNN

typedef struct gpunn__dnn_rnn_choice { /* the cache entry of a gpunn__dnn_rnn */
    bool                     searched, usable;
    gpunn__dnn_rnn_sizes     sizes;
    cudnnRNNDescriptor_t     rnn;
    cudnnRNNDataDescriptor_t x, y;
    cudnnTensorDescriptor_t  state, matrix, bias;
    char                     reason[256];
} gpunn__dnn_rnn_choice;

static void gpunn__dnn_rnn_forget(gpunn__cuda *cuda, void *value)
{
    gpunn__dnn_rnn_choice   *choice = (gpunn__dnn_rnn_choice *)value;
    gpunn__libraries        *libraries = cuda->libraries;
    cudnnTensorDescriptor_t *tensors[] = {&choice->state, &choice->matrix, &choice->bias};
    if (choice->rnn) (void)libraries->cudnnDestroyRNNDescriptor(choice->rnn);
    if (choice->x) (void)libraries->cudnnDestroyRNNDataDescriptor(choice->x);
    if (choice->y) (void)libraries->cudnnDestroyRNNDataDescriptor(choice->y);
    for (int i = 0; i < 3; i++)
        if (*tensors[i]) (void)libraries->cudnnDestroyTensorDescriptor(*tensors[i]), *tensors[i] = NULL;
    choice->rnn = NULL, choice->x = choice->y = NULL;
}

/* Makes the descriptors, which needs no device. cuDNN 9 reads the sequence lengths here, on the host. */
static void gpunn__dnn_rnn_describe(gpunn__dnn_builder *builder, const gpunn__dnn_rnn *key,
                                    gpunn__dnn_rnn_choice *choice)
{
    const cudnnRNNMode_t mode = key->op == GPUNN_OP_LSTM  ? CUDNN_LSTM
                                : key->op == GPUNN_OP_GRU ? CUDNN_GRU
                                : key->relu               ? CUDNN_RNN_RELU
                                                          : CUDNN_RNN_TANH;
    const int            length = (int)key->length, batch = (int)key->batch, in = (int)key->in,
              hidden = (int)key->hidden;
    const int directions = (int)key->directions, dim[3] = {directions, batch, hidden},
              stride[3] = {batch * hidden, hidden, 1};
    const size_t  bytes = (size_t)batch * sizeof(int);
    int *const    lengths = (int *)gpunn__host_alloc(builder->cuda, bytes);
    const int64_t sizes[] = {key->length, key->batch, key->in, key->directions * key->hidden,
                             key->batch * key->hidden};
    if (lengths == NULL) {
        builder->status = GPUNN_ERR_MEMORY;
        (void)snprintf(builder->text, sizeof builder->text, "out of memory");
        return;
    }
    for (int i = 0; i < batch; i++) lengths[i] = length;
    gpunn__dnn_check_sizes(builder, 5, sizes);
    (void)GPUNN__DNN(builder, cudnnCreateRNNDescriptor, &choice->rnn);
    (void)GPUNN__DNN(builder, cudnnCreateRNNDataDescriptor, &choice->x);
    (void)GPUNN__DNN(builder, cudnnCreateRNNDataDescriptor, &choice->y);
    (void)GPUNN__DNN(builder, cudnnCreateTensorDescriptor, &choice->state);
    (void)GPUNN__DNN(builder, cudnnCreateTensorDescriptor, &choice->matrix);
    (void)GPUNN__DNN(builder, cudnnCreateTensorDescriptor, &choice->bias);
    (void)GPUNN__DNN(builder, cudnnSetRNNDescriptor_v8, choice->rnn, CUDNN_RNN_ALGO_STANDARD, mode,
                     key->bias ? CUDNN_RNN_DOUBLE_BIAS : CUDNN_RNN_NO_BIAS,
                     directions == 2 ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT,
                     CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT,
                     key->precision == GPUNN_PRECISION_TF32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH, in, hidden,
                     hidden, 1, NULL, CUDNN_RNN_PADDED_IO_ENABLED);
    (void)GPUNN__DNN(builder, cudnnSetRNNDataDescriptor, choice->x, CUDNN_DATA_FLOAT,
                     CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, length, batch, in, lengths, NULL);
    (void)GPUNN__DNN(builder, cudnnSetRNNDataDescriptor, choice->y, CUDNN_DATA_FLOAT,
                     CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, length, batch, directions * hidden, lengths,
                     NULL);
    (void)GPUNN__DNN(builder, cudnnSetTensorNdDescriptor, choice->state, CUDNN_DATA_FLOAT, 3, dim, stride);
    gpunn__host_free(builder->cuda, lengths, bytes);
}

/* Finds the offsets of the weights' parts. The gates of one matrix must be contiguous, as in PyTorch;
 * otherwise cuDNN is not used. */
static void gpunn__dnn_rnn_parts(gpunn__dnn_builder *builder, const gpunn__dnn_rnn *key,
                                 gpunn__dnn_rnn_choice *choice)
{
    gpunn__libraries *libraries = builder->cuda->libraries;
    char *const       base = (char *)libraries->lt_workspace; /* any address, since nothing is read from it */
    const int64_t     gates = gpunn__gates_of((gpunn_op)key->op);
    for (int64_t d = 0; d < key->directions; d++)
        for (int64_t g = 0; g < 2 * gates; g++) {
            void         *address[2] = {base, base};
            const int64_t size[2] = {key->hidden * (g < gates ? key->in : key->hidden), key->hidden};
            (void)GPUNN__DNN(builder, cudnnGetRNNWeightParams, libraries->dnn, choice->rnn, (int32_t)d,
                             choice->sizes.weights, base, (int32_t)g, choice->matrix, &address[0],
                             choice->bias, &address[1]);
            for (int i = 0; i < (key->bias ? 2 : 1) && builder->status == GPUNN_OK; i++) {
                int64_t *const first = &choice->sizes.part[d][2 * i + (g >= gates)];
                const int64_t  at = ((char *)address[i] - base) / (int64_t)sizeof(float);
                if (g % gates == 0) *first = at;
                if (at == *first + g % gates * size[i]) continue;
                builder->status = GPUNN_ERR_UNSUPPORTED;
                (void)snprintf(builder->text, sizeof builder->text,
                               "the weights of its gates are not contiguous");
            }
        }
}

static gpunn_status gpunn__dnn_rnn_search(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                          gpunn__dnn_rnn_choice *choice)
{
    gpunn__libraries     *libraries = cuda->libraries;
    gpunn__dnn_rnn_sizes *sizes = &choice->sizes;
    gpunn__dnn_builder    builder = {cuda, NULL, NULL, GPUNN_OK, "", 0, {}};
    gpunn__module_beside(&libraries->dnn_module, "libcudnn_adv.so.9");
    gpunn__dnn_rnn_describe(&builder, key, choice);
    (void)GPUNN__DNN(&builder, cudnnGetRNNWeightSpaceSize, libraries->dnn, choice->rnn, &sizes->weights);
    (void)GPUNN__DNN(&builder, cudnnGetRNNTempSpaceSizes, libraries->dnn, choice->rnn,
                     key->training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, choice->x,
                     &sizes->workspace, &sizes->reserve);
    gpunn__dnn_rnn_parts(&builder, key, choice);
    if (builder.status == GPUNN_OK && sizes->workspace > cuda->args.workspace_limit) {
        builder.status = GPUNN_ERR_UNSUPPORTED;
        (void)snprintf(builder.text, sizeof builder.text,
                       "it needs %llu bytes of workspace, but workspace_limit is %llu",
                       (unsigned long long)sizes->workspace, (unsigned long long)cuda->args.workspace_limit);
    }
    choice->usable = builder.status == GPUNN_OK;
    if (!choice->usable) gpunn__dnn_rnn_forget(cuda, choice);
    gpunn__dnn_clear_unsupported(&builder);
    if (builder.status != GPUNN_OK) return gpunn__dnn_fail(cuda, builder.status, builder.text);
    (void)snprintf(choice->reason, sizeof choice->reason, "%s", builder.text);
    choice->searched = true;
    return GPUNN_OK;
}

static gpunn__dnn_rnn_choice *gpunn__dnn_rnn_entry(gpunn__cuda *cuda, const gpunn__dnn_rnn *key)
{
    bool fresh;
    return (gpunn__dnn_rnn_choice *)gpunn__cuda_cached(cuda, key, sizeof *key, sizeof(gpunn__dnn_rnn_choice),
                                                       gpunn__dnn_rnn_forget, &fresh);
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_prepare(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                                    gpunn__dnn_rnn_sizes *sizes)
{
    gpunn__dnn_rnn_choice *choice = gpunn__dnn_rnn_entry(cuda, key);
    if (!choice) return GPUNN_ERR_MEMORY;
    if (!choice->searched) GPUNN__TRY(gpunn__dnn_rnn_search(cuda, key, choice));
    if (!choice->usable)
        return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED, "cuDNN cannot run this recurrent layer: %s",
                                choice->reason);
    *sizes = choice->sizes;
    return GPUNN_OK;
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_run(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                                const gpunn__dnn_rnn_data *data)
{
    cudnnHandle_t                handle = cuda->libraries->dnn;
    const gpunn__dnn_rnn_choice *c = gpunn__dnn_rnn_entry(cuda, key);
    gpunn__dnn_builder           builder = {cuda, NULL, NULL, GPUNN_OK, "", 0, {}};
    if (!c) return GPUNN_ERR_MEMORY;
    if (!c->usable) return gpunn__cuda_fail(cuda, GPUNN_ERR_STATE, "this recurrent layer was not prepared");
    const size_t weights = c->sizes.weights, workspace = c->sizes.workspace,
                 reserve = key->training ? c->sizes.reserve : 0;
    if (!data->backward)
        (void)GPUNN__DNN(&builder, cudnnRNNForward, handle, c->rnn,
                         key->training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE, NULL, c->x,
                         data->x, c->y, data->y, c->state, data->h_0, data->h_n, c->state, data->c_0,
                         data->c_n, weights, data->weights, workspace, data->workspace, reserve,
                         data->reserve);
    else
        (void)GPUNN__DNN(&builder, cudnnRNNBackwardData_v8, handle, c->rnn, NULL, c->y, data->y, data->dy,
                         c->x, data->dx, c->state, data->h_0, data->dh_n, data->dh_0, c->state, data->c_0,
                         data->dc_n, data->dc_0, weights, data->weights, workspace, data->workspace, reserve,
                         data->reserve);
    if (data->dweights) /* after the previous call, whose reserve it reads */
        (void)GPUNN__DNN(&builder, cudnnRNNBackwardWeights_v8, handle, c->rnn, CUDNN_WGRAD_MODE_ADD, NULL,
                         c->x, data->x, c->state, data->h_0, c->y, data->y, weights, data->dweights,
                         workspace, data->workspace, reserve, data->reserve);
    if (builder.status == GPUNN_OK) return GPUNN_OK;
    GPUNN__TRY(gpunn__cuda_check(cuda, cudaGetLastError(), "cudnnRNN"));
    return gpunn__dnn_fail(cuda, builder.status, builder.text);
}
#elif !defined(GPUNN__EMULATOR) /* no cudnn.h: products and a kernel per step */
GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_prepare(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                                    gpunn__dnn_rnn_sizes *sizes)
{
    (void)key, (void)sizes;
    return gpunn__cuda_fail(cuda, GPUNN_ERR_UNSUPPORTED,
                            "gpunn_cuda.cu was compiled where there was no cudnn.h");
}

GPUNN__INTERNAL gpunn_status gpunn__dnn_rnn_run(gpunn__cuda *cuda, const gpunn__dnn_rnn *key,
                                                const gpunn__dnn_rnn_data *data)
{
    (void)data;
    return gpunn__dnn_rnn_prepare(cuda, key, NULL);
}
#endif
typedef struct gpunn__recurrent {
    int          op; /* gpunn_op */
    bool         relu;
    int64_t      length, batch, in, hidden, gates, width, directions, direction;
    int64_t      step;      /* counted in the order of the direction */
    float       *kept;      /* [length][batch][width] */
    float       *h, *c;     /* [batch][hidden]: the state or its gradient */
    const void  *h_0, *c_0; /* of this direction; NULL: 0 */
    gpunn_dtype  h_0_dtype, c_0_dtype, lengths_dtype;
    const void  *lengths; /* [batch]; NULL: all are `length` */
    const void  *reset;   /* [length][batch]; NULL: never */
    gpunn_dtype  reset_dtype;
    const float *ih, *hh; /* biases; NULL: none */
    float       *y;       /* [length][batch][directions][hidden] */
    const float *dy;
} gpunn__recurrent;

static __device__ __forceinline__ float gpunn__sigmoid_of(float x)
{
    return 1 / (1 + expf(-x));
}

static __device__ __forceinline__ int64_t gpunn__recurrent_time(const gpunn__recurrent &r, int64_t step)
{
    return r.direction ? r.length - 1 - step : step;
}

/* The length of sequence n, or -1 if it is out of range. */
static __device__ __forceinline__ int64_t gpunn__recurrent_length(const gpunn__recurrent &r, int64_t n)
{
    if (r.lengths == NULL) return r.length;
    int64_t length = gpunn__integer(r.lengths, r.lengths_dtype, n);
    return length < 1 || length > r.length ? -1 : length;
}

/* Whether sequence n continues from zeros at step s. Only one direction has resets. */
static __device__ __forceinline__ bool gpunn__recurrent_resets(const gpunn__recurrent &r, int64_t s,
                                                               int64_t n)
{
    return r.reset && s < gpunn__recurrent_length(r, n) &&
           gpunn__load(r.reset, r.reset_dtype, s * r.batch + n) != 0;
}

/* Element k of the state h that sequence n has before step s. */
static __device__ __forceinline__ float gpunn__recurrent_before(const gpunn__recurrent &r, int64_t s,
                                                                int64_t n, int64_t k)
{
    int64_t t = s > 0 ? gpunn__recurrent_time(r, s - 1) : r.length;
    if (gpunn__recurrent_resets(r, s, n)) return 0;
    if (t < gpunn__recurrent_length(r, n))
        return r.y[((t * r.batch + n) * r.directions + r.direction) * r.hidden + k];
    return r.h_0 ? gpunn__load(r.h_0, r.h_0_dtype, n * r.hidden + k) : 0;
}

/* One forward step of a direction: gates, state and y. Sequences that have ended keep their state. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__recurrent_cell_kernel(const gpunn__recurrent r)
{
    GPUNN__FOLLOW();
    const int64_t H = r.hidden, t = gpunn__recurrent_time(r, r.step);
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < r.batch * H;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t n = i / H, k = i - n * H, length = gpunn__recurrent_length(r, n);
        float  *gate = r.kept + (t * r.batch + n) * r.width + k, x[4], h = r.h[i], c = r.c[i], y = 0;
        if (length < 0) h = c = y = NAN;
        if (t < length) {
#pragma unroll
            for (int g = 0; g < 4; g++) {
                if (g >= r.gates) continue;
                x[g] = gate[g * H];
                if (r.ih) x[g] += r.ih[g * H + k];
                if (r.ih && !(r.op == GPUNN_OP_GRU && g == 2)) x[g] += r.hh[g * H + k];
            }
            if (r.op == GPUNN_OP_RNN) {
                const float positive = x[0] <= 0 ? 0 : x[0];
                h = r.relu ? positive : tanhf(x[0]);
                gate[0] = h;
            } else if (r.op == GPUNN_OP_LSTM) {
                x[0] = gpunn__sigmoid_of(x[0]);
                x[1] = gpunn__sigmoid_of(x[1]);
                x[2] = tanhf(x[2]);
                x[3] = gpunn__sigmoid_of(x[3]);
                c = x[1] * c + x[0] * x[2];
                h = x[3] * tanhf(c);
#pragma unroll
                for (int g = 0; g < 4; g++) gate[g * H] = x[g];
            } else {
                float q = gate[3 * H] + (r.hh ? r.hh[2 * H + k] : 0);
                x[0] = gpunn__sigmoid_of(x[0]);
                x[1] = gpunn__sigmoid_of(x[1]);
                x[2] = tanhf(x[2] + x[0] * q);
                h = x[2] + x[1] * (h - x[2]);
                gate[0] = x[0];
                gate[H] = x[1];
                gate[2 * H] = x[2];
                gate[3 * H] = q;
            }
            y = h;
        }
        if (r.op == GPUNN_OP_LSTM) gate[4 * H] = c;
        const bool anew = gpunn__recurrent_resets(r, r.step + 1, n);
        r.h[i] = anew ? 0 : h;
        r.c[i] = anew ? 0 : c;
        r.y[((t * r.batch + n) * r.directions + r.direction) * H + k] = y;
    }
}

/* One backward step of a direction: replaces the saved gates by their gradients and updates those of the
 * state. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__recurrent_cell_backward_kernel(const gpunn__recurrent r)
{
    GPUNN__FOLLOW();
    const int64_t H = r.hidden, t = gpunn__recurrent_time(r, r.step);
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < r.batch * H;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t    n = i / H, k = i - n * H, length = gpunn__recurrent_length(r, n);
        float     *gate = r.kept + (t * r.batch + n) * r.width + k;
        const bool cut = gpunn__recurrent_resets(r, r.step + 1, n);
        float      dh = cut ? 0 : r.h[i];
        if (t >= length) {
            for (int g = 0; g < r.width / H - (r.op == GPUNN_OP_LSTM); g++)
                gate[g * H] = length < 0 ? NAN : 0.0f;
            continue;
        }
        dh += r.dy[((t * r.batch + n) * r.directions + r.direction) * H + k];
        if (r.op == GPUNN_OP_RNN) {
            const float y = gate[0], passed = y <= 0 ? 0 : dh;
            gate[0] = r.relu ? passed : dh * (1 - y * y);
            dh = 0;
        } else if (r.op == GPUNN_OP_LSTM) {
            float in = gate[0], forget = gate[H], g = gate[2 * H], out = gate[3 * H],
                  tanh_c = tanhf(gate[4 * H]), before;
            if (gpunn__recurrent_resets(r, r.step, n))
                before = 0;
            else if (r.step > 0)
                before = gate[(r.direction ? r.batch : -r.batch) * r.width + 4 * H];
            else
                before = r.c_0 ? gpunn__load(r.c_0, r.c_0_dtype, i) : 0;
            float dc = (cut ? 0 : r.c[i]) + dh * out * (1 - tanh_c * tanh_c);
            gate[0] = dc * g * in * (1 - in);
            gate[H] = dc * before * forget * (1 - forget);
            gate[2 * H] = dc * in * (1 - g * g);
            gate[3 * H] = dh * tanh_c * out * (1 - out);
            r.c[i] = dc * forget;
            dh = 0;
        } else {
            float reset = gate[0], z = gate[H], g = gate[2 * H], q = gate[3 * H];
            float dn = dh * (1 - z) * (1 - g * g);
            gate[0] = dn * q * reset * (1 - reset);
            gate[H] = dh * (gpunn__recurrent_before(r, r.step, n, k) - g) * z * (1 - z);
            gate[2 * H] = dn;
            gate[3 * H] = dn * reset;
            dh *= z;
        }
        r.h[i] = dh;
    }
}

/* Sets the states, or their gradients, to 0 for sequences that reset at the first step. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__recurrent_reset_kernel(const gpunn__recurrent r)
{
    GPUNN__FOLLOW();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < r.batch * r.hidden;
         i += (int64_t)gridDim.x * blockDim.x)
        if (gpunn__recurrent_resets(r, 0, i / r.hidden)) r.h[i] = r.c[i] = 0;
}

/* to[time][n][hidden] = the h that each step starts from. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__recurrent_before_kernel(const gpunn__recurrent r, float *to)
{
    GPUNN__FOLLOW();
    int64_t count = r.length * r.batch * r.hidden;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / r.hidden, t = row / r.batch;
        to[i] = gpunn__recurrent_before(r, gpunn__recurrent_time(r, t), row - t * r.batch,
                                        i - row * r.hidden);
    }
}

static gpunn__recurrent gpunn__recurrent_of(const gpunn_step *step)
{
    const gpunn_value *hh = &step->in[GPUNN__WEIGHTS + 1];
    gpunn__recurrent   r;
    memset(&r, 0, sizeof r);
    r.op = step->op;
    r.relu = step->attr->relu;
    r.length = step->in[0].dim[0];
    r.batch = step->in[0].dim[1];
    r.in = step->in[0].dim[2];
    r.hidden = hh->dim[1];
    r.gates = hh->dim[0] / r.hidden;
    r.width = (r.gates + (step->op != GPUNN_OP_RNN)) * r.hidden;
    r.directions = step->attr->bidirectional ? 2 : 1;
    r.lengths = step->in[1].data;
    r.lengths_dtype = step->in[1].dtype;
    r.reset = step->in[GPUNN__RESET].data;
    r.reset_dtype = step->in[GPUNN__RESET].dtype;
    r.y = (float *)step->out.data;
    r.dy = (const float *)step->grad_out.data;
    return r;
}

/* Floats of one direction's saved gates, aligned. */
static int64_t gpunn__recurrent_kept(const gpunn__recurrent *r)
{
    return GPUNN__UP(r->length * r->batch * r->width, 64);
}

/* Selects direction d. */
static void gpunn__recurrent_relayout(gpunn__recurrent *r, const gpunn_step *step, int64_t d)
{
    const int64_t      states = r->batch * r->hidden;
    const gpunn_value *in = step->in + GPUNN__WEIGHTS + 4 * d;
    r->direction = d;
    r->kept = gpunn__beyond((float *)step->saved, d * gpunn__recurrent_kept(r));
    r->h_0 = step->in[2].data ? gpunn__element(step->in[2].data, step->in[2].dtype, d * states) : NULL;
    r->c_0 = step->in[3].data ? gpunn__element(step->in[3].data, step->in[3].dtype, d * states) : NULL;
    r->h_0_dtype = step->in[2].dtype;
    r->c_0_dtype = step->in[3].dtype;
    r->ih = (const float *)in[2].data;
    r->hh = (const float *)in[3].data;
}

/* to[i] = or += from[i], or 0 if from is NULL. Any alignment is possible. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__recurrent_copy_kernel(void *to, gpunn_dtype to_dtype, const void *from, gpunn_dtype from_dtype,
                                 int64_t count, bool add)
{
    GPUNN__FOLLOW();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        float x = from ? gpunn__load(from, from_dtype, i) : 0;
        gpunn__store(to, to_dtype, i, add ? gpunn__load(to, to_dtype, i) + x : x);
    }
}

static gpunn_status gpunn__recurrent_copy(gpunn__cuda *cuda, void *to, gpunn_dtype to_dtype, const void *from,
                                          gpunn_dtype from_dtype, int64_t count, bool add)
{
    return GPUNN__LAUNCH(cuda, gpunn__recurrent_copy_kernel, gpunn__blocks(cuda, count, 1), GPUNN__THREADS,
                         to, to_dtype, from, from_dtype, count, add);
}

/* The products of one step: gates += h W_hh^T, with gru's q separate. Backward: dh += gates W_hh. */
static gpunn_status gpunn__recurrent_step(gpunn__cuda *cuda, const gpunn_step *step,
                                          const gpunn__recurrent *r, gpunn__action action)
{
    const int64_t  H = r->hidden, t = r->direction ? r->length - 1 - r->step : r->step, rows = r->gates * H;
    float *const   gates = gpunn__beyond(r->kept, t * r->batch * r->width);
    const float   *weight = (const float *)step->in[GPUNN__WEIGHTS + 1 + 4 * r->direction].data;
    gpunn__product p[2];
    int            count = r->op == GPUNN_OP_GRU ? 2 : 1;
    for (int i = 0; i < count; i++) {
        memset(&p[i], 0, sizeof p[i]);
        p[i].batch = 1;
        p[i].dtype = p[i].d_dtype = GPUNN_F32;
        p[i].precision = step->precision;
        p[i].m = r->batch;
        p[i].n = p[i].ldd = H;
        p[i].k = i == 0 ? 2 * H : H;
        if (count == 1) p[i].k = rows;
        p[i].lda = r->width;
        p[i].ldb = H;
        p[i].a = gpunn__beyond(gates, 3 * i * H);
        p[i].b = weight + 2 * i * H * H;
        p[i].d = r->h;
        p[i].accumulate = true;
        if (step->backward) continue;
        p[i].n = p[i].k;
        p[i].k = p[i].lda = H;
        p[i].ldd = r->width;
        p[i].transpose_b = true;
        p[i].a = r->h;
        p[i].d = gpunn__beyond(gates, 3 * i * H);
        p[i].accumulate = i == 0;
    }
    for (int i = 0; i < count; i++) GPUNN__TRY(gpunn__products(cuda, &p[i], 1, action));
    return GPUNN_OK;
}

/* Operand i in F32, converted into the workspace if needed. */
static gpunn_status gpunn__recurrent_operand(gpunn__cuda *cuda, const gpunn_step *step, int i,
                                             gpunn__arena *arena, gpunn_value *x)
{
    const gpunn_value *from = &step->in[i];
    *x = *from;
    if (from->data == NULL || from->dtype == GPUNN_F32) return GPUNN_OK;
    x->dtype = GPUNN_F32;
    x->data = gpunn__arena_take(arena, gpunn__bytes(GPUNN_F32, x->count));
    if (x->data == NULL) return GPUNN_OK;
    return gpunn__cuda_copy(cuda, x->data, GPUNN_F32, from->data, from->dtype, x->count, false);
}

static gpunn_status gpunn__recurrent_forward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    gpunn__recurrent r = gpunn__recurrent_of(step);
    gpunn__arena     arena = {(char *)step->workspace, 0};
    const int64_t    states = r.batch * r.hidden, rows = r.gates * r.hidden, kept = gpunn__recurrent_kept(&r);
    const unsigned   blocks = gpunn__blocks(cuda, states, 1);
    const bool       run = action == GPUNN__FORWARD;
    gpunn_value      x, gates;
    r.h = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, states));
    r.c = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, states));
    float *const evaluation = step->training
                                  ? NULL
                                  : (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, kept));
    GPUNN__TRY(gpunn__recurrent_operand(cuda, step, 0, &arena, &x));
    for (int64_t d = 0; d < r.directions; d++) {
        gpunn__recurrent_relayout(&r, step, d);
        if (!step->training) r.kept = evaluation;
        gates = x;
        gates.data = r.kept;
        gpunn__product p = gpunn__make_product(step, r.length * r.batch, rows, r.in, &x, false,
                                               &step->in[GPUNN__WEIGHTS + 4 * d], true, &gates);
        p.ldd = r.width;
        GPUNN__TRY(gpunn__products(cuda, &p, 1, action));
        if (run) GPUNN__TRY(gpunn__recurrent_copy(cuda, r.h, GPUNN_F32, r.h_0, r.h_0_dtype, states, false));
        if (run) GPUNN__TRY(gpunn__recurrent_copy(cuda, r.c, GPUNN_F32, r.c_0, r.c_0_dtype, states, false));
        if (run && r.reset)
            GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__recurrent_reset_kernel, blocks, GPUNN__THREADS, r));
        for (r.step = 0; r.step < (run ? r.length : 1); r.step++) {
            GPUNN__TRY(gpunn__recurrent_step(cuda, step, &r, action));
            if (run) GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__recurrent_cell_kernel, blocks, GPUNN__THREADS, r));
        }
        for (int i = 0; run && step->attr->states && i < (r.op == GPUNN_OP_LSTM ? 2 : 1); i++) {
            float *to = r.y + ((r.length + i) * r.directions + d) * states;
            GPUNN__TRY(gpunn__recurrent_copy(cuda, to, GPUNN_F32, i ? r.c : r.h, GPUNN_F32, states, false));
        }
    }
    if (run) return GPUNN_OK;
    step->workspace_bytes = arena.bytes;
    if (step->training) step->saved_bytes = gpunn__bytes(GPUNN_F32, r.directions * kept);
    return GPUNN_OK;
}

/* The gradients of one direction's weights and its part of dx, from the gradients of the gates. */
static gpunn_status gpunn__recurrent_gradients(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action,
                                               const gpunn__recurrent *r, const gpunn_value *x,
                                               const gpunn_value *dx, float *before, float *sums,
                                               void *workspace)
{
    const int64_t steps = r->length * r->batch, H = r->hidden, rows = r->gates * H,
                  first = GPUNN__WEIGHTS + 4 * r->direction;
    const bool         gru = r->op == GPUNN_OP_GRU, run = action == GPUNN__BACKWARD;
    const gpunn_value *grad = step->grad_in + first;
    const bool        *add = step->accumulate + first;
    gpunn_value        gates = *x, previous = *x;
    gates.data = r->kept;
    previous.data = before;
    if (dx->data) {
        gpunn__product p = gpunn__make_product(step, steps, r->in, rows, &gates, false, &step->in[first],
                                               false, dx);
        p.lda = r->width;
        p.accumulate = r->direction > 0 || (dx->data == step->grad_in[0].data && step->accumulate[0]);
        GPUNN__TRY(gpunn__products(cuda, &p, 1, action));
    }
    if (grad[0].data) {
        gpunn__product p = gpunn__make_product(step, rows, r->in, steps, &gates, true, x, false, &grad[0]);
        p.lda = r->width;
        p.accumulate = add[0];
        GPUNN__TRY(gpunn__products(cuda, &p, 1, action));
    }
    if (grad[1].data && run)
        GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__recurrent_before_kernel, gpunn__blocks(cuda, steps * H, 1),
                                 GPUNN__THREADS, *r, before));
    for (int i = 0; grad[1].data && i < (gru ? 2 : 1); i++) { /* gru: r and z, then q */
        const int64_t  of_gru = i == 0 ? 2 * H : H;
        gpunn__product p = gpunn__make_product(step, gru ? of_gru : rows, H, steps, &gates, true, &previous,
                                               false, &grad[1]);
        p.lda = r->width;
        p.accumulate = add[1];
        p.a = run ? r->kept + 3 * i * H : p.a;
        p.d = run ? (float *)grad[1].data + 2 * i * H * H : p.d;
        GPUNN__TRY(gpunn__products(cuda, &p, 1, action));
    }
    if (!run || (grad[2].data == NULL && grad[3].data == NULL)) return GPUNN_OK;
    GPUNN__TRY(
        gpunn__cuda_channel_sums(cuda, r->kept, GPUNN_F32, steps, r->width, 1, sums, false, workspace));
    for (int i = 2; i < 4; i++) {
        float        *to = (float *)grad[i].data;
        const int64_t both = gru && i == 3 ? 2 * H : rows;
        if (to == NULL) continue;
        GPUNN__TRY(gpunn__recurrent_copy(cuda, to, GPUNN_F32, sums, GPUNN_F32, both, add[i]));
        if (both < rows)
            GPUNN__TRY(gpunn__recurrent_copy(cuda, to + both, GPUNN_F32, sums + 3 * H, GPUNN_F32, H, add[i]));
    }
    return GPUNN_OK;
}

static gpunn_status gpunn__recurrent_backward(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    gpunn__recurrent r = gpunn__recurrent_of(step);
    gpunn__arena     arena = {(char *)step->workspace, 0};
    const int64_t    states = r.batch * r.hidden, steps = r.length * r.batch;
    const unsigned   blocks = gpunn__blocks(cuda, states, 1);
    const bool       run = action == GPUNN__BACKWARD, lstm = r.op == GPUNN_OP_LSTM;
    gpunn_value      x, dx = step->grad_in[0];
    r.h = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, states));
    r.c = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, states));
    float *const before = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, steps * r.hidden));
    float *const sums = (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, r.width));
    void *const  workspace = gpunn__arena_take(&arena,
                                               gpunn__cuda_channel_sums_workspace(cuda, steps, r.width, 1));
    GPUNN__TRY(gpunn__recurrent_operand(cuda, step, 0, &arena, &x));
    if (dx.data && dx.dtype != GPUNN_F32) {
        void *own = gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, dx.count));
        dx.dtype = GPUNN_F32;
        if (run) dx.data = own;
    }
    for (int64_t d = 0; d < r.directions; d++) {
        gpunn__recurrent_relayout(&r, step, d);
        const float       *final = r.dy + (r.length * r.directions + d) * states;
        const bool         given = step->attr->states;
        const float *const c_n = given && lstm ? final + r.directions * states : NULL;
        if (run) {
            GPUNN__TRY(
                gpunn__recurrent_copy(cuda, r.h, GPUNN_F32, given ? final : NULL, GPUNN_F32, states, false));
            GPUNN__TRY(gpunn__recurrent_copy(cuda, r.c, GPUNN_F32, c_n, GPUNN_F32, states, false));
        }
        for (r.step = run ? r.length - 1 : 0; r.step >= 0; r.step--) {
            if (run)
                GPUNN__TRY(
                    GPUNN__LAUNCH(cuda, gpunn__recurrent_cell_backward_kernel, blocks, GPUNN__THREADS, r));
            if (r.step > 0 || step->grad_in[2].data || !run)
                GPUNN__TRY(gpunn__recurrent_step(cuda, step, &r, action));
        }
        if (run && r.reset)
            GPUNN__TRY(GPUNN__LAUNCH(cuda, gpunn__recurrent_reset_kernel, blocks, GPUNN__THREADS, r));
        GPUNN__TRY(gpunn__recurrent_gradients(cuda, step, action, &r, &x, &dx, before, sums, workspace));
        for (int i = 2; run && i < 4; i++) {
            const gpunn_value *to = &step->grad_in[i];
            if (to->data)
                GPUNN__TRY(gpunn__recurrent_copy(cuda, gpunn__element(to->data, to->dtype, d * states),
                                                 to->dtype, i == 2 ? r.h : r.c, GPUNN_F32, states,
                                                 step->accumulate[i]));
        }
    }
    if (run && dx.data && dx.data != step->grad_in[0].data)
        return gpunn__cuda_copy(cuda, step->grad_in[0].data, step->grad_in[0].dtype, dx.data, GPUNN_F32,
                                dx.count, step->accumulate[0]);
    if (!run) step->workspace_bytes = arena.bytes;
    return GPUNN_OK;
}

/* ---- by cuDNN ---- */

/* Whether cuDNN runs the step. Not with lengths, which it needs on the host, nor with resets. Not if the
 * device is deterministic, since it runs products on several streams at once. Not relu in training, since it
 * may turn NaN into 0 and hide a bad loss. */
static gpunn_status gpunn__recurrent_fits(gpunn__cuda *cuda, const gpunn_step *step, gpunn__dnn_rnn *key,
                                          gpunn__dnn_rnn_sizes *sizes, bool *fits)
{
    const gpunn__recurrent r = gpunn__recurrent_of(step);
    const bool             relu = r.op == GPUNN_OP_RNN && step->attr->relu;
    const bool             bias = step->in[GPUNN__WEIGHTS + 2].data != NULL;
    *key = {GPUNN__RNN_TAG, r.op,         relu, step->precision, step->training, r.length, r.batch, r.in,
            r.hidden,       r.directions, bias};
    *fits = r.lengths == NULL && r.reset == NULL && !cuda->args.deterministic && !(relu && step->training) &&
            gpunn__dnn_available(cuda);
    if (!*fits) return GPUNN_OK;
    gpunn_status status = gpunn__dnn_rnn_prepare(cuda, key, sizes);
    *fits = status == GPUNN_OK;
    return status == GPUNN_ERR_UNSUPPORTED ? GPUNN_OK : status;
}

typedef struct gpunn__recurrent_parts {
    float *all; /* cuDNN's weights, or their gradients */
    int    count;
    struct {
        float  *own; /* gpunn's weight or gradient */
        int64_t at, count;
        bool    add;
    } part[8];
} gpunn__recurrent_parts;

/* all = own; back: own = or += all. */
static __global__ void __launch_bounds__(GPUNN__THREADS)
    gpunn__recurrent_parts_kernel(const gpunn__recurrent_parts p, bool back)
{
    GPUNN__FOLLOW();
    for (int j = 0; j < p.count; j++) {
        float *const own = p.part[j].own, *const all = p.all + p.part[j].at;
        const bool add = p.part[j].add;
        for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.part[j].count;
             i += (int64_t)gridDim.x * blockDim.x) {
            if (back)
                own[i] = add ? own[i] + all[i] : all[i];
            else
                all[i] = own[i];
        }
    }
}

static gpunn_status gpunn__recurrent_move(gpunn__cuda *cuda, const gpunn_step *step,
                                          const gpunn__dnn_rnn_sizes *sizes, float *all, bool back)
{
    gpunn__recurrent_parts p;
    int64_t                most = 0;
    memset(&p, 0, sizeof p);
    p.all = all;
    for (int i = 0; i < (step->attr->bidirectional ? 8 : 4); i++) {
        const gpunn_value *value = (back ? step->grad_in : step->in) + GPUNN__WEIGHTS + i;
        if (value->data == NULL) continue;
        p.part[p.count].own = (float *)value->data;
        p.part[p.count].at = sizes->part[i / 4][i % 4];
        p.part[p.count].count = value->count;
        p.part[p.count++].add = back && step->accumulate[GPUNN__WEIGHTS + i];
        if (value->count > most) most = value->count;
    }
    return GPUNN__LAUNCH(cuda, gpunn__recurrent_parts_kernel, gpunn__blocks(cuda, most, 1), GPUNN__THREADS, p,
                         back);
}

/* Where cuDNN writes the gradient of operand i: the gradient itself, or a buffer from which gpunn__cuda_copy
 * adds or converts it. */
static float *gpunn__recurrent_aside(const gpunn_step *step, int i, gpunn__arena *arena)
{
    const gpunn_value *to = &step->grad_in[i];
    const bool         direct = to->data && to->dtype == GPUNN_F32 && !step->accumulate[i];
    if (to->data == NULL && i > 0) return NULL;
    return direct ? (float *)to->data
                  : (float *)gpunn__arena_take(arena, gpunn__bytes(GPUNN_F32, step->in[i].count));
}

/* Copies final states of n elements that have a buffer of their own to `to`, or back from there. */
static gpunn_status gpunn__recurrent_finals(gpunn__cuda *cuda, float *const buffer[2], float *to, int64_t n,
                                            bool back)
{
    for (int i = 0; i < 2; i++) {
        float *const place = to + i * n;
        if (buffer[i] == NULL || buffer[i] == place) continue;
        GPUNN__TRY(gpunn__recurrent_copy(cuda, back ? buffer[i] : place, GPUNN_F32, back ? place : buffer[i],
                                         GPUNN_F32, n, false));
    }
    return GPUNN_OK;
}

/* Copies the gradients of x, h_0 and c_0 that gpunn__recurrent_aside put into a buffer. */
static gpunn_status gpunn__recurrent_copy_back(gpunn__cuda *cuda, const gpunn_step *step,
                                               const gpunn__dnn_rnn_data *data)
{
    float *const gradients[4] = {data->dx, NULL, data->dh_0, data->dc_0};
    for (int i = 0; i < 4; i++) {
        const gpunn_value *to = &step->grad_in[i];
        if (gradients[i] && to->data && to->data != gradients[i])
            GPUNN__TRY(gpunn__cuda_copy(cuda, to->data, to->dtype, gradients[i], GPUNN_F32, step->in[i].count,
                                        step->accumulate[i]));
    }
    return GPUNN_OK;
}

static gpunn_status gpunn__recurrent_library(gpunn__cuda *cuda, gpunn_step *step, const gpunn__dnn_rnn *key,
                                             const gpunn__dnn_rnn_sizes *sizes, gpunn__action action)
{
    const int64_t       states = key->directions * key->batch * key->hidden, y = key->length * states;
    const bool          lstm = key->op == GPUNN_OP_LSTM, finals = step->attr->states;
    gpunn__arena        arena = {(char *)step->workspace, 0};
    gpunn__dnn_rnn_data data;
    gpunn_value         in[4];
    memset(&data, 0, sizeof data);
    data.backward = step->backward;
    float *const weights = (float *)gpunn__arena_take(&arena, sizes->weights);
    data.weights = weights;
    data.workspace = gpunn__arena_take(&arena, sizes->workspace);
    data.reserve = step->training ? step->saved : NULL;
    for (int i = 0; i < 4; i++)
        if (i != 1) GPUNN__TRY(gpunn__recurrent_operand(cuda, step, i, &arena, &in[i]));
    data.x = (const float *)in[0].data, data.h_0 = (const float *)in[2].data,
    data.c_0 = (const float *)in[3].data;
    data.y = (float *)step->out.data;
    data.dy = (const float *)step->grad_out.data;
    float *const behind = (float *)(step->backward ? step->grad_out.data : step->out.data) + y,
                 *final[2] = {NULL, NULL};
    /* a state that would be unaligned goes through a buffer of its own */
    for (int i = 0; finals && i < (lstm ? 2 : 1); i++) {
        const bool aligned = (y + i * states) % 4 == 0;
        final[i] = aligned ? behind + i * states
                           : (float *)gpunn__arena_take(&arena, gpunn__bytes(GPUNN_F32, states));
    }
    *(step->backward ? &data.dh_n : &data.h_n) = final[0],
                                    *(step->backward ? &data.dc_n : &data.c_n) = final[1];
    if (step->backward) {
        data.dx = gpunn__recurrent_aside(step, 0, &arena);
        data.dh_0 = gpunn__recurrent_aside(step, 2, &arena);
        data.dc_0 = gpunn__recurrent_aside(step, 3, &arena);
        for (int64_t i = GPUNN__WEIGHTS; i < GPUNN__WEIGHTS + 4 * key->directions; i++)
            if (step->grad_in[i].data && data.dweights == NULL)
                data.dweights = (float *)gpunn__arena_take(&arena, sizes->weights);
    }
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = arena.bytes;
        if (step->training && !step->backward) step->saved_bytes = sizes->reserve;
        return GPUNN_OK;
    }
    GPUNN__TRY(gpunn__recurrent_move(cuda, step, sizes, weights, false));
    if (step->backward) GPUNN__TRY(gpunn__recurrent_finals(cuda, final, behind, states, true));
    if (data.dweights) GPUNN__CUDA(cuda, cudaMemsetAsync(data.dweights, 0, sizes->weights, cuda->stream));
    GPUNN__TRY(gpunn__dnn_rnn_run(cuda, key, &data));
    if (data.dweights) GPUNN__TRY(gpunn__recurrent_move(cuda, step, sizes, data.dweights, true));
    if (!step->backward) GPUNN__TRY(gpunn__recurrent_finals(cuda, final, behind, states, false));
    return gpunn__recurrent_copy_back(cuda, step, &data);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_rnn(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    gpunn__dnn_rnn       key;
    gpunn__dnn_rnn_sizes sizes;
    bool                 fits;
    GPUNN__TRY(gpunn__recurrent_fits(cuda, step, &key, &sizes, &fits));
    if (fits) return gpunn__recurrent_library(cuda, step, &key, &sizes, action);
    return step->backward ? gpunn__recurrent_backward(cuda, step, action)
                          : gpunn__recurrent_forward(cuda, step, action);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_lstm(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    return gpunn__cuda_rnn(cuda, step, action);
}

GPUNN__INTERNAL gpunn_status gpunn__cuda_gru(gpunn__cuda *cuda, gpunn_step *step, gpunn__action action)
{
    return gpunn__cuda_rnn(cuda, step, action);
}
