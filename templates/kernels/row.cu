/* ${doc} */
struct ${kernel}_operands {
    ${members}
};

/* Rows of ${inner} elements. ${team} threads hold a row in registers. */
template <int V>
static __global__ void __launch_bounds__(${threads}) ${kernel}(const ${kernel}_operands o, unsigned rows)
{
    const unsigned PACKS = ${inner} / V, TEAM = ${team}, TEAMS = ${threads} / TEAM;
    enum { K = (PACKS + TEAM - 1) / TEAM };
    const unsigned thread = threadIdx.x % TEAM, team = threadIdx.x / TEAM;
    ${scalars}
    ${accumulators}
    //@if sums
    for (unsigned first = blockIdx.x * TEAMS; first < rows; first += gridDim.x * TEAMS) {
    //@end
    //@if !sums
    {
        const unsigned first = blockIdx.x * TEAMS;
    //@end
        const bool     live = first + team < rows;
        const unsigned row = live ? first + team : rows - 1;
        ${rows}
        //@if by_column
        unsigned column_of[K];
#pragma unroll
        for (int k = 0; k < K; k++) column_of[k] = min(thread + (unsigned)k * TEAM, PACKS - 1);
        //@end
        //@if by_place
        size_t at[K];
#pragma unroll
        for (int k = 0; k < K; k++) at[k] = (size_t)row * PACKS + min(thread + (unsigned)k * TEAM, PACKS - 1);
        //@end
        ${loads}
        ${stages}
        ${late_loads}
        //@if element
        if (live) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                const unsigned column = thread + (unsigned)k * TEAM;
                ${index}
                if (column >= PACKS) break;
                ${results}
#pragma unroll
                for (int j = 0; j < V; j++) {
                    ${call}
                }
                ${stores}
            }
        }
        //@end
    }
    ${totals}
}
