"""Dimensions that vary between runs, besides the batch: formulas of named sizes. Arithmetic, canonical form
and texts are those of gpunn.h (>>base/sizes), so that both give a dimension the same text."""
import math
import re
from dataclasses import dataclass
from functools import reduce

MOST = 1 << 59            # largest dimension
MOST_TERMS, MOST_FACTORS, MOST_TEXT, MOST_DEPTH = 8, 4, 126, 32


class SizeError(Exception):
    """Why something is no size. key: the attribute at fault."""

    def __init__(self, message, key=None):
        super().__init__(message)
        self.key = key


@dataclass(frozen=True)
class Atom:
    """What a formula is made of: a name, which stands for `multiple` times a whole number, or a quotient
    rounded down."""
    text: str
    multiple: int = 1
    terms: tuple = ()   # of a quotient: the sum that is divided
    divisor: int = 0    # 0: a name


BATCH = Atom("batch")


class Size(int):
    """A dimension that varies. As a number it is far below those that stand for batches, so checks that
    reject the batch reject it too. In its own arithmetic, integers are numbers and not batches."""
    terms, text = (), ""

    def __add__(self, other):
        return dim_of(plus(sum_of(self), number_or_size(other)))

    def __sub__(self, other):
        return dim_of(plus(sum_of(self), number_or_size(other), -1))

    def __rsub__(self, other):
        return dim_of(plus(number_or_size(other), sum_of(self), -1))

    def __mul__(self, other):
        return dim_of(times(sum_of(self), number_or_size(other)))

    def __floordiv__(self, other):
        return dim_of(quotient(sum_of(self), int(other)))

    __radd__, __rmul__ = __add__, __mul__

    def __str__(self):
        return self.text


_known = {}


def varies(dim):
    return isinstance(dim, Size)


def any_varies(dims):
    return any(map(varies, dims))


# ---- sums: {atoms by text: factor} -------------------------------------------------------------------------
def number_or_size(value):
    return sum_of(value) if varies(value) else {(): value} if value else {}


def sum_of(dim):
    """The sum of a dimension. -k is k times the batch."""
    if varies(dim):
        return dict(dim.terms)
    return {(): dim} if dim > 0 else {(BATCH,): -dim} if dim < 0 else {}


def plus(a, b, factor=1):
    result = dict(a)
    for atoms, count in b.items():
        result[atoms] = result.get(atoms, 0) + factor * count
    return {atoms: count for atoms, count in result.items() if count}


def times(a, b):
    result = {}
    for atoms, count in a.items():
        for others, factor in b.items():
            both = tuple(sorted(atoms + others, key=lambda atom: atom.text))
            result[both] = result.get(both, 0) + count * factor
    return {atoms: count for atoms, count in result.items() if count}


