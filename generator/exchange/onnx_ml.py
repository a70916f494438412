"""Builds the ops of ONNX's domain ai.onnx.ml, in which skl2onnx writes scikit-learn's models."""
from . import fold
from .arrays import Array, check_count, is_float
from .onnx_layers import linear
from .onnx_ops import OPERATIONS, operation
from .spec_writer import Constant, Refused, product, text

DOMAIN = "ai.onnx.ml"
MAX_DEPTH, MAX_NODES = 256, 1 << 16
MAX_TREES = 1 << 22  # entries of the matrices from comparisons to leaves


def machine_learning(*names, **given):
    return operation(*["%s.%s" % (DOMAIN, name) for name in names], **given)


def rows(w, x):
    """x [n, features] as floats."""
    if len(x.full) != 2:
        raise Refused("x has %d axes; 2 are possible" % len(x.full))
    return w.f32(w.whole(x))


def scores(w, call, x, name, count):
    """x times the coefficients [count, features] plus the intercepts."""
    x = rows(w, x)
    values, added = [[float(y) for y in call.get(key, None) or []] for key in ("coefficients", "intercepts")]
    weight = Array("float32", (count, x.full[1]), values)
    bias = Constant(Array("float32", (count,), added)) if added else None
    if weight.count() != len(values) or bias and len(added) != count:
        raise Refused("%d coefficients and %d intercepts are no %s of %d features" %
                      (len(values), len(added), name, x.full[1]))
    return linear(w, call, x, Constant(weight), bias)


def transformed(w, call, y):
    """y after post_transform."""
    kind = call.get("post_transform", "NONE")
    if kind not in ("NONE", "LOGISTIC", "SOFTMAX"):
        raise Refused("post_transform %s is not possible" % kind)
    return (y if kind == "NONE" else w.map("sigmoid", y) if kind == "LOGISTIC" else
            w.add("softmax", [y], (), dim=1))


@machine_learning("LinearRegressor", kind="float32")
def linear_regressor(w, call, x):
    return transformed(w, call, scores(w, call, x, "regressor", call.get("targets", 1)))


@machine_learning("LinearClassifier", kind="own")
def linear_classifier(w, call, x):
    labels, names = call.get("classlabels_ints", None), call.get("classlabels_strings", None)
    count = len(labels or names or [])
    one = count == 2 and len(call.get("intercepts", None) or [0, 0]) == 1
    if count < 2:
        raise Refused("%d class labels are given; 2 or more are possible" % count)
    y = scores(w, call, x, "classifier", 1 if one else count)
    y = w.add("concat", [w.map("neg", y), y], (), dim=1) if one else y
    y = transformed(w, call, y)
    place = w.add("argmax", [y], (), dim=1)
    return [labelled(w, call, place, labels or names), w.as_kind(y, "float32")]


def labelled(w, call, place, labels):
    """The classes' labels by index. Texts stay indices."""
    if isinstance(labels[0], (str, bytes)):
        w.note_labels(call, [y.decode("utf-8", "replace") if isinstance(y, bytes) else y for y in labels])
    elif list(labels) != list(range(len(labels))):
        place = w.pick(w.numbers(labels, (len(labels),)), 0, place)
    return w.as_kind(w.integers(place, ("i64",)), "int64")


class Tree:
    """inner: its nodes that compare, as (feature, threshold). leaves: by node, {index of an inner node: +1 or
    -1 for the branch}."""

    def __init__(self, nodes):
        """nodes: by id, (feature, threshold, id if true, id if false), or None for a leaf."""
        self.inner, self.leaves = [], {}
        below = {child for node in nodes.values() if node for child in node[2:]}
        pending = [(key, {}) for key in nodes if key not in below]
        sound = len(pending) == 1
        while pending and sound:
            key, path = pending.pop()
            if nodes[key] is None:
                self.leaves[key] = path
                continue
            place, (feature, threshold, yes, no) = len(self.inner), nodes[key]
            self.inner.append((feature, threshold))
            pending += [(yes, {**path, place: 1}), (no, {**path, place: -1})]
            sound = len(self.inner) <= len(nodes) and len(path) <= MAX_DEPTH
        if not sound or len(self.inner) + len(self.leaves) != len(nodes):
            raise Refused("its nodes are no tree of up to %d levels" % MAX_DEPTH)


