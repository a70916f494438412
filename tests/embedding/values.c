/* What test_languages.py trains from Python, too: all numbers must be the same. */
#include "gpunn.h"
#include <stdio.h>

int main(void)
{
    static float     x[8][3], t[8][2], weight[5 * 3], p[8][2];
    gpunn_device    *dev = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .seed = 4, .threads = 1);
    gpunn_model     *model = gpunn_model_create(dev);
    gpunn_tensor    *input = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3));
    gpunn_tensor    *target = gpunn_input(model, "t", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 2));
    gpunn_tensor    *hidden = gpunn_dropout(gpunn_gelu(gpunn_linear(input, "fc1", .out_features = 5)), 0.25f);
    gpunn_tensor    *output = gpunn_linear(hidden, "fc2", .out_features = 2, .no_bias = true);
    gpunn_tensor    *loss = gpunn_huber_loss(output, target, .delta = 0.5f);
    gpunn_optimizer *adamw = gpunn_adamw(model, .lr = 0.02f, .weight_decay = 0.1f);
    for (int i = 0; i < 8 * 3; i++) x[i / 3][i % 3] = (float)(i * 7 % 11) / 4 - 1;
    for (int i = 0; i < 8; i++) t[i][0] = x[i][0] * x[i][1], t[i][1] = x[i][2];
    bool good = gpunn_write(input, x, sizeof x) == GPUNN_OK && gpunn_write(target, t, sizeof t) == GPUNN_OK;
    for (int step = 0; good && step < 50; step++) good = gpunn_train_step(adamw, loss) == GPUNN_OK;
    good = good && gpunn_forward(&output, 1) == GPUNN_OK && gpunn_read(output, p, sizeof p) == GPUNN_OK &&
           gpunn_read(gpunn_find(model, "fc1.weight"), weight, sizeof weight) == GPUNN_OK;
    for (int i = 0; i < 16; i++) printf("%.9g ", p[i / 2][i % 2]);
    for (int i = 0; i < 15; i++) printf("%.9g ", weight[i]);
    puts(gpunn_error(dev));
    gpunn_optimizer_destroy(adamw);
    gpunn_model_destroy(model);
    gpunn_device_close(dev);
    return !good;
}
