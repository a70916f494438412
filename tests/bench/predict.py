#!/usr/bin/env python3
"""Predicts gpu.py's benchmarks on an H100 and an H200: python3 tests/bench/predict.py LAUNCHES [--steps NAME]

LAUNCHES is build/emulator/launches. It makes each workload's plan in full size on the emulated GPU. Its trace
has each step's launches, the bytes of all operands and the operations. A step takes LAUNCH for each of its
launches, and then as long as its bytes or its operations take, whichever is longer. A small step that shares
a launch with others is done by one block: see shared(). Launches beside others, on a branch of the graph,
take no time by themselves. What they read does, as if all else waited: see check(). No GPU has measured a
prediction. --steps NAME prints each step of one workload, on an H100.

What bounds a workload is the part that takes most of its time: launches, memory or arithmetic. What PyTorch
should take is reckoned in the same way (PEERS) and is as little measured. Standard library only."""
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

# Measured on such cards: bytes per second of a device copy (read and written), and operations of an 8192^3
# product in BF16.
COPY, TENSOR = {"H100": 3.0e12, "H200": 4.3e12}, 798e12
# Other precisions are scaled by the datasheet's dense rates, with 989.4 for BF16 (F16 the same, TF32 494.7,
# F32 66.9).
RATES = {"bf16": TENSOR, "f16": TENSOR, "tf32": TENSOR * 494.7 / 989.4, "f32": TENSOR * 66.9 / 989.4}
PRODUCTS = ("linear", "matmul", "conv1d", "conv2d", "conv3d", "scaled_dot_product_attention")
# Statistics come before what they normalise, so the forward pass reads x twice, and the backward pass x and
# dy twice.
PASSES = {("batch_norm", "forward"): 3 / 2, ("batch_norm", "backward"): 5 / 3}
# the most operations for one block, and for products (gpunn_cuda.cu, >>short)
BLOCK = 1024, 4 * 24 * 2048
# how often a block that makes an update waits for the second-level cache: gradients, twice the decision,
# parameters
UPDATE = 4
EIGHT = 150  # clocks of eight multiplications per thread, as in >>short
CACHE = 5.5e12  # bytes per second from the second-level cache, of 50 MB; assumed
# bytes of a gradient that the cache still holds for the kernel that checks for values that are not finite
KEPT = 32 << 20
OUTSIDE = 1  # launches per run besides its graph: the kernel that sets the run's numbers
OPERATOR = 15e-6  # seconds of the host per operator that PyTorch launches in eager training; assumed

# block: one block does the step, in a row with others. cached: bytes from the second-level cache. waits: one
# after another, of a block for that cache
Step = collections.namedtuple("Step", "label launches bytes flops rate block cached waits",
                              defaults=(False, 0, 1))
Time = collections.namedtuple("Time", "launches memory arithmetic")
CHECKED = "check of gradients"  # PyTorch has none


def precision(name):
    return next((dtype for dtype in RATES if name.endswith("_" + dtype)), "f32")


def steps_of(trace, name):
    """The steps of a trace, in which each launch takes 125 us."""
    for event in trace["traceEvents"]:
        words = event["name"].split(" [")[0].split()
        op = words[-2] if event["cat"] == "backward" else words[-1]
        is_product, flops = op in PRODUCTS, event["args"]["flops"]
        size = event["args"]["bytes"] * PASSES.get((op, event["cat"]), 1)
        rate, launches = RATES[precision(name) if is_product else "f32"], round(event["dur"] / 125)
        if event["cat"] == "update":
            launches = min(launches, 1)  # without the check of gradients; 0: the steps' last launch does it
            yield Step(event["name"], launches, size, flops, rate, launches == 0, waits=UPDATE)
            continue
        yield Step(event["name"], launches, size, flops, rate, flops <= BLOCK[is_product])


