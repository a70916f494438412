/* What tests ask of the emulated GPU (emulator.cpp). Environment, read once at the first call:
 *     EMULATOR_DEVICES   how many GPUs there are: 0, 1 (default), 2 ...
 *     EMULATOR_ORDER     in which order threads and blocks run where they may run in any: random (default),
 *     ascending, descending EMULATOR_STREAMS   when queued work runs: late (default: when somebody waits for
 *     it), eager (at once), random EMULATOR_SEED      of the random choices, 1
 *     EMULATOR_CUDNN     0: convolutions, attention and recurrent layers find no cuDNN
 *     EMULATOR_CONVOLUTIONS   0: cuDNN is there, but has no plan for any
 *     EMULATOR_NAN       what the libraries' relu makes of NaN: 0 (default) or, 1, NaN
 *     EMULATOR_CAPABILITY   10 * major + minor of the compute capability, 90
 *     EMULATOR_CODE         the same of the architecture that kernels are compiled for, whose PTX the driver
 *     compiles for a newer GPU;
 *                           0, the GPU's
 *     EMULATOR_DRIVER    1000 * major + 10 * minor of the CUDA that the driver is for, 13000
 *     EMULATOR_ALIGNMENT bytes at multiples of which a product's operands lie that the library does, 1; it
 *     tells as it runs EMULATOR_NCCL      0: there is no NCCL; -1: what a rank is to exchange never leaves it
 *     EMULATOR_EPILOGUE  launches' time of a product with an activation or row sums, 1
 *     EMULATOR_SHARED       bytes of shared memory that a block may have, 232448
 *     EMULATOR_INTEGRATED   1: the GPU has no memory of its own; 2: and reads all of the host's by its page
 *     tables; 0 EMULATOR_MEMORY    bytes of a GPU's memory, 1 GiB
 *     EMULATOR_MULTIPROCESSORS   2; an H200 has 132
 *     EMULATOR_RUN       0: kernels and libraries' calls are counted, and compute nothing
 *     EMULATOR_SHORT     elements at most of steps that share a launch, 1024, and half of those of a product;
 *     0: none does EMULATOR_VERSION   of cuDNN, 92400
 *     EMULATOR_WORKSPACE bytes of the largest workspace with which cuDNN has a plan for attention, whatever
 *     its limit; none */
#ifndef EMULATOR_H
#define EMULATOR_H
#include <stdbool.h>
#include <stddef.h>

/* Whether a device has its primary context, which takes about 0.5 GB of a real one; from now on none has. */
bool emulator_context(int device);
void emulator_forget_contexts(void);
/* Faults found so far in kernels and in the use of the runtime (each printed as it is found), and the last
 * one's sentence. */
int         emulator_faults(void);
const char *emulator_fault(void);
void        emulator_report(const char *sentence); /* a stand-in's, of how it is used */
void        emulator_forget_faults(void);          /* and every device's sticky error */
/* Ranges of NVIDIA's profilers that this thread has open; last: those that were when one was last opened, "a
 * > b". */
int emulator_ranges(const char **last);
/* The call-th call of the runtime from now on fails with that cudaError_t, a launch included; 0: none. A
 * fault of the device (700 to 719, 214, 226, 721) stays with it. */
void emulator_fail(long call, int error);
/* The allocation-th allocation from now on fails for want of memory, and with `on` all later ones; 0: none.
 * Whether the one asked for before is still to come. */
bool emulator_fail_allocation(long allocation, bool on);
/* The launch-th launch to run from now on faults, unseen until somebody asks, as by a pointer that leads
 * astray; 0: none. */
void        emulator_stray(long launch);
const char *emulator_failed_call(void); /* the last one that emulator_fail made fail */
long        emulator_calls(void);       /* of the runtime so far, those that emulator_fail counts */
/* kernels, libraries' calls, fills and device copies that have run so far */
long emulator_launches(void);
/* how many of them bear the i-th name; 0: there are no more names */
long emulator_launched(int i, const char **name);
/* the name of launch i; NULL: there have been fewer */
const char *emulator_ran(long i);
void        emulator_forget_launches(void);
/* launches on the longest path of the graph that was made last: the others run beside these */
long emulator_row(void);
long emulator_graph_launches(void);
long emulator_captures(void); /* begun so far */
/* times that the host has waited for the device so far, or would have */
long emulator_waits(void);
/* copies between host and device so far; not what travels in a kernel's arguments */
long emulator_host_copies(void);
/* of what stands in for cuDNN's convolutions, attention and recurrent layers so far */
long        emulator_cudnn_runs(void);
const char *emulator_cudnn_ran(void); /* the last of them */
/* what has been made and not yet given back: allocations, streams, events, graphs, pools */
long emulator_held(void);
/* as the environment variable of that name, from now on */
void   emulator_set(const char *name, const char *value);
int    emulator_cudnn(void);
int    emulator_nan(void);
int    emulator_nccl(void);
int    emulator_epilogue(void);
int    emulator_alignment(void);
size_t emulator_version(void);
size_t emulator_workspace(void);
int    emulator_convolutions(void);
void   emulator_count_cudnn(const char *what);
#endif
