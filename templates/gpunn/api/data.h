#ifndef GPUNN__API_DATA_H
#define GPUNN__API_DATA_H
#include "api/train.h"

/* ==== >>data ============================================================================================= *
 * Loaders: batches of samples, shuffled and prefetched into a model's inputs. Not thread-safe per
 * device. */
#define GPUNN_MAX_FIELDS 8 /* most inputs of a loader */
/* What a loader writes into one input. */
typedef struct gpunn_field {
    /* its first dimension is GPUNN_BATCH; no other dimension varies, except with .lengths */
    gpunn_tensor *input;
    /* `count` samples one after another, user-owned, not copied, in host memory unless on_device; NULL with
     * load */
    const void *samples;
    /* of the samples; default: the input's. U8 and BOOL convert to any input, I32 to I64, F64 to F32 */
    gpunn_dtype dtype;
    /* U8 to F32: (x / 255 - mean) / std per channel (axis 1); std 0 means 1. With fewer than 4 channels the
     * first entries apply; with more than 4 channels entry 0 applies to all. For a GPU the samples are copied
     * as bytes and converted there. */
    float mean[4], std[4];
    /* Augmentation of images [GPUNN_BATCH, ..., height, width], different in each epoch, in three steps.
     * First a shift by -crop_padding to crop_padding pixels along both axes, filled with 0 before mean and
     * std: torchvision's RandomCrop of the input's size with that padding. Then a rotation about the centre
     * by -degrees to degrees (RandomRotation, nearest). Then flips with these probabilities. The random
     * numbers depend only on seed, epoch and the sample's index, not on workers or ranks. So fields with the
     * same settings, such as an image and its mask, are changed in the same way. */
    int   crop_padding;
    float degrees;                        /* largest angle of the rotation */
    float horizontal_flip, vertical_flip; /* probabilities */
    /* torchvision's ColorJitter, before mean and std. For F32 inputs [GPUNN_BATCH, 3 or 1, height, width]
     * whose samples are U8, or F32 in 0 to 1. The order is random, factors are in max(0, 1 - x) to 1 + x, and
     * the hue turns by -hue to hue, at most 0.5. */
    float brightness, contrast, saturation, hue;
} gpunn_field;
typedef struct gpunn_loader_args {
    int         args_;
    gpunn_field fields[GPUNN_MAX_FIELDS]; /* required; ends at the first one without input */
    int64_t     count;                    /* required: number of samples */
    int         batch_size;               /* default 32 */
    bool        shuffle;                  /* another order in each epoch */
    bool        drop_last;                /* leaves out the last batch of an epoch if it is smaller */
    uint64_t    seed;                     /* seed of shuffling and augmentation; 0: the device's */
    /* torchvision's MixUp. Sample i of a batch becomes lambda times itself plus 1 - lambda times the sample
     * before it (for the first: the last). lambda is drawn for each batch from Beta(mixup_alpha,
     * mixup_alpha). All fields are mixed, so all inputs must be F32, labels too, as probabilities
     * [GPUNN_BATCH, classes] with 1 at the class. 0: no mixing. */
    float mixup_alpha;
    /* Used instead of samples: writes sample `index` to sample[0], sample[1], ... (one per field, in the
     * field's dtype). Several threads call it at once if workers > 1. A result other than GPUNN_OK ends the
     * epoch with that status. Batches are made in memory from .realloc_fn or, for a GPU, in pinned memory. */
    gpunn_status (*load)(void *user, int64_t index, void *const *sample);
    void *user;    /* first argument of load */
    int   workers; /* prefetching threads; 0: gpunn_next itself makes the batch */
    /* Splits one order of the samples among the ranks. Each rank gets equally many batches of batch_size. Up
     * to size - 1 samples that the last batch cannot divide evenly are left out. Creating a loader is then
     * common to all ranks. */
    gpunn_group *group;
    /* Samples of varying length, such as sentences or sounds. lengths[count] (not copied) is the length of
     * each sample. The varying dimension is a gpunn_size with .max. In each input that has it, it is the
     * first dimension after the batch that is not 1. Samples and load provide .max of it, with padding after
     * the valid part. A batch is as long as its longest sample. With shuffle, samples of similar length are
     * batched together to reduce padding. */
    const int64_t *lengths;
    /* torch's random_split: this share of the samples, above 0 and below 1, goes to a second loader, chosen
     * by chance from seed. A run that resumes needs the same seed. 0: all samples stay */
    float validation_share;
    /* receives that loader, or NULL on failure. Its samples come in the order of their index, without
     * augmentation and mixup. Destroy both. Required with validation_share, else NULL */
    gpunn_loader **validation;
    /* All samples are memory of the model's device, such as the fields of a solver on a GPU; on a CPU device
     * that is host memory. gpunn_next gathers the batch there, in the order of the device's work, so the
     * program may change samples between two calls. Only the batch's sample numbers pass through the host.
     * Order and conversions are those of samples in host memory; .workers is not used. GPUNN_ERR_ARGUMENT:
     * the device does not reach the samples, or load, lengths, mixup_alpha or an augmentation of a field is
     * set. GPUNN_ERR_DTYPE: a GPU's U8 for an F64 input. GPUNN_ERR_STATE: gpunn_next on another device. */
    bool on_device;
} gpunn_loader_args;
#ifndef GPUNN_NO_LOADERS
/* Creates a loader for inputs of the model, at the start of its first epoch. Returns NULL on failure. */
GPUNN_API gpunn_loader *gpunn_loader_create_(gpunn_model *model, gpunn_loader_args args);
#define gpunn_loader_create(...) gpunn_loader_create_(GPUNN_NAMED(gpunn_loader_args, __VA_ARGS__))
/* Frees a loader and ends its workers; NULL is allowed. */
GPUNN_API void gpunn_loader_destroy(gpunn_loader *loader);
/* Writes the next batch into the inputs. Returns false at the end of the epoch, or after an error (see
 * gpunn_last_status); the next call starts a new epoch. */
