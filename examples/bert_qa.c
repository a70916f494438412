/* bert_qa.c - BERT answers a question by pointing at a passage of a text (Devlin et al., 2018).
 *
 * Shows: a WordPiece tokenizer, Hugging Face's weights, embedding, attention under a mask, batches of
 *        windows over a long text, each as long as its longest.
 * Build: cc -O3 -march=native -I. examples/bert_qa.c -o bert_qa -lm
 *        nvcc -O3 -arch=native -I. examples/bert_qa.c gpunn_cuda.cu -o bert_qa
 * Data:  a folder with config.json, vocab.txt and model.safetensors of a BertForQuestionAnswering, for
 *        example from
 *        https://huggingface.co/google-bert/bert-large-uncased-whole-word-masking-finetuned-squad
 * Run:   ./bert_qa --model FOLDER --question "Who ...?" --context "TEXT"    (--help explains all options)
 * Expect: the answer, its score (the product of two probabilities) and its place; with random weights any
 *         passage, and a score near 0. --bench: about 5 sentences a second and core for the base model at
 *         length 128.
 * Time:  about a second on two cores with random weights.
 * Next:  a folder of weights and --context-file with a text of your own; --impossible for models of SQuAD
 *        2.0. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"

#include "bert.h"
#include "options.h"
#include "tokenizer.h"

#include <math.h>

enum { MAX_CONTEXT = 64 << 20 };

typedef struct options {
    const char *model, *config, *vocab, *weights, *question, *context, *context_file;
    /* precision, device: as gpunn's enums */
    int  size, precision, device, seq_length, stride, batch, max_answer, bench;
    bool random, cased, impossible;
} options;

typedef struct job {
    options       o;
    bert_config   config;
    tokenizer    *vocabulary;
    token_list    question, context;
    const char   *text; /* the context's */
    size_t        bytes;
    gpunn_device *dev[2]; /* the model's last; the second one where it has moved */
    gpunn_model  *model;
    /* tokens, types, mask [n, length]; logits [n, length, 2] of an answer's start and end */
    gpunn_tensor *input[3], *output;
    int           most, length;   /* tokens of a window; of the batch at hand */
    int64_t      *tokens, *types; /* a batch */
    uint8_t      *mask;
    float        *logits;
} job;

typedef struct answer {
    double score;
    float  start, end;  /* logits */
    size_t first, last; /* tokens of the context */
} answer;

