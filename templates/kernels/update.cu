/* ${comment} */
template <int V>
__device__ __forceinline__ void ${function}_at(const gpunn_update &u, const gpunn_update_numbers &n,
                                               float limit, size_t i)
{
    const pack<V, float> in_p = load<V>(u.parameter, i), gradient = load<V>(u.gradient, i);
    ${loads}
    ${numbers}
    ${results}
#pragma unroll
    for (int j = 0; j < V; j++) {
        float g = gradient[j] * n.scale;
        g = g > limit ? limit : g < -limit ? -limit : g;
        ${call}
    }
    store(u.parameter, i, p);
    ${stores}
}

template <int V>
static __global__ void __launch_bounds__(${threads})
    ${function}_kernel(const gpunn_update u, const gpunn_update_numbers *in_memory)
{
    const gpunn_update_numbers n = *in_memory;
    const float                limit = u.gradient_limit > 0 ? u.gradient_limit : INFINITY;
    const size_t               i = blockIdx.x * (size_t)${threads} + threadIdx.x, packs = (size_t)u.count / V;
    if (!n.go) return;
    if (i < packs) ${function}_at<V>(u, n, limit, i);
    if (V > 1 && i < (size_t)u.count % V) ${function}_at<1>(u, n, limit, packs * V + i);
}

static int ${function}(const gpunn_update *u, const gpunn_update_numbers *in_memory, void *stream)
{
    const bool wide = ${aligned};
    const unsigned blocks = (unsigned)at_least((size_t)u->count, wide ? ${tile} : ${threads});
    if (wide)
        GPUNN__LAUNCH_ON(stream, ${function}_kernel<${pack}>, blocks, ${threads}, *u, in_memory);
    else
        GPUNN__LAUNCH_ON(stream, ${function}_kernel<1>, blocks, ${threads}, *u, in_memory);
    return -(int)cudaGetLastError();
}
