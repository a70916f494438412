#ifndef GPUNN__API_MODEL_H
#define GPUNN__API_MODEL_H
#include "api/config.h"

/* ==== >>status ========================================================================================== */
/* Return codes. X(id, its meaning) */
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

/* What a function returns: GPUNN_OK, or why it failed. gpunn_error(dev) then has a sentence about it. A
 * function that returns a pointer returns NULL instead, and gpunn_last_status(dev) is the reason. After a
 * failure all objects are as before the call, unless the function's comment says otherwise.
 * These failures are common to all functions. A comment names only what it adds to them.
 * - GPUNN_ERR_ARGUMENT: a pointer is NULL, or a number or an enum value is out of its range.
 * - GPUNN_ERR_SHAPE: a number of bytes, or the shape of a tensor or of an input, does not fit.
 * - GPUNN_ERR_DTYPE: a tensor has a dtype that the function does not take.
 * - GPUNN_ERR_STATE: a run lacks an input that was never written, or a value was read that no run has
 *   computed.
 * - GPUNN_ERR_MEMORY: the system has no more memory, or .memory_limit of the device is reached.
 * - GPUNN_ERR_DEVICE: the device has failed. On a GPU this is final.
 * - GPUNN_ERR_IO, GPUNN_ERR_FORMAT: a file cannot be read or written, or does not hold what it should. */
/* clang-format off */
typedef enum gpunn_status {
#define GPUNN__X(id, text) id,
    GPUNN_STATUS_LIST(GPUNN__X)
#undef GPUNN__X
    GPUNN_STATUS_COUNT
} gpunn_status;
/* clang-format on */

/* GPUNN_VERSION_NUMBER of the linked implementation: 1 is 0.1, 2003 is 2.3. The section LIBRARY says what it
 * guarantees. */
GPUNN_API int gpunn_version(void);
/* Name and meaning of a status, such as "GPUNN_ERR_SHAPE: shapes do not fit". Any int is safe. */
GPUNN_API const char *gpunn_status_name(gpunn_status status);

/* ==== >>device =========================================================================================== *
 * Devices, like torch.device and torch.cuda.*. Not thread-safe per device; different devices are
 * independent. */
typedef struct gpunn_device  gpunn_device;  /* a GPU or the CPU, with its memory, threads and first error */
typedef struct gpunn_backend gpunn_backend; /* >>backend */
/* Which device gpunn_device_open opens. */
typedef enum gpunn_device_type {
    GPUNN_DEVICE_AUTO = 0,
    GPUNN_DEVICE_CPU,
    GPUNN_DEVICE_CUDA
} gpunn_device_type;
/* Precision of a model's computation. Parameters, their gradients, statistics, sums and losses are F32 in
 * every precision, and so are all values the program reads and writes. (It may hold them as F64, see
 * gpunn_set_dtype; nothing is computed in F64.) The CPU computes in F32, except
 * products of BF16 where it supports them (AMX, or AVX-512 BF16 of AMD). A GPU without 16-bit support
 * (compute capability below 8.0) computes such a model in F32 and reports it to log_fn. The first BF16
 * product of a process requests AMX from Linux; an alternate signal stack then needs 11 KB. */
typedef enum gpunn_precision {
    GPUNN_PRECISION_F32 = 0,
    GPUNN_PRECISION_TF32, /* products round their operands to 10 bits of mantissa; values stay F32 */
    GPUNN_PRECISION_BF16, /* values between layers, and operands of products, are BF16 */
    GPUNN_PRECISION_F16   /* the same in F16, trained with a dynamic loss scale */
} gpunn_precision;
/* How much a message of log_fn matters. */
typedef enum gpunn_log_level { GPUNN_LOG_ERROR = 0, GPUNN_LOG_WARNING, GPUNN_LOG_INFO } gpunn_log_level;

enum { GPUNN_LOCAL_RANK = -1 }; /* value for index: gpunn_local_rank(), modulo the number of visible GPUs */
typedef struct gpunn_device_args {
    int args_;
    /* AUTO: a GPU if gpunn_cuda.cu is linked and finds one, else the CPU; log_fn receives the reason */
    gpunn_device_type type;
    int               index; /* GPU index; GPUNN_LOCAL_RANK if several processes use one GPU each */
    uint64_t          seed;  /* for initial weights and dropout; the same seed gives the same run */
    /* CPU threads; 0: OMP_NUM_THREADS, or the processors available to the process (see RANKS) */
    int threads;
    /* use only algorithms with reproducible results; the CPU has no others */
    bool deterministic;
    /* GPU: time the algorithms of convolutions and products for each new shape, and use the fastest */
    bool   benchmark;
    size_t memory_limit;    /* most bytes this device may hold; 0: no limit */
    size_t workspace_limit; /* GPU: most bytes of workspace for an algorithm; 0: 256 MiB */
    /* GPU: a user-owned cudaStream_t of GPU `index`, in whose order all work runs. It must live until the
     * device is closed. NULL: the library creates one. Default streams are cudaStreamLegacy and
     * cudaStreamPerThread. With a stream, AUTO means CUDA. */
    void *stream;
    /* GPU: stream-ordered allocator, used instead of the library's pool; set both or neither. stream is the
     * program's or the library's. Results are aligned to 256 bytes, as from cudaMallocAsync; NULL on
     * failure. */
    void *(*cuda_malloc_fn)(void *user, size_t bytes, void *stream);
    /* Frees what cuda_malloc_fn returned, in the order of the stream. */
    void (*cuda_free_fn)(void *user, void *ptr, size_t bytes, void *stream);
    /* Host allocator. new_size 0 frees; returns NULL on failure; results are aligned as malloc's. NULL:
     * realloc and free. */
    void *(*realloc_fn)(void *user, void *ptr, size_t old_size, size_t new_size);
    /* Receives warnings and notes, each one line. NULL: no messages. */
    void (*log_fn)(void *user, gpunn_log_level level, const char *message);
    /* Runs CPU work on the program's threads, at most .threads of them. It calls run(arg) `count` times, if
     * possible in parallel and including the calling thread, and returns when all calls have returned. The
     * section THREADS has details. NULL: the library's own threads. */
    void (*parallel_fn)(void *user, int count, void (*run)(void *arg), void *arg);
    void                *user;    /* first argument of the functions above */
    const gpunn_backend *backend; /* a custom backend; overrides type */
} gpunn_device_args;

