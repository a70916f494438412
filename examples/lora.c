/* lora.c - fine-tunes a Llama on a text with low-rank adapters (LoRA; Hu et al., 2021), and writes on in its
 * manner.
 *
 * Shows: adapters on some linear layers of a frozen model, which alone have gradients and optimizer states;
 *        frozen weights in 16 bits, or in blocks of 4 to 8 bits; the memory of a training step before it;
 *        gpunn_fit with a validation; adapters in the files of Hugging Face's PEFT.
 * Build: cc -O3 -march=native -I. examples/lora.c -o lora -lm
 *        nvcc -O3 -arch=native -I. examples/lora.c gpunn_cuda.cu -o lora
 * Data:  a folder as llama.c reads it, such as https://huggingface.co/HuggingFaceTB/SmolLM2-135M, or a .gguf,
 *        and a text
 * Run:   ./lora --model FOLDER --text book.txt --precision bf16
 *        ./lora --model FOLDER --text book.txt --weights q4_0        rounds frozen weights to 4.5 bits
 *        ./lora --model FILE.gguf --text book.txt                    reads them where they lie in the file
 *        ./lora --model FOLDER --text book.txt --weights nf4         QLoRA; generator.quantize brings weights
 *                                                  that bitsandbytes has stored
 *        ./lora --model FOLDER --text book.txt --adapter adapter     goes on with an adapter
 *        ./lora --layers "*" --epochs 20 --lr 0.01 --ids "1 2 3"     without a folder: learns to count
 *        ./lora --model FOLDER --weights q4_0 --recompute --plan   only tells the memory
 *        --help explains all options
 * Expect: what the model writes, how much memory a step takes, the loss of each epoch, and what it writes
 *         then. The adapter is in out/adapter: peft.PeftModel.from_pretrained(model, "out/adapter") loads it.
 *         The small model with random weights then goes on from 3 to 20, and again from 1.
 * Time:  less than two seconds on two cores without a folder.
 * Next:  gpunn_lora_merge makes a model without adapters of it; --layers "*_proj" adapts more layers. */
#define LLAMA_WITHOUT_MAIN /* the model, its files and the writing are llama.c's */
#include "llama.c"         /* NOLINT(bugprone-suspicious-include) */

#include "curves.h"

typedef struct lora_options {
    options     llama; /* of the writing */
    const char *text, *layers, *adapter, *out;
    int         rank, epochs, batch, context, weights;
    float       alpha, dropout, lr, validation;
    bool        in_order, plan, recompute;
} lora_options;

/* The network without a cache, for samples of `context` tokens. */
typedef struct tuning {
    llama          l;
    gpunn_tensor  *targets, *loss;
    gpunn_tensor **between; /* [num_hidden_layers + 1]: what each layer reads, and the last's result */
    gpunn_loader  *train, *validation;
    int64_t       *samples; /* [count][context + 1] */
    int64_t        count;
} tuning;

/* ---- the text ------------------------------------------------------------------------------------------ */

/* Numbers between spaces, where there is no vocabulary. */
static bool take_numbers(const llama *l, const char *text, token_list *list)
{
    while (*(text += strspn(text, ", \t\r\n"))) {
        char           *end;
        const long long id = strtoll(text, &end, 10);
        if (end == text || id < 0 || id >= l->c.vocab_size)
            return fail("without a vocabulary the text must be tokens, numbers that the model knows");
        if (!token_list_add(list, (int)id, 0, 0)) return fail("out of memory");
        text = end;
    }
    return true;
}

/* Cuts the tokens into samples, each with one token more than it has inputs. */
static bool cut_samples(tuning *t, const token_list *list, int context)
{
    t->count = (int64_t)list->count / (context + 1);
    if (t->count < 1) return fail("the text is shorter than a sample; give a longer one or --context");
    t->samples = malloc((size_t)(t->count * (context + 1)) * sizeof *t->samples);
    for (int64_t i = 0; t->samples && i < t->count * (context + 1); i++) t->samples[i] = list->items[i].id;
    return t->samples != NULL || fail("out of memory");
}

static bool read_text(tuning *t, const lora_options *o)
{
    static const char counting[] = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 ";
    token_list        list = {0};
    text_error        error;
    size_t            bytes = sizeof counting - 1;
    char             *text = NULL;
    bool              good = true;
    if (o->text && (text = text_read(o->text, (size_t)1 << 30, &bytes, &error)) == NULL)
        return fail(error.text);
    for (int i = 0; good && o->text == NULL && i < 100; i++) good = take_numbers(&t->l, counting, &list);
    if (text && t->l.pieces)
        good = tokenizer_encode_all(t->l.pieces, text, bytes, &list) || fail("out of memory");
    else if (text)
        good = take_numbers(&t->l, text, &list);
    good = good && cut_samples(t, &list, o->context);
    token_list_free(&list);
    free(text);
    return good;
}