static void parse(options *o, int argc, char **argv)
{
    const option known[] = {
        {"--model FOLDER", "folder of config.json, vocab.txt and model.safetensors", .text = &o->model},
        {"--question TEXT", "what is asked", .text = &o->question},
        {"--context TEXT", "the text that holds the answer", .text = &o->context},
        {"--context-file FILE", "the same, from a file", .text = &o->context_file},
        {"--config FILE", "in place of the folder's config.json", .text = &o->config},
        {"--vocab FILE", "in place of the folder's vocab.txt, or its tokenizer.json", .text = &o->vocab},
        {"--weights FILE", "in place of the folder's model.safetensors", .text = &o->weights},
        {"--random", "weights without meaning; so it is when none are given", .flag = &o->random},
        {"--size " BERT_SIZES, "the model's, where there is no config.json", .choice = &o->size},
        {"--cased", "the vocabulary has capitals and accents; a folder's tokenizer_config.json tells",
         .flag = &o->cased},
        {"--seq-length N", "tokens of a window at most, question included; default 384",
         .number = &o->seq_length, .lowest = 1},
        {"--stride N", "tokens by which windows overlap; default 128, or half of a short window",
         .number = &o->stride, .lowest = 1},
        {"--batch N", "windows or sentences at once", .number = &o->batch, .lowest = 1},
        {"--max-answer N", "tokens of an answer at most", .number = &o->max_answer, .lowest = 1},
        {"--impossible", "the answer may be that there is none (models trained on SQuAD 2.0)",
         .flag = &o->impossible},
        {"--precision f32|tf32|bf16|f16", "how a GPU computes", .choice = &o->precision},
        {"--device auto|cpu|cuda", "where to run", .choice = &o->device},
        {"--bench N", "no question: the time of N batches of full length, on the GPU and on the CPU",
         .number = &o->bench, .lowest = 1}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
}

static void log_line(void *user, gpunn_log_level level, const char *message)
{
    (void)user;
    if (level != GPUNN_LOG_ERROR) fprintf(stderr, "bert_qa: %s\n", message);
}

static gpunn_device *open_device(int type, text_error *error)
{
    gpunn_device *dev = gpunn_device_open(.type = (gpunn_device_type)type, .seed = 1, .log_fn = log_line);
    if (dev == NULL) text_fail(error, "%s", gpunn_error(NULL));
    return dev;
}

/* Pieces of one character each, so that any text of ASCII has tokens. */
static tokenizer *built_in_vocabulary(text_error *error)
{
    char *text = malloc(4096), *to = text;
    if (text == NULL) return tokenizer_wordpiece_of(NULL, 0, "", true, error);
    to += sprintf(to, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n");
    for (int c = '!'; c <= '~'; c++) to += sprintf(to, "%c\n##%c\n", c, c);
    return tokenizer_wordpiece_of(text, (size_t)(to - text), "the built-in vocabulary", true, error);
}

/* Whether tokenizer_config.json, if there is one, says that the vocabulary has capitals. */
static bool is_cased(const char *path)
{
    text_error error;
    size_t     bytes;
    char      *text = text_read(path, (size_t)1 << 20, &bytes, &error), *key;
    json       j = json_begin(path, text, &error);
    bool       lower = true;
    if (text && json_object(&j)) {
        while ((key = json_key(&j, NULL)) != NULL) {
            if (strcmp(key, "do_lower_case") == 0)
                lower = json_bool(&j);
            else
                json_skip(&j);
        }
    }
    free(text);
    return !lower;
}

static gpunn_device *device(const job *j)
{
    return j->dev[1] ? j->dev[1] : j->dev[0];
}

/* Evaluation only, where the encoder's dropout does nothing. */
static bool build(job *j, gpunn_precision precision, text_error *error)
{
    gpunn_model *m = j->model = gpunn_model_create(device(j), .precision = precision);
    int64_t      length = bert_length(m, j->most);
    j->input[0] = gpunn_input(m, "tokens", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, length));
    j->input[1] = gpunn_input(m, "types", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, length));
    j->input[2] = gpunn_input(m, "mask", GPUNN_BOOL, GPUNN_SHAPE(GPUNN_BATCH, 1, 1, length));
    gpunn_tensor *h = bert_encoder(&j->config, m, j->input[0], j->input[1], j->input[2], length);
    j->output = gpunn_linear(h, "qa_outputs", .out_features = 2);
    if (j->output == NULL || bert_init(m) != GPUNN_OK) return text_fail(error, "%s", gpunn_error(device(j)));
    size_t count = (size_t)j->o.batch * (size_t)j->most;
    j->tokens = malloc(count * sizeof *j->tokens);
    j->types = malloc(count * sizeof *j->types);
    j->mask = malloc(count);
    j->logits = malloc(2 * count * sizeof *j->logits);
    return (j->tokens && j->types && j->mask && j->logits) ||
           text_fail(error, "out of memory: the batch is too large");
}

static bool run(job *j, int rows, text_error *error)
{
    size_t       count = (size_t)rows * (size_t)j->length;
    gpunn_status status = gpunn_write_shape(j->input[0], j->tokens, GPUNN_SHAPE(rows, j->length));
    if (status == GPUNN_OK) status = gpunn_write_shape(j->input[1], j->types, GPUNN_SHAPE(rows, j->length));
    if (status == GPUNN_OK)
        status = gpunn_write_shape(j->input[2], j->mask, GPUNN_SHAPE(rows, 1, 1, j->length));
    if (status == GPUNN_OK) status = gpunn_forward(&j->output, 1);
    if (status == GPUNN_OK) status = gpunn_read(j->output, j->logits, 2 * count * sizeof *j->logits);
    return status == GPUNN_OK || text_fail(error, "%s", gpunn_error(device(j)));
}

