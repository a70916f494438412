"""Reads networks of darknet: a .cfg with a section for each layer, and a .weights file of its numbers."""
import math

from .network import BATCH, Cursor, Network
from .onnx_import import FAULTS
from .spec_writer import Refused
from .tensor_files import FileError

EPSILON = 1e-5  # darknet's on a GPU; on a CPU it adds 1e-6 to the root
MAX_TEXT = 1 << 20  # bytes of a .cfg
SAME = {"logistic": "Sigmoid", "relu": "Relu", "tanh": "Tanh", "elu": "Elu", "mish": "Mish",
        "swish": "Swish"}
SLOPES = {"leaky": 0.1, "relie": 0.01}
LAYERS = {"conv": "convolutional", "conn": "connected", "max": "maxpool", "avg": "avgpool", "soft": "softmax"}


class Section:
    """A section of a .cfg. options: texts by name."""

    def __init__(self, kind, line):
        self.kind, self.line, self.options = LAYERS.get(kind, kind), line, {}
        self.shape, self.value = (), None

    def number(self, name, default, kind=int):
        try:
            return kind(self.options.get(name, default))
        except ValueError:
            raise Refused("%s=%.40s is no number" % (name, self.options[name])) from None

    def real(self, name, default):
        return self.number(name, default, float)

    def numbers(self, name):
        return self.number(name, "", lambda text: [int(word) for word in text.split(",") if word])

    def refuse(self, **usual):
        """Refuses options whose values are not the usual ones."""
        for name, value in usual.items():
            if self.options.get(name, str(value)) != str(value):
                raise Refused("%s=%.40s is not possible" % (name, self.options[name]))


