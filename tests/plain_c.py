#!/usr/bin/env python3
"""Runs a model as plain C, with options of run_model: python3 tests/plain_c.py MODEL.json --input X --output
Y [--weights W]. The status is 3 if it cannot be written as plain C."""
import argparse
import array
import os
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)
from generator import emit_inference, inference, spec, stamp, weights  # noqa: E402
from generator.exchange.arrays import SAFETENSORS  # noqa: E402
from tests import tensor_file  # noqa: E402

NAME = "net"


def batch(model, given):
    """The batch of a file of inputs."""
    return next((size // -own for t in model.tensors if t.op == "input"
                 for size, own in zip(given[t.name][1], t.shape) if own < 0), 1)


def results(plan, given, text):
    """The outputs by name, as tensor_file has them."""
    arguments = [(weights.KINDS[t.dtype] * plan.count(t.id))(*tensor_file.values(given[t.name]))
                 for t in plan.inputs]
    with tempfile.TemporaryDirectory() as folder:
        values = weights.run(plan, NAME, weights.compiled(folder, NAME, NAME, text), arguments)
    return {plan.tensors[i].label: stored(plan.tensors[i].dtype, plan.shape(i), one)
            for i, one in zip(plan.outputs, values)}


def stored(dtype, shape, numbers):
    kind = SAFETENSORS[dtype]
    return kind, list(shape), array.array(tensor_file.CODES[kind], numbers).tobytes()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    for option in "--input", "--output", "--weights":
        parser.add_argument(option)
    options = parser.parse_args()
    model, given = spec.load(options.model), tensor_file.load(options.input)
    try:
        plan = inference.Plan(model, batch(model, given))
    except inference.Refused as why:
        print(why)
        return 3
    numbers = weights.read(options.weights, plan) if plan.weights else None
    text = emit_inference.emit_inference(plan, stamp.Source("0" * 64, "command"), NAME, numbers)
    tensor_file.save(options.output, results(plan, given, text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
