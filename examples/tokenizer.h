/* tokenizer.h - BERT's WordPiece and the byte-level BPE of GPT-2 and RoBERTa, from the files that Hugging Face keeps them in.
 *
 *     text_error  error;
 *     tokenizer  *t = tokenizer_wordpiece("vocab.txt", true, &error);                     or
 *                 t = tokenizer_bpe("vocab.json", "merges.txt", &error);                  NULL: error.text says why
 *     bool good = tokenizer_read_split(t, "tokenizer.json", &error)                       where BPE splits words in another way
 *     token_list  list = {0};
 *     if (!tokenizer_encode(t, text, strlen(text), &list)) ...                            out of memory
 *     list.items[i].id, .start, .end      which piece stands for text[start .. end - 1]
 *     token_list_free(&list), tokenizer_free(t)
 *
 * Both give the ids of Hugging Face's tokenizers for any text. [CLS], </s> and the like in a text are text, and nothing is added
 * around it: tokenizer_id finds the special pieces. WordPiece lowers and strips accents as BertNormalizer does, for all of
 * Unicode (unicode.h). Offsets count bytes. What is not UTF-8 counts as U+FFFD, which WordPiece drops; BPE keeps every byte.
 * Files are read as hostile. A tokenizer may be used by several threads. */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "json.h"
#include "unicode.h"

enum {
    TOKENIZER_MAX_FILE = 64 << 20, /* bytes */
    TOKENIZER_MAX_PIECES = 1 << 22,
    TOKENIZER_MAX_WORD = 100 /* characters, beyond which WordPiece gives up */
};

typedef struct token {
    int    id;
    size_t start, end;
} token;

typedef struct token_list {
    token *items;
    size_t count, capacity;
} token_list;

typedef struct tokenizer_piece {
    const char *text; /* NULL: no piece has this id. Of BPE the bytes it stands for */
    size_t      bytes;
} tokenizer_piece;

typedef struct tokenizer_merge {
    int left, right, result;
} tokenizer_merge;

typedef struct tokenizer {
    char            *vocabulary; /* the file, into which the pieces point */
    tokenizer_piece *pieces;
    int              count, capacity;
    size_t           longest; /* bytes of a piece */
    int             *slots;   /* hash table of ids; -1: free */
    uint32_t         mask;
    bool             lower;           /* WordPiece: without case and accents */
    int              unknown;         /* WordPiece: [UNK] */
    int              byte_piece[256]; /* BPE */
    bool             digits;          /* BPE: each digit is a word of its own */
    tokenizer_merge *merges;          /* by rank */
    int              merge_count;
    int             *merge_slots; /* hash table of ranks; -1: free */
    uint32_t         merge_mask;
} tokenizer;

static inline void token_list_free(token_list *list)
{
    free(list->items);
    *list = (token_list){0};
}

static inline bool token_list_add(token_list *list, int id, size_t start, size_t end)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 64;
        token *items = realloc(list->items, capacity * sizeof *items);
        if (items == NULL) return false;
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = (token){id, start, end};
    return true;
}

static inline void tokenizer_free(tokenizer *t)
{
    if (t == NULL) return;
    free(t->vocabulary);
    free(t->pieces);
    free(t->slots);
    free(t->merges);
    free(t->merge_slots);
    free(t);
}

/* ---- characters ---- */

