"""Writes expected/vectors.txt: specs with the SHA-256 of their models' canonical text, which C and Python
must both find.

python3 tests/generator/make_vectors.py   (in the root of the repository)

First come the files in expected/vectors/, then one random model for each op of the schema, one a line. A
model depends on its op's name and attributes and on COMPANIONS alone, so that a new op is a new line and
changes no other."""
import json
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))

from generator import graph, json_text, spec, table  # noqa: E402

TRIES = 3000  # entries for one model: some inputs suit no arguments of an op
NUMBERS = (0.1, 0.5, 1, 2.5, 1e-5, 0.003, 0.3333333333, 7, 1e10, 123456.789, 0.25, 1.0000001)
EXPRESSIONS = (
    ("x * sigmoid(1.702 * x)", 1), ("where(x > 0, x, leaky_relu(x, 0.2))", 1), ("(x - 1) / 3 + 2 - x / 4", 1),
    ("1 / x + 3 / x", 1),
    ("max(x, 0) + min(y, 1) * 0.5", 2), ("pow(x, 2) + pow(x, 0.5) + pow(2, y)", 2), ("-x * -2 + -(y - 3)", 2),
    ("exp(1) * x + log(10) * y + pi * z", 3), ("(x < y) + (x <= 0.5) * (0.5 > y) + (x == y)", 2),
    ("K(0.5) * x * (1 + erf(K(0.70710678) * x))", 1), ("clamp(x, -1) + clamp(y, -1, 2) + hardtanh(x)", 2),
    ("3 * 4 * x + maximum(2, 3) * 0.1 + where(x > 0.1, 0.1, y)", 2),
    ("1e-3 * x + 1.5e2 * y + .25 * x0 + x1 / 7.", 2), ("x", 1),
    ("abs(x) + 3.4028235e38 * 0 + sqrt(2) * tanh(0.5) * x", 1), ("2.5", 1),
    ("(x - mean(x, -1, keepdim=True)) / norm(x, 2)", 1),
    ("sum(x, 1:) if 0 else amax(x ** 2, 0, keepdim=True)", 1),
    ("softmax(x, -1) * log_softmax(y, -1) - cumsum(x, 0)", 2), ("mean(float(argmax(x, 0)) == y)", 2),
    ("window_mean(x * y, 3) + True", 2))
INTEGERS = {  # ops that read integers: as which operand, of which dtypes
    "cross_entropy": (1, graph.CLASS_DTYPES), "nll_loss": (1, graph.CLASS_DTYPES),
    "accuracy": (1, graph.CLASS_DTYPES), "one_hot": (0, graph.CLASS_DTYPES),
    "embedding": (0, graph.INDEX_DTYPES), "gather": (1, graph.INDEX_DTYPES),
    "scatter_add": (1, graph.INDEX_DTYPES), "scatter": (1, graph.INDEX_DTYPES),
    "rotary_embedding": (1, graph.INDEX_DTYPES), "multi_margin_loss": (1, graph.CLASS_DTYPES),
    "ctc_loss": (1, graph.INDEX_DTYPES)}
COMPANIONS = (  # the other ops of a model; a new one changes all models
    "input", "parameter", "state", "constant", "linear", "embedding", "conv1d", "conv2d", "conv_transpose2d",
    "batch_norm2d", "group_norm", "layer_norm", "prelu", "matmul", "multi_head_attention", "max_pool2d",
    "adaptive_avg_pool1d", "interpolate", "dropout", "rand_like", "reshape", "flatten", "permute", "concat",
    "slice", "pad", "gather", "scatter_add", "expand", "tile", "stack", "one_hot", "frequency_encoding",
    "cast", "sum", "mean", "max", "argmax", "cumsum", "topk_indices", "einsum", "assign", "softmax", "expr",
    "cross_entropy", "nll_loss", "custom", "mse_loss", "huber_loss", "bce_with_logits", "cosine_similarity",
    "accuracy", "softshrink", "atan2", "relu", "gelu", "detach", "exp", "add", "pow", "maximum", "lt",
    "where", "leaky_relu", "add_scalar", "clamp", "softplus")
BOTH = set(table.integers()) | {  # ops of floats or of integers
    "permute", "concat", "slice", "pad", "expand", "gather", "scatter", "tile", "stack", "reshape", "sum",
    "max", "argmax", "argmin", "cumsum"}
GATES = {"rnn": 1, "lstm": 4, "gru": 3}


