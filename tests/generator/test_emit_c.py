"""emit_c: its text against golden files, its code under strict compilers, its kernels against the interpreter
of programs."""
import contextlib
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import interpret  # noqa: E402
import sets  # noqa: E402
from generator import emit_c, floats, scalar, stamp, table, tables_c  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
EXPECTED = os.path.join(HERE, "expected", "kernels")
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Wdouble-promotion", "-Werror",
          "-I" + ROOT]
FAST = ["gcc", "-std=gnu99", "-O2", "-march=native"]
FORMATS = {"f32": "f", "bf16": "f", "f16": "f", "i64": "q", "i32": "i", "u8": "B", "bool": "B"}


def emit(name):
    with mock.patch.object(stamp, "template_hash", lambda: "0" * 12):
        return emit_c.emit_header(sets.SETS[name]())


class Text(unittest.TestCase):
    maxDiff = None

    def test_golden(self):
        """EXPECTED=write python3 -m unittest ... renews the files, to be read before they are committed."""
        for name in sets.SETS:
            with self.subTest(name):
                path, text = os.path.join(EXPECTED, name + "_kernels.h"), emit(name)
                if os.environ.get("EXPECTED") == "write":
                    with open(path, "w", encoding="ascii", newline="\n") as file:
                        file.write(text)
                with open(path, encoding="ascii", newline="") as file:
                    self.assertEqual(file.read(), text)

    def test_same_text_twice(self):
        code = "\n".join(("import sys", "sys.path[:0] = %r" % [ROOT, HERE], "import sets",
                          "from generator import emit_c", "for make in sets.SETS.values():",
                          "    sys.stdout.write(emit_c.emit_header(make()))"))
        texts = {subprocess.run([sys.executable, "-c", code], env=dict(os.environ, PYTHONHASHSEED=seed),
                                cwd=folder, check=True, stdout=subprocess.PIPE).stdout
                 for seed, folder in (("1", ROOT), ("77", "/"))}
        self.assertEqual(len(texts), 1)

    def test_numbers(self):
        for value, text in ((0.5, "0.5f"), (1.0, "1"), (-0.0, "-0.0f"), (1e-5, "1e-05f"),
                            (math.inf, "INFINITY"), (-math.inf, "-INFINITY"), (math.nan, "NAN"),
                            (floats.f32(0.1), "0.1f"), (3e10, "3e+10f"), (16777216.0, "16777216.0f")):
            self.assertEqual(scalar.number(floats.f32(value)), text)
        generator = random.Random(1)
        for _ in range(2000):
            value = struct.unpack("<f", struct.pack("<I", generator.getrandbits(32)))[0]
            if value == value and abs(value) < math.inf:
                self.assertEqual(floats.f32(float(scalar.number(value).rstrip("f"))), value)

    def test_fast_only_where_16_bits_are_stored(self):
        def fast(dtype, math_set):
            return scalar.is_fast(sets.kernel_set("k", [], math=math_set),
                                  sets.relu(dtype).forward.launches[0])
        self.assertEqual([fast("bf16", "auto"), fast("f32", "auto"), fast("bf16", "accurate"),
                          fast("f32", "fast")], [True, False, False, True])


