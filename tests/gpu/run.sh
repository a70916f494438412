#!/usr/bin/env bash
# All that needs a GPU, in one call under 9 minutes: builds, runs the tests on the GPU, the benchmarks beside PyTorch, and as much of the
# memory and race checkers as time is left for. Needs nvcc, a C compiler and python3; cuBLASLt, cuDNN and torch are found in Python's
# wheels too.
#
#   tests/gpu/run.sh            writes gpu.log (everything), gpu.md (the tables) and gpu.json into $OUT, or build/gpu
#   tests/gpu/run.sh --check    the memory and race checkers alone, for all of the time
#   tests/gpu/run.sh --build    builds all of it, for which no GPU is needed
#   GPUNN_GPU_SECONDS=520       what it may take in all
#   CPATH=/path/to/include      where stb/stb_image.h lies, which two examples ask for, if libstb-dev is not installed
#
# Each stage has its own limit, and a failing one does not keep the next from running. PyTorch's compiler works while gpunn is built and
# tested, into a cache in build/gpu that a second run finds again; what it has not finished by then is not measured. The last lines sum up.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
seconds=${GPUNN_GPU_SECONDS:-520}
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
    if [ "$what" = build ] || [ "$limit" -gt "$left" ]; then limit=$left; fi
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
what=${1-}
what=${what#--}
case $what in
'' | build | check) ;;
*)
    say "tests/gpu/run.sh [--build | --check]"
    exit 2
    ;;
esac
if [ "$what" = build ]; then
    seconds=3600
elif [ -z "$GPU_ARCH" ]; then
    say "There is no GPU here: nothing was run. tests/gpu/run.sh --build compiles and links what it would run."
    exit 1
fi

# ---- build ----
export NVCC NVCC_FLAGS work
export PYTHON=$python arch=${GPU_ARCH:+native}
export zlib='' zlib_link='' cmocka=-Itests/gpu
if echo '#include <zlib.h>' | cc -x c -fsyntax-only - 2>/dev/null; then
    zlib=-DGPUNN_ZLIB zlib_link=-lz
fi
if printf '#include <%s>\n' stdarg.h stddef.h stdint.h setjmp.h cmocka.h | cc -x c -fsyntax-only - 2>/dev/null; then
    cmocka=-lcmocka