/* [CLS] question [SEP] count tokens of the context from first on [SEP], then padding. */
static void fill(job *j, int row, size_t first, int count)
{
    int64_t *tokens = j->tokens + (size_t)row * (size_t)j->length,
            *types = j->types + (size_t)row * (size_t)j->length;
    uint8_t *mask = j->mask + (size_t)row * (size_t)j->length;
    int      n = 0, separator = tokenizer_id(j->vocabulary, "[SEP]"),
        padding = tokenizer_id(j->vocabulary, "[PAD]");
    tokens[n++] = tokenizer_id(j->vocabulary, "[CLS]");
    for (size_t i = 0; i < j->question.count; i++) tokens[n++] = j->question.items[i].id;
    tokens[n++] = separator;
    int second = n;
    for (int i = 0; i < count; i++) tokens[n++] = j->context.items[first + (size_t)i].id;
    tokens[n++] = separator;
    for (int i = 0; i < j->length; i++) {
        if (i >= n) tokens[i] = padding;
        types[i] = i >= second && i < n;
        mask[i] = i < n;
    }
}

/* exp(logit - the largest), first of [CLS], then of the context's tokens, and their sum: no others take
 * part. */
static double exponents(const float *logits, int from, int count, double *out)
{
    double largest = (double)logits[0], sum;
    for (int i = 0; i < count; i++) largest = fmax(largest, (double)logits[2 * (from + i)]);
    sum = out[0] = exp((double)logits[0] - largest);
    for (int i = 0; i < count; i++) sum += out[i + 1] = exp((double)logits[2 * (from + i)] - largest);
    return sum;
}

/* The best passage of a window whose context, from the token `first` on, begins at `from`, if it beats the
 * best so far; none: the smallest probability over the windows that start and end are at [CLS], which means
 * no answer. scratch: for 2 (count + 1). */
static void look(const job *j, const float *logits, int from, size_t first, int count, double *scratch,
                 answer *best, double *none)
{
    double *start = scratch, *end = scratch + count + 1;
    double  sum = exponents(logits, from, count, start) * exponents(logits + 1, from, count, end);
    *none = fmin(*none, *start * *end / sum);
    for (int i = 0; i < count; i++) {
        for (int k = i; k < count && k < i + j->o.max_answer; k++) {
            double score = start[i + 1] * end[k + 1] / sum;
            if (score > best->score)
                *best = (answer){score, logits[2 * (from + i)], logits[2 * (from + k) + 1], first + (size_t)i,
                                 first + (size_t)k};
        }
    }
}

static bool continues(const job *j, size_t i)
{
    size_t      bytes;
    const char *piece = tokenizer_text(j->vocabulary, j->context.items[i].id, &bytes);
    return bytes > 2 && memcmp(piece, "##", 2) == 0;
}

/* Whole words, with the accents behind them that the tokenizer dropped. */
static void print_answer(const job *j, answer a)
{
    while (a.first > 0 && continues(j, a.first)) a.first--;
    while (a.last + 1 < j->context.count && continues(j, a.last + 1)) a.last++;
    size_t start = j->context.items[a.first].start, end = j->context.items[a.last].end, next = end;
    while (next < j->bytes && unicode_in(unicode_marks, text_next(j->text, j->bytes, &next))) end = next;
    printf("answer: %.*s\n", (int)(end - start), j->text + start);
    printf("score %.6f, logits %.5f and %.5f, bytes %zu to %zu\n", a.score, (double)a.start, (double)a.end,
           start, end);
}

/* Windows of the batch that begins with that one. */
static int rows_from(const job *j, size_t windows, size_t window, bool last_is_shorter)
{
    size_t alike = windows - window - (last_is_shorter && window + 1 < windows);
    return alike < (size_t)j->o.batch ? (int)alike : j->o.batch;
}

static int tokens_from(const job *j, size_t first, int room)
{
    return j->context.count - first < (size_t)room ? (int)(j->context.count - first) : room;
}

/* Windows of the context, of `room` tokens and as far apart as the stride leaves, in batches; the last one,
 * which may be shorter, on its own. */
