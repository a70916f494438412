"""The benchmark of tests/bench/ranks.c with PyTorch's DistributedDataParallel over gloo: torchrun
--nproc-per-node 2 tests/bench/ranks.py mlp 60"""
import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

import bench_torch

LENGTH, WIDTH, HEADS, LAYERS, VOCABULARY = 64, 384, 6, 6, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        n = len(x)
        q, k, v = self.qkv(self.ln1(x)).view(n, LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, LENGTH, WIDTH)
        x = x + self.out(h)
        return x + self.down(F.gelu(self.up(self.ln2(x))))


def mlp():
    net = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
                        nn.Linear(1024, 10))
    return net, 256, lambda n: (torch.zeros(n, 784), torch.zeros(n, dtype=torch.long))


def gpt():
    net = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *[Block() for _ in range(LAYERS)],
                        nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY), nn.Flatten(0, 1))
    return net, 16, lambda n: (torch.zeros(n, LENGTH, dtype=torch.long),
                               torch.zeros(n * LENGTH, dtype=torch.long))


def resnet18():
    return bench_torch.resnet(200), 32, lambda n: (torch.zeros(n, 3, 64, 64),
                                                   torch.zeros(n, dtype=torch.long))


def main():
    name, steps = sys.argv[1], int(sys.argv[2])
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(1)
    net, batch, data = {"mlp": mlp, "gpt": gpt, "resnet18": resnet18}[name]()
    if ranks > 1:
        net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    x, t = data(batch // ranks)
    for step in range(-3, steps):
        if step == 0:
            began = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), t)
        loss.backward()
        optimizer.step()
        loss.item()
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"{ranks} ranks of {torch.get_num_threads()} threads: "
              f"{steps * batch / (time.perf_counter() - began):.1f} samples/s")
    if ranks > 1:
        torch.distributed.destroy_process_group()


main()
