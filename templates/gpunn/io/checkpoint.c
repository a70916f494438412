#include "io/checkpoint.h"
#include "base/errors.h"
#include "base/memory.h"
#include "cpu/optimizers.h"
#include "train/optimizer.h"
#include "io/load.h"

GPUNN__INTERNAL int64_t gpunn__epoch_note(const gpunn__epoch *epoch, int i)
{
    int64_t bits = 0;
    if (i <= GPUNN__CURVES)
        memcpy(&bits, i < GPUNN__CURVES ? &epoch->value[i] : &epoch->lr, sizeof(float));
    else
        memcpy(&bits, &epoch->seconds, sizeof(double));
    return bits;
}

static void gpunn__epoch_take(gpunn__epoch *epoch, int i, int64_t bits)
{
    if (i <= GPUNN__CURVES)
        memcpy(i < GPUNN__CURVES ? &epoch->value[i] : &epoch->lr, &bits, sizeof(float));
    else
        memcpy(&epoch->seconds, &bits, sizeof(double));
}

/* Entry number `at` of the history. Returns false if it is missing or not an integer. */
static bool gpunn__history_note(const gpunn__archive *a, int index, int64_t at, int64_t *bits)
{
    char number[24];
    (void)snprintf(number, sizeof number, "%lld", (long long)at);
    const gpunn__entry *note = gpunn__note(a, index, "fit.history.", number);
    return note && gpunn__slice_integer(&note->text, bits);
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__resume_history(const gpunn__archive *a, int index,
                                                    gpunn__fit_record *record)
{
    gpunn_device *dev = a->reader.dev;
    int64_t       count = (int64_t)record->epochs * GPUNN__EPOCH_NOTES, bits;
    record->history = NULL;
    record->capacity = 0;
    if (count == 0) return GPUNN_OK;
    bool good = record->best_epoch <= record->epochs &&
                gpunn__history_note(a, index, count - 1, &bits); /* before allocating memory */
    if (good) {
        record->history = (gpunn__epoch *)gpunn__realloc(dev, NULL, 0,
                                                         (size_t)record->epochs * sizeof *record->history);
        if (record->history == NULL) return GPUNN_ERR_MEMORY;
        record->capacity = record->epochs;
    }
    for (int64_t at = 0; at < count && good; at++) {
        good = gpunn__history_note(a, index, at, &bits);
        if (good)
            gpunn__epoch_take(&record->history[at / GPUNN__EPOCH_NOTES], (int)(at % GPUNN__EPOCH_NOTES),
                              bits);
    }
    return good ? GPUNN_OK
                : gpunn__fail(dev, GPUNN_ERR_FORMAT,
                              "gpunn_checkpoint_load: '%s' is damaged: its history does not have %d epochs; "
                              "use an older checkpoint",
                              gpunn__tail(a->reader.path), record->epochs);
}

GPUNN__INTERNAL int gpunn__resume_field_count(bool averages)
{
    return (int)(sizeof gpunn__resume_fields / sizeof gpunn__resume_fields[0]) - (averages ? 0 : 2);
}

GPUNN__INTERNAL const char *gpunn__resume_index(const gpunn__resume_field *field, int i, char text[16])
{
    text[0] = 0;
    if (field->count > 1) (void)snprintf(text, 16, "%d", i);
    return text;
}

/* Reads the counters and settings of the state, each from an entry of its own. */
static GPUNN__STATUS gpunn__resume_read_fields(const gpunn__archive *a, int number, bool averages,
                                               gpunn__resume *resume)
{
    for (int f = number ? GPUNN__RUN_FIELDS : 0; f < gpunn__resume_field_count(averages); f++) {
        const gpunn__resume_field *field = &gpunn__resume_fields[f];
        for (int i = 0; i < field->count; i++) {
            char                index[16], shown[128];
            int64_t             value = 0;
            const gpunn__entry *note = gpunn__note(a, number, field->name,
                                                   gpunn__resume_index(field, i, index));
            if (note == NULL && i >= field->late) continue;
            if (note == NULL || !gpunn__slice_integer(&note->text, &value) ||
                (field->maximum >= 0 && (value < 0 || value > field->maximum)))
                return gpunn__fail(a->reader.dev, GPUNN_ERR_FORMAT,
                                   "gpunn_checkpoint_load: '%s' is damaged: its entry '%s%s' is %s; use an "
                                   "older checkpoint",
                                   gpunn__tail(a->reader.path), field->name, index,
                                   note ? gpunn__printable(&note->text, shown) : "missing");
            memcpy((char *)resume + field->offset + (size_t)i * field->size, &value, field->size);
        }
    }
    return GPUNN_OK;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__resume_read(const gpunn__archive *a, int number, gpunn__resume *resume)
{
    gpunn_device *dev = a->reader.dev;
    const char   *path = gpunn__tail(a->reader.path), *function = "gpunn_checkpoint_load",
               *name = resume->opt.name;
    const gpunn__entry *version = gpunn__table_find(&a->notes, "", "version"),
                       *kind = gpunn__note(a, number, "optimizer", "");
    const gpunn_update rule = resume->opt.rule;
    bool               averages = gpunn__has_averages(a, number);
    char               shown[128];
    if (!gpunn__is_checkpoint(a) || version == NULL || kind == NULL)
        return gpunn__fail(dev, GPUNN_ERR_FORMAT, "%s: '%s' holds weights but no checkpoint; use gpunn_load",
                           function, path);
    if (!gpunn__slice_is(&version->text, GPUNN__CHECKPOINT_VERSION))
        return gpunn__fail(
            dev, GPUNN_ERR_FORMAT,
            "%s: '%s' has version %s, but this gpunn.h reads version " GPUNN__CHECKPOINT_VERSION
            "; use the gpunn.h that wrote it",
            function, path, gpunn__printable(&version->text, shown));
    if (!gpunn__slice_is(&kind->text, name))
        return gpunn__fail(
            dev, GPUNN_ERR_STATE,
            "%s: '%s' was saved with %s, but the optimizer is %s; create the one that was saved", function,
            path, gpunn__printable(&kind->text, shown), name);
    if (averages && !resume->opt.uses[GPUNN__AVERAGE])
        return gpunn__fail(dev, GPUNN_ERR_STATE,
                           "%s: '%s' was saved with averages of the weights, which %s does not keep; call "
                           "gpunn_set_ema first",
                           function, path, name);
    gpunn_status status = gpunn__resume_read_fields(a, number, averages, resume);
    if (status != GPUNN_OK) return status;
    if (!averages) gpunn__average_start(&resume->opt);
    gpunn_schedule_args checked = resume->opt.schedule;
    checked.type = resume->opt.schedule.type = (gpunn_schedule_type)resume->schedule_type;
    for (int k = 0; k < GPUNN__AVERAGE; k++) { /* reject a checkpoint with other states */
        const float *setting = resume->opt.rule.setting;
        const char  *key = gpunn__rules[rule.kind].state[k];
        if (gpunn__has_state(rule.kind, setting, k) == resume->opt.uses[k]) continue;
        return gpunn__fail(dev, GPUNN_ERR_STATE,
                           "%s: '%s' was saved with %s %g, but %s has %s %g; create it with the saved value",
                           function, path, key, (double)gpunn__setting_of(rule.kind, setting, key), name, key,
                           (double)gpunn__setting_of(rule.kind, rule.setting, key));
    }
    char place[320];
    (void)snprintf(place, sizeof place, "%s: '%s' is damaged: ", function, path);
    dev->place = place;
    /* a copy, because it replaces zeros by defaults */
    status = gpunn__schedule_check(dev, &checked);
    dev->place = NULL;
    return status;
}
