/* vad.c - tells where somebody speaks, chunk by chunk as the sound comes in (Silero VAD, 16 kHz).
 *
 * Shows: a stream: states that one run leaves for the next, an LSTM with .stateful, reflecting padding,
 *        weights renamed as they load, a model for evaluation alone.
 * Build: cc -O3 -march=native -I. examples/vad.c -o vad -lm
 *        nvcc -O3 -arch=native -I. examples/vad.c gpunn_cuda.cu -o vad
 * Data:  silero_vad_16k.safetensors, which is in the wheel silero-vad: pip download silero-vad, and unzip
 *        it; a sound as WAV of one channel, 16 bits, 16000 samples a second
 * Run:   ./vad --weights silero_vad_16k.safetensors --wav SOUND.wav          (--help explains all options)
 * Expect: a line for each stretch of speech. A chunk of 32 ms takes some 0.05 ms on one core.
 * Time:  less than a second on one core for 2 seconds of sound.
 * Next:  a microphone's chunks in the place of the file's; examples/guides/small_programs.md on real time. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "options.h"

#include <math.h>
#include <time.h>

enum { RATE = 16000, CHUNK = 512, CONTEXT = 64, WINDOW = 256, BANDS = WINDOW / 2 + 1, HIDDEN = 128 };

typedef struct arguments {
    const char *weights, *wav;
    float       threshold;
    int         device, threads;
    bool        chunks;
} arguments;

typedef struct detector {
    gpunn_device *dev;
    gpunn_model  *model;
    gpunn_tensor *chunk, *speech; /* [1, CHUNK]; the probability, [1, 1, 1] */
} detector;

