/* Specs: the canonical text and its hash, saving and loading of every op, settings and optimizers, damaged
 * and hostile texts, failing memory; arrays in safetensors files. Run from the repository's root. */
#include <string.h>

static long compared; /* names, by the library */
static int  counting_strcmp(const char *a, const char *b)
{
    compared++;
    return strcmp(a, b);
}
#define strcmp counting_strcmp
#define GPUNN_IMPLEMENTATION
#include "../test.h"
#undef strcmp

#include <locale.h>

/* ---- texts and hashes ---- */
static void check_text(gpunn_tensor *t, const char *expected)
{
    char text[GPUNN__TEXT_SIZE];
    assert_non_null(t);
    gpunn__node_text(t, text, sizeof text);
    assert_string_equal(text, expected);
}

static int nothing(const gpunn_custom_call *call)
{
    (void)call;
    return 0;
}
static const gpunn_custom_op own_op = {.name = "own", .inputs = 2, .forward = nothing};

static void node_texts(void **state)
{
    fixture      *f = *state;
    gpunn_model  *m = f->model;
    gpunn_tensor *x = gpunn_input(m, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1, 28, 28));
    gpunn_tensor *labels = gpunn_input(m, "t", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *rows = gpunn_flatten(x),
                 *image = gpunn_conv2d(x, "c", .out_channels = 6, .kernel_size = 5, .padding = 2);
    gpunn_tensor *wide = gpunn_linear(rows, "fc", .out_features = 10);
    const float   one = 1;
    char          text[GPUNN__TEXT_SIZE];
    check_text(x, "input f32 [N,1,28,28]");
    check_text(labels, "input i64 [N]");
    check_text(gpunn_find(m, "fc.weight"), "parameter f32 [10,784]");
    check_text(gpunn_constant(m, GPUNN_SHAPE(0), &one), "constant f32 []");
    check_text(image, "conv2d stride=1,1 padding=2,2 dilation=1,1 groups=1 f32 [N,6,28,28]");
    check_text(rows, "reshape f32 [N,784]");
    check_text(gpunn_reshape(x, GPUNN_SHAPE(4 * GPUNN_BATCH, 196)), "reshape f32 [4N,196]");
    check_text(gpunn_leaky_relu(wide, 0.01f), "leaky_relu negative_slope=0.00999999978 f32 [N,10]");
    check_text(gpunn_clamp(wide, 0, INFINITY), "clamp min=0 max=inf f32 [N,10]");
    check_text(gpunn_expr("huber(x, x, 0.5)", &wide, 1), "huber delta=0.5 f32 [N,10]");
    check_text(gpunn_batch_norm2d(image, "bn"),
               "batch_norm eps=9.99999975e-06 momentum=0.100000001 f32 [N,6,28,28]");
    check_text(gpunn_find(m, "bn.running_var"), "buffer f32 [6]");
    check_text(gpunn_layer_norm(image, "ln", .dims = 2),
               "layer_norm dims=2 eps=9.99999975e-06 f32 [N,6,28,28]");
    check_text(gpunn_group_norm(image, "gn", .num_groups = 3),
               "group_norm num_groups=3 eps=9.99999975e-06 f32 [N,6,28,28]");
    check_text(gpunn_instance_norm2d(image, "in", .eps = 0.5f),
               "group_norm num_groups=6 eps=0.5 f32 [N,6,28,28]");
    check_text(gpunn_rms_norm(wide, "rms"), "rms_norm dims=1 eps=1.1920929e-07 f32 [N,10]");
    check_text(gpunn_max_pool2d(image, .kernel_size = 2),
               "max_pool2d kernel_size=2,2 stride=2,2 padding=0,0 ceil_mode=0 f32 [N,6,14,14]");
    check_text(
        gpunn_avg_pool2d(image, .kernel_shape = {2, 4}, .count_exclude_pad = true),
        "avg_pool2d kernel_size=2,4 stride=2,4 padding=0,0 ceil_mode=0 count_include_pad=0 f32 [N,6,14,7]");
    check_text(gpunn_matmul(wide, wide, .transpose_b = true), "matmul transpose_a=0 transpose_b=1 f32 [N,N]");
    check_text(gpunn_dropout(wide, 0.25f), "dropout p=0.25 f32 [N,10]");
    check_text(gpunn_rand_like(wide), "rand_like f32 [N,10]");
    check_text(gpunn_permute(image, GPUNN_AXES(0, -1, 1, 2)), "permute dims=0,3,1,2 f32 [N,28,6,28]");
    gpunn_tensor *both[] = {wide, wide};
    check_text(gpunn_concat(both, 2, 0), "concat dim=0 f32 [2N,10]");
    check_text(gpunn_slice(wide, 1, 1, 9, 3), "slice dim=1 start=1 step=3 f32 [N,3]");
    check_text(gpunn_pad(wide, .before = {0, 2}, .after = {0, 1}, .value = -1),
               "pad before=0,2 mode=constant value=-1 f32 [N,13]");
    check_text(gpunn_interpolate(image, .scale_factors = {2, 1.5}, .mode = GPUNN_INTERPOLATE_LINEAR),
               "interpolate mode=linear align_corners=0 ratio=0.5,0.666666687 f32 [N,6,56,42]");
    check_text(gpunn_mean(image, GPUNN_AXES(3, 1), true), "sum dims=1,3 mean=1 f32 [N,1,28,1]");
    check_text(gpunn_max(image, GPUNN_ALL, false), "max dims=0,1,2,3 f32 []");
    check_text(gpunn_argmax(wide, -1, false), "argmax dim=1 i64 [N]");
    check_text(gpunn_softmax(wide, 1), "softmax dim=1 f32 [N,10]");
    gpunn_tensor *heads = gpunn_reshape(image, GPUNN_SHAPE(GPUNN_BATCH, 28, 3, 2, 28));
    gpunn_tensor *mask = gpunn_cast(gpunn_reshape(wide, GPUNN_SHAPE(GPUNN_BATCH, 1, 1, 10)), GPUNN_BOOL);
    gpunn_tensor *ten = gpunn_reshape(wide, GPUNN_SHAPE(GPUNN_BATCH, 1, 10, 1));
    check_text(gpunn_scaled_dot_product_attention(heads, NULL, NULL, .is_causal = true),
               "scaled_dot_product_attention dropout_p=0 is_causal=1 scale=0.188982233 heads_last=0 f32 "
               "[N,28,2,28]");
    check_text(gpunn_scaled_dot_product_attention(ten, ten, ten, .mask = mask, .dropout_p = 0.5f, .scale = 2),
               "scaled_dot_product_attention dropout_p=0.5 is_causal=0 scale=2 heads_last=0 f32 [N,1,10,1]");
    check_text(gpunn_cross_entropy(wide, labels, .label_smoothing = 0.1f),
               "cross_entropy reduction=mean ignore_index=-100 label_smoothing=0.100000001 f32 []");
    check_text(gpunn_nll_loss(wide, labels, .reduction = GPUNN_REDUCE_NONE),
               "nll reduction=none ignore_index=-100 f32 [N]");
    check_text(gpunn_embedding(labels, "words", .num_embeddings = 7, .embedding_dim = 4),
               "embedding padding_idx=-1 f32 [N,4]");
    check_text(gpunn_embedding(labels, "w", .weight = gpunn_find(m, "words.weight"), .padding_idx = -2),
               "embedding padding_idx=5 f32 [N,4]");
    check_text(gpunn_topk_indices(wide, 3, -1, false), "topk_indices dim=1 largest=0 i64 [N,3]");
    check_text(gpunn_sample(wide, gpunn_sum(wide, GPUNN_AXES(1), false), .temperature = 0.5f),
               "sample temperature=0.5 top_p=1 i64 [N]");
    check_text(gpunn_cumsum(wide, -1), "cumsum dim=1 f32 [N,10]");
    check_text(gpunn_expand(wide, GPUNN_SHAPE(2, GPUNN_BATCH, 10)), "expand f32 [2,N,10]");
    check_text(gpunn_gather(wide, -1, gpunn_cast(wide, GPUNN_I32)), "gather dim=1 f32 [N,10]");
    check_text(gpunn_scatter_add(wide, -1, gpunn_cast(wide, GPUNN_I32), wide),
               "scatter_add dim=1 f32 [N,10]");
    check_text(gpunn_cast(labels, GPUNN_U8), "cast u8 [N]");
    check_text(gpunn_floor_divide(labels, labels), "integer operation=floor_divide value=0 i64 [N]");
    check_text(gpunn_integer_scalar(GPUNN_INTEGER_LOGICAL_XOR, labels, -(((int64_t)1 << 53) + 1)),
               "integer operation=logical_xor value=-9007199254740993 bool [N]");
    gpunn_tensor *line = gpunn_reshape(image, GPUNN_SHAPE(GPUNN_BATCH, 6, 784)),
                 *volume = gpunn_reshape(image, GPUNN_SHAPE(GPUNN_BATCH, 6, 4, 14, 14));
    check_text(gpunn_conv1d(line, "c1", .out_channels = 2, .kernel_size = 3, .stride = 2, .dilation = 4,
                            .groups = 2),
               "conv1d stride=2 padding=0 dilation=4 groups=2 f32 [N,2,388]");
    check_text(gpunn_conv3d(volume, "c3", .out_channels = 4, .kernel_size = 3, .paddings = {1, 0, 2}),
               "conv3d stride=1,1,1 padding=1,0,2 dilation=1,1,1 groups=1 f32 [N,4,4,12,16]");
    check_text(
        gpunn_conv_transpose1d(line, "u1", .out_channels = 2, .kernel_size = 4, .stride = 2, .padding = 1),
        "conv_transpose1d stride=2 padding=1 dilation=1 groups=1 f32 [N,2,1568]");
    check_text(gpunn_conv_transpose2d(image, "u2", .out_channels = 3, .kernel_size = 2, .strides = {2, 3},
                                      .output_padding = 1, .groups = 3),
               "conv_transpose2d stride=2,3 padding=0,0 dilation=1,1 groups=3 f32 [N,3,57,84]");
    check_text(
        gpunn_conv_transpose3d(volume, "u3", .out_channels = 1, .kernel_size = 2, .dilations = {1, 2, 3}),
        "conv_transpose3d stride=1,1,1 padding=0,0,0 dilation=1,2,3 groups=1 f32 [N,1,5,16,17]");
    check_text(gpunn_max_pool3d(volume, .kernel_size = 3, .stride = 2, .padding = 1, .ceil_mode = true),
               "max_pool3d kernel_size=3,3,3 stride=2,2,2 padding=1,1,1 ceil_mode=1 f32 [N,6,3,8,8]");
    check_text(gpunn_avg_pool3d(volume, .kernel_size = 2),
               "avg_pool3d kernel_size=2,2,2 stride=2,2,2 padding=0,0,0 ceil_mode=0 count_include_pad=1 f32 "
               "[N,6,2,7,7]");
    check_text(gpunn_adaptive_max_pool2d(image, 3, 5), "adaptive_max_pool2d f32 [N,6,3,5]");
    check_text(gpunn_adaptive_avg_pool3d(volume, 1, 2, 3), "adaptive_avg_pool3d f32 [N,6,1,2,3]");
    gpunn_tensor *theta = gpunn_reshape(gpunn_linear(rows, "theta", .out_features = 6),
                                        GPUNN_SHAPE(GPUNN_BATCH, 2, 3));
    gpunn_tensor *grid = gpunn_affine_grid(theta, GPUNN_SHAPE(4, 5), true);
    check_text(grid, "affine_grid align_corners=1 f32 [N,4,5,2]");
    check_text(gpunn_grid_sample(image, grid, .mode = GPUNN_GRID_NEAREST, .padding_mode = GPUNN_GRID_BORDER),
               "grid_sample mode=nearest padding_mode=border align_corners=0 f32 [N,6,4,5]");
    gpunn_tensor *boxes = gpunn_input(m, "boxes", GPUNN_F32, GPUNN_SHAPE(7, 5));
    check_text(gpunn_roi_align(image, boxes, .output_size = 3),
               "roi_align spatial_scale=1 sampling_ratio=0 aligned=0 f32 [7,6,3,3]");
    check_text(gpunn_gradient_energy(image, GPUNN_AXES(-1, 2)), "gradient_energy dims=2,3 f32 []");
    check_text(gpunn_pad(wide, .before = {0, 2}, .mode = GPUNN_PAD_CIRCULAR),
               "pad before=0,2 mode=circular value=0 f32 [N,12]");
    gpunn_tensor *steps = gpunn_permute(gpunn_reshape(wide, GPUNN_SHAPE(GPUNN_BATCH, 5, 2)),
                                        GPUNN_AXES(1, 0, 2));
    check_text(gpunn_rnn(steps, "rnn", .hidden_size = 3, .relu = true),
               "rnn relu=1 bidirectional=0 states=0 f32 [5,N,3]");
    check_text(gpunn_lstm(steps, "lstm", .hidden_size = 3, .states = true),
               "lstm bidirectional=0 states=1 f32 [7,N,3]");
    check_text(gpunn_gru(steps, "gru", .hidden_size = 3, .bidirectional = true),
               "gru bidirectional=1 states=0 f32 [5,N,6]");
    gpunn_tensor *words = gpunn_input(m, "w2", GPUNN_I32, GPUNN_SHAPE(GPUNN_BATCH, 3)),
                 *turned = gpunn_permute(steps, GPUNN_AXES(1, 0, 2));
    check_text(gpunn_ctc_loss(steps, words, labels, labels),
               "ctc_loss reduction=mean blank=0 zero_infinity=0 batch_first=0 f32 []");
    check_text(gpunn_ctc_loss(turned, words, labels, labels, .reduction = GPUNN_REDUCE_NONE, .blank = 1,
                              .zero_infinity = true, .batch_first = true),
               "ctc_loss reduction=none blank=1 zero_infinity=1 batch_first=1 f32 [N]");
    check_text(gpunn_custom(&own_op, both, .numbers = {0.5f, -2}),
               "custom kind=own numbers=0.5,-2,0,0,0,0,0,0 f32 [N,10]");
    gpunn__external_text(image, text, sizeof text);
    assert_string_equal(text, "f32 [N,6,28,28]");
}

