"""Tensors with known values, without numpy. They stay bytes until someone needs the values."""
import array
import math
import struct

from .spec_writer import Refused, product

# By kind: the letter for array and struct. bf16 is widened from 16 bits; 8-bit floats are bytes until they
# are decoded.
CODES = {"float32": "f", "float64": "d", "float16": "e", "bfloat16": "H", "int8": "b", "uint8": "B",
         "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q", "bool": "?",
         "float8_e4m3fn": "B", "float8_e5m2": "B"}
FLOATS8 = ("float8_e4m3fn", "float8_e5m2")
USUAL_FLOATS = ("float32", "float64", "float16", "bfloat16")
FLOATS = USUAL_FLOATS + FLOATS8
RANGES = {kind: (0, 2 ** (8 * struct.calcsize(code)) - 1) if kind[0] == "u" else
          (-2 ** (8 * struct.calcsize(code) - 1), 2 ** (8 * struct.calcsize(code) - 1) - 1)
          for kind, code in CODES.items() if "int" in kind}
MAX_ELEMENTS = 1 << 24  # of a tensor that is computed here, not read
STORED = {"int32": "i32", "int64": "i64", "uint8": "u8", "bool": "bool"}  # gpunn's dtypes
SAFETENSORS = {"f32": "F32", "i64": "I64", "i32": "I32", "u8": "U8", "bool": "BOOL"}


def item_size(kind):
    return struct.calcsize(CODES[kind])


def is_float(kind):
    return kind in FLOATS


def stored_dtype(kind):
    """The smallest dtype of gpunn that holds all values of a kind."""
    if is_float(kind):
        return "f32"
    return STORED.get(kind, "i64" if kind in ("uint32", "uint64") else "i32")


class Array:
    """A tensor: shape, kind (numpy's name), and values in a flat list or as bytes. A value may be a Size."""

    def __init__(self, kind, shape, values=None, raw=None):
        self.kind, self.shape, self._values, self._raw = kind, tuple(shape), values, raw

    def count(self):
        return product(self.shape)

    def item_size(self):
        return item_size(self.kind)

    @property
    def values(self):
        if self._values is None:
            self._values = decoded(self.kind, self._raw)
        return self._values

    def f32_bytes(self):
        """The values as the nearest float32."""
        if self._raw is not None and self.kind == "float32":
            return bytes(self._raw)
        return floats32(map(to_odd, self.values) if self.kind in ("int64", "uint64") else
                        self.values).tobytes()

    def as_floats(self):
        """The values as weights are stored: integers and 8-bit floats as the nearest float32."""
        return self if self.kind in USUAL_FLOATS else Array("float32", self.shape, raw=self.f32_bytes())

    def encoded(self):
        """The values as bytes of the kind."""
        if self._raw is not None:
            return bytes(self._raw)
        if self.kind == "bfloat16":
            return array.array(
                "H", [bits >> 16 for bits in array.array("I", floats32(self._values).tobytes())]).tobytes()
        if self.kind in ("float16", "bool"):
            return struct.pack("<%d%s" % (len(self._values), CODES[self.kind]), *self._values)
        return array.array(CODES[self.kind], self._values).tobytes()

    def reshape(self, shape):
        return Array(self.kind, shape, self._values, self._raw)

    def item(self):
        return self.values[0]


def to_odd(x):
    """An integer with at most 53 significant bits that rounds to the same float32."""
    spare = max(abs(x).bit_length() - 53, 0)
    kept = (abs(x) >> spare | bool(abs(x) & (1 << spare) - 1)) << spare
    return -kept if x < 0 else kept


def floats32(values):
    """An array of floats. Values that are too large become infinity."""
    try:
        return array.array("f", values)
    except OverflowError:
        limit = 3.4028235677973366e38  # from here on floats round to infinity
        return array.array("f",
                           [x if abs(x) < limit or x != x else math.copysign(math.inf, x) for x in values])


