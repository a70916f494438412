#include "base/math.h"
#include "graph/infer.h"
#include "cpu/levels.h"
#include "cpu/gemm.h"

/* ==== >>cpu/recurrent ==================================================================================== *
 * rnn, lstm, gru: one layer, x [length, n, in] -> y [length (+ 1 or 2 rows of states), n, directions *
 * hidden]. For each step of each sequence, one row of gates is kept. First, one product for many steps fills
 * the rows with x W_ih^T + the biases. Then each step adds h W_hh^T and applies the gates in place. Backward
 * overwrites each row with the gradients of the gates' inputs, also in place. It computes the gradients of
 * the weights in one product over all steps. Rows, in units of hidden:
 *     rnn   h                     h = tanh(..) or relu(..)
 *     lstm  i f g o c             c = f c + i g, h = o tanh(c)
 *     gru   r z n q               n = tanh(.. + r q), q = W_hn h + b_hn, h = (1 - z) n + z h; backward q
 *     becomes dn r
 * Threads share the sequences of the batch, so none waits for another before the end. If there are fewer
 * sequences than threads, threads share the columns of each step instead. A sequence's state does not change
 * at steps beyond its length. */
typedef struct gpunn__recurrent_job {
    const gpunn_step          *step;
    const gpunn__gemm_kernels *kernels;
    int64_t                    length, batch, in, hidden, gates, width; /* width: floats in a row of gates */
    int64_t                    directions, direction;
    int                        products;            /* of one step */
    const float               *h_0, *c_0;           /* of this direction; NULL: 0 */
    const float               *reset;               /* [length][batch]; NULL: never */
    float                     *kept;                /* [time][batch][width], starting at time `origin` */
    int64_t                    origin, first, last; /* first, last: steps, in the order of the direction */
    float                     *h, *c;               /* [batch][hidden]: the state, or its gradient */
    const float               *zeros;               /* [hidden], in backward */
    /* the products; in forward, followed by x W_ih^T for many steps */
    gpunn__gemm product[3];
} gpunn__recurrent_job;

/* Time index of step s of this direction. */
GPUNN__INLINE int64_t gpunn__recurrent_time(const gpunn__recurrent_job *j, int64_t s)
{
    return j->direction ? j->length - 1 - s : s;
}

GPUNN__INLINE int64_t gpunn__recurrent_length(const gpunn__recurrent_job *j, int64_t n)
{
    const gpunn_value *lengths = &j->step->in[GPUNN__LENGTHS];
    return lengths->data ? gpunn__integer(lengths->data, lengths->dtype, n) : j->length;
}

/* Whether sequence n continues from zeros at step s. Only one direction has resets. */
GPUNN__INLINE bool gpunn__recurrent_resets(const gpunn__recurrent_job *j, int64_t s, int64_t n)
{
    return j->reset && s < gpunn__recurrent_length(j, n) && j->reset[s * j->batch + n] != 0;
}

/* The row of y, or of its gradient, for sequence n at time t. */
GPUNN__INLINE float *gpunn__recurrent_y(const gpunn__recurrent_job *j, const gpunn_value *y, int64_t t,
                                        int64_t n)
{
    return (float *)y->data + ((t * j->batch + n) * j->directions + j->direction) * j->hidden;
}

/* The h before step s of sequence n. */
GPUNN__INLINE const float *gpunn__recurrent_before(const gpunn__recurrent_job *j, int64_t s, int64_t n)
{
    const int64_t t = s > 0 ? gpunn__recurrent_time(j, s - 1) : j->length;
    if (gpunn__recurrent_resets(j, s, n)) return j->zeros;
    if (t < gpunn__recurrent_length(j, n)) return gpunn__recurrent_y(j, &j->step->out, t, n);
    return j->h_0 ? j->h_0 + n * j->hidden : j->zeros;
}

/* By default gcc uses 256-bit vectors with AVX-512. */
#if defined(__AVX512F__) && defined(GPUNN__VECTORS) && !defined(__clang__)
#define GPUNN__CELL(function, parameters, arguments) \
    __attribute__((target("prefer-vector-width=512"))) GPUNN__NOINLINE void function parameters
#else
#define GPUNN__CELL GPUNN__VECTORIZED
#endif

GPUNN__CELL(gpunn__rnn_cell,
            (int64_t hidden, bool relu, float *GPUNN__RESTRICT gate, float *GPUNN__RESTRICT h,
             float *GPUNN__RESTRICT y),
            (hidden, relu, gate, h, y))
{
    if (relu)
        for (int64_t k = 0; k < hidden; k++) gate[k] = gate[k] <= 0 ? 0 : gate[k];
    else
        for (int64_t k = 0; k < hidden; k++) gate[k] = gpunn__tanh(gate[k]);
    for (int64_t k = 0; k < hidden; k++) y[k] = h[k] = gate[k];
}