def read_sections(path):
    """The sections of a .cfg. Spaces and tabs do not count."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(MAX_TEXT)
    sections = []
    for number, line in enumerate(text.splitlines(), 1):
        line = "".join(line.split())
        if line[:1] == "[" and line[-1:] == "]":
            sections.append(Section(line[1:-1], number))
        elif line and line[0] not in "#;":
            name, equals, value = line.partition("=")
            if not equals or not sections:
                raise FileError("%s:%d: this is no section and no option" % (path, number))
            sections[-1].options[name] = value
    if not sections or sections[0].kind not in ("net", "network"):
        raise FileError("%s: it does not begin with [net]" % path)
    return sections


class Converter:
    """Appends the ops of layers to a Network, and reads their weights in the same order."""

    def __init__(self, sections, cursor):
        self.net, self.layers, self.cursor, self.network = sections[0], sections[1:], cursor, Network()
        version = cursor.integers(3)
        cursor.take(8 if version[0] * 10 + version[1] >= 2 and max(version[:2]) < 1000 else 4)
        self.turned = max(version[:2]) > 1000  # weights of connected layers are [in, out]

    def run(self):
        """Converts all layers. Returns the names of the outputs."""
        shape = tuple(self.net.number(name, 0) for name in ("channels", "height", "width"))
        if min(shape) < 1:
            raise Refused("[net] needs channels, height and width")
        value, outputs = self.network.input("input", (BATCH,) + shape), []
        for index, layer in enumerate(self.layers):
            convert = getattr(self, "layer_" + layer.kind, None)
            try:
                if convert is None:
                    raise Refused("gpunn has no counterpart of this layer")
                value, shape = convert(index, layer, value, shape)
            except (Refused,) + FAULTS as why:
                raise Refused("line %d, layer %d [%.40s]: %s" % (layer.line, index, layer.kind,
                                                                 why)) from None
            layer.value, layer.shape = value, shape
            if layer.kind in ("yolo", "region"):
                outputs.append(self.network.op("Identity", value, name=self.network.unique(layer.kind)))
        if self.cursor.left():
            raise Refused("%d bytes of the weights are left over: the .cfg is of another network" %
                          self.cursor.left())
        return outputs or [self.network.op("Identity", value, name="output")]

    # -- what layers share --
    def weights(self, name, *shape):
        return self.network.weight(name, self.cursor.floats(*shape))

    def norm_weights(self, name, count):
        return [self.weights("%s.%s" % (name, part), count)
                for part in ("weight", "running_mean", "running_var")]

    def normalized(self, name, value, bias, parts):
        scale, mean, var = parts
        return self.network.op("BatchNormalization", value, scale, bias, mean, var, place=name,
                               epsilon=EPSILON)

    def activated(self, layer, value, default="logistic"):
        net, kind = self.network, layer.options.get("activation", default)
        if kind == "linear":
            return value
        if kind in SAME:
            return net.op(SAME[kind], value)
        if kind in SLOPES:
            return net.op("LeakyRelu", value, alpha=SLOPES[kind])
        if kind == "ramp":
            return net.op("Add", net.op("Relu", value), net.op("Mul", value, net.number(0.1)))
        if kind == "selu":
            return net.op("Selu", value, gamma=1.0507, alpha=1.6732)
        if kind == "hardtan":
            return net.op("Clip", value, net.number(-1), net.number(1))
        raise Refused("gpunn has no activation '%.40s'" % kind)

    def at(self, index, offset):
        """The layer of an index, or of a distance back."""
        place = index + offset if offset < 0 else offset
        if not 0 <= place < index:
            raise Refused("it reads layer %d, which does not come before it" % place)
        return self.layers[place]

    # -- layers: each gives a value and its shape without the batch --
    def layer_convolutional(self, index, layer, x, shape):
        layer.refuse(flipped=0, binary=0, xnor=0, antialiasing=0, stride_x=layer.options.get("stride", 1),
                     stride_y=layer.options.get("stride", 1))
        count, size, groups = layer.number("filters", 1), layer.number("size", 1), layer.number("groups", 1)
        stride, dilation = layer.number("stride", 1), layer.number("dilation", 1)
        padding = size // 2 * dilation if layer.number("pad", 0) else layer.number("padding", 0)
        channels, *image = shape
        name, normalizes = "layers.%d.conv" % index, layer.number("batch_normalize", 0)
        norm = "layers.%d.norm" % index
        bias = self.weights("%s.bias" % (norm if normalizes else name), count)
        parts = self.norm_weights(norm, count) if normalizes else None
        weight = self.weights(name + ".weight", count, channels // groups, size, size)
        y = self.network.op("Conv", x, weight, None if normalizes else bias, place=name, group=groups,
                            kernel_shape=[size] * 2, strides=[stride] * 2, pads=[padding] * 4,
                            dilations=[dilation] * 2)
        y = self.normalized(norm, y, bias, parts) if normalizes else y
        reach = dilation * (size - 1) + 1
        return self.activated(layer, y), (count,) + tuple((n + 2 * padding - reach) // stride + 1
                                                          for n in image)

    def layer_connected(self, index, layer, x, shape):
        count, inputs = layer.number("output", 1), math.prod(shape)
        name, norm = "layers.%d.linear" % index, "layers.%d.norm" % index
        normalizes = layer.number("batch_normalize", 0)
        bias = self.weights("%s.bias" % (norm if normalizes else name), count)
        weight = self.weights(name + ".weight", *((inputs, count) if self.turned else (count, inputs)))
        parts = self.norm_weights(norm, count) if normalizes else None
        y = self.network.op("Gemm", self.network.op("Flatten", x), weight, None if normalizes else bias,
                            transB=0 if self.turned else 1, place=name)
        return self.activated(layer, self.normalized(norm, y, bias, parts) if normalizes else y), (count,)

    def layer_batchnorm(self, index, layer, x, shape):
        name, net = "layers.%d.norm" % index, self.network
        parts = self.norm_weights(name, shape[0])
        bias = net.numbers("float32", shape[:1], [0.0] * shape[0])
        return self.normalized(name, x, bias, parts), shape

    def layer_maxpool(self, index, layer, x, shape):
        stride = layer.number("stride", 1)
        size = layer.number("size", stride)
        padding = layer.number("padding", size - 1)
        y = self.network.op("MaxPool", x, kernel_shape=[size] * 2, strides=[stride] * 2,
                            pads=[padding // 2] * 2 + [padding - padding // 2] * 2)
        return y, shape[:1] + tuple((n + padding - size) // stride + 1 for n in shape[1:])

    def layer_avgpool(self, index, layer, x, shape):
        return self.network.op("GlobalAveragePool", x), shape[:1] + (1, 1)

    def layer_upsample(self, index, layer, x, shape):
        stride, scale, net = layer.number("stride", 2), layer.real("scale", 1), self.network
        y = net.op("Resize", x, None, net.numbers("float32", (4,), [1.0, 1.0, stride, stride]),
                   mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
        y = y if scale == 1 else net.op("Mul", y, net.number(scale))
        return y, shape[:1] + tuple(stride * n for n in shape[1:])

    def layer_route(self, index, layer, x, shape):
        sources = [self.at(index, offset) for offset in layer.numbers("layers")]
        if not sources or len({one.shape[1:] for one in sources}) > 1:
            raise Refused("it joins images of different sizes: %s" %
                          ", ".join(str(list(one.shape)) for one in sources))
        groups, group = layer.number("groups", 1), layer.number("group_id", 0)
        parts = []
        for one in sources:
            count = one.shape[0] // groups
            places = [self.network.integers(k) for k in (group * count, (group + 1) * count, 1)]
            parts.append(one.value if groups == 1 else self.network.op("Slice", one.value, *places))
        y = parts[0] if len(parts) == 1 else self.network.op("Concat", *parts, axis=1)
        return y, (sum(one.shape[0] // groups for one in sources),) + sources[0].shape[1:]

    def layer_shortcut(self, index, layer, x, shape):
        layer.refuse(weights_type="none")
        net, factors = self.network, (layer.real("alpha", 1), layer.real("beta", 1))
        for offset in layer.numbers("from"):
            source = self.at(index, offset)
            if source.shape != shape:
                raise Refused("it adds %s to %s; only equal channels and sizes are possible" %
                              (list(source.shape), list(shape)))
            x, y = [value if factor == 1 else net.op("Mul", value, net.number(factor))
                    for value, factor in zip((x, source.value), factors)]
            x = net.op("Add", x, y)
        return self.activated(layer, x, "linear"), shape

    def layer_dropout(self, index, layer, x, shape):
        return x, shape

    def layer_cost(self, index, layer, x, shape):
        """The loss, which evaluation leaves out."""
        return x, shape

    def layer_softmax(self, index, layer, x, shape):
        layer.refuse(tree="", groups=1, spatial=0)
        if layer.real("temperature", 1) != 1:
            raise Refused("a temperature is not possible")
        return self.network.op("Softmax", self.network.op("Flatten", x), axis=-1), (math.prod(shape),)

    # -- detections: [boxes * (coordinates + 1 + classes), height, width] --
    def entries(self, x, shape, boxes, counts):
        """The entries of each box, in parts of these counts."""
        if boxes * sum(counts) != shape[0]:
            raise Refused("it has %d boxes of %d entries in %d channels" % (boxes, sum(counts), shape[0]))
        net = self.network
        x = net.op("Reshape", x, net.integers(-1, boxes, sum(counts), *shape[1:]))
        return net.op("Split", x, net.integers(*counts), axis=2, results=len(counts))

    def joined(self, parts, shape):
        net = self.network
        return net.op("Reshape", net.op("Concat", *parts, axis=2), net.integers(-1, *shape)), shape

    def layer_yolo(self, index, layer, x, shape):
        layer.refuse(new_coords=0)
        net, scale = self.network, layer.real("scale_x_y", 1)
        boxes = len(layer.numbers("mask")) or layer.number("num", 1)
        centre, size, rest = self.entries(x, shape, boxes, (2, 2, 1 + layer.number("classes", 20)))
        centre, rest = net.op("Sigmoid", centre), net.op("Sigmoid", rest)
        if scale != 1:
            centre = net.op("Sub", net.op("Mul", centre, net.number(scale)), net.number((scale - 1) / 2))
        return self.joined([centre, size, rest], shape)

    def layer_region(self, index, layer, x, shape):
        layer.refuse(tree="", background=0, coords=4)
        net, classes = self.network, layer.number("classes", 20)
        centre, size, found, rest = self.entries(x, shape, layer.number("num", 1), (2, 2, 1, classes))
        rest = net.op("Softmax", rest, axis=2) if layer.number("softmax", 0) else net.op("Sigmoid", rest)
        return self.joined([net.op("Sigmoid", centre), size, net.op("Sigmoid", found), rest], shape)


def converted(title, config, weights):
    """The spec of a network, its weights and notes."""
    sections = read_sections(config)
    with open(weights, "rb") as file:
        cursor = Cursor(file.read())
    try:
        converter = Converter(sections, cursor)
        outputs = converter.run()
    except FileError as why:
        raise FileError("%s: %s" % (weights, why)) from None
    except Refused as why:
        raise FileError("%s: %s" % (config, why)) from None
    return converter.network.spec(title, outputs)
