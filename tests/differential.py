#!/usr/bin/env python3
"""Compares builds of the library on random models: python3 tests/differential.py RUNS BUILD/run_model...

The first program, on one thread, is the reference. It and the others run on one and on four threads,
build/levels on each level of vectors that the processor has, build/emulator on the emulated GPU. Every
SPARSE-th model also runs with its generated kernels. Outputs and the gradients of the last tensor's mean may
differ from the reference by SLACK times what a change of the inputs by NEAR makes of them, and by BOUND of
the largest value. All refuse a model or none, but for GPUs, which do not see each bad index.

Models of odd seeds have weights that fit BF16 and F16. They also run with weights stored in 16 bits, which on
a CPU must not change a result, and on a GPU by no more than FAR and BOUND_16 allow. Every SPARSE_C-th of them
runs as plain C, where that can be written.

A failure prints its seed and the smallest spec that still fails. GPUNN_TEST_SEED=n begins elsewhere."""
import array
import collections
import copy
import json
import math
import os
import random
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [ROOT, os.path.join(ROOT, "tests", "generator"), os.path.join(ROOT, "tests", "compile")]
from generator import json_text, spec  # noqa: E402
from levels import LEVELS, flags  # noqa: E402
from make_vectors import Maker  # noqa: E402
from tests import tensor_file  # noqa: E402

NEAR, BOUND, SLACK = 1e-6, 2e-5, 100
FAR, BOUND_16, SLACK_16 = 2 ** -8, 2 ** -5, 16  # where values are stored in 16 bits, too
SPARSE, SPARSE_C, BATCH, MOST = 10, 4, 3, 1 << 16
# A sanitizer's status differs from that of a program that refuses a model.
SANITIZERS = {"ASAN_OPTIONS": "detect_leaks=0:exitcode=99", "UBSAN_OPTIONS": "exitcode=99"}
DTYPES = {"f32": ("F32", "f"), "i64": ("I64", "q"), "i32": ("I32", "i"), "u8": ("U8", "B"),
          "bool": ("BOOL", "B")}
EXACT = {"input", "constant", "reshape", "flatten", "permute", "slice", "concat", "stack", "expand", "tile",
         "pad", "gather", "neg", "abs", "relu", "maximum", "minimum", "max", "argmax", "argmin",
         "topk_indices", "searchsorted", "lt", "le", "gt", "ge", "eq", "ne", "where", "one_hot", "integer"}


def label(entry):
    return entry.get("id", entry.get("name"))


def exact(root, name):
    """Whether nothing is rounded on the way to a tensor. Otherwise equal numbers may differ by a bit, and an
    argmax among them or a comparison by anything."""
    made = [entry for entry in root["tensors"] if label(entry) == name]  # none: one of a layer's results
    return (made != [] and made[0]["op"] in EXACT and
            all(exact(root, operand) for operand in made[0].get("inputs", ())))


# A way to run a model. command: its start; variables: of the environment; precision: the model's if its
# weights have 16 bits, else None; rounds: whether values between layers have 16 bits, too.
Way = collections.namedtuple("Way", "name command variables precision rounds", defaults=({}, None, False))
PLAIN_C = Way("plain C", [sys.executable, os.path.join(ROOT, "tests", "plain_c.py")])


def variants(programs):
    """Each way to run any model; the first is the reference."""
    for program in programs:
        mode = os.path.basename(os.path.dirname(program))
        if mode == "levels":
            for level, _, needs in LEVELS:
                if not needs - flags() and level not in ("bf16", "amx"):
                    yield Way(level, [program], {"GPUNN_VECTORS": level})
        elif mode == "emulator":
            yield Way(mode, [program, "--device", "emulator"])
        else:
            for threads in "1", "4":
                yield Way(f"{mode}, {threads} threads", [program, "--threads", threads])


def of_16_bits(ways, precision):
    """The same with weights of 16 bits. No products of BF16, which round their operands."""
    for way in ways:
        name, variables = f"{way.name}, {precision} weights", {"GPUNN_VECTORS": "avx512", **way.variables}
        yield way._replace(name=name, variables=variables, precision=precision, rounds="emulator" in name)


def random_model(seed):
    """A spec with a loss, or None."""
    rng = random.Random(seed)
    made = Maker("differential %d" % seed).model(rng.choice([op for op in spec.ops() if op != "custom"]))
    if made is None or '"custom"' in made[0]:
        return None
    root = dict(json.loads(made[0]), precision="f32")
    floats = [t.label for t in made[1].tensors if t.dtype == "f32" and t.label and t.op != "input"]
    if floats:
        root["tensors"].append({"op": "mean", "name": "the loss", "inputs": [floats[-1]]})
    return root