/* Opens a device, by default the first GPU that works, else the CPU. Returns NULL on failure: see
 * gpunn_error(NULL). GPUNN_ERR_DEVICE: .type is CUDA, and no GPU works. */
GPUNN_API gpunn_device *gpunn_device_open_(gpunn_device_args args);
#define gpunn_device_open(...) gpunn_device_open_(GPUNN_ARGS(gpunn_device_args, __VA_ARGS__))
/* Closes a device; NULL is allowed. A device with models is freed with the last of them, and log_fn is told
 * so. Objects may thus be closed in any order, each once. */
GPUNN_API void gpunn_device_close(gpunn_device *dev);
/* Message of the first failure, "" if there was none. Valid until the next call on the device. */
GPUNN_API const char *gpunn_error(const gpunn_device *dev);
/* Status of the first failure, GPUNN_OK if there was none. */
GPUNN_API gpunn_status gpunn_last_status(const gpunn_device *dev);
/* Forgets the first failure, so that the next one is kept. */
GPUNN_API void gpunn_clear_error(gpunn_device *dev);
/* Number of GPUs that gpunn_device_open can use. 0 without gpunn_cuda.cu, a driver or a GPU. */
GPUNN_API int gpunn_cuda_device_count(void);
/* Whether the device is a GPU or the CPU. gpunn_device_type(dev) is the same; when no parenthesis follows,
 * that name means the type. */
GPUNN_API gpunn_device_type gpunn_device_get_type(const gpunn_device *dev);
#define gpunn_device_type(dev) gpunn_device_get_type(dev)
/* Name of the hardware, such as "Intel(R) Xeon(R) ..., 2 threads, AVX-512". */
GPUNN_API const char *gpunn_device_name(const gpunn_device *dev);
/* Number of threads that compute on the CPU. */
GPUNN_API int    gpunn_device_threads(const gpunn_device *dev);
GPUNN_API size_t gpunn_memory_allocated(const gpunn_device *dev); /* bytes held for tensors now */
GPUNN_API size_t gpunn_memory_peak(const gpunn_device *dev);      /* most bytes ever held */
/* Bytes taken from the system. On a GPU: all bytes of the pool, in use or not. On the CPU: the same as
 * gpunn_memory_allocated. */
GPUNN_API size_t gpunn_memory_reserved(const gpunn_device *dev);
/* The most bytes ever taken from the system. */
GPUNN_API size_t gpunn_memory_reserved_peak(const gpunn_device *dev);
/* Frees the arenas and plans of the device's models, returns the pool's memory to the system and ends the
 * library's threads. The next run of each model plans and allocates again. */
GPUNN_API void gpunn_empty_cache(gpunn_device *dev);
/* Waits for all work. A training step on a GPU may report a loss or gradient that was not finite only here,
 * or in a later step. */
GPUNN_API gpunn_status gpunn_synchronize(gpunn_device *dev);
/* Reports, line by line, what gpunn_cuda.cu finds on this machine: driver, libraries, GPUs, and what is
 * missing. */
GPUNN_API void gpunn_device_report(void (*write)(void *user, const char *text), void *user);

/* ==== >>model =========================================================================================== */
/* Models, tensors, shapes, parameters and access to their values. */
typedef struct gpunn_model     gpunn_model;
typedef struct gpunn_tensor    gpunn_tensor;
typedef struct gpunn_optimizer gpunn_optimizer;
typedef struct gpunn_loader    gpunn_loader;

/* The dtypes. X(id, text in messages, safetensors' name, bytes) */
#define GPUNN_DTYPE_LIST(X)          \
    X(GPUNN_F32, "f32", "F32", 4)    \
    X(GPUNN_F16, "f16", "F16", 2)    \
    X(GPUNN_BF16, "bf16", "BF16", 2) \
    X(GPUNN_I64, "i64", "I64", 8)    \
    X(GPUNN_I32, "i32", "I32", 4)    \
    X(GPUNN_U8, "u8", "U8", 1)       \
    X(GPUNN_BOOL, "bool", "BOOL", 1) \
    X(GPUNN_F64, "f64", "F64", 8) /* of the program's values only: nothing is computed in it */

