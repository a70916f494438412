"""NAME_device.cuh, compiled as C++ with the emulator's CUDA, against run_model: values, by one thread and by
warps on the emulated GPU, and gradients of the input."""
import array
import json
import math
import os
import random
import re
import shutil
import subprocess
import tempfile
import unittest

from generator import emit_device, floats, inference, spec, stamp
from generator.emit_inference import STORED
from tests import tensor_file
from tests.generator import names

from .test_run_model import call, difference

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
EMULATOR = os.path.join(ROOT, "tests", "emulator")
SANITIZE = "-g -fsanitize=address,undefined -fno-sanitize-recover=all".split()
SAMPLES = 45  # the last warp has unused lanes
TOLERANCE = {"y": 1e-5, "grad.x": 1e-4}
# factors of products are rounded to 10 bits of mantissa, or to 7
OF_WARP = {"f32": 5e-3, "f16": 5e-3, "bf16": 4e-2}
RANDOM = ["random%d" % k for k in range(6)]
BODIES = {  # of models from x [N, 6] to y
    "perceptron": [
        {"op": "linear", "name": "fc1", "inputs": ["x"], "out_features": 9},
        {"op": "silu", "id": "a", "inputs": ["fc1"]},
        {"op": "linear", "name": "fc2", "inputs": ["a"], "out_features": 3, "bias": False}],
    "residuals": [
        {"op": "linear", "name": "up", "inputs": ["x"], "out_features": 6},
        {"op": "gelu", "id": "a", "inputs": ["up"]},
        {"op": "add", "id": "b", "inputs": ["a", "x"]}, {"op": "mul", "id": "c", "inputs": ["b", "a"]},
        {"op": "expr", "id": "d", "inputs": ["c", "x"], "expression": "x * sigmoid(y) + maximum(x, y)"}],
    "norms": [
        {"op": "layer_norm", "name": "ln", "inputs": ["x"]},
        {"op": "linear", "name": "fc", "inputs": ["ln"], "out_features": 7},
        {"op": "rms_norm", "name": "rms", "inputs": ["fc"]}, {"op": "tanh", "id": "t", "inputs": ["rms"]},
        {"op": "linear", "name": "out", "inputs": ["t"], "out_features": 4},
        {"op": "softmax", "id": "p", "inputs": ["out"], "dim": 1}],
    "parts": [
        {"op": "slice", "id": "a", "inputs": ["x"], "dim": 1, "start": 0, "end": 4},
        {"op": "sin", "id": "s", "inputs": ["a"]},
        {"op": "slice", "id": "b", "inputs": ["x"], "dim": 1, "start": 1, "end": 6, "step": 2},
        {"op": "concat", "id": "c", "inputs": ["s", "x", "b"], "dim": 1},
        {"op": "linear", "name": "fc", "inputs": ["c"], "out_features": 6},
        {"op": "reshape", "id": "r", "inputs": ["fc"], "shape": ["N", 2, 3]},
        {"op": "permute", "id": "t", "inputs": ["r"], "dims": [0, 2, 1]},
        {"op": "linear", "name": "rows", "inputs": ["t"], "out_features": 2},
        {"op": "mean", "id": "m", "inputs": ["rows"], "dims": [2]},
        {"op": "log_softmax", "id": "l", "inputs": ["m"], "dim": 1}],
    "wide": [
        {"op": "linear", "name": "fc1", "inputs": ["x"], "out_features": 90},
        {"op": "relu", "id": "a", "inputs": ["fc1"]},
        {"op": "linear", "name": "fc2", "inputs": ["a"], "out_features": 90},
        {"op": "relu", "id": "b", "inputs": ["fc2"]},
        {"op": "linear", "name": "fc3", "inputs": ["b"], "out_features": 2}],
    "fillings": [  # 0 is no number for the formula, and must not be counted
        {"op": "linear", "name": "fc1", "inputs": ["x"], "out_features": 5},
        {"op": "expr", "id": "a", "inputs": ["fc1"], "expression": "x * x / abs(x)"},
        {"op": "linear", "name": "fc2", "inputs": ["a"], "out_features": 7},
        {"op": "sigmoid", "id": "b", "inputs": ["fc2"]}, {"op": "layer_norm", "name": "ln", "inputs": ["b"]},
        {"op": "linear", "name": "fc3", "inputs": ["ln"], "out_features": 3},
        {"op": "log_softmax", "id": "p", "inputs": ["fc3"], "dim": 1}],
    "constants": [
        {"op": "constant", "id": "c", "shape": [6], "values": [1, -2, 3, 0.5, 0.25, -1]},
        {"op": "mul", "id": "a", "inputs": ["x", "c"]},
        {"op": "linear", "name": "fc", "inputs": ["a"], "out_features": 6},
        {"op": "add", "id": "d", "inputs": ["fc", "c"]}],
    "fields": [
        {"op": "slice", "id": "points", "inputs": ["x"], "dim": 1, "start": 1, "end": 4},
        {"op": "slice", "id": "rest", "inputs": ["x"], "dim": 1, "start": 0, "end": 2},
        {"op": "hash_grid_encoding", "name": "hashed", "inputs": ["points"], "n_levels": 5,
         "log2_hashmap_size": 6, "base_resolution": 3, "per_level_scale": 1.5},
        {"op": "reshape", "id": "pairs", "inputs": ["x"], "shape": ["N", 3, 2]},
        {"op": "hash_grid_encoding", "name": "flat", "inputs": ["pairs"], "n_levels": 2,
         "n_features_per_level": 3, "log2_hashmap_size": 5, "base_resolution": 4},
        {"op": "flatten", "id": "pairs2", "inputs": ["flat"]},
        {"op": "frequency_encoding", "id": "waves", "inputs": ["rest"], "num_frequencies": 2},
        {"op": "one_blob_encoding", "id": "blobs", "inputs": ["rest"], "num_bins": 3},
        {"op": "spherical_harmonics_encoding", "id": "harmonics", "inputs": ["points"], "degree": 4},
        {"op": "embedding", "name": "codes", "inputs": ["words"], "num_embeddings": 7, "embedding_dim": 3},
        {"op": "flatten", "id": "code", "inputs": ["codes"]},
        {"op": "concat", "id": "all", "inputs": ["hashed", "pairs2", "waves", "blobs", "harmonics", "code"],
         "dim": 1},
        {"op": "linear", "name": "fc1", "inputs": ["all"], "out_features": 9},
        {"op": "tanh", "id": "h", "inputs": ["fc1"]},
        {"op": "linear", "name": "fc2", "inputs": ["h"], "out_features": 3}],
    "words": [
        {"op": "reshape", "id": "turned", "inputs": ["words"], "shape": ["N", 2, 1]},
        {"op": "embedding", "name": "codes", "inputs": ["turned"], "num_embeddings": 7, "embedding_dim": 5},
        {"op": "sum", "id": "bag", "inputs": ["codes"], "dims": [1, 2]},
        {"op": "linear", "name": "fc", "inputs": ["bag"], "out_features": 3}]}
