#include "base/errors.h"
#include "base/memory.h"
#include "base/tables.h"
#include "base/shapes.h"
#include "base/model.h"
#include "common/blocks.h"
#include "base/text.h"
#include "graph/nodes.h"
#include "graph/expr.h"
#include "layers/basic.h"
#include "layers/recurrent.h"
#include "layers/states.h"
#include "layers/formulas.h"
#include "cpu/optimizers.h"
#include "train/optimizer.h"
#include "io/files.h"
#include "io/spec_writer.h"

/* ==== >>io/spec_reader =================================================================================== *
 * Reads a model from JSON. The text is parsed into items, and the items become calls of the public builders.
 * dev->place holds the position in the file that error messages start with. */
enum { GPUNN__SPEC_TENSORS = 30000, GPUNN__SPEC_SIZES = 256 };

typedef struct gpunn__word { /* an id or a name */
    const char   *text;      /* NULL: a free slot */
    gpunn_tensor *t;
} gpunn__word;

typedef struct gpunn__loading {
    gpunn_device *dev;
    gpunn_model  *model;
    const char   *path;
    gpunn__items  items; /* of the document */
    bool          inference;
    gpunn_dtype   weights;
    gpunn__word  *words; /* a hash table, at least half free; the capacity is a power of 2 */
    size_t        word_count, word_capacity;
    char          place[320];
} gpunn__loading;

static bool gpunn__wrong(gpunn__loading *l, int item, const char *format, ...) GPUNN__PRINTF(3, 4);

/* Errors from now on are reported at this item. */
static void gpunn__stand_at(gpunn__loading *l, int item)
{
    const gpunn__item *i = &l->items.at[item];
    (void)snprintf(l->place, sizeof l->place, "%s:%d:%d: ", gpunn__tail(l->path), i->line, i->column);
}

/* Records an error at this item and returns false. */
static bool gpunn__wrong(gpunn__loading *l, int item, const char *format, ...)
{
    char    text[GPUNN__ERROR_SIZE];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    gpunn__stand_at(l, item);
    (void)gpunn__fail(l->dev, GPUNN_ERR_FORMAT, "%s", text);
    return false;
}

/* Index of the value of an object's key; 0 if the key is missing. Marks the key as read. */
static int gpunn__look(gpunn__loading *l, int object, const char *key)
{
    gpunn__item *items = l->items.at;
    for (int i = object + 1; i < items[object].next; i = items[i + 1].next)
        if (gpunn__slice_is(&items[i].text, key)) {
            items[i].read = true;
            return i + 1;
        }
    return 0;
}

/* The same, but records an error and returns false if the key is missing. */
static bool gpunn__need(gpunn__loading *l, int object, const char *key, const char *what, int *item)
{
    *item = gpunn__look(l, object, key);
    return *item || gpunn__wrong(l, object, "\"%s\" is missing; give %s", key, what);
}

static bool gpunn__be(gpunn__loading *l, int item, const char *key, gpunn__item_kind kind, const char *what)
{
    return l->items.at[item].kind == kind || gpunn__wrong(l, item, "\"%s\" must be %s", key, what);
}

/* Checks that every key of an object has been read and that none occurs twice. */
static bool gpunn__all_read(gpunn__loading *l, int object, const char *of)
{
    char               shown[128];
    const gpunn__item *items = l->items.at;
    for (int i = object + 1; i < items[object].next; i = items[i + 1].next) {
        if (items[i].read) continue;
        for (int k = object + 1; k < i; k = items[k + 1].next)
            if (items[k].text.length == items[i].text.length &&
                memcmp(items[k].text.at, items[i].text.at, items[i].text.length) == 0)
                return gpunn__wrong(l, i, "\"%s\" appears here twice; give it once",
                                    gpunn__printable(&items[i].text, shown));
        return gpunn__wrong(l, i, "%s has no \"%s\"; check its spelling", of,
                            gpunn__printable(&items[i].text, shown));
    }
    return true;
}

static int gpunn__item_count(const gpunn__loading *l, int list)
{
    int count = 0;
    for (int i = list + 1; i < l->items.at[list].next; i = l->items.at[i].next) count++;
    return count;
}

/* ---- values: if the key is missing, *value stays unchanged ------- */

static bool gpunn__integer_at(gpunn__loading *l, int item, const char *key, int64_t low, int64_t high,
                              int64_t *value)
{
    const gpunn__item *i = &l->items.at[item];
    int64_t            found;
    if (i->kind == GPUNN__J_NUMBER && gpunn__slice_integer(&i->text, &found) && found >= low &&
        found <= high) {
        *value = found;
        return true;
    }
    return gpunn__wrong(l, item, "\"%s\" must be an integer from %lld to %lld", key, (long long)low,
                        (long long)high);
}

/* Reads a window setting for `axes` axes: one integer, or a list with one per axis. */
static bool gpunn__window_at(gpunn__loading *l, int item, const char *key, int axes, int low, int *values)
{
    static const char *const words[] = {"one", "two", "three"};
    int64_t                  value = 0;
    bool                     list = l->items.at[item].kind == GPUNN__J_LIST;
    if (list && gpunn__item_count(l, item) != axes)
        return gpunn__wrong(l, item, "\"%s\" must be an integer or a list of %s, one for each spatial axis",
                            key, words[axes - 1]);
    for (int i = 0; i < axes; i++) {
        if (!gpunn__integer_at(l, list ? item + 1 + i : item, key, low, INT32_MAX, &value)) return false;
        values[i] = value == 0 ? GPUNN_ZERO : (int)value;
    }
    return true;
}

static bool gpunn__float_at(gpunn__loading *l, int item, const char *key, bool nan, float *value)
{
    const gpunn__item *i = &l->items.at[item];
    double             wide;
    if (i->kind == GPUNN__J_NUMBER && gpunn__json_double(&i->text, &wide) &&
        fabs(wide) < 3.4028235677973366e38) {
        *value = (float)wide;
        return true;
    }
    bool word = i->kind == GPUNN__J_STRING, negative = gpunn__slice_is(&i->text, "-inf");
    if (word && (negative || gpunn__slice_is(&i->text, "inf")))
        *value = negative ? -INFINITY : INFINITY;
    else if (word && nan && gpunn__slice_is(&i->text, "nan"))
        *value = NAN;
    else
        return gpunn__wrong(l, item, "\"%s\" must be a number that a float can hold, \"inf\"%s \"-inf\"%s",
                            key, nan ? "," : " or", nan ? " or \"nan\"" : "");
    return true;
}

static bool gpunn__get_float(gpunn__loading *l, int entry, const char *key, float *value)
{
    int item = gpunn__look(l, entry, key);
    return item == 0 || gpunn__float_at(l, item, key, false, value);
}

static bool gpunn__get_bool(gpunn__loading *l, int entry, const char *key, bool *value)
{
    int item = gpunn__look(l, entry, key);
    if (item == 0) return true;
    gpunn__item_kind kind = l->items.at[item].kind;
    *value = kind == GPUNN__J_TRUE;
    return kind == GPUNN__J_TRUE || kind == GPUNN__J_FALSE ||
           gpunn__wrong(l, item, "\"%s\" must be true or false", key);
}