class Philox(interpret.Run):
    """The interpreter with gpunn.h's own dropout, and optional operands."""
    seed, step = 0x123456789ABCDEF0, (3 << 32) + 7

    def keep(self, k, p, i):
        kept = int((1 - p) * 65536 + 0.5)
        pack = i // 8
        c = [
            pack & 0xFFFFFFFF, self.random_streams[k] ^ pack >> 32 << 16, self.step & 0xFFFFFFFF,
            self.step >> 32
        ]
        k0, k1 = self.seed & 0xFFFFFFFF, self.seed >> 32
        for _ in range(10):
            low, high = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [high >> 32 ^ c[1] ^ k0, high & 0xFFFFFFFF, low >> 32 ^ c[3] ^ k1, low & 0xFFFFFFFF]
            k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
        draw = c[i % 8 // 2] >> 16 * (i % 2) & 0xFFFF
        return 65536 / kept if draw < kept else 0.0

    def load(self, operand, i):
        return operand.absent if self.data[operand.role, operand.index] is None else super().load(operand, i)


def pack(operand, values):
    return struct.pack("<%d%s" % (len(values), FORMATS[operand.dtype]), *values)


def numbers(*values):
    return b"".join(struct.pack("<q", value if value < 1 << 63 else value - (1 << 64)) for value in values)


class Compiled(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        for name in sets.SETS:
            with open(os.path.join(cls.folder, name + "_kernels.h"), "w", encoding="ascii") as file:
                file.write(emit(name))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def build(self, name, compiler=tuple(FAST), program="run"):
        path = os.path.join(self.folder, "%s_%s" % (name, program))
        if not os.path.exists(path):
            defines = ["-D%s_KERNELS_IMPLEMENTATION" % name.upper(), "-DNAME=" + name,
                       '-DKERNELS="%s_kernels.h"' % name]
            subprocess.run(list(compiler) + defines +
                           ["-I" + ROOT, "-I" + self.folder, os.path.join(HERE, "run_kernels.c"),
                            "-o", path, "-lm"], check=True)
        return path

    def call(self, path, request):
        done = subprocess.run([path], input=request, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done.stdout

    def test_strict_compilers(self):
        """All sets in one file do not disturb each other."""
        source = "".join('#define %s_KERNELS_IMPLEMENTATION\n' % name.upper() +
                         2 * ('#include "%s_kernels.h"\n' % name) for name in sets.SETS)
        for suffix, compiler in (("c", ["gcc", "-std=c99", "-O0"]),
                                 ("c", ["clang", "-std=c99", "-fsyntax-only"]),
                                 ("cc", ["g++", "-std=c++17", "-fsyntax-only"])):
            if shutil.which(compiler[0]) is None:
                continue
            path = os.path.join(self.folder, "all." + suffix)
            with open(path, "w", encoding="ascii") as file:
                file.write(source)
            done = subprocess.run(compiler + STRICT + ["-I" + self.folder, "-c", path, "-o", path + ".o"],
                                  stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 0, " ".join(compiler) + "\n" + done.stderr.decode()[:3000])

    # ---- against the interpreter ---------------------------------------------------------------------------
    def values(self, operand, size, generator):
        if operand.dtype in ("i64", "i32", "u8"):
            return [generator.randrange(10) for _ in range(size)]
        if operand.dtype == "bool":
            return [generator.randrange(2) for _ in range(size)]
        low, high = (0.5, 1.5) if operand.name in ("temperature", "rstd", "tiny", "z", "divisor") else (-2, 2)
        return [floats.f32(generator.uniform(low, high)) for _ in range(size)]

    def case(self, name, direction, batch, missing=(), accumulate=(), threads=1, given=None, path=None,
             seed=1):
        """Runs a program on both sides, on random values, or on those passed by an operand's name. Returns
        {operand name: (expected, found)}, the status, and the raw answer."""
        program = getattr(sets.SETS[name]().kernels[0], direction)
        operands = [one for one in program.operands if one.role != "stat"]
        generator, data = random.Random(seed), {}
        for operand in program.operands:
            key = operand.role, operand.index
            if operand.name in missing:
                data[key] = None
            elif key not in data:
                data[key] = self.values(operand, operand.count[0] + batch * operand.count[1], generator)
                data[key] = (given or {}).get(operand.name, data[key])
        which = tables_c.DIRECTIONS.index(direction)
        request = bytes([0]) + numbers(which, batch, threads, Philox.seed, Philox.step, 2, 5, 9,
                                       len(operands))
        for operand in operands:
            values = data[operand.role, operand.index]
            memory = b"" if values is None else pack(operand, values)
            request += numbers(operand.name in accumulate, -1 if values is None else len(memory))
            request += memory + bytes(-len(memory) % 8)
        answer = self.call(path or self.build(name), request)
        status, at, results = struct.unpack_from("<q", answer)[0], 8, {}
        for operand in operands:
            values = data[operand.role, operand.index]
            if values is not None:
                found = struct.unpack_from("<%d%s" % (len(values), FORMATS[operand.dtype]), answer, at)
                at += (len(pack(operand, values)) + 7) // 8 * 8
                results[operand.name] = found
        expected = {}
        if status == 0:
            copies = {key: None if values is None else list(values) for key, values in data.items()}
            flat = {one.name: one for one in operands}
            added = {(flat[one].role, flat[one].index) for one in accumulate}
            # C kernels store such operands as floats
            with mock.patch.dict(floats.ROUND, bf16=floats.f32, f16=floats.f32):
                Philox(program, copies, batch, (5, 9), added)
            for operand in operands:
                if operand.name in results and operand.written:
                    expected[operand.name] = (copies[operand.role, operand.index], results[operand.name])
        return expected, status, answer

    def check(self, name, direction, batch, tolerance=2e-6, **options):
        results, status, answer = self.case(name, direction, batch, **options)
        self.assertEqual(status, 0)
        self.assertTrue(results)
        for operand, (expected, found) in results.items():
            scale = max([1.0] + [abs(value) for value in expected if math.isfinite(value)])
            for i, (a, b) in enumerate(zip(expected, found)):
                same = (a != a and b != b) or a == b or abs(a - b) <= tolerance * max(abs(a), scale / 8, 0.1)
                self.assertTrue(same, "%s %s: %s[%d] is %r, not %r" % (name, direction, operand, i, b, a))
        return answer

    def test_gelu(self):
        self.check("gelu", "forward", 1)

    def test_gelu_backward(self):
        self.check("gelu", "backward", 1, tolerance=1e-5)

    def test_relu(self):
        for batch in (1, 3, 200):
            self.check("relu", "forward", batch)
            self.check("relu", "backward", batch, accumulate=("db",))
            self.check("relu_half", "backward", batch, missing=("dx",))

    def test_mixed(self):
        for batch in (1, 2, 7):
            self.check("mixed", "forward", batch, tolerance=1e-5)
            self.check("mixed", "forward", batch, tolerance=1e-5, missing=("extra", "late", "z"),
                       accumulate=("parts",))

    def test_batch_norm(self):
        for batch in (1, 5, 40):
            self.check("batch_norm", "forward", batch, tolerance=1e-5)

    def test_layer_norm(self):
        for name in ("layer_norm", "layer_norm_half"):
            for batch in (1, 3):
                self.check(name, "forward", batch, tolerance=1e-5)
                self.check(name, "backward", batch, tolerance=1e-5)
                self.check(name, "backward", batch, tolerance=1e-5, missing=("dh", "dr", "dbias"),
                           accumulate=("dx", "dweight"))

    def test_group_norm(self):
        for name, batches in (("group_norm", (1, 3, 90)), ("long_groups", (1, 2))):
            for batch in batches:
                self.check(name, "forward", batch, tolerance=1e-5)
                self.check(name, "backward", batch, tolerance=1e-5)
            self.check(name, "backward", batches[0], tolerance=1e-5, missing=("dbias",),
                       accumulate=("dx", "dweight"))

    def test_cross_entropy(self):
        for name in ("cross_entropy", "weighted"):
            for batch in (2, 33):
                labels = [i * 7 % 10 for i in range(batch)]
                self.check(name, "forward", batch, given={"labels": labels}, tolerance=1e-5)
                if name == "cross_entropy":
                    labels[1] = -100
                self.check(name, "forward", batch, given={"labels": labels}, accumulate=("dlogits",),
                           tolerance=1e-5)
                self.check(name, "forward", batch, given={"labels": labels}, missing=("dlogits",),
                           tolerance=1e-5)

    def test_a_label_that_is_no_class_changes_nothing(self):
        for label in (10, -1, -101, 1 << 40):
            labels = [3, 4, label, 5]
            _, status, answer = self.case("cross_entropy", "forward", 4, given={"labels": labels})
            self.assertEqual(status, 1)
            _, status, other = self.case("cross_entropy", "forward", 4, given={"labels": [3, 4, 2, 5]})
            self.assertEqual(status, 0)
            self.assertNotEqual(answer[8:], other[8:])
            self.assertEqual(answer[8:8 + 160], other[8:8 + 160])  # the logits
        _, status, _ = self.case("weighted", "forward", 2, given={"labels": [10, 1]})
        self.assertEqual(status, 1)

    def test_softmax(self):
        for batch in (1, 4):
            self.check("softmax", "evaluation", batch)
            self.check("softmax", "evaluation", batch, missing=("position",))
        self.check("single", "evaluation", 5)
        self.check("long_rows", "evaluation", 1)
        self.check("long_rows", "evaluation", 1, missing=("position",))

    def test_dropout(self):
        for batch in (1, 2, 9):
            self.check("dropout", "forward", batch)
            self.check("dropout_rows", "forward", batch)

    def test_functions(self):
        self.check("functions", "forward", 3, tolerance=3e-6)

    def test_functions_at_the_edges(self):
        edges = [floats.f32(value) for value in (
            0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -3.0, math.inf, -math.inf, math.nan, 1e-40, 3e38, -3e38,
            88.5, -87.0)]
        given = {"x": [x for x in edges for _ in edges], "z": edges * len(edges)}
        results, status, _ = self.case("functions", "forward", len(edges) ** 2 // 64, given=given)
        self.assertEqual(status, 0)
        for operand, (expected, found) in results.items():
            for i, (a, b) in enumerate(zip(expected, found)):
                x, z, a = given["x"][i], given["z"][i], floats.f32(a)
                if operand in ("sin_x", "cos_x") and 1e6 < abs(x) < math.inf:
                    self.assertLessEqual(abs(b), 1.0)
                elif not any(0 < abs(value) < 2 ** -125 for value in (x, z)):  # denormals count as 0
                    same = (a != a and b != b) or a == b or abs(a - b) <= 2e-6 * abs(a) + 3e-38
                    self.assertTrue(same, "%s of %r, %r is %r, not %r" % (operand, x, z, b, a))
                    if a == 0 and operand in ("div_xz", "sqrt_x", "tanh_x", "erf_x", "abs_x", "pow_xz",
                                              "sinh_x", "atan2_xz", "fmod_xz"):
                        self.assertEqual(math.copysign(1, a), math.copysign(1, b),
                                         "%s of %r, %r" % (operand, x, z))

    def test_no_result_depends_on_threads(self):
        for name, direction, batch in (
                ("gelu", "backward", 900), ("relu", "backward", 9001), ("mixed", "forward", 200),
                ("batch_norm", "forward", 700),
                ("layer_norm", "backward", 130), ("group_norm", "backward", 400),
                ("cross_entropy", "forward", 5000), ("dropout", "forward", 300)):
            program = getattr(sets.SETS[name]().kernels[0], direction)
            answers = set()
            for threads in (1, 2, 7):
                with mock.patch.object(interpret.Run, "launch", lambda self, launch: None):
                    given = {"labels": [i % 10 for i in range(batch)]}
                    answers.add(self.case(name, direction, batch, threads=threads, given=given)[2])
            self.assertEqual(len(answers), 1, name)
            self.assertTrue(program)

    def test_memory(self):
        """Under the address and undefined-behaviour sanitizers."""
        compiler = ["gcc", "-std=gnu99", "-O0", "-g", "-fsanitize=address,undefined",
                    "-fno-sanitize-recover=all"]
        for name, direction, batch, missing in (
                ("mixed", "forward", 3, ("late", "extra")), ("layer_norm", "backward", 2, ("dr",)),
                ("group_norm", "forward", 2, ()), ("long_groups", "forward", 1, ()),
                ("group_norm", "backward", 2, ("dbias",)),
                ("dropout_rows", "forward", 3, ()), ("cross_entropy", "forward", 3, ())):
            path = self.build(name, compiler, "asan")
            self.check(name, direction, batch, missing=missing, path=path, tolerance=1e-5,
                       given={"labels": [1, 2, 3]})

    def test_vectors(self):
        """A build for any processor has the loops for each kind of vector."""
        try:
            with open("/proc/cpuinfo", encoding="ascii") as file:
                flags = file.read().split()
        except OSError:
            flags = []
        for lanes, flag in (("4", None), ("8", "avx2"), ("16", "avx512dq")):
            if flag and flag not in flags:
                continue
            with mock.patch.dict(os.environ, LANES=lanes):
                for name, direction, batch in (("gelu", "forward", 3), ("mixed", "forward", 5),
                                               ("layer_norm", "backward", 3),
                                               ("group_norm", "backward", 3), ("dropout_rows", "forward", 3)):
                    self.check(name, direction, batch, tolerance=1e-5,
                               path=self.build(name, ["gcc", "-std=gnu99", "-O2"], "any"))
                self.check_updates(self.build("updates", ["gcc", "-std=gnu99", "-O2"], "any"))

    # ---- the optimizer -------------------------------------------------------------------------------------
    def test_updates(self):
        self.check_updates(self.build("updates"))

    def check_updates(self, path):
        generator, count = random.Random(3), 1003
        for which, update in enumerate(sets.SETS["updates"]().updates):
            for first in (False, True):
                arrays = [[floats.f32(generator.uniform(0.01, 1)) * sign for _ in range(count)]
                          for sign in (1, -1, 1, 1, 0.1)]
                if update["kind"] in ("adam", "adamw", "nadam", "radam"):
                    arrays[3] = [value * 0.1 for value in arrays[3]]
                given = [-0.5 if update["maximize"] else 0.5, 0.3, 0.01, 0.2, 0.999, 1.5, 0.07]
                answers = []
                for threads in (1, 2):
                    once = _once(update, given, first)
                    settings = [int(round(value * 1e9)) for value in given[:4] + once + [0] * (8 - len(once))]
                    request = bytes([0]) + numbers(3, which, threads, _decay(update), *settings) + numbers(5)
                    for array in arrays:
                        memory = struct.pack("<%df" % count, *array)
                        request += numbers(0, len(memory)) + memory + bytes(-len(memory) % 8)
                    answers.append(self.call(path, request))
                self.assertEqual(answers[0], answers[1])
                expected, size = _reference_update(update, arrays, given, first), (4 * count + 7) // 8 * 8
                for k in range(5):
                    found = struct.unpack_from("<%df" % count, answers[0], 8 + k * size)
                    for a, b in zip(expected[k], found):
                        self.assertLessEqual(abs(a - b), 3e-6 * max(1, abs(a)), (update["kind"], which, k))


def _apart(update):
    return update["kind"] in ("adamw", "lion") or update.get("decoupled_weight_decay", False)


def _decay(update):
    """The index of weight_decay among the settings."""
    return [key for key, *_ in table.optimizers()[update["kind"]].settings].index("weight_decay")


def _once(update, given, first):
    """The numbers of a kind's row. Those that follow from lr or a number of steps are fixed."""
    *_, rate, shrink, root_scale, lead = given
    values = {"rate": rate, "shrink": shrink if _apart(update) else 1, "root_scale": root_scale, "lead": lead,
              "enough": not first}
    names = dict(update, step=1 if first else 2, where=lambda condition, yes, no: yes if condition else no,
                 lr=None)
    for name, text in table.optimizers()[update["kind"]].once:
        with contextlib.suppress(NameError, TypeError):
            values.setdefault(name, eval(text, {}, names))
    return [values.get(name, 0) for name, _ in table.optimizers()[update["kind"]].once]


def _reference_update(update, arrays, given, first):
    """One step of torch.optim's formulas in double."""
    scale, limit, decay, rate, shrink, root_scale, lead = given
    apart = _apart(update)
    shrink = shrink if apart else 1
    results = [list(array) for array in arrays]
    for i, (p, g, a, b, c) in enumerate(zip(*arrays)):
        g = max(-limit, min(limit, g * scale)) + (0 if apart else decay * p)
        if update["kind"] == "sgd":
            if update["momentum"]:
                a = g if first else update["momentum"] * a + (1 - update["dampening"]) * g
                g = g + update["momentum"] * a if update["nesterov"] else a
            p -= rate * g
        elif update["kind"] in ("adam", "adamw"):
            a = update["beta1"] * a + (1 - update["beta1"]) * g
            b = update["beta2"] * b + (1 - update["beta2"]) * g * g
            p = p * shrink - rate * a / (math.sqrt(b) * root_scale + update["eps"])
        elif update["kind"] == "adamax":
            a = update["beta1"] * a + (1 - update["beta1"]) * g
            b = max(update["beta2"] * b, abs(g) + update["eps"])
            p -= rate * a / b
        elif update["kind"] in ("nadam", "radam"):
            a = update["beta1"] * a + (1 - update["beta1"]) * g
            b = update["beta2"] * b + (1 - update["beta2"]) * g * g
            root = math.sqrt(b) * root_scale + update["eps"]
            if update["kind"] == "nadam":
                p = p * shrink - (lead * g + rate * a) / root
            else:
                p = p * shrink - rate * (a if first else a / (math.sqrt(b) + update["eps"]))
        elif update["kind"] == "lion":
            way = update["beta1"] * a + (1 - update["beta1"]) * g
            p = p * shrink - rate * ((way > 0) - (way < 0))
            a = update["beta2"] * a + (1 - update["beta2"]) * g
        elif update["kind"] == "adadelta":
            a = update["rho"] * a + (1 - update["rho"]) * g * g
            delta = math.sqrt(b + update["eps"]) / math.sqrt(a + update["eps"]) * g
            b = update["rho"] * b + (1 - update["rho"]) * delta * delta
            p -= rate * delta
        elif update["kind"] == "rmsprop":
            a = update["alpha"] * a + (1 - update["alpha"]) * g * g
            square = a
            if update["centered"]:
                c += (1 - update["alpha"]) * (g - c)
                square -= c * c
            move = g / (math.sqrt(square) + update["eps"])
            if update["momentum"]:
                b = move = update["momentum"] * b + move
            p -= rate * move
        else:
            a += g * g
            p -= rate * g / (math.sqrt(a) + update["eps"])
        for k, value in ((0, p), (2, a), (3, b), (4, c)):
            results[k][i] = value
    return results


if __name__ == "__main__":
    unittest.main()
