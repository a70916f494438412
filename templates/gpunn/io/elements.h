#ifndef GPUNN__IO_ELEMENTS_H
#define GPUNN__IO_ELEMENTS_H
#include "io/files.h"

/* ==== >>io/elements ====================================================================================== *
 * Element types of files: X(id, bytes, dtype, safetensors' name, NumPy's name, IDX's number, GGUF's number).
 * dtype is the type that an element is read as by default; GPUNN_DTYPE_DEFAULT: none. All but C64 can also be
 * read as floats. GGUF's -1: it has no such type. The last ones are blocks in the order of GPUNN_BLOCK_LIST,
 * which GGUF has and the metadata of a safetensors file may name. Their bytes are those of a block. */
#define GPUNN__ENCODINGS(X)                            \
    X(F32, 4, GPUNN_F32, "F32", "f4", 0x0D, 0)         \
    X(F64, 8, GPUNN_F32, "F64", "f8", 0x0E, 28)        \
    X(F16, 2, GPUNN_F32, "F16", "f2", 0, 1)            \
    X(BF16, 2, GPUNN_F32, "BF16", "", 0, 30)           \
    X(I64, 8, GPUNN_I64, "I64", "i8", 0, 27)           \
    X(I32, 4, GPUNN_I32, "I32", "i4", 0x0C, 26)        \
    X(I16, 2, GPUNN_I32, "I16", "i2", 0x0B, 25)        \
    X(U16, 2, GPUNN_I32, "U16", "u2", 0, -1)           \
    X(I8, 1, GPUNN_I32, "I8", "i1", 0x09, 24)          \
    X(U8, 1, GPUNN_U8, "U8", "u1", 0x08, -1)           \
    X(BOOL, 1, GPUNN_BOOL, "BOOL", "b1", 0, -1)        \
    X(U32, 4, GPUNN_I64, "U32", "u4", 0, -1)           \
    X(U64, 8, GPUNN_DTYPE_DEFAULT, "U64", "u8", 0, -1) \
    X(C64, 8, GPUNN_DTYPE_DEFAULT, "C64", "c8", 0, -1) \
    X(F8_E4M3, 1, GPUNN_F32, "F8_E4M3", "", 0, -1)     \
    X(F8_E5M2, 1, GPUNN_F32, "F8_E5M2", "", 0, -1)     \
    X(Q8_0, 34, GPUNN_F32, "Q8_0", "", 0, 8)           \
    X(Q4_0, 18, GPUNN_F32, "Q4_0", "", 0, 2)           \
    X(Q4_1, 20, GPUNN_F32, "Q4_1", "", 0, 3)           \
    X(Q5_0, 22, GPUNN_F32, "Q5_0", "", 0, 6)           \
    X(Q5_1, 24, GPUNN_F32, "Q5_1", "", 0, 7)           \
    X(Q4_K, 144, GPUNN_F32, "Q4_K", "", 0, 12)         \
    X(Q5_K, 176, GPUNN_F32, "Q5_K", "", 0, 13)         \
    X(Q6_K, 210, GPUNN_F32, "Q6_K", "", 0, 14)         \
    X(IQ4_NL, 18, GPUNN_F32, "IQ4_NL", "", 0, 20)      \
    X(NF4, 36, GPUNN_F32, "NF4", "", 0, -1)

/* clang-format off */
typedef enum gpunn__encoding_id {
#define GPUNN__X(id, ...) GPUNN__##id,
    GPUNN__ENCODINGS(GPUNN__X)
#undef GPUNN__X
} gpunn__encoding_id;
/* clang-format on */

typedef struct gpunn__encoding {
    gpunn__encoding_id id;
    size_t             bytes;
    gpunn_dtype        dtype;
    const char        *safetensors, *npy;
    int                idx, gguf;
} gpunn__encoding;

/* clang-format off */
GPUNN__PRIVATE const gpunn__encoding gpunn__encodings[] = {
#define GPUNN__X(id, ...) {GPUNN__##id, __VA_ARGS__},
    GPUNN__ENCODINGS(GPUNN__X)
#undef GPUNN__X
};
/* clang-format on */
#ifdef GPUNN_NO_GGUF
enum { GPUNN__ENCODING_COUNT = GPUNN__Q8_0 }; /* those before blocks */
#else
enum { GPUNN__ENCODING_COUNT = sizeof gpunn__encodings / sizeof gpunn__encodings[0] };
#endif

/* The format of the blocks in which the elements are, or GPUNN_DTYPE_DEFAULT. */
GPUNN__INTERNAL gpunn_dtype gpunn__blocks_of(const gpunn__encoding *encoding);

/* Number of elements in encoding->bytes bytes. */
GPUNN__INTERNAL size_t gpunn__encoding_length(const gpunn__encoding *encoding);

/* Reads the next count elements of the file as dtype, which is encoding->dtype, F32 or F64. swapped: they are
 * big-endian. count is a multiple of a block's length. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__read_elements(gpunn__reader *r, const gpunn__encoding *encoding,
                                                   gpunn_dtype dtype, bool swapped, size_t count, void *out);

#endif /* GPUNN__IO_ELEMENTS_H */
