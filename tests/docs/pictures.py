"""Draws three pictures:

    python3 tests/docs/pictures.py      check.py tests whether they are fresh

tests/bench/speed.svg has figures of tests/bench/RESULTS.md. generator/fusion.svg has the generator's report
on a model. templates/trip.svg has the functions that the manual names under HOW IT WORKS."""
import json
import math
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RESULTS, MODEL = "tests/bench/RESULTS.md", "examples/kernels/fashion_mnist_deep.json"
MANUAL = "templates/gpunn/api/manual.h"
WIDTH, LEFT, RIGHT, ROW, TOP = 920, 380, 60, 24, 64
LEAST, MOST, TICKS = 0.5, 80, (0.5, 1, 2, 5, 10, 20, 50)
STYLE = """<style>
text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #1f2328 } \
.small { font-size: 12px; fill: #59636e } .right { text-anchor: end }
.title { font-weight: bold } .tick { text-anchor: middle } line { stroke: #d1d9e0 } \
.one { stroke: #59636e; stroke-width: 1.5 }
.PyTorch { fill: #bc4c00 } .ONNX { fill: #0969da } .ggml { fill: #8250df } .KANN { fill: #1a7f37 } \
.tiny-dnn { fill: #9a6700 }
.op { fill: #f6f8fa; stroke: #d1d9e0 } .fused { fill: #ddf4ff; stroke: #0969da } \
.chip { font-family: ui-monospace, monospace; font-size: 12px }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9198a1 } line { stroke: #3d444d } .one { stroke: #9198a1 }
.PyTorch { fill: #f0883e } .ONNX { fill: #58a6ff } .ggml { fill: #ab7df8 } .KANN { fill: #3fb950 } \
.tiny-dnn { fill: #d29922 }
.op { fill: #151b23; stroke: #3d444d } .fused { fill: #0c2d6b; stroke: #58a6ff } }
</style>"""


def bench(workload, peer):
    """The ratio of a row that bench/run.py wrote, on one thread."""
    return rf"^\| {workload} \| 1 \|[^|]*\| torch {peer} \|[^|]*\| ([\d.]+) \|"


def peers(work, batch, peer):
    """The ratio on one thread of a row that bench/peers.py wrote for both numbers of threads."""
    return rf"^\| {work} \| {batch} \|[^|]*/[^|]*\| {peer} \|[^|]*\| ([\d.]+) /"


BARS = (
    ("20-50-1 network, training, batch 32", "PyTorch", bench("mlp20", "mlp20")),
    ("LeNet, training, batch 4", "PyTorch", bench("lenet4", "lenet4")),
    ("3-D registration, 48³ voxels, a step", "PyTorch", bench("register48", "register48")),
    ("LeNet, training, batch 128", "PyTorch", bench("lenet128", "lenet128")),
    ("GRU, training", "PyTorch", bench("gru", "gru")),
    ("ResNet-18, training, batch 32", "PyTorch", bench("resnet_train", "resnet_train")),
    ("ResNet-18, evaluation, batch 10", "PyTorch, frozen JIT", bench("resnet_forward", "resnet_forward_jit")),
    ("GPT-2, 6 layers, training", "PyTorch", bench("gpt", "gpt")),
    ("BERT-base, evaluation, batch 8", "PyTorch, fused encoder", bench("bert8", "bert8_fast")),
    ("matrix product 1024³", "PyTorch", bench("sgemm1024", "sgemm1024")),
    ("Silero VAD, a chunk", "ONNX Runtime", r"^\| Silero VAD \|(?:[^|]*\|){3} ([\d.]+) \|"),
    ("ResNet-18 at 224², evaluation", "ONNX Runtime",
     peers("ResNet-18, 224 x 224, evaluation", 1, "ONNX Runtime")),
    ("BERT-base, evaluation, batch 1", "ONNX Runtime",
     peers("BERT-base, 128 tokens, evaluation", 1, "ONNX Runtime")),
    ("GPT-2 124M, a token at context 256", "ggml", r"^\| 256 \| 1 \|(?:[^|]*\|){5} ([\d.]+) \|"),
    ("20-50-1 network, training, batch 32", "KANN", peers("20-50-1, training step", 32, "KANN")),
    ("784-256-128-10, training, batch 64", "KANN", peers("784-256-128-10, training step", 64, "KANN")),
    ("LeNet, training, batch 4", "tiny-dnn", peers("LeNet, training step", 4, "tiny-dnn")),
)


