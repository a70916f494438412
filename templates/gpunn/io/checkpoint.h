#ifndef GPUNN__IO_CHECKPOINT_H
#define GPUNN__IO_CHECKPOINT_H
#include "train/schedule.h"
#include "io/safetensors.h"

/* ==== >>io/checkpoint =================================================================================== */
/* The metadata of a training checkpoint: a table of fields (gpunn__resume_fields) and the functions that read
 * them. io/save writes them. */

#define GPUNN__CHECKPOINT_VERSION "4"

/* of one optimizer; only the first of a checkpoint also has the run's fields */
typedef struct gpunn__resume {
    gpunn_optimizer opt; /* a copy */
    gpunn_run_state state;
    int             schedule_type;
    bool            loader; /* whether a loader was saved */
    int64_t         epoch, position;
    int64_t         batch; /* samples per batch, over all ranks; 0: saved by an earlier version */
    uint64_t        seed;
} gpunn__resume;

/* One metadata string. It is the field's bytes as a decimal integer, so floats are restored bit for bit. */
typedef struct gpunn__resume_field {
    const char *name;
    size_t      offset, size;
    int         count;   /* more than 1: an array */
    int64_t     maximum; /* the value is 0 .. maximum; -1: any bits */
    int         late;    /* values from this index on may be missing in files of earlier versions; then 0 */
} gpunn__resume_field;

#define GPUNN__ANY (-1)
#define GPUNN__FIELD(name, member, count, maximum, late)                                                 \
    {                                                                                                    \
        name, offsetof(gpunn__resume, member), sizeof(((gpunn__resume *)NULL)->member) / (count), count, \
            maximum, late                                                                                \
    }
#define GPUNN__FIELDS(name, member, count, maximum) GPUNN__FIELD(name, member, count, maximum, count)
#define GPUNN__OPTIMIZER(member, maximum) GPUNN__FIELDS("optimizer." #member, opt.member, 1, maximum)
#define GPUNN__SCHEDULE(member, maximum) GPUNN__FIELDS("schedule." #member, opt.schedule.member, 1, maximum)
enum { GPUNN__RUN_FIELDS = 7 }; /* the first fields, which belong to the run, not to an optimizer */
static const gpunn__resume_field gpunn__resume_fields[] = {
    GPUNN__FIELDS("random.seed", state.seed, 1, GPUNN__ANY),
    GPUNN__FIELDS("random.step", state.step, 1, GPUNN__ANY),
    GPUNN__FIELDS("loader", loader, 1, 1),
    GPUNN__FIELDS("loader.epoch", epoch, 1, GPUNN__COUNTER),
    GPUNN__FIELDS("loader.position", position, 1, GPUNN__COUNTER),
    GPUNN__FIELDS("loader.seed", seed, 1, GPUNN__ANY),
    GPUNN__FIELD("loader.batch", batch, 1, GPUNN__COUNTER, 0),
    GPUNN__FIELD("optimizer.setting.", opt.rule.setting, GPUNN_SETTINGS, GPUNN__ANY, 8),
    GPUNN__OPTIMIZER(step_count, GPUNN__COUNTER),
    GPUNN__OPTIMIZER(lr, GPUNN__ANY),
    GPUNN__OPTIMIZER(clip_norm, GPUNN__ANY),
    GPUNN__OPTIMIZER(clip_value, GPUNN__ANY),
    GPUNN__FIELDS("optimizer.loss_scale.", opt.kept_scale, 3, GPUNN__ANY),
    GPUNN__FIELDS("schedule.type", schedule_type, 1, GPUNN_SCHEDULE_PLATEAU),
    GPUNN__SCHEDULE(total_steps, GPUNN__ANY),
    GPUNN__SCHEDULE(step_size, GPUNN__ANY),
    GPUNN__SCHEDULE(warmup_steps, GPUNN__ANY),
    GPUNN__FIELDS("schedule.milestones.", opt.schedule.milestones, 16, GPUNN__ANY),
    GPUNN__SCHEDULE(gamma, GPUNN__ANY),
    GPUNN__SCHEDULE(min_lr, GPUNN__ANY),
    GPUNN__SCHEDULE(pct_start, GPUNN__ANY),
    GPUNN__SCHEDULE(div_factor, GPUNN__ANY),
    GPUNN__SCHEDULE(final_div_factor, GPUNN__ANY),
    GPUNN__SCHEDULE(factor, GPUNN__ANY),
    GPUNN__SCHEDULE(threshold, GPUNN__ANY),
    GPUNN__SCHEDULE(patience, GPUNN__ANY),
    GPUNN__SCHEDULE(cooldown, GPUNN__ANY),
    GPUNN__SCHEDULE(maximize, 1),
    GPUNN__FIELDS("schedule.step", opt.schedule_step, 1, GPUNN__COUNTER),
    GPUNN__FIELDS("schedule.plateau_scale", opt.plateau_scale, 1, GPUNN__ANY),
    GPUNN__FIELDS("schedule.plateau_best", opt.plateau_best, 1, GPUNN__ANY),
    GPUNN__FIELDS("schedule.plateau_bad", opt.plateau_bad, 1, INT32_MAX / 2),
    GPUNN__FIELDS("schedule.plateau_cooldown", opt.plateau_cooldown, 1, INT32_MAX / 2),
    GPUNN__FIELDS("fit.loss", opt.fit.loss, 1, INT32_MAX / 2),
    GPUNN__FIELDS("fit.validation", opt.fit.validation, 1, 1),
    GPUNN__FIELDS("fit.best", opt.fit.best, 1, GPUNN__ANY),
    GPUNN__FIELDS("fit.best_epoch", opt.fit.best_epoch, 1, INT32_MAX / 2),
    GPUNN__FIELDS("fit.epochs", opt.fit.epochs, 1, INT32_MAX / 2),
    /* from here on: only if there are averages */
    GPUNN__FIELDS("average.decay", opt.average_decay, 1, GPUNN__ANY),
    GPUNN__FIELDS("average.count", opt.averaged, 1, GPUNN__COUNTER),
};
#undef GPUNN__ANY
#undef GPUNN__FIELDS
#undef GPUNN__OPTIMIZER
#undef GPUNN__SCHEDULE

/* After these fields follow "fit.history." and a number, for each value of each epoch in the history: the
 * bits of the value. */
enum { GPUNN__EPOCH_NOTES = GPUNN__CURVES + 2 };

/* The bits of value number i of an epoch. */
GPUNN__INTERNAL int64_t gpunn__epoch_note(const gpunn__epoch *epoch, int i);

/* Reads record->epochs epochs into newly allocated memory, which record->history owns. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__resume_history(const gpunn__archive *a, int index,
                                                    gpunn__fit_record *record);

/* Number of fields of an optimizer's record, with or without those of averages. */
GPUNN__INTERNAL int gpunn__resume_field_count(bool averages);

/* Writes the index of an array element, which follows the field's name, to text. For a single value, text
 * becomes "". Returns text. */
GPUNN__INTERNAL const char *gpunn__resume_index(const gpunn__resume_field *field, int i, char text[16]);

/* Reads and checks the fields of optimizer `number`. On entry, resume->opt is a copy of the optimizer that
 * will resume. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__resume_read(const gpunn__archive *a, int number, gpunn__resume *resume);

#endif /* GPUNN__IO_CHECKPOINT_H */
