"""PyTorch's side of the benchmarks on a GPU: does what tests/bench/gpu.py asks for on stdin, as gpu_bench.c does.

    gpu_torch.py MODE [--cpu]

MODE: eager; compile and reduce-overhead: torch.compile of model, loss and update in that mode; graph: the eager step captured by hand
into one CUDA graph. Also understood: version. PyTorch gets what makes it fast: cudnn.benchmark, fused updates where it has them,
channels_last for the ResNet, autocast for BF16 (F32 master weights, as gpunn keeps them). TF32 only where the workload says so.
"""
import gc
import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

import bench_torch

MODE = sys.argv[1]
CPU = "--cpu" in sys.argv
DEVICE = torch.device("cpu" if CPU else "cuda")


def synchronize():
    if not CPU:
        torch.cuda.synchronize()


def compiled(function):
    if MODE not in ("compile", "reduce-overhead"):
        return function
    return torch.compile(function, mode=None if MODE == "compile" else MODE)


def training(model, optimizer, criterion, x, y, half=False):
    def forward():
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=half):
            return criterion(model(x), y)

    forward, update = compiled(forward), compiled(optimizer.step)

    def step():
        if MODE == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        loss = forward()
        loss.backward()
        update()
        return loss
    return step


def classes(batch, count):
    return bench_torch.classes(batch, count).to(DEVICE)


def noise(*shape):
    return 2 * torch.rand(*shape, device=DEVICE) - 1


def fused(optimizer, model, **options):
    """torch.compile fuses updates itself; a step captured by hand keeps its count on the GPU."""
    options["fused"] = MODE in ("eager", "graph")
    if MODE == "graph" and optimizer is not torch.optim.SGD:
        options["capturable"] = True
    return optimizer(model.parameters(), **options)


def mlp20():
    model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 1), nn.Sigmoid()).to(DEVICE)
    y = (torch.arange(32, device=DEVICE) % 2).float()[:, None]
    return training(model, fused(torch.optim.SGD, model, lr=0.01), nn.BCELoss(), noise(32, 20), y)


def lenet(batch):
    model = bench_torch.LeNet().to(DEVICE)
    optimizer = fused(torch.optim.SGD, model, lr=0.001, momentum=0.9)
    return training(model, optimizer, nn.CrossEntropyLoss(), noise(batch, 3, 32, 32), classes(batch, 10))


def mlp784(half=False):
    model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(DEVICE)
    optimizer = fused(torch.optim.Adam, model, lr=0.001)
    return training(model, optimizer, nn.CrossEntropyLoss(), noise(512, 784), classes(512, 10), half)


def resnet18():
    model = bench_torch.resnet(1000).to(DEVICE, memory_format=torch.channels_last).train()
    optimizer = fused(torch.optim.SGD, model, lr=0.001, momentum=0.9)
    x = noise(64, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    return training(model, optimizer, nn.CrossEntropyLoss(), x, classes(64, 1000), True)


def stream(function, operands):
    """Of 256 MiB."""
    values, function = [noise(64, 1 << 20) for _ in range(operands)], compiled(function)

    def step():
        with torch.no_grad():
            return function(*values)
    return step


def copy():
    source, target = noise(64, 1 << 20), torch.empty(64, 1 << 20, device=DEVICE)
    return lambda: target.copy_(source)


def adamw():
    model = nn.ParameterList([nn.Parameter(noise(100000000))])
    model[0].grad = noise(100000000)
    update = compiled(fused(torch.optim.AdamW, model, lr=0.001).step)
    return lambda: update()


WORKLOADS = {
    "mlp20": mlp20, "lenet4": lambda: lenet(4), "lenet4096": lambda: lenet(4096), "mlp784_f32": mlp784, "mlp784_tf32": mlp784,
    "mlp784_bf16": lambda: mlp784(True), "resnet18_bf16": resnet18, "copy": copy, "relu": lambda: stream(F.relu, 1),
    "gelu": lambda: stream(F.gelu, 1), "add": lambda: stream(torch.add, 2), "adamw": adamw,
}


def captured(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay():
        graph.replay()
        return loss
    return replay


class Workload:
    def __init__(self, name):
        torch.manual_seed(1)
        tf32 = "tf32" in name
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True
        if not CPU:
            torch.cuda.reset_peak_memory_stats()
        self.step = WORKLOADS[name]()
        if MODE == "graph":
            self.step = captured(self.step)
        self.loss = None
        runs = 4
        self.repeat(runs)
        while (seconds := self.repeat(runs)) < 0.2:
            runs *= 2
        self.runs = int(0.05 * runs / seconds) + 1

    def repeat(self, runs):
        begin = time.perf_counter()
        for _ in range(runs):
            self.loss = None  # its memory may be used again
            self.loss = self.step()
        synchronize()
        return time.perf_counter() - begin

    def result(self):
        loss = self.loss.item() if self.loss is not None and self.loss.numel() == 1 else float("nan")
        peak = (0, 0) if CPU else (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
        return f"{peak[0]} {peak[1]} {loss:.6g}"


def answer(command):
    """The words after "ok". The workload that is open is a global, so that nothing else keeps its memory."""
    global workload
    if command[0] == "version":
        return f"{torch.__version__} {torch.version.cuda} {torch.backends.cudnn.version()}"
    if command[0] == "open":
        workload = Workload(command[1])
        return ""
    if command[0] == "time":
        return f"{1e3 * workload.repeat(workload.runs) / workload.runs:.9f}"
    text, workload = workload.result(), None
    torch._dynamo.reset()
    gc.collect()
    if not CPU:
        torch.cuda.empty_cache()
    return text


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what PyTorch prints is no answer
    for line in sys.stdin:
        print("ok", answer(line.split()), file=out, flush=True)


main()
