"""examples/roberta_classify.c trains as PyTorch does from the same weights and texts
(expected_output/roberta_classify*, make_roberta_classify.py), goes on from a checkpoint bit for bit, and
names what is wrong with its files."""
import json
import os
import re
import subprocess
import tempfile
import unittest

from tests import tensor_file
from tests.examples import EXPECTED, program

PROGRAM = program("roberta_classify")
WEIGHTS = os.path.join(EXPECTED, "roberta_classify.safetensors")
BPE = {"vocab.json": os.path.join(EXPECTED, "tokenizer_vocab.json"),
       "merges.txt": os.path.join(EXPECTED, "tokenizer_merges.txt")}


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=120)


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(os.path.join(EXPECTED, "roberta_classify.json"), encoding="ascii") as file:
            cls.golden = json.load(file)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write("config.json", json.dumps(self.golden["config"]))
        self.write("train.csv", self.golden["csv"])
        for name, source in {**BPE, "model.safetensors": WEIGHTS}.items():
            os.symlink(source, self.path(name))

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())

    def options(self, **changes):
        settings = {**self.golden["options"], **changes}
        return ["--model", self.folder, "--train", self.path("train.csv"),
                *(word for name, value in settings.items() if value is not None
                  for word in (["--" + name.replace("_", "-")] + ([] if value is True else [value])))]

    def train(self, *more, **changes):
        done = run(*self.options(**changes), *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode()

    def bytes(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()


class Values(Case):
    def test_length_of_a_model_of_few_positions(self):
        text = self.train("--save", self.path("saved"), **{"seq-length": None, "max-steps": 1})
        self.assertIn("step 1 of 1: ", text)

    def test_losses_metrics_weights(self):
        golden = self.golden
        text = self.train("--no-shuffle", "--save", self.path("after.safetensors"), "--text", golden["text"])
        losses = [float(found) for found in re.findall(r"^step \d+ of 20: loss ([0-9.]+)", text, re.M)]
        self.assertEqual(len(losses), 20)
        for step, (a, b) in enumerate(zip(losses, golden["losses"])):
            self.assertAlmostEqual(a, b, delta=3e-5 * (1 + step / 5), msg=f"step {step}")
        loss, accuracy, f1 = re.search(r"^at the end: loss ([0-9.]+), accuracy ([0-9.]+) %, macro-F1 "
                                       r"([0-9.]+) on 6 texts$", text, re.M).groups()
        self.assertAlmostEqual(float(loss), golden["validation_loss"], delta=3e-4)
        self.assertAlmostEqual(float(accuracy) / 100, golden["accuracy"], delta=1e-4)
        self.assertAlmostEqual(float(f1), golden["macro_f1"], delta=1e-4)
        self.assertRegex(text, rf"\nclass {golden['answer'][0]}, probability ")
        self.assertAlmostEqual(float(text.rsplit(" ", 1)[1]), golden["answer"][1], delta=3e-4)
        after = tensor_file.load(self.path("after.safetensors"))
        self.assertEqual(set(after), set(golden["after"]))
        for name, want in golden["after"].items():
            # its gradient is 0 except for rounding, which Adam turns into whole steps
            if not name.endswith("key.bias"):
                for a, b in zip(tensor_file.values(after[name]), want):
                    self.assertAlmostEqual(a, b, delta=1e-4, msg=name)

    def test_resume(self):
        """Shuffled, with dropout, stopped in the middle of an epoch and at its end: the same bytes as without
        a stop."""
        for stop in 9, 14:
            for name in "whole", "parts":
                if os.path.exists(self.path(name)):
                    os.remove(self.path(name))
            changes = {"dropout": 0.1, "log": 5, "checkpoint-every": 7}
            whole = self.train("--checkpoint", self.path("a"), "--save", self.path("whole"), **changes)
            self.train("--checkpoint", self.path("b"), "--stop-after", stop, **changes)
            parts = self.train("--checkpoint", self.path("b"), "--resume", "--save", self.path("parts"),
                               **changes)
            self.assertEqual(self.bytes("whole"), self.bytes("parts"))
            self.assertEqual(self.bytes("a"), self.bytes("b"))
            self.assertEqual(whole.splitlines()[-1], parts.splitlines()[-1])
            self.assertIn("step 20 of 20", parts)
            self.assertNotIn("step 5 of", parts)

    def test_names_of_classes(self):
        names = ["anger", "joy", "fear, or so", "sadness", "none"]
        self.write("labels", "\n".join(names))
        rows = ["label,text", "joy,The quick brown", "3,lazy dog", '"fear, or so",jumps'] + ["joy,model"] * 10
        self.write("train.csv", "\n".join(rows))
        done = run(*self.options(labels=self.path("labels"), epochs=1), "--text", "The model")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("12 texts to learn from, 1 held out, 5 classes", done.stdout.decode())
        self.assertRegex(done.stdout.decode(), "class [0-4] (%s), probability" % "|".join(names))
        self.assertNotIn(b"broken", done.stderr)
        self.assertIn(b"2 of the 5 classes have no text to learn from; the first is 0", done.stderr)

    def test_new_head(self):
        done = run(*self.options(classes=7, epochs=1))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"has no head for 7 classes; a new one is trained", done.stderr)

    def test_out_of_the_box(self):
        done = run("--max-steps", 3, "--log", 1, "--classes", 4)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertRegex(done.stdout.decode(),
                         r"(?s)^2700 texts .*step 3 of 3: loss .*macro-F1 [0-9.]+ on 300 texts\n$")

    def test_records(self):
        """Quotes, empty lines, both line ends, a byte order mark. A text longer than the model's is cut and
        counted."""
        self.write("train.csv",
                   '\ufefflabel,text\r\n0,"a, ""b""\r\nc"\r\n\r\n"1",plain\n2,\n3,"' + "x " * 100 + '"')
        done = run(*self.options(validation=self.path("train.csv"), epochs=1))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"4 texts to learn from, 4 held out", done.stdout)
        self.assertIn(b"2 texts have more than 24 tokens and are cut", done.stderr)
        self.assertNotIn(b"broken", done.stderr)

    def test_columns_by_name(self):
        self.write("train.csv", "id,text,when,label\n" + "7,model,9,1\n" * 9 + "8,model,1\n")
        done = run(*self.options(validation=self.path("train.csv"), epochs=1))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"9 texts to learn from, 9 held out", done.stdout)
        self.assertIn(
            b"train.csv: 1 of 10 records are broken and left out; the first: "
            b"line 11 has 3 fields, but needs 4\n",
            done.stderr)


