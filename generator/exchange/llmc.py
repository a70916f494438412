"""Reads the checkpoints of llm.c: GPT-2 in F32 (version 3) and in BF16 (version 5)."""
from .arrays import Array, transposed
from .network import Cursor
from .spec_writer import product
from .tensor_files import FileError

MAGIC = 20240326
KINDS = {3: "float32", 5: "bfloat16"}
MAX_SIZE = 1 << 24  # of a dimension


def layer_parts(width):
    """The tensors of a layer with Hugging Face's names and llm.c's shapes. Matrices are [out, in] there, [in,
    out] in Hugging Face's files."""
    return (("ln_1.weight", (width,)), ("ln_1.bias", (width,)), ("attn.c_attn.weight", (3 * width, width)),
            ("attn.c_attn.bias", (3 * width,)), ("attn.c_proj.weight", (width, width)),
            ("attn.c_proj.bias", (width,)), ("ln_2.weight", (width,)), ("ln_2.bias", (width,)),
            ("mlp.c_fc.weight", (4 * width, width)), ("mlp.c_fc.bias", (4 * width,)),
            ("mlp.c_proj.weight", (width, 4 * width)), ("mlp.c_proj.bias", (width,)))


def read(data):
    """The configuration and the tensors of a file's bytes, as Hugging Face has them."""
    cursor = Cursor(data)
    version, context, words, layers, heads, width, padded = cursor.integers(8)[1:]
    sizes = (context, words, layers, heads, width, padded)
    if version not in KINDS:
        raise FileError("it is a checkpoint of llm.c of version %d; 3 (F32) and 5 (BF16) are possible" %
                        version)
    if any(not 0 < size <= MAX_SIZE for size in sizes) or padded < words or width % heads:
        raise FileError("its header has the sizes %s" % list(sizes))
    cursor.take(1024 - cursor.at)

    def tensor(*shape):
        wide = 4 if version == 3 else 2
        return Array(KINDS[version], shape, raw=bytes(cursor.take(wide * product(shape))))

    every = tensor(padded, width)  # rows beyond the words are padding
    row = len(every.encoded()) // padded
    tensors = {"wte.weight": Array(every.kind, (words, width), raw=every.encoded()[:words * row]),
               "wpe.weight": tensor(context, width)}
    for name, shape in layer_parts(width):
        for i in range(layers):
            x = tensor(*shape)
            tensors["h.%d.%s" % (i, name)] = transposed(x, (1, 0)) if len(shape) == 2 else x
    tensors.update({"ln_f.weight": tensor(width), "ln_f.bias": tensor(width)})
    if cursor.left():
        raise FileError("%d bytes follow its weights" % cursor.left())
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": words,
              "n_positions": context, "n_embd": width, "n_layer": layers, "n_head": heads,
              "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True}
    return config, tensors
