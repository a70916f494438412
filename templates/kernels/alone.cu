/* Computes the sums of ${kernel} in each block of the launch that needs them, if the elements are few. */
template <int THREADS>
__device__ __forceinline__ void ${kernel}_alone(const ${kernel}_operands &o, unsigned elements, ${results})
{
    float sums[${sum_count}] = {};
    for (unsigned at = threadIdx.x; at < elements; at += THREADS)
        ${kernel}_at<1, 1, unsigned>(o, at, 0, elements, sums);
    ${totals}
    ${made}
}