GPUNN__CELL(gpunn__rnn_cell_backward,
            (int64_t hidden, bool relu, float *GPUNN__RESTRICT gate, float *GPUNN__RESTRICT dh,
             const float *GPUNN__RESTRICT dy),
            (hidden, relu, gate, dh, dy))
{
    if (relu)
        for (int64_t k = 0; k < hidden; k++) gate[k] = gpunn__select(gate[k] <= 0, 0, dh[k] + dy[k]);
    else
        for (int64_t k = 0; k < hidden; k++) gate[k] = (dh[k] + dy[k]) * (1 - gate[k] * gate[k]);
    memset(dh, 0, (size_t)hidden * sizeof *dh);
}

GPUNN__CELL(gpunn__lstm_cell,
            (int64_t hidden, float *GPUNN__RESTRICT i, float *GPUNN__RESTRICT f, float *GPUNN__RESTRICT g,
             float *GPUNN__RESTRICT o, float *GPUNN__RESTRICT kept, float *GPUNN__RESTRICT c,
             float *GPUNN__RESTRICT h, float *GPUNN__RESTRICT y),
            (hidden, i, f, g, o, kept, c, h, y))
{
    for (int64_t k = 0; k < hidden; k++) {
        i[k] = gpunn__sigmoid(i[k]);
        f[k] = gpunn__sigmoid(f[k]);
        g[k] = gpunn__tanh(g[k]);
        o[k] = gpunn__sigmoid(o[k]);
        kept[k] = c[k] = f[k] * c[k] + i[k] * g[k];
        y[k] = h[k] = o[k] * gpunn__tanh(c[k]);
    }
}

GPUNN__CELL(gpunn__lstm_cell_backward,
            (int64_t hidden, float *GPUNN__RESTRICT i, float *GPUNN__RESTRICT f, float *GPUNN__RESTRICT g,
             float *GPUNN__RESTRICT o, const float *GPUNN__RESTRICT c, const float *GPUNN__RESTRICT before,
             float *GPUNN__RESTRICT dh, float *GPUNN__RESTRICT dc, const float *GPUNN__RESTRICT dy),
            (hidden, i, f, g, o, c, before, dh, dc, dy))
{
    for (int64_t k = 0; k < hidden; k++) {
        const float out = dh[k] + dy[k], t = gpunn__tanh(c[k]), dcell = dc[k] + out * o[k] * (1 - t * t);
        const float di = dcell * g[k], df = dcell * before[k], dg = dcell * i[k];
        dc[k] = dcell * f[k];
        dh[k] = 0;
        i[k] = di * i[k] * (1 - i[k]);
        f[k] = df * f[k] * (1 - f[k]);
        g[k] = dg * (1 - g[k] * g[k]);
        o[k] = out * t * o[k] * (1 - o[k]);
    }
}

GPUNN__CELL(gpunn__gru_cell,
            (int64_t hidden, float *GPUNN__RESTRICT r, float *GPUNN__RESTRICT z, float *GPUNN__RESTRICT n,
             const float *GPUNN__RESTRICT q, float *GPUNN__RESTRICT h, float *GPUNN__RESTRICT y),
            (hidden, r, z, n, q, h, y))
{
    for (int64_t k = 0; k < hidden; k++) {
        r[k] = gpunn__sigmoid(r[k]);
        z[k] = gpunn__sigmoid(z[k]);
        n[k] = gpunn__tanh(n[k] + r[k] * q[k]);
        y[k] = h[k] = n[k] + z[k] * (h[k] - n[k]);
    }
}

GPUNN__CELL(gpunn__gru_cell_backward,
            (int64_t hidden, float *GPUNN__RESTRICT r, float *GPUNN__RESTRICT z, float *GPUNN__RESTRICT n,
             float *GPUNN__RESTRICT q, const float *GPUNN__RESTRICT before, float *GPUNN__RESTRICT dh,
             const float *GPUNN__RESTRICT dy),
            (hidden, r, z, n, q, before, dh, dy))
{
    for (int64_t k = 0; k < hidden; k++) {
        const float out = dh[k] + dy[k], dn = out * (1 - z[k]) * (1 - n[k] * n[k]);
        const float dr = dn * q[k] * r[k] * (1 - r[k]), dz = out * (before[k] - n[k]) * z[k] * (1 - z[k]);
        dh[k] = out * z[k];
        q[k] = dn * r[k];
        r[k] = dr;
        z[k] = dz;
        n[k] = dn;
    }
}

/* Sets units first .. first + count - 1 of the state to 0 if the sequence resets at step s. In backward, of
 * its gradient. */
