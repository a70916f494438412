#ifndef GPUNN__API_DATA_H
#define GPUNN__API_DATA_H
#include "api/train.h"

/* ==== >>data ========================================================================================================== *
 * Batches of host data, shuffled and prefetched into a model's inputs. Not thread-safe per device. */
#define GPUNN_MAX_FIELDS 8
typedef struct gpunn_field {
    gpunn_tensor *input;           /* its first dimension is GPUNN_BATCH, and no other varies but with .lengths */
    const void   *samples;         /* count samples one after another, not copied; NULL with load */
    gpunn_dtype   dtype;           /* of the samples; default: the input's. U8 and BOOL widen to any input, I32 to I64 */
    float         mean[4], std[4]; /* U8 into F32: (x / 255 - mean) / std per channel (axis 1); std 0 is 1; with fewer than
                                      4 channels the first entries; more than 4 channels use entry 0. For a GPU they travel
                                      as bytes, and it does that */
    /* Images [GPUNN_BATCH, ..., height, width] that look different in each epoch: first moved by -crop_padding to crop_padding
     * pixels both ways, where 0 (before mean and std) comes in, as torchvision's RandomCrop of the input's size with that
     * padding, then turned about their centre by -degrees to degrees (RandomRotation, nearest), then mirrored with these
     * probabilities. It follows from seed, epoch and the sample's index alone: not from workers or ranks, and fields with the
     * same numbers, such as an image and its mask, go the same way. */
    int   crop_padding;
    float degrees, horizontal_flip, vertical_flip;
    /* torchvision's ColorJitter, for F32 inputs [GPUNN_BATCH, 3 or 1, height, width] whose samples are U8, or F32 from 0 to 1: in
     * an order that is drawn, factors from max(0, 1 - x) to 1 + x, and turns of the hue from -hue to hue, at most 0.5. Before
     * mean and std. */
    float brightness, contrast, saturation, hue;
} gpunn_field;
typedef struct gpunn_loader_args {
    int         args_;
    gpunn_field fields[GPUNN_MAX_FIELDS]; /* ends at the first without input */
    int64_t     count;
    int         batch_size; /* 32 */
    bool        shuffle, drop_last;
    uint64_t    seed; /* of the shuffling and of all that changes images; 0: the device's */
    /* torchvision's MixUp: sample i of a batch becomes lambda times itself and 1 - lambda times the one before it (before the
     * first: the last), with lambda drawn for each batch from Beta(mixup_alpha, mixup_alpha). All fields are mixed, so that all
     * inputs are F32: labels as well, as probabilities [GPUNN_BATCH, classes] with 1 at the class. 0: nothing is mixed. */
    float mixup_alpha;
    /* Instead of samples: writes sample index into sample[0], sample[1], ... (one per field, in the field's dtype). Called by
     * several threads at once when workers > 1. What is not GPUNN_OK ends the epoch with that status. Batches are made in memory
     * of .realloc_fn or, for a GPU, in pinned memory. */
    gpunn_status (*load)(void *user, int64_t index, void *const *sample);
    void *user;
    int   workers; /* threads that prefetch; 0: the next batch is made inside gpunn_next */
    /* Each rank has its own part of one order of the samples: batches of batch_size on every rank, as many on each. Up to
     * size - 1 samples that the last batch cannot share out evenly are left out. Then making a loader is common to all ranks. */
    gpunn_group *group;
    /* Sentences, sounds: of a gpunn_size with .max, the first dimension above 1 of each sample where an input has it, what each
     * sample fills (count of them, not copied). Samples and load give .max of it, padding behind what is filled; a batch is as
     * long as its longest sample. With shuffle, samples of like length come together, so that little is padded. */
    const int64_t *lengths;
} gpunn_loader_args;
GPUNN_API gpunn_loader *gpunn_loader_create_(gpunn_model *model, gpunn_loader_args args);
#define gpunn_loader_create(...) gpunn_loader_create_(GPUNN_NAMED(gpunn_loader_args, __VA_ARGS__))
GPUNN_API void gpunn_loader_destroy(gpunn_loader *loader);
/* Writes the next batch into the inputs. False at the end of the epoch, or after an error (gpunn_last_status); then starts
 * anew. */
