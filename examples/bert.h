/* bert.h - BERT and RoBERTa for bert_qa.c and roberta_classify.c: config.json, the encoder with Hugging
 * Face's names, weights. Include it behind gpunn.h. */
#ifndef BERT_H
#define BERT_H

#include "json.h"

#include <time.h>

typedef struct bert_config {
    char  model_type[16]; /* "bert" or "roberta": what the names of the weights begin with */
    int   vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size;
    int   max_position_embeddings, type_vocab_size, pad_token_id, num_labels;
    float layer_norm_eps, hidden_dropout_prob, attention_probs_dropout_prob;
} bert_config;

enum { BERT_TINY, BERT_BASE, BERT_LARGE }; /* sizes; the tiny one is for trying things out */
#define BERT_SIZES "tiny|base|large"

static inline void bert_preset(const char *model_type, int size, bert_config *c)
{
    static const struct {
        int hidden, layers, heads;
    } sizes[] = {{128, 2, 2}, {768, 12, 12}, {1024, 24, 16}};
    bool roberta = strcmp(model_type, "roberta") == 0;
    *c = (bert_config){.vocab_size = roberta ? 50265 : 30522,
                       .hidden_size = sizes[size].hidden,
                       .num_hidden_layers = sizes[size].layers,
                       .num_attention_heads = sizes[size].heads,
                       .intermediate_size = 4 * sizes[size].hidden,
                       .max_position_embeddings = roberta ? 514 : 512,
                       .type_vocab_size = roberta ? 1 : 2,
                       .pad_token_id = roberta,
                       .num_labels = 2,
                       .layer_norm_eps = roberta ? 1e-5f : 1e-12f,
                       .hidden_dropout_prob = 0.1f,
                       .attention_probs_dropout_prob = 0.1f};
    (void)snprintf(c->model_type, sizeof c->model_type, "%s", model_type);
}

static inline float bert__share(json *j, const char *key)
{
    double value = json_number(j);
    if (!j->failed && !(value >= 0 && value < 1)) {
        char what[128];
        (void)snprintf(what, sizeof what, "'%s' is %g, not between 0 and 1", key, value);
        json_fail(j, what);
    }
    return (float)value;
}

/* A config.json of the model type; what it leaves out is as in the base model. */
static inline bool bert_read_config(const char *path, const char *model_type, bert_config *c,
                                    text_error *error)
{
    size_t bytes;
    char  *text = text_read(path, (size_t)1 << 20, &bytes, error), *key, *word;
    json   j = json_begin(path, text, error);
    bert_preset(model_type, BERT_BASE, c);
    struct {
        const char *key;
        int        *value, lowest, highest;
    } numbers[] = {{"vocab_size", &c->vocab_size, 1, 1 << 22},
                   {"hidden_size", &c->hidden_size, 1, 1 << 14},
                   {"num_hidden_layers", &c->num_hidden_layers, 1, 1 << 10},
                   {"num_attention_heads", &c->num_attention_heads, 1, 1 << 14},
                   {"intermediate_size", &c->intermediate_size, 1, 1 << 16},
                   {"max_position_embeddings", &c->max_position_embeddings, 1, 1 << 20},
                   {"type_vocab_size", &c->type_vocab_size, 1, 1 << 10},
                   {"pad_token_id", &c->pad_token_id, 0, 1 << 22},
                   {"num_labels", &c->num_labels, 1, 1 << 16}};
    if (text && json_object(&j)) {
        while ((key = json_key(&j, NULL)) != NULL) {
            size_t i = 0;
            while (i < sizeof numbers / sizeof *numbers && strcmp(numbers[i].key, key) != 0) i++;
            if (json_null(&j)) continue;
            if (i < sizeof numbers / sizeof *numbers) {
                *numbers[i].value = json_int(&j, key, numbers[i].lowest, numbers[i].highest);
            } else if (strcmp(key, "layer_norm_eps") == 0) {
                c->layer_norm_eps = bert__share(&j, key);
            } else if (strcmp(key, "hidden_dropout_prob") == 0) {
                c->hidden_dropout_prob = bert__share(&j, key);
            } else if (strcmp(key, "attention_probs_dropout_prob") == 0) {
                c->attention_probs_dropout_prob = bert__share(&j, key);
            } else if (strcmp(key, "id2label") == 0 && json_object(&j)) {
                for (c->num_labels = 0; json_key(&j, NULL) != NULL; c->num_labels++) json_skip(&j);
            } else if (strcmp(key, "model_type") == 0) {
                if ((word = json_string(&j, NULL)) != NULL && strcmp(word, model_type) != 0)
                    json_fail(&j, "'model_type' is of another kind of model");
            } else if (strcmp(key, "hidden_act") == 0) {
                if ((word = json_string(&j, NULL)) != NULL && strcmp(word, "gelu") != 0)
                    json_fail(&j, "'hidden_act' is not \"gelu\"");
            } else if (strcmp(key, "position_embedding_type") == 0) {
                if ((word = json_string(&j, NULL)) != NULL && strcmp(word, "absolute") != 0)
                    json_fail(&j, "'position_embedding_type' is not \"absolute\"");
            } else {
                json_skip(&j);
            }
        }
    }
    bool good = json_end(&j);
    free(text);
    if (good && c->hidden_size % c->num_attention_heads)
        good = text_fail(error, "%s: hidden_size %d is not a multiple of num_attention_heads %d", path,
                         c->hidden_size, c->num_attention_heads);
    return good;
}