/* ---- the network to train ------------------------------------------------------------------------------ */

static gpunn_tensor *heads_in(const llama *l, gpunn_tensor *x, int layer, const char *part, int heads)
{
    const int64_t context = gpunn_tensor_shape(x).dim[1];
    x = linear(x, layer, part, heads * l->c.head_dim, l->c.attention_bias);
    return gpunn_reshape(x, GPUNN_SHAPE(GPUNN_BATCH, context, heads, l->c.head_dim));
}

/* As llama.c's attend, of whole samples and without a cache. */
static gpunn_tensor *attend_all(const llama *l, gpunn_tensor *x, int layer)
{
    const config *c = &l->c;
    gpunn_tensor *q = heads_in(l, x, layer, "self_attn.q_proj", c->num_attention_heads);
    gpunn_tensor *k = heads_in(l, x, layer, "self_attn.k_proj", c->num_key_value_heads);
    gpunn_tensor *v = heads_in(l, x, layer, "self_attn.v_proj", c->num_key_value_heads);
    q = turned(l, q, layer, "self_attn.q_norm");
    k = turned(l, k, layer, "self_attn.k_norm");
    gpunn_tensor *y = gpunn_scaled_dot_product_attention(q, k, v, .is_causal = true, .enable_gqa = true,
                                                         .scale = attention_scale(c), .heads_last = true);
    y = gpunn_reshape(
        y, GPUNN_SHAPE(GPUNN_BATCH, gpunn_tensor_shape(x).dim[1], c->num_attention_heads * c->head_dim));
    return linear(y, layer, "self_attn.o_proj", c->hidden_size, c->output_bias);
}

/* The choice of --weights, whose formats are in the order of GPUNN_BLOCK_LIST. */
static gpunn_dtype weights_dtype(const lora_options *o)
{
    return o->weights ? (gpunn_dtype)(GPUNN_Q8_0 + o->weights - 1) : GPUNN_DTYPE_DEFAULT;
}

static bool build_tuning(tuning *t, const lora_options *o)
{
    llama        *l = &t->l;
    const config *c = &l->c;
    if (c->gemma) return fail("adapters of a Gemma are not trained here; take a Llama, Mistral or Qwen");
    l->model = gpunn_model_create(l->dev, .precision = (gpunn_precision)o->llama.precision,
                                  .weights = weights_dtype(o));
    if (!check(l->dev, l->model != NULL)) return false;
    l->tokens = gpunn_input(l->model, "tokens", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, o->context));
    t->targets = gpunn_input(l->model, "targets", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, o->context));
    l->places = gpunn_input(l->model, "places", GPUNN_I64, GPUNN_SHAPE(o->context));
    if (!make_frequencies(l, o->llama.model)) return false;
    gpunn_tensor *x = gpunn_embedding(l->tokens, "model.embed_tokens", .num_embeddings = c->vocab_size,
                                      .embedding_dim = c->hidden_size);
    t->between = calloc((size_t)c->num_hidden_layers + 1, sizeof *t->between);
    if (t->between == NULL) return fail("out of memory");
    t->between[0] = x;
    for (int i = 0; i < c->num_hidden_layers && x; i++) {
        x = gpunn_add(attend_all(l, norm(l, x, i, "input_layernorm"), i), x);
        x = gpunn_add(feed_forward(l, norm(l, x, i, "post_attention_layernorm"), i), x);
        t->between[i + 1] = x;
    }
    x = gpunn_rms_norm(x, "model.norm", .eps = (float)c->rms_norm_eps);
    gpunn_tensor *tied = c->tie_word_embeddings ? gpunn_find(l->model, "model.embed_tokens.weight") : NULL;
    l->logits = gpunn_linear(x, "lm_head", .out_features = tied ? 0 : c->vocab_size, .no_bias = true,
                             .weight = tied);
    t->loss = gpunn_cross_entropy(
        gpunn_reshape(l->logits, GPUNN_SHAPE(GPUNN_BATCH * o->context, c->vocab_size)),
        gpunn_reshape(t->targets, GPUNN_SHAPE(GPUNN_BATCH * o->context)));
    return check(l->dev, t->loss != NULL);
}

