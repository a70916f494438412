"""examples/bert_qa.c answers as Hugging Face's transformers do with the same weights
(expected_output/bert_qa*, make_bert_qa.py), and names what is wrong with its files."""
import json
import os
import struct
import subprocess
import tempfile
import unittest

from tests import tensor_file
from tests.examples import EXPECTED, program

PROGRAM = program("bert_qa")
VOCAB = os.path.join(EXPECTED, "tokenizer_vocab.txt")
WEIGHTS = os.path.join(EXPECTED, "bert_qa.safetensors")


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=60)


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(os.path.join(EXPECTED, "bert_qa.json"), encoding="ascii") as file:
            golden = json.load(file)
        cls.cases, cls.config = golden["cases"], golden["config"]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        write(self.path("config.json"), json.dumps(self.config))
        for name, source in ("vocab.txt", VOCAB), ("model.safetensors", WEIGHTS):
            os.symlink(source, self.path(name))

    def path(self, name):
        return os.path.join(self.folder, name)

    def replace(self, name, tensors):
        os.remove(self.path(name))
        tensor_file.save(self.path(name), tensors)


class Values(Case):
    def ask(self, case):
        options = []
        for name, value in {"seq-length": 64, **case["options"]}.items():
            options += ["--" + name] + ([] if value is True else [value])
        write(self.path("context"), case["context"])
        done = run("--model", self.folder, "--question", case["question"], "--context-file",
                   self.path("context"), *options)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return done.stdout.decode()

    def check(self, case):
        text = self.ask(case)
        answer, _, rest = text.partition("answer: ")[2].partition("\nscore ")
        numbers = [float(word.rstrip(","))
                   for word in rest.split("\n")[0].split() if word[-2:].rstrip(",")[-1:].isdigit()]
        self.assertEqual(answer, case["answer"] or "none")
        want = [case["score"], *case.get("logits", []), *case.get("bytes", [])]
        self.assertEqual(len(numbers), len(want), rest)
        for a, b in zip(numbers, want):
            self.assertAlmostEqual(a, b, delta=2e-6 + 2e-5 * abs(b), msg=case["question"])

    def test_answers(self):
        for case in self.cases:
            with self.subTest(case["question"], **case["options"]):
                self.check(case)

    def test_old_names(self):
        """gamma and beta for the layer norms' weight and bias, and tensors of other heads beside them."""
        tensors = tensor_file.load(WEIGHTS)
        tensors = {name.replace("LayerNorm.weight",
                                "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
                   for name, tensor in tensors.items()}
        tensors["bert.pooler.dense.weight"] = ("F32", [1], bytes(4))
        self.replace("model.safetensors", tensors)
        self.check(self.cases[0])

    def test_tokenizer_json(self):
        with open(os.path.join(EXPECTED, "tokenizer_json.json"), encoding="utf-8") as file, open(
                VOCAB, encoding="utf-8") as pieces:
            whole = json.load(file)["wordpiece"]["file"]
            whole["model"]["vocab"] = {piece: i for i, piece in enumerate(pieces.read().splitlines())}
        write(self.path("tokenizer.json"), json.dumps(whole))
        self.check(dict(self.cases[0],
                        options={**self.cases[0]["options"], "vocab": self.path("tokenizer.json")}))

    def test_cased_by_the_folder(self):
        case = next(case for case in self.cases if case["options"].get("cased"))
        write(self.path("tokenizer_config.json"), '{"do_lower_case": false, "model_max_length": 512}')
        self.check(dict(case,
                        options={name: value for name, value in case["options"].items() if name != "cased"}))

    def test_out_of_the_box(self):
        done = run("--size", "tiny", "--seq-length", 128)
        self.assertEqual(done.returncode, 0)
        self.assertIn(b"the weights are random", done.stderr)
        self.assertIn(b"answer: ", done.stdout)

    def test_length_of_a_model_of_few_positions(self):
        text = "The model has twelve layers. " * 30
        done = run("--model", self.folder, "--question", "How many?", "--context", text)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertRegex(done.stdout.decode(), r"tokens in \d+ windows of 64\n")

    def test_bench(self):
        done = run("--size", "tiny", "--seq-length", 16, "--batch", 2, "--bench", 1, "--precision", "bf16")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout.decode(), r"^2 layers of 128, batch 2, length 16: [0-9.]+ ms a batch, "
                         r"[0-9.]+ sentences a second")


