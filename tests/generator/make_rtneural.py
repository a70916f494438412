"""Writes expected/rtneural.json with RTNeural (https://github.com/jatinchowdhury18/RTNeural): small models as
its model_utils.py writes Keras's, and what it computes of them, step by step.

    python3 tests/generator/make_rtneural.py FOLDER     FOLDER: RTNeural's sources"""
import json
import os
import random
import subprocess
import sys
import tempfile

EXPECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "expected", "rtneural.json")
STEPS = 7
PROGRAM = r"""
#include "RTNeural/RTNeural.h"
#include <cstdio>
#include <fstream>

int main(int argc, char **argv)
{
    std::ifstream file(argv[1]);
    auto          model = RTNeural::json_parser::parseJson<double>(file);
    const int     in = atoi(argv[2]), out = atoi(argv[3]);
    double        x[64];
    model->reset();
    for (int step = 0; scanf("%lf", &x[0]) == 1; step++) {
        for (int i = 1; i < in; i++)
            if (scanf("%lf", &x[i]) != 1) return 1;
        model->forward(x);
        for (int i = 0; i < out; i++) printf("%.9g\n", model->getOutputs()[i]);
    }
    return argc != 4;
}
"""
DRAW = random.Random(11)


def lists(*shape, low=-0.7, high=0.7):
    """Nested lists of numbers that every float holds."""
    if not shape:
        return round(DRAW.uniform(low, high) * 4096) / 4096
    return [lists(*shape[1:], low=low, high=high) for _ in range(shape[0])]


def layer(kind, size, *weights, activation="", **more):
    shape = [None, None] + size if isinstance(size, list) else [None, None, size]
    return dict(type=kind, activation=activation, shape=shape, weights=list(weights), **more)


def norm(count):
    return [lists(count, low=0.5, high=1.5), lists(count), lists(count), lists(count, low=0.5, high=2)]


def models():
    yield "dense", [None, None, 3], [
        layer("time-distributed-dense", 4, lists(3, 4), lists(4), activation="tanh"),
        layer("prelu", 4, lists(1, 4)), layer("dense", 5, lists(4, 5), lists(5), activation="elu"),
        layer("dense", 3, lists(5, 3), lists(3)), layer("activation", 3, activation="softmax")]
    yield "conv1d", [None, None, 2], [
        layer("conv1d", 4, lists(3, 2, 4), lists(4), activation="relu", kernel_size=[3], dilation=[2],
              groups=1), layer("batchnorm", 4, *norm(4), epsilon=0.01),
        layer("conv1d", 4, lists(2, 2, 4), lists(4), activation="sigmoid", kernel_size=[2], dilation=[1],
              groups=2), layer("batchnorm", 4, *norm(4)[2:], epsilon=0.001)]
    yield "gru", [None, None, 2], [
        layer("gru", 3, lists(2, 9), lists(3, 9), lists(2, 9), activation="tanh"),
        layer("dense", 1, lists(3, 1), lists(1))]
    yield "lstm", [None, None, 2], [
        layer("lstm", 3, lists(2, 12), lists(3, 12), lists(12), activation="tanh"),
        layer("dense", 1, lists(3, 1), lists(1))]
    yield "conv2d", [None, None, 6, 1], [
        layer("conv2d", [4, 2], lists(2, 3, 1, 2), lists(2), activation="tanh", kernel_size_time=2,
              kernel_size_feature=3, dilation=2, strides=1, num_filters_in=1, num_features_in=6,
              num_filters_out=2, padding="valid"),
        layer("batchnorm2d", [4, 2], *norm(2), epsilon=0.01, num_filters_in=2, num_features_in=4),
        layer("conv2d", [2, 3], lists(2, 3, 2, 3), lists(3), kernel_size_time=2, kernel_size_feature=3,
              dilation=1, strides=2, num_filters_in=2, num_features_in=4, num_filters_out=3,
              padding="same"), layer("dense", 2, lists(6, 2), lists(2))]


def main():
    root, cases = os.path.abspath(sys.argv[1]), {}
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "make.cpp"), "w", encoding="ascii") as file:
            file.write(PROGRAM)
        subprocess.run(["c++", "-std=c++17", "-O1", "-w", "-DRTNEURAL_USE_STL=1",
                        "-DRTNEURAL_DEFAULT_ALIGNMENT=16", "-I" + root, "-I" + os.path.join(root, "modules"),
                        "make.cpp", "-o", "make"], cwd=folder, check=True)
        for name, in_shape, layers in models():
            model = {"in_shape": in_shape, "layers": layers}
            with open(os.path.join(folder, "net.json"), "w", encoding="ascii") as file:
                json.dump(model, file)
            count, out = in_shape[2], layers[-1]["shape"][-1]
            x = [value for row in lists(STEPS, count) for value in row]
            done = subprocess.run(["./make", "net.json", str(count), str(out)], cwd=folder, check=True,
                                  input="\n".join(map(str, x)).encode(), stdout=subprocess.PIPE)
            values = [float(word) for word in done.stdout.split() if word[:1] in b"-0123456789"]
            assert len(values) == STEPS * out, (name, done.stdout)
            cases[name] = {"model": model, "input": x, "output": values}
    with open(EXPECTED, "w", encoding="ascii") as file:
        file.write("{\n" + ",\n".join("%s: %s" % (json.dumps(name), json.dumps(case))
                                      for name, case in cases.items()) + "\n}\n")


if __name__ == "__main__":
    main()
