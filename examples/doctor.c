/* doctor.c - what there is on this machine to compute on, what is missing, and the line that builds for
 * it.
 *
 * Shows: gpunn_device_report, opening each device, one model on two devices, what a model takes of memory.
 * Build: cc -O3 -I. examples/doctor.c -o doctor -lm
 *        nvcc -O3 -arch=native -I. examples/doctor.c gpunn_cuda.cu -o doctor           with the GPU
 * Run:   ./doctor
 * Expect: a line for each part, a small model that gives the CPU's numbers on each GPU, and last what
 *         gpunn would choose. Exits with 1 when a GPU that is there does not work.
 * Time:  less than a second on two cores.
 * Next:  fashion_mnist.c trains on what was chosen; examples/guides/gpu.md says how to get what is
 *        missing. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef GPUNN_CBLAS
#define PRODUCTS "the system's CBLAS"
#else
#define PRODUCTS "itself"
#endif

enum { BATCH = 5, PIXELS = 12 * 12, CLASSES = 3 };

static void show(void *user, const char *text)
{
    (void)user;
    printf("%s", text);
}

static void log_line(void *user, gpunn_log_level level, const char *message)
{
    (void)user, (void)level;
    printf("              %s\n", message);
}

static bool exists(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file) fclose(file);
    return file != NULL;
}

/* root/rest, where there is such a file; root may be NULL. */
static bool found(char path[512], const char *root, const char *rest)
{
    int length = root && root[0] ? snprintf(path, 512, "%s/%s", root, rest) : 0;
    return length > 0 && length < 512 && exists(path);
}

/* The compiler of the system's CUDA or of Python's wheels. */
static bool find_nvcc(char path[512])
{
#ifdef _WIN32
    const char separator = ';', *nvcc = "nvcc.exe", *in_bin = "bin/nvcc.exe";
#else
    const char separator = ':', *nvcc = "nvcc", *in_bin = "bin/nvcc";
#endif
    const char *list = getenv("PATH");
    while (list) {
        char        folder[512];
        const char *end = strchr(list, separator);
        snprintf(folder, sizeof folder, "%.*s", (int)(end ? end - list : (long)strlen(list)), list);
        if (found(path, folder, nvcc)) return true;
        list = end ? end + 1 : NULL;
    }
    if (found(path, getenv("CUDA_PATH"), in_bin) || found(path, "/usr/local/cuda", in_bin)) return true;
    for (int minor = 9; minor < 30; minor++) {
        char rest[96];
        snprintf(rest, sizeof rest, "lib/python3.%d/site-packages/nvidia/cu13/bin/nvcc", minor);
        if (found(path, getenv("VIRTUAL_ENV"), rest)) return true;
    }
    return false;
}

static void show_compiler(void)
{
    char path[512];
    if (!find_nvcc(path)) {
        printf("nvcc          not found: examples/guides/gpu.md says how to get it\n");
        return;
    }
    const char *wheel = strstr(path, "/cu13/bin/nvcc");
    printf("nvcc          %s\n", path);
    printf("build with    %s -O3 -arch=native app.c gpunn_cuda.cu -o app", path);
    if (wheel)
        printf(" -L%.*s/cu13/lib -I%.*s/cudnn/include", (int)(wheel - path), path, (int)(wheel - path), path);
    printf("\n");
}

/* Some training of a small network; its outputs afterwards. */
static bool train(gpunn_device *dev, float output[BATCH * CLASSES])
{
    float   pixels[BATCH * PIXELS];
    int64_t labels[BATCH];
    for (int i = 0; i < BATCH * PIXELS; i++) pixels[i] = (float)(i * 37 % 101) / 50 - 1;
    for (int i = 0; i < BATCH; i++) labels[i] = i % CLASSES;
    gpunn_model     *model = gpunn_model_create(dev);
    gpunn_tensor    *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, 12, 12));
    gpunn_tensor    *t = gpunn_input(model, "t", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor    *h = gpunn_relu(gpunn_conv2d(x, "conv", .out_channels = 8, .kernel_size = 3));
    gpunn_tensor    *y = gpunn_linear(gpunn_flatten(gpunn_max_pool2d(h, .kernel_size = 2)), "fc",
                                      .out_features = CLASSES);
    gpunn_tensor    *loss = gpunn_cross_entropy(y, t);
    gpunn_optimizer *sgd = gpunn_sgd(model, .lr = 0.1f);
    gpunn_status     status = gpunn_write(x, pixels, sizeof pixels);
    if (status == GPUNN_OK) status = gpunn_write(t, labels, sizeof labels);
    for (int step = 0; step < 5 && status == GPUNN_OK; step++) status = gpunn_train_step(sgd, loss);
    if (status == GPUNN_OK) status = gpunn_forward(&y, 1);
    if (status == GPUNN_OK) status = gpunn_read(y, output, BATCH * CLASSES * sizeof *output);
    gpunn_optimizer_destroy(sgd);
    gpunn_model_destroy(model);
    return status == GPUNN_OK;
}

static bool try_device(gpunn_device_type type, int index, float output[BATCH * CLASSES])
{
    gpunn_device *dev = gpunn_device_open(.type = type, .index = index, .seed = 1, .log_fn = log_line);
    bool          good = dev && train(dev, output);
    if (dev && type == GPUNN_DEVICE_CPU)
        printf("CPU           %s; a small model takes %zu bytes\n", gpunn_device_name(dev),
               gpunn_memory_peak(dev));
    if (!good) printf("              fails: %s\n", gpunn_error(dev));
    gpunn_device_close(dev);
    return good;
}

int main(int argc, char **argv)
{
    const option none = {0};
    options_read(&none, 0, argc, argv);
    float expected[BATCH * CLASSES], output[BATCH * CLASSES];
    int   gpus = gpunn_cuda_device_count();
    bool  good = true;
    printf("gpunn         %s, matrix products by %s\n", GPUNN_VERSION, PRODUCTS);
    if (!try_device(GPUNN_DEVICE_CPU, 0, expected)) return 1;
    gpunn_device_report(show, NULL);
    show_compiler();
    for (int i = 0; i < gpus; i++) {
        float worst = 0;
        printf("GPU %-9d trains a small model\n", i);
        bool works = try_device(GPUNN_DEVICE_CUDA, i, output);
        for (int j = 0; works && j < BATCH * CLASSES; j++) {
            float difference = fabsf(output[j] - expected[j]);
            if (!(difference <= worst)) worst = difference; /* NaN too */
        }
        if (works) printf("              its outputs differ from the CPU's by at most %g\n", (double)worst);
        good = good && works && worst < 1e-3f;
    }
    gpunn_device *dev = gpunn_device_open(.log_fn = log_line);
    printf("gpunn takes   %s\n", dev ? gpunn_device_name(dev) : gpunn_error(NULL));
    gpunn_device_close(dev);
    return good ? 0 : 1;
}
