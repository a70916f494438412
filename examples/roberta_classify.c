/* roberta_classify.c - fine-tunes RoBERTa for the classification of texts (Liu et al., 2019), 28 classes
 * as GoEmotions has.
 *
 * Shows: byte-level BPE, Hugging Face's weights with a new head, AdamW with warm-up and linear decay,
 *        clipping, mixed precision, macro-F1, checkpoints from which a run goes on bit for bit; texts of
 *        like length in batches that are no longer than they.
 * Build: cc -O3 -march=native -I. examples/roberta_classify.c -o roberta_classify -lm
 *        nvcc -O3 -arch=native -I. examples/roberta_classify.c gpunn_cuda.cu -o roberta_classify
 * Data:  a folder with config.json, vocab.json, merges.txt and model.safetensors,
 *        https://huggingface.co/FacebookAI/roberta-base; CSV files (RFC 4180) of label and text, or with
 *        these two among the columns that a header names; labels are numbers from 0 on or the names of
 *        --labels
 * Run:   ./roberta_classify --model FOLDER --train FILE.csv [--validation FILE.csv, else each tenth line of
 *            the other]
 *        --help explains all options
 * Expect: without files, made-up words of 28 classes and a tiny model with a vocabulary of its own: over
 *         95 % after three epochs.
 * Time:  about three seconds on two cores without files.
 * Next:  --train FILE.csv with texts of your own; --checkpoint FILE and --resume. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"

#include "bert.h"
#include "csv.h"
#include "options.h"
#include "tokenizer.h"

enum { MAX_DATA = 1 << 30, MAX_CLASSES = 1 << 16, SYNTHETIC_TEXTS = 3000, WORDS_PER_CLASS = 3 };

typedef struct options {
    const char *model, *config, *vocab, *merges, *weights, *train, *validation, *labels, *checkpoint, *save,
        *text;
    int size, precision, device, classes, seq_length, batch, epochs, max_steps, seed, checkpoint_every,
        stop_after, log;
    float lr, warmup, weight_decay, clip, dropout;
    bool  random, no_shuffle, resume;
} options;

typedef struct dataset {
    int32_t *ids; /* of all texts, one behind the other */
    size_t   used, room;
    size_t  *begin; /* count + 1 */
    int64_t *labels, *lengths;
    size_t   count, capacity;
    size_t   cut; /* texts that were too long */
    int      length;
    int64_t  padding;
} dataset;

typedef struct job {
    options          o;
    bert_config      config;
    tokenizer       *vocabulary;
    token_list       pieces; /* of the text at hand */
    char            *names;  /* the file of the classes' names, each ending at 0 */
    const char     **name;   /* by class; NULL: none */
    dataset          train, validation;
    gpunn_device    *dev;
    gpunn_model     *model;
    gpunn_tensor    *tokens, *mask, *label, *logits, *loss;
    gpunn_optimizer *adamw;
    gpunn_loader    *trainer, *tester;
} job;