/* The next character, moving *at behind it; U+FFFD for a byte that begins none. */
static inline uint32_t text_next(const char *text, size_t bytes, size_t *at)
{
    static const uint32_t lowest[] = {0, 0x80, 0x800, 0x10000};
    unsigned char         first = (unsigned char)text[(*at)++];
    if (first < 0x80) return first;
    int      more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    uint32_t c = first & (0x3fu >> more);
    if (first < 0xc2 || first > 0xf4 || bytes - *at < (size_t)more) return 0xfffd;
    for (int i = 0; i < more; i++) {
        unsigned char next = (unsigned char)text[*at + (size_t)i];
        if ((next & 0xc0) != 0x80) return 0xfffd;
        c = c << 6 | (next & 0x3fu);
    }
    if (c < lowest[more] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0xfffd;
    *at += (size_t)more;
    return c;
}

static inline bool unicode__in(const unicode_range *ranges, size_t count, uint32_t c)
{
    size_t low = 0;
    while (low < count) {
        size_t middle = (low + count) / 2;
        if (c > ranges[middle].last)
            low = middle + 1;
        else if (c < ranges[middle].first)
            count = middle;
        else
            return true;
    }
    return false;
}
#define unicode_in(ranges, c) unicode__in(ranges, sizeof(ranges) / sizeof *(ranges), c)

/* The character lowered and without accents, as 0 to 3 characters. */
static inline int unicode_fold_of(uint32_t c, uint32_t out[3])
{
    out[0] = c;
    if (c < 0x80) {
        if (c >= 'A' && c <= 'Z') out[0] += 'a' - 'A';
        return 1;
    }
    if (c >= 0xac00 && c < 0xac00 + 11172) { /* a Hangul syllable: its consonant, vowel and, mostly, last consonant */
        c -= 0xac00;
        out[0] = 0x1100 + c / 588;
        out[1] = 0x1161 + c % 588 / 28;
        out[2] = 0x11a7 + c % 28;
        return c % 28 ? 3 : 2;
    }
    if (unicode_in(unicode_marks, c)) return 0;
    uint32_t compatible = c >= 0xf900 && c <= 0xfaff     ? unicode_from_f900[c - 0xf900]
                          : c >= 0x2f800 && c <= 0x2fa1f ? unicode_from_2f800[c - 0x2f800]
                                                         : 0;
    if (compatible) out[0] = compatible;
    size_t low = 0, high = sizeof unicode_folds / sizeof *unicode_folds;
    while (low < high) {
        size_t              middle = (low + high) / 2;
        const unicode_fold *fold = &unicode_folds[middle];
        if (c > fold->last) {
            low = middle + 1;
        } else if (c < fold->first) {
            high = middle;
        } else {
            if ((c - fold->first) % fold->step == 0) out[0] = fold->to + (c - fold->first);
            return 1;
        }
    }
    for (size_t i = 0; i < sizeof unicode_splits / sizeof *unicode_splits; i++) {
        if (unicode_splits[i][0] != c) continue;
        memcpy(out, unicode_splits[i] + 1, 3 * sizeof *out);
        return out[2] ? 3 : 2;
    }
    return 1;
}

/* ---- pieces and their ids ---- */

static inline uint32_t tokenizer__hash(const char *text, size_t bytes)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    return hash ^ hash >> 15;
}

/* Where the piece stands, or where it would. */
static inline uint32_t tokenizer__slot(const tokenizer *t, const char *text, size_t bytes)
{
    uint32_t slot = tokenizer__hash(text, bytes) & t->mask;
    for (; t->slots[slot] >= 0; slot = (slot + 1) & t->mask) {
        const tokenizer_piece *piece = &t->pieces[t->slots[slot]];
        if (piece->bytes == bytes && memcmp(piece->text, text, bytes) == 0) break;
    }
    return slot;
}

static inline int tokenizer__find(const tokenizer *t, const char *text, size_t bytes)
{
    return bytes > t->longest ? -1 : t->slots[tokenizer__slot(t, text, bytes)];
}

/* -1: there is no such piece. */
static inline int tokenizer_id(const tokenizer *t, const char *piece)
{
    return tokenizer__find(t, piece, strlen(piece));
}

static inline int *tokenizer__slots(size_t entries, uint32_t *mask)
{
    size_t size = 16;
    while (size < entries * 2) size *= 2;
    int *slots = malloc(size * sizeof *slots);
    if (slots == NULL) return NULL;
    memset(slots, -1, size * sizeof *slots);
    *mask = (uint32_t)(size - 1);
    return slots;
}

