"""A launch's arithmetic as C functions of single floats. The C loops, the vector path of the CUDA kernels and
its tail all call them.

A map launch has one function for an element, and one for each place of its finals. A row launch has functions
for the elements of a row, one after each level of reductions. Between them are functions for values that the
whole row shares, which are computed once. Results are written through pointers. No function reads through
these."""
from collections import namedtuple

from . import floats, ir

# kind of a parameter: load (key: Operand), keep (random stream, p), column (Operand of the label), count
# (fixed, per_batch), reduction (number), row (number), total (Sum.number). Kind of a result: store
# (Operand), sum (Sum.number), reduction (number), row (number).
Slot = namedtuple("Slot", "name kind key")
# scope: element, row or final
Function = namedtuple("Function", "name scope parameters results text")
Reduction = namedtuple("Reduction", "number kind stage node")

WIDTH = 110
LONGEST = 84  # characters of an expression, before a part of it gets a name
INFIX = {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2), "div": ("/", 2), "lt": ("<", 0), "le": ("<=", 0),
         "gt": (">", 0), "ge": (">=", 0), "eq": ("==", 0), "ne": ("!=", 0)}
UNARY, PRIMARY = 3, 4  # how tightly a text binds
WITH_FAST = ("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "tanh", "erf", "erf_near", "erf_gauss",
             "sigmoid")
RESERVED = frozenset(
    "auto bool break case char const constexpr continue default delete do double else enum extern false "
    "float for goto if inline int long new operator or and not xor private public register restrict return "
    "short signed sizeof static struct switch template this throw true try typedef typename union unsigned "
    "using virtual void volatile while class near far small linux unix errno stdin stdout stderr EOF I NAN "
    "INFINITY NULL".split())


def is_fast(kernel_set, launch):
    """Whether the launch uses the fast functions: if all values that it stores for every element have 16
    bits, or if the model asks for it."""
    if kernel_set.math != "auto":
        return kernel_set.math == "fast"
    return bool(launch.stores) and all(store.operand.dtype in ("bf16", "f16") for store in launch.stores)


def threshold(p):
    """Elements with a 16-bit random number below this are kept (gpunn.h, >>cpu/elementwise)."""
    return int((1 - p) * 65536 + 0.5)


def number(value):
    """The shortest C text that gives the same float."""
    if value != value:
        return "NAN"
    if value in (floats.INFINITY, -floats.INFINITY):
        return "INFINITY" if value > 0 else "-INFINITY"
    if value == int(value) and abs(value) < 1e6 and str(value) != "-0.0":
        return "%d" % value
    text = floats.digits(value)
    return text + ("f" if set(text) & set(".e") else ".0f")


def of_row(place, inner):
    """Whether all elements of a row read the same element there."""
    div, mod = place
    return mod == 1 or div % inner == 0


def reductions(launch):
    """The reductions over rows of a launch, each after those that it needs. Stage 1 needs none."""
    found, stages = [], {}
    for node in ir.topological(_roots(launch)):
        stage = max([stages[arg] for arg in node.args], default=0)
        if node.op == "rowred":
            stage += 1
            found.append(Reduction(len(found), node.attr, stage, node))
        stages[node] = stage
    return tuple(found)


def _roots(launch):
    return [store.value for store in launch.stores] + [one.value for one in launch.sums]


class Names:
    def __init__(self):
        self.taken = set()

    def new(self, wanted):
        name, i = wanted, 1
        while name in self.taken or name in RESERVED:
            i += 1
            name = "%s_%d" % (wanted, i)
        self.taken.add(name)
        return name


