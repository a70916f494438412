#include "base/sizes.h"
#include "base/errors.h"
#include "base/memory.h"

/* handles are below; they are so far apart that arithmetic on one never gives another */
#define GPUNN__NO_SIZE (-2 * GPUNN__MAX_COUNT)
#define GPUNN__SIZE_STEP ((int64_t)1 << 20)

GPUNN__INTERNAL bool gpunn__is_sized(int64_t dim)
{
    return dim < GPUNN__NO_SIZE && dim >= GPUNN__FIRST_SIZE;
}

static int64_t gpunn__size_handle(int place)
{
    return GPUNN__FIRST_SIZE + place * GPUNN__SIZE_STEP;
}

GPUNN__INTERNAL int gpunn__size_place(const gpunn_model *model, int64_t dim)
{
    const int64_t from = gpunn__is_sized(dim) ? dim - GPUNN__FIRST_SIZE : 0;
    return from % GPUNN__SIZE_STEP == 0 && from / GPUNN__SIZE_STEP < model->size_count
               ? (int)(from / GPUNN__SIZE_STEP)
               : 0;
}

/* ---- sums ---- */

/* a * b; 0 if it exceeds GPUNN__MAX_COUNT. */
static int64_t gpunn__size_product(int64_t a, int64_t b)
{
    if (b == 0) return 0;
    const int64_t most = GPUNN__MAX_COUNT / (b < 0 ? -b : b);
    return a > most || a < -most ? 0 : a * b;
}

static void gpunn__sum_add_term(gpunn__sum *sum, const gpunn__size_term *term)
{
    int at = 0, order = 1;
    if (sum->count < 0) return;
    while (at < sum->count && (order = memcmp(sum->term[at].atom, term->atom, sizeof term->atom)) > 0) at++;
    gpunn__size_term *place = &sum->term[at];
    if (at < sum->count && order == 0) {
        place->factor += term->factor;
        if (place->factor > GPUNN__MAX_COUNT || place->factor < -GPUNN__MAX_COUNT) sum->count = -1;
        if (place->factor == 0) memmove(place, place + 1, (size_t)(--sum->count - at) * sizeof *place);
    } else if (sum->count == GPUNN__TERMS)
        sum->count = -1;
    else {
        memmove(place + 1, place, (size_t)(sum->count++ - at) * sizeof *place);
        *place = *term;
    }
}

GPUNN__INTERNAL gpunn__sum gpunn__sum_plus(gpunn__sum a, const gpunn__sum *b, int64_t factor)
{
    if (b->count < 0) return *b;
    for (int i = 0; i < b->count; i++) {
        gpunn__size_term term = b->term[i];
        if ((term.factor = gpunn__size_product(term.factor, factor)) == 0)
            a.count = -1;
        else
            gpunn__sum_add_term(&a, &term);
    }
    return a;
}

GPUNN__INTERNAL gpunn__sum gpunn__sum_number(int64_t number)
{
    gpunn__sum sum;
    memset(&sum, 0, sizeof sum);
    sum.term[0].factor = number;
    sum.count = number < -GPUNN__MAX_COUNT || number > GPUNN__MAX_COUNT ? -1 : number != 0;
    return sum;
}

GPUNN__INTERNAL gpunn__sum gpunn__sum_plus_number(gpunn__sum a, int64_t number)
{
    const gpunn__sum b = gpunn__sum_number(number);
    return gpunn__sum_plus(a, &b, 1);
}

GPUNN__INTERNAL gpunn__sum gpunn__sum_atom(int place, int64_t factor)
{
    gpunn__sum sum = gpunn__sum_number(factor);
    sum.term[0].atom[0] = place;
    return sum;
}

static gpunn__size_term gpunn__term_product(const gpunn__size_term *a, const gpunn__size_term *b)
{
    gpunn__size_term result = {gpunn__size_product(a->factor, b->factor), {0}};
    for (int at = 0, i = 0, j = 0;;) {
        const int left = i < GPUNN__FACTORS ? a->atom[i] : 0, right = j < GPUNN__FACTORS ? b->atom[j] : 0;
        const int atom = left > right ? left : right;
        if (atom == 0) return result;
        if (at == GPUNN__FACTORS) break;
        result.atom[at++] = atom;
        if (left == atom)
            i++;
        else
            j++;
    }
    result.factor = 0;
    return result;
}