/* Notes a piece under its id; the table is made once all are known. */
static inline bool tokenizer__add(tokenizer *t, int id, const char *text, size_t bytes)
{
    if (id >= t->capacity) {
        int capacity = t->capacity ? t->capacity : 1024;
        while (capacity <= id) capacity *= 2;
        tokenizer_piece *pieces = realloc(t->pieces, (size_t)capacity * sizeof *pieces);
        if (pieces == NULL) return false;
        memset(pieces + t->capacity, 0, (size_t)(capacity - t->capacity) * sizeof *pieces);
        t->pieces = pieces;
        t->capacity = capacity;
    }
    t->pieces[id] = (tokenizer_piece){text, bytes};
    if (id >= t->count) t->count = id + 1;
    if (bytes > t->longest) t->longest = bytes;
    return true;
}

static inline bool tokenizer__index(tokenizer *t, const char *name, text_error *error)
{
    t->slots = tokenizer__slots((size_t)t->count, &t->mask);
    if (t->slots == NULL) return text_fail(error, "out of memory: '%s' has too many pieces", name);
    for (int id = 0; id < t->count; id++) {
        const tokenizer_piece *piece = &t->pieces[id];
        if (piece->text == NULL) continue;
        uint32_t slot = tokenizer__slot(t, piece->text, piece->bytes);
        if (t->slots[slot] >= 0)
            return text_fail(error, "%s: ids %d and %d are the same piece '%.*s'", name, t->slots[slot], id,
                             piece->bytes > 60 ? 60 : (int)piece->bytes, piece->text);
        t->slots[slot] = id;
    }
    return true;
}

/* ---- WordPiece ---- */

/* Takes the text, bytes and a 0 behind them, which was allocated; one piece a line. name: for messages. */
static inline tokenizer *tokenizer_wordpiece_of(char *text, size_t bytes, const char *name, bool lower, text_error *error)
{
    tokenizer *t = calloc(1, sizeof *t);
    int        line = 0;
    bool       good = t != NULL && text != NULL;
    if (t == NULL) {
        free(text);
        text_fail(error, "out of memory");
        return NULL;
    }
    t->vocabulary = text;
    t->lower = lower;
    for (char *at = text, *end = text + (good ? bytes : 0); good && at < end; line++) {
        char *stop = memchr(at, '\n', (size_t)(end - at)), *next = stop ? stop + 1 : end;
        if (stop == NULL) stop = end;
        if (stop > at && stop[-1] == '\r') stop--;
        if (stop == at)
            good = text_fail(error, "%s:%d: the line is empty, where a piece belongs", name, line + 1);
        else if (line == TOKENIZER_MAX_PIECES)
            good = text_fail(error, "%s has more than %d lines", name, TOKENIZER_MAX_PIECES);
        else if (!tokenizer__add(t, line, at, (size_t)(stop - at)))
            good = text_fail(error, "out of memory: '%s' has too many pieces", name);
        at = next;
    }
    good = good && tokenizer__index(t, name, error);
    if (good && (t->unknown = tokenizer_id(t, "[UNK]")) < 0)
        good = text_fail(error, "%s: there is no line [UNK]; is it a vocabulary of BERT, one piece a line?", name);
    if (good) return t;
    tokenizer_free(t);
    return NULL;
}

/* vocab.txt, one piece a line, the first with id 0. lower: for the uncased models. */
static inline tokenizer *tokenizer_wordpiece(const char *path, bool lower, text_error *error)
{
    size_t bytes;
    char  *text = text_read(path, TOKENIZER_MAX_FILE, &bytes, error);
    return text ? tokenizer_wordpiece_of(text, bytes, path, lower, error) : NULL;
}

