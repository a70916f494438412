/* expression.h - regular expressions over UTF-8, as Oniguruma reads those of tokenizer.json files, for
 * tokenizer.h.
 *
 *     const char      *why;
 *     expression      *e = expression_of(pattern, strlen(pattern), &why);     NULL: why says it
 *     expression_room  room = {0};                                            of one thread
 *     expression_place place = {0};
 *     while (expression_next(e, &room, text, bytes, &place, &start, &end) == 1) ...
 *                                                                             the matches; -1: out of memory
 *     expression_room_free(&room), expression_free(e);
 *
 * Known are characters and their escapes, . and classes ([a-z], [^...], one in another, &&, \s \S \d \D \w
 * \W, \p{L}, \p{Lu}, \P{...}, \p{^...}, \p{Han}), groups ( ), (?: ), (?i: ), (?> ), (?= ) and (?! ), |, * + ?
 * and {n,m}, lazily with ? or, but for {n,m}, possessively with +, ^ and $ at lines, \A and \z. \1 is known
 * behind a group of one character. What is not known is a sentence.
 *
 * A match is looked for by going back, but never twice over the same place in the same way: that takes at
 * most as many steps as the expression has, times the bytes that it reaches, whatever was written into a
 * hostile file. */
#ifndef EXPRESSION_H
#define EXPRESSION_H

#include "unicode.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
    EXPRESSION_MAX_STEPS = 1000,
    EXPRESSION_MAX_ITEMS = 1000,
    EXPRESSION_MAX_CLASSES = 120,
    EXPRESSION_MAX_DEPTH = 20,
    EXPRESSION_MAX_WITHIN = 2
};

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