static bool answer_question(job *j, int room, text_error *error)
{
    size_t total = j->context.count, step = (size_t)(room - j->o.stride), windows = 1;
    int    from = (int)j->question.count + 2;
    answer best = {.score = -1};
    double none = 1, *scratch = malloc(2 * (size_t)(room + 1) * sizeof *scratch);
    bool   good = scratch != NULL || text_fail(error, "out of memory");
    if (total > (size_t)room) windows += (total - (size_t)room + step - 1) / step;
    for (size_t window = 0, first = 0; window < windows && good;) {
        int    rows = rows_from(j, windows, window,
                                tokens_from(j, first + (windows - 1 - window) * step, room) < room);
        size_t begin = first;
        j->length = bert_padded((int)j->question.count + 3 + tokens_from(j, first, room), j->most);
        for (int row = 0; row < rows; row++, first += step) fill(j, row, first, tokens_from(j, first, room));
        good = run(j, rows, error);
        first = begin;
        for (int row = 0; row < rows && good; row++, first += step)
            look(j, j->logits + 2 * (size_t)row * (size_t)j->length, from, first, tokens_from(j, first, room),
                 scratch, &best, &none);
        window += (size_t)rows;
    }
    free(scratch);
    if (!good) return false;
    if (best.score < 0)
        return text_fail(error, "the model's outputs are not numbers; are the weights damaged?");
    printf("question: %s\n", j->o.question);
    if (j->o.impossible && none > best.score)
        printf("answer: none\nscore %.6f\n", none);
    else
        print_answer(j, best);
    printf("%zu tokens in %zu window%s of %d\n", total, windows, windows == 1 ? "" : "s", j->most);
    return true;
}

/* Sentences of full length a second, on this device and, where it is a GPU, on the CPU. */
static bool bench(job *j, text_error *error)
{
    size_t count = (size_t)j->o.batch * (size_t)j->most;
    j->length = j->most;
    for (size_t i = 0; i < count; i++) {
        j->tokens[i] = (int64_t)(i * 7919 % (size_t)j->config.vocab_size);
        j->types[i] = i % (size_t)j->length >= (size_t)j->length / 4;
        j->mask[i] = 1;
    }
    if (!run(j, j->o.batch, error)) return false;
    double begin = bert_seconds();
    for (int i = 0; i < j->o.bench; i++)
        if (!run(j, j->o.batch, error)) return false;
    double seconds = (bert_seconds() - begin) / j->o.bench;
    printf("%d layers of %d, batch %d, length %d: %.2f ms a batch, %.1f sentences a second; %.0f MiB; %s\n",
           j->config.num_hidden_layers, j->config.hidden_size, j->o.batch, j->length, 1e3 * seconds,
           j->o.batch / seconds, (double)gpunn_memory_peak(device(j)) / 1048576.0,
           gpunn_device_name(device(j)));
    return true;
}

static bool bench_all(job *j, text_error *error)
{
    if (!bench(j, error)) return false;
    if (gpunn_device_type(j->dev[0]) == GPUNN_DEVICE_CPU) return true;
    if ((j->dev[1] = open_device(GPUNN_DEVICE_CPU, error)) == NULL) return false;
    if (gpunn_model_to(j->model, j->dev[1]) != GPUNN_OK)
        return text_fail(error, "%s", gpunn_error(j->dev[1]));
    return bench(j, error);
}

static bool read_vocabulary(job *j, const char *config, text_error *error)
{
    char        path[1024], settings[1024];
    const char *vocab = bert_path(j->o.model, j->o.vocab, "vocab.txt", path);
    if (vocab == NULL) {
        if (config || j->o.weights)
            return text_fail(error, "the model's vocabulary is not given; use --vocab vocab.txt");
        j->vocabulary = built_in_vocabulary(error);
        return j->vocabulary != NULL;
    }
    if (j->o.model && !j->o.vocab)
        j->o.cased = j->o.cased || is_cased(bert_path(j->o.model, NULL, "tokenizer_config.json", settings));
    if ((j->vocabulary = tokenizer_open(vocab, NULL, !j->o.cased, error)) == NULL) return false;
    if (config == NULL) j->config.vocab_size = j->vocabulary->count;
    static const char *const special[] = {"[CLS]", "[SEP]", "[PAD]"};
    for (int i = 0; i < 3; i++)
        if (tokenizer_id(j->vocabulary, special[i]) < 0)
            return text_fail(error, "'%s' has no line %s", vocab, special[i]);
    return bert_fits(&j->config, j->vocabulary->count, vocab, error);
}