static void gpunn__recurrent_reset(const gpunn__recurrent_job *j, int64_t s, int64_t n, int64_t first,
                                   int64_t count)
{
    if (!gpunn__recurrent_resets(j, s, n)) return;
    memset(j->h + n * j->hidden + first, 0, (size_t)count * sizeof *j->h);
    memset(j->c + n * j->hidden + first, 0, (size_t)count * sizeof *j->c);
}

/* Applies the gates to units first .. first + count - 1 of a row. */
static void gpunn__recurrent_forward_row(const gpunn__recurrent_job *j, int64_t t, int64_t n, int64_t first,
                                         int64_t count, float *gates)
{
    const int64_t hidden = j->hidden;
    float        *y = gpunn__recurrent_y(j, &j->step->out, t, n) + first, *gate = gates + first;
    float        *h = j->h + n * hidden + first, *c = j->c + n * hidden + first;
    if (t >= gpunn__recurrent_length(j, n)) {
        memset(y, 0, (size_t)count * sizeof *y);
        if (j->step->op == GPUNN_OP_LSTM) memcpy(gate + 4 * hidden, c, (size_t)count * sizeof *c);
    } else if (j->step->op == GPUNN_OP_RNN)
        gpunn__rnn_cell(count, j->step->attr->relu, gate, h, y);
    else if (j->step->op == GPUNN_OP_LSTM)
        gpunn__lstm_cell(count, gate, gate + hidden, gate + 2 * hidden, gate + 3 * hidden, gate + 4 * hidden,
                         c, h, y);
    else
        gpunn__gru_cell(count, gate, gate + hidden, gate + 2 * hidden, gate + 3 * hidden, h, y);
    gpunn__recurrent_reset(j, t + 1, n, first, count);
}

static void gpunn__recurrent_backward_row(const gpunn__recurrent_job *j, int64_t s, int64_t n, int64_t first,
                                          int64_t count, float *gates)
{
    const int64_t hidden = j->hidden, t = gpunn__recurrent_time(j, s);
    const float  *dy = gpunn__recurrent_y(j, &j->step->grad_out, t, n) + first, *before;
    float        *dh = j->h + n * hidden + first, *dc = j->c + n * hidden + first, *gate = gates + first;
    gpunn__recurrent_reset(j, s + 1, n, first, count);
    if (t >= gpunn__recurrent_length(j, n)) {
        const int64_t of_c = j->step->op == GPUNN_OP_LSTM;
        for (int64_t i = 0; i < j->width / hidden - of_c; i++)
            memset(gate + i * hidden, 0, (size_t)count * sizeof *gate);
    } else if (j->step->op == GPUNN_OP_RNN)
        gpunn__rnn_cell_backward(count, j->step->attr->relu, gate, dh, dy);
    else if (j->step->op == GPUNN_OP_LSTM) {
        before = j->c_0 ? j->c_0 + n * hidden + first : j->zeros;
        if (s > 0) before = gate + (j->direction ? j->batch : -j->batch) * j->width + 4 * hidden;
        if (gpunn__recurrent_resets(j, s, n)) before = j->zeros;
        gpunn__lstm_cell_backward(count, gate, gate + hidden, gate + 2 * hidden, gate + 3 * hidden,
                                  gate + 4 * hidden, before, dh, dc, dy);
    } else {
        before = gpunn__recurrent_before(j, s, n) + first;
        gpunn__gru_cell_backward(count, gate, gate + hidden, gate + 2 * hidden, gate + 3 * hidden, before, dh,
                                 dy);
    }
}

/* The gates that product p of a step computes: for gru r and z, then q. */
GPUNN__INLINE int64_t gpunn__recurrent_gates(const gpunn__recurrent_job *j, int p)
{
    return (j->products == 1 ? j->gates : 2 - p) * j->hidden;
}

/* Sets up the products of one step: gates += h W_hh^T; for gru, q separately. Backward: dh += gates W_hh. */
static void gpunn__recurrent_products(gpunn__recurrent_job *j)
{
    const gpunn_step *step = j->step;
    const int64_t     hidden = j->hidden, batch = j->batch;
    const float      *weight = (const float *)step->in[GPUNN__WEIGHTS + 4 * j->direction + 1].data;
    const float      *bias = (const float *)step->in[GPUNN__WEIGHTS + 4 * j->direction + 3].data;
    for (int i = 0; i < j->products; i++) {
        const int64_t rows = gpunn__recurrent_gates(j, i);
        gpunn__gemm  *g = &j->product[i];
        if (step->backward) {
            gpunn__gemm_set(g, batch, hidden, rows, NULL, false, weight, false, j->h, true);
            g->a_row = j->width;
        } else {
            gpunn__gemm_set(g, batch, rows, hidden, j->h, false, weight, true, NULL, i == 0);
            g->c_row = j->width;
            if (i == 1 && bias) g->shift_col = bias + 2 * hidden;
        }
        if (weight) weight += rows * hidden;
    }
    if (step->backward) return;
    weight = (const float *)step->in[GPUNN__WEIGHTS + 4 * j->direction].data;
    gpunn__gemm_set(&j->product[j->products], 0, j->gates * hidden, j->in, step->in[0].data, false, weight,
                    true, NULL, false);
    j->product[j->products].c_row = j->width;
}

