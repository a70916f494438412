/* gguf.h - the tokenizer of a GGUF file, the format of llama.cpp.
 *
 *     text_error error;
 *     char      *header = gguf_header(dev, "model.gguf", &error);            NULL: error.text says why
 *     tokenizer *t = gguf_tokenizer(header, "model.gguf", &error);           frees header; NULL: as above
 *
 * gguf_header gives the header as JSON, as gpunn_read_header says. gguf_tokenizer writes what it says about
 * the tokenizer as the tokenizer.json that Hugging Face keeps for such a model, and reads that, so that its
 * ids are those of Hugging Face's tokenizers. Known are
 *     tokenizer.ggml.model  "llama" (SentencePiece's BPE, with scores) and "gpt2" (BPE of bytes, with merges)
 *     tokenizer.ggml.pre    of "gpt2": those of gguf_splits below
 * Another one is a failure that names it. */
#ifndef GGUF_H
#define GGUF_H

#include "tokenizer.h"

enum { GGUF_UNKNOWN = 2, GGUF_CONTROL, GGUF_USER_DEFINED, GGUF_UNUSED, GGUF_BYTE }; /* types of tokens */

typedef struct gguf_text {
    const char *at;
    size_t      bytes;
} gguf_text;

/* What a header says about the tokenizer. */
typedef struct gguf_vocabulary {
    gguf_text *tokens, *merges;
    double    *scores, *types;
    size_t     token_count, merge_count, score_count, type_count;
    char      *model, *pre;
    int        bos, eos, unknown;              /* ids; -1: none */
    int        add_bos, add_eos, space_prefix; /* -1: not said */
} gguf_vocabulary;

/* How a text is split before BPE of bytes: the expression of Split, or NULL for that of GPT-2. */
typedef struct gguf_split {
    const char *pre, *expression;
    bool        digits;      /* each digit by itself */
    bool        compose;     /* NFC before */
    bool        whole_words; /* a word that is a token is not merged */
    bool        begins;      /* <s> is put before a text where the file does not say */
} gguf_split;

#define GGUF_LLAMA3(numbers)                                                                \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}" numbers \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
static const gguf_split gguf_splits[] = {{"default", NULL, false, false, false, false},
                                         {"gpt-2", NULL, false, false, false, false},
                                         {"smollm", NULL, true, false, false, false},
                                         {"starcoder", NULL, true, false, false, false},
                                         {"llama-bpe", GGUF_LLAMA3("{1,3}"), false, false, true, true},
                                         {"qwen2", GGUF_LLAMA3(""), false, true, false, false}};

/* ---- reading ------------------------------------------------------------------------------------------- */
/* The header as JSON, to be freed; NULL: failed. */
static inline char *gguf_header(gpunn_device *dev, const char *path, text_error *error)
{
    gpunn_array array;
    char       *text = NULL;
    if (gpunn_read_header(dev, path, &array) != GPUNN_OK) {
        text_fail(error, "%s", gpunn_error(dev));
        return NULL;
    }
    if ((text = malloc(array.bytes)) != NULL)
        memcpy(text, array.data, array.bytes);
    else
        text_fail(error, "out of memory: the header of '%s' is too large", path);
    gpunn_array_free(dev, &array);
    return text;
}

/* Room for one more item in an array that doubles at powers of two. */
static inline void *gguf__grow(json *j, void *items, size_t count, size_t size)
{
    void *more = items;
    if (count == 0 || (count & (count - 1)) == 0) more = realloc(items, (count ? 2 * count : 1) * size);
    if (more == NULL) json_fail(j, "out of memory: the list is too long");
    return more ? more : items;
}

static inline gguf_text *gguf__read_texts(json *j, size_t *count)
{
    gguf_text *list = NULL;
    if (!json_array(j)) json_fail(j, "a list of texts is expected here");
    for (*count = 0; json_item(j);) {
        list = gguf__grow(j, list, *count, sizeof *list);
        gguf_text text = {.bytes = 0};
        text.at = json_string(j, &text.bytes);
        if (!j->failed) list[(*count)++] = text;
    }
    return list;
}

