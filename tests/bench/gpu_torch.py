"""PyTorch's side of the benchmarks on a GPU. It does what tests/bench/gpu.py asks for on stdin, as
gpu_bench.c does.

    gpu_torch.py MODE [--cpu] [--small]

MODE is eager, graph, version or a mode of torch.compile. compile, reduce-overhead and max-autotune compile
the model, the loss and the update in that mode. With max-autotune the update, which has no products, is
compiled in reduce-overhead. graph captures the eager step by hand into one CUDA graph. PyTorch gets what
makes it fast: cudnn.benchmark, fused updates if available, channels_last for the ResNet, autocast for BF16
training (with F32 master weights, as in gpunn), F16 weights for inference. TF32 is used only if the workload
says so. Weights and inputs are gpunn's: workloads.h draws the same numbers."""
import gc
import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

import bench_torch

MODE = sys.argv[1]
CPU, SMALL = "--cpu" in sys.argv, "--small" in sys.argv
DEVICE = torch.device("cpu" if CPU else "cuda")


def synchronize():
    if not CPU:
        torch.cuda.synchronize()


def compiled(function, mode=MODE):
    if mode in ("eager", "graph"):
        return function
    return torch.compile(function, mode=None if mode == "compile" else mode)


def training(model, optimizer, criterion, x, y, half=False):
    def forward():
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=half):
            return criterion(model(x), y)

    write_weights(model)
    forward, update = compiled(forward), compiled(optimizer.step,
                                                  "reduce-overhead" if MODE == "max-autotune" else MODE)

    def step():
        if MODE in ("reduce-overhead", "max-autotune"):
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        loss = forward()
        loss.backward()
        update()
        return loss
    return step


def classes(batch, count):
    return bench_torch.classes(batch, count).to(DEVICE)


def noise(*shape, row=0):
    """As in workloads.h: number i of that row at element i."""
    count = 1
    for size in shape:
        count *= size
    h = torch.arange(count, device=DEVICE).add_(row * 0x9E3779B9).bitwise_and_(0xFFFFFFFF)
    for shift, factor in (16, 0x7FEB352D), (15, 0x846CA68B):
        h.bitwise_xor_(h >> shift).mul_(factor).bitwise_and_(0xFFFFFFFF)
    return (h.bitwise_xor_(h >> 16) >> 8).float().div_(8388608).sub_(1).reshape(shape)


@torch.no_grad()
def write_weights(model):
    """workloads.h's write_weights, for parameters in the same order."""
    weights = 0
    for name, p in model.named_parameters():
        if p.dim() > 1:
            p.copy_(noise(*p.shape, row=16 + weights) / (p.numel() / p.shape[0]) ** 0.5)
            weights += 1
        elif name.endswith("bias"):
            p.zero_()


def fused(optimizer, model, **options):
    """torch.compile fuses updates itself. A step captured by hand keeps its count on the GPU."""
    options["fused"] = MODE in ("eager", "graph")
    if MODE == "graph" and optimizer is not torch.optim.SGD:
        options["capturable"] = True
    made = optimizer(model.parameters(), **options)
    if options.get("momentum"):
        # Zeros give the same first step. A buffer made within a CUDA graph would be overwritten.
        for p in model.parameters():
            made.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return made


def mlp20():
    model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 1), nn.Sigmoid()).to(DEVICE)
    y = (torch.arange(32, device=DEVICE) % 2).float()[:, None]
    return training(model, fused(torch.optim.SGD, model, lr=0.01), nn.BCELoss(), noise(32, 20), y)


def lenet(batch):
    batch = 4 if SMALL else batch
    model = bench_torch.LeNet().to(DEVICE)
    optimizer = fused(torch.optim.SGD, model, lr=0.001, momentum=0.9)
    return training(model, optimizer, nn.CrossEntropyLoss(), noise(batch, 3, 32, 32), classes(batch, 10))


def mlp784(half=False):
    batch, width = (16, 32) if SMALL else (512, 1024)
    model = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                          nn.Linear(width, 10)).to(DEVICE)
    optimizer = fused(torch.optim.Adam, model, lr=0.001)
    return training(model, optimizer, nn.CrossEntropyLoss(), noise(batch, 784), classes(batch, 10), half)


def resnet18():
    batch, side = (2, 64) if SMALL else (64, 224)
    model = bench_torch.resnet(1000).to(DEVICE, memory_format=torch.channels_last).train()
    optimizer = fused(torch.optim.SGD, model, lr=0.001, momentum=0.9)
    x = noise(batch, 3, side, side).contiguous(memory_format=torch.channels_last)
    return training(model, optimizer, nn.CrossEntropyLoss(), x, classes(batch, 1000), True)


