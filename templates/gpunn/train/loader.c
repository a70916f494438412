#include "train/loader.h"
#include "base/forward_declarations.h"
#include "base/errors.h"
#include "base/memory.h"
#include "base/sizes.h"
#include "base/shapes.h"
#include "base/model.h"
#include "ranks/group.h"
#include "run/io.h"

/* ---- order --------------------------------------------------------------------------------------------- */

/* Fisher-Yates shuffle. Draw k of an epoch uses half of the words at counter (k / 2 low, k / 2 high, epoch
 * low, 3 2^30 + epoch high). Dropout and initial values never use these counters. */
static void gpunn__shuffle(int64_t *order, int64_t count, uint64_t seed, int64_t epoch)
{
    uint32_t counter[4], word[4] = {0, 0, 0, 0};
    uint64_t draw = 0;
    for (int64_t i = 0; i < count; i++) order[i] = i;
    for (int64_t i = count - 1; i > 0; i--) {
        uint64_t choices = (uint64_t)i + 1, bits, chosen;
        /* rejection sampling: bits must lie in a complete run of choices, so that each is equally likely */
        do {
            if (draw % 2 == 0) {
                counter[0] = (uint32_t)(draw / 2);
                counter[1] = (uint32_t)(draw / 2 >> 32);
                counter[2] = (uint32_t)epoch;
                counter[3] = 0xC0000000u + (uint32_t)((uint64_t)epoch >> 32);
                gpunn__philox(seed, counter, word);
            }
            bits = (uint64_t)word[draw % 2 * 2] << 32 | word[draw % 2 * 2 + 1];
            chosen = bits % choices;
            draw++;
        } while (bits - chosen > UINT64_MAX - (uint64_t)i);
        int64_t other = order[chosen];
        order[chosen] = order[i];
        order[i] = other;
    }
}

/* Draws 0 <= result < choices. choices must be far below 2^32. */
static int64_t gpunn__draw_below(uint32_t word, int64_t choices)
{
    return (int64_t)((uint64_t)word * (uint64_t)choices >> 32);
}

/* Shell sort, longest first. */
static void gpunn__sort_by_length(int64_t *order, int64_t count, const int64_t *lengths)
{
    for (int64_t gap = count / 2; gap > 0; gap /= 2) {
        for (int64_t i = gap; i < count; i++) {
            const int64_t sample = order[i];
            int64_t       to = i;
            for (; to >= gap && lengths[order[to - gap]] < lengths[sample]; to -= gap)
                order[to] = order[to - gap];
            order[to] = sample;
        }
    }
}

/* Shuffles the order of whole batches. The draw for batch i uses counter (i, 2^31, ...),
 * which the draws for samples do not reach. */
static void gpunn__shuffle_batches(int64_t *order, int64_t batches, int64_t size, uint64_t seed,
                                   int64_t epoch)
{
    for (int64_t i = batches - 1; i > 0; i--) {
        const uint32_t counter[4] = {(uint32_t)i, 0x80000000u, (uint32_t)epoch,
                                     0xC0000000u + (uint32_t)((uint64_t)epoch >> 32)};
        uint32_t       word[4];
        gpunn__philox(seed, counter, word);
        int64_t *one = order + i * size, *other = order + gpunn__draw_below(word[0], i + 1) * size;
        for (int64_t k = 0; k < size; k++) {
            const int64_t sample = one[k];
            one[k] = other[k];
            other[k] = sample;
        }
    }
}

/* batches whose samples are sorted together, as in Hugging Face's group_by_length */
enum { GPUNN__LIKE_BATCHES = 50 };

static void gpunn__order_epoch(gpunn_loader *loader)
{
    const gpunn_loader_args *args = &loader->args;
    const int64_t            size = (int64_t)args->batch_size * gpunn_group_size(args->group),
                  most = GPUNN__LIKE_BATCHES * size;
    loader->ordered_epoch = loader->epoch;
    gpunn__shuffle(loader->order, args->count, args->seed, loader->epoch);
    for (int64_t i = 0; loader->subset && i < args->count; i++)
        loader->order[i] = loader->subset[loader->order[i]];
    if (args->lengths == NULL) return;
    for (int64_t first = 0; first < args->count; first += most)
        gpunn__sort_by_length(loader->order + first, args->count - first < most ? args->count - first : most,
                              args->lengths);
    gpunn__shuffle_batches(loader->order, args->count / size, size, args->seed, loader->epoch);
}

/* ---- making batches ------------------------------------------------------------------------------------ */

/* Converts one sample. gpunn__loader_field_check has checked the dtypes. */
static void gpunn__convert(const gpunn__loader_field *field, const void *from, void *to)
{
    const uint8_t *byte = (const uint8_t *)from;
    int64_t        n = field->count;
    if (field->from == field->to)
        memcpy(to, from, field->to_bytes);
    else if (field->from == GPUNN_F64)
        gpunn__cast_values(to, GPUNN_F32, from, GPUNN_F64, 0, n);
    else if (field->to == GPUNN_F32) {
        float  *out = (float *)to;
        int64_t plane = field->pixels.plane;
        for (int c = 0; c < field->pixels.channels; c++, byte += plane, out += plane)
            for (int64_t i = 0; i < plane; i++) out[i] = field->table[c][byte[i]];
    } else if (field->from == GPUNN_I32) {
        for (int64_t i = 0; i < n; i++) ((int64_t *)to)[i] = ((const int32_t *)from)[i];
    } else {
        /* any non-zero byte is 1 in a BOOL */
        uint8_t most = field->from == GPUNN_BOOL || field->to == GPUNN_BOOL ? 1 : 255;
        switch (gpunn_dtype_size(field->to)) {
        case 8:
            for (int64_t i = 0; i < n; i++) ((int64_t *)to)[i] = byte[i] < most ? byte[i] : most;
            break;
        case 4:
            for (int64_t i = 0; i < n; i++) ((int32_t *)to)[i] = byte[i] < most ? byte[i] : most;
            break;
        default:
            for (int64_t i = 0; i < n; i++) ((uint8_t *)to)[i] = byte[i] < most ? byte[i] : most;
            break;
        }
    }
}

/* Position of an augmented image: pixel (y, x) is the sample's pixel (y + dy, x
 * + dx). Turns and flips apply afterwards. */
typedef struct gpunn__placement {
    int64_t dy, dx;
    double  sine, cosine;
    bool    mirror_y, mirror_x;
} gpunn__placement;

static double gpunn__draw_between(uint32_t word, double low, double high)
{
    return low + (high - low) * ((double)word / 4294967296.0);
}

/* What random numbers are drawn for. */
enum { GPUNN__DRAW_PLACE, GPUNN__DRAW_TURN, GPUNN__DRAW_COLOUR, GPUNN__DRAW_MIX, GPUNN__DRAW_SHARE };

/* Draws four random words for a sample or batch. The counter is (number low, number high, epoch low, 7 2^29 +
 * 2^24 what + epoch high), which the shuffle does not reach. */
static void gpunn__loader_draw(const gpunn_loader *loader, uint64_t number, uint32_t what, uint32_t word[4])
{
    const uint64_t epoch = (uint64_t)loader->epoch;
    const uint32_t counter[4] = {(uint32_t)number, (uint32_t)(number >> 32), (uint32_t)epoch,
                                 0xE0000000u + (what << 24) + (uint32_t)(epoch >> 32)};
    gpunn__philox(loader->args.seed, counter, word);
}

static gpunn__placement gpunn__placement_of(const gpunn_loader *loader, const gpunn_field *args,
                                            int64_t sample)
{
    const int64_t padding = args->crop_padding;
    uint32_t      word[4], turn[4];
    gpunn__loader_draw(loader, (uint64_t)sample, GPUNN__DRAW_PLACE, word);
    gpunn__loader_draw(loader, (uint64_t)sample, GPUNN__DRAW_TURN, turn);
    const double angle = gpunn__draw_between(turn[0], -(double)args->degrees, args->degrees) *
                         (3.14159265358979323846 / 180);
    gpunn__placement place = {gpunn__draw_below(word[0], 2 * padding + 1) - padding,
                              gpunn__draw_below(word[1], 2 * padding + 1) - padding,
                              sin(angle),
                              cos(angle),
                              (double)word[2] < (double)args->vertical_flip * 4294967296.0,
                              (double)word[3] < (double)args->horizontal_flip * 4294967296.0};
    return place;
}

