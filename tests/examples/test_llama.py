"""examples/llama.c against transformers' LlamaForCausalLM (expected_output/llama.safetensors, make_llama.py):
logits of whole prompts and from the cache, greedy texts, configurations in old and new forms, and every bad
input."""
import array
import json
import math
import os
import subprocess
import tempfile
import unittest

from tests import tensor_file
from tests.examples import EXPECTED, program
from tests.examples.test_gpt2 import mixed

PROGRAM = program("llama")
SHAPE = {"vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 80, "max_position_embeddings": 128}
CONFIGS = {  # what LlamaConfig takes
    "grouped": {**SHAPE, "rope_parameters": {"rope_type": "llama3", "rope_theta": 50000.0, "factor": 8.0,
                                             "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                             "original_max_position_embeddings": 64}},
    "tied": {**SHAPE, "num_key_value_heads": 4, "head_dim": 16, "tie_word_embeddings": True,
             "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-5,
             "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "linear": {**SHAPE, "num_key_value_heads": 1,
               "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}}
PROMPT = [3, 17, 80, 4, 4, 95, 0, 31, 56, 22, 8, 61, 77, 12, 40]
WRITTEN = 24


def made(name, shape):
    key, offset = sum(ord(c) * (i + 1) for i, c in enumerate(name)), 1.0 if "norm" in name else 0.0
    width = 2.0 if "q_proj" in name or "k_proj" in name else 0.5
    values = (((mixed(key * 1000003 + i) >> 40) / (1 << 24) - 0.5) * width + offset
              for i in range(math.prod(shape)))
    return "F32", list(shape), array.array("f", values).tobytes()


def weights(config):
    """Weights of queries and keys are large, so that attention selects few rows and positions matter."""
    heads, inner = config["num_attention_heads"], config["intermediate_size"]
    width, words = config["hidden_size"], config["vocab_size"]
    head = config.get("head_dim", width // heads)
    rows, narrow = heads * head, config["num_key_value_heads"] * head
    shapes = {"model.embed_tokens.weight": (words, width), "model.norm.weight": (width,)}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (words, width)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes[layer +
               "input_layernorm.weight"] = shapes[layer + "post_attention_layernorm.weight"] = (width,)
        for part, shape, bias in (("self_attn.q_proj", (rows, width), "attention_bias"),
                                  ("self_attn.k_proj", (narrow, width), "attention_bias"),
                                  ("self_attn.v_proj", (narrow, width), "attention_bias"),
                                  ("self_attn.o_proj", (width, rows), "attention_bias"),
                                  ("mlp.gate_proj", (inner, width), "mlp_bias"),
                                  ("mlp.up_proj", (inner, width), "mlp_bias"),
                                  ("mlp.down_proj", (width, inner), "mlp_bias")):
            shapes[f"{layer}{part}.weight"] = shape
            if config.get(bias):
                shapes[f"{layer}{part}.bias"] = shape[:1]
    return {name: made(name, shape) for name, shape in shapes.items()}


class Llama(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.golden = tensor_file.load(os.path.join(EXPECTED, "llama.safetensors"))

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def model(self, config, tensors=None):
        with open(self.path("config.json"), "w") as file:
            json.dump({"model_type": "llama", "hidden_act": "silu", "torch_dtype": "float32", **config}, file)
        tensor_file.save(self.path("model.safetensors"), weights(config) if tensors is None else tensors)

    def run_program(self, *arguments, ids=tuple(PROMPT)):
        given = [PROGRAM, "--model", self.folder.name, "--ids", " ".join(map(str, ids)), "--threads", "1",
                 *arguments]
        return subprocess.run(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)

    def good(self, *arguments):
        done = self.run_program(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return done.stdout.decode()

    def check_logits(self, name, *arguments):
        self.good("--logits", self.path("logits"), *arguments)
        kind, shape, data = tensor_file.load(self.path("logits"))["logits"]
        self.assertEqual(shape, [len(PROMPT), 96])
        got, want = tensor_file.values((kind, shape, data)), tensor_file.values(self.golden[name + "/logits"])
        for i, (a, b) in enumerate(zip(got, want)):
            self.assertLessEqual(abs(a - b), 3e-5 + 3e-5 * abs(b), f"{name}, number {i}: {a} and {b}")

    def test_logits(self):
        """The whole prompt at once, in pieces, and token by token."""
        for name, config in CONFIGS.items():
            self.model(config)
            for chunk in ("512", "4", "1"):
                self.check_logits(name, "--chunk", chunk)

    def test_greedy_text(self):
        for name, config in CONFIGS.items():
            self.model(config)
            want = list(tensor_file.values(self.golden[name + "/text"]))
            self.assertGreater(len(set(want[len(PROMPT):])), 10)
            for arguments in (("--temperature", "0"), ("--top-k", "1"), ("--top-p", "1e-6", "--chunk", "3")):
                text = self.good("--generate", str(WRITTEN), *arguments)
                self.assertEqual([int(token) for token in text.split()], want, name)
            end = want[len(PROMPT) + 5]
            self.model({**config,
                        "eos_token_id": [next(token for token in range(96) if token not in want), end]})
            first = want.index(end, len(PROMPT))
            self.assertEqual([int(token) for token in self.good("--temperature", "0").split()], want[:first])

    def test_full_context(self):
        self.model(CONFIGS["grouped"])
        text = [int(token) for token in self.good("--context", "20", "--generate", "50", "--temperature",
                                                  "0").split()]
        self.assertEqual(text, list(tensor_file.values(self.golden["grouped/text"]))[:21])

    def test_old_forms(self):
        """rope_theta and rope_scaling as before transformers 5, a tied head that is also in the file, and
        weights in shards."""
        config = {**CONFIGS["linear"], "rope_theta": 10000.0,
                  "rope_scaling": {"type": "linear", "factor": 4.0}}
        del config["rope_parameters"]
        everything = weights(config)
        self.model(config, {})
        os.remove(self.path("model.safetensors"))
        parts = {"a.safetensors": {}, "b.safetensors": {}}
        for i, (name, tensor) in enumerate(everything.items()):
            parts["ab"[i % 2] + ".safetensors"][name] = tensor
        for name, part in parts.items():
            tensor_file.save(self.path(name), part)
        with open(self.path("model.safetensors.index.json"), "w") as file:
            json.dump({"weight_map": {key: name for name, part in parts.items() for key in part}}, file)
        self.check_logits("linear")
        os.remove(self.path("model.safetensors.index.json"))
        tied = CONFIGS["tied"]
        self.model({**tied, "rope_parameters": None},
                   {**weights(tied), "lm_head.weight": made("other", (96, 48))})
        self.check_logits("tied")

    def test_vocabulary(self):
        for name in ("vocab.json", "merges.txt"):
            with open(os.path.join(EXPECTED, "tokenizer_" + name), "rb") as file, open(
                    self.path(name), "wb") as copy:
                copy.write(file.read())
        with open(self.path("vocab.json"), encoding="utf-8") as file:
            words = len(json.load(file))
        self.model({**CONFIGS["grouped"], "vocab_size": words})
        done = subprocess.run([PROGRAM, "--model", self.folder.name, "--prompt", "Hello, world", "--generate",
                               "5"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertTrue(done.stdout.startswith(b"Hello, world"), done.stdout)
        with open(os.path.join(EXPECTED, "tokenizer_json.json"), encoding="utf-8") as file:
            whole = json.load(file)["llama"]["file"]
        self.model({**CONFIGS["grouped"], "vocab_size": len(whole["model"]["vocab"])})
        for file, sentence in ((whole, b""), ({**whole, "normalizer": {"type": "ByteLevel"}},
                                              b"the normalizer 'ByteLevel' is not supported")):
            with open(self.path("tokenizer.json"), "w", encoding="utf-8") as out:
                json.dump(file, out)
            done = subprocess.run([PROGRAM, "--model", self.folder.name, "--prompt", "of \u2603 3",
                                   "--generate", "3"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
            self.assertIn(sentence, done.stderr)
            self.assertEqual((done.returncode, done.stdout.startswith("of \u2603 3".encode())),
                             (1, False) if sentence else (0, True))

    def refuse(self, sentence, *arguments, **how):
        done = self.run_program(*arguments, **how)
        self.assertEqual((done.returncode, done.stdout), (1, b""), done.stderr)
        self.assertRegex(done.stderr.decode(), sentence)

    def test_bad_input(self):
        config = CONFIGS["grouped"]
        self.refuse("cannot open .*config.json")
        for change, sentence in (
                ({"model_type": "mamba"}, "'model_type' is \"mamba\"; only \"llama\" is supported"),
                ({"hidden_act": "gelu"}, "'hidden_act' is \"gelu\""),
                ({"vocab_size": 0}, "'vocab_size' is 0, not a whole number"),
                ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads"),
                ({"hidden_size": 50}, "not a multiple of num_attention"),
                ({"rope_parameters": {"rope_type": "yarn"}}, "'rope_type' is not"),
                ({"eos_token_id": ["x"]}, "a number is expected here"),
                ({"rope_parameters": {"rope_theta": -1}}, "'rope_theta' is -1, not above 0"),
                ({"head_dim": 15}, "even number"),
                ({"rope_parameters": {"rope_type": "llama3", "low_freq_factor": 4}},
                 "not above low_freq_factor")):
            self.model({**config, **change}, {})
            self.refuse(sentence)
        short = weights(config)
        del short["model.layers.1.mlp.up_proj.weight"]
        self.model(config, short)
        self.refuse("1 of the weights differ; the first: model.layers.1.mlp.up_proj.weight")
        self.model(config)
        self.refuse("token 96, but the model knows 0 to 95", ids=(1, 96))
        self.refuse("whole numbers", ids=("x",))
        self.refuse("the prompt is empty", ids=())
        self.refuse("more than the 4 tokens of the context", "--context", "4")
        self.refuse("longer than the model's 128 positions", "--context", "129")
        done = subprocess.run([PROGRAM, "--model", self.folder.name], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=120)
        self.assertIn(b"neither tokenizer.json nor vocab.json", done.stderr)
        os.remove(self.path("model.safetensors"))
        self.refuse("model.safetensors")


if __name__ == "__main__":
    unittest.main()
