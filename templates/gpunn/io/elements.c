#include "io/elements.h"
#include "base/math.h"
#include "base/blocks.h"

GPUNN__INTERNAL gpunn_dtype gpunn__blocks_of(const gpunn__encoding *encoding)
{
    const gpunn_dtype dtype = (gpunn_dtype)(GPUNN_Q8_0 + (encoding->id - GPUNN__Q8_0));
    return encoding->id >= GPUNN__Q8_0 && gpunn__is_blocks(dtype) ? dtype : GPUNN_DTYPE_DEFAULT;
}

GPUNN__INTERNAL size_t gpunn__encoding_length(const gpunn__encoding *encoding)
{
    const gpunn_dtype blocks = gpunn__blocks_of(encoding);
    return blocks ? (size_t)gpunn__block_length(blocks) : 1;
}

/* Converts blocks of count elements to dtype, F32 or F64. */
static void gpunn__decode_blocks(const gpunn__encoding *encoding, gpunn_dtype dtype, const unsigned char *raw,
                                 size_t count, unsigned char *out)
{
    unsigned char *floats = dtype == GPUNN_F64 ? out + count * sizeof(float) : out; /* in the second half */
    gpunn__dequantize(gpunn__blocks_of(encoding), raw, (float *)(void *)floats, (int64_t)count);
    for (size_t i = 0; dtype == GPUNN_F64 && i < count; i++) {
        float narrow;
        memcpy(&narrow, floats + i * sizeof narrow, sizeof narrow);
        const double wide = (double)narrow;
        memcpy(out + i * sizeof wide, &wide, sizeof wide);
    }
}

/* The bits of an integer, sign-extended. The safetensors names of signed types begin with I. */
static uint64_t gpunn__integer_bits(const gpunn__encoding *encoding, const unsigned char *raw)
{
    const uint64_t sign = (uint64_t)(*encoding->safetensors == 'I') << (8 * encoding->bytes - 1);
    uint64_t       bits = 0;
    for (size_t i = encoding->bytes; i-- > 0;) bits = bits << 8 | raw[i];
    return encoding->id == GPUNN__BOOL ? bits != 0 : (bits ^ sign) - sign;
}

/* Sign, exponent and mantissa as in IEEE 754. E4M3 has no infinities, and only all ones are NaN (arXiv
 * 2209.05433). */
static float gpunn__float_of_f8(bool e5m2, unsigned char byte)
{
    const uint32_t sign = (uint32_t)(byte & 0x80) << 24, bits = byte & 0x7F;
    const uint32_t normal = e5m2 ? (bits << 21) + (112u << 23) : (bits << 20) + (120u << 23);
    const uint32_t special = bits == 0x7C ? 0x7F800000u : 0x7FC00000u; /* infinity or NaN */
    const float    subnormal = (float)bits / (e5m2 ? 65536.0f : 512.0f);
    if (bits >= (e5m2 ? 0x7Cu : 0x7Fu)) return gpunn__float_of(sign | special);
    return gpunn__float_of(sign | (bits < (e5m2 ? 4 : 8) ? gpunn__bits_of(subnormal) : normal));
}

/* Rounds to the nearest float. Of more than 53 bits, the last one records whether any lower bit was set,
 * which avoids double rounding. */
static float gpunn__float_of_integer(uint64_t x)
{
    return x >> 53 ? (float)(double)(x >> 11 | ((x & 0x7FF) != 0)) * 2048 : (float)(double)x;
}

/* Converts an element to the nearest float. */
static float gpunn__element_float(const gpunn__encoding *encoding, const unsigned char *raw)
{
    if (encoding->id == GPUNN__F64) {
        double wide;
        memcpy(&wide, raw, sizeof wide);
        return (float)wide;
    }
    if (encoding->dtype == GPUNN_F32) return gpunn__float_of_f8(encoding->id == GPUNN__F8_E5M2, *raw);
    const uint64_t bits = gpunn__integer_bits(encoding, raw);
    const bool     negative = *encoding->safetensors == 'I' && bits >> 63;
    return negative ? -gpunn__float_of_integer(0 - bits) : gpunn__float_of_integer(bits);
}

