/* gpt2.c - trains a GPT-2 on a text and writes on in its manner.
 *
 * Shows: attention, a cache of keys and values that runs read and write, tied weights, AdamW with warm-up,
 *        cosine decay and clipping, accumulated gradients, exact resuming, weights with Hugging Face's
 *        names and shapes, mixed precision.
 * Build: cc -O3 -march=native -I. examples/gpt2.c -o gpt2 -lm
 *        nvcc -O3 -arch=native -I. examples/gpt2.c gpunn_cuda.cu -o gpt2
 * Run:   ./gpt2    a tiny model, a built-in text, 400 steps, then a sample; --help: all options
 *        ./gpt2 --text book.txt --steps 2000 --checkpoint gpt2.ckpt
 *            [--resume goes on where the checkpoint stands]
 *        ./gpt2 --config 124M --vocab vocab.json --merges merges.txt --weights model.safetensors \
 *            --steps 0 --prompt "Hello,"
 *        ./gpt2 --config 124M --precision bf16 --batch 16 --context 1024 --text book.txt \
 *            --save mine.safetensors
 *        mpirun -n 4 ./gpt2 ...
 *            with mpicc -DGPUNN_MPI in the place of cc: four batches a step, one for each rank
 * Expect: the loss falls from 5.5 to below 0.1 on the built-in text, numbers in words, and the sample
 *         counts on from forty-two; tokens a second, and which share of the machine's peak that is (of
 *         --peak TFLOP/s, a GPU's known figure, or a matrix product timed here). The 124M model with
 *         --batch 1 --context 64 takes 2.3 GiB, its checkpoint 1.4.
 * Time:  about ten seconds on two cores.
 * Next:  --text FILE --steps 2000 with a text of your own; llama.c runs newer models. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"
#include "curves.h"
#include "options.h"
#include "sampling.h"
#include "tokenizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct options {
    const char *text, *vocab, *merges, *weights, *save, *checkpoint, *logits, *prompt;
    int         large, precision, batch, context, accumulate, generate, every, threads, seed, steps, warmup;
    float       lr, decay, clip, dropout, peak;
    sampling    sample;
    bool        resume, cpu, times;
} options;

typedef struct shape {
    int layers, width, heads, positions, vocabulary;
} shape;

typedef struct gpt2 {
    gpunn_model  *model;
    gpunn_group  *group;
    shape         s;
    int           context;
    gpunn_tensor *tokens, *targets, *logits, *loss;
} gpt2;

/* The same network with a cache of keys and values, for any number of tokens that follow those of the runs
 * before. */
typedef struct writer {
    gpunn_model *model;
    /* places: of each token; place: of the first; length: behind the last */
    gpunn_tensor *tokens, *places, *place, *length;
    /* next: the token behind that of a run of one, by the number draw */
    gpunn_tensor *hidden, *draw, *next;
} writer;

static bool fail(const char *what)
{
    fprintf(stderr, "gpt2: %s\n", what);
    return false;
}

static bool check(gpunn_device *dev, bool good)
{
    return good && gpunn_last_status(dev) == GPUNN_OK ? true : fail(gpunn_error(dev));
}

/* ---- the model ----------------------------------------------------------------------------------------- */
static gpunn_tensor *linear(gpunn_tensor *x, int block, const char *part, int out)
{
    char name[64];
    snprintf(name, sizeof name, "h.%d.%s", block, part);
    return gpunn_linear(x, name, .out_features = out);
}

static gpunn_tensor *norm(gpunn_tensor *x, int block, const char *part)
{
    char name[64];
    snprintf(name, sizeof name, "h.%d.%s", block, part);
    return gpunn_layer_norm(x, name);
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), least = strlen(end);
    return length >= least && strcmp(text + length - least, end) == 0;
}

static int rank_of(gpunn_shape shape)
{
    int rank = 0;
    while (rank < GPUNN_MAX_RANK && shape.dim[rank]) rank++;
    return rank;
}

/* GPT-2's initial values; weight decay for matrices only. */
static void prepare_parameters(const gpt2 *net)
{
    for (int i = 0; i < gpunn_parameter_count(net->model); i++) {
        gpunn_tensor *p = gpunn_parameter_at(net->model, i);
        bool          matrix = rank_of(gpunn_tensor_shape(p)) == 2,
             residual = ends_with(gpunn_tensor_name(p), "c_proj.weight");
        gpunn_init init = {GPUNN_INIT_NORMAL, 0, residual ? 0.02f / sqrtf(2 * (float)net->s.layers) : 0.02f};
        if (!matrix) init.kind = GPUNN_INIT_ZEROS;
        if (matrix || ends_with(gpunn_tensor_name(p), ".bias")) gpunn_set_init(p, init);
        gpunn_set_decay(p, matrix);
    }
}

