#include "base/errors.h"
#include "base/memory.h"
#include "base/shapes.h"
#include "plan/plan.h"
#include "run/run.h"
#include "run/inspect.h"

/* ==== >>run/recompute ==================================================================================== *
 * Implements gpunn_recompute_within. The values that a loss is computed from, in execution order, are cut
 * into segments of about equal bytes. Each cut is where few bytes of live values cross it; values that cross
 * are held. The first few become checkpoint segments, which are recomputed (>>plan/backward), because
 * their values wait longest for the backward pass. */
typedef struct gpunn__segments {
    gpunn_model *model;
    /* of each tensor's value; 0: it is no value, or shares its operand's memory */
    size_t *bytes;
    size_t *crossing; /* after each tensor: bytes of earlier values that later tensors read */
    /* id of the last tensor that reads it; for the loss its own; 0: the loss does not depend on it */
    int    *last;
    int    *part;          /* the segments before this call */
    size_t  whole;         /* sum of bytes */
    size_t  budget, least; /* least: the fewest bytes that any choice needed */
    int64_t batch;
} gpunn__segments;

enum { GPUNN__MAX_SEGMENTS = 64 };

static size_t gpunn__segments_tables(gpunn__segments *s, char *base)
{
    gpunn__arena arena = {base, 0};
    const size_t n = (size_t)s->model->tensor_count;
    s->bytes = (size_t *)gpunn__arena_take(&arena, n * sizeof *s->bytes);
    s->crossing = (size_t *)gpunn__arena_take(&arena, n * sizeof *s->crossing);
    s->last = (int *)gpunn__arena_take(&arena, n * sizeof *s->last);
    s->part = (int *)gpunn__arena_take(&arena, n * sizeof *s->part);
    return arena.bytes;
}

/* Fills the tables: readers, bytes, and bytes crossing each place. */
static void gpunn__segments_measure(gpunn__segments *s, const gpunn_tensor *loss)
{
    const gpunn_model *model = s->model;
    for (int id = 0; id < model->tensor_count; id++) s->part[id] = model->tensors[id]->part;
    s->last[loss->id] = loss->id;
    for (int id = loss->id; id >= 0; id--) {
        const gpunn_tensor *t = model->tensors[id];
        if (s->last[id] == 0 || t->kind != GPUNN__VALUE) continue;
        for (int i = 0; i < t->input_count; i++) {
            const int reader = t->op == GPUNN_OP_RESHAPE ? s->last[id] : id;
            if (t->inputs[i] && s->last[t->inputs[i]->id] < reader) s->last[t->inputs[i]->id] = reader;
        }
        if (t->op != GPUNN_OP_RESHAPE)
            s->bytes[id] = (size_t)gpunn__count(t, s->batch) * gpunn_dtype_size(t->dtype);
    }
    for (int id = 0; id < loss->id; id++) { /* prefix sums of differences, which may wrap around */
        s->whole += s->bytes[id];
        s->crossing[id] += s->bytes[id];
        s->crossing[s->last[id]] -= s->bytes[id];
        s->crossing[id + 1] += s->crossing[id];
    }
}

/* Chooses the ends of `count` segments. Each cut lies where the fewest bytes cross, at most a
 * quarter of a segment from its ideal place. */
static void gpunn__segments_cut(const gpunn__segments *s, int count, int cut[GPUNN__MAX_SEGMENTS])
{
    double before = 0;
    for (int k = 0; k < count; k++) cut[k] = -1;
    for (int id = 0; id < s->model->tensor_count; id++) {
        if (s->bytes[id] == 0) continue;
        before += (double)s->bytes[id];
        const double place = before * count / (double)s->whole;
        const int    k = (int)(place + 0.5);
        if (k > 0 && k < count && fabs(place - k) <= 0.25 &&
            (cut[k] < 0 || s->crossing[id] < s->crossing[cut[k]]))
            cut[k] = id;
    }
}

