/* ${comment} */
${NAME}_LOOPS(${function}_loop, call->lanes,
              (const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end, double *sums),
              (call, stat, begin, end, sums))
{
    ${operands}
    for (int64_t i = begin; i < end;) {
        ${places}
        ${NAME}_VECTOR
        for (int j = 0; j < n; ++j)
            ${call}
        ${after}
        i += n;
    }
}
