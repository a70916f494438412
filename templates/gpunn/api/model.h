#ifndef GPUNN__API_MODEL_H
#define GPUNN__API_MODEL_H
#include "api/config.h"

/* ==== >>status ======================================================================================================== */
#define GPUNN_STATUS_LIST(X)                                           \
    X(GPUNN_OK, "ok")                                                  \
    X(GPUNN_ERR_ARGUMENT, "bad argument")                              \
    X(GPUNN_ERR_SHAPE, "shapes do not fit")                            \
    X(GPUNN_ERR_DTYPE, "wrong dtype")                                  \
    X(GPUNN_ERR_MEMORY, "out of memory")                               \
    X(GPUNN_ERR_IO, "file could not be read or written")               \
    X(GPUNN_ERR_FORMAT, "file is damaged or of another format")        \
    X(GPUNN_ERR_DEVICE, "device not available or failed")              \
    X(GPUNN_ERR_UNSUPPORTED, "not supported by this backend or build") \
    X(GPUNN_ERR_STATE, "called at the wrong time")                     \
    X(GPUNN_ERR_NUMERIC, "NaN or infinity")                            \
    X(GPUNN_ERR_CANCELLED, "cancelled by a callback")

/* clang-format off */
typedef enum gpunn_status {
#define GPUNN__X(id, text) id,
    GPUNN_STATUS_LIST(GPUNN__X)
#undef GPUNN__X
    GPUNN_STATUS_COUNT
} gpunn_status;
/* clang-format on */

/* GPUNN_VERSION_NUMBER of the implementation that is linked: 1 is 0.1, 2003 is 2.3. LIBRARY tells what that promises. */
GPUNN_API int gpunn_version(void);
/* "GPUNN_ERR_SHAPE: shapes do not fit"; any int is safe. */
GPUNN_API const char *gpunn_status_name(gpunn_status status);

/* ==== >>device ======================================================================================================== *
 * torch.device and torch.cuda.*. Not thread-safe per device; different devices are independent. */
typedef struct gpunn_device  gpunn_device;
typedef struct gpunn_backend gpunn_backend; /* >>backend */
typedef enum gpunn_device_type { GPUNN_DEVICE_AUTO = 0, GPUNN_DEVICE_CPU, GPUNN_DEVICE_CUDA } gpunn_device_type;
/* How a model computes. Parameters, gradients of parameters, statistics, sums and losses are F32 in all of them, and so is
 * everything that the program reads and writes. The CPU computes in F32, but for products of BF16 where it has them (AMX, or
 * AVX-512 BF16 of AMD). A GPU that has none, one of compute capability below 8.0, computes such a model in F32, and log_fn hears
 * of it. The first such product of a process asks Linux for AMX, after which an alternate signal stack needs 11 KB. */
typedef enum gpunn_precision {
    GPUNN_PRECISION_F32 = 0,
    GPUNN_PRECISION_TF32, /* products round their operands to 10 bits of mantissa; values stay F32 */
    GPUNN_PRECISION_BF16, /* values between layers and operands of products are BF16 */
    GPUNN_PRECISION_F16   /* the same in F16, trained with a dynamic loss scale */
} gpunn_precision;
typedef enum gpunn_log_level { GPUNN_LOG_ERROR = 0, GPUNN_LOG_WARNING, GPUNN_LOG_INFO } gpunn_log_level;