GPUNN_API bool gpunn_next(gpunn_loader *loader);
/* Number of batches in an epoch. */
GPUNN_API int64_t gpunn_loader_batches(const gpunn_loader *loader);
/* Number of samples in the batch of the last gpunn_next. */
GPUNN_API int gpunn_loader_batch_size(const gpunn_loader *loader);
/* Goes back to the first batch of this epoch. */
GPUNN_API void gpunn_loader_rewind(gpunn_loader *loader);
#endif

/* ==== >>files ============================================================================================ *
 * Weights, checkpoints and arrays in files. Each file is written under a temporary name beside its target,
 * then renamed over it. A crash thus leaves the old file or the new one, and perhaps a .gpunn-*.tmp, which
 * the next save into that directory removes (not on Windows). A symbolic link is followed and the mode kept;
 * of several hard links only the named one becomes the new file. Files are read as hostile input: nothing in
 * them is trusted. On Windows paths are UTF-8, or else in the system's code page. */
/* Saves all parameters and buffers as safetensors, as torch's state_dict() names them. */
GPUNN_API gpunn_status gpunn_save(gpunn_model *model, const char *path);

/* User-defined source of files instead of the file system, such as a pak file, flash or the network. All four
 * functions are required; the loading thread calls them. Their results are as little trusted as a file. */
typedef struct gpunn_io {
    void *(*open)(void *user, const char *path); /* path as the program passed it; NULL: no such file */
    int64_t (*size)(void *user, void *file);     /* in bytes; negative: failed */
    /* Reads the next bytes, like fread. Returns how many were read; 0: end of file; negative: failed. */
    int64_t (*read)(void *user, void *file, void *to, size_t bytes);
    void (*close)(void *user, void *file); /* called once for each opened file */
    void *user;                            /* first argument of the functions */
} gpunn_io;

/* Renames tensors: from is the name in the file, to the name in the model. Each * in from matches any text,
 * the shortest possible; the * with the same number in to stands for that text. Examples: {"bert.*", "*"},
 * {"*.LayerNorm.gamma", "*.LayerNorm.weight"}. */
typedef struct gpunn_rename {
    const char *from, *to; /* patterns of names: in the file, in the model */
} gpunn_rename;

typedef struct gpunn_load_args {
    int                args_;
    bool               partial; /* names or shapes that do not match are reported instead of being errors */
    const char *const *skip;    /* names or name prefixes of tensors to leave unchanged; ends at NULL */
    /* Receives one line per tensor that did not match: "fc.weight: in the file only", "fc.bias: file [10],
     * model [5]". */
    void (*report)(void *user, const char *line);
    void           *user; /* first argument of report */
    const gpunn_io *io;   /* source of the file; NULL: the file system */
    /* Ends at {NULL, NULL}. The first entry that matches a name renames it. Two tensors of one name are an
     * error. skip and report use the new names. */
    const gpunn_rename *map;
    /* Blocks of a file stay as they are, as gpunn_bind_as binds them: for parameters that only linear layers
     * and embeddings read. GGUF files have them, and safetensors files of generator.quantize. They are frozen
     * then; gpunn_lora adds adapters, which are trained. Other tensors become floats as without it. On a CPU
     * the file is mapped, where the system can, until the model is destroyed: replace it, but do not write
     * into it. From .io or memory, and to a GPU, the blocks are copied. GPUNN_ERR_STATE: the model has
     * weights already. */
    bool keep_blocks;
} gpunn_load_args;
/* Loads weights, all or nothing: after an error no weight has changed. If the model has not run and no weight
 * was read or written, weights are streamed from the file. Otherwise the whole file is read first, and the
 * weights are briefly in memory twice.
 * F32, F16, BF16 and F64 are converted to F32. So are F8_E4M3, F8_E5M2, integers of 8 to 64 bits and BOOL,
 * each to the nearest float, without a scale; one GPUNN_LOG_WARNING counts such tensors. GGUF's blocks
 * (GPUNN_BLOCK_LIST) become the floats for which they stand. Other types are GPUNN_ERR_DTYPE.
 * The file is safetensors or GGUF, whichever its first bytes say. A GGUF file's shapes are read as PyTorch's,
 * the last dimension varies fastest. Of a model that llama.cpp has split, NAME-00001-of-00003.gguf is loaded
 * with the other parts beside it.
 * A path ending in ".json" is an index of sharded weights, like Hugging Face's model.safetensors.index.json.
 * All shards, which are files beside it, are loaded. */