GPUNN__INTERNAL gpunn__sum gpunn__sum_times(const gpunn__sum *a, const gpunn__sum *b)
{
    gpunn__sum result = gpunn__sum_number(0);
    for (int i = 0; i < a->count; i++)
        for (int j = 0; j < b->count; j++) {
            const gpunn__size_term term = gpunn__term_product(&a->term[i], &b->term[j]);
            if (term.factor == 0) result.count = -1;
            gpunn__sum_add_term(&result, &term);
        }
    if (a->count < 0 || b->count < 0) result.count = -1;
    return result;
}

static bool gpunn__sums_equal(const gpunn__sum *a, const gpunn__sum *b)
{
    return a->count == b->count && memcmp(a->term, b->term, (size_t)a->count * sizeof *a->term) == 0;
}

GPUNN__INTERNAL gpunn__sum gpunn__sum_of(const gpunn_model *model, int64_t dim)
{
    if (dim >= 0) return gpunn__sum_number(dim);
    if (!gpunn__is_sized(dim)) return gpunn__sum_atom(GPUNN__BATCH_ATOM, -dim);
    const int          place = gpunn__size_place(model, dim);
    const gpunn__size *size = &model->sizes[place];
    return size->name || size->divisor ? gpunn__sum_atom(place, 1) : size->sum;
}

static int64_t gpunn__divisor_of_both(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a < 0 ? -a : a;
}

/* ---- text ---- */
GPUNN__INTERNAL void gpunn__size_put(char *text, size_t size, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list      list;
    va_start(list, format);
    (void)vsnprintf(text + used, size - used, format, list);
    va_end(list);
}

static const char *gpunn__atom_text(const gpunn_model *model, int place)
{
    if (place == GPUNN__BATCH_ATOM) return "batch";
    const gpunn__size *size = &model->sizes[place];
    return size->name ? size->name : size->text;
}

/* Sorts the atoms of a term by their texts, so that the text does not depend on the order in which the model
 * met them. Returns their number. */
static int gpunn__atoms_by_text(const gpunn_model *model, const gpunn__size_term *term,
                                int atoms[GPUNN__FACTORS])
{
    int count = 0;
    for (; count < GPUNN__FACTORS && term->atom[count]; count++) {
        int at = count;
        for (; at &&
               strcmp(gpunn__atom_text(model, atoms[at - 1]), gpunn__atom_text(model, term->atom[count])) > 0;
             at--)
            atoms[at] = atoms[at - 1];
        atoms[at] = term->atom[count];
    }
    return count;
}

/* Order of terms in a text: by the texts of their atoms, numbers last. */
static bool gpunn__term_is_before(const gpunn_model *model, const gpunn__size_term *a,
                                  const gpunn__size_term *b)
{
    int       of_a[GPUNN__FACTORS], of_b[GPUNN__FACTORS], order = 0;
    const int count_a = gpunn__atoms_by_text(model, a, of_a), count_b = gpunn__atoms_by_text(model, b, of_b);
    if (count_a == 0 || count_b == 0) return count_a > count_b;
    for (int i = 0; i < count_a && i < count_b && order == 0; i++)
        order = strcmp(gpunn__atom_text(model, of_a[i]), gpunn__atom_text(model, of_b[i]));
    return order ? order < 0 : count_a < count_b;
}

/* Appends a term after `sign`. */
static void gpunn__term_put(const gpunn_model *model, const gpunn__size_term *term, const char *sign,
                            char *text, size_t size)
{
    int       atoms[GPUNN__FACTORS];
    const int count = gpunn__atoms_by_text(model, term, atoms);
    int64_t   factor = term->factor < 0 ? -term->factor : term->factor, parts = 1;
    for (int i = 0; i < count; i++)
        if (atoms[i] != GPUNN__BATCH_ATOM && model->sizes[atoms[i]].name)
            parts = gpunn__size_product(parts, model->sizes[atoms[i]].multiple);
    const int64_t common = parts ? gpunn__divisor_of_both(factor, parts) : 1;
    factor /= common;
    parts /= common;
    const bool alone = factor == 1 && parts == 1 && count == 1; /* needs no parentheses */
    gpunn__size_put(text, size, "%s", sign);
    if (factor != 1 || count == 0) gpunn__size_put(text, size, "%lld", (long long)factor);
    for (int i = 0; i < count; i++) {
        const bool bare = alone || atoms[i] == GPUNN__BATCH_ATOM || model->sizes[atoms[i]].name;
        gpunn__size_put(text, size, bare ? "%s%s" : "%s(%s)", i || factor != 1 ? " * " : "",
                        gpunn__atom_text(model, atoms[i]));
    }
    if (parts > 1) gpunn__size_put(text, size, " / %lld", (long long)parts);
}