static void parse(options *o, int argc, char **argv)
{
    const option known[] = {
        {"--model FOLDER", "folder of config.json, vocab.json, merges.txt and model.safetensors",
         .text = &o->model},
        {"--train FILE.csv", "labels and texts to learn; default: made-up ones", .text = &o->train},
        {"--validation FILE.csv", "labels and texts to test with; default: each tenth line of the others",
         .text = &o->validation},
        {"--config FILE", "in place of the folder's config.json", .text = &o->config},
        {"--vocab FILE", "in place of the folder's vocab.json; without --merges a tokenizer.json",
         .text = &o->vocab},
        {"--merges FILE", "in place of the folder's merges.txt", .text = &o->merges},
        {"--weights FILE", "in place of the folder's model.safetensors", .text = &o->weights},
        {"--random", "weights without meaning to start from", .flag = &o->random},
        {"--size " BERT_SIZES, "the model's, where there is no config.json", .choice = &o->size},
        {"--classes N", "how many there are", .number = &o->classes, .lowest = 2, .highest = MAX_CLASSES},
        {"--labels FILE", "file with a class's name in each line; default: labels are numbers",
         .text = &o->labels},
        {"--seq-length N", "tokens of a text, longer ones are cut; default 128, 32 for the made-up ones",
         .number = &o->seq_length, .lowest = 3},
        {"--batch N", "texts of a step", .number = &o->batch, .lowest = 1},
        {"--epochs N", "passes over the training texts; 0: none", .number = &o->epochs},
        {"--max-steps N", "training ends after so many", .number = &o->max_steps, .lowest = 1},
        {"--lr X", "AdamW's highest learning rate; default 2e-5, random weights: 1e-3", .real = &o->lr},
        {"--warmup X", "share of the steps in which the rate rises; then it falls to 0", .real = &o->warmup,
         .highest = 0.99},
        {"--weight-decay X", "AdamW's", .real = &o->weight_decay},
        {"--clip X", "largest norm of the gradient; 0: none", .real = &o->clip},
        {"--dropout X", "everywhere; default: config.json's, or 0.1", .real = &o->dropout, .highest = 0.99},
        {"--seed N", "of initial weights, order and dropout", .number = &o->seed},
        {"--no-shuffle", "takes the texts in their order", .flag = &o->no_shuffle},
        {"--precision f32|tf32|bf16|f16", "how a GPU computes", .choice = &o->precision},
        {"--device auto|cpu|cuda", "where to run", .choice = &o->device},
        {"--checkpoint FILE", "file from which --resume goes on", .text = &o->checkpoint, .written = true},
        {"--checkpoint-every N", "steps between two; default: at each epoch's end",
         .number = &o->checkpoint_every, .lowest = 1},
        {"--resume", "goes on where the checkpoint stands, bit for bit", .flag = &o->resume},
        {"--stop-after N", "steps of this run, for one in pieces", .number = &o->stop_after, .lowest = 1},
        {"--save FILE", "where the trained weights go, with Hugging Face's names (safetensors)",
         .text = &o->save, .written = true},
        {"--log N", "steps between two lines", .number = &o->log, .lowest = 1},
        {"--text TEXT", "is classified at the end", .text = &o->text}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
}

/* ---- data ---- */

/* A text between <s> and </s>, cut where it is too long. */
static bool add_text(job *j, dataset *d, int64_t label, const char *text, size_t bytes, text_error *error)
{
    if (d->count == d->capacity) {
        size_t   capacity = d->capacity ? 2 * d->capacity : 1024;
        size_t  *begin = realloc(d->begin, (capacity + 1) * sizeof *begin);
        int64_t *labels = realloc(d->labels, capacity * sizeof *labels);
        int64_t *lengths = realloc(d->lengths, capacity * sizeof *lengths);
        if (begin) d->begin = begin;
        if (labels) d->labels = labels;
        if (lengths) d->lengths = lengths;
        if (begin == NULL || labels == NULL || lengths == NULL)
            return text_fail(error, "out of memory: there are too many texts");
        d->capacity = capacity;
    }
    size_t most = (size_t)j->o.seq_length;
    if (d->room - d->used < most) {
        size_t   room = 2 * d->room + most;
        int32_t *ids = realloc(d->ids, room * sizeof *ids);
        if (ids == NULL) return text_fail(error, "out of memory: there is too much text");
        d->ids = ids;
        d->room = room;
    }
    j->pieces.count = 0;
    if (!tokenizer_encode(j->vocabulary, text, bytes, &j->pieces))
        return text_fail(error, "out of memory: a text is too long");
    d->cut += j->pieces.count > most - 2;
    d->begin[d->count] = d->used;
    d->labels[d->count] = label;
    d->ids[d->used++] = tokenizer_id(j->vocabulary, "<s>");
    for (size_t i = 0; i < j->pieces.count && i < most - 2; i++) d->ids[d->used++] = j->pieces.items[i].id;
    d->ids[d->used++] = tokenizer_id(j->vocabulary, "</s>");
    d->lengths[d->count] = (int64_t)(d->used - d->begin[d->count]);
    d->begin[++d->count] = d->used;
    return true;
}

static void free_data(dataset *d)
{
    free(d->ids);
    free(d->begin);
    free(d->labels);
    free(d->lengths);
}

/* The class that a label names; -1: none. */
static int64_t class_of(const job *j, const char *label, size_t bytes)
{
    char text[32], *end;
    for (int c = 0; j->name && c < j->o.classes; c++)
        if (j->name[c] && strlen(j->name[c]) == bytes && memcmp(j->name[c], label, bytes) == 0) return c;
    if (bytes == 0 || bytes >= sizeof text || label[0] < '0' || label[0] > '9') return -1;
    memcpy(text, label, bytes);
    text[bytes] = 0;
    long c = strtol(text, &end, 10);
    return *end == 0 && c < j->o.classes ? c : -1;
}

/* Whether the first record names its columns, "label" and "text" among them or "label" and one more; then
 * where they are. */
static bool read_header(const csv_field *field, int fields, int *label, int *text)
{
    if (fields < 2 || fields > CSV_MAX_COLUMNS) return false;
    const int l = csv_column(field, fields, "label"), t = csv_column(field, fields, "text");
    if (l < 0 || (t < 0 && (l != 0 || fields != 2))) return false;
    *label = l;
    *text = t < 0 ? 1 : t;
    return true;
}

/* Each record of label and text; broken ones are counted, and the first one is named. rest: takes each tenth,
 * if there is no other file for it. */
static bool read_csv(job *j, const char *path, dataset *d, dataset *rest, text_error *error)
{
    size_t     bytes, records = 0, broken = 0;
    char      *text = text_read(path, MAX_DATA, &bytes, error);
    text_error first;
    csv_field  field[CSV_MAX_COLUMNS];
    int        width = 2, at_label = 0, at_text = 1;
    if (text == NULL) return false;
    bool good = strlen(text) == bytes ||
                text_fail(error, "'%s' holds a zero byte, so it is not a text", path);
    csv c = csv_begin(text);
    for (int fields; good && (fields = csv_next(&c, field, CSV_MAX_COLUMNS)) != 0;) {
        if (c.line == 1 && read_header(field, fields, &at_label, &at_text)) {
            width = fields;
            continue;
        }
        const csv_field *name = &field[at_label], *said = &field[at_text];
        int64_t          label = fields == width ? class_of(j, name->text, name->bytes) : -1;
        records++;
        if (label >= 0) {
            good = add_text(j, rest && records % 10 == 0 ? rest : d, label, said->text, said->bytes, error);
            continue;
        }
        if (broken++) continue;
        if (fields < 0)
            text_fail(&first, "line %d: %s", c.line, CSV_BROKEN);
        else if (fields == 1 && csv_other_separator(&c, field, &first))
            continue;
        else if (fields != width)
            text_fail(&first, "line %d has %d field%s, but needs %d", c.line, fields, fields == 1 ? "" : "s",
                      width);
        else
            text_fail(&first, "line %d: the label '%.*s' is not a class", c.line,
                      name->bytes > 30 ? 30 : (int)name->bytes, name->text);
    }
    free(text);
    if (broken)
        fprintf(stderr, "roberta_classify: %s: %zu of %zu records are broken and left out; the first: %s\n",
                path, broken, records, first.text);
    return good && (d->count > 0 || text_fail(error, "'%s' has no record of label and text", path));
}

/* ---- what is built in: words that nobody knows, three for each class, and a vocabulary that has them whole
 * -- */

static const char *const common_words[] = {"the",  "a",    "of",   "and",  "to",   "in",   "it",   "is",
                                           "was",  "so",   "not",  "that", "this", "with", "they", "we",
                                           "have", "said", "from", "one",  "all",  "by",   "but",  "what"};
enum { COMMON_WORDS = sizeof common_words / sizeof *common_words };

/* Word number i: a common one, then those of the classes, syllable by syllable. */
static void word_of(int i, char word[16])
{
    if (i < COMMON_WORDS) {
        (void)snprintf(word, 16, " %s", common_words[i]);
        return;
    }
    i -= COMMON_WORDS;
    size_t n = 0;
    word[n++] = ' ';
    for (int left = i + 70 * 70; left > 0; left /= 70) {
        word[n++] = "bdfgklmnprstvz"[left % 70 / 5];
        word[n++] = "aeiou"[left % 5];
    }
    word[n] = 0;
}

/* vocab.json and merges.txt of the special pieces, the bytes, and each word letter by letter. */
static tokenizer *built_in_vocabulary(int classes, text_error *error)
{
    static const char special[] = "{\"<s>\":0,\"<pad>\":1,\"</s>\":2,\"<unk>\":3,\"<mask>\":4";
    int               words = COMMON_WORDS + WORDS_PER_CLASS * classes, id = 5;
    size_t            room = 16384 + (size_t)words * 16 * 40;
    char *vocab = malloc(room), *merges = malloc(room), *to = vocab, *merge = merges, word[16], other[16];
    if (vocab == NULL || merges == NULL) {
        free(vocab);
        free(merges);
        text_fail(error, "out of memory");
        return NULL;
    }
    to += sprintf(to, "%s", special);
    for (int byte = 0; byte < 256; byte++)
        to += sprintf(to, ",\"\\u%04x\":%d", tokenizer__byte_character(byte), id++);
    for (int w = 0; w < words; w++) {
        word_of(w, word);
        for (int n = 2; n <= (int)strlen(word); n++) {
            bool known = false;
            for (int before = 0; before < w && !known; before++) {
                word_of(before, other);
                known = strncmp(word, other, (size_t)n) == 0;
            }
            if (known) continue;
            to += sprintf(to, ",\"\\u0120%.*s\":%d", n - 1, word + 1, id++);
            merge += sprintf(merge, "\xc4\xa0%.*s %c\n", n - 2, word + 1, word[n - 1]);
        }
    }
    (void)sprintf(to, "}");
    return tokenizer_bpe_of(vocab, "the built-in vocabulary", merges, (size_t)(merge - merges), "its merges",
                            error);
}

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

/* Texts of common words with two words of their class; each tenth is for validation. */
static bool make_data(job *j, text_error *error)
{
    uint64_t state = (uint64_t)j->o.seed + 1;
    for (int i = 0; i < SYNTHETIC_TEXTS; i++) {
        char text[256], word[16];
        int  label = (int)draw(&state, (uint32_t)j->o.classes), words = 6 + (int)draw(&state, 8);
        int  own[2] = {(int)draw(&state, (uint32_t)words), (int)draw(&state, (uint32_t)words)};
        text[0] = 0;
        for (int k = 0; k < words; k++) {
            bool of_class = k == own[0] || k == own[1];
            word_of(of_class ? COMMON_WORDS + WORDS_PER_CLASS * label + (int)draw(&state, WORDS_PER_CLASS)
                             : (int)draw(&state, COMMON_WORDS),
                    word);
            strcat(text, word);
        }
        if (!add_text(j, i % 10 == 9 ? &j->validation : &j->train, label, text, strlen(text), error))
            return false;
    }
    return true;
}

/* ---- the network ---- */

static float or_zero(float x)
{
    return x > 0 ? x : (float)GPUNN_ZERO;
}

static bool build(job *j, gpunn_precision precision, text_error *error)
{
    const bert_config *c = &j->config;
    gpunn_model       *m = j->model = gpunn_model_create(j->dev, .precision = precision);
    int                hidden = c->hidden_size;
    int64_t            length = bert_length(m, j->o.seq_length);
    j->tokens = gpunn_input(m, "tokens", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, length));
    j->mask = gpunn_input(m, "mask", GPUNN_BOOL, GPUNN_SHAPE(GPUNN_BATCH, 1, 1, length));
    j->label = gpunn_input(m, "label", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    gpunn_tensor *h = bert_encoder(c, m, j->tokens, NULL, j->mask, length);
    h = gpunn_reshape(gpunn_slice(h, 1, 0, 1, 1), GPUNN_SHAPE(GPUNN_BATCH, hidden)); /* of <s> */
    h = gpunn_tanh(
        gpunn_linear(gpunn_dropout(h, c->hidden_dropout_prob), "classifier.dense", .out_features = hidden));
    j->logits = gpunn_linear(gpunn_dropout(h, c->hidden_dropout_prob), "classifier.out_proj",
                             .out_features = j->o.classes);
    j->loss = gpunn_cross_entropy(j->logits, j->label);
    j->adamw = gpunn_adamw(m, .lr = or_zero(j->o.lr), .weight_decay = or_zero(j->o.weight_decay));
    if (gpunn_last_status(j->dev) == GPUNN_OK) (void)bert_init(m);
    for (int i = 0; i < gpunn_parameter_count(m) && gpunn_last_status(j->dev) == GPUNN_OK; i++) {
        gpunn_tensor *t = gpunn_parameter_at(m, i);
        if (gpunn_tensor_shape(t).dim[1] == 0) (void)gpunn_set_decay(t, false); /* biases and layer norms */
    }
    return gpunn_last_status(j->dev) == GPUNN_OK || text_fail(error, "%s", gpunn_error(j->dev));
}

/* Sample number i as the network's inputs, as long as the longest. */
static gpunn_status load(void *user, int64_t i, void *const *sample)
{
    const dataset *d = user;
    int64_t       *tokens = sample[0];
    uint8_t       *mask = sample[1];
    size_t         begin = d->begin[i], count = d->begin[i + 1] - begin;
    for (size_t k = 0; k < (size_t)d->length; k++) {
        tokens[k] = k < count ? d->ids[begin + k] : d->padding;
        mask[k] = k < count;
    }
    *(int64_t *)sample[2] = d->labels[i];
    return GPUNN_OK;
}

static gpunn_loader *make_loader(job *j, dataset *d, bool shuffle)
{
    d->length = j->o.seq_length;
    d->padding = j->config.pad_token_id;
    return gpunn_loader_create(j->model,
                               .fields = {{.input = j->tokens}, {.input = j->mask}, {.input = j->label}},
                               .count = (int64_t)d->count, .batch_size = j->o.batch, .shuffle = shuffle,
                               .load = load, .user = d, .workers = 1, .lengths = d->lengths);
}

/* Accuracy, and F1 as the mean over the classes that occur, as labels or as answers. */
static bool evaluate(job *j, const char *when, text_error *error)
{
    int     classes = j->o.classes, occurring = 0;
    size_t *right = calloc(3 * (size_t)classes, sizeof *right), *said = right + classes,
           *true_ = said + classes;
    float        *logits = malloc((size_t)j->o.batch * (size_t)classes * sizeof *logits);
    double        loss = 0, f1 = 0;
    size_t        done = 0, all = 0;
    bool          good = right && logits;
    gpunn_tensor *outputs[2] = {j->logits, j->loss};
    while (good && gpunn_next(j->tester)) {
        int n = gpunn_loader_batch_size(j->tester);
        if (gpunn_forward(outputs, 2) != GPUNN_OK ||
            gpunn_read(j->logits, logits, (size_t)n * (size_t)classes * sizeof *logits) != GPUNN_OK)
            break;
        loss += n * (double)gpunn_item(j->loss);
        for (int i = 0; i < n; i++, done++) {
            const float *row = logits + (size_t)i * (size_t)classes;
            int          best = 0;
            for (int c = 1; c < classes; c++)
                if (row[c] > row[best]) best = c;
            said[best]++;
            true_[j->validation.labels[done]]++;
            right[best] += best == j->validation.labels[done];
            all += best == j->validation.labels[done];
        }
    }
    for (int c = 0; c < classes && good; c++) {
        if (said[c] + true_[c] == 0) continue;
        occurring++;
        f1 += 2.0 * (double)right[c] / (double)(said[c] + true_[c]);
    }
    free(right);
    free(logits);
    if (!good) return text_fail(error, "out of memory");
    if (gpunn_last_status(j->dev) != GPUNN_OK) return text_fail(error, "%s", gpunn_error(j->dev));
    printf("%s: loss %.6g, accuracy %.2f %%, macro-F1 %.4f on %zu texts\n", when, loss / (double)done,
           100.0 * (double)all / (double)done, f1 / occurring, done);
    return true;
}

static bool train(job *j, text_error *error)
{
    int64_t batches = gpunn_loader_batches(j->trainer), total = batches * j->o.epochs, run = 0;
    if (j->o.max_steps && j->o.max_steps < total) total = j->o.max_steps;
    int64_t      warmup = (int64_t)((double)j->o.warmup * (double)total), step = 0;
    gpunn_status status = gpunn_set_schedule(j->adamw, .type = GPUNN_SCHEDULE_LINEAR, .total_steps = total,
                                             .warmup_steps = warmup);
    if (status == GPUNN_OK && j->o.resume)
        status = gpunn_checkpoint_load(j->adamw, j->trainer, j->o.checkpoint);
    double begin = bert_seconds();
    bool   good = true;
    for (step = gpunn_step_count(j->adamw);
         status == GPUNN_OK && good && step < total && (!j->o.stop_after || run < j->o.stop_after);) {
        if (!gpunn_next(j->trainer)) {
            char when[48];
            (void)snprintf(when, sizeof when, "epoch %lld", (long long)(step / batches));
            if ((status = gpunn_last_status(j->dev)) == GPUNN_OK) good = evaluate(j, when, error);
            continue;
        }
        float lr = gpunn_get_lr(j->adamw);
        status = gpunn_train_step(j->adamw, j->loss);
        if (status == GPUNN_OK) status = gpunn_schedule_step(j->adamw, 0);
        step++, run++;
        if (status == GPUNN_OK && (step % j->o.log == 0 || step == total)) {
            double loss = (double)gpunn_item(j->loss), seconds = bert_seconds() - begin;
            printf("step %lld of %lld: loss %.7g, lr %.3g, %.1f texts a second\n", (long long)step,
                   (long long)total, loss, (double)lr, (double)run * j->o.batch / seconds);
        }
        bool due = j->o.checkpoint && (step == total || (j->o.stop_after && run == j->o.stop_after) ||
                                       (j->o.checkpoint_every && step % j->o.checkpoint_every == 0));
        if (status == GPUNN_OK && due) status = gpunn_checkpoint_save(j->adamw, j->trainer, j->o.checkpoint);
    }
    if (!good) return false;
    if (status != GPUNN_OK) return text_fail(error, "%s", gpunn_error(j->dev));
    return evaluate(j, "at the end", error);
}

static bool classify(job *j, text_error *error)
{
    dataset  d = {.length = j->o.seq_length, .padding = j->config.pad_token_id};
    size_t   length = (size_t)j->o.seq_length, classes = (size_t)j->o.classes;
    int64_t *tokens = malloc(length * sizeof *tokens), label;
    uint8_t *mask = malloc(length);
    float   *p = malloc(classes * sizeof *p);
    bool     good = (tokens && mask && p) || text_fail(error, "out of memory");
    if (good && (good = add_text(j, &d, 0, j->o.text, strlen(j->o.text), error))) {
        gpunn_tensor *probabilities = gpunn_softmax(j->logits, 1);
        (void)load(&d, 0, (void *const[]){tokens, mask, &label});
        int64_t      own = bert_padded((int)d.lengths[0], j->o.seq_length);
        gpunn_status status = gpunn_write_shape(j->tokens, tokens, GPUNN_SHAPE(1, own));
        if (status == GPUNN_OK) status = gpunn_write_shape(j->mask, mask, GPUNN_SHAPE(1, 1, 1, own));
        if (status == GPUNN_OK) status = gpunn_forward(&probabilities, 1);
        if (status == GPUNN_OK) status = gpunn_read(probabilities, p, classes * sizeof *p);
        good = status == GPUNN_OK || text_fail(error, "%s", gpunn_error(j->dev));
    }
    if (good) {
        size_t best = 0;
        for (size_t c = 1; c < classes; c++)
            if (p[c] > p[best]) best = c;
        printf("class %zu%s%s, probability %.5f\n", best, j->name ? " " : "",
               j->name && j->name[best] ? j->name[best] : "", (double)p[best]);
    }
    free_data(&d);
    free(tokens);
    free(mask);
    free(p);
    return good;
}

/* ---- the program ---- */

static void log_line(void *user, gpunn_log_level level, const char *message)
{
    (void)user;
    if (level != GPUNN_LOG_ERROR) fprintf(stderr, "roberta_classify: %s\n", message);
}

static bool read_names(job *j, text_error *error)
{
    size_t bytes;
    int    c = 0;
    if (j->o.labels == NULL) return true;
    if ((j->names = text_read(j->o.labels, (size_t)1 << 24, &bytes, error)) == NULL) return false;
    if ((j->name = calloc((size_t)j->o.classes, sizeof *j->name)) == NULL)
        return text_fail(error, "out of memory");
    for (char *at = j->names; *at; c++) {
        size_t length = strcspn(at, "\r\n");
        char  *next = at + length + strspn(at + length, "\r");
        if (*next == '\n') next++;
        at[length] = 0;
        if (c < j->o.classes) j->name[c] = at;
        at = next;
    }
    return c == j->o.classes || text_fail(error, "'%s' names %d classes, but there are %d; use --classes",
                                          j->o.labels, c, j->o.classes);
}

static bool read_vocabulary(job *j, const char *config, text_error *error)
{
    static const char *const special[] = {"<s>", "</s>", "<pad>"};
    char                     vocab_path[1024], merges_path[1024];
    const char              *vocab = bert_path(j->o.model, j->o.vocab, "vocab.json", vocab_path);
    const char              *merges = j->o.vocab ? j->o.merges
                                                 : bert_path(j->o.model, j->o.merges, "merges.txt", merges_path);
    if (vocab == NULL && merges) return text_fail(error, "--merges needs --vocab");
    if (vocab == NULL && (config || j->o.weights || j->o.train))
        return text_fail(error,
                         "the model's vocabulary is not given; use --vocab vocab.json --merges merges.txt");
    j->vocabulary = vocab ? tokenizer_open(vocab, merges, false, error)
                          : built_in_vocabulary(j->o.classes, error);
    if (j->vocabulary == NULL) return false;
    if (config == NULL) j->config.vocab_size = j->vocabulary->count;
    for (int i = 0; i < 3; i++)
        if (tokenizer_id(j->vocabulary, special[i]) < 0)
            return text_fail(error, "'%s' has no piece %s", vocab, special[i]);
    if (tokenizer_id(j->vocabulary, "<pad>") != j->config.pad_token_id)
        return text_fail(
            error, "<pad> has id %d in '%s', but the model's pad_token_id is %d; they do not belong together",
            tokenizer_id(j->vocabulary, "<pad>"), vocab ? vocab : "the built-in vocabulary",
            j->config.pad_token_id);
    return bert_fits(&j->config, j->vocabulary->count, vocab, error);
}

static bool read_data(job *j, text_error *error)
{
    /* only --text */
    if (j->o.train == NULL && j->o.validation == NULL && j->o.epochs == 0 && j->o.text) return true;
    if (j->o.train == NULL && j->o.validation == NULL) {
        if (!make_data(j, error)) return false;
    } else {
        if (j->o.train && !read_csv(j, j->o.train, &j->train, j->o.validation ? NULL : &j->validation, error))
            return false;
        if (j->o.validation && !read_csv(j, j->o.validation, &j->validation, NULL, error)) return false;
    }
    if (j->train.count == 0 && j->o.epochs > 0)
        return text_fail(error, "there is nothing to train with; use --train, or --epochs 0");
    if (j->validation.count == 0)
        return text_fail(error, "'%s' is too short to hold out each tenth text; use --validation",
                         j->o.train);
    int    empty = 0, first = -1;
    size_t cut = j->train.cut + j->validation.cut;
    for (int c = 0; c < j->o.classes && j->train.count; c++) {
        bool found = false;
        for (size_t i = 0; i < j->train.count && !found; i++) found = j->train.labels[i] == c;
        if (!found && empty++ == 0) first = c;
    }
    if (empty)
        fprintf(stderr,
                "roberta_classify: %d of the %d classes have no text to learn from; the first is %d\n", empty,
                j->o.classes, first);
    if (cut)
        fprintf(stderr, "roberta_classify: %zu texts have more than %d tokens and are cut\n", cut,
                j->o.seq_length);
    printf("%zu texts to learn from, %zu held out, %d classes\n", j->train.count, j->validation.count,
           j->o.classes);
    return true;
}

static bool work(job *j, text_error *error)
{
    char        config_path[1024], weights_path[1024];
    const char *config = bert_path(j->o.model, j->o.config, "config.json", config_path);
    const char *weights = j->o.random
                              ? NULL
                              : bert_path(j->o.model, j->o.weights, "model.safetensors", weights_path);
    bool        new_head = false;
    if (j->o.checkpoint == NULL && (j->o.resume || j->o.checkpoint_every))
        return text_fail(error, "--resume and --checkpoint-every need --checkpoint FILE");
    bert_preset("roberta", j->o.size, &j->config);
    if (config && !bert_read_config(config, "roberta", &j->config, error)) return false;
    if (j->o.dropout >= 0)
        j->config.hidden_dropout_prob = j->config.attention_probs_dropout_prob = j->o.dropout;
    if (j->o.lr < 0) j->o.lr = weights ? 2e-5f : 1e-3f;
    int most = bert_max_length(&j->config), usual = j->o.train || j->o.validation || config ? 128 : 32;
    if (j->o.seq_length == 0) j->o.seq_length = most < usual ? most : usual;
    if (j->o.seq_length > most)
        return text_fail(error, "--seq-length is %d, but the model has %d positions", j->o.seq_length, most);
    if (!read_names(j, error) || !read_vocabulary(j, config, error) || !read_data(j, error)) return false;
    j->dev = gpunn_device_open(.type = (gpunn_device_type)j->o.device, .seed = (uint64_t)j->o.seed,
                               .log_fn = log_line);
    if (j->dev == NULL) return text_fail(error, "%s", gpunn_error(NULL));
    if (!build(j, (gpunn_precision)j->o.precision, error)) return false;
    if (weights && !bert_load(j->dev, j->model, weights, "classifier.", &new_head, error)) return false;
    if (new_head)
        fprintf(stderr, "roberta_classify: '%s' has no head for %d classes; a new one is trained\n", weights,
                j->o.classes);
    gpunn_set_clip_norm(j->adamw, j->o.clip);
    if (j->train.count) j->trainer = make_loader(j, &j->train, !j->o.no_shuffle);
    if (j->validation.count) j->tester = make_loader(j, &j->validation, false);
    if (gpunn_last_status(j->dev) != GPUNN_OK) return text_fail(error, "%s", gpunn_error(j->dev));
    if (j->o.epochs > 0 && !train(j, error)) return false;
    if (j->o.epochs == 0 && j->tester && !evaluate(j, "as it is", error)) return false;
    if (j->o.save && gpunn_save(j->model, j->o.save) != GPUNN_OK)
        return text_fail(error, "%s", gpunn_error(j->dev));
    return j->o.text == NULL || classify(j, error);
}

int main(int argc, char **argv)
{
    job        j = {.o = {.size = BERT_TINY,
                          .classes = 28,
                          .batch = 16,
                          .epochs = 3,
                          .seed = 1,
                          .log = 50,
                          .lr = -1,
                          .warmup = 0.06f,
                          .weight_decay = 0.01f,
                          .clip = 1,
                          .dropout = -1}};
    text_error error = {""};
    parse(&j.o, argc, argv);
    bool good = work(&j, &error);
    if (!good) fprintf(stderr, "roberta_classify: %s\n", error.text);
    gpunn_loader_destroy(j.trainer);
    gpunn_loader_destroy(j.tester);
    gpunn_optimizer_destroy(j.adamw);
    gpunn_model_destroy(j.model);
    gpunn_device_close(j.dev);
    free_data(&j.train);
    free_data(&j.validation);
    tokenizer_free(j.vocabulary);
    token_list_free(&j.pieces);
    free(j.names);
    free((void *)j.name);
    return good ? 0 : 1;
}
