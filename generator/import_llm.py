#!/usr/bin/env python3
"""Converts a model of llama2.c or llm.c to a folder as Hugging Face has them.

    python3 -m generator.import_llm stories15M.bin -o FOLDER

This writes FOLDER/config.json and FOLDER/model.safetensors, for examples/llama.c, examples/gpt2.c and
transformers. It reads files of llama2.c in F32 (with or without a version) and in 8 bits, which become
floats, and llm.c's GPT-2 in F32 and BF16. Tokens are numbers: a tokenizer.bin is not read."""
import argparse
import json
import os
import struct
import sys

from .exchange import llama2c, llmc
from .exchange.spec_writer import nan_notes, save_safetensors, write_file
from .exchange.tensor_files import FileError, check_no_text, for_gpunn


def convert(path, folder):
    """Writes the two files. Returns notes for the user."""
    check_no_text(path)
    with open(path, "rb") as file:
        data = file.read()
    try:
        config, tensors = (llmc if data[:4] == struct.pack("<i", llmc.MAGIC) else llama2c).read(data)
    except FileError as why:
        raise FileError("%s: %s" % (path, why)) from None
    written = {name: for_gpunn(x) for name, x in tensors.items()}
    os.makedirs(folder, exist_ok=True)
    save_safetensors(os.path.join(folder, "model.safetensors"), written)
    write_file(os.path.join(folder, "config.json"), [json.dumps(config, indent=1).encode("ascii"), b"\n"])
    return nan_notes(written)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python3 -m generator.import_llm", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Converts a model of llama2.c or llm.c to a folder as Hugging Face has them.",
        epilog="example:\n  python3 -m generator.import_llm stories15M.bin -o stories15M")
    parser.add_argument("file", metavar="F.bin", help="the model")
    parser.add_argument("-o", dest="folder", required=True, metavar="FOLDER", help="folder to write")
    options = parser.parse_args(arguments)
    try:
        for note in convert(options.file, options.folder):
            print(note, file=sys.stderr)
    except (FileError, OSError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