def inputs_of(root, seed):
    """The values of a spec's inputs, the same for each of its parts."""
    result = {}
    for t in spec.parse(json.dumps(root)).tensors:
        if t.op != "input":
            continue
        rng, shape = random.Random("%d %s" % (seed, t.label)), [-d * BATCH if d < 0 else d for d in t.shape]
        dtype, code = DTYPES[t.dtype]
        real, most = (rng.gauss, rng.uniform)[seed % 2], 2 if t.dtype == "bool" else 3
        numbers = [real(0, 1) if code == "f" else rng.randrange(most) for _ in range(math.prod(shape))]
        result[t.label] = dtype, shape, array.array(code, numbers).tobytes()
    return result


def weights_of(root, seed):
    """Values of a spec's parameters and statistics with 8 bits of mantissa, those of variances positive. None
    for even seeds, and for more values than MOST."""
    result = {}
    own = [t for t in spec.parse(json.dumps(root)).tensors if t.kind in ("parameter", "buffer")]
    if seed % 2 == 0 or sum(math.prod(t.shape) for t in own) > MOST:
        return None
    for t in own:
        if t.dtype == "f32":
            rng, least = random.Random("%d %s" % (seed, t.name)), 64 if t.name.endswith("var") else -128
            numbers = [rng.randrange(least, 129) / 256 for _ in range(math.prod(t.shape))]
            result[t.name] = "F32", list(t.shape), array.array("f", numbers).tobytes()
    return result


def disturbed(tensors, seed, by):
    rng, result = random.Random(seed), {}
    for name, (dtype, shape, data) in tensors.items():
        if dtype == "F32":
            numbers = [x * (1 + rng.choice((-by, by))) for x in array.array("f", data)]
            data = array.array("f", numbers).tobytes()
        result[name] = dtype, shape, data
    return result


def change(a, b):
    """The largest difference of two tensors; infinite where only one is a number or their infinities
    differ."""
    def one(x, y):
        return 0 if x == y or (x != x and y != y) else abs(x - y) if math.isfinite(x - y) else math.inf
    if a[:2] != b[:2]:
        return math.inf
    return max(map(one, tensor_file.values(a), tensor_file.values(b)), default=0)


# What a model gives: inputs and weights, and the reference's results; near, far: with other numbers.
Known = collections.namedtuple("Known", "inputs weights results near far")


