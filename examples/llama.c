/* llama.c - writes text with a Llama (Touvron et al., 2023), Mistral, Qwen2, Qwen3, Gemma 1, 2 or 3, from the
 * folder that Hugging Face keeps one in, or from a .gguf file of llama.cpp.
 *
 * Shows: rotary positions, grouped heads, RMSNorm and SwiGLU, a cache of keys and values that runs read
 *        and write, a configuration and weights with Hugging Face's names, tied or not, in one file or in
 *        shards; the same with llama.cpp's names, in one file with its tokenizer.
 * Build: cc -O3 -march=native -I. examples/llama.c -o llama -lm
 *        nvcc -O3 -arch=native -I. examples/llama.c gpunn_cuda.cu -o llama
 * Data:  a folder with config.json and model.safetensors (or model.safetensors.index.json), and, for text
 *        in the place of numbers, tokenizer.json: https://huggingface.co/HuggingFaceTB/SmolLM2-135M
 *        Or one file: https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct-GGUF
 * Run:   ./llama --model FOLDER --prompt "The capital of France is"
 *        ./llama --model FILE.gguf --prompt "The capital of France is"
 *        python3 -m generator.quantize FOLDER/model.safetensors --to q4_0 -o FOLDER/small.gguf
 *        ./llama --model FOLDER/small.gguf --prompt "The capital"    with the config.json beside it
 *        python3 -m generator.quantize FOLDER/model.safetensors --to nf4 -o SMALL/model.safetensors
 *        ./llama --model SMALL --ids "1 450 7483 310 3444 338"       SMALL also has FOLDER's config.json
 *        ./llama --model FOLDER --ids "1 450 7483 310 3444 338"      where there is no tokenizer.json
 *        --help explains all options
 * Expect: the prompt and what follows it. Without a folder a small model with random weights writes
 *         numbers without meaning, and --times tells how long each took. The weights are held as F32: 4
 *         bytes for each. Quantised ones of a .gguf are read where they lie in the file, on a CPU.
 * Time:  less than a second on two cores without a folder.
 * Next:  --precision bf16 halves the weights; generator/exchange/README.md brings other models. */
#define GPUNN_IMPLEMENTATION
#include "gpunn.h"

#include "gguf.h"
#include "options.h"
#include "sampling.h"
#include "tokenizer.h"

#include <inttypes.h>
#include <math.h>
#include <time.h>

enum { MAX_ENDS = 8, NAME_SIZE = 128 };

typedef struct options {
    const char *model, *prompt, *ids, *logits;
    int         context, chunk, generate, precision, seed, threads;
    sampling    sample;
    bool        cpu, times, widen;
} options;

typedef struct config {
    int vocab_size, hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads,
        intermediate_size, sliding_window;
    int    max_position_embeddings, head_dim;
    char   model_type[16]; /* one of those of read_type */
    bool   gemma, gemma3;  /* embeddings are scaled, norms hold w - 1, GeGLU; local layers */
    bool   four_norms;     /* Gemma 2 and 3: also behind both parts of a layer */
    char   act;            /* of hidden_act: 0 not said, 's' SiLU, 'g' GELU */
    bool   local[1 << 10]; /* Gemma 3: layers with local_theta */
    double local_theta, query_pre_attn_scalar;
    double attention_cap, logit_cap; /* Gemma 2: scores and logits x become cap tanh(x / cap); 0: no cap */
    bool   tie_word_embeddings, attention_bias, mlp_bias, use_sliding_window;
    bool   output_bias, head_norms; /* of o_proj; of queries and keys */
    double rms_norm_eps, rope_theta;
    char   rope_type[16]; /* "default", "linear", "llama3" or "yarn" */
    double factor, low_freq_factor, high_freq_factor, original_max_position_embeddings;
    double beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim; /* of YaRN; 0: not said */
    int    ends[MAX_ENDS], end_count;                                      /* tokens that end a text */
    /* GGUF: it tells the model; pairs that turn stand beside each other; frequencies have divisors */
    bool of_gguf, interleaved, divided;
} config;

typedef struct llama {
    config        c;
    int           capacity; /* of the cache */
    gpunn_device *dev;
    gpunn_model  *model;
    /* places: of each token; place: of the first; length: behind the last */
    gpunn_tensor *tokens, *places, *place, *length;
    /* next: the token behind, by the number draw; frequencies: also of local layers */
    gpunn_tensor *frequencies[2], *hidden, *logits, *draw, *next;
    tokenizer    *pieces; /* NULL: tokens are numbers */
    int64_t      *text;
    int64_t       used;
} llama;

static const char *program = "llama";

static bool fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", program, what);
    return false;
}

static bool check(gpunn_device *dev, bool good)
{
    return good && gpunn_last_status(dev) == GPUNN_OK ? true : fail(gpunn_error(dev));
}

/* ---- config.json --------------------------------------------------------------------------------------- */
static void read_act(json *j, const char *key, config *c)
{
    char        text[160];
    const char *word = json_string(j, NULL);
    if (word == NULL) return;
    c->act = word[0];
    if (strcmp(word, "silu") == 0 || strcmp(word, "gelu") == 0 || strcmp(word, "gelu_pytorch_tanh") == 0)
        return;
    (void)snprintf(text, sizeof text, "'%s' is \"%.40s\"; only \"silu\" is supported, and GELU in Gemma", key,
                   word);
    json_fail(j, text);
}

/* The kind of model, which must be a known one. */
static void read_type(json *j, const char *key, config *c)
{
    /* llama.cpp says gemma3 of a text model, Hugging Face of one that also sees images */
    static const char *const known[] = {"llama", "mistral", "qwen2",       "qwen3",
                                        "gemma", "gemma2",  "gemma3_text", "gemma3"};
    const int                count = strcmp(key, "model_type") == 0 ? 7 : 8;
    char                     text[200];
    const char              *type = json_string(j, NULL);
    for (int i = 0; type && i < count; i++)
        if (strcmp(type, known[i]) == 0) {
            strcpy(c->model_type, known[i]);
            return;
        }
    (void)snprintf(
        text, sizeof text,
        "'%s' is \"%.40s\", not \"llama\", \"mistral\", \"qwen2\", \"qwen3\", \"gemma\", \"gemma2\" "
        "or \"%s\"",
        key, type ? type : "", known[count - 1]);
    json_fail(j, text);
}