def in_rows(steps):
    """The same steps. Of those that are small enough for one block, only those that share a launch are
    marked."""
    for step, following in zip(steps, steps[1:] + steps[:1]):
        yield step._replace(block=step.block and (step.launches == 0 or following.launches == 0))


def shared(step, chip):
    """The seconds of a step that one block does in a row with others, after a wait for the second-level
    cache."""
    return max(step.waits * FAR, step.bytes / STAGED, EIGHT * step.flops / (2 * 8 * THREADS)) / (
        chip.gigahertz * 1e9)


def check(total, row, launches, gradients):
    """The cost of the check of gradients, for a step with so many launches and gradients of these bytes.
    `row` of `total` launches follow one another. The last kernel is among these, or the update does its work.
    If kernels run beside the steps, each checks a gradient that has just been written. Otherwise one checks
    all of them."""
    beside = total - row
    if not 0 <= row - launches <= 1:
        raise SystemExit(f"the steps have {launches} launches, and {row} of the graph's follow one another")
    pieces = gradients if beside > 1 else [sum(gradients)]
    cached = sum(size for size in pieces if size <= KEPT)
    return moved(sum(gradients) - cached, row - launches)._replace(label=CHECKED, cached=cached)


def time_of(step, card):
    memory, arithmetic = step.bytes / COPY[card] + step.cached / CACHE, step.flops / step.rate
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
    return Step("", launches, size, 0, RATES["f32"])


def product(rows, inner, columns, size=2):
    values = rows * inner + inner * columns + rows * columns
    return Step("", 1, size * values, 2 * rows * inner * columns, TENSOR)


def attention(rows, width, length, back=1):
    return Step("", 1, 4 * back * 2 * rows * width, back * 4 * rows * length * width, TENSOR)


def bert(batch):
    """F16 throughout. GELU is fused with the product before it, a sum with the norm after it."""
    rows, width = 128 * batch, 768
    layer = [product(rows, width, width)] * 4 + [attention(rows, width, 128), moved(3 * 2 * rows * width)]
    feed_forward = [product(rows, width, 4 * width), product(rows, 4 * width, width),
                    moved(3 * 2 * rows * width)]
    return 12 * (layer + feed_forward)


def gpt2():
    """The sums of the residual stream are F32. Each is one pass with the norm after it, backward too."""
    rows, width, tokens = 8192, 768, 50304
    value, weights = 2 * rows * width, 12 * 12 * width * width + tokens * width
    sizes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    layer = [product(rows, *size) for size in sizes] + [moved(6 * value)] * 2
    layer += [moved(8 * value), attention(rows, width, 1024)]
    back = [product(columns, rows, inner) for inner, columns in sizes]
    back += [product(rows, columns, inner) for inner, columns in sizes] + [moved(9 * value)] * 2
    back += [moved(12 * value), attention(rows, width, 1024, 2.5)] + [
        moved(times * value) for times in (1, 1, 3)]
    head = [product(rows, width, tokens)] * 3 + [moved(2 * rows * tokens), moved(2 * 2 * rows * tokens)]
    casts = moved(2 * 6 * weights, 2 * 50)  # of weights and gradients
    return 12 * (layer + back) + head + [casts, moved(28 * weights)]


def resnet18(own):
    """gpunn's convolutions, pools and norms, with one more launch for each norm; weights and gradients are
    cast."""
    steps = [step._replace(launches=step.launches + ("batch_norm" in step.label)) for step in own]
    return steps + [moved(2 * 6 * 11689512, 2 * 62)]


def copied(name):
    return lambda own, card: gpu.WORKLOADS[name].bytes / COPY[card]