def float8(byte, kind):
    """The number that an 8-bit float stands for."""
    if kind == "float8e8m0":
        return 2.0 ** (byte - 127) if byte != 255 else float("nan")
    exponent_bits = 4 if "e4" in kind else 5
    mantissa_bits = 7 - exponent_bits
    bias = (1 << exponent_bits - 1) - 1 + kind.endswith("uz")
    exponent, mantissa = byte >> mantissa_bits & (1 << exponent_bits) - 1, byte & (1 << mantissa_bits) - 1
    sign = -1.0 if byte >> 7 else 1.0
    if kind.endswith("uz") and byte == 128 or kind == "float8e4m3fn" and byte & 127 == 127:
        return float("nan")
    if kind == "float8e5m2" and exponent == 31:
        return float("nan") if mantissa else sign * float("inf")
    scale = 2.0 ** (max(exponent, 1) - bias - mantissa_bits)
    return sign * (mantissa + (1 << mantissa_bits if exponent else 0)) * scale


def decoded(kind, raw):
    if kind in FLOATS8:
        return list(map([float8(byte, kind.replace("_", "")) for byte in range(256)].__getitem__, bytes(raw)))
    if kind == "bfloat16":
        return array.array(
            "f", array.array("I", [x << 16 for x in array.array("H", bytes(raw))]).tobytes()).tolist()
    return list(struct.unpack("<%d%s" % (len(raw) // item_size(kind), CODES[kind]), raw))


def swapped(raw, kind):
    """The bytes of numbers in the other byte order."""
    size = item_size(kind)
    result = bytearray(len(raw))
    for i in range(size):
        result[i::size] = raw[size - 1 - i::size]
    return bytes(result)


def strides(shape):
    result, step = [], 1
    for size in reversed(shape):
        result.insert(0, step)
        step *= size
    return result


def transposed(x, order):
    """x with its axes in another order."""
    shape, steps = [x.shape[i] for i in order], strides(x.shape)
    source = (array.array(CODES[x.kind], bytes(x._raw)) if x._raw is not None and
              x.kind not in ("float16", "bool") else x.values)
    raw = isinstance(source, array.array)
    result = gathered(source, shape, [steps[i] for i in order])
    return Array(x.kind, shape, raw=result.tobytes()) if raw else Array(x.kind, shape, result)


def by_row(kind, shape, raw):
    """The Array of numbers that are stored by column, as Fortran does."""
    return transposed(Array(kind, shape[::-1], raw=raw), list(range(len(shape)))[::-1])


def check_count(count):
    """Raises Refused if a tensor has too many elements to compute one by one."""
    if count > MAX_ELEMENTS:
        raise Refused("a tensor of %d elements would have to be computed now; %d are possible" %
                      (count, MAX_ELEMENTS))


def gathered(source, shape, steps, start=0):
    """The elements of a flat sequence, with these steps along each axis of shape."""
    if 0 in steps:
        check_count(product(shape))
    if product(shape) == 0:
        return source[:0]
    if not shape:
        return source[start:start + 1]
    size, step = shape[-1], steps[-1]
    result = source[:0]
    for offset in offsets(shape[:-1], steps[:-1], start):
        if step == 0:
            result.extend(source[offset:offset + 1] * size)
        elif step > 0:
            result.extend(source[offset:offset + (size - 1) * step + 1:step])
        else:
            last = offset + (size - 1) * step
            result.extend(source[offset:last - 1 if last else None:step])
    return result


def offsets(shape, steps, start=0):
    """The offset of each element in row-major order."""
    places = [start]
    for size, step in zip(shape, steps):
        places = [place + i * step for place in places for i in range(size)]
    return places


def expanded(x, shape):
    """The values of x broadcast to shape, in a flat list."""
    own = (1,) * (len(shape) - len(x.shape)) + x.shape
    if own == tuple(shape):
        return x.values
    if any(size not in (1, wanted) for size, wanted in zip(own, shape)):
        raise Refused("%s does not expand to %s" % (list(x.shape), list(shape)))
    return gathered(x.values, list(shape),
                    [0 if size == 1 else step for size, step in zip(own, strides(own))])