static void read_positive(json *j, const char *key, double *value)
{
    char text[128];
    *value = json_number(j);
    if (j->failed || (*value > 0 && *value < 1e30)) return;
    (void)snprintf(text, sizeof text, "'%s' is %g, not above 0", key, *value);
    json_fail(j, text);
}

/* rope_scaling, or, from transformers 5 on, rope_parameters. outer: two kinds of layers may have their own
 * inside. */
static void read_rope(json *j, config *c, bool outer)
{
    char *key;
    struct {
        const char *key;
        double     *value;
    } numbers[] = {{"rope_theta", &c->rope_theta},
                   {"factor", &c->factor},
                   {"low_freq_factor", &c->low_freq_factor},
                   {"high_freq_factor", &c->high_freq_factor},
                   {"beta_fast", &c->beta_fast},
                   {"beta_slow", &c->beta_slow},
                   {"attention_factor", &c->attention_factor},
                   {"mscale", &c->mscale},
                   {"mscale_all_dim", &c->mscale_all_dim},
                   {"original_max_position_embeddings", &c->original_max_position_embeddings}};
    if (!json_object(j)) return;
    while ((key = json_key(j, NULL)) != NULL) {
        size_t i = 0;
        if (json_null(j)) continue;
        while (i < sizeof numbers / sizeof *numbers && strcmp(numbers[i].key, key) != 0) i++;
        if (i < sizeof numbers / sizeof *numbers) {
            read_positive(j, key, numbers[i].value);
        } else if (outer && strcmp(key, "full_attention") == 0) {
            read_rope(j, c, false);
        } else if (outer && strcmp(key, "sliding_attention") == 0) {
            config local = *c;
            read_rope(j, &local, false);
            c->local_theta = local.rope_theta;
        } else if (strcmp(key, "rope_type") == 0 || strcmp(key, "type") == 0) {
            const char *type = json_string(j, NULL);
            if (type) (void)snprintf(c->rope_type, sizeof c->rope_type, "%s", type);
        } else {
            json_skip(j);
        }
    }
    if (!j->failed && strcmp(c->rope_type, "default") != 0 && strcmp(c->rope_type, "linear") != 0 &&
        strcmp(c->rope_type, "llama3") != 0 && strcmp(c->rope_type, "yarn") != 0)
        json_fail(j, "'rope_type' is not \"default\", \"linear\", \"llama3\" or \"yarn\"");
}

static void read_ends(json *j, config *c)
{
    if (!json_array(j)) {
        c->ends[c->end_count++] = json_int(j, "eos_token_id", 0, 1 << 24);
        return;
    }
    while (json_item(j)) {
        int end = json_int(j, "eos_token_id", 0, 1 << 24);
        if (c->end_count < MAX_ENDS) c->ends[c->end_count++] = end;
    }
}

/* Which layers of Gemma 3 see only what is near. */
static void read_layer_types(json *j, config *c)
{
    if (!json_array(j)) json_fail(j, "'layer_types' is no list");
    for (int i = 0; json_item(j); i++) {
        const char *type = json_string(j, NULL);
        if (type && i < (int)(sizeof c->local / sizeof *c->local))
            c->local[i] = strcmp(type, "sliding_attention") == 0;
    }
}

/* All but each `pattern`-th layer. */
static void mark_local(config *c, int pattern)
{
    for (int i = 0; i < (int)(sizeof c->local / sizeof *c->local); i++) c->local[i] = (i + 1) % pattern != 0;
}

static void read_key(json *j, const char *key, config *c)
{
    const struct {
        const char *key;
        int        *value, highest;
    } numbers[] = {{"vocab_size", &c->vocab_size, 1 << 24},
                   {"hidden_size", &c->hidden_size, 1 << 16},
                   {"num_hidden_layers", &c->num_hidden_layers, 1 << 10},
                   {"num_attention_heads", &c->num_attention_heads, 1 << 10},
                   {"num_key_value_heads", &c->num_key_value_heads, 1 << 10},
                   {"intermediate_size", &c->intermediate_size, 1 << 18},
                   {"max_position_embeddings", &c->max_position_embeddings, 1 << 24},
                   {"head_dim", &c->head_dim, 1 << 12},
                   {"sliding_window", &c->sliding_window, 1 << 24}};
    const struct {
        const char *key;
        bool       *value;
    } flags[] = {{"tie_word_embeddings", &c->tie_word_embeddings},
                 {"use_sliding_window", &c->use_sliding_window},
                 {"attention_bias", &c->attention_bias},
                 {"mlp_bias", &c->mlp_bias}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(numbers[i].key, key) == 0) {
            *numbers[i].value = json_int(j, key, 1, numbers[i].highest);
            return;
        }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (strcmp(flags[i].key, key) == 0) {
            *flags[i].value = json_bool(j);
            return;
        }
    if (strcmp(key, "rms_norm_eps") == 0)
        read_positive(j, key, &c->rms_norm_eps);
    else if (strcmp(key, "rope_theta") == 0)
        read_positive(j, key, &c->rope_theta);
    else if (strcmp(key, "rope_scaling") == 0 || strcmp(key, "rope_parameters") == 0)
        read_rope(j, c, true);
    else if (strcmp(key, "eos_token_id") == 0)
        read_ends(j, c);
    else if (strcmp(key, "model_type") == 0)
        read_type(j, key, c);
    else if (strcmp(key, "hidden_act") == 0 || strcmp(key, "hidden_activation") == 0)
        read_act(j, key, c);
    else if (strcmp(key, "query_pre_attn_scalar") == 0)
        read_positive(j, key, &c->query_pre_attn_scalar);
    else if (strcmp(key, "rope_local_base_freq") == 0)
        read_positive(j, key, &c->local_theta);
    else if (strcmp(key, "layer_types") == 0)
        read_layer_types(j, c);
    else if (strcmp(key, "sliding_window_pattern") == 0)
        mark_local(c, json_int(j, key, 1, 1 << 10));
    else if (strcmp(key, "attn_logit_softcapping") == 0)
        read_positive(j, key, &c->attention_cap);
    else if (strcmp(key, "final_logit_softcapping") == 0)
        read_positive(j, key, &c->logit_cap);
    else
        json_skip(j);
}

/* No further than a window, what is seen is the same without it. */
static void limit_to_window(config *c)
{
    if (c->sliding_window && c->sliding_window < c->max_position_embeddings)
        c->max_position_embeddings = c->sliding_window;
}