static void sha256(void **state)
{
    static const struct {
        const char *text;
        int         times;
        const char *hash;
    } known[] = {{"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                 {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                 {"a", 55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
                 {"a", 56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
                 {"a", 64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
                 {"a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"}};
    (void)state;
    for (int i = 0; i < COUNT(known); i++) {
        gpunn__sha256 sha;
        char          hex[65];
        gpunn__sha256_begin(&sha);
        for (int k = 0; k < known[i].times; k++)
            gpunn__sha256_add(&sha, known[i].text, strlen(known[i].text));
        gpunn__sha256_end(&sha, hex);
        assert_string_equal(hex, known[i].hash);
    }
}

static void hash_of(const gpunn_model *model, char hex[65])
{
    gpunn__model_sha256(model, model->tensor_count, hex);
}

/* A path that stays: test_path's last only for a while. */
static const char *own_path(fixture *f, const char *name, char path[224])
{
    return strcpy(path, test_path(f, name));
}

static void take_batch(int64_t *dim, int count, int64_t batch)
{
    for (int i = 0; i < count; i++)
        if (dim[i] < 0) dim[i] *= -batch;
}

/* The shape of each node, asked again: with GPUNN_BATCH (batch -1), and with a batch in its place. */
static void check_shapes(gpunn_model *model, int64_t batch)
{
    for (int id = 0; id < model->tensor_count; id++) {
        const gpunn_tensor *t = model->tensors[id];
        const gpunn__call   call = gpunn__call_of(model, gpunn_op_name(t->op), NULL);
        gpunn_attributes    attr = t->attr;
        gpunn__meta         in[GPUNN_MAX_OPERANDS], out, wanted = gpunn__meta_of(t);
        if (t->kind != GPUNN__VALUE) continue;
        memset(in, 0, sizeof in);
        for (int i = 0; i < t->input_count; i++) {
            if (t->inputs[i]) in[i] = gpunn__meta_of(t->inputs[i]);
            take_batch(in[i].dim, in[i].rank, batch);
        }
        take_batch(attr.shape.dim, GPUNN_MAX_RANK, batch);
        take_batch(wanted.dim, wanted.rank, batch);
        if (!gpunn__infer(&call, t->operation, &attr, in, t->input_count, &out))
            fail_msg("%s", gpunn_error(model->dev));
        assert_int_equal(out.dtype, wanted.dtype);
        if (!gpunn__same_dims(&out, &wanted)) fail_msg("tensor %d, %s: another shape", id, call.op);
    }
}

/* The model, saved and loaded and saved again: the same text, the same bytes. */
static void check_again(fixture *f, gpunn_model *model)
{
    const char *first = test_path(f, "first.json"), *second = test_path(f, "second.json");
    char        hex[65], again[65];
    size_t      size, size_again;
    OK(f->dev, gpunn_spec_save(model, first, .name = model->spec.name ? NULL : "first"));
    gpunn_model *loaded = MADE(f->dev, gpunn_spec_load(f->dev, first));
    check_shapes(model, -1);
    if (loaded->size_count == 0) check_shapes(loaded, 3);
    hash_of(model, hex);
    hash_of(loaded, again);
    assert_string_equal(hex, again);
    OK(f->dev, gpunn_spec_save(loaded, second));
    gpunn_model_destroy(loaded);
    unsigned char *a = file_read(first, &size), *b = file_read(second, &size_again);
    assert_string_equal((char *)a, (char *)b);
    assert_int_equal(size, size_again);
    free(a), free(b);
    assert_int_equal(unlink(first) | unlink(second), 0);
}

/* The hashes that the generator's tests find too. */
static void shared_vectors(void **state)
{
    fixture    *f = *state;
    size_t      size;
    int         count = 0;
    char       *file = (char *)file_read("tests/generator/expected/vectors.txt", &size), *next = file;
    char        kept[224];
    const char *inside = own_path(f, "vector.json", kept);
    OK(f->dev, gpunn_register_custom(f->dev, &own_op));
    while (*next) {
        char *line = next, *end = strchr(line, '\n'), path[256], hex[65];
        assert_non_null(end);
        *end = 0;
        next = end + 1;
        line[64] = 0;
        (void)snprintf(path, sizeof path, "tests/generator/expected/%s", line + 65);
        if (line[65] == '{') file_write(inside, line + 65, (size_t)(end - line - 65));
        gpunn_model *model = gpunn_spec_load(f->dev, line[65] == '{' ? inside : path);
        if (model == NULL) fail_msg("line %d of vectors.txt: %s", count + 1, gpunn_error(f->dev));
        hash_of(model, hex);
        if (strcmp(hex, line) != 0)
            fail_msg("line %d of vectors.txt, %.80s: the hash is %s", count + 1, line + 65, hex);
        check_again(f, model);
        gpunn_model_destroy(model);
        count++;
    }
    assert_true(count > 100);
    free(file);
    assert_int_equal(unlink(inside), 0);
}

/* ---- models built in C ---- */
/* Every op, and every attribute away from its default. */
static gpunn_tensor *build_all(gpunn_model *m)
{
    gpunn_init    normal = {GPUNN_INIT_NORMAL, 0.5f, 0.25f}, fan = {GPUNN_INIT_KAIMING_UNIFORM, 7, 0};
    gpunn_tensor *x = gpunn_input(m, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 4, 10, 9));
    gpunn_tensor *t = gpunn_input(m, "t", GPUNN_I32, GPUNN_SHAPE(GPUNN_BATCH)), *p;
    const float   constants[] = {0.1f, -0.0f, 1e-42f, 3.4028235e38f, INFINITY, NAN};
    gpunn_tensor *all[128];
    int           count = 0;
    gpunn_tensor *h = gpunn_conv2d(x, "conv1", .out_channels = 8, .kernel_shape = {3, 2}, .strides = {2, 1},
                                   .padding = 1, .dilations = {1, 2}, .groups = 2);
    h = gpunn_conv2d(h, "conv2", .out_channels = 4, .kernel_size = 1, .no_bias = true);
    gpunn_tensor *line = gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 4, 45));
    gpunn_tensor *volume = gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 4, 5, 3, 3));
    all[count++] = gpunn_conv1d(line, "line", .out_channels = 2, .kernel_size = 5, .stride = 3,
                                .dilation = 2);
    all[count++] = gpunn_conv3d(volume, "volume", .out_channels = 6, .kernel_shape = {3, 1, 2},
                                .paddings = {1, 0, 1}, .groups = 2, .no_bias = true);
    all[count++] = gpunn_conv_transpose1d(line, "line_up", .out_channels = 2, .kernel_size = 4, .stride = 2,
                                          .padding = 1);
    all[count++] = gpunn_conv_transpose2d(h, "up", .out_channels = 6, .kernel_size = 3, .stride = 2,
                                          .output_padding = 1, .groups = 2, .no_bias = true);
    all[count++] = gpunn_conv_transpose3d(volume, "volume_up", .out_channels = 3, .kernel_shape = {2, 3, 1},
                                          .strides = {2, 3, 1}, .output_paddings = {0, 2, 1},
                                          .dilations = {1, 1, 2});
    all[count++] = gpunn_batch_norm2d(h, "bn1");
    all[count++] = gpunn_batch_norm2d(h, "bn2", .eps = 0.001f, .momentum = 0.3f, .no_affine = true,
                                      .sync = true);
    all[count++] = gpunn_layer_norm(h, "ln1");
    all[count++] = gpunn_layer_norm(h, "ln2", .dims = 3, .eps = 1e-3f, .no_bias = true);
    all[count++] = gpunn_layer_norm(h, "ln3", .no_affine = true);
    all[count++] = gpunn_rms_norm(h, "rms1", .dims = 2);
    all[count++] = gpunn_rms_norm(h, "rms2", .eps = 1e-6f, .no_affine = true);
    all[count++] = gpunn_group_norm(h, "gn1", .num_groups = 2);
    all[count++] = gpunn_group_norm(h, "gn2", .num_groups = 1, .eps = 0.5f, .no_affine = true);
    all[count++] = gpunn_instance_norm2d(h, "in", .affine = true);
    all[count++] = gpunn_instance_norm2d(h, "in2", .eps = 0.5f, .affine = true, .track_running_stats = true,
                                         .momentum = 0.5f);
    all[count++] = gpunn_instance_norm1d(line, "in3", .track_running_stats = true);
    all[count++] = gpunn_batch_norm2d(h, "bn4", .eps = 0.5f, .no_running_stats = true);
    gpunn_shape one_deep = gpunn_tensor_shape(h);
    one_deep.dim[4] = 1;
    all[count++] = gpunn_batch_norm3d(gpunn_reshape(h, one_deep), "bn3");
    all[count++] = gpunn_prelu(h, "prelu1", 0, 0);
    all[count++] = gpunn_prelu(h, "prelu4", 4, GPUNN_ZERO);
    all[count++] = gpunn_max_pool2d(h, .kernel_size = 3, .stride = 2, .padding = 1, .ceil_mode = true);
    all[count++] = gpunn_avg_pool2d(h, .kernel_shape = {2, 3}, .paddings = {0, 1}, .count_exclude_pad = true);
    all[count++] = gpunn_adaptive_avg_pool2d(h, 3, 2);
    all[count++] = gpunn_grid_sample(
        h,
        gpunn_affine_grid(gpunn_input(m, "theta", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2, 3)),
                          GPUNN_SHAPE(3, 5), true),
        .mode = GPUNN_GRID_NEAREST, .padding_mode = GPUNN_GRID_REFLECTION, .align_corners = true);
    gpunn_tensor *boxes = gpunn_input(m, "boxes", GPUNN_F32, GPUNN_SHAPE(7, 5));
    all[count++] = gpunn_roi_align(h, boxes, .output_size = 2);
    all[count++] = gpunn_roi_align(h, boxes, .output_shape = {1, 3}, .spatial_scale = 0.25f,
                                   .sampling_ratio = 2, .aligned = true);
    all[count++] = gpunn_adaptive_max_pool2d(h, 2, 2);
    all[count++] = gpunn_max_pool1d(gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 4, 45)), .kernel_size = 3,
                                    .stride = 2, .padding = 1);
    gpunn_tensor *deep = gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 4, 3, 3, 5));
    all[count++] = gpunn_max_pool3d(deep, .kernel_size = 2, .strides = {1, 2, 1}, .paddings = {0, 0, 1});
    all[count++] = gpunn_avg_pool3d(deep, .kernel_shape = {2, 1, 3}, .ceil_mode = true);
    all[count++] = gpunn_adaptive_max_pool3d(deep, 2, 2, 2);
    all[count++] = gpunn_adaptive_avg_pool3d(deep, 1, 2, 3);
    all[count++] = gpunn_interpolate(volume, .size = {2, 4, 6});
    all[count++] = gpunn_interpolate(h, .scale_factors = {1.37, 2.6},
                                     .mode = GPUNN_INTERPOLATE_NEAREST_EXACT);
    all[count++] = gpunn_interpolate(h, .size = {3, 1}, .mode = GPUNN_INTERPOLATE_LINEAR,
                                     .align_corners = true);
    all[count++] = gpunn_pad(h, .before = {0, 1, 2}, .mode = GPUNN_PAD_CIRCULAR);
    all[count++] = gpunn_dropout(gpunn_dropout(h, 0.5f), 0.1f);
    all[count++] = gpunn_mul(gpunn_rand(m, gpunn_tensor_shape(h)), gpunn_randn_like(h));
    all[count++] = gpunn_permute(h, GPUNN_AXES(1, 0, 3, 2));
    all[count++] = gpunn_slice(h, -1, 1, 6, 2);
    all[count++] = gpunn_slice(h, 2, 1, GPUNN_END_OF_AXIS, 1);
    all[count++] = gpunn_pad(h, .before = {0, 1, 2}, .after = {0, 0, 1, 3}, .value = 0.5f);
    all[count++] = gpunn_sum(h, GPUNN_AXES(1), true);
    all[count++] = gpunn_mean(h, GPUNN_AXES(3, -2), false);
    all[count++] = gpunn_max(h, GPUNN_ALL, false);
    all[count++] = gpunn_gradient_energy(h, GPUNN_AXES(-1, 2));
    all[count++] = gpunn_cast(gpunn_argmax(h, 1, true), GPUNN_F32);
    all[count++] = gpunn_embedding(t, "words", .num_embeddings = 6, .embedding_dim = 5,
                                   .padding_idx = GPUNN_ZERO);
    all[count] = gpunn_linear(all[count - 1], "words again", .weight = gpunn_find(m, "words.weight"));
    count++;
    all[count++] = gpunn_embedding(t, "shared", .weight = gpunn_find(m, "words.weight"), .padding_idx = -1);
    all[count++] = gpunn_embedding(t, "rows", .num_embeddings = 6, .embedding_dim = 5, .sparse = true);
    all[count++] = gpunn_embedding(t, "same rows", .weight = gpunn_find(m, "rows.weight"), .sparse = true);
    all[count++] = gpunn_topk(h, 2, -1, true, NULL);
    all[count++] = gpunn_topk(h, 2, 1, false, NULL);
    gpunn_tensor *draws = gpunn_sum(h, GPUNN_AXES(1, 2, 3), false);
    all[count++] = gpunn_cast(
        gpunn_sample(gpunn_flatten(h), draws, .temperature = 0.3f, .top_k = 7, .top_p = 0.8f), GPUNN_F32);
    all[count++] = gpunn_cumsum(h, 1);
    all[count++] = gpunn_tile(h, GPUNN_SHAPE(2, 1, 1, 3));
    all[count++] = gpunn_expand(h, GPUNN_SHAPE(3, GPUNN_BATCH, 4, 5, 9));
    all[count++] = gpunn_one_hot(t, 3);
    all[count++] = gpunn_frequency_encoding(h, 3);
    all[count++] = gpunn_one_blob_encoding(h, 3);
    all[count++] = gpunn_spherical_harmonics_encoding(gpunn_slice(h, 3, 0, 3, 1), 3);
    all[count++] = gpunn_hash_grid_encoding(gpunn_slice(h, 3, 0, 2, 1), "hashed", .n_levels = 3,
                                            .log2_hashmap_size = 6, .sparse = true);
    all[count++] = gpunn_where(gpunn_cast(h, GPUNN_BOOL), h, h);
    all[count++] = gpunn_einsum("nchw->nwc", &h, 1);
    all[count++] = gpunn_gather(h, 2, gpunn_cast(h, GPUNN_I64));
    all[count++] = gpunn_scatter_add(h, 2, gpunn_cast(h, GPUNN_I64), h);
    all[count++] = gpunn_scatter(h, -1, gpunn_cast(h, GPUNN_I32), h);
    gpunn_tensor *first_rows = gpunn_cast(gpunn_slice(h, 2, 0, 2, 1), GPUNN_I32), *hashed;
    hashed = gpunn_integer_scalar(GPUNN_INTEGER_REMAINDER, gpunn_cast(first_rows, GPUNN_I64), INT64_MAX);
    hashed = gpunn_where(gpunn_lt(hashed, first_rows), hashed, gpunn_sum(first_rows, GPUNN_AXES(1), true));
    all[count++] = gpunn_cast(
        gpunn_add(hashed, gpunn_integer_scalar(GPUNN_INTEGER_ADD, first_rows, INT64_MIN)), GPUNN_F32);
    all[count++] = gpunn_cast(gpunn_remainder(gpunn_max(first_rows, GPUNN_AXES(1), true), first_rows),
                              GPUNN_F32);
    all[count++] = gpunn_softmax(h, 1);
    all[count++] = gpunn_log_softmax(h, -1);
    all[count++] = gpunn_matmul(h, h, .transpose_b = true);
    all[count++] = gpunn_matmul(h, h, .transpose_a = true);
    gpunn_tensor *few = gpunn_slice(h, 1, 0, 2, 1), *one = gpunn_slice(h, 2, 0, 1, 1),
                 *pairs = all[count - 2];
    gpunn_tensor *whole = gpunn_slice(gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, 4, 5, 3, 3)), 2, 0, 3, 1);
    all[count++] = gpunn_scaled_dot_product_attention(h, h, h, .mask = gpunn_cast(pairs, GPUNN_BOOL),
                                                      .dropout_p = 0.5f, .scale = 0.25f);
    all[count++] = gpunn_scaled_dot_product_attention(h, few, few, .mask = pairs, .is_causal = true,
                                                      .enable_gqa = true);
    all[count++] = gpunn_scaled_dot_product_attention(h, one, one, .scale = GPUNN_ZERO, .heads_last = true,
                                                      .enable_gqa = true);
    all[count++] = gpunn_scaled_dot_product_attention(whole, NULL, NULL, .dropout_p = 0.25f);
    all[count++] = gpunn_clamp(gpunn_hardtanh(gpunn_softplus(h, 2, 3), 0, 6), -INFINITY, 3.4028235e38f);
    all[count++] = gpunn_add_scalar(gpunn_pow_scalar(gpunn_elu(h, 0.5f), 2), -0.0f);
    all[count++] = gpunn_where(gpunn_gt(h, gpunn_tanh(h)), h, gpunn_neg(h));
    gpunn_tensor *steps = gpunn_permute(gpunn_mean(h, GPUNN_AXES(3), false), GPUNN_AXES(1, 0, 2)), *last,
                 *cell;
    all[count++] = gpunn_lstm(steps, "lstm", .hidden_size = 3, .num_layers = 2, .bidirectional = true,
                              .dropout = 0.25f, .lengths = t, .h_n = &last, .c_n = &cell);
    all[count++] = gpunn_gru(last, "gru", .hidden_size = 5, .no_bias = true, .batch_first = false);
    all[count++] = gpunn_rnn(steps, "rnn", .hidden_size = 3, .relu = true, .bidirectional = true,
                             .h_0 = gpunn_slice(cell, 0, 1, 3, 1));
    all[count++] = gpunn_expr("x * sigmoid(1.702 * x) + 0.1 / (1 + abs(x)) - 1 / x", &h, 1);
    for (int i = 0; i < count; i++) all[i] = gpunn_mean(all[i], GPUNN_ALL, false);
    gpunn_tensor *rows[] = {gpunn_flatten(h), gpunn_flatten(x)};
    gpunn_tensor *wide = gpunn_concat(rows, 2, 1);
    gpunn_tensor *logits = gpunn_set_name(
        gpunn_linear(gpunn_relu(wide), "fc", .out_features = 6, .no_bias = true), "logits");
    gpunn_tensor *weights = gpunn_constant(m, GPUNN_SHAPE(6), constants);
    p = gpunn_parameter(m, "p\"\\\n\xc3\xa9", GPUNN_SHAPE(2, 3), normal);
    all[count++] = gpunn_sum(gpunn_mul(p, gpunn_parameter(m, "zero", GPUNN_SHAPE(3), fan)), GPUNN_ALL, false);
    all[count++] = gpunn_sum(gpunn_matmul(logits, gpunn_find(m, "fc.weight")), GPUNN_ALL, false);
    all[count++] = gpunn_cross_entropy(logits, t, .label_smoothing = 0.1f, .ignore_index = GPUNN_ZERO);
    all[count++] = gpunn_nll_loss(logits, t, .reduction = GPUNN_REDUCE_SUM,
                                  .weight = gpunn_mul_scalar(weights, 2));
    all[count++] = gpunn_huber_loss(logits, gpunn_batch_norm1d(gpunn_sin(logits), "logits"), .delta = 0.25f);
    all[count++] = gpunn_bce_with_logits(logits, gpunn_abs(logits), .pos_weight = weights, .weight = weights);
    all[count++] = gpunn_kl_div(logits, gpunn_exp(logits), .reduction = GPUNN_REDUCE_BATCHMEAN,
                                .log_target = true);
    all[count++] = gpunn_smooth_l1_loss(logits, gpunn_cos(logits), .beta = GPUNN_ZERO);
    all[count++] = gpunn_ncc_loss(h, gpunn_sigmoid(h), .window = 3);
    all[count++] = gpunn_ncc_loss(h, gpunn_tanh(h), .eps = 0.25f);
    gpunn_tensor *u = gpunn_sin(logits), *v = gpunn_cos(logits), *sign = gpunn_slice(logits, 1, 2, 3, 1);
    sign = gpunn_reshape(sign, GPUNN_SHAPE(GPUNN_BATCH));
    all[count++] = gpunn_mse_loss(u, v, .reduction = GPUNN_REDUCE_SUM);
    all[count++] = gpunn_l1_loss(u, v);
    all[count++] = gpunn_bce_loss(gpunn_sigmoid(u), v, .weight = weights);
    all[count++] = gpunn_binary_accuracy(u, v);
    all[count++] = gpunn_hinge_embedding_loss(u, v, .margin = -0.5f, .reduction = GPUNN_REDUCE_SUM);
    all[count++] = gpunn_margin_ranking_loss(u, v, logits, .margin = 0.3f);
    all[count++] = gpunn_multi_margin_loss(u, t, .p = 2, .margin = 0.7f, .weight = weights);
    all[count++] = gpunn_triplet_margin_loss(u, v, logits, .p = INFINITY, .margin = 0.1f, .eps = 1e-3f);
    all[count++] = gpunn_triplet_margin_loss(u, v, logits, .p = 3.5f, .eps = GPUNN_ZERO, .swap = true);
    all[count++] = gpunn_cosine_embedding_loss(u, v, sign, .margin = 0.25f);
    all[count++] = gpunn_sum(gpunn_cosine_similarity(u, v, 1, GPUNN_ZERO), GPUNN_ALL, false);
    all[count++] = gpunn_dice_loss(h, gpunn_sigmoid(h), .smooth = GPUNN_ZERO, .squared = true, .batch = true);
    gpunn_tensor *spelled = gpunn_cast(gpunn_slice(logits, 1, 0, 4, 1), GPUNN_I64);
    all[count++] = gpunn_ctc_loss(steps, spelled, t, t, .blank = 3, .reduction = GPUNN_REDUCE_SUM);
    gpunn_tensor *turned = gpunn_log_softmax(gpunn_permute(steps, GPUNN_AXES(1, 0, 2)), 2);
    all[count++] = gpunn_ctc_loss(turned, spelled, t, t, .zero_infinity = true, .batch_first = true);
    all[count++] = gpunn_accuracy(logits, t);
    gpunn_tensor *sum = all[0];
    for (int i = 1; i < count; i++) sum = gpunn_add(sum, all[i]);
    return sum;
}

