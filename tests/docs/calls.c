/* Calls that the reference (generator/reference) shows, of functions that no document and no example calls.
 * check.py runs them: none may fail. */
#include "gpunn.h"
#include <stdio.h>
#include <string.h>

static gpunn_tensor *floats(gpunn_model *model, const char *name, gpunn_shape shape)
{
    return gpunn_input(model, name, GPUNN_F32, shape);
}

static gpunn_tensor *integers(gpunn_model *model, const char *name, gpunn_shape shape)
{
    return gpunn_input(model, name, GPUNN_I64, shape);
}

static void windows(gpunn_model *model)
{
    gpunn_tensor *sound = floats(model, "sound", GPUNN_SHAPE(GPUNN_BATCH, 4, 32));
    gpunn_tensor *image = floats(model, "image", GPUNN_SHAPE(GPUNN_BATCH, 4, 16, 16));
    gpunn_tensor *volume = floats(model, "volume", GPUNN_SHAPE(GPUNN_BATCH, 4, 8, 8, 8));
    gpunn_conv_transpose1d(sound, "up1", .out_channels = 2, .kernel_size = 4, .stride = 2,
                           .padding = 1); /* [n, 2, 64] */
    gpunn_conv_transpose3d(volume, "up3", .out_channels = 2, .kernel_size = 2,
                           .stride = 2);                                   /* [n, 2, 16, 16, 16] */
    gpunn_max_pool1d(sound, .kernel_size = 2);                             /* [n, 4, 16] */
    gpunn_max_pool3d(volume, .kernel_size = 3, .stride = 2, .padding = 1); /* [n, 4, 4, 4, 4] */
    gpunn_avg_pool1d(sound, .kernel_size = 2);                             /* [n, 4, 16] */
    gpunn_avg_pool2d(image, .kernel_size = 3, .stride = 1, .padding = 1,
                     .count_exclude_pad = true);               /* [n, 4, 16, 16] */
    gpunn_avg_pool3d(volume, .kernel_size = 2);                /* [n, 4, 4, 4, 4] */
    gpunn_lp_pool1d(sound, .norm_type = 2, .kernel_size = 2);  /* [n, 4, 16] */
    gpunn_lp_pool3d(volume, .norm_type = 2, .kernel_size = 2); /* [n, 4, 4, 4, 4] */
    gpunn_adaptive_max_pool1d(sound, 1);                       /* [n, 4, 1] */
    gpunn_adaptive_max_pool2d(image, 5, 5);                    /* [n, 4, 5, 5] */
    gpunn_adaptive_max_pool3d(volume, 1, 1, 1);                /* [n, 4, 1, 1, 1] */
    gpunn_adaptive_avg_pool1d(sound, 1);                       /* [n, 4, 1] */
    gpunn_adaptive_avg_pool3d(volume, 2, 2, 2);                /* [n, 4, 2, 2, 2] */
    gpunn_batch_norm1d(sound, "bn1");
    gpunn_batch_norm3d(volume, "bn3", .momentum = 0.01f);
    gpunn_instance_norm1d(sound, "in1", .affine = true);
    gpunn_local_response_norm(image, .size = 3);
    gpunn_depth_to_space(image, 2); /* [n, 1, 32, 32] */
    gpunn_space_to_depth(image, 2); /* [n, 16, 8, 8] */
    gpunn_dice_loss(gpunn_sigmoid(image), floats(model, "mask", GPUNN_SHAPE(GPUNN_BATCH, 4, 16, 16)),
                    .squared = true);
}

static void sequences(gpunn_model *model)
{
    gpunn_tensor *steps = floats(model, "steps", GPUNN_SHAPE(12, GPUNN_BATCH, 8));
    gpunn_tensor *now = floats(model, "now", GPUNN_SHAPE(GPUNN_BATCH, 8)), *h = NULL;
    gpunn_tensor *memory = floats(model, "memory", GPUNN_SHAPE(20, GPUNN_BATCH, 8));
    gpunn_rnn(steps, "rnn", .hidden_size = 16, .relu = true); /* [12, n, 16] */
    h = gpunn_rnn_cell(now, "rnn_cell", .hidden_size = 16, .h = h);
    h = gpunn_gru_cell(now, "gru_cell", .hidden_size = 16, .h = h);
    gpunn_transformer_decoder_layer(steps, memory, "layer", .nhead = 2, .dim_feedforward = 32,
                                    .is_causal = true);
    gpunn_transformer_decoder(steps, memory, "decoder", .nhead = 2, .num_layers = 2, .dim_feedforward = 32,
                              .norm = true);
}

