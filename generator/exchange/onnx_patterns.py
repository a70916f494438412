"""Recognizes layers that exporters decompose. Each form is one row, matched backwards from its last node.

A pattern is nested calls of ONNX's ops. A number matches a constant of that value. A name matches any
operand, and the same one wherever it appears again. A name with @ matches a constant of one number, and a
name with # a list of axes, which older opsets have as an attribute. Operands of Add and Mul match in either
order."""
import ast
import collections
import itertools
import math

from . import onnx_layers, onnx_microsoft
from .arrays import Array
from .onnx_ops import number
from .spec_writer import Constant, Parameter, Value
from ..sizes import varies

MATCHES = 1 << 12  # orders of operands that are tried for a node
MEAN = "ReduceMean({}, #axes)"
CENTRED = "Sub(x, " + MEAN.format("x") + ")"
VARIANCES = ["ReduceMean(Pow({c}, 2), #axes)".format(c=CENTRED),
             "ReduceMean(Mul({c}, {c}), #axes)".format(c=CENTRED)]


def last_axes(lowering, bound):
    """The number of last axes in a list of axes. 0: it has other axes."""
    axes, rank = bound["#axes"], len(bound["x"].full)
    axes = (sorted(axis % rank for axis in axes or ()) if axes is None or
            all(-rank <= a < rank for a in axes) else [])
    return len(axes) if axes and axes == list(range(rank - len(axes), rank)) else 0


def layer_norm(lowering, call, bound):
    dims = last_axes(lowering, bound)
    weight, bias = bound.get("weight"), bound.get("bias")
    x = bound["x"]
    known = [p is None or isinstance(p, (Parameter, Constant)) and p.full == x.full[-dims:]
             for p in (weight, bias)]
    if not dims or not all(known):
        return None
    return onnx_layers.norm_of_last(lowering.writer, call, bound["norm"], x, weight, bias, -dims,
                                    number(bound["@eps"]))


def unary(op):
    return lambda lowering, call, bound: lowering.writer.map(op, bound["x"])


def hiding(w, bound):
    """The additive mask that is -inf where "hidden" holds. None: it adds another number."""
    hidden = bound["hidden"]
    if number(bound["@fill"]) != -math.inf:
        return None
    if isinstance(hidden, Constant) and hidden.full == hidden.tensor.shape:
        return Constant(Array("float32", hidden.full,
                              [-math.inf if x else 0.0 for x in hidden.tensor.values]))
    return w.map("where", hidden, -math.inf, 0.0)


def is_causal(mask, rows, columns):
    """Whether a mask hides from each row exactly the columns after it."""
    if (not isinstance(mask, Constant) or rows != columns or rows < 2 or
        mask.tensor.shape[-2:] != (rows, columns)):
        return False
    values = mask.tensor.values
    return len(values) == rows * columns and all(
        values[i * columns + j] == (0 if j <= i else -math.inf) for i in range(rows) for j in range(columns))


def attention(lowering, call, bound):
    """softmax(q k^T scale + mask) v of heads. With fewer axes, or a mask that does not fit, the ops stay as
    they are."""
    w, q, k, v, mask = lowering.writer, bound["q"], bound["k"], bound["v"], bound.get("mask")
    if "hidden" in bound:
        mask = hiding(w, bound)
        if mask is None:
            return None
    scale = number(bound["@scale"]) if "@scale" in bound else 1.0
    scale = (1 / scale if bound["divides"] else scale) * (number(bound["@other"]) if "@other" in bound else 1)
    scale *= bound.get("alpha", 1.0)
    operands = [q, k, v]
    if (not all(isinstance(x, Value) and len(x.full) == 4 for x in operands) or
        (bound["axis"] or -1) not in (-1, 3)):
        return None
    k = w.permute(k, (0, 1, 3, 2)) if bound.get("transB", 0) else k
    if (q.full[:2] != v.full[:2] or k.full[:2] != q.full[:2] or k.full[2] != q.full[3] or
        k.full[3] != v.full[2]):
        return None
    fits = mask is None or len(mask.full) <= 4 and all(
        size in (1, full)
        for size, full in zip(mask.full[::-1], (k.full[3], q.full[2], q.full[1], q.full[0])))
    if not fits or any(size < 0 and not varies(size) for size in q.full[1:]):
        return None
    q, v, causal = w.f32(w.whole(q)), w.f32(w.whole(v)), is_causal(mask, q.full[2], k.full[3])
    mask = None if causal else mask
    return w.add("scaled_dot_product_attention", [q, w.whole(w.permute(k, (0, 1, 3, 2))), v], (),
                 scale=float(scale),
                 is_causal=True if causal else None, mask=None if mask is None else w.f32(w.whole(mask)))


Row = collections.namedtuple("Row", "tree build given")
ROWS = collections.defaultdict(list)  # by the op of the last node


def row(pattern, build, **given):
    tree = ast.parse(pattern.replace("@", "at_").replace("#", "list_"), mode="eval").body
    ROWS[tree.func.id].append(Row(tree, build, given))


for variance in VARIANCES:
    for norm in ("Div({c}, Sqrt(Add({v}, @eps)))", "Mul({c}, Reciprocal(Sqrt(Add({v}, @eps))))"):
        plain = norm.format(c=CENTRED, v=variance)
        row("Add(Mul(%s, weight), bias)" % plain, layer_norm, norm="layer_norm")