/* Reverses the pixels of a row. */
static void gpunn__mirror(char *row, int64_t width, size_t size)
{
    char  pixel[8]; /* of the widest dtype */
    char *last = row + (size_t)(width - 1) * size;
    for (; row < last; row += size, last -= size) {
        memcpy(pixel, row, size);
        memcpy(row, last, size);
        memcpy(last, pixel, size);
    }
}

/* Copies a sample in its own dtype to its augmented position, with a turn.
 * Each pixel takes the nearest source pixel. */
static void gpunn__turn_image(const gpunn__loader_field *field, gpunn__placement place, const char *from,
                              char *to)
{
    const int     rank = field->input->rank;
    const int64_t height = field->input->dim[rank - 2], width = field->input->dim[rank - 1];
    const size_t  size = gpunn_dtype_size(field->from);
    const double  middle_y = (double)(height - 1) / 2, middle_x = (double)(width - 1) / 2;
    memset(to, 0, field->from_bytes);
    for (int64_t i = 0; i < field->count; i++) {
        const int64_t row = i / width, y = row % height, x = i % width;
        const double  v = (double)(place.mirror_y ? height - 1 - y : y) - middle_y,
                     u = (double)(place.mirror_x ? width - 1 - x : x) - middle_x,
                     at_y = rint(place.sine * u + place.cosine * v + middle_y),
                     at_x = rint(place.cosine * u - place.sine * v + middle_x);
        if (!(at_y >= 0 && at_y < (double)height && at_x >= 0 && at_x < (double)width)) continue;
        const int64_t source_y = (int64_t)at_y + place.dy, source_x = (int64_t)at_x + place.dx;
        if (source_y < 0 || source_y >= height || source_x < 0 || source_x >= width) continue;
        memcpy(to + (size_t)i * size, from + (size_t)((row - y + source_y) * width + source_x) * size, size);
    }
}

/* Copies a sample in its own dtype to its augmented position, without a turn. */
static void gpunn__move_image(const gpunn__loader_field *field, gpunn__placement place, const char *from,
                              char *to)
{
    const int     rank = field->input->rank;
    const int64_t height = field->input->dim[rank - 2], width = field->input->dim[rank - 1];
    const int64_t left = place.dx < 0 ? -place.dx : 0,
                  right = place.dx > 0 ? width - place.dx : width; /* range of columns that are not padding */
    const size_t size = gpunn_dtype_size(field->from), row_bytes = (size_t)width * size;
    memset(to, 0, field->from_bytes);
    for (int64_t row = 0; row < field->count / width; row++, to += row_bytes) {
        const int64_t y = row % height, source = (place.mirror_y ? height - 1 - y : y) + place.dy;
        if (source < 0 || source >= height || left >= right) continue;
        memcpy(to + (size_t)left * size,
               from + ((size_t)((row - y + source) * width + left + place.dx)) * size,
               (size_t)(right - left) * size);
        if (place.mirror_x) gpunn__mirror(to, width, size);
    }
}

/* Colour changes and the order in which they apply. Brightness has index 0, contrast 1, saturation 2, hue
 * 3. */
typedef struct gpunn__jitter {
    int   order[4];
    float factor[4];
} gpunn__jitter;

static gpunn__jitter gpunn__jitter_of(const gpunn_loader *loader, const gpunn_field *args, int64_t sample)
{
    const float   range[3] = {args->brightness, args->contrast, args->saturation};
    gpunn__jitter jitter = {{0, 1, 2, 3}, {1, 1, 1, 0}};
    uint32_t      word[4], turn[4];
    gpunn__loader_draw(loader, (uint64_t)sample, GPUNN__DRAW_COLOUR, word);
    gpunn__loader_draw(loader, (uint64_t)sample, GPUNN__DRAW_TURN, turn);
    for (int i = 3; i > 0; i--) { /* Fisher-Yates shuffle */
        const int64_t other = gpunn__draw_below(turn[i], i + 1);
        const int     kept = jitter.order[i];
        jitter.order[i] = jitter.order[other];
        jitter.order[other] = kept;
    }
    for (int i = 0; i < 3; i++)
        jitter.factor[i] = (float)gpunn__draw_between(word[i], range[i] < 1 ? 1 - (double)range[i] : 0,
                                                      1 + (double)range[i]);
    jitter.factor[3] = (float)gpunn__draw_between(word[3], -(double)args->hue, args->hue);
    return jitter;
}

static float gpunn__grey(const float *pixel, int64_t plane, int channels)
{
    return channels == 3 ? 0.2989f * pixel[0] + 0.587f * pixel[plane] + 0.114f * pixel[2 * plane] : pixel[0];
}

static float gpunn__saturate(float x)
{
    if (x < 0) return 0;
    return x > 1 ? 1.0f : x;
}

/* Converts a pixel to hue, saturation and value, turns the hue, and converts it back (Smith, 1978). */
static void gpunn__turn_hue(float *pixel, int64_t plane, float turn)
{
    const float r = pixel[0], g = pixel[plane], b = pixel[2 * plane], most = fmaxf(r, fmaxf(g, b)),
                least = fminf(r, fminf(g, b)), range = most - least;
    if (!(range > 0)) return; /* grey has no hue */
    float hue = 4 + (r - g) / range;
    if (most == r)
        hue = (g - b) / range;
    else if (most == g)
        hue = 2 + (b - r) / range;
    hue = hue / 6 + turn;
    hue = 6 * (hue - floorf(hue));
    const float channel_at[3] = {0, 2, 4}; /* position on the hue circle where a channel is full */
    for (int c = 0; c < 3; c++) {
        /* distance on the circle; 0 to 1: the full range, 2 to 3: none of it */
        float away = fabsf(hue - channel_at[c]);
        if (away > 3) away = 6 - away;
        pixel[c * plane] = least + range * gpunn__saturate(2 - away);
    }
}

/* Changes the colours of an image with values from 0 to 1. */
static void gpunn__jitter_image(float *pixel, int64_t plane, int channels, const gpunn__jitter *jitter)
{
    for (int k = 0; k < 4; k++) {
        const int   what = jitter->order[k];
        const float factor = jitter->factor[what];
        double      mean = 0;
        if (channels == 1 && what >= 2) continue;
        for (int64_t i = 0; what == 1 && i < plane; i++)
            mean += (double)gpunn__grey(pixel + i, plane, channels);
        mean /= (double)plane;
        for (int64_t i = 0; i < plane; i++) {
            const float towards = what < 2 ? (float)mean : gpunn__grey(pixel + i, plane, channels);
            for (int c = 0; what < 3 && c < channels; c++) {
                float *x = pixel + c * plane + i;
                *x = gpunn__saturate(factor * *x + (1 - factor) * towards);
            }
            if (what == 3) gpunn__turn_hue(pixel + i, plane, factor);
        }
    }
}

/* Writes a sample as the input takes it: augmented, converted and normalized. from
 * equals `to` if load wrote directly to it. */
static void gpunn__batch_row(const gpunn_loader *loader, const gpunn__batch *batch, int f, int64_t sample,
                             const char *from, char *to)
{
    const gpunn__loader_field *field = &loader->fields[f];
    const gpunn_field         *args = &loader->args.fields[f];
    if (field->moves) {
        char *moved = field->from == field->to ? to : batch->memory + field->moved;
        (args->degrees != 0 ? gpunn__turn_image : gpunn__move_image)(
            field, gpunn__placement_of(loader, args, sample), from, moved);
        from = moved;
    }
    if (from != to) gpunn__convert(field, from, to);
    if (!field->jitters) return;
    const gpunn__jitter jitter = gpunn__jitter_of(loader, args, sample);
    const gpunn_pixels *pixels = &field->pixels;
    gpunn__jitter_image((float *)to, pixels->plane, pixels->channels, &jitter);
    for (int64_t i = 0; field->from != field->to && i < field->count; i++) {
        float *x = (float *)to + i;
        *x = (*x - pixels->mean[i / pixels->plane]) / pixels->std[i / pixels->plane];
    }
}

