"""The scalar expressions of a program: a graph in which equal expressions are one node.

Node kinds: load (memory), const, count (a number that depends on the batch), keep (dropout's factor), total
(a finished sum), is_column, rowred, round, and the functions and operators of the table's language.
Comparisons and is_column are conditions, 0 or 1, which only where() takes. where() also takes a number, which
means number != 0.

Constructors simplify as they build. Results stay the same, including NaN, infinities and signed zeros. The
exception: where two constants are multiplied first, rounding and denormals may differ. linear() is the
exception for gradients."""
import ast
import math
from functools import lru_cache

from . import floats, table

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
CONDITIONS = COMPARISONS + ("is_column",)
COMMUTATIVE = ("add", "mul", "eq", "ne")
LEAVES = ("load", "const", "count", "keep", "total")
FUNCTIONS = {  # functions of the table's language, with their number of operands
    "where": 3, "min": 2, "max": 2, "pow": 2, "abs": 1, "sign": 1, "floor": 1, "exp": 1, "expm1": 1, "log": 1,
    "log1p": 1, "sqrt": 1, "tanh": 1, "erf": 1, "sigmoid": 1, "sin": 1, "cos": 1, "exp2": 1, "log2": 1,
    "log10": 1, "sinh": 1, "cosh": 1, "floordiv": 2, "atan2": 2, "hypot": 2, "fmod": 2, "remainder": 2}
ARITY = dict(FUNCTIONS, add=2, sub=2, mul=2, div=2, neg=1, lt=2, le=2, gt=2, ge=2, eq=2, ne=2)

WHOLE, SCALAR = (1, 0), (1, 1)


class Node:
    """op(args). attr: further parts, such as const's value or load's operand. Equal nodes of one graph are
    identical."""
    __slots__ = ("op", "args", "attr", "id")

    def __init__(self, op, args, attr, number):
        self.op, self.args, self.attr, self.id = op, args, attr, number

    @property
    def is_condition(self):
        return self.op in CONDITIONS

    def __repr__(self):
        name = self.op if self.attr is None else "%s[%s]" % (self.op, getattr(self.attr, "name", self.attr))
        return name + ("(%s)" % ", ".join(map(repr, self.args)) if self.args else "")


def topological(roots):
    """Each node below the roots once, operands first. The order depends only on the roots."""
    order, seen, stack = [], set(), [(root, False) for root in reversed(list(roots))]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node.id not in seen:
            seen.add(node.id)
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args))
    return order


@lru_cache(maxsize=None)
def _tree(text):
    return ast.parse(text, mode="eval").body


_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Lt: "lt", ast.LtE: "le",
              ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}


