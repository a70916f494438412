"""Reads an ONNX file: its messages, tensors, external data, and the functions that it defines."""
import os

from . import protobuf
from .arrays import CODES, Array, float8
from .protobuf import Message
from .spec_writer import Refused, product

OLDEST, NEWEST = 6, 28  # opsets of the domain ai.onnx
MAX_BYTES = (1 << 31) - 1  # of a protocol buffer
MAX_NODES = 1000000  # after calls of functions are replaced by their nodes

KINDS = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string",
         9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64",
         15: "complex128", 16: "bfloat16", 17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2",
         20: "float8e5m2fnuz", 21: "uint4", 22: "int4",
         23: "float4e2m1", 24: "float8e8m0", 25: "uint2", 26: "int2"}
NUMBERS = {kind: number for number, kind in KINDS.items()}

ENTRY = {1: ("key", "text"), 2: ("value", "text")}
TENSOR = {1: ("dims", "*int"), 2: ("data_type", "int"), 3: ("segment", "bytes"), 4: ("float_data", "*float"),
          5: ("int32_data", "*int"), 6: ("string_data", "*bytes"), 7: ("int64_data", "*int"),
          8: ("name", "text"), 9: ("raw_data", "bytes"), 10: ("double_data", "*double"),
          11: ("uint64_data", "*int"), 13: ("external_data", [ENTRY]), 14: ("data_location", "int")}
DIMENSION = {1: ("dim_value", "int"), 2: ("dim_param", "text")}
SHAPE = {1: ("dim", [DIMENSION])}
TYPE = {1: ("tensor_type", {1: ("elem_type", "int"), 2: ("shape", SHAPE)}), 4: ("sequence_type", {}),
        5: ("map_type", {}), 8: ("sparse_tensor_type", {}), 9: ("optional_type", {})}
VALUE = {1: ("name", "text"), 2: ("type", TYPE)}
OPSET = {1: ("domain", "text"), 2: ("version", "int")}
ATTRIBUTE, NODE, GRAPH = {}, {}, {}
ATTRIBUTE.update({1: ("name", "text"), 2: ("f", "float"), 3: ("i", "int"), 4: ("s", "bytes"),
                  5: ("t", TENSOR), 6: ("g", GRAPH), 7: ("floats", "*float"), 8: ("ints", "*int"),
                  9: ("strings", "*bytes"), 10: ("tensors", [TENSOR]), 11: ("graphs", [GRAPH]),
                  20: ("type", "int"), 21: ("ref_attr_name", "text"), 22: ("sparse_tensor", {})})
NODE.update({1: ("input", "*text"), 2: ("output", "*text"), 3: ("name", "text"), 4: ("op_type", "text"),
             5: ("attribute", [ATTRIBUTE]), 7: ("domain", "text")})
GRAPH.update({1: ("node", [NODE]), 2: ("name", "text"), 5: ("initializer", [TENSOR]), 11: ("input", [VALUE]),
              12: ("output", [VALUE]), 15: ("sparse_initializer", [{}])})
FUNCTION = {1: ("name", "text"), 4: ("input", "*text"), 5: ("output", "*text"), 7: ("node", [NODE]),
            9: ("opset_import", [OPSET]), 10: ("domain", "text"), 11: ("attribute_proto", [ATTRIBUTE])}
MODEL = {1: ("ir_version", "int"), 2: ("producer_name", "text"), 7: ("graph", GRAPH),
         8: ("opset_import", [OPSET]), 25: ("functions", [FUNCTION])}
ATTRIBUTE_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings",
                    9: "tensors", 10: "graphs"}


class OnnxError(Exception):
    """Why a file is no valid model: one sentence."""


class Node:
    """A call of an op. attributes: by name, as numbers, texts, Arrays and Messages. place: its name in
    errors."""

    def __init__(self, op, inputs, outputs, attributes, place, domain=""):
        self.op, self.inputs, self.outputs, self.attributes = op, inputs, outputs, attributes
        self.place, self.domain = place, domain