/* Draws from Beta(alpha, alpha). Above 1/2 it uses a closed form (Devroye, 1986, page 437), below it Joehnk's
 * rejection method (1964), in logarithms. */
static double gpunn__draw_beta(const gpunn_loader *loader, int64_t batch, double alpha)
{
    const uint64_t rank = (uint64_t)gpunn_group_rank(loader->args.group);
    for (uint64_t attempt = 0;; attempt++) {
        uint32_t word[4];
        gpunn__loader_draw(loader, (uint64_t)batch | attempt << 32 | rank << 48, GPUNN__DRAW_MIX, word);
        const double u = ((double)word[0] + 1) / 4294967296.0, v = ((double)word[1] + 1) / 4294967296.0;
        if (alpha > 0.5)
            return 0.5 + 0.5 * sqrt(1 - pow(u, 2 / (2 * alpha - 1))) * cos(6.283185307179586 * v);
        const double x = log(u) / alpha, y = log(v) / alpha;
        if (exp(x) + exp(y) <= 1) return 1 / (1 + exp(y - x));
    }
}

/* Mixup: each sample is mixed with the one before it, the first with the last. */
static void gpunn__batch_mix(const gpunn_loader *loader, gpunn__batch *batch, int64_t n)
{
    const float own = (float)gpunn__draw_beta(loader, batch->number, loader->args.mixup_alpha);
    for (int f = 0; f < loader->field_count; f++) {
        const int64_t count = loader->fields[f].count;
        float        *rows = (float *)(void *)(batch->memory + loader->fields[f].rows),
              *last = (float *)(void *)(batch->memory + loader->mixed);
        memcpy(last, rows + (n - 1) * count, (size_t)count * sizeof *last);
        for (int64_t i = n - 1; i >= 0; i--) {
            float       *row = rows + i * count;
            const float *before = i > 0 ? row - count : last;
            for (int64_t k = 0; k < count; k++) row[k] = own * row[k] + (1 - own) * before[k];
        }
    }
}

/* Number of this rank's samples in a batch. */
static int64_t gpunn__batch_size(const gpunn_loader *loader, int64_t number)
{
    const int64_t size = loader->args.batch_size, ranks = gpunn_group_size(loader->args.group),
                  rest = (loader->args.count - number * size * ranks) / ranks;
    return rest < size ? rest : size;
}

/* Position of this rank's first sample in the epoch's order. */
static int64_t gpunn__batch_first(const gpunn_loader *loader, int64_t number)
{
    return number * loader->args.batch_size * gpunn_group_size(loader->args.group) +
           gpunn_group_rank(loader->args.group) * gpunn__batch_size(loader, number);
}

/* Whether load writes to a separate buffer, because its samples still have to be moved or converted. */
static bool gpunn__loads_aside(const gpunn__loader_field *field)
{
    return field->moves || field->from != field->to;
}

/* Bytes of a sample in a batch, at the batch's length. */
static size_t gpunn__row_bytes(const gpunn__loader_field *field, const gpunn__batch *batch)
{
    return field->axis ? field->to_bytes / (size_t)field->most * (size_t)batch->longest : field->to_bytes;
}

/* Shortens the n samples of a batch to the longest of them. */
static void gpunn__batch_cut(const gpunn_loader *loader, gpunn__batch *batch, int64_t n)
{
    for (int f = 0; f < loader->field_count; f++) {
        const gpunn__loader_field *field = &loader->fields[f];
        const size_t               bytes = gpunn__row_bytes(field, batch);
        char                      *rows = batch->memory + field->rows;
        for (int64_t i = 1; i < n && bytes < field->to_bytes; i++)
            memmove(rows + (size_t)i * bytes, rows + (size_t)i * field->to_bytes, bytes);
    }
}

/* The sample at a position of the epoch. */
static int64_t gpunn__sample_at(const gpunn_loader *loader, int64_t position)
{
    const int64_t *list = loader->order ? loader->order : loader->subset;
    return list ? list[position] : position;
}

/* Writes the numbers of a batch's samples into its memory. */
static void gpunn__batch_list(const gpunn_loader *loader, gpunn__batch *batch)
{
    const int64_t first = gpunn__batch_first(loader, batch->number),
                  n = gpunn__batch_size(loader, batch->number);
    for (int64_t i = 0; batch->memory && i < n; i++)
        ((int64_t *)(void *)batch->memory)[i] = gpunn__sample_at(loader, first + i);
}

/* Fills a batch. A worker changes no shared data here except the batch. */
static void gpunn__batch_make(const gpunn_loader *loader, gpunn__batch *batch)
{
    const gpunn_loader_args *args = &loader->args;
    const int64_t            first = gpunn__batch_first(loader, batch->number),
                  n = gpunn__batch_size(loader, batch->number);
    batch->status = GPUNN_OK;
    if (loader->gather) {
        gpunn__batch_list(loader, batch);
        return;
    }
    batch->longest = loader->least;
    for (int64_t i = 0; i < n; i++) {
        const int64_t sample = gpunn__sample_at(loader, first + i);
        void         *loaded[GPUNN_MAX_FIELDS];
        if (args->lengths && args->lengths[sample] > batch->longest) batch->longest = args->lengths[sample];
        if (args->load) {
            for (int f = 0; f < loader->field_count; f++) {
                const gpunn__loader_field *field = &loader->fields[f];
                loaded[f] = batch->memory + (gpunn__loads_aside(field)
                                                 ? field->loaded
                                                 : field->rows + (size_t)i * field->to_bytes);
            }
            batch->status = args->load(args->user, sample, loaded);
            batch->sample = sample;
            if (batch->status != GPUNN_OK) return;
        }
        for (int f = 0; f < loader->field_count; f++) {
            const gpunn__loader_field *field = &loader->fields[f];
            const char                *from = NULL;
            if (args->load)
                from = (const char *)loaded[f];
            else
                from = field->samples + (size_t)sample * field->from_bytes;
            if (!field->direct)
                gpunn__batch_row(loader, batch, f, sample, from,
                                 batch->memory + field->rows + (size_t)i * field->to_bytes);
        }
    }
    if (args->mixup_alpha > 0) gpunn__batch_mix(loader, batch, n);
    if (loader->multiple == 0) return; /* no input has a length that depends on the samples */
    batch->longest = (batch->longest + loader->multiple - 1) / loader->multiple * loader->multiple;
    gpunn__batch_cut(loader, batch, n);
}

static GPUNN__THREAD_MAIN gpunn__loader_main(void *arg)
{
    gpunn_loader *loader = (gpunn_loader *)arg;
    GPUNN__LOCK(&loader->monitor);
    while (!loader->stop) {
        bool has_slot = loader->claimed < loader->batches &&
                        loader->claimed < loader->position + loader->ring_count;
        if (!loader->running || !has_slot) {
            GPUNN__WAIT(&loader->monitor);
            continue;
        }
        gpunn__batch *batch = &loader->ring[loader->claimed % loader->ring_count];
        batch->number = loader->claimed++;
        batch->ready = false;
        loader->busy++;
        GPUNN__UNLOCK(&loader->monitor);
        gpunn__batch_make(loader, batch);
        GPUNN__LOCK(&loader->monitor);
        batch->ready = true;
        loader->busy--;
        GPUNN__WAKE(&loader->monitor);
    }
    GPUNN__UNLOCK(&loader->monitor);
    GPUNN__THREAD_END;
}

/* Resets the loader to no workers and no batches, with a new monitor. After a
 * fork the old monitor's locks are abandoned. */
static void gpunn__loader_begin(gpunn_loader *loader)
{
    loader->worker_count = loader->busy = 0;
    loader->running = false;
    loader->claimed = loader->position;
    for (int i = 0; i < loader->ring_count; i++) loader->ring[i].number = -1;
    GPUNN__MONITOR_OPEN(&loader->monitor);
}