# Workload: (the intended ratio of PyTorch's time to gpunn's, seconds of PyTorch's from gpunn's steps)
PEERS = {
    "mlp20": ("eager PyTorch", 20, lambda own, card: 16 * OPERATOR),
    "lenet4": ("eager PyTorch", 20, lambda own, card: 36 * OPERATOR),
    "mlp784_bf16": ("reduce-overhead", 1.1, lambda own, card: 28 * LAUNCH + sum(total(own, card)[1:])),
    "resnet18_bf16": ("max-autotune", 1, lambda own, card: sum(total(resnet18(own), card))),
    "bert8_f16": ("max-autotune", 1, lambda own, card: sum(total(bert(8), card))),
    "bert32_f16": ("max-autotune", 1, lambda own, card: sum(total(bert(32), card))),
    "gpt2_bf16": ("max-autotune", 1, lambda own, card: sum(total(gpt2(), card))),
    **{name: ("a copy", 0.9, copied(name)) for name in ("relu", "gelu", "add", "adamw")},
}


def alone(name, row):
    """A copy, or an update without a model's steps. It does not read gradients twice: checking them is a
    launch of its own."""
    known = [moved(0, row - 1)._replace(label=CHECKED)] if row > 1 else []
    return known + [moved(gpu.WORKLOADS[name].bytes)._replace(label=name)]


def said_by(lines):
    """{name: (launches, of these in a row, bytes of each gradient)}, from the program's output."""
    said = {}
    for line in lines:
        words = line.split()
        if words[2:3] == ["launches,"]:
            name = words[0].rstrip(":")
            said[name] = (int(words[1]), int(words[3]),
                          [int(size) for size in words[words.index("gradients:") + 1:]])
    return said


def plans(program, names):
    """(name, its steps) of each, with a step for the run's numbers, and the launches beside these. gpu.py has
    the bytes of a single update and copy."""
    with tempfile.TemporaryDirectory() as folder:
        command = [os.path.abspath(program), "--trace", folder, *(name for name in names if name != "copy")]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        said = said_by(done.stdout.splitlines())
        for name in names:
            path = os.path.join(folder, name + ".json")
            launches, row_of_them, gradients = said.get(name, (1, 1, []))
            numbers = [moved(0, OUTSIDE)._replace(label="the run's numbers")] if name != "copy" else []
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    steps = list(in_rows(list(steps_of(json.load(file), name))))
                steps += ([check(launches, row_of_them, sum(step.launches for step in steps), gradients)]
                          if gradients else [])
            else:
                steps = alone(name, row_of_them)
            yield name, numbers + steps, launches - row_of_them


def row(name, steps, beside):
    """A line of the table, with two columns per card."""
    launches, size, flops = (sum(part) for part in list(zip(*steps))[1:4])
    cells = [name, f"{launches} + {beside}" if beside else str(launches)]
    cells += [f"{(size + sum(step.cached for step in steps)) / 1e6:.4g}", f"{flops / 1e9:.4g}"]
    peer, times, seconds = PEERS.get(name, ("", 0, None))
    for card in COPY:
        own = total(steps, card)
        cells += [f"{1e6 * sum(own):.4g}", bound(own)]
        if seconds:
            theirs = seconds([step for step in steps if step.label != CHECKED], card)
            ratio = theirs / sum(own)
            cells.append(f"{1e6 * theirs:.4g}: {ratio:.2f}" + (" **misses**" if ratio < times else ""))
        else:
            cells.append("-")
    return "| " + " | ".join(cells + [f"{times} x {peer}" if seconds else "-"]) + " |"


def table(rows):
    head = ["workload", "launches", "MB", "GFLOP"]
    for card in COPY:
        head += [f"{card} us", "bound by", "PyTorch us: ratio"]
    yield "| " + " | ".join(head + ["goal"]) + " |"
    yield "|---" * (len(head) + 1) + "|"
    for name, steps, beside in rows:
        yield row(name, steps, beside)


def step_table(steps):
    yield "| step | launches | MB | GFLOP | H100 us | bound by |\n|---|---|---|---|---|---|"
    for step in steps:
        time = time_of(step, "H100")
        yield (f"| {step.label} | {step.launches} | {(step.bytes + step.cached) / 1e6:.4g} | "
               f"{step.flops / 1e9:.4g} | {1e6 * sum(time):.2f} | {bound(time)} |")


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