/* Formats of quantised weights, bit for bit those of GGUF files. Consecutive numbers in a block share scales.
 * NF4, QLoRA's 4-bit NormalFloat, has the numbers of bitsandbytes in blocks of 64; GGUF files do not have it.
 * X(id, name, numbers in a block, bytes of a block) */
#define GPUNN_BLOCK_LIST(X)           \
    X(GPUNN_Q8_0, "Q8_0", 32, 34)     \
    X(GPUNN_Q4_0, "Q4_0", 32, 18)     \
    X(GPUNN_Q4_1, "Q4_1", 32, 20)     \
    X(GPUNN_Q5_0, "Q5_0", 32, 22)     \
    X(GPUNN_Q5_1, "Q5_1", 32, 24)     \
    X(GPUNN_Q4_K, "Q4_K", 256, 144)   \
    X(GPUNN_Q5_K, "Q5_K", 256, 176)   \
    X(GPUNN_Q6_K, "Q6_K", 256, 210)   \
    X(GPUNN_IQ4_NL, "IQ4_NL", 32, 18) \
    X(GPUNN_NF4, "NF4", 64, 36)

/* clang-format off */
typedef enum gpunn_dtype {
    GPUNN_DTYPE_DEFAULT = 0,
#define GPUNN__X(id, text, file_name, bytes) id,
    GPUNN_DTYPE_LIST(GPUNN__X)
#undef GPUNN__X
    GPUNN_DTYPE_COUNT,
    GPUNN__BLOCKS = 63, /* formats of blocks follow */
#define GPUNN__X(id, name, length, bytes) id,
    GPUNN_BLOCK_LIST(GPUNN__X)
#undef GPUNN__X
    GPUNN__BLOCKS_END
} gpunn_dtype;
/* clang-format on */

#define GPUNN_MAX_RANK 8 /* most axes of a tensor */
/* Batch size, which varies between runs; GPUNN_BATCH * k is k times it. For other sizes: gpunn_size. */
#define GPUNN_BATCH (-1)
/* A shape ends at the first 0; GPUNN_SHAPE(0) is a scalar. */
typedef struct gpunn_shape {
    int64_t dim[GPUNN_MAX_RANK]; /* size of each axis, the rest 0 */
} gpunn_shape;

#define GPUNN_END 127 /* end of a list of axes */
/* A list of axes. Negative axes count from the end. GPUNN_ALL: every axis. */
typedef struct gpunn_axes {
    int axis[GPUNN_MAX_RANK + 1]; /* ends at GPUNN_END */
} gpunn_axes;
#define GPUNN_ALL (GPUNN_LITERAL(gpunn_axes){{GPUNN_END}})
#ifdef __cplusplus /* accepts any integers, including size_t */
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

/* Bytes per element; 0 for formats of blocks and for an invalid dtype. */
GPUNN_API size_t gpunn_dtype_size(gpunn_dtype dtype);
/* Name of a dtype, such as "f32" or "Q4_0"; "no gpunn_dtype" for an invalid one. */
GPUNN_API const char *gpunn_dtype_name(gpunn_dtype dtype);

typedef struct gpunn_model_args {
    int             args_;
    gpunn_precision precision; /* of the computation; values that the program reads and writes stay F32 */
    /* The model is only evaluated. Optimizers and gradients are then GPUNN_ERR_STATE. Linear layers read the
     * weights in place; other models (and a small network's fused kernel, see FUSED KERNELS) keep a copy that
     * is ordered for batches.
     * With precision BF16 or F16, weights read only by products and embeddings are stored in 16 bits only,
     * from the first run, write or load on. gpunn_read returns them as F32 and gpunn_save saves them so;
     * gpunn_data is not available for them. Another op that reads such a weight later is
     * GPUNN_ERR_UNSUPPORTED. A weight that was bound before stays F32. */
    bool inference;
    /* Weights that only linear layers and embeddings read are stored in this format of GPUNN_BLOCK_LIST. What
     * is written or loaded is rounded to it; gpunn_read and gpunn_save give F32. A million weights take
     * about 60 ms to round to Q4_K, Q5_K or Q6_K, and 120 to IQ4_NL, whose scales are searched for. A weight
     * whose rows are a multiple of 32 but not of 256 is stored as in llama.cpp: in Q5_0 for Q4_K, Q5_1 for
     * Q5_K, and Q8_0 for Q6_K. Rows that are no multiple of 32 stay wider, as do biases and norms. Default:
     * F32, or 16 bits as above. gpunn_set_storage chooses for a single weight.
     * With .inference, on a CPU, products round their rows to 8 bits, with an F32 scale for 32 numbers, as
     * llama.cpp does. Those with NF4 compute in F32. On processors without AVX2, and in programs compiled for
     * AVX-512 on processors without VNNI, products with more than 16 rows do, too. A GPU does not round the
     * rows. With more than 16 rows it unpacks the whole weight first, in the dtype of the rows, to memory
     * that all layers share.
     * Without .inference these are the weights that gpunn_lora freezes. Adapters are trained, blocks are not,
     * so call gpunn_lora before weights are written, loaded or run; training without it is GPUNN_ERR_STATE.
     * No rows are rounded then. The gradient of a layer's input unpacks the weight again: on a CPU part by
     * part, on a GPU as above.
     * GPUNN_ERR_UNSUPPORTED: a backend of the program's own without blocks. */
    gpunn_dtype weights;
} gpunn_model_args;
/* Creates a model without tensors. Returns NULL on failure. */
GPUNN_API gpunn_model *gpunn_model_create_(gpunn_device *dev, gpunn_model_args args);
#define gpunn_model_create(...) gpunn_model_create_(GPUNN_NAMED(gpunn_model_args, __VA_ARGS__))
/* torch's net.to(device): moves parameters, buffers, inputs, optimizers with their state, and random state.
 * Training continues unchanged. Values of the last run and gradients are not moved. Loaders need no change
 * without .on_device. Both devices have the same realloc_fn and user. A failure leaves all as it was. */
