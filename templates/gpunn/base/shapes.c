#include "base/shapes.h"
#include "base/blocks.h"
#include "base/sizes.h"

GPUNN_API size_t gpunn_dtype_size(gpunn_dtype dtype)
{
    static const unsigned char bytes_of[] = {0,
#define GPUNN__X(id, text, file_name, bytes) bytes,
                                             GPUNN_DTYPE_LIST(GPUNN__X)
#undef GPUNN__X
    };
    return (int)dtype >= 0 && dtype < GPUNN_DTYPE_COUNT ? bytes_of[dtype] : 0;
}

GPUNN_API const char *gpunn_dtype_name(gpunn_dtype dtype)
{
    static const char *const names[] = {"no gpunn_dtype",
#define GPUNN__X(id, text, file_name, bytes) text,
                                        GPUNN_DTYPE_LIST(GPUNN__X)
#undef GPUNN__X
    };
    static const char *const formats[] = {
#define GPUNN__X(id, name, length, bytes) name,
        GPUNN_BLOCK_LIST(GPUNN__X)
#undef GPUNN__X
    };
    if (gpunn__names_blocks(dtype)) return formats[dtype - GPUNN__BLOCKS - 1];
    return (int)dtype >= 0 && dtype < GPUNN_DTYPE_COUNT ? names[dtype] : names[0];
}

GPUNN__INTERNAL const char *gpunn__dim_text(const gpunn_model *model, int64_t dim, char text[32])
{
    if (gpunn__is_sized(dim)) {
        char        buffer[GPUNN__SIZE_BUFFER];
        const char *whole = gpunn__size_text(model, dim, buffer);
        (void)snprintf(text, 32, strlen(whole) < 32 ? "%s" : "%.28s...", whole);
    } else if (dim == GPUNN_BATCH)
        (void)snprintf(text, 32, "batch");
    else
        (void)snprintf(text, 32, dim < 0 ? "%llu batch" : "%llu",
                       dim < 0 ? 0 - (unsigned long long)dim : (unsigned long long)dim);
    return text;
}

GPUNN__INTERNAL const char *gpunn__dims_text(const gpunn_model *model, int rank, const int64_t *dim,
                                             char text[128])
{
    size_t used = 0;
    text[used++] = '[';
    for (int i = 0; i < rank; i++) {
        char one[32];
        (void)gpunn__dim_text(model, dim[i], one);
        /* only absurd shapes are that long */
        if (used + strlen(one) > 128 - 8) (void)snprintf(one, sizeof one, "...");
        used += (size_t)snprintf(text + used, 128 - used, "%s%s", i ? ", " : "", one);
        if (one[0] == '.') break;
    }
    text[used++] = ']';
    text[used] = 0;
    return text;
}

GPUNN__INTERNAL const char *gpunn__shape_text(const gpunn_tensor *t, char text[128])
{
    return gpunn__dims_text(t->model, t->rank, t->dim, text);
}

GPUNN__INTERNAL bool gpunn__measure(int rank, const int64_t *dim, int64_t *factor, int *power)
{
    *factor = 1;
    *power = 0;
    for (int i = 0; i < rank; i++) {
        if (gpunn__is_sized(dim[i])) continue;
        if (dim[i] > GPUNN__MAX_COUNT || dim[i] < -GPUNN__MAX_COUNT) return false;
        int64_t size = dim[i] < 0 ? -dim[i] : dim[i];
        if (size > GPUNN__MAX_COUNT / *factor) return false;
        *factor *= size;
        *power += dim[i] < 0;
    }
    return true;
}

GPUNN__INTERNAL int64_t gpunn__count(const gpunn_tensor *t, int64_t batch)
{
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++) {
        const int64_t size = gpunn__dim(t->model, t->dim[i], batch);
        if (size < 0 || size > GPUNN__MAX_COUNT / (count ? count : 1)) return -1;
        count *= size;
    }
    return count;
}

GPUNN__INTERNAL bool gpunn__any_sized(int rank, const int64_t *dim)
{
    for (int i = 0; i < rank; i++)
        if (gpunn__is_sized(dim[i])) return true;
    return false;
}

GPUNN__INTERNAL int64_t gpunn__dim_plus(gpunn_model *model, int64_t a, int64_t b, int64_t factor,
                                        int64_t number)
{
    const gpunn__sum other = gpunn__sum_of(model, b),
                     sum = gpunn__sum_plus(gpunn__sum_of(model, a), &other, factor);
    const gpunn__sum whole = gpunn__sum_plus_number(sum, number);
    return gpunn__dim_of_sum(model, &whole);
}

GPUNN__INTERNAL int64_t gpunn__dim_product(gpunn_model *model, int rank, const int64_t *dim)
{
    gpunn__sum product = gpunn__sum_number(1);
    for (int i = 0; i < rank; i++) {
        const gpunn__sum one = gpunn__sum_of(model, dim[i]);
        product = gpunn__sum_times(&product, &one);
    }
    return gpunn__dim_of_sum(model, &product);
}

GPUNN__INTERNAL int64_t gpunn__windows(int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                                       int64_t dilation, bool ceil_mode)
{
    int64_t available = size + 2 * padding - dilation * (kernel - 1) - 1 + (ceil_mode ? stride - 1 : 0);
    if (available < 0) return 0;
    int64_t count = available / stride + 1;
    return ceil_mode && (count - 1) * stride >= size + padding ? count - 1 : count;
}

GPUNN__INTERNAL int64_t gpunn__windows_of(gpunn_model *model, int64_t size, int64_t kernel, int64_t stride,
                                          int64_t padding, int64_t dilation, bool ceil_mode)
{
    if (!gpunn__is_sized(size)) return gpunn__windows(size, kernel, stride, padding, dilation, ceil_mode);
    const int64_t span = dilation * (kernel - 1) + 1;
    /* whether the last window counts depends on the size */
    if (ceil_mode && span < stride + padding) return 0;
    gpunn__sum sum = gpunn__sum_plus_number(gpunn__sum_of(model, size),
                                            2 * padding - span + (ceil_mode ? stride - 1 : 0));
    sum = gpunn__sum_plus_number(gpunn__sum_quotient(model, sum, stride), 1);
    return gpunn__dim_of_sum(model, &sum);
}
