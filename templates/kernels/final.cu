/* Adds the slices of partial sums of ${kernel} for each of ${count} places, and computes the results from the
 * totals. */
static __global__ void __launch_bounds__(1024) ${final}(const ${kernel}_operands o${parameters})
{
    const unsigned place = blockIdx.x * blockDim.x + threadIdx.x;
    ${totals}
    if (threadIdx.y > 0 || place >= ${count}) return;
    ${made}
}