static void gpunn__sum_put(const gpunn_model *model, const gpunn__sum *sum, char *text, size_t size)
{
    const gpunn__size_term *terms[GPUNN__TERMS];
    for (int i = 0; i < sum->count; i++) {
        int at = i;
        for (; at && gpunn__term_is_before(model, &sum->term[i], terms[at - 1]); at--)
            terms[at] = terms[at - 1];
        terms[at] = &sum->term[i];
    }
    for (int i = 0; i < sum->count; i++) {
        const char *plus = i ? " + " : "", *minus = i ? " - " : "-";
        gpunn__term_put(model, terms[i], terms[i]->factor < 0 ? minus : plus, text, size);
    }
}

GPUNN__INTERNAL const char *gpunn__size_text(const gpunn_model *model, int64_t dim,
                                             char text[GPUNN__SIZE_BUFFER])
{
    const int        place = gpunn__size_place(model, dim);
    const gpunn__sum one = gpunn__sum_atom(place, 1);
    if (place == 0 || model->sizes[place].name == NULL) return place ? model->sizes[place].text : "no size";
    text[0] = 0;
    gpunn__sum_put(model, &one, text, GPUNN__SIZE_BUFFER);
    return text;
}

/* Formula of a size without a name. NULL if it is too long, or on an error. */
static char *gpunn__formula_of(gpunn_model *model, const gpunn__size *size)
{
    char       text[GPUNN__SIZE_TEXT] = "";
    const bool bare = size->divisor == 0 || size->sum.count == 1;
    gpunn__size_put(text, sizeof text, "%s", bare ? "" : "(");
    gpunn__sum_put(model, &size->sum, text, sizeof text);
    if (size->divisor)
        gpunn__size_put(text, sizeof text, "%s / %lld", bare ? "" : ")", (long long)size->divisor);
    return strlen(text) + 1 < sizeof text ? gpunn__strdup(model->dev, text) : NULL;
}

/* ---- the table ---- */

GPUNN__INTERNAL int gpunn__size_append(gpunn_model *model, const gpunn__size *size)
{
    if (model->size_count == GPUNN__MOST_SIZES) {
        (void)gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                          "the model has more than %d different sizes; use fewer", GPUNN__MOST_SIZES);
        return 0;
    }
    gpunn__size *sizes = (gpunn__size *)gpunn__grow(model->dev, model->sizes, model->size_count,
                                                    &model->size_capacity, sizeof *sizes);
    if (sizes == NULL) return 0;
    model->sizes = sizes;
    while (model->size_count <= GPUNN__BATCH_ATOM) memset(&sizes[model->size_count++], 0, sizeof *sizes);
    sizes[model->size_count] = *size;
    return model->size_count++;
}

/* Place of floor(sum / divisor) or, with divisor 0, of the sum, added if it is new. 0 if the formula is too
 * long, or on an error. */
static int gpunn__size_intern(gpunn_model *model, const gpunn__sum *sum, int64_t divisor)
{
    gpunn__size size;
    for (int i = GPUNN__BATCH_ATOM + 1; i < model->size_count; i++)
        if (!model->sizes[i].name && model->sizes[i].divisor == divisor &&
            gpunn__sums_equal(&model->sizes[i].sum, sum))
            return i;
    memset(&size, 0, sizeof size);
    size.sum = *sum;
    size.divisor = divisor;
    if ((size.text = gpunn__formula_of(model, &size)) == NULL) return 0;
    const int place = gpunn__size_append(model, &size);
    if (place == 0) gpunn__free_text(model->dev, size.text);
    return place;
}

