"""A model's weights from a safetensors file, for programs that contain them: as floats, or as bytes with a
scale for each row. It also measures the error of the latter with a C compiler."""
import ctypes
import math
import os
import shlex
import subprocess
import sys
import tempfile

from . import floats
from .exchange import gguf, tensor_files
from .graph import shape_text
from .inference import CONVOLUTIONS, GATES, recurrent_matrices

KINDS = {"f32": ctypes.c_float, "i64": ctypes.c_int64, "i32": ctypes.c_int32, "u8": ctypes.c_uint8,
         "bool": ctypes.c_uint8}
TYPES = {"f32": "float32", "i64": "int64", "i32": "int32", "u8": "uint8", "bool": "bool"}


class WeightsError(Exception):
    """An error, as one sentence."""


def load(path):
    """The Arrays of a safetensors or GGUF file by name."""
    try:
        with open(path, "rb") as file:
            read = gguf.read if file.read(4) == b"GGUF" else tensor_files.read_safetensors
        return read(path)
    except tensor_files.FileError as fault:
        raise WeightsError(str(fault)) from None
    except OSError as fault:
        raise WeightsError("%s cannot be read: %s" % (path, fault.strerror)) from None


def described(x):
    """An Array, as messages name it. x None: missing."""
    return "nothing" if x is None else "%s %s" % (tensor_files.DTYPES[x.kind], shape_text(x.shape))


def wanted(path, tensors):
    """The Arrays of a model's weights by name. Says on stderr if some are converted to floats."""
    found = load(path)
    missing = [t.name for t in tensors if t.name not in found]
    if missing:
        raise WeightsError("%s lacks %s; save the weights of this model" %
                           (path, ", ".join("'%s'" % name for name in missing)))
    for t in tensors:
        x = found[t.name]
        if x.shape != tuple(t.shape):
            raise WeightsError("'%s' in %s is %s, but must be %s" %
                               (t.name, path, described(x), shape_text(t.shape)))
    chosen = {t.name: found[t.name] for t in tensors}
    for note in tensor_files.conversion_notes(chosen):
        print("%s: %s" % (path, note), file=sys.stderr)
    return chosen


def read(path, plan):
    """{id: numbers} for all weights of a plan."""
    found = wanted(path, plan.weights)
    return {t.id: list(memoryview(found[t.name].f32_bytes()).cast("f")) for t in plan.weights}


# ---- bytes -------------------------------------------------------------------------------------------------
def is_product(step, i):
    """Whether a step reads tensor i only as the matrix of a product, or as rows that it looks up."""
    t = step.tensor
    if t.op in ("linear", "embedding") or t.op in CONVOLUTIONS:
        return t.inputs[1] == i and t.inputs.count(i) == 1
    if t.op in GATES:
        return i in recurrent_matrices(t)
    return False


def quantizable(plan):
    """The ids of the weights that can be bytes. Of a recurrent layer it is all or none."""
    chosen = {t.id for t in plan.weights if len(t.shape) > 1 and all(
        is_product(step, t.id) for step in plan.steps if t.id in step.operands)}
    chosen -= {plan.tensors[i].inputs[0]
               for i in plan.needed if plan.tensors[i].op in ("reshape", "slice", "dropout")}
    chosen -= set(plan.outputs)
    while True:
        broken = set()
        for step in plan.steps:
            if step.tensor.op in GATES:
                own = set(recurrent_matrices(step.tensor))
                broken |= own & chosen if own - chosen else set()
        if not broken:
            return chosen
        chosen -= broken


def quantize(plan, numbers):
    """{id: (scales, bytes)}: each row as integers -127 .. 127 times the smallest scale that covers it."""
    result = {}
    for i in sorted(quantizable(plan)):
        shape = plan.tensors[i].shape
        width, scales, rows = math.prod(shape[1:]), [], []
        for start in range(0, len(numbers[i]), width):
            row = numbers[i][start:start + width]
            scale = floats.f32(max(map(abs, row)) / 127) or 1.0
            scales.append(scale)
            rows += [max(-127, min(127, math.floor(value / scale + 0.5))) for value in row]
        result[i] = scales, rows
    return result


