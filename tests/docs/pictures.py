"""Draws three pictures:

    python3 tests/docs/pictures.py      check.py tests whether they are fresh

tests/bench/speed.svg has figures of tests/bench/RESULTS.md. generator/fusion.svg has the generator's report
on a model. templates/trip.svg has the functions that the manual names under HOW IT WORKS. They are narrow
enough for a phone, which shows them 328 pixels wide: texts are 9 pixels high there."""
import json
import math
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RESULTS, MODEL = "tests/bench/RESULTS.md", "examples/kernels/fashion_mnist_deep.json"
MANUAL = "templates/gpunn/api/manual.h"
WIDTH, LEFT, RIGHT, ROW, TOP = 460, 246, 56, 22, 82
LEAST, MOST, TICKS = 0.7, 60, (1, 2, 5, 10, 20, 50)
LETTER = 7.9  # width of a chip's letter
STYLE = """<style>
text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #1f2328 } \
.small { fill: #59636e } .right { text-anchor: end }
.title { font-weight: bold } .tick { text-anchor: middle } line { stroke: #d1d9e0 } \
.one { stroke: #59636e; stroke-width: 1.5 }
.PyTorch { fill: #bc4c00 } .ONNX { fill: #0969da } .ggml { fill: #8250df } .KANN { fill: #1a7f37 } \
.tiny-dnn { fill: #9a6700 }
.op { fill: #f6f8fa; stroke: #d1d9e0 } .fused { fill: #ddf4ff; stroke: #0969da } \
.chip { font-family: ui-monospace, monospace }
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


BARS = {
    "PyTorch": (
        ("20-50-1 network, training, batch 32", "", bench("mlp20", "mlp20")),
        ("LeNet, training, batch 4", "", bench("lenet4", "lenet4")),
        ("3-D registration, 48³ voxels, a step", "", bench("register48", "register48")),
        ("LeNet, training, batch 128", "", bench("lenet128", "lenet128")),
        ("GRU, training", "", bench("gru", "gru")),
        ("ResNet-18, training, batch 32", "", bench("resnet_train", "resnet_train")),
        ("ResNet-18, evaluation, batch 10", " frozen JIT", bench("resnet_forward", "resnet_forward_jit")),
        ("GPT-2, 6 layers, training", "", bench("gpt", "gpt")),
        ("BERT-base, evaluation, batch 8", " fused encoder", bench("bert8", "bert8_fast")),
        ("matrix product 1024³", "", bench("sgemm1024", "sgemm1024"))),
    "ONNX Runtime": (
        ("Silero VAD, a chunk", "", r"^\| Silero VAD \|(?:[^|]*\|){3} ([\d.]+) \|"),
        ("ResNet-18 at 224², evaluation", "", peers("ResNet-18, 224 x 224, evaluation", 1, "ONNX Runtime")),
        ("BERT-base, evaluation, batch 1", "",
         peers("BERT-base, 128 tokens, evaluation", 1, "ONNX Runtime"))),
    "ggml": (("GPT-2 124M, a token at context 256", "", r"^\| 256 \| 1 \|(?:[^|]*\|){5} ([\d.]+) \|"), ),
    "KANN": (
        ("20-50-1 network, training, batch 32", "", peers("20-50-1, training step", 32, "KANN")),
        ("784-256-128-10, training, batch 64", "", peers("784-256-128-10, training step", 64, "KANN"))),
    "tiny-dnn": (("LeNet, training, batch 4", "", peers("LeNet, training step", 4, "tiny-dnn")), ),
}


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


def bar(y, work, peer, value, note):
    start, end = place(1), place(float(value))
    yield f'<text class="right" x="{LEFT - 6}" y="{y + 14}">{work}</text>'
    yield (f'<rect class="{peer.split()[0]}" x="{min(start, end):.1f}" y="{y + 2}" '
           f'width="{max(abs(end - start), 1.5):.1f}" height="16" rx="2"/>')
    yield f'<text class="small" x="{max(end, start) + 6:.1f}" y="{y + 14}">{value}{note}</text>'


def picture(width, height, elements):
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', STYLE, *elements, "</svg>\n"])


def speed():
    """The ratios as bars, in groups by peer."""
    text, y, bars = read(RESULTS), TOP, []
    for peer, rows in BARS.items():
        bars.append(f'<text class="title" x="12" y="{y + 15}">{peer}</text>')
        for work, note, pattern in rows:
            y += ROW
            bars += bar(y, work, peer, ratio(text, pattern), note)
        y += ROW + 6
    head = [f'<text class="{kind}" x="12" y="{20 + 20 * number}">{line}</text>' for number, (kind, line) in
            enumerate((("title", "Time of others / time of gpunn, on one CPU thread"),
                       ("small", "Right of 1 gpunn is faster. The scale is logarithmic.")))]
    return picture(WIDTH, y, [*head, *axis(y - 6), *bars])


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


def column(steps, x):
    """The kernels below each other, each with its ops."""
    y = 40
    for group, ops in steps:
        yield (f'<rect class="{"fused" if group else "op"}" x="{x}" y="{y}" width="190" '
               f'height="{26 * len(ops) - 4}" rx="5"/>')
        for op in ops:
            yield f'<text class="chip tick" x="{x + 95}" y="{y + 16}">{op}</text>'
            y += 26


def fusion():
    """A model's forward pass op by op and with fused kernels, and the savings of a training step."""
    report = subprocess.run([sys.executable, "-m", "generator", MODEL, "--report"], cwd=ROOT,
                            stdout=subprocess.PIPE, text=True, check=True).stdout
    groups = {node: group for group, nodes in re.findall(r"^(g\d+) .*\n +nodes: (.*)$", report, re.M)
              for node in nodes.split()}
    steps = runs(groups)
    singles = [(None, [op]) for _, ops in steps for op in ops]
    elements = ['<text class="title tick" x="107" y="24">One kernel an op</text>', *column(singles, 12),
                '<text class="title tick" x="325" y="24">With generated kernels</text>', *column(steps, 230)]
    y = 40 + 26 * len(singles) + 22
    title = "Between the layers, batch 32: launches and bytes"
    elements.append(f'<text class="title" x="12" y="{y}">{title}</text>')
    row = re.compile(r"^training, (\w+) +(\d+) -> (\d+) +(\S+ \S+) -> (\S+ \S+) ", re.M)
    for way, before, after, much, little in row.findall(report):
        y += 22
        elements.append(f'<text x="12" y="{y}">{way}: {before} launches become {after}, '
                        f'{much} become {little}</text>')
    return picture(432, y + 12, elements)


