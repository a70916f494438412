#!/usr/bin/env python3
"""Times generated kernels on a GPU against PyTorch, and prints a table: python3 tests/bench/fused_gpu.py
[--build] [--json FILE] [NAME ...]

Each case is a group of ops between heavy ones, forward and backward. fused_gpu.cu runs the group's kernels
alone. PyTorch runs the same functions op by op ("eager", which is also how gpunn runs without generated
kernels), and under torch.compile as one graph. All are captured into a CUDA graph, so the host's work does
not count. They are compared with the bandwidth of a copy on the same GPU, by the bytes that the fused kernels
have to move. Microseconds are medians. It needs nvcc and, for the other columns, torch, which runs for at
most --seconds. --build only compiles; --built uses what --build compiled."""
import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [ROOT, os.path.join(ROOT, "tests", "gpu")]
import toolkit
from generator import emit_c, emit_cuda, lower, partition, schedule, spec
from generator.program import KernelSet

ELEMENTS = 1 << 26  # elements of the widest tensor, so that it does not fit the second-level cache
ADAMW = {"kind": "adamw", "momentum": 0.0, "dampening": 0.0, "beta1": 0.9, "beta2": 0.999, "alpha": 0.0,
         "eps": 1e-8, "nesterov": False,
         "centered": False, "maximize": False, "decoupled": False, "half_dtype": "bf16"}


def rows(width, *ops, **more):
    """Ops on x and r, [N, width], which come from ops that no kernel includes. The last one, y, is read by
    such an op."""
    ahead = [{"op": "input", "name": "i", "shape": ["N", 8]},
             {"op": "parameter", "name": "b", "shape": [width]},
             {"op": "linear", "name": "both", "inputs": ["i"], "out_features": 2 * width, "bias": False},
             {"op": "slice", "id": "x", "inputs": ["both"], "dim": 1, "start": 0, "end": width},
             {"op": "slice", "id": "r", "inputs": ["both"], "dim": 1, "start": width, "end": 2 * width}]
    behind = [{"op": "linear", "name": "head", "inputs": ["y"], "out_features": 8},
              {"op": "mean", "id": "loss", "inputs": ["head"]}]
    return {"width": width, "tensors": ahead + list(ops) + behind, **more}


def images(channels, side, *ops):
    ahead = [{"op": "input", "name": "i", "shape": ["N", 8, side, side]},
             {"op": "conv2d", "name": "x", "inputs": ["i"], "out_channels": channels, "kernel_size": 1,
              "bias": False},
             {"op": "max_pool2d", "id": "r", "inputs": ["x"], "kernel_size": 3, "stride": 1, "padding": 1}]
    behind = [{"op": "conv2d", "name": "head", "inputs": ["y"], "out_channels": 8, "kernel_size": 1},
              {"op": "mean", "id": "loss", "inputs": ["head"]}]
    return {"width": channels * side * side, "tensors": ahead + list(ops) + behind}


def classes(width):
    return {"width": width, "loss": True, "tensors": [
        {"op": "input", "name": "i", "shape": ["N", 8]},
        {"op": "linear", "name": "x", "inputs": ["i"], "out_features": width, "bias": False},
        {"op": "input", "name": "labels", "dtype": "i64", "shape": ["N"]},
        {"op": "cross_entropy", "id": "loss", "inputs": ["x", "labels"]}]}


def add_norm(op, width):
    return rows(width, {"op": "add", "id": "z", "inputs": ["x", "r"]},
                {"op": op, "name": "y", "inputs": ["z"]})


