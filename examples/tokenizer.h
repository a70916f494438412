/* tokenizer.h - texts as numbers and back, from the files that Hugging Face keeps: tokenizer.json, or
 * vocab.txt, or vocab.json with merges.txt.
 *
 *     text_error  error;
 *     tokenizer  *t = tokenizer_json("tokenizer.json", &error);              or
 *                 t = tokenizer_wordpiece("vocab.txt", true, &error);        BERT, or
 *                 t = tokenizer_bpe("vocab.json", "merges.txt", &error);     GPT-2, RoBERTa, or
 *                 t = tokenizer_open(file, merges, lower, &error);           any of these
 *                                                                            NULL: error.text says why
 *     token_list  list = {0};
 *     if (!tokenizer_encode(t, text, strlen(text), &list)) ...                            out of memory
 *     list.items[i].id, .start, .end      which piece stands for text[start .. end - 1]
 *     char *back = tokenizer_decode(t, list.items, list.count, true, &bytes)              NULL: out of memory
 *     free(back), token_list_free(&list), tokenizer_free(t)
 *
 * tokenizer.json may hold WordPiece, WordLevel, BPE (of bytes, or of characters with or without
 * byte_fallback, as Llama's) or Unigram (SentencePiece's, as T5's and XLM-R's). Known are
 *     normalizer      BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace,
 *                     Strip, StripAccents
 *     pre_tokenizer   BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, FixedLength, Metaspace,
 *                     Punctuation, Split, Whitespace, WhitespaceSplit
 *     decoder         BPEDecoder, ByteFallback, ByteLevel, Fuse, Metaspace, Replace (of ▁), Strip (of one
 *                     space), WordPiece
 *     post_processor  BertProcessing, ByteLevel, RobertaProcessing, TemplateProcessing
 * and Sequences of them; Split and Replace take the expressions that expression.h knows. Another one is a
 * failure that names it. truncation and padding are not read.
 *
 * The ids are those of Hugging Face's tokenizers for any text. tokenizer_encode adds nothing around the text;
 * tokenizer_encode_all adds what post_processor says. added_tokens in a text are tokens, as they are there:
 * take them out of a text that is not yours. Without tokenizer.json [CLS], </s> and the like in a text are
 * text, and tokenizer_id finds the special pieces. Cases and accents are those of all of Unicode (unicode.h),
 * normal forms those of Unicode 9, as tokenizers has them. Offsets count bytes. What is not UTF-8 counts as
 * U+FFFD, which BERT drops; BPE of bytes and byte_fallback keep every byte. Files are read as hostile. A
 * tokenizer may be used by several threads. */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "expression.h"
#include "json.h"
#include "unicode.h"

enum {
    TOKENIZER_MAX_FILE = 64 << 20, /* bytes */
    TOKENIZER_MAX_PIECES = 1 << 22,
    TOKENIZER_MAX_PIECE = 4096,     /* bytes, of Unigram */
    TOKENIZER_MAX_TEXT = 512 << 20, /* bytes between two added tokens */
    /* characters, beyond which WordPiece gives up, if tokenizer.json does not say */
    TOKENIZER_MAX_WORD = 100,
    TOKENIZER_MAX_ADDED = 1 << 16, /* tokens */
    TOKENIZER_MAX_STEPS = 16,      /* that a normalizer or pre_tokenizer takes */
    TOKENIZER_MAX_SUFFIX = 32,     /* bytes */
    TOKENIZER_MAX_AROUND = 8       /* tokens before a text, and behind it */
};

typedef struct token {
    int    id;
    size_t start, end;
} token;

typedef struct token_list {
    token *items;
    size_t count, capacity;
} token_list;

typedef enum tokenizer_model {
    TOKENIZER_WORDPIECE,
    TOKENIZER_WORDLEVEL,
    TOKENIZER_BPE_BYTES,
    TOKENIZER_BPE,
    TOKENIZER_UNIGRAM
} tokenizer_model;

typedef struct tokenizer_piece {
    char       *text; /* NULL: no piece has this id. BPE of bytes: the bytes it stands for */
    const char *said; /* what it adds to a text */
    size_t      bytes, said_bytes;
    double      score;         /* Unigram */
    bool        special, byte; /* byte: stands for one byte, by byte_fallback */
    bool        ends;          /* says a space for BPEDecoder's suffix, if another one follows */
} tokenizer_piece;

typedef struct tokenizer_merge {
    int left, right, result;
} tokenizer_merge;

typedef struct tokenizer_added {
    int         id;
    const char *content; /* in the file */
    char       *text;    /* what is looked for */
    size_t      bytes;
    /* left, right: with the spaces there; single: not within a word */
    bool left, right, normalized, special, single;
} tokenizer_added;

/* What is done to a text before it is looked up in the vocabulary. */
typedef enum tokenizer__kind {
    TOKENIZER__COPY,
    TOKENIZER__CHARACTERS,
    TOKENIZER__NORMAL_FORM,
    TOKENIZER__PREPEND,
    TOKENIZER__PRECOMPILED,
    TOKENIZER__REPLACE,
    TOKENIZER__STRIP,
    TOKENIZER__SPACE_FIRST,
    TOKENIZER__METASPACE,
    TOKENIZER__SPLIT,
    TOKENIZER__LENGTH,
    TOKENIZER__SPELL,
    TOKENIZER__UNSPELL
} tokenizer__kind;

enum { /* of a step, by kind */
       TOKENIZER__CLEAN = 1,
       TOKENIZER__ALONE = 2, /* ideographs */
       TOKENIZER__LOWER = 4,
       TOKENIZER__FOLD = 8,  /* takes accents off letters */
       TOKENIZER__BARE = 16, /* drops accents that stand for themselves */
       TOKENIZER__NMT = 32,
       TOKENIZER__COMPOSE = 1,
       TOKENIZER__COMPATIBLE = 2,
       TOKENIZER__LEFT = 1,
       TOKENIZER__RIGHT = 2,
       TOKENIZER__ALWAYS = 1, /* ▁ before a text; FIRST: only at its very beginning */
       TOKENIZER__FIRST = 2,
       TOKENIZER__BEFORE = 4 /* words begin with ▁ */
};

/* What becomes of the matches of a Split, and of what is between them. */
typedef enum tokenizer__behavior {
    TOKENIZER__ISOLATED,
    TOKENIZER__REMOVED,
    TOKENIZER__CONTIGUOUS,
    TOKENIZER__WITH_PREVIOUS,
    TOKENIZER__WITH_NEXT
} tokenizer__behavior;

typedef struct tokenizer__step {
    tokenizer__kind     kind;
    unsigned            flags;
    const char         *what, *with; /* becomes */
    size_t              what_bytes, with_bytes;
    expression         *by; /* of Replace and Split */
    tokenizer__behavior behavior;
    bool                inverted; /* what is between matches is split by */
} tokenizer__step;

enum {                               /* how pieces become a text again */
       TOKENIZER__SPOKEN_SPACES = 1, /* ▁ is a space */
       TOKENIZER__SPOKEN_BYTES = 2,  /* <0x0A> is a byte */
       TOKENIZER__STRIP_ONE = 4,     /* the first space goes */
       TOKENIZER__STRIP_FIRST = 8,   /* all spaces of the first piece go */
       TOKENIZER__JOIN = 16,         /* ## joins, the others have a space before them */
       TOKENIZER__CLEANUP = 32,      /* but not . and 's */
       TOKENIZER__APART = 64         /* a space before each */
};

typedef struct tokenizer {
    char            *file;   /* into which the pieces point */
    char            *spoken; /* what pieces say when it is not what they are */
    tokenizer_model  model;
    tokenizer_piece *pieces;
    int              count, capacity;
    size_t           longest; /* bytes of a piece */
    int             *slots;   /* hash table of ids; -1: free */
    uint32_t         mask;
    tokenizer__step  normalizer[TOKENIZER_MAX_STEPS], pre_tokenizer[TOKENIZER_MAX_STEPS];
    int              normalizers, pre_tokenizers;
    tokenizer_added *added;
    int              added_count;
    /* whether one begins with the byte; [1]: of those that look at a normalized text */
    bool        added_first[2][256];
    int         before[TOKENIZER_MAX_AROUND], after[TOKENIZER_MAX_AROUND], before_count, after_count;
    unsigned    decoder;
    const char *spoken_suffix; /* BPEDecoder's; NULL: none */
    int         unknown;       /* [UNK]; -1: none */
    int         max_word;      /* WordPiece */
    /* BPE: of what is not at a word's beginning, and is at its end */
    const char *prefix, *suffix;
    int         byte_piece[256]; /* BPE of bytes, and byte_fallback */
    /* whole_words: a word that is a piece is not merged */
    bool             byte_fallback, fuse_unknown, whole_words;
    double           unknown_score; /* Unigram */
    tokenizer_merge *merges;        /* by rank */
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
    for (int i = 0; i < t->normalizers; i++) expression_free(t->normalizer[i].by);
    for (int i = 0; i < t->pre_tokenizers; i++) expression_free(t->pre_tokenizer[i].by);
    for (int i = 0; i < t->added_count; i++) free(t->added[i].text);
    free(t->added);
    free(t->file);
    free(t->spoken);
    free(t->pieces);
    free(t->slots);
    free(t->merges);
    free(t->merge_slots);
    free(t);
}

/* ---- characters ---- */

/* Whether a table moves the character, which then becomes *to. */
static inline bool unicode__move(const unicode_fold *table, size_t count, uint32_t c, uint32_t *to)
{
    size_t low = 0;
    while (low < count) {
        size_t              middle = (low + count) / 2;
        const unicode_fold *fold = &table[middle];
        if (c > fold->last) {
            low = middle + 1;
        } else if (c < fold->first) {
            count = middle;
        } else {
            if ((c - fold->first) % fold->step == 0) *to = fold->to + (c - fold->first);
            return true;
        }
    }
    return false;
}
#define unicode_move(table, c, to) unicode__move(table, sizeof(table) / sizeof *(table), c, to)

/* The character lowered, as 1 or 2 characters. */
static inline int unicode_lower_of(uint32_t c, uint32_t out[2])
{
    out[0] = c;
    if (c == 0x130) out[0] = 'i', out[1] = 0x307; /* the Turkish I with a dot */
    unicode_move(unicode_lower, c, out);
    return c == 0x130 ? 2 : 1;
}

/* What a character of CJK's compatibility blocks stands for; 0: nothing else. */
static inline uint32_t unicode_compatible_of(uint32_t c)
{
    return c >= 0xf900 && c <= 0xfaff     ? unicode_from_f900[c - 0xf900]
           : c >= 0x2f800 && c <= 0x2fa1f ? unicode_from_2f800[c - 0x2f800]
                                          : 0;
}

static inline uint32_t unicode_order_of(uint32_t c)
{
    size_t low = 0, high = sizeof unicode_orders / sizeof *unicode_orders;
    while (c >= 0x80 && low < high) {
        size_t middle = (low + high) / 2;
        if (c > unicode_orders[middle][1])
            low = middle + 1;
        else if (c < unicode_orders[middle][0])
            high = middle;
        else
            return unicode_orders[middle][2];
    }
    return 0;
}

/* The character's one or two parts, which may have parts; 0: it has none. */
static inline const uint32_t *unicode__row(uint32_t c)
{
    size_t low = 0, high = sizeof unicode_parts / sizeof *unicode_parts;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > unicode_parts[middle][0])
            low = middle + 1;
        else if (c < unicode_parts[middle][0])
            high = middle;
        else
            return unicode_parts[middle];
    }
    return NULL;
}

/* What the character stands for (NFKD), as *count parts; NULL: nothing else than NFD says. */
static inline const uint16_t *unicode__stands_for(uint32_t c, int *count, uint16_t *one)
{
    size_t low = 0, high = sizeof unicode_compatible / sizeof *unicode_compatible;
    while (low < high) {
        size_t          middle = (low + high) / 2;
        const uint32_t *row = unicode_compatible[middle];
        if (c > row[1]) {
            low = middle + 1;
        } else if (c < row[0]) {
            high = middle;
        } else {
            *count = row[2] ? (int)row[2] : 1;
            *one = (uint16_t)(row[3] + (c - row[0]));
            return row[2] ? unicode_compatible_parts + row[3] + (c - row[0]) * row[2] : one;
        }
    }
    return NULL;
}

/* The character as a letter and its accents (NFD), or also as what it stands for (NFKD). Returns how many. */
static inline int unicode_parts_of(uint32_t c, bool compatible, uint32_t out[UNICODE_MOST_PARTS])
{
    int             count = 0;
    uint32_t        behind[4];
    uint16_t        one;
    const uint32_t *row;
    const uint16_t *parts;
    out[0] = c;
    if (c < 0x80) return 1;
    /* a Hangul syllable: its consonant, vowel and, mostly, last consonant */
    if (c >= 0xac00 && c < 0xac00 + 11172) {
        c -= 0xac00;
        out[0] = 0x1100 + c / 588;
        out[1] = 0x1161 + c % 588 / 28;
        out[2] = 0x11a7 + c % 28;
        return c % 28 ? 3 : 2;
    }
    uint32_t ideograph = unicode_compatible_of(c);
    if (ideograph) return out[0] = ideograph, 1;
    if (compatible && (parts = unicode__stands_for(c, &count, &one)) != NULL) {
        for (int i = 0; i < count; i++) out[i] = parts[i];
        return count;
    }
    for (; count < 3 && (row = unicode__row(c)) != NULL; c = row[1])
        if (row[2]) behind[count++] = row[2];
    out[0] = c;
    for (int i = 0; i < count; i++) out[1 + i] = behind[count - 1 - i];
    return count + 1;
}