GPUNN_API gpunn_status gpunn_model_to(gpunn_model *model, gpunn_device *dev);
/* Limits the cache of plans, of which there is one for each (outputs, mode, sizes). The least recently used
 * plans are freed if there are more than count (0: 32), or if they hold more than `bytes` of host memory and
 * device caches (0: no limit). The plan of the last run always stays. */
GPUNN_API gpunn_status gpunn_set_plan_limit(gpunn_model *model, int count, size_t bytes);
/* Frees the model's tensors. If optimizers or loaders of the model exist, they are freed with the last of
 * those. NULL is allowed. */
GPUNN_API void gpunn_model_destroy(gpunn_model *model);

/* Creates or looks up a dimension that varies between runs. Use it in shapes of inputs, gpunn_reshape and
 * gpunn_expand, in gpunn_slice, in the size of gpunn_interpolate and in formulas of other sizes.
 * text is a name or a formula, at most 127 bytes. A name defines a new size at its first use (not N, the name
 * of the batch in specs). A formula combines names, "batch" and integers with + - * / and parentheses, where
 * / rounds down: "2 * T - 1". Equal formulas give the same number. The number belongs to this model only, and
 * C arithmetic on it is not valid.
 * On failure it returns a number that every shape rejects. */
typedef struct gpunn_size_args {
    int     args_;
    int64_t min, max; /* new name: allowed range; other runs fail. Defaults: 1, and no limit */
    /* new name: the size is a multiple of this, so that its halves and doubles are known to be equal;
     * default 1 */
    int64_t multiple;
} gpunn_size_args;
GPUNN_API int64_t gpunn_size_(gpunn_model *model, const char *text, gpunn_size_args args);
#define gpunn_size(model, ...) gpunn_size_((model), GPUNN_NAMED(gpunn_size_args, __VA_ARGS__))

/* Creates an input: a value that the program writes before each run. dtype F32, I64, I32, U8, BOOL or F64 (0:
 * F32). F64 is an F32 input that the program writes as doubles, see gpunn_set_dtype. At most one dimension is
 * GPUNN_BATCH or a multiple of it; all such inputs of a run have the same batch size. Any dimension may be a
 * gpunn_size. */
GPUNN_API gpunn_tensor *gpunn_input(gpunn_model *model, const char *name, gpunn_dtype dtype,
                                    gpunn_shape shape);

/* Which numbers a parameter or a state starts as. */
typedef enum gpunn_init_kind {
    GPUNN_INIT_DEFAULT = 0, /* zeros */
    GPUNN_INIT_ZEROS,
    GPUNN_INIT_CONSTANT, /* value a; 1 for ones */
    GPUNN_INIT_UNIFORM,  /* from a to b */
    GPUNN_INIT_NORMAL,   /* mean a, standard deviation b */
    /* U(+-1/sqrt(fan_in)), torch.nn's default for linear and conv; a: fan_in, 0: from the shape */
    GPUNN_INIT_KAIMING_UNIFORM
} gpunn_init_kind;
/* Initial values of a parameter or a state. */
typedef struct gpunn_init {
    gpunn_init_kind kind; /* which numbers */
    float           a, b; /* as kind says; unused: 0 */
} gpunn_init;

/* Creates a parameter. F32, without GPUNN_BATCH in its shape; names are unique within a model. */
GPUNN_API gpunn_tensor *gpunn_parameter(gpunn_model *model, const char *name, gpunn_shape shape,
                                        gpunn_init init);
/* Creates a state: a value that runs read and write (section STATES). What one run assigns by gpunn_assign is
 * read by the next. F32, without GPUNN_BATCH in its shape; it holds init until it is assigned or written.
 * Optimizers do not train it, and no gradient flows through it. */
GPUNN_API gpunn_tensor *gpunn_state(gpunn_model *model, const char *name, gpunn_shape shape, gpunn_init init);
/* Whether gpunn_save and checkpoints contain a state, and loading requires it. Default: false. */
GPUNN_API gpunn_status gpunn_set_saved(gpunn_tensor *state, bool saved);
/* Resets all states of a model to their init. */
GPUNN_API gpunn_status gpunn_reset_states(gpunn_model *model);
/* Creates a further set of values for all states of a model, with their initial values. Several texts, sounds
 * or users can then take turns with one model and its weights. It takes as many bytes as the states. Create
 * it after all states of the model. Returns NULL on failure. */
