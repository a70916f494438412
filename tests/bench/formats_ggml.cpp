// What formats.c measures, with llama.cpp: MODEL THREADS PREFILL TOKENS IDS...
// As a conversion it takes OUT TYPE (a number of llama_ftype) behind MODEL. See formats.py.
#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/resource.h>
#include <vector>

// ms by the clock and in user time, and the peak of memory in MiB
struct usage {
    double clock, user, peak;
};

static usage used()
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    const std::chrono::duration<double, std::milli> now = std::chrono::steady_clock::now().time_since_epoch();
    return {now.count(), 1000 * (double)r.ru_utime.tv_sec + (double)r.ru_utime.tv_usec / 1000,
            (double)r.ru_maxrss / 1024};
}

static void quiet(ggml_log_level, const char *, void *)
{
}

static int convert(const char *from, const char *to, int type)
{
    llama_model_quantize_params wanted = llama_model_quantize_default_params();
    wanted.ftype = (llama_ftype)type;
    wanted.pure = true;
    wanted.nthread = 1;
    return (int)llama_model_quantize(from, to, &wanted);
}

static bool run(llama_context *context, std::vector<llama_token> tokens)
{
    return llama_decode(context, llama_batch_get_one(tokens.data(), (int32_t)tokens.size())) == 0;
}

static llama_token likeliest(const float *logits, int count)
{
    int found = 0;
    for (int i = 1; i < count; i++) found = logits[i] > logits[found] ? i : found;
    return found;
}

static bool prefill(llama_context *context, int count, int vocabulary)
{
    std::vector<llama_token> tokens;
    double                   clock = 1e30, user = 1e30;
    for (int i = 0; i < count; i++) tokens.push_back((i * 7919 + 13) % vocabulary);
    for (int round = 0; round < 4; round++) {
        llama_memory_clear(llama_get_memory(context), true);
        const usage begin = used();
        if (!run(context, tokens)) return false;
        const usage end = used();
        clock = std::min(clock, end.clock - begin.clock);
        user = std::min(user, end.user - begin.user);
    }
    printf("prefill %.3f %.3f\n", clock, user);
    return true;
}

static bool generate(llama_context *context, std::vector<llama_token> tokens, int count, int vocabulary)
{
    std::vector<llama_token> made;
    usage                    begin = used();
    llama_memory_clear(llama_get_memory(context), true);
    for (int i = 0; i < count; i++) {
        if (!run(context, i ? std::vector<llama_token>{made.back()} : tokens)) return false;
        const float *logits = llama_get_logits_ith(context, -1);
        made.push_back(likeliest(logits, vocabulary));
        if (i > 0) continue;
        FILE *file = getenv("LOGITS") ? fopen(getenv("LOGITS"), "wb") : NULL;
        if (file) fwrite(logits, sizeof *logits, (size_t)vocabulary, file), fclose(file);
        begin = used();
    }
    const usage end = used();
    printf("token %.3f %.3f\npeak %.0f\nids", (end.clock - begin.clock) / (count - 1),
           (end.user - begin.user) / (count - 1), end.peak);
    for (llama_token token : made) printf(" %d", (int)token);
    printf("\n");
    return true;
}

int main(int argc, char **argv)
{
    if (argc < 4) return 2;
    llama_log_set(quiet, NULL);
    llama_backend_init();
    if (argc == 4) return convert(argv[1], argv[2], atoi(argv[3]));
    llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (model == NULL) return 1;
    llama_context_params wanted = llama_context_default_params();
    wanted.n_ctx = 1024;
    wanted.n_batch = wanted.n_ubatch = 512;
    wanted.n_threads = wanted.n_threads_batch = atoi(argv[2]);
    llama_context           *context = llama_init_from_model(model, wanted);
    const int                vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::vector<llama_token> tokens;
    for (int i = 5; i < argc; i++) tokens.push_back(atoi(argv[i]));
    const bool good = context && prefill(context, atoi(argv[3]), vocabulary) &&
                      generate(context, tokens, atoi(argv[4]), vocabulary);
    llama_free(context);
    llama_model_free(model);
    return good ? 0 : 1;
}
