"""The importer of darknet's networks, against what darknet computes (make_darknet.py), and bad files."""
import base64
import json
import math
import os
import struct

from generator import import_darknet
from generator.exchange import darknet
from generator.exchange.arrays import Array
from tests.generator.test_import_onnx import HERE, Import

EXPECTED = os.path.join(HERE, "expected", "darknet.json")
NET = "[net]\nbatch=1\nchannels=%d\nheight=%d\nwidth=%d\n"


def section(kind, *options):
    return "\n[%s]\n%s\n" % (kind, "\n".join(options))


def conv(filters, size=3, stride=1, activation="leaky", normalizes=1, *more):
    return section("convolutional", "batch_normalize=%d" % normalizes, "filters=%d" % filters,
                   "size=%d" % size, "stride=%d" % stride, "pad=1", "activation=" + activation, *more)


YOLO = ("mask = 1,2", "anchors = 10,14, 23,27, 37,58", "classes=2", "num=3")
# In the forms of yolov3-tiny, of a classifier as darknet19 with more kinds of layers, and of yolov2-tiny.
DARKNETS = {
    "yolo": NET % (3, 8, 8) + conv(3) + section("maxpool", "size=2", "stride=2") + conv(4) + section(
        "maxpool", "size=2", "stride=1") + conv(4) + section("shortcut", "from=-2", "activation=linear") +
    conv(14, 1, 1, "linear", 0) + section("yolo", *YOLO) + section("route", "layers = -3") +
    conv(2, 1) + section("upsample", "stride=2") + section("route", "layers = -1, 0") +
    conv(14, 1, 1, "linear", 0) + section("yolo", *YOLO),
    "classifier": NET % (2, 9, 7) + conv(4, 3, 2, "relu", 1, "groups=2") +
    conv(3, 3, 1, "ramp", 0) + section("maxpool", "size=3", "stride=2", "padding=1") + section(
        "dropout", "probability=.5") + conv(5, 2, 1, "logistic") + section(
        "connected", "output=6", "batch_normalize=1", "activation=tanh") + section(
        "connected", "output=3", "activation=linear") + section("softmax", "groups=1"),
    "pooled": NET % (1, 5, 5) + conv(4, 3, 1, "elu") + section("avgpool") + section("softmax") +
    section("cost", "type=sse"),
    "region": NET % (2, 3, 3) + conv(16, 1, 1, "linear", 0) + section(
        "region", "anchors = 1.08,1.19, 3.42,4.41", "classes=3", "coords=4", "num=2", "softmax=1")}


