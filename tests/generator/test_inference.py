"""NAME_inference.h against PyTorch (expected/pytorch/) and against run_model: freestanding C99 without a
warning, run under sanitizers and on a microcontroller, with weights given, within and of 8 bits."""
import array
import ctypes
import glob
import json
import math
import os
import platform
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from generator import emit_inference, floats, inference, spec, stamp, weights
from tests import tensor_file

from .test_run_model import call, difference

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
EXPECTED = os.path.join(HERE, "expected")
STRICT = "-std=c99 -ffreestanding -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror".split()
SANITIZERS = "-g -fsanitize=address,undefined -fno-sanitize-recover=all".split()
TOLERANCE = 1e-5  # relative to a tensor's largest value
REFUSED = {"pytorch/losses_classes": "a loss",
           "pytorch/spatial_transformer": "affine_grid .*; grid_sample .*not written",
           "pytorch/drawn": "rand_like .*not written", "pytorch/warp_volume": "grid_sample",
           "pytorch/regions": "roi_align .*not written", "pytorch/hashed": "integer .*not written",
           "pytorch/sized_image": "sizes vary between calls, 'H'",
           "pytorch/sized_text": "sizes vary between calls, 'T'",
           "pytorch/sized_masks": "sizes vary between calls, 'T'",
           "pytorch/sized_rotations": "sizes vary between calls, 'T'",
           "pytorch/exact_integers": "not written as plain C",
           "pytorch/integers_at_places": "integer .*not written", "pytorch/masked_in_order": "not written",
           "pytorch/between_pixels": "grid_sample .*not written",
           "pytorch/sized_cuts": "sizes vary between calls, 'T'", "vectors/windows": "grid_sample",
           "vectors/quantized": "quantized_conv2d .*not written as plain C",
           "vectors/big": "2\\^31 - 1", "vectors/random_sites": "rand_like: not written",
           "vectors/class_losses": "a loss", "vectors/custom": "no outputs but its loss",
           "vectors/one_input": "no outputs but its loss",
           "vectors/states": "state 'values': its initial values are random; .*lengths change between calls",
           "vectors/resnet_block": "no outputs but its loss",
           "vectors/sized_images": "sizes vary between calls, 'H'",
           "vectors/sized_sequences": "sizes vary between calls, 'T'"}
EXACT = ("hash_grids.json",)  # the same sums in the same order
SCALES = {"encodings.json": 2 ** -14}  # of inputs: sines are right up to 1e6 (templates/kernels/math.h)
STORED = {"f32": "F32", "i64": "I64", "i32": "I32", "u8": "U8", "bool": "BOOL"}


def main_text(plan, name, text):
    """A program that reads the weights, unless they are in the text, and the inputs from stdin, and writes
    the outputs."""
    can_fail, numbers = "bool %s_forward" % name in text, "%s_trained" % name in text
    lines = ["#include <stdio.h>", '#include "%s_inference.h"' % name, "int main(void)", "{"]
    arguments = []
    if plan.weights and numbers:
        arguments.append("&%s_trained" % name)
    elif plan.weights:
        lines += ["    static %s_weights weights;" % name,
                  "    if (fread(&weights, sizeof weights, 1, stdin) != 1) return 2;"]
        arguments.append("&weights")
    for k, t in enumerate(plan.inputs):
        lines += ["    static %s in%d[%d];" % (emit_inference.STORED[t.dtype], k, plan.count(t.id)),
                  "    if (fread(in%d, sizeof in%d, 1, stdin) != 1) return 2;" % (k, k)]
        arguments.append("in%d" % k)
    for k, i in enumerate(plan.outputs):
        lines.append("    static %s out%d[%d];" %
                     (emit_inference.STORED[plan.tensors[i].dtype], k, plan.count(i)))
        arguments.append("out%d" % k)
    if plan.sizes():
        lines += ["    static %s_scratch scratch;" % name,
                  "    if (sizeof scratch != %s_SCRATCH_BYTES) return 4;" % name.upper()]
        arguments.append("&scratch")
    run = "%s_forward(%s)" % (name, ", ".join(arguments))
    lines.append("    if (!%s) return 3;" % run if can_fail else "    %s;" % run)
    lines += ["    fwrite(out%d, sizeof out%d, 1, stdout);" % (k, k) for k in range(len(plan.outputs))]
    return "\n".join(lines + ["    return 0;", "}", ""])


