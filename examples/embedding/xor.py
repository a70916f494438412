#!/usr/bin/env python3
"""gpunn from Python without a package: trains exclusive or, saves the model as one file and reads it back.

    python3 -m generator.python -o gpunn.py
    cc -O3 -march=native -shared -fPIC -DGPUNN_IMPLEMENTATION -x c gpunn.h -o libgpunn.so -lm -lpthread
    PYTHONPATH=. python3 examples/embedding/xor.py

The first command writes the module gpunn, whose first comment says how gpunn's calls look in Python. It finds
the library beside itself. Arrays may be NumPy's or PyTorch's, too.

Expect: four lines, near 0 where both inputs are equal and near 1 where they differ.
Time:   less than a second on two cores.
Next:   bring a model of PyTorch's: generator/exchange/README.md.
"""
import os
import tempfile
from array import array

import gpunn

INPUTS, TARGETS = array("f", [0, 0, 0, 1, 1, 0, 1, 1]), array("f", [0, 1, 1, 0])


def trained(dev):
    """2-8-1 with tanh between."""
    model = gpunn.model_create(dev)
    x = gpunn.input(model, "x", gpunn.F32, (gpunn.BATCH, 2))
    t = gpunn.input(model, "t", gpunn.F32, (gpunn.BATCH, 1))
    hidden = gpunn.tanh(gpunn.linear(x, "fc1", out_features=8))
    logit = gpunn.linear(hidden, "fc2", out_features=1)
    loss = gpunn.bce_with_logits(logit, t)
    gpunn.set_name(gpunn.sigmoid(logit), "probability")
    adam = gpunn.adam(model, lr=0.05)
    gpunn.write(x, INPUTS)
    gpunn.write(t, TARGETS)
    for _ in range(300):
        gpunn.train_step(adam, loss)
    return model


def main():
    dev = gpunn.device_open(seed=1)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "xor.gpunn")
        gpunn.model_save(trained(dev), path)
        model = gpunn.model_load(dev, path)
    probability = gpunn.find(model, "probability")
    gpunn.write(gpunn.find(model, "x"), INPUTS)
    gpunn.forward([probability])
    for i, (p,) in enumerate(gpunn.read(probability).tolist()):
        print(f"{INPUTS[2 * i]:g} xor {INPUTS[2 * i + 1]:g} = {p:.3f}")


if __name__ == "__main__":
    main()
