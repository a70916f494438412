"""Operators on each element: activations, arithmetic, comparisons, logic."""
import string

from ... import table
from ..spec_writer import Refused, Value, named, normal_axes, normal_axis, product, text
from .operands import Complex, dtype_name, is_whole, known_number, number, truth, whole_number
from .registry import operation, reads
from .symbols import Size
from ...sizes import varies


def table_op(op):
    """An op of gpunn.h's table over x. Its attributes have torch's names and defaults."""
    @reads(*[name for name, _ in op.attrs])
    def lower(w, call, x, **given):
        return w.map(op.name, x,
                     **{name: known_number(name, given.get(name, value)) for name, value in op.attrs})
    return lower


UNARY = {op.name: op for op in table.ops().values() if op.arity == 1}
OF_THEIR_OWN = ("abs", "clamp", "detach", "elu", "gelu")  # these have functions of their own below
# The other ops of one operand in gpunn.h's table, such as relu and tanh, have the same names in PyTorch.
for torch_name, own in {**{name: name for name in UNARY if name not in OF_THEIR_OWN},
                        "log_sigmoid": "logsigmoid",
                        "negative": "neg", "sgn": "sign", "special_erf": "erf", "special_expit": "sigmoid",
                        "special_expm1": "expm1", "special_log1p": "log1p"}.items():
    operation(torch_name)(table_op(UNARY[own]))


def formula(expression):
    """An op from a formula. expression is over x, y, z, with {name} for the operation's arguments."""
    names = [name for _, name, _, _ in string.Formatter().parse(expression) if name]

    @reads(*names)
    def lower(w, call, x, y=None, z=None, **arguments):
        values = {name: text(known_number(name, arguments[name])) for name in names}
        return w.expr(expression.format(**values), *[t for t in (x, y, z) if t is not None])
    return lower


for torch_name, expression in {
        "softshrink": "where(x > {lambd}, x - {lambd}, where(x < -{lambd}, x + {lambd}, 0 * x))",
        "threshold": "where(x <= {threshold}, {value}, x)",
        **named("tan", "ceil", "trunc", "frac", "erfc", "lgamma", "isnan", "isinf", "isfinite",
                "logical_not"), "bitwise_not": named("logical_not")["logical_not"],
        "sinc": "p = pi * (1 if x == 0 else x); 1 if x == 0 else sin(p) / p",
        "deg2rad": "x * (pi / 180)", "rad2deg": "x * (180 / pi)",
        "isposinf": "where(x > 3.4028234e38, 1, 0)", "isneginf": "where(x < -3.4028234e38, 1, 0)"}.items():
    operation(torch_name)(formula(expression))


@operation("atan2", "hypot", "logaddexp", "remainder", "fmod")
def of_two(w, call, x, other):
    return w.map(call.op, x, other)


@operation("round")
def rounded(w, call, x, decimals=0):
    """Rounds ties to even. Negative decimals are places before the point."""
    scale = text(10.0 ** abs(decimals))
    y = w.expr(f"x * {scale}" if decimals > 0 else f"x / {scale}", x) if decimals else x
    y = w.expr(named("round")["round"], y)
    return w.expr(f"x / {scale}" if decimals > 0 else f"x * {scale}", y) if decimals else y


@operation("xlogy")
def xlogy(w, call, x, other):
    return w.expr(named("xlogy")["xlogy"], x, other)


@operation("gelu")
def gelu(w, call, x, approximate="none"):
    return w.map("gelu_tanh" if approximate == "tanh" else "gelu", x)


@operation("elu")
def elu(w, call, x, alpha=1, scale=1, input_scale=1):
    if number(scale) != 1 or number(input_scale) != 1:
        raise Refused("only scales of 1 are possible")
    return w.map("elu", x, alpha=number(alpha))


