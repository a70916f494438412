#ifndef GPUNN__BASE_DEVICE_H
#define GPUNN__BASE_DEVICE_H
#include "base/structs.h"

/* ==== >>base/device ================================================================================================ */
GPUNN__INTERNAL void gpunn__warn(gpunn_device *dev, const char *text);

/* Frees a device that is closed, and has no models any more. */
GPUNN__INTERNAL void gpunn__device_release(gpunn_device *dev);

#define GPUNN__BAD_VALUE                                                                                          \
    "the %s is %s at training step %llu, which changed nothing: check the data, lower the learning rate or clip " \
    "gradients; gpunn_check_nan(loss) names the first op, such as a division by 0, or a log or square root of 0"
GPUNN__INTERNAL GPUNN__STATUS gpunn__execute(gpunn_device *dev, gpunn_run *run, const char *what);

/* What is known of them; waits for none. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__earlier_runs(gpunn_device *dev, const char *what);

GPUNN__INTERNAL gpunn_status gpunn__step_fail(gpunn_device *dev, const gpunn_step *step, gpunn_status status);

/* What a float or double is that is not finite; NULL: it is. By its bits, and where it lies in memory, as -ffast-math lets
 * compilers take all numbers for finite. */
GPUNN__INTERNAL const char *gpunn__not_finite(const void *value, size_t size);

GPUNN__INTERNAL float *gpunn__gradient_of(const gpunn_tensor *parameter);

/* "gradient of 'fc.weight', by linear 'fc',": the op that reads a parameter gives its gradient. NULL: of an unknown one. */
GPUNN__INTERNAL void gpunn__gradient_text(const gpunn_tensor *t, char *text, size_t size);

enum { GPUNN__MOST_THREADS = 1024 };

/* What stands behind these words in the first line of a file that begins with them; "": nothing does. */
GPUNN__INTERNAL void gpunn__line_of(const char *path, const char *words, char *text, size_t size);

/* The machine, by words that no other has while it runs; on Linux its containers have them, too. */
GPUNN__INTERNAL void gpunn__machine(char *text, size_t size);

/* How many processors this process may use, at least 1; set: which. */
GPUNN__INTERNAL int gpunn__processors(char set[1024]);

/* What OMP_NUM_THREADS says; 0: nothing. */
GPUNN__INTERNAL int gpunn__threads_said(void);

#endif /* GPUNN__BASE_DEVICE_H */
