"""Draws gpunn.h's parts (templates/gpunn): folders in the order of their use, their parts with their number
of lines (rounded to hundreds), and which folder includes which."""
import re

WIDTH, LEFT, ROW, CHAR = 460, 44, 26, 7.8
ROOMS = {
    "api": "what programs see", "common": "shared with gpunn_cuda.cu",
    "base": "memory, errors, devices, models, numbers", "ranks": "processes that train together",
    "graph": "tensors, shapes, formulas, derivatives", "layers": "builders with PyTorch's names",
    "plan": "from a graph to steps and memory", "run": "running a plan; reading and writing values",
    "cpu": "the CPU backend", "train": "optimizers, loaders, the training loop", "io": "files and specs",
}
STYLE = """<style>
text { font: 13px ui-monospace, monospace; fill: #1f2328 } .room { font-weight: bold } \
.about { fill: #59636e }
rect { fill: #f6f8fa; stroke: #d1d9e0 } .part { fill: #ffffff } \
path { fill: none; stroke: #8250df; opacity: 0.45 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .about { fill: #9198a1 } rect { fill: #151b23; stroke: #3d444d } \
.part { fill: #0d1117 } path { stroke: #ab7df8 } }
</style>"""


def rows(parts):
    """The parts of a folder in rows, filled up to the width: lists of (x, width, text)."""
    lines, x = [[]], LEFT + 10
    for name, count in parts:
        text = f"{name} {max(round(count, -2), 100)}"
        width = len(text) * CHAR + 18
        if x + width > WIDTH - 12:
            lines.append([])
            x = LEFT + 10
        lines[-1].append((x, width, text))
        x += width + 6
    return lines


def room(name, parts, y):
    """The SVG elements of a folder at height y, and its height."""
    lines = rows(parts)
    height = 34 + ROW * len(lines)
    elements = [f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - 2}" height="{height}" rx="8"/>',
                f'<text class="room" x="{LEFT + 12}" y="{y + 19}">{name}/</text>',
                f'<text class="about" x="{LEFT + 76}" y="{y + 19}">{ROOMS[name]}</text>']
    for line, chips in enumerate(lines):
        top = y + 28 + ROW * line
        for x, width, text in chips:
            elements += [f'<rect class="part" x="{x:.0f}" y="{top}" width="{width:.0f}" height="20" rx="5"/>',
                         f'<text x="{x + 9:.0f}" y="{top + 14}">{text}</text>']
    return elements, height


def draw(texts):
    """The SVG. texts: each part's path below templates/gpunn -> its text, in order."""
    parts, includes = {name: {} for name in ROOMS}, {}
    for path, text in texts.items():
        home, name = path.rpartition(".")[0].split("/")
        parts[home][name] = parts[home].get(name, 0) + text.count("\n")
        for other in re.findall(r'#include "(\w+)/\w+\.h"', text):
            if other != home:
                includes[home, other] = includes.get((home, other), 0) + 1
    elements, middle, y = [], {}, 10
    for name in ROOMS:
        drawn, height = room(name, parts[name].items(), y)
        elements += drawn
        middle[name] = y + height / 2
        y += height + 12
    for (home, other), count in sorted(includes.items()):
        bend = LEFT - 8 - min(50, abs(middle[home] - middle[other]) / 8)
        elements.append(f'<path d="M{LEFT} {middle[home]:.0f} C{bend:.0f} {middle[home]:.0f} {bend:.0f} '
                        f'{middle[other]:.0f} {LEFT} {middle[other]:.0f}" '
                        f'stroke-width="{1 + count ** 0.5 / 2:.1f}"/>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
            f'height="{y}">\n' + STYLE + "\n" + "\n".join(elements) + "\n</svg>\n")