static size_t gpunn__recurrent_packed_bytes(const gpunn__recurrent_job *j)
{
    const bool backward = j->step->backward;
    size_t     bytes = backward ? 0 : gpunn__gemm_packed_b_bytes(j->in, j->gates * j->hidden);
    for (int i = 0; i < j->products; i++) {
        const int64_t rows = gpunn__recurrent_gates(j, i);
        bytes += backward ? gpunn__gemm_packed_b_bytes(rows, j->hidden)
                          : gpunn__gemm_packed_b_bytes(j->hidden, rows);
    }
    return bytes;
}

static void gpunn__recurrent_use_packed(gpunn__recurrent_job *j, float *packed, bool fill)
{
    for (int i = 0; i < j->products + !j->step->backward; i++) {
        gpunn__gemm *g = &j->product[i];
        if (fill) gpunn__gemm_pack_b(g, packed);
        g->packed_b = packed;
        g->b = NULL;
        packed += gpunn__gemm_packed_b_bytes(g->k, g->n) / sizeof *packed;
    }
}

/* One thread's share of each step: all columns of some sequences, or some columns of all sequences. */
typedef struct gpunn__recurrent_share {
    int64_t row, rows_end;
    int     threads, index; /* threads that share the columns, and this one's index */
} gpunn__recurrent_share;

static void gpunn__recurrent_multiply(const gpunn__recurrent_job *j, const gpunn__recurrent_share *share,
                                      float *gates)
{
    for (int p = 0; p < j->products; p++) {
        float *const own = gates + 3 * p * j->hidden;
        int64_t      begin, end;
        gpunn__cpu_part(j->product[p].n, 3 * j->kernels->lanes, share->threads, share->index, &begin, &end);
        if (begin >= end) continue;
        if (!j->step->backward && gpunn__gemm_is_row(&j->product[p], j->kernels)) {
            gpunn__gemm_row(&j->product[p], j->kernels, begin, end, own);
            continue;
        }
        gpunn__gemm g = j->product[p];
        if (j->step->backward)
            g.a = own;
        else
            g.c = own;
        gpunn__gemm_block(&g, j->kernels, share->row, share->rows_end, begin, end, NULL);
    }
}

static void gpunn__recurrent_cells(const gpunn__recurrent_job *j, const gpunn__recurrent_share *share,
                                   int64_t s, float *gates)
{
    int64_t first, end;
    gpunn__cpu_part(j->hidden, 16, share->threads, share->index, &first, &end);
    for (int64_t n = share->row; n < share->rows_end && first < end; n++) {
        if (j->step->backward)
            gpunn__recurrent_backward_row(j, s, n, first, end - first, gates + n * j->width);
        else
            gpunn__recurrent_forward_row(j, gpunn__recurrent_time(j, s), n, first, end - first,
                                         gates + n * j->width);
    }
}

/* Barrier after each half of a step if threads share it. If one of the threads is not running, the first one
 * continues alone. Otherwise all would wait at every step for as long as another program computes. Returns
 * false if this thread is done. */
static bool gpunn__recurrent_barrier(gpunn__recurrent_share *share)
{
    if (share->threads == 1 || !gpunn__thread_barrier()) return true;
    if (share->index > 0) return false;
    share->threads = 1;
    return true;
}

static void gpunn__recurrent_task(void *arg, int index, int threads)
{
    const gpunn__recurrent_job *j = (const gpunn__recurrent_job *)arg;
    const bool                  backward = j->step->backward;
    gpunn__recurrent_share      share = {0, j->batch, threads, index};
    if (j->batch >= threads) {
        gpunn__cpu_part(j->batch, 1, threads, index, &share.row, &share.rows_end);
        share.threads = 1;
        share.index = 0;
    } else
        (void)gpunn__thread_barrier(); /* threads that slept before this task may come late */
    for (int64_t i = 0; i < j->last - j->first; i++) {
        const int64_t s = backward ? j->last - 1 - i : j->first + i;
        float        *gates = j->kept + (gpunn__recurrent_time(j, s) - j->origin) * j->batch * j->width;
        /* There is no state to multiply with, or no gradient to compute. */
        const bool idle = s == 0 &&
                          (backward ? j->step->grad_in[2].data == NULL : j->h_0 == NULL && j->products == 1);
        if (backward) gpunn__recurrent_cells(j, &share, s, gates);
        if (backward && !gpunn__recurrent_barrier(&share)) return;
        if (!idle) gpunn__recurrent_multiply(j, &share, gates);
        if (!gpunn__recurrent_barrier(&share)) return;
        if (!backward) gpunn__recurrent_cells(j, &share, s, gates);
        if (!backward && !gpunn__recurrent_barrier(&share)) return;
    }
}