/* Converts an element to the nearest double. */
static double gpunn__element_double(const gpunn__encoding *encoding, const unsigned char *raw)
{
    float narrow;
    if (encoding->dtype != GPUNN_F32) {
        const uint64_t bits = gpunn__integer_bits(encoding, raw);
        return *encoding->safetensors == 'I' && bits >> 63 ? -(double)(0 - bits) : (double)bits;
    }
    if (encoding->id == GPUNN__F32)
        memcpy(&narrow, raw, sizeof narrow);
    else if (encoding->bytes == 2)
        gpunn__widen_floats(encoding->id == GPUNN__F16 ? GPUNN_F16 : GPUNN_BF16, raw, 1, &narrow);
    else
        narrow = gpunn__element_float(encoding, raw);
    return (double)narrow;
}

/* Converts count elements from raw to dtype, which is encoding->dtype, F32 or F64, but not F64 to itself. */
static void gpunn__decode(const gpunn__encoding *encoding, gpunn_dtype dtype, const unsigned char *raw,
                          size_t count, unsigned char *out)
{
    const size_t wide = gpunn_dtype_size(dtype);
    if (gpunn__blocks_of(encoding)) {
        gpunn__decode_blocks(encoding, dtype, raw, count, out);
        return;
    }
    if (dtype == GPUNN_F64) {
        for (size_t i = 0; i < count; i++) {
            const double value = gpunn__element_double(encoding, raw + i * encoding->bytes);
            memcpy(out + i * wide, &value, wide);
        }
        return;
    }
    if (encoding->id == GPUNN__F16 || encoding->id == GPUNN__BF16) {
        gpunn__widen_floats(encoding->id == GPUNN__F16 ? GPUNN_F16 : GPUNN_BF16, raw, (int64_t)count,
                            (float *)(void *)out);
        return;
    }
    for (size_t i = 0; dtype == GPUNN_F32 && i < count; i++) {
        const float value = gpunn__element_float(encoding, raw + i * encoding->bytes);
        memcpy(out + i * sizeof value, &value, sizeof value);
    }
    for (size_t i = 0; dtype != GPUNN_F32 && i < count; i++) {
        const uint64_t bits = gpunn__integer_bits(encoding, raw + i * encoding->bytes);
        for (size_t k = 0; k < wide; k++) out[i * wide + k] = (unsigned char)(bits >> 8 * k);
    }
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__read_elements(gpunn__reader *r, const gpunn__encoding *encoding,
                                                   gpunn_dtype dtype, bool swapped, size_t count, void *out)
{
    unsigned char raw[8192];
    size_t        bytes = encoding->bytes, wide = gpunn_dtype_size(dtype);
    const size_t  length = gpunn__encoding_length(encoding), most = sizeof raw / bytes * length;
    bool same = dtype == encoding->dtype && (encoding->id == GPUNN__F32 || encoding->id == GPUNN__I32 ||
                                             encoding->id == GPUNN__I64 || encoding->id == GPUNN__U8);
    if (dtype == GPUNN_F64) same = encoding->id == GPUNN__F64;
    swapped = swapped && bytes > 1;
    if (same && !swapped) return gpunn__reader_read(r, out, count * bytes);
    while (count > 0) {
        size_t       part = count < most ? count : most;
        gpunn_status status = gpunn__reader_read(r, raw, part / length * bytes);
        if (status != GPUNN_OK) return status;
        for (size_t i = 0; swapped && i < part * bytes; i += bytes)
            for (size_t low = i, high = i + bytes - 1; low < high; low++, high--) {
                unsigned char byte = raw[low];
                raw[low] = raw[high];
                raw[high] = byte;
            }
        if (same)
            memcpy(out, raw, part * bytes);
        else
            gpunn__decode(encoding, dtype, raw, part, (unsigned char *)out);
        out = (unsigned char *)out + part * wide;
        count -= part;
    }
    return GPUNN_OK;
}
