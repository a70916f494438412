"""python3 -m generator: its output, --check, and that every failure is one sentence and leaves no partial
file."""
import array
import contextlib
import io
import json
import math
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

from generator import __main__ as command
from generator import outputs, partition, spec, stamp
from tests import tensor_file

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SPEC = {"gpunn_spec": 1, "name": "small", "tensors": [
    {"op": "input", "name": "x", "shape": ["N", 64]},
    {"op": "linear", "name": "fc", "inputs": ["x"], "out_features": 64},
    {"op": "gelu", "id": "g", "inputs": ["fc"]}, {"op": "mul", "id": "p", "inputs": ["g", "x"]},
    {"op": "layer_norm", "name": "ln", "inputs": ["p"]}, {"op": "square", "id": "s", "inputs": ["ln"]},
    {"op": "mean", "name": "loss", "inputs": ["s"]}], "loss": "loss", "optimizer": {"type": "adamw"},
        "outputs": ["ln"]}


class Cli(unittest.TestCase):
    def setUp(self):
        self.folder = os.path.realpath(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.spec = self.path("small.json")
        self.write(self.spec, json.dumps(SPEC))

    def path(self, *names):
        return os.path.join(self.folder, *names)

    @staticmethod
    def write(path, text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    @staticmethod
    def bytes(path):
        with open(path, "rb") as file:
            return file.read()

    def run_main(self, *words):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = command.main(list(words))
        return code, out.getvalue(), err.getvalue()

    def good(self, *words):
        code, out, err = self.run_main(*words)
        self.assertEqual((code, err), (0, ""))
        return out

    def bad(self, sentence, *words, code=1):
        """Runs it, and expects one line of error and no new file."""
        before = self.tree()
        found, out, err = self.run_main(*words)
        self.assertEqual((found, out), (code, ""), err)
        self.assertRegex(err, r"\Agenerator: [^\n]+\n\Z")
        self.assertRegex(err, sentence)
        self.assertEqual(self.tree(), before)

    def tree(self):
        return sorted((path, self.bytes(path)) for folder, _, names in os.walk(self.folder) for name in names
                      for path in [os.path.join(folder, name)])

    def test_writes(self):
        self.good(self.spec, "-o", self.path("small"), "--emit-model")
        self.assertEqual(sorted(os.listdir(self.folder)),
                         ["small.json", "small_kernels.cu", "small_kernels.h", "small_model.h"])
        model = spec.load(self.spec)
        for name in ("small_kernels.h", "small_kernels.cu", "small_model.h"):
            text = self.bytes(self.path(name)).decode("ascii")
            self.assertNotIn("\r", text)
            head = text.splitlines()[:6]
            self.assertIn(name, head[0])
            self.assertEqual(head[2], " * gpunn %s, templates %s" % (stamp.VERSION, stamp.template_hash()))
            self.assertEqual(head[3], " * spec sha256 " + model.sha256())
            self.assertEqual(head[4],
                             " * renew it with: python3 -m generator small.json -o small --emit-model")
        self.assertIn("const gpunn_kernel_set small_kernels",
                      self.bytes(self.path("small_kernels.h")).decode())

    def trained(self):
        """The path of weights for SPEC."""
        sizes = {"fc.weight": [64, 64], "fc.bias": [64], "ln.weight": [64], "ln.bias": [64]}
        tensors = {name: ("F32", shape,
                          array.array("f", [math.sin(k) for k in range(math.prod(shape))]).tobytes())
                   for name, shape in sizes.items()}
        tensor_file.save(self.path("w"), tensors)
        return self.path("w"), tensors

    def test_writes_plain_c(self):
        words = self.spec, "-o", self.path("small"), "--inference"
        self.good(*words)
        self.assertEqual(sorted(os.listdir(self.folder)), ["small.json", "small_inference.h"])
        self.good(*words, "--check")
        self.bad("is stale; renew it with: .* --inference --batch 2", *words, "--check", "--batch", "2")
        path, tensors = self.trained()
        self.good(*words, "--weights", path)
        text = self.bytes(self.path("small_inference.h")).decode("ascii")
        self.assertIn(" * renew it with: python3 -m generator small.json -o small --inference --weights w\n",
                      text)
        self.assertIn("const small_weights small_trained = {", text)
        tensor_file.save(self.path("x"),
                         {"x": ("F32", [3, 64], array.array("f", [0.01 * k for k in range(192)]).tobytes())})
        out = self.good(*words, "--weights", path, "--int8", "--samples", self.path("x"))
        self.assertRegex(out, r"\Aint8 against float, 3 samples:\n  ln: largest difference \S+, root mean "
                         r"square \S+ of \S+ \([0-9.]+ %\)\n\Z")
        self.bad("'x' in .*/w is nothing, but must be F32 \\[N, 64\\]", *words, "--weights", path, "--int8",
                 "--samples", path)
        with mock.patch.dict(os.environ, CC="no-such-compiler"):
            self.bad("needs a C compiler, but no-such-compiler", *words, "--weights", path, "--int8",
                     "--samples", self.path("x"))

    def test_writes_device(self):
        words = self.spec, "-o", self.path("small"), "--device"
        self.good(*words)
        self.assertEqual(sorted(os.listdir(self.folder)), ["small.json", "small_device.cuh"])
        self.good(*words, "--check")
        text = self.bytes(self.path("small_device.cuh")).decode("ascii")
        self.assertIn(" * renew it with: python3 -m generator small.json -o small --device\n", text)
        self.assertIn("static __device__ void small_forward(const small_weights *weights, const float *x, "
                      "float *ln)\n", text)
        self.good(*words, "--inference", "--store", "f16", "--warp")
        self.assertIn("small_inference.h", os.listdir(self.folder))
        text = self.bytes(self.path("small_device.cuh")).decode("ascii")
        self.assertIn(" --inference --device --warp --store f16\n", text)
        self.assertIn("void small_forward(const small_weights_f16 *weights, const float *x, float *ln)\n",
                      text)
        self.assertIn("void small_forward_warp(const small_weights_warp *weights, const float *x, float *ln, "
                      "bool active)\n",
                      re.sub(r",\n +", ", ", text))
        self.bad("--warp needs --device", *words[:-1], "--warp", code=2)
        self.bad("do not go together", *words, "--inference", "--int8", "--weights", self.path("w"), code=2)
        self.good(*words, "--outputs", "g")
        self.assertIn("const float *x, float *g)\n",
                      self.bytes(self.path("small_device.cuh")).decode("ascii"))
        self.bad("1 float inputs and 2 outputs", *words, "--outputs", "p,ln")
        self.bad("there is no tensor 'lss'; did you mean 'loss'", *words, "--outputs", "p,lss")
        self.bad("--outputs needs", *words[:-1], "--outputs", "p", code=2)

    def test_plain_c_that_cannot_be(self):
        words = self.spec, "-o", self.path("small"), "--inference"
        path, tensors = self.trained()
        for option in (["--weights", path], ["--device", "--batch", "2"], ["--int8"], ["--batch", "2"],
                       ["--block", "2"], ["--samples", path]):
            self.bad("need --inference", self.spec, "-o", self.path("small"), *option, code=2)
        for option in ("--report", "--emit-model", "--math=fast"):
            self.bad("for kernels", *words, option, code=2)
        self.bad("--int8 needs --weights", *words, "--int8", code=2)
        self.bad("--batch 0", *words, "--batch", "0", code=2)
        self.bad("--block 4,0: give lengths", *words, "--block", "4,0", code=2)
        self.bad("neither --device nor --samples", *words, "--block", "4", "--device", code=2)
        for sizes, said in (({"T": {"max": 3}}, "the size 'T' is min 1, max 3, multiple 1"),
                            ({"T": {}, "U": {}}, "but the model has 2: T, U")):
            with open(self.path("sized.json"), "w", encoding="ascii") as file:
                json.dump({"gpunn_spec": 1, "sizes": sizes, "tensors": [
                    {"op": "input", "name": "x", "shape": ["T"]}, {"op": "relu", "inputs": ["x"]}]}, file)
            self.bad(said, self.path("sized.json"), "-o", self.path("sized"), "--inference", "--block", "4")
        self.bad("--samples needs --int8", *words, "--weights", path, "--samples", path, code=2)
        self.bad("cannot be read", *words, "--weights", self.path("none"))
        self.bad("this is no safetensors file", *words, "--weights", self.spec)
        tensors["fc.bias"] = ("F32", [8, 8], tensors["fc.bias"][2])
        tensor_file.save(path, tensors)
        self.bad("'fc.bias' in .* is F32 \\[8, 8\\], but must be", *words, "--weights", path)
        del tensors["fc.bias"], tensors["ln.bias"]
        tensor_file.save(path, tensors)
        self.bad("lacks 'fc.bias', 'ln.bias'; save", *words, "--weights", path)
        self.write(self.spec, json.dumps(dict(SPEC, outputs=["loss"])))
        self.bad("the model has no outputs but its loss", *words)

    def test_is_deterministic(self):
        """Another hash seed, another current folder, another place, another order of keys: the same bytes."""
        self.good(self.spec, "-o", self.path("small"))
        expected = [self.bytes(self.path("small_kernels" + end)) for end in (".h", ".cu")]
        for i, seed in enumerate(("0", "1", "4321")):
            folder = self.path("elsewhere%d" % i)
            os.mkdir(folder)
            self.write(os.path.join(folder, "small.json"),
                       json.dumps({key: SPEC[key] for key in reversed(list(SPEC))}, indent=i))
            prefix = "" if i else os.path.join(folder, "")
            words = [prefix + "small.json", "-o", prefix + "small"]
            done = subprocess.run([sys.executable, "-m", "generator"] + words, cwd=folder if i else "/",
                                  stderr=subprocess.PIPE,
                                  env=dict(os.environ, PYTHONPATH=ROOT, PYTHONHASHSEED=seed))
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            self.assertEqual([self.bytes(os.path.join(folder, "small_kernels" + end))
                              for end in (".h", ".cu")], expected)

    def test_check(self):
        words = self.spec, "-o", self.path("small")
        self.bad("small_kernels.h is missing; write it with: python3 -m generator small.json -o small",
                 *words, "--check")
        self.good(*words)
        before = self.tree()
        self.good(*words, "--check")
        self.assertEqual(self.tree(), before)
        self.bad("small_kernels.h is stale; renew it with: .* --emit-model", *words, "--check",
                 "--emit-model")
        for name in ("small_kernels.h", "small_kernels.cu"):
            data = self.bytes(self.path(name))
            for changed in (data[:-1], data + b"\n", data.replace(b"sha256 ", b"sha256 0", 1)):
                with open(self.path(name), "wb") as file:
                    file.write(changed)
                self.bad("%s is stale; renew it with: python3" % name, *words, "--check")
            with open(self.path(name), "wb") as file:
                file.write(data.replace(b"\n", b"\r\n"))  # as git may check it out
            self.good(*words, "--check")
            self.good(*words)
        self.write(self.spec, json.dumps(dict(SPEC, math="fast", precision="bf16")))
        self.bad("is stale", *words, "--check")

    def test_the_command_in_the_file_renews_it(self):
        os.mkdir(self.path("specs"))
        spec_path = self.path("specs", "a model.json")
        shutil.move(self.spec, spec_path)
        self.good(spec_path, "-o", self.path("m"), "--math", "accurate")
        line = re.search(r"renew it with: (.*)", self.bytes(self.path("m_kernels.h")).decode()).group(1)
        words = shlex.split(line)
        self.assertEqual(words, ["python3", "-m", "generator", "specs/a model.json", "-o", "m", "--math",
                                 "accurate"])
        done = subprocess.run([sys.executable] + words[1:] + ["--check"], cwd=self.folder,
                              env=dict(os.environ, PYTHONPATH=ROOT))
        self.assertEqual(done.returncode, 0)

    def test_command(self):
        inside = os.path.join(ROOT, "examples", "a.json"), os.path.join(ROOT, "examples", "b")
        self.assertEqual(stamp.command(*inside), "python3 -m generator examples/a.json -o examples/b")
        self.assertEqual(stamp.command("/one/a.json", "/two/b", ["--math", "fast"]),
                         "python3 -m generator a.json -o b --math fast")
        hostile = stamp.command('/one/*/"\\\n\u00e9??/a.json', "/one/b")
        self.assertNotRegex(hostile, r'\*/|/\*|["\\\n]|\?\?')
        self.assertTrue(all(" " <= character <= "~" for character in hostile))

    def test_report(self):
        self.assertIn("launches", self.good(self.spec, "--report"))
        self.assertEqual(os.listdir(self.folder), ["small.json"])
        self.assertIn("launches", self.good(self.spec, "-o", self.path("small"), "--report"))
        self.assertIn("launches", self.good(self.spec, "-o", self.path("small"), "--report", "--check"))

    def test_report_of_any_names(self):
        out = self.good(os.path.join(HERE, "expected", "vectors", "names.json"), "--report")
        self.assertTrue(all(character == "\n" or " " <= character <= "~" for character in out))

    def test_math(self):
        texts = []
        self.write(self.spec, json.dumps(dict(SPEC, precision="bf16")))
        for math in ("accurate", "fast"):
            self.good(self.spec, "-o", self.path("small"), "--math", math)
            texts.append(self.bytes(self.path("small_kernels.cu")) + self.bytes(self.path("small_kernels.h")))
        self.assertNotEqual(texts[0].replace(b"accurate", b"fast"), texts[1])

    def test_usage(self):
        out = self.path("small")
        for sentence, words in (("MODEL.json", ()), ("-o NAME is missing", (self.spec,)),
                                ("invalid choice: 'quick'", (self.spec, "-o", out, "--math", "quick")),
                                ("--what", (self.spec, "-o", out, "--what")),
                                ("'9x' begins", (self.spec, "-o", self.path("9x"))),
                                ("'a-b' begins", (self.spec, "-o", self.path("a-b"))),
                                ("'' begins", (self.spec, "-o", self.path(""))),
                                ("'x\\\\xe9' begins", (self.spec, "-o", self.path("x\u00e9"))),
                                ("need -o NAME", (self.spec, "--report", "--check")),
                                ("--registers needs --report", (self.spec, "-o", out, "--registers"))):
            self.bad(sentence, *words, code=2)

    def test_bad_spec(self):
        out = self.path("small")
        self.bad("no.json: cannot be read: No such file", self.path("no.json"), "-o", out)
        self.bad("cannot be read", self.folder, "-o", out)
        self.write(self.path("bad.json"), json.dumps(SPEC, indent=1).replace('"gelu"', '"gleu"'))
        self.bad(r"bad\.json:22:10: unknown op 'gleu'; did you mean 'gelu'\?", self.path("bad.json"), "-o",
                 out)
        self.write(self.path("bad.json"), json.dumps(dict(SPEC, fuse={"always": [["fc", "g"]]})))
        self.bad(r"bad\.json:1:\d+: fuse\.always", self.path("bad.json"), "-o", out)
        self.write(self.path("bad.json"), '{"gpunn_spec": 1, "tensors": []}')
        self.bad(r"bad\.json: the model has no tensors", self.path("bad.json"), "-o", out)
        self.write(self.path("bad\u00e9.json"), "x")
        self.bad(r"bad\\xe9\.json:1:1", self.path("bad\u00e9.json"), "-o", out)

    def test_unwritable(self):
        self.bad("nowhere/small_kernels.h cannot be written: No such file", self.spec, "-o",
                 self.path("nowhere", "small"))
        self.bad("cannot be written: Not a directory", self.spec, "-o", os.path.join(self.spec, "small"))
        self.good(self.spec, "-o", self.path("small"))
        os.remove(self.path("small_kernels.cu"))
        os.mkdir(self.path("small_kernels.cu"))
        self.write(self.path("small_kernels.h"), "old")
        self.bad("small_kernels.cu cannot be written: it is a folder", self.spec, "-o", self.path("small"))
        self.assertEqual(self.bytes(self.path("small_kernels.h")), b"old")

    def test_links_and_modes_stay(self):
        header, elsewhere = self.path("small_kernels.h"), self.path("elsewhere.h")
        self.write(elsewhere, "old")
        os.chmod(elsewhere, 0o666)
        os.symlink("elsewhere.h", header)
        self.write("%s.%d.part" % (header, os.getpid()), "left by a process of our number that was killed")
        self.good(self.spec, "-o", self.path("small"))
        self.assertTrue(os.path.islink(header))
        self.assertIn(b"gpunn_kernel_set", self.bytes(elsewhere))
        self.assertEqual(os.stat(elsewhere).st_mode & 0o777, 0o666)

    def fifo(self, *names):
        """A pipe of that name. When its thread is joined, it has what was read."""
        read = []
        os.mkfifo(self.path(*names))
        thread = threading.Thread(target=lambda: read.append(self.bytes(self.path(*names))), daemon=True)
        thread.start()
        return thread, read

    def test_a_pipe_is_written_itself(self):
        thread, read = self.fifo("small_kernels.h")
        self.good(self.spec, "-o", self.path("small"))
        thread.join(60)
        self.assertTrue(stat.S_ISFIFO(os.stat(self.path("small_kernels.h")).st_mode))
        self.assertIn(b"gpunn_kernel_set", read[0])

    def test_loss_of_power(self):
        """A file is synced before it replaces another, and its folder after that."""
        events, sync, replace = [], os.fsync, os.replace

        def synced(descriptor):
            events.append(("synced", os.fstat(descriptor).st_ino))
            sync(descriptor)

        def replaced(part, target):
            events.append(("replaced", os.stat(part).st_ino))
            replace(part, target)

        with mock.patch("os.fsync", synced), mock.patch("os.replace", replaced):
            outputs.write(self.path("weights"), [b"a", b"b"])
            self.good(self.spec, "-o", self.path("small"))
        kernels = [["synced", file] for file in ("small_kernels.h", "small_kernels.cu")]
        self.assertEqual(events, [(done, os.stat(self.path(file)).st_ino) for done, file in [
            ("synced", "weights"), ("replaced", "weights"), ("synced", ""), *kernels,
            ("replaced", "small_kernels.h"), ("synced", ""), ("replaced", "small_kernels.cu"),
            ("synced", "")]])

    def test_outputs(self):
        """Output of exporters and importers goes into a pipe, to a link's target, and nowhere after a
        failure."""
        thread, read = self.fifo("pipe")
        outputs.write(self.path("pipe"), [b"a", b"b"])
        thread.join(60)
        self.assertEqual((read, stat.S_ISFIFO(os.stat(self.path("pipe")).st_mode)), ([b"ab"], True))
        os.symlink("elsewhere", self.path("link"))
        for data in b"new", b"newer":
            outputs.write(self.path("link"), [data])
            self.assertEqual((os.readlink(self.path("link")), self.bytes(self.path("elsewhere"))),
                             ("elsewhere", data))
        os.chmod(self.path("elsewhere"), 0o604)

        def failing():
            yield b"half"
            raise OSError(28, "No space left on device")

        before = sorted(os.listdir(self.folder))
        self.assertRaises(OSError, outputs.write, self.path("link"), failing())
        self.assertRaises(IsADirectoryError, outputs.write, self.folder, [b"a"])
        outputs.write(self.path("link"), [b"last"])
        self.assertEqual((self.bytes(self.path("elsewhere")),
                          os.stat(self.path("elsewhere")).st_mode & 0o777), (b"last", 0o604))
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_a_full_disk_leaves_the_old_files(self):
        self.good(self.spec, "-o", self.path("small"))
        self.write(self.path("small_kernels.h"), "old")
        real = open

        def failing(path, mode="r", **rest):
            file = real(path, mode, **rest)
            if mode == "xb" and ".cu." in str(path):
                file.close()
                file = mock.MagicMock()
                file.__enter__.return_value.write.side_effect = OSError(28, "No space left on device")
                file.__exit__.return_value = False
            return file

        with mock.patch("builtins.open", failing):
            self.bad("small_kernels.cu cannot be written: No space left", self.spec, "-o", self.path("small"))
        self.assertEqual(self.bytes(self.path("small_kernels.h")), b"old")

    def test_names_are_no_commands_for_a_terminal(self):
        path = self.path("bad.json")
        self.write(path, '{"gpunn_spec":1,"tensors":[{"op":"\\u001b]0;x\\u0007\\u009b31m\\u007f","id":"a"}]}')
        code, _, err = self.run_main(path, "-o", self.path("small"))
        self.assertEqual(code, 1)
        self.assertIn(r"\x1b]0;x\x07\x9b31m\x7f", err)
        self.assertTrue(err[:-1].isprintable(), err)

    def test_internal_errors_are_one_sentence(self):
        with mock.patch.object(partition, "partition", side_effect=KeyError("a\nb")):
            self.bad("internal error, please report it with the spec: KeyError", self.spec, "-o",
                     self.path("small"), code=3)


if __name__ == "__main__":
    unittest.main()