# ---- what they cost ----------------------------------------------------------------------------------------
def cost(plan, name, exact, small, path):
    """Lines that compare the outputs of two texts of NAME_inference.h for the samples of a file."""
    samples = inputs(plan, path)
    with tempfile.TemporaryDirectory() as folder:
        results = [[run(plan, name, library, one) for one in samples]
                   for library in (compiled(folder, "exact", name, exact),
                                   compiled(folder, "small", name, small))]
    lines = ["int8 against float, %d samples:" % (len(samples) * plan.batch)]
    for k, i in enumerate(plan.outputs):
        pairs = [pair for one, other in zip(*results) for pair in zip(one[k], other[k])]
        size = math.sqrt(math.fsum(a * a for a, _ in pairs) / len(pairs))
        error = math.sqrt(math.fsum((a - b) ** 2 for a, b in pairs) / len(pairs))
        lines.append("  %s: largest difference %.3g, root mean square %.3g of %.3g (%.2f %%)" % (
            plan.tensors[i].label, max(abs(a - b) for a, b in pairs), error, size,
            100 * error / size if size else 0))
    return "\n".join(lines) + "\n"


def inputs(plan, path):
    """The arguments of calls, as lists of ctypes arrays: one call for each whole batch."""
    found, columns = load(path), []
    for t in plan.inputs:
        x, own, batched = found.get(t.name), plan.shape(t.id), bool(t.shape) and t.shape[0] < 0
        if x is None or x.kind != TYPES[t.dtype] or x.shape[batched:] != own[batched:] or -1 in t.shape[1:]:
            raise WeightsError("'%s' in %s is %s, but must be %s %s, with N as its first axis" % (
                t.name, path, described(x), tensor_files.DTYPES[TYPES[t.dtype]], shape_text(t.shape)))
        numbers, size = x.values, plan.count(t.id)
        columns.append([(KINDS[t.dtype] * size)(*numbers[start:start + size])
                        for start in range(0, len(numbers) - size + 1, size)])
    calls = min([len(column) for t, column in zip(plan.inputs, columns) if t.shape and t.shape[0] < 0],
                default=1)
    if calls == 0:
        raise WeightsError("%s has fewer samples than the %d of one call" % (path, plan.batch))
    return [[column[k if len(column) > 1 else 0] for column in columns] for k in range(calls)]


def compiled(folder, part, name, text):
    """The compiled library of a text."""
    header, library = os.path.join(folder, part + ".h"), os.path.join(folder, part + ".so")
    with open(header, "w", encoding="ascii") as file:
        file.write(text)
    compiler = shlex.split(os.environ.get("CC", "cc"))
    define = "-D%s_INFERENCE_IMPLEMENTATION" % name.upper()
    try:
        done = subprocess.run(compiler + ["-O2", "-shared", "-fPIC", define, "-x", "c", header, "-o",
                                          library], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as fault:
        raise WeightsError("--samples needs a C compiler, but %s cannot be run: %s" %
                           (compiler[0], fault.strerror)) from None
    if done.returncode:
        raise WeightsError("the C compiler %s rejects the generated code: %s" %
                           (compiler[0], done.stdout.decode(errors="replace")[:300]))
    return ctypes.CDLL(library)


def run(plan, name, library, arguments):
    """The numbers of the outputs for one call's inputs."""
    results = [(KINDS[plan.tensors[i].dtype] * plan.count(i))() for i in plan.outputs]
    words = [ctypes.byref(ctypes.c_char.in_dll(library, name + "_trained"))] if plan.weights else []
    words += arguments + results
    if plan.states:
        count = sum(plan.count(t.id) for t in plan.states) + len(plan.rings)
        words.append(ctypes.create_string_buffer(4 * count))
        getattr(library, name + "_reset")(words[-1])
    words += [ctypes.create_string_buffer(8 * sum(plan.sizes().values()))] if plan.sizes() else []
    getattr(library, name + "_forward")(*words)
    return [list(result) for result in results]