WORDS = {"op": "input", "name": "words", "dtype": "i64", "shape": ["N", 2]}
INPUTS = {"fields": [WORDS], "words": [dict(WORDS, dtype="i32")]}  # besides x or, for words, instead of it
IN_F32 = ("fields",)  # their hash grids' tables
MAIN = """#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <type_traits>
%(includes)s
static bool taken(void *to, size_t bytes) { return fread(to, bytes, 1, stdin) == 1; }
static float *floats(size_t count, float value)
{
    float *made = (float *)malloc(count * sizeof(float));
    for (size_t i = 0; i < count; i++) made[i] = value;
    return made;
}
template <typename T> static T *room()
{
    return (T *)aligned_alloc(16, (sizeof(T) + 15) / 16 * 16);
}

/* An input: `size` numbers of each sample. */
template <typename T> struct rows {
    T *all;
    int size;
    const T *of(int i) const { return all + i * size; }
};
template <typename T> static rows<T> taken_rows(int n, int size)
{
    const size_t bytes = (size_t)(n * size) * sizeof(T);
    const rows<T> made = {(T *)malloc(bytes), size};
    if (!taken(made.all, bytes)) exit(2);
    return made;
}

template <auto forward, auto gradient, typename Weights, typename... Inputs>
static void by_threads(const Weights *weights, const float *dy, int n, int in, int out, Inputs... inputs)
{
    float *y = floats((size_t)(n * out), 0), *dx = floats((size_t)(n * in), 0);
    for (int i = 0; i < n; i++) {
        forward(weights, inputs.of(i)..., y + i * out);
        if constexpr (!std::is_null_pointer_v<decltype(gradient)>)
            gradient(weights, inputs.of(i)..., dy, dx + i * in);
    }
    fwrite(y, sizeof(float), (size_t)(n * out), stdout);
    fwrite(dx, sizeof(float), (size_t)(n * in), stdout);
    free(y);
    free(dx);
}

template <auto forward, typename Weights, typename... Inputs>
static __global__ void kernel(const Weights *weights, float *y, int n, int out, int samples, Inputs... inputs)
{
    const int thread = (int)(threadIdx.x + blockDim.x * (threadIdx.y +
                       blockDim.y * (threadIdx.z + blockDim.z * blockIdx.x)));
    const int i = thread / 32 * samples + thread %% 32;
    forward(weights, inputs.of(i)..., y + i * out, thread %% 32 < samples && i < n);
}
/* No sample beyond the last one is written. */
template <auto forward, typename Weights, typename... Inputs>
static void by_warps(const Weights *weights, int n, int out, int samples, Inputs... inputs)
{
    cudaStream_t stream;
    float *const y = floats((size_t)((n + 1) * out), 12345);
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) exit(3);
    const unsigned blocks = (unsigned)((n + samples * 2 - 1) / (samples * 2));
    auto launch = emulator_prepare(stream, "forward", blocks, dim3(4, 8, 2),
                                   kernel<forward, Weights, Inputs...>);
    if (launch(weights, y, n, out, samples, inputs...) != cudaSuccess ||
        cudaStreamSynchronize(stream) != cudaSuccess)
        exit(4);
    for (int i = 0; i < out; i++)
        if (y[n * out + i] != 12345) exit(5);
    fwrite(y, sizeof(float), (size_t)(n * out), stdout);
    free(y);
    cudaStreamDestroy(stream);
}

int main(int, char **argv)
{
    (void)argv;
%(cases)s
    return 0;
}
"""
CASE = """    if (strcmp(argv[1], "%(name)s") == 0) {
        auto *const  given = room<%(name)s_weights>(); /* what is static is the blocks' shared memory */
        float *const dy = floats(%(out)d, 0);
        if (!taken(given, sizeof *given) || !taken(dy, %(out)d * sizeof *dy)) return 2;
%(runs)s
        free(given), free(dy);
    }"""