/* Makes the first `again` of `count` segments the model's checkpoint segments. */
static void gpunn__segments_mark(const gpunn__segments *s, int count, int again)
{
    gpunn_model *model = s->model;
    int          cut[GPUNN__MAX_SEGMENTS], segment = 1;
    gpunn__segments_cut(s, count, cut);
    model->parts = again;
    for (int id = 0; id < model->tensor_count; id++) {
        int end = -1; /* last id of this segment */
        for (int k = segment; k < count && end < 0; k++) end = cut[k];
        model->tensors[id]->part = s->bytes[id] && segment <= again && s->last[id] <= end ? segment : 0;
        while (segment < count && cut[segment] <= id) segment++;
    }
}

/* Whether a training step fits in the budget with these segments. Returns
 * false on failure too, which *status reports. */
static bool gpunn__segments_fit(gpunn__segments *s, const gpunn__request *request, int count, int again,
                                gpunn_status *status)
{
    gpunn__segments_mark(s, count, again);
    gpunn__plan *plan = gpunn__plan_make(s->model, request, s->batch);
    if (plan == NULL) {
        *status = s->model->dev->error.status;
        return false;
    }
    const size_t needed = gpunn__footprint_of(s->model, plan, true, 0).together;
    gpunn__plan_free(s->model->dev, plan);
    if (needed < s->least) s->least = needed;
    return needed <= s->budget;
}

/* Tries increasing numbers of segments. For each number it finds the fewest that must be recomputed. */
static GPUNN__STATUS gpunn__segments_choose(gpunn__segments *s, const gpunn__request *request)
{
    gpunn_status status = GPUNN_OK;
    int          best_count = 1, best = 0;
    bool         found = gpunn__segments_fit(s, request, 1, 0, &status);
    const bool   all = found;
    for (int count = 2; count <= GPUNN__MAX_SEGMENTS && !all && status == GPUNN_OK;
         count += (count + 1) / 2) {
        int few = 1,
            /* less than the best fraction, or all but the last */
            many = found ? (best * count - 1) / best_count : count - 1;
        if (many < few || !gpunn__segments_fit(s, request, count, many, &status)) continue;
        while (few < many && status == GPUNN_OK) {
            const int middle = (few + many) / 2;
            if (gpunn__segments_fit(s, request, count, middle, &status))
                many = middle;
            else
                few = middle + 1;
        }
        found = true, best_count = count, best = many;
    }
    if (status != GPUNN_OK) return status;
    gpunn__segments_mark(s, best_count, best);
    if (found) return GPUNN_OK;
    return gpunn__fail(s->model->dev, GPUNN_ERR_MEMORY,
                       "gpunn_recompute_within: a training step of batch %lld holds at least %zu bytes, but "
                       "%zu are allowed; allow as many, or use a smaller batch",
                       (long long)s->batch, s->least, s->budget);
}

GPUNN_API gpunn_status gpunn_recompute_within(gpunn_tensor *loss, int64_t batch_size, size_t bytes)
{
    gpunn_status status = gpunn__check_loss(loss, "gpunn_recompute_within");
    if (status != GPUNN_OK) return status;
    gpunn_model  *model = loss->model;
    gpunn_device *dev = model->dev;
    const int     parts = model->parts;
    if (batch_size < 1)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_recompute_within: the batch is %lld; give 1 or more",
                           (long long)batch_size);
    gpunn__segments s;
    memset(&s, 0, sizeof s);
    s.model = model, s.batch = batch_size, s.budget = bytes, s.least = SIZE_MAX;
    const size_t size = gpunn__segments_tables(&s, NULL);
    char        *tables = (char *)gpunn__calloc(dev, size);
    if (tables == NULL) return GPUNN_ERR_MEMORY;
    (void)gpunn__segments_tables(&s, tables);
    const gpunn__request request = gpunn__request_of(&loss, 1, GPUNN__TRAIN);
    gpunn__take_largest(model);
    gpunn__segments_measure(&s, loss);
    status = gpunn__segments_choose(&s, &request);
    gpunn__take_found(model);
    if (status == GPUNN_OK) gpunn__invalidate(model);
    for (int id = 0; id < model->tensor_count && status != GPUNN_OK; id++)
        model->tensors[id]->part = s.part[id];
    if (status != GPUNN_OK) model->parts = parts;
    gpunn__free(dev, tables, size);
    return status;
}
