/* Models of each precision against the same model on the CPU, which computes in F32: outputs, losses,
 * gradients; F32 masters; the loss scale of F16 through overflow, checkpoint and device. */
#include "../test.h"

typedef struct precision_case {
    const char     *name;
    gpunn_precision precision;
    double          tolerance; /* of the 2-norm of a difference, by that of the F32 values */
    int             model;
} precision_case;
enum { STEPS = 10, BATCH = 8 };

/* Models that between them meet every rule of storage. */
static gpunn_tensor *attention(gpunn_tensor *x)
{
    gpunn_tensor *q = gpunn_linear(x, "q", .out_features = 8), *k = gpunn_linear(x, "k", .out_features = 8);
    gpunn_tensor *weights = gpunn_softmax(gpunn_mul_scalar(gpunn_matmul(q, k, .transpose_b = true), 0.35f),
                                          -1);
    return gpunn_matmul(weights, gpunn_linear(x, "v", .out_features = 8));
}

/* As many integers of one value as labels t. */
static gpunn_tensor *alike(gpunn_tensor *t, float value, gpunn_dtype dtype)
{
    return gpunn_cast(gpunn_add_scalar(gpunn_mul_scalar(gpunn_cast(t, GPUNN_F32), 0), value), dtype);
}

/* The mean of losses of 16-bit values h [n, 18] and labels 0 to 2. */
static gpunn_tensor *criteria(gpunn_tensor *h, gpunn_tensor *t)
{
    gpunn_tensor *sum = NULL, *a = gpunn_tanh(gpunn_linear(h, "a", .out_features = 10)),
                 *b = gpunn_tanh(gpunn_linear(h, "b", .out_features = 10));
    gpunn_tensor *sign = gpunn_sign(gpunn_add_scalar(gpunn_cast(t, GPUNN_F32), -0.5f));
    gpunn_tensor *pair[2] = {gpunn_softmax(gpunn_reshape(a, GPUNN_SHAPE(GPUNN_BATCH, 2, 5)), 1),
                             gpunn_softmax(gpunn_reshape(b, GPUNN_SHAPE(GPUNN_BATCH, 2, 5)), 1)};
    gpunn_tensor *steps = gpunn_linear(gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 6, 3)), "steps",
                                       .out_features = 5);
    gpunn_tensor *losses[] = {
        gpunn_ctc_loss(gpunn_log_softmax(steps, 2), gpunn_reshape(t, GPUNN_SHAPE(GPUNN_BATCH, 1)),
                       alike(t, 6, GPUNN_I64), alike(t, 1, GPUNN_I32), .blank = 3, .batch_first = true),
        gpunn_cosine_embedding_loss(a, b, sign, .margin = -0.5f),
        gpunn_triplet_margin_loss(a, b, gpunn_sin(a), .margin = 9),
        gpunn_multi_margin_loss(a, t, .p = 2, .margin = 3),
        gpunn_dice_loss(pair[0], pair[1], .squared = true),
        gpunn_mean(gpunn_cosine_similarity(a, b, 1, 0), GPUNN_ALL, false),
    };
    for (int i = 0; i < COUNT(losses); i++) sum = sum ? gpunn_add(sum, losses[i]) : losses[i];
    return gpunn_mul_scalar(sum, 1.0f / COUNT(losses));
}

/* Residual blocks whose filters are turned: wide, narrow and large ones, of groups, of one cell, over images
 * of one cell. */
static gpunn_tensor *blocks(gpunn_tensor *x)
{
    gpunn_tensor *h = gpunn_conv2d(x, "stem", .out_channels = 40, .kernel_size = 6, .padding = 3,
                                   .no_bias = true);
    h = gpunn_max_pool2d(gpunn_relu(gpunn_batch_norm2d(h, "stem_bn")), .kernel_size = 2);
    gpunn_tensor *a = gpunn_conv2d(h, "a1", .out_channels = 40, .kernel_size = 3, .padding = 1,
                                   .no_bias = true);
    a = gpunn_relu(gpunn_batch_norm2d(a, "a1_bn"));
    a = gpunn_conv2d(a, "a2", .out_channels = 40, .kernel_size = 3, .padding = 1, .groups = 4);
    h = gpunn_relu(gpunn_add(gpunn_batch_norm2d(a, "a2_bn"), h));
    a = gpunn_conv2d(h, "b1", .out_channels = 12, .kernel_size = 3, .padding = 1, .stride = 2);
    a = gpunn_relu(gpunn_batch_norm2d(a, "b1_bn"));
    a = gpunn_batch_norm2d(gpunn_conv2d(a, "b2", .out_channels = 12, .kernel_size = 3, .padding = 1),
                           "b2_bn");
    h = gpunn_conv2d(h, "side", .out_channels = 12, .kernel_size = 1, .stride = 2);
    h = gpunn_relu(gpunn_add(gpunn_batch_norm2d(h, "side_bn"), a));
    h = gpunn_add(
        h, gpunn_conv2d(h, "depthwise", .out_channels = 12, .kernel_size = 3, .padding = 1, .groups = 12));
    h = gpunn_adaptive_avg_pool2d(h, 1, 1);
    a = gpunn_batch_norm2d(gpunn_conv2d(h, "cell", .out_channels = 12, .kernel_size = 3, .padding = 1),
                           "cell_bn");
    return gpunn_flatten(gpunn_relu(gpunn_add(h, a)));
}

/* x with what a transformer's part makes of it: attention of separate q, k and v, then linear layers; F32
 * sums, whose norms come before each part, or after it. */
static gpunn_tensor *block(gpunn_tensor *x, const char *name, int rows, int width, int heads, bool norm_first,
                           bool no_bias)
{
    static const char *const parts[] = {"n1", "q", "k", "v", "o", "n2", "f1", "f2"};
    char                     names[COUNT(parts)][32];
    gpunn_tensor            *part[3], *h;
    for (int i = 0; i < COUNT(parts); i++) snprintf(names[i], sizeof names[i], "%s.%s", name, parts[i]);
    h = norm_first ? gpunn_layer_norm(x, names[0]) : x;
    for (int i = 0; i < 3; i++)
        part[i] = gpunn_reshape(gpunn_linear(h, names[1 + i], .out_features = 8 * heads, .no_bias = no_bias),
                                GPUNN_SHAPE(GPUNN_BATCH, rows, heads, 8));
    h = gpunn_scaled_dot_product_attention(part[0], part[1], part[2], .heads_last = true);
    h = gpunn_linear(gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, rows, 8 * heads)), names[4],
                     .out_features = width);
    x = gpunn_add(h, x);
    if (!norm_first) x = gpunn_layer_norm(x, names[0]);
    h = norm_first ? gpunn_rms_norm(x, names[5], .dims = 1) : x;
    h = gpunn_gelu_tanh(gpunn_linear(h, names[6], .out_features = 17));
    x = gpunn_add(x, gpunn_linear(h, names[7], .out_features = width, .no_bias = no_bias));
    return norm_first ? x : gpunn_layer_norm(x, names[5], .no_affine = true);
}

