#!/usr/bin/env python3
"""Writes the weights of a .safetensors or .npz file as a .gguf with fewer bits.

    python3 -m generator.quantize W.safetensors --to q4_0 -o W.gguf [--keep PATTERN]

In C, gpunn_load(model, "W.gguf") loads it. Names are kept. Matrices and larger tensors are rounded. Q4_0 to
Q8_0 have the bits of ggml's reference. Vectors, tensors whose rows are no whole number of blocks, integers,
and what --keep names stay as they are. A million weights take about 0.3 seconds, and 6 for Q4_K, Q5_K, Q6_K
and IQ4_NL, whose scales are searched for."""
import argparse
import array
import fnmatch
import struct
import sys

from .exchange import gguf, tensor_files
from .exchange.arrays import FLOATS, Array, item_size
from .exchange.blocks import FORMATS, half
from .exchange.spec_writer import Refused, product
from .exchange.tensor_files import FileError

PIECE = 1 << 18  # numbers that are rounded at a time, a multiple of any block's length
NUMBERS = {kind: number for number, kind in gguf.PLAIN.items()}


def to_f16(values):
    try:
        return struct.pack("<%de" % len(values), *values)
    except OverflowError:
        return b"".join(map(half, values))


def to_bf16(values):
    """To nearest, ties to even. NaN stays NaN."""
    return array.array("H", [bits >> 16 | 64 if bits & 0x7fffffff > 0x7f800000 else
                             bits + 0x7fff + (bits >> 16 & 1) >> 16
                             for bits in array.array("I", values.tobytes())]).tobytes()


class Plain:
    """A type without blocks."""
    length = 1

    def __init__(self, number, encode):
        self.number, self.encode = number, encode


TARGETS = {"f16": Plain(1, to_f16), "bf16": Plain(30, to_bf16),
           **{name.lower(): one for name, one in FORMATS.items()}}


def rounded(x, target):
    """The bytes of an Array of floats in another type."""
    raw, step = x.encoded(), PIECE * item_size(x.kind)
    pieces = (Array(x.kind, (), raw=raw[at:at + step]) for at in range(0, len(raw), step))
    return b"".join([target.encode(array.array("f", piece.f32_bytes())) for piece in pieces])


def stays(name, x, target, keep):
    return (x.kind not in FLOATS or len(x.shape) < 2 or x.shape[-1] % target.length or
            any(fnmatch.fnmatchcase(name, pattern) for pattern in keep))


def as_it_is(x):
    """A tensor with its own type or, if GGUF has none, the nearest floats."""
    if x.kind in NUMBERS:
        return NUMBERS[x.kind], x.shape, x.encoded()
    return 0, x.shape, x.f32_bytes()


def convert(path, output, to, keep=()):
    """Writes the file. Returns a line for the user."""
    target, before, count = TARGETS[to], 0, 0
    tensors = {}
    for name, x in tensor_files.read(path).items():
        before += product(x.shape) * x.item_size()
        if stays(name, x, target, keep):
            tensors[name] = as_it_is(x)
        else:
            tensors[name] = target.number, x.shape, rounded(x, target)
            count += 1
    gguf.write(output, tensors, {})
    after = sum(len(chunk) for _, _, chunk in tensors.values())
    return "%d of %d tensors are %s; %.1f MB were %.1f MB" % (count, len(tensors), to, after / 1e6,
                                                             before / 1e6)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python3 -m generator.quantize", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Writes the weights of a .safetensors or .npz file as a .gguf with fewer bits. A million "
        "weights take\nabout 0.3 seconds, and 6 for q4_k, q5_k, q6_k and iq4_nl.",
        epilog="example:\n  python3 -m generator.quantize W.safetensors --to q4_0 -o W.gguf --keep '*embed*'")
    parser.add_argument("file", metavar="W.safetensors", help="weights")
    parser.add_argument("--to", choices=TARGETS, default="q8_0", help="type of the rounded tensors")
    parser.add_argument("--keep", action="append", default=[], metavar="PATTERN",
                        help="names of tensors that stay as they are; may be repeated")
    parser.add_argument("-o", dest="output", required=True, metavar="W.gguf", help="file to write")
    options = parser.parse_args(arguments)
    try:
        print(convert(options.file, options.output, options.to, options.keep), file=sys.stderr)
    except (FileError, Refused, OSError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
