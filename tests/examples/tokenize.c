/* tokenize.c - prints the pieces that examples/tokenizer.h makes of texts, for test_tokenizer.py.
 *
 *     tokenize cased|uncased VOCAB.TXT TEXTS          or          tokenize bpe VOCAB.JSON MERGES.TXT [TOKENIZER.JSON] TEXTS
 *
 * TEXTS holds texts one after another, each behind its length as four bytes. Prints a line for each, "id:start:end ...". */
#include "../../examples/tokenizer.h"

static bool print(const tokenizer *t, const char *text, size_t bytes)
{
    token_list list = {0};
    bool       good = tokenizer_encode(t, text, bytes, &list);
    for (size_t i = 0; good && i < list.count; i++) {
        const token *token = &list.items[i];
        printf("%s%d:%zu:%zu", i ? " " : "", token->id, token->start, token->end);
    }
    puts("");
    token_list_free(&list);
    return good;
}

int main(int argc, char **argv)
{
    text_error error = {
        "usage: tokenize cased|uncased VOCAB.TXT TEXTS, or tokenize bpe VOCAB.JSON MERGES.TXT [TOKENIZER.JSON] TEXTS"};
    tokenizer *t = NULL;
    size_t     bytes = 0;
    if (argc == 4)
        t = tokenizer_wordpiece(argv[2], strcmp(argv[1], "uncased") == 0, &error);
    else if (argc == 5 || argc == 6)
        t = tokenizer_bpe(argv[2], argv[3], &error);
    bool  split = t && (argc < 6 || tokenizer_read_split(t, argv[4], &error));
    char *texts = split ? text_read(argv[argc - 1], (size_t)1 << 30, &bytes, &error) : NULL;
    bool  good = texts != NULL;
    for (size_t at = 0; good && at + 4 <= bytes;) {
        uint32_t length;
        memcpy(&length, texts + at, sizeof length);
        at += sizeof length;
        good = length <= bytes - at ? print(t, texts + at, length) : text_fail(&error, "the texts end too early");
        at += length;
    }
    if (!good) fprintf(stderr, "%s\n", error.text);
    free(texts);
    tokenizer_free(t);
    return good ? 0 : 1;
}