enum { GPUNN_LOCAL_RANK = -1 }; /* an index: gpunn_local_rank(), modulo the GPUs that the process sees */
typedef struct gpunn_device_args {
    int               args_;
    gpunn_device_type type;    /* AUTO: a GPU when its companion is linked and can use one, else the CPU; log_fn hears why */
    int               index;   /* which GPU; GPUNN_LOCAL_RANK where several processes have one each */
    uint64_t          seed;    /* initial weights, dropout; the same seed gives the same run */
    int               threads; /* CPU threads; 0: OMP_NUM_THREADS, or the processors that the process may use (see RANKS) */
    bool              deterministic; /* only algorithms whose result never varies; the CPU has no others */
    bool              benchmark; /* GPU: time the algorithms of convolutions and products when a shape is new, keep the fastest */
    size_t            memory_limit;    /* bytes this device may hold; 0 = no limit */
    size_t            workspace_limit; /* GPU: bytes an algorithm may use; 0 = 256 MiB */
    /* GPU: the program's cudaStream_t, of GPU index, in whose order all work is then done; it must live until the device is
     * closed. NULL: one of our own. Default streams are cudaStreamLegacy and cudaStreamPerThread. With a stream, AUTO is CUDA. */
    void *stream;
    /* GPU: memory in the order of a stream, the program's or one of ours, in place of our pool; both or neither. Results are at
     * multiples of 256 bytes, as cudaMallocAsync gives them; NULL on failure. */
    void *(*cuda_malloc_fn)(void *user, size_t bytes, void *stream);
    void (*cuda_free_fn)(void *user, void *ptr, size_t bytes, void *stream);
    /* Host memory. new_size 0 frees; NULL on failure; results are aligned as malloc's. NULL: realloc and free. */
    void *(*realloc_fn)(void *user, void *ptr, size_t old_size, size_t new_size);
    /* NULL: silence. */
    void (*log_fn)(void *user, gpunn_log_level level, const char *message);
    /* The CPU's work on threads of the program's, .threads of them at most: calls run(arg) `count` times, best at once on as many
     * threads, the calling one among them, and returns when all calls have. THREADS tells more. NULL: on threads of ours. */
    void (*parallel_fn)(void *user, int count, void (*run)(void *arg), void *arg);
    void                *user;
    const gpunn_backend *backend; /* a backend of your own; overrides type */
} gpunn_device_args;

/* NULL on failure: gpunn_error(NULL) says why. */
GPUNN_API gpunn_device *gpunn_device_open_(gpunn_device_args args);
#define gpunn_device_open(...) gpunn_device_open_(GPUNN_ARGS(gpunn_device_args, __VA_ARGS__))
/* A device that has models is freed with the last of them, which log_fn hears: objects may be closed in any order, each once.
 * NULL is fine. */
GPUNN_API void gpunn_device_close(gpunn_device *dev);
/* The first failure in words, "" when there was none. Valid until the next call on the device. */
GPUNN_API const char  *gpunn_error(const gpunn_device *dev);
GPUNN_API gpunn_status gpunn_last_status(const gpunn_device *dev);
GPUNN_API void         gpunn_clear_error(gpunn_device *dev);
/* GPUs that gpunn_device_open can use: 0 without gpunn_cuda.cu, without a driver or without a GPU. */
GPUNN_API int               gpunn_cuda_device_count(void);
GPUNN_API gpunn_device_type gpunn_device_get_type(const gpunn_device *dev);
GPUNN_API const char       *gpunn_device_name(const gpunn_device *dev); /* "Intel(R) Xeon(R) ..., 2 threads, AVX-512" */
GPUNN_API int               gpunn_device_threads(const gpunn_device *dev);
GPUNN_API size_t            gpunn_memory_allocated(const gpunn_device *dev); /* bytes held for tensors now */
GPUNN_API size_t            gpunn_memory_peak(const gpunn_device *dev);      /* most bytes ever held */
#define gpunn_device_type(dev) gpunn_device_get_type(dev) /* without a parenthesis behind it the name is the type's */
/* Bytes taken from the system: on a GPU what the pool holds, in use or not; on the CPU the same as above. */
GPUNN_API size_t gpunn_memory_reserved(const gpunn_device *dev);
GPUNN_API size_t gpunn_memory_reserved_peak(const gpunn_device *dev);
/* Frees the arenas and plans of the device's models, gives the system back what the pool holds, and ends the threads of ours; the
 * next run of each model plans and allocates again. */
