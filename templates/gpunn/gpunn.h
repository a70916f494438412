#include "api/manual.h"
/* In C++ a call with named arguments leaves fields out by design, which g++ -Wextra would list at every call.
 * A program's own arguments are its own text and keep their warnings. */
#if defined(__cplusplus) && defined(__GNUC__) && !defined(GPUNN__WARN)
#pragma GCC system_header
#endif

#ifndef GPUNN_H
#define GPUNN_H

#include "api/config.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "api/model.h"
#include "api/ops.h"
#include "api/builders.h"
#include "api/train.h"
#include "api/data.h"
#include "api/backend.h"
#include "api/kernels.h"

#ifdef __cplusplus
}
#endif
#endif /* GPUNN_H */

/* ========================================================================================================= *
 *                                                   IMPLEMENTATION
 * ======================================================================================================== */
#if defined(GPUNN_IMPLEMENTATION) && !defined(GPUNN_NO_IMPLEMENTATION)
#undef GPUNN_IMPLEMENTATION
#define GPUNN__IMPLEMENTATION

#include "base/platform.h"

#ifdef __cplusplus
extern "C" {
#endif
#endif

#if defined(GPUNN__IMPLEMENTATION) || defined(GPUNN__COMPANION)
#include "common/traits.h"
#include "common/geometry.h"
#include "common/numbers.h"
#include "common/places.h"
#include "common/updates.h"
#include "common/blocks.h"
#undef GPUNN__COMPANION
#endif

#ifdef GPUNN__IMPLEMENTATION
#include "base/structs.h"
#include "base/forward_declarations.h"
#include "base/errors.h"
#include "base/errors.c"
#include "base/memory.h"
#include "base/memory.c"
#include "base/math.h"
#include "base/math.c"
#include "base/blocks.h"
#include "base/blocks.c"
#ifdef GPUNN__COLD
#pragma GCC push_options
#pragma GCC optimize("Og", "inline-functions-called-once")
#endif
#include "base/tables.h"
#include "base/tables.c"
#include "base/sizes.h"
#include "base/sizes.c"
#include "base/shapes.h"
#include "base/shapes.c"
#include "base/device.h"
#include "base/device.c"
#include "base/model.h"
#include "base/model.c"
#include "base/time.h"
#include "base/time.c"
#include "ranks/slices.h"
#include "ranks/slices.c"
#include "ranks/mpi.h"
#include "ranks/mpi.c"
#include "ranks/store.h"
#include "ranks/store.c"
#include "ranks/tcp.h"
#include "ranks/tcp.c"
#include "ranks/group.h"
#include "ranks/group.c"
#include "graph/arguments.h"
#include "graph/arguments.c"
#include "base/json.h"
#include "base/json.c"
#include "base/text.h"
#include "base/text.c"
#include "graph/tensors.h"
#include "graph/tensors.c"
#include "graph/infer.h"
#include "graph/infer.c"
#include "graph/nodes.h"
#include "graph/nodes.c"
#include "graph/expr.h"
#include "graph/expr.c"
#include "layers/basic.h"
#include "layers/basic.c"
#include "layers/recurrent.h"
#include "layers/recurrent.c"
#include "layers/random.c"
#include "layers/shapes.h"
#include "layers/shapes.c"
#include "layers/reductions.c"
#include "layers/states.h"
#include "layers/states.c"
#include "layers/attention.c"
#include "layers/einsum.c"
#include "layers/losses.h"
#include "layers/losses.c"
#include "layers/formulas.h"
#include "layers/formulas.c"
#ifndef GPUNN_NO_DERIVATIVES
#include "graph/differentiate.c"
#endif
#include "plan/steps.h"
#include "plan/storage.h"
#include "plan/storage.c"
#include "plan/sparse.h"
#include "plan/sparse.c"
#include "plan/steps.c"
#include "plan/backward.h"
#include "plan/backward.c"
#include "plan/plan.h"
#include "plan/plan.c"
#ifdef GPUNN__COLD
#pragma GCC pop_options
#endif
#include "run/run.h"
#include "run/run.c"
#include "run/io.h"
#include "run/io.c"
#ifdef GPUNN__COLD
#pragma GCC push_options
#pragma GCC optimize("Og", "inline-functions-called-once")
#endif
#include "run/bind.c"
#include "run/inspect.h"
#include "run/inspect.c"
#include "run/recompute.c"
#ifdef GPUNN__COLD
#pragma GCC pop_options
#endif
#include "cpu/threads.h"
#include "cpu/threads.c"
#include "cpu/levels.h"
#include "cpu/context.h"
#include "cpu/context.c"
#include "cpu/elementwise.h"
#include "cpu/elementwise.c"
#include "cpu/initial.c"
#include "cpu/vectors.h"
#include "cpu/pixels.h"
#include "cpu/pixels.c"
#include "cpu/move.c"
#include "cpu/reduce.h"
#ifdef GPUNN__HOT
#pragma GCC push_options
#pragma GCC optimize("tree-vectorize", "vect-cost-model=dynamic")
#endif
#include "cpu/reduce.c"
#ifdef GPUNN__HOT
#pragma GCC pop_options
#endif
#include "cpu/indexing.h"
#include "cpu/indexing.c"
#include "cpu/blocks.h"
#include "cpu/blocks.c"
#include "cpu/gemm.h"
#include "cpu/gemm.c"
#include "cpu/conv.h"
#include "cpu/depthwise.c"
#ifdef GPUNN__HOT
#pragma GCC push_options
#pragma GCC optimize("tree-vectorize", "vect-cost-model=dynamic")
#endif
#include "cpu/conv.c"
#include "cpu/strips.c"
#include "cpu/quantized.c"
#include "cpu/pool.c"
#include "cpu/sampling.c"
#include "cpu/norm.h"
#include "cpu/norm.c"
#include "cpu/softmax.h"
#include "cpu/softmax.c"
#include "cpu/loss.c"
#include "cpu/attention.c"
#include "cpu/recurrent.c"
#include "cpu/optimizers.h"
#include "cpu/optimizers.c"
#ifdef GPUNN__HOT
#pragma GCC pop_options
#endif
#include "cpu/cpu.c"
#include "train/optimizer.h"
#include "train/optimizer.c"
#include "train/step.h"
#include "train/step.c"
#ifdef GPUNN__COLD
#pragma GCC push_options
#pragma GCC optimize("Og", "inline-functions-called-once")
#endif
#include "train/ranks.h"
#include "train/ranks.c"
#include "train/schedule.h"
#include "train/schedule.c"
#include "train/lora.h"
#include "train/lora.c"
#include "io/files.h"
#include "io/files.c"
#ifdef GPUNN__COLD
#pragma GCC pop_options
#endif
#include "train/loader.h"
#ifndef GPUNN_NO_LOADERS
#include "train/loader.c"
#endif
#ifdef GPUNN__COLD
#pragma GCC push_options
#pragma GCC optimize("Og", "inline-functions-called-once")
#endif
#include "train/calibrate.h"
#include "train/calibrate.c"
#include "train/quantize.c"
#include "io/elements.h"
#include "io/elements.c"
#include "io/safetensors.h"
#include "io/safetensors.c"
#include "io/load.h"
#include "io/load.c"
#include "io/checkpoint.h"
#include "io/checkpoint.c"
#include "io/save.h"
#include "io/save.c"
#include "io/adapters.c"
#ifndef GPUNN_NO_GGUF
#include "io/gguf.c"
#endif
#ifndef GPUNN_NO_SPECS
#include "io/spec_writer.h"
#include "io/spec_writer.c"
#include "io/spec_reader.c"
#include "io/model_file.c"
#endif
#include "io/datasets.c"
#ifndef GPUNN_NO_LOADERS
#include "train/fit.c"
#endif
#ifndef GPUNN_NO_PROFILE
#include "train/profile.c"
#endif

/* The program's macros. */
#pragma pop_macro("x")
#pragma pop_macro("a")
#pragma pop_macro("b")
#pragma pop_macro("c")
#pragma pop_macro("y")
#pragma pop_macro("g")
#pragma pop_macro("K")
#pragma pop_macro("where")
#pragma pop_macro("min")
#pragma pop_macro("max")
#pragma pop_macro("abs")
#pragma pop_macro("sign")
#pragma pop_macro("floor")
#pragma pop_macro("exp")
#pragma pop_macro("expm1")
#pragma pop_macro("log")
#pragma pop_macro("log1p")
#pragma pop_macro("sqrt")
#pragma pop_macro("tanh")
#pragma pop_macro("erf")
#pragma pop_macro("sigmoid")
#pragma pop_macro("sin")
#pragma pop_macro("cos")
#pragma pop_macro("pow")
#pragma pop_macro("floordiv")
#pragma pop_macro("power")
#pragma pop_macro("nadam_product")
#pragma pop_macro("near")
#pragma pop_macro("far")
#pragma pop_macro("small")
#pragma pop_macro("huge")
#pragma pop_macro("slots")
#pragma pop_macro("emit")
#pragma pop_macro("imaginary")
#pragma pop_macro("move")
#pragma pop_macro("NO")
#pragma pop_macro("DICE")
#pragma pop_macro("ALIGN")
#pragma pop_macro("TILE")
#pragma pop_macro("ROWS")
#pragma pop_macro("WIDTH")
#pragma pop_macro("BLOCK")
#pragma pop_macro("NCC")
#pragma pop_macro("OPEN")
#pragma pop_macro("CLOSED")
#ifdef GPUNN__COLD
#pragma GCC pop_options
#undef GPUNN__COLD
#undef GPUNN__HOT
#endif
#ifdef GPUNN__FAST_MATH
#ifdef __clang__
#pragma float_control(pop)
#else
#pragma GCC pop_options
#endif
#undef GPUNN__FAST_MATH
#endif
#ifdef __clang__
#pragma clang diagnostic pop
#endif

#ifdef __cplusplus
}
#endif
#undef GPUNN__IMPLEMENTATION
#endif /* GPUNN__IMPLEMENTATION */

