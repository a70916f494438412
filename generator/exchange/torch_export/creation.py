"""Operators that create constants or random numbers, and dropout."""
from ..spec_writer import Constant, Refused, text
from .operands import INDICES, check_mode, number, small_integers
from .registry import operation, reads
from .symbols import Size


@operation("arange")
def arange(w, call, end, start=0, step=1, **_):
    count = call.shapes[0][0][0]
    if any(isinstance(x, Size) for x in (start, step)):
        raise Refused("it begins at a size that varies or has such a step")
    result = w.scale(w.counting(count), step or 1)
    result = w.map("add_scalar", result, value=float(start)) if start else result
    if not start and step not in (None, 1):
        w.steps[result.entry] = step
    return result if call.shapes[0][1].is_floating_point else w.integers(result, INDICES)


@operation("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like",
           "new_full", "scalar_tensor", "empty", "empty_like", "new_empty")
@reads("size")
def full(w, call, fill_value=None, s=None, **_):
    shape, dtype = call.shapes[0]
    value = (float("ones" in call.op) if fill_value is None and s is None else
             number(s if fill_value is None else fill_value))
    fixed = shape if all(d >= 0 for d in shape) else ()  # a part of it may be changed later
    return Constant(w.torch.full(fixed, value, dtype=dtype), shape)


@operation("dropout")
def dropout(w, call, x, p, train):
    check_mode(w, train)
    x = w.f32(w.whole(x))
    return w.add("dropout", [x], x.shape, p=p) if p else x


@operation("rrelu")
def rrelu(w, call, x, lower=1 / 8, upper=1 / 3, training=False, **_):
    check_mode(w, training)
    x = w.f32(w.whole(x))
    if not training:
        return w.map("leaky_relu", x, negative_slope=(lower + upper) / 2)
    return w.add("rrelu", [x], x.shape, lower=float(lower), upper=float(upper))


@operation("rand_like", "randn_like")
def random_like(w, call, x, **_):
    x = w.f32(w.whole(x))
    return w.add(call.op, [x], x.shape)


@operation("rand", "randn")
@reads("size")
def random(w, call, *_, **__):
    return w.drawn(call.op, call.shapes[0][0])


@operation("randint", "randint_like")
@reads("size")
def random_integers(w, call, high, low=0, **_):
    count = high - low
    if count > 2 ** 24 or max(abs(low), abs(high)) > 2 ** 24:
        raise Refused("it draws integers above 2^24, which gpunn's floats cannot all represent")
    y = w.expr(f"min(floor(x * {count}), {count - 1}) + {text(low)}", w.drawn("rand", call.shapes[0][0]))
    return y if call.shapes[0][1].is_floating_point else small_integers(w, y)


@operation("randperm")
def permutation(w, call, n, **_):
    """A random permutation: the order of random numbers."""
    drawn = w.drawn("rand", call.shapes[0][0])
    return w.add("topk_indices", [drawn], drawn.shape, kind="i64", k=w.known_size(drawn, 0), dim=0)


@operation("bernoulli")
def bernoulli(w, call, x, p=None, **_):
    if p is None:
        p = x
    shape = call.shapes[0][0]
    return w.view(w.map("lt", w.drawn("rand", shape), p if number(p) is None else number(p)), shape)


@operation("normal", "normal_functional")
@reads("size")
def normal(w, call, x=None, mean=0.0, std=1.0, **_):
    """x: has the shape of the result if it changes in place, else nothing."""
    return w.expr("x * y + z", w.drawn("randn", call.shapes[0][0]), std, mean)


@operation("uniform", "exponential")
@reads("from", "to", "lambd")
def uniform(w, call, x, **given):
    drawn = w.drawn("rand", call.shapes[0][0])
    if call.op == "exponential":
        return w.expr(f"-log(1 - x) / {text(given.get('lambd', 1.0))}", drawn)
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    return w.expr(f"{text(low)} + x * {text(high - low)}", drawn)


@operation("multinomial")
def multinomial(w, call, x, num_samples, replacement=False, **_):
    """The index of the smallest of exponential variables with these rates has the classes' probabilities. The
    next smallest ones follow without replacement."""
    shape, lead = x.full, x.full[:-1]
    if replacement and num_samples > 1:
        shape = lead + (num_samples,) + x.full[-1:]
        x = w.reshape(x, lead + (1,) + x.full[-1:])
    score = w.expr("y / max(-log(1 - x), 1e-30)", w.drawn("rand", shape), x)
    count = num_samples if shape == lead + x.full[-1:] else 1
    y = w.add("topk_indices", [score], shape[:-1] + (count,), kind="i64", k=count, dim=len(shape) - 1)
    return w.reshape(y, call.shapes[0][0])
