/* ${comment} */
${NAME}_LOOPS ${function}_loop(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                                double *sums)
{
    ${operands}
    for (int64_t row = begin; row < end; ++row) {
        ${body}
    }
}