GPUNN_API bool    gpunn_next(gpunn_loader *loader);
GPUNN_API int64_t gpunn_loader_batches(const gpunn_loader *loader);    /* per epoch */
GPUNN_API int     gpunn_loader_batch_size(const gpunn_loader *loader); /* samples in the batch of the last gpunn_next */
GPUNN_API void    gpunn_loader_rewind(gpunn_loader *loader);           /* to the first batch of this epoch */

/* ==== >>files ========================================================================================================= *
 * Every file is written beside its target and renamed over it when complete, so a crash leaves the old one or the new one, and
 * perhaps a .gpunn-*.tmp, which the next save into that directory removes (not on Windows). A symbolic link is followed, the mode
 * kept; of hard links only the one that is named becomes the new file. Every file is read as hostile: nothing in it is trusted.
 * On Windows paths are UTF-8, or else in the system's code page. */
GPUNN_API gpunn_status gpunn_save(gpunn_model *model, const char *path); /* safetensors: torch's state_dict() */

/* Where files are read from, in the place of the file system: a pak file, flash, the network. All four functions are needed; the
 * thread that loads calls them. What they return is believed no more than a file is. */
typedef struct gpunn_io {
    void *(*open)(void *user, const char *path); /* as the program gave the path; NULL: there is no such file */
    int64_t (*size)(void *user, void *file);     /* in bytes; negative: failed */
    /* The next bytes, as fread: how many there were; 0: the file has ended; negative: failed. */
    int64_t (*read)(void *user, void *file, void *to, size_t bytes);
    void (*close)(void *user, void *file); /* each file that was opened, once */
    void *user;
} gpunn_io;

/* What a tensor is called in the file, and in the model. Each * in from stands for any text, the shortest that fits, and the * of
 * the same number in to is that text: {"bert.*", "*"}, {"*.LayerNorm.gamma", "*.LayerNorm.weight"}. */
typedef struct gpunn_rename {
    const char *from, *to;
} gpunn_rename;

typedef struct gpunn_load_args {
    int                args_;
    bool               partial; /* names or shapes that do not match are reported, not errors */
    const char *const *skip;    /* ends at NULL: names, or beginnings of names, that stay as they are */
    /* One line per tensor that did not match: "fc.weight: in the file only", "fc.bias: file [10], model [5]". */
    void (*report)(void *user, const char *line);
    void           *user;
    const gpunn_io *io; /* where the file is; NULL: the file system */
    /* Ends at {NULL, NULL}: the first that fits a name renames it. Two tensors of one name are an error. skip and report know the
     * new names. */
    const gpunn_rename *map;
} gpunn_load_args;
/* All or nothing: after an error no weight has changed. A model that has not run and whose weights have not been read or written
 * takes them piece by piece from the file; to change weights that are in use, all of the file is read first, which holds them
 * twice for a moment. F32, F16, BF16 and F64 files are read into F32. So are F8_E4M3, F8_E5M2, integers of 8 to 64 bits and
 * BOOL, each as the nearest float, without a scale; one GPUNN_LOG_WARNING counts such tensors. Other types: GPUNN_ERR_DTYPE.
 * A path that ends in ".json" is an index of weights in shards, as Hugging Face's model.safetensors.index.json: the shards,
 * files beside it, are all loaded. */
GPUNN_API gpunn_status gpunn_load_(gpunn_model *model, const char *path, gpunn_load_args args);
#define gpunn_load(model, ...) gpunn_load_((model), GPUNN_NAMED(gpunn_load_args, __VA_ARGS__))
/* The same of a file that lies in memory: gpunn_load_memory(model, data, size, .partial = true). data is not needed afterwards;
 * .io is not read. */
GPUNN_API gpunn_status gpunn_load_memory_(gpunn_model *model, const void *data, size_t size, gpunn_load_args args);
#define gpunn_load_memory(model, data, ...) gpunn_load_memory_((model), (data), GPUNN_NAMED(gpunn_load_args, __VA_ARGS__))

/* Weights, optimizer state, averages, random state, schedule, loader's place (loader may be NULL): a resumed run equals one that
 * was never interrupted, bit for bit. Averages that a file does not have start as its weights. Of optimizers that share a model
 * out among them, each call saves or loads all; they must be made in the same order as when they were saved. A loader with other
 * batches, of another size or for another number of ranks, goes on behind the samples that have been seen, or is GPUNN_ERR_STATE
 * where none of its batches begins there. */
