enum { ${NAME}_BLOCK = ${block}, ${NAME}_ROW = ${row}, ${NAME}_SLICES = 64 };

/* Before a loop whose iterations are independent of each other. */
#if defined(__clang__) && defined(__AVX512F__)
#define ${NAME}_VECTOR _Pragma("clang loop vectorize(assume_safety) vectorize_width(16)")
#elif defined(__clang__)
#define ${NAME}_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define ${NAME}_VECTOR _Pragma("GCC ivdep")
#else
#define ${NAME}_VECTOR
#endif
/* For functions that are rarely executed: not inlined. */
#if defined(__GNUC__)
#define ${NAME}_SELDOM __attribute__((unused, noinline)) static
#else
#define ${NAME}_SELDOM static
#endif

/* Functions are compiled for several vector widths. At run time gpunn passes the processor's width in floats,
 * `lanes`. */
#if defined(__GNUC__) && defined(__x86_64__) && (defined(__clang__) || !defined(_WIN32))
#if defined(__clang__)
#define ${NAME}_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)))
#else
#define ${NAME}_V16 \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")))
#endif
#define ${NAME}_V8 __attribute__((target("avx2,fma")))
#endif

/* The head of a function with loops over elements. It has one version per vector width, unless compiler flags
 * already select AVX2 or AVX-512. */
#if defined(${NAME}_V16) && defined(__OPTIMIZE__) && !(defined(__AVX2__) && defined(__FMA__))
#define ${NAME}_LOOPS(function, lanes, parameters, arguments)                        \
    ${NAME}_FN void function##_code parameters;                                      \
    ${NAME}_V16 static void function##_v16 parameters { function##_code arguments; } \
    ${NAME}_V8 static void function##_v8 parameters { function##_code arguments; }   \
    static void function parameters                                                  \
    {                                                                                \
        if (lanes >= 16)                                                             \
            function##_v16 arguments;                                                \
        else if (lanes >= 8)                                                         \
            function##_v8 arguments;                                                 \
        else                                                                         \
            function##_code arguments;                                               \
    }                                                                                \
    ${NAME}_FN void function##_code parameters
#elif defined(__clang__) && defined(__AVX512F__)
#define ${NAME}_LOOPS(function, lanes, parameters, arguments) \
    __attribute__((min_vector_width(512))) static void function parameters
#else
#define ${NAME}_LOOPS(function, lanes, parameters, arguments) static void function parameters
#endif

/* The number of slices depends only on the amount of work, so results do not depend on the number of
 * threads. */
${NAME}_FN int ${name}_slices(int64_t count, int64_t least)
{
    const int64_t slices = count / least;
    return slices > ${NAME}_SLICES ? ${NAME}_SLICES : slices > 1 ? (int)slices : 1;
}

/* The first element of a slice. All slices begin at a multiple of `grain`. */
${NAME}_FN int64_t ${name}_slice(int64_t count, int64_t grain, int slices, int slice)
{
    const int64_t begin = (count + grain - 1) / grain * slice / slices * grain;
    return begin < count ? begin : count;
}

/* The loop of a launch over elements or rows, begin to end - 1. stat: the program's scratch. sums: the
 * slice's sums. */
typedef void (*${name}_loop)(const gpunn_kernel_call *call, float *const *stat, int64_t begin, int64_t end,
                             double *sums);

${NAME}_FN void ${name}_run_slice(${name}_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                  int64_t count, int64_t grain, int slices, int slice, double *sums,
                                  int width)
{
    const int64_t begin = ${name}_slice(count, grain, slices, slice),
                  end = ${name}_slice(count, grain, slices, slice + 1);
    if (width > 0) {
        sums += (int64_t)slice * width;
        memset(sums, 0, (size_t)width * sizeof *sums);
    }
    loop(call, stat, begin, end, sums);
}

typedef struct ${name}_work {
    ${name}_loop             loop;
    const gpunn_kernel_call *call;
    float *const            *stat;
    int64_t                  count, grain;
    int                      slices, width;
    double                  *sums;
} ${name}_work;

