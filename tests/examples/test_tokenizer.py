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


def encode(texts, *arguments):
    """The tokens of each text, [id, start, end], and what they are decoded to where that was asked for."""
    with tempfile.NamedTemporaryFile() as file:
        for text in texts:
            file.write(struct.pack("<I", len(text)) + text)
        file.flush()
        done = run(*arguments, file.name)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr
    rows = [line.partition("\t") for line in done.stdout.decode().split("\n")[:-1]]
    assert len(rows) == len(texts)
    return [([[int(number) for number in token.split(":")] for token in tokens.split()], bytes.fromhex(said)) for tokens, _, said in rows]


def pieces(name):
    with open(os.path.join(GOLDEN, name), encoding="utf-8") as file:
        return json.load(file) if name.endswith("json") else {piece: i for i, piece in enumerate(file.read().splitlines())}


def merges(name):
    with open(os.path.join(GOLDEN, name), encoding="utf-8") as file:
        return file.read().splitlines()[1:]


class Values(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(os.path.join(GOLDEN, "tokenizer.json"), encoding="utf-8") as file:
            cls.golden = json.load(file)

    def encode(self, texts, *arguments):
        return [tokens for tokens, _ in encode(texts, *arguments)]

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
        with open(SPLIT, encoding="utf-8") as file, tempfile.NamedTemporaryFile("w") as path:
            json.dump({**json.load(file), "model": {"type": "BPE", "vocab": pieces(BPE[0]), "merges": merges(BPE[1])}}, path)
            path.flush()
            done = encode([text.encode() for text in self.golden["texts"]], "json", path.name)
        self.assertEqual([[token[0] for token in tokens] for tokens, _ in done], self.golden["digits"])

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


class Json(unittest.TestCase):
    """tokenizer.json of each family (golden/tokenizer_json.json, make_tokenizer_json.py)."""

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(GOLDEN, "tokenizer_json.json"), encoding="utf-8") as file:
            cls.golden = json.load(file)
        cls.texts = cls.golden.pop("texts")
        for entry in cls.golden.values():
            model = entry["file"]["model"]
            for key, read in ("vocab", pieces), ("merges", merges):
                if isinstance(model.get(key), str):
                    model[key] = read(model[key])

    def path(self, file):
        path = tempfile.NamedTemporaryFile("w", suffix=".json")
        self.addCleanup(path.close)
        json.dump(file, path)
        path.flush()
        return path.name

    def test_values(self):
        for name, entry in self.golden.items():
            done = encode([text.encode() for text in self.texts], "json", self.path(entry["file"]))
            for text, (tokens, said), (ids, want, *places) in zip(self.texts, done, entry["rows"]):
                self.assertEqual([token[0] for token in tokens], ids, (name, ascii(text)))
                self.assertEqual(said.decode(errors="replace"), want, (name, ascii(text)))
                at = [i for i, c in enumerate(text) for _ in c.encode()]  # theirs count characters
                got = [x for _, start, end in tokens for x in ((at[start], at[end - 1] + 1) if end > start else (0, 0))]
                if places:
                    self.assertEqual(got, places[0], (name, ascii(text)))

    def test_around(self):
        """The tokens around a text, and their text."""
        for name, entry in self.golden.items():
            (tokens, said), = encode([b"a"], "all", self.path(entry["file"]))
            self.assertEqual([[token[0] for token in tokens], said.decode()], entry["around"], name)

    def test_not_utf8(self):
        """Bytes that are no characters are kept where a model knows bytes, and break nothing elsewhere."""
        text = b"of \xff the\xc0 \xed\xa0\x80\xf5 \xe0\x81\xa1\xe4\xb8"
        for name, entry in self.golden.items():
            (tokens, said), = encode([text], "json", self.path(entry["file"]))
            self.assertTrue(tokens, name)
            if name == "llama3":
                self.assertEqual(said, text)
            if name == "t5":
                self.assertEqual(said.decode(), "of\ufffdthe" + 10 * "\ufffd")

    def test_bad(self):
        for change, sentence in (
                ({"model": {"type": "WordLevel"}}, "the model is none of BPE, Unigram and WordPiece"),
                ({"model": {"type": "BPE"}}, "there is no vocabulary; is it a tokenizer.json?"),
                ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}, "the vocabulary lacks a piece of this line"),
                ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}}, 'two pieces, "a b" or ["a", "b"], belong here'),
                ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "u"}}, "the vocabulary lacks the unk_token 'u'"),
                ({"model": {"type": "BPE", "vocab": {"a": 0}, "byte_fallback": True}}, "byte_fallback needs all 256 bytes, and there is no"),
                ({"model": {"type": "BPE", "vocab": {"a": 0}, "dropout": 0.1}}, "'dropout' is not known here"),
                ({"model": {"type": "BPE", "vocab": {"a": 0}, "end_of_word_suffix": "</w>"}}, "'end_of_word_suffix' is not known here"),
                ({"model": {"type": "BPE", "vocab": {"a": 0}, "continuing_subword_prefix": "@@"}}, "only ## is known"),
                ({"model": {"type": "WordPiece", "vocab": {"a": 0}}}, "the vocabulary lacks the unk_token ''"),
                ({"model": {"type": "Unigram", "vocab": [["a", -1]]}}, "'unk_id' is not the id of a piece"),
                ({"model": {"type": "Unigram", "vocab": [["a", -1]], "unk_id": 1}}, "'unk_id' is not the id of a piece"),
                ({"model": {"type": "Unigram", "vocab": [["a"]], "unk_id": 0}}, "a piece with its score"),
                ({"model": {"type": "Unigram", "vocab": [["a", 1e300]], "unk_id": 0}}, "its score too large"),
                ({"model": {"type": "Unigram", "vocab": [["a", -1], ["a", -2]], "unk_id": 0}}, "ids 0 and 1 are the same piece 'a'"),
                ({"normalizer": {"type": "NFKC"}}, "the normalizer 'NFKC' is not known here"),
                ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}] * 9}}, "the normalizer 'Lowercase' is not"),
                ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [{"type": "Sequence",
                  "normalizers": []}]}]}}, "the normalizer 'Sequence' is not known here"),
                ({"normalizer": {"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""}}, "the normalizer 'Replace' is not known"),
                ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "////////"}}, "is no table of SentencePiece"),
                ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "a!"}}, "is no table of SentencePiece"),
                ({"pre_tokenizer": {"type": "Whitespace"}}, "the pre_tokenizer 'Whitespace' is not known here"),
                ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated"}}, "the pre_tokenizer 'Split' is"),
                ({"pre_tokenizer": {"type": 3}}, "a string belongs here"),
                ({"pre_tokenizer": {"type": "ByteLevel"}}, "no piece stands for the byte 0 alone"),
                ({"decoder": {"type": "CTC"}}, "the decoder 'CTC' is not known here"),
                ({"post_processor": {"type": "Other"}}, "the post_processor is not known here"),
                ({"post_processor": {"type": "BertProcessing", "cls": ["b", 1]}}, "the post_processor's 'b' is no piece"),
                ({"added_tokens": [{"id": 1}]}, "an added token lacks its id or content"),
                ({"added_tokens": [{"id": -1, "content": "x"}]}, "'id' is -1, not a whole number"),
                ({"added_tokens": [{"id": 1, "content": "x", "single_word": True}]}, "is a 'single_word', which is not known here")):
            file = {"model": {"type": "BPE", "vocab": {"a": 0, "b" * 9: 1}, "merges": []}, **change}
            done = run("json", self.path(file), os.devnull)
            self.assertEqual((done.returncode, done.stdout), (1, b""), change)
            self.assertIn(sentence, done.stderr.decode(), change)


class BadFiles(unittest.TestCase):
    def refuse(self, sentence, files, *arguments):
        """files: what stands in arguments' files, instead of those of golden/ where None."""
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for i, (content, path) in enumerate(zip(files, BPE if arguments == ("bpe",) else [VOCAB])):
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

    def test_missing(self):
        done = run("cased", os.path.join(GOLDEN, "absent"), os.devnull)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot open '", done.stderr)


if __name__ == "__main__":
    unittest.main()