COMPARISONS = {"BRANCH_LEQ": "x <= y", "BRANCH_LT": "x < y", "BRANCH_GTE": "x >= y", "BRANCH_GT": "x > y"}


def trees_of(call):
    """The Trees by number, and the comparison of their nodes."""
    nodes, modes = {}, set()
    columns = [call.get("nodes_%s" % key, [])
               for key in ("treeids", "nodeids", "featureids", "values", "truenodeids", "falsenodeids")]
    if len(columns[0]) > MAX_NODES:
        raise Refused("trees of %d nodes are too large" % len(columns[0]))
    for tree, key, feature, threshold, yes, no, mode in zip(*columns, call.get("nodes_modes", [])):
        mode = mode.decode() if isinstance(mode, bytes) else mode
        nodes.setdefault(tree, {})[key] = None if mode == "LEAF" else (feature, threshold, yes, no)
        modes.update({mode} - {"LEAF"})
    if (len(modes) > 1 or not modes <= set(COMPARISONS) or
        any(call.get("nodes_missing_value_tracks_true", None) or [0])):
        raise Refused("only trees whose nodes all compare alike, by one of %s, are possible" %
                      ", ".join(COMPARISONS))
    return {key: Tree(own) for key, own in nodes.items()}, COMPARISONS[(modes or {"BRANCH_LEQ"}).pop()]


def voted(w, call, x, kind, count):
    """The sum of the trees' leaves for each target, [n, count]. Comparisons are 1 or 0, times +1 or -1 for
    the branch. A leaf is reached if the comparisons on its path sum to the number that must hold."""
    trees, comparison = trees_of(call)
    x, numbers_of = rows(w, x), {key: i for i, key in enumerate(trees)}
    inner = max([1] + [len(tree.inner) for tree in trees.values()])
    leaves = max(len(tree.leaves) for tree in trees.values())
    if len(trees) * inner * leaves > MAX_TREES:
        raise Refused("%d trees of up to %d leaves are too large" % (len(trees), leaves))
    features, limits, paths, needed, places = [], [], [], [], {}
    for key, tree in trees.items():
        own = tree.inner + [(0, 0.0)] * (inner - len(tree.inner))
        features += [feature for feature, _ in own]
        limits += [threshold for _, threshold in own]
        ways = list(tree.leaves.values()) + [None] * (leaves - len(tree.leaves))
        paths += [(way or {}).get(i, 0) for i in range(inner) for way in ways]
        needed += [1 if way is None else sum(sign > 0 for sign in way.values()) for way in ways]
        places.update({(key, leaf): i for i, leaf in enumerate(tree.leaves)})
    weights = [0.0] * (len(trees) * leaves * count)
    columns = [call.get("%s_%s" % (kind, key), []) for key in ("treeids", "nodeids", "ids", "weights")]
    for tree, leaf, target, weight in zip(*columns):
        weights[(numbers_of[tree] * leaves + places[tree, leaf]) * count + target] += weight
    index = w.tensor(Constant(Array("int64", (1, len(features)), features)))
    y = w.pick(x, 1, w.view(index, (x.full[0], len(features))))
    y = w.expr("1 if %s else 0" % comparison, y, w.numbers(limits, (len(limits),)))
    y = w.permute(w.reshape(y, (x.full[0], len(trees), inner)), (1, 0, 2))
    y = w.matmul(y, w.numbers(paths, (len(trees), inner, leaves)))
    y = w.map("eq", y, w.numbers(needed, (len(trees), 1, leaves)))
    y = w.reduce("sum", w.matmul(y, w.numbers(weights, (len(trees), leaves, count))), [0])
    how = call.get("aggregate_function", "SUM")
    if how not in ("SUM", "AVERAGE"):
        raise Refused("aggregate_function %s is not possible" % how)
    y, base = w.scale(y, 1 / len(trees) if how == "AVERAGE" else 1), call.get("base_values", None)
    return w.map("add", y, w.numbers(base, (len(base),))) if base else y