static inline double *gguf__read_numbers(json *j, size_t *count)
{
    double *list = NULL;
    if (!json_array(j)) json_fail(j, "a list of numbers is expected here");
    for (*count = 0; json_item(j);) {
        list = gguf__grow(j, list, *count, sizeof *list);
        const double number = json_number(j);
        if (!j->failed) list[(*count)++] = number;
    }
    return list;
}

static inline void gguf__read_key(json *j, const char *key, gguf_vocabulary *v)
{
    const char *name = strncmp(key, "tokenizer.ggml.", 15) == 0 ? key + 15 : "";
    if (strcmp(name, "tokens") == 0 && v->tokens == NULL)
        v->tokens = gguf__read_texts(j, &v->token_count);
    else if (strcmp(name, "merges") == 0 && v->merges == NULL)
        v->merges = gguf__read_texts(j, &v->merge_count);
    else if (strcmp(name, "scores") == 0 && v->scores == NULL)
        v->scores = gguf__read_numbers(j, &v->score_count);
    else if (strcmp(name, "token_type") == 0 && v->types == NULL)
        v->types = gguf__read_numbers(j, &v->type_count);
    else if (strcmp(name, "model") == 0)
        v->model = json_string(j, NULL);
    else if (strcmp(name, "pre") == 0)
        v->pre = json_string(j, NULL);
    else if (strcmp(name, "bos_token_id") == 0)
        v->bos = json_int(j, key, 0, TOKENIZER_MAX_PIECES - 1);
    else if (strcmp(name, "eos_token_id") == 0)
        v->eos = json_int(j, key, 0, TOKENIZER_MAX_PIECES - 1);
    else if (strcmp(name, "unknown_token_id") == 0)
        v->unknown = json_int(j, key, 0, TOKENIZER_MAX_PIECES - 1);
    else if (strcmp(name, "add_bos_token") == 0)
        v->add_bos = json_bool(j);
    else if (strcmp(name, "add_eos_token") == 0)
        v->add_eos = json_bool(j);
    else if (strcmp(name, "add_space_prefix") == 0)
        v->space_prefix = json_bool(j);
    else
        json_skip(j);
}

/* Whether the lists fit each other, and each id its list. */
static inline bool gguf__agrees(const gguf_vocabulary *v, const char *name, text_error *error)
{
    const size_t count = v->token_count;
    if (v->model == NULL || count == 0) return text_fail(error, "'%s' has no tokenizer", name);
    if (count > TOKENIZER_MAX_PIECES) return text_fail(error, "'%s' has too many tokens", name);
    if ((v->scores && v->score_count != count) || (v->types && v->type_count != count) ||
        (v->bos >= 0 && (size_t)v->bos >= count) || (v->eos >= 0 && (size_t)v->eos >= count) ||
        (v->unknown >= 0 && (size_t)v->unknown >= count))
        return text_fail(error, "the tokenizer of '%s' has %zu tokens, which do not fit its other lists",
                         name, count);
    if (strcmp(v->model, "llama") == 0 && v->scores == NULL)
        return text_fail(error, "the tokenizer of '%s' has no scores", name);
    return true;
}

static inline bool gguf__read(gguf_vocabulary *v, char *header, const char *name, text_error *error)
{
    json  j = json_begin(name, header, error);
    char *key;
    for (bool object = json_object(&j); object && (key = json_key(&j, NULL)) != NULL;) {
        if (strcmp(key, "__metadata__") != 0 || !json_object(&j)) {
            json_skip(&j);
            continue;
        }
        while ((key = json_key(&j, NULL)) != NULL) gguf__read_key(&j, key, v);
    }
    return json_end(&j) && gguf__agrees(v, name, error);
}

/* ---- writing tokenizer.json ---------------------------------------------------------------------------- */
typedef struct gguf__writer {
    char  *at;
    size_t bytes, capacity;
    bool   failed; /* out of memory */
} gguf__writer;