/* ==== >>licence ========================================================================================== *
 * CHANGES
 *     0.2, 2026-11-28. For programs that were written with 0.1, which had no release:
 *       ABI       Compile again what uses the shared library: gpunn_device_open refuses programs of 0.1.
 *                 GPUNN_BACKEND_ABI has changed too: take gpunn.h and gpunn_cuda.cu of one commit, compile
 *                 backends of your own again.
 *       kernels   Generate fused kernels again. Those of 0.1 are not used, and .log_fn gets the command.
 *       training  A step whose loss or gradient is not finite changes nothing and is GPUNN_ERR_NUMERIC.
 *                 gpunn_set_skip_nan skips and counts such steps. gpunn_fit fails if .epochs is left out;
 *                 GPUNN_ZERO runs none. Loaders hold out samples by .validation_share; gpunn_fit has
 *                 .min_epochs and .restore_best. A loader's samples may be .on_device. gpunn_lora fine-tunes
 *                 by adapters, in the files of PEFT. gpunn_embedding(.sparse) and
 *                 gpunn_hash_grid_encoding(.sparse) train the batch's rows alone, on several ranks too.
 *                 gpunn_muon is new.
 *       ops       New are gpunn_cross, gpunn_searchsorted, gpunn_bucketize, gpunn_logcumsumexp,
 *                 gpunn_transpose, .reset and .capacity of recurrent layers, and streaming convolutions
 *                 (gpunn_conv1d with .stateful). gpunn_forward_prepare plans a run ahead. gpunn_grad
 *                 differentiates attention, pools, interpolate, and ops whose sizes vary. Ops of 8-bit
 *                 numbers: gpunn_quantize_per_tensor, gpunn_quantized_conv2d and others; import_onnx makes
 *                 them of quantised models, gpunn_calibrate and gpunn_quantize of your own.
 *       files     Weights of F8, integers and BOOL load as floats. gpunn_model_save and gpunn_model_load
 *                 keep a model in one file. GGUF loads, and gpunn_read_header shows files' metadata.
 *       weights   Evaluation models, and the frozen weights below adapters, are stored in GGUF's blocks of 4
 *                 to 8 bits: .weights of gpunn_model_create, gpunn_set_storage, gpunn_bind_as.
 *       doubles   Inputs, outputs, loaders and files take GPUNN_F64. gpunn_write_as and gpunn_read_as
 *                 convert.
 *       values    erfc is within 3 units in the last place, lgamma within 4. log2, fmod, atan2, hypot, asinh,
 *                 acosh and logaddexp hold for large numbers and infinities.
 *       models    Import and export know deformable convolutions, bags of words, histograms, masked_scatter
 *                 and support vector machines. KANN, darknet, RTNeural, llama2.c, llm.c and whole pickled
 *                 modules are read. The commands print what they wrote. For MODEL.onnx run_model
 *                 writes MODEL.onnx.json, no longer MODEL.json. generator.quantize writes GGUF.
 *       languages generator.fortran and generator.python write modules with all functions. Plain C
 *                 (--inference) takes models with states.
 *       size      Programs leave parts of the library out by GPUNN_NO_RANKS, GPUNN_NO_LOADERS,
 *                 GPUNN_NO_SPECS, GPUNN_NO_GGUF, GPUNN_NO_DERIVATIVES and GPUNN_NO_PROFILE.
 *     0.1: the first version.
 *
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
