"""Writes NAME_embedded.h: a spec's model with its weights, for programs that read no files."""
import json
import struct

from . import emit_model, stamp, weights
from .exchange.blocks import BlockArray
from .exchange.header import BLOCKS_KEY
from .exchange.spec_writer import product
from .exchange.tensor_files import DTYPES


def _to_bf16(bits):
    """Rounds the bits of an F32 to the nearest BF16, ties to even. A NaN stays a NaN."""
    return bits >> 16 | 0x40 if bits & 0x7FFFFFFF > 0x7F800000 else bits + 0x7FFF + (bits >> 16 & 1) >> 16


def converted(x, to, name):
    """The bytes of an Array, converted to that dtype."""
    if DTYPES[x.kind] == to:
        return x.encoded()
    if to == "F32":
        return x.f32_bytes()
    if to == "BF16":
        return struct.pack("<%dH" % x.count(),
                           *(_to_bf16(bits) for bits, in struct.iter_unpack("<I", x.f32_bytes())))
    try:
        return struct.pack("<%de" % x.count(), *x.values)
    except OverflowError:
        raise weights.WeightsError("'%s' has a value that %s cannot hold; store it as bf16 or f32" %
                                   (name, to)) from None


def archive(model, path, store):
    """A safetensors file of exactly the tensors that the model saves. store: the dtype of all of them, or
    None to keep each one's own, and blocks."""
    header, metadata, data, at = {}, {}, [], 0
    for name, x in weights.wanted(path,
                                  [t for t in model.tensors if t.kind in ("parameter", "buffer")]).items():
        dtype, shape = store or DTYPES[x.kind], list(x.shape)
        if store is None and isinstance(x, BlockArray):
            values, dtype = x.data, "U8"
            shape[-1] = len(values) // product(shape[:-1])
            metadata[BLOCKS_KEY + name] = x.format
        else:
            values = converted(x, dtype, name)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(values)]}
        at += len(values)
        data.append(values)
    if metadata:
        header["__metadata__"] = metadata
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(data)


def emit_embedded(model, source, name, file):
    """The text of NAME_embedded.h. file: the bytes that archive() returned."""
    guard = name.upper() + "_EMBEDDED_H"
    words = ["0x%x," % word for word, in struct.iter_unpack("<Q", file + bytes(-len(file) % 8))]
    rows = ["        " + " ".join(words[i:i + 5]) for i in range(0, len(words), 5)]
    return "\n".join(stamp.lines(source, name + "_embedded.h") +
                     ["#ifndef " + guard, "#define " + guard, '#include "gpunn.h"'] +
                     emit_model.body(model, name, inference=True) + [
        "",
        "/* Creates the model with its weights, for inference only. *out receives the tensors that a program",
        " * needs. Returns NULL on failure; gpunn_error(dev) says why. */",
        "static inline gpunn_model *%s_load(gpunn_device *dev, %s_tensors *out)" % (name, name),
        "{",
        "    static const uint64_t weights[%d] = { /* a safetensors file */" % len(words)] + rows + [
        "    };",
        "    gpunn_model *model = %s_create(dev, out);" % name,
        "    if (model && gpunn_load_memory(model, weights, %d, .keep_blocks = true) != GPUNN_OK) {" %
        len(file),
        "        gpunn_model_destroy(model);",
        "        return NULL;",
        "    }",
        "    return model;",
        "}",
        "",
        "#endif",
        ""])