static net make(gpunn_model *model, int which)
{
    net n = {NULL, NULL, NULL, NULL, NULL};
    if (which == 0) return net_make(model);
    n.x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, 6, 6));
    n.t = gpunn_input(model, "t", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *h = gpunn_reshape(n.x, GPUNN_SHAPE(GPUNN_BATCH, 6, 6));
    /* linear with relu, gelu_tanh and a residual; an F32 value read by two products; padding, concat,
     * slices */
    if (which == 1) {
        h = gpunn_flatten(n.x);
        gpunn_tensor *a = gpunn_gelu_tanh(gpunn_linear(h, "fc1", .out_features = 17));
        gpunn_tensor *b = gpunn_relu(gpunn_linear(h, "fc2", .out_features = 17));
        a = gpunn_linear(a, "fc3", .out_features = 17);
        b = gpunn_linear(b, "fc4", .out_features = 17, .no_bias = true);
        gpunn_tensor *both[2] = {gpunn_relu(gpunn_add(a, b)), gpunn_mul(a, gpunn_sigmoid(b))};
        h = gpunn_linear(gpunn_slice(gpunn_concat(both, 2, 1), 1, 3, 31, 1), "fc5", .out_features = 9);
        h = gpunn_gelu_tanh(h);
    } else if (which == 2) {
        h = gpunn_add(attention(h), gpunn_linear(h, "skip", .out_features = 8));
        h = gpunn_add(h, gpunn_linear(gpunn_rms_norm(gpunn_layer_norm(h, "ln"), "norm", .dims = 2), "fc",
                                      .out_features = 8));
        h = gpunn_layer_norm(gpunn_flatten(h), "ln2", .no_affine = true);
    } else if (which == 4) {
        /* attention: what cuDNN takes, all in one or heads that share keys; then with dropout and a mask */
        static const float mask[6] = {0, -1, 0.5f, 0, -INFINITY, 2};
        gpunn_tensor      *qkv = gpunn_linear(h, "qkv", .out_features = 48);
        qkv = gpunn_reshape(qkv, GPUNN_SHAPE(GPUNN_BATCH, 6, 3, 2, 8));
        h = gpunn_scaled_dot_product_attention(qkv, NULL, NULL, .is_causal = true);
        h = gpunn_add(gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 6, 16)),
                      gpunn_parameter(model, "p", GPUNN_SHAPE(16), (gpunn_init){0}));
        gpunn_tensor *q = gpunn_reshape(gpunn_linear(h, "q", .out_features = 32),
                                        GPUNN_SHAPE(GPUNN_BATCH, 6, 4, 8));
        gpunn_tensor *k = gpunn_reshape(gpunn_linear(h, "k", .out_features = 16),
                                        GPUNN_SHAPE(GPUNN_BATCH, 6, 2, 8));
        gpunn_tensor *v = gpunn_reshape(gpunn_linear(h, "v", .out_features = 16),
                                        GPUNN_SHAPE(GPUNN_BATCH, 6, 2, 8));
        q = gpunn_scaled_dot_product_attention(q, k, v, .heads_last = true, .enable_gqa = true);
        k = gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 6, 2, 8)); /* F32, read by several products */
        h = gpunn_scaled_dot_product_attention(q, k, k, .dropout_p = 0.3f, .heads_last = true,
                                               .enable_gqa = true,
                                               .mask = gpunn_constant(model, GPUNN_SHAPE(6), mask));
        h = gpunn_flatten(h);
    } else if (
        which ==
        5) { /* a table of words that also scores them, one of 16 bits, picked elements of 16-bit values */
        static const float steps[11] = {1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6};
        h = gpunn_reshape(n.x, GPUNN_SHAPE(GPUNN_BATCH, 36, 1));
        gpunn_tensor *t = gpunn_cast(gpunn_mul_scalar(gpunn_sigmoid(h), 10.9f), GPUNN_I64);
        gpunn_tensor *a = gpunn_mul(gpunn_embedding(gpunn_reshape(t, GPUNN_SHAPE(GPUNN_BATCH, 36)), "words",
                                                    .num_embeddings = 11, .embedding_dim = 8,
                                                    .padding_idx = 4),
                                    h);
        gpunn_tensor *b = gpunn_find(model, "words.weight");
        a = gpunn_linear(gpunn_tanh(gpunn_linear(a, "fc", .out_features = 8)), "scores", .weight = b);
        b = gpunn_embedding(
            t, "half",
            .weight = gpunn_matmul(b, gpunn_parameter(model, "p", GPUNN_SHAPE(8, 3), (gpunn_init){0})));
        gpunn_tensor *rows = gpunn_mul(h, gpunn_constant(model, GPUNN_SHAPE(11), steps));
        rows = gpunn_cast(gpunn_mul_scalar(gpunn_sigmoid(rows), 35.9f), GPUNN_I32);
        b = gpunn_reshape(b, GPUNN_SHAPE(GPUNN_BATCH, 36, 3));
        gpunn_tensor *c[7] = {gpunn_gather(a, 2, t),
                              gpunn_gather(a, 1, rows),
                              b,
                              gpunn_scatter_add(a, 1, rows, a),
                              gpunn_randn_like(a),
                              gpunn_cross(b, gpunn_tanh(b), 2),
                              gpunn_logcumsumexp(a, 1)};
        h = gpunn_flatten(gpunn_concat(c, 7, 2));
    } else if (which ==
               /* 16-bit images at an F32 grid, and at a 16-bit one, and in boxes; an affine grid from
                * 16-bit numbers */
               7) {
        static const float still[6] = {0.8f, 0, 0.05f, 0, 0.8f, 0.03f}, box[5] = {0, 0.5f, 1.25f, 4.5f, 5};
        gpunn_tensor *image = gpunn_conv2d(n.x, "conv", .out_channels = 3, .kernel_size = 3, .padding = 1);
        gpunn_tensor *theta = gpunn_mul_scalar(
            gpunn_tanh(gpunn_linear(gpunn_flatten(n.x), "theta", .out_features = 6)), 0.02f);
        theta = gpunn_reshape(gpunn_add(theta, gpunn_constant(model, GPUNN_SHAPE(6), still)),
                              GPUNN_SHAPE(GPUNN_BATCH, 2, 3));
        gpunn_tensor *a = gpunn_grid_sample(image, gpunn_affine_grid(theta, GPUNN_SHAPE(5, 7), false));
        gpunn_tensor *grid = gpunn_tanh(gpunn_linear(gpunn_flatten(image), "grid", .out_features = 24));
        gpunn_tensor *b = gpunn_grid_sample(n.x, gpunn_reshape(grid, GPUNN_SHAPE(GPUNN_BATCH, 3, 4, 2)),
                                            .padding_mode = GPUNN_GRID_BORDER, .align_corners = true);
        gpunn_tensor *part = gpunn_roi_align(image, gpunn_constant(model, GPUNN_SHAPE(1, 5), box),
                                             .output_size = 2, .aligned = true);
        gpunn_tensor *both[2] = {gpunn_flatten(a), gpunn_flatten(b)};
        h = gpunn_mul_scalar(gpunn_add(gpunn_concat(both, 2, 1), gpunn_mean(part, GPUNN_ALL, false)), 0.5f);
    } else if (which == 6) { /* convolutions of all axes, there and back */
        h = gpunn_silu(gpunn_conv_transpose2d(n.x, "up2", .out_channels = 6, .kernel_size = 3, .stride = 2,
                                              .output_padding = 1));
        h = gpunn_silu(gpunn_conv2d(h, "down2", .out_channels = 4, .kernel_size = 3, .stride = 2));
        gpunn_tensor *line = gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 4, 36));
        gpunn_tensor *volume = gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 2, 2, 6, 6));
        line = gpunn_silu(
            gpunn_conv1d(line, "down1", .out_channels = 8, .kernel_size = 3, .stride = 2, .groups = 4));
        line = gpunn_conv_transpose1d(line, "up1", .out_channels = 4, .kernel_size = 4, .stride = 2);
        volume = gpunn_silu(
            gpunn_conv3d(volume, "down3", .out_channels = 3, .kernel_size = 2, .strides = {1, 2, 2}));
        volume = gpunn_conv_transpose3d(volume, "up3", .out_channels = 4, .kernel_size = 2, .stride = 2);
        gpunn_tensor *both[2] = {gpunn_reshape(line, GPUNN_SHAPE(GPUNN_BATCH, 4, 36)),
                                 gpunn_reshape(volume, GPUNN_SHAPE(GPUNN_BATCH, 4, 72))};
        h = gpunn_flatten(gpunn_silu(gpunn_concat(both, 2, 2)));
    } else if (which ==
               8) { /* recurrent layers, F32 among 16-bit values: initial and final states, both directions */
        gpunn_tensor *state = gpunn_reshape(gpunn_linear(gpunn_flatten(n.x), "start", .out_features = 7),
                                            GPUNN_SHAPE(GPUNN_BATCH, 1, 7));
        gpunn_tensor *h_0 = gpunn_permute(state, GPUNN_AXES(1, 0, 2)), *h_n, *c_n;
        h = gpunn_linear(h, "in", .out_features = 9);
        h = gpunn_lstm(h, "lstm", .hidden_size = 7, .batch_first = true, .h_0 = h_0, .c_0 = gpunn_tanh(h_0),
                       .h_n = &h_n, .c_n = &c_n);
        h = gpunn_gru(gpunn_linear(h, "between", .out_features = 8), "gru", .hidden_size = 5, .num_layers = 2,
                      .batch_first = true, .bidirectional = true);
        h = gpunn_lstm(gpunn_linear(h, "before", .out_features = 6), "narrow", .hidden_size = 5,
                       .batch_first = true, .bidirectional = true, .proj_size = 3,
                       .h_0 = gpunn_reshape(gpunn_slice(h_0, 2, 0, 6, 1), GPUNN_SHAPE(2, GPUNN_BATCH, 3)));
        h = gpunn_rnn(h, "rnn", .hidden_size = 6, .batch_first = true, .no_bias = true);
        gpunn_tensor *both[2] = {gpunn_flatten(h),
                                 gpunn_flatten(gpunn_permute(gpunn_add(h_n, c_n), GPUNN_AXES(1, 0, 2)))};
        h = gpunn_concat(both, 2, 1);
    } else if (which == 9) { /* what the losses of 16-bit values read */
        h = gpunn_silu(gpunn_linear(gpunn_flatten(n.x), "fc", .out_features = 18));
    } else if (which == 10) {
        h = blocks(n.x);
    } else if (
        which ==
        11) { /* blocks of transformers; a norm and the gradient of a branch that the program reads, too */
        h = block(block(h, "a", 6, 6, 4, true, false), "b", 6, 6, 3, true, true);
        h = gpunn_reshape(gpunn_pad(gpunn_flatten(h), .after = {0, 4}), GPUNN_SHAPE(GPUNN_BATCH, 5, 8));
        h = block(block(h, "c", 5, 8, 3, false, false), "d", 5, 8, 2, false, false);
        gpunn_tensor *b = gpunn_set_name(
            gpunn_retain_grad(gpunn_keep(gpunn_linear(h, "e", .out_features = 8))), "inner");
        h = gpunn_set_name(gpunn_keep(gpunn_layer_norm(gpunn_add(b, h), "f")), "kept");
        h = gpunn_flatten(gpunn_linear(h, "g", .out_features = 3));
    } else { /* images that go through ops of every kind, those that pass on channels-last images and others; smooth ones */
        gpunn_tensor *a = gpunn_conv2d(n.x, "conv1", .out_channels = 6, .kernel_size = 3, .padding = 1);
        gpunn_tensor *b = gpunn_silu(
            gpunn_batch_norm2d(gpunn_conv2d(a, "conv2", .out_channels = 6, .kernel_size = 1), "bn"));
        gpunn_tensor *c[2] = {gpunn_add(gpunn_mul_scalar(a, 0.5f), gpunn_dropout(b, 0.3f)),
                              gpunn_mul(b, gpunn_tanh(n.x))};
        h = gpunn_keep(gpunn_set_name(gpunn_silu(gpunn_concat(c, 2, 1)), "kept"));
        h = gpunn_group_norm(h, "gn", .num_groups = 4);
        h = gpunn_conv2d(h, "conv3", .out_channels = 8, .kernel_size = 3, .groups = 2, .stride = 1,
                         .padding = 1);
        b = gpunn_silu(
            gpunn_conv2d(b, "each", .out_channels = 12, .kernel_size = 3, .padding = 1, .groups = 6));
        b = gpunn_pad(b, .before = {0, 0, 1, 1}, .after = {0, 0, 1, 1});
        b = gpunn_set_name(gpunn_keep(gpunn_conv2d(b, "conv4", .out_channels = 8, .kernel_size = 3)),
                           "inner");
        a = gpunn_silu(gpunn_add(h, gpunn_retain_grad(b)));
        b = gpunn_avg_pool2d(gpunn_avg_pool2d(a, .kernel_size = 2), .kernel_size = 2, .padding = 1);
        b = gpunn_pad(b, .before = {0, 0, 1}, .after = {0, 0, 0, 1}, .mode = GPUNN_PAD_REFLECT);
        c[0] = gpunn_flatten(gpunn_interpolate(b, .size = {3, 5}, .mode = GPUNN_INTERPOLATE_LINEAR));
        c[1] = gpunn_flatten(gpunn_adaptive_avg_pool2d(a, 1, 1));
        h = gpunn_concat(c, 2, 1);
    }
    n.logits = gpunn_linear(h, "out", .out_features = 3);
    n.loss = gpunn_cross_entropy(n.logits, n.t);
    /* times 65536 is an F16 still */
    if (which == 9) n.loss = gpunn_mul_scalar(gpunn_add(n.loss, criteria(h, n.t)), 0.0625f);
    /* its gradient has two parts */
    gpunn_tensor *shared = which == 10 ? gpunn_find(model, "b2.weight") : NULL;
    if (shared) {
        shared = gpunn_sum(gpunn_square(shared), GPUNN_ALL, false);
        n.loss = gpunn_mul_scalar(gpunn_add(n.loss, gpunn_mul_scalar(shared, 0.03f)), 0.0625f); /* here too */
    }
    n.accuracy = gpunn_accuracy(n.logits, n.t);
    return n;
}