GPUNN_API gpunn_status gpunn_load_(gpunn_model *model, const char *path, gpunn_load_args args);
#define gpunn_load(model, ...) gpunn_load_((model), GPUNN_NAMED(gpunn_load_args, __VA_ARGS__))
/* Loads weights from memory: gpunn_load_memory(model, data, size, .partial = true). data is not needed
 * afterwards; .io is ignored. */
GPUNN_API gpunn_status gpunn_load_memory_(gpunn_model *model, const void *data, size_t size,
                                          gpunn_load_args args);
#define gpunn_load_memory(model, data, ...) \
    gpunn_load_memory_((model), (data), GPUNN_NAMED(gpunn_load_args, __VA_ARGS__))

/* Saves or loads weights, optimizer state, averages, random state, schedule and the loader's position (loader
 * may be NULL). A resumed run equals an uninterrupted one, bit for bit. Averages missing from a file start as
 * its weights.
 * If several optimizers share a model, each call saves or loads all of them. They must be created in the same
 * order as when they were saved.
 * A loader with another batch size or number of ranks continues after the samples already seen. It is
 * GPUNN_ERR_STATE if none of its batches begins there. */
GPUNN_API gpunn_status gpunn_checkpoint_save(gpunn_optimizer *opt, gpunn_loader *loader, const char *path);
GPUNN_API gpunn_status gpunn_checkpoint_load(gpunn_optimizer *opt, gpunn_loader *loader, const char *path);

/* A dataset in host memory, row-major; element i is at data + i * bytes per element. Free it with
 * gpunn_array_free. */
typedef struct gpunn_array {
    gpunn_dtype dtype;               /* of the elements */
    int         rank;                /* number of axes */
    int64_t     dim[GPUNN_MAX_RANK]; /* their sizes */
    size_t      bytes;               /* of data */
    void       *data;                /* the elements */
} gpunn_array;
#ifndef GPUNN_NO_LOADERS
/* Reads an IDX file (MNIST, Fashion-MNIST): u8; i8, i16 and i32 as I32; f32 and f64 as F32. All readers
 * accept .gz with GPUNN_ZLIB. */
GPUNN_API gpunn_status gpunn_read_idx(gpunn_device *dev, const char *path, gpunn_array *out);
/* Reads binary files of CIFAR-10 (classes 10) or CIFAR-100 (classes 100, fine labels): images U8 [n, 3, 32,
 * 32], labels U8 [n]. */
GPUNN_API gpunn_status gpunn_read_cifar(gpunn_device *dev, const char *const *paths, int path_count,
                                        int classes, gpunn_array *images, gpunn_array *labels);
/* Reads .npy versions 1 to 3: f2 f4 f8 as F32, i8 u4 as I64, i1 i2 i4 u2 as I32, u1, b1. Either byte order; C
 * or Fortran order (converted to C order). */
GPUNN_API gpunn_status gpunn_read_npy(gpunn_device *dev, const char *path, gpunn_array *out);
/* The same, with each number as the nearest one of `dtype`, which is F32 or F64 (GPUNN_ERR_DTYPE: another).
 * */
GPUNN_API gpunn_status gpunn_read_npy_as(gpunn_device *dev, const char *path, gpunn_dtype dtype,
                                         gpunn_array *out);
/* Writes an array as .npy. */
GPUNN_API gpunn_status gpunn_write_npy(gpunn_device *dev, const char *path, const gpunn_array *array);
/* Reads one tensor of a safetensors or GGUF file: F32, F16, BF16, F64, F8_E4M3, F8_E5M2 and GGUF's blocks as
 * F32, U32 as I64, smaller integers as I32. name NULL: the file's only tensor. A name not in the file is
 * GPUNN_ERR_ARGUMENT. F8 is read without a scale, and a GPUNN_LOG_WARNING says so. */
GPUNN_API gpunn_status gpunn_read_safetensors(gpunn_device *dev, const char *path, const char *name,
                                              gpunn_array *out);
/* The same, with each number as the nearest one of `dtype`, which is F32 or F64 (GPUNN_ERR_DTYPE: another).
 * */
GPUNN_API gpunn_status gpunn_read_safetensors_as(gpunn_device *dev, const char *path, const char *name,
                                                 gpunn_dtype dtype, gpunn_array *out);
/* Writes `count` arrays as one safetensors file, arrays[i] under names[i]. */
GPUNN_API gpunn_status gpunn_write_safetensors(gpunn_device *dev, const char *path, const char *const *names,
                                               const gpunn_array *arrays, int count);
#endif
#ifndef GPUNN_NO_GGUF
/* Reads what the header of a safetensors or GGUF file says, as JSON: {"__metadata__": {"key": value, ...},
 * "tensor": {"dtype": "F32", "shape": [2, 3]}, ...}, sorted by name. Values of GGUF's metadata are numbers,
 * booleans, texts and lists of them; those of safetensors are texts. dtype is the file's name of the type.
 * out is U8 [bytes], and its last byte is a 0; free it with gpunn_array_free. After a failure out is empty.
 * What is not UTF-8 becomes U+FFFD, and F64 numbers are rounded to F32. Infinity and NaN are texts. */