/* Starts the workers. If the system cannot start all of them, fewer do the same work. */
static void gpunn__loader_start(gpunn_loader *loader)
{
    loader->process = GPUNN__PROCESS();
    while (loader->worker_count < loader->ring_count - 1 &&
           GPUNN__THREAD_START(&loader->workers[loader->worker_count], gpunn__loader_main, loader))
        loader->worker_count++;
}

/* After a fork, makes the child forget the parent's workers. Returns whether there was a fork. */
static bool gpunn__loader_is_forked(gpunn_loader *loader)
{
    if (loader->process == GPUNN__PROCESS()) return false;
    gpunn__loader_begin(loader);
    return true;
}

/* After a fork, starts workers in the child if its device still works. A GPU's pinned memory does not survive
 * a fork. Returns false on failure. */
static bool gpunn__loader_outlives_fork(gpunn_loader *loader)
{
    gpunn_device *dev = loader->model->dev;
    if (!gpunn__loader_is_forked(loader)) return true;
    const gpunn_status status = dev->backend->synchronize(dev->context);
    if (status == GPUNN_OK)
        gpunn__loader_start(loader);
    else
        (void)gpunn__backend_fail(dev, "gpunn_next", status);
    return status == GPUNN_OK;
}

/* Stops the workers and moves to batch `position` of an epoch. */
static void gpunn__loader_move(gpunn_loader *loader, int64_t epoch, int64_t position)
{
    (void)gpunn__loader_outlives_fork(loader);
    GPUNN__LOCK(&loader->monitor);
    loader->running = false;
    while (loader->busy) GPUNN__WAIT(&loader->monitor);
    loader->epoch = epoch;
    loader->position = loader->claimed = position;
    for (int i = 0; i < loader->ring_count; i++) loader->ring[i].number = -1;
    GPUNN__UNLOCK(&loader->monitor);
}

/* Returns batch loader->position once it is made. Its status says whether load failed. */
static gpunn__batch *gpunn__batch_next(gpunn_loader *loader)
{
    gpunn__batch *batch = &loader->ring[loader->position % loader->ring_count];
    if (!loader->running && loader->order && loader->ordered_epoch != loader->epoch)
        gpunn__order_epoch(loader);
    if (loader->worker_count == 0) {
        batch->number = loader->position;
        gpunn__batch_make(loader, batch);
        return batch;
    }
    GPUNN__LOCK(&loader->monitor);
    if (!loader->running) {
        loader->running = true;
        GPUNN__WAKE(&loader->monitor);
    }
    while (batch->number != loader->position || !batch->ready) GPUNN__WAIT(&loader->monitor);
    GPUNN__UNLOCK(&loader->monitor);
    return batch;
}

/* Copies n samples of bytes to the device, which converts them to floats in the input. */
static GPUNN__STATUS gpunn__write_pixels(const gpunn__loader_field *field, const uint8_t *rows, int64_t n)
{
    static const char caller[] = "gpunn_next";
    gpunn_tensor     *input = field->input;
    gpunn_device     *dev = input->model->dev;
    const size_t      bytes = (size_t)n * field->to_bytes;
    int64_t           held[GPUNN_MAX_RANK];
    memcpy(held, input->dim, sizeof held);
    held[0] = n;
    gpunn_status status = gpunn__reserve_input(input, caller, bytes * sizeof(float), held);
    if (status != GPUNN_OK) return status;
    uint8_t *pixels = (uint8_t *)gpunn__device_alloc(dev, bytes);
    if (pixels == NULL) return dev->error.status;
    status = dev->backend->upload(dev->context, pixels, rows, bytes);
    if (status == GPUNN_OK)
        status = dev->backend->normalize(dev->context, (float *)input->data, pixels, (int64_t)bytes,
                                         &field->pixels);
    if (status != GPUNN_OK) status = gpunn__backend_fail(dev, caller, status);
    gpunn__device_free(dev, pixels, bytes);
    return status;
}

static GPUNN__STATUS gpunn__write_longest(const gpunn__loader_field *field, const char *rows, int64_t n,
                                          int64_t longest)
{
    gpunn_shape shape = gpunn_tensor_shape(field->input);
    shape.dim[0] = n;
    shape.dim[field->axis] = longest;
    return gpunn__write_shape_as(field->input, "gpunn_next", field->to, rows, shape);
}

/* Gathers n samples of each field on the device, by their numbers in the batch's memory. */
static GPUNN__STATUS gpunn__batch_gather(const gpunn_loader *loader, const gpunn__batch *batch, int64_t n)
{
    gpunn_tensor *gathered[GPUNN_MAX_FIELDS];
    int           count = 0;
    if (loader->gather->dev != loader->model->dev)
        return gpunn__fail(loader->model->dev, GPUNN_ERR_STATE,
                           "gpunn_next: the samples are on the device that the model has left; make another "
                           "loader");
    for (int f = 0; f < loader->field_count; f++)
        if (loader->fields[f].gathered) gathered[count++] = loader->fields[f].gathered;
    if (count == 0) return GPUNN_OK;
    const gpunn_status status = gpunn_write(loader->index, batch->memory, (size_t)n * sizeof(int64_t));
    return status == GPUNN_OK ? gpunn_forward(gathered, count) : status;
}

/* Writes n samples of a batch into the input of a field. first: position of the first one in the epoch. */
static GPUNN__STATUS gpunn__batch_write(const gpunn__loader_field *field, const gpunn__batch *batch,
                                        int64_t first, int64_t n)
{
    const char *rows;
    if (field->direct)
        rows = field->samples + (size_t)first * field->to_bytes;
    else if (field->gathered)
        rows = (const char *)gpunn_data(field->gathered);
    else
        rows = batch->memory + field->rows;
    if (field->axis) return gpunn__write_longest(field, rows, n, batch->longest);
    if (field->widens) return gpunn__write_pixels(field, (const uint8_t *)rows, n);
    return gpunn_write_as(field->input, field->to, rows, (size_t)n * field->to_bytes);
}

GPUNN_API bool gpunn_next(gpunn_loader *loader)
{
    if (loader == NULL) {
        (void)gpunn__fail_null(NULL, "gpunn_next", "loader");
        return false;
    }
    bool more = loader->position < loader->batches && gpunn__loader_outlives_fork(loader);
    if (more) {
        const gpunn__batch *batch = gpunn__batch_next(loader);
        gpunn_status        status = batch->status;
        const int64_t       first = gpunn__batch_first(loader, loader->position),
                      n = gpunn__batch_size(loader, loader->position);
        if (status != GPUNN_OK)
            (void)gpunn__fail(loader->model->dev, status,
                              "gpunn_next: the load callback failed for sample %lld with %s",
                              (long long)batch->sample, gpunn_status_name(status));
        if (status == GPUNN_OK && loader->gather) status = gpunn__batch_gather(loader, batch, n);
        for (int f = 0; f < loader->field_count && status == GPUNN_OK; f++)
            status = gpunn__batch_write(&loader->fields[f], batch, first, n);
        more = status == GPUNN_OK;
        loader->delivered = (int)n;
    }
    if (!more) {
        gpunn__loader_move(loader, loader->epoch + 1, 0);
        return false;
    }
    GPUNN__LOCK(&loader->monitor);
    loader->position++;
    GPUNN__WAKE(&loader->monitor);
    GPUNN__UNLOCK(&loader->monitor);
    return true;
}

/* ---- creating and querying ----------------------------------------------------------------------------- */

/* The named size that a dimension consists of, or NULL. */
static const gpunn__size *gpunn__size_of_name(const gpunn_model *model, int64_t dim)
{
    const gpunn__sum   sum = gpunn__sum_of(model, dim);
    const gpunn__size *size = sum.count == 1 && sum.term[0].atom[1] == 0 ? &model->sizes[sum.term[0].atom[0]]
                                                                         : NULL;
    return size && size->name && sum.term[0].factor == size->multiple ? size : NULL;
}