for square in ("Pow(x, 2)", "Mul(x, x)"):
    for norm in ("Div(x, Sqrt(Add(ReduceMean({s}, #axes), @eps)))",
                 "Mul(x, Reciprocal(Sqrt(Add(ReduceMean({s}, #axes), @eps))))",
                 "Mul(x, Div(1, Sqrt(Add(ReduceMean({s}, #axes), @eps))))"):
        row("Mul(%s, weight)" % norm.format(s=square), layer_norm, norm="rms_norm")
for erf in ("Erf(Div(x, 1.4142135))", "Erf(Mul(x, 0.70710678))"):
    row("Mul(Mul(x, Add(%s, 1)), 0.5)" % erf, unary("gelu"))
    row("Mul(x, Mul(Add(%s, 1), 0.5))" % erf, unary("gelu"))
    row("Mul(Mul(x, 0.5), Add(%s, 1))" % erf, unary("gelu"))
CUBE = "Tanh(Mul(Add(x, %s), 0.7978846))"
for cube in ("Mul(Pow(x, 3), 0.044715)", "Mul(Mul(x, Mul(x, x)), 0.044715)",
             "Mul(x, Mul(x, Mul(x, 0.044715)))"):
    row("Mul(Mul(x, 0.5), Add(%s, 1))" % CUBE % cube, unary("gelu_tanh"))
    row("Mul(x, Mul(Add(%s, 1), 0.5))" % CUBE % cube, unary("gelu_tanh"))
    row("Mul(Mul(x, Add(%s, 1)), 0.5)" % CUBE % cube, unary("gelu_tanh"))
row("Mul(x, Sigmoid(x))", unary("silu"))
row("Mul(x, Tanh(Softplus(x)))", unary("mish"))
row("Div(Mul(x, Clip(Add(x, 3), 0, 6)), 6)", unary("hardswish"))
row("Mul(x, Div(Clip(Add(x, 3), 0, 6), 6))", unary("hardswish"))
for scores, divides in (("MatMul(Mul(q, @scale), Mul(k, @other))", False),
                        ("MatMul(Mul(q, @scale), k)", False),
                        ("Div(MatMul(q, k), @scale)", True), ("Mul(MatMul(q, k), @scale)", False),
                        ("MatMul(q, k)", False), ("FusedMatMul(q, k)", False)):
    for masked in ("%s", "Add(%s, mask)", "Where(hidden, @fill, %s)"):
        row("MatMul(Softmax(%s), v)" % masked % scores, attention, divides=divides)


class Matcher:
    """Binds the names of a pattern to what a node reads."""

    def __init__(self, lowering):
        self.lowering, self.tries = lowering, 0

    def operand(self, tree, name, bound):
        """The bindings with which a part of a pattern matches the operand of that name. The list may be
        empty."""
        known = self.lowering.known.get(name)
        if isinstance(tree, ast.Call):
            node = self.lowering.makers.get(name)
            return self.node(tree, node, bound) if node is not None and isinstance(known, Value) else []
        if isinstance(tree, ast.Constant):
            value = number(known) if isinstance(known, (Constant, Parameter)) else None
            return ([bound] if value is not None and
                    abs(value - tree.value) <= 1e-4 * max(1, abs(tree.value)) else [])
        key = tree.id.replace("at_", "@") if tree.id.startswith("at_") else tree.id
        if key[0] == "@" and (not isinstance(known, (Constant, Parameter)) or number(known) is None):
            return []
        if key in bound:
            return [bound] if bound[key] is known else []
        return [dict(bound, **{key: known})] if known is not None and hasattr(known, "full") else []

    def node(self, tree, node, bound):
        self.tries += 1
        if node.op != tree.func.id or node.domain not in ("", onnx_microsoft.DOMAIN) or self.tries > MATCHES:
            return []
        trees, names, attributes = list(tree.args), list(node.inputs), node.attributes
        if any(attributes.get(name, 0) for name in ("transA", "transBatchA", "transBatchB")):
            return []
        if isinstance(trees[-1], ast.Name) and trees[-1].id.startswith("list_"):
            axes = self.axes(names[1:], attributes)
            if "#axes" in bound and bound["#axes"] != axes or attributes.get("keepdims", 1) != 1:
                return []
            bound, trees, names = dict(bound, **{"#axes": axes}), trees[:-1], names[:1]
        if node.op == "FusedMatMul":
            bound = dict(bound, alpha=attributes.get("alpha", 1.0), transB=attributes.get("transB", 0))
        if node.op == "Softmax":
            bound = dict(bound, axis=attributes.get("axis", None))
        if node.op == "Clip" and len(names) == 1 and len(trees) == 3:
            return (self.operand(trees[0], names[0], bound)
                    if [attributes.get("min"), attributes.get("max")] == [0.0, 6.0] else [])
        if len(trees) != len(names):
            return []
        orders = [names, names[::-1]] if node.op in ("Add", "Mul") else [names]
        return list(itertools.chain.from_iterable(self.operands(trees, order, [bound]) for order in orders))

    def axes(self, names, attributes):
        known = self.lowering.known.get(names[0]) if names and names[0] else None
        return list(known.tensor.values) if isinstance(known, Constant) else attributes.get("axes", None)

    def operands(self, trees, names, found):
        for tree, name in zip(trees, names):
            found = [more for bound in found for more in self.operand(tree, name, bound)]
        return found


def fused(lowering, call, operands):
    """The result of a node that ends one of the patterns. None: it ends none."""
    for one in ROWS.get(call.op, ()):
        for bound in Matcher(lowering).node(one.tree, call, dict(one.given)):
            result = one.build(lowering, call, bound)
            if result is not None:
                return result
    return None