GPUNN_API gpunn_status gpunn_read_header(gpunn_device *dev, const char *path, gpunn_array *out);
#endif
/* Frees what a reader put into an array, which is then empty; NULL is allowed. */
GPUNN_API void gpunn_array_free(gpunn_device *dev, gpunn_array *array);
/* C's strtod with a decimal point in every locale, for numbers in files and arguments. It reads decimal
 * numbers of up to 992 characters, infinities and NaN, but no hexadecimal. *end (end may be NULL) is set
 * behind the number, or to text if there is none. */
GPUNN_API double gpunn_strtod(const char *text, char **end);
/* Returns the bytes that gpunn_save would write, as U8 [bytes]; free with gpunn_array_free. After a failure
 * out is empty. */
GPUNN_API gpunn_status gpunn_save_memory(gpunn_model *model, gpunn_array *out);

/* ==== >>lora ============================================================================================= *
 * Fine-tuning with low-rank adapters (LoRA; Hu et al., 2021), in the files of Hugging Face's PEFT. A layer
 * with an adapter computes
 *     y = x W^T + bias + alpha / rank dropout(x) A^T B^T       A [rank, in], B [out, rank]
 * and only A and B are trained. Not thread-safe per device. */
typedef struct gpunn_lora_args {
    int         args_;
    int         rank;    /* peft's r, default 8 */
    float       alpha;   /* peft's lora_alpha, default 8 */
    float       dropout; /* probability of an element of x to be dropped in training, default 0 */
    const char *name;    /* of the adapter, without dots; NULL: "default" */
} gpunn_lora_args;
/* Adds an adapter to the linear layers and embeddings of a built model whose names match the pattern, and
 * enables it. A name is that of the weight without ".weight", as "model.layers.0.self_attn.q_proj". The
 * pattern matches all of it, or its end after a dot; * is any text, {a,b} is a or b:
 *     gpunn_lora(model, "layers.*.self_attn.{q,v}_proj", .rank = 8, .alpha = 16, .dropout = 0.05f);
 * Tensors that the program holds stay valid: the layer's result now has the adapter's part in it.
 *
 * The first call freezes all parameters of the model. They then have neither gradients nor optimizer states.
 * To train some of them too, as peft's modules_to_save, call gpunn_set_trainable on them afterwards, before
 * an optimizer is created.
 * A of a linear layer starts as U(+-1/sqrt(in)), B as zeros; A of an embedding as zeros, B as N(0, 1). Both
 * are F32. They are parameters named layer.lora_A.name.weight and layer.lora_B.name.weight (embeddings:
 * lora_embedding_A, which is stored transposed, and lora_embedding_B). gpunn_save and checkpoints contain
 * them; gpunn_load leaves them as they are if the file does not. Specs contain them as ordinary layers, and
 * the rest as frozen, so that checkpoints fit the model of a spec.
 *
 * Call it when the layers and the losses are built, before optimizers are created, before gpunn_recompute and
 * before derivatives (gpunn_grad) of these layers. Runs may have come before; gradients are dropped. With
 * precision BF16 or F16, frozen weights that only products and embeddings read are stored in 16 bits only, if
 * they have no values yet: call it before gpunn_load. They can also stay in blocks of 4 to 8 bits: by
 * .weights of gpunn_model_create, or those of a file by .keep_blocks of gpunn_load.
 * GPUNN_ERR_ARGUMENT: no layer matches, or the model has an adapter of that name. GPUNN_ERR_STATE: there is
 * an optimizer, gpunn_recompute was called, or the weights of a model with .weights have values already.
 * GPUNN_ERR_UNSUPPORTED: another op reads a layer's weight. */
GPUNN_API gpunn_status gpunn_lora_(gpunn_model *model, const char *pattern, gpunn_lora_args args);
#define gpunn_lora(model, ...) gpunn_lora_((model), GPUNN_NAMED(gpunn_lora_args, __VA_ARGS__))
/* Uses the adapter of that name from the next run on, and no other. NULL: none; the model then computes what
 * it did without adapters. Each adapter keeps its values. Derivatives (gpunn_grad) stay those of the adapter
 * that was enabled when they were made. GPUNN_ERR_ARGUMENT: no adapter has this name. */
GPUNN_API gpunn_status gpunn_lora_enable(gpunn_model *model, const char *name);
typedef struct gpunn_lora_save_args {
    int         args_;
    const char *base_model_name_or_path; /* for peft: where the model without adapters is; NULL: null */
    const char *task_type;               /* for peft, such as "CAUSAL_LM"; NULL: null */
} gpunn_lora_save_args;
/* Saves the enabled adapter as peft's save_pretrained does: adapter_model.safetensors (F32) and
 * adapter_config.json in a folder, which is made if there is none. Each file is replaced as a whole. peft
 * loads it if the layers have the names of its model. GPUNN_ERR_STATE: no adapter is enabled. */
