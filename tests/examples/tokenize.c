/* tokenize.c - prints the pieces that examples/tokenizer.h makes of texts, for test_tokenizer.py.
 *
 *     tokenize cased|uncased VOCAB.TXT TEXTS    tokenize bpe VOCAB.JSON MERGES.TXT TEXTS    tokenize
 *     json|all|said TOKENIZER.JSON TEXTS
 *
 * TEXTS holds texts one after another, each behind its length as four bytes. Prints a line for each,
 * "id:start:end ...", for json a tab behind it and, in hexadecimal, what they are decoded to, without special
 * tokens; all: with the tokens around a text, decoded too; said: only what they are decoded to. All of it in
 * the user's locale. */
#include "../../examples/tokenizer.h"

#include <locale.h>

static bool print_decoded(const tokenizer *t, const token_list *list, bool skip)
{
    size_t bytes;
    char  *text = tokenizer_decode(t, list->items, list->count, skip, &bytes);
    printf("\t");
    for (size_t i = 0; text && i < bytes; i++) printf("%02x", (unsigned)(unsigned char)text[i]);
    free(text);
    return text != NULL;
}

static bool print(const tokenizer *t, const char *text, size_t bytes, const char *mode)
{
    token_list list = {0};
    const bool all = strcmp(mode, "all") == 0;
    bool good = all ? tokenizer_encode_all(t, text, bytes, &list) : tokenizer_encode(t, text, bytes, &list);
    for (size_t i = 0; good && i < list.count && strcmp(mode, "said") != 0; i++) {
        const token *piece = &list.items[i];
        printf("%s%d:%zu:%zu", i ? " " : "", piece->id, piece->start, piece->end);
    }
    if (all || strcmp(mode, "json") == 0 || strcmp(mode, "said") == 0)
        good = good && print_decoded(t, &list, !all);
    puts("");
    token_list_free(&list);
    return good;
}

static tokenizer *open(int argc, char **argv, text_error *error)
{
    if (argc == 5 && strcmp(argv[1], "bpe") == 0) return tokenizer_bpe(argv[2], argv[3], error);
    if (argc == 4 && strstr(argv[1], "cased"))
        return tokenizer_wordpiece(argv[2], strcmp(argv[1], "uncased") == 0, error);
    if (argc == 4) return tokenizer_json(argv[2], error);
    text_fail(error, "usage: tokenize cased|uncased VOCAB.TXT TEXTS, bpe VOCAB.JSON MERGES.TXT TEXTS, or "
                     "json|all|said TOKENIZER.JSON TEXTS");
    return NULL;
}

int main(int argc, char **argv)
{
    text_error error;
    size_t     bytes = 0;
    (void)setlocale(LC_ALL, "");
    tokenizer *t = open(argc, argv, &error);
    char      *texts = t ? text_read(argv[argc - 1], (size_t)1 << 30, &bytes, &error) : NULL;
    bool       good = texts != NULL;
    for (size_t at = 0; good && at + 4 <= bytes;) {
        uint32_t length;
        memcpy(&length, texts + at, sizeof length);
        at += sizeof length;
        good = length <= bytes - at ? print(t, texts + at, length, argv[1])
                                    : text_fail(&error, "the texts end too early");
        at += length;
    }
    if (!good) fprintf(stderr, "%s\n", error.text);
    free(texts);
    tokenizer_free(t);
    return good ? 0 : 1;
}