GPUNN_API gpunn_status gpunn_checkpoint_save(gpunn_optimizer *opt, gpunn_loader *loader, const char *path);
GPUNN_API gpunn_status gpunn_checkpoint_load(gpunn_optimizer *opt, gpunn_loader *loader, const char *path);

/* A dataset in host memory. data[i * bytes per element ...] in row-major order; free with gpunn_array_free. */
typedef struct gpunn_array {
    gpunn_dtype dtype;
    int         rank;
    int64_t     dim[GPUNN_MAX_RANK];
    size_t      bytes;
    void       *data;
} gpunn_array;
/* IDX (MNIST, Fashion-MNIST): u8; i8, i16 and i32 to I32; f32 and f64 to F32. All readers: .gz with GPUNN_ZLIB. */
GPUNN_API gpunn_status gpunn_read_idx(gpunn_device *dev, const char *path, gpunn_array *out);
/* CIFAR-10 (classes 10) and CIFAR-100 (classes 100, fine labels) binary files: images U8 [n, 3, 32, 32], labels U8 [n]. */
GPUNN_API gpunn_status gpunn_read_cifar(gpunn_device *dev, const char *const *paths, int path_count, int classes,
                                        gpunn_array *images, gpunn_array *labels);
/* .npy versions 1 to 3: f2 f4 f8 to F32, i8 u4 to I64, i1 i2 i4 u2 to I32, u1, b1; either byte order; C or Fortran order (made C
 * order). */
GPUNN_API gpunn_status gpunn_read_npy(gpunn_device *dev, const char *path, gpunn_array *out);
GPUNN_API gpunn_status gpunn_write_npy(gpunn_device *dev, const char *path, const gpunn_array *array);
/* One tensor of a safetensors file; F32, F16, BF16, F64, F8_E4M3 and F8_E5M2 as F32, U32 as I64, smaller integers as I32.
 * name NULL: the file's only one. A name that is not there: GPUNN_ERR_ARGUMENT. F8 has no scale, as a GPUNN_LOG_WARNING says. */
GPUNN_API gpunn_status gpunn_read_safetensors(gpunn_device *dev, const char *path, const char *name, gpunn_array *out);
GPUNN_API gpunn_status gpunn_write_safetensors(gpunn_device *dev, const char *path, const char *const *names,
                                               const gpunn_array *arrays, int count);
GPUNN_API void         gpunn_array_free(gpunn_device *dev, gpunn_array *array);
/* C's strtod with a decimal point in every locale, for numbers in files and arguments. Decimal numbers of up to 992 characters,
 * infinities and NaN; none in hexadecimal. end: NULL, or receives what follows the number, text where there is none. */
GPUNN_API double gpunn_strtod(const char *text, char **end);
/* The bytes that gpunn_save would write, as U8 [bytes]; free with gpunn_array_free. After a failure out is empty. */
GPUNN_API gpunn_status gpunn_save_memory(gpunn_model *model, gpunn_array *out);

/* ==== >>spec ========================================================================================================== *
 * A model as JSON (generator/model.schema.json): for the generator, for other programs, for models that come from elsewhere. */
typedef struct gpunn_spec_args {
    int              args_;
    const char      *name;       /* the model's; default: that of the spec it came from, else the file's */
    gpunn_tensor    *outputs[8]; /* what evaluation computes; default: the spec's, else every value that no op reads */
    gpunn_tensor    *loss;       /* what training makes small; default: the spec's, else none */
    gpunn_optimizer *optimizer; /* its kind, numbers, clipping and averaging are noted, not what it trains; default: the spec's */
} gpunn_spec_args;
/* Tensors, ops, initial values and settings of parameters; not their values (gpunn_save). Tensors without a name get one in the
 * file, "t5". What gpunn_spec_load makes of the file is saved as the same bytes. */