/* Reads a non-empty string without NUL characters, as all names are. */
static bool gpunn__string_at(gpunn__loading *l, int item, const char *key, const char **value)
{
    const gpunn__item *i = &l->items.at[item];
    if (i->kind != GPUNN__J_STRING || i->text.length == 0 || strlen(i->text.at) != i->text.length)
        return gpunn__wrong(l, item, "\"%s\" must be a string of one character or more", key);
    *value = i->text.at;
    return true;
}

static bool gpunn__get_string(gpunn__loading *l, int entry, const char *key, const char **value)
{
    int item = gpunn__look(l, entry, key);
    return item == 0 || gpunn__string_at(l, item, key, value);
}

/* Reads one of several words and returns its index in *value. */
static bool gpunn__get_choice(gpunn__loading *l, int entry, const char *key, const char *const *words,
                              int count, int *value)
{
    char               all[160];
    gpunn__text_buffer line = {all, sizeof all, 0};
    int                item = gpunn__look(l, entry, key);
    if (item == 0) return true;
    for (int i = 0; i < count; i++) {
        if (l->items.at[item].kind == GPUNN__J_STRING && gpunn__slice_is(&l->items.at[item].text, words[i])) {
            *value = i;
            return true;
        }
        const char *between = i + 1 < count ? ", " : " or ";
        gpunn__put(&line, "%s\"%s\"", i ? between : "", words[i]);
    }
    return gpunn__wrong(l, item, "\"%s\" must be %s", key, all);
}

#define GPUNN__DIM_TEXT \
    "an integer of 1 or more, \"N\" for the batch, \"4N\" for 4 times it, or a formula of \"sizes\""

/* Parses "N" or "4N". */
static bool gpunn__batches_at(const gpunn__slice *text, int64_t *dim)
{
    const size_t length = text->length;
    gpunn__slice digits = {text->at, length - (length > 0)};
    int64_t      count = 1;
    if (length == 0 || text->at[length - 1] != 'N') return false;
    if (length > 1 && (!isdigit((unsigned char)*text->at) || !gpunn__slice_integer(&digits, &count)))
        return false;
    *dim = -count;
    return count >= 1 && count <= GPUNN__MAX_COUNT;
}

/* Reads one size: a number, or a string for a size that varies. */
static bool gpunn__dim_at(gpunn__loading *l, int item, const char *key, int64_t *dim)
{
    const gpunn__item *i = &l->items.at[item];
    char               shown[128];
    const char        *text;
    if (i->kind == GPUNN__J_NUMBER && gpunn__slice_integer(&i->text, dim) && *dim >= 1 &&
        *dim <= GPUNN__MAX_COUNT)
        return true;
    if (i->kind != GPUNN__J_STRING || i->text.length == 0)
        return gpunn__wrong(l, item, "\"%s\" must be made of sizes: " GPUNN__DIM_TEXT, key);
    if (gpunn__batches_at(&i->text, dim)) return true;
    if (!gpunn__string_at(l, item, key, &text)) return false;
    gpunn__size_formula formula = {l->model, text, NULL, 0};
    if (i->text.length >= GPUNN__SIZE_TEXT) formula.fault = "it is too long";
    if (!formula.fault && (*dim = gpunn__parse_size(&formula)) != 0) return true;
    return gpunn__wrong(l, item,
                        "\"%s\" must be made of sizes, but \"%s\" is not: %s (at byte %d); use names of "
                        "\"sizes\", \"batch\" and integers with + - * /",
                        key, gpunn__printable(&i->text, shown), formula.fault, (int)(formula.at - text));
}

static bool gpunn__need_shape(gpunn__loading *l, int entry, gpunn_shape *shape)
{
    static const char what[] = "a list of up to 8 sizes, each " GPUNN__DIM_TEXT;
    int               list, axis = 0;
    memset(shape, 0, sizeof *shape);
    if (!gpunn__need(l, entry, "shape", what, &list) || !gpunn__be(l, list, "shape", GPUNN__J_LIST, what))
        return false;
    for (int i = list + 1; i < l->items.at[list].next; i = l->items.at[i].next) {
        if (axis == GPUNN_MAX_RANK) return gpunn__wrong(l, i, "\"shape\" must be %s", what);
        if (!gpunn__dim_at(l, i, "shape", &shape->dim[axis++])) return false;
    }
    return true;
}

/* Reads the sizes of the spatial axes: one for all, or a list. Each may vary. */
static bool gpunn__sizes_at(gpunn__loading *l, int item, const char *key, int axes, int64_t *sizes)
{
    const bool list = l->items.at[item].kind == GPUNN__J_LIST;
    if (list && gpunn__item_count(l, item) != axes)
        return gpunn__wrong(l, item, "\"%s\" must be a size or a list of %d, one for each spatial axis", key,
                            axes);
    for (int i = 0; i < axes; i++)
        if (!gpunn__dim_at(l, list ? item + 1 + i : item, key, &sizes[i])) return false;
    return true;
}

/* Reads the start or the end of a slice. */
static bool gpunn__index_at(gpunn__loading *l, int item, const char *key, int64_t *index)
{
    return l->items.at[item].kind == GPUNN__J_STRING
               ? gpunn__dim_at(l, item, key, index)
               : gpunn__integer_at(l, item, key, INT64_MIN, INT64_MAX, index);
}

/* Reads a list of axes. */
static bool gpunn__axes_at(gpunn__loading *l, int list, gpunn_axes *axes)
{
    static const char what[] = "a list of up to 8 axes";
    int               count = 0;
    axes->axis[0] = GPUNN_END;
    if (!gpunn__be(l, list, "dims", GPUNN__J_LIST, what)) return false;
    for (int i = list + 1; i < l->items.at[list].next; i = l->items.at[i].next) {
        int64_t axis = 0;
        if (count == GPUNN_MAX_RANK) return gpunn__wrong(l, i, "\"dims\" must be %s", what);
        if (!gpunn__integer_at(l, i, "dims", -GPUNN_MAX_RANK, GPUNN_MAX_RANK - 1, &axis)) return false;
        axes->axis[count++] = (int)axis;
        axes->axis[count] = GPUNN_END;
    }
    return true;
}

/* Reads a list of integers, each at least `low`. */
static bool gpunn__amounts_at(gpunn__loading *l, int list, const char *key, int64_t low, int64_t *amounts)
{
    int count = 0;
    if (!gpunn__be(l, list, key, GPUNN__J_LIST,
                   low ? "a list of integers of 1 or more"
                       : "a list of integers of 0 or more, one for each axis"))
        return false;
    for (int i = list + 1; i < l->items.at[list].next; i = l->items.at[i].next) {
        if (count == GPUNN_MAX_RANK) return gpunn__wrong(l, i, "\"%s\" must have at most 8 integers", key);
        if (!gpunn__integer_at(l, i, key, low, GPUNN__MAX_COUNT, &amounts[count++])) return false;
    }
    return true;
}

/* The slot of a word, or the free slot where it would go. */
static gpunn__word *gpunn__word_at(const gpunn__loading *l, const char *text)
{
    size_t at = gpunn__hash(text) & (l->word_capacity - 1);
    while (l->words[at].text && strcmp(l->words[at].text, text) != 0) at = (at + 1) & (l->word_capacity - 1);
    return &l->words[at];
}

