#!/usr/bin/env bash
# All that needs a GPU, in calls of under 9 minutes each on 16 cores. Needs nvcc, a C compiler and python3; cuBLASLt, cuDNN, NCCL and torch are
# found in Python's wheels too. Builds what it needs, every time.
#
#   tests/gpu/run.sh            is it right? Every test on the GPU; those that fail once more, alone and under memcheck; own benchmarks
#   tests/gpu/run.sh --bench [WORKLOAD ...]      is it fast? The benchmarks and the generated kernels beside PyTorch
#   tests/gpu/run.sh --check    the memory and race checkers over whole test programs
#   tests/gpu/run.sh --build    builds all of it, for which no GPU is needed
#   tests/gpu/run.sh --plan     what each stage of each call may take
#   OUT=FOLDER                  receives gpu.log (everything, as it is printed) and what each stage writes; else build/gpu
#   GPUNN_GPU_SECONDS=520       what a call may take in all
#   PYTHON=python3              which has torch, for --bench
#   GPUNN_COMMIT=...            the commit, where there is no git
#   CPATH=/path/to/include      where stb/stb_image.h lies, which two examples ask for, if libstb-dev is not installed
#
# A failing stage does not keep the next from running, and each has its own share of the time. Where there is a GPU, a program that does not
# compute on it has failed. PyTorch's compiler works while gpunn is built; what it has not finished by then is not measured. The last lines
# sum up.
set -uo pipefail
ulimit -c 0
cd "$(dirname "$0")/../.." || exit
seconds=${GPUNN_GPU_SECONDS:-520}
python=${PYTHON:-python3}
work=build/gpu
out=${OUT:-$work}
log=$out/gpu.log
. tests/gpu/stages.sh

plan_truth=(machine 20 library 75 programs 75 doctor 10 simple_nn 10 products 40 tests 120 examples 40 again 65 benchmarks 40
    "CPU against GPU" 25)