BIAS = {"op": "add", "id": "z", "inputs": ["x", "b"]}
# Name: (the group, what PyTorch computes from x, r, b, weight and labels; None: see torch_case).
CASES = {
    "bias + relu": (rows(4096, BIAS, {"op": "relu", "id": "y", "inputs": ["z"]}), "F.relu(x + b)"),
    "bias + gelu_tanh": (rows(4096, BIAS, {"op": "gelu_tanh", "id": "y", "inputs": ["z"]}),
                         "F.gelu(x + b, approximate='tanh')"),
    "bias + gelu": (rows(4096, BIAS, {"op": "gelu", "id": "y", "inputs": ["z"]}), "F.gelu(x + b)"),
    "swiglu": (rows(4096, {"op": "silu", "id": "z", "inputs": ["x"]},
                    {"op": "mul", "id": "y", "inputs": ["z", "r"]}), "F.silu(x) * r"),
    "dropout + residual": (rows(4096, {"op": "dropout", "id": "z", "inputs": ["x"], "p": 0.1},
                                {"op": "add", "id": "y", "inputs": ["z", "r"]}), "F.dropout(x, 0.1) + r"),
    **{"residual + layer_norm, %d" % width: (add_norm("layer_norm", width),
                                             "F.layer_norm(x + r, (%d,), weight, b)" % width)
       for width in (256, 768, 1024, 4096)},
    **{"residual + rms_norm, %d" % width:
       (add_norm("rms_norm", width), "F.rms_norm(x + r, (%d,), weight)" % width) for width in (1024, 4096)},
    "softmax, 1024": (rows(1024, {"op": "mul_scalar", "id": "z", "inputs": ["x"], "value": 0.125},
                           {"op": "softmax", "id": "y", "inputs": ["z"], "dim": 1}),
                      "F.softmax(x * 0.125, 1)"),
    "batch_norm + add + relu": (images(256, 28, {"op": "batch_norm2d", "name": "n", "inputs": ["x"]},
                                       {"op": "add", "id": "z", "inputs": ["n", "r"]},
                                       {"op": "relu", "id": "y", "inputs": ["z"]}), None),
    **{"cross entropy, %d" % width: (classes(width), "F.cross_entropy(x.float(), labels)")
       for width in (1000, 32768, 50304, 131072)},
   }


def kernel_set(names):
    """The groups' kernels as one set, and for each case its kernel."""
    kernels, found = [], {}
    for name in names:
        case = CASES[name][0]
        text = {"gpunn_spec": 1, "name": "case", "precision": "bf16", "tensors": case["tensors"],
                "loss": "loss"}
        made = partition.partition(spec.parse(json.dumps(text), name), name="case").kernels
        wanted = [one for one in made if one.forward and (one.loss if case.get("loss") else one.backward) and
                  one.layout in ("any", "last")]
        if len(wanted) != 1:
            sys.exit("%s: %d groups instead of one: %s" % (name, len(wanted), [one.formula for one in made]))
        found[name] = dataclasses.replace(wanted[0], name="g%d" % len(kernels))
        kernels.append(found[name])
    return (KernelSet("fused_gpu", "0" * 64, "python3 tests/bench/fused_gpu.py", "auto", 0, tuple(kernels),
                      (), (), (ADAMW,)), found)