static void every_op(void **state)
{
    fixture      *f = *state;
    gpunn_tensor *loss = MADE(f->dev, build_all(f->model));
    const char   *first = test_path(f, "every.json");
    OK(f->dev,
       gpunn_spec_save(f->model, first, .loss = loss, .outputs = {gpunn_find(f->model, "logits"), loss}));
    gpunn_model *loaded = MADE(f->dev, gpunn_spec_load(f->dev, first));
    char         hex[65], again[65];
    hash_of(f->model, hex);
    hash_of(loaded, again);
    assert_string_equal(hex, again);
    assert_int_equal(gpunn_spec_loss(loaded)->id, loss->id);
    assert_ptr_equal(gpunn_spec_output(loaded, 0), gpunn_find(loaded, "logits"));
    assert_int_equal(gpunn_spec_output(loaded, 1)->id, loss->id);
    assert_null(gpunn_spec_output(loaded, 2));
    assert_null(gpunn_spec_output(loaded, -1));
    for (int i = 0; i < f->model->tensor_count; i++) { /* what the text does not say */
        const gpunn_tensor *a = f->model->tensors[i], *b = loaded->tensors[i];
        assert_int_equal(a->kind, b->kind);
        assert_false(a->layer != NULL && strcmp(a->layer, b->layer) != 0);
        assert_false(a->name != NULL && strcmp(a->name, b->name) != 0);
        if (a->kind == GPUNN__PARAMETER || a->kind == GPUNN__BUFFER)
            assert_false(a->init.kind != b->init.kind || a->init.a != b->init.a || a->init.b != b->init.b);
        if (a->constant)
            assert_memory_equal(a->constant, b->constant, (size_t)gpunn__count(a, 1) * sizeof *a->constant);
        assert_int_equal(a->attr.random_stream, b->attr.random_stream);
        assert_int_equal(a->attr.sync, b->attr.sync);
    }
    check_again(f, loaded);
    check_again(f, f->model);
    gpunn_model_destroy(loaded);
    assert_int_equal(unlink(first), 0);
}

