/* Writes what make_tensorboard.py expects, or the graph of a spec, into a file of TensorBoard's, at the 1.5th
 * second of 1970:
 *     board FOLDER [SPEC.json] */
#include "gpunn.h"

#include "../../examples/tensorboard.h"

static double early(void)
{
    return 1.5;
}

static bool write_all(tensorboard *board)
{
    float          values[257];
    char           tag[400] = "a";
    gpunn_progress p = {.epoch = 3,
                        .epoch_done = true,
                        .loss = 0.5f,
                        .metric = 0.75f,
                        .lr = 0.125f,
                        .metric_name = "accuracy"};
    p.validation_loss = p.validation_metric = NAN;
    for (int i = 0; i < 257; i++) values[i] = (float)(i * i % 251) / 16 - 3;
    values[3] = NAN;
    values[4] = INFINITY;
    for (int i = 0; i < 150; i++) memcpy(tag + 1 + 2 * i, "\xc3\xa9", 2);
    bool good = tensorboard_scalar(board, "loss", 1, 0.3) &&
                tensorboard_scalar(board, "loss", (int64_t)1 << 40, -1e30) &&
                tensorboard_scalar(board, tag, -1, 2) &&
                tensorboard_histogram(board, "weights", 7, values, 257) &&
                tensorboard_histogram(board, "one", 8, values + 1, 1) && tensorboard_progress(board, &p);
    p.validation_loss = 0.625f;
    p.validation_metric = 0.5f;
    good = good && tensorboard_progress(board, &p);
    p.epoch_done = false;
    return good && tensorboard_progress(board, &p);
}

int main(int argc, char **argv)
{
    text_error   error = {"usage: board FOLDER [SPEC.json]"};
    tensorboard *board = argc == 2 || argc == 3 ? tensorboard_open(argv[1], early, &error) : NULL;
    bool         good = board && (argc == 3 ? tensorboard_graph(board, argv[2], &error) : write_all(board));
    if (board && !tensorboard_close(board)) good = false;
    if (!good) fprintf(stderr, "%s\n", error.text);
    return good ? 0 : 1;
}
