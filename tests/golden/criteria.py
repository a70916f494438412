#!/usr/bin/env python3
"""Writes criteria.safetensors with PyTorch: margin and similarity losses, Dice, CTC and likelihoods. python3
tests/golden/criteria.py"""
import torch
import torch.nn.functional as F

from make_golden import add_case, inf, nan, randn, save


def signs(*shape):
    return (torch.rand(shape) < 0.5).float() * 2 - 1


def margins(out):
    for label, options in (("", {}), ("_sum", {"margin": 0.3, "reduction": "sum"}),
                           ("_none", {"margin": -0.2, "reduction": "none"})):
        add_case(out, f"hinge_embedding_loss.{label}", lambda x, t: F.hinge_embedding_loss(x, t, **options),
                 batch={"x": randn(7, 5), "t": signs(7, 5)}, no_grad=("t",))
        add_case(out, f"margin_ranking_loss.{label}",
                 lambda a, b, t: F.margin_ranking_loss(a, b, t, **options),
                 batch={"a": randn(7, 3), "b": randn(7, 3), "t": signs(7, 3)}, no_grad=("t",))
        add_case(out, f"cosine_embedding_loss.{label}",
                 lambda a, b, t: F.cosine_embedding_loss(a, b, t, **options),
                 batch={"a": randn(9, 6), "b": randn(9, 6), "t": signs(9)}, no_grad=("t",))
    add_case(out, "hinge_embedding_loss._edge", lambda x, t: F.hinge_embedding_loss(x, t),
             batch={"x": torch.tensor([1.0, 1.0, 0.0, -1.0]), "t": torch.tensor([1.0, -1.0, 0.0, -1.0])},
             no_grad=("t",))
    add_case(out, "cosine_embedding_loss._one", lambda a, b, t: F.cosine_embedding_loss(a, b, t),
             fixed={"a": randn(6), "b": randn(6), "t": torch.tensor(-1.0)}, no_grad=("t",))
    add_case(out, "triplet_margin_loss._edge", lambda a, p, n: F.triplet_margin_loss(a, p, n, eps=0.0),
             batch={"a": torch.zeros(2, 1), "p": torch.tensor([[1.0], [2.0]]),
                    "n": torch.tensor([[-2.0], [1.0]])})
    labels = torch.tensor([0, 3, 2, 3, 1])
    for label, options in (("", {}), ("_2", {"p": 2, "margin": 0.4}), ("_sum", {"reduction": "sum"}),
                           ("_none", {"reduction": "none"})):
        add_case(out, f"multi_margin_loss.{label}", lambda x, t: F.multi_margin_loss(x, t, **options),
                 batch={"x": randn(5, 4), "t": labels})
        add_case(out, f"multi_margin_loss.{label}_weight",
                 lambda x, t, w: F.multi_margin_loss(x, t, weight=w, **options),
                 batch={"x": randn(5, 4), "t": labels}, fixed={"w": torch.rand(4) + 0.5}, no_grad=("w",))
    add_case(out, "multi_margin_loss._long", lambda x, t: F.multi_margin_loss(x, t),
             batch={"x": randn(3, 131), "t": labels[:3]})
    for label, options in (("", {}), ("_swap", {"swap": True}), ("_1", {"p": 1.0}),
                           ("_3", {"p": 3.0, "margin": 2.0}), ("_inf", {"p": inf}),
                           ("_sum", {"reduction": "sum", "eps": 0.1}), ("_none", {"reduction": "none"})):
        add_case(out, f"triplet_margin_loss.{label}",
                 lambda a, p, n: F.triplet_margin_loss(a, p, n, **options),
                 batch={"a": randn(6, 9), "p": randn(6, 9), "n": randn(6, 9)})
    add_case(out, "triplet_margin_loss._one", lambda a, p, n: F.triplet_margin_loss(a, p, n),
             fixed={"a": randn(5), "p": randn(5), "n": randn(5)})


def cosines(out):
    add_case(out, "cosine_similarity.", lambda a, b: F.cosine_similarity(a, b),
             batch={"a": randn(5, 7), "b": randn(5, 7)})
    add_case(out, "cosine_similarity._last", lambda a, b: F.cosine_similarity(a, b, -1, 0.5),
             batch={"a": randn(3, 4, 5, shift=1.0), "b": randn(3, 4, 5, shift=1.0)})
    add_case(out, "cosine_similarity._pairs", lambda a, b: F.cosine_similarity(a, b, 2),
             fixed={"a": randn(4, 1, 5), "b": randn(1, 3, 5)})
    add_case(out, "cosine_similarity._zero", lambda a, b: F.cosine_similarity(a, b),
             fixed={"a": torch.zeros(2, 3), "b": randn(2, 3)})