GPUNN_API gpunn_status gpunn_lora_save_(gpunn_model *model, const char *folder, gpunn_lora_save_args args);
#define gpunn_lora_save(model, ...) gpunn_lora_save_((model), GPUNN_NAMED(gpunn_lora_save_args, __VA_ARGS__))
typedef struct gpunn_lora_load_args {
    int         args_;
    const char *name; /* of the adapter in the model; NULL: "default" */
} gpunn_lora_load_args;
/* Loads an adapter that peft or gpunn_lora_save wrote, and enables it. It is added as by gpunn_lora, with the
 * file's layers, rank, alpha and dropout; or an adapter of that name takes the file's values. The files are
 * read as a whole before anything changes. Only if memory or the device fails after that, parameters may
 * be frozen although the adapter was not added.
 * GPUNN_ERR_FORMAT: a matrix is missing, or no layer of the model has it. GPUNN_ERR_SHAPE: a matrix does not
 * fit its layer or the rank. GPUNN_ERR_UNSUPPORTED: DoRA, rsLoRA, ranks or alphas that differ between layers,
 * trained biases or other modules. GPUNN_ERR_ARGUMENT: the model's adapter of that name is a different one.
 * GPUNN_ERR_STATE: as for gpunn_lora, if the adapter is new. */
GPUNN_API gpunn_status gpunn_lora_load_(gpunn_model *model, const char *folder, gpunn_lora_load_args args);
#define gpunn_lora_load(model, ...) gpunn_lora_load_((model), GPUNN_NAMED(gpunn_lora_load_args, __VA_ARGS__))
/* Adds alpha / rank B A of the enabled adapter to the weights, and removes all adapters with their tensors,
 * which must not be used any more. The other weights stay frozen. A weight stored in 16 bits or blocks is
 * rounded once.
 * GPUNN_ERR_STATE: no adapter is enabled, or there is an optimizer; destroy it first.
 * GPUNN_ERR_UNSUPPORTED: several layers share a weight, a weight is bound to blocks (gpunn_bind_as,
 * .keep_blocks), or another op, such as a derivative, reads an adapter. No weight has changed then. */
GPUNN_API gpunn_status gpunn_lora_merge(gpunn_model *model);

/* ==== >>quantization ===================================================================================== *
 * Post-training quantisation: a trained model becomes one that computes linear layers, convolutions of images
 * and sums with 8-bit integers. Not thread-safe per device. */
typedef struct gpunn_calibrate_args {
    int args_;
    /* the network's results, without losses; list ends at the first NULL; default: those of the spec */
    gpunn_tensor *outputs[8];
    gpunn_loader *loader;  /* runs its batches; NULL: one run of the inputs as they are */
    int64_t       batches; /* most batches of the loader; 0: an epoch */
} gpunn_calibrate_args;
/* Evaluates the network on samples and records the ranges and histograms of what linear layers, convolutions
 * and sums read and compute. Calls with the same outputs add up. They begin anew if the weights have changed
 * since. A hundred samples like those of later use are usually enough. The values of a batch are all held at
 * once. States advance as in gpunn_forward, and the loader is rewound.
 * GPUNN_ERR_NUMERIC: a value is NaN or infinite. GPUNN_ERR_STATE: the model has ops of 8-bit numbers or
 * adapters of gpunn_lora. GPUNN_ERR_UNSUPPORTED: nothing can be quantised. */
GPUNN_API gpunn_status gpunn_calibrate_(gpunn_model *model, gpunn_calibrate_args args);
#define gpunn_calibrate(...) gpunn_calibrate_(GPUNN_NAMED(gpunn_calibrate_args, __VA_ARGS__))
/* How the range of a value follows from its numbers. */
typedef enum gpunn_range_method {
    GPUNN_RANGE_MIN_MAX = 0, /* from the least to the greatest */
    GPUNN_RANGE_ENTROPY      /* clips rare large ones: the least Kullback-Leibler divergence, as TensorRT's */
} gpunn_range_method;
/* A layer of gpunn_quantize's report. */
typedef struct gpunn_quantized_layer {
    const char *op, *layer; /* "conv2d", "conv1"; layer "": it has no name */
    const char *wide;       /* NULL: it is quantised; else why it stays F32: "named" or "error" */
    float       low, high;  /* range of its result */
    /* Signal-to-noise ratio of its result, 10 log10(sum y^2 / sum (y - y_float)^2), in decibels: with only
     * this layer quantised, and in the model as it has become. Infinite if they are equal. 6 decibels are a
     * bit of precision; 30 are usual. NaN for a layer that is "named", which was not tried. */
    double snr, total_snr;
} gpunn_quantized_layer;
typedef struct gpunn_quantization_args {
    int                args_;
    gpunn_range_method method;  /* of all ranges; default GPUNN_RANGE_MIN_MAX */
    float              min_snr; /* in decibels: a layer whose own result has less stays F32; 0: no bound */
    /* patterns of names of layers that stay F32, as those of gpunn_lora; ends at NULL */
    const char *const *wide;
    void (*report)(void *user, const gpunn_quantized_layer *layer); /* called for each layer; NULL: not */
    void *user;                                                     /* first argument of report */
} gpunn_quantization_args;
/* Makes a model for evaluation (.inference) from a calibrated one, which stays as it is. It computes the
 * outputs of gpunn_calibrate: gpunn_spec_output returns them. Inputs, named values and metadata are kept,
 * and doubles stay doubles (gpunn_set_dtype); the other ops, and values between them, stay F32.
 * gpunn_model_save writes it to one file, weights in 8 bits. Activations have one scale and zero point per
 * tensor, weights a scale for each output channel. A batch norm is folded into the layer before it; relu,
 * relu6, hardtanh and clamp become bounds of its result; dropout is left out. Layers are gpunn_linear and
 * gpunn_conv2d with at most 32768 inputs for each result, and sums of two values of one shape, of which
 * one is quantised. Max pools of images, concats, reshapes, permutes and slices between them move bytes.
 * What a concat joins has one scale. The errors are measured in one run of each model, on the inputs as
 * they are: those of the last batch of the calibration.
 * Returns NULL on failure. GPUNN_ERR_STATE: the model has no calibration of these weights, or has ops of
 * 8-bit numbers or adapters. GPUNN_ERR_ARGUMENT: no layer is left that may be quantised, or a pattern is
 * wrong. */