static inline void gguf__put(gguf__writer *w, const char *text, size_t bytes)
{
    if (!w->failed && w->capacity - w->bytes <= bytes) {
        const size_t capacity = 2 * w->capacity + bytes + 1;
        char        *more = realloc(w->at, capacity);
        w->failed = more == NULL;
        if (more) w->at = more, w->capacity = capacity;
    }
    if (w->failed) return;
    memcpy(w->at + w->bytes, text, bytes);
    w->bytes += bytes;
    w->at[w->bytes] = 0;
}

static inline void gguf__say(gguf__writer *w, const char *text)
{
    gguf__put(w, text, strlen(text));
}

static inline void gguf__quote(gguf__writer *w, const char *text, size_t bytes)
{
    char code[8];
    gguf__put(w, "\"", 1);
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c < 0x20)
            gguf__put(w, code, (size_t)snprintf(code, sizeof code, "\\u%04x", c));
        else if (c == '"' || c == '\\')
            gguf__put(w, "\\", 1), gguf__put(w, text + i, 1);
        else
            gguf__put(w, text + i, 1);
    }
    gguf__put(w, "\"", 1);
}

static inline void gguf__number(gguf__writer *w, size_t number)
{
    char text[32];
    gguf__put(w, text, (size_t)snprintf(text, sizeof text, "%zu", number));
}

static inline void gguf__write_added(gguf__writer *w, const gguf_vocabulary *v)
{
    const char *comma = "";
    gguf__say(w, "\"added_tokens\":[");
    for (size_t i = 0; i < v->type_count; i++) {
        const bool special = v->types[i] == GGUF_CONTROL;
        if ((!special && v->types[i] != GGUF_USER_DEFINED) || v->tokens[i].bytes == 0) continue;
        gguf__say(w, comma);
        gguf__say(w, "{\"id\":");
        gguf__number(w, i);
        gguf__say(w, special ? ",\"special\":true,\"content\":" : ",\"content\":");
        gguf__quote(w, v->tokens[i].at, v->tokens[i].bytes);
        gguf__say(w, "}");
        comma = ",";
    }
    gguf__say(w, "]");
}

static inline void gguf__write_special(gguf__writer *w, const gguf_vocabulary *v, int id)
{
    gguf__say(w, "{\"SpecialToken\":{\"id\":");
    gguf__quote(w, v->tokens[id].at, v->tokens[id].bytes);
    gguf__say(w, "}}");
}

