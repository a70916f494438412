/* ${comment} */
${NAME}_LOOPS ${function}_loop(const gpunn_update *u, gpunn_update_numbers numbers, int64_t begin, int64_t end)
{
    const float limit = u->gradient_limit > 0 ? u->gradient_limit : INFINITY;
    ${constants}
    const float *const gradient = u->gradient;
    float *const       parameter = u->parameter;
    ${states}
    //@if !roots
    ${NAME}_VECTOR
    for (int64_t i = begin; i < end; ++i) {
        float p = parameter[i], g = gradient[i] * numbers.scale;
        g = ${name}_where(g > limit, limit, ${name}_where(g < -limit, -limit, g));
        ${step}
        parameter[i] = p;
    }
    //@end
    //@if roots
    enum { PIECE = 64 }; /* elements whose roots are taken together */
    for (int64_t at = begin; at < end; at += PIECE) {
        const int64_t n = end - at < PIECE ? end - at : (int64_t)PIECE;
        float         root[PIECE], kept[PIECE];
        ${NAME}_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         g = gradient[i] * numbers.scale;
            g = ${name}_where(g > limit, limit, ${name}_where(g < -limit, -limit, g));
            ${step}
        }
        ${name}_roots(root, n);
        ${NAME}_VECTOR
        for (int64_t j = 0; j < n; ++j) {
            const int64_t i = at + j;
            float         p = parameter[i];
            ${move}
            parameter[i] = p;
        }
    }
    //@end
}

typedef struct ${function}_work {
    const gpunn_update         *u;
    const gpunn_update_numbers *numbers;
    int                         slices;
} ${function}_work;

static void ${function}_task(void *arg, int index, int threads)
{
    const ${function}_work *w = (const ${function}_work *)arg;
    ${function}_loop(w->u, *w->numbers, ${name}_slice(w->u->count, 16, w->slices, w->slices * index / threads),
                     ${name}_slice(w->u->count, 16, w->slices, w->slices * (index + 1) / threads));
}

static int ${function}(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    ${function}_work work = {u, numbers, ${name}_slices(u->count, 16384)};
    if (!numbers->go) return 0;
    gpunn_parallel(threads < work.slices ? threads : work.slices, ${function}_task, &work);
    return 0;
}