GPUNN_API gpunn_model *gpunn_quantize_(gpunn_model *model, gpunn_quantization_args args);
#define gpunn_quantize(...) gpunn_quantize_(GPUNN_NAMED(gpunn_quantization_args, __VA_ARGS__))

/* ==== >>spec ============================================================================================= *
 * A model as JSON (generator/model.schema.json), for the code generator, other programs and imported
 * models. */
typedef struct gpunn_spec_args {
    int         args_;
    const char *name; /* name of the model; default: that of the spec it came from, else the file's */
    /* results in evaluation; default: the spec's, else every value that no op reads */
    gpunn_tensor *outputs[8];
    gpunn_tensor *loss; /* training minimises it; default: the spec's, else none */
    /* Saves its kind, numbers, clipping and averaging, but not which parameters it trains. Default: the
     * spec's. */
    gpunn_optimizer *optimizer;
} gpunn_spec_args;
#ifndef GPUNN_NO_SPECS
/* Saves tensors, ops, initial values and settings of parameters, but not their values (for these use
 * gpunn_save). Tensors without a name get one in the file, such as "t5". Saving a model that gpunn_spec_load
 * made gives the same bytes. */
GPUNN_API gpunn_status gpunn_spec_save_(gpunn_model *model, const char *path, gpunn_spec_args args);
#define gpunn_spec_save(model, ...) gpunn_spec_save_((model), GPUNN_NAMED(gpunn_spec_args, __VA_ARGS__))
/* The same into memory: the bytes, without a 0 at the end, as U8 [bytes]; free with gpunn_array_free. After a
 * failure out is empty. A model without a name is called "model". */
GPUNN_API gpunn_status gpunn_spec_save_memory_(gpunn_model *model, gpunn_array *out, gpunn_spec_args args);
#define gpunn_spec_save_memory(model, ...) \
    gpunn_spec_save_memory_((model), GPUNN_NAMED(gpunn_spec_args, __VA_ARGS__))
typedef struct gpunn_spec_load_args {
    int             args_;
    const gpunn_io *io; /* source of the file; NULL: the file system */
    /* as in gpunn_model_create; the spec's loss and optimizer are read but not used */
    bool inference;
    /* As in gpunn_model_create. For single parameters the spec's "storage" goes before it; without .inference
     * that has no effect. */
    gpunn_dtype weights;
} gpunn_spec_load_args;
/* Builds the model. Returns NULL on an error, whose message begins with path:line:column. gpunn_find finds
 * each tensor by its name or, if it has none, its id. Fields that are for the generator only ("math",
 * "layout", "fuse") are not kept. */
GPUNN_API gpunn_model *gpunn_spec_load_(gpunn_device *dev, const char *path, gpunn_spec_load_args args);
#define gpunn_spec_load(dev, ...) gpunn_spec_load_((dev), GPUNN_NAMED(gpunn_spec_load_args, __VA_ARGS__))
/* The same from `size` bytes of JSON in memory. Error messages call it "memory". text is not needed
 * afterwards. */
GPUNN_API gpunn_model *gpunn_spec_load_memory_(gpunn_device *dev, const char *text, size_t size,
                                               gpunn_spec_load_args args);
#define gpunn_spec_load_memory(dev, text, ...) \
    gpunn_spec_load_memory_((dev), (text), GPUNN_NAMED(gpunn_spec_load_args, __VA_ARGS__))

/* Saves a model as one file: its spec, as gpunn_spec_save writes it, its weights, as gpunn_save does, and its
 * metadata. The file is a safetensors file with the spec in its metadata under "gpunn_spec", so gpunn_load
 * and Python's safetensors read its weights, too. Weights that are stored as blocks are written as they are:
 * U8 [rows, bytes of a row], with their format in the metadata under "gpunn_blocks:" and the name. A weight
 * that only ops of 8-bit numbers read is written as I8 under "int8:" and its name: its rounded rows, divided
 * by their scales. It is read as these integers times the scales. */
GPUNN_API gpunn_status gpunn_model_save_(gpunn_model *model, const char *path, gpunn_spec_args args);
#define gpunn_model_save(model, ...) gpunn_model_save_((model), GPUNN_NAMED(gpunn_spec_args, __VA_ARGS__))
/* The same into memory, as U8 [bytes]; free with gpunn_array_free. After a failure out is empty. */
GPUNN_API gpunn_status gpunn_model_save_memory_(gpunn_model *model, gpunn_array *out, gpunn_spec_args args);
#define gpunn_model_save_memory(model, ...) \
    gpunn_model_save_memory_((model), GPUNN_NAMED(gpunn_spec_args, __VA_ARGS__))
