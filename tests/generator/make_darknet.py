"""Writes expected/darknet.json with darknet (https://github.com/pjreddie/darknet): weights that it saves, as
base64, and what its network_predict computes of them.

    python3 tests/generator/make_darknet.py FOLDER     FOLDER: darknet's sources"""
import base64
import glob
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))

from tests.generator.test_import_darknet import DARKNETS, EXPECTED  # noqa: E402

PROGRAM = r"""
#include "darknet.h"
#include "parser.h"

/* values that are neither near 0 nor alike */
static void fill(float *x, int count, float middle, float width)
{
    static unsigned state = 7;
    for (int i = 0; x && i < count; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = middle + width * ((state >> 8) / 8388608.0f - 1);
    }
}

static void print_numbers(const char *name, const float *x, int count, const char *end)
{
    printf("\"%s\": [", name);
    for (int i = 0; i < count; i++) printf("%s%.9g", i ? ", " : "", x[i]);
    printf("]%s", end);
}

int main(int argc, char **argv)
{
    network *net = parse_network_cfg(argv[1]);
    for (int i = 0; i < net->n; i++) {
        layer l = net->layers[i];
        if (l.type != CONVOLUTIONAL && l.type != CONNECTED) continue;
        int count = l.type == CONNECTED ? l.outputs : l.n;
        fill(l.weights, l.type == CONNECTED ? l.inputs * l.outputs : l.nweights, 0, 0.5f);
        fill(l.biases, count, 0, 0.3f);
        fill(l.scales, count, 1, 0.4f);
        fill(l.rolling_mean, count, 0, 0.3f);
        fill(l.rolling_variance, count, 1.5f, 0.9f);
    }
    save_weights(net, argv[2]);
    float *x = calloc(net->inputs, sizeof *x);
    fill(x, net->inputs, 0.5f, 0.5f);
    network_predict(net, x);
    printf("{");
    print_numbers("input", x, net->inputs, ", ");
    printf("\"outputs\": {");
    int found = 0;
    for (int i = 0; i < net->n; i++) {
        layer l = net->layers[i];
        char  name[16];
        if (l.type != YOLO && l.type != REGION) continue;
        sprintf(name, "%s%d", l.type == YOLO ? "yolo" : "region", found + 1);
        printf("%s", found++ ? ", " : "");
        print_numbers(name, l.output, l.outputs, "");
    }
    if (found == 0) print_numbers("output", net->output, net->outputs, "");
    printf("}}\n");
    return argc != 3;
}
"""


def main():
    root = os.path.abspath(sys.argv[1])
    sources = [path for path in glob.glob(os.path.join(root, "src", "*.c")) if not path.endswith("compare.c")]
    cases = {}
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "make.c"), "w", encoding="ascii") as file:
            file.write(PROGRAM)
        subprocess.run(["cc", "-O1", "-w", "-fcommon", "-I" + os.path.join(root, "include"),
                        "-I" + os.path.join(root, "src"), "make.c", *sources, "-o", "make", "-lm",
                        "-lpthread"], cwd=folder, check=True)
        for name, text in DARKNETS.items():
            with open(os.path.join(folder, "net.cfg"), "w", encoding="ascii") as file:
                file.write(text)
            done = subprocess.run(["./make", "net.cfg", "net.weights"], cwd=folder, check=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            cases[name] = json.loads(done.stdout.decode().split("\n")[-2])
            with open(os.path.join(folder, "net.weights"), "rb") as file:
                cases[name]["weights"] = base64.b64encode(file.read()).decode()
    with open(EXPECTED, "w", encoding="ascii") as file:
        file.write("{\n" + ",\n".join("%s: %s" % (json.dumps(name), json.dumps(case))
                                      for name, case in cases.items()) + "\n}\n")


if __name__ == "__main__":
    main()