/* The 2-norm of a - b. */
static double distance(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(a[i])) fail_msg("element %lld is %g", (long long)i, (double)a[i]);
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    }
    return sqrt(sum);
}

static double norm_of(gpunn_device *dev, gpunn_tensor *t)
{
    size_t bytes = gpunn_tensor_bytes(t);
    float *values = malloc(bytes), *zeros = calloc(1, bytes);
    OK(dev, gpunn_read_grad(t, values, bytes));
    double norm = distance(values, zeros, (int64_t)(bytes / sizeof *values));
    free(values), free(zeros);
    return norm;
}

/* floor: of the size that differences are compared with. */
static void check_tensor(fixture *f, gpunn_tensor *t, gpunn_device *cpu, gpunn_tensor *expected,
                         bool gradient, double floor, double tolerance)
{
    size_t bytes = gpunn_tensor_bytes(t);
    float *a = malloc(bytes), *b = malloc(bytes);
    OK(f->dev, gradient ? gpunn_read_grad(t, a, bytes) : gpunn_read(t, a, bytes));
    OK(cpu, gradient ? gpunn_read_grad(expected, b, bytes) : gpunn_read(expected, b, bytes));
    int64_t n = (int64_t)(bytes / sizeof *a);
    float  *zeros = calloc(1, bytes);
    double  size = distance(b, zeros, n), error = distance(a, b, n) / (size > floor ? size : floor);
    free(zeros);
    if (!(error <= tolerance))
        fail_msg("%s%s: off by %g of its size, %g allowed", gradient ? "gradient of " : "",
                 gpunn_tensor_name(expected), error, tolerance);
    free(a), free(b);
}