def ratio(text, pattern):
    found = re.findall(pattern, text, re.M)
    if len(found) != 1:
        raise ValueError(f"{RESULTS} has {len(found)} rows {pattern}")
    return found[0]


def place(value):
    """Where a ratio lies on the logarithmic axis."""
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / LEAST) / math.log(MOST / LEAST)


def axis(bottom):
    for tick in TICKS:
        x = place(tick)
        kind = "one" if tick == 1 else "other"
        yield f'<line class="{kind}" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>'
        yield f'<text class="small tick" x="{x:.1f}" y="{TOP - 12}">{tick:g}</text>'


def bar(number, work, peer, value):
    y, end = TOP + ROW * number, place(float(value))
    color = re.match(r"[\w-]+", peer)[0]
    yield f'<text class="right" x="{LEFT - 106}" y="{y + 14}">{work}</text>'
    yield f'<text class="small" x="{LEFT - 98}" y="{y + 14}">{peer.partition(",")[0]}</text>'
    start, width = min(end, place(1)), max(abs(end - place(1)), 1.5)
    yield f'<rect class="{color}" x="{start:.1f}" y="{y + 2}" width="{width:.1f}" height="16" rx="2"/>'
    note = "".join(" " + part for part in peer.split(",")[1:])
    yield f'<text class="small" x="{max(end, place(1)) + 6:.1f}" y="{y + 14}">{value}{note}</text>'


def picture(width, height, elements):
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', STYLE, *elements, "</svg>\n"])


def speed():
    """The ratios as bars."""
    text, bottom = read(RESULTS), TOP + ROW * len(BARS)
    title = (
        "Time of others / time of gpunn, on one CPU thread (logarithmic scale; right of 1 gpunn is faster)")
    elements = [f'<text class="title" x="12" y="22">{title}</text>', *axis(bottom)]
    for number, (work, peer, pattern) in enumerate(BARS):
        elements += bar(number, work, peer, ratio(text, pattern))
    return picture(WIDTH, bottom + 8, elements)


def runs(groups):
    """(group, its ops) of the steps from a model's inputs to its loss, with neighbours in one group
    together."""
    spec, found = json.loads(read(MODEL)), []
    for entry in spec["tensors"]:
        name = entry.get("name") or entry["id"]
        group = groups.get(name)
        if found and group and found[-1][0] == group:
            found[-1][1].append(entry["op"])
        elif entry["op"] not in ("input", "constant", "reshape"):
            found.append((group, [entry["op"]]))
        if name == spec["loss"]:
            return found
    raise ValueError(f"{MODEL} has no loss")


def chips(steps, y):
    """A row of kernels, each with its ops."""
    x = 12
    for group, ops in steps:
        text = " + ".join(ops)
        width = 7.3 * len(text) + 14
        yield (f'<rect class="{"fused" if group else "op"}" x="{x:.1f}" y="{y}" width="{width:.1f}" '
               f'height="26" rx="5"/>')
        yield f'<text class="chip" x="{x + 7:.1f}" y="{y + 17}">{text}</text>'
        x += width + 8