@operation("clamp", "clip", "clamp_min", "clamp_max")
def clamp(w, call, x, min=None, max=None):
    if all(limit is None or number(limit) is not None for limit in (min, max)):
        return w.map("clamp", x, min=None if min is None else number(min),
                     max=None if max is None else number(max))
    x = x if min is None else w.map("maximum", x, min)
    return x if max is None else w.map("minimum", x, max)


@operation("prelu")
def prelu(w, call, x, weight):
    name, count = w.layer_name(weight=weight), product(weight.full)
    if name:
        return w.layer("prelu", name, x, x.full, {"weight": weight},
                       num_parameters=None if count == 1 else count)
    return w.map("parametric_relu", x,
                 weight if count == 1 else w.reshape(weight, (count,) + (1,) * (len(x.full) - 2)))


@operation("glu")
def glu(w, call, x, dim=-1):
    dim = normal_axis(dim, len(x.full))
    half = x.full[dim] // 2
    return w.map("mul", w.slice(x, dim, 0, half), w.map("sigmoid", w.slice(x, dim, half, None)))


def logical(name):
    def lower(w, call, x, other):
        dtype, op = call.shapes[0][1], call.op.rpartition("bitwise_")[2].strip("_")
        if call.op.startswith(("bitwise", "__")) and dtype != w.torch.bool:
            y = (w.bitwise_of_integers(op, x, other) if dtype != w.torch.uint8 else
                 w.whole(w.bitwise(op, x, other, 0, 255)))
            kind = dtype_name(w.torch, dtype)
            return y if y.dtype == kind else w.add("cast", [y], y.shape, y.full, kind=kind, dtype=kind)
        return w.map(name, truth(w, x), truth(w, other))
    return lower


for torch_name, own in {"logical_and": "mul", "bitwise_and": "mul", "__and__": "mul", "logical_or": "maximum",
                        "bitwise_or": "maximum", "__or__": "maximum", "logical_xor": "ne",
                        "bitwise_xor": "ne", "__xor__": "ne"}.items():
    operation(torch_name)(logical(own))


@operation("add")
def add(w, call, x, other, alpha=1):
    if call.shapes[0][1] == w.torch.bool:
        return w.map("maximum", truth(w, x), truth(w, other))
    if whole_number(other) == 0 and is_whole(w, x) != call.shapes[0][1].is_floating_point:
        return x
    if number(x) is not None and number(other) is None:
        return w.map("add_scalar", w.scale(other, number(alpha)), value=number(x))
    if number(other) is not None:
        return w.map("add_scalar", x, value=number(other) * number(alpha))
    return w.map("add", x, w.scale(other, number(alpha)))


@operation("sub", "subtract")
def sub(w, call, x, other, alpha=1):
    if number(other) is not None:
        return w.map("add_scalar", x, value=-number(other) * number(alpha))
    return w.map("sub", x, w.scale(other, number(alpha)))


@operation("rsub")
def rsub(w, call, x, other, alpha=1):
    return w.map("sub", other, w.scale(x, number(alpha)))


@operation("mul", "multiply")
def mul(w, call, x, other):
    if isinstance(x, Complex) and isinstance(other, Complex):
        operands = x.real, x.imag, other.real, other.imag
        return Complex(w.expr("x0 * x2 - x1 * x3", *operands), w.expr("x0 * x3 + x1 * x2", *operands))
    if isinstance(x, Complex) or isinstance(other, Complex):
        x, other = (x, other) if isinstance(x, Complex) else (other, x)
        return Complex(mul(w, call, x.real, other), mul(w, call, x.imag, other))
    if number(x) is not None:
        x, other = other, x
    return w.map("mul", x, other) if number(other) is None else w.map("mul_scalar", x, value=number(other))