@machine_learning("TreeEnsembleRegressor", kind="float32")
def tree_regressor(w, call, x):
    return transformed(w, call, voted(w, call, x, "target", call.get("n_targets", 1)))


@machine_learning("TreeEnsembleClassifier", kind="own")
def tree_classifier(w, call, x):
    labels = call.get("classlabels_int64s", None) or call.get("classlabels_strings", None) or []
    one = len(labels) == 2 and len(set(call.get("class_ids", []))) == 1
    if one:  # with two classes, the trees give only one
        call = call.with_attributes(class_ids=[0] * len(call.get("class_ids", [])))
    y = voted(w, call, x, "class", 1 if one else len(labels))
    if one:
        other = w.map("neg", y) if call.get("post_transform", "NONE") == "LOGISTIC" else w.expr("1 - x", y)
        y = w.add("concat", [other, y], (), dim=1)
    y = transformed(w, call, y)
    return [labelled(w, call, w.add("argmax", [y], (), dim=1), labels), w.as_kind(y, "float32")]


# ---- support vectors ---------------------------------------------------------------------------------------
# x: the product of a row and a support vector; for RBF their squared distance
KERNELS = {"LINEAR": "x", "POLY": "pow({gamma} * x + {coef}, {degree})",
           "SIGMOID": "tanh({gamma} * x + {coef})", "RBF": "exp(-{gamma} * x)"}
SWEEPS = 8  # of coupled(); random pairs of 3 to 10 classes needed up to 5


def kernels(w, call, x, count):
    """The kernel of each row with each of `count` support vectors, [n, count]."""
    x, kind = rows(w, x), call.get("kernel_type", "LINEAR")
    features, vectors = x.full[1], call.get("support_vectors", None) or []
    if kind not in KERNELS or count < 1 or len(vectors) != count * features:
        raise Refused("%d numbers are no %d support vectors of %d features with the kernel %s" % (
            len(vectors), count, features, kind))
    given = map(text, call.get("kernel_params", None) or [0.0, 0.0, 0.0])
    if kind == "RBF":
        apart = w.map("sub", w.reshape(x, (x.full[0], 1, features)), w.numbers(vectors, (1, count, features)))
        y = w.reduce("sum", w.map("square", apart), [2])
    else:
        y = linear(w, call, x, Constant(Array("float32", (count, features), vectors)), None)
    return w.expr(KERNELS[kind].format(**dict(zip(("gamma", "coef", "degree"), given))), y)


@machine_learning("SVMRegressor", kind="float32")
def svm_regressor(w, call, x):
    y = weighed(w, call, x, call.get("n_supports", 0), call.get("coefficients", None) or [], 1)
    return w.expr("where(x > 0, 1, -1)", y) if call.get("one_class", 0) else transformed(w, call, y)


def weighed(w, call, x, count, weight, sums):
    """Sums [n, sums] of the kernels times weight [sums, count], plus rho."""
    bias = call.get("rho", None) or []
    if len(weight) != sums * count or len(bias) != sums:
        raise Refused("%d coefficients and %d numbers rho are not those of %d support vectors" % (
            len(weight), len(bias), count))
    weight, bias = Array("float32", (sums, count), weight), Array("float32", (sums,), bias)
    return linear(w, call, kernels(w, call, x, count), Constant(weight), Constant(bias))


def pair_weights(call, counts, pairs):
    """The weight [pairs, support vectors] of the sums that separate two classes."""
    total, values = sum(counts), call.get("coefficients", None) or []
    if min(counts) < 0 or len(values) != (len(counts) - 1) * total:
        raise Refused("%d coefficients are not %d for each of %d support vectors" % (
            len(values), len(counts) - 1, total))
    classes = [i for i, count in enumerate(counts) for _ in range(count)]
    rows_of = [{first: second - 1, second: first} for first, second in pairs]
    return [values[own[i] * total + k] if i in own else 0.0 for own in rows_of for k, i in enumerate(classes)]


