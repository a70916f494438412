"""Writes NAME_model.h: C functions that build a spec's model with gpunn's public builders, for programs
without JSON."""
import re

from . import stamp, table
from .floats import digits, f32
from .graph import BATCH, Graph, Tensor, window
from .sizes import varies

WIDTH = 110
_FLOATS = ("NUMBER", "POSITIVE", "SCALE", "SHARE", "EXTENDED")
# The prefix of each kind's enum values, and the table with its words.
_CHOICES = {"REDUCTION": ("REDUCE", "reduction"), "CLASS_REDUCTION": ("REDUCE", "reduction"),
            "GRID_MODE": ("GRID", "grid_mode"), "GRID_PADDING": ("GRID", "grid_padding"),
            "INTERPOLATE_MODE": ("INTERPOLATE", "interpolate_mode"), "PAD_MODE": ("PAD", "pad_mode")}
_KEYWORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int "
    "long register restrict return short signed sizeof static struct switch typedef union unsigned void "
    "volatile while bool true false model dev out ok alignas alignof and asm bitand bitor catch class compl "
    "concept constexpr decltype delete explicit export friend mutable namespace new noexcept not nullptr "
    "operator or private protected public requires template this throw try typeid typename using virtual "
    "wchar_t xor main NULL INFINITY NAN errno".split())


def quoted(text):
    """A C string literal of a text's UTF-8, split into parts that fit a line."""
    def shown(part):
        return "".join(chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else "\\%03o" % byte
                       for byte in part.encode("utf-8"))
    parts = re.findall(".{1,80}(?= |$)|.{1,80}", text, re.S) or [""]
    return " ".join('"%s"' % shown(part) for part in parts)


def number(value):
    """The shortest C literal of a float32."""
    if value != value:
        return "NAN"
    if abs(value) == float("inf"):
        return "INFINITY" if value > 0 else "-INFINITY"
    if value == int(value) and abs(value) < 1e6:
        return "%.1ff" % value
    text = digits(value)
    return text + ("f" if set(text) & set(".e") else ".0f")


def whole(value):
    """A C literal of a 64-bit integer."""
    return str(value) if abs(value) < 1 << 31 else "INT64_MIN" if value == -1 << 63 else "INT64_C(%d)" % value


def boolean(value):
    return "true" if value else "false"


def dim_of(dim):
    if varies(dim):
        return "gpunn_size(model, \"%s\")" % dim.text
    return "GPUNN_BATCH" if dim == BATCH else "GPUNN_BATCH * %d" % -dim if dim < 0 else str(dim)


def shape(dims):
    return "GPUNN_SHAPE(%s)" % ", ".join(map(dim_of, dims or (0,)))


def wrapped(text, indent=4):
    """Splits a statement into lines of at most WIDTH characters. It breaks between string literals and after
    commas outside of strings."""
    lines, line = [], " " * indent
    for part in re.findall(r'"(?:\\.|[^"\\])*"(?= ") ?|(?:"(?:\\.|[^"\\])*"(?! ")|[^",])+,? ?', text):
        if len(line) + len(part.rstrip()) > WIDTH and line.strip():
            lines.append(line.rstrip())
            line = " " * (indent + 4)
        line += part
    return lines + [line.rstrip()]


class _Fields:
    """The fields of an argument struct that differ from its defaults."""

    def __init__(self):
        self.texts = []

    def add(self, name, value, default=None):
        if value == default:
            return self
        if isinstance(value, bool):
            value = boolean(value)
        elif value == 0 and default is not None:
            value = "GPUNN_ZERO"
        elif isinstance(value, float):
            value = number(value)
        self.texts.append(".%s = %s" % (name, value))
        return self


