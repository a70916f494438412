/* run_model.c - runs a model that is written in JSON: outputs, gradients, training, speed.
 *
 * Shows: gpunn_model_load, gpunn_spec_load, weights and tensors in safetensors files, gpunn_keep and
 *        gpunn_retain_grad, generated kernels.
 * Build: cc -O3 -march=native -I. examples/run_model.c -o run_model -lm
 *        nvcc -O3 -arch=native -I. examples/run_model.c gpunn_cuda.cu -o run_model    with the GPU
 *        cc ... -DKERNELS='"net_kernels.h"' -DKERNEL_SET=net_kernels -DNET_KERNELS_IMPLEMENTATION ...
 *            with its kernels
 * Run:   ./run_model MODEL.json --input X.safetensors --output Y.safetensors
 *        ./run_model MODEL.gpunn ...                        one file of the model with its weights
 *        ./run_model MODEL.onnx ...
 *            in the folder of gpunn, whose importer then writes MODEL.onnx.json and
 *            MODEL.onnx.safetensors
 *        --help explains all options
 * Expect: Y.safetensors holds the spec's outputs by their names; inputs are taken from X by theirs, and
 *         the batch and other sizes that vary from their shapes.
 * Time:  less than a second on two cores for the specs in examples/kernels.
 * Next:  generator/exchange/README.md brings models from PyTorch and ONNX; --bench 100 times one. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "options.h"

#ifdef KERNELS
#include KERNELS
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_ARRAYS = 4096 };

typedef struct arguments {
    const char *model, *weights, *input, *output, *grad;
    const char *failing; /* the option whose file is read, for messages */
    bool        train, inference;
    int         device, threads, steps, bench;
} arguments;

typedef struct results {
    int         count;
    char       *names[MAX_ARRAYS];
    gpunn_array arrays[MAX_ARRAYS];
} results;

#if defined(__GNUC__) && defined(__ELF__)
extern const gpunn_backend gpunn_emulator_backend __attribute__((weak));
#define EMULATOR (&gpunn_emulator_backend)
#else
#define EMULATOR ((const gpunn_backend *)NULL)
#endif

static void log_line(void *user, gpunn_log_level level, const char *message)
{
    (void)user;
    if (level != GPUNN_LOG_ERROR) fprintf(stderr, "run_model: %s\n", message);
}

static void parse(arguments *a, int argc, char **argv)
{
    const option known[] = {
        {"MODEL.json", "the spec, as generator/model.schema.json describes it, or MODEL.gpunn, or MODEL.onnx",
         .text = &a->model},
        {"--input X.safetensors", "tensors by the names of the model's inputs", .text = &a->input},
        {"--output Y.safetensors", "where the spec's outputs go, by their names", .text = &a->output,
         .written = true},
        {"--weights W.safetensors", "values of the parameters; default: initial ones", .text = &a->weights},
        {"--device auto|cpu|cuda|emulator", "where to run; emulator: where tests have linked one",
         .choice = &a->device},
        {"--threads N", "of the CPU; default: all processors", .number = &a->threads, .highest = 1024},
        {"--train", "outputs of a training pass: dropout drops, norms take the batch's statistics",
         .flag = &a->train},
        {"--inference", "only evaluates: weights are stored in the spec's 16 bits or blocks",
         .flag = &a->inference},
        {"--grad LOSS", "also grad.NAME of each parameter and input that the tensor LOSS depends on",
         .text = &a->grad},
        {"--steps N", "first trains N steps with the spec's loss and optimizer; also writes the weights",
         .number = &a->steps},
        {"--bench N", "last runs what was asked for N times more and prints the time of one",
         .number = &a->bench}};
    const size_t count = sizeof known / sizeof *known;
    options_read(known, count, argc, argv);
    if (!a->model || !a->input || !a->output)
        options_fail(argv[0], known, count, "MODEL.json, --input and --output are needed");
}

static bool ends_in(const char *path, const char *ending)
{
    const size_t length = strlen(path), end = strlen(ending);
    return length > end && strcmp(path + length - end, ending) == 0;
}

/* Has the importer write MODEL.onnx.json and MODEL.onnx.safetensors beside MODEL.onnx: MODEL.json may be of
 * another export. false: it said why not. */
