/* ${comment} */
${NAME}_LOOPS(${function}_loop, lanes,
              (const gpunn_update *u, gpunn_update_numbers n, int lanes, int64_t begin, int64_t end),
              (u, n, lanes, begin, end))
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    ${numbers}
    const float *const gradient = u->gradient;
    float *const       p = u->parameter;
    ${states}
    (void)lanes;
    ${NAME}_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float g = gradient[i] * n.scale;
        g = ${name}_where(g > limit, limit, ${name}_where(g < -limit, -limit, g));
        ${call}
    }
}

typedef struct ${function}_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices, lanes;
} ${function}_work;

static void ${function}_task(void *arg, int index, int threads)
{
    const ${function}_work *w = (const ${function}_work *)arg;
    ${function}_loop(w->u, *w->numbers, w->lanes,
                     ${name}_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     ${name}_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int ${function}(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads, int lanes)
{
    ${function}_work work = {u, numbers, ${name}_slices(u->count, 16384), lanes};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, ${function}_task, &work);
    return 0;
}
