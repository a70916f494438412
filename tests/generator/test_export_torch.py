"""The exporter: what it writes, and what it refuses with which sentence. Needs PyTorch. test_run_model.py
compares values."""
import contextlib
import io
import json
import logging
import os
import shutil
import sys
import tempfile
import types
import unittest
import warnings

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    raise unittest.SkipTest("PyTorch is not here") from None

from generator import export_torch, spec
from tests import tensor_file
from tests.generator import zoo

HERE = os.path.dirname(os.path.abspath(__file__))
BY_EXPORT = tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 7)


class Net(nn.Module):
    """forward is the given function, whose first argument is the module. parts are attributes."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


class Export(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        torch.manual_seed(1)
        warnings.simplefilter("ignore")

    def path(self, name):
        return os.path.join(self.folder, name)

    def export(self, module, *inputs, **options):
        """The spec. It has passed spec.load, and the weights file has what it needs."""
        written = export_torch.export(module, inputs, self.path("net.json"), self.path("net.safetensors"),
                                      **options)
        model = spec.load(self.path("net.json"))
        wanted = {t.name: list(t.shape) for t in model.tensors if t.kind in ("parameter", "buffer")}
        self.assertEqual({name: t[1] for name, t in tensor_file.load(self.path("net.safetensors")).items()},
                         wanted)
        with open(self.path("net.json"), encoding="ascii") as file:
            self.assertEqual(json.load(file), json.loads(json.dumps(written)))
        return written

    def ops(self, module, *inputs, **options):
        return [t["op"] for t in self.export(module, *inputs, **options)["tensors"]]

    def problems(self, module, *inputs, **options):
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        quiet = io.StringIO()  # PyTorch prints what it could not follow
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            with self.assertRaises(export_torch.Unsupported) as caught:
                export_torch.export(module, inputs, self.path("bad.json"), self.path("bad.safetensors"),
                                    **options)
        self.assertEqual(os.listdir(self.folder), [])
        return caught.exception.problems

    def of_function(self, function, *shape, **parts):
        return self.problems(Net(lambda self, x: function(x), **parts), torch.rand(shape or (3, 4)))


class Zoo(Export):
    def test_specs_are_the_committed_ones(self):
        if not BY_EXPORT:
            self.skipTest("another PyTorch's operators")
        for name, (_, optimizer, _, _) in zoo.CASES.items():
            with self.subTest(model=name):
                module, inputs, loss, outputs = zoo.make(name)
                self.export(module, *inputs, loss=loss or "loss", output_names=outputs, optimizer=optimizer,
                            **zoo.sizes_of(name)[0])
                own, committed = (spec.load(self.path("net.json")),
                                  spec.load(os.path.join(HERE, "expected", "pytorch", name + ".json")))
                self.assertEqual(own.text(), committed.text())

    def test_a_trace_gives_the_same_model(self):
        """Older PyTorch's way, for models whose operators it supports."""
        if not BY_EXPORT:
            self.skipTest("it is the only way here")
        for name in ("lenet", "resnet", "transformer_encoder_layer", "gpt", "vit", "losses_divergence",
                     "shapes", "mlp_shared", "repeats", "lists_of_one"):
            with self.subTest(model=name):
                module, inputs, loss, outputs = zoo.make(name)
                state = {key: x.clone() for key, x in module.state_dict().items()}
                by_export, export_torch.capture_export = (export_torch.capture_export,
                                                          export_torch.capture_trace)
                try:
                    self.export(module, *inputs, loss=loss or "loss", output_names=outputs,
                                optimizer=zoo.CASES[name][1])
                finally:
                    export_torch.capture_export = by_export
                own, committed = (spec.load(self.path("net.json")),
                                  spec.load(os.path.join(HERE, "expected", "pytorch", name + ".json")))
                self.assertEqual(own.text(), committed.text())
                self.assertTrue(all(torch.equal(x, state[key]) for key, x in module.state_dict().items()),
                                "tracing changed the module")


