#!/usr/bin/env python3
"""Writes the weights of a .safetensors or .npz file as a .gguf or .safetensors with fewer bits.

    python3 -m generator.quantize W.safetensors --to q4_0 -o W.gguf [--keep PATTERN]
    python3 -m generator.quantize FOLDER/model.safetensors.index.json --to nf4 -o W.safetensors

In C, gpunn_load(model, "W.gguf") loads it. Names are kept. Matrices and larger tensors are rounded. Q4_0 to
Q8_0 have the bits of ggml's reference, NF4 those of bitsandbytes. Where rows are a multiple of 32 but not of
256, the format is Q5_0 for Q4_K, Q5_1 for Q5_K and Q8_0 for Q6_K, as in llama.cpp. Vectors, tensors whose
rows are no whole number of blocks, integers, and what --keep names stay as they are. A million weights take
about 0.3 seconds, and 6 for Q4_K, Q5_K, Q6_K and IQ4_NL, whose scales are searched for.

GGUF has no NF4, so that it needs a .safetensors. Weights that bitsandbytes has stored in NF4 keep their bits
there, also with double quantisation: the scales are F32, as they are where it computes."""
import argparse
import array
import fnmatch
import struct
import sys

from .exchange import bitsandbytes, gguf, tensor_files
from .exchange.arrays import FLOATS, Array, item_size
from .exchange.blocks import FORMATS, BlockArray, half
from .exchange.header import BLOCKS_KEY
from .exchange.spec_writer import Refused, product, save_safetensors
from .exchange.tensor_files import DTYPES, FileError

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
SHORTER = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}  # of 32 numbers, for rows that are not of 256


def rounded(x, target):
    """The bytes of an Array of floats in another type."""
    raw, step = x.encoded(), PIECE * item_size(x.kind)
    pieces = (Array(x.kind, (), raw=raw[at:at + step]) for at in range(0, len(raw), step))
    return b"".join([target.encode(array.array("f", piece.f32_bytes())) for piece in pieces])


def target_of(name, x, to, keep):
    """The name of a tensor's type, or None if it stays as it is."""
    if (x.kind not in FLOATS or len(x.shape) < 2 or
            any(fnmatch.fnmatchcase(name, pattern) for pattern in keep)):
        return None
    to = to if x.shape[-1] % TARGETS[to].length == 0 else SHORTER.get(to, to)
    return to if x.shape[-1] % TARGETS[to].length == 0 else None


def as_it_is(x):
    """A tensor with its own type or, if GGUF has none, the nearest floats."""
    if x.kind in NUMBERS:
        return NUMBERS[x.kind], x.shape, x.encoded()
    return 0, x.shape, x.f32_bytes()


def save_blocks(path, tensors, kept):
    """Writes tensors that are rounded, as names with types, shapes and bytes, and others as they are."""
    metadata, out = {}, {}
    for name, (to, shape, data) in tensors.items():
        block = FORMATS.get(to.upper())
        row = shape[-1] if block is None else shape[-1] // block.length * block.bytes
        out[name] = "U8" if block else to.upper(), (*shape[:-1], row), data
        metadata.update({BLOCKS_KEY + name: to.upper()} if block else {})
    out.update((name, (DTYPES[x.kind], x.shape, x.encoded())) for name, x in kept.items())
    # blocks last, so that the others stay aligned
    save_safetensors(path, dict(sorted(out.items(), key=lambda item: item[1][0] == "U8")), metadata)


def save(path, tensors, kept):
    if path.endswith(".safetensors"):
        save_blocks(path, tensors, kept)
        return
    if any(TARGETS[to].number is None for to, _, _ in tensors.values()):
        raise Refused("GGUF has no NF4; write a .safetensors: -o W.safetensors")
    gguf.write(path, {**{name: (TARGETS[to].number, *one) for name, (to, *one) in tensors.items()},
                      **{name: as_it_is(x) for name, x in kept.items()}}, {})


def convert(path, output, to, keep=()):
    """Writes the file. Returns a line for the user."""
    tensors, kept, counts = {}, {}, {to: 0}
    found = bitsandbytes.joined(path, tensor_files.read(path))
    for name, x in found.items():
        target = target_of(name, x, to, keep)
        if target is None:
            kept[name] = x
        else:
            same = isinstance(x, BlockArray) and x.format == target.upper()
            tensors[name] = target, x.shape, x.data if same else rounded(x, TARGETS[target])
            counts[target] = counts.get(target, 0) + 1
    save(output, tensors, kept)
    before = sum(product(x.shape) * x.item_size() for x in found.values())
    after = (sum(len(data) for _, _, data in tensors.values()) +
             sum(product(x.shape) * x.item_size() for x in kept.values()))
    return "%s of %d tensors; %.1f MB were %.1f MB" % (
        ", ".join("%d %s" % (count, name) for name, count in counts.items()), len(found), after / 1e6,
        before / 1e6)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python3 -m generator.quantize", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Writes the weights of a .safetensors or .npz file as a .gguf or .safetensors with "
        "fewer bits. A\nmillion weights take about 0.3 seconds, and 6 for q4_k, q5_k, q6_k and iq4_nl. "
        "Weights that\nbitsandbytes has stored in NF4 keep their bits with --to nf4.",
        epilog="examples:\n"
        "  python3 -m generator.quantize W.safetensors --to q4_0 -o W.gguf --keep '*embed*'\n"
        "  python3 -m generator.quantize FOLDER/model.safetensors.index.json --to nf4 -o W.safetensors")
    parser.add_argument("file", metavar="W.safetensors", help="weights, or an index of files")
    parser.add_argument("--to", choices=TARGETS, default="q8_0", help="type of the rounded tensors")
    parser.add_argument("--keep", action="append", default=[], metavar="PATTERN",
                        help="names of tensors that stay as they are; may be repeated")
    parser.add_argument("-o", dest="output", required=True, metavar="W.gguf",
                        help="file to write: .gguf or .safetensors")
    options = parser.parse_args(arguments)
    try:
        print(convert(options.file, options.output, options.to, options.keep), file=sys.stderr)
    except (FileError, Refused, OSError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
