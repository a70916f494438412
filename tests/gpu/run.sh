#!/usr/bin/env bash
# All that needs a GPU, in three calls. tests/gpu/README.md says how to use them. Needs python3; cuBLASLt, cuDNN, NCCL and torch are found in
# Python's wheels too. Where programs are built, it needs nvcc and a C compiler.
#
#   tests/gpu/run.sh --bundle              builds every program for an H100 or H200 into build/gpu.tar.xz; needs no GPU
#   tests/gpu/run.sh [--prebuilt] [TEST ...]       is it right? Every test, or ops/golden; those that fail again, alone     240 s
#   tests/gpu/run.sh [--prebuilt] --bench [WORKLOAD ...]      is it fast? Models and generated kernels beside PyTorch       420 s
#   tests/gpu/run.sh [--prebuilt] --check ["TOOL PROGRAM" ...]      compute-sanitizer over what failed, then over programs  120 s
#   tests/gpu/run.sh --plan                what each stage of each call may take
#
#   --prebuilt              takes the programs from build/gpu.tar.xz. What does not fit this machine is built here, as all is without it.
#   OUT=FOLDER              receives gpu.log (everything, as it is printed), summary and what each stage writes; else build/gpu
#   GPUNN_GPU_SECONDS=240   what a call may take in all; 240 s more by default where it has to build
#   GPUNN_BUNDLE=FILE       the archive, if it is not build/gpu.tar.xz; GPUNN_GPU_WORK=FOLDER for the programs, if not build/gpu
#   PYTHON=python3          which has torch, for --bench
#   GPUNN_COMMIT=...        the commit, where there is neither git nor an archive
#   CPATH=/path/to/include  where stb/stb_image.h lies, which some examples ask for, if libstb-dev is not installed
#
# A failing stage does not keep the next from running, and each has its own share of the time. Where there is a GPU, a program that does not
# compute on it has failed. While the tests run, PyTorch's compiler works for --bench. The last lines sum up.
set -uo pipefail
ulimit -c 0
cd "$(dirname "$0")/../.." || exit
python=${PYTHON:-python3}
bundle=${GPUNN_BUNDLE:-build/gpu.tar.xz}
work=${GPUNN_GPU_WORK:-build/gpu}

plan_truth=(machine 5 doctor 8 simple_nn 6 products 32 tests 125 again 45)
plan_bench=(machine 5 "PyTorch, max-autotune" 90 "PyTorch, other modes" 30 benchmarks 150 "fused kernels" 60 "other rows" 60
    "CPU against GPU" 12)
plan_check=(machine 5 "memcheck of what failed" 55)
plan_building=(library 110 programs 130)
plan_bundle=(library 1200 programs 5400 archive 600)
prebuilt=0 what=truth
while [ $# -gt 0 ]; do
    case $1 in
    --prebuilt) prebuilt=1 ;;
    --bench | --check | --bundle | --plan) what=${1#--} ;;
    --*)
        sed -n '/^#   tests/s/^#   //p' "$0"
        exit 2
        ;;
    *) break ;;
    esac
    shift