def dims(x):
    return [graph.dim_text(size) if size < 0 else size for size in x.shape]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.entries = []
        self.weights = []  # of the recurrent layers

    def pick(self, items):
        items = list(items)
        return items[self.random.randrange(len(items))]

    def count(self, most):
        return 1 + self.random.randrange(most)

    def value(self, part, x):
        """A value that the schema of an attribute allows, and that probably fits operand x."""
        name, rank = part.get("$ref", "").split("/")[-1], len(x.shape)
        if name[:-2] in ("window", "padding"):
            low = name[:-2] == "window"
            return self.pick((self.random.randrange(low, 4),
                              [self.random.randrange(low, 4) for _ in range(int(name[-2]))]))
        if name == "factors":
            return self.pick((0.5, 1.3, 2, 2.5, [1.0, 1.5], [2.75] * max(rank - 2, 1)))
        simple = {
            "count": lambda: self.count(rank if rank and self.random.randrange(3) else 8),
            "flag": lambda: self.random.randrange(2) == 1,
            "flag_or_reference": lambda: self.random.randrange(2) == 1,
            "integer": lambda: self.random.randrange(-rank, rank) if rank else 0,
            "index": lambda: self.random.randrange(-5, 6),
            "wide": lambda: self.pick((0, -1, 7, 2 ** 53 + 1, -2 ** 63, 2 ** 63 - 1)),
            "integer_op": lambda: self.pick(table.integers()),
            "number": lambda: self.pick(NUMBERS), "scale": lambda: self.pick(NUMBERS),
            "extended": lambda: self.pick(NUMBERS + ("inf", "-inf", -0.75, -0.0)),
            "axes": lambda: self.random.sample(range(-rank, 0), self.random.randrange(rank + 1)),
            "amounts": lambda: [0 if size < 0 else self.random.randrange(3) for size in x.shape],
            "dtype": lambda: self.pick(("f32", "i64", "i32", "u8", "bool")),
            "init": lambda: {"kind": "uniform", "a": -0.5, "b": 0.5}, "parameters": lambda: {},
            "pad_mode": lambda: self.pick(("constant", "reflect", "replicate", "circular")),
            "interpolate_mode": lambda:
            self.pick(("nearest", "nearest-exact", "linear", "linear", "area", "cubic")),
            "reduction": lambda: self.pick(("mean", "sum", "none", "batchmean")),
            "odd_window": lambda: self.pick((0, 1, 3, 5, 9)),
            "grid_mode": lambda: self.pick(("bilinear", "nearest")),
            "grid_padding": lambda: self.pick(("zeros", "border", "reflection")),
            "class_reduction": lambda: self.pick(("mean", "sum", "none"))}
        return simple[name]() if name in simple else self.count(3)

    def shape_like(self, x):
        factor, power = graph.measure(x.shape)
        divisor = self.pick(d for d in range(1, factor + 1) if factor % d == 0)
        batches = ["N"] * (power - 1)
        first = ["%sN" % (divisor if divisor > 1 else "")] if power else [divisor]
        return batches + first + [factor // divisor]

    def entry(self, op, tensors):
        part = spec.ops()[op]
        whole = op == "integer" or (op in BOTH and self.random.randrange(4) == 0)
        floats = [t for t in tensors if (t.dtype == "f32") != whole and t.label]
        if not floats:
            return None
        x = self.pick(floats)
        entry = {"op": op}
        label = "t%d" % len(self.entries)
        if "name" in part["required"] or self.random.randrange(3) == 0:
            entry["name"] = label
        else:
            entry["id"] = label
        if op in ("input", "parameter", "state", "constant"):
            shape = [self.count(4) for _ in range(self.random.randrange(4))]
            entry["shape"] = shape if op != "input" else ["N"] + shape
            if op == "constant":
                entry["values"] = [self.pick(NUMBERS) for _ in range(graph.measure(shape)[0])]
            return entry
        if op == "assign":
            return self.assignment(entry, [t for t in floats if t.op in ("state", "assign")], floats)
        number = {"one": 1, "two": 2, "three": 3, "four": 4, "many": self.count(3), "arguments": 1,
                  "three_or_one": 1 if len(x.shape) == 5 else 3}[
            part["properties"]["inputs"]["$ref"].split("/")[-1]]
        if op == "expr":
            entry["expression"], number = self.pick(EXPRESSIONS)
        alike = [t for t in floats if t.shape == x.shape]
        if op in GATES:
            return self.recurrent(entry) if self.weights else None
        entry["inputs"] = [x.label] + [self.pick(self.pick((alike, floats))).label for _ in range(number - 1)]
        if op in INTEGERS:
            place, dtypes = INTEGERS[op]
            integers = [t for t in tensors if t.dtype in dtypes and t.label]
            if not integers:
                return None
            entry["inputs"][place] = self.pick(integers).label
        if op == "ctc_loss":
            if not any(t.label == "targets" for t in tensors):
                return None
            entry["inputs"][1:] = ["targets", "b", "b"]
        if op == "roi_align":
            if not any(t.label == "boxes" for t in tensors):
                return None
            entry["inputs"][1] = "boxes"
        if op == "sample":
            entry["inputs"][1] = "b"
        if op == "cosine_embedding_loss":
            if not any(t.label == "signs" for t in tensors):
                return None
            entry["inputs"] = ["a", "a", "signs"]
        if op == "custom":  # the tests' programs have one, with two operands and a result like the first
            entry.update(inputs=[x.label, self.pick(floats).label], kind="own", shape=dims(x))
        if op == "einsum":
            entry["equation"] = self.equation(entry, x)
        if op == "expand":
            entry["shape"] = [self.count(3)] + [graph.dim_text(d) if d < 0 else d if d > 1 else self.count(3)
                                                for d in x.shape]
        for key, inner in part["properties"].items():
            if (key in ("op", "id", "name", "as", "inputs", "expression", "consts", "equation", "kind") or
                    key == "shape" and op in ("expand", "custom")):
                continue
            if key in part["required"] or self.random.randrange(2):
                reference = inner.get("$ref") == "#/$defs/reference"
                entry[key] = (
                    self.pick(floats).label if reference else self.shape_like(x) if key == "shape" else
                    [self.count(4) for _ in range(2 + self.random.randrange(2))] if key == "size" and
                    "norm" not in op else
                    [self.count(3) for _ in range(1 + len(x.shape))] if key == "repeats" else
                    [self.pick(NUMBERS) for _ in range(self.random.randrange(9))] if key == "numbers" else
                    [self.random.randrange(-r, r) for r in [len(x.shape)]
                     for _ in range(r)] if op == "permute" else
                    self.pick((1, 2, 3, "inf")) if key == "p" and "margin" in op else self.value(inner, x))
        return entry

    def assignment(self, entry, states, floats):
        if not states:
            return None
        state = self.pick(states)
        entry.update(inputs=[state.label, self.pick([t for t in floats if t.shape == state.shape]).label])
        return dict(entry, in_training=self.random.randrange(2) == 1)

    def equation(self, entry, x):
        """An equation of x, or of x twice with letters in common."""
        rank = len(x.shape)
        own = [self.random.sample("abcdefghijklm"[:rank], rank)]
        if self.random.randrange(3):
            own.append([self.pick((label, "NOPQRSTU"[i])) for i, label in enumerate(own[0])])
        entry["inputs"] = [x.label] * len(own)
        every = sorted({label for labels in own for label in labels})
        result = self.random.sample(every, self.random.randrange(len(every) + 1))
        if self.random.randrange(3) == 0:  # the first axes have no letters
            dots = self.random.randrange(rank + 1)
            gone = [label for labels in own for label in labels[:dots]]
            own = [["..."] + labels[dots:] for labels in own]
            result = [label for label in result if label not in gone]
            result.insert(self.random.randrange(len(result) + 1), self.pick(("...", "")))
        return ",".join(map("".join, own)) + self.pick(("->" + "".join(result),) * 2 + ("",))

    def recurrent(self, entry):
        entry.update(inputs=["a"], weights=self.weights, bidirectional=self.both)
        if self.random.randrange(2):
            entry["states"] = self.random.randrange(2) == 1
        if self.random.randrange(2):
            entry["layer"] = "r"
        if entry["op"] == "rnn" and self.random.randrange(2):
            entry["relu"] = True
        for key, label in (("lengths", "b"), ("h_0", "h"), ("c_0", "h")):
            if (self.random.randrange(2) and (key != "c_0" or entry["op"] == "lstm") and
                (key != "lengths" or self.counted)):
                entry[key] = label
        if not self.both:
            entry["reset"] = "m"
        return entry

    def recurrent_inputs(self, op):
        """The parameters of a layer over a, and h for its states."""
        hidden, self.both, bias = self.count(4), self.random.randrange(2) == 1, self.random.randrange(2) == 1
        rows = GATES[op] * hidden
        shapes = ([[rows, 5], [rows, hidden]] + [[rows], [rows]] * bias) * (2 if self.both else 1)
        self.weights = ["w%d" % i for i in range(len(shapes))]
        self.counted = self.entries[1]["dtype"] != "u8"
        self.entries += [{"op": "parameter", "name": name, "shape": shape}
                         for name, shape in zip(self.weights, shapes)]
        self.entries.append({"op": "input", "name": "h", "shape": [2 if self.both else 1, "N", hidden]})
        self.entries.append({"op": "input", "name": "m", "shape": self.entries[0]["shape"][:2]})

    def model(self, op):
        """A model with that op and others."""
        shape = self.pick((["N", 6], ["N", 4, 9, 8], [3, "N", 5], ["N", 3, 4]))
        dtypes = INTEGERS.get(op, (0, graph.CLASS_DTYPES))[1]
        if op == "affine_grid":
            shape = self.pick((["N", 2, 3], ["N", 3, 4]))
        elif op in ("grid_sample", "group_norm", "interpolate", "ncc_loss", "roi_align", "rotary_embedding"):
            shape = ["N", 4, 9, 8]
        elif op[-2:] in ("1d", "2d", "3d"):
            shape = ["N", 4] + [5, 9, 8][-int(op[-2]):]
        elif op == "scaled_dot_product_attention":
            shape = self.pick((["N", 4, 9, 8], ["N", 5, 3, 2, 4]))
        elif "attention" in op or "transformer" in op:
            shape = self.pick((["N", 5, 12], [5, "N", 12]))
        elif op in ("cross_entropy", "nll_loss", "accuracy", "multi_margin_loss", "cosine_embedding_loss"):
            shape = ["N", 6]
        elif op == "sample":
            shape, dtypes = ["N", 6], ("f32",)
        elif op in GATES:
            shape = [3, "N", 5]
        elif op == "ctc_loss":
            shape = [7, "N", 5]
        elif op == "spherical_harmonics_encoding":
            shape = self.pick((["N", 3], ["N", 4, 3]))
        elif op == "hash_grid_encoding":
            shape = self.pick((["N", 2], ["N", 4, 3]))
        dtype = self.pick(dtypes)
        self.entries = [{"op": "input", "name": "a", "shape": shape},
                        {"op": "input", "name": "b", "dtype": dtype,
                         "shape": shape if op in ("gather", "scatter", "scatter_add") else
                         self.pick(([9], [4], ["N", 9])) if op == "rotary_embedding" else ["N"]}]
        if op == "grid_sample":
            self.entries.append({"op": "input", "name": "c", "shape": ["N", 3, 5, 2]})
        if op == "roi_align":
            self.entries.append({"op": "input", "name": "boxes", "shape": [self.pick((3, "N")), 5]})
        if op in GATES:
            self.recurrent_inputs(op)
        if op == "ctc_loss":
            self.entries.append({"op": "input", "name": "targets", "dtype": self.pick(("i64", "i32")),
                                 "shape": ["N", 4]})
        if op == "cosine_embedding_loss":
            self.entries.append({"op": "input", "name": "signs", "shape": ["N"]})
        if op == "assign":
            self.entries.append({"op": "state", "name": "s", "shape": [self.count(4)]})
        root = {"gpunn_spec": 1, "precision": self.pick(("f32", "tf32", "bf16", "f16")),
                "tensors": self.entries}
        model, wanted = spec.parse(json.dumps(root)), len(self.entries) + 1 + self.random.randrange(10)
        for _ in range(TRIES):
            if len(self.entries) == wanted:
                return json.dumps(root, separators=(",", ":")), model
            entry = self.entry(op or self.pick(COMPANIONS), model.tensors)
            if entry is None:
                continue
            self.entries.append(entry)
            try:
                model = spec.parse(json.dumps(root))
                op = None
            except json_text.SpecError:
                self.entries.pop()
        return None


def main():
    lines = []
    for name in sorted(os.listdir(os.path.join(HERE, "expected", "vectors"))):
        model = spec.load(os.path.join(HERE, "expected", "vectors", name))
        lines.append("%s vectors/%s" % (model.sha256(), name))
    for op in spec.ops():
        if op in table.having("INTEGER"):  # vectors/quantized.json has them
            continue
        made = (Maker("%s, again %d" % (op, again)).model(op) for again in range(100))
        text, model = next(model for model in made if model)
        lines.append("%s %s" % (model.sha256(), text))
    with open(os.path.join(HERE, "expected", "vectors.txt"), "w", encoding="ascii", newline="\n") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
