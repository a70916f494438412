#ifndef GPUNN__BASE_DEVICE_H
#define GPUNN__BASE_DEVICE_H
#include "base/structs.h"

/* ==== >>base/device ===================================================================================== */
/* Opens and closes devices, reports failures of runs and steps, and identifies the machine and its
 * processors. */
/* Sends a warning to log_fn, if there is one. */
GPUNN__INTERNAL void gpunn__warn(gpunn_device *dev, const char *text);

/* Frees a device that is closed and has no models or groups left. */
GPUNN__INTERNAL void gpunn__device_release(gpunn_device *dev);

#define GPUNN__BAD_VALUE                                                                                    \
    "the %s is %s at training step %llu, so this step changed nothing: check the data, lower the learning " \
    "rate or clip gradients; gpunn_check_nan(loss) names the first op that failed, such as a division by "  \
    "0, or a log or square root of 0"
/* Runs `run` on the backend and reports a bad loss or gradient of this or an earlier run as
 * GPUNN_ERR_NUMERIC. `what` names the call in other error messages. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__execute(gpunn_device *dev, gpunn_run *run, const char *what);

/* Reports a bad loss or gradient of earlier runs, as far as the backend knows. It does not wait. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__earlier_runs(gpunn_device *dev, const char *what);

/* Records a failure of a step with its op, layer and operand shapes. Returns status. */
GPUNN__INTERNAL gpunn_status gpunn__step_fail(gpunn_device *dev, const gpunn_step *step, gpunn_status status);
/* The same for the step of a run that failed, or for `what` if no step in particular did. */
GPUNN__INTERNAL gpunn_status gpunn__run_fail(gpunn_device *dev, const gpunn_run *run, const char *what,
                                             gpunn_status status);

/* "infinite" or "NaN" for a float or double that is not finite; NULL if it is finite. It tests the bits in
 * memory, since -ffast-math lets compilers assume that all numbers are finite. */
GPUNN__INTERNAL const char *gpunn__not_finite(const void *value, size_t size);

/* Address of a parameter's gradient, in user-owned memory or the model's, or of the sums of a sparse one. */
GPUNN__INTERNAL float *gpunn__gradient_of(const gpunn_tensor *parameter);

/* Floats of a parameter's gradient. */
GPUNN__INTERNAL int64_t gpunn__gradient_count(const gpunn_tensor *parameter);

/* Writes "gradient of 'fc.weight', by linear 'fc',": the op that reads the parameter produces its gradient. t
 * NULL: an unknown parameter. */
GPUNN__INTERNAL void gpunn__gradient_text(const gpunn_tensor *t, char *text, size_t size);

enum { GPUNN__MOST_THREADS = 1024 };

/* Writes the rest of the first line in a file that begins with `words`, or "" if there is none. */
GPUNN__INTERNAL void gpunn__line_of(const char *path, const char *words, char *text, size_t size);

/* Writes an identifier that no other running machine has. On Linux the machine's containers share it. */
GPUNN__INTERNAL void gpunn__machine(char *text, size_t size);

/* Returns the number of processors this process may use, at least 1. `set` receives which ones, as text. */
GPUNN__INTERNAL int gpunn__processors(char set[1024]);

/* Value of OMP_NUM_THREADS; 0: not set. */
GPUNN__INTERNAL int gpunn__omp_threads(void);

#endif /* GPUNN__BASE_DEVICE_H */
