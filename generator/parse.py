"""Users' formulas, with the grammar, the limits and the nodes of gpunn_expr (gpunn.h, >>graph/expr). Operands
and numbers have names here.

    formula    = {name "=" choice ";"} choice
    choice     = any ["if" any "else" choice]
    any        = all {"or" all}
    all        = inverse {"and" inverse}
    inverse    = "not" inverse | comparison
    comparison = sum {("<" | "<=" | ">" | ">=" | "==" | "!=") sum}
    sum        = product {("+" | "-") product}
    product    = sign {("*" | "/") sign}
    sign       = "-" sign | term ["**" sign]
    term       = number | name | name "(" argument {"," argument} ")" | "(" choice ")"
    argument   = choice | choice ":" | "keepdim" "=" choice

Both must give a model the same tensors. So this parser folds and rewrites as gpunn_expr does, in the same
order, and computes numbers as C does."""
import copy
import math

from . import ir, table
from .floats import f32
from .json_text import SpecError

MAX_LENGTH = 4096
MAX_DEPTH = 64
MAX_DIGITS = 300
MAX_NAMES = 64
FLT_MIN = 2.0 ** -126
FLT_MAX = f32(3.4028235e38)
LARGEST = 3.4028235677973366e38  # below it numbers round to finite floats

MAX_RANK = 8
SPACE = " \t\n\r"
DIGITS = "0123456789"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
# Functions of numbers alone are computed at once:
FOLDED = ("add", "sub", "mul", "div", "pow", "lt", "le", "gt", "ge", "eq", "ne", "abs", "exp", "log", "sqrt",
          "tanh")

# Functions of x that are no elementwise op: (whether the number p follows, most axes that follow, whether
# keepdim may, call)
ALONG = {
    "sum": (False, MAX_RANK, True, lambda g, x, p, axes, keepdim: g.sum(x, axes, keepdim)),
    "mean": (False, MAX_RANK, True, lambda g, x, p, axes, keepdim: g.mean(x, axes, keepdim)),
    "amax": (False, MAX_RANK, True, lambda g, x, p, axes, keepdim: g.max(x, axes, keepdim)),
    "norm": (True, MAX_RANK, True, lambda g, x, p, axes, keepdim: g.norm(x, p, axes, keepdim)),
    "argmax": (False, 1, True, lambda g, x, p, axes, keepdim: g.argmax(x, axes[0], keepdim)),
    "softmax": (False, 1, False, lambda g, x, p, axes, keepdim: g.of_row("softmax", x, dim=axes[0])),
    "log_softmax": (False, 1, False, lambda g, x, p, axes, keepdim: g.of_row("log_softmax", x, dim=axes[0])),
    "cumsum": (False, 1, False, lambda g, x, p, axes, keepdim: g.cumsum(x, axes[0])),
    "window_mean": (True, 0, False, lambda g, x, p, axes, keepdim: g.window_mean(x, int(p))),
    "float": (False, 0, False, lambda g, x, p, axes, keepdim: g.cast(x, "f32"))}


def expand(text, graph, operands, consts, place):
    """Appends the expression's nodes to a graph.Graph and returns its value. operands: {name: Tensor, or None
    if left out}. consts: {name: float}. place: maps a character's offset to text for messages. Raises
    SpecError."""
    parser = _Parser(text, graph, operands, consts, place)
    if len(text.encode("utf-8", "surrogatepass")) > MAX_LENGTH:
        raise parser.error(0, "the expression is longer than %d characters; split it" % MAX_LENGTH)
    if parser.name_count > MAX_NAMES:
        raise parser.error(0, "more than %d names" % MAX_NAMES)
    result = parser.formula()
    if parser.peek():
        raise parser.error(parser.at, "unexpected", text[parser.at])
    return parser.tensor(result)


