/* volume.h - reads and writes volumes for register3d.c: NIfTI-1 (.nii; .nii.gz with GPUNN_ZLIB) and raw
 * voxels.
 *
 * A file is read as hostile: every number of its header is checked before it is used. Include it once, after
 * gpunn.h. */
#ifndef VOLUME_H
#define VOLUME_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef GPUNN_ZLIB
#include <zlib.h>
#endif

enum { VOLUME_HEADER = 348, VOLUME_OFFSET = 352 };
#define VOLUME_MAX_VOXELS ((int64_t)1 << 30)

typedef struct volume {
    int    size[3]; /* depth, height, width */
    float *voxels;  /* free it */
    /* of a NIfTI file, in this machine's byte order as far as volume_write reads it; else 0 */
    uint8_t header[VOLUME_HEADER];
} volume;

static int64_t volume_count(const volume *v)
{
    return (int64_t)v->size[0] * v->size[1] * v->size[2];
}

/* Prints "path: why" and returns false. */
static bool volume_fail(const char *path, const char *why)
{
    fprintf(stderr, "%s: %s\n", path, why);
    return false;
}

/* ---- files, compressed or not ---- */
#ifdef GPUNN_ZLIB
typedef gzFile     volume_file;
static volume_file volume_open(const char *path, bool write)
{
    size_t length = strlen(path);
    bool   plain = length < 3 || strcmp(path + length - 3, ".gz") != 0;
    return gzopen(path, !write ? "rb" : plain ? "wbT" : "wb6");
}
static bool volume_get(volume_file file, void *to, unsigned bytes)
{
    return gzread(file, to, bytes) == (int)bytes;
}
static bool volume_put(volume_file file, const void *from, unsigned bytes)
{
    return gzwrite(file, from, bytes) == (int)bytes;
}
static bool volume_close(volume_file file)
{
    return gzclose(file) == Z_OK;
}
#else
typedef FILE      *volume_file;
static volume_file volume_open(const char *path, bool write)
{
    return fopen(path, write ? "wb" : "rb");
}
static bool volume_get(volume_file file, void *to, unsigned bytes)
{
    return fread(to, 1, bytes, file) == bytes;
}
static bool volume_put(volume_file file, const void *from, unsigned bytes)
{
    return fwrite(from, 1, bytes, file) == bytes;
}
static bool volume_close(volume_file file)
{
    return fclose(file) == 0;
}
#endif

/* ---- voxels ---- */
typedef enum volume_type {
    VOLUME_U8,
    VOLUME_I8,
    VOLUME_I16,
    VOLUME_U16,
    VOLUME_I32,
    VOLUME_U32,
    VOLUME_F32,
    VOLUME_F64
} volume_type;
#define VOLUME_TYPE_NAMES "u8|i8|i16|u16|i32|u32|f32|f64"
static const struct {
    int nifti, bytes; /* nifti: its code in a header */
} volume_types[] = {{2, 1}, {256, 1}, {4, 2}, {512, 2}, {8, 4}, {768, 4}, {16, 4}, {64, 8}};
enum { VOLUME_TYPES = sizeof volume_types / sizeof volume_types[0] };

static void volume_swap(uint8_t *bytes, int count)
{
    for (int i = 0; i < count / 2; i++) {
        uint8_t byte = bytes[i];
        bytes[i] = bytes[count - 1 - i];
        bytes[count - 1 - i] = byte;
    }
}

static double volume_number(const uint8_t *at, volume_type type)
{
    union {
        uint8_t  u8;
        int8_t   i8;
        int16_t  i16;
        uint16_t u16;
        int32_t  i32;
        uint32_t u32;
        float    f32;
        double   f64;
    } value;
    memcpy(&value, at, (size_t)volume_types[type].bytes);
    switch (type) {
    case VOLUME_U8: return value.u8;
    case VOLUME_I8: return value.i8;
    case VOLUME_I16: return value.i16;
    case VOLUME_U16: return value.u16;
    case VOLUME_I32: return value.i32;
    case VOLUME_U32: return value.u32;
    case VOLUME_F32: return (double)value.f32;
    default: return value.f64;
    }
}

/* Reads all voxels as slope * x + intercept; what is not a finite number is 0. Memory grows with what the
 * file holds, whatever its header promises. */
