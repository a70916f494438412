#!/usr/bin/env python3
"""Predicts the benchmarks of gpu.py on an H100 and an H200, by arithmetic: python3 tests/bench/predict.py LAUNCHES [--steps NAME]

LAUNCHES is build/emulator/launches. It makes each workload's plan in full size on the emulated GPU and tells, step by step, the launches,
the bytes of all operands and the operations (gpunn_profile's trace). A step takes LAUNCH for each of its launches, and then as long as its
bytes or its operations take, whichever is longer. A step without a launch of its own goes with another one's: see shared(). No GPU has
measured a prediction. --steps NAME prints each step of one workload, on an H100.

What bounds a workload is the part that takes most of its time: launches, memory or arithmetic. What PyTorch should take is reckoned in the
same way (PEERS) and is as little measured. Standard library only.
"""
import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(os.path.dirname(HERE))]
import gpu
from generator.tiling import CARDS as CHIPS, FAR, LAUNCH, STAGED, THREADS

COPY = {"H100": 3.0e12, "H200": 4.3e12}  # bytes a second of a device copy, read and written; measured on such cards
TENSOR = 798e12  # operations a second of an 8192^3 product in BF16, measured on both
# The same of the other precisions: as the datasheet's dense rates are to each other (989.4 in BF16 and F16, 494.7 in TF32, 66.9 in F32).
RATES = {"bf16": TENSOR, "f16": TENSOR, "tf32": TENSOR * 494.7 / 989.4, "f32": TENSOR * 66.9 / 989.4}
PRODUCTS = ("linear", "matmul", "conv1d", "conv2d", "conv3d", "scaled_dot_product_attention")
# Statistics come before what they normalise: x is read twice of x and y, x and dy twice of x, dy and dx.
PASSES = {("batch_norm", "forward"): 3 / 2, ("batch_norm", "backward"): 5 / 3}
BLOCK = 1024, 4 * 24 * 2048  # operations at most of a step that one block does, and of a layer's products (gpunn_cuda.cu, >>short)
EIGHT = 150  # clocks of eight multiplications by each of its threads, as said there
OUTSIDE = 1  # launches of a run beside its graph's: the kernel that brings the run's numbers
OPERATOR = 15e-6  # seconds of the host for each operator that PyTorch launches in training, eagerly; assumed

# block: one block does it, in a row with others
Step = collections.namedtuple("Step", "label kind launches bytes flops rate block", defaults=(False,))
Time = collections.namedtuple("Time", "launches memory arithmetic")


def precision(name):
    return next((dtype for dtype in RATES if name.endswith("_" + dtype)), "f32")


def steps_of(trace, name):
    """The steps of a trace, in which a launch takes 125 us."""
    for event in trace["traceEvents"]:
        words = event["name"].split(" [")[0].split()
        op = words[-2] if event["cat"] == "backward" else words[-1]
        work = event["args"]
        yield Step(event["name"], event["cat"], round(event["dur"] / 125), work["bytes"] * PASSES.get((op, event["cat"]), 1),
                   work["flops"], RATES[precision(name) if op in PRODUCTS else "f32"], work["flops"] <= BLOCK[op in PRODUCTS])


def in_rows(steps):
    """The same steps; of those small enough for one block only those are marked that share a launch."""
    for step, following in zip(steps, steps[1:] + steps[:1]):
        yield step._replace(block=step.block and (step.launches == 0 or following.launches == 0))


def shared(step, chip):
    """Seconds of a step that one block does in a row with others: it waits for the second-level cache, and has one multiprocessor."""
    return max(FAR, step.bytes / STAGED, EIGHT * step.flops / (2 * 8 * THREADS)) / (chip.gigahertz * 1e9)


def time_of(step, card):
    memory, arithmetic = step.bytes / COPY[card], step.flops / step.rate
    if step.block:
        return Time(step.launches * LAUNCH, 0, shared(step, CHIPS["H100"]))
    return Time(step.launches * LAUNCH, memory * (memory >= arithmetic), arithmetic * (memory < arithmetic))


def total(steps, card):
    times = [time_of(step, card) for step in steps]
    return Time(*map(sum, zip(*times)))


def bound(time):
    return f"{max(Time._fields, key=lambda field: getattr(time, field))} {100 * max(time) / sum(time):.0f} %"


# ---- PyTorch, by what its operators or the kernels of its compiler have to do ----
def moved(size, launches=1):
    return Step("", "", launches, size, 0, RATES["f32"])


def product(rows, inner, columns, size=2):
    return Step("", "", 1, size * (rows * inner + inner * columns + rows * columns), 2 * rows * inner * columns, TENSOR)


def attention(rows, width, length, back=1):
    return Step("", "", 1, 4 * back * 2 * rows * width, back * 4 * rows * length * width, TENSOR)


def bert(batch):
    """F16 throughout; GELU goes with the product before it, a sum with the norm behind it."""
    rows, width = 128 * batch, 768
    layer = [product(rows, width, width)] * 3 + [attention(rows, width, 128), product(rows, width, width)]
    return 12 * (layer + [product(rows, width, 4 * width), product(rows, 4 * width, width)] + [moved(3 * 2 * rows * width)] * 2)