/* A value that is F32 by the rules of storage is not one of 16 bits made longer. */
static void check_fine(fixture *f, gpunn_tensor *t)
{
    int64_t count, fine = 0;
    float  *values = read_floats(f->dev, t, &count);
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        fine += (bits & 0x1FFF) != 0;
    }
    free(values);
    if (2 * fine < count) fail_msg("%s has been rounded to 16 bits", gpunn_tensor_name(t));
}

static void test_precision(void **state)
{
    fixture              *f = *state;
    const precision_case *c = f->data;
    gpunn_device         *cpu = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 1);
    gpunn_model          *reference = gpunn_model_create(cpu),
                *model = gpunn_model_create(f->dev, .precision = c->precision);
    net r = make(reference, c->model), n = make(model, c->model);
    gpunn_retain_grad(n.logits), gpunn_retain_grad(r.logits);
    gpunn_retain_grad(n.x), gpunn_retain_grad(r.x);
    gpunn_set_name(r.logits, "logits");
    net_write(cpu, r, BATCH, 3), net_write(f->dev, n, BATCH, 3);
    OK(cpu, gpunn_backward(r.loss));
    OK(f->dev, gpunn_backward(n.loss));
    check_tensor(f, n.logits, cpu, r.logits, true, 0, c->tolerance);
    check_tensor(f, n.x, cpu, r.x, true, 0, 2 * c->tolerance);
    if (c->model == 3 || c->model == 11) {
        check_tensor(f, gpunn_find(model, "kept"), cpu, gpunn_find(reference, "kept"), false, 0,
                     c->tolerance);
        check_tensor(f, gpunn_find(model, "inner"), cpu, gpunn_find(reference, "inner"), false, 0,
                     c->tolerance);
        check_tensor(f, gpunn_find(model, "inner"), cpu, gpunn_find(reference, "inner"), true, 0,
                     c->tolerance);
    }
    if (c->model == 11) check_fine(f, gpunn_find(model, "kept"));
    double largest = 0; /* some gradients are 0 but for rounding: a bias before a batch norm */
    for (int i = 0; i < gpunn_parameter_count(reference); i++) {
        gpunn_tensor *q = gpunn_parameter_at(reference, i);
        if (strstr(gpunn_tensor_name(q), "running")) continue;
        double norm = norm_of(cpu, q);
        if (norm > largest) largest = norm;
    }
    for (int i = 0; i < gpunn_parameter_count(model); i++) {
        gpunn_tensor *p = gpunn_parameter_at(model, i), *q = gpunn_parameter_at(reference, i);
        if (strstr(gpunn_tensor_name(p), "running") == NULL)
            check_tensor(f, p, cpu, q, true, 0.1 * largest, 3 * c->tolerance);
    }
    gpunn_optimizer *a = MADE(f->dev, gpunn_sgd(model, .lr = 0.02f, .momentum = 0.9f)),
                    *b = MADE(cpu, gpunn_sgd(reference, .lr = 0.02f, .momentum = 0.9f));
    gpunn_set_clip_norm(a, 1), gpunn_set_clip_norm(b, 1);
    float first = 0;
    for (int step = 0; step < STEPS; step++) {
        int64_t batch = step == STEPS - 1 ? 5 : BATCH; /* the last one is partial */
        net_write(cpu, r, batch, (uint32_t)step), net_write(f->dev, n, batch, (uint32_t)step);
        OK(cpu, gpunn_train_step(b, r.loss));
        OK(f->dev, gpunn_train_step(a, n.loss));
        float loss = gpunn_item(n.loss), expected = gpunn_item(r.loss);
        if (!(fabs((double)loss - expected) <= 3 * c->tolerance * (1 + fabs((double)expected))))
            fail_msg("step %d: loss %g, on the CPU %g", step, (double)loss, (double)expected);
        if (step == 0) first = loss;
    }
    assert_true(gpunn_item(n.loss) < first);
    OK(cpu, gpunn_forward(&r.logits, 1));
    OK(f->dev, gpunn_forward(&n.logits, 1));
    check_tensor(f, n.logits, cpu, r.logits, false, 0, 10 * c->tolerance);
    gpunn_optimizer_destroy(a), gpunn_optimizer_destroy(b);
    gpunn_model_destroy(model), gpunn_model_destroy(reference), gpunn_device_close(cpu);
}

/* Attention of x to y with a mask of every kind: rows that see no key, numbers that are large, keys that fill
 * no tile. */
typedef struct masked_case {
    const char *name;
    gpunn_dtype dtype;
    int         rank, dim[4]; /* of the mask */
    int         l, s, kv_heads, e;
    bool        causal;
    /* hidden, or false: every third element, all of row 1 where the mask has rows */
    float hidden, added;
} masked_case;
enum { MASKED_N = 3, MASKED_HEADS = 4, MASKED_SIZE = 32 };

static gpunn_tensor *masked_heads(gpunn_tensor *x, const char *name, int rows, int heads, int e)
{
    x = gpunn_linear(x, name, .out_features = e * heads);
    return gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, rows, heads, e));
}

static void masked_make(gpunn_device *dev, gpunn_model *model, const masked_case *c, gpunn_tensor *t[4])
{
    gpunn_shape shape = {{0}};
    int64_t     count = 1;
    for (int d = 0; d < c->rank; d++) {
        count *= c->dim[d];
        shape.dim[d] = c->rank == 4 && d == 0 && c->dim[0] == MASKED_N ? GPUNN_BATCH : c->dim[d];
    }
    t[0] = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, c->l, MASKED_SIZE));
    t[1] = gpunn_input(model, "y", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, c->s, MASKED_SIZE));
    gpunn_tensor *mask = gpunn_input(model, "mask", c->dtype, shape);
    gpunn_tensor *q = masked_heads(t[0], "q", c->l, MASKED_HEADS, c->e),
                 *k = masked_heads(t[1], "k", c->s, c->kv_heads, c->e);
    gpunn_tensor *v = masked_heads(t[1], "v", c->s, c->kv_heads, c->e);
    t[2] = gpunn_scaled_dot_product_attention(q, k, v, .mask = mask, .heads_last = true,
                                              .is_causal = c->causal, .enable_gqa = true);
    t[3] = gpunn_linear(gpunn_reshape(t[2], GPUNN_SHAPE(GPUNN_BATCH, c->l, c->e * MASKED_HEADS)), "out",
                        .out_features = 5);
    t[3] = gpunn_sum(gpunn_square(t[3]), GPUNN_ALL, false);
    MADE(dev, t[3]);
    gpunn_retain_grad(t[0]), gpunn_retain_grad(t[1]), gpunn_keep(t[2]);
    for (int i = 0; i < 2; i++) {
        const int64_t n = (int64_t)MASKED_N * (i ? c->s : c->l) * MASKED_SIZE;
        float        *values = test_randoms(n, 3 + (uint32_t)i, 2);
        OK(dev, write_floats(t[i], values, n));
        free(values);
    }
    float        *values = test_randoms(count, 9, 2);
    uint8_t      *seen = malloc((size_t)count);
    const int64_t s = c->dim[c->rank - 1], rows = c->rank > 1 ? c->dim[c->rank - 2] : 1;
    for (int64_t i = 0; i < count; i++) {
        const bool hidden = c->hidden < 0 && (i % 3 == 2 || (rows > 1 && i / s % rows == 1));
        seen[i] = !hidden;
        values[i] = hidden ? c->hidden : values[i] + c->added;
    }
    OK(dev,
       c->dtype == GPUNN_BOOL ? gpunn_write(mask, seen, (size_t)count) : write_floats(mask, values, count));
    free(values), free(seen);
}