GPUNN_API void gpunn_empty_cache(gpunn_device *dev);
/* Waits for all work. A training step on a GPU may report a loss or gradient that was not finite only here or in a later step. */
GPUNN_API gpunn_status gpunn_synchronize(gpunn_device *dev);
/* What gpunn_cuda.cu finds on this machine: driver, libraries, GPUs, and what is missing; line by line. */
GPUNN_API void gpunn_device_report(void (*write)(void *user, const char *text), void *user);

/* ==== >>model ========================================================================================================= */
typedef struct gpunn_model     gpunn_model;
typedef struct gpunn_tensor    gpunn_tensor;
typedef struct gpunn_optimizer gpunn_optimizer;
typedef struct gpunn_loader    gpunn_loader;

/* X(id, text in messages, safetensors' name, bytes) */
#define GPUNN_DTYPE_LIST(X)          \
    X(GPUNN_F32, "f32", "F32", 4)    \
    X(GPUNN_F16, "f16", "F16", 2)    \
    X(GPUNN_BF16, "bf16", "BF16", 2) \
    X(GPUNN_I64, "i64", "I64", 8)    \
    X(GPUNN_I32, "i32", "I32", 4)    \
    X(GPUNN_U8, "u8", "U8", 1)       \
    X(GPUNN_BOOL, "bool", "BOOL", 1)

/* clang-format off */
typedef enum gpunn_dtype {
    GPUNN_DTYPE_DEFAULT = 0,
#define GPUNN__X(id, text, file_name, bytes) id,
    GPUNN_DTYPE_LIST(GPUNN__X)
#undef GPUNN__X
    GPUNN_DTYPE_COUNT
} gpunn_dtype;
/* clang-format on */

#define GPUNN_MAX_RANK 8
#define GPUNN_BATCH (-1) /* the batch, which varies between runs; GPUNN_BATCH * k is k times it; gpunn_size: what else varies */
/* Ends at the first 0; GPUNN_SHAPE(0) is a scalar. */
typedef struct gpunn_shape {
    int64_t dim[GPUNN_MAX_RANK];
} gpunn_shape;

#define GPUNN_END 127 /* of a list of axes */
/* A list of axes; negative ones count from the end. GPUNN_ALL: every axis. */
typedef struct gpunn_axes {
    int axis[GPUNN_MAX_RANK + 1];
} gpunn_axes;
#define GPUNN_ALL (GPUNN_LITERAL(gpunn_axes){{GPUNN_END}})
#ifdef __cplusplus /* of any integers, a size_t among them */
extern "C++" {
template <typename... Numbers> constexpr gpunn_shape gpunn__shape(Numbers... dim)
{
    return gpunn_shape{{static_cast<int64_t>(dim)...}};
}
template <typename... Numbers> constexpr gpunn_axes gpunn__axes(Numbers... axis)
{
    return gpunn_axes{{static_cast<int>(axis)..., GPUNN_END}};
}
}
#define GPUNN_SHAPE(...) gpunn__shape(__VA_ARGS__)
#define GPUNN_AXES(...) gpunn__axes(__VA_ARGS__)
#else
#define GPUNN_SHAPE(...) ((gpunn_shape){{__VA_ARGS__}})
#define GPUNN_AXES(...) ((gpunn_axes){{__VA_ARGS__, GPUNN_END}})
#endif

GPUNN_API size_t      gpunn_dtype_size(gpunn_dtype dtype); /* bytes per element; 0 for what is none */
GPUNN_API const char *gpunn_dtype_name(gpunn_dtype dtype);