/* Which Gemma it is, if it is one. The layers of Gemma 2 and 3 that see only what is near are like the others
 * within a window. */
static void settle_gemma(config *c)
{
    c->gemma = strncmp(c->model_type, "gemma", 5) == 0;
    c->gemma3 = strncmp(c->model_type, "gemma3", 6) == 0;
    c->four_norms = c->gemma3 || strcmp(c->model_type, "gemma2") == 0;
    if (c->four_norms) limit_to_window(c);
}

/* What differs between the kinds of models. */
static void settle_type(config *c)
{
    settle_gemma(c);
    if (c->gemma) c->tie_word_embeddings = true;
    c->output_bias = c->attention_bias;
    if (strcmp(c->model_type, "qwen2") == 0) c->attention_bias = true;
    c->head_norms = strcmp(c->model_type, "qwen3") == 0 || c->gemma3;
    if (strcmp(c->model_type, "mistral") == 0 || c->use_sliding_window) limit_to_window(c);
}

/* What it leaves out is as in transformers' LlamaConfig. */
static bool read_config(const char *path, config *c)
{
    text_error error;
    size_t     bytes;
    char      *text = text_read(path, (size_t)1 << 20, &bytes, &error), *key;
    json       j = json_begin(path, text, &error);
    if (text && json_object(&j))
        while ((key = json_key(&j, NULL)) != NULL)
            if (!json_null(&j)) read_key(&j, key, c);
    bool good = json_end(&j);
    settle_type(c);
    free(text);
    if (!good) return fail(error.text);
    return c->act == 0 || (c->act == 'g') == c->gemma ||
           fail("hidden_act does not fit model_type: GELU is for Gemma, SiLU for the others");
}

/* As transformers' LlamaConfig; without a folder a small model. */
static config default_config(bool small)
{
    config c = {.vocab_size = 32000,
                .hidden_size = 4096,
                .num_hidden_layers = 32,
                .num_attention_heads = 32,
                .intermediate_size = 11008,
                .max_position_embeddings = 2048,
                .rms_norm_eps = 1e-6,
                .rope_theta = 10000,
                .local_theta = 10000,
                .rope_type = "default",
                .factor = 1,
                .low_freq_factor = 1,
                .high_freq_factor = 4,
                .beta_fast = 32,
                .beta_slow = 1};
    if (!small) return c;
    c.vocab_size = 1000, c.hidden_size = 128, c.num_hidden_layers = 4, c.num_attention_heads = 4;
    c.num_key_value_heads = 2, c.intermediate_size = 352;
    return c;
}

/* By which YaRN multiplies queries and keys (Peng et al., 2023, arXiv 2309.00071). */
static double yarn_scale(double factor, double share)
{
    return factor > 1 ? 0.1 * share * log(factor) + 1 : 1;
}

/* ---- the header of a .gguf ----------------------------------------------------------------------------- */
static bool is_gguf(const char *path)
{
    const size_t length = path ? strlen(path) : 0;
    return length > 5 && strcmp(path + length - 5, ".gguf") == 0;
}