/* The loaded model has the same initial values and computes the same. */
static void same_numbers(void **state)
{
    fixture         *f = *state;
    net              n = net_make(f->model);
    const char      *path = test_path(f, "net.json");
    gpunn_optimizer *opt = MADE(f->dev, gpunn_adamw(f->model, .lr = 0.02f, .beta1 = 0.8f));
    gpunn_set_clip_norm(opt, 0.5f);
    gpunn_set_clip_value(opt, 0.1f);
    OK(f->dev,
       gpunn_spec_save(f->model, path, .loss = n.loss, .outputs = {n.logits, n.accuracy}, .optimizer = opt));
    gpunn_model     *loaded = MADE(f->dev, gpunn_spec_load(f->dev, path));
    gpunn_optimizer *again = MADE(f->dev, gpunn_spec_optimizer(loaded));
    net              m = {gpunn_input_at(loaded, 0), gpunn_input_at(loaded, 1), gpunn_spec_output(loaded, 0),
                          gpunn_spec_loss(loaded), gpunn_spec_output(loaded, 1)};
    assert_null(gpunn_input_at(loaded, 2));
    assert_string_equal(gpunn_tensor_name(m.t), "t");
    assert_true(again->clip_norm == 0.5f && again->clip_value == 0.1f);
    for (int i = 0; i < 5; i++) {
        net_write(f->dev, n, 8, 3);
        net_write(f->dev, m, 8, 3);
        OK(f->dev, gpunn_train_step(opt, n.loss));
        OK(f->dev, gpunn_train_step(again, m.loss));
        assert_true(gpunn_item(n.loss) == gpunn_item(m.loss));
    }
    check_same_weights(f->dev, f->model, f->dev, loaded);
    gpunn_optimizer_destroy(opt);
    gpunn_optimizer_destroy(again);
    check_again(f, loaded);
    gpunn_model_destroy(loaded);
    assert_int_equal(unlink(path), 0);
}

static void settings(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "settings.json");
    gpunn_init  uniform = {GPUNN_INIT_UNIFORM, -0.5f, 0.5f}, none = {GPUNN_INIT_DEFAULT, 0, 0};
    net         n = net_make(f->model);
    (void)MADE(f->dev, gpunn_parameter(f->model, "own", GPUNN_SHAPE(3), none));
    OK(f->dev, gpunn_set_trainable(gpunn_find(f->model, "conv1.weight"), false));
    OK(f->dev, gpunn_set_trainable(gpunn_find(f->model, "fc1.weight"), false));
    OK(f->dev, gpunn_set_trainable(gpunn_find(f->model, "fc1.bias"), false));
    OK(f->dev, gpunn_set_decay(gpunn_find(f->model, "fc1.bias"), false));
    OK(f->dev, gpunn_set_lr_scale(gpunn_find(f->model, "bn1.weight"), 0.1f));
    OK(f->dev, gpunn_set_decay(gpunn_find(f->model, "own"), false));
    OK(f->dev, gpunn_set_init(gpunn_find(f->model, "fc2.weight"), uniform));
    OK(f->dev, gpunn_set_init(gpunn_find(f->model, "bn2.bias"), none));
    OK(f->dev, gpunn_spec_save(f->model, path, .loss = n.loss));
    gpunn_model *loaded = MADE(f->dev, gpunn_spec_load(f->dev, path));
    for (int i = 0; i < gpunn_parameter_count(loaded); i++) {
        const gpunn_tensor *a = gpunn_parameter_at(f->model, i), *b = gpunn_parameter_at(loaded, i);
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->trainable, b->trainable);
        assert_int_equal(a->decay, b->decay);
        assert_true(a->lr_scale == b->lr_scale);
        assert_false(gpunn__inits_differ(a->init, b->init));
    }
    size_t         size;
    unsigned char *text = file_read(path, &size);
    assert_non_null(strstr((char *)text, "\"name\": \"settings\""));
    assert_non_null(strstr((char *)text, "\"parameters\": {\"weight\": {\"trainable\": false}}"));
    assert_non_null(
        strstr((char *)text, "\"trainable\": false, \"parameters\": {\"bias\": {\"decay\": false}}"));
    free(text);
    check_again(f, loaded);
    gpunn_model_destroy(loaded);
    assert_int_equal(unlink(path), 0);
}

static void optimizers(void **state)
{
    fixture    *f = *state;
    char        kept[224];
    const char *path = own_path(f, "o.json", kept);
    (void)net_make(f->model);
    gpunn_optimizer *all[] = {
        gpunn_sgd(f->model, .lr = 0.3f, .momentum = 0.9f, .weight_decay = 1e-4f, .nesterov = true),
        gpunn_sgd(f->model, .lr = GPUNN_ZERO, .momentum = 0.5f, .dampening = 0.25f, .maximize = true),
        gpunn_adam(f->model),
        gpunn_adam(f->model, .beta1 = GPUNN_ZERO, .beta2 = 0.9f, .eps = GPUNN_ZERO, .weight_decay = 0.1f),
        gpunn_adamw(f->model, .lr = 0.1f, .weight_decay = GPUNN_ZERO),
        gpunn_adamw(f->model, .beta2 = GPUNN_ZERO),
        gpunn_rmsprop(f->model, .alpha = 0.5f, .momentum = 0.1f, .centered = true),
        gpunn_adagrad(f->model, .lr_decay = 0.01f, .initial_accumulator_value = 0.5f, .eps = 1e-3f),
        gpunn_adamax(f->model, .beta1 = 0.5f),
        gpunn_nadam(f->model, .momentum_decay = GPUNN_ZERO, .decoupled_weight_decay = true),
        gpunn_nadam(f->model, .lr = 0.1f, .momentum_decay = 0.1f, .weight_decay = 0.2f),
        gpunn_radam(f->model, .maximize = true),
        gpunn_lamb(f->model, .weight_decay = GPUNN_ZERO, .trust_clip = 10, .always_adapt = true),
        gpunn_lion(f->model, .beta2 = 0.95f, .weight_decay = 0.1f),
        gpunn_adadelta(f->model, .rho = GPUNN_ZERO, .eps = 1e-3f),
        gpunn_muon(f->model, .lr = 0.1f, .ns_b = GPUNN_ZERO, .beta1 = 0.5f, .no_nesterov = true),
        gpunn_muon(f->model, .ns_steps = 7, .adjust_lr_fn = GPUNN_ADJUST_LR_MATCH_RMS_ADAMW),
    };
    for (int i = 0; i < COUNT(all); i++) {
        gpunn_optimizer *opt = MADE(f->dev, all[i]);
        if (i % 2) OK(f->dev, gpunn_set_ema(opt, 0.75f));
        OK(f->dev, gpunn_spec_save(f->model, path, .optimizer = opt));
        gpunn_model     *loaded = MADE(f->dev, gpunn_spec_load(f->dev, path));
        gpunn_optimizer *again = MADE(f->dev, gpunn_spec_optimizer(loaded));
        assert_string_equal(opt->name, again->name);
        assert_memory_equal(&opt->rule, &again->rule, sizeof opt->rule);
        assert_true(opt->state_start == again->state_start && opt->lr == again->lr);
        assert_true(again->average_decay == (i % 2 ? 0.75f : 0) && again->uses[GPUNN__AVERAGE] == i % 2);
        gpunn_optimizer_destroy(again);
        check_again(f, loaded);
        gpunn_model_destroy(loaded);
        gpunn_optimizer_destroy(opt);
    }
    FAILS_NULL(f->dev, gpunn_spec_optimizer(f->model), GPUNN_ERR_STATE, "gpunn_spec_optimizer", "gpunn_sgd");
    assert_null(gpunn_spec_loss(f->model));
    assert_null(gpunn_spec_output(f->model, 0));
    assert_int_equal(unlink(path), 0);
}

/* Names that meet names that the file makes up. */
static void names(void **state)
{
    fixture      *f = *state;
    gpunn_model  *m = f->model;
    const char   *path = test_path(f, "names.json");
    gpunn_tensor *x = gpunn_input(m, "t4", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
    gpunn_tensor *y = gpunn_linear(gpunn_input(m, "fc", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3)), "fc",
                                   .out_features = 3);
    gpunn_tensor *z = gpunn_linear(gpunn_add(x, y), "t9", .out_features = 3);
    z = gpunn_relu(gpunn_relu(gpunn_set_name(z, "t9.value")));
    (void)MADE(f->dev, gpunn_set_name(gpunn_relu(z), "t11"));
    OK(f->dev, gpunn_spec_save(m, path));
    gpunn_model *loaded = MADE(f->dev, gpunn_spec_load(f->dev, path));
    assert_string_equal(gpunn_tensor_name(loaded->tensors[0]), "t4");
    assert_string_equal(gpunn_tensor_name(loaded->tensors[4]), "t4_");
    assert_non_null(gpunn_find(loaded, "t9.value"));
    assert_ptr_equal(gpunn_spec_output(loaded, 0), gpunn_find(loaded, "t11"));
    check_again(f, loaded);
    gpunn_model_destroy(loaded);
    assert_int_equal(unlink(path), 0);
}

static void precisions(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "precision.json");
    for (int i = GPUNN_PRECISION_F32; i <= GPUNN_PRECISION_F16; i++) {
        gpunn_model *m = MADE(f->dev, gpunn_model_create(f->dev, .precision = (gpunn_precision)i));
        (void)net_make(m);
        OK(f->dev, gpunn_spec_save(m, path));
        gpunn_model *loaded = MADE(f->dev, gpunn_spec_load(f->dev, path));
        assert_int_equal(loaded->precision, i);
        gpunn_model_destroy(loaded);
        gpunn_model_destroy(m);
    }
    assert_int_equal(unlink(path), 0);
}

/* Where the system has none with a decimal comma, one is made. */
static bool make_locale(fixture *f)
{
    char        command[512];
    const char *path = test_path(f, "de_DE.UTF-8");
    (void)snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s >%s.log 2>&1", path, path);
    (void)system(command);
    (void)setenv("LOCPATH", f->folder, 1);
    bool made = setlocale(LC_NUMERIC, "de_DE.UTF-8") != NULL;
    (void)snprintf(command, sizeof command, "rm -rf %s %s.log", path, path);
    return system(command) == 0 && made;
}

static void check_numbers(void)
{
    static const struct {
        const char *text;
        double      value;
        int         used;
    } cases[] = {{"1.5", 1.5, 3},
                 {" \n-2.25e-3x", -2.25e-3, 10},
                 {"+.5,7", 0.5, 3},
                 {"5.e1", 50, 4},
                 {"1,5", 1, 1},
                 {"0x10", 0, 1},
                 {"1e", 1, 1},
                 {"1e+", 1, 1},
                 {"1e400", INFINITY, 5},
                 {"-inf,", -INFINITY, 4},
                 {",5", 0, 0},
                 {"", 0, 0},
                 {".", 0, 0},
                 {"- 1", 0, 0},
                 {"4503599627370497.5", 4503599627370497.5, 18}};
    char long_one[1200], *end;
    for (int i = 0; i < COUNT(cases); i++) {
        const double value = gpunn_strtod(cases[i].text, &end);
        if (value != cases[i].value || end != cases[i].text + cases[i].used)
            fail_msg("'%s' gives %g", cases[i].text, value);
    }
    assert_true(isnan(gpunn_strtod("nan", &end)) && *end == 0);
    memset(long_one, '1', sizeof long_one - 1);
    long_one[sizeof long_one - 1] = 0;
    assert_true(gpunn_strtod(long_one, &end) == 0 && end == long_one);
    assert_true(gpunn_strtod("2.5", NULL) == 2.5);
}

/* Commas for points change no byte. */
static void other_locale(void **state)
{
    fixture *f = *state;
    char     path[64] = "tests/generator/expected/vectors/elementwise_attributes.json", hex[65], again[65];
    bool     comma = setlocale(LC_NUMERIC, "de_DE.UTF-8") || setlocale(LC_NUMERIC, "fr_FR.UTF-8") ||
                 make_locale(f);
    if (!comma) SKIP("no locale with a decimal comma");
    char text[16];
    (void)snprintf(text, sizeof text, "%.1f", 0.5);
    assert_string_equal(text, "0,5");
    check_numbers();
    gpunn_model *there = MADE(f->dev, gpunn_spec_load(f->dev, path));
    hash_of(there, hex);
    check_again(f, there);
    (void)setlocale(LC_NUMERIC, "C");
    gpunn_model *here = MADE(f->dev, gpunn_spec_load(f->dev, path));
    hash_of(here, again);
    assert_string_equal(hex, again);
    gpunn_model_destroy(there);
    gpunn_model_destroy(here);
}

/* ---- models as one file ---- */

/* The loaded model is the saved one: weights, running statistics, outputs, metadata, dtypes of inputs. Saved
 * again it gives the same bytes. */
