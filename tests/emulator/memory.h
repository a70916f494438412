/* Memory of the test's own for a device: on the emulated GPU the caller's, once `stream` is one of its
 * streams, else the host's. */
#ifndef MEMORY_H
#define MEMORY_H
#include <stdlib.h>
#include <string.h>

#include "caller.h"

#pragma weak caller_malloc
#pragma weak caller_free
#pragma weak caller_put
#pragma weak caller_get
#pragma weak caller_stream
#pragma weak caller_end

static void *stream; /* of the emulated GPU */
static void *take(size_t bytes, const void *values)
{
    void *memory = stream ? caller_malloc(bytes) : calloc(1, bytes);
    if (values && stream) caller_put(memory, values, bytes, stream);
    if (values && !stream) memcpy(memory, values, bytes);
    return memory;
}
static void give(void *memory)
{
    if (stream)
        caller_free(memory);
    else
        free(memory);
}
static void look(void *host, const void *memory, size_t bytes)
{
    if (stream)
        caller_get(host, memory, bytes, stream);
    else
        memcpy(host, memory, bytes);
}
#endif