typedef struct gpunn_model_args {
    int             args_;
    gpunn_precision precision;
    /* The model is only evaluated: linear layers compute from the weights as they are, where others (and a small network's one
     * kernel, see FUSED KERNELS) keep a copy that is ordered for batches; optimizers and gradients are GPUNN_ERR_STATE. With
     * precision BF16 or F16 weights that nothing but products and embeddings reads are in these 16 bits alone, from the first
     * run, write or load on: gpunn_read gives them as F32, gpunn_save saves them so, gpunn_data has none of them, other ops that
     * would read them later are GPUNN_ERR_UNSUPPORTED; one that is bound before stays F32. */
    bool inference;
} gpunn_model_args;
GPUNN_API gpunn_model *gpunn_model_create_(gpunn_device *dev, gpunn_model_args args);
#define gpunn_model_create(...) gpunn_model_create_(GPUNN_NAMED(gpunn_model_args, __VA_ARGS__))
/* torch's net.to(device): moves parameters, buffers, inputs, optimizers with their state, random state; training goes on as if
 * nothing had happened. Values of the last run and gradients stay behind. Loaders need nothing. Both devices must have the same
 * realloc_fn and user. After a failure the model is where it was. */
GPUNN_API gpunn_status gpunn_model_to(gpunn_model *model, gpunn_device *dev);
/* Of the plans that are kept, one for each (outputs, mode, sizes), the least recently used ones go where there would be more than
 * count (0: 32), or where they would hold more bytes, of the host and in caches of the device, than that (0: no limit). That of
 * the last run always stays. */
GPUNN_API gpunn_status gpunn_set_plan_limit(gpunn_model *model, int count, size_t bytes);
/* Frees its tensors, at once or, where optimizers or loaders of the model live, with the last of them. NULL is fine. */
GPUNN_API void gpunn_model_destroy(gpunn_model *model);

/* A dimension that varies between runs, for use in shapes of inputs, gpunn_reshape and gpunn_expand, in gpunn_slice, in the size
 * of gpunn_interpolate and in text of other sizes. text is a name, which the first call gives to a new size (not N, which specs
 * call the batch), or a formula of names, "batch" among them, and integers with + - * / and parentheses, where / rounds down:
 * "2 * T - 1"; 127 bytes at most. Equal formulas are one number. It is of this model only, and C's arithmetic does not work on
 * it. After a failure: a number that every shape refuses. */
typedef struct gpunn_size_args {
    int     args_;
    int64_t min, max; /* of a new name: runs with less or more are refused; default 1, and none */
    int64_t
        multiple; /* of a new name: of what it is a multiple, so that halves and doubles of it are known to agree; default 1 */
} gpunn_size_args;
GPUNN_API int64_t gpunn_size_(gpunn_model *model, const char *text, gpunn_size_args args);
#define gpunn_size(model, ...) gpunn_size_((model), GPUNN_NAMED(gpunn_size_args, __VA_ARGS__))

/* A value that the program writes before each run. dtype F32, I64, I32, U8 or BOOL (0: F32); at most one dimension of the shape
 * is GPUNN_BATCH, and then all inputs of a run hold the same batch; any may be gpunn_size's. */
GPUNN_API gpunn_tensor *gpunn_input(gpunn_model *model, const char *name, gpunn_dtype dtype, gpunn_shape shape);

typedef enum gpunn_init_kind {
    GPUNN_INIT_DEFAULT = 0, /* zeros */
    GPUNN_INIT_ZEROS,
    GPUNN_INIT_CONSTANT,       /* a */
    GPUNN_INIT_UNIFORM,        /* a to b */
    GPUNN_INIT_NORMAL,         /* mean a, standard deviation b */
    GPUNN_INIT_KAIMING_UNIFORM /* U(+-1/sqrt(fan_in)), torch.nn's own for linear and conv; a: fan_in, 0 = from the shape */
} gpunn_init_kind;
typedef struct gpunn_init {
    gpunn_init_kind kind;
    float           a, b;
} gpunn_init;

/* A parameter of the user's own; F32, no GPUNN_BATCH in its shape; names are unique in a model. */
GPUNN_API gpunn_tensor *gpunn_parameter(gpunn_model *model, const char *name, gpunn_shape shape, gpunn_init init);
/* A value that runs read and write (STATES): what one run leaves by gpunn_assign, the next one finds. F32, no GPUNN_BATCH in its
 * shape; init until it is first assigned or written. No optimizer trains it and no gradient goes through it. */
