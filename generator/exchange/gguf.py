"""Reads and writes GGUF, the files of llama.cpp. F32, F16, BF16 and integers are read as they are, and
blocks become floats. Files are treated as hostile."""
import mmap
import struct

from .arrays import Array, item_size
from .blocks import FORMATS, BlockArray
from .spec_writer import product, write_file
from .tensor_files import FileError

PLAIN = {0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64",
         30: "bfloat16"}
NAMES = {9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
         19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0",
         35: "TQ2_0", 39: "MXFP4"}
VALUES = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}  # struct formats of metadata values
STRING, LIST = 8, 9


GGUF_FORMATS = {name: one for name, one in FORMATS.items() if one.number is not None}
BLOCKS = {one.number: one for one in GGUF_FORMATS.values()}
NAMES.update((one.number, name) for name, one in GGUF_FORMATS.items())


class Reader:
    """Reads a file in order."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, layout):
        value, = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return value

    def skip(self, count):
        if count > len(self.data) - self.at:
            raise ValueError("it is cut off")
        self.at += count
        return self.at - count

    def string(self):
        count = self.take("Q")
        start = self.skip(count)
        return self.data[start:self.at].decode("utf-8")

    def value(self):
        """A value of the metadata; None for a list."""
        kind = self.take("I")
        if kind != LIST:
            return self.string() if kind == STRING else self.take(VALUES[kind])
        kind, count = self.take("I"), self.take("Q")
        if kind == STRING:
            for _ in range(count):
                self.skip(self.take("Q"))
        else:
            self.skip(count * struct.calcsize("<" + VALUES[kind]))
        return None


def tensor(data, start, shape, kind):
    """The Array of a tensor whose bytes begin at an offset."""
    if kind in PLAIN:
        size = product(shape) * item_size(PLAIN[kind])
    elif kind in BLOCKS:
        block = BLOCKS[kind]
        if not shape or shape[-1] % block.length:
            raise ValueError("a row of %s has no whole number of blocks" % list(shape))
        size = product(shape) // block.length * block.bytes
    else:
        raise ValueError("a tensor is of %s; F32, F16, BF16, %s are possible" %
                         (NAMES.get(kind, "type %d" % kind), ", ".join(GGUF_FORMATS)))
    if start + size > len(data):
        raise ValueError("a tensor of %s lies outside the file" % list(shape))
    raw = data[start:start + size]
    return (Array(PLAIN[kind], shape, raw=raw) if kind in PLAIN else
            BlockArray(NAMES[kind], shape, raw))


def parsed(data):
    reader = Reader(data)
    if reader.take("4s") != b"GGUF" or reader.take("I") not in (2, 3):
        raise ValueError("it does not begin as one of version 2 or 3")
    count, facts = reader.take("Q"), reader.take("Q")
    alignment = 32
    for _ in range(facts):
        key, value = reader.string(), reader.value()
        alignment = value if key == "general.alignment" else alignment
    found = {}
    for _ in range(count):
        name, rank = reader.string(), reader.take("I")
        if rank > 8:
            raise ValueError("a tensor has %d axes" % rank)
        shape = [reader.take("Q") for _ in range(rank)][::-1]
        found[name] = shape, reader.take("I"), reader.take("Q")
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError("its alignment is %r" % (alignment,))
    start = -(-reader.at // alignment) * alignment
    return {name: tensor(data, start + offset, shape, kind) for name, (shape, kind, offset) in found.items()}


def read(path):
    """The Arrays of a file by name."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return parsed(data)
    except (ValueError, KeyError, struct.error, OverflowError, MemoryError) as error:
        raise FileError("%s: this is no GGUF file of tensors: %s" % (path, error)) from None


def text(value):
    data = value.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def typed(value):
    """The number of a value's type, and its bytes."""
    if isinstance(value, str):
        return STRING, text(value)
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, int):
        return (4, struct.pack("<I", value)) if 0 <= value < 1 << 32 else (11, struct.pack("<q", value))
    kinds, parts = zip(*map(typed, value)) if value else ((4,), ())
    return LIST, struct.pack("<IQ", kinds[0], len(value)) + b"".join(parts)


def write(path, tensors, metadata, alignment=32):
    """Writes tensors by name, each as the number of its type, its shape and its bytes. metadata: by key, a
    text, truth, number or list of one of these kinds."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata) + 1)]
    end, data = 0, []
    for key, value in {"general.alignment": alignment, **metadata}.items():
        kind, chunk = typed(value)
        head += [text(key), struct.pack("<I", kind), chunk]
    for name, (kind, shape, chunk) in tensors.items():
        head += [text(name), struct.pack("<I%dQIQ" % len(shape), len(shape), *shape[::-1], kind, end)]
        data += [chunk, bytes(-len(chunk) % alignment)]
        end += len(chunk) + len(data[-1])
    write_file(path, head + [bytes(-sum(map(len, head)) % alignment)] + data)
