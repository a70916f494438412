"""Writes NAME_model.h: C functions that build a spec's model with gpunn's public builders, for programs without JSON."""
import math
import re

from . import stamp, table
from .floats import digits, f32
from .graph import BATCH, Graph
from .sizes import varies
from .partition import CONVOLUTIONS

WIDTH = 120
_CHOICES = {"CLASS_REDUCTION": ("REDUCE", "reduction"), "GRID_MODE": ("GRID", "grid_mode"), "GRID_PADDING": ("GRID", "grid_padding")}
_KEYWORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int long register restrict "
    "return short signed sizeof static struct switch typedef union unsigned void volatile while bool true false model dev out ok "
    "alignas alignof and asm bitand bitor catch class compl concept constexpr decltype delete explicit export friend mutable "
    "namespace new noexcept not nullptr operator or private protected public requires template this throw try typeid typename "
    "using virtual wchar_t xor main NULL INFINITY NAN errno".split())


def quoted(text):
    """A C string of a text's UTF-8."""
    return '"%s"' % "".join(chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else "\\%03o" % byte
                            for byte in text.encode("utf-8"))


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
    """A C literal of an integer of 64 bits."""
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
    """A statement as lines of at most WIDTH characters, broken behind commas that stand in no string."""
    lines, line = [], " " * indent
    for part in re.findall(r'(?:"(?:\\.|[^"\\])*"|[^",])+,? ?', text):
        if len(line) + len(part.rstrip()) > WIDTH and line.strip():
            lines.append(line.rstrip())
            line = " " * (indent + 4)
        line += part
    return lines + [line.rstrip()]


class _Fields:
    """The fields of an argument struct that are not its defaults, in the order in which they are asked for."""

    def __init__(self):
        self.texts = []

    def add(self, name, value, default=None):
        if value == default:
            return self
        if isinstance(value, bool):
            value = boolean(value)
        elif isinstance(value, (tuple, list)):
            value = "{%s}" % ", ".join(map(str, value))
        elif value == 0 and default is not None:
            value = "GPUNN_ZERO"
        elif isinstance(value, float):
            value = number(value)
        self.texts.append(".%s = %s" % (name, value))
        return self

    def window(self, **values):
        """Settings of a window by name, with their defaults. Adds those that are equal along all axes, returns the others
        as arrays() takes them: they stand further behind in the struct."""
        for name, (value, default) in values.items():
            if len(set(value)) == 1:
                self.add(name, value[0], default)
        arrays = {"kernel_size": "kernel_shape", "stride": "strides", "padding": "paddings", "dilation": "dilations",
                  "output_padding": "output_paddings"}
        return [(arrays[name], value) for name, (value, _) in values.items() if len(set(value)) > 1]

    def arrays(self, differing):
        for name, value in differing:
            self.add(name, value)
        return self