static void test_masks(void **state)
{
    static const masked_case cases[] = {
        {"keys", GPUNN_BOOL, 4, {MASKED_N, 1, 1, 11}, 7, 11, 4, 8, false, -INFINITY, 0},
        {"keys, causal", GPUNN_BOOL, 4, {MASKED_N, 1, 1, 9}, 9, 9, 4, 8, true, -INFINITY, 0},
        {"whole tiles of keys", GPUNN_BOOL, 4, {MASKED_N, 1, 1, 128}, 128, 128, 2, 8, false, -INFINITY, 0},
        {"rows that see nothing", GPUNN_BOOL, 2, {6, 17}, 6, 17, 4, 8, false, -INFINITY, 0},
        {"all or nothing", GPUNN_BOOL, 4, {MASKED_N, 1, 5, 1}, 5, 16, 4, 8, false, -INFINITY, 0},
        {"added to keys", GPUNN_F32, 1, {13}, 4, 13, 4, 8, false, -INFINITY, 0},
        {"added to heads", GPUNN_F32, 3, {MASKED_HEADS, 5, 6}, 5, 6, 2, 8, false, 0, 0},
        {"added to each", GPUNN_F32, 4, {MASKED_N, MASKED_HEADS, 5, 20}, 5, 20, 2, 8, true, -INFINITY, 0},
        {"large, negative", GPUNN_F32, 4, {MASKED_N, 1, 1, 10}, 3, 10, 4, 8, false, -INFINITY, -100},
        {"the least number", GPUNN_F32, 4, {MASKED_N, 1, 1, 10}, 3, 10, 4, 8, false, -3.4e38f, 0},
        {"keys, size 16", GPUNN_BOOL, 4, {MASKED_N, 1, 1, 11}, 7, 11, 4, 16, false, -INFINITY, 0},
        {"whole tiles, size 64", GPUNN_BOOL, 4, {MASKED_N, 1, 1, 128}, 128, 128, 2, 64, false, -INFINITY, 0},
        {"each, size 32", GPUNN_F32, 4, {MASKED_N, MASKED_HEADS, 5, 20}, 5, 20, 2, 32, true, -INFINITY, 0},
    };
    fixture              *f = *state;
    const precision_case *p = f->data;
    for (int i = 0; i < COUNT(cases); i++) {
        gpunn_device *cpu = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 1);
        gpunn_model  *reference = gpunn_model_create(cpu),
                    *model = gpunn_model_create(f->dev, .precision = p->precision);
        gpunn_tensor *r[4], *t[4];
        masked_make(cpu, reference, &cases[i], r), masked_make(f->dev, model, &cases[i], t);
        OK(cpu, gpunn_backward(r[3]));
        OK(f->dev, gpunn_backward(t[3]));
        for (int x = 0; x < 3; x++) {
            char name[64];
            (void)snprintf(name, sizeof name, "%s, %s", cases[i].name, x < 2 ? gpunn_tensor_name(r[x]) : "y");
            gpunn_set_name(r[x], name);
        }
        const double floor = norm_of(cpu, r[0]); /* k's bias has no gradient but for rounding */
        check_tensor(f, t[2], cpu, r[2], false, 0, p->tolerance);
        for (int x = 0; x < 2; x++) check_tensor(f, t[x], cpu, r[x], true, 0, 2 * p->tolerance);
        for (int j = 0; j < gpunn_parameter_count(model); j++)
            check_tensor(f, gpunn_parameter_at(model, j), cpu, gpunn_parameter_at(reference, j), true, floor,
                         3 * p->tolerance);
        OK(cpu, gpunn_forward(&r[2], 1));
        OK(f->dev, gpunn_forward(&t[2], 1));
        check_tensor(f, t[2], cpu, r[2], false, 0, p->tolerance);
        gpunn_model_destroy(model), gpunn_model_destroy(reference), gpunn_device_close(cpu);
    }
}

/* Updates far below what 16 bits can tell from the weight add up in the F32 masters. */
static void test_masters(void **state)
{
    fixture      *f = *state;
    gpunn_model  *model = gpunn_model_create(f->dev, .precision = GPUNN_PRECISION_BF16);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    gpunn_tensor *y = gpunn_linear(x, "fc", .out_features = 1, .no_bias = true),
                 *weight = gpunn_find(model, "fc.weight");
    gpunn_optimizer *sgd = MADE(f->dev, gpunn_sgd(model, .lr = 1e-4f));
    const float      one = 1;
    gpunn_tensor    *loss = gpunn_sum(y, GPUNN_ALL, false);
    OK(f->dev, write_floats(weight, &one, 1));
    OK(f->dev, write_floats(x, &one, 1));
    for (int step = 0; step < 100; step++) OK(f->dev, gpunn_train_step(sgd, loss));
    float value = gpunn_item(weight);
    check_close(&value, &(float){0.99f}, 1, 0, 1e-5);
    OK(f->dev, gpunn_forward(&y, 1)); /* computed with 0.99 in 8 bits of mantissa, or with all of them */
    value = gpunn_item(y);
    check_close(&value, &(float){0.99f}, 1, 0.004, 0);
    gpunn_optimizer_destroy(sgd), gpunn_model_destroy(model);
}

/* To the CPU and back: the same weights, F32 and rounded. */
static void test_move(void **state)
{
    fixture         *f = *state;
    gpunn_device    *cpu = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 1, .realloc_fn = hook_realloc,
                                             .user = &f->memory);
    gpunn_model     *model = gpunn_model_create(f->dev, .precision = GPUNN_PRECISION_BF16);
    net              n = net_make(model);
    float            before[3 * BATCH], after[3 * BATCH];
    gpunn_optimizer *adam = MADE(f->dev, gpunn_adam(model, .lr = 0.01f));
    net_write(f->dev, n, BATCH, 1);
    OK(f->dev, gpunn_train_step(adam, n.loss));
    OK(f->dev, gpunn_forward(&n.logits, 1));
    OK(f->dev, gpunn_read(n.logits, before, sizeof before));
    OK(f->dev, gpunn_model_to(model, cpu));
    OK(cpu, gpunn_forward(&n.logits, 1));
    OK(cpu, gpunn_read(n.logits, after, sizeof after));
    check_close(after, before, COUNT(before), 0.05, 0.05);
    OK(f->dev, gpunn_model_to(model, f->dev));
    OK(f->dev, gpunn_forward(&n.logits, 1));
    OK(f->dev, gpunn_read(n.logits, after, sizeof after));
    assert_memory_equal(after, before, sizeof before);
    gpunn_optimizer_destroy(adam), gpunn_model_destroy(model), gpunn_device_close(cpu);
}