def dice(x, target, smooth=1e-5, squared=False, batch=False, reduction="mean"):
    """As MONAI's DiceLoss(include_background=True, smooth_nr=smooth, smooth_dr=smooth, squared_pred=squared,
    batch=batch)."""
    axes = ([0] if batch else []) + list(range(2, x.dim()))
    both = [(t * t if squared else t).sum(axes) if axes else t for t in (x, target)]
    loss = 1 - (2 * (x * target).sum(axes) + smooth) / (both[0] + both[1] + smooth)
    return {"mean": torch.mean, "sum": torch.sum, "none": lambda t: t}[reduction](loss)


def dices(out):
    for label, options in (("", {}), ("_options", {"smooth": 1.0, "squared": True, "reduction": "sum"}),
                           ("_none", {"reduction": "none"}),
                           ("_batch", {"batch": True, "reduction": "none"})):
        add_case(out, f"dice_loss.{label}", lambda x, t: dice(x, t, **options),
                 batch={"x": torch.rand(3, 4, 5, 2), "t": (torch.rand(3, 4, 5, 2) < 0.4).float()},
                 no_grad=("t",))
    add_case(out, "dice_loss._binary", lambda x, t: dice(x, t),
             batch={"x": torch.rand(4, 1, 37), "t": (torch.rand(4, 1, 37) < 0.4).float()})
    add_case(out, "dice_loss._flat", lambda x, t: dice(x, t, batch=True),
             batch={"x": torch.rand(11, 3), "t": torch.rand(11, 3)})


def ctc(out):
    def case(label, times, samples, classes, most, lengths, targets, first=False, labels=None,
             dtype=torch.int64, scale=1.0, **options):
        blank = options.get("blank", 0)
        if labels is None:
            labels = torch.randint(0, classes - 1, (samples, most))
            labels += labels >= blank
        x = (randn(samples, times, classes, scale=scale) if first else
             randn(times, samples, classes, scale=scale))

        def loss(x, t, i, l):
            y = F.log_softmax(x, -1)
            return F.ctc_loss(y.transpose(0, 1) if first else y, t, i, l, **options)
        add_case(out, f"ctc_loss.{label}", loss,
                 fixed={"x": x, "t": labels.to(dtype), "i": torch.tensor(lengths).to(dtype),
                        "l": torch.tensor(targets).to(dtype)})
    case("", 9, 3, 5, 4, [9, 7, 8], [4, 2, 3])
    case("_sum", 9, 3, 5, 4, [9, 7, 8], [4, 1, 0], reduction="sum", blank=2)
    case("_none", 12, 4, 6, 5, [12, 5, 1, 11], [5, 2, 1, 3], dtype=torch.int32, reduction="none", blank=5)
    case("_first", 8, 3, 5, 3, [8, 8, 6], [3, 3, 1], first=True)
    case("_infinite", 6, 3, 4, 5, [6, 3, 6], [2, 5, 3], zero_infinity=True, blank=3)
    case("_repeats", 11, 2, 3, 5, [11, 9], [5, 4], labels=torch.tensor([[1, 1, 2, 2, 1], [2, 2, 2, 2, 0]]))
    case("_one", 1, 1, 2, 1, [1], [1])
    case("_long", 70, 2, 11, 24, [70, 61], [24, 13], scale=3.0)


def likelihoods(out):
    for label, options in (("", {}), ("_full", {"full": True, "reduction": "sum"}),
                           ("_none", {"eps": 0.5, "reduction": "none"})):
        add_case(out, f"gaussian_nll_loss.{label}", lambda x, t, v: F.gaussian_nll_loss(x, t, v, **options),
                 batch={"x": randn(6, 5), "t": randn(6, 5), "v": torch.rand(6, 5)})
    add_case(out, "gaussian_nll_loss._one", lambda x, t, v: F.gaussian_nll_loss(x, t, v),
             batch={"x": randn(6, 5), "t": randn(6, 5), "v": torch.rand(6, 1)})
    for label, options in (("", {}), ("_sum", {"reduction": "sum"}), ("_none", {"reduction": "none"})):
        add_case(out, f"soft_margin_loss.{label}", lambda x, t: F.soft_margin_loss(x, t, **options),
                 batch={"x": randn(7, 5, scale=9.0), "t": signs(7, 5)}, no_grad=("t",))


def counts(out):
    for label, options in (("", {}), ("_full", {"full": True}),
                           ("_rate", {"log_input": False, "eps": 0.01, "reduction": "sum"}),
                           ("_full_rate", {"log_input": False, "full": True, "reduction": "none"})):
        add_case(out, f"poisson_nll_loss.{label}", lambda x, t: F.poisson_nll_loss(x, t, **options),
                 batch={"x": torch.rand(6, 5) + 0.1, "t": torch.poisson(torch.full((6, 5), 2.0))},
                 no_grad=("t",))