class BadInput(Case):
    def refuse(self, sentence, *more, **changes):
        done = run(*self.options(**changes), *more)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(done.stderr.decode().replace(self.folder + os.sep, "").splitlines()[-1],
                         "roberta_classify: " + sentence)

    def test_broken_records(self):
        first = "label,text\n0,good\n"
        for broken, why in (
                ("5,one", "line 3: the label '5' is not a class"),
                ("joy,one", "line 3: the label 'joy' is not a class"),
                ("0\tone", "line 3 has no ',' but 1 '\\t'; separate its fields by ','"),
                ("-1,one", "line 3: the label '-1' is not a class"),
                ("1.5,one", "line 3: the label '1.5' is not a class"),
                ("99999999999999999999,x", "line 3: the label '99999999999999999999' is not a class"),
                (",one", "line 3: the label '' is not a class"), ("1", "line 3 has 1 field, but needs 2"),
                ("1,a,b", "line 3 has 3 fields, but needs 2"),
                ('1,"a', "line 3: a quote is not closed, or text follows it"),
                ('1,"a"b', "line 3: a quote is not closed, or text follows it"),
                ('"1\n"x,b', "line 3: a quote is not closed, or text follows it")):
            self.write("train.csv", first + broken + "\n" + "1,good\n" * 9)
            done = run(*self.options(epochs=1))
            self.assertEqual(done.returncode, 0, done.stderr)
            count = 2 if broken.startswith('"1\n') else 1
            self.assertIn(f"train.csv: {count} of {10 + count} records are broken and left out; the first: "
                          f"{why}\n", done.stderr.decode())
            self.assertIn(b"9 texts to learn from, 1 held out", done.stdout)

    def test_no_records(self):
        for text in "", "label,text\n", "\n\n":
            self.write("train.csv", text)
            self.refuse("'train.csv' has no record of label and text")
        self.write("train.csv", "0,a\n1,b\n")
        self.refuse("'train.csv' is too short to hold out each tenth text; use --validation")
        self.write("train.csv", b"0,a\0b\n")
        self.refuse("'train.csv' holds a zero byte, so it is not a text")
        os.remove(self.path("train.csv"))
        self.refuse("cannot open 'train.csv': No such file or directory")

    def test_files_of_the_model(self):
        for name in "model.safetensors", "merges.txt", "vocab.json", "config.json":
            os.remove(self.path(name))
            done = run(*self.options())
            self.assertEqual(done.returncode, 1)
            self.assertIn(name, done.stderr.decode())

    def test_foreign_weights(self):
        os.remove(self.path("model.safetensors"))
        tensors = {name.replace("roberta.", "bert."): tensor
                   for name, tensor in tensor_file.load(WEIGHTS).items()}
        tensor_file.save(self.path("model.safetensors"), tensors)
        self.refuse(
            "'model.safetensors' does not fit the model: 27 of its weights are missing there and 0 have "
            "another shape; the first: roberta.embeddings.word_embeddings.weight: in the model only")

    def test_foreign_vocabulary(self):
        size = self.golden["config"]["vocab_size"]
        self.write("config.json", json.dumps({**self.golden["config"], "vocab_size": size - 1}))
        self.refuse(f"'vocab.json' has {size} pieces, but the model's vocab_size is {size - 1}; they do not "
                    f"belong together")
        self.write("config.json", json.dumps({**self.golden["config"], "pad_token_id": 3}))
        self.refuse(
            "<pad> has id 1 in 'vocab.json', but the model's pad_token_id is 3; they do not belong together")
        os.remove(self.path("merges.txt"))
        self.write("merges.txt", "x y z\n")
        self.refuse("merges.txt:1: two pieces with one space between them are expected here")

    def test_too_long(self):
        self.refuse("--seq-length is 33, but the model has 32 positions", **{"seq-length": 33})

    def test_checkpoints(self):
        self.refuse("--resume and --checkpoint-every need --checkpoint FILE", "--resume")
        done = run(*self.options(), "--resume", "--checkpoint", self.path("absent"))
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"absent", done.stderr)
        self.train("--checkpoint", self.path("a"), **{"max-steps": 2})
        with open(self.path("a"), "r+b") as file:
            file.truncate(1000)
        done = run(*self.options(), "--resume", "--checkpoint", self.path("a"))
        self.assertEqual(done.returncode, 1)
        self.assertNotEqual(done.stderr, b"")

    def test_options(self):
        self.write("labels", "a\nb\n")
        self.refuse("'labels' names 2 classes, but there are 5; use --classes", labels=self.path("labels"))
        for options in ["--classes", "1"], ["--classes", "65537"], ["--dropout", "1"], ["--warmup", "1"]:
            self.assertEqual(run(*options).returncode, 2)


if __name__ == "__main__":
    unittest.main()
