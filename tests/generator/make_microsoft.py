"""Writes expected/microsoft.json: what ONNX Runtime computes for each case of test_import_microsoft.py.

python3 tests/generator/make_microsoft.py   (needs the packages onnxruntime and numpy)"""
import json
import os
import sys

import numpy
import onnxruntime

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))

from tests.generator.test_import_microsoft import CASES, EXPECTED  # noqa: E402


def computed(case):
    session = onnxruntime.InferenceSession(case.model(), providers=["CPUExecutionProvider"])
    given = {name: numpy.array(x.values, x.kind).reshape(x.shape) for name, x in case.inputs.items()}
    results = session.run(None, given)
    return {output.name: [list(y.shape), [float("%.9g" % value) for value in y.ravel()]]
            for output, y in zip(session.get_outputs(), results)}


def main():
    lines = ["%s: %s" % (json.dumps(case.name), json.dumps(computed(case))) for case in CASES]
    with open(EXPECTED, "w", encoding="ascii") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
