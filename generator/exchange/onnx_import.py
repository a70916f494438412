"""Converts an ONNX graph to the entries of a spec."""
import copy
import json
import math
import re
import struct

from .. import spec
from ..json_text import Source, SpecError, read
from . import (fold, onnx_attention, onnx_layers,  # noqa: F401 they fill OPERATIONS
               onnx_microsoft, onnx_ml, onnx_patterns, onnx_quantized)
from .arrays import MAX_ELEMENTS, RANGES, SAFETENSORS, Array, is_float, stored_dtype
from .onnx_file import Graph, tensor_kind
from .onnx_ops import OPERATIONS, RESULT_KINDS, op_text
from .spec_writer import (Constant, Parameter, Refused, Value, Writer, needed_entries, named_sizes,
                          normal_axis, product, size_name)
from ..sizes import named_dim, varies

CHEAP = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Shape", "Size",
         "ConstantOfShape")
KEEPS_NAME = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Cast",
              "DequantizeLinear")
SHAPERS = ("Range", "NonZero") + tuple(fold.WINDOWS)  # whose results' shapes follow from values
# results are values of the operands
MOVES = ("cast", "reshape", "permute", "slice", "expand", "gather", "concat", "tile", "max")
DOMAINS = ("", onnx_ml.DOMAIN, onnx_microsoft.DOMAIN, onnx_microsoft.LAYOUT)
MAX_STEPS = 1000  # of loops
MAX_UNROLLED = 1 << 16  # entries of a spec that a loop's next step may follow
MAX_NAME = 200  # bytes of a weight's name, which may get a number or a suffix
FAULTS = (TypeError, IndexError, KeyError, AttributeError, ValueError, ArithmeticError, MemoryError,
          struct.error)


class Unsupported(Exception):
    """gpunn cannot express the graph. `problems` holds one sentence for each reason. needed: inputs whose
    values would have to be known."""

    def __init__(self, path, problems, needed=()):
        self.problems, self.needed = problems, sorted(needed)
        count = "1 operation" if len(problems) == 1 else "%d operations" % len(problems)
        super().__init__("%s of %s cannot be imported:%s" %
                         (count, path, "".join("\n  " + p for p in problems)))


class Missing:
    """Stands for the result of an op that was refused. why: None if the reason is listed already."""

    def __init__(self, why=None):
        self.why = why


class Call:
    """A node, as the functions of ops see it."""

    def __init__(self, node, opset):
        self.op, self.attributes, self.opset = node.op, node.attributes, opset
        self.inputs, self.outputs, self.place, self.domain = (node.inputs, node.outputs, node.place,
                                                              node.domain)

    def get(self, name, default):
        return self.attributes.get(name, default)

    def has(self, name):
        return name in self.attributes

    def with_attributes(self, **attributes):
        result = copy.copy(self)
        result.attributes = dict(self.attributes, **attributes)
        return result