${NAME}_SELDOM void ${name}_task(void *arg, int index, int threads)
{
    const ${name}_work *w = (const ${name}_work *)arg;
    for (int64_t i = (int64_t)w->slices * index / threads; i < (int64_t)w->slices * (index + 1) / threads;
         ++i)
        ${name}_run_slice(w->loop, w->call, w->stat, w->count, w->grain, w->slices, (int)i, w->sums,
                          w->width);
}

/* Runs a loop over `count` elements or rows on gpunn's thread pool, in slices. Each slice has `width` sums,
 * which are set to 0 first. */
${NAME}_SELDOM void ${name}_run(${name}_loop loop, const gpunn_kernel_call *call, float *const *stat,
                                int64_t count, int64_t grain, int slices, double *sums, int width)
{
    ${name}_work work = {loop, call, stat, count, grain, slices, width, sums};
    gpunn_parallel(call->threads < slices ? call->threads : slices, ${name}_task, &work);
}

${NAME}_FN int ${name}_least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Bytes of workspace for `count` elements of `size` bytes: a multiple of 64. */
${NAME}_FN size_t ${name}_room(int64_t count, size_t size)
{
    return ((size_t)count * size + 63) / 64 * 64;
}

/* A label as a column index, or -1 if it is not a class. */
${NAME}_FN int ${name}_column(int64_t label, int columns)
{
    return label >= 0 && label < columns ? (int)label : -1;
}

${NAME}_FN void ${name}_fill(float *to, float value)
{
    for (int j = 0; j < ${NAME}_BLOCK; ++j) to[j] = value;
}

${NAME}_FN void ${name}_copy(float *to, const float *from, int n)
{
    ${NAME}_VECTOR
    for (int j = 0; j < n; ++j) to[j] = from[j];
}

${NAME}_FN void ${name}_add(float *to, const float *from, int n)
{
    ${NAME}_VECTOR
    for (int j = 0; j < n; ++j) to[j] += from[j];
}

/* to[j] = from[(i + j) / div % mod]. mod = 0: no modulo. */
${NAME}_FN void ${name}_expand(float *to, const float *from, int64_t i, int n, int64_t div, int64_t mod)
{
    int64_t place = mod ? i / div % mod : i / div, left = div - i % div;
    for (int j = 0, run; j < n; j += run) {
        run = ${name}_least(n - j, left);
        for (int k = 0; k < run; ++k) to[j + k] = from[place];
        place = place + 1 == mod ? 0 : place + 1;
        left = div;
    }
}

/* to[j] = from[(i + j) % mod]: copies `from` once, then what is already in `to`. */
${NAME}_FN void ${name}_repeat(float *to, const float *from, int64_t i, int n, int64_t mod)
{
    const int64_t place = i % mod;
    int           done = ${name}_least(n, mod), run = ${name}_least(done, mod - place);
    memcpy(to, from + place, (size_t)run * sizeof *to);
    memcpy(to + run, from, (size_t)(done - run) * sizeof *to);
    for (; done < n; done += run) {
        run = ${name}_least(n - done, done);
        memcpy(to + done, to, (size_t)run * sizeof *to);
    }
}

/* The sum of x[n]: 16 interleaved partial sums, added pairwise, plus the rest. */
${NAME}_FN float ${name}_sum(const float *x, int n)
{
    float lane[16] = {0}, rest = 0;
    int   i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; ++j) lane[j] += x[i + j];
    for (; i < n; ++i) rest += x[i];
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    return lane[0] + rest;
}

/* The maximum of x[n]; NaN if x contains NaN. */
${NAME}_FN float ${name}_highest(const float *x, int n)
{
    enum { LANES = 32 }; /* too many for compilers to unroll */
    float lane[LANES], rest = -INFINITY;
    int   i = 0;
    for (int j = 0; j < LANES; ++j) lane[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES) {
        ${NAME}_VECTOR
        for (int j = 0; j < LANES; ++j) lane[j] = ${name}_max(lane[j], x[i + j]);
    }
    for (; i < n; ++i) rest = ${name}_max(rest, x[i]);
    for (int j = 0; j < LANES; ++j) rest = ${name}_max(rest, lane[j]);
    return rest;
}