static gpunn_tensor *gpunn__reference_at(gpunn__loading *l, int item, const char *key)
{
    const char   *word;
    char          shown[128];
    gpunn_tensor *t = NULL;
    if (!gpunn__string_at(l, item, key, &word)) return NULL;
    if (l->word_count) t = gpunn__word_at(l, word)->t;
    if (t == NULL)
        (void)gpunn__wrong(
            l, item, "no tensor before this one has the id or name \"%s\"; check its spelling and the order",
            gpunn__printable(&l->items.at[item].text, shown));
    return t;
}

static bool gpunn__get_reference(gpunn__loading *l, int entry, const char *key, gpunn_tensor **t)
{
    int item = gpunn__look(l, entry, key);
    return item == 0 || (*t = gpunn__reference_at(l, item, key)) != NULL;
}

/* Reads a list of `low` to `high` references. */
static bool gpunn__references_at(gpunn__loading *l, int list, const char *key, int low, int high,
                                 gpunn_tensor **tensors, int *count)
{
    *count = 0;
    if (!gpunn__be(l, list, key, GPUNN__J_LIST, "a list of ids or names")) return false;
    int given = gpunn__item_count(l, list);
    if (given < low || given > high)
        return low == high ? gpunn__wrong(l, list, "\"%s\" must have %d of them, not %d", key, low, given)
                           : gpunn__wrong(l, list, "\"%s\" must have %d to %d of them, not %d", key, low,
                                          high, given);
    for (int i = list + 1; i < l->items.at[list].next; i = l->items.at[i].next)
        if ((tensors[(*count)++] = gpunn__reference_at(l, i, key)) == NULL) return false;
    return true;
}

typedef struct gpunn__spec_entry { /* one element of "tensors" */
    int           item, count;     /* count: number of inputs */
    gpunn_tensor *in[GPUNN_MAX_OPERANDS];
    const char   *op, *name;
} gpunn__spec_entry;

/* ---- entries ------------------------------------------------------------------------------------------- */

static bool gpunn__get_init(gpunn__loading *l, int object, gpunn_init *init)
{
    static const char *const words[] = {"zeros", "constant", "uniform", "normal", "kaiming_uniform"};
    int                      item = gpunn__look(l, object, "init"), kind = 0, ignored;
    if (item == 0) return true;
    memset(init, 0, sizeof *init);
    if (!gpunn__be(l, item, "init", GPUNN__J_OBJECT,
                   "an object: {\"kind\": \"normal\", \"a\": 0, \"b\": 1}") ||
        !gpunn__need(l, item, "kind", "one of zeros, constant, uniform, normal, kaiming_uniform", &ignored) ||
        !gpunn__get_choice(l, item, "kind", GPUNN__WORDS(words), &kind) ||
        !gpunn__get_float(l, item, "a", &init->a) || !gpunn__get_float(l, item, "b", &init->b))
        return false;
    init->kind = (gpunn_init_kind)(GPUNN_INIT_ZEROS + kind);
    return gpunn__all_read(l, item, "\"init\"");
}

/* Reads "storage" of a parameter. */
static bool gpunn__get_storage(gpunn__loading *l, int object, gpunn_tensor *t)
{
    static const char *const words[] = {"f32",
#define GPUNN__X(id, name, length, bytes) name,
                                        GPUNN_BLOCK_LIST(GPUNN__X)
#undef GPUNN__X
    };
    const int item = gpunn__look(l, object, "storage");
    int       chosen = 0;
    if (item == 0) return true;
    if (!gpunn__get_choice(l, object, "storage", GPUNN__WORDS(words), &chosen)) return false;
    t->requested_storage = chosen ? (gpunn_dtype)(GPUNN__BLOCKS + chosen) : GPUNN_F32;
    if (chosen && !gpunn__is_blocks(t->requested_storage))
        return gpunn__wrong(l, item, "this program leaves out blocks of %s; compile it without GPUNN_NO_GGUF",
                            words[chosen]);
    const int64_t row = t->rank > 0 ? t->dim[t->rank - 1] : 1;
    return row % gpunn__block_length(t->requested_storage) == 0 ||
           gpunn__wrong(l, item, "a row of %lld numbers is no whole number of blocks of %s", (long long)row,
                        words[chosen]);
}

/* Reads "trainable", "frozen", "decay", "lr_scale" and "storage" of a parameter. */
static bool gpunn__apply_settings(gpunn__loading *l, int object, gpunn_tensor *t)
{
    bool  trainable = t->trainable, decay = t->decay, frozen = false;
    float lr_scale = t->lr_scale;
    if (!gpunn__get_bool(l, object, "frozen", &frozen) || !gpunn__get_storage(l, object, t)) return false;
    if (frozen) gpunn__freeze(t), trainable = false;
    return gpunn__get_bool(l, object, "trainable", &trainable) &&
           gpunn__get_bool(l, object, "decay", &decay) &&
           gpunn__get_float(l, object, "lr_scale", &lr_scale) &&
           gpunn_set_trainable(t, trainable) == GPUNN_OK && gpunn_set_decay(t, decay) == GPUNN_OK &&
           gpunn_set_lr_scale(t, lr_scale) == GPUNN_OK;
}

/* Reads the settings of the tensors that a layer has created, from index first on. */
static bool gpunn__apply_layer_settings(gpunn__loading *l, const gpunn__spec_entry *e, int first)
{
    gpunn_model *model = l->model;
    bool         trainable = true, frozen = false;
    if (!gpunn__get_bool(l, e->item, "trainable", &trainable) ||
        !gpunn__get_bool(l, e->item, "frozen", &frozen))
        return false;
    for (int i = first; i < model->tensor_count; i++) {
        if (model->tensors[i]->kind != GPUNN__PARAMETER) continue;
        model->tensors[i]->trainable = trainable;
        if (frozen) gpunn__freeze(model->tensors[i]);
    }
    int object = gpunn__look(l, e->item, "parameters");
    if (object == 0) return true;
    if (!gpunn__be(l, object, "parameters", GPUNN__J_OBJECT, "an object of settings by parameter"))
        return false;
    for (int i = 0; i < 2; i++) {
        static const char *const suffixes[] = {"weight", "bias"};
        char                     name[GPUNN__NAME_SIZE];
        int                      item = gpunn__look(l, object, suffixes[i]);
        (void)snprintf(name, sizeof name, "%s.%s", e->name, suffixes[i]);
        gpunn_tensor *t = item ? gpunn_find(model, name) : NULL;
        if (item == 0) continue;
        if (t == NULL) return gpunn__wrong(l, item, "the layer has no \"%s\"", suffixes[i]);
        gpunn_init init = t->init;
        if (!gpunn__be(l, item, suffixes[i], GPUNN__J_OBJECT, "an object of settings") ||
            !gpunn__get_init(l, item, &init))
            return false;
        gpunn__stand_at(l, item);
        if (!gpunn__apply_settings(l, item, t) || gpunn_set_init(t, init) != GPUNN_OK ||
            !gpunn__all_read(l, item, "a parameter's settings"))
            return false;
    }
    return gpunn__all_read(l, object, "\"parameters\"");
}

static gpunn_tensor *gpunn__make_parameter(gpunn__loading *l, const gpunn__spec_entry *e,
                                           const gpunn__plain_args *a)
{
    gpunn_init init = {GPUNN_INIT_DEFAULT, 0, 0};
    if (!gpunn__get_init(l, e->item, &init)) return NULL;
    gpunn__stand_at(l, e->item);
    gpunn_tensor *t = gpunn_parameter(l->model, e->name, a->shape, init);
    return t && gpunn__apply_settings(l, e->item, t) ? t : NULL;
}

