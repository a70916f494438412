/* csv.h - tables as text (RFC 4180). Fields in quotes may hold separators, line ends and doubled quotes.
 * json.h must stand beside it.
 *
 * Columns by the names in the header row, in any order, such as the samples of a gpunn_loader. The separator
 * is the one that the header row uses: ',', ';' or a tab. The text is not changed:
 *
 *     const char *names[] = {"length", "width"};
 *     char      **species;                                                                  [classes]
 *     size_t      rows, classes;
 *     text_error  error;
 *     float      *table = csv_floats(text, names, 2, &rows, &error);                        [rows][2]
 *     int64_t    *label = csv_classes(text, "species", &species, &classes, &rows, &error);  [rows]
 *
 * After a failure they return NULL, and error.text says why. free() frees table, label and species.
 *
 * Or record by record, for tables of another kind:
 *
 *     csv       c = csv_begin(text);                    text ends at its first 0 and is changed
 *     csv_field field[2];
 *     for (int n; (n = csv_next(&c, field, 2)) != 0;)   n: fields of the record, two of them kept; -1: broken
 *         if (n == 2) use(field[0].text, field[0].bytes, c.line);           c.line: where it begins */
#ifndef CSV_H
#define CSV_H

#include "json.h"

#include <ctype.h>
#include <math.h>

enum { CSV_MAX_COLUMNS = 1024 };
#define CSV_BROKEN "a quote is not closed, or text follows it"

typedef struct csv {
    char *at;
    int   line, next_line;
    char  separator; /* ',' from csv_begin on; may be set before csv_next, as to csv_separator(text) */
} csv;

typedef struct csv_field {
    char  *text; /* no 0 behind it */
    size_t bytes;
} csv_field;

static const char csv__separators[] = ",;\t";

/* What separates the names of a header row: the most frequent of ',', ';' and tab outside of quotes. If two
 * are equally frequent, the later one, as names hold commas most often. */
static inline char csv_separator(const char *text)
{
    size_t count[3] = {0, 0, 0};
    int    most = 0;
    bool   quoted = false;
    text += strncmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    for (text += strspn(text, "\r\n"); *text && (quoted || !strchr("\r\n", *text)); text++) {
        const char *found = quoted ? NULL : strchr(csv__separators, *text);
        if (found) count[found - csv__separators]++;
        quoted ^= *text == '"';
    }
    for (int i = 1; i < 3; i++)
        if (count[i] > 0 && count[i] >= count[most]) most = i;
    return csv__separators[most];
}

static inline csv csv_begin(char *text)
{
    csv c = {text + (strncmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0), 1, 1, ','};
    return c;
}

/* A field, whose quotes are removed in place, and what follows: a separator, a line's end or the 0 at the end
 * of all. NULL: a quote has no end, or something stands behind it; then nothing has changed. */
static inline char *csv__field(csv *c, char *at, csv_field *field)
{
    const char ends[] = {c->separator, '\r', '\n', 0};
    char      *to = at, *end = at + 1;
    field->text = at;
    if (*at != '"') {
        at += strcspn(at, ends);
        field->bytes = (size_t)(at - field->text);
        return at;
    }
    while (*end && (*end != '"' || end[1] == '"')) end += *end == '"' ? 2 : 1;
    if (*end == 0 || strchr(ends, end[1]) == NULL) return NULL;
    for (at++; at < end; at += *at == '"' ? 2 : 1) {
        c->next_line += *at == '\n';
        *to++ = *at;
    }
    field->bytes = (size_t)(to - field->text);
    return end + 1;
}

/* The next record that is not an empty line; 0: there is none. Behind a broken one it goes on with the next
 * line. */