fi
tests="generator/fused ops/golden ops/gradients ops/reference ops/precision ops/training"
tests+=" unit/custom unit/device unit/files unit/fit unit/loader unit/run"
examples=$(basename -s .c examples/*.c)
example_tests="bert_qa char_lstm cpu_vs_gpu gpt2 own_ops resnet18 roberta_classify"
if echo '#include <stb/stb_image.h>' | cc -x c -fsyntax-only - 2>/dev/null; then
    example_tests+=" register3d tiny_imagenet"
else
    examples=$(grep -vxE 'register3d|tiny_imagenet' <<<"$examples")
    skipped=$((skipped + 1))
    summary+="skipped  register3d, tiny_imagenet: stb/stb_image.h is neither installed (libstb-dev) nor in CPATH"$'\n'
fi
library() {
    local cc
    cc -std=c99 -O3 -march=native -fopenmp $zlib -DGPUNN_IMPLEMENTATION -x c -c gpunn.h -o "$work/gpunn.o" &
    cc=$!
    "$NVCC" -std=c++17 -O3 -arch="${arch:-sm_90}" --split-compile=0 $NVCC_FLAGS -I. -c gpunn_cuda.cu -o "$work/gpunn_cuda.o" && wait "$cc"
}
kernels() { # of a program's own: OBJECT FILE
    "$NVCC" -std=c++17 -O3 -arch="${arch:-sm_90}" $NVCC_FLAGS -DGPUNN_NO_IMPLEMENTATION -I. -Xcompiler -march=native,-fopenmp -x cu \
        -c "$2" -o "$1"
}
program() { # of a C file, the library's two objects, and kernels of its own; or what a Python file builds
    local name file=$1 own='' level=-O3
    name=$(basename "$file" .c)
    case $file in
    *.py)
        "$PYTHON" "$file" --build
        return
        ;;
    examples/*) own=$(ls "examples/kernels/$name"_*.cu 2>/dev/null) ;;
    tests/generator/fused.c)
        own="$work/sets_c.o $work/sets_cuda.o"
        "$PYTHON" tests/generator/build_sets.py "$work/sets_c.o" h cc -std=c99 -O1 -march=native -fopenmp &&
            "$PYTHON" tests/generator/build_sets.py "$work/sets_cuda.o" cu "$NVCC" -std=c++17 -O3 -arch="${arch:-sm_90}" $NVCC_FLAGS || return
        ;;
    tests/unit/custom.c)
        own=$work/custom_kernels.o
        kernels "$own" tests/emulator/custom.cpp || return
        ;;
    esac
    case $file in tests/ops/* | tests/unit/* | tests/generator/*) level=-O1 ;; esac
    if grep -q '^#ifdef __CUDACC__' "$file"; then
        kernels "$work/$name.o" "$file" || return
        file=$work/$name.o
    fi
    "$NVCC" $level -arch="${arch:-sm_90}" $NVCC_FLAGS $zlib -DGPUNN_NO_IMPLEMENTATION -I. -Xcompiler -march=native,-fopenmp "$file" $own \
        "$work/gpunn.o" "$work/gpunn_cuda.o" -o "$work/$name" $cmocka $zlib_link
}
export -f library kernels program
ready=$work/ready
: >"$ready"
: >"$work/ahead.log"
compile_ahead() { # MODE NAME...: PyTorch's side of the benchmarks, until they begin
    nice -n 5 "$python" tests/bench/gpu.py "$work/gpu_bench" --python "$python" --compile "$1" --ready "$ready" --seconds 270 "${@:2}" \
        >>"$work/ahead.log" 2>&1 &
}
programs=$(printf 'tests/%s.c\n' $tests)
if [ "$what" != check ]; then
    programs=$(printf '%s\n' tests/bench/fused_gpu.py "$programs" tests/bench/gpu_bench.c $(printf 'examples/%s.c ' $examples))
fi
if [ -z "$what" ] && "$python" -c 'import torch' 2>/dev/null; then
    export TORCHINDUCTOR_CACHE_DIR=$PWD/$work/inductor TORCHINDUCTOR_COMPILE_THREADS=6
    compile_ahead max-autotune gpt2_bf16 bert32_f16
    compile_ahead max-autotune resnet18_bf16 bert8_f16
    compile_ahead reduce-overhead
    compile_ahead compile
fi
stage "library" 150 bash -c library || finish
stage "programs" 150 xargs -a <(echo "$programs") -P "$(nproc)" -I{} bash -c 'program {}'
kernels=()
if [ "$what" != check ] &&
    stage "benchmarks with generated kernels" 90 "$python" tests/bench/gpu_kernels.py "$work/gpu_bench" "$work/gpu_bench_kernels" \
        "$work/gpunn.o" "$work/gpunn_cuda.o" $zlib_link; then
    kernels=(--kernels "$work/gpu_bench_kernels")
fi
[ "$what" != build ] || finish

# ---- run ----
export GPUNN_CUDA_PATH GPUNN_CUDNN_PATH GPUNN_TEST_DEVICE=cuda
check() {
    local one sanitizer
    sanitizer=$(command -v compute-sanitizer || ls "$(dirname "$NVCC")/compute-sanitizer" /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
    if [ -z "$sanitizer" ]; then
        skipped=$((skipped + 1))
        summary+="skipped  compute-sanitizer: it is not installed"$'\n'
        return
    fi
    for one in "memcheck reference" "racecheck reference" "memcheck run" "racecheck training" "memcheck golden" "memcheck fused" "racecheck golden"; do
        stage "$one" 120 "$sanitizer" --tool "${one% *}" --error-exitcode 9 "$work/${one#* }"
    done
}
if [ "$what" = check ]; then
    check
    finish
fi
stage "doctor, finding the libraries by itself" 20 env -u GPUNN_CUDA_PATH -u GPUNN_CUDNN_PATH "$work/doctor"
stage "simple_nn" 30 "$work/simple_nn"
stage "tests" 150 "$python" tests/run.py --jobs 6 --limit 130 $(printf "$work/%s " $(basename -a $tests))
runs=()
for name in $example_tests; do runs+=("$name:tests/tap.py tests/examples test_$name"); done
stage "examples" 100 env GPUNN_EXAMPLES="$work" "$python" tests/run.py --jobs 6 --limit 90 "${runs[@]}"
wait # for PyTorch
cat "$work/ahead.log" >>"$log"
left=$((seconds - SECONDS - 90))
stage "benchmarks" 240 "$python" tests/bench/gpu.py "$work/gpu_bench" "${kernels[@]}" --python "$python" --ready "$ready" --json "$out/gpu.json" \
    --seconds $((left < 40 ? 40 : left > 200 ? 200 : left))
cp "$work/stage.log" "$out/gpu.md"
stage "fused kernels" 60 "$python" tests/bench/fused_gpu.py --built --seconds 40 --json "$out/fused.json"
cat "$work/stage.log" >>"$out/gpu.md"
stage "CPU against GPU" 60 "$work/cpu_vs_gpu" --seconds 0.5
cat "$work/stage.log" >>"$out/gpu.md"
[ $((seconds - SECONDS)) -lt 30 ] || check
cat "$out/gpu.md"
finish