static void model_files(void **state)
{
    fixture         *f = *state;
    net              n = net_make(f->model);
    const char      *path = test_path(f, "net.gpunn");
    gpunn_optimizer *opt = MADE(f->dev, gpunn_adamw(f->model, .lr = 0.02f));
    float            expected[12], logits[12];
    OK(f->dev, gpunn_set_dtype(n.x, GPUNN_F64));
    MADE(f->dev, gpunn_set_name(n.logits, "logits"));
    OK(f->dev, gpunn_set_metadata(f->model, "classes", "cat,\"dog\"\n\\ \xc3\xa9\x01"));
    OK(f->dev, gpunn_set_metadata(f->model, "old", "1"));
    OK(f->dev, gpunn_set_metadata(f->model, "version", "1"));
    OK(f->dev, gpunn_set_metadata(f->model, "version", "2"));
    OK(f->dev, gpunn_set_metadata(f->model, "old", NULL));
    double *x = calloc(4 * NET_X, sizeof *x);
    int64_t t[4] = {0, 1, 2, 0};
    for (int i = 0; i < 4 * NET_X; i++) x[i] = (double)(i % 7) / 7;
    OK(f->dev, gpunn_write(n.x, x, 4 * NET_X * sizeof *x));
    OK(f->dev, gpunn_write(n.t, t, sizeof t));
    OK(f->dev, gpunn_train_step(opt, n.loss)); /* running statistics */
    OK(f->dev, gpunn_forward(&n.logits, 1));
    OK(f->dev, gpunn_read(n.logits, expected, sizeof expected));
    OK(f->dev, gpunn_model_save(f->model, path, .outputs = {n.logits}, .loss = n.loss, .optimizer = opt));
    gpunn_model *loaded = MADE(f->dev, gpunn_model_load(f->dev, path));
    check_same_weights(f->dev, f->model, f->dev, loaded);
    gpunn_tensor *y = MADE(f->dev, gpunn_find(loaded, "logits")), *in = MADE(f->dev, gpunn_find(loaded, "x"));
    assert_ptr_equal(y, gpunn_spec_output(loaded, 0));
    assert_non_null(gpunn_spec_loss(loaded));
    assert_int_equal(gpunn_tensor_dtype(in), GPUNN_F64);
    OK(f->dev, gpunn_write(in, x, 4 * NET_X * sizeof *x));
    OK(f->dev, gpunn_forward(&y, 1));
    OK(f->dev, gpunn_read(y, logits, sizeof logits));
    assert_memory_equal(logits, expected, sizeof logits);
    assert_string_equal(gpunn_get_metadata(loaded, "classes"), "cat,\"dog\"\n\\ \xc3\xa9\x01");
    assert_string_equal(gpunn_get_metadata(loaded, "version"), "2");
    assert_null(gpunn_get_metadata(loaded, "old"));
    assert_null(gpunn_get_metadata(loaded, "format"));
    assert_null(gpunn_get_metadata(NULL, "version"));
    gpunn_array first, second;
    size_t      size;
    OK(f->dev, gpunn_model_save_memory(loaded, &first));
    unsigned char *file = file_read(path, &size);
    assert_int_equal(first.bytes, size);
    assert_memory_equal(first.data, file, size);
    gpunn_model *again = MADE(f->dev,
                              gpunn_model_load_memory(f->dev, first.data, first.bytes, .inference = true));
    OK(f->dev, gpunn_spec_save_memory(again, &second));
    OK(f->dev, gpunn_spec_save(loaded, path));
    unsigned char *spec = file_read(path, &size);
    assert_int_equal(second.bytes, size);
    assert_memory_equal(second.data, spec, size);
    OK(f->dev, gpunn_load_memory(f->model, first.data, first.bytes)); /* its weights alone */
    gpunn_array_free(f->dev, &first), gpunn_array_free(f->dev, &second);
    free(x), free(file), free(spec);
    gpunn_optimizer_destroy(opt);
    gpunn_model_destroy(loaded), gpunn_model_destroy(again);
    assert_int_equal(unlink(path), 0);
}

/* Cut or altered anywhere, a file is refused with a sentence or gives a model; nothing is leaked. */
static void model_files_hostile(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "bad.gpunn");
    gpunn_array file;
    MADE(f->dev,
         gpunn_linear(gpunn_input(f->model, "x", 0, GPUNN_SHAPE(GPUNN_BATCH, 2)), "fc", .out_features = 2));
    OK(f->dev, gpunn_set_metadata(f->model, "a", "b"));
    OK(f->dev, gpunn_model_save_memory(f->model, &file));
    const size_t blocks = f->memory.blocks;
    char        *copy = malloc(file.bytes);
    for (size_t at = 0; at < 2 * file.bytes; at++) {
        const bool cut = at < file.bytes;
        memcpy(copy, file.data, file.bytes);
        if (!cut) copy[at - file.bytes] ^= 0x11;
        gpunn_model *m = gpunn_model_load_memory(f->dev, copy, cut ? at : file.bytes);
        if (cut) assert_null(m);
        if (m == NULL) assert_true(strlen(gpunn_error(f->dev)) > 20);
        gpunn_clear_error(f->dev);
        gpunn_model_destroy(m);
        assert_int_equal(f->memory.blocks, blocks);
    }
    free(copy);
    gpunn_array_free(f->dev, &file);
    OK(f->dev, gpunn_save(f->model, path));
    FAILS_NULL(f->dev, gpunn_model_load(f->dev, path), GPUNN_ERR_FORMAT, "bad.gpunn", "no model",
               "gpunn_load");
    FAILS_NULL(f->dev, gpunn_model_load(f->dev, "/nowhere.gpunn"), GPUNN_ERR_IO, "/nowhere.gpunn");
    FAILS_NULL(NULL, gpunn_model_load(NULL, path), GPUNN_ERR_ARGUMENT, "NULL");
    FAILS_NULL(f->dev, gpunn_model_load(f->dev, NULL), GPUNN_ERR_ARGUMENT, "path");
    FAILS_NULL(f->dev, gpunn_model_load_memory(f->dev, NULL, 9), GPUNN_ERR_ARGUMENT, "data");
    FAILS(f->dev, gpunn_model_save(f->model, NULL), GPUNN_ERR_ARGUMENT, "path");
    FAILS(f->dev, gpunn_model_save(f->model, "/nowhere/at/all.gpunn"), GPUNN_ERR_IO, "/nowhere/at/all.gpunn");
    FAILS(NULL, gpunn_model_save(NULL, path), GPUNN_ERR_ARGUMENT, "model");
    FAILS(f->dev, gpunn_model_save_memory(f->model, NULL), GPUNN_ERR_ARGUMENT, "array");
    FAILS(f->dev, gpunn_spec_save_memory(f->model, NULL), GPUNN_ERR_ARGUMENT, "array");
    FAILS(f->dev, gpunn_set_metadata(f->model, "format", "x"), GPUNN_ERR_ARGUMENT, "format");
    FAILS(f->dev, gpunn_set_metadata(f->model, "gpunn_blocks:w", "x"), GPUNN_ERR_ARGUMENT, "gpunn_");
    FAILS(f->dev, gpunn_set_metadata(f->model, "", "x"), GPUNN_ERR_ARGUMENT, "empty");
    FAILS(f->dev, gpunn_set_metadata(f->model, "k", "\xff"), GPUNN_ERR_ARGUMENT, "UTF-8");
    FAILS(f->dev, gpunn_set_metadata(f->model, NULL, "x"), GPUNN_ERR_ARGUMENT, "key");
    assert_int_equal(unlink(path), 0);
}

/* ---- what cannot be saved ---- */
static void refused_saves(void **state)
{
    fixture     *f = *state;
    net          n = net_make(f->model);
    gpunn_model *other = gpunn_model_create(f->dev);
    const char  *path = test_path(f, "refused.json");
    gpunn_clear_error(NULL);
    FAILS(NULL, gpunn_spec_save(NULL, path), GPUNN_ERR_ARGUMENT, "gpunn_spec_save", "NULL");
    FAILS(f->dev, gpunn_spec_save(f->model, NULL), GPUNN_ERR_ARGUMENT, "NULL");
    FAILS(f->dev, gpunn_spec_save(f->model, "/nowhere/at/all.json"), GPUNN_ERR_IO, "/nowhere/at/all.json",
          "directory");
    FAILS(f->dev, gpunn_spec_save(other, path, .loss = n.loss), GPUNN_ERR_ARGUMENT, "another model");
    FAILS(f->dev, gpunn_spec_save(other, path, .outputs = {n.loss}), GPUNN_ERR_ARGUMENT, "another model");
    assert_non_null(gpunn_set_name(n.logits, "\xff"));
    FAILS(f->dev, gpunn_spec_save(f->model, path), GPUNN_ERR_ARGUMENT, "UTF-8");
    assert_non_null(gpunn_set_name(n.logits, "logits"));
    assert_non_null(gpunn_set_name(gpunn_find(f->model, "fc1.bias"), "mine"));
    FAILS(f->dev, gpunn_spec_save(f->model, path), GPUNN_ERR_UNSUPPORTED, "'mine'", "'fc1'");
    /* the sentence fits the status */
    for (long n = 1, calls = 0; n == 1 || f->memory.calls - calls >= n; n++) {
        calls = f->memory.calls;
        f->memory.fail_at = calls + n;
        gpunn_status status = gpunn_spec_save(f->model, path);
        f->memory.fail_at = 0;
        assert_int_equal(status, gpunn_last_status(f->dev));
        gpunn_clear_error(f->dev);
    }
    gpunn_model_destroy(other);
    gpunn_clear_error(NULL);
    FAILS_NULL(NULL, gpunn_spec_load(NULL, path), GPUNN_ERR_ARGUMENT, "gpunn_spec_load");
    FAILS_NULL(f->dev, gpunn_spec_load(f->dev, path), GPUNN_ERR_IO, "refused.json");
    FAILS_NULL(f->dev, gpunn_spec_load(f->dev, NULL), GPUNN_ERR_ARGUMENT, "NULL");
}

/* ---- hostile texts ---- */
/* A ^ in the text stands before what is wrong; it is taken out. */
static void check_refused(fixture *f, const char *marked, const char *word)
{
    const char *path = test_path(f, "bad.json"), *mark = strchr(marked, '^');
    char        full[256];
    int         line = 1, column = 1;
    long        blocks = f->memory.blocks;
    size_t      before = (size_t)(mark - marked), length = strlen(marked) - 1;
    char       *text = malloc(length + 1);
    memcpy(text, marked, before);
    memcpy(text + before, mark + 1, length - before + 1);
    for (size_t i = 0; i < before; i++) {
        column = text[i] == '\n' ? 1 : column + 1;
        line += text[i] == '\n';
    }
    file_write(path, text, length);
    gpunn_model *model = gpunn_spec_load(f->dev, path);
    if (model) fail_msg("accepted: %s", text);
    (void)snprintf(full, sizeof full, "%s:%d:%d: ", path, line, column);
    const char *error = gpunn_error(f->dev);
    if (strncmp(error, full, strlen(full)) != 0 || strstr(error, word) == NULL || strchr(error, '\n'))
        fail_msg("for %s\nexpected %s ... %s\ngot %s", marked, full, word, error);
    assert_int_not_equal(gpunn_last_status(f->dev), GPUNN_OK);
    gpunn_clear_error(f->dev);
    assert_int_equal(f->memory.blocks, blocks);
    assert_int_equal(unlink(path), 0);
    free(text);
}

