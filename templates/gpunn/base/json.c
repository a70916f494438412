#include "base/json.h"
#include "base/memory.h"

GPUNN__INTERNAL gpunn__json gpunn__json_of(char *text, size_t length, bool python)
{
    gpunn__json json = {text, text + length, python, NULL, 0, text};
    return json;
}

GPUNN__INTERNAL bool gpunn__json_fail(gpunn__json *j, const char *problem)
{
    if (j->problem == NULL) j->problem = problem;
    j->end = j->at;
    return false;
}

GPUNN__INTERNAL bool gpunn__json_peek(gpunn__json *j, char c)
{
    for (; j->at < j->end && (*j->at == ' ' || *j->at == '\t' || *j->at == '\n' || *j->at == '\r'); j->at++)
        if (*j->at == '\n') {
            j->line++;
            j->line_start = j->at + 1;
        }
    return j->at < j->end && *j->at == c;
}

GPUNN__INTERNAL bool gpunn__json_take(gpunn__json *j, char c)
{
    if (!gpunn__json_peek(j, c)) return false;
    j->at++;
    return true;
}

GPUNN__INTERNAL bool gpunn__json_expect(gpunn__json *j, char c, const char *problem)
{
    return gpunn__json_take(j, c) || gpunn__json_fail(j, problem);
}

/* Bytes of a UTF-8 sequence that begins with c. 0: none begins with it. */
static size_t gpunn__utf8_length(unsigned char c)
{
    if (c < 0x80) return 1;
    if (c < 0xC2) return 0;
    if (c < 0xE0) return 2;
    if (c < 0xF0) return 3;
    return c < 0xF5 ? 4 : 0;
}

GPUNN__INTERNAL size_t gpunn__utf8_size(const char *s, size_t left)
{
    unsigned char c = (unsigned char)*s, d = left > 1 ? (unsigned char)s[1] : 0;
    const size_t  size = gpunn__utf8_length(c);
    if (size > left) return 0;
    for (size_t i = 1; i < size; i++)
        if (((unsigned char)s[i] & 0xC0) != 0x80) return 0;
    bool overlong = (c == 0xE0 && d < 0xA0) || (c == 0xF0 && d < 0x90),
         outside = (c == 0xED && d > 0x9F) || (c == 0xF4 && d > 0x8F);
    return overlong || outside ? 0 : size;
}

static char *gpunn__utf8_put(char *to, uint32_t c)
{
    if (c < 0x80) {
        *to++ = (char)c;
        return to;
    }
    if (c < 0x800)
        *to++ = (char)(0xC0 | c >> 6);
    else {
        if (c < 0x10000)
            *to++ = (char)(0xE0 | c >> 12);
        else {
            *to++ = (char)(0xF0 | c >> 18);
            *to++ = (char)(0x80 | (c >> 12 & 63));
        }
        *to++ = (char)(0x80 | (c >> 6 & 63));
    }
    *to++ = (char)(0x80 | (c & 63));
    return to;
}

/* Parses the four hexadecimal digits of \uXXXX; UINT32_MAX if they are missing. */
static uint32_t gpunn__json_hex(gpunn__json *j)
{
    uint32_t value = 0;
    if (j->end - j->at < 4) return UINT32_MAX;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        char              c = *j->at++;
        const char       *digit = c ? strchr(digits, c) : NULL;
        if (digit == NULL) return UINT32_MAX;
        value = value << 4 | (uint32_t)((digit - digits) & 15);
    }
    return value;
}

static bool gpunn__json_escape(gpunn__json *j, char **to)
{
    static const char from_[] = "\"\\/bfnrt", to_[] = "\"\\/\b\f\n\r\t";
    char              c = j->at < j->end ? *j->at++ : 0;
    const char       *plain = c ? strchr(from_, c) : NULL;
    if (plain) {
        *(*to)++ = to_[plain - from_];
        return true;
    }
    uint32_t code = c == 'u' ? gpunn__json_hex(j) : UINT32_MAX;
    /* a surrogate pair */
    if (code >= 0xD800 && code < 0xDC00 && j->end - j->at >= 2 && j->at[0] == '\\' && j->at[1] == 'u') {
        j->at += 2;
        uint32_t low = gpunn__json_hex(j);
        code = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                                             : UINT32_MAX;
    }
    if (code == UINT32_MAX || (code >= 0xD800 && code < 0xE000))
        return gpunn__json_fail(j, "has a wrong escape in a string");
    *to = gpunn__utf8_put(*to, code);
    return true;
}

