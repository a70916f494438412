${isa} static void ${function}_${level}(const gpunn_kernel_call *call, float *const *stat, int64_t begin,
${space} int64_t end, double *sums)
{
    (void)stat, (void)sums;
    ${function}_samples(${lanes}, call, begin, end);
}
