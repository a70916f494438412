/* Prints columns of a CSV file, read in the user's locale, or what is wrong with it: table FILE NAME...
 * [@CLASS]. The column CLASS becomes labels, and the names of the classes follow. */
#include "../../examples/csv.h"

#include <locale.h>

int main(int argc, char **argv)
{
    text_error  error;
    size_t      bytes, rows = 0, classes = 0;
    const char *of = argc > 2 && argv[argc - 1][0] == '@' ? argv[argc - 1] + 1 : NULL;
    const int   columns = argc - 2 - (of != NULL);
    char      **names = NULL;
    float      *table = NULL;
    int64_t    *label = NULL;
    if (argc < 3) return 2;
    (void)setlocale(LC_ALL, "");
    char *text = text_read(argv[1], 1 << 24, &bytes, &error);
    char *same = text_read(argv[1], 1 << 24, &bytes, &error);
    bool  good = text && same;
    if (good && columns)
        good = (table = csv_floats(text, (const char *const *)argv + 2, columns, &rows, &error)) != NULL;
    if (good && of) good = (label = csv_classes(text, of, &names, &classes, &rows, &error)) != NULL;
    (void)setlocale(LC_ALL, "C");
    for (size_t i = 0; good && i < rows; i++) {
        for (size_t j = 0; j < (size_t)columns; j++)
            printf("%s%.9g", j ? " " : "", (double)table[i * (size_t)columns + j]);
        if (of) printf(" %lld", (long long)label[i]);
        printf("\n");
    }
    for (size_t i = 0; i < classes; i++) printf("%s\n", names[i]);
    if (!good) fprintf(stderr, "%s\n", error.text);
    if (text && same && strcmp(text, same) != 0) fprintf(stderr, "the text is changed\n");
    free(table);
    free(label);
    free(names);
    free(same);
    free(text);
    return good ? 0 : 1;
}
