/* ${doc} */
struct ${kernel}_operands {
    ${members}
};

/* Sums over all planes of ${area} elements that belong to the same of ${count} channels: blockIdx.x. Its packs go round the
 * blocks of all blockIdx.y, whose sums are the slices. */
template <int V> static __global__ void __launch_bounds__(${threads}) ${kernel}(const ${kernel}_operands o, unsigned images)
{
    const unsigned PACKS = ${area} / V, channel = blockIdx.x, packs = images * PACKS;
    ${scalars}
    ${channels}
    ${accumulators}
#pragma unroll ${unroll}
    for (unsigned at = blockIdx.y * ${threads} + threadIdx.x; at < packs; at += gridDim.y * ${threads}) {
        ${index}
        ${loads}
        ${results}
#pragma unroll
        for (int j = 0; j < V; j++) {
            ${call}
        }
        ${stores}
    }
    ${totals}
}
