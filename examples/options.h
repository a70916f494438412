/* options.h - an example's command line: a table of the options' names and of what each sets. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct option { /* sets one of text, number, real and flag */
    const char  *name;
    const char **text;
    int         *number;
    int          lowest; /* that number may be */
    float       *real;   /* 0 or more */
    bool        *flag;   /* takes no value */
} option;

static inline bool options__set(const option *o, const char *value)
{
    char *end;
    if (o->text) {
        *o->text = value;
        return true;
    }
    if (o->real) {
        *o->real = strtof(value, &end);
        return end != value && *end == '\0' && *o->real >= 0;
    }
    long number = strtol(value, &end, 10);
    if (end == value || *end || number < o->lowest || number > INT_MAX) return false;
    *o->number = (int)number;
    return true;
}

/* false: an argument is not in the table, lacks its value, or has one that it cannot take. */
static inline bool options_read(const option *known, size_t count, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const option *o = known;
        while (o < known + count && strcmp(o->name, argv[i]) != 0) o++;
        if (o == known + count) return false;
        if (o->flag)
            *o->flag = true;
        else if (i + 1 == argc || !options__set(o, argv[++i]))
            return false;
    }
    return true;
}

#endif