/* Checks the lengths and finds the axis of an input that varies with them. */
static GPUNN__STATUS gpunn__loader_lengths_check(gpunn_loader *loader, gpunn__loader_field *field,
                                                 const gpunn_tensor *input)
{
    const gpunn_loader_args *args = &loader->args;
    const gpunn_model       *model = loader->model;
    int                      axis = 1;
    char                     text[128];
    while (axis < input->rank && input->dim[axis] == 1) axis++;
    const bool          is_sized = axis < input->rank && gpunn__is_sized(input->dim[axis]);
    const gpunn__size  *size = is_sized ? gpunn__size_of_name(model, input->dim[axis]) : NULL;
    const gpunn_tensor *other = NULL; /* an earlier input with another size */
    for (int f = 0; f < loader->field_count; f++)
        if (is_sized && loader->fields[f].axis &&
            loader->fields[f].input->dim[loader->fields[f].axis] != input->dim[axis])
            other = loader->fields[f].input;
    if (!is_sized && !gpunn__any_sized(input->rank, input->dim)) return GPUNN_OK;
    if (size == NULL || size->max == 0 || gpunn__any_sized(input->rank - axis - 1, input->dim + axis + 1) ||
        other)
        return gpunn__fail(model->dev, GPUNN_ERR_SHAPE,
                           "gpunn_loader_create: .lengths need one gpunn_size with .max as the first "
                           "dimension above 1 of each sample, which '%s' %s does not have%s",
                           input->name, gpunn__shape_text(input, text),
                           other ? " as the fields before it do" : "");
    for (int64_t i = 0; i < args->count; i++)
        if (args->lengths[i] < 1 || args->lengths[i] > size->max)
            return gpunn__fail(model->dev, GPUNN_ERR_ARGUMENT,
                               "gpunn_loader_create: the length of sample %lld is %lld; lengths are 1 to "
                               "%lld, the .max of '%s'",
                               (long long)i, (long long)args->lengths[i], (long long)size->max, size->name);
    field->axis = axis;
    field->most = size->max;
    loader->least = size->min;
    loader->multiple = size->multiple;
    return GPUNN_OK;
}

static const char *gpunn__field_name(const gpunn_field *field)
{
    return field->input->name ? field->input->name : "";
}

/* Checks the input and the samples of field f. */
static GPUNN__STATUS gpunn__field_input(gpunn_loader *loader, int f)
{
    const gpunn_loader_args *args = &loader->args;
    const gpunn_field       *given = &args->fields[f];
    const gpunn_tensor      *input = given->input;
    gpunn_device            *dev = loader->model->dev;
    const char              *name = gpunn__field_name(given);
    char                     text[128];
    if (input->model != loader->model)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_loader_create: the input of field %d belongs to another model", f);
    if (input->kind != GPUNN__INPUT || input->rank < 1 || input->dim[0] != GPUNN_BATCH ||
        (args->lengths == NULL && gpunn__any_sized(input->rank, input->dim)))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_loader_create: field %d goes to '%s' %s; use a gpunn_input whose first "
                           "dimension is GPUNN_BATCH, and set .lengths if another one varies",
                           f, name, gpunn__shape_text(input, text));
    gpunn_status status = args->lengths ? gpunn__loader_lengths_check(loader, &loader->fields[f], input)
                                        : GPUNN_OK;
    if (status != GPUNN_OK) return status;
    for (int other = 0; other < f; other++)
        if (args->fields[other].input == input)
            return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                               "gpunn_loader_create: fields %d and %d both go to '%s'; give each input once",
                               other, f, name);
    if ((given->samples != NULL) == (args->load != NULL))
        return gpunn__fail(
            dev, GPUNN_ERR_ARGUMENT,
            "gpunn_loader_create: field %d ('%s') has %s; give either samples in every field or load", f,
            name, args->load ? "samples although there is load" : "no samples and there is no load");
    return GPUNN_OK;
}

/* Sets and checks the dtypes of the conversion. */
static GPUNN__STATUS gpunn__field_dtypes(gpunn_loader *loader, int f)
{
    const gpunn_field   *given = &loader->args.fields[f];
    gpunn__loader_field *field = &loader->fields[f];
    field->to = given->input->dtype;
    field->from = given->dtype ? given->dtype : gpunn_tensor_dtype(given->input);
    const bool bytes = field->from == GPUNN_U8 || field->from == GPUNN_BOOL;
    if (field->from != field->to && !bytes && !(field->from == GPUNN_I32 && field->to == GPUNN_I64) &&
        !(field->from == GPUNN_F64 && field->to == GPUNN_F32))
        return gpunn__fail(loader->model->dev, GPUNN_ERR_DTYPE,
                           "gpunn_loader_create: field %d ('%s') has %s samples, its input is %s; samples "
                           "are of the input's dtype, U8, BOOL, I32 for an I64 input, or F64 for F32",
                           f, gpunn__field_name(given), gpunn_dtype_name(field->from),
                           gpunn_dtype_name(field->to));
    if (loader->args.mixup_alpha > 0 && field->to != GPUNN_F32)
        return gpunn__fail(loader->model->dev, GPUNN_ERR_DTYPE,
                           "gpunn_loader_create: field %d ('%s') is %s, but mixup_alpha mixes all fields; "
                           "use F32 inputs, and class probabilities as labels",
                           f, gpunn__field_name(given), gpunn_dtype_name(field->to));
    return GPUNN_OK;
}

/* Whether the samples are bytes that mean and std normalize to floats. */
static bool gpunn__field_has_pixels(const gpunn__loader_field *field)
{
    return field->from == GPUNN_U8 && field->input->dtype == GPUNN_F32;
}

/* Checks the colour changes. */
static GPUNN__STATUS gpunn__field_colours(gpunn_loader *loader, int f)
{
    const gpunn_field   *given = &loader->args.fields[f];
    const gpunn_tensor  *input = given->input;
    gpunn__loader_field *field = &loader->fields[f];
    const float          b = given->brightness, c = given->contrast, s = given->saturation, h = given->hue;
    char                 text[128];
    field->jitters = b != 0 || c != 0 || s != 0 || h != 0;
    if (field->jitters &&
        (field->to != GPUNN_F32 || (!gpunn__field_has_pixels(field) && field->from != GPUNN_F32) ||
         input->rank != 4 || (input->dim[1] != 1 && input->dim[1] != 3)))
        return gpunn__fail(loader->model->dev, GPUNN_ERR_SHAPE,
                           "gpunn_loader_create: field %d goes to '%s' %s %s from %s; changes of colour need "
                           "an F32 input [GPUNN_BATCH, 3 or 1, height, width] with U8 or F32 samples",
                           f, gpunn__field_name(given), gpunn_dtype_name(field->to),
                           gpunn__shape_text(input, text), gpunn_dtype_name(field->from));
    if (field->axis && (field->jitters || loader->args.mixup_alpha > 0))
        return gpunn__fail(
            loader->model->dev, GPUNN_ERR_SHAPE,
            "gpunn_loader_create: field %d goes to '%s' %s; .lengths excludes mixup and changes of colour", f,
            gpunn__field_name(given), gpunn__shape_text(input, text));
    if (!(b >= 0 && b <= FLT_MAX && c >= 0 && c <= FLT_MAX && s >= 0 && s <= FLT_MAX && h >= 0 && h <= 0.5f))
        return gpunn__fail(loader->model->dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_loader_create: field %d ('%s') has brightness %g, contrast %g, saturation "
                           "%g and hue %g; give finite numbers of at least 0, and for hue at most 0.5",
                           f, gpunn__field_name(given), (double)b, (double)c, (double)s, (double)h);
    return GPUNN_OK;
}

