/* What examples/llama.c takes for a .gguf: MODEL PRECISION THREADS PREFILL TOKENS IDS...
 * formats_ggml.cpp is the same with llama.cpp. Prints ms of a run of PREFILL tokens and of a token behind
 * IDS, by the clock and in user time, then peak MiB and the TOKENS likeliest tokens. LOGITS names a file for
 * the logits behind IDS. */
#define LLAMA_WITHOUT_MAIN        /* the model and its files are llama.c's */
#include "../../examples/llama.c" /* NOLINT(bugprone-suspicious-include) */

#include <sys/resource.h>

/* ms by the clock and in user time, and the peak of memory in MiB. */
typedef struct usage {
    double clock, user, peak;
} usage;

static usage used(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (usage){1000 * seconds(), 1000 * (double)r.ru_utime.tv_sec + (double)r.ru_utime.tv_usec / 1000,
                   (double)r.ru_maxrss / 1024};
}

/* Runs the first `count` tokens. Only the last one needs logits. */
static bool run_all(llama *l, int64_t count)
{
    return (count < 2 || advance(l, 0, count - 1, l->hidden)) && advance(l, count - 1, count, l->next);
}

static bool prefill(llama *l, int count)
{
    double clock = INFINITY, user = INFINITY;
    for (int i = 0; i < count; i++) l->text[i] = (i * 7919 + 13) % l->c.vocab_size;
    for (int round = 0; round < 4; round++) {
        const usage begin = used();
        if (!run_all(l, count)) return false;
        clock = fmin(clock, used().clock - begin.clock);
        user = fmin(user, used().user - begin.user);
    }
    printf("prefill %.3f %.3f\n", clock, user);
    return true;
}

static bool write_first(llama *l, const char *path)
{
    const size_t bytes = (size_t)l->c.vocab_size * sizeof(float);
    float       *row = malloc(bytes);
    FILE        *file = fopen(path, "wb");
    bool         good = row && file && advance(l, l->used - 1, l->used, l->logits) &&
                gpunn_read(l->logits, row, bytes) == GPUNN_OK && fwrite(row, 1, bytes, file) == bytes;
    free(row);
    return file && fclose(file) == 0 && good;
}

static bool generate(llama *l, int count)
{
    const int64_t from = l->used;
    usage         begin = used();
    for (int i = 0; i < count; i++) {
        const bool good = i == 0 ? run_all(l, l->used) : advance(l, l->used - 1, l->used, l->next);
        if (!good || gpunn_read(l->next, &l->text[l->used], sizeof *l->text) != GPUNN_OK) return false;
        if (i == 0 && getenv("LOGITS") && !write_first(l, getenv("LOGITS"))) return false;
        l->used++;
        if (i == 0) begin = used();
    }
    const usage end = used();
    printf("token %.3f %.3f\npeak %.0f\nids", (end.clock - begin.clock) / (count - 1),
           (end.user - begin.user) / (count - 1), end.peak);
    for (int64_t i = from; i < l->used; i++) printf(" %d", (int)l->text[i]);
    printf("\n");
    return true;
}

int main(int argc, char **argv)
{
    options o = {.chunk = 512, .seed = 1, .context = 1024, .cpu = true};
    llama   l = {0};
    if (argc < 7) return 2;
    o.model = argv[1];
    o.precision = atoi(argv[2]);
    o.threads = atoi(argv[3]);
    l.c = default_config(false);
    bool good = open_device(&l, &o) && read_model(&l, o.model) && settle(&l.c) && choose_capacity(&l, &o) &&
                build(&l, &o) && load_weights(&l, o.model, false) && prefill(&l, atoi(argv[4]));
    for (int i = 6; good && i < argc; i++) good = add_token(&l, atoi(argv[i]));
    good = good && generate(&l, atoi(argv[5]));
    gpunn_model_destroy(l.model);
    gpunn_device_close(l.dev);
    free(l.text);
    return good ? 0 : 1;
}