/* Builds the model of such a file and loads its weights, each of which the file must have. gpunn_find,
 * gpunn_spec_output, gpunn_spec_loss and gpunn_spec_optimizer find its tensors. With .inference blocks stay
 * as they are, as with .keep_blocks of gpunn_load; else they become floats. Returns NULL on failure.
 * GPUNN_ERR_FORMAT: also a safetensors file without a spec. */
GPUNN_API gpunn_model *gpunn_model_load_(gpunn_device *dev, const char *path, gpunn_spec_load_args args);
#define gpunn_model_load(dev, ...) gpunn_model_load_((dev), GPUNN_NAMED(gpunn_spec_load_args, __VA_ARGS__))
/* The same from `size` bytes in memory, which are not needed afterwards; .io is ignored. */
GPUNN_API gpunn_model *gpunn_model_load_memory_(gpunn_device *dev, const void *data, size_t size,
                                                gpunn_spec_load_args args);
#define gpunn_model_load_memory(dev, data, ...) \
    gpunn_model_load_memory_((dev), (data), GPUNN_NAMED(gpunn_spec_load_args, __VA_ARGS__))
/* Notes a text of the program's in a model, such as the names of classes; gpunn_model_save keeps it. key and
 * value are UTF-8 and copied; value NULL removes the key. GPUNN_ERR_ARGUMENT: the key is empty, "format" or
 * not UTF-8, or begins with "gpunn_". */
GPUNN_API gpunn_status gpunn_set_metadata(gpunn_model *model, const char *key, const char *value);
/* The text of a key, valid until the key is set again or the model destroyed. NULL: there is none. */
GPUNN_API const char *gpunn_get_metadata(const gpunn_model *model, const char *key);
/* Loss, outputs and optimizer of such a model's spec; NULL if it has none. The optimizer is a new one, with
 * the spec's clipping and averaging. */
GPUNN_API gpunn_tensor    *gpunn_spec_loss(gpunn_model *model);
GPUNN_API gpunn_tensor    *gpunn_spec_output(gpunn_model *model, int index);
GPUNN_API gpunn_optimizer *gpunn_spec_optimizer(gpunn_model *model);
#endif

/* ==== >>fit ============================================================================================= */
/* Training loop, evaluation and classification scores. */
#define GPUNN_MAX_METRICS 6 /* beside gpunn_fit_args.metric, which the history plot shows */
typedef struct gpunn_progress {
    int     epoch, epochs;  /* from 1; both include the epochs of earlier calls that this one continues */
    int64_t batch, batches; /* number of this batch, from 1, and of all of the epoch */
    float   loss, metric;   /* of this epoch so far, weighted by samples */
    float   validation_loss, validation_metric; /* of the last validation; NaN before */
    float   lr;                                 /* learning rate of the next step */
    double  seconds;                            /* since the epoch began */
    bool    epoch_done;                         /* true once at the end of each epoch, after the validation */
    bool    stopped_early; /* with epoch_done: patience has run out, this is the last epoch */
    /* epoch with the lowest validation loss (else training loss); 0 before the first ends */
    int         best_epoch;
    const char *metric_name; /* such as "accuracy"; NULL: there is no metric */
    /* of gpunn_fit_args.metrics, in that order */
    float metrics[GPUNN_MAX_METRICS], validation_metrics[GPUNN_MAX_METRICS];
} gpunn_progress;
typedef struct gpunn_fit_args {
    int           args_;
    gpunn_tensor *loss;               /* required: a scalar that training minimises */
    gpunn_tensor *metric;             /* a scalar such as gpunn_accuracy; may be NULL */
    gpunn_loader *train, *validation; /* train: required; validation: may be NULL */
    int           epochs;             /* required: number of epochs to run; GPUNN_ZERO: none */
    /* stop after so many epochs without a better validation loss (else training loss); 0: never */
    int patience;
    /* batches per update, as in gpunn_train_step; an epoch's last update uses those left over; default 1 */
    int accumulate;
    /* call gpunn_schedule_step after each update; default: after each epoch, with the validation loss */
    bool schedule_per_batch;
    /* validate and save best_weights with the weights, even if gpunn_set_ema keeps averages */
    bool no_ema;
    /* after each batch and epoch; false cancels */
    bool (*on_progress)(void *user, const gpunn_progress *progress);
    void       *user;                      /* first argument of the callbacks */
    const char *history_csv, *history_svg; /* rewritten after each epoch; NULL: none */
    const char *checkpoint;                /* written after each epoch; NULL: none */
    /* gpunn_save after each epoch that is the best so far; NULL: none. The model keeps its last weights: load
     * the best with gpunn_load, or set .restore_best. */
    const char   *best_weights;
    int          *epochs_run;                 /* receives the number of completed epochs */
    gpunn_tensor *metrics[GPUNN_MAX_METRICS]; /* further scalars for progress; ends at the first NULL */
    /* Called before the first batch of an epoch. Returning false cancels. */
    bool (*on_epoch_begin)(void *user, const gpunn_progress *progress);
    /* Called before each step. The batch is in the inputs, where it may be changed. Returning false
     * cancels. */
    bool (*on_batch_begin)(void *user, const gpunn_progress *progress);
    /* Keras's start_from_epoch: the first min_epochs epochs are never the best, and patience counts from
     * there. Default 0. */
    int min_epochs;
    /* Keras's restore_best_weights: keeps the weights of the best epoch in host memory, and the model ends
     * with them, after a callback's cancellation too. The optimizer keeps them for its next gpunn_fit.
     * gpunn_checkpoint_load drops them; unless a later epoch is better, the model then ends with its last
     * weights. */
    bool restore_best;
} gpunn_fit_args;
#ifndef GPUNN_NO_LOADERS
/* Trains a model. It continues where the optimizer's last gpunn_fit of the same loss ended, in this process
 * or before gpunn_checkpoint_load: epoch numbers, the best loss, its epoch and the history carry on. If no
 * epoch is left to run, nothing is written. .epochs has no default, since no number suits every model and 0
 * would train nothing: GPUNN_ERR_ARGUMENT if it is left out. It returns GPUNN_ERR_CANCELLED if a callback
 * cancels; everything stays usable. If the optimizer keeps averages (gpunn_set_ema), validation and
 * best_weights use them, while training continues with the weights. */