static bool volume_read_voxels(volume_file file, const char *path, volume *v, volume_type type, bool swap,
                               double slope, double intercept)
{
    enum { PIECE = 4096 };
    uint8_t buffer[PIECE * 8];
    int64_t count = volume_count(v), room = 0;
    int     bytes = volume_types[type].bytes;
    v->voxels = NULL;
    for (int64_t i = 0; i < count; i += PIECE) {
        int64_t n = count - i < PIECE ? count - i : PIECE;
        if (i + n > room) {
            room = count < 2 * i + PIECE ? count : 2 * i + PIECE;
            float *voxels = (float *)realloc(v->voxels, (size_t)room * sizeof *voxels);
            if (voxels == NULL) return volume_fail(path, "the volume does not fit into memory");
            v->voxels = voxels;
        }
        if (!volume_get(file, buffer, (unsigned)(n * bytes)))
            return volume_fail(path, "the file ends before its last voxel");
        for (int64_t k = 0; k < n; k++) {
            if (swap) volume_swap(buffer + k * bytes, bytes);
            float x = (float)(slope * volume_number(buffer + k * bytes, type) + intercept);
            v->voxels[i + k] = isfinite(x) ? x : 0;
        }
    }
    return true;
}

/* Whether sizes are within limits. */
static bool volume_check_size(const char *path, const volume *v)
{
    for (int i = 0; i < 3; i++)
        if (v->size[i] < 1) return volume_fail(path, "a size is below 1");
    if ((int64_t)v->size[0] * v->size[1] > VOLUME_MAX_VOXELS / v->size[2])
        return volume_fail(path, "the volume has more than 2^30 voxels");
    return true;
}

/* ---- NIfTI-1: a header of 348 bytes, then at vox_offset the voxels, x fastest ---- */
enum {
    NIFTI_DIM = 40,
    NIFTI_INTENT = 68,
    NIFTI_DATATYPE = 70,
    NIFTI_BITPIX = 72,
    NIFTI_PIXDIM = 76,
    NIFTI_OFFSET = 108,
    NIFTI_SLOPE = 112,
    NIFTI_INTERCEPT = 116,
    NIFTI_UNITS = 123,
    NIFTI_FORMS = 252, /* two codes, then the quaternion and the matrix, 18 floats */
    NIFTI_MAGIC = 344,
    NIFTI_VECTOR = 1007 /* an intent */
};

static int nifti_short(const uint8_t *header, int at)
{
    return (int)volume_number(header + at, VOLUME_I16);
}

static void nifti_set_short(uint8_t *header, int at, int value)
{
    int16_t narrow = (int16_t)value;
    memcpy(header + at, &narrow, sizeof narrow);
}

static void nifti_set_float(uint8_t *header, int at, float value)
{
    memcpy(header + at, &value, sizeof value);
}

/* Turns the fields that are read here, and the geometry, into this machine's byte order. */
static void nifti_swap(uint8_t *header)
{
    for (int i = 0; i < 8; i++) volume_swap(header + NIFTI_DIM + 2 * i, 2);
    for (int i = 0; i < 3; i++) volume_swap(header + NIFTI_INTENT + 2 * i, 2);
    for (int i = 0; i < 8; i++) volume_swap(header + NIFTI_PIXDIM + 4 * i, 4);
    for (int i = 0; i < 3; i++) volume_swap(header + NIFTI_OFFSET + 4 * i, 4);
    for (int i = 0; i < 2; i++) volume_swap(header + NIFTI_FORMS + 2 * i, 2);
    for (int i = 0; i < 18; i++) volume_swap(header + NIFTI_FORMS + 4 + 4 * i, 4);
}