def case_lines(found, small):
    """The table that fused_gpu.cu includes. For each program: name, kernel, direction, batch, bytes and
    operands' bytes."""
    for name, kernel in found.items():
        batch = max(1, (ELEMENTS >> 14 if small else ELEMENTS) // CASES[name][0]["width"])
        for direction in ("forward", "backward"):
            program = getattr(kernel, direction)
            if program is None:
                continue
            fixed, per_batch = program.bytes_per_batch
            sizes = ["{%d, %d}" % (lower.BYTES[one.dtype] * (one.count[0] + one.count[1] * batch),
                                   one.dtype in schedule.STORED)
                     for one in program.operands if one.role != "stat"]
            yield 'CASE("%s, %s", %s, %d, %d, %d, %s)' % (
                name, direction, kernel.name[1:], emit_cuda.DIRECTIONS.index(direction), batch,
                fixed + per_batch * batch, ", ".join(sizes))


def build(folder, names, small=False):
    """Writes the sources and returns the nvcc command."""
    kernels, found = kernel_set(names)
    os.makedirs(folder, exist_ok=True)
    for file, text in (("fused_gpu_kernels.h", emit_c.emit_header(kernels)),
                       ("fused_gpu_kernels.cu", emit_cuda.emit_cuda(kernels)),
                       ("fused_gpu_cases.h", "\n".join(case_lines(found, small)) + "\n")):
        with open(os.path.join(folder, file), "w", encoding="ascii") as out:
            out.write(text)
    nvcc = toolkit.Toolkit()
    if nvcc.nvcc is None:
        sys.exit("nvcc was not found: NVCC names one")
    return [nvcc.nvcc, "-std=c++17", "-O3", *nvcc.target()[0], *nvcc.flags, "-I" + ROOT, "-I" + folder,
            os.path.join(HERE, "fused_gpu.cu"), os.path.join(folder, "fused_gpu_kernels.cu"), "-o",
            os.path.join(folder, "fused_gpu")]


# ---- PyTorch -----------------------------------------------------------------------------------------------
def torch_case(name, device, elements):
    """(PyTorch's function of x and r; these inputs; all that need gradients)."""
    import torch
    from torch.nn import functional as F
    torch._dynamo.reset()  # it compiles only a limited number of functions without a file
    case, text = CASES[name]
    width = case["width"]
    batch = max(1, elements // width)

    def tensor(*shape):
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    if text is None:
        norm = torch.nn.BatchNorm2d(256, device=device)
        x, r = (tensor(batch, 256, 28, 28).to(memory_format=torch.channels_last).requires_grad_()
                for _ in range(2))
        return lambda x, r: F.relu(norm(x) + r), (x, r), (x, r, norm.weight, norm.bias)
    b, weight, x, r = (one.requires_grad_()
                       for one in (tensor(width), tensor(width), tensor(batch, width), tensor(batch, width)))
    names = {"F": F, "b": b, "weight": weight, "labels": torch.zeros(batch, device=device, dtype=torch.int64)}
    exec("def function(x, r):\n    return " + text, names)  # from the table above; the compiler rejects eval
    return names["function"], (x, r), (x, r, b, weight)


def torch_times(names, seconds):
    """{"name, direction": {"eager": us, "compile": us}}. Cases for which the time is not enough are reported
    as cut off."""
    try:
        import torch
    except (ImportError, OSError) as error:
        print("# PyTorch: %s" % error)
        return {}

    def microseconds(function):
        ahead, times = torch.cuda.Stream(), []
        ahead.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(ahead):  # as a capture requires
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(ahead)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        for _ in range(28):  # as many as fused_gpu.cu's
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(1000 * begin.elapsed_time(end))
        return statistics.median(times[3:])

    result, end = {}, time.monotonic() + seconds
    for name in names:
        for mode in ("eager", "compile"):
            if time.monotonic() > end:
                print("# %s, %s: cut off, no time was left" % (name, mode))
                continue
            try:
                function, inputs, leaves = torch_case(name, "cuda", ELEMENTS)
                if mode == "compile":
                    function = torch.compile(function, fullgraph=True, dynamic=False)
                dy = torch.ones_like(function(*inputs))
                both = microseconds(
                    lambda: torch.autograd.grad(function(*inputs), leaves, dy, allow_unused=True))
                forward = microseconds(lambda: function(*inputs))
            except Exception as error:  # one case that PyTorch cannot compile does not stop the others
                print("# %s, %s: %s" % (name, mode, (str(error).splitlines() or [type(error).__name__])[0]))
                continue
            parts = ({"forward": both} if CASES[name][0].get("loss") else
                     {"forward": forward, "backward": both - forward})
            for direction, us in parts.items():
                result.setdefault("%s, %s" % (name, direction), {})[mode] = us
            del function, inputs, leaves, dy
            torch.cuda.empty_cache()
    return result


def save(path, own, peers):
    if path:
        with open(path, "w") as file:
            json.dump({name: {"us": us, "bytes": moved, **peers.get(name, {})}
                       for name, (us, moved) in own.items()}, file, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="of: " + "; ".join(CASES))
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--built", action="store_true")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--json")
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "gpu"))
    options = parser.parse_args()
    names = options.names or list(CASES)
    if not options.built:
        subprocess.run(build(options.work, names), check=True)
    if options.build:
        return
    own, end, path = {}, time.monotonic() + options.seconds, os.path.join(options.work, "fused_gpu")
    if not os.path.exists(path):
        sys.exit("%s is not there: --build makes it" % path)
    with subprocess.Popen([path], stdout=subprocess.PIPE, text=True) as program:
        for line in program.stdout:
            print("# " + line, end="", flush=True)
            name, us, moved = line.rsplit("|", 2)
            own[name] = float(us), float(moved)
    if program.returncode:
        sys.exit("fused_gpu ended with %d" % program.returncode)
    copy = own["copy"][1] / own["copy"][0]  # bytes in a microsecond
    save(options.json, own, {})
    peers = torch_times(names, end - time.monotonic())
    print("| kernels | MB | us | GB/s | % of copy | eager us | compile us |\n|---|---|---|---|---|---|---|")
    for name, (us, moved) in own.items():
        others = ["%.1f" % peers[name][mode] if mode in peers.get(name, {}) else "-"
                  for mode in ("eager", "compile")]
        print("| %s | %.0f | %.1f | %.0f | %.0f | %s |" %
              (name, moved / 1e6, us, moved / us / 1e3, 100 * moved / us / copy, " | ".join(others)))
    save(options.json, own, peers)


if __name__ == "__main__":
    main()
