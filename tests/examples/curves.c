/* Prints the curves of numbers from standard input, two a line: curves < FILE */
#include "../../examples/curves.h"

int main(void)
{
    curves c = {.title = "loss"};
    for (float training, validation; scanf("%f %f", &training, &validation) == 2;)
        curves_add(&c, training, validation);
    curves_print(&c, stdout);
    return 0;
}
