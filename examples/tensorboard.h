/* tensorboard.h - scalars and histograms over time, and the graph, in files that TensorBoard shows:
 * tensorboard --logdir runs
 *
 *     text_error   error;
 *     tensorboard *board = tensorboard_open("runs/first", NULL, &error);    a new file in that folder
 *     tensorboard_scalar(board, "loss", step, loss);
 *     tensorboard_histogram(board, "fc1.weight", step, values, count);
 *     gpunn_spec_save(model, "net.json", .loss = loss);
 *     tensorboard_graph(board, "net.json", &error);                         the graph of that spec
 *     tensorboard_close(board);
 *
 * The folder must exist. tensorboard_open returns NULL on failure, and error.text says why, also after
 * tensorboard_graph. The others return false if something could not be written. From then on nothing is:
 * TensorBoard reads no event behind a part of one.
 *
 * For gpunn_fit, when gpunn.h was included before, loss, metric and lr of each epoch:
 *
 *     gpunn_fit(o, ..., .on_progress = tensorboard_progress, .user = board);
 *
 * A file is records: its length, 8 bytes, and their masked CRC-32C, the bytes of an Event (protobuf), and
 * their masked CRC-32C. */
#ifndef TENSORBOARD_H
#define TENSORBOARD_H

#include "json.h"

#include <float.h>
#include <math.h>
#include <time.h>

enum {
    TENSORBOARD_MAX_TAG = 200, /* bytes; the rest of a tag is cut off */
    TENSORBOARD_BUCKETS = 30   /* of a histogram */
};

typedef struct tensorboard {
    FILE *file;
    double (*clock)(void);
} tensorboard;

/* ---- protobuf ---- */
typedef struct tensorboard__bytes {
    /* the longest event: a histogram, 100 bytes and 16 for each bucket, and its tag */
    unsigned char at[1024];
    size_t        count;
} tensorboard__bytes;

enum { TENSORBOARD__VARINT, TENSORBOARD__FIXED64, TENSORBOARD__LENGTH, TENSORBOARD__FIXED32 = 5 };

static inline void tensorboard__varint(tensorboard__bytes *to, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) to->at[to->count++] = (unsigned char)(0x80 | (value & 0x7f));
    to->at[to->count++] = (unsigned char)value;
}

static inline void tensorboard__key(tensorboard__bytes *to, unsigned field, unsigned type)
{
    tensorboard__varint(to, field << 3 | type);
}

/* The lowest bytes of a number, the lowest first. */
static inline void tensorboard__fixed(tensorboard__bytes *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) to->at[to->count++] = (unsigned char)(value >> 8 * i);
}

static inline void tensorboard__put_double(tensorboard__bytes *to, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    tensorboard__fixed(to, bits, 8);
}

static inline void tensorboard__double(tensorboard__bytes *to, unsigned field, double value)
{
    tensorboard__key(to, field, TENSORBOARD__FIXED64);
    tensorboard__put_double(to, value);
}

/* A string, a message or an array of doubles. */
static inline void tensorboard__field(tensorboard__bytes *to, unsigned field, const void *bytes, size_t count)
{
    tensorboard__key(to, field, TENSORBOARD__LENGTH);
    tensorboard__varint(to, count);
    memcpy(to->at + to->count, bytes, count);
    to->count += count;
}

