/* ${doc} */
struct ${kernel}_operands {
    ${members}
};

/* Rows of ${inner} elements, which are too long for registers. A block reads its row once per stage; after
 * the first stage the row is in the L2 cache. */
template <int V>
static __global__ void __launch_bounds__(${threads}) ${kernel}(const ${kernel}_operands o, unsigned rows)
{
    const unsigned PACKS = ${inner} / V, thread = threadIdx.x;
    ${scalars}
    ${accumulators}
    for (unsigned row = blockIdx.x; row < rows; row += gridDim.x) {
        ${rows}
        ${stages}
        //@if element
        for (unsigned column = thread; column < PACKS; column += ${threads}) {
            ${index}
            ${loads}
            ${results}
#pragma unroll
            for (int j = 0; j < V; j++) {
                ${call}
            }
            ${stores}
        }
        //@end
    }
    ${totals}
}
