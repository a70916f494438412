#include "base/memory.h"
#include "base/errors.h"

GPUNN__INTERNAL void *gpunn__unconst(const void *given)
{
    void *same;
    memcpy(&same, &given, sizeof same);
    return same;
}

GPUNN__INTERNAL bool gpunn__mul(size_t a, size_t b, size_t *result)
{
    if (b != 0 && a > SIZE_MAX / b) return false;
    *result = a * b;
    return true;
}

GPUNN__INTERNAL bool gpunn__add(size_t a, size_t b, size_t *result)
{
    if (a > SIZE_MAX - b) return false;
    *result = a + b;
    return true;
}

GPUNN__INTERNAL void *gpunn__system_realloc(void *user, void *ptr, size_t old_size, size_t new_size)
{
    (void)user;
    (void)old_size;
    if (new_size == 0) {
        free(ptr);
        return NULL;
    }
    return realloc(ptr, new_size);
}

GPUNN__INTERNAL void *gpunn__realloc(gpunn_device *dev, void *ptr, size_t old_size, size_t new_size)
{
    void *result = dev->args.realloc_fn(dev->args.user, ptr, old_size, new_size);
    if (result == NULL && new_size != 0)
        (void)gpunn__fail(
            dev, GPUNN_ERR_MEMORY,
            "out of host memory: allocating %zu bytes failed; free memory or use a smaller model", new_size);
    return result;
}

GPUNN__INTERNAL void *gpunn__calloc(gpunn_device *dev, size_t size)
{
    void *result = gpunn__realloc(dev, NULL, 0, size);
    if (result) memset(result, 0, size);
    return result;
}

GPUNN__INTERNAL void gpunn__free(gpunn_device *dev, void *ptr, size_t size)
{
    if (ptr) (void)dev->args.realloc_fn(dev->args.user, ptr, size, 0);
}

GPUNN__INTERNAL char *gpunn__strdup(gpunn_device *dev, const char *text)
{
    size_t size = strlen(text) + 1;
    char  *copy = (char *)gpunn__realloc(dev, NULL, 0, size);
    if (copy) memcpy(copy, text, size);
    return copy;
}

GPUNN__INTERNAL void gpunn__free_text(gpunn_device *dev, char *text)
{
    if (text) gpunn__free(dev, text, strlen(text) + 1);
}

GPUNN__INTERNAL void *gpunn__device_alloc(gpunn_device *dev, size_t size)
{
    size_t limit = dev->args.memory_limit;
    if (limit && (size > limit || dev->allocated > limit - size)) {
        (void)gpunn__fail(dev, GPUNN_ERR_MEMORY,
                          "%zu more bytes would exceed the device's memory_limit of %zu (%zu are in use); "
                          "use a smaller batch or raise the limit",
                          size, limit, dev->allocated);
        return NULL;
    }
    void *ptr = dev->backend->alloc(dev->context, size);
    if (ptr == NULL) {
        /* tells a device fault from lack of memory */
        gpunn_status status = dev->backend->synchronize(dev->context);
        if (status != GPUNN_OK)
            return (void)gpunn__backend_fail(dev, "allocating memory", status), (void *)NULL;
        (void)gpunn__fail(
            dev, GPUNN_ERR_MEMORY,
            "out of memory on %s: allocating %zu bytes failed, %zu are in use; use a smaller batch",
            dev->info.name, size, dev->allocated);
        return NULL;
    }
    dev->allocated += size;
    if (dev->allocated > dev->peak) dev->peak = dev->allocated;
    return ptr;
}

GPUNN__INTERNAL void gpunn__device_free(gpunn_device *dev, void *ptr, size_t size)
{
    if (ptr == NULL) return;
    dev->backend->free(dev->context, ptr, size);
    dev->allocated -= size;
}

GPUNN__INTERNAL gpunn_status gpunn__backend_fail(gpunn_device *dev, const char *what, gpunn_status status)
{
    return gpunn__fail(dev, status, "%s: %s", what, dev->backend->error(dev->context));
}

GPUNN__INTERNAL void *gpunn__grow(gpunn_device *dev, void *array, int count, int *capacity, size_t item)
{
    if (count < *capacity) return array;
    int   wanted = *capacity ? *capacity * 2 : 32;
    void *grown = gpunn__realloc(dev, array, (size_t)*capacity * item, (size_t)wanted * item);
    if (grown) *capacity = wanted;
    return grown;
}
