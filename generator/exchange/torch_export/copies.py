"""Operators that copy, cast or detach a tensor."""
from ..spec_writer import Constant, Value, is_number, named, text
from .operands import Complex, dtype_name, has_gradient, is_large, number, small_integers
from .registry import operation, reads


@operation("detach")
def detach(w, call, x):
    if not has_gradient(x):
        return same(w, call, x)
    x = w.f32(x)
    return w.map("detach", x, view_of=x)


@operation("fill", "zero")
def fill(w, call, x, value=0):
    if number(value) is None:
        return copied(w, call, x, value)
    dtype = call.shapes[0][1]
    value = Constant(w.torch.tensor(value if is_number(value) else number(value)).to(dtype))
    y = w.view(w.tensor(value), x.full)
    return (y if dtype.is_floating_point or dtype == w.torch.bool or is_large(w, value) else
            small_integers(w, y))


@operation("copy")
def copied(w, call, x, src, **_):
    return w.view(w.f32(src) if call.shapes[0][1].is_complex else to(w, call, src), x.full)


@operation("contiguous", "alias", "lift", "lift_fresh", "lift_fresh_copy", "requires_grad")
def same(w, call, x, **_):
    return w.view(x, x.full) if isinstance(x, Value) else x


@operation("clone")
def clone(w, call, x, **_):
    x = w.tensor(x)
    result = w.view(x, x.full)
    result.memory = result  # PyTorch's result is a copy
    return result


@operation("to", "_to_copy", "type_as", "float", "double", "half", "bfloat16", "_cast_Float")
@reads("other")
def to(w, call, x, **_):
    dtype = call.shapes[0][1]
    if dtype.is_complex:
        return x if isinstance(x, Complex) else Complex(w.f32(x), w.view(w.tensor(0.0), x.full))
    if dtype.is_floating_point:
        x = w.f32(x)
        return rounded_to_half(w, x, dtype) if w.rounds(dtype) else w.view(x, x.full)
    kind = dtype_name(w.torch, dtype)
    x = w.whole(x)
    return x if kind == x.dtype else w.add("cast", [x], x.shape, kind=kind, dtype=kind)


def rounded_to_half(w, x, dtype):
    """x rounded to the nearest 16-bit number, ties to even. The gradient passes unchanged."""
    bits, least, most = (10, -14, 65504.0) if dtype == w.torch.float16 else (7, -126, 3.3895314e38)
    fixed = w.map("detach", x)
    unit = w.expr(f"exp2(max(floor(log2(max(abs(x), 1e-38))), {text(least)}) - {text(bits)})", fixed)
    nearest = w.map("mul", w.expr(named("round")["round"], w.map("div", fixed, unit)), unit)
    nearest = w.expr(f"y if abs(y) <= {text(most)} else x * 3e38", fixed, nearest)
    return w.expr("x + (z - y) if abs(x) <= 3.4028234e38 else x", x, fixed, nearest)
