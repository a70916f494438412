/* ${comment}: a block computes tiles of SAMPLES samples, forward and backward. Each block writes its
 * sums of the weights' gradients and of the loss; the last block, or a second launch, adds them. T: the type of
 * the products' factors. WHOLE: shared memory holds the weights of all products at once; otherwise it holds one
 * piece of a weight at a time. */
struct ${function}_operands {
    ${members}
    float    *partial; /* [block][${sums}] */
    //@if has_tables
    unsigned long long *exact;   /* sums of the gradients of the tables' elements, as scaled integers */
    float              *largest; /* [block][${tables}]: the largest |term| of those sums */
    float              *records; /* [sample][${record}] */
    //@end
    unsigned *counters;
    int64_t   batch;
};

/* Writes the total of sum i to the gradient that it belongs to. */
static __device__ __forceinline__ void ${function}_give(const ${function}_operands &o, unsigned i,
                                                        float total)
{
    ${given}
}

template <typename T, int SAMPLES, int FLOATS, bool WHOLE>
static __global__ void __launch_bounds__(${threads}, 1)
    ${function}_kernel(const ${function}_operands o, bool gathers)
{
    const int PITCH = ${pitch};
    ${places}
    GPUNN__BLOCK_SHARED(values, SAMPLES * PITCH + FLOATS);
    float *const weights = values + SAMPLES * PITCH, *const sums = o.partial + (size_t)blockIdx.x * ${sums};
    const float  seed = ${seed};
    float        loss = 0;
    //@if labels
    float        divisor = 0;
    //@end
    //@if has_tables
    float        largest[${tables}] = {};
    //@end
    if constexpr (WHOLE) {
        ${resident}
    }
    for (int64_t at = blockIdx.x, first = at * SAMPLES; first < o.batch;
         at += gridDim.x, first = at * SAMPLES) {
        const unsigned samples = (unsigned)(o.batch - first < SAMPLES ? o.batch - first : SAMPLES);
        const bool     is_first = at < gridDim.x;
        //@if has_tables
        float *const   record = o.records + first * ${record};
        //@end
        ${steps}
    }
    //@if has_tables
#pragma unroll
    for (int i = 0; i < ${tables}; i++) {
        const float all = reduce<${threads}>(largest[i], larger());
        if (threadIdx.x == 0) o.largest[blockIdx.x * ${tables} + i] = all;
    }
    //@end
    loss = reduce<${threads}>(loss, sum());
    //@if labels
    divisor = reduce<${threads}>(divisor, sum());
    //@end
    if (threadIdx.x < ${sums} - ${weights})
        sums[${weights} + threadIdx.x] = threadIdx.x == 0 ? loss : ${second};
    if (gathers && gathered<${threads}, ${sums}>(o.partial, blockIdx.x, gridDim.x, 1, o.counters)) {
        ${factor}
        for (unsigned i = threadIdx.x; i < ${weights}; i += ${threads})
            ${function}_give(o, i, o.partial[i]${scaled});
        if (threadIdx.x == 0) *o.${loss} = ${mean}o.partial[${weights}]${divided};
    }
}

/* The second launch: each lane of a block adds one sum over all blocks of the first launch. */
static __global__ void __launch_bounds__(${threads})
    ${function}_sums(const ${function}_operands o, unsigned blocks)
{
    const unsigned i = blockIdx.x * 32 + threadIdx.x % 32;
    const float    total = column_total<${sums}>(o.partial, i, blocks);
    ${later}
    if (threadIdx.x < 32 && i < ${weights}) ${function}_give(o, i, total${scaled});
    if (threadIdx.x < 32 && i == ${weights}) *o.${loss} = ${mean}total${divided};
}

//@if has_tables
/* The launch that adds the samples' records to the tables' gradients. blocks: of the first launch. */
static __global__ void __launch_bounds__(${threads})
    ${function}_add(const ${function}_operands o, unsigned blocks)
{
    const int64_t begin = (int64_t)blockIdx.x * ${threads} + threadIdx.x,
                  step = (int64_t)gridDim.x * ${threads};
    ${add}
}

/* The launch that converts these sums and writes the tables' gradients. */
static __global__ void __launch_bounds__(${threads})
    ${function}_bring(const ${function}_operands o, unsigned blocks${sliced})
{
    const int64_t begin = (int64_t)blockIdx.x * ${threads} + threadIdx.x,
                  step = (int64_t)gridDim.x * ${threads};
    ${last}
    ${bring}
}
//@end

/* The form of the kernel for a batch. */
static step_choice ${function}_choice(int64_t batch, int multiprocessors)
{
    static const step_form forms[] = {
        ${forms}
    };
    static const step_costs costs = {${costs}};
    return step_choice_for(forms, ${count}, costs, (const void *)${function}_kernel<${first}>, batch,
                           multiprocessors);
}

/* ${comment} */
static int ${function}(const gpunn_kernel_call *call)
{
    ${function}_operands o = {};
    const step_choice choice = ${function}_choice(call->batch, call->multiprocessors);
    ${filled}
    o.partial = (float *)call->workspace;
    o.counters = call->counters;
    o.batch = call->batch;
    //@if has_tables
    o.exact = (unsigned long long *)((char *)call->workspace + area(choice.blocks * ${sums}));
    o.largest = (float *)(o.exact + ${elements});
    o.records = o.largest + choice.blocks * ${tables};
    const cudaError_t cleared = cudaMemsetAsync(o.exact, 0, ${elements} * sizeof *o.exact,
                                                (cudaStream_t)call->stream);
    if (cleared != cudaSuccess) return -(int)cleared;
    //@end
#define LAUNCH(T, SAMPLES, FLOATS, WHOLE)                                                          \
    GPUNN__LAUNCH_SHARED(call->stream, (SAMPLES * ${pitch} + FLOATS) * sizeof(float),              \
                         (${function}_kernel<T, SAMPLES, FLOATS, WHOLE>), (unsigned)choice.blocks, \
                         ${threads}, o, !choice.again)
    switch (choice.form) {
        ${cases}
    default: return -(int)cudaErrorInvalidValue;
    }
#undef LAUNCH
    if (choice.again)
        GPUNN__LAUNCH_ON(call->stream, ${function}_sums, (unsigned)at_least(${weights} + 1, 32), ${threads},
                         o, (unsigned)choice.blocks);
    //@if has_tables
    const size_t most = (size_t)call->multiprocessors * 8;
    GPUNN__LAUNCH_ON(call->stream, ${function}_add,
                     (unsigned)clamped(at_least((size_t)o.batch * ${most}, ${threads}), most), ${threads}, o,
                     (unsigned)choice.blocks);
    GPUNN__LAUNCH_ON(call->stream, ${function}_bring,
                     (unsigned)clamped(at_least(${elements}, ${threads}), most), ${threads}, o,
                     (unsigned)choice.blocks${slices});
    //@end
    return -(int)cudaGetLastError();
}

/* Bytes for the blocks' sums and the gradients of tables. SIZE_MAX declines the batch, for which separate
 * launches are estimated to be faster. */
static size_t ${function}_workspace(int64_t batch, int multiprocessors)
{
    const step_choice choice = ${function}_choice(batch, multiprocessors);
    return choice.form < 0 ? SIZE_MAX : area(choice.blocks * ${sums})${more};
}