class OnnxWriter(Writer):
    """The Writer for Arrays. Each entry is built at once, as spec.py will read it. This gives its shape, or
    an error."""

    def __init__(self, taken, outside, int8=True):
        """outside: the names of inputs and outputs. int8: with ops of 8-bit numbers."""
        super().__init__(list(taken) + outside)
        self.outside, self.int8 = set(outside), int8
        self.loader = spec.Loader(Source("", ""))
        # names of parameters; notes by topic; inputs whose values are needed
        self.claimed, self.notes, self.needed = set(), {}, set()
        # the current Call or node; the last Parameter of each name that is an entry
        self.call, self.parameters = None, {}
        # by id: a weight and its transposed one; for a product, the bias that is added
        self.turned, self.bias_of = {}, None

    # -- what the base class asks for --
    @staticmethod
    def constant_of(x):
        return Constant(Array("float32", (), [float(x)]))

    @staticmethod
    def numbers(values, shape):
        return Constant(Array("float32", shape, [float(x) for x in values]))

    @staticmethod
    def check_fixed(tensor):
        if any(isinstance(x, fold.Size) for x in tensor.values if not isinstance(x, float)):
            raise Refused("a size that varies is used as a number; fix it with --batch or --size")

    def f32_bytes(self, tensor):
        self.check_fixed(tensor)
        if not is_float(tensor.kind) and any(abs(x) > 1 << 24 for x in tensor.values):
            raise Refused("it computes with integers above 2^24, which gpunn's floats cannot all represent")
        return tensor.f32_bytes()

    def integer_values(self, tensor):
        self.check_fixed(tensor)
        return [int(x) for x in tensor.values]

    def is_exact(self, x):
        return x.dtype in ("i64", "i32")

    def copied(self, x):
        if self.int8 and isinstance(x, Value) and x.dtype == "u8":
            return x
        return super().copied(self.whole_numbers(x) if isinstance(x, Constant) and self.is_large(x) else x)

    def alike(self, tensors):
        bytes_alone = self.int8 and all(x.dtype == "u8" for x in tensors)
        return tensors if bytes_alone else super().alike(tensors)

    def whole_numbers(self, x):
        if isinstance(x, Constant) and x.tensor.count() == 1 and isinstance(x.tensor.item(), fold.Size):
            x = self.tensor(x)
        return super().whole_numbers(Constant(x.tensor, x.full) if isinstance(x, Parameter) else x)

    @staticmethod
    def init_of(tensor):
        return None

    def add(self, op, inputs, size, /, full=None, **given):
        value = super().add(op, inputs, size, full, **given)
        try:
            text = json.dumps(value.entry.json())
            self.loader.tensor(read(Source(text, "")), 0)
        except SpecError as error:
            self.entries.pop()
            raise Refused(re.sub(r"^:\d+:\d+: (\w+( '[^']*')?: )?", "", str(error))) from None
        t = self.loader.ids[value.id()]
        same = next((x for x in inputs if self.loader.ids.get(x.id()) is t), None)
        if same is not None:  # an op that changes nothing
            self.entries.pop()
            return self.view(same, same.full)
        value.shape, value.dtype = t.shape, t.dtype
        value.full = value.full if full is not None else t.shape
        return value

    def parameter(self, x):
        # What a loop's body computes of its weights is the same in each step.
        same = self.parameters.get(x.name)
        if same and same.full == x.full and same.tensor.f32_bytes() == x.tensor.f32_bytes():
            x.value = same.value
            return x.value
        self.parameters[x.name] = x
        x.name = self.unique(x.name) if x.name in self.claimed or x.name in self.loader.ids else x.name
        self.claimed.add(x.name)
        self.taken.add(x.name)
        return super().parameter(x)

    def tensor(self, x):
        """Also converts a named size that is used as a number."""
        if isinstance(x, Constant) and x.tensor.count() == 1 and isinstance(x.tensor.item(), fold.Size):
            dim = fold.dim_of(x.tensor.item())
            return self.view(self.number_of(dim), x.full) if varies(dim) else super().tensor(x)
        return super().tensor(x)

    def slice(self, x, axis, start, end, step=1):
        if any(varies(y) for y in (x.full[axis], start, end)):
            return super().slice(x, axis, start, end, step)
        # expanded: equal everywhere
        if isinstance(x, Constant) and x.tensor.count() == 1 and x.full[axis] > 0:
            count = len(range(x.full[axis])[start:end:step])
            return Constant(x.tensor, x.full[:axis] + (count,) + x.full[axis + 1:])
        return super().slice(x, axis, start, end, step)

    # -- layers --
    def layer_name(self, **parts):
        """Also None if an input has the name, or an output that is not this op's own."""
        name = super().layer_name(**parts)
        if name in self.outside and name not in self.call.outputs:
            return None
        return (name if name and not any("%s.%s" % (name, suffix) in self.claimed for suffix in parts) else
                None)

    def layer(self, op, name, x, shape, parts, **attributes):
        names = ["%s.%s" % (name, suffix) for suffix, part in parts.items() if part is not None]
        self.claimed.update(names)
        self.taken.update(names + [name])
        return super().layer(op, name, x, shape, parts, **attributes)

    def free_name(self, call):
        """A name for a layer without a named parameter: the path that PyTorch's exporter gives a node, or its
        name."""
        path = call.place.strip("/")
        path = path.rpartition("/")[0] or path if path.rpartition("/")[2].split("_")[0] == call.op else path
        return self.unique(path[:200].replace("/", ".") or call.op.lower())

    def weight(self, x, name):
        """x as a parameter of the spec, with this name if it has none."""
        if isinstance(x, Constant):
            x = Parameter(x.name or self.unique(name), x.tensor, True)
        return self.tensor(x)

    # -- kinds --
    @staticmethod
    def kind_of(x):
        """The kind that ONNX has for a tensor."""
        if isinstance(x, (Constant, Parameter)):
            return x.tensor.kind
        return getattr(x, "kind", None) or {"i64": "int64", "i32": "int32", "u8": "uint8",
                                            "bool": "bool"}.get(x.dtype, "float32")

    def as_kind(self, x, kind):
        """x as a tensor whose kind in ONNX is kind."""
        x = self.tensor(x)
        x = self.view(x, x.full)
        x.kind = kind
        return x

    def wrapped(self, x, kind):
        """Integers wrapped to the range of a small integer kind."""
        low, high = RANGES.get(kind, (0, math.inf))
        if high >= 1 << 24:
            return x
        return self.expr("x - %d * floor((x - %d) / %d)" % (high - low + 1, low, high - low + 1), x)

    def f32(self, x):
        """x as floats for arithmetic. Large integers get a note."""
        if isinstance(x, Value) and x.dtype != "f32" and self.is_large(x) and self.call:
            self.note_integers(self.call)
        return super().f32(x)

    def rounded(self, x):
        """x as floats where large integers may be rounded: with floats, as positions, beside small values."""
        return super().f32(x)

    def is_large(self, x):
        """Whether x may be an integer above 2^24, from an input."""
        if not isinstance(x, Value):
            return not is_float(x.tensor.kind) and any(abs(y) > 1 << 24
                                                       for y in x.tensor.values if isinstance(y, int))
        if RANGES.get(self.kind_of(x), (0, 0))[1] < 1 << 24:
            return False
        entry = x.entry
        while entry.op in MOVES:
            entry = entry.inputs[0].entry
        return entry.op == "input"

    def note_integers(self, call):
        self.notes.setdefault("integers",
                              "%s computes with integers, in 32-bit floats: exact up to 2^24" % call.place)

    def note_labels(self, call, labels):
        names = ", ".join("%d %.30s" % pair for pair in enumerate(labels[:8])) + (
            ", ..." if len(labels) > 8 else "")
        self.notes.setdefault("labels",
                              "%s gives classes and their values by number: %s" % (call.place, names))

    # -- what must be known --
    def inputs_of(self, x):
        """The names of the inputs that a value depends on."""
        return sorted(entry.name for entry in ancestors(x.entry) if entry.op == "input")

    def known_array(self, x, what):
        """The Array of an operand that is the same in every run."""
        if isinstance(x, (Constant, Parameter)):
            return (x.tensor if x.full == x.tensor.shape else
                    Array(x.tensor.kind, x.full, fold.expanded(x.tensor, x.full)))
        names = self.inputs_of(x)
        self.needed.update(names)
        raise Refused("its %s must be known when it is imported%s" %
                      (what, "; give %s a value with --fix" % ", ".join(names) if names else ""))

    def finished(self, name, x, kind, others):
        """A result as a tensor of gpunn's dtype for its kind. No two outputs may be the same tensor."""
        kind = kind if kind and kind != "string" else self.kind_of(x)
        x, dtype = self.whole(x), stored_dtype(kind)
        if x.dtype != dtype:
            x = self.expr("where(x == 0, 0, 1)", x) if dtype == "bool" and x.dtype == "f32" else x
            x = self.add("cast", [x], (), dtype=dtype)
        if x.id() == name:  # an input or a weight
            return x
        if any(name in [entry.name] + [p.name for p in entry.weights] for entry in self.entries):
            raise Refused("an input or a weight of another dtype has its name")
        if (x.entry.op in ("input", "parameter", "constant") or x.entry.name or x.parameter or
            x.entry in [other.entry for other in others]):
            x = self.add("reshape", [x], (), shape=x.shape)
        return x


