"""examples/options.h: every example's usage names what its opening comment names, and what it cannot read ends it with status 2."""
import os
import re
import subprocess
import tempfile
import unittest

from tests.examples import program

EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "examples")
NAMES = sorted(name[:-2] for name in os.listdir(EXAMPLES) if name.endswith(".c"))
NEEDED = {"run_model": ["m.json", "--input", "x", "--output", "y"]}  # without these it asks for them first


def run(name, *arguments):
    return subprocess.run([program(name), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def options(name):
    """Words of --help: "--text FILE" as ("--text", "FILE"), a flag as ("--cpu", "")."""
    done = run(name, "--help")
    assert (done.returncode, done.stderr) == (0, ""), done
    return [tuple((word + " ").split(" ", 1)) for word in re.findall(r"\[(.*?)\]", done.stdout)]


class Options(unittest.TestCase):
    def setUp(self):
        self.programs = []
        for name in NAMES:
            with open(os.path.join(EXAMPLES, name + ".c"), encoding="utf-8") as file:
                source = file.read()
            if "options_read(" in source:
                self.programs.append((name, source.split("*/")[0]))
        self.assertEqual([name for name in NAMES if name not in dict(self.programs)], ["device_info", "doctor"])  # these take none

    def refuse(self, name, sentence, *arguments):
        done = run(name, *NEEDED.get(name, []), *arguments)
        self.assertEqual((done.returncode, done.stdout), (2, ""), (name, arguments))
        self.assertRegex(done.stderr, r"\A[^\n]*%s: %s[^\n]*\nusage: " % (name, sentence), arguments)

    def test_comments(self):
        for name, comment in self.programs:
            told = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", re.sub(r"python3 -m \S+.*", "", comment)))
            self.assertEqual(told - {"--help"}, {word for word, _ in options(name) if word.startswith("--")}, name)

    def test_refusals(self):
        for name, _ in self.programs:
            self.refuse(name, "there is no option --colour", "--colour", "red")
            operands = sum(not word.startswith("--") for word, _ in options(name)) - len(NEEDED.get(name, [])[:1])
            self.refuse(name, "nothing can be done with the argument 'c'", *["c"] * (operands + 1))
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
                    for wrong in ("-1", "1e40", "x", "1x", "", "nan", *["1.5", "99999999999999999999"] * (value.strip() != "X")):
                        self.refuse(name, r"%s is '%s', but takes a (whole )?number from" % (word, wrong), word, wrong)

    def test_results_that_cannot_be_written(self):
        """Told before the work, not after it; and asking changes no file."""
        places = (("char_lstm", "--save"), ("char_lstm", "--checkpoint"), ("gpt2", "--save"), ("gpt2", "--checkpoint"), ("gpt2", "--logits"),
                  ("resnet18", "--save"), ("roberta_classify", "--save"), ("roberta_classify", "--checkpoint"), ("run_model", "--output"),
                  ("register3d", "--out"), ("tiny_imagenet", "--out"))
        with tempfile.TemporaryDirectory() as folder:
            for name, word in places:
                done = run(name, word, os.path.join(folder, "none", "file"))
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