GPUNN__INTERNAL bool gpunn__json_string(gpunn__json *j, gpunn__slice *text)
{
    char quote = j->python && gpunn__json_peek(j, '\'') ? '\'' : '"';
    if (!gpunn__json_expect(j, quote, "lacks a string")) return false;
    char *to = j->at;
    text->at = to;
    while (j->at < j->end && *j->at != quote) {
        if (*j->at == '\\') {
            j->at++;
            if (!gpunn__json_escape(j, &to)) return false;
            continue;
        }
        size_t size = gpunn__utf8_size(j->at, (size_t)(j->end - j->at));
        if (size == 0 || (unsigned char)*j->at < 0x20)
            return gpunn__json_fail(j, "has a string that is not UTF-8 text");
        while (size--) *to++ = *j->at++;
    }
    if (j->at == j->end) return gpunn__json_fail(j, "has an unterminated string");
    j->at++;
    *to = 0;
    text->length = (size_t)(to - text->at);
    return true;
}

GPUNN__INTERNAL bool gpunn__json_integer(gpunn__json *j, int64_t *value)
{
    bool    negative = gpunn__json_take(j, '-');
    char   *first = j->at;
    int64_t sum = 0; /* accumulated as a negative number, since INT64_MIN has no positive counterpart */
    for (; j->at < j->end && *j->at >= '0' && *j->at <= '9'; j->at++) {
        int digit = *j->at - '0';
        if (sum < (INT64_MIN + digit) / 10) return gpunn__json_fail(j, "has a number that is too large");
        sum = sum * 10 - digit;
    }
    if (j->at == first || (*first == '0' && j->at - first > 1) || (!negative && sum == INT64_MIN) ||
        (j->at < j->end && (*j->at == '.' || *j->at == 'e' || *j->at == 'E')))
        return gpunn__json_fail(j, "lacks an integer where one is needed");
    *value = negative ? sum : -sum;
    return true;
}

GPUNN__INTERNAL bool gpunn__slice_integer(const gpunn__slice *text, int64_t *value)
{
    gpunn__json j = gpunn__json_of(text->at, text->length, false);
    return gpunn__json_integer(&j, value) && j.at == j.end;
}

/* Parses a JSON number; text receives its characters. */
static bool gpunn__json_number(gpunn__json *j, gpunn__slice *text)
{
    text->at = j->at;
    (void)gpunn__json_take(j, '-');
    for (int part = 0; part < 3; part++) { /* digits, fraction, exponent */
        if (part == 1 && (j->at == j->end || *j->at != '.')) continue;
        if (part == 2 && (j->at == j->end || (*j->at != 'e' && *j->at != 'E'))) break;
        j->at += part > 0;
        if (part == 2 && j->at < j->end && (*j->at == '-' || *j->at == '+')) j->at++;
        const char *first = j->at;
        while (j->at < j->end && *j->at >= '0' && *j->at <= '9') j->at++;
        if (j->at == first || (part == 0 && *first == '0' && j->at - first > 1))
            return gpunn__json_fail(j, "lacks a digit or has a needless 0 in a number");
    }
    text->length = (size_t)(j->at - text->at);
    return true;
}

GPUNN__INTERNAL bool gpunn__json_double(const gpunn__slice *text, double *value)
{
    char    plain[1024];
    size_t  used = 0, at = 0;
    int64_t exponent = 0;
    bool    fraction = false;
    if (text->length > sizeof plain - 32) return false;
    for (; at < text->length && text->at[at] != 'e' && text->at[at] != 'E'; at++) {
        exponent -= fraction;
        if (text->at[at] == '.')
            fraction = true;
        else
            plain[used++] = text->at[at];
    }
    if (at < text->length) {
        bool negative = text->at[++at] == '-';
        if (negative || text->at[at] == '+') at++;
        int64_t given = 0;
        for (; at < text->length; at++)
            if (given < 100000) given = 10 * given + (text->at[at] - '0');
        exponent += negative ? -given : given;
    }
    (void)snprintf(plain + used, sizeof plain - used, "e%lld", (long long)exponent);
    *value = strtod(plain, NULL);
    return true;
}

static const char *gpunn__digits_end(const char *at)
{
    while (*at >= '0' && *at <= '9') at++;
    return at;
}