/* Positions that a text may have: RoBERTa counts them from behind the padding's. */
static inline int bert_max_length(const bert_config *c)
{
    bool roberta = strcmp(c->model_type, "roberta") == 0;
    return c->max_position_embeddings - (roberta ? c->pad_token_id + 1 : 0);
}

/* The length of a model's texts, which varies up to `most`, in steps of 8 where that is one: few lengths are
 * few plans, and products of whole vectors. */
static inline int64_t bert_length(gpunn_model *model, int most)
{
    return gpunn_size(model, "length", .max = most, .multiple = most % 8 ? 1 : 8);
}

/* The same of a text with so many tokens. */
static inline int bert_padded(int tokens, int most)
{
    return most % 8 ? tokens : (tokens + 7) / 8 * 8;
}

/* Whether the vocabulary may be the model's: of one size, or the model's rounded up to a multiple of 8. */
static inline bool bert_fits(const bert_config *c, int pieces, const char *name, text_error *error)
{
    int spare = c->vocab_size - pieces;
    return spare == 0 || (spare > 0 && spare < 128 && c->vocab_size % 8 == 0) ||
           text_fail(error,
                     "'%s' has %d pieces, but the model's vocab_size is %d; they do not belong together",
                     name, pieces, c->vocab_size);
}

static inline gpunn_tensor *bert__linear(gpunn_tensor *x, const char *layer, const char *name, int out)
{
    char full[160];
    (void)snprintf(full, sizeof full, "%s.%s", layer, name);
    return gpunn_linear(x, full, .out_features = out);
}

static inline gpunn_tensor *bert__norm(gpunn_tensor *x, const char *layer, const char *name, float eps)
{
    char full[160];
    (void)snprintf(full, sizeof full, "%s.%s.LayerNorm", layer, name);
    return gpunn_layer_norm(x, full, .eps = eps);
}

