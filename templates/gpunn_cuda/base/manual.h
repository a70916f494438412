/* gpunn_cuda.cu - v0.2 - the CUDA backend of gpunn.h.                                     MIT or public
 * domain (end of gpunn.h)
 *
 * To use it, put it next to gpunn.h and add it to the compile line. The program's source does not change:
 *     nvcc -O3 -arch=native app.c gpunn_cuda.cu -o app                          no -l: cuBLASLt and cuDNN are
 *     opened at run time
 * -arch=native builds for the GPU of this machine, -arch=all-major for any. With neither, the driver compiles
 * the kernels when the program first starts, which takes seconds. CUDA 12.0 or later is required. cuDNN 9
 * provides fast convolutions, attention and recurrent layers. It is left out if the toolkit lacks its header
 * or if GPUNN_NO_CUDNN is defined.
 *
 * To find the step that causes a GPU fault, set GPUNN_PLAIN=1 in the environment. Then nothing is captured,
 * and each step is waited for and checked. In NVIDIA's profilers each step that is launched by itself appears
 * as a range; the steps of a graph are launched together. Ranges need nvtx3 and are disabled by
 * GPUNN_NO_NVTX.
 *
 * >>toc        grep -n '>>' gpunn_cuda.cu lists all sections. Each section uses only those before it. Each is
 * a
 *              file of templates/gpunn_cuda; `python3 -m generator.amalgamate` writes this file from them.
 *     base/config      includes, constants, launching
 *     base/context     state of an open device
 *     base/values      loads and stores of 8 elements, reductions over a block, random numbers
 *     base/errors      error messages, checks of every call
 *     base/memory      the pool, copies through pinned memory, the cache of descriptors
 *     base/libraries   finding and opening cuBLASLt and cuDNN
 *     base/ranks       GPUs of several processes, through NCCL
 *     base/shared      interfaces between sections
 *     cuda/formulas    gpunn.h's tables of elementwise ops as device functions
 *     cuda/elementwise their kernels; copies; cast; dropout
 *     cuda/move        permute, concat, slice, pad, expand; filters with their channels last
 *     cuda/reduce      sum, max, gradient_energy, argmax, cumsum
 *     cuda/indexing    topk_indices, embedding, gather, assign
 *     cuda/gemm        linear and matmul: cuBLASLt with its epilogues
 *     cuda/blocks      products and embeddings of weights of 4 to 8 bits
 *     cuda/conv        convolutions: cuDNN's graphs, im2col and products, or depthwise kernels
 *     cuda/pool        max, average and adaptive average pooling
 *     cuda/finish      epilogue of a product or convolution, in one pass
 *     cuda/sampling    grid_sample, roi_align, affine_grid, hash_grid_encoding, interpolate
 *     cuda/norm        batch_norm, layer_norm, rms_norm, group_norm, instance_norm
 *     cuda/softmax     softmax, log_softmax
 *     cuda/loss        cross_entropy, nll, ctc_loss
 *     cuda/attention   scaled_dot_product_attention: cuDNN's, or products and a separate kernel
 *     cuda/recurrent   rnn, lstm, gru: cuDNN's, or products and a kernel for each step
 *     cuda/quantized   ops of 8-bit numbers: tensor cores, cuBLASLt for large products
 *     cuda/short       consecutive steps that share a launch because each is too short for its own
 *     cuda/optimizers  updates, norms of gradients, the loss scale
 *     run/run          whole runs: plain, captured, replayed
 *     run/backend      opening, closing, the table
 *
 * Each op is one function gpunn__cuda_<name>(cuda, step, action), which holds both its forward and its
 * backward. Kernels compute in F32. Each operand may be stored as F32, F16 or BF16 independently; parameters
 * and statistics are F32. All sums take two stages in a fixed order, so the same inputs give the same bits.
 * Nothing here allocates or waits while a run is captured. */