/* Attention of block i: softmax over the tokens before, from x with queries, keys and values side by side. */
typedef gpunn_tensor *(*attention)(gpunn_tensor *x, int i, const void *net);

static gpunn_tensor *blocks(gpunn_tensor *x, shape s, float dropout, gpunn_shape flat, attention attend,
                            const void *net)
{
    for (int i = 0; i < s.layers; i++) {
        gpunn_tensor *h = attend(linear(norm(x, i, "ln_1"), i, "attn.c_attn", 3 * s.width), i, net);
        x = gpunn_add(gpunn_dropout(linear(gpunn_reshape(h, flat), i, "attn.c_proj", s.width), dropout), x);
        h = gpunn_gelu_tanh(linear(norm(x, i, "ln_2"), i, "mlp.c_fc", 4 * s.width));
        x = gpunn_add(gpunn_dropout(linear(h, i, "mlp.c_proj", s.width), dropout), x);
    }
    return gpunn_layer_norm(x, "ln_f");
}

typedef struct window {
    shape s;
    int   context;
    float dropout;
} window;

static gpunn_tensor *attend_window(gpunn_tensor *x, int i, const void *net)
{
    const window *w = net;
    (void)i;
    x = gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, w->context, 3, w->s.heads, w->s.width / w->s.heads));
    return gpunn_scaled_dot_product_attention(x, NULL, NULL, .is_causal = true, .dropout_p = w->dropout);
}

static gpt2 build(gpunn_device *dev, const options *o, shape s, int context)
{
    gpt2         net = {.model = gpunn_model_create(dev, .precision = (gpunn_precision)o->precision),
                        .s = s,
                        .context = context};
    const window w = {s, context, o->dropout};
    net.tokens = gpunn_input(net.model, "tokens", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, context));
    net.targets = gpunn_input(net.model, "targets", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, context));
    gpunn_init    none = {GPUNN_INIT_DEFAULT, 0, 0};
    gpunn_tensor *x = gpunn_embedding(net.tokens, "wte", .num_embeddings = s.vocabulary,
                                      .embedding_dim = s.width);
    gpunn_tensor *places = gpunn_parameter(net.model, "wpe.weight", GPUNN_SHAPE(s.positions, s.width), none);
    x = gpunn_dropout(gpunn_add(x, gpunn_slice(places, 0, 0, context, 1)), o->dropout);
    x = blocks(x, s, o->dropout, GPUNN_SHAPE(GPUNN_BATCH, context, s.width), attend_window, &w);
    x = gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH * context, s.width));
    net.logits = gpunn_linear(x, "lm_head", .no_bias = true, .weight = gpunn_find(net.model, "wte.weight"));
    net.loss = gpunn_cross_entropy(net.logits,
                                   gpunn_reshape(net.targets, GPUNN_SHAPE(GPUNN_BATCH * context)));
    if (net.loss) prepare_parameters(&net);
    return net;
}

typedef struct cache {
    const writer *w;
    shape         s;
    int           context;
} cache;

static gpunn_tensor *attend_cache(gpunn_tensor *x, int i, const void *net)
{
    const cache *c = net;
    const int    head = c->s.width / c->s.heads;
    gpunn_init   zeros = {GPUNN_INIT_ZEROS, 0, 0};
    /* q, and all keys and values so far, each head's together: [1, heads, tokens, head] */
    gpunn_tensor *part[3];
    x = gpunn_reshape(x, GPUNN_SHAPE(1, GPUNN_BATCH, 3, c->s.heads, head));
    for (int k = 0; k < 3; k++) {
        char name[64];
        snprintf(name, sizeof name, "h.%d.attn.%s", i, k == 1 ? "keys" : "values");
        part[k] = gpunn_reshape(gpunn_slice(x, 2, k, k + 1, 1),
                                GPUNN_SHAPE(1, GPUNN_BATCH, c->s.heads, head));
        part[k] = gpunn_permute(part[k], GPUNN_AXES(0, 2, 1, 3));
        if (k == 0) continue;
        gpunn_tensor *all = gpunn_state(c->w->model, name, GPUNN_SHAPE(1, c->s.heads, c->context, head),
                                        zeros);
        part[k] = gpunn_assign_at(all, 2, c->w->place, part[k]);
    }
    x = gpunn_scaled_dot_product_attention(part[0], part[1], part[2], .is_causal = true,
                                           .lengths = c->w->length);
    return gpunn_permute(x, GPUNN_AXES(0, 2, 1, 3));
}

