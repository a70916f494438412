/* options.h - an example's command line: a table that says how each option is written and what it sets. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "gpunn.h"

#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <direct.h>
#else
#include <sys/stat.h>
#endif

typedef struct option { /* sets one of text, number, real, choice and flag */
    /* With its value: "--text FILE", "--cell lstm|gru". "MODEL.json" is an operand, which has no option
     * before it. */
    const char *name;
    /* one line; --help shows the default behind it: of text, number, real and choice, where not 0 */
    const char  *help;
    const char **text;
    int         *number;
    float       *real;
    int         *choice;          /* which of the words the value is, from 0 on */
    bool        *flag;            /* takes no value */
    double       lowest, highest; /* that number and real may be; highest 0: no limit */
    bool         written;         /* text is a file that the program writes in the end */
} option;

static inline void options__usage(FILE *file, const char *program, const option *known, size_t count)
{
    int column = fprintf(file, "usage: %s", program);
    for (size_t i = 0; i < count; i++) {
        if (column + (int)strlen(known[i].name) > 105) column = fprintf(file, "\n      ");
        column += fprintf(file, " [%s]", known[i].name);
    }
    fputc('\n', file);
}

static inline void options__default(const option *o)
{
    if (o->text && *o->text && **o->text) printf(" [%s]", *o->text);
    if (o->number && *o->number > 0) printf(" [%d]", *o->number);
    if (o->real && *o->real > 0) printf(" [%g]", (double)*o->real);
    if (o->choice) {
        const char *word = strchr(o->name, ' ') + 1;
        for (int i = 0; i < *o->choice; i++) word = strchr(word, '|') + 1;
        printf(" [%.*s]", (int)strcspn(word, "|"), word);
    }
}

/* All that --help says. The explanation of a long name begins on the next line. */
static inline void options__explain(const char *program, const option *known, size_t count)
{
    enum { LONGEST = 40 };
    int width = 0;
    for (size_t i = 0; i < count; i++) {
        const int length = (int)strlen(known[i].name);
        if (width < length && length <= LONGEST) width = length;
    }
    options__usage(stdout, program, known, count);
    for (size_t i = 0; i < count; i++) {
        const bool is_long = strlen(known[i].name) > LONGEST;
        if (is_long) printf("  %s\n", known[i].name);
        printf("  %-*s  %s", width, is_long ? "" : known[i].name, known[i].help);
        options__default(&known[i]);
        printf("\n");
    }
}

/* Says what is wrong and how the program is called, and ends it with status 2. */
static inline void options_fail(const char *program, const option *known, size_t count, const char *format,
                                ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s: ", program);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    options__usage(stderr, program, known, count);
    exit(2);
}

/* Which of the words between bars the value is; -1: none. */
static inline int options__choice(const char *words, const char *value)
{
    size_t length = strlen(value);
    for (int i = 0;; i++) {
        size_t word = strcspn(words, "|");
        if (word == length && memcmp(words, value, length) == 0) return i;
        if (words[word] == 0) return -1;
        words += word + 1;
    }
}

/* Whether the file can be written, which is left as it is: better known before the work than after it. */
static inline bool options_can_write(const char *path)
{
    FILE *there = fopen(path, "rb"), *file = fopen(path, "ab");
    if (there) fclose(there);
    if (file) fclose(file);
    if (file && there == NULL) (void)remove(path);
    return file != NULL;
}

/* Makes a folder. Where it is there already or cannot be made, that shows when a file is written. */
static inline void options_mkdir(const char *path)
{
#ifdef _WIN32
    (void)_mkdir(path);
#else
    (void)mkdir(path, 0777);
#endif
}

/* The folder for a program's results, made where there is none; false, and said why, where nothing can be
 * written there. */
static inline bool options_make_folder(const char *program, const char *path)
{
    char file[1024];
    options_mkdir(path);
    if (snprintf(file, sizeof file, "%s/%s", path, ".written") < (int)sizeof file && options_can_write(file))
        return true;
    fprintf(stderr, "%s: --out: the folder '%s' cannot be written; choose another\n", program, path);
    return false;
}

/* false: it cannot take the value. */
static inline bool options__set(const option *o, const char *value)
{
    char *end = NULL;
    if (o->text) {
        *o->text = value;
        return true;
    }
    if (o->choice) {
        *o->choice = options__choice(strchr(o->name, ' ') + 1, value);
        return *o->choice >= 0;
    }
    double most = o->highest > 0 ? o->highest : o->number ? INT_MAX : 1e30;
    double x = o->number ? (double)strtoll(value, &end, 10) : gpunn_strtod(value, &end);
    if (end == value || *end || !(x >= o->lowest && x <= most)) return false;
    if (o->number)
        *o->number = (int)x;
    else
        *o->real = (float)x;
    return true;
}

/* Reads all arguments or ends the program: with the usage and status 2, or, asked for by --help, 0; with 1
 * where a file cannot be written. */
static inline void options_read(const option *known, size_t count, int argc, char **argv)
{
    size_t operand = 0;
    for (int i = 1; i < argc; i++) /* first of all: the defaults are as they were */
        if (strcmp(argv[i], "--help") == 0) {
            options__explain(argv[0], known, count);
            exit(0);
        }
    for (int i = 1; i < argc; i++) {
        const option *o = known;
        if (argv[i][0] != '-') {
            while (operand < count && known[operand].name[0] == '-') operand++;
            if (operand == count) options_fail(argv[0], known, count, "unexpected argument '%s'", argv[i]);
            *known[operand++].text = argv[i];
            continue;
        }
        size_t length = strlen(argv[i]);
        while (o < known + count && (strncmp(o->name, argv[i], length) != 0 || !strchr(" ", o->name[length])))
            o++;
        if (o == known + count) options_fail(argv[0], known, count, "there is no option %s", argv[i]);
        if (o->flag) {
            *o->flag = true;
            continue;
        }
        if (++i == argc) options_fail(argv[0], known, count, "%s lacks its value", argv[i - 1]);
        if (o->written && !options_can_write(argv[i])) {
            fprintf(stderr, "%s: %s: '%s' cannot be written; check the folder\n", argv[0], argv[i - 1],
                    argv[i]);
            exit(1);
        }
        if (options__set(o, argv[i])) continue;
        if (o->choice) options_fail(argv[0], known, count, "%s: there is no '%s'", o->name, argv[i]);
        char limit[32] = "on";
        if (o->highest > 0) snprintf(limit, sizeof limit, "to %g", o->highest);
        options_fail(argv[0], known, count, "%s is '%s', but takes a %snumber from %g %s", argv[i - 1],
                     argv[i], o->number ? "whole " : "", o->lowest, limit);
    }
}

#endif