/* Checks mean and std and fills the conversion table. */
static GPUNN__STATUS gpunn__field_pixels(gpunn_loader *loader, int f)
{
    const gpunn_field   *given = &loader->args.fields[f];
    gpunn__loader_field *field = &loader->fields[f];
    const bool           pixels = gpunn__field_has_pixels(field);
    for (int c = 0; c < 4; c++) {
        const float mean = given->mean[c], std = given->std[c];
        if (!pixels && (mean != 0 || std != 0))
            return gpunn__fail(loader->model->dev, GPUNN_ERR_ARGUMENT,
                               "gpunn_loader_create: field %d ('%s') has mean or std, which are for U8 "
                               "samples of an F32 input",
                               f, gpunn__field_name(given));
        if (!(fabsf(mean) <= FLT_MAX) || !(std >= 0 && std <= FLT_MAX))
            return gpunn__fail(loader->model->dev, GPUNN_ERR_ARGUMENT,
                               "gpunn_loader_create: field %d ('%s') has mean[%d] %g and std[%d] %g; give "
                               "finite numbers, std not negative",
                               f, gpunn__field_name(given), c, (double)mean, c, (double)std);
        field->pixels.mean[c] = mean;
        field->pixels.std[c] = std > 0 ? std : 1.0f;
        for (int x = 0; x < 256; x++)
            field->table[c][x] = !pixels          ? (float)(x != 0)
                                 : field->jitters ? (float)x / 255.0f
                                                  : gpunn__normalized((uint8_t)x, mean, field->pixels.std[c]);
    }
    return GPUNN_OK;
}

/* Checks crops, turns and flips. */
static GPUNN__STATUS gpunn__field_moves(gpunn_loader *loader, int f)
{
    const gpunn_field   *given = &loader->args.fields[f];
    gpunn__loader_field *field = &loader->fields[f];
    const float          left = given->horizontal_flip, down = given->vertical_flip;
    char                 text[128];
    field->moves = given->crop_padding != 0 || given->degrees != 0 || left != 0 || down != 0;
    if (field->moves && (given->input->rank < 3 || field->axis))
        return gpunn__fail(loader->model->dev, GPUNN_ERR_SHAPE,
                           "gpunn_loader_create: field %d goes to '%s' %s, which holds no images "
                           "[GPUNN_BATCH, ..., height, width] to crop, turn or flip",
                           f, gpunn__field_name(given), gpunn__shape_text(given->input, text));
    if (!(given->degrees >= 0 && given->degrees <= FLT_MAX))
        return gpunn__fail(
            loader->model->dev, GPUNN_ERR_ARGUMENT,
            "gpunn_loader_create: field %d ('%s') has degrees %g; give a finite number of at least 0", f,
            gpunn__field_name(given), (double)given->degrees);
    if (given->crop_padding < 0 || !(left >= 0 && left <= 1) || !(down >= 0 && down <= 1))
        return gpunn__fail(loader->model->dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_loader_create: field %d ('%s') has crop_padding %d, horizontal_flip %g and "
                           "vertical_flip %g; give at least 0 pixels, and probabilities from 0 to 1",
                           f, gpunn__field_name(given), given->crop_padding, (double)left, (double)down);
    return GPUNN_OK;
}

/* Computes the elements and bytes of a sample. */
static GPUNN__STATUS gpunn__field_sizes(gpunn_loader *loader, int f)
{
    const gpunn_loader_args *args = &loader->args;
    const gpunn_tensor      *input = args->fields[f].input;
    gpunn__loader_field     *field = &loader->fields[f];
    const size_t             from = gpunn_dtype_size(field->from), to = gpunn_dtype_size(field->to);
    size_t                   whole;
    char                     text[128];
    field->count = field->axis ? field->most : gpunn__count(input, 1);
    for (int i = field->axis + 1; field->axis && i < input->rank && field->count > 0; i++)
        field->count = field->count <= GPUNN__MAX_COUNT / input->dim[i] ? field->count * input->dim[i] : -1;
    if (field->count < 0 || !gpunn__mul((size_t)field->count, to > from ? to : from, &whole) ||
        (uint64_t)args->count > SIZE_MAX / 16 || !gpunn__mul(whole, (size_t)args->count, &whole) ||
        whole > SIZE_MAX / 2)
        return gpunn__fail(
            loader->model->dev, GPUNN_ERR_SHAPE,
            "gpunn_loader_create: %lld samples of '%s' %s are more than the address space holds",
            (long long)args->count, gpunn__field_name(&args->fields[f]), gpunn__shape_text(input, text));
    field->pixels.channels = input->rank > 1 && input->dim[1] <= 4 ? (int)input->dim[1] : 1;
    field->pixels.plane = field->count / field->pixels.channels;
    field->from_bytes = (size_t)field->count * from;
    field->to_bytes = (size_t)field->count * to;
    return GPUNN_OK;
}

/* The name of an argument that samples on the device exclude; NULL: none is set. */
static const char *gpunn__excluded_on_device(const gpunn_loader_args *args, const gpunn_field *field)
{
    const struct {
        const char *name;
        bool        is_set;
    } excluded[] = {{"load", args->load != NULL},
                    {"lengths", args->lengths != NULL},
                    {"mixup_alpha", args->mixup_alpha != 0},
                    {"crop_padding", field->crop_padding != 0},
                    {"degrees", field->degrees != 0},
                    {"horizontal_flip", field->horizontal_flip != 0},
                    {"vertical_flip", field->vertical_flip != 0},
                    {"brightness", field->brightness != 0},
                    {"contrast", field->contrast != 0},
                    {"saturation", field->saturation != 0},
                    {"hue", field->hue != 0}};
    for (size_t i = 0; i < sizeof excluded / sizeof *excluded; i++)
        if (excluded[i].is_set) return excluded[i].name;
    return NULL;
}

/* Lets the device gather the samples of field f, as rows of the widest words of which they consist. */
static GPUNN__STATUS gpunn__field_gather(gpunn_loader *loader, int f)
{
    const char           name[] = {(char)('0' + f), 0};
    gpunn__loader_field *field = &loader->fields[f];
    const size_t         bits = (size_t)(uintptr_t)field->samples | field->from_bytes;
    gpunn_dtype          word = bits % 4 == 0 ? GPUNN_I32 : GPUNN_U8;
    if (bits % 8 == 0) word = GPUNN_I64;
    const gpunn_shape shape = {{loader->args.count, (int64_t)(field->from_bytes / gpunn_dtype_size(word))}};
    gpunn_tensor     *all = gpunn_input(loader->gather, name, word, shape);
    void             *samples = gpunn__unconst(field->samples); /* only read */
    gpunn_status      status = gpunn_bind(all, samples, (size_t)shape.dim[0] * field->from_bytes);
    if (status != GPUNN_OK) return status;
    field->gathered = gpunn_index_select(all, 0, loader->index);
    return field->gathered ? GPUNN_OK : loader->model->dev->error.status;
}

/* Checks that the samples of field f are where on_device says. */
static GPUNN__STATUS gpunn__field_place(gpunn_loader *loader, int f)
{
    const gpunn_loader_args *args = &loader->args;
    gpunn__loader_field     *field = &loader->fields[f];
    gpunn_device            *dev = loader->model->dev;
    const char              *name = gpunn__field_name(&args->fields[f]);
    const char              *excluded = gpunn__excluded_on_device(args, &args->fields[f]);
    if (args->on_device && excluded)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_loader_create: on_device excludes %s, which field %d ('%s') has; leave one "
                           "of them out",
                           excluded, f, name);
    if (loader->gather == NULL && !args->load && !field->direct && gpunn__is_on_device(dev, field->samples))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_loader_create: the samples of field %d ('%s') are memory of the GPU, which "
                           "the host cannot read; set .on_device = true",
                           f, name);
    if (loader->gather == NULL) return GPUNN_OK;
    if (gpunn__field_has_pixels(field) && !field->widens)
        return gpunn__fail(dev, GPUNN_ERR_DTYPE,
                           "gpunn_loader_create: field %d ('%s') has u8 samples on the device and an F64 "
                           "input; make the input F32",
                           f, name);
    if (dev->backend->reaches && dev->backend->reaches(dev->context, field->samples,
                                                       (size_t)args->count * field->from_bytes) != GPUNN_OK)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT, "gpunn_loader_create: on_device for field %d ('%s'): %s",
                           f, name, dev->backend->error(dev->context));
    return field->direct ? GPUNN_OK : gpunn__field_gather(loader, f);
}

