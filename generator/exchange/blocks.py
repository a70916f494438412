"""GGUF's blocks of quantised numbers, and NF4. In a block of 32 a number q stands for d q, in Q4_1 and Q5_1
for d q + m, where d and m are F16. templates/gpunn/base/blocks.c is the same in C, bit for bit. Blocks of 256
and IQ4_NL are encoded by the search of ggml's make_qkx2_quants and make_qx_quants, in doubles."""
import array
import math
import struct
from bisect import bisect_left
from functools import reduce
from operator import add, mul

from ..floats import f32
from .arrays import Array, floats32

IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # ggml's kvalues_iq4nl
# QLoRA's quantiles of a normal distribution (arXiv 2305.14314, appendix E)
NF4_NUMBERS = floats32([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
                        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
                        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0])
NF4_MIDDLES = [f32(a + b) / 2 for a, b in zip(NF4_NUMBERS, NF4_NUMBERS[1:])]
IQ4_NL_MIDDLES = list(map(add, IQ4_NL, IQ4_NL[1:]))  # twice the middles between two numbers


class Block32:
    """A format of blocks of 32: d, m if there is one, the highest bits of 5, then two numbers a byte or, of 8
    bits, one."""
    length = 32

    def __init__(self, number, bits, minimum=False):
        self.number, self.bits, self.minimum = number, bits, minimum
        self.layout = "<e%s%s%s" % ("e" * minimum, "I" * (bits == 5), "32b" if bits == 8 else "16s")
        self.bytes = struct.calcsize(self.layout)
        self.levels = 1 << bits

    def decode(self, data):
        result = array.array("f")
        for scale, *rest in struct.iter_unpack(self.layout, data):
            least = rest.pop(0) if self.minimum else 0
            high = rest.pop(0) if self.bits == 5 else 0
            numbers = rest if self.bits == 8 else [x & 15 for x in rest[0]] + [x >> 4 for x in rest[0]]
            if self.bits == 5:
                numbers = [x | (high >> i & 1) << 4 for i, x in enumerate(numbers)]
            if self.minimum:
                result.extend([scale * x + least for x in numbers])
            else:
                zero = 0 if self.bits == 8 else self.levels // 2
                result.extend([scale * (x - zero) for x in numbers])
        return result

    def encode(self, values):
        """The blocks of an array of floats, as ggml's quantize_row_*_ref rounds them."""
        return b"".join([self.block(values[i:i + 32]) for i in range(0, len(values), 32)])

    def block(self, x):
        total, least = sum(x), 0.0
        if total != total and any(value != value for value in x):
            d = math.nan
        elif self.minimum:
            least = min(x)
            d = f32(f32(max(x) - least) / (self.levels - 1))
        elif self.bits == 8:
            d = f32(max(map(abs, x)) / 127)
        else:
            d = f32(max(x, key=abs) / -(self.levels // 2))
        scale = f32(1 / d) if d else 0.0
        if self.minimum:
            x = floats32([value - least for value in x])
        x = floats32([value * scale for value in x])
        return self.packed(d, least, nearest(x) if self.bits == 8 else self.levels_of(x))

    def levels_of(self, x):
        """Rounded down after half a level is added, to 0 ... levels - 1."""
        half, most = 0.5 if self.minimum else self.levels // 2 + 0.5, self.levels - 1
        return [(int(y) if y < most else most) if y > 0 else 0 for y in floats32([y + half for y in x])]

    def packed(self, d, least, numbers):
        parts = [half(d)] + [half(least)] * self.minimum
        if self.bits == 8:
            return b"".join(parts) + struct.pack("32b", *numbers)
        if self.bits == 5:
            parts.append(struct.pack("<I", sum([(x >> 4) << i for i, x in enumerate(numbers)])))
        return b"".join(parts) + bytes([a & 15 | (b & 15) << 4 for a, b in zip(numbers, numbers[16:])])


def half(value):
    """The bytes of the nearest F16."""
    try:
        return struct.pack("<e", value)
    except OverflowError:
        return struct.pack("<e", math.copysign(math.inf, value))


def nearest(x):
    """Half away from zero, to -127 ... 127, and 0 for NaN."""
    return [(int(y + 0.5) if y >= 0 else int(y - 0.5)) if -127 < y < 127 else
            (127 if y > 0 else -127) if y == y else 0 for y in x]


def groups_k(packed):
    """Scales and minimums of 6 bits of the eight groups of Q4_K and Q5_K."""
    scales = [byte & 63 for byte in packed[:4]] + [low & 15 | high >> 6 << 4
                                                   for low, high in zip(packed[8:], packed)]
    minima = [byte & 63 for byte in packed[4:8]] + [low >> 4 | high >> 6 << 4
                                                    for low, high in zip(packed[8:], packed[4:])]
    return scales, minima


def total(values):
    """The sum in the order of C; sum() rounds otherwise from Python 3.12 on."""
    return reduce(add, values, 0.0)


def level(y, most):
    """The nearest integer from 0 to most."""
    return (int(y + 0.5) if y < most else most) if y > 0 else 0


def best_line(x, most):
    """Scale and least, at most 0, so that scale q + least with q in 0 ... most is near x. Large numbers weigh
    more. Ranges of a tenth of a level more or less are tried, each from the least number found so far."""
    far, least = max(x), min(min(x), 0.0)
    if far == least:
        return 0.0, least
    size = math.sqrt(total(map(mul, x, x)) / len(x))
    w = floats32([size + abs(value) for value in x])
    sum_w, sum_x = total(w), total(map(mul, w, x))

    def sums(step):
        q = [level(step * (value - least), most) for value in x]
        wq = list(map(mul, w, q))
        return total(wq), total(map(mul, wq, q)), total(map(mul, wq, x))

    def error(scale, start):
        return (scale * (scale * sum_qq + 2 * start * sum_q - 2 * sum_xq) +
                start * (start * sum_w - 2 * sum_x))

    scale = (far - least) / most
    sum_q, sum_qq, sum_xq = sums(1 / scale)
    best = error(scale, least)
    for i in range(-10, 11):
        sum_q, sum_qq, sum_xq = sums((10 * most + i) / (10 * (far - least)))
        determinant = sum_w * sum_qq - sum_q * sum_q
        if not determinant > 0:
            continue
        slope = (sum_w * sum_xq - sum_x * sum_q) / determinant
        start = (sum_qq * sum_x - sum_q * sum_xq) / determinant
        if start > 0:
            slope, start = sum_xq / sum_qq, 0.0
        found = error(slope, start)
        if found < best:
            best, scale, least = found, slope, start
    return scale, least


def nearest_index(y):
    """The index of the nearest number of IQ4_NL, the lower one of two."""
    return bisect_left(IQ4_NL_MIDDLES, 2 * y)


def best_scale(x, ends, nearest_number):
    """The scale so that scale q is near x, for numbers q. The largest number of x is tried at the quotients
    `ends` of even and odd parts, and parts more or less."""
    far = max(x, key=abs)
    if abs(far) < 1e-15:
        return 0.0
    w = floats32([value / far * (value / far) for value in x])
    best = found = 0.0
    for k in range(19):  # 0, -1, 1, -2, 2 ...
        part = (-1 if k % 2 else 1) * ((k + 1) // 2)
        most, parts = ends[part % 2]
        step = (most + part) / (parts * far)
        q = [nearest_number(step * value) for value in x]
        wq = list(map(mul, w, q))
        sum_xq, sum_qq = total(map(mul, wq, x)), total(map(mul, wq, q))
        if sum_xq * sum_xq > best * sum_qq:
            found = sum_xq / sum_qq
            best = found * sum_xq
    return found


def encoded(values, length, block):
    """The blocks of an array. Where a number is not finite, neither is the scale."""
    parts = []
    for i in range(0, len(values), length):
        x = values[i:i + length].tolist()
        sizes = sum(map(abs, x))
        parts.append(block(x) if sizes < math.inf else block([0.0] * length, sizes))
    return b"".join(parts)


def widened(value):
    """The number that the nearest F16 stands for."""
    return struct.unpack("<e", half(f32(value)))[0]


def nearest_levels(x, step, start, most):
    """Round (x - start) / step to 0 ... most."""
    if step == 0 or not math.isfinite(step) or not math.isfinite(start):
        return [0] * len(x)
    return [level((value - start) / step, most) for value in x]


class Q4K:
    """Blocks of 256 in eight groups, each with a scale and a minimum. A byte holds numbers of two groups. Of
    5 bits, the highest ones are in 32 bytes."""
    length = 256

    def __init__(self, number, bits):
        self.number, self.bits = number, bits
        self.layout = "<ee12s%ds128s" % (32 * (bits - 4))
        self.bytes = struct.calcsize(self.layout)

    def decode(self, data):
        result = array.array("f")
        for scale, least, packed, high, low in struct.iter_unpack(self.layout, data):
            scales, minima = groups_k(packed)
            for group in range(8):
                step, start = scale * scales[group], least * minima[group]
                shift = group % 2 * 4
                numbers = [byte >> shift & 15 for byte in low[group // 2 * 32:group // 2 * 32 + 32]]
                if high:
                    numbers = [x | (byte >> group & 1) << 4 for x, byte in zip(numbers, high)]
                result.extend([step * x - start for x in numbers])
        return result

    def encode(self, values):
        return encoded(values, self.length, self.block)

    def block(self, x, scale=None):
        most = (1 << self.bits) - 1
        groups = [x[i:i + 32] for i in range(0, 256, 32)]
        found = [best_line(group, most) for group in groups]
        top, low = max(0.0, *(step for step, _ in found)), max(0.0, *(-start for _, start in found))
        d, dmin = widened(top / 63), widened(low / 63)
        scales = [level(63 * step / top, 63) if top else 0 for step, _ in found]
        minima = [level(-63 * start / low, 63) if low else 0 for _, start in found]
        q = [nearest_levels(group, d * s, -dmin * m, most) for group, s, m in zip(groups, scales, minima)]
        packed = ([s | (scales[i + 4] >> 4) << 6 for i, s in enumerate(scales[:4])] +
                  [m | (minima[i + 4] >> 4) << 6 for i, m in enumerate(minima[:4])] +
                  [s & 15 | (m & 15) << 4 for s, m in zip(scales[4:], minima[4:])])
        high = [sum([(q[j][i] >> 4) << j for j in range(8)]) for i in range(32)] if self.bits == 5 else []
        lows = [a & 15 | (b & 15) << 4 for j in range(0, 8, 2) for a, b in zip(q[j], q[j + 1])]
        return half(d if scale is None else scale) + half(dmin) + bytes(packed + high + lows)


class Q6K:
    """Blocks of 256 in sixteen groups, each with a scale. A number's low four bits and its high two are
    stored apart."""
    number, length, bytes = 14, 256, 210

    def decode(self, data):
        result = array.array("f")
        for low, high, *scales, scale in struct.iter_unpack("<128s64s16be", data):
            for part in range(8):
                upper, k = divmod(part, 4)
                lows, highs = low[64 * upper + k % 2 * 32:][:32], high[32 * upper:][:32]
                numbers = [(a >> k // 2 * 4 & 15 | (b >> 2 * k & 3) << 4) - 32 for a, b in zip(lows, highs)]
                steps = [scale * scales[2 * part + i] for i in (0, 1)]
                result.extend([steps[i // 16] * number for i, number in enumerate(numbers)])
        return result

    def encode(self, values):
        return encoded(values, self.length, self.block)

    def block(self, x, scale=None):
        groups = [x[i:i + 16] for i in range(0, 256, 16)]
        found = [best_scale(group, ((320, -10),) * 2, lambda y: level(y + 32, 63) - 32)
                 for group in groups]
        top = max(found, key=abs)
        d = widened(top / -128)
        scales = [level(-128 * step / top + 128, 255) - 128 if top else 0 for step in found]
        q = [n for group, s in zip(groups, scales) for n in nearest_levels(group, d * s, -32 * d * s, 63)]
        low, high = [], []
        for at in 0, 128:
            a, b, c, e = (q[at + 32 * k:at + 32 * k + 32] for k in range(4))
            low += [m & 15 | (n & 15) << 4 for m, n in zip(a + b, c + e)]
            high += [k >> 4 | (m >> 4) << 2 | (n >> 4) << 4 | (p >> 4) << 6 for k, m, n, p in zip(a, b, c, e)]
        return bytes(low + high) + struct.pack("16b", *scales) + half(d if scale is None else scale)


class IQ4NL:
    """Blocks of 32 indices into a table of numbers, two a byte, with a scale."""
    number, length, bytes = 20, 32, 18

    def decode(self, data):
        result = array.array("f")
        for scale, packed in struct.iter_unpack("<e16s", data):
            result.extend([scale * IQ4_NL[byte & 15] for byte in packed])
            result.extend([scale * IQ4_NL[byte >> 4] for byte in packed])
        return result

    def encode(self, values):
        return encoded(values, self.length, self.block)

    def block(self, x, scale=None):
        d = widened(best_scale(x, ((113, 1), (127, -1)), lambda y: IQ4_NL[nearest_index(y)]))
        q = [nearest_index(value / d) if d else 0 for value in x]
        return half(d if scale is None else scale) + bytes([a | b << 4 for a, b in zip(q, q[16:])])


class NF4:
    """QLoRA's NormalFloat: the largest size of 64 numbers in F32, and indices into a table of floats, two a
    byte, the first in its upper half. bitsandbytes has the same bits. GGUF has no number for it."""
    number, length, bytes = None, 64, 36

    def decode(self, data):
        result = array.array("f")
        for scale, packed in struct.iter_unpack("<f32s", data):
            result.extend([scale * NF4_NUMBERS[q] for byte in packed for q in (byte >> 4, byte & 15)])
        return result

    def encode(self, values):
        return b"".join([self.block(values[i:i + 64].tolist()) for i in range(0, len(values), 64)])

    def block(self, x):
        scale = max(map(abs, x)) if all(value == value for value in x) else math.nan
        inverse = f32(1 / max(scale, f32(1e-38)))
        q = [bisect_left(NF4_MIDDLES, y) if y == y else 15
             for y in floats32([value * inverse for value in x])]
        return struct.pack("<f", scale) + bytes([a << 4 | b for a, b in zip(q[::2], q[1::2])])


FORMATS = {"Q4_0": Block32(2, 4), "Q4_1": Block32(3, 4, True), "Q5_0": Block32(6, 5),
           "Q5_1": Block32(7, 5, True), "Q8_0": Block32(8, 8), "Q4_K": Q4K(12, 4), "Q5_K": Q4K(13, 5),
           "Q6_K": Q6K(), "IQ4_NL": IQ4NL(), "NF4": NF4()}


class BlockArray(Array):
    """A tensor of blocks, whose values are floats."""

    def __init__(self, format_name, shape, data):
        block = FORMATS[format_name]
        super().__init__("float32", shape, raw=block.decode(data).tobytes())
        self.format, self.data = format_name, bytes(data)