class Files:
    """The only folder from which a model's external data is read."""

    def __init__(self, folder):
        self.folder, self.data = os.path.realpath(folder), {}

    def read(self, location, offset, length):
        path = os.path.realpath(os.path.join(self.folder, location))
        if not path.startswith(os.path.join(self.folder, "")):
            raise OnnxError("its external data '%.80s' lies outside the model's folder" % location)
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                length = size - offset if length is None else length
                if offset < 0 or length < 0 or offset > size or length > size - offset:
                    raise OnnxError("bytes %d to %d of its external data '%.80s' are wanted, which has %d" % (
                        offset, offset + length, location, size))
                file.seek(offset)
                return file.read(length)
        except (OSError, ValueError) as error:
            raise OnnxError("its external data '%.80s' cannot be read: %s" % (location, error)) from None


def external(tensor, files):
    given = {entry.key: entry.value for entry in tensor.external_data}
    try:
        offset, length = int(given.get("offset", "0")), given.get("length")
        length = None if length is None else int(length)
    except ValueError:
        raise OnnxError("the external data of '%.80s' has no number as offset or length" %
                        tensor.name) from None
    return files.read(given.get("location", ""), offset, length)


def numbers_of(tensor, kind):
    """The numbers of a tensor in a typed field."""
    if kind == "float32":
        return tensor.float_data
    if kind in ("float64", "int64"):
        return tensor.double_data if kind == "float64" else tensor.int64_data
    if kind in ("uint32", "uint64"):
        return [value & (1 << 64) - 1 for value in tensor.uint64_data]
    return tensor.int32_data


def nibbles(data, kind, count):
    """The values of packed 4-bit or 2-bit integers."""
    bits = int(kind[-1])
    each = 8 // bits
    values = [byte >> bits * i & (1 << bits) - 1 for byte in data for i in range(each)][:count]
    return [value - (1 << bits) if kind[0] == "i" and value >> bits - 1 else value for value in values]


def narrow(kind, raw, count):
    """An Array's kind and values for kinds with less than 8 bits, and for 8-bit floats."""
    if kind == "float4e2m1":
        magnitudes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
        return "float32", [magnitudes[x & 7] * (-1 if x & 8 else 1) for x in nibbles(raw, "uint4", count)]
    if kind.startswith("float8"):
        return "float32", [float8(byte, kind) for byte in raw]
    return "uint8" if kind[0] == "u" else "int8", nibbles(raw, kind, count)


def array_of(tensor, files):
    """The Array of a TensorProto."""
    name, kind = tensor.name, KINDS.get(tensor.data_type, "a type of number %d" % tensor.data_type)
    shape, count = tuple(tensor.dims), product(tensor.dims)
    if any(size < 0 for size in shape) or len(shape) > 64:
        raise OnnxError("the tensor '%.80s' has the shape %.80s" % (name, list(shape)))
    if kind not in CODES and not kind.startswith(("float8", "float4", "int4", "uint4", "int2", "uint2")):
        raise OnnxError("the tensor '%.80s' holds %s, which gpunn does not have" % (name, kind))
    raw = (external(tensor, files) if tensor.data_location else tensor.raw_data if tensor.has("raw_data") else
           None)
    if raw is None:
        values = numbers_of(tensor, kind)
        if kind not in CODES:
            raw = bytes(value & 255 for value in values)
        elif kind in ("float16", "bfloat16"):
            raw = b"".join((value & 0xffff).to_bytes(2, "little") for value in values)
    if kind not in CODES:
        kind, values = narrow(kind, raw, count)
        raw = None
    result = Array(kind, shape, raw=raw) if raw is not None else Array(kind, shape, values)
    found = len(raw) if raw is not None else len(values)
    if found != count * (result.item_size() if raw is not None else 1):
        raise OnnxError("the tensor '%.80s' of %s %s has %d %s" % (name, kind, list(shape), found,
                                                                  "bytes" if raw is not None else "values"))
    return result