typedef struct gpunn_session gpunn_session;
GPUNN_API gpunn_session     *gpunn_session_create(gpunn_model *model);
/* From now on the states are the session's, for runs and for all calls on them, including files. NULL: the
 * model's own states again. Switching copies nothing and, except the first time, plans nothing. Afterwards
 * the states cannot be bound, nor the model moved. GPUNN_ERR_ARGUMENT: a session of another model.
 * GPUNN_ERR_STATE: a state is newer than the session, or bound by the program. */
GPUNN_API gpunn_status gpunn_use_session(gpunn_model *model, gpunn_session *session);
/* NULL is allowed. If the session is in use, the model's own states are used again. */
GPUNN_API void gpunn_session_destroy(gpunn_session *session);
/* Creates a constant, which is not saved. F32; the values are copied. */
GPUNN_API gpunn_tensor *gpunn_constant(gpunn_model *model, gpunn_shape shape, const float *values);

/* Sets how a parameter is initialised. If it already has values, they are drawn anew at once.
 * GPUNN_INIT_KAIMING_UNIFORM with a = 0 needs rank 2 or more. */
GPUNN_API gpunn_status gpunn_set_init(gpunn_tensor *parameter, gpunn_init init);

/* Stores a parameter of an evaluation model, or one that gpunn_lora has frozen, as .weights of
 * gpunn_model_create describes, or as GPUNN_F32, whatever the model's .weights is. Call it before weights are
 * written, loaded or run. A parameter that an op other than a linear layer or an embedding reads stays F32.
 * GPUNN_ERR_DTYPE: another dtype, or no parameter. GPUNN_ERR_SHAPE: its rows are no multiple of a block.
 * GPUNN_ERR_STATE: the parameter can be trained, or has values already. GPUNN_ERR_UNSUPPORTED: as for
 * .weights. */
GPUNN_API gpunn_status gpunn_set_storage(gpunn_tensor *parameter, gpunn_dtype dtype);

/* The input, parameter, buffer or named value of that name. NULL: there is none. */
GPUNN_API gpunn_tensor *gpunn_find(gpunn_model *model, const char *name);
/* Names a value, by which gpunn_find and specs know it. Returns t; NULL if the name is taken. */
GPUNN_API gpunn_tensor *gpunn_set_name(gpunn_tensor *t, const char *name);
GPUNN_API const char   *gpunn_tensor_name(const gpunn_tensor *t); /* "" if it has none */
/* The shape, with GPUNN_BATCH and gpunn_size numbers where sizes vary. */
GPUNN_API gpunn_shape gpunn_tensor_shape(const gpunn_tensor *t);
/* The same with the actual sizes: of the last run; for an input, of the last write. */
GPUNN_API gpunn_shape gpunn_tensor_sizes(const gpunn_tensor *t);
/* dtype of its elements, as the program writes and reads them */
GPUNN_API gpunn_dtype gpunn_tensor_dtype(const gpunn_tensor *t);
/* Whether the program holds the elements of an F32 input or computed value as doubles (GPUNN_F64) or as
 * floats (GPUNN_F32). gpunn_write, gpunn_read, gpunn_read_grad, gpunn_bind, gpunn_bind_grad,
 * gpunn_backward_from, DLPack and loaders then take, give and bind doubles of it and of its gradient. They
 * round to the nearest float on the way in, on the device if the memory is there; bound memory is converted
 * in each run. Runs compute in F32 as ever. Specs keep it for inputs only. GPUNN_ERR_DTYPE: another tensor,
 * or another dtype. GPUNN_ERR_STATE: the tensor or its gradient is bound; unbind it first. */
GPUNN_API gpunn_status gpunn_set_dtype(gpunn_tensor *t, gpunn_dtype dtype);
/* Number of bytes, at the batch size of the last run or write. */
GPUNN_API size_t gpunn_tensor_bytes(const gpunn_tensor *t);
/* Parameters, buffers (running statistics) and states with gpunn_set_saved, in the order of their creation:
 * what gpunn_save writes. Index from 0 to gpunn_parameter_count - 1; NULL: there are no more. */
GPUNN_API int           gpunn_parameter_count(const gpunn_model *model);
GPUNN_API gpunn_tensor *gpunn_parameter_at(gpunn_model *model, int index);
/* The inputs, in the order of their creation. Index from 0; NULL: there are no more. */
GPUNN_API gpunn_tensor *gpunn_input_at(gpunn_model *model, int index);

/* Copies host memory to an input, parameter, buffer or state. bytes must fit exactly; for an input they
 * determine the batch size. On a GPU, `host` may also point to that GPU's memory, here and in the functions
 * that read. The copy is then made in the stream's order without waiting. */
GPUNN_API gpunn_status gpunn_write(gpunn_tensor *t, const void *host, size_t bytes);
/* The same for an input with more than one varying dimension, where bytes would be ambiguous. shape is the
 * shape of the data in host. */