/* A word with room for "##" before it, and where its characters stand in it and come from. */
typedef struct tokenizer__word {
    char   text[2 + TOKENIZER_MAX_WORD * 4];
    size_t at[TOKENIZER_MAX_WORD + 1], start[TOKENIZER_MAX_WORD], end[TOKENIZER_MAX_WORD];
    int    count; /* characters; may exceed the maximum */
    size_t first, last;
} tokenizer__word;

static inline void tokenizer__grow(tokenizer__word *w, uint32_t c, size_t start, size_t end)
{
    if (w->count == 0) w->first = start;
    w->last = end;
    if (w->count++ >= TOKENIZER_MAX_WORD) return;
    int i = w->count - 1;
    if (i == 0) w->at[0] = 2;
    w->start[i] = start;
    w->end[i] = end;
    w->at[i + 1] = (size_t)(text_put(w->text + w->at[i], c) - w->text);
}

/* The longest piece first, again and again; one [UNK] for a word that does not come out even. */
static inline bool tokenizer__pieces(const tokenizer *t, tokenizer__word *w, token_list *list)
{
    int    count = w->count;
    size_t before = list->count;
    w->count = 0;
    for (int from = 0, to; count <= TOKENIZER_MAX_WORD && from < count; from = to) {
        char  *text = w->text + w->at[from];
        size_t prefix = from > 0 ? 2 : 0;
        int    id = -1;
        memcpy(text - 2, "##", 2);
        for (to = count; to > from; to--)
            if ((id = tokenizer__find(t, text - prefix, w->at[to] - w->at[from] + prefix)) >= 0) break;
        if (id < 0) {
            list->count = before;
            break;
        }
        if (!token_list_add(list, id, w->start[from], w->end[to - 1])) return false;
    }
    return count == 0 || list->count > before || token_list_add(list, t->unknown, w->first, w->last);
}

static inline bool tokenizer__encode_words(const tokenizer *t, const char *text, size_t bytes, token_list *list)
{
    tokenizer__word word = {.count = 0};
    bool            good = true;
    for (size_t at = 0, start = 0; at < bytes && good; start = at) {
        uint32_t c = text_next(text, bytes, &at), part[3] = {c, 0, 0};
        int      parts = 1;
        if (unicode_in(unicode_controls, c)) continue;
        bool alone = c >= 0x80 && unicode_in(unicode_ideographs, c);
        if (t->lower) parts = unicode_fold_of(c, part);
        if (alone) good = tokenizer__pieces(t, &word, list);
        for (int i = 0; i < parts && good; i++) {
            bool space = unicode_in(unicode_spaces, part[i]), mark = !space && unicode_in(unicode_punctuation, part[i]);
            if (space || mark) good = tokenizer__pieces(t, &word, list);
            if (!space) tokenizer__grow(&word, part[i], start, at);
            if (mark) good = good && tokenizer__pieces(t, &word, list);
        }
        if (alone) good = good && tokenizer__pieces(t, &word, list);
    }
    return good && tokenizer__pieces(t, &word, list);
}

/* ---- byte-level BPE ---- */

/* The character that stands for each byte in the files: printable ones for themselves, the rest from U+0100 on. */
static inline uint32_t tokenizer__byte_character(int byte)
{
    int others = byte <= 32 ? byte : byte <= 160 ? 33 + byte - 127 : 67;
    return (byte > 32 && byte < 127) || (byte > 160 && byte != 173) ? (uint32_t)byte : 256 + (uint32_t)others;
}

/* The bytes that characters of the files stand for, in their place; -1: one of them stands for none. */
static inline long tokenizer__to_bytes(char *text, size_t bytes)
{
    size_t to = 0;
    for (size_t at = 0; at < bytes;) {
        uint32_t c = text_next(text, bytes, &at);
        int      byte = c < 256 ? (int)c : c <= 288 ? (int)c - 256 : c <= 322 ? (int)c - 256 - 33 + 127 : 173;
        if (tokenizer__byte_character(byte) != c) return -1;
        text[to++] = (char)byte;
    }
    return (long)to;
}

