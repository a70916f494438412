# Builds the library and the programs, for tests/gpu/run.sh. Sourced with `work` and what toolkit.py --shell sets; its functions run in shells
# of their own, too.
export NVCC NVCC_FLAGS CC_FLAGS
links() { # LIBRARY HEADER...: whether both are there
    local library=$1
    shift
    { printf '#include <%s>\n' "$@" && echo 'int main(void) { return 0; }'; } | cc -x c - -o "$work/links" "$library" 2>/dev/null && rm "$work/links"
}
export zlib='' zlib_link=''
if links -l:libz.a zlib.h; then zlib=-DGPUNN_ZLIB zlib_link=-l:libz.a; fi
companion() { # OBJECT FLAG...: gpunn_cuda.cu
    local object=$1
    shift
    "$NVCC" -std=c++17 -O3 --split-compile=0 $NVCC_FLAGS -Xcompiler -fPIC "$@" -I. -c gpunn_cuda.cu -o "$object"
}
library() {
    local cc
    cc -std=c99 -O3 -fPIC $CC_FLAGS $zlib -DGPUNN_IMPLEMENTATION -x c -c gpunn.h -o "$work/gpunn.o" &
    cc=$!
    companion "$work/gpunn_cuda.o" && wait "$cc" &&
        "$NVCC" $NVCC_FLAGS -shared "$work/gpunn.o" "$work/gpunn_cuda.o" -o "$work/libgpunn.so" \
            -Xlinker -soname=libgpunn.so,--exclude-libs=ALL $zlib_link
}
kernels() { # of a program's own: OBJECT FILE
    "$NVCC" -std=c++17 -O3 $NVCC_FLAGS -DGPUNN_NO_IMPLEMENTATION -I. -x cu -c "$2" -o "$1"
}
# program FILE: a C file with the library's two objects where it has kernels of its own, which share CUDA's runtime with the library's; else
# with libgpunn.so beside it. Or what a Python file builds.
program() {
    local name file=$1 own='' level=-O3 companion=$work/gpunn_cuda.o
    name=$(built "$file")
    case $file in
    tests/bench/fused_gpu.py)
        "$PYTHON" "$file" --build --work "$work"
        return
        ;;
    tests/bench/gpu_kernels.py) # it needs gpu_bench
        program tests/bench/gpu_bench.c && "$PYTHON" "$file" "$work/gpu_bench" "$work/gpu_bench_kernels" "$work/gpunn.o" \
            "$work/gpunn_cuda.o" $zlib_link
        return
        ;;
    tests/gpu/products.cu) # gpunn_cuda.cu is a part of it, whose kernels it does not call
        "$NVCC" -std=c++17 -O1 -Xptxas -O0 -diag-suppress 177 $NVCC_FLAGS -I. "$file" "$work/gpunn.o" -o "$work/$name" $zlib_link
        return
        ;;
    examples/*)
        for own in examples/kernels/"$name"*.json; do
            [ ! -e "$own" ] || "$PYTHON" -m generator "$own" -o "${own%.json}" || return
        done
        own=$(ls "examples/kernels/$name"_*.cu 2>/dev/null)
        ;;
    tests/generator/fused.c) # with a library that leaves no group of its small models to be done by single steps
        own="$work/sets_c.o $work/sets_cuda.o" companion=$work/gpunn_cuda_fused.o
        "$PYTHON" tests/generator/build_sets.py generate "$work/sets" &&
            "$PYTHON" tests/generator/build_sets.py "$work/sets_c.o" h cc -std=c99 -O1 $CC_FLAGS &&
            "$PYTHON" tests/generator/build_sets.py "$work/sets_cuda.o" cu "$NVCC" -std=c++17 -O3 $NVCC_FLAGS &&
            companion "$companion" -DGPUNN__SHORT=0 || return
        ;;
    tests/unit/custom.c)
        own=$work/custom_kernels.o
        kernels "$own" tests/emulator/custom.cpp || return
        ;;
    esac
    case $file in tests/ops/* | tests/unit/* | tests/generator/*) level=-O1 ;; esac
    if [[ $file = *.cu ]] || grep -q '^#ifdef __CUDACC__' "$file"; then
        kernels "$work/$name.o" "$file" || return
        file=$work/$name.o own+=' '
    fi
    if [ -n "$own" ]; then
        "$NVCC" $level $NVCC_FLAGS $zlib -DGPUNN_NO_IMPLEMENTATION -Itests/gpu -I. "$file" $own "$work/gpunn.o" "$companion" \
            -o "$work/$name" $zlib_link
    else
        cc $level $CC_FLAGS $zlib -DGPUNN_NO_IMPLEMENTATION -Itests/gpu -I. "$file" "$work/libgpunn.so" -Wl,-rpath,'$ORIGIN' \
            -o "$work/$name" $zlib_link -lm -lpthread
    fi
}
built() { # FILE: the program that is built from it
    case $1 in
    tests/bench/gpu_kernels.py) echo gpu_bench_kernels ;;
    *) basename "${1%.*}" ;;
    esac
}
export -f companion library kernels program built
