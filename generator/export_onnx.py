#!/usr/bin/env python3
"""Converts a spec and its weights to an ONNX model.

    python3 -m generator.export_onnx NAME.json NAME.safetensors -o MODEL.onnx
    python3 -m generator.export_onnx NAME.gpunn -o MODEL.onnx

The model computes what evaluation computes: dropout is left out, and norms use their running statistics.
Weights, inputs and outputs keep their names. If ONNX cannot express something, one error lists all of it, and
nothing is written."""
import argparse

from . import json_text, spec
from .exchange import protobuf, tensor_files
from .exchange.onnx_export import Exporter
from .exchange.onnx_file import MAX_BYTES
from .exchange.spec_writer import Refused, write_file


def export(path_json, path_safetensors, path_onnx):
    """Writes the ONNX model of a spec."""
    model = spec.load(path_json)
    if model.sizes:
        raise Refused("has sizes that vary besides the batch, which are not exported; use numbers there")
    message = Exporter(model, tensor_files.read_safetensors(path_safetensors)).run()
    data = protobuf.write(message)
    if len(data) > MAX_BYTES:
        raise Refused("is larger than 2 GiB, which an ONNX file cannot be")
    write_file(path_onnx, [data])


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python3 -m generator.export_onnx", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Converts a spec and its weights to an ONNX model.",
        epilog="example:\n  python3 -m generator.export_onnx net.json net.safetensors -o net.onnx")
    parser.add_argument("spec", metavar="NAME.json", help="spec of the model, or one file of both")
    parser.add_argument("weights", metavar="NAME.safetensors", nargs="?",
                        help="weights of the model (default: those in the first file)")
    parser.add_argument("-o", dest="output", required=True, metavar="MODEL.onnx", help="file to write")
    options = parser.parse_args(arguments)
    try:
        export(options.spec, options.weights or options.spec, options.output)
    except Refused as why:
        raise SystemExit("%s %s" % (options.spec, why)) from None
    except (json_text.SpecError, tensor_files.FileError, OSError) as error:
        raise SystemExit(str(error)) from None
    print("Wrote %s." % options.output)


if __name__ == "__main__":
    main()