class Graph:
    def __init__(self):
        self.nodes = []
        self._known = {}

    def _node(self, op, args=(), attr=None, key=None):
        full = (op, tuple(arg.id for arg in args), attr if key is None else key)
        node = self._known.get(full)
        if node is None:
            node = self._known[full] = Node(op, tuple(args), attr, len(self.nodes))
            self.nodes.append(node)
        return node

    # ---- leaves --------------------------------------------------------------------------------------------
    def load(self, operand):
        """The operand's value for this element. Integers are read as numbers, and bool as 0 or 1."""
        return self._node("load", (), operand)

    def const(self, value):
        value = floats.f32(value)
        return self._node("const", (), value, repr(value))

    def count(self, fixed, per_batch):
        """fixed + batch * per_batch, where only the run knows the batch."""
        return self._node("count", (), (fixed, per_batch)) if per_batch else self.const(fixed)

    def keep(self, random_stream, p):
        """Dropout's factor of this element: 0, or 1 / (1 - p) as 65536 / T (gpunn.h, >>cpu/elementwise).
        random_stream: index of the random node in the group."""
        kept = int((1 - p) * 65536 + 0.5)
        if kept in (0, 65536):
            return self.const(kept // 65536)
        return self._node("keep", (), (random_stream, p))

    def total(self, number):
        """In finals: the launch's sum with that number."""
        return self._node("total", (), number)

    # ---- with operands -------------------------------------------------------------------------------------
    def is_column(self, label):
        """In row launches: whether this element's column is label, a load of an integer."""
        return self._node("is_column", (label,))

    def rowred(self, kind, value):
        """The "sum" or "max" of a value over its row. A NaN anywhere makes the maximum NaN."""
        if kind not in ("sum", "max"):
            raise ValueError("rowred of kind '%s'" % kind)
        if kind == "max" and value.op in ("const", "count"):
            return value
        return self._node("rowred", (value,), kind)

    def round(self, dtype, value):
        """The value rounded to dtype: f32, bf16 or f16."""
        stored = (getattr(value.attr, "dtype", None) if value.op == "load" else
                  value.attr if value.op == "round" else None)
        if dtype == "f32" or stored == dtype:
            return value
        if value.op == "const":
            return self.const(floats.ROUND[dtype](value.attr))
        return self._node("round", (value,), dtype)

    def op(self, name, *args):
        if len(args) != ARITY[name]:
            raise ValueError("%s takes %d operands" % (name, ARITY[name]))
        if name == "where":
            return self.where(*args)
        if any(arg.is_condition for arg in args):
            raise ValueError("%s of a condition" % name)
        if all(arg.op == "const" for arg in args):
            if name in COMPARISONS:
                return self._node(name, args)  # where() folds it
            return self.const(compute(name, [arg.attr for arg in args]))
        rewrite = getattr(self, "_" + name, None)
        if rewrite:
            node = rewrite(*args)
            if node is not None:
                return node
        return self._commuted(name, *args) if name in COMMUTATIVE else self._node(name, args)

    def _commuted(self, name, a, b):
        """Orders a commutative pair by age. Constants come first in products, and last in sums."""
        last = ((lambda node: (node.op != "const", node.id)) if name == "mul" else
                lambda node: (node.op == "const", node.id))
        return self._node(name, sorted((a, b), key=last))

    def neg(self, a):
        return self.op("neg", a)

    def add(self, a, b):
        return self.op("add", a, b)

    def sub(self, a, b):
        return self.op("sub", a, b)

    def mul(self, a, b):
        return self.op("mul", a, b)

    def div(self, a, b):
        return self.op("div", a, b)

    # ---- rewrites ------------------------------------------------------------------------------------------
    def _neg(self, a):
        if a.op == "neg":
            return a.args[0]
        if a.op == "mul" and a.args[0].op == "const":
            return self.mul(self.const(-a.args[0].attr), a.args[1])
        return None

    def _add(self, a, b):
        for one, other in ((a, b), (b, a)):
            if _is(one, 0) and math.copysign(1, one.attr) < 0:
                return other
            if one.op == "neg":
                return self.sub(other, one.args[0])
        if a.op == b.op == "where" and a.args[0] is b.args[0]:
            return self.where(a.args[0], self.add(a.args[1], b.args[1]), self.add(a.args[2], b.args[2]))
        return None

    def _sub(self, a, b):
        if _is(b, 0) and math.copysign(1, b.attr) > 0:
            return a
        if b.op == "neg":
            return self.add(a, b.args[0])
        return None

    def _mul(self, a, b):
        if b.op == "const":
            a, b = b, a
        if a.op != "const":
            if a.op == "neg":
                return self.neg(self.mul(a.args[0], b))
            return self.neg(self.mul(a, b.args[0])) if b.op == "neg" else None
        if _is(a, 1):
            return b
        if _is(a, -1):
            return self.neg(b)
        if b.op == "neg":
            return self.mul(self.const(-a.attr), b.args[0])
        if b.op == "mul" and b.args[0].op == "const":
            # Only if the inner product cannot overflow alone, and the product of the constants stays in the
            # normal range.
            inner, product = b.args[0].attr, floats.f32(a.attr * b.args[0].attr)
            if (abs(a.attr) >= 1 or abs(inner) <= 1) and 2.0 ** -126 <= abs(product) < math.inf:
                return self.mul(self.const(product), b.args[1])
        return None

    def _div(self, a, b):
        if b.op == "const" and abs(math.frexp(b.attr)[0]) == 0.5 and 2.0 ** -126 <= abs(b.attr) <= 2.0 ** 126:
            return self.mul(self.const(1 / b.attr), a)
        if a.op == "neg":
            return self.neg(self.div(a.args[0], b))
        if b.op == "neg":
            return self.neg(self.div(a, b.args[0]))
        return None

    def _pow(self, a, b):
        exponent = b.attr if b.op == "const" else None
        if exponent == 0:
            return self.const(1)
        if exponent == 1:
            return a
        if exponent == 2:
            return self.mul(a, a)
        if exponent == 3:
            return self.mul(self.mul(a, a), a)
        return self.div(self.const(1), a) if exponent == -1 else None

    def _abs(self, a):
        return self.op("abs", a.args[0]) if a.op == "neg" else a if a.op == "abs" else None

    def where(self, condition, yes, no):
        if yes.is_condition or no.is_condition:
            raise ValueError("where gives a condition")
        if not condition.is_condition:
            condition = self.op("ne", condition, self.const(0))
        if condition.op == "ne" and condition.args[0].op == "where" and _is(condition.args[1], 0):
            # where(where(c, 1, 0), p, q): the result of a comparison
            inner, one, zero = condition.args[0].args
            if _is(zero, 0) and one.op == "const" and one.attr != 0:
                return self.where(inner, yes, no)
            if _is(one, 0) and zero.op == "const" and zero.attr != 0:
                return self.where(inner, no, yes)
        if condition.op in COMPARISONS and all(arg.op == "const" for arg in condition.args):
            return yes if compute(condition.op, [arg.attr for arg in condition.args]) else no
        if yes.op == "where" and yes.args[0] is condition:
            yes = yes.args[1]
        if no.op == "where" and no.args[0] is condition:
            no = no.args[2]
        return yes if yes is no else self._node("where", (condition, yes, no))

    # ---- the table's texts ---------------------------------------------------------------------------------
    def text(self, text, names):
        """Parses a text in the table's language. names: {name: node}."""
        return self._walk(_tree(text), names)

    def _walk(self, tree, names):
        if isinstance(tree, ast.Name):
            return names[tree.id]
        if isinstance(tree, ast.Constant):
            return self.const(tree.value)
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
            return self.neg(self._walk(tree.operand, names))
        if isinstance(tree, ast.BinOp):
            return self.op(_OPERATORS[type(tree.op)], self._walk(tree.left, names),
                           self._walk(tree.right, names))
        if isinstance(tree, ast.Compare) and len(tree.ops) == 1:
            return self.op(_OPERATORS[type(tree.ops[0])], self._walk(tree.left, names),
                           self._walk(tree.comparators[0], names))
        if isinstance(tree, ast.Call) and tree.func.id == "K":
            return self.const(tree.args[0].value)
        if isinstance(tree, ast.Call) and len(tree.args) == FUNCTIONS.get(tree.func.id):
            return self.op(tree.func.id, *(self._walk(arg, names) for arg in tree.args))
        raise table.TableError("a text in the table of ops is not in its language: %s" % ast.dump(tree))

    def _names(self, op, attrs, operands):
        names = dict(zip(op.operands, operands))
        for name, default in op.attrs:
            names[name] = self.const(attrs.get(name, default))
        return names

    def apply(self, name, attrs, operands):
        """The value of an elementwise op. attrs: {name: number}; missing ones have the table's default."""
        op = table.ops()[name]
        return self.text(op.forward, self._names(op, attrs, operands))

    def derivative(self, name, k, attrs, operands, y, g):
        """The contribution of the gradient g of the op's result y to the gradient of operand k. None: no
        contribution."""
        op = table.ops()[name]
        if op.derivatives[k] == "0":
            return None
        names = self._names(op, attrs, operands)
        return self.linear(g, lambda live: self.text(op.derivatives[k], dict(names, y=y, g=live)))

    def linear(self, gradient, function):
        """function(gradient), for a function that maps 0 to 0. If the gradient is where(c, p, 0), as behind a
        choice, the function is applied to p alone. So an infinite derivative is never multiplied by the 0 of
        an untaken branch."""
        if gradient.op != "where" or not (_is(gradient.args[1], 0) or _is(gradient.args[2], 0)):
            return function(gradient)
        condition, *branches = gradient.args
        return self.where(condition, *(branch if _is(branch, 0) else self.linear(branch, function)
                                       for branch in branches))

    # ---- whole expressions ---------------------------------------------------------------------------------
    def substitute(self, roots, replacement):
        """The roots with some nodes replaced: {node: node}. Replacements are not searched."""
        done = {}
        stack = [(root, False) for root in roots]
        while stack:
            node, ready = stack.pop()
            if node.id in done:
                continue
            if node in replacement:
                done[node.id] = replacement[node]
            elif ready or not node.args:
                done[node.id] = self._rebuilt(node, [done[arg.id] for arg in node.args])
            else:
                stack.append((node, True))
                stack.extend((arg, False) for arg in node.args)
        return [done[root.id] for root in roots]

    def _rebuilt(self, node, args):
        if all(new is old for new, old in zip(args, node.args)):
            return node
        if node.op == "rowred":
            return self.rowred(node.attr, *args)
        if node.op == "round":
            return self.round(node.attr, *args)
        return self.is_column(*args) if node.op == "is_column" else self.op(node.op, *args)


def _is(node, value):
    return node.op == "const" and node.attr == value


# ---- what can be said about nodes --------------------------------------------------------------------------
def loads(roots):
    """The operands that the roots read, in order of first use."""
    return [node.attr for node in topological(roots) if node.op == "load"]


def join(one, other):
    """The narrowest place that distinguishes what both do. A place (div, mod) gives element i the index (i //
    div) % mod; mod 0: no modulo."""
    if one == other or other[1] == 1:
        return one
    if one[1] == 1:
        return other
    div = math.gcd(one[0], other[0])
    if 0 in (one[1], other[1]):
        return div, 0
    span, other_span = one[0] * one[1], other[0] * other[1]
    return div, span * other_span // math.gcd(span, other_span) // div


def places(roots, inner=1, totals=()):
    """{node: place} for all nodes below the roots: WHOLE, per row, per column, SCALAR, ... inner: the length
    of a row. totals: the place of each sum, by number."""
    result = {}
    for node in topological(roots):
        if node.op == "load":
            place = node.attr.place
        elif node.op in ("const", "count"):
            place = SCALAR
        elif node.op == "keep":
            place = WHOLE
        elif node.op == "total":
            place = totals[node.attr]
        elif node.op == "rowred":
            place = (inner, 0)
        else:
            place = join((1, inner), result[node.args[0]]) if node.op == "is_column" else SCALAR
            for arg in node.args:
                place = join(place, result[arg])
        result[node] = place
    return result


# ---- reference ---------------------------------------------------------------------------------------------
def _overflowing(function):
    def guarded(*args):
        try:
            return function(*args)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan
    return guarded


def _divide(a, b):
    if b:
        return a / b
    return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)