GPUNN_API gpunn_status gpunn_fit_(gpunn_optimizer *opt, gpunn_fit_args args);
#define gpunn_fit(...) gpunn_fit_(GPUNN_NAMED(gpunn_fit_args, __VA_ARGS__))
/* A ready-made on_progress. It draws a progress bar if stderr is a terminal, otherwise it prints one line per
 * epoch. user is not read. */
GPUNN_API bool gpunn_progress_bar(void *user, const gpunn_progress *progress);
/* Means of loss and metric (may be NULL) over one epoch of loader, in evaluation mode, weighted by samples.
 * With a loader that has a .group they are over all ranks' samples, and the call is common to all ranks. */
GPUNN_API gpunn_status gpunn_evaluate(gpunn_loader *loader, gpunn_tensor *loss, gpunn_tensor *metric,
                                      float *loss_mean, float *metric_mean);

/* Scores of a classifier, over all samples of an epoch. */
typedef struct gpunn_class_scores {
    int64_t samples;               /* samples whose label is a class; others are left out */
    float   accuracy;              /* all scores as defined by torch and scikit-learn */
    float   precision, recall, f1; /* macro: means over the classes that occur as labels or predictions */
    /* macro, one against the rest, of the softmax; NaN unless requested, or without two classes */
    float auc;
} gpunn_class_scores;
typedef struct gpunn_class_scores_args {
    int args_;
    /* receives the number of samples of class i predicted as j, at [i * classes + j]; NULL: not wanted */
    int64_t *confusion;
    bool     auc; /* compute auc; needs 4 bytes per sample and class */
} gpunn_class_scores_args;
/* Computes scores that are not means over batches, over one epoch of the loader, in evaluation mode. logits
 * [n, classes], labels [n]. With a loader that has a .group they are over all ranks' samples, and the call is
 * common to all ranks. */
GPUNN_API gpunn_status gpunn_evaluate_classes_(gpunn_loader *loader, gpunn_tensor *logits,
                                               gpunn_tensor *labels, gpunn_class_scores *scores,
                                               gpunn_class_scores_args args);
#define gpunn_evaluate_classes(loader, logits, labels, ...) \
    gpunn_evaluate_classes_((loader), (logits), (labels), GPUNN_NAMED(gpunn_class_scores_args, __VA_ARGS__))
#endif

/* ==== >>profile ========================================================================================= */
/* Times of layers and ops. */
typedef struct gpunn_profile_args {
    int args_;
    /* time training steps: forward and backward, with an optimizer its update too; else ... */
    gpunn_tensor    *loss;
    gpunn_tensor    *outputs[8]; /* ... time the evaluation of these */
    gpunn_optimizer *optimizer;  /* its updates change the parameters */
    int              runs;       /* default 10, after one run that does not count */
    /* Peak rates of the device per second: floating-point operations, and bytes moved. Default: measured with
     * a product and an addition of large matrices, which briefly takes 200 MB. */
    double peak_flops, peak_bytes;
    /* receives a table, line by line: steps by falling time, means over all runs */
    void (*write)(void *user, const char *text);
    void *user; /* first argument of write */
    /* file that receives the mean run as a Chrome trace (JSON), for ui.perfetto.dev; NULL: none */
    const char *trace;
} gpunn_profile_args;
#ifndef GPUNN_NO_PROFILE
/* Shows where the time goes, by layer and op. It runs the model on the current inputs and times each step
 * separately; on a GPU between events and outside any graph. There, steps that share a launch, perhaps with
 * the update, count for the first of them. On the CPU, convolutions that are computed together count for the
 * last of them. Bytes count every operand once. Operations follow the formula; an
 * element of a map or a sum counts as one. Running statistics, dropout and, with a loss, gradients change as
 * in any run. GPUNN_ERR_UNSUPPORTED: a custom backend that cannot time. Runs without it cost nothing
 * extra. */
GPUNN_API gpunn_status gpunn_profile_(gpunn_model *model, gpunn_profile_args args);
#define gpunn_profile(...) gpunn_profile_(GPUNN_NAMED(gpunn_profile_args, __VA_ARGS__))
#endif

#endif /* GPUNN__API_DATA_H */