/* Evaluation reads rounded copies of the weights, which follow their exchange with averages. */
static void test_swap(void **state)
{
    fixture         *f = *state;
    gpunn_model     *model = gpunn_model_create(f->dev, .precision = GPUNN_PRECISION_BF16);
    net              n = net_make(model);
    float            trained[3 * BATCH], average[3 * BATCH], again[3 * BATCH];
    gpunn_optimizer *adam = MADE(f->dev, gpunn_adam(model, .lr = 0.1f));
    OK(f->dev, gpunn_set_ema(adam, 0.9f));
    net_write(f->dev, n, BATCH, 1);
    for (int step = 0; step < 4; step++) OK(f->dev, gpunn_train_step(adam, n.loss));
    OK(f->dev, gpunn_forward(&n.logits, 1));
    OK(f->dev, gpunn_read(n.logits, trained, sizeof trained));
    OK(f->dev, gpunn_ema_swap(adam));
    OK(f->dev, gpunn_forward(&n.logits, 1));
    OK(f->dev, gpunn_read(n.logits, average, sizeof average));
    assert_memory_not_equal(average, trained, sizeof average);
    /* writing renews the copies, which changes nothing here */
    gpunn_tensor *bias = gpunn_find(model, "fc1.bias");
    int64_t       count;
    float        *values = read_floats(f->dev, bias, &count);
    OK(f->dev, write_floats(bias, values, count));
    free(values);
    OK(f->dev, gpunn_forward(&n.logits, 1));
    OK(f->dev, gpunn_read(n.logits, again, sizeof again));
    assert_memory_equal(again, average, sizeof again);
    OK(f->dev, gpunn_ema_swap(adam));
    OK(f->dev, gpunn_forward(&n.logits, 1));
    OK(f->dev, gpunn_read(n.logits, again, sizeof again));
    assert_memory_equal(again, trained, sizeof again);
    gpunn_optimizer_destroy(adam), gpunn_model_destroy(model);
}

/* What a model answers, and what one that is made anew answers from the weights that it saves. */
static void check_fresh(fixture *f, gpunn_model *model, net n, gpunn_precision precision, const char *path)
{
    gpunn_model *other = gpunn_model_create(f->dev, .precision = precision);
    net          m = make(other, 10);
    float        answer[3 * BATCH], expected[3 * BATCH];
    OK(f->dev, gpunn_save(model, path));
    OK(f->dev, gpunn_load(other, path));
    net_write(f->dev, n, BATCH, 1), net_write(f->dev, m, BATCH, 1);
    OK(f->dev, gpunn_forward(&n.logits, 1));
    OK(f->dev, gpunn_read(n.logits, answer, sizeof answer));
    OK(f->dev, gpunn_forward(&m.logits, 1));
    OK(f->dev, gpunn_read(m.logits, expected, sizeof expected));
    assert_memory_equal(answer, expected, sizeof answer);
    gpunn_model_destroy(other);
}

/* Turned filters are those of the weights as they are now, however these have changed; their gradients add
 * up, and frozen ones have none. */
static void check_filters(fixture *f, gpunn_precision precision)
{
    gpunn_device    *cpu = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 1, .realloc_fn = hook_realloc,
                                             .user = &f->memory);
    gpunn_model     *model = gpunn_model_create(f->dev, .precision = precision);
    net              n = make(model, 10);
    const char      *path = test_path(f, "filters.safetensors"), *state = test_path(f, "state.safetensors");
    gpunn_tensor    *weight = gpunn_find(model, "a1.weight"), *frozen = gpunn_find(model, "a2.weight");
    gpunn_optimizer *adam = MADE(f->dev, gpunn_adam(model, .lr = 0.01f));
    int64_t          count;
    float           *before = read_floats(f->dev, frozen, &count);
    OK(f->dev, gpunn_set_ema(adam, 0.5f));
    OK(f->dev, gpunn_set_trainable(frozen, false));
    net_write(f->dev, n, BATCH, 1);
    for (int i = 0; i < 4; i++) OK(f->dev, gpunn_train_step(adam, n.loss));
    check_fresh(f, model, n, precision, path);
    float *after = read_floats(f->dev, frozen, NULL);
    assert_memory_equal(after, before, (size_t)count * sizeof *after);
    free(before), free(after);

    float *values = read_floats(f->dev, weight, &count);
    for (int64_t i = 0; i < count; i++) values[i] = -values[i];
    OK(f->dev, write_floats(weight, values, count));
    free(values);
    check_fresh(f, model, n, precision, path);
    OK(f->dev, gpunn_ema_swap(adam));
    check_fresh(f, model, n, precision, path);
    OK(f->dev, gpunn_ema_swap(adam));
    check_fresh(f, model, n, precision, path);

    OK(f->dev, gpunn_checkpoint_save(adam, NULL, state));
    for (int i = 0; i < 3; i++) OK(f->dev, gpunn_train_step(adam, n.loss));
    float *once = read_floats(f->dev, weight, NULL);
    OK(f->dev, gpunn_checkpoint_load(adam, NULL, state));
    check_fresh(f, model, n, precision, path);
    for (int i = 0; i < 3; i++) OK(f->dev, gpunn_train_step(adam, n.loss));
    float *again = read_floats(f->dev, weight, NULL);
    assert_memory_equal(again, once, (size_t)count * sizeof *once);

    OK(f->dev, gpunn_model_to(model, cpu));
    OK(cpu, gpunn_train_step(adam, n.loss));
    OK(cpu, gpunn_model_to(model, f->dev));
    check_fresh(f, model, n, precision, path);

    for (int pass = 0; pass < 2; pass++) { /* one gradient, and the sum of two */
        OK(f->dev, gpunn_zero_grad(model));
        for (int i = 0; i <= pass; i++) OK(f->dev, gpunn_backward(n.loss));
        OK(f->dev, gpunn_read_grad(weight, pass ? again : once, (size_t)count * sizeof *once));
    }
    for (int64_t i = 0; i < count; i++) assert_true(again[i] == 2 * once[i]);
    free(once), free(again);
    assert_int_equal(remove(path), 0);
    assert_int_equal(remove(state), 0);
    gpunn_optimizer_destroy(adam), gpunn_model_destroy(model), gpunn_device_close(cpu);
}

static void test_filters(void **state)
{
    check_filters(*state, GPUNN_PRECISION_TF32);
    check_filters(*state, GPUNN_PRECISION_BF16);
}