def _logarithm(function):
    return lambda x: -math.inf if x == 0 else math.nan if x < 0 else function(x)


def _log1p(x):
    return -math.inf if x == -1 else math.nan if x < -1 else math.log1p(x)


def _pow(a, b):
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf
    except ValueError:  # 0 to a negative power, or no real number
        return math.nan if a else math.copysign(math.inf, a) if b % 2 == 1 else math.inf


def _floordiv(a, b):
    if b == 0 or not (math.isfinite(a) and b == b):
        return _divide(a, b) if b == 0 else math.nan
    rest = math.fmod(a, b)
    whole = (a - rest) / b - (rest != 0 and (b < 0) != (rest < 0))
    return math.copysign(0.0, _divide(a, b)) if whole == 0 else float(math.floor(whole + 0.5))


def _remainder(a, b):
    rest = COMPUTE["fmod"](a, b)
    return rest + b if rest and (rest < 0) != (b < 0) else rest


def _sigmoid(x):
    small = math.exp(-abs(x))
    return (small if x < 0 else 1) / (1 + small)


COMPUTE = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": _divide,
    "neg": lambda a: -a,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "where": lambda c, p, q: p if c else q,
    "min": lambda a, b: a if a < b or a != a else b, "max": lambda a, b: a if a > b or a != a else b,
    "abs": abs, "sign": lambda a: float((a > 0) - (a < 0)),
    "floor": lambda a: float(math.floor(a)) if abs(a) < 2 ** 52 else a, "exp": _overflowing(math.exp),
    "expm1": _overflowing(math.expm1), "log": _logarithm(math.log), "log1p": _log1p,
    "sqrt": _overflowing(math.sqrt), "tanh": math.tanh, "erf": math.erf, "sigmoid": _sigmoid,
    "sin": _overflowing(math.sin), "cos": _overflowing(math.cos), "pow": _pow, "floordiv": _floordiv,
    "exp2": lambda x: _pow(2.0, x), "log2": _logarithm(math.log2), "log10": _logarithm(math.log10),
    "sinh": lambda x: math.sinh(x) if abs(x) < 700 else x * math.inf,
    "cosh": lambda x: math.cosh(x) if abs(x) < 700 else abs(x) * math.inf, "atan2": math.atan2,
    "hypot": math.hypot, "fmod": _overflowing(math.fmod), "remainder": _remainder}


