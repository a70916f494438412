"""A network of another format as a graph of ONNX's ops, so that it becomes a spec as ONNX's do."""
import types

from .arrays import Array
from .onnx_file import DIMENSION, NUMBERS, SHAPE, TYPE, VALUE, Node
from .onnx_import import import_graph
from .protobuf import Message
from .tensor_files import FileError

BATCH = "N"


class Network:
    """Inputs, weights and ops by name, in the order of computation."""

    def __init__(self):
        self.nodes, self.inputs, self.initializers, self.outputs, self.output_kinds = [], [], {}, [], {}
        self.counts = {}

    def unique(self, kind):
        """The next name of a kind: conv1, conv2."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return "%s%d" % (kind, self.counts[kind])

    def input(self, name, shape, kind="float32"):
        """A dimension is a number, BATCH, or the name of another size that varies."""
        dims = [Message(DIMENSION, **{"dim_param" if isinstance(size, str) else "dim_value": size})
                for size in shape]
        tensor = Message(TYPE[1][1], elem_type=NUMBERS[kind], shape=Message(SHAPE, dim=dims))
        self.inputs.append(Message(VALUE, name=name, type=Message(TYPE, tensor_type=tensor)))
        return name

    def weight(self, name, array):
        self.initializers[name] = array
        return name

    def numbers(self, kind, shape, values):
        """A constant."""
        return self.weight(self.unique("constant"), Array(kind, shape, list(values)))

    def integers(self, *values):
        return self.numbers("int64", (len(values),), values)

    def number(self, value):
        return self.numbers("float32", (), [float(value)])

    def op(self, op, *operands, place=None, name=None, results=1, **attributes):
        """The name of an op's result; a list if it has several. place: its name in errors and, where it is a
        layer, in the spec. An operand or an attribute that is None is left out."""
        name = name or self.unique(op.lower())
        names = [name] + ["%s_%d" % (name, i) for i in range(1, results)]
        given = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(Node(op, [x or "" for x in operands], names, given, place or name))
        return name if results == 1 else names

    def spec(self, title, outputs, loss=None, dynamic=False):
        """The spec as a dictionary, its weights for save_safetensors, and notes. loss: one more output.
        dynamic: other sizes than the batch vary."""
        self.outputs = list(outputs) + [loss] * (loss is not None)
        model = types.SimpleNamespace(graph=self, opset=17)
        result, weights, notes = import_graph(model, title, batch=BATCH, dynamic=dynamic)
        if loss is not None:
            result.update(outputs=list(outputs), loss=loss)
        return result, weights, notes


class Cursor:
    """The bytes of a file, read one after another."""

    def __init__(self, data):
        self.data, self.at = memoryview(data), 0

    def left(self):
        return len(self.data) - self.at

    def take(self, count):
        if not 0 <= count <= self.left():
            raise FileError("it is cut off at byte %d" % len(self.data))
        self.at += count
        return self.data[self.at - count:self.at]

    def integers(self, count=1, size=4, signed=True):
        """Little-endian integers."""
        return [int.from_bytes(self.take(size), "little", signed=signed) for _ in range(count)]

    def floats(self, *shape):
        """An Array of float32."""
        count = 1
        for size in shape:
            count *= size
        return Array("float32", shape, raw=bytes(self.take(4 * count)))