class BadInput(Case):
    def refuse(self, sentence, *options):
        done = run("--model", self.folder, "--question", "How many?", "--context",
                   "The model has twelve layers.", "--seq-length", 64, *options)
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertEqual(done.stderr.decode().replace(self.folder + os.sep, ""),
                         "bert_qa: " + sentence + "\n")

    def test_missing_files(self):
        for name in "model.safetensors", "vocab.txt", "config.json":
            os.remove(self.path(name))
            done = run("--model", self.folder, "--seq-length", 64)
            self.assertEqual((done.returncode, done.stdout), (1, b""))
            self.assertIn(name, done.stderr.decode())
            self.assertIn("No such file or directory", done.stderr.decode())

    def test_foreign_weights(self):
        self.replace("model.safetensors", {"conv1.weight": ("F32", [1], bytes(4))})
        self.refuse(
            "'model.safetensors' does not fit the model: 29 of its weights are missing there and 0 have "
            "another shape; the first: bert.embeddings.word_embeddings.weight: in the model only")

    def test_weights_of_another_size(self):
        tensors = tensor_file.load(WEIGHTS)
        tensors["qa_outputs.weight"] = ("F32", [3, 16], bytes(192))
        self.replace("model.safetensors", tensors)
        self.refuse("'model.safetensors' does not fit the model: 0 of its weights are missing there and 1 "
                    "have another shape; the first: qa_outputs.weight: file [3, 16], model [2, 16]")

    def test_lost_layer_norm(self):
        tensors = tensor_file.load(WEIGHTS)
        del tensors["bert.encoder.layer.1.output.LayerNorm.bias"]
        self.replace("model.safetensors", tensors)
        self.refuse("'model.safetensors' does not fit the model: it has no "
                    "bert.encoder.layer.1.output.LayerNorm.bias")

    def test_damaged_weights(self):
        with open(WEIGHTS, "rb") as file:
            data = file.read()
        os.remove(self.path("model.safetensors"))
        with open(self.path("model.safetensors"), "wb") as file:
            file.write(data[:-1])
        done = run("--model", self.folder, "--seq-length", 64)
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertIn(b"model.safetensors", done.stderr)

    def test_weights_that_are_no_numbers(self):
        tensors = tensor_file.load(WEIGHTS)
        tensors["qa_outputs.bias"] = ("F32", [2], struct.pack("<2f", float("nan"), float("nan")))
        self.replace("model.safetensors", tensors)
        self.refuse("the model's outputs are not numbers; are the weights damaged?")

    def test_foreign_vocabulary(self):
        with open(VOCAB, encoding="utf-8", newline="\n") as file:
            pieces = file.read()
        count = self.config["vocab_size"]
        for text, found in ((pieces + "one\n", count + 1),
                            (pieces[:pieces.index("\n", len(pieces) // 2) + 1], None)):
            os.remove(self.path("vocab.txt"))
            write(self.path("vocab.txt"), text)
            self.refuse(f"'vocab.txt' has {found or text.count(chr(10))} pieces, but the model's vocab_size "
                        f"is {count}; they do not belong "
                        "together")
        os.remove(self.path("vocab.txt"))
        write(self.path("vocab.txt"), pieces.replace("[SEP]\n", "SEP]\n"))
        self.refuse("'vocab.txt' has no line [SEP]")

    def test_config(self):
        for change, sentence in (
                ({"model_type": "gpt2"}, "config.json:1: 'model_type' is of another kind of model"),
                ({"hidden_act": "relu"}, "config.json:1: 'hidden_act' is not \"gelu\""),
                ({"num_attention_heads": 3},
                 "config.json: hidden_size 16 is not a multiple of num_attention_heads 3"),
                ({"hidden_size": -1},
                 "config.json:1: 'hidden_size' is -1, not a whole number between 1 and 16384"),
                ({"hidden_size": "x"}, "config.json:1: a number is expected here"),
                ({"layer_norm_eps": 2}, "config.json:1: 'layer_norm_eps' is 2, not between 0 and 1"),
                ({"type_vocab_size": 1}, "'config.json': question answering takes a type_vocab_size of 2")):
            write(self.path("config.json"), json.dumps({**self.config, **change}))
            self.refuse(sentence)
        write(self.path("config.json"), json.dumps(self.config)[:-1])
        self.refuse("config.json:1: a comma or a } is expected here")

    def test_too_long(self):
        self.refuse("--seq-length is 65, but the model has 64 positions", "--seq-length", 65)
        self.refuse("the question's 63 tokens leave room for 0 of the text's in a window of 64, which must "
                    "be more than the stride of 32; raise --seq-length (to 64 at most), lower --stride or "
                    "ask a shorter question", "--question", "?" * 63)
        self.refuse("the question's 4 tokens leave room for 4 of the text's in a window of 11, which must be "
                    "more than the stride of 4; raise --seq-length (to 64 at most), lower --stride or ask a "
                    "shorter question", "--seq-length", 11, "--stride", 4)

    def test_context(self):
        self.refuse("the context has no words", "--context", " \n\u200b")
        done = run("--context-file", self.path("absent"))
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"No such file or directory", done.stderr)

    def test_options(self):
        done = run("--weights", WEIGHTS)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"use --vocab vocab.txt", done.stderr)


if __name__ == "__main__":
    unittest.main()