static bool import_onnx(arguments *a)
{
    static char spec[FILENAME_MAX], weights[FILENAME_MAX], command[3 * FILENAME_MAX];
    if (!ends_in(a->model, ".onnx")) return true;
    if (strpbrk(a->model, "\"$`\\%!") || a->model[0] == '-' || strlen(a->model) > FILENAME_MAX - 16) {
        fprintf(stderr, "run_model: '%.80s' has characters that a shell would read; import it by hand\n",
                a->model);
        return false;
    }
    (void)snprintf(spec, sizeof spec, "%s.json", a->model);
    (void)snprintf(weights, sizeof weights, "%s.safetensors", a->model);
    (void)snprintf(command, sizeof command, "python3 -m generator.import_onnx \"%s\" -o \"%s\"", a->model,
                   a->model);
    if (system(command) != 0) return false;
    a->model = spec;
    if (!a->weights) a->weights = weights;
    return true;
}

/* --device: as gpunn_device_type counts, and one more. */
static gpunn_device *open_device(const arguments *a)
{
    const bool emulated = a->device > GPUNN_DEVICE_CUDA;
    if (emulated && EMULATOR == NULL) {
        fprintf(stderr, "run_model: no emulated GPU is linked with this program; use --device cpu\n");
        return NULL;
    }
    gpunn_device *dev = gpunn_device_open(.type = emulated ? GPUNN_DEVICE_AUTO : (gpunn_device_type)a->device,
                                          .threads = a->threads, .seed = 1, .log_fn = log_line,
                                          .backend = emulated ? EMULATOR : NULL);
    if (dev == NULL) fprintf(stderr, "run_model: %s\n", gpunn_error(NULL));
    return dev;
}

/* Such as "f32 [N, 3]": sizes that vary are N. */
static const char *form(char text[256], gpunn_dtype dtype, const int64_t *dim)
{
    int used = snprintf(text, 256, "%s [", gpunn_dtype_name(dtype));
    for (int i = 0; i < GPUNN_MAX_RANK && dim[i]; i++) {
        used += snprintf(text + used, 256 - (size_t)used, "%s", i ? ", " : "");
        used += dim[i] < 0 ? snprintf(text + used, 256 - (size_t)used, "N")
                           : snprintf(text + used, 256 - (size_t)used, "%lld", (long long)dim[i]);
    }
    (void)snprintf(text + used, 256 - (size_t)used, "]");
    return text;
}

/* Whether the array has the tensor's shape; what varies in that is taken from it. */
static bool fits(const gpunn_tensor *t, const gpunn_array *array)
{
    gpunn_shape shape = gpunn_tensor_shape(t);
    int         rank = 0;
    bool        same = array->dtype == gpunn_tensor_dtype(t);
    while (rank < GPUNN_MAX_RANK && shape.dim[rank]) rank++;
    for (int i = 0; i < rank && same; i++) same = shape.dim[i] < 0 || shape.dim[i] == array->dim[i];
    return same && array->rank == rank;
}

/* Inputs that the file does not have stay unwritten: a run that needs one says so. */
static gpunn_status write_inputs(gpunn_device *dev, gpunn_model *model, const char *path)
{
    gpunn_tensor *t;
    for (int i = 0; (t = gpunn_input_at(model, i)) != NULL; i++) {
        gpunn_array       array;
        const gpunn_dtype wide = gpunn_tensor_dtype(t) == GPUNN_F64 ? GPUNN_F64 : GPUNN_DTYPE_DEFAULT;
        gpunn_status      status = gpunn_read_safetensors_as(dev, path, gpunn_tensor_name(t), wide, &array);
        if (status == GPUNN_ERR_ARGUMENT) {
            gpunn_clear_error(dev);
            continue;
        }
        if (status != GPUNN_OK) return status;
        gpunn_shape shape = {{0}};
        memcpy(shape.dim, array.dim, (size_t)array.rank * sizeof *shape.dim);
        if (fits(t, &array))
            status = gpunn_write_shape(t, array.data, shape);
        else {
            char has[256], needs[256];
            fprintf(stderr, "run_model: --input: '%s' in '%s' is %s; the model needs %s\n",
                    gpunn_tensor_name(t), path, form(has, array.dtype, array.dim),
                    form(needs, gpunn_tensor_dtype(t), gpunn_tensor_shape(t).dim));
            status = GPUNN_ERR_SHAPE;
        }
        gpunn_array_free(dev, &array);
        if (status != GPUNN_OK) return status;
    }
    return GPUNN_OK;
}