static inline int csv_next(csv *c, csv_field *fields, int most)
{
    for (int count = 1; *c->at; count = 1) {
        csv_field spare;
        c->line = c->next_line;
        char *start = c->at, *next = csv__field(c, start, most > 0 ? &fields[0] : &spare);
        for (; next && *next == c->separator; count++)
            next = csv__field(c, start = next + 1, count < most ? &fields[count] : &spare);
        bool broken = next == NULL, empty = next == c->at;
        if (broken) next = start + strcspn(start, "\n");
        c->at = next + strspn(next, "\r");
        if (*c->at == '\n') c->at++, c->next_line++;
        if (!empty) return broken ? -1 : count;
    }
    return 0;
}

/* The column that a header row names, -1: none. */
static inline int csv_column(const csv_field *header, int columns, const char *name)
{
    for (int i = 0; i < columns; i++)
        if (header[i].bytes == strlen(name) && memcmp(header[i].text, name, header[i].bytes) == 0) return i;
    return -1;
}

/* A finite number with blanks around it or none; an empty field is NaN, as is "nan". Where ';' separates the
 * fields, a number may have a decimal comma. */
static inline bool csv_number(const csv_field *field, char separator, float *value)
{
    char text[64], *end;
    if (field->bytes >= sizeof text) return false;
    memcpy(text, field->text, field->bytes);
    text[field->bytes] = 0;
    char *comma = separator == ';' ? strchr(text, ',') : NULL;
    if (comma) *comma = '.';
    *value = (float)gpunn_strtod(text, &end);
    if (text[strspn(text, " \t")] == 0) {
        *value = NAN;
        return true;
    }
    return end > text && end[strspn(end, " \t")] == 0 && !isinf(*value);
}

/* A field without the blanks around it. */
static inline csv_field csv_trimmed(csv_field field)
{
    for (; field.bytes > 0 && (*field.text == ' ' || *field.text == '\t'); field.bytes--) field.text++;
    while (field.bytes > 0 && (field.text[field.bytes - 1] == ' ' || field.text[field.bytes - 1] == '\t'))
        field.bytes--;
    return field;
}

static inline const char *csv__quoted(char separator)
{
    return separator == ',' ? "','" : separator == ';' ? "';'" : "'\\t'";
}

/* Whether a record of one field has another separator than it should; then error says so. */
static inline bool csv_other_separator(const csv *c, const csv_field *field, text_error *error)
{
    for (const char *other = csv__separators; *other; other++) {
        size_t count = 0;
        for (size_t i = 0; i < field->bytes; i++) count += field->text[i] == *other;
        if (count > 0 && *other != c->separator)
            return !text_fail(error, "line %d has no %s but %zu %s; separate its fields by %s", c->line,
                              csv__quoted(c->separator), count, csv__quoted(*other),
                              csv__quoted(c->separator));
    }
    return false;
}

/* Whether a field is that name but for blanks around it and case. */
static inline bool csv__alike(csv_field field, const char *name)
{
    size_t i = 0;
    field = csv_trimmed(field);
    while (i < field.bytes && tolower((unsigned char)field.text[i]) == tolower((unsigned char)name[i])) i++;
    return i == field.bytes && name[i] == 0;
}

/* Says that the header row lacks a name: one column is like it, or the columns that there are. */
static inline bool csv__no_column(const csv_field *header, int width, const char *name, text_error *error)
{
    enum { SHOWN = 8, LONGEST = 30 };
    char   names[SHOWN * (LONGEST + 4) + 1];
    size_t used = 0;
    for (int i = 0; i < width; i++)
        if (csv__alike(header[i], name))
            return text_fail(error, "the header names no column '%s' but '%.*s'; blanks and case count", name,
                             (int)header[i].bytes, header[i].text);
    for (int i = 0; i < width && i < SHOWN; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s'%.*s'", i ? ", " : "",
                                 header[i].bytes > LONGEST ? LONGEST : (int)header[i].bytes, header[i].text);
    return text_fail(error, "the header names no column '%s'; its columns are %s%s", name, names,
                     width > SHOWN ? ", ..." : "");
}

