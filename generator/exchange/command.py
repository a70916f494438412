"""What the importers of whole networks share: their command lines and the files they write."""
import argparse
import os
import sys

from .onnx_import import Unsupported
from .spec_writer import Refused, json_text, nan_notes, save_safetensors, write_file
from .tensor_files import FileError, check_no_text


def parser(name, description, example):
    result = argparse.ArgumentParser(
        prog="python3 -m generator." + name, formatter_class=argparse.RawDescriptionHelpFormatter,
        description=description, epilog="example:\n  python3 -m generator.%s %s" % (name, example))
    result.add_argument("-o", dest="name", metavar="NAME", required=True,
                        help="write NAME.json and NAME.safetensors")
    return result


def run(name, files, convert):
    """Writes the files of a network. convert: a function of its title that gives the spec, its weights and
    notes."""
    try:
        for path in files:
            check_no_text(path)
        spec, weights, notes = convert(os.path.basename(name))
        text = json_text(spec).encode("ascii")
        save_safetensors(name + ".safetensors", weights)
        write_file(name + ".json", [text])
    except (Unsupported, Refused, FileError, OSError) as error:
        raise SystemExit(str(error)) from None
    for note in notes + nan_notes(weights):
        print(note, file=sys.stderr)