static gpunn_tensor *gpunn__make_state(gpunn__loading *l, const gpunn__spec_entry *e,
                                       const gpunn__plain_args *a)
{
    gpunn_init init = {GPUNN_INIT_DEFAULT, 0, 0};
    if (!gpunn__get_init(l, e->item, &init)) return NULL;
    gpunn__stand_at(l, e->item);
    gpunn_tensor *t = gpunn_state(l->model, e->name, a->shape, init);
    return t && gpunn_set_saved(t, a->saved) == GPUNN_OK ? t : NULL;
}

static gpunn_tensor *gpunn__make_assign(gpunn_tensor *const *in, const gpunn__assign_args *a)
{
    return gpunn__assign("assign", in[0], a->axis, a->position, in[1], a->position ? 3 : 2, a->in_training);
}

static gpunn_tensor *gpunn__make_constant(gpunn__loading *l, const gpunn__spec_entry *e,
                                          const gpunn__plain_args *a)
{
    const int64_t *dim = a->shape.dim;
    int            list, used = 0;
    gpunn_tensor  *t = NULL;
    int64_t        count = 1;
    if (!gpunn__need(l, e->item, "values", "a list of numbers", &list) ||
        !gpunn__be(l, list, "values", GPUNN__J_LIST, "a list of numbers"))
        return NULL;
    int given = gpunn__item_count(l, list);
    for (int i = 0; i < GPUNN_MAX_RANK && dim[i] && count >= 0; i++)
        count = dim[i] < 0 || dim[i] > given / count ? -1 : count * dim[i];
    if (count != given) {
        (void)gpunn__wrong(l, list, "\"values\" must have as many numbers as \"shape\" has elements, not %d",
                           given);
        return NULL;
    }
    size_t size = (size_t)(given ? given : 1) * sizeof(float);
    float *values = (float *)gpunn__realloc(l->dev, NULL, 0, size);
    bool   ok = values != NULL;
    for (int i = list + 1; i < l->items.at[list].next && ok; i = l->items.at[i].next)
        ok = gpunn__float_at(l, i, "values", true, &values[used++]);
    gpunn__stand_at(l, e->item);
    if (ok) t = gpunn_constant(l->model, a->shape, values);
    gpunn__free(l->dev, values, size);
    return t;
}

/* Builds one recurrent layer from parameters that already exist. */
static gpunn_tensor *gpunn__make_recurrent(gpunn__loading *l, const gpunn__spec_entry *e,
                                           const gpunn_rnn_args *a, const gpunn__operation *operation)
{
    gpunn_tensor  *weights[8];
    gpunn_rnn_args args = *a;
    const char    *layer = NULL;
    int            list, count = 0;
    if (!gpunn__get_string(l, e->item, "layer", &layer) ||
        !gpunn__need(l, e->item, "weights", "a list of parameters", &list) ||
        !gpunn__references_at(l, list, "weights", 0, 8, weights, &count))
        return NULL;
    const int directions = args.bidirectional ? 2 : 1;
    args.no_bias = count == 2 * directions;
    args.weights = weights;
    if ((!args.no_bias && count != 4 * directions) || weights[1]->rank != 2 ||
        weights[1]->dim[1] > INT32_MAX) {
        (void)gpunn__wrong(l, list,
                           "\"weights\" must be weight_ih and weight_hh [.., hidden_size], with both or none "
                           "of bias_ih and bias_hh, for each direction");
        return NULL;
    }
    args.hidden_size = (int)weights[1]->dim[1];
    gpunn__stand_at(l, e->item);
    return gpunn__recurrent(operation, e->in[0], layer, &args);
}

static gpunn_tensor *gpunn__make_attention(gpunn__loading *l, const gpunn__spec_entry *e,
                                           const gpunn_attention_args *a)
{
    static const char what[] = "a list of q, k and v, or of one for all";
    gpunn_tensor     *in[3] = {NULL, NULL, NULL};
    int               inputs, count;
    if (!gpunn__need(l, e->item, "inputs", what, &inputs) ||
        !gpunn__references_at(l, inputs, "inputs", 1, 3, in, &count) ||
        (count == 2 && !gpunn__wrong(l, inputs, "\"inputs\" must be %s", what)))
        return NULL;
    gpunn__stand_at(l, e->item);
    return gpunn_scaled_dot_product_attention_(in[0], in[1], in[2], *a);
}

/* Reads one number, or a list with one per spatial axis. */
static bool gpunn__scales_at(gpunn__loading *l, int item, int axes, double *scales)
{
    bool list = l->items.at[item].kind == GPUNN__J_LIST;
    for (int i = 0; i < axes; i++) {
        const gpunn__item *number = &l->items.at[list ? item + 1 + i : item];
        if ((list && gpunn__item_count(l, item) != axes) || number->kind != GPUNN__J_NUMBER ||
            !gpunn__json_double(&number->text, &scales[i]) || (scales[i] == 0 && !list))
            return gpunn__wrong(l, item,
                                "\"scale_factor\" must be a number other than 0, or a list with one for each "
                                "spatial axis, which is 0 if only size counts");
    }
    return true;
}

static gpunn_tensor *gpunn__make_custom(gpunn__loading *l, const gpunn__spec_entry *e,
                                        const gpunn_custom_args *a)
{
    gpunn_custom_args args = *a;
    gpunn_shape       shape;
    const char       *kind = NULL;
    char              shown[128], one[128], other[128];
    int               at, list = gpunn__look(l, e->item, "numbers");
    if (!gpunn__need(l, e->item, "kind", "the name of a registered op", &at) ||
        !gpunn__string_at(l, at, "kind", &kind) || !gpunn__need_shape(l, e->item, &shape))
        return NULL;
    const gpunn_custom_op *op = gpunn_find_custom(l->dev, kind);
    if (op == NULL) {
        (void)gpunn__wrong(l, at,
                           "no op \"%s\" is registered; call gpunn_register_custom before gpunn_spec_load",
                           gpunn__printable(&l->items.at[at].text, shown));
        return NULL;
    }
    if (op->inputs != e->count) {
        (void)gpunn__wrong(l, e->item, "op \"%s\" has %d inputs, not %d", kind, op->inputs, e->count);
        return NULL;
    }
    if (list &&
        (l->items.at[list].kind != GPUNN__J_LIST || gpunn__item_count(l, list) > GPUNN_CUSTOM_NUMBERS)) {
        (void)gpunn__wrong(l, list, "\"numbers\" must be a list of at most %d numbers", GPUNN_CUSTOM_NUMBERS);
        return NULL;
    }
    for (int i = 0; list && i < gpunn__item_count(l, list); i++)
        if (!gpunn__float_at(l, list + 1 + i, "numbers", false, &args.numbers[i])) return NULL;
    gpunn_tensor *t = gpunn_custom_(op, e->in, args);
    if (t == NULL) return NULL;
    gpunn__call call = gpunn__call_of(t->model, "custom", op->name);
    int         rank = gpunn__rank_of(&call, &shape, 2);
    if (rank < 0) return NULL;
    if (rank == t->rank && memcmp(shape.dim, t->dim, (size_t)rank * sizeof *t->dim) == 0) return t;
    (void)gpunn__wrong(l, e->item, "op \"%s\" makes %s of these inputs, not %s", kind,
                       gpunn__shape_text(t, one), gpunn__dims_text(t->model, rank, shape.dim, other));
    return NULL;
}

