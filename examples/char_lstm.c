/* char_lstm.c - a language model of characters: learns a text with an LSTM or GRU, then writes more of it.
 *
 * Shows: embedding, recurrent layers and their states, carried from one piece of the text to the next; a
 *        second network for sampling with the first one's parameters, whose layers keep their states
 *        themselves; clipping, checkpoints, weights with PyTorch's names.
 * Build: cc -O3 -march=native -I. examples/char_lstm.c -o char_lstm -lm
 *        nvcc -O3 -arch=native -I. examples/char_lstm.c gpunn_cuda.cu -o char_lstm
 * Run:   ./char_lstm [--text FILE] [--cell lstm|gru] [--steps N] [--save FILE] ...
 *            (--help explains all options)
 *        Weights are, for PyTorch, those of a module with embed = Embedding(vocabulary, embed), rnn =
 *        LSTM(embed, hidden, layers), head = Linear(hidden, vocabulary).
 * Expect: the loss falls from 3.1 to 0.26: the words are predictable, what number comes next is not
 *         learnt; then lines like "ninety-two, fifty-three, thirty-nine, eighty-seven, twenty-five,".
 * Time:  about two seconds on two cores.
 * Next:  --text FILE --hidden 512 --steps 5000 with a text of your own; --temperature 0 and 1. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "curves.h"
#include "options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char *text, *load, *save, *checkpoint, *prompt;
    bool        losses;
    int         gru, hidden, layers, embed, batch, length, steps, sample, seed, threads;
    float       dropout, lr, clip, temperature;
} options;

typedef struct corpus {
    unsigned char *text;
    size_t         size;
    int            token[256]; /* of a byte; -1: not in the text */
    unsigned char  byte[256];  /* of a token */
    int            vocabulary;
} corpus;

/* length characters of each of batch sequences, from the states h_0 and c_0 (lstm) to h_n and c_n; that of
 * sampling, for one character of one sequence, keeps its states itself. */
typedef struct network {
    /* tokens [length, batch], logits [length, batch, vocabulary] */
    gpunn_tensor *tokens, *h_0, *c_0, *h_n, *c_n, *logits;
} network;

static int fail(const char *format, const char *what)
{
    fprintf(stderr, "char_lstm: ");
    fprintf(stderr, format, what);
    fputc('\n', stderr);
    return 1;
}

