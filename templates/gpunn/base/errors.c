#include "base/errors.h"

/* latest failure of this thread without a device */
static GPUNN__THREAD_LOCAL gpunn__error gpunn__no_device_error;

/* the latest failure of this thread is a device's, and has not been cleared */
GPUNN__INTERNAL GPUNN__THREAD_LOCAL bool gpunn__failed_here;

GPUNN__INTERNAL gpunn_status gpunn__fail(gpunn_device *dev, gpunn_status status, const char *format, ...)
{
    gpunn__error error;
    error.status = status;
    int     used = dev && dev->place ? snprintf(error.text, sizeof error.text, "%s", dev->place) : 0;
    va_list list;
    va_start(list, format);
    (void)vsnprintf(error.text + used, sizeof error.text - (size_t)used, format, list);
    va_end(list);
    for (unsigned char *c = (unsigned char *)error.text; *c;
         /* a message is one line, but names from files may contain anything */
         c++) {
        /* terminals interpret these C1 controls too */
        bool high = c[0] == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f;
        if (high || *c < 0x20 || *c == 0x7f) *c = '?';
        if (high) *++c = '?';
    }
    gpunn__failed_here = dev != NULL;
    if (dev == NULL)
        gpunn__no_device_error = error;
    else {
        if (dev->error.status == GPUNN_OK) dev->error = error;
        if (dev->args.log_fn) dev->args.log_fn(dev->args.user, GPUNN_LOG_ERROR, error.text);
    }
    return status;
}

GPUNN__INTERNAL const char *gpunn__quoted(const char *name, char text[GPUNN__ERROR_SIZE])
{
    text[0] = 0;
    if (name && name[0]) (void)snprintf(text, GPUNN__ERROR_SIZE, " '%s'", name);
    return text;
}

GPUNN__INTERNAL gpunn_status gpunn__fail_null(gpunn_device *dev, const char *function, const char *what)
{
    static const char earlier[] = "; an earlier call failed: ";
    const char       *first = gpunn__no_device_error.text, *cause = strstr(first, earlier);
    cause = cause ? cause + sizeof earlier - 1 : first;
    if (gpunn__failed_here) cause = "see gpunn_error(device)";
    if (dev) cause = "";
    return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "%s: the %s is NULL%s%s", function, what,
                       *cause ? earlier : "", cause);
}

GPUNN__INTERNAL gpunn_status gpunn__fail_null_model(gpunn_model *model, const char *function,
                                                    const char *other)
{
    if (model == NULL) return gpunn__fail_null(NULL, function, "model");
    return gpunn__fail_null(model->dev, function, other);
}

GPUNN__INTERNAL gpunn_status gpunn__fail_null_tensor(gpunn_tensor *t, const char *function, const char *other)
{
    if (t == NULL) return gpunn__fail_null(NULL, function, "tensor");
    return gpunn__fail_null(t->model->dev, function, other);
}

GPUNN_API const char *gpunn_error(const gpunn_device *dev)
{
    return dev ? dev->error.text : gpunn__no_device_error.text;
}

GPUNN_API gpunn_status gpunn_last_status(const gpunn_device *dev)
{
    return dev ? dev->error.status : gpunn__no_device_error.status;
}

GPUNN_API void gpunn_clear_error(gpunn_device *dev)
{
    gpunn__error *error = dev ? &dev->error : &gpunn__no_device_error;
    gpunn__failed_here = false;
    error->status = GPUNN_OK;
    error->text[0] = 0;
}

GPUNN_API int gpunn_version(void)
{
    return GPUNN_VERSION_NUMBER;
}

GPUNN_API const char *gpunn_status_name(gpunn_status status)
{
    static const char *const names[] = {
#define GPUNN__X(id, text) #id ": " text,
        GPUNN_STATUS_LIST(GPUNN__X)
#undef GPUNN__X
    };
    return (int)status >= 0 && status < GPUNN_STATUS_COUNT ? names[status] : "no gpunn_status";
}
