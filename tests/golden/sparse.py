#!/usr/bin/env python3
"""Writes sparse.safetensors, as make_golden.py does: a table trained with sparse gradients. python3
tests/golden/sparse.py"""
import torch
import torch.nn.functional as F
from make_golden import down, randn, save, up

STEPS, ROWS, WIDTH, TOKENS, PADDING = 12, 23, 5, 9, 3
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, dict(lr=0.1)),
    "sgd_maximize": (torch.optim.SGD, dict(lr=0.1, maximize=True)),
    "adagrad": (torch.optim.Adagrad, dict(lr=0.1, lr_decay=0.1, eps=1e-3, initial_accumulator_value=0.5)),
    "adam": (torch.optim.SparseAdam, dict()),
    "adam_options": (torch.optim.SparseAdam, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-3, maximize=True)),
}


def main():
    torch.manual_seed(1)
    table, given = randn(ROWS, WIDTH), randn(STEPS, 2, TOKENS, WIDTH)
    given[7] *= 1e-6
    tokens = torch.randint(0, ROWS, (STEPS, 2, TOKENS))
    tokens[2] = 5  # all equal
    tokens[4] = PADDING  # nothing to do
    out = {"table": table, "given": given, "tokens": tokens}
    for name, (kind, options) in OPTIMIZERS.items():
        weight, trace = up(table.clone()).requires_grad_(True), []
        opt = kind([weight], **options)
        for step in range(STEPS):
            opt.zero_grad()
            rows = F.embedding(tokens[step], weight, padding_idx=PADDING, sparse=True)
            (rows * up(given[step])).sum().backward()
            opt.step()
            trace.append(down(weight).clone())
        out[name] = torch.stack(trace)
    save("sparse.safetensors", out)


if __name__ == "__main__":
    main()