class Written(Export):
    def test_names(self):
        net = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        written = self.export(net, torch.rand(3, 2, 3), torch.rand(3, 2), loss=nn.MSELoss(),
                              input_names=["image", "wanted"], output_names=["score"])
        self.assertEqual([t.get("name") for t in written["tensors"]],
                         ["image", "wanted", None, "1", "2", "3", "loss"])
        self.assertEqual((written["outputs"], written["loss"]), (["score", "loss"], "loss"))
        self.assertEqual(written["tensors"][5]["as"], "score")
        self.assertEqual(written["tensors"][0]["shape"], ["N", 2, 3])
        written = self.export(Net(lambda self, x, y: {"sum": x + y, "pair": (x * y, [x - y])}),
                              torch.rand(3, 2), torch.rand(3, 2))
        self.assertEqual(written["outputs"], ["sum", "pair0", "pair10"])

    def test_names_that_clash(self):
        with self.assertRaisesRegex(ValueError, "names of their own"):
            self.export(nn.Linear(3, 2), torch.rand(4, 3), input_names=["output"])

    def test_the_batch(self):
        net = Net(lambda self, x, mask: (x.view(x.size(0) * 2, -1) * 2).reshape(-1, 6) + mask)
        written = self.export(net, torch.rand(1, 6), torch.rand(6))  # a batch of 1 too
        self.assertEqual([t["shape"] for t in written["tensors"] if "shape" in t],
                         [["N", 6], [6], ["2N", 3], ["N", 6]])
        written = self.export(net, torch.rand(3, 6), torch.rand(6), dynamic_batch=False)
        self.assertEqual([t["shape"] for t in written["tensors"] if "shape" in t],
                         [[3, 6], [6], [6, 3], [3, 6]])
        written = self.export(net, torch.rand(3, 6), torch.rand(3, 6), dynamic_batch=[True, True])
        self.assertEqual(written["tensors"][1]["shape"], ["N", 6])

    def test_modes_give_the_same_model(self):
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Dropout(0.1))
        texts = []
        for mode in (True, False):
            self.export(net.train(mode), torch.rand(2, 1, 5, 5))
            texts.append(spec.load(self.path("net.json")).text())
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(int(net[1].num_batches_tracked), 0)

    def test_tied_weights(self):
        a, b = nn.Linear(4, 4), nn.Linear(4, 4)
        b.weight = a.weight
        written = self.export(nn.Sequential(a, b), torch.rand(2, 4))
        self.assertEqual([(t["op"], t.get("weight")) for t in written["tensors"]],
                         [("input", None), ("linear", None), ("linear", "0.weight")])
        self.assertEqual(sorted(tensor_file.load(self.path("net.safetensors"))),
                         ["0.bias", "0.weight", "1.bias"])

    def test_frozen(self):
        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
        for p in (net[0].weight, net[0].bias, net[1].bias):
            p.requires_grad = False
        layers = self.export(net, torch.rand(2, 3))["tensors"][1:]
        self.assertEqual(layers[0]["trainable"], False)
        self.assertEqual(layers[1]["parameters"], {"bias": {"trainable": False}})
        self.assertEqual([t.trainable for t in spec.load(self.path("net.json")).tensors
                          if t.kind == "parameter"], [False, False, True, False, True, True])

    def test_constants_and_buffers(self):
        net = Net(lambda self, x: x * self.small + self.large * 2 * torch.arange(5.0).cumsum(0)[None].sum())
        net.register_buffer("small", torch.tensor([1.5, -2.0]))
        net.register_buffer("large", torch.rand(50, 2))
        written = self.export(net, torch.rand(2, 50, 2))
        # large * 40 is computed here
        self.assertEqual([t["op"] for t in written["tensors"]].count("parameter"), 0)
        net.function = lambda self, x: x * self.small + self.large
        written = self.export(net, torch.rand(2, 50, 2))
        self.assertIn({"op": "constant", "id": "constant", "shape": [2], "values": [1.5, -2.0]},
                      written["tensors"])
        large = [t for t in written["tensors"] if t["op"] == "parameter"][0]
        self.assertEqual((large["name"], large["trainable"]), ("large", False))
        net.function = lambda self, x: x + torch.full((80, 80), float("-inf")).triu(1)
        written = self.export(net, torch.rand(2, 80, 80))
        self.assertEqual([t["op"] for t in written["tensors"]], ["input", "parameter", "add"])

    def test_unused_things_are_left_out(self):
        net = Net(lambda self, x: (self.a(x), self.b(x).sum())[0], a=nn.Linear(3, 3), b=nn.Linear(3, 3))
        self.assertEqual(self.ops(net, torch.rand(2, 3)), ["input", "linear"])

    def test_transposed_operands_are_matmuls_own(self):
        self.assertEqual(self.ops(Net(lambda self, a, b: a.mT @ b.transpose(-1, -2)), torch.rand(2, 5, 3),
                                  torch.rand(2, 4, 5)), ["input", "input", "matmul"])

    def test_masks_of_attention(self):
        """A float mask has a gradient if a model trains; the op of attention does not provide it."""
        def forward(self, x, mask):
            q, key = self.fc(x), self.fc(x[:, :2] if self.grouped else x)
            y = F.scaled_dot_product_attention(q, key, key, attn_mask=mask, enable_gqa=self.grouped)
            return {"y": y, "l": y.mean()}

        for op, grouped, least, loss, train in (
                ("scaled_dot_product_attention", True, None, None, False),
                ("softmax", False, None, "l", False),
                ("softmax", True, None, None, True), ("scaled_dot_product_attention", False, 0.5, "l", True)):
            net = Net(forward, fc=nn.Linear(4, 4), grouped=grouped).train(train)
            mask = torch.rand(5, 5) if least is None else torch.rand(5, 5) > least
            found = self.ops(net, torch.rand(3, 4, 5, 4), mask, loss=loss, dynamic_batch=[True, False])
            self.assertEqual([one for one in found if one in ("scaled_dot_product_attention", "softmax")],
                             [op])

    def test_in_place(self):
        def forward(self, x):
            y = x * 2
            y.add_(1)
            z = y.view(-1, 2, 2)
            z.relu_()
            return z
        self.assertEqual(self.ops(Net(forward), torch.rand(3, 4)),
                         ["input", "mul_scalar", "add_scalar", "reshape", "relu"])

    def test_parts_in_place(self):
        """If two views of one tensor show a change, the model is captured again, without in-place changes."""
        if not BY_EXPORT:
            self.skipTest("a trace has no such form")

        def forward(self, x):
            y = x * 2
            y[:, 0].relu_()
            return y + self.fc(x)
        self.assertEqual(self.ops(Net(forward, fc=nn.Linear(4, 4)), torch.rand(3, 4)).count("concat"), 1)

    def test_integers_that_stay_small(self):
        self.export(Net(lambda self, x: [x.argmax(1) * 2 + 1, (x > 0).long().cumsum(1)]), torch.rand(3, 4))
        model = spec.load(self.path("net.json"))
        self.assertEqual([model.tensors[i].dtype for i in model.outputs], ["i64", "i64"])

    def test_integers_beside_floats(self):
        for join in (torch.cat, lambda parts, dim: torch.stack([part[:, 0] for part in parts], dim)):
            self.export(Net(lambda self, x, i: join([x, i], 1)), torch.rand(3, 4),
                        torch.arange(6).reshape(3, 2))
            model = spec.load(self.path("net.json"))
            self.assertEqual([model.tensors[i].dtype for i in model.outputs], ["f32"])

    def test_integers_that_may_be_large(self):
        self.assertEqual(self.ops(Net(lambda self, x: x * (x.long() * 2 + 1 == 2 ** 24 + 1)),
                                  torch.rand(3, 4)),
                         ["input", "cast", "integer", "integer", "integer", "cast", "mul"])
        model = spec.load(self.path("net.json"))
        self.assertEqual([t.text() for t in model.tensors[2:5]],
                         ["integer operation=mul value=2 i64 [N,4]",
                          "integer operation=add value=1 i64 [N,4]",
                          "integer operation=eq value=16777217 bool [N,4]"])

    def test_sparse_tables(self):
        """A table keeps sparse, which its second embedding takes from it."""
        net = Net(lambda self, i: (self.words(i) + self.same(i), self.bag(i)),
                  words=nn.Embedding(9, 3, sparse=True), same=nn.Embedding(9, 3, sparse=True),
                  bag=nn.EmbeddingBag(7, 2, sparse=True))
        net.same.weight = net.words.weight
        self.export(net, torch.arange(6).reshape(3, 2) % 5)
        model = spec.load(self.path("net.json"))
        self.assertEqual([(t.name, t.sparse) for t in model.tensors if t.kind == "parameter"],
                         [("words.weight", True), ("bag.weight", True)])

    def test_constants_of_integers_are_stored_as_floats(self):
        table = torch.arange(8000).reshape(2, 4000)
        self.export(Net(lambda self, x: x * table), torch.rand(3, 2, 4000))
        self.assertEqual([t[0] for t in tensor_file.load(self.path("net.safetensors")).values()], ["F32"])

    def test_parts_that_are_empty(self):
        self.assertEqual(self.ops(Net(lambda self, x: torch.cat([x, x[:, 4:]], 1) + 1), torch.rand(3, 4)),
                         ["input", "concat", "add_scalar"])

    def test_optimizers(self):
        net = nn.Linear(3, 2)
        for made, wanted in (
                (torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True),
                 {"type": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True}),
                (torch.optim.AdamW(net.parameters(), betas=(0.8, 0.9)),
                 {"type": "adamw", "lr": 0.001, "betas": [0.8, 0.9], "eps": 1e-08, "weight_decay": 0.01}),
                (torch.optim.RMSprop(net.parameters(), centered=True),
                 {"type": "rmsprop", "lr": 0.01, "alpha": 0.99, "eps": 1e-08, "centered": True}),
                (torch.optim.Adamax(net.parameters()),
                 {"type": "adamax", "lr": 0.002, "betas": [0.9, 0.999], "eps": 1e-08}),
                (torch.optim.NAdam(net.parameters(), momentum_decay=0, decoupled_weight_decay=True),
                 {"type": "nadam", "lr": 0.002, "betas": [0.9, 0.999], "eps": 1e-08, "momentum_decay": 0,
                  "decoupled_weight_decay": True}),
                (torch.optim.Muon([net.weight], adjust_lr_fn="spectral_unclamped", nesterov=False),
                 {"type": "muon", "lr": 0.001, "weight_decay": 0.1, "momentum": 0.95,
                  "ns_coefficients": [3.4445, -4.775, 2.0315], "eps": 1e-07, "ns_steps": 5, "adjust_lr_fn": 2,
                  "no_nesterov": True}),
                (torch.optim.SparseAdam(net.parameters(), lr=0.1, eps=1e-6),
                 {"type": "adam", "lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-06}),
                (torch.optim.RAdam(net.parameters(), lr=0.1, weight_decay=0.01),
                 {"type": "radam", "lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-08, "weight_decay": 0.01})):
            self.assertEqual(self.export(net, torch.rand(4, 3), optimizer=made)["optimizer"], wanted)
        with self.assertRaisesRegex(ValueError, "LBFGS; use one of SGD"):
            self.export(net, torch.rand(4, 3), optimizer=torch.optim.LBFGS(net.parameters()))
        with self.assertRaisesRegex(ValueError, "none of the outputs"):
            self.export(net, torch.rand(4, 3), loss="cost")

    def test_precision(self):
        self.assertEqual(self.export(nn.Linear(3, 2).bfloat16(), torch.rand(4, 3).bfloat16())["precision"],
                         "bf16")

    def test_infinities(self):
        def forward(self, x):
            x = F.pad(x.clamp(0, float("inf")), (1, 0), value=float("-inf"))
            return F.triplet_margin_loss(x, x.roll(1, 1), torch.full((4,), float("inf")).minimum(x),
                                         p=float("inf"))
        written = self.export(Net(forward), torch.rand(2, 3))["tensors"]
        self.assertEqual([t[key] for t in written for key in ("max", "value", "values", "p") if key in t],
                         ["inf", "-inf", ["inf"] * 4, "inf"])

    def test_formulas(self):
        written = self.export(Net(lambda self, x: F.softshrink(x, 0.25)), torch.rand(3, 2))
        self.assertEqual(written["tensors"][1]["expression"],
                         "where(x > 0.25, x - 0.25, where(x < -0.25, x + 0.25, 0 * x))")


class Refusals(Export):
    def test_all_are_listed_with_their_places(self):
        def forward(self, x):
            x = self.odd(x)
            x = self.fc(x.i0())
            return x.erfinv()
        net = Net(forward, odd=Net(lambda self, x: torch.digamma(x)), fc=nn.Linear(5, 5))
        found = self.problems(net, torch.ones(3, 5))
        self.assertEqual(len(found), 3, found)
        for text, part in zip(found,
                              ("digamma (in odd, test_export_torch.py:",
                               "i0 (test_export_torch.py:", "erfinv (test_export_torch.py:")):
            self.assertEqual(text[:len(part)], part)
        self.assertIn("it has no counterpart in gpunn", found[2])
        with self.assertRaisesRegex(export_torch.Unsupported,
                                    r"3 operations of Net cannot be exported:\n  digamma"):
            raise export_torch.Unsupported("Net", found)

    def test_each(self):
        for part, function, shape in (
                ("cuts the batch|no multiple of the batch", lambda x: x[1:], (3, 4)),
                ("one sample of the batch", lambda x: x[0], (3, 4)),
                ("batch size is used as a number", lambda x: x * x.size(0), (3, 4)),
                ("only a sum over the batch", lambda x: x.exp() / x.size(0), (3, 4)),
                ("depend on the batch size; use correction=0", lambda x: x.var(0), (3, 4)),
                ("a mask takes depends on its values|a size depends on values", lambda x: x[x > 0.5], (3, 4)),
                ("picks samples of the batch", lambda x: x[torch.tensor([0, 1])], (3, 4)),
                ("up to 256 cells can return indices", lambda x: F.max_pool1d(x, 300, return_indices=True)[1],
                 (3, 400)),
                ("up to 256 indices along the axis",
                 lambda x: x.scatter(1, torch.arange(300).expand(x.shape), x, reduce="multiply"), (3, 300)),
                ("the axis is the batch", lambda x: x.prod(0), (3, 4)),
                ("turns the batch round", lambda x: x.flip(0), (3, 4)),
                ("it cuts the batch", lambda x: x.scatter(1, torch.tensor([[0]]), 1.0), (3, 4)),
                ("only places in the first axes", lambda x: x.index_put((torch.tensor([0]),), torch.ones(4)),
                 (3, 4)),
                ("inf cannot stand in a formula", lambda x: F.threshold(x, 0.5, float("inf")), (3, 4)),
                ("its mode", lambda x: F.dropout(x, 0.5, training=False), (3, 4)),
                ("only works with this batch size|cannot capture it|depend on the batch size",
                 lambda x: x * 2 if x.shape[0] == 3 else x, (3, 4)),
                ("cannot capture it", lambda x: x if x.sum() > 0 else -x, (3, 4)),
                ("no counterpart", lambda x: torch.digamma(x), (3, 4))):
            with self.subTest(part):
                if part == "cannot capture it" and not BY_EXPORT:
                    continue  # a trace follows one branch
                self.assertRegex("\n".join(self.of_function(function, *shape)), part)

    @unittest.skipIf(zoo.roi_align is None, "torchvision is not here")
    def test_regions(self):
        from torchvision.ops import deform_conv2d, roi_pool
        boxes = torch.tensor([[0, 0.0, 0, 4, 4]])
        self.assertRegex(self.of_function(lambda x: roi_pool(x, boxes, 2), 2, 3, 5, 5)[0],
                         "depends on values; use roi_align")
        net = Net(lambda self, x, moved: deform_conv2d(x, moved, torch.ones(4, 3, 1, 1)))
        found = self.problems(net, torch.rand(2, 3, 5, 5), torch.rand(2, 2, 5, 5),
                              dynamic_shapes={"input0": {2: "H"}, "input1": {2: "H"}})
        self.assertRegex(found[0], "deform_conv2d .*the axis is the size H")

    def test_recurrent(self):
        class First(nn.Module):
            def __init__(self, layer, packed=False):
                super().__init__()
                self.layer, self.packed = layer, packed

            def forward(self, x):
                x = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([2, 2, 1])) if self.packed else x
                return self.layer(x)[1][0]

        x = torch.rand(2, 3, 4)
        self.assertRegex("\n".join(self.problems(First(nn.LSTM(4, 5), True), x, dynamic_batch=False)),
                         "packed|cannot capture it")

    def test_weights_that_change(self):
        """Together with an in-place change of a part, for which the model is captured again. Its outputs stay
        the same."""
        def forward(self, x):
            with torch.no_grad():
                self.fc.weight.mul_(2)
            y = self.fc(x) + 1
            y[:, 0].relu_()
            return y
        self.assertRegex("\n".join(self.problems(Net(forward, fc=nn.Linear(4, 4)), torch.rand(3, 4))),
                         "changes a parameter|view")

    def test_shared_norms(self):
        norm = nn.BatchNorm1d(4)
        self.assertRegex(self.problems(nn.Sequential(norm, norm), torch.rand(3, 4))[0],
                         "parameters of one layer")
        norm.eval()
        self.assertRegex(self.problems(nn.Sequential(nn.Linear(4, 4), norm), torch.rand(3, 4))[0],
                         "is not the model's")


@unittest.skipUnless(BY_EXPORT, "PyTorch is too old for sizes that vary")
class Varying(Export):
    """Cases without values from make_zoo.py: names, bounds, and refusals."""

    def shapes(self, function, bounds=None, **parts):
        written = self.export(Net(function, **parts), torch.rand(3, 6, 8),
                              dynamic_shapes={"input0": {1: "T", -1: "W"}}, bounds=bounds)
        return written["sizes"], [t["shape"] for t in written["tensors"] if "shape" in t]

    def test_names_and_bounds(self):
        sizes, shapes = self.shapes(lambda self, x: x[:, :-1, 1::2].flatten(1) * 2)
        self.assertEqual((sizes, shapes), ({"T": {"min": 2}, "W": {"min": 2}},
                                           [["N", "T", "W"], ["N", "T * (W / 2) - W / 2"]]))
        sizes, _ = self.shapes(lambda self, x: x * self.table[:x.shape[1], None],
                               {"T": {"max": 30}, "W": {"multiple": 2}}, table=torch.rand(20))
        self.assertEqual(sizes, {"T": {"max": 20}, "W": {"multiple": 2}})
        sizes, shapes = self.shapes(
            lambda self, x: x.transpose(0, 1).reshape(x.shape[1], -1).view(-1, x.shape[2]) + 1)
        self.assertEqual(shapes[-1], ["T * batch", "W"])
        sizes, shapes = self.shapes(lambda self, x: x.unflatten(2, (-1, 4)) + 1, {"W": {"multiple": 4}})
        self.assertEqual((sizes["W"], shapes[-1]), ({"multiple": 4}, ["N", "T", "W / 4", 4]))
        written = self.export(Net(lambda self, x, y: x + y), torch.rand(4, 5), torch.rand(4, 5),
                              dynamic_batch=False, dynamic_shapes={"input0": {0: "T"}, "input1": {0: "T"}})
        self.assertEqual([t["shape"] for t in written["tensors"][:2]], [["T", 5], ["T", 5]])

    def test_no_size_is_0(self):
        """Where PyTorch has empty tensors, or clamps a slice, a bound excludes those sizes."""
        for least, function in (
                (6, lambda x: x.mean(1, keepdim=True) * torch.arange(x.shape[1] - 5).float()[None, :, None]),
                (6, lambda x: x.sum(1, keepdim=True).expand(-1, x.shape[1] - 5, -1) * 2),
                (5, lambda x: x[:, :-3][:, 1:] * 2), (4, lambda x: x[:, 2:4] * 2),
                (3, lambda x: x[:, -3:] * 2),
                (6, lambda x: F.pad(x, (0, 0, -2, -3)) * 2), (2, lambda x: x[:, 1::2] * 2),
                (5, lambda x: x[:, x.shape[1] - 5:] * 2), (6, lambda x: x[:, :x.shape[1] - 5] * 2),
                (1, lambda x: x[:, x.shape[1] // 2:] * 2), (5, lambda x: x.narrow(1, x.shape[1] - 5, 2) * 2),
                (5, lambda x: x[:, x.shape[1] - 5] * 2),
                (4, lambda x: x.split([x.shape[1] - 3, 3], 1)[0] * 2)):
            sizes, _ = self.shapes(lambda self, x: function(x))
            self.assertEqual(sizes["T"], {"min": least} if least > 1 else {}, least)
        sizes, _ = self.shapes(lambda self, x: x.mean(1, keepdim=True) * self.table[x.shape[1]:, None],
                               table=torch.rand(20))
        self.assertEqual(sizes["T"], {"max": 19})
        with self.assertRaisesRegex(export_torch.Unsupported, "size 'T' has bounds that allow no size"):
            self.shapes(lambda self, x: x[:, 5:] * 2, {"T": {"max": 5}})

    def test_numbers_may_be_0_or_less(self):
        sizes, shapes = self.shapes(lambda self, x: x * (x.shape[1] - 5))
        self.assertEqual((sizes["T"], shapes[1:]), ({}, [[1], ["T"], []]))
        sizes, shapes = self.shapes(lambda self, x: x * (x.shape[1] - x.shape[2]))
        self.assertEqual((sizes, ["T"] in shapes, ["W"] in shapes), ({"T": {}, "W": {}}, True, True))

    def test_what_is_refused(self):
        for part, function in (
                ("flip .*it turns the size T round", lambda self, x: x.flip(1)),
                ("sort .*the axis is the size W", lambda self, x: x.sort(2)[0]),
                ("cumprod .*the axis is the size T", lambda self, x: x.cumprod(1)),
                ("unbind|only works with 6", lambda self, x: sum(x.unbind(1))),
                ("use correction=0", lambda self, x: x.var(1)),
                ("only works with 6: it cannot be the size T", lambda self, x: x * self.weight),
                ("slice .*it takes another branch unless T >= W",
                 lambda self, x: x[:, x.shape[1] - x.shape[2]:] * 2),
                ("the size T and the size W only work where they are equal: give them one name|do not "
                 "broadcast", lambda self, x: x[:, :, :1] + x[:, :1].mT),
                ("T, W], .* do not broadcast; .* give bounds",
                 lambda self, x: x + F.interpolate(x[:, :, ::2], scale_factor=2.0)),
                ("W / 4, 4\\] does not hold as many elements", lambda self, x: x.unflatten(2, (-1, 4)) + 1)):
            with self.subTest(part):
                net = Net(function, weight=torch.rand(6, 1))
                x = torch.rand(3, 6, 6) if "equal" in part else torch.rand(3, 6, 8)
                found = self.problems(net, x, dynamic_shapes={"input0": {1: "T", 2: "W"}})
                self.assertRegex("\n".join(found), part)
        for shapes, part in (({"x": {1: "T"}}, "there is no input 'x', but input0"),
                             ({"input0": {3: "T"}}, "has no axis 3"),
                             ({"input0": {2: "T"}}, "the example's T, axis 2 of input0, is 1")):
            with self.assertRaisesRegex(ValueError, part):
                self.export(Net(lambda self, x: x * 2), torch.rand(3, 6, 1), dynamic_shapes=shapes)
        for bounds, part in (({"X": {}}, "no axis has the name X"),
                             ({"T": {"most": 3}}, "bounds: .* has no 'most'"),
                             ({"T": {"min": 5, "max": 4}}, "bounds: size 'T' has bounds that allow no size")):
            with self.assertRaisesRegex(export_torch.Refused, part):
                self.export(Net(lambda self, x: x * 2), torch.rand(3, 6, 8),
                            dynamic_shapes={"input0": {1: "T"}}, bounds=bounds)


class Exact(Export):
    """Operators that cannot equal PyTorch's are refused, in one sentence."""

    def test_a_backward_of_its_own(self):
        class Through(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.round()

            @staticmethod
            def backward(ctx, gradient):
                return gradient

        net = Net(lambda self, x: Through.apply(self.fc(x)), fc=nn.Linear(4, 4))
        self.assertRegex(self.problems(net.train(), torch.rand(3, 4))[0],
                         "Through is an autograd.Function, whose own backward")
        with self.assertWarnsRegex(UserWarning, "gradients follow its forward's operations"):
            warnings.simplefilter("always")
            self.export(net.eval(), torch.rand(3, 4))

    def test_buffers_of_integers_that_change(self):
        def forward(self, x):
            self.count += 1
            return x + self.count
        net = Net(forward)
        net.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.assertRegex(self.problems(net, torch.rand(3, 4))[0],
                         "reads the buffer count of integers after forward has changed it")

    def test_sentences(self):
        for part, function in (("it is complex; return torch.view_as_real", torch.fft.fft),
                               ("it is no tensor", lambda x: {"a": x, "b": "c"}),
                               ("complex numbers are not possible",
                                lambda x: torch.exp(torch.complex(x, x)).real),
                               ("depends on values", torch.unique),
                               ("its k depends on the size T", lambda x: x.topk(x.shape[1] // 2)[0]),
                               ("is 0, but must be an integer of 1", lambda x: x[:, :0]),
                               ("generator|alpha=|has no counterpart", lambda x: torch.special.zeta(x, 2.0))):
            with self.subTest(part):
                sizes = {"dynamic_shapes": {"input0": {1: "T"}}} if "size T" in part else {}
                found = "\n".join(self.problems(Net(lambda self, x: function(x)), torch.rand(3, 4), **sizes))
                self.assertRegex(found, part)
                self.assertNotRegex(found, "object|NoneType|index out of range")


@unittest.skipUnless(BY_EXPORT, "PyTorch is too old for sizes that vary")
class Branches(Export):
    """Python conditions on sizes, of which PyTorch follows one branch: a bound of the spec, or a refusal with
    their place."""

    def bounds(self, condition, bounds=None):
        net = Net(lambda self, x: x * 2 if condition(x.shape[0], x.shape[1], x.shape[2]) else x + 1)
        return self.export(net, torch.rand(3, 6, 8), dynamic_shapes={"input0": {1: "T", 2: "W"}},
                           bounds=bounds)["sizes"]

    def test_conditions_become_bounds(self):
        for sizes, condition in (
                ({"T": {"min": 5}, "W": {}}, lambda n, t, w: t > 4),
                ({"T": {"max": 6}, "W": {}}, lambda n, t, w: t <= 6),
                ({"T": {"min": 2}, "W": {}}, lambda n, t, w: t != 1),
                ({"T": {"max": 9}, "W": {}}, lambda n, t, w: t > 9),
                ({"T": {}, "W": {"min": 6, "max": 8}}, lambda n, t, w: 3 * w >= 17 and w < 9),
                ({"T": {"min": 6}, "W": {}}, lambda n, t, w: t // 2 > 2),
                ({"T": {"max": 7}, "W": {}}, lambda n, t, w: t // 2 < 4),
                ({"T": {}, "W": {}}, lambda n, t, w: n * t + w > 1),
                ({"T": {}, "W": {}}, lambda n, t, w: n >= 1)):
            self.assertEqual(self.bounds(condition), sizes)
        given = {"T": {"max": 7}, "W": {"min": 8, "multiple": 2}}
        self.assertEqual(self.bounds(lambda n, t, w: t < w and w % 2 == 0 and t != 8 and w > 9, given),
                         {"T": {"max": 7}, "W": {"min": 8, "max": 9, "multiple": 2}})

    def test_conditions_that_no_bound_tells(self):
        for part, condition in (
                (r"test_export_torch.py:\d+\) it takes another branch unless batch <= 3; use "
                 r"dynamic_batch=False", lambda n, t, w: n > 3),
                ("unless batch > 1|unless batch >= 2", lambda n, t, w: n > 1),
                ("unless T != 4", lambda n, t, w: t == 4),
                ("unless T == 2 \\* \\(T / 2\\); give .* a multiple", lambda n, t, w: t % 2),
                ("unless W >= T", lambda n, t, w: t > w),
                ("unless T / 2 == 3", lambda n, t, w: len(range(t // 2)) > 1),
                (r"unless T \* batch >= 10", lambda n, t, w: n * t > 9)):
            with self.subTest(part), self.assertRaisesRegex(export_torch.Unsupported, part):
                self.bounds(condition)

    def test_the_batch_alone(self):
        self.assertRegex(self.problems(Net(lambda self, x: x * 2 if x.shape[0] > 1 else x),
                                       torch.rand(3, 4))[0], "batch >= 2")
        self.ops(Net(lambda self, x: x * 2 if x.shape[0] > 1 else x), torch.rand(3, 4), dynamic_batch=False)


class Command(Export):
    def run_main(self, *words):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            try:
                export_torch.main(list(words))
            except SystemExit as stop:
                return str(stop)
        return said.getvalue()

    def wrote(self, inputs):
        """What it prints once it has written the spec "net" and its weights."""
        net = self.path("net")
        return (f"Wrote {net}.json and {net}.safetensors. Inputs: {inputs}\nNext: build/run_model {net}.json "
                f"--weights {net}.safetensors --input X.safetensors --output Y.safetensors\n")

    def setUp(self):
        super().setUp()
        nets = types.ModuleType("export_torch_nets")
        nets.classifier = lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
        nets.deep = nn.Linear(4, 5)
        nets.odd = Net(lambda self, x: torch.digamma(x))
        sys.modules["export_torch_nets"] = nets
        self.addCleanup(sys.modules.pop, "export_torch_nets")

    def test_it_writes(self):
        said = self.run_main("export_torch_nets:classifier", "-o", self.path("net"), "--input", "x=2x3x4",
                             "--input", "labels=2:i64", "--loss",
                             "cross_entropy", "--optimizer", '{"type": "sgd", "lr": 0.1}')
        self.assertEqual(said, self.wrote('"x" f32 [N, 3, 4], "labels" i64 [N]'))
        model = spec.load(self.path("net.json"))
        self.assertEqual([model.tensors[i].text() for i in (0, 1, model.loss)], [
            "input f32 [N,3,4]", "input i64 [N]",
            "cross_entropy reduction=mean ignore_index=-100 label_smoothing=0 f32 []"])
        self.assertEqual(model.optimizer["type"], "sgd")

    @unittest.skipUnless(BY_EXPORT, "PyTorch is too old for sizes that vary")
    def test_sizes_that_vary(self):
        words = "export_torch_nets:deep", "--input", "x=2x5x4", "-o", self.path("net"), "--dynamic"
        said = self.run_main(*words, "x:1=T", "--bounds", '{"T": {"max": 9}}')
        self.assertEqual(said, self.wrote('"x" f32 [N, T, 4]'))
        model = spec.load(self.path("net.json"))
        self.assertEqual((model.tensors[0].text(), model.sizes["T"]["max"]), ("input f32 [N,T,4]", 9))
        for axis, part in (("x:T", "2"), ("y:1=T", "there is no input 'y'")):
            self.assertIn(part, self.run_main(*words, axis))

    def test_it_tells(self):
        for words, part in ((("export_torch_nets:none", "--input", "2x3"), "none"),
                            (("no_such_module:x", "--input", "2x3"), "no_such_module"),
                            (("export_torch_nets:classifier", "--input", "2*3"), "8x3x32x32"),
                            (("export_torch_nets:classifier", "--input", "2x5"), "it with --input 2x5; the "),
                            (("export_torch_nets:odd", "--input", "2x3"), "digamma"),
                            (("export_torch_nets:classifier", "--input", "2x3x4", "--loss", "cost"),
                             "none of the outputs")):
            self.assertIn(part, self.run_main(*words, "-o", self.path("net")))
        self.assertIn("No such file", self.run_main("export_torch_nets:classifier", "--input", "2x12", "-o",
                                                    self.path("no/net")))
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    unittest.main()
