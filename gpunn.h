/* gpunn.h - v0.1 - neural networks for C: train and run them from one header.            MIT or public domain (end of file)
 *
 * Do this:
 *     #define GPUNN_IMPLEMENTATION            in exactly one C or C++ file, before the include
 *     #include "gpunn.h"                      everywhere else just the include
 * and compile it:
 *     cc -O3 -march=native -fopenmp app.c -lm                     (-fopenmp may be left out: then one thread)
 *     nvcc -O3 app.c gpunn_cuda.cu -o app                         (the same program on the GPU, where there is one)
 *
 * >>toc        grep -n '>>' gpunn.h lists every section
 *     doc      what gpunn is and is not, options, step by step, memory, errors, threads, limits
 *     config   version, language check, GPUNN_API, named arguments
 *     status   statuses and their names
 *     device   where work runs
 *     model    models, tensors, parameters
 *     ops      the table of elementwise ops: the single source of each
 *     builders the table of the other ops; layers, reductions, shapes, losses
 *     train    running, optimizers, schedules
 *     data     loaders
 *     files    weights, checkpoints, dataset readers
 *     spec     models as JSON
 *     fit      the training loop, progress, history
 *     backend  what a backend provides
 *     kernels  fused kernels that the generator writes for a model
 *   and under GPUNN_IMPLEMENTATION
 *     structs errors memory random math
 *     shapes graph expr plan autodiff run
 *     gemm conv pool sample map reduce norm attention loss update cpu
 *     optimizer loader json safetensors spec readers fit_loop
 *     licence
 *
 * >>doc
 * PURPOSE  A model is a graph of tensors built by C calls with PyTorch's names and defaults. The first run plans it: order of
 *     work, gradients, memory. Every later run only computes: no allocation, no lookup. Weights are safetensors files with
 *     PyTorch's names and shapes, so each side reads what the other wrote.
 *
 * A PROGRAM
 *     gpunn_device *dev   = gpunn_device_open(.seed = 1);
 *     gpunn_model  *model = gpunn_model_create(dev);
 *     gpunn_tensor *x     = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 20));
 *     gpunn_tensor *t     = gpunn_input(model, "t", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
 *     gpunn_tensor *h     = gpunn_relu(gpunn_linear(x, "fc1", .out_features = 50));
 *     gpunn_tensor *loss  = gpunn_bce_with_logits(gpunn_linear(h, "fc2", .out_features = 1), t);
 *     gpunn_optimizer *o  = gpunn_sgd(model, .lr = 0.01f);
 *     gpunn_write(x, samples, sizeof samples);
 *     gpunn_write(t, targets, sizeof targets);
 *     if (gpunn_train_step(o, loss) != GPUNN_OK) puts(gpunn_error(dev));
 *
 * gpunn DOES NOT
 *     - trace or run Python, load ONNX, or build graphs whose shape depends on values;
 *     - vary any dimension between runs but the batch (GPUNN_BATCH);
 *     - print, exit, abort or keep global state: everything hangs off a gpunn_device;
 *     - share a model or a device between threads without a lock of yours (THREADS below).
 *
 * STEP BY STEP
 *     1. gpunn_device_open                    the machine: a GPU when its companion is linked and there is one, else the CPU
 *     2. gpunn_model_create, gpunn_input      the graph's entrances, with GPUNN_BATCH where the batch goes
 *     3. layers, ops, a loss                  each call checks its shapes at once; NULL in, NULL out
 *     4. gpunn_sgd, gpunn_adam, ...           an optimizer over the model's parameters
 *     5. gpunn_write, gpunn_train_step        or a gpunn_loader, or gpunn_fit for the whole loop
 *     6. gpunn_forward, gpunn_read            evaluation mode: dropout off, running statistics used
 *     7. gpunn_save, gpunn_load               weights; gpunn_checkpoint_save for all that resuming needs
 *
 * OPTIONS (define before the include that has GPUNN_IMPLEMENTATION)
 *     GPUNN_STATIC       every function static: a private copy for this file (define it wherever gpunn.h is included)
 *     GPUNN_API          your own linkage, such as __declspec(dllexport)
 *     GPUNN_CBLAS        matrix products by the system's CBLAS (link -lopenblas); Debian's OpenBLAS does not know the newest
 *                        processors: where it is slow, set OPENBLAS_CORETYPE=SKYLAKEX (or HASWELL) in the environment
 *     GPUNN_ZLIB         readers accept .gz files (link -lz)
 *     GPUNN_NO_THREADS   loaders prefetch nothing (no pthreads)
 *     GPUNN_CUDA         the reference to gpunn_cuda.cu is strong (static archives, shared libraries, MSVC)
 *     GPUNN_NO_SIMD      plain C kernels
 *
 * NAMED ARGUMENTS  gpunn_conv2d(x, "conv1", .out_channels = 6, .kernel_size = 5): a field left out, or 0, is torch.nn's default.
 *     Where 0 itself is meant and is not the default, write GPUNN_ZERO (.beta1 = GPUNN_ZERO).
 *
 * SHAPES  NCHW, row-major, rank 0 (a scalar) to 8. Elementwise ops broadcast as NumPy does.
 *
 * MEMORY  Parameters, gradients and optimizer state are flat buffers; everything between them lives in one arena whose offsets
 *     are planned by lifetime, so a value is overwritten as soon as nobody needs it. gpunn_read works for the outputs of the
 *     last gpunn_forward, the loss of the last training step and whatever gpunn_keep names. gpunn_model_summary tells the exact
 *     bytes before anything is allocated. After the first run of each (outputs, mode, batch size) nothing is allocated.
 *
 * ERRORS  The first failure on a device wins and stays readable by gpunn_error(dev) and gpunn_last_status(dev) until
 *     gpunn_clear_error(dev). Builders return NULL and pass NULL on, so a chain is checked once at its end. After a failed call
 *     the object is as it was before. Failures without a device (gpunn_device_open itself) are kept per thread:
 *     gpunn_error(NULL).
 *
 * THREADS  One device, with its models, optimizers and loaders, belongs to one thread at a time. Different devices are
 *     independent. A loader's own worker threads touch only its buffers. A device's CPU work runs on .threads OpenMP threads;
 *     results do not depend on their number.
 *     Waiting threads spin: where other programs want the cores, set OMP_WAIT_POLICY=passive or fewer threads.
 *
 * GPU  gpunn_cuda.cu on the compile line, and nothing else in the program, makes gpunn_device_open use a GPU; log_fn hears why
 *     when there is none, and gpunn_device_report tells all that was found. From its second run on, a training step or a
 *     gpunn_forward is one launch of a CUDA graph, and calls return before the work is done: reading a value waits,
 *     gpunn_synchronize does too. A loss that is not finite changes no weight but may be reported only by a later call,
 *     gpunn_synchronize at the latest. gpunn_write copies at once, so the next batch travels while a step runs. Precision is the
 *     model's: gpunn_model_create(dev, .precision = GPUNN_PRECISION_BF16). gpunn_model_to moves a model with its optimizers. A
 *     fault of the device is final for it: every later call gives the same status; close it.
 *
 * DETERMINISM  The same seed, data and build give the same bits on the same device, always; dropout drops the same on every one.
 *     On the CPU, 3 x 3 convolutions of 16 and more channels may use Winograd's algorithm: errors of about 4e-5 of the result's
 *     size, where a plain sum makes 7e-6.
 *
 * EXTENDING  A new elementwise op is one line in >>ops. Any other op is a line in >>builders (GPUNN_OTHER_OPS), a builder with
 *     its shape rule in >>graph, and one function of its name in each backend.
 *
 * LIMITS  Rank 8, 64-bit sizes, 2^31-1 channels or features; F32 arithmetic (16-bit storage on a GPU), in which numbers below
 *     1.2e-38 (denormals) may count as zero; little-endian machines.
 */
#ifndef GPUNN_H
#define GPUNN_H

/* ==== >>config ======================================================================================================== */
#define GPUNN_VERSION_MAJOR 0
#define GPUNN_VERSION_MINOR 1
#define GPUNN_VERSION "0.1"

#if !defined(__cplusplus) && (!defined(__STDC_VERSION__) || __STDC_VERSION__ < 199901L)
#error "gpunn.h needs C99 or C++17 (cc -std=c99)"
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef GPUNN_API
#if defined(GPUNN_STATIC) && defined(__GNUC__)
#define GPUNN_API __attribute__((unused)) static
#elif defined(GPUNN_STATIC)
#define GPUNN_API static
#else
#define GPUNN_API extern
#endif
#endif

#if defined(__GNUC__)
#define GPUNN__CHECK_RESULT __attribute__((warn_unused_result))
#ifdef __MINGW32__
#define GPUNN__PRINTF(text, first) __attribute__((format(gnu_printf, text, first)))
#else
#define GPUNN__PRINTF(text, first) __attribute__((format(printf, text, first)))
#endif
#else
#define GPUNN__CHECK_RESULT
#define GPUNN__PRINTF(text, first)
#endif

/* Named arguments. Each argument struct opens with args_, which nobody sets, so that a call may name none. If a compile error
 * led you here: the fields are in the struct whose name the error shows, and in C++ they keep the order of their declaration. */
#ifdef __cplusplus
/* clang-format off */
#define GPUNN_ARGS(type, ...) type{.args_ = 0, __VA_ARGS__}
/* clang-format on */
#define GPUNN_LITERAL(type) type
#else
#define GPUNN_ARGS(type, ...) ((type){.args_ = 0, __VA_ARGS__})
#define GPUNN_LITERAL(type) (type)
#endif
#define GPUNN_EXPAND(x) x
#define GPUNN_FIRST(first, ...) first
#define GPUNN_REST(first, ...) __VA_ARGS__
/* A required argument followed by named ones, all in one variadic list: NAMED(type, x) and NAMED(type, x, .p = 1). */
#define GPUNN_NAMED(type, ...) \
    GPUNN_EXPAND(GPUNN_FIRST(__VA_ARGS__, 0)), GPUNN_ARGS(type, GPUNN_EXPAND(GPUNN_REST(__VA_ARGS__, )))

#define GPUNN_ZERO (-2147483647 - 1) /* a field's value where 0 is meant although 0 stands for the default */

#ifdef __cplusplus
extern "C" {
#endif

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

/* "GPUNN_ERR_SHAPE: shapes do not fit"; any int is safe. */
GPUNN_API const char *gpunn_status_name(gpunn_status status);

/* ==== >>device ======================================================================================================== *
 * torch.device and torch.cuda.*. Not thread-safe per device; different devices are independent. */
typedef struct gpunn_device  gpunn_device;
typedef struct gpunn_backend gpunn_backend; /* >>backend */
typedef enum gpunn_device_type { GPUNN_DEVICE_AUTO = 0, GPUNN_DEVICE_CPU, GPUNN_DEVICE_CUDA } gpunn_device_type;
/* How a model computes. Parameters, gradients of parameters, statistics, sums and losses are F32 in all of them, and so is
 * everything that the program reads and writes. The CPU always computes in F32. */
typedef enum gpunn_precision {
    GPUNN_PRECISION_F32 = 0,
    GPUNN_PRECISION_TF32, /* products round their operands to 10 bits of mantissa; values stay F32 */
    GPUNN_PRECISION_BF16, /* values between layers and operands of products are BF16 */
    GPUNN_PRECISION_F16   /* the same in F16, trained with a dynamic loss scale */
} gpunn_precision;
typedef enum gpunn_log_level { GPUNN_LOG_ERROR = 0, GPUNN_LOG_WARNING, GPUNN_LOG_INFO } gpunn_log_level;

typedef struct gpunn_device_args {
    int               args_;
    gpunn_device_type type;    /* AUTO: a GPU when its companion is linked and can use one, else the CPU; log_fn hears why */
    int               index;   /* which GPU */
    uint64_t          seed;    /* initial weights, dropout; the same seed gives the same run */
    int               threads; /* CPU threads; 0 = OMP_NUM_THREADS or all cores (one without OpenMP) */
    bool              deterministic; /* only algorithms whose result never varies; the CPU has no others */
    bool              benchmark; /* GPU: time the algorithms of convolutions and products when a shape is new, keep the fastest */
    size_t            memory_limit;    /* bytes this device may hold; 0 = no limit */
    size_t            workspace_limit; /* GPU: bytes an algorithm may use; 0 = 256 MiB */
    /* Host memory. new_size 0 frees; NULL on failure; results are aligned as malloc's. NULL: realloc and free. */
    void *(*realloc_fn)(void *user, void *ptr, size_t old_size, size_t new_size);
    void (*log_fn)(void *user, gpunn_log_level level, const char *message); /* NULL: silence */
    void                *user;
    const gpunn_backend *backend; /* a backend of your own; overrides type */
} gpunn_device_args;

/* NULL on failure: gpunn_error(NULL) says why. */
GPUNN_API gpunn_device *gpunn_device_open_(gpunn_device_args args);
#define gpunn_device_open(...) gpunn_device_open_(GPUNN_ARGS(gpunn_device_args, __VA_ARGS__))
/* Models, optimizers and loaders of the device must be destroyed before it. NULL is fine. */
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
/* Bytes taken from the system: on a GPU what the pool holds, in use or not; on the CPU the same as above. */
GPUNN_API size_t gpunn_memory_reserved(const gpunn_device *dev);
GPUNN_API size_t gpunn_memory_reserved_peak(const gpunn_device *dev);
/* Frees the arenas and plans of the device's models, and gives the system back what the pool holds; the next run of each model
 * plans and allocates again. */
GPUNN_API void gpunn_empty_cache(gpunn_device *dev);
/* Waits for all work. A training step on a GPU may report a loss that was not finite only here, or in a later step. */
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
#define GPUNN_BATCH (-1) /* the dimension that varies between runs; GPUNN_BATCH * k is k times the batch */
/* Ends at the first 0; GPUNN_SHAPE(0) is a scalar. */
typedef struct gpunn_shape {
    int64_t dim[GPUNN_MAX_RANK];
} gpunn_shape;
#define GPUNN_SHAPE(...) (GPUNN_LITERAL(gpunn_shape){{__VA_ARGS__}})

#define GPUNN_END 127
/* A list of axes; negative ones count from the end. GPUNN_ALL: every axis. */
typedef struct gpunn_axes {
    int axis[GPUNN_MAX_RANK + 1];
} gpunn_axes;
#define GPUNN_AXES(...) (GPUNN_LITERAL(gpunn_axes){{__VA_ARGS__, GPUNN_END}})
#define GPUNN_ALL (GPUNN_LITERAL(gpunn_axes){{GPUNN_END}})

GPUNN_API size_t      gpunn_dtype_size(gpunn_dtype dtype); /* bytes per element; 0 for what is none */
GPUNN_API const char *gpunn_dtype_name(gpunn_dtype dtype);

typedef struct gpunn_model_args {
    int             args_;
    gpunn_precision precision;
} gpunn_model_args;
GPUNN_API gpunn_model *gpunn_model_create_(gpunn_device *dev, gpunn_model_args args);
#define gpunn_model_create(...) gpunn_model_create_(GPUNN_NAMED(gpunn_model_args, __VA_ARGS__))
/* torch's net.to(device): moves parameters, buffers, inputs, optimizers with their state, random state; training goes on as if
 * nothing had happened. Values of the last run and gradients stay behind. Loaders need nothing. Both devices must have the same
 * realloc_fn and user. After a failure the model is where it was. */
GPUNN_API gpunn_status gpunn_model_to(gpunn_model *model, gpunn_device *dev);
/* Frees its tensors. Optimizers and loaders of the model must be destroyed before. NULL is fine. */
GPUNN_API void gpunn_model_destroy(gpunn_model *model);

/* A value that the program writes before each run. dtype F32, I64, I32, U8 or BOOL (0: F32); at most one dimension of the shape
 * is GPUNN_BATCH, and then all inputs of a run hold the same batch. */
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
/* Values that never change and are not saved; F32, copied. */
GPUNN_API gpunn_tensor *gpunn_constant(gpunn_model *model, gpunn_shape shape, const float *values);

/* Initial values of parameters not yet run or written; later calls draw them anew. weight: of rank 2 and more. */
GPUNN_API gpunn_status gpunn_set_init(gpunn_tensor *parameter, gpunn_init init);

GPUNN_API gpunn_tensor *gpunn_find(gpunn_model *model,
                                   const char  *name); /* input, parameter, buffer or named value; NULL: none */
GPUNN_API gpunn_tensor *gpunn_set_name(gpunn_tensor *t, const char *name); /* returns t; NULL when the name is taken */
GPUNN_API const char   *gpunn_tensor_name(const gpunn_tensor *t);          /* "" when it has none */
GPUNN_API gpunn_shape   gpunn_tensor_shape(const gpunn_tensor *t);         /* GPUNN_BATCH where the batch is */
GPUNN_API gpunn_dtype   gpunn_tensor_dtype(const gpunn_tensor *t);
GPUNN_API size_t        gpunn_tensor_bytes(const gpunn_tensor *t); /* at the batch size of the last run or write */
/* Parameters and buffers (running statistics) in the order of their creation: what gpunn_save writes. */
GPUNN_API int           gpunn_parameter_count(const gpunn_model *model);
GPUNN_API gpunn_tensor *gpunn_parameter_at(gpunn_model *model, int index);
GPUNN_API gpunn_tensor *gpunn_input_at(gpunn_model *model, int index); /* NULL: there are no more */

/* Host to device: inputs (their bytes tell the batch size), parameters, buffers. bytes must fit exactly. */
GPUNN_API gpunn_status gpunn_write(gpunn_tensor *t, const void *host, size_t bytes);
/* Device to host: parameters, buffers, inputs, outputs of the last run, kept values. */
GPUNN_API gpunn_status gpunn_read(gpunn_tensor *t, void *host, size_t bytes);
/* The gradient of a parameter, or of a value named to gpunn_retain_grad, after gpunn_backward or gpunn_train_step. */
GPUNN_API gpunn_status gpunn_read_grad(gpunn_tensor *t, void *host, size_t bytes);
/* The value of a one-element F32 or I64 tensor; NaN on failure. */
GPUNN_API float gpunn_item(gpunn_tensor *t);

GPUNN_API gpunn_status gpunn_set_trainable(gpunn_tensor *parameter, bool trainable); /* false freezes it */
GPUNN_API gpunn_status gpunn_set_lr_scale(gpunn_tensor *parameter, float scale);     /* its learning rate, times scale */
GPUNN_API gpunn_status gpunn_set_decay(gpunn_tensor *parameter, bool decay);         /* false: no weight decay */
/* The value stays readable after every run; training steps compute it too when it needs no input that the loss does not. */
GPUNN_API gpunn_tensor *gpunn_keep(gpunn_tensor *t);
GPUNN_API gpunn_tensor *gpunn_retain_grad(gpunn_tensor *t); /* as torch's: also for inputs and values between */

typedef struct gpunn_summary_args {
    int           args_;
    int64_t       batch_size;                    /* default 1 */
    gpunn_tensor *loss;                          /* a training step of it; NULL: evaluation of outputs */
    gpunn_tensor *outputs[8];                    /* default: every value that no op reads */
    void (*write)(void *user, const char *text); /* receives the text piece by piece; NULL: only bytes is wanted */
    void   *user;
    size_t *bytes; /* receives all device bytes that such a run holds: parameters, gradients, inputs, arena */
} gpunn_summary_args;
/* Layers, shapes, parameters and the exact bytes, before anything is allocated on the device. */
GPUNN_API gpunn_status gpunn_model_summary_(gpunn_model *model, gpunn_summary_args args);
#define gpunn_model_summary(...) gpunn_model_summary_(GPUNN_NAMED(gpunn_summary_args, __VA_ARGS__))

/* ==== >>ops =========================================================================================================== *
 * Every elementwise op, once. Adding one is adding a line here: enum, name, builder, gpunn_expr, CPU loops, CUDA kernels, fused
 * kernels and tests follow from it.
 *
 * Columns: enum GPUNN_OP_*, name (torch's), attributes with their defaults, forward, then the derivative for each operand.
 * Forward reads the operands (x, or a, b, c) and the attributes; a derivative also y, the result, and g, the gradient of y. A
 * derivative that is just 0 is none. What the derivatives mention is what training keeps in memory: prefer y to x where that is
 * as exact, since y often is kept anyway and x may then be overwritten.
 *
 * Language: valid C and valid Python, and nothing but + - * /, comparisons, numbers (K(0.5) when not an integer) and calls of
 *     where(condition, then, else) min max abs sign floor exp expm1 log log1p sqrt tanh erf sigmoid sin cos pow.
 * min and max hand on NaN; sign(0) is 0. Kinks and NaN behave as PyTorch's: write comparisons so that NaN takes its branch. */
/* >>ops begin */
/* clang-format off */
/* X(ENUM, name, forward, derivative) */
#define GPUNN_UNARY_OPS(X)                                                                                            \
    X(RELU, relu, where(x <= 0, 0, x), where(y <= 0, 0, g))                                                           \
    X(RELU6, relu6, where(x < 0, 0, where(x > 6, 6, x)), where(y <= 0, 0, where(y >= 6, 0, g)))                       \
    X(SIGMOID, sigmoid, sigmoid(x), g * (1 - y) * y)                                                                  \
    X(TANH, tanh, tanh(x), g * (1 - y * y))                                                                           \
    X(SILU, silu, x * sigmoid(x), g * sigmoid(x) * (1 + x * (1 - sigmoid(x))))                                        \
    X(MISH, mish, x * tanh(log1p(exp(x))),                                                                            \
      g * (tanh(log1p(exp(x))) + x * sigmoid(x) * (1 - tanh(log1p(exp(x))) * tanh(log1p(exp(x))))))                   \
    X(GELU, gelu, K(0.5) * x * (1 + erf(K(0.70710678) * x)),                                                          \
      g * (K(0.5) * (1 + erf(K(0.70710678) * x)) + x * K(0.39894228) * exp(-K(0.5) * x * x)))                         \
    X(GELU_TANH, gelu_tanh, K(0.5) * x * (1 + tanh(K(0.7978846) * (x + K(0.044715) * x * x * x))),                    \
      g * K(0.5) * (1 + tanh(K(0.7978846) * (x + K(0.044715) * x * x * x))) * (1 + x * (1 - tanh(K(0.7978846) * (x +  \
        K(0.044715) * x * x * x))) * K(0.7978846) * (1 + K(0.134145) * x * x)))                                       \
    X(SOFTSIGN, softsign, x / (1 + abs(x)), g / ((1 + abs(x)) * (1 + abs(x))))                                        \
    X(LOGSIGMOID, logsigmoid, min(x, 0) - log1p(exp(-abs(x))), g * sigmoid(-x))                                       \
    X(HARDSIGMOID, hardsigmoid, min(max(x + 3, 0), 6) / 6, where(abs(x) < 3, g / 6, 0))                               \
    X(HARDSWISH, hardswish, x * min(max(x + 3, 0), 6) / 6, where(x <= -3, 0, where(x >= 3, g, g * (x / 3 + K(0.5))))) \
    X(SELU, selu, K(1.050701) * where(x > 0, x, K(1.6732632) * expm1(x)),                                             \
      g * where(x <= 0, K(1.7580993) * exp(x), K(1.050701)))                                                          \
    X(ABS, abs, abs(x), g * sign(x))                                                                                  \
    X(NEG, neg, -x, -g)                                                                                               \
    X(SIGN, sign, sign(x), 0)                                                                                         \
    X(FLOOR, floor, floor(x), 0)                                                                                      \
    X(EXP, exp, exp(x), g * y)                                                                                        \
    X(EXPM1, expm1, expm1(x), g * (y + 1))                                                                            \
    X(LOG, log, log(x), g / x)                                                                                        \
    X(LOG1P, log1p, log1p(x), g / (x + 1))                                                                            \
    X(SQRT, sqrt, sqrt(x), g / (2 * y))                                                                               \
    X(RSQRT, rsqrt, 1 / sqrt(x), -K(0.5) * g * y * y * y)                                                             \
    X(RECIPROCAL, reciprocal, 1 / x, -g * y * y)                                                                      \
    X(SQUARE, square, x * x, 2 * g * x)                                                                               \
    X(ERF, erf, erf(x), g * K(1.1283792) * exp(-x * x))                                                               \
    X(SIN, sin, sin(x), g * cos(x))                                                                                   \
    X(COS, cos, cos(x), -g * sin(x))
/* X(ENUM, name, attribute, default, forward, derivative) */
#define GPUNN_UNARY1_OPS(X)                                                                                                \
    X(LEAKY_RELU, leaky_relu, negative_slope, K(0.01), where(x > 0, x, x * negative_slope),                                \
      where(x > 0, g, g * negative_slope))                                                                                 \
    X(ELU, elu, alpha, 1, where(x > 0, x, alpha * expm1(x)), where(x <= 0, g * alpha * exp(x), g))                         \
    X(CELU, celu, alpha, 1, where(x > 0, x, alpha * expm1(x / alpha)), where(x <= 0, g * exp(x / alpha), g))               \
    X(ADD_SCALAR, add_scalar, value, 0, x + value, g)                                                                      \
    X(MUL_SCALAR, mul_scalar, value, 1, x * value, g * value)                                                              \
    X(POW_SCALAR, pow_scalar, exponent, 1, pow(x, exponent), where(exponent == 0, 0, g * exponent * pow(x, exponent - 1)))
/* X(ENUM, name, attribute 1, default 1, attribute 2, default 2, forward, derivative) */
#define GPUNN_UNARY2_OPS(X)                                                                                     \
    X(HARDTANH, hardtanh, min_val, -1, max_val, 1, where(x < min_val, min_val, where(x > max_val, max_val, x)), \
      where(y <= min_val, 0, where(y >= max_val, 0, g)))                                                        \
    X(CLAMP, clamp, min, -K(3.4028235e38), max, K(3.4028235e38), min(max(x, min), max),                         \
      where(x >= min, where(x <= max, g, 0), 0))                                                                \
    X(SOFTPLUS, softplus, beta, 1, threshold, 20, where(x * beta > threshold, x, log1p(exp(x * beta)) / beta),  \
      where(x * beta > threshold, g, g * sigmoid(x * beta)))
/* X(ENUM, name, forward, da, db) */
#define GPUNN_BINARY_OPS(X)                                                                                             \
    X(ADD, add, a + b, g, g)                                                                                            \
    X(SUB, sub, a - b, g, -g)                                                                                           \
    X(MUL, mul, a * b, g * b, g * a)                                                                                    \
    X(DIV, div, a / b, g / b, -g * (y / b))                                                                             \
    X(POW, pow, pow(a, b), where(b == 0, 0, g * b * pow(a, b - 1)), g * y * log(where(a == 0, where(b >= 0, 1, 0), a))) \
    X(MAXIMUM, maximum, max(a, b), where(a == b, g / 2, where(a < b, 0, g)), where(a == b, g / 2, where(a > b, 0, g)))  \
    X(MINIMUM, minimum, min(a, b), where(a == b, g / 2, where(a > b, 0, g)), where(a == b, g / 2, where(a < b, 0, g)))  \
    X(EQ, eq, where(a == b, 1, 0), 0, 0)                                                                                \
    X(NE, ne, where(a != b, 1, 0), 0, 0)                                                                                \
    X(LT, lt, where(a < b, 1, 0), 0, 0)                                                                                 \
    X(LE, le, where(a <= b, 1, 0), 0, 0)                                                                                \
    X(GT, gt, where(a > b, 1, 0), 0, 0)                                                                                 \
    X(GE, ge, where(a >= b, 1, 0), 0, 0)                                                                                \
    X(PARAMETRIC_RELU, parametric_relu, where(a > 0, a, a * b), where(a > 0, g, g * b), where(a > 0, 0, g * a))         \
    X(SQUARED_ERROR, squared_error, (a - b) * (a - b), 2 * g * (a - b), 2 * g * (b - a))                                \
    X(ABSOLUTE_ERROR, absolute_error, abs(a - b), g * sign(a - b), g * sign(b - a))                                     \
    X(BINARY_CROSS_ENTROPY, binary_cross_entropy, (b - 1) * max(log1p(-a), -100) - b * max(log(a), -100),               \
      g * (a - b) / max((1 - a) * a, K(1e-12)), g * (log1p(-a) - log(a)))                                               \
    X(BINARY_CROSS_ENTROPY_WITH_LOGITS, binary_cross_entropy_with_logits,                                               \
      (1 - b) * max(a, 0) - b * min(a, 0) + log1p(exp(-abs(a))), g * (sigmoid(a) - b), -g * a)                          \
    X(KL_DIVERGENCE, kl_divergence, where(b == 0, 0, b * log(b)) - b * a, -g * b, g * (log(b) + 1 - a))                 \
    X(KL_DIVERGENCE_LOG, kl_divergence_log, exp(b) * (b - a), -g * exp(b), g * (y + exp(b)))
/* X(ENUM, name, attribute, default, forward, da, db) */
#define GPUNN_BINARY1_OPS(X)                                                                                                \
    X(HUBER, huber, delta, 1, where(abs(a - b) < delta, K(0.5) * (a - b) * (a - b), delta * (abs(a - b) - K(0.5) * delta)), \
      where(abs(a - b) >= delta, g * delta * sign(a - b), g * (a - b)),                                                     \
      where(abs(a - b) >= delta, g * delta * sign(b - a), g * (b - a)))                                                     \
    X(SMOOTH_L1, smooth_l1, beta, 1,                                                                                        \
      where(abs(a - b) < beta, K(0.5) * (a - b) * (a - b) / beta, abs(a - b) - K(0.5) * beta),                              \
      where(abs(a - b) >= beta, g * sign(a - b), g * (a - b) / beta),                                                       \
      where(abs(a - b) >= beta, g * sign(b - a), g * (b - a) / beta))
/* X(ENUM, name, forward, da, db, dc) */
#define GPUNN_TERNARY_OPS(X)                                           \
    X(WHERE, where, where(a, b, c), 0, where(a, g, 0), where(a, 0, g))
/* clang-format on */
/* >>ops end */

/* The other ops: X(ENUM, name, operands that the backward pass reads (bit i: operand i), whether it reads the result, operands
 * that have a gradient (bit i; -1: all)). Their attributes and operands stand at gpunn_attributes (>>backend). */
#define GPUNN_OTHER_OPS(X)                               \
    X(LINEAR, linear, 3, 0, 7)                           \
    X(MATMUL, matmul, 3, 0, 3)                           \
    X(CONV1D, conv1d, 3, 0, 7)                           \
    X(CONV2D, conv2d, 3, 0, 7)                           \
    X(CONV3D, conv3d, 3, 0, 7)                           \
    X(CONV_TRANSPOSE1D, conv_transpose1d, 3, 0, 7)       \
    X(CONV_TRANSPOSE2D, conv_transpose2d, 3, 0, 7)       \
    X(CONV_TRANSPOSE3D, conv_transpose3d, 3, 0, 7)       \
    X(MAX_POOL2D, max_pool2d, 0, 0, 1)                   \
    X(MAX_POOL3D, max_pool3d, 0, 0, 1)                   \
    X(AVG_POOL2D, avg_pool2d, 0, 0, 1)                   \
    X(AVG_POOL3D, avg_pool3d, 0, 0, 1)                   \
    X(ADAPTIVE_MAX_POOL2D, adaptive_max_pool2d, 0, 0, 1) \
    X(ADAPTIVE_MAX_POOL3D, adaptive_max_pool3d, 0, 0, 1) \
    X(ADAPTIVE_AVG_POOL2D, adaptive_avg_pool2d, 0, 0, 1) \
    X(ADAPTIVE_AVG_POOL3D, adaptive_avg_pool3d, 0, 0, 1) \
    X(GRID_SAMPLE, grid_sample, 3, 0, 3)                 \
    X(AFFINE_GRID, affine_grid, 0, 0, 1)                 \
    X(BATCH_NORM, batch_norm, 3, 0, 7)                   \
    X(LAYER_NORM, layer_norm, 3, 0, 7)                   \
    X(RMS_NORM, rms_norm, 3, 0, 3)                       \
    X(EMBEDDING, embedding, 1, 0, 2)                     \
    X(DROPOUT, dropout, 0, 0, 1)                         \
    X(PERMUTE, permute, 0, 0, 1)                         \
    X(CONCAT, concat, 0, 0, -1)                          \
    X(SLICE, slice, 0, 0, 1)                             \
    X(PAD, pad, 0, 0, 1)                                 \
    X(GATHER, gather, 2, 0, 1)                           \
    X(SUM, sum, 0, 0, 1)                                 \
    X(MAX, max, 1, 1, 1)                                 \
    X(ARGMAX, argmax, 0, 0, 0)                           \
    X(SOFTMAX, softmax, 0, 1, 1)                         \
    X(LOG_SOFTMAX, log_softmax, 0, 1, 1)                 \
    X(ATTENTION, scaled_dot_product_attention, 15, 1, 7) \
    X(CROSS_ENTROPY, cross_entropy, 7, 0, 1)             \
    X(NLL, nll, 6, 0, 1)                                 \
    X(CAST, cast, 0, 0, 0)                               \
    X(GROUP, group, 0, 0, 0) /* a fused kernel of a plan's; no node has it */

/* Another name for its operand's memory: it takes part in shapes and gradients, but no backend runs it. */
#define GPUNN_ALIAS_OPS(X) X(RESHAPE, reshape, 0, 0, 1)

/* clang-format off */
typedef enum gpunn_op {
    GPUNN_OP_NONE = 0,
#define GPUNN__X(ENUM, ...) GPUNN_OP_##ENUM,
    GPUNN_UNARY_OPS(GPUNN__X) GPUNN_UNARY1_OPS(GPUNN__X) GPUNN_UNARY2_OPS(GPUNN__X) GPUNN_BINARY_OPS(GPUNN__X)
        GPUNN_BINARY1_OPS(GPUNN__X) GPUNN_TERNARY_OPS(GPUNN__X) GPUNN_OTHER_OPS(GPUNN__X) GPUNN_ALIAS_OPS(GPUNN__X)
#undef GPUNN__X
            GPUNN_OP_COUNT
} gpunn_op;
/* clang-format on */

GPUNN_API const char *gpunn_op_name(gpunn_op op);

/* ==== >>builders ====================================================================================================== *
 * Each appends a node to its operands' model and returns it, or NULL after an error, or when an operand is NULL (then the first
 * error stays). Not thread-safe per device. Operands belong to one model; F32 unless stated. Values carry no name until
 * gpunn_set_name. */

/* Elementwise, from the tables above: gpunn_relu(x), gpunn_add(a, b), gpunn_leaky_relu(x, 0.01f), ... */
#define GPUNN__X(ENUM, name, ...) GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *x);
GPUNN_UNARY_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr, ...) GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *x, float attr);
GPUNN_UNARY1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, default1, attr2, ...) \
    GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *x, float attr1, float attr2);
GPUNN_UNARY2_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, ...) GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *a, gpunn_tensor *b);
GPUNN_BINARY_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr, ...) GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *a, gpunn_tensor *b, float attr);
GPUNN_BINARY1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, ...) GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *a, gpunn_tensor *b, gpunn_tensor *c);
GPUNN_TERNARY_OPS(GPUNN__X)
#undef GPUNN__X

/* A formula in the tables' language over x, y, z (args 0 to 2) or x0 to x7: + - * / **, < <= > >= == != (which chain), and or
 * not, a if c else b, parentheses, numbers, the constant pi, and every elementwise op by name, its attributes as further numbers
 * ("x * sigmoid(1.702 * x)", "where(x > 0, x, leaky_relu(x, 0.2))"); max, min, K(number), where. All mean what they mean in
 * Python. Values that are used again get names first: "t = max(x, 0); t ** 2 + t". Broadcasts. */
GPUNN_API gpunn_tensor *gpunn_expr(const char *expression, gpunn_tensor *const *args, int arg_count);

/* -- layers: parameters are called name.weight, name.bias, ... as torch.nn's; name must be unique; "" or NULL is an error -- */

typedef struct gpunn_linear_args {
    int           args_;
    int           out_features;
    bool          no_bias;
    gpunn_tensor *weight; /* a parameter [out, in], of another layer say, in place of one of its own; tells out_features too */
} gpunn_linear_args;
/* x [..., in] -> [..., out]; weight [out, in], bias [out]. A shared weight gathers the gradients of all that read it. */
GPUNN_API gpunn_tensor *gpunn_linear_(gpunn_tensor *x, const char *name, gpunn_linear_args args);
#define gpunn_linear(x, ...) gpunn_linear_((x), GPUNN_NAMED(gpunn_linear_args, __VA_ARGS__))

typedef struct gpunn_conv_args {
    int args_;
    int out_channels, kernel_size, stride, padding, dilation, groups;               /* the same along all axes ... */
    int output_padding;                                                             /* transposed only */
    int kernel_shape[3], strides[3], paddings[3], dilations[3], output_paddings[3]; /* ... or one per spatial axis, where not 0 */
    bool no_bias;
} gpunn_conv_args;
/* x [n, in, length] (1d), [n, in, height, width] (2d), [n, in, depth, height, width] (3d) -> [n, out, ...], along each axis
 * (size + 2 padding - dilation (kernel - 1) - 1) / stride + 1; weight [out, in / groups, kernel ...], bias [out]. */
GPUNN_API gpunn_tensor *gpunn_conv1d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
GPUNN_API gpunn_tensor *gpunn_conv2d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
GPUNN_API gpunn_tensor *gpunn_conv3d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
#define gpunn_conv1d(x, ...) gpunn_conv1d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))
#define gpunn_conv2d(x, ...) gpunn_conv2d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))
#define gpunn_conv3d(x, ...) gpunn_conv3d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))
/* The gradient of such a convolution for its input, as a layer: along each axis (size - 1) stride - 2 padding + dilation (kernel
 * - 1) + output_padding + 1, where output_padding is less than stride or dilation; weight [in, out / groups, kernel ...]. */
GPUNN_API gpunn_tensor *gpunn_conv_transpose1d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
GPUNN_API gpunn_tensor *gpunn_conv_transpose2d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
GPUNN_API gpunn_tensor *gpunn_conv_transpose3d_(gpunn_tensor *x, const char *name, gpunn_conv_args args);
#define gpunn_conv_transpose1d(x, ...) gpunn_conv_transpose1d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))
#define gpunn_conv_transpose2d(x, ...) gpunn_conv_transpose2d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))
#define gpunn_conv_transpose3d(x, ...) gpunn_conv_transpose3d_((x), GPUNN_NAMED(gpunn_conv_args, __VA_ARGS__))

typedef struct gpunn_pool_args {
    int  args_;
    int  kernel_size, stride, padding;             /* stride defaults to the kernel */
    int  kernel_shape[3], strides[3], paddings[3]; /* one per spatial axis, where not 0 */
    bool ceil_mode, count_exclude_pad;             /* the latter: average over real elements only */
} gpunn_pool_args;
/* x [n, c, l] (1d), [n, c, h, w] (2d), [n, c, d, h, w] (3d); the maximum pads with -inf and hands on NaN; the gradient goes to the
 * first maximum. */
GPUNN_API gpunn_tensor *gpunn_max_pool1d_(gpunn_tensor *x, gpunn_pool_args args);
GPUNN_API gpunn_tensor *gpunn_max_pool2d_(gpunn_tensor *x, gpunn_pool_args args);
GPUNN_API gpunn_tensor *gpunn_max_pool3d_(gpunn_tensor *x, gpunn_pool_args args);
GPUNN_API gpunn_tensor *gpunn_avg_pool1d_(gpunn_tensor *x, gpunn_pool_args args);
GPUNN_API gpunn_tensor *gpunn_avg_pool2d_(gpunn_tensor *x, gpunn_pool_args args);
GPUNN_API gpunn_tensor *gpunn_avg_pool3d_(gpunn_tensor *x, gpunn_pool_args args);
#define gpunn_max_pool1d(...) gpunn_max_pool1d_(GPUNN_NAMED(gpunn_pool_args, __VA_ARGS__))
#define gpunn_max_pool2d(...) gpunn_max_pool2d_(GPUNN_NAMED(gpunn_pool_args, __VA_ARGS__))
#define gpunn_max_pool3d(...) gpunn_max_pool3d_(GPUNN_NAMED(gpunn_pool_args, __VA_ARGS__))
#define gpunn_avg_pool1d(...) gpunn_avg_pool1d_(GPUNN_NAMED(gpunn_pool_args, __VA_ARGS__))
#define gpunn_avg_pool2d(...) gpunn_avg_pool2d_(GPUNN_NAMED(gpunn_pool_args, __VA_ARGS__))
#define gpunn_avg_pool3d(...) gpunn_avg_pool3d_(GPUNN_NAMED(gpunn_pool_args, __VA_ARGS__))
/* Window i of an axis of n cells is cells i n / out .. ((i + 1) n + out - 1) / out - 1. */
GPUNN_API gpunn_tensor *gpunn_adaptive_max_pool1d(gpunn_tensor *x, int out);
GPUNN_API gpunn_tensor *gpunn_adaptive_max_pool2d(gpunn_tensor *x, int out_h, int out_w);
GPUNN_API gpunn_tensor *gpunn_adaptive_max_pool3d(gpunn_tensor *x, int out_d, int out_h, int out_w);
GPUNN_API gpunn_tensor *gpunn_adaptive_avg_pool1d(gpunn_tensor *x, int out);
GPUNN_API gpunn_tensor *gpunn_adaptive_avg_pool2d(gpunn_tensor *x, int out_h, int out_w);
GPUNN_API gpunn_tensor *gpunn_adaptive_avg_pool3d(gpunn_tensor *x, int out_d, int out_h, int out_w);

typedef enum gpunn_grid_mode { GPUNN_GRID_BILINEAR = 0, GPUNN_GRID_NEAREST } gpunn_grid_mode;
typedef enum gpunn_grid_padding { GPUNN_GRID_ZEROS = 0, GPUNN_GRID_BORDER, GPUNN_GRID_REFLECTION } gpunn_grid_padding;
typedef struct gpunn_grid_args {
    int                args_;
    gpunn_grid_mode    mode; /* BILINEAR is trilinear in volumes */
    gpunn_grid_padding padding_mode;
    bool               align_corners; /* -1 and 1 are the centres of the outermost cells, else their outer edges */
} gpunn_grid_args;
/* torch's: x [n, c, h, w] at the points of grid [n, oh, ow, 2] -> [n, c, oh, ow]; x [n, c, d, h, w], grid [n, od, oh, ow, 3] ->
 * [n, c, od, oh, ow]. A point is x, y (, z): -1 to 1 along the last axis of x, the one before (, and that before). A coordinate
 * that is NaN lies outside; with BORDER or REFLECTION it is cell 0. Gradients for both, x's as reproducible as all others. */
GPUNN_API gpunn_tensor *gpunn_grid_sample_(gpunn_tensor *x, gpunn_tensor *grid, gpunn_grid_args args);
#define gpunn_grid_sample(x, ...) gpunn_grid_sample_((x), GPUNN_NAMED(gpunn_grid_args, __VA_ARGS__))
/* torch's: the grid that samples through theta [n, 2, 3] (or [n, 3, 4]) for a result of size {h, w} (or {d, h, w}): [n, h, w, 2]
 * (or [n, d, h, w, 3]), F32 in every precision. */
GPUNN_API gpunn_tensor *gpunn_affine_grid(gpunn_tensor *theta, gpunn_shape size, bool align_corners);

typedef struct gpunn_batch_norm_args {
    int   args_;
    float eps;      /* 1e-5 */
    float momentum; /* share of the new batch in the running statistics, 0.1 */
    bool  no_affine;
} gpunn_batch_norm_args;
/* x [n, c] or [n, c, l] (1d), [n, c, h, w] (2d); weight, bias, and the buffers running_mean, running_var (unbiased) [c].
 * A training step over one value per channel is an error, as in PyTorch. */
GPUNN_API gpunn_tensor *gpunn_batch_norm1d_(gpunn_tensor *x, const char *name, gpunn_batch_norm_args args);
#define gpunn_batch_norm1d(x, ...) gpunn_batch_norm1d_((x), GPUNN_NAMED(gpunn_batch_norm_args, __VA_ARGS__))
GPUNN_API gpunn_tensor *gpunn_batch_norm2d_(gpunn_tensor *x, const char *name, gpunn_batch_norm_args args);
#define gpunn_batch_norm2d(x, ...) gpunn_batch_norm2d_((x), GPUNN_NAMED(gpunn_batch_norm_args, __VA_ARGS__))

typedef struct gpunn_layer_norm_args {
    int   args_;
    int   dims; /* how many of the last axes are normalised together, 1; none may be GPUNN_BATCH */
    float eps;  /* layer_norm: 1e-5; rms_norm: 1.1920929e-7 */
    bool  no_affine, no_bias;
} gpunn_layer_norm_args;
/* (x - mean) / sqrt(variance + eps) * weight + bias over those axes, of whose shape weight and bias are; rms_norm, which has no
 * bias: x / sqrt(mean of x^2 + eps) * weight. */
GPUNN_API gpunn_tensor *gpunn_layer_norm_(gpunn_tensor *x, const char *name, gpunn_layer_norm_args args);
#define gpunn_layer_norm(x, ...) gpunn_layer_norm_((x), GPUNN_NAMED(gpunn_layer_norm_args, __VA_ARGS__))
GPUNN_API gpunn_tensor *gpunn_rms_norm_(gpunn_tensor *x, const char *name, gpunn_layer_norm_args args);
#define gpunn_rms_norm(x, ...) gpunn_rms_norm_((x), GPUNN_NAMED(gpunn_layer_norm_args, __VA_ARGS__))

typedef struct gpunn_embedding_args {
    int           args_;
    int           num_embeddings, embedding_dim;
    int           padding_idx; /* a row that starts as 0 and gets no gradient, below 0 from the end; 0: none, GPUNN_ZERO: row 0 */
    gpunn_tensor *weight;      /* a tensor [num_embeddings, embedding_dim] in place of a parameter of its own; tells both */
} gpunn_embedding_args;
/* tokens, I64 or I32 of any shape [...] -> [..., embedding_dim], their rows of weight [num_embeddings, embedding_dim], which
 * starts as N(0, 1). A token outside 0 .. num_embeddings - 1: on the CPU the run fails with GPUNN_ERR_ARGUMENT, on a GPU its row
 * is NaN. */
GPUNN_API gpunn_tensor *gpunn_embedding_(gpunn_tensor *tokens, const char *name, gpunn_embedding_args args);
#define gpunn_embedding(tokens, ...) gpunn_embedding_((tokens), GPUNN_NAMED(gpunn_embedding_args, __VA_ARGS__))

/* Zeroes each element with probability p in training steps and scales the rest by 1 / (1 - p); nothing in evaluation. 0 <= p <=
 * 1, rounded to a multiple of 1/65536. */
GPUNN_API gpunn_tensor *gpunn_dropout(gpunn_tensor *x, float p);

/* max(x, 0) + weight min(x, 0); num_parameters 1 (0) or the channels of axis 1; weight starts at init (0: 0.25). */
GPUNN_API gpunn_tensor *gpunn_prelu(gpunn_tensor *x, const char *name, int num_parameters, float init);

/* -- shapes -- */
GPUNN_API gpunn_tensor *gpunn_reshape(gpunn_tensor *x, gpunn_shape shape); /* GPUNN_BATCH * k where the batch goes */
GPUNN_API gpunn_tensor *gpunn_flatten(gpunn_tensor *x);                    /* [n, ...] -> [n, rest] */
GPUNN_API gpunn_tensor *gpunn_permute(gpunn_tensor *x, gpunn_axes order);  /* y.dim[i] = x.dim[order[i]] */
GPUNN_API gpunn_tensor *gpunn_concat(gpunn_tensor *const *tensors, int count, int axis);
/* x[start:end:step] along one axis, as Python's, step >= 1; not along GPUNN_BATCH. end GPUNN_END_OF_AXIS: to the end. */
#define GPUNN_END_OF_AXIS INT64_MAX
GPUNN_API gpunn_tensor *gpunn_slice(gpunn_tensor *x, int axis, int64_t start, int64_t end, int64_t step);

typedef struct gpunn_pad_args {
    int     args_;
    int64_t before[GPUNN_MAX_RANK], after[GPUNN_MAX_RANK]; /* per axis of x, >= 0; 0 along GPUNN_BATCH */
    float   value;
} gpunn_pad_args;
GPUNN_API gpunn_tensor *gpunn_pad_(gpunn_tensor *x, gpunn_pad_args args);
#define gpunn_pad(...) gpunn_pad_(GPUNN_NAMED(gpunn_pad_args, __VA_ARGS__))
/* torch.gather: y[i][j][k] = x[i][index[i][j][k]][k] for axis 1 of three; index I64 or I32 of x's rank, along the other axes not
 * larger than x. An index outside x's axis: as a token of gpunn_embedding. */
GPUNN_API gpunn_tensor *gpunn_gather(gpunn_tensor *x, int axis, gpunn_tensor *index);
GPUNN_API gpunn_tensor *gpunn_cast(gpunn_tensor *x, gpunn_dtype dtype); /* between F32, I64, I32, U8, BOOL; no gradient */

/* -- reductions: keepdim leaves 1 in place of each axis -- */
GPUNN_API gpunn_tensor *gpunn_sum(gpunn_tensor *x, gpunn_axes axes, bool keepdim);
GPUNN_API gpunn_tensor *gpunn_mean(gpunn_tensor *x, gpunn_axes axes, bool keepdim);
GPUNN_API gpunn_tensor *gpunn_max(gpunn_tensor *x, gpunn_axes axes, bool keepdim); /* torch.amax: ties share the gradient */
GPUNN_API gpunn_tensor *gpunn_argmax(gpunn_tensor *x, int axis, bool keepdim);     /* I64, the first maximum */
GPUNN_API gpunn_tensor *gpunn_softmax(gpunn_tensor *x, int axis);
GPUNN_API gpunn_tensor *gpunn_log_softmax(gpunn_tensor *x, int axis);

typedef struct gpunn_matmul_args {
    int  args_;
    bool transpose_a, transpose_b; /* of the last two axes */
} gpunn_matmul_args;
/* torch.matmul for rank >= 2: [..., m, k] x [..., k, n] -> [..., m, n]; leading axes broadcast. */
GPUNN_API gpunn_tensor *gpunn_matmul_(gpunn_tensor *a, gpunn_tensor *b, gpunn_matmul_args args);
#define gpunn_matmul(a, ...) gpunn_matmul_((a), GPUNN_NAMED(gpunn_matmul_args, __VA_ARGS__))

/* -- attention -- */
typedef struct gpunn_attention_args {
    int           args_;
    gpunn_tensor *mask;       /* [n, heads, l, s], axes of 1 or none for all. BOOL: true takes part; F32: added; no gradient */
    bool          is_causal;  /* row i sees keys 0 .. i only; with a mask: and what that lets through */
    float         dropout_p;  /* of the weights, in training */
    float         scale;      /* 1 / sqrt(e) */
    bool          enable_gqa; /* k and v have kv_heads, a divisor of heads: each serves heads / kv_heads neighbours */
    bool          heads_last; /* all values are [n, l, heads, e] instead of [n, heads, l, e] */
} gpunn_attention_args;
/* torch's: softmax(q k^T scale + mask) v of q [n, heads, l, e], k [n, heads, s, e], v [n, heads, s, ev] -> [n, heads, l, ev]. Or
 * all three in one, as a linear layer makes them: q [n, l, 3, heads, e], k and v NULL -> [n, l, heads, e]. A row that sees no key
 * is 0 and gives no gradient. No memory of l x s on the CPU, and on a GPU where cuDNN's fused attention serves. */
GPUNN_API gpunn_tensor *gpunn_scaled_dot_product_attention_(gpunn_tensor *q, gpunn_tensor *k, gpunn_tensor *v,
                                                            gpunn_attention_args args);
#define gpunn_scaled_dot_product_attention(q, k, ...) \
    gpunn_scaled_dot_product_attention_((q), (k), GPUNN_NAMED(gpunn_attention_args, __VA_ARGS__))

/* -- losses: a scalar, or the input's shape without reduction -- */
typedef enum gpunn_reduction {
    GPUNN_REDUCE_MEAN = 0,
    GPUNN_REDUCE_SUM,
    GPUNN_REDUCE_NONE,
    GPUNN_REDUCE_BATCHMEAN /* sum / batch: kl_div's mathematical mean */
} gpunn_reduction;

typedef struct gpunn_loss_args {
    int             args_;
    gpunn_reduction reduction;
    float           delta;      /* huber: 1 */
    float           beta;       /* smooth_l1: 1; GPUNN_ZERO makes it l1 */
    gpunn_tensor   *weight;     /* bce, bce_with_logits: factor of each element, broadcast */
    gpunn_tensor   *pos_weight; /* bce_with_logits: factor of the positive part, broadcast */
    bool            log_target; /* kl_div */
} gpunn_loss_args;
/* input and target of one shape (no broadcasting: an error, not a surprise). mse: (x - t)^2. l1: |x - t|. bce: input in [0, 1],
 * log clamped at -100. kl_div: input holds log-probabilities. The gradient goes to both input and target. */
GPUNN_API gpunn_tensor *gpunn_mse_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_l1_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_huber_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_smooth_l1_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_bce_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_bce_with_logits_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
GPUNN_API gpunn_tensor *gpunn_kl_div_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
#define gpunn_mse_loss(input, ...) gpunn_mse_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_l1_loss(input, ...) gpunn_l1_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_huber_loss(input, ...) gpunn_huber_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_smooth_l1_loss(input, ...) gpunn_smooth_l1_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_bce_loss(input, ...) gpunn_bce_loss_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_bce_with_logits(input, ...) gpunn_bce_with_logits_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))
#define gpunn_kl_div(input, ...) gpunn_kl_div_((input), GPUNN_NAMED(gpunn_loss_args, __VA_ARGS__))

typedef struct gpunn_class_loss_args {
    int             args_;
    gpunn_reduction reduction;
    int             ignore_index;    /* default -100; GPUNN_ZERO for 0 */
    float           label_smoothing; /* cross_entropy only */
    gpunn_tensor   *weight;          /* [classes] */
} gpunn_class_loss_args;
/* logits [n, classes, ...], labels I64, I32 or U8 [n, ...]; nll takes log-probabilities. A label outside 0 .. classes - 1 that is
 * not ignore_index changes no weight: on the CPU the run fails with GPUNN_ERR_ARGUMENT, on a GPU the loss is NaN. */
GPUNN_API gpunn_tensor *gpunn_cross_entropy_(gpunn_tensor *logits, gpunn_tensor *labels, gpunn_class_loss_args args);
GPUNN_API gpunn_tensor *gpunn_nll_loss_(gpunn_tensor *log_probabilities, gpunn_tensor *labels, gpunn_class_loss_args args);
#define gpunn_cross_entropy(logits, ...) gpunn_cross_entropy_((logits), GPUNN_NAMED(gpunn_class_loss_args, __VA_ARGS__))
#define gpunn_nll_loss(log_probabilities, ...) \
    gpunn_nll_loss_((log_probabilities), GPUNN_NAMED(gpunn_class_loss_args, __VA_ARGS__))

/* -- metrics: scalars without gradient -- */
GPUNN_API gpunn_tensor *gpunn_accuracy(gpunn_tensor *logits,
                                       gpunn_tensor *labels); /* share of rows [n, classes] argmax gets right */
GPUNN_API gpunn_tensor *gpunn_binary_accuracy(gpunn_tensor *prob,
                                              gpunn_tensor *target); /* share with (prob > 0.5) == (target > 0.5) */

/* ==== >>train ========================================================================================================= *
 * Not thread-safe per device. */

/* Evaluation mode: computes just what the outputs need. Inputs must have been written. */
GPUNN_API gpunn_status gpunn_forward(gpunn_tensor *const *outputs, int count);
/* Training mode: forward, and gradients of the scalar loss added to what gpunn_zero_grad left. */
GPUNN_API gpunn_status gpunn_backward(gpunn_tensor *loss);
/* zero_grad, backward, clipping as set on the optimizer, update. A loss that is NaN or infinite gives GPUNN_ERR_NUMERIC and
 * leaves the weights as they were. */
GPUNN_API gpunn_status gpunn_train_step(gpunn_optimizer *opt, gpunn_tensor *loss);
GPUNN_API gpunn_status gpunn_zero_grad(gpunn_model *model);
/* Scales all gradients so that their 2-norm is at most max_norm; total_norm (may be NULL) receives the norm before. */
GPUNN_API gpunn_status gpunn_clip_grad_norm(gpunn_model *model, float max_norm, float *total_norm);
GPUNN_API gpunn_status gpunn_clip_grad_value(gpunn_model *model, float clip_value);

typedef struct gpunn_sgd_args {
    int   args_;
    float lr; /* 1e-3 */
    float momentum, dampening, weight_decay;
    bool  nesterov, maximize;
} gpunn_sgd_args;
typedef struct gpunn_adam_args {
    int   args_;
    float lr, beta1, beta2, eps; /* adamax: 2e-3, else 1e-3; 0.9, 0.999, 1e-8 */
    float weight_decay;          /* adam, adamax: L2, 0; adamw: decoupled, 0.01 */
    bool  maximize;
} gpunn_adam_args;
typedef struct gpunn_rmsprop_args {
    int   args_;
    float lr, alpha, eps; /* 1e-2, 0.99, 1e-8 */
    float weight_decay, momentum;
    bool  centered, maximize;
} gpunn_rmsprop_args;
typedef struct gpunn_adagrad_args {
    int   args_;
    float lr, eps; /* 1e-2, 1e-10 */
    float lr_decay, weight_decay, initial_accumulator_value;
    bool  maximize;
} gpunn_adagrad_args;
typedef struct gpunn_lion_args {
    int   args_;
    float lr, beta1, beta2; /* 1e-4, 0.9, 0.99 */
    float weight_decay;     /* decoupled, 0 */
    bool  maximize;
} gpunn_lion_args;
typedef struct gpunn_radam_args {
    int   args_;
    float lr, beta1, beta2, eps; /* nadam: 2e-3, else 1e-3; 0.9, 0.999, 1e-8 */
    float weight_decay;
    float momentum_decay; /* nadam: 4e-3 */
    bool  decoupled_weight_decay, maximize;
} gpunn_radam_args;
typedef struct gpunn_lamb_args {
    int   args_;
    float lr, beta1, beta2, eps; /* 1e-3, 0.9, 0.999, 1e-6 */
    float weight_decay;          /* 0.01 */
    float trust_clip;            /* the trust ratio's greatest value; 0: none */
    bool  always_adapt;          /* a trust ratio for parameters without weight decay too */
    bool  maximize;
} gpunn_lamb_args;
/* Each equals torch.optim's of the same name, step by step. Weight decay applies to every parameter, as there, but those excluded
 * by gpunn_set_decay. A parameter that no backward pass has reached since gpunn_zero_grad is left alone.
 * Not in torch: lion (Chen et al. 2023) p = (1 - lr weight_decay) p - lr sign(beta1 m + (1 - beta1) g), then
 * m = beta2 m + (1 - beta2) g. lamb (You et al. 2020, in timm's and NVIDIA's form): u is AdamW's step with both bias corrections,
 * plus weight_decay p; p -= lr ratio u, where ratio is |p| / |u| over the whole parameter, and 1 where one of them is 0 or where
 * the parameter has no weight decay. Their clipping of all gradients to norm 1 is gpunn_set_clip_norm(opt, 1). */
GPUNN_API gpunn_optimizer *gpunn_sgd_(gpunn_model *model, gpunn_sgd_args args);
GPUNN_API gpunn_optimizer *gpunn_adam_(gpunn_model *model, gpunn_adam_args args);
GPUNN_API gpunn_optimizer *gpunn_adamw_(gpunn_model *model, gpunn_adam_args args);
GPUNN_API gpunn_optimizer *gpunn_rmsprop_(gpunn_model *model, gpunn_rmsprop_args args);
GPUNN_API gpunn_optimizer *gpunn_adagrad_(gpunn_model *model, gpunn_adagrad_args args);
GPUNN_API gpunn_optimizer *gpunn_adamax_(gpunn_model *model, gpunn_adam_args args);
GPUNN_API gpunn_optimizer *gpunn_nadam_(gpunn_model *model, gpunn_radam_args args);
GPUNN_API gpunn_optimizer *gpunn_radam_(gpunn_model *model, gpunn_radam_args args);
GPUNN_API gpunn_optimizer *gpunn_lion_(gpunn_model *model, gpunn_lion_args args);
GPUNN_API gpunn_optimizer *gpunn_lamb_(gpunn_model *model, gpunn_lamb_args args);
#define gpunn_sgd(...) gpunn_sgd_(GPUNN_NAMED(gpunn_sgd_args, __VA_ARGS__))
#define gpunn_adam(...) gpunn_adam_(GPUNN_NAMED(gpunn_adam_args, __VA_ARGS__))
#define gpunn_adamw(...) gpunn_adamw_(GPUNN_NAMED(gpunn_adam_args, __VA_ARGS__))
#define gpunn_rmsprop(...) gpunn_rmsprop_(GPUNN_NAMED(gpunn_rmsprop_args, __VA_ARGS__))
#define gpunn_adagrad(...) gpunn_adagrad_(GPUNN_NAMED(gpunn_adagrad_args, __VA_ARGS__))
#define gpunn_adamax(...) gpunn_adamax_(GPUNN_NAMED(gpunn_adam_args, __VA_ARGS__))
#define gpunn_nadam(...) gpunn_nadam_(GPUNN_NAMED(gpunn_radam_args, __VA_ARGS__))
#define gpunn_radam(...) gpunn_radam_(GPUNN_NAMED(gpunn_radam_args, __VA_ARGS__))
#define gpunn_lion(...) gpunn_lion_(GPUNN_NAMED(gpunn_lion_args, __VA_ARGS__))
#define gpunn_lamb(...) gpunn_lamb_(GPUNN_NAMED(gpunn_lamb_args, __VA_ARGS__))
GPUNN_API void gpunn_optimizer_destroy(gpunn_optimizer *opt);

GPUNN_API gpunn_status gpunn_optimizer_step(gpunn_optimizer *opt);   /* the update alone, from the gradients there are */
GPUNN_API void         gpunn_set_lr(gpunn_optimizer *opt, float lr); /* the base rate; a schedule scales it from now on */
GPUNN_API float        gpunn_get_lr(const gpunn_optimizer *opt);     /* what the next step uses */
GPUNN_API void         gpunn_set_clip_norm(gpunn_optimizer *opt, float max_norm);    /* in gpunn_train_step; 0: off */
GPUNN_API void         gpunn_set_clip_value(gpunn_optimizer *opt, float clip_value); /* the same, per element */
GPUNN_API int64_t      gpunn_step_count(const gpunn_optimizer *opt);
/* F16 on a GPU: what gpunn_train_step multiplies the loss by (read gradients are too); it doubles every 2000 steps and halves
 * when gradients overflow, whose update is skipped and counted in *skipped (may be NULL). 1 for other precisions. Waits. */
GPUNN_API float gpunn_loss_scale(gpunn_optimizer *opt, int64_t *skipped);

typedef enum gpunn_schedule_type {
    GPUNN_SCHEDULE_CONSTANT = 0,
    GPUNN_SCHEDULE_STEP,        /* lr gamma^(t / step_size) */
    GPUNN_SCHEDULE_MULTI_STEP,  /* lr gamma^(milestones passed) */
    GPUNN_SCHEDULE_EXPONENTIAL, /* lr gamma^t */
    GPUNN_SCHEDULE_COSINE,      /* min_lr + (lr - min_lr) (1 + cos(pi t / total_steps)) / 2, min_lr after total_steps */
    GPUNN_SCHEDULE_ONE_CYCLE,   /* torch's OneCycleLR with cosine annealing and momentum left alone; lr is max_lr */
    GPUNN_SCHEDULE_LINEAR,      /* warm-up from 0 over warmup_steps, then linearly down to min_lr at total_steps */
    GPUNN_SCHEDULE_PLATEAU      /* torch's ReduceLROnPlateau: lr factor after patience calls without a better metric */
} gpunn_schedule_type;
typedef struct gpunn_schedule_args {
    int                 args_;
    gpunn_schedule_type type;
    int64_t             total_steps, step_size, warmup_steps;
    int64_t             milestones[16]; /* rising; ends at the first 0 */
    float               gamma;          /* 0.1; exponential: 0.95 */
    float               min_lr;
    float               pct_start, div_factor, final_div_factor; /* one-cycle: 0.3, 25, 1e4 */
    float               factor, threshold;                       /* plateau: 0.1, 1e-4 (relative) */
    int                 patience, cooldown;                      /* plateau: 10, 0 */
    bool                maximize;                                /* plateau: a better metric is a larger one */
} gpunn_schedule_args;
/* t counts calls of gpunn_schedule_step: the program decides whether a step is a batch or an epoch. */
GPUNN_API gpunn_status gpunn_set_schedule_(gpunn_optimizer *opt, gpunn_schedule_args args);
#define gpunn_set_schedule(...) gpunn_set_schedule_(GPUNN_NAMED(gpunn_schedule_args, __VA_ARGS__))
GPUNN_API gpunn_status gpunn_schedule_step(gpunn_optimizer *opt, float metric); /* metric: read by PLATEAU only */

/* ==== >>data ========================================================================================================== *
 * Batches of host data, shuffled and prefetched into a model's inputs. Not thread-safe per device. */
#define GPUNN_MAX_FIELDS 8
typedef struct gpunn_field {
    gpunn_tensor *input;           /* its first dimension is GPUNN_BATCH */
    const void   *samples;         /* count samples one after another, not copied; NULL with load */
    gpunn_dtype   dtype;           /* of the samples; default: the input's. U8 and BOOL widen to any input, I32 to I64 */
    float         mean[4], std[4]; /* U8 into F32: (x / 255 - mean) / std per channel (axis 1); std 0 is 1; with fewer than
                                      4 channels the first entries; more than 4 channels use entry 0 */
} gpunn_field;
typedef struct gpunn_loader_args {
    int         args_;
    gpunn_field fields[GPUNN_MAX_FIELDS]; /* ends at the first without input */
    int64_t     count;
    int         batch_size; /* 32 */
    bool        shuffle, drop_last;
    uint64_t    seed; /* of the shuffling; 0: the device's */
    /* Instead of samples: writes sample index into sample[0], sample[1], ... (one per field, in the field's dtype). Called by
     * several threads at once when workers > 1. What is not GPUNN_OK ends the epoch with that status. */
    gpunn_status (*load)(void *user, int64_t index, void *const *sample);
    void *user;
    int   workers; /* threads that prefetch; 0: the next batch is made inside gpunn_next */
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
 * Every file is written beside its target and renamed over it when complete, so a crash leaves the old one or the new one. Every
 * file is read as hostile: nothing in it is trusted. */
GPUNN_API gpunn_status gpunn_save(gpunn_model *model, const char *path); /* safetensors: torch's state_dict() */
typedef struct gpunn_load_args {
    int                args_;
    bool               partial; /* names or shapes that do not match are reported, not errors */
    const char *const *skip;    /* ends at NULL: names, or beginnings of names, that stay as they are */
    /* One line per tensor that did not match: "fc.weight: in the file only", "fc.bias: file [10], model [5]". */
    void (*report)(void *user, const char *line);
    void *user;
} gpunn_load_args;
/* All or nothing: after an error no weight has changed. F32, F16, BF16 and F64 files are read into F32. */
GPUNN_API gpunn_status gpunn_load_(gpunn_model *model, const char *path, gpunn_load_args args);
#define gpunn_load(model, ...) gpunn_load_((model), GPUNN_NAMED(gpunn_load_args, __VA_ARGS__))

/* Weights, optimizer state, random state, schedule, loader's place (loader may be NULL): a resumed run equals one that was never
 * interrupted, bit for bit. */
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
/* .npy versions 1 to 3: f2 f4 f8 to F32, i8 to I64, i1 i2 i4 u2 to I32, u1, b1; either byte order; C or Fortran order (made C
 * order). */
GPUNN_API gpunn_status gpunn_read_npy(gpunn_device *dev, const char *path, gpunn_array *out);
GPUNN_API gpunn_status gpunn_write_npy(gpunn_device *dev, const char *path, const gpunn_array *array);
/* One tensor of a safetensors file; F32, F16, BF16 and F64 as F32, small integers as I32. name NULL: the file's only one. A name
 * that is not there: GPUNN_ERR_ARGUMENT. */
GPUNN_API gpunn_status gpunn_read_safetensors(gpunn_device *dev, const char *path, const char *name, gpunn_array *out);
GPUNN_API gpunn_status gpunn_write_safetensors(gpunn_device *dev, const char *path, const char *const *names,
                                               const gpunn_array *arrays, int count);
GPUNN_API void         gpunn_array_free(gpunn_device *dev, gpunn_array *array);

/* ==== >>spec ========================================================================================================== *
 * A model as JSON (generator/model.schema.json): for the generator, for other programs, for models that come from elsewhere. */
typedef struct gpunn_spec_args {
    int              args_;
    const char      *name;       /* the model's; default: that of the spec it came from, else the file's */
    gpunn_tensor    *outputs[8]; /* what evaluation computes; default: the spec's, else every value that no op reads */
    gpunn_tensor    *loss;       /* what training makes small; default: the spec's, else none */
    gpunn_optimizer *optimizer;  /* its kind, numbers and clipping are noted; default: the spec's, else none */
} gpunn_spec_args;
/* Tensors, ops, initial values and settings of parameters; not their values (gpunn_save). Tensors without a name get one in the
 * file, "t5". What gpunn_spec_load makes of the file is saved as the same bytes. */
GPUNN_API gpunn_status gpunn_spec_save_(gpunn_model *model, const char *path, gpunn_spec_args args);
#define gpunn_spec_save(model, ...) gpunn_spec_save_((model), GPUNN_NAMED(gpunn_spec_args, __VA_ARGS__))
/* Builds the model; NULL after an error, which begins with path:line:column. gpunn_find finds each tensor by its name or, where
 * it has none, its id. What is for the generator alone ("math", "layout", "fuse") is not kept. */
GPUNN_API gpunn_model *gpunn_spec_load(gpunn_device *dev, const char *path);
/* What the spec of such a model says; NULL: nothing. The optimizer is a new one, with the spec's clipping. */
GPUNN_API gpunn_tensor    *gpunn_spec_loss(gpunn_model *model);
GPUNN_API gpunn_tensor    *gpunn_spec_output(gpunn_model *model, int index);
GPUNN_API gpunn_optimizer *gpunn_spec_optimizer(gpunn_model *model);

/* ==== >>fit =========================================================================================================== */
typedef struct gpunn_progress {
    int     epoch, epochs; /* from 1 */
    int64_t batch, batches;
    float   loss, metric;                       /* of this epoch so far, weighted by samples */
    float   validation_loss, validation_metric; /* of the last validation; NaN before */
    float   lr;
    double  seconds; /* since the epoch began */
    bool    epoch_done;
} gpunn_progress;
typedef struct gpunn_fit_args {
    int           args_;
    gpunn_tensor *loss;
    gpunn_tensor *metric;             /* a scalar such as gpunn_accuracy; may be NULL */
    gpunn_loader *train, *validation; /* validation may be NULL */
    int           epochs;             /* 1 */
    int           patience;  /* stop after so many epochs without a better validation loss (else training loss); 0: never */
    bool schedule_per_batch; /* gpunn_schedule_step after each batch; default: after each epoch, with the validation loss */
    bool (*on_progress)(void *user, const gpunn_progress *progress); /* after each batch and epoch; false cancels */
    void       *user;
    const char *history_csv, *history_svg; /* rewritten after each epoch; NULL: none */
    const char *checkpoint;                /* written after each epoch; NULL: none */
    const char *best_weights;              /* gpunn_save after each epoch that is the best so far; NULL: none */
    int        *epochs_run;                /* receives the number of complete epochs */
} gpunn_fit_args;
/* GPUNN_ERR_CANCELLED after on_progress said so; everything stays usable. */
GPUNN_API gpunn_status gpunn_fit_(gpunn_optimizer *opt, gpunn_fit_args args);
#define gpunn_fit(...) gpunn_fit_(GPUNN_NAMED(gpunn_fit_args, __VA_ARGS__))
/* A ready on_progress: draws a bar on stderr when that is a terminal, prints one line per epoch when not. user is not read. */
GPUNN_API bool gpunn_progress_bar(void *user, const gpunn_progress *progress);
/* Mean of loss and metric (may be NULL) over one epoch of loader, in evaluation mode, weighted by samples. */
GPUNN_API gpunn_status gpunn_evaluate(gpunn_loader *loader, gpunn_tensor *loss, gpunn_tensor *metric, float *loss_mean,
                                      float *metric_mean);

/* ==== >>backend ======================================================================================================= *
 * What a backend provides, for its authors; programs need nothing from here. The core plans, the backend computes. All tensors
 * are contiguous and row-major in the backend's memory. A device calls its backend from one thread at a time. */
#define GPUNN_BACKEND_ABI 4
#define GPUNN_MAX_OPERANDS 64 /* concat takes that many; no other op more than 5 */

/* The constants of one node; each op reads only the fields named beside it. */
typedef struct gpunn_attributes {
    float           value[2];  /* elementwise: attr1, attr2; pad: value; dropout: p; cross_entropy: label_smoothing; attention:
                                  dropout_p, scale */
    int             kernel[3]; /* conv, pools: one per spatial axis, the first in [0] */
    int             stride[3], padding[3], dilation[3];
    int             groups;                       /* conv */
    bool            ceil_mode, count_exclude_pad; /* pools */
    float           eps, momentum;                /* batch_norm; layer_norm, rms_norm: eps */
    int             axis;                         /* concat, slice, gather, argmax, softmax, log_softmax; >= 0. layer_norm,
                                                     rms_norm: the first of the axes normalised */
    int             order[GPUNN_MAX_RANK];        /* permute */
    uint32_t        axes;                         /* sum, max: bit i set: axis i is reduced */
    bool            mean;                         /* sum: divide by the number of elements summed */
    int64_t         start, step;                  /* slice */
    int64_t         before[GPUNN_MAX_RANK];       /* pad; what follows is what the result's shape leaves */
    bool            transpose_a, transpose_b;     /* matmul */
    bool            is_causal, heads_last;        /* attention; q, k and v in one are heads_last without saying so */
    gpunn_reduction reduction;                    /* cross_entropy, nll: MEAN, SUM or NONE */
    int64_t         ignore_index;                 /* cross_entropy, nll; embedding: padding_idx, -1 without */
    uint32_t        site;               /* dropout, attention with dropout: number of this node among the model's random ones */
    int             mode, padding_mode; /* grid_sample: gpunn_grid_mode, gpunn_grid_padding */
    bool            align_corners;      /* grid_sample, affine_grid */
} gpunn_attributes;

typedef struct gpunn_value {
    void       *data; /* NULL: not wanted or not there */
    gpunn_dtype dtype;
    int         rank;
    int64_t     dim[GPUNN_MAX_RANK]; /* real sizes; an empty batch does not occur */
    int64_t     count;               /* product of dim; 1 for a scalar */
    bool        channels_last;       /* of rank 4: dim says n, c, h, w, but memory is n, h, w, c */
} gpunn_value;

typedef struct gpunn_run_state {
    uint64_t seed;            /* of the device */
    uint64_t step;            /* number of this training step: keys dropout */
    uint64_t weights_version; /* changes whenever a parameter or buffer may have changed: invalidates step->cache */
} gpunn_run_state;

typedef struct gpunn_kernel        gpunn_kernel; /* >>kernels */
typedef struct gpunn_kernel_launch gpunn_kernel_launch;
#define GPUNN_KERNEL_SITES 8 /* random nodes of one fused kernel */

/* Operands: LINEAR, CONV* x, weight, bias (data NULL without); MATMUL a, b; BATCH_NORM x, weight, bias (data NULL without
 * affine), running_mean, running_var (both updated in place by a training forward); CROSS_ENTROPY, NLL logits, labels, weight
 * (data NULL without); LAYER_NORM, RMS_NORM x, weight, bias (data NULL without); ATTENTION q, k, v, mask (data NULL without) or
 * all of q, k and v in the first, of rank 5; EMBEDDING tokens, weight; GATHER x, index; GRID_SAMPLE x, grid; AFFINE_GRID theta;
 * CONCAT all; SLICE, PAD, PERMUTE, SUM, MAX, ARGMAX, ... x; GROUP the operands of its program: gradients that it writes in
 * grad_in, with accumulate, all others in in. */
typedef struct gpunn_step {
    gpunn_op op;
    bool     backward; /* false: out from in. true: grad_in from grad_out and what the op table says it reads */
    bool     training; /* of the plan: dropout drops, batch_norm takes the batch's statistics and updates the running ones */
    gpunn_precision         precision; /* of the model */
    const char             *name;      /* the layer's, "" when it has none */
    const gpunn_attributes *attr;
    int                     input_count;
    gpunn_value            *in;         /* [input_count]; backward: data NULL where the table says it is not read */
    gpunn_value             out;        /* backward: data NULL where not read */
    gpunn_value            *grad_in;    /* backward, [input_count]: data NULL where not wanted */
    bool                   *accumulate; /* backward, [input_count]: grad_in += instead of = */
    gpunn_value             grad_out;
    /* Forward of LINEAR and convolutions only: what the plan has merged into it, applied in this order to the result with its
     * bias. */
    struct {
        gpunn_value scale, shift, mean, variance; /* batch_norm by running statistics: weight, bias, running_mean, running_var */
        bool        norm;
        float       eps;
        gpunn_value residual; /* added; shape of out, never out's own memory */
        bool        relu;
        bool        relu_mask; /* LINEAR: where relu let pass is wanted in `saved`, in a form of the backend's own */
        bool        gelu_tanh; /* LINEAR */
        gpunn_value before;    /* receives what gelu_tanh is applied to; data NULL: not wanted */
    } fused;
    /* Backward of LINEAR only: its x is the result of an activation that nobody else reads, and grad_in[0] is the gradient of
     * what the activation was applied to. */
    struct {
        gpunn_op    op;     /* RELU: x itself tells where it let pass; GELU_TANH; NONE: x as it is */
        gpunn_value before; /* GELU_TANH: what it was applied to */
        void       *mask;   /* RELU: `saved` of the step that made x */
        size_t      mask_bytes;
    } activated;
    struct { /* GROUP only */
        const gpunn_kernel        *kernel;
        const gpunn_kernel_launch *launch; /* on a GPU; NULL: its file is not linked */
        int                        direction;
        int64_t                    batch;
        uint32_t                   sites[GPUNN_KERNEL_SITES];
    } group;
    /* In forward: out.data may equal in[0].data (or in[1].data) for elementwise ops. In backward: grad_in[i].data may equal
     * grad_out.data for elementwise ops when accumulate[i] is false and i is the only wanted gradient. */
    void  *saved; /* written by the forward step, read by its backward step; prepare sets saved_bytes in the forward one, and
                           the core gives both steps the same pointer and size */
    size_t saved_bytes;
    void  *workspace; /* scratch of this step; prepare sets workspace_bytes */
    size_t workspace_bytes;
    void *cache; /* evaluation plans: kept between runs, for example packed weights; prepare sets cache_bytes; NULL in training */
    size_t   cache_bytes;
    uint64_t cache_version; /* the backend's note of state->weights_version at which cache was filled; starts at 0 */
    const gpunn_run_state *state;
} gpunn_step;

/* What is the same for all elements of an optimizer's update (gpunn_update). */
typedef struct gpunn_update_numbers {
    bool  go, first;  /* go false: change nothing. first: the state is all 0 */
    float scale;      /* g = clamp(gradient * scale, +-gradient_limit) + decay * parameter; maximize: scale < 0 */
    float rate;       /* lr, with the correction of the first moment's bias or Adagrad's decay */
    float shrink;     /* decoupled weight decay: 1 - lr * weight_decay; else 1 */
    float root_scale; /* Adam, NAdam, LAMB: 1 / sqrt(1 - beta2^step); RAdam: 0 while there is no root, else 1 */
    float lead;       /* NAdam: what rate is to the first moment, to the gradient; LAMB: 1 / (1 - beta1^step) */
} gpunn_update_numbers;
typedef struct gpunn_update        gpunn_update;
typedef struct gpunn_kernel_update gpunn_kernel_update; /* >>kernels */
/* numbers: device memory. 0, or a cudaError_t, negated. */
typedef int (*gpunn_kernel_update_launch)(const gpunn_update *update, const gpunn_update_numbers *numbers, void *stream);

/* One optimizer update over a contiguous range; formulas of torch.optim, named by kind. */
typedef enum gpunn_update_kind {
    GPUNN_UPDATE_SGD = 0, /* state[0]: momentum buffer when momentum != 0 */
    GPUNN_UPDATE_ADAM,    /* state[0]: m, state[1]: v */
    GPUNN_UPDATE_ADAMW,
    GPUNN_UPDATE_RMSPROP, /* state[0]: square average, state[1]: momentum buffer, state[2]: gradient average (centered) */
    GPUNN_UPDATE_ADAGRAD, /* state[0]: sum of squares */
    GPUNN_UPDATE_ADAMAX,  /* state[0]: m, state[1]: greatest gradient */
    GPUNN_UPDATE_NADAM,   /* these as ADAM */
    GPUNN_UPDATE_RADAM,
    GPUNN_UPDATE_LAMB, /* the range is one parameter */
    GPUNN_UPDATE_LION  /* state[0]: m */
} gpunn_update_kind;
struct gpunn_update {
    gpunn_update_kind          kind;
    int64_t                    count;
    float                     *parameter, *state[3];
    const float               *gradient;
    void                      *half;       /* receives the new parameters in half_dtype too; NULL: not wanted */
    gpunn_dtype                half_dtype; /* F16 or BF16 */
    int64_t                    step;       /* 1 for the first update of this range */
    float                      lr, weight_decay, momentum, dampening, beta1, beta2, alpha, eps, lr_decay;
    float                      momentum_decay, trust_clip;
    bool                       nesterov, centered, maximize;
    bool                       decoupled; /* NADAM, RADAM: weight decay as ADAMW's */
    bool                       always_adapt;
    float                      gradient_scale; /* gradients are read as gradient * gradient_scale ... */
    float                      gradient_limit; /* ... clamped to +-limit when limit > 0 */
    const gpunn_kernel_update *fused;          /* a generated kernel that does just this; NULL: none */
    gpunn_kernel_update_launch fused_launch;   /* the same on a GPU */
};

/* One whole run of a plan, for backends that execute it as one piece: steps in order, then the updates. */
typedef struct gpunn_run {
    gpunn_step *steps;
    int         step_count;
    uint64_t    signature; /* another one: a pointer or flag in steps has changed since the last run with this `captured` */
    const gpunn_run_state *state;
    const float           *loss;          /* training: device memory, one float; NULL in evaluation */
    float                 *loss_gradient; /* F16 training: receives loss_scale[0], or 1, before the steps; else NULL */
    const gpunn_update    *updates;       /* none of them may happen when the loss is not finite */
    int                    update_count;
    float                  clip_norm; /* over the gradients of all updates; 0: off */
    float *loss_scale; /* F16 training: device memory; [0] scale, [1] steps since it changed, [2] updates skipped */
    void  *captured;   /* the backend's own, NULL at first; given to `forget` when the plan goes */
    /* Set as soon as the backend knows, which may be in a later run, even one without any work: the training step whose loss (or,
     * with clip_norm, norm of the gradients) was not finite; 0: none. */
    uint64_t bad_step;
    float    bad_value;
    bool     bad_norm;
    /* After a failure: the step that it is about; NULL: none in particular. */
    const gpunn_step *failed;
} gpunn_run;

typedef struct gpunn_backend_info {
    gpunn_device_type type;
    char              name[160];
    int               threads;
    bool              half; /* computes on F16 and BF16 values */
} gpunn_backend_info;

struct gpunn_backend {
    int abi; /* GPUNN_BACKEND_ABI */
    int (*device_count)(void);
    /* context: the backend's own data. On failure: NULL, and a sentence in message. */
    void *(*open)(const gpunn_device_args *args, char *message, size_t message_size);
    void (*close)(void *context);
    void (*info)(void *context, gpunn_backend_info *info);
    /* 64-byte aligned; NULL when there is no more. */
    void *(*alloc)(void *context, size_t bytes);
    void (*free)(void *context, void *ptr, size_t bytes);
    /* Each of these returns a status and, on failure, leaves a sentence in the text of `error`. */
    gpunn_status (*upload)(void *context, void *device_ptr, const void *host, size_t bytes);
    gpunn_status (*download)(void *context, void *host, const void *device_ptr, size_t bytes);
    gpunn_status (*fill)(void *context, void *device_ptr, int byte, size_t bytes);
    gpunn_status (*synchronize)(void *context);
    /* Called once per step of a new plan, all data pointers NULL where absent and not yet valid where present (test them against
     * NULL only): checks support, sets saved_bytes (forward), workspace_bytes, cache_bytes. */
    gpunn_status (*prepare)(void *context, gpunn_step *step);
    gpunn_status (*run)(void *context, gpunn_step *step);
    gpunn_status (*update)(void *context, const gpunn_update *update);
    /* Sum of squares of count floats, accumulated in double. */
    gpunn_status (*sum_of_squares)(void *context, const float *values, int64_t count, double *result);
    /* values[i] = clamp(values[i] * scale, +-limit); limit 0: no clamp. */
    gpunn_status (*scale)(void *context, float *values, int64_t count, float scale, float limit);
    /* Device to device, in the order of the calls; dtypes F32, F16 or BF16. */
    gpunn_status (*convert)(void *context, void *to, gpunn_dtype to_dtype, const void *from, gpunn_dtype from_dtype,
                            int64_t count);
    /* Whether a run with convolutions, of a precision other than F32, is faster with channels_last values when the largest of
     * them gives so many elements; NULL: never. Then convolutions, batch_norm, pools and elementwise ops meet them: all of one
     * step's values of rank 4 or, of convolutions, all but weights. */
    bool (*channels_last)(void *context, int64_t elements);
    /* NULL, all three: the core calls run and update itself. execute may return before the work is done. */
    gpunn_status (*execute)(void *context, gpunn_run *run);
    void (*forget)(void *context, void *captured);
    /* Bytes taken from the system, now and at most; trim gives back what is not in use. */
    void (*reserved)(void *context, size_t *now, size_t *peak);
    void (*trim)(void *context);
    /* What there is on this machine and what is missing, line by line; needs no context. NULL: nothing to tell. */
    void (*report)(void (*write)(void *user, const char *text), void *user);
    /* The sentence of the last failure: what is wrong and the remedy; the core puts op, layer and shapes before it. */
    const char *(*error)(void *context);
};

/* ==== >>kernels ======================================================================================================= *
 * Fused kernels for one model: python3 -m generator MODEL.json -o NAME writes NAME_kernels.h and NAME_kernels.cu, which define
 * one gpunn_kernel_set. What follows is the contract between those files and this one; programs need only gpunn_use_kernels. */
typedef struct gpunn_kernel_set gpunn_kernel_set;
typedef enum gpunn_kernel_policy {
    GPUNN_KERNELS_AUTO = 0, /* use what fits; log one line with the command that renews the file when some does not */
    GPUNN_KERNELS_STRICT,   /* a set that does not fit the model as it is: GPUNN_ERR_STATE */
    GPUNN_KERNELS_OFF       /* as without; so does the environment variable GPUNN_KERNELS=off */
} gpunn_kernel_policy;
typedef struct gpunn_kernels_args {
    int                 args_;
    gpunn_kernel_policy policy;
} gpunn_kernels_args;
/* Call it when the model is built; set NULL: none any more. The set must outlive the model. Results are those of the single ops
 * but for rounding; dropout draws the same. Errors: a set for another GPUNN_KERNELS_ABI (GPUNN_ERR_UNSUPPORTED), STRICT's. */
GPUNN_API gpunn_status gpunn_use_kernels_(gpunn_model *model, const gpunn_kernel_set *set, gpunn_kernels_args args);
#define gpunn_use_kernels(model, ...) gpunn_use_kernels_((model), GPUNN_NAMED(gpunn_kernels_args, __VA_ARGS__))

#define GPUNN_KERNELS_ABI 2

/* Memory that a kernel reads or writes. Tensors of a group are numbered: externals 0, 1, ... and nodes -1, -2, ... */
typedef enum gpunn_kernel_role {
    GPUNN_KERNEL_VALUE = 0, /* of tensor index */
    GPUNN_KERNEL_GRADIENT,  /* of tensor index */
    GPUNN_KERNEL_KEPT       /* number index of what the forward kernel keeps for the backward one */
} gpunn_kernel_role;
typedef struct gpunn_kernel_operand {
    unsigned char role, read, written;
    unsigned char dtype; /* of the CUDA kernel; C kernels compute F32 where it is F16 or BF16 */
    signed char   index;
    /* A gradient that equals another operand's memory after the run (a masked gradient handed on): number of that operand, which
     * is the gradient of a node, read and written in place. Where the plan can, it lets both be one memory and passes NULL here.
     * -1: none. */
    signed char shares;
} gpunn_kernel_operand;
typedef struct gpunn_kernel_call {
    void *const         *data;       /* per operand; NULL: a written one that is not wanted, or an optional one not there */
    const unsigned char *accumulate; /* per operand: += instead of =; only ever set for gradients of externals */
    int64_t              batch;
    const uint32_t      *sites;  /* per random node of the group, in order: its number among the model's */
    const uint64_t      *random; /* seed, step; CUDA: device memory */
    void                *workspace;
    int                  threads;         /* CPU */
    int                  multiprocessors; /* CUDA */
    void                *stream;          /* CUDA: cudaStream_t */
} gpunn_kernel_call;
/* 0: done. GPUNN_ERR_ARGUMENT: a label is no class (CPU). CUDA: else a cudaError_t, negated. */
typedef int (*gpunn_kernel_function)(const gpunn_kernel_call *call);
/* Bytes of workspace; SIZE_MAX: declined, such a batch is too large for this kernel. units: threads, or multiprocessors. */
typedef size_t (*gpunn_kernel_workspace)(int64_t batch, int units);
typedef struct gpunn_kernel_program {     /* one direction of one group */
    const gpunn_kernel_operand *operands; /* NULL: there is no such program */
    int                         operand_count;
    gpunn_kernel_function       cpu;
    gpunn_kernel_workspace      cpu_workspace;
} gpunn_kernel_program;
struct gpunn_kernel_launch { /* the same direction on a GPU; in the table that the .cu file exports */
    gpunn_kernel_function  run;
    gpunn_kernel_workspace workspace;
};

enum { GPUNN_KERNEL_EVALUATION = 0, GPUNN_KERNEL_FORWARD, GPUNN_KERNEL_BACKWARD, GPUNN_KERNEL_DIRECTIONS };

typedef struct gpunn_kernel_node {
    const char        *text;     /* op, attributes, dtype and shape, as gpunn__node_text writes them */
    const signed char *operands; /* numbers of tensors; 127: left out */
    int                operand_count;
} gpunn_kernel_node;
typedef struct gpunn_kernel_kept {
    gpunn_dtype dtype;        /* on CUDA; F32 on the CPU where it is F16 or BF16 */
    int64_t     fixed, batch; /* elements: fixed + batch times the batch size */
} gpunn_kernel_kept;
typedef enum gpunn_kernel_layout {
    GPUNN_KERNEL_ANY = 0,
    GPUNN_KERNEL_CHANNELS_FIRST,
    GPUNN_KERNEL_CHANNELS_LAST
} gpunn_kernel_layout;
/* A group of nodes that one kernel computes, wherever in a model they stand. Nodes that no program writes must be read by
 * nobody outside. */
struct gpunn_kernel {
    const char              *name, *formula;
    const gpunn_kernel_node *nodes; /* in the order of their computation; the last one is an output */
    int                      node_count;
    const char *const       *externals; /* dtype and shape of each */
    int                      external_count;
    const gpunn_kernel_kept *kept;
    int                      kept_count;
    gpunn_kernel_layout      layout; /* of images on CUDA; ANY: all the same */
    /* The last node is the loss, whose gradient is known before: FORWARD writes the gradients of externals too, and there is no
     * BACKWARD. */
    bool                 loss;
    gpunn_kernel_program program[GPUNN_KERNEL_DIRECTIONS];
};
typedef struct gpunn_kernel_instance {
    int        kernel;
    const int *tensors; /* ids in the model: nodes, then externals */
} gpunn_kernel_instance;

struct gpunn_kernel_update {
    /* kind, momentum, dampening, beta1, beta2, alpha, eps, nesterov, centered, maximize and decoupled must agree, and half_dtype
     * where half is wanted; all else varies. */
    gpunn_update pattern;
    int (*cpu)(const gpunn_update *update, const gpunn_update_numbers *numbers, int threads);
};
typedef struct gpunn_kernel_cuda { /* what the .cu file exports */
    int      abi;
    uint64_t stamp;
    const gpunn_kernel_launch (*launch)[GPUNN_KERNEL_DIRECTIONS]; /* [kernel_count] */
    const gpunn_kernel_update_launch *update;                     /* [update_count] */
} gpunn_kernel_cuda;

struct gpunn_kernel_set {
    int                          abi;   /* GPUNN_KERNELS_ABI */
    uint64_t                     stamp; /* of the header's text; the .cu file was written with it */
    const char                  *name, *version, *spec_sha256, *command;
    const gpunn_kernel          *kernels;
    int                          kernel_count;
    int                          tensor_count; /* of the model with that hash */
    const gpunn_kernel_instance *evaluation, *training;
    int                          evaluation_count, training_count;
    const gpunn_kernel_update   *updates;
    int                          update_count;
    const gpunn_kernel_cuda     *cuda; /* NULL: NAME_kernels.cu is not linked */
};

#ifdef __cplusplus
}
#endif
#endif /* GPUNN_H */

/* ====================================================================================================================== *
 *                                                   IMPLEMENTATION
 * ====================================================================================================================== */
#ifdef GPUNN_IMPLEMENTATION
#undef GPUNN_IMPLEMENTATION

#if defined(__MINGW32__) && !defined(__USE_MINGW_ANSI_STDIO)
#define __USE_MINGW_ANSI_STDIO 1 /* %zu and %lld */
#endif
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef _WIN32
#ifndef NOMINMAX
#define NOMINMAX
#endif
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#undef near
#undef far
#include <io.h>
#include <process.h>
#else
#include <sys/time.h>
#include <unistd.h>
#ifndef GPUNN_NO_THREADS
#include <pthread.h>
#endif
#endif
#ifdef GPUNN_CBLAS
#include <cblas.h>
#endif
#ifdef GPUNN_ZLIB
#include <zlib.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Some private functions serve only some configurations. */
#if defined(__GNUC__)
#define GPUNN__PRIVATE __attribute__((unused)) static
#define GPUNN__INLINE __attribute__((unused, always_inline)) static inline
#define GPUNN__NOINLINE __attribute__((unused, noinline)) static
#else
#define GPUNN__PRIVATE static
#define GPUNN__INLINE static inline
#define GPUNN__NOINLINE static
#endif
#if defined(__cplusplus)
#define GPUNN__RESTRICT __restrict
#define GPUNN__THREAD_LOCAL thread_local
#elif defined(__GNUC__)
#define GPUNN__RESTRICT restrict
#define GPUNN__THREAD_LOCAL __thread
#else
#define GPUNN__RESTRICT restrict
#define GPUNN__THREAD_LOCAL __declspec(thread)
#endif
/* What runs once a model or a file (plans, readers) is compiled for a quick compile: it is half of this file. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__) && !defined(__CUDACC__)
#define GPUNN__SELDOM
#endif
/* OpenMP pragmas that vanish without OpenMP: GPUNN__OMP(parallel for num_threads(t)). */
#ifdef _OPENMP
#define GPUNN__PRAGMA(text) _Pragma(#text)
#define GPUNN__OMP(...) GPUNN__PRAGMA(omp __VA_ARGS__)
#else
#define GPUNN__OMP(...)
#endif
/* No loop-carried dependency in the loop that follows. */
#if defined(__clang__)
#define GPUNN__IVDEP _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define GPUNN__IVDEP _Pragma("GCC ivdep")
#else
#define GPUNN__IVDEP
#endif

/* ==== >>structs ======================================================================================================= */
#define GPUNN__ALIGN 64 /* bytes; of every block handed to a backend */
#define GPUNN__ERROR_SIZE 768

typedef struct gpunn__error {
    gpunn_status status;
    char         text[GPUNN__ERROR_SIZE];
} gpunn__error;

struct gpunn_device {
    gpunn_device_args    args;
    const gpunn_backend *backend;
    void                *context;
    gpunn_backend_info   info;
    gpunn__error         error;
    size_t               allocated, peak; /* bytes of backend memory */
    gpunn_model         *models;          /* list */
    const char          *place;           /* path:line:column of what is being read, put before messages; NULL: none */
};

typedef enum gpunn__kind { GPUNN__INPUT = 1, GPUNN__PARAMETER, GPUNN__BUFFER, GPUNN__CONSTANT, GPUNN__VALUE } gpunn__kind;

struct gpunn_tensor {
    gpunn_model     *model;
    int              id; /* index in model->tensors: operands have smaller ones */
    gpunn__kind      kind;
    gpunn_dtype      dtype;
    int              rank;
    int64_t          dim[GPUNN_MAX_RANK]; /* -k: k times the batch */
    char            *name;                /* NULL: none */
    gpunn_op         op;                  /* of a value */
    gpunn_attributes attr;
    int              input_count;
    gpunn_tensor   **inputs; /* an optional operand that is left out is NULL */
    char            *layer;  /* name for messages; NULL: none */
    bool             keep, retain_grad;
    /* inputs */
    void   *data; /* backend memory; inputs only */
    size_t  capacity;
    int64_t batch; /* of the last write; 0: never written; 1 when the shape has no batch */
    /* parameters, buffers, constants */
    gpunn_init init;
    int64_t    padding; /* 1 + the row that starts as 0, whatever init says; 0: none */
    bool       trainable, decay;
    float      lr_scale;
    int64_t    offset;       /* in the model's weights, in floats; parameters: in the gradients too; -1: not laid out */
    float     *constant;     /* host copy of a constant's values */
    bool       grad_reached; /* parameters: a backward pass has written the gradient since zero_grad */
};

typedef struct gpunn__plan gpunn__plan; /* >>plan */

/* What a spec says beside tensors (>>spec). */
typedef struct gpunn__recipe {
    bool         given;
    gpunn_update rule; /* kind and constants */
    float        state_start, clip_norm, clip_value;
} gpunn__recipe;
typedef struct gpunn__spec {
    char         *name; /* NULL: none */
    gpunn_tensor *loss, **outputs;
    int           output_count, output_capacity;
    gpunn__recipe recipe;
} gpunn__spec;

struct gpunn_model {
    gpunn_device    *dev;
    gpunn_model     *next; /* in the device's list */
    gpunn_precision  precision;
    gpunn_optimizer *optimizers; /* list */
    gpunn_tensor   **tensors;
    int              tensor_count, tensor_capacity;
    uint32_t         random_sites;
    /* Flat memory: parameters (decayed ones first when laid out together), buffers, constants; gradients follow the same
     * offsets. */
    float                  *weights, *gradients;
    int64_t                 weight_count, gradient_count;       /* floats laid out; gradients cover [0, gradient_count) */
    int                     laid_out;                           /* tensors considered so far */
    int64_t                 weight_capacity, gradient_capacity; /* floats allocated */
    void                   *half; /* the weights in 16 bits, by the same offsets, for products of half plans; NULL: none */
    int64_t                 half_capacity; /* elements allocated */
    bool                    half_stale;    /* weights have changed since it was made */
    gpunn__plan            *plans, *last;  /* cache, most recent first; last: whose values can be read */
    void                   *arena;
    size_t                  arena_bytes;
    uint64_t                generation; /* changes when any pointer that plans are bound to moves */
    int64_t                 batch;      /* of the last run, before it of the last write; 0 before */
    gpunn_run_state         state;
    const gpunn_kernel_set *kernels;       /* NULL: none */
    bool                    kernels_exact; /* its instances are this model's */
    gpunn__spec             spec;
};

/* ==== >>errors ======================================================================================================== */
/* Records the first failure and returns its status, so that failing is one expression: return gpunn__fail(dev, ...). dev may be
 * NULL. */
GPUNN__PRIVATE gpunn_status gpunn__fail(gpunn_device *dev, gpunn_status status, const char *format, ...) GPUNN__PRINTF(3, 4);
/* The same for builders: NULL. */
#ifdef __cplusplus
#define GPUNN__FAIL_NULL(...) ((void)gpunn__fail(__VA_ARGS__), nullptr)
#else
#define GPUNN__FAIL_NULL(...) ((void)gpunn__fail(__VA_ARGS__), (void *)0)
#endif

/* ==== >>memory ======================================================================================================== */
/* Host memory through the user's hook. Sizes are needed again at release. NULL after recording GPUNN_ERR_MEMORY. */
GPUNN__PRIVATE void *gpunn__realloc(gpunn_device *dev, void *ptr, size_t old_size, size_t new_size);
GPUNN__PRIVATE void *gpunn__calloc(gpunn_device *dev, size_t size); /* zeroed */
GPUNN__PRIVATE void  gpunn__free(gpunn_device *dev, void *ptr, size_t size);
GPUNN__PRIVATE char *gpunn__strdup(gpunn_device *dev, const char *text); /* free with strlen + 1 */
/* A failure of a backend function that works on no step. */
static gpunn_status gpunn__backend_fail(gpunn_device *dev, const char *what, gpunn_status status);
/* Backend memory, counted against the limit. NULL: the device's error says why. */
GPUNN__PRIVATE void *gpunn__device_alloc(gpunn_device *dev, size_t size);
GPUNN__PRIVATE void  gpunn__device_free(gpunn_device *dev, void *ptr, size_t size);
/* False when the result does not fit. */
GPUNN__PRIVATE bool gpunn__mul(size_t a, size_t b, size_t *result);
GPUNN__PRIVATE bool gpunn__add(size_t a, size_t b, size_t *result);

/* ==== >>random ======================================================================================================== *
 * Philox4x32-10 (Salmon et al. 2011), the generator of every random number here, keyed so that CPU and GPU draw the same. */
GPUNN__INLINE void gpunn__philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]);

/* ==== shared by optimizer, files and loader (defined in >>graph, >>plan and >>run) ==================================== */
/* Lays out memory for tensors that have none yet and draws their initial values. */
GPUNN__PRIVATE gpunn_status gpunn__commit(gpunn_model *model);
GPUNN__PRIVATE float      *gpunn__weights(const gpunn_tensor *t); /* backend memory of a laid-out parameter, buffer or constant */
GPUNN__PRIVATE int64_t     gpunn__count(const gpunn_tensor *t, int64_t batch); /* elements at that batch size; -1: too many */
GPUNN__PRIVATE const char *gpunn__shape_text(const gpunn_tensor *t, char text[128]); /* "[batch, 3, 32, 32]" */
/* Drops the plans: call when what they depend on has changed. */
GPUNN__PRIVATE void gpunn__invalidate(gpunn_model *model);
/* Forward and backward of one training step; with opt (prepared), its clipping and update too. */
GPUNN__PRIVATE gpunn_status gpunn__gradients(gpunn_tensor *loss, gpunn_optimizer *opt);
/* A node's op, attributes, dtype and shape, and a tensor's dtype and shape alone, as the generator writes them (>>spec). */
enum { GPUNN__TEXT_SIZE = 512 };
GPUNN__PRIVATE void gpunn__node_text(const gpunn_tensor *t, char *out, size_t size);
GPUNN__PRIVATE void gpunn__external_text(const gpunn_tensor *t, char *out, size_t size);
/* The SHA-256 of the canonical text (>>spec) of a model's first `count` tensors, in hexadecimal digits. */
GPUNN__PRIVATE void gpunn__model_sha256(const gpunn_model *model, int count, char hex[65]);
/* An optimizer's part of it (>>optimizer): all at once; or its updates put into a run, and after that run its steps counted. */
static gpunn_status gpunn__optimizer_update(gpunn_optimizer *opt);
static void         gpunn__optimizer_collect(gpunn_optimizer *opt, gpunn_run *run);
static void         gpunn__optimizer_advance(gpunn_optimizer *opt);
/* Call after changing weights other than by gpunn_write. */
#define GPUNN__WEIGHTS_CHANGED(model) ((void)(model)->state.weights_version++, (void)((model)->half_stale = true))

/* ---- errors ---------------------------------------------------------------------------------------------------------- */
static GPUNN__THREAD_LOCAL gpunn__error gpunn__no_device_error; /* the latest failure of this thread that has no device */

GPUNN__PRIVATE gpunn_status gpunn__fail(gpunn_device *dev, gpunn_status status, const char *format, ...)
{
    gpunn__error error;
    error.status = status;
    int     used = dev && dev->place ? snprintf(error.text, sizeof error.text, "%s", dev->place) : 0;
    va_list list;
    va_start(list, format);
    (void)vsnprintf(error.text + used, sizeof error.text - (size_t)used, format, list);
    va_end(list);
    for (char *c = error.text; *c; c++) /* names from files may hold anything; a message is one line */
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    if (dev == NULL)
        gpunn__no_device_error = error;
    else {
        if (dev->error.status == GPUNN_OK) dev->error = error;
        if (dev->args.log_fn) dev->args.log_fn(dev->args.user, GPUNN_LOG_ERROR, error.text);
    }
    return status;
}

GPUNN_API const char *gpunn_error(const gpunn_device *dev)
{
    return dev ? dev->error.text : gpunn__no_device_error.text;
}

GPUNN_API gpunn_status gpunn_last_status(const gpunn_device *dev)
{
    return dev ? dev->error.status : gpunn__no_device_error.status;
}

GPUNN_API void gpunn_clear_error(gpunn_device *dev)
{
    gpunn__error *error = dev ? &dev->error : &gpunn__no_device_error;
    error->status = GPUNN_OK;
    error->text[0] = 0;
}

GPUNN_API const char *gpunn_status_name(gpunn_status status)
{
    static const char *const names[] = {
#define GPUNN__X(id, text) #id ": " text,
        GPUNN_STATUS_LIST(GPUNN__X)
#undef GPUNN__X
    };
    return (int)status >= 0 && status < GPUNN_STATUS_COUNT ? names[status] : "no gpunn_status";
}

/* ---- memory ---------------------------------------------------------------------------------------------------------- */
GPUNN__PRIVATE bool gpunn__mul(size_t a, size_t b, size_t *result)
{
    if (b != 0 && a > SIZE_MAX / b) return false;
    *result = a * b;
    return true;
}

GPUNN__PRIVATE bool gpunn__add(size_t a, size_t b, size_t *result)
{
    if (a > SIZE_MAX - b) return false;
    *result = a + b;
    return true;
}

static void *gpunn__system_realloc(void *user, void *ptr, size_t old_size, size_t new_size)
{
    (void)user;
    (void)old_size;
    if (new_size == 0) {
        free(ptr);
        return NULL;
    }
    return realloc(ptr, new_size);
}

GPUNN__PRIVATE void *gpunn__realloc(gpunn_device *dev, void *ptr, size_t old_size, size_t new_size)
{
    void *result = dev->args.realloc_fn(dev->args.user, ptr, old_size, new_size);
    if (result == NULL && new_size != 0)
        (void)gpunn__fail(dev, GPUNN_ERR_MEMORY, "out of host memory: %zu bytes were refused; free memory or use a smaller model",
                          new_size);
    return result;
}

GPUNN__PRIVATE void *gpunn__calloc(gpunn_device *dev, size_t size)
{
    void *result = gpunn__realloc(dev, NULL, 0, size);
    if (result) memset(result, 0, size);
    return result;
}

GPUNN__PRIVATE void gpunn__free(gpunn_device *dev, void *ptr, size_t size)
{
    if (ptr) (void)dev->args.realloc_fn(dev->args.user, ptr, size, 0);
}

GPUNN__PRIVATE char *gpunn__strdup(gpunn_device *dev, const char *text)
{
    size_t size = strlen(text) + 1;
    char  *copy = (char *)gpunn__realloc(dev, NULL, 0, size);
    if (copy) memcpy(copy, text, size);
    return copy;
}

static void gpunn__free_text(gpunn_device *dev, char *text)
{
    if (text) gpunn__free(dev, text, strlen(text) + 1);
}

GPUNN__PRIVATE void *gpunn__device_alloc(gpunn_device *dev, size_t size)
{
    size_t limit = dev->args.memory_limit;
    if (limit && (size > limit || dev->allocated > limit - size)) {
        (void)gpunn__fail(
            dev, GPUNN_ERR_MEMORY,
            "%zu bytes more would pass the device's memory_limit of %zu (%zu are in use); use a smaller batch or raise it", size,
            limit, dev->allocated);
        return NULL;
    }
    void *ptr = dev->backend->alloc(dev->context, size);
    if (ptr == NULL) {
        gpunn_status status = dev->backend->synchronize(dev->context); /* a fault of the device, or really no memory? */
        if (status == GPUNN_ERR_DEVICE) return (void)gpunn__backend_fail(dev, "allocating memory", status), (void *)NULL;
        (void)gpunn__fail(dev, GPUNN_ERR_MEMORY,
                          "out of memory on %s: %zu bytes were refused, %zu are in use; use a smaller batch", dev->info.name,
                          size, dev->allocated);
        return NULL;
    }
    dev->allocated += size;
    if (dev->allocated > dev->peak) dev->peak = dev->allocated;
    return ptr;
}

GPUNN__PRIVATE void gpunn__device_free(gpunn_device *dev, void *ptr, size_t size)
{
    if (ptr == NULL) return;
    dev->backend->free(dev->context, ptr, size);
    dev->allocated -= size;
}

/* ---- random ---------------------------------------------------------------------------------------------------------- */
GPUNN__INLINE void gpunn__philox(uint64_t key, const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Initial values: element i of tensor `id` is drawn from word i % 4 of counter (i / 4 low, id, i / 4 high, 2^31), a range of
 * counters that dropout, whose fourth word is the high half of the step, never reaches. */
static void gpunn__draw(const gpunn_init *init, uint64_t seed, uint32_t id, int64_t fan_in, float *out, int64_t count)
{
    double a = (double)init->a, b = (double)init->b;
    if (init->kind == GPUNN_INIT_KAIMING_UNIFORM) {
        b = 1.0 / sqrt(a > 0 ? a : (double)(fan_in > 0 ? fan_in : 1));
        a = -b;
    }
    for (int64_t i = 0; i < count; i += 4) {
        uint64_t pack = (uint64_t)i / 4;
        uint32_t counter[4], word[4];
        counter[0] = (uint32_t)pack;
        counter[1] = id;
        counter[2] = (uint32_t)(pack >> 32);
        counter[3] = 0x80000000u;
        gpunn__philox(seed, counter, word);
        for (int j = 0; j < 4 && i + j < count; j++) {
            double value = 0;
            if (init->kind == GPUNN_INIT_CONSTANT)
                value = a;
            else if (init->kind == GPUNN_INIT_NORMAL) { /* Box and Muller: words 2j and 2j + 1 give two values */
                double radius = sqrt(-2 * log(((double)word[j & 2] + 1) / 4294967296.0));
                double angle = (double)word[(j & 2) + 1] * (6.283185307179586 / 4294967296.0);
                value = a + b * radius * (j & 1 ? sin(angle) : cos(angle));
            } else if (init->kind == GPUNN_INIT_UNIFORM || init->kind == GPUNN_INIT_KAIMING_UNIFORM)
                value = a + (b - a) * ((double)(word[j] >> 8) / 16777216.0);
            out[i + j] = (float)value;
        }
    }
}

/* ---- device ---------------------------------------------------------------------------------------------------------- */
static const gpunn_backend *gpunn__cpu_backend(void); /* >>cpu */

/* The one symbol of gpunn_cuda.cu. Weak: NULL where the companion is not linked. */
#if defined(GPUNN_CUDA)
extern const gpunn_backend gpunn_cuda_backend;
#define GPUNN__CUDA_BACKEND (&gpunn_cuda_backend)
#elif defined(__GNUC__) && !defined(_WIN32)
extern const gpunn_backend gpunn_cuda_backend __attribute__((weak));
#define GPUNN__CUDA_BACKEND (&gpunn_cuda_backend)
#else
#define GPUNN__CUDA_BACKEND ((const gpunn_backend *)NULL)
#endif

GPUNN_API int gpunn_cuda_device_count(void)
{
    const gpunn_backend *cuda = GPUNN__CUDA_BACKEND;
    return cuda && cuda->abi == GPUNN_BACKEND_ABI ? cuda->device_count() : 0;
}

/* A device of that backend; NULL: message says why. */
static gpunn_device *gpunn__device_on(const gpunn_backend *backend, const gpunn_device_args *args, char *message, size_t size)
{
    if (backend->abi != GPUNN_BACKEND_ABI) {
        (void)snprintf(message, size, "the backend has ABI %d, this gpunn.h has %d; take both files from one version",
                       backend->abi, GPUNN_BACKEND_ABI);
        return NULL;
    }
    gpunn_device *dev = (gpunn_device *)args->realloc_fn(args->user, NULL, 0, sizeof *dev);
    if (dev == NULL) {
        (void)snprintf(message, size, "out of host memory");
        return NULL;
    }
    memset(dev, 0, sizeof *dev);
    dev->args = *args;
    dev->backend = backend;
    dev->context = backend->open(&dev->args, message, size);
    if (dev->context == NULL) {
        gpunn__free(dev, dev, sizeof *dev);
        return NULL;
    }
    backend->info(dev->context, &dev->info);
    return dev;
}

GPUNN_API gpunn_device *gpunn_device_open_(gpunn_device_args args)
{
    const gpunn_backend *cuda = GPUNN__CUDA_BACKEND;
    char                 message[GPUNN__ERROR_SIZE - 32] = "out of host memory";
    if (args.threads < 0 || args.index < 0)
        return GPUNN__FAIL_NULL(NULL, GPUNN_ERR_ARGUMENT,
                                "gpunn_device_open: threads is %d and index %d; neither may be negative", args.threads,
                                args.index);
    if ((int)args.type < GPUNN_DEVICE_AUTO || args.type > GPUNN_DEVICE_CUDA)
        return GPUNN__FAIL_NULL(NULL, GPUNN_ERR_ARGUMENT,
                                "gpunn_device_open: type %d is none; use GPUNN_DEVICE_AUTO, _CPU or _CUDA", (int)args.type);
    if (args.type == GPUNN_DEVICE_CUDA && cuda == NULL && args.backend == NULL)
        return GPUNN__FAIL_NULL(
            NULL, GPUNN_ERR_DEVICE,
            "gpunn_device_open: this program was linked without gpunn_cuda.cu; add it to the compile line, or "
            "ask for GPUNN_DEVICE_AUTO to use the CPU");
    if (args.realloc_fn == NULL) args.realloc_fn = gpunn__system_realloc;
    gpunn_device *dev = NULL;
    if (args.backend)
        dev = gpunn__device_on(args.backend, &args, message, sizeof message);
    else if (cuda && args.type != GPUNN_DEVICE_CPU)
        dev = gpunn__device_on(cuda, &args, message, sizeof message);
    if (dev == NULL && args.backend == NULL && args.type != GPUNN_DEVICE_CUDA) {
        char why[GPUNN__ERROR_SIZE];
        (void)snprintf(why, sizeof why, "gpunn computes on the CPU: %s", message);
        if (cuda && args.type == GPUNN_DEVICE_AUTO && args.log_fn) args.log_fn(args.user, GPUNN_LOG_INFO, why);
        dev = gpunn__device_on(gpunn__cpu_backend(), &args, message, sizeof message);
    }
    if (dev == NULL) (void)gpunn__fail(NULL, GPUNN_ERR_DEVICE, "gpunn_device_open: %s", message);
    return dev;
}

GPUNN_API void gpunn_device_report(void (*write)(void *user, const char *text), void *user)
{
    const gpunn_backend *cuda = GPUNN__CUDA_BACKEND;
    if (write == NULL) return;
    if (cuda && cuda->abi == GPUNN_BACKEND_ABI)
        cuda->report(write, user);
    else
        write(user, cuda ? "gpunn_cuda.cu is of another version than gpunn.h; take both files from one\n"
                         : "this program was linked without gpunn_cuda.cu; to use a GPU: nvcc -O3 app.c gpunn_cuda.cu -o app\n");
}

GPUNN_API void gpunn_device_close(gpunn_device *dev)
{
    if (dev == NULL) return;
    while (dev->models) gpunn_model_destroy(dev->models);
    dev->backend->close(dev->context);
    gpunn__free(dev, dev, sizeof *dev);
}

GPUNN_API gpunn_device_type gpunn_device_get_type(const gpunn_device *dev)
{
    return dev ? dev->info.type : GPUNN_DEVICE_AUTO;
}

GPUNN_API const char *gpunn_device_name(const gpunn_device *dev)
{
    return dev ? dev->info.name : "";
}

GPUNN_API int gpunn_device_threads(const gpunn_device *dev)
{
    return dev ? dev->info.threads : 0;
}

GPUNN_API size_t gpunn_memory_allocated(const gpunn_device *dev)
{
    return dev ? dev->allocated : 0;
}

GPUNN_API size_t gpunn_memory_peak(const gpunn_device *dev)
{
    return dev ? dev->peak : 0;
}

GPUNN_API size_t gpunn_memory_reserved(const gpunn_device *dev)
{
    size_t now = gpunn_memory_allocated(dev), peak;
    if (dev && dev->backend->reserved) dev->backend->reserved(dev->context, &now, &peak);
    return now;
}

GPUNN_API size_t gpunn_memory_reserved_peak(const gpunn_device *dev)
{
    size_t now, peak = gpunn_memory_peak(dev);
    if (dev && dev->backend->reserved) dev->backend->reserved(dev->context, &now, &peak);
    return peak;
}

GPUNN_API void gpunn_empty_cache(gpunn_device *dev)
{
    if (dev == NULL) return;
    for (gpunn_model *model = dev->models; model; model = model->next) {
        gpunn__invalidate(model);
        gpunn__device_free(dev, model->arena, model->arena_bytes);
        model->arena = NULL;
        model->arena_bytes = 0;
    }
    if (dev->backend->trim) dev->backend->trim(dev->context);
}

#define GPUNN__BAD_VALUE                                                                                            \
    "the %s is %s at training step %llu, which changed no weight: check the data, lower the learning rate or clip " \
    "gradients; in the model, look for a division by 0 or a log of 0"
static gpunn_status gpunn__execute(gpunn_device *dev, gpunn_run *run, const char *what);
static gpunn_status gpunn__step_fail(gpunn_device *dev, const gpunn_step *step, gpunn_status status); /* >>plan */

static gpunn_status gpunn__backend_fail(gpunn_device *dev, const char *what, gpunn_status status)
{
    return gpunn__fail(dev, status, "%s: %s", what, dev->backend->error(dev->context));
}

GPUNN_API gpunn_status gpunn_synchronize(gpunn_device *dev)
{
    if (dev == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "gpunn_synchronize: the device is NULL");
    gpunn_status status = dev->backend->synchronize(dev->context);
    if (status != GPUNN_OK) return gpunn__backend_fail(dev, "gpunn_synchronize", status);
    if (dev->backend->execute == NULL) return GPUNN_OK;
    gpunn_run run; /* without work: only what is known of earlier ones */
    memset(&run, 0, sizeof run);
    return gpunn__execute(dev, &run, "gpunn_synchronize");
}

static const char *gpunn__not_finite(float value)
{
    return value != value ? "NaN" : "infinite";
}

static gpunn_status gpunn__execute(gpunn_device *dev, gpunn_run *run, const char *what)
{
    gpunn_status status = dev->backend->execute(dev->context, run);
    if (status != GPUNN_OK)
        return run->failed ? gpunn__step_fail(dev, run->failed, status) : gpunn__backend_fail(dev, what, status);
    if (run->bad_step == 0) return GPUNN_OK;
    return gpunn__fail(dev, GPUNN_ERR_NUMERIC, GPUNN__BAD_VALUE, run->bad_norm ? "norm of the gradients" : "loss",
                       gpunn__not_finite(run->bad_value), (unsigned long long)run->bad_step);
}

/* ---- model ----------------------------------------------------------------------------------------------------------- */
GPUNN_API gpunn_model *gpunn_model_create_(gpunn_device *dev, gpunn_model_args args)
{
    if (dev == NULL) { /* keeps the sentence of a gpunn_device_open that failed before */
        if (gpunn_last_status(NULL) == GPUNN_OK)
            (void)gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "gpunn_model_create: the device is NULL");
        return NULL;
    }
    gpunn_model *model = (gpunn_model *)gpunn__calloc(dev, sizeof *model);
    if (model == NULL) return NULL;
    if ((int)args.precision < GPUNN_PRECISION_F32 || args.precision > GPUNN_PRECISION_F16) {
        gpunn__free(dev, model, sizeof *model);
        return GPUNN__FAIL_NULL(dev, GPUNN_ERR_ARGUMENT,
                                "gpunn_model_create: precision %d is none; use GPUNN_PRECISION_F32, _TF32, _BF16 or _F16",
                                (int)args.precision);
    }
    model->dev = dev;
    model->precision = args.precision;
    model->state.seed = dev->args.seed;
    model->state.weights_version = 1;
    model->next = dev->models;
    dev->models = model;
    return model;
}

static void gpunn__tensor_free(gpunn_device *dev, gpunn_tensor *t)
{
    gpunn__free_text(dev, t->name);
    gpunn__free_text(dev, t->layer);
    gpunn__free(dev, t->inputs, (size_t)t->input_count * sizeof *t->inputs);
    if (t->constant) gpunn__free(dev, t->constant, (size_t)gpunn__count(t, 1) * sizeof *t->constant);
    gpunn__device_free(dev, t->data, t->capacity);
    gpunn__free(dev, t, sizeof *t);
}

GPUNN_API void gpunn_model_destroy(gpunn_model *model)
{
    if (model == NULL) return;
    gpunn_device *dev = model->dev;
    gpunn_model **link = &dev->models;
    while (*link != model) link = &(*link)->next;
    *link = model->next;
    gpunn__invalidate(model);
    for (int i = 0; i < model->tensor_count; i++) gpunn__tensor_free(dev, model->tensors[i]);
    gpunn__free(dev, model->tensors, (size_t)model->tensor_capacity * sizeof *model->tensors);
    gpunn__device_free(dev, model->arena, model->arena_bytes);
    gpunn__device_free(dev, model->weights, (size_t)model->weight_capacity * sizeof(float));
    gpunn__device_free(dev, model->gradients, (size_t)model->gradient_capacity * sizeof(float));
    gpunn__device_free(dev, model->half, (size_t)model->half_capacity * 2);
    gpunn__free_text(dev, model->spec.name);
    gpunn__free(dev, model->spec.outputs, (size_t)model->spec.output_capacity * sizeof *model->spec.outputs);
    gpunn__free(dev, model, sizeof *model);
}

/* ==== what the op tables say ========================================================================================== */
typedef struct gpunn__op_info {
    const char *name;
    int         arity, attribute_count; /* of elementwise ops; arity 0: another op */
    const char *attribute[2];
    float       attribute_default[2];
    const char *derivative[3];               /* elementwise: its text, NULL beyond the operands */
    int         reads, reads_out, gradients; /* other ops */
} gpunn__op_info;

/* clang-format off */
static const gpunn__op_info gpunn__op_infos[GPUNN_OP_COUNT] = {
    {"none", 0, 0, {NULL, NULL}, {0, 0}, {NULL, NULL, NULL}, 0, 0, 0},
#define K(number) number##f
#define GPUNN__X(ENUM, name, f, dx) {#name, 1, 0, {NULL, NULL}, {0, 0}, {#dx, NULL, NULL}, 0, 0, 0},
    GPUNN_UNARY_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr, value, f, dx) {#name, 1, 1, {#attr, NULL}, {value, 0}, {#dx, NULL, NULL}, 0, 0, 0},
    GPUNN_UNARY1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, value1, attr2, value2, f, dx) \
    {#name, 1, 2, {#attr1, #attr2}, {value1, value2}, {#dx, NULL, NULL}, 0, 0, 0},
    GPUNN_UNARY2_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, f, da, db) {#name, 2, 0, {NULL, NULL}, {0, 0}, {#da, #db, NULL}, 0, 0, 0},
    GPUNN_BINARY_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr, value, f, da, db) {#name, 2, 1, {#attr, NULL}, {value, 0}, {#da, #db, NULL}, 0, 0, 0},
    GPUNN_BINARY1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, f, da, db, dc) {#name, 3, 0, {NULL, NULL}, {0, 0}, {#da, #db, #dc}, 0, 0, 0},
    GPUNN_TERNARY_OPS(GPUNN__X)
#undef GPUNN__X
#undef K
#define GPUNN__X(ENUM, name, reads, reads_out, backward) \
    {#name, 0, 0, {NULL, NULL}, {0, 0}, {NULL, NULL, NULL}, reads, reads_out, backward},
    GPUNN_OTHER_OPS(GPUNN__X) GPUNN_ALIAS_OPS(GPUNN__X)
#undef GPUNN__X
};
/* clang-format on */

GPUNN_API const char *gpunn_op_name(gpunn_op op)
{
    return gpunn__op_infos[(unsigned)op < GPUNN_OP_COUNT ? op : GPUNN_OP_NONE].name;
}

GPUNN__PRIVATE bool gpunn__op_elementwise(gpunn_op op)
{
    return gpunn__op_infos[op].arity > 0;
}

/* The convolutions stand side by side in GPUNN_OTHER_OPS: of 1, 2 and 3 axes, then the transposed ones. */
GPUNN__INLINE bool gpunn__is_convolution(gpunn_op op)
{
    return op >= GPUNN_OP_CONV1D && op <= GPUNN_OP_CONV_TRANSPOSE3D;
}

GPUNN__INLINE bool gpunn__is_transposed(gpunn_op op)
{
    return op >= GPUNN_OP_CONV_TRANSPOSE1D && op <= GPUNN_OP_CONV_TRANSPOSE3D;
}

GPUNN__INLINE int gpunn__conv_axes(gpunn_op op)
{
    return (int)(op - GPUNN_OP_CONV1D) % 3 + 1;
}

/* Operands of an elementwise op. */
GPUNN__PRIVATE int gpunn__op_arity(gpunn_op op)
{
    return gpunn__op_infos[op].arity;
}

GPUNN__PRIVATE int gpunn__op_attribute_count(gpunn_op op)
{
    return gpunn__op_infos[op].attribute_count;
}

GPUNN__PRIVATE float gpunn__op_attribute_default(gpunn_op op, int i)
{
    return gpunn__op_infos[op].attribute_default[i];
}

/* Whether the backward pass can give operand i a gradient (if it is F32). */
GPUNN__PRIVATE bool gpunn__op_has_gradient(gpunn_op op, int i)
{
    const gpunn__op_info *info = &gpunn__op_infos[op];
    if (info->arity == 0) return info->gradients < 0 || (i < 31 && (info->gradients >> i & 1) != 0);
    return i < info->arity && strcmp(info->derivative[i], "0") != 0;
}

/* Whether a derivative of an elementwise op mentions the one-letter name. */
GPUNN__PRIVATE bool gpunn__op_mentions(const gpunn__op_info *info, char name)
{
    for (int i = 0; i < info->arity; ++i) {
        char before = ' ';
        for (const char *s = info->derivative[i]; *s; before = *s++)
            if (*s == name && !isalnum((unsigned char)before) && before != '_' && !isalnum((unsigned char)s[1]) && s[1] != '_')
                return true;
    }
    return false;
}

/* Whether the backward pass reads operand i, and the result. */
GPUNN__PRIVATE bool gpunn__op_reads_input(gpunn_op op, int i)
{
    const gpunn__op_info *info = &gpunn__op_infos[op];
    return info->arity == 0 ? (info->reads >> (i < 31 ? i : 31) & 1) != 0
                            : i < info->arity && gpunn__op_mentions(info, info->arity == 1 ? 'x' : "abc"[i]);
}

GPUNN__PRIVATE bool gpunn__op_reads_output(gpunn_op op)
{
    const gpunn__op_info *info = &gpunn__op_infos[op];
    return info->arity == 0 ? info->reads_out != 0 : gpunn__op_mentions(info, 'y');
}
static bool gpunn__is_max_pool(gpunn_op op)
{
    return op == GPUNN_OP_MAX_POOL2D || op == GPUNN_OP_MAX_POOL3D || op == GPUNN_OP_ADAPTIVE_MAX_POOL2D ||
           op == GPUNN_OP_ADAPTIVE_MAX_POOL3D;
}

static bool gpunn__is_adaptive_pool(gpunn_op op)
{
    return op == GPUNN_OP_ADAPTIVE_MAX_POOL2D || op == GPUNN_OP_ADAPTIVE_MAX_POOL3D || op == GPUNN_OP_ADAPTIVE_AVG_POOL2D ||
           op == GPUNN_OP_ADAPTIVE_AVG_POOL3D;
}

static bool gpunn__is_pool(gpunn_op op)
{
    return gpunn__is_max_pool(op) || gpunn__is_adaptive_pool(op) || op == GPUNN_OP_AVG_POOL2D || op == GPUNN_OP_AVG_POOL3D;
}

/* ==== >>math ========================================================================================================== *
 * Float functions without branches or tables, so that loops over them become vector code; both sides of every choice are
 * computed. Within 2 ulp of the true value (sigmoid, tanh: 3), and C's values at infinities, NaN, denormals and outside the
 * domain. The polynomials are minimax fits by iteratively reweighted least squares. */
#define GPUNN__SQRT_HALF_BITS 0x3f3504f3u

GPUNN__INLINE float gpunn__float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

GPUNN__INLINE uint32_t gpunn__bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* condition ? a : b by masks: gcc turns the plain form into branches that it then cannot vectorise. */
GPUNN__INLINE float gpunn__select(bool condition, float a, float b)
{
    uint32_t mask = 0u - (uint32_t)condition;
    return gpunn__float_of((gpunn__bits_of(a) & mask) | (gpunn__bits_of(b) & ~mask));
}

/* x with |x| at most limit; NaN becomes +-limit. */
GPUNN__INLINE float gpunn__limit(float x, float limit)
{
    int32_t size = (int32_t)(gpunn__bits_of(x) & 0x7fffffffu), most = (int32_t)gpunn__bits_of(limit);
    return gpunn__float_of((uint32_t)(size < most ? size : most) | (gpunn__bits_of(x) & 0x80000000u));
}

/* 2^n for -126 <= n <= 127, and 0 for -127. */
GPUNN__INLINE float gpunn__exp2i(int32_t n)
{
    return gpunn__float_of((uint32_t)(n + 127) << 23);
}

/* x = n ln 2 + r with |r| <= ln 2 / 2, and exp(r) - 1, for |x| < 2^15. */
GPUNN__INLINE float gpunn__exp_reduce(float x, int32_t *n)
{
    float magic = 12582912.0f; /* 1.5 2^23: added to it, a number rounds to an integer in the low bits */
    *n = (int32_t)(gpunn__bits_of(x * 1.44269504f + magic) - gpunn__bits_of(magic));
    float k = (float)*n;
    float r = x - k * 0.693359375f + k * 2.12194440e-4f; /* ln 2 in two parts, the first with 9 bits: k times it is exact */
    float p = ((0.00139465544f * r + 0.00836664438f) * r + 0.0416662805f) * r + 0.16666542f;
    return r + r * r * (p * r + 0.5f);
}

GPUNN__INLINE float gpunn__exp(float x)
{
    int32_t n;
    float   e = gpunn__exp_reduce(gpunn__limit(x, 104), &n) + 1;
    int32_t half = n >> 1; /* in two factors, since 2^n may lie outside the normal range */
    float   y = e * gpunn__exp2i(half) * gpunn__exp2i(n - half);
    return gpunn__select(x == x, y, x);
}

/* exp(x) - 1 for |x| <= 89 and not denormal. */
GPUNN__INLINE float gpunn__expm1_inside(float x)
{
    int32_t n;
    float   e = gpunn__exp_reduce(x, &n);
    float   half_scale = gpunn__exp2i(n > -126 ? n - 1 : -127);
    return 2 * (half_scale * e + (half_scale - 0.5f));
}

GPUNN__INLINE float gpunn__expm1(float x)
{
    return gpunn__select(fabsf(x) > 1e-8f, gpunn__expm1_inside(gpunn__limit(x, 89)), x); /* tiny x and NaN: x itself */
}

/* n ln 2 + log(1 + f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1. */
GPUNN__INLINE float gpunn__log_join(float n, float f)
{
    float s = f * f;
    float p = (((-0.0785961151f * f + 0.128816471f) * f - 0.131287545f) * f + 0.141811922f) * f - 0.166245535f;
    p = ((p * f + 0.200022861f) * f - 0.250008106f) * f + 0.333333164f;
    return (f - (0.5f * s - (s * f * p - n * 2.12194440e-4f))) + n * 0.693359375f;
}

/* y where x is inside (limit, inf); at and below the limit -inf and NaN, at inf and NaN x itself. */
GPUNN__INLINE float gpunn__log_edges(float x, float limit, float y)
{
    float outside = gpunn__select(x == limit, -INFINITY, gpunn__select(x < limit, NAN, x));
    return gpunn__select(x > limit, gpunn__select(x <= FLT_MAX, y, x), outside);
}

/* x = 2^n m with sqrt(1/2) <= m < sqrt(2), for normal x > 0. */
GPUNN__INLINE int32_t gpunn__exponent(float x)
{
    return (int32_t)(gpunn__bits_of(x) - GPUNN__SQRT_HALF_BITS) >> 23;
}

GPUNN__INLINE float gpunn__log(float x)
{
    float   normal = gpunn__select(x < FLT_MIN, x * 8388608.0f, x);
    int32_t n = gpunn__exponent(normal);
    float   m = gpunn__float_of(gpunn__bits_of(normal) - ((uint32_t)n << 23));
    return gpunn__log_edges(x, 0, gpunn__log_join((float)n - gpunn__select(x < FLT_MIN, 23, 0), m - 1));
}

GPUNN__INLINE float gpunn__log1p(float x)
{
    bool    huge = x > 1e30f; /* then log(2^-64 x) + 64 ln 2, or the scale would be denormal */
    float   near = x * gpunn__select(huge, 5.4210109e-20f, 1);
    int32_t n = gpunn__exponent(1 + near);
    float   scale = gpunn__float_of((uint32_t)(127 - n) << 23);
    float   y = gpunn__log_join((float)n + gpunn__select(huge, 64, 0),
                                near * scale + (scale - 1)); /* small x: scale is 1, nothing lost */
    return gpunn__select(fabsf(x) < 1e-8f, x, gpunn__log_edges(x, -1, y));
}

GPUNN__INLINE float gpunn__sigmoid(float x)
{
    float e = gpunn__exp(-fabsf(x));
    return gpunn__select(x < 0, e, 1) / (1 + e);
}

GPUNN__INLINE float gpunn__tanh(float x)
{
    float e = gpunn__expm1_inside(2 * gpunn__limit(fabsf(x), 10));
    return gpunn__select(x == x, copysignf(e / (e + 2), x), x);
}

GPUNN__INLINE float gpunn__erf(float x)
{
    float a = gpunn__limit(fabsf(x), 4), s = x * x;
    float p = ((-0.000620325445f * s + 0.00503218127f) * s - 0.0267914627f) * s + 0.112824552f;
    float small = x + x * ((p * s - 0.376125515f) * s + 0.128379151f);
    float q = ((-0.00021522498f * a + 0.00322512374f) * a - 0.0229223836f) * a + 0.105312094f; /* erfc(a) = exp(-a q(a)) */
    float large = -gpunn__expm1_inside(-a * ((q * a + 0.635680437f) * a + 1.1285255f));
    return gpunn__select(fabsf(x) > 0.875f, copysignf(large, x), small);
}

/* As torch's and unlike C's: NaN in, NaN out. */
GPUNN__INLINE float gpunn__min(float a, float b)
{
    return gpunn__select(a < b, a, gpunn__select(a != a, a, b));
}

GPUNN__INLINE float gpunn__max(float a, float b)
{
    return gpunn__select(a > b, a, gpunn__select(a != a, a, b));
}

GPUNN__INLINE float gpunn__sign(float x)
{
    return gpunn__select(x > 0, 1, gpunn__select(x < 0, -1, 0));
}
#undef GPUNN__SQRT_HALF_BITS
/* ---- 16-bit floats --------------------------------------------------------------------------------------------------- */
static float gpunn__float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float gpunn__float_of_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 1023u;
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)fraction * (1.0f / 16777216.0f); /* subnormal: fraction 2^-24 */
    return gpunn__float_of_bits(sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | fraction << 13);
}

#ifdef GPUNN__SELDOM
#pragma GCC push_options
#pragma GCC optimize("O1")
#endif
/* ==== >>shapes ======================================================================================================== *
 * A dimension -k is k times the batch, which only the run knows: rules compare such dimensions with each other, never with
 * numbers. */
#define GPUNN__MAX_COUNT ((int64_t)1 << 59) /* elements of one tensor: their bytes fit 62 bits */

GPUNN_API size_t gpunn_dtype_size(gpunn_dtype dtype)
{
    static const unsigned char bytes_of[] = {0,
#define GPUNN__X(id, text, file_name, bytes) bytes,
                                             GPUNN_DTYPE_LIST(GPUNN__X)
#undef GPUNN__X
    };
    return (int)dtype >= 0 && dtype < GPUNN_DTYPE_COUNT ? bytes_of[dtype] : 0;
}

GPUNN_API const char *gpunn_dtype_name(gpunn_dtype dtype)
{
    static const char *const names[] = {"no gpunn_dtype",
#define GPUNN__X(id, text, file_name, bytes) text,
                                        GPUNN_DTYPE_LIST(GPUNN__X)
#undef GPUNN__X
    };
    return (int)dtype >= 0 && dtype < GPUNN_DTYPE_COUNT ? names[dtype] : names[0];
}

static const char *gpunn__dim_text(int64_t dim, char text[32])
{
    if (dim == GPUNN_BATCH)
        (void)snprintf(text, 32, "batch");
    else
        (void)snprintf(text, 32, dim < 0 ? "%lld batch" : "%lld", (long long)(dim < 0 ? -dim : dim));
    return text;
}

static const char *gpunn__dims_text(int rank, const int64_t *dim, char text[128])
{
    size_t used = 0;
    text[used++] = '[';
    for (int i = 0; i < rank; i++) {
        char one[32];
        (void)gpunn__dim_text(dim[i], one);
        if (used + strlen(one) > 128 - 8) (void)snprintf(one, sizeof one, "..."); /* only absurd sizes get so long */
        used += (size_t)snprintf(text + used, 128 - used, "%s%s", i ? ", " : "", one);
        if (one[0] == '.') break;
    }
    text[used++] = ']';
    text[used] = 0;
    return text;
}

GPUNN__PRIVATE const char *gpunn__shape_text(const gpunn_tensor *t, char text[128])
{
    return gpunn__dims_text(t->rank, t->dim, text);
}

/* The element count is factor * batch^power; false: factor is over the limit. */
static bool gpunn__measure(int rank, const int64_t *dim, int64_t *factor, int *power)
{
    *factor = 1;
    *power = 0;
    for (int i = 0; i < rank; i++) {
        if (dim[i] > GPUNN__MAX_COUNT || dim[i] < -GPUNN__MAX_COUNT) return false;
        int64_t size = dim[i] < 0 ? -dim[i] : dim[i];
        if (size > GPUNN__MAX_COUNT / *factor) return false;
        *factor *= size;
        *power += dim[i] < 0;
    }
    return true;
}

GPUNN__PRIVATE int64_t gpunn__count(const gpunn_tensor *t, int64_t batch)
{
    int64_t count;
    int     power;
    if (!gpunn__measure(t->rank, t->dim, &count, &power)) return -1;
    for (; power > 0; power--) {
        if (batch > GPUNN__MAX_COUNT / (count ? count : 1)) return -1;
        count *= batch;
    }
    return count;
}

/* Cells of a sliding window along one axis; a window that starts in the padding behind does not count (torch's rule for ceil). */
static int64_t gpunn__windows(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, bool ceil_mode)
{
    int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1 + (ceil_mode ? stride - 1 : 0);
    if (room < 0) return 0;
    int64_t count = room / stride + 1;
    return ceil_mode && (count - 1) * stride >= size + padding ? count - 1 : count;
}

/* ==== >>graph ========================================================================================================= *
 * Every builder is a gpunn__call: it checks its operands, appends parameters and nodes, and after a failure takes away whatever
 * it has appended, also when another builder inside it failed. */
typedef struct gpunn__call {
    gpunn_model *model;
    const char  *op, *layer; /* how its sentences begin; layer NULL: none */
    int          mark;       /* tensors to go back to */
} gpunn__call;

static const char *const gpunn__x_name[] = {"x"};
static const char *const gpunn__abc_names[] = {"a", "b", "c"};
static const char *const gpunn__loss_names[] = {"input", "target"};
static const char *const gpunn__class_names[] = {"logits", "labels"};

static gpunn_tensor *gpunn__undo(const gpunn__call *call)
{
    gpunn_model *model = call->model;
    while (model && model->tensor_count > call->mark) gpunn__tensor_free(model->dev, model->tensors[--model->tensor_count]);
    return NULL;
}

static gpunn_tensor *gpunn__refuse(const gpunn__call *call, gpunn_status status, const char *format, ...) GPUNN__PRINTF(3, 4);
static gpunn_tensor *gpunn__refuse(const gpunn__call *call, gpunn_status status, const char *format, ...)
{
    char    text[GPUNN__ERROR_SIZE];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    const char *layer = call->layer;
    (void)gpunn__fail(call->model ? call->model->dev : NULL, status, "%s%s%s%s: %s", call->op, layer ? " '" : "",
                      layer ? layer : "", layer ? "'" : "", text);
    return gpunn__undo(call);
}

static gpunn__call gpunn__call_of(gpunn_model *model, const char *op, const char *layer)
{
    gpunn__call call = {model, op, layer && layer[0] ? layer : NULL, model ? model->tensor_count : 0};
    return call;
}

/* NULL is an error only where none has been recorded: it may come from a call that failed. */
static bool gpunn__given(const gpunn__call *call, const void *ptr, const char *name)
{
    if (ptr == NULL && gpunn_last_status(call->model ? call->model->dev : NULL) == GPUNN_OK)
        (void)gpunn__refuse(call, GPUNN_ERR_ARGUMENT, "%s is NULL", name);
    return ptr != NULL;
}

static bool gpunn__begin_model(gpunn__call *call, gpunn_model *model, const char *op, const char *layer)
{
    *call = gpunn__call_of(model, op, layer);
    return gpunn__given(call, model, "the model");
}

/* Checks one operand; f32: it must be. */
static bool gpunn__operand(const gpunn__call *call, const gpunn_tensor *t, const char *name, bool f32)
{
    if (!gpunn__given(call, t, name)) return false;
    if (t->model != call->model)
        (void)gpunn__refuse(call, GPUNN_ERR_ARGUMENT, "%s belongs to another model; all operands must belong to one", name);
    else if (f32 && t->dtype != GPUNN_F32)
        (void)gpunn__refuse(call, GPUNN_ERR_DTYPE, "%s is %s, but f32 is needed; convert it with gpunn_cast", name,
                            gpunn_dtype_name(t->dtype));
    else
        return true;
    return false;
}

/* Opens a call on the model of its operands, the first f32_count of which must be F32. names NULL: "tensors[i]". */
static bool gpunn__begin(gpunn__call *call, const char *op, const char *layer, const char *const *names,
                         gpunn_tensor *const *operands, int count, int f32_count)
{
    gpunn_model *model = NULL;
    for (int i = count - 1; i >= 0; i--)
        if (operands[i]) model = operands[i]->model;
    *call = gpunn__call_of(model, op, layer);
    for (int i = 0; i < count; i++) {
        char numbered[32];
        (void)snprintf(numbered, sizeof numbered, "tensors[%d]", i);
        if (!gpunn__operand(call, operands[i], names ? names[i] : numbered, i < f32_count)) return false;
    }
    return true;
}

/* The same for one operand, x. */
static bool gpunn__begin_x(gpunn__call *call, const char *op, const char *layer, gpunn_tensor *x, bool f32)
{
    return gpunn__begin(call, op, layer, gpunn__x_name, &x, 1, f32);
}

/* ---- tensors --------------------------------------------------------------------------------------------------------- */
static gpunn_tensor *gpunn__append(const gpunn__call *call, gpunn__kind kind, gpunn_dtype dtype, int rank, const int64_t *dim)
{
    gpunn_model *model = call->model;
    int64_t      factor;
    int          power;
    if (!gpunn__measure(rank, dim, &factor, &power)) {
        char text[128];
        return gpunn__refuse(call, GPUNN_ERR_SHAPE, "shape %s has more than 2^59 elements; use smaller sizes",
                             gpunn__dims_text(rank, dim, text));
    }
    if (model->tensor_count == model->tensor_capacity) {
        size_t         item = sizeof *model->tensors, old_size = (size_t)model->tensor_capacity * item;
        int            capacity = model->tensor_capacity ? 2 * model->tensor_capacity : 32;
        gpunn_tensor **grown = (gpunn_tensor **)gpunn__realloc(model->dev, model->tensors, old_size, (size_t)capacity * item);
        if (grown == NULL) return gpunn__undo(call);
        model->tensors = grown;
        model->tensor_capacity = capacity;
    }
    gpunn_tensor *t = (gpunn_tensor *)gpunn__calloc(model->dev, sizeof *t);
    if (t == NULL) return gpunn__undo(call);
    t->model = model;
    t->id = model->tensor_count;
    t->kind = kind;
    t->dtype = dtype;
    t->rank = rank;
    memcpy(t->dim, dim, (size_t)rank * sizeof *dim);
    t->lr_scale = 1;
    t->trainable = t->decay = kind == GPUNN__PARAMETER;
    t->offset = -1;
    model->tensors[model->tensor_count++] = t;
    return t;
}

static gpunn_tensor *gpunn__set_layer(const gpunn__call *call, gpunn_tensor *t)
{
    if (t == NULL || (call->layer && (t->layer = gpunn__strdup(call->model->dev, call->layer)) == NULL)) return gpunn__undo(call);
    return t;
}

/* The node of an op. attr NULL: none; an operand may be NULL where the op says so. */
static gpunn_tensor *gpunn__node(const gpunn__call *call, gpunn_op op, const gpunn_attributes *attr,
                                 gpunn_tensor *const *operands, int count, gpunn_dtype dtype, int rank, const int64_t *dim)
{
    gpunn_tensor *t = gpunn__append(call, GPUNN__VALUE, dtype, rank, dim);
    if (t == NULL) return NULL;
    t->op = op;
    if (attr) t->attr = *attr;
    size_t size = (size_t)count * sizeof *t->inputs;
    t->inputs = (gpunn_tensor **)gpunn__realloc(call->model->dev, NULL, 0, size);
    if (t->inputs == NULL) return gpunn__undo(call);
    t->input_count = count;
    memcpy(t->inputs, operands, size);
    return gpunn__set_layer(call, t);
}

enum { GPUNN__NAME_SIZE = 256 }; /* of any name, with its end */

/* Gives t its name; false after an error, when t is gone if this call had made it. */
static bool gpunn__give_name(const gpunn__call *call, gpunn_tensor *t, const char *name)
{
    const gpunn_tensor *other = gpunn_find(call->model, name);
    const char         *fault = name == NULL || name[0] == 0        ? "missing; give one"
                                : strlen(name) >= GPUNN__NAME_SIZE  ? "longer than 255 bytes; choose another"
                                : strcmp(name, "__metadata__") == 0 ? "reserved in safetensors files; choose another"
                                : other && other != t               ? "taken; names are unique in a model"
                                                                    : NULL;
    if (fault) {
        (void)gpunn__refuse(call, GPUNN_ERR_ARGUMENT, name && name[0] ? "the name '%.64s' is %s" : "the name%s is %s",
                            name && name[0] ? name : "", fault);
        return false;
    }
    if (other == t) return true;
    char *copy = gpunn__strdup(call->model->dev, name);
    if (copy == NULL) {
        (void)gpunn__undo(call);
        return false;
    }
    gpunn__free_text(call->model->dev, t->name);
    t->name = copy;
    return true;
}

/* The rank of a shape from the program, or -1 after an error. batches 0: no batch in it; 1: GPUNN_BATCH once; 2: multiples. */
static int gpunn__rank_of(const gpunn__call *call, const gpunn_shape *shape, int batches)
{
    int rank = 0, found = 0, end = GPUNN_MAX_RANK;
    while (rank < GPUNN_MAX_RANK && shape->dim[rank] != 0) rank++;
    while (end > 0 && shape->dim[end - 1] == 0) end--;
    char text[128];
    (void)gpunn__dims_text(end, shape->dim, text);
    if (end != rank) {
        (void)gpunn__refuse(call, GPUNN_ERR_SHAPE, "shape %s has a dimension 0; the smallest is 1", text);
        return -1;
    }
    for (int i = 0; i < rank; i++) {
        found += shape->dim[i] < 0;
        if (shape->dim[i] > 0 || batches == 2 || (batches == 1 && shape->dim[i] == GPUNN_BATCH && found == 1)) continue;
        (void)gpunn__refuse(call, GPUNN_ERR_SHAPE, "shape %s is not allowed here; dimensions are 1 or more%s", text,
                            batches ? ", and one of them may be GPUNN_BATCH" : ", and none may be GPUNN_BATCH");
        return -1;
    }
    return rank;
}

GPUNN_API gpunn_tensor *gpunn_input(gpunn_model *model, const char *name, gpunn_dtype dtype, gpunn_shape shape)
{
    gpunn__call call;
    if (!gpunn__begin_model(&call, model, "input", name)) return NULL;
    if (dtype == GPUNN_DTYPE_DEFAULT) dtype = GPUNN_F32;
    if (gpunn_dtype_size(dtype) == 0 || dtype == GPUNN_F16 || dtype == GPUNN_BF16)
        return gpunn__refuse(&call, GPUNN_ERR_DTYPE, "dtype %s cannot be an input's; use f32, i64, i32, u8 or bool",
                             gpunn_dtype_name(dtype));
    int rank = gpunn__rank_of(&call, &shape, 1);
    if (rank < 0) return NULL;
    gpunn_tensor *t = gpunn__append(&call, GPUNN__INPUT, dtype, rank, shape.dim);
    return t && gpunn__give_name(&call, t, name) ? t : NULL;
}

static bool gpunn__init_is_sound(const gpunn__call *call, gpunn_init init, int rank)
{
    const char *fault = NULL;
    if ((int)init.kind < 0 || init.kind > GPUNN_INIT_KAIMING_UNIFORM)
        fault = "the kind is none of gpunn_init_kind; use one of them";
    else if (!isfinite(init.a) || !isfinite(init.b))
        fault = "a or b is not finite; use finite numbers";
    else if (init.kind == GPUNN_INIT_UNIFORM && init.a > init.b)
        fault = "a lies above b; a is the lower bound";
    else if (init.kind == GPUNN_INIT_NORMAL && init.b < 0)
        fault = "b is negative; it is the standard deviation";
    else if (init.kind == GPUNN_INIT_KAIMING_UNIFORM && init.a < 0)
        fault = "a is negative; it is the fan-in, 0 to take it from the shape";
    else if (init.kind == GPUNN_INIT_KAIMING_UNIFORM && init.a == 0 && rank < 2)
        fault = "a shape of rank below 2 tells no fan-in; set .a to it";
    if (fault) (void)gpunn__refuse(call, GPUNN_ERR_ARGUMENT, "initial values: %s", fault);
    return fault == NULL;
}

static gpunn_tensor *gpunn__weight(const gpunn__call *call, gpunn__kind kind, const char *name, int rank, const int64_t *dim,
                                   gpunn_init init)
{
    gpunn_tensor *t = gpunn__append(call, kind, GPUNN_F32, rank, dim);
    if (t == NULL || !gpunn__give_name(call, t, name)) return NULL;
    t->init = init;
    return t;
}

GPUNN_API gpunn_tensor *gpunn_parameter(gpunn_model *model, const char *name, gpunn_shape shape, gpunn_init init)
{
    gpunn__call call;
    if (!gpunn__begin_model(&call, model, "parameter", name)) return NULL;
    int rank = gpunn__rank_of(&call, &shape, 0);
    if (rank < 0 || !gpunn__init_is_sound(&call, init, rank)) return NULL;
    return gpunn__weight(&call, GPUNN__PARAMETER, name, rank, shape.dim, init);
}

GPUNN_API gpunn_tensor *gpunn_constant(gpunn_model *model, gpunn_shape shape, const float *values)
{
    gpunn__call call;
    if (!gpunn__begin_model(&call, model, "constant", NULL)) return NULL;
    int rank = gpunn__rank_of(&call, &shape, 0);
    if (rank < 0) return NULL;
    if (values == NULL)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "values is NULL; pass as many floats as the shape has elements");
    gpunn_tensor *t = gpunn__append(&call, GPUNN__CONSTANT, GPUNN_F32, rank, shape.dim);
    size_t        size = 0;
    if (t == NULL) return NULL;
    if ((uint64_t)gpunn__count(t, 1) > SIZE_MAX || !gpunn__mul((size_t)gpunn__count(t, 1), sizeof *t->constant, &size))
        return gpunn__refuse(&call, GPUNN_ERR_MEMORY, "so many elements do not fit this machine's memory");
    t->constant = (float *)gpunn__realloc(model->dev, NULL, 0, size);
    if (t->constant == NULL) return gpunn__undo(&call);
    memcpy(t->constant, values, size);
    return t;
}

/* ---- questions and settings ------------------------------------------------------------------------------------------ */
GPUNN_API gpunn_tensor *gpunn_find(gpunn_model *model, const char *name)
{
    for (int i = 0; model && name && i < model->tensor_count; i++) {
        gpunn_tensor *t = model->tensors[i];
        if (t->name && strcmp(t->name, name) == 0) return t;
    }
    return NULL;
}

GPUNN_API gpunn_tensor *gpunn_set_name(gpunn_tensor *t, const char *name)
{
    gpunn__call call;
    return gpunn__begin_x(&call, "gpunn_set_name", NULL, t, false) && gpunn__give_name(&call, t, name) ? t : NULL;
}

GPUNN_API const char *gpunn_tensor_name(const gpunn_tensor *t)
{
    return t && t->name ? t->name : "";
}

GPUNN_API gpunn_shape gpunn_tensor_shape(const gpunn_tensor *t)
{
    gpunn_shape shape;
    memset(&shape, 0, sizeof shape);
    if (t) memcpy(shape.dim, t->dim, sizeof shape.dim);
    return shape;
}

GPUNN_API gpunn_dtype gpunn_tensor_dtype(const gpunn_tensor *t)
{
    return t ? t->dtype : GPUNN_DTYPE_DEFAULT;
}

GPUNN_API size_t gpunn_tensor_bytes(const gpunn_tensor *t)
{
    if (t == NULL) return 0;
    int64_t count = gpunn__count(t, t->kind == GPUNN__INPUT ? t->batch : t->model->batch);
    return count < 0 ? 0 : (size_t)count * gpunn_dtype_size(t->dtype);
}

static bool gpunn__is_saved(const gpunn_tensor *t)
{
    return t->kind == GPUNN__PARAMETER || t->kind == GPUNN__BUFFER;
}

GPUNN_API int gpunn_parameter_count(const gpunn_model *model)
{
    int count = 0;
    for (int i = 0; model && i < model->tensor_count; i++) count += gpunn__is_saved(model->tensors[i]);
    return count;
}

GPUNN_API gpunn_tensor *gpunn_parameter_at(gpunn_model *model, int index)
{
    for (int i = 0; model && i < model->tensor_count; i++)
        if (gpunn__is_saved(model->tensors[i]) && index-- == 0) return model->tensors[i];
    return NULL;
}

GPUNN_API gpunn_tensor *gpunn_input_at(gpunn_model *model, int index)
{
    for (int i = 0; model && i < model->tensor_count; i++)
        if (model->tensors[i]->kind == GPUNN__INPUT && index-- == 0) return model->tensors[i];
    return NULL;
}

/* Opens a call that changes a parameter. */
static bool gpunn__begin_setting(gpunn__call *call, gpunn_tensor *t, const char *function)
{
    if (!gpunn__begin_x(call, function, t ? t->name : NULL, t, false)) return false;
    if (t->kind != GPUNN__PARAMETER)
        (void)gpunn__refuse(call, GPUNN_ERR_ARGUMENT, "the tensor is no parameter; only these have this setting");
    return t->kind == GPUNN__PARAMETER;
}

/* Inputs that one output of a linear or convolution weight [out, ...] sums. */
GPUNN__PRIVATE int64_t gpunn__fan_in(const gpunn_tensor *t)
{
    int64_t factor = 1;
    int     power;
    if (t->rank > 1) (void)gpunn__measure(t->rank - 1, t->dim + 1, &factor, &power);
    return factor;
}

/* Draws a tensor's initial values. */
static void gpunn__draw_tensor(const gpunn_tensor *t, const gpunn_init *init, float *values)
{
    int64_t count = gpunn__count(t, 1), row = t->rank > 1 ? count / t->dim[0] : 1;
    gpunn__draw(init, t->model->state.seed, (uint32_t)t->id, gpunn__fan_in(t), values, count);
    if (t->padding) memset(values + (t->padding - 1) * row, 0, (size_t)row * sizeof *values);
}

GPUNN_API gpunn_status gpunn_set_init(gpunn_tensor *parameter, gpunn_init init)
{
    gpunn__call call;
    if (!gpunn__begin_setting(&call, parameter, "gpunn_set_init") || !gpunn__init_is_sound(&call, init, parameter->rank))
        return GPUNN_ERR_ARGUMENT;
    gpunn_status status = GPUNN_OK;
    if (parameter->offset >= 0) { /* it has values already */
        gpunn_model *model = parameter->model;
        size_t       size = (size_t)gpunn__count(parameter, 1) * sizeof(float);
        float       *values = (float *)gpunn__realloc(model->dev, NULL, 0, size);
        if (values == NULL) return GPUNN_ERR_MEMORY;
        gpunn__draw_tensor(parameter, &init, values);
        status = gpunn_write(parameter, values, size);
        gpunn__free(model->dev, values, size);
    }
    if (status == GPUNN_OK) parameter->init = init;
    return status;
}

GPUNN_API gpunn_status gpunn_set_trainable(gpunn_tensor *parameter, bool trainable)
{
    gpunn__call call;
    if (!gpunn__begin_setting(&call, parameter, "gpunn_set_trainable")) return GPUNN_ERR_ARGUMENT;
    if (parameter->trainable != trainable) gpunn__invalidate(parameter->model);
    parameter->trainable = trainable;
    return GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_set_lr_scale(gpunn_tensor *parameter, float scale)
{
    gpunn__call call;
    if (!gpunn__begin_setting(&call, parameter, "gpunn_set_lr_scale")) return GPUNN_ERR_ARGUMENT;
    if (!isfinite(scale) || scale < 0) {
        (void)gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "scale is %g; use 0 or a positive number", (double)scale);
        return GPUNN_ERR_ARGUMENT;
    }
    parameter->lr_scale = scale;
    return GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_set_decay(gpunn_tensor *parameter, bool decay)
{
    gpunn__call call;
    if (!gpunn__begin_setting(&call, parameter, "gpunn_set_decay")) return GPUNN_ERR_ARGUMENT;
    parameter->decay = decay;
    return GPUNN_OK;
}

GPUNN_API gpunn_tensor *gpunn_keep(gpunn_tensor *t)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "gpunn_keep", NULL, t, false)) return NULL;
    if (!t->keep) gpunn__invalidate(t->model);
    t->keep = true;
    return t;
}

GPUNN_API gpunn_tensor *gpunn_retain_grad(gpunn_tensor *t)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "gpunn_retain_grad", NULL, t, true)) return NULL;
    if (!t->retain_grad) gpunn__invalidate(t->model);
    t->retain_grad = true;
    return t;
}

/* ---- elementwise ops ------------------------------------------------------------------------------------------------- */
/* Broadcasts a shape into *rank, dim, both aligned at their last axes; false after an error. */
static bool gpunn__broadcast_dims(const gpunn__call *call, const char *what, int *rank, int64_t *dim, int other_rank,
                                  const int64_t *other)
{
    int     result_rank = *rank > other_rank ? *rank : other_rank;
    int64_t result[GPUNN_MAX_RANK];
    for (int i = 0; i < result_rank; i++) {
        int     ia = i - (result_rank - *rank), ib = i - (result_rank - other_rank);
        int64_t a = ia < 0 ? 1 : dim[ia], b = ib < 0 ? 1 : other[ib];
        result[i] = a == 1 ? b : a;
        if (a == b || a == 1 || b == 1) continue;
        char all_a[128], all_b[128], one_a[32], one_b[32];
        (void)gpunn__refuse(call, GPUNN_ERR_SHAPE, "%s %s and %s do not broadcast (axis %d: %s against %s)%s", what,
                            gpunn__dims_text(*rank, dim, all_a), gpunn__dims_text(other_rank, other, all_b), i,
                            gpunn__dim_text(a, one_a), gpunn__dim_text(b, one_b),
                            a < 0 || b < 0 ? "; the batch fits only itself and 1" : "");
        return false;
    }
    *rank = result_rank;
    memcpy(dim, result, (size_t)result_rank * sizeof *dim);
    return true;
}

static gpunn_attributes gpunn__no_attributes(void)
{
    gpunn_attributes attr;
    memset(&attr, 0, sizeof attr);
    return attr;
}

static gpunn_tensor *gpunn__map_node(gpunn_op op, gpunn_tensor *const *operands, float attribute1, float attribute2)
{
    int         arity = gpunn__op_arity(op), rank = 0;
    int64_t     dim[GPUNN_MAX_RANK];
    gpunn__call call;
    if (!gpunn__begin(&call, gpunn_op_name(op), NULL, arity == 1 ? gpunn__x_name : gpunn__abc_names, operands, arity, arity))
        return NULL;
    if (attribute1 != attribute1 || attribute2 != attribute2)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "an attribute is NaN; pass a number");
    for (int i = 0; i < arity; i++)
        if (!gpunn__broadcast_dims(&call, "shapes", &rank, dim, operands[i]->rank, operands[i]->dim)) return NULL;
    gpunn_attributes attr = gpunn__no_attributes();
    attr.value[0] = attribute1;
    attr.value[1] = attribute2;
    return gpunn__node(&call, op, &attr, operands, arity, GPUNN_F32, rank, dim);
}

#define GPUNN__X(ENUM, name, ...)                          \
    GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *x)  \
    {                                                      \
        return gpunn__map_node(GPUNN_OP_##ENUM, &x, 0, 0); \
    }
GPUNN_UNARY_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr, ...)                               \
    GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *x, float attr) \
    {                                                                 \
        return gpunn__map_node(GPUNN_OP_##ENUM, &x, attr, 0);         \
    }
GPUNN_UNARY1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, default1, attr2, ...)                           \
    GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *x, float attr1, float attr2) \
    {                                                                               \
        return gpunn__map_node(GPUNN_OP_##ENUM, &x, attr1, attr2);                  \
    }
GPUNN_UNARY2_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, ...)                                          \
    GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *a, gpunn_tensor *b) \
    {                                                                      \
        gpunn_tensor *operands[] = {a, b};                                 \
        return gpunn__map_node(GPUNN_OP_##ENUM, operands, 0, 0);           \
    }
GPUNN_BINARY_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr, ...)                                                \
    GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *a, gpunn_tensor *b, float attr) \
    {                                                                                  \
        gpunn_tensor *operands[] = {a, b};                                             \
        return gpunn__map_node(GPUNN_OP_##ENUM, operands, attr, 0);                    \
    }
GPUNN_BINARY1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, ...)                                                           \
    GPUNN_API gpunn_tensor *gpunn_##name(gpunn_tensor *a, gpunn_tensor *b, gpunn_tensor *c) \
    {                                                                                       \
        gpunn_tensor *operands[] = {a, b, c};                                               \
        return gpunn__map_node(GPUNN_OP_##ENUM, operands, 0, 0);                            \
    }
GPUNN_TERNARY_OPS(GPUNN__X)
#undef GPUNN__X

/* ---- layers ---------------------------------------------------------------------------------------------------------- */
/* A field of an argument struct: 0 stands for the default, GPUNN_ZERO for 0. */
static int gpunn__int_setting(int given, int otherwise)
{
    return given == 0 ? otherwise : given == GPUNN_ZERO ? 0 : given;
}

static float gpunn__float_setting(float given, float otherwise)
{
    return given == 0 ? otherwise : given == (float)GPUNN_ZERO ? 0 : given;
}

/* A layer's name must be new; false after an error. */
static bool gpunn__layer_is_new(const gpunn__call *call, const char *name)
{
    const char *fault = call->layer == NULL                     ? "the layer needs a name, which its parameters carry too"
                        : strlen(name) >= GPUNN__NAME_SIZE - 16 ? "the name is too long; 239 bytes are allowed"
                                                                : NULL;
    for (int i = 0; fault == NULL && i < call->model->tensor_count; i++) {
        const char *layer = call->model->tensors[i]->layer;
        if (layer && strcmp(layer, name) == 0) fault = "the name is taken by another layer; names are unique in a model";
    }
    if (fault) (void)gpunn__refuse(call, GPUNN_ERR_ARGUMENT, "%s", fault);
    return fault == NULL;
}

/* Opens a call that makes a layer with parameters: x must be F32, the name new. */
static bool gpunn__begin_layer(gpunn__call *call, const char *op, const char *name, gpunn_tensor *x)
{
    return gpunn__begin_x(call, op, name, x, true) && gpunn__layer_is_new(call, name);
}

/* A parameter or buffer of the layer: name.suffix. */
static gpunn_tensor *gpunn__layer_weight(const gpunn__call *call, gpunn__kind kind, const char *suffix, int rank,
                                         const int64_t *dim, gpunn_init_kind init_kind, float a)
{
    char       name[GPUNN__NAME_SIZE];
    gpunn_init init = {init_kind, a, init_kind == GPUNN_INIT_NORMAL ? 1.0f : 0};
    (void)snprintf(name, sizeof name, "%s.%s", call->layer, suffix);
    return gpunn__set_layer(call, gpunn__weight(call, kind, name, rank, dim, init));
}

/* Whether a weight is the layer's own, or was given to it. */
static bool gpunn__is_own(const gpunn_tensor *layer, const gpunn_tensor *weight)
{
    return weight->layer && strcmp(weight->layer, layer->layer) == 0;
}

/* Axes first .. last of x must be fixed sizes that an int holds. */
static bool gpunn__axes_are_fixed(const gpunn__call *call, const gpunn_tensor *x, int first, int last)
{
    char text[128];
    for (int i = first; i <= last; i++) {
        if (x->dim[i] > 0 && x->dim[i] <= INT32_MAX) continue;
        (void)gpunn__refuse(call, GPUNN_ERR_SHAPE, "axis %d of x %s %s", i, gpunn__shape_text(x, text),
                            x->dim[i] < 0 ? "is the batch; gpunn_permute or gpunn_reshape it so that a fixed size stands there"
                                          : "is larger than 2^31 - 1; use smaller sizes");
        return false;
    }
    return true;
}

/* x must be of that rank; layout tells what its axes mean. */
static bool gpunn__has_rank(const gpunn__call *call, const gpunn_tensor *x, int lowest, int highest, const char *layout)
{
    char text[128];
    if (x->rank >= lowest && x->rank <= highest) return true;
    (void)gpunn__refuse(call, GPUNN_ERR_SHAPE, "x is %s, but %s is needed; gpunn_reshape it", gpunn__shape_text(x, text), layout);
    return false;
}

/* The node of a linear or convolution layer with its weight (NULL: a new one) and, if it has one, bias [out]; the result has x's
 * rank. */
static gpunn_tensor *gpunn__affine(const gpunn__call *call, gpunn_op op, const gpunn_attributes *attr, gpunn_tensor *x,
                                   gpunn_tensor *weight, int weight_rank, const int64_t *weight_dim, bool bias, int64_t out,
                                   const int64_t *dim)
{
    float fan_in = 1;
    for (int i = 1; i < weight_rank; i++) fan_in *= (float)weight_dim[i];
    gpunn_tensor *operands[3] = {x, weight, NULL};
    if (weight == NULL)
        operands[1] = gpunn__layer_weight(call, GPUNN__PARAMETER, "weight", weight_rank, weight_dim, GPUNN_INIT_KAIMING_UNIFORM,
                                          fan_in);
    if (operands[1] && bias)
        operands[2] = gpunn__layer_weight(call, GPUNN__PARAMETER, "bias", 1, &out, GPUNN_INIT_KAIMING_UNIFORM, fan_in);
    if (operands[1] == NULL || (bias && operands[2] == NULL)) return NULL;
    return gpunn__node(call, op, attr, operands, 3, GPUNN_F32, x->rank, dim);
}

/* Whether tensor t holds integers that pick elements. */
static bool gpunn__are_indices(const gpunn__call *call, const gpunn_tensor *t, const char *name)
{
    bool fits = t->dtype == GPUNN_I64 || t->dtype == GPUNN_I32;
    if (!fits)
        (void)gpunn__refuse(call, GPUNN_ERR_DTYPE, "%s is %s, but integers are needed; use i64 or i32", name,
                            gpunn_dtype_name(t->dtype));
    return fits;
}

/* A weight [rows, columns] that a layer does not own: dim tells the sizes that it must have, 0 where it tells them itself. */
static bool gpunn__shared_weight(const gpunn__call *call, const gpunn_tensor *weight, const char *rows, const char *columns,
                                 int64_t dim[2])
{
    char text[128];
    if (!gpunn__operand(call, weight, ".weight", true)) return false;
    for (int i = 0; i < 2; i++) {
        const char *what = i == 0 ? rows : columns;
        bool        fits = weight->rank == 2 && weight->dim[i] > 0 && weight->dim[i] <= INT32_MAX;
        if (fits && dim[i] == 0) dim[i] = weight->dim[i];
        if (fits && weight->dim[i] == dim[i]) continue;
        (void)gpunn__refuse(call, GPUNN_ERR_SHAPE, ".weight is %s, but [%s, %s] is needed, where %s is %lld",
                            gpunn__shape_text(weight, text), rows, columns, what, (long long)dim[i]);
        return false;
    }
    return true;
}

GPUNN_API gpunn_tensor *gpunn_linear_(gpunn_tensor *x, const char *name, gpunn_linear_args args)
{
    gpunn__call call;
    if (!gpunn__begin_layer(&call, "linear", name, x) || !gpunn__has_rank(&call, x, 1, GPUNN_MAX_RANK, "[..., features]") ||
        !gpunn__axes_are_fixed(&call, x, x->rank - 1, x->rank - 1))
        return NULL;
    int64_t dim[GPUNN_MAX_RANK], weight_dim[2];
    weight_dim[0] = args.out_features;
    weight_dim[1] = x->dim[x->rank - 1];
    if (args.weight && !gpunn__shared_weight(&call, args.weight, "out_features", "x's features", weight_dim)) return NULL;
    if (args.weight && args.weight->kind != GPUNN__PARAMETER)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, ".weight is no parameter; use gpunn_matmul with .transpose_b");
    if (weight_dim[0] < 1)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "out_features is %d; set .out_features to 1 or more", args.out_features);
    memcpy(dim, x->dim, sizeof dim);
    dim[x->rank - 1] = weight_dim[0];
    return gpunn__affine(&call, GPUNN_OP_LINEAR, NULL, x, args.weight, 2, weight_dim, !args.no_bias, weight_dim[0], dim);
}

GPUNN_API gpunn_tensor *gpunn_embedding_(gpunn_tensor *tokens, const char *name, gpunn_embedding_args args)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_x(&call, "embedding", name, tokens, false) || !gpunn__layer_is_new(&call, name) ||
        !gpunn__are_indices(&call, tokens, "tokens"))
        return NULL;
    int64_t dim[GPUNN_MAX_RANK], weight_dim[2];
    char    text[128];
    if (tokens->rank == GPUNN_MAX_RANK)
        return gpunn__refuse(&call, GPUNN_ERR_SHAPE, "tokens is %s; the result would have more than %d axes; gpunn_reshape it",
                             gpunn__shape_text(tokens, text), GPUNN_MAX_RANK);
    weight_dim[0] = args.num_embeddings;
    weight_dim[1] = args.embedding_dim;
    if (args.weight && !gpunn__shared_weight(&call, args.weight, "num_embeddings", "embedding_dim", weight_dim)) return NULL;
    if (weight_dim[0] < 1 || weight_dim[1] < 1)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT,
                             "num_embeddings is %d and embedding_dim %d; set both to 1 or more, or give a .weight",
                             args.num_embeddings, args.embedding_dim);
    int64_t padding = gpunn__int_setting(args.padding_idx, -1);
    if (args.padding_idx < 0 && args.padding_idx != GPUNN_ZERO) padding += weight_dim[0];
    if (args.padding_idx != 0 && (padding < 0 || padding >= weight_dim[0]))
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "padding_idx is %d, but there are %lld rows; use -%lld to %lld",
                             args.padding_idx, (long long)weight_dim[0], (long long)weight_dim[0], (long long)weight_dim[0] - 1);
    gpunn_tensor *operands[] = {tokens, args.weight};
    if (args.weight == NULL) {
        operands[1] = gpunn__layer_weight(&call, GPUNN__PARAMETER, "weight", 2, weight_dim, GPUNN_INIT_NORMAL, 0);
        if (operands[1] == NULL) return NULL;
        operands[1]->padding = padding + 1;
    }
    attr.ignore_index = padding;
    memcpy(dim, tokens->dim, sizeof dim);
    dim[tokens->rank] = weight_dim[1];
    return gpunn__node(&call, GPUNN_OP_EMBEDDING, &attr, operands, 2, GPUNN_F32, tokens->rank + 1, dim);
}

/* x must be [n, channels, ...] with so many spatial axes, all but n of fixed sizes. */
static bool gpunn__has_axes(const gpunn__call *call, const gpunn_tensor *x, int axes)
{
    static const char *const layouts[] = {"[n, channels, length]", "[n, channels, height, width]",
                                          "[n, channels, depth, height, width]"};
    return gpunn__has_rank(call, x, 2 + axes, 2 + axes, layouts[axes - 1]) && gpunn__axes_are_fixed(call, x, 1, 1 + axes);
}

/* Resolves one setting of a window of so many axes: each[i], else all, else otherwise[i]; lowest: the least allowed. */
static bool gpunn__window_setting(const gpunn__call *call, int axes, const char *one, const char *many, int all, const int *each,
                                  const int *otherwise, int lowest, int *result)
{
    for (int i = axes; i < 3; i++) {
        if (each[i] == 0) continue;
        (void)gpunn__refuse(call, GPUNN_ERR_ARGUMENT, "%s[%d] is set, but the window has %d ax%s; leave it out", many, i, axes,
                            axes == 1 ? "is" : "es");
        return false;
    }
    for (int i = 0; i < axes; i++) {
        result[i] = each[i] ? gpunn__int_setting(each[i], 0) : gpunn__int_setting(all, otherwise[i]);
        if (result[i] >= lowest) continue;
        (void)gpunn__refuse(call, GPUNN_ERR_ARGUMENT, "%s is %d; set .%s, or .%s for each axis, to %d or more", one, result[i],
                            one, many, lowest);
        return false;
    }
    return true;
}

/* The spatial sizes dim[2], ... of the result of a window that slides over x [n, c, ...]. */
static bool gpunn__window_sizes(const gpunn__call *call, const gpunn_tensor *x, const gpunn_attributes *attr, int64_t *dim)
{
    for (int i = 0; i < x->rank - 2; i++) {
        int64_t padding = attr->padding[i], dilation = attr->dilation[i], kernel = attr->kernel[i];
        dim[2 + i] = gpunn__windows(x->dim[2 + i], kernel, attr->stride[i], padding, dilation, attr->ceil_mode);
        if (dim[2 + i] > 0) continue;
        char text[128];
        (void)gpunn__refuse(call, GPUNN_ERR_SHAPE,
                            "the window spans %lld along axis %d, but the padded input only %lld (input %s, kernel %d, dilation "
                            "%d, padding %d); use a smaller kernel or more padding",
                            (long long)(dilation * (kernel - 1) + 1), 2 + i, (long long)(x->dim[2 + i] + 2 * padding),
                            gpunn__shape_text(x, text), attr->kernel[i], attr->dilation[i], attr->padding[i]);
        return false;
    }
    return true;
}

static const int gpunn__zeros[3] = {0, 0, 0}, gpunn__ones[3] = {1, 1, 1};

/* The spatial sizes dim[2], ... of the result of a transposed convolution of x [n, c, ...]. */
static bool gpunn__transposed_sizes(const gpunn__call *call, const gpunn_tensor *x, const gpunn_attributes *attr,
                                    const int *output_padding, int64_t *dim)
{
    for (int i = 0; i < x->rank - 2; i++) {
        int64_t span = (int64_t)attr->dilation[i] * (attr->kernel[i] - 1) + 1, padding = attr->padding[i];
        if (output_padding[i] >= attr->stride[i] && output_padding[i] >= attr->dilation[i]) {
            (void)gpunn__refuse(call, GPUNN_ERR_ARGUMENT,
                                "output_padding is %d along axis %d; it must be less than the stride, %d, or the dilation, %d",
                                output_padding[i], 2 + i, attr->stride[i], attr->dilation[i]);
            return false;
        }
        dim[2 + i] = (x->dim[2 + i] - 1) * attr->stride[i] + span - 2 * padding + output_padding[i];
        if (dim[2 + i] > 0) continue;
        char text[128];
        (void)gpunn__refuse(call, GPUNN_ERR_SHAPE,
                            "the padding, %d, leaves nothing along axis %d (input %s, kernel %d, dilation %d, stride %d); use a "
                            "smaller padding",
                            attr->padding[i], 2 + i, gpunn__shape_text(x, text), attr->kernel[i], attr->dilation[i],
                            attr->stride[i]);
        return false;
    }
    return true;
}

static gpunn_tensor *gpunn__conv_node(gpunn_op op, gpunn_tensor *x, const char *name, const gpunn_conv_args *args)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    const int        axes = gpunn__conv_axes(op);
    const bool       transposed = gpunn__is_transposed(op);
    int              output_padding[3];
    if (!gpunn__begin_layer(&call, gpunn_op_name(op), name, x) || !gpunn__has_axes(&call, x, axes) ||
        !gpunn__window_setting(&call, axes, "kernel_size", "kernel_shape", args->kernel_size, args->kernel_shape, gpunn__zeros, 1,
                               attr.kernel) ||
        !gpunn__window_setting(&call, axes, "stride", "strides", args->stride, args->strides, gpunn__ones, 1, attr.stride) ||
        !gpunn__window_setting(&call, axes, "padding", "paddings", args->padding, args->paddings, gpunn__zeros, 0,
                               attr.padding) ||
        !gpunn__window_setting(&call, axes, "dilation", "dilations", args->dilation, args->dilations, gpunn__ones, 1,
                               attr.dilation) ||
        !gpunn__window_setting(&call, axes, "output_padding", "output_paddings", args->output_padding, args->output_paddings,
                               gpunn__zeros, 0, output_padding))
        return NULL;
    for (int i = 0; i < axes; i++)
        if (output_padding[i] && !transposed)
            return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT,
                                 "output_padding is %d, but only transposed convolutions have one; leave it out",
                                 output_padding[i]);
    attr.groups = gpunn__int_setting(args->groups, 1);
    if (args->out_channels < 1)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "out_channels is %d; set .out_channels to 1 or more", args->out_channels);
    if (attr.groups < 1 || x->dim[1] % attr.groups != 0 || args->out_channels % attr.groups != 0)
        return gpunn__refuse(
            &call, GPUNN_ERR_ARGUMENT,
            "groups is %d, but the input has %d channels and out_channels is %d; it must be 1 or more and divide both",
            attr.groups, (int)x->dim[1], args->out_channels);
    int64_t dim[5], weight_dim[5];
    dim[0] = x->dim[0];
    dim[1] = args->out_channels;
    weight_dim[0] = transposed ? x->dim[1] : dim[1];
    weight_dim[1] = (transposed ? dim[1] : x->dim[1]) / attr.groups;
    for (int i = 0; i < axes; i++) weight_dim[2 + i] = attr.kernel[i];
    if (!(transposed ? gpunn__transposed_sizes(&call, x, &attr, output_padding, dim) : gpunn__window_sizes(&call, x, &attr, dim)))
        return NULL;
    return gpunn__affine(&call, op, &attr, x, NULL, x->rank, weight_dim, !args->no_bias, dim[1], dim);
}

GPUNN_API gpunn_tensor *gpunn_conv1d_(gpunn_tensor *x, const char *name, gpunn_conv_args args)
{
    return gpunn__conv_node(GPUNN_OP_CONV1D, x, name, &args);
}

GPUNN_API gpunn_tensor *gpunn_conv2d_(gpunn_tensor *x, const char *name, gpunn_conv_args args)
{
    return gpunn__conv_node(GPUNN_OP_CONV2D, x, name, &args);
}

GPUNN_API gpunn_tensor *gpunn_conv3d_(gpunn_tensor *x, const char *name, gpunn_conv_args args)
{
    return gpunn__conv_node(GPUNN_OP_CONV3D, x, name, &args);
}

GPUNN_API gpunn_tensor *gpunn_conv_transpose1d_(gpunn_tensor *x, const char *name, gpunn_conv_args args)
{
    return gpunn__conv_node(GPUNN_OP_CONV_TRANSPOSE1D, x, name, &args);
}

GPUNN_API gpunn_tensor *gpunn_conv_transpose2d_(gpunn_tensor *x, const char *name, gpunn_conv_args args)
{
    return gpunn__conv_node(GPUNN_OP_CONV_TRANSPOSE2D, x, name, &args);
}

GPUNN_API gpunn_tensor *gpunn_conv_transpose3d_(gpunn_tensor *x, const char *name, gpunn_conv_args args)
{
    return gpunn__conv_node(GPUNN_OP_CONV_TRANSPOSE3D, x, name, &args);
}

/* The node of a pool, attr NULL where it is adaptive; dim: of the result. A row is an image of height 1. */
static gpunn_tensor *gpunn__pool_result(const gpunn__call *call, gpunn_op op, const gpunn_attributes *attr, gpunn_tensor *x,
                                        const int64_t *dim)
{
    if (x->rank > 3) return gpunn__node(call, op, attr, &x, 1, GPUNN_F32, x->rank, dim);
    int64_t          image[4] = {x->dim[0], x->dim[1], 1, x->dim[2]}, result[4] = {dim[0], dim[1], 1, dim[2]};
    gpunn_attributes flat = gpunn__no_attributes();
    if (attr) {
        flat = *attr;
        flat.kernel[1] = attr->kernel[0], flat.stride[1] = attr->stride[0], flat.padding[1] = attr->padding[0];
        flat.kernel[0] = flat.stride[0] = 1, flat.padding[0] = 0;
    }
    gpunn_tensor *y = gpunn__node(call, GPUNN_OP_RESHAPE, NULL, &x, 1, GPUNN_F32, 4, image);
    if (y) y = gpunn__node(call, op, &flat, &y, 1, GPUNN_F32, 4, result);
    if (y) y = gpunn__node(call, GPUNN_OP_RESHAPE, NULL, &y, 1, GPUNN_F32, 3, dim);
    return y ? y : gpunn__undo(call);
}

static gpunn_tensor *gpunn__pool_node(const char *name, gpunn_op op, int axes, gpunn_tensor *x, const gpunn_pool_args *args)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_x(&call, name, NULL, x, true) || !gpunn__has_axes(&call, x, axes) ||
        !gpunn__window_setting(&call, axes, "kernel_size", "kernel_shape", args->kernel_size, args->kernel_shape, gpunn__zeros, 1,
                               attr.kernel) ||
        !gpunn__window_setting(&call, axes, "stride", "strides", args->stride, args->strides, attr.kernel, 1, attr.stride) ||
        !gpunn__window_setting(&call, axes, "padding", "paddings", args->padding, args->paddings, gpunn__zeros, 0, attr.padding))
        return NULL;
    if (gpunn__is_max_pool(op) && args->count_exclude_pad)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, ".count_exclude_pad is not used by this pool; leave it out");
    attr.groups = 1;
    attr.ceil_mode = args->ceil_mode;
    attr.count_exclude_pad = args->count_exclude_pad;
    for (int i = 0; i < axes; i++) {
        attr.dilation[i] = 1;
        if (attr.padding[i] > attr.kernel[i] / 2)
            return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT,
                                 "padding is %d, more than half of the kernel's %d; use a smaller padding", attr.padding[i],
                                 attr.kernel[i]);
    }
    int64_t dim[5];
    memcpy(dim, x->dim, sizeof dim);
    return gpunn__window_sizes(&call, x, &attr, dim) ? gpunn__pool_result(&call, op, &attr, x, dim) : NULL;
}

#define GPUNN__X(name, ENUM, axes)                                                 \
    GPUNN_API gpunn_tensor *gpunn_##name##_(gpunn_tensor *x, gpunn_pool_args args) \
    {                                                                              \
        return gpunn__pool_node(#name, GPUNN_OP_##ENUM, axes, x, &args);           \
    }
GPUNN__X(max_pool1d, MAX_POOL2D, 1)
GPUNN__X(max_pool2d, MAX_POOL2D, 2)
GPUNN__X(max_pool3d, MAX_POOL3D, 3)
GPUNN__X(avg_pool1d, AVG_POOL2D, 1)
GPUNN__X(avg_pool2d, AVG_POOL2D, 2)
GPUNN__X(avg_pool3d, AVG_POOL3D, 3)
#undef GPUNN__X

static gpunn_tensor *gpunn__adaptive_pool(const char *name, gpunn_op op, int axes, gpunn_tensor *x, int first, int second,
                                          int third)
{
    gpunn__call call;
    const int   out[3] = {first, second, third};
    if (!gpunn__begin_x(&call, name, NULL, x, true) || !gpunn__has_axes(&call, x, axes)) return NULL;
    int64_t dim[5];
    memcpy(dim, x->dim, sizeof dim);
    for (int i = 0; i < axes; i++) {
        if (out[i] < 1)
            return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "the result's size along axis %d is %d; it must be 1 or more", 2 + i,
                                 out[i]);
        dim[2 + i] = out[i];
    }
    return gpunn__pool_result(&call, op, NULL, x, dim);
}

GPUNN_API gpunn_tensor *gpunn_adaptive_max_pool1d(gpunn_tensor *x, int out)
{
    return gpunn__adaptive_pool("adaptive_max_pool1d", GPUNN_OP_ADAPTIVE_MAX_POOL2D, 1, x, out, 0, 0);
}

GPUNN_API gpunn_tensor *gpunn_adaptive_max_pool2d(gpunn_tensor *x, int out_h, int out_w)
{
    return gpunn__adaptive_pool("adaptive_max_pool2d", GPUNN_OP_ADAPTIVE_MAX_POOL2D, 2, x, out_h, out_w, 0);
}

GPUNN_API gpunn_tensor *gpunn_adaptive_max_pool3d(gpunn_tensor *x, int out_d, int out_h, int out_w)
{
    return gpunn__adaptive_pool("adaptive_max_pool3d", GPUNN_OP_ADAPTIVE_MAX_POOL3D, 3, x, out_d, out_h, out_w);
}

GPUNN_API gpunn_tensor *gpunn_adaptive_avg_pool1d(gpunn_tensor *x, int out)
{
    return gpunn__adaptive_pool("adaptive_avg_pool1d", GPUNN_OP_ADAPTIVE_AVG_POOL2D, 1, x, out, 0, 0);
}

GPUNN_API gpunn_tensor *gpunn_adaptive_avg_pool2d(gpunn_tensor *x, int out_h, int out_w)
{
    return gpunn__adaptive_pool("adaptive_avg_pool2d", GPUNN_OP_ADAPTIVE_AVG_POOL2D, 2, x, out_h, out_w, 0);
}

GPUNN_API gpunn_tensor *gpunn_adaptive_avg_pool3d(gpunn_tensor *x, int out_d, int out_h, int out_w)
{
    return gpunn__adaptive_pool("adaptive_avg_pool3d", GPUNN_OP_ADAPTIVE_AVG_POOL3D, 3, x, out_d, out_h, out_w);
}

GPUNN_API gpunn_tensor *gpunn_grid_sample_(gpunn_tensor *x, gpunn_tensor *grid, gpunn_grid_args args)
{
    static const char *const names[] = {"x", "grid"};
    gpunn_tensor            *operands[] = {x, grid};
    gpunn__call              call;
    gpunn_attributes         attr = gpunn__no_attributes();
    char                     one[128], other[128];
    if (!gpunn__begin(&call, "grid_sample", NULL, names, operands, 2, 2) ||
        !gpunn__has_rank(&call, x, 4, 5, "[n, channels, height, width] or [n, channels, depth, height, width]") ||
        !gpunn__axes_are_fixed(&call, x, 1, x->rank - 1))
        return NULL;
    if (grid->rank != x->rank || grid->dim[0] != x->dim[0] || grid->dim[x->rank - 1] != x->rank - 2)
        return gpunn__refuse(&call, GPUNN_ERR_SHAPE, "x is %s and grid %s; the grid of %s must have as many samples, [n, %s%d]",
                             gpunn__shape_text(x, one), gpunn__shape_text(grid, other), x->rank == 4 ? "images" : "volumes",
                             x->rank == 4 ? "out_h, out_w, " : "out_d, out_h, out_w, ", x->rank - 2);
    if ((int)args.mode < 0 || args.mode > GPUNN_GRID_NEAREST || (int)args.padding_mode < 0 ||
        args.padding_mode > GPUNN_GRID_REFLECTION)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT,
                             "mode is %d and padding_mode %d; use one of gpunn_grid_mode and one of gpunn_grid_padding",
                             (int)args.mode, (int)args.padding_mode);
    int64_t cells;
    int     batches;
    if (!gpunn__measure(x->rank - 2, x->dim + 2, &cells, &batches) || cells > 1 << 30)
        return gpunn__refuse(&call, GPUNN_ERR_SHAPE, "a channel of x %s has more than 2^30 cells; use smaller sizes",
                             gpunn__shape_text(x, one));
    int64_t dim[5];
    memcpy(dim, x->dim, 2 * sizeof *dim);
    memcpy(dim + 2, grid->dim + 1, (size_t)(x->rank - 2) * sizeof *dim);
    attr.mode = (int)args.mode;
    attr.padding_mode = (int)args.padding_mode;
    attr.align_corners = args.align_corners;
    return gpunn__node(&call, GPUNN_OP_GRID_SAMPLE, &attr, operands, 2, GPUNN_F32, x->rank, dim);
}

GPUNN_API gpunn_tensor *gpunn_affine_grid(gpunn_tensor *theta, gpunn_shape size, bool align_corners)
{
    static const char *const names[] = {"theta"};
    gpunn__call              call;
    gpunn_attributes         attr = gpunn__no_attributes();
    char                     one[128], other[128];
    if (!gpunn__begin(&call, "affine_grid", NULL, names, &theta, 1, 1)) return NULL;
    int rank = gpunn__rank_of(&call, &size, 0);
    if (rank < 0) return NULL;
    if ((rank != 2 && rank != 3) || theta->rank != 3 || theta->dim[1] != rank || theta->dim[2] != rank + 1)
        return gpunn__refuse(&call, GPUNN_ERR_SHAPE,
                             "theta is %s and size %s; [n, 2, 3] and two sizes or [n, 3, 4] and three are needed",
                             gpunn__shape_text(theta, one), gpunn__dims_text(rank, size.dim, other));
    int64_t dim[5];
    dim[0] = theta->dim[0];
    memcpy(dim + 1, size.dim, (size_t)rank * sizeof *dim);
    dim[rank + 1] = rank;
    attr.align_corners = align_corners;
    return gpunn__node(&call, GPUNN_OP_AFFINE_GRID, &attr, &theta, 1, GPUNN_F32, rank + 2, dim);
}

static gpunn_tensor *gpunn__batch_norm_node(const char *op, gpunn_tensor *x, const char *name, const gpunn_batch_norm_args *args,
                                            int lowest_rank, int highest_rank, const char *layout)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_layer(&call, op, name, x) || !gpunn__has_rank(&call, x, lowest_rank, highest_rank, layout) ||
        !gpunn__axes_are_fixed(&call, x, 1, 1))
        return NULL;
    attr.eps = gpunn__float_setting(args->eps, 1e-5f);
    attr.momentum = gpunn__float_setting(args->momentum, 0.1f);
    if (!(attr.eps > 0) || !isfinite(attr.eps))
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "eps is %g; use a positive number", (double)attr.eps);
    if (!(attr.momentum >= 0 && attr.momentum <= 1))
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "momentum is %g; use a number from 0 to 1", (double)attr.momentum);
    static const struct {
        const char *suffix;
        float       value;
        gpunn__kind kind;
    } parts[4] = {{"weight", 1, GPUNN__PARAMETER},
                  {"bias", 0, GPUNN__PARAMETER},
                  {"running_mean", 0, GPUNN__BUFFER},
                  {"running_var", 1, GPUNN__BUFFER}};
    gpunn_tensor *operands[5] = {x, NULL, NULL, NULL, NULL};
    for (int i = args->no_affine ? 2 : 0; i < 4; i++) {
        operands[1 + i] = gpunn__layer_weight(&call, parts[i].kind, parts[i].suffix, 1, &x->dim[1], GPUNN_INIT_CONSTANT,
                                              parts[i].value);
        if (operands[1 + i] == NULL) return NULL;
    }
    return gpunn__node(&call, GPUNN_OP_BATCH_NORM, &attr, operands, 5, GPUNN_F32, x->rank, x->dim);
}

GPUNN_API gpunn_tensor *gpunn_batch_norm1d_(gpunn_tensor *x, const char *name, gpunn_batch_norm_args args)
{
    return gpunn__batch_norm_node("batch_norm1d", x, name, &args, 2, 3, "[n, channels] or [n, channels, length]");
}

GPUNN_API gpunn_tensor *gpunn_batch_norm2d_(gpunn_tensor *x, const char *name, gpunn_batch_norm_args args)
{
    return gpunn__batch_norm_node("batch_norm2d", x, name, &args, 4, 4, "[n, channels, height, width]");
}

static gpunn_tensor *gpunn__layer_norm_node(gpunn_op op, gpunn_tensor *x, const char *name, const gpunn_layer_norm_args *args,
                                            float eps, bool bias)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    int              dims = gpunn__int_setting(args->dims, 1);
    char             text[128];
    if (!gpunn__begin_layer(&call, gpunn_op_name(op), name, x)) return NULL;
    if (dims < 1 || dims > x->rank)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "dims is %d, but x is %s; use a number from 1 to its rank, %d", dims,
                             gpunn__shape_text(x, text), x->rank);
    attr.axis = x->rank - dims;
    if (!gpunn__axes_are_fixed(&call, x, attr.axis, x->rank - 1)) return NULL;
    attr.eps = gpunn__float_setting(args->eps, eps);
    if (!(attr.eps > 0) || !isfinite(attr.eps))
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "eps is %g; use a positive number", (double)attr.eps);
    if (!bias && args->no_bias)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, ".no_bias is not used by this norm, which has none; leave it out");
    gpunn_tensor *operands[3] = {x, NULL, NULL};
    int           parts = args->no_affine ? 0 : bias && !args->no_bias ? 2 : 1;
    for (int i = 0; i < parts; i++) {
        operands[1 + i] = gpunn__layer_weight(&call, GPUNN__PARAMETER, i == 0 ? "weight" : "bias", dims, x->dim + attr.axis,
                                              GPUNN_INIT_CONSTANT, i == 0 ? 1.0f : 0.0f);
        if (operands[1 + i] == NULL) return NULL;
    }
    return gpunn__node(&call, op, &attr, operands, 3, GPUNN_F32, x->rank, x->dim);
}

GPUNN_API gpunn_tensor *gpunn_layer_norm_(gpunn_tensor *x, const char *name, gpunn_layer_norm_args args)
{
    return gpunn__layer_norm_node(GPUNN_OP_LAYER_NORM, x, name, &args, 1e-5f, true);
}

GPUNN_API gpunn_tensor *gpunn_rms_norm_(gpunn_tensor *x, const char *name, gpunn_layer_norm_args args)
{
    return gpunn__layer_norm_node(GPUNN_OP_RMS_NORM, x, name, &args, FLT_EPSILON, false);
}

GPUNN_API gpunn_tensor *gpunn_dropout(gpunn_tensor *x, float p)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "dropout", NULL, x, true)) return NULL;
    if (!(p >= 0 && p <= 1)) return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "p is %g; use a probability from 0 to 1", (double)p);
    gpunn_attributes attr = gpunn__no_attributes();
    attr.value[0] = p;
    attr.site = x->model->random_sites;
    gpunn_tensor *y = gpunn__node(&call, GPUNN_OP_DROPOUT, &attr, &x, 1, GPUNN_F32, x->rank, x->dim);
    if (y) x->model->random_sites++;
    return y;
}

GPUNN_API gpunn_tensor *gpunn_prelu(gpunn_tensor *x, const char *name, int num_parameters, float init)
{
    gpunn__call call;
    if (!gpunn__begin_layer(&call, "prelu", name, x)) return NULL;
    char    text[128];
    int64_t count = gpunn__int_setting(num_parameters, 1);
    init = gpunn__float_setting(init, 0.25f);
    if (count != 1 && (x->rank < 2 || x->dim[1] != count))
        return gpunn__refuse(&call, GPUNN_ERR_SHAPE, "num_parameters is %d, but must be 1 or the channels of axis 1 (input %s)",
                             (int)count, gpunn__shape_text(x, text));
    if (!isfinite(init)) return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "init is %g; use a finite number", (double)init);
    gpunn_tensor *weight = gpunn__layer_weight(&call, GPUNN__PARAMETER, "weight", 1, &count, GPUNN_INIT_CONSTANT, init);
    if (weight && count > 1 && x->rank > 2) {
        gpunn_shape column = {{count}}; /* [channels, 1, ...]: broadcasts along axis 1 */
        for (int i = 2; i < x->rank; i++) column.dim[i - 1] = 1;
        weight = gpunn_reshape(weight, column);
    }
    gpunn_tensor *y = weight ? gpunn_parametric_relu(x, weight) : NULL;
    return gpunn__set_layer(&call, y);
}

/* ---- shapes ---------------------------------------------------------------------------------------------------------- */
GPUNN_API gpunn_tensor *gpunn_reshape(gpunn_tensor *x, gpunn_shape shape)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "reshape", NULL, x, false)) return NULL;
    int     rank = gpunn__rank_of(&call, &shape, 2), power = 0, wanted_power = 0;
    int64_t factor = 0, wanted_factor = 0;
    if (rank < 0) return NULL;
    if (!gpunn__measure(x->rank, x->dim, &factor, &power) || !gpunn__measure(rank, shape.dim, &wanted_factor, &wanted_power) ||
        factor != wanted_factor || power != wanted_power) {
        char from[128], to[128];
        return gpunn__refuse(&call, GPUNN_ERR_SHAPE,
                             "%s does not hold as many elements as %s; GPUNN_BATCH there is the batch, not what is left over",
                             gpunn__dims_text(rank, shape.dim, to), gpunn__shape_text(x, from));
    }
    return gpunn__node(&call, GPUNN_OP_RESHAPE, NULL, &x, 1, x->dtype, rank, shape.dim);
}

GPUNN_API gpunn_tensor *gpunn_flatten(gpunn_tensor *x)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "flatten", NULL, x, false) || !gpunn__has_rank(&call, x, 2, GPUNN_MAX_RANK, "[n, ...]"))
        return NULL;
    int64_t dim[2];
    int     power;
    dim[0] = x->dim[0];
    (void)gpunn__measure(x->rank - 1, x->dim + 1, &dim[1], &power); /* x is within the limit */
    if (power > 1) {
        char text[128];
        return gpunn__refuse(&call, GPUNN_ERR_SHAPE,
                             "the axes behind the first hold the batch %d times (x %s); use gpunn_reshape", power,
                             gpunn__shape_text(x, text));
    }
    if (power == 1) dim[1] = -dim[1];
    return gpunn__node(&call, GPUNN_OP_RESHAPE, NULL, &x, 1, x->dtype, 2, dim);
}

/* An axis of x counted from 0, or -1 after an error. */
static int gpunn__axis_of(const gpunn__call *call, const gpunn_tensor *x, int axis)
{
    if (axis >= -x->rank && axis < x->rank) return axis < 0 ? axis + x->rank : axis;
    char text[128];
    if (x->rank == 0)
        (void)gpunn__refuse(call, GPUNN_ERR_ARGUMENT, "x is a scalar, which has no axes");
    else
        (void)gpunn__refuse(call, GPUNN_ERR_ARGUMENT, "axis %d is not one of %s; use %d to %d", axis, gpunn__shape_text(x, text),
                            -x->rank, x->rank - 1);
    return -1;
}

/* Resolves a list of different axes of x; their number, or -1 after an error. */
static int gpunn__axis_list(const gpunn__call *call, const gpunn_tensor *x, const gpunn_axes *axes, int *order)
{
    int      count = 0;
    uint32_t seen = 0;
    for (; count <= GPUNN_MAX_RANK && axes->axis[count] != GPUNN_END; count++) {
        int axis = gpunn__axis_of(call, x, axes->axis[count]);
        if (axis < 0) return -1;
        if (seen >> axis & 1) {
            (void)gpunn__refuse(call, GPUNN_ERR_ARGUMENT, "axis %d is listed twice; name each axis once", axis);
            return -1;
        }
        seen |= 1u << axis;
        order[count] = axis;
    }
    return count;
}

GPUNN_API gpunn_tensor *gpunn_permute(gpunn_tensor *x, gpunn_axes order)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_x(&call, "permute", NULL, x, true)) return NULL;
    int count = gpunn__axis_list(&call, x, &order, attr.order);
    if (count < 0) return NULL;
    char text[128];
    if (count != x->rank)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "%d axes are listed for %s; list each of its %d", count,
                             gpunn__shape_text(x, text), x->rank);
    int64_t dim[GPUNN_MAX_RANK];
    for (int i = 0; i < count; i++) dim[i] = x->dim[attr.order[i]];
    return gpunn__node(&call, GPUNN_OP_PERMUTE, &attr, &x, 1, GPUNN_F32, count, dim);
}

GPUNN_API gpunn_tensor *gpunn_concat(gpunn_tensor *const *tensors, int count, int axis)
{
    gpunn__call call = gpunn__call_of(NULL, "concat", NULL);
    if (count < 1 || count > GPUNN_MAX_OPERANDS)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "%d tensors are given; 1 to %d can be joined at once", count,
                             GPUNN_MAX_OPERANDS);
    if (!gpunn__given(&call, tensors, "tensors") || !gpunn__begin(&call, "concat", NULL, NULL, tensors, count, count))
        return NULL;
    const gpunn_tensor *first = tensors[0];
    gpunn_attributes    attr = gpunn__no_attributes();
    if ((attr.axis = gpunn__axis_of(&call, first, axis)) < 0) return NULL;
    int64_t dim[GPUNN_MAX_RANK];
    memcpy(dim, first->dim, sizeof dim);
    for (int i = 1; i < count; i++) {
        const gpunn_tensor *t = tensors[i];
        bool                fits = t->rank == first->rank;
        for (int j = 0; fits && j < t->rank; j++)
            fits = j == attr.axis ? (t->dim[j] < 0) == (first->dim[j] < 0) : t->dim[j] == first->dim[j];
        if (!fits) {
            char one[128], other[128];
            return gpunn__refuse(
                &call, GPUNN_ERR_SHAPE,
                "tensors[0] is %s and tensors[%d] %s; they may differ only along axis %d, where all or none must be the batch",
                gpunn__shape_text(first, one), i, gpunn__shape_text(t, other), attr.axis);
        }
        dim[attr.axis] += t->dim[attr.axis]; /* 64 times the limit fits */
    }
    return gpunn__node(&call, GPUNN_OP_CONCAT, &attr, tensors, count, GPUNN_F32, first->rank, dim);
}

/* One index of a Python slice: negative ones count from the end, all are clamped. */
static int64_t gpunn__slice_index(int64_t index, int64_t size)
{
    if (index < 0) index += size;
    return index < 0 ? 0 : index > size ? size : index;
}

GPUNN_API gpunn_tensor *gpunn_slice(gpunn_tensor *x, int axis, int64_t start, int64_t end, int64_t step)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    char             text[128];
    if (!gpunn__begin_x(&call, "slice", NULL, x, true) || (attr.axis = gpunn__axis_of(&call, x, axis)) < 0) return NULL;
    int64_t size = x->dim[attr.axis];
    if (size < 0)
        return gpunn__refuse(&call, GPUNN_ERR_SHAPE, "axis %d of %s is the batch, which cannot be cut; choose another axis",
                             attr.axis, gpunn__shape_text(x, text));
    if (step < 1) return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "step is %lld; use 1 or more", (long long)step);
    attr.start = gpunn__slice_index(start, size);
    attr.step = step;
    int64_t length = gpunn__slice_index(end, size) - attr.start, dim[GPUNN_MAX_RANK];
    if (length < 1)
        return gpunn__refuse(&call, GPUNN_ERR_SHAPE, "%lld:%lld along axis %d of %s is empty; at least one element must be left",
                             (long long)start, (long long)end, attr.axis, gpunn__shape_text(x, text));
    memcpy(dim, x->dim, sizeof dim);
    dim[attr.axis] = (length - 1) / step + 1;
    return gpunn__node(&call, GPUNN_OP_SLICE, &attr, &x, 1, GPUNN_F32, x->rank, dim);
}

GPUNN_API gpunn_tensor *gpunn_pad_(gpunn_tensor *x, gpunn_pad_args args)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    char             text[128];
    int64_t          dim[GPUNN_MAX_RANK];
    if (!gpunn__begin_x(&call, "pad", NULL, x, true)) return NULL;
    for (int i = 0; i < GPUNN_MAX_RANK; i++) {
        int64_t before = args.before[i], after = args.after[i];
        if (before == GPUNN_ZERO) before = 0;
        if (after == GPUNN_ZERO) after = 0;
        if (before < 0 || after < 0 || before > GPUNN__MAX_COUNT || after > GPUNN__MAX_COUNT)
            return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT,
                                 "%lld before and %lld after axis %d are out of range; use 0 or more, gpunn_slice to cut",
                                 (long long)before, (long long)after, i);
        if ((before || after) && (i >= x->rank || x->dim[i] < 0))
            return gpunn__refuse(&call, GPUNN_ERR_SHAPE, "axis %d of %s %s; leave its padding 0", i, gpunn__shape_text(x, text),
                                 i >= x->rank ? "does not exist" : "is the batch");
        attr.before[i] = before;
        if (i < x->rank) dim[i] = x->dim[i] + before + after;
    }
    attr.value[0] = gpunn__float_setting(args.value, 0);
    return gpunn__node(&call, GPUNN_OP_PAD, &attr, &x, 1, GPUNN_F32, x->rank, dim);
}

GPUNN_API gpunn_tensor *gpunn_gather(gpunn_tensor *x, int axis, gpunn_tensor *index)
{
    static const char *const names[] = {"x", "index"};
    gpunn__call              call;
    gpunn_attributes         attr = gpunn__no_attributes();
    gpunn_tensor            *operands[] = {x, index};
    if (!gpunn__begin(&call, "gather", NULL, names, operands, 2, 1) || !gpunn__are_indices(&call, index, "index") ||
        (attr.axis = gpunn__axis_of(&call, x, axis)) < 0)
        return NULL;
    bool fits = index->rank == x->rank;
    for (int i = 0; fits && i < x->rank; i++)
        fits = i == attr.axis || index->dim[i] == x->dim[i] || (index->dim[i] > 0 && index->dim[i] < x->dim[i]);
    if (!fits) {
        char one[128], other[128];
        return gpunn__refuse(&call, GPUNN_ERR_SHAPE,
                             "x is %s and index %s; index needs as many axes, and none but axis %d may be larger than x's",
                             gpunn__shape_text(x, one), gpunn__shape_text(index, other), attr.axis);
    }
    for (int i = 0; operands[0] && i < x->rank; i++)
        if (i != attr.axis && index->dim[i] != x->dim[i]) operands[0] = gpunn_slice(operands[0], i, 0, index->dim[i], 1);
    if (operands[0] == NULL) return gpunn__undo(&call);
    return gpunn__node(&call, GPUNN_OP_GATHER, &attr, operands, 2, GPUNN_F32, index->rank, index->dim);
}

GPUNN_API gpunn_tensor *gpunn_cast(gpunn_tensor *x, gpunn_dtype dtype)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, "cast", NULL, x, false)) return NULL;
    if (dtype != GPUNN_F32 && dtype != GPUNN_I64 && dtype != GPUNN_I32 && dtype != GPUNN_U8 && dtype != GPUNN_BOOL)
        return gpunn__refuse(&call, GPUNN_ERR_DTYPE, "to %s is not possible; use f32, i64, i32, u8 or bool",
                             gpunn_dtype_name(dtype));
    if (dtype == x->dtype) return x;
    return gpunn__node(&call, GPUNN_OP_CAST, NULL, &x, 1, dtype, x->rank, x->dim);
}

/* ---- reductions ------------------------------------------------------------------------------------------------------ */
static gpunn_tensor *gpunn__reduce_node(const char *name, gpunn_op op, bool mean, gpunn_tensor *x, const gpunn_axes *axes,
                                        bool keepdim)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    int              list[GPUNN_MAX_RANK + 1];
    if (!gpunn__begin_x(&call, name, NULL, x, true)) return NULL;
    int count = gpunn__axis_list(&call, x, axes, list), rank = 0;
    if (count < 0) return NULL;
    attr.mean = mean;
    attr.axes = count == 0 ? (1u << x->rank) - 1 : 0; /* no axis: all of them */
    while (count > 0) attr.axes |= 1u << list[--count];
    int64_t dim[GPUNN_MAX_RANK];
    for (int i = 0; i < x->rank; i++)
        if (!(attr.axes >> i & 1))
            dim[rank++] = x->dim[i];
        else if (keepdim)
            dim[rank++] = 1;
    if (attr.axes == 0) op = GPUNN_OP_RESHAPE; /* a scalar is its own sum */
    return gpunn__node(&call, op, &attr, &x, 1, GPUNN_F32, rank, dim);
}

GPUNN_API gpunn_tensor *gpunn_sum(gpunn_tensor *x, gpunn_axes axes, bool keepdim)
{
    return gpunn__reduce_node("sum", GPUNN_OP_SUM, false, x, &axes, keepdim);
}

GPUNN_API gpunn_tensor *gpunn_mean(gpunn_tensor *x, gpunn_axes axes, bool keepdim)
{
    return gpunn__reduce_node("mean", GPUNN_OP_SUM, true, x, &axes, keepdim);
}

GPUNN_API gpunn_tensor *gpunn_max(gpunn_tensor *x, gpunn_axes axes, bool keepdim)
{
    return gpunn__reduce_node("max", GPUNN_OP_MAX, false, x, &axes, keepdim);
}

GPUNN_API gpunn_tensor *gpunn_argmax(gpunn_tensor *x, int axis, bool keepdim)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_x(&call, "argmax", NULL, x, true) || (attr.axis = gpunn__axis_of(&call, x, axis)) < 0) return NULL;
    int     rank = 0;
    int64_t dim[GPUNN_MAX_RANK];
    for (int i = 0; i < x->rank; i++)
        if (i != attr.axis || keepdim) dim[rank++] = i == attr.axis ? 1 : x->dim[i];
    return gpunn__node(&call, GPUNN_OP_ARGMAX, &attr, &x, 1, GPUNN_I64, rank, dim);
}

static gpunn_tensor *gpunn__axis_node(gpunn_op op, gpunn_tensor *x, int axis)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    if (!gpunn__begin_x(&call, gpunn_op_name(op), NULL, x, true) || (attr.axis = gpunn__axis_of(&call, x, axis)) < 0) return NULL;
    return gpunn__node(&call, op, &attr, &x, 1, GPUNN_F32, x->rank, x->dim);
}

GPUNN_API gpunn_tensor *gpunn_softmax(gpunn_tensor *x, int axis)
{
    return gpunn__axis_node(GPUNN_OP_SOFTMAX, x, axis);
}

GPUNN_API gpunn_tensor *gpunn_log_softmax(gpunn_tensor *x, int axis)
{
    return gpunn__axis_node(GPUNN_OP_LOG_SOFTMAX, x, axis);
}

GPUNN_API gpunn_tensor *gpunn_matmul_(gpunn_tensor *a, gpunn_tensor *b, gpunn_matmul_args args)
{
    gpunn__call      call;
    gpunn_attributes attr = gpunn__no_attributes();
    gpunn_tensor    *operands[] = {a, b};
    if (!gpunn__begin(&call, "matmul", NULL, gpunn__abc_names, operands, 2, 2)) return NULL;
    char text_a[128], text_b[128];
    (void)gpunn__shape_text(a, text_a);
    (void)gpunn__shape_text(b, text_b);
    if (a->rank < 2 || b->rank < 2)
        return gpunn__refuse(&call, GPUNN_ERR_SHAPE, "a is %s and b %s, but both need two axes or more; gpunn_reshape them",
                             text_a, text_b);
    int     rank = a->rank - 2;
    int64_t dim[GPUNN_MAX_RANK], m = a->dim[rank + args.transpose_a], k = a->dim[rank + !args.transpose_a];
    int64_t b_k = b->dim[b->rank - 2 + args.transpose_b], n = b->dim[b->rank - 2 + !args.transpose_b];
    if (k != b_k) {
        char one[32], other[32];
        return gpunn__refuse(&call, GPUNN_ERR_SHAPE, "a is %s%s and b %s%s: the sizes summed over, %s and %s, must be equal",
                             text_a, args.transpose_a ? " transposed" : "", text_b, args.transpose_b ? " transposed" : "",
                             gpunn__dim_text(k, one), gpunn__dim_text(b_k, other));
    }
    memcpy(dim, a->dim, sizeof dim);
    if (!gpunn__broadcast_dims(&call, "leading axes", &rank, dim, b->rank - 2, b->dim)) return NULL;
    dim[rank++] = m;
    dim[rank++] = n;
    attr.transpose_a = args.transpose_a;
    attr.transpose_b = args.transpose_b;
    return gpunn__node(&call, GPUNN_OP_MATMUL, &attr, operands, 2, GPUNN_F32, rank, dim);
}

/* ---- attention ------------------------------------------------------------------------------------------------------- */
static const char *const gpunn__attention_names[] = {"q", "k", "v"};

/* mask must be of a fitting dtype and broadcast to dim [n, heads, l, s]; NULL: there is none. */
static bool gpunn__attention_mask_fits(const gpunn__call *call, const gpunn_tensor *mask, const int64_t dim[4])
{
    if (mask == NULL) return true;
    if (!gpunn__operand(call, mask, ".mask", false)) return false;
    int     rank = 4;
    int64_t whole[GPUNN_MAX_RANK];
    char    one[128], other[128];
    memcpy(whole, dim, 4 * sizeof *dim);
    if (mask->dtype != GPUNN_BOOL && mask->dtype != GPUNN_F32) {
        (void)gpunn__refuse(call, GPUNN_ERR_DTYPE,
                            ".mask is %s, but must be bool (true: takes part) or f32 (added to the scores); gpunn_cast it",
                            gpunn_dtype_name(mask->dtype));
        return false;
    }
    if (!gpunn__broadcast_dims(call, "[n, heads, l, s] and .mask", &rank, whole, mask->rank, mask->dim)) return false;
    if (rank == 4 && memcmp(whole, dim, 4 * sizeof *dim) == 0) return true;
    (void)gpunn__refuse(call, GPUNN_ERR_SHAPE, ".mask %s is larger than [n, heads, l, s], here %s; it must broadcast to that",
                        gpunn__shape_text(mask, one), gpunn__dims_text(4, dim, other));
    return false;
}

GPUNN_API gpunn_tensor *gpunn_scaled_dot_product_attention_(gpunn_tensor *q, gpunn_tensor *k, gpunn_tensor *v,
                                                            gpunn_attention_args args)
{
    gpunn_tensor *operands[4] = {q, k, v, args.mask};
    const bool    packed = q && q->rank == 5 && k == NULL && v == NULL, last = packed || args.heads_last;
    const int     head = last ? 2 : 1, row = last ? 1 : 2;
    gpunn__call   call;
    if (!gpunn__begin(&call, "scaled_dot_product_attention", NULL, gpunn__attention_names, operands, packed ? 1 : 3,
                      packed ? 1 : 3))
        return NULL;
    char    text[3][128];
    int64_t part[3][4]; /* without the axis of 3 */
    for (int i = 0; i < 3; i++) {
        const gpunn_tensor *t = packed ? q : operands[i];
        (void)gpunn__shape_text(t, text[i]);
        if (t->rank != (packed ? 5 : 4) || (packed && t->dim[2] != 3))
            return gpunn__refuse(&call, GPUNN_ERR_SHAPE,
                                 "%s is %s, but [n, %s, e] is needed, or [n, rows, 3, heads, e] for all; "
                                 "gpunn_reshape it",
                                 gpunn__attention_names[i], text[i], last ? "rows, heads" : "heads, rows");
        for (int d = 0; d < 4; d++) part[i][d] = t->dim[packed && d > 1 ? d + 1 : d];
        if (part[i][head] < 1 || part[i][3] < 1 || part[i][head] > INT32_MAX || part[i][3] > INT32_MAX)
            return gpunn__refuse(&call, GPUNN_ERR_SHAPE, "%s is %s: heads and their size must be fixed, and below 2^31",
                                 gpunn__attention_names[i], text[i]);
    }
    if (part[0][0] != part[1][0] || part[1][0] != part[2][0] || part[0][3] != part[1][3] || part[1][row] != part[2][row] ||
        part[1][head] != part[2][head])
        return gpunn__refuse(&call, GPUNN_ERR_SHAPE,
                             "q is %s, k %s and v %s: n, the size of q's and k's heads and k's and v's "
                             "rows and heads must agree",
                             text[0], text[1], text[2]);
    if (part[0][head] != part[1][head] && (!args.enable_gqa || part[0][head] % part[1][head] != 0))
        return gpunn__refuse(&call, GPUNN_ERR_SHAPE, "q has %lld heads, k and v %lld; %s", (long long)part[0][head],
                             (long long)part[1][head],
                             args.enable_gqa ? "theirs must divide q's" : "set .enable_gqa to share them");
    const int64_t scores[4] = {part[0][0], part[0][head], part[0][row], part[1][row]};
    if (!gpunn__attention_mask_fits(&call, args.mask, scores)) return NULL;
    gpunn_attributes attr = gpunn__no_attributes();
    attr.value[0] = gpunn__float_setting(args.dropout_p, 0);
    attr.value[1] = gpunn__float_setting(args.scale, (float)(1 / sqrt((double)part[0][3])));
    if (!(attr.value[0] >= 0 && attr.value[0] <= 1))
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "dropout_p is %g; use a probability from 0 to 1", (double)attr.value[0]);
    if (!isfinite(attr.value[1]))
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "scale is %g; use a finite number", (double)attr.value[1]);
    attr.is_causal = args.is_causal;
    attr.heads_last = args.heads_last && !packed;
    attr.site = q->model->random_sites;
    part[0][3] = part[2][3];
    gpunn_tensor *y = gpunn__node(&call, GPUNN_OP_ATTENTION, &attr, operands, 4, GPUNN_F32, 4, part[0]);
    if (y && attr.value[0] > 0) q->model->random_sites++;
    return y;
}

/* ---- losses and metrics ---------------------------------------------------------------------------------------------- */
static const gpunn_axes gpunn__all_axes = {{GPUNN_END}};

static bool gpunn__shapes_are_equal(const gpunn__call *call, const gpunn_tensor *input, const gpunn_tensor *target)
{
    char one[128], other[128];
    if (input->rank == target->rank && memcmp(input->dim, target->dim, sizeof input->dim) == 0) return true;
    (void)gpunn__refuse(call, GPUNN_ERR_SHAPE,
                        "input %s and target %s differ, and nothing is broadcast here; gpunn_reshape one of them",
                        gpunn__shape_text(input, one), gpunn__shape_text(target, other));
    return false;
}

/* A factor of each element, broadcast to the input's shape; may be left out. */
static bool gpunn__loss_factor(const gpunn__call *call, const gpunn_tensor *factor, const char *name, const gpunn_tensor *input)
{
    if (factor == NULL) return true;
    if (!gpunn__operand(call, factor, name, true)) return false;
    int     rank = input->rank;
    int64_t dim[GPUNN_MAX_RANK];
    char    one[128], other[128];
    memcpy(dim, input->dim, sizeof dim);
    char pair[32];
    (void)snprintf(pair, sizeof pair, "input and %s", name);
    if (!gpunn__broadcast_dims(call, pair, &rank, dim, factor->rank, factor->dim)) return false;
    if (rank == input->rank && memcmp(dim, input->dim, (size_t)rank * sizeof *dim) == 0) return true;
    (void)gpunn__refuse(call, GPUNN_ERR_SHAPE, "%s %s is larger than the input %s; it must broadcast to that", name,
                        gpunn__shape_text(factor, one), gpunn__shape_text(input, other));
    return false;
}

static gpunn_tensor *gpunn__reduce_loss(gpunn_tensor *loss, gpunn_reduction reduction)
{
    if (loss == NULL || reduction == GPUNN_REDUCE_NONE) return loss;
    if (reduction == GPUNN_REDUCE_BATCHMEAN && loss->rank > 1) { /* the mean over axis 0 of each sample's sum */
        gpunn_axes inner = {{0}};
        for (int i = 1; i < loss->rank; i++) inner.axis[i - 1] = i;
        inner.axis[loss->rank - 1] = GPUNN_END;
        loss = gpunn_sum(loss, inner, false);
    }
    return reduction == GPUNN_REDUCE_SUM ? gpunn_sum(loss, gpunn__all_axes, false) : gpunn_mean(loss, gpunn__all_axes, false);
}

enum {
    GPUNN__TAKES_DELTA = 1,
    GPUNN__TAKES_BETA = 2,
    GPUNN__TAKES_WEIGHT = 4,
    GPUNN__TAKES_POS_WEIGHT = 8,
    GPUNN__TAKES_LOG_TARGET = 16
};

/* takes: the fields beside reduction that the loss reads; the others must be left out. */
static gpunn_tensor *gpunn__loss_node(const char *name, gpunn_op op, gpunn_tensor *input, gpunn_tensor *target,
                                      const gpunn_loss_args *args, int takes)
{
    const char   *stray = args->delta != 0 && !(takes & GPUNN__TAKES_DELTA)        ? "delta"
                          : args->beta != 0 && !(takes & GPUNN__TAKES_BETA)        ? "beta"
                          : args->weight && !(takes & GPUNN__TAKES_WEIGHT)         ? "weight"
                          : args->pos_weight && !(takes & GPUNN__TAKES_POS_WEIGHT) ? "pos_weight"
                          : args->log_target && !(takes & GPUNN__TAKES_LOG_TARGET) ? "log_target"
                                                                                   : NULL;
    float         value = takes & GPUNN__TAKES_DELTA ? gpunn__float_setting(args->delta, 1) : gpunn__float_setting(args->beta, 1);
    gpunn_tensor *operands[] = {input, target, args->pos_weight};
    gpunn__call   call;
    if (!gpunn__begin(&call, name, NULL, gpunn__loss_names, operands, 2, 2) || !gpunn__shapes_are_equal(&call, input, target))
        return NULL;
    if (stray) return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, ".%s is not used by this loss; leave it out", stray);
    if ((int)args->reduction < 0 || args->reduction > GPUNN_REDUCE_BATCHMEAN)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "reduction is %d; use one of gpunn_reduction", (int)args->reduction);
    if (!(value >= 0) || !isfinite(value) || (value == 0 && takes & GPUNN__TAKES_DELTA))
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, ".%s is %g; use a positive number",
                             takes & GPUNN__TAKES_DELTA ? "delta" : "beta", (double)value);
    if (!gpunn__loss_factor(&call, args->weight, ".weight", input) ||
        !gpunn__loss_factor(&call, args->pos_weight, ".pos_weight", input))
        return NULL;
    if (op == GPUNN_OP_SMOOTH_L1 && value == 0) op = GPUNN_OP_ABSOLUTE_ERROR;
    gpunn_tensor *loss = args->pos_weight ? gpunn_expr("(1 - y) * x - (1 + (z - 1) * y) * logsigmoid(x)", operands, 3)
                                          : gpunn__map_node(op, operands, gpunn__op_attribute_count(op) ? value : 0, 0);
    if (loss && args->weight) loss = gpunn_mul(loss, args->weight);
    loss = gpunn__reduce_loss(loss, args->reduction);
    return loss ? loss : gpunn__undo(&call);
}

GPUNN_API gpunn_tensor *gpunn_mse_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args)
{
    return gpunn__loss_node("mse_loss", GPUNN_OP_SQUARED_ERROR, input, target, &args, 0);
}

GPUNN_API gpunn_tensor *gpunn_l1_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args)
{
    return gpunn__loss_node("l1_loss", GPUNN_OP_ABSOLUTE_ERROR, input, target, &args, 0);
}

GPUNN_API gpunn_tensor *gpunn_huber_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args)
{
    return gpunn__loss_node("huber_loss", GPUNN_OP_HUBER, input, target, &args, GPUNN__TAKES_DELTA);
}

GPUNN_API gpunn_tensor *gpunn_smooth_l1_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args)
{
    return gpunn__loss_node("smooth_l1_loss", GPUNN_OP_SMOOTH_L1, input, target, &args, GPUNN__TAKES_BETA);
}

GPUNN_API gpunn_tensor *gpunn_bce_loss_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args)
{
    return gpunn__loss_node("bce_loss", GPUNN_OP_BINARY_CROSS_ENTROPY, input, target, &args, GPUNN__TAKES_WEIGHT);
}

GPUNN_API gpunn_tensor *gpunn_bce_with_logits_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args)
{
    return gpunn__loss_node("bce_with_logits", GPUNN_OP_BINARY_CROSS_ENTROPY_WITH_LOGITS, input, target, &args,
                            GPUNN__TAKES_WEIGHT | GPUNN__TAKES_POS_WEIGHT);
}

GPUNN_API gpunn_tensor *gpunn_kl_div_(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args)
{
    return gpunn__loss_node("kl_div", args.log_target ? GPUNN_OP_KL_DIVERGENCE_LOG : GPUNN_OP_KL_DIVERGENCE, input, target, &args,
                            GPUNN__TAKES_LOG_TARGET);
}

/* Opens a call on logits [n, classes, ...] and integer labels [n, ...]. */
static bool gpunn__begin_classes(gpunn__call *call, const char *op, gpunn_tensor *logits, gpunn_tensor *labels)
{
    gpunn_tensor *operands[] = {logits, labels};
    if (!gpunn__begin(call, op, NULL, gpunn__class_names, operands, 2, 1)) return false;
    char one[128], other[128];
    (void)gpunn__shape_text(logits, one);
    (void)gpunn__shape_text(labels, other);
    bool fits = logits->rank >= 2 && labels->rank == logits->rank - 1 && logits->dim[1] > 0;
    for (int i = 0; fits && i < labels->rank; i++) fits = labels->dim[i] == logits->dim[i ? i + 1 : 0];
    if (labels->dtype != GPUNN_I64 && labels->dtype != GPUNN_I32 && labels->dtype != GPUNN_U8)
        (void)gpunn__refuse(call, GPUNN_ERR_DTYPE, "labels is %s, but class numbers are needed; use i64, i32 or u8",
                            gpunn_dtype_name(labels->dtype));
    else if (!fits)
        (void)gpunn__refuse(call, GPUNN_ERR_SHAPE,
                            "logits %s and labels %s do not fit; [n, classes, ...] and [n, ...] are needed", one, other);
    else
        return true;
    return false;
}

static gpunn_tensor *gpunn__class_loss_node(const char *name, gpunn_op op, gpunn_tensor *logits, gpunn_tensor *labels,
                                            const gpunn_class_loss_args *args)
{
    gpunn__call call;
    if (!gpunn__begin_classes(&call, name, logits, labels)) return NULL;
    float smoothing = gpunn__float_setting(args->label_smoothing, 0);
    if (args->reduction != GPUNN_REDUCE_MEAN && args->reduction != GPUNN_REDUCE_SUM && args->reduction != GPUNN_REDUCE_NONE)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "reduction is %d; use GPUNN_REDUCE_MEAN, _SUM or _NONE",
                             (int)args->reduction);
    if (!(smoothing >= 0 && smoothing <= 1))
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, "label_smoothing is %g; use a number from 0 to 1", (double)smoothing);
    if (smoothing != 0 && op == GPUNN_OP_NLL)
        return gpunn__refuse(&call, GPUNN_ERR_ARGUMENT, ".label_smoothing is not used by this loss; leave it out");
    if (args->weight && !gpunn__operand(&call, args->weight, ".weight", true)) return NULL;
    if (args->weight && (args->weight->rank != 1 || args->weight->dim[0] != logits->dim[1])) {
        char text[128];
        return gpunn__refuse(&call, GPUNN_ERR_SHAPE, ".weight is %s, but one number for each of the %lld classes is needed",
                             gpunn__shape_text(args->weight, text), (long long)logits->dim[1]);
    }
    gpunn_attributes attr = gpunn__no_attributes();
    attr.reduction = args->reduction;
    attr.ignore_index = gpunn__int_setting(args->ignore_index, -100);
    attr.value[0] = smoothing;
    gpunn_tensor *operands[] = {logits, labels, args->weight};
    return gpunn__node(&call, op, &attr, operands, 3, GPUNN_F32, args->reduction == GPUNN_REDUCE_NONE ? labels->rank : 0,
                       labels->dim);
}

GPUNN_API gpunn_tensor *gpunn_cross_entropy_(gpunn_tensor *logits, gpunn_tensor *labels, gpunn_class_loss_args args)
{
    return gpunn__class_loss_node("cross_entropy", GPUNN_OP_CROSS_ENTROPY, logits, labels, &args);
}

GPUNN_API gpunn_tensor *gpunn_nll_loss_(gpunn_tensor *log_probabilities, gpunn_tensor *labels, gpunn_class_loss_args args)
{
    return gpunn__class_loss_node("nll_loss", GPUNN_OP_NLL, log_probabilities, labels, &args);
}

GPUNN_API gpunn_tensor *gpunn_accuracy(gpunn_tensor *logits, gpunn_tensor *labels)
{
    gpunn__call call;
    if (!gpunn__begin_classes(&call, "accuracy", logits, labels)) return NULL;
    gpunn_tensor *best = gpunn_argmax(logits, 1, false);
    gpunn_tensor *guess = best ? gpunn_cast(best, GPUNN_F32) : NULL, *truth = guess ? gpunn_cast(labels, GPUNN_F32) : NULL;
    gpunn_tensor *mean = gpunn__reduce_loss(truth ? gpunn_eq(guess, truth) : NULL, GPUNN_REDUCE_MEAN);
    return mean ? mean : gpunn__undo(&call);
}

GPUNN_API gpunn_tensor *gpunn_binary_accuracy(gpunn_tensor *prob, gpunn_tensor *target)
{
    gpunn_tensor *operands[] = {prob, target};
    gpunn__call   call;
    if (!gpunn__begin(&call, "binary_accuracy", NULL, gpunn__loss_names, operands, 2, 2) ||
        !gpunn__shapes_are_equal(&call, prob, target))
        return NULL;
    gpunn_tensor *mean = gpunn__reduce_loss(gpunn_expr("(x > 0.5) == (y > 0.5)", operands, 2), GPUNN_REDUCE_MEAN);
    return mean ? mean : gpunn__undo(&call);
}
/* ==== >>expr ========================================================================================================== *
 * gpunn_expr: a recursive descent over
 *     formula    = {name "=" choice ";"} choice
 *     choice     = any ["if" any "else" choice]
 *     any        = all {"or" all}
 *     all        = inverse {"and" inverse}
 *     inverse    = "not" inverse | comparison
 *     comparison = sum {("<" | "<=" | ">" | ">=" | "==" | "!=") sum}
 *     sum        = product {("+" | "-") product}
 *     product    = sign {("*" | "/") sign}
 *     sign       = "-" sign | (number | name | name "(" choice {"," choice} ")" | "(" choice ")") ["**" sign]
 * that appends nodes as it goes. Numbers are folded; one that meets a tensor becomes an attribute where that changes no bit, and
 * a scalar constant elsewhere. */
enum { GPUNN__EXPR_LENGTH = 4096, GPUNN__EXPR_DEPTH = 64, GPUNN__EXPR_ARGS = 8, GPUNN__EXPR_NAMES = 64 };

typedef struct gpunn__term {
    gpunn_tensor *tensor; /* NULL: the number */
    double        number;
} gpunn__term;

typedef struct gpunn__formula {
    gpunn__call call;
    const char *text, *at;
    int         depth, name_count;
    struct {
        const char *text;
        size_t      length;
        gpunn__term term;
    } names[GPUNN__EXPR_NAMES]; /* of two equal ones the later counts */
} gpunn__formula;

/* The first `length` bytes of a text, as far as they fit, without control characters. */
static void gpunn__expr_quote(char *out, size_t size, const char *text, size_t length)
{
    size_t n = 0;
    for (; n + 1 < size && n < length && text[n]; n++) out[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7f ? '?' : text[n];
    out[n] = 0;
}

/* Records an error at a place of the text; false. word: what stands there, for messages. */
static bool gpunn__expr_fail(const gpunn__formula *f, const char *at, const char *what, const char *word, size_t length)
{
    char text[200], shown[64];
    gpunn__expr_quote(text, sizeof text, f->text, SIZE_MAX);
    gpunn__expr_quote(shown, sizeof shown, word, length);
    (void)gpunn__refuse(&f->call, GPUNN_ERR_ARGUMENT, "%s%s%s%s at character %d of \"%s\"", what, shown[0] ? " '" : "", shown,
                        shown[0] ? "'" : "", (int)(at - f->text) + 1, text);
    return false;
}

static char gpunn__expr_peek(gpunn__formula *f)
{
    while (*f->at == ' ' || *f->at == '\t' || *f->at == '\n' || *f->at == '\r') f->at++;
    return *f->at;
}

static bool gpunn__expr_take(gpunn__formula *f, char symbol)
{
    if (gpunn__expr_peek(f) != symbol) return false;
    f->at++;
    return true;
}

static bool gpunn__expr_expect(gpunn__formula *f, char symbol, const char *what)
{
    return gpunn__expr_take(f, symbol) || gpunn__expr_fail(f, f->at, what, f->at, 0);
}

static bool gpunn__expr_float(const gpunn__formula *f, double number, float *result)
{
    *result = (float)number;
    return fabs(number) <= (double)FLT_MAX ||
           gpunn__expr_fail(f, f->at, "the number before this place is not finite as a float", "", 0);
}

/* The term as a tensor: numbers become scalar constants, equal ones of one expression the same. */
static gpunn_tensor *gpunn__expr_tensor(gpunn__formula *f, const gpunn__term *term)
{
    float        value;
    gpunn_model *model = f->call.model;
    if (term->tensor) return term->tensor;
    if (!gpunn__expr_float(f, term->number, &value)) return NULL;
    for (int i = f->call.mark; i < model->tensor_count; i++)
        if (model->tensors[i]->kind == GPUNN__CONSTANT && memcmp(model->tensors[i]->constant, &value, sizeof value) == 0)
            return model->tensors[i];
    gpunn_shape scalar = {{0}};
    return gpunn_constant(model, scalar, &value);
}

static bool gpunn__expr_apply(gpunn__formula *f, gpunn_op op, const gpunn__term *operands, float attribute1, float attribute2,
                              gpunn__term *result)
{
    gpunn_tensor *tensors[3];
    for (int i = 0; i < gpunn__op_arity(op); i++)
        if ((tensors[i] = gpunn__expr_tensor(f, &operands[i])) == NULL) return false;
    result->tensor = gpunn__map_node(op, tensors, attribute1, attribute2);
    return result->tensor != NULL;
}

/* The value of an op of two numbers; false: only a node computes it. */
static bool gpunn__expr_fold2(gpunn_op op, double a, double b, double *result)
{
    switch ((int)op) {
    case GPUNN_OP_ADD: *result = a + b; break;
    case GPUNN_OP_SUB: *result = a - b; break;
    case GPUNN_OP_MUL: *result = a * b; break;
    case GPUNN_OP_DIV: *result = a / b; break;
    case GPUNN_OP_POW: *result = pow(a, b); break;
    case GPUNN_OP_MAXIMUM: *result = a > b ? a : b; break;
    case GPUNN_OP_MINIMUM: *result = a < b ? a : b; break;
    case GPUNN_OP_LT: *result = a < b; break;
    case GPUNN_OP_LE: *result = a <= b; break;
    case GPUNN_OP_GT: *result = a > b; break;
    case GPUNN_OP_GE: *result = a >= b; break;
    case GPUNN_OP_EQ: *result = a == b; break;
    case GPUNN_OP_NE: *result = a != b; break;
    default: return false;
    }
    return true;
}

static bool gpunn__expr_fold1(gpunn_op op, double x, double *result)
{
    switch ((int)op) {
    case GPUNN_OP_ABS: *result = fabs(x); break;
    case GPUNN_OP_EXP: *result = exp(x); break;
    case GPUNN_OP_LOG: *result = log(x); break;
    case GPUNN_OP_SQRT: *result = sqrt(x); break;
    case GPUNN_OP_TANH: *result = tanh(x); break;
    default: return false;
    }
    return true;
}

/* result = a op b. */
static bool gpunn__expr_binary(gpunn__formula *f, gpunn_op op, gpunn__term a, gpunn__term b, gpunn__term *result)
{
    gpunn__term operands[2];
    operands[0] = a;
    operands[1] = b;
    result->tensor = NULL;
    if (a.tensor == NULL && b.tensor == NULL && gpunn__expr_fold2(op, a.number, b.number, &result->number)) return true;
    if (a.tensor && b.tensor) return gpunn__expr_apply(f, op, operands, 0, 0, result);
    float number, one_over;
    if (!gpunn__expr_float(f, a.tensor ? b.number : a.number, &number)) return false;
    one_over = 1 / number;
    int exponent;
    switch ((int)op) {
    case GPUNN_OP_SUB: /* a - 2 = a + -2; 2 - b = -b + 2 */
        if (b.tensor && !gpunn__expr_apply(f, GPUNN_OP_NEG, &b, 0, 0, &operands[1])) return false;
        if (a.tensor) number = -number;
        return gpunn__expr_apply(f, GPUNN_OP_ADD_SCALAR, &operands[b.tensor ? 1 : 0], number, 0, result);
    case GPUNN_OP_ADD: return gpunn__expr_apply(f, GPUNN_OP_ADD_SCALAR, a.tensor ? &a : &b, number, 0, result);
    case GPUNN_OP_MUL: return gpunn__expr_apply(f, GPUNN_OP_MUL_SCALAR, a.tensor ? &a : &b, number, 0, result);
    case GPUNN_OP_DIV: /* by a power of two whose inverse is exact too */
        if (a.tensor && fabsf(frexpf(number, &exponent)) == 0.5f && fabsf(one_over) >= FLT_MIN && fabsf(one_over) <= FLT_MAX)
            return gpunn__expr_apply(f, GPUNN_OP_MUL_SCALAR, &a, one_over, 0, result);
        if (b.tensor && number == 1) return gpunn__expr_apply(f, GPUNN_OP_RECIPROCAL, &b, 0, 0, result);
        break;
    case GPUNN_OP_POW:
        if (a.tensor && number == 2) return gpunn__expr_apply(f, GPUNN_OP_SQUARE, &a, 0, 0, result);
        if (a.tensor) return gpunn__expr_apply(f, GPUNN_OP_POW_SCALAR, &a, number, 0, result);
        break;
    default: break;
    }
    return gpunn__expr_apply(f, op, operands, 0, 0, result);
}

static bool gpunn__expr_choice(gpunn__formula *f, gpunn__term *result);

/* A decimal number, whatever the locale. */
static bool gpunn__expr_number(gpunn__formula *f, double *result)
{
    const char *start = f->at;
    double      mantissa = 0;
    int         digits = 0, scale = 0, exponent = 0;
    bool        point = false;
    for (; isdigit((unsigned char)*f->at) || (*f->at == '.' && !point); f->at++) {
        if (*f->at == '.') {
            point = true;
            continue;
        }
        digits++;
        mantissa = 10 * mantissa + (*f->at - '0');
        scale -= point;
    }
    if (digits && (*f->at == 'e' || *f->at == 'E')) {
        const char *mark = f->at++;
        bool        negative = *f->at == '-';
        if (*f->at == '-' || *f->at == '+') f->at++;
        if (!isdigit((unsigned char)*f->at)) return gpunn__expr_fail(f, mark, "the exponent has no digits", "", 0);
        for (; isdigit((unsigned char)*f->at); f->at++)
            if (exponent < 10000) exponent = 10 * exponent + (*f->at - '0');
        scale += negative ? -exponent : exponent;
    }
    if (digits == 0 || digits > 300 || isalnum((unsigned char)*f->at) || *f->at == '_' || *f->at == '.')
        return gpunn__expr_fail(f, start, "no number", start, (size_t)(f->at - start) + (*f->at != 0));
    /* In two steps, since 10^-scale alone may leave the range. */
    *result = scale < 0 ? mantissa / pow(10, -scale / 2) / pow(10, -scale - -scale / 2) : mantissa * pow(10, scale);
    if (fabs(*result) <= (double)FLT_MAX) return true;
    return gpunn__expr_fail(f, start, "too large a number", start, (size_t)(f->at - start));
}

/* name ( ... ): the op's operands, then its attributes as numbers, which may be left out. */
static bool gpunn__expr_function(gpunn__formula *f, const char *name, size_t length, gpunn__term *result)
{
    gpunn__term terms[5];
    int         count = 0, op = GPUNN_OP_COUNT - 1;
    bool        all_numbers = true;
    if (length == 3 && memcmp(name, "max", 3) == 0)
        op = GPUNN_OP_MAXIMUM;
    else if (length == 3 && memcmp(name, "min", 3) == 0)
        op = GPUNN_OP_MINIMUM;
    else if (length == 1 && *name == 'K')
        op = GPUNN_OP_NONE;
    else
        while (op > 0 && !(gpunn__op_arity((gpunn_op)op) > 0 && strlen(gpunn_op_name((gpunn_op)op)) == length &&
                           memcmp(gpunn_op_name((gpunn_op)op), name, length) == 0))
            op--;
    if (op == GPUNN_OP_NONE && !(length == 1 && *name == 'K')) return gpunn__expr_fail(f, name, "unknown function", name, length);
    f->at++; /* the parenthesis */
    int arity = op == GPUNN_OP_NONE ? 1 : gpunn__op_arity((gpunn_op)op), most = arity + gpunn__op_attribute_count((gpunn_op)op);
    if (gpunn__expr_peek(f) != ')') do {
            (void)gpunn__expr_peek(f);
            const char *at = f->at;
            if (count == most) return gpunn__expr_fail(f, at, "too many arguments for", name, length);
            if (!gpunn__expr_choice(f, &terms[count])) return false;
            if ((count >= arity || op == GPUNN_OP_NONE) && terms[count].tensor)
                return gpunn__expr_fail(f, at, "a number is needed here, an attribute of", name, length);
            all_numbers = all_numbers && terms[count].tensor == NULL;
            count++;
        } while (gpunn__expr_take(f, ','));
    if (!gpunn__expr_expect(f, ')', "')' or ',' is missing")) return false;
    if (count < arity) return gpunn__expr_fail(f, name, "too few arguments for", name, length);
    if (op == GPUNN_OP_NONE) {
        *result = terms[0];
        return true;
    }
    if (most == 2 && arity == 2) return gpunn__expr_binary(f, (gpunn_op)op, terms[0], terms[1], result);
    result->tensor = NULL;
    if (most == 1 && all_numbers && gpunn__expr_fold1((gpunn_op)op, terms[0].number, &result->number)) return true;
    float attribute[2];
    for (int i = 0; i < 2; i++) {
        attribute[i] = gpunn__op_attribute_default((gpunn_op)op, i);
        if (arity + i < count && !gpunn__expr_float(f, terms[arity + i].number, &attribute[i])) return false;
    }
    return gpunn__expr_apply(f, (gpunn_op)op, terms, attribute[0], attribute[1], result);
}

/* The length of the name at a place. */
static size_t gpunn__expr_name_length(const char *at)
{
    size_t length = 0;
    if (!isdigit((unsigned char)*at))
        while (isalnum((unsigned char)at[length]) || at[length] == '_') length++;
    return length;
}

static bool gpunn__expr_name(gpunn__formula *f, gpunn__term *result)
{
    const char *name = f->at;
    size_t      length = gpunn__expr_name_length(name);
    f->at += length;
    if (gpunn__expr_peek(f) == '(') return gpunn__expr_function(f, name, length, result);
    for (int i = f->name_count - 1; i >= 0; i--)
        if (f->names[i].length == length && memcmp(f->names[i].text, name, length) == 0) {
            *result = f->names[i].term;
            return true;
        }
    return gpunn__expr_fail(f, name, "unknown name", name, length);
}

static bool gpunn__expr_add_name(gpunn__formula *f, const char *name, size_t length, gpunn__term term)
{
    if (f->name_count == GPUNN__EXPR_NAMES) return gpunn__expr_fail(f, f->at, "more than 64 names", "", 0);
    f->names[f->name_count].text = name;
    f->names[f->name_count].length = length;
    f->names[f->name_count++].term = term;
    return true;
}

/* Whether a word stands here; takes it. */
static bool gpunn__expr_take_word(gpunn__formula *f, const char *word)
{
    (void)gpunn__expr_peek(f);
    size_t length = gpunn__expr_name_length(f->at);
    if (length != strlen(word) || memcmp(f->at, word, length) != 0) return false;
    f->at += length;
    return true;
}

static bool gpunn__expr_deeper(gpunn__formula *f)
{
    if (f->depth == GPUNN__EXPR_DEPTH) return gpunn__expr_fail(f, f->at, "nesting deeper than 64", "", 0);
    f->depth++;
    return true;
}

static bool gpunn__expr_sign(gpunn__formula *f, gpunn__term *result)
{
    char        first = gpunn__expr_peek(f);
    gpunn__term operand;
    bool        ok;
    if (!gpunn__expr_deeper(f)) return false;
    if (first == '-') {
        f->at++;
        ok = gpunn__expr_sign(f, &operand);
        result->tensor = NULL;
        if (ok && operand.tensor)
            ok = gpunn__expr_apply(f, GPUNN_OP_NEG, &operand, 0, 0, result);
        else if (ok)
            result->number = -operand.number;
        f->depth--;
        return ok;
    }
    if (first == '(') {
        f->at++;
        ok = gpunn__expr_choice(f, result) && gpunn__expr_expect(f, ')', "')' is missing");
    } else if (isdigit((unsigned char)first) || first == '.') {
        result->tensor = NULL;
        ok = gpunn__expr_number(f, &result->number);
    } else if (isalpha((unsigned char)first) || first == '_')
        ok = gpunn__expr_name(f, result);
    else
        ok = gpunn__expr_fail(f, f->at, first ? "unexpected" : "something is missing", f->at, first != 0);
    if (ok && gpunn__expr_peek(f) == '*' && f->at[1] == '*') {
        f->at += 2;
        ok = gpunn__expr_sign(f, &operand) && gpunn__expr_binary(f, GPUNN_OP_POW, *result, operand, result);
    }
    f->depth--;
    return ok;
}

static bool gpunn__expr_product(gpunn__formula *f, gpunn__term *result)
{
    if (!gpunn__expr_sign(f, result)) return false;
    for (;;) {
        gpunn__term right;
        bool        times = gpunn__expr_take(f, '*');
        if (!times && !gpunn__expr_take(f, '/')) return true;
        if (!gpunn__expr_sign(f, &right) || !gpunn__expr_binary(f, times ? GPUNN_OP_MUL : GPUNN_OP_DIV, *result, right, result))
            return false;
    }
}

static bool gpunn__expr_sum(gpunn__formula *f, gpunn__term *result)
{
    if (!gpunn__expr_product(f, result)) return false;
    for (;;) {
        gpunn__term right;
        bool        plus = gpunn__expr_take(f, '+');
        if (!plus && !gpunn__expr_take(f, '-')) return true;
        if (!gpunn__expr_product(f, &right) || !gpunn__expr_binary(f, plus ? GPUNN_OP_ADD : GPUNN_OP_SUB, *result, right, result))
            return false;
    }
}

/* The comparison that stands here, taken, or GPUNN_OP_NONE. */
static gpunn_op gpunn__expr_compares(gpunn__formula *f)
{
    char first = gpunn__expr_peek(f), second = first ? f->at[1] : (char)0;
    bool equal = second == '=';
    if (first != '<' && first != '>' && !(equal && (first == '=' || first == '!'))) return GPUNN_OP_NONE;
    f->at += equal ? 2 : 1;
    if (first == '<') return equal ? GPUNN_OP_LE : GPUNN_OP_LT;
    if (first == '>') return equal ? GPUNN_OP_GE : GPUNN_OP_GT;
    return first == '=' ? GPUNN_OP_EQ : GPUNN_OP_NE;
}

/* result = yes where the condition is not 0, else no. */
static bool gpunn__expr_where(gpunn__formula *f, gpunn__term condition, gpunn__term yes, gpunn__term no, gpunn__term *result)
{
    gpunn__term operands[3];
    operands[0] = condition;
    operands[1] = yes;
    operands[2] = no;
    if (condition.tensor || yes.tensor || no.tensor) return gpunn__expr_apply(f, GPUNN_OP_WHERE, operands, 0, 0, result);
    *result = condition.number != 0 ? yes : no;
    return true;
}

static bool gpunn__expr_comparison(gpunn__formula *f, gpunn__term *result)
{
    gpunn__term left, right, holds;
    gpunn_op    op;
    if (!gpunn__expr_sum(f, &left)) return false;
    *result = left;
    for (bool first = true; (op = gpunn__expr_compares(f)) != GPUNN_OP_NONE; left = right, first = false) {
        if (!gpunn__expr_sum(f, &right) || !gpunn__expr_binary(f, op, left, right, &holds)) return false;
        if (first)
            *result = holds;
        else if (!gpunn__expr_where(f, *result, holds, *result, result))
            return false;
    }
    return true;
}

static bool gpunn__expr_inverse(gpunn__formula *f, gpunn__term *result)
{
    if (!gpunn__expr_take_word(f, "not")) return gpunn__expr_comparison(f, result);
    gpunn__term operand, zero = {NULL, 0};
    if (!gpunn__expr_deeper(f) || !gpunn__expr_inverse(f, &operand)) return false;
    f->depth--;
    return gpunn__expr_binary(f, GPUNN_OP_EQ, operand, zero, result);
}

/* As Python's: a and b is b where a is not 0, else a. */
static bool gpunn__expr_all(gpunn__formula *f, gpunn__term *result)
{
    gpunn__term right;
    if (!gpunn__expr_inverse(f, result)) return false;
    while (gpunn__expr_take_word(f, "and"))
        if (!gpunn__expr_inverse(f, &right) || !gpunn__expr_where(f, *result, right, *result, result)) return false;
    return true;
}

static bool gpunn__expr_any(gpunn__formula *f, gpunn__term *result)
{
    gpunn__term right;
    if (!gpunn__expr_all(f, result)) return false;
    while (gpunn__expr_take_word(f, "or"))
        if (!gpunn__expr_all(f, &right) || !gpunn__expr_where(f, *result, *result, right, result)) return false;
    return true;
}

static bool gpunn__expr_choice(gpunn__formula *f, gpunn__term *result)
{
    gpunn__term condition, otherwise;
    if (!gpunn__expr_any(f, result)) return false;
    if (!gpunn__expr_take_word(f, "if")) return true;
    if (!gpunn__expr_deeper(f) || !gpunn__expr_any(f, &condition)) return false;
    if (!gpunn__expr_take_word(f, "else")) return gpunn__expr_fail(f, f->at, "'else' is missing", "", 0);
    if (!gpunn__expr_choice(f, &otherwise)) return false;
    f->depth--;
    return gpunn__expr_where(f, condition, *result, otherwise, result);
}

static bool gpunn__expr_formula(gpunn__formula *f, gpunn__term *result)
{
    for (;;) {
        (void)gpunn__expr_peek(f);
        const char *name = f->at;
        size_t      length = gpunn__expr_name_length(name);
        f->at += length;
        bool named = length > 0 && gpunn__expr_peek(f) == '=' && f->at[1] != '=';
        if (!named) f->at = name;
        f->at += named;
        if (!gpunn__expr_choice(f, result)) return false;
        if (!named) return true;
        if (!gpunn__expr_expect(f, ';', "';' is missing") || !gpunn__expr_add_name(f, name, length, *result)) return false;
    }
}

/* Of the operands `args`, called names or (NULL) x y z and x0 to x7, and numbers that have names. */
static gpunn_tensor *gpunn__expr(const char *expression, const char *const *names, gpunn_tensor *const *args, int arg_count,
                                 const char *const *number_names, const double *numbers, int number_count)
{
    static const char *const places[] = {"args[0]", "args[1]", "args[2]", "args[3]", "args[4]", "args[5]", "args[6]", "args[7]"};
    static const char *const numbered[] = {"x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"};
    static const char *const letters[] = {"x", "y", "z"};
    gpunn__formula           f;
    gpunn__term              result = {NULL, 3.14159265358979323846};
    f.call = gpunn__call_of(NULL, "gpunn_expr", NULL);
    if (arg_count < 1 || arg_count > GPUNN__EXPR_ARGS)
        return gpunn__refuse(&f.call, GPUNN_ERR_ARGUMENT, "%d arguments are given; 1 to 8 are possible", arg_count);
    if (!gpunn__given(&f.call, args, "args") || !gpunn__begin(&f.call, "gpunn_expr", NULL, places, args, arg_count, arg_count))
        return NULL;
    if (!gpunn__given(&f.call, expression, "the expression")) return NULL;
    if (strlen(expression) > GPUNN__EXPR_LENGTH)
        return gpunn__refuse(&f.call, GPUNN_ERR_ARGUMENT, "the expression is longer than 4096 characters; split it");
    f.text = f.at = expression;
    f.depth = f.name_count = 0;
    bool ok = gpunn__expr_add_name(&f, "pi", 2, result);
    for (int i = 0; ok && i < number_count; i++) {
        result.number = numbers[i];
        ok = gpunn__expr_add_name(&f, number_names[i], strlen(number_names[i]), result);
    }
    for (int i = 0; ok && i < arg_count; i++) {
        result.tensor = args[i];
        const char *name = names ? names[i] : numbered[i];
        ok = gpunn__expr_add_name(&f, name, strlen(name), result) &&
             (names || i > 2 || gpunn__expr_add_name(&f, letters[i], 1, result));
    }
    ok = ok && gpunn__expr_formula(&f, &result);
    if (ok && gpunn__expr_peek(&f)) ok = gpunn__expr_fail(&f, f.at, "unexpected", f.at, 1);
    gpunn_tensor *value = ok ? gpunn__expr_tensor(&f, &result) : NULL;
    return value ? value : gpunn__undo(&f.call);
}

GPUNN_API gpunn_tensor *gpunn_expr(const char *expression, gpunn_tensor *const *args, int arg_count)
{
    return gpunn__expr(expression, NULL, args, arg_count, NULL, NULL, 0);
}
/* ==== >>plan ========================================================================================================== *
 * A plan is the work of one (outputs, mode, batch size): steps in order, each with its operands' places. Every value, gradient,
 * saved value and workspace is a slot with a lifetime in steps; slots share the arena. Made once, then only run. */
enum { GPUNN__MAX_PLANS = 32 }; /* cached per model; the least recently used one goes */

typedef struct gpunn__slot {
    size_t bytes;
    int    first, last; /* steps that write it first and read it last; INT_MAX: the program reads it */
    size_t offset;      /* in the arena */
    int    parent;      /* the slot whose memory this one shares, or itself */
} gpunn__slot;

typedef enum gpunn__place { GPUNN__IN_SLOT, GPUNN__IN_TENSOR, GPUNN__IN_HALF, GPUNN__IN_GRADIENT, GPUNN__IN_ONE } gpunn__place;

/* A pointer of a step to set once the memory is there. index: slot, or tensor id. */
typedef struct gpunn__binding {
    void       **pointer;
    gpunn__place place;
    int          index;
} gpunn__binding;

struct gpunn__plan {
    gpunn__plan     *next;
    gpunn_tensor   **outputs; /* as asked for; a training plan's one output is the loss */
    int              output_count;
    bool             training;
    int64_t          batch;
    uint64_t         generation; /* of the model, at the last binding; 0: never bound */
    gpunn_step      *steps;      /* forward ones, then backward ones */
    int              forward_count, step_count, step_capacity;
    gpunn__slot     *slots;
    int              slot_count, slot_capacity;
    gpunn__binding  *bindings;
    int              binding_count, binding_capacity;
    int              tensor_count;  /* length of the tables by tensor id */
    int             *root;          /* the tensor whose memory a value is: itself, or through reshapes and merged steps another */
    int             *gradient_root; /* the same for gradients: reshapes only */
    int             *value_slot, *gradient_slot; /* by root; -1: none */
    gpunn_dtype     *storage;                    /* dtype of a value, and of its gradient, in memory */
    bool            *last;                       /* values, and their gradients, with channels last */
    bool             half, channels_last; /* products read 16 bits, convolutions channels_last values: see gpunn__mark_storage */
    int             *inputs;              /* ids of the inputs that it reads */
    int              input_count;
    int             *reached;     /* ids of the parameters whose gradient it writes */
    bool           **first_write; /* per reached parameter: the accumulate flag of the step that writes it first */
    int              reached_count;
    size_t           arena_bytes, cache_bytes;
    gpunn_attributes attr[3];     /* of steps that no node asks for: channels from last to second place, back; casts */
    size_t           table_bytes; /* of the block at outputs: it and all tables by id */
    void            *captured;    /* the backend's, of gpunn_run */
};

static int64_t gpunn__dim(int64_t dim, int64_t batch)
{
    return dim < 0 ? -dim * batch : dim;
}

/* ---- tables ---------------------------------------------------------------------------------------------------------- */
typedef struct gpunn__group { /* nodes that one fused kernel computes */
    const gpunn_kernel *kernel;
    const int          *tensors; /* ids: nodes, then externals */
    int                 slot;    /* of the first value that it keeps for its backward step; the others follow */
} gpunn__group;

typedef struct gpunn__builder { /* tables by tensor id, alive while a plan is made */
    gpunn_model  *model;
    gpunn__plan  *plan;
    bool         *needed; /* computed in this plan */
    bool         *scratch;
    bool         *wants;     /* a gradient is asked for, by the tensor or by what it is made of */
    bool         *behind;    /* the loss depends on it */
    bool         *retained;  /* by gradient root: the program reads the gradient */
    bool         *activates; /* relu or gelu_tanh whose derivative the backward step of the linear that reads it applies */
    int          *uses;      /* nodes that read it */
    int          *head;      /* by the last node of a merged chain: the layer that computes it; others: the node itself */
    int          *next;      /* by a node of a chain: the following one; -1: none */
    int          *writes;    /* by gradient root: contributions so far in the backward pass */
    int          *cast;      /* by root: the slot of a 16-bit copy of an F32 value; -1: none yet */
    int          *turned;    /* by operand: the slot of a copy with its channels in the other place; -1: none yet */
    int          *place;     /* when it is computed; the nodes of a group share one */
    int          *order;     /* by place: the node, of a group the last one */
    int           place_count;
    int          *group; /* by node: index in groups; -1: none */
    gpunn__group *groups;
    int           group_count;
    int          *ids; /* of the tensors of matched groups */
    int           id_count;
    bool         *refused; /* by last node: its group cannot be used; stays when planning begins anew */
    bool          again;   /* planning must begin anew, since another group has been refused */
} gpunn__builder;

static void *gpunn__grow(gpunn_device *dev, void *array, int count, int *capacity, size_t item)
{
    if (count < *capacity) return array;
    int   wanted = *capacity ? *capacity * 2 : 32;
    void *grown = gpunn__realloc(dev, array, (size_t)*capacity * item, (size_t)wanted * item);
    if (grown) *capacity = wanted;
    return grown;
}

static int gpunn__new_slot(gpunn__builder *b, size_t bytes, int first)
{
    gpunn__plan *plan = b->plan;
    gpunn__slot *slots = (gpunn__slot *)gpunn__grow(b->model->dev, plan->slots, plan->slot_count, &plan->slot_capacity,
                                                    sizeof *slots);
    if (slots == NULL) return -1;
    plan->slots = slots;
    gpunn__slot *slot = &slots[plan->slot_count];
    slot->bytes = bytes;
    slot->first = slot->last = first;
    slot->offset = 0;
    slot->parent = plan->slot_count;
    return plan->slot_count++;
}

static gpunn__slot *gpunn__slot_of(gpunn__plan *plan, int slot)
{
    while (plan->slots[slot].parent != slot) slot = plan->slots[slot].parent;
    return &plan->slots[slot];
}

static bool gpunn__bind(gpunn__builder *b, void **pointer, gpunn__place place, int index)
{
    gpunn__plan    *plan = b->plan;
    gpunn__binding *bindings = (gpunn__binding *)gpunn__grow(b->model->dev, plan->bindings, plan->binding_count,
                                                             &plan->binding_capacity, sizeof *bindings);
    if (bindings == NULL) return false;
    plan->bindings = bindings;
    bindings[plan->binding_count].pointer = pointer;
    bindings[plan->binding_count].place = place;
    bindings[plan->binding_count++].index = index;
    *pointer = plan; /* until there is memory, prepare only asks whether a pointer is NULL */
    return true;
}

static size_t gpunn__operand_bytes(int count) /* of in, grad_in and accumulate of one step */
{
    return (size_t)count * (2 * sizeof(gpunn_value) + sizeof(bool));
}

static void gpunn__plan_free(gpunn_device *dev, gpunn__plan *plan)
{
    if (plan->captured) dev->backend->forget(dev->context, plan->captured);
    for (int i = 0; i < plan->step_count; i++) {
        gpunn_step *step = &plan->steps[i];
        gpunn__free(dev, step->in, gpunn__operand_bytes(step->input_count));
        gpunn__device_free(dev, step->cache, step->cache_bytes);
    }
    gpunn__free(dev, plan->steps, (size_t)plan->step_capacity * sizeof *plan->steps);
    gpunn__free(dev, plan->slots, (size_t)plan->slot_capacity * sizeof *plan->slots);
    gpunn__free(dev, plan->bindings, (size_t)plan->binding_capacity * sizeof *plan->bindings);
    gpunn__free(dev, plan->outputs, plan->table_bytes);
    gpunn__free(dev, plan, sizeof *plan);
}

GPUNN__PRIVATE void gpunn__invalidate(gpunn_model *model)
{
    while (model->plans) {
        gpunn__plan *next = model->plans->next;
        gpunn__plan_free(model->dev, model->plans);
        model->plans = next;
    }
    model->last = NULL;
}

/* ---- which tensors --------------------------------------------------------------------------------------------------- */
/* Marks in `needed` what the already marked tensors are computed from. */
static void gpunn__mark_operands(const gpunn_model *model, bool *needed)
{
    for (int id = model->tensor_count - 1; id >= 0; id--) {
        const gpunn_tensor *t = model->tensors[id];
        for (int i = 0; needed[id] && i < t->input_count; i++)
            if (t->inputs[i]) needed[t->inputs[i]->id] = true;
    }
}

/* Training steps compute kept tensors too when these need no input that the loss does not need. scratch: one flag a tensor. */
static void gpunn__mark_kept(const gpunn_model *model, bool *needed, bool *scratch)
{
    for (int id = 0; id < model->tensor_count; id++) {
        if (!model->tensors[id]->keep || needed[id]) continue;
        memset(scratch, 0, (size_t)model->tensor_count * sizeof *scratch);
        scratch[id] = true;
        gpunn__mark_operands(model, scratch);
        bool possible = true;
        for (int j = 0; j <= id; j++)
            possible = possible && (!scratch[j] || needed[j] || model->tensors[j]->kind != GPUNN__INPUT);
        for (int j = 0; possible && j <= id; j++) needed[j] = needed[j] || scratch[j];
    }
}

/* Images of which memory can tell where their channels are. */
static bool gpunn__has_layouts(const gpunn_tensor *t)
{
    bool fixed = t->rank == 4 && t->dim[1] > 0 && t->dim[2] > 0 && t->dim[3] > 0;
    return fixed && t->dim[1] > 1 && t->dim[2] * t->dim[3] > 1;
}

/* Values that are their first operand under another name: no step. */
static bool gpunn__is_alias(const gpunn__plan *plan, const gpunn_tensor *t)
{
    if (t->kind != GPUNN__VALUE) return false;
    if (t->op == GPUNN_OP_RESHAPE) return !(plan->last[t->inputs[0]->id] && gpunn__has_layouts(t->inputs[0]));
    return t->op == GPUNN_OP_DROPOUT && (!plan->training || t->attr.value[0] == 0);
}

/* A value that somebody reads under its own name cannot be merged away. */
static bool gpunn__is_visible(const gpunn__plan *plan, const gpunn_tensor *t)
{
    bool visible = t->keep || t->retain_grad;
    for (int i = 0; i < plan->output_count; i++) visible = visible || plan->outputs[i] == t;
    return visible;
}

static bool gpunn__same_shape(const gpunn_tensor *a, const gpunn_tensor *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim) == 0;
}

/* What can be merged into a linear or convolution: a batch norm by running statistics (evaluation only), the sum with a residual,
 * a relu or (linear) gelu_tanh; in this order. Returns the node after `end` if it is of a later stage than *stage. */
static gpunn_tensor *gpunn__next_merge(const gpunn__builder *b, const gpunn_tensor *head, const gpunn_tensor *end, int *stage)
{
    if (b->uses[end->id] != 1 || gpunn__is_visible(b->plan, end)) return NULL;
    for (int id = end->id + 1; id < b->model->tensor_count; id++) {
        gpunn_tensor *t = b->model->tensors[id];
        int           operand = 0, then = 0;
        while (operand < t->input_count && t->inputs[operand] != end) operand++;
        if (!b->needed[id] || operand == t->input_count) continue;
        if (b->head[id] != id || b->next[id] >= 0 || b->plan->root[id] != id || b->group[id] >= 0) return NULL; /* taken */
        if (t->op == GPUNN_OP_BATCH_NORM && operand == 0 && t->rank != 3 && !b->plan->training)
            then = 1;
        else if (t->op == GPUNN_OP_ADD && t->inputs[0] != t->inputs[1] && gpunn__same_shape(t->inputs[0], t->inputs[1]))
            then = 2;
        else if (t->op == GPUNN_OP_RELU || (t->op == GPUNN_OP_GELU_TANH && head->op == GPUNN_OP_LINEAR))
            then = 3;
        if (then <= *stage || b->plan->last[id] != b->plan->last[end->id]) return NULL;
        *stage = then;
        return t;
    }
    return NULL;
}

/* A member of a chain whose value training keeps beside the chain's result: what gelu_tanh is applied to. */
static bool gpunn__is_before(const gpunn__builder *b, const gpunn_tensor *t)
{
    int next = b->next[t->id];
    return b->plan->training && next >= 0 && b->model->tensors[next]->op == GPUNN_OP_GELU_TANH;
}

static void gpunn__mark_roots(gpunn__builder *b)
{
    gpunn__plan *plan = b->plan;
    for (int id = 0; id < plan->tensor_count; id++) {
        const gpunn_tensor *t = b->model->tensors[id];
        bool                alias = gpunn__is_alias(plan, t);
        plan->gradient_root[id] = plan->root[id] = alias ? plan->root[t->inputs[0]->id] : id;
        b->head[id] = id;
        b->next[id] = b->cast[id] = b->turned[id] = plan->value_slot[id] = plan->gradient_slot[id] = b->group[id] = -1;
        for (int i = 0; b->needed[id] && i < t->input_count; i++)
            if (t->inputs[i]) b->uses[t->inputs[i]->id]++;
    }
}

static void gpunn__mark_chains(gpunn__builder *b)
{
    gpunn__plan *plan = b->plan;
    for (int id = 0; id < plan->tensor_count; id++) {
        gpunn_tensor *t = b->model->tensors[id], *end = t, *next;
        if (!b->needed[id] || (!gpunn__is_convolution(t->op) && t->op != GPUNN_OP_LINEAR)) continue;
        for (int stage = 0; (next = gpunn__next_merge(b, t, end, &stage)) != NULL; end = next) b->next[end->id] = next->id;
        b->head[end->id] = id;
        for (int member = id; member != end->id; member = b->next[member])
            if (!gpunn__is_before(b, b->model->tensors[member])) plan->root[member] = end->id;
    }
    for (int id = 0; id < plan->tensor_count; id++) plan->root[id] = plan->root[plan->root[id]]; /* reshapes of a chain's end */
}

/* ---- storage --------------------------------------------------------------------------------------------------------- *
 * A model of precision BF16 or F16 on a backend that computes on such values: products (linear, convolutions, matmul, attention)
 * read 16 bits and give them, and so does what is made of 16-bit values alone, parameters not counted. What meets an F32 value is
 * F32, as with torch's promotion, and so are sums, log_softmax, losses and affine_grid. */
static gpunn_dtype gpunn__half_of(const gpunn_model *model)
{
    return model->precision == GPUNN_PRECISION_F16 ? GPUNN_F16 : GPUNN_BF16;
}

static bool gpunn__is_product(gpunn_op op)
{
    return op == GPUNN_OP_LINEAR || op == GPUNN_OP_MATMUL || op == GPUNN_OP_ATTENTION || gpunn__is_convolution(op);
}

static gpunn_dtype gpunn__storage_of(const gpunn_model *model, const gpunn_dtype *storage, const gpunn_tensor *t)
{
    if (t->dtype != GPUNN_F32 || t->kind != GPUNN__VALUE) return t->dtype;
    if (gpunn__is_product(t->op)) return gpunn__half_of(model);
    if (t->op == GPUNN_OP_AFFINE_GRID || t->op == GPUNN_OP_SUM || t->op == GPUNN_OP_LOG_SOFTMAX ||
        t->op == GPUNN_OP_CROSS_ENTROPY || t->op == GPUNN_OP_NLL)
        return GPUNN_F32;
    gpunn_dtype result = GPUNN_F32;
    for (int i = 0; i < t->input_count; i++) {
        const gpunn_tensor *input = t->inputs[i];
        if (input == NULL || (input->kind != GPUNN__VALUE && input->kind != GPUNN__INPUT)) continue;
        if (storage[input->id] == GPUNN_F32) return GPUNN_F32;
        if (input->dtype == GPUNN_F32) result = storage[input->id];
    }
    return result;
}

/* Where convolutions want their channels last, so are the values that they give and all that goes on with these, image by image:
 * norms, pools, elementwise ops. Others read a copy. */
static bool gpunn__is_last(const gpunn__plan *plan, const gpunn_tensor *t)
{
    if (!plan->channels_last || t->kind != GPUNN__VALUE || t->rank != 4 || t->dtype != GPUNN_F32) return false;
    if (gpunn__is_convolution(t->op)) return true;
    bool local = t->op == GPUNN_OP_BATCH_NORM || gpunn__is_pool(t->op) || gpunn__is_alias(plan, t);
    if (local) return t->op != GPUNN_OP_RESHAPE && plan->last[t->inputs[0]->id];
    bool last = false;
    if (!gpunn__op_elementwise(t->op)) return false;
    for (int i = 0; i < t->input_count; i++) {
        const gpunn_tensor *input = t->inputs[i];
        bool                whole = gpunn__same_shape(input, t) && plan->storage[input->id] == plan->storage[t->id];
        if (!whole && gpunn__count(input, 1) != 1) return false;
        last = last || (whole && plan->last[input->id]);
    }
    return last;
}

static void gpunn__mark_storage(gpunn__builder *b)
{
    gpunn__plan        *plan = b->plan;
    gpunn_model        *model = b->model;
    const gpunn_device *dev = model->dev;
    int64_t             largest = 0; /* result of a convolution */
    for (int id = 0; id < plan->tensor_count; id++)
        if (b->needed[id] && gpunn__is_convolution(model->tensors[id]->op) && model->tensors[id]->rank == 4 &&
            gpunn__count(model->tensors[id], plan->batch) > largest)
            largest = gpunn__count(model->tensors[id], plan->batch);
    plan->half = model->precision >= GPUNN_PRECISION_BF16 && dev->info.half;
    plan->channels_last = largest > 0 && model->precision != GPUNN_PRECISION_F32 && dev->backend->channels_last &&
                          dev->backend->channels_last(dev->context, largest);
    for (int id = 0; id < plan->tensor_count; id++) {
        const gpunn_tensor *t = model->tensors[id];
        plan->storage[id] = plan->half ? gpunn__storage_of(model, plan->storage, t) : t->dtype;
        plan->last[id] = gpunn__is_last(plan, t);
    }
}

static bool gpunn__passes_gradient(const gpunn__builder *b, const gpunn_tensor *node, int operand)
{
    const gpunn_tensor *input = node->inputs[operand];
    return input && b->wants[input->id] && gpunn__op_has_gradient(node->op, operand);
}

/* ---- groups ---------------------------------------------------------------------------------------------------------- *
 * Nodes that one fused kernel of gpunn_use_kernels computes. They are claimed before anything is merged and before memory is
 * planned; what does not fit this plan stays with the single ops. */
static gpunn_tensor *gpunn__member(const gpunn__builder *b, const gpunn__group *group, int number)
{
    return b->model->tensors[group->tensors[number < 0 ? -number - 1 : group->kernel->node_count + number]];
}

static const gpunn_kernel_program *gpunn__program(const gpunn__builder *b, const gpunn__group *group, bool backward)
{
    int direction = backward ? GPUNN_KERNEL_BACKWARD : b->plan->training ? GPUNN_KERNEL_FORWARD : GPUNN_KERNEL_EVALUATION;
    return &group->kernel->program[direction];
}

/* The program that computes gradients. */
static const gpunn_kernel_program *gpunn__gradient_program(const gpunn__builder *b, const gpunn__group *group)
{
    return gpunn__program(b, group, !group->kernel->loss);
}

/* A node's gradient in memory `root`, as the group reads it: and changes it, if that is asked for. NULL: it does not. */
static const gpunn_kernel_operand *gpunn__gradient_operand(const gpunn__builder *b, const gpunn__group *group, int root,
                                                           bool changes)
{
    const gpunn_kernel_program *program = gpunn__gradient_program(b, group);
    for (int i = 0; i < program->operand_count; i++) {
        const gpunn_kernel_operand *operand = &program->operands[i];
        if (operand->role == GPUNN_KERNEL_GRADIENT && operand->index < 0 && (!changes || operand->written) &&
            b->plan->gradient_root[gpunn__member(b, group, operand->index)->id] == root)
            return operand;
    }
    return NULL;
}

static bool gpunn__group_writes(const gpunn__builder *b, const gpunn__group *group, int root)
{
    const gpunn_kernel_program *program = gpunn__program(b, group, false);
    bool                        writes = false;
    for (int i = 0; i < program->operand_count; i++) {
        const gpunn_kernel_operand *operand = &program->operands[i];
        writes = writes || (operand->role == GPUNN_KERNEL_VALUE && operand->written &&
                            b->plan->root[gpunn__member(b, group, operand->index)->id] == root);
    }
    return writes;
}

/* Whether training wants the gradient of an external from the group. */
static bool gpunn__group_passes(const gpunn__builder *b, const gpunn__group *group, const gpunn_tensor *external)
{
    bool passes = false;
    for (int k = 0; k < group->kernel->node_count; k++) {
        const gpunn_tensor *t = b->model->tensors[group->tensors[k]];
        for (int i = 0; b->behind[t->id] && i < t->input_count; i++)
            passes = passes || (t->inputs[i] == external && gpunn__passes_gradient(b, t, i));
    }
    return passes;
}

static bool gpunn__group_has_backward(const gpunn__builder *b, const gpunn__group *group)
{
    bool has = false;
    for (int i = 0; i < group->kernel->external_count; i++)
        has = has || gpunn__group_passes(b, group, gpunn__member(b, group, i));
    return has && b->plan->training;
}

/* Whether somebody outside of group `index` reads node t; for gradients only those that the loss depends on count. */
static bool gpunn__read_outside(const gpunn__builder *b, int index, const gpunn_tensor *t, bool gradient)
{
    for (int id = t->id + 1; id < b->plan->tensor_count; id++) {
        const gpunn_tensor *reader = b->model->tensors[id];
        if (!b->needed[id] || b->group[id] == index || (gradient && !(b->behind[id] && b->wants[id]))) continue;
        for (int i = 0; i < reader->input_count; i++)
            if (reader->inputs[i] == t && (!gradient || gpunn__passes_gradient(b, reader, i))) return true;
    }
    return false;
}

/* Whether all images have their channels where the kernel takes them. */
static bool gpunn__group_layout_fits(const gpunn__builder *b, const gpunn__group *group)
{
    const gpunn_kernel *kernel = group->kernel;
    int                 first = 0, last = 0;
    for (int i = 0; i < kernel->node_count + kernel->external_count; i++) {
        int id = group->tensors[i];
        if (!gpunn__has_layouts(b->model->tensors[id])) continue;
        bool is_last = b->plan->last[b->plan->root[id]];
        first += !is_last;
        last += is_last;
    }
    return kernel->layout == GPUNN_KERNEL_ANY              ? first == 0 || last == 0
           : kernel->layout == GPUNN_KERNEL_CHANNELS_FIRST ? last == 0
                                                           : first == 0;
}

/* One value per channel is an error in training, which the single op tells. */
static bool gpunn__lacks_variance(const gpunn__builder *b, const gpunn_tensor *t)
{
    return t->op == GPUNN_OP_BATCH_NORM && b->plan->training && gpunn__count(t, b->plan->batch) == gpunn__dim(t->dim[1], 1);
}

static bool gpunn__group_values_fit(const gpunn__builder *b, int index)
{
    const gpunn__group *group = &b->groups[index];
    for (int k = 0; k < group->kernel->node_count; k++) {
        const gpunn_tensor *t = b->model->tensors[group->tensors[k]];
        int                 root = b->plan->root[t->id];
        bool                seen = gpunn__is_visible(b->plan, t) || gpunn__read_outside(b, index, t, false);
        if (seen && b->group[root] == index && !gpunn__group_writes(b, group, root)) return false;
        if (gpunn__lacks_variance(b, t)) return false;
    }
    return true;
}

/* Whether nodes of the group contribute to a node's gradient, which is then nowhere as a whole. */
static bool gpunn__adds_inside(const gpunn__builder *b, const gpunn__group *group, int root)
{
    bool adds = false;
    for (int k = 0; k < group->kernel->node_count; k++) {
        const gpunn_tensor *t = b->model->tensors[group->tensors[k]];
        for (int i = 0; b->behind[t->id] && i < t->input_count; i++)
            adds = adds || (gpunn__passes_gradient(b, t, i) && b->plan->gradient_root[t->inputs[i]->id] == root &&
                            b->plan->gradient_root[t->id] != root);
    }
    return adds;
}

static bool gpunn__group_gradients_fit(const gpunn__builder *b, int index)
{
    const gpunn__group         *group = &b->groups[index];
    const gpunn_kernel         *kernel = group->kernel;
    const gpunn__plan          *plan = b->plan;
    const gpunn_kernel_program *program = gpunn__gradient_program(b, group);
    if (!gpunn__group_has_backward(b, group)) return !kernel->loss;
    if (program->operands == NULL) return false;
    int last = plan->root[group->tensors[kernel->node_count - 1]];
    if (kernel->loss && last != plan->root[plan->outputs[0]->id]) return false;
    for (int k = 0; k < kernel->node_count; k++) { /* gradients that come from outside are read, and no others */
        const gpunn_tensor *t = b->model->tensors[group->tensors[k]];
        int                 root = plan->gradient_root[t->id];
        bool                comes = t == plan->outputs[0] || gpunn__read_outside(b, index, t, true);
        if (comes && gpunn__gradient_operand(b, group, root, false) == NULL) return false;
        if (b->retained[root] && (!comes || gpunn__gradient_operand(b, group, root, true) || gpunn__adds_inside(b, group, root)))
            return false;
    }
    for (int i = 0; i < program->operand_count; i++) {
        const gpunn_kernel_operand *operand = &program->operands[i];
        if (operand->role != GPUNN_KERNEL_GRADIENT || operand->index >= 0) continue;
        bool comes = false;
        for (int k = 0; k < kernel->node_count; k++) {
            const gpunn_tensor *t = b->model->tensors[group->tensors[k]];
            if (plan->gradient_root[t->id] == plan->gradient_root[gpunn__member(b, group, operand->index)->id])
                comes = comes || t == plan->outputs[0] || gpunn__read_outside(b, index, t, true);
        }
        if (!comes) return false;
    }
    for (int i = 0; i < kernel->external_count; i++) { /* each gradient that is wanted is written, and in memory of its own */
        const gpunn_tensor *external = gpunn__member(b, group, i);
        bool                written = false;
        if (!gpunn__group_passes(b, group, external)) continue;
        for (int k = 0; k < program->operand_count; k++)
            written = written || (program->operands[k].role == GPUNN_KERNEL_GRADIENT && program->operands[k].index == i);
        if (!written) return false;
        for (int k = 0; k < i; k++)
            if (plan->gradient_root[gpunn__member(b, group, k)->id] == plan->gradient_root[external->id]) return false;
    }
    return true;
}

/* Whether a kernel can compute these tensors in this plan, where no other has claimed them. */
static bool gpunn__claim(gpunn__builder *b, const gpunn_kernel *kernel, const int *tensors)
{
    int           index = b->group_count, last = tensors[kernel->node_count - 1];
    gpunn__group *group = &b->groups[index];
    group->kernel = kernel;
    group->tensors = tensors;
    group->slot = -1;
    if (gpunn__program(b, group, false)->operands == NULL || b->refused[last]) return false;
    for (int k = 0; k < kernel->node_count; k++)
        if (!b->needed[tensors[k]] || b->group[tensors[k]] >= 0) return false;
    for (int k = 0; k < kernel->node_count; k++) b->group[tensors[k]] = index;
    bool fits = gpunn__group_layout_fits(b, group) && gpunn__group_values_fit(b, index) &&
                (!b->plan->training || gpunn__group_gradients_fit(b, index));
    for (int k = 0; k < kernel->node_count && !fits; k++) b->group[tensors[k]] = -1;
    b->group_count += fits;
    return fits;
}

/* ---- matching by text ---- */
enum { GPUNN__LEFT_OUT = 127 }; /* an operand that is not there; more tensors a pattern cannot number */

/* Tensor t in place of number `number` of a kernel's pattern, and what it is made of in those of its operands. assigned: ids by
 * number, nodes first; -1: open. */
static bool gpunn__unify(const gpunn_model *model, const gpunn_kernel *kernel, int number, const gpunn_tensor *t, int *assigned)
{
    char text[GPUNN__TEXT_SIZE];
    int  at = number < 0 ? -number - 1 : kernel->node_count + number;
    if (t == NULL || assigned[at] >= 0) return t && assigned[at] == t->id;
    if (number >= 0)
        gpunn__external_text(t, text, sizeof text);
    else
        gpunn__node_text(t, text, sizeof text);
    if (strcmp(text, number < 0 ? kernel->nodes[at].text : kernel->externals[number]) != 0) return false;
    for (int i = 0; i < kernel->node_count + kernel->external_count; i++)
        if (assigned[i] == t->id) return false;
    assigned[at] = t->id;
    if (number >= 0) return true;
    const gpunn_kernel_node *node = &kernel->nodes[at];
    if (t->kind != GPUNN__VALUE || t->input_count != node->operand_count) return false;
    for (int i = 0; i < t->input_count; i++) {
        if (node->operands[i] == GPUNN__LEFT_OUT ? t->inputs[i] != NULL
                                                 : !gpunn__unify(model, kernel, node->operands[i], t->inputs[i], assigned))
            return false;
    }
    return true;
}

/* Finds the kernel's pattern at the model's tensor t, its last node, and writes all ids. Nodes that the last one does not depend
 * on are looked for among all tensors. */
static bool gpunn__find_pattern(const gpunn_model *model, const gpunn_kernel *kernel, const gpunn_tensor *t, int *assigned)
{
    int count = kernel->node_count + kernel->external_count;
    for (int i = 0; i < count; i++) assigned[i] = -1;
    if (!gpunn__unify(model, kernel, -kernel->node_count, t, assigned)) return false;
    for (int k = kernel->node_count - 1; k >= 0; k--) {
        int before[2 * GPUNN__LEFT_OUT];
        for (int id = 0; assigned[k] < 0 && id < model->tensor_count; id++) {
            memcpy(before, assigned, (size_t)count * sizeof *before);
            if (!gpunn__unify(model, kernel, -k - 1, model->tensors[id], assigned))
                memcpy(assigned, before, (size_t)count * sizeof *before);
        }
        if (assigned[k] < 0) return false;
    }
    return true;
}

static void gpunn__mark_groups(gpunn__builder *b)
{
    const gpunn_model      *model = b->model;
    const gpunn_kernel_set *set = model->kernels;
    bool                    training = b->plan->training;
    if (set == NULL) return;
    if (model->kernels_exact) {
        const gpunn_kernel_instance *instances = training ? set->training : set->evaluation;
        int                          count = training ? set->training_count : set->evaluation_count;
        for (int i = 0; i < count; i++) (void)gpunn__claim(b, &set->kernels[instances[i].kernel], instances[i].tensors);
        return;
    }
    for (int i = 0; i < set->kernel_count; i++) {
        const gpunn_kernel *kernel = &set->kernels[i];
        for (int id = 0; id < b->plan->tensor_count; id++) {
            int *tensors = b->ids + b->id_count;
            if (!b->needed[id] || b->group[id] >= 0 || !gpunn__find_pattern(model, kernel, model->tensors[id], tensors)) continue;
            if (gpunn__claim(b, kernel, tensors)) b->id_count += kernel->node_count + kernel->external_count;
        }
    }
}

/* ---- order ---- */
/* Puts a node, with its group, after what it reads. false: groups wait for each other, and one of them has been refused. */
static bool gpunn__put_in_order(gpunn__builder *b, int id)
{
    enum { OPEN = -1, BEGUN = -2 };
    int                 index = b->group[id];
    const gpunn__group *group = index >= 0 ? &b->groups[index] : NULL;
    const int          *nodes = group ? group->tensors : &id;
    int                 count = group ? group->kernel->node_count : 1;
    if (b->place[id] != OPEN) return b->place[id] != BEGUN;
    for (int k = 0; k < count; k++) b->place[nodes[k]] = BEGUN;
    for (int k = 0; k < count; k++) {
        const gpunn_tensor *t = b->model->tensors[nodes[k]];
        for (int i = 0; i < t->input_count; i++) {
            bool inside = t->inputs[i] == NULL || (index >= 0 && b->group[t->inputs[i]->id] == index);
            if (inside || gpunn__put_in_order(b, t->inputs[i]->id)) continue;
            if (group && !b->again) b->refused[nodes[count - 1]] = b->again = true;
            return false;
        }
    }
    for (int k = 0; k < count; k++) b->place[nodes[k]] = b->place_count;
    b->order[b->place_count++] = nodes[count - 1];
    return true;
}

static bool gpunn__mark_order(gpunn__builder *b)
{
    for (int id = 0; id < b->plan->tensor_count; id++) b->place[id] = -1;
    for (int id = 0; id < b->plan->tensor_count; id++)
        if (!gpunn__put_in_order(b, id)) return false;
    return true;
}

/* ---- steps ----------------------------------------------------------------------------------------------------------- */
static void gpunn__describe(const gpunn__plan *plan, gpunn_value *value, const gpunn_tensor *t)
{
    int64_t batch = plan->batch;
    value->data = NULL;
    value->dtype = plan->storage[t->id];
    value->channels_last = plan->last[t->id] && gpunn__has_layouts(t);
    value->rank = t->rank;
    value->count = 1;
    for (int i = 0; i < t->rank; i++) {
        value->dim[i] = gpunn__dim(t->dim[i], batch);
        value->count *= value->dim[i];
    }
}

/* Appends an empty step, named after a node, with room for that many operands. NULL: out of memory. */
static gpunn_step *gpunn__new_step(gpunn__builder *b, const gpunn_tensor *t, bool backward, int input_count)
{
    gpunn__plan *plan = b->plan;
    gpunn_step  *step = &plan->steps[plan->step_count];
    memset(step, 0, sizeof *step);
    step->in = (gpunn_value *)gpunn__calloc(b->model->dev, gpunn__operand_bytes(input_count));
    if (step->in == NULL) return NULL;
    step->grad_in = step->in + input_count;
    step->accumulate = (bool *)(void *)(step->grad_in + input_count);
    step->input_count = input_count;
    step->op = t->op;
    step->backward = backward;
    step->training = plan->training;
    step->precision = b->model->precision;
    step->name = t->layer ? t->layer : t->name ? t->name : "";
    step->attr = &t->attr;
    step->state = &b->model->state;
    plan->step_count++;
    return step;
}

/* A step of a node as it stands, its operands described. */
static gpunn_step *gpunn__node_step(gpunn__builder *b, const gpunn_tensor *t, bool backward)
{
    gpunn_step *step = gpunn__new_step(b, t, backward, t->input_count);
    for (int i = 0; step && i < t->input_count; i++) {
        if (t->inputs[i] == NULL) continue;
        gpunn__describe(b->plan, &step->in[i], t->inputs[i]);
        step->grad_in[i] = step->in[i];
    }
    if (step == NULL) return NULL;
    gpunn__describe(b->plan, &step->out, t);
    step->grad_out = step->out;
    return step;
}

/* Points a step at memory of a slot, whose life reaches at least to that step. */
static bool gpunn__use_slot(gpunn__builder *b, void **pointer, int index, int at)
{
    gpunn__slot *slot = gpunn__slot_of(b->plan, index);
    if (slot->last < at) slot->last = at;
    return gpunn__bind(b, pointer, GPUNN__IN_SLOT, index);
}

static bool gpunn__read_value(gpunn__builder *b, gpunn_value *value, const gpunn_tensor *t, int at)
{
    int root = b->plan->root[t->id];
    gpunn__describe(b->plan, value, t);
    value->dtype = b->plan->storage[root];
    value->channels_last = b->plan->last[root] && gpunn__has_layouts(t);
    if (b->model->tensors[root]->kind != GPUNN__VALUE) return gpunn__bind(b, &value->data, GPUNN__IN_TENSOR, root);
    return gpunn__use_slot(b, &value->data, b->plan->value_slot[root], at);
}

/* An operand of a product in a half plan, its bias too: weights have a 16-bit copy, of other F32 values a step makes one. */
static bool gpunn__is_factor(const gpunn__builder *b, const gpunn_tensor *t, int operand)
{
    return b->plan->half && operand < 3 && gpunn__is_product(t->op) && t->inputs[operand] &&
           b->plan->storage[b->plan->root[t->inputs[operand]->id]] == GPUNN_F32;
}

static bool gpunn__has_mirror(const gpunn_tensor *t)
{
    return t->kind == GPUNN__PARAMETER || t->kind == GPUNN__BUFFER || t->kind == GPUNN__CONSTANT;
}

/* Where a step wants the channels of an operand, or of its gradient. */
static bool gpunn__wants_last(const gpunn__builder *b, const gpunn_tensor *t, int operand)
{
    if (!gpunn__has_layouts(t->inputs[operand])) return false;
    if (gpunn__is_convolution(t->op)) return b->plan->channels_last && operand == 0;
    if (!b->plan->last[t->id]) return false;
    return gpunn__op_elementwise(t->op) ? gpunn__same_shape(t->inputs[operand], t) : operand == 0;
}

/* An operand, and with it its gradient, whose channels are not where the step of t wants them. */
static bool gpunn__is_misplaced(const gpunn__builder *b, const gpunn_tensor *t, int operand)
{
    const gpunn_tensor *input = t->inputs[operand];
    return gpunn__has_layouts(input) && b->plan->last[b->plan->root[input->id]] != gpunn__wants_last(b, t, operand);
}

static bool gpunn__read_stored(gpunn__builder *b, gpunn_value *value, const gpunn_tensor *t, int operand, int at)
{
    if (!gpunn__is_factor(b, t, operand)) return gpunn__read_value(b, value, t->inputs[operand], at);
    int root = b->plan->root[t->inputs[operand]->id];
    gpunn__describe(b->plan, value, t->inputs[operand]);
    value->dtype = gpunn__half_of(b->model);
    value->channels_last = b->plan->last[root] && gpunn__has_layouts(t->inputs[operand]);
    if (gpunn__has_mirror(b->model->tensors[root])) return gpunn__bind(b, &value->data, GPUNN__IN_HALF, root);
    return gpunn__use_slot(b, &value->data, b->cast[root], at);
}

static bool gpunn__read_operand(gpunn__builder *b, gpunn_value *value, const gpunn_tensor *t, int operand, int at)
{
    if (!gpunn__is_misplaced(b, t, operand)) return gpunn__read_stored(b, value, t, operand, at);
    gpunn__describe(b->plan, value, t->inputs[operand]);
    value->dtype = gpunn__is_factor(b, t, operand) ? gpunn__half_of(b->model)
                                                   : b->plan->storage[b->plan->root[t->inputs[operand]->id]];
    value->channels_last = gpunn__wants_last(b, t, operand);
    return gpunn__use_slot(b, &value->data, b->turned[t->inputs[operand]->id], at);
}

/* dim in the order in which memory has it, as a value of its own. */
static void gpunn__as_stored(gpunn_value *value, bool last)
{
    int64_t channels = value->dim[1];
    value->channels_last = false;
    if (!last) return;
    value->dim[1] = value->dim[2];
    value->dim[2] = value->dim[3];
    value->dim[3] = channels;
}

/* A permutation of images to channels last, or from there. */
static gpunn_step *gpunn__turn_step(gpunn__builder *b, const gpunn_tensor *image, bool to_last, bool backward)
{
    static const int  order[2][4] = {{0, 3, 1, 2}, {0, 2, 3, 1}};
    gpunn_attributes *attr = &b->plan->attr[to_last];
    gpunn_step       *step = gpunn__new_step(b, image, backward, 1);
    if (step == NULL) return NULL;
    memcpy(attr->order, order[to_last], sizeof order[0]);
    step->op = GPUNN_OP_PERMUTE;
    step->attr = attr;
    return step;
}

/* The steps that make copies of t's operands where it cannot read them as they are, unless there are some already. */
static bool gpunn__copy_operands(gpunn__builder *b, const gpunn_tensor *t)
{
    for (int i = 0; i < t->input_count; i++) {
        const gpunn_tensor *input = t->inputs[i];
        if (input == NULL) continue;
        int                 root = b->plan->root[input->id];
        const gpunn_tensor *source = b->model->tensors[root];
        if (gpunn__is_factor(b, t, i) && !gpunn__has_mirror(source) && b->cast[root] < 0) {
            int         at = b->plan->step_count;
            gpunn_step *step = gpunn__new_step(b, t, false, 1);
            if (step == NULL) return false;
            step->op = GPUNN_OP_CAST;
            step->attr = &b->plan->attr[2];
            if (!gpunn__read_value(b, &step->in[0], source, at)) return false;
            gpunn__describe(b->plan, &step->out, source);
            step->out.dtype = gpunn__half_of(b->model);
            b->cast[root] = gpunn__new_slot(b, (size_t)step->out.count * 2, at);
            if (b->cast[root] < 0 || !gpunn__bind(b, &step->out.data, GPUNN__IN_SLOT, b->cast[root])) return false;
        }
        if (gpunn__is_misplaced(b, t, i) && b->turned[input->id] < 0) {
            int         at = b->plan->step_count;
            bool        to_last = gpunn__wants_last(b, t, i);
            gpunn_step *step = gpunn__turn_step(b, input, to_last, false);
            if (step == NULL || !gpunn__read_stored(b, &step->in[0], t, i, at)) return false;
            step->out = step->in[0];
            gpunn__as_stored(&step->in[0], !to_last);
            gpunn__as_stored(&step->out, to_last);
            int slot = b->turned[input->id] = gpunn__new_slot(b, (size_t)step->out.count * gpunn_dtype_size(step->out.dtype), at);
            if (slot < 0 || !gpunn__bind(b, &step->out.data, GPUNN__IN_SLOT, slot)) return false;
        }
    }
    return true;
}

/* The step that computes `end`, from the layer at the head of its chain. */
static bool gpunn__forward_step(gpunn__builder *b, const gpunn_tensor *end)
{
    gpunn_tensor **tensors = b->model->tensors;
    gpunn_tensor  *t = tensors[b->head[end->id]];
    if (!gpunn__copy_operands(b, t)) return false;
    for (const gpunn_tensor *member = t; member != end;) {
        member = tensors[b->next[member->id]];
        if (!gpunn__copy_operands(b, member)) return false;
    }
    if (t->op == GPUNN_OP_RESHAPE) { /* of an image with channels last: the copy is all that it needs */
        b->plan->value_slot[t->id] = b->turned[t->inputs[0]->id];
        return true;
    }
    int         at = b->plan->step_count;
    gpunn_step *step = gpunn__node_step(b, t, false);
    if (step == NULL) return false;
    for (int i = 0; i < t->input_count; i++)
        if (t->inputs[i] && !gpunn__read_operand(b, &step->in[i], t, i, at)) return false;
    for (const gpunn_tensor *member = t; member != end;) {
        const gpunn_tensor *previous = member;
        member = tensors[b->next[member->id]];
        if (member->op == GPUNN_OP_BATCH_NORM) {
            gpunn_value *parts[4] = {&step->fused.scale, &step->fused.shift, &step->fused.mean, &step->fused.variance};
            for (int i = 0; i < 4; i++)
                if (member->inputs[i + 1] && !gpunn__read_value(b, parts[i], member->inputs[i + 1], at)) return false;
            step->fused.norm = true;
            step->fused.eps = member->attr.eps;
        } else if (member->op == GPUNN_OP_ADD) {
            if (!gpunn__read_operand(b, &step->fused.residual, member, member->inputs[0] == previous, at)) return false;
        } else if (member->op == GPUNN_OP_RELU) {
            step->fused.relu = true;
            step->fused.relu_mask = b->activates[member->id] && t->op == GPUNN_OP_LINEAR;
        } else {
            step->fused.gelu_tanh = true;
            if (!gpunn__is_before(b, previous)) continue;
            gpunn__describe(b->plan, &step->fused.before, previous);
            int kept = gpunn__new_slot(b, (size_t)step->out.count * gpunn_dtype_size(step->fused.before.dtype), at);
            b->plan->value_slot[previous->id] = kept;
            if (kept < 0 || !gpunn__bind(b, &step->fused.before.data, GPUNN__IN_SLOT, kept)) return false;
        }
    }
    step->out.dtype = b->plan->storage[end->id];
    int slot = gpunn__new_slot(b, (size_t)step->out.count * gpunn_dtype_size(step->out.dtype), at);
    if (slot < 0) return false;
    b->plan->value_slot[end->id] = slot;
    return gpunn__bind(b, &step->out.data, GPUNN__IN_SLOT, slot);
}

static bool gpunn__write_gradient(gpunn__builder *b, gpunn_step *step, const gpunn_tensor *input, int i, int at); /* >>autodiff */
static bool gpunn__shares_memory(const gpunn__builder *b, const gpunn_tensor *node, const gpunn_tensor *target,
                                 const gpunn_tensor *other); /* >>autodiff */

/* Refuses a group whose step is being made; planning begins anew. */
static bool gpunn__refuse_group(gpunn__builder *b, const gpunn__group *group)
{
    b->refused[group->tensors[group->kernel->node_count - 1]] = b->again = true;
    return false;
}

/* The gradient of a node, from where its readers have left it. */
static bool gpunn__read_gradient(gpunn__builder *b, const gpunn__group *group, gpunn_step *step, int i, int at)
{
    gpunn__plan                *plan = b->plan;
    const gpunn_kernel_operand *operand = &group->kernel->program[step->group.direction].operands[i];
    const gpunn_tensor         *t = gpunn__member(b, group, operand->index);
    int                         root = plan->gradient_root[t->id], slot = plan->gradient_slot[root];
    gpunn__describe(plan, &step->in[i], t);
    step->in[i].dtype = plan->storage[root];
    if (slot < 0) return operand->written ? gpunn__refuse_group(b, group) : gpunn__bind(b, &step->in[i].data, GPUNN__IN_ONE, 0);
    return gpunn__use_slot(b, &step->in[i].data, slot, at);
}

static gpunn_dtype gpunn__kept_dtype(const gpunn__plan *plan, const gpunn_kernel_kept *kept)
{
    return plan->half || gpunn_dtype_size(kept->dtype) != 2 ? kept->dtype : GPUNN_F32;
}

static bool gpunn__group_operand(gpunn__builder *b, gpunn__group *group, gpunn_step *step, int i, int at)
{
    gpunn__plan                *plan = b->plan;
    const gpunn_kernel         *kernel = group->kernel;
    const gpunn_kernel_program *program = &kernel->program[step->group.direction];
    const gpunn_kernel_operand *operand = &program->operands[i];
    gpunn_value                *value = &step->in[i];
    if (operand->role == GPUNN_KERNEL_KEPT) {
        const gpunn_kernel_kept *kept = &kernel->kept[operand->index];
        value->dtype = gpunn__kept_dtype(plan, kept);
        value->rank = 1;
        value->count = value->dim[0] = kept->fixed + kept->batch * plan->batch;
        if (operand->read) return gpunn__use_slot(b, &value->data, group->slot + operand->index, at);
        return gpunn__bind(b, &value->data, GPUNN__IN_SLOT, group->slot + operand->index);
    }
    const gpunn_tensor *t = gpunn__member(b, group, operand->index);
    if (operand->role == GPUNN_KERNEL_VALUE) {
        int root = plan->root[t->id];
        if (!operand->written || b->model->tensors[root]->kind != GPUNN__VALUE) return gpunn__read_value(b, value, t, at);
        gpunn__describe(plan, value, t);
        value->dtype = plan->storage[root];
        int slot = plan->value_slot[root] = gpunn__new_slot(b, (size_t)value->count * gpunn_dtype_size(value->dtype), at);
        return slot >= 0 && gpunn__bind(b, &value->data, GPUNN__IN_SLOT, slot);
    }
    if (operand->index < 0) return gpunn__read_gradient(b, group, step, i, at);
    if (!gpunn__group_passes(b, group, t)) return true;
    gpunn__describe(plan, &step->grad_in[i], t);
    if (operand->shares >= 0) {
        const gpunn_tensor *node = gpunn__member(b, group, program->operands[operand->shares].index);
        int                 root = plan->gradient_root[t->id];
        if (gpunn__shares_memory(b, node, t, NULL)) {
            plan->gradient_slot[root] = plan->gradient_slot[plan->gradient_root[node->id]];
            b->writes[root]++;
            step->grad_in[i].dtype = plan->storage[root];
            return true;
        }
    }
    return gpunn__write_gradient(b, step, t, i, at);
}

static bool gpunn__group_step(gpunn__builder *b, int index, bool backward)
{
    gpunn__group               *group = &b->groups[index];
    const gpunn_kernel         *kernel = group->kernel;
    const gpunn_kernel_program *program = gpunn__program(b, group, backward);
    const gpunn_kernel_cuda    *cuda = b->model->kernels->cuda;
    int                         at = b->plan->step_count, sites = 0;
    gpunn_step *step = gpunn__new_step(b, gpunn__member(b, group, -kernel->node_count), backward, program->operand_count);
    if (step == NULL) return false;
    step->op = GPUNN_OP_GROUP;
    step->name = kernel->name;
    step->group.kernel = kernel;
    step->group.direction = (int)(program - kernel->program);
    step->group.launch = cuda ? &cuda->launch[kernel - b->model->kernels->kernels][step->group.direction] : NULL;
    step->group.batch = b->plan->batch;
    for (int k = 0; k < kernel->node_count && sites < GPUNN_KERNEL_SITES; k++) {
        const gpunn_tensor *t = b->model->tensors[group->tensors[k]];
        if (t->op == GPUNN_OP_DROPOUT && t->attr.value[0] > 0) step->group.sites[sites++] = t->attr.site;
    }
    for (int k = 0; !backward && b->plan->training && k < kernel->kept_count; k++) {
        const gpunn_kernel_kept *kept = &kernel->kept[k];
        size_t                   width = gpunn_dtype_size(gpunn__kept_dtype(b->plan, kept));
        int                      slot = gpunn__new_slot(b, (size_t)(kept->fixed + kept->batch * b->plan->batch) * width, at);
        if (slot < 0) return false;
        if (k == 0) group->slot = slot;
    }
    for (int i = 0; i < program->operand_count; i++)
        if (!gpunn__group_operand(b, group, step, i, at)) return false;
    return true;
}

static bool gpunn__forward_steps(gpunn__builder *b)
{
    gpunn__plan *plan = b->plan;
    for (int place = 0; place < b->place_count; place++) {
        int                 id = b->order[place];
        const gpunn_tensor *t = b->model->tensors[id];
        bool                own = b->needed[id] && t->kind == GPUNN__VALUE && plan->root[id] == id && b->next[id] < 0;
        if (b->group[id] >= 0 ? !gpunn__group_step(b, b->group[id], false) : own && !gpunn__forward_step(b, t)) return false;
    }
    for (int id = 0; id < plan->tensor_count; id++) {
        bool visible = b->needed[id] && gpunn__is_visible(plan, b->model->tensors[id]);
        if (visible && plan->value_slot[plan->root[id]] >= 0)
            gpunn__slot_of(plan, plan->value_slot[plan->root[id]])->last = INT32_MAX;
    }
    plan->forward_count = plan->step_count;
    return true;
}

/* ==== >>autodiff ====================================================================================================== *
 * A reshape's gradient is its operand's: one memory, no step. The first contribution to a gradient writes (=), later ones add
 * (+=); a parameter's first one adds too when it has been written since gpunn_zero_grad. Steps run by falling id. */
/* The last place before `before` where something will be added to the gradient of root, or where a group changes it as it is
 * read; -1: none. */
static int gpunn__next_contribution(const gpunn__builder *b, int root, int before)
{
    for (int place = before - 1; place > b->place[root]; place--) {
        const gpunn_tensor *t = b->model->tensors[b->order[place]];
        if (b->group[t->id] >= 0) {
            const gpunn__group *group = &b->groups[b->group[t->id]];
            for (int i = 0; i < group->kernel->external_count; i++) {
                const gpunn_tensor *external = gpunn__member(b, group, i);
                if (b->plan->gradient_root[external->id] == root && gpunn__group_passes(b, group, external)) return place;
            }
        }
        if (b->group[t->id] >= 0 || !b->behind[t->id] || !b->wants[t->id] || gpunn__is_alias(b->plan, t)) continue;
        for (int i = 0; i < t->input_count; i++)
            if (gpunn__passes_gradient(b, t, i) && b->plan->gradient_root[t->inputs[i]->id] == root) return place;
    }
    int  own = b->group[root];
    bool changes = own >= 0 && gpunn__gradient_operand(b, &b->groups[own], root, true) != NULL;
    return changes ? b->place[root] : -1;
}

/* Whether the gradient of a target may be the very memory of a node's gradient, which it equals. Everybody who shares that memory
 * must have read it, in the step of its own node, before any of them is added to. other: may share it too; NULL: nobody. */
static bool gpunn__shares_memory(const gpunn__builder *b, const gpunn_tensor *node, const gpunn_tensor *target,
                                 const gpunn_tensor *other)
{
    enum { MOST = 8 };
    const gpunn__plan *plan = b->plan;
    int                member[MOST], count = 0, root = plan->gradient_root[target->id], from = plan->gradient_root[node->id];
    if (!gpunn__same_shape(node, target) || plan->gradient_slot[from] < 0 || plan->storage[root] != plan->storage[from] ||
        plan->last[root] != plan->last[from] || b->model->tensors[root]->kind != GPUNN__VALUE || b->retained[root] ||
        b->retained[from] || b->writes[root] > 0)
        return false;
    for (int id = 0; id < plan->tensor_count; id++) {
        if (b->place[id] >= b->place[node->id]) continue;
        bool sharing = id == root || plan->gradient_slot[id] == plan->gradient_slot[from] ||
                       (other && b->wants[other->id] && plan->gradient_root[other->id] == id);
        if (!sharing) continue;
        if (count == MOST) return false;
        member[count++] = id;
    }
    for (int i = 0; i < count; i++) {
        int contribution = gpunn__next_contribution(b, member[i], b->place[node->id]);
        for (int j = 0; j < count; j++)
            if (i != j && contribution >= b->place[member[j]]) return false;
    }
    return true;
}

/* The same for the operand of an addition. */
static bool gpunn__shares_gradient(const gpunn__builder *b, const gpunn_tensor *add, int operand)
{
    return add->inputs[0] != add->inputs[1] && gpunn__shares_memory(b, add, add->inputs[operand], add->inputs[1 - operand]);
}

static bool gpunn__write_gradient(gpunn__builder *b, gpunn_step *step, const gpunn_tensor *input, int i, int at)
{
    gpunn__plan *plan = b->plan;
    int          root = plan->gradient_root[input->id];
    step->accumulate[i] = b->writes[root]++ > 0;
    step->grad_in[i].dtype = plan->storage[root];
    step->grad_in[i].channels_last = plan->last[root] && gpunn__has_layouts(input);
    if (b->model->tensors[root]->kind == GPUNN__PARAMETER) {
        if (!step->accumulate[i]) {
            plan->reached[plan->reached_count] = root;
            plan->first_write[plan->reached_count++] = &step->accumulate[i];
        }
        return gpunn__bind(b, &step->grad_in[i].data, GPUNN__IN_GRADIENT, root);
    }
    if (!step->accumulate[i]) {
        int slot = gpunn__new_slot(b, (size_t)step->grad_in[i].count * gpunn_dtype_size(step->grad_in[i].dtype), at);
        if (slot < 0) return false;
        if (b->retained[root]) plan->slots[slot].last = INT32_MAX;
        plan->gradient_slot[root] = slot;
    }
    return gpunn__use_slot(b, &step->grad_in[i].data, plan->gradient_slot[root], at);
}

/* A slot for the gradient of a misplaced operand, as the step gives it; -1: out of memory. */
static int gpunn__turned_gradient(gpunn__builder *b, gpunn_step *step, const gpunn_tensor *t, int operand, int at)
{
    gpunn_value *value = &step->grad_in[operand];
    value->dtype = b->plan->storage[b->plan->gradient_root[t->inputs[operand]->id]];
    value->channels_last = gpunn__wants_last(b, t, operand);
    int slot = gpunn__new_slot(b, (size_t)value->count * gpunn_dtype_size(value->dtype), at);
    return slot >= 0 && gpunn__bind(b, &value->data, GPUNN__IN_SLOT, slot) ? slot : -1;
}

/* The step that brings a gradient from that slot, where its channels are last or not, to the image that it belongs to. */
static bool gpunn__turn_back(gpunn__builder *b, const gpunn_tensor *image, int slot, bool last)
{
    int         at = b->plan->step_count;
    gpunn_step *step = gpunn__turn_step(b, image, last, true);
    if (step == NULL) return false;
    gpunn__describe(b->plan, &step->grad_in[0], image);
    if (!gpunn__write_gradient(b, step, image, 0, at)) return false;
    step->grad_out = step->grad_in[0];
    gpunn__as_stored(&step->grad_in[0], !last);
    gpunn__as_stored(&step->grad_out, last);
    step->in[0] = step->grad_in[0];
    step->out = step->grad_out;
    step->in[0].data = step->out.data = NULL;
    return gpunn__use_slot(b, &step->grad_out.data, slot, at);
}

/* Whether the backward step of linear t can apply the derivative of the activation that made its x. */
static bool gpunn__takes_activation(const gpunn__builder *b, const gpunn_tensor *t)
{
    const gpunn_tensor *x = t->inputs[0];
    if (t->op != GPUNN_OP_LINEAR || (x->op != GPUNN_OP_RELU && x->op != GPUNN_OP_GELU_TANH)) return false;
    const gpunn_tensor *before = x->inputs[0];
    return before->kind == GPUNN__VALUE && b->head[x->id] != x->id && b->model->tensors[b->head[x->id]]->op == GPUNN_OP_LINEAR &&
           b->uses[x->id] == 1 && b->uses[before->id] == 1 && b->wants[x->id] && !b->retained[x->id] && !b->retained[before->id];
}

static bool gpunn__backward_step(gpunn__builder *b, const gpunn_tensor *t)
{
    gpunn__plan *plan = b->plan;
    int          root = plan->gradient_root[t->id], wanted = 0;
    bool         computed[GPUNN_MAX_OPERANDS] = {false};
    int          turned[GPUNN_MAX_OPERANDS]; /* slots of gradients that are still to be turned; -1: none */
    if (t->op == GPUNN_OP_RESHAPE) return gpunn__turn_back(b, t->inputs[0], plan->gradient_slot[root], false);
    for (int i = 0; i < t->input_count; i++) {
        turned[i] = -1;
        if (!gpunn__passes_gradient(b, t, i)) continue;
        computed[i] = t->op != GPUNN_OP_ADD || !gpunn__shares_gradient(b, t, i);
        wanted += computed[i];
        if (computed[i]) continue;
        int operand = plan->gradient_root[t->inputs[i]->id];
        plan->gradient_slot[operand] = plan->gradient_slot[root];
        b->writes[operand]++;
    }
    if (wanted == 0) return true;
    int         at = plan->step_count;
    gpunn_step *step = gpunn__node_step(b, t, true);
    if (step == NULL) return false;
    bool from_loss = plan->gradient_slot[root] < 0; /* its gradient is the constant 1 */
    step->grad_out.dtype = plan->storage[root];
    step->grad_out.channels_last = plan->last[root] && gpunn__has_layouts(t);
    if (from_loss ? !gpunn__bind(b, &step->grad_out.data, GPUNN__IN_ONE, 0)
                  : !gpunn__use_slot(b, &step->grad_out.data, plan->gradient_slot[root], at))
        return false;
    for (int i = 0; i < t->input_count; i++) {
        const gpunn_tensor *target = t->inputs[i];
        if (target && gpunn__op_reads_input(t->op, i) && !gpunn__read_operand(b, &step->in[i], t, i, at)) return false;
        if (!computed[i]) continue;
        if (i == 0 && b->activates[target->id]) {
            step->activated.op = target->op;
            target = target->inputs[0];
            if (step->activated.op == GPUNN_OP_GELU_TANH && !gpunn__read_value(b, &step->activated.before, target, at))
                return false;
        }
        bool turns = target == t->inputs[i] && gpunn__is_misplaced(b, t, i);
        if (turns ? (turned[i] = gpunn__turned_gradient(b, step, t, i, at)) < 0 : !gpunn__write_gradient(b, step, target, i, at))
            return false;
    }
    if (gpunn__op_reads_output(t->op) && !gpunn__read_value(b, &step->out, t, at)) return false;
    for (int i = 0; i < t->input_count; i++)
        if (turned[i] >= 0 && !gpunn__turn_back(b, t->inputs[i], turned[i], gpunn__wants_last(b, t, i))) return false;
    return true;
}

/* Which tensors have gradients, and who computes them. */
static void gpunn__mark_gradients(gpunn__builder *b, const gpunn_tensor *loss)
{
    gpunn_model *model = b->model;
    gpunn__plan *plan = b->plan;
    for (int id = 0; id < plan->tensor_count; id++)
        if (model->tensors[id]->retain_grad && b->needed[id]) b->retained[plan->gradient_root[id]] = true;
    for (int id = 0; id < plan->tensor_count; id++) {
        const gpunn_tensor *t = model->tensors[id];
        bool                wants = b->retained[id] || (t->kind == GPUNN__PARAMETER && t->trainable);
        for (int i = 0; !wants && i < t->input_count; i++) wants = gpunn__passes_gradient(b, t, i);
        b->wants[id] = wants && b->needed[id];
    }
    b->behind[loss->id] = true;
    b->writes[plan->gradient_root[loss->id]] = 1;
    for (int id = loss->id; id >= 0; id--) {
        const gpunn_tensor *t = model->tensors[id];
        for (int i = 0; b->behind[id] && i < t->input_count; i++)
            if (t->inputs[i] && gpunn__op_has_gradient(t->op, i)) b->behind[t->inputs[i]->id] = true;
    }
}

static void gpunn__mark_activated(gpunn__builder *b)
{
    for (int id = 0; id < b->plan->tensor_count; id++) {
        const gpunn_tensor *t = b->model->tensors[id];
        if (b->behind[id] && t->kind == GPUNN__VALUE && gpunn__takes_activation(b, t)) b->activates[t->inputs[0]->id] = true;
    }
}

static bool gpunn__group_backward(gpunn__builder *b, int index)
{
    const gpunn__group *group = &b->groups[index];
    return group->kernel->loss || !gpunn__group_has_backward(b, group) || gpunn__group_step(b, index, true);
}

static bool gpunn__backward_steps(gpunn__builder *b, const gpunn_tensor *loss)
{
    for (int place = b->place[loss->id]; place >= 0; place--) {
        const gpunn_tensor *t = b->model->tensors[b->order[place]];
        if (t->op == GPUNN_OP_ATTENTION && b->behind[t->id] && t->inputs[3] && b->wants[t->inputs[3]->id]) {
            (void)gpunn__fail(b->model->dev, GPUNN_ERR_UNSUPPORTED,
                              "scaled_dot_product_attention: its mask is learned, but has no gradient there; use gpunn_matmul, "
                              "gpunn_add and gpunn_softmax instead");
            return false;
        }
        bool own = b->behind[t->id] && b->wants[t->id] && t->kind == GPUNN__VALUE && !b->activates[t->id];
        if (b->group[t->id] >= 0 ? !gpunn__group_backward(b, b->group[t->id])
                                 : own && !gpunn__is_alias(b->plan, t) && !gpunn__backward_step(b, t))
            return false;
    }
    return true;
}

/* ---- memory of a plan ------------------------------------------------------------------------------------------------ */
/* Elementwise steps work in place where their operand's memory is read by nobody later. */
static void gpunn__overlay(gpunn__plan *plan, int from, int onto, int at)
{
    gpunn__slot *target = gpunn__slot_of(plan, onto), *slot = &plan->slots[from];
    if (slot->parent != from || target == slot || slot->first != at || target->last != at || target->bytes != slot->bytes) return;
    slot->parent = target->parent;
    target->last = slot->last;
}

static void gpunn__overlay_steps(gpunn__plan *plan)
{
    for (int i = 0; i < plan->binding_count; i++) {
        const gpunn__binding *output = &plan->bindings[i];
        if (output->place != GPUNN__IN_SLOT) continue;
        int         at = plan->slots[output->index].first;
        gpunn_step *step = &plan->steps[at];
        if (!gpunn__op_elementwise(step->op)) continue;
        bool is_result = !step->backward && output->pointer == &step->out.data, is_gradient = false;
        int  wanted = 0;
        for (int k = 0; step->backward && k < step->input_count; k++) {
            wanted += step->grad_in[k].data != NULL;
            is_gradient = is_gradient || (output->pointer == &step->grad_in[k].data && !step->accumulate[k]);
        }
        if (!is_result && !(is_gradient && wanted == 1)) continue;
        for (int j = i; j >= 0 && j > i - 8; j--) { /* the bindings of a step stand together, its result's last */
            const gpunn__binding *input = &plan->bindings[j];
            bool                  operand = is_gradient ? input->pointer == &step->grad_out.data : false;
            for (int k = 0; is_result && k < step->input_count && k < 2; k++)
                operand = operand || input->pointer == &step->in[k].data;
            if (operand && input->place == GPUNN__IN_SLOT) gpunn__overlay(plan, output->index, input->index, at);
        }
    }
}

/* Offsets in the arena: slots by falling size, each in the lowest gap between those that live at the same time. */
static gpunn_status gpunn__assign_offsets(gpunn_device *dev, gpunn__plan *plan)
{
    int    count = 0;
    size_t bytes = (size_t)plan->slot_count * sizeof(int);
    int   *order = (int *)gpunn__realloc(dev, NULL, 0, bytes ? bytes : 1);
    if (order == NULL) return GPUNN_ERR_MEMORY;
    for (int i = 0; i < plan->slot_count; i++) {
        if (plan->slots[i].parent != i || plan->slots[i].bytes == 0) continue;
        int at = count++;
        for (; at > 0 && plan->slots[order[at - 1]].bytes < plan->slots[i].bytes; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    /* order[0 .. placed) is kept sorted by offset; the rest waits, by size. */
    for (int placed = 0; placed < count; placed++) {
        int          index = order[placed];
        gpunn__slot *slot = &plan->slots[index];
        size_t       offset = 0;
        for (int i = 0; i < placed; i++) {
            const gpunn__slot *other = &plan->slots[order[i]];
            if (other->last < slot->first || other->first > slot->last) continue;
            if (other->offset >= offset && other->offset - offset >= slot->bytes) break;
            size_t end = (other->offset + other->bytes + GPUNN__ALIGN - 1) / GPUNN__ALIGN * GPUNN__ALIGN;
            if (end > offset) offset = end;
        }
        slot->offset = offset;
        if (offset + slot->bytes > plan->arena_bytes) plan->arena_bytes = offset + slot->bytes;
        int at = placed;
        for (; at > 0 && plan->slots[order[at - 1]].offset > offset; at--) order[at] = order[at - 1];
        order[at] = index;
    }
    gpunn__free(dev, order, bytes ? bytes : 1);
    return GPUNN_OK;
}

/* "op 'layer': sentence (operands [..] f32, ..)". */
static gpunn_status gpunn__step_fail(gpunn_device *dev, const gpunn_step *step, gpunn_status status)
{
    char   shapes[256] = "";
    size_t used = 0;
    for (int i = 0; i < step->input_count && used + 1 < sizeof shapes; i++) {
        const gpunn_value *in = &step->in[i];
        if (in->dtype == GPUNN_DTYPE_DEFAULT) continue;
        for (int axis = -1; axis <= in->rank && used + 1 < sizeof shapes; axis++) {
            int n;
            if (axis < 0)
                n = snprintf(shapes + used, sizeof shapes - used, "%s%s [", used ? ", " : "", gpunn_dtype_name(in->dtype));
            else if (axis == in->rank)
                n = snprintf(shapes + used, sizeof shapes - used, "]");
            else
                n = snprintf(shapes + used, sizeof shapes - used, "%s%lld", axis ? ", " : "", (long long)in->dim[axis]);
            used += n > 0 ? (size_t)n : 0;
        }
    }
    return gpunn__fail(dev, status, "%s%s%s%s: %s (operands %s)", gpunn_op_name(step->op), step->name[0] ? " '" : "", step->name,
                       step->name[0] ? "'" : "", dev->backend->error(dev->context), shapes);
}

/* The forward step of the node to which the attributes belong. */
static gpunn_step *gpunn__forward_of(gpunn__plan *plan, const gpunn_attributes *attr)
{
    for (int i = 0; i < plan->forward_count; i++)
        if (plan->steps[i].attr == attr) return &plan->steps[i];
    return NULL;
}

static gpunn_tensor *gpunn__node_of(const gpunn__builder *b, const gpunn_step *step)
{
    int id = 0;
    while (step->attr != &b->model->tensors[id]->attr) id++;
    return b->model->tensors[id];
}

/* Gives a later step what the forward one saves, if it saves anything. */
static bool gpunn__share_saved(gpunn__builder *b, gpunn_step *forward, void **saved, size_t *bytes, int at)
{
    *bytes = forward->saved_bytes;
    if (*bytes == 0) return true;
    int i = 0;
    while (b->plan->bindings[i].pointer != &forward->saved) i++;
    return gpunn__use_slot(b, saved, b->plan->bindings[i].index, at);
}

/* A kernel that the backend cannot run here: its nodes are planned as single ops. */
static gpunn_status gpunn__decline_group(gpunn__builder *b, const gpunn_step *step)
{
    gpunn_device *dev = b->model->dev;
    char          text[GPUNN__ERROR_SIZE];
    (void)snprintf(text, sizeof text, "%s of %s_kernels.h is not used with a batch of %lld: %s", step->name,
                   b->model->kernels->name, (long long)b->plan->batch, dev->backend->error(dev->context));
    if (dev->args.log_fn) dev->args.log_fn(dev->args.user, GPUNN_LOG_INFO, text);
    (void)gpunn__refuse_group(b, &b->groups[b->group[gpunn__node_of(b, step)->id]]);
    return GPUNN_ERR_UNSUPPORTED;
}

/* Asks the backend what each step needs beyond its operands, and makes slots of it. */
static gpunn_status gpunn__prepare_steps(gpunn__builder *b)
{
    gpunn__plan  *plan = b->plan;
    gpunn_device *dev = b->model->dev;
    for (int at = 0; at < plan->step_count; at++) {
        gpunn_step *step = &plan->steps[at];
        if (step->backward) {
            gpunn_step *forward = gpunn__forward_of(plan, step->attr);
            if (forward && !gpunn__share_saved(b, forward, &step->saved, &step->saved_bytes, at)) return GPUNN_ERR_MEMORY;
            if (step->activated.op == GPUNN_OP_RELU) {
                const gpunn_tensor *x = gpunn__node_of(b, step)->inputs[0];
                forward = gpunn__forward_of(plan, &b->model->tensors[b->head[x->id]]->attr);
                if (!gpunn__share_saved(b, forward, &step->activated.mask, &step->activated.mask_bytes, at))
                    return GPUNN_ERR_MEMORY;
            }
        }
        gpunn_status status = dev->backend->prepare(dev->context, step);
        if (status == GPUNN_ERR_UNSUPPORTED && step->op == GPUNN_OP_GROUP) return gpunn__decline_group(b, step);
        if (status != GPUNN_OK) return gpunn__step_fail(dev, step, status);
        if (!step->backward && step->saved_bytes) {
            int saved_slot = gpunn__new_slot(b, step->saved_bytes, at);
            if (saved_slot < 0 || !gpunn__bind(b, &step->saved, GPUNN__IN_SLOT, saved_slot)) return GPUNN_ERR_MEMORY;
        }
        if (step->workspace_bytes) {
            int slot = gpunn__new_slot(b, step->workspace_bytes, at);
            if (slot < 0 || !gpunn__bind(b, &step->workspace, GPUNN__IN_SLOT, slot)) return GPUNN_ERR_MEMORY;
        }
        plan->cache_bytes += step->cache_bytes;
    }
    return GPUNN_OK;
}

/* ---- making one ------------------------------------------------------------------------------------------------------ */
/* Hands out parts of one block, or only counts their bytes while base is NULL. */
static void *gpunn__take_table(char *base, size_t *used, int count, size_t item)
{
    *used = (*used + 15) / 16 * 16;
    void *part = base ? base + *used : NULL;
    *used += (size_t)count * item;
    return part;
}

static size_t gpunn__plan_tables(gpunn__plan *plan, char *base)
{
    size_t used = 0;
    int    n = plan->tensor_count;
    plan->outputs = (gpunn_tensor **)gpunn__take_table(base, &used, plan->output_count, sizeof *plan->outputs);
    plan->root = (int *)gpunn__take_table(base, &used, n, sizeof(int));
    plan->gradient_root = (int *)gpunn__take_table(base, &used, n, sizeof(int));
    plan->value_slot = (int *)gpunn__take_table(base, &used, n, sizeof(int));
    plan->gradient_slot = (int *)gpunn__take_table(base, &used, n, sizeof(int));
    plan->storage = (gpunn_dtype *)gpunn__take_table(base, &used, n, sizeof *plan->storage);
    plan->last = (bool *)gpunn__take_table(base, &used, n, sizeof *plan->last);
    plan->inputs = (int *)gpunn__take_table(base, &used, n, sizeof(int));
    plan->reached = (int *)gpunn__take_table(base, &used, n, sizeof(int));
    plan->first_write = (bool **)gpunn__take_table(base, &used, n, sizeof *plan->first_write);
    return used;
}

/* Ids of tensors of groups at most: every node, the operands of each, and those of a pattern that is being tried. */
static int gpunn__most_ids(const gpunn_model *model)
{
    int most = model->tensor_count + 2 * GPUNN__LEFT_OUT;
    for (int id = 0; id < model->tensor_count; id++) most += model->tensors[id]->input_count;
    return most;
}

static size_t gpunn__builder_tables(gpunn__builder *b, int n, char *base)
{
    size_t used = 0;
    b->needed = (bool *)gpunn__take_table(base, &used, n, sizeof(bool));
    b->scratch = (bool *)gpunn__take_table(base, &used, n, sizeof(bool));
    b->wants = (bool *)gpunn__take_table(base, &used, n, sizeof(bool));
    b->behind = (bool *)gpunn__take_table(base, &used, n, sizeof(bool));
    b->retained = (bool *)gpunn__take_table(base, &used, n, sizeof(bool));
    b->activates = (bool *)gpunn__take_table(base, &used, n, sizeof(bool));
    b->uses = (int *)gpunn__take_table(base, &used, n, sizeof(int));
    b->head = (int *)gpunn__take_table(base, &used, n, sizeof(int));
    b->next = (int *)gpunn__take_table(base, &used, n, sizeof(int));
    b->writes = (int *)gpunn__take_table(base, &used, n, sizeof(int));
    b->cast = (int *)gpunn__take_table(base, &used, n, sizeof(int));
    b->turned = (int *)gpunn__take_table(base, &used, n, sizeof(int));
    b->place = (int *)gpunn__take_table(base, &used, n, sizeof(int));
    b->order = (int *)gpunn__take_table(base, &used, n, sizeof(int));
    b->group = (int *)gpunn__take_table(base, &used, n, sizeof(int));
    b->groups = (gpunn__group *)gpunn__take_table(base, &used, n + 1, sizeof *b->groups);
    b->ids = (int *)gpunn__take_table(base, &used, b->model->kernels ? gpunn__most_ids(b->model) : 0, sizeof(int));
    return used;
}

static gpunn_status gpunn__plan_fill(gpunn__builder *b, gpunn_tensor *const *outputs)
{
    gpunn_model *model = b->model;
    gpunn__plan *plan = b->plan;
    for (int i = 0; i < plan->output_count; i++) {
        plan->outputs[i] = outputs[i];
        b->needed[outputs[i]->id] = true;
    }
    gpunn__mark_operands(model, b->needed);
    if (plan->training) gpunn__mark_kept(model, b->needed, b->scratch);
    int values = 0, copies = 0; /* at most: of operands, and of gradients on their way back */
    for (int id = 0; id < plan->tensor_count; id++) {
        if (!b->needed[id]) continue;
        copies += model->precision == GPUNN_PRECISION_F32 ? 0 : 2 + model->tensors[id]->input_count;
        if (model->tensors[id]->kind == GPUNN__INPUT) plan->inputs[plan->input_count++] = id;
        values += model->tensors[id]->kind == GPUNN__VALUE;
        if (gpunn__count(model->tensors[id], plan->batch) < 0)
            return gpunn__fail(model->dev, GPUNN_ERR_SHAPE,
                               "batch %lld makes '%s' of op %s larger than memory can be; use a smaller batch",
                               (long long)plan->batch, model->tensors[id]->name ? model->tensors[id]->name : "",
                               gpunn_op_name(model->tensors[id]->op));
    }
    int capacity = values * (plan->training ? 2 : 1) + 1 + copies;
    plan->steps = (gpunn_step *)gpunn__calloc(model->dev, (size_t)capacity * sizeof *plan->steps);
    if (plan->steps == NULL) return GPUNN_ERR_MEMORY;
    plan->step_capacity = capacity;
    gpunn__mark_storage(b);
    gpunn__mark_roots(b);
    if (plan->training) gpunn__mark_gradients(b, outputs[0]);
    gpunn__mark_groups(b);
    if (!gpunn__mark_order(b)) return GPUNN_ERR_MEMORY;
    gpunn__mark_chains(b);
    for (int id = 0; id < plan->tensor_count && plan->training; id++) /* the loss is F32 */
        if (plan->root[id] == plan->root[outputs[0]->id]) plan->storage[id] = model->tensors[id]->dtype;
    if (plan->training) gpunn__mark_activated(b);
    if (!gpunn__forward_steps(b)) return GPUNN_ERR_MEMORY;
    if (plan->training && !gpunn__backward_steps(b, outputs[0])) return GPUNN_ERR_MEMORY;
    gpunn__overlay_steps(plan);
    gpunn_status status = gpunn__prepare_steps(b);
    return status == GPUNN_OK ? gpunn__assign_offsets(model->dev, plan) : status;
}

/* NULL after a failure, or when *again is set because a group has been refused; nothing is left behind then. */
static gpunn__plan *gpunn__plan_try(gpunn_model *model, gpunn_tensor *const *outputs, int count, bool training, int64_t batch,
                                    bool *refused, bool *again)
{
    gpunn_device *dev = model->dev;
    gpunn__plan  *plan = (gpunn__plan *)gpunn__calloc(dev, sizeof *plan);
    *again = false;
    if (plan == NULL) return NULL;
    plan->output_count = count;
    plan->training = training;
    plan->batch = batch;
    plan->tensor_count = model->tensor_count;
    gpunn__builder builder;
    memset(&builder, 0, sizeof builder);
    builder.model = model;
    builder.plan = plan;
    builder.refused = refused;
    size_t scratch_bytes = gpunn__builder_tables(&builder, model->tensor_count, NULL);
    plan->table_bytes = gpunn__plan_tables(plan, NULL);
    char        *tables = (char *)gpunn__calloc(dev, plan->table_bytes), *scratch = (char *)gpunn__calloc(dev, scratch_bytes);
    gpunn_status status = GPUNN_ERR_MEMORY;
    if (tables) (void)gpunn__plan_tables(plan, tables);
    if (tables && scratch) {
        (void)gpunn__builder_tables(&builder, model->tensor_count, scratch);
        status = gpunn__plan_fill(&builder, outputs);
    }
    gpunn__free(dev, scratch, scratch_bytes);
    *again = builder.again;
    if (status == GPUNN_OK) return plan;
    gpunn__plan_free(dev, plan);
    return NULL;
}

/* NULL after a failure; nothing is left behind then. */
static gpunn__plan *gpunn__plan_make(gpunn_model *model, gpunn_tensor *const *outputs, int count, bool training, int64_t batch)
{
    size_t       bytes = (size_t)model->tensor_count * sizeof(bool);
    bool        *refused = (bool *)gpunn__calloc(model->dev, bytes), again = refused != NULL;
    gpunn__plan *plan = NULL;
    while (again) plan = gpunn__plan_try(model, outputs, count, training, batch, refused, &again);
    gpunn__free(model->dev, refused, bytes);
    return plan;
}

/* ---- memory of a model ----------------------------------------------------------------------------------------------- */
enum {
    GPUNN__WEIGHT_ALIGN = 16
}; /* floats; of a model's weights the first is 1, the second where F16 training keeps its loss scale */

/* The gradient of a loss. */
static float *gpunn__loss_gradient(const gpunn_model *model)
{
    return model->weights + (model->precision == GPUNN_PRECISION_F16 && model->dev->info.half);
}

/* Gives every parameter, buffer and constant from tensor `from` on its offset: parameters that decay first, other parameters, the
 * rest. With apply false only returns how many floats there would be. */
static int64_t gpunn__lay_out(gpunn_model *model, bool apply, int64_t *gradient_count)
{
    int64_t count = model->weight_count ? model->weight_count : (int64_t)GPUNN__WEIGHT_ALIGN;
    *gradient_count = model->gradient_count;
    for (int pass = 0; pass < 3; pass++)
        for (int id = model->laid_out; id < model->tensor_count; id++) {
            gpunn_tensor *t = model->tensors[id];
            if (t->kind != GPUNN__PARAMETER && t->kind != GPUNN__BUFFER && t->kind != GPUNN__CONSTANT) continue;
            if (pass != (t->kind != GPUNN__PARAMETER ? 2 : t->rank >= 2 ? 0 : 1)) continue;
            if (apply) t->offset = count;
            count += (gpunn__count(t, 1) + GPUNN__WEIGHT_ALIGN - 1) / GPUNN__WEIGHT_ALIGN * GPUNN__WEIGHT_ALIGN;
            if (t->kind == GPUNN__PARAMETER) *gradient_count = count;
        }
    return count;
}

GPUNN__PRIVATE float *gpunn__weights(const gpunn_tensor *t)
{
    return t->model->weights + t->offset;
}

static gpunn_status gpunn__upload_weights(gpunn_model *model, float *to, const float *host, int64_t count)
{
    gpunn_status status = model->dev->backend->upload(model->dev->context, to, host, (size_t)count * sizeof(float));
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(model->dev, "writing weights", status);
}

/* Fills fresh weights: the old ones, then the initial values of the new tensors. staging: as long as the largest part. */
static gpunn_status gpunn__fill_weights(gpunn_model *model, float *fresh, float *staging, int64_t staging_count)
{
    gpunn_device *dev = model->dev;
    gpunn_status  status = GPUNN_OK;
    for (int64_t done = 0; done < model->weight_count && status == GPUNN_OK; done += staging_count) {
        int64_t part = model->weight_count - done < staging_count ? model->weight_count - done : staging_count;
        status = dev->backend->download(dev->context, staging, model->weights + done, (size_t)part * sizeof(float));
        if (status != GPUNN_OK) return gpunn__backend_fail(dev, "reading weights", status);
        status = gpunn__upload_weights(model, fresh + done, staging, part);
    }
    if (status == GPUNN_OK && model->weight_count == 0) {
        staging[0] = 1;
        status = gpunn__upload_weights(model, fresh, staging, 1);
    }
    for (int id = model->laid_out; id < model->tensor_count && status == GPUNN_OK; id++) {
        const gpunn_tensor *t = model->tensors[id];
        if (t->offset < 0) continue;
        int64_t count = gpunn__count(t, 1);
        if (t->constant)
            memcpy(staging, t->constant, (size_t)count * sizeof(float));
        else
            gpunn__draw_tensor(t, &t->init, staging);
        status = gpunn__upload_weights(model, fresh + t->offset, staging, count);
    }
    return status;
}

GPUNN__PRIVATE gpunn_status gpunn__commit(gpunn_model *model)
{
    if (model->laid_out == model->tensor_count) return GPUNN_OK;
    gpunn_device *dev = model->dev;
    int64_t       gradient_count, count = gpunn__lay_out(model, false, &gradient_count), staging_count = GPUNN__WEIGHT_ALIGN;
    if (count == model->weight_count) {
        model->laid_out = model->tensor_count;
        return GPUNN_OK;
    }
    for (int id = model->laid_out; id < model->tensor_count; id++) {
        gpunn_tensor *t = model->tensors[id];
        if (t->kind != GPUNN__INPUT && t->kind != GPUNN__VALUE && gpunn__count(t, 1) > staging_count)
            staging_count = gpunn__count(t, 1);
    }
    float *staging = (float *)gpunn__realloc(dev, NULL, 0, (size_t)staging_count * sizeof(float));
    if (staging == NULL) return GPUNN_ERR_MEMORY;
    float       *fresh = (float *)gpunn__device_alloc(dev, (size_t)count * sizeof(float));
    gpunn_status status = fresh ? dev->backend->fill(dev->context, fresh, 0, (size_t)count * sizeof(float)) : dev->error.status;
    if (fresh && status != GPUNN_OK) status = gpunn__backend_fail(dev, "clearing weights", status);
    if (status == GPUNN_OK) {
        (void)gpunn__lay_out(model, true, &gradient_count);
        status = gpunn__fill_weights(model, fresh, staging, staging_count);
    }
    gpunn__free(dev, staging, (size_t)staging_count * sizeof(float));
    if (status != GPUNN_OK) {
        for (int id = model->laid_out; id < model->tensor_count; id++) model->tensors[id]->offset = -1;
        gpunn__device_free(dev, fresh, (size_t)count * sizeof(float));
        return status;
    }
    gpunn__device_free(dev, model->weights, (size_t)model->weight_capacity * sizeof(float));
    model->weights = fresh;
    model->weight_count = model->weight_capacity = count;
    model->gradient_count = gradient_count;
    model->laid_out = model->tensor_count;
    model->generation++;
    GPUNN__WEIGHTS_CHANGED(model);
    return GPUNN_OK;
}

/* Gradients of all parameters; zero where new. What they held is lost when parameters have been added. */
static gpunn_status gpunn__commit_gradients(gpunn_model *model)
{
    gpunn_device *dev = model->dev;
    if (model->gradient_capacity >= model->gradient_count) return GPUNN_OK;
    gpunn__device_free(dev, model->gradients, (size_t)model->gradient_capacity * sizeof(float));
    model->gradient_capacity = 0;
    model->generation++;
    size_t bytes = (size_t)model->gradient_count * sizeof(float);
    for (int id = 0; id < model->tensor_count; id++) model->tensors[id]->grad_reached = false;
    model->gradients = (float *)gpunn__device_alloc(dev, bytes);
    if (model->gradients == NULL) return dev->error.status;
    model->gradient_capacity = model->gradient_count;
    gpunn_status status = dev->backend->fill(dev->context, model->gradients, 0, bytes);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, "clearing gradients", status);
}

/* Room for the weights in 16 bits. */
static gpunn_status gpunn__commit_half(gpunn_model *model)
{
    gpunn_device *dev = model->dev;
    if (model->half_capacity >= model->weight_count) return GPUNN_OK;
    gpunn__device_free(dev, model->half, (size_t)model->half_capacity * 2);
    model->half_capacity = 0;
    model->generation++;
    model->half = gpunn__device_alloc(dev, (size_t)model->weight_count * 2);
    if (model->half == NULL) return dev->error.status;
    model->half_capacity = model->weight_count;
    model->half_stale = true;
    return GPUNN_OK;
}

/* Memory for a plan and its pointers. After a failure the plan is as it was: the next run tries again. */
static gpunn_status gpunn__plan_bind(gpunn_model *model, gpunn__plan *plan)
{
    gpunn_device *dev = model->dev;
    gpunn_status  status = gpunn__commit(model);
    if (status == GPUNN_OK && plan->training) status = gpunn__commit_gradients(model);
    if (status == GPUNN_OK && plan->half) status = gpunn__commit_half(model);
    if (status != GPUNN_OK) return status;
    if (model->arena_bytes < plan->arena_bytes) {
        gpunn__device_free(dev, model->arena, model->arena_bytes);
        model->arena_bytes = 0;
        model->last = NULL;
        model->generation++;
        model->arena = gpunn__device_alloc(dev, plan->arena_bytes);
        if (model->arena == NULL) return dev->error.status;
        model->arena_bytes = plan->arena_bytes;
    }
    for (int i = 0; i < plan->step_count; i++) {
        gpunn_step *step = &plan->steps[i];
        if (step->cache_bytes && step->cache == NULL && (step->cache = gpunn__device_alloc(dev, step->cache_bytes)) == NULL)
            return dev->error.status;
    }
    for (int i = 0; i < plan->binding_count; i++) {
        const gpunn__binding *binding = &plan->bindings[i];
        const gpunn_tensor   *t = model->tensors[binding->place == GPUNN__IN_SLOT ? 0 : binding->index];
        if (binding->place == GPUNN__IN_SLOT)
            *binding->pointer = (char *)model->arena + gpunn__slot_of(plan, binding->index)->offset;
        else if (binding->place == GPUNN__IN_HALF)
            *binding->pointer = (char *)model->half + t->offset * 2;
        else if (binding->place == GPUNN__IN_GRADIENT)
            *binding->pointer = model->gradients + t->offset;
        else
            *binding->pointer = binding->place == GPUNN__IN_ONE ? (void *)gpunn__loss_gradient(model)
                                : t->kind == GPUNN__INPUT       ? t->data
                                                                : (void *)gpunn__weights(t);
    }
    plan->generation = model->generation;
    return GPUNN_OK;
}

#ifdef GPUNN__SELDOM
#pragma GCC pop_options
#endif
/* ==== >>run =========================================================================================================== */
/* The batch that the inputs of a plan, or of the marked tensors, hold now; 0 after a failure. */
static int64_t gpunn__batch_of(gpunn_model *model, const gpunn__plan *plan, const bool *needed)
{
    const gpunn_tensor *leader = NULL;
    int                 count = plan ? plan->input_count : model->tensor_count;
    for (int i = 0; i < count; i++) {
        const gpunn_tensor *t = model->tensors[plan ? plan->inputs[i] : i];
        if (t->kind != GPUNN__INPUT || (needed && !needed[i])) continue;
        if (t->batch == 0) {
            (void)gpunn__fail(model->dev, GPUNN_ERR_STATE,
                              "input '%s' has not been written; call gpunn_write or gpunn_next before the run", t->name);
            return 0;
        }
        bool batched = false;
        for (int axis = 0; axis < t->rank; axis++) batched = batched || t->dim[axis] < 0;
        if (!batched) continue;
        if (leader && leader->batch != t->batch) {
            (void)gpunn__fail(model->dev, GPUNN_ERR_SHAPE,
                              "input '%s' holds %lld samples and input '%s' %lld; write the same batch into all", leader->name,
                              (long long)leader->batch, t->name, (long long)t->batch);
            return 0;
        }
        leader = t;
    }
    return leader ? leader->batch : 1;
}

/* The plan for the inputs as they are, first in the model's list and bound. NULL after a failure. */
static gpunn__plan *gpunn__plan_for(gpunn_model *model, gpunn_tensor *const *outputs, int count, bool training)
{
    gpunn_device *dev = model->dev;
    int64_t       batch = 0;
    int           cached = 0;
    gpunn__plan **link = &model->plans;
    for (; *link; link = &(*link)->next, cached++) {
        gpunn__plan *plan = *link;
        if (plan->training != training || plan->output_count != count ||
            memcmp(plan->outputs, outputs, (size_t)count * sizeof *outputs) != 0)
            continue;
        if (batch == 0 && (batch = gpunn__batch_of(model, plan, NULL)) == 0) return NULL;
        if (plan->batch == batch) break;
    }
    gpunn__plan *plan = *link;
    if (plan == NULL) {
        size_t bytes = (size_t)model->tensor_count * sizeof(bool);
        bool  *needed = (bool *)gpunn__calloc(dev, bytes);
        if (needed == NULL) return NULL;
        for (int i = 0; i < count; i++) needed[outputs[i]->id] = true;
        gpunn__mark_operands(model, needed);
        batch = gpunn__batch_of(model, NULL, needed);
        gpunn__free(dev, needed, bytes);
        if (batch == 0 || (plan = gpunn__plan_make(model, outputs, count, training, batch)) == NULL) return NULL;
        if (cached >= GPUNN__MAX_PLANS) {
            for (link = &model->plans; (*link)->next; link = &(*link)->next) {}
            if (model->last == *link) model->last = NULL;
            gpunn__plan_free(dev, *link);
            *link = NULL;
        }
    } else
        *link = plan->next;
    plan->next = model->plans;
    model->plans = plan;
    if (plan->generation != model->generation || model->laid_out != model->tensor_count)
        if (gpunn__plan_bind(model, plan) != GPUNN_OK) return NULL;
    if (plan->half && model->half_stale) {
        gpunn_status status = dev->backend->convert(dev->context, model->half, gpunn__half_of(model), model->weights, GPUNN_F32,
                                                    model->weight_count);
        if (status != GPUNN_OK) return (void)gpunn__backend_fail(dev, "rounding weights to 16 bits", status), (gpunn__plan *)NULL;
        model->half_stale = false;
    }
    model->batch = batch;
    model->last = plan;
    return plan;
}

static gpunn_status gpunn__run_steps(gpunn_device *dev, gpunn__plan *plan, int from, int to)
{
    for (int i = from; i < to; i++) {
        gpunn_status status = dev->backend->run(dev->context, &plan->steps[i]);
        if (status != GPUNN_OK) return gpunn__step_fail(dev, &plan->steps[i], status);
    }
    return GPUNN_OK;
}

/* A plan as one piece, for backends that execute whole runs. */
static gpunn_run gpunn__whole_run(gpunn_model *model, gpunn__plan *plan)
{
    gpunn_run run;
    memset(&run, 0, sizeof run);
    run.steps = plan->steps;
    run.step_count = plan->step_count;
    run.state = &model->state;
    run.captured = plan->captured;
    run.signature = plan->generation;
    for (int i = 0; i < plan->reached_count; i++) /* FNV-1a */
        run.signature = (run.signature ^ (uint64_t)(*plan->first_write[i] ? 2 : 1)) * UINT64_C(0x100000001B3);
    return run;
}

GPUNN_API gpunn_status gpunn_forward(gpunn_tensor *const *outputs, int count)
{
    if (outputs == NULL || count < 1 || outputs[0] == NULL)
        return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT,
                           "gpunn_forward: no outputs, or the first is NULL; a builder failed before: see gpunn_error");
    gpunn_model *model = outputs[0]->model;
    for (int i = 1; i < count; i++)
        if (outputs[i] == NULL || outputs[i]->model != model)
            return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT, "gpunn_forward: output %d %s", i,
                               outputs[i] ? "belongs to another model than output 0; run each model by itself"
                                          : "is NULL; a builder failed before");
    gpunn__plan  *plan = gpunn__plan_for(model, outputs, count, false);
    gpunn_device *dev = model->dev;
    if (plan == NULL) return dev->error.status;
    if (dev->backend->execute == NULL) return gpunn__run_steps(dev, plan, 0, plan->step_count);
    gpunn_run    run = gpunn__whole_run(model, plan);
    gpunn_status status = gpunn__execute(dev, &run, "gpunn_forward");
    plan->captured = run.captured;
    return status;
}

/* Backend memory of a tensor and its bytes now, as the program counts them; NULL after a failure. */
static void *gpunn__memory_of(gpunn_tensor *t, bool gradient, size_t *bytes);

/* Forward, loss, backward, one part after another. */
static gpunn_status gpunn__run_training(gpunn_tensor *loss, gpunn__plan *plan)
{
    gpunn_device *dev = loss->model->dev;
    gpunn_status  status = gpunn__run_steps(dev, plan, 0, plan->forward_count);
    if (status != GPUNN_OK) return status;
    float value = gpunn_item(loss);
    if (!(value - value == 0))
        return gpunn__fail(dev, GPUNN_ERR_NUMERIC, GPUNN__BAD_VALUE, "loss", gpunn__not_finite(value),
                           (unsigned long long)loss->model->state.step);
    return gpunn__run_steps(dev, plan, plan->forward_count, plan->step_count);
}

GPUNN__PRIVATE gpunn_status gpunn__gradients(gpunn_tensor *loss, gpunn_optimizer *opt)
{
    if (loss == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "the loss is NULL; a builder failed before: see gpunn_error");
    gpunn_model  *model = loss->model;
    gpunn_device *dev = model->dev;
    if (loss->dtype != GPUNN_F32 || loss->kind != GPUNN__VALUE || gpunn__count(loss, 1) != 1 || gpunn__count(loss, 2) != 1) {
        char text[128];
        return gpunn__fail(dev, GPUNN_ERR_SHAPE,
                           "the loss is %s %s; it must be one computed f32 number: reduce it with gpunn_mean or gpunn_sum",
                           gpunn_dtype_name(loss->dtype), gpunn__shape_text(loss, text));
    }
    gpunn__plan *plan = gpunn__plan_for(model, &loss, 1, true);
    if (plan == NULL) return dev->error.status;
    if (plan->reached_count == 0 && plan->step_count == plan->forward_count)
        return gpunn__fail(dev, GPUNN_ERR_STATE,
                           "the loss depends on no trainable parameter; unfreeze one with gpunn_set_trainable");
    for (int i = 0; i < plan->reached_count; i++) *plan->first_write[i] = model->tensors[plan->reached[i]]->grad_reached;
    model->state.step++;
    model->state.weights_version++; /* running statistics */
    gpunn_status status;
    if (dev->backend->execute == NULL) {
        status = gpunn__run_training(loss, plan);
        for (int i = 0; i < plan->reached_count && status == GPUNN_OK; i++) model->tensors[plan->reached[i]]->grad_reached = true;
        return status == GPUNN_OK && opt ? gpunn__optimizer_update(opt) : status;
    }
    gpunn_run run = gpunn__whole_run(model, plan);
    size_t    bytes;
    run.loss = (const float *)gpunn__memory_of(loss, false, &bytes);
    if (model->precision == GPUNN_PRECISION_F16) run.loss_gradient = gpunn__loss_gradient(model);
    for (int i = 0; i < plan->reached_count; i++) model->tensors[plan->reached[i]]->grad_reached = true;
    if (opt) gpunn__optimizer_collect(opt, &run);
    status = gpunn__execute(dev, &run, opt ? "gpunn_train_step" : "gpunn_backward");
    plan->captured = run.captured;
    for (int i = 0; i < plan->reached_count && status != GPUNN_OK; i++)
        model->tensors[plan->reached[i]]->grad_reached = *plan->first_write[i];
    if (opt && status == GPUNN_OK) gpunn__optimizer_advance(opt);
    return status;
}

GPUNN_API gpunn_status gpunn_backward(gpunn_tensor *loss)
{
    return gpunn__gradients(loss, NULL);
}

GPUNN_API gpunn_status gpunn_zero_grad(gpunn_model *model)
{
    if (model == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "gpunn_zero_grad: the model is NULL");
    for (int id = 0; id < model->tensor_count; id++) model->tensors[id]->grad_reached = false;
    return GPUNN_OK;
}

/* ---- generated kernels ----------------------------------------------------------------------------------------------- */
/* Whether the kernel's pattern occurs in the model; if not, *missing (may be NULL) is what the first of its nodes that occurs
 * nowhere would be, or stays NULL. */
static bool gpunn__kernel_occurs(const gpunn_model *model, const gpunn_kernel *kernel, const char **missing)
{
    int ids[2 * GPUNN__LEFT_OUT];
    for (int id = 0; id < model->tensor_count; id++)
        if (gpunn__find_pattern(model, kernel, model->tensors[id], ids)) return true;
    for (int k = 0; k < kernel->node_count && missing && *missing == NULL; k++) {
        char text[GPUNN__TEXT_SIZE];
        bool there = false;
        for (int id = 0; id < model->tensor_count && !there; id++) {
            gpunn__node_text(model->tensors[id], text, sizeof text);
            there = strcmp(text, kernel->nodes[k].text) == 0;
        }
        if (!there) *missing = kernel->nodes[k].text;
    }
    return false;
}

/* Says how much of a set for another model serves this one: as a warning, or, in strict use, as an error. */
static gpunn_status gpunn__report_stale(gpunn_model *model, const gpunn_kernel_set *set, gpunn_kernel_policy policy)
{
    gpunn_device       *dev = model->dev;
    int                 found = 0;
    const gpunn_kernel *stale = NULL;
    const char         *missing = NULL;
    char                why[GPUNN__TEXT_SIZE + 128] = "", text[GPUNN__ERROR_SIZE];
    for (int i = 0; i < set->kernel_count; i++) {
        bool occurs = gpunn__kernel_occurs(model, &set->kernels[i], stale ? NULL : &missing);
        found += occurs;
        if (!occurs && stale == NULL) stale = &set->kernels[i];
    }
    if (stale && missing)
        (void)snprintf(why, sizeof why, " %s (%s) finds no '%s' here;", stale->name, stale->formula, missing);
    else if (stale)
        (void)snprintf(why, sizeof why, " %s (%s) finds its nodes connected otherwise;", stale->name, stale->formula);
    (void)snprintf(text, sizeof text,
                   "%s_kernels.h was made for another model: %d of its %d kernels serve this one;%s renew it: %s", set->name,
                   found, set->kernel_count, why, set->command);
    if (policy == GPUNN_KERNELS_STRICT) return gpunn__fail(dev, GPUNN_ERR_STATE, "gpunn_use_kernels: %s", text);
    if (dev->args.log_fn) dev->args.log_fn(dev->args.user, GPUNN_LOG_WARNING, text);
    return GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_use_kernels_(gpunn_model *model, const gpunn_kernel_set *set, gpunn_kernels_args args)
{
    if (model == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "gpunn_use_kernels: the model is NULL");
    gpunn_device *dev = model->dev;
    const char   *environment = getenv("GPUNN_KERNELS");
    char          hash[65] = "";
    if ((int)args.policy < GPUNN_KERNELS_AUTO || args.policy > GPUNN_KERNELS_OFF)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_use_kernels: policy %d is none; use GPUNN_KERNELS_AUTO, _STRICT or _OFF", (int)args.policy);
    if (args.policy == GPUNN_KERNELS_OFF || (environment && strcmp(environment, "off") == 0)) set = NULL;
    int abi = set == NULL ? GPUNN_KERNELS_ABI : set->cuda && set->abi == GPUNN_KERNELS_ABI ? set->cuda->abi : set->abi;
    if (abi != GPUNN_KERNELS_ABI)
        return gpunn__fail(
            dev, GPUNN_ERR_UNSUPPORTED,
            "gpunn_use_kernels: these kernels are for version %d of the contract and this gpunn.h has %d; renew them "
            "with the generator that came with it",
            abi, GPUNN_KERNELS_ABI);
    if (set && set->cuda && set->cuda->stamp != set->stamp)
        return gpunn__fail(
            dev, GPUNN_ERR_STATE,
            "gpunn_use_kernels: %s_kernels.cu was compiled with another %s_kernels.h than this program; compile both again",
            set->name, set->name);
    if (set && set->tensor_count <= model->tensor_count) gpunn__model_sha256(model, set->tensor_count, hash);
    bool         exact = set && strcmp(hash, set->spec_sha256) == 0;
    gpunn_status status = set && !exact ? gpunn__report_stale(model, set, args.policy) : GPUNN_OK;
    if (status != GPUNN_OK) return status;
    if (set && set->cuda == NULL && dev->info.type == GPUNN_DEVICE_CUDA) {
        char text[GPUNN__ERROR_SIZE];
        (void)snprintf(text, sizeof text, "%s_kernels.cu is not linked, so the GPU runs single ops; add it to the compile line",
                       set->name);
        if (args.policy == GPUNN_KERNELS_STRICT) return gpunn__fail(dev, GPUNN_ERR_STATE, "gpunn_use_kernels: %s", text);
        if (dev->args.log_fn) dev->args.log_fn(dev->args.user, GPUNN_LOG_WARNING, text);
    }
    gpunn__invalidate(model);
    model->kernels = set;
    model->kernels_exact = exact;
    return GPUNN_OK;
}

/* ---- reading and writing --------------------------------------------------------------------------------------------- */
/* What messages call a tensor. */
static const char *gpunn__called(const gpunn_tensor *t)
{
    return t->name ? t->name : t->layer ? t->layer : gpunn_op_name(t->op);
}

static void *gpunn__memory_of(gpunn_tensor *t, bool gradient, size_t *bytes)
{
    gpunn_model  *model = t->model;
    gpunn_device *dev = model->dev;
    gpunn__plan  *plan = model->last;
    int64_t       batch = plan && t->kind == GPUNN__VALUE ? plan->batch : t->kind == GPUNN__INPUT && t->batch ? t->batch : 1;
    const char   *name = gpunn__called(t);
    *bytes = (size_t)gpunn__count(t, batch) * gpunn_dtype_size(t->dtype);
    if (t->kind == GPUNN__PARAMETER || t->kind == GPUNN__BUFFER || t->kind == GPUNN__CONSTANT) {
        if (gpunn__commit(model) != GPUNN_OK) return NULL;
        if (!gradient) return gpunn__weights(t);
        if (t->kind == GPUNN__PARAMETER && t->grad_reached) return model->gradients + t->offset;
        return GPUNN__FAIL_NULL(dev, GPUNN_ERR_STATE,
                                "'%s' has no gradient; call gpunn_backward or gpunn_train_step on a loss that depends on it",
                                name);
    }
    if (gradient) {
        int slot = plan && plan->training && t->id < plan->tensor_count && t->retain_grad
                       ? plan->gradient_slot[plan->gradient_root[t->id]]
                       : -1;
        if (slot >= 0) return (char *)model->arena + gpunn__slot_of(plan, slot)->offset;
        return GPUNN__FAIL_NULL(dev, GPUNN_ERR_STATE, "'%s' has no gradient: %s", name,
                                t->retain_grad ? "the loss of the last run does not depend on it, or there was no gpunn_backward"
                                               : "call gpunn_retain_grad on it before gpunn_backward");
    }
    if (t->kind == GPUNN__INPUT) {
        if (t->batch) return t->data;
        return GPUNN__FAIL_NULL(dev, GPUNN_ERR_STATE, "input '%s' has not been written", name);
    }
    if (plan && t->id < plan->tensor_count) {
        const gpunn_tensor *root = model->tensors[plan->root[t->id]];
        int                 slot = plan->value_slot[root->id];
        if (root->kind != GPUNN__VALUE && gpunn__is_visible(plan, t))
            return root->kind == GPUNN__INPUT ? root->data : (void *)gpunn__weights(root);
        if (slot >= 0 && gpunn__is_visible(plan, t)) return (char *)model->arena + gpunn__slot_of(plan, slot)->offset;
    }
    return GPUNN__FAIL_NULL(
        dev, GPUNN_ERR_STATE,
        "'%s' was not an output of the last run, so its memory has been used again; pass it to gpunn_forward, or call "
        "gpunn_keep on it before the run",
        name);
}

/* The dtype in which the last run left a value or a gradient. */
static gpunn_dtype gpunn__stored_as(const gpunn_tensor *t, bool gradient)
{
    const gpunn__plan *plan = t->model->last;
    if (plan == NULL || t->id >= plan->tensor_count) return t->dtype;
    return plan->storage[gradient ? plan->gradient_root[t->id] : plan->root[t->id]];
}

/* Images of floats that came with their channels last. */
static gpunn_status gpunn__channels_first(const gpunn_tensor *t, void *host, size_t bytes)
{
    float *copy = (float *)gpunn__realloc(t->model->dev, NULL, 0, bytes);
    if (copy == NULL) return GPUNN_ERR_MEMORY;
    memcpy(copy, host, bytes);
    int64_t channels = t->dim[1], area = t->dim[2] * t->dim[3], images = (int64_t)(bytes / sizeof *copy) / (channels * area);
    for (int64_t n = 0; n < images; n++)
        for (int64_t i = 0; i < area; i++)
            for (int64_t c = 0; c < channels; c++)
                memcpy((float *)host + (n * channels + c) * area + i, copy + (n * area + i) * channels + c, sizeof *copy);
    gpunn__free(t->model->dev, copy, bytes);
    return GPUNN_OK;
}

static gpunn_status gpunn__read(gpunn_tensor *t, bool gradient, void *host, size_t bytes, const char *caller)
{
    if (t == NULL || host == NULL)
        return gpunn__fail(t ? t->model->dev : NULL, GPUNN_ERR_ARGUMENT, "%s: the %s is NULL", caller,
                           t ? "host pointer" : "tensor");
    gpunn_device *dev = t->model->dev;
    size_t        expected;
    const void   *memory = gpunn__memory_of(t, gradient, &expected);
    if (memory == NULL) return dev->error.status;
    if (bytes != expected) {
        char text[128];
        return gpunn__fail(dev, GPUNN_ERR_SHAPE, "%s '%s': %zu bytes asked for, but it holds %zu (%s %s); see gpunn_tensor_bytes",
                           caller, gpunn__called(t), bytes, expected, gpunn_dtype_name(t->dtype), gpunn__shape_text(t, text));
    }
    gpunn_dtype  stored = gpunn__stored_as(t, gradient);
    size_t       narrow = stored == t->dtype ? bytes : bytes / 2;
    char        *at = (char *)host + (bytes - narrow); /* 16-bit values arrive at the end, and are widened from the front */
    gpunn_status status = dev->backend->download(dev->context, at, memory, narrow);
    if (status != GPUNN_OK) return gpunn__backend_fail(dev, caller, status);
    for (size_t i = 0; stored != t->dtype && i < narrow; i += 2) {
        uint16_t bits;
        memcpy(&bits, at + i, 2);
        float value = stored == GPUNN_F16 ? gpunn__float_of_half(bits) : gpunn__float_of_bits((uint32_t)bits << 16);
        memcpy((char *)host + 2 * i, &value, sizeof value);
    }
    const gpunn__plan *plan = t->model->last;
    bool               known = plan && t->id < plan->tensor_count && gpunn__has_layouts(t);
    return known && plan->last[gradient ? plan->gradient_root[t->id] : plan->root[t->id]] ? gpunn__channels_first(t, host, bytes)
                                                                                          : GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_read(gpunn_tensor *t, void *host, size_t bytes)
{
    return gpunn__read(t, false, host, bytes, "gpunn_read");
}

GPUNN_API gpunn_status gpunn_read_grad(gpunn_tensor *t, void *host, size_t bytes)
{
    return gpunn__read(t, true, host, bytes, "gpunn_read_grad");
}

GPUNN_API float gpunn_item(gpunn_tensor *t)
{
    float   value = NAN;
    int64_t integer = 0;
    if (t && t->dtype == GPUNN_I64)
        return gpunn__read(t, false, &integer, sizeof integer, "gpunn_item") == GPUNN_OK ? (float)integer : NAN;
    if (t && t->dtype != GPUNN_F32)
        (void)gpunn__fail(t->model->dev, GPUNN_ERR_DTYPE, "gpunn_item '%s': it is %s; only f32 and i64 are read",
                          gpunn__called(t), gpunn_dtype_name(t->dtype));
    else if (gpunn__read(t, false, &value, sizeof value, "gpunn_item") != GPUNN_OK)
        value = NAN;
    return value;
}

static gpunn_status gpunn__write_input(gpunn_tensor *t, const void *host, size_t bytes)
{
    gpunn_device *dev = t->model->dev;
    size_t        sample = (size_t)gpunn__count(t, 1) * gpunn_dtype_size(t->dtype);
    bool          batched = gpunn__count(t, 2) != gpunn__count(t, 1);
    if (batched ? bytes == 0 || bytes % sample != 0 : bytes != sample) {
        char text[128];
        return gpunn__fail(dev, GPUNN_ERR_SHAPE, "gpunn_write '%s': %zu bytes given, but %s %s takes %s%zu", t->name, bytes,
                           gpunn_dtype_name(t->dtype), gpunn__shape_text(t, text), batched ? "a positive multiple of " : "",
                           sample);
    }
    if (t->capacity < bytes) {
        gpunn__device_free(dev, t->data, t->capacity);
        t->capacity = 0;
        t->batch = 0;
        t->model->generation++;
        t->data = gpunn__device_alloc(dev, bytes);
        if (t->data == NULL) return dev->error.status;
        t->capacity = bytes;
    }
    t->batch = batched ? (int64_t)(bytes / sample) : 1;
    if (batched && t->model->last == NULL) t->model->batch = t->batch;
    gpunn_status status = dev->backend->upload(dev->context, t->data, host, bytes);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, "gpunn_write", status);
}

GPUNN_API gpunn_status gpunn_write(gpunn_tensor *t, const void *host, size_t bytes)
{
    if (t == NULL || host == NULL)
        return gpunn__fail(t ? t->model->dev : NULL, GPUNN_ERR_ARGUMENT, "gpunn_write: the %s is NULL",
                           t ? "host pointer" : "tensor");
    gpunn_device *dev = t->model->dev;
    if (t->kind == GPUNN__INPUT) return gpunn__write_input(t, host, bytes);
    if (t->kind != GPUNN__PARAMETER && t->kind != GPUNN__BUFFER)
        return gpunn__fail(dev, GPUNN_ERR_STATE, "gpunn_write '%s': only inputs, parameters and buffers can be written",
                           gpunn__called(t));
    size_t expected = (size_t)gpunn__count(t, 1) * sizeof(float);
    if (bytes != expected) {
        char text[128];
        return gpunn__fail(dev, GPUNN_ERR_SHAPE, "gpunn_write '%s': %zu bytes given, but f32 %s takes %zu", t->name, bytes,
                           gpunn__shape_text(t, text), expected);
    }
    gpunn_status status = gpunn__commit(t->model);
    if (status != GPUNN_OK) return status;
    GPUNN__WEIGHTS_CHANGED(t->model);
    return gpunn__upload_weights(t->model, gpunn__weights(t), (const float *)host, (int64_t)(bytes / sizeof(float)));
}

/* ---- summary --------------------------------------------------------------------------------------------------------- */
typedef struct gpunn__text {
    void (*write)(void *user, const char *text);
    void *user;
} gpunn__text;

static void gpunn__text_line(const gpunn__text *out, const char *format, ...) GPUNN__PRINTF(2, 3);
static void gpunn__text_line(const gpunn__text *out, const char *format, ...)
{
    char    line[256];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (out->write) out->write(out->user, line);
}

static void gpunn__summary_rows(const gpunn_model *model, const gpunn__plan *plan, const gpunn__text *out)
{
    char shape[128], row[160];
    gpunn__text_line(out, "%-36s %-28s %12s\n", "layer", "shape", "parameters");
    int64_t total = 0, trainable = 0;
    for (int id = 0; id < plan->tensor_count; id++) {
        const gpunn_tensor *t = model->tensors[id];
        bool                computed = t->kind == GPUNN__VALUE &&
                        (plan->root[id] != id || plan->value_slot[id] >= 0 || gpunn__is_alias(plan, t));
        bool read = false;
        for (int i = 0; i < plan->input_count; i++) read = read || plan->inputs[i] == id;
        if (!computed && !read) continue;
        int64_t own = 0;
        for (int i = 0; i < t->input_count; i++) {
            const gpunn_tensor *p = t->inputs[i];
            if (p == NULL || p->kind != GPUNN__PARAMETER) continue;
            own += gpunn__count(p, 1);
            trainable += p->trainable ? gpunn__count(p, 1) : 0;
        }
        total += own;
        (void)snprintf(row, sizeof row, "%s%s%s", read ? "input" : gpunn_op_name(t->op), t->layer || t->name ? " " : "",
                       t->layer  ? t->layer
                       : t->name ? t->name
                                 : "");
        gpunn__text_line(out, "%-36.60s %-28s %12lld\n", row, gpunn__shape_text(t, shape), (long long)own);
    }
    gpunn__text_line(out, "parameters %lld, of which %lld train\n", (long long)total, (long long)trainable);
}

GPUNN_API gpunn_status gpunn_model_summary_(gpunn_model *model, gpunn_summary_args args)
{
    if (model == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "gpunn_model_summary: the model is NULL");
    gpunn_device *dev = model->dev;
    int64_t       batch = args.batch_size ? args.batch_size : 1;
    int           count = 0;
    gpunn_tensor *outputs[8] = {args.loss};
    if (args.loss)
        count = 1;
    else
        for (; count < 8 && args.outputs[count]; count++) outputs[count] = args.outputs[count];
    for (int id = model->tensor_count - 1; id >= 0 && args.outputs[0] == NULL && args.loss == NULL && count < 8; id--) {
        gpunn_tensor *t = model->tensors[id];
        bool          is_read = t->kind != GPUNN__VALUE;
        for (int other = id + 1; other < model->tensor_count && !is_read; other++)
            for (int i = 0; i < model->tensors[other]->input_count; i++)
                is_read = is_read || model->tensors[other]->inputs[i] == t;
        if (!is_read) outputs[count++] = t;
    }
    if (count == 0 || batch < 1)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "gpunn_model_summary: %s",
                           batch < 1 ? "batch_size is negative" : "the model computes nothing yet");
    for (int i = 0; i < count; i++)
        if (outputs[i]->model != model)
            return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "gpunn_model_summary: output %d belongs to another model", i);
    gpunn__plan *plan = gpunn__plan_make(model, outputs, count, args.loss != NULL, batch);
    if (plan == NULL) return dev->error.status;
    int64_t gradient_count, weight_count = gpunn__lay_out(model, false, &gradient_count);
    size_t  inputs = 0, weights = (size_t)weight_count * (sizeof(float) + (plan->half ? 2 : 0)), arena = plan->arena_bytes,
           cache = plan->cache_bytes;
    size_t gradients = args.loss ? (size_t)gradient_count * sizeof(float) : (size_t)model->gradient_capacity * sizeof(float);
    for (int i = 0; i < plan->input_count; i++) {
        const gpunn_tensor *t = model->tensors[plan->inputs[i]];
        size_t              bytes = (size_t)gpunn__count(t, batch) * gpunn_dtype_size(t->dtype);
        inputs += bytes > t->capacity ? bytes : t->capacity;
    }
    if (arena < model->arena_bytes) arena = model->arena_bytes;
    gpunn__text out;
    out.write = args.write;
    out.user = args.user;
    gpunn__summary_rows(model, plan, &out);
    gpunn__text_line(&out, "bytes at batch %lld: weights %zu, gradients %zu, inputs %zu, arena %zu, cache %zu, together %zu\n",
                     (long long)batch, weights, gradients, inputs, arena, cache, weights + gradients + inputs + arena + cache);
    if (args.bytes) *args.bytes = weights + gradients + inputs + arena + cache;
    gpunn__plan_free(dev, plan);
    return GPUNN_OK;
}

/* ==== the CPU backend's common ground ================================================================================= *
 * Every op of GPUNN_OTHER_OPS is one function gpunn__cpu_<name>(cpu, step, action), its forward and backward beside each other;
 * the elementwise ops come from their tables (>>map). */
typedef enum gpunn__action { GPUNN__PREPARE, GPUNN__FORWARD, GPUNN__BACKWARD } gpunn__action;

typedef struct gpunn__cpu {
    int          threads;
    gpunn__error error;
    void *(*realloc_fn)(void *user, void *ptr, size_t old_size, size_t new_size);
    void *user;
} gpunn__cpu;

/* Sets the sentence that the core completes with op, layer and shapes. */
GPUNN__PRIVATE gpunn_status gpunn__cpu_fail(gpunn__cpu *cpu, gpunn_status status, const char *format, ...) GPUNN__PRINTF(3, 4);

/* Threads worth using for so many units of work (about one float read, computed and written each; a flop of a product counts
 * 1/16). */
GPUNN__INLINE int gpunn__cpu_threads(const gpunn__cpu *cpu, int64_t work)
{
    int64_t useful = work / 65536;
    return useful >= cpu->threads ? cpu->threads : useful > 1 ? (int)useful : 1;
}

GPUNN__INLINE int64_t gpunn__least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The part of n items, in multiples of grain, that thread `index` of `threads` takes. */
GPUNN__INLINE void gpunn__cpu_part(int64_t n, int64_t grain, int threads, int index, int64_t *begin, int64_t *end)
{
    int64_t blocks = (n + grain - 1) / grain;
    *begin = blocks * index / threads * grain;
    *end = blocks * (index + 1) / threads * grain;
    if (*begin > n) *begin = n;
    if (*end > n) *end = n;
}

/* Denormal floats, which gradients and momenta that fade away become, cost a hundred times the work of others: while the backend
 * computes they count as zero. Returns the processor's mode before, for gpunn__cpu_restore. */
GPUNN__INLINE unsigned gpunn__cpu_flush_denormals(void)
{
#if defined(__SSE__) && defined(__GNUC__)
    unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | 0x8040u); /* flush to zero, denormals are zero */
    return mode;
#else
    return 0;
#endif
}

GPUNN__INLINE void gpunn__cpu_restore(unsigned mode)
{
#if defined(__SSE__) && defined(__GNUC__)
    __builtin_ia32_ldmxcsr(mode);
#else
    (void)mode;
#endif
}

/* Runs task(arg, index, threads) on that many threads; the count that it is told may be smaller than asked for. Split work by it
 * with gpunn__cpu_part; anything summed across items must be split into parts that do not depend on it, so that results never
 * do. */
typedef void (*gpunn__cpu_task)(void *arg, int index, int threads);
GPUNN__INLINE void gpunn__cpu_parallel(int threads, gpunn__cpu_task task, void *arg)
{
#ifdef _OPENMP
    if (threads > 1) {
        GPUNN__OMP(parallel num_threads(threads))
        {
            unsigned mode = gpunn__cpu_flush_denormals();
            task(arg, omp_get_thread_num(), omp_get_num_threads());
            gpunn__cpu_restore(mode);
        }
        return;
    }
#endif
    (void)threads;
    task(arg, 0, 1);
}

/* Inside a task: waits for all its threads. */
GPUNN__INLINE void gpunn__cpu_barrier(void)
{
    GPUNN__OMP(barrier)
}

/* ==== >>gemm ========================================================================================================== *
 * Matrix products. C is cut into panels of as many columns as three vectors hold. A panel of B, GPUNN__GEMM_DEPTH rows deep, is
 * packed so that it stays near while rows of A pass by; A is read where it is, by broadcasts, whatever its strides. element
 * of C is summed in an order that depends on the sizes only: never on threads, tiles or alignment. */
#define GPUNN__GEMM_DEPTH 256 /* most rows of a packed panel */
#define GPUNN__GEMM_GROUP 8   /* most panels that pass by a chunk of A ... */
#define GPUNN__GEMM_ROWS 32   /* ... of so many rows, while these are in the first-level cache */

typedef struct gpunn__gemm { /* C[m, n] (=, or += with accumulate) A[m, k] B[k, n], then the epilogue */
    int64_t      m, n, k;
    const float *a;
    int64_t      a_row, a_col; /* A(i, p) = a[i * a_row + p * a_col] */
    const float *b;
    int64_t      b_row, b_col; /* B(p, j) = b[p * b_row + j * b_col] */
    /* Instead of b: writes rows p .. p + pc, columns j .. j + jc of B to packed[row * width + column], and 0 in columns
     * jc .. width. Several threads call it at once. */
    void (*pack_b)(const void *user, int64_t p, int64_t pc, int64_t j, int64_t jc, int64_t width, float *packed);
    const void  *pack_user;
    const float *packed_b; /* instead of b: what gpunn__gemm_pack_b made of it */
    float       *c;
    int64_t      c_row; /* C(i, j) = c[i * c_row + j] */
    bool         accumulate;
    /* Epilogue: c = c * scale + shift per row and per column (each may be NULL), + residual (strides of C), then relu. */
    const float *scale_row, *shift_row, *scale_col, *shift_col, *residual;
    bool         relu;
    int64_t      panels; /* of B that the scratch of gpunn__gemm_block holds; 0: 1. Set by gpunn__gemm_run */
} gpunn__gemm;

typedef struct gpunn__panel { /* one panel of C, columns <= 3 vectors, for one block of k */
    int64_t      rows, columns, k;
    const float *a;
    int64_t      a_row, a_col;
    const float *b; /* rows of whole vectors, b_row apart */
    int64_t      b_row;
    float       *c;
    int64_t      c_row;
    bool         add, relu;
    const float *shift_row, *shift_col; /* what the sums start from; NULL: 0 */
} gpunn__panel;

/* To whole vectors. */
GPUNN__INLINE int64_t gpunn__round_up(int64_t n, int64_t lanes)
{
    return (n + lanes - 1) & ~(lanes - 1);
}

/* A set of kernels for one kind of vector. */
typedef struct gpunn__gemm_kernels {
    const char *name;
    int64_t     lanes;
    void (*panel)(const gpunn__panel *t);
    /* packed[row * width + column] = b[row * b_row + column], 0 behind the given columns; width is a multiple of lanes. */
    void (*copy)(const float *b, int64_t b_row, int64_t rows, int64_t columns, int64_t width, float *packed);
    /* The same from b[row + column * b_col]. */
    void (*turn)(const float *b, int64_t b_col, int64_t rows, int64_t columns, int64_t width, float *packed);
    /* C (=, +=) A B^T for rows that are contiguous along k in both: A[m, k] lies a_row apart, B[n, k] b_row. */
    void (*dots)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, const float *b, int64_t b_row, float *c,
                 int64_t c_row, bool add);
} gpunn__gemm_kernels;

#if defined(__GNUC__) && !defined(GPUNN_NO_SIMD)
#define GPUNN__VECTORS 1
#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__) || !defined(_WIN32) /* mingw's gcc does not align wide vectors on the stack */
#define GPUNN__WIDE 1
#endif
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef float gpunn__quad __attribute__((vector_size(16)));
typedef float gpunn__quad_memory __attribute__((vector_size(16), aligned(4), may_alias));

/* clang would turn short loops over vectors into calls of memcpy through memory. */
#if defined(__clang__)
#define GPUNN__KERNEL no_builtin("memcpy", "memset")
#define GPUNN__UNROLL _Pragma("clang loop unroll(full)")
#define GPUNN__SHUFFLE(x, y, a, b, c, d) __builtin_shufflevector(x, y, a, b, c, d)
#else
#define GPUNN__KERNEL
typedef int gpunn__quad_index __attribute__((vector_size(16)));
#define GPUNN__UNROLL _Pragma("GCC unroll 16")
#if defined(__CUDACC__)
#pragma nv_diag_suppress 1675 /* nvcc does not know that pragma, but hands it on */
#endif
#define GPUNN__SHUFFLE(x, y, a, b, c, d) __builtin_shuffle(x, y, __extension__(gpunn__quad_index){a, b, c, d})
#endif

GPUNN__INLINE void gpunn__transpose4(gpunn__quad q[4])
{
    gpunn__quad a = GPUNN__SHUFFLE(q[0], q[1], 0, 4, 1, 5), b = GPUNN__SHUFFLE(q[0], q[1], 2, 6, 3, 7);
    gpunn__quad c = GPUNN__SHUFFLE(q[2], q[3], 0, 4, 1, 5), d = GPUNN__SHUFFLE(q[2], q[3], 2, 6, 3, 7);
    q[0] = GPUNN__SHUFFLE(a, c, 0, 1, 4, 5);
    q[1] = GPUNN__SHUFFLE(a, c, 2, 3, 6, 7);
    q[2] = GPUNN__SHUFFLE(b, d, 0, 1, 4, 5);
    q[3] = GPUNN__SHUFFLE(b, d, 2, 3, 6, 7);
}

/* One tile of R rows and V vectors: R * V sums in registers. A's rows are reached from every third one, which is as far as x86
 * scales an index. The last vector has `tail` lanes that exist in C. */
#define GPUNN__GEMM_KERNELS(isa, NAME, TARGET, LANES, R3, R2, R1)                                                                \
    typedef int               gpunn__##isa##_bits __attribute__((vector_size(4 * LANES)));                                       \
    TARGET GPUNN__INLINE void gpunn__##isa##_tile(const gpunn__panel *t, int64_t i0, const int R, const int V)                   \
    {                                                                                                                            \
        const int    tail = (int)t->columns - (V - 1) * LANES;                                                                   \
        gpunn__##isa sum[8][3], b[3];                                                                                            \
        for (int v = 0; v < V; v++) b[v] = gpunn__##isa##_set(0);                                                                \
        if (t->shift_col) {                                                                                                      \
            GPUNN__UNROLL                                                                                                        \
            for (int v = 0; v < V - 1; v++) b[v] = *(const gpunn__##isa##_memory *)(t->shift_col + v * LANES);                   \
            b[V - 1] = gpunn__##isa##_load(t->shift_col + (V - 1) * LANES, tail);                                                \
        }                                                                                                                        \
        GPUNN__UNROLL                                                                                                            \
        for (int i = 0; i < R; i++) {                                                                                            \
            GPUNN__UNROLL                                                                                                        \
            for (int v = 0; v < V; v++) sum[i][v] = b[v];                                                                        \
        }                                                                                                                        \
        if (t->shift_row) {                                                                                                      \
            GPUNN__UNROLL                                                                                                        \
            for (int i = 0; i < R; i++) {                                                                                        \
                GPUNN__UNROLL                                                                                                    \
                for (int v = 0; v < V; v++) sum[i][v] += gpunn__##isa##_set(t->shift_row[i0 + i]);                               \
            }                                                                                                                    \
        }                                                                                                                        \
        float *c = t->c + i0 * t->c_row;                                                                                         \
        if (t->k >= 64) {                                                                                                        \
            GPUNN__UNROLL                                                                                                        \
            for (int i = 0; i < R; i++) {                                                                                        \
                GPUNN__UNROLL                                                                                                    \
                for (int v = 0; v < V; v++) __builtin_prefetch(c + i * t->c_row + v * LANES, 1);                                 \
            }                                                                                                                    \
        }                                                                                                                        \
        const int64_t a_row = t->a_row, a_col = t->a_col, b_row = t->b_row;                                                      \
        const float  *a[3] = {t->a + i0 * a_row, t->a + (i0 + (R > 3 ? 3 : 0)) * a_row, t->a + (i0 + (R > 6 ? 6 : 0)) * a_row};  \
        const float  *bp = t->b;                                                                                                 \
        for (int64_t p = t->k; p > 0; p--) {                                                                                     \
            GPUNN__UNROLL                                                                                                        \
            for (int v = 0; v < V; v++) b[v] = *(const gpunn__##isa##_memory *)(bp + v * LANES);                                 \
            GPUNN__UNROLL                                                                                                        \
            for (int i = 0; i < R; i++) {                                                                                        \
                gpunn__##isa x = gpunn__##isa##_set(a[i / 3][i % 3 * a_row]);                                                    \
                GPUNN__UNROLL                                                                                                    \
                for (int v = 0; v < V; v++) sum[i][v] = gpunn__##isa##_fma(x, b[v], sum[i][v]);                                  \
            }                                                                                                                    \
            GPUNN__UNROLL                                                                                                        \
            for (int i = 0; i < 3; i++) a[i] += a_col;                                                                           \
            bp += b_row;                                                                                                         \
        }                                                                                                                        \
        GPUNN__UNROLL                                                                                                            \
        for (int i = 0; i < R; i++, c += t->c_row) {                                                                             \
            if (t->add) {                                                                                                        \
                GPUNN__UNROLL                                                                                                    \
                for (int v = 0; v < V - 1; v++) sum[i][v] += *(const gpunn__##isa##_memory *)(c + v * LANES);                    \
                sum[i][V - 1] += gpunn__##isa##_load(c + (V - 1) * LANES, tail);                                                 \
            }                                                                                                                    \
            if (t->relu) {                                                                                                       \
                GPUNN__UNROLL                                                                                                    \
                for (int v = 0; v < V; v++) /* 0 where x <= 0, so that NaN stays */                                              \
                    sum[i][v] = (gpunn__##isa)((gpunn__##isa##_bits)sum[i][v] & ~(gpunn__##isa##_bits)(sum[i][v] <= 0));         \
            }                                                                                                                    \
            GPUNN__UNROLL                                                                                                        \
            for (int v = 0; v < V - 1; v++) *(gpunn__##isa##_memory *)(c + v * LANES) = sum[i][v];                               \
            gpunn__##isa##_store(c + (V - 1) * LANES, tail, sum[i][V - 1]);                                                      \
        }                                                                                                                        \
    }                                                                                                                            \
    TARGET GPUNN__INLINE void gpunn__##isa##_rows(const gpunn__panel *t, const int R, const int V)                               \
    {                                                                                                                            \
        int64_t i = 0;                                                                                                           \
        for (; i + R <= t->rows; i += R) gpunn__##isa##_tile(t, i, R, V);                                                        \
        if (R > 4 && i + 4 <= t->rows) {                                                                                         \
            gpunn__##isa##_tile(t, i, 4, V);                                                                                     \
            i += 4;                                                                                                              \
        }                                                                                                                        \
        if (i + 2 <= t->rows) {                                                                                                  \
            gpunn__##isa##_tile(t, i, 2, V);                                                                                     \
            i += 2;                                                                                                              \
        }                                                                                                                        \
        if (i < t->rows) gpunn__##isa##_tile(t, i, 1, V);                                                                        \
    }                                                                                                                            \
    TARGET GPUNN__NOINLINE void gpunn__##isa##_panel(const gpunn__panel *t)                                                      \
    {                                                                                                                            \
        if (t->columns > 2 * LANES)                                                                                              \
            gpunn__##isa##_rows(t, R3, 3);                                                                                       \
        else if (t->columns > LANES)                                                                                             \
            gpunn__##isa##_rows(t, R2, 2);                                                                                       \
        else                                                                                                                     \
            gpunn__##isa##_rows(t, R1, 1);                                                                                       \
    }                                                                                                                            \
    TARGET GPUNN__NOINLINE void gpunn__##isa##_copy(const float *b, int64_t b_row, int64_t rows, int64_t columns, int64_t width, \
                                                    float *packed)                                                               \
    {                                                                                                                            \
        for (; rows > 0; rows--, b += b_row, packed += width) {                                                                  \
            int64_t j = 0;                                                                                                       \
            for (; j + LANES <= columns; j += LANES)                                                                             \
                *(gpunn__##isa##_memory *)(packed + j) = *(const gpunn__##isa##_memory *)(b + j);                                \
            for (; j < width; j += LANES)                                                                                        \
                *(gpunn__##isa##_memory *)(packed + j) = gpunn__##isa##_load(b + j, j < columns ? (int)(columns - j) : 0);       \
        }                                                                                                                        \
    }                                                                                                                            \
    TARGET GPUNN__NOINLINE void gpunn__##isa##_turn(const float *b, int64_t b_col, int64_t rows, int64_t columns, int64_t width, \
                                                    float *packed)                                                               \
    {                                                                                                                            \
        int64_t j = 0;                                                                                                           \
        for (; j + LANES <= columns; j += LANES) { /* four k of as many columns as there are lanes */                            \
            int64_t x = 0;                                                                                                       \
            for (; x + 4 <= rows; x += 4) {                                                                                      \
                gpunn__##isa v[4];                                                                                               \
                GPUNN__UNROLL                                                                                                    \
                for (int i = 0; i < 4; i++) v[i] = gpunn__##isa##_gather(b + (j + i) * b_col + x, 4 * b_col);                    \
                gpunn__##isa##_transpose(v);                                                                                     \
                GPUNN__UNROLL                                                                                                    \
                for (int i = 0; i < 4; i++) *(gpunn__##isa##_memory *)(packed + (x + i) * width + j) = v[i];                     \
            }                                                                                                                    \
            for (; x < rows; x++)                                                                                                \
                for (int i = 0; i < LANES; i++) packed[x * width + j + i] = b[(j + i) * b_col + x];                              \
        }                                                                                                                        \
        for (packed += j; j < width; j += 4, packed += 4) { /* squares of 4 x 4 */                                               \
            const int    count = columns - j < 4 ? (int)(columns - j) : 4;                                                       \
            const float *from[4];                                                                                                \
            GPUNN__UNROLL                                                                                                        \
            for (int i = 0; i < 4; i++) from[i] = b + (i < count ? j + i : 0) * b_col;                                           \
            gpunn__quad q[4];                                                                                                    \
            int64_t     x = 0;                                                                                                   \
            for (; count > 0 && x + 4 <= rows; x += 4) {                                                                         \
                GPUNN__UNROLL                                                                                                    \
                for (int i = 0; i < 4; i++) q[i] = *(const gpunn__quad_memory *)(from[i] + x);                                   \
                gpunn__transpose4(q);                                                                                            \
                GPUNN__UNROLL                                                                                                    \
                for (int i = 0; i < 4; i++) *(gpunn__quad_memory *)(packed + (x + i) * width) = q[i];                            \
            }                                                                                                                    \
            for (; x < rows; x++) {                                                                                              \
                GPUNN__UNROLL                                                                                                    \
                for (int i = 0; i < 4; i++) packed[x * width + i] = i < count ? from[i][x] : 0;                                  \
            }                                                                                                                    \
        }                                                                                                                        \
    }                                                                                                                            \
    TARGET GPUNN__INLINE gpunn__quad gpunn__##isa##_fold(gpunn__##isa v) /* four sums of every fourth lane */                    \
    {                                                                                                                            \
        union {                                                                                                                  \
            gpunn__##isa v;                                                                                                      \
            gpunn__quad  quad[LANES / 4];                                                                                        \
        } u;                                                                                                                     \
        u.v = v;                                                                                                                 \
        gpunn__quad s = u.quad[0];                                                                                               \
        GPUNN__UNROLL                                                                                                            \
        for (int i = 1; i < LANES / 4; i++) s += u.quad[i];                                                                      \
        return s;                                                                                                                \
    }                                                                                                                            \
    TARGET GPUNN__INLINE void gpunn__##isa##_dot_step(gpunn__##isa *sum, const int M, const int N, const float *a,               \
                                                      int64_t a_row, const float *b, int64_t b_row, const int count)             \
    {                                                                                                                            \
        gpunn__##isa x[4], y;                                                                                                    \
        GPUNN__UNROLL                                                                                                            \
        for (int i = 0; i < M; i++) x[i] = gpunn__##isa##_load(a + i * a_row, count);                                            \
        GPUNN__UNROLL                                                                                                            \
        for (int j = 0; j < N; j++) {                                                                                            \
            y = gpunn__##isa##_load(b + j * b_row, count);                                                                       \
            GPUNN__UNROLL                                                                                                        \
            for (int i = 0; i < M; i++) sum[i * N + j] = gpunn__##isa##_fma(x[i], y, sum[i * N + j]);                            \
        }                                                                                                                        \
    }                                                                                                                            \
    TARGET GPUNN__INLINE void gpunn__##isa##_dot(const int M, const int N, int64_t k, const float *a, int64_t a_row,             \
                                                 const float *b, int64_t b_row, float *c, int64_t c_row, bool add)               \
    {                                                                                                                            \
        gpunn__##isa sum[16];                                                                                                    \
        GPUNN__UNROLL                                                                                                            \
        for (int e = 0; e < M * N; e++) sum[e] = gpunn__##isa##_set(0);                                                          \
        for (; k >= LANES; k -= LANES, a += LANES, b += LANES) gpunn__##isa##_dot_step(sum, M, N, a, a_row, b, b_row, LANES);    \
        if (k > 0) gpunn__##isa##_dot_step(sum, M, N, a, a_row, b, b_row, (int)k);                                               \
        GPUNN__UNROLL                                                                                                            \
        for (int e = 0; e < M * N; e += 4) {                                                                                     \
            gpunn__quad q[4];                                                                                                    \
            GPUNN__UNROLL                                                                                                        \
            for (int i = 0; i < 4; i++) q[i] = gpunn__##isa##_fold(sum[e + i < M * N ? e + i : e]);                              \
            gpunn__transpose4(q);                                                                                                \
            q[0] = (q[0] + q[2]) + (q[1] + q[3]);                                                                                \
            GPUNN__UNROLL                                                                                                        \
            for (int i = 0; i < 4; i++) {                                                                                        \
                if (e + i >= M * N) break;                                                                                       \
                float *d = c + (e + i) / N * c_row + (e + i) % N;                                                                \
                *d = add ? *d + q[0][i] : q[0][i];                                                                               \
            }                                                                                                                    \
        }                                                                                                                        \
    }                                                                                                                            \
    TARGET GPUNN__NOINLINE void gpunn__##isa##_dots(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row,              \
                                                    const float *b, int64_t b_row, float *c, int64_t c_row, bool add)            \
    {                                                                                                                            \
        int64_t j = 0;                                                                                                           \
        for (; j + 4 <= n; j += 4) {                                                                                             \
            int64_t i = 0;                                                                                                       \
            for (; i + 4 <= m; i += 4)                                                                                           \
                gpunn__##isa##_dot(4, 4, k, a + i * a_row, a_row, b + j * b_row, b_row, c + i * c_row + j, c_row, add);          \
            for (; i < m; i++)                                                                                                   \
                gpunn__##isa##_dot(1, 4, k, a + i * a_row, a_row, b + j * b_row, b_row, c + i * c_row + j, c_row, add);          \
        }                                                                                                                        \
        for (; j < n; j++) {                                                                                                     \
            int64_t i = 0;                                                                                                       \
            for (; i + 4 <= m; i += 4)                                                                                           \
                gpunn__##isa##_dot(4, 1, k, a + i * a_row, a_row, b + j * b_row, b_row, c + i * c_row + j, c_row, add);          \
            for (; i < m; i++)                                                                                                   \
                gpunn__##isa##_dot(1, 1, k, a + i * a_row, a_row, b + j * b_row, b_row, c + i * c_row + j, c_row, add);          \
        }                                                                                                                        \
    }                                                                                                                            \
    static const gpunn__gemm_kernels gpunn__##isa##_kernels = {                                                                  \
        NAME, LANES, gpunn__##isa##_panel, gpunn__##isa##_copy, gpunn__##isa##_turn, gpunn__##isa##_dots};

/* What a kind of vector must bring: unaligned memory, set, fma, loads (0 behind) and stores of the first `count` lanes, a
 * gather of fours that lie `stride` apart, and the transposition of each 4 x 4 square in four vectors. */
#ifdef GPUNN__WIDE
#if defined(__AVX512F__) /* only when compiled for: a third set of kernels takes a second more in every other build */
#define GPUNN__AVX512 __attribute__((target("avx512f,avx512vl,avx2,fma"), GPUNN__KERNEL))
typedef float                          gpunn__v16 __attribute__((vector_size(64)));
typedef float                          gpunn__v16_memory __attribute__((vector_size(64), aligned(4), may_alias));
GPUNN__AVX512 GPUNN__INLINE gpunn__v16 gpunn__v16_set(float x)
{
    return (gpunn__v16)_mm512_set1_ps(x);
}
GPUNN__AVX512 GPUNN__INLINE gpunn__v16 gpunn__v16_fma(gpunn__v16 a, gpunn__v16 b, gpunn__v16 c)
{
    return (gpunn__v16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
GPUNN__AVX512 GPUNN__INLINE gpunn__v16 gpunn__v16_load(const float *p, int count)
{
    return (gpunn__v16)_mm512_maskz_loadu_ps((__mmask16)(0xffffu >> (16 - count)), p);
}
GPUNN__AVX512 GPUNN__INLINE void gpunn__v16_store(float *p, int count, gpunn__v16 x)
{
    _mm512_mask_storeu_ps(p, (__mmask16)(0xffffu >> (16 - count)), (__m512)x);
}
GPUNN__AVX512 GPUNN__INLINE gpunn__v16 gpunn__v16_gather(const float *p, int64_t stride)
{
    __m512 v = _mm512_insertf32x4(_mm512_castps128_ps512(_mm_loadu_ps(p)), _mm_loadu_ps(p + stride), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(p + 2 * stride), 2);
    return (gpunn__v16)_mm512_insertf32x4(v, _mm_loadu_ps(p + 3 * stride), 3);
}
GPUNN__AVX512 GPUNN__INLINE void gpunn__v16_transpose(gpunn__v16 v[4])
{
    const __mmask16 all = 0xffff; /* the forms without a mask make gcc 12 warn about its own header */
    const __m512    q0 = (__m512)v[0], q1 = (__m512)v[1], q2 = (__m512)v[2], q3 = (__m512)v[3];
    const __m512    a = _mm512_maskz_unpacklo_ps(all, q0, q1), b = _mm512_maskz_unpackhi_ps(all, q0, q1);
    const __m512    c = _mm512_maskz_unpacklo_ps(all, q2, q3), d = _mm512_maskz_unpackhi_ps(all, q2, q3);
    v[0] = (gpunn__v16)_mm512_maskz_shuffle_ps(all, a, c, 0x44);
    v[1] = (gpunn__v16)_mm512_maskz_shuffle_ps(all, a, c, 0xee);
    v[2] = (gpunn__v16)_mm512_maskz_shuffle_ps(all, b, d, 0x44);
    v[3] = (gpunn__v16)_mm512_maskz_shuffle_ps(all, b, d, 0xee);
}
GPUNN__GEMM_KERNELS(v16, "AVX-512", GPUNN__AVX512, 16, 8, 8, 8)
#else
#define GPUNN__AVX2 __attribute__((target("avx2,fma"), GPUNN__KERNEL))
typedef float                       gpunn__v8 __attribute__((vector_size(32)));
typedef float                       gpunn__v8_memory __attribute__((vector_size(32), aligned(4), may_alias));
GPUNN__AVX2 GPUNN__INLINE gpunn__v8 gpunn__v8_set(float x)
{
    return (gpunn__v8)_mm256_set1_ps(x);
}
GPUNN__AVX2 GPUNN__INLINE gpunn__v8 gpunn__v8_fma(gpunn__v8 a, gpunn__v8 b, gpunn__v8 c)
{
    return (gpunn__v8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
GPUNN__AVX2 GPUNN__INLINE __m256i gpunn__v8_mask(int count)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
GPUNN__AVX2 GPUNN__INLINE gpunn__v8 gpunn__v8_load(const float *p, int count)
{
    return count == 8 ? (gpunn__v8)_mm256_loadu_ps(p) : (gpunn__v8)_mm256_maskload_ps(p, gpunn__v8_mask(count));
}
GPUNN__AVX2 GPUNN__INLINE void gpunn__v8_store(float *p, int count, gpunn__v8 x)
{
    if (count == 8)
        _mm256_storeu_ps(p, (__m256)x);
    else
        _mm256_maskstore_ps(p, gpunn__v8_mask(count), (__m256)x);
}
GPUNN__AVX2 GPUNN__INLINE gpunn__v8 gpunn__v8_gather(const float *p, int64_t stride)
{
    return (gpunn__v8)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + stride), 1);
}
GPUNN__AVX2 GPUNN__INLINE void gpunn__v8_transpose(gpunn__v8 v[4])
{
    __m256 a = _mm256_unpacklo_ps((__m256)v[0], (__m256)v[1]), b = _mm256_unpackhi_ps((__m256)v[0], (__m256)v[1]);
    __m256 c = _mm256_unpacklo_ps((__m256)v[2], (__m256)v[3]), d = _mm256_unpackhi_ps((__m256)v[2], (__m256)v[3]);
    v[0] = (gpunn__v8)_mm256_shuffle_ps(a, c, 0x44);
    v[1] = (gpunn__v8)_mm256_shuffle_ps(a, c, 0xee);
    v[2] = (gpunn__v8)_mm256_shuffle_ps(b, d, 0x44);
    v[3] = (gpunn__v8)_mm256_shuffle_ps(b, d, 0xee);
}
GPUNN__GEMM_KERNELS(v8, "AVX2", GPUNN__AVX2, 8, 4, 4, 8)
#endif
#endif

#if !defined(GPUNN__WIDE) || (!defined(__AVX512F__) && !(defined(__AVX2__) && defined(__FMA__)))
#define GPUNN__BASELINE __attribute__((GPUNN__KERNEL))
typedef gpunn__quad        gpunn__v4;
typedef gpunn__quad_memory gpunn__v4_memory;
GPUNN__INLINE gpunn__v4    gpunn__v4_set(float x)
{
    gpunn__v4 v = {x, x, x, x};
    return v;
}
GPUNN__INLINE gpunn__v4 gpunn__v4_fma(gpunn__v4 a, gpunn__v4 b, gpunn__v4 c)
{
#if defined(__aarch64__)
    return (gpunn__v4)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
GPUNN__INLINE gpunn__v4 gpunn__v4_load(const float *p, int count)
{
    if (count == 4) return *(const gpunn__v4_memory *)p;
    gpunn__v4 v = {count > 0 ? p[0] : 0, count > 1 ? p[1] : 0, count > 2 ? p[2] : 0, 0};
    return v;
}
GPUNN__INLINE void gpunn__v4_store(float *p, int count, gpunn__v4 x)
{
    if (count == 4)
        *(gpunn__v4_memory *)p = x;
    else
        for (int i = 0; i < count; i++) p[i] = x[i];
}
GPUNN__INLINE gpunn__v4 gpunn__v4_gather(const float *p, int64_t stride)
{
    (void)stride;
    return *(const gpunn__v4_memory *)p;
}
GPUNN__INLINE void gpunn__v4_transpose(gpunn__v4 v[4])
{
    gpunn__transpose4(v);
}
#if defined(__aarch64__)
GPUNN__GEMM_KERNELS(v4, "NEON", GPUNN__BASELINE, 4, 6, 8, 8) /* 32 registers */
#else
GPUNN__GEMM_KERNELS(v4, "4 lanes", GPUNN__BASELINE, 4, 4, 4, 8)
#endif
#endif

/* Asking the processor costs a few loads and tests: nothing is kept. */
GPUNN__INLINE const gpunn__gemm_kernels *gpunn__gemm_choose(void)
{
#if defined(GPUNN__WIDE)
#if defined(__AVX512F__)
    return &gpunn__v16_kernels;
#elif defined(__AVX2__) && defined(__FMA__)
    return &gpunn__v8_kernels;
#else
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &gpunn__v8_kernels;
    return &gpunn__v4_kernels;
#endif
#else
    return &gpunn__v4_kernels;
#endif
}

#else /* plain C: the compiler may find the vectors itself */

#define GPUNN__PLAIN_LANES 8
GPUNN__PRIVATE void gpunn__plain_panel(const gpunn__panel *t)
{
    const int64_t width = (t->columns + GPUNN__PLAIN_LANES - 1) / GPUNN__PLAIN_LANES * GPUNN__PLAIN_LANES;
    for (int64_t i = 0; i < t->rows; i++) {
        float        sum[3 * GPUNN__PLAIN_LANES];
        const float *a = t->a + i * t->a_row, *b = t->b, start = t->shift_row ? t->shift_row[i] : 0;
        for (int64_t j = 0; j < width; j++) sum[j] = t->shift_col && j < t->columns ? start + t->shift_col[j] : start;
        for (int64_t p = 0; p < t->k; p++, a += t->a_col, b += t->b_row)
            for (int64_t j = 0; j < width; j++) sum[j] += *a * b[j];
        float *c = t->c + i * t->c_row;
        for (int64_t j = 0; j < t->columns; j++) {
            float x = t->add ? c[j] + sum[j] : sum[j];
            c[j] = t->relu && x <= 0 ? 0 : x;
        }
    }
}
GPUNN__PRIVATE void gpunn__plain_copy(const float *b, int64_t b_row, int64_t rows, int64_t columns, int64_t width, float *packed)
{
    for (; rows > 0; rows--, b += b_row, packed += width) {
        memcpy(packed, b, (size_t)columns * sizeof *b);
        for (int64_t j = columns; j < width; j++) packed[j] = 0;
    }
}
GPUNN__PRIVATE void gpunn__plain_turn(const float *b, int64_t b_col, int64_t rows, int64_t columns, int64_t width, float *packed)
{
    for (int64_t j = 0; j < width; j++)
        for (int64_t x = 0; x < rows; x++) packed[x * width + j] = j < columns ? b[x + j * b_col] : 0;
}
GPUNN__PRIVATE void gpunn__plain_dots(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, const float *b,
                                      int64_t b_row, float *c, int64_t c_row, bool add)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float   sum[GPUNN__PLAIN_LANES] = {0};
            int64_t p = 0;
            for (; p + GPUNN__PLAIN_LANES <= k; p += GPUNN__PLAIN_LANES)
                for (int64_t l = 0; l < GPUNN__PLAIN_LANES; l++) sum[l] += a[i * a_row + p + l] * b[j * b_row + p + l];
            for (; p < k; p++) sum[0] += a[i * a_row + p] * b[j * b_row + p];
            for (int64_t l = 1; l < GPUNN__PLAIN_LANES; l++) sum[0] += sum[l];
            c[i * c_row + j] = add ? c[i * c_row + j] + sum[0] : sum[0];
        }
}
GPUNN__INLINE const gpunn__gemm_kernels *gpunn__gemm_choose(void)
{
    static const gpunn__gemm_kernels plain = {"plain C",         GPUNN__PLAIN_LANES, gpunn__plain_panel,
                                              gpunn__plain_copy, gpunn__plain_turn,  gpunn__plain_dots};
    return &plain;
}
#endif

/* Both operands have rows that are contiguous along k and one has few of them: scalar products instead of panels. */
GPUNN__INLINE bool gpunn__gemm_is_dots(const gpunn__gemm *g)
{
    const int64_t few = g->m < g->n ? g->m : g->n;
    return g->b && g->k > 1 && g->a_col == 1 && g->b_row == 1 && (few <= 2 || (few <= 8 && g->k >= 64));
}

/* A long sum into few elements is cut into fixed parts, which threads can share. */
GPUNN__INLINE int64_t gpunn__gemm_parts(const gpunn__gemm *g)
{
    int64_t parts = g->k / 2048;
    if (g->m > 128 || g->n > 128 || parts < 2) return 1;
    return parts < 16 ? parts : 16;
}

/* Scratch of one thread in floats: so many panels, and a chunk of A. */
GPUNN__INLINE int64_t gpunn__gemm_scratch(const gpunn__gemm *g, int64_t panels)
{
    int64_t columns = panels * 3 * gpunn__gemm_choose()->lanes + (panels > 1 ? GPUNN__GEMM_ROWS : 0);
    return columns * (g->k < GPUNN__GEMM_DEPTH ? g->k : GPUNN__GEMM_DEPTH);
}
GPUNN__INLINE int64_t gpunn__gemm_panels(const gpunn__gemm *g)
{
    int64_t panels = (g->n + 3 * gpunn__gemm_choose()->lanes - 1) / (3 * gpunn__gemm_choose()->lanes);
    return panels < GPUNN__GEMM_GROUP ? panels : GPUNN__GEMM_GROUP;
}

/* Bytes of scratch for gpunn__gemm_run. */
GPUNN__PRIVATE size_t gpunn__gemm_workspace(const gpunn__gemm *g, int threads)
{
    int64_t parts = gpunn__gemm_parts(g), sums = parts > 1 ? parts * g->m * g->n : 0;
    return (size_t)(sums + threads * gpunn__gemm_scratch(g, gpunn__gemm_panels(g))) * sizeof(float);
}

GPUNN__PRIVATE void gpunn__gemm_pack_panel(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels, int64_t p, int64_t pc,
                                           int64_t j, int64_t jc, float *packed)
{
    const int64_t width = gpunn__round_up(jc, kernels->lanes);
    if (g->pack_b) {
        g->pack_b(g->pack_user, p, pc, j, jc, width, packed);
        return;
    }
    const float *b = g->b + p * g->b_row + j * g->b_col;
    if (g->b_col == 1)
        kernels->copy(b, g->b_row, pc, jc, width, packed);
    else if (g->b_row == 1)
        kernels->turn(b, g->b_col, pc, jc, width, packed);
    else
        for (int64_t x = 0; x < pc; x++)
            for (int64_t y = 0; y < width; y++) packed[x * width + y] = y < jc ? b[x * g->b_row + y * g->b_col] : 0;
}

/* Packs all of B for later products (g->packed_b), times scale_col when that is given: the blocks of k, each with its panels. */
GPUNN__INLINE size_t gpunn__gemm_packed_b_bytes(int64_t k, int64_t n)
{
    int64_t lanes = gpunn__gemm_choose()->lanes;
    return (size_t)k * (size_t)(gpunn__round_up(n, lanes)) * sizeof(float);
}
GPUNN__PRIVATE void gpunn__gemm_pack_b(const gpunn__gemm *g, float *packed)
{
    const gpunn__gemm_kernels *kernels = gpunn__gemm_choose();
    const int64_t              lanes = kernels->lanes, width = 3 * lanes, padded = gpunn__round_up(g->n, lanes);
    for (int64_t p = 0; p < g->k; p += GPUNN__GEMM_DEPTH) {
        int64_t pc = g->k - p < GPUNN__GEMM_DEPTH ? g->k - p : GPUNN__GEMM_DEPTH;
        for (int64_t j = 0; j < g->n; j += width) {
            const int64_t jc = g->n - j < width ? g->n - j : width;
            float        *panel = packed + p * padded + pc * j;
            gpunn__gemm_pack_panel(g, kernels, p, pc, j, jc, panel);
            if (g->scale_col)
                for (int64_t x = 0, row = gpunn__round_up(jc, lanes); x < pc; x++)
                    for (int64_t y = 0; y < jc; y++) panel[x * row + y] *= g->scale_col[j + y];
        }
    }
}

/* The part of the epilogue that the kernels have not done, on rows i0 .. i1 and columns j0 .. j1. */
GPUNN__PRIVATE void gpunn__gemm_finish(const gpunn__gemm *g, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    for (int64_t i = i0; i < i1; i++) {
        float *GPUNN__RESTRICT c = g->c + i * g->c_row;
        const float            scale = g->scale_row ? g->scale_row[i] : 1, shift = g->shift_row ? g->shift_row[i] : 0;
        if (g->scale_row || g->shift_row)
            for (int64_t j = j0; j < j1; j++) c[j] = c[j] * scale + shift;
        if (g->scale_col)
            for (int64_t j = j0; j < j1; j++) c[j] *= g->scale_col[j];
        if (g->shift_col)
            for (int64_t j = j0; j < j1; j++) c[j] += g->shift_col[j];
        if (g->residual)
            for (int64_t j = j0; j < j1; j++) c[j] += g->residual[i * g->c_row + j];
        if (g->relu)
            for (int64_t j = j0; j < j1; j++) c[j] = c[j] <= 0 ? 0 : c[j];
    }
}

/* Rows i0 .. i1, columns j0 .. j1 of the whole product, in one thread. packed: gpunn__gemm_scratch floats for g->panels. */
GPUNN__PRIVATE void gpunn__gemm_block(const gpunn__gemm *g, const gpunn__gemm_kernels *kernels, int64_t i0, int64_t i1,
                                      int64_t j0, int64_t j1, float *packed)
{
    if (gpunn__gemm_is_dots(g)) {
        kernels->dots(i1 - i0, j1 - j0, g->k, g->a + i0 * g->a_row, g->a_row, g->b + j0 * g->b_col, g->b_col,
                      g->c + i0 * g->c_row + j0, g->c_row, g->accumulate);
        gpunn__gemm_finish(g, i0, i1, j0, j1);
        return;
    }
    const int64_t lanes = kernels->lanes, width = 3 * lanes, padded = gpunn__round_up(g->n, lanes);
    const int64_t group = (g->packed_b ? GPUNN__GEMM_GROUP : g->panels ? g->panels : 1) * width;
    const bool    late = g->scale_row || g->scale_col || g->residual; /* an epilogue after the sums */
    gpunn__panel  t;
    t.a_row = g->a_row;
    t.c_row = g->c_row;
    for (int64_t p = 0; p < g->k; p += GPUNN__GEMM_DEPTH) {
        const bool first = p == 0, last = g->k - p <= GPUNN__GEMM_DEPTH;
        t.k = last ? g->k - p : GPUNN__GEMM_DEPTH;
        t.add = g->accumulate || !first;
        t.relu = g->relu && last && !late;
        /* B's own rows will do when few rows of A pass by, or when the block fits the first-level cache as it is. */
        const bool in_place = !g->packed_b && g->b && g->b_col == 1 && (i1 - i0 <= 16 || t.k * g->b_row <= 6144);
        for (int64_t left = j0; left < j1; left += group) {
            const int64_t right = j1 - left < group ? j1 : left + group;
            const int64_t chunk = right - left > width ? GPUNN__GEMM_ROWS : i1 - i0;
            const bool    copy_a = g->panels > 1 && chunk == GPUNN__GEMM_ROWS && g->a_row == 1 && g->a_col >= 256;
            t.a_col = g->a_col;
            for (int64_t i = i0; i < i1; i += chunk) {
                t.rows = i1 - i < chunk ? i1 - i : chunk;
                t.a = g->a + i * g->a_row + p * g->a_col;
                if (copy_a) { /* columns of A that lie pages apart */
                    kernels->copy(t.a, g->a_col, t.k, t.rows, GPUNN__GEMM_ROWS, packed + g->panels * width * t.k);
                    t.a = packed + g->panels * width * t.k;
                    t.a_col = GPUNN__GEMM_ROWS;
                }
                t.shift_row = first && !late && g->shift_row ? g->shift_row + i : NULL;
                for (int64_t j = left; j < right; j += width) {
                    t.columns = right - j < width ? right - j : width;
                    t.b_row = gpunn__round_up(t.columns, lanes);
                    t.c = g->c + i * g->c_row + j;
                    t.shift_col = first && !late && g->shift_col ? g->shift_col + j : NULL;
                    if (g->packed_b)
                        t.b = g->packed_b + p * padded + t.k * j;
                    else if (in_place && t.columns == t.b_row) {
                        t.b = g->b + p * g->b_row + j;
                        t.b_row = g->b_row;
                    } else {
                        t.b = packed + (j - left) * t.k;
                        if (i == i0) gpunn__gemm_pack_panel(g, kernels, p, t.k, j, t.columns, packed + (j - left) * t.k);
                    }
                    kernels->panel(&t);
                }
            }
        }
    }
    if (late) gpunn__gemm_finish(g, i0, i1, j0, j1);
}

typedef struct gpunn__gemm_job {
    const gpunn__gemm         *g;
    const gpunn__gemm_kernels *kernels;
    int64_t                    parts;
    float                     *scratch, *sums; /* packed panels per thread; the parts' sums [parts][m][n] */
} gpunn__gemm_job;

GPUNN__PRIVATE void gpunn__gemm_task(void *arg, int index, int threads)
{
    const gpunn__gemm_job *job = (const gpunn__gemm_job *)arg;
    const gpunn__gemm     *g = job->g;
    const int64_t          lanes = job->kernels->lanes;
    float                 *packed = job->scratch + index * gpunn__gemm_scratch(g, g->panels);
    if (job->parts > 1) {
        int64_t begin, end;
        gpunn__cpu_part(job->parts, 1, threads, index, &begin, &end);
        for (int64_t part = begin; part < end; part++) {
            int64_t     p = g->k * part / job->parts;
            gpunn__gemm own = *g;
            own.k = g->k * (part + 1) / job->parts - p;
            if (g->b) own.b = g->b + p * g->b_row;
            own.a = g->a + p * g->a_col;
            own.c = job->sums + part * g->m * g->n;
            own.c_row = g->n;
            own.accumulate = own.relu = false;
            own.scale_row = own.shift_row = own.scale_col = own.shift_col = own.residual = NULL;
            gpunn__gemm_block(&own, job->kernels, 0, g->m, 0, g->n, packed);
        }
        return;
    }
    /* A grid of threads over C with the smallest largest block; packing a panel of B costs about as much as 8 rows of work. */
    const int64_t grain = g->packed_b ? 3 * lanes : lanes;
    int           across = 1;
    int64_t       best = INT64_MAX;
    for (int d = 1; d <= threads; d++) {
        if (threads % d) continue;
        int64_t columns = ((g->n + grain - 1) / grain + d - 1) / d, rows = ((g->m + 7) / 8 + threads / d - 1) / (threads / d);
        if (columns * (rows + 1) <= best) {
            best = columns * (rows + 1);
            across = d;
        }
    }
    int64_t i0, i1, j0, j1;
    gpunn__cpu_part(g->m, 8, threads / across, index / across, &i0, &i1);
    gpunn__cpu_part(g->n, grain, across, index % across, &j0, &j1);
    if (i0 < i1 && j0 < j1) gpunn__gemm_block(g, job->kernels, i0, i1, j0, j1, packed);
}

#ifdef GPUNN_CBLAS
/* Large products of plain matrices through CBLAS, which has threads of its own. */
GPUNN__PRIVATE bool gpunn__gemm_cblas(const gpunn__gemm *g)
{
#ifdef _OPENMP
    if (omp_in_parallel()) return false;
#endif
    const bool    ta = g->a_col != 1, tb = g->b_col != 1;
    const int64_t lda = ta ? g->a_col : g->a_row, ldb = tb ? g->b_col : g->b_row, limit = INT32_MAX;
    if (!g->b || (ta && g->a_row != 1) || (tb && g->b_row != 1)) return false;
    if (lda < (ta ? g->m : g->k) || ldb < (tb ? g->k : g->n)) return false;
    if (g->m < 16 || g->n < 16 || g->k < 16 || g->m * g->n / 64 * g->k < 32768) return false;
    if (g->m > limit || g->n > limit || g->k > limit || lda > limit || ldb > limit || g->c_row > limit) return false;
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, (int)g->m, (int)g->n, (int)g->k, 1,
                g->a, (int)lda, g->b, (int)ldb, g->accumulate ? 1.0f : 0.0f, g->c, (int)g->c_row);
    gpunn__gemm_finish(g, 0, g->m, 0, g->n);
    return true;
}
#endif

/* threads = 1: everything in the calling thread, so that a task of many may call it. workspace: gpunn__gemm_workspace bytes. */
GPUNN__PRIVATE void gpunn__gemm_run(const gpunn__gemm *g, int threads, void *workspace)
{
#ifdef GPUNN_CBLAS
    if (gpunn__gemm_cblas(g)) return;
#endif
    gpunn__gemm whole = *g;
    whole.panels = gpunn__gemm_panels(g);
    gpunn__gemm_job job;
    job.g = &whole;
    job.kernels = gpunn__gemm_choose();
    job.parts = g->b ? gpunn__gemm_parts(g) : 1;
    job.sums = (float *)workspace;
    job.scratch = job.sums + (job.parts > 1 ? job.parts * g->m * g->n : 0);
    if (job.parts == 1 && threads == 1) {
        gpunn__gemm_block(&whole, job.kernels, 0, g->m, 0, g->n, job.scratch);
        return;
    }
    gpunn__cpu_parallel(threads, gpunn__gemm_task, &job);
    if (job.parts == 1) return;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            float sum = g->accumulate ? g->c[i * g->c_row + j] : 0;
            for (int64_t part = 0; part < job.parts; part++) sum += job.sums[(part * g->m + i) * g->n + j];
            g->c[i * g->c_row + j] = sum;
        }
    gpunn__gemm_finish(g, 0, g->m, 0, g->n);
}
#undef GPUNN__GEMM_KERNELS

GPUNN__PRIVATE const char *gpunn__gemm_name(void)
{
    return gpunn__gemm_choose()->name;
}

/* Threads worth using for a product. */
GPUNN__INLINE int gpunn__gemm_threads(const gpunn__cpu *cpu, const gpunn__gemm *g)
{
    return gpunn__cpu_threads(cpu, g->m * g->n / 8 * g->k);
}

/* The batch norm merged into a linear or convolution layer, with that layer's bias (or NULL): a scale and shift per channel. */
GPUNN__PRIVATE void gpunn__fold_norm(const gpunn_step *step, const float *bias, int64_t channels, float *scale, float *shift)
{
    const float *weight = (const float *)step->fused.scale.data, *offset = (const float *)step->fused.shift.data;
    const float *mean = (const float *)step->fused.mean.data, *variance = (const float *)step->fused.variance.data;
    for (int64_t i = 0; i < channels; i++) {
        scale[i] = (weight ? weight[i] : 1) / sqrtf(variance[i] + step->fused.eps);
        shift[i] = (offset ? offset[i] : 0) + ((bias ? bias[i] : 0) - mean[i]) * scale[i];
    }
}

/* C[m, n] = A[m, k] B[k, n], all contiguous; transpose_a: A is stored as [k, m]; transpose_b: B as [n, k]. */
GPUNN__INLINE gpunn__gemm gpunn__gemm_make(int64_t m, int64_t n, int64_t k, const void *a, bool transpose_a, const void *b,
                                           bool transpose_b, void *c, bool accumulate)
{
    gpunn__gemm g;
    memset(&g, 0, sizeof g);
    g.m = m;
    g.n = n;
    g.k = k;
    g.a = (const float *)a;
    g.a_row = transpose_a ? 1 : k;
    g.a_col = transpose_a ? m : 1;
    g.b = (const float *)b;
    g.b_row = transpose_b ? 1 : n;
    g.b_col = transpose_b ? k : 1;
    g.c = (float *)c;
    g.c_row = n;
    g.accumulate = accumulate;
    return g;
}

GPUNN__PRIVATE gpunn_status gpunn__cpu_map(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action); /* >>map */

/* An activation of its own: y = f(x), or, backward, gradient *= f'(x) in place. */
static gpunn_status gpunn__cpu_activate(gpunn__cpu *cpu, gpunn_op op, gpunn_value *x, const gpunn_value *y, gpunn_value *gradient,
                                        bool backward)
{
    gpunn_attributes none;
    gpunn_step       step;
    bool             accumulate = false;
    memset(&none, 0, sizeof none);
    memset(&step, 0, sizeof step);
    step.op = op;
    step.backward = backward;
    step.attr = &none;
    step.input_count = 1;
    step.in = x;
    step.out = *y;
    if (backward) {
        step.grad_in = gradient;
        step.grad_out = *gradient;
        step.accumulate = &accumulate;
    }
    return gpunn__cpu_map(cpu, &step, backward ? GPUNN__BACKWARD : GPUNN__FORWARD);
}

/* Rows x [rows, in], y = x W^T + bias; dX = dY W, dW = dY^T X, dbias = 1^T dY. Evaluation plans keep W packed, and scaled by a
 * merged batch norm: cache = shift [out], packed W. */
static gpunn_status gpunn__cpu_linear(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    static const float one = 1;
    const int64_t      in = step->in[1].dim[1], out = step->in[1].dim[0], rows = step->in[0].count / in;
    void *const x = step->in[0].data, *const weight = step->in[1].data, *const workspace = step->workspace;
    const size_t head = ((size_t)out * sizeof(float) + GPUNN__ALIGN - 1) / GPUNN__ALIGN * GPUNN__ALIGN;
    if (step->backward) {
        const void *const dy = step->grad_out.data;
        gpunn__gemm       g[3];
        g[0] = gpunn__gemm_make(rows, in, out, dy, false, weight, false, step->grad_in[0].data, step->accumulate[0]);
        g[1] = gpunn__gemm_make(out, in, rows, dy, true, x, false, step->grad_in[1].data, step->accumulate[1]);
        g[2] = gpunn__gemm_make(1, out, rows, &one, false, dy, false, step->grad_in[2].data, step->accumulate[2]);
        g[2].a_col = 0;
        step->workspace_bytes = 0;
        for (int i = 0; i < 3; i++) {
            if (!g[i].c) continue;
            const int threads = gpunn__gemm_threads(cpu, &g[i]);
            if (action == GPUNN__BACKWARD)
                gpunn__gemm_run(&g[i], threads, workspace);
            else if (gpunn__gemm_workspace(&g[i], threads) > step->workspace_bytes)
                step->workspace_bytes = gpunn__gemm_workspace(&g[i], threads);
        }
        gpunn_value *before = step->activated.op == GPUNN_OP_RELU ? &step->in[0] : &step->activated.before;
        if (action == GPUNN__BACKWARD && step->activated.op)
            return gpunn__cpu_activate(cpu, step->activated.op, before, &step->in[0], &step->grad_in[0], true);
        return GPUNN_OK;
    }
    gpunn_value *const y = step->fused.before.data ? &step->fused.before : &step->out;
    gpunn__gemm        g = gpunn__gemm_make(rows, out, in, x, false, weight, true, y->data, false);
    const int          threads = gpunn__gemm_threads(cpu, &g);
    const size_t       scratch = gpunn__gemm_workspace(&g, threads);
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = 2 * head + scratch;
        /* Worth its memory where packing counts: more rows than memory's speed hides, fewer than make it vanish. */
        if (!step->training && rows > 1 && rows <= 512 && out >= 8)
            step->cache_bytes = head + gpunn__gemm_packed_b_bytes(in, out);
        return GPUNN_OK;
    }
    const float *bias = (const float *)step->in[2].data;
    float       *scale = (float *)workspace, *shift = (float *)((char *)workspace + head);
    float       *packed = step->cache ? (float *)((char *)step->cache + head) : NULL;
    const bool   stale = !packed || step->cache_version != step->state->weights_version;
    g.shift_col = bias;
    if (step->fused.norm) {
        if (packed) shift = (float *)step->cache;
        if (stale) gpunn__fold_norm(step, bias, out, scale, shift);
        g.scale_col = scale;
        g.shift_col = shift;
    }
    if (packed) {
        if (stale) gpunn__gemm_pack_b(&g, packed);
        step->cache_version = step->state->weights_version;
        g.packed_b = packed;
        g.b = NULL;
        g.scale_col = NULL;
    }
    g.residual = (const float *)step->fused.residual.data;
    g.relu = step->fused.relu;
    gpunn__gemm_run(&g, threads, (char *)workspace + 2 * head);
    return step->fused.gelu_tanh ? gpunn__cpu_activate(cpu, GPUNN_OP_GELU_TANH, y, &step->out, NULL, false) : GPUNN_OK;
}

/* Many products: for every index of the kept axes, C = the sum over the summed axes (c: 0) of A B. */
typedef struct gpunn__products {
    gpunn__gemm g;
    int         kept, axes; /* kept axes come first */
    struct {
        int64_t dim, a, b, c; /* strides in floats */
    } axis[GPUNN_MAX_RANK];
    int64_t kept_count, sum_count;
    char   *workspace;
    size_t  workspace_each;
} gpunn__products;

/* One product and its sum. */
GPUNN__PRIVATE void gpunn__products_one(const gpunn__products *all, int64_t index, int threads, void *workspace)
{
    gpunn__gemm g = all->g;
    for (int x = all->kept - 1; x >= 0; x--) {
        const int64_t i = index % all->axis[x].dim;
        index /= all->axis[x].dim;
        g.a += i * all->axis[x].a;
        g.b += i * all->axis[x].b;
        g.c += i * all->axis[x].c;
    }
    const float *a = g.a, *b = g.b;
    for (int64_t s = 0; s < all->sum_count; s++) {
        int64_t rest = s;
        g.a = a;
        g.b = b;
        for (int x = all->axes - 1; x >= all->kept; x--) {
            const int64_t i = rest % all->axis[x].dim;
            rest /= all->axis[x].dim;
            g.a += i * all->axis[x].a;
            g.b += i * all->axis[x].b;
        }
        gpunn__gemm_run(&g, threads, workspace);
        g.accumulate = true;
    }
}

GPUNN__PRIVATE void gpunn__products_task(void *arg, int index, int threads)
{
    const gpunn__products *all = (const gpunn__products *)arg;
    int64_t                begin, end;
    gpunn__cpu_part(all->kept_count, 1, threads, index, &begin, &end);
    for (int64_t i = begin; i < end; i++) gpunn__products_one(all, i, 1, all->workspace + (size_t)index * all->workspace_each);
}

/* The batch axes of C = A B among the leading axes of shape: the axes along which a value does not vary have stride 0 in it. */
GPUNN__PRIVATE void gpunn__products_axes(gpunn__products *all, const gpunn_value *shape, const gpunn_value *a,
                                         const gpunn_value *b, const gpunn_value *c)
{
    const gpunn_value *const value[3] = {a, b, c};
    int64_t                  stride[3] = {0, 0, 0};
    all->kept = all->axes = 0;
    all->kept_count = all->sum_count = 1;
    for (int i = 0; i < 3; i++) stride[i] = value[i]->dim[value[i]->rank - 1] * value[i]->dim[value[i]->rank - 2];
    for (int back = 3; back <= shape->rank; back++) {
        const int64_t dim = shape->dim[shape->rank - back];
        int64_t       step[3];
        for (int i = 0; i < 3; i++) {
            const int64_t own = back <= value[i]->rank ? value[i]->dim[value[i]->rank - back] : 1;
            step[i] = own > 1 ? stride[i] : 0;
            stride[i] *= own;
        }
        if (dim == 1) continue;
        int at = all->axes++;
        if (step[2]) { /* innermost kept axis last, before the summed ones */
            for (; at > 0; at--) all->axis[at] = all->axis[at - 1];
            all->kept++;
        }
        all->axis[at].dim = dim;
        all->axis[at].a = step[0];
        all->axis[at].b = step[1];
        all->axis[at].c = step[2];
        *(step[2] ? &all->kept_count : &all->sum_count) *= dim;
    }
}

/* Products side by side when there is one for each thread, else the threads share each. PREPARE: adds the workspace. */
GPUNN__PRIVATE void gpunn__products_run(gpunn__cpu *cpu, gpunn_step *step, gpunn__products *all, gpunn__action action)
{
    const int64_t total = all->kept_count * all->sum_count;
    const int     threads = gpunn__cpu_threads(cpu, all->g.m * all->g.n / 8 * all->g.k * total);
    all->workspace = (char *)step->workspace;
    all->workspace_each = gpunn__gemm_workspace(&all->g, 1);
    if (action == GPUNN__PREPARE) {
        const size_t bytes = (size_t)threads * all->workspace_each;
        if (step->workspace_bytes < bytes) step->workspace_bytes = bytes;
    } else if (all->kept_count >= threads) {
        gpunn__cpu_parallel(threads, gpunn__products_task, all);
    } else {
        for (int64_t i = 0; i < all->kept_count; i++) gpunn__products_one(all, i, threads, all->workspace);
    }
}

/* C = op(A) op(B); dA = dC op(B)^T and dB = op(A)^T dC, or their transposes where the operand is stored so, summed over the axes
 * along which the operand was repeated. */
static gpunn_status gpunn__cpu_matmul(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const bool      ta = step->attr->transpose_a, tb = step->attr->transpose_b;
    gpunn_value     a = step->in[0], b = step->in[1], c = step->backward ? step->grad_out : step->out;
    gpunn__products all;
    const int64_t   n = c.dim[c.rank - 1], k = a.dim[a.rank - (ta ? 2 : 1)];
    int64_t         m = c.dim[c.rank - 2];
    if (!ta && b.count == n * k) { /* one B for all: the leading axes of A are more rows */
        m = a.count / k;
        a.rank = b.rank = c.rank = 2;
        a.dim[0] = c.dim[0] = m;
        a.dim[1] = k;
        c.dim[1] = n;
        b.dim[0] = tb ? n : k;
        b.dim[1] = tb ? k : n;
    }
    if (action == GPUNN__PREPARE) step->workspace_bytes = 0;
    if (!step->backward) {
        gpunn__products_axes(&all, &c, &a, &b, &c);
        all.g = gpunn__gemm_make(m, n, k, a.data, ta, b.data, tb, c.data, false);
        gpunn__products_run(cpu, step, &all, action);
        return GPUNN_OK;
    }
    if (step->grad_in[0].data) {
        void *const da = step->grad_in[0].data;
        gpunn__products_axes(&all, &c, ta ? &b : &c, ta ? &c : &b, &a);
        if (ta)
            all.g = gpunn__gemm_make(k, m, n, b.data, tb, c.data, true, da, step->accumulate[0]);
        else
            all.g = gpunn__gemm_make(m, k, n, c.data, false, b.data, !tb, da, step->accumulate[0]);
        gpunn__products_run(cpu, step, &all, action);
    }
    if (step->grad_in[1].data) {
        void *const db = step->grad_in[1].data;
        gpunn__products_axes(&all, &c, tb ? &c : &a, tb ? &a : &c, &b);
        if (tb)
            all.g = gpunn__gemm_make(n, k, m, c.data, true, a.data, ta, db, step->accumulate[1]);
        else
            all.g = gpunn__gemm_make(k, n, m, a.data, !ta, c.data, false, db, step->accumulate[1]);
        gpunn__products_run(cpu, step, &all, action);
    }
    return GPUNN_OK;
}
/* ==== >>conv ========================================================================================================== *
 * Three ways, chosen by shape (gpunn__conv_choose_way). Lowered: any convolution as a product of windows and weights. Winograd:
 * 3 x 3 with stride 1 in a quarter of the multiplications. Direct: few channels or many groups. The first two turn images
 * pixel-major, [pixel][channel]: vectors run over channels whatever the window, and the left side of every product is read where
 * it lies. */
typedef enum gpunn__conv_use { GPUNN__CONV_FORWARD, GPUNN__CONV_DX, GPUNN__CONV_DW } gpunn__conv_use;
typedef enum gpunn__conv_way { GPUNN__CONV_LOWERED, GPUNN__CONV_WINOGRAD, GPUNN__CONV_DIRECT } gpunn__conv_way;

typedef struct gpunn__conv {
    int          threads;
    int64_t      n, c, d, h, w, oc, od, oh, ow, groups, cg, og;  /* cg, og: channels of a group */
    int64_t      kd, kh, kw, sd, sh, sw, pd, ph, pw, dd, dh, dw; /* kernel, stride, padding, dilation */
    int64_t      taps, k;                                        /* k: cells of a window, taps * cg */
    int64_t      pixels;                                         /* output pixels of the batch */
    const float *x, *weight, *dy;
    float       *y, *dx, *dweight; /* NULL: not wanted */
    bool         add_y, add_dx, add_dweight;
    /* Of a forward step, for y or, of a transposed convolution, dx: per channel, scale NULL: 1. */
    float       *scale, *shift;
    const float *residual;
    bool         relu;
} gpunn__conv;

/* The workspace as it is handed out; without a base it is only measured. */
typedef struct gpunn__space {
    float *base;
    size_t bytes;
} gpunn__space;

GPUNN__INLINE float *gpunn__take(gpunn__space *space, int64_t floats)
{
    float *at = space->base ? space->base + space->bytes / sizeof(float) : NULL;
    space->bytes += ((size_t)floats * sizeof(float) + GPUNN__ALIGN - 1) / GPUNN__ALIGN * GPUNN__ALIGN;
    return at;
}

GPUNN__INLINE int64_t gpunn__to_multiple(int64_t n, int64_t grain)
{
    return (n + grain - 1) / grain * grain;
}

GPUNN__INLINE gpunn__gemm gpunn__conv_gemm(int64_t m, int64_t n, int64_t k)
{
    gpunn__gemm g;
    memset(&g, 0, sizeof g);
    g.m = m, g.n = n, g.k = k;
    return g;
}

#if defined(__GNUC__) && !defined(GPUNN_NO_SIMD)
typedef int32_t gpunn__quad_bits __attribute__((vector_size(16)));
#endif

/* dst[pixel][channel] from planes; the 4 x 4 squares are transposed in registers. */
GPUNN__PRIVATE void gpunn__to_pixels(const float *src, int64_t plane, int64_t channels, int64_t pixels, float *dst,
                                     int64_t stride)
{
    int64_t c = 0;
#if defined(__GNUC__) && !defined(GPUNN_NO_SIMD)
    for (; c + 4 <= channels; c += 4) {
        int64_t p = 0;
        for (; p + 4 <= pixels; p += 4) {
            gpunn__quad q[4];
            GPUNN__UNROLL
            for (int i = 0; i < 4; i++) q[i] = *(const gpunn__quad_memory *)(src + (c + i) * plane + p);
            gpunn__transpose4(q);
            GPUNN__UNROLL
            for (int i = 0; i < 4; i++) *(gpunn__quad_memory *)(dst + (p + i) * stride + c) = q[i];
        }
        for (; p < pixels; p++)
            for (int i = 0; i < 4; i++) dst[p * stride + c + i] = src[(c + i) * plane + p];
    }
#endif
    for (; c < channels; c++)
        for (int64_t p = 0; p < pixels; p++) dst[p * stride + c] = src[c * plane + p];
}

/* Planes from src[pixel][channel]: dst = relu(src * scale + shift + residual), or dst += src. */
typedef struct gpunn__planes {
    float       *dst;
    int64_t      plane;
    const float *scale, *shift, *residual; /* per channel, per channel, as dst; each may be NULL */
    bool         relu, add;
} gpunn__planes;

GPUNN__PRIVATE void gpunn__from_pixels(const float *src, int64_t stride, int64_t channels, int64_t pixels,
                                       const gpunn__planes *to)
{
    int64_t c = 0;
#if defined(__GNUC__) && !defined(GPUNN_NO_SIMD)
    for (; c + 4 <= channels; c += 4) {
        gpunn__quad scale = {1, 1, 1, 1}, shift = {0, 0, 0, 0};
        if (to->scale) scale = *(const gpunn__quad_memory *)(to->scale + c);
        if (to->shift) shift = *(const gpunn__quad_memory *)(to->shift + c);
        int64_t p = 0;
        for (; p + 4 <= pixels; p += 4) {
            gpunn__quad q[4];
            GPUNN__UNROLL
            for (int i = 0; i < 4; i++) q[i] = *(const gpunn__quad_memory *)(src + (p + i) * stride + c) * scale + shift;
            gpunn__transpose4(q);
            GPUNN__UNROLL
            for (int i = 0; i < 4; i++) {
                int64_t at = (c + i) * to->plane + p;
                if (to->add) q[i] += *(gpunn__quad_memory *)(to->dst + at);
                if (to->residual) q[i] += *(const gpunn__quad_memory *)(to->residual + at);
                if (to->relu) q[i] = (gpunn__quad)((gpunn__quad_bits)q[i] & ~(gpunn__quad_bits)(q[i] <= 0));
                *(gpunn__quad_memory *)(to->dst + at) = q[i];
            }
        }
        for (; p < pixels; p++)
            for (int i = 0; i < 4; i++) {
                int64_t at = (c + i) * to->plane + p;
                float   v = src[p * stride + c + i] * scale[i] + shift[i];
                if (to->add) v += to->dst[at];
                if (to->residual) v += to->residual[at];
                to->dst[at] = to->relu && v <= 0 ? 0 : v;
            }
    }
#endif
    for (; c < channels; c++)
        for (int64_t p = 0; p < pixels; p++) {
            int64_t at = c * to->plane + p;
            float   v = src[p * stride + c];
            if (to->scale) v *= to->scale[c];
            if (to->shift) v += to->shift[c];
            if (to->add) v += to->dst[at];
            if (to->residual) v += to->residual[at];
            to->dst[at] = to->relu && v <= 0 ? 0 : v;
        }
}

/* Where and how y or dx is stored. */
GPUNN__INLINE gpunn__planes gpunn__conv_planes(const gpunn__conv *v, float *dst, int64_t plane, bool add)
{
    gpunn__planes to;
    to.dst = dst, to.plane = plane, to.add = add;
    to.scale = v->scale, to.shift = v->shift, to.residual = v->residual, to.relu = v->relu;
    return to;
}

/* The same from there on: channel c, cell `at`. */
GPUNN__INLINE gpunn__planes gpunn__planes_from(gpunn__planes to, int64_t c, int64_t at)
{
    to.dst += at;
    if (to.residual) to.residual += at;
    if (to.scale) to.scale += c;
    if (to.shift) to.shift += c;
    return to;
}

/* The planes of n images, `cells` each, made pixel-major. */
GPUNN__PRIVATE void gpunn__conv_to_pixels(const float *src, int64_t n, int64_t channels, int64_t cells, float *dst, int index,
                                          int threads)
{
    int64_t p, end;
    gpunn__cpu_part(n * cells, 64, threads, index, &p, &end);
    while (p < end) {
        int64_t image = p / cells, at = p % cells, count = cells - at < end - p ? cells - at : end - p;
        if (count > 64) count = 64;
        gpunn__to_pixels(src + image * channels * cells + at, cells, channels, count, dst + p * channels, channels);
        p += count;
    }
}

/* Where the packed right side [k][n] holds row p, column j (a multiple of the lanes). *width: the distance to the next row. */
GPUNN__INLINE int64_t gpunn__packed_at(int64_t k, int64_t n, int64_t lanes, int64_t p, int64_t j, int64_t *width)
{
    int64_t padded = gpunn__to_multiple(n, lanes), panel = j / (3 * lanes) * 3 * lanes;
    int64_t block = p / GPUNN__GEMM_DEPTH * GPUNN__GEMM_DEPTH;
    int64_t depth = k - block < GPUNN__GEMM_DEPTH ? k - block : GPUNN__GEMM_DEPTH;
    *width = padded - panel < 3 * lanes ? padded - panel : 3 * lanes;
    return block * padded + depth * panel + (p - block) * *width + j - panel;
}

/* ---- lowered: windows laid out as rows of a matrix, any kernel, stride, dilation and groups --------------------------- */
typedef struct gpunn__lowered {
    const gpunn__conv *v;
    bool               pointwise; /* windows are the pixels themselves */
    bool               want_dx, want_dweight;
    int64_t            rows;          /* of a block */
    float             *xt, *dyt, *wt; /* [n d h w][c], [n od oh ow][oc], [oc][tap][cg] */
    float             *packed;        /* forward: weights as right sides, one per group */
    int64_t            packed_floats; /* of one */
    bool               ready;         /* packed holds them already */
    float             *dwt, *dxt;     /* as wt, as xt */
    float             *columns;       /* windows [rows][tap][cg]; forward: per thread */
    float             *out;           /* forward: results [rows][og] per thread */
    float             *panels;        /* of the products, per thread */
    int64_t            panel;         /* floats of one */
} gpunn__lowered;

GPUNN__PRIVATE gpunn__lowered gpunn__lowered_plan(const gpunn__conv *v, bool backward, bool want_dx, bool want_dweight,
                                                  bool cached, float *cache, gpunn__space *space)
{
    gpunn__lowered l;
    memset(&l, 0, sizeof l);
    l.v = v, l.want_dx = want_dx, l.want_dweight = want_dweight;
    l.pointwise = v->taps * v->sd * v->sh * v->sw == 1 && v->pd + v->ph + v->pw == 0;
    l.rows = (backward ? 524288 : 65536) / v->k / 8 * 8;
    l.rows = l.rows < 128 ? 128 : l.rows > 512 ? 512 : l.rows;
    if (l.rows > v->pixels) l.rows = gpunn__to_multiple(v->pixels, 8);
    l.panel = backward ? GPUNN__GEMM_DEPTH * 3 * gpunn__gemm_choose()->lanes : 0;
    l.panels = gpunn__take(space, v->threads * l.panel);
    l.packed_floats = (int64_t)(gpunn__gemm_packed_b_bytes(v->k, v->og) / sizeof(float));
    if (!backward) l.packed = cached ? cache : gpunn__take(space, v->groups * l.packed_floats);
    l.columns = gpunn__take(space, (backward ? 1 : l.pointwise ? 0 : v->threads) * l.rows * v->k);
    if (!backward || want_dweight) l.xt = gpunn__take(space, v->n * v->d * v->h * v->w * v->c);
    if (want_dx) l.wt = gpunn__take(space, v->oc * v->k);
    if (!backward) l.out = gpunn__take(space, v->threads * l.rows * v->og);
    if (backward) l.dyt = gpunn__take(space, v->pixels * v->oc);
    if (want_dweight) l.dwt = gpunn__take(space, v->oc * v->k);
    if (want_dx) l.dxt = gpunn__take(space, v->n * v->d * v->h * v->w * v->c);
    return l;
}

/* An output pixel. */
typedef struct gpunn__lowered_pixel {
    int64_t image, z, y, x;
} gpunn__lowered_pixel;

GPUNN__INLINE gpunn__lowered_pixel gpunn__lowered_at(const gpunn__conv *v, int64_t p)
{
    gpunn__lowered_pixel at;
    at.x = p % v->ow, p /= v->ow;
    at.y = p % v->oh, p /= v->oh;
    at.z = p % v->od, at.image = p / v->od;
    return at;
}

GPUNN__INLINE void gpunn__lowered_next(const gpunn__conv *v, gpunn__lowered_pixel *at)
{
    if (++at->x < v->ow) return;
    at->x = 0;
    if (++at->y < v->oh) return;
    at->y = 0;
    if (++at->z < v->od) return;
    at->z = 0, at->image++;
}

/* The input pixel under a tap; -1: padding. */
GPUNN__INLINE int64_t gpunn__lowered_under(const gpunn__conv *v, const gpunn__lowered_pixel *at, int64_t kz, int64_t ky,
                                           int64_t kx)
{
    int64_t z = at->z * v->sd - v->pd + kz * v->dd, y = at->y * v->sh - v->ph + ky * v->dh,
            x = at->x * v->sw - v->pw + kx * v->dw;
    if (z < 0 || z >= v->d || y < 0 || y >= v->h || x < 0 || x >= v->w) return -1;
    return ((at->image * v->d + z) * v->h + y) * v->w + x;
}

/* Windows of the output pixels [p, p + rows), group g, to columns[row][tap][channel]. */
GPUNN__PRIVATE void gpunn__lowered_windows(const gpunn__lowered *l, int64_t g, int64_t p, int64_t rows, float *columns)
{
    const gpunn__conv   *v = l->v;
    const float         *images = l->xt + g * v->cg;
    gpunn__lowered_pixel at = gpunn__lowered_at(v, p);
    for (; rows > 0; rows--, gpunn__lowered_next(v, &at))
        for (int64_t kz = 0; kz < v->kd; kz++)
            for (int64_t ky = 0; ky < v->kh; ky++)
                for (int64_t kx = 0; kx < v->kw; kx++, columns += v->cg) {
                    int64_t from = gpunn__lowered_under(v, &at, kz, ky, kx);
                    if (from < 0)
                        memset(columns, 0, (size_t)v->cg * sizeof(float));
                    else
                        memcpy(columns, images + from * v->c, (size_t)v->cg * sizeof(float));
                }
}

/* The reverse: adds columns [row][tap][channel], channels [c0, c1) of group g, to dxt. */
GPUNN__PRIVATE void gpunn__lowered_add(const gpunn__lowered *l, int64_t g, int64_t p, int64_t rows, int64_t c0, int64_t c1,
                                       const float *columns)
{
    const gpunn__conv   *v = l->v;
    float               *images = l->dxt + g * v->cg;
    gpunn__lowered_pixel at = gpunn__lowered_at(v, p);
    for (; rows > 0; rows--, gpunn__lowered_next(v, &at))
        for (int64_t kz = 0; kz < v->kd; kz++)
            for (int64_t ky = 0; ky < v->kh; ky++)
                for (int64_t kx = 0; kx < v->kw; kx++, columns += v->cg) {
                    int64_t under = gpunn__lowered_under(v, &at, kz, ky, kx);
                    if (under < 0) continue;
                    float *GPUNN__RESTRICT to = images + under * v->c;
                    for (int64_t i = c0; i < c1; i++) to[i] += columns[i];
                }
}

/* weight [oc][cg][tap] to a packed right side [tap][cg][og] per group. */
GPUNN__PRIVATE void gpunn__lowered_pack(const gpunn__lowered *l, int index, int threads)
{
    const gpunn__conv *v = l->v;
    const int64_t      lanes = gpunn__gemm_choose()->lanes, panels = (v->og + 3 * lanes - 1) / (3 * lanes);
    int64_t            unit, end;
    gpunn__cpu_part(v->groups * panels, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        const int64_t group = unit / panels, j = unit % panels * 3 * lanes,
                      columns = v->og - j < 3 * lanes ? v->og - j : 3 * lanes;
        const float *from = v->weight + (group * v->og + j) * v->k;
        float       *to = l->packed + group * l->packed_floats;
        int64_t      width;
        for (int64_t p = 0; p < v->k && columns % lanes; p++) { /* zeros behind the last column */
            float *row = to + gpunn__packed_at(v->k, v->og, lanes, p, j, &width);
            memset(row, 0, (size_t)width * sizeof *row);
        }
        for (int64_t p = 0; p < v->k; p += 64) { /* few rows at a time, which stay in the cache */
            const int64_t count = v->k - p < 64 ? v->k - p : 64;
            int64_t       row[64];
            for (int64_t x = 0; x < count; x++)
                row[x] = gpunn__packed_at(v->k, v->og, lanes, (p + x) % v->taps * v->cg + (p + x) / v->taps, j, &width);
            for (int64_t i = 0; i < columns; i += 4) {
                float square[64][4];
                if (columns - i < 4) memset(square, 0, sizeof square);
                gpunn__to_pixels(from + i * v->k + p, v->k, columns - i < 4 ? columns - i : 4, count, square[0], 4);
                for (int64_t x = 0; x < count; x++) memcpy(to + row[x] + i, square[x], sizeof square[x]);
            }
        }
    }
}

/* weight [oc][cg][tap] to wt [oc][tap][cg]. */
GPUNN__PRIVATE void gpunn__lowered_weights(const gpunn__lowered *l, int index, int threads)
{
    const gpunn__conv *v = l->v;
    int64_t            o, end;
    gpunn__cpu_part(v->oc, 1, threads, index, &o, &end);
    for (; o < end; o++) gpunn__to_pixels(v->weight + o * v->k, v->taps, v->cg, v->taps, l->wt + o * v->k, v->cg);
}

GPUNN__PRIVATE void gpunn__lowered_forward(void *arg, int index, int threads)
{
    const gpunn__lowered      *l = (const gpunn__lowered *)arg;
    const gpunn__conv         *v = l->v;
    const gpunn__gemm_kernels *kernels = gpunn__gemm_choose();
    gpunn__conv_to_pixels(v->x, v->n, v->c, v->d * v->h * v->w, l->xt, index, threads);
    if (!l->ready) gpunn__lowered_pack(l, index, threads);
    if (threads > 1) gpunn__cpu_barrier();
    int64_t blocks = (v->pixels + l->rows - 1) / l->rows, rows = l->rows;
    if (blocks < threads) { /* few pixels: smaller blocks */
        rows = gpunn__to_multiple((v->pixels + threads - 1) / threads, 8);
        blocks = (v->pixels + rows - 1) / rows;
    }
    int64_t block, end, area = v->od * v->oh * v->ow;
    gpunn__cpu_part(blocks, 1, threads, index, &block, &end);
    float *columns = l->columns + index * l->rows * v->k, *out = l->out + index * l->rows * v->og;
    for (; block < end; block++)
        for (int64_t group = 0; group < v->groups; group++) {
            int64_t     p = block * rows, count = v->pixels - p < rows ? v->pixels - p : rows;
            gpunn__gemm g = gpunn__conv_gemm(v->pixels, v->og, v->k);
            g.a = l->pointwise ? l->xt + p * v->c + group * v->cg : columns;
            g.a_row = l->pointwise ? v->c : v->k, g.a_col = 1;
            g.packed_b = l->packed + group * l->packed_floats;
            g.c = out, g.c_row = v->og;
            if (!l->pointwise) gpunn__lowered_windows(l, group, p, count, columns);
            gpunn__gemm_block(&g, kernels, 0, count, 0, v->og, NULL);
            for (int64_t done = 0, part; done < count; done += part) { /* image by image */
                int64_t       image = (p + done) / area, at = (p + done) % area;
                gpunn__planes to = gpunn__conv_planes(v, v->y, area, v->add_y);
                part = area - at < count - done ? area - at : count - done;
                to = gpunn__planes_from(to, group * v->og, (image * v->oc + group * v->og) * area + at);
                gpunn__from_pixels(out + done * v->og, v->og, v->og, part, &to);
            }
        }
}

/* dwt[og][k] += dyt^T columns; columns = dyt wt, added into dxt. Block by block of pixels, each shared by all threads: a weight's
 * sum has one order, whatever their number. */
GPUNN__PRIVATE void gpunn__lowered_backward(void *arg, int index, int threads)
{
    const gpunn__lowered      *l = (const gpunn__lowered *)arg;
    const gpunn__conv         *v = l->v;
    const gpunn__gemm_kernels *kernels = gpunn__gemm_choose();
    float                     *panel = l->panels + index * l->panel;
    int64_t                    begin, end, area = v->od * v->oh * v->ow, cells = v->d * v->h * v->w;
    gpunn__conv_to_pixels(v->dy, v->n, v->oc, area, l->dyt, index, threads);
    if (l->want_dweight) gpunn__conv_to_pixels(v->x, v->n, v->c, cells, l->xt, index, threads);
    if (l->want_dx) {
        gpunn__lowered_weights(l, index, threads);
        gpunn__cpu_part(v->n * cells * v->c, 16, threads, index, &begin, &end);
        memset(l->dxt + begin, 0, (size_t)(end - begin) * sizeof(float));
    }
    if (threads > 1) gpunn__cpu_barrier();
    for (int64_t group = 0; group < v->groups; group++)
        for (int64_t p = 0; p < v->pixels; p += l->rows) {
            int64_t      count = v->pixels - p < l->rows ? v->pixels - p : l->rows;
            const float *dyt = l->dyt + p * v->oc + group * v->og;
            if (l->want_dweight) {
                gpunn__cpu_part(count, 1, threads, index, &begin, &end);
                gpunn__lowered_windows(l, group, p + begin, end - begin, l->columns + begin * v->k);
                if (threads > 1) gpunn__cpu_barrier();
                gpunn__gemm g = gpunn__conv_gemm(v->og, v->k, count);
                g.a = dyt, g.a_row = 1, g.a_col = v->oc;
                g.b = l->columns, g.b_row = v->k, g.b_col = 1;
                g.c = l->dwt + group * v->og * v->k, g.c_row = v->k, g.accumulate = p > 0;
                gpunn__cpu_part(v->k, 3 * kernels->lanes, threads, index, &begin, &end);
                if (begin < end) gpunn__gemm_block(&g, kernels, 0, v->og, begin, end, panel);
                if (threads > 1) gpunn__cpu_barrier();
            }
            if (l->want_dx) {
                gpunn__gemm g = gpunn__conv_gemm(count, v->k, v->og);
                g.a = dyt, g.a_row = v->oc, g.a_col = 1;
                g.b = l->wt + group * v->og * v->k, g.b_row = v->k, g.b_col = 1;
                g.c = l->columns, g.c_row = v->k;
                gpunn__cpu_part(count, 8, threads, index, &begin, &end);
                if (begin < end) gpunn__gemm_block(&g, kernels, begin, end, 0, v->k, panel);
                if (threads > 1) gpunn__cpu_barrier();
                gpunn__cpu_part(v->cg, 16, threads, index, &begin, &end);
                if (begin < end) gpunn__lowered_add(l, group, p, count, begin, end, l->columns);
                if (threads > 1) gpunn__cpu_barrier();
            }
        }
    if (l->want_dx) {
        gpunn__cpu_part(v->n, 1, threads, index, &begin, &end);
        for (; begin < end; begin++) {
            gpunn__planes to = gpunn__planes_from(gpunn__conv_planes(v, v->dx, cells, v->add_dx), 0, begin * v->c * cells);
            gpunn__from_pixels(l->dxt + begin * v->c * cells, v->c, v->c, cells, &to);
        }
    }
    if (l->want_dweight) {
        gpunn__cpu_part(v->oc, 1, threads, index, &begin, &end);
        for (; begin < end; begin++) {
            gpunn__planes to;
            memset(&to, 0, sizeof to);
            to.dst = v->dweight + begin * v->k, to.plane = v->taps, to.add = v->add_dweight;
            gpunn__from_pixels(l->dwt + begin * v->k, v->cg, v->cg, v->taps, &to);
        }
    }
}

/* ---- Winograd's F(4 x 4, 3 x 3) (Lavin and Gray 2016): 36 products for 16 outputs instead of 144 -----------------------
 * y = A' [(G w G') (B' x B)] A, elementwise products summed over channels, that is 36 matrix products. Its transposes give
 * dw = G' [(B' x B) (A dy A')] G. Every transform is one map of a column, applied to columns and then to rows. */
enum gpunn__winograd_map {
    GPUNN__WINOGRAD_INPUT,
    GPUNN__WINOGRAD_OUTPUT,
    GPUNN__WINOGRAD_WEIGHT,
    GPUNN__WINOGRAD_DOUTPUT,
    GPUNN__WINOGRAD_DWEIGHT
};

/* count transforms of n x n cells at src (rows si, columns sj apart) to m x m cells at dst, each cell a run of channels. */
typedef struct gpunn__winograd_job {
    const float *src;
    int64_t      si, sj, src_step;
    float       *dst;
    int64_t      di, dj, dst_step;
    int64_t      count, channels;
} gpunn__winograd_job;

/* ---- direct: few channels ---------------------------------------------------------------------------------------------
 * Vectors run over the pixels of a padded copy of the image, rows and all, so that each tap is one shifted load; results that
 * fall into the padding between rows are dropped. */
typedef struct gpunn__direct_job {
    const float   *x, *y; /* the copies; y: of dy, in whose gaps are zeros */
    const int64_t *offset;
    int64_t        taps, count; /* channels * taps; pixels, in whole tiles */
    const float   *w;           /* [tap][row] */
    float         *out;
    int64_t        out_row, y_row, images, x_image, y_image;
} gpunn__direct_job;

/* The kernels for one kind of vector. */
typedef struct gpunn__conv_kernels {
    int64_t lanes, v1, v6, v8;                               /* vectors per tile of 1, 6 and 8 rows */
    void (*winograd)(const gpunn__winograd_job *w, int map); /* NULL: not in this set */
    void (*direct)(const gpunn__direct_job *d, int rows);
    void (*gradient)(const gpunn__direct_job *d, int rows);
    void (*finish)(const float *x, float *y, const float *residual, int64_t n, float scale, float shift, bool add, bool relu);
} gpunn__conv_kernels;

#define GPUNN__WINOGRAD_KERNELS(isa, TARGET, LANES)                                                                           \
    TARGET GPUNN__INLINE void gpunn__##isa##_winograd1(const int map, const gpunn__##isa *a, gpunn__##isa *b)                 \
    {                                                                                                                         \
        if (map == GPUNN__WINOGRAD_INPUT) {                                                                                   \
            gpunn__##isa p = a[4] - a[2] * 4, q = a[3] - a[1] * 4, r = a[4] - a[2], s = (a[3] - a[1]) * 2;                    \
            b[0] = a[0] * 4 - a[2] * 5 + a[4];                                                                                \
            b[1] = p + q;                                                                                                     \
            b[2] = p - q;                                                                                                     \
            b[3] = r + s;                                                                                                     \
            b[4] = r - s;                                                                                                     \
            b[5] = a[1] * 4 - a[3] * 5 + a[5];                                                                                \
        } else if (map == GPUNN__WINOGRAD_OUTPUT) {                                                                           \
            gpunn__##isa p = a[1] + a[2], q = a[1] - a[2], r = a[3] + a[4], s = a[3] - a[4];                                  \
            b[0] = a[0] + p + r;                                                                                              \
            b[1] = q + s * 2;                                                                                                 \
            b[2] = p + r * 4;                                                                                                 \
            b[3] = q + s * 8 + a[5];                                                                                          \
        } else if (map == GPUNN__WINOGRAD_WEIGHT) {                                                                           \
            gpunn__##isa p = (a[0] + a[2]) * (-1.0f / 6), q = a[1] * (-1.0f / 6);                                             \
            gpunn__##isa r = a[0] * (1.0f / 24) + a[2] * (1.0f / 6), s = a[1] * (1.0f / 12);                                  \
            b[0] = a[0] * 0.25f;                                                                                              \
            b[1] = p + q;                                                                                                     \
            b[2] = p - q;                                                                                                     \
            b[3] = r + s;                                                                                                     \
            b[4] = r - s;                                                                                                     \
            b[5] = a[2];                                                                                                      \
        } else if (map == GPUNN__WINOGRAD_DOUTPUT) {                                                                          \
            gpunn__##isa p = a[0] + a[2], q = a[1] + a[3], r = a[0] + a[2] * 4, s = a[1] * 2 + a[3] * 8;                      \
            b[0] = a[0];                                                                                                      \
            b[1] = p + q;                                                                                                     \
            b[2] = p - q;                                                                                                     \
            b[3] = r + s;                                                                                                     \
            b[4] = r - s;                                                                                                     \
            b[5] = a[3];                                                                                                      \
        } else {                                                                                                              \
            gpunn__##isa p = (a[1] + a[2]) * (-1.0f / 6), q = (a[2] - a[1]) * (1.0f / 6), r = a[3] + a[4];                    \
            b[0] = a[0] * 0.25f + p + r * (1.0f / 24);                                                                        \
            b[1] = q + (a[3] - a[4]) * (1.0f / 12);                                                                           \
            b[2] = p + r * (1.0f / 6) + a[5];                                                                                 \
        }                                                                                                                     \
    }                                                                                                                         \
    TARGET GPUNN__INLINE void gpunn__##isa##_winograd2(const gpunn__winograd_job *w, const int map, const int n, const int m) \
    {                                                                                                                         \
        for (int64_t t = 0; t < w->count; t++)                                                                                \
            for (int64_t c = 0; c < w->channels; c += LANES) {                                                                \
                const int    lanes = w->channels - c < LANES ? (int)(w->channels - c) : LANES;                                \
                const float *src = w->src + t * w->src_step + c;                                                              \
                float       *dst = w->dst + t * w->dst_step + c;                                                              \
                gpunn__##isa a[6], b[6], half[6][6];                                                                          \
                GPUNN__UNROLL                                                                                                 \
                for (int j = 0; j < n; j++) {                                                                                 \
                    GPUNN__UNROLL                                                                                             \
                    for (int i = 0; i < n; i++) a[i] = gpunn__##isa##_load(src + i * w->si + j * w->sj, lanes);               \
                    gpunn__##isa##_winograd1(map, a, b);                                                                      \
                    GPUNN__UNROLL                                                                                             \
                    for (int i = 0; i < m; i++) half[i][j] = b[i];                                                            \
                }                                                                                                             \
                GPUNN__UNROLL                                                                                                 \
                for (int i = 0; i < m; i++) {                                                                                 \
                    gpunn__##isa##_winograd1(map, half[i], b);                                                                \
                    GPUNN__UNROLL                                                                                             \
                    for (int j = 0; j < m; j++) gpunn__##isa##_store(dst + i * w->di + j * w->dj, lanes, b[j]);               \
                }                                                                                                             \
            }                                                                                                                 \
    }                                                                                                                         \
    TARGET GPUNN__NOINLINE void gpunn__##isa##_winograd(const gpunn__winograd_job *w, int map)                                \
    {                                                                                                                         \
        if (map == GPUNN__WINOGRAD_INPUT)                                                                                     \
            gpunn__##isa##_winograd2(w, GPUNN__WINOGRAD_INPUT, 6, 6);                                                         \
        else if (map == GPUNN__WINOGRAD_OUTPUT)                                                                               \
            gpunn__##isa##_winograd2(w, GPUNN__WINOGRAD_OUTPUT, 6, 4);                                                        \
        else if (map == GPUNN__WINOGRAD_WEIGHT)                                                                               \
            gpunn__##isa##_winograd2(w, GPUNN__WINOGRAD_WEIGHT, 3, 6);                                                        \
        else if (map == GPUNN__WINOGRAD_DOUTPUT)                                                                              \
            gpunn__##isa##_winograd2(w, GPUNN__WINOGRAD_DOUTPUT, 4, 6);                                                       \
        else                                                                                                                  \
            gpunn__##isa##_winograd2(w, GPUNN__WINOGRAD_DWEIGHT, 6, 3);                                                       \
    }

/* out[row][pixel] = sum over taps of w[tap][row] x[pixel + offset[tap]], R rows in tiles of V vectors.
 * out[row][tap] += sum over pixels of y[row][pixel] x[pixel + offset[tap]], R rows by 4 taps. */
#define GPUNN__DIRECT_KERNELS(isa, TARGET, LANES, V1, V6, V8, D, WINOGRAD)                                                     \
    TARGET GPUNN__INLINE void gpunn__##isa##_direct_tile(const gpunn__direct_job *d, const int R, const int V)                 \
    {                                                                                                                          \
        for (int64_t q = 0; q < d->count; q += V * LANES) {                                                                    \
            gpunn__##isa sum[8][8], x[8];                                                                                      \
            GPUNN__UNROLL                                                                                                      \
            for (int i = 0; i < R; i++) {                                                                                      \
                GPUNN__UNROLL                                                                                                  \
                for (int v = 0; v < V; v++) sum[i][v] = gpunn__##isa##_set(0);                                                 \
            }                                                                                                                  \
            const float *w = d->w;                                                                                             \
            for (int64_t p = 0; p < d->taps; p++, w += R) {                                                                    \
                const float *from = d->x + q + d->offset[p];                                                                   \
                GPUNN__UNROLL                                                                                                  \
                for (int v = 0; v < V; v++) x[v] = *(const gpunn__##isa##_memory *)(from + v * LANES);                         \
                GPUNN__UNROLL                                                                                                  \
                for (int i = 0; i < R; i++) {                                                                                  \
                    gpunn__##isa a = gpunn__##isa##_set(w[i]);                                                                 \
                    GPUNN__UNROLL                                                                                              \
                    for (int v = 0; v < V; v++) sum[i][v] = gpunn__##isa##_fma(a, x[v], sum[i][v]);                            \
                }                                                                                                              \
            }                                                                                                                  \
            GPUNN__UNROLL                                                                                                      \
            for (int i = 0; i < R; i++) {                                                                                      \
                GPUNN__UNROLL                                                                                                  \
                for (int v = 0; v < V; v++) *(gpunn__##isa##_memory *)(d->out + i * d->out_row + q + v * LANES) = sum[i][v];   \
            }                                                                                                                  \
        }                                                                                                                      \
    }                                                                                                                          \
    TARGET GPUNN__NOINLINE void gpunn__##isa##_direct(const gpunn__direct_job *d, int rows)                                    \
    {                                                                                                                          \
        if (rows == 1)                                                                                                         \
            gpunn__##isa##_direct_tile(d, 1, V1);                                                                              \
        else if (rows == 6)                                                                                                    \
            gpunn__##isa##_direct_tile(d, 6, V6);                                                                              \
        else                                                                                                                   \
            gpunn__##isa##_direct_tile(d, 8, V8);                                                                              \
    }                                                                                                                          \
    TARGET GPUNN__INLINE void gpunn__##isa##_direct_dots(const gpunn__direct_job *d, int64_t row, int64_t p, const int R)      \
    {                                                                                                                          \
        gpunn__##isa sum[6][4], x[4], y;                                                                                       \
        GPUNN__UNROLL                                                                                                          \
        for (int i = 0; i < R; i++) {                                                                                          \
            GPUNN__UNROLL                                                                                                      \
            for (int j = 0; j < 4; j++) sum[i][j] = gpunn__##isa##_set(0);                                                     \
        }                                                                                                                      \
        const int64_t *o = d->offset + p;                                                                                      \
        for (int64_t image = 0; image < d->images; image++) {                                                                  \
            const float *x0 = d->x + image * d->x_image, *y0 = d->y + image * d->y_image + row * d->y_row;                     \
            for (int64_t q = 0; q < d->count; q += LANES) {                                                                    \
                GPUNN__UNROLL                                                                                                  \
                for (int j = 0; j < 4; j++) x[j] = *(const gpunn__##isa##_memory *)(x0 + q + o[j]);                            \
                GPUNN__UNROLL                                                                                                  \
                for (int i = 0; i < R; i++) {                                                                                  \
                    y = *(const gpunn__##isa##_memory *)(y0 + i * d->y_row + q);                                               \
                    GPUNN__UNROLL                                                                                              \
                    for (int j = 0; j < 4; j++) sum[i][j] = gpunn__##isa##_fma(y, x[j], sum[i][j]);                            \
                }                                                                                                              \
            }                                                                                                                  \
        }                                                                                                                      \
        GPUNN__UNROLL                                                                                                          \
        for (int i = 0; i < R; i++) {                                                                                          \
            gpunn__##isa##_sum4(sum[i], d->out + (row + i) * d->out_row + p);                                                  \
        }                                                                                                                      \
    }                                                                                                                          \
    TARGET GPUNN__NOINLINE void gpunn__##isa##_direct_gradient(const gpunn__direct_job *d, int rows)                           \
    {                                                                                                                          \
        for (int64_t p = 0; p < d->taps; p += 4) {                                                                             \
            if (rows == 1)                                                                                                     \
                gpunn__##isa##_direct_dots(d, 0, p, 1);                                                                        \
            else                                                                                                               \
                for (int64_t row = 0; row < 6; row += D) gpunn__##isa##_direct_dots(d, row, p, D);                             \
        }                                                                                                                      \
    }                                                                                                                          \
    /* y = relu(x * scale + shift + residual), or y += x. */                                                                   \
    TARGET GPUNN__NOINLINE void gpunn__##isa##_finish(const float *x, float *y, const float *residual, int64_t n, float scale, \
                                                      float shift, bool add, bool relu)                                        \
    {                                                                                                                          \
        for (int64_t i = 0; i < n; i += LANES) {                                                                               \
            const int    lanes = n - i < LANES ? (int)(n - i) : LANES;                                                         \
            gpunn__##isa v = gpunn__##isa##_load(x + i, lanes) * scale + shift;                                                \
            if (add) v += gpunn__##isa##_load(y + i, lanes);                                                                   \
            if (residual) v += gpunn__##isa##_load(residual + i, lanes);                                                       \
            if (relu) v = gpunn__##isa##_relu(v);                                                                              \
            gpunn__##isa##_store(y + i, lanes, v);                                                                             \
        }                                                                                                                      \
    }                                                                                                                          \
    static const gpunn__conv_kernels gpunn__##isa##_conv = {                                                                   \
        LANES, V1, V6, V8, WINOGRAD, gpunn__##isa##_direct, gpunn__##isa##_direct_gradient, gpunn__##isa##_finish};

#if defined(__GNUC__) && !defined(GPUNN_NO_SIMD)
/* out[j] += the sum of a[j]; relu lets NaN through. */
#define GPUNN__CONV_VECTORS(isa, TARGET, LANES, V1, V6, V8, D, WINOGRAD)                \
    TARGET GPUNN__INLINE void gpunn__##isa##_sum4(const gpunn__##isa *a, float *out)    \
    {                                                                                   \
        gpunn__quad q[4];                                                               \
        GPUNN__UNROLL                                                                   \
        for (int j = 0; j < 4; j++) q[j] = gpunn__##isa##_fold(a[j]);                   \
        gpunn__transpose4(q);                                                           \
        *(gpunn__quad_memory *)out += (q[0] + q[2]) + (q[1] + q[3]);                    \
    }                                                                                   \
    TARGET GPUNN__INLINE gpunn__##isa gpunn__##isa##_relu(gpunn__##isa x)               \
    {                                                                                   \
        return (gpunn__##isa)((gpunn__##isa##_bits)x & ~(gpunn__##isa##_bits)(x <= 0)); \
    }                                                                                   \
    GPUNN__DIRECT_KERNELS(isa, TARGET, LANES, V1, V6, V8, D, WINOGRAD)
#if defined(GPUNN__AVX512)
GPUNN__WINOGRAD_KERNELS(v16, GPUNN__AVX512, 16)
GPUNN__CONV_VECTORS(v16, GPUNN__AVX512, 16, 4, 4, 3, 6, gpunn__v16_winograd)
#elif defined(GPUNN__AVX2)
GPUNN__WINOGRAD_KERNELS(v8, GPUNN__AVX2, 8)
GPUNN__CONV_VECTORS(v8, GPUNN__AVX2, 8, 4, 2, 1, 2, gpunn__v8_winograd)
#endif
#if defined(GPUNN__BASELINE) && defined(__aarch64__)
GPUNN__WINOGRAD_KERNELS(v4, GPUNN__BASELINE, 4)
GPUNN__CONV_VECTORS(v4, GPUNN__BASELINE, 4, 8, 4, 3, 6, gpunn__v4_winograd)
#elif defined(GPUNN__BASELINE) /* without Winograd: 16 registers of 4 lanes hold no tile, and the code would be long */
GPUNN__CONV_VECTORS(v4, GPUNN__BASELINE, 4, 8, 2, 1, 2, NULL)
#endif
#else
typedef float       gpunn__v1, gpunn__v1_memory;
#define GPUNN__UNROLL
GPUNN__INLINE float gpunn__v1_set(float x)
{
    return x;
}
GPUNN__INLINE float gpunn__v1_fma(float a, float b, float c)
{
    return a * b + c;
}
GPUNN__INLINE float gpunn__v1_load(const float *p, int count)
{
    return count ? *p : 0;
}
GPUNN__INLINE void gpunn__v1_store(float *p, int count, float x)
{
    if (count) *p = x;
}
GPUNN__INLINE void gpunn__v1_sum4(const float *a, float *out)
{
    for (int j = 0; j < 4; j++) out[j] += a[j];
}
GPUNN__INLINE float gpunn__v1_relu(float x)
{
    return x <= 0 ? 0 : x;
}
GPUNN__WINOGRAD_KERNELS(v1, , 1)
GPUNN__DIRECT_KERNELS(v1, , 1, 8, 2, 1, 2, gpunn__v1_winograd)
#endif

#undef GPUNN__CONV_VECTORS
#undef GPUNN__WINOGRAD_KERNELS
#undef GPUNN__DIRECT_KERNELS

GPUNN__INLINE const gpunn__conv_kernels *gpunn__conv_choose(void)
{
#if !defined(__GNUC__) || defined(GPUNN_NO_SIMD)
    return &gpunn__v1_conv;
#elif defined(GPUNN__AVX512)
    return &gpunn__v16_conv;
#elif defined(GPUNN__AVX2) && defined(GPUNN__BASELINE)
    return gpunn__gemm_choose()->lanes == 8 ? &gpunn__v8_conv : &gpunn__v4_conv;
#elif defined(GPUNN__AVX2)
    return &gpunn__v8_conv;
#else
    return &gpunn__v4_conv;
#endif
}

/* One such convolution, src [n][ci][h][w] to planes [n][co][oh][ow]. Work goes by rows of tiles, counted through all images. */
typedef struct gpunn__winograd {
    const gpunn__gemm_kernels *kernels;
    int64_t                    n, ci, h, w, ph, pw, co, oh, ow;
    const float               *src;
    gpunn__planes              to; /* of the whole batch */
    const float               *weight;
    int64_t                    w_co, w_ci;   /* steps from channel to channel */
    bool                       turned;       /* by 180 degrees */
    bool                       ready;        /* u holds the weights already */
    int64_t                    across, down; /* tiles of a row, rows of tiles of an image */
    int64_t                    group;        /* rows of tiles that are multiplied at once */
    bool                       shared;       /* one group at a time, by all threads; else each thread has its own */
    float                     *u;            /* [36] packed right sides */
    float                     *v;            /* [36][tile][ci], followed by the products, or A dy A', [36][tile][co] */
    float                     *du, *panels;  /* of the weight's gradient: [36][ci][co]; right sides, per thread */
    const float               *dy;           /* [n][co][oh][ow] */
    float                     *dweight;      /* [co][ci][tap] */
    bool                       add;
    float                     *pixels;                  /* per thread: 6 rows of a strip of channels, pixel-major */
    int64_t                    u_plane, v_group, strip; /* floats of one u, of a group's v, of pixels */
} gpunn__winograd;

#define GPUNN__WINOGRAD_STRIP ((int64_t)64) /* channels that are transformed at once */

/* u = G w G', for vectors of output channels. */
GPUNN__PRIVATE void gpunn__winograd_weights(const gpunn__winograd *w, int index, int threads)
{
    float         taps[16 * 9 * 16]; /* [ci][tap][co] */
    const int64_t lanes = w->kernels->lanes, chunks = (w->ci + 15) / 16, blocks = (w->co + lanes - 1) / lanes;
    int64_t       unit, end;
    gpunn__cpu_part(chunks * blocks, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        int64_t      p = unit % chunks * 16, count = w->ci - p < 16 ? w->ci - p : 16;
        int64_t      j = unit / chunks * lanes, columns = w->co - j < lanes ? w->co - j : lanes;
        const float *from = w->weight + j * w->w_co + p * w->w_ci;
        memset(taps, 0, sizeof taps);
        gpunn__winograd_job job;
        job.si = 3 * lanes, job.sj = lanes, job.src_step = 9 * lanes, job.src = taps;
        if (w->turned) job.si = -job.si, job.sj = -job.sj, job.src = taps + 8 * lanes;
        if (w->w_ci == 9) {
            gpunn__to_pixels(from, w->w_co, columns, count * 9, taps, lanes);
        } else {
            for (int64_t i = 0; i < count; i++)
                gpunn__to_pixels(from + i * w->w_ci, w->w_co, columns, 9, taps + i * 9 * lanes, lanes);
        }
        int64_t width, at = gpunn__packed_at(w->ci, w->co, lanes, p, j, &width);
        job.dst = w->u + at, job.dst_step = width, job.di = 6 * w->u_plane, job.dj = w->u_plane;
        job.count = count, job.channels = lanes;
        gpunn__conv_choose()->winograd(&job, GPUNN__WINOGRAD_WEIGHT);
    }
}

/* Transforms size x size cells (6: B' x B; 4: A dy A') of rows of tiles [t, t_end) of planes [n][channels][h][w] into dst
 * [36][tile][channels]; a tile's first cell lies at (4 ty - ph, 4 tx - pw), cells outside are 0. */
GPUNN__PRIVATE void gpunn__winograd_gather(const gpunn__winograd *w, const float *src, int64_t channels, int64_t h, int64_t width,
                                           int size, int64_t ph, int64_t pw, int64_t t, int64_t t_end, float *dst, int64_t plane,
                                           int index, int threads, float *pixels)
{
    const int64_t strips = (channels + GPUNN__WINOGRAD_STRIP - 1) / GPUNN__WINOGRAD_STRIP, row = w->across * 4 + size - 4;
    int64_t       unit, end, first = t;
    gpunn__cpu_part((t_end - t) * strips, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        int64_t c = unit % strips * GPUNN__WINOGRAD_STRIP,
                count = channels - c < GPUNN__WINOGRAD_STRIP ? channels - c : GPUNN__WINOGRAD_STRIP;
        t = first + unit / strips;
        int64_t y0 = t % w->down * 4 - ph;
        int64_t inside = row - pw < width ? row - pw : width; /* cells of a row, after pw zeros and before zeros */
        for (int64_t i = 0; i < size; i++) {
            float  *to = pixels + i * row * count;
            int64_t y = y0 + i;
            if (y < 0 || y >= h) {
                memset(to, 0, (size_t)(row * count) * sizeof *to);
                continue;
            }
            memset(to, 0, (size_t)(pw * count) * sizeof *to);
            gpunn__to_pixels(src + ((t / w->down * channels + c) * h + y) * width, h * width, count, inside, to + pw * count,
                             count);
            memset(to + (pw + inside) * count, 0, (size_t)((row - pw - inside) * count) * sizeof *to);
        }
        gpunn__winograd_job job;
        job.src = pixels, job.si = row * count, job.sj = count, job.src_step = 4 * count;
        job.dst = dst + (t - first) * w->across * channels + c, job.di = 6 * plane, job.dj = plane, job.dst_step = channels;
        job.count = w->across, job.channels = count;
        gpunn__conv_choose()->winograd(&job, size == 6 ? GPUNN__WINOGRAD_INPUT : GPUNN__WINOGRAD_DOUTPUT);
    }
}

/* y = A' m A of rows of tiles [t, t_end), m [36][tile][co]. */
GPUNN__PRIVATE void gpunn__winograd_scatter(const gpunn__winograd *w, int64_t t, int64_t t_end, const float *m, int64_t plane,
                                            int index, int threads, float *pixels)
{
    const int64_t strips = (w->co + GPUNN__WINOGRAD_STRIP - 1) / GPUNN__WINOGRAD_STRIP, row = w->across * 4;
    int64_t       unit, end, first = t;
    gpunn__cpu_part((t_end - t) * strips, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        int64_t c = unit % strips * GPUNN__WINOGRAD_STRIP,
                count = w->co - c < GPUNN__WINOGRAD_STRIP ? w->co - c : GPUNN__WINOGRAD_STRIP;
        t = first + unit / strips;
        gpunn__winograd_job job;
        job.src = m + (t - first) * w->across * w->co + c, job.si = 6 * plane, job.sj = plane, job.src_step = w->co;
        job.dst = pixels, job.di = row * count, job.dj = count, job.dst_step = 4 * count;
        job.count = w->across, job.channels = count;
        gpunn__conv_choose()->winograd(&job, GPUNN__WINOGRAD_OUTPUT);
        for (int64_t i = 0, y = t % w->down * 4; i < 4 && y < w->oh; i++, y++) {
            int64_t       at = ((t / w->down * w->co + c) * w->oh + y) * w->ow;
            gpunn__planes to = gpunn__planes_from(w->to, c, at);
            bool          whole = i == 0 && row == w->ow && y + 4 <= w->oh; /* the four rows are one run */
            gpunn__from_pixels(pixels + i * row * count, count, count, whole ? 4 * row : w->ow, &to);
            if (whole) break;
        }
    }
}

GPUNN__PRIVATE void gpunn__winograd_run(void *arg, int index, int threads)
{
    const gpunn__winograd *w = (const gpunn__winograd *)arg;
    if (!w->ready) {
        gpunn__winograd_weights(w, index, threads);
        if (threads > 1) gpunn__cpu_barrier();
    }
    const int64_t rows = w->n * w->down, groups = (rows + w->group - 1) / w->group;
    const bool    wait = w->shared && threads > 1;
    float        *pixels = w->pixels + index * w->strip;
    float        *v = w->v + (w->shared ? 0 : index * w->v_group), *m = v + 36 * w->group * w->across * w->ci;
    int64_t       group = 0, end = groups, from, to;
    if (!w->shared) gpunn__cpu_part(groups, 1, threads, index, &group, &end);
    if (!w->shared) index = 0, threads = 1;
    for (; group < end; group++) {
        int64_t t = group * w->group, t_end = t + w->group < rows ? t + w->group : rows, tiles = (t_end - t) * w->across;
        gpunn__winograd_gather(w, w->src, w->ci, w->h, w->w, 6, w->ph, w->pw, t, t_end, v, tiles * w->ci, index, threads, pixels);
        if (wait) gpunn__cpu_barrier();
        gpunn__gemm g = gpunn__conv_gemm(w->n * w->down * w->across, w->co, w->ci);
        g.a_row = w->ci, g.a_col = 1, g.c_row = w->co;
        gpunn__cpu_part(36, 1, threads, index, &from, &to);
        for (; from < to; from++) {
            g.a = v + from * tiles * w->ci, g.packed_b = w->u + from * w->u_plane, g.c = m + from * tiles * w->co;
            gpunn__gemm_block(&g, w->kernels, 0, tiles, 0, w->co, NULL);
        }
        if (wait) gpunn__cpu_barrier();
        gpunn__winograd_scatter(w, t, t_end, m, tiles * w->co, index, threads, pixels);
        if (wait) gpunn__cpu_barrier();
    }
}

/* dw = G' du G with du = v' (A dy A'), group by group of tiles; the threads share out the 36 products. */
GPUNN__PRIVATE void gpunn__winograd_dweight(void *arg, int index, int threads)
{
    const gpunn__winograd *w = (const gpunn__winograd *)arg;
    const int64_t          rows = w->n * w->down, lanes = w->kernels->lanes;
    float                 *pixels = w->pixels + index * w->strip, *panel = w->panels + index * 3 * lanes * GPUNN__GEMM_DEPTH;
    float                 *m = w->v + 36 * w->group * w->across * w->ci;
    int64_t                from, to;
    for (int64_t t = 0; t < rows; t += w->group) {
        int64_t t_end = t + w->group < rows ? t + w->group : rows, tiles = (t_end - t) * w->across;
        gpunn__winograd_gather(w, w->src, w->ci, w->h, w->w, 6, w->ph, w->pw, t, t_end, w->v, tiles * w->ci, index, threads,
                               pixels);
        gpunn__winograd_gather(w, w->dy, w->co, w->oh, w->ow, 4, 0, 0, t, t_end, m, tiles * w->co, index, threads, pixels);
        if (threads > 1) gpunn__cpu_barrier();
        gpunn__gemm g = gpunn__conv_gemm(w->ci, w->co, tiles);
        g.a_row = 1, g.a_col = w->ci, g.b_row = w->co, g.b_col = 1, g.c_row = w->co, g.accumulate = t > 0;
        gpunn__cpu_part(36, 1, threads, index, &from, &to);
        for (; from < to; from++) {
            g.a = w->v + from * tiles * w->ci, g.b = m + from * tiles * w->co, g.c = w->du + from * w->ci * w->co;
            gpunn__gemm_block(&g, w->kernels, 0, w->ci, 0, w->co, panel);
        }
        if (threads > 1) gpunn__cpu_barrier();
    }
    float         taps[16 * 9 * 16]; /* [ci][tap][co] */
    const int64_t chunks = (w->ci + 15) / 16, blocks = (w->co + lanes - 1) / lanes;
    gpunn__cpu_part(chunks * blocks, 1, threads, index, &from, &to);
    for (; from < to; from++) {
        int64_t             p = from % chunks * 16, count = w->ci - p < 16 ? w->ci - p : 16;
        int64_t             j = from / chunks * lanes, columns = w->co - j < lanes ? w->co - j : lanes;
        gpunn__winograd_job job;
        job.src = w->du + p * w->co + j, job.si = 6 * w->ci * w->co, job.sj = w->ci * w->co, job.src_step = w->co;
        job.dst = taps, job.di = 3 * lanes, job.dj = lanes, job.dst_step = 9 * lanes;
        job.count = count, job.channels = columns;
        gpunn__conv_choose()->winograd(&job, GPUNN__WINOGRAD_DWEIGHT);
        gpunn__planes planes;
        memset(&planes, 0, sizeof planes);
        planes.dst = w->dweight + (j * w->ci + p) * 9, planes.plane = w->ci * 9, planes.add = w->add;
        gpunn__from_pixels(taps, lanes, columns, count * 9, &planes);
    }
}

/* Where cached, u lies in the cache, else in the workspace. */
GPUNN__PRIVATE gpunn__winograd gpunn__winograd_plan(const gpunn__conv *v, gpunn__conv_use use, bool cached, float *cache,
                                                    gpunn__space *space)
{
    gpunn__winograd w;
    memset(&w, 0, sizeof w);
    w.kernels = gpunn__gemm_choose();
    w.n = v->n;
    if (use == GPUNN__CONV_DX) { /* a convolution of dy with the weights turned by 180 degrees */
        w.ci = v->oc, w.h = v->oh, w.w = v->ow, w.ph = 2 - v->ph, w.pw = 2 - v->pw, w.co = v->c, w.oh = v->h, w.ow = v->w;
        w.src = v->dy, w.weight = v->weight, w.w_co = 9, w.w_ci = v->k, w.turned = true;
        w.to = gpunn__conv_planes(v, v->dx, w.oh * w.ow, v->add_dx);
    } else {
        w.ci = v->c, w.h = v->h, w.w = v->w, w.ph = v->ph, w.pw = v->pw, w.co = v->oc, w.oh = v->oh, w.ow = v->ow;
        w.src = v->x, w.weight = v->weight, w.w_co = v->k, w.w_ci = 9;
        w.to = gpunn__conv_planes(v, v->y, w.oh * w.ow, v->add_y);
        w.dy = v->dy, w.dweight = v->dweight, w.add = v->add_dweight;
    }
    w.across = (w.ow + 3) / 4, w.down = (w.oh + 3) / 4;
    const int64_t rows = w.n * w.down, cells = 36 * (w.ci + w.co);
    int64_t       tiles = (use == GPUNN__CONV_DW ? 1048576 : 262144) / cells, least = use == GPUNN__CONV_DW ? 64 : 32;
    if (tiles < least) tiles = least;
    w.group = (tiles + w.across - 1) / w.across;
    w.shared = use == GPUNN__CONV_DW || (v->threads > 1 && rows * w.across < v->threads * least);
    if (!w.shared) { /* as many groups as threads, or a multiple */
        int64_t groups = (rows + w.group - 1) / w.group;
        groups = (groups + v->threads - 1) / v->threads * v->threads;
        w.group = (rows + groups - 1) / groups;
    }
    if (w.group > rows) w.group = rows;
    w.strip = 6 * (4 * w.across + 2) * GPUNN__WINOGRAD_STRIP;
    w.pixels = gpunn__take(space, v->threads * w.strip);
    w.v_group = w.group * w.across * cells;
    w.v = gpunn__take(space, (w.shared ? 1 : v->threads) * w.v_group);
    w.u_plane = (int64_t)(gpunn__gemm_packed_b_bytes(w.ci, w.co) / sizeof(float));
    if (use == GPUNN__CONV_DW) {
        w.du = gpunn__take(space, 36 * w.ci * w.co);
        w.panels = gpunn__take(space, v->threads * GPUNN__GEMM_DEPTH * 3 * w.kernels->lanes);
    } else {
        w.u = cached ? cache : gpunn__take(space, 36 * w.u_plane);
    }
    return w;
}

/* One convolution of few channels: src [n][groups * ci][d][h][w], with zeros between the cells when up > 1, to
 * [n][groups * co][od][oh][ow]. Also a backward pass to dx: dy, spread out by the stride, is convolved with the turned weights.
 * It goes plane by plane of the result; those of src that a plane reads, kd of each channel, count as so many channels. */
typedef struct gpunn__direct {
    const gpunn__conv_kernels *kernels;
    int64_t                    n, groups, ci, co, d, h, w, od, oh, ow, up_d, up_h, up_w;
    int64_t                    front, top, left;                         /* padding before, may be negative: cells cut off */
    int64_t                    kd, kh, kw, sd, sh, sw, dd, dh, dw, taps; /* taps: ci * kd * kh * kw */
    const float               *src, *dy;
    gpunn__planes              to;
    const float               *weight;
    bool                       turned;
    float                     *dweight;
    bool                       add;
    int                        rows;   /* results at once: 1, 6 or 8 */
    int64_t                    blocks; /* of so many rows in a group */
    int64_t  qh, qw, plane, pixels;    /* a phase of the copy, all phases of a channel; pixels computed, in whole tiles */
    int64_t *offset;                   /* [taps, and 3 more] */
    float   *packed, *copies, *out;    /* weights [group][block][tap][row]; per thread: the copy, results [row][pixel] */
    int64_t  copy;                     /* floats of one */
    int64_t  batch, parts;             /* dweight: planes at once; sums that are added up at the end */
    float   *sums;                     /* [part][group * blocks][row][taps up to a multiple of 4] */
} gpunn__direct;

/* Copies what one group of plane `at` of the result (counted through all images) reads into the padded layout:
 * [channel][kd][phase][qh][qw], where the phases of a stride lie apart, so that the taps of neighbouring outputs are neighbours.
 * to holds zeros where no cell ever comes. */
GPUNN__PRIVATE void gpunn__direct_copy(const gpunn__direct *d, int64_t group, int64_t at, float *to)
{
    for (int64_t i = 0; i < d->ci * d->kd; i++, to += d->plane) {
        int64_t channel = (at / d->od * d->groups + group) * d->ci + i / d->kd;
        int64_t z = at % d->od * d->sd + i % d->kd * d->dd - d->front;
        if (z < 0 || z % d->up_d != 0 || z / d->up_d >= d->d) {
            memset(to, 0, (size_t)d->plane * sizeof *to);
            continue;
        }
        const float *src = d->src + (channel * d->d + z / d->up_d) * d->h * d->w;
        for (int64_t y = 0; y < d->h; y++, src += d->w) {
            int64_t py = y * d->up_h + d->top, skip = d->left < 0 ? (-d->left + d->up_w - 1) / d->up_w : 0;
            if (py < 0 || py / d->sh >= d->qh) continue;
            float  *row = to + (py % d->sh * d->sw * d->qh + py / d->sh) * d->qw;
            int64_t count = (d->qw * d->sw - d->left + d->up_w - 1) / d->up_w;
            if (count > d->w) count = d->w;
            if (d->sw == 1 && d->up_w == 1) {
                if (count > skip) memcpy(row + skip + d->left, src + skip, (size_t)(count - skip) * sizeof *row);
            } else if (d->sw == 1) {
                for (int64_t x = skip; x < count; x++) row[x * d->up_w + d->left] = src[x];
            } else { /* up is 1 */
                for (int64_t x = skip, end = skip + d->sw < count ? skip + d->sw : count; x < end; x++) {
                    float *cell = row + (x + d->left) % d->sw * d->qh * d->qw + (x + d->left) / d->sw;
                    for (int64_t k = x; k < count; k += d->sw) *cell++ = src[k];
                }
            }
        }
    }
}

/* Where that plane of a channel of the result, or of dy, begins. */
GPUNN__INLINE int64_t gpunn__direct_plane(const gpunn__direct *d, int64_t channel, int64_t at)
{
    return ((at / d->od * d->groups * d->co + channel) * d->od + at % d->od) * d->oh * d->ow;
}

GPUNN__PRIVATE void gpunn__direct_offsets(const gpunn__direct *d)
{
    int64_t *offset = d->offset;
    for (int64_t c = 0; c < d->ci * d->kd; c++)
        for (int64_t ky = 0; ky < d->kh; ky++)
            for (int64_t kx = 0; kx < d->kw; kx++) {
                int64_t y = ky * d->dh, x = kx * d->dw;
                *offset++ = c * d->plane + ((y % d->sh * d->sw + x % d->sw) * d->qh + y / d->sh) * d->qw + x / d->sw;
            }
    for (int i = 0; i < 3; i++, offset++) *offset = offset[-1];
}

GPUNN__PRIVATE void gpunn__direct_run(void *arg, int index, int threads)
{
    const gpunn__direct *d = (const gpunn__direct *)arg;
    const int64_t        cells = d->taps / d->ci, packed = d->taps * d->rows;
    int64_t              unit, end;
    gpunn__cpu_part(d->groups * d->blocks, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        int64_t group = unit / d->blocks, o = unit % d->blocks * d->rows, count = d->co - o < d->rows ? d->co - o : d->rows;
        float  *to = d->packed + unit * packed;
        if (count < d->rows) memset(to, 0, (size_t)packed * sizeof *to);
        if (!d->turned) {
            gpunn__to_pixels(d->weight + (group * d->co + o) * d->taps, d->taps, count, d->taps, to, d->rows);
            continue;
        }
        for (int64_t i = 0; i < d->ci; i++) /* weight[group * ci + i][o + j][cells - 1 - t] */
            for (int64_t t = 0; t < cells; t++)
                for (int64_t j = 0; j < count; j++)
                    to[(i * cells + t) * d->rows + j] = d->weight[((group * d->ci + i) * d->co + o + j + 1) * cells - 1 - t];
    }
    gpunn__direct_job job;
    memset(&job, 0, sizeof job);
    float *copy = d->copies + index * d->copy;
    memset(copy, 0, (size_t)d->copy * sizeof *copy);
    if (threads > 1) gpunn__cpu_barrier();
    job.x = copy, job.offset = d->offset, job.taps = d->taps, job.count = d->pixels;
    job.out = d->out + index * d->rows * d->pixels, job.out_row = d->pixels;
    int64_t now = -1;
    gpunn__cpu_part(d->n * d->od * d->groups * d->blocks, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        int64_t part = unit / d->blocks, group = part % d->groups, o = unit % d->blocks * d->rows; /* part: plane and group */
        if (part != now) gpunn__direct_copy(d, group, part / d->groups, copy);
        now = part;
        job.w = d->packed + (group * d->blocks + unit % d->blocks) * packed;
        d->kernels->direct(&job, d->rows);
        for (int64_t i = 0; i < d->rows && o + i < d->co; i++) {
            const int64_t channel = group * d->co + o + i, at = gpunn__direct_plane(d, channel, part / d->groups);
            const float   scale = d->to.scale ? d->to.scale[channel] : 1, shift = d->to.shift ? d->to.shift[channel] : 0;
            const float  *from = job.out + i * d->pixels, *residual = d->to.residual ? d->to.residual + at : NULL;
            float        *y = d->to.dst + at;
            for (int64_t r = 0; r < d->oh; r++, from += d->qw, y += d->ow)
                d->kernels->finish(from, y, residual ? residual + r * d->ow : NULL, d->ow, scale, shift, d->to.add, d->to.relu);
        }
    }
}

/* The weight's gradient. Each part sums over its own planes; the parts do not depend on the number of threads. */
GPUNN__PRIVATE void gpunn__direct_dweight(void *arg, int index, int threads)
{
    const gpunn__direct *d = (const gpunn__direct *)arg;
    const int64_t x_image = d->ci * d->kd * d->plane, y_image = d->rows * d->pixels, width = gpunn__to_multiple(d->taps, 4),
                  tile = d->rows * width;
    float            *x = d->copies + index * d->copy, *y = x + d->copy - d->batch * y_image;
    int64_t           unit, end;
    gpunn__direct_job job;
    memset(&job, 0, sizeof job);
    memset(x, 0, (size_t)d->copy * sizeof *x);
    job.x = x, job.y = y, job.offset = d->offset, job.taps = d->taps, job.count = d->pixels;
    job.out_row = width, job.y_row = d->pixels, job.x_image = x_image, job.y_image = y_image;
    const int64_t splits = d->parts * d->groups < 2 * threads ? d->blocks : 1, blocks = d->blocks / splits; /* per unit */
    gpunn__cpu_part(d->parts * d->groups * splits, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        int64_t part = unit / (d->groups * splits), group = unit / splits % d->groups, first = unit % splits * blocks, plane,
                last;
        float *sums = d->sums + ((part * d->groups + group) * d->blocks + first) * tile;
        memset(sums, 0, (size_t)(blocks * tile) * sizeof *sums);
        gpunn__cpu_part(d->n * d->od, d->batch, (int)d->parts, (int)part, &plane, &last);
        for (; plane < last; plane += job.images) {
            job.images = last - plane < d->batch ? last - plane : d->batch;
            for (int64_t i = 0; i < job.images; i++) gpunn__direct_copy(d, group, plane + i, x + i * x_image);
            for (int64_t block = 0; block < blocks; block++) {
                int64_t o = (first + block) * d->rows, count = d->co - o < d->rows ? d->co - o : d->rows;
                for (int64_t i = 0; i < job.images; i++) {
                    float *to = y + i * y_image;
                    for (int64_t j = 0; j < count; j++) {
                        const float *dy = d->dy + gpunn__direct_plane(d, group * d->co + o + j, plane + i);
                        for (int64_t r = 0; r < d->oh; r++, dy += d->ow)
                            memcpy(to + j * d->pixels + r * d->qw, dy, (size_t)d->ow * sizeof *dy);
                    }
                }
                job.out = sums + block * tile;
                d->kernels->gradient(&job, d->rows);
            }
        }
    }
    if (threads > 1) gpunn__cpu_barrier();
    const int64_t all = d->groups * d->blocks * tile;
    gpunn__cpu_part(d->groups * d->co, 1, threads, index, &unit, &end);
    for (; unit < end; unit++) {
        const float *sums = d->sums + unit / d->co * d->blocks * tile + unit % d->co * width;
        float       *dw = d->dweight + unit * d->taps;
        for (int64_t t = 0; t < d->taps; t++) {
            float sum = sums[t];
            for (int64_t part = 1; part < d->parts; part++) sum += sums[part * all + t];
            dw[t] = d->add ? dw[t] + sum : sum;
        }
    }
}

GPUNN__PRIVATE gpunn__direct gpunn__direct_plan(const gpunn__conv *v, gpunn__conv_use use, gpunn__space *space)
{
    gpunn__direct d;
    memset(&d, 0, sizeof d);
    d.kernels = gpunn__conv_choose();
    d.n = v->n, d.groups = v->groups, d.weight = v->weight;
    d.kd = v->kd, d.kh = v->kh, d.kw = v->kw, d.dd = v->dd, d.dh = v->dh, d.dw = v->dw;
    if (use == GPUNN__CONV_DX) {
        d.ci = v->og, d.co = v->cg, d.d = v->od, d.h = v->oh, d.w = v->ow, d.od = v->d, d.oh = v->h, d.ow = v->w;
        d.up_d = v->sd, d.up_h = v->sh, d.up_w = v->sw, d.sd = d.sh = d.sw = 1;
        d.front = v->dd * (v->kd - 1) - v->pd, d.top = v->dh * (v->kh - 1) - v->ph, d.left = v->dw * (v->kw - 1) - v->pw;
        d.src = v->dy, d.turned = true;
        d.to = gpunn__conv_planes(v, v->dx, d.oh * d.ow, v->add_dx);
    } else {
        d.ci = v->cg, d.co = v->og, d.d = v->d, d.h = v->h, d.w = v->w, d.od = v->od, d.oh = v->oh, d.ow = v->ow;
        d.up_d = d.up_h = d.up_w = 1, d.sd = v->sd, d.sh = v->sh, d.sw = v->sw;
        d.front = v->pd, d.top = v->ph, d.left = v->pw, d.src = v->x;
        d.to = gpunn__conv_planes(v, v->y, d.oh * d.ow, v->add_y);
        d.dy = v->dy, d.dweight = v->dweight, d.add = v->add_dweight;
    }
    d.taps = d.ci * d.kd * d.kh * d.kw;
    d.rows = d.co <= 2 ? 1 : use == GPUNN__CONV_DW || gpunn__to_multiple(d.co, 6) < gpunn__to_multiple(d.co, 8) ? 6 : 8;
    d.blocks = (d.co + d.rows - 1) / d.rows;
    d.qh = d.oh + d.dh * (d.kh - 1) / d.sh, d.qw = d.ow + d.dw * (d.kw - 1) / d.sw, d.plane = d.sh * d.sw * d.qh * d.qw;
    const gpunn__conv_kernels *kernels = d.kernels;
    const int64_t vectors = use == GPUNN__CONV_DW ? 1 : d.rows == 1 ? kernels->v1 : d.rows == 6 ? kernels->v6 : kernels->v8;
    const int64_t grain = kernels->lanes * vectors;
    d.pixels = gpunn__to_multiple((d.oh - 1) * d.qw + d.ow, grain);
    d.offset = (int64_t *)(void *)gpunn__take(space, 2 * (d.taps + 3));
    d.copy = d.ci * d.kd * d.plane + grain;
    if (use == GPUNN__CONV_DW) {
        int64_t image = d.ci * d.kd * d.plane + d.rows * d.pixels, planes = d.n * d.od;
        d.batch = 10000 / image;
        if (d.batch > (planes + 1) / 2) d.batch = (planes + 1) / 2;
        if (d.batch < 1) d.batch = 1;
        d.parts = (planes + d.batch - 1) / d.batch;
        if (d.parts > 16) d.parts = 16;
        d.copy = d.batch * image + 2 * grain;
        d.sums = gpunn__take(space, d.parts * d.groups * d.blocks * d.rows * (d.taps + 3));
    } else {
        d.packed = gpunn__take(space, d.groups * d.blocks * d.taps * d.rows);
        d.out = gpunn__take(space, v->threads * d.rows * d.pixels);
    }
    d.copy = gpunn__to_multiple(d.copy, 16);
    d.copies = gpunn__take(space, v->threads * d.copy);
    if (space->base) gpunn__direct_offsets(&d);
    return d;
}

/* ---- the op ----------------------------------------------------------------------------------------------------------- */
/* The gradient of a bias: dy [n][channels][cells] summed by channels. */
typedef struct gpunn__conv_bias {
    const float *dy;
    float       *dbias;
    int64_t      n, channels, cells;
    bool         add;
} gpunn__conv_bias;

GPUNN__PRIVATE void gpunn__conv_dbias(void *arg, int index, int threads)
{
    const gpunn__conv_bias *b = (const gpunn__conv_bias *)arg;
    int64_t                 o, end;
    gpunn__cpu_part(b->channels, 1, threads, index, &o, &end);
    for (; o < end; o++) {
        float lane[16] = {0}, sum = 0;
        for (int64_t image = 0; image < b->n; image++) {
            const float *dy = b->dy + (image * b->channels + o) * b->cells;
            int64_t      i = 0;
            for (; i + 16 <= b->cells; i += 16)
                for (int l = 0; l < 16; l++) lane[l] += dy[i + l];
            for (; i < b->cells; i++) lane[i % 16] += dy[i];
        }
        for (int l = 0; l < 16; l++) sum += lane[l];
        b->dbias[o] = b->add ? b->dbias[o] + sum : sum;
    }
}

/* Any convolution as one of three axes; a transposed one by the convolution whose dx it is: its operand is dy. */
GPUNN__PRIVATE gpunn__conv gpunn__conv_shape(const gpunn__cpu *cpu, const gpunn_step *step)
{
    const gpunn_attributes *attr = step->attr;
    const bool              transposed = gpunn__is_transposed(step->op);
    const gpunn_value      *in = &step->in[0], *out = step->backward ? &step->grad_out : &step->out;
    const gpunn_value      *x = transposed ? out : in, *y = transposed ? in : out;
    const int               axes = x->rank - 2;
    gpunn__conv             v;
    memset(&v, 0, sizeof v);
    v.n = x->dim[0], v.c = x->dim[1], v.oc = y->dim[1];
    v.groups = attr->groups, v.cg = v.c / v.groups, v.og = v.oc / v.groups;
    int64_t *const axis[3][6] = {{&v.d, &v.od, &v.kd, &v.sd, &v.pd, &v.dd},
                                 {&v.h, &v.oh, &v.kh, &v.sh, &v.ph, &v.dh},
                                 {&v.w, &v.ow, &v.kw, &v.sw, &v.pw, &v.dw}};
    for (int i = 0; i < 3; i++) {
        const int  from = i - 3 + axes; /* the first ones may be missing */
        const bool there = from >= 0;
        *axis[i][0] = there ? x->dim[2 + from] : 1, *axis[i][1] = there ? y->dim[2 + from] : 1;
        *axis[i][2] = there ? attr->kernel[from] : 1, *axis[i][3] = there ? attr->stride[from] : 1;
        *axis[i][4] = there ? attr->padding[from] : 0, *axis[i][5] = there ? attr->dilation[from] : 1;
    }
    v.taps = v.kd * v.kh * v.kw, v.k = v.taps * v.cg, v.pixels = v.n * v.od * v.oh * v.ow;
    v.threads = gpunn__cpu_threads(cpu, v.pixels * v.oc * v.k / 16);
    v.weight = (const float *)step->in[1].data;
    *(transposed ? &v.dy : &v.x) = (const float *)in->data;
    if (step->backward) {
        *(transposed ? &v.x : &v.dy) = (const float *)out->data;
        *(transposed ? &v.y : &v.dx) = (float *)step->grad_in[0].data;
        *(transposed ? &v.add_y : &v.add_dx) = step->accumulate[0];
        v.dweight = (float *)step->grad_in[1].data, v.add_dweight = step->accumulate[1];
    } else {
        *(transposed ? &v.dx : &v.y) = (float *)out->data;
        v.relu = step->fused.relu, v.residual = (const float *)step->fused.residual.data;
    }
    return v;
}

/* scale and shift per channel that bias and a merged batch norm come to. */
GPUNN__PRIVATE void gpunn__conv_epilogue(const gpunn_step *step, gpunn__conv *v, gpunn__space *space)
{
    const float  *bias = (const float *)step->in[2].data;
    const int64_t channels = step->out.dim[1];
    v->shift = gpunn__take(space, channels);
    v->scale = gpunn__take(space, channels);
    if (space->base == NULL) return;
    if (step->fused.norm) {
        gpunn__fold_norm(step, bias, channels, v->scale, v->shift);
        return;
    }
    v->scale = NULL;
    if (bias == NULL)
        v->shift = NULL;
    else
        memcpy(v->shift, bias, (size_t)channels * sizeof *bias);
}

/* Winograd where its tiles fit; else the smaller of two estimates, in multiplications of a vector's lane. */
GPUNN__PRIVATE gpunn__conv_way gpunn__conv_choose_way(const gpunn__conv *v, gpunn__conv_use use)
{
    const bool    dx = use == GPUNN__CONV_DX;
    const int64_t ci = dx ? v->og : v->cg, co = dx ? v->cg : v->og;
    const int64_t od = dx ? v->d : v->od, oh = dx ? v->h : v->oh, ow = dx ? v->w : v->ow;
    const int64_t tiles = v->n * ((oh + 3) / 4) * ((ow + 3) / 4), lanes = gpunn__gemm_choose()->lanes;
    if (v->d * v->od * v->kd == 1 && v->kh == 3 && v->kw == 3 && v->sh == 1 && v->sw == 1 && v->dh == 1 && v->dw == 1 &&
        v->groups == 1 && v->ph <= 2 && v->pw <= 2 && ci >= 16 && co >= 16 && tiles >= 8 &&
        tiles * 16 * 5 <= v->n * oh * ow * 8 && gpunn__conv_choose()->winograd)
        return GPUNN__CONV_WINOGRAD;
    int64_t pitch = ow + v->dw * (v->kw - 1) / (dx ? 1 : v->sw), rows = co <= 2 ? 1 : gpunn__to_multiple(co, 6);
    int64_t taps = v->taps * ci;
    if (use != GPUNN__CONV_DW && gpunn__to_multiple(co, 8) < rows) rows = gpunn__to_multiple(co, 8);
    int64_t direct = od * gpunn__to_multiple((oh - 1) * pitch + ow, rows == 1 ? 4 * lanes : 3 * lanes) * taps * rows;
    int64_t lowered = v->od * v->oh * v->ow * v->taps * (v->cg * gpunn__to_multiple(v->og, lanes) + 8 * v->cg + 192);
    return direct < lowered && ci * v->kd * oh * pitch < 65536 ? GPUNN__CONV_DIRECT : GPUNN__CONV_LOWERED;
}

/* A step wants y or dx as its result, or one or two of y, dx and dweight as its gradients: one after the other, in the same
 * workspace; what is lowered of dx and dweight goes together. */
GPUNN__PRIVATE gpunn_status gpunn__cpu_conv(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__conv  v = gpunn__conv_shape(cpu, step);
    const bool   run = action != GPUNN__PREPARE, cached = !step->backward && !step->training;
    const bool   ready = run && cached && step->cache_version == step->state->weights_version;
    bool         wanted[3] = {v.y != NULL, v.dx != NULL, v.dweight != NULL};
    float       *cache = (float *)step->cache;
    gpunn__space space = {run ? (float *)step->workspace : NULL, 0};
    if (!step->backward) gpunn__conv_epilogue(step, &v, &space);
    const size_t kept = space.bytes;
    size_t       most = kept;
    for (int i = GPUNN__CONV_FORWARD; i <= GPUNN__CONV_DW; i++) {
        const gpunn__conv_use use = (gpunn__conv_use)i;
        const gpunn__conv_way way = gpunn__conv_choose_way(&v, use);
        if (!wanted[use] || (way == GPUNN__CONV_LOWERED && use != GPUNN__CONV_FORWARD)) continue;
        wanted[use] = false;
        if (way == GPUNN__CONV_WINOGRAD) {
            gpunn__winograd w = gpunn__winograd_plan(&v, use, cached, cache, &space);
            w.ready = ready;
            if (!run && cached) step->cache_bytes = 36 * (size_t)w.u_plane * sizeof(float);
            if (run) gpunn__cpu_parallel(v.threads, use == GPUNN__CONV_DW ? gpunn__winograd_dweight : gpunn__winograd_run, &w);
        } else if (way == GPUNN__CONV_DIRECT) {
            gpunn__direct d = gpunn__direct_plan(&v, use, &space);
            if (run) gpunn__cpu_parallel(v.threads, use == GPUNN__CONV_DW ? gpunn__direct_dweight : gpunn__direct_run, &d);
        } else {
            gpunn__lowered l = gpunn__lowered_plan(&v, false, false, false, cached, cache, &space);
            l.ready = ready;
            if (!run && cached) step->cache_bytes = (size_t)(v.groups * l.packed_floats) * sizeof(float);
            if (run) gpunn__cpu_parallel(v.threads, gpunn__lowered_forward, &l);
        }
        most = most > space.bytes ? most : space.bytes, space.bytes = kept;
    }
    if (wanted[GPUNN__CONV_DX] || wanted[GPUNN__CONV_DW]) {
        gpunn__lowered l = gpunn__lowered_plan(&v, true, wanted[GPUNN__CONV_DX], wanted[GPUNN__CONV_DW], false, NULL, &space);
        if (run) gpunn__cpu_parallel(v.threads, gpunn__lowered_backward, &l);
        most = most > space.bytes ? most : space.bytes;
    }
    if (run && cached) step->cache_version = step->state->weights_version;
    step->workspace_bytes = most;
    if (run && step->backward && step->grad_in[2].data) {
        const gpunn_value *dy = &step->grad_out;
        gpunn__conv_bias   bias = {(const float *)dy->data,
                                   (float *)step->grad_in[2].data,
                                   dy->dim[0],
                                   dy->dim[1],
                                   dy->count / (dy->dim[0] * dy->dim[1]),
                                   step->accumulate[2]};
        gpunn__cpu_parallel(gpunn__cpu_threads(cpu, dy->count), gpunn__conv_dbias, &bias);
    }
    return GPUNN_OK;
}

#define GPUNN__X(name)                                                                                     \
    GPUNN__PRIVATE gpunn_status gpunn__cpu_##name(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action) \
    {                                                                                                      \
        return gpunn__cpu_conv(cpu, step, action);                                                         \
    }
GPUNN__X(conv1d)
GPUNN__X(conv2d)
GPUNN__X(conv3d)
GPUNN__X(conv_transpose1d)
GPUNN__X(conv_transpose2d)
GPUNN__X(conv_transpose3d)
#undef GPUNN__X
#undef GPUNN__WINOGRAD_STRIP

/* ==== >>pool ========================================================================================================== *
 * Volumes [d, h, w] -> [od, oh, ow], one per image and channel; a plane is a volume of depth 1. Windows wholly inside go by eight
 * neighbours of a row, the others one by one. */
typedef struct gpunn__pool_axis {
    int64_t n, out, kernel, stride, padding; /* kernel 0: adaptive */
    int64_t span;                            /* of the largest window */
} gpunn__pool_axis;

typedef struct gpunn__pool {
    int64_t          volumes;
    gpunn__pool_axis z, y, x;
    bool             average, global, count_exclude_pad, accumulate; /* global: one window, the whole volume */
    size_t           at_bytes; /* of one position of a maximum: its index in the largest window; 0: positions are not wanted */
    void            *at;
    const float     *from; /* x, or the gradient of y */
    float           *to;   /* y, or the gradient of x */
} gpunn__pool;

/* By axis i of the settings. An adaptive pool whose windows are all alike is a plain one. */
GPUNN__PRIVATE gpunn__pool_axis gpunn__pool_axis_of(const gpunn_step *step, int i, int64_t n, int64_t out)
{
    gpunn__pool_axis axis = {n, out, 0, 0, 0, n / out + 2};
    if (!gpunn__is_adaptive_pool(step->op)) {
        axis.kernel = step->attr->kernel[i];
        axis.stride = step->attr->stride[i];
        axis.padding = step->attr->padding[i];
    } else if (n % out == 0) {
        axis.kernel = axis.stride = n / out;
    }
    if (axis.kernel) axis.span = axis.kernel;
    return axis;
}

GPUNN__PRIVATE gpunn__pool gpunn__pool_shape(const gpunn_step *step)
{
    const gpunn_value *x = &step->in[0], *y = step->backward ? &step->grad_out : &step->out;
    gpunn__pool_axis   flat = {1, 1, 1, 1, 0, 1};
    gpunn__pool        p;
    int                deep = x->rank - 4; /* 1: with a depth, to which setting 0 belongs */
    memset(&p, 0, sizeof p);
    p.volumes = x->dim[0] * x->dim[1];
    p.z = deep ? gpunn__pool_axis_of(step, 0, x->dim[2], y->dim[2]) : flat;
    p.y = gpunn__pool_axis_of(step, deep, x->dim[2 + deep], y->dim[2 + deep]);
    p.x = gpunn__pool_axis_of(step, 1 + deep, x->dim[3 + deep], y->dim[3 + deep]);
    p.average = !gpunn__is_max_pool(step->op);
    p.count_exclude_pad = gpunn__is_adaptive_pool(step->op) || step->attr->count_exclude_pad;
    p.global = p.z.kernel == p.z.n && p.y.kernel == p.y.n && p.x.kernel == p.x.n && y->count == p.volumes &&
               p.z.padding + p.y.padding + p.x.padding == 0;
    p.at_bytes = p.average || !step->training ? 0 : p.z.span * p.y.span * p.x.span <= 256 ? 1 : 4;
    p.at = step->saved;
    if (step->backward) {
        p.from = (const float *)step->grad_out.data, p.to = (float *)step->grad_in[0].data;
        p.accumulate = step->accumulate[0];
    } else {
        p.from = (const float *)x->data, p.to = (float *)step->out.data;
    }
    return p;
}

/* Where the window of output i begins, inside or in the padding. */
GPUNN__INLINE int64_t gpunn__pool_corner(const gpunn__pool_axis *a, int64_t i)
{
    return a->kernel ? i * a->stride - a->padding : i * a->n / a->out;
}

/* The cells of that window, [*begin, *end); returns its length with the padding that it covers. */
GPUNN__INLINE int64_t gpunn__pool_window(const gpunn__pool_axis *a, int64_t i, int64_t *begin, int64_t *end)
{
    int64_t first = gpunn__pool_corner(a, i), last = first + a->kernel;
    if (a->kernel == 0) last = ((i + 1) * a->n + a->out - 1) / a->out; /* torch's adaptive rule */
    if (last > a->n + a->padding) last = a->n + a->padding;
    *begin = first > 0 ? first : 0;
    *end = last < a->n ? last : a->n;
    return last - first;
}

/* Outputs [*begin, *end) of an axis have windows that lie wholly inside. */
GPUNN__INLINE void gpunn__pool_inner(const gpunn__pool_axis *a, int64_t *begin, int64_t *end)
{
    *begin = *end = 0;
    if (a->kernel == 0 || a->n + a->padding < a->kernel) return;
    *begin = (a->padding + a->stride - 1) / a->stride;
    *end = (a->n + a->padding - a->kernel) / a->stride + 1;
    if (*end > a->out) *end = a->out;
    if (*begin > *end) *begin = *end;
}

GPUNN__INLINE void gpunn__pool_mark(const gpunn__pool *p, int64_t to, int64_t at)
{
    if (p->at_bytes == 1)
        ((uint8_t *)p->at)[to] = (uint8_t)at;
    else if (p->at_bytes)
        ((int32_t *)p->at)[to] = (int32_t)at;
}

/* The window of depth x rows x columns cells that begins at x; its result goes to element `to`. first: index in the whole window
 * of its first cell, not 0 where an edge cuts it. A NaN wins, over an earlier NaN too, as in torch. */
GPUNN__INLINE void gpunn__pool_one(const gpunn__pool *p, bool average, const float *x, int64_t depth, int64_t rows,
                                   int64_t columns, int64_t first, float scale, int64_t to)
{
    float   best = average ? 0 : -INFINITY;
    int64_t at = first;
    for (int64_t z = 0; z < depth; z++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++) {
                float v = x[(z * p->y.n + r) * p->x.n + c];
                if (average)
                    best += v;
                else if (v > best || v != v)
                    best = v, at = first + (z * p->y.span + r) * p->x.span + c;
            }
    p->to[to] = average ? best * scale : best;
    gpunn__pool_mark(p, to, at);
}

#if defined(__GNUC__) && !defined(GPUNN_NO_SIMD)
typedef float   gpunn__f8 __attribute__((vector_size(32)));
typedef int32_t gpunn__i8 __attribute__((vector_size(32)));
typedef uint8_t gpunn__b8 __attribute__((vector_size(8)));

/* Cells 0, 2, ... 14. */
GPUNN__INLINE void gpunn__pool_even(const float *cell, gpunn__f8 *even)
{
    gpunn__f8 low, high; /* cells 0 to 7 and 7 to 14 */
    memcpy(&low, cell, sizeof low);
    memcpy(&high, cell + 7, sizeof high);
#if defined(__clang__)
    *even = __builtin_shufflevector(low, high, 0, 2, 4, 6, 9, 11, 13, 15);
#else
    const gpunn__i8 index = {0, 2, 4, 6, 9, 11, 13, 15};
    *even = __builtin_shuffle(low, high, index);
#endif
}

/* Eight neighbouring whole windows, `stride` apart, of which `count` are wanted. Reads up to 8 * stride cells a row. */
GPUNN__INLINE void gpunn__pool_eight(const gpunn__pool *p, bool average, const float *x, int64_t depth, int64_t rows,
                                     int64_t columns, int64_t stride, float scale, int64_t to, int64_t count)
{
    gpunn__f8 best = {0}, v = {0};
    gpunn__i8 at = {0};
    if (!average) best -= INFINITY;
    for (int64_t z = 0; z < depth; z++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++) {
                const float *cell = x + (z * p->y.n + r) * p->x.n + c;
                if (stride == 2)
                    gpunn__pool_even(cell, &v);
                else if (stride == 1)
                    memcpy(&v, cell, sizeof v);
                else
                    for (int i = 0; i < 8; i++) v[i] = cell[i * stride];
                if (average) {
                    best += v;
                } else {
                    gpunn__i8 take = (v > best) | (v != v), index = at * 0 + (int32_t)((z * rows + r) * columns + c);
                    best = (gpunn__f8)((take & (gpunn__i8)v) | (~take & (gpunn__i8)best));
                    at = (take & index) | (~take & at);
                }
            }
    if (average) best *= scale;
    if (count == 8)
        memcpy(p->to + to, &best, sizeof best);
    else
        for (int i = 0; i < count; i++) p->to[to + i] = best[i];
    if (p->at_bytes == 1 && count == 8) {
        gpunn__b8 narrow = __builtin_convertvector(at, gpunn__b8);
        memcpy((uint8_t *)p->at + to, &narrow, sizeof narrow);
    } else if (p->at_bytes) {
        for (int i = 0; i < count; i++) gpunn__pool_mark(p, to + i, at[i]);
    }
}
#endif

/* Output rows [row, row_end) of all volumes. depth, rows, columns, stride: of a whole window, constants where it pays. */
GPUNN__INLINE void gpunn__pool_rows(const gpunn__pool *p, bool average, int64_t depth, int64_t rows, int64_t columns,
                                    int64_t stride, int64_t row, int64_t row_end)
{
    int64_t inner, inner_end, size = p->y.n * p->x.n;
    int64_t oy = row % p->y.out, oz = row / p->y.out % p->z.out, volume = row / p->y.out / p->z.out;
    gpunn__pool_inner(&p->x, &inner, &inner_end);
    for (; row < row_end; row++) {
        int64_t      z0, z1, ox = 0, deep = gpunn__pool_window(&p->z, oz, &z0, &z1);
        int64_t      y0, y1, height = gpunn__pool_window(&p->y, oy, &y0, &y1);
        int64_t      skipped = (z0 - gpunn__pool_corner(&p->z, oz)) * p->y.span + y0 - gpunn__pool_corner(&p->y, oy);
        const float *x = p->from + (volume * p->z.n + z0) * size + y0 * p->x.n;
        while (ox < p->x.out) {
#if defined(__GNUC__) && !defined(GPUNN_NO_SIMD)
            if (stride <= 8 && ox == inner && y1 - y0 == rows && z1 - z0 == depth) {
                for (; ox < inner_end; ox += 8) {
                    int64_t from = inner_end - inner < 8 || ox <= inner_end - 8 ? ox : inner_end - 8; /* the last 8 may overlap */
                    const float *cell = x - p->x.padding + from * stride;
                    int64_t      count = inner_end - from < 8 ? inner_end - from : 8;
                    if (p->from + p->volumes * p->z.n * size - cell <
                        (depth - 1) * size + (rows - 1) * p->x.n + columns + 8 * stride)
                        break;
                    gpunn__pool_eight(p, average, cell, depth, rows, columns, stride, 1 / (float)(depth * rows * columns),
                                      row * p->x.out + from, count);
                }
                if (ox > inner_end) ox = inner_end;
                if (ox == p->x.out) break;
            }
#endif
            int64_t x0, x1, width = gpunn__pool_window(&p->x, ox, &x0, &x1);
            int64_t cells = p->count_exclude_pad ? (z1 - z0) * (y1 - y0) * (x1 - x0) : deep * height * width;
            int64_t first = skipped * p->x.span + x0 - gpunn__pool_corner(&p->x, ox);
            gpunn__pool_one(p, average, x + x0, z1 - z0, y1 - y0, x1 - x0, first, 1 / (float)cells, row * p->x.out + ox);
            ox++;
        }
        if (++oy < p->y.out) continue;
        oy = 0;
        if (++oz == p->z.out) oz = 0, volume++;
    }
}

/* One window, the whole volume x, in 16 lanes. */
GPUNN__INLINE void gpunn__pool_whole(const gpunn__pool *p, bool average, const float *x, int64_t to)
{
    int64_t cells = p->z.n * p->y.n * p->x.n, i = 0;
    float   lane[16];
    int32_t at[16];
    for (int l = 0; l < 16; l++) lane[l] = average ? 0 : -INFINITY, at[l] = 0;
    if (average) {
        float sum = 0;
        for (; i + 16 <= cells; i += 16)
            for (int l = 0; l < 16; l++) lane[l] += x[i + l];
        for (int l = 0; i > 0 && l < 16; l++) sum += lane[l];
        for (; i < cells; i++) sum += x[i];
        p->to[to] = sum / (float)cells;
        return;
    }
    for (; i < cells; i += 16) {
        int lanes = cells - i < 16 ? (int)(cells - i) : 16;
        for (int l = 0; l < lanes; l++) {
            float v = x[i + l];
            bool  take = (v > lane[l]) | (v != v);
            lane[l] = take ? v : lane[l];
            at[l] = take ? (int32_t)i + l : at[l];
        }
    }
    for (int l = 1; l < 16; l++) { /* of equal cells the first, but of NaN the last */
        bool earlier = at[l] < at[0], none = lane[0] == lane[0];
        if (lane[l] != lane[l] ? none || !earlier : lane[l] > lane[0] || (lane[l] == lane[0] && earlier))
            lane[0] = lane[l], at[0] = at[l];
    }
    p->to[to] = lane[0];
    gpunn__pool_mark(p, to, at[0]);
}

GPUNN__PRIVATE void gpunn__pool_forward(void *arg, int index, int threads)
{
    const gpunn__pool *p = (const gpunn__pool *)arg;
    int64_t            row, end, kd = p->z.kernel, kh = p->y.kernel, kw = p->x.kernel, stride = p->x.stride;
    bool               flat = p->z.n == 1 && kd == 1;
    gpunn__cpu_part(p->volumes * p->z.out * p->y.out, 1, threads, index, &row, &end);
    if (p->global) {
        for (; row < end; row++)
            if (p->average)
                gpunn__pool_whole(p, true, p->from + row * p->z.n * p->y.n * p->x.n, row);
            else
                gpunn__pool_whole(p, false, p->from + row * p->z.n * p->y.n * p->x.n, row);
    } else if (p->average) {
        if (flat && kh == 2 && kw == 2 && stride == 2)
            gpunn__pool_rows(p, true, 1, 2, 2, 2, row, end);
        else if (flat)
            gpunn__pool_rows(p, true, 1, kh, kw, stride, row, end);
        else
            gpunn__pool_rows(p, true, kd, kh, kw, stride, row, end);
    } else {
        if (flat && kh == 2 && kw == 2 && stride == 2)
            gpunn__pool_rows(p, false, 1, 2, 2, 2, row, end);
        else if (flat && kh == 3 && kw == 3 && stride == 2)
            gpunn__pool_rows(p, false, 1, 3, 3, 2, row, end);
        else if (flat)
            gpunn__pool_rows(p, false, 1, kh, kw, stride, row, end);
        else
            gpunn__pool_rows(p, false, kd, kh, kw, stride, row, end);
    }
}

/* One row of the gradient of the maxima, whose windows begin in row `corner` of dx, to the cells of these. */
GPUNN__INLINE void gpunn__pool_hand_back(const gpunn__pool *p, bool adaptive, const float *dy, int64_t row, const int64_t *offset,
                                         float *corner)
{
    for (int64_t i = 0; i < p->x.out; i++) {
        int64_t from = adaptive ? gpunn__pool_corner(&p->x, i) : i * p->x.stride - p->x.padding, at;
        if (offset) {
            at = offset[((const uint8_t *)p->at)[row + i]];
        } else {
            at = ((const int32_t *)p->at)[row + i];
            int64_t line = at / p->x.span;
            at = (line / p->y.span * p->y.n + line % p->y.span) * p->x.n + at % p->x.span;
        }
        corner[from + at] += dy[i];
    }
}

GPUNN__PRIVATE void gpunn__pool_backward(void *arg, int index, int threads)
{
    const gpunn__pool *p = (const gpunn__pool *)arg;
    int64_t            volume, end, outputs = p->z.out * p->y.out * p->x.out, cells = p->z.n * p->y.n * p->x.n, offset[256];
    for (int64_t i = 0; p->at_bytes == 1 && i < p->z.span * p->y.span * p->x.span; i++)
        offset[i] = (i / p->x.span / p->y.span * p->y.n + i / p->x.span % p->y.span) * p->x.n + i % p->x.span;
    gpunn__cpu_part(p->volumes, 1, threads, index, &volume, &end);
    for (; volume < end; volume++) {
        float       *dx = p->to + volume * cells;
        const float *dy = p->from + volume * outputs;
        if (p->global && p->average) {
            float share = dy[0] / (float)cells;
            for (int64_t i = 0; i < cells; i++) dx[i] = p->accumulate ? dx[i] + share : share;
            continue;
        }
        if (!p->accumulate) memset(dx, 0, (size_t)cells * sizeof *dx);
        for (int64_t line = 0; line < p->z.out * p->y.out; line++, dy += p->x.out) {
            int64_t oz = line / p->y.out, oy = line % p->y.out;
            if (!p->average) { /* from the window's first cell, in or out of the volume, to that of the maximum, which is in */
                int64_t row = (volume * p->z.out * p->y.out + line) * p->x.out;
                int64_t corner = (gpunn__pool_corner(&p->z, oz) * p->y.n + gpunn__pool_corner(&p->y, oy)) * p->x.n;
                if (p->at_bytes == 1 && p->x.kernel)
                    gpunn__pool_hand_back(p, false, dy, row, offset, dx + corner);
                else
                    gpunn__pool_hand_back(p, true, dy, row, p->at_bytes == 1 ? offset : NULL, dx + corner);
                continue;
            }
            int64_t z0, z1, deep = gpunn__pool_window(&p->z, oz, &z0, &z1);
            int64_t y0, y1, height = gpunn__pool_window(&p->y, oy, &y0, &y1);
            for (int64_t ox = 0; ox < p->x.out; ox++) {
                int64_t x0, x1, width = gpunn__pool_window(&p->x, ox, &x0, &x1);
                int64_t all = p->count_exclude_pad ? (z1 - z0) * (y1 - y0) * (x1 - x0) : deep * height * width;
                float   share = dy[ox] / (float)all;
                for (int64_t z = z0; z < z1; z++)
                    for (int64_t y = y0; y < y1; y++)
                        for (int64_t x = x0; x < x1; x++) dx[(z * p->y.n + y) * p->x.n + x] += share;
            }
        }
    }
}

GPUNN__PRIVATE gpunn_status gpunn__cpu_pool(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__pool p = gpunn__pool_shape(step);
    int64_t     outputs = p.volumes * p.z.out * p.y.out * p.x.out, cells = p.volumes * p.z.n * p.y.n * p.x.n;
    if (action == GPUNN__PREPARE) {
        const gpunn__pool_axis *axes[3] = {&p.z, &p.y, &p.x};
        for (int i = 0; i < 3; i++)
            if (2 * axes[i]->padding > axes[i]->kernel)
                return gpunn__cpu_fail(cpu, GPUNN_ERR_ARGUMENT, "padding %d exceeds half of the window's %d; use a smaller one",
                                       (int)axes[i]->padding, (int)axes[i]->kernel);
        if (p.z.span * p.y.span > INT32_MAX / p.x.span)
            return gpunn__cpu_fail(cpu, GPUNN_ERR_UNSUPPORTED, "a window has more than 2^31 cells; use smaller ones");
        if (!step->backward) step->saved_bytes = p.at_bytes * (size_t)outputs;
    } else if (action == GPUNN__FORWARD) {
        int64_t window = p.z.kernel * p.y.kernel * p.x.kernel;
        gpunn__cpu_parallel(gpunn__cpu_threads(cpu, outputs * (1 + window / 4) + cells / 4), gpunn__pool_forward, &p);
    } else if (p.to) {
        gpunn__cpu_parallel(gpunn__cpu_threads(cpu, cells + outputs), gpunn__pool_backward, &p);
    }
    return GPUNN_OK;
}

#define GPUNN__X(name)                                                                                     \
    GPUNN__PRIVATE gpunn_status gpunn__cpu_##name(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action) \
    {                                                                                                      \
        return gpunn__cpu_pool(cpu, step, action);                                                         \
    }
GPUNN__X(max_pool2d)
GPUNN__X(max_pool3d)
GPUNN__X(avg_pool2d)
GPUNN__X(avg_pool3d)
GPUNN__X(adaptive_avg_pool2d)
GPUNN__X(adaptive_avg_pool3d)
GPUNN__X(adaptive_max_pool2d)
GPUNN__X(adaptive_max_pool3d)
#undef GPUNN__X

/* ==== >>sample ======================================================================================================== *
 * grid_sample and affine_grid. A point lies between two cells along each axis; each has a weight, 0 outside. Images are volumes
 * of one slice, whose z axis is left out. Points are taken in chunks: first the cells and weights of a chunk along one axis after
 * another, then the values, channel by channel.
 *
 * The gradient of x: a thread owns some rows of cells and adds what falls into these, point after point, so that each cell sums
 * in the points' order, whatever the number of threads. Which rows a chunk touches is found first; threads pass over chunks that
 * touch none of theirs. */
enum { GPUNN__POINTS = 64 };

typedef struct gpunn__sampling {
    int                axes; /* 2 or 3 */
    int64_t            samples, channels;
    int64_t            cells, points, chunks; /* of one sample and channel */
    int32_t            size[3];               /* of x along x, y, z; 1 where there is no z */
    gpunn_grid_mode    mode;
    gpunn_grid_padding padding;
    bool               align_corners, add_x, add_grid; /* add: to the gradient that is there */
    const float       *x, *grid, *dy;
    float             *y, *dx, *dgrid;
    int32_t           *touched; /* [samples][chunks][2]: first cells of the first and last row that a chunk touches */
} gpunn__sampling;

typedef struct gpunn__places { /* of a chunk's points along one axis */
    int32_t cell[2][GPUNN__POINTS];
    float   weight[2][GPUNN__POINTS];
    float   slope[2][GPUNN__POINTS]; /* derivative of weight for the coordinate */
} gpunn__places;

typedef struct gpunn__corners { /* of a chunk's points: two cells of each of up to four rows */
    gpunn__places x, y, z;
    int32_t       row[4][GPUNN__POINTS]; /* its first cell */
    float         weight[4][GPUNN__POINTS], slope_y[4][GPUNN__POINTS], slope_z[4][GPUNN__POINTS];
    int32_t       inside[GPUNN__POINTS]; /* 0: beside all cells, and whatever is in these */
} gpunn__corners;

static gpunn__sampling gpunn__sampling_of(const gpunn_step *step)
{
    const gpunn_value *x = &step->in[0], *grid = &step->in[1];
    gpunn__sampling    s;
    memset(&s, 0, sizeof s);
    s.axes = x->rank - 2;
    s.samples = x->dim[0];
    s.channels = x->dim[1];
    for (int i = 0; i < 3; i++) s.size[i] = i < s.axes ? (int32_t)x->dim[x->rank - 1 - i] : 1;
    s.cells = (int64_t)s.size[0] * s.size[1] * s.size[2];
    s.points = grid->count / (s.samples * s.axes);
    s.chunks = (s.points + GPUNN__POINTS - 1) / GPUNN__POINTS;
    s.mode = (gpunn_grid_mode)step->attr->mode;
    s.padding = (gpunn_grid_padding)step->attr->padding_mode;
    s.align_corners = step->attr->align_corners;
    s.x = (const float *)x->data;
    s.grid = (const float *)grid->data;
    s.y = (float *)step->out.data;
    if (step->backward) {
        s.dy = (const float *)step->grad_out.data;
        s.dx = (float *)step->grad_in[0].data;
        s.dgrid = (float *)step->grad_in[1].data;
        s.add_x = step->accumulate[0];
        s.add_grid = step->accumulate[1];
        s.touched = (int32_t *)step->workspace;
    }
    return s;
}

/* Mirrors coordinates at low and low + span until they lie between, and turns their slopes with them. */
static void gpunn__reflect(float low, float span, int count, float *at, float *slope)
{
    GPUNN__IVDEP
    for (int i = 0; i < count; i++) {
        float away = fabsf(at[i] - low), times = floorf(away / span), rest = away - times * span;
        bool  odd = times - 2 * floorf(times / 2) != 0;
        slope[i] = (at[i] < low) != odd ? -slope[i] : slope[i];
        at[i] = (odd ? span - rest : rest) + low;
    }
}

/* Coordinates are `stride` floats apart. */
static void gpunn__find_places(const gpunn__sampling *s, const float *coordinate, int stride, int count, int32_t size,
                               gpunn__places *p, int32_t *inside)
{
    bool  zeros = s->padding == GPUNN_GRID_ZEROS;
    float span = (float)(s->align_corners ? size - 1 : size), shift = s->align_corners ? 0 : 0.5f;
    float low = zeros ? -2.0f : 0.0f, high = (float)(zeros ? size + 1 : size - 1);
    float at[GPUNN__POINTS], slope[GPUNN__POINTS];
    GPUNN__IVDEP
    for (int i = 0; i < count; i++) {
        at[i] = (coordinate[i * stride] + 1) / 2 * span - shift;
        slope[i] = span / 2;
    }
    if (s->padding == GPUNN_GRID_REFLECTION) gpunn__reflect(-shift, span, count, at, slope);
    GPUNN__IVDEP
    for (int i = 0; i < count; i++) {
        float near = at[i] > low ? at[i] : low; /* NaN goes low */
        near = near < high ? near : high;
        float   turn = at[i] > low && at[i] < high ? slope[i] : 0; /* none at a border */
        int32_t cell = (int32_t)near;
        cell -= (float)cell > near; /* floor */
        float   part = near - (float)cell;
        int32_t next = cell + 1, has = cell >= 0 && cell < size, has_next = next >= 0 && next < size;
        p->cell[0][i] = has ? cell : has_next ? next : 0;
        p->cell[1][i] = has_next ? next : p->cell[0][i];
        p->weight[0][i] = has ? 1 - part : 0;
        p->weight[1][i] = has_next ? part : 0;
        p->slope[0][i] = has ? -turn : 0;
        p->slope[1][i] = has_next ? turn : 0;
        inside[i] &= has | has_next;
    }
    for (int i = 0; s->mode == GPUNN_GRID_NEAREST && i < count; i++) {
        float   near = at[i] > low ? at[i] : low;
        int32_t cell = (int32_t)nearbyintf(near < high ? near : high);
        bool    has = cell >= 0 && cell < size;
        p->cell[0][i] = has ? cell : 0;
        p->weight[0][i] = 1;
        inside[i] = has && inside[i];
    }
}

/* Points `first` to `first` + count - 1 of a sample. */
static void gpunn__find_corners(const gpunn__sampling *s, int64_t sample, int64_t first, int count, gpunn__corners *c)
{
    const float *grid = s->grid + (sample * s->points + first) * s->axes;
    for (int i = 0; i < count; i++) c->inside[i] = 1;
    gpunn__find_places(s, grid, s->axes, count, s->size[0], &c->x, c->inside);
    gpunn__find_places(s, grid + 1, s->axes, count, s->size[1], &c->y, c->inside);
    if (s->axes == 3) gpunn__find_places(s, grid + 2, s->axes, count, s->size[2], &c->z, c->inside);
    for (int r = 0; r < 2; r++) {
        GPUNN__IVDEP
        for (int i = 0; i < count; i++) {
            c->row[r][i] = c->y.cell[r][i] * s->size[0];
            c->weight[r][i] = c->y.weight[r][i];
            c->slope_y[r][i] = c->y.slope[r][i];
        }
    }
    if (s->axes == 2) return;
    int32_t slice = s->size[0] * s->size[1];
    for (int r = 3; r >= 0; r--) { /* rows 0 and 1 last: the others are made of them */
        GPUNN__IVDEP
        for (int i = 0; i < count; i++) {
            float weight = c->weight[r & 1][i], z = c->z.weight[r >> 1][i];
            c->row[r][i] = c->row[r & 1][i] + c->z.cell[r >> 1][i] * slice;
            c->slope_z[r][i] = weight * c->z.slope[r >> 1][i];
            c->slope_y[r][i] = c->slope_y[r & 1][i] * z;
            c->weight[r][i] = weight * z;
        }
    }
}

/* Rows whose cells count: one of nearest, else all. */
static int gpunn__corner_rows(const gpunn__sampling *s)
{
    return s->mode == GPUNN_GRID_NEAREST ? 1 : s->axes == 2 ? 2 : 4;
}

/* rows is a constant wherever these are called. */
GPUNN__INLINE void gpunn__sample_chunk(const gpunn__corners *c, int rows, int count, const float *x, float *y)
{
    GPUNN__IVDEP
    for (int i = 0; i < count; i++) {
        float sum = 0;
        for (int r = 0; r < rows; r++) {
            const float *row = x + c->row[r][i];
            float        low = row[c->x.cell[0][i]];
            if (rows > 1) low = c->weight[r][i] * (low * c->x.weight[0][i] + row[c->x.cell[1][i]] * c->x.weight[1][i]);
            sum = rows > 1 ? sum + low : low;
        }
        y[i] = c->inside[i] ? sum : 0;
    }
}

/* Adds what one channel has of the gradient of coordinates x, y, z. */
GPUNN__INLINE void gpunn__sample_chunk_slopes(const gpunn__corners *c, int rows, int count, const float *x, const float *dy,
                                              float sum[3][GPUNN__POINTS])
{
    GPUNN__IVDEP
    for (int i = 0; i < count; i++) {
        float slope[3] = {0, 0, 0}, g = c->inside[i] ? dy[i] : 0;
        for (int r = 0; r < rows; r++) {
            const float *row = x + c->row[r][i];
            float        low = row[c->x.cell[0][i]], high = row[c->x.cell[1][i]];
            float        value = low * c->x.weight[0][i] + high * c->x.weight[1][i];
            slope[0] += c->weight[r][i] * (low * c->x.slope[0][i] + high * c->x.slope[1][i]);
            slope[1] += c->slope_y[r][i] * value;
            if (rows == 4) slope[2] += c->slope_z[r][i] * value;
        }
        for (int k = 0; k < (rows == 4 ? 3 : 2); k++) sum[k][i] += g * slope[k];
    }
}

/* Adds to those cells of one channel's gradient whose rows begin in [begin, end). */
GPUNN__INLINE void gpunn__sample_chunk_back(const gpunn__corners *c, int rows, int count, int32_t begin, int32_t end,
                                            const float *dy, float *dx)
{
    for (int i = 0; i < count; i++) {
        int32_t low = c->x.cell[0][i], high = c->x.cell[1][i];
        for (int r = 0; r < rows && c->inside[i]; r++) {
            int32_t row = c->row[r][i];
            float   g = dy[i] * c->weight[r][i];
            if (row < begin || row >= end) continue;
            if (rows == 1) {
                dx[row + low] += dy[i];
                continue;
            }
            dx[row + low] += g * c->x.weight[0][i];
            dx[row + high] += g * c->x.weight[1][i];
        }
    }
}

static int gpunn__chunk_points(const gpunn__sampling *s, int64_t chunk)
{
    return (int)gpunn__least(GPUNN__POINTS, s->points - chunk * GPUNN__POINTS);
}

/* Values, or the gradient of the grid. */
static void gpunn__sample_task(void *arg, int thread, int threads)
{
    const gpunn__sampling *s = (const gpunn__sampling *)arg;
    int                    rows = gpunn__corner_rows(s);
    int64_t                begin, end;
    gpunn__corners         c;
    gpunn__cpu_part(s->samples * s->chunks, 1, threads, thread, &begin, &end);
    for (; begin < end; begin++) {
        int64_t sample = begin / s->chunks, chunk = begin % s->chunks, first = chunk * GPUNN__POINTS;
        int     count = gpunn__chunk_points(s, chunk);
        float   sum[3][GPUNN__POINTS] = {{0}};
        if (rows > 1 || s->dgrid == NULL) gpunn__find_corners(s, sample, first, count, &c);
        for (int64_t channel = sample * s->channels; channel < (sample + 1) * s->channels; channel++) {
            const float *x = s->x + channel * s->cells;
            int64_t      at = channel * s->points + first;
            if (s->dgrid && rows == 4)
                gpunn__sample_chunk_slopes(&c, 4, count, x, s->dy + at, sum);
            else if (s->dgrid && rows == 2)
                gpunn__sample_chunk_slopes(&c, 2, count, x, s->dy + at, sum);
            else if (s->dgrid)
                break;
            else if (rows == 4)
                gpunn__sample_chunk(&c, 4, count, x, s->y + at);
            else if (rows == 2)
                gpunn__sample_chunk(&c, 2, count, x, s->y + at);
            else
                gpunn__sample_chunk(&c, 1, count, x, s->y + at);
        }
        float *to = s->dgrid + (s->dgrid ? (sample * s->points + first) * s->axes : 0);
        for (int k = 0; s->dgrid && k < s->axes; k++)
            for (int i = 0; i < count; i++) to[i * s->axes + k] = s->add_grid ? to[i * s->axes + k] + sum[k][i] : sum[k][i];
    }
}

static void gpunn__sample_find_touched(const gpunn__sampling *s, int thread, int threads)
{
    int64_t        begin, end;
    gpunn__corners c;
    gpunn__cpu_part(s->samples * s->chunks, 1, threads, thread, &begin, &end);
    for (; begin < end; begin++) {
        int64_t chunk = begin % s->chunks;
        int     count = gpunn__chunk_points(s, chunk), last = gpunn__corner_rows(s) - 1;
        int32_t low = INT32_MAX, high = -1;
        gpunn__find_corners(s, begin / s->chunks, chunk * GPUNN__POINTS, count, &c);
        for (int i = 0; i < count; i++) {
            if (!c.inside[i]) continue;
            low = c.row[0][i] < low ? c.row[0][i] : low;
            high = c.row[last][i] > high ? c.row[last][i] : high;
        }
        s->touched[2 * begin] = low;
        s->touched[2 * begin + 1] = high;
    }
}

/* The gradient of x. */
static void gpunn__sample_back_task(void *arg, int thread, int threads)
{
    const gpunn__sampling *s = (const gpunn__sampling *)arg;
    int                    rows = gpunn__corner_rows(s);
    int64_t                row, row_end, lines = s->cells / s->size[0];
    gpunn__corners         c;
    if (threads > 1) {
        gpunn__sample_find_touched(s, thread, threads);
        gpunn__cpu_barrier();
    }
    gpunn__cpu_part(s->samples * lines, 1, threads, thread, &row, &row_end);
    while (row < row_end) {
        int64_t sample = row / lines, from = row % lines, to = gpunn__least(lines, from + row_end - row);
        int32_t begin = (int32_t)(from * s->size[0]), end = (int32_t)(to * s->size[0]);
        float  *dx = s->dx + sample * s->channels * s->cells;
        for (int64_t channel = 0; channel < s->channels && !s->add_x; channel++)
            memset(dx + channel * s->cells + begin, 0, (size_t)(end - begin) * sizeof *dx);
        for (int64_t chunk = 0; chunk < s->chunks; chunk++) {
            const int32_t *touched = s->touched + 2 * (sample * s->chunks + chunk);
            int            count = gpunn__chunk_points(s, chunk);
            if (threads > 1 && (touched[0] >= end || touched[1] < begin)) continue;
            gpunn__find_corners(s, sample, chunk * GPUNN__POINTS, count, &c);
            for (int64_t channel = 0; channel < s->channels; channel++) {
                const float *dy = s->dy + (sample * s->channels + channel) * s->points + chunk * GPUNN__POINTS;
                if (rows == 4)
                    gpunn__sample_chunk_back(&c, 4, count, begin, end, dy, dx + channel * s->cells);
                else if (rows == 2)
                    gpunn__sample_chunk_back(&c, 2, count, begin, end, dy, dx + channel * s->cells);
                else
                    gpunn__sample_chunk_back(&c, 1, count, begin, end, dy, dx + channel * s->cells);
            }
        }
        row += to - from;
    }
}

GPUNN__PRIVATE gpunn_status gpunn__cpu_grid_sample(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__sampling s = gpunn__sampling_of(step);
    int             threads = gpunn__cpu_threads(cpu, s.samples * s.points * (2 + s.channels) * (s.axes == 3 ? 4 : 2));
    if (action == GPUNN__PREPARE) {
        if (step->backward && s.dx) step->workspace_bytes = (size_t)(2 * s.samples * s.chunks) * sizeof *s.touched;
        return GPUNN_OK;
    }
    if (action == GPUNN__FORWARD || s.dgrid) gpunn__cpu_parallel(threads, gpunn__sample_task, &s);
    if (s.dx) gpunn__cpu_parallel(threads, gpunn__sample_back_task, &s);
    return GPUNN_OK;
}

/* ---- affine_grid: grid[n][z][y][x][k] = theta[n][k] . (x, y, z, 1) ------------------------------------------------------- */
typedef struct gpunn__affine_points {
    int          axes;
    int64_t      samples, lines; /* lines: of one sample */
    int64_t      size[3];        /* along x, y, z; 1 where there is no z */
    bool         align_corners;
    const float *theta, *dgrid;
    float       *grid, *sums; /* sums: [samples][lines][2][axes], of a line's gradients and of these times x */
} gpunn__affine_points;

/* The coordinate of cell i of n, from -1 to 1. */
GPUNN__INLINE float gpunn__affine_coordinate(int64_t i, int64_t n, bool align_corners)
{
    return n == 1 ? 0 : (float)(2 * i + 1 - n) / (float)(align_corners ? n - 1 : n);
}

static void gpunn__affine_task(void *arg, int thread, int threads)
{
    const gpunn__affine_points *a = (const gpunn__affine_points *)arg;
    int64_t                     line, end, width = a->size[0];
    int                         axes = a->axes;
    gpunn__cpu_part(a->samples * a->lines, 1, threads, thread, &line, &end);
    for (; line < end; line++) {
        int64_t      at = line % a->lines;
        float        y = gpunn__affine_coordinate(at % a->size[1], a->size[1], a->align_corners);
        float        z = gpunn__affine_coordinate(at / a->size[1], a->size[2], a->align_corners);
        const float *theta = a->theta + line / a->lines * (axes * (axes + 1));
        for (int k = 0; k < axes; k++) {
            float base = theta[1] * y + (axes == 3 ? theta[2] * z : 0) + theta[axes], *grid = a->grid + line * width * axes + k;
            for (int64_t i = 0; i < width; i++)
                grid[i * axes] = theta[0] * gpunn__affine_coordinate(i, width, a->align_corners) + base;
            theta += axes + 1;
        }
    }
}

static void gpunn__affine_back_task(void *arg, int thread, int threads)
{
    const gpunn__affine_points *a = (const gpunn__affine_points *)arg;
    int64_t                     line, end, width = a->size[0];
    gpunn__cpu_part(a->samples * a->lines, 1, threads, thread, &line, &end);
    for (; line < end; line++) {
        const float *g = a->dgrid + line * width * a->axes;
        double       sum[2][3] = {{0}};
        for (int64_t i = 0; i < width; i++) {
            float x = gpunn__affine_coordinate(i, width, a->align_corners);
            for (int k = 0; k < a->axes; k++, g++) {
                sum[0][k] += *g;
                sum[1][k] += *g * x;
            }
        }
        for (int j = 0; j < 2; j++)
            for (int k = 0; k < a->axes; k++) a->sums[(2 * line + j) * a->axes + k] = (float)sum[j][k];
    }
}

GPUNN__PRIVATE gpunn_status gpunn__cpu_affine_grid(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const gpunn_value   *grid = step->backward ? &step->grad_out : &step->out;
    gpunn__affine_points a;
    memset(&a, 0, sizeof a);
    a.axes = grid->rank - 2;
    a.samples = grid->dim[0];
    for (int i = 0; i < 3; i++) a.size[i] = i < a.axes ? grid->dim[a.axes - i] : 1;
    a.lines = a.size[1] * a.size[2];
    a.align_corners = step->attr->align_corners;
    if (action == GPUNN__PREPARE) {
        if (step->backward) step->workspace_bytes = (size_t)(a.samples * a.lines * 2 * a.axes) * sizeof *a.sums;
        return GPUNN_OK;
    }
    int threads = gpunn__cpu_threads(cpu, grid->count * 2);
    if (action == GPUNN__FORWARD) {
        a.theta = (const float *)step->in[0].data;
        a.grid = (float *)grid->data;
        gpunn__cpu_parallel(threads, gpunn__affine_task, &a);
        return GPUNN_OK;
    }
    a.dgrid = (const float *)grid->data;
    a.sums = (float *)step->workspace;
    gpunn__cpu_parallel(threads, gpunn__affine_back_task, &a);
    float *dtheta = (float *)step->grad_in[0].data;
    for (int64_t n = 0; n < a.samples; n++) {
        double total[3][4] = {{0}};
        for (int64_t line = 0; line < a.lines; line++) {
            const float *sum = a.sums + (n * a.lines + line) * 2 * a.axes;
            float        y = gpunn__affine_coordinate(line % a.size[1], a.size[1], a.align_corners);
            float        z = gpunn__affine_coordinate(line / a.size[1], a.size[2], a.align_corners);
            for (int k = 0; k < a.axes; k++, sum++) {
                total[k][0] += sum[a.axes];
                total[k][1] += *sum * y;
                total[k][2] += *sum * z;
                total[k][3] += *sum;
            }
        }
        for (int k = 0; k < a.axes; k++)
            for (int j = 0; j <= a.axes; j++, dtheta++) {
                float g = (float)total[k][j == a.axes ? 3 : j];
                *dtheta = step->accumulate[0] ? *dtheta + g : g;
            }
    }
    return GPUNN_OK;
}

/* ==== >>map =========================================================================================================== *
 * Elementwise ops on the CPU: loops made from the tables, over contiguous memory only, and one driver that feeds them chunks of
 * the result. Broadcast operands are expanded, and gradients of broadcast operands summed, chunk by chunk in the first cache. */

/* to[i] = the op, or one of its derivatives, of from[0 .. 2]: operands, from[3]: result, from[4]: its gradient. What the text
 * does not mention may be NULL; to may be one of from. */
typedef void (*gpunn__loop)(int64_t n, const float *const *from, const float *attr, float *to);

/* gcc vectorises little below -O3. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define GPUNN__OPTIMIZED
#pragma GCC push_options
#pragma GCC optimize("O3")
#elif defined(__clang__) /* of GPUNN__IVDEP where a loop calls sinf, cosf or powf */
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

/* The tables' language. */
#define x from[0][i]
#define a from[0][i]
#define b from[1][i]
#define c from[2][i]
#define y from[3][i]
#define g from[4][i]
#define K(number) number##f
#define where(condition, yes, no) gpunn__select((condition) != 0, (float)(yes), (float)(no))
#define min(p, q) gpunn__min(p, q)
#define max(p, q) gpunn__max(p, q)
#define abs(p) fabsf(p)
#define sign(p) gpunn__sign(p)
#define floor(p) floorf(p)
#define exp(p) gpunn__exp(p)
#define expm1(p) gpunn__expm1(p)
#define log(p) gpunn__log(p)
#define log1p(p) gpunn__log1p(p)
#define sqrt(p) sqrtf(p)
#define tanh(p) gpunn__tanh(p)
#define erf(p) gpunn__erf(p)
#define sigmoid(p) gpunn__sigmoid(p)
#define sin(p) sinf(p)
#define cos(p) cosf(p)
#define pow(p, q) powf(p, q)

#define GPUNN__CONSTANT(name, i) \
    const float name = attr[i];  \
    (void)name;
#define GPUNN__LOOP(function, constants, text)                                              \
    static void function(int64_t n, const float *const *from, const float *attr, float *to) \
    {                                                                                       \
        constants(void) from, (void)attr;                                                   \
        GPUNN__IVDEP                                                                        \
        for (int64_t i = 0; i < n; ++i) to[i] = (float)(text);                              \
    }
#define GPUNN__LOOPS(name, constants, f, dx) \
    GPUNN__LOOP(gpunn__loop_##name, constants, f) GPUNN__LOOP(gpunn__loop_##name##_da, constants, dx)
#define GPUNN__LOOPS2(name, constants, f, da, db) \
    GPUNN__LOOPS(name, constants, f, da) GPUNN__LOOP(gpunn__loop_##name##_db, constants, db)

#define GPUNN__X(ENUM, name, f, dx) GPUNN__LOOPS(name, , f, dx)
GPUNN_UNARY_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, value1, f, dx) GPUNN__LOOPS(name, GPUNN__CONSTANT(attr1, 0), f, dx)
GPUNN_UNARY1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, value1, attr2, value2, f, dx) \
    GPUNN__LOOPS(name, GPUNN__CONSTANT(attr1, 0) GPUNN__CONSTANT(attr2, 1), f, dx)
GPUNN_UNARY2_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, f, da, db) GPUNN__LOOPS2(name, , f, da, db)
GPUNN_BINARY_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, attr1, value1, f, da, db) GPUNN__LOOPS2(name, GPUNN__CONSTANT(attr1, 0), f, da, db)
GPUNN_BINARY1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, f, da, db, dc) GPUNN__LOOPS2(name, , f, da, db) GPUNN__LOOP(gpunn__loop_##name##_dc, , dc)
GPUNN_TERNARY_OPS(GPUNN__X)
#undef GPUNN__X

#undef x
#undef a
#undef b
#undef c
#undef y
#undef g
#undef K
#undef where
#undef min
#undef max
#undef abs
#undef sign
#undef floor
#undef exp
#undef expm1
#undef log
#undef log1p
#undef sqrt
#undef tanh
#undef erf
#undef sigmoid
#undef sin
#undef cos
#undef pow
#undef GPUNN__CONSTANT
#undef GPUNN__LOOP
#undef GPUNN__LOOPS
#undef GPUNN__LOOPS2

/* In the order of gpunn_op, where the elementwise ops come first. */
/* clang-format off */
static const struct {
    gpunn__loop forward, derivative[3];
} gpunn__loops[] = {
    {NULL, {NULL, NULL, NULL}},
#define GPUNN__X(ENUM, name, ...) {gpunn__loop_##name, {gpunn__loop_##name##_da, NULL, NULL}},
    GPUNN_UNARY_OPS(GPUNN__X) GPUNN_UNARY1_OPS(GPUNN__X) GPUNN_UNARY2_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, ...) {gpunn__loop_##name, {gpunn__loop_##name##_da, gpunn__loop_##name##_db, NULL}},
    GPUNN_BINARY_OPS(GPUNN__X) GPUNN_BINARY1_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, ...) \
    {gpunn__loop_##name, {gpunn__loop_##name##_da, gpunn__loop_##name##_db, gpunn__loop_##name##_dc}},
    GPUNN_TERNARY_OPS(GPUNN__X)
#undef GPUNN__X
};
/* clang-format on */

enum {
    GPUNN__MAP_CHUNK = 1024,      /* floats of scratch per operand */
    GPUNN__MAP_PART = 32768,      /* least results per part of a sum ... */
    GPUNN__MAP_PARTIALS = 1 << 18 /* ... and most partial sums, unless one part has more */
};

typedef struct gpunn__map_job {
    const gpunn_step *step;
    int               operands;
    bool              narrow[3]; /* operand i is broadcast */
    bool              sums[3];   /* its gradient is wanted and therefore a sum */
    /* The result's dimensions, innermost first, neighbours merged where every operand has or lacks both. */
    int     rank;
    int64_t dim[GPUNN_MAX_RANK];
    int64_t stride[3][GPUNN_MAX_RANK]; /* 0 where operand i is broadcast */
    int64_t period[3];                 /* what operand i looks like from the result repeats after so many */
    int64_t chunk;
    int     parts;      /* of the result, each done by one thread */
    double *partial[3]; /* [parts][operand's count] */
} gpunn__map_job;

/* Place in the result, and in one operand, of a walk along the runs of dim[0]. */
typedef struct gpunn__map_walk {
    int64_t index[GPUNN_MAX_RANK], offset;
} gpunn__map_walk;

static gpunn__map_walk gpunn__map_start(const gpunn__map_job *job, int operand, int64_t at)
{
    gpunn__map_walk walk;
    walk.offset = 0;
    for (int d = 0; d < job->rank; ++d) {
        walk.index[d] = at % job->dim[d];
        walk.offset += walk.index[d] * job->stride[operand][d];
        at /= job->dim[d];
    }
    return walk;
}

/* Elements left in this run, at most n. */
GPUNN__INLINE int64_t gpunn__map_run(const gpunn__map_job *job, const gpunn__map_walk *walk, int64_t n)
{
    int64_t left = job->dim[0] - walk->index[0];
    return left < n ? left : n;
}

GPUNN__INLINE void gpunn__map_advance(const gpunn__map_job *job, int operand, gpunn__map_walk *walk, int64_t run)
{
    const int64_t *stride = job->stride[operand];
    walk->index[0] += run;
    walk->offset += run * stride[0];
    for (int d = 0; walk->index[d] == job->dim[d] && d + 1 < job->rank; ++d) {
        walk->offset += stride[d + 1] - stride[d] * job->dim[d];
        walk->index[d] = 0;
        ++walk->index[d + 1];
    }
}

/* What stands of a broadcast operand under result[at .. at + n): in place where contiguous, else copied into scratch. */
static const float *gpunn__map_expand(const gpunn__map_job *job, int operand, int64_t at, int64_t n, float *scratch)
{
    const float    *data = (const float *)job->step->in[operand].data;
    gpunn__map_walk walk = gpunn__map_start(job, operand, at);
    bool            moves = job->stride[operand][0] != 0;
    for (int64_t done = 0, run; done < n; done += run) {
        const float *from = data + walk.offset;
        run = gpunn__map_run(job, &walk, n - done);
        if (moves && run == n) return from;
        if (moves)
            memcpy(scratch + done, from, (size_t)run * sizeof *from);
        else
            for (int64_t i = 0; i < run; ++i) scratch[done + i] = *from;
        gpunn__map_advance(job, operand, &walk, run);
    }
    return scratch;
}

/* Of a chunk at most, so that float lanes are exact enough. */
static double gpunn__map_sum(const float *values, int64_t n)
{
    double  sum = 0;
    int64_t i = 0;
    if (n >= 16) {
        float lane[16] = {0};
        for (; i + 16 <= n; i += 16)
            for (int j = 0; j < 16; ++j) lane[j] += values[i + j];
        for (int width = 8; width > 0; width /= 2)
            for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
        sum = lane[0];
    }
    for (; i < n; ++i) sum += values[i];
    return sum;
}

/* The reverse of expanding: sum += values, which stand under result[at .. at + n). */
static void gpunn__map_fold(const gpunn__map_job *job, int operand, int64_t at, int64_t n, const float *values, double *sum)
{
    gpunn__map_walk walk = gpunn__map_start(job, operand, at);
    for (int64_t done = 0, run; done < n; done += run) {
        double *GPUNN__RESTRICT to = sum + walk.offset;
        run = gpunn__map_run(job, &walk, n - done);
        if (job->stride[operand][0] != 0)
            for (int64_t i = 0; i < run; ++i) to[i] += values[done + i];
        else
            *to += gpunn__map_sum(values + done, run);
        gpunn__map_advance(job, operand, &walk, run);
    }
}

static void gpunn__map_part(const gpunn__map_job *job, int part)
{
    const gpunn_step *step = job->step;
    const float      *attr = step->attr->value, *from[5] = {NULL, NULL, NULL, NULL, NULL};
    float             scratch[3][GPUNN__MAP_CHUNK], derivative[GPUNN__MAP_CHUNK];
    int64_t           begin, end;
    gpunn__cpu_part(step->out.count, job->chunk, job->parts, part, &begin, &end);
    for (int64_t at = begin, n; at < end; at += n) {
        n = end - at < job->chunk ? end - at : job->chunk;
        for (int i = 0; i < job->operands; ++i) {
            const float *data = (const float *)step->in[i].data;
            if (data == NULL) continue;
            if (!job->narrow[i])
                from[i] = data + at;
            else if (at == begin || job->chunk % job->period[i] != 0)
                from[i] = gpunn__map_expand(job, i, at, n, scratch[i]);
        }
        if (!step->backward) {
            gpunn__loops[step->op].forward(n, from, attr, (float *)step->out.data + at);
            continue;
        }
        if (step->out.data) from[3] = (const float *)step->out.data + at;
        from[4] = (const float *)step->grad_out.data + at;
        for (int i = 0; i < job->operands; ++i) {
            float *to = (float *)step->grad_in[i].data;
            if (to == NULL) continue;
            bool direct = !job->sums[i] && !step->accumulate[i];
            gpunn__loops[step->op].derivative[i](n, from, attr, direct ? to + at : derivative);
            if (job->sums[i])
                gpunn__map_fold(job, i, at, n, derivative, job->partial[i] + part * step->in[i].count);
            else if (!direct)
                for (int64_t j = 0; j < n; ++j) to[at + j] += derivative[j];
        }
    }
}

static void gpunn__map_task(void *arg, int index, int threads)
{
    const gpunn__map_job *job = (const gpunn__map_job *)arg;
    int64_t               begin, end;
    gpunn__cpu_part(job->parts, 1, threads, index, &begin, &end);
    for (; begin < end; ++begin) gpunn__map_part(job, (int)begin);
}

/* Fills rank, dim, stride and period. */
static void gpunn__map_merge(gpunn__map_job *job)
{
    const gpunn_value *in = job->step->in, *out = &job->step->out;
    int64_t            size[3] = {1, 1, 1}, total = 1;
    unsigned           last = 0;
    job->rank = 0;
    for (int i = 0; i < 3; ++i) job->period[i] = 1;
    for (int axis = 1; axis <= out->rank; ++axis) { /* from the innermost */
        int64_t  dim = out->dim[out->rank - axis];
        unsigned moves = 0;
        if (dim == 1) continue;
        for (int i = 0; i < job->operands; ++i)
            if (axis <= in[i].rank && in[i].dim[in[i].rank - axis] != 1) moves |= 1u << i;
        if (job->rank == 0 || moves != last) {
            for (int i = 0; i < job->operands; ++i) job->stride[i][job->rank] = moves >> i & 1 ? size[i] : 0;
            job->dim[job->rank++] = 1;
        }
        last = moves;
        total *= dim;
        job->dim[job->rank - 1] *= dim;
        for (int i = 0; i < job->operands; ++i) {
            if (!(moves >> i & 1)) continue;
            size[i] *= dim;
            job->period[i] = total;
        }
    }
}

GPUNN__PRIVATE gpunn_status gpunn__cpu_map(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__map_job job;
    int64_t        count = step->out.count, partials = 0;
    bool           narrow = false, buffered = false;
    job.step = step;
    job.operands = step->input_count;
    for (int i = 0; i < job.operands; ++i) {
        job.narrow[i] = step->in[i].count != count;
        job.sums[i] = job.narrow[i] && step->backward && step->grad_in[i].data != NULL;
        narrow |= job.narrow[i];
        buffered |= job.narrow[i] || (step->backward && step->accumulate[i]);
        if (job.sums[i]) partials += step->in[i].count;
    }
    if (partials) { /* sums are split by shape alone, so that threads do not change them */
        int64_t parts = count / GPUNN__MAP_PART, most = GPUNN__MAP_PARTIALS / partials;
        if (parts > most) parts = most;
        job.parts = parts > 64 ? 64 : parts > 1 ? (int)parts : 1;
    } else
        job.parts = gpunn__cpu_threads(cpu, count);
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = (size_t)(job.parts * partials) * sizeof(double);
        return GPUNN_OK;
    }

    job.chunk = buffered ? GPUNN__MAP_CHUNK : 8 * GPUNN__MAP_CHUNK;
    if (narrow) {
        gpunn__map_merge(&job);
        int64_t longest = 1; /* of the periods that fit: chunks of a multiple of it need expanding only once */
        for (int i = 0; i < job.operands; ++i)
            if (job.narrow[i] && job.period[i] > longest && job.period[i] <= job.chunk) longest = job.period[i];
        job.chunk -= job.chunk % longest;
    }
    if (partials) {
        double *free_space = (double *)step->workspace;
        memset(free_space, 0, (size_t)(job.parts * partials) * sizeof *free_space);
        for (int i = 0; i < job.operands; ++i) {
            if (!job.sums[i]) continue;
            job.partial[i] = free_space;
            free_space += job.parts * step->in[i].count;
        }
    }
    int threads = gpunn__cpu_threads(cpu, count);
    gpunn__cpu_parallel(threads < job.parts ? threads : job.parts, gpunn__map_task, &job);
    for (int i = 0; i < job.operands; ++i) {
        if (!job.sums[i]) continue;
        float  *to = (float *)step->grad_in[i].data;
        int64_t elements = step->in[i].count;
        for (int64_t j = 0; j < elements; ++j) {
            double sum = step->accumulate[i] ? to[j] : 0;
            for (int part = 0; part < job.parts; ++part) sum += job.partial[i][part * elements + j];
            to[j] = (float)sum;
        }
    }
    return GPUNN_OK;
}

#ifdef GPUNN__OPTIMIZED
#pragma GCC pop_options
#undef GPUNN__OPTIMIZED
#elif defined(__clang__)
#pragma clang diagnostic pop
#endif
/* ==== >>reduce ======================================================================================================== *
 * Sums and maxima over axes, softmax, and the ops that only move data. */

/* function(..., flag) with the flag a constant: a choice inside a loop may keep it from becoming vector code. */
#define GPUNN__FIXED(flag, function, ...) \
    do {                                  \
        if (flag)                         \
            function(__VA_ARGS__, true);  \
        else                              \
            function(__VA_ARGS__, false); \
    } while (0)

/* ---- cast: as C, BOOL is x != 0; floats without a counterpart give what x86 does, INT64_MIN or INT32_MIN ---------------- */
typedef struct gpunn__cast_job {
    const gpunn_value *in, *out;
} gpunn__cast_job;

GPUNN__INLINE int64_t gpunn__to_i64(float x)
{
    return x >= -9223372036854775808.0f && x < 9223372036854775808.0f ? (int64_t)x : INT64_MIN;
}

GPUNN__INLINE int32_t gpunn__to_i32(float x)
{
    return x >= -2147483648.0f && x < 2147483648.0f ? (int32_t)x : INT32_MIN;
}

static void gpunn__cast_task(void *arg, int thread, int threads)
{
    const gpunn__cast_job *job = (const gpunn__cast_job *)arg;
    int64_t                begin, end;
    gpunn__cpu_part(job->out->count, 1024, threads, thread, &begin, &end);
#define GPUNN__LOOP(TO, FROM, value)                                 \
    {                                                                \
        const FROM *GPUNN__RESTRICT x = (const FROM *)job->in->data; \
        TO *GPUNN__RESTRICT         y = (TO *)job->out->data;        \
        for (int64_t i = begin; i < end; i++) y[i] = (TO)(value);    \
        return;                                                      \
    }
#define GPUNN__FROM(FROM, long_value, value)               \
    switch (job->out->dtype) {                             \
    case GPUNN_F32: GPUNN__LOOP(float, FROM, x[i])         \
    case GPUNN_I64: GPUNN__LOOP(int64_t, FROM, long_value) \
    case GPUNN_I32: GPUNN__LOOP(int32_t, FROM, value)      \
    case GPUNN_U8: GPUNN__LOOP(uint8_t, FROM, value)       \
    default: GPUNN__LOOP(uint8_t, FROM, x[i] != 0)         \
    }
    switch (job->in->dtype) {
    case GPUNN_F32: GPUNN__FROM(float, gpunn__to_i64(x[i]), gpunn__to_i32(x[i]))
    case GPUNN_I64: GPUNN__FROM(int64_t, x[i], x[i])
    case GPUNN_I32: GPUNN__FROM(int32_t, x[i], x[i])
    default: GPUNN__FROM(uint8_t, x[i], x[i])
    }
#undef GPUNN__FROM
#undef GPUNN__LOOP
}

static gpunn_status gpunn__cpu_cast(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) {
        gpunn_dtype from = step->in[0].dtype, to = step->out.dtype;
        if (from == GPUNN_F16 || from == GPUNN_BF16 || to == GPUNN_F16 || to == GPUNN_BF16)
            return gpunn__cpu_fail(cpu, GPUNN_ERR_UNSUPPORTED,
                                   "the CPU cannot cast %s to %s; it knows f32, i64, i32, u8 and bool", gpunn_dtype_name(from),
                                   gpunn_dtype_name(to));
        return GPUNN_OK;
    }
    gpunn__cast_job job;
    job.in = &step->in[0];
    job.out = &step->out;
    gpunn__cpu_parallel(gpunn__cpu_threads(cpu, step->out.count), gpunn__cast_task, &job);
    return GPUNN_OK;
}

/* ---- strided copies: permute, concat, slice and pad are nothing else -------------------------------------------------- */
typedef struct gpunn__copy {
    int         rank;
    int64_t     dim[GPUNN_MAX_RANK], to_stride[GPUNN_MAX_RANK], from_stride[GPUNN_MAX_RANK]; /* in bytes */
    char       *to;
    const char *from;
    size_t      size;   /* of an element */
    bool        add;    /* to += from, of floats */
    int         across; /* the axis along which `from` is contiguous when the last one is not; else -1 */
    int64_t     outer;  /* product of the axes but the last and `across` */
} gpunn__copy;

/* size and add are constants wherever this is called. */
GPUNN__INLINE void gpunn__move(char *to, const char *from, size_t size, bool add)
{
    if (add) {
        float sum, term;
        memcpy(&sum, to, sizeof sum);
        memcpy(&term, from, sizeof term);
        sum += term;
        memcpy(to, &sum, sizeof sum);
    } else
        memcpy(to, from, size);
}

GPUNN__INLINE void gpunn__move_line(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t n, size_t size,
                                    bool add)
{
    if (to_stride == (int64_t)size && from_stride == (int64_t)size) {
        if (!add)
            memcpy(to, from, (size_t)n * size);
        else {
            GPUNN__IVDEP
            for (int64_t i = 0; i < n; i++)
                gpunn__move(to + i * (int64_t)sizeof(float), from + i * (int64_t)sizeof(float), size, add);
        }
        return;
    }
    GPUNN__IVDEP
    for (int64_t i = 0; i < n; i++) gpunn__move(to + i * to_stride, from + i * from_stride, size, add);
}

/* The part of a copy with outer positions begin .. end - 1 and elements first .. limit - 1 of the last axis. */
GPUNN__INLINE void gpunn__copy_part(const gpunn__copy *c, int64_t begin, int64_t end, int64_t first, int64_t limit, size_t size,
                                    bool add)
{
    int         last = c->rank - 1;
    int64_t     index[GPUNN_MAX_RANK] = {0}, to_stride = c->to_stride[last], from_stride = c->from_stride[last];
    char       *to = c->to + first * to_stride;
    const char *from = c->from + first * from_stride;
    int64_t     rest = begin;
    for (int d = last - 1; d >= 0; d--) {
        if (d == c->across) continue;
        index[d] = rest % c->dim[d];
        rest /= c->dim[d];
        to += index[d] * c->to_stride[d];
        from += index[d] * c->from_stride[d];
    }
    for (int64_t i = begin; i < end; i++) {
        if (c->across < 0)
            gpunn__move_line(to, to_stride, from, from_stride, limit - first, size, add);
        else { /* squares that fit the first-level cache, written along the last axis and read along `across` */
            enum { SIDE = 16 };
            int64_t n = c->dim[c->across], row = c->to_stride[c->across];
            for (int64_t b = 0; b < n; b += SIDE)
                for (int64_t a = 0; a < limit - first; a += SIDE) {
                    int64_t a_end = gpunn__least(a + SIDE, limit - first), b_end = gpunn__least(b + SIDE, n);
                    for (int64_t y = b; y < b_end; y++)
                        for (int64_t x = a; x < a_end; x++)
                            gpunn__move(to + y * row + x * (int64_t)size, from + x * from_stride + y * (int64_t)size, size, add);
                }
        }
        for (int d = last - 1; d >= 0; d--) {
            if (d == c->across) continue;
            to += c->to_stride[d];
            from += c->from_stride[d];
            if (++index[d] < c->dim[d]) break;
            to -= index[d] * c->to_stride[d];
            from -= index[d] * c->from_stride[d];
            index[d] = 0;
        }
    }
}

static void gpunn__copy_task(void *arg, int thread, int threads)
{
    const gpunn__copy *c = (const gpunn__copy *)arg;
    int64_t            begin = 0, end = c->outer, first = 0, limit = c->dim[c->rank - 1];
    if (c->outer >= threads)
        gpunn__cpu_part(c->outer, 1, threads, thread, &begin, &end);
    else
        gpunn__cpu_part(limit, 64, threads, thread, &first, &limit);
    if (begin >= end || first >= limit) return;
    if (c->add)
        gpunn__copy_part(c, begin, end, first, limit, sizeof(float), true);
    else if (c->size == 1)
        gpunn__copy_part(c, begin, end, first, limit, 1, false);
    else if (c->size == 2)
        gpunn__copy_part(c, begin, end, first, limit, 2, false);
    else if (c->size == 4)
        gpunn__copy_part(c, begin, end, first, limit, 4, false);
    else
        gpunn__copy_part(c, begin, end, first, limit, 8, false);
}

/* Runs a copy whose rank, dim, strides in elements, to, from, size and add are set. */
static void gpunn__copy_run(gpunn__cpu *cpu, gpunn__copy *c)
{
    /* Axes by falling stride of the target, those of one element dropped, neighbours that continue each other merged. */
    gpunn__copy s = *c;
    int64_t     count = 1;
    int64_t     unit = (int64_t)c->size;
    s.rank = 0;
    for (int d = 0; d < c->rank; d++) {
        if (c->dim[d] == 1) continue;
        int at = s.rank++;
        for (; at > 0 && s.to_stride[at - 1] < c->to_stride[d] * unit; at--) {
            s.dim[at] = s.dim[at - 1];
            s.to_stride[at] = s.to_stride[at - 1];
            s.from_stride[at] = s.from_stride[at - 1];
        }
        s.dim[at] = c->dim[d];
        s.to_stride[at] = c->to_stride[d] * unit;
        s.from_stride[at] = c->from_stride[d] * unit;
        count *= c->dim[d];
    }
    if (s.rank == 0) {
        s.rank = 1;
        s.dim[0] = 1;
        s.to_stride[0] = s.from_stride[0] = unit;
    }
    int last = 0;
    for (int d = 1; d < s.rank; d++) {
        bool merge = s.to_stride[last] == s.to_stride[d] * s.dim[d] && s.from_stride[last] == s.from_stride[d] * s.dim[d];
        if (!merge) last++;
        s.dim[last] = merge ? s.dim[last] * s.dim[d] : s.dim[d];
        s.to_stride[last] = s.to_stride[d];
        s.from_stride[last] = s.from_stride[d];
    }
    s.rank = last + 1;
    s.across = -1;
    if (s.to_stride[last] == unit && s.from_stride[last] != unit)
        for (int d = 0; d < last; d++)
            if (s.from_stride[d] == unit) s.across = d;
    s.outer = 1;
    for (int d = 0; d < last; d++)
        if (d != s.across) s.outer *= s.dim[d];
    gpunn__cpu_parallel(gpunn__cpu_threads(cpu, count), gpunn__copy_task, &s);
}

static void gpunn__strides(const gpunn_value *v, int64_t stride[GPUNN_MAX_RANK])
{
    int64_t step = 1;
    for (int d = v->rank - 1; d >= 0; d--) {
        stride[d] = step;
        step *= v->dim[d];
    }
}

/* Forward: the view of the result = the view of operand i; backward the same the other way round. A view is an offset and
 * strides, in elements, over the dimensions of `shape`. */
static void gpunn__cpu_move(gpunn__cpu *cpu, const gpunn_step *step, int i, const gpunn_value *shape, int64_t out_offset,
                            const int64_t *out_stride, int64_t in_offset, const int64_t *in_stride)
{
    gpunn__copy c;
    c.rank = shape->rank;
    c.size = gpunn_dtype_size(shape->dtype);
    c.add = step->backward && step->accumulate[i];
    size_t length = (size_t)shape->rank * sizeof *c.dim;
    memcpy(c.dim, shape->dim, length);
    memcpy(step->backward ? c.from_stride : c.to_stride, out_stride, length);
    memcpy(step->backward ? c.to_stride : c.from_stride, in_stride, length);
    if (step->backward) {
        c.to = (char *)step->grad_in[i].data + in_offset * (int64_t)c.size;
        c.from = (const char *)step->grad_out.data + out_offset * (int64_t)c.size;
    } else {
        c.to = (char *)step->out.data + out_offset * (int64_t)c.size;
        c.from = (const char *)step->in[i].data + in_offset * (int64_t)c.size;
    }
    gpunn__copy_run(cpu, &c);
}

/* n copies of one element. */
static void gpunn__fill(void *to, const void *element, size_t size, int64_t n)
{
    size_t bytes = (size_t)n * size, done = size;
    memcpy(to, element, size);
    while (done < bytes) { /* doubles what is there, but not beyond the first-level cache */
        size_t part = done < 16384 ? done : 16384;
        if (part > bytes - done) part = bytes - done;
        memcpy((char *)to + done, to, part);
        done += part;
    }
}

static gpunn_status gpunn__cpu_permute(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE || (step->backward && !step->grad_in[0].data)) return GPUNN_OK;
    const gpunn_value *out = &step->out;
    const gpunn_value *in = &step->in[0];
    int64_t            in_stride[GPUNN_MAX_RANK] = {0}, out_stride[GPUNN_MAX_RANK], stride[GPUNN_MAX_RANK];
    gpunn__strides(out, out_stride);
    gpunn__strides(in, in_stride);
    for (int d = 0; d < out->rank; d++) stride[d] = in_stride[step->attr->order[d]];
    gpunn__cpu_move(cpu, step, 0, out, 0, out_stride, 0, stride);
    return GPUNN_OK;
}

static gpunn_status gpunn__cpu_concat(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    const gpunn_value *out = &step->out;
    int64_t            in_stride[GPUNN_MAX_RANK], out_stride[GPUNN_MAX_RANK], offset = 0;
    gpunn__strides(out, out_stride);
    for (int i = 0; i < step->input_count; i++) {
        const gpunn_value *in = &step->in[i];
        gpunn__strides(in, in_stride);
        if (!step->backward || step->grad_in[i].data) gpunn__cpu_move(cpu, step, i, in, offset, out_stride, 0, in_stride);
        offset += in->dim[step->attr->axis] * out_stride[step->attr->axis];
    }
    return GPUNN_OK;
}

static gpunn_status gpunn__cpu_slice(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE || (step->backward && !step->grad_in[0].data)) return GPUNN_OK;
    const gpunn_value *out = &step->out;
    const gpunn_value *in = &step->in[0];
    int                axis = step->attr->axis;
    int64_t            in_stride[GPUNN_MAX_RANK], out_stride[GPUNN_MAX_RANK];
    gpunn__strides(out, out_stride);
    gpunn__strides(in, in_stride);
    int64_t offset = step->attr->start * in_stride[axis];
    in_stride[axis] *= step->attr->step;
    if (step->backward && !step->accumulate[0] && out->count < in->count)
        memset(step->grad_in[0].data, 0, (size_t)in->count * sizeof(float));
    gpunn__cpu_move(cpu, step, 0, out, 0, out_stride, offset, in_stride);
    return GPUNN_OK;
}

/* A number as one element of that type. */
static void gpunn__element(gpunn_dtype dtype, float value, void *element)
{
    int64_t integer = gpunn__to_i64(value);
    uint8_t flag = value != 0;
    if (dtype == GPUNN_F32)
        memcpy(element, &value, sizeof value);
    else if (dtype == GPUNN_BOOL)
        memcpy(element, &flag, 1);
    else
        memcpy(element, &integer, gpunn_dtype_size(dtype)); /* little-endian */
}

static gpunn_status gpunn__cpu_pad(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE) {
        gpunn_dtype dtype = step->out.dtype;
        if (dtype == GPUNN_F16 || dtype == GPUNN_BF16)
            return gpunn__cpu_fail(cpu, GPUNN_ERR_UNSUPPORTED, "the CPU cannot pad %s; cast to f32 first",
                                   gpunn_dtype_name(dtype));
        return GPUNN_OK;
    }
    if (step->backward && !step->grad_in[0].data) return GPUNN_OK;
    const gpunn_value *out = &step->out;
    const gpunn_value *in = &step->in[0];
    int64_t            in_stride[GPUNN_MAX_RANK], out_stride[GPUNN_MAX_RANK], offset = 0;
    gpunn__strides(out, out_stride);
    gpunn__strides(in, in_stride);
    for (int d = 0; d < out->rank; d++) offset += step->attr->before[d] * out_stride[d];
    if (!step->backward && out->count > in->count) {
        char element[8];
        gpunn__element(out->dtype, step->attr->value[0], element);
        gpunn__fill(out->data, element, gpunn_dtype_size(out->dtype), out->count);
    }
    gpunn__cpu_move(cpu, step, 0, in, offset, out_stride, 0, in_stride);
    return GPUNN_OK;
}

/* ---- sum and max over any set of axes ---------------------------------------------------------------------------------- *
 * Adjacent axes of one fate are merged. What remains is kept x planes x rows x columns: `kept` results (or rows of results), each
 * from `planes` blocks of rows * columns floats that lie together. Either columns are reduced too (columns_kept 1, rows holds the
 * length) or each column has its own result. Narrow rows are read several at once, side by side (fold), so that vectors are full.
 * Work is cut into units (result, tile of columns, chunk of the reduction) that depend on the shape alone. */
#define GPUNN__TILE 256
typedef enum gpunn__reduce_kind {
    GPUNN__SUM,
    GPUNN__MAX,
    GPUNN__TOP,  /* the maximum of what is not NaN */
    GPUNN__COUNT /* of what equals the maximum */
} gpunn__reduce_kind;

typedef struct gpunn__reduce {
    gpunn__reduce_kind kind;
    bool               by_column; /* the last axis is kept */
    bool               add;       /* backward: += */
    int                kept_rank, plane_rank;
    int64_t      kept_dim[GPUNN_MAX_RANK], kept_stride[GPUNN_MAX_RANK], plane_dim[GPUNN_MAX_RANK], plane_stride[GPUNN_MAX_RANK];
    int64_t      kept, planes, rows, columns, fold, tiles, chunks;
    const float *x, *reference;    /* reference: the maxima, for COUNT and the gradient of MAX */
    float       *y;                /* results; backward: the operand's gradient */
    double      *partial;          /* [kept][tiles][chunks][TILE or 1]; NULL with one chunk */
    const float *gradient, *equal; /* backward: of the result; MAX: how many elements equal it */
    double       scale;            /* 1 or, for means, 1 / elements */
} gpunn__reduce;

static void gpunn__reduce_shape(gpunn__reduce *r, const gpunn_value *in, uint32_t axes)
{
    int64_t size[GPUNN_MAX_RANK], stride[GPUNN_MAX_RANK], step = 1;
    bool    reduced[GPUNN_MAX_RANK];
    int     groups = 0; /* from the last axis to the first */
    for (int d = in->rank - 1; d >= 0; d--) {
        bool fate = (axes >> d & 1) != 0;
        if (in->dim[d] == 1) continue;
        if (groups == 0 || reduced[groups - 1] != fate) {
            reduced[groups] = fate;
            size[groups] = 1;
            stride[groups++] = step;
        }
        size[groups - 1] *= in->dim[d];
        step *= in->dim[d];
    }
    r->by_column = groups > 0 && !reduced[0];
    r->columns = r->by_column ? size[0] : 1;
    int next = r->by_column ? 1 : 0;
    r->rows = next < groups ? size[next++] : 1;
    r->kept_rank = r->plane_rank = 0;
    r->kept = r->planes = 1;
    for (; next < groups; next++)
        if (reduced[next]) {
            r->plane_dim[r->plane_rank] = size[next];
            r->plane_stride[r->plane_rank++] = stride[next];
            r->planes *= size[next];
        } else {
            r->kept_dim[r->kept_rank] = size[next];
            r->kept_stride[r->kept_rank++] = stride[next];
            r->kept *= size[next];
        }
    r->fold = r->by_column && r->columns <= GPUNN__TILE / 2 ? GPUNN__TILE / r->columns : 1;
    r->tiles = (r->columns + GPUNN__TILE - 1) / GPUNN__TILE;
    r->chunks = 1;
    if (r->kept * r->tiles < 32) {
        int64_t chunks = in->count / (r->kept * r->tiles) / 32768;
        r->chunks = chunks < 1 ? 1 : gpunn__least(chunks, 64);
    }
}

static size_t gpunn__reduce_partial_bytes(const gpunn__reduce *r)
{
    if (r->chunks == 1) return 0;
    return (size_t)(r->kept * r->tiles * r->chunks * (r->by_column ? GPUNN__TILE : 1)) * sizeof(double);
}

/* Where position `index` of axes listed from the last to the first begins. */
GPUNN__INLINE int64_t gpunn__offset(int64_t index, int rank, const int64_t *dim, const int64_t *stride)
{
    int64_t offset = 0;
    for (int d = 0; d < rank; d++) {
        int64_t rest = d + 1 < rank ? index / dim[d] : 0;
        offset += (index - rest * dim[d]) * stride[d];
        index = rest;
    }
    return offset;
}

GPUNN__INLINE float gpunn__start(gpunn__reduce_kind kind)
{
    return kind == GPUNN__MAX || kind == GPUNN__TOP ? -INFINITY : 0;
}

/* NaN, once there, stays. */
GPUNN__INLINE float gpunn__join(gpunn__reduce_kind kind, float a, float x, float reference)
{
    if (kind == GPUNN__SUM) return a + x;
    if (kind == GPUNN__MAX) return gpunn__select((x > a) | (x != x), x, a);
    if (kind == GPUNN__TOP) return x > a ? x : a;
    return a + (x == reference ? 1.0f : 0.0f);
}

GPUNN__INLINE double gpunn__join_wide(gpunn__reduce_kind kind, double a, double x)
{
    if (kind == GPUNN__TOP) return x > a ? x : a;
    return kind == GPUNN__MAX ? (x > a || x != x ? x : a) : a + x;
}

/* One value from 16 side by side, always in the same order. */
GPUNN__INLINE float gpunn__join_lanes(gpunn__reduce_kind kind, const float *lane)
{
    float eight[8], four[4];
    for (int j = 0; j < 8; j++) eight[j] = gpunn__join(kind, lane[j], lane[j + 8], 0);
    for (int j = 0; j < 4; j++) four[j] = gpunn__join(kind, eight[j], eight[j + 4], 0);
    return gpunn__join(kind, gpunn__join(kind, four[0], four[2], 0), gpunn__join(kind, four[1], four[3], 0), 0);
}

/* n floats that lie together: 32 results side by side over at most 2048 elements, then in double. */
GPUNN__INLINE double gpunn__reduce_line(gpunn__reduce_kind kind, const float *GPUNN__RESTRICT x, int64_t n, float reference)
{
    enum { LANES = 32, FEW = 8, BLOCK = 2048 };
    gpunn__reduce_kind join = kind == GPUNN__COUNT ? GPUNN__SUM : kind;
    double             total = (double)gpunn__start(kind);
    for (; n > 0; n -= BLOCK, x += BLOCK) {
        int64_t block = gpunn__least(n, BLOCK), i = 0;
        float   lane[LANES], rest = gpunn__start(kind);
        for (int j = 0; j < LANES; j++) lane[j] = rest;
        for (; i + LANES <= block; i += LANES)
            for (int j = 0; j < LANES; j++) lane[j] = gpunn__join(kind, lane[j], x[i + j], reference);
        for (; i + FEW <= block; i += FEW)
            for (int j = 0; j < FEW; j++) lane[j] = gpunn__join(kind, lane[j], x[i + j], reference);
        for (; i < block; i++) rest = gpunn__join(kind, rest, x[i], reference);
        for (int j = 0; j < LANES / 2; j++) lane[j] = gpunn__join(join, lane[j], lane[j + LANES / 2], 0);
        total = gpunn__join_wide(kind, total, (double)gpunn__join(join, gpunn__join_lanes(join, lane), rest, 0));
    }
    return total;
}

static double gpunn__sum_line(const float *x, int64_t n)
{
    return gpunn__reduce_line(GPUNN__SUM, x, n, 0);
}

static float gpunn__max_line(const float *x, int64_t n)
{
    return (float)gpunn__reduce_line(GPUNN__MAX, x, n, 0);
}

static double gpunn__count_line(const float *x, int64_t n, float reference)
{
    return gpunn__reduce_line(GPUNN__COUNT, x, n, reference);
}

/* Adds `rows` rows of `width` floats, `stride` apart, to total[width]: up to 64 rows in float, then in double. */
GPUNN__INLINE void gpunn__reduce_rows(gpunn__reduce_kind kind, const float *x, int64_t rows, int64_t stride, int64_t width,
                                      const float *GPUNN__RESTRICT reference, double *GPUNN__RESTRICT total)
{
    float sum[GPUNN__TILE];
    while (rows > 0) {
        int64_t block = gpunn__least(rows, 64), row = 0;
        for (int64_t j = 0; j < width; j++) sum[j] = gpunn__start(kind);
        for (; row + 4 <= block; row += 4) {
            const float *a = x + row * stride, *b = a + stride, *c = b + stride, *d = c + stride;
            for (int64_t j = 0; j < width; j++) {
                float ref = kind == GPUNN__COUNT ? reference[j] : 0;
                sum[j] = gpunn__join(
                    kind, gpunn__join(kind, gpunn__join(kind, gpunn__join(kind, sum[j], a[j], ref), b[j], ref), c[j], ref), d[j],
                    ref);
            }
        }
        for (; row < block; row++) {
            const float *a = x + row * stride;
            for (int64_t j = 0; j < width; j++) sum[j] = gpunn__join(kind, sum[j], a[j], kind == GPUNN__COUNT ? reference[j] : 0);
        }
        for (int64_t j = 0; j < width; j++) total[j] = gpunn__join_wide(kind, total[j], (double)sum[j]);
        x += block * stride;
        rows -= block;
    }
}

static void gpunn__reduce_block(gpunn__reduce_kind kind, const float *x, int64_t rows, int64_t stride, int64_t width,
                                const float *reference, double *total)
{
    if (kind == GPUNN__SUM)
        gpunn__reduce_rows(GPUNN__SUM, x, rows, stride, width, reference, total);
    else if (kind == GPUNN__MAX)
        gpunn__reduce_rows(GPUNN__MAX, x, rows, stride, width, reference, total);
    else
        gpunn__reduce_rows(GPUNN__COUNT, x, rows, stride, width, reference, total);
}

/* row[columns] side by side, as often as rows are folded. */
static const float *gpunn__widen(const float *row, int64_t columns, int64_t fold, float *buffer)
{
    if (fold == 1) return row;
    for (int64_t i = 0; i < fold; i++)
        for (int64_t j = 0; j < columns; j++) buffer[i * columns + j] = row[j];
    return buffer;
}

static void gpunn__reduce_task(void *arg, int thread, int threads)
{
    const gpunn__reduce     *r = (const gpunn__reduce *)arg;
    const gpunn__reduce_kind kind = r->kind;
    int64_t                  begin, end;
    gpunn__cpu_part(r->kept * r->tiles * r->chunks, 1, threads, thread, &begin, &end);
    double total[GPUNN__TILE];
    float  buffer[GPUNN__TILE];
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t chunk = r->chunks > 1 ? unit % r->chunks : 0, tile_index = r->chunks > 1 ? unit / r->chunks : unit;
        int64_t kept = r->tiles > 1 ? tile_index / r->tiles : tile_index, column = (tile_index - kept * r->tiles) * GPUNN__TILE;
        int64_t width = gpunn__least(r->columns - column, GPUNN__TILE);
        const float *x = r->x + gpunn__offset(kept, r->kept_rank, r->kept_dim, r->kept_stride) + column;
        const float *reference = kind == GPUNN__COUNT ? r->reference + kept * r->columns + column : NULL;
        int64_t      from, to;
        gpunn__cpu_part(r->planes * r->rows, r->fold, (int)r->chunks, (int)chunk, &from, &to);
        if (r->by_column) {
            if (kind == GPUNN__COUNT) reference = gpunn__widen(reference, width, r->fold, buffer);
            for (int64_t j = 0; j < width * r->fold; j++) total[j] = (double)gpunn__start(kind);
        } else
            total[0] = (double)gpunn__start(kind);
        while (from < to) {
            int64_t      plane = r->planes > 1 ? from / r->rows : 0, row = from - plane * r->rows;
            int64_t      count = gpunn__least(r->rows - row, to - from);
            const float *p = x + gpunn__offset(plane, r->plane_rank, r->plane_dim, r->plane_stride) + row * r->columns;
            if (!r->by_column)
                total[0] = gpunn__join_wide(kind, total[0],
                                            kind == GPUNN__SUM   ? gpunn__sum_line(p, count)
                                            : kind == GPUNN__MAX ? (double)gpunn__max_line(p, count)
                                                                 : gpunn__count_line(p, count, *reference));
            else {
                int64_t whole = count / r->fold;
                gpunn__reduce_block(kind, p, whole, r->columns * r->fold, width * r->fold, reference, total);
                if (count > whole * r->fold)
                    gpunn__reduce_block(kind, p + whole * r->fold * r->columns, 1, 0, (count - whole * r->fold) * width,
                                        reference, total);
            }
            from += count;
        }
        for (int64_t i = 1; i < r->fold; i++)
            for (int64_t j = 0; j < width; j++) total[j] = gpunn__join_wide(kind, total[j], total[i * width + j]);
        if (r->partial)
            memcpy(r->partial + unit * (r->by_column ? GPUNN__TILE : 1), total, (size_t)width * sizeof *total);
        else
            for (int64_t j = 0; j < width; j++) r->y[kept * r->columns + column + j] = (float)(total[j] * r->scale);
    }
}

static void gpunn__reduce_run(gpunn__cpu *cpu, const gpunn_value *in, gpunn__reduce *r)
{
    gpunn__cpu_parallel(gpunn__cpu_threads(cpu, in->count), gpunn__reduce_task, r);
    if (r->chunks == 1) return;
    int64_t span = r->by_column ? GPUNN__TILE : 1;
    for (int64_t unit = 0; unit < r->kept * r->tiles; unit++) {
        int64_t kept = unit / r->tiles, column = unit % r->tiles * GPUNN__TILE;
        int64_t width = gpunn__least(r->columns - column, GPUNN__TILE);
        double *total = r->partial + unit * r->chunks * span;
        for (int64_t chunk = 1; chunk < r->chunks; chunk++)
            for (int64_t j = 0; j < width; j++) total[j] = gpunn__join_wide(r->kind, total[j], total[chunk * span + j]);
        for (int64_t j = 0; j < width; j++) r->y[kept * r->columns + column + j] = (float)(total[j] * r->scale);
    }
}

/* One line of the gradient: dx[i] (+)= x[i] is the maximum ? hit : miss; for sums, without x, hit. hit, miss and reference hold
 * one value per element or (single) one for all. */
GPUNN__INLINE void gpunn__spread_line(float *GPUNN__RESTRICT dx, const float *GPUNN__RESTRICT x, const float *hit,
                                      const float *miss, const float *reference, int64_t n, bool single, bool max, bool add)
{
    float hit0 = hit[0], miss0 = miss[0], reference0 = reference[0];
    for (int64_t i = 0; i < n; i++) {
        float value = single ? hit0 : hit[i];
        if (max) {
            float other = single ? miss0 : miss[i];
            value = x[i] == (single ? reference0 : reference[i]) ? value : other;
        }
        dx[i] = add ? dx[i] + value : value;
    }
}

static void gpunn__spread_sum(float *dx, const float *hit, int64_t n, bool single, bool add)
{
    if (single)
        GPUNN__FIXED(add, gpunn__spread_line, dx, NULL, hit, hit, hit, n, true, false);
    else
        GPUNN__FIXED(add, gpunn__spread_line, dx, NULL, hit, hit, hit, n, false, false);
}

static void gpunn__spread_max(float *dx, const float *x, const float *hit, const float *miss, const float *reference, int64_t n,
                              bool single, bool add)
{
    if (single)
        GPUNN__FIXED(add, gpunn__spread_line, dx, x, hit, miss, reference, n, true, true);
    else
        GPUNN__FIXED(add, gpunn__spread_line, dx, x, hit, miss, reference, n, false, true);
}

/* The gradient of both: each thread takes whole blocks of rows, or a share of the rows of all when blocks are few. */
static void gpunn__spread_task(void *arg, int thread, int threads)
{
    enum { WIDTH = 1024 };
    const gpunn__reduce *r = (const gpunn__reduce *)arg;
    int64_t              begin = 0, end = r->kept * r->planes, first = 0, limit = r->rows;
    if (end >= threads * 4)
        gpunn__cpu_part(end, 1, threads, thread, &begin, &end);
    else
        gpunn__cpu_part(r->rows, r->fold, threads, thread, &first, &limit);
    float   hit[WIDTH], miss[WIDTH], reference[WIDTH];
    bool    is_max = r->kind == GPUNN__MAX;
    int64_t previous = -1;
    for (int64_t column = 0; column < r->columns; column += WIDTH, previous = -1) {
        int64_t width = gpunn__least(r->columns - column, WIDTH), wide = width * r->fold;
        for (int64_t block = begin; block < end; block++) {
            int64_t kept = r->planes > 1 ? block / r->planes : block, plane = block - kept * r->planes;
            int64_t at = gpunn__offset(kept, r->kept_rank, r->kept_dim, r->kept_stride) +
                         gpunn__offset(plane, r->plane_rank, r->plane_dim, r->plane_stride) + column;
            if (kept != previous) {
                int64_t result = kept * r->columns + column;
                for (int64_t j = 0; j < width; j++) {
                    float g = r->gradient[result + j];
                    hit[j] = is_max ? g / r->equal[result + j] : (float)((double)g * r->scale);
                    if (is_max) { /* torch's mask * g / count: NaN all over where the maximum is NaN */
                        miss[j] = g * 0 / r->equal[result + j];
                        reference[j] = r->reference[result + j];
                    }
                }
                for (int64_t j = width; j < wide; j++) {
                    hit[j] = hit[j - width];
                    miss[j] = is_max ? miss[j - width] : 0;
                    reference[j] = is_max ? reference[j - width] : 0;
                }
                previous = kept;
            }
            /* lines: all of a column's rows, or as many rows at once as are folded */
            int64_t step = r->by_column ? r->fold : limit - first;
            for (int64_t row = first; row < limit; row += step) {
                int64_t n = gpunn__least(limit - row, step) * (r->by_column ? width : 1), offset = at + row * r->columns;
                if (is_max)
                    gpunn__spread_max(r->y + offset, r->x + offset, hit, miss, reference, n, !r->by_column, r->add);
                else
                    gpunn__spread_sum(r->y + offset, hit, n, !r->by_column, r->add);
            }
        }
    }
}

static gpunn_status gpunn__cpu_reduce(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action, gpunn__reduce_kind kind)
{
    const gpunn_value *in = &step->in[0];
    const gpunn_value *out = &step->out;
    gpunn__reduce      r;
    gpunn__reduce_shape(&r, &step->in[0], step->attr->axes);
    size_t partial_bytes = gpunn__reduce_partial_bytes(&r);
    size_t equal_bytes = step->backward && kind == GPUNN__MAX ? (size_t)out->count * sizeof(float) : 0;
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = step->backward && kind == GPUNN__SUM ? 0 : partial_bytes + equal_bytes;
        return GPUNN_OK;
    }
    if (step->backward && !step->grad_in[0].data) return GPUNN_OK;
    r.kind = kind;
    r.partial = partial_bytes ? (double *)step->workspace : NULL;
    r.x = (const float *)step->in[0].data;
    r.scale = step->attr->mean ? (double)out->count / (double)in->count : 1;
    if (action == GPUNN__FORWARD) {
        r.y = (float *)out->data;
        gpunn__reduce_run(cpu, in, &r);
        return GPUNN_OK;
    }
    r.reference = (const float *)step->out.data;
    r.equal = NULL;
    if (kind == GPUNN__MAX) {
        float *equal = (float *)(void *)((char *)step->workspace + partial_bytes);
        r.kind = GPUNN__COUNT;
        r.y = equal;
        gpunn__reduce_run(cpu, in, &r);
        r.kind = GPUNN__MAX;
        r.equal = equal;
    }
    r.y = (float *)step->grad_in[0].data;
    r.gradient = (const float *)step->grad_out.data;
    r.add = step->accumulate[0];
    gpunn__cpu_parallel(gpunn__cpu_threads(cpu, in->count), gpunn__spread_task, &r);
    return GPUNN_OK;
}

static gpunn_status gpunn__cpu_sum(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__cpu_reduce(cpu, step, action, GPUNN__SUM);
}

static gpunn_status gpunn__cpu_max(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__cpu_reduce(cpu, step, action, GPUNN__MAX);
}

/* ---- along one axis ------------------------------------------------------------------------------------------------------ */
typedef struct gpunn__along {
    int64_t      outer, n, inner;
    const float *x, *y, *gradient;
    float       *out;
    int64_t     *index;
    bool         add, log;
} gpunn__along;

static void gpunn__along_axis(gpunn__along *a, const gpunn_value *v, int axis)
{
    a->outer = a->inner = 1;
    a->n = v->rank ? v->dim[axis] : 1;
    for (int d = 0; d < v->rank; d++) {
        if (d < axis) a->outer *= v->dim[d];
        if (d > axis) a->inner *= v->dim[d];
    }
}

/* ---- embedding and gather: elements that integers pick ---------------------------------------------------------------- *
 * out[o][j][i] = x[o][index[o][j][i]][i]. An embedding's index is [1][m][1] and serves all i, the columns of its weight. */
GPUNN__INLINE int64_t gpunn__integer(const void *data, gpunn_dtype dtype, int64_t i)
{
    if (dtype == GPUNN_I64) return ((const int64_t *)data)[i];
    if (dtype == GPUNN_I32) return ((const int32_t *)data)[i];
    return ((const uint8_t *)data)[i];
}

enum { GPUNN__PICK_PARTS = 64, GPUNN__PICK_BLOCK = 64 };
typedef struct gpunn__pick {
    const gpunn_value *index;
    int64_t            outer, m, n, inner;
    int64_t            padding;                           /* a row whose gradient stays as it is; -1: none */
    const float       *from;                              /* x, or the gradient of out */
    float             *to;                                /* out, or the gradient of x */
    bool               rows, add;                         /* rows: of an embedding */
    int64_t            part_size, bad[GPUNN__PICK_PARTS]; /* the first index out of range of each part; -1: none */
} gpunn__pick;

GPUNN__INLINE int64_t gpunn__picked(const gpunn__pick *p, int64_t at)
{
    return gpunn__integer(p->index->data, p->index->dtype, at);
}

static void gpunn__pick_part(gpunn__pick *p, int64_t part)
{
    int64_t begin = gpunn__least(part * p->part_size, p->index->count), end = gpunn__least(begin + p->part_size, p->index->count);
    int64_t inner = p->rows ? 1 : p->inner, line = begin / inner, i = begin - line * inner, j = line % p->m;
    const float *from = p->from + line / p->m * p->n * p->inner;
    p->bad[part] = -1;
    for (int64_t at = begin; at < end; at++) {
        int64_t index = gpunn__picked(p, at);
        if (index < 0 || index >= p->n) {
            p->bad[part] = at;
            return;
        }
        if (p->rows) {
            memcpy(p->to + at * p->inner, from + index * p->inner, (size_t)p->inner * sizeof *from);
            continue;
        }
        p->to[at] = from[index * inner + i];
        if (++i < inner) continue;
        i = 0;
        if (++j < p->m) continue;
        j = 0;
        from += p->n * inner;
    }
}

static void gpunn__pick_task(void *arg, int thread, int threads)
{
    gpunn__pick *p = (gpunn__pick *)arg;
    int64_t      begin, end;
    gpunn__cpu_part(GPUNN__PICK_PARTS, 1, threads, thread, &begin, &end);
    for (; begin < end; begin++) gpunn__pick_part(p, begin);
}

/* Each thread takes columns of its own, so that every element is summed in the order of the indices. */
static void gpunn__pick_back_task(void *arg, int thread, int threads)
{
    const gpunn__pick *p = (const gpunn__pick *)arg;
    int64_t            blocks = (p->inner + GPUNN__PICK_BLOCK - 1) / GPUNN__PICK_BLOCK, unit, end;
    if (!p->add) {
        gpunn__cpu_part(p->outer * p->n * p->inner, 16, threads, thread, &unit, &end);
        memset(p->to + unit, 0, (size_t)(end - unit) * sizeof *p->to);
        gpunn__cpu_barrier();
    }
    gpunn__cpu_part(p->outer * blocks, 1, threads, thread, &unit, &end);
    for (; unit < end; unit++) {
        int64_t      o = unit / blocks, column = (unit - o * blocks) * GPUNN__PICK_BLOCK;
        int64_t      width = gpunn__least(p->inner - column, GPUNN__PICK_BLOCK);
        float       *to = p->to + o * p->n * p->inner + column;
        const float *from = p->from + o * p->m * p->inner + column;
        for (int64_t j = 0; j < p->m; j++, from += p->inner) {
            if (p->rows) {
                int64_t                index = gpunn__picked(p, j);
                float *GPUNN__RESTRICT row = to + index * p->inner;
                if (index == p->padding) continue;
                for (int64_t i = 0; i < width; i++) row[i] += from[i];
            } else {
                int64_t at = (o * p->m + j) * p->inner + column;
                for (int64_t i = 0; i < width; i++) to[gpunn__picked(p, at + i) * p->inner + i] += from[i];
            }
        }
    }
}

/* table: which operand is picked from; the other is the index. */
static gpunn_status gpunn__pick_run(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action, gpunn__pick *p, int table)
{
    p->index = &step->in[1 - table];
    if (action == GPUNN__BACKWARD) {
        if (!step->grad_in[table].data) return GPUNN_OK;
        p->from = (const float *)step->grad_out.data;
        p->to = (float *)step->grad_in[table].data;
        p->add = step->accumulate[table];
        gpunn__cpu_parallel(gpunn__cpu_threads(cpu, step->out.count + (p->add ? 0 : step->in[table].count)),
                            gpunn__pick_back_task, p);
        return GPUNN_OK;
    }
    p->from = (const float *)step->in[table].data;
    p->to = (float *)step->out.data;
    p->part_size = (p->index->count + GPUNN__PICK_PARTS - 1) / GPUNN__PICK_PARTS;
    gpunn__cpu_parallel(gpunn__cpu_threads(cpu, step->out.count), gpunn__pick_task, p);
    for (int part = 0; part < GPUNN__PICK_PARTS; part++)
        if (p->bad[part] >= 0)
            return gpunn__cpu_fail(cpu, GPUNN_ERR_ARGUMENT, "%s %lld at position %lld is outside 0 .. %lld; check the %s",
                                   p->rows ? "token" : "index", (long long)gpunn__picked(p, p->bad[part]),
                                   (long long)p->bad[part], (long long)(p->n - 1), p->rows ? "tokens" : "indices");
    return GPUNN_OK;
}

static gpunn_status gpunn__cpu_embedding(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__pick p;
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    p.rows = true;
    p.outer = 1;
    p.m = step->in[0].count;
    p.n = step->in[1].dim[0];
    p.inner = step->in[1].dim[1];
    p.padding = step->attr->ignore_index;
    return gpunn__pick_run(cpu, step, action, &p, 1);
}

static gpunn_status gpunn__cpu_gather(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__pick  p;
    gpunn__along a;
    if (action == GPUNN__PREPARE) return GPUNN_OK;
    gpunn__along_axis(&a, &step->in[0], step->attr->axis);
    p.rows = false;
    p.outer = a.outer;
    p.m = step->out.dim[step->attr->axis];
    p.n = a.n;
    p.inner = a.inner;
    p.padding = -1;
    return gpunn__pick_run(cpu, step, action, &p, 0);
}

/* ---- argmax: x[outer][n][inner], the first maximum, NaN before everything --------------------------------------------- */
static void gpunn__argmax_task(void *arg, int thread, int threads)
{
    const gpunn__along *a = (const gpunn__along *)arg;
    enum { WIDTH = 64 };
    int64_t begin, end, n = a->n, inner = a->inner;
    gpunn__cpu_part(a->outer, 1, threads, thread, &begin, &end);
    for (int64_t o = begin; o < end; o++) {
        const float *x = a->x + o * n * inner;
        int64_t     *y = a->index + o * inner;
        if (inner == 1) {
            float   best = n >= 64 ? gpunn__max_line(x, n) : x[0];
            int64_t at = 0;
            if (n >= 64)
                while (x[at] != best && (best == best || x[at] == x[at])) at++;
            else
                for (int64_t i = 1; i < n; i++)
                    if (x[i] > best || (x[i] != x[i] && best == best)) {
                        best = x[i];
                        at = i;
                    }
            *y = at;
            continue;
        }
        for (int64_t column = 0; column < inner; column += WIDTH) {
            int64_t width = gpunn__least(inner - column, WIDTH);
            float   best[WIDTH];
            int32_t at[WIDTH];
            for (int64_t j = 0; j < width; j++) {
                best[j] = x[column + j];
                at[j] = 0;
            }
            for (int64_t i = 1; i < n; i++) {
                const float *row = x + i * inner + column;
                for (int64_t j = 0; j < width; j++) {
                    bool better = row[j] > best[j] || (row[j] != row[j] && best[j] == best[j]);
                    best[j] = better ? row[j] : best[j];
                    at[j] = better ? (int32_t)i : at[j];
                }
            }
            for (int64_t j = 0; j < width; j++) y[column + j] = at[j];
        }
    }
}

static gpunn_status gpunn__cpu_argmax(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    gpunn__along a;
    gpunn__along_axis(&a, &step->in[0], step->attr->axis);
    if (action == GPUNN__PREPARE) {
        if (a.n > INT32_MAX)
            return gpunn__cpu_fail(cpu, GPUNN_ERR_UNSUPPORTED, "argmax over %lld elements; the CPU can do 2^31 - 1",
                                   (long long)a.n);
        return GPUNN_OK;
    }
    a.x = (const float *)step->in[0].data;
    a.index = (int64_t *)step->out.data;
    gpunn__cpu_parallel(gpunn__cpu_threads(cpu, step->in[0].count), gpunn__argmax_task, &a);
    return GPUNN_OK;
}

/* ---- softmax and log_softmax along an axis: x[outer][n][inner] --------------------------------------------------------- *
 * Units of work are rows (inner 1) or n x 64 columns. NaN need not show in the maximum: it spreads through the sum. A row wholly
 * -inf gives NaN, as torch's does. */
#define GPUNN__COLUMNS 64

/* exp(x) for x <= 0; what would be denormal is 0, since processors are slow at denormals. */
GPUNN__INLINE float gpunn__exp_down(float x)
{
    return gpunn__select(x < -87.0f, 0, gpunn__exp(gpunn__select(x < -87.0f, -87.0f, x)));
}

/* top[j] = the maximum over i of x[i * stride + j], sum[j] = the sum of exp(x[i * stride + j] - top[j]); 1 <= width <=
 * GPUNN__COLUMNS. keep: the terms of the sum go to e. */
GPUNN__INLINE void gpunn__exp_columns(const float *GPUNN__RESTRICT x, int64_t n, int64_t stride, int64_t width,
                                      float *GPUNN__RESTRICT top, float *GPUNN__RESTRICT sum, float *GPUNN__RESTRICT e, bool keep)
{
    for (int64_t j = 0; j < width; j++) {
        top[j] = x[j];
        sum[j] = 0;
    }
    for (int64_t i = 1; i < n; i++)
        for (int64_t j = 0; j < width; j++) top[j] = gpunn__join(GPUNN__TOP, top[j], x[i * stride + j], 0);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++) {
            float term = gpunn__exp_down(x[i * stride + j] - top[j]);
            sum[j] += term;
            if (keep) e[i * stride + j] = term;
        }
}

/* The same for one row that lies together; returns the sum. */
GPUNN__INLINE float gpunn__exp_row(const float *GPUNN__RESTRICT x, int64_t n, float *top, float *GPUNN__RESTRICT e, bool keep)
{
    enum { BLOCK = 512 };
    double total = 0;
    float  buffer[BLOCK], largest = *top = (float)gpunn__reduce_line(GPUNN__TOP, x, n, 0);
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t      count = gpunn__least(n - i, BLOCK);
        float *const term = keep ? e + i : buffer;
        for (int64_t k = 0; k < count; k++) term[k] = gpunn__exp_down(x[i + k] - largest);
        total += gpunn__sum_line(term, count);
    }
    return (float)total;
}

/* Rows of inner 1, columns otherwise. */
static void gpunn__exp_keep(const float *x, int64_t n, int64_t inner, int64_t width, float *top, float *sum, float *e)
{
    if (inner == 1)
        *sum = gpunn__exp_row(x, n, top, e, true);
    else
        gpunn__exp_columns(x, n, inner, width, top, sum, e, true);
}

static void gpunn__exp_sum(const float *x, int64_t n, int64_t inner, int64_t width, float *top, float *sum)
{
    if (inner == 1)
        *sum = gpunn__exp_row(x, n, top, NULL, false);
    else
        gpunn__exp_columns(x, n, inner, width, top, sum, NULL, false);
}

/* Splits outer x tiles of columns over the threads; inner 1 is one tile. */
GPUNN__INLINE int64_t gpunn__along_units(const gpunn__along *a, int64_t *tiles)
{
    *tiles = (a->inner + GPUNN__COLUMNS - 1) / GPUNN__COLUMNS;
    return a->outer * *tiles;
}

/* Where a unit begins, and its width. */
GPUNN__INLINE int64_t gpunn__along_tile(const gpunn__along *a, int64_t unit, int64_t tiles, int64_t *at)
{
    int64_t outer = tiles > 1 ? unit / tiles : unit, column = (unit - outer * tiles) * GPUNN__COLUMNS;
    *at = outer * a->n * a->inner + column;
    return gpunn__least(a->inner - column, GPUNN__COLUMNS);
}

static void gpunn__softmax_task(void *arg, int thread, int threads)
{
    const gpunn__along *a = (const gpunn__along *)arg;
    int64_t             begin, end, tiles, units = gpunn__along_units(a, &tiles), n = a->n, inner = a->inner;
    gpunn__cpu_part(units, 1, threads, thread, &begin, &end);
    for (int64_t unit = begin; unit < end; unit++) {
        float                  top[GPUNN__COLUMNS], sum[GPUNN__COLUMNS];
        int64_t                at, width = gpunn__along_tile(a, unit, tiles, &at);
        const float           *x = a->x + at;
        float *GPUNN__RESTRICT y = a->out + at;
        if (a->log)
            gpunn__exp_sum(x, n, inner, width, top, sum);
        else
            gpunn__exp_keep(x, n, inner, width, top, sum, y);
        for (int64_t j = 0; j < width; j++) sum[j] = a->log ? gpunn__log(sum[j]) : 1 / sum[j];
        float first = top[0], second = sum[0];
        if (inner == 1 && a->log)
            for (int64_t i = 0; i < n; i++) y[i] = x[i] - first - second;
        else if (inner == 1)
            for (int64_t i = 0; i < n; i++) y[i] *= second;
        else if (a->log)
            for (int64_t i = 0; i < n; i++, x += inner, y += inner)
                for (int64_t j = 0; j < width; j++) y[j] = x[j] - top[j] - sum[j];
        else
            for (int64_t i = 0; i < n; i++, y += inner)
                for (int64_t j = 0; j < width; j++) y[j] *= sum[j];
    }
}

/* softmax: dx (+)= y (g - sum g y). log_softmax: dx (+)= g - exp(y) sum g. */
GPUNN__INLINE void gpunn__softmax_slope(float *GPUNN__RESTRICT dx, const float *GPUNN__RESTRICT y, const float *GPUNN__RESTRICT g,
                                        const float *sum, bool single, int64_t n, bool log, bool add)
{
    float sum0 = sum[0];
    for (int64_t i = 0; i < n; i++) {
        float s = single ? sum0 : sum[i], value = log ? g[i] - gpunn__exp_down(y[i]) * s : y[i] * (g[i] - s);
        dx[i] = add ? dx[i] + value : value;
    }
}

GPUNN__INLINE void gpunn__softmax_gradient(const gpunn__along *a, int64_t begin, int64_t end, int64_t tiles, bool log)
{
    int64_t n = a->n, inner = a->inner;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t      at, width = gpunn__along_tile(a, unit, tiles, &at);
        const float *y = a->y + at, *g = a->gradient + at;
        float       *dx = a->out + at;
        if (inner == 1) {
            enum { LANES = 16 };
            float   lane[LANES] = {0}, sum = 0;
            int64_t i = 0;
            for (; i + LANES <= n; i += LANES)
                for (int j = 0; j < LANES; j++) lane[j] += log ? g[i + j] : g[i + j] * y[i + j];
            for (; i < n; i++) sum += log ? g[i] : g[i] * y[i];
            sum += gpunn__join_lanes(GPUNN__SUM, lane);
            GPUNN__FIXED(a->add, gpunn__softmax_slope, dx, y, g, &sum, true, n, log);
        } else {
            float sum[GPUNN__COLUMNS];
            for (int64_t j = 0; j < width; j++) sum[j] = 0;
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j < width; j++) sum[j] += log ? g[i * inner + j] : g[i * inner + j] * y[i * inner + j];
            for (int64_t i = 0; i < n; i++, y += inner, g += inner, dx += inner)
                GPUNN__FIXED(a->add, gpunn__softmax_slope, dx, y, g, sum, false, width, log);
        }
    }
}

static void gpunn__softmax_gradient_task(void *arg, int thread, int threads)
{
    const gpunn__along *a = (const gpunn__along *)arg;
    int64_t             begin, end, tiles, units = gpunn__along_units(a, &tiles);
    gpunn__cpu_part(units, 1, threads, thread, &begin, &end);
    GPUNN__FIXED(a->log, gpunn__softmax_gradient, a, begin, end, tiles);
}

static gpunn_status gpunn__softmax_run(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action, bool log)
{
    if (action == GPUNN__PREPARE || (step->backward && !step->grad_in[0].data)) return GPUNN_OK;
    gpunn__along a;
    gpunn__along_axis(&a, &step->in[0], step->attr->axis);
    a.x = (const float *)step->in[0].data;
    a.y = (const float *)step->out.data;
    a.gradient = (const float *)step->grad_out.data;
    a.out = (float *)(step->backward ? step->grad_in[0].data : step->out.data);
    a.add = step->backward && step->accumulate[0];
    a.log = log;
    gpunn__cpu_parallel(gpunn__cpu_threads(cpu, 3 * step->in[0].count),
                        step->backward ? gpunn__softmax_gradient_task : gpunn__softmax_task, &a);
    return GPUNN_OK;
}

static gpunn_status gpunn__cpu_softmax(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__softmax_run(cpu, step, action, false);
}

static gpunn_status gpunn__cpu_log_softmax(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__softmax_run(cpu, step, action, true);
}
/* ==== >>norm ========================================================================================================== */

/* ---- batch_norm: x[n][channels][inner] ---------------------------------------------------------------------------------- *
 * y = (x - mean) * invstd * weight + bias. Backward (of training plans: others have no gradients), with m = n * inner values per
 * channel and h = x - mean:
 *     dbias = sum g, dweight = invstd * sum(g h), dx = weight * invstd * (g - sum g / m - h * invstd^2 * sum(g h) / m).
 * Each unit of work is one channel, read in lines of `inner` floats, or, where lines are short, as many channels as fit
 * GPUNN__NORM_WIDTH columns, read by rows. Moments are taken block by block about the mean so far and joined by Chan's formula in
 * double: where that mean is far off, the variance is large anyhow. */
#define GPUNN__NORM_WIDTH 64

typedef struct gpunn__norm {
    int64_t      n, channels, inner, group; /* group: channels of a unit */
    bool         by_row, training, add;
    const float *x, *g, *weight, *bias;
    float       *y;                                          /* or dx; NULL: not wanted */
    float       *running_mean, *running_var, *mean, *invstd; /* the last two: saved */
    float       *dweight, *dbias;
    bool         add_weight, add_bias;
    double       eps, momentum;
} gpunn__norm;

typedef struct gpunn__moments {
    double count, mean, square; /* square: sum of (x - mean)^2 */
} gpunn__moments;

GPUNN__INLINE void gpunn__moments_join(gpunn__moments *a, double count, double mean, double square)
{
    double delta = mean - a->mean, total = a->count + count;
    a->mean += delta * count / total;
    a->square += square + delta * delta * a->count * count / total;
    a->count = total;
}

/* sums[0] = sum of a - p, sums[1] = sum of (a - p) (b - q), over `lines` lines of n floats; 64 sums side by side. */
static void gpunn__norm_block(const float *GPUNN__RESTRICT a, float p, const float *GPUNN__RESTRICT b, float q, int64_t n,
                              int64_t lines, int64_t stride, double sums[2])
{
    float sum[GPUNN__NORM_WIDTH] = {0}, product[GPUNN__NORM_WIDTH] = {0};
    for (; lines > 0; lines--, a += stride, b += stride)
        for (int64_t i = 0; i < n; i += GPUNN__NORM_WIDTH) {
            int64_t width = gpunn__least(n - i, GPUNN__NORM_WIDTH);
            for (int64_t j = 0; j < width; j++) {
                sum[j] += a[i + j] - p;
                product[j] += (a[i + j] - p) * (b[i + j] - q);
            }
        }
    sums[0] = gpunn__sum_line(sum, GPUNN__NORM_WIDTH);
    sums[1] = gpunn__sum_line(product, GPUNN__NORM_WIDTH);
}

/* One channel, in blocks of whole lines of about 2048 floats together or pieces of longer ones: its moments or, with g, sum g and
 * sum g (x - center). */
static gpunn__moments gpunn__norm_lines(const gpunn__norm *b, int64_t channel, const float *g, float center, double sums[2])
{
    const int64_t  block = 2048, stride = b->channels * b->inner;
    gpunn__moments all = {0, 0, 0};
    const float   *start = b->x + channel * b->inner;
    int64_t        lines = b->inner < block ? block / b->inner : 1, length = gpunn__least(b->inner, block);
    if (!g) center = (float)(gpunn__sum_line(start, length) / (double)length);
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < b->n; i += lines)
        for (int64_t at = 0; at < b->inner; at += block) {
            int64_t      offset = i * stride + at, count = gpunn__least(b->n - i, lines), n = gpunn__least(b->inner - at, block);
            const float *x = start + offset;
            double       part[2];
            if (g) {
                gpunn__norm_block(g + channel * b->inner + offset, 0, x, center, n, count, stride, part);
                sums[0] += part[0];
                sums[1] += part[1];
            } else {
                gpunn__norm_block(x, center, x, center, n, count, stride, part);
                double values = (double)(n * count), off = part[0] / values;
                gpunn__moments_join(&all, values, (double)center + off, part[1] - part[0] * off);
                center = (float)all.mean;
            }
        }
    return all;
}

/* The same for `count` channels from the first, by blocks of rows. */
static void gpunn__norm_rows(const gpunn__norm *b, int64_t first, int64_t count, const float *g, const float *mean,
                             gpunn__moments *moments, double sums[][2])
{
    const int64_t  block = 64, stride = b->channels * b->inner, start = first * b->inner, width = count * b->inner;
    gpunn__moments all[GPUNN__NORM_WIDTH];
    double         total[GPUNN__NORM_WIDTH][2];
    float          center[GPUNN__NORM_WIDTH];
    memset(all, 0, sizeof all);
    memset(total, 0, sizeof total);
    for (int64_t j = 0; j < width; j++) center[j] = g ? mean[j / b->inner] : b->x[start + j];
    for (int64_t i = 0; i < b->n; i += block) {
        int64_t rows = gpunn__least(b->n - i, block);
        float   sum[GPUNN__NORM_WIDTH] = {0}, product[GPUNN__NORM_WIDTH] = {0};
        for (int64_t k = 0; k < rows; k++) {
            const float *x = b->x + start + (i + k) * stride, *slope = g ? g + start + (i + k) * stride : NULL;
            if (slope)
                for (int64_t j = 0; j < width; j++) {
                    sum[j] += slope[j];
                    product[j] += slope[j] * (x[j] - center[j]);
                }
            else
                for (int64_t j = 0; j < width; j++) {
                    sum[j] += x[j] - center[j];
                    product[j] += (x[j] - center[j]) * (x[j] - center[j]);
                }
        }
        for (int64_t j = 0; j < width; j++)
            if (g) {
                total[j][0] += (double)sum[j];
                total[j][1] += (double)product[j];
            } else {
                double off = (double)sum[j] / (double)rows;
                gpunn__moments_join(&all[j], (double)rows, (double)center[j] + off, (double)product[j] - (double)sum[j] * off);
                center[j] = (float)all[j].mean;
            }
    }
    for (int64_t c = 0; c < count; c++) {
        int64_t at = c * b->inner;
        for (int64_t j = at + 1; j < at + b->inner; j++) {
            total[at][0] += total[j][0];
            total[at][1] += total[j][1];
            if (!g) gpunn__moments_join(&all[at], all[j].count, all[j].mean, all[j].square);
        }
        moments[c] = all[at];
        sums[c][0] = total[at][0];
        sums[c][1] = total[at][1];
    }
}

/* y = (x - mean) * scale + shift, or dx (+)= (g - shift - (x - mean) * slope) * scale, by columns or (single) one for all. */
typedef struct gpunn__norm_constants {
    float mean[GPUNN__NORM_WIDTH], scale[GPUNN__NORM_WIDTH], shift[GPUNN__NORM_WIDTH], slope[GPUNN__NORM_WIDTH];
} gpunn__norm_constants;

GPUNN__INLINE void gpunn__norm_line(const gpunn__norm_constants *k, const float *GPUNN__RESTRICT x, float *GPUNN__RESTRICT y,
                                    int64_t n, bool single)
{
    float mean = k->mean[0], scale = k->scale[0], shift = k->shift[0];
    for (int64_t i = 0; i < n; i++)
        y[i] = single ? (x[i] - mean) * scale + shift : (x[i] - k->mean[i]) * k->scale[i] + k->shift[i];
}

GPUNN__INLINE void gpunn__norm_slope(const gpunn__norm_constants *k, const float *GPUNN__RESTRICT x,
                                     const float *GPUNN__RESTRICT g, float *GPUNN__RESTRICT dx, int64_t n, bool single, bool add)
{
    float mean = k->mean[0], scale = k->scale[0], shift = k->shift[0], slope = k->slope[0];
    for (int64_t i = 0; i < n; i++) {
        float value = single ? (g[i] - shift - (x[i] - mean) * slope) * scale
                             : (g[i] - k->shift[i] - (x[i] - k->mean[i]) * k->slope[i]) * k->scale[i];
        dx[i] = add ? dx[i] + value : value;
    }
}

static void gpunn__norm_apply(const gpunn__norm *b, int64_t first, int64_t count, gpunn__norm_constants *k)
{
    int64_t stride = b->channels * b->inner, at = first * b->inner, width = count * b->inner;
    if (b->by_row)
        for (int64_t j = width - 1; j >= 0; j--) { /* one constant per channel to one per column, from the end */
            k->mean[j] = k->mean[j / b->inner];
            k->scale[j] = k->scale[j / b->inner];
            k->shift[j] = k->shift[j / b->inner];
            k->slope[j] = k->slope[j / b->inner];
        }
    for (int64_t i = 0; i < b->n; i++, at += stride)
        if (!b->g)
            GPUNN__FIXED(!b->by_row, gpunn__norm_line, k, b->x + at, b->y + at, width);
        else if (b->by_row)
            GPUNN__FIXED(b->add, gpunn__norm_slope, k, b->x + at, b->g + at, b->y + at, width, false);
        else
            GPUNN__FIXED(b->add, gpunn__norm_slope, k, b->x + at, b->g + at, b->y + at, width, true);
}

static void gpunn__norm_forward_unit(const gpunn__norm *b, int64_t first, int64_t count)
{
    gpunn__moments        moments[GPUNN__NORM_WIDTH];
    gpunn__norm_constants k;
    double                unused[GPUNN__NORM_WIDTH][2];
    if (b->training && b->by_row)
        gpunn__norm_rows(b, first, count, NULL, NULL, moments, unused);
    else if (b->training)
        moments[0] = gpunn__norm_lines(b, first, NULL, 0, unused[0]);
    for (int64_t i = 0; i < count; i++) {
        int64_t c = first + i;
        double  mean, variance;
        if (b->training) {
            mean = moments[i].mean;
            variance = moments[i].square / moments[i].count;
            double unbiased = moments[i].square / (moments[i].count - 1);
            b->running_mean[c] = (float)((1 - b->momentum) * (double)b->running_mean[c] + b->momentum * mean);
            b->running_var[c] = (float)((1 - b->momentum) * (double)b->running_var[c] + b->momentum * unbiased);
        } else {
            mean = (double)b->running_mean[c];
            variance = (double)b->running_var[c];
        }
        double invstd = 1 / sqrt(variance + b->eps);
        if (b->training) {
            b->mean[c] = (float)mean;
            b->invstd[c] = (float)invstd;
        }
        k.mean[i] = (float)mean;
        k.scale[i] = (float)(invstd * (b->weight ? (double)b->weight[c] : 1));
        k.shift[i] = b->bias ? b->bias[c] : 0;
        k.slope[i] = 0;
    }
    gpunn__norm_apply(b, first, count, &k);
}

static void gpunn__norm_backward_unit(const gpunn__norm *b, int64_t first, int64_t count)
{
    gpunn__norm_constants k;
    gpunn__moments        unused[GPUNN__NORM_WIDTH];
    double                sums[GPUNN__NORM_WIDTH][2], invstd[GPUNN__NORM_WIDTH];
    for (int64_t i = 0; i < count; i++) {
        int64_t c = first + i;
        k.mean[i] = b->mean[c];
        invstd[i] = (double)b->invstd[c];
    }
    if (b->by_row)
        gpunn__norm_rows(b, first, count, b->g, k.mean, unused, sums);
    else
        (void)gpunn__norm_lines(b, first, b->g, k.mean[0], sums[0]);
    double values = (double)(b->n * b->inner);
    for (int64_t i = 0; i < count; i++) {
        int64_t c = first + i;
        float   dweight = (float)(invstd[i] * sums[i][1]), dbias = (float)sums[i][0];
        if (b->dweight) b->dweight[c] = (b->add_weight ? b->dweight[c] : 0) + dweight;
        if (b->dbias) b->dbias[c] = (b->add_bias ? b->dbias[c] : 0) + dbias;
        k.scale[i] = (float)(invstd[i] * (b->weight ? (double)b->weight[c] : 1));
        k.shift[i] = (float)(sums[i][0] / values);
        k.slope[i] = (float)(invstd[i] * invstd[i] * sums[i][1] / values);
    }
    if (b->y) gpunn__norm_apply(b, first, count, &k);
}

static void gpunn__norm_task(void *arg, int thread, int threads)
{
    const gpunn__norm *b = (const gpunn__norm *)arg;
    int64_t            begin, end;
    gpunn__cpu_part(b->channels, b->group, threads, thread, &begin, &end);
    for (; begin < end; begin += b->group) {
        int64_t count = gpunn__least(end - begin, b->group);
        if (b->g)
            gpunn__norm_backward_unit(b, begin, count);
        else
            gpunn__norm_forward_unit(b, begin, count);
    }
}

static gpunn_status gpunn__cpu_batch_norm(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *in = step->in;
    gpunn__norm        b;
    b.n = in[0].dim[0];
    b.channels = in[0].dim[1];
    b.inner = in[0].count / (b.n * b.channels);
    if (action == GPUNN__PREPARE) {
        if (step->training && b.n * b.inner == 1)
            return gpunn__cpu_fail(cpu, GPUNN_ERR_SHAPE,
                                   "expected more than 1 value per channel when training; use a larger batch");
        if (step->training && !step->backward) step->saved_bytes = 2 * (size_t)b.channels * sizeof(float);
        return GPUNN_OK;
    }
    b.by_row = b.inner < 16;
    b.group = b.by_row ? GPUNN__NORM_WIDTH / b.inner : 1;
    b.training = step->training;
    b.eps = (double)step->attr->eps;
    b.momentum = (double)step->attr->momentum;
    b.x = (const float *)in[0].data;
    b.weight = (const float *)in[1].data;
    b.bias = (const float *)in[2].data;
    b.running_mean = (float *)in[3].data;
    b.running_var = (float *)in[4].data;
    b.mean = (float *)step->saved;
    b.invstd = b.mean ? b.mean + b.channels : NULL;
    b.g = NULL;
    b.y = (float *)step->out.data;
    b.add = false;
    if (action == GPUNN__BACKWARD) {
        b.g = (const float *)step->grad_out.data;
        b.y = (float *)step->grad_in[0].data;
        b.dweight = (float *)step->grad_in[1].data;
        b.dbias = (float *)step->grad_in[2].data;
        b.add = step->accumulate[0];
        b.add_weight = step->accumulate[1];
        b.add_bias = step->accumulate[2];
    }
    gpunn__cpu_parallel(gpunn__cpu_threads(cpu, in[0].count), gpunn__norm_task, &b);
    return GPUNN_OK;
}

/* ---- layer_norm and rms_norm: x[rows][n] -------------------------------------------------------------------------------- *
 * y = h * rstd * weight + bias with h = x - mean of the row; rms_norm: h = x. Backward, with k = g * weight:
 *     dbias = sum g, dweight = sum(g h rstd) over the rows, dx = rstd * (k - mean of k - h * rstd^2 * mean of k h);
 * rms_norm: without the mean of k. Rows are dealt to slices, whose number depends on the shape alone; each sums dweight and dbias
 * of its rows, up to 64 in float, then in double, and the slices' sums are added in order. */
enum { GPUNN__ROW_GROUP = 4 }; /* rows whose gradients are made together */

typedef struct gpunn__row_norm {
    int64_t      rows, n, slices;
    bool         centered, add, add_weight, add_bias; /* centered: layer_norm */
    const float *x, *g, *weight, *bias;               /* g: backward; the last two may be NULL */
    float       *y;                                   /* or dx; NULL: not wanted */
    float       *rstd, *mean;                         /* [rows], saved; NULL: not wanted; rms_norm has no mean */
    float       *dweight, *dbias;
    double      *partial; /* affine: [slices][each], of which [2][n] are sums of dweight and dbias */
    int64_t      each;
    double       eps;
} gpunn__row_norm;

typedef enum gpunn__row_term {
    GPUNN__ROW_MOMENTS, /* x - center */
    GPUNN__ROW_PLAIN,   /* g */
    GPUNN__ROW_SCALED   /* g * weight */
} gpunn__row_term;

/* sums[0] = sum of the terms, sums[1] = sum of term * (x - center): 32 side by side over at most 2048 elements, then double. */
GPUNN__INLINE void gpunn__row_sums(gpunn__row_term kind, const float *GPUNN__RESTRICT x, const float *GPUNN__RESTRICT g,
                                   const float *GPUNN__RESTRICT weight, float center, int64_t n, double sums[2])
{
    enum { LANES = 32, FEW = 8, BLOCK = 2048 };
#define GPUNN__TERM(at) (kind == GPUNN__ROW_MOMENTS ? x[at] - center : kind == GPUNN__ROW_PLAIN ? g[at] : g[at] * weight[at])
    sums[0] = sums[1] = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t end = gpunn__least(n, start + BLOCK), i = start;
        float   sum[LANES] = {0}, product[LANES] = {0};
        for (; i + LANES <= end; i += LANES)
            for (int j = 0; j < LANES; j++) {
                float term = GPUNN__TERM(i + j);
                sum[j] += term;
                product[j] += term * (x[i + j] - center);
            }
        for (; i + FEW <= end; i += FEW)
            for (int j = 0; j < FEW; j++) {
                float term = GPUNN__TERM(i + j);
                sum[j] += term;
                product[j] += term * (x[i + j] - center);
            }
        for (int j = 0; i < end; i++, j++) {
            float term = GPUNN__TERM(i);
            sum[j] += term;
            product[j] += term * (x[i] - center);
        }
        if (end - start >= LANES)
            for (int j = 0; j < FEW; j++) {
                sum[j] += (sum[j + FEW] + sum[j + 2 * FEW]) + sum[j + 3 * FEW];
                product[j] += (product[j + FEW] + product[j + 2 * FEW]) + product[j + 3 * FEW];
            }
        for (int half = FEW / 2; half > 0; half /= 2)
            for (int j = 0; j < half; j++) {
                sum[j] += sum[j + half];
                product[j] += product[j + half];
            }
        sums[0] += (double)sum[0];
        sums[1] += (double)product[0];
    }
#undef GPUNN__TERM
}

static void gpunn__row_slope_sums(const float *x, const float *g, const float *weight, float mean, int64_t n, double sums[2])
{
    if (weight)
        gpunn__row_sums(GPUNN__ROW_SCALED, x, g, weight, mean, n, sums);
    else
        gpunn__row_sums(GPUNN__ROW_PLAIN, x, g, NULL, mean, n, sums);
}

GPUNN__INLINE void gpunn__row_apply(const float *GPUNN__RESTRICT x, const float *GPUNN__RESTRICT weight,
                                    const float *GPUNN__RESTRICT bias, float *GPUNN__RESTRICT y, float mean, float rstd,
                                    int64_t n, bool affine, bool shifted)
{
    for (int64_t i = 0; i < n; i++) {
        float value = (x[i] - mean) * rstd;
        if (affine) value *= weight[i];
        y[i] = shifted ? value + bias[i] : value;
    }
}

/* What the gradients of a group of rows are made of. */
typedef struct gpunn__row_group {
    const float *x[GPUNN__ROW_GROUP], *g[GPUNN__ROW_GROUP];
    float       *dx[GPUNN__ROW_GROUP];
    float        mean[GPUNN__ROW_GROUP], rstd[GPUNN__ROW_GROUP], shift[GPUNN__ROW_GROUP], slope[GPUNN__ROW_GROUP];
} gpunn__row_group;

/* dx of the group, or (single) of its first row; affine: adds what they give dweight and dbias to sums[2][n]. */
GPUNN__INLINE void gpunn__row_slopes(const gpunn__row_group *k, const float *weight, float *sums, int64_t n, bool single,
                                     bool affine, bool add)
{
    gpunn__row_group r = *k;
#define GPUNN__ROW(j)                                                                       \
    {                                                                                       \
        float h = r.x[j][i] - r.mean[j], g = r.g[j][i];                                     \
        float value = ((affine ? g * scale : g) - r.shift[j] - h * r.slope[j]) * r.rstd[j]; \
        dweight += g * (h * r.rstd[j]);                                                     \
        dbias += g;                                                                         \
        r.dx[j][i] = add ? r.dx[j][i] + value : value;                                      \
    }
    GPUNN__IVDEP
    for (int64_t i = 0; i < n; i++) {
        float scale = affine ? weight[i] : 1, dweight = 0, dbias = 0;
        GPUNN__ROW(0)
        if (!single) GPUNN__ROW(1)
        if (!single) GPUNN__ROW(2)
        if (!single) GPUNN__ROW(3)
        if (affine) {
            sums[i] += dweight;
            sums[n + i] += dbias;
        }
    }
#undef GPUNN__ROW
}

static void gpunn__row_norm_forward(const gpunn__row_norm *b, int64_t row)
{
    const float *x = b->x + row * b->n;
    float       *y = b->y + row * b->n, center = 0;
    double       sums[2], mean = 0, n = (double)b->n;
    if (b->centered) center = (float)(gpunn__sum_line(x, b->n) / n);
    gpunn__row_sums(GPUNN__ROW_MOMENTS, x, NULL, NULL, center, b->n, sums);
    if (b->centered) { /* what center lacks of the mean */
        mean = sums[0] / n;
        sums[1] -= sums[0] * mean;
        mean += (double)center;
    }
    float rstd = (float)(1 / sqrt(sums[1] / n + b->eps));
    if (b->rstd) b->rstd[row] = rstd;
    if (b->mean) b->mean[row] = (float)mean;
    if (b->weight)
        GPUNN__FIXED(b->bias, gpunn__row_apply, x, b->weight, b->bias, y, (float)mean, rstd, b->n, true);
    else
        gpunn__row_apply(x, NULL, NULL, y, (float)mean, rstd, b->n, false, false);
}

/* The group from `row` on, or that row alone; sums as above, scratch[GPUNN__ROW_GROUP][n]: for dx that nobody wants. */
GPUNN__INLINE void gpunn__row_norm_backward(const gpunn__row_norm *b, int64_t row, bool single, float *sums, float *scratch)
{
    gpunn__row_group k;
    double           part[2], n = (double)b->n;
    memset(&k, 0, sizeof k);
    for (int j = 0; j < (single ? 1 : GPUNN__ROW_GROUP); j++) {
        int64_t at = (row + j) * b->n;
        k.x[j] = b->x + at;
        k.g[j] = b->g + at;
        k.dx[j] = b->y ? b->y + at : scratch + j * b->n;
        k.mean[j] = b->mean ? b->mean[row + j] : 0;
        k.rstd[j] = b->rstd[row + j];
        gpunn__row_slope_sums(k.x[j], k.g[j], b->weight, k.mean[j], b->n, part);
        k.shift[j] = b->centered ? (float)(part[0] / n) : 0;
        k.slope[j] = (float)((double)k.rstd[j] * (double)k.rstd[j] * part[1] / n);
    }
    if (b->weight)
        GPUNN__FIXED(b->add, gpunn__row_slopes, &k, b->weight, sums, b->n, single, true);
    else
        GPUNN__FIXED(b->add, gpunn__row_slopes, &k, NULL, NULL, b->n, single, false);
}

static void gpunn__row_norm_task(void *arg, int thread, int threads)
{
    const gpunn__row_norm *b = (const gpunn__row_norm *)arg;
    int64_t                slice, end, from, to;
    if (!b->g) {
        gpunn__cpu_part(b->rows, 1, threads, thread, &from, &to);
        for (; from < to; from++) gpunn__row_norm_forward(b, from);
        return;
    }
    gpunn__cpu_part(b->slices, 1, threads, thread, &slice, &end);
    for (; slice < end; slice++) {
        double *total = b->partial ? b->partial + slice * b->each : NULL;
        float  *sums = total ? (float *)(void *)(total + 2 * b->n) : NULL, *scratch = total ? sums + 2 * b->n : NULL;
        if (total) memset(total, 0, 2 * (size_t)b->n * sizeof *total);
        gpunn__cpu_part(b->rows, GPUNN__ROW_GROUP, (int)b->slices, (int)slice, &from, &to);
        while (from < to) {
            int64_t rest = gpunn__least(to, from + 64);
            if (total) memset(sums, 0, 2 * (size_t)b->n * sizeof *sums);
            for (; from + GPUNN__ROW_GROUP <= rest; from += GPUNN__ROW_GROUP)
                gpunn__row_norm_backward(b, from, false, sums, scratch);
            for (; from < rest; from++) gpunn__row_norm_backward(b, from, true, sums, scratch);
            for (int64_t j = 0; total && j < 2 * b->n; j++) total[j] += (double)sums[j];
        }
    }
}

/* Adds up the slices. */
static void gpunn__row_norm_finish(void *arg, int thread, int threads)
{
    const gpunn__row_norm *b = (const gpunn__row_norm *)arg;
    int64_t                begin, end, n = b->n;
    gpunn__cpu_part(n, 64, threads, thread, &begin, &end);
    for (int part = 0; part < 2; part++) {
        float  *out = part == 0 ? b->dweight : b->dbias;
        bool    add = part == 0 ? b->add_weight : b->add_bias;
        double *total = b->partial + part * n;
        if (!out) continue;
        for (int64_t slice = 1; slice < b->slices; slice++)
            for (int64_t j = begin; j < end; j++) total[j] += total[slice * b->each + j];
        for (int64_t j = begin; j < end; j++) out[j] = (add ? out[j] : 0) + (float)total[j];
    }
}

static gpunn_status gpunn__row_norm_step(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action, bool centered)
{
    const gpunn_value *in = step->in;
    gpunn__row_norm    b;
    memset(&b, 0, sizeof b);
    b.n = 1;
    for (int d = step->attr->axis; d < in[0].rank; d++) b.n *= in[0].dim[d];
    b.rows = in[0].count / b.n;
    b.slices = gpunn__least((b.rows + 15) / 16, 32);
    bool affine = step->backward && in[1].data;
    if (affine) b.each = (step->grad_in[0].data ? 3 : 3 + GPUNN__ROW_GROUP / 2) * b.n;
    if (action == GPUNN__PREPARE) {
        if (step->training && !step->backward) step->saved_bytes = (centered ? 2 : 1) * (size_t)b.rows * sizeof(float);
        if (affine) step->workspace_bytes = (size_t)(b.slices * b.each) * sizeof(double);
        return GPUNN_OK;
    }
    b.centered = centered;
    b.eps = (double)step->attr->eps;
    b.x = (const float *)in[0].data;
    b.weight = (const float *)in[1].data;
    b.bias = (const float *)in[2].data;
    b.rstd = (float *)step->saved;
    b.mean = centered && b.rstd ? b.rstd + b.rows : NULL;
    b.y = (float *)step->out.data;
    if (action == GPUNN__BACKWARD) {
        b.g = (const float *)step->grad_out.data;
        b.y = (float *)step->grad_in[0].data;
        b.dweight = (float *)step->grad_in[1].data;
        b.dbias = (float *)step->grad_in[2].data;
        b.partial = affine ? (double *)step->workspace : NULL;
        b.add = step->accumulate[0];
        b.add_weight = step->accumulate[1];
        b.add_bias = step->accumulate[2];
    }
    gpunn__cpu_parallel(gpunn__cpu_threads(cpu, in[0].count), gpunn__row_norm_task, &b);
    if (b.partial) gpunn__cpu_parallel(gpunn__cpu_threads(cpu, b.slices * b.n), gpunn__row_norm_finish, &b);
    return GPUNN_OK;
}

static gpunn_status gpunn__cpu_layer_norm(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__row_norm_step(cpu, step, action, true);
}

static gpunn_status gpunn__cpu_rms_norm(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__row_norm_step(cpu, step, action, false);
}

/* ---- dropout -------------------------------------------------------------------------------------------------------------- *
 * Nothing is stored: backward draws the same again, and so does every backend. Element i belongs to pack i / 8; the eight
 * elements of a pack take the eight 16-bit halves, low before high, of the four words of
 *     philox4x32-10(key: seed, counter: pack low, site ^ pack high << 16, step low, step high)
 * where low and high are 32-bit halves. An element is kept when its draw < T = round((1 - p) * 65536), and then multiplied by
 * 65536 / T. */
enum { GPUNN__DROP_PACKS = 16, GPUNN__DROP_BLOCK = 8 * GPUNN__DROP_PACKS };

typedef struct gpunn__drop {
    uint64_t     seed, step;
    uint32_t     site, keep; /* keep: T */
    float        scale;
    int64_t      count;
    const float *x;
    float       *y;
    bool         add;
} gpunn__drop;

/* The factors of 16 packs from `pack`, a multiple of 16, which run through Philox side by side: vector code, if not inlined. */
GPUNN__NOINLINE void gpunn__drop_factors(const gpunn__drop *d, uint64_t pack, float factor[GPUNN__DROP_BLOCK])
{
    uint32_t c0[GPUNN__DROP_PACKS], c1[GPUNN__DROP_PACKS], c2[GPUNN__DROP_PACKS], c3[GPUNN__DROP_PACKS];
    uint32_t high0[GPUNN__DROP_PACKS], high2[GPUNN__DROP_PACKS];
    uint32_t words[GPUNN__DROP_PACKS][4];
    for (int j = 0; j < GPUNN__DROP_PACKS; j++) {
        c0[j] = (uint32_t)pack + (uint32_t)j;
        c1[j] = d->site ^ (uint32_t)(pack >> 32) << 16;
        c2[j] = (uint32_t)d->step;
        c3[j] = (uint32_t)(d->step >> 32);
    }
    uint32_t k0 = (uint32_t)d->seed, k1 = (uint32_t)(d->seed >> 32);
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        for (int j = 0; j < GPUNN__DROP_PACKS; j++) high0[j] = (uint32_t)((uint64_t)0xD2511F53u * c0[j] >> 32);
        for (int j = 0; j < GPUNN__DROP_PACKS; j++) high2[j] = (uint32_t)((uint64_t)0xCD9E8D57u * c2[j] >> 32);
        for (int j = 0; j < GPUNN__DROP_PACKS; j++) {
            uint32_t low0 = 0xD2511F53u * c0[j], low2 = 0xCD9E8D57u * c2[j];
            c0[j] = high2[j] ^ c1[j] ^ k0;
            c1[j] = low2;
            c2[j] = high0[j] ^ c3[j] ^ k1;
            c3[j] = low0;
        }
    }
    for (int j = 0; j < GPUNN__DROP_PACKS; j++) {
        words[j][0] = c0[j];
        words[j][1] = c1[j];
        words[j][2] = c2[j];
        words[j][3] = c3[j];
    }
    uint16_t draw[GPUNN__DROP_BLOCK];
    memcpy(draw, words, sizeof words);
    uint32_t keep = d->keep;
    float    scale = d->scale;
    for (int j = 0; j < GPUNN__DROP_BLOCK; j++) factor[j] = gpunn__select(draw[j] < keep, scale, 0);
}

static void gpunn__drop_task(void *arg, int thread, int threads)
{
    const gpunn__drop *d = (const gpunn__drop *)arg;
    int64_t            begin, end;
    gpunn__cpu_part(d->count, GPUNN__DROP_BLOCK, threads, thread, &begin, &end);
    for (int64_t i = begin; i < end; i += GPUNN__DROP_BLOCK) {
        float        factor[GPUNN__DROP_BLOCK];
        int64_t      n = gpunn__least(end - i, GPUNN__DROP_BLOCK);
        const float *x = d->x + i;
        float       *y = d->y + i;
        gpunn__drop_factors(d, (uint64_t)i / 8, factor);
        if (d->add)
            for (int64_t j = 0; j < n; j++) y[j] += x[j] * factor[j];
        else
            for (int64_t j = 0; j < n; j++) y[j] = x[j] * factor[j];
    }
}

/* Without values: the draws of this step; keep 65536 where nothing is dropped. */
static gpunn__drop gpunn__drop_of(const gpunn_step *step)
{
    gpunn__drop d;
    memset(&d, 0, sizeof d);
    d.keep = step->training ? (uint32_t)((1 - (double)step->attr->value[0]) * 65536 + 0.5) : 65536;
    d.scale = d.keep ? 65536.0f / (float)d.keep : 0;
    d.seed = step->state->seed;
    d.step = step->state->step;
    d.site = step->attr->site;
    return d;
}

static gpunn_status gpunn__cpu_dropout(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    if (action == GPUNN__PREPARE || (step->backward && !step->grad_in[0].data)) return GPUNN_OK;
    gpunn__drop d = gpunn__drop_of(step);
    d.count = step->in[0].count;
    d.x = (const float *)(step->backward ? step->grad_out.data : step->in[0].data);
    d.y = (float *)(step->backward ? step->grad_in[0].data : step->out.data);
    d.add = step->backward && step->accumulate[0];
    if (d.keep == 65536) {
        if (d.add)
            for (int64_t i = 0; i < d.count; i++) d.y[i] += d.x[i];
        else if (d.y != d.x)
            memcpy(d.y, d.x, (size_t)d.count * sizeof(float));
        return GPUNN_OK;
    }
    gpunn__cpu_parallel(gpunn__cpu_threads(cpu, d.count), gpunn__drop_task, &d);
    return GPUNN_OK;
}
/* ==== >>attention ===================================================================================================== *
 * softmax(q k^T scale + mask) v, sample by sample and head by head: blocks of queries pass by blocks of keys, so that no more than
 * a block of weights is ever there. Each row keeps the largest score so far, and the sum of its weights relative to that; when a
 * later block brings a larger one, the sum and the row of the result shrink. Training saves log sum exp of each row, from which
 * the backward pass makes the weights p again: with dp = dy v^T and d = the sum over e of dy y,
 *     dv = p^T dy, ds = p (dp - d) scale, dq = ds k, dk = ds^T q,
 * where dropout's factors go with p in dv and with dp. Blocks depend on sizes only, and so do all sums. */
#define GPUNN__ATTENTION_ROWS 128
#define GPUNN__ATTENTION_KEYS 256

typedef struct
    gpunn__heads { /* element (sample, head, row, i): sample * samples + head * heads + row * rows + i; data NULL: none */
    float  *data;
    int64_t samples, heads, rows;
} gpunn__heads;

typedef struct gpunn__attention {
    int64_t                    n, heads, kv_heads, l, s, e, ev;
    gpunn__heads               q, k, v, y, dy, dq, dk, dv;
    const void                *mask; /* NULL: none */
    bool                       choice, causal;
    int64_t                    mask_step[4]; /* along samples, heads, queries, keys */
    float                      scale;
    gpunn__drop                drop; /* keep 65536: none */
    float                     *lse;  /* [n, heads, l]; a row without keys: inf */
    bool                       add[3];
    float                     *workspace;
    int64_t                    each;   /* floats of a thread's part of it ... */
    int64_t                    packed; /* ... of which so many for products, behind the scores */
    const gpunn__gemm_kernels *kernels;
} gpunn__attention;

/* The heads of an operand, of a gradient of it or of the result; part: of q, k and v in one, [n, l, 3, heads, e]. */
static gpunn__heads gpunn__attention_heads(const gpunn_step *step, const gpunn_value *value, void *data, int part)
{
    const int64_t *dim = value->dim;
    const bool     packed = value->rank == 5, last = packed || step->in[0].rank == 5 || step->attr->heads_last;
    const int64_t  heads = packed ? dim[3] : last ? dim[2] : dim[1], e = dim[value->rank - 1], row = (packed ? 3 : 1) * heads * e;
    gpunn__heads   h;
    h.data = data && packed ? (float *)data + part * heads * e : (float *)data;
    h.samples = last ? dim[1] * row : dim[1] * dim[2] * e;
    h.heads = last ? e : dim[2] * e;
    h.rows = last ? row : e;
    return h;
}

static float *gpunn__attention_at(const gpunn__heads *h, int64_t sample, int64_t head, int64_t row)
{
    return h->data + sample * h->samples + head * h->heads + row * h->rows;
}

/* x, and z unless it is NULL, times dropout's factors for `count` weights from number `at` on. */
static void gpunn__attention_drop(const gpunn__drop *d, int64_t at, int64_t count, float *x, float *z)
{
    float factor[GPUNN__DROP_BLOCK];
    for (int64_t j = 0, n; j < count; j += n) {
        const int64_t inside = (at + j) % GPUNN__DROP_BLOCK;
        n = gpunn__least(count - j, GPUNN__DROP_BLOCK - inside);
        gpunn__drop_factors(d, (uint64_t)(at + j - inside) / 8, factor);
        for (int64_t i = 0; i < n; i++) x[j + i] *= factor[inside + i];
        for (int64_t i = 0; z && i < n; i++) z[j + i] *= factor[inside + i];
    }
}

/* One product in this thread: c[m, n] (=, +=) a b, with b packed into `packed` where that pays. */
static void gpunn__attention_product(const gpunn__attention *a, gpunn__gemm *g, float *packed)
{
    g->panels = gpunn__gemm_panels(g);
    gpunn__gemm_block(g, a->kernels, 0, g->m, 0, g->n, packed);
}

/* c[rows, keys] = q k^T or dy v^T of rows i .. i + rows - 1 and keys j .. j + keys - 1. */
static void gpunn__attention_pairs(const gpunn__attention *a, const float *left, int64_t left_row, const float *right,
                                   int64_t right_row, int64_t rows, int64_t keys, int64_t e, float *c, float *packed)
{
    gpunn__gemm g = gpunn__gemm_make(rows, keys, e, left, false, right, true, c, false);
    g.a_row = left_row;
    g.b_col = right_row;
    gpunn__attention_product(a, &g, packed);
}

/* One row of scores, for keys j .. j + n - 1 of query i: scaled and masked. */
static void gpunn__attention_mask(const gpunn__attention *a, int64_t sample, int64_t head, int64_t i, int64_t j, int64_t n,
                                  float *GPUNN__RESTRICT x)
{
    const float    scale = a->scale;
    const int64_t *step = a->mask_step, at = sample * step[0] + head * step[1] + i * step[2] + j * step[3];
    if (a->mask == NULL)
        for (int64_t k = 0; k < n; k++) x[k] *= scale;
    else if (a->choice) {
        const uint8_t *m = (const uint8_t *)a->mask + at;
        if (step[3])
            for (int64_t k = 0; k < n; k++) x[k] = gpunn__select(m[k] != 0, x[k] * scale, -INFINITY);
        else
            for (int64_t k = 0; k < n; k++) x[k] = gpunn__select(m[0] != 0, x[k] * scale, -INFINITY);
    } else {
        const float *m = (const float *)a->mask + at;
        if (step[3])
            for (int64_t k = 0; k < n; k++) x[k] = x[k] * scale + m[k];
        else
            for (int64_t k = 0; k < n; k++) x[k] = x[k] * scale + m[0];
    }
    if (a->causal)
        for (int64_t k = i < j ? 0 : i - j + 1; k < n; k++) x[k] = -INFINITY;
}

/* Keys that rows before `end` can see. */
static int64_t gpunn__attention_reach(const gpunn__attention *a, int64_t end)
{
    return a->causal ? gpunn__least(a->s, end) : a->s;
}

static void gpunn__attention_forward_block(const gpunn__attention *a, int64_t sample, int64_t head, int64_t i0, int64_t rows,
                                           float *scratch)
{
    const int64_t kv_head = head / (a->heads / a->kv_heads), reach = gpunn__attention_reach(a, i0 + rows);
    float *const scores = scratch, *const packed = scratch + GPUNN__ATTENTION_ROWS * GPUNN__ATTENTION_KEYS;
    float *const y = gpunn__attention_at(&a->y, sample, head, i0);
    float        top[GPUNN__ATTENTION_ROWS], sum[GPUNN__ATTENTION_ROWS];
    for (int64_t j = 0; j < reach; j += GPUNN__ATTENTION_KEYS) {
        const int64_t keys = gpunn__least(reach - j, GPUNN__ATTENTION_KEYS);
        const bool    last = j + keys == reach;
        gpunn__attention_pairs(a, gpunn__attention_at(&a->q, sample, head, i0), a->q.rows,
                               gpunn__attention_at(&a->k, sample, kv_head, j), a->k.rows, rows, keys, a->e, scores, packed);
        for (int64_t i = 0; i < rows; i++) {
            float *GPUNN__RESTRICT x = scores + i * keys;
            gpunn__attention_mask(a, sample, head, i0 + i, j, keys, x);
            const float block = (float)gpunn__reduce_line(GPUNN__TOP, x, keys, 0), before = j ? top[i] : -INFINITY;
            const float highest = block > before ? block : before, shift = highest > -INFINITY ? highest : 0;
            for (int64_t k = 0; k < keys; k++) x[k] = gpunn__exp_down(x[k] - shift);
            const float total = (float)gpunn__sum_line(x, keys);
            if (a->drop.keep < 65536)
                gpunn__attention_drop(&a->drop, ((sample * a->heads + head) * a->l + i0 + i) * a->s + j, keys, x, NULL);
            top[i] = highest;
            if (j == 0)
                sum[i] = total;
            else {
                const float            shrink = gpunn__exp_down(before - shift);
                float *GPUNN__RESTRICT row = y + i * a->y.rows;
                sum[i] = sum[i] * shrink + total;
                if (shrink != 1)
                    for (int64_t k = 0; k < a->ev; k++) row[k] *= shrink;
            }
            if (!last) continue;
            if (a->lse)
                a->lse[(sample * a->heads + head) * a->l + i0 + i] = sum[i] == 0 ? INFINITY : highest + gpunn__log(sum[i]);
            sum[i] = sum[i] == 0 ? 0 : 1 / sum[i];
        }
        gpunn__gemm g = gpunn__gemm_make(rows, a->ev, keys, scores, false, gpunn__attention_at(&a->v, sample, kv_head, j), false,
                                         y, j > 0);
        g.b_row = a->v.rows;
        g.c_row = a->y.rows;
        g.scale_row = last ? sum : NULL;
        gpunn__attention_product(a, &g, packed);
    }
}

static void gpunn__attention_forward(void *arg, int thread, int threads)
{
    const gpunn__attention *a = (const gpunn__attention *)arg;
    const int64_t           blocks = (a->l + GPUNN__ATTENTION_ROWS - 1) / GPUNN__ATTENTION_ROWS;
    int64_t                 begin, end;
    gpunn__cpu_part(a->n * a->heads * blocks, 1, threads, thread, &begin, &end);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t head = unit / blocks, i = unit % blocks * GPUNN__ATTENTION_ROWS;
        gpunn__attention_forward_block(a, head / a->heads, head % a->heads, i, gpunn__least(a->l - i, GPUNN__ATTENTION_ROWS),
                                       a->workspace + thread * a->each);
    }
}

/* ds, and in `weights` what dv needs, of rows from i0 and keys from j. */
static void gpunn__attention_slopes(const gpunn__attention *a, int64_t sample, int64_t head, int64_t i0, int64_t rows, int64_t j,
                                    int64_t keys, const float *dot, float *weights, float *slopes, float *packed)
{
    const int64_t kv_head = head / (a->heads / a->kv_heads), row0 = (sample * a->heads + head) * a->l + i0;
    const float   scale = a->scale;
    gpunn__attention_pairs(a, gpunn__attention_at(&a->q, sample, head, i0), a->q.rows,
                           gpunn__attention_at(&a->k, sample, kv_head, j), a->k.rows, rows, keys, a->e, weights, packed);
    gpunn__attention_pairs(a, gpunn__attention_at(&a->dy, sample, head, i0), a->dy.rows,
                           gpunn__attention_at(&a->v, sample, kv_head, j), a->v.rows, rows, keys, a->ev, slopes, packed);
    for (int64_t i = 0; i < rows; i++) {
        float *GPUNN__RESTRICT p = weights + i * keys, *GPUNN__RESTRICT ds = slopes + i * keys;
        const float lse = a->lse[row0 + i], sum = dot[i];
        gpunn__attention_mask(a, sample, head, i0 + i, j, keys, p);
        for (int64_t k = 0; k < keys; k++) p[k] = gpunn__exp_down(p[k] - lse);
        if (a->drop.keep == 65536) {
            for (int64_t k = 0; k < keys; k++) ds[k] = p[k] * (ds[k] - sum) * scale;
            continue;
        }
        float kept[GPUNN__ATTENTION_KEYS];
        memcpy(kept, p, (size_t)keys * sizeof *kept);
        gpunn__attention_drop(&a->drop, (row0 + i) * a->s + j, keys, p, ds);
        for (int64_t k = 0; k < keys; k++) ds[k] = kept[k] * (ds[k] - sum) * scale;
    }
}

/* gradient (+)= left^T right, or left right. */
static void gpunn__attention_gradient(const gpunn__attention *a, const gpunn__heads *gradient, int64_t sample, int64_t head,
                                      int64_t row, int64_t m, int64_t n, int64_t k, const float *left, bool transposed,
                                      const gpunn__heads *right, int64_t right_head, int64_t right_row, float *packed)
{
    if (gradient->data == NULL) return;
    gpunn__gemm g = gpunn__gemm_make(m, n, k, left, transposed, gpunn__attention_at(right, sample, right_head, right_row), false,
                                     gpunn__attention_at(gradient, sample, head, row), true);
    g.b_row = right->rows;
    g.c_row = gradient->rows;
    gpunn__attention_product(a, &g, packed);
}

static void gpunn__attention_clear(const gpunn__heads *h, int64_t sample, int64_t head, int64_t rows, int64_t e)
{
    for (int64_t i = 0; h->data && i < rows; i++) memset(gpunn__attention_at(h, sample, head, i), 0, (size_t)e * sizeof(float));
}

/* A head of k and v, with those of q that it serves. The gradients may be one value's: they are cleared before anything is added,
 * those that are added to not at all. */
static void gpunn__attention_backward_head(const gpunn__attention *a, int64_t sample, int64_t kv_head, float *scratch)
{
    const int64_t group = a->heads / a->kv_heads, block = GPUNN__ATTENTION_ROWS * GPUNN__ATTENTION_KEYS;
    float *const weights = scratch, *const slopes = weights + block, *const packed = slopes + block;
    for (int64_t h = 0; h < group && !a->add[0]; h++) gpunn__attention_clear(&a->dq, sample, kv_head * group + h, a->l, a->e);
    if (!a->add[1]) gpunn__attention_clear(&a->dk, sample, kv_head, a->s, a->e);
    if (!a->add[2]) gpunn__attention_clear(&a->dv, sample, kv_head, a->s, a->ev);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int64_t i = 0; i < a->l; i += GPUNN__ATTENTION_ROWS) {
            const int64_t rows = gpunn__least(a->l - i, GPUNN__ATTENTION_ROWS), reach = gpunn__attention_reach(a, i + rows);
            float         dot[GPUNN__ATTENTION_ROWS];
            for (int64_t r = 0; r < rows; r++) {
                const float *y = gpunn__attention_at(&a->y, sample, head, i + r),
                            *dy = gpunn__attention_at(&a->dy, sample, head, i + r);
                a->kernels->dots(1, 1, a->ev, y, 0, dy, 0, &dot[r], 0, false);
            }
            for (int64_t j = 0; j < reach; j += GPUNN__ATTENTION_KEYS) {
                const int64_t keys = gpunn__least(reach - j, GPUNN__ATTENTION_KEYS);
                gpunn__attention_slopes(a, sample, head, i, rows, j, keys, dot, weights, slopes, packed);
                gpunn__attention_gradient(a, &a->dv, sample, kv_head, j, keys, a->ev, rows, weights, true, &a->dy, head, i,
                                          packed);
                gpunn__attention_gradient(a, &a->dq, sample, head, i, rows, a->e, keys, slopes, false, &a->k, kv_head, j, packed);
                gpunn__attention_gradient(a, &a->dk, sample, kv_head, j, keys, a->e, rows, slopes, true, &a->q, head, i, packed);
            }
        }
}

static void gpunn__attention_backward(void *arg, int thread, int threads)
{
    const gpunn__attention *a = (const gpunn__attention *)arg;
    int64_t                 begin, end;
    gpunn__cpu_part(a->n * a->kv_heads, 1, threads, thread, &begin, &end);
    for (int64_t unit = begin; unit < end; unit++)
        gpunn__attention_backward_head(a, unit / a->kv_heads, unit % a->kv_heads, a->workspace + thread * a->each);
}

static gpunn_status gpunn__cpu_scaled_dot_product_attention(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const gpunn_value *in = step->in, *y = step->backward ? &step->grad_out : &step->out, *mask = &in[3];
    const bool         packed = in[0].rank == 5, last = packed || step->attr->heads_last;
    const gpunn_value *operand[3] = {&in[0], packed ? &in[0] : &in[1], packed ? &in[0] : &in[2]};
    gpunn__heads *heads[3], *gradient[3];
    gpunn__attention   a;
    memset(&a, 0, sizeof a);
    a.n = y->dim[0];
    a.heads = y->dim[last ? 2 : 1];
    a.l = y->dim[last ? 1 : 2];
    a.ev = y->dim[3];
    a.e = in[0].dim[in[0].rank - 1];
    a.s = packed ? a.l : in[1].dim[last ? 1 : 2];
    a.kv_heads = packed ? a.heads : in[1].dim[last ? 2 : 1];
    a.kernels = gpunn__gemm_choose();
    gpunn__gemm widest = gpunn__gemm_make(1, a.e > a.ev ? a.e : a.ev, GPUNN__GEMM_DEPTH, NULL, false, NULL, false, NULL, false);
    if (widest.n < GPUNN__ATTENTION_KEYS) widest.n = GPUNN__ATTENTION_KEYS;
    a.packed = gpunn__gemm_scratch(&widest, gpunn__gemm_panels(&widest));
    a.each = gpunn__round_up((step->backward ? 2 : 1) * GPUNN__ATTENTION_ROWS * GPUNN__ATTENTION_KEYS + a.packed, GPUNN__ALIGN);
    const int threads = gpunn__cpu_threads(cpu, a.n * a.heads * a.l * a.s / 8 * (a.e + a.ev));
    if (action == GPUNN__PREPARE) {
        if (step->training && !step->backward) step->saved_bytes = (size_t)(a.n * a.heads * a.l) * sizeof(float);
        step->workspace_bytes = (size_t)(threads * a.each) * sizeof(float);
        return GPUNN_OK;
    }
    heads[0] = &a.q, heads[1] = &a.k, heads[2] = &a.v;
    gradient[0] = &a.dq, gradient[1] = &a.dk, gradient[2] = &a.dv;
    for (int i = 0; i < 3; i++) {
        const int part = packed ? 0 : i;
        *heads[i] = gpunn__attention_heads(step, operand[i], in[part].data, i);
        if (step->backward) *gradient[i] = gpunn__attention_heads(step, operand[i], step->grad_in[part].data, i);
        a.add[i] = step->backward && step->accumulate[part];
    }
    a.y = gpunn__attention_heads(step, y, step->out.data, 0);
    a.dy = gpunn__attention_heads(step, y, step->grad_out.data, 0);
    a.mask = mask->data;
    a.choice = mask->dtype == GPUNN_BOOL;
    int64_t size = 1;
    for (int d = mask->rank - 1, to = 3; d >= 0; d--, to--) {
        if (mask->dim[d] > 1) a.mask_step[to] = size;
        size *= mask->dim[d];
    }
    a.causal = step->attr->is_causal;
    a.scale = step->attr->value[1];
    a.lse = step->training ? (float *)step->saved : NULL;
    a.workspace = (float *)step->workspace;
    a.drop = gpunn__drop_of(step);
    gpunn__cpu_parallel(threads, step->backward ? gpunn__attention_backward : gpunn__attention_forward, &a);
    return GPUNN_OK;
}

/* ==== >>loss ========================================================================================================== *
 * cross_entropy and nll: x[n][classes][inner], one label per row, row = n * inner + position. With l = log_softmax(x) (nll: x
 * itself), w the class weights (1 without) and e the label smoothing (nll: 0), a row that is not ignored costs
 *     (1 - e) w[label] (-l[label]) + e / classes * sum over c of w[c] (-l[c])
 * and the mean divides by the sum of w[label]. Its gradient: dx[c] = a p[c] - b (c == label) - d w[c], p = softmax(x), with
 *     b = s (1 - e) w[label], d = s e / classes, a = b + d sum w, s = g / divisor; nll: a = d = 0.
 * Saved: the divisor; cross_entropy: per row the maximum and 1 / sum exp(x - maximum). */
enum { GPUNN__LOSS_PARTS = 64 };

typedef struct gpunn__class_loss {
    gpunn__along along;         /* x: logits, out: losses or dx */
    bool         softmax, none; /* none: no reduction */
    gpunn_dtype  label_type;
    const void  *labels;
    const float *weight;
    double       smoothing, weight_sum; /* weight_sum: of all classes */
    int64_t      ignore, rows, part_rows, parts;
    float       *top, *inverse; /* saved, per row */
    double       divisor;
    double       loss[GPUNN__LOSS_PARTS], weights[GPUNN__LOSS_PARTS];
    int64_t      bad[GPUNN__LOSS_PARTS]; /* first row with an impossible label; -1: none */
} gpunn__class_loss;

GPUNN__INLINE int64_t gpunn__label(const gpunn__class_loss *l, int64_t row)
{
    return gpunn__integer(l->labels, l->label_type, row);
}

/* sum over c of w[c] (top - x[c]), for label smoothing. */
static double gpunn__smooth_sum(const gpunn__class_loss *l, const float *x, float top)
{
    double total = 0;
    for (int64_t c = 0; c < l->along.n; c++)
        total += (l->weight ? (double)l->weight[c] : 1) * ((double)top - (double)x[c * l->along.inner]);
    return total;
}

/* Rows come in tiles: one row, or up to GPUNN__COLUMNS neighbours of the same n. Returns the width, at most `limit` rows. */
GPUNN__INLINE int64_t gpunn__loss_tile(const gpunn__along *a, int64_t row, int64_t limit, int64_t *offset)
{
    int64_t outer = row / a->inner, column = row - outer * a->inner, width = a->inner - column;
    *offset = outer * a->n * a->inner + column;
    return gpunn__least(gpunn__least(width, limit), GPUNN__COLUMNS);
}

static void gpunn__loss_forward_part(gpunn__class_loss *l, int64_t part)
{
    const gpunn__along *a = &l->along;
    int64_t             row = part * l->part_rows, end = gpunn__least(row + l->part_rows, l->rows), width;
    double              loss = 0, weights = 0;
    l->bad[part] = -1;
    for (; row < end; row += width) {
        float   sum[GPUNN__COLUMNS];
        int64_t offset;
        width = gpunn__loss_tile(a, row, end - row, &offset);
        const float *x = a->x + offset;
        if (l->softmax) gpunn__exp_sum(x, a->n, a->inner, width, l->top + row, sum);
        for (int64_t j = 0; j < width; j++) {
            int64_t label = gpunn__label(l, row + j);
            double  cost = 0;
            if (l->softmax) l->inverse[row + j] = 1 / sum[j];
            if (label != l->ignore && (label < 0 || label >= a->n)) {
                if (l->bad[part] < 0) l->bad[part] = row + j;
            } else if (label != l->ignore) {
                double weight = l->weight ? (double)l->weight[label] : 1;
                cost = -(double)x[label * a->inner + j];
                if (l->softmax) {
                    float  top = l->top[row + j];
                    double spread = (double)gpunn__log(sum[j]);
                    cost = (1 - l->smoothing) * weight * ((double)top + cost + spread);
                    if (l->smoothing > 0)
                        cost += l->smoothing / (double)a->n * (gpunn__smooth_sum(l, x + j, top) + l->weight_sum * spread);
                } else
                    cost *= weight;
                loss += cost;
                weights += weight;
            }
            if (l->none) a->out[row + j] = (float)cost;
        }
    }
    l->loss[part] = loss;
    l->weights[part] = weights;
}

static void gpunn__loss_forward_task(void *arg, int thread, int threads)
{
    gpunn__class_loss *l = (gpunn__class_loss *)arg;
    int64_t            begin, end;
    gpunn__cpu_part(l->parts, 1, threads, thread, &begin, &end);
    for (; begin < end; begin++) gpunn__loss_forward_part(l, begin);
}

/* dx (+)= factor exp(x - top), by columns or (single) one for all. */
GPUNN__INLINE void gpunn__loss_line(float *GPUNN__RESTRICT dx, const float *GPUNN__RESTRICT x, const float *GPUNN__RESTRICT top,
                                    const float *GPUNN__RESTRICT factor, int64_t n, bool single, bool add)
{
    float top0 = top[0], factor0 = factor[0];
    for (int64_t i = 0; i < n; i++) {
        float value = (single ? factor0 : factor[i]) * gpunn__exp_down(x[i] - (single ? top0 : top[i]));
        dx[i] = add ? dx[i] + value : value;
    }
}

static void gpunn__loss_backward_task(void *arg, int thread, int threads)
{
    const gpunn__class_loss *l = (const gpunn__class_loss *)arg;
    const gpunn__along      *a = &l->along;
    int64_t                  row, end, width;
    gpunn__cpu_part(l->rows, 1, threads, thread, &row, &end);
    for (; row < end; row += width) {
        float   factor[GPUNN__COLUMNS], flat[GPUNN__COLUMNS], at_label[GPUNN__COLUMNS];
        int64_t label[GPUNN__COLUMNS], offset;
        width = gpunn__loss_tile(a, row, end - row, &offset);
        for (int64_t j = 0; j < width; j++) {
            label[j] = gpunn__label(l, row + j);
            if (label[j] < 0 || label[j] >= a->n || label[j] == l->ignore) {
                label[j] = -1;
                factor[j] = flat[j] = at_label[j] = 0;
                continue;
            }
            double scale = (double)a->gradient[l->none ? row + j : 0] / l->divisor;
            double b = scale * (1 - l->smoothing) * (l->weight ? (double)l->weight[label[j]] : 1);
            double d = scale * l->smoothing / (double)a->n;
            at_label[j] = (float)b;
            flat[j] = (float)d;
            factor[j] = l->softmax ? (float)((b + d * l->weight_sum) * (double)l->inverse[row + j]) : 0;
        }
        float  *dx = a->out + offset;
        int64_t lines = a->inner == 1 ? 1 : a->n, length = a->inner == 1 ? a->n : width;
        for (int64_t c = 0; c < lines; c++) {
            const float *x = a->x + offset + c * a->inner;
            float       *to = dx + c * a->inner;
            if (l->softmax && a->inner == 1)
                GPUNN__FIXED(a->add, gpunn__loss_line, to, x, l->top + row, factor, length, true);
            else if (l->softmax)
                GPUNN__FIXED(a->add, gpunn__loss_line, to, x, l->top + row, factor, length, false);
            else if (!a->add)
                memset(to, 0, (size_t)length * sizeof *to);
        }
        if (l->smoothing > 0)
            for (int64_t c = 0; c < a->n; c++)
                for (int64_t j = 0; j < width; j++) dx[c * a->inner + j] -= flat[j] * (l->weight ? l->weight[c] : 1);
        for (int64_t j = 0; j < width; j++)
            if (label[j] >= 0) dx[label[j] * a->inner + j] -= at_label[j];
    }
}

static gpunn_status gpunn__class_loss_run(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action, bool softmax)
{
    const gpunn_value *in = step->in;
    gpunn__class_loss  l;
    gpunn__along_axis(&l.along, &in[0], in[0].rank > 1 ? 1 : 0);
    l.rows = l.along.outer * l.along.inner;
    size_t row_bytes = softmax ? (size_t)l.rows * sizeof(float) : 0;
    if (action == GPUNN__PREPARE) {
        if (!step->backward) step->saved_bytes = sizeof l.divisor + 2 * row_bytes;
        return GPUNN_OK;
    }
    char *saved = (char *)step->saved;
    l.top = (float *)(void *)(saved + sizeof l.divisor);
    l.inverse = l.top + (softmax ? l.rows : 0);
    l.softmax = softmax;
    l.none = step->attr->reduction == GPUNN_REDUCE_NONE;
    l.label_type = in[1].dtype;
    l.labels = in[1].data;
    l.weight = step->input_count > 2 ? (const float *)in[2].data : NULL;
    l.smoothing = softmax ? (double)step->attr->value[0] : 0;
    l.ignore = step->attr->ignore_index;
    l.weight_sum = (double)l.along.n;
    if (l.weight && l.smoothing > 0) {
        l.weight_sum = 0;
        for (int64_t c = 0; c < l.along.n; c++) l.weight_sum += (double)l.weight[c];
    }
    l.along.x = (const float *)in[0].data;
    int threads = gpunn__cpu_threads(cpu, 3 * in[0].count);
    if (action == GPUNN__BACKWARD) {
        if (!step->grad_in[0].data) return GPUNN_OK;
        memcpy(&l.divisor, saved, sizeof l.divisor);
        l.along.out = (float *)step->grad_in[0].data;
        l.along.gradient = (const float *)step->grad_out.data;
        l.along.add = step->accumulate[0];
        gpunn__cpu_parallel(threads, gpunn__loss_backward_task, &l);
        return GPUNN_OK;
    }
    l.along.out = (float *)step->out.data;
    l.part_rows = 16384 / l.along.n + 1;
    if (l.part_rows * GPUNN__LOSS_PARTS < l.rows) l.part_rows = (l.rows + GPUNN__LOSS_PARTS - 1) / GPUNN__LOSS_PARTS;
    l.parts = (l.rows + l.part_rows - 1) / l.part_rows;
    gpunn__cpu_parallel(threads, gpunn__loss_forward_task, &l);
    double loss = 0, weights = 0;
    for (int64_t part = 0; part < l.parts; part++) {
        if (l.bad[part] >= 0)
            return gpunn__cpu_fail(
                cpu, GPUNN_ERR_ARGUMENT,
                "label %lld at position %lld is outside 0 .. %lld and is not ignore_index %lld; check the labels",
                (long long)gpunn__label(&l, l.bad[part]), (long long)l.bad[part], (long long)(l.along.n - 1),
                (long long)l.ignore);
        loss += l.loss[part];
        weights += l.weights[part];
    }
    l.divisor = step->attr->reduction == GPUNN_REDUCE_MEAN ? weights : 1;
    memcpy(saved, &l.divisor, sizeof l.divisor);
    if (!l.none) *l.along.out = (float)(loss / l.divisor);
    return GPUNN_OK;
}

static gpunn_status gpunn__cpu_cross_entropy(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__class_loss_run(cpu, step, action, true);
}

static gpunn_status gpunn__cpu_nll(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    return gpunn__class_loss_run(cpu, step, action, false);
}

/* ==== >>update ======================================================================================================== *
 * torch.optim's steps, each in one pass over parameter, gradient and state. */
typedef struct gpunn__update_job {
    const gpunn_update  *u;
    gpunn_update_numbers n;
    float                limit, decay; /* g = clamp(gradient * scale, +-limit) + decay * parameter */
    float                take1, take2; /* 1 - beta1 (SGD: dampening), 1 - beta2 (RMSprop: alpha): shares of g, g^2 in averages */
    struct gpunn__lamb_sums *sums;     /* LAMB */
} gpunn__update_job;

/* The square roots of n floats. C's sqrtf may set errno, which keeps it out of vector code. */
GPUNN__INLINE void gpunn__roots(float *x, int64_t n)
{
    int64_t i = 0;
#if defined(GPUNN__VECTORS) && defined(__AVX__)
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(x + i, _mm256_sqrt_ps(_mm256_loadu_ps(x + i)));
#elif defined(GPUNN__VECTORS) && defined(__x86_64__)
    for (; i + 4 <= n; i += 4) _mm_storeu_ps(x + i, _mm_sqrt_ps(_mm_loadu_ps(x + i)));
#elif defined(GPUNN__VECTORS) && defined(__aarch64__)
    for (; i + 4 <= n; i += 4) vst1q_f32(x + i, vsqrtq_f32(vld1q_f32(x + i)));
#endif
    for (; i < n; i++) x[i] = sqrtf(x[i]);
}

/* The decimal that was meant by a float: 1 - 0.999f is 1e-5 off the 1 - 0.999 that torch computes. */
static double gpunn__decimal(float value)
{
    return floor((double)value * 1e7 + 0.5) / 1e7;
}

/* Whether weight decay is no part of the gradient. */
static bool gpunn__decays_apart(const gpunn_update *u)
{
    return u->kind == GPUNN_UPDATE_ADAMW || u->kind == GPUNN_UPDATE_LION || u->decoupled;
}

GPUNN__INLINE float gpunn__update_gradient(const gpunn__update_job *j, float gradient, float parameter)
{
    float g = gradient * j->n.scale;
    g = gpunn__select(g > j->limit, j->limit, gpunn__select(g < -j->limit, -j->limit, g));
    return g + j->decay * parameter;
}

GPUNN__INLINE void gpunn__update_sgd(const gpunn__update_job *j, const float *GPUNN__RESTRICT gradient, float *GPUNN__RESTRICT p,
                                     int64_t n)
{
    for (int64_t i = 0; i < n; i++) p[i] -= j->n.rate * gpunn__update_gradient(j, gradient[i], p[i]);
}

/* m = momentum * m + (1 - dampening) * g, at first m = g; p -= lr * (nesterov ? g + momentum * m : m). */
GPUNN__INLINE void gpunn__update_momentum(const gpunn__update_job *j, const float *GPUNN__RESTRICT gradient,
                                          float *GPUNN__RESTRICT p, float *GPUNN__RESTRICT m, int64_t n, bool first)
{
    float momentum = j->u->momentum, ahead = j->u->nesterov ? 1.0f : 0.0f, behind = j->u->nesterov ? momentum : 1.0f;
    for (int64_t i = 0; i < n; i++) {
        float g = gpunn__update_gradient(j, gradient[i], p[i]), next = first ? g : momentum * m[i] + j->take1 * g;
        m[i] = next;
        p[i] -= j->n.rate * (ahead * g + behind * next);
    }
}

/* The others work in pieces, whose roots are taken together. */
#define GPUNN__PIECE 64

GPUNN__INLINE void gpunn__update_adam(const gpunn__update_job *j, const float *GPUNN__RESTRICT gradient, float *GPUNN__RESTRICT p,
                                      float *GPUNN__RESTRICT m, float *GPUNN__RESTRICT v, int64_t n)
{
    float root[GPUNN__PIECE], beta1 = j->u->beta1, beta2 = j->u->beta2, eps = j->u->eps;
    for (int64_t i = 0; i < n; i++) {
        float g = gpunn__update_gradient(j, gradient[i], p[i]), square = beta2 * v[i] + j->take2 * g * g;
        m[i] = beta1 * m[i] + j->take1 * g;
        v[i] = root[i] = square;
    }
    gpunn__roots(root, n);
    for (int64_t i = 0; i < n; i++) p[i] = p[i] * j->n.shrink - j->n.rate * (m[i] / (root[i] * j->n.root_scale + eps));
}

GPUNN__INLINE void gpunn__update_rmsprop(const gpunn__update_job *j, const float *GPUNN__RESTRICT gradient,
                                         float *GPUNN__RESTRICT p, float *GPUNN__RESTRICT v, float *GPUNN__RESTRICT buffer,
                                         float *GPUNN__RESTRICT average, int64_t n, bool centered, bool momentum)
{
    float root[GPUNN__PIECE], kept[GPUNN__PIECE], alpha = j->u->alpha, eps = j->u->eps, keep = j->u->momentum;
    for (int64_t i = 0; i < n; i++) {
        float g = gpunn__update_gradient(j, gradient[i], p[i]), square = alpha * v[i] + j->take2 * g * g;
        v[i] = root[i] = square;
        kept[i] = g;
        if (centered) {
            float a = average[i] + j->take2 * (g - average[i]);
            average[i] = a;
            root[i] = square - a * a;
        }
    }
    gpunn__roots(root, n);
    for (int64_t i = 0; i < n; i++) {
        float move = kept[i] / (root[i] + eps);
        if (momentum) {
            move += keep * buffer[i];
            buffer[i] = move;
        }
        p[i] -= j->n.rate * move;
    }
}

GPUNN__INLINE void gpunn__update_adagrad(const gpunn__update_job *j, const float *GPUNN__RESTRICT gradient,
                                         float *GPUNN__RESTRICT p, float *GPUNN__RESTRICT sum, int64_t n)
{
    float root[GPUNN__PIECE], kept[GPUNN__PIECE], eps = j->u->eps;
    for (int64_t i = 0; i < n; i++) {
        float g = gpunn__update_gradient(j, gradient[i], p[i]), square = sum[i] + g * g;
        sum[i] = root[i] = square;
        kept[i] = g;
    }
    gpunn__roots(root, n);
    for (int64_t i = 0; i < n; i++) p[i] -= j->n.rate * (kept[i] / (root[i] + eps));
}

GPUNN__INLINE void gpunn__update_adamax(const gpunn__update_job *j, const float *GPUNN__RESTRICT gradient,
                                        float *GPUNN__RESTRICT p, float *GPUNN__RESTRICT m, float *GPUNN__RESTRICT most,
                                        int64_t n)
{
    float beta1 = j->u->beta1, beta2 = j->u->beta2, eps = j->u->eps;
    for (int64_t i = 0; i < n; i++) {
        float g = gpunn__update_gradient(j, gradient[i], p[i]), now = fabsf(g) + eps, before = beta2 * most[i];
        m[i] = beta1 * m[i] + j->take1 * g;
        most[i] = gpunn__select(before > now, before, now);
        p[i] -= j->n.rate * (m[i] / most[i]);
    }
}

/* The steps of Adam's kind that have no bias correction of the second moment beside the root, or more than m above it. */
GPUNN__INLINE void gpunn__update_nadam(const gpunn__update_job *j, const float *GPUNN__RESTRICT gradient,
                                       float *GPUNN__RESTRICT p, float *GPUNN__RESTRICT m, float *GPUNN__RESTRICT v, int64_t n)
{
    float root[GPUNN__PIECE], kept[GPUNN__PIECE], beta1 = j->u->beta1, beta2 = j->u->beta2, eps = j->u->eps;
    for (int64_t i = 0; i < n; i++) {
        float g = gpunn__update_gradient(j, gradient[i], p[i]), square = beta2 * v[i] + j->take2 * g * g;
        m[i] = beta1 * m[i] + j->take1 * g;
        v[i] = root[i] = square;
        kept[i] = j->n.lead * g + j->n.rate * m[i];
    }
    gpunn__roots(root, n);
    for (int64_t i = 0; i < n; i++) p[i] = p[i] * j->n.shrink - kept[i] / (root[i] * j->n.root_scale + eps);
}

/* rooted false: the first steps, whose second moments tell too little. */
GPUNN__INLINE void gpunn__update_radam(const gpunn__update_job *j, const float *GPUNN__RESTRICT gradient,
                                       float *GPUNN__RESTRICT p, float *GPUNN__RESTRICT m, float *GPUNN__RESTRICT v, int64_t n,
                                       bool rooted)
{
    float root[GPUNN__PIECE], beta1 = j->u->beta1, beta2 = j->u->beta2, eps = j->u->eps;
    for (int64_t i = 0; i < n; i++) {
        float g = gpunn__update_gradient(j, gradient[i], p[i]), square = beta2 * v[i] + j->take2 * g * g;
        m[i] = beta1 * m[i] + j->take1 * g;
        v[i] = root[i] = square;
    }
    gpunn__roots(root, n);
    for (int64_t i = 0; i < n; i++) p[i] = p[i] * j->n.shrink - j->n.rate * (rooted ? m[i] / (root[i] + eps) : m[i]);
}

GPUNN__INLINE void gpunn__update_lion(const gpunn__update_job *j, const float *GPUNN__RESTRICT gradient, float *GPUNN__RESTRICT p,
                                      float *GPUNN__RESTRICT m, int64_t n)
{
    float beta1 = j->u->beta1, beta2 = j->u->beta2;
    for (int64_t i = 0; i < n; i++) {
        float g = gpunn__update_gradient(j, gradient[i], p[i]), way = beta1 * m[i] + j->take1 * g;
        p[i] = p[i] * j->n.shrink - j->n.rate * gpunn__select(way > 0, 1.0f, gpunn__select(way < 0, -1.0f, way));
        m[i] = beta2 * m[i] + j->take2 * g;
    }
}

static void gpunn__update_task(void *arg, int thread, int threads)
{
    const gpunn__update_job j = *(const gpunn__update_job *)arg; /* a copy, which no store can change */
    const gpunn_update     *u = j.u;
    int64_t                 begin, end;
    gpunn__cpu_part(u->count, 1024, threads, thread, &begin, &end);
    int64_t step = u->kind == GPUNN_UPDATE_SGD ? end - begin : GPUNN__PIECE;
    for (int64_t i = begin; i < end; i += step) {
        int64_t      n = gpunn__least(end - i, step);
        const float *g = u->gradient + i;
        float       *p = u->parameter + i, *s[3];
        for (int k = 0; k < 3; k++) s[k] = u->state[k] ? u->state[k] + i : NULL;
        switch (u->kind) {
        case GPUNN_UPDATE_SGD:
            if (u->momentum == 0)
                gpunn__update_sgd(&j, g, p, n);
            else
                GPUNN__FIXED(u->step == 1, gpunn__update_momentum, &j, g, p, s[0], n);
            break;
        case GPUNN_UPDATE_ADAM:
        case GPUNN_UPDATE_ADAMW: gpunn__update_adam(&j, g, p, s[0], s[1], n); break;
        case GPUNN_UPDATE_RMSPROP:
            if (u->centered)
                GPUNN__FIXED(u->momentum != 0, gpunn__update_rmsprop, &j, g, p, s[0], s[1], s[2], n, true);
            else
                GPUNN__FIXED(u->momentum != 0, gpunn__update_rmsprop, &j, g, p, s[0], s[1], s[2], n, false);
            break;
        case GPUNN_UPDATE_ADAGRAD: gpunn__update_adagrad(&j, g, p, s[0], n); break;
        case GPUNN_UPDATE_ADAMAX: gpunn__update_adamax(&j, g, p, s[0], s[1], n); break;
        case GPUNN_UPDATE_NADAM: gpunn__update_nadam(&j, g, p, s[0], s[1], n); break;
        case GPUNN_UPDATE_RADAM: GPUNN__FIXED(j.n.root_scale != 0, gpunn__update_radam, &j, g, p, s[0], s[1], n); break;
        case GPUNN_UPDATE_LION: gpunn__update_lion(&j, g, p, s[0], n); break;
        case GPUNN_UPDATE_LAMB: break; /* gpunn__lamb_task */
        }
    }
}

/* LAMB takes two passes: moments and both norms, in parts that depend on the count alone, then the step. */
enum { GPUNN__LAMB_PARTS = 128 };
typedef struct gpunn__lamb_sums {
    int64_t part; /* elements */
    double  parameter[GPUNN__LAMB_PARTS], move[GPUNN__LAMB_PARTS];
    bool    last; /* the second pass */
    float   rate; /* lr times the trust ratio */
} gpunn__lamb_sums;

static void gpunn__lamb_task(void *arg, int thread, int threads)
{
    const gpunn__update_job j = *(const gpunn__update_job *)arg;
    const gpunn_update     *u = j.u;
    gpunn__lamb_sums       *sums = j.sums;
    const float            *gradient = u->gradient, beta1 = u->beta1, beta2 = u->beta2, eps = u->eps, decay = u->weight_decay;
    float                  *p = u->parameter, *m = u->state[0], *v = u->state[1], move[GPUNN__PIECE];
    int64_t                 begin, end;
    gpunn__cpu_part((u->count + sums->part - 1) / sums->part, 1, threads, thread, &begin, &end);
    for (int64_t part = begin; part < end; part++) {
        int64_t at = part * sums->part, stop = gpunn__least(u->count, at + sums->part);
        double  squares = 0, moves = 0;
        for (; at < stop; at += GPUNN__PIECE) {
            int64_t n = gpunn__least(stop - at, GPUNN__PIECE);
            for (int64_t i = 0; i < n && !sums->last; i++) {
                float g = gpunn__update_gradient(&j, gradient[at + i], 0);
                m[at + i] = beta1 * m[at + i] + j.take1 * g;
                v[at + i] = beta2 * v[at + i] + j.take2 * g * g;
            }
            for (int64_t i = 0; i < n; i++) move[i] = v[at + i];
            gpunn__roots(move, n);
            for (int64_t i = 0; i < n; i++) move[i] = m[at + i] * j.n.lead / (move[i] * j.n.root_scale + eps) + decay * p[at + i];
            for (int64_t i = 0; i < n && sums->last; i++) p[at + i] -= sums->rate * move[i];
            for (int64_t i = 0; i < n && !sums->last; i++) {
                squares += (double)p[at + i] * (double)p[at + i];
                moves += (double)move[i] * (double)move[i];
            }
        }
        if (sums->last) continue;
        sums->parameter[part] = squares;
        sums->move[part] = moves;
    }
}

/* |p| / |u|, at most trust_clip. */
static double gpunn__trust_ratio(const gpunn_update *u, double squares, double moves)
{
    if (u->weight_decay == 0 && !u->always_adapt) return 1;
    double ratio = squares > 0 && moves > 0 ? sqrt(squares / moves) : 1;
    return u->trust_clip > 0 && ratio > (double)u->trust_clip ? (double)u->trust_clip : ratio;
}

static void gpunn__cpu_lamb(gpunn__update_job *j, int threads)
{
    const gpunn_update *u = j->u;
    gpunn__lamb_sums    sums;
    double              squares = 0, moves = 0;
    j->sums = &sums;
    sums.last = false;
    sums.part = u->count > GPUNN__LAMB_PARTS * 4096 ? (u->count + GPUNN__LAMB_PARTS - 1) / GPUNN__LAMB_PARTS : 4096;
    gpunn__cpu_parallel(threads, gpunn__lamb_task, j);
    for (int64_t part = 0; part * sums.part < u->count; part++) {
        squares += sums.parameter[part];
        moves += sums.move[part];
    }
    sums.last = true;
    sums.rate = (float)((double)u->lr * gpunn__trust_ratio(u, squares, moves));
    gpunn__cpu_parallel(threads, gpunn__lamb_task, j);
}

/* NAdam's product of beta1 (1 - 0.96^(i decay) / 2) for i = 1 to step, which torch keeps as state. By the series of the
 * logarithm: sum over k of -1 / (k 2^k) times r^k (1 - r^(k step)) / (1 - r^k), r = 0.96^decay. */
static double gpunn__nadam_product(double beta1, double decay, double step)
{
    double less = -expm1(decay * log(0.96)), all_less = -expm1(step * decay * log(0.96)); /* 1 - r, 1 - r^step */
    double power = 1, all_power = 1, below = 0, all_below = 0, half = 1, sum = 0;         /* r^k ... and 1 - r^k ... */
    for (int k = 1; k <= 48; k++) {
        below += power * less;
        all_below += all_power * all_less;
        power *= 1 - less;
        all_power *= 1 - all_less;
        half /= 2;
        sum += half / k * power * (less > 0 ? all_below / below : step);
    }
    return pow(beta1, step) * exp(-sum);
}

/* Whether a kind has beta1 and beta2. */
static bool gpunn__has_betas(gpunn_update_kind kind)
{
    return kind == GPUNN_UPDATE_ADAM || kind == GPUNN_UPDATE_ADAMW || kind >= GPUNN_UPDATE_ADAMAX;
}

/* RAdam's length of the approximated moving average, and what rate it leaves; 0: too short. */
static double gpunn__radam_rate(double beta2, double step)
{
    double power = pow(beta2, step), most = 2 / (1 - beta2) - 1, now = most - 2 * step * power / (1 - power);
    return now > 5 ? sqrt((1 - power) * (now - 4) * (now - 2) * most / ((most - 4) * (most - 2) * now)) : 0;
}

static gpunn_update_numbers gpunn__update_decide(const gpunn_update *u)
{
    gpunn_update_numbers n;
    double               rate = (double)u->lr, step = (double)u->step, lead = 0, root_scale = 1;
    double               beta1 = gpunn__decimal(u->beta1), beta2 = gpunn__decimal(u->beta2);
    double               left1 = 1 - pow(beta1, step), left2 = 1 - pow(beta2, step);
    n.go = true;
    n.first = u->step == 1;
    n.scale = u->maximize ? -u->gradient_scale : u->gradient_scale;
    n.shrink = gpunn__decays_apart(u) ? (float)(1 - rate * (double)u->weight_decay) : 1;
    switch (u->kind) {
    case GPUNN_UPDATE_SGD:
    case GPUNN_UPDATE_RMSPROP:
    case GPUNN_UPDATE_LION: break;
    case GPUNN_UPDATE_ADAGRAD: rate /= 1 + (step - 1) * (double)u->lr_decay; break;
    case GPUNN_UPDATE_ADAM:
    case GPUNN_UPDATE_ADAMW:
        rate /= left1;
        root_scale = 1 / sqrt(left2);
        break;
    case GPUNN_UPDATE_ADAMAX: rate /= left1; break;
    case GPUNN_UPDATE_NADAM: {
        double decay = gpunn__decimal(u->momentum_decay), product = gpunn__nadam_product(beta1, decay, step);
        double share = beta1 * (1 - 0.5 * pow(0.96, step * decay)), next = beta1 * (1 - 0.5 * pow(0.96, (step + 1) * decay));
        lead = rate * (1 - share) / (1 - product);
        rate *= next / (1 - product * next);
        root_scale = 1 / sqrt(left2);
        break;
    }
    case GPUNN_UPDATE_RADAM: {
        double rectified = gpunn__radam_rate(beta2, step);
        root_scale = rectified > 0 ? 1 : 0;
        rate *= (rectified > 0 ? rectified : 1) / left1;
        break;
    }
    case GPUNN_UPDATE_LAMB:
        lead = 1 / left1;
        root_scale = 1 / sqrt(left2);
        break;
    }
    n.rate = (float)rate;
    n.lead = (float)lead;
    n.root_scale = (float)root_scale;
    return n;
}

static gpunn_status gpunn__cpu_update(void *context, const gpunn_update *u)
{
    gpunn__update_job j;
    bool              betas = gpunn__has_betas(u->kind);
    j.u = u;
    j.n = gpunn__update_decide(u);
    j.limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    j.decay = gpunn__decays_apart(u) ? 0 : u->weight_decay;
    j.take1 = (float)(1 - gpunn__decimal(betas ? u->beta1 : u->dampening));
    j.take2 = (float)(1 - gpunn__decimal(betas ? u->beta2 : u->alpha));
    j.sums = NULL;
    unsigned mode = gpunn__cpu_flush_denormals();
    int      threads = gpunn__cpu_threads((const gpunn__cpu *)context, 2 * u->count);
    if (u->fused)
        (void)u->fused->cpu(u, &j.n, threads);
    else if (u->kind == GPUNN_UPDATE_LAMB)
        gpunn__cpu_lamb(&j, threads);
    else
        gpunn__cpu_parallel(threads, gpunn__update_task, &j);
    gpunn__cpu_restore(mode);
    return GPUNN_OK;
}

typedef struct gpunn__span { /* of floats, in parts that depend on its length alone */
    const float *x;
    float       *y;
    int64_t      count, part;
    float        scale, limit;
    double       sum[128];
} gpunn__span;

static void gpunn__squares_task(void *arg, int thread, int threads)
{
    gpunn__span *s = (gpunn__span *)arg;
    int64_t      begin, end;
    gpunn__cpu_part((s->count + s->part - 1) / s->part, 1, threads, thread, &begin, &end);
    for (int64_t part = begin; part < end; part++) {
        enum { LANES = 16 };
        const float *x = s->x + part * s->part;
        int64_t      n = gpunn__least(s->count - part * s->part, s->part), i = 0;
        double       lane[LANES] = {0}, rest = 0;
        for (; i + LANES <= n; i += LANES)
            for (int j = 0; j < LANES; j++) lane[j] += (double)x[i + j] * (double)x[i + j];
        for (; i < n; i++) rest += (double)x[i] * (double)x[i];
        for (int j = 0; j < LANES; j++) rest += lane[j];
        s->sum[part] = rest;
    }
}

static gpunn_status gpunn__cpu_sum_of_squares(void *context, const float *values, int64_t count, double *result)
{
    gpunn__span s;
    s.x = values;
    s.count = count;
    s.part = count > 128 * 16384 ? (count + 127) / 128 : 16384;
    gpunn__cpu_parallel(gpunn__cpu_threads((const gpunn__cpu *)context, count), gpunn__squares_task, &s);
    *result = 0;
    for (int64_t part = 0; part * s.part < count; part++) *result += s.sum[part];
    return GPUNN_OK;
}

static void gpunn__scale_task(void *arg, int thread, int threads)
{
    gpunn__span *s = (gpunn__span *)arg;
    int64_t      begin, end;
    gpunn__cpu_part(s->count, 1024, threads, thread, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        float y = s->y[i] * s->scale;
        s->y[i] = gpunn__select(y > s->limit, s->limit, gpunn__select(y < -s->limit, -s->limit, y));
    }
}

static gpunn_status gpunn__cpu_scale(void *context, float *values, int64_t count, float scale, float limit)
{
    gpunn__span s;
    s.y = values;
    s.count = count;
    s.scale = scale;
    s.limit = limit > 0 ? limit : INFINITY;
    gpunn__cpu_parallel(gpunn__cpu_threads((const gpunn__cpu *)context, count), gpunn__scale_task, &s);
    return GPUNN_OK;
}
#undef GPUNN__FIXED
#undef GPUNN__PIECE
#undef GPUNN__NORM_WIDTH
#undef GPUNN__COLUMNS
#undef GPUNN__TILE
/* ==== >>cpu =========================================================================================================== */
GPUNN__PRIVATE gpunn_status gpunn__cpu_fail(gpunn__cpu *cpu, gpunn_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    (void)vsnprintf(cpu->error.text, sizeof cpu->error.text, format, list);
    va_end(list);
    cpu->error.status = status;
    return status;
}

static int gpunn__cpu_device_count(void)
{
    return 1;
}

static void *gpunn__cpu_open(const gpunn_device_args *args, char *message, size_t message_size)
{
    gpunn__cpu *cpu = (gpunn__cpu *)args->realloc_fn(args->user, NULL, 0, sizeof *cpu);
    if (cpu == NULL) {
        (void)snprintf(message, message_size, "out of host memory");
        return NULL;
    }
    memset(cpu, 0, sizeof *cpu);
    cpu->realloc_fn = args->realloc_fn;
    cpu->user = args->user;
#ifdef _OPENMP
    cpu->threads = args->threads ? args->threads : omp_get_max_threads();
#else
    cpu->threads = 1;
#endif
    return cpu;
}

static void gpunn__cpu_close(void *context)
{
    gpunn__cpu *cpu = (gpunn__cpu *)context;
    (void)cpu->realloc_fn(cpu->user, cpu, sizeof *cpu, 0);
}

/* The processor's name where the system tells it. */
static void gpunn__cpu_model(char *name, size_t size)
{
    (void)snprintf(name, size, "CPU");
#ifdef __linux__
    FILE *file = fopen("/proc/cpuinfo", "r");
    char  line[256];
    while (file && fgets(line, sizeof line, file)) {
        char *text = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || text == NULL) continue;
        text[strcspn(text, "\n")] = 0;
        (void)snprintf(name, size, "%s", text + 2);
        break;
    }
    if (file) (void)fclose(file);
#endif
}

static void gpunn__cpu_info(void *context, gpunn_backend_info *info)
{
    const gpunn__cpu *cpu = (const gpunn__cpu *)context;
    char              model[96];
    gpunn__cpu_model(model, sizeof model);
    info->type = GPUNN_DEVICE_CPU;
    info->threads = cpu->threads;
    (void)snprintf(info->name, sizeof info->name, "%s, %d thread%s, %s", model, cpu->threads, cpu->threads == 1 ? "" : "s",
                   gpunn__gemm_name());
}

/* Aligned blocks from the host's allocator, whose own alignment is malloc's: the distance to the block's start stands before
 * it. */
static void *gpunn__cpu_alloc(void *context, size_t bytes)
{
    gpunn__cpu *cpu = (gpunn__cpu *)context;
    size_t      whole;
    if (!gpunn__add(bytes, 2 * GPUNN__ALIGN, &whole)) return NULL;
    char *block = (char *)cpu->realloc_fn(cpu->user, NULL, 0, whole);
    if (block == NULL) return NULL;
    size_t shift = GPUNN__ALIGN + (GPUNN__ALIGN - (uintptr_t)block % GPUNN__ALIGN) % GPUNN__ALIGN;
    memcpy(block + shift - sizeof shift, &shift, sizeof shift);
    return block + shift;
}

static void gpunn__cpu_free(void *context, void *ptr, size_t bytes)
{
    gpunn__cpu *cpu = (gpunn__cpu *)context;
    size_t      shift;
    memcpy(&shift, (char *)ptr - sizeof shift, sizeof shift);
    (void)cpu->realloc_fn(cpu->user, (char *)ptr - shift, bytes + 2 * GPUNN__ALIGN, 0);
}

static gpunn_status gpunn__cpu_copy(void *context, void *to, const void *from, size_t bytes)
{
    (void)context;
    memcpy(to, from, bytes);
    return GPUNN_OK;
}

static gpunn_status gpunn__cpu_fill(void *context, void *ptr, int byte, size_t bytes)
{
    (void)context;
    memset(ptr, byte, bytes);
    return GPUNN_OK;
}

static gpunn_status gpunn__cpu_synchronize(void *context)
{
    (void)context;
    return GPUNN_OK;
}

static gpunn_status gpunn__cpu_group(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    const gpunn_kernel_program *program = &step->group.kernel->program[step->group.direction];
    void                       *data[GPUNN_MAX_OPERANDS];
    gpunn_kernel_call           call;
    memset(&call, 0, sizeof call);
    if (program->cpu == NULL || program->operand_count > GPUNN_MAX_OPERANDS)
        return gpunn__cpu_fail(cpu, GPUNN_ERR_UNSUPPORTED, "it has no C kernel that this gpunn.h can call");
    if (action == GPUNN__PREPARE) {
        step->workspace_bytes = program->cpu_workspace(step->group.batch, cpu->threads);
        return step->workspace_bytes == SIZE_MAX ? gpunn__cpu_fail(cpu, GPUNN_ERR_UNSUPPORTED, "the kernel declines that size")
                                                 : GPUNN_OK;
    }
    for (int i = 0; i < step->input_count; i++) data[i] = step->grad_in[i].data ? step->grad_in[i].data : step->in[i].data;
    call.data = data;
    call.accumulate = (const unsigned char *)(const void *)step->accumulate;
    call.batch = step->group.batch;
    call.sites = step->group.sites;
    call.random = &step->state->seed;
    call.workspace = step->workspace;
    call.threads = cpu->threads;
    if (program->cpu(&call) == 0) return GPUNN_OK;
    return gpunn__cpu_fail(cpu, GPUNN_ERR_ARGUMENT, "a label is no class and is not ignore_index; check the labels");
}

/* One line per op, from the tables. */
static gpunn_status gpunn__cpu_dispatch(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action)
{
    switch (step->op) {
#define GPUNN__X(ENUM, name, ...) \
    case GPUNN_OP_##ENUM: return gpunn__cpu_##name(cpu, step, action);
        GPUNN_OTHER_OPS(GPUNN__X)
#undef GPUNN__X
    default: return gpunn__cpu_map(cpu, step, action);
    }
}

static gpunn_status gpunn__cpu_prepare(void *context, gpunn_step *step)
{
    return gpunn__cpu_dispatch((gpunn__cpu *)context, step, GPUNN__PREPARE);
}

static gpunn_status gpunn__cpu_run(void *context, gpunn_step *step)
{
    unsigned     mode = gpunn__cpu_flush_denormals();
    gpunn_status status = gpunn__cpu_dispatch((gpunn__cpu *)context, step, step->backward ? GPUNN__BACKWARD : GPUNN__FORWARD);
    gpunn__cpu_restore(mode);
    return status;
}

static const char *gpunn__cpu_error(void *context)
{
    return ((gpunn__cpu *)context)->error.text;
}

static const gpunn_backend *gpunn__cpu_backend(void)
{
    static const gpunn_backend backend = {
        GPUNN_BACKEND_ABI,
        gpunn__cpu_device_count,
        gpunn__cpu_open,
        gpunn__cpu_close,
        gpunn__cpu_info,
        gpunn__cpu_alloc,
        gpunn__cpu_free,
        gpunn__cpu_copy,
        gpunn__cpu_copy,
        gpunn__cpu_fill,
        gpunn__cpu_synchronize,
        gpunn__cpu_prepare,
        gpunn__cpu_run,
        gpunn__cpu_update,
        gpunn__cpu_sum_of_squares,
        gpunn__cpu_scale,
        NULL,
        NULL,
        NULL,
        NULL,
        NULL,
        NULL,
        NULL,
        gpunn__cpu_error,
    };
    return &backend;
}

/* ==== >>optimizer ===================================================================================================== */
struct gpunn_optimizer {
    gpunn_model     *model;
    gpunn_optimizer *next;        /* in the model's list */
    const char      *name;        /* "gpunn_adam", for messages */
    gpunn_update     rule;        /* kind and constants; the rest is filled in for each range of parameters */
    bool             uses[3];     /* which of rule.state this kind with these constants needs */
    float            state_start; /* what state starts from: 0, or adagrad's initial_accumulator_value */
    /* From the first step on; gpunn__optimizer_prepare: */
    gpunn_tensor **parameters; /* by rising offset; those of layers added later follow */
    int64_t       *steps;      /* updates of each so far */
    int            parameter_count;
    gpunn_update  *updates;       /* room for one a parameter */
    float         *state[3];      /* backend memory by the offsets of model->gradients, state_count floats each; NULL: not used */
    void          *captured;      /* the backend's, of a run with nothing but updates */
    float         *loss_scale;    /* F16: backend memory of scale, steps since it changed, updates skipped; NULL: not used */
    float          kept_scale[3]; /* the same, as read last */
    int64_t        state_count;   /* model->gradient_count when they were made */
    int64_t        step_count;
    float          lr, clip_norm, clip_value;
    /* What the schedule is, defaults in place, and where it stands: */
    gpunn_schedule_args schedule;
    int64_t             schedule_step;
    double plateau_scale, plateau_best; /* the product of all reductions; the best metric so far, at first +-infinity */
    int    plateau_bad, plateau_cooldown;
};

/* For fields where 0 stands for the default and GPUNN_ZERO for 0. */
GPUNN__INLINE float gpunn__default(float value, float standard)
{
    return value == 0 ? standard : value == (float)GPUNN_ZERO ? 0 : value;
}

GPUNN__INLINE int gpunn__default_int(int value, int standard)
{
    return value == 0 ? standard : value == GPUNN_ZERO ? 0 : value;
}

/* Whether low <= value < high; high INFINITY: any finite value from low on. */
static bool gpunn__check_range(gpunn_device *dev, const char *function, const char *field, float value, float low, float high)
{
    if (value >= low && value < high) return true;
    if (isinf(high))
        (void)gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: %s is %g; give a finite number from %g on", function, field,
                          (double)value, (double)low);
    else
        (void)gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: %s is %g; give a number from %g to below %g", function, field,
                          (double)value, (double)low, (double)high);
    return false;
}

/* ---- making ---------------------------------------------------------------------------------------------------------- */
static gpunn_optimizer *gpunn__optimizer_create(gpunn_model *model, const char *name, const gpunn_update *rule, bool uses0,
                                                bool uses1, bool uses2)
{
    gpunn_device *dev = model->dev;
    if (!gpunn__check_range(dev, name, "lr", rule->lr, 0, INFINITY) ||
        !gpunn__check_range(dev, name, "eps", rule->eps, 0, INFINITY) ||
        !gpunn__check_range(dev, name, "momentum", rule->momentum, 0, INFINITY) ||
        !gpunn__check_range(dev, name, "dampening", rule->dampening, -FLT_MAX, INFINITY) ||
        !gpunn__check_range(dev, name, "weight_decay", rule->weight_decay, 0, INFINITY) ||
        !gpunn__check_range(dev, name, "beta1", rule->beta1, 0, 1) ||
        !gpunn__check_range(dev, name, "beta2", rule->beta2, 0, 1) ||
        !gpunn__check_range(dev, name, "alpha", rule->alpha, 0, INFINITY) ||
        !gpunn__check_range(dev, name, "lr_decay", rule->lr_decay, 0, INFINITY) ||
        !gpunn__check_range(dev, name, "momentum_decay", rule->momentum_decay, 0, INFINITY) ||
        !gpunn__check_range(dev, name, "trust_clip", rule->trust_clip, 0, INFINITY))
        return NULL;
    gpunn_optimizer *opt = (gpunn_optimizer *)gpunn__calloc(dev, sizeof *opt);
    if (opt == NULL) return NULL;
    opt->model = model;
    opt->name = name;
    opt->rule = *rule;
    opt->uses[0] = uses0;
    opt->uses[1] = uses1;
    opt->uses[2] = uses2;
    opt->lr = rule->lr;
    opt->plateau_scale = 1;
    opt->kept_scale[0] = 65536;
    opt->next = model->optimizers;
    model->optimizers = opt;
    return opt;
}

/* A rule with everything at 0 but what all kinds have. */
static gpunn_update gpunn__rule(gpunn_update_kind kind, float lr, float weight_decay, bool maximize)
{
    gpunn_update rule;
    memset(&rule, 0, sizeof rule);
    rule.kind = kind;
    rule.lr = lr;
    rule.weight_decay = weight_decay;
    rule.maximize = maximize;
    return rule;
}

GPUNN_API gpunn_optimizer *gpunn_sgd_(gpunn_model *model, gpunn_sgd_args args)
{
    if (model == NULL) return NULL;
    gpunn_update rule = gpunn__rule(GPUNN_UPDATE_SGD, gpunn__default(args.lr, 1e-3f), gpunn__default(args.weight_decay, 0),
                                    args.maximize);
    rule.momentum = gpunn__default(args.momentum, 0);
    rule.dampening = gpunn__default(args.dampening, 0);
    rule.nesterov = args.nesterov;
    if (rule.nesterov && (!(rule.momentum > 0) || rule.dampening != 0)) {
        (void)gpunn__fail(
            model->dev, GPUNN_ERR_ARGUMENT,
            "gpunn_sgd: nesterov needs a momentum above 0 and no dampening, here they are %g and %g; set .momentum = 0.9f",
            (double)rule.momentum, (double)rule.dampening);
        return NULL;
    }
    return gpunn__optimizer_create(model, "gpunn_sgd", &rule, rule.momentum != 0, false, false);
}

static gpunn_optimizer *gpunn__adam_create(gpunn_model *model, const char *name, gpunn_update_kind kind,
                                           const gpunn_adam_args *args, float lr, float weight_decay)
{
    gpunn_update rule = gpunn__rule(kind, gpunn__default(args->lr, lr), gpunn__default(args->weight_decay, weight_decay),
                                    args->maximize);
    rule.beta1 = gpunn__default(args->beta1, 0.9f);
    rule.beta2 = gpunn__default(args->beta2, 0.999f);
    rule.eps = gpunn__default(args->eps, 1e-8f);
    return gpunn__optimizer_create(model, name, &rule, true, true, false);
}

GPUNN_API gpunn_optimizer *gpunn_adam_(gpunn_model *model, gpunn_adam_args args)
{
    return model ? gpunn__adam_create(model, "gpunn_adam", GPUNN_UPDATE_ADAM, &args, 1e-3f, 0) : NULL;
}

GPUNN_API gpunn_optimizer *gpunn_adamw_(gpunn_model *model, gpunn_adam_args args)
{
    return model ? gpunn__adam_create(model, "gpunn_adamw", GPUNN_UPDATE_ADAMW, &args, 1e-3f, 0.01f) : NULL;
}

GPUNN_API gpunn_optimizer *gpunn_adamax_(gpunn_model *model, gpunn_adam_args args)
{
    return model ? gpunn__adam_create(model, "gpunn_adamax", GPUNN_UPDATE_ADAMAX, &args, 2e-3f, 0) : NULL;
}

GPUNN_API gpunn_optimizer *gpunn_rmsprop_(gpunn_model *model, gpunn_rmsprop_args args)
{
    if (model == NULL) return NULL;
    gpunn_update rule = gpunn__rule(GPUNN_UPDATE_RMSPROP, gpunn__default(args.lr, 1e-2f), gpunn__default(args.weight_decay, 0),
                                    args.maximize);
    rule.alpha = gpunn__default(args.alpha, 0.99f);
    rule.eps = gpunn__default(args.eps, 1e-8f);
    rule.momentum = gpunn__default(args.momentum, 0);
    rule.centered = args.centered;
    return gpunn__optimizer_create(model, "gpunn_rmsprop", &rule, true, rule.momentum != 0, rule.centered);
}

GPUNN_API gpunn_optimizer *gpunn_adagrad_(gpunn_model *model, gpunn_adagrad_args args)
{
    if (model == NULL) return NULL;
    gpunn_update rule = gpunn__rule(GPUNN_UPDATE_ADAGRAD, gpunn__default(args.lr, 1e-2f), gpunn__default(args.weight_decay, 0),
                                    args.maximize);
    rule.eps = gpunn__default(args.eps, 1e-10f);
    rule.lr_decay = gpunn__default(args.lr_decay, 0);
    float start = gpunn__default(args.initial_accumulator_value, 0);
    if (!gpunn__check_range(model->dev, "gpunn_adagrad", "initial_accumulator_value", start, 0, INFINITY)) return NULL;
    gpunn_optimizer *opt = gpunn__optimizer_create(model, "gpunn_adagrad", &rule, true, false, false);
    if (opt) opt->state_start = start;
    return opt;
}

static gpunn_optimizer *gpunn__radam_create(gpunn_model *model, const char *name, gpunn_update_kind kind,
                                            const gpunn_radam_args *args, float lr, float momentum_decay)
{
    gpunn_update rule = gpunn__rule(kind, gpunn__default(args->lr, lr), gpunn__default(args->weight_decay, 0), args->maximize);
    rule.beta1 = gpunn__default(args->beta1, 0.9f);
    rule.beta2 = gpunn__default(args->beta2, 0.999f);
    rule.eps = gpunn__default(args->eps, 1e-8f);
    rule.momentum_decay = gpunn__default(args->momentum_decay, momentum_decay);
    rule.decoupled = args->decoupled_weight_decay;
    return gpunn__optimizer_create(model, name, &rule, true, true, false);
}

GPUNN_API gpunn_optimizer *gpunn_nadam_(gpunn_model *model, gpunn_radam_args args)
{
    return model ? gpunn__radam_create(model, "gpunn_nadam", GPUNN_UPDATE_NADAM, &args, 2e-3f, 4e-3f) : NULL;
}

GPUNN_API gpunn_optimizer *gpunn_radam_(gpunn_model *model, gpunn_radam_args args)
{
    if (model == NULL) return NULL;
    if (args.momentum_decay != 0)
        return (gpunn_optimizer *)GPUNN__FAIL_NULL(model->dev, GPUNN_ERR_ARGUMENT,
                                                   "gpunn_radam: momentum_decay is gpunn_nadam's; leave it out");
    return gpunn__radam_create(model, "gpunn_radam", GPUNN_UPDATE_RADAM, &args, 1e-3f, 0);
}

GPUNN_API gpunn_optimizer *gpunn_lion_(gpunn_model *model, gpunn_lion_args args)
{
    if (model == NULL) return NULL;
    gpunn_update rule = gpunn__rule(GPUNN_UPDATE_LION, gpunn__default(args.lr, 1e-4f), gpunn__default(args.weight_decay, 0),
                                    args.maximize);
    rule.beta1 = gpunn__default(args.beta1, 0.9f);
    rule.beta2 = gpunn__default(args.beta2, 0.99f);
    return gpunn__optimizer_create(model, "gpunn_lion", &rule, true, false, false);
}

GPUNN_API gpunn_optimizer *gpunn_lamb_(gpunn_model *model, gpunn_lamb_args args)
{
    if (model == NULL) return NULL;
    gpunn_update rule = gpunn__rule(GPUNN_UPDATE_LAMB, gpunn__default(args.lr, 1e-3f), gpunn__default(args.weight_decay, 0.01f),
                                    args.maximize);
    rule.beta1 = gpunn__default(args.beta1, 0.9f);
    rule.beta2 = gpunn__default(args.beta2, 0.999f);
    rule.eps = gpunn__default(args.eps, 1e-6f);
    rule.trust_clip = gpunn__default(args.trust_clip, 0);
    rule.always_adapt = args.always_adapt;
    return gpunn__optimizer_create(model, "gpunn_lamb", &rule, true, true, false);
}

/* Frees what gpunn__optimizer_prepare made. */
static void gpunn__optimizer_release(gpunn_optimizer *opt)
{
    gpunn_device *dev = opt->model->dev;
    size_t        count = (size_t)opt->parameter_count;
    for (int i = 0; i < 3; i++) gpunn__device_free(dev, opt->state[i], (size_t)opt->state_count * sizeof(float));
    gpunn__free(dev, opt->parameters, count * sizeof *opt->parameters);
    gpunn__free(dev, opt->steps, count * sizeof *opt->steps);
    gpunn__free(dev, opt->updates, count * sizeof *opt->updates);
}

GPUNN_API void gpunn_optimizer_destroy(gpunn_optimizer *opt)
{
    if (opt == NULL) return;
    gpunn_device     *dev = opt->model->dev;
    gpunn_optimizer **link = &opt->model->optimizers;
    while (*link != opt) link = &(*link)->next;
    *link = opt->next;
    if (opt->captured) dev->backend->forget(dev->context, opt->captured);
    gpunn__device_free(dev, opt->loss_scale, sizeof opt->kept_scale);
    gpunn__optimizer_release(opt);
    gpunn__free(dev, opt, sizeof *opt);
}

/* ---- state ----------------------------------------------------------------------------------------------------------- */
/* state, of `count` floats: what old (of opt->state_count) holds, then the value that state starts from. */
static gpunn_status gpunn__state_fill(const gpunn_optimizer *opt, float *state, int64_t count, const float *old)
{
    gpunn_device        *dev = opt->model->dev;
    const gpunn_backend *backend = dev->backend;
    float                piece[2048];
    const int64_t        piece_count = (int64_t)(sizeof piece / sizeof *piece);
    gpunn_status         status = backend->fill(dev->context, state, 0, (size_t)count * sizeof(float));
    int64_t              end = opt->state_start == 0 ? opt->state_count : count;
    for (int64_t at = 0, n; at < end && status == GPUNN_OK; at += n) {
        bool kept = at < opt->state_count;
        n = (kept ? opt->state_count : end) - at;
        if (n > piece_count) n = piece_count;
        if (kept)
            status = backend->download(dev->context, piece, old + at, (size_t)n * sizeof(float));
        else
            for (int64_t i = 0; i < n; i++) piece[i] = opt->state_start;
        if (status == GPUNN_OK) status = backend->upload(dev->context, state + at, piece, (size_t)n * sizeof(float));
    }
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, opt->name, status);
}

static int gpunn__by_offset(const void *a, const void *b)
{
    int64_t x = (*(gpunn_tensor *const *)a)->offset, y = (*(gpunn_tensor *const *)b)->offset;
    return (x > y) - (x < y);
}

static bool gpunn__scales_loss(const gpunn_optimizer *opt)
{
    return opt->model->precision == GPUNN_PRECISION_F16 && opt->model->dev->info.half;
}

/* Memory for the loss scale, where one is used. */
static gpunn_status gpunn__scale_prepare(gpunn_optimizer *opt)
{
    gpunn_device *dev = opt->model->dev;
    if (!gpunn__scales_loss(opt) || opt->loss_scale) return GPUNN_OK;
    opt->loss_scale = (float *)gpunn__device_alloc(dev, sizeof opt->kept_scale);
    if (opt->loss_scale == NULL) return dev->error.status;
    gpunn_status status = dev->backend->upload(dev->context, opt->loss_scale, opt->kept_scale, sizeof opt->kept_scale);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, opt->name, status);
}

/* Brings kept_scale up to date, and lets go of the memory: the next step makes it anew. */
static gpunn_status gpunn__scale_keep(gpunn_optimizer *opt)
{
    gpunn_device *dev = opt->model->dev;
    if (opt->loss_scale == NULL) return GPUNN_OK;
    gpunn_status status = dev->backend->download(dev->context, opt->kept_scale, opt->loss_scale, sizeof opt->kept_scale);
    gpunn__device_free(dev, opt->loss_scale, sizeof opt->kept_scale);
    opt->loss_scale = NULL;
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, opt->name, status);
}

/* Lays out what is not yet laid out and makes parameters, steps and state cover it; all keep what they hold. Checkpoints call
 * this before they read or write them. Nothing is done, or allocated, unless the model has grown. */
GPUNN__PRIVATE gpunn_status gpunn__optimizer_prepare(gpunn_optimizer *opt)
{
    gpunn_model *model = opt->model;
    gpunn_status status = gpunn__commit(model);
    if (status == GPUNN_OK) status = gpunn__scale_prepare(opt);
    if (status != GPUNN_OK || model->gradient_count == opt->state_count) return status;
    gpunn_device   *dev = model->dev;
    gpunn_optimizer grown = *opt;
    grown.state_count = model->gradient_count;
    grown.parameter_count = 0;
    for (int i = 0; i < model->tensor_count; i++) grown.parameter_count += model->tensors[i]->kind == GPUNN__PARAMETER;
    grown.parameters = (gpunn_tensor **)gpunn__calloc(dev, (size_t)grown.parameter_count * sizeof *grown.parameters);
    grown.steps = (int64_t *)gpunn__calloc(dev, (size_t)grown.parameter_count * sizeof *grown.steps);
    grown.updates = (gpunn_update *)gpunn__calloc(dev, (size_t)grown.parameter_count * sizeof *grown.updates);
    if (grown.parameters == NULL || grown.steps == NULL || grown.updates == NULL) status = GPUNN_ERR_MEMORY;
    for (int i = 0; i < 3; i++) {
        grown.state[i] = NULL;
        if (status != GPUNN_OK || !opt->uses[i]) continue;
        grown.state[i] = (float *)gpunn__device_alloc(dev, (size_t)grown.state_count * sizeof(float));
        status = grown.state[i] ? gpunn__state_fill(opt, grown.state[i], grown.state_count, opt->state[i]) : dev->error.status;
    }
    if (status != GPUNN_OK) {
        gpunn__optimizer_release(&grown);
        return status;
    }
    int count = 0;
    for (int i = 0; i < model->tensor_count; i++)
        if (model->tensors[i]->kind == GPUNN__PARAMETER) grown.parameters[count++] = model->tensors[i];
    qsort(grown.parameters, (size_t)count, sizeof *grown.parameters, gpunn__by_offset); /* later ones have larger offsets */
    if (opt->parameter_count) memcpy(grown.steps, opt->steps, (size_t)opt->parameter_count * sizeof *grown.steps);
    gpunn__optimizer_release(opt);
    *opt = grown;
    return GPUNN_OK;
}

/* ---- moving ---------------------------------------------------------------------------------------------------------- */
typedef struct gpunn__moving { /* one block on its way to another device */
    void  *memory, *moved;
    size_t capacity, used; /* bytes there are, and that hold something */
} gpunn__moving;

/* Block number *count of a list, if there is one: NULL only counts it, arrived gives the moved one. */
static void *gpunn__list_block(gpunn__moving *list, int *count, void *memory, size_t capacity, size_t used, bool arrived)
{
    if (memory == NULL) return NULL;
    gpunn__moving *block = list ? &list[*count] : NULL;
    ++*count;
    if (arrived) return block->moved;
    if (block) {
        block->memory = memory;
        block->moved = NULL;
        block->capacity = capacity;
        block->used = used;
    }
    return memory;
}

/* Lists every block of a model that moves, or takes the moved ones when they have arrived. Returns their number. */
static int gpunn__list_blocks(gpunn_model *model, gpunn__moving *list, bool arrived)
{
    int    count = 0;
    size_t bytes = (size_t)model->weight_capacity * sizeof(float);
    model->weights = (float *)gpunn__list_block(list, &count, model->weights, bytes, bytes, arrived);
    for (int id = 0; id < model->tensor_count; id++) {
        gpunn_tensor *t = model->tensors[id];
        size_t        used = t->data ? (size_t)gpunn__count(t, t->batch) * gpunn_dtype_size(t->dtype) : 0;
        t->data = gpunn__list_block(list, &count, t->data, t->capacity, used, arrived);
    }
    for (gpunn_optimizer *opt = model->optimizers; opt; opt = opt->next)
        for (int i = 0; i < 3; i++) {
            bytes = (size_t)opt->state_count * sizeof(float);
            opt->state[i] = (float *)gpunn__list_block(list, &count, opt->state[i], bytes, bytes, arrived);
        }
    return count;
}

static gpunn_status gpunn__move_block(gpunn_device *from, gpunn_device *to, gpunn__moving *move, void *piece, size_t piece_bytes)
{
    static const char function[] = "gpunn_model_to";
    move->moved = gpunn__device_alloc(to, move->capacity);
    if (move->moved == NULL) return to->error.status;
    for (size_t at = 0, n; at < move->used; at += n) {
        n = move->used - at < piece_bytes ? move->used - at : piece_bytes;
        gpunn_status status = from->backend->download(from->context, piece, (const char *)move->memory + at, n);
        if (status != GPUNN_OK) return gpunn__backend_fail(from, function, status);
        status = to->backend->upload(to->context, (char *)move->moved + at, piece, n);
        if (status != GPUNN_OK) return gpunn__backend_fail(to, function, status);
    }
    return GPUNN_OK;
}

/* Lets go of what stays behind on the device that the model leaves. */
static void gpunn__leave(gpunn_model *model)
{
    gpunn_device *dev = model->dev;
    gpunn_model **link = &dev->models;
    while (*link != model) link = &(*link)->next;
    *link = model->next;
    gpunn__invalidate(model);
    gpunn__device_free(dev, model->arena, model->arena_bytes);
    gpunn__device_free(dev, model->gradients, (size_t)model->gradient_capacity * sizeof(float));
    gpunn__device_free(dev, model->half, (size_t)model->half_capacity * 2);
    model->arena = NULL;
    model->arena_bytes = 0;
    model->gradients = NULL;
    model->gradient_capacity = 0;
    model->half = NULL;
    model->half_capacity = 0;
    model->generation++;
    for (int id = 0; id < model->tensor_count; id++) model->tensors[id]->grad_reached = false;
    for (gpunn_optimizer *opt = model->optimizers; opt; opt = opt->next) {
        if (opt->captured) dev->backend->forget(dev->context, opt->captured);
        opt->captured = NULL;
    }
}

GPUNN_API gpunn_status gpunn_model_to(gpunn_model *model, gpunn_device *dev)
{
    enum { PIECE = 1 << 20 };
    if (model == NULL || dev == NULL)
        return gpunn__fail(model ? model->dev : NULL, GPUNN_ERR_ARGUMENT, "gpunn_model_to: the %s is NULL",
                           model ? "device" : "model");
    gpunn_device *from = model->dev;
    if (from == dev) return GPUNN_OK;
    if (from->args.realloc_fn != dev->args.realloc_fn || from->args.user != dev->args.user)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_model_to: the devices were opened with different realloc_fn or user; open both with the same");
    for (gpunn_optimizer *opt = model->optimizers; opt; opt = opt->next) {
        gpunn_status kept = gpunn__scale_keep(opt);
        if (kept != GPUNN_OK) return kept;
    }
    int            count = gpunn__list_blocks(model, NULL, false);
    size_t         bytes = (size_t)count * sizeof(gpunn__moving) + PIECE;
    gpunn__moving *list = (gpunn__moving *)gpunn__realloc(dev, NULL, 0, bytes);
    if (list == NULL) return GPUNN_ERR_MEMORY;
    (void)gpunn__list_blocks(model, list, false);
    gpunn_status status = GPUNN_OK;
    for (int i = 0; i < count && status == GPUNN_OK; i++) status = gpunn__move_block(from, dev, &list[i], list + count, PIECE);
    bool moved = status == GPUNN_OK;
    if (moved) {
        gpunn__leave(model);
        (void)gpunn__list_blocks(model, list, true);
        model->next = dev->models;
        dev->models = model;
        model->dev = dev;
    }
    for (int i = 0; i < count; i++)
        gpunn__device_free(moved ? from : dev, moved ? list[i].memory : list[i].moved, list[i].capacity);
    gpunn__free(dev, list, bytes);
    return status;
}

/* ---- stepping -------------------------------------------------------------------------------------------------------- */
/* Consecutive parameters, [begin, end) of the flat buffers. The zeros that align one parameter after another are run over. */
typedef struct gpunn__range {
    int     first, next; /* in the list of parameters; next starts at 0 */
    int64_t begin, end;
} gpunn__range;

static bool gpunn__has_gradient(const gpunn_tensor *t)
{
    return t->kind == GPUNN__PARAMETER && t->trainable && t->grad_reached;
}

/* Whether parameter i of the list goes on where the range ends and, with opt, shares all that an update call reads. Where eps is
 * 0 the zeros between parameters would become 0 / 0, so there they are left out. LAMB's norms are each parameter's own. */
static bool gpunn__goes_on(const gpunn__range *range, gpunn_tensor *const *list, int i, const gpunn_optimizer *opt)
{
    const gpunn_tensor *t = list[i], *first = list[range->first];
    int64_t             padded = (range->end + GPUNN__WEIGHT_ALIGN - 1) / GPUNN__WEIGHT_ALIGN * GPUNN__WEIGHT_ALIGN;
    if (!gpunn__has_gradient(t) || t->offset != padded) return false;
    if (opt == NULL) return true;
    if (opt->rule.kind == GPUNN_UPDATE_LAMB) return false;
    bool same_decay = t->decay == first->decay || opt->rule.weight_decay == 0;
    return t->lr_scale == first->lr_scale && same_decay && opt->steps[i] == opt->steps[range->first] &&
           (opt->rule.eps != 0 || range->end == padded);
}

/* Moves on to the next range of the list that has gradients. */
static bool gpunn__next_range(gpunn__range *range, gpunn_tensor *const *list, int count, const gpunn_optimizer *opt)
{
    int i = range->next;
    while (i < count && !gpunn__has_gradient(list[i])) i++;
    range->first = range->next = i;
    if (i == count) return false;
    range->begin = list[i]->offset;
    do range->end = list[i]->offset + gpunn__count(list[i], 1);
    while (++i < count && gpunn__goes_on(range, list, i, opt));
    range->next = i;
    return true;
}

/* The 2-norm of all gradients; its being NaN or infinite is an error. */
static gpunn_status gpunn__gradient_norm(gpunn_model *model, const char *function, gpunn_tensor *const *list, int count,
                                         double *norm)
{
    gpunn_device *dev = model->dev;
    double        sum = 0, part = 0;
    gpunn__range  range = {0, 0, 0, 0};
    while (gpunn__next_range(&range, list, count, NULL)) {
        gpunn_status status = dev->backend->sum_of_squares(dev->context, model->gradients + range.begin, range.end - range.begin,
                                                           &part);
        if (status != GPUNN_OK) return gpunn__backend_fail(dev, function, status);
        sum += part;
    }
    *norm = sqrt(sum);
    if (isfinite(sum)) return GPUNN_OK;
    return gpunn__fail(
        dev, GPUNN_ERR_NUMERIC,
        "%s: the norm of the gradients is %s; lower the learning rate, or look for a division by 0 or a log of 0 in the model",
        function, isnan(sum) ? "NaN" : "infinite");
}

/* torch's clip_coef. */
static float gpunn__clip_scale(float max_norm, double norm)
{
    double scale = max_norm / (norm + 1e-6);
    return scale < 1 ? (float)scale : 1;
}

static double gpunn__scheduled_lr(const gpunn_optimizer *opt);

/* Gives an update the generated kernel that does just this. */
static void gpunn__find_fused(gpunn_update *update, const gpunn_kernel_set *set)
{
    for (int i = 0; set && i < set->update_count; i++) {
        const gpunn_update *p = &set->updates[i].pattern;
        bool fits = p->kind == update->kind && p->momentum == update->momentum && p->dampening == update->dampening &&
                    p->beta1 == update->beta1 && p->beta2 == update->beta2 && p->alpha == update->alpha &&
                    p->eps == update->eps && p->nesterov == update->nesterov && p->centered == update->centered &&
                    p->maximize == update->maximize && p->decoupled == update->decoupled &&
                    (update->half == NULL || p->half_dtype == update->half_dtype);
        if (!fits) continue;
        update->fused = &set->updates[i];
        update->fused_launch = set->cuda ? set->cuda->update[i] : NULL;
    }
}

/* opt->updates: one for each range of parameters that have a gradient, which is read as clamp(gradient * scale, +-limit). Returns
 * their number. */
static int gpunn__optimizer_updates(gpunn_optimizer *opt, float scale, float limit)
{
    gpunn_model *model = opt->model;
    double       lr = gpunn__scheduled_lr(opt);
    gpunn__range range = {0, 0, 0, 0};
    int          count = 0;
    while (gpunn__next_range(&range, opt->parameters, opt->parameter_count, opt)) {
        const gpunn_tensor *first = opt->parameters[range.first];
        gpunn_update       *update = &opt->updates[count++];
        *update = opt->rule;
        update->gradient_scale = scale;
        update->gradient_limit = limit;
        update->count = range.end - range.begin;
        update->parameter = model->weights + range.begin;
        update->half = model->half ? (char *)model->half + range.begin * 2 : NULL;
        update->half_dtype = gpunn__half_of(model);
        update->gradient = model->gradients + range.begin;
        for (int i = 0; i < 3; i++) update->state[i] = opt->state[i] ? opt->state[i] + range.begin : NULL;
        update->step = opt->steps[range.first] + 1;
        update->lr = (float)(lr * (double)first->lr_scale);
        update->weight_decay = first->decay ? opt->rule.weight_decay : 0;
        gpunn__find_fused(update, model->kernels);
    }
    return count;
}

static void gpunn__optimizer_advance(gpunn_optimizer *opt)
{
    for (int i = 0; i < opt->parameter_count; i++) opt->steps[i] += gpunn__has_gradient(opt->parameters[i]);
    opt->step_count++;
    opt->model->state.weights_version++; /* the updates have renewed model->half */
}

static void gpunn__optimizer_collect(gpunn_optimizer *opt, gpunn_run *run)
{
    run->updates = opt->updates;
    run->update_count = gpunn__optimizer_updates(opt, 1, opt->clip_value);
    run->clip_norm = opt->clip_norm;
    run->loss_scale = opt->loss_scale;
}

/* The first `count` of opt->updates, one after another. */
static gpunn_status gpunn__optimizer_apply(gpunn_optimizer *opt, int count)
{
    gpunn_device *dev = opt->model->dev;
    for (int i = 0; i < count; i++) {
        gpunn_status status = dev->backend->update(dev->context, &opt->updates[i]);
        if (status != GPUNN_OK) return gpunn__backend_fail(dev, opt->name, status);
    }
    gpunn__optimizer_advance(opt);
    return GPUNN_OK;
}

static gpunn_status gpunn__optimizer_update(gpunn_optimizer *opt)
{
    double       norm = 0;
    gpunn_status status = GPUNN_OK;
    if (opt->clip_norm > 0)
        status = gpunn__gradient_norm(opt->model, "gpunn_train_step", opt->parameters, opt->parameter_count, &norm);
    if (status != GPUNN_OK) return status;
    float scale = opt->clip_norm > 0 ? gpunn__clip_scale(opt->clip_norm, norm) : 1;
    return gpunn__optimizer_apply(opt, gpunn__optimizer_updates(opt, scale, opt->clip_value));
}

GPUNN_API gpunn_status gpunn_optimizer_step(gpunn_optimizer *opt)
{
    if (opt == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "gpunn_optimizer_step: the optimizer is NULL");
    gpunn_device *dev = opt->model->dev;
    gpunn_status  status = gpunn__optimizer_prepare(opt);
    if (status != GPUNN_OK) return status;
    int count = gpunn__optimizer_updates(opt, 1, 0);
    if (dev->backend->execute == NULL) return gpunn__optimizer_apply(opt, count);
    gpunn_run run;
    memset(&run, 0, sizeof run);
    run.state = &opt->model->state;
    run.captured = opt->captured;
    run.updates = opt->updates;
    run.update_count = count;
    status = gpunn__execute(dev, &run, opt->name);
    opt->captured = run.captured;
    if (status == GPUNN_OK) gpunn__optimizer_advance(opt);
    return status;
}

GPUNN_API gpunn_status gpunn_train_step(gpunn_optimizer *opt, gpunn_tensor *loss)
{
    if (opt == NULL || loss == NULL)
        return gpunn__fail(opt    ? opt->model->dev
                           : loss ? loss->model->dev
                                  : NULL,
                           GPUNN_ERR_ARGUMENT, "gpunn_train_step: the %s is NULL", opt ? "loss" : "optimizer");
    if (loss->model != opt->model)
        return gpunn__fail(opt->model->dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_train_step: the loss is of another model than the optimizer");
    gpunn_status status = gpunn__optimizer_prepare(opt);
    if (status == GPUNN_OK) status = gpunn_zero_grad(opt->model);
    return status == GPUNN_OK ? gpunn__gradients(loss, opt) : status;
}

/* Every gradient there is becomes clamp(gradient * scale, +-limit). */
static gpunn_status gpunn__scale_gradients(gpunn_model *model, const char *function, float scale, float limit)
{
    gpunn_device *dev = model->dev;
    gpunn_status  status = GPUNN_OK;
    gpunn__range  range = {0, 0, 0, 0};
    while (status == GPUNN_OK && gpunn__next_range(&range, model->tensors, model->tensor_count, NULL))
        status = dev->backend->scale(dev->context, model->gradients + range.begin, range.end - range.begin, scale, limit);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(dev, function, status);
}

GPUNN_API gpunn_status gpunn_clip_grad_norm(gpunn_model *model, float max_norm, float *total_norm)
{
    static const char function[] = "gpunn_clip_grad_norm";
    if (model == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "%s: the model is NULL", function);
    if (!(max_norm > 0))
        return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT, "%s: max_norm is %g; give one above 0", function, (double)max_norm);
    double       norm = 0;
    gpunn_status status = gpunn__gradient_norm(model, function, model->tensors, model->tensor_count, &norm);
    if (total_norm) *total_norm = (float)norm;
    float scale = gpunn__clip_scale(max_norm, norm);
    return status == GPUNN_OK && scale < 1 ? gpunn__scale_gradients(model, function, scale, 0) : status;
}

GPUNN_API gpunn_status gpunn_clip_grad_value(gpunn_model *model, float clip_value)
{
    static const char function[] = "gpunn_clip_grad_value";
    if (model == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "%s: the model is NULL", function);
    if (!(clip_value > 0))
        return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT, "%s: clip_value is %g; give one above 0", function,
                           (double)clip_value);
    return gpunn__scale_gradients(model, function, 1, clip_value);
}

/* Sets one of the optimizer's numbers, unless it is NaN or negative. */
static void gpunn__optimizer_set(gpunn_optimizer *opt, const char *function, const char *what, float *field, float value)
{
    if (opt == NULL)
        (void)gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "%s: the optimizer is NULL", function);
    else if (gpunn__check_range(opt->model->dev, function, what, value, 0, INFINITY))
        *field = value;
}

GPUNN_API void gpunn_set_lr(gpunn_optimizer *opt, float lr)
{
    gpunn__optimizer_set(opt, "gpunn_set_lr", "lr", opt ? &opt->lr : NULL, lr);
}

GPUNN_API void gpunn_set_clip_norm(gpunn_optimizer *opt, float max_norm)
{
    gpunn__optimizer_set(opt, "gpunn_set_clip_norm", "max_norm", opt ? &opt->clip_norm : NULL, max_norm);
}

GPUNN_API void gpunn_set_clip_value(gpunn_optimizer *opt, float clip_value)
{
    gpunn__optimizer_set(opt, "gpunn_set_clip_value", "clip_value", opt ? &opt->clip_value : NULL, clip_value);
}

GPUNN_API float gpunn_get_lr(const gpunn_optimizer *opt)
{
    return opt ? (float)gpunn__scheduled_lr(opt) : 0;
}

GPUNN_API float gpunn_loss_scale(gpunn_optimizer *opt, int64_t *skipped)
{
    bool used = opt && gpunn__scales_loss(opt);
    if (used && gpunn__scale_keep(opt) != GPUNN_OK) used = false;
    if (skipped) *skipped = used ? (int64_t)opt->kept_scale[2] : 0;
    return used ? opt->kept_scale[0] : 1;
}

GPUNN_API int64_t gpunn_step_count(const gpunn_optimizer *opt)
{
    return opt ? opt->step_count : 0;
}

/* ---- schedules ------------------------------------------------------------------------------------------------------- */
/* The number that was meant: 0.9999f is off by 3e-8, which its powers multiply; what 7 digits can say is taken at its word. */
static double gpunn__as_written(float value)
{
    double rounded = floor((double)value * 1e7 + 0.5) / 1e7;
    return (float)rounded == value ? rounded : (double)value;
}

/* From `from` to `to` along half a cosine. */
static double gpunn__anneal(double from, double to, double share)
{
    return to + (from - to) * (1 + cos(3.14159265358979323846 * share)) / 2;
}

/* All in closed form, so that nothing has to be kept but t. One-cycle and cosine stay at their last value after total_steps. */
static double gpunn__scheduled_lr(const gpunn_optimizer *opt)
{
    const gpunn_schedule_args *s = &opt->schedule;
    double                     lr = opt->lr, low = s->min_lr, t = (double)opt->schedule_step, total = (double)s->total_steps;
    switch (s->type) {
    case GPUNN_SCHEDULE_STEP: return lr * pow(gpunn__as_written(s->gamma), (double)(opt->schedule_step / s->step_size));
    case GPUNN_SCHEDULE_MULTI_STEP: {
        int passed = 0;
        while (passed < 16 && s->milestones[passed] > 0 && s->milestones[passed] <= opt->schedule_step) passed++;
        return lr * pow(gpunn__as_written(s->gamma), passed);
    }
    case GPUNN_SCHEDULE_EXPONENTIAL: return lr * pow(gpunn__as_written(s->gamma), t);
    case GPUNN_SCHEDULE_COSINE: return t < total ? gpunn__anneal(lr, low, t / total) : low;
    case GPUNN_SCHEDULE_ONE_CYCLE: { /* up from lr / div_factor until step `top`, then down to that over final_div_factor */
        double first = lr / s->div_factor, top = gpunn__as_written(s->pct_start) * total - 1, last = total - 1;
        if (t > last) t = last;
        if (t <= top) return gpunn__anneal(first, lr, top > 0 ? t / top : 1);
        return gpunn__anneal(lr, first / s->final_div_factor, (t - top) / (last - top));
    }
    case GPUNN_SCHEDULE_LINEAR: {
        double warmup = (double)s->warmup_steps;
        if (t < warmup) return lr * t / warmup;
        return t < total ? lr + (low - lr) * (t - warmup) / (total - warmup) : low;
    }
    case GPUNN_SCHEDULE_PLATEAU: return lr * opt->plateau_scale;
    case GPUNN_SCHEDULE_CONSTANT: break;
    }
    return lr;
}

/* Puts the defaults in and checks what the type reads. */
static gpunn_status gpunn__schedule_check(gpunn_device *dev, gpunn_schedule_args *s)
{
    static const char   function[] = "gpunn_set_schedule";
    gpunn_schedule_type type = s->type;
    s->gamma = gpunn__default(s->gamma, type == GPUNN_SCHEDULE_EXPONENTIAL ? 0.95f : 0.1f);
    s->min_lr = gpunn__default(s->min_lr, 0);
    s->pct_start = gpunn__default(s->pct_start, 0.3f);
    s->div_factor = gpunn__default(s->div_factor, 25);
    s->final_div_factor = gpunn__default(s->final_div_factor, 1e4f);
    s->factor = gpunn__default(s->factor, 0.1f);
    s->threshold = gpunn__default(s->threshold, 1e-4f);
    s->patience = gpunn__default_int(s->patience, 10);
    s->cooldown = gpunn__default_int(s->cooldown, 0);
    if ((int)type < 0 || type > GPUNN_SCHEDULE_PLATEAU)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: type %d is no gpunn_schedule_type", function, (int)type);
    if (!gpunn__check_range(dev, function, "gamma", s->gamma, 0, INFINITY) ||
        !gpunn__check_range(dev, function, "min_lr", s->min_lr, 0, INFINITY) ||
        !gpunn__check_range(dev, function, "factor", s->factor, 0, 1) ||
        !gpunn__check_range(dev, function, "threshold", s->threshold, 0, INFINITY))
        return GPUNN_ERR_ARGUMENT;
    if (!(s->pct_start >= 0 && s->pct_start <= 1 && s->div_factor > 0 && s->final_div_factor > 0))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: pct_start is %g, div_factor %g and final_div_factor %g; give a pct_start from 0 to 1 "
                           "and factors above 0",
                           function, (double)s->pct_start, (double)s->div_factor, (double)s->final_div_factor);
    if (s->patience < 0 || s->cooldown < 0)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: patience is %d and cooldown %d; neither may be negative", function,
                           s->patience, s->cooldown);
    if (type == GPUNN_SCHEDULE_STEP && s->step_size < 1)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: step_size is %lld; give the steps between two reductions", function,
                           (long long)s->step_size);
    if ((type == GPUNN_SCHEDULE_COSINE || type == GPUNN_SCHEDULE_ONE_CYCLE || type == GPUNN_SCHEDULE_LINEAR) &&
        s->total_steps < 1)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: total_steps is %lld; give the number of steps the schedule is to last",
                           function, (long long)s->total_steps);
    if (type == GPUNN_SCHEDULE_LINEAR && (s->warmup_steps < 0 || s->warmup_steps >= s->total_steps))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: warmup_steps is %lld; it must be from 0 to below total_steps, %lld",
                           function, (long long)s->warmup_steps, (long long)s->total_steps);
    for (int i = 0; type == GPUNN_SCHEDULE_MULTI_STEP && i < 16 && (i == 0 || s->milestones[i] != 0); i++)
        if (s->milestones[i] <= (i ? s->milestones[i - 1] : 0))
            return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: milestones[%d] is %lld; milestones must be above 0 and rise",
                               function, i, (long long)s->milestones[i]);
    return GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_set_schedule_(gpunn_optimizer *opt, gpunn_schedule_args args)
{
    if (opt == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "gpunn_set_schedule: the optimizer is NULL");
    gpunn_status status = gpunn__schedule_check(opt->model->dev, &args);
    if (status != GPUNN_OK) return status;
    opt->schedule = args;
    opt->schedule_step = 0;
    opt->plateau_scale = 1;
    opt->plateau_best = args.maximize ? -INFINITY : INFINITY;
    opt->plateau_bad = opt->plateau_cooldown = 0;
    return GPUNN_OK;
}

/* torch's ReduceLROnPlateau.step with its relative threshold; reductions of 1e-8 or less are not made, as there. */
static void gpunn__plateau_step(gpunn_optimizer *opt, double metric)
{
    const gpunn_schedule_args *s = &opt->schedule;
    double                     threshold = gpunn__as_written(s->threshold), best = opt->plateau_best;
    if (s->maximize ? metric > best * (1 + threshold) : metric < best * (1 - threshold)) {
        opt->plateau_best = metric;
        opt->plateau_bad = 0;
    } else
        opt->plateau_bad++;
    if (opt->plateau_cooldown > 0) {
        opt->plateau_cooldown--;
        opt->plateau_bad = 0;
    }
    if (opt->plateau_bad > s->patience) {
        double lr = gpunn__scheduled_lr(opt), reduced = fmax(lr * gpunn__as_written(s->factor), (double)s->min_lr);
        if (lr - reduced > 1e-8) opt->plateau_scale = reduced / opt->lr;
        opt->plateau_cooldown = s->cooldown;
        opt->plateau_bad = 0;
    }
}

GPUNN_API gpunn_status gpunn_schedule_step(gpunn_optimizer *opt, float metric)
{
    if (opt == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "gpunn_schedule_step: the optimizer is NULL");
    opt->schedule_step++;
    if (opt->schedule.type == GPUNN_SCHEDULE_PLATEAU) gpunn__plateau_step(opt, metric);
    return GPUNN_OK;
}
/* ==== files: one layer over POSIX and Windows, for everything that reads or writes a file ============================= */
#ifdef _WIN32
#define GPUNN__OS(name) _##name
#define GPUNN__O_FLAGS (_O_BINARY | _O_NOINHERIT)
typedef struct _stat64 gpunn__stat_result;

static int gpunn__stat(const char *path, gpunn__stat_result *result)
{
    return _stat64(path, result);
}
static int gpunn__sync(int fd)
{
    return _commit(fd);
}
#define GPUNN__IS_DIRECTORY(mode) (((mode)&_S_IFMT) == _S_IFDIR)
#define GPUNN__IS_REGULAR(mode) (((mode)&_S_IFMT) == _S_IFREG)
#else
#define GPUNN__OS(name) name
#ifdef O_CLOEXEC
#define GPUNN__O_FLAGS O_CLOEXEC
#else
#define GPUNN__O_FLAGS 0
#endif
typedef struct stat gpunn__stat_result;

static int gpunn__stat(const char *path, gpunn__stat_result *result)
{
    return stat(path, result);
}
static int gpunn__sync(int fd)
{
    return fsync(fd);
}
#define GPUNN__IS_DIRECTORY(mode) S_ISDIR(mode)
#define GPUNN__IS_REGULAR(mode) S_ISREG(mode)
#endif

/* For messages: the end of a path that is too long for one. */
static const char *gpunn__tail(const char *path)
{
    size_t length = strlen(path);
    return length > 240 ? path + length - 240 : path;
}

/* doing: "read" or "write". */
static gpunn_status gpunn__file_fail(gpunn_device *dev, const char *doing, const char *path, int error)
{
    const char *remedy = "check the path and the disk";
    switch (error) {
    case ENOENT: remedy = *doing == 'r' ? "check the path" : "create its directory first"; break;
    case ENOTDIR: remedy = "part of the path is a file; check it"; break;
    case EISDIR: remedy = "name a file, not a directory"; break;
    case EACCES:
    case EPERM:
    case EROFS: remedy = *doing == 'r' ? "allow this user to read it" : "choose a place where this user may write"; break;
    case ENOSPC:
    case EFBIG:
#ifdef EDQUOT
    case EDQUOT:
#endif
        remedy = "make room or choose another disk";
        break;
    default: break;
    }
    return gpunn__fail(dev, GPUNN_ERR_IO, "cannot %s '%s': %s; %s", doing, gpunn__tail(path), strerror(error), remedy);
}

/* -- writing: into a new file beside the target that replaces it when complete. The first failure stays, so callers may write on
 * and look at the status of the commit only. What is no regular file (/dev/null, a pipe) is written directly. -- */
typedef struct gpunn__file {
    gpunn_device *dev;
    const char   *path;      /* the caller's; must live until commit or discard */
    char         *temporary; /* NULL: written directly */
    size_t        temporary_size;
    int           fd; /* -1: closed */
    gpunn_status  status;
    size_t        used;
    unsigned char buffer[8192];
} gpunn__file;

/* Forgets the file and leaves the target as it was. Harmless after a commit. */
GPUNN__PRIVATE void gpunn__file_discard(gpunn__file *f)
{
    if (f->fd >= 0) {
        (void)GPUNN__OS(close)(f->fd);
        if (f->temporary) (void)GPUNN__OS(unlink)(f->temporary);
    }
    f->fd = -1;
    gpunn__free(f->dev, f->temporary, f->temporary_size);
    f->temporary = NULL;
}

/* A failure here leaves nothing to discard. */
GPUNN__PRIVATE gpunn_status gpunn__file_open(gpunn_device *dev, const char *path, gpunn__file *f)
{
    f->dev = dev;
    f->path = path;
    f->temporary = NULL;
    f->fd = -1;
    f->status = GPUNN_ERR_ARGUMENT;
    f->used = 0;
    if (path == NULL || *path == 0)
        return gpunn__fail(dev, f->status, "cannot write a file: its path is %s; name one", path ? "\"\"" : "NULL");
    int                flags = O_WRONLY | GPUNN__O_FLAGS, mode = 0666;
    gpunn__stat_result there;
    bool               exists = gpunn__stat(path, &there) == 0;
    if (exists && GPUNN__IS_DIRECTORY(there.st_mode)) {
        errno = EISDIR;
    } else if (exists && !GPUNN__IS_REGULAR(there.st_mode)) {
        f->fd = GPUNN__OS(open)(path, flags);
    } else {
        if (exists) mode = (int)(there.st_mode & 0777); /* the new file is no more readable than the old one */
        f->temporary_size = strlen(path) + 40;
        f->temporary = (char *)gpunn__realloc(dev, NULL, 0, f->temporary_size);
        if (f->temporary == NULL) return f->status = GPUNN_ERR_MEMORY;
        for (int attempt = 0; attempt < 100 && f->fd < 0; attempt++) {
            (void)snprintf(f->temporary, f->temporary_size, "%s.%ld-%d.tmp", path, (long)GPUNN__OS(getpid)(), attempt);
            f->fd = GPUNN__OS(open)(f->temporary, flags | O_CREAT | O_EXCL, mode);
            if (f->fd < 0 && errno != EEXIST) break;
        }
    }
    f->status = f->fd >= 0 ? GPUNN_OK : gpunn__file_fail(dev, "write", path, errno);
    if (f->status != GPUNN_OK) gpunn__file_discard(f);
    return f->status;
}

static void gpunn__file_put(gpunn__file *f, const unsigned char *data, size_t bytes)
{
    while (bytes > 0 && f->status == GPUNN_OK) {
        int64_t done = (int64_t)GPUNN__OS(write)(f->fd, data, (unsigned)(bytes < (1u << 30) ? bytes : 1u << 30));
        if (done > 0) {
            data += done;
            bytes -= (size_t)done;
        } else if (done == 0 || errno != EINTR)
            f->status = gpunn__file_fail(f->dev, "write", f->path, done == 0 ? ENOSPC : errno);
    }
}

GPUNN__PRIVATE gpunn_status gpunn__file_write(gpunn__file *f, const void *data, size_t bytes)
{
    if (bytes > sizeof f->buffer - f->used) {
        gpunn__file_put(f, f->buffer, f->used);
        f->used = 0;
    }
    if (bytes >= sizeof f->buffer)
        gpunn__file_put(f, (const unsigned char *)data, bytes);
    else if (bytes > 0) {
        memcpy(f->buffer + f->used, data, bytes);
        f->used += bytes;
    }
    return f->status;
}

/* The target is the new file, safely on the disk, or what it was before. */
GPUNN__PRIVATE gpunn_status gpunn__file_commit(gpunn__file *f)
{
    if (f->fd < 0) return f->status;
    gpunn__file_put(f, f->buffer, f->used);
    if (f->status == GPUNN_OK) {
        int error = f->temporary && gpunn__sync(f->fd) != 0 ? errno : 0;
        if (GPUNN__OS(close)(f->fd) != 0 && error == 0) error = errno;
        f->fd = -1;
        if (f->temporary && error == 0) {
#ifdef _WIN32
            if (!MoveFileExA(f->temporary, f->path, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH)) error = EACCES;
#else
            if (rename(f->temporary, f->path) != 0) error = errno;
#endif
        }
        if (error) {
            if (f->temporary) (void)GPUNN__OS(unlink)(f->temporary);
            f->status = gpunn__file_fail(f->dev, "write", f->path, error);
        }
#ifndef _WIN32
        else if (f->temporary) { /* the new name is in its directory: sync that too, where the file system can */
            strcpy(f->temporary, f->path);
            char *slash = strrchr(f->temporary, '/');
            if (slash == NULL)
                strcpy(f->temporary, ".");
            else
                slash[slash == f->temporary] = 0;
            int directory = open(f->temporary, O_RDONLY | GPUNN__O_FLAGS);
            if (directory >= 0) {
                (void)gpunn__sync(directory);
                (void)close(directory);
            }
        }
#endif
    }
    gpunn__file_discard(f);
    return f->status;
}

/* -- reading: forward only; with gz, a file that gzip compressed is expanded on the way -- */
typedef struct gpunn__reader {
    gpunn_device *dev;
    const char   *path; /* the caller's; must live until the reader is closed */
    int           fd;
    uint64_t      limit;   /* no more bytes than this can come, which bounds what a header may claim */
    size_t        at, end; /* unread bytes of the buffer, as they are in the file */
#ifdef GPUNN_ZLIB
    bool     compressed, member; /* member: inside one of the gzip members that make up the file */
    z_stream zlib;
#endif
    unsigned char buffer[16384];
} gpunn__reader;

#ifdef GPUNN_ZLIB
/* zlib allocates through the user's hook, which wants the size back: it is kept before the block. */
static void *gpunn__zlib_alloc(void *dev, unsigned count, unsigned size)
{
    size_t bytes = (size_t)count * size + 16;
    void  *block = gpunn__realloc((gpunn_device *)dev, NULL, 0, bytes);
    if (block == NULL) return NULL;
    memcpy(block, &bytes, sizeof bytes);
    return (char *)block + 16;
}

static void gpunn__zlib_free(void *dev, void *ptr)
{
    char  *block = (char *)ptr - 16;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    gpunn__free((gpunn_device *)dev, block, bytes);
}
#endif

GPUNN__PRIVATE void gpunn__reader_close(gpunn__reader *r)
{
    if (r->fd >= 0) (void)GPUNN__OS(close)(r->fd);
    r->fd = -1;
#ifdef GPUNN_ZLIB
    if (r->compressed) (void)inflateEnd(&r->zlib);
    r->compressed = false;
#endif
}

/* What the file holds next: *got is smaller than bytes only at its end. */
static gpunn_status gpunn__reader_raw(gpunn__reader *r, void *to, size_t bytes, size_t *got)
{
    *got = 0;
    while (*got < bytes) {
        size_t  want = bytes - *got < (1u << 30) ? bytes - *got : 1u << 30;
        int64_t done = (int64_t)GPUNN__OS(read)(r->fd, (char *)to + *got, (unsigned)want);
        if (done == 0) break;
        if (done > 0)
            *got += (size_t)done;
        else if (errno != EINTR)
            return gpunn__file_fail(r->dev, "read", r->path, errno);
    }
    return GPUNN_OK;
}

static gpunn_status gpunn__reader_fill(gpunn__reader *r)
{
    r->at = 0;
    return gpunn__reader_raw(r, r->buffer, sizeof r->buffer, &r->end);
}

/* A failure here leaves nothing to close. */
GPUNN__PRIVATE gpunn_status gpunn__reader_open(gpunn_device *dev, const char *path, bool gz, gpunn__reader *r)
{
    r->dev = dev;
    r->path = path;
    r->fd = -1;
    r->at = r->end = 0;
#ifdef GPUNN_ZLIB
    r->compressed = false;
#endif
    if (path == NULL || *path == 0)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "cannot read a file: its path is %s; name one", path ? "\"\"" : "NULL");
    gpunn__stat_result there;
    if (gpunn__stat(path, &there) != 0) return gpunn__file_fail(dev, "read", path, errno);
    if (GPUNN__IS_DIRECTORY(there.st_mode)) return gpunn__file_fail(dev, "read", path, EISDIR);
    if (!GPUNN__IS_REGULAR(there.st_mode))
        return gpunn__fail(dev, GPUNN_ERR_IO, "cannot read '%s': it is not a regular file; copy its contents into one",
                           gpunn__tail(path));
    r->limit = (uint64_t)there.st_size;
    r->fd = GPUNN__OS(open)(path, O_RDONLY | GPUNN__O_FLAGS);
    if (r->fd < 0) return gpunn__file_fail(dev, "read", path, errno);
    if (!gz) return GPUNN_OK;
    gpunn_status status = gpunn__reader_fill(r);
    if (status == GPUNN_OK && r->end >= 2 && r->buffer[0] == 0x1f && r->buffer[1] == 0x8b) {
#ifdef GPUNN_ZLIB
        memset(&r->zlib, 0, sizeof r->zlib);
        r->zlib.zalloc = gpunn__zlib_alloc;
        r->zlib.zfree = gpunn__zlib_free;
        r->zlib.opaque = dev;
        r->compressed = r->member = inflateInit2(&r->zlib, 15 + 16) == Z_OK; /* 16: gzip's header and checksum */
        if (!r->compressed)
            status = gpunn__fail(dev, GPUNN_ERR_MEMORY, "cannot read '%s': zlib did not start; free memory", gpunn__tail(path));
        r->limit = r->limit < UINT64_MAX / 1032 ? r->limit * 1032 : UINT64_MAX; /* deflate's best ratio */
#else
        status = gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED,
                             "'%s' is compressed: build with -DGPUNN_ZLIB and -lz, or gunzip it first", gpunn__tail(path));
#endif
    }
    if (status != GPUNN_OK) gpunn__reader_close(r);
    return status;
}

#ifdef GPUNN_ZLIB
static gpunn_status gpunn__reader_inflate(gpunn__reader *r, unsigned char *to, size_t bytes, size_t *got)
{
    z_stream *z = &r->zlib;
    *got = 0;
    while (*got < bytes) {
        if (r->at == r->end) {
            gpunn_status status = gpunn__reader_fill(r);
            if (status != GPUNN_OK) return status;
        }
        if (!r->member) {
            if (r->at == r->end) break;
            (void)inflateReset(z);
            r->member = true;
        }
        unsigned room = (unsigned)(bytes - *got < (1u << 30) ? bytes - *got : 1u << 30);
        z->next_in = r->buffer + r->at;
        z->avail_in = (unsigned)(r->end - r->at);
        z->next_out = to + *got;
        z->avail_out = room;
        int result = inflate(z, Z_NO_FLUSH);
        *got += room - z->avail_out;
        r->at = r->end - z->avail_in;
        if (result == Z_STREAM_END)
            r->member = false;
        else if (result == Z_MEM_ERROR)
            return GPUNN_ERR_MEMORY; /* recorded by the allocation */
        else if (result != Z_OK)
            return gpunn__fail(r->dev, GPUNN_ERR_FORMAT, "'%s' is damaged: %s; download it again", gpunn__tail(r->path),
                               result == Z_BUF_ERROR ? "the compressed data is cut short"
                               : z->msg              ? z->msg
                                                     : "bad compressed data");
    }
    return GPUNN_OK;
}
#endif

/* *got is smaller than bytes only at the end. */
static gpunn_status gpunn__reader_some(gpunn__reader *r, void *to, size_t bytes, size_t *got)
{
#ifdef GPUNN_ZLIB
    if (r->compressed) return gpunn__reader_inflate(r, (unsigned char *)to, bytes, got);
#endif
    *got = 0;
    gpunn_status status = GPUNN_OK;
    while (*got < bytes && status == GPUNN_OK) {
        size_t want = bytes - *got, have = r->end - r->at, more = 0;
        if (have == 0 && want >= sizeof r->buffer) {
            status = gpunn__reader_raw(r, (char *)to + *got, want, &more);
            *got += more;
            break;
        }
        if (have == 0) {
            status = gpunn__reader_fill(r);
            if (r->end == 0) break;
            continue;
        }
        more = have < want ? have : want;
        memcpy((char *)to + *got, r->buffer + r->at, more);
        r->at += more;
        *got += more;
    }
    return status;
}

/* Exactly that many bytes; fewer are an error. */
GPUNN__PRIVATE gpunn_status gpunn__reader_read(gpunn__reader *r, void *to, size_t bytes)
{
    size_t       got;
    gpunn_status status = gpunn__reader_some(r, to, bytes, &got);
    if (status == GPUNN_OK && got < bytes)
        status = gpunn__fail(r->dev, GPUNN_ERR_FORMAT,
                             "'%s' is cut short: %zu more bytes should follow; write or download it again", gpunn__tail(r->path),
                             bytes - got);
    return status;
}

/* Nothing may follow; for compressed files this checks the last checksum too. */
GPUNN__PRIVATE gpunn_status gpunn__reader_end(gpunn__reader *r)
{
    char         byte;
    size_t       got;
    gpunn_status status = gpunn__reader_some(r, &byte, 1, &got);
    if (status == GPUNN_OK && got)
        status = gpunn__fail(r->dev, GPUNN_ERR_FORMAT,
                             "'%s' goes on after the end of its data; it is damaged or of another format", gpunn__tail(r->path));
    return status;
}
/* ==== >>loader ======================================================================================================== */
/* ---- threads: a lock with one condition, "something has changed", and threads that start and end --------------------- */
#if defined(GPUNN_NO_THREADS)
typedef int gpunn__monitor, gpunn__thread;
#define GPUNN__MONITOR_OPEN(m) ((void)(m))
#define GPUNN__MONITOR_CLOSE(m) ((void)(m))
#define GPUNN__LOCK(m) ((void)(m))
#define GPUNN__UNLOCK(m) ((void)(m))
#define GPUNN__WAIT(m) ((void)(m))
#define GPUNN__WAKE(m) ((void)(m))
#define GPUNN__THREAD_MAIN void
#define GPUNN__THREAD_END return
#define GPUNN__THREAD_START(t, main, arg) ((void)(t), (void)(main), (void)(arg), false)
#define GPUNN__THREAD_JOIN(t) ((void)(t))
#elif defined(_WIN32)
typedef struct gpunn__monitor {
    CRITICAL_SECTION   mutex;
    CONDITION_VARIABLE changed;
} gpunn__monitor;
typedef HANDLE gpunn__thread;
#define GPUNN__MONITOR_OPEN(m) (InitializeCriticalSection(&(m)->mutex), InitializeConditionVariable(&(m)->changed))
#define GPUNN__MONITOR_CLOSE(m) DeleteCriticalSection(&(m)->mutex)
#define GPUNN__LOCK(m) EnterCriticalSection(&(m)->mutex)
#define GPUNN__UNLOCK(m) LeaveCriticalSection(&(m)->mutex)
#define GPUNN__WAIT(m) ((void)SleepConditionVariableCS(&(m)->changed, &(m)->mutex, INFINITE))
#define GPUNN__WAKE(m) WakeAllConditionVariable(&(m)->changed)
#define GPUNN__THREAD_MAIN unsigned __stdcall
#define GPUNN__THREAD_END return 0
#define GPUNN__THREAD_START(t, main, arg) ((*(t) = (HANDLE)_beginthreadex(NULL, 0, main, arg, 0, NULL)) != NULL)
#define GPUNN__THREAD_JOIN(t) ((void)WaitForSingleObject(t, INFINITE), (void)CloseHandle(t))
#else
typedef struct gpunn__monitor {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
} gpunn__monitor;
typedef pthread_t gpunn__thread;
#define GPUNN__MONITOR_OPEN(m) (pthread_mutex_init(&(m)->mutex, NULL), pthread_cond_init(&(m)->changed, NULL))
#define GPUNN__MONITOR_CLOSE(m) ((void)pthread_cond_destroy(&(m)->changed), (void)pthread_mutex_destroy(&(m)->mutex))
#define GPUNN__LOCK(m) ((void)pthread_mutex_lock(&(m)->mutex))
#define GPUNN__UNLOCK(m) ((void)pthread_mutex_unlock(&(m)->mutex))
#define GPUNN__WAIT(m) ((void)pthread_cond_wait(&(m)->changed, &(m)->mutex))
#define GPUNN__WAKE(m) ((void)pthread_cond_broadcast(&(m)->changed))
#define GPUNN__THREAD_MAIN void *
#define GPUNN__THREAD_END return NULL
#define GPUNN__THREAD_START(t, main, arg) (pthread_create(t, NULL, main, arg) == 0)
#define GPUNN__THREAD_JOIN(t) ((void)pthread_join(t, NULL))
#endif

/* ---- structs --------------------------------------------------------------------------------------------------------- */
enum { GPUNN__MAX_WORKERS = 64 };

typedef struct gpunn__loader_field {
    gpunn_tensor *input;
    const char   *samples; /* NULL with load */
    gpunn_dtype   from, to;
    bool          direct;               /* a batch is a stretch of samples as it lies there: nothing is copied */
    int64_t       count;                /* elements of a sample */
    size_t        from_bytes, to_bytes; /* of a sample, before and after its conversion */
    size_t        rows, loaded;         /* places in a batch's memory: its samples; what load wrote and is to be converted */
    int           channels;             /* that have a table of their own */
    float         table[4][256];        /* U8 and BOOL to F32: what each byte becomes, per channel */
} gpunn__loader_field;

typedef struct gpunn__batch {
    char        *memory;
    int64_t      number; /* in the epoch; -1: none */
    bool         ready;
    gpunn_status status; /* of load ... */
    int64_t      sample; /* ... for this sample */
} gpunn__batch;

/* Batch n is made in ring[n % ring_count], by a worker as soon as batch n - ring_count has been delivered, or by gpunn_next when
 * there are no workers. They work only while `running`, from the first gpunn_next of an epoch to its end: between epochs the
 * program may change its samples. An epoch's order follows from seed and epoch alone: (epoch, position) is the whole state. */
struct gpunn_loader {
    gpunn_model        *model;
    gpunn_loader_args   args;                   /* with defaults in place */
    int64_t             batches;                /* per epoch */
    int                 field_count, delivered; /* delivered: samples in the last batch */
    gpunn__loader_field fields[GPUNN_MAX_FIELDS];
    int64_t            *order; /* of the samples in epoch ordered_epoch; NULL: as they come */
    int64_t             epoch, ordered_epoch;
    char               *memory; /* of the ring's batches */
    size_t              batch_bytes;
    int                 worker_count, ring_count;
    gpunn__thread       workers[GPUNN__MAX_WORKERS];
    gpunn__monitor      monitor;           /* guards what follows; position and running change in the program's thread only */
    int64_t             position, claimed; /* batches of the epoch that have been delivered; that workers have begun */
    int                 busy;              /* workers that are making a batch */
    bool                running, stop;
    gpunn__batch        ring[GPUNN__MAX_WORKERS + 1];
};

/* ---- order ----------------------------------------------------------------------------------------------------------- */
/* Fisher and Yates. Draw k of an epoch is half of the words at counter (k / 2 low, k / 2 high, epoch low, 3 2^30 + epoch high),
 * counters that neither dropout nor initial values reach. */
static void gpunn__shuffle(int64_t *order, int64_t count, uint64_t seed, int64_t epoch)
{
    uint32_t counter[4], word[4] = {0, 0, 0, 0};
    uint64_t draw = 0;
    for (int64_t i = 0; i < count; i++) order[i] = i;
    for (int64_t i = count - 1; i > 0; i--) {
        uint64_t choices = (uint64_t)i + 1, bits, chosen;
        do { /* until bits lies in a complete run of choices, so that each is equally likely */
            if (draw % 2 == 0) {
                counter[0] = (uint32_t)(draw / 2);
                counter[1] = (uint32_t)(draw / 2 >> 32);
                counter[2] = (uint32_t)epoch;
                counter[3] = 0xC0000000u + (uint32_t)((uint64_t)epoch >> 32);
                gpunn__philox(seed, counter, word);
            }
            bits = (uint64_t)word[draw % 2 * 2] << 32 | word[draw % 2 * 2 + 1];
            chosen = bits % choices;
            draw++;
        } while (bits - chosen > UINT64_MAX - (uint64_t)i);
        int64_t other = order[chosen];
        order[chosen] = order[i];
        order[i] = other;
    }
}

/* ---- making batches -------------------------------------------------------------------------------------------------- */
/* One sample: dtypes checked by gpunn__loader_field_check. */
static void gpunn__convert(const gpunn__loader_field *field, const void *from, void *to)
{
    const uint8_t *byte = (const uint8_t *)from;
    int64_t        n = field->count;
    if (field->from == field->to)
        memcpy(to, from, field->to_bytes);
    else if (field->to == GPUNN_F32) {
        float  *out = (float *)to;
        int64_t plane = n / field->channels;
        for (int c = 0; c < field->channels; c++, byte += plane, out += plane)
            for (int64_t i = 0; i < plane; i++) out[i] = field->table[c][byte[i]];
    } else if (field->from == GPUNN_I32) {
        for (int64_t i = 0; i < n; i++) ((int64_t *)to)[i] = ((const int32_t *)from)[i];
    } else {
        uint8_t most = field->from == GPUNN_BOOL || field->to == GPUNN_BOOL ? 1 : 255; /* what is not 0 in a BOOL is 1 */
        switch (gpunn_dtype_size(field->to)) {
        case 8:
            for (int64_t i = 0; i < n; i++) ((int64_t *)to)[i] = byte[i] < most ? byte[i] : most;
            break;
        case 4:
            for (int64_t i = 0; i < n; i++) ((int32_t *)to)[i] = byte[i] < most ? byte[i] : most;
            break;
        default:
            for (int64_t i = 0; i < n; i++) ((uint8_t *)to)[i] = byte[i] < most ? byte[i] : most;
            break;
        }
    }
}

static int64_t gpunn__batch_size(const gpunn_loader *loader, int64_t number)
{
    int64_t rest = loader->args.count - number * loader->args.batch_size;
    return rest < loader->args.batch_size ? rest : loader->args.batch_size;
}

/* Fills a batch; in a worker this touches nothing else that changes. */
static void gpunn__batch_make(const gpunn_loader *loader, gpunn__batch *batch)
{
    const gpunn_loader_args *args = &loader->args;
    int64_t                  first = batch->number * args->batch_size, n = gpunn__batch_size(loader, batch->number);
    batch->status = GPUNN_OK;
    for (int64_t i = 0; i < n; i++) {
        int64_t sample = loader->order ? loader->order[first + i] : first + i;
        void   *loaded[GPUNN_MAX_FIELDS];
        if (args->load) {
            for (int f = 0; f < loader->field_count; f++) {
                const gpunn__loader_field *field = &loader->fields[f];
                loaded[f] = batch->memory +
                            (field->from == field->to ? field->rows + (size_t)i * field->to_bytes : field->loaded);
            }
            batch->status = args->load(args->user, sample, loaded);
            batch->sample = sample;
            if (batch->status != GPUNN_OK) return;
        }
        for (int f = 0; f < loader->field_count; f++) {
            const gpunn__loader_field *field = &loader->fields[f];
            char                      *row = batch->memory + field->rows + (size_t)i * field->to_bytes;
            if (!args->load && !field->direct)
                gpunn__convert(field, field->samples + (size_t)sample * field->from_bytes, row);
            else if (args->load && field->from != field->to)
                gpunn__convert(field, loaded[f], row);
        }
    }
}

static GPUNN__THREAD_MAIN gpunn__loader_main(void *arg)
{
    gpunn_loader *loader = (gpunn_loader *)arg;
    GPUNN__LOCK(&loader->monitor);
    while (!loader->stop) {
        bool room = loader->claimed < loader->batches && loader->claimed < loader->position + loader->ring_count;
        if (!loader->running || !room) {
            GPUNN__WAIT(&loader->monitor);
            continue;
        }
        gpunn__batch *batch = &loader->ring[loader->claimed % loader->ring_count];
        batch->number = loader->claimed++;
        batch->ready = false;
        loader->busy++;
        GPUNN__UNLOCK(&loader->monitor);
        gpunn__batch_make(loader, batch);
        GPUNN__LOCK(&loader->monitor);
        batch->ready = true;
        loader->busy--;
        GPUNN__WAKE(&loader->monitor);
    }
    GPUNN__UNLOCK(&loader->monitor);
    GPUNN__THREAD_END;
}

/* Stops the workers and moves to batch `position` of an epoch. */
static void gpunn__loader_move(gpunn_loader *loader, int64_t epoch, int64_t position)
{
    GPUNN__LOCK(&loader->monitor);
    loader->running = false;
    while (loader->busy) GPUNN__WAIT(&loader->monitor);
    loader->epoch = epoch;
    loader->position = loader->claimed = position;
    for (int i = 0; i < loader->ring_count; i++) loader->ring[i].number = -1;
    GPUNN__UNLOCK(&loader->monitor);
}

/* Batch loader->position, ready or failed. */
static gpunn__batch *gpunn__batch_next(gpunn_loader *loader)
{
    gpunn__batch *batch = &loader->ring[loader->position % loader->ring_count];
    if (!loader->running && loader->order && loader->ordered_epoch != loader->epoch) {
        gpunn__shuffle(loader->order, loader->args.count, loader->args.seed, loader->epoch);
        loader->ordered_epoch = loader->epoch;
    }
    if (loader->worker_count == 0) {
        batch->number = loader->position;
        gpunn__batch_make(loader, batch);
        return batch;
    }
    GPUNN__LOCK(&loader->monitor);
    if (!loader->running) {
        loader->running = true;
        GPUNN__WAKE(&loader->monitor);
    }
    while (batch->number != loader->position || !batch->ready) GPUNN__WAIT(&loader->monitor);
    GPUNN__UNLOCK(&loader->monitor);
    return batch;
}

GPUNN_API bool gpunn_next(gpunn_loader *loader)
{
    if (loader == NULL) {
        (void)gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "gpunn_next: the loader is NULL");
        return false;
    }
    bool more = loader->position < loader->batches;
    if (more) {
        const gpunn__batch *batch = gpunn__batch_next(loader);
        gpunn_status        status = batch->status;
        int64_t             first = loader->position * loader->args.batch_size, n = gpunn__batch_size(loader, loader->position);
        if (status != GPUNN_OK)
            (void)gpunn__fail(loader->model->dev, status, "gpunn_next: the load callback failed for sample %lld with %s",
                              (long long)batch->sample, gpunn_status_name(status));
        for (int f = 0; f < loader->field_count && status == GPUNN_OK; f++) {
            const gpunn__loader_field *field = &loader->fields[f];
            const char *rows = field->direct ? field->samples + (size_t)first * field->to_bytes : batch->memory + field->rows;
            status = gpunn_write(field->input, rows, (size_t)n * field->to_bytes);
        }
        more = status == GPUNN_OK;
        loader->delivered = (int)n;
    }
    if (!more) {
        gpunn__loader_move(loader, loader->epoch + 1, 0);
        return false;
    }
    GPUNN__LOCK(&loader->monitor);
    loader->position++;
    GPUNN__WAKE(&loader->monitor);
    GPUNN__UNLOCK(&loader->monitor);
    return true;
}

/* ---- making and asking ----------------------------------------------------------------------------------------------- */
/* Checks field f of the arguments and works out its conversion. */
static gpunn_status gpunn__loader_field_check(gpunn_loader *loader, int f)
{
    static const char        function[] = "gpunn_loader_create";
    const gpunn_loader_args *args = &loader->args;
    const gpunn_field       *given = &args->fields[f];
    gpunn__loader_field     *field = &loader->fields[f];
    const gpunn_tensor      *input = given->input;
    gpunn_device            *dev = loader->model->dev;
    if (input->model != loader->model)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: the input of field %d is of another model", function, f);
    const char *name = input->name ? input->name : "";
    char        text[128];
    if (input->kind != GPUNN__INPUT || input->rank < 1 || input->dim[0] != GPUNN_BATCH)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: field %d goes to '%s' %s; give a gpunn_input whose first dimension is GPUNN_BATCH", function, f,
                           name, gpunn__shape_text(input, text));
    for (int other = 0; other < f; other++)
        if (args->fields[other].input == input)
            return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: fields %d and %d both go to '%s'; give each input once", function,
                               other, f, name);
    if ((given->samples != NULL) == (args->load != NULL))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: field %d ('%s') has %s; give either samples in every field or load",
                           function, f, name, args->load ? "samples although there is load" : "no samples and there is no load");
    field->input = given->input;
    field->samples = (const char *)given->samples;
    field->to = input->dtype;
    field->from = given->dtype ? given->dtype : input->dtype;
    bool bytes = field->from == GPUNN_U8 || field->from == GPUNN_BOOL;
    if (field->from != field->to && !bytes && !(field->from == GPUNN_I32 && field->to == GPUNN_I64))
        return gpunn__fail(dev, GPUNN_ERR_DTYPE,
                           "%s: field %d ('%s') has %s samples, its input is %s; samples are of the input's dtype, U8, BOOL, "
                           "or I32 for an I64 input",
                           function, f, name, gpunn_dtype_name(field->from), gpunn_dtype_name(field->to));
    field->channels = input->rank > 1 && input->dim[1] <= 4 ? (int)input->dim[1] : 1;
    bool pixels = field->from == GPUNN_U8 && field->to == GPUNN_F32;
    for (int c = 0; c < 4; c++) {
        float mean = given->mean[c], std = given->std[c];
        if (!pixels && (mean != 0 || std != 0))
            return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                               "%s: field %d ('%s') has mean or std, which are for U8 samples of an F32 input", function, f,
                               name);
        if (!(fabsf(mean) <= FLT_MAX) || !(std >= 0 && std <= FLT_MAX))
            return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                               "%s: field %d ('%s') has mean[%d] %g and std[%d] %g; give finite numbers, std not negative",
                               function, f, name, c, (double)mean, c, (double)std);
        for (int x = 0; x < 256; x++) /* rounded step by step, as torchvision's ToTensor and Normalize */
            field->table[c][x] = pixels ? ((float)x / 255.0f - mean) / (std > 0 ? std : 1.0f) : (float)(x != 0);
    }
    field->direct = !args->load && !args->shuffle && field->from == field->to;
    field->count = gpunn__count(input, 1);
    size_t whole, widest = gpunn_dtype_size(field->to) > gpunn_dtype_size(field->from) ? gpunn_dtype_size(field->to)
                                                                                       : gpunn_dtype_size(field->from);
    if (field->count < 0 || !gpunn__mul((size_t)field->count, widest, &whole) || (uint64_t)args->count > SIZE_MAX / 16 ||
        !gpunn__mul(whole, (size_t)args->count, &whole) || whole > SIZE_MAX / 2)
        return gpunn__fail(dev, GPUNN_ERR_SHAPE, "%s: %lld samples of '%s' %s are more than the address space holds", function,
                           (long long)args->count, name, gpunn__shape_text(input, text));
    field->from_bytes = (size_t)field->count * gpunn_dtype_size(field->from);
    field->to_bytes = (size_t)field->count * gpunn_dtype_size(field->to);
    return GPUNN_OK;
}

/* Reserves bytes at the end of a batch, aligned for any dtype. */
static bool gpunn__batch_reserve(gpunn_loader *loader, size_t bytes, size_t *place)
{
    *place = loader->batch_bytes;
    return gpunn__add(loader->batch_bytes, bytes, &loader->batch_bytes) &&
           gpunn__add(loader->batch_bytes, (GPUNN__ALIGN - loader->batch_bytes % GPUNN__ALIGN) % GPUNN__ALIGN,
                      &loader->batch_bytes);
}

static gpunn_status gpunn__loader_setup(gpunn_loader *loader)
{
    static const char  function[] = "gpunn_loader_create";
    gpunn_loader_args *args = &loader->args;
    gpunn_device      *dev = loader->model->dev;
    if (args->batch_size == 0) args->batch_size = 32;
    if (args->seed == 0) args->seed = dev->args.seed;
    if (args->count < 1 || args->batch_size < 0 || args->workers < 0 || args->workers > GPUNN__MAX_WORKERS)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: count is %lld, batch_size %d and workers %d; count and batch_size are at least 1, "
                           "workers 0 to %d",
                           function, (long long)args->count, args->batch_size, args->workers, (int)GPUNN__MAX_WORKERS);
    loader->batches = args->count / args->batch_size + (!args->drop_last && args->count % args->batch_size != 0);
    if (loader->batches == 0)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: %lld samples do not fill one batch of %d and drop_last leaves out the rest; "
                           "use a smaller batch_size",
                           function, (long long)args->count, args->batch_size);
    bool fits = true, copies = false;
    for (; loader->field_count < GPUNN_MAX_FIELDS && args->fields[loader->field_count].input; loader->field_count++) {
        gpunn_status status = gpunn__loader_field_check(loader, loader->field_count);
        if (status != GPUNN_OK) return status;
        gpunn__loader_field *field = &loader->fields[loader->field_count];
        int64_t              rows = gpunn__batch_size(loader, 0);
        copies = copies || !field->direct;
        if (!field->direct) fits = fits && gpunn__batch_reserve(loader, (size_t)rows * field->to_bytes, &field->rows);
        if (args->load && field->from != field->to)
            fits = fits && gpunn__batch_reserve(loader, field->from_bytes, &field->loaded);
    }
    if (loader->field_count == 0)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: there are no fields; give .fields = {{.input = x, .samples = ...}, ...}",
                           function);
    loader->ring_count = copies ? args->workers + 1 : 1;
    size_t bytes;
    if (!fits || !gpunn__mul(loader->batch_bytes, (size_t)loader->ring_count, &bytes))
        return gpunn__fail(dev, GPUNN_ERR_MEMORY,
                           "%s: %d batches of %d samples are more than the address space holds; use fewer workers or a "
                           "smaller batch_size",
                           function, loader->ring_count, args->batch_size);
    if (copies && (loader->memory = (char *)gpunn__realloc(dev, NULL, 0, bytes)) == NULL) return GPUNN_ERR_MEMORY;
    for (int i = 0; i < loader->ring_count; i++) {
        loader->ring[i].memory = copies ? loader->memory + (size_t)i * loader->batch_bytes : NULL;
        loader->ring[i].number = -1;
    }
    if (args->shuffle) {
        loader->order = (int64_t *)gpunn__realloc(dev, NULL, 0, (size_t)args->count * sizeof *loader->order);
        if (loader->order == NULL) return GPUNN_ERR_MEMORY;
    }
    return GPUNN_OK;
}

GPUNN_API gpunn_loader *gpunn_loader_create_(gpunn_model *model, gpunn_loader_args args)
{
    if (model == NULL) return NULL;
    gpunn_loader *loader = (gpunn_loader *)gpunn__calloc(model->dev, sizeof *loader);
    if (loader == NULL) return NULL;
    loader->model = model;
    loader->args = args;
    loader->ordered_epoch = -1;
    GPUNN__MONITOR_OPEN(&loader->monitor);
    if (gpunn__loader_setup(loader) != GPUNN_OK) {
        gpunn_loader_destroy(loader);
        return NULL;
    }
    /* Where the system has no more threads, fewer do the same work. */
    while (loader->worker_count < loader->ring_count - 1 &&
           GPUNN__THREAD_START(&loader->workers[loader->worker_count], gpunn__loader_main, loader))
        loader->worker_count++;
    return loader;
}

GPUNN_API void gpunn_loader_destroy(gpunn_loader *loader)
{
    if (loader == NULL) return;
    gpunn_device *dev = loader->model->dev;
    GPUNN__LOCK(&loader->monitor);
    loader->stop = true;
    GPUNN__WAKE(&loader->monitor);
    GPUNN__UNLOCK(&loader->monitor);
    for (int i = 0; i < loader->worker_count; i++) GPUNN__THREAD_JOIN(loader->workers[i]);
    GPUNN__MONITOR_CLOSE(&loader->monitor);
    gpunn__free(dev, loader->memory, loader->batch_bytes * (size_t)loader->ring_count);
    gpunn__free(dev, loader->order, (size_t)loader->args.count * sizeof *loader->order);
    gpunn__free(dev, loader, sizeof *loader);
}

GPUNN_API int64_t gpunn_loader_batches(const gpunn_loader *loader)
{
    return loader ? loader->batches : 0;
}

GPUNN_API int gpunn_loader_batch_size(const gpunn_loader *loader)
{
    return loader ? loader->delivered : 0;
}

GPUNN_API void gpunn_loader_rewind(gpunn_loader *loader)
{
    if (loader) gpunn__loader_move(loader, loader->epoch, 0);
}

/* For checkpoints: the whole state. position counts the batches delivered, 0 to gpunn_loader_batches. */
GPUNN__PRIVATE void gpunn__loader_state(const gpunn_loader *loader, int64_t *epoch, int64_t *position)
{
    *epoch = loader->epoch;
    *position = loader->position;
}

GPUNN__PRIVATE gpunn_status gpunn__loader_set_state(gpunn_loader *loader, int64_t epoch, int64_t position)
{
    if (epoch < 0 || position < 0 || position > loader->batches)
        return gpunn__fail(loader->model->dev, GPUNN_ERR_FORMAT,
                           "the saved loader stood at batch %lld of epoch %lld, this one has %lld batches; "
                           "create it with the data and batch size of the saved run",
                           (long long)position, (long long)epoch, (long long)loader->batches);
    gpunn__loader_move(loader, epoch, position);
    return GPUNN_OK;
}

#undef GPUNN__MONITOR_OPEN
#undef GPUNN__MONITOR_CLOSE
#undef GPUNN__LOCK
#undef GPUNN__UNLOCK
#undef GPUNN__WAIT
#undef GPUNN__WAKE
#undef GPUNN__THREAD_MAIN
#undef GPUNN__THREAD_END
#undef GPUNN__THREAD_START
#undef GPUNN__THREAD_JOIN
#ifdef GPUNN__SELDOM
#pragma GCC push_options
#pragma GCC optimize("O1")
#endif
/* ==== >>json ========================================================================================================== *
 * Reads a JSON text in place: piece by piece, or all of it into a list of items. */
typedef struct gpunn__slice {
    char  *at; /* a zero follows it, and may occur inside */
    size_t length;
} gpunn__slice;

typedef struct gpunn__json {
    char       *at, *end; /* strings are unescaped where they stand */
    bool        python;   /* strings may stand in ' ' too */
    const char *problem;  /* NULL: none so far */
    int         line;     /* line ends passed */
    const char *line_start;
} gpunn__json;

static gpunn__json gpunn__json_of(char *text, size_t length, bool python)
{
    gpunn__json json = {text, text + length, python, NULL, 0, text};
    return json;
}

/* Keeps the first problem; nothing matches after it. */
static bool gpunn__json_fail(gpunn__json *j, const char *problem)
{
    if (j->problem == NULL) j->problem = problem;
    j->end = j->at;
    return false;
}

static bool gpunn__json_peek(gpunn__json *j, char c)
{
    for (; j->at < j->end && (*j->at == ' ' || *j->at == '\t' || *j->at == '\n' || *j->at == '\r'); j->at++)
        if (*j->at == '\n') {
            j->line++;
            j->line_start = j->at + 1;
        }
    return j->at < j->end && *j->at == c;
}

static bool gpunn__json_take(gpunn__json *j, char c)
{
    if (!gpunn__json_peek(j, c)) return false;
    j->at++;
    return true;
}

static bool gpunn__json_expect(gpunn__json *j, char c, const char *problem)
{
    return gpunn__json_take(j, c) || gpunn__json_fail(j, problem);
}

/* Bytes of the UTF-8 character at s; 0: malformed. */
static size_t gpunn__utf8_size(const char *s, size_t left)
{
    unsigned char c = (unsigned char)*s, d = left > 1 ? (unsigned char)s[1] : 0;
    size_t        size = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    if (size > left) return 0;
    for (size_t i = 1; i < size; i++)
        if (((unsigned char)s[i] & 0xC0) != 0x80) return 0;
    bool overlong = (c == 0xE0 && d < 0xA0) || (c == 0xF0 && d < 0x90),
         outside = (c == 0xED && d > 0x9F) || (c == 0xF4 && d > 0x8F);
    return overlong || outside ? 0 : size;
}

static char *gpunn__utf8_put(char *to, uint32_t c)
{
    if (c < 0x80) {
        *to++ = (char)c;
        return to;
    }
    if (c < 0x800)
        *to++ = (char)(0xC0 | c >> 6);
    else {
        if (c < 0x10000)
            *to++ = (char)(0xE0 | c >> 12);
        else {
            *to++ = (char)(0xF0 | c >> 18);
            *to++ = (char)(0x80 | (c >> 12 & 63));
        }
        *to++ = (char)(0x80 | (c >> 6 & 63));
    }
    *to++ = (char)(0x80 | (c & 63));
    return to;
}

/* The four hexadecimal digits of \uXXXX; UINT32_MAX: they are not there. */
static uint32_t gpunn__json_hex(gpunn__json *j)
{
    uint32_t value = 0;
    if (j->end - j->at < 4) return UINT32_MAX;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        char              c = *j->at++;
        const char       *digit = c ? strchr(digits, c) : NULL;
        if (digit == NULL) return UINT32_MAX;
        value = value << 4 | (uint32_t)((digit - digits) & 15);
    }
    return value;
}

static bool gpunn__json_escape(gpunn__json *j, char **to)
{
    static const char from_[] = "\"\\/bfnrt", to_[] = "\"\\/\b\f\n\r\t";
    char              c = j->at < j->end ? *j->at++ : 0;
    const char       *plain = c ? strchr(from_, c) : NULL;
    if (plain) {
        *(*to)++ = to_[plain - from_];
        return true;
    }
    uint32_t code = c == 'u' ? gpunn__json_hex(j) : UINT32_MAX;
    if (code >= 0xD800 && code < 0xDC00 && j->end - j->at >= 2 && j->at[0] == '\\' && j->at[1] == 'u') { /* a surrogate pair */
        j->at += 2;
        uint32_t low = gpunn__json_hex(j);
        code = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) : UINT32_MAX;
    }
    if (code == UINT32_MAX || (code >= 0xD800 && code < 0xE000)) return gpunn__json_fail(j, "has a wrong escape in a string");
    *to = gpunn__utf8_put(*to, code);
    return true;
}

static bool gpunn__json_string(gpunn__json *j, gpunn__slice *text)
{
    char quote = j->python && gpunn__json_peek(j, '\'') ? '\'' : '"';
    if (!gpunn__json_expect(j, quote, "lacks a string")) return false;
    char *to = j->at;
    text->at = to;
    while (j->at < j->end && *j->at != quote) {
        if (*j->at == '\\') {
            j->at++;
            if (!gpunn__json_escape(j, &to)) return false;
            continue;
        }
        size_t size = gpunn__utf8_size(j->at, (size_t)(j->end - j->at));
        if (size == 0 || (unsigned char)*j->at < 0x20) return gpunn__json_fail(j, "has a string that is not UTF-8 text");
        while (size--) *to++ = *j->at++;
    }
    if (j->at == j->end) return gpunn__json_fail(j, "has a string without end");
    j->at++;
    *to = 0;
    text->length = (size_t)(to - text->at);
    return true;
}

static bool gpunn__json_integer(gpunn__json *j, int64_t *value)
{
    bool    negative = gpunn__json_take(j, '-');
    char   *first = j->at;
    int64_t sum = 0; /* negative all along: INT64_MIN has no positive counterpart */
    for (; j->at < j->end && *j->at >= '0' && *j->at <= '9'; j->at++) {
        int digit = *j->at - '0';
        if (sum < (INT64_MIN + digit) / 10) return gpunn__json_fail(j, "has a number that is too large");
        sum = sum * 10 - digit;
    }
    if (j->at == first || (*first == '0' && j->at - first > 1) || (!negative && sum == INT64_MIN) ||
        (j->at < j->end && (*j->at == '.' || *j->at == 'e' || *j->at == 'E')))
        return gpunn__json_fail(j, "lacks an integer where one belongs");
    *value = negative ? sum : -sum;
    return true;
}

/* The integer that is the whole text. */
static bool gpunn__slice_integer(const gpunn__slice *text, int64_t *value)
{
    gpunn__json j = gpunn__json_of(text->at, text->length, false);
    return gpunn__json_integer(&j, value) && j.at == j.end;
}

/* A number of JSON: its text. */
static bool gpunn__json_number(gpunn__json *j, gpunn__slice *text)
{
    text->at = j->at;
    (void)gpunn__json_take(j, '-');
    for (int part = 0; part < 3; part++) { /* digits, fraction, exponent */
        if (part == 1 && (j->at == j->end || *j->at != '.')) continue;
        if (part == 2 && (j->at == j->end || (*j->at != 'e' && *j->at != 'E'))) break;
        j->at += part > 0;
        if (part == 2 && j->at < j->end && (*j->at == '-' || *j->at == '+')) j->at++;
        const char *first = j->at;
        while (j->at < j->end && *j->at >= '0' && *j->at <= '9') j->at++;
        if (j->at == first || (part == 0 && *first == '0' && j->at - first > 1))
            return gpunn__json_fail(j, "lacks a digit or has a needless 0 in a number");
    }
    text->length = (size_t)(j->at - text->at);
    return true;
}

/* The double nearest to a number's text, in every locale: without its point, which moves into the exponent. False: too long. */
static bool gpunn__json_double(const gpunn__slice *text, double *value)
{
    char    plain[1024];
    size_t  used = 0, at = 0;
    int64_t exponent = 0;
    bool    fraction = false;
    if (text->length > sizeof plain - 32) return false;
    for (; at < text->length && text->at[at] != 'e' && text->at[at] != 'E'; at++) {
        exponent -= fraction;
        if (text->at[at] == '.')
            fraction = true;
        else
            plain[used++] = text->at[at];
    }
    if (at < text->length) {
        bool negative = text->at[++at] == '-';
        if (negative || text->at[at] == '+') at++;
        int64_t given = 0;
        for (; at < text->length; at++)
            if (given < 100000) given = 10 * given + (text->at[at] - '0');
        exponent += negative ? -given : given;
    }
    (void)snprintf(plain + used, sizeof plain - used, "e%lld", (long long)exponent);
    *value = strtod(plain, NULL);
    return true;
}

/* A whole text as items in the order in which they stand: a list is followed by what is in it, an object by keys and values. */
typedef enum gpunn__item_kind {
    GPUNN__J_NULL,
    GPUNN__J_FALSE,
    GPUNN__J_TRUE,
    GPUNN__J_NUMBER,
    GPUNN__J_STRING,
    GPUNN__J_LIST,
    GPUNN__J_OBJECT
} gpunn__item_kind;
typedef struct gpunn__item {
    gpunn__slice     text; /* of numbers and strings */
    gpunn__item_kind kind;
    int              next; /* the item behind it and all that is in it */
    int              line, column;
    bool             read; /* somebody knows it */
} gpunn__item;

typedef struct gpunn__items {
    gpunn__item *at;
    int          count, capacity;
} gpunn__items;

enum { GPUNN__JSON_DEPTH = 64 };

/* False with j->problem NULL: out of memory. */
static bool gpunn__json_item(gpunn_device *dev, gpunn__json *j, gpunn__items *items, int depth)
{
    static const char *const words[] = {"null", "false", "true"};
    gpunn__item             *item = (gpunn__item *)gpunn__grow(dev, items->at, items->count, &items->capacity, sizeof *item);
    if (item == NULL) return false;
    int index = items->count++;
    items->at = item;
    item += index;
    memset(item, 0, sizeof *item);
    (void)gpunn__json_peek(j, 0);
    item->line = j->line + 1;
    item->column = (int)(j->at - j->line_start) + 1;
    bool object = gpunn__json_peek(j, '{'), ok;
    if (object || gpunn__json_peek(j, '[')) {
        item->kind = object ? GPUNN__J_OBJECT : GPUNN__J_LIST;
        if (depth == GPUNN__JSON_DEPTH) return gpunn__json_fail(j, "is nested deeper than 64");
        char close = object ? '}' : ']';
        j->at++;
        if (!gpunn__json_take(j, close)) {
            do {
                if (object && !gpunn__json_peek(j, '"')) return gpunn__json_fail(j, "lacks a key in double quotes");
                if (object && !(gpunn__json_item(dev, j, items, depth + 1) && gpunn__json_expect(j, ':', "lacks a colon")))
                    return false;
                if (!gpunn__json_item(dev, j, items, depth + 1)) return false;
            } while (gpunn__json_take(j, ','));
            if (!gpunn__json_expect(j, close, object ? "lacks a comma or }" : "lacks a comma or ]")) return false;
        }
        items->at[index].next = items->count;
        return true;
    }
    item->next = items->count;
    if (gpunn__json_peek(j, '"')) {
        item->kind = GPUNN__J_STRING;
        ok = gpunn__json_string(j, &item->text);
    } else if (j->at < j->end && (*j->at == '-' || (*j->at >= '0' && *j->at <= '9'))) {
        item->kind = GPUNN__J_NUMBER;
        ok = gpunn__json_number(j, &item->text);
    } else {
        int word = 2;
        while (word >= 0 &&
               ((size_t)(j->end - j->at) < strlen(words[word]) || memcmp(j->at, words[word], strlen(words[word])) != 0))
            word--;
        item->kind = (gpunn__item_kind)word; /* they stand in the order of the kinds */
        if (word < 0) return gpunn__json_fail(j, j->at == j->end ? "ends too early" : "lacks a value");
        j->at += strlen(words[word]);
        ok = true;
    }
    return ok;
}

static bool gpunn__slice_is(const gpunn__slice *text, const char *word)
{
    return text->length == strlen(word) && memcmp(text->at, word, text->length) == 0;
}

/* A name out of a file as messages can show it: not too long, no control characters. */
static const char *gpunn__printable(const gpunn__slice *text, char out[128])
{
    size_t n = 0;
    while (n < text->length) {
        size_t size = gpunn__utf8_size(text->at + n, text->length - n);
        if (size == 0 || n + size > 120) break;
        for (; size; size--, n++) out[n] = (unsigned char)text->at[n] < 0x20 || text->at[n] == 0x7f ? '?' : text->at[n];
    }
    strcpy(out + n, n < text->length ? "..." : "");
    return out;
}

/* ==== elements of files =============================================================================================== *
 * X(id, bytes, what it is read into, safetensors' name, NumPy's name, IDX's number); no dtype: only its size is known. */
#define GPUNN__ENCODINGS(X)                              \
    X(F32, 4, GPUNN_F32, "F32", "f4", 0x0D)              \
    X(F64, 8, GPUNN_F32, "F64", "f8", 0x0E)              \
    X(F16, 2, GPUNN_F32, "F16", "f2", 0)                 \
    X(BF16, 2, GPUNN_F32, "BF16", "", 0)                 \
    X(I64, 8, GPUNN_I64, "I64", "i8", 0)                 \
    X(I32, 4, GPUNN_I32, "I32", "i4", 0x0C)              \
    X(I16, 2, GPUNN_I32, "I16", "i2", 0x0B)              \
    X(U16, 2, GPUNN_I32, "U16", "u2", 0)                 \
    X(I8, 1, GPUNN_I32, "I8", "i1", 0x09)                \
    X(U8, 1, GPUNN_U8, "U8", "u1", 0x08)                 \
    X(BOOL, 1, GPUNN_BOOL, "BOOL", "b1", 0)              \
    X(U32, 4, GPUNN_DTYPE_DEFAULT, "U32", "u4", 0)       \
    X(U64, 8, GPUNN_DTYPE_DEFAULT, "U64", "u8", 0)       \
    X(C64, 8, GPUNN_DTYPE_DEFAULT, "C64", "c8", 0)       \
    X(F8_E4M3, 1, GPUNN_DTYPE_DEFAULT, "F8_E4M3", "", 0) \
    X(F8_E5M2, 1, GPUNN_DTYPE_DEFAULT, "F8_E5M2", "", 0)

/* clang-format off */
typedef enum gpunn__encoding_id {
#define GPUNN__X(id, bytes, dtype, safetensors, npy, idx) GPUNN__##id,
    GPUNN__ENCODINGS(GPUNN__X)
#undef GPUNN__X
} gpunn__encoding_id;
/* clang-format on */

typedef struct gpunn__encoding {
    gpunn__encoding_id id;
    size_t             bytes;
    gpunn_dtype        dtype;
    const char        *safetensors, *npy;
    int                idx;
} gpunn__encoding;

/* clang-format off */
static const gpunn__encoding gpunn__encodings[] = {
#define GPUNN__X(id, bytes, dtype, safetensors, npy, idx) {GPUNN__##id, bytes, dtype, safetensors, npy, idx},
    GPUNN__ENCODINGS(GPUNN__X)
#undef GPUNN__X
};
/* clang-format on */
enum { GPUNN__ENCODING_COUNT = sizeof gpunn__encodings / sizeof gpunn__encodings[0] };

/* Element i of what raw holds, into element i of out, which holds encoding->dtype. */
static void gpunn__decode(const gpunn__encoding *encoding, const unsigned char *raw, size_t count, unsigned char *out)
{
    for (size_t i = 0; i < count; i++, raw += encoding->bytes) {
        float    value = 0;
        int32_t  integer = 0;
        uint16_t word = 0;
        if (encoding->bytes == 2) memcpy(&word, raw, sizeof word);
        switch (encoding->id) {
        case GPUNN__F64: {
            double wide;
            memcpy(&wide, raw, sizeof wide);
            value = (float)wide;
            break;
        }
        case GPUNN__F16: value = gpunn__float_of_half(word); break;
        case GPUNN__BF16: value = gpunn__float_of_bits((uint32_t)word << 16); break;
        case GPUNN__I16: integer = word < 0x8000 ? word : (int32_t)word - 0x10000; break;
        case GPUNN__U16: integer = word; break;
        case GPUNN__I8: integer = *raw < 0x80 ? *raw : *raw - 0x100; break;
        case GPUNN__BOOL: out[i] = *raw != 0; continue;
        default: break;
        }
        if (encoding->dtype == GPUNN_F32)
            memcpy(out + i * sizeof value, &value, sizeof value);
        else
            memcpy(out + i * sizeof integer, &integer, sizeof integer);
    }
}

/* The next count elements of the file as encoding->dtype; swapped: they are big-endian. */
static gpunn_status gpunn__read_elements(gpunn__reader *r, const gpunn__encoding *encoding, bool swapped, size_t count, void *out)
{
    unsigned char raw[8192];
    size_t        bytes = encoding->bytes, wide = gpunn_dtype_size(encoding->dtype);
    bool          same = encoding->id == GPUNN__F32 || encoding->id == GPUNN__I32 || encoding->id == GPUNN__I64 ||
                encoding->id == GPUNN__U8;
    swapped = swapped && bytes > 1;
    if (same && !swapped) return gpunn__reader_read(r, out, count * bytes);
    while (count > 0) {
        size_t       part = count < sizeof raw / bytes ? count : sizeof raw / bytes;
        gpunn_status status = gpunn__reader_read(r, raw, part * bytes);
        if (status != GPUNN_OK) return status;
        for (size_t i = 0; swapped && i < part * bytes; i += bytes)
            for (size_t low = i, high = i + bytes - 1; low < high; low++, high--) {
                unsigned char byte = raw[low];
                raw[low] = raw[high];
                raw[high] = byte;
            }
        if (same)
            memcpy(out, raw, part * bytes);
        else
            gpunn__decode(encoding, raw, part, (unsigned char *)out);
        out = (unsigned char *)out + part * wide;
        count -= part;
    }
    return GPUNN_OK;
}

/* ==== >>safetensors =================================================================================================== *
 * A file is: bytes of the header (8 bytes, little-endian), the header, the tensors. The header is JSON: {"name": {"dtype": "F32",
 * "shape": [2, 3], "data_offsets": [begin, end]}, ...} and "__metadata__", strings by name. The tensors fill the rest, no
 * gaps. */
enum { GPUNN__MAX_HEADER = 100000000 }; /* as the safetensors library has it */

typedef struct gpunn__entry {
    gpunn__slice           name;
    gpunn__slice           text;     /* metadata: the value; tensors: the dtype */
    const gpunn__encoding *encoding; /* NULL: a dtype unknown here */
    int                    rank;
    int64_t                dim[GPUNN_MAX_RANK]; /* the first of them where there are more */
    uint64_t               begin, end;
    bool                   matched; /* somebody knows it */
    void                  *to;      /* where to read it; NULL: skip it */
} gpunn__entry;

typedef struct gpunn__table {
    gpunn__entry *items; /* sorted by name once complete */
    int           count, capacity;
} gpunn__table;

typedef struct gpunn__archive {
    gpunn__reader reader;
    char         *header;
    size_t        header_bytes;
    gpunn__table  tensors, notes;
} gpunn__archive;

static gpunn__entry *gpunn__table_add(gpunn_device *dev, gpunn__table *table, const gpunn__slice *name)
{
    gpunn__entry *items = (gpunn__entry *)gpunn__grow(dev, table->items, table->count, &table->capacity, sizeof *items);
    if (items == NULL) return NULL;
    table->items = items;
    gpunn__entry *item = &items[table->count++];
    memset(item, 0, sizeof *item);
    item->name = *name;
    return item;
}

/* <0, 0, >0: name before, equal to, after the two parts in a row. */
static int gpunn__compare_name(const gpunn__slice *name, const char *part, size_t part_length, const char *rest,
                               size_t rest_length)
{
    size_t head = name->length < part_length ? name->length : part_length, tail = name->length - head;
    int    order = memcmp(name->at, part, head);
    if (order == 0 && head < part_length) order = -1;
    if (order == 0) order = memcmp(name->at + head, rest, tail < rest_length ? tail : rest_length);
    return order ? order : tail < rest_length ? -1 : tail > rest_length;
}

static int gpunn__entry_by_name(const void *a, const void *b)
{
    const gpunn__slice *x = &((const gpunn__entry *)a)->name, *y = &((const gpunn__entry *)b)->name;
    return gpunn__compare_name(x, y->at, y->length, "", 0);
}

static int gpunn__entry_by_offset(const void *a, const void *b)
{
    const gpunn__entry *x = (const gpunn__entry *)a, *y = (const gpunn__entry *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static void gpunn__table_sort(gpunn__table *table, int (*compare)(const void *a, const void *b))
{
    if (table->count > 1) qsort(table->items, (size_t)table->count, sizeof *table->items, compare);
}

/* The entry called prefix + name, or NULL. */
static gpunn__entry *gpunn__table_find(const gpunn__table *table, const char *prefix, const char *name)
{
    size_t prefix_length = strlen(prefix), name_length = strlen(name);
    for (int low = 0, high = table->count; low < high;) {
        int           middle = low + (high - low) / 2;
        gpunn__entry *item = &table->items[middle];
        int           order = gpunn__compare_name(&item->name, prefix, prefix_length, name, name_length);
        if (order == 0) return item;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} in any order. */
static bool gpunn__parse_tensor(gpunn__json *j, gpunn__entry *item)
{
    size_t elements = 1, bytes = 0;
    bool   fits = true;
    int    dtypes = 0, shapes = 0, offsets = 0;
    if (!gpunn__json_expect(j, '{', "lacks the description of a tensor")) return false;
    do {
        gpunn__slice key;
        if (!gpunn__json_string(j, &key) || !gpunn__json_expect(j, ':', "lacks a colon")) return false;
        if (gpunn__slice_is(&key, "dtype") && !dtypes++) {
            if (!gpunn__json_string(j, &item->text)) return false;
            for (int i = 0; i < GPUNN__ENCODING_COUNT; i++)
                if (gpunn__slice_is(&item->text, gpunn__encodings[i].safetensors)) item->encoding = &gpunn__encodings[i];
        } else if (gpunn__slice_is(&key, "shape") && !shapes++) {
            if (!gpunn__json_expect(j, '[', "lacks a shape")) return false;
            if (!gpunn__json_take(j, ']')) {
                do {
                    int64_t dim;
                    if (!gpunn__json_integer(j, &dim)) return false;
                    if (dim < 0) return gpunn__json_fail(j, "has a negative dimension");
                    fits = fits && (uint64_t)dim <= SIZE_MAX && gpunn__mul(elements, (size_t)dim, &elements);
                    if (item->rank < GPUNN_MAX_RANK) item->dim[item->rank] = dim;
                    item->rank++; /* less than GPUNN__MAX_HEADER */
                } while (gpunn__json_take(j, ','));
                if (!gpunn__json_expect(j, ']', "has a shape without end")) return false;
            }
        } else if (gpunn__slice_is(&key, "data_offsets") && !offsets++) {
            int64_t begin = 0, end = 0;
            if (!gpunn__json_expect(j, '[', "lacks data_offsets") || !gpunn__json_integer(j, &begin) ||
                !gpunn__json_expect(j, ',', "lacks data_offsets") || !gpunn__json_integer(j, &end) ||
                !gpunn__json_expect(j, ']', "lacks data_offsets"))
                return false;
            if (begin < 0 || end < begin) return gpunn__json_fail(j, "has data_offsets that are no range");
            item->begin = (uint64_t)begin;
            item->end = (uint64_t)end;
        } else
            return gpunn__json_fail(j, "has a key other than dtype, shape and data_offsets, or one of them twice");
    } while (gpunn__json_take(j, ','));
    if (!gpunn__json_expect(j, '}', "has a tensor's description without end")) return false;
    if (!dtypes || !shapes || !offsets) return gpunn__json_fail(j, "lacks a tensor's dtype, shape or data_offsets");
    if (item->encoding && !(fits && gpunn__mul(elements, item->encoding->bytes, &bytes) && bytes == item->end - item->begin))
        return gpunn__json_fail(j, "has a shape that disagrees with its data_offsets");
    return true;
}

/* False with j->problem NULL: out of memory. */
static bool gpunn__parse_header(gpunn_device *dev, gpunn__json *j, gpunn__table *tensors, gpunn__table *notes)
{
    bool         metadata = false;
    gpunn__slice name;
    if (*j->at++ != '{') return gpunn__json_fail(j, "does not begin with {"); /* not even spaces may stand before */
    if (!gpunn__json_take(j, '}')) {
        do {
            if (!gpunn__json_string(j, &name) || !gpunn__json_expect(j, ':', "lacks a colon")) return false;
            if (!gpunn__slice_is(&name, "__metadata__")) {
                gpunn__entry *item = gpunn__table_add(dev, tensors, &name);
                if (item == NULL || !gpunn__parse_tensor(j, item)) return false;
                continue;
            }
            if (metadata) return gpunn__json_fail(j, "has __metadata__ twice");
            metadata = true;
            if (!gpunn__json_expect(j, '{', "lacks an object after __metadata__")) return false;
            if (gpunn__json_take(j, '}')) continue;
            do {
                if (!gpunn__json_string(j, &name)) return false;
                gpunn__entry *item = gpunn__table_add(dev, notes, &name);
                if (item == NULL || !gpunn__json_expect(j, ':', "lacks a colon") || !gpunn__json_string(j, &item->text))
                    return false;
            } while (gpunn__json_take(j, ','));
            if (!gpunn__json_expect(j, '}', "has a __metadata__ without end")) return false;
        } while (gpunn__json_take(j, ','));
        if (!gpunn__json_expect(j, '}', "has no end")) return false;
    }
    (void)gpunn__json_peek(j, 0);
    return j->at == j->end || gpunn__json_fail(j, "goes on after its end");
}

static void gpunn__archive_close(gpunn__archive *a)
{
    gpunn_device *dev = a->reader.dev;
    gpunn__free(dev, a->tensors.items, (size_t)a->tensors.capacity * sizeof *a->tensors.items);
    gpunn__free(dev, a->notes.items, (size_t)a->notes.capacity * sizeof *a->notes.items);
    gpunn__free(dev, a->header, a->header_bytes);
    gpunn__reader_close(&a->reader);
}

/* What the header says, checked. */
static gpunn_status gpunn__archive_header(gpunn__archive *a)
{
    gpunn__reader *r = &a->reader;
    gpunn_device  *dev = r->dev;
    const char    *path = gpunn__tail(r->path);
    unsigned char  head[8];
    uint64_t       length = 0;
    gpunn_status   status = gpunn__reader_read(r, head, sizeof head);
    if (status != GPUNN_OK) return status;
    if (memcmp(head, "PK\3\4", 4) == 0)
        return gpunn__fail(
            dev, GPUNN_ERR_FORMAT,
            "'%s' is a torch.save archive; convert it in Python: safetensors.torch.save_file(torch.load(...), ...)", path);
    for (int i = 0; i < 8; i++) length |= (uint64_t)head[i] << (8 * i);
    if (length > GPUNN__MAX_HEADER || length < 2 || r->limit < sizeof head + length)
        return gpunn__fail(
            dev, GPUNN_ERR_FORMAT,
            "'%s' is no safetensors file, or is cut short: its header would have %llu bytes, the file has %llu; write or "
            "download it again",
            path, (unsigned long long)length, (unsigned long long)r->limit);
    a->header_bytes = (size_t)length;
    a->header = (char *)gpunn__realloc(dev, NULL, 0, a->header_bytes);
    if (a->header == NULL) return GPUNN_ERR_MEMORY;
    status = gpunn__reader_read(r, a->header, a->header_bytes);
    if (status != GPUNN_OK) return status;

    gpunn__json json = gpunn__json_of(a->header, a->header_bytes, false);
    bool        parsed = gpunn__parse_header(dev, &json, &a->tensors, &a->notes);
    if (!parsed && json.problem == NULL) return GPUNN_ERR_MEMORY;
    if (!parsed)
        return gpunn__fail(dev, GPUNN_ERR_FORMAT,
                           "'%s' is damaged or no safetensors file: its header %s (byte %lld); write or download it again", path,
                           json.problem, (long long)(json.at - a->header) + 8);

    uint64_t end = 0, bytes = r->limit - sizeof head - length;
    char     shown[128];
    gpunn__table_sort(&a->tensors, gpunn__entry_by_offset);
    for (int i = 0; i < a->tensors.count; i++) {
        const gpunn__entry *item = &a->tensors.items[i];
        if (item->begin != end || item->end > bytes)
            return gpunn__fail(
                dev, GPUNN_ERR_FORMAT,
                "'%s' is damaged: tensor '%s' is said to lie at bytes %llu to %llu, but the one before ends at %llu and the "
                "data at %llu; write or download it again",
                path, gpunn__printable(&item->name, shown), (unsigned long long)item->begin, (unsigned long long)item->end,
                (unsigned long long)end, (unsigned long long)bytes);
        end = item->end;
    }
    if (end != bytes)
        return gpunn__fail(dev, GPUNN_ERR_FORMAT,
                           "'%s' is damaged: its tensors have %llu bytes, the file %llu; write or download it again", path,
                           (unsigned long long)end, (unsigned long long)bytes);
    gpunn__table *tables[2] = {&a->tensors, &a->notes};
    for (int k = 0; k < 2; k++) {
        gpunn__table_sort(tables[k], gpunn__entry_by_name);
        for (int i = 1; i < tables[k]->count; i++)
            if (gpunn__entry_by_name(&tables[k]->items[i - 1], &tables[k]->items[i]) == 0)
                return gpunn__fail(dev, GPUNN_ERR_FORMAT, "'%s' is damaged: its header has '%s' twice; write it again", path,
                                   gpunn__printable(&tables[k]->items[i].name, shown));
    }
    return GPUNN_OK;
}

/* A failure here leaves nothing to close. */
static gpunn_status gpunn__archive_open(gpunn_device *dev, const char *path, gpunn__archive *a)
{
    a->header = NULL;
    a->header_bytes = 0;
    memset(&a->tensors, 0, sizeof a->tensors);
    a->notes = a->tensors;
    gpunn_status status = gpunn__reader_open(dev, path, false, &a->reader);
    if (status != GPUNN_OK) return status;
    status = gpunn__archive_header(a);
    if (status != GPUNN_OK) gpunn__archive_close(a);
    return status;
}

/* Reads every tensor that has a place. The tables are out of order afterwards. */
static gpunn_status gpunn__archive_read(gpunn__archive *a)
{
    gpunn_status status = GPUNN_OK;
    gpunn__table_sort(&a->tensors, gpunn__entry_by_offset);
    for (int i = 0; i < a->tensors.count && status == GPUNN_OK; i++) {
        const gpunn__entry *item = &a->tensors.items[i];
        uint64_t            bytes = item->end - item->begin;
        if (item->to) {
            status = gpunn__read_elements(&a->reader, item->encoding, false, (size_t)bytes / item->encoding->bytes, item->to);
            continue;
        }
        while (bytes > 0 && status == GPUNN_OK) {
            unsigned char skipped[16384];
            size_t        part = bytes < sizeof skipped ? (size_t)bytes : sizeof skipped;
            status = gpunn__reader_read(&a->reader, skipped, part);
            bytes -= part;
        }
    }
    return status == GPUNN_OK ? gpunn__reader_end(&a->reader) : status;
}

/* ---- loading weights ------------------------------------------------------------------------------------------------- */
typedef struct gpunn__mismatches {
    const gpunn_load_args *args;
    int                    count;
    gpunn_status           status; /* of the first one */
    char                   first[448];
} gpunn__mismatches;

static void gpunn__mismatch(gpunn__mismatches *m, gpunn_status status, const char *format, ...) GPUNN__PRINTF(3, 4);
static void gpunn__mismatch(gpunn__mismatches *m, gpunn_status status, const char *format, ...)
{
    char    line[sizeof m->first];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (m->args->report) m->args->report(m->args->user, line);
    if (m->count++ == 0) {
        m->status = status;
        strcpy(m->first, line);
    }
}

static bool gpunn__begins_with(const gpunn__slice *name, const char *start)
{
    size_t length = strlen(start);
    return name->length >= length && memcmp(name->at, start, length) == 0;
}

static bool gpunn__is_skipped(const gpunn_load_args *args, const gpunn__slice *name)
{
    for (const char *const *skip = args->skip; skip && *skip; skip++)
        if (gpunn__begins_with(name, *skip)) return true;
    return false;
}

static const char *gpunn__entry_shape(const gpunn__entry *item, char text[192])
{
    int used = snprintf(text, 192, "[");
    for (int i = 0; i < item->rank && i < GPUNN_MAX_RANK; i++)
        used += snprintf(text + used, 192 - (size_t)used, "%s%lld", i ? ", " : "", (long long)item->dim[i]);
    (void)snprintf(text + used, 192 - (size_t)used, "%s", item->rank > GPUNN_MAX_RANK ? ", ...]" : "]");
    return text;
}

/* Finds the tensor prefix + t's name, which has t's shape (scalar: none) and can be read as dtype, and gives it its place. */
static void gpunn__match(gpunn__archive *a, gpunn__mismatches *m, const char *prefix, const gpunn_tensor *t, bool scalar,
                         gpunn_dtype dtype, void *to)
{
    gpunn__entry *item = gpunn__table_find(&a->tensors, prefix, t->name);
    gpunn__slice  name = {t->name, strlen(t->name)};
    char          shown[128], type[128];
    (void)gpunn__printable(&name, shown);
    if (item) item->matched = true;
    if (item == NULL)
        gpunn__mismatch(m, GPUNN_ERR_FORMAT, "%s%s: in the model only", prefix, shown);
    else if (item->encoding == NULL || item->encoding->dtype != dtype)
        gpunn__mismatch(m, GPUNN_ERR_DTYPE, "%s%s: file %s, model %s", prefix, shown, gpunn__printable(&item->text, type),
                        gpunn_dtype_name(dtype));
    else if (item->rank != (scalar ? 0 : t->rank) || memcmp(item->dim, t->dim, (size_t)item->rank * sizeof *t->dim) != 0) {
        char file[192], model[128];
        gpunn__mismatch(m, GPUNN_ERR_SHAPE, "%s%s: file %s, model %s", prefix, shown, gpunn__entry_shape(item, file),
                        scalar ? "[]" : gpunn__shape_text(t, model));
    } else
        item->to = to;
}

/* What a file changes, put together in host memory before the first weight changes: the steps of the optimizer's parameters, then
 * copies of the model's weights and of each state that the optimizer uses. opt NULL: only the weights. */
static size_t gpunn__stage_steps(const gpunn_optimizer *opt)
{
    return opt ? (size_t)opt->parameter_count * sizeof *opt->steps : 0;
}

static size_t gpunn__stage_bytes(const gpunn_model *model, const gpunn_optimizer *opt)
{
    size_t floats = (size_t)model->weight_count;
    for (int k = 0; opt && k < 3; k++) floats += opt->uses[k] ? (size_t)opt->state_count : 0;
    return gpunn__stage_steps(opt) + floats * sizeof(float);
}

/* Copies between the stage and the device. */
static gpunn_status gpunn__stage_copy(gpunn_model *model, gpunn_optimizer *opt, char *stage, bool upload)
{
    gpunn_device        *dev = model->dev;
    const gpunn_backend *backend = dev->backend;
    gpunn_status         status = GPUNN_OK;
    stage += gpunn__stage_steps(opt);
    for (int k = -1; k < 3 && status == GPUNN_OK; k++) {
        float *block = k < 0 ? model->weights : opt && opt->uses[k] ? opt->state[k] : NULL;
        size_t bytes = block ? (size_t)(k < 0 ? model->weight_count : opt->state_count) * sizeof *block : 0;
        if (bytes == 0) continue;
        status = upload ? backend->upload(dev->context, block, stage, bytes)
                        : backend->download(dev->context, stage, block, bytes);
        if (status != GPUNN_OK) status = gpunn__backend_fail(dev, upload ? "loading weights" : "reading weights", status);
        stage += bytes;
    }
    return status;
}

/* The names of an optimizer's tensors in a checkpoint are one of these and the parameter's. */
static const char *const gpunn__state_prefix[] = {"optimizer.0.", "optimizer.1.", "optimizer.2."};
static const char        gpunn__step_prefix[] = "optimizer.step.";

/* Gives every tensor of model and optimizer its place in the stage. */
static void gpunn__match_all(gpunn__archive *a, gpunn__mismatches *m, const gpunn_model *model, const gpunn_optimizer *opt,
                             char *stage)
{
    float *at = (float *)(void *)(stage + gpunn__stage_steps(opt));
    for (int i = 0; i < model->tensor_count; i++) {
        const gpunn_tensor *t = model->tensors[i];
        if (!gpunn__is_saved(t)) continue;
        gpunn__slice name = {t->name, strlen(t->name)};
        if (!gpunn__is_skipped(m->args, &name)) gpunn__match(a, m, "", t, false, GPUNN_F32, at + t->offset);
    }
    at += model->weight_count;
    for (int i = 0; opt && i < opt->parameter_count; i++)
        gpunn__match(a, m, gpunn__step_prefix, opt->parameters[i], true, GPUNN_I64, stage + (size_t)i * sizeof *opt->steps);
    for (int k = 0; opt && k < 3; k++) {
        if (!opt->uses[k]) continue;
        for (int i = 0; i < opt->parameter_count; i++)
            gpunn__match(a, m, gpunn__state_prefix[k], opt->parameters[i], false, GPUNN_F32, at + opt->parameters[i]->offset);
        at += opt->state_count;
    }
}

/* Reports what is in the file only. The optimizer's part of a checkpoint and torch's counters of batch_norm calls are left
 * out. */
static void gpunn__match_rest(gpunn__archive *a, gpunn__mismatches *m, bool checkpoint)
{
    static const char counter[] = ".num_batches_tracked";
    for (int i = 0; i < a->tensors.count; i++) {
        const gpunn__entry *item = &a->tensors.items[i];
        size_t              length = item->name.length, suffix = sizeof counter - 1;
        if (item->matched || gpunn__is_skipped(m->args, &item->name) ||
            (checkpoint && gpunn__begins_with(&item->name, "optimizer.")))
            continue;
        if (length > suffix && memcmp(item->name.at + length - suffix, counter, suffix) == 0) continue;
        char shown[128];
        gpunn__mismatch(m, GPUNN_ERR_FORMAT, "%s: in the file only", gpunn__printable(&item->name, shown));
    }
}

static bool gpunn__is_checkpoint(const gpunn__archive *a)
{
    const gpunn__entry *format = gpunn__table_find(&a->notes, "", "format");
    return format && gpunn__slice_is(&format->text, "gpunn-checkpoint");
}

/* Fills a stage (NULL: nothing to load) with what the file has for model and optimizer, all of it read. */
static gpunn_status gpunn__stage_fill(gpunn__archive *a, gpunn_model *model, gpunn_optimizer *opt, const gpunn_load_args *args,
                                      const char *function, char **stage)
{
    gpunn_device     *dev = model->dev;
    size_t            bytes = gpunn__stage_bytes(model, opt);
    gpunn__mismatches mismatches;
    gpunn_status      status = GPUNN_OK;
    mismatches.args = args;
    mismatches.count = 0;
    *stage = bytes ? (char *)gpunn__realloc(dev, NULL, 0, bytes) : NULL;
    if (bytes && *stage == NULL) return GPUNN_ERR_MEMORY;
    gpunn__match_all(a, &mismatches, model, opt, *stage);
    gpunn__match_rest(a, &mismatches, opt == NULL && gpunn__is_checkpoint(a));
    if (mismatches.count > 0 && !args->partial) {
        char more[48] = "";
        if (mismatches.count > 1) (void)snprintf(more, sizeof more, " (and %d more)", mismatches.count - 1);
        status = gpunn__fail(dev, mismatches.status, "%s: '%s' does not fit the model: %s%s; %s", function,
                             gpunn__tail(a->reader.path), mismatches.first, more,
                             opt ? "build the model and the optimizer as they were when it was saved"
                                 : "build the model as it was, or load with .partial = true to take what fits");
    }
    if (status == GPUNN_OK) status = gpunn__stage_copy(model, opt, *stage, false);
    if (status == GPUNN_OK) status = gpunn__archive_read(a);
    if (status == GPUNN_OK) return status;
    gpunn__free(dev, *stage, bytes);
    *stage = NULL;
    return status;
}

GPUNN_API gpunn_status gpunn_load_(gpunn_model *model, const char *path, gpunn_load_args args)
{
    if (model == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "gpunn_load: the model is NULL");
    gpunn__archive archive;
    char          *stage;
    gpunn_status   status = gpunn__commit(model);
    if (status == GPUNN_OK) status = gpunn__archive_open(model->dev, path, &archive);
    if (status != GPUNN_OK) return status;
    status = gpunn__stage_fill(&archive, model, NULL, &args, "gpunn_load", &stage);
    if (status == GPUNN_OK) {
        status = gpunn__stage_copy(model, NULL, stage, true);
        GPUNN__WEIGHTS_CHANGED(model);
        gpunn__free(model->dev, stage, gpunn__stage_bytes(model, NULL));
    }
    gpunn__archive_close(&archive);
    return status;
}

/* ---- what a checkpoint holds beside tensors -------------------------------------------------------------------------- */
#define GPUNN__CHECKPOINT_VERSION "2"

typedef struct gpunn__resume {
    gpunn_optimizer opt; /* a copy */
    gpunn_run_state state;
    int             schedule_type;
    bool            loader; /* there was one */
    int64_t         epoch, position;
    uint64_t        seed;
} gpunn__resume;

/* Each is a metadata string: the decimal integer that its bytes are, so that floats come back bit for bit. */
typedef struct gpunn__resume_field {
    const char *name;
    size_t      offset, size;
    int         count;   /* more than 1: an array */
    int64_t     maximum; /* of 0 to ...; -1: any bits */
} gpunn__resume_field;

#define GPUNN__ANY (-1)
#define GPUNN__COUNTER (INT64_MAX / 2) /* so that counting on cannot overflow */
#define GPUNN__FIELDS(name, member, count, maximum)                                                              \
    {                                                                                                            \
        name, offsetof(gpunn__resume, member), sizeof(((gpunn__resume *)NULL)->member) / (count), count, maximum \
    }
#define GPUNN__RULE(member, maximum) GPUNN__FIELDS("optimizer." #member, opt.rule.member, 1, maximum)
#define GPUNN__OPTIMIZER(member, maximum) GPUNN__FIELDS("optimizer." #member, opt.member, 1, maximum)
#define GPUNN__SCHEDULE(member, maximum) GPUNN__FIELDS("schedule." #member, opt.schedule.member, 1, maximum)
static const gpunn__resume_field gpunn__resume_fields[] = {
    GPUNN__RULE(weight_decay, GPUNN__ANY),
    GPUNN__RULE(momentum, GPUNN__ANY),
    GPUNN__RULE(dampening, GPUNN__ANY),
    GPUNN__RULE(beta1, GPUNN__ANY),
    GPUNN__RULE(beta2, GPUNN__ANY),
    GPUNN__RULE(alpha, GPUNN__ANY),
    GPUNN__RULE(eps, GPUNN__ANY),
    GPUNN__RULE(lr_decay, GPUNN__ANY),
    GPUNN__RULE(momentum_decay, GPUNN__ANY),
    GPUNN__RULE(trust_clip, GPUNN__ANY),
    GPUNN__RULE(nesterov, 1),
    GPUNN__RULE(centered, 1),
    GPUNN__RULE(maximize, 1),
    GPUNN__RULE(decoupled, 1),
    GPUNN__RULE(always_adapt, 1),
    GPUNN__OPTIMIZER(state_start, GPUNN__ANY),
    GPUNN__OPTIMIZER(step_count, GPUNN__COUNTER),
    GPUNN__OPTIMIZER(lr, GPUNN__ANY),
    GPUNN__OPTIMIZER(clip_norm, GPUNN__ANY),
    GPUNN__OPTIMIZER(clip_value, GPUNN__ANY),
    GPUNN__FIELDS("optimizer.loss_scale.", opt.kept_scale, 3, GPUNN__ANY),
    GPUNN__FIELDS("schedule.type", schedule_type, 1, GPUNN_SCHEDULE_PLATEAU),
    GPUNN__SCHEDULE(total_steps, GPUNN__COUNTER),
    GPUNN__SCHEDULE(step_size, GPUNN__COUNTER),
    GPUNN__SCHEDULE(warmup_steps, GPUNN__COUNTER),
    GPUNN__FIELDS("schedule.milestones.", opt.schedule.milestones, 16, GPUNN__COUNTER),
    GPUNN__SCHEDULE(gamma, GPUNN__ANY),
    GPUNN__SCHEDULE(min_lr, GPUNN__ANY),
    GPUNN__SCHEDULE(pct_start, GPUNN__ANY),
    GPUNN__SCHEDULE(div_factor, GPUNN__ANY),
    GPUNN__SCHEDULE(final_div_factor, GPUNN__ANY),
    GPUNN__SCHEDULE(factor, GPUNN__ANY),
    GPUNN__SCHEDULE(threshold, GPUNN__ANY),
    GPUNN__SCHEDULE(patience, INT32_MAX),
    GPUNN__SCHEDULE(cooldown, INT32_MAX),
    GPUNN__SCHEDULE(maximize, 1),
    GPUNN__FIELDS("schedule.step", opt.schedule_step, 1, GPUNN__COUNTER),
    GPUNN__FIELDS("schedule.plateau_scale", opt.plateau_scale, 1, GPUNN__ANY),
    GPUNN__FIELDS("schedule.plateau_best", opt.plateau_best, 1, GPUNN__ANY),
    GPUNN__FIELDS("schedule.plateau_bad", opt.plateau_bad, 1, INT32_MAX / 2),
    GPUNN__FIELDS("schedule.plateau_cooldown", opt.plateau_cooldown, 1, INT32_MAX / 2),
    GPUNN__FIELDS("random.seed", state.seed, 1, GPUNN__ANY),
    GPUNN__FIELDS("random.step", state.step, 1, GPUNN__ANY),
    GPUNN__FIELDS("loader", loader, 1, 1),
    GPUNN__FIELDS("loader.epoch", epoch, 1, GPUNN__COUNTER),
    GPUNN__FIELDS("loader.position", position, 1, GPUNN__COUNTER),
    GPUNN__FIELDS("loader.seed", seed, 1, GPUNN__ANY),
};
#undef GPUNN__ANY
#undef GPUNN__FIELDS
#undef GPUNN__RULE
#undef GPUNN__OPTIMIZER
#undef GPUNN__SCHEDULE
enum { GPUNN__RESUME_FIELD_COUNT = sizeof gpunn__resume_fields / sizeof gpunn__resume_fields[0] };

/* The rest of a field's name: its number in an array. */
static const char *gpunn__resume_index(const gpunn__resume_field *field, int i, char text[16])
{
    text[0] = 0;
    if (field->count > 1) (void)snprintf(text, 16, "%d", i);
    return text;
}

static gpunn_status gpunn__resume_read(const gpunn__archive *a, gpunn__resume *resume)
{
    gpunn_device       *dev = a->reader.dev;
    const char         *path = gpunn__tail(a->reader.path), *function = "gpunn_checkpoint_load", *name = resume->opt.name;
    const gpunn__entry *version = gpunn__table_find(&a->notes, "", "version"),
                       *kind = gpunn__table_find(&a->notes, "", "optimizer");
    const gpunn_update rule = resume->opt.rule;
    char               shown[128];
    if (!gpunn__is_checkpoint(a) || version == NULL || kind == NULL)
        return gpunn__fail(dev, GPUNN_ERR_FORMAT, "%s: '%s' holds weights but no checkpoint; use gpunn_load", function, path);
    if (!gpunn__slice_is(&version->text, GPUNN__CHECKPOINT_VERSION))
        return gpunn__fail(dev, GPUNN_ERR_FORMAT,
                           "%s: '%s' is of version %s, this gpunn.h reads version " GPUNN__CHECKPOINT_VERSION
                           "; use the gpunn.h that wrote it",
                           function, path, gpunn__printable(&version->text, shown));
    if (!gpunn__slice_is(&kind->text, name))
        return gpunn__fail(dev, GPUNN_ERR_STATE,
                           "%s: '%s' was saved with %s, but the optimizer is %s; create the one that was saved", function, path,
                           gpunn__printable(&kind->text, shown), name);
    for (int f = 0; f < GPUNN__RESUME_FIELD_COUNT; f++) {
        const gpunn__resume_field *field = &gpunn__resume_fields[f];
        for (int i = 0; i < field->count; i++) {
            char                index[16];
            int64_t             value = 0;
            const gpunn__entry *note = gpunn__table_find(&a->notes, field->name, gpunn__resume_index(field, i, index));
            if (note == NULL || !gpunn__slice_integer(&note->text, &value) ||
                (field->maximum >= 0 && (value < 0 || value > field->maximum)))
                return gpunn__fail(dev, GPUNN_ERR_FORMAT, "%s: '%s' is damaged: its entry '%s%s' is %s; use an older checkpoint",
                                   function, path, field->name, index, note ? gpunn__printable(&note->text, shown) : "missing");
            memcpy((char *)resume + field->offset + (size_t)i * field->size, &value, field->size);
        }
    }
    gpunn_schedule_args checked = resume->opt.schedule;
    checked.type = resume->opt.schedule.type = (gpunn_schedule_type)resume->schedule_type;
    if ((resume->opt.rule.momentum != 0) != (rule.momentum != 0) || resume->opt.rule.centered != rule.centered) /* other state */
        return gpunn__fail(
            dev, GPUNN_ERR_STATE,
            "%s: '%s' was saved with momentum %g and centered %d, but %s has momentum %g and centered %d; create it alike",
            function, path, (double)resume->opt.rule.momentum, resume->opt.rule.centered, name, (double)rule.momentum,
            rule.centered);
    return gpunn__schedule_check(dev, &checked); /* a copy: it puts defaults for zeros */
}

/* ---- writing --------------------------------------------------------------------------------------------------------- *
 * One walk over everything that is saved, three times: to measure the header, to write it, to write the tensors. */
typedef enum gpunn__pass { GPUNN__MEASURE, GPUNN__HEADER, GPUNN__TENSORS } gpunn__pass;
enum { GPUNN__CHUNK = 1 << 20 }; /* bytes on their way from the device to the file */

typedef struct gpunn__writer {
    gpunn_device *dev;
    gpunn__file  *file;
    gpunn__pass   pass;
    uint64_t      length; /* of the header so far */
    uint64_t      offset; /* of the next tensor */
    char         *chunk;
    gpunn_status  status;
} gpunn__writer;

static void gpunn__emit(gpunn__writer *w, const char *text, size_t length)
{
    w->length += length;
    if (w->pass == GPUNN__HEADER) (void)gpunn__file_write(w->file, text, length);
}

static void gpunn__emitf(gpunn__writer *w, const char *format, ...) GPUNN__PRINTF(2, 3);
static void gpunn__emitf(gpunn__writer *w, const char *format, ...)
{
    char    text[256];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    gpunn__emit(w, text, (size_t)length);
}

/* "prefix and name" */
static void gpunn__emit_name(gpunn__writer *w, const char *prefix, const char *name)
{
    size_t left = strlen(name);
    gpunn__emitf(w, "\"%s", prefix);
    while (left > 0) {
        size_t size = gpunn__utf8_size(name, left);
        if (size == 0) {
            if (w->status == GPUNN_OK)
                w->status = gpunn__fail(w->dev, GPUNN_ERR_ARGUMENT,
                                        "the name '%.120s' is not UTF-8, so no file can hold it; rename the layer", name);
            return;
        }
        unsigned char c = (unsigned char)*name;
        if (c < 0x20)
            gpunn__emitf(w, "\\u%04x", c);
        else {
            if (c == '"' || c == '\\') gpunn__emit(w, "\\", 1);
            gpunn__emit(w, name, size);
        }
        name += size;
        left -= size;
    }
    gpunn__emit(w, "\"", 1);
}

static void gpunn__emit_floats(gpunn__writer *w, const float *from, size_t bytes)
{
    for (size_t at = 0; at < bytes && w->status == GPUNN_OK; at += GPUNN__CHUNK) {
        size_t part = bytes - at < (size_t)GPUNN__CHUNK ? bytes - at : (size_t)GPUNN__CHUNK;
        w->status = w->dev->backend->download(w->dev->context, w->chunk, (const char *)from + at, part);
        if (w->status != GPUNN_OK)
            w->status = gpunn__backend_fail(w->dev, "saving weights", w->status);
        else
            w->status = gpunn__file_write(w->file, w->chunk, part);
    }
}

/* A tensor in the header. */
static void gpunn__emit_entry(gpunn__writer *w, const char *prefix, const char *name, gpunn_dtype dtype, int rank,
                              const int64_t *dim, size_t bytes)
{
    static const char *const types[] = {"",
#define GPUNN__X(id, text, file_name, bytes) file_name,
                                        GPUNN_DTYPE_LIST(GPUNN__X)
#undef GPUNN__X
    };
    gpunn__emit(w, ",", 1);
    gpunn__emit_name(w, prefix, name);
    gpunn__emitf(w, ":{\"dtype\":\"%s\",\"shape\":[", types[dtype]);
    for (int i = 0; i < rank; i++) gpunn__emitf(w, "%s%lld", i ? "," : "", (long long)dim[i]);
    gpunn__emitf(w, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)w->offset, (unsigned long long)(w->offset + bytes));
    w->offset += bytes;
}

/* Either floats in the device's memory, of t's shape, or one number. */
static void gpunn__emit_tensor(gpunn__writer *w, const char *prefix, const gpunn_tensor *t, const float *floats,
                               const int64_t *number)
{
    size_t bytes = number ? sizeof *number : (size_t)gpunn__count(t, 1) * sizeof *floats;
    if (w->pass == GPUNN__TENSORS) {
        if (number)
            (void)gpunn__file_write(w->file, number, bytes);
        else
            gpunn__emit_floats(w, floats, bytes);
        return;
    }
    gpunn__emit_entry(w, prefix, t->name, number ? GPUNN_I64 : GPUNN_F32, number ? 0 : t->rank, t->dim, bytes);
}

static void gpunn__emit_metadata(gpunn__writer *w, const gpunn__resume *resume)
{
    if (resume == NULL) {
        gpunn__emitf(w, "{\"__metadata__\":{\"format\":\"pt\"}");
        return;
    }
    gpunn__emitf(w,
                 "{\"__metadata__\":{\"format\":\"gpunn-checkpoint\",\"version\":\"" GPUNN__CHECKPOINT_VERSION
                 "\",\"optimizer\":\"%s\"",
                 resume->opt.name);
    for (int f = 0; f < GPUNN__RESUME_FIELD_COUNT; f++) {
        const gpunn__resume_field *field = &gpunn__resume_fields[f];
        for (int i = 0; i < field->count; i++) {
            char    index[16];
            int64_t value = 0;
            memcpy(&value, (const char *)resume + field->offset + (size_t)i * field->size, field->size);
            gpunn__emitf(w, ",\"%s%s\":\"%lld\"", field->name, gpunn__resume_index(field, i, index), (long long)value);
        }
    }
    gpunn__emit(w, "}", 1);
}

static void gpunn__emit_begin(gpunn__writer *w, gpunn__pass pass, const gpunn__resume *resume)
{
    w->pass = pass;
    w->length = w->offset = 0;
    if (pass != GPUNN__TENSORS) gpunn__emit_metadata(w, resume);
}

typedef struct gpunn__saved {
    const gpunn_model   *model;
    const gpunn__resume *resume; /* NULL: weights only */
} gpunn__saved;

static void gpunn__emit_model(gpunn__writer *w, gpunn__pass pass, const void *what)
{
    const gpunn_model     *model = ((const gpunn__saved *)what)->model;
    const gpunn__resume   *resume = ((const gpunn__saved *)what)->resume;
    const gpunn_optimizer *opt = resume ? &resume->opt : NULL;
    gpunn__emit_begin(w, pass, resume);
    for (int i = 0; opt && i < opt->parameter_count; i++) /* first, so that they stay aligned */
        gpunn__emit_tensor(w, gpunn__step_prefix, opt->parameters[i], NULL, &opt->steps[i]);
    for (int i = 0; i < model->tensor_count; i++) {
        const gpunn_tensor *t = model->tensors[i];
        if (gpunn__is_saved(t)) gpunn__emit_tensor(w, "", t, gpunn__weights(t), NULL);
    }
    for (int k = 0; opt && k < 3; k++)
        for (int i = 0; opt->uses[k] && i < opt->parameter_count; i++)
            gpunn__emit_tensor(w, gpunn__state_prefix[k], opt->parameters[i], opt->state[k] + opt->parameters[i]->offset, NULL);
    if (pass != GPUNN__TENSORS) gpunn__emit(w, "}", 1);
}

/* emit walks over `what`. */
static gpunn_status gpunn__archive_write(gpunn_device *dev, const char                                                  *path,
                                         void (*emit)(gpunn__writer *w, gpunn__pass pass, const void *what), const void *what)
{
    gpunn__file   file;
    gpunn__writer w;
    memset(&w, 0, sizeof w);
    w.dev = dev;
    w.file = &file;
    w.status = GPUNN_OK;
    emit(&w, GPUNN__MEASURE, what);
    if (w.status != GPUNN_OK) return w.status;
    size_t        padding = (size_t)(7 - (w.length + 7) % 8); /* the tensors begin at a multiple of 8 */
    uint64_t      length = w.length + padding;
    unsigned char head[8];
    for (int i = 0; i < 8; i++) head[i] = (unsigned char)(length >> (8 * i));
    w.status = gpunn__file_open(dev, path, &file);
    if (w.status != GPUNN_OK) return w.status;
    w.chunk = (char *)gpunn__realloc(dev, NULL, 0, GPUNN__CHUNK);
    w.status = w.chunk ? gpunn__file_write(&file, head, sizeof head) : GPUNN_ERR_MEMORY;
    if (w.status == GPUNN_OK) {
        emit(&w, GPUNN__HEADER, what);
        (void)gpunn__file_write(&file, "       ", padding);
        emit(&w, GPUNN__TENSORS, what);
    }
    if (w.status == GPUNN_OK) w.status = gpunn__file_commit(&file);
    gpunn__file_discard(&file);
    gpunn__free(dev, w.chunk, GPUNN__CHUNK);
    return w.status;
}

GPUNN_API gpunn_status gpunn_save(gpunn_model *model, const char *path)
{
    if (model == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "gpunn_save: the model is NULL");
    gpunn__saved saved = {model, NULL};
    gpunn_status status = gpunn__commit(model);
    return status == GPUNN_OK ? gpunn__archive_write(model->dev, path, gpunn__emit_model, &saved) : status;
}

GPUNN_API gpunn_status gpunn_checkpoint_save(gpunn_optimizer *opt, gpunn_loader *loader, const char *path)
{
    if (opt == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "gpunn_checkpoint_save: the optimizer is NULL");
    gpunn_model *model = opt->model;
    gpunn_status status = gpunn__optimizer_prepare(opt);
    if (status == GPUNN_OK) status = gpunn__scale_keep(opt);
    if (status != GPUNN_OK) return status;
    for (int i = 0; i < model->tensor_count; i++) {
        const gpunn_tensor *t = model->tensors[i];
        if (gpunn__is_saved(t) && strncmp(t->name, "optimizer.", 10) == 0)
            return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                               "gpunn_checkpoint_save: names that begin with 'optimizer.' are the optimizer's; rename '%.120s'",
                               t->name);
    }
    gpunn__resume resume;
    memset(&resume, 0, sizeof resume);
    resume.opt = *opt;
    resume.state = model->state;
    resume.schedule_type = (int)opt->schedule.type;
    resume.loader = loader != NULL;
    if (loader) {
        gpunn__loader_state(loader, &resume.epoch, &resume.position);
        resume.seed = loader->args.seed;
    }
    gpunn__saved saved = {model, &resume};
    return gpunn__archive_write(model->dev, path, gpunn__emit_model, &saved);
}

GPUNN_API gpunn_status gpunn_checkpoint_load(gpunn_optimizer *opt, gpunn_loader *loader, const char *path)
{
    if (opt == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "gpunn_checkpoint_load: the optimizer is NULL");
    gpunn_model    *model = opt->model;
    gpunn_device   *dev = model->dev;
    gpunn_load_args args;
    gpunn__resume   resume;
    gpunn__archive  archive;
    char           *stage = NULL;
    gpunn_status    status = gpunn__optimizer_prepare(opt);
    if (status == GPUNN_OK) status = gpunn__scale_keep(opt); /* later ones come from kept_scale */
    if (status == GPUNN_OK) status = gpunn__archive_open(dev, path, &archive);
    if (status != GPUNN_OK) return status;
    memset(&args, 0, sizeof args);
    memset(&resume, 0, sizeof resume);
    resume.opt = *opt;
    resume.state = model->state;
    status = gpunn__resume_read(&archive, &resume);
    if (status == GPUNN_OK && loader && !resume.loader)
        status = gpunn__fail(dev, GPUNN_ERR_STATE,
                             "gpunn_checkpoint_load: '%s' was saved without a loader; load it with NULL for the loader",
                             gpunn__tail(path));
    if (status == GPUNN_OK) status = gpunn__stage_fill(&archive, model, opt, &args, "gpunn_checkpoint_load", &stage);
    gpunn__archive_close(&archive);
    if (status != GPUNN_OK) return status;
    for (int i = 0; i < opt->parameter_count && status == GPUNN_OK; i++) {
        int64_t steps;
        memcpy(&steps, stage + (size_t)i * sizeof steps, sizeof steps);
        if (steps < 0 || steps > GPUNN__COUNTER)
            status = gpunn__fail(dev, GPUNN_ERR_FORMAT,
                                 "gpunn_checkpoint_load: '%s' is damaged: %s%.120s is %lld; use an older checkpoint",
                                 gpunn__tail(path), gpunn__step_prefix, opt->parameters[i]->name, (long long)steps);
    }
    if (loader && status == GPUNN_OK) status = gpunn__loader_set_state(loader, resume.epoch, resume.position);
    if (loader && status == GPUNN_OK) {
        loader->args.seed = resume.seed;
        loader->ordered_epoch = -1;
    }
    if (status == GPUNN_OK) {
        status = gpunn__stage_copy(model, opt, stage, true);
        GPUNN__WEIGHTS_CHANGED(model);
    }
    if (status == GPUNN_OK) {
        if (opt->parameter_count) memcpy(resume.opt.steps, stage, gpunn__stage_steps(opt)); /* the array is opt's own */
        *opt = resume.opt;
        model->state.seed = resume.state.seed;
        model->state.step = resume.state.step;
    }
    gpunn__free(dev, stage, gpunn__stage_bytes(model, opt));
    return status;
}

/* ==== >>spec ========================================================================================================== *
 * A model as text. The canonical text says what it computes and nothing else; the generator makes the same one, so its SHA-256
 * tells a kernel file whose model it is for, and a node's line which kernel fits it. The JSON is what gpunn_spec_save writes. */

/* The attributes of ops outside the elementwise tables, in the order of the canonical text. */
typedef enum gpunn__attribute_kind {
    GPUNN__A_BOOL,
    GPUNN__A_NOT, /* a bool kept the other way round */
    GPUNN__A_INT,
    GPUNN__A_LAST, /* int: the first of the last axes; the text says how many they are */
    GPUNN__A_INT64,
    GPUNN__A_FLOAT,
    GPUNN__A_WINDOW, /* int for each spatial axis */
    GPUNN__A_ORDER,  /* int for each axis */
    GPUNN__A_SIZES,  /* int64_t for each axis */
    GPUNN__A_AXES,   /* a bit for each axis */
    GPUNN__A_REDUCTION,
    GPUNN__A_GRID_MODE,
    GPUNN__A_GRID_PADDING
} gpunn__attribute_kind;
typedef struct gpunn__attribute {
    gpunn_op              op;
    const char           *name; /* torch's */
    gpunn__attribute_kind kind;
    size_t                offset;    /* in gpunn_attributes */
    const char           *otherwise; /* the JSON's default; NULL: none, "": the JSON does not have it */
} gpunn__attribute;

#define GPUNN__A(ENUM, name, kind, member, otherwise)                                         \
    {                                                                                         \
        GPUNN_OP_##ENUM, name, GPUNN__A_##kind, offsetof(gpunn_attributes, member), otherwise \
    }
#define GPUNN__A_CONV(ENUM)                                                                         \
    GPUNN__A(ENUM, "stride", WINDOW, stride, "1"), GPUNN__A(ENUM, "padding", WINDOW, padding, "0"), \
        GPUNN__A(ENUM, "dilation", WINDOW, dilation, "1"), GPUNN__A(ENUM, "groups", INT, groups, "1")
static const gpunn__attribute gpunn__attributes_of[] = {
    GPUNN__A(MATMUL, "transpose_a", BOOL, transpose_a, "false"),
    GPUNN__A(MATMUL, "transpose_b", BOOL, transpose_b, "false"),
    GPUNN__A_CONV(CONV1D),
    GPUNN__A_CONV(CONV2D),
    GPUNN__A_CONV(CONV3D),
    GPUNN__A_CONV(CONV_TRANSPOSE1D),
    GPUNN__A_CONV(CONV_TRANSPOSE2D),
    GPUNN__A_CONV(CONV_TRANSPOSE3D),
    GPUNN__A(MAX_POOL2D, "kernel_size", WINDOW, kernel, NULL),
    GPUNN__A(MAX_POOL2D, "stride", WINDOW, stride, NULL),
    GPUNN__A(MAX_POOL2D, "padding", WINDOW, padding, "0"),
    GPUNN__A(MAX_POOL2D, "ceil_mode", BOOL, ceil_mode, "false"),
    GPUNN__A(MAX_POOL3D, "kernel_size", WINDOW, kernel, NULL),
    GPUNN__A(MAX_POOL3D, "stride", WINDOW, stride, NULL),
    GPUNN__A(MAX_POOL3D, "padding", WINDOW, padding, "0"),
    GPUNN__A(MAX_POOL3D, "ceil_mode", BOOL, ceil_mode, "false"),
    GPUNN__A(AVG_POOL2D, "kernel_size", WINDOW, kernel, NULL),
    GPUNN__A(AVG_POOL2D, "stride", WINDOW, stride, NULL),
    GPUNN__A(AVG_POOL2D, "padding", WINDOW, padding, "0"),
    GPUNN__A(AVG_POOL2D, "ceil_mode", BOOL, ceil_mode, "false"),
    GPUNN__A(AVG_POOL2D, "count_include_pad", NOT, count_exclude_pad, "true"),
    GPUNN__A(AVG_POOL3D, "kernel_size", WINDOW, kernel, NULL),
    GPUNN__A(AVG_POOL3D, "stride", WINDOW, stride, NULL),
    GPUNN__A(AVG_POOL3D, "padding", WINDOW, padding, "0"),
    GPUNN__A(AVG_POOL3D, "ceil_mode", BOOL, ceil_mode, "false"),
    GPUNN__A(AVG_POOL3D, "count_include_pad", NOT, count_exclude_pad, "true"),
    GPUNN__A(GRID_SAMPLE, "mode", GRID_MODE, mode, "\"bilinear\""),
    GPUNN__A(GRID_SAMPLE, "padding_mode", GRID_PADDING, padding_mode, "\"zeros\""),
    GPUNN__A(GRID_SAMPLE, "align_corners", BOOL, align_corners, "false"),
    GPUNN__A(AFFINE_GRID, "align_corners", BOOL, align_corners, "false"),
    GPUNN__A(BATCH_NORM, "eps", FLOAT, eps, "1e-05"),
    GPUNN__A(BATCH_NORM, "momentum", FLOAT, momentum, "0.1"),
    GPUNN__A(LAYER_NORM, "dims", LAST, axis, "1"),
    GPUNN__A(LAYER_NORM, "eps", FLOAT, eps, "1e-05"),
    GPUNN__A(RMS_NORM, "dims", LAST, axis, "1"),
    GPUNN__A(RMS_NORM, "eps", FLOAT, eps, "1.1920929e-07"),
    GPUNN__A(EMBEDDING, "padding_idx", INT64, ignore_index, "-1"),
    GPUNN__A(DROPOUT, "p", FLOAT, value[0], "0.5"),
    GPUNN__A(PERMUTE, "dims", ORDER, order, NULL),
    GPUNN__A(CONCAT, "dim", INT, axis, "0"),
    GPUNN__A(SLICE, "dim", INT, axis, NULL),
    GPUNN__A(SLICE, "start", INT64, start, "0"),
    GPUNN__A(SLICE, "step", INT64, step, "1"),
    GPUNN__A(PAD, "before", SIZES, before, NULL),
    GPUNN__A(PAD, "value", FLOAT, value[0], "0"),
    GPUNN__A(GATHER, "dim", INT, axis, NULL),
    GPUNN__A(SUM, "dims", AXES, axes, NULL),
    GPUNN__A(SUM, "mean", BOOL, mean, ""),
    GPUNN__A(MAX, "dims", AXES, axes, NULL),
    GPUNN__A(ARGMAX, "dim", INT, axis, NULL),
    GPUNN__A(SOFTMAX, "dim", INT, axis, NULL),
    GPUNN__A(LOG_SOFTMAX, "dim", INT, axis, NULL),
    GPUNN__A(ATTENTION, "dropout_p", FLOAT, value[0], "0"),
    GPUNN__A(ATTENTION, "is_causal", BOOL, is_causal, "false"),
    GPUNN__A(ATTENTION, "scale", FLOAT, value[1], NULL),
    GPUNN__A(ATTENTION, "heads_last", BOOL, heads_last, "false"),
    GPUNN__A(CROSS_ENTROPY, "reduction", REDUCTION, reduction, "\"mean\""),
    GPUNN__A(CROSS_ENTROPY, "ignore_index", INT64, ignore_index, "-100"),
    GPUNN__A(CROSS_ENTROPY, "label_smoothing", FLOAT, value[0], "0"),
    GPUNN__A(NLL, "reduction", REDUCTION, reduction, "\"mean\""),
    GPUNN__A(NLL, "ignore_index", INT64, ignore_index, "-100"),
};
#undef GPUNN__A
#undef GPUNN__A_CONV
enum { GPUNN__ATTRIBUTE_COUNT = sizeof gpunn__attributes_of / sizeof gpunn__attributes_of[0] };

static const char *const gpunn__precision_names[] = {"f32", "tf32", "bf16", "f16"};
static const char *const gpunn__reduction_names[] = {"mean", "sum", "none", "batchmean"};
static const char *const gpunn__grid_mode_names[] = {"bilinear", "nearest"};
static const char *const gpunn__grid_padding_names[] = {"zeros", "border", "reflection"};

/* A text of limited size: what does not fit is left out, and the end is always there. */
typedef struct gpunn__line {
    char  *at;
    size_t size, used;
} gpunn__line;

static void gpunn__put(gpunn__line *text, const char *format, ...) GPUNN__PRINTF(2, 3);
static void gpunn__put(gpunn__line *text, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text->at + text->used, text->size - text->used, format, list);
    va_end(list);
    size_t room = text->size - text->used - 1;
    text->used += (size_t)length < room ? (size_t)length : room;
}

/* With a point in every locale. Nine digits tell every float. */
static void gpunn__put_float(gpunn__line *text, float value, int digits)
{
    char printed[48], plain[48];
    int  used = 0;
    (void)snprintf(printed, sizeof printed, "%.*g", digits, (double)value);
    for (const char *c = printed; *c; c++)
        if (isalnum((unsigned char)*c) || *c == '-' || *c == '+')
            plain[used++] = *c;
        else if (used == 0 || plain[used - 1] != '.')
            plain[used++] = '.';
    plain[used] = 0;
    gpunn__put(text, "%s", plain);
}

/* A float as JSON has it, in as few digits as tell it; JSON knows no infinity. */
static void gpunn__put_number(gpunn__line *text, float value)
{
    const char *quote = isfinite(value) ? "" : "\"";
    size_t      used = text->used;
    for (int digits = 6; digits <= 9; digits++) {
        double back = 0;
        text->used = used;
        gpunn__put(text, "%s", quote);
        gpunn__slice number = {text->at + text->used, 0};
        gpunn__put_float(text, value, digits);
        number.length = (size_t)(text->at + text->used - number.at);
        if (!isfinite(value) || (gpunn__json_double(&number, &back) && (float)back == value)) break;
    }
    gpunn__put(text, "%s", quote);
}

static void gpunn__put_dims(gpunn__line *text, const gpunn_tensor *t)
{
    for (int i = 0; i < t->rank; i++) {
        if (i) gpunn__put(text, ",");
        if (t->dim[i] < -1) gpunn__put(text, "%lld", -(long long)t->dim[i]);
        if (t->dim[i] < 0)
            gpunn__put(text, "N");
        else
            gpunn__put(text, "%lld", (long long)t->dim[i]);
    }
}

static bool gpunn__all_equal(const int *values, int count)
{
    for (int i = 1; i < count; i++)
        if (values[i] != values[0]) return false;
    return true;
}

/* An attribute's value: 1,2 in the canonical text, [1, 2] in JSON. */
static void gpunn__put_attribute(gpunn__line *text, const gpunn_tensor *t, const gpunn__attribute *a, bool json)
{
    const char     *from = (const char *)&t->attr + a->offset, *between = json ? ", " : ",", *quote = json ? "\"" : "";
    const bool     *flag = (const bool *)from;
    const int      *ints = (const int *)(const void *)from;
    const int64_t  *wide = (const int64_t *)(const void *)from;
    const uint32_t *bits = (const uint32_t *)(const void *)from;
    int             count = t->inputs[0]->rank;
    bool            list = a->kind >= GPUNN__A_ORDER && a->kind <= GPUNN__A_AXES;
    if (a->kind == GPUNN__A_WINDOW) {
        count -= 2;
        list = !gpunn__all_equal(ints, count);
        if (json && !list) count = 1;
    }
    if (json && list) gpunn__put(text, "[");
    switch (a->kind) {
    case GPUNN__A_BOOL:
    case GPUNN__A_NOT: {
        bool set = *flag != (a->kind == GPUNN__A_NOT);
        gpunn__put(text, "%s", json ? (set ? "true" : "false") : set ? "1" : "0");
        break;
    }
    case GPUNN__A_INT: gpunn__put(text, "%d", *ints); break;
    case GPUNN__A_LAST: gpunn__put(text, "%d", t->rank - *ints); break;
    case GPUNN__A_INT64: gpunn__put(text, "%lld", (long long)*wide); break;
    case GPUNN__A_FLOAT:
        if (json)
            gpunn__put_number(text, *(const float *)(const void *)from);
        else
            gpunn__put_float(text, *(const float *)(const void *)from, 9);
        break;
    case GPUNN__A_WINDOW:
    case GPUNN__A_ORDER:
        for (int i = 0; i < count; i++) gpunn__put(text, "%s%d", i ? between : "", ints[i]);
        break;
    case GPUNN__A_SIZES:
        for (int i = 0; i < count; i++) gpunn__put(text, "%s%lld", i ? between : "", (long long)wide[i]);
        break;
    case GPUNN__A_AXES:
        for (int i = 0, found = 0; i < count; i++)
            if (*bits >> i & 1) gpunn__put(text, "%s%d", found++ ? between : "", i);
        break;
    case GPUNN__A_REDUCTION:
        gpunn__put(text, "%s%s%s", quote, gpunn__reduction_names[*(const gpunn_reduction *)(const void *)from], quote);
        break;
    case GPUNN__A_GRID_MODE: gpunn__put(text, "%s%s%s", quote, gpunn__grid_mode_names[*ints], quote); break;
    case GPUNN__A_GRID_PADDING: gpunn__put(text, "%s%s%s", quote, gpunn__grid_padding_names[*ints], quote); break;
    }
    if (json && list) gpunn__put(text, "]");
}

GPUNN__PRIVATE void gpunn__external_text(const gpunn_tensor *t, char *out, size_t size)
{
    gpunn__line text = {out, size, 0};
    gpunn__put(&text, "%s [", gpunn_dtype_name(t->dtype));
    gpunn__put_dims(&text, t);
    gpunn__put(&text, "]");
}

GPUNN__PRIVATE void gpunn__node_text(const gpunn_tensor *t, char *out, size_t size)
{
    static const char *const kinds[] = {"", "input", "parameter", "buffer", "constant"};
    gpunn__line              text = {out, size, 0};
    gpunn__put(&text, "%s", t->kind == GPUNN__VALUE ? gpunn_op_name(t->op) : kinds[t->kind]);
    for (int i = 0; i < gpunn__op_attribute_count(t->op); i++) {
        gpunn__put(&text, " %s=", gpunn__op_infos[t->op].attribute[i]);
        gpunn__put_float(&text, t->attr.value[i], 9);
    }
    for (int i = 0; i < GPUNN__ATTRIBUTE_COUNT; i++) {
        const gpunn__attribute *a = &gpunn__attributes_of[i];
        if (a->op != t->op) continue;
        gpunn__put(&text, " %s=", a->name);
        gpunn__put_attribute(&text, t, a, false);
    }
    gpunn__put(&text, " ");
    gpunn__external_text(t, out + text.used, size - text.used);
}

/* The canonical text of the first `count` tensors, piece by piece. */
static void gpunn__model_text(const gpunn_model *model, int count, void (*write)(void *user, const char *piece, size_t length),
                              void *user)
{
    char        line[GPUNN__TEXT_SIZE];
    gpunn__line text = {line, sizeof line, 0};
    gpunn__put(&text, "gpunn 1 %s\n", gpunn__precision_names[model->precision]);
    write(user, line, text.used);
    for (int i = 0; i < count; i++) {
        const gpunn_tensor *t = model->tensors[i];
        gpunn__node_text(t, line, sizeof line);
        write(user, line, strlen(line));
        if (t->kind == GPUNN__VALUE) write(user, " <-", 3);
        for (int k = 0; k < t->input_count; k++) {
            text.used = 0;
            if (t->inputs[k])
                gpunn__put(&text, " %d", t->inputs[k]->id);
            else
                gpunn__put(&text, " -");
            write(user, line, text.used);
        }
        write(user, "\n", 1);
    }
}

/* ---- SHA-256 (FIPS 180-4) -------------------------------------------------------------------------------------------- */
typedef struct gpunn__sha256 {
    uint32_t      state[8];
    uint64_t      bytes;
    unsigned char block[64];
} gpunn__sha256;

static const uint32_t gpunn__sha256_start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static uint32_t gpunn__rotate_right(uint32_t x, int count)
{
    return x >> count | x << (32 - count);
}

static void gpunn__sha256_block(gpunn__sha256 *sha)
{
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
        0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
        0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
        0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
        0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
        0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)sha->block[4 * i] << 24 | (uint32_t)sha->block[4 * i + 1] << 16 | (uint32_t)sha->block[4 * i + 2] << 8 |
               sha->block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (gpunn__rotate_right(a, 7) ^ gpunn__rotate_right(a, 18) ^ a >> 3) +
               (gpunn__rotate_right(b, 17) ^ gpunn__rotate_right(b, 19) ^ b >> 10);
    }
    memcpy(v, sha->state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t t1 = v[7] + (gpunn__rotate_right(e, 6) ^ gpunn__rotate_right(e, 11) ^ gpunn__rotate_right(e, 25)) +
                      ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        uint32_t t2 = (gpunn__rotate_right(a, 2) ^ gpunn__rotate_right(a, 13) ^ gpunn__rotate_right(a, 22)) +
                      ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) sha->state[i] += v[i];
}

static void gpunn__sha256_add(void *user, const char *piece, size_t length)
{
    gpunn__sha256 *sha = (gpunn__sha256 *)user;
    for (size_t i = 0; i < length; i++) {
        sha->block[sha->bytes++ % 64] = (unsigned char)piece[i];
        if (sha->bytes % 64 == 0) gpunn__sha256_block(sha);
    }
}

static void gpunn__sha256_begin(gpunn__sha256 *sha)
{
    memcpy(sha->state, gpunn__sha256_start, sizeof sha->state);
    sha->bytes = 0;
}

static void gpunn__sha256_end(gpunn__sha256 *sha, char hex[65])
{
    uint64_t bits = sha->bytes * 8;
    char     length[8];
    gpunn__sha256_add(sha, "\x80", 1);
    while (sha->bytes % 64 != 56) gpunn__sha256_add(sha, "", 1);
    for (int i = 0; i < 8; i++) length[i] = (char)(unsigned char)(bits >> (56 - 8 * i));
    gpunn__sha256_add(sha, length, sizeof length);
    for (int i = 0; i < 8; i++) (void)snprintf(hex + 8 * i, 9, "%08x", (unsigned)sha->state[i]);
}

GPUNN__PRIVATE void gpunn__model_sha256(const gpunn_model *model, int count, char hex[65])
{
    gpunn__sha256 sha;
    gpunn__sha256_begin(&sha);
    gpunn__model_text(model, count, gpunn__sha256_add, &sha);
    gpunn__sha256_end(&sha, hex);
}

/* ---- saving ---------------------------------------------------------------------------------------------------------- */
static const char *const gpunn__init_names[] = {"zeros", "zeros", "constant", "uniform", "normal", "kaiming_uniform"};
static const char *const gpunn__update_names[] = {"sgd",    "adam",  "adamw", "rmsprop", "adagrad",
                                                  "adamax", "nadam", "radam", "lamb",    "lion"};

/* The defaults of each kind. */
static gpunn__recipe gpunn__recipe_of(gpunn_update_kind kind)
{
    static const struct {
        float lr, weight_decay, beta1, beta2, eps, alpha, momentum_decay;
    } usual[] = {{1e-3f, 0, 0, 0, 0, 0, 0},
                 {1e-3f, 0, 0.9f, 0.999f, 1e-8f, 0, 0},
                 {1e-3f, 0.01f, 0.9f, 0.999f, 1e-8f, 0, 0},
                 {1e-2f, 0, 0, 0, 1e-8f, 0.99f, 0},
                 {1e-2f, 0, 0, 0, 1e-10f, 0, 0},
                 {2e-3f, 0, 0.9f, 0.999f, 1e-8f, 0, 0},
                 {2e-3f, 0, 0.9f, 0.999f, 1e-8f, 0, 4e-3f},
                 {1e-3f, 0, 0.9f, 0.999f, 1e-8f, 0, 0},
                 {1e-3f, 0.01f, 0.9f, 0.999f, 1e-6f, 0, 0},
                 {1e-4f, 0, 0.9f, 0.99f, 0, 0, 0}};
    gpunn__recipe recipe;
    memset(&recipe, 0, sizeof recipe);
    recipe.given = true;
    recipe.rule.kind = kind;
    recipe.rule.lr = usual[kind].lr;
    recipe.rule.weight_decay = usual[kind].weight_decay;
    recipe.rule.beta1 = usual[kind].beta1;
    recipe.rule.beta2 = usual[kind].beta2;
    recipe.rule.eps = usual[kind].eps;
    recipe.rule.alpha = usual[kind].alpha;
    recipe.rule.momentum_decay = usual[kind].momentum_decay;
    return recipe;
}

/* What "optimizer" may hold beside "type": which kinds, a number or a bool of gpunn__recipe. */
typedef struct gpunn__recipe_field {
    const char *name;
    unsigned    kinds; /* bit k: kind k */
    bool        flag;
    size_t      offset;
} gpunn__recipe_field;
#define GPUNN__KIND(kind) (1u << GPUNN_UPDATE_##kind)
static const gpunn__recipe_field gpunn__recipe_fields[] = {
    {"lr", ~0u, false, offsetof(gpunn__recipe, rule.lr)},
    {"momentum", GPUNN__KIND(SGD) | GPUNN__KIND(RMSPROP), false, offsetof(gpunn__recipe, rule.momentum)},
    {"dampening", GPUNN__KIND(SGD), false, offsetof(gpunn__recipe, rule.dampening)},
    {"alpha", GPUNN__KIND(RMSPROP), false, offsetof(gpunn__recipe, rule.alpha)},
    {"eps", ~(GPUNN__KIND(SGD) | GPUNN__KIND(LION)), false, offsetof(gpunn__recipe, rule.eps)},
    {"lr_decay", GPUNN__KIND(ADAGRAD), false, offsetof(gpunn__recipe, rule.lr_decay)},
    {"weight_decay", ~0u, false, offsetof(gpunn__recipe, rule.weight_decay)},
    {"initial_accumulator_value", GPUNN__KIND(ADAGRAD), false, offsetof(gpunn__recipe, state_start)},
    {"momentum_decay", GPUNN__KIND(NADAM), false, offsetof(gpunn__recipe, rule.momentum_decay)},
    {"trust_clip", GPUNN__KIND(LAMB), false, offsetof(gpunn__recipe, rule.trust_clip)},
    {"nesterov", GPUNN__KIND(SGD), true, offsetof(gpunn__recipe, rule.nesterov)},
    {"centered", GPUNN__KIND(RMSPROP), true, offsetof(gpunn__recipe, rule.centered)},
    {"maximize", ~0u, true, offsetof(gpunn__recipe, rule.maximize)},
    {"decoupled_weight_decay", GPUNN__KIND(NADAM) | GPUNN__KIND(RADAM), true, offsetof(gpunn__recipe, rule.decoupled)},
    {"always_adapt", GPUNN__KIND(LAMB), true, offsetof(gpunn__recipe, rule.always_adapt)},
};
#undef GPUNN__KIND
enum { GPUNN__RECIPE_FIELD_COUNT = sizeof gpunn__recipe_fields / sizeof gpunn__recipe_fields[0] };

/* How the file calls a tensor: its name, or its layer's where no tensor has that one, or a new one from its number. */
static const char *gpunn__id_of(const gpunn_tensor *t, char text[GPUNN__NAME_SIZE])
{
    gpunn_model *model = t->model;
    if (t->name) return t->name;
    if (t->layer && gpunn_find(model, t->layer) == NULL) return t->layer;
    int used = snprintf(text, GPUNN__NAME_SIZE, "t%d", t->id);
    for (bool taken = true; taken;) {
        taken = gpunn_find(model, text) != NULL;
        for (int i = 0; i < model->tensor_count && !taken; i++)
            taken = model->tensors[i]->layer && strcmp(model->tensors[i]->layer, text) == 0;
        if (taken) text[used++] = '_', text[used] = 0;
    }
    return text;
}

static void gpunn__emit_id(gpunn__writer *w, const gpunn_tensor *t)
{
    char text[GPUNN__NAME_SIZE];
    gpunn__emit_name(w, "", gpunn__id_of(t, text));
}

static void gpunn__emit_float(gpunn__writer *w, const char *separator, const char *key, float value)
{
    char        number[48];
    gpunn__line line = {number, sizeof number, 0};
    gpunn__put_number(&line, value);
    gpunn__emitf(w, "%s\"%s\": %s", separator, key, number);
}

static void gpunn__emit_shape(gpunn__writer *w, const gpunn_tensor *t)
{
    gpunn__emitf(w, ", \"shape\": [");
    for (int i = 0; i < t->rank; i++) {
        const char *comma = i ? ", " : "";
        if (t->dim[i] == GPUNN_BATCH)
            gpunn__emitf(w, "%s\"N\"", comma);
        else if (t->dim[i] < 0)
            gpunn__emitf(w, "%s\"%lldN\"", comma, -(long long)t->dim[i]);
        else
            gpunn__emitf(w, "%s%lld", comma, (long long)t->dim[i]);
    }
    gpunn__emitf(w, "]");
}

/* The initial values that a builder gives to the parameter of its layer. */
static gpunn_init gpunn__usual_init(const gpunn_tensor *layer, const gpunn_tensor *parameter)
{
    gpunn_init init = {GPUNN_INIT_DEFAULT, 0, 0};
    if (layer == NULL) return init;
    if (layer->op == GPUNN_OP_LINEAR || gpunn__is_convolution(layer->op)) {
        init.kind = GPUNN_INIT_KAIMING_UNIFORM;
        init.a = 1;
        for (int i = 1; i < layer->inputs[1]->rank; i++) init.a *= (float)layer->inputs[1]->dim[i];
    } else if (layer->op == GPUNN_OP_EMBEDDING) {
        init.kind = GPUNN_INIT_NORMAL;
        init.b = 1;
    } else {
        init.kind = GPUNN_INIT_CONSTANT;
        init.a = layer->op == GPUNN_OP_PARAMETRIC_RELU ? parameter->init.a : parameter == layer->inputs[1] ? 1 : 0;
    }
    return init;
}

static bool gpunn__inits_differ(gpunn_init a, gpunn_init b)
{
    if (a.kind == GPUNN_INIT_ZEROS) a.kind = GPUNN_INIT_DEFAULT;
    if (b.kind == GPUNN_INIT_ZEROS) b.kind = GPUNN_INIT_DEFAULT;
    return a.kind != b.kind || a.a != b.a || a.b != b.b;
}

/* The settings of a parameter that are not the usual ones; separator: what stands before the first. */
static void gpunn__emit_settings(gpunn__writer *w, const char *separator, const gpunn_tensor *layer, const gpunn_tensor *t,
                                 bool frozen)
{
    if (gpunn__inits_differ(t->init, gpunn__usual_init(layer, t))) {
        gpunn__emitf(w, "%s\"init\": {\"kind\": \"%s\"", separator, gpunn__init_names[t->init.kind]);
        if (t->init.a != 0) gpunn__emit_float(w, ", ", "a", t->init.a);
        if (t->init.b != 0) gpunn__emit_float(w, ", ", "b", t->init.b);
        gpunn__emitf(w, "}");
        separator = ", ";
    }
    if (!t->trainable && !frozen) {
        gpunn__emitf(w, "%s\"trainable\": false", separator);
        separator = ", ";
    }
    if (!t->decay) {
        gpunn__emitf(w, "%s\"decay\": false", separator);
        separator = ", ";
    }
    if (t->lr_scale != 1) gpunn__emit_float(w, separator, "lr_scale", t->lr_scale);
}

/* A setting of a window: one number where it is the same along all axes. */
static void gpunn__emit_window(gpunn__writer *w, const char *key, const int *values, int axes)
{
    const bool list = !gpunn__all_equal(values, axes);
    gpunn__emitf(w, ", \"%s\": %s", key, list ? "[" : "");
    for (int i = 0; i < (list ? axes : 1); i++) gpunn__emitf(w, "%s%d", i ? ", " : "", values[i]);
    if (list) gpunn__emitf(w, "]");
}

/* The attributes that the tables tell, as far as they are not the default. */
static void gpunn__emit_attributes(gpunn__writer *w, const gpunn_tensor *t)
{
    for (int i = 0; i < gpunn__op_attribute_count(t->op); i++) {
        float usual = gpunn__op_attribute_default(t->op, i);
        if (memcmp(&t->attr.value[i], &usual, sizeof usual) != 0) /* -0 is not 0 */
            gpunn__emit_float(w, ", ", gpunn__op_infos[t->op].attribute[i], t->attr.value[i]);
    }
    for (int i = 0; i < GPUNN__ATTRIBUTE_COUNT; i++) {
        const gpunn__attribute *a = &gpunn__attributes_of[i];
        char                    value[GPUNN__TEXT_SIZE];
        gpunn__line             line = {value, sizeof value, 0};
        bool                    pool_stride = gpunn__is_pool(t->op) && strcmp(a->name, "stride") == 0;
        if (a->op != t->op || (a->kind == GPUNN__A_AXES && t->attr.axes == (1u << t->inputs[0]->rank) - 1) ||
            (pool_stride && memcmp(t->attr.stride, t->attr.kernel, sizeof t->attr.stride) == 0))
            continue;
        gpunn__put_attribute(&line, t, a, true);
        if (a->otherwise == NULL || (*a->otherwise && strcmp(value, a->otherwise) != 0)) {
            gpunn__emitf(w, ", \"%s\": ", a->name);
            gpunn__emit(w, value, line.used);
        }
    }
}

static void gpunn__emit_conv(gpunn__writer *w, const gpunn_tensor *t)
{
    const gpunn_attributes *attr = &t->attr;
    const int               axes = t->rank - 2;
    int                     output_padding[3];
    gpunn__emitf(w, ", \"out_channels\": %lld", (long long)t->dim[1]);
    gpunn__emit_window(w, "kernel_size", attr->kernel, axes);
    if (!gpunn__is_transposed(t->op)) return;
    for (int i = 0; i < axes; i++) { /* what gpunn__transposed_sizes has added */
        int64_t size = (t->inputs[0]->dim[2 + i] - 1) * attr->stride[i] - 2 * (int64_t)attr->padding[i];
        output_padding[i] = (int)(t->dim[2 + i] - size - (int64_t)attr->dilation[i] * (attr->kernel[i] - 1) - 1);
    }
    if (output_padding[0] || !gpunn__all_equal(output_padding, axes))
        gpunn__emit_window(w, "output_padding", output_padding, axes);
}

/* What the tables do not tell: sizes that stand in shapes, and operands with a key of their own. */
static void gpunn__emit_rest(gpunn__writer *w, const gpunn_tensor *t)
{
    const gpunn_tensor *x = t->inputs[0];
    int                 sizes[GPUNN_MAX_RANK];
    switch ((int)t->op) {
    case GPUNN_OP_LINEAR: gpunn__emitf(w, ", \"out_features\": %lld", (long long)t->dim[t->rank - 1]); break;
    case GPUNN_OP_EMBEDDING:
        gpunn__emitf(w, ", \"num_embeddings\": %lld, \"embedding_dim\": %lld", (long long)t->inputs[1]->dim[0],
                     (long long)t->inputs[1]->dim[1]);
        break;
    case GPUNN_OP_CONV1D:
    case GPUNN_OP_CONV2D:
    case GPUNN_OP_CONV3D:
    case GPUNN_OP_CONV_TRANSPOSE1D:
    case GPUNN_OP_CONV_TRANSPOSE2D:
    case GPUNN_OP_CONV_TRANSPOSE3D: gpunn__emit_conv(w, t); break;
    case GPUNN_OP_ADAPTIVE_MAX_POOL2D:
    case GPUNN_OP_ADAPTIVE_MAX_POOL3D:
    case GPUNN_OP_ADAPTIVE_AVG_POOL2D:
    case GPUNN_OP_ADAPTIVE_AVG_POOL3D:
        for (int i = 0; i < t->rank - 2; i++) sizes[i] = (int)t->dim[2 + i];
        gpunn__emit_window(w, "output_size", sizes, t->rank - 2);
        break;
    case GPUNN_OP_AFFINE_GRID:
        gpunn__emitf(w, ", \"size\": [");
        for (int i = 1; i < t->rank - 1; i++) gpunn__emitf(w, "%s%lld", i > 1 ? ", " : "", (long long)t->dim[i]);
        gpunn__emitf(w, "]");
        break;
    case GPUNN_OP_PARAMETRIC_RELU: /* of a layer */
        if (t->layer) {
            const gpunn_tensor *weight = t->inputs[1]->kind == GPUNN__VALUE ? t->inputs[1]->inputs[0] : t->inputs[1];
            if (weight->dim[0] != 1) gpunn__emitf(w, ", \"num_parameters\": %lld", (long long)weight->dim[0]);
            if (weight->init.kind == GPUNN_INIT_CONSTANT && weight->init.a != 0.25f)
                gpunn__emit_float(w, ", ", "init", weight->init.a);
        }
        break;
    case GPUNN_OP_BATCH_NORM:
        if (t->inputs[1] == NULL) gpunn__emitf(w, ", \"affine\": false");
        break;
    case GPUNN_OP_LAYER_NORM:
    case GPUNN_OP_RMS_NORM:
        if (t->inputs[1] == NULL) gpunn__emitf(w, ", \"elementwise_affine\": false");
        break;
    case GPUNN_OP_RESHAPE: gpunn__emit_shape(w, t); break;
    case GPUNN_OP_SLICE: {
        int     axis = t->attr.axis;
        int64_t last = t->attr.start + (t->dim[axis] - 1) * t->attr.step;
        if (last + t->attr.step < x->dim[axis]) gpunn__emitf(w, ", \"end\": %lld", (long long)last + 1);
        break;
    }
    case GPUNN_OP_PAD:
        gpunn__emitf(w, ", \"after\": [");
        for (int i = 0; i < t->rank; i++)
            gpunn__emitf(w, "%s%lld", i ? ", " : "", (long long)(t->dim[i] - x->dim[i] - t->attr.before[i]));
        gpunn__emitf(w, "]");
        break;
    case GPUNN_OP_CAST: gpunn__emitf(w, ", \"dtype\": \"%s\"", gpunn_dtype_name(t->dtype)); break;
    case GPUNN_OP_SUM:
    case GPUNN_OP_MAX:
    case GPUNN_OP_ARGMAX:
        if (t->rank == x->rank) gpunn__emitf(w, ", \"keepdim\": true");
        break;
    case GPUNN_OP_ATTENTION: {
        const int head = t->attr.heads_last ? 2 : 1;
        if (t->inputs[1] && t->inputs[1]->dim[head] != x->dim[head]) gpunn__emitf(w, ", \"enable_gqa\": true");
        if (t->inputs[3] == NULL) break;
        gpunn__emitf(w, ", \"mask\": ");
        gpunn__emit_id(w, t->inputs[3]);
        break;
    }
    case GPUNN_OP_CROSS_ENTROPY:
    case GPUNN_OP_NLL:
        if (t->inputs[2] == NULL) break;
        gpunn__emitf(w, ", \"weight\": ");
        gpunn__emit_id(w, t->inputs[2]);
        break;
    default: break;
    }
    bool biased = t->op == GPUNN_OP_LINEAR || gpunn__is_convolution(t->op) || (t->op == GPUNN_OP_LAYER_NORM && t->inputs[1]);
    if (biased && t->inputs[2] == NULL) gpunn__emitf(w, ", \"bias\": false");
    if ((t->op == GPUNN_OP_LINEAR || t->op == GPUNN_OP_EMBEDDING) && !gpunn__is_own(t, t->inputs[1])) {
        gpunn__emitf(w, ", \"weight\": ");
        gpunn__emit_id(w, t->inputs[1]);
    }
}

/* The settings of a layer's own tensors, which are first .. t->id - 1. */
static void gpunn__emit_layer_settings(gpunn__writer *w, const gpunn_tensor *t, int first)
{
    gpunn_tensor *const *tensors = t->model->tensors;
    size_t               length = strlen(t->layer);
    int                  parameters = 0, frozen = 0, shown = 0;
    for (int i = first; i < t->id; i++) {
        parameters += tensors[i]->kind == GPUNN__PARAMETER;
        frozen += tensors[i]->kind == GPUNN__PARAMETER && !tensors[i]->trainable;
        if (!gpunn__is_saved(tensors[i])) continue;
        if ((strncmp(tensors[i]->name, t->layer, length) != 0 || tensors[i]->name[length] != '.') && w->status == GPUNN_OK)
            w->status = gpunn__fail(
                w->dev, GPUNN_ERR_UNSUPPORTED,
                "gpunn_spec_save: '%.200s' belongs to layer '%.200s', but its name no longer says so; give it "
                "back its name",
                tensors[i]->name, t->layer);
    }
    bool all = parameters > 0 && frozen == parameters;
    if (all) gpunn__emitf(w, ", \"trainable\": false");
    for (int i = first; i < t->id; i++) {
        if (tensors[i]->kind != GPUNN__PARAMETER) continue;
        gpunn__writer measure = *w;
        measure.pass = GPUNN__MEASURE;
        measure.length = 0;
        gpunn__emit_settings(&measure, "", t, tensors[i], all);
        if (measure.length == 0) continue;
        gpunn__emitf(w, shown++ ? ", " : ", \"parameters\": {");
        gpunn__emit_name(w, "", tensors[i]->name + length + 1);
        gpunn__emitf(w, ": {");
        gpunn__emit_settings(w, "", t, tensors[i], all);
        gpunn__emitf(w, "}");
    }
    if (shown) gpunn__emitf(w, "}");
}

/* The value that ends the layer whose first parameter or buffer t is; NULL: t belongs to none. */
static const gpunn_tensor *gpunn__layer_of(const gpunn_tensor *t)
{
    const gpunn_model *model = t->model;
    for (int i = t->id + 1; t->layer && i < model->tensor_count; i++) {
        const gpunn_tensor *value = model->tensors[i];
        if (value->kind == GPUNN__VALUE && value->layer && gpunn__is_own(value, t)) return value;
    }
    return NULL;
}

/* One entry: tensor t with, if it is a layer's value, all that the layer has made: first .. t->id - 1. */
static void gpunn__emit_tensor_entry(gpunn__writer *w, const gpunn_tensor *t, int first)
{
    static const char *const sources[] = {"", "input", "parameter", "", "constant"};
    const char              *op = t->kind == GPUNN__VALUE ? gpunn_op_name(t->op) : sources[t->kind];
    char                     text[GPUNN__NAME_SIZE];
    const char              *id = gpunn__id_of(t, text);
    int                      operands = t->input_count;
    switch ((int)t->op) {
    case GPUNN_OP_BATCH_NORM: op = t->rank == 4 ? "batch_norm2d" : "batch_norm1d"; break;
    case GPUNN_OP_SUM: op = t->attr.mean ? "mean" : "sum"; break;
    case GPUNN_OP_NLL: op = "nll_loss"; break;
    case GPUNN_OP_PARAMETRIC_RELU: op = t->layer ? "prelu" : op; break;
    default: break;
    }
    gpunn__emitf(w, "{\"op\": \"%s\"", op);
    if (t->kind == GPUNN__INPUT || t->kind == GPUNN__PARAMETER) {
        gpunn__emitf(w, ", \"name\": ");
        gpunn__emit_name(w, "", t->name);
    } else if (t->layer) {
        gpunn__emitf(w, ", \"name\": ");
        gpunn__emit_name(w, "", t->layer);
    }
    if (t->kind == GPUNN__CONSTANT || (t->kind == GPUNN__VALUE && (t->layer == NULL || strcmp(t->layer, id) != 0))) {
        gpunn__emitf(w, ", \"id\": ");
        gpunn__emit_name(w, "", id);
    }
    if (t->layer)
        operands = 1;
    else if (t->op == GPUNN_OP_CROSS_ENTROPY || t->op == GPUNN_OP_NLL)
        operands = 2;
    else if (t->op == GPUNN_OP_ATTENTION)
        operands = t->inputs[1] ? 3 : 1;
    for (int i = 0; i < operands; i++) {
        gpunn__emitf(w, i ? ", " : ", \"inputs\": [");
        gpunn__emit_id(w, t->inputs[i]);
    }
    if (operands) gpunn__emitf(w, "]");
    if (t->kind == GPUNN__VALUE) {
        gpunn__emit_rest(w, t);
        gpunn__emit_attributes(w, t);
        if (t->layer) gpunn__emit_layer_settings(w, t, first);
    } else {
        if (t->kind == GPUNN__INPUT && t->dtype != GPUNN_F32) gpunn__emitf(w, ", \"dtype\": \"%s\"", gpunn_dtype_name(t->dtype));
        gpunn__emit_shape(w, t);
        if (t->kind == GPUNN__PARAMETER) gpunn__emit_settings(w, ", ", NULL, t, false);
    }
    for (int64_t i = 0; t->constant && i < gpunn__count(t, 1); i++) {
        char        number[48];
        gpunn__line line = {number, sizeof number, 0};
        gpunn__put_number(&line, t->constant[i]);
        gpunn__emitf(w, "%s%s", i ? ", " : ", \"values\": [", number);
    }
    gpunn__emitf(w, t->constant ? "]}" : "}");
}

static void gpunn__emit_recipe(gpunn__writer *w, const gpunn__recipe *recipe)
{
    gpunn__recipe usual = gpunn__recipe_of(recipe->rule.kind);
    gpunn__emitf(w, ",\n  \"optimizer\": {\"type\": \"%s\"", gpunn__update_names[recipe->rule.kind]);
    for (int i = 0; i < GPUNN__RECIPE_FIELD_COUNT; i++) {
        const gpunn__recipe_field *field = &gpunn__recipe_fields[i];
        const char                *from = (const char *)recipe + field->offset, *otherwise = (const char *)&usual + field->offset;
        if (!(field->kinds >> recipe->rule.kind & 1)) continue;
        if (field->flag && *(const bool *)from)
            gpunn__emitf(w, ", \"%s\": true", field->name);
        else if (!field->flag && (memcmp(from, otherwise, sizeof(float)) != 0 || i == 0)) /* lr: always */
            gpunn__emit_float(w, ", ", field->name, *(const float *)(const void *)from);
    }
    if (recipe->rule.beta1 != usual.rule.beta1 || recipe->rule.beta2 != usual.rule.beta2) {
        char        betas[96];
        gpunn__line line = {betas, sizeof betas, 0};
        gpunn__put_number(&line, recipe->rule.beta1);
        gpunn__put(&line, ", ");
        gpunn__put_number(&line, recipe->rule.beta2);
        gpunn__emitf(w, ", \"betas\": [%s]", betas);
    }
    gpunn__emitf(w, "}");
    if (recipe->clip_norm != 0) gpunn__emit_float(w, ",\n  ", "clip_grad_norm", recipe->clip_norm);
    if (recipe->clip_value != 0) gpunn__emit_float(w, ",\n  ", "clip_grad_value", recipe->clip_value);
}

/* The last part of a path, without its ending. */
static void gpunn__emit_file_name(gpunn__writer *w, const char *path)
{
    char        name[GPUNN__NAME_SIZE];
    const char *from = path;
    for (const char *c = path; *c; c++)
        if (*c == '/' || *c == '\\') from = c + 1;
    const char *end = strrchr(from, '.');
    size_t      length = end && end > from ? (size_t)(end - from) : strlen(from);
    (void)snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), from);
    gpunn__emit_name(w, "", name);
}

/* Every value that no op reads, into room for all tensors; their number. */
static int gpunn__unread(const gpunn_model *model, gpunn_tensor **out)
{
    int count = 0;
    for (int i = 0; i < model->tensor_count; i++) {
        gpunn_tensor *t = model->tensors[i];
        out[i] = t->kind == GPUNN__VALUE ? t : NULL;
        for (int k = 0; k < t->input_count; k++)
            if (t->inputs[k]) out[t->inputs[k]->id] = NULL;
    }
    for (int i = 0; i < model->tensor_count; i++)
        if (out[i]) out[count++] = out[i];
    return count;
}

static void gpunn__emit_outputs(gpunn__writer *w, gpunn_tensor *const *outputs, int count)
{
    for (int i = 0; i < count; i++) {
        gpunn__emitf(w, i ? ", " : ",\n  \"outputs\": [");
        gpunn__emit_id(w, outputs[i]);
    }
    if (count) gpunn__emitf(w, "]");
}

GPUNN_API gpunn_status gpunn_spec_save_(gpunn_model *model, const char *path, gpunn_spec_args args)
{
    if (model == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "gpunn_spec_save: the model is NULL");
    gpunn_device *dev = model->dev;
    gpunn__spec  *spec = &model->spec;
    int           given = 0;
    while (given < 8 && args.outputs[given]) given++;
    bool ours = (args.loss == NULL || args.loss->model == model) && (args.optimizer == NULL || args.optimizer->model == model);
    for (int i = 0; i < given; i++) ours = ours && args.outputs[i]->model == model;
    if (!ours)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_spec_save: the loss, an output or the optimizer belongs to another model; give this one's");
    gpunn__recipe recipe = spec->recipe;
    if (args.optimizer) {
        const gpunn_optimizer *opt = args.optimizer;
        recipe.given = true;
        recipe.rule = opt->rule;
        recipe.rule.lr = opt->lr;
        recipe.state_start = opt->state_start;
        recipe.clip_norm = opt->clip_norm;
        recipe.clip_value = opt->clip_value;
    }
    const gpunn_tensor *loss = args.loss ? args.loss : spec->loss;
    gpunn_tensor      **unread = NULL;
    size_t              unread_size = (size_t)model->tensor_count * sizeof *unread;
    gpunn__file         file;
    gpunn__writer       w;
    memset(&w, 0, sizeof w);
    w.dev = dev;
    w.file = &file;
    w.pass = GPUNN__HEADER;
    w.status = gpunn__file_open(dev, path, &file);
    if (w.status != GPUNN_OK) return w.status;
    gpunn__emitf(&w, "{\n  \"gpunn_spec\": 1,\n  \"name\": ");
    if (args.name || spec->name)
        gpunn__emit_name(&w, "", args.name ? args.name : spec->name);
    else
        gpunn__emit_file_name(&w, path);
    gpunn__emitf(&w, ",\n  \"precision\": \"%s\",\n  \"tensors\": [", gpunn__precision_names[model->precision]);
    for (int i = 0; i < model->tensor_count; i++) {
        const gpunn_tensor *t = model->tensors[i], *layer = gpunn__is_saved(t) ? gpunn__layer_of(t) : NULL;
        gpunn__emitf(&w, i ? ",\n    " : "\n    ");
        gpunn__emit_tensor_entry(&w, layer ? layer : t, i);
        if (layer) i = layer->id;
    }
    gpunn__emitf(&w, "\n  ]");
    if (given)
        gpunn__emit_outputs(&w, args.outputs, given);
    else if (spec->output_count)
        gpunn__emit_outputs(&w, spec->outputs, spec->output_count);
    else if (unread_size && (unread = (gpunn_tensor **)gpunn__realloc(dev, NULL, 0, unread_size)) == NULL)
        w.status = GPUNN_ERR_MEMORY;
    else
        gpunn__emit_outputs(&w, unread, gpunn__unread(model, unread));
    gpunn__free(dev, unread, unread_size);
    if (loss) {
        gpunn__emitf(&w, ",\n  \"loss\": ");
        gpunn__emit_id(&w, loss);
    }
    if (recipe.given) gpunn__emit_recipe(&w, &recipe);
    gpunn__emitf(&w, "\n}\n");
    if (w.status == GPUNN_OK) w.status = gpunn__file_commit(&file);
    gpunn__file_discard(&file);
    return w.status;
}

/* ---- loading --------------------------------------------------------------------------------------------------------- *
 * The text becomes items, the items become calls of the public builders. Errors stand where dev->place says. */
enum { GPUNN__SPEC_BYTES = 64 << 20, GPUNN__SPEC_TENSORS = 30000 };

typedef struct gpunn__word { /* an id or name */
    const char   *text;      /* NULL: free */
    gpunn_tensor *t;
} gpunn__word;

typedef struct gpunn__loading {
    gpunn_device *dev;
    gpunn_model  *model;
    const char   *path;
    gpunn__items  items;
    gpunn__word  *words; /* a hash table, half of it free; the capacity is a power of 2 */
    size_t        word_count, word_capacity;
    char          place[320];
} gpunn__loading;

static bool gpunn__wrong(gpunn__loading *l, int item, const char *format, ...) GPUNN__PRINTF(3, 4);

/* What fails from now on, fails at that item. */
static void gpunn__stand_at(gpunn__loading *l, int item)
{
    const gpunn__item *i = &l->items.at[item];
    (void)snprintf(l->place, sizeof l->place, "%s:%d:%d: ", gpunn__tail(l->path), i->line, i->column);
}

/* False, after recording what is wrong at that item. */
static bool gpunn__wrong(gpunn__loading *l, int item, const char *format, ...)
{
    char    text[GPUNN__ERROR_SIZE];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    gpunn__stand_at(l, item);
    (void)gpunn__fail(l->dev, GPUNN_ERR_FORMAT, "%s", text);
    return false;
}

/* The value of an object's key, or 0. */
static int gpunn__look(gpunn__loading *l, int object, const char *key)
{
    gpunn__item *items = l->items.at;
    for (int i = object + 1; i < items[object].next; i = items[i + 1].next)
        if (gpunn__slice_is(&items[i].text, key)) {
            items[i].read = true;
            return i + 1;
        }
    return 0;
}

/* The same; false: it is missing. */
static bool gpunn__need(gpunn__loading *l, int object, const char *key, const char *what, int *item)
{
    *item = gpunn__look(l, object, key);
    return *item || gpunn__wrong(l, object, "\"%s\" is missing; give %s", key, what);
}

static bool gpunn__be(gpunn__loading *l, int item, const char *key, gpunn__item_kind kind, const char *what)
{
    return l->items.at[item].kind == kind || gpunn__wrong(l, item, "\"%s\" must be %s", key, what);
}

/* Every key of an object has been asked for, once. */
static bool gpunn__all_read(gpunn__loading *l, int object, const char *of)
{
    char               shown[128];
    const gpunn__item *items = l->items.at;
    for (int i = object + 1; i < items[object].next; i = items[i + 1].next) {
        if (items[i].read) continue;
        for (int k = object + 1; k < i; k = items[k + 1].next)
            if (items[k].text.length == items[i].text.length &&
                memcmp(items[k].text.at, items[i].text.at, items[i].text.length) == 0)
                return gpunn__wrong(l, i, "\"%s\" stands here twice; give it once", gpunn__printable(&items[i].text, shown));
        return gpunn__wrong(l, i, "%s has no \"%s\"; check its spelling", of, gpunn__printable(&items[i].text, shown));
    }
    return true;
}

static int gpunn__item_count(const gpunn__loading *l, int list)
{
    int count = 0;
    for (int i = list + 1; i < l->items.at[list].next; i = l->items.at[i].next) count++;
    return count;
}

/* ---- values: each leaves *value alone where the key is absent ---- */
static bool gpunn__integer_at(gpunn__loading *l, int item, const char *key, int64_t low, int64_t high, int64_t *value)
{
    const gpunn__item *i = &l->items.at[item];
    int64_t            found;
    if (i->kind == GPUNN__J_NUMBER && gpunn__slice_integer(&i->text, &found) && found >= low && found <= high) {
        *value = found;
        return true;
    }
    return gpunn__wrong(l, item, "\"%s\" must be an integer from %lld to %lld", key, (long long)low, (long long)high);
}

static bool gpunn__get_integer(gpunn__loading *l, int entry, const char *key, int64_t low, int64_t high, int64_t *value)
{
    int item = gpunn__look(l, entry, key);
    return item == 0 || gpunn__integer_at(l, item, key, low, high, value);
}

/* A field of an argument struct, whose 0 is written GPUNN_ZERO. */
static bool gpunn__get_int(gpunn__loading *l, int entry, const char *key, int low, int *value)
{
    int64_t wide = *value;
    bool    ok = gpunn__get_integer(l, entry, key, low, INT32_MAX, &wide);
    *value = wide == 0 && gpunn__look(l, entry, key) ? GPUNN_ZERO : (int)wide;
    return ok;
}

/* A setting of a window of so many axes: one integer, or a list with one for each axis. */
static bool gpunn__get_window(gpunn__loading *l, int entry, const char *key, int axes, int low, int *values)
{
    static const char *const words[] = {"one", "two", "three"};
    int                      item = gpunn__look(l, entry, key);
    int64_t                  value = 0;
    if (item == 0) return true;
    bool list = l->items.at[item].kind == GPUNN__J_LIST;
    if (list && gpunn__item_count(l, item) != axes)
        return gpunn__wrong(l, item, "\"%s\" must be an integer or a list of %s, one for each spatial axis", key,
                            words[axes - 1]);
    for (int i = 0; i < axes; i++) {
        if (!gpunn__integer_at(l, list ? item + 1 + i : item, key, low, INT32_MAX, &value)) return false;
        values[i] = value == 0 ? GPUNN_ZERO : (int)value;
    }
    return true;
}

static bool gpunn__float_at(gpunn__loading *l, int item, const char *key, bool nan, float *value)
{
    const gpunn__item *i = &l->items.at[item];
    double             wide;
    if (i->kind == GPUNN__J_NUMBER && gpunn__json_double(&i->text, &wide) && fabs(wide) < 3.4028235677973366e38) {
        *value = (float)wide;
        return true;
    }
    bool word = i->kind == GPUNN__J_STRING, negative = gpunn__slice_is(&i->text, "-inf");
    if (word && (negative || gpunn__slice_is(&i->text, "inf")))
        *value = negative ? -INFINITY : INFINITY;
    else if (word && nan && gpunn__slice_is(&i->text, "nan"))
        *value = NAN;
    else
        return gpunn__wrong(l, item, "\"%s\" must be a number that a float can hold, \"inf\"%s \"-inf\"%s", key,
                            nan ? "," : " or", nan ? " or \"nan\"" : "");
    return true;
}

static bool gpunn__get_float(gpunn__loading *l, int entry, const char *key, float *value)
{
    int item = gpunn__look(l, entry, key);
    return item == 0 || gpunn__float_at(l, item, key, false, value);
}

/* A field of an argument struct, whose 0 is written GPUNN_ZERO. */
static bool gpunn__get_setting(gpunn__loading *l, int entry, const char *key, float *value)
{
    bool ok = gpunn__get_float(l, entry, key, value);
    if (*value == 0 && gpunn__look(l, entry, key)) *value = (float)GPUNN_ZERO;
    return ok;
}

static bool gpunn__get_bool(gpunn__loading *l, int entry, const char *key, bool *value)
{
    int item = gpunn__look(l, entry, key);
    if (item == 0) return true;
    gpunn__item_kind kind = l->items.at[item].kind;
    *value = kind == GPUNN__J_TRUE;
    return kind == GPUNN__J_TRUE || kind == GPUNN__J_FALSE || gpunn__wrong(l, item, "\"%s\" must be true or false", key);
}

/* A string without zeros, as all names are. */
static bool gpunn__string_at(gpunn__loading *l, int item, const char *key, const char **value)
{
    const gpunn__item *i = &l->items.at[item];
    if (i->kind != GPUNN__J_STRING || i->text.length == 0 || strlen(i->text.at) != i->text.length)
        return gpunn__wrong(l, item, "\"%s\" must be a string of one character or more", key);
    *value = i->text.at;
    return true;
}

static bool gpunn__get_string(gpunn__loading *l, int entry, const char *key, const char **value)
{
    int item = gpunn__look(l, entry, key);
    return item == 0 || gpunn__string_at(l, item, key, value);
}

/* One of several words: its number. */
static bool gpunn__get_choice(gpunn__loading *l, int entry, const char *key, const char *const *words, int count, int *value)
{
    char        all[160];
    gpunn__line line = {all, sizeof all, 0};
    int         item = gpunn__look(l, entry, key);
    if (item == 0) return true;
    for (int i = 0; i < count; i++) {
        if (l->items.at[item].kind == GPUNN__J_STRING && gpunn__slice_is(&l->items.at[item].text, words[i])) {
            *value = i;
            return true;
        }
        gpunn__put(&line, "%s\"%s\"", i == 0 ? "" : i + 1 < count ? ", " : " or ", words[i]);
    }
    return gpunn__wrong(l, item, "\"%s\" must be %s", key, all);
}
#define GPUNN__CHOICES(words) words, (int)(sizeof(words) / sizeof *(words))

static const char *const gpunn__dtype_words[] = {"f32", "i64", "i32", "u8", "bool"};

static bool gpunn__get_dtype(gpunn__loading *l, int entry, gpunn_dtype *dtype)
{
    static const gpunn_dtype dtypes[] = {GPUNN_F32, GPUNN_I64, GPUNN_I32, GPUNN_U8, GPUNN_BOOL};
    int                      choice = 0;
    bool                     ok = gpunn__get_choice(l, entry, "dtype", GPUNN__CHOICES(gpunn__dtype_words), &choice);
    *dtype = dtypes[choice];
    return ok;
}

/* "shape": integers, "N" for the batch, "4N" for four times the batch. */
static bool gpunn__need_shape(gpunn__loading *l, int entry, gpunn_shape *shape)
{
    static const char what[] = "a list of up to 8 sizes: integers of 1 or more, \"N\" for the batch, \"4N\" for 4 times it";
    int               list, axis = 0;
    memset(shape, 0, sizeof *shape);
    if (!gpunn__need(l, entry, "shape", what, &list) || !gpunn__be(l, list, "shape", GPUNN__J_LIST, what)) return false;
    for (int i = list + 1; i < l->items.at[list].next; i = l->items.at[i].next) {
        gpunn__item *item = &l->items.at[i];
        gpunn__slice digits = item->text;
        bool         batch = item->kind == GPUNN__J_STRING && digits.length > 0 && digits.at[digits.length - 1] == 'N';
        int64_t      size = 1;
        digits.length -= batch;
        bool ok = batch || item->kind == GPUNN__J_NUMBER;
        if (ok && !(batch && digits.length == 0)) ok = isdigit((unsigned char)*digits.at) && gpunn__slice_integer(&digits, &size);
        if (!ok || size < 1 || size > GPUNN__MAX_COUNT || axis == GPUNN_MAX_RANK)
            return gpunn__wrong(l, i, "\"shape\" must be %s", what);
        shape->dim[axis++] = batch ? -size : size;
    }
    return true;
}

/* A list of axes; absent: all of them. */
static bool gpunn__get_axes(gpunn__loading *l, int entry, gpunn_axes *axes)
{
    static const char what[] = "a list of up to 8 axes";
    int               list = gpunn__look(l, entry, "dims"), count = 0;
    axes->axis[0] = GPUNN_END;
    if (list == 0) return true;
    if (!gpunn__be(l, list, "dims", GPUNN__J_LIST, what)) return false;
    for (int i = list + 1; i < l->items.at[list].next; i = l->items.at[i].next) {
        int64_t axis = 0;
        if (count == GPUNN_MAX_RANK) return gpunn__wrong(l, i, "\"dims\" must be %s", what);
        if (!gpunn__integer_at(l, i, "dims", -GPUNN_MAX_RANK, GPUNN_MAX_RANK - 1, &axis)) return false;
        axes->axis[count++] = (int)axis;
        axes->axis[count] = GPUNN_END;
    }
    return true;
}

static bool gpunn__need_axis(gpunn__loading *l, int entry, int *axis)
{
    int     item;
    int64_t wide = 0;
    bool    ok = gpunn__need(l, entry, "dim", "an axis", &item) &&
              gpunn__integer_at(l, item, "dim", -GPUNN_MAX_RANK, GPUNN_MAX_RANK - 1, &wide);
    *axis = (int)wide;
    return ok;
}

/* "before" and "after" of pad. */
static bool gpunn__get_amounts(gpunn__loading *l, int entry, const char *key, int64_t *amounts)
{
    int list = gpunn__look(l, entry, key), count = 0;
    if (list == 0) return true;
    if (!gpunn__be(l, list, key, GPUNN__J_LIST, "a list of integers of 0 or more, one for each axis")) return false;
    for (int i = list + 1; i < l->items.at[list].next; i = l->items.at[i].next) {
        if (count == GPUNN_MAX_RANK) return gpunn__wrong(l, i, "\"%s\" must have at most 8 integers", key);
        if (!gpunn__integer_at(l, i, key, 0, GPUNN__MAX_COUNT, &amounts[count++])) return false;
    }
    return true;
}

/* Where a word stands, or would. */
static gpunn__word *gpunn__word_at(const gpunn__loading *l, const char *text)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (const char *c = text; *c; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
    size_t at = hash & (l->word_capacity - 1);
    while (l->words[at].text && strcmp(l->words[at].text, text) != 0) at = (at + 1) & (l->word_capacity - 1);
    return &l->words[at];
}

static gpunn_tensor *gpunn__reference_at(gpunn__loading *l, int item, const char *key)
{
    const char   *word;
    char          shown[128];
    gpunn_tensor *t = NULL;
    if (!gpunn__string_at(l, item, key, &word)) return NULL;
    if (l->word_count) t = gpunn__word_at(l, word)->t;
    if (t == NULL)
        (void)gpunn__wrong(l, item, "no tensor before this one has the id or name \"%s\"; check its spelling and the order",
                           gpunn__printable(&l->items.at[item].text, shown));
    return t;
}

static bool gpunn__get_reference(gpunn__loading *l, int entry, const char *key, gpunn_tensor **t)
{
    int item = gpunn__look(l, entry, key);
    return item == 0 || (*t = gpunn__reference_at(l, item, key)) != NULL;
}

/* A list of references, as many as fit. */
static bool gpunn__references_at(gpunn__loading *l, int list, const char *key, int low, int high, gpunn_tensor **tensors,
                                 int *count)
{
    *count = 0;
    if (!gpunn__be(l, list, key, GPUNN__J_LIST, "a list of ids or names")) return false;
    int given = gpunn__item_count(l, list);
    if (given < low || given > high)
        return low == high ? gpunn__wrong(l, list, "\"%s\" must have %d of them, not %d", key, low, given)
                           : gpunn__wrong(l, list, "\"%s\" must have %d to %d of them, not %d", key, low, high, given);
    for (int i = list + 1; i < l->items.at[list].next; i = l->items.at[i].next)
        if ((tensors[(*count)++] = gpunn__reference_at(l, i, key)) == NULL) return false;
    return true;
}

/* ---- entries --------------------------------------------------------------------------------------------------------- */
typedef struct gpunn__spec_entry {
    int           item, count; /* inputs */
    gpunn_tensor *in[GPUNN_MAX_OPERANDS];
    const char   *op, *name;
} gpunn__spec_entry;

static bool gpunn__get_init(gpunn__loading *l, int object, gpunn_init *init)
{
    static const char *const words[] = {"zeros", "constant", "uniform", "normal", "kaiming_uniform"};
    int                      item = gpunn__look(l, object, "init"), kind = 0, ignored;
    if (item == 0) return true;
    memset(init, 0, sizeof *init);
    if (!gpunn__be(l, item, "init", GPUNN__J_OBJECT, "an object: {\"kind\": \"normal\", \"a\": 0, \"b\": 1}") ||
        !gpunn__need(l, item, "kind", "one of zeros, constant, uniform, normal, kaiming_uniform", &ignored) ||
        !gpunn__get_choice(l, item, "kind", GPUNN__CHOICES(words), &kind) || !gpunn__get_float(l, item, "a", &init->a) ||
        !gpunn__get_float(l, item, "b", &init->b))
        return false;
    init->kind = (gpunn_init_kind)(GPUNN_INIT_ZEROS + kind);
    return gpunn__all_read(l, item, "\"init\"");
}

/* "trainable", "decay", "lr_scale" of a parameter. */
static bool gpunn__apply_settings(gpunn__loading *l, int object, gpunn_tensor *t)
{
    bool  trainable = t->trainable, decay = t->decay;
    float lr_scale = t->lr_scale;
    return gpunn__get_bool(l, object, "trainable", &trainable) && gpunn__get_bool(l, object, "decay", &decay) &&
           gpunn__get_float(l, object, "lr_scale", &lr_scale) && gpunn_set_trainable(t, trainable) == GPUNN_OK &&
           gpunn_set_decay(t, decay) == GPUNN_OK && gpunn_set_lr_scale(t, lr_scale) == GPUNN_OK;
}

/* The settings of what a layer has appended from first on. */
static bool gpunn__apply_layer_settings(gpunn__loading *l, const gpunn__spec_entry *e, int first)
{
    gpunn_model *model = l->model;
    bool         trainable = true;
    if (!gpunn__get_bool(l, e->item, "trainable", &trainable)) return false;
    for (int i = first; i < model->tensor_count; i++)
        if (model->tensors[i]->kind == GPUNN__PARAMETER) model->tensors[i]->trainable = trainable;
    int object = gpunn__look(l, e->item, "parameters");
    if (object == 0) return true;
    if (!gpunn__be(l, object, "parameters", GPUNN__J_OBJECT, "an object of settings by parameter")) return false;
    for (int i = 0; i < 2; i++) {
        static const char *const suffixes[] = {"weight", "bias"};
        char                     name[GPUNN__NAME_SIZE];
        int                      item = gpunn__look(l, object, suffixes[i]);
        (void)snprintf(name, sizeof name, "%s.%s", e->name, suffixes[i]);
        gpunn_tensor *t = item ? gpunn_find(model, name) : NULL;
        if (item == 0) continue;
        if (t == NULL) return gpunn__wrong(l, item, "the layer has no \"%s\"", suffixes[i]);
        gpunn_init init = t->init;
        if (!gpunn__be(l, item, suffixes[i], GPUNN__J_OBJECT, "an object of settings") || !gpunn__get_init(l, item, &init))
            return false;
        gpunn__stand_at(l, item);
        if (!gpunn__apply_settings(l, item, t) || gpunn_set_init(t, init) != GPUNN_OK ||
            !gpunn__all_read(l, item, "a parameter's settings"))
            return false;
    }
    return gpunn__all_read(l, object, "\"parameters\"");
}

static gpunn_tensor *gpunn__make_input(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_shape shape;
    gpunn_dtype dtype;
    return gpunn__need_shape(l, e->item, &shape) && gpunn__get_dtype(l, e->item, &dtype)
               ? gpunn_input(l->model, e->name, dtype, shape)
               : NULL;
}

static gpunn_tensor *gpunn__make_parameter(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_shape shape;
    gpunn_init  init = {GPUNN_INIT_DEFAULT, 0, 0};
    if (!gpunn__need_shape(l, e->item, &shape) || !gpunn__get_init(l, e->item, &init)) return NULL;
    gpunn__stand_at(l, e->item);
    gpunn_tensor *t = gpunn_parameter(l->model, e->name, shape, init);
    return t && gpunn__apply_settings(l, e->item, t) ? t : NULL;
}

static gpunn_tensor *gpunn__make_constant(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_shape   shape;
    int           list, used = 0;
    gpunn_tensor *t = NULL;
    int64_t       count = 1;
    if (!gpunn__need_shape(l, e->item, &shape) || !gpunn__need(l, e->item, "values", "a list of numbers", &list) ||
        !gpunn__be(l, list, "values", GPUNN__J_LIST, "a list of numbers"))
        return NULL;
    int given = gpunn__item_count(l, list);
    for (int i = 0; i < GPUNN_MAX_RANK && shape.dim[i] && count >= 0; i++)
        count = shape.dim[i] < 0 || shape.dim[i] > given / count ? -1 : count * shape.dim[i];
    if (count != given) {
        (void)gpunn__wrong(l, list, "\"values\" must have as many numbers as \"shape\" tells, not %d", given);
        return NULL;
    }
    size_t size = (size_t)(given ? given : 1) * sizeof(float);
    float *values = (float *)gpunn__realloc(l->dev, NULL, 0, size);
    bool   ok = values != NULL;
    for (int i = list + 1; i < l->items.at[list].next && ok; i = l->items.at[i].next)
        ok = gpunn__float_at(l, i, "values", true, &values[used++]);
    gpunn__stand_at(l, e->item);
    if (ok) t = gpunn_constant(l->model, shape, values);
    gpunn__free(l->dev, values, size);
    return t;
}

static gpunn_tensor *gpunn__make_linear(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_linear_args args;
    bool              bias = true;
    int               ignored;
    memset(&args, 0, sizeof args);
    if (!gpunn__need(l, e->item, "out_features", "an integer", &ignored) ||
        !gpunn__get_int(l, e->item, "out_features", 1, &args.out_features) || !gpunn__get_bool(l, e->item, "bias", &bias) ||
        !gpunn__get_reference(l, e->item, "weight", &args.weight))
        return NULL;
    args.no_bias = !bias;
    return gpunn_linear_(e->in[0], e->name, args);
}

static gpunn_tensor *gpunn__make_embedding(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_embedding_args args;
    int                  ignored;
    memset(&args, 0, sizeof args);
    if (!gpunn__need(l, e->item, "num_embeddings", "an integer", &ignored) ||
        !gpunn__get_int(l, e->item, "num_embeddings", 1, &args.num_embeddings) ||
        !gpunn__need(l, e->item, "embedding_dim", "an integer", &ignored) ||
        !gpunn__get_int(l, e->item, "embedding_dim", 1, &args.embedding_dim) ||
        !gpunn__get_int(l, e->item, "padding_idx", -INT32_MAX, &args.padding_idx) ||
        !gpunn__get_reference(l, e->item, "weight", &args.weight))
        return NULL;
    return gpunn_embedding_(e->in[0], e->name, args);
}

static gpunn_tensor *gpunn__make_conv(gpunn__loading *l, const gpunn__spec_entry *e)
{
    const int       axes = e->op[strlen(e->op) - 2] - '0';
    const bool      transposed = e->op[4] == '_';
    gpunn_conv_args args;
    bool            bias = true;
    int             ignored;
    memset(&args, 0, sizeof args);
    if (!gpunn__need(l, e->item, "out_channels", "an integer", &ignored) ||
        !gpunn__get_int(l, e->item, "out_channels", 1, &args.out_channels) ||
        !gpunn__need(l, e->item, "kernel_size", "an integer or a list of one for each axis", &ignored) ||
        !gpunn__get_window(l, e->item, "kernel_size", axes, 1, args.kernel_shape) ||
        !gpunn__get_window(l, e->item, "stride", axes, 1, args.strides) ||
        !gpunn__get_window(l, e->item, "padding", axes, 0, args.paddings) ||
        !gpunn__get_window(l, e->item, "dilation", axes, 1, args.dilations) ||
        (transposed && !gpunn__get_window(l, e->item, "output_padding", axes, 0, args.output_paddings)) ||
        !gpunn__get_int(l, e->item, "groups", 1, &args.groups) || !gpunn__get_bool(l, e->item, "bias", &bias))
        return NULL;
    args.no_bias = !bias;
    return gpunn__conv_node((gpunn_op)((transposed ? GPUNN_OP_CONV_TRANSPOSE1D : GPUNN_OP_CONV1D) + axes - 1), e->in[0], e->name,
                            &args);
}

static gpunn_tensor *gpunn__make_batch_norm(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_batch_norm_args args;
    bool                  affine = true;
    memset(&args, 0, sizeof args);
    if (!gpunn__get_setting(l, e->item, "eps", &args.eps) || !gpunn__get_setting(l, e->item, "momentum", &args.momentum) ||
        !gpunn__get_bool(l, e->item, "affine", &affine))
        return NULL;
    args.no_affine = !affine;
    return e->op[10] == '1' ? gpunn_batch_norm1d_(e->in[0], e->name, args) : gpunn_batch_norm2d_(e->in[0], e->name, args);
}

static gpunn_tensor *gpunn__make_layer_norm(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_layer_norm_args args;
    bool                  affine = true, bias = true, centered = *e->op == 'l';
    memset(&args, 0, sizeof args);
    if (!gpunn__get_int(l, e->item, "dims", 1, &args.dims) || !gpunn__get_setting(l, e->item, "eps", &args.eps) ||
        !gpunn__get_bool(l, e->item, "elementwise_affine", &affine) || (centered && !gpunn__get_bool(l, e->item, "bias", &bias)))
        return NULL;
    args.no_affine = !affine;
    args.no_bias = !bias;
    return centered ? gpunn_layer_norm_(e->in[0], e->name, args) : gpunn_rms_norm_(e->in[0], e->name, args);
}

static gpunn_tensor *gpunn__make_prelu(gpunn__loading *l, const gpunn__spec_entry *e)
{
    int   parameters = 0;
    float init = 0;
    return gpunn__get_int(l, e->item, "num_parameters", 1, &parameters) && gpunn__get_setting(l, e->item, "init", &init)
               ? gpunn_prelu(e->in[0], e->name, parameters, init)
               : NULL;
}

static gpunn_tensor *gpunn__make_pool(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_pool_args args;
    bool            average = *e->op == 'a', include = true;
    int             ignored, axes = e->op[8] - '0';
    memset(&args, 0, sizeof args);
    if (!gpunn__need(l, e->item, "kernel_size", "an integer or a list of one for each axis", &ignored) ||
        !gpunn__get_window(l, e->item, "kernel_size", axes, 1, args.kernel_shape) ||
        !gpunn__get_window(l, e->item, "stride", axes, 1, args.strides) ||
        !gpunn__get_window(l, e->item, "padding", axes, 0, args.paddings) ||
        !gpunn__get_bool(l, e->item, "ceil_mode", &args.ceil_mode) ||
        (average && !gpunn__get_bool(l, e->item, "count_include_pad", &include)))
        return NULL;
    args.count_exclude_pad = !include;
    return gpunn__pool_node(e->op,
                            average     ? axes == 3 ? GPUNN_OP_AVG_POOL3D : GPUNN_OP_AVG_POOL2D
                            : axes == 3 ? GPUNN_OP_MAX_POOL3D
                                        : GPUNN_OP_MAX_POOL2D,
                            axes, e->in[0], &args);
}

static gpunn_tensor *gpunn__make_adaptive_pool(gpunn__loading *l, const gpunn__spec_entry *e)
{
    bool average = e->op[9] == 'a';
    int  size[3] = {0, 0, 0}, ignored, axes = e->op[17] - '0';
    if (!gpunn__need(l, e->item, "output_size", "an integer or a list of one for each axis", &ignored) ||
        !gpunn__get_window(l, e->item, "output_size", axes, 1, size))
        return NULL;
    return gpunn__adaptive_pool(e->op,
                                average     ? axes == 3 ? GPUNN_OP_ADAPTIVE_AVG_POOL3D : GPUNN_OP_ADAPTIVE_AVG_POOL2D
                                : axes == 3 ? GPUNN_OP_ADAPTIVE_MAX_POOL3D
                                            : GPUNN_OP_ADAPTIVE_MAX_POOL2D,
                                axes, e->in[0], size[0], size[1], size[2]);
}

static gpunn_tensor *gpunn__make_grid_sample(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_grid_args args;
    int             mode = 0, padding = 0;
    memset(&args, 0, sizeof args);
    if (!gpunn__get_choice(l, e->item, "mode", GPUNN__CHOICES(gpunn__grid_mode_names), &mode) ||
        !gpunn__get_choice(l, e->item, "padding_mode", GPUNN__CHOICES(gpunn__grid_padding_names), &padding) ||
        !gpunn__get_bool(l, e->item, "align_corners", &args.align_corners))
        return NULL;
    args.mode = (gpunn_grid_mode)mode;
    args.padding_mode = (gpunn_grid_padding)padding;
    return gpunn_grid_sample_(e->in[0], e->in[1], args);
}

static gpunn_tensor *gpunn__make_affine_grid(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_shape size;
    bool        align_corners = false;
    int         ignored;
    memset(&size, 0, sizeof size);
    return gpunn__need(l, e->item, "size", "a list of two or three sizes", &ignored) &&
                   gpunn__get_amounts(l, e->item, "size", size.dim) &&
                   gpunn__get_bool(l, e->item, "align_corners", &align_corners)
               ? gpunn_affine_grid(e->in[0], size, align_corners)
               : NULL;
}

static gpunn_tensor *gpunn__make_dropout(gpunn__loading *l, const gpunn__spec_entry *e)
{
    float p = 0.5f;
    return gpunn__get_float(l, e->item, "p", &p) ? gpunn_dropout(e->in[0], p) : NULL;
}

static gpunn_tensor *gpunn__make_matmul(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_matmul_args args = {0, false, false};
    return gpunn__get_bool(l, e->item, "transpose_a", &args.transpose_a) &&
                   gpunn__get_bool(l, e->item, "transpose_b", &args.transpose_b)
               ? gpunn_matmul_(e->in[0], e->in[1], args)
               : NULL;
}

static gpunn_tensor *gpunn__make_attention(gpunn__loading *l, const gpunn__spec_entry *e)
{
    static const char    what[] = "a list of q, k and v, or of one for all";
    gpunn_attention_args args;
    gpunn_tensor        *in[3] = {NULL, NULL, NULL};
    int                  inputs, count;
    memset(&args, 0, sizeof args);
    if (!gpunn__need(l, e->item, "inputs", what, &inputs) || !gpunn__references_at(l, inputs, "inputs", 1, 3, in, &count) ||
        (count == 2 && !gpunn__wrong(l, inputs, "\"inputs\" must be %s", what)) ||
        !gpunn__get_reference(l, e->item, "mask", &args.mask) || !gpunn__get_bool(l, e->item, "is_causal", &args.is_causal) ||
        !gpunn__get_setting(l, e->item, "dropout_p", &args.dropout_p) || !gpunn__get_setting(l, e->item, "scale", &args.scale) ||
        !gpunn__get_bool(l, e->item, "enable_gqa", &args.enable_gqa) ||
        !gpunn__get_bool(l, e->item, "heads_last", &args.heads_last))
        return NULL;
    return gpunn_scaled_dot_product_attention_(in[0], in[1], in[2], args);
}

static gpunn_tensor *gpunn__make_reshape(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_shape shape;
    if (*e->op == 'f') return gpunn_flatten(e->in[0]);
    return gpunn__need_shape(l, e->item, &shape) ? gpunn_reshape(e->in[0], shape) : NULL;
}

static gpunn_tensor *gpunn__make_permute(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_axes order;
    int        ignored;
    return gpunn__need(l, e->item, "dims", "a list of all axes", &ignored) && gpunn__get_axes(l, e->item, &order)
               ? gpunn_permute(e->in[0], order)
               : NULL;
}

static gpunn_tensor *gpunn__make_concat(gpunn__loading *l, const gpunn__spec_entry *e)
{
    int64_t axis = 0;
    return gpunn__get_integer(l, e->item, "dim", -GPUNN_MAX_RANK, GPUNN_MAX_RANK - 1, &axis)
               ? gpunn_concat(e->in, e->count, (int)axis)
               : NULL;
}

static gpunn_tensor *gpunn__make_slice(gpunn__loading *l, const gpunn__spec_entry *e)
{
    int     axis;
    int64_t start = 0, end = GPUNN_END_OF_AXIS, step = 1;
    return gpunn__need_axis(l, e->item, &axis) && gpunn__get_integer(l, e->item, "start", INT64_MIN, INT64_MAX, &start) &&
                   gpunn__get_integer(l, e->item, "end", INT64_MIN, INT64_MAX, &end) &&
                   gpunn__get_integer(l, e->item, "step", 1, INT64_MAX, &step)
               ? gpunn_slice(e->in[0], axis, start, end, step)
               : NULL;
}

static gpunn_tensor *gpunn__make_pad(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_pad_args args;
    memset(&args, 0, sizeof args);
    return gpunn__get_amounts(l, e->item, "before", args.before) && gpunn__get_amounts(l, e->item, "after", args.after) &&
                   gpunn__get_float(l, e->item, "value", &args.value)
               ? gpunn_pad_(e->in[0], args)
               : NULL;
}

static gpunn_tensor *gpunn__make_gather(gpunn__loading *l, const gpunn__spec_entry *e)
{
    int axis;
    return gpunn__need_axis(l, e->item, &axis) ? gpunn_gather(e->in[0], axis, e->in[1]) : NULL;
}

static gpunn_tensor *gpunn__make_cast(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_dtype dtype;
    int         ignored;
    return gpunn__need(l, e->item, "dtype", "one of f32, i64, i32, u8, bool", &ignored) && gpunn__get_dtype(l, e->item, &dtype)
               ? gpunn_cast(e->in[0], dtype)
               : NULL;
}

static gpunn_tensor *gpunn__make_reduction(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_axes axes;
    bool       keepdim = false;
    if (!gpunn__get_axes(l, e->item, &axes) || !gpunn__get_bool(l, e->item, "keepdim", &keepdim)) return NULL;
    if (*e->op == 's') return gpunn_sum(e->in[0], axes, keepdim);
    return e->op[1] == 'e' ? gpunn_mean(e->in[0], axes, keepdim) : gpunn_max(e->in[0], axes, keepdim);
}

static gpunn_tensor *gpunn__make_axis(gpunn__loading *l, const gpunn__spec_entry *e)
{
    int  axis;
    bool keepdim = false, argmax = *e->op == 'a';
    if (!gpunn__need_axis(l, e->item, &axis) || (argmax && !gpunn__get_bool(l, e->item, "keepdim", &keepdim))) return NULL;
    if (argmax) return gpunn_argmax(e->in[0], axis, keepdim);
    return *e->op == 's' ? gpunn_softmax(e->in[0], axis) : gpunn_log_softmax(e->in[0], axis);
}

static bool gpunn__get_reduction(gpunn__loading *l, const gpunn__spec_entry *e, int choices, gpunn_reduction *reduction)
{
    int  choice = 0;
    bool ok = gpunn__get_choice(l, e->item, "reduction", gpunn__reduction_names, choices, &choice);
    *reduction = (gpunn_reduction)choice;
    return ok;
}

static gpunn_tensor *gpunn__make_loss(gpunn__loading *l, const gpunn__spec_entry *e)
{
    static const struct {
        const char *op;
        gpunn_tensor *(*build)(gpunn_tensor *input, gpunn_tensor *target, gpunn_loss_args args);
        int takes;
    } losses[] = {
        {"mse_loss", gpunn_mse_loss_, 0},
        {"l1_loss", gpunn_l1_loss_, 0},
        {"huber_loss", gpunn_huber_loss_, GPUNN__TAKES_DELTA},
        {"smooth_l1_loss", gpunn_smooth_l1_loss_, GPUNN__TAKES_BETA},
        {"bce_loss", gpunn_bce_loss_, GPUNN__TAKES_WEIGHT},
        {"bce_with_logits", gpunn_bce_with_logits_, GPUNN__TAKES_WEIGHT | GPUNN__TAKES_POS_WEIGHT},
        {"kl_div", gpunn_kl_div_, GPUNN__TAKES_LOG_TARGET},
    };
    gpunn_loss_args args;
    int             i = 0;
    memset(&args, 0, sizeof args);
    while (strcmp(losses[i].op, e->op) != 0) i++;
    int takes = losses[i].takes;
    if (!gpunn__get_reduction(l, e, 4, &args.reduction) ||
        (takes & GPUNN__TAKES_DELTA && !gpunn__get_setting(l, e->item, "delta", &args.delta)) ||
        (takes & GPUNN__TAKES_BETA && !gpunn__get_setting(l, e->item, "beta", &args.beta)) ||
        (takes & GPUNN__TAKES_WEIGHT && !gpunn__get_reference(l, e->item, "weight", &args.weight)) ||
        (takes & GPUNN__TAKES_POS_WEIGHT && !gpunn__get_reference(l, e->item, "pos_weight", &args.pos_weight)) ||
        (takes & GPUNN__TAKES_LOG_TARGET && !gpunn__get_bool(l, e->item, "log_target", &args.log_target)))
        return NULL;
    return losses[i].build(e->in[0], e->in[1], args);
}

static gpunn_tensor *gpunn__make_class_loss(gpunn__loading *l, const gpunn__spec_entry *e)
{
    gpunn_class_loss_args args;
    bool                  entropy = *e->op == 'c';
    memset(&args, 0, sizeof args);
    if (!gpunn__get_reduction(l, e, 3, &args.reduction) ||
        !gpunn__get_int(l, e->item, "ignore_index", -INT32_MAX, &args.ignore_index) ||
        (entropy && !gpunn__get_setting(l, e->item, "label_smoothing", &args.label_smoothing)) ||
        !gpunn__get_reference(l, e->item, "weight", &args.weight))
        return NULL;
    return entropy ? gpunn_cross_entropy_(e->in[0], e->in[1], args) : gpunn_nll_loss_(e->in[0], e->in[1], args);
}

static gpunn_tensor *gpunn__make_accuracy(gpunn__loading *l, const gpunn__spec_entry *e)
{
    (void)l;
    return *e->op == 'a' ? gpunn_accuracy(e->in[0], e->in[1]) : gpunn_binary_accuracy(e->in[0], e->in[1]);
}

static gpunn_tensor *gpunn__make_elementwise(gpunn__loading *l, const gpunn__spec_entry *e, gpunn_op op)
{
    float value[2];
    for (int i = 0; i < 2; i++) {
        value[i] = gpunn__op_attribute_default(op, i);
        if (i < gpunn__op_attribute_count(op) && !gpunn__get_float(l, e->item, gpunn__op_infos[op].attribute[i], &value[i]))
            return NULL;
    }
    return gpunn__map_node(op, e->in, value[0], value[1]);
}

static gpunn_tensor *gpunn__make_expr(gpunn__loading *l, const gpunn__spec_entry *e)
{
    const char   *expression, *names[GPUNN__EXPR_ARGS], *number_names[GPUNN__EXPR_NAMES];
    double        numbers[GPUNN__EXPR_NAMES];
    gpunn_tensor *in[GPUNN__EXPR_ARGS];
    int           at, inputs, consts = gpunn__look(l, e->item, "consts"), count = 0, number_count = 0;
    gpunn__item  *items = l->items.at;
    if (!gpunn__need(l, e->item, "expression", "a formula", &at) || !gpunn__string_at(l, at, "expression", &expression) ||
        !gpunn__need(l, e->item, "inputs", "a list of ids, or an object of them by name", &inputs) ||
        (consts && !gpunn__be(l, consts, "consts", GPUNN__J_OBJECT, "an object of numbers by name")))
        return NULL;
    if (items[inputs].kind == GPUNN__J_OBJECT) {
        for (int i = inputs + 1; i < items[inputs].next; i = items[i + 1].next) {
            (void)gpunn__look(l, inputs, items[i].text.at);
            if (count == GPUNN__EXPR_ARGS) {
                (void)gpunn__wrong(l, i, "\"inputs\" must have at most %d of them", (int)GPUNN__EXPR_ARGS);
                return NULL;
            }
            names[count] = items[i].text.at;
            if ((in[count++] = gpunn__reference_at(l, i + 1, "inputs")) == NULL) return NULL;
        }
        if (!gpunn__all_read(l, inputs, "\"inputs\"")) return NULL;
    } else if (!gpunn__references_at(l, inputs, "inputs", 1, GPUNN__EXPR_ARGS, in, &count))
        return NULL;
    for (int i = consts + 1; consts && i < items[consts].next; i = items[i + 1].next) {
        float value;
        (void)gpunn__look(l, consts, items[i].text.at);
        if (!gpunn__be(l, i + 1, "consts", GPUNN__J_NUMBER, "an object of numbers by name") ||
            !gpunn__float_at(l, i + 1, "consts", false, &value))
            return NULL;
        if (number_count == GPUNN__EXPR_NAMES) {
            (void)gpunn__wrong(l, i, "\"consts\" must have at most %d of them", (int)GPUNN__EXPR_NAMES);
            return NULL;
        }
        number_names[number_count] = items[i].text.at;
        (void)gpunn__json_double(&items[i + 1].text, &numbers[number_count++]);
    }
    if (consts && !gpunn__all_read(l, consts, "\"consts\"")) return NULL;
    gpunn__stand_at(l, at);
    return gpunn__expr(expression, items[inputs].kind == GPUNN__J_OBJECT ? names : NULL, in, count, number_names, numbers,
                       number_count);
}

/* Ops by name; inputs -1: 1 to GPUNN_MAX_OPERANDS, -2: the op reads them itself. */
typedef struct gpunn__spec_op {
    const char *name;
    int         inputs;
    bool        layer;
    gpunn_tensor *(*make)(gpunn__loading *l, const gpunn__spec_entry *e);
} gpunn__spec_op;
static const gpunn__spec_op gpunn__spec_ops[] = {
    {"input", 0, false, gpunn__make_input},
    {"parameter", 0, false, gpunn__make_parameter},
    {"constant", 0, false, gpunn__make_constant},
    {"linear", 1, true, gpunn__make_linear},
    {"embedding", 1, true, gpunn__make_embedding},
    {"conv1d", 1, true, gpunn__make_conv},
    {"conv2d", 1, true, gpunn__make_conv},
    {"conv3d", 1, true, gpunn__make_conv},
    {"conv_transpose1d", 1, true, gpunn__make_conv},
    {"conv_transpose2d", 1, true, gpunn__make_conv},
    {"conv_transpose3d", 1, true, gpunn__make_conv},
    {"batch_norm1d", 1, true, gpunn__make_batch_norm},
    {"batch_norm2d", 1, true, gpunn__make_batch_norm},
    {"layer_norm", 1, true, gpunn__make_layer_norm},
    {"rms_norm", 1, true, gpunn__make_layer_norm},
    {"prelu", 1, true, gpunn__make_prelu},
    {"max_pool1d", 1, false, gpunn__make_pool},
    {"max_pool2d", 1, false, gpunn__make_pool},
    {"max_pool3d", 1, false, gpunn__make_pool},
    {"avg_pool1d", 1, false, gpunn__make_pool},
    {"avg_pool2d", 1, false, gpunn__make_pool},
    {"avg_pool3d", 1, false, gpunn__make_pool},
    {"adaptive_max_pool1d", 1, false, gpunn__make_adaptive_pool},
    {"adaptive_max_pool2d", 1, false, gpunn__make_adaptive_pool},
    {"adaptive_max_pool3d", 1, false, gpunn__make_adaptive_pool},
    {"adaptive_avg_pool1d", 1, false, gpunn__make_adaptive_pool},
    {"adaptive_avg_pool2d", 1, false, gpunn__make_adaptive_pool},
    {"adaptive_avg_pool3d", 1, false, gpunn__make_adaptive_pool},
    {"grid_sample", 2, false, gpunn__make_grid_sample},
    {"affine_grid", 1, false, gpunn__make_affine_grid},
    {"dropout", 1, false, gpunn__make_dropout},
    {"matmul", 2, false, gpunn__make_matmul},
    {"scaled_dot_product_attention", -2, false, gpunn__make_attention},
    {"reshape", 1, false, gpunn__make_reshape},
    {"flatten", 1, false, gpunn__make_reshape},
    {"permute", 1, false, gpunn__make_permute},
    {"concat", -1, false, gpunn__make_concat},
    {"slice", 1, false, gpunn__make_slice},
    {"pad", 1, false, gpunn__make_pad},
    {"gather", 2, false, gpunn__make_gather},
    {"cast", 1, false, gpunn__make_cast},
    {"sum", 1, false, gpunn__make_reduction},
    {"mean", 1, false, gpunn__make_reduction},
    {"max", 1, false, gpunn__make_reduction},
    {"argmax", 1, false, gpunn__make_axis},
    {"softmax", 1, false, gpunn__make_axis},
    {"log_softmax", 1, false, gpunn__make_axis},
    {"expr", -2, false, gpunn__make_expr},
    {"mse_loss", 2, false, gpunn__make_loss},
    {"l1_loss", 2, false, gpunn__make_loss},
    {"huber_loss", 2, false, gpunn__make_loss},
    {"smooth_l1_loss", 2, false, gpunn__make_loss},
    {"bce_loss", 2, false, gpunn__make_loss},
    {"bce_with_logits", 2, false, gpunn__make_loss},
    {"kl_div", 2, false, gpunn__make_loss},
    {"cross_entropy", 2, false, gpunn__make_class_loss},
    {"nll_loss", 2, false, gpunn__make_class_loss},
    {"accuracy", 2, false, gpunn__make_accuracy},
    {"binary_accuracy", 2, false, gpunn__make_accuracy},
};
enum { GPUNN__SPEC_OP_COUNT = sizeof gpunn__spec_ops / sizeof gpunn__spec_ops[0] };

/* The tensor t is called that from now on; no other may be. */
static bool gpunn__register(gpunn__loading *l, int item, const char *text, gpunn_tensor *t)
{
    if (2 * l->word_count >= l->word_capacity) {
        gpunn__word *old = l->words;
        size_t       count = l->word_capacity;
        gpunn__word *words = (gpunn__word *)gpunn__calloc(l->dev, (count ? 2 * count : 256) * sizeof *words);
        if (words == NULL) return false;
        l->words = words;
        l->word_capacity = count ? 2 * count : 256;
        for (size_t i = 0; i < count; i++)
            if (old[i].text) *gpunn__word_at(l, old[i].text) = old[i];
        gpunn__free(l->dev, old, count * sizeof *old);
    }
    gpunn__word *word = gpunn__word_at(l, text);
    if (word->t && word->t != t)
        return gpunn__wrong(l, item, "\"%.100s\" is another tensor already; ids and names are unique in a model", text);
    l->word_count += word->text == NULL;
    word->text = text;
    word->t = t;
    return true;
}

/* One entry of "tensors". */
static bool gpunn__spec_tensor(gpunn__loading *l, int item)
{
    static const char     what[] = "an op's name";
    const gpunn__spec_op *op = NULL;
    gpunn__spec_entry     e;
    gpunn_tensor         *t;
    gpunn_model          *model = l->model;
    const char           *id = NULL, *as = NULL;
    char                  shown[128];
    int                   at, elementwise = GPUNN_OP_COUNT, first = model->tensor_count;
    if (!gpunn__be(l, item, "tensors", GPUNN__J_OBJECT, "a list of objects") || !gpunn__need(l, item, "op", what, &at) ||
        !gpunn__string_at(l, at, "op", &e.op))
        return false;
    e.item = item;
    e.count = 0;
    e.name = NULL;
    for (int i = 0; i < GPUNN__SPEC_OP_COUNT && op == NULL; i++)
        if (strcmp(gpunn__spec_ops[i].name, e.op) == 0) op = &gpunn__spec_ops[i];
    while (op == NULL && --elementwise > 0)
        if (gpunn__op_arity((gpunn_op)elementwise) > 0 && strcmp(gpunn_op_name((gpunn_op)elementwise), e.op) == 0) break;
    if (elementwise == 0)
        return gpunn__wrong(l, at, "there is no op \"%s\"; see generator/model.schema.json",
                            gpunn__printable(&l->items.at[at].text, shown));
    bool layer = op && op->layer, named = layer || (op && op->inputs == 0 && op->make != gpunn__make_constant);
    int  inputs = op ? op->inputs : gpunn__op_arity((gpunn_op)elementwise), list;
    if (!gpunn__get_string(l, item, "name", &e.name) || !gpunn__get_string(l, item, "id", &id) ||
        (layer && !gpunn__get_string(l, item, "as", &as)) || (named && !gpunn__need(l, item, "name", "a string", &at)))
        return false;
    if (inputs > 0 || inputs == -1) {
        if (!gpunn__need(l, item, "inputs", "a list of ids or names", &list) ||
            !gpunn__references_at(l, list, "inputs", inputs < 0 ? 1 : inputs, inputs < 0 ? GPUNN_MAX_OPERANDS : inputs, e.in,
                                  &e.count))
            return false;
    }
    gpunn__stand_at(l, item);
    t = op ? op->make(l, &e) : gpunn__make_elementwise(l, &e, (gpunn_op)elementwise);
    if (t == NULL || (layer && !gpunn__apply_layer_settings(l, &e, first))) return false;
    if (model->tensor_count > GPUNN__SPEC_TENSORS)
        return gpunn__wrong(l, item, "the model has more than %d tensors", (int)GPUNN__SPEC_TENSORS);
    for (int i = first; i < model->tensor_count; i++)
        if (model->tensors[i]->name && !gpunn__register(l, item, model->tensors[i]->name, model->tensors[i])) return false;
    const char *name_key = as ? "as" : id && (layer || e.name == NULL) ? "id" : "name", *word = id ? id : e.name;
    const char *name = as ? as : *name_key == 'i' ? id : e.name;
    if ((word && !gpunn__register(l, gpunn__look(l, item, id ? "id" : "name"), word, t)) ||
        (name && !gpunn__register(l, gpunn__look(l, item, name_key), name, t)))
        return false;
    if (t->id < first && *name_key == 'n' && name)
        return gpunn__wrong(l, item, "the op hands on a tensor that exists already and has its name; give an \"id\" instead");
    gpunn__stand_at(l, item);
    if (t->id >= first && name && t->name == NULL && gpunn_set_name(t, name) == NULL) return false;
    return gpunn__all_read(l, item, e.op);
}

/* "optimizer", "clip_grad_norm", "clip_grad_value". */
static bool gpunn__spec_recipe(gpunn__loading *l, gpunn__recipe *recipe)
{
    int item = gpunn__look(l, 0, "optimizer"), kind = 0, betas, ignored;
    if (item) {
        if (!gpunn__be(l, item, "optimizer", GPUNN__J_OBJECT, "an object: {\"type\": \"adam\", \"lr\": 0.001}") ||
            !gpunn__need(l, item, "type", "one of sgd, adam, adamw, rmsprop, adagrad, adamax, nadam, radam, lamb, lion",
                         &ignored) ||
            !gpunn__get_choice(l, item, "type", GPUNN__CHOICES(gpunn__update_names), &kind))
            return false;
        *recipe = gpunn__recipe_of((gpunn_update_kind)kind);
        for (int i = 0; i < GPUNN__RECIPE_FIELD_COUNT; i++) {
            const gpunn__recipe_field *field = &gpunn__recipe_fields[i];
            char                      *to = (char *)recipe + field->offset;
            if (!(field->kinds >> kind & 1)) continue;
            if (field->flag ? !gpunn__get_bool(l, item, field->name, (bool *)to)
                            : !gpunn__get_float(l, item, field->name, (float *)(void *)to))
                return false;
        }
        betas = recipe->rule.beta2 != 0 ? gpunn__look(l, item, "betas") : 0;
        if (betas && (l->items.at[betas].kind != GPUNN__J_LIST || gpunn__item_count(l, betas) != 2))
            return gpunn__wrong(l, betas, "\"betas\" must be a list of two numbers");
        if (betas && (!gpunn__float_at(l, betas + 1, "betas", false, &recipe->rule.beta1) ||
                      !gpunn__float_at(l, betas + 2, "betas", false, &recipe->rule.beta2)))
            return false;
        if (!gpunn__all_read(l, item, "\"optimizer\"")) return false;
        gpunn__stand_at(l, item);
        gpunn_optimizer *opt = gpunn_spec_optimizer(l->model); /* whether its builder takes these */
        if (opt == NULL) return false;
        gpunn_optimizer_destroy(opt);
    }
    static const char *const clips[] = {"clip_grad_norm", "clip_grad_value"};
    float                   *limits[2] = {&recipe->clip_norm, &recipe->clip_value};
    for (int i = 0; i < 2; i++)
        if (!gpunn__get_float(l, 0, clips[i], limits[i]) ||
            (!(*limits[i] >= 0 && isfinite(*limits[i])) &&
             !gpunn__wrong(l, gpunn__look(l, 0, clips[i]), "\"%s\" must be a number of 0 or more", clips[i])))
            return false;
    return true;
}

/* What is not about tensors. */
static bool gpunn__spec_rest(gpunn__loading *l)
{
    static const char *const maths[] = {"auto", "accurate", "fast"};
    static const char *const layouts[] = {"auto", "channels_first", "channels_last"};
    gpunn_model             *model = l->model;
    gpunn__spec             *spec = &model->spec;
    const char              *name = NULL;
    int                      ignored = 0, list = gpunn__look(l, 0, "outputs"), fuse = gpunn__look(l, 0, "fuse");
    if (!gpunn__get_string(l, 0, "name", &name) || !gpunn__get_choice(l, 0, "math", GPUNN__CHOICES(maths), &ignored) ||
        !gpunn__get_choice(l, 0, "layout", GPUNN__CHOICES(layouts), &ignored) ||
        (fuse && !gpunn__be(l, fuse, "fuse", GPUNN__J_OBJECT, "an object")) || !gpunn__get_reference(l, 0, "loss", &spec->loss) ||
        !gpunn__spec_recipe(l, &spec->recipe))
        return false;
    const gpunn_tensor *loss = spec->loss;
    if (loss && (loss->kind != GPUNN__VALUE || loss->dtype != GPUNN_F32 || gpunn__count(loss, 2) != 1)) {
        char text[128];
        return gpunn__wrong(l, gpunn__look(l, 0, "loss"), "the loss is %s %s; it must be one computed f32 number",
                            gpunn_dtype_name(loss->dtype), gpunn__shape_text(loss, text));
    }
    if (name && (spec->name = gpunn__strdup(l->dev, name)) == NULL) return false;
    int count = model->tensor_count;
    if (list) {
        if (!gpunn__be(l, list, "outputs", GPUNN__J_LIST, "a list of ids or names")) return false;
        count = gpunn__item_count(l, list);
    }
    if (count == 0) return true;
    spec->outputs = (gpunn_tensor **)gpunn__realloc(l->dev, NULL, 0, (size_t)count * sizeof *spec->outputs);
    if (spec->outputs == NULL) return false;
    spec->output_capacity = count;
    if (list) return gpunn__references_at(l, list, "outputs", 0, count, spec->outputs, &spec->output_count);
    spec->output_count = gpunn__unread(model, spec->outputs);
    return true;
}

static bool gpunn__spec_build(gpunn__loading *l)
{
    static const char tensors[] = "a list of objects";
    int64_t           version = 0;
    int               list, kind = 0, format;
    if (l->items.at[0].kind != GPUNN__J_OBJECT) return gpunn__wrong(l, 0, "a spec is an object: {\"gpunn_spec\": 1, ...}");
    if (!gpunn__need(l, 0, "gpunn_spec", "1, the version of the format", &format) ||
        !gpunn__integer_at(l, format, "gpunn_spec", 1, 1, &version) || !gpunn__need(l, 0, "tensors", tensors, &list) ||
        !gpunn__be(l, list, "tensors", GPUNN__J_LIST, tensors) ||
        !gpunn__get_choice(l, 0, "precision", GPUNN__CHOICES(gpunn__precision_names), &kind))
        return false;
    gpunn__stand_at(l, 0);
    gpunn_model_args args = {0, (gpunn_precision)kind};
    l->model = gpunn_model_create_(l->dev, args);
    if (l->model == NULL) return false;
    for (int i = list + 1; i < l->items.at[list].next; i = l->items.at[i].next)
        if (!gpunn__spec_tensor(l, i)) return false;
    return gpunn__spec_rest(l) && gpunn__all_read(l, 0, "a spec");
}

/* The file as items; its text, which they point into, must outlive them. */
static bool gpunn__spec_read(gpunn__loading *l, char **text, size_t *size)
{
    gpunn__reader reader;
    if (gpunn__reader_open(l->dev, l->path, false, &reader) != GPUNN_OK) return false;
    bool ok = reader.limit <= GPUNN__SPEC_BYTES;
    if (!ok)
        (void)gpunn__fail(l->dev, GPUNN_ERR_FORMAT, "'%s' has %llu bytes; a spec of at most 64 MiB is read", gpunn__tail(l->path),
                          (unsigned long long)reader.limit);
    if (ok) {
        *size = (size_t)reader.limit + 1;
        *text = (char *)gpunn__realloc(l->dev, NULL, 0, *size);
        ok = *text && gpunn__reader_read(&reader, *text, *size - 1) == GPUNN_OK && gpunn__reader_end(&reader) == GPUNN_OK;
    }
    gpunn__reader_close(&reader);
    if (!ok) return false;
    (*text)[*size - 1] = 0;
    gpunn__json json = gpunn__json_of(*text, *size - 1, false);
    ok = gpunn__json_item(l->dev, &json, &l->items, 0);
    (void)gpunn__json_peek(&json, 0);
    if (ok && json.at != json.end) ok = gpunn__json_fail(&json, "goes on after its end");
    if (!ok && json.problem)
        (void)gpunn__fail(l->dev, GPUNN_ERR_FORMAT, "%s:%d:%d: the JSON %s", gpunn__tail(l->path), json.line + 1,
                          (int)(json.at - json.line_start) + 1, json.problem);
    return ok;
}

GPUNN_API gpunn_model *gpunn_spec_load(gpunn_device *dev, const char *path)
{
    gpunn__loading l;
    char          *text = NULL;
    size_t         size = 0;
    if (dev == NULL) return GPUNN__FAIL_NULL(NULL, GPUNN_ERR_ARGUMENT, "gpunn_spec_load: the device is NULL");
    memset(&l, 0, sizeof l);
    l.dev = dev;
    l.path = path;
    bool ok = gpunn__spec_read(&l, &text, &size);
    if (ok) {
        dev->place = l.place;
        ok = gpunn__spec_build(&l);
        dev->place = NULL;
    }
    gpunn__free(dev, l.words, l.word_capacity * sizeof *l.words);
    gpunn__free(dev, l.items.at, (size_t)l.items.capacity * sizeof *l.items.at);
    gpunn__free(dev, text, size);
    if (ok) return l.model;
    gpunn_model_destroy(l.model);
    return NULL;
}

GPUNN_API gpunn_tensor *gpunn_spec_loss(gpunn_model *model)
{
    return model ? model->spec.loss : NULL;
}

GPUNN_API gpunn_tensor *gpunn_spec_output(gpunn_model *model, int index)
{
    return model && index >= 0 && index < model->spec.output_count ? model->spec.outputs[index] : NULL;
}

GPUNN_API gpunn_optimizer *gpunn_spec_optimizer(gpunn_model *model)
{
    if (model == NULL) return NULL;
    const gpunn__recipe *recipe = &model->spec.recipe;
    if (!recipe->given)
        return GPUNN__FAIL_NULL(
            model->dev, GPUNN_ERR_STATE,
            "gpunn_spec_optimizer: the model comes from no spec with an \"optimizer\"; make one with gpunn_sgd");
    gpunn_update rule = recipe->rule;
    float       *fields[] = {&rule.lr,    &rule.weight_decay, &rule.momentum, &rule.dampening, &rule.beta1,
                             &rule.beta2, &rule.alpha,        &rule.eps,      &rule.lr_decay};
    bool         nadam = rule.kind == GPUNN_UPDATE_NADAM;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) /* as the builders want it */
        if (*fields[i] == 0) *fields[i] = (float)GPUNN_ZERO;
    gpunn_optimizer   *opt = NULL;
    gpunn_sgd_args     sgd = {0, rule.lr, rule.momentum, rule.dampening, rule.weight_decay, rule.nesterov, rule.maximize};
    gpunn_adam_args    adam = {0, rule.lr, rule.beta1, rule.beta2, rule.eps, rule.weight_decay, rule.maximize};
    gpunn_rmsprop_args rmsprop = {
        0, rule.lr, rule.alpha, rule.eps, rule.weight_decay, rule.momentum, rule.centered, rule.maximize};
    gpunn_adagrad_args adagrad = {0, rule.lr, rule.eps, rule.lr_decay, rule.weight_decay, recipe->state_start, rule.maximize};
    gpunn_radam_args   radam = {0,
                                rule.lr,
                                rule.beta1,
                                rule.beta2,
                                rule.eps,
                                rule.weight_decay,
                              nadam && rule.momentum_decay == 0 ? (float)GPUNN_ZERO : rule.momentum_decay,
                                rule.decoupled,
                                rule.maximize};
    gpunn_lamb_args    lamb = {
           0, rule.lr, rule.beta1, rule.beta2, rule.eps, rule.weight_decay, rule.trust_clip, rule.always_adapt, rule.maximize};
    gpunn_lion_args lion = {0, rule.lr, rule.beta1, rule.beta2, rule.weight_decay, rule.maximize};
    switch (rule.kind) {
    case GPUNN_UPDATE_SGD: opt = gpunn_sgd_(model, sgd); break;
    case GPUNN_UPDATE_ADAM: opt = gpunn_adam_(model, adam); break;
    case GPUNN_UPDATE_ADAMW: opt = gpunn_adamw_(model, adam); break;
    case GPUNN_UPDATE_RMSPROP: opt = gpunn_rmsprop_(model, rmsprop); break;
    case GPUNN_UPDATE_ADAGRAD: opt = gpunn_adagrad_(model, adagrad); break;
    case GPUNN_UPDATE_ADAMAX: opt = gpunn_adamax_(model, adam); break;
    case GPUNN_UPDATE_NADAM: opt = gpunn_nadam_(model, radam); break;
    case GPUNN_UPDATE_RADAM: opt = gpunn_radam_(model, radam); break;
    case GPUNN_UPDATE_LAMB: opt = gpunn_lamb_(model, lamb); break;
    case GPUNN_UPDATE_LION: opt = gpunn_lion_(model, lion); break;
    }
    if (opt == NULL) return NULL;
    gpunn_set_clip_norm(opt, recipe->clip_norm);
    gpunn_set_clip_value(opt, recipe->clip_value);
    return opt;
}
/* ==== >>readers ======================================================================================================= */
GPUNN_API void gpunn_array_free(gpunn_device *dev, gpunn_array *array)
{
    if (dev == NULL || array == NULL) return;
    gpunn__free(dev, array->data, array->bytes);
    memset(array, 0, sizeof *array);
}

/* The checks that all readers begin with; out is empty afterwards. */
static gpunn_status gpunn__array_begin(gpunn_device *dev, const char *function, bool arguments, gpunn_array *out)
{
    if (dev == NULL || out == NULL || !arguments)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: %s is NULL", function, dev == NULL ? "the device" : "an argument");
    memset(out, 0, sizeof *out);
    return GPUNN_OK;
}

/* Allocates out for what a header claims, which the file must be able to hold. */
static gpunn_status gpunn__array_alloc(const gpunn__reader *r, const gpunn__encoding *encoding, int rank, const int64_t *dim,
                                       gpunn_array *out)
{
    gpunn_device *dev = r->dev;
    const char   *path = gpunn__tail(r->path);
    size_t        count = 1, bytes = 0;
    bool          fits = true;
    for (int i = 0; i < rank; i++) {
        if (dim[i] < 1)
            return gpunn__fail(dev, GPUNN_ERR_FORMAT, "'%s' holds no elements: dimension %d is %lld; there is nothing to read",
                               path, i, (long long)dim[i]);
        fits = fits && (uint64_t)dim[i] <= SIZE_MAX && gpunn__mul(count, (size_t)dim[i], &count);
    }
    fits = fits && gpunn__mul(count, encoding->bytes, &bytes);
    if (!fits || bytes > r->limit)
        return gpunn__fail(dev, GPUNN_ERR_FORMAT,
                           "'%s' is damaged or cut short: its header tells of more elements than the file can hold; "
                           "download it again",
                           path);
    if (!gpunn__mul(count, gpunn_dtype_size(encoding->dtype), &bytes))
        return gpunn__fail(dev, GPUNN_ERR_MEMORY, "'%s' is too large", path);
    out->data = gpunn__realloc(dev, NULL, 0, bytes);
    if (out->data == NULL) return GPUNN_ERR_MEMORY;
    out->bytes = bytes;
    out->dtype = encoding->dtype;
    out->rank = rank;
    for (int i = 0; i < rank; i++) out->dim[i] = dim[i];
    return GPUNN_OK;
}

static size_t gpunn__array_count(const gpunn_array *array)
{
    return array->bytes / gpunn_dtype_size(array->dtype);
}

/* Bytes 0, 0, type, rank, then rank dimensions and the elements, all big-endian (yann.lecun.com/exdb/mnist). */
static gpunn_status gpunn__idx_body(gpunn__reader *r, gpunn_array *out)
{
    unsigned char          head[4], raw[4 * GPUNN_MAX_RANK];
    int64_t                dim[GPUNN_MAX_RANK];
    const gpunn__encoding *encoding = NULL;
    gpunn_status           status = gpunn__reader_read(r, head, sizeof head);
    if (status != GPUNN_OK) return status;
    for (int i = 0; i < GPUNN__ENCODING_COUNT; i++)
        if (gpunn__encodings[i].idx && gpunn__encodings[i].idx == head[2]) encoding = &gpunn__encodings[i];
    int rank = head[3];
    if (head[0] || head[1] || encoding == NULL || rank < 1 || rank > GPUNN_MAX_RANK)
        return gpunn__fail(r->dev, GPUNN_ERR_FORMAT,
                           "'%s' is no IDX file: it begins with %02x %02x %02x %02x, not with 00 00, a type and a rank",
                           gpunn__tail(r->path), head[0], head[1], head[2], head[3]);
    status = gpunn__reader_read(r, raw, 4 * (size_t)rank);
    if (status != GPUNN_OK) return status;
    for (int i = 0; i < rank; i++) {
        const unsigned char *b = raw + 4 * i;
        dim[i] = (int64_t)((uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3]);
    }
    status = gpunn__array_alloc(r, encoding, rank, dim, out);
    return status == GPUNN_OK ? gpunn__read_elements(r, encoding, true, gpunn__array_count(out), out->data) : status;
}

/* Opens a file, lets body read it into out, and leaves out empty after a failure. */
static gpunn_status gpunn__array_read(gpunn_device *dev, const char *function, const char *path,
                                      gpunn_status (*body)(gpunn__reader *r, gpunn_array *out), gpunn_array *out)
{
    gpunn__reader r;
    gpunn_status  status = gpunn__array_begin(dev, function, path != NULL, out);
    if (status == GPUNN_OK) status = gpunn__reader_open(dev, path, true, &r);
    if (status != GPUNN_OK) return status;
    status = body(&r, out);
    if (status == GPUNN_OK) status = gpunn__reader_end(&r);
    gpunn__reader_close(&r);
    if (status != GPUNN_OK) gpunn_array_free(dev, out);
    return status;
}

GPUNN_API gpunn_status gpunn_read_idx(gpunn_device *dev, const char *path, gpunn_array *out)
{
    return gpunn__array_read(dev, "gpunn_read_idx", path, gpunn__idx_body, out);
}

/* {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } in any order. */
static bool gpunn__npy_header(gpunn__json *j, gpunn__slice *type, bool *fortran, int *rank, int64_t *dim)
{
    int types = 0, orders = 0, shapes = 0;
    if (!gpunn__json_expect(j, '{', "is no dictionary")) return false;
    while (!gpunn__json_peek(j, '}')) {
        gpunn__slice key;
        if (!gpunn__json_string(j, &key) || !gpunn__json_expect(j, ':', "lacks a colon")) return false;
        if (gpunn__slice_is(&key, "descr") && !types++) {
            if (gpunn__json_peek(j, '[')) return gpunn__json_fail(j, "has records, which no gpunn_array can hold");
            if (!gpunn__json_string(j, type)) return false;
        } else if (gpunn__slice_is(&key, "fortran_order") && !orders++) {
            *fortran = gpunn__json_peek(j, 'T');
            const char *word = *fortran ? "True" : "False";
            if ((size_t)(j->end - j->at) < strlen(word) || memcmp(j->at, word, strlen(word)) != 0)
                return gpunn__json_fail(j, "lacks True or False after fortran_order");
            j->at += strlen(word);
        } else if (gpunn__slice_is(&key, "shape") && !shapes++) {
            if (!gpunn__json_expect(j, '(', "lacks a shape")) return false;
            while (!gpunn__json_peek(j, ')')) {
                if (*rank == GPUNN_MAX_RANK) return gpunn__json_fail(j, "has more than 8 dimensions");
                if (!gpunn__json_integer(j, &dim[(*rank)++])) return false;
                (void)gpunn__json_take(j, 'L'); /* Python 2's */
                if (!gpunn__json_take(j, ',') && !gpunn__json_peek(j, ')')) return gpunn__json_fail(j, "has a shape without end");
            }
            j->at++;
        } else
            return gpunn__json_fail(j, "has a key other than descr, fortran_order and shape, or one of them twice");
        if (!gpunn__json_take(j, ',') && !gpunn__json_peek(j, '}')) return gpunn__json_fail(j, "has no end");
    }
    j->at++;
    (void)gpunn__json_peek(j, 0);
    if (j->at != j->end) return gpunn__json_fail(j, "goes on after its end");
    return (types && orders && shapes) || gpunn__json_fail(j, "lacks descr, fortran_order or shape");
}

/* The elements, whose first dimension varies fastest in the file, to their places in row-major order. */
static gpunn_status gpunn__npy_fortran(gpunn__reader *r, const gpunn__encoding *encoding, bool swapped, gpunn_array *out)
{
    unsigned char chunk[8192];
    size_t        wide = gpunn_dtype_size(out->dtype), left = gpunn__array_count(out), stride[GPUNN_MAX_RANK], at = 0;
    int64_t       index[GPUNN_MAX_RANK] = {0};
    for (int i = out->rank - 1; i >= 0; i--) stride[i] = i == out->rank - 1 ? 1 : stride[i + 1] * (size_t)out->dim[i + 1];
    while (left > 0) {
        size_t       part = left < sizeof chunk / wide ? left : sizeof chunk / wide;
        gpunn_status status = gpunn__read_elements(r, encoding, swapped, part, chunk);
        if (status != GPUNN_OK) return status;
        for (size_t k = 0; k < part; k++) {
            memcpy((char *)out->data + at * wide, chunk + k * wide, wide);
            for (int i = 0; i < out->rank; i++) {
                at += stride[i];
                if (++index[i] < out->dim[i]) break;
                at -= stride[i] * (size_t)out->dim[i];
                index[i] = 0;
            }
        }
        left -= part;
    }
    return GPUNN_OK;
}

/* "\x93NUMPY", version, length of the header (2 bytes, from version 2 on 4), the header (numpy.lib.format). */
static gpunn_status gpunn__npy_body(gpunn__reader *r, gpunn_array *out)
{
    char          header[16384], shown[128];
    unsigned char head[12] = {0};
    const char   *path = gpunn__tail(r->path);
    gpunn_status  status = gpunn__reader_read(r, head, 10);
    if (status == GPUNN_OK && memcmp(head, "\x93NUMPY", 6) == 0 && head[6] > 1) status = gpunn__reader_read(r, head + 10, 2);
    if (status != GPUNN_OK) return status;
    uint32_t length = (uint32_t)head[8] | (uint32_t)head[9] << 8 | (uint32_t)head[10] << 16 | (uint32_t)head[11] << 24;
    if (memcmp(head, "\x93NUMPY", 6) != 0 || head[6] < 1 || head[6] > 3 || length > sizeof header)
        return gpunn__fail(r->dev, GPUNN_ERR_FORMAT, "'%s' is no .npy file of version 1 to 3; write it with numpy.save", path);
    status = gpunn__reader_read(r, header, length);
    if (status != GPUNN_OK) return status;

    gpunn__json  json = gpunn__json_of(header, length, true);
    gpunn__slice type = {header, 0};
    int64_t      dim[GPUNN_MAX_RANK];
    int          rank = 0;
    bool         fortran = false;
    if (!gpunn__npy_header(&json, &type, &fortran, &rank, dim))
        return gpunn__fail(r->dev, GPUNN_ERR_FORMAT, "'%s' is damaged: its header %s; write it again with numpy.save", path,
                           json.problem);
    const gpunn__encoding *encoding = NULL;
    for (int i = 0; i < GPUNN__ENCODING_COUNT; i++) {
        const gpunn__encoding *e = &gpunn__encodings[i];
        if (e->dtype && *e->npy && type.length == 3 && memcmp(type.at + 1, e->npy, 2) == 0) encoding = e;
    }
    if (encoding == NULL || strchr("<>=|", *type.at) == NULL)
        return gpunn__fail(r->dev, GPUNN_ERR_UNSUPPORTED, "'%s' has elements of type '%s'; convert it in Python: x.astype('f4')",
                           path, gpunn__printable(&type, shown));
    status = gpunn__array_alloc(r, encoding, rank, dim, out);
    if (status != GPUNN_OK) return status;
    bool swapped = *type.at == '>';
    return fortran ? gpunn__npy_fortran(r, encoding, swapped, out)
                   : gpunn__read_elements(r, encoding, swapped, gpunn__array_count(out), out->data);
}

GPUNN_API gpunn_status gpunn_read_npy(gpunn_device *dev, const char *path, gpunn_array *out)
{
    return gpunn__array_read(dev, "gpunn_read_npy", path, gpunn__npy_body, out);
}

GPUNN_API gpunn_status gpunn_write_npy(gpunn_device *dev, const char *path, const gpunn_array *array)
{
    static const char        function[] = "gpunn_write_npy";
    static const char *const names[] = {"",
#define GPUNN__X(id, text, file_name, bytes) file_name,
                                        GPUNN_DTYPE_LIST(GPUNN__X)
#undef GPUNN__X
    };
    if (dev == NULL || array == NULL || array->data == NULL)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: the %s is NULL", function, dev == NULL ? "device" : "array or its data");
    const char *type = "";
    size_t      bytes = gpunn_dtype_size(array->dtype);
    for (int i = 0; i < GPUNN__ENCODING_COUNT && bytes; i++)
        if (strcmp(gpunn__encodings[i].safetensors, names[array->dtype]) == 0) type = gpunn__encodings[i].npy;
    if (*type == 0)
        return gpunn__fail(dev, GPUNN_ERR_DTYPE, "%s: .npy files have no type for dtype %d; convert the array", function,
                           (int)array->dtype);
    if (array->rank < 0 || array->rank > GPUNN_MAX_RANK)
        return gpunn__fail(dev, GPUNN_ERR_SHAPE, "%s: the rank is %d; it must be 0 to 8", function, array->rank);
    char text[320] = "\x93NUMPY\1"; /* 10 bytes, then the header: 8 dimensions of up to 20 characters, and the rest */
    int  room = (int)sizeof text,
        used = 10 + snprintf(text + 10, sizeof text - 10, "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                             bytes > 1 ? '<' : '|', type);
    bool fits = true;
    for (int i = 0; i < array->rank; i++) {
        fits = fits && array->dim[i] > 0 && (uint64_t)array->dim[i] <= SIZE_MAX &&
               gpunn__mul(bytes, (size_t)array->dim[i], &bytes);
        used += snprintf(text + used, (size_t)(room - used), "%lld%s", (long long)array->dim[i],
                         i + 1 < array->rank || i == 0 ? ", " : "");
    }
    if (!fits || bytes != array->bytes)
        return gpunn__fail(dev, GPUNN_ERR_SHAPE,
                           "%s: bytes is %zu, which is not what dtype %s and the dimensions take; correct it", function,
                           array->bytes, gpunn_dtype_name(array->dtype));
    used += snprintf(text + used, (size_t)(room - used), "), }");
    int end = (used + 1 + 63) / 64 * 64; /* the elements begin at a multiple of 64, after spaces and a line's end */
    memset(text + used, ' ', (size_t)(end - used));
    text[end - 1] = '\n';
    text[8] = (char)((end - 10) & 255);
    text[9] = (char)((end - 10) >> 8);
    gpunn__file  file;
    gpunn_status status = gpunn__file_open(dev, path, &file);
    if (status != GPUNN_OK) return status;
    (void)gpunn__file_write(&file, text, (size_t)end);
    (void)gpunn__file_write(&file, array->data, bytes);
    return gpunn__file_commit(&file);
}

/* Makes room in an array of n items of that many bytes for one more. */
static gpunn_status gpunn__array_grow(gpunn_device *dev, gpunn_array *array, size_t n, size_t item)
{
    size_t wanted = n ? 2 * n : 1024, bytes;
    if ((n + 1) * item <= array->bytes) return GPUNN_OK;
    if (!gpunn__mul(wanted, item, &bytes)) return gpunn__fail(dev, GPUNN_ERR_MEMORY, "gpunn_read_cifar: the files are too large");
    void *data = gpunn__realloc(dev, array->data, array->bytes, bytes);
    if (data == NULL) return GPUNN_ERR_MEMORY;
    array->data = data;
    array->bytes = bytes;
    return GPUNN_OK;
}

/* Appends the records of one file: for 100 classes a coarse label, which is skipped; a label; 3072 bytes of image. */
static gpunn_status gpunn__cifar_file(gpunn_device *dev, const char *path, int classes, gpunn_array *images, gpunn_array *labels,
                                      size_t *n)
{
    enum { IMAGE = 3 * 32 * 32 };
    unsigned char record[IMAGE + 2];
    size_t        labels_bytes = classes == 100 ? 2 : 1, record_bytes = IMAGE + labels_bytes, got = 0, first = *n;
    gpunn__reader r;
    gpunn_status  status = gpunn__reader_open(dev, path, true, &r);
    if (status != GPUNN_OK) return status;
    for (;;) {
        status = gpunn__reader_some(&r, record, record_bytes, &got);
        if (status != GPUNN_OK || got == 0) break;
        int label = record[labels_bytes - 1];
        if (got < record_bytes)
            status = gpunn__fail(dev, GPUNN_ERR_FORMAT,
                                 "'%s' is cut short or not of %d classes: its size is no multiple of %zu; download it again",
                                 gpunn__tail(path), classes, record_bytes);
        else if (label >= classes)
            status = gpunn__fail(dev, GPUNN_ERR_FORMAT,
                                 "'%s' is damaged or not of %d classes: image %zu has the label %d; download it again",
                                 gpunn__tail(path), classes, *n - first, label);
        if (status != GPUNN_OK) break;
        status = gpunn__array_grow(dev, images, *n, IMAGE);
        if (status == GPUNN_OK) status = gpunn__array_grow(dev, labels, *n, 1);
        if (status != GPUNN_OK) break;
        memcpy((char *)images->data + *n * IMAGE, record + labels_bytes, IMAGE);
        ((unsigned char *)labels->data)[(*n)++] = (unsigned char)label;
    }
    gpunn__reader_close(&r);
    if (status == GPUNN_OK && *n == first)
        status = gpunn__fail(dev, GPUNN_ERR_FORMAT, "'%s' is empty; download it again", gpunn__tail(path));
    return status;
}

GPUNN_API gpunn_status gpunn_read_cifar(gpunn_device *dev, const char *const *paths, int path_count, int classes,
                                        gpunn_array *images, gpunn_array *labels)
{
    static const char function[] = "gpunn_read_cifar";
    gpunn_status      status = gpunn__array_begin(dev, function, paths != NULL && labels != NULL, images);
    if (status != GPUNN_OK) return status;
    memset(labels, 0, sizeof *labels);
    if (path_count < 1 || (classes != 10 && classes != 100))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: path_count is %d and classes %d; give at least one path, and 10 or 100 classes", function,
                           path_count, classes);
    size_t n = 0;
    for (int i = 0; i < path_count && status == GPUNN_OK; i++)
        status = gpunn__cifar_file(dev, paths[i], classes, images, labels, &n);
    gpunn_array *arrays[2] = {images, labels};
    for (int i = 0; i < 2 && status == GPUNN_OK; i++) { /* to size */
        static const int64_t dim[4] = {0, 3, 32, 32};
        gpunn_array         *a = arrays[i];
        size_t               bytes = n * (i ? 1 : 3 * 32 * 32);
        void                *data = gpunn__realloc(dev, a->data, a->bytes, bytes);
        if (data == NULL) {
            status = GPUNN_ERR_MEMORY;
            break;
        }
        a->data = data;
        a->bytes = bytes;
        a->dtype = GPUNN_U8;
        a->rank = i ? 1 : 4;
        memcpy(a->dim, dim, sizeof dim);
        a->dim[0] = (int64_t)n;
        if (i) a->dim[1] = a->dim[2] = a->dim[3] = 0;
    }
    if (status != GPUNN_OK) {
        gpunn_array_free(dev, images);
        gpunn_array_free(dev, labels);
    }
    return status;
}

/* ---- safetensors files of arrays ------------------------------------------------------------------------------------- */
GPUNN_API gpunn_status gpunn_read_safetensors(gpunn_device *dev, const char *path, const char *name, gpunn_array *out)
{
    static const char function[] = "gpunn_read_safetensors";
    gpunn__archive    archive;
    gpunn_status      status = gpunn__array_begin(dev, function, path != NULL, out);
    if (status == GPUNN_OK) status = gpunn__archive_open(dev, path, &archive);
    if (status != GPUNN_OK) return status;
    char          shown[128];
    gpunn__entry *item = name                         ? gpunn__table_find(&archive.tensors, "", name)
                         : archive.tensors.count == 1 ? archive.tensors.items
                                                      : NULL;
    gpunn__expr_quote(shown, sizeof shown, name ? name : "", SIZE_MAX);
    if (item == NULL)
        status = name ? gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: '%s' holds no tensor '%s'; check the name", function,
                                    gpunn__tail(path), shown)
                      : gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: '%s' holds %d tensors; name one", function, gpunn__tail(path),
                                    archive.tensors.count);
    else if (item->encoding == NULL || item->encoding->dtype == GPUNN_DTYPE_DEFAULT || item->rank > GPUNN_MAX_RANK)
        status = gpunn__fail(dev, GPUNN_ERR_UNSUPPORTED,
                             "%s: in '%s' the tensor '%s' is of type %s and rank %d; convert it to F32 or I64 of rank 8 at most",
                             function, gpunn__tail(path), gpunn__printable(&item->name, shown),
                             item->encoding ? item->encoding->safetensors : "unknown here", item->rank);
    if (status == GPUNN_OK) status = gpunn__array_alloc(&archive.reader, item->encoding, item->rank, item->dim, out);
    if (status == GPUNN_OK) {
        item->to = out->data;
        status = gpunn__archive_read(&archive);
    }
    gpunn__archive_close(&archive);
    if (status != GPUNN_OK) gpunn_array_free(dev, out);
    return status;
}

typedef struct gpunn__named_arrays {
    const char *const *names;
    const gpunn_array *arrays;
    int                count;
} gpunn__named_arrays;

static void gpunn__emit_arrays(gpunn__writer *w, gpunn__pass pass, const void *what)
{
    const gpunn__named_arrays *all = (const gpunn__named_arrays *)what;
    gpunn__emit_begin(w, pass, NULL);
    for (int i = 0; i < all->count; i++) {
        const gpunn_array *array = &all->arrays[i];
        if (pass == GPUNN__TENSORS)
            (void)gpunn__file_write(w->file, array->data, array->bytes);
        else
            gpunn__emit_entry(w, "", all->names[i], array->dtype, array->rank, array->dim, array->bytes);
    }
    if (pass != GPUNN__TENSORS) gpunn__emit(w, "}", 1);
}

GPUNN_API gpunn_status gpunn_write_safetensors(gpunn_device *dev, const char *path, const char *const *names,
                                               const gpunn_array *arrays, int count)
{
    static const char function[] = "gpunn_write_safetensors";
    if (dev == NULL || count < 0 || (count > 0 && (names == NULL || arrays == NULL)))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: %s", function,
                           dev == NULL ? "the device is NULL" : "count is negative, or names or arrays is NULL");
    for (int i = 0; i < count; i++) {
        const gpunn_array *array = &arrays[i];
        size_t             bytes = gpunn_dtype_size(array->dtype);
        bool               sound = names[i] && *names[i] && strcmp(names[i], "__metadata__") != 0, fits = bytes > 0;
        for (int k = 0; k < i && sound; k++) sound = strcmp(names[k], names[i]) != 0;
        if (!sound)
            return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                               "%s: name %d is missing, \"__metadata__\" or the same as one before; choose another", function, i);
        for (int k = 0; k < array->rank && fits; k++)
            fits = array->dim[k] > 0 && (uint64_t)array->dim[k] <= SIZE_MAX && gpunn__mul(bytes, (size_t)array->dim[k], &bytes);
        if (!fits || array->rank < 0 || array->rank > GPUNN_MAX_RANK || bytes != array->bytes || array->data == NULL)
            return gpunn__fail(dev, GPUNN_ERR_SHAPE,
                               "%s: '%.120s' has no data, or a dtype, rank, dimensions and bytes that do not agree; correct it",
                               function, names[i]);
    }
    gpunn__named_arrays all = {names, arrays, count};
    return gpunn__archive_write(dev, path, gpunn__emit_arrays, &all);
}
/* ==== >>fit_loop ====================================================================================================== */
static double gpunn__seconds(void)
{
#if defined(_WIN32)
    LARGE_INTEGER ticks, frequency;
    (void)QueryPerformanceCounter(&ticks);
    (void)QueryPerformanceFrequency(&frequency);
    return (double)ticks.QuadPart / (double)frequency.QuadPart;
#elif defined(CLOCK_MONOTONIC)
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
#else /* hidden by -std=c99 */
    struct timeval now;
    (void)gettimeofday(&now, NULL);
    return (double)now.tv_sec + 1e-6 * (double)now.tv_usec;
#endif
}

/* ---- averages -------------------------------------------------------------------------------------------------------- */
/* Sums over batches, weighted by their samples: a last batch that is smaller counts less. */
/* Backends that execute whole runs are not waited for after each batch: what they computed collects in their memory. */
enum { GPUNN__LOGGED = 256 };
typedef struct gpunn__mean {
    double        loss, metric, samples;
    float         last_loss;
    gpunn_device *dev;
    float        *log; /* backend memory: loss and metric of each batch that waits */
    int           waiting, waiting_samples[GPUNN__LOGGED];
} gpunn__mean;

static void gpunn__mean_count(gpunn__mean *mean, float loss, float metric, int samples)
{
    mean->last_loss = loss;
    mean->loss += (double)loss * samples;
    mean->metric += (double)metric * samples;
    mean->samples += samples;
}

/* Counts the batches that wait. */
static gpunn_status gpunn__mean_settle(gpunn__mean *mean)
{
    float values[2 * GPUNN__LOGGED];
    if (mean->waiting == 0) return GPUNN_OK;
    gpunn_status status = mean->dev->backend->download(mean->dev->context, values, mean->log,
                                                       (size_t)mean->waiting * 2 * sizeof *values);
    if (status != GPUNN_OK) return gpunn__backend_fail(mean->dev, "reading the loss", status);
    for (int i = 0; i < mean->waiting; i++) gpunn__mean_count(mean, values[2 * i], values[2 * i + 1], mean->waiting_samples[i]);
    mean->waiting = 0;
    return GPUNN_OK;
}

static gpunn_status gpunn__mean_log(gpunn__mean *mean, gpunn_tensor *t, int column)
{
    size_t      bytes;
    const void *memory = gpunn__memory_of(t, false, &bytes);
    if (memory == NULL) return mean->dev->error.status;
    gpunn_status status = mean->dev->backend->convert(mean->dev->context, mean->log + 2 * mean->waiting + column, GPUNN_F32,
                                                      memory, gpunn__stored_as(t, false), 1);
    return status == GPUNN_OK ? GPUNN_OK : gpunn__backend_fail(mean->dev, "keeping the loss", status);
}

/* Adds what the last run computed for a batch; metric may be NULL. */
static gpunn_status gpunn__mean_add(gpunn__mean *mean, gpunn_tensor *loss, gpunn_tensor *metric, int samples)
{
    gpunn_status status;
    mean->dev = loss->model->dev;
    if (mean->dev->backend->execute == NULL) {
        float loss_value, metric_value = 0;
        status = gpunn_read(loss, &loss_value, sizeof loss_value);
        if (status == GPUNN_OK && metric) status = gpunn_read(metric, &metric_value, sizeof metric_value);
        if (status == GPUNN_OK) gpunn__mean_count(mean, loss_value, metric_value, samples);
        return status;
    }
    if (mean->log == NULL) mean->log = (float *)gpunn__device_alloc(mean->dev, 2 * GPUNN__LOGGED * sizeof *mean->log);
    if (mean->log == NULL) return mean->dev->error.status;
    status = gpunn__mean_log(mean, loss, 0);
    if (status == GPUNN_OK) status = gpunn__mean_log(mean, metric ? metric : loss, 1);
    mean->waiting_samples[mean->waiting] = samples;
    mean->waiting += status == GPUNN_OK;
    return status == GPUNN_OK && mean->waiting == GPUNN__LOGGED ? gpunn__mean_settle(mean) : status;
}

/* After the last batch. */
static gpunn_status gpunn__mean_end(gpunn__mean *mean)
{
    gpunn_status status = gpunn__mean_settle(mean);
    if (mean->log) gpunn__device_free(mean->dev, mean->log, 2 * GPUNN__LOGGED * sizeof *mean->log);
    mean->log = NULL;
    return status;
}

static void gpunn__mean_get(const gpunn__mean *mean, const gpunn_tensor *metric, float *loss_mean, float *metric_mean)
{
    *loss_mean = mean->samples > 0 ? (float)(mean->loss / mean->samples) : NAN;
    *metric_mean = mean->samples > 0 && metric ? (float)(mean->metric / mean->samples) : NAN;
}

/* Whether t, called `what` in messages, is one F32 number of that model. */
static gpunn_status gpunn__check_number(const gpunn_model *model, const gpunn_tensor *t, const char *function, const char *what)
{
    char text[128];
    if (t->model != model)
        return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT, "%s: the %s is of another model than the loader", function, what);
    if (t->dtype != GPUNN_F32 || gpunn__count(t, 1) != 1 || gpunn__count(t, 2) != 1)
        return gpunn__fail(model->dev, GPUNN_ERR_SHAPE,
                           "%s: the %s is %s %s; it must be one f32 number: reduce it with gpunn_mean or gpunn_sum", function,
                           what, gpunn_dtype_name(t->dtype), gpunn__shape_text(t, text));
    return GPUNN_OK;
}

GPUNN_API gpunn_status gpunn_evaluate(gpunn_loader *loader, gpunn_tensor *loss, gpunn_tensor *metric, float *loss_mean,
                                      float *metric_mean)
{
    static const char function[] = "gpunn_evaluate";
    if (loader == NULL || loss == NULL)
        return gpunn__fail(loader ? loader->model->dev
                           : loss ? loss->model->dev
                                  : NULL,
                           GPUNN_ERR_ARGUMENT, "%s: the %s is NULL", function, loader ? "loss" : "loader");
    gpunn_status status = gpunn__check_number(loader->model, loss, function, "loss");
    if (status == GPUNN_OK && metric) status = gpunn__check_number(loader->model, metric, function, "metric");
    if (status != GPUNN_OK) return status;
    gpunn_tensor *outputs[2];
    outputs[0] = loss;
    outputs[1] = metric;
    gpunn__mean mean;
    int64_t     batch = 0;
    memset(&mean, 0, sizeof mean);
    if (loader->position) gpunn_loader_rewind(loader);
    for (; status == GPUNN_OK && gpunn_next(loader); batch++) {
        status = gpunn_forward(outputs, metric ? 2 : 1);
        if (status == GPUNN_OK) status = gpunn__mean_add(&mean, loss, metric, gpunn_loader_batch_size(loader));
    }
    if (status == GPUNN_OK && batch < gpunn_loader_batches(loader)) status = gpunn_last_status(loader->model->dev);
    gpunn_status ended = gpunn__mean_end(&mean);
    if (status == GPUNN_OK) status = ended;
    float means[2];
    gpunn__mean_get(&mean, metric, &means[0], &means[1]);
    if (status == GPUNN_OK && loss_mean) *loss_mean = means[0];
    if (status == GPUNN_OK && metric_mean) *metric_mean = means[1];
    return status;
}

/* ---- history --------------------------------------------------------------------------------------------------------- */
enum { GPUNN__CURVES = 4 }; /* train loss, train metric, validation loss, validation metric; NaN where there is none */

typedef struct gpunn__epoch {
    float  value[GPUNN__CURVES], lr;
    double seconds;
} gpunn__epoch;

static void gpunn__print(gpunn__file *f, const char *format, ...) GPUNN__PRINTF(2, 3);
static void gpunn__print(gpunn__file *f, const char *format, ...)
{
    char    text[512];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (length > 0) (void)gpunn__file_write(f, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
}

/* "%.{digits}g" with a point whatever the locale; "" for NaN and infinities. */
static const char *gpunn__number(char text[32], double value, int digits)
{
    char local[40], *out = text;
    (void)snprintf(local, sizeof local, "%.*g", digits, value);
    for (const char *in = local; *in && isfinite(value); in++) {
        bool plain = strchr("0123456789+-e", *in) != NULL;
        if (plain || out == text || out[-1] != '.') *out++ = plain ? *in : '.'; /* a locale's separator may be several bytes */
    }
    *out = 0;
    return text;
}

static gpunn_status gpunn__write_csv(gpunn_device *dev, const char *path, const gpunn__epoch *epochs, int count)
{
    gpunn__file  file;
    gpunn_status status = gpunn__file_open(dev, path, &file);
    if (status != GPUNN_OK) return status;
    gpunn__print(&file, "epoch,train_loss,train_metric,validation_loss,validation_metric,lr,seconds\n");
    for (int i = 0; i < count; i++) {
        char text[32];
        gpunn__print(&file, "%d,", i + 1);
        for (int c = 0; c < GPUNN__CURVES; c++) gpunn__print(&file, "%s,", gpunn__number(text, (double)epochs[i].value[c], 7));
        gpunn__print(&file, "%s,", gpunn__number(text, (double)epochs[i].lr, 7));
        gpunn__print(&file, "%s\n", gpunn__number(text, epochs[i].seconds, 6));
    }
    return gpunn__file_commit(&file);
}

/* The distance between at most about `most` round ticks over span > 0. */
static double gpunn__tick(double span, int most)
{
    double power = pow(10, floor(log10(span / most))), digit = span / most / power;
    return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

/* One panel of the drawing; all lengths in tenths of a pixel, so that coordinates are whole numbers in every locale. The two
 * curves are value[kind] and value[kind + 2]. */
static void gpunn__svg_panel(gpunn__file *f, int left, const char *title, const gpunn__epoch *epochs, int count, int kind)
{
    static const char *const names[] = {"train", "validation"};
    const double             x0 = left + 700, x1 = left + 4400, y0 = 3050, y1 = 620;
    double                   low = INFINITY, high = -INFINITY;
    char                     text[32];
    for (int i = 0; i < count; i++)
        for (int c = kind; c < GPUNN__CURVES; c += 2) {
            double value = (double)epochs[i].value[c];
            if (isfinite(value) && value < low) low = value;
            if (isfinite(value) && value > high) high = value;
        }
    if (low > high) low = 0, high = 1;
    double margin = high > low ? 0 : low != 0 ? fabs(low) / 10 : 1;
    double step = gpunn__tick(high - low + 2 * margin, 5);
    low = floor((low - margin) / step) * step;
    high = ceil((high + margin) / step) * step;
    int last = count > 2 ? count : 2, every = (int)ceil(gpunn__tick(last - 1, 8));
    gpunn__print(f, "<text class=\"title\" x=\"%.0f\" y=\"360\">%s</text>\n", x0, title);
    for (int i = 0; i <= (int)floor((high - low) / step + 0.5); i++) {
        double value = low + i * step, y = y0 + (y1 - y0) * i * step / (high - low);
        gpunn__print(f, "<path class=\"grid\" d=\"M%.0f %.0fH%.0f\"/><text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">%s</text>\n",
                     x0, y, x1, x0 - 80, y + 40, gpunn__number(text, fabs(value) < step / 2 ? 0 : value, 5));
    }
    for (int epoch = every; epoch <= last; epoch += every)
        gpunn__print(f, "<text x=\"%.0f\" y=\"3230\" text-anchor=\"middle\">%d</text>\n",
                     x0 + (x1 - x0) * (epoch - 1) / (last - 1), epoch);
    gpunn__print(f, "<text x=\"%.0f\" y=\"3430\" text-anchor=\"middle\">epoch</text>\n", (x0 + x1) / 2);
    double key = x1;
    for (int c = kind + 2; c >= kind; c -= 2) { /* training last: on top, and first in the key, which grows to the left */
        const char *name = names[c / 2];
        double      x = 0, y = 0, value = NAN;
        bool        drawn = false, line = false;
        for (int i = 0; i < count; i++) {
            bool there = isfinite(epochs[i].value[c]);
            if (there) {
                value = (double)epochs[i].value[c];
                x = x0 + (x1 - x0) * i / (last - 1);
                y = y0 + (y1 - y0) * (value - low) / (high - low);
                if (!line) gpunn__print(f, "%s", drawn ? "M" : "<path class=\"curve ");
                if (!line && !drawn) gpunn__print(f, "%s\" d=\"M", name);
                gpunn__print(f, "%s%.0f %.0f", line ? "L" : "", x, y);
                drawn = true;
            }
            line = there;
        }
        if (!drawn) continue;
        gpunn__print(f, "\"/><path class=\"curve end %s\" d=\"M%.0f %.0fh0\"/>\n", name, x, y);
        double width = c < 2 ? 1280 : 1600;
        key -= width;
        gpunn__print(f, "<path class=\"curve %s\" d=\"M%.0f 320h220\"/><text x=\"%.0f\" y=\"360\">%s %s</text>\n", name, key,
                     key + 280, name, gpunn__number(text, value, 4));
    }
}

static gpunn_status gpunn__write_svg(gpunn_device *dev, const char *path, const gpunn__epoch *epochs, int count, bool metric)
{
    gpunn__file  file;
    gpunn_status status = gpunn__file_open(dev, path, &file);
    if (status != GPUNN_OK) return status;
    int width = metric ? 9400 : 4700;
    gpunn__print(&file, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"360\" viewBox=\"0 0 %d 3600\">\n",
                 width / 10, width);
    gpunn__print(&file, "<title>Training history, %d epoch%s</title>\n<style>\n", count, count == 1 ? "" : "s");
    gpunn__print(&file,
                 "text{fill:#59636e;font:120px system-ui,sans-serif}.title{fill:#1f2328;font-size:150px;font-weight:600}\n"
                 ".curve{fill:none;stroke-width:20;stroke-linejoin:round;stroke-linecap:round}.end{stroke-width:70}\n"
                 ".page{fill:#fff}.grid{stroke:#d1d9e0;stroke-width:8}.train{stroke:#0969da}.validation{stroke:#d4570b}\n");
    gpunn__print(&file, "@media(prefers-color-scheme:dark){text{fill:#9198a1}.title{fill:#f0f6fc}\n"
                        ".page{fill:#0d1117}.grid{stroke:#2f353d}.train{stroke:#58a6ff}.validation{stroke:#f0883e}}\n</style>\n");
    gpunn__print(&file, "<rect class=\"page\" width=\"100%%\" height=\"100%%\"/>\n");
    gpunn__svg_panel(&file, 0, "Loss", epochs, count, 0);
    if (metric) gpunn__svg_panel(&file, 4700, "Metric", epochs, count, 1);
    gpunn__print(&file, "</svg>\n");
    return gpunn__file_commit(&file);
}

/* ---- the loop -------------------------------------------------------------------------------------------------------- */
typedef struct gpunn__fit {
    gpunn_device         *dev;
    gpunn_optimizer      *opt;
    const gpunn_fit_args *args;
    gpunn_progress        progress;
    double                began;
    gpunn__epoch         *history; /* NULL: no file wants it */
    float                 best;    /* validation loss, or training loss without validation */
    int                   epochs_without_better;
} gpunn__fit;

static gpunn_status gpunn__fit_report(gpunn__fit *fit)
{
    gpunn_progress *p = &fit->progress;
    p->seconds = gpunn__seconds() - fit->began;
    if (fit->args->on_progress == NULL || fit->args->on_progress(fit->args->user, p)) return GPUNN_OK;
    return gpunn__fail(fit->dev, GPUNN_ERR_CANCELLED, "gpunn_fit: on_progress cancelled it in epoch %d, after batch %lld of %lld",
                       p->epoch, (long long)p->batch, (long long)p->batches);
}

/* The batches that are left of the training loader's epoch. */
static gpunn_status gpunn__fit_batches(gpunn__fit *fit)
{
    const gpunn_fit_args *args = fit->args;
    gpunn_progress       *p = &fit->progress;
    gpunn__mean           mean;
    gpunn_status          status = GPUNN_OK;
    double                settled = 0;
    memset(&mean, 0, sizeof mean);
    if (args->train->position == args->train->batches)
        (void)gpunn_next(args->train); /* an epoch whose end nobody has asked for */
    p->batch = args->train->position;
    while (status == GPUNN_OK && gpunn_next(args->train)) {
        p->lr = gpunn_get_lr(fit->opt);
        p->batch++;
        status = gpunn_train_step(fit->opt, args->loss);
        if (status == GPUNN_OK) status = gpunn__mean_add(&mean, args->loss, args->metric, gpunn_loader_batch_size(args->train));
        bool due = p->batch == p->batches || (args->schedule_per_batch && fit->opt->schedule.type == GPUNN_SCHEDULE_PLATEAU) ||
                   (args->on_progress && gpunn__seconds() - settled > 0.05);
        if (status == GPUNN_OK && due) {
            status = gpunn__mean_settle(&mean);
            settled = gpunn__seconds();
        }
        if (status == GPUNN_OK && args->schedule_per_batch) status = gpunn_schedule_step(fit->opt, mean.last_loss);
        gpunn__mean_get(&mean, args->metric, &p->loss, &p->metric);
        if (status == GPUNN_OK) status = gpunn__fit_report(fit);
    }
    gpunn_status ended = gpunn__mean_end(&mean);
    if (status == GPUNN_OK && p->batch < p->batches) status = gpunn_last_status(fit->dev);
    if (status == GPUNN_OK) status = ended;
    return status == GPUNN_OK ? gpunn_synchronize(fit->dev) : status; /* a loss that was not finite is known now */
}

/* Validation, schedule, files. */
static gpunn_status gpunn__fit_epoch_end(gpunn__fit *fit)
{
    const gpunn_fit_args *args = fit->args;
    gpunn_progress       *p = &fit->progress;
    gpunn_status          status = GPUNN_OK;
    if (args->validation)
        status = gpunn_evaluate(args->validation, args->loss, args->metric, &p->validation_loss, &p->validation_metric);
    float watched = args->validation ? p->validation_loss : p->loss;
    bool  better = watched < fit->best;
    if (status == GPUNN_OK && !args->schedule_per_batch) status = gpunn_schedule_step(fit->opt, watched);
    if (status != GPUNN_OK) return status;
    fit->best = better ? watched : fit->best;
    fit->epochs_without_better = better ? 0 : fit->epochs_without_better + 1;
    p->epoch_done = true;
    if (fit->history) {
        gpunn__epoch *row = &fit->history[p->epoch - 1];
        row->value[0] = p->loss;
        row->value[1] = p->metric;
        row->value[2] = p->validation_loss;
        row->value[3] = p->validation_metric;
        row->lr = p->lr;
        row->seconds = gpunn__seconds() - fit->began;
    }
    if (args->history_csv) status = gpunn__write_csv(fit->dev, args->history_csv, fit->history, p->epoch);
    if (status == GPUNN_OK && args->history_svg)
        status = gpunn__write_svg(fit->dev, args->history_svg, fit->history, p->epoch, args->metric != NULL);
    if (status == GPUNN_OK && args->best_weights && better) status = gpunn_save(fit->opt->model, args->best_weights);
    if (status == GPUNN_OK && args->checkpoint) status = gpunn_checkpoint_save(fit->opt, args->train, args->checkpoint);
    if (status != GPUNN_OK) return status;
    if (args->epochs_run) *args->epochs_run = p->epoch;
    return gpunn__fit_report(fit);
}

static gpunn_status gpunn__fit_check(gpunn_optimizer *opt, const gpunn_fit_args *args)
{
    static const char function[] = "gpunn_fit";
    gpunn_device     *dev = opt->model->dev;
    if (args->loss == NULL || args->train == NULL)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: %s is NULL; a builder failed before, or it was left out", function,
                           args->loss ? "train" : "loss");
    if (args->train->model != opt->model || (args->validation && args->validation->model != opt->model))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: the %s loader is of another model than the optimizer", function,
                           args->train->model != opt->model ? "train" : "validation");
    if (args->epochs < 1 || args->patience < 0)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: epochs is %d and patience %d; neither may be negative", function,
                           args->epochs, args->patience);
    gpunn_status status = gpunn__check_number(opt->model, args->loss, function, "loss");
    if (status == GPUNN_OK && args->metric) status = gpunn__check_number(opt->model, args->metric, function, "metric");
    return status == GPUNN_OK && args->metric && gpunn_keep(args->metric) == NULL ? gpunn_last_status(dev) : status;
}

GPUNN_API gpunn_status gpunn_fit_(gpunn_optimizer *opt, gpunn_fit_args args)
{
    if (args.epochs_run) *args.epochs_run = 0;
    if (opt == NULL) return gpunn__fail(NULL, GPUNN_ERR_ARGUMENT, "gpunn_fit: the optimizer is NULL");
    if (args.epochs == 0) args.epochs = 1;
    gpunn_status status = gpunn__fit_check(opt, &args);
    if (status != GPUNN_OK) return status;
    gpunn__fit fit;
    memset(&fit, 0, sizeof fit);
    fit.dev = opt->model->dev;
    fit.opt = opt;
    fit.args = &args;
    fit.best = INFINITY;
    gpunn_progress *p = &fit.progress;
    p->epochs = args.epochs;
    p->batches = gpunn_loader_batches(args.train);
    p->validation_loss = p->validation_metric = NAN;
    size_t bytes = args.history_csv || args.history_svg ? (size_t)args.epochs * sizeof *fit.history : 0;
    if (bytes && (fit.history = (gpunn__epoch *)gpunn__realloc(fit.dev, NULL, 0, bytes)) == NULL) return GPUNN_ERR_MEMORY;
    if (args.history_csv)
        status = gpunn__write_csv(fit.dev, args.history_csv, fit.history, 0); /* a bad path shows before the work */
    bool stop = false;
    for (p->epoch = 1; status == GPUNN_OK && p->epoch <= p->epochs && !stop; p->epoch++) {
        fit.began = gpunn__seconds();
        p->epoch_done = false;
        status = gpunn__fit_batches(&fit);
        if (status == GPUNN_OK) status = gpunn__fit_epoch_end(&fit);
        stop = args.patience > 0 && fit.epochs_without_better >= args.patience;
    }
    gpunn__free(fit.dev, fit.history, bytes);
    return status;
}

/* ---- progress -------------------------------------------------------------------------------------------------------- */
/* Appends to a line; what does not fit is left out. */
static void gpunn__line_add(char *line, size_t size, const char *format, ...) GPUNN__PRINTF(3, 4);
static void gpunn__line_add(char *line, size_t size, const char *format, ...)
{
    size_t  used = strlen(line);
    va_list list;
    va_start(list, format);
    (void)vsnprintf(line + used, size - used, format, list);
    va_end(list);
}

/* Keeps no state: a batch is drawn when a tenth of a second ended in its share of the epoch's time so far. */
GPUNN_API bool gpunn_progress_bar(void *user, const gpunn_progress *progress)
{
    (void)user;
    const gpunn_progress *p = progress;
    double                share = p->batch > 0 ? p->seconds / (double)p->batch : 0;
    bool                  due = p->epoch_done || p->batch == 1 || floor(p->seconds * 10) > floor((p->seconds - share) * 10);
    if (!due) return true;
#ifdef _WIN32
    bool terminal = _isatty(2) != 0;
#else
    bool terminal = isatty(2) != 0;
#endif
    if (!terminal && !p->epoch_done) return true;
    char line[256] = "", bar[21] = "";
    for (int i = 0, done = (int)(p->batches > 0 ? 20 * p->batch / p->batches : 20); i < 20; i++)
        bar[i] = i < done ? '=' : i == done ? '>' : ' ';
    gpunn__line_add(line, sizeof line, "Epoch %d/%d ", p->epoch, p->epochs);
    if (terminal) gpunn__line_add(line, sizeof line, "[%s] ", bar);
    gpunn__line_add(line, sizeof line, "%lld/%lld loss %.4g", (long long)p->batch, (long long)p->batches, (double)p->loss);
    if (p->metric == p->metric) gpunn__line_add(line, sizeof line, " metric %.4f", (double)p->metric);
    if (p->epoch_done && p->validation_loss == p->validation_loss)
        gpunn__line_add(line, sizeof line, " validation loss %.4g", (double)p->validation_loss);
    if (p->epoch_done && p->validation_metric == p->validation_metric)
        gpunn__line_add(line, sizeof line, " metric %.4f", (double)p->validation_metric);
    if (!p->epoch_done) gpunn__line_add(line, sizeof line, " %.3g ms/batch", share * 1000);
    gpunn__line_add(line, sizeof line, " %.0fs", p->seconds);
    (void)fprintf(stderr, terminal ? p->epoch_done ? "\r%-79s\n" : "\r%-79s" : "%s\n", line);
    return true;
}

#ifdef GPUNN__SELDOM
#pragma GCC pop_options
#undef GPUNN__SELDOM
#endif

#ifdef __cplusplus
}
#endif
#endif /* GPUNN_IMPLEMENTATION */

/* ==== >>licence ======================================================================================================= *
 * This software is available under 2 licenses -- choose whichever you prefer.
 *
 * ALTERNATIVE A - MIT License
 * Copyright (c) 2026 The gpunn authors
 * Permission is hereby granted, free of charge, to any person obtaining a copy of
 * this software and associated documentation files (the "Software"), to deal in
 * the Software without restriction, including without limitation the rights to
 * use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies
 * of the Software, and to permit persons to whom the Software is furnished to do
 * so, subject to the following conditions:
 * The above copyright notice and this permission notice shall be included in all
 * copies or substantial portions of the Software.
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 * SOFTWARE.
 *
 * ALTERNATIVE B - Public Domain (www.unlicense.org)
 * This is free and unencumbered software released into the public domain.
 * Anyone is free to copy, modify, publish, use, compile, sell, or distribute this
 * software, either in source code form or as a compiled binary, for any purpose,
 * commercial or non-commercial, and by any means.
 * In jurisdictions that recognize copyright laws, the author or authors of this
 * software dedicate any and all copyright interest in the software to the public
 * domain. We make this dedication for the benefit of the public at large and to
 * the detriment of our heirs and successors. We intend this dedication to be an
 * overt act of relinquishment in perpetuity of all present and future rights to
 * this software under copyright law.
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN
 * ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION
 * WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 */