GPUNN_API gpunn_tensor *gpunn_state(gpunn_model *model, const char *name, gpunn_shape shape, gpunn_init init);
/* Whether gpunn_save and checkpoints have a state, and loading asks for it; at first they do not. */
GPUNN_API gpunn_status gpunn_set_saved(gpunn_tensor *state, bool saved);
/* All states of a model as their init says. */
GPUNN_API gpunn_status gpunn_reset_states(gpunn_model *model);
/* A further set of values for all states of a model, initial ones at first: several texts, sounds or users take turns with one
 * model and its weights. It takes the states' bytes. Create it when the model has all its states; NULL on failure. */
typedef struct gpunn_session gpunn_session;
GPUNN_API gpunn_session     *gpunn_session_create(gpunn_model *model);
/* From now on the states are the session's, for runs and for all calls on them, files too; NULL: the model's own again. Taking
 * turns copies nothing and plans nothing anew, but for the first time. The states cannot be bound, nor the model moved, from then
 * on. GPUNN_ERR_ARGUMENT: a session of another model; GPUNN_ERR_STATE: a state is newer than the session, or bound by the
 * program. */
GPUNN_API gpunn_status gpunn_use_session(gpunn_model *model, gpunn_session *session);
/* NULL is fine; of the one that is in use, the model's own states are. */
GPUNN_API void gpunn_session_destroy(gpunn_session *session);
/* Values that never change and are not saved; F32, copied. */
GPUNN_API gpunn_tensor *gpunn_constant(gpunn_model *model, gpunn_shape shape, const float *values);

/* Initial values of parameters not yet run or written; later calls draw them anew. weight: of rank 2 and more. */
GPUNN_API gpunn_status gpunn_set_init(gpunn_tensor *parameter, gpunn_init init);

GPUNN_API gpunn_tensor *gpunn_find(gpunn_model *model,
                                   const char  *name); /* input, parameter, buffer or named value; NULL: none */
GPUNN_API gpunn_tensor *gpunn_set_name(gpunn_tensor *t, const char *name); /* returns t; NULL when the name is taken */
GPUNN_API const char   *gpunn_tensor_name(const gpunn_tensor *t);          /* "" when it has none */
GPUNN_API gpunn_shape   gpunn_tensor_shape(const gpunn_tensor *t);         /* GPUNN_BATCH and gpunn_size's where they are */
GPUNN_API gpunn_shape
gpunn_tensor_sizes(const gpunn_tensor *t); /* the same in numbers: of the last run, an input's of the last write */
GPUNN_API gpunn_dtype gpunn_tensor_dtype(const gpunn_tensor *t);
GPUNN_API size_t      gpunn_tensor_bytes(const gpunn_tensor *t); /* at the batch size of the last run or write */
/* Parameters, buffers (running statistics) and states of gpunn_set_saved in the order of their creation: what gpunn_save
 * writes. */
GPUNN_API int           gpunn_parameter_count(const gpunn_model *model);
GPUNN_API gpunn_tensor *gpunn_parameter_at(gpunn_model *model, int index);
GPUNN_API gpunn_tensor *gpunn_input_at(gpunn_model *model, int index); /* NULL: there are no more */

/* Host to device: inputs (their bytes tell the batch size), parameters, buffers, states. bytes must fit exactly. On a GPU the
 * memory may be that GPU's, here and in those that read: then it is copied in the stream's order, and nobody waits. */