static inline bool tokenizer__read_vocabulary(tokenizer *t, const char *path, char *text, text_error *error)
{
    json   j = json_begin(path, text, error);
    char  *piece;
    size_t bytes;
    bool   good = json_object(&j);
    while (good && (piece = json_key(&j, &bytes)) != NULL) {
        int  id = json_int(&j, piece, 0, TOKENIZER_MAX_PIECES - 1);
        long raw = j.failed ? 0 : tokenizer__to_bytes(piece, bytes);
        if (j.failed || raw <= 0)
            good = json_fail(&j, "a piece is empty or holds a character that stands for no byte; is it a byte-level vocabulary?");
        else if (id < t->count && t->pieces[id].text)
            good = json_fail(&j, "the id of this piece has been given to another one");
        else if (!tokenizer__add(t, id, piece, (size_t)raw))
            good = text_fail(error, "out of memory: '%s' has too many pieces", path);
    }
    if (!good || !json_end(&j) || !tokenizer__index(t, path, error)) return false;
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        if ((t->byte_piece[byte] = tokenizer__find(t, &c, 1)) < 0)
            return text_fail(error, "%s: no piece stands for the byte %d alone; byte-level BPE needs all 256", path, byte);
    }
    return true;
}

static inline uint32_t tokenizer__merge_slot(const tokenizer *t, int left, int right)
{
    uint32_t hash = ((uint32_t)left * 2654435761u ^ (uint32_t)right) * 2246822519u, slot = (hash ^ hash >> 15) & t->merge_mask;
    for (int rank; (rank = t->merge_slots[slot]) >= 0; slot = (slot + 1) & t->merge_mask)
        if (t->merges[rank].left == left && t->merges[rank].right == right) break;
    return slot;
}

/* Two pieces a line, the first line with rank 0. */
static inline bool tokenizer__read_merges(tokenizer *t, const char *path, char *text, size_t bytes, text_error *error)
{
    size_t lines = 1;
    for (size_t i = 0; i < bytes; i++) lines += text[i] == '\n';
    if (lines > TOKENIZER_MAX_PIECES) return text_fail(error, "%s has more than %d lines", path, TOKENIZER_MAX_PIECES);
    t->merges = malloc(lines * sizeof *t->merges);
    t->merge_slots = tokenizer__slots(lines, &t->merge_mask);
    char *whole = malloc(t->longest + 1);
    bool  good = t->merges && t->merge_slots && whole;
    int   line = 0;
    if (!good) text_fail(error, "out of memory: '%s' has too many lines", path);
    for (char *at = text, *end = text + bytes; good && at < end;) {
        char  *stop = memchr(at, '\n', (size_t)(end - at)), *next = stop ? stop + 1 : end;
        size_t length = (size_t)((stop ? stop : end) - at);
        if (length > 0 && at[length - 1] == '\r') length--;
        char *left = at, *space = memchr(at, ' ', length);
        stop = at + length;
        line++;
        at = next;
        if (stop - left >= 8 && memcmp(left, "#version", 8) == 0) continue;
        if (stop == left && next == end) break;
        if (space == NULL || memchr(space + 1, ' ', (size_t)(stop - space - 1))) {
            good = text_fail(error, "%s:%d: two pieces with one space between them belong here", path, line);
            break;
        }
        long            bytes0 = tokenizer__to_bytes(left, (size_t)(space - left));
        long            bytes1 = tokenizer__to_bytes(space + 1, (size_t)(stop - space - 1));
        tokenizer_merge merge = {-1, -1, -1};
        if (bytes0 > 0 && bytes1 > 0 && (size_t)(bytes0 + bytes1) <= t->longest) {
            memcpy(whole, left, (size_t)bytes0);
            memcpy(whole + bytes0, space + 1, (size_t)bytes1);
            merge.left = tokenizer__find(t, left, (size_t)bytes0);
            merge.right = tokenizer__find(t, space + 1, (size_t)bytes1);
            merge.result = tokenizer__find(t, whole, (size_t)(bytes0 + bytes1));
        }
        uint32_t slot = tokenizer__merge_slot(t, merge.left, merge.right);
        if (merge.left < 0 || merge.right < 0 || merge.result < 0)
            good = text_fail(error,
                             "%s:%d: the vocabulary lacks a piece of this line, or both as one; do the files belong together?",
                             path, line);
        else if (t->merge_slots[slot] >= 0)
            good = text_fail(error, "%s:%d: the line says again what an earlier one said", path, line);
        else
            t->merges[t->merge_slots[slot] = t->merge_count++] = merge;
    }
    free(whole);
    return good;
}

