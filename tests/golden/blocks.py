#!/usr/bin/env python3
"""Writes blocks.safetensors: blocks of quantised numbers by GGUF's own package (gguf 0.17 or later), which is
tested against ggml, and NF4 by bitsandbytes (0.50 or later). Writes bitsandbytes.safetensors: weights NAME
as bitsandbytes saves them, and values/NAME, the numbers for which they stand. python3 tests/golden/blocks.py

    values             numbers to round
    FORMAT/blocks      their blocks, for the formats that the package rounds to; for others random blocks
    FORMAT/values      the numbers for which the blocks stand
    FORMAT/rounded     the whole blocks of `values`, by the generator if the package does not round to them"""
import array
import os
import sys

import bitsandbytes.functional as bitsandbytes
import gguf
import numpy
import torch
from gguf.quants import dequantize, quantize
from make_golden import save

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from generator.exchange.blocks import FORMATS  # noqa: E402

ROUNDED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
READ = ("Q4_K", "Q5_K", "Q6_K", "IQ4_NL")
HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,)}  # bytes of F16 scales in a block


def numbers():
    """Blocks of random numbers of several scales, ties, one sign, zeros and scales below F16's."""
    draw = numpy.random.default_rng(41)
    rows = [draw.standard_normal(32) * 10.0 ** power for power in (0, 0, 0, 0, -2, -5, -7, 3)]
    rows += [numpy.arange(32) - 16, numpy.arange(32) * 0.5, numpy.arange(-32, 0) * 0.25, numpy.zeros(32),
             numpy.full(32, -3.0), numpy.tile([127, -126.5, 0.5, -0.5], 8), numpy.tile([8, -8], 16)]
    return numpy.concatenate(rows).astype(numpy.float32).reshape(-1, 32)


def random_blocks(name, count=3):
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]
    draw = numpy.random.default_rng(len(name) + size)
    blocks = draw.integers(0, 256, (count, size), dtype=numpy.uint8)
    for at in HALVES[name]:
        scales = (draw.standard_normal((count, 1)) * 0.01).astype(numpy.float16)
        blocks[:, at:at + 2] = scales.view(numpy.uint8)
    return blocks


def nf4(values):
    """Blocks of NF4 as gpunn stores them: the F32 scale, then bitsandbytes' bytes."""
    packed, state = bitsandbytes.quantize_4bit(torch.tensor(values), blocksize=64, quant_type="nf4")
    blocks = torch.cat([state.absmax.view(torch.uint8).reshape(-1, 4), packed.reshape(-1, 32)], 1)
    return blocks, bitsandbytes.dequantize_4bit(packed, state)


def saved_by_bitsandbytes():
    out, draw = {}, torch.Generator().manual_seed(3)
    for name, shape, double, size in (("plain", (6, 128), False, 64), ("double", (5, 64 * 60), True, 64),
                                      ("wide", (2, 256), False, 128), ("odd", (4, 48), True, 64)):
        values = torch.randn(shape, generator=draw) * torch.logspace(-3, 0, shape[0])[:, None]
        packed, state = bitsandbytes.quantize_4bit(values, blocksize=size, quant_type="nf4",
                                                   compress_statistics=double)
        out[name] = packed
        out.update((f"{name}.{part}", x) for part, x in state.as_dict(packed=True).items())
        state.shape = torch.Size((1, values.numel()))  # on a CPU version 0.50 takes each row for whole blocks
        out[f"values/{name}"] = bitsandbytes.dequantize_4bit(packed, state).reshape(shape)
    out["bias"] = torch.randn(7, generator=draw)
    return out


def whole(values, length):
    return values.flatten()[:values.size // length * length].tolist()


def main():
    values = numbers()
    out = {"values": torch.from_numpy(values)}
    for name in ROUNDED + READ:
        kind = gguf.GGMLQuantizationType[name]
        blocks = quantize(values, kind) if name in ROUNDED else random_blocks(name)
        out[f"{name}/blocks"] = torch.from_numpy(blocks)
        out[f"{name}/values"] = torch.from_numpy(dequantize(blocks, kind))
        rounded = FORMATS[name].encode(array.array("f", whole(values, FORMATS[name].length)))
        out[f"{name}/rounded"] = torch.frombuffer(bytearray(rounded), dtype=torch.uint8)
        assert name in READ or bytes(rounded) == blocks.tobytes()
    out["NF4/blocks"], out["NF4/values"] = nf4(whole(values, 64))
    out["NF4/rounded"] = out["NF4/blocks"].flatten()
    save("blocks.safetensors", out)
    save("bitsandbytes.safetensors", saved_by_bitsandbytes())


if __name__ == "__main__":
    main()
