/* The cases of tests/golden/encodings.py, and gradients of the same ops. */
/* clang-format off */
#define HASHED(levels, features, size, resolution, scale)                                                                       \
    gpunn_hash_grid_encoding(in("x"), "l", .n_levels = levels, .n_features_per_level = features, .log2_hashmap_size = size,     \
                             .base_resolution = resolution, .per_level_scale = scale)
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
    X(spherical_harmonics_encoding, "_three", gpunn_spherical_harmonics_encoding(in("x"), 3))                                   \
    X(hash_grid_encoding, "", HASHED(3, 2, 7, 4, 2))                                                                            \
    X(hash_grid_encoding, "_flat", HASHED(4, 3, 5, 3, 1.5f))                                                                    \
    X(hash_grid_encoding, "_one", HASHED(1, 1, 4, 3, 2))                                                                        \
    X(hash_grid_encoding, "_fine", HASHED(3, 8, 4, 5, 4))

#define INSIDE(x) gpunn_add_scalar(gpunn_mul_scalar(x, 0.05f), 0.3f) /* of a cell of each level */
#define ENCODING_GRADIENTS(X)                                                                                                   \
    X(frequency_encoding, XS(3, 2), gpunn_frequency_encoding(x, 2))                                                             \
    X(frequency_encoding_points, XS(3, 3, 2), gpunn_square(gpunn_frequency_encoding(x, 1)))                                     \
    X(one_blob_encoding, XS(3, 2), gpunn_one_blob_encoding(x, 3))                                                               \
    X(spherical_harmonics_encoding, XS(3, 3), gpunn_spherical_harmonics_encoding(x, 4))                                         \
    X(hash_grid_encoding, XS(3, 3), gpunn_hash_grid_encoding(INSIDE(x), "l", .n_levels = 2, .log2_hashmap_size = 5,             \
                                                             .base_resolution = 2))                                             \
    X(hash_grid_encoding_flat, XS(3, 3, 2), gpunn_hash_grid_encoding(INSIDE(x), "l", .n_levels = 2, .n_features_per_level = 1,  \
                                                                     .log2_hashmap_size = 4, .base_resolution = 3))              \
    X(hash_grid_encoding_sparse, XS(3, 3), gpunn_hash_grid_encoding(INSIDE(x), "l", .n_levels = 2, .log2_hashmap_size = 5,      \
                                                                    .base_resolution = 2, .sparse = true))
/* clang-format on */