class Inference(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        # at most: run_model has no BF16 products then, like plain C
        os.environ["GPUNN_VECTORS"] = "avx512"
        cls.run_model = os.environ.get("GPUNN_RUN_MODEL", os.path.join(ROOT, "build", "run_model"))
        if not os.path.exists(cls.run_model):
            cls.run_model = os.path.join(cls.folder, "run_model")
            call("gcc", "-O1", "-I" + ROOT, os.path.join(ROOT, "examples", "run_model.c"), "-o",
                 cls.run_model, "-lm")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="ascii") as file:
            file.write(text)
        return self.path(name)

    def program(self, plan, name, **options):
        """The compiled program of main_text()."""
        text = emit_inference.emit_inference(plan, stamp.Source("0" * 64, "command"), name, **options)
        self.write(name + "_inference.h", text)
        source = self.write(name + ".c", '#define %s_INFERENCE_IMPLEMENTATION\n#include "%s_inference.h"\n' %
                            (name.upper(), name))
        main = self.write("main.c", main_text(plan, name, text))
        call("gcc", *STRICT, "-fsyntax-only", source)
        call("clang", *STRICT, *SANITIZERS, "-O0", "-c", source, "-o", self.path("sanitized.o"))
        # no -lm
        call("clang", "-std=c99", *SANITIZERS, main, self.path("sanitized.o"), "-o", self.path(name))
        return self.path(name)

    def results(self, plan, program, data, code=0):
        """The outputs by label, as in tensor_file."""
        done = subprocess.run([program], input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, code, done.stderr.decode()[:3000])
        result, at = {}, 0
        for i in plan.outputs if code == 0 else ():
            dtype = STORED[plan.tensors[i].dtype]
            size = plan.count(i) * {"F32": 4, "I64": 8, "I32": 4}.get(dtype, 1)
            result[plan.tensors[i].label] = (dtype, list(plan.shape(i)), done.stdout[at:at + size])
            at += size
        return result

    def test_refusals(self):
        """All reasons at once, in one sentence."""
        for name, reason in REFUSED.items():
            path = os.path.join(EXPECTED, name + ".json")
            with self.subTest(name), self.assertRaisesRegex(inference.Refused, reason):
                inference.Plan(spec.load(path))
        integers = ({"op": "input", "name": "x", "dtype": "i64", "shape": [4]},
                    {"op": "searchsorted", "id": "y", "inputs": ["x", "x"]})
        with self.assertRaisesRegex(inference.Refused,
                                    "searchsorted 'y': not written as plain C of integers"):
            inference.Plan(spec.parse(json.dumps({"gpunn_spec": 1, "tensors": integers})))
        late = ({"op": "state", "name": "s", "shape": [4]}, {"op": "neg", "id": "x", "inputs": ["s"]},
                {"op": "assign", "id": "new", "inputs": ["s", "x"]},
                {"op": "add", "id": "y", "inputs": ["new", "s"]})
        with self.assertRaisesRegex(inference.Refused, "state 's' is read after an assignment to it"):
            self.plan(*late)
        unread = late[:2] + ({"op": "assign", "inputs": ["s", "x"]},
                             {"op": "add", "id": "y", "inputs": ["x", "s"]})
        self.assertEqual([step.tensor.op for step in self.plan(*unread).steps], ["neg", "add", "assign"])

    @staticmethod
    def plan(*tensors):
        return inference.Plan(spec.parse(json.dumps({"gpunn_spec": 1, "tensors": tensors})))

    @staticmethod
    def lstm(steps, batch, width, hidden):
        return ({"op": "input", "name": "x", "shape": [steps, batch, width]},
                {"op": "parameter", "name": "w0", "shape": [4 * hidden, width]},
                {"op": "parameter", "name": "w1", "shape": [4 * hidden, hidden]},
                {"op": "lstm", "id": "y", "inputs": ["x"], "weights": ["w0", "w1"], "layer": "l"})

    def test_multiplications(self):
        """Of recurrent layers and attention, too."""
        self.assertEqual(self.plan(*self.lstm(5, 2, 3, 8)).products(), 10 * 32 * (3 + 8))
        heads = {"op": "scaled_dot_product_attention", "id": "y", "inputs": ["q", "k", "v"]}
        inputs = [{"op": "input", "name": name, "shape": [2, 3, rows, width]}
                  for name, rows, width in (("q", 4, 8), ("k", 5, 8), ("v", 5, 6))]
        self.assertEqual(self.plan(*inputs, heads).products(), 2 * 3 * 4 * 5 * (8 + 6))

    def test_resets(self):
        x, *weights, layer = self.lstm(5, 2, 3, 8)
        mask = {"op": "input", "name": "m", "shape": [5, 2]}
        with self.assertRaisesRegex(inference.Refused, "'y': resets within a sequence are not written"):
            self.plan(x, mask, *weights, dict(layer, reset="m"))

    @unittest.skipUnless(platform.machine() == "x86_64", "counts instructions of x86-64")
    def test_vectors(self):
        """At -O2 compilers make vectors of the products and gates of a layer."""
        text = emit_inference.emit_inference(self.plan(*self.lstm(2, 1, 16, 16)),
                                             stamp.Source("0" * 64, "command"), "m")
        source = self.write("m.c", "#define M_INFERENCE_IMPLEMENTATION\n" + text)
        for compiler in (["gcc"], ["clang"], ["gcc", "-mavx2", "-mfma"], ["clang", "-mavx2", "-mfma"]):
            with self.subTest(" ".join(compiler)):
                call(*compiler, "-std=c99", "-O2", "-S", source, "-o", self.path("m.s"))
                with open(self.path("m.s"), encoding="ascii") as file:
                    made = re.findall(r"\s(?:v?mul|vfmadd\d+)([ps])s\s", file.read())
                self.assertGreater(made.count("p"), 4 * made.count("s"))

    # ---- against PyTorch ----
    @staticmethod
    def golden(path):
        """Its plan and tensors."""
        model, tensors = spec.load(path), tensor_file.load(path[:-len("json")] + "safetensors")
        batch = [tensors["in/" + t.name][1][t.shape.index(-1)]
                 for t in model.tensors if t.kind == "input" and -1 in t.shape]
        return inference.Plan(model, batch[0] if batch else 1), tensors

    def check_golden(self, path):
        (plan, tensors), name = self.golden(path), "m"
        data = b"".join([tensors["weight/" + t.name][2]
                         for t in plan.weights] + [tensors["in/" + t.name][2] for t in plan.inputs])
        got = self.results(plan, self.program(plan, name), data)
        self.assertTrue(got)
        for label, tensor in got.items():
            error = difference(tensor, tensors["eval/" + label])
            self.assertTrue(error <= TOLERANCE, "%s differs by %.2g" % (label, error))

    # ---- weights within ----
    def embedded(self, name, int8):
        """The plan, the numbers and the bytes of a model of expected/pytorch/, and its tensors."""
        plan, tensors = self.golden(os.path.join(EXPECTED, "pytorch", name + ".json"))
        path = self.path(name + "_weights")
        tensor_file.save(path, {t.name: tensors["weight/" + t.name] for t in plan.weights})
        numbers = weights.read(path, plan)
        return plan, numbers, weights.quantize(plan, numbers) if int8 else {}, tensors

    def test_embedded(self):
        for name in ("lenet", "tagger"):
            plan, numbers, _, tensors = self.embedded(name, False)
            data = b"".join(tensors["in/" + t.name][2] for t in plan.inputs)
            got = self.results(plan, self.program(plan, "m", weights=numbers), data)
            for label, tensor in got.items():
                self.assertLessEqual(difference(tensor, tensors["eval/" + label]), TOLERANCE)

    def test_int8(self):
        """The same as with floats that are bytes times scales, and near the original ones."""
        self.assertEqual(self.embedded("mlp_shared", True)[2], {})  # its weights are read by other ops too
        for name in ("lenet", "recurrent", "tagger", "tied_words", "unet_volume"):
            plan, numbers, small, tensors = self.embedded(name, True)
            self.assertTrue(small)
            inputs = b"".join(tensors["in/" + t.name][2] for t in plan.inputs)
            got = self.results(plan, self.program(plan, "m", weights=numbers, quantized=small), inputs)
            for i, (scales, rows) in small.items():
                width = len(rows) // len(scales)
                numbers[i] = [floats.f32(scales[k // width] * value) for k, value in enumerate(rows)]
            exact = self.results(plan, self.program(plan, "m", weights=numbers), inputs)
            for label, tensor in got.items():
                with self.subTest(name, tensor=label):
                    self.assertLessEqual(difference(tensor, exact[label]), TOLERANCE)
                    self.assertLessEqual(difference(tensor, tensors["eval/" + label]), 0.05)

    def test_bad_index(self):
        plan, tensors = self.golden(os.path.join(EXPECTED, "pytorch", "tied_words.json"))
        data = b"".join(tensors["weight/" + t.name][2] for t in plan.weights)
        for wrong in (-1, 1 << 40):
            tokens = array.array("q", [0] * plan.count(plan.inputs[0].id))
            tokens[-1] = wrong
            self.results(plan, self.program(plan, "m"), data + tokens.tobytes(), code=3)

    def test_pads_of_scalars(self):
        """Every mode pads a tensor without axes to itself."""
        entries = [{"op": "input", "name": "x", "shape": []}] + [
            {"op": "pad", "name": mode, "inputs": ["x"], "mode": mode}
            for mode in ("constant", "replicate", "reflect", "circular")]
        plan = inference.Plan(spec.parse(json.dumps({"gpunn_spec": 1, "tensors": entries})))
        found = self.results(plan, self.program(plan, "pads"), struct.pack("<f", 2.5))
        self.assertEqual({tensor_file.values(x)[0] for x in found.values()}, {2.5})

    def test_example(self):
        """examples/plain_c/classify.c, by the commands in its first comment."""
        shutil.copy(os.path.join(ROOT, "examples", "plain_c", "classify.c"), self.path("classify.c"))
        call(sys.executable, "-m", "generator", "examples/kernels/simple_nn.json", "--inference", "--outputs",
             "t9", "--weights", "examples/plain_c/simple_nn.safetensors", "-o", self.path("simple_nn"))
        call("gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", self.path("classify.c"), "-o",
             self.path("classify"))
        said = subprocess.run([self.path("classify")], stdout=subprocess.PIPE, universal_newlines=True).stdout
        self.assertRegex(said, r"\A99\.\d % of 1000 samples, with 200 bytes of scratch\n\Z")

    def test_ring(self):
        """Streaming convolutions, sample by sample, give the values of one block."""
        def entries(layer, x, channels, kernel, dilation, steps):
            return [{"op": "state", "name": layer + ".past", "shape": [2, channels, dilation * (kernel - 1)],
                     "init": {"kind": "constant", "a": 0.5}},
                    {"op": "concat", "id": layer + " seen", "inputs": [layer + ".past", x], "dim": 2},
                    {"op": "conv1d", "name": layer, "inputs": [layer + " seen"], "out_channels": 5,
                     "kernel_size": kernel, "dilation": dilation},
                    {"op": "slice", "id": layer + " last", "inputs": [layer + " seen"], "dim": 2,
                     "start": steps},
                    {"op": "assign", "inputs": [layer + ".past", layer + " last"]}]

        def plan(steps):
            return self.plan({"op": "input", "name": "x", "shape": [2, 3, steps]},
                             *entries("a", "x", 3, 3, 4, steps), {"op": "tanh", "id": "b", "inputs": ["a"]},
                             *entries("c", "b", 5, 2, 1, steps),
                             {"op": "add", "id": "y", "inputs": ["b", "c"]})
        steps, numbers = 23, random.Random(1)
        one, whole = plan(1), plan(steps)
        self.assertEqual((len(one.rings), len(whole.rings)), (2, 0))
        values = {t.id: [floats.f32(numbers.uniform(-1, 1)) for _ in range(one.count(t.id))]
                  for t in one.weights}
        x = [[numbers.uniform(-1, 1) for _ in range(steps)] for _ in range(6)]
        results = []
        for name, own in (("one", one), ("whole", whole)):
            text = emit_inference.emit_inference(own, stamp.Source("0" * 64, "command"), name, values)
            library = weights.compiled(self.folder, name, name, text)
            states = ctypes.create_string_buffer(4 * (sum(map(own.count, (t.id for t in own.states))) + 2))
            getattr(library, name + "_reset")(states)
            scratch, length = ctypes.create_string_buffer(4 * own.sizes()["f32"]), own.shape(0)[2]
            rows = [[] for _ in range(10)]
            for start in range(0, steps, length):
                given = (ctypes.c_float * (6 * length))(*[v for row in x for v in row[start:start + length]])
                got = (ctypes.c_float * (10 * length))()
                trained = ctypes.byref(ctypes.c_char.in_dll(library, name + "_trained"))
                getattr(library, name + "_forward")(trained, given, got, states, scratch)
                for k, row in enumerate(rows):
                    row += got[k * length:(k + 1) * length]
            results.append([v for row in rows for v in row])
        self.assertGreater(max(results[0]), 1)
        for a, b in zip(*results):
            self.assertLessEqual(abs(a - b), 1e-6)

    @staticmethod
    def streams(size):
        """The spec of a streaming convolution and a gru with a state, for blocks of `size` steps."""
        gates = [{"op": "parameter", "name": "g%d" % k, "shape": [15] + width}
                 for k, width in enumerate(([3], [5], [], []))]
        return json.dumps({"gpunn_spec": 1, "sizes": {"T": {"max": 64}}, "tensors": [
            {"op": "input", "name": "x", "shape": [1, 2, size]},
            {"op": "state", "name": "past", "shape": [1, 2, 4]},
            {"op": "state", "name": "h", "shape": [1, 1, 5], "init": {"kind": "constant", "a": 0.25}},
            {"op": "concat", "id": "seen", "inputs": ["past", "x"], "dim": 2},
            {"op": "conv1d", "name": "c", "inputs": ["seen"], "out_channels": 3, "kernel_size": 3,
             "dilation": 2},
            {"op": "slice", "id": "last", "inputs": ["seen"], "dim": 2, "start": size},
            {"op": "assign", "inputs": ["past", "last"]},
            {"op": "permute", "id": "steps", "inputs": ["c"], "dims": [2, 0, 1]}, *gates,
            {"op": "gru", "id": "all", "inputs": ["steps"], "layer": "g", "states": True, "h_0": "h",
             "weights": ["g0", "g1", "g2", "g3"]},
            {"op": "slice", "id": "rows", "inputs": ["all"], "dim": 0, "start": 0, "end": size},
            {"op": "slice", "id": "end", "inputs": ["all"], "dim": 0, "start": size},
            {"op": "reshape", "id": "h_n", "inputs": ["end"], "shape": [1, 1, 5]},
            {"op": "assign", "inputs": ["h", "h_n"]},
            {"op": "reshape", "id": "flat", "inputs": ["rows"], "shape": [size, 5]},
            {"op": "linear", "name": "y", "inputs": ["flat"], "out_features": 2}], "outputs": ["y"]})

    def test_blocks(self):
        """A stream in blocks of two lengths: gpunn gives its values in one run."""
        path, numbers, steps = self.write("streams.json", self.streams("T")), random.Random(1), 9
        whole = inference.Plan(spec.load(path, {"T": steps}))
        made = {t.name: ("F32", list(whole.shape(t.id)), array.array(
            "f", [numbers.uniform(-1, 1) for _ in range(whole.count(t.id))]).tobytes())
                for t in whole.weights + whole.inputs}
        tensor_file.save(self.path("weights"), {t.name: made[t.name] for t in whole.weights})
        tensor_file.save(self.path("inputs"), {"x": made["x"]})
        call(self.run_model, path, "--weights", self.path("weights"), "--input", self.path("inputs"),
             "--output", self.path("outputs"))
        wanted = tensor_file.load(self.path("outputs"))["y"]
        call(sys.executable, "-m", "generator", path, "--inference", "--block", "5,1", "--weights",
             self.path("weights"), "-o", self.path("streams"))
        source = self.write("streams.c", '#define STREAMS_INFERENCE_IMPLEMENTATION\n'
                            '#include "streams_inference.h"\n')
        call("gcc", *STRICT, "-fsyntax-only", source)
        with open(self.path("streams_inference.h"), encoding="ascii") as file:
            library = weights.compiled(self.folder, "streams_library", "streams", file.read())
        states, scratch = ctypes.create_string_buffer(64), ctypes.create_string_buffer(4096)
        trained = ctypes.byref(ctypes.c_char.in_dll(library, "streams_trained"))
        x, got, at = array.array("f", made["x"][2]), array.array("f"), 0
        library.streams_reset(states)
        for length in (1, 5, 3, 1, 1, 1):
            block = (ctypes.c_float * (2 * length))(*x[at:at + length], *x[steps + at:steps + at + length])
            y = (ctypes.c_float * (2 * length))()
            known = library.streams_forward(length, trained, block, y, states, scratch) & 1
            self.assertEqual(known, int(length != 3))
            got.extend(y[:] if known else [])
            at += length if known else 0
        self.assertLessEqual(difference(("F32", [steps, 2], got.tobytes()), wanted), TOLERANCE)

    def test_blocks_of_batches(self):
        """Without a named size the length is the batch."""
        path = self.write("batches.json", json.dumps({"gpunn_spec": 1, "tensors": [
            {"op": "input", "name": "x", "shape": ["N", 2]}, {"op": "relu", "id": "y", "inputs": ["x"]}]}))
        call(sys.executable, "-m", "generator", path, "--inference", "--block", "3,1", "-o",
             self.path("batches"))
        with open(self.path("batches_inference.h"), encoding="ascii") as file:
            library = weights.compiled(self.folder, "batches_library", "batches", file.read())
        x, y = (ctypes.c_float * 6)(-1, 2, -3, 4, -5, 6), (ctypes.c_float * 6)()
        self.assertEqual(library.batches_forward(1, x, y) & 1, 1)
        self.assertEqual(y[:], [0, 2, 0, 0, 0, 0])
        self.assertEqual(library.batches_forward(2, x, y) & 1, 0)
        self.assertEqual(library.batches_forward(3, x, y) & 1, 1)
        self.assertEqual(y[:], [0, 2, 0, 4, 0, 6])

    # ---- a microcontroller ----
    def test_cortex_m(self):
        if not shutil.which("arm-none-eabi-gcc") or not shutil.which("qemu-system-arm"):
            self.skipTest("no gcc-arm-none-eabi or no qemu-system-arm")
        for name, int8 in (("mlp", False), ("lenet", False), ("lenet", True), ("recurrent", False),
                           ("transformer_encoder_layer", False)):
            with self.subTest(name, int8=int8):
                plan, numbers, small, tensors = self.embedded(name, int8)
                size, said = self.on_cortex_m(plan, numbers, small, tensors)
                self.assertEqual(said["differing"], 0)
                print("# %s%s on a Cortex-M4: %d bytes of code, %d of weights and tables, %d of scratch, %d "
                      "of stack" % (
                          name, ", int8" if int8 else "", *size, said["stack"]))

    def on_cortex_m(self, plan, numbers, small, tensors):
        """Sizes, and the program's output."""
        text = emit_inference.emit_inference(plan, stamp.Source("0" * 64, "command"), "m", weights=numbers,
                                             quantized=small)
        self.write("m_inference.h", text)
        kinds = {"f32": "float", "i64": "int64_t"}
        lines = ["#define M_INFERENCE_IMPLEMENTATION", '#include "m_inference.h"', "int differing(void);",
                 "int differing(void)", "{"]
        for k, t in enumerate(plan.inputs):
            lines.append("    static const %s in%d[] = {%s};" % (kinds[t.dtype], k, ", ".join(
                map(repr, tensor_file.values(tensors["in/" + t.name])))))
        outputs = [plan.tensors[i] for i in plan.outputs]
        for k, t in enumerate(outputs):
            lines += ["    static float out%d[%d];" % (k, plan.count(t.id)),
                      "    static const float right%d[] = {%s};" % (
                          k, ", ".join(map(repr, tensor_file.values(tensors["eval/" + t.label]))))]
        lines += [
            "    static m_scratch scratch;", "    int bad = 0;",
            "    m_forward(&m_trained, %s, &scratch);" % ", ".join(
                ["in%d" % k for k in range(len(plan.inputs))] + ["out%d" % k for k in range(len(outputs))])]
        for k, t in enumerate(outputs):
            tolerance = 0.05 if small else 2 * TOLERANCE
            scale = tolerance * max(map(abs, tensor_file.values(tensors["eval/" + t.label])))
            lines.append("    for (int i = 0; i < %d; ++i) bad += !(out%d[i] - right%d[i] <= %rf && "
                         "right%d[i] - out%d[i] <= %rf);" % (
                             plan.count(t.id), k, k, scale, k, k, scale))
        self.write("m.c", "\n".join(lines + ["    return bad;", "}", ""]))
        options = ("-mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16 -Os -ffunction-sections "
                   "-fdata-sections".split())
        call("arm-none-eabi-gcc", *STRICT, *options, "-c", self.path("m.c"), "-o", self.path("m.o"))
        call("arm-none-eabi-gcc", *options, "-std=gnu11", "-nostdlib", "-Wl,--gc-sections",
             "-T" + os.path.join(HERE, "cortex_m.ld"),
             os.path.join(HERE, "cortex_m.c"), self.path("m.o"), "-lgcc", "-o", self.path("m.elf"))
        done = subprocess.run(["qemu-system-arm", "-M", "mps2-an386", "-nographic", "-semihosting-config",
                               "enable=on,target=native", "-kernel", self.path("m.elf")],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
                              stdin=subprocess.DEVNULL)
        said = dict(line.split()
                    for line in done.stdout.splitlines() if line.startswith(("differing ", "stack ")))
        self.assertEqual(sorted(said), ["differing", "stack"], done.stdout)
        sections = subprocess.run(["arm-none-eabi-size", "-A", self.path("m.o")], stdout=subprocess.PIPE,
                                  universal_newlines=True).stdout

        def size(start):
            return sum(int(line.split()[1]) for line in sections.splitlines() if line.startswith(start))
        data = sum(plan.count(t.id) * (1 if t.id in small else 4) + (4 * t.shape[0] if t.id in small else 0)
                   for t in plan.weights)
        scratch = sum(count * {"f32": 4, "i64": 8, "i32": 4, "u8": 1}[dtype]
                      for dtype, count in plan.sizes().items())
        return (size(".text"), data, scratch), {key: int(value) for key, value in said.items()}

    # ---- against run_model ----
    def named(self, path):
        """The path of the spec with a name for each entry without one, since run_model writes tensors by
        their names."""
        with open(path, encoding="utf-8") as file:
            root = json.load(file)
        made = {t.label for t in spec.load(path).tensors}
        for k, entry in enumerate(root["tensors"]):
            key = "as" if "as" in spec.ops()[entry["op"]]["properties"] else "name"
            if key not in entry and entry.get("id") in made | {None}:  # else it only passes another one on
                entry[key] = entry.pop("id", "unnamed%d" % k)
        return self.write(os.path.basename(path), json.dumps(root))

    def check_random(self, path):
        path = self.named(path)
        model, name = spec.load(path), "m"
        plan, numbers = inference.Plan(model, 2), random.Random(os.path.basename(path))
        lengths, scale = ({t.inputs[1] for t in model.tensors if t.op in inference.GATES},
                          SCALES.get(os.path.basename(path), 1))

        def tensor(t):
            count = plan.count(t.id)
            if t.dtype == "f32":
                low = 0.5 if t.kind == "buffer" else -1.0
                return "F32", list(plan.shape(t.id)), array.array(
                    "f", [scale * numbers.uniform(low, low + 2) for _ in range(count)]).tobytes()
            code = tensor_file.CODES[STORED[t.dtype]]
            return STORED[t.dtype], list(plan.shape(t.id)), array.array(
                code, [1 if t.id in lengths else numbers.randrange(2) for _ in range(count)]).tobytes()

        made = {t.id: tensor(t) for t in model.tensors if t.kind in ("input", "parameter", "buffer")}
        for part, kinds in (("weights", ("parameter", "buffer")), ("inputs", ("input",))):
            tensor_file.save(self.path(part), {t.name: made[t.id] for t in model.tensors if t.kind in kinds})
        call(self.run_model, path, "--weights", self.path("weights"), "--input", self.path("inputs"),
             "--output", self.path("outputs"))
        expected = tensor_file.load(self.path("outputs"))
        data = b"".join(made[t.id][2] for t in plan.weights + plan.inputs)
        got = self.results(plan, self.program(plan, name), data)
        for i, (label, own) in zip(plan.outputs, got.items()):
            other = expected[model.tensors[i].name]
            error = difference(*without_infinities(own, other))
            self.assertTrue(error <= TOLERANCE, "%s differs by %.2g" % (label, error))
            if os.path.basename(path) in EXACT:
                self.assertEqual(own[2], other[2], label)


    def test_one_position(self):
        """Convolutions with one output position: the window is all of x, or a part by dilation."""
        conv = {"op": "conv2d", "inputs": ["x"], "out_channels": 9}
        self.check_random(self.write("one_position.json", json.dumps({"gpunn_spec": 1, "tensors": [
            {"op": "input", "name": "x", "shape": ["N", 3, 4, 5]},
            {"op": "input", "name": "sound", "shape": ["N", 6, 5]},
            dict(conv, name="all", kernel_size=[4, 5]), dict(conv, name="part", kernel_size=2,
                                                            dilation=[3, 4]),
            dict(conv, name="odd", kernel_size=[3, 3], dilation=[1, 2], stride=[2, 3]),
            {"op": "conv1d", "name": "heard", "inputs": ["sound"], "out_channels": 4, "kernel_size": 3,
             "dilation": 2}]})))


def without_infinities(one, other):
    """Both tensors with 0 where both have the same infinity, or NaN. Values beyond 1e37 count as infinite: a
    denormal divisor may be 0."""
    pairs = [[math.copysign(math.inf, x) if abs(x) > 1e37 else x for x in pair]
             for pair in zip(tensor_file.values(one), tensor_file.values(other))]
    same = [not math.isfinite(a) and (a == b or (a != a and b != b)) for a, b in pairs]
    code = tensor_file.CODES[one[0]]
    return [(t[0], t[1],
             array.array(code, [0 if drop else pair[k] for drop, pair in zip(same, pairs)]).tobytes())
            for k, t in enumerate((one, other))]


def add(check, path, prefix):
    name = "%s/%s" % (prefix, os.path.splitext(os.path.basename(path))[0])
    if name not in REFUSED:
        setattr(Inference, "test_" + name.replace("/", "_"), lambda self: check(self, path))


for golden in sorted(glob.glob(os.path.join(EXPECTED, "pytorch", "*.json"))):
    add(Inference.check_golden, golden, "pytorch")
for vector in sorted(glob.glob(os.path.join(EXPECTED, "vectors", "*.json"))):
    add(Inference.check_random, vector, "vectors")


if __name__ == "__main__":
    unittest.main()
