"""Writes points.safetensors: PyTorch's float32 values and gradients of elementwise ops at kinks, zeros,
infinities, NaN and the ends of the range. x are the points of one operand, a and b those of two. op: [value
and gradients, points], for a gradient of 1. PyTorch 2.15.0.

    python3 tests/golden/points.py"""
import itertools
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

INF, NAN = float("inf"), float("nan")
POINTS = (NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 6.0, 10.0, -10.0, 20.0,
          -20.0, 100.0, -100.0, 1000.0, -1000.0, 1e-45, -1e-45, 1.1754944e-38, -1.1754944e-38, 1.8446743e19,
          -1.8446743e19, 3.4028235e38, -3.4028235e38)
PAIRS = (NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0, 1e-30, -1e-30, 1e30, 3.4028235e38)
UNARY = {name: getattr(torch,
                       name) for name in (
                           "sigmoid tanh abs neg sign floor detach exp expm1 log log1p sqrt rsqrt reciprocal "
                           "square erf sin cos exp2 log2 log10 sinh cosh asin acos atan asinh acosh atanh "
                           "tan ceil round trunc frac erfc lgamma").split()}
UNARY.update({name: getattr(F, name) for name in "relu relu6 silu mish gelu softsign logsigmoid hardsigmoid "
              "hardswish selu tanhshrink".split()})
UNARY.update({
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "leaky_relu": lambda x: F.leaky_relu(x, 0.01),
    "elu": F.elu, "celu": F.celu, "hardshrink": lambda x: F.hardshrink(x, 0.5), "add_scalar": lambda x: x +
    0.5, "mul_scalar": lambda x: x * 1.75, "pow_scalar": lambda x: x ** 2.5, "hardtanh": F.hardtanh,
    "clamp": lambda x: x.clamp(-1, 2), "softplus": F.softplus, "softshrink": lambda x: F.softshrink(x, 0.5),
    "threshold": lambda x: F.threshold(x, 0.5, -20), "logit": torch.logit,
    "logical_not": lambda x: torch.logical_not(x).float(), "isnan": lambda x: x.isnan().float(),
    "isinf": lambda x: x.isinf().float(), "isfinite": lambda x: x.isfinite().float()})
BINARY = {name: getattr(torch, name) for name in
          "add sub mul div pow maximum minimum atan2 hypot logaddexp fmod remainder xlogy".split()}
BINARY.update({name: lambda a, b, of=getattr(torch, name): of(a, b).float() for name in
               "eq ne lt le gt ge logical_and logical_or logical_xor".split()})
BINARY.update({
    "parametric_relu": lambda a, b: torch.where(a > 0, a, a * b),
    "where": lambda a, b: torch.where(a != 0, b, a),
    "floor_divide": lambda a, b: torch.floor_divide(a.detach(), b.detach()),
    "trunc_divide": lambda a, b: torch.div(a, b, rounding_mode="trunc").detach(),
    "squared_error": lambda a, b: F.mse_loss(a, b, reduction="none"),
    "absolute_error": lambda a, b: F.l1_loss(a, b, reduction="none"),
    "huber": lambda a, b: F.huber_loss(a, b, reduction="none"),
    "smooth_l1": lambda a, b: F.smooth_l1_loss(a, b, reduction="none"), "binary_cross_entropy_with_logits":
    lambda a, b: F.binary_cross_entropy_with_logits(a, b, reduction="none"),
    "kl_divergence": lambda a, b: F.kl_div(a, b, reduction="none"),
    "kl_divergence_log": lambda a, b: F.kl_div(a, b, reduction="none", log_target=True)})


def rows(function, operands):
    """The value and each gradient, as rows."""
    operands = [x.clone().requires_grad_() for x in operands]
    y = function(*operands)
    gradients = (torch.autograd.grad(y, operands, torch.ones_like(y), allow_unused=True) if y.requires_grad
                 else [None] * len(operands))
    return torch.stack([y.detach()] + [torch.zeros_like(y) if g is None else g for g in gradients])


def main():
    x = torch.tensor(POINTS)
    a, b = map(torch.tensor, zip(*itertools.product(PAIRS, PAIRS)))
    tensors = {"x": x, "a": a, "b": b}
    tensors.update((name, rows(function, [x])) for name, function in UNARY.items())
    tensors.update((name, rows(function, [a, b])) for name, function in BINARY.items())
    save_file(tensors, os.path.join(os.path.dirname(os.path.abspath(__file__)), "points.safetensors"))


if __name__ == "__main__":
    main()
