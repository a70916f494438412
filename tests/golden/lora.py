#!/usr/bin/env python3
"""Writes lora.safetensors and the folder lora_adapter, as make_golden.py does: a network with PEFT's low-rank
adapters, and ten steps of Adam on them. Needs peft (pip install peft). python3 tests/golden/lora.py

The folder is what peft's save_pretrained writes, with the adapters before the first step. lora.safetensors
holds the network's weights, its inputs, the result in evaluation mode ("eval"), the losses of the steps and
the adapters after them ("after.NAME")."""
import os
import shutil

import peft
import torch
import torch.nn.functional as F
from make_golden import HERE, down, draw_for, save

STEPS, VOCAB, WIDTH, INNER, CLASSES = 10, 11, 6, 9, 4


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up_proj = torch.nn.Linear(WIDTH, INNER)
        self.down_proj = torch.nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down_proj(F.silu(self.up_proj(x)))


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(VOCAB, WIDTH)
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def main():
    draw_for("lora")
    network = Network()
    out = {f"param.{name}": t.detach().clone() for name, t in network.state_dict().items()}
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=["embed_tokens", "up_proj", "down_proj"],
                             base_model_name_or_path="a/network")
    model = peft.get_peft_model(network, config)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for p in trained.values():
        p.data = 0.3 * torch.randn(p.shape)
    folder = os.path.join(HERE, "lora_adapter")
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    model.double()
    out["tokens"] = torch.randint(0, VOCAB, (5, 7))
    out["labels"] = torch.randint(0, CLASSES, (5,))
    out["eval"] = down(model(out["tokens"]))
    optimizer, losses = torch.optim.Adam(trained.values(), lr=0.02), []
    for _ in range(STEPS):
        loss = F.cross_entropy(model(out["tokens"]), out["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().float())
    out["losses"] = torch.stack(losses)
    for name, t in peft.get_peft_model_state_dict(model).items():
        out[f"after.{name}"] = down(t)
    save("lora.safetensors", out)


if __name__ == "__main__":
    main()