/* After a run that lacked an input: which inputs the file does not have, and which names it has. */
static void tell_lacking(gpunn_device *dev, gpunn_model *model, const char *path)
{
    gpunn_tensor *t;
    for (int i = 0; (t = gpunn_input_at(model, i)) != NULL; i++) {
        gpunn_array array;
        gpunn_clear_error(dev);
        gpunn_status status = gpunn_read_safetensors(dev, path, gpunn_tensor_name(t), &array);
        if (status == GPUNN_OK) gpunn_array_free(dev, &array);
        if (status == GPUNN_ERR_ARGUMENT)
            fprintf(stderr, "run_model: --input lacks the model's input '%s': %s\n", gpunn_tensor_name(t),
                    gpunn_error(dev));
    }
}

/* Notes a value, or with prefix "grad." a gradient. What has no gradient is left out. */
static gpunn_status add(results *r, gpunn_device *dev, gpunn_tensor *t, const char *prefix)
{
    const char *name = gpunn_tensor_name(t);
    gpunn_shape shape = gpunn_tensor_sizes(t);
    gpunn_array array = {gpunn_tensor_dtype(t), 0, {0}, gpunn_dtype_size(gpunn_tensor_dtype(t)), NULL};
    for (; array.rank < GPUNN_MAX_RANK && shape.dim[array.rank]; array.rank++) {
        array.dim[array.rank] = shape.dim[array.rank];
        array.bytes *= (size_t)array.dim[array.rank];
    }
    size_t length = strlen(prefix) + strlen(name) + 1;
    char  *full = (char *)malloc(length);
    array.data = malloc(array.bytes);
    gpunn_status status = GPUNN_ERR_MEMORY;
    if (full && array.data && r->count < MAX_ARRAYS) {
        (void)snprintf(full, length, "%s%s", prefix, name);
        status = *prefix ? gpunn_read_grad(t, array.data, array.bytes)
                         : gpunn_read(t, array.data, array.bytes);
        if (status == GPUNN_OK) {
            r->names[r->count] = full;
            r->arrays[r->count++] = array;
            return GPUNN_OK;
        }
        if (*prefix && status == GPUNN_ERR_STATE) {
            gpunn_clear_error(dev);
            status = GPUNN_OK;
        }
    }
    free(full);
    free(array.data);
    return status;
}

static gpunn_status add_outputs(results *r, gpunn_device *dev, gpunn_model *model)
{
    gpunn_status  status = GPUNN_OK;
    gpunn_tensor *t;
    for (int i = 0; (t = gpunn_spec_output(model, i)) != NULL && status == GPUNN_OK; i++)
        status = add(r, dev, t, "");
    return status;
}

static gpunn_status forward(gpunn_model *model)
{
    gpunn_tensor *outputs[MAX_ARRAYS];
    int           count = 0;
    while (count < MAX_ARRAYS && (outputs[count] = gpunn_spec_output(model, count)) != NULL) count++;
    return gpunn_forward(outputs, count);
}

static gpunn_status backward(gpunn_model *model, gpunn_tensor *loss)
{
    gpunn_status status = gpunn_zero_grad(model);
    return status == GPUNN_OK ? gpunn_backward(loss) : status;
}

/* Since the first call: a double that counts from 1970 is too coarse for the runs of a small model. */
static double seconds(void)
{
#ifdef TIME_UTC
    static time_t   first;
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    if (first == 0) first = now.tv_sec;
    return (double)(now.tv_sec - first) + 1e-9 * (double)now.tv_nsec;
#else
    return (double)clock() / CLOCKS_PER_SEC; /* before C11: of all threads together */
#endif
}

/* What was asked for, again and again. */
static gpunn_status bench(const arguments *a, gpunn_device *dev, gpunn_model *model, gpunn_optimizer *opt,
                          gpunn_tensor *loss)
{
    double best = 1e30, sum = 0;
    for (int i = -2; i < a->bench; i++) { /* two runs to warm up */
        double       start = seconds();
        gpunn_status status = a->steps ? gpunn_train_step(opt, gpunn_spec_loss(model))
                              : loss   ? backward(model, loss)
                                       : forward(model);
        if (status == GPUNN_OK) status = gpunn_synchronize(dev);
        if (status != GPUNN_OK) return status;
        double took = seconds() - start;
        if (i < 0) continue;
        sum += took;
        if (took < best) best = took;
    }
    if (a->bench)
        printf("%s: best %.6f ms, mean %.6f ms of %d\n",
               a->steps ? "training step"
               : loss   ? "backward"
                        : "forward",
               1e3 * best, 1e3 * sum / a->bench, a->bench);
    return GPUNN_OK;
}

