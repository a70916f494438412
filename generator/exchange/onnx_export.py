"""Converts a model's graph, as evaluation runs it, to ONNX nodes."""
import ast
import math

from .. import table
from .arrays import Array, gathered, strides
from .onnx_file import ATTRIBUTE, DIMENSION, GRAPH, MODEL, NODE, NUMBERS, OPSET, SHAPE, TENSOR, TYPE, VALUE
from .protobuf import Message
from .spec_writer import Refused, product

OPSET_VERSION, IR_VERSION = 21, 10
KINDS = {"f32": "float32", "i64": "int64", "i32": "int32", "u8": "uint8", "bool": "bool"}

# Elementwise ops that ONNX has: its op and attributes, with "{name}" for gpunn's. All others are exported as
# their formulas.
DIRECT = {"relu": ("Relu", {}), "sigmoid": ("Sigmoid", {}), "tanh": ("Tanh", {}), "mish": ("Mish", {}),
          "gelu": ("Gelu", {}), "gelu_tanh": ("Gelu", {"approximate": "tanh"}), "softsign": ("Softsign", {}),
          "hardswish": ("HardSwish", {}), "hardsigmoid": ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
          "selu": ("Selu", {}), "detach": ("Identity", {}),
          "leaky_relu": ("LeakyRelu", {"alpha": "{negative_slope}"}), "elu": ("Elu", {"alpha": "{alpha}"}),
          "celu": ("Celu", {"alpha": "{alpha}"}), "abs": ("Abs", {}), "neg": ("Neg", {}),
          "sign": ("Sign", {}), "floor": ("Floor", {}), "exp": ("Exp", {}), "log": ("Log", {}),
          "sqrt": ("Sqrt", {}), "reciprocal": ("Reciprocal", {}), "erf": ("Erf", {}), "sin": ("Sin", {}),
          "cos": ("Cos", {}), "maximum": ("Max", {}), "minimum": ("Min", {}),
          "parametric_relu": ("PRelu", {}), "sinh": ("Sinh", {}), "cosh": ("Cosh", {}), "asin": ("Asin", {}),
          "acos": ("Acos", {}), "atan": ("Atan", {}), "asinh": ("Asinh", {}), "acosh": ("Acosh", {}),
          "atanh": ("Atanh", {}), "fmod": ("Mod", {"fmod": 1})}
# The functions in formulas.
FUNCTIONS = {"exp": "Exp", "log": "Log", "sqrt": "Sqrt", "tanh": "Tanh", "sigmoid": "Sigmoid", "erf": "Erf",
             "abs": "Abs", "sign": "Sign", "floor": "Floor", "sin": "Sin", "cos": "Cos", "pow": "Pow",
             "max": "Max", "min": "Min", "tan": "Tan", "atan": "Atan", "asin": "Asin", "acos": "Acos",
             "sinh": "Sinh", "cosh": "Cosh", "round": "Round", "ceil": "Ceil"}
# Those of them that ONNX lacks.
SPELLED = {
    "log1p": "log(x + 1)", "expm1": "exp(x) - 1", "floordiv": "floor(x / y)", "exp2": "pow(2, x)",
    "log2": "log(x) / K(0.6931471806)", "log10": "log(x) / K(2.302585093)",
    "remainder": "where(fmod(x, y) * sign(y) < 0, fmod(x, y) + y, fmod(x, y))", "hypot":
    "max(abs(x), abs(y)) * sqrt(1 + pow(min(abs(x), abs(y)) / max(max(abs(x), abs(y)), K(1e-37)), 2))",
    "atan2": "where(y > 0, atan(x / y), where(y < 0, atan(x / y) + where(x < 0, -K(3.1415926536), "
    "K(3.1415926536)), sign(x) * K(1.5707963268)))"}
OPERATORS = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div", ast.Pow: "Pow", ast.Lt: "Less",
             ast.LtE: "LessOrEqual", ast.Gt: "Greater", ast.GtE: "GreaterOrEqual", ast.Eq: "Equal"}