/* Where the character before `at` begins. */
static inline size_t text_back(const char *text, size_t at)
{
    const size_t least = at > 4 ? at - 4 : 0;
    do at--;
    while (at > least && ((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
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

/* The place of the character's category in UNICODE_CATEGORIES. */
static inline unsigned unicode_category_of(uint32_t c)
{
    size_t low = 0, high = sizeof unicode_categories / sizeof *unicode_categories;
    while (high - low > 1) { /* the last that begins at c or before */
        size_t middle = (low + high) / 2;
        if (unicode_categories[middle] >> 5 > c)
            high = middle;
        else
            low = middle;
    }
    const unsigned category = unicode_categories[low] & 31u;
    return category == UNICODE_IN_TURN ? (c - (unicode_categories[low] >> 5)) & 1u : category;
}

/* \w: letters, accents, digits, letters of numbers, connectors and circled letters. */
static inline bool unicode_is_word(uint32_t c)
{
    static const unicode_range circled[] = {
        {0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
    const char *category = &UNICODE_CATEGORIES[2 * unicode_category_of(c)];
    return category[0] == 'L' || category[0] == 'M' || memcmp(category, "Nd", 2) == 0 ||
           memcmp(category, "Nl", 2) == 0 || memcmp(category, "Pc", 2) == 0 || unicode_in(circled, c);
}

/* ---- what an expression is made of ---- */

typedef enum expression__kind {
    EXPRESSION__CHARACTER,
    EXPRESSION__CLASS,
    EXPRESSION__SAME, /* the character before once more */
    EXPRESSION__CHOICE,
    EXPRESSION__ALL, /* a choice that goes back `first` steps to a character as long as that stands here */
    EXPRESSION__JUMP,
    EXPRESSION__AHEAD, /* what follows this step must match here, or must not, or matches in one way only */
    EXPRESSION__NOT_AHEAD,
    EXPRESSION__ONE_WAY,
    EXPRESSION__LINE_BEGINS,
    EXPRESSION__LINE_ENDS,
    EXPRESSION__TEXT_BEGINS,
    EXPRESSION__TEXT_ENDS,
    EXPRESSION__END
} expression__kind;

typedef struct expression__step {
    expression__kind kind;
    uint32_t         what; /* a character, a class, or the number of a choice */
    /* how far it is to the steps that are next: the better one, and the other */
    int first, other;
} expression__step;

typedef enum expression__item_kind {
    EXPRESSION__RANGE,
    EXPRESSION__CATEGORIES,
    EXPRESSION__SPACES,
    EXPRESSION__WORDS,
    EXPRESSION__TABLE,
    EXPRESSION__WITHIN
} expression__item_kind;

/* Of a class: characters from first to last, a set of categories, the class `first`, or a table of `last`
 * ranges. */
typedef struct expression__item {
    expression__item_kind kind;
    bool                  negated;
    uint32_t              first, last;
    const unicode_range  *ranges;
    int                   next; /* -1: none */
} expression__item;

typedef struct expression__class {
    int      items; /* the first; -1: none */
    bool     negated, any_case;
    uint32_t ascii[4]; /* a bit for each character that it holds */
} expression__class;

typedef struct expression {
    expression__step  steps[EXPRESSION_MAX_STEPS];
    expression__item  items[EXPRESSION_MAX_ITEMS];
    expression__class classes[EXPRESSION_MAX_CLASSES];
    int               step_count, item_count, class_count;
    size_t            words; /* for a bit a choice */
} expression;

static inline void expression_free(expression *e)
{
    free(e);
}

static inline bool expression__item_holds(const expression *e, const expression__item *item, uint32_t c);

static inline bool expression__list_holds(const expression *e, const expression__class *class, uint32_t c)
{
    bool in = false;
    for (int i = class->items; i >= 0 && !in; i = e->items[i].next)
        in = expression__item_holds(e, &e->items[i], c);
    return in;
}

static inline bool expression__class_holds(const expression *e, const expression__class *class, uint32_t c)
{
    const bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    bool       in = expression__list_holds(e, class, c);
    if (class->any_case && letter) in = in || expression__list_holds(e, class, c ^ 0x20);
    if (class->any_case && c == 0x17f)
        in = in || expression__list_holds(e, class, 's') || expression__list_holds(e, class, 'S');
    if (class->any_case && c == 0x212a)
        in = in || expression__list_holds(e, class, 'k') || expression__list_holds(e, class, 'K');
    return in != class->negated;
}

static inline bool expression__item_holds(const expression *e, const expression__item *item, uint32_t c)
{
    bool in = false;
    switch (item->kind) {
    case EXPRESSION__RANGE: in = c >= item->first && c <= item->last; break;
    case EXPRESSION__CATEGORIES: in = item->first >> unicode_category_of(c) & 1u; break;
    case EXPRESSION__SPACES: in = unicode_in(unicode_spaces, c); break;
    case EXPRESSION__WORDS: in = unicode_is_word(c); break;
    case EXPRESSION__TABLE: in = unicode__in(item->ranges, item->last, c); break;
    case EXPRESSION__WITHIN: in = expression__class_holds(e, &e->classes[item->first], c); break;
    }
    return in != item->negated;
}

/* ---- reading one ---- */

typedef struct expression__reader {
    expression *e;
    const char *text;
    size_t      bytes, at;
    int         depth, within, groups;
    bool        any_case;
    /* the step at which the first group's only character was read; -1: it has more, or stands not here */
    int         single;
    const char *why;
} expression__reader;

/* Keeps the first sentence. */
static inline bool expression__fail(expression__reader *r, const char *why)
{
    if (r->why == NULL) r->why = why;
    return false;
}

static inline bool expression__more(const expression__reader *r)
{
    return r->why == NULL && r->at < r->bytes;
}

static inline bool expression__peek(const expression__reader *r, const char *text)
{
    const size_t length = strlen(text);
    return r->why == NULL && r->bytes - r->at >= length && memcmp(r->text + r->at, text, length) == 0;
}

static inline bool expression__take(expression__reader *r, const char *text)
{
    const bool here = expression__peek(r, text);
    if (here) r->at += strlen(text);
    return here;
}

static inline bool expression__add(expression__reader *r, expression__step step)
{
    if (r->e->step_count == EXPRESSION_MAX_STEPS) return expression__fail(r, "it is too long");
    r->e->steps[r->e->step_count++] = step;
    return true;
}

/* Puts a step before those from `at` on, which do not look before themselves. */
static inline bool expression__insert(expression__reader *r, int at, expression__step step)
{
    expression__step *steps = r->e->steps;
    if (!expression__add(r, step)) return false;
    memmove(steps + at + 1, steps + at, (size_t)(r->e->step_count - 1 - at) * sizeof *steps);
    steps[at] = step;
    return true;
}

static inline int expression__add_class(expression__reader *r)
{
    expression *e = r->e;
    if (e->class_count == EXPRESSION_MAX_CLASSES) return expression__fail(r, "it has too many classes"), 0;
    e->classes[e->class_count] = (expression__class){.items = -1, .any_case = r->any_case};
    return e->class_count++;
}

static inline bool expression__add_item(expression__reader *r, int class, expression__item item)
{
    expression *e = r->e;
    if (e->item_count == EXPRESSION_MAX_ITEMS) return expression__fail(r, "its classes hold too much");
    if (r->any_case && item.kind == EXPRESSION__RANGE && item.last >= 0x80)
        return expression__fail(r, "(?i) is supported for ASCII only");
    for (int i = e->classes[class].items; i >= 0; i = e->items[i].next) { /* sets of categories are one */
        expression__item *other = &e->items[i];
        if (item.kind != EXPRESSION__CATEGORIES || other->kind != item.kind || other->negated || item.negated)
            continue;
        other->first |= item.first;
        return true;
    }
    item.next = e->classes[class].items;
    e->items[e->item_count] = item;
    e->classes[class].items = e->item_count++;
    return true;
}

/* The categories whose names begin so: L, or Lu. */
static inline uint32_t expression__categories(const char *name, size_t length)
{
    uint32_t mask = 0;
    for (uint32_t i = 0; UNICODE_CATEGORIES[2 * i]; i++)
        if (length && length <= 2 && memcmp(&UNICODE_CATEGORIES[2 * i], name, length) == 0) mask |= 1u << i;
    return mask;
}

/* {L}, {^Lu} */
static inline expression__item expression__property(expression__reader *r)
{
    expression__item item = {.kind = EXPRESSION__CATEGORIES};
    if (!expression__take(r, "{")) expression__fail(r, "\\p needs a name in braces");
    item.negated = expression__take(r, "^");
    const size_t from = r->at;
    while (expression__more(r) && r->text[r->at] != '}') r->at++;
    item.first = expression__categories(r->text + from, r->at - from);
    if (r->at - from == 3 && memcmp(r->text + from, "Han", 3) == 0) {
        item.kind = EXPRESSION__TABLE;
        item.ranges = unicode_han;
        item.first = item.last = sizeof unicode_han / sizeof *unicode_han;
    }
    if (!expression__take(r, "}") || item.first == 0)
        expression__fail(r, "\\p is supported with Han and categories, such as L or Lu");
    return item;
}

static inline uint32_t expression__hex(expression__reader *r, int least, int most)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    uint32_t          value = 0;
    int               count = 0;
    for (const char *digit; count < most && expression__more(r) && r->text[r->at]; count++, r->at++) {
        if ((digit = strchr(digits, r->text[r->at])) == NULL) break;
        value = value << 4 | (uint32_t)(digit - digits) % 16;
    }
    if (count < least || value > 0x10ffff) expression__fail(r, "an escape lacks its digits");
    return value;
}

/* What stands behind a backslash, of those that may stand in a class too. */
static inline expression__item expression__escape(expression__reader *r)
{
    static const char controls[] = "tnvfrae", meant[] = "\t\n\v\f\r\a\033", kinds[] = "sSdDwWpP";
    const char        c = expression__more(r) ? r->text[r->at] : 0;
    const char       *found;
    expression__item  item = {.kind = EXPRESSION__RANGE};
    if (c == 0) {
        expression__fail(r, "it ends after a backslash");
    } else if ((found = strchr(controls, c)) != NULL) {
        r->at++;
        item.first = (unsigned char)meant[found - controls];
    } else if (c == 'x' || c == 'u') {
        r->at++;
        const bool braces = c == 'x' && expression__take(r, "{");
        item.first = braces ? expression__hex(r, 1, 8)
                            : expression__hex(r, c == 'u' ? 4 : 2, c == 'u' ? 4 : 2);
        if (braces && !expression__take(r, "}")) expression__fail(r, "an escape lacks its digits");
    } else if ((found = strchr(kinds, c)) != NULL) {
        r->at++;
        if (c == 'p' || c == 'P')
            item = expression__property(r);
        else if (c == 'd' || c == 'D')
            item = (expression__item){.kind = EXPRESSION__CATEGORIES,
                                      .first = expression__categories("Nd", 2)};
        else
            item.kind = c == 's' || c == 'S' ? EXPRESSION__SPACES : EXPRESSION__WORDS;
        item.negated = item.negated != (c < 'a');
    } else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
        expression__fail(r, "it has an escape that is not supported");
    } else {
        item.first = text_next(r->text, r->bytes, &r->at);
    }
    if (item.kind == EXPRESSION__RANGE) item.last = item.first;
    return item;
}

static inline expression__item expression__character(expression__reader *r)
{
    if (expression__take(r, "\\")) return expression__escape(r);
    const uint32_t c = text_next(r->text, r->bytes, &r->at);
    return (expression__item){.kind = EXPRESSION__RANGE, .first = c, .last = c};
}

static inline int expression__read_class(expression__reader *r);

/* A character, a range, an escape or another class. */
static inline void expression__read_item(expression__reader *r, int class)
{
    if (expression__peek(r, "[:")) {
        expression__fail(r, "[:...:] is not supported");
    } else if (expression__take(r, "[")) {
        const int within = expression__read_class(r);
        expression__add_item(r, class,
                             (expression__item){.kind = EXPRESSION__WITHIN, .first = (uint32_t)within});
    } else {
        expression__item item = expression__character(r);
        if (item.kind == EXPRESSION__RANGE && r->bytes - r->at >= 2 && expression__peek(r, "-") &&
            r->text[r->at + 1] != ']') {
            r->at++;
            const expression__item last = expression__character(r);
            if (last.kind != EXPRESSION__RANGE || last.first < item.first)
                expression__fail(r, "a class holds no such range");
            item.last = last.first;
        }
        expression__add_item(r, class, item);
    }
}

/* What stands behind [, up to ]; returns its number. a&&b is what is neither outside of a nor outside of
 * b. */
static inline int expression__read_class(expression__reader *r)
{
    const bool negated = expression__take(r, "^");
    int class = expression__add_class(r), whole = -1;
    expression__item outside = {.kind = EXPRESSION__WITHIN, .negated = true};
    if (++r->depth > EXPRESSION_MAX_DEPTH) expression__fail(r, "it is too deep");
    if (expression__peek(r, "]")) expression__fail(r, "a class is empty");
    while (expression__more(r) && !expression__peek(r, "]")) {
        if (expression__peek(r, "&&]")) expression__fail(r, "a class is empty");
        if (!expression__take(r, "&&")) {
            expression__read_item(r, class);
            continue;
        }
        if (whole < 0) whole = expression__add_class(r);
        outside.first = (uint32_t) class;
        expression__add_item(r, whole, outside);
        class = expression__add_class(r);
    }
    if (!expression__take(r, "]")) expression__fail(r, "a class does not end");
    r->depth--;
    outside.first = (uint32_t) class;
    if (whole >= 0) expression__add_item(r, whole, outside);
    if (whole < 0) return r->e->classes[class].negated = negated, class;
    return r->e->classes[whole].negated = !negated, whole;
}

static inline void expression__read_choices(expression__reader *r);

/* What stands in a group whose kind has been read, up to ). */
static inline void expression__read_group(expression__reader *r, bool any_case)
{
    const bool before = r->any_case;
    if (++r->depth > EXPRESSION_MAX_DEPTH) expression__fail(r, "it is too deep");
    r->any_case = any_case;
    expression__read_choices(r);
    r->any_case = before;
    r->depth--;
    if (!expression__take(r, ")")) expression__fail(r, "a group does not end");
}

/* (?=...) and the like, of which not many may stand in each other: each is looked for anew wherever it is
 * met. */
static inline void expression__read_within(expression__reader *r, expression__kind kind)
{
    const int at = r->e->step_count;
    if (++r->within > EXPRESSION_MAX_WITHIN) expression__fail(r, "it looks ahead too deeply");
    expression__add(r, (expression__step){.kind = kind});
    expression__read_group(r, r->any_case);
    expression__add(r, (expression__step){.kind = EXPRESSION__END});
    r->within--;
    r->e->steps[at].other = r->e->step_count - at;
}

static inline void expression__add_one(expression__reader *r, expression__item item)
{
    const bool one = item.kind == EXPRESSION__RANGE && !r->any_case;
    const int class = one ? 0 : expression__add_class(r);
    if (!one) expression__add_item(r, class, item);
    expression__add(r, (expression__step){one ? EXPRESSION__CHARACTER : EXPRESSION__CLASS,
                                          one ? item.first : (uint32_t) class, 0, 0});
}

/* Behind (. */
static inline void expression__read_round(expression__reader *r)
{
    const int at = r->e->step_count;
    if (expression__take(r, "?:")) {
        expression__read_group(r, r->any_case);
    } else if (expression__take(r, "?i:")) {
        expression__read_group(r, true);
    } else if (expression__take(r, "?-i:")) {
        expression__read_group(r, false);
    } else if (expression__take(r, "?=")) {
        expression__read_within(r, EXPRESSION__AHEAD);
    } else if (expression__take(r, "?!")) {
        expression__read_within(r, EXPRESSION__NOT_AHEAD);
    } else if (expression__take(r, "?>")) {
        expression__read_within(r, EXPRESSION__ONE_WAY);
    } else if (expression__peek(r, "?")) {
        expression__fail(r, "it has a group of a kind that is not supported");
    } else {
        const bool first = ++r->groups == 1;
        expression__read_group(r, r->any_case);
        if (first && r->e->step_count == at + 1) r->single = r->e->step_count;
    }
}

/* Outside of classes, Oniguruma's \w holds six of Latin-1's numbers, too. */
static inline void expression__add_numbers(expression__reader *r, bool negated)
{
    static const unicode_range numbers[] = {{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}};
    const int class = r->e->class_count - 1;
    expression__add_item(r, class,
                         (expression__item){.kind = EXPRESSION__TABLE, .last = 3, .ranges = numbers});
    for (int i = r->e->classes[class].items; i >= 0; i = r->e->items[i].next) r->e->items[i].negated = false;
    r->e->classes[class].negated = negated;
}

/* Behind a backslash, outside of a class. */
static inline void expression__read_escape(expression__reader *r)
{
    if (expression__take(r, "A")) {
        expression__add(r, (expression__step){.kind = EXPRESSION__TEXT_BEGINS});
    } else if (expression__take(r, "z")) {
        expression__add(r, (expression__step){.kind = EXPRESSION__TEXT_ENDS});
    } else if (expression__take(r, "1")) {
        if (r->single != r->e->step_count)
            expression__fail(r, "\\1 is supported only after a group of one character");
        expression__add(r, (expression__step){.kind = EXPRESSION__SAME});
    } else {
        const expression__item item = expression__escape(r);
        expression__add_one(r, item);
        if (item.kind == EXPRESSION__WORDS) expression__add_numbers(r, item.negated);
    }
}

/* Whether something stands here, which is read. */
static inline bool expression__read_atom(expression__reader *r)
{
    if (!expression__more(r) || expression__peek(r, "|") || expression__peek(r, ")")) return false;
    if (expression__take(r, "(")) {
        expression__read_round(r);
    } else if (expression__take(r, "[")) {
        const int class = expression__read_class(r);
        expression__add(r, (expression__step){EXPRESSION__CLASS, (uint32_t) class, 0, 0});
    } else if (expression__take(r, ".")) {
        /* the first class: not a newline */
        expression__add(r, (expression__step){.kind = EXPRESSION__CLASS});
    } else if (expression__take(r, "^")) {
        expression__add(r, (expression__step){.kind = EXPRESSION__LINE_BEGINS});
    } else if (expression__take(r, "$")) {
        expression__add(r, (expression__step){.kind = EXPRESSION__LINE_ENDS});
    } else if (expression__take(r, "\\")) {
        expression__read_escape(r);
    } else if (expression__peek(r, "*") || expression__peek(r, "+") || expression__peek(r, "?")) {
        expression__fail(r, "it repeats nothing");
    } else {
        expression__add_one(r, expression__character(r));
    }
    return true;
}

static inline int expression__read_number(expression__reader *r)
{
    int value = -1;
    for (; expression__more(r) && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++)
        if (value <= EXPRESSION_MAX_STEPS) value = (value < 0 ? 0 : value * 10) + (r->text[r->at] - '0');
    return value;
}

/* * + ? {n} {n,} {,m} {n,m}; most: -1: any number. A brace that means nothing of this is a character. */
static inline bool expression__read_times(expression__reader *r, int *least, int *most)
{
    const size_t at = r->at;
    *least = expression__peek(r, "+");
    *most = expression__peek(r, "?") ? 1 : -1;
    if (expression__take(r, "*") || expression__take(r, "+") || expression__take(r, "?")) return true;
    if (!expression__take(r, "{")) return false;
    *least = *most = expression__read_number(r);
    const bool comma = expression__take(r, ",");
    if (comma) *most = expression__read_number(r);
    const bool number = *least >= 0 || *most >= 0;
    if (*least < 0) *least = 0;
    if (number && expression__take(r, "}"))
        return (*most < 0 || *least <= *most) || expression__fail(r, "a repetition runs backwards");
    r->at = at;
    return false;
}

/* The steps from `from` on, again and again. */
static inline void expression__repeat(expression__reader *r, int from, int least, int most, bool lazily)
{
    expression *e = r->e;
    const int   size = e->step_count - from, rest = most < 0 ? least == 0 : most - least,
              first = from + (least == 0);
    expression__step choice = {.kind = EXPRESSION__CHOICE};
    if (most == 0) e->step_count = from;
    for (int i = 0; i < least + rest; i++) {
        const int out = most < 0 ? size + 2 : (least + rest - i) * (size + 1);
        choice.first = lazily ? out : 1;
        choice.other = lazily ? 1 : out;
        if (i == 0 && least == 0 && !expression__insert(r, from, choice)) return;
        if (i > 0 && i >= least && !expression__add(r, choice)) return;
        for (int k = 0; i > 0 && k < size; k++)
            if (!expression__add(r, e->steps[first + k])) return;
    }
    choice.first = lazily ? 1 : -size;
    choice.other = lazily ? -size : 1;
    if (most < 0 && least == 0)
        expression__add(r, (expression__step){.kind = EXPRESSION__JUMP, .first = -(size + 1)});
    if (most < 0 && least > 0) expression__add(r, choice);
}

/* Something and how often. */
static inline bool expression__read_piece(expression__reader *r)
{
    const int from = r->e->step_count;
    int       least, most;
    if (!expression__read_atom(r)) return false;
    while (expression__more(r)) {
        const bool braces = expression__peek(r, "{");
        if (!expression__read_times(r, &least, &most)) break;
        const bool lazily = expression__take(r, "?"),
                   one_way = !lazily && !braces && expression__take(r, "+");
        if (braces && lazily && least == most) expression__fail(r, "{n}? is not supported");
        expression__repeat(r, from, least, most, lazily);
        if (!one_way) continue;
        const int length = r->e->step_count - from + 2;
        expression__insert(r, from, (expression__step){.kind = EXPRESSION__ONE_WAY, .other = length});
        expression__add(r, (expression__step){.kind = EXPRESSION__END});
    }
    return true;
}

/* a|b|c: each but the last has a choice before it, and behind it a jump to the end. */
static inline void expression__read_choices(expression__reader *r)
{
    expression__step *steps = r->e->steps;
    int               jump = -1;
    for (;;) {
        const int from = r->e->step_count;
        while (expression__read_piece(r)) {}
        if (!expression__take(r, "|")) break;
        const int length = r->e->step_count - from + 2;
        if (!expression__insert(r, from,
                                (expression__step){.kind = EXPRESSION__CHOICE, .first = 1, .other = length}))
            return;
        if (!expression__add(r, (expression__step){.kind = EXPRESSION__JUMP, .first = jump}))
            return; /* the one before, for now */
        jump = r->e->step_count - 1;
    }
    for (int before; jump >= 0; jump = before) {
        before = steps[jump].first;
        steps[jump].first = r->e->step_count - jump;
    }
}

/* Whether a choice repeats one character, and nothing comes behind it for which fewer would do better. */
static inline bool expression__takes_all(const expression *e, int at)
{
    const expression__step *s = &e->steps[at];
    if (s->kind != EXPRESSION__CHOICE || s->first != -1 || e->steps[at - 1].kind > EXPRESSION__CLASS)
        return false;
    for (at += s->other; e->steps[at].kind == EXPRESSION__JUMP && e->steps[at].first > 0;)
        at += e->steps[at].first;
    return e->steps[at].kind == EXPRESSION__END;
}

/* Numbers the choices, and notes what classes hold of ASCII. */
static inline void expression__settle(expression *e)
{
    uint32_t choices = 0;
    for (int i = 0; i < e->step_count; i++) {
        if (expression__takes_all(e, i)) e->steps[i].kind = EXPRESSION__ALL;
        if (e->steps[i].kind == EXPRESSION__CHOICE) e->steps[i].what = choices++;
    }
    e->words = (choices + 31) / 32;
    for (int i = 0; i < e->class_count; i++)
        for (uint32_t c = 0; c < 0x80; c++)
            if (expression__class_holds(e, &e->classes[i], c)) e->classes[i].ascii[c / 32] |= 1u << c % 32;
}

/* NULL: *why says what is not known, or that memory ran out. */
static inline expression *expression_of(const char *text, size_t bytes, const char **why)
{
    expression__reader r = {.e = calloc(1, sizeof(expression)), .text = text, .bytes = bytes, .single = -1};
    if (r.e == NULL) return *why = "out of memory", NULL;
    const int dot = expression__add_class(&r);
    expression__add_item(
        &r, dot, (expression__item){.kind = EXPRESSION__RANGE, .negated = true, .first = '\n', .last = '\n'});
    expression__read_choices(&r);
    if (r.at < r.bytes) expression__fail(&r, "a parenthesis closes nothing");
    expression__add(&r, (expression__step){.kind = EXPRESSION__END});
    *why = r.why;
    if (r.why) return expression_free(r.e), NULL;
    expression__settle(r.e);
    return r.e;
}

/* The text itself, whatever it means as an expression. */
static inline expression *expression_literal(const char *text, size_t bytes, const char **why)
{
    expression__reader r = {.e = calloc(1, sizeof(expression)), .text = text, .bytes = bytes};
    if (r.e == NULL) return *why = "out of memory", NULL;
    while (expression__more(&r))
        expression__add(
            &r, (expression__step){.kind = EXPRESSION__CHARACTER, .what = text_next(text, bytes, &r.at)});
    expression__add(&r, (expression__step){.kind = EXPRESSION__END});
    *why = r.why;
    if (r.why) return expression_free(r.e), NULL;
    return r.e;
}

/* One character of a table, which is not copied. */
static inline expression *expression_of_ranges(const unicode_range *ranges, size_t count, const char **why)
{
    expression__reader r = {.e = calloc(1, sizeof(expression))};
    if (r.e == NULL) return *why = "out of memory", NULL;
    expression__add_one(
        &r, (expression__item){.kind = EXPRESSION__TABLE, .last = (uint32_t)count, .ranges = ranges});
    expression__add(&r, (expression__step){.kind = EXPRESSION__END});
    expression__settle(r.e);
    return r.e;
}

/* ---- matching ---- */

typedef struct expression__choice {
    int    step;
    size_t at;
} expression__choice;

/* Memory that matches share, one after another. */
typedef struct expression_room {
    expression__choice *choices; /* that may still be taken */
    /* of each place from where a match begins, a bit a choice that has been met there */
    uint32_t *seen;
    size_t    choice_count, choice_room, seen_count, seen_room;
} expression_room;

static inline void expression_room_free(expression_room *room)
{
    free(room->choices);
    free(room->seen);
    *room = (expression_room){0};
}

typedef struct expression__match {
    const expression *e;
    expression_room  *room;
    const char       *text;
    size_t            bytes, origin, seen; /* seen: where its part of room->seen begins */
} expression__match;

/* Whether a choice is met here for the first time; -1: out of memory. */
static inline int expression__is_new(const expression__match *m, uint32_t choice, size_t at)
{
    expression_room *room = m->room;
    const size_t     row = m->seen + (at - m->origin) * m->e->words, end = row + m->e->words;
    if (end > room->seen_room) {
        const size_t size = end * 2 + 64;
        uint32_t    *seen = size < SIZE_MAX / sizeof *seen ? realloc(room->seen, size * sizeof *seen) : NULL;
        if (seen == NULL) return -1;
        room->seen = seen;
        room->seen_room = size;
    }
    if (end > room->seen_count) {
        memset(room->seen + room->seen_count, 0, (end - room->seen_count) * sizeof *room->seen);
        room->seen_count = end;
    }
    uint32_t  *word = &room->seen[row + choice / 32], bit = 1u << choice % 32;
    const bool is_new = !(*word & bit);
    *word |= bit;
    return is_new;
}

static inline bool expression__keep(expression_room *room, int step, size_t at)
{
    if (room->choice_count == room->choice_room) {
        const size_t        size = room->choice_room * 2 + 64;
        expression__choice *choices = realloc(room->choices, size * sizeof *choices);
        if (choices == NULL) return false;
        room->choices = choices;
        room->choice_room = size;
    }
    room->choices[room->choice_count++] = (expression__choice){step, at};
    return true;
}

/* Whether the step's character stands here, which *at then passes. */
static inline bool expression__passes(const expression__match *m, const expression__step *step, size_t *at)
{
    if (*at >= m->bytes) return false;
    const uint32_t c = text_next(m->text, m->bytes, at);
    if (step->kind == EXPRESSION__CHARACTER) return c == step->what;
    const expression__class *class = &m->e->classes[step->what];
    return c < 0x80 ? class->ascii[c / 32] >> c % 32 & 1u : expression__class_holds(m->e, class, c);
}

static inline bool expression__same(const expression__match *m, size_t *at)
{
    const size_t before = text_back(m->text, *at), bytes = *at - before;
    if (m->bytes - *at < bytes || memcmp(m->text + before, m->text + *at, bytes) != 0) return false;
    *at += bytes;
    return true;
}

/* Ruby's: a line begins behind a newline that does not end the text. */
static inline bool expression__stands(const expression__match *m, expression__kind kind, size_t at)
{
    const bool last = at == m->bytes;
    return kind == EXPRESSION__TEXT_BEGINS   ? at == 0
           : kind == EXPRESSION__TEXT_ENDS   ? last
           : kind == EXPRESSION__LINE_BEGINS ? at == 0 || (!last && m->text[at - 1] == '\n')
                                             : last || m->text[at] == '\n';
}

static inline int expression__run(expression__match m, int step, size_t *at);

/* Takes one step: 1, and where it leads; 0: it does not match; -1: out of memory. */
static inline int expression__take_step(const expression__match *m, int *step, size_t *at)
{
    const expression__step *s = &m->e->steps[*step];
    size_t                  end = *at;
    int                     good = 1;
    if (s->kind <= EXPRESSION__CLASS) return ++*step, expression__passes(m, s, at);
    if (s->kind == EXPRESSION__SAME) return ++*step, expression__same(m, at);
    if (s->kind == EXPRESSION__JUMP) return *step += s->first, 1;
    if (s->kind >= EXPRESSION__LINE_BEGINS) return ++*step, expression__stands(m, s->kind, *at);
    if (s->kind == EXPRESSION__ALL) {
        while (expression__passes(m, s - 1, &end)) *at = end;
        return *step += s->other, 1;
    }
    if (s->kind == EXPRESSION__CHOICE) {
        const expression__step *better = s + s->first;
        const int chosen = better->kind > EXPRESSION__CLASS || expression__passes(m, better, &end) ? s->first
                                                                                                   : s->other;
        good = expression__is_new(m, s->what, *at);
        if (good == 1 && chosen == s->first && !expression__keep(m->room, *step + s->other, *at)) good = -1;
        *step += chosen;
        return good;
    }
    good = expression__run(*m, *step + 1, &end);
    if (s->kind == EXPRESSION__ONE_WAY && good == 1) *at = end;
    *step += s->other;
    return good < 0 ? -1 : good == (s->kind != EXPRESSION__NOT_AHEAD);
}

/* Whether the steps match at *at, which then is where they end: the first way to do so, by going back to the
 * last choice left. */
static inline int expression__run(expression__match m, int step, size_t *at)
{
    const size_t bottom = m.room->choice_count, seen = m.room->seen_count;
    size_t       here = *at;
    int          good = 1;
    m.origin = here;
    m.seen = seen;
    while (good >= 0 && m.e->steps[step].kind != EXPRESSION__END) {
        good = expression__take_step(&m, &step, &here);
        if (good != 0) continue;
        if (m.room->choice_count == bottom) break;
        const expression__choice choice = m.room->choices[--m.room->choice_count];
        step = choice.step;
        here = choice.at;
        good = 1;
    }
    m.room->choice_count = bottom;
    m.room->seen_count = seen;
    *at = here;
    return good;
}

/* Where the next match is looked for, and the end of the one before it, if there was one. At first {0}. */
typedef struct expression_place {
    size_t at, end;
    bool   some;
} expression_place;

/* 1: the next match, from *start to *end; an empty one not where one has just ended. 0: there is none. -1:
 * out of memory. */
static inline int expression_next(const expression *e, expression_room *room, const char *text, size_t bytes,
                                  expression_place *place, size_t *start, size_t *end)
{
    const expression__match m = {.e = e, .room = room, .text = text, .bytes = bytes};
    for (*start = place->at; *start <= bytes;) {
        *end = *start;
        const bool hopeless = e->steps->kind <= EXPRESSION__CLASS && !expression__passes(&m, e->steps, end);
        *end = *start;
        const int  found = hopeless ? 0 : expression__run(m, 0, end);
        const bool again = found == 1 && *end == *start && place->some && place->end == *end;
        if (found < 0 || (found == 1 && !again)) {
            *place = (expression_place){*end, *end, true};
            return found;
        }
        if (*start == bytes) break;
        (void)text_next(text, bytes, start);
    }
    place->at = bytes + 1;
    return 0;
}

#endif