/* Where the header row has each of the names. */
static inline bool csv__places(const csv_field *header, int width, const char *const *names, int columns,
                               int *place, text_error *error)
{
    for (int i = 0; i < columns; i++) {
        place[i] = csv_column(header, width, names[i]);
        if (place[i] < 0) return csv__no_column(header, width, names[i], error);
        if (csv_column(header + place[i] + 1, width - place[i] - 1, names[i]) >= 0)
            return text_fail(error, "the header names two columns '%s'", names[i]);
    }
    return true;
}

/* A copy of a text, of which the header and then each row are in field. */
typedef struct csv__table {
    csv       at;
    char     *text; /* to be freed, also after a failure */
    size_t    rows; /* read so far */
    int       width;
    csv_field field[CSV_MAX_COLUMNS];
} csv__table;

static inline bool csv__open(csv__table *t, const char *text, text_error *error)
{
    const size_t bytes = strlen(text) + 1;
    t->text = (char *)malloc(bytes);
    if (t->text == NULL) return text_fail(error, "out of memory for a copy of the text, %zu bytes", bytes);
    memcpy(t->text, text, bytes);
    t->at = csv_begin(t->text);
    t->at.separator = csv_separator(text);
    t->rows = 0;
    t->width = csv_next(&t->at, t->field, CSV_MAX_COLUMNS);
    if (t->width == 0) return text_fail(error, "the text is empty and has no header");
    if (t->width < 0) return text_fail(error, "line %d, the header: %s", t->at.line, CSV_BROKEN);
    return t->width <= CSV_MAX_COLUMNS ||
           text_fail(error, "the header has %d columns, but at most %d can be read", t->width,
                     CSV_MAX_COLUMNS);
}

/* Memory for all rows that can follow: so many bytes for each. */
static inline void *csv__room(const csv__table *t, size_t bytes, text_error *error)
{
    size_t rows = 1;
    for (const char *at = t->at.at; *at; at++) rows += *at == '\n' || (*at == '\r' && at[1] != '\n');
    void *room = rows <= SIZE_MAX / bytes ? malloc(rows * bytes) : NULL;
    if (room == NULL) text_fail(error, "out of memory for %zu rows of %zu bytes", rows, bytes);
    return room;
}

/* Reads the next row; 0: there is none, -1: it is no row of this table, or the table has no row. */
static inline int csv__next(csv__table *t, text_error *error)
{
    const int n = csv_next(&t->at, t->field, CSV_MAX_COLUMNS);
    if (n == 0 && t->rows == 0) text_fail(error, "there is no row below the header");
    if (n == 0) return t->rows ? 0 : -1;
    t->rows++;
    if (n == t->width) return 1;
    if (n < 0)
        text_fail(error, "line %d: %s", t->at.line, CSV_BROKEN);
    else if (n > 1 || !csv_other_separator(&t->at, t->field, error))
        text_fail(error, "line %d has %d field%s, but the header has %d", t->at.line, n, n == 1 ? "" : "s",
                  t->width);
    return -1;
}

static inline bool csv__row(const csv__table *t, const char *const *names, int columns, const int *place,
                            float *row, text_error *error)
{
    for (int i = 0; i < columns; i++) {
        const csv_field *field = &t->field[place[i]];
        if (!csv_number(field, t->at.separator, &row[i]))
            return text_fail(
                error,
                "line %d: '%.*s' in column '%s' is not a finite number; for a column of text use "
                "csv_classes",
                t->at.line, field->bytes > 30 ? 30 : (int)field->bytes, field->text, names[i]);
    }
    return true;
}

/* The named columns of a table whose first record is its header: rows x columns numbers, row by row, to be
 * freed; NaN where a field is empty. Where ';' separates the fields, numbers may have decimal commas. NULL:
 * error says that there is no header, row or memory, which name the header lacks and which it has, which line
 * is broken, has another separator or other fields than the header, or holds no number where one belongs. */
