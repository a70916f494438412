#!/usr/bin/env python3
"""Image networks of torchvision and timm with random weights, beside ONNX Runtime and PyTorch, as a table.

    pip install onnxruntime torch torchvision timm && ninja build/run_model
    python3 tests/bench/zoo.py [--batch 1,8] [NAME ...]

A NAME is a function of torchvision.models, or timm:NAME. Each network is exported by export_torch and, for
ONNX Runtime, by export_onnx. The difference is the largest from ONNX Runtime's values, relative to their
largest. Times are best runs in ms on one and on two threads, in turns; a ratio, the peer's time by gpunn's,
is the median over rounds. PyTorch runs its frozen TorchScript module. A row comes as soon as it is
measured."""
import argparse
import os
import statistics
import sys
import tempfile
import time

import numpy
import torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
from generator import export_onnx, export_torch
from generator.exchange import tensor_files
from generator.exchange.spec_writer import save_safetensors
from tests.bench.real_models import REPEATS, THREADS, as_array, best_of, difference, run_model, session_of

NAMES = ("mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "squeezenet1_1", "shufflenet_v2_x1_0",
         "resnet50", "densenet121", "vit_b_16", "convnext_tiny", "timm:mobilenetv4_conv_small",
         "timm:efficientvit_b0", "timm:edgenext_small")


def network(name):
    """The module in evaluation, with running statistics that do more than nothing."""
    torch.manual_seed(0)
    if name.startswith("timm:"):
        import timm
        net = timm.create_model(name[5:], pretrained=False)
    else:
        import torchvision
        net = getattr(torchvision.models, name)(weights=None)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return net.eval()


def best_of_torch(module, x, threads):
    """The best time in ms."""
    torch.set_num_threads(threads)
    times = []
    with torch.inference_mode():
        for _ in range(REPEATS + 2):
            start = time.perf_counter()
            module(x)
            times.append(time.perf_counter() - start)
    return 1e3 * min(times[2:])


def frozen(net, x):
    with torch.no_grad():
        return torch.jit.freeze(torch.jit.trace(net, x))


def cells(name, batch, rounds, folder):
    """The cells of a row: the difference; for each number of threads gpunn's time and two ratios."""
    path, net = os.path.join(folder, "model"), network(name)
    x = torch.rand(batch, 3, 224, 224) * 2 - 1
    export_torch.export(net, (x,), path + ".json", path + ".safetensors")
    export_onnx.export(path + ".json", path + ".safetensors", path + ".onnx")
    peer, session = frozen(net, x), session_of(path + ".onnx", 1)
    inputs = {session.get_inputs()[0].name: x.numpy()}
    save_safetensors(path + ".in",
                     {key: tensor_files.for_gpunn(as_array(value)) for key, value in inputs.items()})
    run_model(path, 1)
    row = ["%.1e" % difference(path, [one.name for one in session.get_outputs()], session.run(None, inputs))]
    for threads in THREADS if rounds else ():
        session = session_of(path + ".onnx", threads)
        times = [(run_model(path, threads, REPEATS), best_of(session, inputs),
                  best_of_torch(peer, x, threads)) for _ in range(rounds)]
        row += ["%.3g" % statistics.median(own for own, _, _ in times)]
        row += ["%.2f" % statistics.median(one[i] / one[0] for one in times) for i in (1, 2)]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    parser.add_argument("--batch", default="1,8", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3, help="0: values only")
    options = parser.parse_args()
    head = ["network", "batch", "difference"]
    for threads in THREADS if options.rounds else ():
        head += ["ms, %d" % threads, "ONNX Runtime, %d" % threads, "PyTorch, %d" % threads]
    print("| %s |\n|%s" % (" | ".join(head), "---|" * len(head)), flush=True)
    for name in options.names:
        for batch in map(int, options.batch.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                row = [name, str(batch)] + cells(name, batch, options.rounds, folder)
            print("| %s |" % " | ".join(row), flush=True)


if __name__ == "__main__":
    main()
