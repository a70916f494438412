/* ${doc} */
struct ${kernel}_operands {
    ${members}
};

/* Computes U packs: first, first + step, ... All loads are issued before the first result. */
template <int V, int U, typename I>
__device__ __forceinline__ void ${kernel}_at(const ${kernel}_operands &o, I first, I step,
                                             I packs${sums_parameter})
{
    if (first >= packs) return;
    ${scalars}
    I at[U];
#pragma unroll
    for (int u = 0; u < U; u++) at[u] = first + (I)u * step < packs ? first + (I)u * step : first;
    ${loads}
#pragma unroll
    for (int u = 0; u < U; u++) {
        const I i = first + (I)u * step;
        if (i >= packs) break;
        ${results}
#pragma unroll
        for (int j = 0; j < V; j++) {
            ${call}
        }
        ${stores}
    }
}

template <int V>
static __global__ void __launch_bounds__(${threads})
    ${kernel}(const ${kernel}_operands o, unsigned packs, unsigned tail)
{
    const unsigned tile = ${threads} * ${unroll};
    //@if sums
    float sums[${sum_count}] = {};
    for (unsigned first = blockIdx.x * tile + threadIdx.x; first < packs; first += gridDim.x * tile)
        ${kernel}_at<V, ${unroll}, unsigned>(o, first, ${threads}, packs, sums);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        ${kernel}_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX, sums);
#pragma unroll
    for (int s = 0; s < ${sum_count}; s++) {
        const float total = reduce<${threads}>(sums[s], sum());
        if (threadIdx.x == 0) o.scalars[(size_t)blockIdx.x * ${sum_count} + s] = total;
    }
    ${finish}
    //@end
    //@if !sums
    ${kernel}_at<V, ${unroll}, unsigned>(o, blockIdx.x * tile + threadIdx.x, ${threads}, packs);
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < tail)
        ${kernel}_at<1, 1, size_t>(o, (size_t)packs * V + threadIdx.x, 0, SIZE_MAX);
    //@end
}
