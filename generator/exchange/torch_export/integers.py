"""Operators on integers that may not fit float32, and shifts."""
import functools

from ..spec_writer import Constant, Refused
from .operands import dtype_name, is_large, is_whole, whole_number
from .registry import operation

# gpunn's integer ops by torch's names. Those of two operands come with the op for exchanged operands, if
# there is one.
INTEGER_UNARY = {"neg": "neg", "negative": "neg", "abs": "abs", "absolute": "abs", "sign": "sign",
                 "sgn": "sign"}
INTEGER_BINARY = {"add": ("add", "add"), "sub": ("sub", None), "subtract": ("sub", None),
                  "mul": ("mul", "mul"), "multiply": ("mul", "mul"), "floor_divide": ("floor_divide", None),
                  "remainder": ("remainder", None), "fmod": ("fmod", None), "maximum": ("maximum", "maximum"),
                  "minimum": ("minimum", "minimum"), "eq": ("eq", "eq"), "ne": ("ne", "ne"),
                  "lt": ("lt", "gt"), "gt": ("gt", "lt"), "le": ("le", "ge"), "ge": ("ge", "le")}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def integer_pair(w, name, x, other):
    """An op of two integers. One of them may be a number."""
    op, exchanged = INTEGER_BINARY[name]
    if whole_number(x) is not None:
        if exchanged:
            return w.integer(exchanged, other, whole_number(x))
        x = Constant(w.torch.tensor(whole_number(x)))
    return w.integer(op, x, other if whole_number(other) is None else whole_number(other))


def exactly(w, call, op, alpha=1, rounding_mode=None, min=None, max=None, condition=None, mask=None,
            value=None, **arguments):
    """The result of an op on integers that may not fit float32. None: there is none."""
    x, other = arguments.get("x"), arguments.get("other")
    given = [y for y in (x, other, min, max, value) if y is not None]
    large = [y for y in given if is_whole(w, y) and is_large(w, y)]
    if not large or not all(is_whole(w, y) for y in given) or call.shapes[0][1].is_floating_point or \
            (op in COMPARISONS and len(large) < 2):
        return None
    if op == "div":
        op = {"floor": "floor_divide", "trunc": "trunc"}.get(rounding_mode, op)
    if op in ("max", "min") and other is not None:
        op = {"max": "maximum", "min": "minimum"}[op]
    if op in INTEGER_UNARY:
        result = w.integer(INTEGER_UNARY[op], x)
    elif op in INTEGER_BINARY or op == "rsub":
        x, other = (other, x) if op == "rsub" else (x, other)
        scaled = other if alpha == 1 else integer_pair(w, "mul", other, alpha)
        result = integer_pair(w, "sub" if op == "rsub" else op, x, scaled)
    elif op == "bitwise_not":
        result = integer_pair(w, "sub", -1, x)
    elif op == "square" or (op == "pow" and 0 < (whole_number(arguments["exponent"]) or 0) < 64):
        count = 2 if op == "square" else whole_number(arguments["exponent"])
        result = functools.reduce(functools.partial(w.integer, "mul"), [x] * count)
    elif op == "trunc":
        result = w.integer("trunc_divide", x, other if whole_number(other) is None else whole_number(other))
    elif op in ("clamp", "clip", "clamp_min", "clamp_max"):
        result = x if min is None else integer_pair(w, "maximum", x, min)
        result = result if max is None else integer_pair(w, "minimum", result, max)
    elif op == "where":
        result = w.integer("where", condition, x,
                           other if whole_number(other) is None else whole_number(other))
    elif op == "masked_fill":
        value = value if whole_number(value) is None else whole_number(value)
        result = w.integer("where", w.integer("logical_not", mask), x, value)
    else:
        return None
    kind = dtype_name(w.torch, call.shapes[0][1])
    return result if result.dtype == kind else w.add("cast", [result], result.shape, result.full, kind=kind,
                                                     dtype=kind)


@operation("__lshift__", "__rshift__", "bitwise_left_shift", "bitwise_right_shift")
def shift(w, call, x, other):
    """Shifts by a number of bits. A right shift rounds down."""
    op, bits = "mul" if "left" in call.op or "lsh" in call.op else "floor_divide", whole_number(other)
    if isinstance(other, Constant) and bool(((other.tensor >= 0) & (other.tensor < 63)).all()):
        return w.integer(op, x, Constant(w.torch.ones_like(other.tensor, dtype=w.torch.int64) << other.tensor,
                                         other.full))
    if bits is None or not 0 <= bits < 63:
        raise Refused("only a known number of bits is possible")
    return w.integer(op, x, 1 << bits)
