"""A strict JSON reader (RFC 8259). It records the position of every value, so that errors name line and
column."""
import re
from array import array

MAX_BYTES = 64 << 20
MAX_DEPTH = 64

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS = {"true": True, "false": False, "null": None}


class SpecError(Exception):
    """An error in a spec: one sentence that begins with path:line:column."""


class Object(dict):
    """at: offset of the brace. key_at, value_at: offsets by key."""

    def __init__(self, at):
        super().__init__()
        self.at, self.key_at, self.value_at = at, {}, {}


class Array(list):
    """at: offset of the bracket. value_at: offsets by index."""

    def __init__(self, at):
        super().__init__()
        self.at, self.value_at = at, array("Q")


class MinusZero(int):
    """-0: the integer 0, but -0.0 where a float is expected."""

    def __float__(self):
        return -0.0


class Source:
    """A text with its path. It converts offsets to line and column for messages."""

    def __init__(self, text, path):
        self.text, self.path = text, path

    def place(self, at):
        line = self.text.count("\n", 0, at) + 1
        return "%s:%d:%d" % (self.path, line, at - self.text.rfind("\n", 0, at))

    def error(self, at, message):
        return SpecError("%s: %s" % (self.place(at), message))

    def inside(self, at, index):
        """The offset of character `index` in the string that begins at offset `at`."""
        at += 1
        for _ in range(index):
            _, at = _character(self, at) if self.text[at] == "\\" else ("", at + 1)
        return at


def _character(source, at):
    """The character of the escape at offset `at`, and the offset after it."""
    text, kind = source.text, source.text[at + 1:at + 2]
    if kind in _ESCAPES:
        return _ESCAPES[kind], at + 2
    code = _hex(source, at)
    end = at + 6
    if 0xD800 <= code < 0xDC00 and text[end:end + 2] == "\\u":
        low = _hex(source, end)
        if not 0xDC00 <= low < 0xE000:
            raise source.error(at, "a surrogate pair lacks its second half")
        code, end = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), end + 6
    if 0xD800 <= code < 0xE000:
        raise source.error(at, "half of a surrogate pair is no character")
    if code == 0:
        raise source.error(at, "a string may not hold the character \\u0000")
    return chr(code), end


def _hex(source, at):
    digits = _HEX.match(source.text, at + 2)
    if source.text[at + 1:at + 2] != "u" or not digits:
        raise source.error(at,
                           'unknown escape in a string; JSON knows \\" \\\\ \\/ \\b \\f \\n \\r \\t \\u0000')
    return int(digits.group(), 16)


class _Reader:
    def __init__(self, source):
        self.source, self.text, self.at = source, source.text, 0

    def fail(self, message, at=None):
        raise self.source.error(self.at if at is None else at, message)

    def next(self):
        """The next character that is no white space; empty at the end."""
        self.at = _SPACE.match(self.text, self.at).end()
        return self.text[self.at:self.at + 1]

    def document(self):
        value = self.value(0)
        if self.next():
            self.fail("unexpected %s behind the end of the JSON value" % _shown(self.next()))
        return value

    def value(self, depth):
        first = self.next()
        if first in ("{", "["):
            if depth == MAX_DEPTH:
                self.fail("nested deeper than %d" % MAX_DEPTH)
            return self.object(depth + 1) if first == "{" else self.array(depth + 1)
        if first == '"':
            return self.string()
        number = _NUMBER.match(self.text, self.at)
        if number:
            return self.number(number)
        for word in _WORDS:
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return _WORDS[word]
        return self.fail("%s where a JSON value belongs" % _shown(first))

    def number(self, match):
        start, self.at = self.at, match.end()
        if (self.text[self.at:self.at + 1] in tuple("0123456789.eE+-_") or
            self.text[self.at:self.at + 1].isalpha()):
            self.fail("no JSON number", start)
        if match.group(1) or match.group(2):
            value = float(match.group())
            if value in (float("inf"), float("-inf")):
                self.fail("the number is too large", start)
            return value
        if len(match.group()) > 20 or not -1 << 63 <= int(match.group()) < 1 << 63:
            self.fail("the integer does not fit 64 bits", start)
        return MinusZero() if match.group() == "-0" else int(match.group())

    def string(self):
        start, parts = self.at, []
        self.at += 1
        while True:
            match = _PLAIN.match(self.text, self.at)
            parts.append(match.group())
            self.at = match.end()
            stop = self.text[self.at:self.at + 1]
            if stop == '"':
                self.at += 1
                return "".join(parts)
            if stop != "\\":
                self.fail("a control character in a string; write it as an escape" if stop else
                          "the string has no end", self.at if stop else start)
            character, self.at = _character(self.source, self.at)
            parts.append(character)

    def separator(self, close, what, start):
        """Whether another item follows. Consumes the comma or the closing bracket."""
        found = self.next()
        if found not in (",", close) or not found:
            self.fail("%s where ',' or '%s' belongs" % (_shown(found), close) if found else
                      "the %s has no end" % what, self.at if found else start)
        self.at += 1
        return found == ","

    def object(self, depth):
        result = Object(self.at)
        self.at += 1
        more = self.next() != "}"
        if not more:
            self.at += 1
        while more:
            if self.next() != '"':
                self.fail("%s where a key in double quotes belongs" % _shown(self.next()))
            at = self.at
            key = self.string()
            if key in result:
                self.fail("the key %s stands twice in one object" % _shown(key), at)
            if self.next() != ":":
                self.fail("%s where ':' belongs" % _shown(self.next()))
            self.at += 1
            self.next()
            result.key_at[key], result.value_at[key] = at, self.at
            result[key] = self.value(depth)
            more = self.separator("}", "object", result.at)
        return result

    def array(self, depth):
        result = Array(self.at)
        self.at += 1
        more = self.next() != "]"
        if not more:
            self.at += 1
        while more:
            self.next()
            result.value_at.append(self.at)
            result.append(self.value(depth))
            more = self.separator("]", "array", result.at)
        return result


def _shown(text):
    return ascii(text if len(text) <= 40 else text[:40] + "...") if text else "the text ends"


def decode(data, path):
    """A Source from a file's bytes."""
    if len(data) > MAX_BYTES:
        raise SpecError("%s:1:1: the file is larger than %d MiB" % (path, MAX_BYTES >> 20))
    try:
        source = Source(data.decode("utf-8"), path)
    except UnicodeDecodeError as fault:
        before = Source(data[:fault.start].decode("utf-8"), path)
        raise before.error(len(before.text), "the file is not UTF-8 text") from None
    if source.text.startswith("\ufeff"):
        raise source.error(0, "the file begins with a byte order mark; save it as UTF-8 without one")
    return source


def read(source):
    """The value of the text: Object, Array, str, int, float, True, False or None."""
    return _Reader(source).document()
