/* Norms over groups of channels, instances and volumes: cases of golden.c (tests/golden/norms.safetensors) and of gradients.c. */

/* clang-format off */
#define NORMS_CASES(X)                                                                                    \
    X(group_norm, "plain", gpunn_group_norm(in("x"), "l", .num_groups = 3))                               \
    X(group_norm, "rows", gpunn_group_norm(in("x"), "l", .num_groups = 4))                                \
    X(group_norm, "one", gpunn_group_norm(in("x"), "l", .num_groups = 1, .eps = 0.1f))                    \
    X(group_norm, "line", gpunn_group_norm(in("x"), "l", .num_groups = 2))                                \
    X(group_norm, "image", gpunn_group_norm(in("x"), "l", .num_groups = 2))                               \
    X(group_norm, "volume", gpunn_group_norm(in("x"), "l", .num_groups = 2, .no_affine = true))           \
    X(group_norm, "large", gpunn_group_norm(in("x"), "l", .num_groups = 2))                               \
    X(group_norm, "far", gpunn_group_norm(in("x"), "l", .num_groups = 2))                                 \
    X(instance_norm, "1d", gpunn_instance_norm1d(in("x"), "l", .eps = 0.1f))                              \
    X(instance_norm, "2d", gpunn_instance_norm2d(in("x"), "l", .affine = true))                           \
    X(instance_norm, "3d", gpunn_instance_norm3d(in("x"), "l"))                                           \
    X(batch_norm, "3d", gpunn_batch_norm3d(in("x"), "l"))                                                 \
    X(batch_norm, "3d_options", gpunn_batch_norm3d(in("x"), "l", .eps = 1e-3f, .momentum = 0.3f))         \
    X(batch_norm, "1d_merged",                                                                            \
      gpunn_relu(gpunn_batch_norm1d(gpunn_conv1d(in("x"), "c", .out_channels = 4, .kernel_size = 2), "l")))\
    X(batch_norm, "3d_merged",                                                                            \
      gpunn_relu(gpunn_batch_norm3d(gpunn_conv3d(in("x"), "c", .out_channels = 4, .kernel_size = 2,       \
      .no_bias = true), "l")))                                                                            \
    X(batch_norm, "other_axis", gpunn_batch_norm2d(gpunn_linear(in("x"), "c", .out_features = 7), "l"))   \
    X(batch_norm, "untracked_1d", gpunn_batch_norm1d(in("x"), "l", .eps = 1e-3f, .no_running_stats = true)) \
    X(batch_norm, "untracked_1d_length",                                                                  \
      gpunn_batch_norm1d(in("x"), "l", .eps = 1e-3f, .no_affine = true, .no_running_stats = true))        \
    X(batch_norm, "untracked_2d", gpunn_batch_norm2d(in("x"), "l", .eps = 1e-3f, .no_running_stats = true)) \
    X(batch_norm, "untracked_3d", gpunn_batch_norm3d(in("x"), "l", .eps = 1e-3f, .no_running_stats = true)) \
    X(batch_norm, "untracked_2d_wide",                                                                    \
      gpunn_batch_norm2d(in("x"), "l", .eps = 1e-3f, .no_running_stats = true))                           \
    X(instance_norm, "tracked_1d", gpunn_instance_norm1d(in("x"), "l", .track_running_stats = true))      \
    X(instance_norm, "tracked_2d",                                                                        \
      gpunn_instance_norm2d(in("x"), "l", .eps = 0.1f, .affine = true, .track_running_stats = true, .momentum = 0.3f)) \
    X(instance_norm, "tracked_3d",                                                                        \
      gpunn_instance_norm3d(in("x"), "l", .affine = true, .track_running_stats = true, .momentum = 1))    \
    X(instance_norm, "tracked_large",                                                                     \
      gpunn_instance_norm2d(in("x"), "l", .affine = true, .track_running_stats = true))                   \
    X(instance_norm, "tracked_many",                                                                      \
      gpunn_instance_norm2d(in("x"), "l", .affine = true, .track_running_stats = true))                   \
    X(instance_norm, "tracked_merged",                                                                    \
      gpunn_relu(gpunn_instance_norm2d(gpunn_conv2d(in("x"), "c", .out_channels = 4, .kernel_size = 2, .no_bias = true), "l",  \
      .affine = true, .track_running_stats = true)))                                                      \
    X(local_response_norm, "line", gpunn_local_response_norm(in("x"), .size = 3))                         \
    X(local_response_norm, "even",                                                                        \
      gpunn_local_response_norm(in("x"), .size = 4, .alpha = 0.5f, .beta = 1.5f, .k = 2))                 \
    X(local_response_norm, "volume", gpunn_local_response_norm(in("x"), .size = 9, .alpha = 2))           \
    X(local_response_norm, "one", gpunn_local_response_norm(in("x"), .size = 1, .alpha = 1))
#define NORMS_GRADIENTS(X)                                                                                                      \
    X(batch_norm3d, XS(3, 2, 2, 3, 2), gpunn_batch_norm3d(x, "l"))                                                              \
    X(group_norm, XS(3, 6, 2, 3), gpunn_group_norm(x, "l", .num_groups = 2))                                                    \
    X(group_norm_rows, XS(3, 8), gpunn_group_norm(x, "l", .num_groups = 2, .eps = 0.01f))                                       \
    X(group_norm_no_affine, XS(3, 4, 5), gpunn_group_norm(x, "l", .num_groups = 2, .no_affine = true))                          \
    X(group_norm_twice, XS(3, 4, 9), gpunn_mul(gpunn_group_norm(x, "l", .num_groups = 2),                                       \
      gpunn_group_norm(gpunn_tanh(x), "m", .num_groups = 4)))                                                                   \
    X(instance_norm, XS(3, 2, 4, 5), gpunn_instance_norm2d(x, "l", .affine = true))                                             \
    X(batch_norm2d_no_running_stats, XS(3, 4, 3, 2), gpunn_batch_norm2d(x, "l", .no_running_stats = true))                      \
    X(instance_norm_running_stats, XS(3, 4, 5), gpunn_instance_norm1d(x, "l", .affine = true, .track_running_stats = true))     \
    X(local_response_norm, XS(3, 5, 4), gpunn_local_response_norm(x, .size = 3, .alpha = 2))
/* clang-format on */