/* The tokens before and behind a text. begins: where the file does not say. */
static inline void gguf__write_around(gguf__writer *w, const gguf_vocabulary *v, bool begins)
{
    gguf__say(w, ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    if (v->bos >= 0 && (v->add_bos < 0 ? begins : v->add_bos)) {
        gguf__write_special(w, v, v->bos);
        gguf__say(w, ",");
    }
    gguf__say(w, "{\"Sequence\":{\"id\":\"A\"}}");
    if (v->eos >= 0 && v->add_eos > 0) {
        gguf__say(w, ",");
        gguf__write_special(w, v, v->eos);
    }
    gguf__say(w, "]}");
}

static inline void gguf__write_vocabulary(gguf__writer *w, const gguf_vocabulary *v)
{
    gguf__say(w, "\"vocab\":{");
    for (size_t i = 0; i < v->token_count; i++) {
        if (i) gguf__say(w, ",");
        gguf__quote(w, v->tokens[i].at, v->tokens[i].bytes);
        gguf__say(w, ":");
        gguf__number(w, i);
    }
    gguf__say(w, "}");
}

/* ---- BPE of bytes -------------------------------------------------------------------------------------- */
static inline const gguf_split *gguf__split_of(const gguf_vocabulary *v)
{
    for (size_t i = 0; i < sizeof gguf_splits / sizeof *gguf_splits; i++)
        if (strcmp(v->pre ? v->pre : "default", gguf_splits[i].pre) == 0) return &gguf_splits[i];
    return NULL;
}

static inline void gguf__write_splits(gguf__writer *w, const gguf_split *split)
{
    gguf__say(w, split->compose ? ",\"normalizer\":{\"type\":\"NFC\"}" : ",\"normalizer\":null");
    gguf__say(w, ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    if (split->digits) gguf__say(w, "{\"type\":\"Digits\",\"individual_digits\":true},");
    if (split->expression) {
        gguf__say(w, "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"");
        gguf__say(w, split->expression);
        gguf__say(w, "\"}},");
    }
    gguf__say(w, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":");
    gguf__say(w, split->expression ? "false}]}" : "true}]}");
}

static inline bool gguf__write_bytes(gguf__writer *w, const gguf_vocabulary *v, const char *name,
                                     text_error *error)
{
    const gguf_split *split = gguf__split_of(v);
    if (split == NULL)
        return text_fail(error, "the tokenizer.ggml.pre '%.40s' of '%s' is not supported", v->pre, name);
    gguf__write_splits(w, split);
    gguf__write_around(w, v, split->begins);
    gguf__say(w, ",\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"ignore_merges\":");
    gguf__say(w, split->whole_words ? "true,\"merges\":[" : "false,\"merges\":[");
    for (size_t i = 0; i < v->merge_count; i++) {
        if (i) gguf__say(w, ",");
        gguf__quote(w, v->merges[i].at, v->merges[i].bytes);
    }
    gguf__say(w, "],");
    return true;
}

/* ---- SentencePiece's BPE ------------------------------------------------------------------------------- */
/* A way to make a token of two others. */
typedef struct gguf__merge {
    gguf_text left, right;
    double    score;
    size_t    left_length, right_length; /* characters */
    size_t    number;                    /* of its token, then of its parts */
    size_t    left_id, right_id;
} gguf__merge;

typedef struct gguf__merges {
    gguf__merge *items;
    size_t       count, capacity;
} gguf__merges;

typedef struct gguf__word {
    gguf_text text;
    size_t    id;
} gguf__word;

static inline int gguf__compare_words(const void *a, const void *b)
{
    const gguf_text *x = &((const gguf__word *)a)->text, *y = &((const gguf__word *)b)->text;
    const int        order = memcmp(x->at, y->at, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The order of Hugging Face's generate_merges: score, length of the left and of the right part, the highest
 * first; then the ids of the token and of its parts, the lowest first. */
static inline int gguf__compare_merges(const void *a, const void *b)
{
    const gguf__merge *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->left_length != y->left_length) return x->left_length > y->left_length ? -1 : 1;
    if (x->right_length != y->right_length) return x->right_length > y->right_length ? -1 : 1;
    if (x->number != y->number) return x->number < y->number ? -1 : 1;
    if (x->left_id != y->left_id) return x->left_id < y->left_id ? -1 : 1;
    return (x->right_id > y->right_id) - (x->right_id < y->right_id);
}

static inline size_t gguf__characters(gguf_text text)
{
    size_t count = 0;
    for (size_t i = 0; i < text.bytes; i++) count += ((unsigned char)text.at[i] & 0xC0) != 0x80;
    return count;
}

static inline bool gguf__add_merge(gguf__merges *m, gguf__merge merge)
{
    if (m->count == m->capacity) {
        const size_t capacity = m->capacity ? 2 * m->capacity : 1024;
        gguf__merge *items = realloc(m->items, capacity * sizeof *items);
        if (items == NULL) return false;
        m->items = items;
        m->capacity = capacity;
    }
    m->items[m->count++] = merge;
    return true;
}

/* Adds all ways to make token i of two of the words. */
static inline bool gguf__split_token(gguf__merges *m, const gguf_vocabulary *v, const gguf__word *words,
                                     size_t i)
{
    const gguf_text whole = v->tokens[i];
    for (size_t at = 1; at < whole.bytes; at++) {
        const gguf__word  left = {{whole.at, at}, 0}, right = {{whole.at + at, whole.bytes - at}, 0};
        const gguf__word *a, *b;
        if (((unsigned char)whole.at[at] & 0xC0) == 0x80) continue; /* within a character */
        a = bsearch(&left, words, v->token_count, sizeof *words, gguf__compare_words);
        b = a ? bsearch(&right, words, v->token_count, sizeof *words, gguf__compare_words) : NULL;
        if (b == NULL) continue;
        const gguf__merge merge = {
            left.text, right.text, v->scores[i], gguf__characters(left.text), gguf__characters(right.text),
            i,         a->id,      b->id};
        if (!gguf__add_merge(m, merge)) return false;
    }
    return true;
}

/* The merges that scores stand for. */
static inline bool gguf__find_merges(gguf__merges *m, const gguf_vocabulary *v)
{
    gguf__word *words = malloc(v->token_count * sizeof *words);
    bool        good = words != NULL;
    for (size_t i = 0; good && i < v->token_count; i++) words[i] = (gguf__word){v->tokens[i], i};
    if (good) qsort(words, v->token_count, sizeof *words, gguf__compare_words);
    for (size_t i = 0; good && i < v->token_count; i++)
        if (v->types == NULL || v->types[i] == 1 || v->types[i] == GGUF_USER_DEFINED)
            good = gguf__split_token(m, v, words, i);
    if (m->count) qsort(m->items, m->count, sizeof *m->items, gguf__compare_merges);
    free(words);
    return good;
}

static inline void gguf__write_pieces(gguf__writer *w, const gguf_vocabulary *v)
{
    static const char space[] = "{\"String\":\"\xe2\x96\x81\"}";
    const bool        prefix = v->space_prefix != 0;
    gguf__merges      m = {0};
    gguf__say(w, ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (prefix) gguf__say(w, "{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},");
    gguf__say(w, "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]}");
    gguf__write_around(w, v, true);
    gguf__say(w, ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":");
    gguf__say(w, space);
    gguf__say(w, ",\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
    if (prefix) gguf__say(w, ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
    gguf__say(w, "]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"fuse_unk\":true,");
    if (v->unknown >= 0) {
        gguf__say(w, "\"unk_token\":");
        gguf__quote(w, v->tokens[v->unknown].at, v->tokens[v->unknown].bytes);
        gguf__say(w, ",");
    }
    gguf__say(w, "\"merges\":[");
    if (!gguf__find_merges(&m, v)) w->failed = true;
    for (size_t i = 0; i < m.count; i++) {
        gguf__say(w, i ? ",[" : "[");
        gguf__quote(w, m.items[i].left.at, m.items[i].left.bytes);
        gguf__say(w, ",");
        gguf__quote(w, m.items[i].right.at, m.items[i].right.bytes);
        gguf__say(w, "]");
    }
    free(m.items);
    gguf__say(w, "],");
}

/* The tokenizer.json of a vocabulary, to be freed; NULL: failed. */
static inline char *gguf__write(const gguf_vocabulary *v, const char *name, text_error *error)
{
    gguf__writer w = {0};
    bool         good = true;
    gguf__say(&w, "{");
    gguf__write_added(&w, v);
    if (strcmp(v->model, "gpt2") == 0)
        good = gguf__write_bytes(&w, v, name, error);
    else if (strcmp(v->model, "llama") == 0)
        gguf__write_pieces(&w, v);
    else
        good = text_fail(error, "the tokenizer.ggml.model '%.40s' of '%s' is not supported", v->model, name);
    gguf__write_vocabulary(&w, v);
    gguf__say(&w, "}}");
    if (good && w.failed) good = text_fail(error, "out of memory: the tokenizer of '%s' is too large", name);
    if (good) return w.at;
    free(w.at);
    return NULL;
}

/* Takes the text that gguf_header gave. name: for messages. */
static inline tokenizer *gguf_tokenizer(char *header, const char *name, text_error *error)
{
    gguf_vocabulary v = {
        .bos = -1, .eos = -1, .unknown = -1, .add_bos = -1, .add_eos = -1, .space_prefix = -1};
    char *text = gguf__read(&v, header, name, error) ? gguf__write(&v, name, error) : NULL;
    free(v.tokens);
    free(v.merges);
    free(v.scores);
    free(v.types);
    free(header);
    return text ? tokenizer_json_of(text, name, error) : NULL;
}

#endif
