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

static int ${function}(const gpunn_update *u, const gpunn_update_numbers *numbers, int threads)
{
    if (!numbers->go) return 0;
#ifdef _OPENMP
    const int slices = ${name}_slices(u->count, 16384);
    if (threads > 1 && slices > 1) {
        ${NAME}_OMP(parallel num_threads(threads < slices ? threads : slices))
        {
            const unsigned mode = ${name}_flush_denormals();
            ${NAME}_OMP(for schedule(static))
            for (int i = 0; i < slices; ++i)
                ${function}_loop(u, *numbers, ${name}_slice(u->count, 16, slices, i),
                                 ${name}_slice(u->count, 16, slices, i + 1));
            ${name}_restore(mode);
        }
        return 0;
    }
#endif
    const unsigned mode = ${name}_flush_denormals();
    (void)threads;
    ${function}_loop(u, *numbers, 0, u->count);
    ${name}_restore(mode);
    return 0;
}