static bool read_context(job *j, char **owned, text_error *error)
{
    if (j->o.question == NULL) j->o.question = "What does BERT answer questions with?";
    j->text = j->o.context
                  ? j->o.context
                  : "BERT reads a question and a text together and answers with a passage of the text: two "
                    "numbers for each token say how well the answer begins and ends there.";
    j->bytes = strlen(j->text);
    if (j->o.context_file) {
        if ((*owned = text_read(j->o.context_file, MAX_CONTEXT, &j->bytes, error)) == NULL) return false;
        j->text = *owned;
    }
    if (!tokenizer_encode(j->vocabulary, j->o.question, strlen(j->o.question), &j->question) ||
        !tokenizer_encode(j->vocabulary, j->text, j->bytes, &j->context))
        return text_fail(error, "out of memory: the context is too long");
    if (j->context.count == 0) return text_fail(error, "the context has no words");
    return true;
}

static bool work(job *j, char **owned, text_error *error)
{
    char        config_path[1024], weights_path[1024];
    const char *config = bert_path(j->o.model, j->o.config, "config.json", config_path);
    const char *weights = j->o.random
                              ? NULL
                              : bert_path(j->o.model, j->o.weights, "model.safetensors", weights_path);
    int         most, room = 0;
    bool        new_head;
    bert_preset("bert", j->o.size, &j->config);
    if (config && !bert_read_config(config, "bert", &j->config, error)) return false;
    if (j->config.type_vocab_size < 2)
        return text_fail(error, "'%s': question answering takes a type_vocab_size of 2", config);
    if (!read_vocabulary(j, config, error)) return false;
    most = bert_max_length(&j->config);
    j->most = j->o.seq_length ? j->o.seq_length : most < 384 ? most : 384;
    if (j->most > most)
        return text_fail(error, "--seq-length is %d, but the model has %d positions", j->most, most);
    if (!j->o.bench) {
        if (!read_context(j, owned, error)) return false;
        room = j->most - (int)j->question.count - 3;
        if (j->o.stride == 0) j->o.stride = j->most / 2 < 128 ? j->most / 2 : 128;
        if (room < 1 || (j->context.count > (size_t)room && room <= j->o.stride))
            return text_fail(error,
                             "the question's %zu tokens leave room for %d of the text's in a window of %d, "
                             "which must be more than the stride of %d; raise --seq-length (to %d at most), "
                             "lower --stride or ask a shorter question",
                             j->question.count, room > 0 ? room : 0, j->most, j->o.stride, most);
    }
    if ((j->dev[0] = open_device(j->o.device, error)) == NULL ||
        !build(j, (gpunn_precision)j->o.precision, error))
        return false;
    if (weights && !bert_load(j->dev[0], j->model, weights, NULL, &new_head, error)) return false;
    if (weights == NULL)
        fprintf(
            stderr,
            "bert_qa: the weights are random, so the answer means nothing; --model FOLDER gives others\n");
    return j->o.bench ? bench_all(j, error) : answer_question(j, room, error);
}

int main(int argc, char **argv)
{
    job        j = {.o = {.size = BERT_BASE, .batch = 8, .max_answer = 15}};
    text_error error = {""};
    char      *owned = NULL;
    parse(&j.o, argc, argv);
    bool good = work(&j, &owned, &error);
    if (!good) fprintf(stderr, "bert_qa: %s\n", error.text);
    gpunn_model_destroy(j.model);
    for (int i = 0; i < 2; i++) gpunn_device_close(j.dev[i]);
    token_list_free(&j.question);
    token_list_free(&j.context);
    tokenizer_free(j.vocabulary);
    free(j.tokens);
    free(j.types);
    free(j.mask);
    free(j.logits);
    free(owned);
    return good ? 0 : 1;
}