/* The character that a letter and what follows it make (NFC); 0: none. */
static inline uint32_t unicode_composed_of(uint32_t first, uint32_t second)
{
    if (first >= 0x1100 && first < 0x1113 && second >= 0x1161 && second < 0x1176)
        return 0xac00 + ((first - 0x1100) * 21 + second - 0x1161) * 28;
    if (first >= 0xac00 && first < 0xac00 + 11172 && (first - 0xac00) % 28 == 0 && second > 0x11a7 &&
        second < 0x11c3)
        return first + second - 0x11a7;
    size_t low = 0, high = sizeof unicode_composed / sizeof *unicode_composed;
    while (low < high) {
        size_t          middle = (low + high) / 2;
        const uint32_t *row = unicode_parts[unicode_composed[middle]];
        if (row[1] == first && row[2] == second) return row[0];
        if (row[1] < first || (row[1] == first && row[2] < second))
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

/* ---- pieces and their ids ---- */

#define TOKENIZER__HASH 2166136261u

static inline uint32_t tokenizer__hash_on(uint32_t hash, char c)
{
    return (hash ^ (unsigned char)c) * 16777619u;
}

/* Where the piece of this hash stands, or where it would. */
static inline uint32_t tokenizer__slot_of(const tokenizer *t, uint32_t hash, const char *text, size_t bytes)
{
    uint32_t slot = (hash ^ hash >> 15) & t->mask;
    for (; t->slots[slot] >= 0; slot = (slot + 1) & t->mask) {
        const tokenizer_piece *piece = &t->pieces[t->slots[slot]];
        if (piece->bytes == bytes && memcmp(piece->text, text, bytes) == 0) break;
    }
    return slot;
}

static inline uint32_t tokenizer__slot(const tokenizer *t, const char *text, size_t bytes)
{
    uint32_t hash = TOKENIZER__HASH;
    for (size_t i = 0; i < bytes; i++) hash = tokenizer__hash_on(hash, text[i]);
    return tokenizer__slot_of(t, hash, text, bytes);
}

static inline int tokenizer__find(const tokenizer *t, const char *text, size_t bytes)
{
    return bytes > t->longest ? -1 : t->slots[tokenizer__slot(t, text, bytes)];
}

/* -1: there is no such piece. */
static inline int tokenizer_id(const tokenizer *t, const char *piece)
{
    for (int i = 0; i < t->added_count; i++)
        if (strcmp(t->added[i].content, piece) == 0) return t->added[i].id;
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
static inline bool tokenizer__add(tokenizer *t, int id, char *text, size_t bytes)
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
    t->pieces[id] = (tokenizer_piece){.text = text, .bytes = bytes};
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

/* ---- texts on their way to pieces ---- */

/* Where a byte comes from, and whether a word begins with it. */
typedef struct tokenizer__span {
    uint32_t from, to;
    bool     begins;
} tokenizer__span;

typedef struct tokenizer__run {
    char            *text; /* two bytes before it are its own, too */
    tokenizer__span *spans;
    size_t           bytes, capacity;
    expression_room  room;
    bool             cut, failed; /* cut: what comes next begins a word */
} tokenizer__run;

/* A part of the user's text, where spans is NULL and `first` tells where it stands, or of a run. */
typedef struct tokenizer__view {
    const char            *text;
    const tokenizer__span *spans;
    size_t                 bytes, first;
} tokenizer__view;

static inline tokenizer__span tokenizer__span_of(const tokenizer__view *v, size_t from, size_t to)
{
    if (v->spans == NULL)
        return (tokenizer__span){(uint32_t)(v->first + from), (uint32_t)(v->first + to), false};
    tokenizer__span first = v->spans[from], last = v->spans[to - 1]; /* accents may have changed places */
    return (tokenizer__span){first.from < last.from ? first.from : last.from,
                             first.to > last.to ? first.to : last.to, false};
}

static inline tokenizer__view tokenizer__part(const tokenizer__view *v, size_t from, size_t to)
{
    return (tokenizer__view){v->text + from, v->spans ? v->spans + from : NULL, to - from, v->first + from};
}

static inline void tokenizer__run_free(tokenizer__run *run)
{
    if (run->text) free(run->text - 2);
    free(run->spans);
    expression_room_free(&run->room);
}

static inline bool tokenizer__reserve(tokenizer__run *run, size_t bytes)
{
    if (run->failed || bytes <= run->capacity) return !run->failed;
    size_t capacity = bytes * 2;
    char  *text = capacity <= UINT32_MAX ? realloc(run->text ? run->text - 2 : NULL, capacity + 2) : NULL;
    tokenizer__span *spans;
    if (text) run->text = text + 2;
    if (text == NULL || (spans = realloc(run->spans, capacity * sizeof *spans)) == NULL)
        return run->failed = true, false;
    run->spans = spans;
    run->capacity = capacity;
    return true;
}

static inline void tokenizer__put(tokenizer__run *run, const char *text, size_t bytes, tokenizer__span span)
{
    if (!tokenizer__reserve(run, run->bytes + bytes)) return;
    for (size_t i = 0; i < bytes; i++) {
        span.begins = run->cut;
        run->text[run->bytes] = text[i];
        run->spans[run->bytes++] = span;
        run->cut = false;
    }
}

static inline void tokenizer__put_character(tokenizer__run *run, uint32_t c, tokenizer__span span)
{
    char utf8[4];
    tokenizer__put(run, utf8, (size_t)(text_put(utf8, c) - utf8), span);
}

/* Copies bytes, each with its own place. */
static inline void tokenizer__take(tokenizer__run *run, const tokenizer__view *v, size_t from, size_t to)
{
    if (from == to || !tokenizer__reserve(run, run->bytes + (to - from))) return;
    memcpy(run->text + run->bytes, v->text + from, to - from);
    for (size_t i = from; i < to; i++, run->cut = false) {
        run->spans[run->bytes] = tokenizer__span_of(v, i, i + 1);
        run->spans[run->bytes++].begins = run->cut;
    }
}

static inline void tokenizer__copy(const tokenizer__step *step, const tokenizer__view *v, tokenizer__run *out)
{
    (void)step;
    tokenizer__take(out, v, 0, v->bytes);
}

/* Nmt: control characters go, and some others become spaces. 0: it goes. */
static inline uint32_t tokenizer__nmt(uint32_t c)
{
    static const unicode_range gone[] = {{1, 8},       {0xb, 0xb},   {0xe, 0x1f},
                                         {0x7f, 0x7f}, {0x8f, 0x8f}, {0x9f, 0x9f}};
    static const unicode_range spaces[] = {{9, 0xa},         {0xc, 0xd},       {0x1680, 0x1680},
                                           {0x200b, 0x200f}, {0x2028, 0x2029}, {0x2581, 0x2581},
                                           {0xfeff, 0xfeff}, {0xfffd, 0xfffd}};
    return unicode_in(gone, c) ? 0 : unicode_in(spaces, c) ? ' ' : c;
}

/* A character's parts without accents, lowered; returns how many. */
static inline int tokenizer__fold(unsigned flags, uint32_t c, uint32_t out[2 * UNICODE_MOST_PARTS])
{
    uint32_t part[UNICODE_MOST_PARTS] = {c};
    int      parts = flags & TOKENIZER__FOLD ? unicode_parts_of(c, false, part) : 1, count = 0;
    for (int i = 0; i < parts; i++) {
        if (flags & TOKENIZER__FOLD && part[i] >= 0x80 && unicode_in(unicode_marks, part[i])) continue;
        out[count] = part[i];
        count += flags & TOKENIZER__LOWER ? unicode_lower_of(part[i], out + count) : 1;
    }
    return count;
}

/* BertNormalizer, Lowercase, StripAccents and Nmt. */
static inline void tokenizer__characters(const tokenizer__step *step, const tokenizer__view *v,
                                         tokenizer__run *out)
{
    for (size_t at = 0, start = 0; at < v->bytes; start = at) {
        uint32_t        c = text_next(v->text, v->bytes, &at), part[2 * UNICODE_MOST_PARTS];
        tokenizer__span span = tokenizer__span_of(v, start, at);
        if (step->flags & TOKENIZER__CLEAN && unicode_in(unicode_controls, c)) continue;
        if (step->flags & TOKENIZER__CLEAN && unicode_in(unicode_spaces, c)) c = ' ';
        if (step->flags & TOKENIZER__BARE && unicode_in(unicode_combining, c)) continue;
        if (step->flags & TOKENIZER__NMT && c && (c = tokenizer__nmt(c)) == 0) continue;
        bool alone = step->flags & TOKENIZER__ALONE && c >= 0x80 && unicode_in(unicode_ideographs, c);
        int  parts = tokenizer__fold(step->flags, c, part);
        if (alone) tokenizer__put(out, " ", 1, span);
        for (int i = 0; i < parts; i++) tokenizer__put_character(out, part[i], span);
        if (alone) tokenizer__put(out, " ", 1, span);
    }
}

typedef struct tokenizer__mark {
    uint32_t c, order; /* 0: a character that is no accent */
    int      takes;    /* how many characters of the text it stands for; 0: the last one before */
} tokenizer__mark;

typedef struct tokenizer__marks {
    tokenizer__mark *items;
    size_t           count, capacity;
} tokenizer__marks;

/* Appends the character's parts, each in its place among the accents before it. */
static inline bool tokenizer__decompose(tokenizer__marks *m, uint32_t c, bool compatible)
{
    uint32_t part[UNICODE_MOST_PARTS];
    int      parts = unicode_parts_of(c, compatible, part);
    for (int i = 0; i < parts; i++) {
        if (m->count == m->capacity) {
            size_t           capacity = m->capacity ? m->capacity * 2 : 256;
            tokenizer__mark *items = realloc(m->items, capacity * sizeof *items);
            if (items == NULL) return false;
            m->items = items;
            m->capacity = capacity;
        }
        m->items[m->count++] = (tokenizer__mark){part[i], unicode_order_of(part[i]), i == 0};
    }
    return true;
}

/* Sorts accents that follow each other, by counting: a text may be nothing but accents. */
static inline bool tokenizer__sort_marks(tokenizer__mark *items, size_t count)
{
    tokenizer__mark *sorted = malloc(count * sizeof *sorted);
    size_t           place[UNICODE_ORDERS + 1] = {0};
    if (sorted == NULL) return false;
    for (size_t i = 0; i < count; i++) place[items[i].order]++;
    for (size_t order = 1; order <= UNICODE_ORDERS; order++) place[order] += place[order - 1];
    for (size_t i = count; i-- > 0;) sorted[--place[items[i].order]] = items[i];
    memcpy(items, sorted, count * sizeof *items);
    free(sorted);
    return true;
}

static inline bool tokenizer__order_marks(tokenizer__marks *m)
{
    bool good = true;
    for (size_t from = 0, to; from < m->count && good; from = to) {
        bool sorted = true;
        for (to = from + 1; to < m->count && m->items[from].order && m->items[to].order; to++)
            sorted = sorted && m->items[to].order >= m->items[to - 1].order;
        good = sorted || tokenizer__sort_marks(m->items + from, to - from);
    }
    return good;
}

static inline void tokenizer__compose(tokenizer__marks *m)
{
    size_t count = 0, base = SIZE_MAX;
    for (size_t i = 0; i < m->count; i++) {
        tokenizer__mark mark = m->items[i];
        /* what stands between must be accents of lower order */
        bool meets = base != SIZE_MAX &&
                     (count == base + 1 || (mark.order && m->items[count - 1].order < mark.order));
        uint32_t c = meets ? unicode_composed_of(m->items[base].c, mark.c) : 0;
        if (c) {
            m->items[base].c = c;
            m->items[base].takes += mark.takes;
            continue;
        }
        if (mark.order == 0) base = count;
        m->items[count++] = mark;
    }
    m->count = count;
}

/* Puts characters that stand for those of the view in turn, each for the first that it takes, as tokenizers
 * has it. */
static inline void tokenizer__put_marks(const tokenizer__marks *m, const tokenizer__view *v,
                                        tokenizer__run *out)
{
    tokenizer__span first = {0}, last = {0};
    for (size_t i = 0, at = 0, start = 0; i < m->count; i++) {
        for (int taken = 0; taken < m->items[i].takes && at < v->bytes; taken++, start = at) {
            (void)text_next(v->text, v->bytes, &at);
            last = tokenizer__span_of(v, start, at);
            if (taken == 0) first = last;
        }
        tokenizer__put_character(out, m->items[i].c, m->items[i].takes ? first : last);
    }
}

static inline void tokenizer__normal_form(const tokenizer__step *step, const tokenizer__view *v,
                                          tokenizer__run *out)
{
    tokenizer__marks m = {0};
    bool             good = true;
    for (size_t at = 0; at < v->bytes && good;)
        good = tokenizer__decompose(&m, text_next(v->text, v->bytes, &at),
                                    step->flags & TOKENIZER__COMPATIBLE);
    good = good && tokenizer__order_marks(&m);
    if (good && step->flags & TOKENIZER__COMPOSE) tokenizer__compose(&m);
    if (good) tokenizer__put_marks(&m, v, out);
    out->failed = out->failed || !good;
    free(m.items);
}

/* Of the first character. */
static inline tokenizer__span tokenizer__first_span(const tokenizer__view *v)
{
    size_t end = 0;
    (void)text_next(v->text, v->bytes, &end);
    return tokenizer__span_of(v, 0, end);
}

static inline void tokenizer__prepend(const tokenizer__step *step, const tokenizer__view *v,
                                      tokenizer__run *out)
{
    if (v->bytes == 0) return;
    tokenizer__put(out, step->with, step->with_bytes, tokenizer__first_span(v));
    tokenizer__take(out, v, 0, v->bytes);
}

static inline void tokenizer__replace(const tokenizer__step *step, const tokenizer__view *v,
                                      tokenizer__run *out)
{
    expression_place place = {0};
    size_t           at = 0, start, end;
    int              found;
    for (; (found = expression_next(step->by, &out->room, v->text, v->bytes, &place, &start, &end)) == 1;
         at = end) {
        tokenizer__take(out, v, at, start);
        const size_t last = end ? text_back(v->text, end) : 0; /* where a match ends, or the text begins */
        tokenizer__put(out, step->with, step->with_bytes, tokenizer__span_of(v, last, end ? end : 1));
    }
    tokenizer__take(out, v, at, v->bytes);
    out->failed = out->failed || found < 0;
}

static inline void tokenizer__strip(const tokenizer__step *step, const tokenizer__view *v,
                                    tokenizer__run *out)
{
    size_t first = v->bytes, last = 0;
    for (size_t at = 0, start = 0; at < v->bytes; start = at) {
        if (unicode_in(unicode_spaces, text_next(v->text, v->bytes, &at))) continue;
        if (first == v->bytes) first = start;
        last = at;
    }
    if (!(step->flags & TOKENIZER__LEFT)) first = 0;
    if (!(step->flags & TOKENIZER__RIGHT)) last = v->bytes;
    if (first < last) tokenizer__take(out, v, first, last);
}

static inline uint32_t tokenizer__unit(const unsigned char *units, size_t at)
{
    const unsigned char *unit = units + 4 * at;
    return unit[0] | (uint32_t)unit[1] << 8 | (uint32_t)unit[2] << 16 | (uint32_t)unit[3] << 24;
}

static inline uint32_t tokenizer__unit_offset(uint32_t unit)
{
    return (unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* What SentencePiece's table, a double array behind its size and texts behind that, has for the shortest
 * beginning of these bytes; NULL: nothing. */
static inline const char *tokenizer__precompiled_of(const tokenizer__step *step, const char *key,
                                                    size_t bytes)
{
    const unsigned char *units = (const unsigned char *)step->what + 4;
    size_t size = tokenizer__unit(units - 4, 0), count = size / 4, texts = step->what_bytes - 4 - size;
    size_t node = count ? tokenizer__unit_offset(tokenizer__unit(units, 0)) : 0;
    for (size_t i = 0; i < bytes && key[i]; i++) {
        node ^= (unsigned char)key[i];
        uint32_t unit = node < count ? tokenizer__unit(units, node) : 0;
        if ((unit & 0x800000ffu) != (unsigned char)key[i]) return NULL;
        node ^= tokenizer__unit_offset(unit);
        if (!(unit >> 8 & 1)) continue;
        uint32_t place = node < count ? tokenizer__unit(units, node) & 0x7fffffffu : UINT32_MAX;
        return place < texts ? (const char *)units + size + place : NULL;
    }
    return NULL;
}

/* Where the characters that belong together (accents and the like to the one before) end. */
static inline size_t tokenizer__cluster_end(const char *text, size_t bytes, size_t at)
{
    uint32_t c = text_next(text, bytes, &at);
    bool     breaks = unicode_in(unicode_breaks, c), prepends = unicode_in(unicode_prepends, c);
    if (c == '\r' && at < bytes && text[at] == '\n') return at + 1;
    for (size_t peek = at; peek < bytes && !breaks; at = peek) {
        c = text_next(text, bytes, &peek);
        if (!unicode_in(unicode_extends, c) && (!prepends || unicode_in(unicode_breaks, c))) break;
        prepends = unicode_in(unicode_prepends, c);
    }
    return at;
}

/* As Hugging Face reads the table: what belongs together as a whole, when that is less than 6 bytes, and else
 * each character. */
static inline void tokenizer__precompiled(const tokenizer__step *step, const tokenizer__view *v,
                                          tokenizer__run *out)
{
    enum { WHOLE = 6 };
    const size_t begun = out->bytes;
    for (size_t at = 0, whole = 0, end; at < v->bytes; at = end) {
        const char *with = NULL;
        if (at >= whole) {
            whole = end = tokenizer__cluster_end(v->text, v->bytes, at);
            if (end - at < WHOLE) with = tokenizer__precompiled_of(step, v->text + at, end - at);
        }
        if (with == NULL) {
            end = at;
            (void)text_next(v->text, v->bytes, &end);
            with = tokenizer__precompiled_of(step, v->text + at, end - at);
        }
        /* what goes at the beginning belongs to what comes first */
        const size_t from = out->bytes > begun ? at : 0;
        if (with || from < at)
            tokenizer__put(out, with ? with : v->text + at, with ? strlen(with) : end - at,
                           tokenizer__span_of(v, from, end));
        else
            tokenizer__take(out, v, at, end);
    }
}

/* ---- words ---- */

static inline bool tokenizer__begins(const tokenizer__view *v, size_t at, const char *with, size_t bytes)
{
    return v->bytes - at >= bytes && memcmp(v->text + at, with, bytes) == 0;
}

/* Spaces become ▁, at which words begin. */
static inline void tokenizer__metaspace(const tokenizer__step *step, const tokenizer__view *v,
                                        tokenizer__run *out)
{
    if (v->bytes == 0) return;
    const tokenizer__span span = tokenizer__first_span(v);
    bool wanted = step->flags & TOKENIZER__ALWAYS || (step->flags & TOKENIZER__FIRST && span.from == 0);
    if (wanted && v->text[0] != ' ' && !tokenizer__begins(v, 0, step->with, step->with_bytes))
        tokenizer__put(out, step->with, step->with_bytes, span);
    for (size_t at = 0, bytes; at < v->bytes; at += bytes) {
        bool space = v->text[at] == ' ', mark = tokenizer__begins(v, at, step->with, step->with_bytes);
        bytes = mark ? step->with_bytes : 1;
        if ((space || mark) && step->flags & TOKENIZER__BEFORE) out->cut = true;
        if (space)
            tokenizer__put(out, step->with, step->with_bytes, tokenizer__span_of(v, at, at + 1));
        else
            tokenizer__take(out, v, at, at + bytes);
    }
}

/* ByteLevel's add_prefix_space. */
static inline void tokenizer__space_first(const tokenizer__step *step, const tokenizer__view *v,
                                          tokenizer__run *out)
{
    const tokenizer__step space = {.with = " ", .with_bytes = 1};
    (void)step;
    if (v->bytes && v->text[0] != ' ')
        tokenizer__prepend(&space, v, out);
    else
        tokenizer__take(out, v, 0, v->bytes);
}

/* What a Split does with a part of a text, a match or what is between two; *before: whether the part before
 * was a match. */
static inline void tokenizer__split_part(const tokenizer__step *step, const tokenizer__view *v, size_t from,
                                         size_t to, bool match, bool *before, tokenizer__run *out)
{
    if (from == to && !match) return;
    match = match != step->inverted;
    switch (step->behavior) {
    case TOKENIZER__ISOLATED:
    case TOKENIZER__REMOVED: out->cut = true; break;
    case TOKENIZER__CONTIGUOUS: out->cut = out->cut || match != *before; break;
    case TOKENIZER__WITH_PREVIOUS: out->cut = out->cut || !match || *before; break;
    case TOKENIZER__WITH_NEXT: out->cut = out->cut || match || !*before; break;
    }
    if (!(match && step->behavior == TOKENIZER__REMOVED)) tokenizer__take(out, v, from, to);
    *before = match;
}

static inline void tokenizer__split(const tokenizer__step *step, const tokenizer__view *v,
                                    tokenizer__run *out)
{
    expression_place place = {0};
    size_t           at = 0, start, end;
    int              found;
    bool             before = false;
    for (; (found = expression_next(step->by, &out->room, v->text, v->bytes, &place, &start, &end)) == 1;
         at = end) {
        tokenizer__split_part(step, v, at, start, false, &before, out);
        tokenizer__split_part(step, v, start, end, true, &before, out);
    }
    tokenizer__split_part(step, v, at, v->bytes, false, &before, out);
    out->failed = out->failed || found < 0;
}

/* FixedLength: words of so many characters. */
static inline void tokenizer__length(const tokenizer__step *step, const tokenizer__view *v,
                                     tokenizer__run *out)
{
    unsigned count = 0;
    for (size_t at = 0, start = 0; at < v->bytes; start = at, count++) {
        (void)text_next(v->text, v->bytes, &at);
        out->cut = out->cut || count % step->flags == 0;
        tokenizer__take(out, v, start, at);
    }
}

/* The character that stands for each byte in the files: printable ones for themselves, the rest from U+0100
 * on. */
static inline uint32_t tokenizer__byte_character(int byte)
{
    int others = byte <= 32 ? byte : byte <= 160 ? 33 + byte - 127 : 67;
    return (byte > 32 && byte < 127) || (byte > 160 && byte != 173) ? (uint32_t)byte : 256 + (uint32_t)others;
}

/* The byte that a character of the files stands for; -1: none. */
static inline int tokenizer__spelled_byte(uint32_t c)
{
    int byte = c < 256 ? (int)c : c <= 288 ? (int)c - 256 : c <= 322 ? (int)c - 256 - 33 + 127 : 173;
    return tokenizer__byte_character(byte) == c ? byte : -1;
}

/* What splits behind a ByteLevel sees the characters that stand for bytes. */
static inline void tokenizer__spell(const tokenizer__step *step, const tokenizer__view *v,
                                    tokenizer__run *out)
{
    (void)step;
    for (size_t i = 0; i < v->bytes; i++)
        tokenizer__put_character(out, tokenizer__byte_character((unsigned char)v->text[i]),
                                 tokenizer__span_of(v, i, i + 1));
}

static inline void tokenizer__unspell(const tokenizer__step *step, const tokenizer__view *v,
                                      tokenizer__run *out)
{
    (void)step;
    for (size_t at = 0, start = 0; at < v->bytes; start = at) {
        const char byte = (char)tokenizer__spelled_byte(text_next(v->text, v->bytes, &at));
        tokenizer__put(out, &byte, 1, tokenizer__span_of(v, start, at));
    }
}

/* The end of the word of the view that begins at `at`. */
static inline size_t tokenizer__next_word(const tokenizer__view *v, size_t at)
{
    size_t end = at + 1;
    while (end < v->bytes && v->spans && !v->spans[end].begins) end++;
    return v->spans ? end : v->bytes;
}

/* Takes the steps one after another, on one run and the other in turn; the view is then of the last one's. */
static inline bool tokenizer__walk(const tokenizer__step *steps, int count, tokenizer__view *v,
                                   tokenizer__run *even, tokenizer__run *odd)
{
    static void (*const walk[])(const tokenizer__step *, const tokenizer__view *, tokenizer__run *) = {
        tokenizer__copy,        tokenizer__characters, tokenizer__normal_form, tokenizer__prepend,
        tokenizer__precompiled, tokenizer__replace,    tokenizer__strip,       tokenizer__space_first,
        tokenizer__metaspace,   tokenizer__split,      tokenizer__length,      tokenizer__spell,
        tokenizer__unspell};
    for (int i = 0; i < count; i++) {
        tokenizer__run *out = i % 2 ? odd : even;
        out->bytes = 0;
        if (!tokenizer__reserve(out, 1)) return false;
        for (size_t at = 0, end; at < v->bytes; at = end) {
            end = tokenizer__next_word(v, at);
            tokenizer__view word = tokenizer__part(v, at, end);
            out->cut = true;
            walk[steps[i].kind](&steps[i], &word, out);
        }
        if (out->failed) return false;
        *v = (tokenizer__view){out->text, out->spans, out->bytes, 0};
    }
    return true;
}

/* ---- models ---- */

typedef struct tokenizer__symbol {
    int    id, previous, next; /* id -1: merged into the one before it; next and previous -1: none */
    size_t start, end;
} tokenizer__symbol;

typedef struct tokenizer__candidate {
    int rank, at;
} tokenizer__candidate;

/* The best way to a place of a word: its score, and the piece that ends there. */
typedef struct tokenizer__node {
    double   score;
    int      id; /* -1: no way yet */
    uint32_t from;
} tokenizer__node;

typedef struct tokenizer__scratch {
    tokenizer__symbol    *symbols;
    tokenizer__candidate *heap;  /* lowest rank first, then leftmost */
    tokenizer__node      *nodes; /* Unigram */
    int                   heap_count;
    size_t                capacity; /* bytes of a word for which these have room */
    tokenizer__run        runs[3];
} tokenizer__scratch;

static inline void tokenizer__scratch_free(tokenizer__scratch *s)
{
    free(s->symbols);
    free(s->heap);
    free(s->nodes);
    for (int i = 0; i < 3; i++) tokenizer__run_free(&s->runs[i]);
}

static inline bool tokenizer__add_token(token_list *list, int id, const tokenizer__view *v, size_t from,
                                        size_t to)
{
    tokenizer__span span = tokenizer__span_of(v, from, to);
    return token_list_add(list, id, span.from, span.to);
}

/* WordPiece: the longest piece first, again and again; one [UNK] for a word that does not come out even. The
 * word is overwritten by ##. */
static inline bool tokenizer__pieces(const tokenizer *t, char *text, const tokenizer__view *word,
                                     token_list *list)
{
    size_t before = list->count, characters = 0;
    for (size_t i = 0; i < word->bytes; i++) characters += i == 0 || ((unsigned char)text[i] & 0xc0) != 0x80;
    for (size_t from = 0, to; characters <= (size_t)t->max_word && from < word->bytes; from = to) {
        size_t prefix = from > 0 ? 2 : 0;
        int    id = -1;
        if (prefix) memcpy(text + from - 2, "##", 2);
        for (to = word->bytes; to > from; to = text_back(text, to))
            if ((id = tokenizer__find(t, text + from - prefix, to - from + prefix)) >= 0) break;
        if (id < 0) {
            list->count = before;
            break;
        }
        if (!tokenizer__add_token(list, id, word, from, to)) return false;
    }
    return list->count > before || tokenizer__add_token(list, t->unknown, word, 0, word->bytes);
}

static inline uint32_t tokenizer__merge_slot(const tokenizer *t, int left, int right)
{
    uint32_t hash = ((uint32_t)left * 2654435761u ^ (uint32_t)right) * 2246822519u,
             slot = (hash ^ hash >> 15) & t->merge_mask;
    for (int rank; (rank = t->merge_slots[slot]) >= 0; slot = (slot + 1) & t->merge_mask)
        if (t->merges[rank].left == left && t->merges[rank].right == right) break;
    return slot;
}

static inline bool tokenizer__before(tokenizer__candidate a, tokenizer__candidate b)
{
    return a.rank < b.rank || (a.rank == b.rank && a.at < b.at);
}

/* The merge of the symbol with its right neighbour, if there is one, becomes a candidate. */
static inline void tokenizer__push(const tokenizer *t, tokenizer__scratch *s, int at)
{
    int right = at >= 0 ? s->symbols[at].next : -1;
    int rank = right >= 0 ? t->merge_slots[tokenizer__merge_slot(t, s->symbols[at].id, s->symbols[right].id)]
                          : -1;
    if (rank < 0) return;
    tokenizer__candidate c = {rank, at};
    int                  i = s->heap_count++;
    for (; i > 0 && tokenizer__before(c, s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
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

static inline bool tokenizer__make_room(tokenizer__scratch *s, size_t bytes, bool unigram)
{
    size_t capacity = bytes * 2;
    void  *symbols, *heap, *nodes;
    if (bytes <= s->capacity) return true;
    if (unigram) {
        if ((nodes = realloc(s->nodes, capacity * sizeof *s->nodes)) == NULL) return false;
        s->nodes = nodes;
    } else {
        if ((symbols = realloc(s->symbols, capacity * sizeof *s->symbols)) == NULL) return false;
        s->symbols = symbols;
        /* every merge takes one symbol away and adds at most two candidates */
        if ((heap = realloc(s->heap, 3 * capacity * sizeof *s->heap)) == NULL) return false;
        s->heap = heap;
    }
    s->capacity = capacity;
    return true;
}

static inline void tokenizer__add_symbol(tokenizer__scratch *s, int *count, int id, size_t start, size_t end)
{
    int i = (*count)++;
    s->symbols[i] = (tokenizer__symbol){id, i - 1, -1, start, end};
    if (i > 0) s->symbols[i - 1].next = i;
}

/* The piece of a word's character, or byte, with the prefix of those that are not its first, and the suffix
 * of its last. */
static inline int tokenizer__find_within(const tokenizer *t, const tokenizer__view *word, size_t at,
                                         size_t end)
{
    const char *prefix = at > 0 && t->prefix ? t->prefix : "",
               *suffix = end == word->bytes && t->suffix ? t->suffix : "";
    char   text[2 * TOKENIZER_MAX_SUFFIX + 4];
    size_t bytes = strlen(prefix);
    memcpy(text, prefix, bytes);
    memcpy(text + bytes, word->text + at, end - at);
    bytes += end - at;
    memcpy(text + bytes, suffix, strlen(suffix));
    return tokenizer__find(t, text, bytes + strlen(suffix));
}

/* A word's bytes, or its characters: those that are no piece as bytes, or as the unknown piece, or left out
 * when there is none. */
static inline int tokenizer__symbols(const tokenizer *t, tokenizer__scratch *s, const tokenizer__view *word)
{
    int  count = 0;
    bool unknown = false;
    for (size_t at = 0, end; at < word->bytes; at = end) {
        const unsigned char *text = (const unsigned char *)word->text;
        end = at + 1;
        if (t->model == TOKENIZER_BPE_BYTES && !t->suffix && !t->prefix) {
            tokenizer__add_symbol(s, &count, t->byte_piece[text[at]], at, end);
            continue;
        }
        if (t->model != TOKENIZER_BPE_BYTES) {
            end = at;
            (void)text_next(word->text, word->bytes, &end);
        }
        const int  id = tokenizer__find_within(t, word, at, end);
        const bool again = unknown && t->fuse_unknown;
        unknown = false;
        if (id >= 0) {
            tokenizer__add_symbol(s, &count, id, at, end);
        } else if (t->byte_fallback) {
            for (size_t i = at; i < end; i++)
                tokenizer__add_symbol(s, &count, t->byte_piece[text[i]], i, i + 1);
        } else if (t->unknown >= 0) {
            unknown = true;
            if (again)
                s->symbols[count - 1].end = end;
            else
                tokenizer__add_symbol(s, &count, t->unknown, at, end);
        }
    }
    return count;
}

/* BPE: merges of two neighbours, the lowest rank first and among equals the leftmost, until none is left. */
static inline bool tokenizer__merge(const tokenizer *t, tokenizer__scratch *s, const tokenizer__view *word,
                                    token_list *list)
{
    const int whole = t->whole_words ? tokenizer__find(t, word->text, word->bytes) : -1;
    if (whole >= 0) return tokenizer__add_token(list, whole, word, 0, word->bytes);
    if (!tokenizer__make_room(s, word->bytes, false)) return false;
    int count = tokenizer__symbols(t, s, word);
    s->heap_count = 0;
    for (int i = 0; i < count; i++) tokenizer__push(t, s, i);
    while (s->heap_count > 0) {
        tokenizer__candidate   c = tokenizer__pop(s);
        const tokenizer_merge *merge = &t->merges[c.rank];
        tokenizer__symbol     *left = &s->symbols[c.at],
                          *right = left->next >= 0 ? &s->symbols[left->next] : NULL;
        /* gone meanwhile */
        if (right == NULL || left->id != merge->left || right->id != merge->right) continue;
        left->id = merge->result;
        left->end = right->end;
        left->next = right->next;
        if (right->next >= 0) s->symbols[right->next].previous = c.at;
        right->id = -1;
        tokenizer__push(t, s, left->previous);
        tokenizer__push(t, s, c.at);
    }
    for (int i = 0; count > 0 && i >= 0; i = s->symbols[i].next)
        if (!tokenizer__add_token(list, s->symbols[i].id, word, s->symbols[i].start, s->symbols[i].end))
            return false;
    return true;
}

static inline void tokenizer__reach(tokenizer__node *node, double score, int id, size_t from)
{
    if (node->id < 0 || score > node->score) *node = (tokenizer__node){score, id, (uint32_t)from};
}

/* The pieces that begin at `at` lead on from there, and the unknown one if no piece is this character
 * alone. */
static inline void tokenizer__lead_on(const tokenizer *t, const tokenizer__view *word, size_t at,
                                      size_t character, tokenizer__node *nodes)
{
    size_t   most = word->bytes - at < t->longest ? word->bytes - at : t->longest;
    uint32_t hash = TOKENIZER__HASH;
    bool     alone = false;
    for (size_t bytes = 1; bytes <= most; bytes++) {
        hash = tokenizer__hash_on(hash, word->text[at + bytes - 1]);
        const int id = t->slots[tokenizer__slot_of(t, hash, word->text + at, bytes)];
        if (id < 0) continue;
        tokenizer__reach(&nodes[at + bytes], nodes[at].score + t->pieces[id].score, id, at);
        alone = alone || bytes == character;
    }
    if (!alone) tokenizer__reach(&nodes[at + character], nodes[at].score + t->unknown_score, t->unknown, at);
}

static inline bool tokenizer__add_unknown(const tokenizer *t, const tokenizer__view *word, size_t from,
                                          size_t to, token_list *list)
{
    const int id = tokenizer__find(t, word->text + from, to - from);
    bool      good = true;
    if (id >= 0 || !t->byte_fallback)
        return tokenizer__add_token(list, id >= 0 ? id : t->unknown, word, from, to);
    for (size_t i = from; i < to && good; i++)
        good = tokenizer__add_token(list, t->byte_piece[(unsigned char)word->text[i]], word, from, to);
    return good;
}

/* Unigram: the pieces whose scores have the highest sum (Viterbi); unknown characters side by side are one
 * piece. */
static inline bool tokenizer__best_way(const tokenizer *t, tokenizer__scratch *s, const tokenizer__view *word,
                                       token_list *list)
{
    if (!tokenizer__make_room(s, word->bytes + 1, true)) return false;
    for (size_t i = 0; i <= word->bytes; i++) s->nodes[i] = (tokenizer__node){0, -1, 0};
    for (size_t at = 0, end; at < word->bytes; at = end) {
        end = at;
        (void)text_next(word->text, word->bytes, &end);
        tokenizer__lead_on(t, word, at, end - at, s->nodes);
    }
    size_t next = 0;
    for (size_t at = word->bytes, from; at > 0; at = from) { /* turns the way round */
        from = s->nodes[at].from;
        s->nodes[at].from = (uint32_t)next;
        next = at;
    }
    bool good = true;
    for (size_t at = 0, to = next; to > 0 && good; at = to, to = next) {
        const bool unknown = s->nodes[to].id == t->unknown;
        next = s->nodes[to].from;
        for (; unknown && next > 0 && s->nodes[next].id == t->unknown; next = s->nodes[to].from) to = next;
        good = unknown ? tokenizer__add_unknown(t, word, at, to, list)
                       : tokenizer__add_token(list, s->nodes[to].id, word, at, to);
    }
    return good;
}

/* WordLevel: a word is a piece, or unknown. */
static inline bool tokenizer__whole(const tokenizer *t, const tokenizer__view *word, token_list *list)
{
    const int id = tokenizer__find(t, word->text, word->bytes);
    return tokenizer__add_token(list, id >= 0 ? id : t->unknown, word, 0, word->bytes);
}

/* ---- texts ---- */

static inline bool tokenizer__encode_word(const tokenizer *t, tokenizer__scratch *s, char *text,
                                          const tokenizer__view *word, token_list *list)
{
    return t->model == TOKENIZER_WORDPIECE   ? tokenizer__pieces(t, text, word, list)
           : t->model == TOKENIZER_WORDLEVEL ? tokenizer__whole(t, word, list)
           : t->model == TOKENIZER_UNIGRAM   ? tokenizer__best_way(t, s, word, list)
                                             : tokenizer__merge(t, s, word, list);
}

static inline bool tokenizer__is_space_at(const char *text, size_t bytes, size_t at, size_t *end)
{
    *end = at;
    return at < bytes && unicode_in(unicode_spaces, text_next(text, bytes, end));
}

/* The longest added piece that begins at `at`; NULL: none. */
static inline const tokenizer_added *tokenizer__added_at(const tokenizer *t, bool normalized,
                                                         const tokenizer__view *v, size_t at)
{
    const tokenizer_added *best = NULL;
    if (!t->added_first[normalized][(unsigned char)v->text[at]]) return NULL;
    for (int i = 0; i < t->added_count; i++) {
        const tokenizer_added *a = &t->added[i];
        if (a->normalized != normalized || (best && a->bytes <= best->bytes)) continue;
        if (tokenizer__begins(v, at, a->text, a->bytes)) best = a;
    }
    return best;
}

/* Whether a word goes on before or behind what stands there. */
static inline bool tokenizer__is_within(const tokenizer__view *v, size_t start, size_t end)
{
    size_t         before = start > 0 ? text_back(v->text, start) : 0;
    const uint32_t left = start > 0 ? text_next(v->text, v->bytes, &before) : ' ';
    const uint32_t right = end < v->bytes ? text_next(v->text, v->bytes, &end) : ' ';
    return unicode_is_word(left) || unicode_is_word(right) || (left & ~1u) == 0x200c ||
           (right & ~1u) == 0x200c;
}

/* The first added piece from `at` on; NULL: none. */
static inline const tokenizer_added *tokenizer__next_added(const tokenizer *t, bool normalized,
                                                           const tokenizer__view *v, size_t at, size_t *start,
                                                           size_t *end)
{
    const tokenizer_added *best = NULL;
    size_t                 next;
    for (*start = at; *start < v->bytes; *start += best ? best->bytes : 1) {
        best = tokenizer__added_at(t, normalized, v, *start);
        if (best && !(best->single && tokenizer__is_within(v, *start, *start + best->bytes))) break;
    }
    if (*start == v->bytes) return NULL;
    *end = *start + best->bytes;
    while (best->right && tokenizer__is_space_at(v->text, v->bytes, *end, &next)) *end = next;
    while (best->left && *start > at) {
        const size_t before = text_back(v->text, *start);
        if (before < at || !tokenizer__is_space_at(v->text, v->bytes, before, &next)) break;
        *start = before;
    }
    return best;
}

/* What stands between added pieces, as words. */
static inline bool tokenizer__encode_between(const tokenizer *t, tokenizer__scratch *s, tokenizer__view v,
                                             token_list *list)
{
    tokenizer__run *last = &s->runs[t->normalizers % 2];
    if (!tokenizer__walk(t->pre_tokenizer, t->pre_tokenizers, &v, &s->runs[2], last)) return false;
    if (t->pre_tokenizers % 2) last = &s->runs[2];
    bool good = true;
    for (size_t at = 0, end; at < v.bytes && good; at = end) {
        end = tokenizer__next_word(&v, at);
        const tokenizer__view word = tokenizer__part(&v, at, end);
        good = tokenizer__encode_word(t, s, last->text + at, &word, list);
    }
    return good;
}

/* Takes added pieces out of a text, and goes on with what is between them: of the text itself, then of its
 * normalized parts. */
static inline bool tokenizer__encode(const tokenizer *t, tokenizer__scratch *s, bool normalized,
                                     tokenizer__view v, token_list *list)
{
    bool good = v.bytes <= TOKENIZER_MAX_TEXT;
    for (size_t at = 0, start, end; good && at < v.bytes; at = end) {
        const tokenizer_added *added = tokenizer__next_added(t, normalized, &v, at, &start, &end);
        tokenizer__view        part = tokenizer__part(&v, at, start);
        if (normalized)
            good = tokenizer__encode_between(t, s, part, list);
        else
            good = tokenizer__walk(t->normalizer, t->normalizers, &part, &s->runs[0], &s->runs[1]) &&
                   tokenizer__encode(t, s, true, part, list);
        if (added == NULL) break;
        good = good && tokenizer__add_token(list, added->id, &v, start, end);
    }
    return good;
}

/* Appends the text's pieces to the list; false when memory ran out, or the text is longer than
 * TOKENIZER_MAX_TEXT. */
static inline bool tokenizer_encode(const tokenizer *t, const char *text, size_t bytes, token_list *list)
{
    tokenizer__scratch    scratch = {0};
    const tokenizer__view whole = {text, NULL, bytes, 0};
    const bool            good = tokenizer__encode(t, &scratch, false, whole, list);
    tokenizer__scratch_free(&scratch);
    return good;
}

/* The same with the tokens before and behind a text that post_processor tells, which stand for none of its
 * bytes. */
static inline bool tokenizer_encode_all(const tokenizer *t, const char *text, size_t bytes, token_list *list)
{
    bool good = true;
    for (int i = 0; i < t->before_count && good; i++) good = token_list_add(list, t->before[i], 0, 0);
    good = good && tokenizer_encode(t, text, bytes, list);
    for (int i = 0; i < t->after_count && good; i++) good = token_list_add(list, t->after[i], bytes, bytes);
    return good;
}

/* The bytes that an id adds to a text, which need not be whole characters; WordPiece: the piece. "" for an id
 * that there is not. */
static inline const char *tokenizer_text(const tokenizer *t, int64_t id, size_t *bytes)
{
    bool known = id >= 0 && id < t->count && t->pieces[id].said;
    *bytes = known ? t->pieces[id].said_bytes : 0;
    return known ? t->pieces[id].said : "";
}

/* Whether a piece joins the one before it without a space, of those that cleanup knows. */
static inline bool tokenizer__joins(const tokenizer *t, const char *text, size_t bytes)
{
    static const char *const marks[] = {".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"};
    for (size_t i = 0; t->decoder & TOKENIZER__CLEANUP && i < sizeof marks / sizeof *marks; i++)
        if (bytes >= strlen(marks[i]) && memcmp(text, marks[i], strlen(marks[i])) == 0) return true;
    return false;
}

/* Appends what a piece says, the first one or another. */
static inline size_t tokenizer__say(const tokenizer *t, const tokenizer_piece *piece, bool first, char *to)
{
    const char *text = piece->said;
    size_t      bytes = piece->said_bytes, at = 0;
    if (t->decoder & TOKENIZER__JOIN && !first && bytes >= 2 && memcmp(text, "##", 2) == 0) {
        text += 2;
        bytes -= 2;
    } else if (!first && (t->decoder & TOKENIZER__APART ||
                          (t->decoder & TOKENIZER__JOIN && !tokenizer__joins(t, text, bytes)))) {
        to[at++] = ' ';
    }
    for (size_t i = 0; i < bytes; i++)
        if (!(first && t->decoder & TOKENIZER__STRIP_FIRST && text[i] == ' ')) to[at++] = text[i];
    return at;
}

/* Bytes that are no characters become U+FFFD each; what there is room for 3 times. */
static inline size_t tokenizer__mend(char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        const size_t start = at;
        if (text_next(text, bytes, &at) != 0xfffd || at - start == 3) continue;
        for (size_t i = 0; i < bytes; i++) memcpy(text + 3 * i, "\xef\xbf\xbd", 3);
        return 3 * bytes;
    }
    return bytes;
}

/* The text that tokens make, to be freed, with a 0 behind its bytes; NULL: out of memory. Without special
 * pieces, if they are skipped, and without ids that there are not. */
static inline char *tokenizer_decode(const tokenizer *t, const token *tokens, size_t count,
                                     bool skip_special_tokens, size_t *bytes)
{
    size_t room = 1, from = 0;
    bool   first = true, ends = false;
    *bytes = 0;
    for (size_t i = 0; i < count; i++) {
        size_t length;
        (void)tokenizer_text(t, tokens[i].id, &length);
        room += 3 * length + 1;
    }
    char *text = malloc(room);
    for (size_t i = 0; text && i < count; i++) {
        const int id = tokens[i].id;
        if (id < 0 || id >= t->count || t->pieces[id].said == NULL ||
            (skip_special_tokens && t->pieces[id].special))
            continue;
        if (!t->pieces[id].byte) *bytes = from + tokenizer__mend(text + from, *bytes - from);
        *bytes += tokenizer__say(t, &t->pieces[id], first, text + *bytes);
        if (!t->pieces[id].byte) from = *bytes;
        first = false;
        ends = t->pieces[id].ends;
    }
    if (text == NULL) return NULL;
    *bytes = from + tokenizer__mend(text + from, *bytes - from);
    if (ends) --*bytes;
    if (t->decoder & TOKENIZER__STRIP_ONE && *bytes > 0 && text[0] == ' ') memmove(text, text + 1, --*bytes);
    text[*bytes] = 0;
    return text;
}

/* ---- vocabularies as lines ---- */

/* What has text and pieces yet, but nothing else; takes the text, which was allocated. */
static inline tokenizer *tokenizer__new(char *file, tokenizer_model model, text_error *error)
{
    tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL || file == NULL) {
        free(t);
        free(file);
        text_fail(error, "out of memory");
        return NULL;
    }
    t->file = file;
    t->model = model;
    t->unknown = -1;
    t->max_word = TOKENIZER_MAX_WORD;
    return t;
}

/* Pieces say what they are. */
static inline void tokenizer__speak(tokenizer *t)
{
    for (int id = 0; id < t->count; id++)
        t->pieces[id].said = t->pieces[id].text, t->pieces[id].said_bytes = t->pieces[id].bytes;
}

static inline tokenizer *tokenizer__done(tokenizer *t, bool good)
{
    if (good) return t;
    tokenizer_free(t);
    return NULL;
}

/* How texts are split where their pre_tokenizer does not say it: GPT-2's expression; numbers as Rust knows
 * them, of Unicode 17; words and what is between words and spaces, where Rust's \w has two characters more
 * than Oniguruma's. */
#define TOKENIZER__SPACES "\\s"
#define TOKENIZER__GPT2 "'(?:[stmd]|re|ve|ll)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define TOKENIZER__NUMBERS "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]"
#define TOKENIZER__WORDS "[\\w\\u200c\\u200d]+|[^\\w\\s\\u200c\\u200d]+"

/* Takes the expression; false: it is NULL, or there are too many steps. */
static inline bool tokenizer__add_split(tokenizer *t, expression *by, tokenizer__behavior behavior,
                                        bool inverted)
{
    if (by == NULL || t->pre_tokenizers == TOKENIZER_MAX_STEPS) return expression_free(by), false;
    t->pre_tokenizer[t->pre_tokenizers++] = (tokenizer__step){
        .kind = TOKENIZER__SPLIT, .by = by, .behavior = behavior, .inverted = inverted};
    return true;
}

static inline bool tokenizer__split_by(tokenizer *t, const char *text, tokenizer__behavior behavior)
{
    const char *why;
    return tokenizer__add_split(t, expression_of(text, strlen(text), &why), behavior, false);
}

static inline bool tokenizer__split_marks(tokenizer *t, tokenizer__behavior behavior)
{
    const char  *why;
    const size_t count = sizeof unicode_punctuation / sizeof *unicode_punctuation;
    return tokenizer__add_split(t, expression_of_ranges(unicode_punctuation, count, &why), behavior, false);
}

/* Takes the text, bytes and a 0 behind them, which was allocated; one piece a line. name: for messages. */
static inline tokenizer *tokenizer_wordpiece_of(char *text, size_t bytes, const char *name, bool lower,
                                                text_error *error)
{
    tokenizer *t = tokenizer__new(text, TOKENIZER_WORDPIECE, error);
    bool       good = t != NULL;
    int        line = 0;
    for (char *at = text, *end = text + (good ? bytes : 0); good && at < end; line++) {
        char *stop = memchr(at, '\n', (size_t)(end - at)), *next = stop ? stop + 1 : end;
        if (stop == NULL) stop = end;
        if (stop > at && stop[-1] == '\r') stop--;
        if (stop == at)
            good = text_fail(error, "%s:%d: the line is empty, but a piece is expected", name, line + 1);
        else if (line == TOKENIZER_MAX_PIECES)
            good = text_fail(error, "%s has more than %d lines", name, TOKENIZER_MAX_PIECES);
        else if (!tokenizer__add(t, line, at, (size_t)(stop - at)))
            good = text_fail(error, "out of memory: '%s' has too many pieces", name);
        at = next;
    }
    good = good && tokenizer__index(t, name, error);
    if (good && (t->unknown = tokenizer_id(t, "[UNK]")) < 0)
        good = text_fail(error, "%s: there is no line [UNK]; is it a vocabulary of BERT, one piece a line?",
                         name);
    if (!good) return tokenizer__done(t, false);
    if (!tokenizer__split_by(t, TOKENIZER__SPACES, TOKENIZER__REMOVED) ||
        !tokenizer__split_marks(t, TOKENIZER__ISOLATED)) {
        text_fail(error, "out of memory");
        return tokenizer__done(t, false);
    }
    t->normalizers = 1;
    t->normalizer[0] = (tokenizer__step){.kind = TOKENIZER__CHARACTERS,
                                         .flags = TOKENIZER__CLEAN | TOKENIZER__ALONE |
                                                  (lower ? TOKENIZER__FOLD | TOKENIZER__LOWER : 0)};
    t->decoder = TOKENIZER__JOIN | TOKENIZER__CLEANUP;
    tokenizer__speak(t);
    return t;
}

/* vocab.txt, one piece a line, the first with id 0. lower: for the uncased models. */
static inline tokenizer *tokenizer_wordpiece(const char *path, bool lower, text_error *error)
{
    size_t bytes;
    char  *text = text_read(path, TOKENIZER_MAX_FILE, &bytes, error);
    return text ? tokenizer_wordpiece_of(text, bytes, path, lower, error) : NULL;
}

/* ---- vocabularies of BPE ---- */

/* The bytes that characters of the files stand for, in their place; -1: one of them stands for none. */
static inline long tokenizer__to_bytes(char *text, size_t bytes)
{
    size_t to = 0;
    for (size_t at = 0; at < bytes;) {
        const int byte = tokenizer__spelled_byte(text_next(text, bytes, &at));
        if (byte < 0) return -1;
        text[to++] = (char)byte;
    }
    return (long)to;
}

/* The object of pieces and their ids. */
static inline bool tokenizer__read_vocabulary(tokenizer *t, json *j)
{
    char  *piece;
    size_t bytes;
    bool   good = json_object(j);
    while (good && (piece = json_key(j, &bytes)) != NULL) {
        int  id = json_int(j, piece, 0, TOKENIZER_MAX_PIECES - 1);
        long raw = j->failed                         ? 0
                   : t->model == TOKENIZER_BPE_BYTES ? tokenizer__to_bytes(piece, bytes)
                                                     : (long)bytes;
        if (j->failed || raw <= 0)
            good = json_fail(j, "a piece is empty or holds a character that stands for no byte; is it a "
                                "byte-level vocabulary?");
        else if (id < t->count && t->pieces[id].text)
            good = json_fail(j, "another piece already has the id of this piece");
        else if (!tokenizer__add(t, id, piece, (size_t)raw))
            good = json_fail(j, "out of memory: there are too many pieces");
    }
    return good && !j->failed;
}

/* A merge as it is written. */
typedef struct tokenizer__pair {
    char  *left, *right;
    size_t left_bytes, right_bytes;
    int    line;
} tokenizer__pair;

typedef struct tokenizer__pairs {
    tokenizer__pair *items;
    size_t           count, capacity;
} tokenizer__pairs;

static inline bool tokenizer__add_pair(tokenizer__pairs *pairs, tokenizer__pair pair)
{
    if (pairs->count == pairs->capacity) {
        size_t           capacity = pairs->capacity ? pairs->capacity * 2 : 1024;
        tokenizer__pair *items = capacity <= TOKENIZER_MAX_PIECES
                                     ? realloc(pairs->items, capacity * sizeof *items)
                                     : NULL;
        if (items == NULL) return false;
        pairs->items = items;
        pairs->capacity = capacity;
    }
    pairs->items[pairs->count++] = pair;
    return true;
}

/* Two pieces with one space between them. */
static inline bool tokenizer__split_pair(char *text, size_t bytes, int line, tokenizer__pair *pair)
{
    char *space = memchr(text, ' ', bytes), *end = text + bytes;
    if (space == NULL || memchr(space + 1, ' ', (size_t)(end - space - 1))) return false;
    *pair = (tokenizer__pair){text, space + 1, (size_t)(space - text), (size_t)(end - space - 1), line};
    return true;
}

/* The ids of a merge; -1 where there is no such piece. */
static inline tokenizer_merge tokenizer__merge_of(const tokenizer *t, const tokenizer__pair *pair,
                                                  char *whole)
{
    const bool bytes = t->model == TOKENIZER_BPE_BYTES;
    long       left = bytes ? tokenizer__to_bytes(pair->left, pair->left_bytes) : (long)pair->left_bytes;
    long       right = bytes ? tokenizer__to_bytes(pair->right, pair->right_bytes) : (long)pair->right_bytes;
    if (left <= 0 || right <= 0 || (size_t)left > t->longest || (size_t)right > t->longest)
        return (tokenizer_merge){-1, -1, -1};
    memcpy(whole, pair->left, (size_t)left);
    /* goes within the whole */
    const long prefix = t->prefix && (size_t)right > strlen(t->prefix) ? (long)strlen(t->prefix) : 0;
    memcpy(whole + left, pair->right + prefix, (size_t)(right - prefix));
    return (tokenizer_merge){tokenizer__find(t, pair->left, (size_t)left),
                             tokenizer__find(t, pair->right, (size_t)right),
                             tokenizer__find(t, whole, (size_t)(left + right - prefix))};
}

/* The first pair with rank 0. */
static inline bool tokenizer__take_merges(tokenizer *t, const tokenizer__pairs *pairs, const char *path,
                                          text_error *error)
{
    t->merges = malloc((pairs->count + 1) * sizeof *t->merges);
    t->merge_slots = tokenizer__slots(pairs->count, &t->merge_mask);
    char *whole = malloc(2 * t->longest + 1);
    bool  good = t->merges && t->merge_slots && whole;
    if (!good) text_fail(error, "out of memory: '%s' has too many merges", path);
    for (size_t i = 0; good && i < pairs->count; i++) {
        const int       line = pairs->items[i].line;
        tokenizer_merge merge = tokenizer__merge_of(t, &pairs->items[i], whole);
        uint32_t        slot = tokenizer__merge_slot(t, merge.left, merge.right);
        if (merge.left < 0 || merge.right < 0 || merge.result < 0)
            good = text_fail(error,
                             "%s:%d: the vocabulary lacks a piece of this line, or the two joined; do the "
                             "files belong together?",
                             path, line);
        else if (t->merge_slots[slot] >= 0)
            good = text_fail(error, "%s:%d: the line repeats an earlier one", path, line);
        else
            t->merges[t->merge_slots[slot] = t->merge_count++] = merge;
    }
    free(whole);
    return good;
}

/* Two pieces a line. */
static inline bool tokenizer__read_merges(tokenizer__pairs *pairs, const char *path, char *text, size_t bytes,
                                          text_error *error)
{
    int line = 1;
    for (char *at = text, *end = text + bytes, *next; at < end; at = next, line++) {
        char *stop = memchr(at, '\n', (size_t)(end - at));
        next = stop ? stop + 1 : end;
        size_t          length = (size_t)((stop ? stop : end) - at);
        tokenizer__pair pair;
        if (length > 0 && at[length - 1] == '\r') length--;
        if ((length >= 8 && memcmp(at, "#version", 8) == 0) || (length == 0 && next == end)) continue;
        if (!tokenizer__split_pair(at, length, line, &pair))
            return text_fail(error, "%s:%d: two pieces with one space between them are expected here", path,
                             line);
        if (!tokenizer__add_pair(pairs, pair))
            return text_fail(error, "out of memory: '%s' has too many lines", path);
    }
    return true;
}

static inline bool tokenizer__find_bytes(tokenizer *t, const char *path, text_error *error)
{
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        if ((t->byte_piece[byte] = tokenizer__find(t, &c, 1)) < 0)
            return text_fail(error, "%s: no piece stands for the byte %d alone; byte-level BPE needs all 256",
                             path, byte);
    }
    return true;
}

/* Takes both texts, which were allocated, with a 0 behind each. */
static inline tokenizer *tokenizer_bpe_of(char *vocabulary, const char *vocabulary_name, char *merges,
                                          size_t merges_bytes, const char *merges_name, text_error *error)
{
    tokenizer       *t = tokenizer__new(vocabulary, TOKENIZER_BPE_BYTES, error);
    tokenizer__pairs pairs = {0};
    bool             good = t != NULL;
    json             j = json_begin(vocabulary_name, vocabulary, error);
    good = good && tokenizer__read_vocabulary(t, &j) && json_end(&j) &&
           tokenizer__index(t, vocabulary_name, error) && tokenizer__find_bytes(t, vocabulary_name, error) &&
           tokenizer__read_merges(&pairs, merges_name, merges, merges_bytes, error) &&
           tokenizer__take_merges(t, &pairs, merges_name, error);
    free(pairs.items);
    free(merges);
    if (good && !tokenizer__split_by(t, TOKENIZER__GPT2, TOKENIZER__ISOLATED))
        good = text_fail(error, "out of memory");
    if (!good) return tokenizer__done(t, false);
    tokenizer__speak(t);
    return t;
}

/* vocab.json, {"piece": id, ...}, and merges.txt. */
static inline tokenizer *tokenizer_bpe(const char *vocabulary_path, const char *merges_path,
                                       text_error *error)
{
    size_t bytes, merges_bytes;
    char  *vocabulary = text_read(vocabulary_path, TOKENIZER_MAX_FILE, &bytes, error);
    char  *merges = vocabulary ? text_read(merges_path, TOKENIZER_MAX_FILE, &merges_bytes, error) : NULL;
    if (merges)
        return tokenizer_bpe_of(vocabulary, vocabulary_path, merges, merges_bytes, merges_path, error);
    free(vocabulary);
    return NULL;
}

/* ---- tokenizer.json ---- */

enum {
    TOKENIZER__TYPE,
    TOKENIZER__PATTERN,
    TOKENIZER__CONTENT,
    TOKENIZER__REPLACEMENT,
    TOKENIZER__SCHEME,
    TOKENIZER__BEHAVIOR,
    TOKENIZER__PREPENDED,
    TOKENIZER__CHARSMAP,
    TOKENIZER__PREFIX,
    TOKENIZER__SUFFIX,
    TOKENIZER__DELIMITER,
    TOKENIZER__STRINGS
};
enum {
    TOKENIZER__INDIVIDUAL,
    TOKENIZER__PREFIX_SPACE,
    TOKENIZER__REGEX,
    TOKENIZER__SPLITS,
    TOKENIZER__INVERT,
    TOKENIZER__CLEAN_TEXT,
    TOKENIZER__CHINESE,
    TOKENIZER__ACCENTS,
    TOKENIZER__LOWERCASE,
    TOKENIZER__STRIP_LEFT,
    TOKENIZER__STRIP_RIGHT,
    TOKENIZER__CLEANS_UP,
    TOKENIZER__BOOLS
};

/* An object of a normalizer, pre_tokenizer or decoder: what its keys hold, where they are there. */
typedef struct tokenizer__rule {
    char  *string[TOKENIZER__STRINGS]; /* NULL: not there */
    size_t bytes[TOKENIZER__STRINGS];
    int    flag[TOKENIZER__BOOLS]; /* -1: not there */
    bool   expression;             /* the pattern is one */
    int    start, stop, length;
} tokenizer__rule;

/* What tokenizer.json holds that is settled when all of it has been read. */
typedef struct tokenizer__reader {
    tokenizer       *t;
    tokenizer__pairs merges;
    const char      *unknown, *around[2][TOKENIZER_MAX_AROUND];
    int              around_count[2];
    char            *prefix, *suffix; /* of BPE */
    bool             unigram, wordpiece, wordlevel, bytes;
    bool             spelled; /* splits follow a ByteLevel */
} tokenizer__reader;

static inline int tokenizer__among(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

static inline bool tokenizer__is(const tokenizer__rule *rule, int string, const char *text)
{
    return rule->string[string] && strcmp(rule->string[string], text) == 0;
}

static inline bool tokenizer__refuse(json *j, const char *what, const tokenizer__rule *rule)
{
    char text[200];
    (void)snprintf(text, sizeof text, "the %s '%.60s' is not supported, or not with these settings", what,
                   rule->string[TOKENIZER__TYPE] ? rule->string[TOKENIZER__TYPE] : "");
    return json_fail(j, text);
}

/* Decodes base64 in its place; -1: it is none. */
static inline long tokenizer__base64(char *text, size_t bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t            to = 0, digits_end = bytes;
    uint32_t          bits = 0, have = 0;
    while (digits_end > 0 && bytes - digits_end < 2 && text[digits_end - 1] == '=') digits_end--;
    for (size_t i = 0; i < digits_end; i++) {
        const char *digit = text[i] ? strchr(digits, text[i]) : NULL;
        if (digit == NULL) return -1;
        bits = bits << 6 | (uint32_t)(digit - digits);
        have += 6;
        if (have >= 8) text[to++] = (char)(bits >> (have -= 8) & 0xff);
    }
    text[to] = 0;
    return bytes % 4 ? -1 : (long)to;
}

/* Whether the table is whole: what its double array leads to are texts that end within it. */
static inline bool tokenizer__is_charsmap(const unsigned char *table, size_t bytes)
{
    const size_t size = bytes < 4 ? 0 : tokenizer__unit(table, 0), count = size / 4;
    if (count == 0 || size % 4 || size >= bytes - 4 || table[bytes - 1]) return false;
    for (size_t i = 0; i < count; i++) {
        const uint32_t unit = tokenizer__unit(table + 4, i);
        const size_t   leaf = i ^ tokenizer__unit_offset(unit);
        if (unit >> 31 || !(unit >> 8 & 1)) continue;
        if (leaf >= count || (tokenizer__unit(table + 4, leaf) & 0x7fffffffu) >= bytes - 4 - size)
            return false;
    }
    return true;
}

static inline bool tokenizer__take_charsmap(json *j, const tokenizer__rule *rule, tokenizer__step *step)
{
    char *text = rule->string[TOKENIZER__CHARSMAP];
    long  bytes = text ? tokenizer__base64(text, rule->bytes[TOKENIZER__CHARSMAP]) : -1;
    if (bytes < 0 || !tokenizer__is_charsmap((const unsigned char *)text, (size_t)bytes))
        return json_fail(j, "'precompiled_charsmap' is not a table of SentencePiece");
    *step = (tokenizer__step){.kind = TOKENIZER__PRECOMPILED, .what = text, .what_bytes = (size_t)bytes};
    return true;
}

/* The expression, or the text, of which a rule's pattern tells; NULL: it is not known, which has been
 * said. */
static inline expression *tokenizer__pattern_of(json *j, const tokenizer__rule *rule)
{
    const char *text = rule->string[TOKENIZER__PATTERN], *why = "it is empty";
    size_t      bytes = rule->bytes[TOKENIZER__PATTERN];
    char        sentence[300];
    expression *e = bytes == 0         ? NULL
                    : rule->expression ? expression_of(text, bytes, &why)
                                       : expression_literal(text, bytes, &why);
    (void)snprintf(sentence, sizeof sentence, "the pattern '%.*s' is not supported: %s",
                   bytes > 100 ? 100 : (int)bytes, text ? text : "", why ? why : "");
    return e ? e : (json_fail(j, sentence), NULL);
}

static inline unsigned tokenizer__bert_of(const tokenizer__rule *rule)
{
    const int *flag = rule->flag, lower = flag[TOKENIZER__LOWERCASE] != 0;
    const int  accents = flag[TOKENIZER__ACCENTS] < 0 ? lower : flag[TOKENIZER__ACCENTS];
    return (flag[TOKENIZER__CLEAN_TEXT] ? TOKENIZER__CLEAN : 0u) |
           (flag[TOKENIZER__CHINESE] ? TOKENIZER__ALONE : 0u) | (accents ? TOKENIZER__FOLD : 0u) |
           (lower ? TOKENIZER__LOWER : 0u);
}

/* The normalizers that have no settings. */
static inline bool tokenizer__plain_of(const tokenizer__rule *rule, tokenizer__step *step)
{
    static const struct {
        const char     *type;
        tokenizer__kind kind;
        unsigned        flags;
    } known[] = {{"Lowercase", TOKENIZER__CHARACTERS, TOKENIZER__LOWER},
                 {"Nmt", TOKENIZER__CHARACTERS, TOKENIZER__NMT},
                 {"StripAccents", TOKENIZER__CHARACTERS, TOKENIZER__BARE},
                 {"NFC", TOKENIZER__NORMAL_FORM, TOKENIZER__COMPOSE},
                 {"NFD", TOKENIZER__NORMAL_FORM, 0},
                 {"NFKC", TOKENIZER__NORMAL_FORM, TOKENIZER__COMPATIBLE | TOKENIZER__COMPOSE},
                 {"NFKD", TOKENIZER__NORMAL_FORM, TOKENIZER__COMPATIBLE}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!tokenizer__is(rule, TOKENIZER__TYPE, known[i].type)) continue;
        step->kind = known[i].kind;
        step->flags = known[i].flags;
        return true;
    }
    return false;
}

static inline bool tokenizer__normalizer_of(json *j, const tokenizer__rule *rule, tokenizer__step *step)
{
    const int *flag = rule->flag;
    if (tokenizer__plain_of(rule, step)) return true;
    if (tokenizer__is(rule, TOKENIZER__TYPE, "Precompiled")) return tokenizer__take_charsmap(j, rule, step);
    if (tokenizer__is(rule, TOKENIZER__TYPE, "BertNormalizer")) {
        *step = (tokenizer__step){.kind = TOKENIZER__CHARACTERS, .flags = tokenizer__bert_of(rule)};
    } else if (tokenizer__is(rule, TOKENIZER__TYPE, "Replace") && rule->string[TOKENIZER__CONTENT]) {
        *step = (tokenizer__step){.kind = TOKENIZER__REPLACE,
                                  .by = tokenizer__pattern_of(j, rule),
                                  .with = rule->string[TOKENIZER__CONTENT],
                                  .with_bytes = rule->bytes[TOKENIZER__CONTENT]};
        return step->by != NULL;
    } else if (tokenizer__is(rule, TOKENIZER__TYPE, "Prepend") && rule->string[TOKENIZER__PREPENDED]) {
        *step = (tokenizer__step){.kind = TOKENIZER__PREPEND,
                                  .with = rule->string[TOKENIZER__PREPENDED],
                                  .with_bytes = rule->bytes[TOKENIZER__PREPENDED]};
    } else if (tokenizer__is(rule, TOKENIZER__TYPE, "Strip")) {
        *step = (tokenizer__step){.kind = TOKENIZER__STRIP,
                                  .flags = (flag[TOKENIZER__STRIP_LEFT] ? TOKENIZER__LEFT : 0u) |
                                           (flag[TOKENIZER__STRIP_RIGHT] ? TOKENIZER__RIGHT : 0u)};
    } else {
        return false;
    }
    return true;
}

static inline bool tokenizer__take_normalizer(tokenizer__reader *r, json *j, const tokenizer__rule *rule)
{
    tokenizer__step step = {.kind = TOKENIZER__COPY};
    if (r->t->normalizers == TOKENIZER_MAX_STEPS || !tokenizer__normalizer_of(j, rule, &step))
        return tokenizer__refuse(j, "normalizer", rule);
    r->t->normalizer[r->t->normalizers++] = step;
    return true;
}

static inline bool tokenizer__take_metaspace(const tokenizer__rule *rule, tokenizer__step *step)
{
    const bool never = tokenizer__is(rule, TOKENIZER__SCHEME, "never") ||
                       rule->flag[TOKENIZER__PREFIX_SPACE] == 0;
    const bool first = tokenizer__is(rule, TOKENIZER__SCHEME, "first");
    step->kind = TOKENIZER__METASPACE;
    step->flags = (never   ? 0u
                   : first ? TOKENIZER__FIRST
                           : TOKENIZER__ALWAYS) |
                  (rule->flag[TOKENIZER__SPLITS] ? TOKENIZER__BEFORE : 0u);
    step->with = rule->string[TOKENIZER__REPLACEMENT];
    step->with_bytes = rule->bytes[TOKENIZER__REPLACEMENT];
    return step->with_bytes > 0;
}

static inline bool tokenizer__behavior_of(const tokenizer__rule *rule, tokenizer__behavior *behavior)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    const char              *name = rule->string[TOKENIZER__BEHAVIOR];
    const int                i = name ? tokenizer__among(names, 5, name) : 0;
    *behavior = i < 0 ? TOKENIZER__ISOLATED : (tokenizer__behavior)i;
    return i >= 0;
}

/* Those that split by an expression. */
static inline bool tokenizer__splits(tokenizer__reader *r, json *j, const tokenizer__rule *rule)
{
    tokenizer          *t = r->t;
    const char         *why, *delimiter = rule->string[TOKENIZER__DELIMITER];
    const int          *flag = rule->flag;
    tokenizer__behavior behavior;
    if (!tokenizer__behavior_of(rule, &behavior)) return false;
    if (tokenizer__is(rule, TOKENIZER__TYPE, "Split"))
        return tokenizer__add_split(t, tokenizer__pattern_of(j, rule), behavior,
                                    flag[TOKENIZER__INVERT] == 1);
    if (tokenizer__is(rule, TOKENIZER__TYPE, "BertPreTokenizer"))
        return tokenizer__split_by(t, TOKENIZER__SPACES, TOKENIZER__REMOVED) &&
               tokenizer__split_marks(t, TOKENIZER__ISOLATED);
    if (tokenizer__is(rule, TOKENIZER__TYPE, "Punctuation")) return tokenizer__split_marks(t, behavior);
    if (tokenizer__is(rule, TOKENIZER__TYPE, "WhitespaceSplit"))
        return tokenizer__split_by(t, TOKENIZER__SPACES, TOKENIZER__REMOVED);
    if (tokenizer__is(rule, TOKENIZER__TYPE, "Whitespace"))
        return tokenizer__split_by(t, TOKENIZER__WORDS, TOKENIZER__REMOVED) &&
               (t->pre_tokenizer[t->pre_tokenizers - 1].inverted = true);
    if (tokenizer__is(rule, TOKENIZER__TYPE, "Digits"))
        return tokenizer__split_by(t, TOKENIZER__NUMBERS,
                                   flag[TOKENIZER__INDIVIDUAL] == 1 ? TOKENIZER__ISOLATED
                                                                    : TOKENIZER__CONTIGUOUS);
    return tokenizer__is(rule, TOKENIZER__TYPE, "CharDelimiterSplit") && delimiter && *delimiter &&
           tokenizer__add_split(t, expression_literal(delimiter, rule->bytes[TOKENIZER__DELIMITER], &why),
                                TOKENIZER__REMOVED, false);
}

static inline bool tokenizer__byte_level_of(tokenizer__reader *r, const tokenizer__rule *rule)
{
    tokenizer *t = r->t;
    r->bytes = true;
    if (rule->flag[TOKENIZER__PREFIX_SPACE])
        t->pre_tokenizer[t->pre_tokenizers++] = (tokenizer__step){.kind = TOKENIZER__SPACE_FIRST};
    return rule->flag[TOKENIZER__REGEX] == 0 || tokenizer__split_by(t, TOKENIZER__GPT2, TOKENIZER__ISOLATED);
}

static inline bool tokenizer__take_pre_tokenizer(tokenizer__reader *r, json *j, const tokenizer__rule *rule)
{
    tokenizer__step step = {.kind = TOKENIZER__COPY};
    bool            good = r->t->pre_tokenizers < TOKENIZER_MAX_STEPS - 1;
    if (good && r->bytes && !r->spelled) {
        r->t->pre_tokenizer[r->t->pre_tokenizers++] = (tokenizer__step){.kind = TOKENIZER__SPELL};
        r->spelled = true;
    }
    if (good && tokenizer__is(rule, TOKENIZER__TYPE, "ByteLevel"))
        good = !r->spelled && tokenizer__byte_level_of(r, rule);
    else if (good && tokenizer__is(rule, TOKENIZER__TYPE, "Metaspace"))
        good = !r->spelled && tokenizer__take_metaspace(rule, &step);
    else if (good && tokenizer__is(rule, TOKENIZER__TYPE, "FixedLength"))
        step = (tokenizer__step){.kind = TOKENIZER__LENGTH,
                                 .flags = rule->length ? (unsigned)rule->length : 5};
    else
        good = good && tokenizer__splits(r, j, rule);
    if (!good) return tokenizer__refuse(j, "pre_tokenizer", rule);
    if (step.kind != TOKENIZER__COPY) r->t->pre_tokenizer[r->t->pre_tokenizers++] = step;
    return true;
}

static inline bool tokenizer__take_decoder(tokenizer__reader *r, json *j, const tokenizer__rule *rule)
{
    const char *type = rule->string[TOKENIZER__TYPE] ? rule->string[TOKENIZER__TYPE] : "";
    unsigned    flags = 0;
    bool        good = true, space = tokenizer__is(rule, TOKENIZER__CONTENT, " ");
    if (strcmp(type, "ByteFallback") == 0) {
        flags = TOKENIZER__SPOKEN_BYTES;
    } else if (strcmp(type, "Metaspace") == 0) {
        const bool never = tokenizer__is(rule, TOKENIZER__SCHEME, "never") ||
                           rule->flag[TOKENIZER__PREFIX_SPACE] == 0;
        flags = TOKENIZER__SPOKEN_SPACES | (never ? 0u : TOKENIZER__STRIP_FIRST);
        good = tokenizer__is(rule, TOKENIZER__REPLACEMENT, "\xe2\x96\x81");
    } else if (strcmp(type, "Replace") == 0) {
        flags = TOKENIZER__SPOKEN_SPACES;
        good = !rule->expression && tokenizer__is(rule, TOKENIZER__PATTERN, "\xe2\x96\x81") && space;
    } else if (strcmp(type, "Strip") == 0) {
        flags = rule->start ? TOKENIZER__STRIP_ONE : 0u;
        good = space && rule->start <= 1 && rule->stop == 0;
    } else if (strcmp(type, "WordPiece") == 0) {
        flags = TOKENIZER__JOIN | (rule->flag[TOKENIZER__CLEANS_UP] ? TOKENIZER__CLEANUP : 0u);
        good = rule->string[TOKENIZER__PREFIX] == NULL || tokenizer__is(rule, TOKENIZER__PREFIX, "##");
    } else if (strcmp(type, "BPEDecoder") == 0) {
        r->t->spoken_suffix = rule->string[TOKENIZER__SUFFIX];
        good = rule->string[TOKENIZER__SUFFIX] && *rule->string[TOKENIZER__SUFFIX];
    } else {
        good = strcmp(type, "ByteLevel") == 0 || strcmp(type, "Fuse") == 0;
    }
    r->t->decoder |= flags;
    return good || tokenizer__refuse(j, "decoder", rule);
}

typedef bool (*tokenizer__taker)(tokenizer__reader *r, json *j, const tokenizer__rule *rule);

static inline char *tokenizer__string_or_null(json *j, size_t *bytes)
{
    return json_null(j) ? NULL : json_string(j, bytes);
}

/* {"String": "..."} or {"Regex": "..."} */
static inline void tokenizer__read_pattern(json *j, tokenizer__rule *rule)
{
    char *key;
    if (!json_object(j)) return;
    while ((key = json_key(j, NULL)) != NULL) {
        rule->expression = strcmp(key, "Regex") == 0;
        rule->string[TOKENIZER__PATTERN] = json_string(j, &rule->bytes[TOKENIZER__PATTERN]);
    }
}

/* A rule, or a Sequence of rules, at most two deep; null: none. */
static inline bool tokenizer__read_rule(tokenizer__reader *r, json *j, tokenizer__taker take, int depth)
{
    static const char *const strings[] = {"type",           "pattern",  "content",  "replacement",
                                          "prepend_scheme", "behavior", "prepend",  "precompiled_charsmap",
                                          "prefix",         "suffix",   "delimiter"};
    static const char *const flags[] = {
        "individual_digits",    "add_prefix_space", "use_regex", "split",      "invert",      "clean_text",
        "handle_chinese_chars", "strip_accents",    "lowercase", "strip_left", "strip_right", "cleanup"};
    tokenizer__rule rule = {.start = 0};
    char           *key;
    int             i;
    bool            sequence = false;
    for (i = 0; i < TOKENIZER__BOOLS; i++) rule.flag[i] = -1;
    if (json_null(j)) return true;
    if (!json_object(j)) return false;
    while ((key = json_key(j, NULL)) != NULL) {
        if (strcmp(key, "pattern") == 0)
            tokenizer__read_pattern(j, &rule);
        else if ((i = tokenizer__among(strings, TOKENIZER__STRINGS, key)) >= 0)
            rule.string[i] = tokenizer__string_or_null(j, &rule.bytes[i]);
        else if ((i = tokenizer__among(flags, TOKENIZER__BOOLS, key)) >= 0)
            rule.flag[i] = json_null(j) ? -1 : json_bool(j);
        else if (strcmp(key, "length") == 0)
            rule.length = json_int(j, key, 1, 1 << 20);
        else if (strcmp(key, "start") == 0 || strcmp(key, "stop") == 0)
            *(key[2] == 'a' ? &rule.start : &rule.stop) = json_int(j, key, 0, 100);
        else if (depth < 2 && (strcmp(key, "normalizers") == 0 || strcmp(key, "pretokenizers") == 0 ||
                               strcmp(key, "decoders") == 0))
            for (sequence = json_array(j); sequence && json_item(j);)
                (void)tokenizer__read_rule(r, j, take, depth + 1);
        else
            json_skip(j);
    }
    return !j->failed &&
           ((sequence && tokenizer__is(&rule, TOKENIZER__TYPE, "Sequence")) || take(r, j, &rule));
}

static inline bool tokenizer__read_added(tokenizer *t, json *j)
{
    tokenizer_added a = {.id = -1};
    char           *key;
    if (!json_object(j)) return false;
    while ((key = json_key(j, NULL)) != NULL) {
        if (strcmp(key, "id") == 0)
            a.id = json_int(j, key, 0, TOKENIZER_MAX_PIECES - 1);
        else if (strcmp(key, "content") == 0)
            a.text = json_string(j, &a.bytes);
        else if (strcmp(key, "single_word") == 0)
            a.single = json_bool(j);
        else if (strcmp(key, "lstrip") == 0)
            a.left = json_bool(j);
        else if (strcmp(key, "rstrip") == 0)
            a.right = json_bool(j);
        else if (strcmp(key, "normalized") == 0)
            a.normalized = json_bool(j);
        else if (strcmp(key, "special") == 0)
            a.special = json_bool(j);
        else
            json_skip(j);
    }
    if (j->failed) return false;
    if (a.id < 0 || a.text == NULL || a.bytes == 0)
        return json_fail(j, "an added token lacks its id or content");
    if (t->added_count == TOKENIZER_MAX_ADDED) return json_fail(j, "there are too many added tokens");
    if ((t->added_count & (t->added_count - 1)) == 0) { /* 0, 1, 2, 4, ...: full */
        tokenizer_added *added = realloc(t->added, ((size_t)t->added_count * 2 + 1) * sizeof *added);
        if (added == NULL) return json_fail(j, "out of memory: there are too many added tokens");
        t->added = added;
    }
    a.content = a.text;
    char *own = malloc(a.bytes + 1);
    if (own == NULL) return json_fail(j, "out of memory: there are too many added tokens");
    a.text = memcpy(own, a.text, a.bytes + 1);
    t->added[t->added_count++] = a;
    return true;
}

/* The list of Unigram: pieces with their scores. */
static inline bool tokenizer__read_scores(tokenizer *t, json *j)
{
    char  *piece;
    size_t bytes;
    for (bool list = json_array(j); list && json_item(j);) {
        double score = 0;
        bool pair = json_array(j) && json_item(j) && (piece = json_string(j, &bytes)) != NULL && json_item(j);
        if (pair) score = json_number(j);
        if (!pair || json_item(j))
            (void)json_fail(j, "a piece with its score, [\"...\", -1.5], is expected here");
        if (j->failed) return false;
        if (bytes > TOKENIZER_MAX_PIECE || !(score >= -1e30 && score <= 1e30))
            return json_fail(j, "a piece is too long or its score too large");
        if (t->count == TOKENIZER_MAX_PIECES || !tokenizer__add(t, t->count, piece, bytes))
            return json_fail(j, "out of memory: there are too many pieces");
        t->pieces[t->count - 1].score = score;
        if (t->count == 1 || score - 10 < t->unknown_score) t->unknown_score = score - 10;
    }
    return !j->failed;
}

/* Merges as "a b", or as ["a", "b"]. */
static inline bool tokenizer__read_pairs(tokenizer__pairs *pairs, json *j)
{
    char  *text;
    size_t bytes;
    if (!json_array(j)) return json_fail(j, "an array of merges is expected here");
    while (json_item(j)) {
        tokenizer__pair pair = {.line = j->line};
        bool            good = true;
        if (json_array(j)) {
            if (json_item(j)) pair.left = json_string(j, &pair.left_bytes);
            if (json_item(j)) pair.right = json_string(j, &pair.right_bytes);
            good = pair.right && !json_item(j);
        } else {
            text = json_string(j, &bytes);
            good = text && tokenizer__split_pair(text, bytes, j->line, &pair);
        }
        if (!good) return json_fail(j, "two pieces, \"a b\" or [\"a\", \"b\"], are expected here");
        if (!tokenizer__add_pair(pairs, pair))
            return json_fail(j, "out of memory: there are too many merges");
    }
    return !j->failed;
}

static inline bool tokenizer__read_model(tokenizer__reader *r, json *j)
{
    tokenizer *t = r->t;
    char      *key;
    if (!json_object(j)) return false;
    while ((key = json_key(j, NULL)) != NULL) {
        if (strcmp(key, "type") == 0) {
            const char *type = json_string(j, NULL);
            r->wordpiece = type && strcmp(type, "WordPiece") == 0;
            r->unigram = type && strcmp(type, "Unigram") == 0;
            r->wordlevel = type && strcmp(type, "WordLevel") == 0;
            if (type && !r->wordpiece && !r->unigram && !r->wordlevel && strcmp(type, "BPE") != 0)
                (void)json_fail(j, "the model is not BPE, Unigram, WordLevel or WordPiece");
        } else if (strcmp(key, "unk_token") == 0) {
            r->unknown = tokenizer__string_or_null(j, NULL);
        } else if (strcmp(key, "unk_id") == 0) {
            t->unknown = json_null(j) ? -1 : json_int(j, key, 0, TOKENIZER_MAX_PIECES - 1);
        } else if (strcmp(key, "max_input_chars_per_word") == 0) {
            t->max_word = json_int(j, key, 1, 1 << 20);
        } else if (strcmp(key, "continuing_subword_prefix") == 0) {
            r->prefix = tokenizer__string_or_null(j, NULL);
        } else if (strcmp(key, "end_of_word_suffix") == 0) {
            r->suffix = tokenizer__string_or_null(j, NULL);
        } else if (strcmp(key, "dropout") == 0) {
            if (!json_null(j) && json_number(j) != 0) (void)json_fail(j, "'dropout' is not supported");
        } else if (strcmp(key, "byte_fallback") == 0) {
            t->byte_fallback = json_bool(j);
        } else if (strcmp(key, "fuse_unk") == 0) {
            t->fuse_unknown = json_bool(j);
        } else if (strcmp(key, "ignore_merges") == 0) {
            t->whole_words = json_bool(j);
        } else if (strcmp(key, "vocab") == 0) {
            (void)(json__peek(j) == '[' ? tokenizer__read_scores(t, j) : tokenizer__read_vocabulary(t, j));
        } else if (strcmp(key, "merges") == 0) {
            (void)tokenizer__read_pairs(&r->merges, j);
        } else {
            json_skip(j);
        }
    }
    return !j->failed;
}

static inline void tokenizer__add_around(tokenizer__reader *r, json *j, int side, const char *piece)
{
    if (r->around_count[side] == TOKENIZER_MAX_AROUND)
        (void)json_fail(j, "there are too many tokens around a text");
    else if (piece)
        r->around[side][r->around_count[side]++] = piece;
}

/* [{"SpecialToken": {"id": "[CLS]", ...}}, {"Sequence": ...}, ...] */
static inline void tokenizer__read_template(tokenizer__reader *r, json *j)
{
    int   side = 0;
    char *kind, *key;
    if (!json_array(j)) (void)json_fail(j, "an array is expected here");
    while (!j->failed && json_item(j)) {
        if (!json_object(j)) return;
        while ((kind = json_key(j, NULL)) != NULL) {
            const bool special = strcmp(kind, "SpecialToken") == 0;
            if (!json_object(j)) return;
            while ((key = json_key(j, NULL)) != NULL) {
                if (special && strcmp(key, "id") == 0)
                    tokenizer__add_around(r, j, side, json_string(j, NULL));
                else
                    json_skip(j);
            }
            if (!special) side = 1;
        }
    }
}

static inline bool tokenizer__read_post_processor(tokenizer__reader *r, json *j, int depth)
{
    static const char *const known[] = {"BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence",
                                        "TemplateProcessing"};
    char                    *key;
    if (json_null(j)) return true;
    if (!json_object(j)) return false;
    while ((key = json_key(j, NULL)) != NULL) {
        if (strcmp(key, "type") == 0) {
            const char *type = json_string(j, NULL);
            if (type && tokenizer__among(known, 5, type) < 0)
                (void)json_fail(j, "the post_processor is not supported");
        } else if (strcmp(key, "cls") == 0 || strcmp(key, "sep") == 0) {
            const int side = *key == 's';
            if (json_array(j) && json_item(j)) tokenizer__add_around(r, j, side, json_string(j, NULL));
            while (!j->failed && json_item(j)) json_skip(j);
        } else if (strcmp(key, "single") == 0) {
            tokenizer__read_template(r, j);
        } else if (strcmp(key, "processors") == 0 && depth < 2 && json_array(j)) {
            while (json_item(j)) (void)tokenizer__read_post_processor(r, j, depth + 1);
        } else {
            json_skip(j);
        }
    }
    return !j->failed;
}

static inline bool tokenizer__read_file(tokenizer__reader *r, json *j)
{
    char *key;
    bool  object = json_object(j);
    while (object && (key = json_key(j, NULL)) != NULL) {
        if (strcmp(key, "added_tokens") == 0 && json_array(j))
            while (json_item(j)) (void)tokenizer__read_added(r->t, j);
        else if (strcmp(key, "normalizer") == 0)
            (void)tokenizer__read_rule(r, j, tokenizer__take_normalizer, 0);
        else if (strcmp(key, "pre_tokenizer") == 0)
            (void)tokenizer__read_rule(r, j, tokenizer__take_pre_tokenizer, 0);
        else if (strcmp(key, "post_processor") == 0)
            (void)tokenizer__read_post_processor(r, j, 0);
        else if (strcmp(key, "decoder") == 0)
            (void)(json_null(j) ? (r->t->decoder = TOKENIZER__APART) != 0
                                : tokenizer__read_rule(r, j, tokenizer__take_decoder, 0));
        else if (strcmp(key, "model") == 0)
            (void)tokenizer__read_model(r, j);
        else
            json_skip(j);
    }
    return json_end(j);
}

/* BPE of bytes looks for bytes. Pieces that are not made of them are added ones, which are not looked for. */
static inline bool tokenizer__pieces_to_bytes(tokenizer *t, const char *name, text_error *error)
{
    for (int i = 0; i < t->added_count; i++)
        if (t->added[i].id < t->count) t->pieces[t->added[i].id].special = true;
    for (int id = 0; id < t->count; id++) {
        tokenizer_piece *piece = &t->pieces[id];
        const long       bytes = piece->text ? tokenizer__to_bytes(piece->text, piece->bytes) : 0;
        if (bytes < 0 && !piece->special)
            return text_fail(error, "%s: the piece of id %d holds a character that stands for no byte", name,
                             id);
        if (bytes < 0) piece->text = NULL;
        piece->bytes = (size_t)(bytes < 0 ? 0 : bytes);
    }
    return true;
}

static inline int tokenizer__hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* The byte of a piece like <0x0A>; -1: it is none. */
static inline int tokenizer__byte_of(const char *text, size_t bytes)
{
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    const int high = tokenizer__hex(text[3]), low = tokenizer__hex(text[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

static inline bool tokenizer__find_fallback(tokenizer *t, const char *name, text_error *error)
{
    char text[8];
    for (int byte = 0; byte < 256; byte++) {
        (void)snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        if ((t->byte_piece[byte] = tokenizer__find(t, text, 6)) < 0)
            return text_fail(error, "%s: byte_fallback needs all 256 bytes, and there is no piece %s", name,
                             text);
    }
    return true;
}

/* What a piece says: itself, a byte, or with spaces where ▁ or BPEDecoder's suffix stands. Returns what
 * follows it. */
static inline char *tokenizer__say_piece(const tokenizer *t, tokenizer_piece *piece, char *to)
{
    const char *text = piece->said;
    const int byte = t->decoder & TOKENIZER__SPOKEN_BYTES ? tokenizer__byte_of(text, piece->said_bytes) : -1;
    const size_t suffix = t->spoken_suffix ? strlen(t->spoken_suffix) : SIZE_MAX;
    piece->byte = byte >= 0;
    piece->ends = piece->said_bytes >= suffix &&
                  memcmp(text + piece->said_bytes - suffix, t->spoken_suffix, suffix) == 0;
    piece->said = to;
    if (piece->byte) *to++ = (char)byte;
    for (size_t i = 0, end = piece->said_bytes - (piece->ends ? suffix : 0); byte < 0 && i < end; i++) {
        const bool space = t->decoder & TOKENIZER__SPOKEN_SPACES && end - i >= 3 &&
                           memcmp(text + i, "\xe2\x96\x81", 3) == 0;
        *to++ = space ? ' ' : text[i];
        if (space) i += 2;
    }
    if (piece->ends) *to++ = ' ';
    piece->said_bytes = (size_t)(to - piece->said);
    return to;
}

/* Added pieces say what is looked for, and take their ids from those of the vocabulary. */
static inline bool tokenizer__speak_all(tokenizer *t)
{
    size_t room = 1;
    for (int i = 0; i < t->added_count; i++) {
        const tokenizer_added *a = &t->added[i];
        if (a->id >= t->count && !tokenizer__add(t, a->id, NULL, 0)) return false;
    }
    tokenizer__speak(t);
    for (int i = 0; i < t->added_count; i++) {
        tokenizer_piece *piece = &t->pieces[t->added[i].id];
        piece->said = t->added[i].text;
        piece->said_bytes = t->added[i].bytes;
        /* as tokenizers has it */
        piece->special = t->added[i].special && strcmp(t->added[i].content, t->added[i].text) == 0;
    }
    for (int id = 0; id < t->count; id++) room += t->pieces[id].said_bytes;
    char *to = t->spoken = malloc(room);
    for (int id = 0; to && id < t->count; id++)
        if (t->pieces[id].said) to = tokenizer__say_piece(t, &t->pieces[id], to);
    return to != NULL;
}

/* Those that are looked for in a normalized text are normalized themselves. */
static inline bool tokenizer__normalize_added(tokenizer *t)
{
    tokenizer__run run[2] = {0};
    bool           good = true;
    for (int i = 0; i < t->added_count && good; i++) {
        tokenizer_added *a = &t->added[i];
        tokenizer__view  v = {a->text, NULL, a->bytes, 0};
        if (a->normalized && t->normalizers) {
            good = tokenizer__walk(t->normalizer, t->normalizers, &v, &run[0], &run[1]);
            char *own = good ? malloc(v.bytes + 1) : NULL;
            if ((good = own != NULL) == false) break;
            free(a->text);
            a->text = memcpy(own, v.text, v.bytes);
            a->text[a->bytes = v.bytes] = 0;
        }
        if (a->bytes) t->added_first[a->normalized][(unsigned char)a->text[0]] = true;
    }
    tokenizer__run_free(&run[0]);
    tokenizer__run_free(&run[1]);
    return good;
}

static inline bool tokenizer__find_unknown(tokenizer__reader *r, const char *name, text_error *error)
{
    tokenizer *t = r->t;
    if (t->model == TOKENIZER_UNIGRAM && t->unknown >= 0 && t->unknown < t->count) return true;
    if (t->model == TOKENIZER_UNIGRAM) return text_fail(error, "%s: 'unk_id' is not the id of a piece", name);
    if (r->unknown) t->unknown = tokenizer__find(t, r->unknown, strlen(r->unknown));
    if ((r->unknown && t->unknown < 0) || ((r->wordpiece || r->wordlevel) && r->unknown == NULL))
        return text_fail(error, "%s: the vocabulary lacks the unk_token '%s'", name,
                         r->unknown ? r->unknown : "");
    return true;
}

static inline bool tokenizer__find_around(tokenizer__reader *r, const char *name, text_error *error)
{
    tokenizer *t = r->t;
    int       *ids[2] = {t->before, t->after};
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < r->around_count[side]; i++)
            if ((ids[side][i] = tokenizer_id(t, r->around[side][i])) < 0)
                return text_fail(error, "%s: the post_processor's '%s' is not a piece", name,
                                 r->around[side][i]);
    t->before_count = r->around_count[0];
    t->after_count = r->around_count[1];
    return true;
}

/* continuing_subword_prefix and end_of_word_suffix, as bytes where the pieces are. */
static inline bool tokenizer__find_affixes(tokenizer__reader *r, const char *name, text_error *error)
{
    tokenizer *t = r->t;
    char      *affix[2] = {r->prefix, r->suffix};
    if (r->wordpiece && r->prefix && *r->prefix && strcmp(r->prefix, "##") != 0)
        return text_fail(error, "%s: only ## is supported as continuing_subword_prefix of WordPiece", name);
    for (int i = 0; i < 2 && (t->model == TOKENIZER_BPE || t->model == TOKENIZER_BPE_BYTES); i++) {
        const size_t length = affix[i] ? strlen(affix[i]) : 0;
        const long   bytes = t->model == TOKENIZER_BPE ? (long)length
                             : length                  ? tokenizer__to_bytes(affix[i], length)
                                                       : 0;
        if (bytes < 0 || bytes > TOKENIZER_MAX_SUFFIX)
            return text_fail(error, "%s: the %s '%.60s' is too long, or stands for no bytes", name,
                             i ? "end_of_word_suffix" : "continuing_subword_prefix", affix[i]);
        if (bytes == 0) continue;
        affix[i][bytes] = 0;
        *(i ? &t->suffix : &t->prefix) = affix[i];
    }
    return true;
}

static inline tokenizer_model tokenizer__model_of(const tokenizer__reader *r)
{
    return r->bytes       ? TOKENIZER_BPE_BYTES
           : r->wordpiece ? TOKENIZER_WORDPIECE
           : r->wordlevel ? TOKENIZER_WORDLEVEL
           : r->unigram   ? TOKENIZER_UNIGRAM
                          : TOKENIZER_BPE;
}

static inline bool tokenizer__settle(tokenizer__reader *r, const char *name, text_error *error)
{
    tokenizer *t = r->t;
    const bool bytes = r->bytes, words = r->wordpiece || r->unigram || r->wordlevel;
    if (t->count == 0) return text_fail(error, "%s: there is no vocabulary; is it a tokenizer.json?", name);
    if (bytes && words) return text_fail(error, "%s: ByteLevel is supported with BPE only", name);
    t->model = tokenizer__model_of(r);
    if (bytes) t->byte_fallback = false;
    if (!tokenizer__find_affixes(r, name, error)) return false;
    if ((bytes && !tokenizer__pieces_to_bytes(t, name, error)) || !tokenizer__index(t, name, error))
        return false;
    if (bytes ? !tokenizer__find_bytes(t, name, error)
              : t->byte_fallback && !tokenizer__find_fallback(t, name, error))
        return false;
    if (!words && !tokenizer__take_merges(t, &r->merges, name, error)) return false;
    if (!tokenizer__find_unknown(r, name, error) || !tokenizer__find_around(r, name, error)) return false;
    if (r->spelled && t->pre_tokenizers == TOKENIZER_MAX_STEPS)
        return text_fail(error, "%s: there are too many pre_tokenizers", name);
    if (r->spelled) t->pre_tokenizer[t->pre_tokenizers++] = (tokenizer__step){.kind = TOKENIZER__UNSPELL};
    if (t->pre_tokenizers == 0)
        t->pre_tokenizer[t->pre_tokenizers++] = (tokenizer__step){.kind = TOKENIZER__COPY};
    if (!tokenizer__normalize_added(t) || !tokenizer__speak_all(t))
        return text_fail(error, "out of memory: '%s' is too large", name);
    return true;
}

/* Takes the text, with a 0 behind it, which was allocated. name: for messages. */
static inline tokenizer *tokenizer_json_of(char *text, const char *name, text_error *error)
{
    tokenizer__reader r = {.t = tokenizer__new(text, TOKENIZER_BPE, error)};
    json              j = json_begin(name, text, error);
    const bool        good = r.t && tokenizer__read_file(&r, &j) && tokenizer__settle(&r, name, error);
    free(r.merges.items);
    return tokenizer__done(r.t, good);
}

/* tokenizer.json. */
static inline tokenizer *tokenizer_json(const char *path, text_error *error)
{
    size_t bytes;
    char  *text = text_read(path, TOKENIZER_MAX_FILE, &bytes, error);
    return text ? tokenizer_json_of(text, path, error) : NULL;
}

/* Any of the files: vocab.json where merges is not NULL; else tokenizer.json, which is an object; else
 * vocab.txt, for which `lower` is. */
static inline tokenizer *tokenizer_open(const char *path, const char *merges, bool lower, text_error *error)
{
    size_t bytes;
    if (merges) return tokenizer_bpe(path, merges, error);
    char *text = text_read(path, TOKENIZER_MAX_FILE, &bytes, error);
    if (text == NULL) return NULL;
    return text[strspn(text, " \t\r\n")] == '{' ? tokenizer_json_of(text, path, error)
                                                : tokenizer_wordpiece_of(text, bytes, path, lower, error);
}

#endif
