/* The narrowest vectors: for processors without the wider ones. */
#if defined(__GNUC__)
#define ${NAME}_V4
enum { ${NAME}_NARROWEST = 4 };
#else
#define ${NAME}_V1
enum { ${NAME}_NARROWEST = 1 };
#endif
#if defined(__clang__)
#define ${NAME}_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define ${NAME}_UNROLL _Pragma("GCC unroll 16")
#if defined(__CUDACC__)
#pragma nv_diag_suppress 1675 /* nvcc does not know that pragma, but passes it to gcc */
#endif
#else
#define ${NAME}_UNROLL
#endif

/* Keeps x in a register. Otherwise gcc reloads it from memory for each product, and the loads become the
 * bottleneck. */
#if defined(__GNUC__) && defined(__x86_64__) && !defined(__clang__)
#define ${NAME}_HOLD(x) __asm__("" : "+v"(x))
#else
#define ${NAME}_HOLD(x) (void)(x)
#endif

/* Packs w[out][in] and b[out] (or NULL) as panels of several vectors of y's columns; the last panel has what
 * is left. A panel holds the columns' biases, then one row per input. Columns beyond `out` are 0. */
${NAME}_SELDOM void ${name}_pack(float *to, const float *w, const float *b, int in, int out, int lanes)
{
    const int panel = ${panels} * lanes;
    for (int j = 0; j < out; j += panel) {
        const int width = (${name}_least(out - j, panel) + lanes - 1) / lanes * lanes;
        for (int c = 0; c < width; ++c) *to++ = b != NULL && j + c < out ? b[j + c] : 0;
        for (int k = 0; k < in; ++k)
            for (int c = 0; c < width; ++c) *to++ = j + c < out ? w[(j + c) * in + k] : 0;
    }
}

/* The vector width in floats to use on a processor with vectors of `most` floats. */
${NAME}_FN int ${name}_lanes(int most)
{
#if defined(${NAME}_V16)
    if (most >= 8) return most >= 16 ? 16 : 8;
#endif
    (void)most;
    return ${NAME}_NARROWEST;
}

${levels}

/* y[rows][out] = x w^T + b, with packed weights. x_row: floats from one row of x to the next. lanes: floats
 * of a vector. */
${NAME}_FN void ${name}_product(int lanes, float *y, const float *x, int64_t x_row, const float *packed,
                                int rows, int in, int out)
{
#if defined(${NAME}_V16)
    if (lanes == 16)
        ${name}_v16_product(y, x, x_row, packed, rows, in, out);
    else if (lanes == 8)
        ${name}_v8_product(y, x, x_row, packed, rows, in, out);
    else
#endif
#if defined(${NAME}_V4)
        ${name}_v4_product(y, x, x_row, packed, rows, in, out);
#else
        ${name}_v1_product(y, x, x_row, packed, rows, in, out);
#endif
}