def attribute_value(attribute, files):
    kind = ATTRIBUTE_FIELDS.get(attribute.type)
    if kind is None:  # files older than the field
        kind = next((field for field in ATTRIBUTE_FIELDS.values() if attribute.has(field)), None)
    if kind is None:
        raise OnnxError("the attribute '%.80s' is of a kind that gpunn does not have" % attribute.name)
    value = getattr(attribute, kind)
    if kind in ("s", "strings"):
        texts = [bytes(text).decode("utf-8", "replace") for text in ([value] if kind == "s" else value)]
        return texts[0] if kind == "s" else texts
    if kind in ("t", "g") and value is None:
        raise OnnxError("the attribute '%.80s' has no value" % attribute.name)
    return array_of(value, files) if kind == "t" else value


class Graph:
    """nodes, initializers by name, and the names and types of inputs and outputs."""

    def __init__(self, message, model, prefix=""):
        self.message, self.model = message, model
        self.inputs, self.outputs = list(message.input), [value.name for value in message.output]
        self.output_kinds = {value.name: tensor_kind(value) for value in message.output}
        if message.sparse_initializer:
            raise OnnxError("it holds sparse tensors, which gpunn does not have")
        self.initializers = {t.name: array_of(t, model.files) for t in message.initializer}
        self.nodes = []
        for i, node in enumerate(message.node):
            model.append(self.nodes, node, prefix, {}, i, 0)


def tensor_kind(value):
    """The kind of a ValueInfo's elements, or None."""
    tensor = value.type.tensor_type if value.type else None
    return KINDS.get(tensor.elem_type) if tensor else None


class Model:
    """An ONNX file: graph and opset, the version of its ops."""

    def __init__(self, message, folder):
        self.files, self.count = Files(folder), 0
        self.functions = {(one.domain, one.name): one for one in message.functions}
        versions = [one.version for one in message.opset_import if one.domain in ("", "ai.onnx")]
        if message.graph is None or not (message.opset_import or message.graph.node):
            raise OnnxError("it holds no ONNX model")
        self.opset = max(versions, default=NEWEST)
        if not OLDEST <= self.opset <= NEWEST:
            raise OnnxError("it is of opset %d; opsets %d to %d are known%s" % (self.opset, OLDEST, NEWEST,
                            ", so convert it with onnx.version_converter" if versions else ""))
        self.graph = Graph(message.graph, self)

    def append(self, nodes, message, prefix, given, index, depth):
        """Appends a node, or the nodes of the function that it calls. given: the attributes of the enclosing
        function."""
        self.count += 1
        if self.count > MAX_NODES or depth > 32:
            raise OnnxError("its functions call each other without end")
        attributes = {}
        for a in message.attribute:
            if not a.ref_attr_name:
                attributes[a.name] = attribute_value(a, self.files)
            elif a.ref_attr_name in given:
                attributes[a.name] = given[a.ref_attr_name]
        place = message.name or (message.output[0] if message.output else str(index))
        function = self.functions.get((message.domain, message.op_type))
        if function is None:
            domain = "" if message.domain == "ai.onnx" else message.domain
            nodes.append(Node(message.op_type, list(message.input), list(message.output), attributes,
                              prefix + place, domain))
            return
        attributes = dict({a.name: attribute_value(a, self.files) for a in function.attribute_proto},
                          **attributes)
        scope = "%s%s/" % (prefix, place)
        names = dict(zip(function.input, list(message.input) + [""] * len(function.input)))
        names.update(zip(function.output, message.output))
        for i, inner in enumerate(function.node):
            renamed = Message(NODE, **inner._values)
            renamed._values["input"] = [names.get(name, scope + name if name else "") for name in inner.input]
            renamed._values["output"] = [names.get(name, scope + name if name else "")
                                         for name in inner.output]
            self.append(nodes, renamed, scope, attributes, i, depth + 1)


def load(path):
    """The Model of a file."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise OnnxError("it is larger than 2 GiB, which no protocol buffer can be")
            data = file.read()
        return Model(protobuf.read(data, MODEL), os.path.dirname(os.path.abspath(path)))
    except (protobuf.ProtobufError, OnnxError, Refused) as error:
        raise OnnxError("%s: this cannot be read as an ONNX model: %s" % (path, error)) from None