class _Writer:
    """Writes the text of one function. known: {node: (kind, key)} for nodes that are parameters although they
    are no leaves."""

    def __init__(self, prefix, fast, known):
        self.prefix, self.fast, self.known = prefix, fast, known
        self.names, self.parameters, self.lines, self.text = Names(), [], [], {}

    def parameter(self, node):
        kind, key = self.known.get(node, (node.op, node.attr))
        name = {"load": lambda: key.name, "keep": lambda: "keep%d" % key[0],
                "column": lambda: "at_" + key.name, "count": lambda: "count",
                "reduction": lambda: "%s%d" % (node.attr, key), "row": lambda: "row%d" % key,
                "total": lambda: "sum%d" % key}[kind]()
        slot = Slot(self.names.new(name), kind, key)
        self.parameters.append(slot)
        self.text[node] = (slot.name + " != 0", 0) if node.is_condition else (slot.name, PRIMARY)

    def call(self, function, *args):
        fast = "_fast" if self.fast and function in WITH_FAST else ""
        return "%s_%s%s(%s)" % (self.prefix, function, fast, ", ".join(args)), PRIMARY

    def bound(self, node, level):
        """The node's text, in parentheses if it binds less tightly than level."""
        text, own = self.text[node]
        return text if own >= level else "(%s)" % text

    def expression(self, node):
        op, args = node.op, node.args
        if op == "const":
            text = number(node.attr)
            return text, UNARY if text[0] == "-" else PRIMARY
        if op == "neg":
            return "-" + self.bound(args[0], PRIMARY), UNARY
        if _is_inverse(node) and args[1].op == "sqrt" and args[1] not in self.text:
            return self.call("rsqrt", self.text[args[1].args[0]][0])
        if op == "div" and self.fast and args[1].op != "const":
            return self.call("div_fast", self.text[args[0]][0], self.text[args[1]][0])
        if op in INFIX:
            sign, level = INFIX[op]
            left = self.bound(args[0], 1 if level == 0 else level)
            right = self.bound(args[1],
                               PRIMARY if self.text[args[1]][0][0] == "-" else 1 if level == 0 else level + 1)
            return "%s %s %s" % (left, sign, right), level
        if op == "round":
            return self.call("round_" + node.attr, self.text[args[0]][0])
        return self.call(op, *(self.text[arg][0] for arg in args))

    def named(self, node, expression):
        name = self.names.new("t%d" % sum(line.count("const ") for line in self.lines))
        self.lines.append("const %s %s = %s;" % ("bool" if node.is_condition else "float", name, expression))
        self.text[node] = (name, PRIMARY)

    def write(self, name, results):
        """results: [(wanted name, kind, key, node)]."""
        roots = [node for _, _, _, node in results]
        nodes = self.reached(roots, {})
        near, pairs = self.near_erfs(nodes, self.users(nodes, {}))
        after = {partner: node for node, partner in pairs.items()}
        nodes = self.reached(roots, after)
        uses = self.users(nodes, after)
        for node in nodes:
            if self.is_leaf(node):
                if node.op == "const":
                    self.text[node] = self.expression(node)
                elif node not in self.text:
                    self.parameter(node)
        slots = [Slot(self.names.new(wanted if wanted not in self.names.taken else wanted + "_out"), kind,
                      key) for wanted, kind, key, _ in results]
        wanted = {node for _, _, _, node in results}
        for node in nodes:
            if node in self.text:
                continue
            if (node.op == "sqrt" and node not in wanted and
                [_is_inverse(user) for user in uses[node]] == [True]):
                continue  # the same function computes its user
            if node in pairs:
                partner = pairs[node]
                gauss = self.names.new("gauss")
                self.lines.append("float %s;" % gauss)
                self.text[partner] = (gauss, PRIMARY)
                self.named(node, self.call("erf_gauss", self.text[node.args[0]][0], "&" + gauss)[0])
                continue
            text, level = (self.call("erf_near", self.text[node.args[0]][0]) if node in near else
                           self.expression(node))
            count = len(uses.get(node, ())) + sum(one is node for _, _, _, one in results)
            if count > 1 or (len(text) > LONGEST and node not in wanted):
                self.named(node, text)
            else:
                self.text[node] = (text, level)
        for slot, (_, _, _, node) in zip(slots, results):
            text = self.text[node][0]
            self.lines.append("*%s = %s;" % (slot.name, "(float)(%s)" % text if node.is_condition else text))
        declared = ["float " + slot.name for slot in self.parameters] + [
            "float *" + slot.name for slot in slots]
        text = "\n".join(wrapped("%s_FN void %s(" % (self.prefix.upper(), name), declared, ")") + ["{"] +
                         ["    " + line for line in self.lines] + ["}"]) + "\n"
        return name, tuple(self.parameters), tuple(slots), text

    def is_leaf(self, node):
        return node in self.known or node.op in ir.LEAVES

    def operands(self, node, after):
        return () if self.is_leaf(node) else (after[node],) if node in after else node.args

    def users(self, nodes, after):
        result = {}
        for node in nodes:
            for arg in self.operands(node, after):
                result.setdefault(arg, []).append(node)
        return result

    def reached(self, roots, after):
        """The nodes that this function computes or gets, operands first. after: {node: the one that is its
        only operand}."""
        order, seen, stack = [], set(), [(root, False) for root in reversed(roots)]
        while stack:
            node, done = stack.pop()
            if done:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack.extend((arg, False) for arg in reversed(self.operands(node, after)))
        return order

    def near_erfs(self, nodes, uses):
        """The erf nodes that are only added to numbers, so their relative error near 0 does not matter. Also,
        among them, those that are used with exp(-u^2) of the same operand u: one function computes both."""
        near = [node for node in nodes if node.op == "erf" and not self.is_leaf(node) and uses.get(node) and
                all(
                    user.op == "add" and user.args[1].op == "const" and abs(user.args[1].attr) >= 0.5
                    for user in uses[node])]
        pairs = {}
        for node in near:
            scale, base = _product(node.args[0])
            for other in nodes:
                if other.op == "exp" and not self.is_leaf(other) and other not in pairs.values():
                    square, factors = _product(other.args[0])
                    if factors == base + base and abs(square + scale * scale) <= 1e-6 * scale * scale:
                        pairs[node] = other
        return set(near), pairs


def _is_inverse(node):
    return node.op == "div" and node.args[0].op == "const" and node.args[0].attr == 1