GPUNN_API gpunn_status gpunn_write_shape(gpunn_tensor *t, const void *host, gpunn_shape shape);
/* Copies a tensor to host memory: parameters, buffers, states, inputs, outputs of the last run, kept
 * values. */
GPUNN_API gpunn_status gpunn_read(gpunn_tensor *t, void *host, size_t bytes);
/* Reads the gradient of a parameter, or of a value named by gpunn_retain_grad, after gpunn_backward or
 * gpunn_train_step. */
GPUNN_API gpunn_status gpunn_read_grad(gpunn_tensor *t, void *host, size_t bytes);
/* Value of a one-element F32, F64 or I64 tensor; NaN on failure. */
GPUNN_API float gpunn_item(gpunn_tensor *t);

/* gpunn_write, gpunn_read and gpunn_read_grad of memory that holds elements of `dtype`. They are converted as
 * by gpunn_cast: doubles become the nearest floats, for example. The dtype may be F32, F64, I64, I32, U8 or
 * BOOL. bytes are those of host. gpunn_write cannot know what host points to. It reads doubles as twice as
 * many floats, which an input with a batch accepts; gpunn_write_as cannot be mistaken in this way.
 * The dtype may also be a format of blocks, such as GPUNN_Q4_0, for a parameter whose rows are whole blocks.
 * gpunn_write_as copies the blocks if the parameter is stored in that format, else converts their numbers.
 * gpunn_read_as gives the blocks as they are; GPUNN_ERR_DTYPE: the parameter is stored otherwise.
 * Blocks are written from and read to host memory only; so are floats written to a parameter in blocks.
 * Else GPUNN_ERR_UNSUPPORTED. */
GPUNN_API gpunn_status gpunn_write_as(gpunn_tensor *t, gpunn_dtype dtype, const void *host, size_t bytes);
GPUNN_API gpunn_status gpunn_read_as(gpunn_tensor *t, gpunn_dtype dtype, void *host, size_t bytes);
GPUNN_API gpunn_status gpunn_read_grad_as(gpunn_tensor *t, gpunn_dtype dtype, void *host, size_t bytes);

/* Uses user-owned memory for a tensor, without a copy, until it is bound to other memory or, with NULL, to
 * the library's again. On a GPU the memory is that GPU's, or shared with it, aligned to 64 bytes; on the CPU
 * it is aligned to its elements. It is row-major, in the tensor's dtype. It must exist until it is unbound or
 * the model destroyed. It must hold nothing else that a run reads or writes, and may be accessed only in the
 * stream's order. Alternating between a few buffers is cheap: nothing is planned or captured again. With
 * gpunn_set_dtype of F64 the memory holds doubles; each run converts those of inputs before its first step,
 * and those of values and gradients after they are computed.
 *     input      read by every run; bytes determine the batch size, as in gpunn_write
 *     parameter, buffer, state
 *                read and trained in place, with the values it holds; may be changed between runs. Unbinding
 *                copies the values to the library's memory, so the bound memory must still exist then
 *     value      written by every run that computes it, as if by gpunn_keep; bytes suffice for the largest
 *     batch
 * GPUNN_ERR_ARGUMENT: memory of the host or of another GPU, or misaligned. GPUNN_ERR_SHAPE: wrong number of
 * bytes. GPUNN_ERR_STATE: a constant. */
GPUNN_API gpunn_status gpunn_bind(gpunn_tensor *t, void *memory, size_t bytes);
/* The same, but GPUNN_ERR_DTYPE unless the tensor's dtype is this one: gpunn_bind cannot know what memory
 * points to. Doubles need a gpunn_input of F64 or gpunn_set_dtype.
 * With a format of blocks, such as GPUNN_Q4_K, a parameter is bound to its blocks, those of a mapped file for
 * example, and frozen. It has no other memory then, so that it cannot be unbound. Runs only
 * read the memory; linear layers and embeddings can read it. On a CPU it needs no alignment; on a GPU it is
 * as for gpunn_bind. Bind all blocks before weights are written, loaded or run. Errors are those of
 * gpunn_bind and gpunn_set_storage. */
GPUNN_API gpunn_status gpunn_bind_as(gpunn_tensor *t, gpunn_dtype dtype, void *memory, size_t bytes);
/* The same for the F32 gradient of a parameter, which is overwritten (`=`) or, without gpunn_zero_grad, added
 * to (`+=`). For an input or value it acts as gpunn_retain_grad too. */
GPUNN_API gpunn_status gpunn_bind_grad(gpunn_tensor *t, void *memory, size_t bytes);
/* GPUNN_DTYPE_OF(pointer) is the dtype of the numbers at a pointer: double, float, bool, uint8_t, and
 * integers of 4 and 8 bytes, signed or not. A pointer to anything else, such as void, does not compile. The
 * pointer may be to the rows of an array. GPUNN_TYPED(pointer) is that dtype, a comma and the pointer:
 *     double cells[4][2];
 *     gpunn_write_as(x, GPUNN_TYPED(cells), sizeof cells);
 * Both need C11, C++, gcc or clang; elsewhere name the dtype. In C++ gpunn_write, gpunn_read, gpunn_read_grad
 * and gpunn_bind find the dtype themselves if the pointer is to numbers of 4 or 8 bytes. */