plan_bench=(machine 20 library 75 programs 85 "PyTorch, max-autotune" 25 "PyTorch, other modes" 70 benchmarks 190 "fused kernels" 55)
plan_check=(machine 20 library 75 programs 75)
checks=("memcheck reference" "racecheck reference" "memcheck run" "racecheck training" "memcheck golden" "memcheck fused" "racecheck golden")
for one in "${checks[@]}"; do plan_check+=("$one" 50); done
plan_build=(machine 60 library 1200 programs 2300)
what=${1-}
what=${what#--}
case ${what:-truth} in
truth) plan=("${plan_truth[@]}") ;;
bench) plan=("${plan_bench[@]}") ;;
check) plan=("${plan_check[@]}") ;;
build) plan=("${plan_build[@]}") seconds=3600 ;;
plan)
    for one in truth bench check; do
        declare -n plan=plan_$one
        for ((i = 0; i < ${#plan[@]}; i += 2)); do echo "$one ${plan[i + 1]} ${plan[i]}"; done
    done
    exit
    ;;
*)
    echo "tests/gpu/run.sh [--bench [WORKLOAD ...] | --check | --build | --plan]"
    exit 2
    ;;
esac
shift $(($# > 0))

mkdir -p "$work" "$out"
: >"$log"
find "$work" -maxdepth 1 -type f -perm -u+x -delete # nothing of an earlier call is run
if ! bounded 30 "$python" tests/gpu/toolkit.py --shell >"$work/toolkit" 2>>"$log"; then
    say "tests/gpu/toolkit.py failed, or the driver gives no answer: see $log"
    exit 1
fi
. "$work/toolkit"
bounded 30 "$python" tests/gpu/toolkit.py | tee -a "$log"
if [ -z "$NVCC" ]; then
    say "nvcc was not found: README.md says how to install it, NVCC=/path/to/nvcc names one"
    exit 1
fi
if [ "$what" != build ] && [ -z "$GPU_FOUND" ]; then
    say "There is no GPU here: nothing was run. tests/gpu/run.sh --build compiles and links what it would run."
    exit 1
fi
if [ -n "$DRIVER_PATH" ]; then # where the loader does not look
    export LD_LIBRARY_PATH=$DRIVER_PATH${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$PATH:${DRIVER_PATH%/*}/bin
fi
sanitizer=$(command -v compute-sanitizer || ls "$(dirname "$NVCC")/compute-sanitizer" /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)

# ---- build ----
export NVCC NVCC_FLAGS work sanitizer GPUNN_CUDA_PATH GPUNN_CUDNN_PATH GPUNN_NCCL_PATH PYTHON=$python arch=${GPU_ARCH:-sm_90}
links() { # LIBRARY HEADER...: whether both are there
    local library=$1
    shift
    { printf '#include <%s>\n' "$@" && echo 'int main(void) { return 0; }'; } | cc -x c - -o "$work/links" "$library" 2>/dev/null
}
export zlib='' zlib_link='' cmocka=-Itests/gpu
if links -lz zlib.h; then zlib=-DGPUNN_ZLIB zlib_link=-lz; fi
if links -lcmocka stdarg.h stddef.h stdint.h setjmp.h cmocka.h; then cmocka=-lcmocka; fi
tests="unit/device unit/run ops/training ops/golden ops/gradients ops/reference ops/precision generator/fused"
tests+=" unit/control unit/custom unit/derivatives unit/files unit/fit unit/group unit/load unit/loader unit/random unit/sizes unit/states"
examples=$(basename -s .c examples/*.c)
example_tests="bert_qa char_lstm cpu_vs_gpu gpt2 own_ops resnet18 roberta_classify unet"
if echo '#include <stb/stb_image.h>' | cc -x c -fsyntax-only - 2>/dev/null; then
    example_tests+=" register3d research tiny_imagenet"
else
    examples=$(grep -vxE 'gan|register3d|sdf|tiny_imagenet|vae' <<<"$examples")
    skip "gan, register3d, sdf, tiny_imagenet, vae: stb/stb_image.h is neither installed (libstb-dev) nor in CPATH"
fi
machine() {
    nvidia-smi
    uname -a
    nproc
    free -g
    "$NVCC" --version
    cc --version
    "$PYTHON" --version
    "$PYTHON" -c 'import importlib.metadata as m
for d in sorted(m.distributions(), key=lambda d: str(d.metadata["Name"])):
    if str(d.metadata["Name"]).startswith(("nvidia", "torch", "triton")): print(d.metadata["Name"], d.version)'
    ldconfig -p | grep -E 'libcuda|libcudart|cublas|cudnn|nccl|nvrtc|nvJitLink'
    ls -l "$GPUNN_CUDA_PATH" "$GPUNN_CUDNN_PATH" | grep -E '^/|cublas|cudnn|nvrtc'
    env | grep -E '^(CUDA|NCCL|NV|LD_|GPUNN|TORCH|PATH|OMP)'
    "${sanitizer:-compute-sanitizer}" --version
    echo "zlib: ${zlib_link:-not there}, cmocka: $cmocka, compute-sanitizer: ${sanitizer:-not there}"
}
library() {
    local cc
    cc -std=c99 -O3 -march=native $zlib -DGPUNN_IMPLEMENTATION -x c -c gpunn.h -o "$work/gpunn.o" &
    cc=$!
    "$NVCC" -std=c++17 -O3 -lineinfo -arch="$arch" --split-compile=0 $NVCC_FLAGS -I. -c gpunn_cuda.cu -o "$work/gpunn_cuda.o" && wait "$cc"
}
kernels() { # of a program's own: OBJECT FILE
    "$NVCC" -std=c++17 -O3 -lineinfo -arch="$arch" $NVCC_FLAGS -DGPUNN_NO_IMPLEMENTATION -I. -Xcompiler -march=native -x cu \
        -c "$2" -o "$1"
}
program() { # of a C file, the library's two objects, and kernels of its own; or what a Python file builds
    local name file=$1 own='' level=-O3
    name=$(basename "$file" .c)
    case $file in
    tests/bench/fused_gpu.py)
        "$PYTHON" "$file" --build
        return
        ;;
    tests/bench/gpu_kernels.py) # it needs gpu_bench
        program tests/bench/gpu_bench.c && "$PYTHON" "$file" "$work/gpu_bench" "$work/gpu_bench_kernels" "$work/gpunn.o" \
            "$work/gpunn_cuda.o" $zlib_link
        return
        ;;
    tests/gpu/products.cu) # gpunn_cuda.cu is a part of it, whose kernels it does not call
        "$NVCC" -std=c++17 -O1 -Xptxas -O0 -diag-suppress 177 -arch="$arch" $NVCC_FLAGS -I. "$file" "$work/gpunn.o" \
            -o "$work/products" $zlib_link
        return
        ;;
    examples/*)
        for own in examples/kernels/"$name"*.json; do
            [ ! -e "$own" ] || "$PYTHON" -m generator "$own" -o "${own%.json}" || return
        done
        own=$(ls "examples/kernels/$name"_*.cu 2>/dev/null)
        ;;
    tests/generator/fused.c)
        own="$work/sets_c.o $work/sets_cuda.o"
        "$PYTHON" tests/generator/build_sets.py generate "$work/sets" &&
            "$PYTHON" tests/generator/build_sets.py "$work/sets_c.o" h cc -std=c99 -O1 -march=native &&
            "$PYTHON" tests/generator/build_sets.py "$work/sets_cuda.o" cu "$NVCC" -std=c++17 -O3 -lineinfo -arch="$arch" $NVCC_FLAGS || return
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
    "$NVCC" $level -lineinfo -arch="$arch" $NVCC_FLAGS $zlib -DGPUNN_NO_IMPLEMENTATION -I. -Xcompiler -march=native "$file" $own \
        "$work/gpunn.o" "$work/gpunn_cuda.o" -o "$work/$name" $cmocka $zlib_link
}
export -f machine library kernels program
test_programs=$(printf 'tests/%s.c\n' $tests)
right=$(printf '%s\n' tests/gpu/products.cu "$test_programs" tests/bench/gpu_bench.c $(printf 'examples/%s.c ' $examples))
fast=$(printf '%s\n' tests/bench/gpu_kernels.py tests/bench/fused_gpu.py)
case $what in
'') programs=$right ;;
bench) programs=$fast ;;
check) programs=$test_programs ;;
build) programs=$(printf '%s\n' "$fast" "$(grep -v gpu_bench <<<"$right")") ;;
esac

# PyTorch's compiler, into a cache that the benchmarks find: in the mode that chooses kernels by their times alone on the GPU, while the
# processor builds gpunn; then in the others.
ready=$work/ready
ahead() { # SECONDS MODE WORKLOAD...
    "$python" tests/bench/gpu.py "$work/gpu_bench" --python "$python" --compile "$2" --ready "$ready" --seconds "$1" "${@:3}"
}
ahead_others() { # SECONDS WORKLOAD...: in two halves, if not told which
    local mode one limit=$1
    shift
    local half=("resnet18_bf16 bert8_f16 mlp20 mlp784_bf16 relu gelu register48 mlp784_f32 lenet4096"
        "gpt2_bf16 bert32_f16 lenet4 adamw add register192 mlp784_tf32")
    [ $# -eq 0 ] || half=("$*")
    for mode in compile reduce-overhead; do
        for one in "${half[@]}"; do ahead "$limit" "$mode" $one & done
    done
    wait
}
export -f ahead ahead_others
export ready python
stage machine bash -c 'machine; true'
with_torch=0
if [ "$what" = bench ]; then
    : >"$ready"
    export TORCHINDUCTOR_CACHE_DIR=$PWD/$work/inductor TORCHINDUCTOR_COMPILE_THREADS=8
    if "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
        with_torch=1
        tuning=$((seconds - $(planned "PyTorch, max-autotune") - SECONDS - grace))
        timeout --kill-after=2 "$tuning" bash -c "ahead $((tuning - 10)) max-autotune $*" >"$out/ahead.log" 2>&1 &
        tuner=$!
    else
        fail "PyTorch: $python has none; PYTHON=/path/to/python names one that has it"
    fi
fi
stage library bash -c library || finish
stage programs xargs -a <(echo "$programs") -P "$(nproc)" -I{} bash -c 'program {}'
[ "$what" != build ] || finish

# ---- run ----
export GPUNN_TEST_DEVICE=cuda
if [ "$what" = check ]; then
    for one in "${checks[@]}"; do
        if [ -n "$sanitizer" ]; then
            stage "$one" "$sanitizer" --tool "${one% *}" --error-exitcode 9 "$work/${one#* }"
        else
            skip "$one: compute-sanitizer is not installed"
        fi
    done
    finish
fi
if [ "$what" = bench ]; then
    if [ "$with_torch" -eq 1 ]; then
        stage "PyTorch, max-autotune" tail --pid="$tuner" -f /dev/null
        stage "PyTorch, other modes" bash -c "ahead_others @seconds $*"
        cat "$ready" >>"$log"
    fi
    kernels=()
    [ ! -x "$work/gpu_bench_kernels" ] || kernels=(--kernels "$work/gpu_bench_kernels")
    stage benchmarks "$python" tests/bench/gpu.py "$work/gpu_bench" "${kernels[@]}" --python "$python" --ready "$ready" --json "$out/gpu.json" \
        --seconds @seconds "$@"
    stage "fused kernels" "$python" tests/bench/fused_gpu.py --built --seconds @seconds --json "$out/fused.json"
    say ""
    awk '/^\| (workload \| \||kernels \|)/, /^----/ { if (/^\|/) print }' "$log"
    finish
fi
stage doctor --needs '^gpunn takes .* multiprocessors' --never ' fails: ' env -u GPUNN_CUDA_PATH -u GPUNN_CUDNN_PATH -u GPUNN_NCCL_PATH "$work/doctor"
stage simple_nn --never 'computes on the CPU' "$work/simple_nn"
stage products "$python" tests/gpu/products.py "$work/products" --out "$out/products.txt"
: >"$work/failures"
: >"$out/tests.log"
ranks=()
if [ -n "$GPUNN_NCCL_PATH" ]; then
    ranks=("ranks over NCCL:env GPUNN_TEST_NCCL=1 $work/group")
else
    skip "ranks over NCCL: libnccl.so.2 was not found (nvidia-nccl-cu13 of PyPI)"
fi
stage tests env GPUNN_TEST_SECONDS=40 "$python" tests/run.py --jobs 6 --resume --seconds @seconds --log "$out/tests.log" --failures \
    "$work/failures" $(printf "$work/%s " $(basename -a $tests)) "${ranks[@]}"
runs=()
for name in $example_tests; do runs+=("$name:tests/tap.py tests/examples test_$name"); done
stage examples env GPUNN_EXAMPLES="$work" "$python" tests/run.py --jobs 6 --seconds @seconds --log "$out/tests.log" --failures \
    "$work/failures" "${runs[@]}"
if [ -s "$work/failures" ]; then
    stage again "$python" tests/gpu/again.py "$work/failures" --seconds @seconds --sanitizer "$sanitizer" --out "$out/again.log"
fi
stage benchmarks "$python" tests/bench/gpu.py "$work/gpu_bench" --alone --rounds 5 --seconds 30 --json "$out/gpu.json"
stage "CPU against GPU" --needs '^GPU: .* multiprocessors' "$work/cpu_vs_gpu" --seconds 0.3
[ ! -s "$work/failures" ] || say $'\n'"failed tests:"$'\n'"$(head -n 30 "$work/failures" | cut -c -200)"
finish
