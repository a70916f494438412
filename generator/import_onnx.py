#!/usr/bin/env python3
"""Converts an ONNX model to a spec and its weights, for run_model, gpunn_spec_load and the generator.

    python3 -m generator.import_onnx MODEL.onnx -o NAME [--dynamic] [--size seq=128] [--batch none|4|NAME]
                                                [--fix X.safetensors] [--check X.npz]

This writes NAME.json and NAME.safetensors. Weights, inputs and outputs keep their names. The first axis that
the file leaves open is the batch. Fix other open axes with --size, or let them vary under their names with
--dynamic. If gpunn cannot express something, one error lists all of it, and nothing is written. Files from
ONNX Runtime's optimizer contain ops of its domain com.microsoft; they are read up to ORT_ENABLE_EXTENDED.
A model that ONNX has quantised to 8 bits runs with 8-bit numbers, in plain C with --floats; other weights of
8 bits or less become floats. Only --check needs the packages onnx and numpy: it runs the model and
compares it with ONNX's reference evaluator."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

from .exchange import arrays, onnx_file, tensor_files
from .exchange.onnx_import import Unsupported, import_graph
from .exchange.header import ONE_FILE
from .exchange.spec_writer import (ROOT, Refused, json_text, nan_notes, next_step, save_model,
                                   save_safetensors)


def import_model(path, name, sizes=(), batch=None, fixed=None, dynamic=False, bounds=None, int8=True):
    """Writes NAME.json and NAME.safetensors of an ONNX file, or NAME.gpunn. Returns the spec, and notes for
    the user. int8: with ops of 8-bit numbers where the model is quantised."""
    model = onnx_file.load(path)
    own = os.path.basename(name)
    own = own[:-len(ONE_FILE)] if own.endswith(ONE_FILE) else own
    spec, weights, notes = import_graph(model, own, sizes, batch, fixed, dynamic, bounds, int8)
    save_model(name, json_text(spec), weights)
    return spec, notes + nan_notes(weights)


def check(path, name, values, program, tolerance):
    """For each output, the largest difference between run_model and ONNX's reference evaluator, relative to
    the output's largest value."""
    try:
        import numpy
        from onnx.reference import ReferenceEvaluator
    except ImportError:
        raise SystemExit("--check needs the packages onnx and numpy: pip install onnx numpy") from None
    inputs = {key: numpy.frombuffer(x.encoded(), arrays.CODES[x.kind]).reshape(x.shape)
              for key, x in values.items()}
    evaluator = ReferenceEvaluator(path)
    if set(evaluator.input_names) - set(inputs):
        raise SystemExit("--check lacks the inputs %s" %
                         ", ".join(sorted(set(evaluator.input_names) - set(inputs))))
    expected = evaluator.run(None, inputs)
    with tempfile.TemporaryDirectory() as folder:
        given, found = os.path.join(folder, "in.safetensors"), os.path.join(folder, "out.safetensors")
        save_safetensors(given, {key: tensor_files.for_gpunn(x) for key, x in values.items()})
        files = [name] if name.endswith(ONE_FILE) else [name + ".json", "--weights", name + ".safetensors"]
        done = subprocess.run([program] + files + ["--input", given, "--output", found],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        if done.returncode:
            raise SystemExit(done.stdout.strip())
        results = tensor_files.read_safetensors(found)
    worst = 0.0
    for key, wanted in zip((value.name for value in onnx_file.load(path).graph.message.output), expected):
        got = numpy.array(results[key].values, numpy.float64).reshape(results[key].shape)
        scale = max(1e-3, float(numpy.abs(wanted).max())) if wanted.size else 1
        error = (float(numpy.abs(got - wanted).max()) / scale if got.shape == wanted.shape and got.size else
                 float(got.size))
        print("%s: largest difference %.3g of its largest value" % (key, error))
        worst = error if not error <= worst else worst
    if not worst <= tolerance:
        raise SystemExit("the results differ by more than %g" % tolerance)


def pair(text):
    name, _, size = text.rpartition("=")
    if not name or not size.isdigit() or not int(size):
        raise argparse.ArgumentTypeError("NAME=SIZE is needed, such as seq=128")
    return name, int(size)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python3 -m generator.import_onnx", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Converts an ONNX model to a spec and weights.\n"
        "Only --check needs packages: onnx and numpy.",
        epilog="example:\n  python3 -m generator.import_onnx model.onnx -o model --size seq=128")
    parser.add_argument("model", metavar="MODEL.onnx", help="the ONNX file")
    parser.add_argument("-o", dest="name", metavar="NAME", required=True,
                        help="write NAME.json and NAME.safetensors; one file if NAME ends in .gpunn")
    parser.add_argument("--size", action="append", type=pair, default=[], metavar="NAME=SIZE",
                        help="fix the size of an axis that has only a name in the file, or of INPUT:AXIS")
    parser.add_argument("--dynamic", action="store_true",
                        help="let axes that have only a name vary between runs, as sizes with these names")
    parser.add_argument("--bounds", type=json.loads, default={}, metavar="JSON",
                        help='bounds of such sizes: {"height": {"max": 512, "multiple": 4}}')
    parser.add_argument("--batch", metavar="NAME|SIZE|none",
                        help="name of the batch axis, or a fixed size for it (default: the first axis that "
                        "the file leaves open)")
    parser.add_argument("--floats", action="store_true",
                        help="make a quantised model one of floats that round to 8 bits, for exporters "
                        "and plain C (default: ops of 8-bit numbers)")
    parser.add_argument("--fix", metavar="X", help="file (.npz or .safetensors) of inputs with fixed values, "
                        "which become constants")
    parser.add_argument("--check", metavar="X", help="file (.npz or .safetensors) of inputs, with which to "
                        "compare run_model and ONNX's reference evaluator")
    parser.add_argument("--tolerance", type=float, default=1e-4,
                        help="largest relative difference for --check (default: %(default)s)")
    parser.add_argument("--run-model", metavar="PROGRAM", default=os.path.join(ROOT, "build", "run_model"),
                        help="program for --check (default: build/run_model)")
    options = parser.parse_args(arguments)
    try:
        tensor_files.check_no_text(options.model)
        fixed = tensor_files.read(options.fix) if options.fix else {}
        written, notes = import_model(options.model, options.name, options.size, options.batch, fixed,
                                      options.dynamic, options.bounds, not options.floats)
        for note in notes:
            print(note, file=sys.stderr)
        print(next_step(options.name, written))
        if options.check:
            check(options.model, options.name, tensor_files.read(options.check), options.run_model,
                  options.tolerance)
    except (Unsupported, Refused, onnx_file.OnnxError, tensor_files.FileError, OSError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
