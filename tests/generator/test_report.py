"""The numbers of --report: against a count by hand, and the savings that the kernels must reach."""
import contextlib
import io
import os
import re
import shutil
import unittest
from unittest import mock

from generator import __main__ as program
from generator import partition, registers, report, spec, tiling
from tests.generator.test_lower import data, linear, model_of, op

HERE = os.path.dirname(os.path.abspath(__file__))


def models(precision="f32"):
    for name in ("mlp", "lenet", "resnet_block", "transformer_block"):
        with open(os.path.join(HERE, "specs", name + ".json"), encoding="ascii") as file:
            yield name, spec.parse(file.read().replace('"f32"', '"%s"' % precision), name)


def counts(model):
    """[(launches, bytes of a sample)] before forward, backward, after forward, backward."""
    kernels = partition.partition(model)
    counter = report.Counter(partition.View(model, True), kernels.kernels, kernels.training)
    return [(count.launches, count.per_batch) for count in counter.before() + counter.after()]


class Sizes(unittest.TestCase):
    def test_what_is_left_apart(self):
        model = spec.load(os.path.join(HERE, "specs", "small", "sized_text.json"))
        text = report.report(model, partition.partition(model))
        self.assertIn("not one kernel\n    scaled weights: T varies, and is not among the outermost axes\n",
                      text)
        self.assertIn("    there norm1: [N, T, 24] and [T, 24] vary in different ways\n", text)
        self.assertIn("nodes: opened curved inner", text)


class ByHand(unittest.TestCase):
    def check(self, tensors, unit, *wanted):
        self.assertEqual([(launches, size / unit) for launches, size in counts(model_of(tensors))],
                         list(wanted))

    def test_resnet_basic_block(self):
        conv = {"op": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1, "bias": False}
        norm = {"op": "batch_norm2d"}
        tensors = [data("x", 8, 4, 4), dict(conv, name="stem", inputs=["x"]),
                   dict(conv, name="c1", inputs=["stem"]), dict(norm, name="bn1", inputs=["c1"]),
                   op("relu", "r1", "bn1"), dict(conv, name="c2", inputs=["r1"]),
                   dict(norm, name="bn2", inputs=["c2"]), op("add", "a", "bn2", "stem"),
                   op("relu", "r2", "a"), dict(conv, name="head", inputs=["r2"]), op("square", "q", "head"),
                   op("sum", "loss", "q")]
        # the loss: square and sum, 3 units forward and 3 backward; as one kernel 2, all of them forward
        self.check(tensors, 4 * 8 * 16, (5 + 2, 13 + 3), (5 + 1, 19 + 3), (4 + 1, 7 + 2), (4, 12 + 1))

    def test_transformer_block(self):
        """Without its attention: 5 launches and 18 units forward, 11 and 37 backward. One unit is the
        residual stream."""
        tensors = [data("x", 4), linear("stem", "x", 8, bias=False),
                   {"op": "layer_norm", "name": "ln1", "inputs": ["stem"], "dims": 1},
                   linear("qkv", "ln1", 24), op("slice", "part", "qkv", dim=1, start=0, end=8),
                   linear("proj", "part", 8), op("add", "r1", "proj", "stem"),
                   {"op": "layer_norm", "name": "ln2", "inputs": ["r1"], "dims": 1}, linear("fc1", "ln2", 32),
                   op("gelu_tanh", "g", "fc1"), linear("fc2", "g", 8), op("add", "r2", "fc2", "r1"),
                   linear("head", "r2", 8, bias=False), op("square", "q", "head"), op("sum", "loss", "q")]
        # after: two norms (2 and a number or two per row), two residuals, and gelu's operand, which layers
        # read or write; backward the norms, gelu's operand, two additions in place
        rows = 2 * 2 * 4 / (4 * 8)
        self.check(tensors, 4 * 8, (5 + 2, 18 + 3), (11 + 1, 37 + 3), (2 + 1, 4 + rows + 2 + 4 + 2),
                   (2, 6 + rows + 4 + 2))

    def test_group_norm(self):
        conv = {"op": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1, "bias": False}
        tensors = [data("x", 8, 4, 4), dict(conv, name="stem", inputs=["x"]),
                   {"op": "group_norm", "name": "gn", "inputs": ["stem"], "num_groups": 2},
                   op("silu", "s", "gn"),
                   dict(conv, name="head", inputs=["s"]), op("square", "q", "head"), op("sum", "loss", "q")]
        # after: x and y, x and dy for the sums of the channels, x, dy and dx; and a mean and 1 / deviation of
        # each of two groups
        rows = 2 * 2 / (8 * 16)
        self.check(tensors, 4 * 8 * 16, (2 + 2, 4 + 3), (3 + 1, 8 + 3), (1 + 1, 2 + rows + 2),
                   (2, 5 + 2 * rows))