def votes(w, y, pairs, count):
    """The number of pairs that each class wins, [n, count]. The first class wins if the pair's sum is above
    0."""
    won = [(first == i) - (second == i) for first, second in pairs for i in range(count)]
    at_least = [sum(second == i for _, second in pairs) for i in range(count)]
    y = w.matmul(w.map("gt", y, 0.0), w.numbers(won, (len(pairs), count)))
    return w.map("add", y, w.numbers(at_least, (count,)))


def pair_probabilities(w, call, y, pairs, count):
    """[n, count, count]: the probability of the first class against the second, and 0 on the diagonal."""
    check_count(count ** 4)
    a, b = [w.numbers(call.get(key, []), (len(pairs),)) for key in ("prob_a", "prob_b")]
    r = w.expr("clamp(1 / (1 + exp(x * y + z)), 1e-7, 0.9999999)", y, a, b)
    cells = [(i, j) for i in range(count) for j in range(count)]
    signs = [(cell == pair) - (cell == pair[::-1]) for pair in pairs for cell in cells]
    r = w.matmul(r, w.numbers(signs, (len(pairs), len(cells))))
    r = w.map("add", r, w.numbers([i > j for i, j in cells], (len(cells),)))
    return w.reshape(r, (y.full[0], count, count))


def coupled(w, r, count):
    """The classes' probabilities p [n, count] that fit r best: libsvm's minimum of p Q p.

    Wu, Lin, Weng, "Probability estimates for multi-class classification by pairwise coupling", 2004."""
    unit = w.numbers([i == j for i in range(count) for j in range(count)], (count, count))
    sums = w.reduce("sum", w.map("square", r), [1], True)
    q = w.expr("x0 * x1 - x2 * x3", sums, unit, r, w.permute(r, (0, 2, 1)))
    p = w.whole(Constant(w.constant_of(1 / count).tensor, (r.full[0], count)))
    for _ in range(SWEEPS):
        p = swept(w, q, p, r.full[0], count)
    return p


def swept(w, q, p, n, count):
    """p after each of its elements has reduced p Q p. It stays p once Q p equals p Q p up to 0.005 /
    count."""
    qp = w.reshape(w.matmul(q, w.reshape(p, (n, count, 1))), (n, count))
    start, pqp = p, w.reduce("sum", w.map("mul", p, qp), [1], True)
    error = w.reduce("max", w.expr("abs(x - y)", qp, pqp), [1], True)
    for i in range(count):
        line, own = w.reshape(w.slice(q, 1, i, i + 1), (n, count)), w.slice(qp, 1, i, i + 1)
        top, unit = w.slice(line, 1, i, i + 1), w.numbers([i == j for j in range(count)], (count,))
        step = w.expr("(y - x) / z", own, pqp, top)
        p, qp = [w.expr("(x + y * z) / (1 + y)", x, step, along) for x, along in ((p, unit), (qp, line))]
        pqp = w.expr("(x0 + x1 * (x1 * x2 + 2 * x3)) / (1 + x1) ** 2", pqp, step, top, own)
    return w.expr("where(x < %s, y, z)" % text(0.005 / count), error, start, p)


@machine_learning("SVMClassifier", kind="own")
def svm_classifier(w, call, x):
    """Labels by votes, and probabilities or the sums of all pairs. With two classes these are -sum and
    sum."""
    labels = call.get("classlabels_ints", None) or call.get("classlabels_strings", None) or []
    counts = call.get("vectors_per_class", None) or []
    if len(labels) < 2 or len(counts) != len(labels) or call.get("post_transform", "NONE") != "NONE":
        raise Refused("only 2 or more labels with support vectors, and post_transform NONE, are possible")
    check_count(len(labels) ** 2 * (len(labels) + sum(counts)))
    pairs = [(i, j) for i in range(len(labels)) for j in range(i + 1, len(labels))]
    y = weighed(w, call, x, sum(counts), pair_weights(call, counts, pairs), len(pairs))
    place = w.add("argmax", [votes(w, y, pairs, len(labels))], (), dim=1)
    if call.get("prob_a", None):
        r = pair_probabilities(w, call, y, pairs, len(labels))
        y = coupled(w, r, len(labels))
    elif len(labels) == 2:
        y = w.add("concat", [w.map("neg", y), y], (), dim=1)
    return [labelled(w, call, place, labels), w.as_kind(y, "float32")]