static gpunn_tensor *gpunn__make_elementwise(gpunn__loading *l, const gpunn__spec_entry *e, gpunn_op op)
{
    float value[2];
    for (int i = 0; i < 2; i++) {
        value[i] = gpunn__op_attribute_default(op, i);
        if (i < gpunn__op_attribute_count(op) &&
            !gpunn__get_float(l, e->item, gpunn__op_infos[op].attribute[i], &value[i]))
            return NULL;
    }
    return gpunn__map_node(gpunn__elementwise[op], e->in, value[0], value[1]);
}

static gpunn_tensor *gpunn__make_expr(gpunn__loading *l, const gpunn__spec_entry *e)
{
    const char   *expression, *names[GPUNN__EXPR_ARGS], *number_names[GPUNN__EXPR_NAMES];
    double        numbers[GPUNN__EXPR_NAMES];
    gpunn_tensor *in[GPUNN__EXPR_ARGS];
    int           at, inputs, consts = gpunn__look(l, e->item, "consts"), count = 0, number_count = 0;
    gpunn__item  *items = l->items.at;
    if (!gpunn__need(l, e->item, "expression", "a formula", &at) ||
        !gpunn__string_at(l, at, "expression", &expression) ||
        !gpunn__need(l, e->item, "inputs", "a list of ids, or an object of them by name", &inputs) ||
        (consts && !gpunn__be(l, consts, "consts", GPUNN__J_OBJECT, "an object of numbers by name")))
        return NULL;
    if (items[inputs].kind == GPUNN__J_OBJECT) {
        for (int i = inputs + 1; i < items[inputs].next; i = items[i + 1].next) {
            (void)gpunn__look(l, inputs, items[i].text.at);
            if (count == GPUNN__EXPR_ARGS) {
                (void)gpunn__wrong(l, i, "\"inputs\" must have at most %d of them", (int)GPUNN__EXPR_ARGS);
                return NULL;
            }
            names[count] = items[i].text.at;
            if ((in[count++] = gpunn__reference_at(l, i + 1, "inputs")) == NULL) return NULL;
        }
        if (!gpunn__all_read(l, inputs, "\"inputs\"")) return NULL;
    } else if (!gpunn__references_at(l, inputs, "inputs", 1, GPUNN__EXPR_ARGS, in, &count))
        return NULL;
    for (int i = consts + 1; consts && i < items[consts].next; i = items[i + 1].next) {
        float value;
        (void)gpunn__look(l, consts, items[i].text.at);
        if (!gpunn__be(l, i + 1, "consts", GPUNN__J_NUMBER, "an object of numbers by name") ||
            !gpunn__float_at(l, i + 1, "consts", false, &value))
            return NULL;
        if (number_count == GPUNN__EXPR_NAMES) {
            (void)gpunn__wrong(l, i, "\"consts\" must have at most %d of them", (int)GPUNN__EXPR_NAMES);
            return NULL;
        }
        number_names[number_count] = items[i].text.at;
        (void)gpunn__json_double(&items[i + 1].text, &numbers[number_count++]);
    }
    if (consts && !gpunn__all_read(l, consts, "\"consts\"")) return NULL;
    gpunn__stand_at(l, at);
    return gpunn__expr(expression, items[inputs].kind == GPUNN__J_OBJECT ? names : NULL, in, count,
                       number_names, numbers, number_count, NULL);
}

#define GPUNN__X(kind, row, op, operands, axes, keys, struct_, call, about)                            \
    static gpunn_tensor *gpunn__build_##row(gpunn__loading *l, const gpunn__spec_entry *e, void *args) \
    {                                                                                                  \
        gpunn_##struct_##_args *a = (gpunn_##struct_##_args *)args;                                    \
        gpunn_tensor *const    *in = e->in;                                                            \
        const char             *name = e->name;                                                        \
        (void)l, (void)a, (void)in, (void)name;                                                        \
        return call;                                                                                   \
    }
GPUNN__ROWS(GPUNN__X)
#undef GPUNN__X

/* The arguments of any op of a spec. */
typedef union gpunn__any_args {
#define GPUNN__X(kind, row, op, operands, axes, keys, struct_, ...) gpunn_##struct_##_args row;
    GPUNN__ROWS(GPUNN__X)
#undef GPUNN__X
} gpunn__any_args;

/* What the value of a missing key must be, for messages. */
static const char *gpunn__key_text(gpunn__key_kind kind)
{
    switch (kind) {
    case GPUNN__K_AXIS: return "an axis";
    case GPUNN__K_WINDOW: return "an integer or a list of one for each axis";
    case GPUNN__K_COUNTS: return "a list of integers of 1 or more";
    case GPUNN__K_DTYPE: return "one of f32, i64, i32, u8, bool, f64";
    case GPUNN__K_AXES: return "a list of all axes";
    case GPUNN__K_TEXT: return "a text";
    default: return "an integer";
    }
}

/* Sets the argument of a missing key to its default. */
static void gpunn__key_default(const gpunn__argument *key, int axes, void *at)
{
    const double usual = key->otherwise;
    if (key->kind == GPUNN__K_END) *(int64_t *)at = GPUNN_END_OF_AXIS;
    if (key->kind == GPUNN__K_AXES) ((gpunn_axes *)at)->axis[0] = GPUNN_END;
    if (usual <= GPUNN__NEEDED || usual == 0) return;
    if (key->kind <= GPUNN__K_AXIS)
        *(int *)at = (int)usual;
    else if (key->kind == GPUNN__K_WINDOW)
        for (int i = 0; i < axes; i++) ((int *)at)[i] = (int)usual;
    else if (key->kind == GPUNN__K_STEP)
        *(int64_t *)at = (int64_t)usual;
    else if (key->kind >= GPUNN__K_NUMBER && key->kind <= GPUNN__K_EXTENDED)
        *(float *)at = (float)usual;
    else if (key->kind == GPUNN__K_FLAG)
        *(bool *)at = true;
}

/* Reads a word of a choice and stores its number. */
static bool gpunn__key_choice(gpunn__loading *l, const gpunn__spec_entry *e, const gpunn__argument *key,
                              void *at)
{
    static const gpunn_dtype dtypes[] = {GPUNN_F32, GPUNN_I64, GPUNN_I32, GPUNN_U8, GPUNN_BOOL, GPUNN_F64};
    const gpunn__choice     *of = gpunn__choice_of(key->kind);
    const bool               casts = key->kind == GPUNN__K_DTYPE && key->otherwise == GPUNN__NEEDED;
    int                      choice = 0;
    /* the last dtype is only for inputs */
    if (!gpunn__get_choice(l, e->item, key->name, of->words, of->count - casts, &choice)) return false;
    if (key->kind == GPUNN__K_DTYPE)
        *(gpunn_dtype *)at = dtypes[choice];
    else if (key->kind == GPUNN__K_ACTIVATION)
        *(bool *)at = choice == 1;
    else
        *(int *)at = choice;
    return true;
}