GPUNN_API gpunn_status gpunn_write(gpunn_tensor *t, const void *host, size_t bytes);
/* The same for an input of which more than one dimension varies, which bytes cannot tell: shape is that of what host holds. */
GPUNN_API gpunn_status gpunn_write_shape(gpunn_tensor *t, const void *host, gpunn_shape shape);
/* Device to host: parameters, buffers, states, inputs, outputs of the last run, kept values. */
GPUNN_API gpunn_status gpunn_read(gpunn_tensor *t, void *host, size_t bytes);
/* The gradient of a parameter, or of a value named to gpunn_retain_grad, after gpunn_backward or gpunn_train_step. */
GPUNN_API gpunn_status gpunn_read_grad(gpunn_tensor *t, void *host, size_t bytes);
/* The value of a one-element F32 or I64 tensor; NaN on failure. */
GPUNN_API float gpunn_item(gpunn_tensor *t);

/* The program's memory in the place of ours, without a copy, until it is bound to other memory or, with NULL, to ours again. On a
 * GPU it is memory of that GPU, or shared with it, at a multiple of 64 bytes; on the CPU any that is aligned to its elements.
 * Row-major, in the tensor's dtype. It must stay until it is unbound or the model destroyed, hold nothing else that a run reads
 * or writes, and be touched only in the stream's order. Going round between a few buffers is cheap: nothing is planned or
 * captured anew.
 *     input      read by every run; bytes tell the batch, as those of gpunn_write do
 *     parameter, buffer, state   read and trained there, with the values that it holds; may be changed between runs. Unbinding
 *                                copies them
 *                back to our memory, so it must still be there.
 *     value      written by every run that computes it, as if by gpunn_keep; bytes: enough for the largest batch
 * GPUNN_ERR_ARGUMENT: memory of the host or of another GPU, or misaligned; GPUNN_ERR_SHAPE: too few or too many bytes;
 * GPUNN_ERR_STATE: a constant. */
GPUNN_API gpunn_status gpunn_bind(gpunn_tensor *t, void *memory, size_t bytes);
/* The same for the gradient, F32, of a parameter, which is set or, without gpunn_zero_grad, added to; or of an input or value, as
 * if by gpunn_retain_grad. */
GPUNN_API gpunn_status gpunn_bind_grad(gpunn_tensor *t, void *memory, size_t bytes);
/* Where that lies which gpunn_read and gpunn_read_grad read, bound or not, to be read in the stream's order until the next call
 * on the model; NULL after a failure, also where a value is stored otherwise than in its dtype and row-major: bind it. */
GPUNN_API const void *gpunn_data(gpunn_tensor *t);
GPUNN_API const void *gpunn_data_grad(gpunn_tensor *t);

/* DLPack 1.x, by which frameworks hand tensors to each other. gpunn_dlpack is the layout of its DLManagedTensorVersioned, for
 * programs without dlpack.h, which may be included before or after. */
struct DLManagedTensorVersioned;
enum {
    GPUNN_DLPACK_CPU = 1,
    GPUNN_DLPACK_CUDA = 2,
    GPUNN_DLPACK_CUDA_HOST = 3,
    GPUNN_DLPACK_CUDA_MANAGED = 13
}; /* device_type */
enum { GPUNN_DLPACK_INT, GPUNN_DLPACK_UINT, GPUNN_DLPACK_FLOAT, GPUNN_DLPACK_BFLOAT = 4, GPUNN_DLPACK_BOOL = 6 }; /* dtype_code */
enum { GPUNN_DLPACK_READ_ONLY = 1 };                                                                              /* flags */
typedef struct gpunn_dlpack {
    uint32_t major, minor;                                  /* of the layout: 1 and any */
    void    *context;                                       /* the deleter's */
    void (*deleter)(struct DLManagedTensorVersioned *self); /* NULL: nothing to do */
    uint64_t flags;
    void    *data;
    int32_t  device_type, device_id, rank;
    uint8_t  dtype_code, dtype_bits;
    uint16_t lanes;          /* 1 */
    int64_t *shape, *stride; /* stride, in elements: NULL for row-major */
    uint64_t byte_offset;    /* of the first element, from data */
} gpunn_dlpack;
/* What gpunn_data gives, not a copy: valid as long as that is. Call its deleter once; it may outlive the device, but its memory
 * does not. NULL after a failure. */
