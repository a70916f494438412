"""Numbers with the values that C's float types can hold, stored in Python's floats."""
import math
import struct

INFINITY = math.inf
NAN = math.nan


def f32(value):
    """The nearest float32: ties to even, infinity on overflow."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(INFINITY, value)


def f16(value):
    try:
        return struct.unpack("<e", struct.pack("<e", f32(value)))[0]
    except OverflowError:
        return math.copysign(INFINITY, value)


def bf16(value):
    if value != value:
        return value
    bits = struct.unpack("<I", struct.pack("<f", f32(value)))[0]
    bits = bits + 0x7fff + (bits >> 16 & 1) & 0xffff0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def digits(value):
    """The shortest decimal text that parses to the same float."""
    return next(text for text in ("%.*g" % (count, value) for count in range(1, 10))
                if f32(float(text)) == value)


def short(value):
    """The shortest decimal that rounds to this float."""
    number = float(digits(value))
    return int(number) if number == int(number) else number


ROUND = {"f32": f32, "f16": f16, "bf16": bf16}