def bert(batch):
    batch, layers, width, heads, rows = (2, 2, 64, 2, 16) if SMALL else (batch, 12, 768, 12, 128)
    model = nn.Sequential(*[bench_torch.BertLayer(width, heads) for _ in range(layers)]).to(DEVICE).eval()
    write_weights(model)
    model, x = model.half(), noise(batch, rows, width).half()
    forward = compiled(model)

    def step():
        with torch.inference_mode():
            return forward(x)
    return step


def gpt2():
    batch, layers, width, heads, rows, tokens = (2, 2, 64, 2, 16, 128) if SMALL else (
        8, 12, 768, 12, 1024, 50304)
    model = bench_torch.Gpt(layers, width, heads, rows, tokens).to(DEVICE)
    optimizer = fused(torch.optim.AdamW, model, lr=1e-4, weight_decay=0.0)
    x = classes(batch * rows, tokens)
    return training(model, optimizer, nn.CrossEntropyLoss(), x.reshape(batch, rows), x, True)


def register(side):
    model = bench_torch.Registration(8 if SMALL else side).to(DEVICE)
    volume = model.field.shape[1:4]
    return training(model, fused(torch.optim.Adam, model, lr=0.1), lambda loss, _: loss,
                    (noise(1, 1, *volume), noise(1, 1, *volume, row=1)), None)


def stream(function, operands):
    """Of 256 MiB."""
    values, function = ([noise(64, 1 << (10 if SMALL else 20), row=i) for i in range(operands)],
                        compiled(function))

    def step():
        with torch.no_grad():
            return function(*values)
    return step


def copy():
    source = noise(64, 1 << (10 if SMALL else 20))
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def adamw():
    values = noise(100000 if SMALL else 100000000)
    model = nn.ParameterList([nn.Parameter(values)])
    model[0].grad = values.clone()
    update = compiled(fused(torch.optim.AdamW, model, lr=0.001).step)
    return lambda: update()


WORKLOADS = {
    "mlp20": mlp20, "lenet4": lambda: lenet(4), "lenet4096": lambda: lenet(4096), "mlp784_f32": mlp784,
    "mlp784_tf32": mlp784, "mlp784_bf16": lambda: mlp784(True), "resnet18_bf16": resnet18,
    "bert8_f16": lambda: bert(8), "bert32_f16": lambda: bert(32),
    "gpt2_bf16": gpt2, "register48": lambda: register(48), "register192": lambda: register(192), "copy": copy,
    "relu": lambda: stream(F.relu, 1),
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
    replay.step = step  # the model and its inputs must outlive this call
    return replay


class Workload:
    def __init__(self, name):
        torch.manual_seed(1)
        tf32 = "tf32" in name
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True
        self.step = WORKLOADS[name]()
        self.loss = None
        if MODE == "graph":
            self.step = captured(self.step)  # after four steps
        else:
            self.repeat(4)
        self.repeat(4)
        self.value = self.result()
        runs = 4
        while (seconds := self.repeat(runs)) < 0.2:
            runs *= 2
        self.runs = int(0.05 * runs / seconds) + 1
        # memory for drawing the numbers, compiling and choosing kernels does not count
        if not CPU:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.repeat(2)

    def repeat(self, runs):
        begin = time.perf_counter()
        for _ in range(runs):
            self.loss = None  # its memory may be used again
            self.loss = self.step()
        synchronize()
        return time.perf_counter() - begin

    @torch.no_grad()
    def result(self):
        """The loss, or gpu_bench.c's sum of an output."""
        if self.loss is None or self.loss.numel() == 1:
            return float("nan") if self.loss is None else self.loss.item()
        y = self.loss.flatten()
        return ((y * noise(y.numel(), row=1000)).sum(dtype=torch.float64) / y.numel() ** 0.5).item()

    def report(self):
        peak = (0, 0) if CPU else (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
        return f"{peak[0]} {peak[1]} {self.value:.6g}"


def answer(command):
    """The words after "ok". The open workload is a global, so that nothing else keeps its memory."""
    global workload
    if command[0] == "version":
        return f"{torch.__version__} {torch.version.cuda} {torch.backends.cudnn.version()}"
    if command[0] == "open":
        workload = Workload(command[1])
        return ""
    if command[0] == "time":
        return f"{1e3 * workload.repeat(workload.runs) / workload.runs:.9f}"
    text, workload = workload.report(), None
    torch._dynamo.reset()
    gc.collect()
    if not CPU:
        torch.cuda.empty_cache()
    return text


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # PyTorch's own output is no answer
    for line in sys.stdin:
        print("ok", answer(line.split()), file=out, flush=True)


main()