/* Packs rows of B for a product over steps: `in` columns of x, then the h before each step. */
static void gpunn__recurrent_pack_before(const void *user, int64_t p, int64_t pc, int64_t column,
                                         int64_t count, int64_t width, float *packed)
{
    const gpunn__recurrent_job *j = (const gpunn__recurrent_job *)user;
    const gpunn_value          *in = &j->step->in[0];
    const int64_t               of_x = column < j->in ? gpunn__least(j->in - column, count) : 0;
    for (p += j->origin * j->batch; pc > 0; pc--, p++, packed += width) {
        if (of_x)
            memcpy(packed, (const float *)in->data + p * in->dim[2] + column, (size_t)of_x * sizeof *packed);
        if (of_x < count) {
            const float *before = gpunn__recurrent_before(j, gpunn__recurrent_time(j, p / j->batch),
                                                          p % j->batch);
            memcpy(packed + of_x, before + column + of_x - j->in, (size_t)(count - of_x) * sizeof *packed);
        }
        for (int64_t i = count; i < width; i++) packed[i] = 0;
    }
}

/* Runs a product, or with PREPARE raises *bytes to the workspace that it needs. All products share the
 * workspace. */
static void gpunn__recurrent_run(gpunn__cpu *cpu, gpunn__action action, gpunn__gemm *g, float *workspace,
                                 size_t *bytes)
{
    const int    threads = gpunn__gemm_threads(cpu, g);
    const size_t needed = gpunn__gemm_workspace(g, threads);
    if (action != GPUNN__PREPARE)
        gpunn__gemm_run(g, threads, workspace);
    else if (*bytes < needed)
        *bytes = needed;
}

/* Sets everything but the products, which gpunn__recurrent_products sets. */
static void gpunn__recurrent_open(gpunn__recurrent_job *j, const gpunn_step *step)
{
    memset(j, 0, offsetof(gpunn__recurrent_job, product));
    j->step = step;
    j->kernels = gpunn__gemm_choose();
    j->length = step->in[0].dim[0];
    j->batch = step->in[0].dim[1];
    j->in = step->in[0].dim[2];
    j->hidden = step->in[GPUNN__WEIGHTS + 1].dim[1];
    j->gates = gpunn__gates_of(step->op);
    j->width = (j->gates + (step->op != GPUNN_OP_RNN)) * j->hidden;
    j->directions = step->attr->bidirectional ? 2 : 1;
    j->products = step->op == GPUNN_OP_GRU ? 2 : 1;
    j->reset = (const float *)step->in[GPUNN__RESET].data;
}

static float *gpunn__recurrent_take(gpunn__arena *arena, int64_t count)
{
    return (float *)gpunn__arena_take(arena, (size_t)count * sizeof(float));
}

/* This direction's part of a state [directions, n, hidden]; NULL: none. */
static float *gpunn__recurrent_state(const gpunn__recurrent_job *j, void *state)
{
    return state ? (float *)state + j->direction * j->batch * j->hidden : NULL;
}

/* The final states in y, or their gradients: row 0 is h_n, row 1 is c_n. NULL: not requested. */
static float *gpunn__recurrent_final(const gpunn__recurrent_job *j, const gpunn_value *y, int row)
{
    const int64_t size = j->directions * j->batch * j->hidden;
    return j->step->attr->states ? gpunn__recurrent_state(j, (float *)y->data + (j->length + row) * size)
                                 : NULL;
}

static void gpunn__recurrent_copy(const gpunn__recurrent_job *j, float *to, const float *from)
{
    const size_t bytes = (size_t)(j->batch * j->hidden) * sizeof *to;
    if (to && from)
        memcpy(to, from, bytes);
    else if (to)
        memset(to, 0, bytes);
}

/* The biases that initialize the gates. Both biases are added up where a gate adds both products. */
static void gpunn__recurrent_bias(const gpunn__recurrent_job *j, float *bias)
{
    const gpunn_value *in = j->step->in + GPUNN__WEIGHTS + 4 * j->direction;
    const float       *ih = (const float *)in[2].data, *hh = (const float *)in[3].data;
    const int64_t      rows = j->gates * j->hidden, both = j->step->op == GPUNN_OP_GRU ? 2 * j->hidden : rows;
    if (ih == NULL)
        memset(bias, 0, (size_t)rows * sizeof *bias);
    else
        for (int64_t k = 0; k < rows; k++) bias[k] = k < both ? ih[k] + hh[k] : ih[k];
}