/* layer_norm(x + attention(x)), then layer_norm(that + feed-forward(that)); x [n, length, hidden]. */
static inline gpunn_tensor *bert__layer(const bert_config *c, const char *name, gpunn_tensor *x,
                                        gpunn_tensor *mask, int64_t length)
{
    int           hidden = c->hidden_size, heads = c->num_attention_heads;
    gpunn_shape   apart = GPUNN_SHAPE(GPUNN_BATCH, length, heads, hidden / heads);
    gpunn_tensor *q = gpunn_reshape(bert__linear(x, name, "attention.self.query", hidden), apart);
    gpunn_tensor *k = gpunn_reshape(bert__linear(x, name, "attention.self.key", hidden), apart);
    gpunn_tensor *v = gpunn_reshape(bert__linear(x, name, "attention.self.value", hidden), apart);
    gpunn_tensor *h = gpunn_scaled_dot_product_attention(
        q, k, v, .mask = mask, .dropout_p = c->attention_probs_dropout_prob, .heads_last = true);
    h = gpunn_reshape(h, GPUNN_SHAPE(GPUNN_BATCH, length, hidden));
    h = gpunn_dropout(bert__linear(h, name, "attention.output.dense", hidden), c->hidden_dropout_prob);
    x = bert__norm(gpunn_add(h, x), name, "attention.output", c->layer_norm_eps);
    h = gpunn_gelu(bert__linear(x, name, "intermediate.dense", c->intermediate_size));
    h = gpunn_dropout(bert__linear(h, name, "output.dense", hidden), c->hidden_dropout_prob);
    return bert__norm(gpunn_add(h, x), name, "output", c->layer_norm_eps);
}

/* tokens I64 [n, length] -> [n, length, hidden]. types: I64 [n, length], the segment of each; NULL: all are
 * of the first. mask: BOOL [n, 1, 1, length], false for padding, which stands at the end. length: a number,
 * or a gpunn_size. */
static inline gpunn_tensor *bert_encoder(const bert_config *c, gpunn_model *model, gpunn_tensor *tokens,
                                         gpunn_tensor *types, gpunn_tensor *mask, int64_t length)
{
    char             name[128];
    const char      *type = c->model_type;
    const gpunn_init normal = {GPUNN_INIT_NORMAL, 0, 0.02f};
    int64_t          first = c->max_position_embeddings - bert_max_length(c);
    (void)snprintf(name, sizeof name, "%s.embeddings.word_embeddings", type);
    gpunn_tensor *x = gpunn_embedding(tokens, name, .num_embeddings = c->vocab_size,
                                      .embedding_dim = c->hidden_size,
                                      .padding_idx = c->pad_token_id ? c->pad_token_id : GPUNN_ZERO);
    (void)snprintf(name, sizeof name, "%s.embeddings.position_embeddings.weight", type);
    gpunn_tensor *places = gpunn_parameter(model, name,
                                           GPUNN_SHAPE(c->max_position_embeddings, c->hidden_size), normal);
    places = gpunn_slice(gpunn_slice(places, 0, first, c->max_position_embeddings, 1), 0, 0, length, 1);
    (void)snprintf(name, sizeof name, "%s.embeddings.token_type_embeddings%s", type, types ? "" : ".weight");
    gpunn_tensor *kinds = types ? gpunn_embedding(types, name, .num_embeddings = c->type_vocab_size,
                                                  .embedding_dim = c->hidden_size)
                                : gpunn_parameter(model, name,
                                                  GPUNN_SHAPE(c->type_vocab_size, c->hidden_size), normal);
    if (types == NULL) kinds = gpunn_slice(kinds, 0, 0, 1, 1);
    x = gpunn_add(gpunn_add(x, kinds), places);
    x = gpunn_dropout(bert__norm(x, type, "embeddings", c->layer_norm_eps), c->hidden_dropout_prob);
    for (int i = 0; i < c->num_hidden_layers; i++) {
        (void)snprintf(name, sizeof name, "%s.encoder.layer.%d", type, i);
        x = bert__layer(c, name, x, mask, length);
    }
    return x;
}