def ancestors(entry):
    """All entries that one depends on."""
    found, pending = {}, [entry]
    while pending:
        entry = pending.pop()
        if id(entry) not in found:
            found[id(entry)] = entry
            pending.extend(x.entry for x in entry.reads())
    return list(found.values())


class Lowering:
    """Converts nodes to entries. known: by name, a Value, Constant, Parameter or Missing."""

    def __init__(self, model, writer, known):
        self.model, self.writer, self.known, self.problems = model, writer, known, []
        self.readers, self.makers = {}, {}  # by name: the nodes that read it, the node that computes it
        self.joined = {}  # by name of a product without its bias: the name of its sum with the bias
        self.done = set()  # ids of nodes that are part of another's layer
        self.kept, self.steps = [], 0  # the graphs of these nodes; number of steps of loops
        writer.bias_of = self.bias_of

    def run(self, graph, outer=()):
        """Converts the nodes that a graph's outputs need. outer: names that are read from outside."""
        nodes = reachable(graph.nodes, graph.outputs)
        for node in nodes:
            self.makers.update({name: node for name in node.outputs if name})
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)
        for name in list(graph.outputs) + list(outer):
            self.readers.setdefault(name, []).append(None)
        self.known.update({name: of_initializer(name, array) for name, array in graph.initializers.items()
                           if name not in self.known})
        for node in nodes:
            if id(node) not in self.done:
                self.lower(node)

    def lower(self, node):
        mark = len(self.writer.entries)
        try:
            results = self.results(node)
        except Refused as why:
            if str(why):
                self.problems.append("%s '%.100s': %s" % (op_text(node), node.place, why))
            results = [Missing()] * len(node.outputs)
        for name, result in zip(node.outputs, results):
            name = self.joined.get(name, name)
            if name:
                self.known[name] = result
                self.label(result, name, mark)

    def label(self, value, name, mark):
        """Names the entry of a new value as ONNX does."""
        w = self.writer
        if (not isinstance(value, Value) or value.parameter or value.entry.name or value.entry.layer or
            name in w.taken):
            return
        if len(name.encode("utf-8")) <= 255 and any(value.entry is entry for entry in w.entries[mark:]):
            w.taken.add(name)
            w.loader.ids[name] = w.loader.ids[value.entry.id]
            value.entry.id = name

    def bias_of(self, call, size):
        """The bias that the only reader of a product adds to it. Marks that node as done. None: no bias."""
        readers = self.readers.get(call.outputs[0], [])
        if len(readers) != 1 or readers[0] is None or readers[0].op != "Add" or id(readers[0]) in self.done:
            return None
        other = [name for name in readers[0].inputs if name != call.outputs[0]]
        bias = self.known.get(other[0]) if len(other) == 1 else None
        if (not isinstance(bias, (Parameter, Constant)) or bias.full != (size,) or
            bias.tensor.shape != (size,)):
            return None
        self.done.add(id(readers[0]))
        self.joined[call.outputs[0]] = readers[0].outputs[0]
        return bias

    def operand(self, name):
        if not name:
            return None
        if name not in self.known:
            raise Refused("it reads '%.100s', which nothing before it computes" % name)
        x = self.known[name]
        if isinstance(x, Missing):
            raise Refused(x.why or "")
        return x

    def results(self, node):
        """The results of a node."""
        if node.domain not in DOMAINS:
            raise Refused("gpunn knows no ops of the domain %s" % node.domain)
        call, w = Call(node, self.model.opset), self.writer
        if node.op == "Constant":
            return [constant_of(call)]
        w.call, operands = call, [self.operand(name) for name in node.inputs]
        if not node.domain and any(isinstance(x, (Constant, Parameter)) and x.tensor.kind == "string"
                                   for x in operands):
            raise Refused("gpunn has no tensors of strings")
        try:
            if node.op == "If":
                return self.branches(call, operands[0])
            if node.op == "Loop":
                return self.loop(call, *operands)
            if node.op == "Scan" and call.opset >= 9:
                return self.scan(call, operands)
            known = self.folded(call, operands)
            if known is not None:
                return known
            result = onnx_quantized.fused(self, call, operands)
            if result is not None:
                return result if isinstance(result, list) else [result]
            result = onnx_patterns.fused(self, call, operands)
            if result is None and op_text(node) not in OPERATIONS:
                for x in operands if node.op in SHAPERS else ():
                    w.known_array(x, "operands")
                raise Refused("gpunn has no counterpart of this op")
            return self.of_kinds(call, operands,
                                 OPERATIONS[op_text(node)](w, call, *operands) if result is None else result)
        except FAULTS as error:
            raise Refused("it is not possible with these operands (%s)" % error) from error

    def of_kinds(self, call, operands, result):
        """The results with the kinds that ONNX has for them."""
        results = []
        for x in result if isinstance(result, (list, tuple)) else [result]:
            kind = (RESULT_KINDS.get(op_text(call)) or
                    next((self.writer.kind_of(y) for y in operands if y is not None), "float32"))
            results.append(x if kind == "own" or not isinstance(x, Value) else self.writer.as_kind(x, kind))
        return results

    def folded(self, call, operands):
        """The results of an op whose operands are known. None: they are not known, or gpunn shall compute
        it."""
        if call.op in ("Shape", "Size", "EyeLike") and isinstance(operands[0], Value):
            return [Constant(fold.FOLDED[call.op](call,
                                                  Array(self.writer.kind_of(operands[0]), operands[0].full)))]
        if call.op == "CastLike" and isinstance(operands[1], Value):
            operands = [operands[0], Constant(Array(self.writer.kind_of(operands[1]), ()))]
        if call.op not in fold.FOLDED or not all(x is None or isinstance(x, (Constant, Parameter))
                                                 for x in operands):
            return None
        given = [x for x in operands if x is not None]
        if any(x.full != x.tensor.shape for x in given):
            return None
        if call.op not in CHEAP and sum(product(x.full) for x in given) > MAX_ELEMENTS:
            return None
        result = fold.FOLDED[call.op](call, *[None if x is None else x.tensor for x in operands])
        name = given[0].name if given and call.op in KEEPS_NAME else None
        results = result if isinstance(result, list) else [result]
        if result is None:
            return None
        results = [operands[0] if x is given[0].tensor else of_initializer(name, x) for x in results]
        if call.op == "DequantizeLinear":
            results[0].rounded = call, operands
        return results

    def branches(self, call, condition):
        """If: the branch that is taken. If only a run can tell, both branches must be equal."""
        if isinstance(condition, (Constant, Parameter)):
            return self.branch(call, "then_branch" if condition.tensor.item() else "else_branch")
        pairs = zip(*[self.branch(call, name) for name in ("then_branch", "else_branch")])
        return [self.either(condition, a, b) for a, b in pairs]

    def either(self, condition, a, b):
        if any(isinstance(x, Missing) for x in (a, b)):
            return Missing()
        if a.full != b.full:
            raise Refused("its branches give %s and %s, and which one is taken is only known at run time" %
                          (a.full, b.full))
        return self.writer.as_kind(self.writer.map("where", self.writer.reshape(condition, ()), a, b),
                                   self.writer.kind_of(a))

    def loop(self, call, count=None, condition=None, *carried):
        """Loop, unrolled. The number of steps must be known."""
        names = [value.name for value in call.attributes["body"].input]
        count, stacks = (MAX_STEPS + 1 if count is None else
                         self.writer.known_array(count, "number of steps").item(), [])
        for i in range(count):
            if condition is not None and not self.writer.known_array(condition, "condition").item():
                break
            given = ([Constant(Array("int64", (), [i])),
                      condition or Constant(Array("bool", (), [True]))] + list(carried))
            condition, *results = self.body(call, dict(zip(names, given)))
            carried, scanned = results[:len(carried)], results[len(carried):]
            stacks.append(scanned)
        return list(carried) + [self.stacked(parts, 0) for parts in zip(*stacks)]

    def scan(self, call, operands):
        """Scan, unrolled."""
        count = call.get("num_scan_inputs", 0)
        names = [value.name for value in call.attributes["body"].input]
        carried, given, w = operands[:-count], operands[-count:], self.writer
        axes = [normal_axis(axis, len(x.full))
                for axis, x in zip(call.get("scan_input_axes", [0] * count), given)]
        backward, stacks, length = call.get("scan_input_directions", [0] * count), [], given[0].full[axes[0]]
        if length < 0:
            raise Refused("it runs along %s" % size_name(length))
        for i in range(length):
            places = [length - 1 - i if turned else i for turned in backward]
            parts = [w.reshape(w.slice(x, axis, at, at + 1), x.full[:axis] + x.full[axis + 1:])
                     for x, axis, at in zip(given, axes, places)]
            results = self.body(call, dict(zip(names, carried + parts)))
            carried, scanned = results[:len(carried)], results[len(carried):]
            stacks.append(scanned)
        columns = list(zip(*stacks))
        turned = call.get("scan_output_directions", [0] * len(columns))
        axes = call.get("scan_output_axes", [0] * len(columns))
        return carried + [self.stacked(parts[::-1] if back else parts, axis)
                          for parts, back, axis in zip(columns, turned, axes)]

    def body(self, call, given):
        """The results of a graph that runs again, with its inputs' current values."""
        self.known.update(given)
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise Refused("it and the model's other loops run more than %d steps" % MAX_STEPS)
        if len(self.writer.entries) > MAX_UNROLLED:
            raise Refused("its body, repeated for each step, makes more than %d operations" % MAX_UNROLLED)
        return self.branch(call, "body")

    def stacked(self, parts, axis):
        """Stacks parts along a new axis."""
        w, axis = self.writer, normal_axis(axis, len(parts[0].full) + 1)
        whole = [w.f32(w.whole(w.reshape(x, x.full[:axis] + (1,) + x.full[axis:]))) for x in parts]
        return w.as_kind(w.add("concat", whole, (), dim=axis), w.kind_of(parts[0]))

    def branch(self, call, name):
        graph = Graph(call.attributes[name], self.model)
        self.kept.append(graph)  # nodes are known by their ids
        self.run(graph, [x for node in graph.nodes for x in node.inputs])
        return [self.operand(x) if not isinstance(self.known.get(x), Missing) else self.known[x]
                for x in graph.outputs]