#define GPUNN_TYPED(...) GPUNN_DTYPE_OF(__VA_ARGS__), (__VA_ARGS__)
#ifdef __cplusplus
extern "C++" {
template <typename Number> struct gpunn__pointee; /* status is missing where bytes may be of any dtype */
#define GPUNN__POINTEE(TYPE, DTYPE, status)         \
    template <> struct gpunn__pointee<TYPE> {       \
        static constexpr gpunn_dtype dtype = DTYPE; \
        typedef gpunn_status         status;        \
    };
GPUNN__POINTEE(unsigned char, GPUNN_U8, of_bytes)
GPUNN__POINTEE(bool, GPUNN_BOOL, of_bytes)
GPUNN__POINTEE(float, GPUNN_F32, status)
GPUNN__POINTEE(double, GPUNN_F64, status)
GPUNN__POINTEE(int, GPUNN_I32, status)
GPUNN__POINTEE(unsigned, GPUNN_I32, status)
GPUNN__POINTEE(long, sizeof(long) == 8 ? GPUNN_I64 : GPUNN_I32, status)
GPUNN__POINTEE(unsigned long, sizeof(long) == 8 ? GPUNN_I64 : GPUNN_I32, status)
GPUNN__POINTEE(long long, GPUNN_I64, status)
GPUNN__POINTEE(unsigned long long, GPUNN_I64, status)
#undef GPUNN__POINTEE
template <typename Number, gpunn_dtype = gpunn__pointee<Number>::dtype>
gpunn__pointee<Number> gpunn__pointee_at(const Number *);
template <typename Row, size_t columns>
auto gpunn__pointee_at(Row (*)[columns]) -> decltype(gpunn__pointee_at(static_cast<Row *>(nullptr)));
#define GPUNN_DTYPE_OF(...) (decltype(gpunn__pointee_at(__VA_ARGS__))::dtype)
#define GPUNN__TYPED_CALL(name)                                                            \
    template <typename Pointer, typename Pointee = decltype(gpunn__pointee_at(Pointer()))> \
    inline typename Pointee::status name(gpunn_tensor *t, Pointer host, size_t bytes)      \
    {                                                                                      \
        return name##_as(t, Pointee::dtype, host, bytes);                                  \
    }
GPUNN__TYPED_CALL(gpunn_write)
GPUNN__TYPED_CALL(gpunn_read)
GPUNN__TYPED_CALL(gpunn_read_grad)
GPUNN__TYPED_CALL(gpunn_bind)
#undef GPUNN__TYPED_CALL
}
#elif defined(__GNUC__) || __STDC_VERSION__ >= 201112L
#ifdef __GNUC__
#define GPUNN__GENERIC __extension__ _Generic
#else
#define GPUNN__GENERIC _Generic
#endif
/* clang-format off */
/* The last two are pointers to rows of any length. */
#define GPUNN__POINTER(TYPE, dtype) \
    TYPE *: dtype, const TYPE *: dtype, TYPE (*)[]: dtype, const TYPE (*)[]: dtype
/* clang-format on */
#define GPUNN__POINTER_LONG(TYPE) GPUNN__POINTER(TYPE, sizeof(TYPE) == 8 ? GPUNN_I64 : GPUNN_I32)
#define GPUNN_DTYPE_OF(...)                                                                                  \
    (GPUNN__GENERIC(                                                                                         \
        (__VA_ARGS__), GPUNN__POINTER(unsigned char, GPUNN_U8), GPUNN__POINTER(bool, GPUNN_BOOL),            \
        GPUNN__POINTER(float, GPUNN_F32), GPUNN__POINTER(double, GPUNN_F64), GPUNN__POINTER(int, GPUNN_I32), \
        GPUNN__POINTER(unsigned, GPUNN_I32), GPUNN__POINTER_LONG(long), GPUNN__POINTER_LONG(unsigned long),  \
        GPUNN__POINTER_LONG(long long), GPUNN__POINTER_LONG(unsigned long long)))
#endif

/* Address of the memory that gpunn_read (gpunn_read_grad) reads, bound or not. Read it in the stream's order,
 * until the next call on the model. NULL on failure, also if a value is not stored in its dtype and
 * row-major; in that case bind it. */
GPUNN_API const void *gpunn_data(gpunn_tensor *t);
GPUNN_API const void *gpunn_data_grad(gpunn_tensor *t);

/* DLPack 1.x, by which frameworks exchange tensors. gpunn_dlpack has the layout of DLManagedTensorVersioned,
 * for programs without dlpack.h. That header may be included before or after this one. */
