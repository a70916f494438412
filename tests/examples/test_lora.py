"""examples/lora.c against transformers and peft (expected_output/lora.safetensors, make_lora.py): the loss of
ten steps of AdamW on given adapters, the adapters after them, and the logits then; and every bad input."""
import json
import os
import re
import subprocess
import unittest

from generator import quantize
from tests import tensor_file
from tests.examples import EXPECTED, program, test_llama
from tests.examples.test_gpt2 import mixed
from tests.examples.test_llama import CONFIGS, PROMPT, made

RANK, ALPHA, STEPS, BATCH, CONTEXT, LR = 4, 6, 10, 2, 12, 0.002
TEXT = [mixed(7 + i) % 96 for i in range(STEPS * BATCH * (CONTEXT + 1))]
LAYERS = ("q_proj", "v_proj")
PREFIX = "base_model.model."


def adapter(config):
    """Adapters of queries and values, neither of whose matrices is zero, with peft's names."""
    width = config["hidden_size"]
    head = config.get("head_dim", width // config["num_attention_heads"])
    out = {"q_proj": config["num_attention_heads"] * head, "v_proj": config["num_key_value_heads"] * head}
    tensors = {}
    for i in range(config["num_hidden_layers"]):
        for layer in LAYERS:
            name = f"{PREFIX}model.layers.{i}.self_attn.{layer}.lora_"
            tensors[name + "A.weight"] = made(name + "A", (RANK, width))
            tensors[name + "B.weight"] = made(name + "B", (out[layer], RANK))
    return tensors


class Lora(unittest.TestCase):
    setUp, path, model = test_llama.Llama.setUp, test_llama.Llama.path, test_llama.Llama.model

    @classmethod
    def setUpClass(cls):
        cls.golden = tensor_file.load(os.path.join(EXPECTED, "lora.safetensors"))

    def given(self, config, **changes):
        """A model, the text, and adapters to begin with."""
        self.model(config)
        with open(self.path("text"), "w") as file:
            file.write(" ".join(map(str, TEXT)))
        os.mkdir(self.path("given"))
        tensor_file.save(self.path("given/adapter_model.safetensors"), adapter(config))
        with open(self.path("given/adapter_config.json"), "w") as file:
            json.dump({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0,
                       "target_modules": list(LAYERS), **changes}, file)

    def call(self, *arguments):
        given = [program("lora"), "--epochs", "1", "--threads", "1", "--out", self.path("out"), *arguments]
        return subprocess.run(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)

    def run_program(self, *arguments):
        return self.call("--model", self.folder.name, "--ids", " ".join(map(str, PROMPT)), "--text",
                         self.path("text"), "--context", str(CONTEXT), "--batch", str(BATCH), "--lr", str(LR),
                         "--generate", "3", *arguments)

    def tuned(self, *arguments):
        done = self.run_program("--in-order", "--validation", "0", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def close(self, got, want, tolerance, what):
        got, want = tensor_file.values(got), tensor_file.values(want)
        self.assertEqual(len(got), len(want))
        for i, (a, b) in enumerate(zip(got, want)):
            self.assertLessEqual(abs(a - b), tolerance * (1 + abs(b)), f"{what}, number {i}: {a} and {b}")

    def test_steps(self):
        for name in ("grouped", "tied"):
            with self.subTest(name):
                self.setUp()
                self.given(CONFIGS[name])
                done = self.tuned("--adapter", self.path("given"), "--logits", self.path("logits"))
                losses = tensor_file.values(self.golden[name + "/losses"])
                told = float(re.search(rb"loss (\S+)", done.stderr).group(1))
                self.assertLessEqual(abs(told - sum(losses) / STEPS), 1e-3, done.stderr)
                self.close(tensor_file.load(self.path("logits"))["logits"], self.golden[name + "/logits"],
                           2e-3, name)
                for key, tensor in tensor_file.load(self.path("out/adapter/adapter_model.safetensors")
                                                    ).items():
                    self.close(tensor, self.golden[f"{name}/{key}"], 2e-3, f"{name} {key}")

    def test_peft(self):
        """What it saves is what peft loads."""
        try:
            import peft
            import torch
        except ImportError:
            self.skipTest("peft and torch are not installed")
        from tests.examples import make_llama
        config = CONFIGS["grouped"]
        self.given(config)
        self.tuned("--rank", "3", "--layers", "{q,k,v,o,up}_proj", "--logits", self.path("logits"))
        net = peft.PeftModel.from_pretrained(make_llama.load(config), self.path("out/adapter"))
        with torch.no_grad():
            want = net(torch.tensor([PROMPT])).logits[0].float()
        _, shape, data = tensor_file.load(self.path("logits"))["logits"]
        got = torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape)
        self.assertTrue(torch.allclose(got, want, rtol=1e-4, atol=1e-4), (got - want).abs().max())

    def test_precisions(self):
        """16 bits need less memory, and the loss stays about the same."""
        self.given(CONFIGS["tied"])
        told = {}
        for precision in ("f32", "bf16", "f16"):
            done = self.tuned("--adapter", self.path("given"), "--precision", precision)
            told[precision] = float(re.search(rb"takes (\S+) MiB", done.stdout).group(1)), float(
                re.search(rb"loss (\S+)", done.stderr).group(1))
        for precision in ("bf16", "f16"):
            self.assertLess(told[precision][0], told["f32"][0])
            self.assertLess(abs(told[precision][1] - told["f32"][1]), 0.2)

    def test_blocks(self):
        """Weights in blocks need less memory, and the loss stays about the same; a .gguf's blocks stay."""
        config = dict(CONFIGS["tied"], hidden_size=64, intermediate_size=96, head_dim=16)
        self.given(config)
        told = {}
        for weights in ("as-they-are", "q8_0", "q4_0"):
            done = self.tuned("--weights", weights, "--recompute")
            told[weights] = [float(re.search(words, done.stdout + done.stderr).group(1))
                             for words in (rb"takes (\S+) MiB", rb"loss (\S+)")]
        self.assertLess(told["q8_0"][0], told["as-they-are"][0])
        self.assertLessEqual(told["q4_0"][0], told["q8_0"][0])
        for weights in ("q8_0", "q4_0"):
            self.assertLess(abs(told[weights][1] - told["as-they-are"][1]), 0.2)
        stored = self.path("model.safetensors")
        quantize.convert(stored, self.path("model.gguf"), "q4_0", [])
        os.remove(stored)
        given = ("--adapter", self.path("given"), "--recompute")
        done = self.tuned(*given)
        self.assertIn(b"the file's blocks", done.stdout)
        self.assertEqual(self.tuned(*given, "--plan").stdout, re.search(rb".*MiB.*\n", done.stdout).group())
        losses = [float(re.search(rb"loss (\S+)", run.stderr).group(1))
                  for run in (done, self.tuned(*given, "--widen"))]
        self.assertLess(abs(losses[0] - losses[1]), 1e-3)

    def test_nf4(self):
        """Weights that are rounded while loading, and those of generator.quantize, which stay in the file:
        the steps are those of the same numbers as floats."""
        self.given(dict(CONFIGS["tied"], hidden_size=64, intermediate_size=128, head_dim=16))
        stored, given = self.path("model.safetensors"), ("--adapter", self.path("given"))
        rounded = self.tuned(*given, "--weights", "nf4")
        quantize.convert(stored, stored, "nf4", [])
        kept = self.tuned(*given, "--logits", self.path("kept"))
        self.assertIn(b"the file's blocks", kept.stdout)
        self.assertNotIn(b"blocks", rounded.stdout)
        wide = self.tuned(*given, "--widen", "--logits", self.path("wide"))
        losses = [float(re.search(rb"loss (\S+)", run.stderr).group(1)) for run in (rounded, kept, wide)]
        self.assertLess(max(losses) - min(losses), 1e-3)
        self.close(tensor_file.load(self.path("kept"))["logits"],
                   tensor_file.load(self.path("wide"))["logits"], 1e-4, "logits")

    def test_plan(self):
        """A model of Llama 7B's shape, in 4.5 bits a weight, fits 8 GB at 512 tokens. It has no weights."""
        with open(self.path("config.json"), "w") as file:
            file.write("{}")
        done = self.call("--model", self.folder.name, "--weights", "q4_0", "--rank", "8", "--context", "512",
                         "--batch", "1", "--recompute", "--plan")
        self.assertEqual(done.returncode, 0, done.stderr)
        step, states = map(float, re.findall(rb"(\S+) MiB", done.stdout))
        self.assertLess(step + states, 8e9 / 2**20)

    def test_small_model(self):
        """Without a folder; what it writes before and after differs."""
        done = self.call("--generate", "20", "--layers", "*", "--lr", "0.01")
        self.assertEqual(done.returncode, 0, done.stderr)
        before, memory, after = done.stdout.decode().splitlines()
        self.assertRegex(memory, r"^\d+ of \d+ parameters are trained; a step of 4 x 128 tokens takes .* MiB")
        self.assertNotEqual(before, after)
        self.assertRegex(done.stderr.decode(), r"loss \S+ validation \S+")

    def test_bad_input(self):
        self.given(CONFIGS["grouped"])

        def refuse(sentence, *arguments):
            done = self.run_program(*arguments)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr.decode(), "^lora: .*" + sentence)

        refuse("no linear layer or embedding .*'w_proj'", "--layers", "w_proj")
        refuse("cannot open .*nowhere", "--text", self.path("nowhere"))
        refuse("shorter than a sample", "--context", "100000")
        refuse("adapter_config.json", "--adapter", self.path("nowhere"))
        with open(self.path("words"), "w") as file:
            file.write("1 2 three")
        refuse("the text must be tokens", "--text", self.path("words"))
        with open(self.path("given/adapter_config.json"), "w") as file:
            json.dump({"peft_type": "LORA", "r": RANK + 1}, file)
        refuse("is not \\[5, 48\\]", "--adapter", self.path("given"))


if __name__ == "__main__":
    unittest.main()