/* End of the decimal number without a sign at text; NULL: there is none. */
static const char *gpunn__decimal_end(const char *text)
{
    const char *at = gpunn__digits_end(text), *fraction = *at == '.' ? gpunn__digits_end(at + 1) : at;
    if (at == text && fraction - at < 2) return NULL;
    at = fraction;
    if (*at != 'e' && *at != 'E') return at;
    const char *power = at + 1 + (at[1] == '-' || at[1] == '+'), *end = gpunn__digits_end(power);
    return end > power ? end : at;
}

GPUNN_API double gpunn_strtod(const char *text, char **end)
{
    const char  *at = text + strspn(text, " \t\n\v\f\r"), *unsigned_at = at + (*at == '-' || *at == '+');
    const char  *behind = gpunn__decimal_end(unsigned_at);
    gpunn__slice number = {(char *)at, 0}; /* only read */
    double       value = 0;
    /* infinities and NaN */
    if (behind == NULL && isalpha((unsigned char)*unsigned_at)) return strtod(text, end);
    if (behind) number.length = (size_t)(behind - at);
    if (behind == NULL || !gpunn__json_double(&number, &value)) behind = text;
    if (end) *end = (char *)behind;
    return value;
}

enum { GPUNN__JSON_DEPTH = 64 };

GPUNN__INTERNAL bool gpunn__json_item(gpunn_device *dev, gpunn__json *j, gpunn__items *items, int depth)
{
    static const char *const words[] = {"null", "false", "true"};
    gpunn__item             *item = (gpunn__item *)gpunn__grow(dev, items->at, items->count, &items->capacity,
                                                               sizeof *item);
    if (item == NULL) return false;
    int index = items->count++;
    items->at = item;
    item += index;
    memset(item, 0, sizeof *item);
    (void)gpunn__json_peek(j, 0);
    item->line = j->line + 1;
    item->column = (int)(j->at - j->line_start) + 1;
    bool object = gpunn__json_peek(j, '{'), ok;
    if (object || gpunn__json_peek(j, '[')) {
        item->kind = object ? GPUNN__J_OBJECT : GPUNN__J_LIST;
        if (depth == GPUNN__JSON_DEPTH) return gpunn__json_fail(j, "is nested deeper than 64");
        char close = object ? '}' : ']';
        j->at++;
        if (!gpunn__json_take(j, close)) {
            do {
                if (object && !gpunn__json_peek(j, '"'))
                    return gpunn__json_fail(j, "lacks a key in double quotes");
                if (object && !(gpunn__json_item(dev, j, items, depth + 1) &&
                                gpunn__json_expect(j, ':', "lacks a colon")))
                    return false;
                if (!gpunn__json_item(dev, j, items, depth + 1)) return false;
            } while (gpunn__json_take(j, ','));
            if (!gpunn__json_expect(j, close, object ? "lacks a comma or }" : "lacks a comma or ]"))
                return false;
        }
        items->at[index].next = items->count;
        return true;
    }
    item->next = items->count;
    if (gpunn__json_peek(j, '"')) {
        item->kind = GPUNN__J_STRING;
        ok = gpunn__json_string(j, &item->text);
    } else if (j->at < j->end && (*j->at == '-' || (*j->at >= '0' && *j->at <= '9'))) {
        item->kind = GPUNN__J_NUMBER;
        ok = gpunn__json_number(j, &item->text);
    } else {
        int word = 2;
        while (word >= 0 && ((size_t)(j->end - j->at) < strlen(words[word]) ||
                             memcmp(j->at, words[word], strlen(words[word])) != 0))
            word--;
        item->kind = (gpunn__item_kind)word; /* the words are in the order of the kinds */
        if (word < 0) return gpunn__json_fail(j, j->at == j->end ? "ends too early" : "lacks a value");
        j->at += strlen(words[word]);
        ok = true;
    }
    return ok;
}

GPUNN__INTERNAL bool gpunn__slice_is(const gpunn__slice *text, const char *word)
{
    return text->length == strlen(word) && memcmp(text->at, word, text->length) == 0;
}

GPUNN__INTERNAL const char *gpunn__printable(const gpunn__slice *text, char out[128])
{
    size_t n = 0;
    while (n < text->length) {
        size_t size = gpunn__utf8_size(text->at + n, text->length - n);
        if (size == 0 || n + size > 120) break;
        for (; size; size--, n++)
            out[n] = (unsigned char)text->at[n] < 0x20 || text->at[n] == 0x7f ? '?' : text->at[n];
    }
    strcpy(out + n, n < text->length ? "..." : "");
    return out;
}