STAGES = (  # of a tensor's trip: paragraph of the manual, when it is passed, what it leaves
    ("Building", "at the call", "a tensor of the graph"),
    ("Planning", "in the first run", "steps and one arena"),
    ("Running", "in each run", "values and gradients"),
    ("Learning", "in a training step", "new parameters"),
)
TRIP, CHIP_ROW = 460, 34  # the width of the picture, and the height of a row


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
    x, elements = 12, []
    for function, section in functions:
        name = function.lstrip("_")
        width = LETTER * len(name) + 14 + (7.5 * len(section) + 16 if section else 0)
        if x + width > TRIP - 8:
            x, y = 12, y + CHIP_ROW
        elements.append(f'<rect class="op" x="{x:.1f}" y="{y}" width="{width:.1f}" height="26" rx="5"/>'
                        f'<text class="chip" x="{x + 7:.1f}" y="{y + 17}">{name}</text>')
        if section:
            elements.append(f'<text class="small right" x="{x + width - 7:.1f}" '
                            f'y="{y + 17}">{section}</text>')
        x += width + 8
    return elements, y + CHIP_ROW


def trip():
    """What a linear layer passes, from the call that makes it to the update of its weights."""
    y, elements = 58, [
        '<text class="title" x="12" y="24">y = gpunn_linear(x, "fc", .out_features = 10)</text>',
        '<text class="small" x="12" y="44">Functions without gpunn__, and their sections</text>']
    for name, when, leaves in STAGES:
        chosen, below = stage_chips(stage_functions(name), y + 28)
        elements += [f'<text class="title" x="12" y="{y + 18}">{name}</text>'
                     f'<text class="small" x="92" y="{y + 18}">{when}</text>'
                     f'<rect class="fused" x="{TRIP - 190}" y="{y}" width="182" height="24" rx="5"/>'
                     f'<text class="tick" x="{TRIP - 99}" y="{y + 16}">{leaves}</text>', *chosen]
        y = below + 14
    return picture(TRIP, y - 10, elements)


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


PICTURES = {"tests/bench/speed.svg": speed, "generator/fusion.svg": fusion, "templates/trip.svg": trip}

if __name__ == "__main__":
    for path, draw in PICTURES.items():
        with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
            file.write(draw())
