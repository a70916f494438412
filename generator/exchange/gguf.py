"""Reads GGUF, the files of llama.cpp. F32, F16, BF16 and integers stay as they are; Q8_0, Q4_K and Q6_K
become floats. Files are treated as hostile."""
import array
import mmap
import struct

from .arrays import Array, item_size
from .spec_writer import product
from .tensor_files import FileError

PLAIN = {0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64",
         30: "bfloat16"}
NAMES = {2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K",
         15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
         22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"}
VALUES = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}  # struct formats of metadata values
STRING, LIST = 8, 9


def q8_0(data):
    """Blocks of 32: a scale, and a byte per number."""
    result = array.array("f")
    for scale, *numbers in struct.iter_unpack("<e32b", data):
        result.extend([scale * number for number in numbers])
    return result


def q4_k(data):
    """Blocks of 256 in eight parts. Each part has a 6-bit scale and minimum. A byte holds numbers of two
    parts."""
    result = array.array("f")
    for scale, least, packed, numbers in struct.iter_unpack("<ee12s128s", data):
        scales = [byte & 63 for byte in packed[:4]] + [low & 15 | high >> 6 << 4
                                                       for low, high in zip(packed[8:], packed)]
        minima = [byte & 63 for byte in packed[4:8]] + [low >> 4 | high >> 6 << 4
                                                        for low, high in zip(packed[8:], packed[4:])]
        for part in range(8):
            step, start = scale * scales[part], least * minima[part]
            half, shift = numbers[part // 2 * 32:part // 2 * 32 + 32], part % 2 * 4
            result.extend([step * (byte >> shift & 15) - start for byte in half])
    return result


def q6_k(data):
    """Blocks of 256 in sixteen parts, each with a scale. A number's low four bits and its high two are stored
    apart."""
    result = array.array("f")
    for low, high, *scales, scale in struct.iter_unpack("<128s64s16be", data):
        for part in range(8):
            half, k = divmod(part, 4)
            lows, highs = low[64 * half + k % 2 * 32:][:32], high[32 * half:][:32]
            numbers = [(a >> k // 2 * 4 & 15 | (b >> 2 * k & 3) << 4) - 32 for a, b in zip(lows, highs)]
            steps = [scale * scales[2 * part + i] for i in (0, 1)]
            result.extend([steps[i // 16] * number for i, number in enumerate(numbers)])
    return result


# numbers and bytes of a block, and its decoder
BLOCKS = {8: (32, 34, q8_0), 12: (256, 144, q4_k), 14: (256, 210, q6_k)}


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
        width, block, decode = BLOCKS[kind]
        if not shape or shape[-1] % width:
            raise ValueError("a row of %s has no whole number of blocks" % list(shape))
        size = product(shape) // width * block
    else:
        raise ValueError("a tensor is of %s; F32, F16, BF16, Q8_0, Q4_K and Q6_K are possible" %
                         NAMES.get(kind, "type %d" % kind))
    if start + size > len(data):
        raise ValueError("a tensor of %s lies outside the file" % list(shape))
    raw = data[start:start + size]
    return (Array(PLAIN[kind], shape, raw=raw) if kind in PLAIN else
            Array("float32", shape, raw=decode(raw).tobytes()))


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
