"""examples/options.h: every example explains its options, its opening comment names no others, and an invalid
option ends it with status 2."""
import os
import re
import subprocess
import tempfile
import unittest

from tests.examples import program

EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
                        "examples")
NAMES = sorted(name[:-2] for name in os.listdir(EXAMPLES) if name.endswith(".c"))
NEEDED = {"run_model": ["m.json", "--input", "x", "--output", "y"]}  # without these it first asks for them


def run(name, *arguments):
    return subprocess.run([program(name), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)


def options(name):
    """The words of --help's usage: "--text FILE" as ("--text", "FILE"), a flag as ("--cpu", "")."""
    done = run(name, "--help")
    assert (done.returncode, done.stderr) == (0, ""), done
    usage = re.match(r"usage: .*\n( {7}.*\n)*", done.stdout)[0]
    return [tuple((word + " ").split(" ", 1)) for word in re.findall(r"\[(.*?)\]", usage)]


class Options(unittest.TestCase):
    def setUp(self):
        self.programs = []
        for name in NAMES:
            with open(os.path.join(EXAMPLES, name + ".c"), encoding="utf-8") as file:
                source = file.read()
            if "options_read(" in source:
                self.programs.append((name, source.split("*/")[0]))
        self.assertEqual([name for name, _ in self.programs], NAMES)

    def refuse(self, name, sentence, *arguments):
        done = run(name, *NEEDED.get(name, []), *arguments)
        self.assertEqual((done.returncode, done.stdout), (2, ""), (name, arguments))
        self.assertRegex(done.stderr, r"\A[^\n]*%s: %s[^\n]*\nusage: " % (name, sentence), arguments)

    def test_comments(self):
        for name, comment in self.programs:
            told = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", re.sub(r"python3 -m \S+.*", "", comment)))
            self.assertLessEqual(told, {"--help", *(word for word, _ in options(name))}, name)

    def test_explanations(self):
        """--help has a line for each option of the table, and shows defaults."""
        for name, _ in self.programs:
            lines = run(name, "--help").stdout.splitlines()
            explained = dict(re.findall(r"^  (\S+(?: \S+)?)(?:  +|\n {3,})(\S.*)$", "\n".join(lines), re.M))
            words = [" ".join(word).strip() for word in options(name)]
            self.assertEqual(sorted(explained), sorted(words), name)
            for word, text in explained.items():
                self.assertRegex(text, r"^(?!\(null\)).{8,}$", (name, word))
            self.assertLessEqual(max(map(len, lines)), 132, name)
        gpt2 = run("gpt2", "--batch", "3", "--help").stdout
        for line in (r"--config tiny\|124M .*\[tiny\]", r"--batch N .*\[8\]", r"--lr X [^\[]*",
                     r"--prompt TEXT .*\[forty-one, forty-two, \]", r"--decay X .*\[0.1\]"):
            self.assertRegex(gpt2, f"(?m)^  {line}$")

    def test_refusals(self):
        for name, _ in self.programs:
            self.refuse(name, "there is no option --colour", "--colour", "red")
            operands = sum(not word.startswith("--") for word, _ in options(name)) - len(
                NEEDED.get(name, [])[:1])
            self.refuse(name, "unexpected argument 'c'", *["c"] * (operands + 1))
            for word, value in options(name):
                if not word.startswith("--"):
                    continue
                for wrong in word + "=1", word[:-1]:
                    self.refuse(name, "there is no option " + wrong, wrong)
                if value:
                    self.refuse(name, word + " lacks its value", word)
                if "|" in value:
                    self.refuse(name, r"%s.*: there is no 'wrong'" % word, word, "wrong")
                    self.refuse(name, r"%s.*: there is no ''" % word, word, "")
                elif value.strip() in ("N", "X", "STEPS"):
                    for wrong in ("-1", "1e40", "x", "1x", "", "nan",
                                  *["1.5", "99999999999999999999"] * (value.strip() != "X")):
                        self.refuse(name, r"%s is '%s', but takes a (whole )?number from" % (word, wrong),
                                    word, wrong)

    def test_folder_of_results(self):
        """The folder is created if it is missing, out/ by default. Nothing is written outside of it."""
        with tempfile.TemporaryDirectory() as folder:
            for way in [], ["--out", "mine"]:
                done = subprocess.run([program("register3d"), "--synthetic", "8", "--steps", "1", *way],
                                      cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(sorted(os.listdir(folder)), ["mine", "out"])
            names = ["register3d_" + name for name in ("after.png", "before.png", "field.nii", "warped.nii")]
            for way in "mine", "out":
                self.assertEqual(sorted(os.listdir(os.path.join(folder, way))), names)
        with open(os.path.join(os.path.dirname(EXAMPLES), ".gitignore")) as file:
            self.assertIn("out/\n", file.readlines())

    def test_results_that_cannot_be_written(self):
        """Reported before the work, not after it. The check changes no file."""
        places = (("char_lstm", "--save"), ("char_lstm", "--checkpoint"), ("gpt2", "--save"),
                  ("gpt2", "--checkpoint"), ("gpt2", "--logits"),
                  ("resnet18", "--save"), ("resnet18", "--saliency"), ("roberta_classify", "--save"),
                  ("roberta_classify", "--checkpoint"), ("run_model", "--output"), ("register3d", "--out"),
                  ("tiny_imagenet", "--synthetic --out"), ("cifar10", "--synthetic --out"),
                  ("unet", "--save"), ("unet", "--logits"), ("unet", "--out"))
        with tempfile.TemporaryDirectory() as folder:
            for name, word in places:
                done = run(name, *word.split(), os.path.join(folder, "none", "file"))
                self.assertEqual((done.returncode, done.stdout), (1, ""), (name, word))
                self.assertRegex(done.stderr, r"\A.*(cannot be written|cannot write).*\n\Z")
            kept, new = os.path.join(folder, "kept"), os.path.join(folder, "new")
            with open(kept, "w") as file:
                file.write("weights")
            for path in kept, new:
                run("gpt2", "--save", path, "--colour")
            with open(kept) as file:
                self.assertEqual(file.read(), "weights")
            self.assertEqual(os.listdir(folder), ["kept"])


if __name__ == "__main__":
    unittest.main()