/* A key of the model, without the architecture in front. */
static void read_gguf_setting(json *j, const char *key, config *c)
{
    const struct {
        const char *key;
        int        *value, highest;
    } numbers[] = {{"embedding_length", &c->hidden_size, 1 << 16},
                   {"block_count", &c->num_hidden_layers, 1 << 10},
                   {"attention.head_count", &c->num_attention_heads, 1 << 10},
                   {"attention.head_count_kv", &c->num_key_value_heads, 1 << 10},
                   {"feed_forward_length", &c->intermediate_size, 1 << 18},
                   {"context_length", &c->max_position_embeddings, 1 << 24},
                   {"attention.sliding_window", &c->sliding_window, 1 << 24},
                   {"attention.key_length", &c->head_dim, 1 << 12}};
    const struct {
        const char *key;
        double     *value;
    } reals[] = {{"attention.layer_norm_rms_epsilon", &c->rms_norm_eps},
                 {"rope.freq_base", &c->rope_theta},
                 {"rope.scaling.factor", &c->factor},
                 {"rope.scaling.original_context_length", &c->original_max_position_embeddings},
                 {"rope.scaling.attn_factor", &c->attention_factor},
                 {"rope.scaling.yarn_beta_fast", &c->beta_fast},
                 {"rope.scaling.yarn_beta_slow", &c->beta_slow},
                 {"attn_logit_softcapping", &c->attention_cap},
                 {"final_logit_softcapping", &c->logit_cap}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(numbers[i].key, key) == 0) {
            *numbers[i].value = json_int(j, key, 1, numbers[i].highest);
            return;
        }
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        if (strcmp(reals[i].key, key) == 0) {
            read_positive(j, key, reals[i].value);
            return;
        }
    if (strcmp(key, "rope.scaling.type") != 0) {
        json_skip(j);
        return;
    }
    const char *type = json_string(j, NULL);
    if (type) (void)snprintf(c->rope_type, sizeof c->rope_type, "%s", type);
    if (type && strcmp(type, "none") != 0 && strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
        json_fail(j, "'rope.scaling.type' is not \"none\", \"linear\" or \"yarn\"");
}

static void read_gguf_metadata(json *j, config *c)
{
    char *key;
    if (!json_object(j)) return;
    while ((key = json_key(j, NULL)) != NULL) {
        const char *rest = strchr(key, '.');
        if (strcmp(key, "general.architecture") == 0)
            read_type(j, key, c);
        else if (strcmp(key, "tokenizer.ggml.eos_token_id") == 0 ||
                 strcmp(key, "tokenizer.ggml.eot_token_id") == 0)
            read_ends(j, c);
        else if (rest)
            read_gguf_setting(j, rest + 1, c);
        else
            json_skip(j);
    }
}

/* The size of the vocabulary, from {"dtype": ..., "shape": [words, width]}. */
static void read_gguf_words(json *j, config *c)
{
    char *key;
    if (!json_object(j)) return;
    while ((key = json_key(j, NULL)) != NULL)
        if (strcmp(key, "shape") == 0 && json_array(j) && json_item(j)) {
            c->vocab_size = json_int(j, "the vocabulary's size", 1, 1 << 24);
            while (json_item(j)) json_skip(j);
        } else {
            json_skip(j);
        }
}

/* What llama.cpp knows without being told: which layers of Gemma 3 are local, that the models of 27B have 46
 * or 62 layers, and that the factor of YaRN is one on the usual one. */
static void settle_gguf(config *c)
{
    settle_gemma(c);
    if (c->gemma3) mark_local(c, 6);
    if (c->four_norms && c->num_hidden_layers == (c->gemma3 ? 62 : 46))
        c->query_pre_attn_scalar = c->hidden_size / (double)c->num_attention_heads;
    if (c->attention_factor > 0) c->attention_factor *= yarn_scale(c->factor, 1);
}

/* Which tensors there are says the rest. A file of weights alone leaves of_gguf as it was. */
static bool read_gguf(gpunn_device *dev, const char *path, config *c)
{
    text_error error;
    char      *header = gguf_header(dev, path, &error), *key;
    json       j = json_begin(path, header, &error);
    c->tie_word_embeddings = true;
    c->hidden_size = c->vocab_size = 0;
    for (bool object = json_object(&j); object && (key = json_key(&j, NULL)) != NULL;) {
        if (strcmp(key, "__metadata__") == 0) {
            read_gguf_metadata(&j, c);
        } else if (strcmp(key, "token_embd.weight") == 0) {
            read_gguf_words(&j, c);
        } else {
            if (strcmp(key, "output.weight") == 0) c->tie_word_embeddings = false;
            if (strcmp(key, "rope_freqs.weight") == 0) c->divided = true;
            if (strcmp(key, "blk.0.attn_q.bias") == 0) c->attention_bias = true;
            if (strcmp(key, "blk.0.attn_output.bias") == 0) c->output_bias = true;
            if (strcmp(key, "blk.0.attn_q_norm.weight") == 0) c->head_norms = true;
            if (strcmp(key, "blk.0.ffn_up.bias") == 0) c->mlp_bias = true;
            json_skip(&j);
        }
    }
    bool good = json_end(&j);
    c->interleaved = strcmp(c->model_type, "llama") == 0;
    free(header);
    settle_gguf(c);
    c->of_gguf = c->hidden_size && c->vocab_size;
    return good || fail(error.text);
}

static bool settle(config *c)
{
    if (c->num_hidden_layers > (int)(sizeof c->local / sizeof *c->local))
        return fail("there are too many layers");
    if (c->num_key_value_heads == 0) c->num_key_value_heads = c->num_attention_heads;
    if (c->head_dim == 0 && c->hidden_size % c->num_attention_heads)
        return fail("hidden_size is not a multiple of num_attention_heads, and there is no head_dim");
    if (c->head_dim == 0) c->head_dim = c->hidden_size / c->num_attention_heads;
    if (c->num_attention_heads % c->num_key_value_heads)
        return fail("num_attention_heads is not a multiple of num_key_value_heads");
    if (c->original_max_position_embeddings == 0)
        c->original_max_position_embeddings = c->max_position_embeddings;
    return c->high_freq_factor > c->low_freq_factor || fail("high_freq_factor is not above low_freq_factor");
}

/* ---- the model ----------------------------------------------------------------------------------------- */
/* The pair of a head that turns so often in the context for which the model was made first. */
static double pair_of_turns(const config *c, double turns)
{
    const double length = c->original_max_position_embeddings / (turns * 6.283185307179586);
    return c->head_dim * log(length) / (2 * log(c->rope_theta));
}

/* The share of YaRN's pair i that is not stretched. */
static double yarn_share(const config *c, int i)
{
    const double low = fmax(floor(pair_of_turns(c, c->beta_fast)), 0),
                 high = fmin(ceil(pair_of_turns(c, c->beta_slow)), c->head_dim - 1);
    return 1 - (i - low) / (high == low ? 0.001 : high - low);
}

/* Which angle pair i of a head turns by from one position to the next. llama3 and YaRN: waves that are long
 * against the context for which the model was made first are stretched, short ones are not, and between them
 * it is some of both. */
static double frequency(const config *c, int i)
{
    const double plain = pow(c->rope_theta, -2.0 * i / c->head_dim), slow = plain / c->factor;
    const bool   yarn = strcmp(c->rope_type, "yarn") == 0;
    if (!yarn && strcmp(c->rope_type, "llama3") != 0)
        return strcmp(c->rope_type, "linear") == 0 ? slow : plain;
    const double waves = c->original_max_position_embeddings * plain / 6.283185307179586;
    const double share = yarn ? yarn_share(c, i)
                              : (waves - c->low_freq_factor) / (c->high_freq_factor - c->low_freq_factor);
    return share <= 0 ? slow : share >= 1 ? plain : slow + share * (plain - slow);
}

/* Divides the frequencies by the numbers that a .gguf of Llama 3.1 holds. */
static bool divide_frequencies(const llama *l, const char *path, float *values, int pairs)
{
    gpunn_array divisors;
    if (gpunn_read_safetensors(l->dev, path, "rope_freqs.weight", &divisors) != GPUNN_OK)
        return check(l->dev, false);
    const bool fits = divisors.bytes == (size_t)pairs * sizeof *values && divisors.dtype == GPUNN_F32;
    for (int i = 0; fits && i < pairs; i++) values[i] /= ((const float *)divisors.data)[i];
    gpunn_array_free(l->dev, &divisors);
    return fits || fail("rope_freqs.weight has not one number for each pair of a head");
}

static bool make_frequencies(llama *l, const char *path)
{
    const int pairs = l->c.head_dim / 2;
    float    *values = calloc((size_t)pairs, sizeof *values);
    bool      good = values || fail("out of memory");
    for (int i = 0; good && i < pairs; i++) values[i] = (float)frequency(&l->c, i);
    good = good && (!l->c.divided || divide_frequencies(l, path, values, pairs));
    if (good) l->frequencies[0] = gpunn_constant(l->model, GPUNN_SHAPE(pairs), values);
    for (int i = 0; good && i < pairs; i++)
        values[i] = (float)pow(l->c.local_theta, -2.0 * i / l->c.head_dim);
    if (good && l->c.gemma3) l->frequencies[1] = gpunn_constant(l->model, GPUNN_SHAPE(pairs), values);
    free(values);
    return good && check(l->dev, l->frequencies[l->c.gemma3] != NULL);
}

static gpunn_tensor *linear(gpunn_tensor *x, int layer, const char *part, int out, bool bias)
{
    char name[NAME_SIZE];
    (void)snprintf(name, sizeof name, "model.layers.%d.%s", layer, part);
    return gpunn_linear(x, name, .out_features = out, .no_bias = !bias);
}

static gpunn_tensor *norm(const llama *l, gpunn_tensor *x, int layer, const char *part)
{
    char name[NAME_SIZE];
    (void)snprintf(name, sizeof name, "model.layers.%d.%s", layer, part);
    return gpunn_rms_norm(x, name, .eps = (float)l->c.rms_norm_eps);
}

/* Queries, keys or values of the run's tokens: [1, tokens, heads, head_dim]. */
static gpunn_tensor *heads_of(const llama *l, gpunn_tensor *x, int layer, const char *part, int heads)
{
    x = linear(x, layer, part, heads * l->c.head_dim, l->c.attention_bias);
    return gpunn_reshape(x, GPUNN_SHAPE(1, GPUNN_BATCH, heads, l->c.head_dim));
}

/* Queries or keys, turned by their places. */
static gpunn_tensor *turned(const llama *l, gpunn_tensor *x, int layer, const char *part)
{
    if (l->c.head_norms) x = norm(l, x, layer, part);
    return gpunn_rotary_embedding(x, l->places,
                                  .frequencies = l->frequencies[l->c.gemma3 && l->c.local[layer]],
                                  .heads_last = true, .interleaved = l->c.interleaved);
}

/* The cache of that name with these rows in it. */
static gpunn_tensor *kept(const llama *l, gpunn_tensor *rows, int layer, const char *part)
{
    char             name[NAME_SIZE];
    const gpunn_init zeros = {GPUNN_INIT_ZEROS, 0, 0};
    (void)snprintf(name, sizeof name, "model.layers.%d.%s", layer, part);
    gpunn_shape   shape = GPUNN_SHAPE(1, l->capacity, l->c.num_key_value_heads, l->c.head_dim);
    gpunn_tensor *all = gpunn_state(l->model, name, shape, zeros);
    return gpunn_assign_at(all, 1, l->place, rows);
}

/* By which scores of queries and keys are multiplied. */
static float attention_scale(const config *c)
{
    const double size = c->query_pre_attn_scalar > 0 ? c->query_pre_attn_scalar : c->head_dim;
    double       each = 1; /* of queries, and of keys */
    if (strcmp(c->rope_type, "yarn") == 0)
        each = c->attention_factor > 0 ? c->attention_factor : yarn_scale(c->factor, 1);
    if (strcmp(c->rope_type, "yarn") == 0 && c->attention_factor == 0 && c->mscale * c->mscale_all_dim > 0)
        each = yarn_scale(c->factor, c->mscale) / yarn_scale(c->factor, c->mscale_all_dim);
    return (float)(each * each / sqrt(size));
}

static gpunn_tensor *capped(gpunn_tensor *x, double cap)
{
    if (cap == 0) return x;
    return gpunn_mul_scalar(gpunn_tanh(gpunn_mul_scalar(x, (float)(1 / cap))), (float)cap);
}

/* Whether a place of the cache is behind a token: [tokens, 1, places]. */
static gpunn_tensor *later(const llama *l)
{
    float *numbers = malloc((size_t)l->capacity * sizeof *numbers);
    for (int i = 0; numbers && i < l->capacity; i++) numbers[i] = (float)i;
    gpunn_tensor *all = numbers ? gpunn_constant(l->model, GPUNN_SHAPE(l->capacity), numbers) : NULL;
    free(numbers);
    return gpunn_gt(all, gpunn_reshape(gpunn_cast(l->places, GPUNN_F32), GPUNN_SHAPE(GPUNN_BATCH, 1, 1)));
}

/* Attention whose scores are capped, which no single op computes. q [1, tokens, heads, size]; k and v are the
 * whole cache, [1, places, key-value heads, size]. The result has q's shape. */
static gpunn_tensor *attend_capped(const llama *l, gpunn_tensor *q, gpunn_tensor *k, gpunn_tensor *v)
{
    const int     kv = l->c.num_key_value_heads, each = l->c.num_attention_heads / kv, size = l->c.head_dim;
    const int64_t places = l->capacity;
    k = gpunn_permute(gpunn_reshape(k, GPUNN_SHAPE(places, kv, size)), GPUNN_AXES(1, 2, 0));
    v = gpunn_permute(gpunn_reshape(v, GPUNN_SHAPE(places, kv, size)), GPUNN_AXES(1, 0, 2));
    q = gpunn_permute(gpunn_reshape(q, GPUNN_SHAPE(GPUNN_BATCH, kv, each, size)), GPUNN_AXES(1, 0, 2, 3));
    q = gpunn_reshape(q, GPUNN_SHAPE(kv, GPUNN_BATCH * each, size));
    gpunn_tensor *score = gpunn_mul_scalar(gpunn_matmul(q, k), attention_scale(&l->c));
    score = gpunn_reshape(capped(score, l->c.attention_cap), GPUNN_SHAPE(kv, GPUNN_BATCH, each, places));
    score = gpunn_softmax(gpunn_masked_fill(score, later(l), -INFINITY), -1);
    v = gpunn_matmul(gpunn_reshape(score, GPUNN_SHAPE(kv, GPUNN_BATCH * each, places)), v);
    v = gpunn_permute(gpunn_reshape(v, GPUNN_SHAPE(kv, GPUNN_BATCH, each, size)), GPUNN_AXES(1, 0, 2, 3));
    return gpunn_reshape(v, GPUNN_SHAPE(1, GPUNN_BATCH, kv * each, size));
}

static gpunn_tensor *attend(const llama *l, gpunn_tensor *x, int layer)
{
    const config *c = &l->c;
    gpunn_tensor *q = heads_of(l, x, layer, "self_attn.q_proj", c->num_attention_heads);
    gpunn_tensor *k = heads_of(l, x, layer, "self_attn.k_proj", c->num_key_value_heads);
    gpunn_tensor *v = heads_of(l, x, layer, "self_attn.v_proj", c->num_key_value_heads);
    q = turned(l, q, layer, "self_attn.q_norm");
    k = kept(l, turned(l, k, layer, "self_attn.k_norm"), layer, "keys");
    v = kept(l, v, layer, "values");
    gpunn_tensor *y = c->attention_cap > 0
                          ? attend_capped(l, q, k, v)
                          : gpunn_scaled_dot_product_attention(q, k, v, .is_causal = true, .enable_gqa = true,
                                                               .scale = attention_scale(c),
                                                               .heads_last = true, .lengths = l->length);
    y = gpunn_reshape(y, GPUNN_SHAPE(GPUNN_BATCH, c->num_attention_heads * c->head_dim));
    return linear(y, layer, "self_attn.o_proj", c->hidden_size, c->output_bias);
}

static gpunn_tensor *feed_forward(const llama *l, gpunn_tensor *x, int layer)
{
    gpunn_tensor *gate = linear(x, layer, "mlp.gate_proj", l->c.intermediate_size, l->c.mlp_bias);
    gpunn_tensor *up = linear(x, layer, "mlp.up_proj", l->c.intermediate_size, l->c.mlp_bias);
    gate = l->c.gemma ? gpunn_gelu_tanh(gate) : gpunn_silu(gate);
    return linear(gpunn_mul(gate, up), layer, "mlp.down_proj", l->c.hidden_size, l->c.mlp_bias);
}

/* A layer: x and what its two parts add. In Gemma 2 and 3 norms stand before and behind each of them. */
static gpunn_tensor *block(const llama *l, gpunn_tensor *x, int layer)
{
    const bool    more = l->c.four_norms;
    gpunn_tensor *part = attend(l, norm(l, x, layer, "input_layernorm"), layer);
    x = gpunn_add(more ? norm(l, part, layer, "post_attention_layernorm") : part, x);
    part = norm(l, x, layer, more ? "pre_feedforward_layernorm" : "post_attention_layernorm");
    part = feed_forward(l, part, layer);
    return gpunn_add(more ? norm(l, part, layer, "post_feedforward_layernorm") : part, x);
}

static bool build(llama *l, const options *o)
{
    const config *c = &l->c;
    l->model = gpunn_model_create(l->dev, .precision = (gpunn_precision)o->precision, .inference = true);
    l->tokens = gpunn_input(l->model, "tokens", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    l->places = gpunn_input(l->model, "places", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
    l->place = gpunn_input(l->model, "place", GPUNN_I64, GPUNN_SHAPE(0));
    l->length = gpunn_input(l->model, "length", GPUNN_I64, GPUNN_SHAPE(0));
    if (!make_frequencies(l, o->model)) return false;
    gpunn_tensor *x = gpunn_embedding(l->tokens, "model.embed_tokens", .num_embeddings = c->vocab_size,
                                      .embedding_dim = c->hidden_size);
    if (c->gemma) x = gpunn_mul_scalar(x, sqrtf((float)c->hidden_size));
    for (int i = 0; i < c->num_hidden_layers && x; i++) x = block(l, x, i);
    l->hidden = gpunn_rms_norm(x, "model.norm", .eps = (float)c->rms_norm_eps);
    gpunn_tensor *tied = c->tie_word_embeddings ? gpunn_find(l->model, "model.embed_tokens.weight") : NULL;
    l->logits = gpunn_linear(l->hidden, "lm_head", .out_features = tied ? 0 : c->vocab_size, .no_bias = true,
                             .weight = tied);
    l->logits = capped(l->logits, c->logit_cap);
    l->draw = gpunn_input(l->model, "draw", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH));
    l->next = sampling_token(l->logits, l->draw, o->sample);
    return check(l->dev, l->next != NULL);
}

typedef struct mismatches {
    int  count;
    char first[256];
} mismatches;

/* What is in the file only, such as a head that is tied, stays there. */
static void note_mismatch(void *user, const char *line)
{
    mismatches *m = user;
    if (strstr(line, ": in the file only")) return;
    if (m->count++ == 0) (void)snprintf(m->first, sizeof m->first, "%s", line);
}

static bool is_there(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file) (void)fclose(file);
    return file != NULL;
}

/* The file of the weights: the .gguf, or the folder's index of shards, or its one file. */
static void find_weights(const char *model, char *path, size_t size)
{
    static const char *const names[] = {"model.safetensors.index.json", "model.safetensors", "model.gguf",
                                        "model.safetensors"}; /* again, to be named if there is none */
    bool                     found = is_gguf(model);
    (void)snprintf(path, size, "%s", model);
    for (int i = 0; i < 4 && !found; i++) {
        (void)snprintf(path, size, "%s/%s", model, names[i]);
        found = is_there(path);
    }
}

/* Hugging Face's Gemma holds w - 1 in the place of a norm's w. */
static bool add_one(const llama *l, const char *name, int width)
{
    gpunn_tensor *weight = gpunn_find(l->model, name);
    float        *w = malloc((size_t)width * sizeof *w);
    bool          good = w || fail("out of memory");
    good = good && check(l->dev, gpunn_read(weight, w, (size_t)width * sizeof *w) == GPUNN_OK);
    for (int i = 0; good && i < width; i++) w[i] += 1;
    good = good && check(l->dev, gpunn_write(weight, w, (size_t)width * sizeof *w) == GPUNN_OK);
    free(w);
    return good;
}

static bool add_ones(const llama *l)
{
    static const char *const parts[] = {"input_layernorm",           "post_attention_layernorm",
                                        "pre_feedforward_layernorm", "post_feedforward_layernorm",
                                        "self_attn.q_norm",          "self_attn.k_norm"};
    char                     name[NAME_SIZE];
    bool                     good = add_one(l, "model.norm.weight", l->c.hidden_size);
    for (int i = 0; good && i < l->c.num_hidden_layers; i++)
        for (int k = 0; good && k < (l->c.gemma3 ? 6 : l->c.four_norms ? 4 : 2); k++) {
            (void)snprintf(name, sizeof name, "model.layers.%d.%s.weight", i, parts[k]);
            good = add_one(l, name, k < 4 ? l->c.hidden_size : l->c.head_dim);
        }
    return good;
}

static bool load_weights(const llama *l, const char *model, bool widen)
{
    /* from llama.cpp's names; Hugging Face's fit none of them */
    const char *const  before = l->c.four_norms ? "model.layers.*.pre_feedforward_layernorm.*"
                                                : "model.layers.*.post_attention_layernorm.*";
    const gpunn_rename names[] = {
        {"token_embd.*", "model.embed_tokens.*"},
        {"output_norm.*", "model.norm.*"},
        {"output.weight", "lm_head.weight"},
        {"blk.*.attn_norm.*", "model.layers.*.input_layernorm.*"},
        {"blk.*.ffn_norm.*", before},
        {"blk.*.post_attention_norm.*", "model.layers.*.post_attention_layernorm.*"},
        {"blk.*.post_ffw_norm.*", "model.layers.*.post_feedforward_layernorm.*"},
        {"blk.*.attn_output.*", "model.layers.*.self_attn.o_proj.*"},
        {"blk.*.attn_q.*", "model.layers.*.self_attn.q_proj.*"},
        {"blk.*.attn_k.*", "model.layers.*.self_attn.k_proj.*"},
        {"blk.*.attn_v.*", "model.layers.*.self_attn.v_proj.*"},
        {"blk.*.attn_q_norm.*", "model.layers.*.self_attn.q_norm.*"},
        {"blk.*.attn_k_norm.*", "model.layers.*.self_attn.k_norm.*"},
        {"blk.*.ffn_gate.*", "model.layers.*.mlp.gate_proj.*"},
        {"blk.*.ffn_up.*", "model.layers.*.mlp.up_proj.*"},
        {"blk.*.ffn_down.*", "model.layers.*.mlp.down_proj.*"},
        {NULL, NULL}};
    char       path[1024], text[1600];
    mismatches m = {0};
    find_weights(model, path, sizeof path);
    if (gpunn_load(l->model, path, .map = names, .partial = true, .report = note_mismatch, .user = &m,
                   .keep_blocks = !widen) != GPUNN_OK)
        return check(l->dev, false);
    if (m.count == 0) return !l->c.gemma || l->c.of_gguf || add_ones(l);
    (void)snprintf(text, sizeof text, "'%s' does not fit %s: %d of the weights differ; the first: %s", path,
                   l->c.of_gguf ? "its metadata" : "config.json", m.count, m.first);
    return fail(text);
}

/* ---- text as tokens ------------------------------------------------------------------------------------ */

/* A file of the model's folder, in which a .gguf of weights alone lies. */
static void name_beside(const char *model, const char *name, char path[1024])
{
    const char *last = strrchr(model, '/');
    const int   length = !is_gguf(model) ? (int)strlen(model) : last ? (int)(last - model) : 0;
    (void)snprintf(path, 1024, "%.*s/%s", length ? length : 1, length ? model : ".", name);
}

/* The folder's tokenizer.json, or, as GPT-2's, vocab.json and merges.txt, or the .gguf's. */
static bool read_vocabulary(llama *l, const char *model)
{
    char       file[1024], merges[1024];
    text_error error;
    if (l->c.of_gguf) {
        l->pieces = gguf_tokenizer(gguf_header(l->dev, model, &error), model, &error);
        return l->pieces || fail(error.text);
    }
    name_beside(model, "tokenizer.json", file);
    name_beside(model, "merges.txt", merges);
    const bool whole = is_there(file);
    if (!whole) name_beside(model, "vocab.json", file);
    if (!is_there(file))
        return fail(
            "the folder has neither tokenizer.json nor vocab.json; give the prompt as numbers, by --ids");
    l->pieces = tokenizer_open(file, whole ? NULL : merges, false, &error);
    return l->pieces || fail(error.text);
}

static bool add_token(llama *l, int64_t token)
{
    char text[160];
    if (l->used == l->capacity) {
        (void)snprintf(text, sizeof text,
                       "the prompt has more than the %d tokens of the context; shorten it or give --context",
                       l->capacity);
        return fail(text);
    }
    if (token < 0 || token >= l->c.vocab_size) {
        (void)snprintf(text, sizeof text, "the prompt has token %" PRId64 ", but the model knows 0 to %d",
                       token, l->c.vocab_size - 1);
        return fail(text);
    }
    l->text[l->used++] = token;
    return true;
}

static bool read_ids(llama *l, const char *ids)
{
    bool good = true;
    while (good && *(ids += strspn(ids, ", \t\n"))) {
        char     *end;
        long long id = strtoll(ids, &end, 10);
        good = end != ids ? add_token(l, id) : fail("--ids takes whole numbers between spaces or commas");
        ids = end;
    }
    return good;
}

static bool read_prompt(llama *l, const options *o)
{
    token_list list = {0};
    bool       good = true;
    if (o->ids || o->model == NULL) {
        good = read_ids(l, o->ids ? o->ids : "1");
    } else {
        good = read_vocabulary(l, o->model) &&
               (tokenizer_encode_all(l->pieces, o->prompt, strlen(o->prompt), &list) ||
                fail("out of memory"));
        for (size_t i = 0; good && i < list.count; i++) good = add_token(l, list.items[i].id);
        token_list_free(&list);
    }
    return good && (l->used > 0 || fail("the prompt is empty; give --prompt or --ids"));
}

static void print_token(const llama *l, int64_t token)
{
    size_t      bytes;
    const char *text = l->pieces ? tokenizer_text(l->pieces, token, &bytes) : NULL;
    if (text)
        fwrite(text, 1, bytes, stdout);
    else
        printf(" %" PRId64, token);
    fflush(stdout);
}

/* ---- writing on ---------------------------------------------------------------------------------------- */
/* Runs the tokens from `from` to `to`, whose keys and values go to the cache. */
static bool advance(const llama *l, int64_t from, int64_t to, gpunn_tensor *out)
{
    const size_t bytes = (size_t)(to - from) * sizeof *l->text;
    int64_t     *places = malloc(bytes);
    for (int64_t i = from; places && i < to; i++) places[i - from] = i;
    bool good = places && gpunn_write(l->tokens, l->text + from, bytes) == GPUNN_OK &&
                gpunn_write(l->places, places, bytes) == GPUNN_OK &&
                gpunn_write(l->place, &from, sizeof from) == GPUNN_OK &&
                gpunn_write(l->length, &to, sizeof to) == GPUNN_OK && gpunn_forward(&out, 1) == GPUNN_OK;
    free(places);
    return check(l->dev, good);
}

/* The first `count` tokens, --chunk at a time. logits: NULL, or room for those of all. */
static bool advance_in_chunks(const llama *l, const options *o, int64_t count, float *logits)
{
    const int64_t row = l->c.vocab_size;
    bool          good = true;
    for (int64_t from = 0, to; good && from < count; from = to) {
        to = count - from < o->chunk ? count : from + o->chunk;
        good = advance(l, from, to, logits ? l->logits : l->hidden);
        const size_t bytes = (size_t)((to - from) * row) * sizeof *logits;
        if (good && logits)
            good = check(l->dev, gpunn_read(l->logits, logits + from * row, bytes) == GPUNN_OK);
    }
    return good;
}

static bool write_logits(const llama *l, const options *o)
{
    const char *const name = "logits";
    gpunn_array       a = {.dtype = GPUNN_F32, .rank = 2, .dim = {l->used, l->c.vocab_size}};
    a.bytes = (size_t)(l->used * l->c.vocab_size) * sizeof(float);
    a.data = malloc(a.bytes);
    bool good = a.data ? advance_in_chunks(l, o, l->used, a.data) : fail("out of memory");
    good = good && check(l->dev, gpunn_write_safetensors(l->dev, o->logits, &name, &a, 1) == GPUNN_OK);
    free(a.data);
    return good;
}

static bool is_end(const config *c, int64_t token)
{
    for (int i = 0; i < c->end_count; i++)
        if (c->ends[i] == token) return true;
    return false;
}

static double seconds(void)
{
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Writes on behind the prompt until the text ends, the context is full or enough is written. */
static bool write_on(llama *l, const options *o)
{
    bool    good = advance_in_chunks(l, o, l->used - 1, NULL);
    double  begin = seconds();
    int     made = 0;
    int64_t token;
    if (good && l->pieces) fputs(o->prompt, stdout);
    for (int64_t i = 0; good && l->pieces == NULL && i < l->used; i++) print_token(l, l->text[i]);
    while (good && made < o->generate) {
        const float draw = sampling_draw((uint64_t)o->seed + (uint64_t)made++);
        good = check(l->dev, gpunn_write(l->draw, &draw, sizeof draw) == GPUNN_OK) &&
               advance(l, l->used - 1, l->used, l->next) &&
               check(l->dev, gpunn_read(l->next, &token, sizeof token) == GPUNN_OK);
        if (!good || is_end(&l->c, token)) break;
        print_token(l, token);
        if (l->used == l->capacity) break;
        l->text[l->used++] = token;
    }
    if (good) printf("\n");
    if (good && o->times && made) fprintf(stderr, "%.3f ms a token\n", 1000 * (seconds() - begin) / made);
    return good;
}

/* ---- options ------------------------------------------------------------------------------------------- */
#ifndef LLAMA_WITHOUT_MAIN /* lora.c includes this file */
static void parse(int argc, char **argv, options *o)
{
    const option known[] = {
        {"--model PATH",
         "folder: config.json, vocabulary, model.safetensors or model.gguf; or a .gguf; default: random",
         .text = &o->model},
        {"--prompt TEXT", "how the text begins", .text = &o->prompt},
        {"--ids LIST", "the same as tokens, numbers between spaces; the text is numbers then",
         .text = &o->ids},
        {"--generate N", "tokens to write", .number = &o->generate},
        {"--context N", "tokens that the cache has room for; default 2048, or what the model takes",
         .number = &o->context, .lowest = 1},
        {"--chunk N", "tokens of the prompt that are run at once", .number = &o->chunk, .lowest = 1},
        {"--temperature X", "of the text; 0: always the likeliest token", .real = &o->sample.temperature},
        {"--top-k N", "only the N likeliest tokens are drawn from", .number = &o->sample.top_k, .lowest = 1},
        {"--top-p X", "and of these the fewest that have this share of their probability",
         .real = &o->sample.top_p, .lowest = 1e-6, .highest = 1},
        {"--precision f32|tf32|bf16|f16", "how a GPU computes, and how weights are kept to generate",
         .choice = &o->precision},
        {"--widen", "quantised weights of a .gguf become floats, not only on a GPU", .flag = &o->widen},
        {"--times", "also tells how long a token took", .flag = &o->times},
        {"--seed N", "of drawing, and of random weights", .number = &o->seed},
        {"--threads N", "of the CPU; default 0: all processors", .number = &o->threads},
        {"--cpu", "even where there is a GPU", .flag = &o->cpu},
        {"--logits FILE", "writes the logits of all tokens of the prompt (safetensors), and no text",
         .text = &o->logits, .written = true}};
    options_read(known, sizeof known / sizeof *known, argc, argv);
}
#endif

static void log_line(void *user, gpunn_log_level level, const char *message)
{
    (void)user;
    if (level != GPUNN_LOG_ERROR) fprintf(stderr, "%s\n", message);
}

static bool open_device(llama *l, const options *o)
{
    l->dev = gpunn_device_open(.type = o->cpu ? GPUNN_DEVICE_CPU : GPUNN_DEVICE_AUTO,
                               .seed = (uint64_t)o->seed, .threads = o->threads, .log_fn = log_line);
    return l->dev != NULL || fail(gpunn_error(NULL));
}

/* What the model is made of. */
static bool read_model(llama *l, const char *model)
{
    char         path[1024];
    const config usual = l->c;
    name_beside(model, "config.json", path);
    if (is_gguf(model) && !read_gguf(l->dev, model, &l->c)) return false;
    if (l->c.of_gguf) return true;
    if (is_gguf(model) && !is_there(path))
        return fail("the .gguf has weights only; put the model's config.json beside it");
    l->c = usual;
    return read_config(path, &l->c);
}

/* How many tokens the cache has room for. */
static bool choose_capacity(llama *l, const options *o)
{
    char      text[128];
    const int most = l->c.max_position_embeddings;
    l->capacity = o->context ? o->context : most < 2048 ? most : 2048;
    if (l->capacity > most) {
        (void)snprintf(text, sizeof text, "--context %d is longer than the model's %d positions", l->capacity,
                       most);
        return fail(text);
    }
    l->text = malloc((size_t)l->capacity * sizeof *l->text);
    return l->text != NULL || fail("out of memory");
}

#ifndef LLAMA_WITHOUT_MAIN
int main(int argc, char **argv)
{
    options o = {
        .prompt = "Once upon a time", .generate = 100, .chunk = 512, .seed = 1, .sample = {0.8f, 1, 40}};
    parse(argc, argv, &o);
    llama l = {.c = default_config(o.model == NULL)};
    bool  good = open_device(&l, &o) && (o.model == NULL || read_model(&l, o.model)) && settle(&l.c) &&
                choose_capacity(&l, &o) && read_prompt(&l, &o) && build(&l, &o) &&
                (o.model == NULL || load_weights(&l, o.model, o.widen)) &&
                (o.logits ? write_logits(&l, &o) : write_on(&l, &o));
    gpunn_model_destroy(l.model);
    gpunn_device_close(l.dev);
    if (l.pieces) tokenizer_free(l.pieces);
    free(l.text);
    return good ? 0 : 1;
}
#endif