class _Parser:
    """Terms are Tensors, or floats as long as they are numbers."""

    def __init__(self, text, graph, operands, consts, place):
        self.text, self.graph, self.place = text, graph, place
        self.names = {"pi": math.pi}
        self.names.update((name, float(value)) for name, value in consts.items())
        self.names.update((name, 0.0 if t is None else t) for name, t in operands.items())
        self.name_count = 1 + len(consts) + len(operands)
        self.at = self.depth = 0
        self.dry = 0  # above 0: adds no nodes, and uses some tensor in their place
        self.mark = len(graph.tensors)

    def error(self, at, what, word=""):
        shown = "".join(c if " " <= c <= "~" else "?" for c in word[:60])
        return SpecError("%s: %s%s" % (self.place(at), what, " '%s'" % shown if shown else ""))

    # ---- characters ----------------------------------------------------------------------------------------
    def here(self):
        return self.text[self.at:self.at + 1]

    def peek(self):
        while self.here() and self.here() in SPACE:
            self.at += 1
        return self.here()

    def take(self, symbol):
        taken = self.peek() == symbol
        self.at += taken
        return taken

    def word(self, at=None):
        """The name at this position."""
        start = end = self.at if at is None else at
        while end < len(self.text) and self.text[end] in (LETTERS + DIGITS if end > start else LETTERS):
            end += 1
        return self.text[start:end]

    def take_word(self, word):
        self.peek()
        taken = self.word() == word
        self.at += taken * len(word)
        return taken

    def deeper(self):
        if self.depth == MAX_DEPTH:
            raise self.error(self.at, "nesting deeper than %d" % MAX_DEPTH)
        self.depth += 1

    # ---- terms ---------------------------------------------------------------------------------------------
    def float(self, number):
        if not abs(number) < LARGEST:
            raise self.error(self.at, "the number before this place is not finite as a float")
        return f32(number)

    def tensor(self, term):
        return self.graph.scalar(self.float(term), self.mark) if isinstance(term, float) else term

    def apply(self, op, terms, attributes=()):
        if self.dry:
            return self.graph.tensors[0]
        return self.graph.apply(op, [self.tensor(term) for term in terms], attributes)

    def binary(self, op, a, b):
        if isinstance(a, float) and isinstance(b, float):
            if op in FOLDED:
                return float(ir.compute(op, (a, b)))
            if op in ("maximum", "minimum"):
                return a if (a > b if op == "maximum" else a < b) else b
        if self.dry or isinstance(a, float) == isinstance(b, float):
            return self.apply(op, (a, b))
        left = not isinstance(a, float)  # the position of the tensor
        x, number = (a, self.float(b)) if left else (b, self.float(a))
        if op == "sub":  # a - 2 = a + -2; 2 - b = -b + 2
            return self.apply("add_scalar", (x,), (-number,)) if left else \
                self.apply("add_scalar", (self.apply("neg", (x,)),), (number,))
        if op in ("add", "mul"):
            return self.apply(op + "_scalar", (x,), (number,))
        if (op == "div" and left and abs(math.frexp(number)[0]) == 0.5 and
            FLT_MIN <= abs(1 / number) <= FLT_MAX):
            return self.apply("mul_scalar", (x,), (1 / number,))
        if op == "div" and not left and number == 1:
            return self.apply("reciprocal", (x,))
        if op == "pow" and left:
            return self.apply("square", (x,)) if number == 2 else self.apply("pow_scalar", (x,), (number,))
        return self.apply(op, (a, b))

    def where(self, condition, yes, no):
        if isinstance(condition, float):
            return yes if condition != 0 else no
        return self.apply("where", (condition, yes, no))

    # ---- grammar -------------------------------------------------------------------------------------------
    def formula(self):
        while True:
            self.peek()
            start = self.at
            name = self.word()
            self.at += len(name)
            if not name or self.peek() != "=" or self.text[self.at + 1:self.at + 2] == "=":
                self.at = start
                return self.choice()
            self.at += 1
            value = self.choice()
            if not self.take(";"):
                raise self.error(self.at, "';' is missing")
            if self.name_count == MAX_NAMES:
                raise self.error(self.at, "more than %d names" % MAX_NAMES)
            self.names[name] = value
            self.name_count += 1

    def choice(self):
        known = self.foresee()
        result = self.unless(known is False, self.any)
        if not self.take_word("if"):
            return result
        self.deeper()
        condition = self.unless(known is not None, self.any)
        if not self.take_word("else"):
            raise self.error(self.at, "'else' is missing")
        otherwise = self.unless(known is True, self.choice)
        self.depth -= 1
        return self.where(condition, result, otherwise)

    def unless(self, left_out, part):
        """Parses a part of the text. If it is left out, it adds no nodes."""
        self.dry += left_out
        result = part()
        self.dry -= left_out
        return result

    def find_if(self):
        """The position after the "if" of the choice that begins here. None: no "if"."""
        depth, at = 0, self.at
        while at < len(self.text) and depth >= 0:
            word, symbol = self.word(at), self.text[at]
            if depth == 0 and symbol in ",;":
                return None
            if depth == 0 and word == "if":
                return at + len(word)
            depth += (symbol == "(") - (symbol == ")")
            at += len(word) or 1
        return None

    def foresee(self):
        """The branch that a number selects in the choice that begins here. None: no number decides."""
        at = None if self.dry else self.find_if()
        if at is None:
            return None
        ahead = copy.copy(self)
        ahead.at, ahead.dry = at, 1
        try:
            condition = ahead.any()
        except SpecError:
            return None
        return condition != 0 if isinstance(condition, float) else None

    @staticmethod
    def decided(left, by):
        """Whether the rest is left out, because a number has decided already."""
        return isinstance(left, float) and (left != 0) == by

    def any(self):
        result = self.all()
        while self.take_word("or"):
            result = self.where(result, result, self.unless(self.decided(result, True), self.all))
        return result

    def all(self):
        """As in Python: a and b is b if a is not 0, else a."""
        result = self.inverse()
        while self.take_word("and"):
            result = self.where(result, self.unless(self.decided(result, False), self.inverse), result)
        return result

    def inverse(self):
        if not self.take_word("not"):
            return self.comparison()
        self.deeper()
        result = self.inverse()
        self.depth -= 1
        return self.binary("eq", result, 0.0)

    def comparison(self):
        result, left, first = None, self.sum(), True
        op = self.compares()
        if op is None:
            return left
        while op is not None:
            right = self.sum()
            holds = self.binary(op, left, right)
            result = holds if first else self.where(result, holds, result)
            left, first, op = right, False, self.compares()
        return result

    def compares(self):
        """The op of the comparison at this position, which it consumes. None: no comparison."""
        first = self.peek()
        symbol = self.text[self.at:self.at + 2]
        symbol = symbol if symbol in COMPARISONS else first
        if symbol not in COMPARISONS:
            return None
        self.at += len(symbol)
        return COMPARISONS[symbol]

    def sum(self):
        result = self.product()
        while self.peek() and self.here() in "+-":
            op = "add" if self.take("+") else "sub"
            self.at += op == "sub"
            result = self.binary(op, result, self.product())
        return result

    def product(self):
        result = self.sign()
        while self.peek() and self.here() in "*/":
            op = "mul" if self.here() == "*" else "div"
            self.at += 1
            result = self.binary(op, result, self.sign())
        return result

    def sign(self):
        first = self.peek()
        self.deeper()
        if first == "-":
            self.at += 1
            result = self.sign()
            self.depth -= 1
            return -result if isinstance(result, float) else self.apply("neg", (result,))
        if first == "(":
            self.at += 1
            result = self.choice()
            if not self.take(")"):
                raise self.error(self.at, "')' is missing")
        elif first and first in DIGITS + ".":
            result = self.number()
        elif first and first in LETTERS:
            result = self.name()
        else:
            raise self.error(self.at, "unexpected" if first else "an operand is missing", first)
        if self.peek() and self.text[self.at:self.at + 2] == "**":
            self.at += 2
            result = self.binary("pow", result, self.sign())
        self.depth -= 1
        return result

    def number(self):
        start, mantissa, digits, scale, point = self.at, 0.0, 0, 0, False
        while self.here() and (self.here() in DIGITS or (self.here() == "." and not point)):
            if self.here() == ".":
                point = True
            else:
                digits += 1
                mantissa = 10 * mantissa + int(self.here())
                scale -= point
            self.at += 1
        if digits and self.here() and self.here() in "eE":
            mark = self.at
            self.at += 1
            negative = self.here() == "-"
            self.at += negative or self.here() == "+"
            if not (self.here() and self.here() in DIGITS):
                raise self.error(mark, "the exponent has no digits")
            exponent = 0
            while self.here() and self.here() in DIGITS:
                if exponent < 10000:
                    exponent = 10 * exponent + int(self.here())
                self.at += 1
            scale += -exponent if negative else exponent
        if digits == 0 or digits > MAX_DIGITS or (self.here() and self.here() in DIGITS + LETTERS + "."):
            raise self.error(start, "no number", self.text[start:self.at + 1])
        if scale < 0:  # in two steps, as C does
            half = -scale // 2
            result = mantissa / _power(half) / _power(-scale - half)
        else:
            result = mantissa * _power(scale)
        if not abs(result) < LARGEST:
            raise self.error(start, "too large a number", self.text[start:self.at])
        return result

    def name(self):
        start = self.at
        name = self.word()
        self.at += len(name)
        if self.peek() == "(":
            return self.function(name, start)
        if name not in self.names and name not in ("True", "False"):
            raise self.error(start, "unknown name", name)
        return self.names.get(name, float(name == "True"))

    def arguments(self, name, start, arity, most):
        """The arguments of a function, after its parenthesis. Those from `arity` on are numbers."""
        terms = []
        if self.peek() != ")":
            while True:
                self.peek()
                at = self.at
                if len(terms) == most:
                    raise self.error(at, "too many arguments for", name)
                term = self.choice()
                if len(terms) >= arity and not isinstance(term, float):
                    raise self.error(at, "a number is needed here, an attribute of", name)
                terms.append(term)
                if not self.take(","):
                    break
        if not self.take(")"):
            raise self.error(self.at, "')' or ',' is missing")
        if len(terms) < arity:
            raise self.error(start, "too few arguments for", name)
        return terms

    def function(self, name, start):
        """name(...): the op's operands, then its attributes as numbers, which may be left out."""
        self.at += 1  # the parenthesis
        if name in ("K", "given"):
            return self.special(name, start)
        if name in ALONG:
            return self.along(name, start)
        op = table.ops().get({"max": "maximum", "min": "minimum", "floordiv": "floor_divide"}.get(name, name))
        if op is None or op.arity == 0:
            raise self.error(start, "unknown function", name)
        most = op.arity + len(op.attrs)
        terms = self.arguments(name, start, op.arity, most)
        if most == op.arity == 2:
            return self.binary(op.name, *terms)
        if most == 1 and isinstance(terms[0], float) and op.name in FOLDED:
            return float(ir.compute(op.name, terms))
        if self.dry:
            return self.apply(op.name, terms)
        attributes = [self.float(term) for term in terms[op.arity:]]
        attributes += [default for _, default in op.attrs[len(attributes):]]
        return self.apply(op.name, terms[:op.arity], attributes)

    def special(self, name, start):
        """K(number) is that number. given(name) says whether an operand is there."""
        terms = self.arguments(name, start, 0 if name == "K" else 1, 1)
        if not terms:
            raise self.error(start, "too few arguments for", name)
        return terms[0] if name == "K" else float(not isinstance(terms[0], float))

    def along(self, name, start):
        """x, p and axes of a function that is no elementwise op."""
        numbered, most, keeps, call = ALONG[name]
        p, keepdim = 0.0, [False]
        if self.peek() == ")":
            raise self.error(start, "too few arguments for", name)
        x = self.choice()
        x = self.graph.tensors[0] if self.dry else self.tensor(x)
        if numbered:
            if not self.take(","):
                raise self.error(start, "too few arguments for", name)
            self.peek()
            at = self.at
            p = self.choice()
            if not isinstance(p, float) or not (self.dry or p > 0):
                raise self.error(at, "a number above 0 is needed here for", name)
            if most == 0 and not self.dry and (p > 1e6 or math.fmod(p, 2) != 1):
                raise self.error(at, "an odd number is needed here for", name)
        axes = self.axes(name, start, most, keeps, len(x.shape), keepdim)
        return self.graph.tensors[0] if self.dry else call(self.graph, x, p, axes, keepdim[0])

    def axes(self, name, start, most, keeps, rank, keepdim):
        """Axes after x, each after a comma: numbers, "2:" for the third and all that follow, and at the end
        perhaps keepdim."""
        result, given = [], False
        while self.take(","):
            self.peek()
            at = self.at
            if keeps and self.keepdim(keepdim):
                break
            if len(result) >= most:
                raise self.error(at, "too many arguments for", name)
            axis, given = self.whole(), True
            result += range(rank)[axis:] if most > 1 and self.take(":") else [axis]
        if not self.take(")"):
            raise self.error(self.at, "')' or ',' is missing")
        if most == 1 and not result:
            raise self.error(start, "too few arguments for", name)
        if given and not result and not self.dry:
            raise self.error(start, "x has no such axes for", name)
        return result

    def keepdim(self, keepdim):
        """keepdim=number, if that is at this position."""
        at = self.at
        if not self.take_word("keepdim") or not self.take("="):
            self.at = at
            return False
        keepdim[0] = self.whole() != 0
        return True

    def whole(self):
        self.peek()
        at = self.at
        term = self.choice()
        whole = isinstance(term, float) and abs(term) < 1000 and term == math.floor(term)
        if not isinstance(term, float) or not (self.dry or whole):
            raise self.error(at, "an axis is needed here, a whole number")
        return int(term) if whole else 0


def _power(exponent):
    return math.pow(10, exponent) if exponent <= 308 else math.inf
