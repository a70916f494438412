"""A model's tensors, and the builders that append them. They follow the rules and the order of gpunn.h's
builders (>>graph/tensors, layers/), so that both give every tensor the same id and the same text."""
import hashlib
import math
import re
from dataclasses import dataclass, field
from functools import partial, partialmethod

from . import signature, table
from .floats import f32
from .sizes import (Formula, SizeError, any_varies, content, dim_product, dim_total, product, slice_index,
                    varies)

MAX_RANK = 8
MAX_COUNT = 1 << 59      # elements of one tensor
MAX_INT = (1 << 31) - 1
MAX_TENSORS = 30000      # of a model
MAX_NAME = 255           # bytes of a tensor's name; a layer's leaves room for ".running_mean"
MAX_LAYER_NAME = 239
BATCH = -1               # a dimension; -k is k times the batch; other varying dimensions are sizes.Size
MAX_CUSTOM_INPUTS, CUSTOM_NUMBERS = 16, 8
CLASS_DTYPES = ("i64", "i32", "u8")
INDEX_DTYPES = ("i64", "i32")
INTEGER_DTYPES = ("bool", "u8", "i32", "i64")  # each can represent those before it
NUMBERS = ("NUMBER", "POSITIVE", "SCALE", "SHARE", "EXTENDED")  # kinds of arguments that are floats in C


class GraphError(Exception):
    """Why a builder fails. key: the attribute at fault, "inputs" for operands, None for no one in
    particular."""

    def __init__(self, message, key=None):
        super().__init__(message)
        self.key = key


@dataclass(eq=False)
class Tensor:
    id: int
    kind: str                  # input, parameter, buffer, state, constant or value
    op: str                    # the op of a value; else the kind
    attrs: dict                # in the order of the canonical text
    dtype: str
    shape: tuple               # -k: k times the batch
    inputs: tuple = ()         # ids; None: left out
    name: str = None
    label: str = None          # in the spec: its id, else its name, else its layer
    layer: str = None
    trainable: bool = False
    decay: bool = True
    lr_scale: float = 1.0
    frozen: bool = False       # of a parameter: without gradients and optimizer state
    storage: str = None        # of a parameter of an evaluation model: "f32" or a format of blocks
    init: tuple = None         # of parameters, buffers and states: kind, a, b
    default_init: tuple = None  # of a layer's tensors: its builder's default
    sync: bool = False         # batch_norm in training: statistics over all ranks, which changes no kernel
    sparse: bool = False       # of a table: its gradient holds only the rows of the batch
    values: tuple = None       # of constants
    saved: bool = False        # of a state: whether weight files hold it

    def type_text(self):
        return "%s [%s]" % (self.dtype, ",".join(map(dim_text, self.shape)))

    def text(self):
        """The op, its attributes and its result. Two nodes with one text compute the same from the same
        operands."""
        attrs = "".join(" %s=%s" % (key, attr_text(value)) for key, value in self.attrs.items())
        return "%s%s %s" % (self.op, attrs, self.type_text())


@dataclass(eq=False)
class Entry:
    """A builder's call, from one entry of a spec."""
    op: str
    operands: list             # Tensors; of expr perhaps one dict of them by name
    arguments: dict            # by the schema's names: values as in the spec, Tensors for references
    result: Tensor
    made: tuple                # all Tensors that the call appends


@dataclass(eq=False)
class Model:
    name: str
    precision: str
    math: str
    layout: str
    tensors: list
    outputs: list              # ids
    loss: int = None           # id
    optimizer: dict = None     # torch.optim's names, with all values
    clip_grad_norm: float = 0.0
    clip_grad_value: float = 0.0
    ema_decay: float = 0.0
    sizes: dict = field(default_factory=dict)  # by name: min, max, multiple
    # never, always: tuples of pairs of ids; schedule: {group: {"threads": 128}}
    fuse: dict = field(default_factory=dict)
    fuse_place: str = ""       # path:line:column of "fuse" in the spec
    entries: list = field(default_factory=list)  # entries of its spec

    def text(self):
        """The canonical text, the same as gpunn.h's. Its SHA-256 differs for models that need different
        kernels."""
        lines = ["gpunn 1 " + self.precision]
        for t in self.tensors:
            operands = "".join(" -" if i is None else " %d" % i for i in t.inputs)
            lines.append(t.text() + (" <-" + operands if t.kind == "value" else ""))
        return "\n".join(lines) + "\n"

    def sha256(self):
        return hashlib.sha256(self.text().encode("ascii")).hexdigest()


def dim_text(dim):
    return str(dim) if dim >= 0 or varies(dim) else "N" if dim == BATCH else "%dN" % -dim


def shape_text(shape):
    return "[%s]" % ", ".join(map(dim_text, shape))


def attr_text(value):
    if isinstance(value, (tuple, list)):
        return ",".join(map(attr_text, value))
    if isinstance(value, bool):
        return str(int(value))
    return "%.9g" % value if isinstance(value, float) else str(value)


def measure(shape):
    """The element count as (factor, power): factor * batch ** power. Other varying sizes count as batches.
    None: over the limit."""
    factor, power = 1, 0
    if any_varies(shape):
        factor, terms = content(shape)
        return (factor, max(len(atoms) for atoms, _ in terms)) if factor <= MAX_COUNT else None
    for dim in shape:
        factor *= abs(dim)
        power += dim < 0
    return (factor, power) if factor <= MAX_COUNT else None


def broadcast(a, b, what="shapes"):
    rank = max(len(a), len(b))
    result = []
    for axis, (x, y) in enumerate(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b)):
        if x != y and x != 1 and y != 1:
            raise GraphError("%s %s and %s do not broadcast (axis %d: %s against %s)%s" % (
                what, shape_text(a), shape_text(b), axis, dim_text(x), dim_text(y),
                "; a size that varies broadcasts only with itself and 1" if any_varies((x, y)) else
                "; the batch broadcasts only with itself and 1" if x < 0 or y < 0 else ""), "inputs")
        result.append(y if x == 1 else x)
    return tuple(result)


def windows(size, kernel, stride, padding, dilation, ceil_mode):
    """The number of sliding windows. One that starts in the padding at the end does not count."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1 + (stride - 1 if ceil_mode else 0)
    if varies(size):  # with ceil_mode, whether the last window counts may depend on the size
        return 0 if ceil_mode and dilation * (kernel - 1) + 1 < stride + padding else room // stride + 1
    if room < 0:
        return 0
    count = room // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def hash_levels(attrs, axes):
    """(scale, resolution, rows, first row) of a hash grid's levels, as in gpunn__hash_grid_of. It ends before
    a level with too many cells."""
    most, cells, first, result = 1 << attrs["log2_hashmap_size"], float(attrs["base_resolution"]), 0, []
    while len(result) < attrs["n_levels"] and cells < 2147483000:
        resolution = math.ceil(cells - 1) + 1
        corners = resolution ** axes
        rows = min(-(-corners // 8) * 8, most)
        result.append((f32(cells - 1), resolution if corners <= most else 0, rows, first))
        first, cells = first + rows, cells * attrs["per_level_scale"]
    return result


def window(value, axes):
    """A setting of a window, as one number per spatial axis."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,) * axes


def check_rank(x, lowest, highest, layout):
    if not lowest <= len(x.shape) <= highest:
        raise GraphError("x is %s, but %s is needed; reshape it" % (shape_text(x.shape), layout), "inputs")


def check_axes(x, axes):
    layout = ("[n, channels, length]", "[n, channels, height, width]",
              "[n, channels, depth, height, width]")[axes - 1]
    check_rank(x, 2 + axes, 2 + axes, layout)
    check_image(x)


def check_image(x):
    """The spatial axes of x [n, channels, ...] may be named sizes."""
    check_fixed(x, [1])
    check_fixed(x, [axis for axis in range(2, len(x.shape)) if not varies(x.shape[axis])])


def check_fixed(x, axes):
    for axis in axes:
        if not 0 < x.shape[axis] <= MAX_INT:
            raise GraphError("axis %d of x %s %s" % (
                axis, shape_text(x.shape),
                "varies between runs; this op needs a fixed size there" if varies(x.shape[axis]) else
                "is the batch; use permute or reshape so that this axis has a fixed size" if x.shape[axis] < 0
                else "is larger than 2^31 - 1; use smaller sizes"), "inputs")


def check_f32(*operands):
    for t in operands:
        if t.dtype != "f32":
            raise GraphError("an operand is %s, but f32 is needed; cast it" % t.dtype, "inputs")


def check_dtype(wanted, name, t, first_name, first):
    """Of an operand of a signature."""
    if wanted == "index":
        check_indices(t, name)
    elif wanted == "any" and t.dtype != first.dtype:
        raise GraphError("%s is %s and %s %s; cast one of them" % (
            first_name, first.dtype, name, t.dtype), "inputs")
    elif wanted == "u8":
        check_bytes(name, t)
    elif wanted == "f32":
        check_f32(t)


def check_bytes(name, t):
    if t.dtype != "u8":
        raise GraphError("%s is %s, but u8 is needed; convert it with quantize_per_tensor" % (name, t.dtype),
                         "inputs")


def check_count(count, most, key):
    if count > most:
        raise GraphError("%s is %d; use 1 to %d" % (key, count, most), key)


def check_indices(t, name):
    if t.dtype not in INDEX_DTYPES:
        raise GraphError("%s is %s, but integers are needed; use i64 or i32" % (name, t.dtype), "inputs")


def check_weight(weight, shape, rows, columns):
    """Checks a weight that the layer does not own."""
    check_f32(weight)
    if weight.shape != shape:
        raise GraphError("weight is %s, but [%s, %s] is needed, which is %s" % (
            shape_text(weight.shape), rows, columns, shape_text(shape)), "weight")


def check_equal_shapes(input, target):
    if input.shape != target.shape:
        raise GraphError("input %s and target %s need the same shape, since this loss does not broadcast; "
                         "reshape one of them" % (
                             shape_text(input.shape), shape_text(target.shape)), "inputs")


def check_factor(factor, key, input):
    """Checks a factor per element, which may be None."""
    if factor is not None:
        check_f32(factor)
        if broadcast(input.shape, factor.shape, "input and %s" % key) != input.shape:
            raise GraphError("%s %s is larger than the input %s; it must broadcast to that" % (
                key, shape_text(factor.shape), shape_text(input.shape)), key)


def check_name(name, most, key="name"):
    size = len(name.encode("utf-8"))
    if size > most:
        raise GraphError("the name '%s...' has %d bytes; %d are allowed" % (name[:20], size, most), key)
    if name == "__metadata__":
        raise GraphError("the name '__metadata__' is reserved in safetensors files; choose another", key)


def axis_of(x, axis, key="dim"):
    rank = len(x.shape)
    if rank == 0:
        raise GraphError("x is a scalar, which has no axes", "inputs")
    if not -rank <= axis < rank:
        raise GraphError("axis %d is not one of %s; use %d to %d" %
                         (axis, shape_text(x.shape), -rank, rank - 1), key)
    return axis % rank


def axis_list(x, axes):
    result = [axis_of(x, axis, "dims") for axis in axes]
    for i, axis in enumerate(result):
        if axis in result[:i]:
            raise GraphError("axis %d is listed twice; name each axis once" % axis, "dims")
    return result


def setting(value):
    """A number as C passes it in an argument struct, where -0 is 0 and GPUNN_ZERO stands for 0."""
    return 0.0 if value in (0, -2147483648.0) else value