static void shapes(gpunn_model *model)
{
    gpunn_tensor *x = floats(model, "x", GPUNN_SHAPE(GPUNN_BATCH, 6)),
                 *row = floats(model, "row", GPUNN_SHAPE(1, 6));
    gpunn_tensor *index = integers(model, "index", GPUNN_SHAPE(3)), *parts[6], *pair[] = {x, x};
    gpunn_tensor *matrix = floats(model, "matrix", GPUNN_SHAPE(5, 6)),
                 *columns = integers(model, "columns", GPUNN_SHAPE(5, 2));
    gpunn_transpose(matrix, 0, 1); /* [6, 5] */
    gpunn_prelu(x, "prelu", 6, 0.25f);
    gpunn_expand(row, GPUNN_SHAPE(GPUNN_BATCH, 6));
    gpunn_rand_like(x);
    gpunn_tile(row, GPUNN_SHAPE(4, 2));         /* [4, 12] */
    gpunn_stack(pair, 2, 1);                    /* [n, 2, 6] */
    int count = gpunn_split(x, 4, 1, parts, 6); /* [n, 4], [n, 2] */
    count += gpunn_chunk(x, 3, 1, parts, 6);    /* three of [n, 2] */
    if (count != 5) puts("GPUNN_ERR: split and chunk");
    gpunn_one_hot(index, 10); /* [3, 10] */
    gpunn_scatter_add(matrix, 1, columns, floats(model, "added", GPUNN_SHAPE(5, 2)));
    gpunn_index_add(matrix, 0, index, floats(model, "rows", GPUNN_SHAPE(3, 6)));
    gpunn_triu(matrix, 1);
    gpunn_where_scalar(gpunn_gt(index, gpunn_neg(index)), index, 0); /* negative numbers become 0 */
}

static void reductions(gpunn_model *model)
{
    gpunn_tensor *x = floats(model, "values", GPUNN_SHAPE(GPUNN_BATCH, 10)), *indices = NULL;
    gpunn_tensor *bounds = floats(model, "bounds", GPUNN_SHAPE(3));
    gpunn_max(x, GPUNN_AXES(1), true);             /* [n, 1] */
    gpunn_min(x, GPUNN_ALL, false);                /* a scalar */
    gpunn_var(x, GPUNN_AXES(1), 1, false);         /* [n] */
    gpunn_cumsum(x, 1);                            /* [n, 10] */
    gpunn_cumprod(x, 1);                           /* [n, 10] */
    gpunn_cummin(x, 1);                            /* [n, 10] */
    gpunn_cummin_with_indices(x, 1, &indices);     /* [n, 10], and I64 [n, 10] */
    gpunn_bucketize(x, bounds);                    /* I64 [n, 10] */
    gpunn_argmin(x, 1, false);                     /* I64 [n] */
    gpunn_min_with_indices(x, 1, false, &indices); /* [n], and I64 [n] */
    gpunn_topk_indices(x, 3, 1, true);             /* I64 [n, 3] */
    gpunn_argsort(x, 1, true);                     /* I64 [n, 10], the largest first */
}