def formulas(out):
    """Formulas of gpunn_expr along axes."""
    for label, p in (("2", 2), ("3", 3), ("1", 1), ("inf", inf)):
        add_case(out, f"formula._norm_{label}",
                 lambda x: torch.linalg.vector_norm(x, p, (1, 2), keepdim=True) * x,
                 batch={"x": randn(3, 4, 5)})
    add_case(out, "formula._norms", lambda x: (x - x.mean((2, 3), True)) /
             (x.var((2, 3), unbiased=False, keepdim=True) + 1e-5).sqrt(), batch={"x": randn(3, 2, 5, 4)})
    add_case(out, "formula._windows", lambda x: F.avg_pool2d(x, 5, 1, 2), batch={"x": randn(3, 2, 9, 4)})
    add_case(out, "formula._volumes", lambda x: F.avg_pool3d(x, 3, 1, 1), batch={"x": randn(2, 2, 5, 4, 3)})
    add_case(out, "formula._distil", lambda x, t: -(F.softmax(t, 1) * F.log_softmax(x, 1)).sum(1).mean(),
             batch={"x": randn(5, 7), "t": randn(5, 7)})
    add_case(out, "formula._logsumexp", lambda x: torch.logsumexp(x, -1),
             batch={"x": randn(5, 7, scale=99.0)})
    add_case(out, "formula._hits", lambda x, t: x.cumsum(1) * (x.argmax(1) == t).double().mean(),
             batch={"x": randn(6, 3), "t": torch.tensor([0, 1, 2, 1, 0, 0])})


def named(out):
    """Formulas with torch's names."""
    def case(name, fn, *operands, **how):
        add_case(out, f"named.{name}", lambda **given: fn(*given.values()), batch=dict(zip("xy", operands)),
                 **how)

    inside = torch.rand(5, 7) * 1.9 - 0.95
    for name, x in (("tan", randn(5, 7)), ("asin", inside), ("acos", inside),
                    ("atan", randn(5, 7, scale=3.0)), ("atanh", inside), ("sinh", randn(5, 7, scale=3.0)),
                    ("cosh", randn(5, 7, scale=3.0)), ("asinh", randn(5, 7, scale=3.0)),
                    ("acosh", torch.rand(5, 7) * 5 + 1.01), ("exp2", randn(5, 7)),
                    ("log2", torch.rand(5, 7) + 0.05), ("log10", torch.rand(5, 7) + 0.05),
                    ("erfc", randn(5, 7, scale=2.0)), ("lgamma", randn(5, 7, scale=5.0, shift=0.01))):
        case(name, getattr(torch, name), x)
    steps = torch.tensor([[0.5, 1.5, -0.5, -1.5, 2.5, 0.0, 3.0, -7.25, 7.75]])
    for name in ("ceil", "round", "trunc", "frac"):
        case(name, getattr(torch, name), steps)
    case("tanhshrink", F.tanhshrink, randn(5, 7))
    specials = torch.tensor([[1.0, 0.0, -0.0, nan, inf, -inf, 3.4e38, -3.4e38]])
    for name in ("logical_not", "isnan", "isinf", "isfinite"):
        case(name, lambda x, of=getattr(torch, name): of(x).double(), specials, gradient=False)
    case("softshrink", lambda x: F.softshrink(x, 0.5),
         torch.cat([randn(5, 7), torch.tensor([[0.5, -0.5, 0, 1, -1, 2, -2]])]))
    case("softshrink_specials", lambda x: F.softshrink(x, 0.5), specials, gradient=False)
    case("softshrink_0", lambda x: F.softshrink(x, 0.0), randn(3, 2))
    case("threshold", lambda x: F.threshold(x, 0.1, -20.0), randn(5, 7))
    case("threshold_0", lambda x: F.threshold(x, 0.0, 0.0), specials, gradient=False)
    case("logit", torch.logit, torch.rand(5, 7) * 0.98 + 0.01)
    case("logit_eps", lambda x: torch.logit(x, 0.2), torch.rand(5, 7))
    case("atan2", torch.atan2,
         torch.cat([randn(5, 7), torch.tensor([[1.0, -1.0, 0.0, 1e30, -1e-30, 2.0, -2.0]])]),
         torch.cat([randn(5, 7), torch.tensor([[0.0, 0.0, -1.0, 1e30, -1e-30, -2.0, 1e-20]])]))
    case("hypot", torch.hypot, randn(5, 7, scale=1e20), randn(5, 7, scale=1e20))
    case("logaddexp", torch.logaddexp, randn(5, 7, scale=9.0), randn(5, 1))
    case("xlogy", torch.xlogy, torch.tensor([[0.0, 1.0, 2.0, -1.0]]), torch.tensor([[0.5, 0.1, 3.0, 2.0]]))
    case("xlogy_specials", torch.xlogy, torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0, 1.0, nan]]),
         torch.tensor([[0.0, -1.0, inf, nan, 0.0, -1.0, 1.0]]), gradient=False)
    for name in ("remainder", "fmod"):
        case(name, getattr(torch, name), randn(5, 7, scale=9.0), randn(5, 7))


if __name__ == "__main__":
    torch.manual_seed(31)
    cases = {}
    for make in (margins, cosines, dices, ctc, likelihoods, formulas, counts, named):
        make(cases)
    save("criteria.safetensors", cases)