/* BERT's initial weights: N(0, 0.02), biases 0. */
static inline gpunn_status bert_init(gpunn_model *model)
{
    gpunn_status status = GPUNN_OK;
    for (int i = 0; i < gpunn_parameter_count(model) && status == GPUNN_OK; i++) {
        gpunn_tensor *t = gpunn_parameter_at(model, i);
        const char   *end = strrchr(gpunn_tensor_name(t), '.');
        if (gpunn_tensor_shape(t).dim[1])
            status = gpunn_set_init(t, (gpunn_init){GPUNN_INIT_NORMAL, 0, 0.02f});
        else if (strcmp(end, ".bias") == 0)
            status = gpunn_set_init(t, (gpunn_init){GPUNN_INIT_ZEROS, 0, 0});
    }
    return status;
}

typedef struct bert__report {
    const char *head; /* weights of the model whose names begin so may be missing */
    int         missing, misshapen, unused, head_missing, old_names;
    char        first[160];
} bert__report;

static inline void bert__mismatch(void *user, const char *line)
{
    bert__report *r = user;
    bool          head = r->head && strncmp(line, r->head, strlen(r->head)) == 0;
    if (strstr(line, ": in the file only")) {
        r->unused++;
    } else if (strstr(line, ": in the model only") && strstr(line, "LayerNorm.")) {
        r->old_names++;
    } else if (head) {
        r->head_missing++;
    } else {
        if (strstr(line, ": in the model only"))
            r->missing++;
        else
            r->misshapen++;
        if (r->missing + r->misshapen == 1) (void)snprintf(r->first, sizeof r->first, "%s", line);
    }
}

/* Checkpoints of 2018 call a layer norm's weight gamma and its bias beta. */
static inline bool bert__load_old_names(gpunn_device *dev, gpunn_model *model, const char *path,
                                        text_error *error)
{
    for (int i = 0; i < gpunn_parameter_count(model); i++) {
        gpunn_tensor *t = gpunn_parameter_at(model, i);
        const char   *name = gpunn_tensor_name(t), *norm = strstr(name, "LayerNorm.");
        char          old[256];
        gpunn_array   array;
        if (norm == NULL) continue;
        (void)snprintf(old, sizeof old, "%.*sLayerNorm.%s", (int)(norm - name), name,
                       strstr(norm, "bias") ? "beta" : "gamma");
        gpunn_status status = gpunn_read_safetensors(dev, path, name, &array);
        if (status == GPUNN_ERR_ARGUMENT) {
            gpunn_clear_error(dev);
            status = gpunn_read_safetensors(dev, path, old, &array);
        }
        if (status == GPUNN_ERR_ARGUMENT)
            return text_fail(error, "'%s' does not fit the model: it has no %s", path, name);
        if (status == GPUNN_OK) status = gpunn_write(t, array.data, array.bytes);
        gpunn_array_free(dev, &array);
        if (status != GPUNN_OK) return text_fail(error, "'%s': %s", path, gpunn_error(dev));
    }
    return true;
}

/* Weights with Hugging Face's names. head: the beginning of names that the file may lack or have in another
 * shape, which then keep their initial values, and *new_head tells; NULL: none. What is in the file only (a
 * pooler, other heads) is left there. */
static inline bool bert_load(gpunn_device *dev, gpunn_model *model, const char *path, const char *head,
                             bool *new_head, text_error *error)
{
    bert__report report = {.head = head};
    if (gpunn_load(model, path, .partial = true, .report = bert__mismatch, .user = &report) != GPUNN_OK)
        return text_fail(error, "%s", gpunn_error(dev));
    if (report.missing || report.misshapen)
        return text_fail(error,
                         "'%s' does not fit the model: %d of its weights are missing there and %d have "
                         "another shape; the first: %s",
                         path, report.missing, report.misshapen, report.first);
    *new_head = report.head_missing > 0;
    return report.old_names == 0 || bert__load_old_names(dev, model, path, error);
}

/* The option, or the folder's file, or where there is no folder NULL. */
static inline const char *bert_path(const char *folder, const char *option, const char *name, char path[1024])
{
    if (option || folder == NULL) return option;
    (void)snprintf(path, 1024, "%s/%s", folder, name);
    return path;
}

static inline double bert_seconds(void)
{
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
