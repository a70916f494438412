/* gpunn_cuda.cu - v0.1 - the CUDA backend of gpunn.h.                                     MIT or public domain (end of gpunn.h)
 *
 * Do this: put it beside gpunn.h and name it on the compile line of a program that uses gpunn.h, whose source does not change:
 *     nvcc -O3 -arch=native app.c gpunn_cuda.cu -o app                          no -l: cuBLASLt and cuDNN are opened at run time
 * -arch=native builds for the GPU of this machine, -arch=all-major for any; with neither the driver compiles the kernels anew
 * when the program first starts, which takes seconds. CUDA 12.0 or later; cuDNN 9 for fast convolutions, attention and recurrent
 * layers (GPUNN_NO_CUDNN leaves it out, and so does a toolkit without its header). After a fault of the GPU, GPUNN_PLAIN=1 in the
 * environment finds the step: nothing is captured, and each step is waited for and checked. NVIDIA's profilers show a range for
 * each step that is launched by itself (those of a graph are launched at once) where nvtx3 is there, unless GPUNN_NO_NVTX is
 * defined.
 *
 * >>toc        grep -n '>>' gpunn_cuda.cu lists every section. Each uses those before it. Each is a file of templates/gpunn_cuda,
 *              from which this one is written (python3 -m generator.amalgamate).
 *     base/config      includes, constants, launching
 *     base/context     what a device holds
 *     base/values      loads and stores of 8 elements, reductions over a block, random numbers
 *     base/errors      sentences, checks of every call
 *     base/memory      the pool, copies through pinned memory, the cache of descriptors
 *     base/libraries   finding and opening cuBLASLt and cuDNN
 *     base/ranks       GPUs of several processes, by NCCL
 *     base/shared      what one section offers the ops of others
 *     cuda/formulas    gpunn.h's tables of elementwise ops as device functions
 *     cuda/elementwise their kernels; copies; cast; dropout
 *     cuda/move        permute, concat, slice, pad, expand; filters with their channels last
 *     cuda/reduce      sum, max, gradient_energy, argmax, cumsum
 *     cuda/indexing    topk_indices, embedding, gather, assign
 *     cuda/gemm        linear and matmul: cuBLASLt with its epilogues
 *     cuda/conv        convolutions: cuDNN's graphs, or windows laid out for products, or depthwise kernels
 *     cuda/pool        max, average and adaptive average pooling
 *     cuda/finish      what follows a product or convolution, in one pass
 *     cuda/sampling    grid_sample, roi_align, affine_grid, hash_grid_encoding, interpolate
 *     cuda/norm        batch_norm, layer_norm, rms_norm, group_norm, instance_norm
 *     cuda/softmax     softmax, log_softmax
 *     cuda/loss        cross_entropy, nll, ctc_loss
 *     cuda/attention   scaled_dot_product_attention: cuDNN's, or products and a kernel of our own
 *     cuda/recurrent   rnn, lstm, gru: cuDNN's, or products and a kernel for each step
 *     cuda/short       steps in a row that are too short for a launch each
 *     cuda/optimizers  updates, norms of gradients, the loss scale
 *     run/run          whole runs: plain, captured, replayed
 *     run/backend      opening, closing, the table
 *
 * Every op is one function gpunn__cuda_<name>(cuda, step, action), its forward and backward beside each other. Kernels compute in
 * F32; a value's storage may be F32, F16 or BF16, each operand by itself, parameters and statistics F32. All sums are made in two
 * stages in a fixed order: the same inputs give the same bits. Nothing here allocates or waits while a run is captured. */
