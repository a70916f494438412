/* The cases of tests/golden/encodings.py, and gradients of the same ops. */
/* clang-format off */
#define ENCODING_CASES(X)                                                                                                       \
    X(frequency_encoding, "", gpunn_frequency_encoding(in("x"), 4))                                                             \
    X(frequency_encoding, "_one", gpunn_frequency_encoding(in("x"), 1))                                                         \
    X(frequency_encoding, "_fine", gpunn_frequency_encoding(in("x"), 6))                                                        \
    X(frequency_encoding, "_points", gpunn_frequency_encoding(in("x"), 3))                                                      \
    X(frequency_encoding, "_line", gpunn_frequency_encoding(in("x"), 2))                                                        \
    X(one_blob_encoding, "", gpunn_one_blob_encoding(in("x"), 16))                                                              \
    X(one_blob_encoding, "_one", gpunn_one_blob_encoding(in("x"), 1))                                                           \
    X(one_blob_encoding, "_many", gpunn_one_blob_encoding(in("x"), 32))                                                         \
    X(one_blob_encoding, "_points", gpunn_one_blob_encoding(in("x"), 5))                                                        \
    X(spherical_harmonics_encoding, "", gpunn_spherical_harmonics_encoding(in("x"), 4))                                         \
    X(spherical_harmonics_encoding, "_one", gpunn_spherical_harmonics_encoding(in("x"), 1))                                     \
    X(spherical_harmonics_encoding, "_two", gpunn_spherical_harmonics_encoding(in("x"), 2))                                     \
    X(spherical_harmonics_encoding, "_three", gpunn_spherical_harmonics_encoding(in("x"), 3))

#define ENCODING_GRADIENTS(X)                                                                                                   \
    X(frequency_encoding, XS(3, 2), gpunn_frequency_encoding(x, 2))                                                             \
    X(frequency_encoding_points, XS(3, 3, 2), gpunn_square(gpunn_frequency_encoding(x, 1)))                                     \
    X(one_blob_encoding, XS(3, 2), gpunn_one_blob_encoding(x, 3))                                                               \
    X(spherical_harmonics_encoding, XS(3, 3), gpunn_spherical_harmonics_encoding(x, 4))
/* clang-format on */
