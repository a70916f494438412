"""Properties of partitions of random models, and of the four models of this folder."""
import json
import os
import random
import subprocess
import sys
import unittest
import unittest.mock

from generator import ir, lower, partition, spec
from tests.generator.test_lower import Checker, data, linear, model_of, op, par

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = ("mlp", "lenet", "resnet_block", "transformer_block")
SMOOTH = ("tanh", "sigmoid", "silu", "gelu", "square", "exp", "sin", "softplus")


def source(name):
    with open(os.path.join(HERE, "specs", name + ".json"), encoding="ascii") as file:
        return file.read()


def random_tensors(draw):
    """A model of two or three layers with random ops between and after them; rows of 4 or of 6."""
    width = draw.choice((4, 6))
    tensors = [{"op": "input", "name": "x", "shape": ["N", width]}, par("w0", width), par("w1", 1),
               par("w2", 2, 1)]
    here, count = ["x"], 0

    def add(entry):
        nonlocal count
        count += 1
        entry["id"] = "v%d" % count
        tensors.append(entry)
        here.append(entry["id"])

    def wide():
        return draw.choice(here[-4:] if draw.random() < 0.7 else here)

    def rows():  # one number a row
        add(op(draw.choice(("sum", "mean", "max")), None, wide(), dims=[-1], keepdim=True))
        number = here.pop()
        if draw.random() < 0.5:
            add(op("tanh", None, number))
            number = here.pop()
        return number
    for step in range(draw.randint(8, 22)):
        choice = draw.random()
        if choice < 0.12:
            add({"op": "linear", "name": "fc%d" % step, "inputs": [wide()], "out_features": width})
        elif choice < 0.40:
            add(op(draw.choice(SMOOTH), None, wide()))
        elif choice < 0.60:
            add(op(draw.choice(("add", "mul", "sub")), None, wide(), wide()))
        elif choice < 0.68:
            add(op(draw.choice(("add", "mul")), None, wide(), draw.choice(("w0", "w1"))))
        elif choice < 0.74:
            add(op("dropout", None, wide(), p=draw.choice((0.0, 0.25))))
        elif choice < 0.80:
            number = rows()
            add(op(draw.choice(("sub", "mul")), None, wide(), number))
        elif choice < 0.86:
            add(op(draw.choice(("softmax", "log_softmax")), None, wide(), dim=-1))
        elif choice < 0.90:
            name = draw.choice(("layer_norm", "rms_norm", "group_norm"))
            add(dict({"op": name, "name": "norm%d" % step, "inputs": [wide()]},
                     **({"num_groups": 2} if name == "group_norm" else {"dims": 1})))
        elif choice < 0.94:
            add({"op": "batch_norm1d", "name": "bn%d" % step, "inputs": [wide()]})
        else:
            add(op("reshape", None, wide(), shape=["N", 2, width // 2]))
            inner = here.pop()
            add(op("mul", None, inner, "w2"))
            inner = here.pop()
            add(op("reshape", None, inner, shape=["N", width]))
    add({"op": "linear", "name": "end", "inputs": [here[-1]], "out_features": width})
    add(op("mul", None, here[-1], here[-2]))
    here_last = here[-1]
    tensors.append(op(draw.choice(("sum", "mean")), "loss", here_last))
    return tensors


class Random(unittest.TestCase):
    SEEDS = range(30)

    def models(self):
        for seed in self.SEEDS:
            yield seed, model_of(random_tensors(random.Random(seed)))

    def test_kernels_in_place_of_nodes(self):
        """Runs every group once all that it reads is computed, so a cycle would stop it. Values and gradients
        stay the same."""
        gradients = kernels = 0
        for seed, model in self.models():
            checker = Checker(self, model, batch=3, seed=seed, tolerance=1e-6, name="seed %d: " % seed)
            checker.check_values(False)
            checker.check_values(True)
            gradients += checker.check_gradients(1)
            kernels += len(checker.kernels.training)
        self.assertGreater(kernels, 2 * len(self.SEEDS))
        self.assertGreater(gradients, 3 * len(self.SEEDS))

    def test_every_node_once(self):
        for _, model in self.models():
            kernels = partition.partition(model)
            for instances in (kernels.training, kernels.evaluation):
                claimed = [number for instance in instances
                           for number in instance.tensors[:len(kernels.kernels[instance.kernel].nodes)]]
                self.assertEqual(len(claimed), len(set(claimed)))
                self.assertTrue(all(model.tensors[number].kind == "value" for number in claimed))

    def test_values_that_escape_are_written(self):
        for _, model in self.models():
            kernels = partition.partition(model)
            for training, instances in ((True, kernels.training), (False, kernels.evaluation)):
                view = partition.View(model, training)
                for instance in instances:
                    kernel = kernels.kernels[instance.kernel]
                    nodes = instance.tensors[:len(kernel.nodes)]
                    program = kernel.forward if training else kernel.evaluation
                    written = {view.root[nodes[-1 - operand.index]] for operand in program.operands
                               if operand.role == "value" and operand.index < 0 and operand.written}
                    for t in model.tensors:
                        for number in t.inputs if view.needed[t.id] and t.id not in nodes else ():
                            if number in nodes:
                                self.assertIn(view.root[number], written)
                    self.assertIn(view.root[nodes[-1]], written)

    def test_limits(self):
        for _, model in self.models():
            for kernel in partition.partition(model).kernels:
                for program in (kernel.evaluation, kernel.forward, kernel.backward):
                    self.check_limits(program) if program else None

    def check_limits(self, program):
        pointers = [operand for operand in program.operands if operand.role != "stat"]
        self.assertLessEqual(len(pointers), lower.MOST_POINTERS)
        self.assertEqual(len({operand.name for operand in program.operands}), len(program.operands))
        self.assertEqual([operand.role == "stat" for operand in program.operands],
                         sorted(operand.role == "stat" for operand in program.operands))
        for launch in program.launches:
            roots = [store.value for store in launch.stores] + [one.value for one in launch.sums]
            streams = {(operand.role, operand.index)
                       for operand in ir.loads(roots) if operand.place == (1, 0)}
            streams |= {(store.operand.role, store.operand.index)
                        for store in launch.stores if store.operand.place == (1, 0)}
            self.assertLessEqual(len(streams), lower.MOST_STREAMS)
            self.assertLessEqual(len(ir.topological(roots + [store.value for store in launch.finals])),
                                 lower.MOST_NODES)
            for operand in ir.loads(roots + [store.value for store in launch.finals]):
                self.assertTrue(operand.read)
                self.assertIn(operand, program.operands)
            for store in launch.stores + launch.finals:
                self.assertTrue(store.operand.written)
                self.assertIn(store.operand, program.operands)
            self.assertEqual([one.number for one in launch.sums], list(range(len(launch.sums))))
            self.assertLessEqual(len({one.place for one in launch.sums} - {(1, 1)}), 1)
            self.assertEqual(launch.family == "row", launch.domain.inner > 1)

    def test_half_precision(self):
        """What is stored in 16 bits is read as rounded."""
        for seed in range(20):
            model = model_of(random_tensors(random.Random(seed)), precision="bf16")
            for kernel in partition.partition(model).kernels:
                for program in (kernel.evaluation, kernel.forward):
                    for store in ([store for launch in program.launches for store in launch.stores] if program
                                  else ()):
                        if store.operand.dtype == "bf16" and store.operand.role in ("value", "kept"):
                            self.assertIn(store.value.op, ("round", "load"))


class Overrides(unittest.TestCase):
    TENSORS = [data("x", 6), linear("fc", "x", 6, **{"as": "h"}), op("tanh", "a", "h"), op("exp", "b", "a"),
               op("sin", "c", "b"), linear("end", "c", 2), op("mean", "loss", "end")]

    def formulas(self, **fuse):
        return [kernel.formula for kernel in partition.partition(model_of(self.TENSORS, fuse=fuse)).kernels]

    def test_never(self):
        self.assertEqual(self.formulas(), ["c = sin(exp(tanh(h)))"])
        self.assertEqual(self.formulas(never=[["a", "b"]]), ["c = sin(exp(a))"])
        self.assertEqual(self.formulas(never=[["a", "c"]]), ["b = exp(tanh(h))"])

    def test_always(self):
        self.assertEqual(self.formulas(always=[["b", "c"]]), ["c = sin(exp(tanh(h)))"])
        self.assertEqual(self.formulas(always=[["b", "c"]], never=[["a", "b"]]), ["c = sin(exp(a))"])
        with self.assertRaisesRegex(partition.FuseError,
                                    "'a' and 'c' cannot be one kernel: the nodes between them"):
            self.formulas(always=[["a", "c"]])
        with self.assertRaisesRegex(partition.FuseError, "a kernel cannot hold 'h'"):
            self.formulas(always=[["h", "a"]])

    def test_always_in_training_alone(self):
        nodes = [op("dropout", "a", "h", p=0.5), op("exp", "b", "a"), op("sin", "c", "b")]
        tensors = self.TENSORS[:2] + nodes + self.TENSORS[-2:]
        kernels = partition.partition(model_of(tensors, fuse={"always": [["a", "b"]]})).kernels
        self.assertEqual([kernel.formula for kernel in kernels],
                         ["c = sin(exp(dropout(h, p=0.5)))", "c = sin(exp(a))"])

    def test_schedule(self):
        kernels = partition.partition(model_of(self.TENSORS, fuse={"schedule": {"g0": {"threads": 128}}}))
        self.assertEqual(kernels.kernels[0].schedule, {"threads": 128})


class Rules(unittest.TestCase):
    def formulas(self, tensors, training=True, **rest):
        kernels = partition.partition(model_of(tensors, **rest))
        return [kernels.kernels[instance.kernel].formula
                for instance in (kernels.training if training else kernels.evaluation)]

    def test_chains_stay_with_the_runtime(self):
        image = data("x", 3, 4, 4)
        conv = {"op": "conv2d", "name": "c", "inputs": ["x"], "out_channels": 3, "kernel_size": 3,
                "padding": 1}
        norm = {"op": "batch_norm2d", "name": "bn", "inputs": ["c"]}
        end = [op("flatten", "f", "o"), linear("end", "f", 2), op("mean", "loss", "end")]
        tensors = [image, conv, norm, op("add", "a", "bn", "x"), op("relu", "o", "a")] + end
        self.assertEqual(self.formulas(tensors, False), [])
        self.assertEqual(len(self.formulas(tensors)), 1)
        tensors = [image, conv, norm, op("add", "a", "bn", "x"), op("silu", "o", "a")] + end
        self.assertEqual(self.formulas(tensors, False), [])
        tensors = [image, conv, op("mul", "m", "c", "x"), op("relu", "o", "m")] + end
        self.assertEqual(self.formulas(tensors, False), ["o = relu(c * x)"])

    def test_gelu_tanh_behind_linear(self):
        x, fc = data("x", 6), linear("fc", "x", 6)
        end = [linear("end", "o", 2), op("mean", "loss", "end")]
        self.assertEqual(self.formulas([x, fc, op("gelu_tanh", "g", "fc"), op("tanh", "o", "g")] + end), [])
        self.assertEqual(self.formulas([x, fc, op("gelu", "g", "fc"), op("tanh", "o", "g")] + end),
                         ["o = tanh(gelu(fc))"])
        read_twice = [x, fc, op("gelu_tanh", "g", "fc"), op("mul", "o", "g", "fc")] + end
        self.assertEqual(self.formulas(read_twice), ["o = gelu_tanh(fc) * fc"])

    def test_what_others_see_stays_out_of_chains(self):
        tensors = [data("x", 6), linear("fc", "x", 6), op("relu", "r", "fc"), op("tanh", "o", "r"),
                   linear("end", "o", 2), op("mean", "loss", "end")]
        self.assertEqual(self.formulas(tensors, outputs=["o"]), [])
        self.assertEqual(self.formulas(tensors, outputs=["fc", "o"]), ["o = tanh(relu(fc))"])

    def test_one_norm_a_kernel(self):
        norms = [{"op": "rms_norm", "name": name, "inputs": [x], "dims": 1}
                 for name, x in (("n1", "t"), ("n2", "n1"))]
        tensors = [data("x", 6), op("tanh", "t", "x")] + norms + [
            linear("end", "n2", 2), op("mean", "loss", "end")]
        self.assertEqual([text.count("norm(") for text in self.formulas(tensors)], [1, 1])

    def test_no_kernel_around_a_layer(self):
        tensors = [data("x", 6), op("tanh", "a", "x"), op("exp", "b", "a"),
                   linear("fc", "b", 6), op("sin", "s", "fc"), op("mul", "o", "s", "b"),
                   linear("end", "o", 2), op("mean", "loss", "end")]
        self.assertEqual(self.formulas(tensors), ["b = exp(tanh(x))", "o = sin(fc) * b"])

    def test_kernels_do_not_wait_for_each_other(self):
        """Each of two pairs could be a kernel, but not both: one half of each waits for the other pair."""
        fc = {"op": "linear", "inputs": ["x"], "out_features": 6}
        tensors = [data("x", 6), dict(fc, name="p"), dict(fc, name="q"),
                   op("sub", "a", "p", "x"), op("sub", "b", "q", "x"),
                   dict(fc, name="pa", inputs=["a"]), dict(fc, name="qb", inputs=["b"]),
                   op("mul", "c", "qb", "a"), op("mul", "d", "pa", "b"), op("add", "e", "c", "d"),
                   linear("end", "e", 2), op("mean", "loss", "end")]
        model = model_of(tensors)
        Checker(self, model).check_values(True)

    def test_work_grows_with_the_model(self):
        def calls(count):
            tensors = [{"op": "input", "name": "t0", "shape": ["N", 4]}]
            tensors += [op("relu", "t%d" % (k + 1), "t%d" % k) for k in range(count)] + [
                op("sum", "loss", "t%d" % count)]
            view, seen = partition.View(model_of(tensors), True), [0]

            def see(frame, event, _):
                seen[0] += event == "call"
            sys.setprofile(see)
            try:
                with unittest.mock.patch.object(partition.Partition, "_lowering_fault",
                                                lambda self, members: "long" if len(members) > 8 else None):
                    division = partition.Partition(view)
                for members in division.groups():
                    view.group(members)
            finally:
                sys.setprofile(None)
            return seen[0]
        self.assertLess(calls(800), 5 * calls(200))

    def test_one_kernel_for_the_same_thing(self):
        fc = {"op": "linear", "out_features": 6}
        tensors = [data("x", 6), dict(fc, name="p", inputs=["x"]), op("tanh", "a", "p"), op("exp", "b", "a"),
                   dict(fc, name="q", inputs=["b"]), op("tanh", "c", "q"), op("exp", "d", "c"),
                   dict(fc, name="end", inputs=["d"]), op("mean", "loss", "end")]
        kernels = partition.partition(model_of(tensors))
        self.assertEqual(len(kernels.kernels), 1)
        self.assertEqual([instance.kernel for instance in kernels.training], [0, 0])
        self.assertEqual([instance.kernel for instance in kernels.evaluation], [0, 0])

    def test_bias_gelu_residual(self):
        """Over images, by channels: one kernel forward, one backward; x and r are read and written once."""
        image = {"op": "input", "name": "image", "shape": ["N", 256, 28, 28]}
        tensors = [image, {"op": "max_pool2d", "id": "x", "inputs": ["image"], "kernel_size": 1},
                   par("s", 1, 256, 1, 1), par("b", 1, 256, 1, 1), op("mul", "m", "x", "s"),
                   op("add", "a", "m", "b"), op("gelu", "g", "a"), op("add", "y", "g", "image"),
                   {"op": "max_pool2d", "id": "p", "inputs": ["y"], "kernel_size": 1}, op("sum", "loss", "p")]
        (kernel,) = partition.partition(model_of(tensors)).kernels
        self.assertEqual(kernel.formula, "y = gelu(x * s + b) + image")
        size = 4 * 256 * 28 * 28
        self.assertEqual(kernel.forward.bytes_per_batch, (2 * 4 * 256, 3 * size))
        self.assertEqual(kernel.backward.bytes_per_batch, (4 * 4 * 256, 3 * size))
        self.assertEqual([one.place for one in kernel.backward.launches[0].sums], [(784, 256), (784, 256)])

    def test_frozen_parameters_have_no_gradient(self):
        tensors = [data("x", 6), dict(par("s", 6), trainable=False),
                   linear("fc", "x", 6), op("mul", "a", "fc", "s"), op("tanh", "o", "a"),
                   linear("end", "o", 2), op("mean", "loss", "end")]
        kernel = partition.partition(model_of(tensors)).kernels[0]
        self.assertEqual([operand.name for operand in kernel.backward.operands if operand.written],
                         ["grad_fc"])

    def test_layouts(self):
        text = source("resnet_block")
        for precision, layouts in (("f32", ["any", "any", "any"]),
                                   ("bf16", ["first", "last", "first", "last", "any"])):
            kernels = partition.partition(spec.parse(text.replace('"f32"', '"%s"' % precision)))
            self.assertEqual([kernel.layout for kernel in kernels.kernels], layouts)

    def test_updates(self):
        (update,) = partition.partition(spec.parse(source("mlp").replace('"f32"', '"bf16"'))).updates
        self.assertEqual((update["kind"], update["half_dtype"]), ("adam", "bf16"))


class Deterministic(unittest.TestCase):
    def test_any_hash_seed(self):
        program = (
            "import sys; sys.path.insert(0, %r)\nfrom generator import spec, partition\nfor name in %r:\n"
            "    print(partition.partition(spec.load(name)))" %
            (os.path.dirname(os.path.dirname(HERE)),
             [os.path.join(HERE, "specs", name + ".json") for name in ("mlp", "lenet", "resnet_block")]))
        texts = {subprocess.run([sys.executable, "-c", program],
                                env=dict(os.environ, PYTHONHASHSEED=str(seed)),
                                stdout=subprocess.PIPE, check=True).stdout for seed in (0, 1, 77)}
        self.assertEqual(len(texts), 1)


if __name__ == "__main__":
    unittest.main()
