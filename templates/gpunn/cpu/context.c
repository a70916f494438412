#include "cpu/context.h"

GPUNN__INTERNAL gpunn__cpu_before gpunn__cpu_begin(void *context)
{
    gpunn__cpu_before before;
    before.denormals = gpunn__flush_denormals();
    before.pool = gpunn__current_pool;
    gpunn__current_pool = &((gpunn__cpu *)context)->pool;
    return before;
}

GPUNN__INTERNAL void gpunn__cpu_end(gpunn__cpu_before before)
{
    gpunn__current_pool = before.pool;
    gpunn__restore_denormals(before.denormals);
}
GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_fail(gpunn__cpu *cpu, gpunn_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    (void)vsnprintf(cpu->error.text, sizeof cpu->error.text, format, list);
    va_end(list);
    cpu->error.status = status;
    return status;
}