def of_initializer(name, array):
    """Weights are Parameters, with long names cut at the front. Small tensors and integers are Constants."""
    if name and is_float(array.kind) and array.count() > 1:
        return Parameter(name.encode("utf-8")[-MAX_NAME:].decode("utf-8", "ignore"), array, True)
    return Constant(array, name=name)


def constant_of(call):
    """The value of the op Constant."""
    kinds = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}
    for name, value in call.attributes.items():
        if name == "value" and isinstance(value, Array):
            return Constant(value)
        if name in kinds:
            many = name.endswith("s")
            return Constant(Array(kinds[name], (len(value),) if many else (),
                                  list(value) if many else [value]))
    raise Refused("gpunn has no constants of this kind")


def reachable(nodes, outputs):
    """The nodes that compute what the outputs, or a branch within them, depend on."""
    wanted, result = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            result.append(node)
            wanted.update(node.inputs)
            for graph in node.attributes.values():
                wanted.update(inner_reads(graph))
    return result[::-1]


def inner_reads(graph):
    """The outer names that a graph within a node reads."""
    names = []
    for node in getattr(graph, "node", ()) if not isinstance(graph, (Array, list, str, int, float)) else ():
        names += node.input
        for attribute in node.attribute:
            names += inner_reads(attribute.g) if attribute.g else []
    return names + ([value.name for value in graph.output] if names else [])


