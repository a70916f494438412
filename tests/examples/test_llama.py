"""examples/llama.c against transformers' models (expected_output/llama.safetensors, make_llama.py):
logits of whole prompts and from the cache, greedy texts, configurations in old and new forms, and every bad
input. A .gguf gives what the same model gives from Hugging Face's folder."""
import array
import json
import math
import os
import struct
import subprocess
import tempfile
import unittest

from generator.exchange import gguf
from generator.exchange.blocks import FORMATS
from generator.quantize import TARGETS
from tests import tensor_file
from tests.examples import EXPECTED, program
from tests.examples.test_gpt2 import mixed
from tests.examples.test_tokenizer import merges as merge_pairs, pieces

PROGRAM = program("llama")
SHAPE = {"vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 80, "max_position_embeddings": 128}
CONFIGS = {  # what AutoConfig.for_model takes
    "grouped": {**SHAPE, "rope_parameters": {"rope_type": "llama3", "rope_theta": 50000.0, "factor": 8.0,
                                             "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                             "original_max_position_embeddings": 64}},
    "tied": {**SHAPE, "num_key_value_heads": 4, "head_dim": 16, "tie_word_embeddings": True,
             "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-5,
             "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "linear": {**SHAPE, "num_key_value_heads": 1,
               "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "mistral": {**SHAPE, "model_type": "mistral", "sliding_window": 64,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "qwen2": {**SHAPE, "model_type": "qwen2", "use_sliding_window": False, "sliding_window": 16,
              "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
    "qwen3": {**SHAPE, "model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True,
              "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
    "gemma": {**SHAPE, "model_type": "gemma", "num_key_value_heads": 1, "head_dim": 16,
              "tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh",
              "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "yarn": {**SHAPE, "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                                          "original_max_position_embeddings": 32}},
    "gemma2": {**SHAPE, "model_type": "gemma2", "head_dim": 16, "tie_word_embeddings": True,
               "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 16, "sliding_window": 64,
               "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
               "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "gemma3": {**SHAPE, "model_type": "gemma3_text", "num_hidden_layers": 7, "head_dim": 16,
               "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh",
               "query_pre_attn_scalar": 16, "sliding_window": 64,
               "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                                   "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0,
                                                      "factor": 8.0}},
               "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) + ["sliding_attention"]}}
PROMPT = [3, 17, 80, 4, 4, 95, 0, 31, 56, 22, 8, 61, 77, 12, 40]
WRITTEN = 24


def made(name, shape, gemma=False):
    key = sum(ord(c) * (i + 1) for i, c in enumerate(name))
    offset = 1.0 if "norm" in name and not gemma else 0.0
    width = 2.0 if "q_proj" in name or "k_proj" in name else 0.5
    if gemma and "embed" in name:
        width /= 10  # for the scale of about 7
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
            if config.get(bias) or (config.get("model_type") == "qwen2" and part[-6:-5] in "qkv" and
                                    "self_attn" in part):
                shapes[f"{layer}{part}.bias"] = shape[:1]
        if config.get("model_type") in ("gemma2", "gemma3_text"):
            shapes[layer + "pre_feedforward_layernorm.weight"] = (width,)
            shapes[layer + "post_feedforward_layernorm.weight"] = (width,)
        if config.get("model_type") in ("qwen3", "gemma3_text"):
            shapes[layer + "self_attn.q_norm.weight"] = shapes[layer + "self_attn.k_norm.weight"] = (head,)
    gemma = "gemma" in config.get("model_type", "")
    return {name: made(name, shape, gemma) for name, shape in shapes.items()}


PARTS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "model.embed_tokens": "token_embd", "model.norm": "output_norm",
         "lm_head": "output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}


# Norms of Gemma 2 and 3 by names of PARTS.
FOUR_NORMS = {"post_attention_layernorm": "post_attention_norm",
              "post_feedforward_layernorm": "post_ffw_norm",
              "pre_feedforward_layernorm": "post_attention_layernorm"}
PARTS.update(post_attention_norm="post_attention_norm", post_ffw_norm="post_ffw_norm")


def gguf_name(name):
    """llama.cpp's name of a tensor."""
    head, _, kind = name.rpartition(".")
    if not head.startswith("model.layers."):
        return f"{PARTS[head]}.{kind}"
    _, _, layer, part = head.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.{kind}"


def side_by_side(data, heads, rows):
    """Rows of queries or keys as llama.cpp has them: those that turn together stand beside each other."""
    row = len(data) // rows
    pairs = rows // heads // 2
    order = [h * 2 * pairs + half * pairs + i for h in range(heads) for i in range(pairs) for half in (0, 1)]
    return b"".join(data[i * row:(i + 1) * row] for i in order)


def is_rounded(kind, shape):
    return kind and len(shape) > 1 and shape[-1] % TARGETS[kind].length == 0


def gguf_tensors(config, tensors, kind):
    """The tensors of a .gguf, with matrices of a kind."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    found = {}
    for name, (_, shape, data) in tensors.items():
        part = name.split(".")[-2]
        if "norm" in part and "gemma" in architecture(config):
            data = array.array("f", [1 + x for x in array.array("f", data)]).tobytes()
        if part in heads and architecture(config) == "llama":
            data = side_by_side(data, heads[part], shape[0])
        target = TARGETS[kind] if is_rounded(kind, shape) else None
        if architecture(config) in ("gemma2", "gemma3") and part in FOUR_NORMS:
            name = name.replace(part, FOUR_NORMS[part])
        found[gguf_name(name)] = ((target.number, shape, target.encode(array.array("f", data))) if target else
                                  (0, shape, data))
    return found


def architecture(config):
    """llama.cpp's name of it."""
    kind = config.get("model_type", "").replace("_text", "")
    return kind if "qwen" in kind or "gemma" in kind else "llama"


def rope_of(config):
    """Of the layers that see everything."""
    return config["rope_parameters"].get("full_attention", config["rope_parameters"])


def gguf_facts(config):
    facts = {"context_length": config["max_position_embeddings"], "embedding_length": config["hidden_size"],
             "block_count": config["num_hidden_layers"], "feed_forward_length": config["intermediate_size"],
             "attention.head_count": config["num_attention_heads"],
             "attention.head_count_kv": config["num_key_value_heads"],
             "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", 1e-6),
             "rope.freq_base": rope_of(config)["rope_theta"]}
    if "head_dim" in config:
        facts["attention.key_length"] = config["head_dim"]
    if architecture(config) in ("gemma2", "gemma3"):
        facts["attention.sliding_window"] = config["sliding_window"]
    facts.update((key, config[key]) for key in ("attn_logit_softcapping", "final_logit_softcapping")
                 if key in config)
    if rope_of(config)["rope_type"] in ("linear", "yarn"):
        facts["rope.scaling.type"] = rope_of(config)["rope_type"]
        facts["rope.scaling.factor"] = rope_of(config)["factor"]
    if rope_of(config)["rope_type"] == "yarn":
        facts["rope.scaling.original_context_length"] = rope_of(config)["original_max_position_embeddings"]
    return {"general.architecture": architecture(config), "general.name": "tiny",
            **{f"{architecture(config)}.{key}": value for key, value in facts.items()}}


def rope_divisors(config):
    """What llama.cpp's converter writes for llama3: by how much each frequency is divided."""
    rope = config["rope_parameters"]
    size = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    found = []
    for i in range(size // 2):
        waves = rope["original_max_position_embeddings"] * rope["rope_theta"] ** (-2 * i / size) / math.tau
        share = (waves - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        share = min(max(share, 0), 1)
        found.append(1 / (share + (1 - share) / rope["factor"]))
    return 0, [size // 2], array.array("f", found).tobytes()


def widened(kind, data):
    """What rounded numbers stand for."""
    if kind == "bf16":
        return array.array("f", array.array("I", [x << 16 for x in array.array("H", data)]).tobytes())
    if kind == "f16":
        return array.array("f", struct.unpack("<%de" % (len(data) // 2), data))
    return FORMATS[kind.upper()].decode(data)


class Llama(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.golden = tensor_file.load(os.path.join(EXPECTED, "llama.safetensors"))

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.from_file = None  # a .gguf

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def model(self, config, tensors=None):
        with open(self.path("config.json"), "w") as file:
            json.dump({"model_type": "llama", "hidden_act": "silu", "torch_dtype": "float32", **config}, file)
        tensor_file.save(self.path("model.safetensors"), weights(config) if tensors is None else tensors)

    def gguf(self, config, tensors=None, kind=None, facts=()):
        """A .gguf of the model, which the next runs read."""
        tensors = gguf_tensors(config, weights(config) if tensors is None else tensors, kind)
        if rope_of(config)["rope_type"] == "llama3":
            tensors["rope_freqs.weight"] = rope_divisors(config)
        self.from_file = self.path("model.gguf")
        gguf.write(self.from_file, tensors, {**gguf_facts(config), **dict(facts)})

    def run_program(self, *arguments, ids=tuple(PROMPT)):
        given = [PROGRAM, "--model", self.from_file or self.folder.name, "--ids", " ".join(map(str, ids)),
                 "--threads", "1", *arguments]
        return subprocess.run(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)

    def good(self, *arguments):
        done = self.run_program(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return done.stdout

    def logits(self, *arguments):
        self.good("--logits", self.path("logits"), *arguments)
        tensor = tensor_file.load(self.path("logits"))["logits"]
        self.assertEqual(tensor[1], [len(PROMPT), 96])
        return tensor_file.values(tensor)

    def close(self, name, got, want, most=3e-5):
        for i, (a, b) in enumerate(zip(got, want)):
            self.assertLessEqual(abs(a - b), most + most * abs(b), f"{name}, number {i}: {a} and {b}")

    def check_logits(self, name, *arguments):
        self.close(name, self.logits(*arguments), tensor_file.values(self.golden[name + "/logits"]))

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
            self.assertGreater(len(set(want[len(PROMPT):])), {"gemma2": 1, "gemma3": 4}.get(name, 10))
            for arguments in (("--temperature", "0"), ("--top-k", "1"), ("--top-p", "1e-6", "--chunk", "3")):
                text = self.good("--generate", str(WRITTEN), *arguments)
                self.assertEqual([int(token) for token in text.split()], want, name)
            end = want[len(PROMPT) + 5]
            self.model({**config,
                        "eos_token_id": [next(token for token in range(96) if token not in want), end]})
            first = want.index(end, len(PROMPT))
            self.assertEqual([int(token) for token in self.good("--temperature", "0").split()], want[:first])

    def test_gguf(self):
        """In F32 the logits of transformers and the greedy text of the folder."""
        for name, config in CONFIGS.items():
            self.gguf(config)
            for chunk in ("512", "1"):
                self.check_logits(name, "--chunk", chunk)
            text = self.good("--generate", str(WRITTEN), "--temperature", "0")
            self.assertEqual([int(token) for token in text.split()],
                             list(tensor_file.values(self.golden[name + "/text"])), name)

    def test_gguf_of_fewer_bits(self):
        """Logits and greedy text of a folder that holds the rounded numbers as F32. Without --widen products
        with blocks of few rows round activations to 8 bits."""
        short = {**CONFIGS["grouped"], "hidden_size": 64, "intermediate_size": 96}
        long = {**CONFIGS["qwen3"], "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2,
                "num_key_value_heads": 1}
        for kind in ("f16", "bf16", "q8_0", "q4_0", "q5_1", "q4_k", "q6_k", "iq4_nl"):
            config = long if kind.endswith("_k") else short
            tensors, narrow = weights(config), {}
            for name, (_, shape, data) in tensors.items():
                if "q_proj" in name or "k_proj" in name:  # smooth attention, where small errors stay small
                    data = array.array("f", [x / 8 for x in array.array("f", data)]).tobytes()
                tensors[name] = narrow[name] = "F32", shape, data
                if is_rounded(kind, shape):
                    rounded = TARGETS[kind].encode(array.array("f", data))
                    narrow[name] = "F32", shape, widened(kind, rounded).tobytes()
            self.from_file = None
            self.model(config, narrow)
            want, text = self.logits(), self.good("--temperature", "0", "--generate", "12")
            self.gguf(config, tensors, kind)
            for chunk in ("512", "1"):
                self.close(kind, self.logits("--widen", "--chunk", chunk), want, 1e-4)
            largest = max(map(abs, want))
            off = max(abs(a - b) for a, b in zip(self.logits("--chunk", "1"), want)) / largest
            self.assertLess(off, 0.06 if "_" in kind else 1e-5, kind)
            if "_" in kind:  # else the blocks were not used
                self.assertGreater(off, 1e-3, kind)
            self.assertEqual(self.good("--temperature", "0", "--generate", "12", "--widen"), text)

    def test_gguf_beside_config(self):
        """Quantised weights with Hugging Face's names, in its folder."""
        config = CONFIGS["tied"]
        self.model(config)
        want = self.logits()
        tensors = {name: (0, shape, data) for name, (_, shape, data) in weights(config).items()}
        gguf.write(self.path("model.gguf"), tensors, {})
        os.remove(self.path("model.safetensors"))
        self.assertEqual(self.logits(), want)
        self.from_file = self.path("small.gguf")
        os.rename(self.path("model.gguf"), self.from_file)
        self.assertEqual(self.logits(), want)
        os.remove(self.path("config.json"))
        self.refuse("has weights only; put the model's config.json beside it")

    def test_gguf_tokenizers(self):
        """The text of the folder with tokenizer.json, which depends on each token of the prompt."""
        with open(os.path.join(EXPECTED, "tokenizer_json.json"), encoding="utf-8") as file:
            expected = json.load(file)
        prompt = "Of \u2603 the 1234 caf\u00e9 isn't  <s>\n\nin\t" + "".join(expected["texts"][:2])
        for name, facts in (("llama", {"model": "llama", "unknown_token_id": 0}),
                            ("llama3", {"model": "gpt2", "pre": "llama-bpe", "add_bos_token": False}),
                            ("qwen2", {"model": "gpt2", "pre": "qwen2"})):
            whole = expected[name]["file"]
            for key, read in ("vocab", pieces), ("merges", merge_pairs):
                if isinstance(whole["model"][key], str):
                    whole["model"][key] = read(os.path.join(EXPECTED, whole["model"][key]))
            whole["added_tokens"] = [{**one, "rstrip": False} for one in whole["added_tokens"]]
            added = {one["content"]: one["id"] for one in whole["added_tokens"]}
            tokens = list({**whole["model"]["vocab"], **added})
            config = {**CONFIGS["grouped"], "vocab_size": len(tokens), "max_position_embeddings": 2000}
            facts.update(tokens=tokens, token_type=[3 if token in added else 1 for token in tokens])
            merges = [pair.split(" ") if isinstance(pair, str) else pair
                      for pair in whole["model"]["merges"]]
            if name == "llama":
                ranks = {a + b: -float(i) for i, (a, b) in reversed(list(enumerate(merges)))}
                facts.update(scores=[ranks.get(token, -1e6) for token in tokens], bos_token_id=1)
                facts["token_type"][3:259] = [6] * 256
            else:
                facts["merges"] = [" ".join(pair) for pair in merges]
            self.from_file = None
            self.model(config)
            with open(self.path("tokenizer.json"), "w", encoding="utf-8") as out:
                json.dump(whole, out)
            want = self.text(prompt)
            self.assertTrue(want.startswith(prompt.encode()))
            self.gguf(config, facts={"tokenizer.ggml." + key: value for key, value in facts.items()})
            self.assertEqual(self.text(prompt), want, name)

    def text(self, prompt):
        given = [PROGRAM, "--model", self.from_file or self.folder.name, "--prompt", prompt, "--context",
                 "2000", "--generate", "8", "--temperature", "0", "--threads", "1"]
        done = subprocess.run(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return done.stdout

    def test_bad_gguf(self):
        config = CONFIGS["grouped"]
        for facts, sentence in (({"general.architecture": "gpt2"}, "'general.architecture' is \"gpt2\", not"),
                                ({"llama.rope.scaling.type": "longrope"}, "'rope.scaling.type' is not"),
                                ({"llama.block_count": "x"}, "a number is expected here"),
                                ({"llama.feed_forward_length": 64}, "does not fit its metadata: 6 of")):
            self.gguf(config, facts=facts.items())
            self.refuse(sentence)
        short = weights(config)
        del short["model.layers.1.mlp.up_proj.weight"]
        self.gguf(config, short)
        self.refuse("1 of the weights differ; the first: model.layers.1.mlp.up_proj.weight")
        with open(self.from_file, "r+b") as file:
            file.truncate(300)
        self.refuse("model.gguf' is damaged or not a GGUF file")
        facts = {"model": "gpt2", "tokens": ["a"] * 96, "merges": []}
        for change, sentence in (({"model": "bert"}, "tokenizer.ggml.model 'bert' of"),
                                 ({"pre": "viking"}, "tokenizer.ggml.pre 'viking' of"),
                                 ({"tokens": []}, "has no tokenizer"),
                                 ({"model": "llama"}, "has no scores"),
                                 ({"bos_token_id": 96}, "do not fit its other lists"),
                                 ({"merges": ["a"]}, "two pieces"), ({"tokens": [1]}, "is expected here")):
            self.gguf(config, facts={"tokenizer.ggml." + key: value
                                     for key, value in {**facts, **change}.items()})
            done = subprocess.run([PROGRAM, "--model", self.from_file], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, timeout=120)
            self.assertEqual((done.returncode, done.stdout), (1, b""), done.stderr)
            self.assertIn(sentence, done.stderr.decode())
        os.remove(self.from_file)
        self.refuse("model.gguf")

    def test_yarn_factors(self):
        """The factor that YaRN's other forms say, in place of the usual one."""
        rope = CONFIGS["yarn"]["rope_parameters"]
        usual, other = 0.1 * math.log(4) + 1, 0.07 * math.log(4) + 1
        for said, form in (({}, {"attention_factor": usual}), ({}, {"mscale": 1.0, "mscale_all_dim": None}), (
                {"attention_factor": usual / other}, {"mscale": 1, "mscale_all_dim": 0.7, "beta_fast": 32})):
            found = []
            for more in said, form:
                self.model({**CONFIGS["yarn"], "rope_parameters": {**rope, **more}})
                found.append(self.logits())
            self.close("yarn", *found, 1e-6)

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
                ({"model_type": "mamba"}, "'model_type' is \"mamba\", not \"llama\", \"mistral\", \"qwen2\""),
                ({"hidden_act": "relu"}, "'hidden_act' is \"relu\""),
                ({"hidden_act": "gelu"}, "hidden_act does not fit model_type"),
                ({"model_type": "gemma"}, "hidden_act does not fit model_type"),
                ({"final_logit_softcapping": 0}, "'final_logit_softcapping' is 0, not above 0"),
                ({"vocab_size": 0}, "'vocab_size' is 0, not a whole number"),
                ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads"),
                ({"hidden_size": 50}, "not a multiple of num_attention"),
                ({"rope_parameters": {"rope_type": "longrope"}}, "'rope_type' is not"),
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
        self.model(CONFIGS["mistral"])
        self.refuse("longer than the model's 64 positions", "--context", "65")
        done = subprocess.run([PROGRAM, "--model", self.folder.name], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=120)
        self.assertIn(b"neither tokenizer.json nor vocab.json", done.stderr)
        os.remove(self.path("model.safetensors"))
        self.refuse("model.safetensors")


if __name__ == "__main__":
    unittest.main()
