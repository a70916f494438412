/* device_info.c - what this program can run on, and what it will use.
 *
 * Shows: device queries, statuses, memory figures.
 * Build: cc -O3 -march=native -I. examples/device_info.c -o device_info -lm
 * Run:   ./device_info
 * Expect: the CPU with its threads and instructions, each GPU (none without gpunn_cuda.cu), and what GPUNN_DEVICE_AUTO takes. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"

#include <stdio.h>

static void log_line(void *user, gpunn_log_level level, const char *message)
{
    (void)user, (void)level;
    fprintf(stderr, "%s\n", message);
}

static void show(const char *title, gpunn_device_type type, int index)
{
    gpunn_device *dev = gpunn_device_open(.type = type, .index = index, .log_fn = log_line);
    if (dev)
        printf("%-10s %s\n", title, gpunn_device_name(dev));
    else
        printf("%-10s not available: %s\n", title, gpunn_error(NULL));
    gpunn_device_close(dev);
}

int main(void)
{
    printf("gpunn      %s, backend interface %d\n", GPUNN_VERSION, GPUNN_BACKEND_ABI);
#ifdef _OPENMP
    printf("OpenMP     yes\n");
#else
#endif
#ifdef GPUNN_CBLAS
    printf("CBLAS      yes\n");
#else
    printf("CBLAS      no: built-in matrix products (fine; -DGPUNN_CBLAS -lopenblas to change)\n");
#endif
    show("CPU", GPUNN_DEVICE_CPU, 0);
    int gpus = gpunn_cuda_device_count();
    printf("GPUs       %d\n", gpus);
    for (int i = 0; i < gpus; i++) show("GPU", GPUNN_DEVICE_CUDA, i);
    if (gpus == 0) show("GPU", GPUNN_DEVICE_CUDA, 0);
    show("chosen", GPUNN_DEVICE_AUTO, 0);

    /* The memory that one model takes. */
    gpunn_device *dev = gpunn_device_open();
    if (dev == NULL) {
        fprintf(stderr, "%s\n", gpunn_error(NULL));
        return 1;
    }
    gpunn_model  *model = gpunn_model_create(dev);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1000));
    gpunn_tensor *y = gpunn_softmax(gpunn_linear(x, "fc", .out_features = 1000), 1);
    size_t        planned = 0;
    static float  zeros[1000];
    gpunn_status  status = gpunn_model_summary(model, .outputs = {y}, .bytes = &planned);
    if (status == GPUNN_OK) status = gpunn_write(x, zeros, sizeof zeros);
    if (status == GPUNN_OK) status = gpunn_forward(&y, 1);
    if (status == GPUNN_OK)
        printf("memory     a 1000-1000 layer: %zu bytes planned, %zu allocated, %zu at the peak\n", planned,
               gpunn_memory_allocated(dev), gpunn_memory_peak(dev));
    else
        fprintf(stderr, "%s\n", gpunn_error(dev));
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return status == GPUNN_OK ? 0 : 1;
}