# ---- the inputs --------------------------------------------------------------------------------------------
class Sizes:
    """The sizes of the inputs' axes. sizes: by name. batch: the name of the axis that varies, or its size;
    None to find it. dynamic: other axes vary too, as named sizes. bounds: of these, as in the spec."""

    def __init__(self, inputs, sizes, batch, dynamic, bounds):
        self.given = {name: int(size) for name, size in sizes.items()}
        self.batch, self.dynamic = batch, dynamic
        self.named = {}  # by names of the spec's sizes: those of the file
        self.bounds = bounds
        self.multiples = {name: given.get("multiple", 1) for name, given in bounds.items()}
        if batch is None:
            first = [self.names(value)[0] for value in inputs if self.names(value)]
            self.batch = next((name for name in first if isinstance(name, str) and name not in self.given),
                              None)
        elif batch.isdigit():
            names = [self.names(value)[0] for value in inputs if self.names(value)]
            self.given.update({name: int(batch) for name in names if isinstance(name, str)})

    @staticmethod
    def names(value):
        """For each axis a size or a name. An axis without either, or with "?", is named INPUT:AXIS, and the
        first one "batch"."""
        shape = value.type.tensor_type.shape if value.type and value.type.tensor_type else None
        if shape is None:
            return []
        return [d.dim_value if d.dim_value > 0 or d.has("dim_value") and not d.dim_param and
                d.dim_value == 0 else d.dim_param.strip("?") or ("%s:%d" % (value.name, i) if i else "batch")
                for i, d in enumerate(shape.dim)]

    def shape(self, value):
        result = []
        for name in self.names(value):
            result.append(self.given.get(name, name) if not isinstance(name, str) or name in self.given else
                          -1 if name == self.batch else self.varying(name))
        return tuple(result)

    def varying(self, name):
        """The dimension of an axis that has only a name in the file."""
        if not self.dynamic:
            raise Refused("its axis '%.80s' has no size: give it one with --size %s=SIZE, or let it vary "
                          "with --dynamic" % (name, name))
        own = re.sub("[^A-Za-z0-9_]", "_", name)[:100]
        own = own if re.match("[A-Za-z_]", own) and own not in ("batch", "N") else "size_" + own
        if self.named.setdefault(own, name) != name:
            raise Refused(
                "its axis '%.80s' and the axis '%.80s' would both be the size %s: give one with --size" % (
                    name, self.named[own], own))
        return named_dim(own, self.multiples.setdefault(own, 1))