GPUNN__INTERNAL int64_t gpunn__dim_of_sum(gpunn_model *model, const gpunn__sum *sum)
{
    const gpunn__size_term *term = sum->term;
    if (sum->count < 1) return 0;
    if (sum->count == 1 && term->atom[0] == 0) return term->factor > 0 ? term->factor : 0;
    if (sum->count == 1 && term->atom[1] == 0 && term->atom[0] == GPUNN__BATCH_ATOM)
        return term->factor > 0 ? -term->factor : 0;
    const bool alone = sum->count == 1 && term->atom[1] == 0 && term->factor == 1;
    const int  place = alone ? term->atom[0] : gpunn__size_intern(model, sum, 0);
    return place ? gpunn__size_handle(place) : 0;
}

static int64_t gpunn__floor_of(int64_t a, int64_t b) /* rounded down; b > 0 */
{
    return a / b - (a % b < 0);
}

GPUNN__INTERNAL gpunn__sum gpunn__sum_quotient(gpunn_model *model, gpunn__sum sum, int64_t k)
{
    gpunn__sum whole = gpunn__sum_number(0), rest = whole;
    int64_t    common = k;
    for (int i = 0; i < sum.count; i++) {
        gpunn__size_term term = sum.term[i];
        term.factor = gpunn__floor_of(sum.term[i].factor, k);
        if (term.factor) gpunn__sum_add_term(&whole, &term);
        term.factor = sum.term[i].factor - term.factor * k;
        if (term.factor) gpunn__sum_add_term(&rest, &term);
        if (term.atom[0]) common = gpunn__divisor_of_both(common, term.factor);
    }
    if (sum.count < 0) return sum;
    if (common == k) return whole; /* the rest is a number below k */
    for (int i = 0; i < rest.count; i++) rest.term[i].factor = gpunn__floor_of(rest.term[i].factor, common);
    if (rest.term[rest.count - 1].factor == 0) rest.count--; /* the number, which is last */
    k /= common;
    const gpunn__size_term *first = rest.term;
    /* and perhaps a number */
    const bool         one = rest.count == 1 || (rest.count == 2 && rest.term[1].atom[0] == 0);
    const gpunn__size *inner = one && first->factor == 1 && first->atom[1] == 0 &&
                                       first->atom[0] > GPUNN__BATCH_ATOM
                                   ? &model->sizes[first->atom[0]]
                                   : NULL;
    const int64_t      divisor = inner ? gpunn__size_product(inner->divisor, k) : 0;
    if (divisor != 0) {
        sum = gpunn__sum_plus_number(
            inner->sum, rest.count == 2 ? gpunn__size_product(rest.term[1].factor, inner->divisor) : 0);
        rest = gpunn__sum_quotient(model, sum, divisor);
    } else {
        const int place = gpunn__size_intern(model, &rest, k);
        rest = gpunn__sum_atom(place, place != 0);
        if (place == 0) rest.count = -1;
    }
    return gpunn__sum_plus(whole, &rest, 1);
}

/* ---- values ---- */

/* found: according to the inputs as they are now; else in the run whose values can be read. 0: unknown. */
static int64_t gpunn__atom_value(const gpunn_model *model, int place, int64_t batch, bool found)
{
    if (place == GPUNN__BATCH_ATOM) return batch;
    const gpunn__size *size = &model->sizes[place];
    if (size->divisor)
        return gpunn__floor_of(gpunn__sum_value(model, &size->sum, batch, found), size->divisor);
    return found ? size->found : size->value;
}

/* 0 if it is too large. */
GPUNN__INTERNAL int64_t gpunn__sum_value(const gpunn_model *model, const gpunn__sum *sum, int64_t batch,
                                         bool found)
{
    int64_t value = 0;
    for (int i = 0; i < sum->count; i++) {
        int64_t part = sum->term[i].factor;
        for (int k = 0; k < GPUNN__FACTORS && sum->term[i].atom[k]; k++)
            part = gpunn__size_product(part, gpunn__atom_value(model, sum->term[i].atom[k], batch, found));
        value += part;
    }
    return value > GPUNN__MAX_COUNT ? 0 : value;
}