/* Takes both texts, which were allocated, with a 0 behind each. */
static inline tokenizer *tokenizer_bpe_of(char *vocabulary, const char *vocabulary_name, char *merges, size_t merges_bytes,
                                          const char *merges_name, text_error *error)
{
    tokenizer *t = calloc(1, sizeof *t);
    bool       good = t != NULL;
    if (good)
        t->vocabulary = vocabulary;
    else {
        free(vocabulary);
        text_fail(error, "out of memory");
    }
    good = good && tokenizer__read_vocabulary(t, vocabulary_name, vocabulary, error) &&
           tokenizer__read_merges(t, merges_name, merges, merges_bytes, error);
    free(merges);
    if (good) return t;
    tokenizer_free(t);
    return NULL;
}

/* vocab.json, {"piece": id, ...}, and merges.txt. */
static inline tokenizer *tokenizer_bpe(const char *vocabulary_path, const char *merges_path, text_error *error)
{
    size_t bytes, merges_bytes;
    char  *vocabulary = text_read(vocabulary_path, TOKENIZER_MAX_FILE, &bytes, error);
    char  *merges = vocabulary ? text_read(merges_path, TOKENIZER_MAX_FILE, &merges_bytes, error) : NULL;
    if (merges) return tokenizer_bpe_of(vocabulary, vocabulary_path, merges, merges_bytes, merges_path, error);
    free(vocabulary);
    return NULL;
}

/* One of tokenizer.json's rules, or a sequence of them. */
static inline bool tokenizer__read_rule(tokenizer *t, json *j, bool in_sequence)
{
    const char *type = "", *key;
    bool        individual = false, prefix = false, regex = true;
    char        what[160];
    if (!json_object(j)) return false;
    while ((key = json_key(j, NULL)) != NULL) {
        if (strcmp(key, "type") == 0)
            type = json_string(j, NULL);
        else if (strcmp(key, "individual_digits") == 0)
            individual = json_bool(j);
        else if (strcmp(key, "add_prefix_space") == 0)
            prefix = json_bool(j);
        else if (strcmp(key, "use_regex") == 0)
            regex = json_bool(j);
        else if (strcmp(key, "pretokenizers") == 0 && !in_sequence && json_array(j))
            while (json_item(j) && tokenizer__read_rule(t, j, true)) {}
        else
            json_skip(j);
    }
    if (j->failed || (strcmp(type, "Sequence") == 0 && !in_sequence)) return !j->failed;
    if (strcmp(type, "ByteLevel") == 0 && !prefix && regex) return true;
    if (strcmp(type, "Digits") == 0 && individual) return t->digits = true;
    (void)snprintf(what, sizeof what, "words are split by a rule '%.40s' that is not known here", type);
    return json_fail(j, what);
}

/* How words are split, by Hugging Face's tokenizer.json, of which nothing else is read: as GPT-2 does, with each digit a word of its
 * own or not. Another way is a failure. */
