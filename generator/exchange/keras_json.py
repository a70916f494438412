"""Reads RTNeural's JSON files: a Keras model layer by layer, or a state_dict() of PyTorch as lists."""
import json

from .arrays import Array, transposed
from .network import BATCH, Network
from .onnx_import import FAULTS
from .spec_writer import Refused, product
from .tensor_files import FileError

ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid", "elu": "Elu"}
LENGTH = "T"
MAX_RANK = 8


def read(path):
    """What a file holds."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (ValueError, RecursionError) as why:
        raise FileError("%s: this is no JSON: %s" % (path, why)) from None
    if not isinstance(found, dict):
        raise FileError("%s: it holds no model" % path)
    return found


def array_of(lists):
    """Nested lists of numbers as an Array."""
    shape, values = [], [lists]
    while len(shape) <= MAX_RANK and values and all(isinstance(x, list) for x in values):
        sizes = {len(x) for x in values}
        if len(sizes) > 1:
            raise Refused("its lists are of the lengths %s" % sorted(sizes)[:4])
        shape.append(sizes.pop())
        values = [x for own in values for x in own]
    if any(isinstance(x, bool) or not isinstance(x, (int, float)) for x in values):
        raise Refused("its lists hold more than numbers")
    return Array("float32", shape, [float(x) for x in values])


def read_state(path):
    """The Arrays of a state_dict() by name."""
    try:
        return {name: array_of(lists) for name, lists in read(path).items()}
    except (Refused, OverflowError) as why:
        raise FileError("%s: this is no state_dict(): %s" % (path, why)) from None


def rows_turned(x, order):
    """The blocks of rows of a matrix [gates * hidden, ...] in another order."""
    raw, count = x.encoded(), len(order)
    size = len(raw) // count
    return Array(x.kind, x.shape, raw=b"".join(raw[i * size:(i + 1) * size] for i in order))


class Converter:
    """Appends the ops of layers to a Network. shape: the features of a step; steps: whether there are any."""

    def __init__(self, model, length=None):
        self.network, self.layers, self.notes = Network(), model.get("layers"), []
        given = model.get("in_shape")
        if not isinstance(self.layers, list) or not isinstance(given, list) or not 2 <= len(given) <= 4:
            raise Refused("it needs layers, and an in_shape of 2 to 4 sizes")
        self.shape, self.steps = tuple(given[2 if len(given) > 2 else 1:]), len(given) > 2
        if not all(isinstance(size, int) and size > 0 for size in self.shape):
            raise Refused("its in_shape is %.80s" % given)
        steps = (length or LENGTH,) if self.steps else ()
        self.value = self.network.input("input", (BATCH,) + steps + self.shape)

    def run(self):
        for index, layer in enumerate(self.layers):
            try:
                kind = str(layer["type"]).replace("-", "_")
                convert = getattr(self, "layer_" + kind, None)
                if convert is None:
                    raise Refused("gpunn has no counterpart of this layer")
                self.name = "layers.%d" % index
                convert(layer, [array_of(one) for one in layer.get("weights", [])])
                if not kind.startswith(("lstm", "gru")):
                    self.activate(layer.get("activation") or "")
            except (Refused,) + FAULTS as why:
                kind = layer.get("type") if isinstance(layer, dict) else layer
                raise Refused("layer %d, %.40s: %s" % (index, kind, why)) from None
        return self.network.op("Identity", self.value, name="output")

    # -- what layers share --
    def weight(self, part, array):
        return self.network.weight("%s.%s" % (self.name, part), array)

    def op(self, op, *operands, **attributes):
        self.value = self.network.op(op, self.value, *operands, place=self.name, **attributes)

    def activate(self, name):
        if name == "softmax":
            self.op("Softmax", axis=-1)
        elif name in ACTIVATIONS:
            self.op(ACTIVATIONS[name])
        elif name not in ("", "linear"):
            raise Refused("gpunn has no activation '%.40s'" % name)

    def channels_first(self, back=False):
        """[N, T, features, channels] to [N, channels, T, features], or back."""
        rank = len(self.shape) + self.steps
        order = [0] + list(range(2, rank + 1)) + [1] if back else [0, rank] + list(range(1, rank))
        if rank > 1:
            self.value = self.network.op("Transpose", self.value, perm=order)

    @staticmethod
    def setting(layer, name):
        """A number, or a list of one."""
        value = layer.get(name, 1)
        return value[0] if isinstance(value, list) else value

    # -- layers --
    def layer_dense(self, layer, weights):
        kernel, rows = weights[0], weights[0].shape[0]
        if rows == product(self.shape) and len(self.shape) > 1:
            self.op("Reshape", self.network.integers(*[0] * self.steps, -1, rows))
            self.shape = (rows,)
        if rows != self.shape[-1]:
            raise Refused("its weights are %s for %s features" % (list(kernel.shape), list(self.shape)))
        bias = self.weight("bias", weights[1]) if len(weights) > 1 else None
        self.op("Gemm", self.weight("weight", transposed(kernel, (1, 0))), bias, transB=1)
        self.shape = self.shape[:-1] + kernel.shape[1:]

    layer_time_distributed_dense = layer_dense

    def layer_activation(self, layer, weights):
        """The name of the activation stands where other layers have theirs."""

    def layer_conv1d(self, layer, weights):
        """Causal in time, as RTNeural computes it."""
        size, dilation = weights[0].shape[0], self.setting(layer, "dilation")
        bias = self.weight("bias", weights[1]) if len(weights) > 1 else None
        self.channels_first()
        self.op("Conv", self.weight("weight", transposed(weights[0], (2, 1, 0))), bias, kernel_shape=[size],
                dilations=[dilation], group=self.setting(layer, "groups"), pads=[(size - 1) * dilation, 0])
        self.channels_first(back=True)
        self.shape = weights[0].shape[2:]

    def layer_conv2d(self, layer, weights):
        """[N, T, features, channels]: causal in time; padding, stride: of the features."""
        rows, columns, _, count = weights[0].shape
        dilation, stride = self.setting(layer, "dilation"), self.setting(layer, "strides")
        features = self.shape[0]
        out = -(-features // stride) if layer.get("padding") == "same" else (features - columns) // stride + 1
        missing = max((out - 1) * stride + columns - features, 0) if layer.get("padding") == "same" else 0
        bias = self.weight("bias", weights[1]) if len(weights) > 1 else None
        self.channels_first()
        self.op("Conv", self.weight("weight", transposed(weights[0], (3, 2, 0, 1))), bias,
                kernel_shape=[rows, columns], dilations=[dilation, 1], strides=[1, stride],
                pads=[(rows - 1) * dilation, missing // 2, 0, missing - missing // 2])
        self.channels_first(back=True)
        self.shape = (out, count)

    def layer_prelu(self, layer, weights):
        """A slope for each feature, or one. Keras may have others at each step; RTNeural takes the first."""
        count, width = self.shape[-1], weights[0].shape[-1]
        first = weights[0].values[:width]
        if width not in (1, count):
            raise Refused("it has %d slopes for %d features" % (width, count))
        if first * (weights[0].count() // width) != weights[0].values:
            self.notes.append("%s: the slopes of the first step are taken for all" % self.name)
        self.op("PRelu", self.weight("weight", Array("float32", (count,), first * (count // width))))

    def layer_batchnorm(self, layer, weights):
        count = self.shape[-1]
        if len(weights) == 2:
            weights = [Array("float32", (count,), [x] * count) for x in (1.0, 0.0)] + weights
        if len(weights) != 4 or any(x.shape != (count,) for x in weights):
            raise Refused("it needs 4 lists, or 2, of %d numbers" % count)
        parts = [self.weight(part, x)
                 for part, x in zip(("weight", "bias", "running_mean", "running_var"), weights)]
        self.channels_first()
        self.op("BatchNormalization", *parts, epsilon=float(layer.get("epsilon", 1e-3)))
        self.channels_first(back=True)

    layer_batchnorm2d = layer_batchnorm

    def recurrent(self, op, weights, order, bias, **attributes):
        """Keras has the gates in columns, ONNX in rows. order: ONNX's gates in Keras's numbering."""
        if not self.steps or len(self.shape) != 1:
            raise Refused("it needs steps of numbers")
        hidden, net = weights[1].shape[0], self.network
        turned = [rows_turned(transposed(x, (1, 0)), order) for x in weights[:2]]
        parts = [net.numbers("float32", (1,) + x.shape, x.values) for x in turned]
        parts.append(net.numbers("float32", (1, len(bias)), bias))
        self.op(op, *parts, hidden_size=hidden, layout=1, **attributes)
        self.value = net.op("Squeeze", self.value, net.integers(2))
        self.shape = (hidden,)

    def layer_gru(self, layer, weights):
        bias = weights[2].values if len(weights) > 2 else [0.0] * 6 * weights[1].shape[0]
        self.recurrent("GRU", weights, (0, 1, 2), bias, linear_before_reset=1)

    def layer_lstm(self, layer, weights):
        order, hidden = (0, 3, 1, 2), weights[1].shape[0]
        bias = (rows_turned(weights[2], order).values if len(weights) > 2 and weights[2].count() else
                [0.0] * 4 * hidden)
        self.recurrent("LSTM", weights, order, list(bias) + [0.0] * 4 * hidden)


def converted(title, file, length=None):
    """The spec of a file, its weights and notes."""
    model = read(file)
    try:
        converter = Converter(model, length)
        output = converter.run()
    except Refused as why:
        raise FileError("%s: %s" % (file, why)) from None
    spec, found, notes = converter.network.spec(title, [output], dynamic=True)
    return spec, found, converter.notes + notes
