#ifndef GPUNN__GRAPH_EXPR_H
#define GPUNN__GRAPH_EXPR_H
#include "graph/arguments.h"
#include "graph/tensors.h"

/* ==== >>graph/expr ======================================================================================= *
 * gpunn_expr: a recursive-descent parser that appends nodes while it reads. The grammar is
 *     formula    = {name "=" choice ";"} choice
 *     choice     = any ["if" any "else" choice]
 *     any        = all {"or" all}
 *     all        = inverse {"and" inverse}
 *     inverse    = "not" inverse | comparison
 *     comparison = sum {("<" | "<=" | ">" | ">=" | "==" | "!=") sum}
 *     sum        = product {("+" | "-") product}
 *     product    = sign {("*" | "/") sign}
 *     sign       = "-" sign | (number | name | name "(" argument {"," argument} ")" | "(" choice ")") ["**"
 *     sign] argument   = choice | choice ":" | "keepdim" "=" choice
 * Numbers are folded. A number that meets a tensor becomes an attribute if that changes no bit, otherwise a
 * scalar constant. If a number decides (if, and, or), the branch not taken is parsed but adds no node.
 * Derivatives share nodes that depend on x and y alone, such as tanh's 1 - y * y. A value multiplied by
 * itself becomes a square. */
enum { GPUNN__EXPR_LENGTH = 4096, GPUNN__EXPR_DEPTH = 64, GPUNN__EXPR_ARGS = 8, GPUNN__EXPR_NAMES = 64 };

typedef struct gpunn__term {
    gpunn_tensor *tensor; /* NULL: the term is the number */
    double        number;
} gpunn__term;

typedef struct gpunn__formula {
    gpunn__call         call;
    const char         *text, *at;
    int                 depth, name_count;
    int                 dry;      /* > 0: add no nodes; a node's place is taken by any tensor */
    bool                quiet;    /* record no errors */
    const gpunn_tensor *gradient; /* in a derivative: its g; else NULL */
    struct {
        const char *text;
        size_t      length;
        gpunn__term term;
    } names[GPUNN__EXPR_NAMES]; /* the later of two equal names wins */
} gpunn__formula;

/* Copies the first `length` bytes of a text, as far as they fit, without control characters. */
GPUNN__INTERNAL void gpunn__expr_quote(char *out, size_t size, const char *text, size_t length);

/* Defines a name for a number; false on an error. */
GPUNN__INTERNAL bool gpunn__expr_add_number(gpunn__formula *f, const char *name, double number);

/* Defines a name for a tensor, or with t NULL for an absent one; false on an error. */
GPUNN__INTERNAL bool gpunn__expr_add_tensor(gpunn__formula *f, const char *name, gpunn_tensor *t);

/* Starts a formula without any names. */
GPUNN__INTERNAL bool gpunn__expr_open(gpunn__formula *f, const char *expression);

/* Parses and builds a formula whose names have been defined. NULL on an error. */
GPUNN__INTERNAL gpunn_tensor *gpunn__expr_value(gpunn__formula *f);

/* Builds a formula. The operands `args` are named by names or, if that is NULL, x y z and x0 to x7; numbers
 * have the names number_names. g: gradient of the result, if the formula is a derivative, which reads it as
 * g; NULL: it is none. Returns NULL on an error. */
GPUNN__INTERNAL gpunn_tensor *gpunn__expr(const char *expression, const char *const *names,
                                          gpunn_tensor *const *args, int arg_count,
                                          const char *const *number_names, const double *numbers,
                                          int number_count, gpunn_tensor *g);

#endif /* GPUNN__GRAPH_EXPR_H */