class _Emitter:
    def __init__(self, model, name, inference):
        self.model, self.tensors, self.name = model, model.tensors, name
        self.inference = inference
        self.lines = []
        self.variables = {}
        self.taken = {name + "_tensors": True}
        self.owner = {}  # layer nodes by the ids of what their builders append before them
        for t in self.tensors:
            if t.layer and t.kind == "value":
                for i in t.inputs[1:]:
                    while i is not None and self.own(t, i):
                        self.owner[i] = t
                        i = self.tensors[i].inputs[0] if self.tensors[i].inputs else None
        self.read = {}   # ids that a statement names
        for t in self.tensors:
            for i in t.inputs:
                if i is not None and self.owner.get(i) is not t and t.id not in self.owner:
                    self.read[i] = True
        self.leaves = [t.id for t in self.tensors if t.id not in self.read and t.id not in self.owner]
        inputs = [t.id for t in self.tensors if t.kind == "input"]
        loss = [] if model.loss is None else [model.loss]
        self.fields = [("inputs", inputs), ("outputs", [i for i in dict.fromkeys(model.outputs) if i not in inputs + loss]),
                       ("the loss", loss)]
        if not any(ids for _, ids in self.fields):
            self.fields = [("all", self.leaves)]
        self.read.update((i, True) for _, ids in self.fields for i in ids if i in self.owner)

    def own(self, layer, i):
        """Whether tensor i is among what the layer's builder makes."""
        while self.tensors[i].inputs:  # prelu's weight is reshaped
            i = self.tensors[i].inputs[0]
        return self.tensors[i].layer == layer.layer

    def variable(self, i):
        if i not in self.variables:
            label = re.sub(r"[^A-Za-z0-9_]", "_", self.tensors[i].label or "") or "t%d" % i
            label = "t_" + label if label[0].isdigit() or label[0] == "_" or label in _KEYWORDS or "gpunn" in label else label
            self.variables[i] = self.fresh(label)
        return self.variables[i]

    def statement(self, text):
        self.lines += wrapped(text)

    def operand(self, i):
        return "NULL" if i is None else self.variable(i)

    # ---- one tensor ----
    def call(self, t):
        """The builder's call."""
        operands = [self.operand(i) for i in t.inputs] if not t.layer else [self.operand(t.inputs[0])]
        if t.kind == "input":
            return "gpunn_input(model, %s, GPUNN_%s, %s)" % (quoted(t.name), t.dtype.upper(), shape(t.shape))
        if t.kind == "parameter":
            return "gpunn_parameter(model, %s, %s, %s)" % (quoted(t.name), shape(t.shape), self.helper(t, "init"))
        if t.kind == "state":
            return "gpunn_state(model, %s, %s, %s)" % (quoted(t.name), shape(t.shape), self.helper(t, "init"))
        if t.kind == "constant":
            return "gpunn_constant(model, %s, %s)" % (shape(t.shape), self.helper(t, "values"))
        if t.layer:
            return self.layer(t, operands[0])
        if hasattr(self, "op_" + t.op):
            return getattr(self, "op_" + t.op)(t, operands)
        if table.ops()[t.op].term:
            formula = "%s(%s)" % (t.op, ", ".join(["x", "y"] + [repr(float(value)) for value in t.attrs.values()]))
            return "gpunn_expr(%s, %s, 2)" % (quoted(formula), self.helper(t, "parts"))
        if table.ops()[t.op].arity:
            return "gpunn_%s(%s)" % (t.op, ", ".join(operands + [number(value) for value in t.attrs.values()]))
        return self.row(t, operands)

    def row(self, t, operands):
        """By the op's row: all of its keys are attributes of the node, or operands."""
        op, given = table.ops()[t.op], _Fields()
        row = next(row for row in table.rows().values() if row.op == op.enum)
        for one in row.arguments:
            if one.kind == "REFERENCE":
                given.add(one.field, operands[one.operand], "NULL")
                continue
            value, default = t.attrs[one.name], one.default
            if one.kind in _CHOICES:
                prefix, words = _CHOICES[one.kind]
                value, default = ("GPUNN_%s_%s" % (prefix, word.upper()) for word in (value, table.words(words)[default]))
            given.add(one.field, value, f32(default) if isinstance(value, float) else default)
        return "gpunn_%s(%s)" % (row.name, ", ".join(operands[:row.operands] + given.texts))

    def layer(self, t, x):
        given, a = _Fields(), t.attrs
        weight = self.tensors[t.inputs[1]] if t.inputs[1] is not None else None
        builder = t.op
        if t.op == "parametric_relu":
            while weight.inputs:
                weight = self.tensors[weight.inputs[0]]
            init = number(weight.default_init[1]) if weight.default_init[1] else "(float)GPUNN_ZERO"
            return "gpunn_prelu(%s, %s, %d, %s)" % (x, quoted(t.layer), weight.shape[0], init)
        if t.op == "linear":
            given.add("out_features", t.shape[-1]).add("no_bias", t.inputs[2] is None, False)
            self.shared(given, t, weight)
        elif t.op == "embedding":
            given.add("num_embeddings", weight.shape[0]).add("embedding_dim", weight.shape[1])
            given.add("padding_idx", a["padding_idx"], -1)
            self.shared(given, t, weight)
        elif t.op == "hash_grid_encoding":
            given.add("n_levels", a["n_levels"], 16).add("n_features_per_level", weight.shape[1], 2)
            given.add("log2_hashmap_size", a["log2_hashmap_size"], 19).add("base_resolution", a["base_resolution"], 16)
            given.add("per_level_scale", a["per_level_scale"], 2.0)
        elif t.op in CONVOLUTIONS:
            given.add("out_channels", t.shape[1])
            padded = t.op.startswith("conv_transpose") and [
                size - (old - 1) * s + 2 * p - d * (k - 1) - 1 for size, old, s, p, d, k in zip(
                    t.shape[2:], self.tensors[t.inputs[0]].shape[2:], a["stride"], a["padding"], a["dilation"], weight.shape[2:])]
            differing = given.window(kernel_size=(weight.shape[2:], None), stride=(a["stride"], 1), padding=(a["padding"], 0),
                                     dilation=(a["dilation"], 1))
            given.add("groups", a["groups"], 1)
            differing += given.window(output_padding=(padded, 0)) if padded else []
            given.arrays(differing).add("no_bias", t.inputs[2] is None, False)
            self.shared(given, t, weight)
        elif t.op == "batch_norm":
            builder = {4: "batch_norm2d", 5: "batch_norm3d"}.get(len(t.shape), "batch_norm1d")
            given.add("eps", a["eps"], f32(1e-5)).add("momentum", a["momentum"], f32(0.1)).add("no_affine", weight is None, False)
            given.add("sync", t.sync, False)
        elif t.op == "instance_norm":
            builder = "instance_norm%dd" % (len(t.shape) - 2)
            given.add("eps", a["eps"], f32(1e-5)).add("affine", weight is not None, False).add("track_running_stats", True)
            given.add("momentum", a["momentum"], f32(0.1))
        elif t.op == "group_norm":
            given.add("num_groups", a["num_groups"]).add("eps", a["eps"], f32(1e-5)).add("no_affine", weight is None, False)
        else:
            given.add("dims", a["dims"], 1).add("eps", a["eps"], f32(1e-5) if t.op == "layer_norm" else 2.0 ** -23)
            given.add("no_affine", weight is None, False)
            if t.op == "layer_norm":
                given.add("no_bias", weight is not None and t.inputs[2] is None, False)
        return "gpunn_%s(%s)" % (builder, ", ".join([x, quoted(t.layer)] + given.texts))

    def shared(self, given, t, weight):
        """A weight and a bias that are not the layer's own."""
        if weight.layer != t.layer:
            given.add("weight", self.operand(weight.id))
        if t.inputs[2:] and t.inputs[2] is not None and self.tensors[t.inputs[2]].layer != t.layer:
            given.add("bias", self.operand(t.inputs[2]))

    def pool(self, t, x):
        a, given = t.attrs, _Fields()
        stride = a["stride"] if a["stride"] != a["kernel_size"] else (0,)
        differing = given.window(kernel_size=(a["kernel_size"], None), stride=(stride, 0), padding=(a["padding"], 0))
        given.arrays(differing).add("ceil_mode", a["ceil_mode"], False)
        given.add("count_exclude_pad", not a.get("count_include_pad", True), False)
        return "gpunn_%s(%s)" % (t.op, ", ".join(x + given.texts))

    op_max_pool2d = op_max_pool3d = op_avg_pool2d = op_avg_pool3d = pool

    def adaptive_pool(self, t, x):
        return "gpunn_%s(%s)" % (t.op, ", ".join(x + [str(size) for size in t.shape[2:]]))

    op_adaptive_max_pool2d = op_adaptive_max_pool3d = op_adaptive_avg_pool2d = op_adaptive_avg_pool3d = adaptive_pool

    def op_roi_align(self, t, x):
        a, given = t.attrs, _Fields()
        size = t.shape[2:]
        given.add("output_size", size[0], None if size[0] == size[1] else size[0])
        given.add("output_shape", size, size if size[0] == size[1] else None)
        given.add("spatial_scale", a["spatial_scale"], 1)
        given.add("sampling_ratio", a["sampling_ratio"], 0)
        given.add("aligned", a["aligned"], False)
        return "gpunn_roi_align(%s)" % ", ".join(x + given.texts)

    def op_interpolate(self, t, x):
        a, given, old = t.attrs, _Fields(), self.tensors[t.inputs[0]].shape[2:]
        usual = tuple(Graph.resize_ratio(before, after, a["align_corners"], None) for before, after in zip(old, t.shape[2:]))
        given.add("size", list(map(dim_of, t.shape[2:])))
        if usual != a["ratio"]:
            given.add("scale_factors", [repr(1 / ratio) if ratio else "0" for ratio in a["ratio"]])
        if a["mode"] != "nearest":
            given.add("mode", "GPUNN_INTERPOLATE_" + a["mode"].upper().replace("-", "_"))
        given.add("align_corners", a["align_corners"], False)
        return "gpunn_interpolate(%s)" % ", ".join(x + given.texts)

    def op_affine_grid(self, t, x):
        return "gpunn_affine_grid(%s, %s, %s)" % (x[0], shape(t.shape[1:-1]), boolean(t.attrs["align_corners"]))

    def op_dropout(self, t, x):
        return "gpunn_dropout(%s, %s)" % (x[0], number(t.attrs["p"]))

    def op_rand_like(self, t, x):
        return "gpunn_%s(%s)" % (t.op, x[0])

    op_randn_like = op_rand_like

    def op_reshape(self, t, x):
        return "gpunn_reshape(%s, %s)" % (x[0], shape(t.shape))

    def op_permute(self, t, x):
        order = t.attrs["dims"]
        return "gpunn_permute(%s, %s)" % (x[0], "GPUNN_AXES(%s)" % ", ".join(map(str, order)) if order else "GPUNN_ALL")

    def op_concat(self, t, x):
        return "gpunn_concat(%s, %d, %d)" % (self.helper(t, "parts"), len(x), t.attrs["dim"])

    def op_slice(self, t, x):
        a = t.attrs
        end = a["start"] + (t.shape[a["dim"]] - 1) * a["step"] + 1
        return "gpunn_slice(%s, %d, %s, %s, %d)" % (x[0], a["dim"], dim_of(a["start"]), dim_of(end), a["step"])

    def op_pad(self, t, x):
        before = t.attrs["before"]
        given = _Fields()
        after = [size - old - low for size, old, low in zip(t.shape, self.tensors[t.inputs[0]].shape, before)]
        for name, amounts in (("before", before), ("after", after)):
            if any(amounts):
                given.add(name, list(amounts))
        if t.attrs["mode"] != "constant":
            given.add("mode", "GPUNN_PAD_" + t.attrs["mode"].upper())
        given.add("value", t.attrs["value"], 0.0)
        return "gpunn_pad(%s)" % ", ".join(x + given.texts)

    def op_expand(self, t, x):
        return "gpunn_expand(%s, %s)" % (x[0], shape(t.shape))

    def op_gather(self, t, x):
        return "gpunn_gather(%s, %d, %s)" % (x[0], t.attrs["dim"], x[1])

    def op_scatter_add(self, t, x):
        return "gpunn_%s(%s, %d, %s, %s)" % (t.op, x[0], t.attrs["dim"], x[1], x[2])

    op_scatter = op_scatter_add

    def op_integer(self, t, x):
        operation = t.attrs["operation"]
        if len(x) == table.integers()[operation][0]:
            return "gpunn_%s(%s)" % (operation, ", ".join(x))
        return "gpunn_integer_scalar(GPUNN_INTEGER_%s, %s, %s)" % (operation.upper(), x[0], whole(t.attrs["value"]))

    def op_cast(self, t, x):
        return "gpunn_cast(%s, GPUNN_%s)" % (x[0], t.dtype.upper())

    def op_sum(self, t, x):
        dims, old = t.attrs["dims"], self.tensors[t.inputs[0]].shape
        axes = "GPUNN_ALL" if len(dims) == len(old) else "GPUNN_AXES(%s)" % ", ".join(map(str, dims))
        return "gpunn_%s(%s, %s, %s)" % ("mean" if t.attrs.get("mean") else t.op, x[0], axes, boolean(len(t.shape) == len(old)))

    op_max = op_sum

    def op_gradient_energy(self, t, x):
        dims = t.attrs["dims"]
        whole = len(dims) == len(self.tensors[t.inputs[0]].shape)
        return "gpunn_gradient_energy(%s, %s)" % (x[0], "GPUNN_ALL" if whole else "GPUNN_AXES(%s)" % ", ".join(map(str, dims)))

    def op_argmax(self, t, x):
        keepdim = len(t.shape) == len(self.tensors[t.inputs[0]].shape)
        return "gpunn_argmax(%s, %d, %s)" % (x[0], t.attrs["dim"], boolean(keepdim))

    def op_topk_indices(self, t, x):
        axis = t.attrs["dim"]
        return "gpunn_topk_indices(%s, %d, %d, %s)" % (x[0], t.shape[axis], axis, boolean(t.attrs["largest"]))

    def op_softmax(self, t, x):
        return "gpunn_%s(%s, %d)" % (t.op, x[0], t.attrs["dim"])

    op_log_softmax = op_cumsum = op_softmax

    def op_assign(self, t, x):
        given = _Fields().add("in_training", t.attrs["in_training"], False).texts
        if t.inputs[2] is None:
            return "gpunn_assign(%s)" % ", ".join(x[:2] + given)
        return "gpunn_assign_at(%s)" % ", ".join([x[0], str(t.attrs["axis"]), x[2], x[1]] + given)

    def op_scaled_dot_product_attention(self, t, x):
        a, given = t.attrs, _Fields()
        if t.inputs[3] is not None:
            given.add("mask", x[3])
        head = 2 if a["heads_last"] else 1
        q, k = (self.tensors[i].shape if i is not None else None for i in t.inputs[:2])
        given.add("is_causal", a["is_causal"], False).add("dropout_p", a["dropout_p"], 0.0)
        given.add("scale", a["scale"], f32(1 / math.sqrt(q[-1])))
        given.add("enable_gqa", k is not None and q[head] != k[head], False).add("heads_last", a["heads_last"], False)
        if len(t.inputs) > 4:
            given.add("lengths", x[4])
        return "gpunn_scaled_dot_product_attention(%s)" % ", ".join(x[:3] + given.texts)

    def recurrent(self, t, x):
        given, a = _Fields(), t.attrs
        given.add("hidden_size", self.tensors[t.inputs[5]].shape[1]).add("relu", a.get("relu", False), False)
        given.add("no_bias", t.inputs[6] is None, False).add("bidirectional", a["bidirectional"], False)
        given.add("states", a["states"], False)
        for name, operand in (("h_0", x[2]), ("c_0", x[3]), ("lengths", x[1])):
            given.add(name, operand, "NULL")
        given.add("weights", self.helper(t, "weights"))
        return "gpunn_%s(%s, NULL, %s)" % (t.op, x[0], ", ".join(given.texts))

    op_rnn = op_lstm = op_gru = recurrent

    def op_custom(self, t, x):
        numbers = list(t.attrs["numbers"])
        while numbers and numbers[-1] == 0:
            numbers.pop()
        return "gpunn_custom(gpunn_find_custom(dev, %s), %s%s)" % (
            quoted(t.attrs["kind"]), self.helper(t, "parts"),
            ", .numbers = {%s}" % ", ".join(map(number, numbers)) if numbers else "")

    # ---- the whole ----
    def tensor(self, t):
        if t.id in self.owner:
            return
        if t.kind == "constant":
            self.statement("static const float %s[] = {%s};" % (self.helper(t, "values"), ", ".join(map(number, t.values))))
        elif t.kind in ("parameter", "state"):
            self.statement("gpunn_init %s = %s;" % (self.helper(t, "init"), self.init(t)))
        elif t.op in table.having("RECURRENT"):
            weights = [self.operand(i) for i in t.inputs[4:] if i is not None]
            self.statement("gpunn_tensor *%s[] = {%s};" % (self.helper(t, "weights"), ", ".join(weights)))
        elif t.op in ("concat", "custom") or t.kind == "value" and table.ops()[t.op].term:
            self.statement("gpunn_tensor *%s[] = {%s};" % (self.helper(t, "parts"), ", ".join(map(self.operand, t.inputs))))
        self.statement("gpunn_tensor *%s = %s;" % (self.variable(t.id), self.call(t)))
        if t.kind in ("value", "constant") and t.name is not None:
            self.check("gpunn_set_name(%s, %s) != NULL" % (self.variable(t.id), quoted(t.name)))
        if t.kind == "parameter":
            self.settings(t, self.variable(t.id))
        if t.saved:
            self.check("gpunn_set_saved(%s, true) == GPUNN_OK" % self.variable(t.id))
        first = t.id
        while self.owner.get(first - 1) is t:
            first -= 1
        for weight in self.tensors[first:t.id]:
            if weight.name is not None:
                self.weight(weight)

    def helper(self, t, what):
        """The name of a variable beside that of a tensor."""
        if (t.id, what) not in self.variables:
            self.variables[t.id, what] = self.fresh("%s_%s" % (self.variable(t.id), what))
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
            self.statement("gpunn_tensor *%s = %s;" % (self.variable(t.id), found))
            found = self.variable(t.id)
        if t.kind == "parameter":
            if t.init != t.default_init:
                self.statement("gpunn_init %s = %s;" % (self.helper(t, "init"), self.init(t)))
                self.check("gpunn_set_init(%s, %s) == GPUNN_OK" % (found, self.helper(t, "init")))
            self.settings(t, found)

    def settings(self, t, found):
        if not t.trainable:
            self.check("gpunn_set_trainable(%s, false) == GPUNN_OK" % found)
        if not t.decay:
            self.check("gpunn_set_decay(%s, false) == GPUNN_OK" % found)
        if t.lr_scale != 1:
            self.check("gpunn_set_lr_scale(%s, %s) == GPUNN_OK" % (found, number(t.lr_scale)))

    def struct(self):
        lines = ["typedef struct %s_tensors {" % self.name]
        for what, ids in self.fields:
            if ids:
                lines += wrapped("gpunn_tensor %s; /* %s */" % (", ".join("*" + self.variable(i) for i in ids), what))
        return lines + ["} %s_tensors;" % self.name]

    def sizes(self):
        """Lines that name what varies besides the batch."""
        lines = []
        for name, bounds in self.model.sizes.items():
            given = _Fields().add("min", bounds["min"], bounds["multiple"]).add("max", bounds["max"], 0)
            given.add("multiple", bounds["multiple"], 1)
            lines += wrapped("(void)gpunn_size(%s);" % ", ".join(["model", quoted(name)] + given.texts))
        return lines

    def create(self):
        fields = self.struct()
        for t in self.tensors:
            self.tensor(t)
        precision = "" if self.model.precision == "f32" else ", .precision = GPUNN_PRECISION_" + self.model.precision.upper()
        leaves = " && ".join(["ok"] + [self.variable(i) for i in self.leaves])
        lines = fields + [
            "",
            "/* The model, new and with its initial weights; out receives the tensors that a program needs. NULL after an error,",
            " * of which gpunn_error(dev) tells. */",
            "static inline gpunn_model *%s_create(gpunn_device *dev, %s_tensors *out)" % (self.name, self.name),
            "{",
            "    gpunn_model *model = gpunn_model_create(dev%s%s);" % (precision, ", .inference = true" if self.inference else ""),
            "    bool ok = model != NULL;",
            "    if (!ok) return NULL;"] + self.sizes() + self.lines + [
            "    if (!(%s)) {" % leaves if len(leaves) < WIDTH - 12 else "\n".join(
                ["    ok = ok && %s;" % self.variable(i) for i in self.leaves] + ["    if (!ok) {"]),
            "        gpunn_model_destroy(model);",
            "        return NULL;",
            "    }"]
        lines += ["    out->%s = %s;" % (self.variable(i), self.variable(i)) for _, ids in self.fields for i in ids]
        return lines + ["    return model;", "}"]

    def optimizer(self):
        given = self.model.optimizer
        if given is None:
            return []
        values, fields = dict(given, **dict(zip(("beta1", "beta2"), given.get("betas", ())))), _Fields()
        for key, _, default in table.optimizers()[given["type"]].settings:
            fields.add(key, values[key], default)
        lines = ["", "/* The spec's optimizer; NULL after an error. */",
                 "static inline gpunn_optimizer *%s_optimizer(gpunn_model *model)" % self.name, "{"]
        lines += wrapped("gpunn_optimizer *opt = gpunn_%s(%s);" % (given["type"], ", ".join(["model"] + fields.texts)))
        if self.model.clip_grad_norm:
            lines.append("    if (opt) gpunn_set_clip_norm(opt, %s);" % number(self.model.clip_grad_norm))
        if self.model.clip_grad_value:
            lines.append("    if (opt) gpunn_set_clip_value(opt, %s);" % number(self.model.clip_grad_value))
        if self.model.ema_decay:
            lines.append("    if (opt) (void)gpunn_set_ema(opt, %s);" % number(self.model.ema_decay))
        return lines + ["    return opt;", "}"]


def body(model, name, inference=False):
    """What stands behind the include of gpunn.h. inference: the model is only evaluated."""
    emitter = _Emitter(model, name, inference)
    lines = emitter.create() + ([] if inference else emitter.optimizer())
    maths = ["#include <math.h>"] if any("INFINITY" in line or "NAN" in line for line in lines) else []
    return maths + [""] + lines


def emit_model(model, kernel_set):
    """The text of NAME_model.h. kernel_set: gives the name and the opening comment."""
    name = kernel_set.name
    guard = name.upper() + "_MODEL_H"
    return "\n".join(stamp.lines(kernel_set, name + "_model.h") + ["#ifndef " + guard, "#define " + guard, '#include "gpunn.h"'] +
                     body(model, name) + ["", "#endif", ""])