def random_body(numbers):
    """Layers of all kinds in a random order, from x [N, 6] to a result of any width."""
    entries, values = [], [("x", 6)]

    def add(op, width, *inputs, **rest):
        name = "v%d" % len(entries)
        entries.append(dict({"op": op, "name" if op in ("linear", "layer_norm", "rms_norm", "parameter") else
                             "id": name}, **rest))
        if inputs:
            entries[-1]["inputs"] = list(inputs)
        if op != "parameter":
            values.append((name, width))
        return name

    def some(fits=lambda width: True):
        """A value of a fitting width. Later ones are more likely."""
        for name, width in sorted(values, key=lambda _: numbers.random())[:2] + values[::-1]:
            if fits(width):
                return name, width
        return linear(numbers.choice((6, 12, 24))), values[-1][1]

    def linear(width=None):
        x, _ = values[-1]
        width = width or numbers.choice((1, 2, 3, 5, 7, 8, 9, 12, 16, 17, 24, 33))
        return add("linear", width, x, out_features=width, bias=numbers.random() < 0.7)

    def unary():
        x, width = some()
        add(numbers.choice("relu silu gelu tanh sigmoid sin cos softplus elu mish hardswish erf square "
                           "dropout".split()), width, x)

    def binary():
        x, width = some()
        other, _ = some(lambda own: own in (1, width))
        add(numbers.choice(("add", "sub", "mul", "maximum")), width, x, other)

    def formula():
        x, width = some()
        other, _ = some(lambda own: own == width)
        add("expr", width, x, other, expression="x / (1 + abs(y)) + 0.5 * y")

    def norm():
        x, width = some(lambda width: width > 2)
        add(numbers.choice(("layer_norm", "rms_norm")), width, x)

    def softmax():
        x, width = some(lambda width: width > 1)
        add(numbers.choice(("softmax", "log_softmax")), width, x, dim=1)

    def concat():
        parts = [some() for _ in range(3)]
        add("concat", sum(width for _, width in parts), *(name for name, _ in parts), dim=1)

    def part():
        x, width = some(lambda width: width > 3)
        start, step = numbers.randrange(3), numbers.choice((1, 1, 2))
        add("slice", len(range(start, width, step)), x, dim=1, start=start, end=width, step=step)

    def turn():
        x, width = some(lambda width: width % 2 == 0)
        rows = add("reshape", width, x, shape=["N", 2, width // 2])
        turned = add("permute", width, rows, dims=[0, 2, 1])
        values.remove((rows, width))
        values.remove((turned, width))
        if numbers.random() < 0.5:
            add("reshape", width, turned, shape=["N", width])
        else:
            add(numbers.choice(("mean", "sum")), width // 2, turned, dims=[2])

    def spread():
        x, width = some(lambda width: width > 1)
        one = add("slice", 1, x, dim=1, start=width - 1, end=width)
        add("expand", 5, one, shape=["N", 5])

    def scale():
        x, width = some()
        add("mul", width, x, add("parameter", 0, shape=[width]))

    kinds = [linear, unary, binary, formula, norm, softmax, concat, part, turn, spread, scale]
    for kind in numbers.sample(kinds, len(kinds)) + numbers.choices(kinds, k=4):
        kind()
    read = {name for entry in entries for name in entry.get("inputs", ())}
    ends = [(name, width) for name, width in values if name not in read]
    add("concat", sum(width for _, width in ends), *(name for name, _ in ends), dim=1)
    linear()
    add("silu", values[-1][1], values[-1][0])
    linear()
    return entries


BODIES.update((name, random_body(random.Random(name))) for name in RANDOM)


class Device(unittest.TestCase):
    programs = {}  # of all models, by storage of weights

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.run_model = os.environ.get("GPUNN_RUN_MODEL", os.path.join(ROOT, "build", "run_model"))
        if not os.path.exists(cls.run_model):
            cls.run_model = os.path.join(cls.folder, "run_model")
            call("gcc", "-O1", "-I" + ROOT, os.path.join(ROOT, "examples", "run_model.c"), "-o",
                 cls.run_model, "-lm")
        cls.machine = os.path.join(ROOT, "build", "emulator", "machine.o")
        newest = max(os.path.getmtime(os.path.join(EMULATOR, file)) for file in os.listdir(EMULATOR))
        if not os.path.exists(cls.machine) or os.path.getmtime(cls.machine) < newest:
            cls.machine = os.path.join(cls.folder, "machine.o")
            call("g++", "-std=c++17", "-I" + EMULATOR, "-O1", "-DEMULATOR_ASAN", "-c",
                 os.path.join(EMULATOR, "emulator.cpp"), "-o", cls.machine)

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder, name)

    @classmethod
    def write(cls, name, text):
        with open(cls.path(name), "w", encoding="ascii") as file:
            file.write(text)
        return cls.path(name)

    @staticmethod
    def made(name, loss=()):
        """A model whose result is y, and perhaps more entries."""
        body = [dict(entry) for entry in BODIES[name]]
        body[-1]["name"] = "y"
        body[-1].pop("id", None)
        given = [{"op": "input", "name": "x", "shape": ["N", 6]}] * (name != "words") + INPUTS.get(name, [])
        return {"gpunn_spec": 1, "tensors": given + body + list(loss), "outputs": ["y"]}

    @staticmethod
    def by_warps(name):
        return name != "parts"

    @staticmethod
    def bodies(stored):
        """Names of models whose weights may be stored in this form."""
        return [name for name in BODIES if stored == "f32" or name not in IN_F32]

    @classmethod
    def plan(cls, name, stored):
        return emit_device.plan_of(spec.parse(json.dumps(cls.made(name))), stored)

    @classmethod
    def program(cls, stored):
        """The program of all models with this storage of weights."""
        if stored not in cls.programs:
            includes, cases = [], []
            for name in cls.bodies(stored):
                plan = cls.plan(name, stored)
                text = emit_device.emit_device(plan, stamp.Source("0" * 64, "command"), name, stored,
                                               cls.by_warps(name))
                cls.write(name + "_device.cuh", text)
                includes.append('#include "%s_device.cuh"' % name)
                inputs, out = ", ".join(t.name for t in plan.inputs), plan.count(plan.outputs[0])
                runs = ["const auto %s = taken_rows<%s>(%d, %d);" %
                        (t.name, STORED[t.dtype], SAMPLES, plan.count(t.id)) for t in plan.inputs]
                forms = [stored] * (stored != "f32") + ["warp"] * cls.by_warps(name)
                for form in forms:
                    # by three threads, as a kernel does it
                    runs.append("auto *const %s = room<%s_weights_%s>();" % (form, name, form))
                    runs.append("for (int i = 0; i < 3; i++) %s_weights_to_%s(given, %s, i, 3);" %
                                (name, form, form))
                gradient, width = (name + "_input_gradient", 6) if name != "words" else ("nullptr", 0)
                runs.append("by_threads<%s_forward, %s>(%s, dy, %d, %d, %d, %s);" % (
                    name, gradient, "given" if stored == "f32" else stored, SAMPLES, width, out, inputs))
                if cls.by_warps(name):
                    runs.append("by_warps<%s_forward_warp>(warp, %d, %d, %s_WARP_SAMPLES, %s);" %
                                (name, SAMPLES, out, name.upper(), inputs))
                runs += ["free(%s);" % one for one in forms + [t.name + ".all" for t in plan.inputs]]
                cases.append(CASE % {"name": name, "out": out,
                                     "runs": "\n".join("        " + line for line in runs)})
            main = cls.write("main.cpp", MAIN % {"includes": "\n".join(includes), "cases": "\n".join(cases)})
            call("g++", "-std=c++17", "-O0", "-Wall", "-Wextra", "-Wconversion", "-Wno-unknown-pragmas",
                 "-Werror", *SANITIZE, "-isystem", EMULATOR, main, cls.machine, "-o", cls.path(stored))
            cls.programs[stored] = cls.path(stored)
        return cls.programs[stored]

    def results(self, name, stored, plan, weights, dy, inputs):
        """The program's output: y, the gradient of x if there is one, and y of warps. All tensors are by
        name, as in tensor_file."""
        done = subprocess.run([self.program(stored), name], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              input=b"".join(
                                  [weights[t.name][2] for t in plan.weights] + [dy[2]] +
                                  [inputs[t.name][2] for t in plan.inputs]))
        self.assertEqual((done.returncode, done.stderr.decode()[:3000]), (0, ""))
        return done.stdout

    def check(self, name, stored, exact=False):
        """exact: with numbers that products round to themselves."""
        plan, drawn = self.plan(name, stored), random.Random(name)

        def tensor(*shape):
            numbers = [drawn.choice((-1, 0, 1)) if exact else drawn.uniform(-1, 1)
                       for _ in range(math.prod(shape))]
            return "F32", list(shape), array.array("f", numbers).tobytes()

        def given(t):
            dtype, shape = t.dtype.upper(), [SAMPLES, *t.shape[1:]]
            return tensor(*shape) if dtype == "F32" else (dtype, shape, array.array(
                tensor_file.CODES[dtype], [drawn.randrange(7) for _ in range(math.prod(shape))]).tobytes())
        out = plan.shape(plan.outputs[0])[1:]
        inputs, dy, weights = ({t.name: given(t) for t in plan.inputs}, tensor(*out),
                               {t.name: tensor(*t.shape) for t in plan.weights})
        rounded = {key: (dtype, shape,
                         array.array("f", map(floats.ROUND[stored], array.array("f", data))).tobytes())
                   for key, (dtype, shape, data) in weights.items()}
        loss = [{"op": "constant", "id": "dy", "shape": list(out), "values": list(tensor_file.values(dy))},
                {"op": "mul", "id": "product", "inputs": ["y", "dy"]},
                {"op": "sum", "name": "loss", "inputs": ["product"]}]
        tensor_file.save(self.path("weights"), rounded)
        tensor_file.save(self.path("inputs"), inputs)
        spec_path = self.write("m.json", json.dumps(self.made(name, loss)))
        call(self.run_model, spec_path, "--weights", self.path("weights"), "--input", self.path("inputs"),
             "--output", self.path("outputs"), "--grad", "loss")
        expected = tensor_file.load(self.path("outputs"))
        found, at = self.results(name, stored, plan, weights, dy, inputs), 0
        parts = [("y", "y", TOLERANCE["y"])] + [("grad.x", "grad.x", TOLERANCE["grad.x"])] * ("x" in inputs)
        parts += [("y of warps", "y", TOLERANCE["y"] if exact else OF_WARP[stored])] * self.by_warps(name)
        for what, key, tolerance in parts:
            size = len(expected[key][2])
            error = difference(("F32", expected[key][1], found[at:at + size]), expected[key])
            self.assertTrue(error <= tolerance,
                            "%s of %s in %s differs by %.2g" % (what, name, stored, error))
            at += size
        self.assertEqual(len(found), at)

    @staticmethod
    def model(*tensors):
        return spec.parse(json.dumps(
            {"gpunn_spec": 1, "tensors": [{"op": "input", "name": "x", "shape": ["N", 6]}, *tensors]}))

    def test_refusals(self):
        for op, reason in (({"op": "softmax", "inputs": ["x"], "dim": 0}, "one row of its last axis"),
                           ({"op": "argmax", "inputs": ["x"], "dim": 1}, "i64, but"),
                           ({"op": "cumsum", "inputs": ["x"], "dim": 1}, "not written"),
                           ({"op": "linear", "name": "l", "inputs": ["x"], "out_features": 1025},
                            "1025 elements")):
            with self.assertRaisesRegex(inference.Refused, reason):
                emit_device.plan_of(self.model(op))
        with self.assertRaisesRegex(inference.Refused, "2 float inputs and 1 outputs"):
            emit_device.plan_of(self.model({"op": "input", "name": "z", "shape": ["N", 6]},
                                           {"op": "add", "inputs": ["x", "z"]}))
        summed = ({"op": "parameter", "name": "p", "shape": [2, 6]},
                  {"op": "sum", "id": "s", "inputs": ["p"], "dims": [0]}, {"op": "add", "inputs": ["x", "s"]})
        emit_device.plan_of(self.model(*summed))
        with self.assertRaisesRegex(inference.Refused, "sum 's': it reads weights in F32 alone"):
            emit_device.plan_of(self.model(*summed), "f16")
        with self.assertRaisesRegex(inference.Refused,
                                    "hash_grid_encoding 'hashed': it reads weights in F32 alone"):
            self.plan("fields", "f16")

    def test_names_of_variables(self):
        """The input may have the name of any variable of the functions."""
        def text_of(name):
            plan = emit_device.plan_of(spec.parse(json.dumps({"gpunn_spec": 1, "tensors": [
                {"op": "input", "name": name, "shape": ["N", 8]},
                {"op": "linear", "name": "_l", "inputs": [name], "out_features": 8},
                {"op": "tanh", "name": "_t", "inputs": ["_l"]},
                {"op": "layer_norm", "name": "_y", "inputs": ["_t"]}]})), "f16")
            text = emit_device.emit_device(plan, stamp.Source("0" * 64, "command"), "m", "f16", warp=True)
            return "".join(re.findall(r"void m_(?:forward|forward_warp|input_gradient)\(.*?\n}\n", text,
                                      re.DOTALL))
        found, tried = names.hidden(text_of)
        self.assertEqual((found, tried > 9), ([], True))

    def test_refusals_of_warps(self):
        rows = ({"op": "reshape", "id": "r", "inputs": ["x"], "shape": ["N", 3, 2]},
                {"op": "linear", "name": "l", "inputs": ["r"], "out_features": 4})
        for tensors, reason in (
                (rows, "linear 'l': 3 rows a sample, where a warp computes one"),
                (({"op": "tanh", "inputs": ["x"]},), "it has no linear layer"),
                (({"op": "linear", "name": "l", "inputs": ["x"], "out_features": 290},),
                 "linear 'l': 6 to 290 numbers, more than a warp's registers hold")):
            plan = emit_device.plan_of(self.model(*tensors))
            emit_device.emit_device(plan, stamp.Source("0" * 64, "command"), "m")
            with self.assertRaisesRegex(inference.Refused, "no function for a warp: " + reason):
                emit_device.emit_device(plan, stamp.Source("0" * 64, "command"), "m", warp=True)

    def test_groups(self):
        """Wide layers leave registers of a warp for half as many samples, in F32 earlier than in 16 bits."""
        for width, groups in ((64, (2, 2)), (72, (2, 2)), (73, (1, 2)), (96, (1, 2)), (144, (1, 1)),
                              (192, (0, 1))):
            wide = [{"op": "linear", "name": "l%d" % k, "inputs": ["l%d" % (k - 1) if k else "x"],
                     "out_features": width} for k in range(2)]
            for stored, expected in zip(("f32", "f16"), groups):
                plan = emit_device.plan_of(self.model(*wide), stored)
                if expected:
                    self.assertEqual(emit_device.groups_of(plan, stored), expected)
                else:
                    self.assertRaises(inference.Refused, emit_device.groups_of, plan, stored)

    def test_exact(self):
        """Every number of a tile is multiplied by its own weight."""
        for stored in emit_device.STORAGES:
            self.check("wide", stored, exact=True)

    def test_indices_outside(self):
        """They give NaN for their samples only, and read nothing."""
        for stored in emit_device.STORAGES:
            plan = self.plan("words", stored)
            weights = {t.name: ("F32", list(t.shape), array.array("f", [1] * plan.count(t.id)).tobytes())
                       for t in plan.weights}
            for wrong in (-1, 7, -2 ** 31, 2 ** 31 - 1):
                words = array.array("i", [0] * 2 * SAMPLES)
                words[2 * 3 + 1] = wrong
                found = self.results("words", stored, plan, weights, ("F32", [3], bytes(12)), {
                    "words": ("I32", [SAMPLES, 2], words.tobytes())})
                for_each = [math.isnan(v) for v in array.array("f", found)]
                # by threads and by warps
                self.assertEqual(for_each, [k // 3 == 3 for k in range(3 * SAMPLES)] * 2)


for form in emit_device.STORAGES:
    for one in Device.bodies(form):
        setattr(Device, "test_%s_%s" % (one, form),
                lambda self, name=one, stored=form: self.check(name, stored))


if __name__ == "__main__":
    unittest.main()