#define GPUNN__RECURRENT_ROWS 256

/* Number of threads for `steps` steps. It is at most one per sequence, or more threads that share each step's
 * columns where that outweighs two barriers. */
static int gpunn__recurrent_threads(const gpunn__cpu *cpu, const gpunn__recurrent_job *j, int64_t steps)
{
    enum { COLUMNS_WORK = 1 << 15 }; /* multiplications of a step per thread */
    const int64_t each = j->gates * j->hidden * j->hidden, shared = j->batch * each / COLUMNS_WORK;
    const int     threads = gpunn__cpu_threads(cpu, steps * j->batch * each / 8);
    return (int)gpunn__least(threads, shared > j->batch ? shared : j->batch);
}

/* Steps between two products over inputs or gates: as many as keep the gates in the cache. */
static int64_t gpunn__recurrent_chunk(const gpunn__recurrent_job *j)
{
    return gpunn__least((GPUNN__RECURRENT_ROWS + j->batch - 1) / j->batch, j->length);
}

/* Selects steps first .. last - 1. */
static void gpunn__recurrent_move(gpunn__recurrent_job *j, int64_t first, int64_t last)
{
    j->first = first;
    j->last = last;
    j->origin = gpunn__recurrent_time(j, j->direction ? last - 1 : first);
}

/* Fails if a sequence is empty or longer than x. */
static GPUNN__STATUS gpunn__recurrent_check(gpunn__cpu *cpu, const gpunn__recurrent_job *j)
{
    for (int64_t n = 0; n < j->batch; n++) {
        const int64_t length = gpunn__recurrent_length(j, n);
        if (length < 1 || length > j->length)
            return gpunn__cpu_fail(cpu, GPUNN_ERR_ARGUMENT,
                                   "length %lld at position %lld is outside 1 .. %lld; check the lengths",
                                   (long long)length, (long long)n, (long long)j->length);
    }
    return GPUNN_OK;
}

/* Starts a direction's forward pass from its first state. fill: packs its weights. */
static void gpunn__recurrent_start(gpunn__recurrent_job *j, float *packed, bool fill, float *bias)
{
    gpunn__recurrent_products(j);
    gpunn__recurrent_use_packed(j, packed, fill);
    gpunn__recurrent_bias(j, bias);
    gpunn__recurrent_copy(j, j->h, j->h_0);
    gpunn__recurrent_copy(j, j->c, j->c_0);
    for (int64_t n = 0; n < j->batch && j->reset; n++) gpunn__recurrent_reset(j, 0, n, 0, j->hidden);
}

static GPUNN__STATUS gpunn__recurrent_forward(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__recurrent_job j;
    gpunn__recurrent_open(&j, step);
    const int64_t states = j.batch * j.hidden, rows = j.gates * j.hidden, chunk = gpunn__recurrent_chunk(&j);
    const int64_t kept = (step->training ? j.length : chunk) * j.batch * j.width;
    const bool    run = action == GPUNN__FORWARD;
    if (run) {
        const gpunn_status status = gpunn__recurrent_check(cpu, &j);
        if (status != GPUNN_OK) return status;
    }
    const int64_t packed_count = (int64_t)(gpunn__recurrent_packed_bytes(&j) / sizeof(float));
    const int     threads = gpunn__recurrent_threads(cpu, &j, chunk);
    gpunn__arena  arena = {(char *)step->workspace, 0};
    float        *bias = gpunn__recurrent_take(&arena, rows);
    j.h = gpunn__recurrent_take(&arena, states);
    j.c = gpunn__recurrent_take(&arena, states);
    float     *packed = step->training ? gpunn__recurrent_take(&arena, packed_count) : (float *)step->cache;
    float     *gates = step->training ? (float *)step->saved : gpunn__recurrent_take(&arena, kept);
    const bool fill = step->training || step->cache_version != step->state->weights_version;
    float     *scratch = gpunn__recurrent_take(&arena, 0);
    size_t     scratch_bytes = 0;
    for (j.direction = 0; j.direction < j.directions; j.direction++) {
        j.h_0 = gpunn__recurrent_state(&j, step->in[GPUNN__H_0].data);
        j.c_0 = gpunn__recurrent_state(&j, step->in[GPUNN__C_0].data);
        if (run)
            gpunn__recurrent_start(&j, packed + (step->training ? 0 : j.direction * packed_count), fill,
                                   bias);
        else
            gpunn__recurrent_products(&j);
        for (int64_t first = 0; first < j.length; first += chunk) {
            gpunn__recurrent_move(&j, first, gpunn__least(first + chunk, j.length));
            j.kept = gates;
            if (run && step->training) j.kept += j.direction * kept + j.origin * j.batch * j.width;
            gpunn__gemm *const g = &j.product[j.products];
            g->m = (j.last - j.first) * j.batch;
            if (run) g->a = (const float *)step->in[0].data + j.origin * j.batch * j.in;
            g->c = j.kept;
            g->shift_col = bias;
            gpunn__recurrent_run(cpu, action, g, scratch, &scratch_bytes);
            if (run) gpunn_parallel(threads, gpunn__recurrent_task, &j);
        }
        if (!run || !step->attr->states) continue;
        gpunn__recurrent_copy(&j, gpunn__recurrent_final(&j, &step->out, 0), j.h);
        if (step->op == GPUNN_OP_LSTM)
            gpunn__recurrent_copy(&j, gpunn__recurrent_final(&j, &step->out, 1), j.c);
    }
    if (run) {
        step->cache_version = step->state->weights_version;
        return GPUNN_OK;
    }
    step->workspace_bytes = arena.bytes + scratch_bytes;
    if (step->training)
        step->saved_bytes = (size_t)(j.directions * kept) * sizeof(float);
    else
        step->cache_bytes = (size_t)(j.directions * packed_count) * sizeof(float);
    return GPUNN_OK;
}