def gpt2():
    """The sums of the residual stream are F32; each is one pass with the norm behind it, backward too."""
    rows, width, tokens = 8192, 768, 50304
    value, weights = 2 * rows * width, 12 * 12 * width * width + tokens * width
    products = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    layer = [product(rows, *sizes) for sizes in products] + [moved(6 * value)] * 2 + [moved(8 * value), attention(rows, width, 1024)]
    back = [product(columns, rows, inner) for inner, columns in products] + [product(rows, columns, inner) for inner, columns in products]
    back += [moved(9 * value)] * 2 + [moved(12 * value), attention(rows, width, 1024, 2.5)] + [moved(size * value) for size in (1, 1, 3)]
    head = [product(rows, width, tokens)] * 3 + [moved(2 * rows * tokens), moved(2 * 2 * rows * tokens)]
    return 12 * (layer + back) + head + [moved(2 * 6 * weights, 2 * 50), moved(28 * weights)]  # casts of weights and gradients


def resnet18(own):
    """Our convolutions, pools and norms, these in one launch more each; weights and gradients are cast."""
    return [step._replace(launches=step.launches + ("batch_norm" in step.label)) for step in own] + [moved(2 * 6 * 11689512, 2 * 62)]


# Workload: (the goal, how many times PyTorch's time by gpunn's is to be, seconds of PyTorch's by our steps)
PEERS = {
    "mlp20": ("eager PyTorch", 20, lambda own, card: 16 * OPERATOR),
    "lenet4": ("eager PyTorch", 20, lambda own, card: 36 * OPERATOR),
    "mlp784_bf16": ("reduce-overhead", 1.1, lambda own, card: 28 * LAUNCH + sum(total(own, card)[1:])),
    "resnet18_bf16": ("max-autotune", 1, lambda own, card: sum(total(resnet18(own), card))),
    "bert8_f16": ("max-autotune", 1, lambda own, card: sum(total(bert(8), card))),
    "bert32_f16": ("max-autotune", 1, lambda own, card: sum(total(bert(32), card))),
    "gpt2_bf16": ("max-autotune", 1, lambda own, card: sum(total(gpt2(), card))),
    **{name: ("a copy", 0.9, lambda own, card, bytes=gpu.WORKLOADS[name].bytes: bytes / COPY[card]) for name in ("relu", "gelu", "add", "adamw")},
}


def plans(program, names):
    """{workload: its steps}. A run's numbers are a step; of a lone update and of PyTorch's copy gpu.py tells the bytes."""
    with tempfile.TemporaryDirectory() as folder:
        known = [name for name in names if name != "copy"]
        done = subprocess.run([os.path.abspath(program), "--trace", folder, *known], stdout=subprocess.PIPE, text=True, check=True)
        said = dict(line.split(": ") for line in done.stdout.splitlines() if line.endswith(" launches"))
        for name in names:
            path = os.path.join(folder, name + ".json")
            numbers = [moved(0, OUTSIDE)._replace(label="the run's numbers")] if name != "copy" else []
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    steps = list(in_rows(list(steps_of(json.load(file), name))))
            else:
                steps = [moved(gpu.WORKLOADS[name].bytes)._replace(label=name)]
            launches = int(said.get(name, "1 launches").split()[0])
            if sum(step.launches for step in steps) != launches:
                raise SystemExit(f"{name}: the steps have {sum(step.launches for step in steps)} launches, its graph has {launches}")
            yield name, numbers + steps


def row(name, steps):
    """A line of the table, of each card two columns."""
    cells = [name, str(sum(step.launches for step in steps)), f"{sum(step.bytes for step in steps) / 1e6:.4g}",
             f"{sum(step.flops for step in steps) / 1e9:.4g}"]
    peer, times, seconds = PEERS.get(name, ("", 0, None))
    for card in COPY:
        own = total(steps, card)
        cells += [f"{1e6 * sum(own):.4g}", bound(own)]
        if seconds:
            theirs = seconds(steps, card)
            cells.append(f"{1e6 * theirs:.4g}: {theirs / sum(own):.2f}" + (" **misses**" if theirs / sum(own) < times else ""))
        else:
            cells.append("-")
    return "| " + " | ".join(cells + [f"{times} x {peer}" if seconds else "-"]) + " |"


def table(rows):
    head = ["workload", "launches", "MB", "GFLOP"]
    for card in COPY:
        head += [f"{card} us", "bound by", "PyTorch us: ratio"]
    yield "| " + " | ".join(head + ["goal"]) + " |"
    yield "|---" * (len(head) + 1) + "|"
    for name, steps in rows:
        yield row(name, steps)


def step_table(steps):
    yield "| step | launches | MB | GFLOP | H100 us | bound by |\n|---|---|---|---|---|---|"
    for step in steps:
        time = time_of(step, "H100")
        yield (f"| {step.label} | {step.launches} | {step.bytes / 1e6:.4g} | {step.flops / 1e9:.4g} | {1e6 * sum(time):.2f} | "
               f"{bound(time)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--steps", metavar="NAME")
    options = parser.parse_args()
    rows = plans(options.program, [options.steps] if options.steps else gpu.WORKLOADS)
    for line in step_table(next(rows)[1]) if options.steps else table(rows):
        print(line)


if __name__ == "__main__":
    main()