done
checks=("memcheck golden" "racecheck training")
[ "$what" != check ] || [ $# -eq 0 ] || checks=("$@")
for one in "${checks[@]}"; do plan_check+=("$one" 25); done
if [ "$what" = plan ]; then
    for one in truth bench check building; do
        declare -n plan=plan_$one
        for ((i = 0; i < ${#plan[@]}; i += 2)); do echo "$one ${plan[i + 1]} ${plan[i]}"; done
    done
    exit
fi
if [ "$what" = bundle ]; then
    export GPUNN_GPU_BUNDLE=1
    work=${GPUNN_GPU_WORK:-build/bundle}
fi
declare -A limit=([truth]=240 [bench]=420 [check]=120 [bundle]=7200)
seconds=${GPUNN_GPU_SECONDS:-${limit[$what]}}
declare -n plan=plan_$what
out=${OUT:-$work}
log=$out/gpu.log
. tests/gpu/stages.sh

mkdir -p "$work" "$out"
: >"$log"
: >"$out/summary"
if ! bounded 30 "$python" tests/gpu/toolkit.py --shell >"$work/toolkit" 2>>"$log"; then
    say "tests/gpu/toolkit.py failed, or the driver gives no answer: see $log"
    exit 1
fi
. "$work/toolkit"
if [ "$what" != bundle ] && [ -z "$GPU_FOUND" ]; then
    say "There is no GPU here: nothing was run. tests/gpu/run.sh --bundle compiles and links what it would run."
    exit 1
fi
if [ -n "$DRIVER_PATH" ]; then # where the loader does not look
    export LD_LIBRARY_PATH=$DRIVER_PATH${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$PATH:${DRIVER_PATH%/*}/bin
fi
[ -z "${PYTHON-}" ] || export PATH=$PATH:$(dirname "$(command -v "$PYTHON")") # programs look for its wheels there
if [ "$prebuilt" -eq 1 ]; then
    "$python" tests/generator/build_sets.py specs # for generator/fused
    if bounded 30 "$python" tests/gpu/bundle.py unpack "$bundle" "$work" --arch "$GPU_ARCH" >"$work/unpacked" 2>&1; then
        export GPUNN_COMMIT=${GPUNN_COMMIT:-$(sed -n 's/.*, commit //p' "$work/unpacked")}
        while read -r line; do skip "$line"; done < <(grep 'does not load' "$work/unpacked")
    else
        prebuilt=0
        skip "$(tail -n 1 "$work/unpacked")"
    fi
    say "$(tail -n 1 "$work/unpacked")"
fi
if [ "$prebuilt" -eq 0 ]; then # nothing of an earlier call is run; what is newer than every source goes into the archive as it is
    older=()
    [ "$what" != bundle ] || older=(! -newer "$("$python" tests/gpu/bundle.py newest)")
    find "$work" -maxdepth 1 -type f \( -perm -u+x -o -name stamp.json \) "${older[@]}" -delete
fi

# ---- build what is not there ----
export work SANITIZER GPUNN_CUDA_PATH GPUNN_CUDNN_PATH GPUNN_NCCL_PATH PYTHON=$python
. tests/gpu/programs.sh
# Those of worth first: what fails here, a user meets first.
tests="ops/golden ops/gradients ops/reference ops/precision generator/fused unit/device unit/run ops/training unit/fit unit/files unit/load"
tests+=" unit/loader unit/control unit/derivatives unit/states unit/sizes unit/random unit/custom unit/profile unit/group unit/lora"
examples=$(ls examples/*.c examples/*.cu)
example_tests="own_ops cpu_vs_gpu cuda_interop resnet18 gpt2 llama lora bert_qa roberta_classify char_lstm unet pinn ocr"
if echo '#include <stb/stb_image.h>' | cc -x c -fsyntax-only - 2>/dev/null || [ "$prebuilt" -eq 1 ]; then
    example_tests+=" tiny_imagenet register3d research"
else
    examples=$(grep -vE '/(gan|register3d|sdf|tiny_imagenet|vae)\.c' <<<"$examples")
    skip "gan, register3d, sdf, tiny_imagenet, vae: stb/stb_image.h is neither installed (libstb-dev) nor in CPATH"
fi
if [ "$what" = truth ] && [ $# -gt 0 ]; then
    tests=$* example_tests='' examples=$(ls examples/{doctor,simple_nn}.c)
fi
test_programs=$(printf 'tests/%s.c\n' $tests)
right=$(printf '%s\n' tests/gpu/products.cu "$test_programs" "$examples")
fast=$(printf '%s\n' tests/bench/gpu_kernels.py tests/bench/fused_gpu.py examples/cpu_vs_gpu.c)
case $what in
truth) programs=$right ;;
bench) programs=$fast ;;
check) programs=$test_programs ;;
bundle) programs=$(printf '%s\n' "$fast" "$right" | sort -u) ;;
esac
programs=$(while read -r one; do [ -x "$work/$(built "$one")" ] || echo "$one"; done <<<"$programs")
if [ -n "$programs" ]; then
    if [ -z "$NVCC" ]; then
        fail "nvcc was not found, examples/guides/gpu.md says how to install it, NVCC=/path/to/nvcc names one; without it there is no" \
            "$(while read -r one; do built "$one"; done <<<"$programs" | paste -sd ' ' | cut -c -100)"
    else
        [ "$what" = bundle ] || plan=("${plan_building[@]}" "${plan[@]}")
        [ "$what" = bundle ] || seconds=${GPUNN_GPU_SECONDS:-$((seconds + 240))}
        { [ -x "$work/libgpunn.so" ] && [ -e "$work/gpunn_cuda.o" ]; } ||
            stage library bash -c library &&
            stage programs xargs -a <(echo "$programs") -P "$(nproc)" -I{} bash -c 'program {}'
    fi
fi
if [ "$what" = bundle ]; then
    [ "$failed" -gt 0 ] || stage archive "$python" tests/gpu/bundle.py pack "$work" "$bundle"
    finish
fi

# ---- PyTorch's compiler, into a cache that the benchmarks find ----
ready=$work/ready
export ready python TORCHINDUCTOR_CACHE_DIR=$(realpath "$work")/inductor TORCHINDUCTOR_COMPILE_THREADS=8
ahead() { # SECONDS MODE WORKLOAD...
    "$python" tests/bench/gpu.py "$work/gpu_bench" --python "$python" --compile "$2" --ready "$ready" --seconds "$1" "${@:3}"
}
ahead_others() { # SECONDS WORKLOAD...: in two halves, if not told which
    local mode one limit=$1 running=() code=0
    shift
    local half=("mlp20 resnet18_bf16 bert8_f16 mlp784_bf16 relu gelu register48 mlp784_f32 lenet4096"
        "lenet4 gpt2_bf16 bert32_f16 adamw add register192 mlp784_tf32")
    [ $# -eq 0 ] || half=("$*")
    for mode in compile reduce-overhead; do
        for one in "${half[@]}"; do
            ahead "$limit" "$mode" $one &
            running+=($!)
        done
    done
    for one in "${running[@]}"; do wait "$one" || code=$((code == 1 ? 1 : $?)); done
    return "$code"
}
export -f ahead ahead_others
with_torch=0
if "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then with_torch=1; fi

# ---- run ----
export GPUNN_TEST_DEVICE=cuda GPUNN_TEST_SECONDS=${GPUNN_TEST_SECONDS:-30} GPUNN_EXAMPLES=$(realpath "$work")
machine() {
    nvidia-smi
    uname -a
    nproc
    free -g
    "${NVCC:-nvcc}" --version
    cc --version
    ldd --version
    "$PYTHON" --version
    "$PYTHON" -c 'import importlib.metadata as m
for d in sorted(m.distributions(), key=lambda d: str(d.metadata["Name"])):
    if str(d.metadata["Name"]).startswith(("nvidia", "torch", "triton")): print(d.metadata["Name"], d.version)'
    ldconfig -p | grep -E 'libcuda|libcudart|cublas|cudnn|nccl|nvrtc|nvJitLink'
    ls -l "$GPUNN_CUDA_PATH" "$GPUNN_CUDNN_PATH" | grep -E '^/|cublas|cudnn|nvrtc'
    env | grep -E '^(CUDA|NCCL|NV|LD_|GPUNN|TORCH|PATH|OMP)'
    [ -z "$SANITIZER" ] || "$SANITIZER" --version
    echo "compute-sanitizer: ${SANITIZER:-not there}"
}
rows() { # STAGE JSON WORKLOAD...
    local kernels=()
    [ ! -x "$work/gpu_bench_kernels" ] || kernels=(--kernels "$work/gpu_bench_kernels")
    stage "$1" "$python" tests/bench/gpu.py "$work/gpu_bench" "${kernels[@]}" --python "$python" --ready "$ready" --json "$out/$2" \
        --seconds @seconds "${@:3}"
}
export -f machine
stage machine bash -c 'machine; true'
case $what in
truth)
    if [ "$with_torch" -eq 1 ]; then
        nice timeout --kill-after=2 $((seconds - SECONDS)) bash -c "ahead_others $seconds" >"$out/ahead.log" 2>&1 &
        compiler=$!
    fi
    stage doctor --needs '^gpunn takes .* multiprocessors' --never ' fails: \|^cu\(BLASLt\|DNN\)  *[^0-9 ]' \
        env -u GPUNN_CUDA_PATH -u GPUNN_CUDNN_PATH -u GPUNN_NCCL_PATH "$work/doctor" # which names each library's release, or why not
    stage simple_nn --never 'computes on the CPU' "$work/simple_nn"
    stage products "$python" tests/gpu/products.py "$work/products" --out "$out/products.txt"
    runs=($(printf "$work/%s " $(basename -a $tests)))
    if [[ " $tests " != *" unit/group "* || ! -x $work/group ]]; then
        : # nor over NCCL
    elif [ -n "$GPUNN_NCCL_PATH" ]; then
        runs+=("ranks over NCCL:env GPUNN_TEST_NCCL=1 $work/group")
    else
        skip "ranks over NCCL: libnccl.so.2 was not found (nvidia-nccl-cu13 of PyPI)"
    fi
    for name in $example_tests; do runs+=("$name:tests/tap.py tests/examples test_$name"); done
    : >"$work/failures"
    : >"$out/tests.log"
    stage tests "$python" tests/run.py --jobs 8 --resume --seconds @seconds --log "$out/tests.log" --failures "$work/failures" "${runs[@]}"
    if [ -s "$work/failures" ]; then
        stage again "$python" tests/gpu/again.py "$work/failures" --seconds @seconds --out "$out/again.log"
        say $'\n'"failed tests:"$'\n'"$(head -n 30 "$work/failures" | cut -c -200)"
    fi
    [ -z "${compiler-}" ] || kill "$compiler" 2>/dev/null
    ;;
bench)
    if [ "$with_torch" -eq 1 ]; then # which chooses kernels by their times, so that it has the GPU to itself
        stage "PyTorch, max-autotune" bash -c "ahead @seconds max-autotune $*"
        stage "PyTorch, other modes" bash -c "ahead_others @seconds $*"
    else
        fail "PyTorch: $python has none; PYTHON=/path/to/python names one that has it"
    fi
    touch "$ready"
    if [ $# -gt 0 ]; then
        rows benchmarks gpu.json "$@"
    else
        rows benchmarks gpu.json mlp20 lenet4 resnet18_bf16 bert8_f16 bert32_f16 gpt2_bf16
        stage "fused kernels" "$python" tests/bench/fused_gpu.py --built --work "$work" --seconds @seconds --json "$out/fused.json"
        rows "other rows" other.json copy mlp784_bf16 relu adamw gelu add register48 register192 mlp784_f32 mlp784_tf32 lenet4096
        stage "CPU against GPU" --needs '^GPU: .* multiprocessors' "$work/cpu_vs_gpu" --seconds 0.3
    fi
    say ""
    awk '/^\| (workload \| \||kernels \|)/, /^----/ { if (/^\|/) print }' "$log"
    ;;
check)
    if [ -z "$SANITIZER" ]; then
        skip "${checks[*]}: compute-sanitizer is not installed (nvidia-cuda-sanitizer-api of PyPI)"
        finish
    fi
    if [ -s "$work/failures" ]; then
        stage "memcheck of what failed" "$python" tests/gpu/again.py "$work/failures" --seconds @seconds --sanitizer "$SANITIZER" \
            --out "$out/again.log"
    else
        skip "memcheck of what failed: no test failed, or none was run"
    fi
    for one in "${checks[@]}"; do
        stage "$one" env -u GPUNN_TEST_SECONDS "$SANITIZER" --tool "${one% *}" --error-exitcode 9 "$work/${one#* }"
    done
    ;;
esac
finish