static void losses(gpunn_model *model)
{
    gpunn_tensor *x = floats(model, "prediction", GPUNN_SHAPE(GPUNN_BATCH, 5));
    gpunn_tensor *target = floats(model, "target", GPUNN_SHAPE(GPUNN_BATCH, 5));
    gpunn_tensor *labels = integers(model, "classes", GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *sign = floats(model, "sign", GPUNN_SHAPE(GPUNN_BATCH)); /* 1 or -1 */
    gpunn_huber_loss(x, target, .delta = 0.5f);
    gpunn_smooth_l1_loss(x, target, .beta = 0.1f);
    gpunn_kl_div(gpunn_log_softmax(x, 1), gpunn_softmax(target, 1), .reduction = GPUNN_REDUCE_BATCHMEAN);
    gpunn_gaussian_nll_loss(x, target, gpunn_exp(floats(model, "log_variance", GPUNN_SHAPE(GPUNN_BATCH, 5))));
    gpunn_poisson_nll_loss(x, target, .full = true);
    gpunn_nll_loss(gpunn_log_softmax(x, 1), labels);
    gpunn_hinge_embedding_loss(x, target);
    gpunn_soft_margin_loss(x, target);
    gpunn_margin_ranking_loss(gpunn_mean(x, GPUNN_AXES(1), false), gpunn_mean(target, GPUNN_AXES(1), false),
                              sign, .margin = 0.5f);
    gpunn_multi_margin_loss(x, labels, .p = 2);
    gpunn_cosine_embedding_loss(x, target, sign, .margin = 0.2f);
    gpunn_cosine_similarity(x, target, 1, 1e-8f); /* [n] */
    gpunn_top_k_accuracy(x, labels, 3);
}

static void negate(void *arg, int index, int threads)
{
    const gpunn_custom_call *call = arg;
    const float             *from = call->in->data;
    float                   *to = call->out->data;
    for (int64_t i = index; i < call->out->count; i += threads) to[i] = -from[i];
}

static int negated(const gpunn_custom_call *call)
{
    gpunn_custom_call shared = *call;
    gpunn_parallel(call->threads, negate, &shared);
    return 0;
}

static void custom(gpunn_device *dev, gpunn_model *model)
{
    static const gpunn_custom_op op = {.name = "negate", .inputs = 1, .forward = negated};
    static const float           numbers[2] = {1, 2};
    gpunn_tensor                *x = gpunn_constant(model, GPUNN_SHAPE(2), numbers), *gradients[1] = {NULL};
    gpunn_register_custom(dev, &op);
    gpunn_tensor *y = gpunn_custom(gpunn_find_custom(dev, "negate"), &x);
    gpunn_forward_prepare(&y, 1);
    gpunn_forward_training(&y, 1);
    gpunn_tensor *weight = gpunn_parameter(model, "scale", GPUNN_SHAPE(2),
                                           (gpunn_init){GPUNN_INIT_CONSTANT, 1, 0});
    gpunn_grads(gpunn_square(weight), &weight, 1, gradients);
}

static void memory(gpunn_device *dev, gpunn_model *model)
{
    printf("%s, %s\n", gpunn_status_name(GPUNN_OK), gpunn_op_name(GPUNN_OP_CONV2D));
    if (gpunn_device_get_type(dev) == GPUNN_DEVICE_CUDA) puts("on a GPU");
    printf("%zu bytes now, %zu at most\n", gpunn_memory_allocated(dev), gpunn_memory_peak(dev));
    printf("%zu bytes of the system, %zu at most\n", gpunn_memory_reserved(dev),
           gpunn_memory_reserved_peak(dev));
    gpunn_set_plan_limit(model, 8, (size_t)64 << 20);
    gpunn_empty_cache(dev);
    for (int i = 0; gpunn_input_at(model, i); i++) {
        gpunn_tensor *input = gpunn_input_at(model, i);
        printf("%s, %s\n", gpunn_tensor_name(input), gpunn_dtype_name(gpunn_tensor_dtype(input)));
    }
}

static void states(gpunn_model *model)
{
    gpunn_tensor *norm = gpunn_batch_norm1d(floats(model, "features", GPUNN_SHAPE(GPUNN_BATCH, 3)), "bn");
    gpunn_set_name(norm, "normalised");
    gpunn_freeze_statistics(norm, true);
    gpunn_tensor *count = gpunn_state(model, "count", GPUNN_SHAPE(1), (gpunn_init){GPUNN_INIT_ZEROS, 0, 0});
    gpunn_set_saved(count, true);
    gpunn_reset_states(model);
}

static void train(gpunn_device *dev)
{
    static float         numbers[8][2];
    static const int64_t labels[8] = {0, 1, 1};
    gpunn_model         *model = gpunn_model_create(dev);
    gpunn_tensor        *x = floats(model, "x", GPUNN_SHAPE(GPUNN_BATCH, 2)),
                 *classes = integers(model, "c", GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *logits = gpunn_linear(x, "fc", .out_features = 2),
                 *loss = gpunn_cross_entropy(logits, classes);
    gpunn_optimizer *sgd = gpunn_sgd(model, .lr = 0.1f, .momentum = 0.9f, .nesterov = true);
    gpunn_loader    *validation, /* a random quarter of the samples */
        *loader = gpunn_loader_create(
            model, .fields = {{.input = x, .samples = numbers}, {.input = classes, .samples = labels}},
            .count = 8, .batch_size = 4, .validation_share = 0.25f, .validation = &validation);
    gpunn_set_clip_value(sgd, 0.5f);
    gpunn_fit(sgd, .loss = loss, .train = loader, .validation = validation, .epochs = 2, .min_epochs = 1,
              .patience = 5, .restore_best = true, .on_progress = gpunn_progress_bar);
    gpunn_loader_rewind(loader);
    gpunn_class_scores scores;
    int64_t            confusion[2][2];
    gpunn_evaluate_classes(loader, logits, classes, &scores, .confusion = &confusion[0][0], .auc = true);
    gpunn_backward(loss);
    gpunn_clip_grad_value(model, 0.1f);
    const float *bias = gpunn_data(gpunn_find(model, "fc.bias")),
                *gradient = gpunn_data_grad(gpunn_find(model, "fc.bias"));
    if (bias && gradient) printf("%g, %g\n", bias[0], gradient[0]);
    gpunn_dlpack *shared = (gpunn_dlpack *)gpunn_to_dlpack(gpunn_find(model, "fc.weight"));
    if (shared) shared->deleter((struct DLManagedTensorVersioned *)shared);
    gpunn_loader_destroy(loader);
    gpunn_loader_destroy(validation);
    loader = gpunn_loader_create(/* of memory of the device: on a GPU from cudaMalloc, on a CPU any */
                                 model,
                                 .fields = {{.input = x, .samples = numbers},
                                            {.input = classes, .samples = labels}},
                                 .count = 8, .batch_size = 4, .shuffle = true, .on_device = true);
    while (gpunn_next(loader)) gpunn_train_step(sgd, loss);
    gpunn_loader_destroy(loader);
    gpunn_optimizer_destroy(sgd);
    gpunn_model_destroy(model);
}

static void optimizers(gpunn_device *dev)
{
    gpunn_model     *model = gpunn_model_create(dev);
    gpunn_optimizer *all[9];
    int              count = 0;
    all[count++] = gpunn_rmsprop(model, .momentum = 0.9f, .centered = true);
    all[count++] = gpunn_adagrad(model, .lr_decay = 1e-4f);
    all[count++] = gpunn_adamax(model, .lr = 1e-3f);
    all[count++] = gpunn_nadam(model, .weight_decay = 0.01f, .decoupled_weight_decay = true);
    all[count++] = gpunn_radam(model, .lr = 3e-4f);
    all[count++] = gpunn_lion(model, .weight_decay = 0.1f);
    all[count++] = gpunn_adadelta(model, .rho = 0.95f);
    all[count++] = gpunn_lamb(model, .lr = 2e-3f, .trust_clip = 10);
    all[count++] = gpunn_muon(model, .lr = 0.02f, .adamw_lr = 3e-4f);
    while (count > 0) gpunn_optimizer_destroy(all[--count]);
    gpunn_model_destroy(model);
}

static void release(struct DLManagedTensorVersioned *self)
{
    (void)self;
}

static void files(gpunn_device *dev)
{
    static float        numbers[4][2];
    static int64_t      sizes[] = {4, 2};
    static gpunn_dlpack theirs = {.major = 1,
                                  .data = numbers,
                                  .deleter = release,
                                  .device_type = GPUNN_DLPACK_CPU,
                                  .rank = 2,
                                  .dtype_code = GPUNN_DLPACK_FLOAT,
                                  .dtype_bits = 32,
                                  .lanes = 1,
                                  .shape = sizes};
    gpunn_array         array = {.dtype = GPUNN_F32,
                                 .rank = 2,
                                 .dim = {4, 2},
                                 .bytes = sizeof numbers,
                                 .data = numbers},
                copy;
    gpunn_write_npy(dev, "numbers.npy", &array);
    gpunn_read_npy(dev, "numbers.npy", &copy);
    gpunn_array_free(dev, &copy);
    gpunn_read_npy_as(dev, "numbers.npy", GPUNN_F64, &copy); /* doubles */
    gpunn_array_free(dev, &copy);
    static const char *const names[] = {"numbers"};
    gpunn_write_safetensors(dev, "numbers.safetensors", names, &array, 1);
    gpunn_read_safetensors_as(dev, "numbers.safetensors", "numbers", GPUNN_F64, &copy);
    gpunn_array_free(dev, &copy);
    gpunn_read_header(dev, "numbers.safetensors", &copy);
    puts(copy.data ? (const char *)copy.data : gpunn_error(dev)); /* {"__metadata__":{... */
    gpunn_array_free(dev, &copy);
    gpunn_model *model = gpunn_model_create(dev);
    gpunn_bind_dlpack(floats(model, "x", GPUNN_SHAPE(GPUNN_BATCH, 2)),
                      (struct DLManagedTensorVersioned *)&theirs);
    static const char text[] =
        "{\"gpunn_spec\": 1, \"tensors\": [{\"op\": \"input\", \"name\": \"x\", \"shape\": [\"N\", 4]}]}";
    gpunn_model *loaded = gpunn_spec_load_memory(dev, text, sizeof text - 1);
    gpunn_array  spec, whole;
    gpunn_set_metadata(loaded, "classes", "cat,dog");
    gpunn_spec_save_memory(loaded, &spec);
    gpunn_model_save_memory(loaded, &whole);
    gpunn_model *again = gpunn_model_load_memory(dev, whole.data, whole.bytes, .inference = true);
    printf("%s\n", gpunn_get_metadata(again, "classes"));
    gpunn_array_free(dev, &spec);
    gpunn_array_free(dev, &whole);
    gpunn_model_destroy(again);
    gpunn_model_destroy(loaded);
    printf("rank %d of this machine\n", gpunn_local_rank());
    gpunn_model_destroy(model);
}

static void doubles(gpunn_model *model)
{
    static double cells[4][2], slope[4][2];
    gpunn_tensor *x = gpunn_input(model, "cells", GPUNN_F64, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor *loss = gpunn_mean(gpunn_tanh(x), GPUNN_ALL, false);
    gpunn_retain_grad(x);
    gpunn_bind_as(x, GPUNN_TYPED(cells), sizeof cells); /* each run converts what they hold then */
    gpunn_backward(loss);
    gpunn_read_grad_as(x, GPUNN_TYPED(slope), sizeof slope);
    double mean;
    gpunn_read_as(loss, GPUNN_TYPED(&mean), sizeof mean);
    gpunn_bind(x, NULL, 0);
    gpunn_write_as(x, GPUNN_TYPED(cells), sizeof cells);
}

static void blocks(gpunn_device *dev)
{
    static unsigned char mapped[16 * 64 / 32 * 34]; /* of a .gguf file */
    gpunn_model         *model = gpunn_model_create(dev, .inference = true, .weights = GPUNN_Q4_0);
    gpunn_tensor        *x = floats(model, "x", GPUNN_SHAPE(GPUNN_BATCH, 64));
    gpunn_tensor *y = gpunn_linear(gpunn_linear(x, "l", .out_features = 64), "head", .out_features = 16);
    gpunn_set_storage(gpunn_find(model, "l.weight"), GPUNN_Q8_0); /* 8 bits here, 4 elsewhere */
    gpunn_bind_as(gpunn_find(model, "head.weight"), GPUNN_Q8_0, mapped, sizeof mapped);
    static float one[64];
    gpunn_write(x, one, sizeof one);
    gpunn_forward(&y, 1);
    gpunn_model_destroy(model);
}

static void lora(gpunn_device *dev)
{
    gpunn_model  *model = gpunn_model_create(dev);
    gpunn_tensor *x = floats(model, "x", GPUNN_SHAPE(GPUNN_BATCH, 8));
    gpunn_tensor *y = gpunn_linear(gpunn_relu(gpunn_linear(x, "fc1", .out_features = 8)), "fc2",
                                   .out_features = 1);
    gpunn_tensor *loss = gpunn_mean(gpunn_square(y), GPUNN_ALL, false);
    float         samples[2][8] = {{1}, {2}};
    gpunn_lora(model, "fc{1,2}", .rank = 4, .alpha = 8, .dropout = 0.1f);
    gpunn_optimizer *opt = gpunn_adamw(model, .lr = 1e-3f); /* of the adapters alone */
    gpunn_write(x, samples, sizeof samples);
    gpunn_train_step(opt, loss);
    gpunn_optimizer_destroy(opt);
    gpunn_lora_save(model, "adapter", .task_type = "FEATURE_EXTRACTION");
    gpunn_lora_load(model, "adapter", .name = "another");
    gpunn_lora_enable(model, NULL); /* the model as it was ... */
    gpunn_forward(&y, 1);
    gpunn_lora_enable(model, "default"); /* ... and with its adapters */
    gpunn_lora_merge(model);             /* now one without adapters and with other weights */
    gpunn_model_destroy(model);
}

static void bytes(gpunn_model *model)
{
    const gpunn_init zeros = {GPUNN_INIT_ZEROS, 0, 0}, one = {GPUNN_INIT_CONSTANT, 1, 0};
    gpunn_tensor    *x = floats(model, "pixels", GPUNN_SHAPE(GPUNN_BATCH, 4, 8, 8));
    gpunn_tensor    *filter = gpunn_parameter(model, "filter", GPUNN_SHAPE(6, 4, 3, 3), zeros);
    gpunn_tensor    *weight = gpunn_parameter(model, "quantized", GPUNN_SHAPE(3, 384), zeros);
    gpunn_tensor    *scales = gpunn_parameter(model, "filter_scales", GPUNN_SHAPE(6), one);
    gpunn_tensor    *scale = gpunn_parameter(model, "row_scales", GPUNN_SHAPE(3), one);
    gpunn_tensor    *q = gpunn_quantize_per_tensor(x, .scale = 0.02f, .zero_point = 128);
    gpunn_tensor    *y = gpunn_quantized_conv2d(q, filter, scales, scales, .padding = 1, .x_scale = 0.02f,
                                                .x_zero_point = 128, .scale = 0.05f);
    gpunn_tensor    *twice = gpunn_quantized_add(y, y, .a_scale = 0.05f, .b_scale = 0.05f, .scale = 0.1f);
    gpunn_tensor    *rows = gpunn_flatten(twice);
    gpunn_tensor    *z = gpunn_quantized_linear(rows, weight, scale, scale, .x_scale = 0.1f, .scale = 0.3f);
    gpunn_tensor    *reals = gpunn_dequantize(rows, .scale = 0.1f);
    static float     black[4 * 8 * 8];
    (void)gpunn_write(x, black, sizeof black);
    (void)gpunn_quantized_linear_dynamic(reals, weight, scale, scale);
    (void)gpunn_forward(&z, 1);
}

static void tell(void *user, const gpunn_quantized_layer *layer)
{
    (void)user;
    printf("%s %s: %s, %.1f dB\n", layer->op, layer->layer, layer->wide ? layer->wide : "8 bits",
           layer->total_snr);
}

static void quantization(gpunn_device *dev)
{
    static const char *const wide[] = {"head", NULL};
    static float             samples[32][16];
    gpunn_model             *model = gpunn_model_create(dev);
    gpunn_tensor            *x = floats(model, "x", GPUNN_SHAPE(GPUNN_BATCH, 16));
    gpunn_tensor            *y = gpunn_relu(gpunn_linear(x, "fc", .out_features = 8));
    y = gpunn_linear(y, "head", .out_features = 2);
    for (int i = 0; i < 32 * 16; i++) samples[i / 16][i % 16] = (float)(i % 7) - 3;
    gpunn_write(x, samples, sizeof samples);
    gpunn_calibrate(model, .outputs = {y}); /* and again for other samples */
    gpunn_model *small = gpunn_quantize(model, .method = GPUNN_RANGE_ENTROPY, .min_snr = 20, .wide = wide,
                                        .report = tell);
    gpunn_model_save(small, "small.safetensors");
    gpunn_model_destroy(small);
    gpunn_model_destroy(model);
}

int main(void)
{
    gpunn_device *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU);
    gpunn_model  *model = gpunn_model_create(dev);
    windows(model);
    sequences(model);
    shapes(model);
    reductions(model);
    losses(model);
    custom(dev, model);
    states(model);
    doubles(model);
    bytes(model);
    blocks(dev);
    memory(dev, model);
    files(dev);
    train(dev);
    optimizers(dev);
    lora(dev);
    quantization(dev);
    if (gpunn_last_status(dev) != GPUNN_OK) printf("GPUNN_ERR: %s\n", gpunn_error(dev));
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return 0;
}