class Graph:
    """The builders. Operands are Tensors. Other arguments have the names of torch.nn and of
    model.schema.json."""

    def __init__(self, multiples=None):
        self.tensors, self.names, self.layers = [], {}, set()
        self.multiples = multiples or {}  # multiples of the named sizes
        self.fixed = {}                   # numbers that stand for some of them

    # ---- sizes ----
    def dim(self, value, key="shape"):
        """A dimension from the spec: an integer, "N", "4N" or a formula."""
        if not isinstance(value, str):
            return value
        if re.fullmatch("([1-9][0-9]*)?N", value):
            return -int(value[:-1] or 1)
        try:
            return Formula(value, self.multiples, self.fixed).dim()
        except SizeError as fault:
            raise GraphError(str(fault), key) from None

    def shape_of(self, dims):
        if len(dims) > MAX_RANK:
            raise GraphError("a shape has at most %d axes, this one %d" % (MAX_RANK, len(dims)), "shape")
        return tuple(map(self.dim, dims))

    def fixed_shape_of(self, dims):
        shape = self.shape_of(dims)
        if any(dim < 0 for dim in shape):
            raise GraphError("shape %s is not allowed here; parameters and constants do not vary between "
                             "runs" % shape_text(shape), "shape")
        return shape

    # ---- tensors ----
    def append(self, kind, op, attrs, dtype, shape, inputs=(), layer=None):
        shape = tuple(shape)
        if 0 in shape:
            raise GraphError("its result %s would have an axis that cannot be computed from its operands' "
                             "sizes by a formula" % shape_text(shape))
        if measure(shape) is None:
            raise GraphError("shape %s has more than 2^59 elements; use smaller sizes" % shape_text(shape))
        if len(self.tensors) >= MAX_TENSORS:
            raise GraphError("the model would have more than %d tensors; make a smaller one" % MAX_TENSORS)
        t = Tensor(len(self.tensors), kind, op, attrs, dtype, shape,
                   tuple(i if i is None else i.id for i in inputs),
                   layer=layer, trainable=kind == "parameter")
        self.tensors.append(t)
        return t

    def node(self, op, attrs, inputs, shape, dtype="f32", layer=None):
        return self.append("value", op, attrs, dtype, shape, inputs, layer)

    def by_signature(self, op, attrs, inputs, layer=None):
        """A node whose dtype and shape its op's signature tells."""
        own = table.ops()[op]
        operands, result = signature.parse(own.signature)
        for shape, name, t in zip(operands, own.operands, inputs):
            check_dtype(shape.dtype, name, t, own.operands[0], inputs[0])
        bound = signature.bind(own.signature, [t.shape for t in inputs], attrs.get("dim"))
        sizes = bound and signature.result(own.signature, bound)
        if bound is None or len(sizes) > MAX_RANK:
            given = ", ".join("%s %s" % (name, shape_text(t.shape)) for name, t in zip(own.operands, inputs))
            fault = ("the result would have more than %d axes; reshape one" % MAX_RANK if bound else
                     "needed: " + signature.texts(own.signature, attrs.get("dim")))
            raise GraphError("given: %s; %s" % (given, fault), "inputs")
        return self.node(op, attrs, inputs, sizes,
                         inputs[0].dtype if result.dtype == "any" else result.dtype, layer)

    def of_row(self, op, *operands, **given):
        """What a row of GPUNN_SIGNATURE_OPS makes; given: all of its arguments."""
        row, attrs = table.rows()[op], {}
        kinds = {one.name: one.kind for one in row.arguments}
        for key in row.attributes:
            attrs[key] = (axis_of(operands[0], given[key]) if kinds[key] == "AXIS" else
                          setting(f32(given[key])) if kinds[key] in NUMBERS else given[key])
        return self.by_signature(op, attrs, operands)

    def builder(self, op):
        """The function that builds what an entry of a spec tells."""
        generic = self.composite if op in table.formulas() else self.of_row
        return partial(generic, op) if table.follows(op) else getattr(self, op)

    def set_name(self, t, name, key="name"):
        check_name(name, MAX_NAME, key)
        if self.names.setdefault(name, t) is not t:
            raise GraphError("the name '%s' is already taken; names are unique in a model" % name, key)
        t.name = name
        return t

    def begin_layer(self, x, name):
        check_f32(x)
        self.new_layer(name)

    def new_layer(self, name):
        check_name(name, MAX_LAYER_NAME)
        if name in self.layers:
            raise GraphError("the name '%s' is taken by another layer; names are unique in a model" % name,
                             "name")
        self.layers.add(name)

    def weight(self, layer, suffix, shape, init, a=0.0, kind="parameter"):
        t = self.append(kind, kind, {}, "f32", shape)
        t.init = t.default_init = (init, f32(a), 1.0 if init == "normal" else 0.0)
        t.layer = layer
        return self.set_name(t, "%s.%s" % (layer, suffix))

    def input(self, name, dtype, shape):
        shape = self.shape_of(shape)
        if len([dim for dim in shape if dim < 0 and not varies(dim)]) > 1:
            raise GraphError("shape %s is not allowed here; one dimension at most may be the batch, \"N\" or "
                             "\"4N\"" % shape_text(shape), "shape")
        stored = "f32" if dtype == "f64" else dtype  # the program's doubles are floats to every op
        return self.set_name(self.append("input", "input", {}, stored, shape), name)

    def parameter(self, name, shape, init):
        shape = self.fixed_shape_of(shape)
        init = self.sound_init(init, shape)
        t = self.append("parameter", "parameter", {}, "f32", shape)
        t.init = t.default_init = init
        return self.set_name(t, name)

    def state(self, name, shape, init, saved):
        shape = self.fixed_shape_of(shape)
        init = self.sound_init(init, shape)
        t = self.append("state", "state", {}, "f32", shape)
        t.init, t.saved = init, saved
        return self.set_name(t, name)

    @staticmethod
    def sound_init(init, shape):
        kind, a, b = init["kind"], f32(init["a"]), f32(init["b"])
        fault = ("a is above b; a is the lower bound" if kind == "uniform" and a > b else
                 "b is negative; it is the standard deviation" if kind == "normal" and b < 0 else "a is "
                 "negative; it is the fan-in, 0 to take it from the shape" if kind == "kaiming_uniform" and
                 a < 0 else "a shape of rank below 2 has no fan-in; set \"a\" to the fan-in"
                 if kind == "kaiming_uniform" and a == 0 and len(shape) < 2 else None)
        if fault:
            raise GraphError("initial values: " + fault, "init")
        return kind, a, b

    def constant(self, shape, values):
        shape = self.fixed_shape_of(shape)
        t = self.append("constant", "constant", {}, "f32", shape)
        if len(values) != measure(shape)[0]:
            raise GraphError("%d values are given, but shape %s has %d elements" % (
                len(values), shape_text(shape), measure(shape)[0]), "values")
        t.values = tuple(f32(value) for value in values)
        return t

    # ---- elementwise ----
    def apply(self, op, operands, attributes=()):
        """An elementwise op of the tables."""
        if self.meant_of_integers(op, operands):
            return self.integer(*operands, operation=op)
        if op == "where" and operands[0].dtype != "f32":  # the condition has another dtype
            operands = [self.cast(operands[0], "f32")] + list(operands[1:])
        check_f32(*operands)
        shape = ()
        for operand in operands:
            shape = broadcast(shape, operand.shape)
        names = [name for name, _ in table.ops()[op].attrs]
        return self.node(op, {name: f32(value) for name, value in zip(names, attributes)}, operands, shape)

    @staticmethod
    def meant_of_integers(op, operands):
        return op in table.integers() and all(t.dtype != "f32" for t in operands[op == "where":])

    def integer(self, *operands, operation, value=0):
        """An elementwise op of integers. value: its last operand, if that is no tensor."""
        arity, gives_bool = table.integers()[operation]
        choice = operation == "where"
        if not arity - (arity > 1) <= len(operands) <= arity:
            raise GraphError("got %d operands, but %d are needed%s" % (
                len(operands), arity, ", the last of which may be a number" if arity > 1 else ""), "inputs")
        for t in operands[choice:]:
            if t.dtype == "f32":
                raise GraphError("an operand is f32, but integers are needed; cast it", "inputs")
        number = len(operands) < arity
        dtype = max((t.dtype for t in operands[choice:]), key=INTEGER_DTYPES.index)
        dtype = "bool" if gives_bool else "i64" if number and dtype == "bool" else dtype
        if choice:
            operands = (self.cast(operands[0], "bool"),) + operands[1:]
        shape = ()
        for operand in operands:
            shape = broadcast(shape, operand.shape)
        return self.node("integer", {"operation": operation, "value": value if number else 0}, operands,
                         shape, dtype)

    def reversed(self, x):
        """-x. Of integers -1 - x, since -x could overflow."""
        if x.dtype in ("f32", "bool"):
            return self.apply("neg", (x,)) if x.dtype == "f32" else self.integer(x, operation="logical_not")
        return self.integer(self.apply("neg", (x,)), operation="add", value=-1)

    def scalar(self, value, mark):
        """A scalar constant. Reuses one with the same bits whose id is at least `mark`."""
        value = f32(value)
        for t in self.tensors[mark:]:
            if t.kind == "constant" and repr(t.values[0]) == repr(value):
                return t
        return self.constant((), (value,))

    def expr(self, *operands, expression, consts=None, place=None):
        """operands: Tensors, named x y z and x0 to x7, or one dict of them by name. place: see
        parse.expand."""
        from . import parse  # a cycle: it imports Tensor and errors from here
        if operands and isinstance(operands[0], dict):
            named = operands[0]
        else:
            named = {"x%d" % i: t for i, t in enumerate(operands)}
            named.update(zip("xyz", operands))
        return parse.expand(expression, self, named, consts or {}, place or (lambda offset: "in the formula"))

    # ---- layers ----
    def linear(self, x, name, out_features, bias, weight=None):
        self.begin_layer(x, name)
        check_rank(x, 1, MAX_RANK, "[..., features]")
        check_fixed(x, [len(x.shape) - 1])
        weight_shape = out_features, x.shape[-1]
        if weight is not None:
            check_weight(weight, weight_shape, "out_features", "x's features")
            if weight.kind != "parameter":
                raise GraphError("weight is not a parameter; use matmul with transpose_b", "weight")
        return self.affine("linear", {}, x, name, weight_shape, bias, out_features,
                           x.shape[:-1] + (out_features,), weight)

    def embedding(self, tokens, name, num_embeddings, embedding_dim, padding_idx=None, weight=None,
                  sparse=False):
        self.new_layer(name)
        weight_shape = num_embeddings, embedding_dim
        if weight is not None:
            check_weight(weight, weight_shape, "num_embeddings", "embedding_dim")
            if sparse and not weight.sparse:
                raise GraphError("sparse needs a table of its own, or that of another embedding with sparse; "
                                 "leave one of the two out", "sparse")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise GraphError("padding_idx is %d, but there are %d rows; use -%d to %d" % (
                padding_idx, num_embeddings, num_embeddings, num_embeddings - 1), "padding_idx")
        attrs = {"padding_idx": -1 if padding_idx is None else padding_idx % num_embeddings}
        table = self.weight(name, "weight", weight_shape, "normal") if weight is None else weight
        table.sparse = table.sparse or sparse
        return self.by_signature("embedding", attrs, (tokens, table), name)

    def affine(self, op, attrs, x, name, weight_shape, bias, out, shape, weight=None):
        """bias: whether to create one, or an existing one. out: its size."""
        fan_in, own_bias = measure(weight_shape[1:])[0], None if isinstance(bias, bool) else bias
        if own_bias is not None and (own_bias.kind != "parameter" or own_bias.shape != (out,)):
            raise GraphError("bias is %s, but must be a parameter [%d]" % (shape_text(own_bias.shape), out),
                             "bias")
        if weight is None:
            weight = self.weight(name, "weight", weight_shape, "kaiming_uniform", fan_in)
        offset = own_bias or (self.weight(name, "bias", (out,), "kaiming_uniform", fan_in) if bias else None)
        return self.node(op, attrs, (x, weight, offset), shape, layer=name)

    def conv(self, op, x, name, out_channels, kernel_size, stride, padding, dilation, groups, bias,
             output_padding=0, weight=None):
        axes, transposed = int(op[-2]), op.startswith("conv_transpose")
        self.begin_layer(x, name)
        check_axes(x, axes)
        kernel, stride, padding, dilation = (window(value, axes)
                                             for value in (kernel_size, stride, padding, dilation))
        if x.shape[1] % groups or out_channels % groups:
            raise GraphError(
                "groups is %d, but the input has %d channels and out_channels is %d; it must divide both" % (
                    groups, x.shape[1], out_channels), "groups")
        if transposed:
            sizes = self.transposed_sizes(x, kernel, stride, padding, dilation, window(output_padding, axes))
        else:
            sizes = self.window_sizes(x, kernel, stride, padding, dilation, False)
        channels = ((x.shape[1], out_channels // groups) if transposed else
                    (out_channels, x.shape[1] // groups))
        attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        if weight is not None:
            check_f32(weight)
            if weight.shape != channels + kernel:
                raise GraphError("weight is %s, but %s is needed" %
                                 (shape_text(weight.shape), shape_text(channels + kernel)), "weight")
        return self.affine(op, attrs, x, name, channels + kernel, bias, out_channels,
                           (x.shape[0], out_channels) + sizes, weight)

    def quantized_conv2d(self, x, weight, weight_scale, bias, stride, padding, dilation, groups, x_scale,
                         x_zero_point, scale, zero_point, quant_min, quant_max):
        check_f32(weight, weight_scale, bias)
        check_axes(x, 2)
        if len(weight.shape) != 4 or not all(0 < size <= MAX_INT for size in weight.shape):
            raise GraphError("weight is %s, but [out, in / groups, kh, kw] is needed" %
                             shape_text(weight.shape), "inputs")
        check_bytes("x", x)
        out, kernel = weight.shape[0], weight.shape[2:]
        if out % groups:
            raise GraphError("groups is %d, but the weight has %d output channels; it must divide them" % (
                groups, out), "groups")
        for name, t in ("weight_scale", weight_scale), ("bias", bias):
            if t.shape != (out,):
                raise GraphError("%s is %s, but [%d] is needed" % (name, shape_text(t.shape), out), "inputs")
        check_fixed(x, [1, 2, 3])
        stride, padding, dilation = (window(value, 2) for value in (stride, padding, dilation))
        sizes = self.window_sizes(x, kernel, stride, padding, dilation, False)
        if x.shape[1] != weight.shape[1] * groups:
            raise GraphError("x is %s, but the weight %s needs %d along axis 1" % (
                shape_text(x.shape), shape_text(weight.shape), weight.shape[1] * groups), "inputs")
        attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups,
                 "x_scale": f32(x_scale), "x_zero_point": x_zero_point, "scale": f32(scale),
                 "zero_point": zero_point, "quant_min": quant_min, "quant_max": quant_max}
        return self.node("quantized_conv2d", attrs, (x, weight, weight_scale, bias),
                         (x.shape[0], out) + sizes, "u8")

    conv1d = partialmethod(conv, "conv1d")
    conv2d = partialmethod(conv, "conv2d")
    conv3d = partialmethod(conv, "conv3d")
    conv_transpose1d = partialmethod(conv, "conv_transpose1d")
    conv_transpose2d = partialmethod(conv, "conv_transpose2d")
    conv_transpose3d = partialmethod(conv, "conv_transpose3d")

    @staticmethod
    def transposed_sizes(x, kernel, stride, padding, dilation, output_padding):
        sizes = []
        for i, size in enumerate(x.shape[2:]):
            if output_padding[i] >= stride[i] and output_padding[i] >= dilation[i]:
                raise GraphError("output_padding is %d along axis %d; it must be less than the stride, %d, "
                                 "or the dilation, %d" % (output_padding[i], 2 + i, stride[i], dilation[i]),
                                 "output_padding")
            sizes.append((size - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1 - 2 * padding[i] +
                         output_padding[i])
            if sizes[i] < 1 and not varies(sizes[i]):
                raise GraphError("the padding, %d, leaves nothing along axis %d; use a smaller padding" %
                                 (padding[i], 2 + i), "padding")
        return tuple(sizes)

    @staticmethod
    def window_sizes(x, kernel, stride, padding, dilation, ceil_mode):
        sizes = tuple(windows(x.shape[2 + i], kernel[i], stride[i], padding[i], dilation[i], ceil_mode)
                      for i in range(len(kernel)))
        for i, size in enumerate(sizes):
            if varies(x.shape[2 + i]) and not size:
                raise GraphError("the number of windows along axis %d of x %s cannot be computed from its "
                                 "varying size; with ceil_mode the kernel must span the stride and the "
                                 "padding" % (2 + i, shape_text(x.shape)), "ceil_mode")
            if size < 1 and not varies(size):
                raise GraphError("the window spans %d along axis %d, but the padded input %s only %d; use a "
                                 "smaller kernel or more padding" %
                                 (dilation[i] * (kernel[i] - 1) + 1, 2 + i, shape_text(x.shape),
                                  x.shape[2 + i] + 2 * padding[i]), "kernel_size")
        return sizes

    def pool_result(self, op, attrs, x, sizes):
        """The node of a pool. A row is an image of height 1."""
        shape = x.shape[:2] + sizes
        if len(x.shape) > 3:
            return self.node(op, attrs, (x,), shape, x.dtype)
        other = {"kernel_size": 1, "stride": 1, "padding": 0}
        attrs = {key: (other[key],) + value if key in other else value for key, value in attrs.items()}
        y = self.node("reshape", {}, (x,), x.shape[:2] + (1,) + x.shape[2:])
        y = self.node(op.replace("1d", "2d"), attrs, (y,), x.shape[:2] + (1,) + sizes)
        return self.node("reshape", {}, (y,), shape)

    def pool(self, op, x, kernel_size, stride, padding, ceil_mode, **rest):
        if (op, x.dtype) != ("max_pool2d", "u8"):
            check_f32(x)
        axes = int(op[-2])
        check_axes(x, axes)
        kernel = window(kernel_size, axes)
        stride, padding = kernel if stride is None else window(stride, axes), window(padding, axes)
        for i in range(axes):
            if padding[i] > kernel[i] // 2:
                raise GraphError("padding is %d, more than half of the kernel's %d; use a smaller padding" % (
                    padding[i], kernel[i]), "padding")
        attrs = {"kernel_size": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}
        attrs.update(rest)
        return self.pool_result(op, attrs, x,
                                self.window_sizes(x, kernel, stride, padding, (1,) * axes, ceil_mode))

    def max_pool1d(self, x, kernel_size, padding, ceil_mode, stride=None):
        return self.pool("max_pool1d", x, kernel_size, stride, padding, ceil_mode)

    def max_pool2d(self, x, kernel_size, padding, ceil_mode, stride=None):
        return self.pool("max_pool2d", x, kernel_size, stride, padding, ceil_mode)

    def max_pool3d(self, x, kernel_size, padding, ceil_mode, stride=None):
        return self.pool("max_pool3d", x, kernel_size, stride, padding, ceil_mode)

    def avg_pool1d(self, x, kernel_size, padding, ceil_mode, count_include_pad, stride=None):
        return self.pool("avg_pool1d", x, kernel_size, stride, padding, ceil_mode,
                         count_include_pad=count_include_pad)

    def avg_pool2d(self, x, kernel_size, padding, ceil_mode, count_include_pad, stride=None):
        return self.pool("avg_pool2d", x, kernel_size, stride, padding, ceil_mode,
                         count_include_pad=count_include_pad)

    def avg_pool3d(self, x, kernel_size, padding, ceil_mode, count_include_pad, stride=None):
        return self.pool("avg_pool3d", x, kernel_size, stride, padding, ceil_mode,
                         count_include_pad=count_include_pad)

    def adaptive_pool(self, op, x, output_size):
        check_f32(x)
        axes = int(op[-2])
        check_axes(x, axes)
        return self.pool_result(op, {}, x, window(output_size, axes))

    def adaptive_max_pool1d(self, x, output_size):
        return self.adaptive_pool("adaptive_max_pool1d", x, output_size)

    def adaptive_max_pool2d(self, x, output_size):
        return self.adaptive_pool("adaptive_max_pool2d", x, output_size)

    def adaptive_max_pool3d(self, x, output_size):
        return self.adaptive_pool("adaptive_max_pool3d", x, output_size)

    def adaptive_avg_pool1d(self, x, output_size):
        return self.adaptive_pool("adaptive_avg_pool1d", x, output_size)

    def adaptive_avg_pool2d(self, x, output_size):
        return self.adaptive_pool("adaptive_avg_pool2d", x, output_size)

    def adaptive_avg_pool3d(self, x, output_size):
        return self.adaptive_pool("adaptive_avg_pool3d", x, output_size)

    @staticmethod
    def resize_ratio(size, result, align_corners, scale):
        """PyTorch's factor from outputs to cells of x along an axis. scale is None if the caller gives none.
        Returns 0 if it is known only at run time."""
        if any_varies((size, result)):
            return f32(1 / scale) if scale and not align_corners else 0.0
        if align_corners:
            return f32(f32(size - 1) / f32(result - 1)) if result > 1 else 0.0
        return f32(1 / scale) if scale else f32(f32(size) / f32(result))

    @staticmethod
    def scaled_size(size, scale):
        """floor(size * scale). For a varying size this needs a scale with a divisor up to 64; else the result
        is 0."""
        if not varies(size):
            return math.floor(size * float(scale))
        divisor = next((divisor for divisor in range(1, 64) if float(scale * divisor).is_integer()), 64)
        factor = float(scale) * divisor
        return size * int(factor) // divisor if factor.is_integer() and factor <= 1e9 else 0

    def interpolate(self, x, mode, align_corners, size=None, scale_factor=None):
        check_f32(x)
        check_rank(x, 3, 5, "[n, channels, length], [n, channels, height, width] or [n, channels, depth, "
                   "height, width]")
        check_image(x)
        axes = len(x.shape) - 2
        if align_corners and mode not in ("linear", "cubic"):
            raise GraphError("align_corners is used by the modes linear and cubic alone; leave it out",
                             "align_corners")
        if mode == "cubic" and axes != 2:
            raise GraphError("x is %s, but mode cubic needs [n, channels, height, width]; reshape it" %
                             shape_text(x.shape), "mode")
        if size is None and scale_factor is None:
            raise GraphError("neither size nor scale_factor is given", "inputs")
        given = {key: (None,) * axes if value is None else window(value, axes)
                 for key, value in (("size", size), ("scale_factor", scale_factor))}
        if None in [new or scale or None for new, scale in zip(*given.values())]:
            raise GraphError("neither size nor a scale_factor that is not 0 tells an axis", "scale_factor")
        for key, values in given.items():
            if len(values) != axes:
                raise GraphError("%s lists %d, but x has %d spatial axes" % (key, len(values), axes), key)
        sizes = []
        for old, new, scale in zip(x.shape[2:], given["size"], given["scale_factor"]):
            sizes.append(self.dim(new, "size") if new else self.scaled_size(old, scale))
            if not (1 <= sizes[-1] <= MAX_INT or varies(sizes[-1])):
                raise GraphError("scale_factor %g makes %d of %d; use another" % (scale, sizes[-1], old),
                                 "scale_factor")
        if mode == "area":
            return self.pool_result("adaptive_avg_pool%dd" % axes, {}, x, tuple(sizes))
        ratios = tuple(self.resize_ratio(old, new, align_corners, scale)
                       for old, new, scale in zip(x.shape[2:], sizes, given["scale_factor"]))
        attrs = {"mode": mode, "align_corners": align_corners, "ratio": ratios}
        return self.node("interpolate", attrs, (x,), x.shape[:2] + tuple(sizes))

    def local_response_norm(self, x, size, alpha, beta, k):
        check_f32(x)
        check_rank(x, 3, MAX_RANK, "[n, channels, ...]")
        check_fixed(x, range(1, len(x.shape)))
        numbers = {"k": setting(f32(k)), "alpha": setting(f32(alpha)), "power": -setting(f32(beta))}
        squares = self.reshape(self.apply("square", (x,)),
                               (x.shape[0], 1, x.shape[1], math.prod(x.shape[2:])))
        squares = self.pad(squares, (0, 0, size // 2), (0, 0, (size - 1) // 2), "constant", 0)
        means = self.reshape(self.avg_pool2d(squares, (size, 1), (0, 0), False, True, stride=(1, 1)), x.shape)
        return self.expr(x, means, expression=table.texts()["LOCAL_RESPONSE"], consts=numbers)

    def grid_sample(self, x, grid, mode, padding_mode, align_corners):
        check_f32(x, grid)
        check_rank(x, 4, 5, "[n, channels, height, width] or [n, channels, depth, height, width]")
        rank = len(x.shape)
        check_fixed(x, range(1, rank))
        if len(grid.shape) != rank or grid.shape[0] != x.shape[0] or grid.shape[-1] != rank - 2:
            raise GraphError("x is %s and grid %s; the grid of %s must have as many samples, [n, %s%d]" % (
                shape_text(x.shape), shape_text(grid.shape), "images" if rank == 4 else "volumes",
                "out_h, out_w, " if rank == 4 else "out_d, out_h, out_w, ", rank - 2), "inputs")
        if measure(x.shape[2:])[0] > 1 << 30:
            raise GraphError("a channel of x %s has more than 2^30 cells; use smaller sizes" %
                             shape_text(x.shape), "inputs")
        attrs = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
        return self.node("grid_sample", attrs, (x, grid), x.shape[:2] + grid.shape[1:-1])

    def roi_align(self, x, boxes, output_size, spatial_scale, sampling_ratio, aligned):
        check_f32(x, boxes)
        check_axes(x, 2)
        if len(boxes.shape) != 2 or boxes.shape[1] != 5:
            raise GraphError(
                "boxes is %s, but [k, 5] is needed: for each box the sample's number, x1, y1, x2 and y2" % (
                    shape_text(boxes.shape)), "inputs")
        if measure(x.shape[2:])[0] > 1 << 30:
            raise GraphError("a channel of x %s has more than 2^30 cells; use smaller sizes" %
                             shape_text(x.shape), "inputs")
        attrs = {"spatial_scale": setting(f32(spatial_scale)), "sampling_ratio": sampling_ratio,
                 "aligned": aligned}
        return self.node("roi_align", attrs, (x, boxes),
                         (boxes.shape[0], x.shape[1]) + window(output_size, 2))

    def affine_grid(self, theta, size, align_corners):
        check_f32(theta)
        size, rank = tuple(size), len(size)
        if rank not in (2, 3) or 0 in size or len(theta.shape) != 3 or theta.shape[1:] != (rank, rank + 1):
            raise GraphError(
                "theta is %s and size is %s; use [n, 2, 3] with two sizes, or [n, 3, 4] with three" % (
                    shape_text(theta.shape), shape_text(size)), "size")
        return self.node("affine_grid", {"align_corners": align_corners}, (theta,),
                         theta.shape[:1] + size + (rank,))

    def statistics_norm(self, op, x, name, eps, momentum, affine):
        """A norm with running statistics."""
        attrs = {"eps": f32(eps), "momentum": setting(f32(momentum))}
        channels = x.shape[1:2]
        weight = self.weight(name, "weight", channels, "constant", 1.0) if affine else None
        bias = self.weight(name, "bias", channels, "constant") if affine else None
        mean = self.weight(name, "running_mean", channels, "constant", kind="buffer")
        var = self.weight(name, "running_var", channels, "constant", 1.0, kind="buffer")
        return self.node(op, attrs, (x, weight, bias, mean, var), x.shape, layer=name)

    def batch_norm(self, x, name, eps, momentum, affine, sync, tracks, ranks, layout):
        check_f32(x)
        check_rank(x, ranks[0], ranks[1], layout)
        check_fixed(x, [1])
        if not tracks:
            if sync:
                raise GraphError("sync needs running statistics; leave out sync or track_running_stats",
                                 "sync")
            return self.norm_of_batch(x, name, eps, affine)
        self.begin_layer(x, name)
        t = self.statistics_norm("batch_norm", x, name, eps, momentum, affine)
        t.sync = sync
        return t

    def norm_of_batch(self, x, name, eps, affine):
        """batch_norm without running statistics. It reshapes [n, c, ...] to one sample [1, c, n ...], and
        back."""
        swap = (1, 0) + tuple(range(2, len(x.shape)))
        turned = self.permute(x, swap)
        y = self.flatten(turned)
        y = self.group_norm(self.reshape(y, (1,) + y.shape), name, x.shape[1], eps, affine)
        return self.permute(self.reshape(y, turned.shape), swap)

    def batch_norm1d(self, x, name, eps, momentum, affine, sync, track_running_stats):
        return self.batch_norm(x, name, eps, momentum, affine, sync, track_running_stats, (2, 3),
                               "[n, channels] or [n, channels, length]")

    def batch_norm2d(self, x, name, eps, momentum, affine, sync, track_running_stats):
        return self.batch_norm(x, name, eps, momentum, affine, sync, track_running_stats, (4, 4),
                               "[n, channels, height, width]")

    def batch_norm3d(self, x, name, eps, momentum, affine, sync, track_running_stats):
        return self.batch_norm(x, name, eps, momentum, affine, sync, track_running_stats, (5, 5),
                               "[n, channels, depth, height, width]")

    def group_norm(self, x, name, num_groups, eps, affine):
        self.begin_layer(x, name)
        check_rank(x, 2, MAX_RANK, "[n, channels, ...]")
        check_fixed(x, [1])
        # or a size that varies, or the batch
        check_fixed(x, [axis for axis in range(2, len(x.shape)) if x.shape[axis] >= 0])
        channels = x.shape[1:2]
        if channels[0] % num_groups:
            raise GraphError("num_groups is %d, but x %s has %d channels; it must divide them" % (
                num_groups, shape_text(x.shape), channels[0]), "num_groups")
        attrs = {"num_groups": num_groups, "eps": f32(eps)}
        weight = self.weight(name, "weight", channels, "constant", 1.0) if affine else None
        bias = self.weight(name, "bias", channels, "constant") if affine else None
        return self.node("group_norm", attrs, (x, weight, bias), x.shape, layer=name)

    def instance_norm(self, x, name, eps, affine, tracks, momentum, axes, layout):
        check_f32(x)
        check_rank(x, 2 + axes, 2 + axes, layout)
        if measure(x.shape[2:]) == (1, 0):
            raise GraphError("x is %s: one value per channel cannot be normalised; use larger images" %
                             shape_text(x.shape), "inputs")
        check_fixed(x, [1])
        if not tracks:
            return self.group_norm(x, name, x.shape[1], eps, affine)
        self.begin_layer(x, name)
        return self.statistics_norm("instance_norm", x, name, eps, momentum, affine)

    def instance_norm1d(self, x, name, eps, affine, track_running_stats, momentum):
        return self.instance_norm(x, name, eps, affine, track_running_stats, momentum, 1,
                                  "[n, channels, length]")

    def instance_norm2d(self, x, name, eps, affine, track_running_stats, momentum):
        return self.instance_norm(x, name, eps, affine, track_running_stats, momentum, 2,
                                  "[n, channels, height, width]")

    def instance_norm3d(self, x, name, eps, affine, track_running_stats, momentum):
        return self.instance_norm(x, name, eps, affine, track_running_stats, momentum, 3,
                                  "[n, channels, depth, height, width]")

    def last_axes_norm(self, op, x, name, dims, eps, weight, bias):
        self.begin_layer(x, name)
        if dims > len(x.shape):
            raise GraphError("dims is %d, but x is %s; use a number from 1 to its rank, %d" % (
                dims, shape_text(x.shape), len(x.shape)), "dims")
        first = len(x.shape) - dims
        check_fixed(x, range(first, len(x.shape)))
        attrs = {"dims": dims, "eps": f32(eps)}
        scale = self.weight(name, "weight", x.shape[first:], "constant", 1.0) if weight else None
        shift = self.weight(name, "bias", x.shape[first:], "constant") if bias else None
        return self.node(op, attrs, (x, scale, shift), x.shape, layer=name)

    def layer_norm(self, x, name, dims, eps, elementwise_affine, bias):
        return self.last_axes_norm("layer_norm", x, name, dims, eps, elementwise_affine,
                                   elementwise_affine and bias)

    def rms_norm(self, x, name, dims, eps, elementwise_affine):
        return self.last_axes_norm("rms_norm", x, name, dims, eps, elementwise_affine, False)

    # ---- recurrent layers ----
    def is_weight(self, t, steps):
        """Whether t is a parameter, or computed from parameters alone in at most so many steps."""
        if t.kind != "value" or not steps or t.op in ("rand_like", "randn_like"):
            return t.kind == "parameter"
        operands = [self.tensors[i] for i in t.inputs if i is not None and self.tensors[i].kind != "constant"]
        return bool(operands) and all(self.is_weight(operand, steps - 1) for operand in operands)

    def recurrent(self, op, gates, attrs, x, weights, lengths=None, reset=None, h_0=None, c_0=None):
        """One layer, whose parameters are appended before it: for each direction weight_ih, weight_hh and,
        with bias, bias_ih and bias_hh. `layer` is only used in a program's messages, not here."""
        check_f32(x)
        check_rank(x, 3, 3, "[length, n, features]")
        check_fixed(x, [axis for axis in (0, 2) if axis or not varies(x.shape[0])])
        directions = 2 if attrs["bidirectional"] else 1
        parts = len(weights) // directions
        if len(weights) not in (2 * directions, 4 * directions) or len(weights[1].shape) != 2:
            raise GraphError("the weights must be weight_ih and weight_hh [.., hidden_size], with both or "
                             "none of bias_ih and bias_hh for each direction", "weights")
        if any(not self.is_weight(t, 16) for t in weights):
            raise GraphError("one of the weights is not a parameter", "weights")
        if lengths is not None and lengths.dtype not in ("i64", "i32"):
            raise GraphError("lengths is %s; use i64 or i32" % lengths.dtype, "lengths")
        if reset is not None and attrs["bidirectional"]:
            raise GraphError("reset of steps is not used with bidirectional; leave it out", "reset")
        n, hidden = x.shape[1], weights[1].shape[1]
        rows, state = gates * hidden, (directions, n, hidden)
        wanted = [(lengths, (n,), "lengths", "lengths"), (h_0, state, "h_0", "h_0"),
                  (reset, x.shape[:2], "reset", "reset"), (c_0, state, "c_0", "c_0")]
        shapes = (rows, x.shape[2]), (rows, hidden), (rows,), (rows,)
        names = "weight_ih", "weight_hh", "bias_ih", "bias_hh"
        wanted += [(t, shapes[i % parts], names[i % parts], "weights") for i, t in enumerate(weights)]
        for t, shape, name, key in wanted:
            if t is not None and t.shape != shape:
                raise GraphError("%s is %s, but %s is needed" %
                                 (name, shape_text(t.shape), shape_text(shape)), key)
        check_f32(*(t for t in (h_0, c_0, reset) if t is not None))
        operands = [x, lengths, h_0, c_0, reset]
        for first in range(0, len(weights), parts):
            operands += (list(weights[first:first + parts]) + [None, None])[:4]
        states = (2 if op == "lstm" else 1) if attrs["states"] else 0
        return self.node(op, attrs, operands, (x.shape[0] + states, n, directions * hidden))

    def rnn(self, x, weights, relu, bidirectional, states, lengths=None, reset=None, h_0=None, layer=None):
        return self.recurrent("rnn", 1, {"relu": relu, "bidirectional": bidirectional, "states": states}, x,
                              weights, lengths, reset, h_0)

    def lstm(self, x, weights, bidirectional, states, lengths=None, reset=None, h_0=None, c_0=None,
             layer=None):
        return self.recurrent("lstm", 4, {"bidirectional": bidirectional, "states": states}, x, weights,
                              lengths, reset, h_0, c_0)

    def gru(self, x, weights, bidirectional, states, lengths=None, reset=None, h_0=None, layer=None):
        return self.recurrent("gru", 3, {"bidirectional": bidirectional, "states": states}, x, weights,
                              lengths, reset, h_0)

    def dropout(self, x, p):
        return self.by_signature("dropout", {"p": setting(f32(p))}, (x,))

    def rand_like(self, x):
        return self.by_signature("rand_like", {}, (x,))

    def randn_like(self, x):
        return self.by_signature("randn_like", {}, (x,))

    def mode(self):
        """1 in evaluation, 0 or 2 in training: dropout of 1."""
        return self.dropout(self.constant((), (1.0,)), 0.5)

    def rrelu(self, x, lower, upper):
        check_f32(x)
        bounds = {"lower": setting(f32(lower)), "upper": setting(f32(upper))}
        if bounds["lower"] > bounds["upper"]:
            raise GraphError("the slopes go from %g to %g; use two numbers, the smaller one first" %
                             tuple(bounds.values()), "lower")
        return self.expr({"x": x, "random": self.rand_like(x), "mode": self.mode()},
                         expression=table.texts()["RRELU"], consts=bounds)

    def prelu(self, x, name, num_parameters, init):
        self.begin_layer(x, name)
        rank = len(x.shape)
        if num_parameters != 1 and (rank < 2 or x.shape[1] != num_parameters):
            raise GraphError("num_parameters is %d, but must be 1 or the channels of axis 1 (input %s)" % (
                num_parameters, shape_text(x.shape)), "num_parameters")
        weight = self.weight(name, "weight", (num_parameters,), "constant", setting(f32(init)))
        if num_parameters > 1 and rank > 2:  # [channels, 1, ...]: broadcasts along axis 1
            weight = self.reshape(weight, (num_parameters,) + (1,) * (rank - 2))
        y = self.apply("parametric_relu", (x, weight))
        y.layer = name
        return y

    # ---- shapes ----
    def reshape(self, x, shape):
        shape = self.shape_of(shape)
        varying = any_varies(shape + tuple(x.shape))
        if product(shape) != product(x.shape) if varying else measure(shape) != measure(x.shape):
            raise GraphError("%s does not hold as many elements as %s; \"N\" is the size of the batch, not "
                             "an inferred size" % (
                                 shape_text(shape), shape_text(x.shape)), "shape")
        return self.node("reshape", {}, (x,), shape, x.dtype)

    def flatten(self, x):
        check_rank(x, 2, MAX_RANK, "[n, ...]")
        joined = self.joined(x.shape[1:])
        if joined is None:
            raise GraphError("the axes after the first hold the batch more than once (x %s); use reshape" %
                             shape_text(x.shape), "inputs")
        return self.node("reshape", {}, (x,), (x.shape[0], joined), x.dtype)

    @staticmethod
    def joined(dims):
        """The product of several dimensions as one. None: the batch is in it twice."""
        if any_varies(dims):
            return dim_product(dims)
        factor, power = measure(dims)
        return None if power > 1 else -factor if power else factor

    def permute(self, x, dims):
        order = axis_list(x, dims)
        if len(order) != len(x.shape):
            raise GraphError("%d axes are listed for %s; list each of its %d axes" % (
                len(order), shape_text(x.shape), len(x.shape)), "dims")
        return self.node("permute", {"dims": tuple(order)}, (x,), [x.shape[axis] for axis in order], x.dtype)

    def concat(self, *tensors, dim):
        first = tensors[0].shape
        axis = axis_of(tensors[0], dim)
        for i, t in enumerate(tensors):
            fits = len(t.shape) == len(first) and all(
                any_varies((a, b)) or (a < 0) == (b < 0) if j == axis else a == b
                for j, (a, b) in enumerate(zip(t.shape, first)))
            if not fits:
                raise GraphError("the first of the inputs is %s and number %d %s; they may differ only along "
                                 "axis %d, where all or none must be the batch" %
                                 (shape_text(first), i + 1, shape_text(t.shape), axis), "inputs")
            if t.dtype != tensors[0].dtype:
                raise GraphError("the first of the inputs is %s and number %d %s; cast one of them" % (
                    tensors[0].dtype, i + 1, t.dtype), "inputs")
        shape = list(first)
        along = [t.shape[axis] for t in tensors]
        shape[axis] = dim_total(along) if any_varies(along) else sum(along)
        return self.node("concat", {"dim": axis}, tensors, shape, tensors[0].dtype)

    def slice(self, x, dim, start, step, end=None):
        axis = axis_of(x, dim)
        size = x.shape[axis]
        if size < 0 and not varies(size):
            raise GraphError("axis %d of %s is the batch, which cannot be cut; choose another axis" % (
                axis, shape_text(x.shape)), "dim")
        first = slice_index(self.dim(start, "start"), size)
        last = size if end is None else slice_index(self.dim(end, "end"), size)
        if last <= first and not any_varies((first, last)):
            raise GraphError("%d:%s along axis %d of %s is empty; at least one element must be left" % (
                start, "" if end is None else end, axis, shape_text(x.shape)), "start")
        shape = list(x.shape)
        shape[axis] = (last - first - 1) // step + 1
        return self.node("slice", {"dim": axis, "start": first, "step": step}, (x,), shape, x.dtype)

    def pad(self, x, before, after, mode, value):
        rank = len(x.shape)
        if mode != "constant" and x.dtype != "f32":
            raise GraphError("x is %s, which mode %s does not pad; cast it to f32" % (x.dtype, mode), "mode")
        if mode != "constant" and value:
            raise GraphError("a value is not used by mode %s; leave it out" % mode, "value")
        shape, amounts = [], []
        for key, given in (("before", before), ("after", after)):
            if len(given) > rank and any(given[rank:]):
                raise GraphError("axis %d of %s does not exist; leave its padding out" %
                                 (rank, shape_text(x.shape)), key)
            amounts.append((tuple(given) + (0,) * rank)[:rank])
            for axis, amount in enumerate(amounts[-1]):
                if varies(x.shape[axis]):
                    continue
                if amount and x.shape[axis] < 0:
                    raise GraphError("axis %d of %s is the batch; leave its padding at 0" %
                                     (axis, shape_text(x.shape)), key)
                most = x.shape[axis] - (mode == "reflect")
                if amount and amount > most and mode in ("reflect", "circular"):
                    raise GraphError(
                        "%d %s axis %d of %s, but mode %s has only %d elements for it; use less" % (
                            amount, key, axis, shape_text(x.shape), mode, most), key)
        shape = [size + low + high for size, low, high in zip(x.shape, *amounts)]
        return self.node("pad", {"before": amounts[0], "mode": mode, "value": setting(f32(value))}, (x,),
                         shape, x.dtype)

    def expand(self, x, shape):
        shape = self.shape_of(shape)
        first = len(shape) - len(x.shape)
        if first < 0 or any(size not in (1, wanted) for size, wanted in zip(x.shape, shape[first:])):
            raise GraphError("%s does not expand to %s; only axes of size 1 and new leading axes expand" % (
                shape_text(x.shape), shape_text(shape)), "shape")
        return x if x.shape == shape else self.node("expand", {}, (x,), shape, x.dtype)

    def tile(self, x, repeats):
        rank = max(len(repeats), len(x.shape))
        one, many, shape = [], [], []
        for size, times in zip((1,) * (rank - len(x.shape)) + x.shape,
                               (1,) * (rank - len(repeats)) + tuple(repeats)):
            one += [1, size] if times > 1 else [size]
            many += [times, size] if times > 1 else [size]
            shape.append(size * times)
        if len(one) > MAX_RANK:
            raise GraphError("with one more axis for each repeated one, x would have %d axes; %d are "
                             "possible" % (len(one), MAX_RANK), "repeats")
        return self.reshape(self.expand(self.reshape(x, one), many), shape)

    def stack(self, *tensors, dim):
        first, rank = tensors[0].shape, len(tensors[0].shape) + 1
        if rank > MAX_RANK or not -rank <= dim < rank:
            raise GraphError("axis %d is not an axis of the result; tensors of shape %s give %d axes, of "
                             "which at most %d are possible" % (
                                 dim, shape_text(first), rank, MAX_RANK), "dim")
        axis, parts = dim % rank, []
        for i, t in enumerate(tensors):
            if t.shape != first:
                raise GraphError("the first of the inputs is %s and number %d %s; all must have one shape" % (
                    shape_text(first), i + 1, shape_text(t.shape)), "inputs")
            parts.append(self.reshape(t, t.shape[:axis] + (1,) + t.shape[axis:]))
        return self.concat(*parts, dim=axis)

    def one_hot(self, index, num_classes):
        if index.dtype not in CLASS_DTYPES:
            raise GraphError("index is %s, but class numbers are needed; use i64, i32 or u8" % index.dtype,
                             "inputs")
        if num_classes > 1 << 24 or len(index.shape) == MAX_RANK:
            raise GraphError(
                "classes is %d and index is %s; use 1 to 2^24 classes, and at most %d axes in the result" % (
                    num_classes, shape_text(index.shape), MAX_RANK), "num_classes")
        x = self.reshape(self.cast(index, "f32"), index.shape + (1,))
        return self.apply("eq", (x, self.constant((num_classes,), range(num_classes))))

    def encode(self, x, scale, shift, ops):
        """f(x scale[i] + shift[i]) for all i, concatenated along the last axis. f: elementwise ops, the
        innermost first."""
        check_f32(x)
        rank, width = len(x.shape), len(scale)
        if rank in (0, MAX_RANK):
            raise GraphError("x is %s, but 1 to %d axes are needed" % (shape_text(x.shape), MAX_RANK - 1),
                             "inputs")
        y = self.apply("mul", (self.reshape(x, x.shape + (1,)), self.constant((width,), scale)))
        y = self.apply("add", (y, self.constant((width,), shift)))
        for op in ops:
            y = self.apply(op, (y,))
        return self.reshape(y, x.shape[:-1] + (x.shape[-1] * width,))

    def frequency_encoding(self, x, num_frequencies):
        check_count(num_frequencies, 32, "num_frequencies")
        scale = [f32(math.pi) * 2 ** (i // 2) for i in range(2 * num_frequencies)]
        return self.encode(x, scale, [i % 2 * math.pi / 2 for i in range(2 * num_frequencies)], ("sin",))

    def one_blob_encoding(self, x, num_bins):
        check_count(num_bins, 256, "num_bins")
        root_half = f32(math.sqrt(0.5))
        return self.encode(x, [root_half * num_bins] * num_bins,
                           [-root_half * (i + 0.5) for i in range(num_bins)], ("square", "neg", "exp"))

    def hash_grid_encoding(self, x, name, n_levels, n_features_per_level, log2_hashmap_size, base_resolution,
                           per_level_scale, sparse=False):
        self.new_layer(name)
        check_f32(x)
        if x.shape[-1:] not in ((2,), (3,)):
            raise GraphError("x is %s, but its last axis must be 2 or 3 coordinates" % shape_text(x.shape),
                             "inputs")
        if (n_levels > 32 or n_features_per_level > 8 or not 4 <= log2_hashmap_size <= 28 or
            per_level_scale < 1):
            raise GraphError("n_levels is %d, n_features_per_level %d, log2_hashmap_size %d and "
                             "per_level_scale %g; give 1 to 32, 1 to 8, 4 to 28, and 1 or more" %
                             (n_levels, n_features_per_level, log2_hashmap_size, per_level_scale), "n_levels")
        attrs = {"n_levels": n_levels, "log2_hashmap_size": log2_hashmap_size,
                 "base_resolution": base_resolution, "per_level_scale": f32(per_level_scale)}
        levels = hash_levels(attrs, x.shape[-1])
        if len(levels) < n_levels:
            raise GraphError("%d levels that begin with %d cells and grow by %g each would exceed 2^31 "
                             "cells; use fewer levels or a smaller scale" % (
                                 n_levels, base_resolution, per_level_scale), "n_levels")
        rows = sum(level[2] for level in levels)
        table = self.weight(name, "weight", (rows, n_features_per_level), "uniform")
        table.init = table.default_init = ("uniform", f32(-1e-4), f32(1e-4))
        table.sparse = sparse
        return self.node("hash_grid_encoding", attrs, (x, table),
                         x.shape[:-1] + (n_levels * n_features_per_level,), layer=name)

    def spherical_harmonics_encoding(self, x, degree):
        check_count(degree, 4, "degree")
        check_f32(x)
        if x.shape[-1:] != (3,):
            raise GraphError("x is %s, but its last axis must be x, y and z" % shape_text(x.shape), "inputs")
        coordinates, y = [self.slice(x, -1, i, 1, i + 1) for i in range(3)], None
        harmonics = table.harmonics()[:degree ** 2]
        for form in range(max(degree - 1, 1)):
            factor = None
            for k in range(4):
                t = self.constant((degree ** 2,), [forms[form][k] for forms in harmonics])
                t = self.apply("mul", (coordinates[k], t)) if k < 3 else t
                factor = self.apply("add", (factor, t)) if factor else t
            y = self.apply("mul", (y, factor)) if y else factor
        return y

    def gather(self, x, index, dim):
        check_indices(index, "index")
        axis = axis_of(x, dim)
        fits = len(index.shape) == len(x.shape) and all(
            i == axis or size == whole or 0 < size < whole
            for i, (size, whole) in enumerate(zip(index.shape, x.shape)))
        if not fits:
            raise GraphError("x is %s and index is %s; both need the same number of axes, and only axis %d "
                             "of index may be larger than x's" % (
                                 shape_text(x.shape), shape_text(index.shape), axis), "inputs")
        for i, size in enumerate(index.shape):
            if i != axis and size != x.shape[i]:
                x = self.slice(x, i, 0, 1, size)
        return self.node("gather", {"dim": axis}, (x, index), index.shape, x.dtype)

    def scatter(self, x, index, src, dim):
        return self.by_signature("scatter", {"dim": axis_of(x, dim)}, (x, index, src))

    def scatter_add(self, x, index, src, dim):
        return self.by_signature("scatter_add", {"dim": axis_of(x, dim)}, (x, index, src))

    def cast(self, x, dtype):
        if dtype == "f64":
            raise GraphError("a cast to f64 is not possible; use f32, i64, i32, u8 or bool", "dtype")
        return x if dtype == x.dtype else self.node("cast", {}, (x,), x.shape, dtype)

    # ---- reductions ----
    def reduce(self, op, attrs, x, dims, keepdim):
        if attrs.get("mean"):
            check_f32(x)
        axes = sorted(axis_list(x, dims)) or list(range(len(x.shape)))
        shape = [1 if axis in axes else size
                 for axis, size in enumerate(x.shape) if keepdim or axis not in axes]
        if not axes:  # a scalar is its own sum
            return self.node("reshape", {}, (x,), shape, x.dtype)
        dtype = "i64" if op == "sum" and x.dtype != "f32" else x.dtype
        return self.node(op, dict({"dims": tuple(axes)}, **attrs), (x,), shape, dtype)

    def sum(self, x, dims=(), keepdim=False):
        return self.reduce("sum", {"mean": False}, x, dims, keepdim)

    def mean(self, x, dims=(), keepdim=False):
        return self.reduce("sum", {"mean": True}, x, dims, keepdim)

    def max(self, x, dims=(), keepdim=False):
        return self.reduce("max", {}, x, dims, keepdim)

    def norm(self, x, p, dims, keepdim):
        """The p-norm along axes."""
        if p == 2:
            return self.apply("sqrt", (self.sum(self.apply("square", (x,)), dims, keepdim),))
        size = self.apply("abs", (x,))
        if p == 1 or p > 3e38:
            return (self.sum if p == 1 else self.max)(size, dims, keepdim)
        total = self.sum(self.apply("pow_scalar", (size,), (f32(p),)), dims, keepdim)
        return self.apply("pow_scalar", (total,), (f32(1 / p),))

    def gradient_energy(self, x, dims=()):
        axes = sorted(axis_list(x, dims)) or range(len(x.shape))
        return self.by_signature("gradient_energy", {"dims": tuple(axes)}, (x,))

    def argmax(self, x, dim, keepdim=False):
        axis = axis_of(x, dim)
        if x.dtype != "f32":
            x = self.cast(self.apply("eq", (x, self.max(x, (dim,), True))), "f32")
        shape = [1 if i == axis else size for i, size in enumerate(x.shape) if keepdim or i != axis]
        return self.node("argmax", {"dim": axis}, (x,), shape, "i64")

    def argmin(self, x, dim, keepdim=False):
        axis_of(x, dim)
        return self.argmax(self.reversed(x), dim, keepdim)

    def topk_indices(self, x, k, dim, largest):
        """The indices of the k largest or smallest values."""
        check_f32(x)
        axis = axis_of(x, dim)
        size = x.shape[axis]
        if size < 0 and not varies(size):
            raise GraphError("axis %d of %s is the batch; choose another axis" % (axis, shape_text(x.shape)),
                             "dim")
        if size < k and not varies(size):
            raise GraphError("k is %d, but axis %d of %s has %d elements; use 1 to that number" %
                             (k, axis, shape_text(x.shape), size), "k")
        shape = x.shape[:axis] + (k,) + x.shape[axis + 1:]
        return self.node("topk_indices", {"dim": axis, "largest": largest}, (x,), shape, "i64")

    def sample(self, logits, draw, temperature, top_p):
        if len(logits.shape) == 2 and logits.shape[1] < 1 and not varies(logits.shape[1]):
            raise GraphError("logits is %s, but the classes must not be the batch; permute it" %
                             shape_text(logits.shape), "inputs")
        if top_p == 0:
            raise GraphError("top_p is 0; it must be above 0 and at most 1", "top_p")
        return self.by_signature("sample", {"temperature": f32(temperature), "top_p": f32(top_p)},
                                 (logits, draw))

    def cumsum(self, x, dim):
        if x.dtype != "f32":
            return self.running_sum(self.cast(x, "i64"), axis_of(x, dim))
        return self.by_signature("cumsum", {"dim": axis_of(x, dim)}, (x,))

    def running_sum(self, x, axis):
        """Cumulative sums of integers, by doubling: sums of 1, 2, 4, ... elements up to each."""
        size, step = x.shape[axis], 1
        if size < 0:
            raise GraphError("axis %d of %s varies between runs; choose another axis" %
                             (axis, shape_text(x.shape)), "dim")
        while step < size:
            ahead, first = self.slice(x, axis, 0, 1, size - step), self.slice(x, axis, 0, 1, step)
            later = self.slice(x, axis, step, 1, size)
            x = self.concat(first, self.apply("add", (later, ahead)), dim=axis)
            step *= 2
        return x

    def matmul(self, a, b, transpose_a, transpose_b):
        check_f32(a, b)
        if len(a.shape) < 2 or len(b.shape) < 2:
            raise GraphError("a is %s and b %s, but both need two axes or more; reshape them" % (
                shape_text(a.shape), shape_text(b.shape)), "inputs")
        m, k = a.shape[:-3:-1] if transpose_a else a.shape[-2:]
        b_k, n = b.shape[:-3:-1] if transpose_b else b.shape[-2:]
        if k != b_k:
            raise GraphError("a is %s%s and b %s%s: the sizes summed over, %s and %s, must be equal" % (
                shape_text(a.shape), " transposed" if transpose_a else "", shape_text(b.shape),
                " transposed" if transpose_b else "", dim_text(k), dim_text(b_k)), "inputs")
        shape = broadcast(a.shape[:-2], b.shape[:-2], "leading axes") + (m, n)
        return self.node("matmul", {"transpose_a": transpose_a, "transpose_b": transpose_b}, (a, b), shape)

    # ---- attention ----
    def scaled_dot_product_attention(self, *operands, is_causal, dropout_p, enable_gqa, heads_last,
                                     scale=None, mask=None, lengths=None):
        """operands: q, k, v; or one value [n, rows, 3, heads, e] for all."""
        check_f32(*operands)
        whole = len(operands) == 1
        if len(operands) == 2:
            raise GraphError("got 2 inputs; q, k and v are needed, or one value for all", "inputs")
        last = whole or heads_last
        head, row = (2, 1) if last else (1, 2)
        parts = []
        for name, t in zip("qkv", operands * 3 if whole else operands):
            if len(t.shape) != (5 if whole else 4) or (whole and t.shape[2] != 3):
                raise GraphError("%s is %s, but [n, %s, e] is needed, or [n, rows, 3, heads, e] for q, k and "
                                 "v in one; reshape it" % (
                                     name, shape_text(t.shape), "rows, heads" if last else "heads, rows"),
                                 "inputs")
            parts.append(t.shape[:2] + t.shape[3:] if whole else t.shape)
            if not all(1 <= parts[-1][axis] <= MAX_INT for axis in (head, 3)):
                raise GraphError("%s is %s: the number and the size of the heads must be fixed, and below "
                                 "2^31" % (name, shape_text(t.shape)), "inputs")
        q, k, v = parts
        if not q[0] == k[0] == v[0] or q[3] != k[3] or k[row] != v[row] or k[head] != v[head]:
            raise GraphError("q is %s, k %s and v %s: all need the same n, q and k the same head size, and k "
                             "and v the same rows and heads" % tuple(map(shape_text, parts)), "inputs")
        if q[head] != k[head] and (not enable_gqa or q[head] % k[head]):
            raise GraphError("q has %d heads, but k and v have %d; %s" % (
                q[head], k[head], "the heads of k and v must divide those of q" if enable_gqa else
                "set enable_gqa to share them"), "inputs")
        if mask is not None:
            scores = (q[0], q[head], q[row], k[row])
            if mask.dtype not in ("bool", "f32"):
                raise GraphError("mask is %s, but must be bool (true: takes part) or f32 (added to the "
                                 "scores); cast it" % mask.dtype, "mask")
            if broadcast(scores, mask.shape, "[n, heads, l, s] and mask") != scores:
                raise GraphError(
                    "mask %s is larger than [n, heads, l, s], here %s; it must broadcast to that" % (
                        shape_text(mask.shape), shape_text(scores)), "mask")
        if lengths is not None and lengths.dtype not in ("i64", "i32"):
            raise GraphError("lengths is %s; use i64 or i32" % lengths.dtype, "lengths")
        if lengths is not None and lengths.shape not in ((), (1,), (q[0],)):
            raise GraphError("lengths is %s; give one number, or one for each sample" %
                             shape_text(lengths.shape), "lengths")
        attrs = {"dropout_p": setting(f32(dropout_p)), "is_causal": is_causal,
                 "scale": setting(f32(1 / math.sqrt(q[3]) if scale is None else scale)),
                 "heads_last": heads_last and not whole}
        operands += (None,) * (3 - len(operands)) + (mask,) + (() if lengths is None else (lengths,))
        return self.node("scaled_dot_product_attention", attrs, operands, q[:3] + v[3:])

    # ---- layers of attention ----
    def check_new_layer(self, name):
        """Checks the name of a new layer that is made of others."""
        self.new_layer(name)
        self.layers.remove(name)

    def named_parameter(self, name, shape, bound=0.0):
        init = ("uniform", -bound, bound) if bound > 0 else ("constant", 0.0, 0.0)
        return self.parameter(name, shape, dict(zip(("kind", "a", "b"), init)))

    def mask_part(self, mask, key, shape, to):
        """A mask of torch.nn as F32: 1 for what takes part, else 0. Additive masks stay as they are."""
        if mask.dtype not in ("bool", "f32"):
            raise GraphError("%s is %s, but must be bool (true: ignored) or f32 (added); cast it" %
                             (key, mask.dtype), key)
        if mask.shape != shape:
            raise GraphError("%s is %s, but %s is needed" % (key, shape_text(mask.shape), shape_text(shape)),
                             key)
        part = self.node("reshape", {}, (mask,), to, mask.dtype)
        return self.expr(self.cast(part, "f32"), expression="1 - x") if mask.dtype == "bool" else part

    def joined_mask(self, attn_mask, key_padding_mask, n, heads, rows, keys):
        """Joins torch.nn's masks, in which true means ignored, to one for scaled_dot_product_attention. None:
        no mask."""
        parts = []
        if attn_mask is not None:
            two = len(attn_mask.shape) == 2
            parts.append((attn_mask.dtype == "bool", self.mask_part(
                attn_mask, "attn_mask", (rows, keys) if two else (n * heads, rows, keys),
                (1, 1, rows, keys) if two else (n, heads, rows, keys))))
        if key_padding_mask is not None:
            parts.append((key_padding_mask.dtype == "bool", self.mask_part(
                key_padding_mask, "key_padding_mask", (n, keys), (n, 1, 1, keys))))
        if not parts:
            return None
        if all(choice for choice, _ in parts):
            return self.cast(parts[0][1] if len(parts) == 1 else
                             self.apply("mul", [part for _, part in parts]), "bool")
        for i, (choice, part) in enumerate(parts):
            if choice:
                zero, least = self.constant((), (0.0,)), self.constant((), (-math.inf,))
                parts[i] = choice, self.apply("where", (part, zero, least))
        return parts[0][1] if len(parts) == 1 else self.apply("add", [part for _, part in parts])

    def in_proj(self, x, weight, bias, first, e):
        """x times a third of in_proj_weight, or all of a smaller weight, with its third of the bias."""
        weight = self.slice(weight, 0, first, 1, first + e) if weight.shape[0] != e else weight
        part = self.slice(bias, 0, first, 1, first + e)
        return self.apply("add", (self.matmul(x, weight, False, True), part))

    def swap_rows(self, x):
        return self.permute(x, (1, 0, 2))

    def rotary_embedding(self, x, positions, theta, dims, interleaved, heads_last, frequencies=None):
        check_f32(x)
        check_indices(positions, "positions")
        check_rank(x, 4, 4, "[n, heads, l, e] or, with heads_last, [n, l, heads, e]")
        check_fixed(x, [3])
        size, rows = x.shape[3], 1 if heads_last else 2
        dims = dims or size
        pairs = dims // 2
        if dims < 2 or dims % 2 or dims > size:
            raise GraphError("dims rotates %d of a head's %d features, in pairs; use an even number, at most "
                             "that of the features" % (dims, size), "dims")
        if frequencies is not None and (frequencies.dtype != "f32" or frequencies.shape != (pairs,)):
            raise GraphError("frequencies is %s %s, but f32 [%d], one for each pair of features, is needed" %
                             (
                                 frequencies.dtype, shape_text(frequencies.shape), pairs), "frequencies")
        if not 1 <= len(positions.shape) <= 2 or positions.shape[-1] != x.shape[rows] or (
                len(positions.shape) == 2 and positions.shape[0] not in (1, x.shape[0])):
            raise GraphError(
                "positions is %s and x is %s; positions must be [l] or [n, l] with the n and l of x" % (
                    shape_text(positions.shape), shape_text(x.shape)), "inputs")
        if frequencies is None:
            frequencies = self.constant((pairs,), [setting(f32(theta)) ** (-i / pairs) for i in range(pairs)])
        frequencies = self.reshape(frequencies, (pairs, 1) if interleaved else (1, pairs))
        at = [positions.shape[0] if len(positions.shape) == 2 else 1, 1, 1, 1, 1]
        at[rows] = x.shape[rows]
        angle = self.apply("mul", (self.reshape(self.cast(positions, "f32"), tuple(at)), frequencies))
        turned = self.slice(x, 3, 0, 1, dims) if dims < size else x
        turned = self.reshape(turned, x.shape[:3] + ((pairs, 2) if interleaved else (2, pairs)))
        pair = 4 if interleaved else 3  # the axis of its two features
        parts = [self.slice(turned, pair, i, 1, i + 1) for i in range(2)] + [
            self.apply(name, (angle,)) for name in ("cos", "sin")]
        both = [self.expr(*parts, expression=text) for text in ("x0 * x2 - x1 * x3", "x1 * x2 + x0 * x3")]
        turned = self.reshape(self.concat(*both, dim=pair), x.shape[:3] + (dims,))
        return turned if dims == size else self.concat(turned, self.slice(x, 3, dims, 1, size), dim=3)

    def assign(self, state, value, axis, in_training, position=None):
        root = state
        while root.op == "assign":
            root = self.tensors[root.inputs[0]]
        if root.kind != "state":
            raise GraphError("the target of the assignment is not a state; use a state or the result of an "
                             "assignment", "inputs")
        check_f32(value)
        axis, whole = axis_of(state, axis, "axis") if position else 0, list(value.shape)
        if position and len(whole) == len(state.shape) and whole[axis] <= state.shape[axis]:
            whole[axis] = state.shape[axis]
        if tuple(whole) != state.shape:
            raise GraphError("the value is %s and the state %s; %s" % (
                shape_text(value.shape), shape_text(
                    state.shape), "they may differ only along the axis, where the value must not be larger"
                if position else "they must be equal"), "inputs")
        if position:
            check_indices(position, "the position")
            if position.shape not in ((), (1,)) and (axis == 0 or position.shape != state.shape[:1]):
                raise GraphError(
                    "the position is %s; give one number, or one for each of the state's %d samples" % (
                        shape_text(position.shape), state.shape[0]), "position")
        return self.node("assign", {"axis": axis, "in_training": in_training}, (state, value, position),
                         state.shape)

    def multi_head_attention(self, query, key, value, name, num_heads, dropout, batch_first, is_causal,
                             key_padding_mask=None, attn_mask=None):
        check_f32(query, key, value)
        self.check_new_layer(name)
        x = [query, key, value]
        for what, t in zip(("query", "key", "value"), x):
            if len(t.shape) != 3 or not 1 <= t.shape[2] <= MAX_INT // 3:
                raise GraphError("%s is %s, but [n, rows, size] (batch_first) or [rows, n, size] is needed" %
                                 (
                                     what, shape_text(t.shape)), "inputs")
        n_axis, row_axis = (0, 1) if batch_first else (1, 0)
        e, n, rows, keys = query.shape[2], query.shape[n_axis], query.shape[row_axis], key.shape[row_axis]
        if e % num_heads:
            raise GraphError("num_heads is %d, but must divide the size of query %s" %
                             (num_heads, shape_text(query.shape)), "num_heads")
        if key.shape[:2] != value.shape[:2] or key.shape[n_axis] != n:
            raise GraphError("query is %s, key %s and value %s: all need the same n, key and value the same "
                             "rows" % tuple(shape_text(t.shape) for t in x), "inputs")
        same, one = query is key and key is value, key.shape[2] == e and value.shape[2] == e
        shapes = {"in_proj_weight": (3 * e, e)} if one else {
            "%s_proj_weight" % letter: (e, t.shape[2]) for letter, t in zip("qkv", x)}
        weights = [self.named_parameter("%s.%s" % (name, suffix), shape, math.sqrt(6.0 / sum(shape)))
                   for suffix, shape in shapes.items()]
        bias = self.named_parameter(name + ".in_proj_bias", (3 * e,))
        mask = self.joined_mask(attn_mask, key_padding_mask, n, num_heads, rows, keys)
        if not batch_first:
            x = [self.swap_rows(query)] * 3 if same else [self.swap_rows(t) for t in x]
        how = {"is_causal": is_causal, "dropout_p": dropout, "enable_gqa": False, "heads_last": True,
               "mask": mask}
        if same and one:
            y = self.linear(x[0], name + ".in_proj", 3 * e, bias, weights[0])
            y = self.node("reshape", {}, (y,), (n, rows, 3, num_heads, e // num_heads))
            y = self.scaled_dot_product_attention(y, **how)
        else:
            for i in range(3):
                x[i] = self.in_proj(x[i], weights[0 if one else i], bias, i * e, e)
                x[i] = self.node("reshape", {}, (x[i],), (n, keys if i else rows, num_heads, e // num_heads))
            y = self.scaled_dot_product_attention(*x, **how)
        y = self.node("reshape", {}, (y,), (n, rows, e))
        y = self.linear(y, name + ".out_proj", e, True)
        bias = self.tensors[y.inputs[2]]
        bias.init = bias.default_init = ("constant", 0.0, 0.0)
        return y if batch_first else self.swap_rows(y)

    def transformer_layer(self, x, memory, name, nhead, dim_feedforward, dropout, activation, layer_norm_eps,
                          batch_first, norm_first, is_causal, mask=None, key_padding_mask=None,
                          memory_mask=None, memory_key_padding_mask=None):
        check_f32(x)
        self.check_new_layer(name)
        norms = [0]

        def norm(x):
            norms[0] += 1
            return self.layer_norm(x, "%s.norm%d" % (name, norms[0]), 1, layer_norm_eps, True, True)

        def drop(x):
            return self.dropout(x, dropout) if dropout > 0 else x

        def attend(part, source, mask, padding, causal):
            def block(x):
                others = (x, x) if source is None else (source, source)
                return self.multi_head_attention(x, *others, "%s.%s" % (name, part), nhead, dropout,
                                                 batch_first, causal, padding, mask)
            return block

        def feed_forward(x):
            width = x.shape[-1]
            x = self.apply(activation, (self.linear(x, name + ".linear1", dim_feedforward, True),))
            return self.linear(drop(x), name + ".linear2", width, True)

        blocks = [attend("self_attn", None, mask, key_padding_mask, is_causal)]
        if memory is not None:
            blocks.append(attend("multihead_attn", memory, memory_mask, memory_key_padding_mask, False))
        for block in blocks + [feed_forward]:
            inner = drop(block(norm(x) if norm_first else x))
            x = self.apply("add", (x, inner))
            x = x if norm_first else norm(x)
        return x

    def transformer_stack(self, x, memory, name, num_layers, norm, options):
        check_f32(x)
        self.check_new_layer(name)
        mark = len(self.tensors)
        for i in range(num_layers):
            x = self.transformer_layer(x, memory, "%s.layers.%d" % (name, i), **options)
            made, limit = len(self.tensors) - mark, MAX_TENSORS - mark
            if i == 0 and num_layers > limit // made:
                raise GraphError(
                    "num_layers is %d; with %d tensors each, the model has room for %d layers more" % (
                        num_layers, made, limit // made), "num_layers")
        return self.layer_norm(x, name + ".norm", 1, options["layer_norm_eps"], True, True) if norm else x

    def transformer_encoder_layer(self, src, name, nhead, dim_feedforward, dropout, activation,
                                  layer_norm_eps, batch_first,
                                  norm_first, is_causal, mask=None, key_padding_mask=None):
        return self.transformer_layer(src, None, name, nhead, dim_feedforward, dropout, activation,
                                      layer_norm_eps, batch_first,
                                      norm_first, is_causal, mask, key_padding_mask)

    def transformer_decoder_layer(self, tgt, memory, name, nhead, dim_feedforward, dropout, activation,
                                  layer_norm_eps, batch_first, norm_first, is_causal, mask=None,
                                  key_padding_mask=None, memory_mask=None, memory_key_padding_mask=None):
        return self.transformer_layer(tgt, memory, name, nhead, dim_feedforward, dropout, activation,
                                      layer_norm_eps, batch_first, norm_first, is_causal, mask,
                                      key_padding_mask, memory_mask, memory_key_padding_mask)

    def transformer_encoder(self, src, name, num_layers, norm, nhead, dim_feedforward, dropout, activation,
                            layer_norm_eps,
                            batch_first, norm_first, is_causal, mask=None, key_padding_mask=None):
        options = {key: value for key, value in locals().items()
                   if key not in ("self", "src", "name", "num_layers", "norm")}
        return self.transformer_stack(src, None, name, num_layers, norm, options)

    def transformer_decoder(self, tgt, memory, name, num_layers, norm, nhead, dim_feedforward, dropout,
                            activation, layer_norm_eps, batch_first, norm_first, is_causal, mask=None,
                            key_padding_mask=None, memory_mask=None, memory_key_padding_mask=None):
        outer = ("self", "tgt", "memory", "name", "num_layers", "norm")
        options = {key: value for key, value in locals().items() if key not in outer + ("outer",)}
        return self.transformer_stack(tgt, memory, name, num_layers, norm, options)

    # ---- einsum ----
    def einsum(self, *tensors, equation):
        """Einsum of one or two tensors: sums first, then an elementwise product if nothing is summed over
        both, else a matrix product."""
        check_f32(*tensors)
        if len(tensors) > 2:
            raise GraphError("got %d tensors, but one or two are possible; multiply two at a time" %
                             len(tensors), "inputs")
        given, arrow, wanted = equation.replace("*", "?").replace("...", "*").replace(" ", "").partition("->")
        texts = given.split(",")
        labels = [dotted(own, len(t.shape) - len(own) + 1) for t, own in zip(tensors, texts)]
        every = [label for own in labels for label in own]
        dots = max([-label for label in every if isinstance(label, int)], default=0)
        result = dotted(wanted, dots) if arrow else list(range(-dots, 0)) + sorted(
            label for label in set(every) if isinstance(label, str) and every.count(label) == 1)
        sound = (len(texts) == len(tensors) and all(text.count("*") < 2 for text in texts + [wanted]) and all(
            all(isinstance(label, int) or "a" <= label.lower() <= "z" for label in own) and
            len(own) <= MAX_RANK for own in labels + [result]) and len(set(result)) == len(result) and
                 set(result) <= set(every))
        if not sound:
            raise GraphError("\"%s\" is not a valid equation, such as \"...ij,jk->...ik\"; name each "
                             "tensor's axes by letters, its other axes by \"...\", and then the result's "
                             "axes, each once" % equation, "equation")
        for i, (t, own) in enumerate(zip(tensors, labels)):
            if len(own) != len(t.shape):
                raise GraphError("\"%s\" has %d letters for tensors[%d], which is %s" % (
                    equation, len(own), i, shape_text(t.shape)), "equation")
        tensors, labels = zip(*map(self.einsum_diagonal, tensors, labels))
        sizes = dict(zip(labels[0], tensors[0].shape))
        for label, size in zip(labels[-1], tensors[-1].shape):
            first, dotty = sizes.get(label, size), isinstance(label, int)
            if first != size and not (dotty and 1 in (first, size)):
                raise GraphError("\"%s\": %s is %s in tensors[0] and %s in tensors[1]" % (
                    equation, "..." if dotty else label, dim_text(first), dim_text(size)), "inputs")
        parts = list(zip(tensors, labels))
        if len(parts) == 2:
            parts[0] = self.squeezed(parts[0], parts[1])
            parts[1] = self.squeezed(parts[1], parts[0])
        sizes = {label: size for t, own in parts for label, size in zip(own, t.shape)}
        labels = [own for _, own in parts]
        for i, (t, own) in enumerate(parts):
            kept = [label for label in own if label in result or
                    (len(labels) == 2 and label in labels[1 - i])]
            if len(kept) < len(own):
                t = self.sum(t, [axis for axis, label in enumerate(own) if label not in kept])
            parts[i] = t, kept
        if len(parts) == 1:
            return self.rearranged(parts[0], result)
        return self.einsum_product(parts[0], parts[1], result, sizes)

    def einsum_diagonal(self, x, own):
        """Takes the diagonal of every two axes with the same letter. It becomes the last axis."""
        own = list(own)
        while len(set(own)) < len(own):
            i = next(i for i, label in enumerate(own) if own.count(label) > 1)
            j = own.index(own[i], i + 1)
            if x.shape[i] != x.shape[j] or x.shape[i] < 0:
                raise GraphError("%s is %s and %s in one tensor; a diagonal needs two equal, fixed sizes" % (
                    own[i], dim_text(x.shape[i]), dim_text(x.shape[j])), "inputs")
            rest = [axis for axis in range(len(own)) if axis not in (i, j)]
            x = self.permute(x, rest + [i, j])
            size, lead = x.shape[-1], x.shape[:-2]
            x = self.slice(self.reshape(x, lead + (size * size,)), len(lead), 0, size + 1,
                           (size - 1) * (size + 1) + 1)
            own = [own[axis] for axis in rest] + [own[i]]
        return x, own

    def squeezed(self, part, other):
        """Without the axes of 1 that "..." broadcasts to another size."""
        sizes = dict(zip(other[1], other[0].shape))
        kept = [(label, size) for label, size in zip(part[1], part[0].shape)
                if not (isinstance(label, int) and size == 1 and sizes.get(label, 1) != 1)]
        if len(kept) == len(part[1]):
            return part
        return self.reshape(part[0], [size for _, size in kept]), [label for label, _ in kept]

    def rearranged(self, part, wanted):
        x, own = part
        return x if list(own) == list(wanted) else self.permute(x, [own.index(label) for label in wanted])

    def einsum_product(self, a, b, result, sizes):
        summed = [label for label in a[1] if label in b[1] and label not in result]
        if not summed:
            spread = []
            for x, own in (a, b):
                x = self.rearranged((x, own), [label for label in result if label in own])
                spread.append(x if len(own) == len(result) else self.reshape(
                    x, [sizes[label] if label in own else 1 for label in result]))
            return self.apply("mul", spread)
        batch = [label for label in a[1] if label in b[1] and label in result]
        rows, columns = ([label for label in own if label not in other]
                         for own, other in ((a[1], b[1]), (b[1], a[1])))

        def matrix(part, first, second):
            """[batch, first, second] or, if memory already has that order, [batch, second, first]; and
            whether it is the latter."""
            transposed, shape = part[1] == batch + second + first, [sizes[label] for label in batch]
            first, second = (second, first) if transposed else (first, second)
            for group in (first, second):
                joined = self.joined([sizes[label] for label in group])
                if joined is None or len(batch) + 2 > MAX_RANK:
                    raise GraphError("the product shares more than %d axes, or joins axes that are the "
                                     "batch; reshape the tensors" % (MAX_RANK - 2), "equation")
                shape.append(joined)
            return self.reshape(self.rearranged(part, batch + first + second), shape), transposed

        (x, transpose_x), (y, transpose_y) = matrix(a, rows, summed), matrix(b, summed, columns)
        found = batch + rows + columns
        y = self.reshape(self.matmul(x, y, transpose_x, transpose_y), [sizes[label] for label in found])
        return self.rearranged((y, found), result)

    # ---- losses and metrics ----
    def reduce_loss(self, loss, reduction):
        if reduction == "none":
            return loss
        if reduction == "batchmean" and len(loss.shape) > 1:  # the mean over axis 0 of each sample's sum
            loss = self.sum(loss, range(1, len(loss.shape)))
        return self.sum(loss) if reduction == "sum" else self.mean(loss)

    def window_mean(self, x, window):
        """Means over windows of that many cells along each axis after the second, one axis at a time."""
        shape, rank = x.shape, len(x.shape)
        for axis in range(2, rank):
            before, after = math.prod(shape[1:axis]), math.prod(shape[axis + 1:])
            last = axis == rank - 1
            image = (1, before, shape[axis]) if last else (before, shape[axis], after)
            kernel, padding = ((1, window), (0, window // 2)) if last else ((window, 1), (window // 2, 0))
            x = self.avg_pool2d(self.node("reshape", {}, (x,), shape[:1] + image), kernel, padding, False,
                                True, stride=(1, 1))
        return self.node("reshape", {}, (x,), shape)

    @staticmethod
    def check_classes(logits, labels):
        check_f32(logits)
        if labels.dtype not in CLASS_DTYPES:
            raise GraphError("labels is %s, but class numbers are needed; use i64, i32 or u8" % labels.dtype,
                             "inputs")
        if (len(logits.shape) < 2 or logits.shape[1] < 0 or
            labels.shape != logits.shape[:1] + logits.shape[2:]):
            raise GraphError("logits %s and labels %s do not fit; [n, classes, ...] and [n, ...] are needed" %
                             (
                                 shape_text(logits.shape), shape_text(labels.shape)), "inputs")

    @staticmethod
    def check_class_weight(weight, logits):
        if weight is not None:
            check_f32(weight)
            if weight.shape != logits.shape[1:2]:
                raise GraphError("weight is %s, but one number for each of the %d classes is needed" % (
                    shape_text(weight.shape), logits.shape[1]), "weight")

    def class_loss(self, op, logits, labels, reduction, weight, attrs):
        self.check_classes(logits, labels)
        self.check_class_weight(weight, logits)
        return self.node(op, dict({"reduction": reduction}, **attrs), (logits, labels, weight),
                         labels.shape if reduction == "none" else ())

    def cross_entropy(self, logits, labels, reduction, ignore_index, label_smoothing, weight=None):
        smoothing = setting(f32(label_smoothing))
        return self.class_loss("cross_entropy", logits, labels, reduction, weight,
                               {"ignore_index": ignore_index, "label_smoothing": smoothing})

    def nll_loss(self, log_probabilities, labels, reduction, ignore_index, weight=None):
        return self.class_loss("nll", log_probabilities, labels, reduction, weight,
                               {"ignore_index": ignore_index})

    def multi_margin_loss(self, x, labels, reduction, p, margin, weight=None):
        self.check_classes(x, labels)
        if len(x.shape) != 2:
            raise GraphError("x has %d axes, but [n, classes] is needed" % len(x.shape), "inputs")
        if x.shape[1] > 1 << 24:
            raise GraphError("x has %d classes; up to 2^24 are possible" % x.shape[1], "inputs")
        p, shape = f32(p), labels.shape + (1,)
        if p not in (1, 2):
            raise GraphError("p is %.9g; use 1 or 2" % p, "p")
        self.check_class_weight(weight, x)
        margin = setting(f32(margin))
        own = self.class_loss("nll", x, labels, "none", None, {"ignore_index": -100})
        number = self.cast(labels, "f32")
        own, number = self.reshape(own, shape), self.reshape(number, shape)
        classes = self.constant(x.shape[1:], range(x.shape[1]))
        terms = self.expr({"x": x, "own": own, "label": number, "classes": classes},
                          expression=table.texts()["MULTI_MARGIN"], consts={"margin": margin, "p": p})
        if weight is not None:
            terms = self.expr({"x": terms, "label": number, "classes": classes, "weight": weight},
                              expression=table.texts()["MULTI_MARGIN_WEIGHTED"])
        return self.reduce_loss(self.mean(terms, (1,)), reduction)

    def ctc_loss(self, log_probabilities, targets, input_lengths, target_lengths, reduction, blank,
                 zero_infinity, batch_first):
        x, rest = log_probabilities, (targets, input_lengths, target_lengths)
        check_f32(x)
        for name, t in zip(("targets", "input_lengths", "target_lengths"), rest):
            if t.dtype not in ("i64", "i32"):
                raise GraphError("%s is %s, but i64 or i32 is needed" % (name, t.dtype), "inputs")
        sample = 0 if batch_first else 1
        if (len(x.shape) != 3 or x.shape[2] < 0 or [len(t.shape) for t in rest] != [2, 1, 1] or
            (targets.shape[1] < 0 and not varies(targets.shape[1])) or any(
                t.shape[0] != x.shape[sample] for t in rest)):
            raise GraphError("log_probabilities %s, targets %s and lengths %s, %s do not fit; %s, [n, "
                             "longest], [n] and [n] are needed" %
                             (tuple(shape_text(t.shape) for t in (x,) + rest) + (
                                 "[n, t, classes]" if batch_first else "[t, n, classes]",)), "inputs")
        if blank >= x.shape[2]:
            raise GraphError("blank is %d; use one of the %d classes" % (blank, x.shape[2]), "blank")
        attrs = {"reduction": reduction, "blank": blank, "zero_infinity": zero_infinity,
                 "batch_first": batch_first}
        return self.node("ctc_loss", attrs, (x,) + rest,
                         x.shape[sample:sample + 1] if reduction == "none" else ())

    def custom(self, *operands, kind, shape, numbers=()):
        """The program's own op. Only the program knows its shape rule."""
        if not re.fullmatch("[A-Za-z0-9_.-]{1,63}", kind):
            raise GraphError("kind '%s' is not a name of an op: use letters, digits, '_', '.', '-'" % kind,
                             "kind")
        if len(operands) > MAX_CUSTOM_INPUTS:
            raise GraphError("%d inputs are given, but an op of one's own has at most %d" % (
                len(operands), MAX_CUSTOM_INPUTS), "inputs")
        values = [f32(number) + 0.0 for number in numbers]
        values += [0.0] * (CUSTOM_NUMBERS - len(values))
        return self.node("custom", {"kind": kind, "numbers": tuple(values)}, operands, self.shape_of(shape))

    # ---- formulas ----
    def composite(self, op, *operands, **given):
        """Builds a row of the table of formulas. given: all of its keys; references may be left out."""
        formula, arguments, reduction = table.formulas()[op], table.rows()[op].arguments, "none"
        if self.meant_of_integers(op, operands):
            return self.integer(*operands, operation=op)
        operands, numbers = dict(zip(formula.operands, operands)), {"rank": len(operands[0].shape)}
        first = operands[formula.operands[0]]
        check_f32(*((first,) if formula.fits == "classes" else operands.values()))
        given = {one.name: setting(f32(given[one.name])) if one.kind in NUMBERS else given.get(one.name)
                 for one in arguments}
        getattr(self, "fits_" + formula.fits)(*operands.values(), **given)
        for one in arguments:
            value = given[one.name]
            if one.kind in ("REDUCTION", "CLASS_REDUCTION"):
                reduction = value
            elif one.kind == "REFERENCE":
                check_factor(value, one.name, first)
                operands[one.name] = value
            else:
                numbers[one.name] = value
        return self.reduce_loss(self.expr(operands, expression=formula.text, consts=numbers), reduction)

    @staticmethod
    def fits_same(first, *others, **_):
        for other in others:
            check_equal_shapes(first, other)

    @staticmethod
    def fits_any(*_, **__):
        """No check: the formula's own ops fail if shapes do not broadcast."""

    @staticmethod
    def fits_variance(input, target, var, **_):
        check_equal_shapes(input, target)
        check_factor(var, "var", input)

    def fits_classes(self, logits, labels):
        self.check_classes(logits, labels)

    def fits_images(self, input, target, window, **_):
        check_equal_shapes(input, target)
        check_rank(input, 3, 5, "[n, channels, ...] of one to three more axes")
        check_fixed(input, range(1, len(input.shape)))
        if window and window % 2 == 0:
            raise GraphError("window is %d; use an odd number, or 0 for the whole image" % window, "window")

    @staticmethod
    def fits_channels(x, target, batch, **_):
        check_equal_shapes(x, target)
        if len(x.shape) < (2 if batch else 3):
            raise GraphError("x has %d axes; [n, classes, ...] is needed%s" % (
                len(x.shape), "" if batch else "; for [n, classes] set \"batch\": true"), "inputs")

    def fits_triplet(self, anchor, positive, negative, p, **_):
        self.fits_same(anchor, positive, negative)
        if not anchor.shape:
            raise GraphError("the anchor is a scalar; give it a last axis of features", "inputs")
        if not p > 0:
            raise GraphError("p is %.9g; use a number above 0" % p, "p")

    @staticmethod
    def fits_pairs(x1, x2, target, **_):
        check_equal_shapes(x1, x2)
        if len(x1.shape) not in (1, 2) or target.shape != x1.shape[:-1]:
            raise GraphError(
                "x1 %s and target %s do not fit; [n, features] and [n], or [features] and [], are needed" % (
                    shape_text(x1.shape), shape_text(target.shape)), "inputs")

    @staticmethod
    def fits_along(x1, x2, dim, **_):
        axis = axis_of(x1, dim)
        if len(x1.shape) != len(x2.shape) or x1.shape[axis] != x2.shape[axis]:
            raise GraphError("x1 %s and x2 %s need the same number of axes, and the same size of axis %d" % (
                shape_text(x1.shape), shape_text(x2.shape), axis), "inputs")


def dotted(text, count):
    """The letters of a part of an equation. Axes of "..." are the numbers -count .. -1; the text has "*" for
    "..."."""
    return [label for letter in text for label in (range(-count, 0) if letter == "*" else letter)]
