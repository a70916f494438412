#ifndef GPUNN__GRAPH_EXPR_H
#define GPUNN__GRAPH_EXPR_H
#include "graph/arguments.h"
#include "graph/tensors.h"

/* ==== >>graph/expr ================================================================================================= *
 * gpunn_expr: a recursive descent over
 *     formula    = {name "=" choice ";"} choice
 *     choice     = any ["if" any "else" choice]
 *     any        = all {"or" all}
 *     all        = inverse {"and" inverse}
 *     inverse    = "not" inverse | comparison
 *     comparison = sum {("<" | "<=" | ">" | ">=" | "==" | "!=") sum}
 *     sum        = product {("+" | "-") product}
 *     product    = sign {("*" | "/") sign}
 *     sign       = "-" sign | (number | name | name "(" argument {"," argument} ")" | "(" choice ")") ["**" sign]
 *     argument   = choice | choice ":" | "keepdim" "=" choice
 * that appends nodes as it goes. Numbers are folded; one that meets a tensor becomes an attribute where that changes no bit, and
 * a scalar constant elsewhere. Where a number decides (if, and, or), what is not taken is read but adds no node. Derivatives
 * share what they make of x and y alone, such as tanh's 1 - y * y, and square what is multiplied by itself. */
enum { GPUNN__EXPR_LENGTH = 4096, GPUNN__EXPR_DEPTH = 64, GPUNN__EXPR_ARGS = 8, GPUNN__EXPR_NAMES = 64 };

typedef struct gpunn__term {
    gpunn_tensor *tensor; /* NULL: the number */
    double        number;
} gpunn__term;

typedef struct gpunn__formula {
    gpunn__call         call;
    const char         *text, *at;
    int                 depth, name_count;
    int                 dry;      /* above 0: add no nodes; what would be one is some tensor */
    bool                quiet;    /* record no errors */
    const gpunn_tensor *gradient; /* of a derivative, its g; else NULL */
    struct {
        const char *text;
        size_t      length;
        gpunn__term term;
    } names[GPUNN__EXPR_NAMES]; /* of two equal ones the later counts */
} gpunn__formula;

/* The first `length` bytes of a text, as far as they fit, without control characters. */
GPUNN__INTERNAL void gpunn__expr_quote(char *out, size_t size, const char *text, size_t length);

GPUNN__INTERNAL bool gpunn__expr_add_number(gpunn__formula *f, const char *name, double number);

/* A tensor, or NULL for one that is left out. */
GPUNN__INTERNAL bool gpunn__expr_add_tensor(gpunn__formula *f, const char *name, gpunn_tensor *t);

/* Opens a formula that knows no operand yet. */
GPUNN__INTERNAL bool gpunn__expr_open(gpunn__formula *f, const char *expression);

/* The value of a formula whose names are known. */
GPUNN__INTERNAL gpunn_tensor *gpunn__expr_value(gpunn__formula *f);

/* Of the operands `args`, called names or (NULL) x y z and x0 to x7, and numbers that have names. g: of a derivative, which calls
 * it so; NULL: it is none. */
GPUNN__INTERNAL gpunn_tensor *gpunn__expr(const char *expression, const char *const *names, gpunn_tensor *const *args,
                                          int arg_count, const char *const *number_names, const double *numbers, int number_count,
                                          gpunn_tensor *g);

#endif /* GPUNN__GRAPH_EXPR_H */