static writer build_writer(gpunn_device *dev, const options *o, const gpt2 *net)
{
    shape  s = net->s;
    writer w = {
        .model = gpunn_model_create(dev, .precision = (gpunn_precision)o->precision, .inference = true)};
    const cache c = {&w, s, net->context};
    w.tokens = gpunn_input(w.model, "tokens", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    w.places = gpunn_input(w.model, "places", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    w.place = gpunn_input(w.model, "place", GPUNN_I64, GPUNN_SHAPE(0));
    w.length = gpunn_input(w.model, "length", GPUNN_I64, GPUNN_SHAPE(0));
    gpunn_tensor *x = gpunn_add(
        gpunn_embedding(w.tokens, "wte", .num_embeddings = s.vocabulary, .embedding_dim = s.width),
        gpunn_embedding(w.places, "wpe", .num_embeddings = s.positions, .embedding_dim = s.width));
    w.hidden = blocks(x, s, 0, GPUNN_SHAPE(GPUNN_BATCH, s.width), attend_cache, &c);
    w.draw = gpunn_input(w.model, "draw", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH));
    x = gpunn_linear(w.hidden, "lm_head", .no_bias = true, .weight = gpunn_find(w.model, "wte.weight"));
    w.next = sampling_token(x, w.draw, o->sample);
    return w;
}

/* The weights of net, by name. */
static bool take_weights(gpunn_device *dev, const writer *w, const gpt2 *net)
{
    bool good = w->next != NULL;
    for (int i = 0; good && i < gpunn_parameter_count(w->model); i++) {
        gpunn_tensor *to = gpunn_parameter_at(w->model, i),
                     *from = gpunn_find(net->model, gpunn_tensor_name(to));
        const size_t bytes = gpunn_tensor_bytes(to);
        void        *values = malloc(bytes);
        good = values && gpunn_read(from, values, bytes) == GPUNN_OK &&
               gpunn_write(to, values, bytes) == GPUNN_OK;
        free(values);
    }
    return check(dev, good);
}

/* ---- weights with Hugging Face's names: its Conv1D keeps them [in, out] -------------------------------- */
static bool is_turned(const char *name)
{
    return ends_with(name, "c_attn.weight") || ends_with(name, "c_proj.weight") ||
           ends_with(name, "c_fc.weight");
}

static void turn(const float *from, float *to, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) to[j * rows + i] = from[i * columns + j];
}

/* A parameter's values from the file, in *values; with or without "transformer." before its name. */
static bool read_parameter(gpunn_device *dev, const char *path, gpunn_tensor *p, float **values)
{
    const char  *name = gpunn_tensor_name(p);
    gpunn_shape  shape = gpunn_tensor_shape(p);
    gpunn_array  array = {0};
    char         prefixed[128], text[512];
    bool         turned = is_turned(name);
    int          rank = rank_of(shape);
    gpunn_status status = gpunn_read_safetensors(dev, path, name, &array);
    if (status == GPUNN_ERR_ARGUMENT) {
        gpunn_clear_error(dev);
        snprintf(prefixed, sizeof prefixed, "transformer.%s", name);
        status = gpunn_read_safetensors(dev, path, prefixed, &array);
    }
    if (status != GPUNN_OK) return check(dev, false);
    bool fits = array.dtype == GPUNN_F32 && array.rank == rank;
    for (int d = 0; fits && d < rank; d++) fits = array.dim[d] == shape.dim[turned ? rank - 1 - d : d];
    if (fits && (*values = malloc(array.bytes)) == NULL) fits = fail("out of memory");
    if (fits && turned)
        turn(array.data, *values, array.dim[0], array.dim[1]);
    else if (fits)
        memcpy(*values, array.data, array.bytes);
    if (!fits && array.data) {
        snprintf(text, sizeof text,
                 "%s of %.300s is [%lld, %lld], which does not fit this configuration and vocabulary ([%lld, "
                 "%lld])",
                 name, path, (long long)array.dim[0], (long long)(array.rank > 1 ? array.dim[1] : 1),
                 (long long)shape.dim[turned ? 1 : 0], (long long)(rank > 1 ? shape.dim[turned ? 0 : 1] : 1));
        (void)fail(text);
    }
    gpunn_array_free(dev, &array);
    return fits;
}

