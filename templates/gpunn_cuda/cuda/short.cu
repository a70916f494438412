#include "cuda/short.h"
#include "cuda/elementwise.h"

#ifndef GPUNN__SHORT
#define GPUNN__SHORT \
    1024 /* most elements of a short step, four per thread; a product may have twice as many */
#endif

static __global__ void __launch_bounds__(GPUNN__THREADS, 1)
    gpunn__short_kernel(const __grid_constant__ gpunn__short_steps steps)
{
    GPUNN__FOLLOW();
    gpunn__short_make(steps.step, steps.count);
}

static bool gpunn__short_map_of(const gpunn_step *step, gpunn__short_map *m)
{
    const gpunn__map_facts *facts = gpunn__map_facts_for(step->op);
    const gpunn_value      *from[GPUNN__FROM_COUNT] = {NULL, NULL, NULL, &step->out, &step->grad_out};
    unsigned                computed = 0;
    memset(m, 0, sizeof *m);
    if (step->out.count > GPUNN__SHORT) return false;
    m->op = step->op;
    m->count = (int)step->out.count;
    memcpy(m->attr, step->attr->value, sizeof m->attr);
    for (int i = 0; i < step->input_count; i++) {
        const gpunn_value *result = i == 0 ? &step->out : NULL,
                          *to = step->backward ? &step->grad_in[i] : result;
        const bool whole = step->in[i].count == step->out.count;
        from[i] = &step->in[i];
        if (!whole && (step->in[i].count != 1 || (step->backward && to->data))) return false;
        if (to == NULL || to->data == NULL) continue;
        computed |= 1u << i;
        m->to[i] = to->data;
        m->to_dtype[i] = to->dtype;
        m->add[i] = step->backward && step->accumulate[i];
    }
    for (int k = 0; k < (step->backward ? (int)GPUNN__FROM_COUNT : step->input_count); k++) {
        if (from[k] == NULL || (step->backward && !(facts->readers[k] & computed))) continue;
        m->from[k] = from[k]->data;
        m->from_dtype[k] = from[k]->dtype;
        m->single[k] = from[k]->count != step->out.count;
    }
    return true;
}

static bool gpunn__short_sum_of(const gpunn_step *step, gpunn__short_sum *s)
{
    const gpunn_value *x = step->backward ? &step->grad_in[0] : &step->in[0],
                      *y = step->backward ? &step->grad_out : &step->out;
    memset(s, 0, sizeof *s);
    if (!gpunn__is_float(step->in[0].dtype) || step->in[0].count > GPUNN__SHORT || step->out.count != 1 ||
        x->data == NULL)
        return false;
    s->x = x->data, s->x_type = x->dtype;
    s->y = y->data, s->y_type = y->dtype;
    s->count = (int)step->in[0].count;
    s->divisor = step->attr->mean ? (float)s->count : 1;
    s->add = step->backward && step->accumulate[0];
    return true;
}

/* Whether one block computes p in less time than a launch takes. */
static bool gpunn__short_product_of(const gpunn__cuda *cuda, const gpunn__product *p, gpunn__short *item)
{
    if (!gpunn__product_is_small(cuda, p) || p->m * p->n > 2 * GPUNN__SHORT) return false;
    const int64_t rounds = (p->m * p->n + GPUNN__THREADS - 1) / GPUNN__THREADS;
    item->op = GPUNN_OP_LINEAR;
    item->product = *p;
    item->tiled = gpunn__product_tiles(p) <= GPUNN__SHORT_TILES;
    return item->tiled || rounds * ((p->k + 7) / 8) <= GPUNN__SHORT_EIGHTS;
}

/* Describes the products of a linear layer, two for a backward step, and returns their number. Returns 0 if
 * they are not short or do not cover the whole step. */
