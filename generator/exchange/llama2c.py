"""Reads the models of llama2.c: F32 without a version and of version 1, and 8-bit ones of version 2."""
import array
import struct

from .arrays import Array
from .network import Cursor
from .spec_writer import product
from .tensor_files import FileError

MAGIC = 0x616b3432
MAX_SIZE = 1 << 24  # of a dimension
FIELDS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "vocab_size", "max_position_embeddings")
# Hugging Face's names; layers of one kind stand together in the file.
FIRST = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
SECOND = ("mlp.gate_proj", "mlp.down_proj", "mlp.up_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")


class Model:
    """A file's settings and its tensors by Hugging Face's names."""

    def __init__(self, cursor):
        self.cursor, self.version, self.tensors, self.group = cursor, 0, {}, 0
        if int.from_bytes(cursor.data[:4], "little") == MAGIC:
            cursor.take(4)
            self.version, = cursor.integers()
        sizes = cursor.integers(7)
        self.tied = sizes[5] > 0  # of version 0
        sizes[5] = abs(sizes[5])
        self.config = dict(zip(FIELDS, sizes))
        width, _, _, heads, groups = sizes[:5]
        if (self.version not in (0, 1, 2) or any(not 0 < size <= MAX_SIZE for size in sizes) or
            width % (2 * heads) or heads % groups):
            raise FileError("its header is none of llama2.c's: version %d, sizes %s" % (self.version, sizes))
        self.head = width // heads
        if self.version:
            self.tied = cursor.take(1)[0] != 0
            self.group = cursor.integers()[0] if self.version == 2 else 0
            cursor.take(256 - cursor.at)
        (self.read_oldest if self.version == 0 else self.read_newer)()
        if cursor.left():
            raise FileError("%d bytes follow its weights" % cursor.left())

    def shape(self, part):
        c, width = self.config, self.config["hidden_size"]
        narrow = c["num_key_value_heads"] * self.head
        inner = c["intermediate_size"]
        return {"k_proj": (narrow, width), "v_proj": (narrow, width), "gate_proj": (inner, width),
                "up_proj": (inner, width), "down_proj": (width, inner), "embed_tokens":
                (c["vocab_size"], width), "lm_head": (c["vocab_size"], width)}.get(
                    part, (width,) if "norm" in part else (width, width))

    def read(self, name):
        """One tensor."""
        part = name.rpartition(".")[2]
        shape = self.shape(part)
        x = self.cursor.floats(*shape) if len(shape) == 1 or self.version < 2 else self.dequantized(shape)
        if part in ("q_proj", "k_proj"):
            x = halved(x, self.head)
        self.tensors[name + ".weight"] = x

    def dequantized(self, shape):
        """Groups of bytes, then a factor for each group."""
        count = product(shape)
        if self.group < 1 or count % self.group:
            raise FileError("its groups of %d do not divide %s" % (self.group, list(shape)))
        numbers = array.array("b", bytes(self.cursor.take(count)))
        factors = struct.unpack("<%df" % (count // self.group), self.cursor.take(4 * (count // self.group)))
        values = array.array("f")
        for i, factor in enumerate(factors):
            values.extend([factor * x for x in numbers[i * self.group:(i + 1) * self.group]])
        return Array("float32", shape, raw=values.tobytes())

    def layers(self, *parts):
        for part in parts:
            for i in range(self.config["num_hidden_layers"]):
                self.read("model.layers.%d.%s" % (i, part))

    def read_oldest(self):
        self.read("model.embed_tokens")
        self.layers(NORMS[0], *FIRST, NORMS[1], *SECOND)
        self.read("model.norm")
        self.cursor.take(4 * self.config["max_position_embeddings"] * self.head)  # cosines and sines
        if not self.tied:
            self.read("lm_head")

    def read_newer(self):
        self.layers(*NORMS)
        self.read("model.norm")
        self.read("model.embed_tokens")
        self.layers(*FIRST, *SECOND)
        if not self.tied:
            self.read("lm_head")


def halved(x, head):
    """The rows of queries or keys in Hugging Face's order: of each head first the even ones, then the odd.
    llama2.c turns neighbours, Hugging Face a row of the first half with one of the second."""
    width = len(x.encoded()) // x.shape[0]
    rows = [x.encoded()[i * width:(i + 1) * width] for i in range(x.shape[0])]
    order = [first + k for first in range(0, len(rows), head)
             for k in list(range(0, head, 2)) + list(range(1, head, 2))]
    return Array("float32", x.shape, raw=b"".join(rows[i] for i in order))


def read(data):
    """The configuration and the tensors of a file's bytes, as Hugging Face has them."""
    model = Model(Cursor(data))
    config = dict(model.config, model_type="llama", architectures=["LlamaForCausalLM"], hidden_act="silu",
                  rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=model.tied, bos_token_id=1,
                  eos_token_id=[1, 2])
    return config, model.tensors
