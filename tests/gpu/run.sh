#!/usr/bin/env bash
# All that needs a GPU, in one call under 9 minutes: builds, runs the tests on the GPU, the memory and race checkers on some of them,
# and the benchmarks beside PyTorch. Needs nvcc, a C compiler and python3; cuBLASLt, cuDNN and torch are found in Python's wheels too.
#
#   tests/gpu/run.sh            writes gpu.log (everything), gpu.md (the table) and gpu.json into $OUT, or build/gpu
#   tests/gpu/run.sh --build    builds all of it, for which no GPU is needed
#   GPUNN_GPU_SECONDS=510       what it may take in all
#
# Each stage has its own limit, and a failing one does not keep the next from running. The last lines sum up.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
seconds=${GPUNN_GPU_SECONDS:-510}
python=${PYTHON:-python3}
work=build/gpu
out=${OUT:-$work}
mkdir -p "$work" "$out"
log=$out/gpu.log
: >"$log"
failed=0
skipped=0
passed=0
summary=

say() {
    printf '%s\n' "$*" | tee -a "$log"
}

# stage NAME LIMIT COMMAND...: its output goes to the log; the last lines are shown, all the more when it fails.
stage() {
    local name=$1 limit=$2 left=$((seconds - SECONDS)) begin=$SECONDS code lines=6
    shift 2
    if [ "$left" -lt 10 ]; then
        skipped=$((skipped + 1))
        summary+="skipped  $name: no time left"$'\n'
        return 1
    fi
    if $build_only || [ "$limit" -gt "$left" ]; then limit=$left; fi
    printf '\n==== %s\n' "$name" >>"$log"
    timeout --kill-after=5 "$limit" "$@" >"$work/stage.log" 2>&1
    code=$?
    cat "$work/stage.log" >>"$log"
    [ "$code" -eq 0 ] || lines=40
    say "---- $name ($((SECONDS - begin)) s)"
    tail -n "$lines" "$work/stage.log"
    if [ "$code" -eq 0 ]; then
        passed=$((passed + 1))
        summary+="passed   $name ($((SECONDS - begin)) s)"$'\n'
    else
        failed=$((failed + 1))
        [ "$code" -ne 124 ] || code="its limit of $limit s"
        summary+="FAILED   $name ($code)"$'\n'
    fi
    [ "$code" = 0 ]
}

finish() {
    say ""
    say "$summary$passed stages passed, $failed failed, $skipped skipped, $SECONDS s"
    exit $((failed > 0))
}

eval "$("$python" tests/gpu/toolkit.py --shell)"
"$python" tests/gpu/toolkit.py | tee -a "$log"
if [ -z "$NVCC" ]; then
    say "nvcc was not found: README.md says how to install it, NVCC=/path/to/nvcc names one"
    exit 1
fi
build_only=false
if [ "${1-}" = --build ]; then
    build_only=true
    seconds=3600
elif [ -z "$GPU_ARCH" ]; then
    say "There is no GPU here: nothing was run. tests/gpu/run.sh --build compiles and links what it would run."
    exit 1
fi

# ---- build ----
export NVCC NVCC_FLAGS work
export arch=${GPU_ARCH:+native}
export zlib='' zlib_link='' cmocka=-Itests/gpu
if echo '#include <zlib.h>' | cc -x c -fsyntax-only - 2>/dev/null; then
    zlib=-DGPUNN_ZLIB zlib_link=-lz
fi
if printf '#include <%s>\n' stdarg.h stddef.h stdint.h setjmp.h cmocka.h | cc -x c -fsyntax-only - 2>/dev/null; then
    cmocka=-lcmocka
fi
tests="ops/golden ops/gradients ops/precision ops/reference ops/training unit/device unit/files unit/fit unit/loader unit/run"
examples="bert_qa char_lstm cpu_vs_gpu custom_op doctor gpt2 resnet18 roberta_classify simple_nn vector_add"
example_tests="bert_qa char_lstm gpt2 own_ops resnet18 roberta_classify"
if echo '#include <stb/stb_image.h>' | cc -x c -fsyntax-only - 2>/dev/null; then
    examples+=" register3d tiny_imagenet" example_tests+=" register3d tiny_imagenet"
else
    skipped=$((skipped + 1))
    summary+="skipped  register3d, tiny_imagenet: stb_image.h is not installed (libstb-dev)"$'\n'