static bool adapt(const tuning *t, const lora_options *o)
{
    gpunn_status status = o->adapter ? gpunn_lora_load(t->l.model, o->adapter)
                                     : gpunn_lora(t->l.model, o->layers, .rank = o->rank, .alpha = o->alpha,
                                                  .dropout = o->dropout);
    for (int i = 0; o->recompute && status == GPUNN_OK && i < t->l.c.num_hidden_layers; i++)
        status = gpunn_recompute(t->between[i], t->between[i + 1]);
    return check(t->l.dev, status == GPUNN_OK);
}

/* Whether a file holds weights in blocks: a .gguf, or a .safetensors that generator.quantize has written. */
static bool has_blocks(gpunn_device *dev, const char *path)
{
    text_error error;
    char      *header = is_gguf(path) ? NULL : gguf_header(dev, path, &error);
    const bool has = is_gguf(path) || (header && strstr(header, "\"gpunn_blocks:"));
    free(header);
    return has;
}

/* Whether the weights are blocks that stay where they lie in the file. */
static bool blocks_stay(const tuning *t, const lora_options *o)
{
    char path[1024];
    if (o->llama.model == NULL || o->llama.widen) return false;
    find_weights(o->llama.model, path, sizeof path);
    return is_there(path) && has_blocks(t->l.dev, path);
}

/* Bytes of a tensor that is in blocks, of which the header tells {"dtype": ..., "shape": [...]}. */
static double bytes_of_tensor(json *j)
{
    double count = 1, each = 0;
    char  *key;
    if (!json_object(j)) return 0;
    while ((key = json_key(j, NULL)) != NULL) {
        if (strcmp(key, "shape") == 0 && json_array(j)) {
            while (json_item(j)) count *= json_number(j);
            continue;
        }
        const char *type = json_string(j, NULL);
#define BYTES(id, name, length, bytes) \
    if (type && strcmp(type, name) == 0) each = (double)(bytes) / (length);
        GPUNN_BLOCK_LIST(BYTES)
#undef BYTES
    }
    return count * each;
}

/* Bytes of all blocks of the model's file. */
static double bytes_of_blocks(const tuning *t, const lora_options *o)
{
    char       path[1024], *key;
    text_error error;
    double     bytes = 0;
    find_weights(o->llama.model, path, sizeof path);
    char *header = gguf_header(t->l.dev, path, &error);
    json  j = json_begin(path, header, &error);
    for (bool object = json_object(&j); object && (key = json_key(&j, NULL)) != NULL;)
        if (strcmp(key, "__metadata__") == 0)
            json_skip(&j);
        else
            bytes += bytes_of_tensor(&j);
    free(header);
    return bytes;
}

/* What a step will hold, before anything is allocated for it. */
static bool tell_memory(const tuning *t, const lora_options *o)
{
    size_t  bytes = 0;
    int64_t all = 0, trained = 0;
    for (int i = 0; i < gpunn_parameter_count(t->l.model); i++) {
        gpunn_tensor *p = gpunn_parameter_at(t->l.model, i);
        const int64_t count = (int64_t)(gpunn_tensor_bytes(p) / sizeof(float));
        all += count;
        if (strstr(gpunn_tensor_name(p), ".lora_")) trained += count;
    }
    if (!check(t->l.dev, gpunn_model_summary(t->l.model, .loss = t->loss, .batch_size = o->batch,
                                             .bytes = &bytes) == GPUNN_OK))
        return false;
    printf("%" PRId64 " of %" PRId64 " parameters are trained; a step of %d x %d tokens takes %.1f MiB, ",
           trained, all, o->batch, o->context, (double)bytes / 1048576);
    if (blocks_stay(t, o)) printf("the file's blocks %.1f MiB, ", bytes_of_blocks(t, o) / 1048576);
    printf("and AdamW's states %.1f MiB\n", (double)trained * 2 * sizeof(float) / 1048576);
    fflush(stdout);
    return true;
}

/* ---- training ------------------------------------------------------------------------------------------ */

static gpunn_status load_sample(void *user, int64_t index, void *const *sample)
{
    const tuning  *t = user;
    const int64_t  context = gpunn_tensor_shape(t->targets).dim[1];
    const int64_t *from = t->samples + index * (context + 1);
    memcpy(sample[0], from, (size_t)context * sizeof *from);
    memcpy(sample[1], from + 1, (size_t)context * sizeof *from);
    return GPUNN_OK;
}