def compute(op, values):
    return COMPUTE[op](*values)


def maximum(values):
    result = -math.inf
    for value in values:
        result = COMPUTE["max"](result, value)
    return result


def evaluate(roots, length, load, keep=None, totals=(), batch=1, single=False):
    """Evaluates the roots for `length` elements of one row: a list of lists. load(operand, i): the value for
    element i. keep(random_stream, p, i): its dropout factor. single: round every result to float, to show
    overflows as C has them."""
    values = {}
    for node in topological(roots):
        if node.op == "load":
            result = [load(node.attr, i) for i in range(length)]
        elif node.op == "const":
            result = [node.attr] * length
        elif node.op == "count":
            result = [float(node.attr[0] + batch * node.attr[1])] * length
        elif node.op == "keep":
            result = [keep(node.attr[0], node.attr[1], i) for i in range(length)]
        elif node.op == "total":
            result = [totals[node.attr]] * length
        elif node.op == "is_column":
            result = [i == label for i, label in enumerate(values[node.args[0]])]
        elif node.op == "rowred":
            row = values[node.args[0]]
            result = [math.fsum(row) if node.attr == "sum" and all(map(math.isfinite, row)) else
                      sum(row) if node.attr == "sum" else maximum(row)] * length
        elif node.op == "round":
            result = [floats.ROUND[node.attr](value) for value in values[node.args[0]]]
        else:
            result = [compute(node.op, row) for row in zip(*(values[arg] for arg in node.args))]
        values[node] = [floats.f32(value) for value in result] if single and not node.is_condition else result
    return [values[root] for root in roots]