GPUNN_API gpunn_status gpunn_spec_save_(gpunn_model *model, const char *path, gpunn_spec_args args);
#define gpunn_spec_save(model, ...) gpunn_spec_save_((model), GPUNN_NAMED(gpunn_spec_args, __VA_ARGS__))
typedef struct gpunn_spec_load_args {
    int             args_;
    const gpunn_io *io;        /* where the file is; NULL: the file system */
    bool            inference; /* as gpunn_model_create has it; the spec's loss and optimizer are read and not used */
} gpunn_spec_load_args;
/* Builds the model; NULL after an error, which begins with path:line:column. gpunn_find finds each tensor by its name or, where
 * it has none, its id. What is for the generator alone ("math", "layout", "fuse") is not kept. */
GPUNN_API gpunn_model *gpunn_spec_load_(gpunn_device *dev, const char *path, gpunn_spec_load_args args);
#define gpunn_spec_load(dev, ...) gpunn_spec_load_((dev), GPUNN_NAMED(gpunn_spec_load_args, __VA_ARGS__))
/* The same of size bytes of JSON that lie in memory, which errors call "memory" and which is not needed afterwards. */
GPUNN_API gpunn_model *gpunn_spec_load_memory_(gpunn_device *dev, const char *text, size_t size, gpunn_spec_load_args args);
#define gpunn_spec_load_memory(dev, text, ...) \
    gpunn_spec_load_memory_((dev), (text), GPUNN_NAMED(gpunn_spec_load_args, __VA_ARGS__))
/* What the spec of such a model says; NULL: nothing. The optimizer is a new one, with the spec's clipping and averaging. */
GPUNN_API gpunn_tensor    *gpunn_spec_loss(gpunn_model *model);
GPUNN_API gpunn_tensor    *gpunn_spec_output(gpunn_model *model, int index);
GPUNN_API gpunn_optimizer *gpunn_spec_optimizer(gpunn_model *model);

/* ==== >>fit =========================================================================================================== */
#define GPUNN_MAX_METRICS 6 /* beside the one that is drawn */
typedef struct gpunn_progress {
    int         epoch, epochs; /* from 1; those of earlier calls that this one goes on from are counted in both */
    int64_t     batch, batches;
    float       loss, metric;                       /* of this epoch so far, weighted by samples */
    float       validation_loss, validation_metric; /* of the last validation; NaN before */
    float       lr;
    double      seconds; /* since the epoch began */
    bool        epoch_done;
    bool        stopped_early; /* with epoch_done: patience has run out, no epoch follows */
    int         best_epoch;    /* the one of the lowest validation loss (else training loss); 0 before the first ends */
    const char *metric_name;   /* such as "accuracy"; NULL: there is no metric */
    float       metrics[GPUNN_MAX_METRICS], validation_metrics[GPUNN_MAX_METRICS]; /* of gpunn_fit_args.metrics, in that order */
} gpunn_progress;
typedef struct gpunn_fit_args {
    int           args_;
    gpunn_tensor *loss;
    gpunn_tensor *metric;             /* a scalar such as gpunn_accuracy; may be NULL */
    gpunn_loader *train, *validation; /* validation may be NULL */
    int           epochs;             /* that are to be run; 0: none */
    int           patience; /* stop after so many epochs without a better validation loss (else training loss); 0: never */
    int  accumulate; /* batches for one update, as of gpunn_train_step; an epoch's last update has those that are left; 1 */
    bool schedule_per_batch; /* gpunn_schedule_step after each update; default: after each epoch, with the validation loss */
    bool no_ema; /* validation and best_weights are of the weights themselves, even where gpunn_set_ema keeps averages */
    bool (*on_progress)(void *user, const gpunn_progress *progress); /* after each batch and epoch; false cancels */
    void         *user;
    const char   *history_csv, *history_svg;  /* rewritten after each epoch; NULL: none */
    const char   *checkpoint;                 /* written after each epoch; NULL: none */
    const char   *best_weights;               /* gpunn_save after each epoch that is the best so far; NULL: none */
    int          *epochs_run;                 /* receives the number of complete epochs */
    gpunn_tensor *metrics[GPUNN_MAX_METRICS]; /* further scalars, which progress has; ends at the first NULL */
    /* Before the first batch of an epoch, and before each step, with its batch in the inputs, where it may be changed; false
     * cancels. */
    bool (*on_epoch_begin)(void *user, const gpunn_progress *progress);
    bool (*on_batch_begin)(void *user, const gpunn_progress *progress);
} gpunn_fit_args;
/* Goes on where the optimizer's last gpunn_fit of the same loss ended, be it in this process or before gpunn_checkpoint_load:
 * epochs are numbered on, the best loss, its epoch and the history are kept. Nothing is written where no epoch is left to run.
 * GPUNN_ERR_CANCELLED after a callback said so; everything stays usable. Where the optimizer keeps averages (gpunn_set_ema),
 * they are what is validated and saved as best_weights; training goes on with the weights. */