/* The gradient of y = w x is x times the loss scale: 65504 is the largest F16. */
static void test_loss_scale(void **state)
{
    fixture      *f = *state;
    gpunn_model  *model = gpunn_model_create(f->dev, .precision = GPUNN_PRECISION_F16);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
    gpunn_tensor *h = gpunn_relu(gpunn_linear(x, "fc1", .out_features = 1)),
                 *y = gpunn_linear(h, "fc2", .out_features = 1);
    gpunn_tensor *weight = gpunn_find(model, "fc2.weight"),
                 *loss = gpunn_mul_scalar(gpunn_mean(y, GPUNN_ALL, false), 4);
    gpunn_tensor *beside = gpunn_mean(gpunn_batch_norm1d(x, "bn", .no_affine = true), GPUNN_ALL, false);
    loss = MADE(f->dev, gpunn_add(loss, gpunn_mul_scalar(beside, 0)));
    gpunn_optimizer *adam = MADE(f->dev, gpunn_adam(model, .lr = 0.01f));
    const float      values[2] = {1, 2};
    OK(f->dev, gpunn_set_ema(adam, 0.5f));
    int64_t skipped = -1;
    OK(f->dev, write_floats(x, values, 2));
    OK(f->dev, write_floats(weight, values, 1));
    OK(f->dev, write_floats(gpunn_find(model, "fc1.weight"), values, 1));
    OK(f->dev, gpunn_train_step(adam, loss));
    float scale = gpunn_loss_scale(adam, &skipped), after = gpunn_item(weight);
    float mean = gpunn_item(gpunn_find(model, "bn.running_mean"));
    if (f->backend->type == GPUNN_DEVICE_CPU) {
        assert_true(scale == 1 && skipped == 0 && after < 1 && mean > 0);
    } else { /* 2 * 65536 does not fit into F16: skipped, halved; so it goes until 4 / 2 * scale does */
        assert_true(scale == 32768 && skipped == 1);
        assert_true(after == 1 && mean == 0);
        OK(f->dev, gpunn_train_step(adam, loss));
        scale = gpunn_loss_scale(adam, &skipped);
        assert_true(scale == 16384 && skipped == 2);
    }
    for (int step = 0; step < 3; step++) OK(f->dev, gpunn_train_step(adam, loss));
    assert_true(gpunn_loss_scale(adam, NULL) == scale);
    /* adam's first steps move by the rate: bias corrections do not count what was skipped */
    after = gpunn_item(weight);
    int moved = f->backend->type == GPUNN_DEVICE_CPU ? 4 : 3;
    check_close(&after, &(float){1 - 0.01f * (float)moved}, 1, 0, 1e-4);
    /* nor do averages: 1, 2, 3 steps count 1/4, 1/4, 1/2, the CPU's 1, 2, 3, 4 1/8, 1/8, 1/4, 1/2 */
    OK(f->dev, gpunn_ema_swap(adam));
    float average = gpunn_item(weight), steps = moved == 4 ? 3.125f : 2.25f;
    check_close(&average, &(float){1 - 0.01f * steps}, 1, 0, 1e-4);
    OK(f->dev, gpunn_ema_swap(adam));
    const char *path = test_path(f, "scale.safetensors");
    OK(f->dev, gpunn_checkpoint_save(adam, NULL, path));
    OK(f->dev, gpunn_train_step(adam, loss));
    float expected = gpunn_item(weight);
    OK(f->dev, gpunn_checkpoint_load(adam, NULL, path));
    assert_true(gpunn_loss_scale(adam, NULL) == scale);
    OK(f->dev, gpunn_train_step(adam, loss));
    assert_true(gpunn_item(weight) == expected);
    OK(f->dev, gpunn_set_ema(adam, 0)); /* what was skipped before they start is not counted either */
    OK(f->dev, gpunn_set_ema(adam, 0.5f));
    float last[2];
    for (int step = 0; step < 2; step++) {
        OK(f->dev, gpunn_train_step(adam, loss));
        last[step] = gpunn_item(weight);
    }
    OK(f->dev, gpunn_ema_swap(adam));
    average = gpunn_item(weight);
    check_close(&average, &(float){(last[0] + last[1]) / 2}, 1, 0, 1e-6);
    assert_int_equal(remove(path), 0);
    gpunn_optimizer_destroy(adam), gpunn_model_destroy(model);
}

/* ---- products of BF16 on the CPU ---- */
typedef struct product { /* y [rows, out] = x [rows, in] w [out, in]^T, dy the gradient of y */
    int64_t rows, in, out;
    float  *x, *w, *dy;
} product;

static float rounded(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* c[m, n] against the sums over k of a[i * a_row + p * a_col] b[p * b_row + j * b_col], of BF16 or as they
 * are. */
static void check_product(gpunn_device *dev, gpunn_tensor *t, bool gradient, bool bf16, int64_t m, int64_t n,
                          int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b,
                          int64_t b_row, int64_t b_col)
{
    const size_t bytes = (size_t)(m * n) * sizeof(float);
    float       *c = malloc(bytes);
    OK(dev, gradient ? gpunn_read_grad(t, c, bytes) : gpunn_read(t, c, bytes));
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0, size = 0;
            for (int64_t p = 0; p < k; p++) {
                const float  l = a[i * a_row + p * a_col], r = b[p * b_row + j * b_col];
                const double term = bf16 ? (double)rounded(l) * (double)rounded(r) : (double)l * (double)r;
                sum += term;
                size += fabs(term);
            }
            const float expected = (float)sum;
            check_close(&c[i * n + j], &expected, 1, 0, 2e-6 * size);
        }
    free(c);
}

/* The value and both gradients of a layer, or of gpunn_matmul; then the layer's value in evaluation. */
static void train_product(fixture *f, const product *s, bool layer, bool bf16)
{
    gpunn_model  *model = gpunn_model_create(f->dev, .precision = GPUNN_PRECISION_BF16);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(s->rows, s->in));
    gpunn_tensor *dy = gpunn_input(model, "dy", GPUNN_F32, GPUNN_SHAPE(s->rows, s->out)), *w, *y;
    if (layer) {
        y = gpunn_linear(x, "fc", .out_features = (int)s->out, .no_bias = true);
        w = MADE(f->dev, gpunn_find(model, "fc.weight"));
    } else {
        w = gpunn_parameter(model, "w", GPUNN_SHAPE(s->out, s->in), (gpunn_init){GPUNN_INIT_CONSTANT, 0, 0});
        y = gpunn_matmul(x, w, .transpose_b = true);
    }
    gpunn_tensor *loss = MADE(f->dev, gpunn_sum(gpunn_mul(y, dy), GPUNN_ALL, false));
    MADE(f->dev, gpunn_keep(y));
    MADE(f->dev, gpunn_retain_grad(x));
    OK(f->dev, write_floats(x, s->x, s->rows * s->in));
    OK(f->dev, write_floats(w, s->w, s->out * s->in));
    OK(f->dev, write_floats(dy, s->dy, s->rows * s->out));
    OK(f->dev, gpunn_backward(loss));
    const bool many = bf16 && s->rows >= 32;
    check_product(f->dev, y, false, many && s->out >= 16 && s->in >= 32, s->rows, s->out, s->in, s->x, s->in,
                  1, s->w, 1, s->in);
    check_product(f->dev, x, true, many && s->in >= 16 && s->out >= 32, s->rows, s->in, s->out, s->dy, s->out,
                  1, s->w, s->in, 1);
    check_product(f->dev, w, true, many && s->in >= 16 && s->out >= 32, s->out, s->in, s->rows, s->dy, 1,
                  s->out, s->x, s->in, 1);
    OK(f->dev, gpunn_forward(&y, 1));
    check_product(f->dev, y, false, (many || (layer && bf16 && s->rows > 1)) && s->out >= 16 && s->in >= 32,
                  s->rows, s->out, s->in, s->x, s->in, 1, s->w, 1, s->in);
    gpunn_model_destroy(model);
}

/* The layer's value where its weights are in 16 bits alone. Those of the first output are as small as F16's
 * subnormal numbers. */