/* Adds the contribution of these steps to `rows` rows of the gradients of W_ih and W_hh, which lie side by
 * side in sums. of_x, of_h: the columns of x and of h to compute. gate: offset of the gates that the first of
 * these rows produced. */
static void gpunn__recurrent_weights(gpunn__cpu *cpu, gpunn__action action, const gpunn__recurrent_job *j,
                                     int64_t gate, int64_t rows, bool of_x, bool of_h, float *sums,
                                     float *workspace, size_t *scratch)
{
    const int64_t        count = (j->last - j->first) * j->batch;
    gpunn__recurrent_job inputs = *j;
    if (!of_x) inputs.in = 0;
    gpunn__gemm g = gpunn__gemm_make(rows, of_h ? inputs.in + j->hidden : j->in, count, NULL, true, NULL,
                                     false, sums, j->last < j->length);
    g.a_col = j->width;
    g.c_row = j->in + j->hidden;
    g.pack_b = gpunn__recurrent_pack_before;
    g.pack_user = &inputs;
    if (action == GPUNN__BACKWARD) {
        g.a = j->kept + gate;
        if (!of_x) g.c += j->in;
    }
    gpunn__recurrent_run(cpu, action, &g, workspace, scratch);
}

/* to (=, or += if add) the first columns of from, whose rows are from_row apart. */
static void gpunn__recurrent_give(gpunn_value *to, bool add, const float *from, int64_t from_row)
{
    float *GPUNN__RESTRICT y = (float *)to->data;
    for (int64_t i = 0; i < to->dim[0] && y; i++, y += to->dim[1], from += from_row)
        for (int64_t k = 0; k < to->dim[1]; k++) y[k] = add ? y[k] + from[k] : from[k];
}

/* Adds the contribution of these steps, from the gradients of their gates, to dx and, in sums, to the
 * direction's weights and biases. After the last of them, the sums are stored to the gradients. */
static void gpunn__recurrent_gradients(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action,
                                       gpunn__recurrent_job *j, float *sums, float *weight_sums,
                                       float *workspace, size_t *scratch)
{
    static const float one = 1;
    const int64_t      count = (j->last - j->first) * j->batch, hidden = j->hidden, wide = j->in + hidden;
    const int64_t      rows = j->gates * hidden, first = GPUNN__WEIGHTS + 4 * j->direction;
    const bool run = action == GPUNN__BACKWARD, gru = step->op == GPUNN_OP_GRU, later = j->last < j->length;
    gpunn_value *const grad = step->grad_in + first;
    const bool *const  add = step->accumulate + first;
    const bool         of_x = grad[0].data != NULL, of_h = grad[1].data != NULL;
    if (step->grad_in[0].data) {
        gpunn__gemm g = gpunn__gemm_make(count, j->in, rows, j->kept, false, step->in[first].data, false,
                                         step->grad_in[0].data, step->accumulate[0] || j->direction);
        g.a_row = j->width;
        if (run) g.c += j->origin * j->batch * j->in;
        gpunn__recurrent_run(cpu, action, &g, workspace, scratch);
    }
    if (of_x || of_h)
        gpunn__recurrent_weights(cpu, action, j, 0, gru ? 2 * hidden : rows, of_x, of_h, weight_sums,
                                 workspace, scratch);
    for (int i = 0; i < 2 && gru; i++) { /* n for x, q for h */
        float *to = weight_sums ? weight_sums + 2 * hidden * wide : NULL;
        if (i ? of_h : of_x)
            gpunn__recurrent_weights(cpu, action, j, (2 + i) * hidden, hidden, i == 0, i == 1, to, workspace,
                                     scratch);
    }
    for (int i = 0; i < 2 && run && j->first == 0; i++)
        gpunn__recurrent_give(&grad[i], add[i], weight_sums + i * j->in, wide);
    if (grad[2].data == NULL && grad[3].data == NULL) return;
    gpunn__gemm g = gpunn__gemm_make(1, gru ? j->width : rows, count, &one, false, j->kept, false, sums,
                                     later);
    g.a_col = 0;
    g.b_row = j->width;
    gpunn__recurrent_run(cpu, action, &g, workspace, scratch);
    for (int i = 2; i < 4 && run && j->first == 0; i++) {
        float *to = (float *)grad[i].data;
        for (int64_t k = 0; to && k < rows; k++) {
            const float sum = sums[gru && i == 3 && k >= 2 * j->hidden ? k + j->hidden : k];
            to[k] = add[i] ? to[k] + sum : sum;
        }
    }
}