class _Emitter:
    def __init__(self, model, name, inference):
        self.model, self.tensors, self.name = model, model.tensors, name
        self.inference = inference
        self.graph = Graph({size: bounds["multiple"] for size, bounds in model.sizes.items()})
        self.lines = []
        self.variables = {}
        self.taken = {name + "_tensors": True}
        # entries that create nothing only pass an existing tensor on
        self.entries = [entry for entry in model.entries if entry.result in entry.made]
        read = {t.id for entry in self.entries for t in self.tensors_of(entry)}
        made = dict.fromkeys(entry.result.id for entry in self.entries)
        self.leaves = [i for i in made if i not in read]
        inputs = [t.id for t in self.tensors if t.kind == "input"]
        loss = [] if model.loss is None else [model.loss]
        self.fields = [("inputs", inputs),
                       ("outputs", [i for i in dict.fromkeys(model.outputs) if i not in inputs + loss]),
                       ("the loss", loss)]
        if not any(ids for _, ids in self.fields):
            self.fields = [("all", self.leaves)]
        self.read = read.union(*(ids for _, ids in self.fields))  # tensors that statements name

    @staticmethod
    def tensors_of(entry):
        """The Tensors that an entry names."""
        for value in entry.operands + list(entry.arguments.values()):
            for t in (value.values() if isinstance(value, dict) else
                      value if isinstance(value, (list, tuple)) else (value,)):
                if isinstance(t, Tensor):
                    yield t

    def variable(self, t):
        if t.id not in self.variables:
            label = re.sub(r"[^A-Za-z0-9_]", "_", t.label or "") or "t%d" % t.id
            label = ("t_" + label if label[0].isdigit() or label[0] == "_" or label in _KEYWORDS or
                     "gpunn" in label else label)
            self.variables[t.id] = self.fresh(label)
        return self.variables[t.id]

    def statement(self, text):
        self.lines += wrapped(text)

    def pointers(self, entry, what, tensors):
        """Declares an array of tensors and returns its name."""
        name = self.helper(entry.result, what)
        self.statement("gpunn_tensor *%s[] = {%s};" % (name, ", ".join(map(self.variable, tensors))))
        return name

    # ---- one entry ----
    def call(self, entry):
        """The call of the entry's builder."""
        op = table.ops().get(entry.op)
        operands = [self.variable(t) for t in entry.operands if isinstance(t, Tensor)]
        if op and op.term:
            formula = "%s(%s)" % (
                op.name, ", ".join(["x", "y"] + [repr(float(value)) for value in entry.arguments.values()]))
            return "gpunn_expr(%s, %s, 2)" % (quoted(formula), self.pointers(entry, "parts", entry.operands))
        if op and op.arity:
            return "gpunn_%s(%s)" % (
                op.name, ", ".join(operands + [number(f32(value)) for value in entry.arguments.values()]))
        row = table.rows()[entry.op]
        builder, taken = re.fullmatch(r"(\w+)\((.*)\)", row.call).groups()
        own = re.fullmatch("gpunn__(?:make_)?(.*)", builder)
        if own:  # the row has a method of its own
            return getattr(self, own.group(1))(entry, row, operands)
        given = [part for one in table.split(taken) for part in self.parameter_of(one, entry, row, operands)]
        return "%s(%s)" % (builder.rstrip("_"), ", ".join(given))

    def parameter_of(self, text, entry, row, operands):
        """The C texts for what the row's call names with this parameter."""
        if text == "*a":
            return self.named(entry, row)
        if text == "in":
            return [self.pointers(entry, "parts", entry.operands)]
        if text == "name":
            return [quoted(entry.arguments["name"])]
        known = dict({"in[%d]" % i: operand for i, operand in enumerate(operands)}, **{
            "e->count": str(len(operands)), "l->model": "model"})
        if text in known:
            return [known[text]]
        field, place = re.search(r"a->(\w+)(?:\[(\d)\])?", text).groups()
        one = next(one for one in row.arguments if one.field == field)
        value = entry.arguments.get(one.name)
        if place:
            return [str(window(value, row.axes)[int(place)])]
        if one.kind in _FLOATS and value == 0 and one.default not in (0, "NEEDED") and text.startswith("a->"):
            return ["(float)GPUNN_ZERO"]
        return [self.literal(one, value)]

    def literal(self, one, value):
        """A value of one of a row's arguments, in C."""
        if one.kind in _CHOICES:
            return "GPUNN_%s_%s" % (_CHOICES[one.kind][0], value.upper().replace("-", "_"))
        if one.kind in _FLOATS:
            return number(f32(value) or 0.0)  # -0 is 0, as GPUNN_ZERO
        if one.kind in ("SHAPE", "COUNTS"):
            return shape(tuple(map(self.graph.dim, value)))
        if one.kind == "AXES":
            return "GPUNN_AXES(%s)" % ", ".join(map(str, value)) if value else "GPUNN_ALL"
        if one.kind in ("INDEX", "END"):
            return ("GPUNN_END_OF_AXIS" if value is None else
                    dim_of(self.graph.dim(value)) if isinstance(value, str) else whole(value))
        return (quoted(value) if one.kind == "TEXT" else "GPUNN_" + value.upper() if one.kind == "DTYPE" else
                boolean(value) if isinstance(value, bool) else whole(value))

    def named(self, entry, row, **given):
        """The fields of the row's struct that differ from its defaults, and those in `given`, in the struct's
        order."""
        for one in row.arguments:
            value = entry.arguments.get(one.name)
            # this argument belongs to the row's other form
            bias = one.kind in ("BIAS", "NO_BIAS") and (one.kind == "BIAS") != isinstance(value, Tensor)
            if value is not None and one.field != "args_" and not bias:
                field, text = self.field(entry, one, value)
                given.update({field: text} if text else {})
        return [".%s = %s" % (field, given[field]) for field in table.structs()[row.struct] if field in given]

    def field(self, entry, one, value):
        """The field that takes a value, and its C text. The text is None if it is the default."""
        if isinstance(value, Tensor):
            return one.field, self.variable(value)
        if one.kind in ("SIZES", "FACTORS"):
            values = window(value, len(entry.operands[0].shape) - 2)
            values = map(repr, values) if one.kind == "FACTORS" else map(dim_of, map(self.graph.dim, values))
            return one.field, "{%s}" % ", ".join(values)
        if isinstance(value, (list, tuple)) and one.kind in ("WINDOW", "PADDING") and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, (list, tuple)):
            return one.field, "{%s}" % ", ".join(map(str, value)) if any(value) else None
        if one.kind in ("WINDOW", "PADDING"):
            return one.name, None if value == one.default else "GPUNN_ZERO" if value == 0 else str(value)
        if one.kind == "ACTIVATION":
            return one.field, boolean(True) if value == table.words("activation")[1] else None
        if one.kind in _CHOICES:
            return (one.field, None if value == table.words(_CHOICES[one.kind][1])[one.default] else
                    self.literal(one, value))
        if isinstance(value, bool):
            return (one.field,
                    None if value == one.default else boolean(value if one.kind == "FLAG" else not value))
        default = (f32(one.default) if one.kind in _FLOATS and not isinstance(one.default, str) else
                   one.default)
        value = f32(value) if one.kind in _FLOATS else value
        return (one.field,
                None if value == default else "GPUNN_ZERO" if value == 0 else self.literal(one, value))

    # ---- rows that read their entries by themselves ----
    def parameter(self, entry, row, operands):
        t = entry.result
        self.statement("gpunn_init %s = %s;" % (self.helper(t, "init"), self.init(t)))
        return "gpunn_%s(model, %s, %s, %s)" % (entry.op, quoted(t.name), shape(t.shape),
                                                self.helper(t, "init"))

    state = parameter

    def constant(self, entry, row, operands):
        t = entry.result
        self.statement("static const float %s[] = {%s};" %
                       (self.helper(t, "values"), ", ".join(map(number, t.values))))
        return "gpunn_constant(model, %s, %s)" % (shape(t.shape), self.helper(t, "values"))

    def assign(self, entry, row, operands):
        a, given = entry.arguments, _Fields().add("in_training", entry.arguments["in_training"], False).texts
        if a.get("position") is None:
            return "gpunn_assign(%s)" % ", ".join(operands + given)
        return "gpunn_assign_at(%s)" % ", ".join([operands[0], str(a["axis"]), self.variable(a["position"]),
                                                  operands[1]] + given)

    def recurrent(self, entry, row, operands):
        a, own = entry.arguments, {"hidden_size": entry.arguments["weights"][1].shape[1]}
        if len(a["weights"]) == (4 if a["bidirectional"] else 2):
            own["no_bias"] = boolean(True)
        given = self.named(entry, row, weights=self.pointers(entry, "weights", a["weights"]), **own)
        return "gpunn_%s(%s, %s, %s)" % (entry.op, operands[0],
                                         quoted(a["layer"]) if a.get("layer") else "NULL", ", ".join(given))

    def attention(self, entry, row, operands):
        return "gpunn_%s(%s)" % (entry.op,
                                 ", ".join((operands + ["NULL", "NULL"])[:3] + self.named(entry, row)))

    def integer_node(self, entry, row, operands):
        operation = entry.arguments["operation"]
        if len(operands) == table.integers()[operation][0]:
            return "gpunn_%s(%s)" % (operation, ", ".join(operands))
        value = whole(entry.arguments["value"])
        if operation == "where":
            return "gpunn_where_scalar(%s, %s, %s)" % (*operands, value)
        return "gpunn_integer_scalar(GPUNN_INTEGER_%s, %s, %s)" % (operation.upper(), operands[0], value)

    def expr(self, entry, row, operands):
        """Names the operands and numbers in front of the formula, since gpunn_expr only knows x0 to x7."""
        tensors, names = entry.operands, []
        if isinstance(tensors[0], dict):
            given = tensors[0]
            # x3 stands at place 3, since a formula cannot swap two names
            numbered = ["x%d" % i for i in range(len(given))]
            others = [name for name in given if name not in numbered]
            names = [name if name in given else others.pop() for name in numbered]
            tensors = [given[name] for name in names]
        reserved = names or ["x%d" % i for i in range(len(tensors))] + ["x", "y", "z"][:len(tensors)]
        aliases = ["%s = x%d; " % (name, i) for i, name in enumerate(names) if name != "x%d" % i]
        aliases += ["%s = %r; " % (name, float(value))
                    for name, value in entry.arguments["consts"].items() if name not in reserved]
        return "gpunn_expr(%s, %s, %d)" % (quoted("".join(aliases) + entry.arguments["expression"]),
                                           self.pointers(entry, "parts", tensors), len(tensors))

    def custom(self, entry, row, operands):
        numbers = list(entry.result.attrs["numbers"])
        while numbers and numbers[-1] == 0:
            numbers.pop()
        return "gpunn_custom(gpunn_find_custom(dev, %s), %s%s)" % (
            quoted(entry.arguments["kind"]), self.pointers(entry, "parts", entry.operands),
            ", .numbers = {%s}" % ", ".join(map(number, numbers)) if numbers else "")

    # ---- the whole ----
    def entry(self, entry):
        t, label = entry.result, self.variable(entry.result)
        self.statement("gpunn_tensor *%s = %s;" % (label, self.call(entry)))
        if t.kind in ("value", "constant") and t.name is not None:
            self.check("gpunn_set_name(%s, %s) != NULL" % (label, quoted(t.name)))
        if t.kind == "parameter":
            self.settings(t, label)
        if t.saved:
            self.check("gpunn_set_saved(%s, true) == GPUNN_OK" % label)
        for weight in entry.made:
            if weight is not t and weight.name is not None:
                self.weight(weight)

    def helper(self, t, what):
        """The name of a helper variable of a tensor."""
        if (t.id, what) not in self.variables:
            self.variables[t.id, what] = self.fresh("%s_%s" % (self.variable(t), what))
        return self.variables[t.id, what]

    def fresh(self, name):
        base, count = name, 2
        while name in self.taken:
            name, count = "%s_%d" % (base, count), count + 1
        self.taken[name] = True
        return name

    def check(self, condition):
        self.statement("ok = %s && ok;" % condition)

    @staticmethod
    def init(t):
        kind, a, b = t.init
        return "{GPUNN_INIT_%s, %s, %s}" % (kind.upper(), number(a), number(b))

    def weight(self, t):
        """A layer's parameter or buffer, for which its builder returns no pointer."""
        found = "gpunn_find(model, %s)" % quoted(t.name)
        if t.id in self.read:
            self.statement("gpunn_tensor *%s = %s;" % (self.variable(t), found))
            found = self.variable(t)
        if t.kind == "parameter":
            if t.init != t.default_init:
                self.statement("gpunn_init %s = %s;" % (self.helper(t, "init"), self.init(t)))
                self.check("gpunn_set_init(%s, %s) == GPUNN_OK" % (found, self.helper(t, "init")))
            self.settings(t, found)

    def settings(self, t, found):
        if t.storage and self.inference:
            self.check("gpunn_set_storage(%s, GPUNN_%s) == GPUNN_OK" % (found, t.storage.upper()))
        if t.frozen or not t.trainable:
            self.check("gpunn_set_trainable(%s, false) == GPUNN_OK" % found)
        if not t.decay:
            self.check("gpunn_set_decay(%s, false) == GPUNN_OK" % found)
        if t.lr_scale != 1:
            self.check("gpunn_set_lr_scale(%s, %s) == GPUNN_OK" % (found, number(t.lr_scale)))

    def struct(self):
        lines = ["typedef struct %s_tensors {" % self.name]
        for what, ids in self.fields:
            if ids:
                lines += wrapped("gpunn_tensor %s; /* %s */" %
                                 (", ".join("*" + self.variable(self.tensors[i]) for i in ids), what))
        return lines + ["} %s_tensors;" % self.name]

    def sizes(self):
        """Lines that create the named sizes, besides the batch."""
        lines = []
        for name, bounds in self.model.sizes.items():
            given = _Fields().add("min", bounds["min"], bounds["multiple"]).add("max", bounds["max"], 0)
            given.add("multiple", bounds["multiple"], 1)
            lines += wrapped("(void)gpunn_size(%s);" % ", ".join(["model", quoted(name)] + given.texts))
        return lines

    def create(self):
        fields = self.struct()
        for entry in self.entries:
            self.entry(entry)
        precision = ("" if self.model.precision == "f32" else
                     ", .precision = GPUNN_PRECISION_" + self.model.precision.upper())
        leaves = [self.variable(self.tensors[i]) for i in self.leaves]
        fits = " && ".join(["ok"] + leaves)
        lines = (fields + [
            "",
            "/* Creates the model with initial weights. *out receives the tensors that a program needs. "
            "Returns",
            " * NULL on failure; gpunn_error(dev) says why. */",
            "static inline gpunn_model *%s_create(gpunn_device *dev, %s_tensors *out)" % (
                self.name, self.name),
            "{",
            "    gpunn_model *model = gpunn_model_create(dev%s%s);" % (
                precision, ", .inference = true" if self.inference else ""),
            "    bool ok = model != NULL;",
            "    if (!ok) return NULL;"] + self.sizes() + self.lines + [
                "    if (!(%s)) {" % fits if len(fits) < WIDTH - 12 else "\n".join(
                    ["    ok = ok && %s;" % leaf for leaf in leaves] + ["    if (!ok) {"]),
                "        gpunn_model_destroy(model);",
                "        return NULL;",
                "    }"])
        lines += ["    out->%s = %s;" % ((self.variable(self.tensors[i]),) * 2) for _, ids in self.fields
                  for i in ids]
        return lines + ["    return model;", "}"]

    def optimizer(self):
        given = self.model.optimizer
        if given is None:
            return []
        values, fields = table.spread(given), _Fields()
        for key, _, default in table.optimizers()[given["type"]].settings:
            fields.add(key, values[key], default)
        lines = ["", "/* Creates the spec's optimizer. Returns NULL on failure. */",
                 "static inline gpunn_optimizer *%s_optimizer(gpunn_model *model)" % self.name, "{"]
        lines += wrapped("gpunn_optimizer *opt = gpunn_%s(%s);" %
                         (given["type"], ", ".join(["model"] + fields.texts)))
        if self.model.clip_grad_norm:
            lines.append("    if (opt) gpunn_set_clip_norm(opt, %s);" % number(self.model.clip_grad_norm))
        if self.model.clip_grad_value:
            lines.append("    if (opt) gpunn_set_clip_value(opt, %s);" % number(self.model.clip_grad_value))
        if self.model.ema_decay:
            lines.append("    if (opt) (void)gpunn_set_ema(opt, %s);" % number(self.model.ema_decay))
        return lines + ["    return opt;", "}"]


def body(model, name, inference=False):
    """The text behind the include of gpunn.h. inference: the model is only evaluated."""
    emitter = _Emitter(model, name, inference)
    lines = emitter.create() + ([] if inference else emitter.optimizer())
    maths = ["#include <math.h>"] if any("INFINITY" in line or "NAN" in line for line in lines) else []
    return maths + [""] + lines


def emit_model(model, kernel_set):
    """The text of NAME_model.h. kernel_set: has its name and opening comment."""
    name = kernel_set.name
    guard = name.upper() + "_MODEL_H"
    return "\n".join(stamp.lines(kernel_set, name + "_model.h") +
                     ["#ifndef " + guard, "#define " + guard, '#include "gpunn.h"'] +
                     body(model, name) + ["", "#endif", ""])
