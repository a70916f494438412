/* ${comment}: tiles of SAMPLES samples forward and back. Each block leaves sums of the weights' gradients and of the loss, which the
 * last one adds up. */
struct ${function}_operands {
    ${members}
    float    *partial; /* [block][${sums}] */
    unsigned *counters;
};

template <int SAMPLES>
static __global__ void __launch_bounds__(${threads}, 1)
    ${function}_kernel(const ${function}_operands o, int64_t batch)
{
    typedef float T;
    const int     PITCH = ${pitch}, FLOATS = ${floats};
    const bool    WHOLE = true;
    ${places}
    GPUNN__BLOCK_SHARED(values, SAMPLES * PITCH + FLOATS);
    float *const weights = values + SAMPLES * PITCH, *const sums = o.partial + (size_t)blockIdx.x * ${sums};
    const float  seed = ${seed};
    float        loss = 0;
    //@if labels
    float        divisor = 0;
    //@end
    ${resident}
    for (int64_t at = blockIdx.x, first = at * SAMPLES; first < batch; at += gridDim.x, first = at * SAMPLES) {
        const unsigned samples = (unsigned)(batch - first < SAMPLES ? batch - first : SAMPLES);
        const bool     is_first = at < gridDim.x;
        ${steps}
    }
    loss = reduce<${threads}>(loss, sum());
    //@if labels
    divisor = reduce<${threads}>(divisor, sum());
    //@end
    if (threadIdx.x < ${sums} - ${weights}) sums[${weights} + threadIdx.x] = threadIdx.x == 0 ? loss : ${second};
    if (gathered<${threads}, ${sums}>(o.partial, blockIdx.x, gridDim.x, 1, o.counters)) {
        ${totals}
    }
}

/* The form for a batch, and how many blocks it has. */
static int ${function}_form(int64_t batch, int multiprocessors, size_t *blocks)
{
    static const step_form forms[] = {
        ${forms}
    };
    static const step_costs costs = {${costs}};
    const int               form = step_form_for(forms, ${count}, costs, batch, multiprocessors);
    *blocks = form < 0 ? 0 : step_blocks(forms[form], batch, multiprocessors);
    return form;
}

/* ${comment} */
static int ${function}(const gpunn_kernel_call *call)
{
    ${function}_operands o = {};
    size_t blocks;
    const int form = ${function}_form(call->batch, call->multiprocessors, &blocks);
    ${filled}
    o.partial = (float *)call->workspace;
    o.counters = call->counters;
#define LAUNCH(SAMPLES)                                                                                              \
    GPUNN__LAUNCH_SHARED(call->stream, (SAMPLES * ${pitch} + ${floats}) * sizeof(float), ${function}_kernel<SAMPLES>, \
                         (unsigned)blocks, ${threads}, o, call->batch)
    switch (form) {
        ${cases}
    default: return -(int)cudaErrorInvalidValue;
    }
#undef LAUNCH
    return -(int)cudaGetLastError();
}

/* The blocks' sums; or declined, where step by step should be quicker. */
static size_t ${function}_workspace(int64_t batch, int multiprocessors)
{
    size_t blocks;
    return ${function}_form(batch, multiprocessors, &blocks) < 0 ? SIZE_MAX : area(blocks * ${sums});
}