static bool write_places(const llama *l, int context)
{
    const size_t bytes = (size_t)context * sizeof(int64_t);
    int64_t     *places = malloc(bytes);
    for (int i = 0; places && i < context; i++) places[i] = i;
    bool good = places ? check(l->dev, gpunn_write(l->places, places, bytes) == GPUNN_OK)
                       : fail("out of memory");
    free(places);
    return good;
}

static bool open_loaders(tuning *t, const lora_options *o)
{
    const bool splits = o->validation > 0 && t->count > 1;
    t->train = gpunn_loader_create(
        t->l.model, .fields = {{.input = t->l.tokens}, {.input = t->targets}}, .count = t->count,
        .batch_size = o->batch, .shuffle = !o->in_order, .load = load_sample, .user = t,
        .validation_share = splits ? o->validation : 0, .validation = splits ? &t->validation : NULL);
    return check(t->l.dev, t->train != NULL);
}

static bool train(tuning *t, const lora_options *o)
{
    curves           by_epoch = {.title = "loss"};
    gpunn_optimizer *adam = gpunn_adamw(t->l.model, .lr = o->lr);
    bool             good = check(t->l.dev, adam != NULL) &&
                check(t->l.dev, gpunn_fit(adam, .loss = t->loss, .train = t->train,
                                          .validation = t->validation, .epochs = o->epochs,
                                          .on_progress = curves_progress, .user = &by_epoch) == GPUNN_OK);
    gpunn_optimizer_destroy(adam);
    return good;
}

static bool save(const tuning *t, const lora_options *o, const char *folder)
{
    return check(t->l.dev, gpunn_lora_save(t->l.model, folder, .base_model_name_or_path = o->llama.model,
                                           .task_type = "CAUSAL_LM") == GPUNN_OK);
}

/* The model's weights: those of the folder, or, without one, those of the first model that was made. */
static bool take_weights(const llama *l, const options *o, bool widen, gpunn_array *weights)
{
    if (o->model) return load_weights(l, o->model, widen);
    const gpunn_status status = weights->data ? gpunn_load_memory(l->model, weights->data, weights->bytes)
                                              : gpunn_save_memory(l->model, weights);
    return check(l->dev, status == GPUNN_OK);
}

/* The adapter comes first, so that weights are rounded to 16 bits or blocks when they are read. Blocks of a
 * file come before the values of an adapter. */
static bool begin(tuning *t, const lora_options *o, gpunn_array *weights)
{
    if (blocks_stay(t, o)) return take_weights(&t->l, &o->llama, false, weights) && adapt(t, o);
    return adapt(t, o) && take_weights(&t->l, &o->llama, true, weights);
}

/* Trains an adapter and saves it in the folder. */
static bool tune(const llama *l, const lora_options *o, gpunn_array *weights, const char *folder)
{
    tuning t = {.l = *l};
    t.l.model = NULL;
    bool good = read_text(&t, o) && build_tuning(&t, o) && begin(&t, o, weights) && tell_memory(&t, o) &&
                write_places(&t.l, o->context) && open_loaders(&t, o) && train(&t, o) && save(&t, o, folder);
    gpunn_loader_destroy(t.train);
    gpunn_loader_destroy(t.validation);
    gpunn_model_destroy(t.l.model);
    free(t.between);
    free(t.samples);
    return good;
}

/* Tells the memory of a step. A model whose weights do not stay in their file needs none for it. */
static bool plan(const llama *l, const lora_options *o)
{
    tuning      t = {.l = *l};
    gpunn_array none = {0};
    const bool  good = build_tuning(&t, o) && (blocks_stay(&t, o) ? begin(&t, o, &none) : adapt(&t, o)) &&
                      tell_memory(&t, o);
    gpunn_model_destroy(t.l.model);
    free(t.between);
    return good;
}

/* Writes on with the adapter of a folder, NULL: without one. */
static bool write_with(llama *l, const lora_options *o, gpunn_array *weights, const char *adapter)
{
    const int64_t used = l->used;
    bool          good = build(l, &o->llama) && take_weights(l, &o->llama, o->llama.widen, weights) &&
                (adapter == NULL || check(l->dev, gpunn_lora_load(l->model, adapter) == GPUNN_OK));
    if (good && adapter && o->llama.logits)
        good = write_logits(l, &o->llama);
    else if (good)
        good = write_on(l, &o->llama);
    gpunn_model_destroy(l->model);
    l->model = NULL;
    l->used = used;
    return good;
}