class Savings(unittest.TestCase):
    def test_bytes(self):
        for precision in ("f32", "bf16"):
            found = {name: report.ratio(model, partition.partition(model))
                     for name, model in models(precision)}
            self.assertLessEqual(found["transformer_block"], 0.7)
            self.assertLessEqual(found["resnet_block"], 0.6)
            self.assertLessEqual(found["mlp"], 0.1)
            self.assertLessEqual(found["lenet"], 0.6)

    def test_text(self):
        for name, model in models():
            text = report.report(model, partition.partition(model))
            self.assertTrue(text.startswith(name + " (f32)\n"))
            text.encode("ascii")
            self.assertLessEqual(max(map(len, text.splitlines())), 130)
            self.assertIn("elementwise part of a training step: 0.", text)

    def test_without_a_loss(self):
        model = spec.parse(
            '{"gpunn_spec": 1, "tensors": [{"op": "input", "name": "x", "shape": ["N", 4]}, {"op": "tanh", '
            '"id": "a", "inputs": ["x"]}, {"op": "exp", "id": "b", "inputs": ["a"]}]}')
        text = report.report(model, partition.partition(model))
        self.assertIn("b = exp(tanh(x))", text)
        self.assertNotIn("training", text)


PTXAS = """\
ptxas info    : Compiling entry function \
'_ZN8net_cuda15net_sum1_kernelILi%d%sEEEvNS_23net_sum1_kernel_operandsEjj' for 'sm_90'
ptxas info    : Function properties for _ZN8net_cuda15net_sum1_kernelILi1EEEvNS_23net_sum1_kernel_operandsEjj
    %d bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used %d registers, used 1 barriers, 144 bytes smem
"""


class Registers(unittest.TestCase):
    def test_the_most_of_all_forms(self):
        found = registers.uses(PTXAS % (1, "", 0, 40) + PTXAS % (4, "ELi2", 0, 25) +
                               PTXAS.replace("sum1", "map2") % (1, "", 16, 7))
        self.assertEqual(found, {"net_sum1_kernel": (40, 0), "net_map2_kernel": (7, 16)})
        text = "\n".join(registers.lines({"A": found, "B": {}}))
        self.assertNotIn("spilled", text)
        self.assertRegex(text, r"(?m)^    net_map2_kernel   7 \+ 16 B")
        self.assertIn("nothing is spilled", "\n".join(registers.lines({"A": {"k": registers.Use(4, 0)}})))

    @unittest.skipUnless(shutil.which("nvcc"), "nvcc is not here")
    def test_by_nvcc(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(program.main([os.path.join(HERE, "..", "..", "examples", "kernels",
                                                        "simple_nn.json"), "--report", "--registers"]), 0)
        text = out.getvalue().partition("registers per thread (nvcc)")[2]
        self.assertIn("nothing is spilled", text)
        for name in ("model_network_evaluation_kernel", "model_step_forward_kernel", "model_update0_kernel"):
            self.assertTrue(all(0 < int(n) < 256 for n in re.search(r"%s((?: +\d+){%d})$" % (
                name, len(tiling.CARDS)), text, re.M)[1].split()))

    def test_without_nvcc(self):
        model = os.path.join(HERE, "..", "..", "examples", "kernels", "simple_nn.json")
        for compiler, part in ("/no/nvcc", "'/no/nvcc' cannot be run"), ("false", "--registers: false says"):
            err = io.StringIO()
            with mock.patch.dict(os.environ, NVCC=compiler), contextlib.redirect_stdout(
                    io.StringIO()), contextlib.redirect_stderr(err):
                self.assertEqual(program.main([model, "--report", "--registers"]), 1)
            self.assertIn(part, err.getvalue())


if __name__ == "__main__":
    unittest.main()
