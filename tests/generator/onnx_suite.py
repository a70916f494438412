#!/usr/bin/env python3
"""Runs the ONNX project's own backend suite through the importer and the C library.

    python3 tests/generator/onnx_suite.py [--kind node] [--only PATTERN] [--reasons] [-v]

Needs the packages onnx and numpy, and build/run_model. Each case is imported, run, and compared with the
suite's tolerance. It passes, is refused with a reason that names its op, or is wrong. If inputs of a case
determine shapes (axes, pads, sizes), they are fixed as --fix does, which is counted."""
import argparse
import collections
import glob
import os
import re
import subprocess
import sys
import tempfile
import warnings

import numpy
import onnx
from onnx import numpy_helper

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
from generator.exchange import onnx_file, tensor_files  # noqa: E402
from generator.exchange.arrays import CODES, Array  # noqa: E402
from generator.exchange.onnx_import import Unsupported, import_graph  # noqa: E402
from generator.exchange.spec_writer import Refused, json_text, save_safetensors  # noqa: E402

DATA = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data")
KINDS = ("node", "pytorch-operator", "pytorch-converted", "simple", "light")
# by case, the error of its expected zeros
NOISE = {"test_dft_inverse": 1e-6, "test_dft_inverse_opset19": 1e-6}
DRAWN = re.compile("test_bernoulli")  # cases that expect exactly NumPy's random numbers
# Cases with numbers that ONNX Runtime and PyTorch contradict: those divide by the whole number of results,
# these by scale * cells.
CONTRADICTED = re.compile("test_resize_downsample_scales_(linear|cubic)_align_corners$")
Case = collections.namedtuple("Case", "name model sets rtol atol")


def node_cases():
    from onnx.backend.test.case.node import collect_testcases
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        yield Case(case.name, case.model.SerializeToString(), case.data_sets, case.rtol,
                   NOISE.get(case.name, case.atol))


def tensors_of(folder, part):
    """The tensors input_0.pb, input_1.pb, ... of a data set."""
    result = []
    for i in range(len(glob.glob(os.path.join(folder, part + "_*.pb")))):
        with open(os.path.join(folder, "%s_%d.pb" % (part, i)), "rb") as file:
            result.append(file.read())
    return result


def parsed(chunk):
    tensor = onnx.TensorProto()
    tensor.ParseFromString(chunk)
    return numpy_helper.to_array(tensor)


def stored_cases(kind):
    for folder in sorted(glob.glob(os.path.join(DATA, kind, "*"))):
        with open(os.path.join(folder, "model.onnx"), "rb") as file:
            model = file.read()
        sets = [tuple([Lazy(chunk) for chunk in tensors_of(one, part)] for part in ("input", "output"))
                for one in sorted(glob.glob(os.path.join(folder, "test_data_set_*")))]
        yield Case(os.path.basename(folder), model, sets, 1e-3, 1e-7)


class Lazy:
    """A tensor of a file, read when it is needed, since not every file of the suite contains tensors."""

    def __init__(self, chunk):
        self.chunk = chunk


def light_cases():
    """Architectures whose weights are constants, with the suite's artificial numbers."""
    for path in sorted(glob.glob(os.path.join(DATA, "light", "*.onnx"))):
        model = onnx.load(path)
        given = {t.name for t in model.graph.initializer}
        inputs = []
        for value in model.graph.input:
            shape = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
            if value.name not in given:
                count = int(numpy.prod(shape))
                inputs.append((numpy.arange(count).reshape(shape) / count).astype(numpy.float32))
        with open(path[:-5] + "_output_0.pb", "rb") as file:
            outputs = [Lazy(file.read())]
        yield Case(os.path.basename(path)[:-5], model.SerializeToString(), [(inputs, outputs)], 1e-3, 1e-4)


def cases_of(kind):
    return node_cases() if kind == "node" else light_cases() if kind == "light" else stored_cases(kind)


def array_of(x):
    """The suite's data as an Array; None if it is no tensor of numbers."""
    if isinstance(x, onnx.TensorProto):
        x = numpy_helper.to_array(x)
    if isinstance(x, Lazy):
        x = parsed(x.chunk)
    if not isinstance(x, (numpy.ndarray, numpy.generic)) or x.dtype.name not in CODES:
        return None
    return Array(x.dtype.name, x.shape, raw=numpy.ascontiguousarray(x).tobytes())


def as_numpy(x):
    if isinstance(x, onnx.TensorProto):
        return numpy_helper.to_array(x)
    return parsed(x.chunk) if isinstance(x, Lazy) else numpy.asarray(x)


class Failure(Exception):
    """Why a case is wrong."""


def check_range(node, name, x):
    """Rejects doubles that no 32-bit float holds."""
    if x.kind == "float64" and any(3.5e38 < abs(v) < float("inf") for v in x.values):
        raise Refused("%s '%s': its operand '%s' has values beyond 32-bit floats" %
                      (node.op, node.place, name))


def imported(model, arrays):
    """The spec and weights, with the inputs that determine shapes fixed to these arrays. Also their
    number."""
    fixed = {}
    while True:
        try:
            return import_graph(model, "case", batch="none", fixed=fixed) + (len(fixed),)
        except Unsupported as why:
            more = {name: arrays[name]
                    for name in why.needed if name not in fixed and arrays.get(name) is not None}
            if not more:
                raise
            fixed.update(more)


