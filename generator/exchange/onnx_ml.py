"""What the ops of ONNX's domain ai.onnx.ml are made of, in which skl2onnx writes scikit-learn's models: those that are linear."""
from . import fold
from .arrays import Array, is_float
from .onnx_layers import linear
from .onnx_ops import operation
from .spec_writer import Constant, Refused, product, text

DOMAIN = "ai.onnx.ml"


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
        raise Refused("%d coefficients and %d intercepts are no %s of %d features" % (len(values), len(added), name, x.full[1]))
    return linear(w, call, x, Constant(weight), bias)


def transformed(w, call, y):
    """y as post_transform says."""
    kind = call.get("post_transform", "NONE")
    if kind not in ("NONE", "LOGISTIC", "SOFTMAX"):
        raise Refused("post_transform %s is not possible" % kind)
    return y if kind == "NONE" else w.map("sigmoid", y) if kind == "LOGISTIC" else w.add("softmax", [y], (), dim=1)


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
    """The labels of classes by their places; texts stay numbers."""
    if isinstance(labels[0], (str, bytes)):
        w.note_labels(call, [y.decode("utf-8", "replace") if isinstance(y, bytes) else y for y in labels])
    elif list(labels) != list(range(len(labels))):
        place = w.pick(w.numbers(labels, (len(labels),)), 0, place)
    return w.as_kind(w.integers(place, ("i64",)), "int64")


@machine_learning("ArrayFeatureExtractor", kind="own")
def array_feature_extractor(w, call, x, index):
    """Along the last axis; of a vector a row."""
    count = fold.dim_of(product(map(fold.of_dim, index.full)))
    index = w.reshape(index, (count,))
    if isinstance(x, Constant) and x.full == x.tensor.shape and len(x.full) == 1 and not is_float(x.tensor.kind):
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
    """Rows by a norm of theirs; those of zeros stay."""
    x, norm = rows(w, x), call.get("norm", "MAX")
    if norm not in ("MAX", "L1", "L2"):
        raise Refused("norm %s is not possible" % norm)
    size = w.reduce("max" if norm == "MAX" else "sum", w.map("square" if norm == "L2" else "abs", x), [1], True)
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
