#!/usr/bin/env python3
"""Makes expected_output/gpt2.safetensors with PyTorch: python3 tests/examples/make_gpt2.py

weight/NAME  a small GPT-2 with Hugging Face's names and shapes      logits  of the first batch in evaluation
mode losses       of 20 steps of AdamW with warm-up, cosine and clipping  after/NAME  some weights after them
text         what examples/gpt2.c reads as bytes Everything is computed in float64 from float32 weights."""
import math
import os
import sys

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "golden"))
import make_golden  # noqa: E402
sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))
from tests.examples.test_gpt2 import mixed  # noqa: E402

LAYERS, WIDTH, HEADS, POSITIONS, VOCABULARY = 4, 128, 4, 128, 256  # examples/gpt2.c's tiny configuration
BATCH, CONTEXT, STEPS, WARMUP, RATE, DECAY, CLIP, SEED = 2, 16, 20, 5, 1e-3, 0.1, 1.0, 7
KEPT = ("h.0.attn.c_attn.bias", "h.3.mlp.c_proj.bias", "ln_f.weight")


def batch(text, number):
    starts = [mixed(SEED + number * BATCH + i) % (len(text) - CONTEXT) for i in range(BATCH)]
    rows = torch.tensor([[text[at + k] for k in range(CONTEXT + 1)] for at in starts])
    return rows[:, :-1], rows[:, 1:]


def weights():
    """As in transformers.GPT2Model: its Conv1D has [in, out]. Values are coarse, so that the file compresses
    well."""
    shapes = {"wte.weight": (VOCABULARY, WIDTH), "wpe.weight": (POSITIONS, WIDTH)}
    for i in range(LAYERS):
        parts = {"ln_1": (WIDTH,), "attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH),
                 "ln_2": (WIDTH,), "mlp.c_fc": (WIDTH, 4 * WIDTH), "mlp.c_proj": (4 * WIDTH, WIDTH)}
        for part, shape in parts.items():
            shapes[f"h.{i}.{part}.weight"], shapes[f"h.{i}.{part}.bias"] = shape, shape[-1:]
    shapes["ln_f.weight"] = shapes["ln_f.bias"] = (WIDTH,)
    return {name: made(name, shape) for name, shape in shapes.items()}


def made(name, shape):
    """Weights that the test computes by the same rule, so that the file need not contain them."""
    count, key = math.prod(shape), sum(ord(c) * (i + 1) for i, c in enumerate(name))
    values = [((mixed(key * 1000003 + i) >> 40) / (1 << 24) - 0.5) * 0.15 for i in range(count)]
    offset = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
    return torch.tensor(values, dtype=torch.float64).float().add(offset).reshape(shape)


def forward(w, tokens):
    x = w["wte.weight"][tokens] + w["wpe.weight"][: tokens.shape[1]]

    def norm(x, name):
        return F.layer_norm(x, (WIDTH,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def conv1d(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    for i in range(LAYERS):
        qkv = conv1d(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn")
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in qkv.split(WIDTH, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + conv1d(y, f"h.{i}.attn.c_proj")
        h = F.gelu(conv1d(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), approximate="tanh")
        x = x + conv1d(h, f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def main():
    text = bytes((mixed(i // 3) % 96) + 32 for i in range(400))
    w = {name: t.double().requires_grad_() for name, t in weights().items()}
    out = {"text": torch.tensor(list(text), dtype=torch.uint8)}
    with torch.no_grad():
        out["logits"] = forward(w, batch(text, 0)[0]).float()
    groups = [{"params": [t for t in w.values() if t.dim() == 2], "weight_decay": DECAY},
              {"params": [t for t in w.values() if t.dim() == 1], "weight_decay": 0.0}]
    adam, losses = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95)), []
    for step in range(STEPS):
        done = min(1.0, (step - WARMUP) / (STEPS - WARMUP))
        rate = (RATE * (step + 1) / WARMUP if step < WARMUP else
                RATE * (0.55 + 0.45 * math.cos(math.pi * done)))
        for group in adam.param_groups:
            group["lr"] = rate
        tokens, targets = batch(text, step)
        loss = F.cross_entropy(forward(w, tokens).flatten(0, 1), targets.flatten())
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(w.values(), CLIP)
        adam.step()
        losses.append(float(loss.detach()))
    out["losses"] = torch.tensor(losses, dtype=torch.float64).float()
    out.update({f"after/{name}": w[name].detach().float() for name in KEPT})
    make_golden.HERE = os.path.join(HERE, "expected_output")
    make_golden.save("gpt2.safetensors", out)


if __name__ == "__main__":
    main()