/* All or nothing. */
static bool load_weights(gpunn_device *dev, const gpt2 *net, const char *path)
{
    int     count = gpunn_parameter_count(net->model);
    float **values = calloc((size_t)count, sizeof *values);
    bool    good = values != NULL;
    for (int i = 0; good && i < count; i++)
        good = read_parameter(dev, path, gpunn_parameter_at(net->model, i), &values[i]);
    for (int i = 0; good && i < count; i++) {
        gpunn_tensor *p = gpunn_parameter_at(net->model, i);
        good = check(dev, gpunn_write(p, values[i], gpunn_tensor_bytes(p)) == GPUNN_OK);
    }
    for (int i = 0; values && i < count; i++) free(values[i]);
    free(values);
    return good;
}

static bool save_weights(gpunn_device *dev, const gpt2 *net, const char *path)
{
    int          count = gpunn_parameter_count(net->model);
    gpunn_array *arrays = calloc((size_t)count, sizeof *arrays);
    const char **names = calloc((size_t)count, sizeof *names);
    bool         good = arrays && names;
    for (int i = 0; good && i < count; i++) {
        gpunn_tensor *p = gpunn_parameter_at(net->model, i);
        gpunn_shape   shape = gpunn_tensor_shape(p);
        gpunn_array  *a = &arrays[i];
        float        *values = malloc(2 * gpunn_tensor_bytes(p));
        names[i] = gpunn_tensor_name(p);
        a->dtype = GPUNN_F32, a->rank = rank_of(shape), a->bytes = gpunn_tensor_bytes(p), a->data = values;
        for (int d = 0; d < a->rank; d++) a->dim[d] = shape.dim[is_turned(names[i]) ? a->rank - 1 - d : d];
        good = values && check(dev, gpunn_read(p, values, a->bytes) == GPUNN_OK);
        if (!good || !is_turned(names[i])) continue;
        float *copy = values + a->bytes / sizeof *values;
        turn(values, copy, shape.dim[0], shape.dim[1]);
        memcpy(values, copy, a->bytes);
    }
    good = good && check(dev, gpunn_write_safetensors(dev, path, names, arrays, count) == GPUNN_OK);
    for (int i = 0; arrays && i < count; i++) free(arrays[i].data);
    free(arrays);
    free(names);
    return good;
}

/* ---- text as tokens ------------------------------------------------------------------------------------ */
typedef struct corpus {
    tokenizer *pieces; /* NULL: bytes */
    int64_t   *tokens, count;
} corpus;

static bool encode(const corpus *c, const char *text, size_t bytes, int64_t **tokens, int64_t *count)
{
    token_list list = {0};
    bool       good = c->pieces == NULL || tokenizer_encode(c->pieces, text, bytes, &list);
    *count = (int64_t)(c->pieces ? list.count : bytes);
    *tokens = good ? malloc(((size_t)*count + 1) * sizeof **tokens) : NULL;
    for (int64_t i = 0; *tokens && i < *count; i++)
        (*tokens)[i] = c->pieces ? list.items[i].id : (unsigned char)text[i];
    token_list_free(&list);
    return *tokens ? true : fail("out of memory");
}