static bool nifti_read_open(volume_file file, const char *path, volume *v)
{
    uint8_t *h = v->header, skipped[256];
    if (!volume_get(file, h, VOLUME_HEADER))
        return volume_fail(path, "the file is shorter than a NIfTI-1 header");
    int32_t native = VOLUME_HEADER, size;
    memcpy(&size, h, sizeof size);
    bool swap = size != native;
    if (swap) volume_swap(h, 4);
    memcpy(&size, h, sizeof size);
    if (size != native || memcmp(h + NIFTI_MAGIC, "n+1", 4) != 0)
        return volume_fail(
            path, "this is not a NIfTI-1 file in one piece (.nii); give raw voxels with --size and --type");
    if (swap) nifti_swap(h);
    int rank = nifti_short(h, NIFTI_DIM), type = 0;
    if (rank < 3 || rank > 7) return volume_fail(path, "the header's dim[0] is not 3 to 7");
    for (int i = 1; i <= 3; i++) v->size[3 - i] = nifti_short(h, NIFTI_DIM + 2 * i);
    for (int i = 4; i <= rank; i++)
        if (nifti_short(h, NIFTI_DIM + 2 * i) != 1)
            return volume_fail(path, "the file holds several volumes; give one of them");
    if (!volume_check_size(path, v)) return false;
    while (type < VOLUME_TYPES && volume_types[type].nifti != nifti_short(h, NIFTI_DATATYPE)) type++;
    if (type == VOLUME_TYPES)
        return volume_fail(path, "its datatype is not u8, i8, i16, u16, i32, u32, f32 or f64");
    double offset = volume_number(h + NIFTI_OFFSET, VOLUME_F32),
           slope = volume_number(h + NIFTI_SLOPE, VOLUME_F32);
    double intercept = volume_number(h + NIFTI_INTERCEPT, VOLUME_F32);
    if (!(offset >= VOLUME_OFFSET && offset <= 1 << 24) || offset != floor(offset))
        return volume_fail(path, "the header's vox_offset is not a whole number from 352 to 2^24");
    /* there is no scaling */
    if (slope == 0 || !isfinite(slope) || !isfinite(intercept)) slope = 1, intercept = 0;
    for (unsigned left = (unsigned)offset - VOLUME_HEADER, n; left > 0; left -= n) {
        n = left < sizeof skipped ? left : (unsigned)sizeof skipped;
        if (!volume_get(file, skipped, n)) return volume_fail(path, "the file ends before its voxels");
    }
    return volume_read_voxels(file, path, v, (volume_type)type, swap, slope, intercept);
}

/* A NIfTI file; or, where the size is set already, raw voxels of that type in this machine's byte order.
 * false after an error, which has been told; then there is nothing to free. */
static bool volume_read(const char *path, volume *v, volume_type raw)
{
    bool        is_raw = v->size[0] != 0;
    volume_file file = volume_open(path, false);
    if (file == NULL) return volume_fail(path, "the file cannot be opened");
    bool good = is_raw ? volume_check_size(path, v) && volume_read_voxels(file, path, v, raw, false, 1, 0)
                       : nifti_read_open(file, path, v);
    (void)volume_close(file);
    if (good) return true;
    free(v->voxels);
    v->voxels = NULL;
    return false;
}

/* One value or a vector of three for each voxel, [size][components], as F32; size and geometry are v's. */
static bool volume_write(const char *path, const volume *v, const float *values, int components)
{
    uint8_t h[VOLUME_OFFSET] = {0};
    int32_t size = VOLUME_HEADER;
    bool    geometry = memcmp(v->header + NIFTI_MAGIC, "n+1", 4) == 0;
    if (geometry) { /* voxels' sizes, units, orientation */
        memcpy(h + NIFTI_PIXDIM, v->header + NIFTI_PIXDIM, 32);
        memcpy(h + NIFTI_UNITS, v->header + NIFTI_UNITS, 1);
        memcpy(h + NIFTI_FORMS, v->header + NIFTI_FORMS, 76);
    }
    memcpy(h, &size, sizeof size);
    for (int i = 0; i < 8; i++) {
        nifti_set_short(h, NIFTI_DIM + 2 * i,
                        i == 0   ? (components == 1 ? 3 : 5)
                        : i <= 3 ? v->size[3 - i]
                        : i == 5 ? components
                                 : 1);
        if (!geometry) nifti_set_float(h, NIFTI_PIXDIM + 4 * i, 1);
    }
    nifti_set_short(h, NIFTI_INTENT, components == 1 ? 0 : NIFTI_VECTOR);
    nifti_set_short(h, NIFTI_DATATYPE, volume_types[VOLUME_F32].nifti);
    nifti_set_short(h, NIFTI_BITPIX, 32);
    nifti_set_float(h, NIFTI_OFFSET, VOLUME_OFFSET);
    nifti_set_float(h, NIFTI_SLOPE, 1);
    nifti_set_float(h, NIFTI_INTERCEPT, 0);
    memcpy(h + NIFTI_MAGIC, "n+1", 4);
    volume_file file = volume_open(path, true);
    bool        good = file && volume_put(file, h, VOLUME_OFFSET);
    int64_t     count = volume_count(v);
    for (int component = 0; component < components; component++)
        for (int64_t i = 0; i < count && good; i += 1024) {
            float   line[1024];
            int64_t n = count - i < 1024 ? count - i : 1024;
            for (int64_t k = 0; k < n; k++) line[k] = values[(i + k) * components + component];
            good = volume_put(file, line, (unsigned)n * (unsigned)sizeof *line);
        }
    if (file) good = volume_close(file) && good;
    return good || volume_fail(path, "the file cannot be written");
}
#endif