static inline bool tokenizer_read_split(tokenizer *t, const char *path, text_error *error)
{
    size_t bytes;
    char  *text = text_read(path, TOKENIZER_MAX_FILE, &bytes, error), *key;
    json   j = json_begin(path, text, error);
    bool   object = json_object(&j);
    while (object && (key = json_key(&j, NULL)) != NULL)
        if (strcmp(key, "pre_tokenizer") == 0)
            (void)tokenizer__read_rule(t, &j, false);
        else
            json_skip(&j);
    const bool good = json_end(&j);
    free(text);
    return good;
}

typedef enum tokenizer__class { TOKENIZER__SPACE, TOKENIZER__LETTER, TOKENIZER__NUMBER, TOKENIZER__OTHER } tokenizer__class;

static inline tokenizer__class tokenizer__class_of(const char *text, size_t bytes, size_t *at)
{
    uint32_t c = text_next(text, bytes, at);
    return unicode_in(unicode_letters, c)   ? TOKENIZER__LETTER
           : unicode_in(unicode_spaces, c)  ? TOKENIZER__SPACE
           : unicode_in(unicode_numbers, c) ? TOKENIZER__NUMBER
                                            : TOKENIZER__OTHER;
}

/* The end of the word that begins at `at`, by GPT-2's expression
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static inline size_t tokenizer__word_end(const char *text, size_t bytes, size_t at)
{
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; text[at] == '\'' && i < sizeof endings / sizeof *endings; i++) {
        size_t length = strlen(endings[i]);
        if (bytes - at >= length && memcmp(text + at, endings[i], length) == 0) return at + length;
    }
    size_t next = at, before;
    tokenizer__class class = tokenizer__class_of(text, bytes, &next), other;
    if (text[at] == ' ' && next < bytes) {
        size_t second = next;
        other = tokenizer__class_of(text, bytes, &second);
        if (other != TOKENIZER__SPACE) class = other, next = second;
    }
    for (before = at; next < bytes;) {
        size_t end = next;
        if (tokenizer__class_of(text, bytes, &end) != class) break;
        before = next;
        next = end;
    }
    /* of spaces before a word, the last one is the word's or stands alone */
    return class == TOKENIZER__SPACE && next < bytes && before > at ? before : next;
}

typedef struct tokenizer__symbol {
    int    id, previous, next; /* id -1: merged into the one before it; next and previous -1: none */
    size_t start, end;
} tokenizer__symbol;

typedef struct tokenizer__candidate {
    int rank, at;
} tokenizer__candidate;

typedef struct tokenizer__scratch {
    tokenizer__symbol    *symbols;
    tokenizer__candidate *heap; /* lowest rank first, then leftmost */
    int                   heap_count;
    size_t                capacity; /* bytes of a word for which both have room */
} tokenizer__scratch;

static inline bool tokenizer__before(tokenizer__candidate a, tokenizer__candidate b)
{
    return a.rank < b.rank || (a.rank == b.rank && a.at < b.at);
}

