"""network: which evaluations are one kernel, what it reads and writes, and why others are none."""
import io
import json
import os
import tempfile
import unittest
from contextlib import redirect_stdout
from dataclasses import replace

from generator import __main__ as program
from generator import emit_c, emit_cuda, partition, spec, tiling, training
from tests.generator import names as variables


def model_of(*tensors, outputs=("y",), **rest):
    source = {"gpunn_spec": 1, "tensors": [{"op": "input", "name": "x", "shape": ["N", 8]}, *tensors],
              "outputs": list(outputs)}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "net.json")
        with open(path, "w", encoding="ascii") as file:
            json.dump(dict(source, **rest), file)
        return spec.load(path)


def linear(name, source, width):
    return {"op": "linear", "name": name, "inputs": [source], "out_features": width}


def relu(name, source):
    return {"op": "relu", "name": name, "inputs": [source]}


def images(height, width, channels=2):
    return ({"op": "input", "name": "z", "shape": ["N", 1, height, width]},
            {"op": "conv2d", "name": "c", "inputs": ["z"], "out_channels": channels, "kernel_size": 5,
             "stride": 4},
            {"op": "conv2d", "name": "d", "inputs": ["c"], "out_channels": channels, "kernel_size": 5,
             "padding": 2},
            {"op": "mean", "id": "y", "inputs": ["d"], "dims": [2, 3]})