static gpunn_status run(arguments *a, gpunn_device *dev, gpunn_model *model, results *r)
{
    gpunn_status     status = GPUNN_OK;
    gpunn_optimizer *opt = NULL;
    gpunn_tensor *t, *loss = a->grad ? gpunn_find(model, a->grad) : a->train ? gpunn_spec_loss(model) : NULL;
    if ((a->grad || a->train) && loss == NULL) {
        fprintf(stderr,
                a->grad ? "run_model: the model has no tensor '%s'\n"
                        : "run_model: --train needs a spec with a \"loss\"%s\n",
                a->grad ? a->grad : "");
        return GPUNN_ERR_ARGUMENT;
    }
#ifdef KERNEL_SET
    if ((status = gpunn_use_kernels(model, &KERNEL_SET)) != GPUNN_OK) return status;
#endif
    a->failing = "--weights: ";
    if (a->weights && (status = gpunn_load(model, a->weights)) != GPUNN_OK) return status;
    a->failing = "--input: ";
    if ((status = write_inputs(dev, model, a->input)) != GPUNN_OK) return status;
    a->failing = "";
    for (int i = 0; a->grad && (t = gpunn_input_at(model, i)) != NULL; i++)
        if (gpunn_tensor_dtype(t) == GPUNN_F32 || gpunn_tensor_dtype(t) == GPUNN_F64)
            (void)gpunn_retain_grad(t);
    for (int i = 0; a->train && (t = gpunn_spec_output(model, i)) != NULL; i++) (void)gpunn_keep(t);
    if (a->steps) {
        if ((opt = gpunn_spec_optimizer(model)) == NULL) return gpunn_last_status(dev);
        for (int i = 1; i <= a->steps && status == GPUNN_OK; i++) {
            status = gpunn_train_step(opt, gpunn_spec_loss(model));
            if (status == GPUNN_OK)
                printf("step %d: loss %.9g\n", i, (double)gpunn_item(gpunn_spec_loss(model)));
        }
        for (int i = 0; i < gpunn_parameter_count(model) && status == GPUNN_OK; i++)
            status = add(r, dev, gpunn_parameter_at(model, i), "");
    }
    if (status == GPUNN_OK && !a->train) status = forward(model);
    if (status == GPUNN_OK && !a->train) status = add_outputs(r, dev, model);
    if (status == GPUNN_OK && loss) status = backward(model, loss);
    if (status == GPUNN_OK && a->train) status = add_outputs(r, dev, model);
    for (int i = 0; a->grad && i < gpunn_parameter_count(model) && status == GPUNN_OK; i++)
        status = add(r, dev, gpunn_parameter_at(model, i), "grad.");
    for (int i = 0; a->grad && (t = gpunn_input_at(model, i)) != NULL && status == GPUNN_OK; i++)
        status = add(r, dev, t, "grad.");
    if (status == GPUNN_OK)
        status = gpunn_write_safetensors(dev, a->output, (const char *const *)r->names, r->arrays, r->count);
    if (status == GPUNN_OK) status = bench(a, dev, model, opt, loss);
    gpunn_optimizer_destroy(opt);
    return status;
}

int main(int argc, char **argv)
{
    static results r;
    arguments      a = {.failing = ""};
    parse(&a, argc, argv);
    if (!import_onnx(&a)) return 1;
    gpunn_device *dev = open_device(&a);
    if (dev == NULL) return 1;
    gpunn_model *model = ends_in(a.model, ".gpunn") ? gpunn_model_load(dev, a.model, .inference = a.inference)
                                                    : gpunn_spec_load(dev, a.model, .inference = a.inference);
    gpunn_status status = model ? run(&a, dev, model, &r) : gpunn_last_status(dev);
    if (status != GPUNN_OK && gpunn_error(dev)[0])
        fprintf(stderr, "run_model: %s%s\n", a.failing, gpunn_error(dev));
    if (status == GPUNN_ERR_STATE) tell_lacking(dev, model, a.input);
    for (int i = 0; i < r.count; i++) {
        free(r.names[i]);
        free(r.arrays[i].data);
    }
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return status != GPUNN_OK;
}