/* The merge of the symbol with its right neighbour, if there is one, becomes a candidate. */
static inline void tokenizer__push(const tokenizer *t, tokenizer__scratch *s, int at)
{
    int right = at >= 0 ? s->symbols[at].next : -1;
    int rank = right >= 0 ? t->merge_slots[tokenizer__merge_slot(t, s->symbols[at].id, s->symbols[right].id)] : -1;
    if (rank < 0) return;
    tokenizer__candidate c = {rank, at};
    int                  i = s->heap_count++;
    for (; i > 0 && tokenizer__before(c, s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = c;
}

static inline tokenizer__candidate tokenizer__pop(tokenizer__scratch *s)
{
    tokenizer__candidate top = s->heap[0], c = s->heap[--s->heap_count];
    int                  i = 0, child;
    while ((child = 2 * i + 1) < s->heap_count) {
        if (child + 1 < s->heap_count && tokenizer__before(s->heap[child + 1], s->heap[child])) child++;
        if (!tokenizer__before(s->heap[child], c)) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = c;
    return top;
}

/* Merges of two neighbours, the lowest rank first and among equals the leftmost, until none is left. */
static inline bool tokenizer__merge(const tokenizer *t, tokenizer__scratch *s, const char *text, size_t start, size_t end,
                                    token_list *list)
{
    size_t length = end - start;
    if (length > INT32_MAX / 4) return false;
    if (length > s->capacity) {
        size_t                capacity = length * 2;
        tokenizer__symbol    *symbols = realloc(s->symbols, capacity * sizeof *symbols);
        tokenizer__candidate *heap;
        if (symbols) s->symbols = symbols;
        /* every merge takes one symbol away and adds at most two candidates */
        if (symbols == NULL || (heap = realloc(s->heap, 3 * capacity * sizeof *heap)) == NULL) return false;
        s->heap = heap;
        s->capacity = capacity;
    }
    int count = (int)length;
    for (int i = 0; i < count; i++)
        s->symbols[i] = (tokenizer__symbol){t->byte_piece[(unsigned char)text[start + (size_t)i]], i - 1,
                                            i + 1 < count ? i + 1 : -1, start + (size_t)i, start + (size_t)i + 1};
    s->heap_count = 0;
    for (int i = 0; i < count; i++) tokenizer__push(t, s, i);
    while (s->heap_count > 0) {
        tokenizer__candidate   c = tokenizer__pop(s);
        const tokenizer_merge *merge = &t->merges[c.rank];
        tokenizer__symbol     *left = &s->symbols[c.at], *right = left->next >= 0 ? &s->symbols[left->next] : NULL;
        if (right == NULL || left->id != merge->left || right->id != merge->right) continue; /* gone meanwhile */
        left->id = merge->result;
        left->end = right->end;
        left->next = right->next;
        if (right->next >= 0) s->symbols[right->next].previous = c.at;
        right->id = -1;
        tokenizer__push(t, s, left->previous);
        tokenizer__push(t, s, c.at);
    }
    for (int i = 0; i >= 0; i = s->symbols[i].next)
        if (!token_list_add(list, s->symbols[i].id, s->symbols[i].start, s->symbols[i].end)) return false;
    return true;
}

/* Where the digit that stands here ends, or what is none. */
static inline size_t tokenizer__digits_end(const char *text, size_t bytes, size_t at)
{
    size_t     end = at, next;
    const bool digit = tokenizer__class_of(text, bytes, &end) == TOKENIZER__NUMBER;
    for (next = end; !digit && next < bytes && tokenizer__class_of(text, bytes, &next) != TOKENIZER__NUMBER;) end = next;
    return end;
}

static inline bool tokenizer__encode_bytes(const tokenizer *t, const char *text, size_t bytes, token_list *list)
{
    tokenizer__scratch scratch = {0};
    bool               good = true;
    for (size_t at = 0, limit = 0, end; at < bytes && good; at = end) {
        if (at == limit) limit = t->digits ? tokenizer__digits_end(text, bytes, at) : bytes;
        end = tokenizer__word_end(text, limit, at);
        good = tokenizer__merge(t, &scratch, text, at, end, list);
    }
    free(scratch.symbols);
    free(scratch.heap);
    return good;
}

/* ---- both ---- */

/* Appends the text's pieces to the list; false when memory ran out. */
static inline bool tokenizer_encode(const tokenizer *t, const char *text, size_t bytes, token_list *list)
{
    return t->merges ? tokenizer__encode_bytes(t, text, bytes, list) : tokenizer__encode_words(t, text, bytes, list);
}

/* BPE: the bytes that an id stands for, which need not be whole characters; WordPiece: the piece. "" for an id that there is
 * not. */
static inline const char *tokenizer_text(const tokenizer *t, int64_t id, size_t *bytes)
{
    bool known = id >= 0 && id < t->count && t->pieces[id].text;
    *bytes = known ? t->pieces[id].bytes : 0;
    return known ? t->pieces[id].text : "";
}

#endif