# Ops of integers, in 64 bits: those of booleans, and all others. Div rounds towards 0, and Mod has the
# divisor's sign.
LOGICAL = {"logical_not": "Not", "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}
INTEGERS = {"neg": "Neg", "abs": "Abs", "sign": "Sign", "add": "Add", "sub": "Sub", "mul": "Mul",
            "trunc_divide": "Div", "remainder": "Mod", "fmod": "Mod", "maximum": "Max", "minimum": "Min",
            "eq": "Equal", "ne": "Equal", "lt": "Less",
            "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "where": "Where"}
EXPORTS = {}


def export(*names):
    def register(function):
        EXPORTS.update({name: function for name in names})
        return function
    return register


class Exporter:
    """Writes nodes for the tensors of a graph.Model; weights: Arrays by name."""

    def __init__(self, model, weights):
        self.model, self.weights = model, weights
        self.nodes, self.initializers, self.names, self.constants = [], [], {}, {}
        self.taken = {t.name for t in model.tensors if t.name}
        self.batch = next((t for t in model.tensors if t.kind == "input" and -1 in t.shape), None)

    # -- steps --
    def unique(self, name):
        result, i = name, 0
        while result in self.taken:
            i += 1
            result = "%s_%d" % (name, i)
        self.taken.add(result)
        return result

    def node(self, op, inputs, outputs=None, **attributes):
        """Adds a node and returns its result's name. outputs: the names of its results, if they are not new
        ones."""
        outputs = outputs or [self.unique(op.lower())]
        given = [attribute(name, value) for name, value in attributes.items() if value is not None]
        self.nodes.append(Message(NODE, op_type=op, input=[x or "" for x in inputs], output=outputs,
                                  name=self.unique("node"), attribute=given))
        return outputs[0]

    def constant(self, values, kind="float32", shape=None):
        shape = (len(values),) if shape is None else shape
        key = kind, tuple(shape), repr(values)
        if key not in self.constants:
            self.constants[key] = self.stored(self.unique("constant"), Array(kind, shape, list(values)))
        return self.constants[key]

    def number(self, value):
        return self.constant([float(value)], shape=())

    def integers(self, *values):
        return self.constant([int(value) for value in values], "int64")

    def stored(self, name, array):
        self.initializers.append(Message(TENSOR, name=name, dims=list(array.shape),
                                         data_type=NUMBERS[array.kind], raw_data=array.encoded()))
        return name

    def dimensions(self, shape):
        """The name of a shape. The batch is read from an input that has it."""
        if all(dim >= 0 for dim in shape):
            return self.integers(*shape)
        axis = self.batch.shape.index(-1)
        size = self.node("Gather", [self.node("Shape", [self.names[self.batch.id]]), self.integers(axis)],
                         axis=0)
        parts = [self.integers(dim) if dim >= 0 else self.node("Mul", [size, self.integers(-dim)])
                 for dim in shape]
        return self.node("Concat", parts, axis=0)

    def reshaped(self, x, shape):
        """x reshaped. The one axis that depends on the batch becomes -1."""
        open_axes = [i for i, dim in enumerate(shape) if dim < 0]
        if len(open_axes) > 1:
            return self.node("Reshape", [x, self.dimensions(shape)])
        return self.node("Reshape", [x, self.constant([-1 if dim < 0 else dim for dim in shape], "int64")])

    def tensor(self, i):
        return self.model.tensors[i]

    # -- elementwise --
    def elementwise(self, t):
        op, operands = table.ops()[t.op], [self.names[i] for i in t.inputs]
        if t.op in DIRECT:
            name, given = DIRECT[t.op]
            values = {key: t.attrs[x[1:-1]] if isinstance(x, str) and x[0] == "{" else x
                      for key, x in given.items()}
            return self.node(name, operands, **values)
        bound = dict(zip(table.OPERANDS[op.arity], operands))
        bound.update((key, float(value)) for key, value in t.attrs.items())
        result, is_truth = self.formula(ast.parse(op.forward, mode="eval").body, bound)
        return self.node("Cast", [result], to=NUMBERS["float32"]) if is_truth else result

    def operand(self, tree, bound):
        return self.formula(tree, bound)[0]

    def formula(self, tree, bound):
        """The result of a formula of the table, and whether it is boolean."""
        if isinstance(tree, ast.Name):
            value = bound[tree.id]
            return (value if isinstance(value, str) else self.number(value)), False
        if isinstance(tree, ast.Constant):
            return self.number(tree.value), False
        if isinstance(tree, ast.UnaryOp):
            return self.node("Neg", [self.operand(tree.operand, bound)]), False
        if isinstance(tree, ast.BinOp):
            return (self.node(OPERATORS[type(tree.op)],
                              [self.operand(tree.left, bound), self.operand(tree.right, bound)]), False)
        if isinstance(tree, ast.Compare):
            pair = [self.operand(tree.left, bound), self.operand(tree.comparators[0], bound)]
            if isinstance(tree.ops[0], ast.NotEq):
                return self.node("Not", [self.node("Equal", pair)]), True
            return self.node(OPERATORS[type(tree.ops[0])], pair), True
        return self.call(tree.func.id, tree.args, bound), False

    def call(self, name, trees, bound):
        if name == "K":
            return self.operand(trees[0], bound)
        first, is_truth = self.formula(trees[0], bound)
        rest = [self.operand(tree, bound) for tree in trees[1:]]
        if name == "where":
            condition = first if is_truth else self.node("Cast", [first], to=NUMBERS["bool"])
            return self.node("Where", [condition] + rest)
        if name in SPELLED:
            return self.operand(ast.parse(SPELLED[name], mode="eval").body, dict(zip("xy", [first] + rest)))
        if name == "fmod":
            return self.node("Mod", [first] + rest, fmod=1)
        if name not in FUNCTIONS:
            raise Refused("ONNX has no counterpart of %s" % name)
        return self.node(FUNCTIONS[name], [first] + rest)

    # -- the whole --
    def lower(self, t):
        if t.kind == "input":
            return t.name
        if t.kind in ("parameter", "buffer"):
            if t.name not in self.weights:
                raise Refused("the weights lack '%s'" % t.name)
            return self.stored(t.name, self.weights[t.name].as_floats())
        if t.kind == "constant":
            return self.constant(list(t.values), shape=t.shape)
        if t.op in EXPORTS:
            return EXPORTS[t.op](self, t, *[None if i is None else self.names[i] for i in t.inputs])
        if t.op in table.ops() and table.ops()[t.op].arity:
            return self.elementwise(t)
        raise Refused("ONNX has no counterpart of this op")

    def run(self):
        """The model's file as a message. Raises Refused with the list of what ONNX lacks."""
        needed, problems = ancestors(self.model), []
        for t in self.model.tensors:
            if t.id not in needed and t.kind != "input":
                continue
            try:
                self.names[t.id] = self.lower(t)
            except Refused as why:
                problems.append("%s '%s': %s" % (t.op, t.label or t.id, why))
                self.names[t.id] = ""
        if problems:
            raise Refused("cannot be exported:" + "".join("\n  " + problem for problem in problems))
        outputs = [self.output(self.tensor(i)) for i in self.model.outputs]
        inputs = [value_info(t, t.name) for t in self.model.tensors if t.kind == "input"]
        read = {name for node in self.nodes for name in node.input}
        graph = Message(GRAPH, node=self.nodes, name=self.model.name or "model", input=inputs, output=outputs,
                        initializer=[tensor for tensor in self.initializers if tensor.name in read])
        return Message(MODEL, ir_version=IR_VERSION, producer_name="gpunn", graph=graph,
                       opset_import=[Message(OPSET, domain="", version=OPSET_VERSION)])

    def output(self, t):
        """A result under its own name."""
        name = t.name or self.unique(t.label or "output")
        self.node("Identity", [self.names[t.id]], [name])
        return value_info(t, name)


def ancestors(model):
    found, pending = set(), list(model.outputs)
    while pending:
        i = pending.pop()
        if i is not None and i not in found:
            found.add(i)
            pending.extend(model.tensors[i].inputs)
    return found


def value_info(t, name):
    dims = [Message(DIMENSION, **({"dim_value": d} if d >= 0 else
                                  {"dim_param": "N" if d == -1 else "%dN" % -d})) for d in t.shape]
    tensor = Message(TYPE[1][1], elem_type=NUMBERS[KINDS[t.dtype]], shape=Message(SHAPE, dim=dims))
    return Message(VALUE, name=name, type=Message(TYPE, tensor_type=tensor))


def attribute(name, value):
    if isinstance(value, (bool, int)):
        return Message(ATTRIBUTE, name=name, i=int(value), type=2)
    if isinstance(value, float):
        return Message(ATTRIBUTE, name=name, f=value, type=1)
    if isinstance(value, str):
        return Message(ATTRIBUTE, name=name, s=value.encode("ascii"), type=3)
    if isinstance(value[0], str):
        return Message(ATTRIBUTE, name=name, strings=[text.encode("ascii") for text in value], type=8)
    return Message(ATTRIBUTE, name=name, ints=list(value), type=7)


# ---- the ops: each gets the exporter, the tensor and the names of its operands -----------------------------
def turned(e, x, rank):
    """x with its last two axes exchanged."""
    return e.node("Transpose", [x], perm=list(range(rank - 2)) + [rank - 1, rank - 2])


@export("linear")
def linear(e, t, x, weight, bias=None):
    if len(t.shape) == 2:
        return e.node("Gemm", [x, weight] + [bias] * (bias is not None), transB=1)
    y = e.node("MatMul", [x, e.node("Transpose", [weight], perm=[1, 0])])
    return y if bias is None else e.node("Add", [y, bias])


@export("matmul")
def matmul(e, t, a, b):
    a = turned(e, a, len(e.tensor(t.inputs[0]).shape)) if t.attrs["transpose_a"] else a
    return e.node("MatMul",
                  [a, turned(e, b, len(e.tensor(t.inputs[1]).shape)) if t.attrs["transpose_b"] else b])


@export("embedding")
def embedding(e, t, tokens, weight):
    return e.node("Gather", [weight, tokens], axis=0)


@export("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv(e, t, x, weight, bias=None):
    a, shape, extra = t.attrs, e.tensor(t.inputs[1]).shape, None
    if "transpose" in t.op:
        x_shape = e.tensor(t.inputs[0]).shape
        reach = [(size - 1) * s + d * (k - 1) + 1 - 2 * p for size, s, d, k, p in
                 zip(x_shape[2:], a["stride"], a["dilation"], shape[2:], a["padding"])]
        extra = [size - own for size, own in zip(t.shape[2:], reach)]
    return e.node("ConvTranspose" if "transpose" in t.op else "Conv",
                  [x, weight] + [bias] * (bias is not None), strides=a["stride"], pads=a["padding"] * 2,
                  dilations=a["dilation"], group=a["groups"], kernel_shape=shape[2:], output_padding=extra)


@export("relu6", "hardtanh", "clamp")
def clip(e, t, x):
    """Runtimes compute Clip together with the convolution before it."""
    bounds = {"relu6": (0, 6), "hardtanh": ("min_val", "max_val"), "clamp": ("min", "max")}[t.op]
    values = [float(t.attrs.get(bound, bound)) for bound in bounds]
    return e.node("Clip", [x] + [None if math.isinf(value) else e.number(value) for value in values])


@export("max_pool2d", "max_pool3d", "avg_pool2d", "avg_pool3d")
def pool(e, t, x):
    a, inside = t.attrs, t.attrs.get("count_include_pad")
    return e.node("MaxPool" if inside is None else "AveragePool", [x], kernel_shape=a["kernel_size"],
                  strides=a["stride"], pads=a["padding"] * 2, ceil_mode=int(a["ceil_mode"]),
                  count_include_pad=None if inside is None else int(inside))


@export("adaptive_max_pool2d", "adaptive_max_pool3d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_pool(e, t, x):
    sizes, results = e.tensor(t.inputs[0]).shape[2:], t.shape[2:]
    if any(size % result for size, result in zip(sizes, results)):
        raise Refused("ONNX's windows are of one size, and %s is no multiple of %s" %
                      (list(sizes), list(results)))
    kernel = [size // result for size, result in zip(sizes, results)]
    return e.node("MaxPool" if "max" in t.op else "AveragePool", [x], kernel_shape=kernel, strides=kernel)


@export("interpolate")
def interpolate(e, t, x):
    a, shape = t.attrs, e.tensor(t.inputs[0]).shape
    scales = [1.0, 1.0] + [1 / ratio if ratio and not a["align_corners"] else new / old
                           for ratio, old, new in zip(a["ratio"], shape[2:], t.shape[2:])]
    coordinates = {"nearest": "asymmetric", "nearest-exact": "half_pixel"}.get(
        a["mode"], "align_corners" if a["align_corners"] else "half_pixel")
    rounding = {"nearest": "floor", "nearest-exact": "round_prefer_ceil"}.get(a["mode"])
    exact = [math.floor(old * scale + 1e-4) == new
             for old, scale, new in zip(shape[2:], scales[2:], t.shape[2:])]
    if not all(exact):
        raise Refused("its size follows from no scale of ONNX's")
    nudged = [scale * (1 + 1e-7) if math.floor(old * scale) != new else scale
              for old, scale, new in zip((1, 1) + shape[2:], scales, (1, 1) + t.shape[2:])]
    return e.node("Resize", [x, "", e.constant(nudged)], mode=a["mode"].split("-")[0],
                  coordinate_transformation_mode=coordinates, nearest_mode=rounding)


@export("grid_sample")
def grid_sample(e, t, x, grid):
    mode = {"bilinear": "linear"}.get(t.attrs["mode"], t.attrs["mode"])
    return e.node("GridSample", [x, grid], mode=mode, padding_mode=t.attrs["padding_mode"],
                  align_corners=int(t.attrs["align_corners"]))


@export("roi_align")
def roi_align(e, t, x, boxes):
    a, columns = t.attrs, (e.integers(0), e.integers(1), e.integers(5), e.integers(1))
    samples = e.node("Reshape",
                     [e.node("Slice", [boxes, columns[0], columns[1], columns[3]]), e.integers(-1)])
    return e.node("RoiAlign", [x, e.node("Slice", [boxes, columns[1], columns[2], columns[3]]),
                               e.node("Cast", [samples], to=NUMBERS["int64"])],
                  output_height=t.shape[2], output_width=t.shape[3], spatial_scale=a["spatial_scale"],
                  sampling_ratio=a["sampling_ratio"],
                  coordinate_transformation_mode="half_pixel" if a["aligned"] else "output_half_pixel")


@export("affine_grid")
def affine_grid(e, t, theta):
    return e.node("AffineGrid", [theta, e.dimensions((t.shape[0], 1) + t.shape[1:-1])],
                  align_corners=int(t.attrs["align_corners"]))


# -- norms --
def filled(e, x, shape, value):
    """An operand or, if it is left out, a number without effect."""
    return e.constant([float(value)] * product(shape), shape=shape) if x is None else x


@export("batch_norm", "instance_norm")
def batch_norm(e, t, x, weight, bias, mean, var):
    channels = t.shape[1:2]
    return e.node("BatchNormalization",
                  [x, filled(e, weight, channels, 1), filled(e, bias, channels, 0), mean, var],
                  epsilon=t.attrs["eps"])


@export("group_norm")
def group_norm(e, t, x, weight=None, bias=None):
    channels = t.shape[1:2]
    return e.node("GroupNormalization", [x, filled(e, weight, channels, 1), filled(e, bias, channels, 0)],
                  num_groups=t.attrs["num_groups"], epsilon=t.attrs["eps"])


@export("layer_norm")
def layer_norm(e, t, x, weight=None, bias=None):
    scale = filled(e, weight, t.shape[-t.attrs["dims"]:], 1)
    return e.node("LayerNormalization", [x, scale] + [bias] * (bias is not None), axis=-t.attrs["dims"],
                  epsilon=t.attrs["eps"])


@export("rms_norm")
def rms_norm(e, t, x, weight=None, bias=None):
    axes = e.integers(*range(-t.attrs["dims"], 0))
    mean = e.node("ReduceMean", [e.node("Mul", [x, x]), axes], keepdims=1)
    y = e.node("Div", [x, e.node("Sqrt", [e.node("Add", [mean, e.number(t.attrs["eps"])])])])
    return y if weight is None else e.node("Mul", [y, weight])


@export("dropout")
def dropout(e, t, x):
    return x


@export("rand_like")
def rand_like(e, t, x):
    return e.node("RandomUniformLike", [x])


@export("randn_like")
def randn_like(e, t, x):
    return e.node("RandomNormalLike", [x])


# -- shapes --
@export("reshape")
def reshape(e, t, x):
    return e.reshaped(x, t.shape)


@export("permute")
def permute(e, t, x):
    return e.node("Transpose", [x], perm=t.attrs["dims"])


@export("concat")
def concat(e, t, *parts):
    return e.node("Concat", parts, axis=t.attrs["dim"])


@export("slice")
def slice_(e, t, x):
    axis, start, step = t.attrs["dim"], t.attrs["start"], t.attrs["step"]
    end = start + (t.shape[axis] - 1) * step + 1
    return e.node("Slice", [x, e.integers(start), e.integers(end), e.integers(axis), e.integers(step)])


@export("pad")
def pad(e, t, x):
    before = t.attrs["before"]
    after = [new - old - first for new, old, first in zip(t.shape, e.tensor(t.inputs[0]).shape, before)]
    after = [0 if dim < 0 else n for dim, n in zip(t.shape, after)]
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge",
            "circular": "wrap"}[t.attrs["mode"]]
    value = [e.number(t.attrs["value"])] if mode == "constant" else []
    return e.node("Pad", [x, e.integers(*before, *after)] + value, mode=mode)


@export("expand")
def expand(e, t, x):
    return e.node("Expand", [x, e.dimensions(t.shape)])


@export("gather")
def gather(e, t, x, index):
    return e.node("GatherElements", [x, index], axis=t.attrs["dim"])


@export("scatter", "scatter_add")
def scatter(e, t, x, index, src):
    return e.node("ScatterElements", [x, index, src], axis=t.attrs["dim"],
                  reduction="add" if t.op == "scatter_add" else "none")


@export("cast")
def cast(e, t, x):
    return e.node("Cast", [x], to=NUMBERS[KINDS[t.dtype]])


@export("integer")
def integer(e, t, *operands):
    op, (count, is_truth) = t.attrs["operation"], table.integers()[t.attrs["operation"]]
    kinds = [KINDS[e.tensor(i).dtype] for i in t.inputs]
    if len(operands) < count:
        operands, kinds = operands + (e.constant([t.attrs["value"]], "int64", shape=()),), kinds + ["int64"]
    wanted = ["bool" if op in LOGICAL or (op == "where" and i == 0) else "int64" for i in range(count)]
    operands = [x if kind == own else e.node("Cast", [x], to=NUMBERS[own])
                for x, kind, own in zip(operands, kinds, wanted)]
    if op in LOGICAL:
        return e.node(LOGICAL[op], operands)
    if op == "floor_divide":
        a, b = operands
        y = e.node("Div", [e.node("Sub", [a, e.node("Mod", [a, b])]), b])
    else:
        y = e.node(INTEGERS[op], operands, fmod=1 if op == "fmod" else None)
    if op == "ne":
        y = e.node("Not", [y])
    return y if is_truth or t.dtype == "i64" else e.node("Cast", [y], to=NUMBERS[KINDS[t.dtype]])


# -- reductions --
@export("sum", "max")
def reduce_(e, t, x):
    op, shape = ("ReduceMax" if t.op == "max" else "ReduceMean" if t.attrs["mean"] else "ReduceSum",
                 e.tensor(t.inputs[0]).shape)
    return e.node(op, [x, e.integers(*t.attrs["dims"])], keepdims=int(len(t.shape) == len(shape)))


@export("argmax")
def arg_max(e, t, x):
    shape = e.tensor(t.inputs[0]).shape
    return e.node("ArgMax", [x], axis=t.attrs["dim"], keepdims=int(len(t.shape) == len(shape)))


@export("topk_indices")
def top_k(e, t, x):
    axis = t.attrs["dim"]
    names = [e.unique("topk"), e.unique("topk_indices")]
    e.node("TopK", [x, e.integers(t.shape[axis])], names, axis=axis, largest=int(t.attrs["largest"]))
    return names[1]


@export("cumsum")
def cum_sum(e, t, x):
    return e.node("CumSum", [x, e.constant([t.attrs["dim"]], "int64", ())])


@export("softmax", "log_softmax")
def softmax(e, t, x):
    return e.node("Softmax" if t.op == "softmax" else "LogSoftmax", [x], axis=t.attrs["dim"])


@export("nll", "cross_entropy")
def class_loss(e, t, x, labels, weight=None):
    if t.attrs.get("label_smoothing"):
        raise Refused("ONNX has no label_smoothing")
    op = "NegativeLogLikelihoodLoss" if t.op == "nll" else "SoftmaxCrossEntropyLoss"
    return e.node(op, [x, labels] + [weight] * (weight is not None), reduction=t.attrs["reduction"],
                  ignore_index=t.attrs["ignore_index"])


# -- attention and recurrence --
def heads_first(e, x, shape, last):
    """[n, heads, rows, size] and that shape."""
    if not last:
        return x, shape
    return e.node("Transpose", [x], perm=[0, 2, 1, 3]), (shape[0], shape[2], shape[1], shape[3])


def parts_of_all(e, t, x):
    """q, k and v of one value [n, rows, 3, heads, size]."""
    shape = e.tensor(t.inputs[0]).shape
    parts = [e.node("Gather", [x, e.constant([i], "int64", ())], axis=2) for i in range(3)]
    return [heads_first(e, part, shape[:2] + shape[3:], True) for part in parts]


@export("scaled_dot_product_attention")
def attention(e, t, q, k=None, v=None, mask=None):
    whole, a = k is None, t.attrs
    last = whole or a["heads_last"]
    parts = parts_of_all(e, t, q) if whole else [heads_first(e, x, e.tensor(i).shape, last)
                                                 for x, i in zip((q, k, v), t.inputs)]
    (q, q_shape), (k, k_shape), (v, v_shape) = parts
    if q_shape[1] != k_shape[1]:
        k, v = [repeated(e, x, shape, q_shape[1] // k_shape[1]) for x, shape in ((k, k_shape), (v, v_shape))]
    scores = e.node("Mul", [e.node("MatMul", [q, turned(e, k, 4)]), e.number(a["scale"])])
    if a["is_causal"]:
        rows, columns = q_shape[2], k_shape[2]
        hidden = [0.0 if j <= i else -math.inf for i in range(rows) for j in range(columns)]
        scores = e.node("Add", [scores, e.constant(hidden, shape=(rows, columns))])
    if mask is not None and e.tensor(t.inputs[3]).dtype == "bool":
        scores = e.node("Where", [mask, scores, e.number(-math.inf)])
    elif mask is not None:
        scores = e.node("Add", [scores, mask])
    y = e.node("MatMul", [e.node("Softmax", [scores], axis=-1), v])
    return e.node("Transpose", [y], perm=[0, 2, 1, 3]) if last else y


def repeated(e, x, shape, times):
    n, heads, rows, size = shape
    x = e.node("Expand", [e.reshaped(x, (n, heads, 1, rows, size)), e.dimensions((1, 1, times, 1, 1))])
    return e.reshaped(x, (n, heads * times, rows, size))


GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}  # positions of ONNX's gates among gpunn's


def gates_of(array, order):
    """The rows of a weight with its gates reordered."""
    rows, steps, values = array.shape[0] // len(order), strides(array.shape), []
    for gate in order:
        values += gathered(array.values, (rows,) + array.shape[1:], steps, gate * rows * steps[0])
    return values


def stacked_gates(e, parts, order, shape):
    """The weights, concatenated, each with its gates reordered."""
    if all(e.tensor(i).kind == "parameter" for i in parts):
        return e.constant([number for i in parts for number in gates_of(e.weights[e.tensor(i).name], order)],
                          shape=shape)
    rows = e.tensor(parts[0]).shape[0] // len(order)
    ends = [(e.integers(gate * rows), e.integers((gate + 1) * rows)) for gate in order]
    gates = [e.node("Slice", [e.names[i], first, end, e.integers(0)]) for i in parts for first, end in ends]
    return e.reshaped(e.node("Concat", gates, axis=0), shape)


@export("lstm", "gru", "rnn")
def recurrent(e, t, x, lengths, h_0, c_0, reset, *weights):
    order, directions = GATES[t.op], 2 if t.attrs["bidirectional"] else 1
    ids = t.inputs[5:]
    if reset is not None:
        raise Refused("ONNX has no resets within a sequence")
    rows, hidden = e.tensor(ids[1]).shape
    stacked = [stacked_gates(e, ids[0::4], order, (directions, rows, e.tensor(ids[0]).shape[1])),
               stacked_gates(e, ids[1::4], order, (directions, rows, hidden))]
    if ids[2] is not None:
        biases = [i for pair in zip(ids[2::4], ids[3::4]) for i in pair]
        stacked.append(stacked_gates(e, biases, order, (directions, 2 * rows)))
    lengths = lengths and e.node("Cast", [lengths], to=NUMBERS["int32"])
    operands = [x] + stacked + [None] * (3 - len(stacked)) + [lengths, h_0] + [c_0] * (t.op == "lstm")
    names = [e.unique(t.op) for _ in range(3 if t.op == "lstm" else 2)]
    e.node(t.op.upper(), operands, names, hidden_size=hidden,
           direction="bidirectional" if directions == 2 else None, linear_before_reset=1 if t.op == "gru" else
           None, activations=["Relu"] * directions if t.attrs.get("relu") else None)
    y = e.reshaped(e.node("Transpose", [names[0]], perm=[0, 2, 1, 3]),
                   (e.tensor(t.inputs[0]).shape[0],) + t.shape[1:])
    states = [e.reshaped(name, (1,) + t.shape[1:]) for name in names[1:]] if t.attrs["states"] else []
    return e.node("Concat", [y] + states, axis=0) if states else y