/* Sums by column: sums[(i + j) % columns] += x[j] for j < n. i: the element index of x[0]. */
${NAME}_FN void ${name}_add_columns(double *sums, const float *x, int64_t i, int n, int64_t columns)
{
    int64_t c = i % columns;
    for (int j = 0, run; j < n; j += run) {
        run = ${name}_least(n - j, columns - c);
        ${NAME}_VECTOR
        for (int k = 0; k < run; ++k) sums[c + k] += (double)x[j + k];
        c = 0;
    }
}

/* Sums by channel: sums[(i + j) / div % mod] += x[j] for j < n. i: the element index of x[0]; div: elements
 * per plane; mod: channels. */
${NAME}_FN void ${name}_add_channels(double *sums, const float *x, int64_t i, int n, int64_t div, int64_t mod)
{
    int64_t c = i / div % mod, left = div - i % div;
    for (int j = 0, run; j < n; j += run) {
        run = ${name}_least(n - j, left);
        sums[c] += (double)${name}_sum(x + j, run);
        c = c + 1 == mod ? 0 : c + 1;
        left = div;
    }
}

/* The total of sums[slice * width] over all slices, in ascending order. */
${NAME}_FN float ${name}_total(const double *sums, int slices, int width)
{
    double total = 0;
    for (int slice = 0; slice < slices; ++slice) total += sums[(int64_t)slice * width];
    return (float)total;
}

/* Dropout factors (gpunn.h, >>cpu/elementwise) of the n elements from i on. They are computed for packs of
 * eight elements, into `factor`. Returns a pointer to the factor of element i. */
${NAME}_FN const float *${name}_keep(const gpunn_kernel_call *call, int stream, uint32_t keep, int64_t i, int n,
                                     float *factor)
{
    enum { PACKS = 32 };
    const float    scale = 65536.0f / (float)keep;
    const uint64_t first = (uint64_t)i / 8, seed = call->random[0], step = call->random[1];
    const int      skipped = (int)((uint64_t)i % 8);
    for (int at = 0; at < skipped + n; at += 8 * PACKS) {
        uint32_t c0[PACKS], c1[PACKS], c2[PACKS], c3[PACKS], high0[PACKS], high2[PACKS], words[PACKS][4];
        for (int j = 0; j < PACKS; ++j) {
            const uint64_t pack = first + (uint64_t)(at / 8 + j);
            c0[j] = (uint32_t)pack;
            c1[j] = call->random_streams[stream] ^ (uint32_t)(pack >> 32) << 16;
            c2[j] = (uint32_t)step;
            c3[j] = (uint32_t)(step >> 32);
        }
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
            for (int j = 0; j < PACKS; ++j) high0[j] = (uint32_t)((uint64_t)0xD2511F53u * c0[j] >> 32);
            for (int j = 0; j < PACKS; ++j) high2[j] = (uint32_t)((uint64_t)0xCD9E8D57u * c2[j] >> 32);
            for (int j = 0; j < PACKS; ++j) {
                const uint32_t low0 = 0xD2511F53u * c0[j], low2 = 0xCD9E8D57u * c2[j];
                c0[j] = high2[j] ^ c1[j] ^ k0;
                c1[j] = low2;
                c2[j] = high0[j] ^ c3[j] ^ k1;
                c3[j] = low0;
            }
        }
        for (int j = 0; j < PACKS; ++j) {
            words[j][0] = c0[j];
            words[j][1] = c1[j];
            words[j][2] = c2[j];
            words[j][3] = c3[j];
        }
        uint16_t draw[8 * PACKS];
        memcpy(draw, words, sizeof words);
        for (int j = 0; j < 8 * PACKS; ++j) factor[at + j] = ${name}_where(draw[j] < keep, scale, 0);
    }
    return factor + skipped;
}