static int gpunn__short_linear_of(const gpunn__cuda *cuda, gpunn_step *step, gpunn__short *item)
{
    gpunn__product whole;
    if (gpunn__is_blocks(step->in[1].dtype)) return 0;
    if (!step->backward)
        return gpunn__linear_whole(step, &whole) && gpunn__short_product_of(cuda, &whole, item);
    const gpunn__linear_gradients g = gpunn__linear_gradients_of(step);
    if ((step->grad_in[2].data && !g.sums) || (step->fused->activated && step->grad_in[0].data && !g.derived))
        return 0;
    for (int i = 0; i < g.count; i++)
        if (!gpunn__short_product_of(cuda, &g.product[i], &item[i])) return 0;
    return g.count;
}

/* Describes how a block computes a step, in one or two items, and returns their number. Returns 0 if it is
 * not short. */
static int gpunn__short_of(const gpunn__cuda *cuda, gpunn_step *step, gpunn__short *item)
{
    item->op = step->op;
    item->backward = step->backward;
    item->tiled = false;
    switch (step->op) {
    case GPUNN_OP_LINEAR: return gpunn__short_linear_of(cuda, step, item);
    case GPUNN_OP_SUM: return gpunn__short_sum_of(step, &item->sum);
    case GPUNN_OP_CROSS_ENTROPY:
    case GPUNN_OP_NLL:
        item->loss = gpunn__class_loss_of(cuda, step);
        return step->in[0].count <= GPUNN__SHORT && item->loss.along.out && item->loss.along.lanes <= 32;
    default: return (int)step->op < GPUNN__MAP_COUNT && gpunn__short_map_of(step, &item->map);
    }
}

GPUNN__INTERNAL bool gpunn__short_fused(const gpunn_step *step)
{
    const gpunn_kernel *kernel = step->fusion->kernel;
    int64_t             largest = 1;
    for (int i = 0; i < step->input_count; i++)
        if (step->in[i].count > largest) largest = step->in[i].count;
    for (int i = 0; i < step->input_count; i++) {
        const gpunn_dtype dtype = step->in[i].dtype;
        if (gpunn__is_float(dtype) && step->in[i].count != 1 && step->in[i].count != largest) return false;
    }
    for (int k = 0; k < kernel->node_count; k++) {
        const char  *text = kernel->nodes[k].text; /* starts with the op's name and ends with the shape */
        const size_t length = strlen(text), word = strcspn(text, " ");
        int          op = 1;
        while (op < GPUNN_OP_COUNT && (strncmp(gpunn_op_name((gpunn_op)op), text, word) != 0 ||
                                       gpunn_op_name((gpunn_op)op)[word] != 0))
            op++;
        const bool number = length >= 2 && strcmp(text + length - 2, "[]") == 0;
        const bool reduces = op == GPUNN_OP_SUM || op == GPUNN_OP_CROSS_ENTROPY || op == GPUNN_OP_NLL;
        if (!(op < GPUNN__MAP_COUNT || (reduces && number))) return false;
    }
    return largest <= GPUNN__SHORT;
}

GPUNN__INTERNAL gpunn_step *gpunn__short_gather(const gpunn__cuda *cuda, gpunn_step *step,
                                                gpunn__short_steps *shorts)
{
    for (shorts->count = 0; shorts->count + 2 <= GPUNN__SHORT_STEPS && step < cuda->end; step++) {
        const int items = gpunn__short_of(cuda, step, &shorts->step[shorts->count]);
        if (items == 0) break;
        shorts->count += items;
    }
    return step;
}

GPUNN__INTERNAL gpunn_status gpunn__short_run(gpunn__cuda *cuda, bool joins)
{
    gpunn__short_steps shorts;
    gpunn_step *const first = cuda->next, *const step = gpunn__short_gather(cuda, first, &shorts);
    if (step - first < 2) return GPUNN_OK;
    cuda->next = step;
    if (joins && step == cuda->end && shorts.count <= GPUNN__SHORT_BEFORE_UPDATE) {
        cuda->with_update = first;
        return GPUNN_OK;
    }
    return GPUNN__LAUNCH(cuda, gpunn__short_kernel, 1, GPUNN__THREADS, shorts);
}