class Network(unittest.TestCase):
    def network(self, *tensors, **rest):
        model = model_of(*tensors, **rest)
        made = partition.partition(model)
        return ((made.network and [model.tensors[i].label or model.tensors[i].name for i in made.network[1]]),
                made)

    def test_what_it_computes(self):
        names, made = self.network(linear("a", "x", 16), relu("b", "a"), linear("y", "b", 3))
        self.assertEqual(names, ["a", "b", "y", "x", "a.weight", "a.bias", "y.weight", "y.bias"])
        written = [one for one in made.network[0].evaluation.operands if one.written]
        self.assertEqual([(one.name, one.index, one.count) for one in written], [("y", -3, (0, 3))])
        kernels, evaluation, _ = made.tables()
        self.assertEqual((kernels[0], evaluation[0].tensors), made.network)

    def test_sums_of_one_element(self):
        """Their text for a GPU has an index."""
        total = {"op": "sum", "name": "b", "inputs": ["a"], "dims": [-1], "keepdim": True}
        _, made = self.network(linear("a", "x", 1), total, linear("c", "b", 16), linear("y", "c", 3))
        self.assertTrue(made.network)
        self.assertNotRegex(emit_cuda.emit_cuda(made), r"own\[ *[]+]")

    def test_names_of_variables(self):
        """Tensors may have the names of the C function's own variables."""
        def text_of(place, name):
            names = dict({"input": "_x", "value": "_a", "output": "_y"}, **{place: name})
            model = model_of({"op": "input", "name": names["input"], "shape": ["N", 8]},
                             linear("_l", names["input"], 16), relu(names["value"], "_l"),
                             {"op": "softmax", "name": "_s", "inputs": [names["value"]], "dim": 1},
                             linear(names["output"], "_s", 3), outputs=(names["output"],))
            text = emit_c.emit_header(partition.partition(model))
            begin = text.index("model_network_evaluation_samples(")
            return text[begin:text.index("\n}\n", begin)]
        for place in "input", "value", "output":
            found, tried = variables.hidden(lambda name, place=place: text_of(place, name))
            self.assertEqual((found, tried > 7), ([], True), place)

    def test_lookups(self):
        """What a sample reads of tables counts, not the tables."""
        names, made = self.network(
            {"op": "input", "name": "words", "dtype": "i32", "shape": ["N", 2]},
            {"op": "input", "name": "p", "shape": ["N", 3]},
            {"op": "embedding", "name": "e", "inputs": ["words"], "num_embeddings": 1000, "embedding_dim": 4},
            {"op": "flatten", "name": "f", "inputs": ["e"]},
            {"op": "hash_grid_encoding", "name": "g", "inputs": ["p"], "n_levels": 2},
            {"op": "concat", "name": "c", "inputs": ["f", "g"], "dim": 1}, linear("a", "c", 16),
            linear("y", "a", 3))
        self.assertEqual(names[:6], ["e", "f", "g", "c", "a", "y"])
        weights = 4 * (12 * 16 + 16 + 16 * 3 + 3)
        self.assertEqual(made.network[0].evaluation.bytes_per_batch,
                         (weights, 4 * (2 + 3 + 3 + 2 * 4 + 2 * 2 * 8)))
        self.assertIn("return GPUNN_ERR_ARGUMENT;", emit_c.emit_header(made))

    def test_outputs_of_the_batch_stay_outside(self):
        names, _ = self.network(linear("a", "x", 4), linear("y", "a", 3),
                                {"op": "mean", "name": "m", "inputs": ["y"]}, outputs=("y", "m"))
        self.assertNotIn("m", names)

    def test_others_are_none(self):
        wide = ("a linear layer", (linear("a", "x", 257), linear("y", "a", 3)),
                "linear 'a': 257 wide, more than the limit of 256")
        for what, tensors, reason in (
                wide, ("one layer", (linear("y", "x", 3),),
                       "no output depends on two linear layers or convolutions"),
                ("a mean of the batch",
                 (linear("a", "x", 4), linear("b", "a", 4), {"op": "mean", "name": "y", "inputs": ["b"]}),
                 "[] is not a value of each sample"),
                ("softmax of the batch",
                 (linear("a", "x", 4), {"op": "softmax", "name": "b", "inputs": ["a"], "dim": 0},
                  linear("y", "b", 2)), "softmax 'b': it works along the batch"),
                ("volumes",
                 ({"op": "input", "name": "z", "shape": ["N", 1, 4, 4, 4]},
                  {"op": "conv3d", "name": "c", "inputs": ["z"], "out_channels": 2, "kernel_size": 3},
                  {"op": "flatten", "name": "f", "inputs": ["c"]}, linear("a", "f", 4), linear("y", "a", 2)),
                 "conv3d 'c': the op does not work on single samples"),
                ("large images", images(250, 250), "62500 elements per sample, more than the limit of 58112"),
                ("images that fill a block", images(238, 238), "values of 1 sample take"),
                ("an embedding of many rows",
                 ({"op": "input", "name": "words", "dtype": "i64", "shape": ["N"]},
                  {"op": "embedding", "name": "e", "inputs": ["words"], "num_embeddings": (1 << 24) + 1,
                   "embedding_dim": 2}, linear("a", "e", 4), linear("y", "a", 2)),
                 "embedding 'e': 16777217 rows, more than the limit of 16777216"),
                ("computed integers", ({"op": "cast", "name": "i", "inputs": ["x"], "dtype": "i32"},
                                       {"op": "cast", "name": "c", "inputs": ["i"], "dtype": "f32"},
                                       linear("a", "c", 4), linear("y", "a", 2)),
                 "cast 'i': i32 values are not supported"),
                ("images of many products", images(60, 60, 64), "step by step should be quicker")):
            with self.subTest(what):
                self.assertIsNone(self.network(*tensors)[0])
                self.assertIn(reason, partition.network_fault(model_of(*tensors)))
        deep = [linear("fc%d" % i, "fc%d" % (i - 1) if i else "x", 4) for i in range(32)]
        self.assertIn("a kernel has at most 64", partition.network_fault(model_of(*deep, outputs=("fc31",))))

    def plan(self, *widths, **rest):
        names = ["x"] + ["fc%d" % i for i in range(len(widths))]
        layers = [linear(name, source, width) for name, source, width in zip(names[1:], names, widths)]
        made = self.network(*layers, outputs=names[-1:], **rest)[1]
        return tiling.tile_plan(made.network[0].evaluation.network), made

    def test_forms(self):
        """Each fits its shared memory. Any GPU can run the last one, and small batches have small tiles."""
        for widths in ((50, 1), (64, 64, 64), (256, 256, 256)):
            plan, made = self.plan(*widths)
            forms = tiling.forms(plan)
            for form in forms:
                self.assertEqual(form.bytes, 4 * (form.samples * plan.pitch() + form.floats))
                self.assertEqual(form.whole, form.floats == plan.staged("f32"))
            self.assertLessEqual(forms[-1].bytes, tiling.BUDGETS[0])
            self.assertFalse(forms[-1].fills)
            text = emit_cuda.emit_cuda(made)
            for form in () if tiling.refusal(plan) else forms:
                self.assertIn("LAUNCH(float, %d, %d, %s);" %
                              (form.samples, form.floats, str(form.whole).lower()), text)

    def test_images(self):
        """Only on GPUs, with tiles of one or a few samples, in F32."""
        made = self.network(*images(28, 28, 6))[1]
        evaluation = made.network[0].evaluation
        plan, text = tiling.tile_plan(evaluation.network), emit_cuda.emit_cuda(made)
        self.assertTrue(evaluation.on_gpus_alone())
        self.assertIn("network_evaluation_operands, %d, NULL, NULL, 0" % len(evaluation.operands),
                      emit_c.emit_header(made))
        self.assertIn("convolve<window<28, 28, 6, 6, 5, 5, 4, 4, 0, 0, 1, 1>, SAMPLES, PITCH, 1, 1, 6>(",
                      text)
        for form in tiling.forms(plan):
            self.assertIn(form.samples, tiling.TILES + tiling.FEW)
            self.assertEqual((form.floats, form.bytes), (0, 4 * form.samples * plan.pitch()))
            self.assertIn("LAUNCH(float, %d, 0, true);" % form.samples, text)
        self.assertEqual(tiling.form_for(plan, 1, 132, 232448, 90).samples, 1)
        self.assertEqual(tiling.form_for(plan, 8 * 132, 132, 232448, 90).samples, 8)
        for precision in ("bf16", "f16", "tf32"):
            self.assertIn("a model of images must be F32 to be one kernel",
                          partition.network_fault(model_of(*images(28, 28, 6), precision=precision)))

    def test_long_rows(self):
        """The repository's own network of images is one launch if a block has shared memory for its 21632
        values after the convolution. All threads share the product of 5408 numbers, and relu is applied
        before a value is stored."""
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "kernels",
                            "fashion_mnist_simple.json")
        made = partition.partition(spec.load(path), "simple")
        plan, text = tiling.tile_plan(made.network[0].evaluation.network), emit_cuda.emit_cuda(made)
        self.assertEqual((list(plan.linears()), list(plan.linears(long=True))), ([], [(1, 5408, 10)]))
        self.assertEqual([one.samples for one in tiling.forms(plan)], [2, 1])
        self.assertIn("long_linear<SAMPLES, PITCH, 5408, 10, 1>(", text)
        self.assertIn("[](float x) { simple_apply_relu(x, &x); return x; }", text)
        self.assertNotIn("simple_apply_relu(own", text)
        self.assertEqual(tiling.form_on(plan, 1, tiling.CARDS["H100"]).samples, 1)
        self.assertIsNone(tiling.form_on(plan, 1, tiling.CARDS["T4"]))

    def test_choice(self):
        """Small batches of small networks are one launch. Those dominated by products are not."""
        small, wide = self.plan(50, 1)[0], self.plan(256, 256, 256)[0]
        self.assertEqual(tiling.form_for(small, 1, 132, 232448, 90).samples, 16)
        self.assertEqual(tiling.form_for(small, 132 * 64, 132, 232448, 90).samples, 64)
        self.assertIsNone(tiling.form_for(small, 1, 132, 4000, 90))
        self.assertIsNone(tiling.form_for(wide, 1, 132, 232448, 90))
        self.assertIsNone(tiling.form_for(small, 1 << 30, 132, 232448, 90))
        self.assertIsNone(tiling.refusal(small))
        self.assertIn("step by step should be quicker", tiling.refusal(wide))

    def test_precisions(self):
        """Tensor cores if a GPU has them for the precision. TF32 has a form for other GPUs, too."""
        for precision, by_capability in (("f32", {70: "f32", 75: "f32", 90: "f32"}),
                                         ("tf32", {70: "f32", 75: "f32", 80: "tf32"}),
                                         ("bf16", {75: None, 80: "bf16"}),
                                         ("f16", {70: None, 75: "f16", 90: "f16"})):
            plan, made = self.plan(50, 33, 1, precision=precision)
            self.assertEqual(made.network[0].precision, precision)
            stored = {one.dtype for one in made.network[0].evaluation.operands if one.written}
            self.assertEqual(stored, {precision if precision in ("bf16", "f16") else "f32"})
            for capability, factors in by_capability.items():
                form = tiling.form_for(plan, 1, 132, 49152, capability)
                self.assertEqual(form and form.factors, factors)
        f32, bf16 = [self.plan(128, 128, 128, precision=precision)[0] for precision in ("f32", "bf16")]
        self.assertIsNone(tiling.form_on(f32, 16384, tiling.CARDS["A100"]))
        self.assertEqual(tiling.form_on(bf16, 16384, tiling.CARDS["A100"]).factors, "bf16")
        self.assertIsNone(tiling.form_on(bf16, 1, tiling.CARDS["T4"]))

    def test_rows_without_conflicts(self):
        for count in range(1, 70):
            self.assertEqual(tiling.pitch_of(count) % 8, 4)
            self.assertTrue(count <= tiling.pitch_of(count) < count + 8)
            for factors, words in (("f32", count), ("tf32", -(-count // 8) * 8),
                                   ("bf16", -(-count // 16) * 8)):
                self.assertEqual(tiling.step_of(count, factors), tiling.pitch_of(words + 1))

    def test_report(self):
        for name, text in (("network", "in place of all others, 32554 multiplications"),
                           ("lenet", "is not one kernel: "),
                           ("network", "on a GPU in one launch; by arithmetic"),
                           ("network", "weights whole, no tensor cores")):
            path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "specs", "small", name + ".json")
            out = io.StringIO()
            with redirect_stdout(out):
                self.assertEqual(program.main([path, "--report"]), 0)
            self.assertIn(text, out.getvalue())


class Step(unittest.TestCase):
    """Training steps as one kernel."""

    def step(self, *tensors, **rest):
        given = ({"op": "input", "name": "t", "shape": ["N", 3]},) + tensors
        return model_of(*given, loss="loss", optimizer={"type": "sgd", "lr": 0.1}, **rest)

    @staticmethod
    def loss(source, op="mse_loss"):
        return {"op": op, "name": "loss", "inputs": [source, "t"]}

    def test_what_it_computes(self):
        model = self.step(linear("a", "x", 16), relu("b", "a"), linear("y", "b", 3), self.loss("y"))
        made = partition.partition(model)
        kernel, tensors = made.step
        self.assertEqual([one.name for one in kernel.forward.operands if one.written],
                         ["y", "loss", "grad_a_weight", "grad_a_bias", "grad_y_weight", "grad_y_bias"])
        self.assertEqual([(one.name, one.role)
                          for one in kernel.forward.operands if one.index == -len(kernel.nodes)],
                         [("loss", "value"), ("grad_loss", "gradient")])
        self.assertTrue(kernel.loss)
        kernels, _, steps = made.tables()
        self.assertEqual((kernels[1], steps[0].tensors), made.step)
        self.assertEqual([kernels[one.kernel].name for one in steps],
                         ["step"] + ["g%d" % one.kernel for one in made.training])

    def classes(self, *tensors, shape=("N",), **rest):
        given = {"op": "input", "name": "classes", "dtype": "i32", "shape": list(shape)}
        return self.step(given, *tensors, **rest)

    def test_classes(self):
        """A loss by labels: they are read, and their divisor is one more sum."""
        for op, rest, scalars in (("cross_entropy", {}, 2),
                                  ("cross_entropy", {"label_smoothing": 0.1, "reduction": "sum"}, 2),
                                  ("nll_loss", {"ignore_index": 1}, 2)):
            model = self.classes(linear("a", "x", 16), relu("b", "a"), linear("y", "b", 3),
                                 dict({"op": op, "name": "loss", "inputs": ["y", "classes"]}, **rest))
            self.assertIsNone(partition.step_fault(model))
            made = partition.partition(model)
            plan = made.step[0].forward.step
            self.assertEqual(plan.summed(), (8 * 16 + 16 + 16 * 3 + 3 + scalars + 3) // 4 * 4)
            self.assertIn(("classes", "i32", True),
                          [(one.name, one.dtype, one.read) for one in made.step[0].forward.operands])
            self.assertEqual("const float labels = " in emit_cuda.emit_cuda(made),
                             rest.get("reduction") != "sum")

    def test_other_classes_are_none(self):
        image = ({"op": "input", "name": "many", "dtype": "i32", "shape": ["N", 2]}, linear("a", "x", 6),
                 {"op": "reshape", "name": "y", "inputs": ["a"], "shape": ["N", 3, 2]},
                 {"op": "cross_entropy", "name": "loss", "inputs": ["y", "many"]})
        made = (linear("y", "x", 3), {"op": "argmax", "name": "best", "inputs": ["t"], "dim": 1},
                {"op": "cross_entropy", "name": "loss", "inputs": ["y", "best"]})
        for tensors, reason in ((image, "cross_entropy 'loss' has several labels a sample"),
                                (made, "what cross_entropy 'loss' reads beside the logits is computed")):
            self.assertEqual(partition.step_fault(self.step(*tensors)), reason)

    @staticmethod
    def lookup(name, tokens, rows, width, **more):
        return dict({"op": "embedding", "name": name, "inputs": [tokens], "num_embeddings": rows,
                     "embedding_dim": width}, **more)

    def fields(self, **grid):
        """A hash grid, and two lookups in one embedding."""
        point = {"op": "slice", "name": "point", "inputs": ["x"], "dim": 1, "start": 0, "end": 3}
        given = {"op": "hash_grid_encoding", "name": "grid", "inputs": ["point"], "n_levels": 4,
                 "log2_hashmap_size": 8, "base_resolution": 4}
        both = {"op": "concat", "name": "both", "inputs": ["grid", "one", "two"], "dim": 1}
        return self.classes(point, dict(given, **grid), self.lookup("one", "classes", 7, 5),
                            self.lookup("two", "classes", 7, 5, weight="one.weight"), both,
                            linear("y", "both", 3), self.loss("y"))

    def test_tables(self):
        """Gradients of tables are no sums of blocks. Each sample leaves a record for them, and later launches
        add the records up."""
        made = partition.partition(self.fields())
        plan, text = made.step[0].forward.step, emit_cuda.emit_cuda(made)
        self.assertEqual([(t.op, place) for t, place in plan.records()],
                         [("hash_grid_encoding", 0), ("embedding", 11), ("embedding", 17)])
        self.assertEqual(plan.record(), 11 + 6 + 6)
        (grid, first), (table, second) = plan.tables().items()
        self.assertEqual((first, second, plan.count(table)), (0, plan.count(grid), 35))
        self.assertEqual((plan.terms(grid), plan.terms(table)), (8, 2))
        self.assertEqual(plan.summed(), 18 * 3 + 3 + 1 + 2)
        self.assertEqual(list(plan.products_back()), [(18, 3, True, True)])
        # 8 corners of each of 4 levels, with 2 features
        self.assertEqual(tiling.hashes(plan), [4 * 8 * (tiling.CORNER + 2) / tiling.LANES])
        self.assertEqual(text.count("exact_add(sums"), 3)
        self.assertNotIn("hash_gradient", emit_c.emit_header(made))
        # with the evaluation's kernel
        self.assertEqual(emit_c.emit_header(made).count("_hash_find(uint32_t"), 1)
        card = tiling.CARDS["H100"]
        self.assertGreater(training.tables_seconds(plan, 1 << 16, card),
                           training.tables_seconds(plan, 256, card))

    def test_bytes(self):
        """Images of bytes become floats at the kernel's begin."""
        image = {"op": "input", "name": "image", "dtype": "u8", "shape": ["N", 24]}
        cast = {"op": "cast", "name": "pixels", "inputs": ["image"], "dtype": "f32"}
        layers = (image, cast, linear("a", "pixels", 16), relu("b", "a"), linear("y", "b", 3))
        made = partition.partition(self.classes(*layers, self.loss("y")))
        for plan in (made.step[0].forward.step, made.network[0].evaluation.network):
            self.assertIn("cast", [step.tensor.op for step in plan.steps])
        self.assertIn("(float)o.image_[first", emit_cuda.emit_cuda(made))

    def test_frozen_tables(self):
        plan = partition.partition(self.fields(trainable=False)).step[0].forward.step
        self.assertEqual([t.op for t, _ in plan.records()], ["embedding", "embedding"])
        self.assertEqual(plan.tables().popitem()[1], 0)

    def test_other_tables_are_none(self):
        tied = (self.lookup("a", "classes", 3, 8), linear("b", "a", 8),
                dict(linear("y", "b", 3), weight="a.weight"))
        alone = (self.lookup("a", "classes", 9, 8), dict(linear("y", "a", 3), trainable=False))
        many = (self.lookup("a", "classes", (1 << 24) + 1, 1), linear("y", "a", 3))
        rows = (self.lookup("a", "classes", 9, 8, sparse=True), linear("y", "a", 3))
        for tensors, reason in ((tied, "embedding 'a': its weight 'a.weight' is read elsewhere, too"),
                                (alone, "it trains only tables"),
                                (rows, "embedding 'a': its table 'a.weight' has a sparse gradient"),
                                (many, "embedding 'a': 16777217 rows, more than the limit of 16777216")):
            self.assertEqual(partition.step_fault(self.classes(*tensors, self.loss("y"))), reason)

    def test_many_layers(self):
        """Eight layers with biases and residuals fit into a kernel's operands."""
        layers = [linear("l0", "x", 16)]
        for k in range(1, 7):
            layers += [linear("l%d" % k, "r%d" % (k - 1) if k > 1 else "l0", 16), relu("h%d" % k, "l%d" % k),
                       {"op": "add", "name": "r%d" % k,
                        "inputs": ["h%d" % k, "r%d" % (k - 1) if k > 1 else "l0"]}]
        model = self.step(*layers, linear("y", "r6", 3), self.loss("y"))
        self.assertIsNone(partition.step_fault(model))
        self.assertEqual(len(partition.partition(model).step[0].forward.operands), 2 + 2 * 16 + 3)

    def test_no_gradient_of_what_is_frozen(self):
        model = self.step(dict(linear("a", "x", 16), trainable=False), linear("b", "a", 3), self.loss("b"),
                          outputs=("b",))
        plan = partition.partition(model).step[0].forward.step
        self.assertEqual([model.tensors[i].name or model.tensors[i].label for i, _ in plan.sums()],
                         ["b.weight", "b.bias"])
        self.assertEqual(plan.summed(), 16 * 3 + 3 + 1)
        self.assertEqual(list(plan.products_back()), [(8, 16, False, False), (16, 3, False, True)])
        self.assertEqual(plan.multiplications(), 8 * 16 + 2 * 16 * 3)
        self.assertFalse(plan.wants(next(t.id for t in model.tensors if t.op == "linear")))

    def test_others_are_none(self):
        along = ({"op": "softmax", "name": "a", "inputs": ["x"], "dim": 0}, linear("y", "a", 3))
        line = ({"op": "reshape", "name": "a", "inputs": ["x"], "shape": ["N", 2, 4]},
                {"op": "conv1d", "name": "c", "inputs": ["a"], "out_channels": 1, "kernel_size": 2},
                {"op": "flatten", "name": "y", "inputs": ["c"]})
        read = (linear("a", "x", 3), {"op": "matmul", "name": "y", "inputs": ["a", "a.weight"]})
        outside = (linear("y", "x", 3), dict(linear("late", "x", 3), weight="y.weight"))
        for tensors, reason in (
                (along + (self.loss("y"),), "softmax 'a': it works along the batch"),
                (line + (self.loss("y"),), "conv1d 'c': its gradient is not written for single samples"),
                (read + (self.loss("a"), {"op": "mean", "name": "late", "inputs": ["y"]}), None),
                (outside + (self.loss("y"),), None),
                ((linear("y", "x", 257), linear("z", "y", 3), self.loss("z")),
                 "linear 'y': 257 wide, more than the limit of 256"),
                ((relu("r", "x"), linear("y", "r", 3), self.loss("y"),
                  {"op": "relu", "name": "late", "inputs": ["loss"]}), None)):
            model = self.step(*tensors)
            self.assertEqual(partition.step_fault(model), reason)
            self.assertEqual(partition.partition(model).step is None, reason is not None)
        wide = [linear("w%d" % i, "w%d" % (i - 1) if i else "x", 256) for i in range(3)]
        self.assertIn("step by step should be quicker",
                      partition.step_fault(self.step(*wide, linear("y", "w2", 3), self.loss("y"))))
        many = self.step({"op": "input", "name": "z", "shape": ["N", 4000]}, linear("y", "z", 3),
                         self.loss("y"))
        self.assertIn("of shared memory", partition.step_fault(many))
        frozen = self.step(dict(linear("y", "x", 3), trainable=False), self.loss("y"))
        self.assertEqual(partition.step_fault(frozen), "it trains no weight")
        drops = [{"op": "dropout", "name": "d%d" % i, "inputs": ["d%d" % (i - 1) if i else "x"], "p": 0.5}
                 for i in range(9)]
        self.assertEqual(partition.step_fault(self.step(*drops, linear("y", "d8", 3), self.loss("y"))),
                         "more than 8 dropout")

    def test_forms(self):
        """Values and gradients with overlapping lifetimes have different places. Each form has memory for
        them and for weights."""
        model = self.step(linear("a", "x", 50), relu("b", "a"), linear("c", "b", 21),
                          {"op": "add", "name": "d", "inputs": ["c", "c"]},
                          linear("y", "d", 3), self.loss("y"))
        made = partition.partition(model)
        plan = made.step[0].forward.step
        blocks, tensors = plan.scratch(), {model.tensors[i].name or model.tensors[i].label: i
                                           for i in plan.needed}
        for k, one in enumerate(blocks):
            self.assertLessEqual(one.place + plan.room_for(one), plan.floats)
            for other in blocks[:k]:
                apart = (one.place + plan.room_for(one) <= other.place or
                         other.place + plan.room_for(other) <= one.place)
                self.assertTrue(apart or one.last < other.first or other.last < one.first)
        # relu's result gives its derivative
        self.assertIs(plan.at[tensors["a"]][0].root(), plan.at[tensors["b"]][0].root())
        self.assertLess(plan.floats, sum(map(plan.room_for, blocks)))
        for form in training.forms(plan):
            self.assertEqual(form.bytes, 4 * (form.samples * plan.pitch() + form.floats))
            self.assertEqual(form.whole, form.floats == plan.staged("f32"))
            self.assertIn("LAUNCH(float, %d, %d, %s);" % (form.samples, form.floats, str(form.whole).lower()),
                          emit_cuda.emit_cuda(made))
        card = tiling.CARDS["H100"]
        self.assertEqual(training.form_for(plan, 32, card).samples, 16)
        self.assertGreater(training.form_for(plan, 132 * 64, card).samples, 16)
        self.assertIsNone(training.form_for(plan, 1 << 30, card))
        self.assertIsNone(training.form_for(plan, 32, replace(tiling.CARDS["H100"], room=8192)))

    def test_contributions(self):
        """In the backward pass an elementwise step reads its result if that is enough, else its operands."""
        for op, read in (("relu", "b"), ("tanh", "b"), ("sigmoid", "b"), ("gelu", "a"), ("silu", "a")):
            model = self.step(linear("a", "x", 5), {"op": op, "name": "b", "inputs": ["a"]},
                              linear("y", "b", 3), self.loss("y"))
            plan = partition.partition(model).step[0].forward.step
            step = next(step for step in plan.steps if step.tensor.op == op)
            self.assertEqual([model.tensors[i].name or model.tensors[i].label for i
                              in plan.contributions(step)[1]],
                             [read], op)

    def test_shared_weights(self):
        """Each weight has one place among the sums, however often it is read."""
        scaled = ({"op": "parameter", "name": "s", "shape": [8]},
                  {"op": "mul", "name": "m", "inputs": ["x", "s"]})
        model = self.step(*scaled, linear("a", "m", 8), dict(linear("b", "a", 8), weight="a.weight"),
                          {"op": "mul", "name": "c", "inputs": ["b", "s"]}, linear("y", "c", 3),
                          self.loss("y"))
        made = partition.partition(model)
        plan, text = made.step[0].forward.step, emit_cuda.emit_cuda(made)
        self.assertEqual([plan.count(i) for i, _ in plan.sums()], [8, 64, 8, 8, 24, 3])
        self.assertIn("add_to(sums + e, total, false);", text)
        self.assertIn("(int)samples, false);", text)

    def test_precisions(self):
        """Products use tensor cores if a card has them, and values are rounded as in memory."""
        layers = (linear("a", "x", 128), relu("b", "a"), linear("c", "b", 128), relu("d", "c"),
                  linear("y", "d", 3), self.loss("y"))
        for precision, by_card in (("tf32", {"H100": "tf32"}),
                                   ("bf16", {"H100": "bf16", "A100": "bf16", "T4": None}),
                                   ("f16", {"H100": "f16", "T4": "f16"})):
            model = self.step(*layers, precision=precision)
            for card, factors in by_card.items():
                kernel = partition.partition(model).step[0]
                form = training.form_for(kernel.forward.step, 16, tiling.CARDS[card])
                self.assertEqual(form and form.factors, factors, (precision, card))
                self.assertEqual(kernel.precision, precision)
                self.assertEqual({one.dtype for one in kernel.forward.operands if one.name == "y"},
                                 {precision if precision in ("bf16", "f16") else "f32"})

    def test_ends(self):
        """Few sums are added up by the last block, many by a second launch."""
        for width, again in ((16, False), (128, True)):
            model = self.step(linear("a", "x", width), relu("b", "a"), linear("c", "b", width),
                              relu("d", "c"), linear("y", "d", 3), self.loss("y"), precision="bf16")
            gathered, launched = training.ending(partition.partition(model).step[0].forward.step, 132, 132)
            self.assertEqual(launched < gathered, again)

    def test_the_second_launch_adds_by_warps(self):
        """32 sums at a time: 128 take 4 reads from afar, 129 take 5."""
        model = self.step(linear("y", "x", 3), self.loss("y"))
        plan = partition.partition(model).step[0].forward.step
        few, more = (training.ending(plan, blocks, 10 ** 9)[1] for blocks in (128, 129))
        self.assertAlmostEqual(more - few, training.FAR, delta=1)

    def test_report(self):
        for name, text in (
                ("step", "on a GPU forward and back in one launch"),
                ("step_fields", "3 more for gradients of tables"),
                ("mlp", "on a GPU forward and back in one launch"),
                ("chain", "a training step is not one kernel: conv2d 'conv1': its gradient is not written")):
            path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "specs", "small", name + ".json")
            out = io.StringIO()
            with redirect_stdout(out):
                self.assertEqual(program.main([path, "--report"]), 0)
            self.assertIn(text, out.getvalue())


if __name__ == "__main__":
    unittest.main()
