#!/usr/bin/env python3
"""Writes derivatives.safetensors with PyTorch: networks of three layers, their derivatives up to the third
order, products with Jacobian and Hessian, and the gradients of a loss made of these. In double precision.
python3 tests/golden/derivatives.py"""
import torch
from make_golden import save
from torch.func import hessian, jvp, vmap

ACTIVATIONS = {"tanh": torch.tanh, "sin": torch.sin, "softplus": torch.nn.functional.softplus}


def grad(y, x):
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


def case(name, act, x, v):
    sizes = (2, 8, 8, 1)
    weights = {}
    for i in range(3):
        weights[f"{i}.weight"] = (torch.randn(sizes[i + 1], sizes[i],
                                              dtype=x.dtype) / sizes[i] ** 0.5).requires_grad_()
        weights[f"{i}.bias"] = (torch.randn(sizes[i + 1], dtype=x.dtype) / 2).requires_grad_()

    def network(row):
        for i in range(3):
            row = torch.nn.functional.linear(row, weights[f"{i}.weight"], weights[f"{i}.bias"])
            row = act(row) if i < 2 else row
        return row

    x = x.clone().requires_grad_()
    u = network(x)
    slopes = grad(u, x)
    u_x = slopes[:, :1]
    u_xx = grad(u_x, x)[:, :1]
    u_xxx = grad(u_xx, x)[:, :1]
    loss = ((u_xxx + u * u_x + slopes[:, 1:]) ** 2).mean()
    hessians = vmap(hessian(lambda row: network(row)[0]))(x)
    out = {"u_x": u_x, "u_xx": u_xx, "u_xxx": u_xxx, "loss": loss, "jvp": jvp(network, (x,), (v,))[1],
           "hvp": torch.einsum("nij,nj->ni", hessians, v),
           "laplacian": hessians.diagonal(dim1=1, dim2=2).sum(1, keepdim=True)}
    gradients = torch.autograd.grad(loss, list(weights.values()))
    out.update(weights)
    out.update({f"grad.{key}": g for key, g in zip(weights, gradients)})
    return {f"{name}/{key}": t.detach().float().contiguous() for key, t in out.items()}


torch.manual_seed(0)
x, v = (torch.randn(5, 2, dtype=torch.float64) for _ in range(2))
tensors = {"x": x.float(), "v": v.float()}
for name, act in ACTIVATIONS.items():
    tensors.update(case(name, act, x.float().double(), v.float().double()))
save("derivatives.safetensors", tensors)