# ---- rows --------------------------------------------------------------------------------------------------
@machine_learning("Imputer", kind="own")
def imputer(w, call, x):
    """Replaces the value that marks missing ones by known values, one for all columns or one for each."""
    kind = w.kind_of(x)
    suffix = "float" if is_float(kind) else "int64"
    values, gap = call.get("imputed_value_%ss" % suffix, None) or [], call.get("replaced_value_" + suffix, 0)
    missing = (OPERATIONS["IsNaN"](w, call, x) if gap != gap else
               OPERATIONS["Equal"](w, call, x, Constant(Array(kind, (), [gap]))))
    return OPERATIONS["Where"](w, call, missing, Constant(Array(kind, (len(values),), values)), x)


@machine_learning("OneHotEncoder", kind="float32")
def one_hot_encoder(w, call, x):
    """1 in the column of each value's class, along a new last axis. Unknown values give zeros."""
    classes, kind = call.get("cats_int64s", None), w.kind_of(x)
    if not classes:
        raise Refused("classes that are texts are not possible")
    classes = Constant(Array(kind, (len(classes),), classes))
    return w.f32(OPERATIONS["Equal"](w, call, w.reshape(x, x.full + (1,)), classes))


@machine_learning("ArrayFeatureExtractor", kind="own")
def array_feature_extractor(w, call, x, index):
    """Along the last axis. A vector is a row."""
    count = fold.dim_of(product(map(fold.of_dim, index.full)))
    index = w.reshape(index, (count,))
    if (isinstance(x, Constant) and x.full == x.tensor.shape and len(x.full) == 1 and
        not is_float(x.tensor.kind)):
        y = labelled(w, call, w.tensor(index), x.tensor.values)
        return w.as_kind(w.reshape(y, (1, count)), "int64")
    lead = x.full[:-1] or (1,)
    x = w.reshape(x, lead + x.full[-1:])
    shape = lead + (count,)
    y = w.pick(x, len(lead), w.view(w.tensor(w.reshape(index, (1,) * len(lead) + (count,))), shape))
    return w.as_kind(y, w.kind_of(x))


@machine_learning("Scaler", kind="float32")
def scaler(w, call, x):
    x, parts = rows(w, x), []
    for key, default in (("offset", 0.0), ("scale", 1.0)):
        values = call.get(key, None) or [default]
        parts.append(w.numbers(values, (len(values),)))
    return w.expr("(x - y) * z", x, *parts)


@machine_learning("Normalizer", kind="float32")
def normalizer(w, call, x):
    """Divides rows by a norm. Rows of zeros stay."""
    x, norm = rows(w, x), call.get("norm", "MAX")
    if norm not in ("MAX", "L1", "L2"):
        raise Refused("norm %s is not possible" % norm)
    size = w.reduce("max" if norm == "MAX" else "sum", w.map("square" if norm == "L2" else "abs", x), [1],
                    True)
    return w.expr("x / max(%s, 1e-30)" % ("sqrt(y)" if norm == "L2" else "y"), x, size)


@machine_learning("Binarizer")
def binarizer(w, call, x):
    return w.expr("where(x > %s, 1, 0)" % text(call.get("threshold", 0.0)), x)


@machine_learning("ZipMap", kind="own")
def zip_map(w, call, x):
    """A sequence of dictionaries, which is the matrix of their values here."""
    labels = call.get("classlabels_int64s", None) or call.get("classlabels_strings", None) or []
    w.note_labels(call, [y.decode("utf-8", "replace") if isinstance(y, bytes) else str(y) for y in labels])
    return w.as_kind(x, "float32")