/* ---- options ------------------------------------------------------------------------------------------- */
static void parse(int argc, char **argv, options *o)
{
    const option known[] = {
        {"--text FILE", "what to learn; its bytes are the vocabulary; default: numbers in words",
         .text = &o->text},
        {"--cell lstm|gru", "kind of the recurrent layers", .choice = &o->gru},
        {"--hidden N", "features of a recurrent layer", .number = &o->hidden, .lowest = 1, .highest = 65536},
        {"--layers N", "recurrent layers", .number = &o->layers, .lowest = 1, .highest = 64},
        {"--embed N", "features of a character", .number = &o->embed, .lowest = 1, .highest = 65536},
        {"--dropout X", "between recurrent layers; default 0", .real = &o->dropout, .highest = 0.99},
        {"--batch N", "pieces of the text that are learnt side by side", .number = &o->batch, .lowest = 1,
         .highest = 65536},
        {"--length N", "characters of a piece in one step", .number = &o->length, .lowest = 1,
         .highest = 65536},
        {"--steps N", "training steps", .number = &o->steps},
        {"--lr X", "Adam's learning rate", .real = &o->lr, .lowest = 1e-9},
        {"--clip X", "largest norm of the gradient; 0: none", .real = &o->clip},
        {"--seed N", "of initial weights, dropout and sampling", .number = &o->seed},
        {"--threads N", "of the CPU; default 0: all processors", .number = &o->threads, .highest = 1024},
        {"--losses", "prints the loss of each step with all digits", .flag = &o->losses},
        {"--sample N", "characters to write at the end", .number = &o->sample},
        {"--prompt TEXT", "how the sample begins", .text = &o->prompt},
        {"--temperature X", "of the sample; 0: always the likeliest character", .real = &o->temperature},
        {"--load FILE", "weights to start from (safetensors)", .text = &o->load},
        {"--save FILE", "where the learnt weights go (safetensors)", .text = &o->save, .written = true},
        {"--checkpoint FILE",
         "written at each end of the text; where it is there, training goes on from it, exactly",
         .text = &o->checkpoint, .written = true}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
}

/* ---- the text ------------------------------------------------------------------------------------------ */
static size_t put_number(char *to, int n)
{
    static const char *const small[] = {"",        "one",     "two",       "three",    "four",
                                        "five",    "six",     "seven",     "eight",    "nine",
                                        "ten",     "eleven",  "twelve",    "thirteen", "fourteen",
                                        "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
    static const char *const tens[] = {"",      "",      "twenty",  "thirty", "forty",
                                       "fifty", "sixty", "seventy", "eighty", "ninety"};
    size_t                   used = 0;
    if (n >= 100) used += (size_t)sprintf(to, "%s hundred%s", small[n / 100], n % 100 ? " and " : "");
    n %= 100;
    if (n >= 20) used += (size_t)sprintf(to + used, "%s%s", tens[n / 10], n % 10 ? "-" : "");
    return used + (size_t)sprintf(to + used, "%s%s", small[n < 20 ? n : n % 10], "");
}

static bool read_text(const options *o, corpus *c)
{
    if (o->text == NULL) {
        c->text = malloc(999 * 64);
        for (int n = 1; c->text && n < 1000; n++) {
            c->size += put_number((char *)c->text + c->size, n);
            c->size += (size_t)sprintf((char *)c->text + c->size, n % 5 ? ", " : ",\n");
        }
    } else {
        FILE *file = fopen(o->text, "rb");
        long  size = file && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
        if (size >= 0) rewind(file);
        c->text = size > 0 ? malloc((size_t)size) : NULL;
        if (c->text) c->size = fread(c->text, 1, (size_t)size, file);
        if (file) fclose(file);
        if (size < 0 || c->size != (size_t)size)
            return fail("the text '%s' cannot be read; check its name", o->text), false;
    }
    const size_t needed = (size_t)o->batch * ((size_t)o->length + 1);
    if (c->text == NULL || c->size < needed) {
        fprintf(stderr,
                "char_lstm: the text has %zu bytes, but --batch %d sequences of --length %d need %zu; use "
                "less of one\n",
                c->size, o->batch, o->length, needed);
        return false;
    }
    for (int i = 0; i < 256; i++) c->token[i] = -1;
    for (size_t i = 0; i < c->size; i++) c->token[c->text[i]] = 0;
    for (int i = 0; i < 256; i++)
        if (c->token[i] == 0) {
            c->byte[c->vocabulary] = (unsigned char)i;
            c->token[i] = c->vocabulary++;
        }
    return true;
}

/* ---- the networks -------------------------------------------------------------------------------------- */
/* again: the network of sampling, with the parameters of the first. */
static network build(gpunn_model *model, const options *o, int vocabulary, bool again)
{
    static const char *const parts[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
    const gpunn_shape        state = GPUNN_SHAPE(o->layers, GPUNN_BATCH, o->hidden);
    gpunn_tensor            *weights[4 * 64];
    char                     name[64];
    network                  net = {NULL, NULL, NULL, NULL, NULL, NULL};
    for (int i = 0; again && i < 4 * o->layers; i++) {
        snprintf(name, sizeof name, "rnn.%s_l%d", parts[i % 4], i / 4);
        weights[i] = gpunn_find(model, name);
    }
    net.tokens = again ? gpunn_input(model, "token", GPUNN_I64, GPUNN_SHAPE(1, 1))
                       : gpunn_input(model, "tokens", GPUNN_I64, GPUNN_SHAPE(o->length, GPUNN_BATCH));
    if (!again) net.h_0 = gpunn_input(model, "h_0", GPUNN_F32, state);
    if (!again && !o->gru) net.c_0 = gpunn_input(model, "c_0", GPUNN_F32, state);
    gpunn_tensor  *h = again ? gpunn_embedding(net.tokens, "sampling",
                                               .weight = gpunn_find(model, "embed.weight"))
                             : gpunn_embedding(net.tokens, "embed", .num_embeddings = vocabulary,
                                               .embedding_dim = o->embed);
    gpunn_rnn_args args = {.hidden_size = o->hidden, .num_layers = o->layers, .h_0 = net.h_0, .c_0 = net.c_0};
    if (o->layers > 1) args.dropout = o->dropout;
    if (!again) args.h_n = &net.h_n;
    if (!again && !o->gru) args.c_n = &net.c_n;
    if (again) args.weights = weights, args.stateful = true;
    h = o->gru ? gpunn_gru_(h, again ? "sampling_rnn" : "rnn", args)
               : gpunn_lstm_(h, again ? "sampling_rnn" : "rnn", args);
    if (again)
        net.logits = gpunn_add(
            gpunn_linear(h, "sampling_head", .weight = gpunn_find(model, "head.weight"), .no_bias = true),
            gpunn_find(model, "head.bias"));
    else
        net.logits = gpunn_linear(h, "head", .out_features = vocabulary);
    if (net.h_n) gpunn_keep(net.h_n);
    if (net.c_n) gpunn_keep(net.c_n);
    return net;
}

/* The states from which the next piece starts: those at the end of the last, or 0. */
static gpunn_status carry(const network *net, float *values, size_t bytes, bool start)
{
    gpunn_tensor *const from[] = {net->h_n, net->c_n}, *const to[] = {net->h_0, net->c_0};
    gpunn_status status = GPUNN_OK;
    if (start) memset(values, 0, bytes);
    for (int i = 0; i < 2 && to[i] && status == GPUNN_OK; i++) {
        if (!start) status = gpunn_read(from[i], values, bytes);
        if (status == GPUNN_OK) status = gpunn_write(to[i], values, bytes);
    }
    return status;
}

/* ---- training ------------------------------------------------------------------------------------------ */
/* The text as --batch streams side by side, each read in pieces of --length. */
static gpunn_status train(const options *o, const corpus *c, const network *net, gpunn_tensor *targets,
                          gpunn_tensor *loss, gpunn_optimizer *adam)
{
    const size_t batch = (size_t)o->batch, length = (size_t)o->length, stream = c->size / batch,
                 pieces = (stream - 1) / length;
    const size_t count = batch * length,
                 state = (size_t)o->layers * batch * (size_t)o->hidden * sizeof(float);
    int64_t     *tokens = malloc(2 * count * sizeof *tokens), *next = tokens + count;
    float       *values = malloc(state);
    gpunn_status status = tokens && values ? GPUNN_OK : GPUNN_ERR_MEMORY;
    double       sum = 0;
    int          summed = 0;
    curves       by_line = {.title = "loss", .each = 100};
    for (int64_t step = gpunn_step_count(adam); step < o->steps && status == GPUNN_OK; step++) {
        const size_t piece = (size_t)step % pieces;
        for (size_t t = 0; t < length; t++)
            for (size_t n = 0; n < batch; n++) {
                const unsigned char *at = c->text + n * stream + piece * length + t;
                tokens[t * batch + n] = c->token[at[0]];
                next[t * batch + n] = c->token[at[1]];
            }
        status = carry(net, values, state, piece == 0);
        if (status == GPUNN_OK) status = gpunn_write(net->tokens, tokens, count * sizeof *tokens);
        if (status == GPUNN_OK) status = gpunn_write(targets, next, count * sizeof *next);
        if (status == GPUNN_OK) status = gpunn_train_step(adam, loss);
        if (status != GPUNN_OK) break;
        sum += (double)gpunn_item(loss);
        summed++;
        if (o->losses) printf("loss %.9g\n", (double)gpunn_item(loss));
        if ((step + 1) % 100 == 0 || step + 1 == o->steps) {
            printf("step %lld: loss %.3f\n", (long long)step + 1, sum / summed);
            curves_add(&by_line, (float)(sum / summed), NAN);
            sum = summed = 0;
        }
        if (o->checkpoint && piece + 1 == pieces) status = gpunn_checkpoint_save(adam, NULL, o->checkpoint);
    }
    if (tokens == NULL || values == NULL) (void)fail("out of memory%s", "");
    curves_show(&by_line, 1);
    free(tokens);
    free(values);
    return status;
}

/* ---- sampling ------------------------------------------------------------------------------------------ */
static int choose(const float *logits, int count, double temperature, uint64_t *random)
{
    int    best = 0;
    double total = 0;
    for (int i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    if (temperature == 0) return best;
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    for (int i = 0; i < count; i++) total += exp((double)(logits[i] - logits[best]) / temperature);
    double left = total * (double)(*random >> 11) / 9007199254740992.0;
    for (int i = 0; i < count; i++) {
        left -= exp((double)(logits[i] - logits[best]) / temperature);
        if (left < 0) return i;
    }
    return best;
}

static gpunn_status sample(const options *o, const corpus *c, network *net)
{
    const char  *prompt = o->prompt ? o->prompt : "";
    const size_t prompted = strlen(prompt);
    float        logits[256];
    uint64_t     random = (uint64_t)o->seed;
    int64_t      token = c->token[prompted ? (unsigned char)prompt[0] : c->text[0]];
    gpunn_status status = GPUNN_OK;
    putchar(c->byte[token]);
    for (size_t i = 1; i < prompted + (size_t)o->sample && status == GPUNN_OK; i++) {
        status = gpunn_write(net->tokens, &token, sizeof token);
        if (status == GPUNN_OK) status = gpunn_forward(&net->logits, 1);
        if (status == GPUNN_OK)
            status = gpunn_read(net->logits, logits, (size_t)c->vocabulary * sizeof *logits);
        if (status != GPUNN_OK) break;
        token = i < prompted ? c->token[(unsigned char)prompt[i]]
                             : choose(logits, c->vocabulary, (double)o->temperature, &random);
        putchar(c->byte[token]);
    }
    putchar('\n');
    return status;
}

static int run(const options *o, const corpus *c, gpunn_device *dev)
{
    gpunn_model  *model = gpunn_model_create(dev);
    network       net = build(model, o, c->vocabulary, false);
    gpunn_tensor *targets = gpunn_input(model, "targets", GPUNN_I64, GPUNN_SHAPE(o->length, GPUNN_BATCH));
    gpunn_tensor *loss = gpunn_cross_entropy(
        gpunn_reshape(net.logits, GPUNN_SHAPE(GPUNN_BATCH * o->length, c->vocabulary)),
        gpunn_reshape(targets, GPUNN_SHAPE(GPUNN_BATCH * o->length)));
    network          one = build(model, o, c->vocabulary, true);
    gpunn_optimizer *adam = gpunn_adam(model, .lr = o->lr);
    gpunn_status     status = gpunn_last_status(dev);
    if (status == GPUNN_OK) gpunn_set_clip_norm(adam, o->clip);
    if (status == GPUNN_OK && o->load) status = gpunn_load(model, o->load);
    FILE *checkpoint = o->checkpoint ? fopen(o->checkpoint, "rb") : NULL;
    if (checkpoint) {
        fclose(checkpoint);
        if (status == GPUNN_OK) status = gpunn_checkpoint_load(adam, NULL, o->checkpoint);
        if (status == GPUNN_OK) printf("resumed after step %lld\n", (long long)gpunn_step_count(adam));
    }
    if (status == GPUNN_OK) status = train(o, c, &net, targets, loss, adam);
    if (status == GPUNN_OK && o->save) status = gpunn_save(model, o->save);
    if (status == GPUNN_OK && o->sample > 0) status = sample(o, c, &one);
    if (gpunn_last_status(dev) != GPUNN_OK) (void)fail("%s", gpunn_error(dev));
    gpunn_optimizer_destroy(adam);
    gpunn_model_destroy(model);
    return status == GPUNN_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    options o = {.hidden = 128,
                 .layers = 1,
                 .embed = 32,
                 .batch = 16,
                 .length = 32,
                 .steps = 800,
                 .sample = 300,
                 .seed = 1,
                 .lr = 0.004f,
                 .clip = 5,
                 .temperature = 0.7f};
    corpus  c = {.text = NULL};
    int     result = 1;
    parse(argc, argv, &o);
    if (!read_text(&o, &c)) {
        free(c.text);
        return 1;
    }
    for (const char *at = o.prompt ? o.prompt : ""; *at; at++)
        if (c.token[(unsigned char)*at] < 0) {
            fprintf(stderr, "char_lstm: the prompt's '%c' is not in the text; use its characters\n", *at);
            free(c.text);
            return 1;
        }
    gpunn_device *dev = gpunn_device_open(.seed = (uint64_t)o.seed, .threads = o.threads);
    if (dev) {
        printf("%s: %zu bytes, %d different\n", gpunn_device_name(dev), c.size, c.vocabulary);
        result = run(&o, &c, dev);
        gpunn_device_close(dev);
    } else
        result = fail("%s", gpunn_error(NULL));
    free(c.text);
    return result;
}
