"""Losses."""
from ..spec_writer import Constant, Parameter, Refused, Value, is_number, shape_text, text
from .operands import number
from .registry import operation, reads


def reduction_name(x):
    return {0: "none", 1: None, 2: "sum"}[x]  # None: the mean, the default


def loss(name, *options):
    """A loss of two equal shapes. options: its further arguments, weights or numbers."""
    @reads(*options)
    def lower(w, call, x, target, reduction=1, **arguments):
        x, target = w.f32(w.whole(x)), w.f32(w.whole(target))
        if x.shape != target.shape:
            raise Refused(f"input {shape_text(x.shape)} and target {shape_text(target.shape)} differ")
        given = {key: arguments.get(key) for key in options}
        given = {key: y if y is None or isinstance(y, bool) else number(y) if key in ("delta", "beta") else
                 w.f32(y) for key, y in given.items() if y is not False}
        return w.add(name, [x, target], x.shape if reduction == 0 else (),
                     reduction=reduction_name(reduction), **given)
    return lower


for torch_name, lower in {
        "mse_loss": loss("mse_loss"), "l1_loss": loss("l1_loss"), "huber_loss": loss("huber_loss", "delta"),
        "smooth_l1_loss": loss("smooth_l1_loss", "beta"), "binary_cross_entropy": loss("bce_loss", "weight"),
        "binary_cross_entropy_with_logits": loss("bce_with_logits", "weight", "pos_weight"),
        "kl_div": loss("kl_div", "log_target")}.items():
    operation(torch_name)(lower)


@operation("poisson_nll_loss")
def poisson_nll_loss(w, call, x, target, log_input, full, eps, reduction):
    x, target = w.f32(w.whole(x)), w.f32(w.whole(target))
    y = w.add("poisson_nll_loss", [x, target], x.shape if reduction == 0 else (),
              reduction=reduction_name(reduction), log_input=None if log_input else False, eps=number(eps))
    y.entry.attributes.update({"full": True} if full else {})
    return y


@operation("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")
def class_loss(w, call, x, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0):
    op = "cross_entropy" if call.op == "cross_entropy_loss" else "nll_loss"
    x = w.f32(w.whole(x))
    if len(target.full) == len(x.shape) and op == "cross_entropy":
        return soft_cross_entropy(w, x, target, weight, reduction, label_smoothing)
    target = w.whole(w.integers(target))
    shape = target.shape
    if len(x.shape) == 1:
        x, target = w.reshape(x, (1,) + x.shape), w.reshape(target, (1,))
    y = w.add(op, [x, target], target.shape if reduction == 0 else (), reduction=reduction_name(reduction),
              ignore_index=None if ignore_index == -100 else ignore_index,
              label_smoothing=label_smoothing or None, weight=None if weight is None else w.tensor(weight))
    return w.reshape(y, shape) if reduction == 0 else y


@operation("multi_margin_loss")
def multi_margin_loss(w, call, x, target, p=1, margin=1, weight=None, reduction=1):
    x, target = w.f32(w.whole(x)), w.whole(w.integers(target))
    if len(x.shape) != 2:
        raise Refused("x [n, classes] is needed")
    return w.add("multi_margin_loss", [x, target], target.shape if reduction == 0 else (),
                 reduction=reduction_name(reduction), p=None if p == 1 else number(p), margin=number(margin),
                 weight=None if weight is None else w.tensor(weight))


def loss_of_three(w, name, operands, equal, reduction, **options):
    x = [w.f32(w.whole(t)) for t in operands]
    if any(t.shape != x[0].shape for t in x[:equal]):
        raise Refused("shapes differ; expand the smaller one")
    return w.add(name, x, x[0].shape[:-1] if reduction == 0 else (), reduction=reduction_name(reduction),
                 **options)


@operation("triplet_margin_loss")
def triplet_margin_loss(w, call, anchor, positive, negative, margin=1.0, p=2, eps=1e-6, swap=False,
                        reduction=1):
    return loss_of_three(w, call.op, (anchor, positive, negative), 3, reduction, margin=number(margin),
                         p=number(p), eps=number(eps), swap=swap or None)


@operation("cosine_embedding_loss")
def cosine_embedding_loss(w, call, input1, input2, target, margin=0.0, reduction=1):
    return loss_of_three(w, call.op, (input1, input2, target), 2, reduction, margin=number(margin))


def formula_loss(expression):
    """A loss from a formula. expression is over x, y, z, the loss's tensors, with {name} for its numbers."""
    @reads("input1", "input2", "target", "margin")
    def lower(w, call, reduction=1, **arguments):
        tensors = [t for t in arguments.values() if isinstance(t, (Value, Constant, Parameter))]
        each = w.expr(expression.format(**{name: text(v) for name, v in arguments.items() if is_number(v)}),
                      *tensors)
        return each if reduction == 0 else w.reduce("mean" if reduction == 1 else "sum", each)
    return lower


for torch_name, expression in {
        "margin_ranking_loss": "max({margin} - z * (x - y), 0)", "soft_margin_loss": "log1p(exp(-y * x))",
        "hinge_embedding_loss": "where(y == 1, x, 0) + where(y == -1, max({margin} - x, 0), 0)"}.items():
    operation(torch_name)(formula_loss(expression))


def soft_cross_entropy(w, x, target, weight, reduction, label_smoothing):
    """Cross entropy with class probabilities as target."""
    axis = 1 if len(x.shape) > 1 else 0
    if label_smoothing:
        target = w.expr(f"{text(1 - label_smoothing)} * x + {text(label_smoothing / x.shape[axis])}", target)
    terms = w.expr("-(x * y)", target, w.add("log_softmax", [x], x.shape, dim=axis))
    if weight is not None:
        terms = w.map("mul", terms, w.reshape(weight, weight.full + (1,) * (len(x.shape) - axis - 1)))
    each = w.reduce("sum", terms, axis)
    return each if reduction == 0 or not each.shape else w.reduce("mean" if reduction == 1 else "sum", each)