fi
library() {
    local cc
    cc -std=c99 -O3 -march=native -fopenmp $zlib -DGPUNN_IMPLEMENTATION -x c -c gpunn.h -o "$work/gpunn.o" &
    cc=$!
    "$NVCC" -std=c++17 -O3 -arch="${arch:-sm_90}" $NVCC_FLAGS -I. -c gpunn_cuda.cu -o "$work/gpunn_cuda.o" && wait "$cc"
}
program() { # of the library's two objects and a C file, which may hold gpunn.h's implementation and kernels of its own
    local name own=$work/gpunn.o file=$1
    name=$(basename "$1" .c)
    ! grep -q '^#define GPUNN_IMPLEMENTATION' "$1" || own=
    if grep -q '^#ifdef __CUDACC__' "$1"; then
        file=$work/$name.o
        "$NVCC" -std=c++17 -O3 -arch="${arch:-sm_90}" $NVCC_FLAGS $zlib -I. -Xcompiler -march=native,-fopenmp -x cu -c "$1" -o "$file" || return
    fi
    "$NVCC" -O3 $NVCC_FLAGS $zlib -I. -Xcompiler -march=native,-fopenmp "$file" $own "$work/gpunn_cuda.o" \
        $(ls "examples/kernels/$name"_*.cu 2>/dev/null) -o "$work/$name" $cmocka $zlib_link
}
export -f library program
if ! $build_only && "$python" -c 'import torch' 2>/dev/null; then # PyTorch compiles meanwhile; what it made is found in its cache again
    export TORCHINDUCTOR_CACHE_DIR=$PWD/$work/inductor
    for mode in compile reduce-overhead; do
        (printf 'open %s\nclose\n' mlp20 lenet4 lenet4096 mlp784_f32 mlp784_tf32 mlp784_bf16 resnet18_bf16 relu gelu add adamw |
            timeout 180 "$python" -B tests/bench/gpu_torch.py "$mode") >>"$work/warm.log" 2>&1 &
    done
fi
stage "library" 150 bash -c library || finish
stage "programs" 150 bash -c "printf '%s\n' tests/bench/gpu_bench.c $(printf 'examples/%s.c ' $examples) $(printf 'tests/%s.c ' $tests) |
    xargs -P $(nproc) -I{} bash -c 'program {}'"
stage "fused kernels, build" 120 "$python" tests/bench/fused_gpu.py --build
! $build_only || finish

# ---- run ----
stage "doctor, finding the libraries by itself" 20 env -u GPUNN_CUDA_PATH -u GPUNN_CUDNN_PATH "$work/doctor"
export GPUNN_CUDA_PATH GPUNN_CUDNN_PATH GPUNN_TEST_DEVICE=cuda
stage "simple_nn" 30 "$work/simple_nn"
stage "tests" 150 "$python" tests/run.py --jobs 4 $(printf "$work/%s " $(basename -a $tests))
stage "examples" 120 env GPUNN_EXAMPLES="$work" "$python" tests/run.py "examples:tests/tap.py tests/examples $(printf 'test_%s ' $example_tests)"
wait # for PyTorch
left=$((seconds - SECONDS))
stage "benchmarks" 260 "$python" tests/bench/gpu.py "$work/gpu_bench" --python "$python" --json "$out/gpu.json" --seconds $((left < 250 ? left - 10 : 240))
cp "$work/stage.log" "$out/gpu.md"
stage "fused kernels" 120 "$python" tests/bench/fused_gpu.py --json "$out/fused.json"
cat "$work/stage.log" >>"$out/gpu.md"
stage "CPU against GPU" 60 "$work/cpu_vs_gpu" --seconds 0.5
cat "$work/stage.log" >>"$out/gpu.md"
sanitizer=$(command -v compute-sanitizer || ls "$(dirname "$NVCC")/compute-sanitizer" /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
if [ -n "$sanitizer" ]; then
    for check in "memcheck reference" "racecheck reference" "memcheck run" "racecheck training" "memcheck golden"; do
        stage "$check" 60 "$sanitizer" --tool "${check% *}" --error-exitcode 9 "$work/${check#* }"
    done
else
    skipped=$((skipped + 1))
    summary+="skipped  compute-sanitizer: it is not installed"$'\n'
fi
cat "$out/gpu.md"
finish
