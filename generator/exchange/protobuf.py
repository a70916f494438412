"""The wire format of protocol buffers. Tables describe the messages. Input is treated as hostile.

A table of fields is {number: (name, kind)}. A kind is int, float, double, text, bytes or another table.
Repeated fields have * before the kind, or the table in a list."""
import struct

MAX_DEPTH = 64
MAX_MESSAGES = 2000000
_FIXED = {"float": ("<f", 5), "double": ("<d", 1)}  # format and wire type
_DEFAULTS = {"int": 0, "float": 0.0, "double": 0.0, "text": "", "bytes": b""}


class ProtobufError(Exception):
    """An error in a file."""


class Message:
    """A message with its fields by name. Unset fields are 0, empty, [] or None."""

    def __init__(self, fields, **values):
        self._fields, self._values = fields, values

    def __getattr__(self, name):
        if name in self._values:
            return self._values[name]
        for kind, repeated in (_kind(kind) for own, kind in self._fields.values() if own == name):
            if repeated:
                return self._values.setdefault(name, [])
            return None if isinstance(kind, dict) else _DEFAULTS[kind]
        raise AttributeError(name)

    def has(self, name):
        return name in self._values


def _kind(kind):
    """A field's kind, and whether it is repeated."""
    if isinstance(kind, list):
        return kind[0], True
    return (kind[1:], True) if isinstance(kind, str) and kind[0] == "*" else (kind, False)


class _Reader:
    def __init__(self, data):
        self.data, self.messages = data, 0

    def varint(self, at, end):
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                raise ProtobufError("it ends within a number, at byte %d" % at)
            byte = self.data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value & (1 << 64) - 1, at
        raise ProtobufError("a number has more than 10 bytes, at byte %d" % at)

    def integer(self, at, end):
        value, at = self.varint(at, end)
        return value - (1 << 64) if value >> 63 else value, at

    def payload(self, wire, at, end):
        """The bounds of the bytes after a tag."""
        if wire == 0:
            return at, self.varint(at, end)[1]
        if wire == 2:
            size, at = self.varint(at, end)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ProtobufError("a field has the unknown wire type %d, at byte %d" % (wire, at))
        if size > end - at:
            raise ProtobufError("a field of %d bytes lies outside what holds it, at byte %d" % (size, at))
        return at, at + size

    def scalars(self, kind, wire, at, end):
        """The values of a field of ints, floats or doubles, packed or not."""
        if kind == "int":
            result = []
            while at < end:
                value, at = self.integer(at, end)
                result.append(value)
            return result
        form, own = _FIXED[kind]
        size = struct.calcsize(form)
        if wire not in (2, own) or (end - at) % size:
            raise ProtobufError("a %s is cut off, at byte %d" % (kind, at))
        return list(struct.unpack("<%d%s" % ((end - at) // size, form[1]), self.data[at:end]))

    def value(self, kind, wire, at, end, depth):
        if isinstance(kind, str) and kind not in ("text", "bytes"):
            return self.scalars(kind, wire, at, end)
        if wire != 2:
            raise ProtobufError("a field has the wire type %d of a number, at byte %d" % (wire, at))
        if isinstance(kind, dict):
            return [self.message(kind, at, end, depth + 1)]
        if kind == "bytes":
            return [self.data[at:end]]
        try:
            return [bytes(self.data[at:end]).decode("utf-8")]
        except UnicodeDecodeError:
            raise ProtobufError("a text is not UTF-8, at byte %d" % at) from None

    def message(self, fields, at, end, depth=0):
        self.messages += 1
        if depth > MAX_DEPTH or self.messages > MAX_MESSAGES:
            raise ProtobufError("it is nested deeper than %d or holds more than %d messages" %
                                (MAX_DEPTH, MAX_MESSAGES))
        result = Message(fields)
        while at < end:
            tag, at = self.varint(at, end)
            start, at = self.payload(tag & 7, at, end)
            if tag >> 3 not in fields:
                continue
            name, kind = fields[tag >> 3]
            kind, repeated = _kind(kind)
            values = self.value(kind, tag & 7, start, at, depth)
            if repeated:
                result._values.setdefault(name, []).extend(values)
            elif values:
                result._values[name] = values[-1]
        return result


def read(data, fields):
    """Parses all of data as one message. Its bytes are slices of data."""
    data = memoryview(data)
    return _Reader(data).message(fields, 0, len(data))


def _varint(value):
    value &= (1 << 64) - 1
    result = bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes(result) + bytes((value,))


def _sized(number, chunk):
    return [_varint(number << 3 | 2) + _varint(len(chunk)), chunk]


def _written(number, kind, value):
    if isinstance(kind, dict):
        return _sized(number, write(value))
    if kind == "int":
        return [_varint(number << 3) + _varint(value)]
    if kind in _FIXED:
        return [_varint(number << 3 | _FIXED[kind][1]) + struct.pack(_FIXED[kind][0], value)]
    return _sized(number, value.encode("utf-8") if kind == "text" else value)


def write(message):
    """The bytes of a message. Repeated numbers are packed."""
    chunks = []
    for number, (name, kind) in sorted(message._fields.items()):
        kind, repeated = _kind(kind)
        if not message.has(name):
            continue
        value = message._values[name]
        if repeated and kind == "int":
            chunks += _sized(number, b"".join(map(_varint, value))) if value else []
        elif repeated and kind in ("float", "double"):
            chunks += (_sized(number, struct.pack("<%d%s" % (len(value), _FIXED[kind][0][1]), *value))
                       if value else [])
        else:
            for one in value if repeated else [value]:
                chunks += _written(number, kind, one)
    return b"".join(chunks)