/* Checks field f of the arguments and prepares its conversion. */
static GPUNN__STATUS gpunn__loader_field_check(gpunn_loader *loader, int f)
{
    const gpunn_loader_args *args = &loader->args;
    gpunn__loader_field     *field = &loader->fields[f];
    const bool               mixes = args->mixup_alpha > 0;
    gpunn_status             status = gpunn__field_input(loader, f);
    field->input = args->fields[f].input;
    field->samples = (const char *)args->fields[f].samples;
    if (status == GPUNN_OK) status = gpunn__field_dtypes(loader, f);
    if (status == GPUNN_OK) status = gpunn__field_colours(loader, f);
    if (status == GPUNN_OK) status = gpunn__field_pixels(loader, f);
    if (status == GPUNN_OK) status = gpunn__field_moves(loader, f);
    field->widens = gpunn__field_has_pixels(field) && !field->input->doubles &&
                    loader->model->dev->backend->normalize && !field->jitters && !mixes && !field->axis;
    if (field->widens) field->to = field->from;
    field->direct = !args->load && !args->shuffle && args->validation_share == 0 && !field->moves &&
                    !field->jitters && !mixes && field->from == field->to && !field->axis;
    if (loader->gather) field->to = field->from; /* the device converts what it gathers */
    if (status == GPUNN_OK) status = gpunn__field_sizes(loader, f);
    return status == GPUNN_OK ? gpunn__field_place(loader, f) : status;
}

/* Reserves bytes at the end of a batch's memory, aligned for any dtype. Returns false if sizes overflow. */
static bool gpunn__batch_reserve(gpunn_loader *loader, size_t bytes, size_t *place)
{
    *place = loader->batch_bytes;
    return gpunn__add(loader->batch_bytes, bytes, &loader->batch_bytes) &&
           gpunn__add(loader->batch_bytes, (GPUNN__ALIGN - loader->batch_bytes % GPUNN__ALIGN) % GPUNN__ALIGN,
                      &loader->batch_bytes);
}

/* Reduces the loader to its share of the samples. Draws each sample once, by Knuth's algorithm S. */
static GPUNN__STATUS gpunn__loader_take_share(gpunn_loader *loader)
{
    gpunn_loader_args *args = &loader->args;
    const int64_t      count = args->count;
    const double       share = (double)args->validation_share;
    const bool         is_share = share > 0 && share < 1;
    int64_t            left = is_share ? (int64_t)rint((double)count * share) : 0, own = 0;
    if ((share != 0) != (loader->held || args->validation != NULL))
        return gpunn__fail(loader->model->dev, GPUNN_ERR_ARGUMENT,
                           "gpunn_loader_create: validation_share is %g and validation is %s; set both, or "
                           "neither",
                           share, args->validation ? "set" : "NULL");
    if (share == 0) return GPUNN_OK;
    if (left == 0 || left == count)
        return gpunn__fail(
            loader->model->dev, GPUNN_ERR_ARGUMENT,
            "gpunn_loader_create: validation_share is %g of %lld samples; give a share between "
            "0 and 1 that leaves samples to both loaders",
            share, (long long)count);
    args->count = loader->held ? left : count - left;
    loader->subset = (int64_t *)gpunn__realloc(loader->model->dev, NULL, 0,
                                               (size_t)args->count * sizeof *loader->subset);
    for (int64_t i = 0; loader->subset && i < count; i++) {
        uint32_t word[4];
        gpunn__loader_draw(loader, (uint64_t)i, GPUNN__DRAW_SHARE, word);
        const bool held = gpunn__draw_between(word[0], 0, (double)(count - i)) < (double)left;
        left -= held;
        if (held == loader->held) loader->subset[own++] = i;
    }
    return loader->subset ? GPUNN_OK : GPUNN_ERR_MEMORY;
}

/* Makes the model that gathers samples on the device, unless its memory is the host's. */
static GPUNN__STATUS gpunn__loader_gathers(gpunn_loader *loader)
{
    gpunn_device    *dev = loader->model->dev;
    gpunn_model_args args;
    loader->args.workers = 0;
    if (dev->backend->on_device == NULL) return GPUNN_OK;
    memset(&args, 0, sizeof args);
    args.inference = true;
    loader->gather = gpunn_model_create_(dev, args);
    if (loader->gather == NULL) return dev->error.status;
    loader->index = gpunn_input(loader->gather, "index", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    return loader->index ? GPUNN_OK : dev->error.status;
}

/* Counts the batches of an epoch. */
static GPUNN__STATUS gpunn__loader_batches(gpunn_loader *loader)
{
    const gpunn_loader_args *args = &loader->args;
    const int64_t            ranks = gpunn_group_size(args->group), each = args->count / ranks;
    loader->batches = each / args->batch_size + (!args->drop_last && each % args->batch_size != 0);
    if (loader->batches > 0) return GPUNN_OK;
    return gpunn__fail(
        loader->model->dev, GPUNN_ERR_ARGUMENT,
        "gpunn_loader_create: %lld samples do not fill one batch of %d on %lld rank%s%s; use a "
        "smaller batch_size",
        (long long)args->count, args->batch_size, (long long)ranks, ranks == 1 ? "" : "s",
        args->drop_last ? " and drop_last leaves out the rest" : "");
}

/* Takes over field `loader->field_count` and reserves what it needs of a batch. Clears *fits if the sum of
 * bytes overflows. */
static GPUNN__STATUS gpunn__loader_add_field(gpunn_loader *loader, bool *fits)
{
    gpunn__loader_field *field = &loader->fields[loader->field_count];
    const gpunn_status   status = gpunn__loader_field_check(loader, loader->field_count);
    if (status != GPUNN_OK) return status;
    const int64_t rows = gpunn__batch_size(loader, 0);
    if (!field->direct && !field->gathered)
        *fits = *fits && gpunn__batch_reserve(loader, (size_t)rows * field->to_bytes, &field->rows);
    if (loader->args.load && gpunn__loads_aside(field))
        *fits = *fits && gpunn__batch_reserve(loader, field->from_bytes, &field->loaded);
    if (field->moves && field->from != field->to)
        *fits = *fits && gpunn__batch_reserve(loader, field->from_bytes, &field->moved);
    loader->field_count++;
    return GPUNN_OK;
}

static GPUNN__STATUS gpunn__loader_setup(gpunn_loader *loader)
{
    static const char  function[] = "gpunn_loader_create";
    gpunn_loader_args *args = &loader->args;
    gpunn_device      *dev = loader->model->dev;
    if (args->batch_size == 0) args->batch_size = 32;
    if (args->seed == 0) args->seed = dev->args.seed;
    if (args->count < 1 || args->batch_size < 0 || args->workers < 0 || args->workers > GPUNN__MAX_WORKERS)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: count is %lld, batch_size %d and workers %d; count and batch_size are at "
                           "least 1, workers 0 to %d",
                           function, (long long)args->count, args->batch_size, args->workers,
                           (int)GPUNN__MAX_WORKERS);
    if (!(args->mixup_alpha >= 0 && args->mixup_alpha <= FLT_MAX))
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: mixup_alpha is %g; give a finite number of at least 0", function,
                           (double)args->mixup_alpha);
    bool         fits = true, copies = false;
    size_t       largest = 0; /* bytes of the largest sample */
    gpunn_status status = args->on_device ? gpunn__loader_gathers(loader) : GPUNN_OK;
    if (status != GPUNN_OK) return status;
    for (int i = 0; i < GPUNN_MAX_FIELDS && args->fields[i].input; i++) {
        status = gpunn__loader_add_field(loader, &fits);
        if (status != GPUNN_OK) return status;
        copies = copies || !loader->fields[i].direct;
        if (loader->fields[i].to_bytes > largest) largest = loader->fields[i].to_bytes;
    }
    if (args->mixup_alpha > 0) fits = fits && gpunn__batch_reserve(loader, largest, &loader->mixed);
    if (loader->field_count == 0)
        return gpunn__fail(dev, GPUNN_ERR_ARGUMENT,
                           "%s: there are no fields; give .fields = {{.input = x, .samples = ...}, ...}",
                           function);
    status = gpunn__loader_take_share(loader);
    if (status == GPUNN_OK) status = gpunn__loader_batches(loader);
    if (status != GPUNN_OK) return status;
    loader->ring_count = copies ? args->workers + 1 : 1;
    if (loader->gather) loader->batch_bytes = (size_t)gpunn__batch_size(loader, 0) * sizeof(int64_t);
    size_t bytes;
    if (!fits || !gpunn__mul(loader->batch_bytes, (size_t)loader->ring_count, &bytes))
        return gpunn__fail(dev, GPUNN_ERR_MEMORY,
                           "%s: %d batches of %d samples are more than the address space holds; use fewer "
                           "workers or a smaller batch_size",
                           function, loader->ring_count, args->batch_size);
    if (copies && dev->backend->host_alloc &&
        (loader->memory = (char *)dev->backend->host_alloc(dev->context, bytes)) != NULL)
        loader->memory_free = dev->backend->host_free;
    else if (copies && (loader->memory = (char *)gpunn__realloc(dev, NULL, 0, bytes)) == NULL)
        return GPUNN_ERR_MEMORY;
    for (int i = 0; i < loader->ring_count; i++) {
        loader->ring[i].memory = copies ? loader->memory + (size_t)i * loader->batch_bytes : NULL;
        loader->ring[i].number = -1;
    }
    if (args->shuffle) {
        loader->order = (int64_t *)gpunn__realloc(dev, NULL, 0, (size_t)args->count * sizeof *loader->order);
        if (loader->order == NULL) return GPUNN_ERR_MEMORY;
    }
    return GPUNN_OK;
}