static void narrow_product(fixture *f, const product *s, gpunn_precision precision, bool bf16)
{
    gpunn_model  *model = gpunn_model_create(f->dev, .precision = precision, .inference = true);
    gpunn_tensor *x = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(s->rows, s->in));
    gpunn_tensor *y = MADE(f->dev, gpunn_linear(x, "fc", .out_features = (int)s->out, .no_bias = true));
    float        *w = malloc((size_t)(s->out * s->in) * sizeof *w);
    for (int64_t i = 0; i < s->out * s->in; i++)
        w[i] = (precision == GPUNN_PRECISION_BF16 ? rounded(s->w[i]) : rintf(s->w[i] * 2048) / 2048) *
               (i < s->in ? 0x1p-13f : 1);
    OK(f->dev, write_floats(x, s->x, s->rows * s->in));
    OK(f->dev, write_floats(gpunn_find(model, "fc.weight"), w, s->out * s->in));
    OK(f->dev, gpunn_forward(&y, 1));
    const int64_t few = s->rows < s->out ? s->rows : s->out;
    const bool    dots = few <= 2 || ((few <= 8 || s->rows <= 16) && s->in >= 64);
    const bool    words = bf16 && precision == GPUNN_PRECISION_BF16 &&
                       (!dots || (s->rows <= 16 && s->in % 2 == 0)); /* dot products need whole words */
    check_product(f->dev, y, false, words, s->rows, s->out, s->in, s->x, s->in, 1, w, 1, s->in);
    free(w), gpunn_model_destroy(model);
}

/* Where the processor multiplies in BF16, and where it does not. */
static void test_products(void **state)
{
    fixture      *f = *state;
    const bool    bf16 = strstr(gpunn_device_name(f->dev), "BF16") != NULL;
    const int64_t sizes[][3] = {{32, 33, 16}, {33, 97, 35}, {31, 64, 40}, {65, 1537, 49}, {100, 512, 48},
                                {7, 640, 20}, {1, 98, 33},  {1, 99, 33},  {8, 130, 9},    {9, 31, 50},
                                {2, 5, 3},    {16, 131, 9}, {12, 64, 22}, {1, 520, 259},  {17, 70, 1}};
    if (gpunn_device_type(f->dev) != GPUNN_DEVICE_CPU) return;
    for (int i = 0; i < COUNT(sizes); i++) {
        product s = {sizes[i][0], sizes[i][1], sizes[i][2], NULL, NULL, NULL};
        s.x = test_randoms(s.rows * s.in, 1, 1), s.w = test_randoms(s.out * s.in, 2, 1),
        s.dy = test_randoms(s.rows * s.out, 3, 1);
        train_product(f, &s, true, bf16);
        train_product(f, &s, false, bf16);
        narrow_product(f, &s, GPUNN_PRECISION_BF16, bf16);
        narrow_product(f, &s, GPUNN_PRECISION_F16, bf16);
        free(s.x), free(s.w), free(s.dy);
    }
}

int main(void)
{
    static const precision_case cases[] = {
        {"f32 network", GPUNN_PRECISION_F32, 2e-5, 0},
        {"tf32 network", GPUNN_PRECISION_TF32, 3e-3, 0},
        {"bf16 network", GPUNN_PRECISION_BF16, 3e-2, 0},
        {"f16 network", GPUNN_PRECISION_F16, 5e-3, 0},
        {"f32 mlp", GPUNN_PRECISION_F32, 2e-5, 1},
        {"bf16 mlp", GPUNN_PRECISION_BF16, 3e-2, 1},
        {"f16 mlp", GPUNN_PRECISION_F16, 5e-3, 1},
        {"f32 images", GPUNN_PRECISION_F32, 2e-5, 3},
        {"tf32 images", GPUNN_PRECISION_TF32, 3e-3, 3},
        {"bf16 images", GPUNN_PRECISION_BF16, 3e-2, 3},
        {"f16 images", GPUNN_PRECISION_F16, 5e-3, 3},
        {"f32 attention", GPUNN_PRECISION_F32, 2e-5, 2},
        {"bf16 attention", GPUNN_PRECISION_BF16, 3e-2, 2},
        {"f16 attention", GPUNN_PRECISION_F16, 5e-3, 2},
        {"f32 heads", GPUNN_PRECISION_F32, 2e-5, 4},
        {"tf32 heads", GPUNN_PRECISION_TF32, 3e-3, 4},
        {"f32 words", GPUNN_PRECISION_F32, 2e-5, 5},
        {"bf16 words", GPUNN_PRECISION_BF16, 3e-2, 5},
        {"f16 words", GPUNN_PRECISION_F16, 5e-3, 5},
        {"bf16 heads", GPUNN_PRECISION_BF16, 3e-2, 4},
        {"f16 heads", GPUNN_PRECISION_F16, 5e-3, 4},
        {"f32 convolutions", GPUNN_PRECISION_F32, 2e-5, 6},
        {"bf16 convolutions", GPUNN_PRECISION_BF16, 3e-2, 6},
        {"f16 convolutions", GPUNN_PRECISION_F16, 5e-3, 6},
        {"f32 sampling", GPUNN_PRECISION_F32, 2e-5, 7},
        {"bf16 sampling", GPUNN_PRECISION_BF16, 3e-2, 7},
        {"f16 sampling", GPUNN_PRECISION_F16, 5e-3, 7},
        {"f32 recurrence", GPUNN_PRECISION_F32, 2e-5, 8},
        {"tf32 recurrence", GPUNN_PRECISION_TF32, 3e-3, 8},
        {"bf16 recurrence", GPUNN_PRECISION_BF16, 3e-2, 8},
        {"f16 recurrence", GPUNN_PRECISION_F16, 5e-3, 8},
        {"f32 criteria", GPUNN_PRECISION_F32, 2e-5, 9},
        {"tf32 criteria", GPUNN_PRECISION_TF32, 3e-3, 9},
        {"bf16 criteria", GPUNN_PRECISION_BF16, 3e-2, 9},
        {"f16 criteria", GPUNN_PRECISION_F16, 5e-3, 9},
        {"f32 blocks", GPUNN_PRECISION_F32, 2e-5, 10},
        {"tf32 blocks", GPUNN_PRECISION_TF32, 6e-3, 10},
        {"bf16 blocks", GPUNN_PRECISION_BF16, 7e-2, 10},
        {"f16 blocks", GPUNN_PRECISION_F16, 1.5e-2, 10},
        {"f32 transformer", GPUNN_PRECISION_F32, 2e-5, 11},
        {"tf32 transformer", GPUNN_PRECISION_TF32, 3e-3, 11},
        {"bf16 transformer", GPUNN_PRECISION_BF16, 3e-2, 11},
        {"f16 transformer", GPUNN_PRECISION_F16, 5e-3, 11},
    };
    static struct CMUnitTest tests[64];
    int                      count = 0;
    for (int i = 0; i < COUNT(cases); i++)
        count += each_backend(tests + count, cases[i].name, test_precision, &cases[i]);
    static const precision_case masks[] = {{"f32 masks", GPUNN_PRECISION_F32, 2e-5, 0},
                                           {"bf16 masks", GPUNN_PRECISION_BF16, 3e-2, 0},
                                           {"f16 masks", GPUNN_PRECISION_F16, 5e-3, 0}};
    for (int i = 0; i < COUNT(masks); i++)
        count += each_backend(tests + count, masks[i].name, test_masks, &masks[i]);
    count += each_backend(tests + count, "masters", test_masters, NULL);
    count += each_backend(tests + count, "move", test_move, NULL);
    count += each_backend(tests + count, "swap", test_swap, NULL);
    count += each_backend(tests + count, "filters", test_filters, NULL);
    count += each_backend(tests + count, "loss scale", test_loss_scale, NULL);
    count += each_backend(tests + count, "products", test_products, NULL);
    count += missing_backends(tests + count);
    return _cmocka_run_group_tests("precision", tests, (size_t)count, NULL, NULL);
}