GPUNN__INTERNAL int64_t gpunn__dim(const gpunn_model *model, int64_t dim, int64_t batch)
{
    if (!gpunn__is_sized(dim)) return dim < 0 ? -dim * batch : dim;
    const gpunn__sum sum = gpunn__sum_of(model, dim);
    return gpunn__sum_value(model, &sum, batch, false);
}

/* ---- formulas ---- */

GPUNN__INTERNAL char gpunn__formula_next(gpunn__size_formula *f)
{
    while (*f->at == ' ') f->at++;
    return *f->at;
}

static bool gpunn__formula_takes(gpunn__size_formula *f, char wanted)
{
    const bool there = gpunn__formula_next(f) == wanted;
    f->at += there;
    return there;
}

static bool gpunn__is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool gpunn__is_digit(char c)
{
    return c >= '0' && c <= '9';
}

GPUNN__INTERNAL size_t gpunn__size_name(const char *text)
{
    size_t length = 0;
    while (gpunn__is_letter(text[length]) || (length && gpunn__is_digit(text[length]))) length++;
    return length;
}

GPUNN__INTERNAL int gpunn__size_find(const gpunn_model *model, const char *name, size_t length)
{
    if (length == 5 && memcmp(name, "batch", length) == 0) return GPUNN__BATCH_ATOM;
    for (int i = GPUNN__BATCH_ATOM + 1; i < model->size_count; i++) {
        const char *other = model->sizes[i].name;
        if (other && strlen(other) == length && memcmp(other, name, length) == 0) return i;
    }
    return 0;
}

static int64_t gpunn__parse_number(gpunn__size_formula *f)
{
    int64_t number = 0;
    if (!gpunn__is_digit(gpunn__formula_next(f))) f->fault = "a number, a name or a parenthesis is missing";
    for (; gpunn__is_digit(*f->at); f->at++)
        if (number <= GPUNN__MAX_COUNT) number = number * 10 + (*f->at - '0');
    return number;
}

static gpunn__sum gpunn__parse_factor(gpunn__size_formula *f)
{
    gpunn__sum   sum;
    const char   first = gpunn__formula_next(f);
    const size_t length = gpunn__size_name(f->at);
    if (length) {
        const int place = gpunn__size_find(f->model, f->at, length);
        f->at += length;
        if (place == 0) f->fault = "it has a name that is not a size yet; create that size first";
        return gpunn__sum_atom(place, place > GPUNN__BATCH_ATOM ? f->model->sizes[place].multiple : 1);
    }
    if (first != '(' || f->depth == 32) return gpunn__sum_number(gpunn__parse_number(f));
    f->at++;
    f->depth++;
    sum = gpunn__parse_sum(f);
    f->depth--;
    if (!f->fault && !gpunn__formula_takes(f, ')')) f->fault = "a ) is missing";
    return sum;
}

static gpunn__sum gpunn__parse_product(gpunn__size_formula *f)
{
    gpunn__sum sum = gpunn__parse_factor(f);
    while (!f->fault) {
        if (gpunn__formula_takes(f, '*')) {
            const gpunn__sum other = gpunn__parse_factor(f);
            sum = gpunn__sum_times(&sum, &other);
        } else if (gpunn__formula_takes(f, '/')) {
            const int64_t divisor = gpunn__parse_number(f);
            if (divisor < 1 || divisor > GPUNN__MAX_COUNT)
                f->fault = "a size can only be divided by an integer of 1 or more";
            if (!f->fault) sum = gpunn__sum_quotient(f->model, sum, divisor);
        } else
            break;
    }
    return sum;
}

GPUNN__INTERNAL gpunn__sum gpunn__parse_sum(gpunn__size_formula *f)
{
    const bool       negative = gpunn__formula_takes(f, '-');
    const gpunn__sum first = gpunn__parse_product(f);
    gpunn__sum       sum = gpunn__sum_plus(gpunn__sum_number(0), &first, negative ? -1 : 1);
    while (!f->fault) {
        const bool minus = gpunn__formula_takes(f, '-');
        if (!minus && !gpunn__formula_takes(f, '+')) break;
        const gpunn__sum other = gpunn__parse_product(f);
        sum = gpunn__sum_plus(sum, &other, minus ? -1 : 1);
    }
    return sum;
}
