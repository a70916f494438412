#!/usr/bin/env python3
"""Converts weight files to safetensors, without PyTorch.

    python3 -m generator.import_torch FILE.pt -o NAME.safetensors [--key state_dict]

It reads what torch.save writes (in the zip format or the older one), TorchScript archives, NumPy's .npz,
llama.cpp's .gguf, and a state_dict() as .json. Names are kept; those of a whole module are its
state_dict()'s. Floats become F32, and so do the quantized tensors of .gguf (Q4_0 to Q8_0, Q4_K to Q6_K,
IQ4_NL).
The pickle in a .pt is read by an unpickler that knows tensors and records the rest, so no code of a file
runs. If a checkpoint holds several groups of tensors (weights, an optimizer's state), name one with --key;
the error lists them."""
import argparse
import json
import os
import sys

from .exchange import gguf, keras_json, pickles, tensor_files
from .exchange.arrays import FLOATS8
from .exchange.spec_writer import Refused, nan_notes, save_safetensors


def chosen(groups, key, path):
    """The group of tensors with that name, or the only one."""
    if key is None and len(groups) == 1:
        return next(iter(groups.values()))
    known = sorted(group or "." for group in groups)
    if not groups:
        raise tensor_files.FileError("%s: it holds no tensors" % path)
    if key not in known:
        raise tensor_files.FileError("%s: it holds the groups %s; choose one with --key" %
                                     (path, ", ".join(known[:20])))
    return groups["" if key == "." else key]


def stored(x):
    """An Array with the dtype to be written. Integers of 2^63 and more stay U64, which gpunn reads as
    floats."""
    is_large = x.kind == "uint64" and any(value >= 1 << 63 for value in x.values)
    return ("U64", x.shape, x.encoded()) if is_large else tensor_files.for_gpunn(x)


def convert(path, output, key=None):
    """Converts the tensors of a .pt, .npz, .gguf or .json file. Returns notes for the user."""
    tensor_files.check_no_text(path)
    readers = {".npz": tensor_files.read_npz, ".gguf": gguf.read, ".json": keras_json.read_state}
    read = readers.get(os.path.splitext(path)[1], lambda path: chosen(pickles.read(path), key, path))
    found = read(path)
    tensors = {name: stored(x) for name, x in found.items()}
    save_safetensors(output, tensors)
    floats8 = {name: x for name, x in found.items() if x.kind in FLOATS8}
    large = ["'%s' holds integers of 2^63 and more and stays U64, which gpunn reads as floats only" % name
             for name, (kind, _, _) in tensors.items() if kind == "U64"]
    return tensor_files.conversion_notes(floats8) + large + nan_notes(tensors)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python3 -m generator.import_torch", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Converts weights of PyTorch, NumPy or llama.cpp to safetensors, without PyTorch.",
        epilog="example:\n  python3 -m generator.import_torch net.pt -o net.safetensors --key state_dict")
    parser.add_argument("file", metavar="FILE.pt", help="file of torch.save, or .npz, .gguf or .json")
    parser.add_argument("-o", dest="output", required=True, metavar="NAME.safetensors",
                        help="file to write")
    parser.add_argument("--key", help="group of tensors in a checkpoint with several; . is the outermost "
                        "(default: the only group)")
    options = parser.parse_args(arguments)
    try:
        for note in convert(options.file, options.output, options.key):
            print(note, file=sys.stderr)
    except (tensor_files.FileError, Refused, OSError) as error:
        raise SystemExit(str(error)) from None
    print("Wrote %s. Next, in C: gpunn_load(model, %s)" % (options.output, json.dumps(options.output)))


if __name__ == "__main__":
    main()