/* ---- records ---- */
/* CRC-32C (Castagnoli) of bytes behind others, 0 without any. */
static inline uint32_t tensorboard__crc(uint32_t crc, const void *bytes, size_t count)
{
    crc = ~crc;
    for (size_t i = 0; i < count; i++) {
        crc ^= ((const unsigned char *)bytes)[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

/* Rotated and moved as TFRecord does. */
static inline uint32_t tensorboard__masked(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Event {double wall_time = 1; int64 step = 2; string file_version = 3; bytes graph_def = 4; Summary summary
 * = 5}: field is 3 to 5. */
static inline bool tensorboard__write(tensorboard *board, int64_t step, unsigned field, const void *bytes,
                                      size_t count)
{
    tensorboard__bytes event = {.count = 0}, frame = {.count = 0}, end = {.count = 0};
    tensorboard__double(&event, 1, board->clock());
    if (step != 0) {
        tensorboard__key(&event, 2, TENSORBOARD__VARINT);
        tensorboard__varint(&event, (uint64_t)step);
    }
    tensorboard__key(&event, field, TENSORBOARD__LENGTH);
    tensorboard__varint(&event, count);
    tensorboard__fixed(&frame, event.count + count, 8);
    tensorboard__fixed(&frame, tensorboard__masked(tensorboard__crc(0, frame.at, 8)), 4);
    tensorboard__fixed(
        &end, tensorboard__masked(tensorboard__crc(tensorboard__crc(0, event.at, event.count), bytes, count)),
        4);
    return !ferror(board->file) && fwrite(frame.at, frame.count, 1, board->file) == 1 &&
           fwrite(event.at, event.count, 1, board->file) == 1 &&
           fwrite(bytes, 1, count, board->file) == count && fwrite(end.at, end.count, 1, board->file) == 1 &&
           fflush(board->file) == 0;
}

/* Summary {repeated Value value = 1}, Value {string tag = 1; ...}; value: what follows the tag. */
static inline bool tensorboard__summary(tensorboard *board, const char *tag, int64_t step,
                                        const tensorboard__bytes *value)
{
    tensorboard__bytes one = {.count = 0}, summary = {.count = 0};
    size_t             length = strlen(tag);
    if (length > TENSORBOARD_MAX_TAG) /* without half a character */
        for (length = TENSORBOARD_MAX_TAG; ((unsigned char)tag[length] & 0xc0) == 0x80 && length > 0;)
            length--;
    tensorboard__field(&one, 1, tag, length);
    memcpy(one.at + one.count, value->at, value->count);
    one.count += value->count;
    tensorboard__field(&summary, 1, one.at, one.count);
    return tensorboard__write(board, step, 5, summary.at, summary.count);
}

/* ---- for programs ---- */
static inline double tensorboard__now(void)
{
    return (double)time(NULL);
}

/* clock: seconds since 1970; NULL: the system's. The name's number is the first whose file is not there. */
static inline tensorboard *tensorboard_open(const char *folder, double (*clock)(void), text_error *error)
{
    static const char version[] = "brain.Event:2";
    tensorboard      *board = calloc(1, sizeof *board);
    char              path[1024];
    if (board == NULL) {
        text_fail(error, "out of memory");
        return NULL;
    }
    board->clock = clock ? clock : tensorboard__now;
    for (int i = 0; i < 1000 && board->file == NULL; i++) {
        int length = snprintf(path, sizeof path, "%s/events.out.tfevents.%lld.%03d", folder,
                              (long long)time(NULL), i);
        errno = length < (int)sizeof path ? 0 : ENAMETOOLONG;
        if (errno == 0) board->file = fopen(path, "wbx"); /* x: fails when it is there */
        if (board->file == NULL && errno != EEXIST) break;
    }
    if (board->file && tensorboard__write(board, 0, 3, version, sizeof version - 1)) return board;
    text_fail(error, "cannot write '%s': %s", path, strerror(errno));
    if (board->file) {
        (void)fclose(board->file);
        (void)remove(path);
    }
    free(board);
    return NULL;
}

/* NULL is fine. Whether all events are written. */
static inline bool tensorboard_close(tensorboard *board)
{
    if (board == NULL) return true;
    const bool failed = ferror(board->file) != 0;
    const bool good = fclose(board->file) == 0 && !failed;
    free(board);
    return good;
}

static inline bool tensorboard_scalar(tensorboard *board, const char *tag, int64_t step, double value)
{
    tensorboard__bytes out = {.count = 0};
    float              single = (float)value;
    uint32_t           bits;
    memcpy(&bits, &single, sizeof bits);
    tensorboard__key(&out, 2, TENSORBOARD__FIXED32); /* simple_value */
    tensorboard__fixed(&out, bits, 4);
    return tensorboard__summary(board, tag, step, &out);
}

/* Buckets of one width from the least to the greatest value; NaN and infinities are left out. */
static inline bool tensorboard_histogram(tensorboard *board, const char *tag, int64_t step,
                                         const float *values, size_t count)
{
    double least = DBL_MAX, most = -DBL_MAX, sum = 0, squares = 0, finite = 0,
           bucket[TENSORBOARD_BUCKETS] = {0};
    tensorboard__bytes histogram = {.count = 0}, limits = {.count = 0}, counts = {.count = 0},
                       out = {.count = 0};
    for (size_t i = 0; i < count; i++) {
        const double x = (double)values[i];
        if (!isfinite(x)) continue;
        least = x < least ? x : least;
        most = x > most ? x : most;
        sum += x;
        squares += x * x;
        finite++;
    }
    if (finite == 0) least = most = 0;
    const double width = most > least ? (most - least) / TENSORBOARD_BUCKETS : 1;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) continue;
        const int place = (int)(((double)values[i] - least) / width);
        bucket[place < TENSORBOARD_BUCKETS ? place : TENSORBOARD_BUCKETS - 1]++;
    }
    for (int i = 0; i < TENSORBOARD_BUCKETS; i++) {
        tensorboard__put_double(
            &limits, i + 1 < TENSORBOARD_BUCKETS || most == least ? least + width * (i + 1) : most);
        tensorboard__put_double(&counts, bucket[i]);
    }
    const double head[] = {least, most, finite, sum, squares};
    /* min, max, num, sum, sum_squares */
    for (unsigned i = 0; i < 5; i++) tensorboard__double(&histogram, i + 1, head[i]);
    tensorboard__field(&histogram, 6, limits.at, limits.count); /* bucket_limit */
    tensorboard__field(&histogram, 7, counts.at, counts.count); /* bucket */
    tensorboard__field(&out, 5, histogram.at, histogram.count); /* histo */
    return tensorboard__summary(board, tag, step, &out);
}

/* ---- the graph ---- */
/* A message of any length. */
typedef struct tensorboard__message {
    char  *at;
    size_t count, capacity;
    bool   failed; /* memory ran out */
} tensorboard__message;

static inline void tensorboard__append(tensorboard__message *m, const void *bytes, size_t count)
{
    if (!m->failed && m->capacity - m->count < count) {
        const size_t capacity = 2 * (m->count + count) + 256;
        char        *at = (char *)realloc(m->at, capacity);
        m->failed = at == NULL;
        if (m->failed) return;
        m->at = at;
        m->capacity = capacity;
    }
    if (m->failed || count == 0) return;
    memcpy(m->at + m->count, bytes, count);
    m->count += count;
}

static inline void tensorboard__append_field(tensorboard__message *m, unsigned field, const void *bytes,
                                             size_t count)
{
    tensorboard__bytes head = {.count = 0};
    tensorboard__key(&head, field, TENSORBOARD__LENGTH);
    tensorboard__varint(&head, count);
    tensorboard__append(m, head.at, head.count);
    tensorboard__append(m, bytes, count);
}

/* A tensor's name, where groups end with a slash in place of a point, and : and ^ mean something else. */
static inline void tensorboard__append_name(tensorboard__message *m, unsigned field, char *name)
{
    for (char *c = name; name && *c; c++) *c = *c == '.' ? '/' : *c == ':' || *c == '^' ? '_' : *c;
    if (name) tensorboard__append_field(m, field, name, strlen(name));
}

/* Whether a key names tensors that an op reads: "bias" may be false, and "weight" numbers. */
static inline bool tensorboard__reads(json *j, const char *key)
{
    static const char *const keys[] = {"inputs",
                                       "weights",
                                       "weight",
                                       "bias",
                                       "mask",
                                       "lengths",
                                       "h_0",
                                       "c_0",
                                       "attn_mask",
                                       "memory_mask",
                                       "pos_weight",
                                       "frequencies",
                                       "key_padding_mask",
                                       "memory_key_padding_mask"};
    bool                     known = false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !known; i++) known = strcmp(key, keys[i]) == 0;
    return known && (json__peek(j) == '"' ||
                     ((*j->at == '[' || *j->at == '{') && j->at[1 + strspn(j->at + 1, " \t\r\n")] == '"'));
}

/* The tensors of a key: one, a list, or an object that gives each a name in a formula. */
static inline void tensorboard__inputs(json *j, tensorboard__message *node)
{
    if (json__peek(j) == '"') {
        tensorboard__append_name(node, 3, json_string(j, NULL));
    } else if (json_array(j)) {
        while (json_item(j)) tensorboard__append_name(node, 3, json_string(j, NULL));
    } else if (json_object(j)) {
        while (json_key(j, NULL)) tensorboard__append_name(node, 3, json_string(j, NULL));
    }
}

/* NodeDef {string name = 1; string op = 2; repeated string input = 3; map<string, AttrValue> attr = 5},
 * AttrValue {bytes s = 2}: one tensor of the spec. from, whole: the text as json changes it, and as it
 * was. */
static inline void tensorboard__node(json *j, const char *from, const char *whole, int number,
                                     tensorboard__message *node)
{
    tensorboard__message value = {.at = NULL}, attribute = {.at = NULL};
    char                *key, *name = NULL, own[16]; /* own: of what has neither a name nor an id */
    if (!json_object(j)) return;
    while ((key = json_key(j, NULL)) != NULL && !node->failed) {
        if (strcmp(key, "op") == 0) {
            tensorboard__append_name(node, 2, json_string(j, NULL));
        } else if (strcmp(key, "name") == 0 || (strcmp(key, "id") == 0 && name == NULL)) {
            name = json_string(j, NULL);
        } else if (tensorboard__reads(j, key)) {
            tensorboard__inputs(j, node);
        } else {
            (void)json__peek(j);
            const char *begin = whole + (j->at - from);
            json_skip(j);
            value.count = attribute.count = 0;
            tensorboard__append_field(&value, 2, begin, (size_t)(whole + (j->at - from) - begin));
            tensorboard__append_field(&attribute, 1, key, strlen(key));
            tensorboard__append_field(&attribute, 2, value.at, value.count);
            tensorboard__append_field(node, 5, attribute.at, attribute.count);
            node->failed = node->failed || value.failed || attribute.failed;
        }
    }
    (void)snprintf(own, sizeof own, "(%d)", number);
    tensorboard__append_name(node, 1, name ? name : own);
    free(value.at);
    free(attribute.at);
}

/* GraphDef {repeated NodeDef node = 1}, of all tensors of the spec. */
static inline bool tensorboard__nodes(json *j, const char *from, const char *whole,
                                      tensorboard__message *graph)
{
    tensorboard__message node = {.at = NULL};
    char                *key;
    int                  count = 0;
    bool                 object = json_object(j);
    while (object && (key = json_key(j, NULL)) != NULL) {
        bool tensors = strcmp(key, "tensors") == 0 && json_array(j);
        if (!tensors) json_skip(j);
        while (tensors && json_item(j)) {
            node.count = 0;
            tensorboard__node(j, from, whole, count++, &node);
            tensorboard__append_field(graph, 1, node.at, node.count);
            graph->failed = graph->failed || node.failed;
        }
    }
    free(node.at);
    return json_end(j) &&
           (!graph->failed || text_fail(j->error, "out of memory: '%s' is too large", j->name));
}

/* The graph that a spec's file tells. */
static inline bool tensorboard_graph(tensorboard *board, const char *spec, text_error *error)
{
    size_t bytes;
    char  *text = text_read(spec, (size_t)1 << 28, &bytes, error),
         *whole = text ? (char *)malloc(bytes + 1) : NULL;
    tensorboard__message graph = {.at = NULL};
    json                 j = json_begin(spec, text, error);
    bool                 good = text && (whole || text_fail(error, "out of memory: '%s' is too large", spec));
    if (good) memcpy(whole, text, bytes + 1);
    good = good && tensorboard__nodes(&j, text, whole, &graph) &&
           (tensorboard__write(board, 0, 4, graph.at, graph.count) ||
            text_fail(error, "cannot write the graph: %s", strerror(errno)));
    free(text);
    free(whole);
    free(graph.at);
    return good;
}

#ifdef GPUNN_H
/* An on_progress, whose user is a tensorboard; what could not be written ends the training. */
static inline bool tensorboard_progress(void *user, const gpunn_progress *p)
{
    const char *metric = p->metric_name;
    char        tag[128];
    bool        good = !p->epoch_done || (tensorboard_scalar(user, "loss/train", p->epoch, (double)p->loss) &&
                                   tensorboard_scalar(user, "lr", p->epoch, (double)p->lr));
    if (!p->epoch_done) return true;
    if (!isnan(p->validation_loss))
        good = good && tensorboard_scalar(user, "loss/validation", p->epoch, (double)p->validation_loss);
    (void)snprintf(tag, sizeof tag, "%s/train", metric ? metric : "");
    if (metric) good = good && tensorboard_scalar(user, tag, p->epoch, (double)p->metric);
    (void)snprintf(tag, sizeof tag, "%s/validation", metric ? metric : "");
    if (metric && !isnan(p->validation_metric))
        good = good && tensorboard_scalar(user, tag, p->epoch, (double)p->validation_metric);
    return good;
}
#endif

#endif
