/* ${doc} */
struct ${kernel}_operands {
    ${members}
};

/* Sums per channel over [image][${count} channels][${area} elements]. blockIdx.x is the channel. The blocks
 * along blockIdx.y share its packs, and each writes one slice of partial sums. */
template <int V>
static __global__ void __launch_bounds__(${threads}) ${kernel}(const ${kernel}_operands o, unsigned images)
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