/* Reads one key of an entry into its member of args. */
static bool gpunn__read_key(gpunn__loading *l, const gpunn__spec_entry *e, const gpunn__row *row,
                            const gpunn__argument *key, void *args)
{
    static const int lowest[] = {1, 0, 0, 0, -INT32_MAX, -GPUNN_MAX_RANK};
    void            *at = (char *)args + key->member;
    const char      *name = key->name;
    const int        item = gpunn__look(l, e->item, name), rank = e->count ? e->in[0]->rank : 0;
    const int        spatial = rank >= 3 && rank <= 5 ? rank - 2 : 1, axes = row->axes ? row->axes : spatial;
    const int        zero = key->otherwise == 0 ? 0 : GPUNN_ZERO;
    int64_t          wide = 0;
    bool             flag = false;
    if (key->kind == GPUNN__K_SHAPE) return gpunn__need_shape(l, e->item, (gpunn_shape *)at);
    if (item == 0) {
        gpunn__key_default(key, axes, at);
        return key->otherwise != GPUNN__NEEDED ||
               gpunn__wrong(l, e->item, "\"%s\" is missing; give %s", name, gpunn__key_text(key->kind));
    }
    switch (key->kind) {
    case GPUNN__K_COUNT:
    case GPUNN__K_AMOUNT:
    case GPUNN__K_CELLS:
    case GPUNN__K_BYTE:
    case GPUNN__K_INTEGER:
    case GPUNN__K_AXIS:
        if (!gpunn__integer_at(l, item, name, lowest[key->kind],
                               key->kind == GPUNN__K_AXIS   ? GPUNN_MAX_RANK - 1
                               : key->kind == GPUNN__K_BYTE ? 255
                                                            : INT32_MAX,
                               &wide))
            return false;
        *(int *)at = wide == 0 && key->kind != GPUNN__K_AXIS ? zero : (int)wide;
        return true;
    case GPUNN__K_WINDOW: return gpunn__window_at(l, item, name, axes, 1, (int *)at);
    case GPUNN__K_SIZES: return gpunn__sizes_at(l, item, name, axes, (int64_t *)at);
    case GPUNN__K_PADDING: return gpunn__window_at(l, item, name, axes, 0, (int *)at);
    case GPUNN__K_FACTORS: return gpunn__scales_at(l, item, axes, (double *)at);
    case GPUNN__K_INDEX:
    case GPUNN__K_END: return gpunn__index_at(l, item, name, (int64_t *)at);
    case GPUNN__K_STEP: return gpunn__integer_at(l, item, name, 1, INT64_MAX, (int64_t *)at);
    case GPUNN__K_WIDE: return gpunn__integer_at(l, item, name, INT64_MIN, INT64_MAX, (int64_t *)at);
    case GPUNN__K_AMOUNTS: return gpunn__amounts_at(l, item, name, 0, (int64_t *)at);
    case GPUNN__K_COUNTS: return gpunn__amounts_at(l, item, name, 1, ((gpunn_shape *)at)->dim);
    case GPUNN__K_NUMBER:
    case GPUNN__K_POSITIVE:
    case GPUNN__K_SCALE:
    case GPUNN__K_SHARE:
    case GPUNN__K_EXTENDED:
        if (!gpunn__float_at(l, item, name, false, (float *)at)) return false;
        if (*(float *)at == 0) *(float *)at = (float)zero;
        return true;
    case GPUNN__K_BIAS: /* true and false belong to the key before */
        return l->items.at[item].kind != GPUNN__J_STRING ||
               gpunn__get_reference(l, e->item, name, (gpunn_tensor **)at);
    case GPUNN__K_NO_BIAS:
        if (l->items.at[item].kind == GPUNN__J_STRING) return true;
        /* fall through */
    case GPUNN__K_FLAG:
    case GPUNN__K_UNLESS:
        if (!gpunn__get_bool(l, e->item, name, &flag)) return false;
        *(bool *)at = flag == (key->kind == GPUNN__K_FLAG);
        return true;
    case GPUNN__K_AXES: return gpunn__axes_at(l, item, (gpunn_axes *)at);
    case GPUNN__K_REFERENCE: return gpunn__get_reference(l, e->item, name, (gpunn_tensor **)at);
    case GPUNN__K_TEXT: return gpunn__string_at(l, item, name, (const char **)at);
    default: return gpunn__key_choice(l, e, key, at);
    }
}

/* Builds the tensor of an entry whose row and operands are known. Returns NULL after an error. */
static gpunn_tensor *gpunn__build(gpunn__loading *l, const gpunn__spec_entry *e, const gpunn__row *row)
{
#define GPUNN__X(kind, row, ...) gpunn__build_##row,
    static gpunn_tensor *(*const builders[])(gpunn__loading * l, const gpunn__spec_entry *e,
                                             void *args) = {GPUNN__ROWS(GPUNN__X)};
#undef GPUNN__X
    gpunn__any_args args;
    memset(&args, 0, sizeof args);
    for (const gpunn__argument *key = row->arguments; *key->name; key++)
        if (key->kind < GPUNN__K_INIT && !gpunn__read_key(l, e, row, key, &args)) return NULL;
    gpunn__stand_at(l, e->item);
    return builders[row - gpunn__rows](l, e, &args);
}

/* Registers text as an id or name of tensor t. Fails if another tensor has it. */
static bool gpunn__register(gpunn__loading *l, int item, const char *text, gpunn_tensor *t)
{
    if (2 * l->word_count >= l->word_capacity) {
        gpunn__word *old = l->words;
        size_t       count = l->word_capacity;
        gpunn__word *words = (gpunn__word *)gpunn__calloc(l->dev, (count ? 2 * count : 256) * sizeof *words);
        if (words == NULL) return false;
        l->words = words;
        l->word_capacity = count ? 2 * count : 256;
        for (size_t i = 0; i < count; i++)
            if (old[i].text) *gpunn__word_at(l, old[i].text) = old[i];
        gpunn__free(l->dev, old, count * sizeof *old);
    }
    gpunn__word *word = gpunn__word_at(l, text);
    if (word->t && word->t != t)
        return gpunn__wrong(
            l, item, "\"%.100s\" already names another tensor; ids and names are unique in a model", text);
    l->word_count += word->text == NULL;
    word->text = text;
    word->t = t;
    return true;
}