static gpunn_loader *gpunn__loader_make(gpunn_model *model, gpunn_loader_args args, bool held)
{
    gpunn_loader *loader = (gpunn_loader *)gpunn__calloc(model->dev, sizeof *loader);
    if (loader == NULL) return NULL;
    loader->model = model;
    model->children++;
    loader->args = args;
    loader->held = held;
    loader->ordered_epoch = -1;
    loader->process = GPUNN__PROCESS();
    gpunn__loader_begin(loader);
    gpunn__group_join(args.group);
    gpunn_status status = gpunn__loader_setup(loader);
    if (args.group)
        status = gpunn__all_reduce_status(
            args.group, status, NULL, "gpunn_loader_create of %lld samples, batches of %d, seed %llu%s",
            (long long)args.count, loader->args.batch_size, (unsigned long long)loader->args.seed,
            args.shuffle ? ", shuffled" : "");
    if (status != GPUNN_OK) {
        gpunn_loader_destroy(loader);
        return NULL;
    }
    gpunn__loader_start(loader);
    return loader;
}

/* The arguments of the loader of the share that is held out. */
static gpunn_loader_args gpunn__validation_args(gpunn_loader_args args)
{
    args.validation = NULL;
    args.shuffle = args.drop_last = false;
    args.mixup_alpha = 0;
    for (int f = 0; f < GPUNN_MAX_FIELDS; f++) {
        gpunn_field *field = &args.fields[f];
        field->crop_padding = 0;
        field->degrees = field->horizontal_flip = field->vertical_flip = 0;
        field->brightness = field->contrast = field->saturation = field->hue = 0;
    }
    return args;
}

GPUNN_API gpunn_loader *gpunn_loader_create_(gpunn_model *model, gpunn_loader_args args)
{
    if (args.validation) *args.validation = NULL;
    if (model == NULL) return NULL;
    gpunn_loader *loader = gpunn__loader_make(model, args, false);
    if (loader == NULL || args.validation == NULL) return loader;
    *args.validation = gpunn__loader_make(model, gpunn__validation_args(args), true);
    if (*args.validation) return loader;
    gpunn_loader_destroy(loader);
    return NULL;
}

GPUNN_API void gpunn_loader_destroy(gpunn_loader *loader)
{
    if (loader == NULL) return;
    gpunn_model  *model = loader->model;
    gpunn_device *dev = model->dev;
    const bool    is_forked = gpunn__loader_is_forked(loader);
    gpunn_model_destroy(loader->gather);
    GPUNN__LOCK(&loader->monitor);
    loader->stop = true;
    GPUNN__WAKE(&loader->monitor);
    GPUNN__UNLOCK(&loader->monitor);
    for (int i = 0; i < loader->worker_count; i++) GPUNN__THREAD_JOIN(loader->workers[i]);
    GPUNN__MONITOR_CLOSE(&loader->monitor);
    if (loader->memory_free && !is_forked)
        loader->memory_free(loader->memory);
    else if (loader->memory_free == NULL)
        gpunn__free(dev, loader->memory, loader->batch_bytes * (size_t)loader->ring_count);
    gpunn__free(dev, loader->order, (size_t)loader->args.count * sizeof *loader->order);
    gpunn__free(dev, loader->subset, (size_t)loader->args.count * sizeof *loader->subset);
    gpunn__group_leave(loader->args.group);
    gpunn__free(dev, loader, sizeof *loader);
    model->children--;
    gpunn__model_release(model);
}

GPUNN_API int64_t gpunn_loader_batches(const gpunn_loader *loader)
{
    return loader ? loader->batches : 0;
}

GPUNN_API int gpunn_loader_batch_size(const gpunn_loader *loader)
{
    return loader ? loader->delivered : 0;
}

GPUNN_API void gpunn_loader_rewind(gpunn_loader *loader)
{
    if (loader) gpunn__loader_move(loader, loader->epoch, 0);
}

GPUNN__INTERNAL void gpunn__loader_state(const gpunn_loader *loader, int64_t *epoch, int64_t *position)
{
    *epoch = loader->epoch;
    *position = loader->position;
}

GPUNN__INTERNAL int64_t gpunn__loader_batch(const gpunn_loader *loader)
{
    return loader->args.batch_size * gpunn_group_size(loader->args.group);
}

/* The batch of this loader that begins where `position` batches of `batch` samples end, or -1 if none
 * does. */
static int64_t gpunn__loader_place(const gpunn_loader *loader, int64_t position, int64_t batch)
{
    const int64_t own = gpunn__loader_batch(loader), count = loader->args.count;
    if (batch == 0 || batch == own) return position;
    if (position > count / batch ||
        (position == count / batch && (count % batch == 0 || loader->args.drop_last)))
        return loader->batches;
    return position * batch % own ? -1 : position * batch / own;
}

GPUNN__INTERNAL GPUNN__STATUS gpunn__loader_set_state(gpunn_loader *loader, int64_t epoch, int64_t position,
                                                      int64_t batch)
{
    const int64_t place = gpunn__loader_place(loader, position, batch);
    if (place < 0)
        return gpunn__fail(
            loader->model->dev, GPUNN_ERR_STATE,
            "the saved loader had read %lld batches of %lld samples on all ranks, where no batch of %lld "
            "begins; load it with another batch size, or save at the end of an epoch",
            (long long)position, (long long)batch, (long long)gpunn__loader_batch(loader));
    if (epoch < 0 || place > loader->batches)
        return gpunn__fail(loader->model->dev, GPUNN_ERR_FORMAT,
                           "the saved loader was at batch %lld of epoch %lld, but this one has %lld batches; "
                           "create it with the data and batch size of the saved run",
                           (long long)place, (long long)epoch, (long long)loader->batches);
    gpunn__loader_move(loader, epoch, place);
    return GPUNN_OK;
}

#undef GPUNN__MONITOR_OPEN
#undef GPUNN__MONITOR_CLOSE
#undef GPUNN__LOCK
#undef GPUNN__UNLOCK
#undef GPUNN__WAIT
#undef GPUNN__WAKE
#undef GPUNN__THREAD_MAIN
#undef GPUNN__THREAD_END
#undef GPUNN__THREAD_START
#undef GPUNN__THREAD_JOIN