/* The built-in text counts, from one to ninety-nine in words, ten to a line. */
static char *count_in_words(size_t *bytes)
{
    static const char *const ones[] = {"",        "one",     "two",       "three",    "four",
                                       "five",    "six",     "seven",     "eight",    "nine",
                                       "ten",     "eleven",  "twelve",    "thirteen", "fourteen",
                                       "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
    static const char *const tens[] = {"",      "",      "twenty",  "thirty", "forty",
                                       "fifty", "sixty", "seventy", "eighty", "ninety"};
    enum { LAST = 99, LONGEST = 16 };
    char *text = malloc(LAST * LONGEST);
    *bytes = 0;
    for (int n = 1; text && n <= LAST; n++)
        *bytes += (size_t)snprintf(text + *bytes, LONGEST, "%s%s%s,%c", tens[n / 10],
                                   n > 20 && n % 10 ? "-" : "", ones[n < 20 ? n : n % 10],
                                   n % 10 ? ' ' : '\n');
    return text;
}

static bool read_corpus(const options *o, corpus *c)
{
    text_error error;
    char      *text;
    size_t     bytes;
    if (o->vocab == NULL && o->merges) return fail("--merges needs --vocab");
    if (o->vocab && (c->pieces = tokenizer_open(o->vocab, o->merges, false, &error)) == NULL)
        return fail(error.text);
    text = o->text ? text_read(o->text, (size_t)1 << 30, &bytes, &error) : count_in_words(&bytes);
    if (text == NULL) return fail(o->text ? error.text : "out of memory");
    bool good = encode(c, text, bytes, &c->tokens, &c->count);
    free(text);
    return good;
}

/* Batch `number`, of which each rank has one of its own. Which piece of the text a sample is depends on
 * nothing else, so resuming needs no place in the data. */
static bool write_batch(gpunn_device *dev, const gpt2 *net, const options *o, const corpus *c, int64_t number)
{
    number = number * gpunn_group_size(net->group) + gpunn_group_rank(net->group);
    size_t   length = (size_t)net->context, size = (size_t)o->batch * length * sizeof(int64_t);
    int64_t *tokens = malloc(size), *targets = malloc(size);
    bool     good = tokens && targets;
    for (int i = 0; good && i < o->batch; i++) {
        uint64_t at = sampling_mixed((uint64_t)o->seed + (uint64_t)(number * o->batch + i)) %
                      (uint64_t)(c->count - net->context);
        memcpy(tokens + (size_t)i * length, c->tokens + at, length * sizeof *tokens);
        memcpy(targets + (size_t)i * length, c->tokens + at + 1, length * sizeof *targets);
    }
    if (!good) (void)fail("out of memory");
    good = good && check(dev, gpunn_write(net->tokens, tokens, size) == GPUNN_OK &&
                                  gpunn_write(net->targets, targets, size) == GPUNN_OK);
    free(tokens);
    free(targets);
    return good;
}

/* ---- training ------------------------------------------------------------------------------------------ */
static double seconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* TFLOP/s that the device could do: as given, as its maker says of 16-bit products, or as a matrix product
 * makes here. */
static double peak_of(gpunn_device *dev, const options *o)
{
    static const struct {
        const char *name;
        double      peak;
    } known[] = {{"B200", 2250}, {"H200", 989}, {"H100", 989}, {"A100", 312},
                 {"4090", 165},  {"L40", 181},  {"L4", 121},   {"T4", 65}};
    enum { SIDE = 1024, TIMES = 10 };
    if (o->peak > 0) return (double)o->peak;
    for (size_t i = 0; o->precision >= (int)GPUNN_PRECISION_BF16 && i < sizeof known / sizeof *known; i++)
        if (strstr(gpunn_device_name(dev), known[i].name)) return known[i].peak;
    gpunn_model  *model = gpunn_model_create(dev, .precision = (gpunn_precision)o->precision);
    gpunn_tensor *a = gpunn_input(model, "a", GPUNN_F32, GPUNN_SHAPE(SIDE, SIDE)),
                 *product = gpunn_matmul(a, a);
    float *values = calloc(SIDE * SIDE, sizeof *values);
    double best = 0;
    bool   good = product && values && gpunn_write(a, values, SIDE * SIDE * sizeof *values) == GPUNN_OK;
    for (int i = 0; good && i < TIMES; i++) {
        double begin = seconds();
        good = gpunn_forward(&product, 1) == GPUNN_OK && gpunn_synchronize(dev) == GPUNN_OK;
        double rate = 2e-12 * SIDE * SIDE * SIDE / (seconds() - begin);
        if (rate > best) best = rate;
    }
    free(values);
    gpunn_model_destroy(model);
    return best;
}

/* Of a training step, for each token: two for each weight of a product forward and four backward, and
 * attention's own. */
static double flops_of_token(const gpt2 *net)
{
    double width = net->s.width, weights = 12 * net->s.layers * width * width + width * net->s.vocabulary;
    return 6 * weights + 12 * net->s.layers * width * net->context;
}

/* Warm-up, then half a cosine down to a tenth. */
static double rate_at(const options *o, int64_t step)
{
    if (step < o->warmup) return (double)o->lr * (double)(step + 1) / o->warmup;
    double done = (double)(step - o->warmup) / (o->steps > o->warmup ? o->steps - o->warmup : 1);
    return (double)o->lr * (0.55 + 0.45 * cos(3.14159265358979 * (done < 1 ? done : 1)));
}

static bool train_step(gpunn_device *dev, const gpt2 *net, gpunn_optimizer *adam, const options *o,
                       const corpus *c, int64_t step, double *loss)
{
    bool good = true;
    gpunn_set_lr(adam, (float)rate_at(o, step));
    *loss = 0;
    for (int i = 0; good && i < o->accumulate; i++) {
        good = write_batch(dev, net, o, c, step * o->accumulate + i) &&
               check(dev, gpunn_train_step(adam, net->loss, .accumulate = o->accumulate) == GPUNN_OK);
        if (good) *loss += (double)gpunn_item(net->loss) / o->accumulate;
    }
    return good;
}

static bool train(gpunn_device *dev, const gpt2 *net, gpunn_optimizer *adam, const options *o,
                  const corpus *c)
{
    double  peak = peak_of(dev, o), begin = seconds(), loss = 0;
    int64_t first = gpunn_step_count(adam), since = first;
    curves  by_line = {.title = "loss", .each = o->every};
    for (int64_t step = first; step < o->steps; step++) {
        if (!train_step(dev, net, adam, o, c, step, &loss)) return false;
        if ((step + 1) % o->every && step + 1 < o->steps) continue;
        const int ranks = gpunn_group_size(net->group);
        double    spent = seconds() - begin,
               tokens = (double)((step + 1 - since) * o->batch * o->accumulate * net->context * ranks);
        if (gpunn_group_rank(net->group) == 0)
            printf("step %" PRId64 " loss %.6f lr %.3g %.0f tokens/s, %.1f %% of %.3g TFLOP/s\n", step + 1,
                   loss, (double)gpunn_get_lr(adam), tokens / spent,
                   100 * tokens / spent * flops_of_token(net) / (peak * ranks * 1e12), peak * ranks);
        fflush(stdout);
        curves_add(&by_line, (float)loss, NAN);
        if (o->checkpoint && !check(dev, gpunn_checkpoint_save(adam, NULL, o->checkpoint) == GPUNN_OK))
            return false;
        begin = seconds();
        since = step + 1;
    }
    if (gpunn_group_rank(net->group) == 0) curves_show(&by_line, 1);
    return true;
}

/* ---- writing on ---------------------------------------------------------------------------------------- */
static void print_token(const corpus *c, int64_t token)
{
    size_t      bytes = 1;
    char        byte = (char)token;
    const char *text = c->pieces ? tokenizer_text(c->pieces, token, &bytes) : &byte;
    if (text) fwrite(text, 1, bytes, stdout);
}

/* Runs the tokens from `from` to `to`, whose keys and values go to the cache. */
static bool advance(gpunn_device *dev, const writer *w, const int64_t *tokens, int64_t from, int64_t to,
                    gpunn_tensor *out)
{
    const size_t bytes = (size_t)(to - from) * sizeof *tokens;
    int64_t     *places = malloc(bytes);
    for (int64_t i = from; places && i < to; i++) places[i - from] = i;
    bool good = places && gpunn_write(w->tokens, tokens + from, bytes) == GPUNN_OK &&
                gpunn_write(w->places, places, bytes) == GPUNN_OK &&
                gpunn_write(w->place, &from, sizeof from) == GPUNN_OK &&
                gpunn_write(w->length, &to, sizeof to) == GPUNN_OK && gpunn_forward(&out, 1) == GPUNN_OK;
    free(places);
    return check(dev, good);
}

/* Writes on behind tokens[0 .. used). Where the context is full, its later half goes on. */
static bool write_on(gpunn_device *dev, const writer *w, const gpt2 *net, const options *o, const corpus *c,
                     int64_t *tokens, int64_t used)
{
    const int64_t context = net->context;
    bool          good = true;
    double        begin = seconds();
    for (int64_t made = 0, done = 0; good && made < o->generate; made++) {
        if (used > context) {
            memmove(tokens, tokens + used - (context + 1) / 2, (size_t)((context + 1) / 2) * sizeof *tokens);
            used = (context + 1) / 2;
            done = 0;
        }
        if (done < used - 1) good = advance(dev, w, tokens, done, used - 1, w->hidden);
        if (made == 0) begin = seconds();
        const float draw = sampling_draw((uint64_t)o->seed + (uint64_t)made);
        good = good && check(dev, gpunn_write(w->draw, &draw, sizeof draw) == GPUNN_OK) &&
               advance(dev, w, tokens, used - 1, used, w->next) &&
               check(dev, gpunn_read(w->next, tokens + used, sizeof *tokens) == GPUNN_OK);
        if (!good) break;
        done = used++;
        print_token(c, tokens[used - 1]);
        fflush(stdout);
    }
    if (good) printf("\n");
    if (good && o->times) fprintf(stderr, "%.3f ms a token\n", 1000 * (seconds() - begin) / o->generate);
    return good;
}

static bool generate(gpunn_device *dev, const gpt2 *net, const options *o, const corpus *c)
{
    int64_t  length = 0, *prompt = NULL, context = net->context;
    int64_t *tokens = calloc((size_t)context + 1, sizeof *tokens);
    bool     good = tokens && encode(c, o->prompt, strlen(o->prompt), &prompt, &length);
    if (good && length == 0) good = fail("the prompt is empty; give --prompt some text");
    int64_t from = good && length > context ? length - context : 0;
    for (int64_t i = from; good && i < length; i++) tokens[i - from] = prompt[i];
    for (int64_t i = 0; good && i < length; i++) print_token(c, prompt[i]);
    if (good) {
        writer w = build_writer(dev, o, net);
        good = take_weights(dev, &w, net) && write_on(dev, &w, net, o, c, tokens, length - from);
        gpunn_model_destroy(w.model);
    }
    free(prompt);
    free(tokens);
    return good;
}

/* Evaluates the first batch and writes its logits. */
static bool write_logits(gpunn_device *dev, const gpt2 *net, const options *o, const corpus *c)
{
    const char *const name = "logits";
    gpunn_array       a = {.dtype = GPUNN_F32, .rank = 3, .dim = {o->batch, net->context, net->s.vocabulary}};
    if (!write_batch(dev, net, o, c, 0)) return false;
    if (!check(dev, gpunn_forward((gpunn_tensor *const *)&net->logits, 1) == GPUNN_OK)) return false;
    a.bytes = gpunn_tensor_bytes(net->logits);
    a.data = malloc(a.bytes);
    bool good = a.data && check(dev, gpunn_read(net->logits, a.data, a.bytes) == GPUNN_OK) &&
                check(dev, gpunn_write_safetensors(dev, o->logits, &name, &a, 1) == GPUNN_OK);
    free(a.data);
    return good;
}

/* ---- options ------------------------------------------------------------------------------------------- */
static void parse(int argc, char **argv, options *o)
{
    const option known[] = {
        {"--config tiny|124M", "the model's size", .choice = &o->large},
        {"--text FILE", "what to learn; default: a built-in text", .text = &o->text},
        {"--vocab FILE", "tokenizer.json, or vocab.json with --merges; default: tokens are bytes",
         .text = &o->vocab},
        {"--merges merges.txt", "GPT-2's own merges, with --vocab", .text = &o->merges},
        {"--weights FILE", "weights to start from, with Hugging Face's names (safetensors)",
         .text = &o->weights},
        {"--save FILE", "where the trained weights go, with the same names", .text = &o->save,
         .written = true},
        {"--steps N", "training steps in all; 0: none", .number = &o->steps},
        {"--batch N", "sequences at once", .number = &o->batch, .lowest = 1},
        {"--context N", "tokens of a sequence; default 128, or what the model takes", .number = &o->context,
         .lowest = 1},
        {"--accumulate N", "batches for a step", .number = &o->accumulate, .lowest = 1},
        {"--lr X", "AdamW's highest learning rate; default 3e-3, 124M: 6e-4", .real = &o->lr, .lowest = 1e-9},
        {"--warmup N", "steps in which the rate rises; then half a cosine down to a tenth",
         .number = &o->warmup},
        {"--decay X", "weight decay", .real = &o->decay},
        {"--clip X", "largest norm of the gradient; 0: none", .real = &o->clip},
        {"--dropout X", "everywhere; default 0", .real = &o->dropout, .highest = 0.99},
        {"--precision f32|tf32|bf16|f16", "how a GPU computes, and how weights are kept to generate",
         .choice = &o->precision},
        {"--checkpoint FILE", "file from which --resume goes on, written as lines are printed",
         .text = &o->checkpoint, .written = true},
        {"--resume", "goes on where the checkpoint stands", .flag = &o->resume},
        {"--every N", "steps between two lines, and two checkpoints", .number = &o->every, .lowest = 1},
        {"--peak X", "TFLOP/s that the device could do; default: known, or measured", .real = &o->peak},
        {"--generate N", "tokens to write at the end", .number = &o->generate},
        {"--prompt TEXT", "how the generated text begins", .text = &o->prompt},
        {"--temperature X", "of the generated text; 0: always the likeliest token",
         .real = &o->sample.temperature},
        {"--top-k N", "only the N likeliest tokens are drawn from", .number = &o->sample.top_k, .lowest = 1},
        {"--top-p X", "and of these the fewest that have this share of their probability",
         .real = &o->sample.top_p, .lowest = 1e-6, .highest = 1},
        {"--times", "also tells how long a generated token took", .flag = &o->times},
        {"--seed N", "of initial weights, batches, dropout and drawing", .number = &o->seed},
        {"--threads N", "of the CPU; default 0: all processors", .number = &o->threads},
        {"--cpu", "even where there is a GPU", .flag = &o->cpu},
        {"--logits FILE", "also writes the first batch's logits (safetensors)", .text = &o->logits,
         .written = true}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
}

static void log_line(void *user, gpunn_log_level level, const char *message)
{
    (void)user;
    if (level != GPUNN_LOG_ERROR) fprintf(stderr, "%s\n", message);
}

static bool run(gpunn_device *dev, const options *o, const corpus *c, shape s)
{
    int              context = o->context ? o->context : s.positions < 128 ? s.positions : 128;
    gpt2             net = build(dev, o, s, context);
    gpunn_optimizer *adam = net.loss ? gpunn_adamw(net.model, .lr = o->lr, .beta1 = 0.9f, .beta2 = 0.95f,
                                                   .weight_decay = o->decay > 0 ? o->decay : GPUNN_ZERO)
                                     : NULL;
    bool             good = check(dev, adam != NULL);
    if (good) gpunn_set_clip_norm(adam, o->clip);
    if (good) good = check(dev, (net.group = gpunn_group_open(dev)) != NULL);
    const bool first = gpunn_group_rank(net.group) == 0;
    if (good && o->weights) good = load_weights(dev, &net, o->weights);
    if (good) good = check(dev, gpunn_distribute(adam, net.group) == GPUNN_OK);
    if (good && o->resume) good = check(dev, gpunn_checkpoint_load(adam, NULL, o->checkpoint) == GPUNN_OK);
    if (good && first && gpunn_group_size(net.group) > 1) printf("%d ranks\n", gpunn_group_size(net.group));
    if (good && first)
        printf("%d layers of width %d, %d tokens, context %d, on %s\n", s.layers, s.width, s.vocabulary,
               context, gpunn_device_name(dev));
    if (good && o->logits && first) good = write_logits(dev, &net, o, c);
    if (good && gpunn_step_count(adam) < o->steps) good = train(dev, &net, adam, o, c);
    if (good && o->save && first) good = save_weights(dev, &net, o->save);
    if (good && o->generate > 0 && first) good = generate(dev, &net, o, c);
    gpunn_optimizer_destroy(adam);
    gpunn_model_destroy(net.model);
    gpunn_group_close(net.group);
    return good;
}

int main(int argc, char **argv)
{
    options o = {.batch = 8,
                 .accumulate = 1,
                 .generate = 200,
                 .every = 20,
                 .steps = 400,
                 .warmup = 20,
                 .decay = 0.1f,
                 .clip = 1,
                 .sample = {.temperature = 0.8f, .top_p = 1, .top_k = 40},
                 .prompt = "forty-one, forty-two, ",
                 .seed = 1};
    shape   s = {4, 128, 4, 128, 256};
    corpus  c = {0};
    char    text[256];
    parse(argc, argv, &o);
    bool good = read_corpus(&o, &c);
    if (o.large) s = (shape){12, 768, 12, 1024, 50257};
    if (o.lr == 0) o.lr = o.large ? 6e-4f : 3e-3f;
    if (!o.large && c.pieces) s.vocabulary = c.pieces->count;
    if (good && o.resume && o.checkpoint == NULL)
        good = fail("--resume needs --checkpoint, which names the file to continue from");
    if (good && o.context > s.positions) {
        snprintf(text, sizeof text, "--context %d is longer than this configuration's %d positions",
                 o.context, s.positions);
        good = fail(text);
    }
    if (good && c.pieces && c.pieces->count > s.vocabulary) {
        snprintf(text, sizeof text, "the vocabulary has %d pieces and the model %d: it does not fit",
                 c.pieces->count, s.vocabulary);
        good = fail(text);
    }
    if (good && c.count <= (o.context ? o.context : 128)) {
        snprintf(text, sizeof text,
                 "the text has %lld tokens; more than the context is needed: give a longer one or --context",
                 (long long)c.count);
        good = fail(text);
    }
    gpunn_device *dev = good ? gpunn_device_open(.type = o.cpu ? GPUNN_DEVICE_CPU : GPUNN_DEVICE_AUTO,
                                                 .index = GPUNN_LOCAL_RANK, .seed = (uint64_t)o.seed,
                                                 .threads = o.threads, .log_fn = log_line)
                             : NULL;
    if (good && dev == NULL) good = fail(gpunn_error(NULL));
    good = good && run(dev, &o, &c, s);
    gpunn_device_close(dev);
    free(c.tokens);
    if (c.pieces) tokenizer_free(c.pieces);
    return good ? 0 : 1;
}