/* Reads one element of "tensors". */
static bool gpunn__spec_tensor(gpunn__loading *l, int item)
{
    static const char what[] = "an op's name";
    gpunn__spec_entry e;
    gpunn_tensor     *t;
    gpunn_model      *model = l->model;
    const char       *id = NULL, *as = NULL;
    char              shown[128];
    int               at, elementwise = GPUNN_OP_COUNT, first = model->tensor_count;
    if (!gpunn__be(l, item, "tensors", GPUNN__J_OBJECT, "a list of objects") ||
        !gpunn__need(l, item, "op", what, &at) || !gpunn__string_at(l, at, "op", &e.op))
        return false;
    e.item = item;
    e.count = 0;
    e.name = NULL;
    const gpunn__row *row = gpunn__row_called(e.op);
    while (row == NULL && --elementwise > 0)
        if (gpunn__op_arity((gpunn_op)elementwise) > 0 &&
            strcmp(gpunn_op_name((gpunn_op)elementwise), e.op) == 0)
            break;
    if (elementwise == 0)
        return gpunn__wrong(l, at, "there is no op \"%s\"; see generator/model.schema.json",
                            gpunn__printable(&l->items.at[at].text, shown));
    bool layer = row && row->kind >= GPUNN__LAYER, named = layer || (row && row->kind == GPUNN__SOURCE);
    int  inputs = row ? row->operands : gpunn__op_arity((gpunn_op)elementwise), list;
    if (!gpunn__get_string(l, item, "name", &e.name) || !gpunn__get_string(l, item, "id", &id) ||
        (layer && !gpunn__get_string(l, item, "as", &as)) ||
        (named && !gpunn__need(l, item, "name", "a string", &at)))
        return false;
    if (inputs > 0 || inputs == GPUNN__MANY) {
        if (!gpunn__need(l, item, "inputs", "a list of ids or names", &list) ||
            !gpunn__references_at(l, list, "inputs", inputs < 0 ? 1 : inputs,
                                  inputs < 0 ? GPUNN_MAX_OPERANDS : inputs, e.in, &e.count))
            return false;
    }
    gpunn__stand_at(l, item);
    t = row ? gpunn__build(l, &e, row) : gpunn__make_elementwise(l, &e, (gpunn_op)elementwise);
    if (t == NULL || (layer && !gpunn__apply_layer_settings(l, &e, first))) return false;
    for (int i = first; i < model->tensor_count; i++)
        if (model->tensors[i]->name && !gpunn__register(l, item, model->tensors[i]->name, model->tensors[i]))
            return false;
    const bool  by_id = id && (layer || e.name == NULL);
    const char *word = id ? id : e.name, *name = by_id ? id : e.name, *key = by_id ? "id" : "name";
    if (as) name = as, key = "as";
    if ((word && !gpunn__register(l, gpunn__look(l, item, id ? "id" : "name"), word, t)) ||
        (name && !gpunn__register(l, gpunn__look(l, item, key), name, t)))
        return false;
    if (t->id < first && !as && !by_id && name)
        return gpunn__wrong(
            l, item, "the op returns an existing tensor, which already has a name; give an \"id\" instead");
    gpunn__stand_at(l, item);
    if (t->id >= first && name && t->name == NULL && gpunn_set_name(t, name) == NULL) return false;
    return gpunn__all_read(l, item, e.op);
}

/* Reads a list of settings, or its defaults. */
static bool gpunn__get_setting_list(gpunn__loading *l, int item, const gpunn__setting_list *settings,
                                    const gpunn__setting *setting, float *to)
{
    const int list = gpunn__look(l, item, settings->name);
    for (int i = 0; i < settings->count; i++) to[i] = setting[i].usual;
    if (list == 0) return true;
    if (l->items.at[list].kind != GPUNN__J_LIST || gpunn__item_count(l, list) != settings->count)
        return gpunn__wrong(l, list, "\"%s\" must be a list of %s numbers", settings->name, settings->length);
    for (int i = 0; i < settings->count; i++)
        if (!gpunn__float_at(l, list + 1 + i, settings->name, false, &to[i])) return false;
    return true;
}

/* Reads "optimizer", "clip_grad_norm", "clip_grad_value" and "ema_decay". */
static bool gpunn__spec_recipe(gpunn__loading *l, gpunn__recipe *recipe)
{
    int item = gpunn__look(l, 0, "optimizer"), kind = 0, ignored;
    if (item) {
        char                       one[256];
        gpunn__text_buffer         line = {one, sizeof one, 0};
        const char                *names[GPUNN_UPDATE_COUNT];
        const gpunn__setting      *setting;
        const gpunn__setting_list *settings;
        gpunn__put(&line, "one of ");
        for (int i = 0; i < GPUNN_UPDATE_AVERAGE; i++) {
            names[i] = gpunn__kind_name((gpunn_update_kind)i);
            if (i) gpunn__put(&line, ", ");
            gpunn__put(&line, "%s", names[i]);
        }
        if (!gpunn__be(l, item, "optimizer", GPUNN__J_OBJECT,
                       "an object: {\"type\": \"adam\", \"lr\": 0.001}") ||
            !gpunn__need(l, item, "type", one, &ignored) ||
            !gpunn__get_choice(l, item, "type", names, GPUNN_UPDATE_AVERAGE, &kind))
            return false;
        recipe->is_set = true;
        recipe->kind = (gpunn_update_kind)kind;
        setting = gpunn__rules[kind].setting;
        for (int i = 0; setting[i].key; i++) {
            float *to = &recipe->setting[i];
            bool   flag = false;
            *to = setting[i].usual;
            if (setting[i].flag) {
                if (!gpunn__get_bool(l, item, setting[i].key, &flag)) return false;
                *to = flag;
            } else if ((settings = gpunn__setting_list_of(setting[i].key)) != NULL) {
                if (!gpunn__get_setting_list(l, item, settings, &setting[i], to)) return false;
                i += settings->count - 1;
            } else if (!gpunn__get_float(l, item, setting[i].key, to))
                return false;
        }
        if (!gpunn__all_read(l, item, "\"optimizer\"")) return false;
        gpunn__stand_at(l, item);
        /* checks that its builder accepts the settings */
        gpunn_optimizer *opt = gpunn_spec_optimizer(l->model);
        if (opt == NULL) return false;
        gpunn_optimizer_destroy(opt);
    }
    static const char *const clips[] = {"clip_grad_norm", "clip_grad_value"};
    float                   *limits[2] = {&recipe->clip_norm, &recipe->clip_value};
    for (int i = 0; i < 2; i++)
        if (!gpunn__get_float(l, 0, clips[i], limits[i]) ||
            (!(*limits[i] >= 0 && isfinite(*limits[i])) &&
             !gpunn__wrong(l, gpunn__look(l, 0, clips[i]), "\"%s\" must be a number of 0 or more", clips[i])))
            return false;
    if (!gpunn__get_float(l, 0, "ema_decay", &recipe->average_decay)) return false;
    return (recipe->average_decay >= 0 && recipe->average_decay < 1) ||
           gpunn__wrong(l, gpunn__look(l, 0, "ema_decay"),
                        "\"ema_decay\" must be a number from 0 to below 1");
}

/* Reads everything except the tensors. */
static bool gpunn__spec_rest(gpunn__loading *l)
{
    static const char *const maths[] = {"auto", "accurate", "fast"};
    static const char *const layouts[] = {"auto", "channels_first", "channels_last"};
    gpunn_model             *model = l->model;
    gpunn__spec             *spec = &model->spec;
    const char              *name = NULL;
    int ignored = 0, list = gpunn__look(l, 0, "outputs"), fuse = gpunn__look(l, 0, "fuse");
    if (!gpunn__get_string(l, 0, "name", &name) ||
        !gpunn__get_choice(l, 0, "math", GPUNN__WORDS(maths), &ignored) ||
        !gpunn__get_choice(l, 0, "layout", GPUNN__WORDS(layouts), &ignored) ||
        (fuse && !gpunn__be(l, fuse, "fuse", GPUNN__J_OBJECT, "an object")) ||
        !gpunn__get_reference(l, 0, "loss", &spec->loss) || !gpunn__spec_recipe(l, &spec->recipe))
        return false;
    const gpunn_tensor *loss = spec->loss;
    if (loss && (loss->kind != GPUNN__VALUE || loss->dtype != GPUNN_F32 ||
                 gpunn__any_sized(loss->rank, loss->dim) || gpunn__count(loss, 2) != 1)) {
        char text[128];
        return gpunn__wrong(l, gpunn__look(l, 0, "loss"),
                            "the loss is %s %s; it must be one computed f32 number",
                            gpunn_dtype_name(loss->dtype), gpunn__shape_text(loss, text));
    }
    if (name && (spec->name = gpunn__strdup(l->dev, name)) == NULL) return false;
    int count = model->tensor_count;
    if (list) {
        if (!gpunn__be(l, list, "outputs", GPUNN__J_LIST, "a list of ids or names")) return false;
        count = gpunn__item_count(l, list);
    }
    if (count == 0) return true;
    spec->outputs = (gpunn_tensor **)gpunn__realloc(l->dev, NULL, 0, (size_t)count * sizeof *spec->outputs);
    if (spec->outputs == NULL) return false;
    spec->output_capacity = count;
    if (list) return gpunn__references_at(l, list, "outputs", 0, count, spec->outputs, &spec->output_count);
    spec->output_count = gpunn__unread(model, spec->outputs);
    return true;
}

