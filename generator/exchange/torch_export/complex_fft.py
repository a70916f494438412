"""Complex tensors as real and imaginary parts, and Fourier transforms."""
import math

from ..spec_writer import Constant, Parameter, Refused, Value, normal_axis, size_name, waves
from .convolutions import conv
from .operands import Complex
from .reductions import ROOT
from .registry import OPERATIONS, operation
from .shapes import pick, roll, stack


@operation("fft_fftshift", "fft_ifftshift")
def shifted(w, call, x, dim=None):
    dims = list(range(len(x.full))) if dim is None else dim if isinstance(dim, list) else [dim]
    sizes = [w.known_size(x, normal_axis(axis, len(x.full))) for axis in dims]
    return roll(w, call, x, [size // 2 if call.op == "fft_fftshift" else -(size // 2) for size in sizes],
                dims)


def of_products(function):
    """A product of two tensors, at least one of them complex, from the products of their parts."""
    def lower(w, call, **arguments):
        names = [name for name, x in arguments.items()
                 if isinstance(x, (Complex, Value, Constant, Parameter))]
        pair = arguments.get("tensors") or [arguments[name] for name in names]

        def product(*parts):
            if len(pair) != 2:
                raise Refused("complex numbers are possible in a product of two tensors only")
            parts = [getattr(x, part) if isinstance(x, Complex) else x if part == "real" else None
                     for x, part in zip(pair, parts)]
            given = {"tensors": parts} if "tensors" in arguments else dict(zip(names, parts))
            return None if any(x is None for x in parts) else function(w, call, **dict(arguments, **given))

        real, both, cross, other = [product(*parts.split())
                                    for parts in ("real real", "imag imag", "real imag", "imag real")]
        imag = cross if other is None else other if cross is None else w.map("add", cross, other)
        return Complex(real if both is None else w.map("sub", real, both), imag)
    return lower


def of_parts(function):
    """A linear operation on the real parts, then on the imaginary ones, which are zeros for real operands."""
    def part(name, key, x):
        if isinstance(x, list) and key == "tensors":
            return [part(name, key, y) for y in x]
        return (getattr(x, name) if isinstance(x, Complex) else 0.0 if name == "imag" and
                key in ("x", "other", "src") else x)

    def lower(w, call, **arguments):
        parts = [{key: part(name, key, x) for key, x in arguments.items()} for name in ("real", "imag")]
        return Complex(*[function(w, call, **given) for given in parts])
    return lower


def of_length(w, x, dim, n):
    """The first n elements along an axis, padded with zeros."""
    dim = normal_axis(dim, len(x.full))
    size = x.full[dim]
    if n is None or n == size:
        return x
    if isinstance(x, Complex):
        return Complex(of_length(w, x.real, dim, n), of_length(w, x.imag, dim, n))
    x = w.f32(w.whole(w.slice(x, dim, 0, min(n, size))))
    after = [max(0, n - size) if i == dim else 0 for i in range(len(x.shape))]
    return (w.add("pad", [x], tuple(d + a for d, a in zip(x.shape, after)), before=[0] * len(after),
                  after=after) if n > size else x)


def norm_scale(norm, count, inverse):
    return {"ortho": 1 / math.sqrt(count),
            "forward": 1 if inverse else 1 / count}.get(norm, 1 / count if inverse else 1)


@operation("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_fftn", "fft_fft2", "fft_ifftn", "fft_ifft2",
           "fft_rfftn", "fft_rfft2", "fft_irfftn", "fft_irfft2")
def fourier(w, call, x, n=None, s=None, dim=None, norm=None):
    """One axis after another. For real numbers half of the last axis is kept. It is the first axis of a
    transform, and the last of an inverse."""
    rank, half, inverse = len(x.full), "rfft" in call.op, "_i" in call.op
    if dim is None:
        dim = list(range(rank - len(s) if s else 0, rank)) if call.op.endswith("n") else -1
    axes = [normal_axis(axis, rank) for axis in (dim if isinstance(dim, (list, tuple)) else [dim])]
    for axis, size in list(zip(axes, s or [n] * len(axes)))[::-1 if half and not inverse else 1]:
        real, size = half and axis == axes[-1], None if size == -1 else size
        count = call.shapes[0][0][axis] if real and inverse else x.full[axis] if size is None else size
        if count < 0:
            raise Refused(f"the axis is {size_name(count)}")
        x, scale = (of_length(w, x, axis, count // 2 + 1 if real and inverse else count),
                    norm_scale(norm, count, inverse))
        parts = [x.real, x.imag] if isinstance(x, Complex) else [x]
        x = (w.real_of_half(parts, axis, count, scale) if real and inverse else
             Complex(*w.fourier(parts, axis, count // 2 + 1 if real else count, inverse, scale)))
    return x


def wave_matrices(w, rows, size):
    return [w.torch.tensor(wave, dtype=w.torch.float64).reshape(rows, size) for wave in waves(rows, size)]


def stft_weight(w, rows, n_fft, win_length, window, scale):
    """The window times the cosines, then the negative sines, of each frequency, [2 rows, n_fft]; and the
    window."""
    length = win_length or n_fft
    own = w.torch.ones(length) if window is None else window.tensor
    own = w.torch.nn.functional.pad(own.double(),
                                    ((n_fft - length) // 2, n_fft - length - (n_fft - length) // 2))
    cos, sin = wave_matrices(w, rows, n_fft)
    return w.torch.cat([cos, -sin]) * own * scale, own


@operation("stft")
def stft(w, call, x, n_fft, hop_length=None, win_length=None, window=None, normalized=False, onesided=True,
         return_complex=None, **_):
    """A convolution with one channel for each row of the weight."""
    count = n_fft // 2 + 1 if onesided is not False else n_fft
    weight, _ = stft_weight(w, count, n_fft, win_length, window, n_fft ** -0.5 if normalized else 1)
    rows, frames = x.full[:-1] or (1,), (x.full[-1] - n_fft) // (hop_length or n_fft // 4) + 1
    y = conv(w, call._replace(op="conv1d", shapes=[(rows + (2 * count, frames), call.shapes[0][1])]),
             w.reshape(x, rows + (1,) + x.full[-1:]), Constant(weight.float()[:, None]),
             stride=hop_length or n_fft // 4)
    parts = [w.reshape(w.slice(y, 1, i, i + count), x.full[:-1] + (count, frames)) for i in (0, count)]
    return Complex(*parts) if return_complex else stack(w, call, parts, len(parts[0].full))


@operation("istft")
def istft(w, call, x, n_fft, hop_length=None, win_length=None, window=None, center=True, normalized=False,
          onesided=None, length=None, return_complex=False):
    """A transposed convolution of frames with the same weight, divided by the sum of the windows' squares."""
    lead, (count, frames), hop = x.full[:-2], x.full[-2:], hop_length or n_fft // 4
    if return_complex or frames < 0:
        raise Refused(f"its frames are {size_name(frames)}" if frames < 0 else
                      "complex results are not possible")
    weight, own = stft_weight(w, count, n_fft, win_length, window, n_fft ** -0.5 if normalized else 1 / n_fft)
    if count != n_fft or onesided:
        times = w.torch.tensor([1.0 if 2 * k % n_fft == 0 else 2.0 for k in range(count)] * 2)
        weight *= times[:, None]
    rows, size, start = lead or (1,), n_fft + hop * (frames - 1), n_fft // 2 if center else 0
    squares = w.torch.nn.functional.conv_transpose1d(w.torch.ones(1, 1, frames).double(),
                                                     own.square()[None, None], stride=hop)
    y = w.add("concat",
              [w.f32(w.whole(w.reshape(part, rows + (count, frames)))) for part in (x.real, x.imag)],
              rows + (2 * count, frames), dim=1)
    y = conv(w, call._replace(op="conv_transpose1d", shapes=[(rows + (1, size), call.shapes[0][1])]), y,
             Constant(weight.float()[:, None]), stride=hop)
    end = min(size, start + length) if length else size - start
    y = w.slice(w.map("div", y, Constant((squares + (squares == 0)).float())), 2, start, end)
    return w.reshape(of_length(w, y, 2, length), call.shapes[0][0])


@operation("abs", "absolute")
def absolute(w, call, x):
    if isinstance(x, Complex):
        return w.expr("s = x * x + y * y; " + ROOT.replace("x", "s"), x.real, x.imag)
    return w.map("abs", x)


@operation("complex", "polar")
def complex_of(w, call, real=None, imag=None, abs=None, angle=None):
    if call.op == "complex":
        return Complex(w.f32(w.whole(real)), w.f32(w.whole(imag)))
    return Complex(*[w.map("mul", abs, w.map(wave, angle)) for wave in ("cos", "sin")])


@operation("conj", "_conj", "conj_physical", "_conj_physical", "resolve_conj", "resolve_neg", "angle")
def conjugated(w, call, x):
    if call.op == "angle":
        return w.map("atan2", x.imag, x.real)
    return x if call.op.startswith("resolve") else Complex(x.real, w.map("neg", x.imag))


@operation("real", "imag", "view_as_real", "view_as_complex")
def parts_of_complex(w, call, x):
    if call.op == "view_as_complex":
        return Complex(*[pick(w, x, len(x.full) - 1, i) for i in range(2)])
    return stack(w, call, [x.real, x.imag], len(x.full)) if call.op == "view_as_real" else getattr(x, call.op)


# on complex numbers, part by part
LINEAR = ("add", "sub", "rsub", "neg", "sum", "mean", "cumsum", "view", "reshape", "flatten", "unflatten",
          "squeeze", "unsqueeze", "permute", "transpose", "movedim", "slice", "select", "narrow", "cat",
          "stack", "expand", "clone", "contiguous", "detach", "roll", "flip", "slice_scatter",
          "select_scatter", "copy", "fft_fftshift", "fft_ifftshift")
PRODUCTS = ("matmul", "mm", "bmm", "mv", "dot", "outer", "ger", "einsum")
OF_COMPLEX = ("mul", "multiply", "div", "divide", "true_divide", "abs", "absolute", "angle", "conj", "_conj",
              "conj_physical", "_conj_physical", "resolve_conj", "resolve_neg", "real", "imag",
              "view_as_real", "istft", "fft_fft", "fft_ifft", "fft_irfft", "fft_fftn", "fft_fft2",
              "fft_ifftn", "fft_ifft2", "fft_irfftn", "fft_irfft2", "to", "_to_copy")


def of_complex(op):
    """The operation if an operand is complex."""
    if op in LINEAR:
        return of_parts(OPERATIONS[op])
    if op in PRODUCTS:
        return of_products(OPERATIONS[op])
    if op not in OF_COMPLEX:
        raise Refused("complex numbers are not possible")
    return OPERATIONS[op]