/* Writes before the training, trains, and writes again. */
static bool run(llama *l, const lora_options *o)
{
    gpunn_array weights = {0};
    char        folder[1024];
    (void)snprintf(folder, sizeof folder, "%s/adapter", o->out);
    const bool good = read_prompt(l, &o->llama) && options_make_folder(program, o->out) &&
                      write_with(l, o, &weights, NULL) && tune(l, o, &weights, folder) &&
                      write_with(l, o, &weights, folder);
    gpunn_array_free(l->dev, &weights);
    return good;
}

/* ---- options ------------------------------------------------------------------------------------------- */
static void parse(int argc, char **argv, lora_options *o)
{
    options     *l = &o->llama;
    const option known[] = {
        {"--model FOLDER", "config.json, weights and vocabulary; default: a small model with random weights",
         .text = &l->model},
        {"--text FILE", "what it learns; without a vocabulary numbers, each a token", .text = &o->text},
        {"--layers PATTERN", "layers that get an adapter: * is any text, {a,b} is a or b",
         .text = &o->layers},
        {"--rank N", "of the adapters", .number = &o->rank, .lowest = 1},
        {"--alpha X", "the adapters count alpha / rank times", .real = &o->alpha, .lowest = 1e-6},
        {"--dropout X", "of the adapters' input", .real = &o->dropout, .highest = 0.99},
        {"--adapter FOLDER", "goes on with this adapter", .text = &o->adapter},
        {"--epochs N", "how often it reads the text", .number = &o->epochs, .lowest = 1},
        {"--batch N", "samples in a step", .number = &o->batch, .lowest = 1},
        {"--context N", "tokens in a sample", .number = &o->context, .lowest = 1},
        {"--lr X", "learning rate of AdamW", .real = &o->lr},
        {"--validation X", "share of the samples that are not learnt", .real = &o->validation,
         .highest = 0.9},
        {"--recompute", "less memory: computes what is between layers again, in a third more time",
         .flag = &o->recompute},
        {"--plan", "only tells the memory of a step; config.json is enough for it", .flag = &o->plan},
        {"--in-order", "the samples in their order, not shuffled", .flag = &o->in_order},
        {"--prompt TEXT", "how the text begins that it writes before and after", .text = &l->prompt},
        {"--ids LIST", "the same as tokens", .text = &l->ids},
        {"--generate N", "tokens to write", .number = &l->generate},
        {"--temperature X", "of the text; 0: always the likeliest token", .real = &l->sample.temperature},
        {"--precision f32|tf32|bf16|f16", "how a GPU computes, and how frozen weights are kept",
         .choice = &l->precision},
        {"--weights as-they-are|q8_0|q4_0|q4_1|q5_0|q5_1|q4_k|q5_k|q6_k|iq4_nl|nf4",
         "the blocks to which frozen weights are rounded; those of a .gguf stay as they are",
         .choice = &o->weights},
        {"--widen", "quantised weights of a .gguf become floats", .flag = &l->widen},
        {"--seed N", "of drawing, and of random weights", .number = &l->seed},
        {"--threads N", "of the CPU; default 0: all processors", .number = &l->threads},
        {"--cpu", "even where there is a GPU", .flag = &l->cpu},
        {"--logits FILE", "writes the logits of the prompt after the training, and no text then",
         .text = &l->logits, .written = true},
        {"--out DIR", "folder of the adapter", .text = &o->out}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
}

int main(int argc, char **argv)
{
    lora_options o = {.llama = {.prompt = "Once upon a time",
                                .generate = 40,
                                .chunk = 512,
                                .seed = 1,
                                .sample = {0.8f, 1, 40}},
                      .layers = "self_attn.{q,v}_proj",
                      .rank = 8,
                      .alpha = 16,
                      .dropout = 0.05f,
                      .epochs = 3,
                      .batch = 4,
                      .context = 128,
                      .lr = 1e-3f,
                      .validation = 0.1f,
                      .out = "out"};
    program = "lora";
    parse(argc, argv, &o);
    llama l = {.c = default_config(o.llama.model == NULL)};
    bool  good = open_device(&l, &o.llama) && (o.llama.model == NULL || read_model(&l, o.llama.model)) &&
                settle(&l.c) && choose_capacity(&l, &o.llama) && (o.plan ? plan(&l, &o) : run(&l, &o));
    gpunn_device_close(l.dev);
    if (l.pieces) tokenizer_free(l.pieces);
    free(l.text);
    return good ? 0 : 1;
}
