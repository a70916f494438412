"""What the importers of whole networks share: their command lines and the files they write."""
import argparse
import os
import sys

from .onnx_import import Unsupported
from .spec_writer import Refused, json_text, nan_notes, save_safetensors, write_file
from .tensor_files import FileError, check_no_text


def run(arguments, name, example, description, options, convert):
    """An importer's main function. options: those of argparse by name, beside -o; the ones without "-" are
    files. convert: a function of a title and of the options that gives the spec, its weights and notes."""
    parser = argparse.ArgumentParser(
        prog="python3 -m generator." + name, formatter_class=argparse.RawDescriptionHelpFormatter,
        description=description, epilog="example:\n  python3 -m generator.%s %s" % (name, example))
    for option, settings in options.items():
        parser.add_argument(option, **settings)
    parser.add_argument("-o", dest="name", metavar="NAME", required=True,
                        help="write NAME.json and NAME.safetensors")
    given = vars(parser.parse_args(arguments))
    name = given.pop("name")
    try:
        for option in options:
            if not option.startswith("-"):
                check_no_text(given[option])
        write(name, *convert(os.path.basename(name), **given))
    except (Unsupported, Refused, FileError, OSError) as error:
        raise SystemExit(str(error)) from None


def write(name, spec, weights, notes):
    """Writes the files of a network, and prints notes."""
    text = json_text(spec).encode("ascii")
    save_safetensors(name + ".safetensors", weights)
    write_file(name + ".json", [text])
    for note in notes + nan_notes(weights):
        print(note, file=sys.stderr)