static GPUNN__STATUS gpunn__recurrent_backward(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__recurrent_job j;
    gpunn__recurrent_open(&j, step);
    const int64_t states = j.batch * j.hidden, share = j.length * j.batch * j.width,
                  chunk = gpunn__recurrent_chunk(&j);
    const bool   lstm = step->op == GPUNN_OP_LSTM, run = action == GPUNN__BACKWARD;
    const int    threads = gpunn__recurrent_threads(cpu, &j, chunk);
    gpunn__arena arena = {(char *)step->workspace, 0};
    gpunn__recurrent_products(&j);
    float *zeros = gpunn__recurrent_take(&arena, j.hidden);
    j.h = gpunn__recurrent_take(&arena, states);
    j.c = gpunn__recurrent_take(&arena, states);
    float *packed = gpunn__recurrent_take(&arena,
                                          (int64_t)(gpunn__recurrent_packed_bytes(&j) / sizeof *packed));
    float *sums = gpunn__recurrent_take(&arena, j.width);
    float *weight_sums = gpunn__recurrent_take(&arena, j.gates * j.hidden * (j.in + j.hidden));
    float *scratch = gpunn__recurrent_take(&arena, 0);
    size_t scratch_bytes = 0;
    j.zeros = zeros;
    if (run) memset(zeros, 0, (size_t)j.hidden * sizeof *zeros);
    for (j.direction = 0; j.direction < j.directions; j.direction++) {
        j.h_0 = gpunn__recurrent_state(&j, step->in[GPUNN__H_0].data);
        j.c_0 = gpunn__recurrent_state(&j, step->in[GPUNN__C_0].data);
        if (run) {
            gpunn__recurrent_products(&j);
            gpunn__recurrent_use_packed(&j, packed, true);
            gpunn__recurrent_copy(&j, j.h, gpunn__recurrent_final(&j, &step->grad_out, 0));
            gpunn__recurrent_copy(&j, j.c, lstm ? gpunn__recurrent_final(&j, &step->grad_out, 1) : NULL);
        }
        for (int64_t first = (j.length - 1) / chunk * chunk; first >= 0; first -= chunk) {
            gpunn__recurrent_move(&j, first, gpunn__least(first + chunk, j.length));
            if (run) {
                j.kept = (float *)step->saved + j.direction * share + j.origin * j.batch * j.width;
                gpunn_parallel(threads, gpunn__recurrent_task, &j);
            }
            gpunn__recurrent_gradients(cpu, step, action, &j, sums, weight_sums, scratch, &scratch_bytes);
        }
        for (int64_t n = 0; n < j.batch && j.reset && run; n++) gpunn__recurrent_reset(&j, 0, n, 0, j.hidden);
        for (int i = GPUNN__H_0; i <= GPUNN__C_0 && run; i++) {
            float       *to = gpunn__recurrent_state(&j, step->grad_in[i].data);
            const float *from = i == GPUNN__H_0 ? j.h : j.c;
            for (int64_t k = 0; to && k < states; k++)
                to[k] = step->accumulate[i] ? to[k] + from[k] : from[k];
        }
    }
    if (!run) step->workspace_bytes = arena.bytes + scratch_bytes;
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_rnn(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return step->backward ? gpunn__recurrent_backward(cpu, step, action)
                          : gpunn__recurrent_forward(cpu, step, action);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_lstm(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__cpu_rnn(cpu, step, action);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_gru(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__cpu_rnn(cpu, step, action);
}