def _product(node):
    """A product as its constant factor and its other factors."""
    if node.op == "const":
        return node.attr, []
    if node.op == "neg":
        scale, factors = _product(node.args[0])
        return -scale, factors
    if node.op != "mul":
        return 1.0, [node]
    (a, left), (b, right) = map(_product, node.args)
    return a * b, sorted(left + right, key=lambda one: one.id)


def wrapped(start, parts, end, indent=0):
    """start, the parts with commas between, and end, in lines that fit at this indentation."""
    lines, line = [], start
    for i, part in enumerate(parts):
        part += "," if i + 1 < len(parts) else end
        if len(line) + len(part) + 1 > WIDTH - indent:
            lines.append(line.rstrip())
            line = " " * len(start)
        line += part if line.endswith("(") or not line.strip() else " " + part
    return lines + [line if parts else start + end]


def functions(prefix, launch, fast=False):
    """The functions of a launch in the order of their calls. prefix: SET_KERNEL_DIRECTION_NUMBER."""
    family = _row_functions if launch.family == "row" else _map_functions
    return tuple(family(prefix, launch, fast)) + tuple(_finals(prefix, launch))


def function(set_name, name, results):
    """A function that computes the results, [(name, kind, key, node)], from loads alone: (name, parameters,
    results, text)."""
    return _Writer(set_name, False, {}).write(name, results)


def _set_name(prefix):
    return prefix.rsplit("_", 3)[0]


def _sums(launch, over_rows=False):
    return [("sum%d" % one.number, "sum", one.number, one.value)
            for one in launch.sums if one.over_rows == over_rows]


def _stores(stores):
    return [(store.operand.name, "store", store.operand, store.value) for store in stores]


def _map_functions(prefix, launch, fast):
    writer = _Writer(_set_name(prefix), fast, {})
    name, parameters, results, text = writer.write(prefix, _stores(launch.stores) + _sums(launch))
    return [Function(name, "element", parameters, results, text)]


def _finals(prefix, launch):
    places = []
    for store in launch.finals:
        if store.operand.place not in places:
            places.append(store.operand.place)
    for i, place in enumerate(places):
        writer = _Writer(_set_name(prefix), False, {})
        own = [store for store in launch.finals if store.operand.place == place]
        name, parameters, results, text = writer.write("%s_final%s" % (prefix, i or ""), _stores(own))
        yield Function(name, "final", parameters, results, text)


def _row_functions(prefix, launch, fast):
    inner, found = launch.domain.inner, reductions(launch)
    depth = max([one.stage for one in found], default=0)
    by_node = {one.node: one for one in found}
    nodes = ir.topological(_roots(launch))
    of_rows, stages = set(), {}
    for node in nodes:
        if node.op == "load":
            same = of_row(node.attr.place, inner)
        else:
            same = node.op == "rowred" or (node.op not in ("keep", "is_column") and
                                           all(arg in of_rows for arg in node.args))
        if same:
            of_rows.add(node)
        stages[node] = (by_node[node].stage if node in by_node else
                        max([stages[arg] for arg in node.args], default=0))
    known = {one.node: ("reduction", one.number) for one in found}
    known.update({node: ("column", node.args[0].attr) for node in nodes if node.op == "is_column"})
    # What the elements need of their row, besides memory and reductions, is a value of the row.
    targets = {stage: [("%s%d" % (one.kind, one.number), "reduction", one.number, one.node.args[0])
                       for one in found if one.stage == stage] for stage in range(1, depth + 1)}
    stores = [store for store in launch.stores if not of_row(store.operand.place, inner)]
    row_stores = [store for store in launch.stores if of_row(store.operand.place, inner)]
    targets[depth + 1] = _stores(stores) + _sums(launch)
    shared = []
    for stage in range(1, depth + 2):
        writer = _Writer("", fast, known)
        pending = [node for _, _, _, node in targets[stage]]
        seen = set()
        while pending:
            node = pending.pop(0)
            if node in seen:
                continue
            seen.add(node)
            if node in of_rows:
                if node not in known and node.op not in ir.LEAVES and node not in shared:
                    shared.append(node)
            elif not writer.is_leaf(node):
                pending = list(node.args) + pending
    numbers = {node: i for i, node in enumerate(shared)}
    known_elements = dict(known)
    known_elements.update({node: ("row", i) for node, i in numbers.items()})

    def function(name, scope, fast_here, givens, results):
        written = _Writer(_set_name(prefix), fast_here, givens).write(name, results)
        return Function(written[0], scope, *written[1:])

    for stage in range(0, depth + 1):
        if stage > 0:
            yield function("%s_stage%d" % (prefix, stage), "element", fast, known_elements, targets[stage])
        own = [("row%d" % numbers[node], "row", numbers[node], node)
               for node in shared if stages[node] == stage]
        givens = dict(known)
        givens.update({node: ("row", i) for node, i in numbers.items() if stages[node] < stage})
        if stage == depth:
            own += _stores(row_stores) + _sums(launch, True)
        if own:
            yield function("%s_row%d" % (prefix, stage), "row", False, givens, own)
    if targets[depth + 1]:
        yield function(prefix, "element", fast, known_elements, targets[depth + 1])