def batch_mean(w, x, batches):
    """x / (batches times the batch), if x is a sum over the batch, else None."""
    entry = x.entry
    if entry.op.endswith("_loss") or entry.op in ("bce_with_logits", "kl_div", "cross_entropy"):
        if entry.attributes.get("reduction") != "sum" or entry.inputs[0].shape[:1] != (-1,):
            return None
        attributes, classes = dict(entry.attributes), entry.op in ("cross_entropy", "nll_loss")
        if batches == 1 and not classes:
            return w.add(entry.op, entry.inputs, (), **dict(attributes, reduction="batchmean"))
        each = w.add(entry.op, entry.inputs, entry.inputs[1].shape, **dict(attributes, reduction="none"))
        axes, keepdim = list(range(len(each.shape))), False
    elif entry.op == "sum":
        each, keepdim = entry.inputs[0], bool(entry.attributes.get("keepdim"))
        axes = normal_axes(entry.attributes.get("dims"), len(each.shape))
    else:
        return None
    along = [i for i in axes if each.shape[i] < 0]
    if not along:
        return None
    inner = [i for i in axes if i not in along]
    y = w.reduce("sum", each, inner, True) if inner else each
    y = w.reduce("mean", y, along, True)
    return w.scale(w.reshape(y, x.shape), -each.shape[along[0]] / batches)


@operation("div", "divide", "true_divide", "floor_divide")
def div(w, call, x, other, rounding_mode=None):
    if isinstance(x, Complex):
        return Complex(div(w, call, x.real, other), div(w, call, x.imag, other))
    if isinstance(other, Size) and not varies(other.dim):
        y = batch_mean(w, x, -other.dim) if isinstance(x, Value) else None
        if y is None:
            raise Refused("only a sum over the batch can be divided by its size")
    elif number(other):
        y = w.map("mul_scalar", x, value=1 / number(other))
    elif number(x) == 1:
        y = w.map("reciprocal", other)
    else:
        y = w.map("div", x, other)
    if rounding_mode is None and call.op != "floor_divide":
        return y
    if rounding_mode == "trunc":
        return w.expr("where(x < 0, -floor(-x), floor(x))",
                      y if number(other) is None else w.map("div", x, other))
    return w.map("floor_divide", x, other)


@operation("pow", "float_power")
def power(w, call, x, exponent):
    special = {2: "square", 0.5: "sqrt", -1: "reciprocal", -0.5: "rsqrt"}.get(number(exponent))
    if special:
        return w.map(special, x)
    return (w.map("pow", x, exponent) if number(exponent) is None else
            w.map("pow_scalar", x, exponent=number(exponent)))


def pair_op(name):
    return lambda w, call, x, other: w.map(name, x, other)


for torch_name in ("maximum", "minimum"):
    operation(torch_name)(pair_op(torch_name))


def comparison(name):
    return lambda w, call, x, other: w.map(name, x, other)


for torch_name in ("eq", "ne", "lt", "le", "gt", "ge"):
    operation(torch_name)(comparison(torch_name))


@operation("where")
def where(w, call, condition, x, other):
    return w.map("where", condition, x, other)


@operation("masked_fill")
def masked_fill(w, call, x, mask, value):
    return w.map("where", mask, value, x)


@operation("logit")
def logit(w, call, x, eps=None):
    limited = "x" if eps is None else f"clamp(x, {text(eps)}, {text(1 - eps)})"
    return w.expr(f"p = {limited}; log(p / (1 - p))", x)


@operation("nan_to_num")
def nan_to_num(w, call, x, nan=None, posinf=None, neginf=None):
    high, low = [text(limit if given is None else given)
                 for limit, given in ((3.4028235e38, posinf), (-3.4028235e38, neginf))]
    return w.expr(f"{text(nan or 0)} if x != x else {high} if x > 3.4028234e38 else {low} if x < "
                  f"-3.4028234e38 else x", x)


@operation("lerp")
def lerp(w, call, x, end, weight):
    return w.expr("x + z * (y - x)", x, end, weight)


@operation("addcmul")
def addcmul(w, call, x, tensor1, tensor2, value=1):
    return w.map("add", x, w.scale(w.map("mul", tensor1, tensor2), number(value)))


@operation("addcdiv")
def addcdiv(w, call, x, tensor1, tensor2, value=1):
    return w.map("add", x, w.scale(w.map("div", tensor1, tensor2), number(value)))