class Darknet(Import):
    def files(self, config, weights):
        with open(self.path("net.cfg"), "w", encoding="ascii") as file:
            file.write(config)
        return self.path("net.cfg"), self.write(weights, "net.weights")

    def run_importer(self, config, weights):
        import_darknet.main([*self.files(config, weights), "-o", self.path("net")])

    def refused_with(self, config, weights, *words):
        with self.assertRaises(SystemExit) as caught:
            self.run_importer(config, weights)
        for word in words:
            self.assertIn(word, str(caught.exception))
        self.assertEqual(sorted(os.listdir(self.folder)), ["net.cfg", "net.weights"])

    @staticmethod
    def numbers(*values, version=(0, 2, 0)):
        return struct.pack("<3iQ%df" % len(values), *version, 0, *values)

    def test_values_are_those_of_darknet(self):
        with open(EXPECTED, encoding="ascii") as file:
            cases = json.load(file)
        self.assertEqual(list(cases), list(DARKNETS))
        for name, case in cases.items():
            self.run_importer(DARKNETS[name], base64.b64decode(case["weights"]))
            with open(self.path("net.json"), encoding="ascii") as file:
                shape = json.load(file)["tensors"][0]["shape"]
            found = self.run_model(input=Array("float32", [1] + shape[1:], case["input"]))
            self.assertEqual(set(found), set(case["outputs"]))
            for key, wanted in case["outputs"].items():
                self.assertEqual(len(found[key].values), len(wanted))
                for value, other in zip(found[key].values, wanted):
                    # on a CPU darknet adds its epsilon elsewhere
                    self.assertTrue(abs(value - other) <= 1e-4 * max(1, abs(other)), (name, key))

    def test_what_yolov4_tiny_has_beside(self):
        """Groups of a route, mish and swish, and the scale of a box's centre, by their formulas."""
        image = [0.1 * i - 0.4 for i in range(8)]
        pick = [1.0 if i == k else 0.0 for i in range(4) for k in range(4)]
        config = NET % (4, 1, 2) + conv(4, 1, 1, "linear", 0) + section(
            "route", "layers=-1", "groups=2", "group_id=1")
        weights = self.numbers(*[0.0] * 4, *pick)
        self.run_importer(config, weights)
        found = self.run_model(input=Array("float32", (1, 4, 1, 2), image))["output"]
        self.assertEqual(found.shape, (1, 2, 1, 2))
        self.assertEqual(found.values, list(struct.unpack("4f", struct.pack("4f", *image[4:]))))
        for kind, formula in (("mish", lambda x: x * math.tanh(math.log1p(math.exp(x)))),
                              ("swish", lambda x: x / (1 + math.exp(-x)))):
            self.run_importer(NET % (4, 1, 2) + conv(4, 1, 1, kind, 0), weights)
            found = self.run_model(input=Array("float32", (1, 4, 1, 2), image))["output"]
            for value, x in zip(found.values, image):
                self.assertTrue(abs(value - formula(x)) <= 1e-6)
        row = [0.5, -1.0, 0.25, 2.0, -0.5, 1.5]  # a box of one class
        one = [1.0 if i == k else 0.0 for i in range(6) for k in range(6)]
        self.run_importer(NET % (6, 1, 1) + conv(6, 1, 1, "linear", 0) + section(
            "yolo", "mask=0", "classes=1", "num=1", "scale_x_y=1.05"), self.numbers(*[0.0] * 6, *one))
        found = self.run_model(input=Array("float32", (1, 6, 1, 1), row))["yolo1"].values
        half = [1 / (1 + math.exp(-x)) for x in row]
        wanted = [1.05 * x - 0.025 for x in half[:2]] + row[2:4] + half[4:]
        for value, other in zip(found, wanted):
            self.assertTrue(abs(value - other) <= 1e-6)

    def test_a_group_of_a_route(self):
        files = self.files(NET % (6, 1, 2) + conv(6, 1, 1, "linear", 0) + section(
            "route", "layers=-1", "groups=3", "group_id=1"), self.numbers(*[0.0] * 42))
        last = darknet.converted("net", *files)[0]["tensors"][-1]
        self.assertEqual((last["op"], last["dim"], last["start"], last["end"]), ("slice", 1, 2, 4))

    def test_norm_weights_are_by_channel(self):
        files = self.files(NET % (1, 1, 1) + conv(3, 1), self.numbers(*range(15)))
        weights = darknet.converted("net", *files)[1]
        for i, part in enumerate(("bias", "weight", "running_mean", "running_var")):
            self.assertEqual(weights["layers.0.norm." + part],
                             ("F32", (3,), struct.pack("<3f", *range(3 * i, 3 * i + 3))))

    def test_a_norm_alone(self):
        """By its formula: darknet's own crashes on a CPU."""
        self.run_importer(NET % (2, 1, 1) + section("batchnorm"), self.numbers(2, 3, 0.5, 1, 4, 0.25))
        found = self.run_model(input=Array("float32", (1, 2, 1, 1), [1.5, 2.0]))["output"].values
        for value, other in zip(found, (2 / math.sqrt(4 + 1e-5), 3 / math.sqrt(0.25 + 1e-5))):
            self.assertTrue(abs(value - other) <= 1e-5)

    def test_old_weights_are_turned(self):
        config = NET % (1, 1, 2) + section("connected", "output=2", "activation=linear")
        weights = struct.pack("<3ii6f", 1001, 0, 0, 0, 0, 0, 1, 2, 3, 4)
        self.run_importer(config, weights)
        found = self.run_model(input=Array("float32", (1, 1, 1, 2), [10.0, 1.0]))["output"]
        self.assertEqual(found.values, [13.0, 24.0])

    def test_what_does_not_fit_is_refused(self):
        one = NET % (1, 2, 2) + conv(1, 1, 1, "linear", 0)
        weights = self.numbers(0.0, 1.0)
        self.refused_with(one, weights[:-1], "net.weights", "it is cut off")
        self.refused_with(one, weights + bytes(4), "4 bytes of the weights are left over")
        self.refused_with(one + section("reorg", "stride=2"), weights, "line 15, layer 1 [reorg]",
                          "no counterpart")
        self.refused_with(one + conv(2, 1, 1, "linear", 0) + section("shortcut", "from=0"),
                          weights + struct.pack("<4f", 0, 0, 1, 1), "[shortcut]",
                          "adds [1, 2, 2] to [2, 2, 2]")
        self.refused_with(one.replace("=linear", "=loggy"), weights, "no activation 'loggy'")
        self.refused_with(one + section("route", "layers=3"), weights, "reads layer 3")
        self.refused_with("filters=1\n", weights, "net.cfg:1: this is no section")
        self.refused_with(section("convolutional"), weights, "does not begin with [net]")
        self.refused_with(NET % (1, 0, 2), weights, "needs channels, height and width")
