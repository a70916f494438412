#!/usr/bin/env python3
"""examples/pinn.c in PyTorch: the same network, points, losses and optimizer. Prints milliseconds per step
and the largest error, as the example does: PYTHON_WITH_TORCH tests/bench/pinn_torch.py [STEPS [THREADS]]"""
import sys
import time

import torch

VISCOSITY, HIDDEN, POINTS, GRID = 0.05, 32, 256, 41


def solution(x, t):
    return 0.5 - 0.5 * torch.tanh((x - 0.5 * t) / (4 * VISCOSITY))


def grad(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def points():
    inside = torch.rand(POINTS, 2) * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0])
    edge = torch.rand(POINTS, 2) * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0])
    edge[1::2, 1] = 0
    edge[0::4, 0], edge[2::4, 0] = -1, 1
    return inside.requires_grad_(), edge, solution(edge[:, :1], edge[:, 1:])


def loss_of(network, inside, edge, edge_u):
    u = network(inside)
    slope = grad(u, inside)
    u_xx = grad(slope[:, :1], inside)[:, :1]
    residual = slope[:, 1:] + u * slope[:, :1] - VISCOSITY * u_xx
    return residual.square().mean() + torch.nn.functional.mse_loss(network(edge), edge_u)


def main(steps=4000, threads=1):
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    layers = [torch.nn.Linear(2, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Tanh(),
              torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)]
    network = torch.nn.Sequential(*layers)
    adam = torch.optim.Adam(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for step in range(steps):
        adam.zero_grad()
        loss_of(network, *points()).backward()
        adam.step()
        schedule.step()
        if step == 0:
            start = time.perf_counter()
    spent = (time.perf_counter() - start) * 1e3 / (steps - 1)
    x, t = torch.meshgrid(torch.linspace(-1, 1, GRID), torch.linspace(0, 1, GRID), indexing="ij")
    with torch.no_grad():
        error = (network(torch.stack((x, t), -1))[..., 0] - solution(x, t)).abs().max()
    print("%.3f ms a step; largest error %.4f" % (spent, error))


main(*map(int, sys.argv[1:]))