GPUNN_API struct DLManagedTensorVersioned *gpunn_to_dlpack(gpunn_tensor *t);
/* gpunn_bind to its memory, which must have the tensor's dtype, shape and device and be row-major; to be read only: an input.
 * When the tensor is bound otherwise, unbound or destroyed, work on it is waited for and the deleter called, once. After a
 * failure it is still the program's. */
GPUNN_API gpunn_status gpunn_bind_dlpack(gpunn_tensor *t, struct DLManagedTensorVersioned *managed);

GPUNN_API gpunn_status gpunn_set_trainable(gpunn_tensor *parameter, bool trainable); /* false freezes it */
/* Whether a batch_norm, or an instance_norm that has them, takes its running statistics in training too, and leaves them alone;
 * t: its result or its running_mean. Specs do not tell. */
GPUNN_API gpunn_status gpunn_freeze_statistics(gpunn_tensor *t, bool frozen);
GPUNN_API gpunn_status gpunn_set_lr_scale(gpunn_tensor *parameter, float scale); /* its learning rate, times scale */
GPUNN_API gpunn_status gpunn_set_decay(gpunn_tensor *parameter, bool decay);     /* false: no weight decay */
/* The value stays readable after every run; training steps compute it too when it needs no input that the loss does not. */
GPUNN_API gpunn_tensor *gpunn_keep(gpunn_tensor *t);
GPUNN_API gpunn_tensor *gpunn_retain_grad(gpunn_tensor *t); /* as torch's: also for inputs and values between */
/* torch.utils.checkpoint: training does not hold what is computed from first on the way to last, neither included, but computes
 * it again when the backward pass gets there: less memory for more time, and the same gradients to the bit, dropout included.
 * Running statistics count once. Held as ever: values that gpunn_keep, gpunn_retain_grad or gpunn_bind name, and such as read a
 * state. Parts of a model may follow one another, last of one being first of the next, but not overlap (GPUNN_ERR_ARGUMENT).
 * Specs do not tell. */
GPUNN_API gpunn_status gpunn_recompute(gpunn_tensor *first, gpunn_tensor *last);
/* The same where you tell only how much there is: chooses parts, in the place of those that were named before, of which as little
 * as possible is computed again, so that a training step of loss with this batch holds no more than bytes, as gpunn_model_summary
 * counts them (optimizers' state stands beside; a gpunn_size counts as there); none where all fits. It plans some dozens of
 * times. Best before the first run: memory that runs hold already comes back by gpunn_empty_cache alone. GPUNN_ERR_MEMORY tells
 * the least that would do, and parts are what they were. */
GPUNN_API gpunn_status gpunn_recompute_within(gpunn_tensor *loss, int64_t batch_size, size_t bytes);

typedef struct gpunn_summary_args {
    int           args_;
    int64_t       batch_size;                    /* default 1 */
    gpunn_tensor *loss;                          /* a training step of it; NULL: evaluation of outputs */
    gpunn_tensor *outputs[8];                    /* default: every value that no op reads */
    void (*write)(void *user, const char *text); /* receives the text piece by piece; NULL: only bytes is wanted */
    void   *user;
    size_t *bytes; /* receives all device bytes that such a run holds: parameters, gradients, inputs, arena */
} gpunn_summary_args;
/* Layers, shapes, parameters and the exact bytes, before anything is allocated on the device. A gpunn_size counts as its .max, or
 * without one as in the last run, before it as its .min. */
GPUNN_API gpunn_status gpunn_model_summary_(gpunn_model *model, gpunn_summary_args args);
#define gpunn_model_summary(...) gpunn_model_summary_(GPUNN_NAMED(gpunn_summary_args, __VA_ARGS__))

#endif /* GPUNN__API_MODEL_H */