def fusion():
    """A model's forward pass op by op and with fused kernels, and the savings of a training step."""
    report = subprocess.run([sys.executable, "-m", "generator", MODEL, "--report"], cwd=ROOT,
                            stdout=subprocess.PIPE, text=True, check=True).stdout
    groups = {node: group for group, nodes in re.findall(r"^(g\d+) .*\n +nodes: (.*)$", report, re.M)
              for node in nodes.split()}
    steps = runs(groups)
    elements = ['<text class="title" x="12" y="22">One kernel an op</text>',
                *chips([(None, [op]) for _, ops in steps for op in ops], 34),
                '<text class="title" x="12" y="92">With generated kernels (blue)</text>', *chips(steps, 104)]
    row = re.compile(r"^training, (\w+) +(\d+) -> (\d+) +(\S+ \S+) -> (\S+ \S+) ", re.M)
    for number, (way, before, after, much, little) in enumerate(row.findall(report)):
        elements.append(f'<text x="12" y="{158 + 20 * number}">{way}, batch 32, between the layers: {before} '
                        f'launches become {after}; {much} read and written become {little}</text>')
    return picture(1060, 188, elements)


STAGES = (  # of a tensor's trip: paragraph of the manual, when it is passed, what it leaves
    ("Building", "at the call", "a tensor of the graph"),
    ("Planning", "in the first run", "steps and one arena"),
    ("Running", "in each run", "values and gradients"),
    ("Learning", "in a training step", "new parameters"),
)
# where chips begin, where what a stage leaves stands, and the height of a row
CHIPS, RESULT, CHIP_ROW = 150, 810, 34


def stage_functions(name):
    """(function, its section or "") in the order in which the manual names them in that paragraph of HOW IT
    WORKS."""
    text = read(MANUAL)
    text = re.sub(r"\n \* *", " ", text[text.index(" * HOW IT WORKS"):text.index(" * EXTENDING")])
    others = "|".join(other for other, _, _ in STAGES)
    paragraph = re.search(rf" {name}\. (.*?)(?: (?:{others})\. |$)", text)[1]
    return re.findall(r"gpunn_(_\w+|\w+_)\b(?: \(>>([\w/]+))?", paragraph)


def stage_chips(functions, y):
    """Rows of functions, and where the last one ends."""
    x, elements = CHIPS, []
    for function, section in functions:
        name = function.lstrip("_")
        width = 7.3 * len(name) + 14 + (7.3 * len(section) + 12 if section else 0)
        if x + width > RESULT - 20:
            x, y = CHIPS, y + CHIP_ROW
        elements.append(f'<rect class="op" x="{x:.1f}" y="{y}" width="{width:.1f}" height="26" rx="5"/>'
                        f'<text class="chip" x="{x + 7:.1f}" y="{y + 17}">{name}</text>')
        if section:
            elements.append(f'<text class="small right" x="{x + width - 7:.1f}" '
                            f'y="{y + 17}">{section}</text>')
        x += width + 8
    return elements, y + CHIP_ROW


def trip():
    """What a linear layer passes, from the call that makes it to the update of its weights."""
    y, elements = 44, [
        '<text class="title" x="12" y="24">The trip of y = gpunn_linear(x, "fc", .out_features = 10)</text>',
        f'<text class="small" x="{CHIPS + 300}" y="24">functions without gpunn__, and their sections</text>']
    for name, when, leaves in STAGES:
        chosen, below = stage_chips(stage_functions(name), y)
        elements += [f'<text class="title" x="12" y="{y + 17}">{name}</text><text class="small" x="12" '
                     f'y="{y + 34}">{when}</text>', *chosen,
                     f'<rect class="fused" x="{RESULT}" y="{y}" width="178" height="26" rx="5"/>',
                     f'<text class="tick" x="{RESULT + 89}" y="{y + 17}">{leaves}</text>']
        if y > 44:
            elements.append(f'<text class="small tick" x="{RESULT + 89}" y="{y - 15}">↓</text>')
        y = max(below, y + CHIP_ROW) + 24
        elements.append(f'<line x1="12" y1="{y - 14}" x2="{RESULT - 20}" y2="{y - 14}"/>')
    return picture(RESULT + 190, y - 14, elements[:-1])


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


PICTURES = {"tests/bench/speed.svg": speed, "generator/fusion.svg": fusion, "templates/trip.svg": trip}

if __name__ == "__main__":
    for path, draw in PICTURES.items():
        with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
            file.write(draw())
