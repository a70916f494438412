/* curves.h - curves of a training in a terminal, 80 columns wide: in braille, or in plain characters where
 * the locale is not UTF-8.
 *
 *     curves loss = {.title = "loss"};
 *     curves_add(&loss, training, validation);      one more step; NAN where there is no such number
 *     curves_show(&loss, 1);                        where standard output (2: stderr) is a terminal
 *
 * and for gpunn_fit, when gpunn.h was included before, its progress bar and, where stderr is a terminal, the
 * loss of all epochs at the end:
 *
 *     gpunn_fit(o, ..., .on_progress = curves_progress, .user = &loss);
 *
 * The curve of the validation is dashed. From CURVES_STEPS steps on, every second one is kept. */
#ifndef CURVES_H
#define CURVES_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <io.h>
#else
#include <unistd.h>
#endif

enum { CURVES_STEPS = 512, CURVES_WIDE = 66, CURVES_HIGH = 12 }; /* in cells of 2 x 4 dots */

typedef struct curves {
    const char *title;
    long        each; /* steps from one of curves_add to the next, for the axis; 0: 1 */
    float       value[2][CURVES_STEPS], last[2]; /* training, validation */
    int         steps;                           /* of value */
    long        added, skipped; /* skipped: behind each step of value, how many are left out */
} curves;

/* Dots of each cell, as bits of a braille character. */
typedef unsigned char curves__dots[2][CURVES_HIGH][CURVES_WIDE];

static inline void curves_add(curves *c, float training, float validation)
{
    if (c->steps == CURVES_STEPS) {
        for (int i = 0; i < CURVES_STEPS; i += 2)
            for (int k = 0; k < 2; k++) c->value[k][i / 2] = c->value[k][i];
        c->steps /= 2;
        c->skipped = 2 * c->skipped + 1;
    }
    c->last[0] = training;
    c->last[1] = validation;
    if (c->added++ % (c->skipped + 1) != 0) return;
    for (int k = 0; k < 2; k++) c->value[k][c->steps] = c->last[k];
    c->steps++;
}

/* The least and the largest number; false: there is none. */
static inline bool curves__range(const curves *c, float *low, float *high)
{
    *low = INFINITY;
    *high = -INFINITY;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < c->steps; i++) {
            if (!isfinite(c->value[k][i])) continue;
            *low = fminf(*low, c->value[k][i]);
            *high = fmaxf(*high, c->value[k][i]);
        }
    if (*low == *high) *high = *low + 1;
    return *low < *high;
}

/* The curve's number at a column of dots, on the line between its neighbours. */
static inline float curves__at(const curves *c, int k, int x)
{
    const float place = (float)x * (float)(c->steps - 1) / (2 * CURVES_WIDE - 1);
    const int   i = (int)place, next = i + 1 < c->steps ? i + 1 : i;
    return c->value[k][i] + (place - (float)i) * (c->value[k][next] - c->value[k][i]);
}

static inline void curves__draw(const curves *c, int k, float low, float high, curves__dots dots)
{
    static const unsigned char bit[4][2] = {{1, 8}, {2, 16}, {4, 32}, {64, 128}};
    int                        before = -1;
    for (int x = 0; x < 2 * CURVES_WIDE; x++) {
        const float value = curves__at(c, k, x);
        const int row = isfinite(value) ? (int)((high - value) / (high - low) * (4 * CURVES_HIGH - 1) + 0.5f)
                                        : -1;
        int       y = before < 0 ? row : before + (row > before) - (row < before);
        before = row;
        if (row < 0 || (k == 1 && x % 6 > 2)) continue; /* a gap of the dashed line */
        for (;; y += (row > y) - (row < y)) {
            dots[k][y / 4][x / 2] |= bit[y % 4][x % 2];
            if (y == row) break;
        }
    }
}

static inline bool curves__utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"}; /* the first one that is set decides */
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        if (value && *value) return strstr(value, "UTF-8") || strstr(value, "utf8");
    }
    return false;
}

static inline void curves__row(FILE *file, curves__dots dots, int row, bool utf8)
{
    for (int x = 0; x < CURVES_WIDE; x++) {
        const int training = dots[0][row][x], both = training | dots[1][row][x];
        if (both == 0 || !utf8)
            (void)fputc(both == 0 ? ' ' : training ? '*' : 'o', file);
        else
            (void)fprintf(file, "\xE2%c%c", 0xA0 | both >> 6, 0x80 | (both & 63)); /* U+2800 and the dots */
    }
    (void)fputc('\n', file);
}

static inline void curves__legend(const curves *c, FILE *file, bool utf8)
{
    static const char *const mark[2][2] = {
        {"*", "o"}, {"\xE2\xA0\x92\xE2\xA0\x92", "\xE2\xA0\x92 \xE2\xA0\x92"}}; /* U+2812 */
    const char *title = c->title ? c->title : "loss";
    (void)fprintf(file, "\n%.20s  %s training %.4g", title, mark[utf8][0], (double)c->last[0]);
    if (isfinite(c->last[1])) (void)fprintf(file, "  %s validation %.4g", mark[utf8][1], (double)c->last[1]);
    (void)fputc('\n', file);
}

/* Nothing before the second step. */
static inline void curves_print(const curves *c, FILE *file)
{
    curves__dots dots = {{{0}}};
    const bool   utf8 = curves__utf8();
    const long   each = c->each ? c->each : 1;
    float        low, high;
    if (c->steps < 2 || !curves__range(c, &low, &high)) return;
    for (int k = 0; k < 2; k++) curves__draw(c, k, low, high, dots);
    curves__legend(c, file, utf8);
    for (int row = 0; row < CURVES_HIGH; row++) {
        if (row % (CURVES_HIGH - 1) == 0)
            (void)fprintf(file, "%10.4g |", (double)(row ? low : high));
        else
            (void)fprintf(file, "%12s", "|");
        curves__row(file, dots, row, utf8);
    }
    (void)fprintf(file, "%13ld%*ld\n\n", each, CURVES_WIDE - 1, c->added * each);
}

static inline void curves_show(const curves *c, int descriptor)
{
#ifdef _WIN32
    const bool terminal = _isatty(descriptor) != 0;
#else
    const bool terminal = isatty(descriptor) != 0;
#endif
    if (terminal) curves_print(c, descriptor == 1 ? stdout : stderr);
}

#ifdef GPUNN_H
/* An on_progress, whose user is a curves. */
static inline bool curves_progress(void *user, const gpunn_progress *p)
{
    curves    *c = (curves *)user;
    const bool good = gpunn_progress_bar(NULL, p);
    if (!p->epoch_done) return good;
    curves_add(c, p->loss, p->validation_loss);
    if (p->epoch == p->epochs || p->stopped_early) curves_show(c, 2);
    return good;
}
#endif

#endif
