"""examples/gpt2.c against PyTorch (expected_output/gpt2.safetensors, make_gpt2.py): logits and the losses of
20 steps from the same weights, Hugging Face's names and shapes, resuming, and every bad input."""
import array
import json
import math
import os
import re
import struct
import subprocess
import tempfile
import unittest

from tests import tensor_file
from tests.examples import EXPECTED, program

PROGRAM = program("gpt2")
LAYERS, WIDTH = 4, 128
SMALL = ["--threads", "1", "--batch", "2", "--context", "16", "--seed", "7", "--generate", "0", "--every",
         "1", "--peak", "1", "--lr", "1e-3"]


def run(*arguments, folder=None):
    return subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120,
                          cwd=folder)


def mixed(x):
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & mask
    return x ^ x >> 31


def made(name, shape):
    """make_gpt2.py's rule."""
    key, offset = (sum(ord(c) * (i + 1) for i, c in enumerate(name)),
                   1.0 if "ln_" in name and name.endswith("weight") else 0.0)
    single = array.array("f", (((mixed(key * 1000003 + i) >> 40) / (1 << 24) - 0.5) * 0.15
                               for i in range(math.prod(shape))))
    values = array.array("f", (value + offset for value in single))
    return "F32", list(shape), values.tobytes()


def weights(prefix=""):
    shapes = {"wte.weight": (256, WIDTH), "wpe.weight": (128, WIDTH), "ln_f.weight": (WIDTH,),
              "ln_f.bias": (WIDTH,)}
    for i in range(LAYERS):
        parts = {"ln_1": (WIDTH,), "attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH),
                 "ln_2": (WIDTH,), "mlp.c_fc": (WIDTH, 4 * WIDTH), "mlp.c_proj": (4 * WIDTH, WIDTH)}
        for part, shape in parts.items():
            shapes[f"h.{i}.{part}.weight"], shapes[f"h.{i}.{part}.bias"] = shape, shape[-1:]
    return {prefix + name: made(name, shape) for name, shape in shapes.items()}