GPUNN_API gpunn_status gpunn_fit_(gpunn_optimizer *opt, gpunn_fit_args args);
#define gpunn_fit(...) gpunn_fit_(GPUNN_NAMED(gpunn_fit_args, __VA_ARGS__))
/* A ready on_progress: draws a bar on stderr when that is a terminal, prints one line per epoch when not. user is not read. */
GPUNN_API bool gpunn_progress_bar(void *user, const gpunn_progress *progress);
/* Mean of loss and metric (may be NULL) over one epoch of loader, in evaluation mode, weighted by samples. With a loader that has
 * a .group it is of all ranks' samples, and common to them. */
GPUNN_API gpunn_status gpunn_evaluate(gpunn_loader *loader, gpunn_tensor *loss, gpunn_tensor *metric, float *loss_mean,
                                      float *metric_mean);

typedef struct gpunn_class_scores {
    int64_t samples;               /* with a label that is a class; others are left out */
    float   accuracy;              /* torch and scikit-learn's, as what follows */
    float   precision, recall, f1; /* macro: means over the classes that are labels or guesses */
    float   auc; /* macro, each class against the rest, by softmax; NaN unless asked for, or without two classes */
} gpunn_class_scores;
typedef struct gpunn_class_scores_args {
    int      args_;
    int64_t *confusion; /* receives how many samples of class i were taken for j, at [i * classes + j]; NULL: not wanted */
    bool     auc;       /* needs 4 bytes a sample and class */
} gpunn_class_scores_args;
/* What means over batches cannot tell, over one epoch of the loader, in evaluation mode; logits [n, classes], labels [n]. With a
 * loader that has a .group it is of all ranks' samples, and common to them. */
GPUNN_API gpunn_status gpunn_evaluate_classes_(gpunn_loader *loader, gpunn_tensor *logits, gpunn_tensor *labels,
                                               gpunn_class_scores *scores, gpunn_class_scores_args args);
#define gpunn_evaluate_classes(loader, logits, labels, ...) \
    gpunn_evaluate_classes_((loader), (logits), (labels), GPUNN_NAMED(gpunn_class_scores_args, __VA_ARGS__))

/* ==== >>profile ======================================================================================================= */
typedef struct gpunn_profile_args {
    int              args_;
    gpunn_tensor    *loss;       /* training steps: forward and backward, with an optimizer its update too; else ... */
    gpunn_tensor    *outputs[8]; /* ... evaluation of these */
    gpunn_optimizer *optimizer;  /* whose updates change parameters */
    int              runs;       /* default 10, after one that does not count */
    /* What the device does in a second at most, of floating-point operations and of bytes moved; default: measured, by a product
     * and an addition of large matrices, which takes 200 MB for a moment. */
    double peak_flops, peak_bytes;
    void (*write)(void *user, const char *text); /* receives a table, line by line: steps by falling time, as means of all runs */
    void       *user;
    const char *trace; /* file that receives the mean run as a Chrome trace (JSON), for ui.perfetto.dev; NULL: none */
} gpunn_profile_args;
/* Where the time goes, by layer and op: runs of the inputs as they are, each step timed by itself, on a GPU between events and
 * outside of any graph; steps that share a launch there count for the first of them. Bytes are those of all operands once,
 * operations those of the formula, an element of a map or a sum being one. Running statistics, dropout and, with a loss,
 * gradients go on as in any run. GPUNN_ERR_UNSUPPORTED: a backend of one's own that cannot time. Of other runs it costs
 * nothing. */
GPUNN_API gpunn_status gpunn_profile_(gpunn_model *model, gpunn_profile_args args);
#define gpunn_profile(...) gpunn_profile_(GPUNN_NAMED(gpunn_profile_args, __VA_ARGS__))

#endif /* GPUNN__API_DATA_H */
