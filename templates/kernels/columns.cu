/* ${doc} */
struct ${kernel}_operands {
    ${members}
};

/* Sums per column over the rows of a matrix of ${count} columns. A thread keeps its pack of columns. Groups
 * of TEAM threads in the blocks along blockIdx.y share the rows, and each block writes one slice of partial
 * sums. */
template <int V>
static __global__ void __launch_bounds__(${threads}) ${kernel}(const ${kernel}_operands o, unsigned rows)
{
    const unsigned PACKS = ${count} / V, TEAM = power_of_2(PACKS), TEAMS = ${threads} / TEAM;
    const unsigned first = blockIdx.x * TEAM, column = first + threadIdx.x % TEAM;
    ${scalars}
    ${accumulators}
    if (column < PACKS) {
        ${columns}
#pragma unroll ${unroll}
        for (unsigned row = blockIdx.y * TEAMS + threadIdx.x / TEAM; row < rows; row += gridDim.y * TEAMS) {
            ${index}
            ${rows}
            ${loads}
            ${results}
#pragma unroll
            for (int j = 0; j < V; j++) {
                ${call}
            }
            ${stores}
        }
    }
    ${totals}
}