/* One wrong entry in a sound spec. */
static void hostile_entries(void **state)
{
    static const struct {
        const char *entry, *word; /* ^ stands before what is wrong */
    } cases[] = {
        {"^7", "a list of objects"},
        {"^{}", "\"op\" is missing"},
        {"{\"op\": ^3}", "\"op\" must be a string"},
        {"{\"op\": ^\"conv4d\", \"inputs\": [\"x\"]}", "no op \"conv4d\""},
        {"{\"op\": ^\"group\", \"inputs\": [\"x\"]}", "no op \"group\""},
        {"{\"op\": ^\"none\", \"inputs\": [\"x\"]}", "no op \"none\""},
        {"^{\"op\": \"relu\"}", "\"inputs\" is missing"},
        {"{\"op\": \"relu\", \"inputs\": ^\"x\"}", "must be a list of ids or names"},
        {"{\"op\": \"relu\", \"inputs\": ^[]}", "must have 1 of them, not 0"},
        {"{\"op\": \"add\", \"inputs\": ^[\"x\"]}", "must have 2 of them, not 1"},
        {"{\"op\": \"relu\", \"inputs\": [^\"later\"]}",
         "no tensor before this one has the id or name \"later\""},
        {"{\"op\": \"relu\", \"id\": \"me\", \"inputs\": [^\"me\"]}", "\"me\""},
        {"{\"op\": \"relu\", \"inputs\": [^\"a\\nb\"]}", "\"a?b\""},
        {"{\"op\": \"relu\", \"inputs\": [^4]}", "must be a string"},
        {"{\"op\": \"relu\", \"inputs\": [\"x\"], ^\"slope\": 1}", "relu has no \"slope\""},
        {"{\"op\": \"relu\", \"inputs\": [\"x\"], ^\"inputs\": [\"x\"]}", "twice"},
        {"^{\"op\": \"relu\", \"inputs\": [\"t\"]}", "x is i64"},
        {"{\"op\": \"relu\", \"id\": ^\"x\", \"inputs\": [\"x\"]}", "\"x\" already names another tensor"},
        {"{\"op\": \"relu\", \"name\": ^\"\", \"inputs\": [\"x\"]}", "one character or more"},
        {"{\"op\": \"relu\", \"name\": ^\"a\\u0000b\", \"inputs\": [\"x\"]}", "must be a string"},
        {"{\"op\": \"relu\", ^\"as\": \"y\", \"inputs\": [\"x\"]}", "relu has no \"as\""},
        {"{\"op\": \"leaky_relu\", \"inputs\": [\"x\"], \"negative_slope\": ^\"much\"}",
         "must be a number that a float can hold"},
        {"{\"op\": \"leaky_relu\", \"inputs\": [\"x\"], \"negative_slope\": ^1e39}",
         "must be a number that a float can hold"},
        {"^{\"op\": \"input\", \"shape\": [1]}", "\"name\" is missing"},
        {"^{\"op\": \"input\", \"name\": \"x\", \"shape\": [1]}", "taken"},
        {"^{\"op\": \"input\", \"name\": \"i\"}", "\"shape\" is missing"},
        {"{\"op\": \"input\", \"name\": \"i\", \"shape\": [^0]}", "\"shape\" must be"},
        {"{\"op\": \"input\", \"name\": \"i\", \"shape\": [2, ^\"-1N\"]}", "\"shape\" must be"},
        {"{\"op\": \"input\", \"name\": \"i\", \"shape\": [^\"T\"]}",
         "\"T\" is not: it has a name that is not a size yet"},
        {"{\"op\": \"slice\", \"inputs\": [\"x\"], \"dim\": 2, \"end\": ^\"T\"}", "\"T\" is not"},
        {"{\"op\": \"interpolate\", \"inputs\": [\"x\"], \"size\": ^\"batch -\"}",
         "a number, a name or a parenthesis is missing"},
        {"{\"op\": \"input\", \"name\": \"i\", \"shape\": [1,1,1,1,1,1,1,1,^1]}", "up to 8 sizes"},
        {"{\"op\": \"input\", \"name\": \"i\", \"shape\": [^99999999999999999999]}", "\"shape\" must be"},
        {"^{\"op\": \"input\", \"name\": \"i\", \"shape\": [\"N\", \"N\"]}", "GPUNN_BATCH"},
        {"^{\"op\": \"input\", \"name\": \"i\", \"shape\": [576460752303423488, 4]}", "2^59"},
        {"{\"op\": \"input\", \"name\": \"i\", \"dtype\": ^\"f16\", \"shape\": [1]}", "\"f32\", \"i64\""},
        {"^{\"op\": \"parameter\", \"name\": \"p\", \"shape\": [\"N\"]}", "none may be GPUNN_BATCH"},
        {"^{\"op\": \"parameter\", \"name\": \"p\", \"shape\": [2], \"init\": {\"kind\": \"normal\", \"b\": "
         "-1}}",
         "negative"},
        {"{\"op\": \"parameter\", \"name\": \"p\", \"shape\": [2], \"init\": ^{\"a\": 1}}",
         "\"kind\" is missing"},
        {"{\"op\": \"parameter\", \"name\": \"p\", \"shape\": [2], \"init\": {\"kind\": \"zeros\", ^\"c\": "
         "1}}",
         "no \"c\""},
        {"^{\"op\": \"parameter\", \"name\": \"p\", \"shape\": [2], \"lr_scale\": -1}", "scale is -1"},
        {"{\"op\": \"parameter\", \"name\": \"p\", \"shape\": [2], \"trainable\": ^1}", "true or false"},
        {"{\"op\": \"constant\", \"shape\": [2], \"values\": ^[1]}", "as many numbers"},
        {"{\"op\": \"constant\", \"shape\": [\"N\"], \"values\": ^[1]}", "as many numbers"},
        {"{\"op\": \"constant\", \"shape\": [4000000000, 4000000000], \"values\": ^[]}", "as many numbers"},
        {"{\"op\": \"constant\", \"shape\": [1], \"values\": [^null]}", "\"nan\""},
        {"^{\"op\": \"linear\", \"inputs\": [\"x\"], \"out_features\": 3}", "\"name\" is missing"},
        {"^{\"op\": \"linear\", \"name\": \"fc\", \"inputs\": [\"x\"]}", "\"out_features\" is missing"},
        {"{\"op\": \"linear\", \"name\": \"fc\", \"inputs\": [\"x\"], \"out_features\": ^0}",
         "integer from 1 to 2147483647"},
        {"{\"op\": \"linear\", \"name\": \"fc\", \"inputs\": [\"x\"], \"out_features\": ^2.0}", "integer"},
        {"{\"op\": \"linear\", \"name\": \"fc\", \"inputs\": [\"x\"], \"out_features\": ^4294967297}",
         "integer"},
        {"^{\"op\": \"linear\", \"name\": \"bn\", \"inputs\": [\"x\"], \"out_features\": 2}",
         "taken by another layer"},
        {"^{\"op\": \"linear\", \"name\": \"id\", \"inputs\": [\"x\"], \"out_features\": 2}",
         "\"id.weight\" already names another tensor"},
        {"{\"op\": \"linear\", \"name\": \"fc\", \"inputs\": [\"x\"], \"out_features\": 2, \"parameters\": "
         "{^\"wight\": {}}}",
         "no \"wight\""},
        {"{\"op\": \"linear\", \"name\": \"fc\", \"inputs\": [\"x\"], \"out_features\": 2, \"bias\": false, "
         "\"parameters\": "
         "{\"bias\": ^{}}}",
         "no \"bias\""},
        {"{\"op\": \"linear\", \"name\": \"fc\", \"inputs\": [\"x\"], \"out_features\": 2, \"parameters\": "
         "{\"bias\": "
         "{^\"decoy\": 1}}}",
         "no \"decoy\""},
        {"{\"op\": \"conv2d\", \"name\": \"c\", \"inputs\": [\"x\"], \"out_channels\": 2, \"kernel_size\": "
         "^[3]}",
         "list of two"},
        {"^{\"op\": \"conv2d\", \"name\": \"c\", \"inputs\": [\"x\"], \"out_channels\": 2, \"kernel_size\": "
         "9}",
         "the window spans 9"},
        {"{\"op\": \"conv2d\", \"name\": \"c\", \"inputs\": [\"x\"], \"out_channels\": 2, \"kernel_size\": "
         "1, \"padding\": "
         "^\"same\"}",
         "integer from 0"},
        {"{\"op\": \"max_pool2d\", \"inputs\": [\"x\"], \"kernel_size\": 2, ^\"count_include_pad\": true}",
         "no \"count_include_pad\""},
        {"^{\"op\": \"reshape\", \"inputs\": [\"x\"], \"shape\": [\"N\", 7]}",
         "does not hold as many elements"},
        {"^{\"op\": \"permute\", \"inputs\": [\"x\"], \"dims\": [0, 0, 1, 2]}", "listed twice"},
        {"{\"op\": \"permute\", \"inputs\": [\"x\"], \"dims\": [0,1,2,3,0,1,2,3,^4]}", "up to 8 axes"},
        {"^{\"op\": \"softmax\", \"inputs\": [\"x\"]}", "\"dim\" is missing"},
        {"^{\"op\": \"softmax\", \"inputs\": [\"x\"], \"dim\": 4}", "axis 4"},
        {"{\"op\": \"softmax\", \"inputs\": [\"x\"], \"dim\": ^99}", "integer from -8 to 7"},
        {"{\"op\": \"scaled_dot_product_attention\", \"inputs\": ^[\"x\", \"x\"]}",
         "a list of q, k and v, or of one for all"},
        {"{\"op\": \"scaled_dot_product_attention\", \"inputs\": [\"x\", \"x\", \"x\"], \"mask\": ^\"w\"}",
         "no tensor"},
        {"^{\"op\": \"scaled_dot_product_attention\", \"inputs\": [\"x\", \"x\", \"x\"], \"dropout_p\": 2}",
         "from 0 to 1"},
        {"{\"op\": \"slice\", \"inputs\": [\"x\"], \"dim\": 1, \"step\": ^0}", "integer from 1"},
        {"{\"op\": \"pad\", \"inputs\": [\"x\"], \"before\": [0, ^-1]}", "integer from 0"},
        {"{\"op\": \"cast\", \"inputs\": [\"x\"], \"dtype\": ^\"f64\"}", "\"u8\" or \"bool\""},
        {"^{\"op\": \"cast\", \"inputs\": [\"x\"], \"dtype\": \"f32\", \"name\": \"y\"}",
         "returns an existing tensor"},
        {"{\"op\": \"mse_loss\", \"inputs\": [\"x\", \"x\"], \"reduction\": ^\"avg\"}",
         "\"mean\", \"sum\", \"none\" or \"batchmean\""},
        {"{\"op\": \"mse_loss\", \"inputs\": [\"x\", \"x\"], ^\"delta\": 1}", "no \"delta\""},
        {"{\"op\": \"cross_entropy\", \"inputs\": [\"x\", \"t\"], \"reduction\": ^\"batchmean\"}",
         "\"mean\", \"sum\" or \"none\""},
        {"^{\"op\": \"cross_entropy\", \"inputs\": [\"x\", \"t\"]}", "do not fit"},
        {"^{\"op\": \"dropout\", \"inputs\": [\"x\"], \"p\": 1.5}", "p is 1.5"},
        {"{\"op\": \"ctc_loss\", \"inputs\": ^[\"x\", \"x\"]}", "must have 4 of them, not 2"},
        {"^{\"op\": \"ctc_loss\", \"inputs\": [\"x\", \"x\", \"t\", \"t\"]}", "targets is f32"},
        {"{\"op\": \"ctc_loss\", \"inputs\": [\"x\", \"t\", \"t\", \"t\"], \"blank\": ^-1}",
         "integer from 0"},
        {"{\"op\": \"ctc_loss\", \"inputs\": [\"x\", \"t\", \"t\", \"t\"], \"zero_infinity\": ^0}",
         "true or false"},
        {"{\"op\": \"hinge_embedding_loss\", \"inputs\": [\"x\", \"x\"], ^\"p\": 1}", "no \"p\""},
        {"{\"op\": \"hinge_embedding_loss\", \"inputs\": [\"x\", \"x\"], \"reduction\": ^\"batchmean\"}",
         "\"sum\" or \"none\""},
        {"^{\"op\": \"triplet_margin_loss\", \"inputs\": [\"x\", \"x\", \"x\"], \"p\": 0}", ".p is 0"},
        {"{\"op\": \"triplet_margin_loss\", \"inputs\": [\"x\", \"x\", \"x\"], \"p\": ^\"nan\"}", "number"},
        {"^{\"op\": \"cosine_similarity\", \"inputs\": [\"x\", \"x\"], \"dim\": 4}", "axis 4"},
        {"{\"op\": \"cosine_similarity\", \"inputs\": [\"x\", \"x\"], \"dim\": ^8}", "integer from -8 to 7"},
        {"^{\"op\": \"dice_loss\", \"inputs\": [\"x\", \"t\"]}", "target is i64"},
        {"{\"op\": \"ncc_loss\", \"inputs\": [\"x\", \"x\"], \"window\": ^0.5}", "integer from 0"},
        {"^{\"op\": \"custom\", \"inputs\": [\"x\"], \"shape\": [1]}", "\"kind\" is missing"},
        {"^{\"op\": \"custom\", \"kind\": \"own\", \"inputs\": [\"x\", \"x\"]}", "\"shape\" is missing"},
        {"{\"op\": \"custom\", \"kind\": ^\"none\", \"inputs\": [\"x\"], \"shape\": [1]}",
         "no op \"none\" is registered"},
        {"^{\"op\": \"custom\", \"kind\": \"own\", \"inputs\": [\"x\"], \"shape\": [1]}",
         "has 2 inputs, not 1"},
        {"^{\"op\": \"custom\", \"kind\": \"own\", \"inputs\": [\"x\", \"x\"], \"shape\": [1]}",
         "makes [batch, 2, 3, 4] of these"},
        {"^{\"op\": \"custom\", \"kind\": \"own\", \"inputs\": [\"x\", \"x\"], \"shape\": [1], \"numbers\": "
         "[1, \"inf\"]}",
         "finite"},
        {"{\"op\": \"custom\", \"kind\": \"own\", \"inputs\": [\"x\", \"x\"], \"shape\": [1], \"numbers\": "
         "^[1,2,3,4,5,6,7,8,9]}",
         "at most 8"},
        {"^{\"op\": \"expr\", \"inputs\": [\"x\"]}", "\"expression\" is missing"},
        {"{\"op\": \"expr\", \"inputs\": [\"x\"], \"expression\": ^\"x +\"}", "an operand is missing"},
        {"{\"op\": \"expr\", \"inputs\": [\"x\"], \"expression\": ^\"x + y\"}", "y"},
        {"{\"op\": \"expr\", \"inputs\": [\"x\"], \"expression\": ^\"system(x)\"}",
         "unknown function 'system'"},
        {"{\"op\": \"expr\", \"inputs\": {\"a\": \"x\"}, \"expression\": ^\"x + a\"}", "'x'"},
        {"{\"op\": \"expr\", \"inputs\": {\"a\": \"x\", ^\"a\": \"x\"}, \"expression\": \"a\"}", "twice"},
        {"{\"op\": \"expr\", \"inputs\": [\"x\"], \"consts\": {\"c\": ^\"inf\"}, \"expression\": \"c * x\"}",
         "numbers by name"},
    };
    fixture *f = *state;
    OK(f->dev, gpunn_register_custom(f->dev, &own_op));
    for (int i = 0; i < COUNT(cases); i++) {
        char text[1024];
        (void)snprintf(text, sizeof text,
                       "{\"gpunn_spec\": 1, \"tensors\": [{\"op\": \"input\", \"name\": \"x\", \"shape\": "
                       "[\"N\", 2, 3, 4]},\n"
                       "{\"op\": \"input\", \"name\": \"t\", \"id\": \"id.weight\", \"dtype\": \"i64\", "
                       "\"shape\": [\"N\"]}, "
                       "{\"op\": \"batch_norm2d\", \"name\": \"bn\", \"inputs\": [\"x\"]},\n%s]}",
                       cases[i].entry);
        check_refused(f, text, cases[i].word);
    }
}