static void parse(arguments *a, int argc, char **argv)
{
    const option known[] = {
        {"--weights FILE", "silero_vad_16k.safetensors; without it they are random, and so is the answer",
         .text = &a->weights},
        {"--wav FILE", "a sound of one channel, 16 bits, 16 kHz; without it a hum that swells",
         .text = &a->wav},
        {"--threshold X", "probability from which it is speech", .real = &a->threshold, .lowest = 0,
         .highest = 1},
        {"--chunks", "a line for each chunk: when it begins, and the probability", .flag = &a->chunks},
        {"--threads N", "of the CPU", .number = &a->threads, .lowest = 1},
        {"--device auto|cpu|cuda", "where to run", .choice = &a->device}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
}

/* ---- the sound ---- */

static unsigned little(const unsigned char *bytes, int count)
{
    unsigned value = 0;
    for (int i = count - 1; i >= 0; i--) value = value << 8 | bytes[i];
    return value;
}

/* The samples of a WAV file, -1 to 1, to be freed; NULL: it said why. */
static float *read_wav(const char *path, size_t *count)
{
    unsigned char head[24] = {0};
    float        *samples = NULL;
    bool          known = false;
    FILE         *file = fopen(path, "rb");
    if (file && fread(head, 1, 12, file) == 12 && memcmp(head, "RIFF", 4) == 0 &&
        memcmp(head + 8, "WAVE", 4) == 0) {
        while (samples == NULL && fread(head, 1, 8, file) == 8) {
            unsigned bytes = little(head + 4, 4);
            if (memcmp(head, "fmt ", 4) == 0 && bytes >= 16 && fread(head, 1, 16, file) == 16) {
                known = little(head, 2) == 1 && little(head + 2, 2) == 1 && little(head + 4, 4) == RATE &&
                        little(head + 14, 2) == 16;
                bytes -= 16;
            } else if (memcmp(head, "data", 4) == 0 && known &&
                       (samples = malloc((bytes / 2 + 1) * sizeof *samples)) != NULL) {
                for (*count = 0; *count < bytes / 2 && fread(head, 1, 2, file) == 2; ++*count)
                    samples[*count] = (float)(int16_t)little(head, 2) / 32768;
                break;
            }
            if (fseek(file, (long)(bytes + bytes % 2), SEEK_CUR) != 0) break;
        }
    }
    if (file) fclose(file);
    if (samples == NULL)
        fprintf(stderr, "vad: '%s' is not a WAV file with one channel, 16 bits and %d samples a second\n",
                path, RATE);
    return samples;
}

/* Two seconds of tones of a voice's pitch, that swell twice. */
static float *make_sound(size_t *count)
{
    float *samples = malloc(2 * RATE * sizeof *samples);
    *count = samples ? 2 * RATE : 0;
    for (size_t i = 0; i < *count; i++) {
        const double t = (double)i / RATE, loud = 0.2 * pow(sin(3.14159265 * t), 2);
        samples[i] = (float)(loud * (sin(900 * t) + 0.6 * sin(1800 * t) + 0.4 * sin(2700 * t + 0.3)));
    }
    return samples;
}

/* ---- the network ---- */

static gpunn_tensor *convolution(gpunn_tensor *x, const char *name, int channels, int stride)
{
    return gpunn_relu(
        gpunn_conv1d(x, name, .out_channels = channels, .kernel_size = 3, .stride = stride, .padding = 1));
}

/* A chunk behind the end of the one before, its spectrum, four convolutions that make one step of it, and an
 * LSTM that goes on from chunk to chunk. */
static void build(detector *d)
{
    const gpunn_init silence = {GPUNN_INIT_ZEROS, 0, 0};
    d->model = gpunn_model_create(d->dev, .inference = true);
    d->chunk = gpunn_input(d->model, "chunk", GPUNN_F32, GPUNN_SHAPE(1, CHUNK));
    gpunn_tensor *before = gpunn_state(d->model, "context", GPUNN_SHAPE(1, CONTEXT), silence);
    gpunn_tensor *parts[] = {before, d->chunk};
    gpunn_tensor *sound = gpunn_concat(parts, 2, 1);
    gpunn_assign(before, gpunn_slice(sound, 1, CHUNK, CHUNK + CONTEXT, 1));
    gpunn_tensor *x = gpunn_pad(sound, .after = {0, CONTEXT}, .mode = GPUNN_PAD_REFLECT);
    x = gpunn_reshape(x, GPUNN_SHAPE(1, 1, CONTEXT + CHUNK + CONTEXT));
    x = gpunn_conv1d(x, "stft_conv", .out_channels = 2 * BANDS, .kernel_size = WINDOW, .stride = WINDOW / 2,
                     .no_bias = true);
    gpunn_tensor *waves[] = {gpunn_slice(x, 1, 0, BANDS, 1), gpunn_slice(x, 1, BANDS, 2 * BANDS, 1)};
    x = gpunn_expr("sqrt(x * x + y * y)", waves, 2);                     /* [1, BANDS, 4] */
    x = convolution(convolution(x, "conv1", 128, 1), "conv2", 64, 2);    /* [1, 64, 2] */
    x = convolution(convolution(x, "conv3", 64, 2), "conv4", HIDDEN, 1); /* [1, HIDDEN, 1] */
    x = gpunn_lstm(gpunn_reshape(x, GPUNN_SHAPE(1, 1, HIDDEN)), "lstm_cell", .hidden_size = HIDDEN,
                   .stateful = true);
    x = gpunn_relu(gpunn_reshape(x, GPUNN_SHAPE(1, HIDDEN, 1)));
    d->speech = gpunn_sigmoid(gpunn_conv1d(x, "final_conv", .out_channels = 1, .kernel_size = 1));
}

static gpunn_status load(detector *d, const char *path)
{
    /* of a cell, as a layer has them */
    const gpunn_rename names[] = {{"lstm_cell.*", "lstm_cell.*_l0"}, {NULL, NULL}};
    return gpunn_load(d->model, path, .map = names);
}

/* The next chunk, with silence behind the sound's end. */
static gpunn_status hear(detector *d, const float *samples, size_t count, float *probability)
{
    float chunk[CHUNK] = {0};
    memcpy(chunk, samples, (count < CHUNK ? count : CHUNK) * sizeof *chunk);
    gpunn_status status = gpunn_write(d->chunk, chunk, sizeof chunk);
    if (status == GPUNN_OK) status = gpunn_forward(&d->speech, 1);
    return status == GPUNN_OK ? gpunn_read(d->speech, probability, sizeof *probability) : status;
}

static bool run(detector *d, const arguments *a, const float *samples, size_t count)
{
    const size_t chunks = (count + CHUNK - 1) / CHUNK;
    size_t       first = chunks; /* of the speech that is going on; chunks: none is */
    double       begin = (double)clock();
    for (size_t i = 0; i <= chunks; i++) {
        float        p = 0;
        const double at = (double)i * CHUNK / RATE;
        if (i < chunks && hear(d, samples + i * CHUNK, count - i * CHUNK, &p) != GPUNN_OK) return false;
        if (a->chunks && i < chunks) printf("%.3f %.7f\n", at, (double)p);
        if (p >= a->threshold && first == chunks && i < chunks) first = i;
        if ((p < a->threshold || i == chunks) && first < chunks) {
            printf("speech from %.2f to %.2f s\n", (double)first * CHUNK / RATE, at);
            first = chunks;
        }
    }
    printf("%.2f s of sound in %zu chunks, %.3f ms each\n", (double)count / RATE, chunks,
           1e3 * ((double)clock() - begin) / CLOCKS_PER_SEC / (double)(chunks ? chunks : 1));
    return true;
}

int main(int argc, char **argv)
{
    arguments a = {.threshold = 0.5f, .threads = 1};
    size_t    count = 0;
    parse(&a, argc, argv);
    float *samples = a.wav ? read_wav(a.wav, &count) : make_sound(&count);
    if (samples == NULL) return 1;
    detector d = {gpunn_device_open(.type = (gpunn_device_type)a.device, .seed = 1, .threads = a.threads),
                  NULL, NULL, NULL};
    bool     good = d.dev != NULL;
    if (good) build(&d);
    if (good && a.weights) good = load(&d, a.weights) == GPUNN_OK;
    if (good && !a.weights)
        fprintf(stderr, "vad: the weights are random, so the answer means nothing; --weights gives others\n");
    good = good && gpunn_last_status(d.dev) == GPUNN_OK && run(&d, &a, samples, count);
    if (!good) fprintf(stderr, "vad: %s\n", gpunn_error(d.dev));
    gpunn_model_destroy(d.model);
    gpunn_device_close(d.dev);
    free(samples);
    return good ? 0 : 1;
}
