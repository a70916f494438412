"""examples/tokenizer.h gives the ids and the places of Hugging Face's tokenizers (golden/tokenizer*, make_tokenizer.py), and names what is
wrong with a vocabulary."""
import json
import os
import struct
import subprocess
import tempfile
import unittest

from tests.examples import GOLDEN, program

PROGRAM = program("tokenize")
VOCAB = os.path.join(GOLDEN, "tokenizer_vocab.txt")
BPE = [os.path.join(GOLDEN, "tokenizer_vocab.json"), os.path.join(GOLDEN, "tokenizer_merges.txt")]
SPLIT = os.path.join(GOLDEN, "tokenizer_split.json")


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)


class Values(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(os.path.join(GOLDEN, "tokenizer.json"), encoding="utf-8") as file:
            cls.golden = json.load(file)

    def encode(self, texts, *arguments):
        with tempfile.NamedTemporaryFile() as file:
            for text in texts:
                file.write(struct.pack("<I", len(text)) + text)
            file.flush()
            done = run(*arguments, file.name)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        lines = done.stdout.decode().split("\n")[:-1]
        self.assertEqual(len(lines), len(texts))
        return [[[int(number) for number in token.split(":")] for token in line.split()] for line in lines]

    def compare(self, name, *arguments):
        texts = [text.encode() for text in self.golden["texts"]]
        for text, want, got in zip(self.golden["texts"], self.golden[name], self.encode(texts, *arguments)):
            self.assertEqual(got if arguments[0] != "bpe" else [token[0] for token in got], want, ascii(text))

    def test_uncased(self):
        self.compare("uncased", "uncased", VOCAB)

    def test_cased(self):
        self.compare("cased", "cased", VOCAB)

    def test_bpe(self):
        self.compare("bpe", "bpe", *BPE)

    def test_bpe_with_digits_apart(self):
        self.assertNotEqual(self.golden["digits"], self.golden["bpe"])
        self.compare("digits", "bpe", *BPE, SPLIT)

    def test_bpe_keeps_every_byte(self):
        texts = [text.encode() for text in self.golden["texts"]] + [bytes(range(256)), b"\xff\xfe \xc3", b"\xf0\x9f\x98 \xed\xa0\x80"]
        with open(BPE[0], encoding="utf-8") as file:
            sizes = {i: len(piece) for piece, i in json.load(file).items()}
        for text, tokens in zip(texts, self.encode(texts, "bpe", *BPE)):
            self.assertEqual([start for _, start, _ in tokens], [0, *(end for _, _, end in tokens)][:len(tokens)])
            self.assertEqual(tokens[-1][2] if tokens else 0, len(text))
            self.assertEqual([end - start for _, start, end in tokens], [sizes[i] for i, _, _ in tokens])

    def test_not_utf8(self):
        """Bytes that are no characters are dropped by WordPiece and break no word."""
        good, bad = self.encode([b"the model", b"\xffthe\xc0 mo\xed\xa0\x80d\xf5el\xe0\x81\xa1\xe4\xb8"], "cased", VOCAB)
        self.assertEqual([token[0] for token in bad], [token[0] for token in good])

    def test_long_words_take_no_long_time(self):
        """A million letters in one word, for which a search through all of them after each merge would take hours."""
        text = b"the" * 400000
        tokens, = self.encode([text], "bpe", *BPE)
        self.assertEqual(tokens[-1][2], len(text))


class BadFiles(unittest.TestCase):
    def refuse(self, sentence, files, *arguments):
        """files: what stands in arguments' files, instead of those of golden/ where None."""
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for i, (content, path) in enumerate(zip(files, [*BPE, SPLIT] if arguments == ("bpe",) else [VOCAB])):
                if content is not None:
                    path = os.path.join(folder, str(i))
                    with open(path, "wb") as file:
                        file.write(content)
                paths.append(path)
            done = run(*arguments, *paths, os.devnull)
            self.assertEqual((done.returncode, done.stdout), (1, b""))
            self.assertEqual(done.stderr.decode().replace(folder + os.sep, ""), sentence + "\n")

    def test_wordpiece(self):
        for content, sentence in (
                (b"[UNK]\n\na\n", "0:2: the line is empty, where a piece belongs"),
                (b"a\n[UNK]\nb\na\n", "0: ids 0 and 3 are the same piece 'a'"),
                (b"", "0: there is no line [UNK]; is it a vocabulary of BERT, one piece a line?"),
                (b"\0\x1b[2J\n\0\x1b[2J", "0: ids 0 and 1 are the same piece ''")):
            self.refuse(sentence, [content], "cased")

    def test_bpe(self):
        with open(BPE[0], "rb") as file:
            vocab = file.read()
        for content, sentence in (
                (b"", "0:1: an object, {...}, belongs here"),
                (b"[1]", "0:1: an object, {...}, belongs here"),
                (vocab[:-1], "0:1: a comma or a } belongs here"),
                (vocab + b"x", "0:1: nothing belongs behind the end"),
                (b'{"a": 0,\n "b": 0}', "0:2: the id of this piece has been given to another one"),
                (b'{"a": -1}', "0:1: 'a' is -1, not a whole number between 0 and 4194303"),
                (b'{"a": 1e30}', "0:1: 'a' is 1e+30, not a whole number between 0 and 4194303"),
                (b'{"a": 0.5}', "0:1: 'a' is 0.5, not a whole number between 0 and 4194303"),
                (b'{"a": "0"}', "0:1: a number belongs here"),
                (b'{"a": 0, "b": 1}', "0: no piece stands for the byte 0 alone; byte-level BPE needs all 256"),
                (b'{"a": 0, "a": 1}', "0: ids 0 and 1 are the same piece 'a'"),
                (b'{"": 0}', "0:1: a piece is empty or holds a character that stands for no byte; is it a byte-level vocabulary?"),
                (b'{"a b": 0}', "0:1: a piece is empty or holds a character that stands for no byte; is it a byte-level vocabulary?"),
                (b'{"\\u4e2d": 0}', "0:1: a piece is empty or holds a character that stands for no byte; is it a byte-level vocabulary?"),
                (b'{"a\n": 0}', "0:1: a string does not end in its line"),
                (b'{"a\\x": 0}', "0:1: there is no such escape in a string")):
            self.refuse(sentence, [content, None], "bpe")
        for content, sentence in (
                (b"#version: 0.2\n- - -\n", "1:2: two pieces with one space between them belong here"),
                (b"#version: 0.2\n\n- -\n", "1:2: two pieces with one space between them belong here"),
                (b"th\n", "1:1: two pieces with one space between them belong here"),
                (b"- -\nq z\n", "1:2: the vocabulary lacks a piece of this line, or both as one; do the files belong together?"),
                (b"- -\n- -", "1:2: the line says again what an earlier one said")):
            self.refuse(sentence, [None, content], "bpe")

    def test_split(self):
        unknown = "2:1: words are split by a rule '%s' that is not known here"
        for content, sentence in (
                (b"", "2:1: an object, {...}, belongs here"),
                (b'{"pre_tokenizer": null}', "2:1: an object, {...}, belongs here"),
                (b'{"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type"',
                 "2:1: a colon belongs behind a key"),
                (b'{"pre_tokenizer": {"type": "Metaspace", "split": false}}', unknown % "Metaspace"),
                (b'{"pre_tokenizer": {"type": "Digits", "individual_digits": false}}', unknown % "Digits"),
                (b'{"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true}}', unknown % "ByteLevel"),
                (b'{"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Sequence", "pretokenizers": []}]}}',
                 unknown % "Sequence"),
                (b'{"pre_tokenizer": {"type": 3}}', "2:1: a string belongs here")):
            self.refuse(sentence, [None, None, content], "bpe")

    def test_missing(self):
        done = run("cased", os.path.join(GOLDEN, "absent"), os.devnull)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot open '", done.stderr)


if __name__ == "__main__":
    unittest.main()
