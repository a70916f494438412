/* fashion.h - reads the files of Fashion-MNIST. Include it after gpunn.h. */
#ifndef FASHION_H
#define FASHION_H
#include <stdio.h>

#define FASHION_FOLDER "/usr/share/datasets/fashion-mnist" /* of Debian's dataset-fashion-mnist */

/* One of the four files, as .gz or plain, each of whose items has so many bytes: 28 * 28, or 1 where they are
 * labels. */
static inline gpunn_status fashion_read(gpunn_device *dev, const char *folder, const char *name, size_t bytes,
                                        gpunn_array *out)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.gz", folder, name);
    FILE *there = fopen(path, "rb");
    if (there)
        fclose(there);
    else
        snprintf(path, sizeof path, "%s/%s", folder, name);
    const gpunn_status status = gpunn_read_idx(dev, path, out);
    if (status == GPUNN_ERR_IO)
        fprintf(stderr, "get the data with: apt-get install dataset-fashion-mnist, or say where it is with "
                        "--data FOLDER\n");
    if (status != GPUNN_OK || out->bytes == (size_t)out->dim[0] * bytes) return status;
    fprintf(stderr, "%s in %s does not have %zu bytes for each image\n", name, folder, bytes);
    return GPUNN_ERR_SHAPE;
}
#endif