class Runs:
    """Runs models in a folder. result: tensors by name, or a text that tells how it failed."""

    def __init__(self, folder, ways):
        self.folder, self.ways = folder, ways

    def path(self, name):
        return os.path.join(self.folder, name)

    def command(self, way, root, inputs, weights):
        """Writes a model's files."""
        with open(self.path("spec.json"), "w", encoding="utf-8") as file:
            json.dump(dict(root, precision=way.precision or "f32"), file)
        tensor_file.save(self.path("in"), inputs)
        tensor_file.save(self.path("weights"), weights or {})
        result = [*way.command, self.path("spec.json"), "--input", self.path("in"), "--output",
                  self.path("out")] + (["--weights", self.path("weights")] if weights else [])
        if way.precision:
            return result + ["--inference"]
        gives = way is not PLAIN_C and root["tensors"][-1].get("name") == "the loss"
        return result + (["--grad", "the loss"] if gives else [])

    def run(self, way, root, inputs, weights):
        try:
            done = subprocess.run(self.command(way, root, inputs, weights),
                                  env={**os.environ, **SANITIZERS, **way.variables}, timeout=600,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  errors="replace")
        except subprocess.TimeoutExpired:
            return "it took more than 600 s"
        if done.returncode == 0:
            return tensor_file.load(self.path("out"))
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        told = [line for line in lines if line.startswith("SUMMARY")] or lines[-1:]
        return f"status {done.returncode}: {' '.join(told)}"

    def known(self, root, seed):
        inputs, weights = inputs_of(root, seed), weights_of(root, seed)
        near = disturbed(inputs, seed, NEAR), weights
        far = disturbed(inputs, seed, FAR), disturbed(weights or {}, seed, FAR)
        results = [self.run(self.ways[0], root, *values) for values in ((inputs, weights), near)]
        results.append(None if weights is None else self.run(self.ways[0], root, *far))
        return Known(inputs, weights, *results)

    def fault(self, way, root, known):
        """What is wrong with a way to run a model, or ""; None: it is not for this model."""
        if way.precision and known.weights is None:  # of a model with an attribute less
            return None
        expected, found = known.results, self.run(way, root, known.inputs, known.weights)
        if isinstance(found, str) and way is PLAIN_C and found.startswith("status 3:"):
            return None
        if isinstance(expected, str) or isinstance(found, str):
            refused = [isinstance(x, str) and x.startswith("status 1:") for x in (expected, found)]
            said = [x if isinstance(x, str) else "it ran" for x in (found, expected)]
            unseen = refused[0] and not isinstance(found, str) and ("emulator" in way.name or
                                                                    way is PLAIN_C)
            return "" if all(refused) or unseen else f"{way.name}: {said[0]}; the reference: {said[1]}"
        bound, slack, near = ((BOUND_16, SLACK_16, known.far) if way.rounds else
                              (BOUND, SLACK, known.near))
        if way is PLAIN_C or way.precision:
            expected = {name: x for name, x in expected.items() if not name.startswith("grad.")}
        for name, tensor in expected.items():
            if tensor[0] != "F32" and not exact(root, name):
                continue
            allowed = math.inf if isinstance(near, str) else slack * change(near[name], tensor)
            largest = max((abs(x) for x in tensor_file.values(tensor) if math.isfinite(x)), default=0)
            off = change(found[name], tensor) if name in found else math.inf
            if not off <= allowed + bound * largest + 1e-6:
                return f"{way.name}: {name} differs by {off:.3g} of {largest:.3g}, {allowed:.3g} allowed"
        return "" if found.keys() == expected.keys() else f"{way.name}: other tensors"

    def kernels(self, root):
        """The way that runs a model with its generated kernels, or None: they cannot be generated."""
        with open(self.path("spec.json"), "w", encoding="utf-8") as file:
            json.dump(root, file)
        made = subprocess.run([sys.executable, "-m", "generator", self.path("spec.json"), "-o",
                               self.path("net")], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if made.returncode:
            return None
        command = ["cc", "-O1", "-I.", "-DGPUNN_NO_IMPLEMENTATION", "-DKERNEL_SET=net_kernels",
                   f'-DKERNELS="{self.path("net_kernels.h")}"', "-DNET_KERNELS_IMPLEMENTATION",
                   "examples/run_model.c", "build/gpunn.o", "-o", self.path("fused"), "-lz", "-lpthread",
                   "-lm"]
        subprocess.run(command, cwd=ROOT, check=True)
        return Way("generated kernels", [self.path("fused"), "--threads", "1"])

    def every_way(self, root, seed, weights):
        """Of a model, but for the reference."""
        ways = self.ways[1:]
        if weights:
            ways += of_16_bits(self.ways, ("bf16", "f16")[seed // 2 % 2])
        if weights is not None and seed // 2 % SPARSE_C == 0:
            ways.append(PLAIN_C)
        return ways + [way for way in [self.kernels(root)] if way] if seed % SPARSE == 0 else ways


def without(root, index):
    """A spec without an entry, in whose place its readers read its first operand."""
    root = copy.deepcopy(root)
    gone, instead = root["tensors"].pop(index), None
    if gone.get("inputs"):
        instead = gone["inputs"][0]
    for entry in root["tensors"]:
        if instead is not None and label(gone) in entry.get("inputs", ()):
            entry["inputs"] = [instead if name == label(gone) else name for name in entry["inputs"]]
    return root


def smaller(root):
    """Specs with an entry or an attribute less."""
    for index in reversed(range(len(root["tensors"]))):
        yield without(root, index)
    for index, entry in enumerate(root["tensors"]):
        for key in entry:
            if key not in ("op", "id", "name", "inputs"):
                less = copy.deepcopy(root)
                del less["tensors"][index][key]
                yield less


def shrunk(root, fails):
    """The smallest spec that still fails."""
    for less in smaller(root):
        try:
            spec.parse(json.dumps(less))
        except json_text.SpecError:
            continue
        if fails(less):
            return shrunk(less, fails)
    return root


def report(runs, way, root, seed, why):
    def fails(less):
        now = runs.kernels(less) if way.name == "generated kernels" else way
        return now is not None and bool(runs.fault(now, less, runs.known(less, seed)))
    least = shrunk(root, fails)
    print(f"# GPUNN_TEST_SEED={seed}: {why}")
    print("# " + str(runs.fault(way, least, runs.known(least, seed))))
    print("# " + json.dumps(least, separators=(",", ":")), flush=True)


def model_and_known(runs, seed):
    """A model that the reference runs, if there is one for the seed; its loss may have no number or no
    gradient."""
    root = random_model(seed)
    known = root and runs.known(root, seed)
    if root and isinstance(known.results, str):
        root["tensors"].pop()
        known = runs.known(root, seed)
    return root, known


def main():
    count, programs = int(sys.argv[1]), sys.argv[2:]
    first, failed, counted = int(os.environ.get("GPUNN_TEST_SEED", 1)), 0, collections.Counter()
    print(f"1..1\n# GPUNN_TEST_SEED={first}")
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(folder, list(variants(programs)))
        for seed in range(first, first + count):
            root, known = model_and_known(runs, seed)
            if root is None:
                continue
            counted["models"] += 1
            counted["refused"] += isinstance(known.results, str)
            for way in runs.every_way(root, seed, known.weights):
                why = runs.fault(way, root, known)
                counted[way.name] += why is not None
                if why:
                    failed += 1
                    report(runs, way, root, seed, why)
    for name, number in counted.items():
        print(f"# {number} {name}")
    print(f"{'not ok' if failed else 'ok'} 1 - builds agree on random models, {failed} differ")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
