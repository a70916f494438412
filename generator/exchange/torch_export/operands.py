"""Queries about operands: dtypes, known numbers, ranges of integers, indices, complex parts."""
from ..spec_writer import Constant, Parameter, Refused, Value, is_number, normal_axis
from .symbols import Size
from ...sizes import varies


def dtype_name(torch, dtype, of_input=False):
    """gpunn's name of a dtype. 8-bit and 16-bit integers are computed as i32, see Lowering.wrapped."""
    names = {torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8", torch.bool: "bool"}
    names.update({} if of_input else {torch.int8: "i32", torch.int16: "i32"})
    if not dtype.is_floating_point and dtype not in names:
        raise Refused(f"tensors of {dtype} are not possible")
    return names.get(dtype, "f32")


def number(x):
    """x as a float, if it is a known scalar, else None."""
    if isinstance(x, Constant) and x.full == ():
        return float(x.tensor)
    return float(x) if is_number(x) else None


def known_number(name, x):
    if number(x) is None:
        raise Refused(f"its {name} is not known beforehand")
    return number(x)


def truth(w, x):
    """1 where x is true, else 0."""
    return w.f32(x) if dtype_of(w, x) == "bool" else w.expr("where(x == 0, 0, 1)", x)


def is_large(w, x):
    """Whether x may be an integer of 2^24 or more: an input, or such a constant."""
    if isinstance(x, (int, float)):
        return isinstance(x, int) and abs(x) >= 2 ** 24
    if isinstance(x, Constant):
        return not x.tensor.is_floating_point() and bool((x.tensor.double().abs() >= 2 ** 24).any())
    x = w.tensor(x)
    whole = x.dtype in ("i64", "i32")
    while x.entry.op in ("reshape", "cast") and x.entry not in w.small:
        x = x.entry.inputs[0]
    return whole and not (x.is_bool or x.dtype in ("bool", "u8") or
                          x.entry.op in ("argmax", "topk_indices", "one_hot") or
                          x.entry in w.ranges or x.entry in w.small)


def whole_number(x):
    """x as an integer, if it is a known scalar, else None."""
    if isinstance(x, Constant) and x.full == () and not x.tensor.is_floating_point():
        return int(x.tensor)
    return x if isinstance(x, int) else None


def is_whole(w, x):
    """Whether x is integers or bool, also if gpunn has them as floats."""
    if isinstance(x, Constant):
        return not x.tensor.is_floating_point()
    return isinstance(x, (bool, int)) or (isinstance(x, Value) and (x.is_bool or x.dtype != "f32"))


def place_of(x, size):
    """An index along an axis of that size, as a number or a varying dimension."""
    if isinstance(x, Size) and not varies(x.dim):
        raise Refused("it cuts the batch" if size < 0 else "its place depends on the batch size")
    return x.dim if isinstance(x, Size) else x


def place_from_start(x, size):
    """The same. Negative numbers count from the end."""
    x = place_of(x, size)
    return x if varies(x) else normal_axis(x, size)


def is_exact(w, x):
    """Whether x holds integers that may not fit float32."""
    return is_whole(w, x) and is_large(w, x)


def negative(w, x):
    return w.integer("neg", x) if is_exact(w, x) else w.map("neg", x)


class Complex:
    """A complex tensor, as its real and its imaginary part."""

    def __init__(self, real, imag):
        self.real, self.imag = real, imag
        self.full = () if is_number(real) else real.full


def complex_parts(x):
    """Replaces complex constants by their two parts."""
    if isinstance(x, list):
        return [complex_parts(y) for y in x]
    if isinstance(x, complex):
        return Complex(x.real, x.imag)
    if isinstance(x, Constant) and x.tensor.is_complex():
        return Complex(*[Constant(part.contiguous(), x.full, x.name and f"{x.name}.{name}")
                         for name, part in (("real", x.tensor.real), ("imag", x.tensor.imag))])
    return x


def small_integers(w, x):
    """x as integers, which stay below 2^24."""
    x = w.integers(x, INDICES)
    w.small.add(x.entry)
    return x


INDICES = ("i64", "i32")


def dtype_of(w, x):
    """The dtype of an operand, bool if it is that in PyTorch."""
    if isinstance(x, Constant):
        return dtype_name(w.torch, x.tensor.dtype)
    x = w.tensor(x)
    return "bool" if x.is_bool else x.dtype


def has_gradient(x, of_inputs=True):
    """Whether x is a learned parameter, or computed from such, or from floating-point inputs."""
    if not isinstance(x, Value):
        return isinstance(x, Parameter) and x.tensor.requires_grad
    found = {x.entry: None} if x.dtype == "f32" else {}
    pending = list(found)
    while pending:
        entry = pending.pop()
        if (of_inputs and entry.op == "input") or any(isinstance(p, Parameter) and p.tensor.requires_grad
                                                      for p in entry.weights):
            return True
        reads = ([y.entry for y in entry.reads() if y.dtype == "f32" and
                  y.entry not in found] if entry.op != "detach" else [])
        found.update(dict.fromkeys(reads))
        pending += reads
    return False


def check_mode(w, training):
    if training != w.training:
        raise Refused("its mode, of training or evaluation, is not the model's")