def run_set(folder, case, inputs, outputs):
    """Runs one data set. Returns how many inputs were fixed."""
    path = os.path.join(folder, "model.onnx")
    with open(path, "wb") as file:
        file.write(case.model)
    model = onnx_file.load(path)
    names = [value.name for value in model.graph.inputs if value.name not in model.graph.initializers]
    arrays = dict(zip(names, map(array_of, inputs)))
    spec, weights, _, fixed = imported(model, arrays)
    files = [os.path.join(folder, name)
             for name in ("case.json", "case.safetensors", "in.safetensors", "out.safetensors")]
    with open(files[0], "w", encoding="ascii") as file:
        file.write(json_text(spec))
    save_safetensors(files[1], weights)
    wanted = {t["name"] for t in spec["tensors"] if t["op"] == "input"}
    fixed = "all" if names and not wanted else fixed
    for name in wanted:
        check_range(model.graph.nodes[0], name, arrays[name])
    save_safetensors(files[2],
                     {name: tensor_files.for_gpunn(x) for name, x in arrays.items() if name in wanted})
    done = subprocess.run([os.path.join(ROOT, "build", "run_model"), files[0], "--weights", files[1],
                           "--input", files[2], "--output", files[3]], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True)
    if done.returncode:
        raise Failure("run_model ended with %d: %s" % (done.returncode, done.stdout.strip()[-300:]))
    results = tensor_files.read_safetensors(files[3])
    for name, expected in zip(model.graph.outputs, map(as_numpy, outputs)):
        compare(name, results[name], expected, case)
    return fixed


def compare(name, got, expected, case):
    if got.shape != expected.shape:
        raise Failure("%s is %s, not %s" % (name, list(got.shape), list(expected.shape)))
    rtol = max(case.rtol, 2.0 ** -6) if expected.dtype.name == "bfloat16" else case.rtol
    own = numpy.array(got.values,
                      numpy.float64).reshape(got.shape).astype(expected.dtype).astype(numpy.float64)
    reference = expected.astype(numpy.float64)
    try:
        numpy.testing.assert_allclose(own, reference, rtol=rtol, atol=case.atol)
    except AssertionError as error:
        raise Failure("%s: %s" % (name, " ".join(str(error).split())[:300])) from None


def outcome(case):
    """pass, refused or wrong, and the reason."""
    if DRAWN.match(case.name):
        return "refused", "Bernoulli '%s': the numbers expected are another generator's" % case.name
    if CONTRADICTED.match(case.name):
        return "refused", "Resize '%s': ONNX Runtime and PyTorch give other numbers" % case.name
    with tempfile.TemporaryDirectory() as folder:
        try:
            fixed = [run_set(folder, case, inputs, outputs) for inputs, outputs in case.sets]
            return "pass", "all" if "all" in fixed else max(fixed, default=0)
        except Unsupported as why:
            return "refused", why.problems[0]
        except (onnx_file.OnnxError, Refused) as why:
            return "refused", str(why).rpartition(path_end)[2]
        except Failure as why:
            return "wrong", str(why)
        except Exception as error:  # an importer must never raise these
            return "crash", "%s: %s" % (type(error).__name__, error)


path_end = "an ONNX model: "


def run(kind, only, verbose):
    """The outcomes of a kind of cases by name."""
    results = {}
    for case in cases_of(kind):
        if only and not re.search(only, case.name):
            continue
        results[case.name] = outcome(case)
        if verbose or results[case.name][0] in ("wrong", "crash"):
            print("%-8s %s: %s" % (results[case.name][0], case.name, results[case.name][1]), flush=True)
    return results


def reason(text):
    """The op that a refusal names, and the reason without names and numbers."""
    op, _, why = text.partition(" '")
    return "%s: %s" % (op, why.partition("': ")[2][:60]) if why else text[:60]


def main():
    parser = argparse.ArgumentParser(description="Runs ONNX's backend suite through gpunn.")
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--only", help="a pattern of names")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell each case")
    parser.add_argument("--reasons", action="store_true", help="count the reasons of refusals")
    options = parser.parse_args()
    failed, reasons = 0, collections.Counter()
    print("| cases | pass | of these with some inputs fixed | with all fixed | refused | wrong | crash |\n" +
          "|---" * 7 + "|")
    for kind in options.kind or KINDS:
        results = run(kind, options.only, options.verbose)
        counts = collections.Counter(what for what, _ in results.values())
        fixed = [how for what, how in results.values() if what == "pass" and how]
        print("| %s, %d | %d | %d | %d | %d | %d | %d |" % (
            kind, len(results), counts["pass"], len(fixed) - fixed.count("all"), fixed.count("all"),
            counts["refused"], counts["wrong"], counts["crash"]), flush=True)
        failed += counts["wrong"] + counts["crash"]
        reasons.update(reason(why) for what, why in results.values() if what == "refused")
    for text, count in reasons.most_common() if options.reasons else ():
        print("%4d %s" % (count, text))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