struct DLManagedTensorVersioned;
enum {
    GPUNN_DLPACK_CPU = 1,
    GPUNN_DLPACK_CUDA = 2,
    GPUNN_DLPACK_CUDA_HOST = 3,
    GPUNN_DLPACK_CUDA_MANAGED = 13
}; /* device_type */
/* dtype_code */
enum {
    GPUNN_DLPACK_INT,
    GPUNN_DLPACK_UINT,
    GPUNN_DLPACK_FLOAT,
    GPUNN_DLPACK_BFLOAT = 4,
    GPUNN_DLPACK_BOOL = 6
};
/* flags */
enum { GPUNN_DLPACK_READ_ONLY = 1 };
typedef struct gpunn_dlpack {
    uint32_t major, minor;                                  /* version of the layout: 1 and any */
    void    *context;                                       /* for the deleter */
    void (*deleter)(struct DLManagedTensorVersioned *self); /* NULL: nothing to free */
    uint64_t flags;                                         /* GPUNN_DLPACK_READ_ONLY or 0 */
    void    *data;                                          /* memory of the tensor, of the device below */
    int32_t  device_type, device_id, rank; /* kind of device; index of the GPU; number of axes */
    uint8_t  dtype_code, dtype_bits;       /* kind of number, and bits of one */
    uint16_t lanes;                        /* 1 */
    int64_t *shape, *stride;               /* stride in elements; NULL: row-major */
    uint64_t byte_offset;                  /* of the first element, from data */
} gpunn_dlpack;
/* Exports what gpunn_data returns, without a copy; valid as long as that. Call its deleter once. The object
 * may outlive the device, but its memory does not. NULL on failure. */
GPUNN_API struct DLManagedTensorVersioned *gpunn_to_dlpack(gpunn_tensor *t);
/* gpunn_bind to the object's memory, which must be row-major and have the tensor's dtype, shape and device.
 * Read-only memory can be bound to an input only. When the tensor is bound otherwise, unbound or destroyed,
 * the library waits for work on it and calls the deleter once. After a failure the object still belongs to
 * the program. */
GPUNN_API gpunn_status gpunn_bind_dlpack(gpunn_tensor *t, struct DLManagedTensorVersioned *managed);

/* false freezes it. GPUNN_ERR_STATE: gpunn_lora has frozen it, and an optimizer was created since, or its
 * values are stored in 16 bits or blocks, which are not trained. */
GPUNN_API gpunn_status gpunn_set_trainable(gpunn_tensor *parameter, bool trainable);
/* Whether a batch_norm, or an instance_norm with running statistics, uses these in training too and leaves
 * them unchanged. t: its result or its running_mean. Specs do not contain this. */
GPUNN_API gpunn_status gpunn_freeze_statistics(gpunn_tensor *t, bool frozen);
/* factor of its learning rate */
GPUNN_API gpunn_status gpunn_set_lr_scale(gpunn_tensor *parameter, float scale);
GPUNN_API gpunn_status gpunn_set_decay(gpunn_tensor *parameter, bool decay); /* false: no weight decay */
/* Keeps the value readable after every run. Training steps compute it too if it needs no input that the loss
 * does not need. */
GPUNN_API gpunn_tensor *gpunn_keep(gpunn_tensor *t);
/* as torch's; also for inputs and intermediate values */
GPUNN_API gpunn_tensor *gpunn_retain_grad(gpunn_tensor *t);
/* torch.utils.checkpoint. Training does not store the values computed between first and last (both excluded),
 * but recomputes them when the backward pass reaches them. This trades time for memory; the gradients are
 * bit-identical, with dropout too. Running statistics are updated once. Values named by gpunn_keep,
 * gpunn_retain_grad or gpunn_bind, and values that read a state, are stored as usual. Checkpoint segments of
 * a model may adjoin, with the last of one as the first of the next, but not overlap (GPUNN_ERR_ARGUMENT).
 * Specs do not contain this. */
GPUNN_API gpunn_status gpunn_recompute(gpunn_tensor *first, gpunn_tensor *last);
/* Chooses checkpoint segments from a memory limit, replacing those named before. It recomputes as little as
 * possible such that a training step of loss with this batch size holds at most `bytes`. Bytes are those of
 * gpunn_model_summary, where a gpunn_size counts as described there; optimizer states are not included. If
 * everything fits it chooses none. It makes several dozen plans. Call it before the first run: memory already
 * held by runs is released only by gpunn_empty_cache. GPUNN_ERR_MEMORY reports the smallest limit that would
 * work; the segments are then unchanged. */
GPUNN_API gpunn_status gpunn_recompute_within(gpunn_tensor *loss, int64_t batch_size, size_t bytes);

typedef struct gpunn_summary_args {
    int           args_;
    int64_t       batch_size; /* default 1 */
    gpunn_tensor *loss;       /* for a training step of it; NULL: evaluation of outputs */
    gpunn_tensor *outputs[8]; /* default: every value that no op reads */
    /* receives the text piece by piece; NULL: only bytes are wanted */
    void (*write)(void *user, const char *text);
    void   *user;  /* first argument of write */
    size_t *bytes; /* receives all device bytes of such a run: parameters, gradients, inputs, arena */
} gpunn_summary_args;
/* Lists layers, shapes, parameters and exact bytes, without allocating on the device. A gpunn_size counts as
 * its .max or, without one, as in the last run, or else as its .min. */
GPUNN_API gpunn_status gpunn_model_summary_(gpunn_model *model, gpunn_summary_args args);
#define gpunn_model_summary(...) gpunn_model_summary_(GPUNN_NAMED(gpunn_summary_args, __VA_ARGS__))

#endif /* GPUNN__API_MODEL_H */
