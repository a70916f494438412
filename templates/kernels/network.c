/* ${comment}: evaluates samples begin to end - 1, in blocks. */
${NAME}_FN void ${function}_samples(const int lanes, const gpunn_kernel_call *call, int64_t begin,
                                    int64_t end)
{
    ${fixed}
    for (int64_t first = begin; first < end; first += ${block}) {
        const int n = ${name}_least(${block}, end - first);
        ${values}

        ${steps}
    }
}

${loops}

static int ${function}(const gpunn_kernel_call *call)
{
    const int lanes = ${name}_lanes(call->lanes);
    ${name}_loop loop = ${function}_narrow;
    if (call->stale) {
        ${packs}
    }
    ${checks}
#if defined(${NAME}_V16)
    if (lanes == 16) loop = ${function}_v16;
    if (lanes == 8) loop = ${function}_v8;
#endif
    ${name}_run(loop, call, NULL, call->batch, ${block}, ${name}_slices(call->batch, ${least}), NULL, 0);
    return 0;
}

static size_t ${function}_workspace(int64_t batch, int threads)
{
    (void)batch, (void)threads;
    return 0;
}