/* Reads "sizes": the named sizes that vary, besides the batch. */
static bool gpunn__spec_sizes(gpunn__loading *l)
{
    static const char what[] = "an object of bounds by name: {\"T\": {\"max\": 512}}";
    const int         object = gpunn__look(l, 0, "sizes");
    char              shown[128];
    int               count = 0;
    if (object == 0) return true;
    if (!gpunn__be(l, object, "sizes", GPUNN__J_OBJECT, what)) return false;
    for (int i = object + 1; i < l->items.at[object].next; i = l->items.at[i + 1].next) {
        const gpunn__slice *name = &l->items.at[i].text;
        gpunn_size_args     args = {0, 0, 0, 0};
        const struct {
            const char *key;
            int64_t    *value;
        } bounds[] = {{"min", &args.min}, {"max", &args.max}, {"multiple", &args.multiple}};
        l->items.at[i].read = true;
        if (++count > GPUNN__SPEC_SIZES)
            return gpunn__wrong(l, i, "\"sizes\" must have at most %d names", (int)GPUNN__SPEC_SIZES);
        if (name->length == 0 || gpunn__size_name(name->at) != name->length ||
            gpunn__size_find(l->model, name->at, name->length))
            return gpunn__wrong(
                l, i, "\"%s\" is not a new name of a size: use letters, digits and '_', and not \"batch\"",
                gpunn__printable(name, shown));
        if (!gpunn__be(l, i + 1, "sizes", GPUNN__J_OBJECT, what)) return false;
        for (int k = 0; k < 3; k++) {
            const int item = gpunn__look(l, i + 1, bounds[k].key);
            if (item && !gpunn__integer_at(l, item, bounds[k].key, 1, GPUNN__MAX_COUNT, bounds[k].value))
                return false;
        }
        gpunn__stand_at(l, i);
        if (gpunn_size_(l->model, name->at, args) == GPUNN__FIRST_SIZE ||
            !gpunn__all_read(l, i + 1, "a size"))
            return false;
    }
    return true;
}

static bool gpunn__spec_build(gpunn__loading *l)
{
    static const char tensors[] = "a list of objects";
    int64_t           version = 0;
    int               list, kind = 0, format;
    if (l->items.at[0].kind != GPUNN__J_OBJECT)
        return gpunn__wrong(l, 0, "a spec is an object: {\"gpunn_spec\": 1, ...}");
    if (!gpunn__need(l, 0, "gpunn_spec", "1, the version of the format", &format) ||
        !gpunn__integer_at(l, format, "gpunn_spec", 1, 1, &version) ||
        !gpunn__need(l, 0, "tensors", tensors, &list) ||
        !gpunn__be(l, list, "tensors", GPUNN__J_LIST, tensors) ||
        !gpunn__get_choice(l, 0, "precision", GPUNN__WORDS(gpunn__precision_names), &kind))
        return false;
    gpunn__stand_at(l, 0);
    gpunn_model_args args = {0, (gpunn_precision)kind, false, GPUNN_DTYPE_DEFAULT};
    l->model = gpunn_model_create_(l->dev, args);
    if (l->model == NULL) return false;
    l->model->tensor_limit = GPUNN__SPEC_TENSORS;
    if (!gpunn__spec_sizes(l)) return false;
    for (int i = list + 1; i < l->items.at[list].next; i = l->items.at[i].next)
        if (!gpunn__spec_tensor(l, i)) return false;
    l->model->tensor_limit = GPUNN__MOST_TENSORS;
    bool ok = gpunn__spec_rest(l) && gpunn__all_read(l, 0, "a spec");
    l->model->inference = l->inference; /* only now, because the code above creates an optimizer as a check */
    l->model->storage = l->weights;
    return ok;
}

GPUNN_API gpunn_model *gpunn_spec_load_(gpunn_device *dev, const char *path, gpunn_spec_load_args args)
{
    gpunn__loading  l;
    gpunn__document document;
    if (dev == NULL) {
        (void)gpunn__fail_null(NULL, "gpunn_spec_load", "device");
        return NULL;
    }
    const gpunn_model_args fits = {0, GPUNN_PRECISION_F32, args.inference, args.weights};
    if (!gpunn__weights_fit(dev, "gpunn_spec_load", &fits)) return NULL;
    memset(&l, 0, sizeof l);
    l.dev = dev;
    l.path = path;
    bool ok = gpunn__document_read(dev, args.io, path, &document) == GPUNN_OK;
    if (ok) {
        l.items = document.items;
        l.inference = args.inference;
        l.weights = args.weights;
        dev->place = l.place;
        ok = gpunn__spec_build(&l);
        dev->place = NULL;
    }
    gpunn__free(dev, l.words, l.word_capacity * sizeof *l.words);
    gpunn__document_free(dev, &document);
    if (ok) return l.model;
    gpunn_model_destroy(l.model);
    return NULL;
}

GPUNN_API gpunn_model *gpunn_spec_load_memory_(gpunn_device *dev, const char *text, size_t size,
                                               gpunn_spec_load_args args)
{
    gpunn__memory memory = {text, size};
    gpunn_io      io = gpunn__memory_io(&memory);
    args.io = &io;
    if (dev && text == NULL)
        return GPUNN__FAIL_NULL(dev, GPUNN_ERR_ARGUMENT,
                                "gpunn_spec_load_memory: text is NULL; give the JSON of a spec");
    return gpunn_spec_load_(dev, "memory", args);
}

GPUNN_API gpunn_tensor *gpunn_spec_loss(gpunn_model *model)
{
    return model ? model->spec.loss : NULL;
}

GPUNN_API gpunn_tensor *gpunn_spec_output(gpunn_model *model, int index)
{
    return model && index >= 0 && index < model->spec.output_count ? model->spec.outputs[index] : NULL;
}

GPUNN_API gpunn_optimizer *gpunn_spec_optimizer(gpunn_model *model)
{
    if (model == NULL) return NULL;
    const gpunn__recipe *recipe = &model->spec.recipe;
    if (!recipe->is_set)
        return GPUNN__FAIL_NULL(model->dev, GPUNN_ERR_STATE,
                                "gpunn_spec_optimizer: the model was not loaded from a spec with an "
                                "\"optimizer\"; create one, as with gpunn_sgd");
    gpunn_optimizer *opt = gpunn__optimizer_create(model, recipe->kind, recipe->setting, NULL);
    if (opt == NULL) return NULL;
    gpunn_set_clip_norm(opt, recipe->clip_norm);
    gpunn_set_clip_value(opt, recipe->clip_value);
    /* the number has been checked, and there are no weights to copy yet */
    (void)gpunn_set_ema(opt, recipe->average_decay);
    return opt;
}