def input_value(writer, value, sizes, fixed):
    """The value of a model's input."""
    if value.name in fixed:
        return Constant(fixed[value.name])
    kind = tensor_kind(value)
    if kind is None or kind not in RANGES and kind != "bool" and not is_float(kind):
        return Missing("its operand '%.80s' is of %s, which gpunn does not have" %
                       (value.name, kind or "no tensor type"))
    dtype = stored_dtype(kind)
    if value.type.tensor_type.shape is None:
        raise Refused("it has no shape; give it values with --fix, or a shape with onnx.shape_inference")
    result = writer.add("input", [], (), name=value.name, dtype=None if dtype == "f32" else dtype,
                        shape=sizes.shape(value))
    return writer.as_kind(result, kind)


def import_graph(model, title, sizes=(), batch=None, fixed=None, dynamic=False, bounds=None, int8=True):
    """Converts an onnx_file.Model. Returns the spec as a dictionary, its weights for save_safetensors, and
    notes. int8: with ops of 8-bit numbers where the model is quantised."""
    graph, fixed = model.graph, fixed or {}
    inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    names = [value.name for value in inputs] + list(graph.outputs)
    writer = OnnxWriter(graph.initializers, names, int8)
    known = {}
    lowering = Lowering(model, writer, known)
    axes = Sizes([value for value in inputs if value.name not in fixed], dict(sizes), batch, dynamic,
                 bounds or {})
    writer.loader.graph.multiples = axes.multiples
    for value in inputs:
        try:
            known[value.name] = input_value(writer, value, axes, fixed)
        except Refused as why:
            writer.needed.add(value.name)
            lowering.problems.append("the input '%.80s': %s" % (value.name, why))
            known[value.name] = Missing()
    lowering.run(graph)
    results = outputs_of(lowering, graph)
    if lowering.problems:
        raise Unsupported(title, lowering.problems, writer.needed)
    entries = needed_entries(writer.entries, results)
    result = {"gpunn_spec": 1, "name": title}
    if axes.named or axes.bounds:
        result["sizes"] = named_sizes(axes.named, axes.bounds)
    result.update(tensors=[e.json() for e in entries], outputs=list(graph.outputs))
    return result, stored_weights(entries), list(writer.notes.values())


def outputs_of(lowering, graph):
    """The entry of each output, with the output's name. Inputs and weights have it already."""
    results = []
    for i, name in enumerate(graph.outputs):
        lowering.writer.call = lowering.makers.get(name)
        try:
            if not name:
                raise Refused("it has no name")
            if name in graph.outputs[:i]:
                raise Refused("another output has its name")
            results.append(lowering.writer.finished(name, lowering.operand(name),
                                                    graph.output_kinds.get(name), results))
        except Refused as why:
            if str(why):
                lowering.problems.append("the output '%.80s': %s" % (name, why))
    if not graph.outputs:
        lowering.problems.append("it has no outputs")
    if not lowering.problems:
        for name, x in zip(graph.outputs, results):
            x.entry.name = x.entry.name if x.id() == name else name
    return [x.entry for x in results]


def stored_weights(entries):
    """The parameters of entries, as save_safetensors takes them. Running statistics and weights are F32."""
    return {x.name: (SAFETENSORS["f32"], x.tensor.shape, x.tensor.f32_bytes()) for entry in entries
            for x in entry.weights}