class Gpt2(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.golden = tensor_file.load(os.path.join(EXPECTED, "gpt2.safetensors"))
        cls.weights = weights()

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.weights_path = self.path("weights.safetensors")
        with open(self.path("text"), "wb") as file:
            file.write(self.golden["text"][2])

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def good(self, *arguments):
        done = run(*SMALL, "--text", self.path("text"), *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return done.stdout.decode("latin-1")

    def losses(self, text):
        return [float(loss) for loss in re.findall(r"loss (\S+)", text)]

    def close(self, got, want, relative, absolute):
        self.assertEqual(len(got), len(want))
        for i, (a, b) in enumerate(zip(got, want)):
            self.assertLessEqual(abs(a - b), absolute + relative * abs(b), f"number {i}: {a} and {b}")

    def test_logits_and_losses(self):
        for prefix in ("", "transformer."):
            tensor_file.save(self.weights_path, {prefix + name: t for name, t in self.weights.items()})
            text = self.good("--weights", self.weights_path, "--logits", self.path("logits"), "--steps",
                             "20" if not prefix else "0", "--warmup", "5", "--save", self.path("after"))
            logits = tensor_file.load(self.path("logits"))["logits"]
            self.assertEqual(logits[1], [2, 16, 256])
            self.close(tensor_file.values(logits), tensor_file.values(self.golden["logits"]), 2e-5, 2e-5)
            after = tensor_file.load(self.path("after"))
            if prefix:
                self.assertEqual(after, self.weights)
                continue
            self.close(self.losses(text), tensor_file.values(self.golden["losses"]), 2e-4, 1e-6)
            self.assertEqual({name: t[1] for name, t in after.items()},
                             {name: t[1] for name, t in self.weights.items()})
            for name, want in self.golden.items():
                if name.startswith("after/"):
                    self.close(tensor_file.values(after[name[6:]]), tensor_file.values(want), 1e-3, 2e-4)

    def test_accumulated_steps_are_one_larger_one(self):
        tensor_file.save(self.weights_path, self.weights)
        whole = self.losses(self.good("--weights", self.weights_path, "--steps", "4", "--batch", "4"))
        parts = self.losses(self.good("--weights", self.weights_path, "--steps", "4", "--batch", "2",
                                      "--accumulate", "2"))
        self.close(parts, whole, 1e-5, 1e-6)

    def test_resuming_changes_nothing(self):
        dropout = ["--dropout", "0.1"]
        self.good("--steps", "6", "--save", self.path("whole"), "--warmup", "2", *dropout)
        common = ["--warmup", "2", "--checkpoint", self.path("check"), *dropout]
        first = subprocess.Popen([PROGRAM, *SMALL, "--text", self.path("text"), "--steps", "6", *common],
                                 stdout=subprocess.PIPE)
        for line in first.stdout:  # ends it after the third step
            if line.startswith(b"step 4"):
                first.kill()
                break
        first.stdout.close()
        first.wait()
        self.good("--steps", "6", "--save", self.path("resumed"), "--resume", *common)
        self.assertEqual(tensor_file.load(self.path("whole")), tensor_file.load(self.path("resumed")))

    def test_samples(self):
        tensor_file.save(self.weights_path, self.weights)
        common = ["--weights", self.weights_path, "--steps", "0", "--generate", "40", "--prompt", "abc"]
        one, same, other = self.good(*common), self.good(*common), self.good(*common, "--seed", "8")
        self.assertEqual(one, same)
        self.assertNotEqual(one, other)
        likeliest = self.good(*common, "--temperature", "0")
        self.assertEqual(likeliest, self.good(*common, "--top-k", "1"))
        self.assertEqual(likeliest, self.good(*common, "--top-p", "1e-6"))
        self.assertIn("abc", likeliest)

    def test_cache(self):
        """Each greedy token is the most likely one when the whole text runs at once."""
        tensor_file.save(self.weights_path, self.weights)
        length, text = 48, self.path("greedy.txt")
        common = ["--weights", self.weights_path, "--steps", "0", "--threads", "1", "--context", str(length)]
        greedy = run(*common, "--prompt", "abc", "--generate", str(length - 3), "--temperature", "0")
        written = greedy.stdout.split(b"\n", 1)[1][:length]
        self.assertGreater(len(set(written)), 10)
        with open(text, "wb") as file:
            file.write(written + b".")
        self.good(*common, "--batch", "1", "--text", text, "--generate", "0", "--logits", self.path("logits"))
        logits = tensor_file.values(tensor_file.load(self.path("logits"))["logits"])
        rows = [logits[256 * i:256 * (i + 1)] for i in range(length)]
        self.assertEqual([row.index(max(row)) for row in rows[2:-1]], list(written[3:]))
        # past its end
        self.assertEqual(len(run(*common, "--prompt", "abc", "--generate", "100").stdout.split(b"\n", 1)[1]),
                         104)

    def test_built_in_text(self):
        """It learns to count, and continues to count."""
        text = run("--steps", "400", "--context", "64", "--generate", "60", "--temperature",
                   "0").stdout.decode()
        self.assertLess(self.losses(text)[-1], 0.2)
        self.assertIn("forty-one, forty-two, forty-three, forty-four, forty-five, forty-six, ", text)

    def test_vocabulary(self):
        golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "expected_output")
        files = ["--vocab", os.path.join(golden, "tokenizer_vocab.json"), "--merges",
                 os.path.join(golden, "tokenizer_merges.txt")]
        self.assertIn("step 1 loss", self.good("--steps", "1", "--context", "8", *files))
        with open(os.path.join(golden, "tokenizer_json.json"), encoding="utf-8") as file, open(
                self.path("tokenizer"), "w") as out:
            json.dump(json.load(file)["llama"]["file"], out)
        self.assertIn("step 1 loss",
                      self.good("--steps", "1", "--context", "8", "--vocab", self.path("tokenizer")))

    def test_half_precision_weights(self):
        """Half-precision weights, as on model hubs, are read into F32."""
        halves = {}
        for name, (_, shape, data) in self.weights.items():
            values = struct.unpack("<%df" % (len(data) // 4), data)
            halves["transformer." + name] = ("F16", shape, struct.pack("<%de" % len(values), *values))
        tensor_file.save(self.path("halves"), halves)
        self.good("--weights", self.path("halves"), "--steps", "0", "--save", self.path("saved"))
        saved = tensor_file.load(self.path("saved"))
        self.assertEqual(sorted(saved), sorted(self.weights))
        for name, (_, shape, data) in halves.items():
            self.assertEqual(tuple(tensor_file.values(saved[name[len("transformer."):]])),
                             struct.unpack("<%de" % (len(data) // 2), data), name)

    def refuse(self, sentence, *arguments):
        done = run(*SMALL, *arguments)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr.decode(), sentence)
        self.assertNotIn(b"step", done.stdout)

    def test_bad_input(self):
        short = {name: t for name, t in self.weights.items() if name != "h.2.mlp.c_fc.bias"}
        turned = dict(self.weights)
        kind, shape, data = turned["h.1.attn.c_attn.weight"]
        turned["h.1.attn.c_attn.weight"] = kind, shape[::-1], data
        tensor_file.save(self.path("short"), short)
        tensor_file.save(self.path("turned"), turned)
        with open(self.path("foreign"), "wb") as file:
            file.write(b"no safetensors file at all")
        with open(self.path("tiny"), "wb") as file:
            file.write(b"0123456789")
        with open(self.path("vocab"), "w") as file:
            json.dump({"a": 0}, file)
        with open(self.path("merges"), "w") as file:
            file.write("#version: 0.2\n")
        self.refuse("missing", "--weights", self.path("missing"))
        self.refuse("h.2.mlp.c_fc.bias", "--weights", self.path("short"))
        self.refuse(r"h.1.attn.c_attn.weight of .* is \[384, 128\], which does not fit .*\(\[128, 384\]\)",
                    "--weights", self.path("turned"))
        self.refuse("foreign", "--weights", self.path("foreign"))
        self.refuse("the text has 10 tokens", "--text", self.path("tiny"))
        self.refuse("longer than this configuration's 128", "--context", "129")
        self.refuse("--merges needs --vocab", "--merges", self.path("merges"))
        self.refuse("there is no vocabulary; is it a tokenizer.json", "--vocab", self.path("vocab"))
        self.refuse("vocab", "--vocab", self.path("vocab"), "--merges", self.path("merges"))
        self.refuse("no_text", "--text", self.path("no_text"))
        self.refuse("--resume needs --checkpoint", "--resume")
        self.refuse("ckpt", "--resume", "--checkpoint", self.path("no.ckpt"))


if __name__ == "__main__":
    unittest.main()