static inline float *csv_floats(const char *text, const char *const *names, int columns, size_t *rows,
                                text_error *error)
{
    csv__table t;
    int        place[CSV_MAX_COLUMNS], n = 1;
    float     *table = NULL;
    *rows = 0;
    if (columns < 1 || columns > CSV_MAX_COLUMNS) {
        text_fail(error, "%d columns are asked for, but a call reads 1 to %d", columns, CSV_MAX_COLUMNS);
        return NULL;
    }
    const size_t width = (size_t)columns;
    bool good = csv__open(&t, text, error) && csv__places(t.field, t.width, names, columns, place, error) &&
                (table = (float *)csv__room(&t, width * sizeof *table, error)) != NULL;
    while (good && (n = csv__next(&t, error)) > 0)
        good = csv__row(&t, names, columns, place, table + (t.rows - 1) * width, error);
    free(t.text);
    if (good && n == 0) {
        *rows = t.rows;
        return table;
    }
    free(table);
    return NULL;
}

typedef struct csv__label {
    csv_field name;
    size_t    row;
} csv__label;

static inline int csv__order(const void *a, const void *b)
{
    const csv_field *left = &((const csv__label *)a)->name, *right = &((const csv__label *)b)->name;
    const int        order = memcmp(left->text, right->text,
                             left->bytes < right->bytes ? left->bytes : right->bytes);
    return order ? order : (left->bytes > right->bytes) - (left->bytes < right->bytes);
}

/* Numbers the classes of sorted rows. Their names are in one block: the pointers, then the strings. */
static inline char **csv__number_classes(const csv__label *sorted, size_t rows, int64_t *labels,
                                         size_t *classes, text_error *error)
{
    size_t count = 0, bytes = 0, named = 0;
    for (size_t i = 0; i < rows; i++) {
        if (i == 0 || csv__order(&sorted[i - 1], &sorted[i]) != 0)
            count++, bytes += sizeof(char *) + sorted[i].name.bytes + 1;
        labels[sorted[i].row] = (int64_t)count - 1;
    }
    char **names = (char **)malloc(bytes);
    if (names == NULL) {
        text_fail(error, "out of memory for the names of %zu classes", count);
        return NULL;
    }
    char *to = (char *)(names + count);
    for (size_t i = 0; i < rows; i++)
        if (labels[sorted[i].row] == (int64_t)named) {
            names[named++] = (char *)memcpy(to, sorted[i].name.text, sorted[i].name.bytes);
            to += sorted[i].name.bytes;
            *to++ = 0;
        }
    *classes = count;
    return names;
}

/* The named column, whose fields are names of classes, as labels of 0 to classes - 1 [rows]. Classes are
 * numbered in the order of their names' bytes, so that files with the same classes have the same labels.
 * Blanks around a name do not count. The labels and *names [classes] are to be freed, each by one free. NULL,
 * as are *names then: error says what it says after csv_floats, or which line's field is empty. */
static inline int64_t *csv_classes(const char *text, const char *column, char ***names, size_t *classes,
                                   size_t *rows, text_error *error)
{
    csv__table  t;
    int         place = -1, n = 1;
    csv__label *sorted = NULL;
    int64_t    *labels = NULL;
    *names = NULL;
    *classes = *rows = 0;
    bool good = csv__open(&t, text, error) && csv__places(t.field, t.width, &column, 1, &place, error) &&
                (sorted = (csv__label *)csv__room(&t, sizeof *sorted, error)) != NULL &&
                (labels = (int64_t *)csv__room(&t, sizeof *labels, error)) != NULL;
    while (good && (n = csv__next(&t, error)) > 0) {
        const csv__label row = {csv_trimmed(t.field[place]), t.rows - 1};
        sorted[row.row] = row;
        if (row.name.bytes == 0)
            good = text_fail(error, "line %d: column '%s' is empty, but each row needs a class", t.at.line,
                             column);
    }
    if (good && n == 0) {
        qsort(sorted, t.rows, sizeof *sorted, csv__order);
        *names = csv__number_classes(sorted, t.rows, labels, classes, error);
    }
    free(sorted);
    free(t.text);
    if (*names) {
        *rows = t.rows;
        return labels;
    }
    free(labels);
    return NULL;
}

#endif
