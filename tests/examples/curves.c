/* Prints the curves of numbers from standard input, two a line: curves [EACH] < FILE */
#include "../../examples/curves.h"

int main(int argc, char **argv)
{
    curves c = {.title = "loss", .each = argc > 1 ? atol(argv[1]) : 0};
    for (float training, validation; scanf("%f %f", &training, &validation) == 2;)
        curves_add(&c, training, validation);
    curves_print(&c, stdout);
    return 0;
}
