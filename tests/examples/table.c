/* Prints the named columns of a CSV file, read in the user's locale, or what is wrong with it: table FILE
 * NAME... */
#include "../../examples/csv.h"

#include <locale.h>

int main(int argc, char **argv)
{
    text_error error;
    size_t     bytes, rows = 0;
    const int  columns = argc - 2;
    if (columns < 1) return 2;
    (void)setlocale(LC_ALL, "");
    char  *text = text_read(argv[1], 1 << 24, &bytes, &error);
    float *table = text ? csv_floats(text, (const char *const *)argv + 2, columns, &rows, &error) : NULL;
    (void)setlocale(LC_ALL, "C");
    for (size_t i = 0; i < rows * (size_t)columns; i++)
        printf("%.9g%c", (double)table[i], (i + 1) % (size_t)columns ? ' ' : '\n');
    if (table == NULL) fprintf(stderr, "%s\n", error.text);
    free(table);
    free(text);
    return table ? 0 : 1;
}
