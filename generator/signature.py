"""Signatures: the shape rule of an op as a text of gpunn.h's table (>>graph/infer), such as
"f32 [n, classes], f32 [n] -> i64 [n]"."""
import re
from collections import namedtuple
from functools import lru_cache

# dtype: f32, i64, u8, index (i64 or i32) or any (one for all). sizes: names, numbers and "..."
Shape = namedtuple("Shape", "dtype sizes")


@lru_cache(maxsize=None)
def parse(text):
    """The Shapes of the operands, and that of the result."""
    shapes = [Shape(dtype, tuple(re.findall(r"\w+|\.\.\.", sizes)))
              for dtype, sizes in re.findall(r"(\w+) *\[(.*?)\]", text)]
    return shapes[:-1], shapes[-1]


def keys(shape):
    """The sizes of a Shape, of which a second "..." has another name than the first."""
    seen = 0
    for size in shape.sizes:
        seen += size == "..."
        yield "... again" if size == "..." and seen == 2 else size


def bind(text, operands, axis):
    """What each name stands for, as tuples of sizes by name in the order of the text. None: the operands do
    not fit. axis: how many axes the first "..." of two has."""
    bound = {}
    for shape, given in zip(parse(text)[0], operands):
        dots, at = shape.sizes.count("..."), 0
        rest = len(given) - (len(shape.sizes) - dots)
        if rest < 0 or (rest and not dots):
            return None
        for key in keys(shape):
            rank = (1 if not key.startswith("...") else rest if dots == 1 else
                    axis if key == "..." else rest - axis)
            sizes, at = tuple(given[at:at + rank]), at + rank
            if rank < 0 or sizes != ((int(key),) if key.isdigit() else bound.setdefault(key, sizes)):
                return None
    return bound


def texts(text, axis):
    """The operands' shapes as errors name them."""
    along = " along axis %d" % axis if any(shape.sizes.count("...") == 2 for shape in parse(text)[0]) else ""
    return text.partition(" ->")[0] + along


def gives_integers(text):
    return bool(text) and parse(text)[1].dtype == "i64"


def result(text, bound):
    """The sizes of the result."""
    return tuple(size for key in keys(parse(text)[1])
                 for size in ((int(key),) if key.isdigit() else bound[key]))