static void hostile_specs(void **state)
{
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"^", "ends too early"},
        {"^[]", "a spec is an object"},
        {"^{}", "\"gpunn_spec\" is missing"},
        {"{\"gpunn_spec\": ^2, \"tensors\": []}", "integer from 1 to 1"},
        {"^{\"gpunn_spec\": 1}", "\"tensors\" is missing"},
        {"{\"gpunn_spec\": 1, \"tensors\": ^{}}", "a list of objects"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"sizes\": ^[]}", "an object of bounds"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"sizes\": {\"T\": ^4}}", "an object of bounds"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"sizes\": {^\"2T\": {}}}", "not a new name"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"sizes\": {\"T\": {}, ^\"T\": {}}}", "not a new name"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"sizes\": {^\"batch\": {}}}", "not a new name"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"sizes\": {^\"N\": {}}}", "means the batch"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"sizes\": {\"T\": {\"min\": ^0}}}", "an integer from 1"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"sizes\": {\"T\": {^\"most\": 3}}}",
         "a size has no \"most\""},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"sizes\": {^\"T\": {\"min\": 9, \"max\": 15, \"multiple\": "
         "8}}}",
         "allow no size"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"precision\": ^\"f64\"}", "\"bf16\" or \"f16\""},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"math\": ^\"quick\"}", "\"accurate\" or \"fast\""},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"layout\": ^7}", "channels_last"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"fuse\": ^[]}", "an object"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"outputs\": [^\"y\"]}", "\"y\""},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"loss\": ^\"y\"}", "\"y\""},
        {"{\"gpunn_spec\": 1, \"tensors\": [{\"op\": \"input\", \"name\": \"x\", \"shape\": [1]}], \"loss\": "
         "^\"x\"}",
         "one computed f32 number"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"optimizer\": {\"type\": ^\"lions\"}}", "\"lion\""},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"optimizer\": ^{\"lr\": 1}}", "\"type\" is missing"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"optimizer\": {\"type\": \"sgd\", ^\"betas\": [0, 0]}}",
         "no \"betas\""},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"optimizer\": ^{\"type\": \"adam\", \"betas\": [0, 1]}}",
         "beta2 is 1"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"optimizer\": {\"type\": \"adam\", \"betas\": ^0.9}}",
         "list of two"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"optimizer\": ^{\"type\": \"sgd\", \"lr\": -1}}", "lr is -1"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"optimizer\": ^{\"type\": \"sgd\", \"nesterov\": true}}",
         "nesterov"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"clip_grad_norm\": ^-1}", "0 or more"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"clip_grad_value\": ^\"inf\"}", "0 or more"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"ema_decay\": ^1}", "from 0 to below 1"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"ema_decay\": ^-0.1}", "from 0 to below 1"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], \"ema_decay\": ^\"much\"}", "a number"},
        {"{\"gpunn_spec\": 1, \"tensors\": [], ^\"extra\": 0}", "no \"extra\""},
        {"{\"gpunn_spec\": 1, \"tensors\": []} ^x", "has text after its end"},
        {"{\"gpunn_spec\": 1, \"tensors\": [^", "ends too early"},
        {"{\"gpunn_spec\": 1\n^\"tensors\": []}", "comma or }"},
        {"{\"gpunn_spec\": 1,\n\n ^5: []}", "key in double quotes"},
        {"{\"gpunn_spec\" ^1}", "colon"},
        {"{\"gpunn_spec\": 01^}", "number"},
        {"{\"gpunn_spec\": 1.^}", "number"},
        {"{\"gpunn_spec\": -^}", "number"},
        {"{\"gpunn_spec\": 1e^}", "number"},
        {"{\"gpunn_spec\": ^nul}", "value"},
        {"{\"gpunn_spec\": \"\\x^\"}", "escape"},
        {"{\"gpunn_spec\": \"^\t\"}", "UTF-8"},
        {"{\"gpunn_spec\": \"^\xc0\x80\"}", "UTF-8"},
        {"{\"gpunn_spec\": \"}^", "unterminated"},
    };
    fixture *f = *state;
    for (int i = 0; i < COUNT(cases); i++) check_refused(f, cases[i].text, cases[i].word);
    char deep[4096], digits[9000];
    memset(deep, '[', sizeof deep);
    deep[64] = '^';
    deep[sizeof deep - 1] = 0;
    check_refused(f, deep, "deeper than 64");
    int used = snprintf(digits, sizeof digits,
                        "{\"gpunn_spec\": 1, \"tensors\": [], \"clip_grad_norm\": ^1.");
    memset(digits + used, '0', sizeof digits - (size_t)used); /* a number too long to read */
    (void)strcpy(digits + sizeof digits - 2, "}");
    check_refused(f, digits, "number");
}

/* ---- counts ---- */
/* A chain of that many linear layers, loaded: names compared. */
static long compared_for(fixture *f, int layers)
{
    const char *path = test_path(f, "chain.json");
    FILE       *file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs(
        "{\"gpunn_spec\": 1, \"tensors\": [{\"op\": \"input\", \"name\": \"t0\", \"shape\": [\"N\", 1]}",
        file);
    for (int i = 1; i <= layers; i++)
        (void)fprintf(file,
                      ", {\"op\": \"linear\", \"name\": \"fc%d\", \"id\": \"t%d\", \"inputs\": [\"t%d\"], "
                      "\"out_features\": 1}",
                      i, i, i - 1);
    (void)fputs("]}", file);
    assert_int_equal(fclose(file), 0);
    compared = 0;
    gpunn_model *model = gpunn_spec_load(f->dev, path);
    long         loading = compared;
    if (model) OK(f->dev, gpunn_spec_save(model, path));
    gpunn_model_destroy(model);
    assert_int_equal(unlink(path), 0);
    return model ? loading : -1;
}

static void large_specs(void **state)
{
    static const char *const cases[] = {"{\"op\": \"transformer_encoder\", \"name\": \"e\", \"inputs\": "
                                        "[\"x\"], \"nhead\": 1, \"num_layers\": 2147483647}",
                                        "{\"op\": \"transformer_decoder\", \"name\": \"d\", \"inputs\": "
                                        "[\"x\", \"x\"], \"nhead\": 1, \"num_layers\": 1500}"};
    fixture                 *f = *state;
    char                     text[512];
    for (int i = 0; i < COUNT(cases); i++) {
        (void)snprintf(text, sizeof text,
                       "{\"gpunn_spec\": 1, \"tensors\": [{\"op\": \"input\", \"name\": \"x\", \"shape\": "
                       "[2, \"N\", 4]}, ^%s]}",
                       cases[i]);
        long calls = f->memory.calls;
        check_refused(f, text, "the model has room for");
        assert_true(f->memory.calls - calls < 1000);
    }
    check_refused(f,
                  "{\"gpunn_spec\": 1, \"tensors\": [{\"op\": \"input\", \"name\": \"x\", \"shape\": [\"N\", "
                  "2147483647]}, "
                  "{\"op\": \"input\", \"name\": \"t\", \"shape\": [\"N\"], \"dtype\": \"i64\"}, "
                  "^{\"op\": \"multi_margin_loss\", \"inputs\": [\"x\", \"t\"]}]}",
                  "2^24");
    long few = compared_for(f, 1000), many = compared_for(f, 4000);
    if (!(few > 0 && many < 6 * few))
        fail_msg("names compared: %ld for 1000 layers, %ld for 4000", few, many);
    assert_int_equal(compared_for(f, 10000), -1);
    check_sentence(f->dev, GPUNN_ERR_ARGUMENT, __FILE__, __LINE__, "more than 30000 tensors",
                   (const char *)NULL);
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(2, GPUNN_BATCH, 4));
    FAILS_NULL(f->dev, gpunn_transformer_encoder(x, "e", .nhead = 1, .num_layers = INT32_MAX),
               GPUNN_ERR_ARGUMENT, "room for", "layers");
}

/* Names and layers are found after renaming, and not after the call that made them failed. */
static void found_names(void **state)
{
    fixture      *f = *state;
    char          name[32];
    gpunn_tensor *x = gpunn_input(f->model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 4)), *made[200];
    for (int i = 0; i < COUNT(made); i++) {
        (void)snprintf(name, sizeof name, "n%d", i);
        made[i] = gpunn_set_name(gpunn_relu(x), name);
    }
    for (int i = 0; i < COUNT(made); i += 2) {
        (void)snprintf(name, sizeof name, "m%d", i);
        assert_ptr_equal(gpunn_set_name(made[i], name), made[i]);
    }
    for (int i = 0; i < COUNT(made); i++) {
        (void)snprintf(name, sizeof name, "n%d", i);
        assert_ptr_equal(gpunn_find(f->model, name), i % 2 ? made[i] : NULL);
        *name = 'm';
        assert_ptr_equal(gpunn_find(f->model, name), i % 2 ? NULL : made[i]);
    }
    assert_null(gpunn_transformer_encoder_layer(x, "e", .nhead = 3));
    gpunn_clear_error(f->dev);
    assert_null(gpunn_find(f->model, "e.self_attn.in_proj_weight"));
    gpunn_tensor *steps = gpunn_reshape(x, GPUNN_SHAPE(1, GPUNN_BATCH, 4));
    assert_non_null(gpunn_transformer_encoder_layer(steps, "e", .nhead = 2));
    assert_non_null(gpunn_find(f->model, "e.self_attn.in_proj_weight"));
    FAILS_NULL(f->dev, gpunn_linear(x, "e.linear1", .out_features = 2), GPUNN_ERR_ARGUMENT,
               "taken by another layer");
}

static const char sample[] =
    "{\"gpunn_spec\": 1, \"name\": \"a\\u00e9\", \"precision\": \"f32\", \"math\": \"fast\", \"fuse\": "
    "{\"never\": [[\"a\", null]]},\n"
    " \"tensors\": [{\"op\": \"input\", \"name\": \"x\", \"shape\": [\"N\", 3]}, {\"op\": \"constant\", "
    "\"id\": \"c\", \"shape\": [3], "
    "\"values\": [1, -2.5e-1, \"inf\"]},\n  {\"op\": \"linear\", \"name\": \"fc\", \"inputs\": [\"x\"], "
    "\"out_features\": 3, \"parameters\": "
    "{\"bias\": {\"decay\": false}}},\n  {\"op\": \"expr\", \"id\": \"e\", \"inputs\": {\"gate\": "
    "\"fc\", \"v\": \"x\"}, \"consts\": {\"k\": "
    "-0.5}, \"expression\": \"v * sigmoid(k * gate) + pi\"},\n  {\"op\": \"mse_loss\", \"id\": "
    "\"loss\", \"inputs\": [\"e\", \"x\"]}],\n"
    " \"outputs\": [\"e\"], \"loss\": \"loss\", \"optimizer\": {\"type\": \"adam\", \"betas\": [0.5, "
    "0.25]}, \"clip_grad_norm\": 1}";

static void check_bytes(fixture *f, const char *path, const void *text, size_t size, bool may_load)
{
    long blocks = f->memory.blocks;
    file_write(path, text, size);
    gpunn_model *model = gpunn_spec_load(f->dev, path);
    if (model && !may_load) fail_msg("accepted: %.*s", (int)size, (const char *)text);
    assert_true((model == NULL) == (gpunn_error(f->dev)[0] != 0));
    gpunn_model_destroy(model);
    gpunn_clear_error(f->dev);
    assert_int_equal(f->memory.blocks, blocks);
}

