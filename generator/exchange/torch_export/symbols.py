"""PyTorch's symbolic sizes as sums of generator/sizes.py, and the conditions on sizes under which a captured
graph equals the module.

torch.export follows one branch of each Python condition on a size, and records that condition as a guard. A
guard from the module's own code becomes a bound of the spec's size, or an error. Guards of PyTorch's own
files check shapes. gpunn's shape rules check these again."""
import contextlib
import fractions
import functools
import math
import os
from dataclasses import dataclass

from ... import sizes
from ...sizes import SizeError, varies
from ..spec_writer import Refused, size_name


@dataclass(frozen=True)
class Size:
    """A number that depends on the batch or another size."""
    dim: int


class NotOfOne(Refused):
    """A batch of 1 takes another path than all others."""


RELATIONS = {"Equality": "==", "Unequality": "!=", "StrictLessThan": "<", "LessThan": "<=",
             "StrictGreaterThan": ">", "GreaterThan": ">="}


class Symbols:
    """PyTorch's symbols for sizes, defined by the axes of inputs that vary."""

    def __init__(self):
        # by symbol: a sum of generator/sizes.py, a name, the example's size
        self.sums, self.names, self.examples = {}, {}, {}
        self.bounds = {}  # by the name of a size: (least, most); math.inf: no limit
        self.refused = {}  # by a symbol that is no sum: the Refused with the reason

    def define(self, size, dim, place):
        """Defines the dimension of an input's axis, which is a symbol in PyTorch."""
        symbol, name, own = (None if isinstance(size, int) else size.node.expr, size_name(dim),
                             sizes.sum_of(dim))
        if symbol is None or not symbol.is_Symbol:
            raise Refused("it only works with this batch size; use dynamic_batch=False" if dim == -1 else
                          f"{place} only works with {size}: it cannot be {name}")
        if self.sums.setdefault(symbol, own) != own:
            raise Refused(
                f"{self.names[symbol]} and {name} only work where they are equal: give them one name")
        self.names[symbol], self.examples[symbol] = name, size.node.hint
        return symbol

    def narrow(self, name, least, most=math.inf):
        """Restricts a size to least .. most, within its present bounds."""
        low, high = self.bounds.get(name, (1, math.inf))
        self.bounds[name] = max(low, least), min(high, most)

    def number(self, x):
        """An integer that may depend on sizes."""
        if isinstance(x, int):
            return x
        try:
            dim = sizes.dim_of(self.sum(x.node.expr))
        except SizeError:
            raise Refused(f"a size is {x}, which is too long a formula") from None
        if varies(dim) and set(self.names.values()) == {size_name(-1)}:
            raise Refused(f"a size is {dim}: no multiple of the batch")
        return Size(dim) if dim < 0 else dim

    def sum(self, x):
        """A sympy expression as a sum."""
        kind, parts = type(x).__name__, x.args
        if x.is_Symbol and x not in self.sums:  # no input has this size
            raise self.refused.get(x) or Refused("a size depends on values")
        if x.is_Symbol or x.is_Integer:
            return self.sums[x] if x.is_Symbol else sizes.number_or_size(int(x))
        if x.is_Add or x.is_Mul:
            return functools.reduce(sizes.plus if x.is_Add else sizes.times, map(self.sum, parts))
        if (len(parts) == 2 and parts[1].is_Integer and parts[1] > 0 and
            kind in ("Pow", "FloorDiv", "CleanDiv", "Mod", "PythonMod")):
            first, k = self.sum(parts[0]), int(parts[1])
            if x.is_Pow:
                return functools.reduce(sizes.times, [first] * k)
            rounded = sizes.quotient(first, k)
            return rounded if kind.endswith("Div") else sizes.plus(first, sizes.times(rounded, {(): k}), -1)
        if kind in ("FloorDiv", "CleanDiv"):
            return sizes.divided(*map(self.sum, parts)) or self.refuse(x)
        if kind in ("TruncToInt", "FloorToInt"):
            return self.scaled(x, parts[0])
        if kind in ("Min", "Max"):
            return self.extreme(parts, 1 if kind == "Min" else -1)
        return self.refuse(x)

    def extreme(self, parts, sign):
        """The smaller (sign 1) or the larger (-1) part at the example's sizes. Bounds make it so at all
        sizes."""
        chosen, *others = sorted(parts, key=lambda part: sign * int(part.xreplace(self.examples)))
        for other in others:
            self.hold(">=", sizes.plus(self.sum(other), self.sum(chosen), -1) if sign > 0 else
                      sizes.plus(self.sum(chosen), self.sum(other), -1))
        return self.sum(chosen)

    def scaled(self, x, inner):
        """A size times a float, rounded down."""
        factors = [part for part in inner.args if part.is_Float]
        sizes_there = [part.args[0] for part in inner.args if type(part).__name__ == "ToFloat"]
        if not inner.is_Mul or len(inner.args) != 2 or not factors or not sizes_there:
            return self.refuse(x)
        ratio = fractions.Fraction(float(factors[0])).limit_denominator(64)
        if float(ratio) != float(factors[0]):
            return self.refuse(x)
        return sizes.quotient(sizes.times(self.sum(sizes_there[0]), {(): ratio.numerator}), ratio.denominator)

    @staticmethod
    def refuse(x):
        raise Refused(f"a size is {x}; only sums, products and quotients by numbers are possible, as no "
                      f"multiple of the batch is")

    def open_slice(self, size, whole, start, end, step):
        """Defines the size of a slice that PyTorch leaves open because it clamps indices outside. Bounds
        exclude those sizes."""
        symbol = None if isinstance(size, int) else size.node.expr
        if symbol is None or not symbol.is_Symbol or symbol in self.sums:
            return
        try:
            whole = self.sum(whole.node.expr)
            start, end = [self.place(x, whole) for x in (start, end)]
            for terms in (start, sizes.plus(whole, end, -1),
                          sizes.plus(sizes.plus(end, start, -1), {(): 1}, -1)):
                self.hold(">=", terms)
            self.sums[symbol] = sizes.quotient(sizes.plus(sizes.plus(end, start, -1), {(): step - 1}), step)
        except Refused as why:
            self.refused[symbol] = why

    def place(self, x, whole):
        """An index of a slice as a sum. whole: the size of the axis."""
        if not isinstance(x, int):
            return self.sum(x.node.expr)
        return whole if x > sizes.MOST else sizes.plus(whole, {(): x}) if x < 0 else sizes.number_or_size(x)

    def inside(self, whole, index, count):
        """Requires that `count` elements from an index on are within their axis."""
        whole, index, count = [sizes.number_or_size(x) if isinstance(x, int) else self.sum(x.node.expr)
                               for x in (whole, index, count)]
        self.hold(">=", index)
        self.hold(">=", sizes.plus(sizes.plus(whole, index, -1), count, -1))

    # -- conditions --
    def guard(self, condition):
        """Makes a sympy condition hold for all sizes, by bounds. Raises Refused if it cannot."""
        relation = RELATIONS.get(type(condition).__name__)
        if relation is None:
            raise Refused(f"it takes another branch where {condition} is false; give those axes fixed sizes")
        left, right = map(self.sum, condition.args)
        if relation in ("<", "<="):
            left, right, relation = right, left, relation.replace("<", ">")
        self.hold(relation, sizes.plus(left, right, -1))

    def hold(self, relation, terms):
        """Makes terms > 0, >= 0, == 0 or != 0 hold for all sizes, by bounds. Raises Refused if it cannot."""
        if relation == ">":
            relation, terms = ">=", sizes.plus(terms, {(): 1}, -1)
        varying = {atoms: count for atoms, count in terms.items() if atoms}
        if not varying or (relation == ">=" and
                           (self.least(terms) >= 0 or self.least(self.unrounded(terms)) >= 0)):
            return
        if relation == ">=" and len(varying) > 1 and len(self.unrounded(terms).keys() - {()}) == 1:
            return self.hold(relation, self.unrounded(terms))
        (atoms, count), constant = next(iter(varying.items())), terms.get((), 0)
        if relation == "==" or len(varying) > 1 or len(atoms) > 1 or atoms[0] is sizes.BATCH:
            self.refuse_other_sizes(relation, terms)
        elif relation == "!=":
            self.exclude(atoms[0], count, constant, terms)
        else:
            self.bound(atoms[0], count, constant)

    def hold_positive(self, dim):
        """Makes a dimension at least 1 for all sizes, if a bound of one size can do so. gpunn has no empty
        tensors."""
        with contextlib.suppress(Refused):
            self.hold(">", sizes.sum_of(dim))

    def bound(self, atom, count, constant):
        """Makes count * atom + constant >= 0 hold, by a bound of the size in the atom."""
        limit = -(constant // count) if count > 0 else constant // -count  # atom >= limit, or atom <= limit
        # a quotient rounded down: its sum is at least divisor * limit, or below divisor * (limit + 1)
        if atom.divisor:
            inner = dict(atom.terms)
            self.hold(">=", sizes.plus(inner, {(): atom.divisor * limit}, -1) if count > 0 else
                      sizes.plus({(): atom.divisor * (limit + 1) - 1}, inner, -1))
        elif count > 0:
            self.narrow(atom.text, limit * atom.multiple)
        else:
            self.narrow(atom.text, 1, limit * atom.multiple)

    def exclude(self, atom, count, constant, terms):
        """Makes count * atom + constant != 0 hold, if that only excludes the first or last allowed size."""
        least, most = self.bounds.get(atom.text, (1, math.inf))
        zero = -constant // count * atom.multiple
        if constant % count or atom.divisor or not least <= zero <= most:
            return self.refuse_other_sizes("!=", terms) if atom.divisor else None
        if zero == least:
            return self.narrow(atom.text, zero + 1)
        return self.narrow(atom.text, 1, zero - 1) if zero == most else self.refuse_other_sizes("!=", terms)

    @staticmethod
    def unrounded(terms):
        """A sum without quotients, which is 0 or more only if this one is."""
        total = 1
        for atoms, count in list(terms.items()):
            atom = atoms[0] if len(atoms) == 1 else None
            if atom and atom.divisor:
                total *= atom.divisor
                rest = {own: factor for own, factor in terms.items() if own != atoms}
                rounded = {(): atom.divisor - 1} if count > 0 else {}
                inner = sizes.times(sizes.plus(dict(atom.terms), rounded, -1),
                                    {(): count * total // atom.divisor})
                terms = sizes.plus(sizes.times(rest, {(): atom.divisor}), inner)
        return sizes.plus(terms, {(): total - 1})

    def least(self, terms, sign=1):
        """A lower bound of a sum or, with sign -1, of its negative."""
        def limits(atom):
            if atom.divisor:
                inner = dict(atom.terms)
                low, high, divisor = self.least(inner), -self.least(inner, -1), atom.divisor
            else:
                (low, high), divisor = self.bounds.get(atom.text, (1, math.inf)), atom.multiple
                low += divisor - 1  # a multiple of it
            return low // divisor, high // divisor if high < math.inf else math.inf

        total = 0
        for atoms, count in terms.items():
            low, high = [math.prod(ends) for ends in zip(*map(limits, atoms))] if atoms else (1, 1)
            total += sign * count * (low if sign * count > 0 else high)
        return total

    def refuse_other_sizes(self, relation, terms):
        """Raises Refused with the condition, and how to make it true."""
        left = sizes.sum_text({atoms: count for atoms, count in terms.items() if count > 0}) or "0"
        right = sizes.sum_text({atoms: -count for atoms, count in terms.items() if count < 0}) or "0"
        if left.isdigit():
            left, right, relation = right, left, relation.replace(">", "<")
        of_batch = any(atom is sizes.BATCH for atoms in terms for atom in atoms)
        remedy = ("use dynamic_batch=False, or give that axis a name, which may have bounds" if of_batch else
                  "give the axis a fixed size, or bounds, a multiple for instance")
        not_one = terms in ({(sizes.BATCH,): 1, (): -1}, {(sizes.BATCH,): 1, (): -2}) and relation != "=="
        raise (NotOfOne if not_one else
               Refused)(f"it takes another branch unless {left} {relation} {right}; {remedy}")


def own_guards(torch, program):
    """The conditions on sizes in files other than PyTorch's, as (condition, its place in the source)."""
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
    symbolic = [size for x in values if isinstance(x, torch.Tensor)
                for size in x.shape if isinstance(size, torch.SymInt)]
    env, inside = symbolic[0].node.shape_env if symbolic else None, os.path.dirname(torch.__file__)
    for guard in env.guards if env else []:
        frame, condition = getattr(guard.sloc, "framework_loc", None), guard.expr.xreplace(env.replacements)
        if hasattr(frame, "filename") and not frame.filename.startswith(inside) and condition.free_symbols:
            yield condition, f"{os.path.basename(frame.filename)}:{frame.lineno}"
