/* ${comment}: a block evaluates tiles of SAMPLES samples in shared memory. T: the type of the products'
 * factors. WHOLE: shared memory holds the weights of all products at once; otherwise it holds one piece of a
 * weight at a time. */
struct ${function}_operands {
    ${members}
};

template <typename T, int SAMPLES, int FLOATS, bool WHOLE>
static __global__ void __launch_bounds__(${threads}, 1)
    ${function}_kernel(const ${function}_operands o, int64_t batch)
{
    const int PITCH = ${pitch};
    ${places}
    GPUNN__BLOCK_SHARED(values, SAMPLES * PITCH + FLOATS);
//@if staged
    float *const weights = values + SAMPLES * PITCH;
    if constexpr (WHOLE) {
        ${resident}
    }
//@end
    for (int64_t first = (int64_t)blockIdx.x * SAMPLES; first < batch;
         first += (int64_t)gridDim.x * SAMPLES) {
        const unsigned samples = (unsigned)(batch - first < SAMPLES ? batch - first : SAMPLES);
        ${steps}
    }
}

static int ${function}_form(int64_t batch, int multiprocessors)
{
    static const network_form forms[] = {
        ${forms}
    };
    return form_for(forms, ${count}, (const void *)${function}_kernel<${first}>, batch, multiprocessors,
                    ${apart});
}

/* ${comment} */
static int ${function}(const gpunn_kernel_call *call)
{
    ${function}_operands o = {};
    ${filled}
#define LAUNCH(T, SAMPLES, FLOATS, WHOLE)                                                             \
    GPUNN__LAUNCH_SHARED(                                                                             \
        call->stream, (SAMPLES * ${pitch} + FLOATS) * sizeof(float),                                  \
        (${function}_kernel<T, SAMPLES, FLOATS, WHOLE>),                                              \
        (unsigned)clamped(at_least((size_t)call->batch, SAMPLES), (size_t)call->multiprocessors * 4), \
        ${threads}, o, call->batch)
    switch (${function}_form(call->batch, call->multiprocessors)) {
        ${cases}
    default: return -(int)cudaErrorInvalidValue;
    }
#undef LAUNCH
    return -(int)cudaGetLastError();
}

/* No workspace is needed. SIZE_MAX declines the batch, for which separate launches are estimated to be
 * faster. */
static size_t ${function}_workspace(int64_t batch, int multiprocessors)
{
    return ${function}_form(batch, multiprocessors) < 0 ? SIZE_MAX : 0;
}
