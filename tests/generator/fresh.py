#!/usr/bin/env python3
"""Checks that examples/kernels holds the kernels of the examples' models: python3 tests/generator/fresh.py
[--renew] [BUILD]

Each example writes its spec, from which the generator makes its kernels. Both must equal the files in
examples/kernels. --renew writes them there instead. BUILD (default: build) is the folder of the examples'
programs. TAP lines, for tests/run.py."""
import filecmp
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KERNELS = os.path.join(ROOT, "examples", "kernels")
MODELS = {  # the command that writes the spec, without the file's name
    "cifar10": ["cifar10", "--spec"],
    "custom_op": ["custom_op", "--spec"],
    "fashion_mnist_deep": ["fashion_mnist", "--model", "deep", "--spec"],
    "fashion_mnist_simple": ["fashion_mnist", "--model", "simple", "--spec"],
    "simple_nn": ["simple_nn"],
}


def spec_of(model, build, path):
    program, *arguments = MODELS[model]
    subprocess.run([os.path.join(build, program), *arguments, path], check=True, cwd=ROOT)


def generate(model, *options):
    name = os.path.join("examples", "kernels", model)
    return (subprocess.run([sys.executable, "-m", "generator", name + ".json", "-o", name, *options],
                           cwd=ROOT).returncode == 0)


def main():
    arguments = [a for a in sys.argv[1:] if a != "--renew"]
    build = os.path.join(ROOT, arguments[0] if arguments else "build")
    if "--renew" in sys.argv[1:]:
        for model in MODELS:
            spec_of(model, build, os.path.join(KERNELS, model + ".json"))
        return 0 if all([generate(model) for model in MODELS]) else 1
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            spec, committed = (os.path.join(where, model + ".json") for where in (folder, KERNELS))
            spec_of(model, build, spec)
            results.append((os.path.exists(committed) and filecmp.cmp(spec, committed, shallow=False),
                            model + ".json"))
            results.append((generate(model, "--check"), model + "'s kernels"))
    expected = [m + end for m in MODELS for end in (".json", "_kernels.cu", "_kernels.h")]
    results.append((sorted(os.listdir(KERNELS)) == sorted(expected), "nothing else in examples/kernels"))
    print(f"1..{len(results)}")
    for number, (good, what) in enumerate(results, 1):
        print(f"{'ok' if good else 'not ok'} {number} - {what}{'' if good else ': run ninja kernels'}")
    return 0 if all(good for good, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