def quotient(terms, k):
    """A sum divided by k, rounded down. Terms that k divides leave the quotient. A quotient of a quotient is
    one quotient."""
    whole, rest, common = {}, {}, k
    for atoms, count in terms.items():
        whole[atoms], rest[atoms] = divmod(count, k)
        if atoms:
            common = math.gcd(common, rest[atoms])
    whole = plus({}, whole)
    if common == k:  # except for a number below k
        return whole
    rest = plus({}, {atoms: count // common for atoms, count in rest.items()})
    k //= common
    varying = [atoms for atoms in rest if atoms]
    inner = varying[0][0] if len(varying) == 1 and len(varying[0]) == 1 and rest[varying[0]] == 1 else None
    if inner and inner.divisor:
        return plus(whole, quotient(plus(dict(inner.terms), number_or_size(rest.get((), 0) * inner.divisor)),
                                    inner.divisor * k))
    text = sum_text(rest) if len(rest) == 1 else "(%s)" % sum_text(rest)
    return plus(whole, {(Atom("%s / %d" % (text, k), 1, ordered(rest), k),): 1})


def term_divided(term, divisor):
    """One term divided by another that is a factor of it. None: it is not."""
    (atoms, count), (own, own_count) = term, divisor
    rest = list(atoms)
    for atom in own:
        if atom not in rest:
            return None
        rest.remove(atom)
    return None if count % own_count else (tuple(rest), count // own_count)


def divided(terms, divisor):
    """A sum divided by a factor, if the factor or the result is one term. None: it is not."""
    first, *others = divisor.items()
    parts = [term_divided(term, first) for term in terms.items()]
    if not others:
        return None if None in parts else dict(parts)
    return next(({atoms: count}
                 for atoms, count in filter(None, parts) if times(divisor, {atoms: count}) == terms), None)


def product(dims):
    """The sum that a product of dimensions is."""
    result = {(): 1}
    for dim in dims:
        result = times(result, sum_of(dim))
    return result


def dim_of(terms):
    """The dimension that a sum is, or the number."""
    if not any(terms):  # no atoms
        return terms.get((), 0)
    if set(terms) == {(BATCH,)} and terms[(BATCH,)] > 0:
        return -terms[(BATCH,)]
    key = ordered(terms)
    if key not in _known:
        size = Size(-(MOST << 4) - len(_known))
        size.terms, size.text = key, sum_text(terms)
        if (len(terms) > MOST_TERMS or any(len(atoms) > MOST_FACTORS or abs(count) > MOST
                                           for atoms, count in key) or len(size.text) > MOST_TEXT):
            raise SizeError("it is never a valid size, or it is too long")
        _known[key] = size
    return _known[key]


def dim_product(dims):
    return dim_of(product(dims))


def dim_total(dims):
    return dim_of(reduce(plus, map(sum_of, dims)))


def named_dim(name, multiple=1):
    """The dimension of a name; "batch" is the batch."""
    return dim_of({(BATCH,): 1} if name == "batch" else {(Atom(name, multiple),): multiple})


def slice_index(index, size):
    """One index of a Python slice. With varying sizes it is only clamped if it is certainly past the end."""
    if varies(index):
        return index
    if varies(size):
        return size + index if index < 0 else size if index > MOST else index
    return max(index + size, 0) if index < 0 else min(index, size)


def value_at(dim, known):
    """The value of a dimension if names, with the batch as "batch", have the values `known`."""
    return total_at(sum_of(dim), known)


def total_at(terms, known):
    def atom_at(atom):
        return (total_at(dict(atom.terms), known) // atom.divisor if atom.divisor else
                known[atom.text] // atom.multiple)

    return sum(count * math.prod(map(atom_at, atoms)) for atoms, count in dict(terms).items())


def content(dims):
    """The elements of a shape as (number, what varies): the number times a sum whose factors have nothing in
    common."""
    terms = product(dims)
    common = reduce(math.gcd, terms.values(), 0)
    return common, ordered({atoms: count // common for atoms, count in terms.items()})


# ---- texts -------------------------------------------------------------------------------------------------
def ordered(terms):
    """Sorted by the texts of the atoms, with a number last."""
    return tuple(sorted(terms.items(), key=lambda term: (not term[0], [atom.text for atom in term[0]])))


def term_text(atoms, count):
    parts = math.prod(atom.multiple for atom in atoms)
    common = math.gcd(count, parts)
    count, parts = abs(count) // common, parts // common
    alone = count == parts == len(atoms) == 1
    words = [str(count)] if count != 1 or not atoms else []
    words += [atom.text if alone or not atom.divisor else "(%s)" % atom.text for atom in atoms]
    return " * ".join(words) + (" / %d" % parts if parts > 1 else "")


def sum_text(terms):
    result = ""
    for atoms, count in ordered(terms):
        sign = (" - " if result else "-") if count < 0 else " + " if result else ""
        result += sign + term_text(atoms, count)
    return result


# ---- formulas ----------------------------------------------------------------------------------------------
class Formula:
    """A formula's text in terms of sizes, {name: multiple}. fixed: numbers that stand for some names."""

    def __init__(self, text, sizes, fixed=None):
        self.text, self.sizes, self.fixed, self.at, self.depth = text, sizes, fixed or {}, 0, 0

    def fail(self, fault):
        raise SizeError("\"%s\" is not a size: %s (at byte %d)" % (self.text, fault, self.at))

    def takes(self, pattern):
        found = re.compile(" *(%s)" % pattern).match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found and found.group(1)

    def factor(self):
        name = self.takes("[A-Za-z_][A-Za-z0-9_]*")
        if name == "batch":
            return {(BATCH,): 1}
        if name in self.fixed:
            return number_or_size(self.fixed[name])
        if name:
            if name not in self.sizes:
                self.fail("it has a name that is not a size; define it in \"sizes\"")
            return {(Atom(name, self.sizes[name]),): self.sizes[name]}
        if self.depth < MOST_DEPTH and self.takes(r"\("):
            self.depth += 1
            result = self.sum()
            self.depth -= 1
            return result if self.takes(r"\)") else self.fail("a ) is missing")
        return number_or_size(self.number())

    def number(self):
        digits = self.takes("[0-9]+")
        return int(digits) if digits else self.fail("a number, a name or a parenthesis is missing")

    def product(self):
        result = self.factor()
        while True:
            sign = self.takes("[*/]")
            if sign == "*":
                result = times(result, self.factor())
            elif sign == "/":
                divisor = self.number()
                if not 1 <= divisor <= MOST:
                    self.fail("a size can only be divided by an integer of 1 or more")
                result = quotient(result, divisor)
            else:
                return result

    def sum(self):
        sign = -1 if self.takes("-") else 1
        result = plus({}, self.product(), sign)
        while True:
            sign = self.takes("[-+]")
            if sign is None:
                return result
            result = plus(result, self.product(), -1 if sign == "-" else 1)

    def dim(self):
        terms = self.sum()
        if self.text[self.at:].strip(" "):
            self.fail("it has extra text at its end")
        try:
            dim = dim_of(terms)
        except SizeError as fault:
            self.fail(fault)
        return (dim if dim != 0 and (dim > 0 or any(terms)) and dim <= MOST else
                self.fail("it is never a valid size, or it is too long"))