static void cut_and_flipped(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "cut.json");
    char        text[sizeof sample];
    memcpy(text, sample, sizeof text);
    check_bytes(f, path, text, sizeof text - 1, true);
    check_bytes(f, path, text, sizeof text, false); /* the zero at its end */
    for (size_t cut = 0; cut < sizeof text - 1; cut++) check_bytes(f, path, text, cut, false);
    for (size_t bit = 0; bit < 8 * (sizeof text - 1); bit++) {
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
        check_bytes(f, path, text, sizeof text - 1, true);
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
    }
    assert_int_equal(unlink(path), 0);
}

static void failing_memory(void **state)
{
    fixture    *f = *state;
    const char *path = test_path(f, "memory.json"), *out = test_path(f, "out.json");
    file_write(path, sample, sizeof sample - 1);
    gpunn_model *model = NULL;
    gpunn_status status = GPUNN_ERR_MEMORY;
    for (long n = 1; model == NULL; n++) {
        long blocks = f->memory.blocks;
        f->memory.fail_at = f->memory.calls + n;
        model = gpunn_spec_load(f->dev, path);
        f->memory.fail_at = 0;
        if (model) break;
        assert_int_equal(f->memory.blocks, blocks);
        check_sentence(f->dev, GPUNN_ERR_MEMORY, __FILE__, __LINE__, "memory", (const char *)NULL);
        assert_true(n < 1000);
    }
    for (long n = 1; status != GPUNN_OK; n++) {
        long blocks = f->memory.blocks;
        f->memory.fail_at = f->memory.calls + n;
        status = gpunn_spec_save(model, out);
        f->memory.fail_at = 0;
        assert_int_equal(f->memory.blocks, blocks);
        if (status != GPUNN_OK)
            check_sentence(f->dev, GPUNN_ERR_MEMORY, __FILE__, __LINE__, "memory", (const char *)NULL);
    }
    gpunn_model_destroy(model);
    assert_int_equal(unlink(path) | unlink(out), 0);
}

/* Errors outside a load know nothing of the file. */
static void places_end(void **state)
{
    fixture *f = *state;
    check_refused(f, "^{}", "missing");
    FAILS_NULL(f->dev, gpunn_input(f->model, "", GPUNN_F32, GPUNN_SHAPE(1)), GPUNN_ERR_ARGUMENT,
               "input: the name");
    assert_null(f->dev->place);
}

/* An id that an op without a node of its own has. */
static void other_words(void **state)
{
    static const char text[] =
        "{\"gpunn_spec\": 1, \"tensors\": [{\"op\": \"input\", \"name\": \"x\", \"id\": \"in\", \"shape\": "
        "[\"N\", 3]},"
        "{\"op\": \"cast\", \"id\": \"same\", \"inputs\": [\"in\"], \"dtype\": \"f32\"},"
        "{\"op\": \"linear\", \"name\": \"fc\", \"as\": \"y\", \"inputs\": [\"same\"], \"out_features\": 2},"
        "{\"op\": \"matmul\", \"id\": \"z\", \"inputs\": [\"fc\", \"fc.weight\"]}, {\"op\": \"add\", "
        "\"inputs\": [\"y\", "
        "\"fc\"]}]}";
    fixture    *f = *state;
    const char *path = test_path(f, "words.json");
    file_write(path, text, sizeof text - 1);
    gpunn_model *model = MADE(f->dev, gpunn_spec_load(f->dev, path));
    assert_int_equal(model->tensor_count, 6);
    assert_string_equal(gpunn_tensor_name(model->tensors[0]), "x");
    assert_string_equal(gpunn_tensor_name(model->tensors[3]), "y");
    assert_ptr_equal(gpunn_spec_output(model, 0), gpunn_find(model, "z"));
    assert_int_equal(gpunn_spec_output(model, 1)->id, 5);
    check_again(f, model);
    gpunn_model_destroy(model);
    assert_int_equal(unlink(path), 0);
}

/* ---- arrays in safetensors files ---- */
static void arrays(void **state)
{
    fixture          *f = *state;
    const char       *path = test_path(f, "a.safetensors");
    float             floats[] = {1, -2, 3.5f, 0, 1e-30f, INFINITY};
    int64_t           wide[] = {INT64_MIN, 7};
    unsigned char     byte = 200;
    const char *const all[] = {"x", "labels.\xc3\xa9\"", "one"};
    gpunn_array       given[] = {{GPUNN_F32, 2, {2, 3}, sizeof floats, floats},
                                 {GPUNN_I64, 1, {2}, sizeof wide, wide},
                                 {GPUNN_U8, 0, {0}, 1, &byte}},
                got;
    OK(f->dev, gpunn_write_safetensors(f->dev, path, all, given, 3));
    for (int i = 0; i < 3; i++) {
        OK(f->dev, gpunn_read_safetensors(f->dev, path, all[i], &got));
        assert_int_equal(got.dtype, given[i].dtype);
        assert_int_equal(got.rank, given[i].rank);
        assert_memory_equal(got.dim, given[i].dim, sizeof got.dim);
        assert_int_equal(got.bytes, given[i].bytes);
        assert_memory_equal(got.data, given[i].data, got.bytes);
        gpunn_array_free(f->dev, &got);
    }
    FAILS(f->dev, gpunn_read_safetensors(f->dev, path, "y", &got), GPUNN_ERR_ARGUMENT,
          "no tensor 'y'; the names in it: 'labels.\xc3\xa9\"', 'one', 'x'");
    assert_null(got.data);
    FAILS(f->dev, gpunn_read_safetensors(f->dev, path, NULL, &got), GPUNN_ERR_ARGUMENT, "holds 3 tensors");
    /* long names, and more of them than a message shows */
    char        names[4][512];
    const char *four[4];
    for (int i = 0; i < 4; i++) {
        memset(names[i], 'a' + i, 511);
        names[i][511] = 0;
        four[i] = names[i];
    }
    gpunn_array bytes[] = {given[2], given[2], given[2], given[2]};
    OK(f->dev, gpunn_write_safetensors(f->dev, path, four, bytes, 4));
    FAILS(f->dev, gpunn_read_safetensors(f->dev, path, "y", &got), GPUNN_ERR_ARGUMENT, "...' and 1 more");
    OK(f->dev, gpunn_write_safetensors(f->dev, path, NULL, NULL, 0));
    FAILS(f->dev, gpunn_read_safetensors(f->dev, path, "y", &got), GPUNN_ERR_ARGUMENT, "in it: none");
    OK(f->dev, gpunn_write_safetensors(f->dev, path, all, given, 1));
    OK(f->dev, gpunn_read_safetensors(f->dev, path, NULL, &got));
    assert_memory_equal(got.data, floats, sizeof floats);
    gpunn_array_free(f->dev, &got);
    golden g = golden_open(path); /* as others read it */
    assert_int_equal(g.count, 1);
    assert_string_equal(g.tensors[0].name, "x");
    golden_close(&g);
    const char *const twice[] = {"x", "x"}, *const reserved[] = {"__metadata__"}, *const none[] = {NULL},
                      *const not_text[] = {"\xff"};
    FAILS(f->dev, gpunn_write_safetensors(f->dev, path, twice, given, 2), GPUNN_ERR_ARGUMENT, "name 1");
    FAILS(f->dev, gpunn_write_safetensors(f->dev, path, reserved, given, 1), GPUNN_ERR_ARGUMENT, "name 0");
    FAILS(f->dev, gpunn_write_safetensors(f->dev, path, none, given, 1), GPUNN_ERR_ARGUMENT, "name 0");
    FAILS(f->dev, gpunn_write_safetensors(f->dev, path, not_text, given, 1), GPUNN_ERR_ARGUMENT, "UTF-8");
    given[0].bytes--;
    FAILS(f->dev, gpunn_write_safetensors(f->dev, path, all, given, 1), GPUNN_ERR_SHAPE, "'x'");
    given[0].bytes++;
    given[0].data = NULL;
    FAILS(f->dev, gpunn_write_safetensors(f->dev, path, all, given, 1), GPUNN_ERR_SHAPE, "'x'");
    FAILS(f->dev, gpunn_write_safetensors(f->dev, path, all, given, -1), GPUNN_ERR_ARGUMENT, "count");
    given[0].data = floats;
    gpunn_status status = GPUNN_ERR_MEMORY;
    for (long n = 1; status != GPUNN_OK; n++) {
        long blocks = f->memory.blocks;
        f->memory.fail_at = f->memory.calls + n;
        status = gpunn_write_safetensors(f->dev, path, all, given, 3);
        if (status == GPUNN_OK) status = gpunn_read_safetensors(f->dev, path, all[1], &got);
        f->memory.fail_at = 0;
        if (status != GPUNN_OK) {
            assert_int_equal(f->memory.blocks, blocks);
            check_sentence(f->dev, GPUNN_ERR_MEMORY, __FILE__, __LINE__, "memory", (const char *)NULL);
        }
    }
    gpunn_array_free(f->dev, &got);
    assert_int_equal(unlink(path), 0);
}

/* ---- blocks of quantised numbers, against GGUF's package and bitsandbytes ---- */
static const struct {
    const char *name;
    gpunn_dtype format;
} block_formats[] = {
#define X(id, name, length, bytes) {name, id},
    GPUNN_BLOCK_LIST(X)
#undef X
};

static void golden_blocks(void **state)
{
    golden               g = golden_open("tests/golden/blocks.safetensors");
    const golden_tensor *given = golden_find(&g, "values");
    assert_non_null(given);
    for (size_t i = 0; i < sizeof block_formats / sizeof *block_formats; i++) {
        const gpunn_dtype    format = block_formats[i].format;
        const golden_tensor *blocks = golden_find(&g, "%s/blocks", block_formats[i].name),
                            *values = golden_find(&g, "%s/values", block_formats[i].name);
        assert_true(gpunn__is_blocks(format) && blocks && values);
        assert_int_equal(gpunn__block_bytes(format, values->count), blocks->bytes);
        float *read = malloc(values->bytes);
        gpunn__dequantize(format, blocks->data, read, values->count);
        assert_memory_equal(read, values->data, values->bytes);
        const golden_tensor *expected = golden_find(&g, "%s/rounded", block_formats[i].name);
        const int64_t        whole = given->count / gpunn__block_length(format) * gpunn__block_length(format);
        unsigned char       *rounded = malloc(gpunn__block_bytes(format, whole));
        assert_non_null(expected);
        assert_int_equal(gpunn__block_bytes(format, whole), expected->bytes);
        gpunn__quantize(format, given->data, rounded, whole);
        assert_memory_equal(rounded, expected->data, expected->bytes);
        free(rounded);
        free(read);
    }
    golden_close(&g);
    (void)state;
}

/* What is not finite, and sizes at the ends of the range, stay in their block and are defined. */
static void extreme_blocks(void **state)
{
    static const float extremes[] = {NAN, -NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 1e-45f, 1e-38f};
    for (size_t i = 0; i < sizeof block_formats / sizeof *block_formats; i++)
        for (size_t e = 0; e < sizeof extremes / sizeof *extremes; e++) {
            const gpunn_dtype format = block_formats[i].format;
            const int         length = (int)gpunn__block_length(format);
            float             values[512];
            unsigned char     blocks[512];
            for (int j = 0; j < 2 * length; j++) values[j] = (float)(j % 32);
            values[7] = extremes[e];
            for (int j = 0; j < length && fabsf(extremes[e]) < 1; j++) values[j] = extremes[e];
            gpunn__quantize(format, values, blocks, 2 * length);
            gpunn__dequantize(format, blocks, values, 2 * length);
            const bool wide = format == GPUNN_NF4 && isfinite(extremes[e]); /* its scale is F32 */
            for (int j = 0; j < length; j++)
                assert_true(wide                     ? fabsf(values[j]) <= fabsf(extremes[e])
                            : fabsf(extremes[e]) < 1 ? values[j] == 0
                                                     : !(fabsf(values[j]) <= FLT_MAX));
            const float within = format == GPUNN_NF4 ? 4.8f : 3;
            for (int j = length; j < 2 * length; j++)
                assert_true(fabsf(values[j] - (float)(j % 32)) <= within);
        }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test_with_device(node_texts),          cmocka_unit_test(sha256),
        test_with_device(shared_vectors),      test_with_device(every_op),
        test_with_device(same_numbers),        test_with_device(model_files),
        test_with_device(model_files_hostile), test_with_device(settings),
        test_with_device(optimizers),          test_with_device(names),
        test_with_device(precisions),          test_with_device(other_locale),
        test_with_device(refused_saves),       test_with_device(hostile_entries),
        test_with_device(hostile_specs),       test_with_device(cut_and_flipped),
        test_with_device(failing_memory),      test_with_device(places_end),
        test_with_device(other_words),         test_with_device(arrays),
        test_with_device(large_specs),         test_with_device(found_names),
        cmocka_unit_test(golden_blocks),       cmocka_unit_test(extreme_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
