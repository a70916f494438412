"""examples/tokenizer.h gives the ids and the places of Hugging Face's tokenizers (expected_output/tokenizer*,
make_tokenizer.py), and names what is wrong with a vocabulary."""
import base64
import json
import os
import random
import struct
import subprocess
import tempfile
import unicodedata
import unittest

from tests.examples import EXPECTED, comma_locale, program

PROGRAM = program("tokenize")
VOCAB = os.path.join(EXPECTED, "tokenizer_vocab.txt")
BPE = [os.path.join(EXPECTED, "tokenizer_vocab.json"), os.path.join(EXPECTED, "tokenizer_merges.txt")]
SPLIT = os.path.join(EXPECTED, "tokenizer_split.json")


def run(*arguments, env=None):
    return subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
                          env=env)


def encode(texts, *arguments):
    """The tokens of each text, [id, start, end], and the decoded text if it was requested."""
    with tempfile.NamedTemporaryFile() as file:
        for text in texts:
            file.write(struct.pack("<I", len(text)) + text)
        file.flush()
        done = run(*arguments, file.name)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr
    rows = [line.partition("\t") for line in done.stdout.decode().split("\n")[:-1]]
    assert len(rows) == len(texts)
    return [([[int(number) for number in token.split(":")] for token in tokens.split()], bytes.fromhex(said))
            for tokens, _, said in rows]


def pieces(name):
    with open(os.path.join(EXPECTED, name), encoding="utf-8") as file:
        return (json.load(file) if name.endswith("json") else
                {piece: i for i, piece in enumerate(file.read().splitlines())})


def merges(name):
    with open(os.path.join(EXPECTED, name), encoding="utf-8") as file:
        return file.read().splitlines()[1:]


class Values(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(os.path.join(EXPECTED, "tokenizer.json"), encoding="utf-8") as file:
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
            json.dump({**json.load(file),
                       "model": {"type": "BPE", "vocab": pieces(BPE[0]), "merges": merges(BPE[1])}}, path)
            path.flush()
            done = encode([text.encode() for text in self.golden["texts"]], "json", path.name)
        self.assertEqual([[token[0] for token in tokens] for tokens, _ in done], self.golden["digits"])

    def test_bpe_keeps_every_byte(self):
        texts = [text.encode() for text in self.golden["texts"]] + [
            bytes(range(256)), b"\xff\xfe \xc3", b"\xf0\x9f\x98 \xed\xa0\x80"]
        with open(BPE[0], encoding="utf-8") as file:
            sizes = {i: len(piece) for piece, i in json.load(file).items()}
        for text, tokens in zip(texts, self.encode(texts, "bpe", *BPE)):
            self.assertEqual([start for _, start, _ in tokens],
                             [0, *(end for _, _, end in tokens)][:len(tokens)])
            self.assertEqual(tokens[-1][2] if tokens else 0, len(text))
            self.assertEqual([end - start for _, start, end in tokens], [sizes[i] for i, _, _ in tokens])

    def test_not_utf8(self):
        """WordPiece drops invalid bytes, and they break no word."""
        good, bad = self.encode([b"the model", b"\xffthe\xc0 mo\xed\xa0\x80d\xf5el\xe0\x81\xa1\xe4\xb8"],
                                "cased", VOCAB)
        self.assertEqual([token[0] for token in bad], [token[0] for token in good])

    def test_long_words_take_no_long_time(self):
        """A million letters in one word. A search through all of them after each merge would take hours."""
        text = b"the" * 400000
        tokens, = self.encode([text], "bpe", *BPE)
        self.assertEqual(tokens[-1][2], len(text))


class Json(unittest.TestCase):
    """tokenizer.json of each family (expected_output/tokenizer_json.json, make_tokenizer_json.py)."""

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(EXPECTED, "tokenizer_json.json"), encoding="utf-8") as file:
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
                at = [i for i, c in enumerate(text) for _ in c.encode()]  # Hugging Face counts characters
                got = [x for _, start, end in tokens
                       for x in ((at[start], at[end - 1] + 1) if end > start else (0, 0))]
                if places:
                    self.assertEqual(got, places[0], (name, ascii(text)))

    def test_around(self):
        """The tokens around a text, and their text."""
        for name, entry in self.golden.items():
            (tokens, said), = encode([b"a"], "all", self.path(entry["file"]))
            self.assertEqual([[token[0] for token in tokens], said.decode()], entry["around"], name)

    def test_not_utf8(self):
        """Invalid bytes are kept if a model has byte tokens, and do no harm elsewhere."""
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
                ({"model": {"type": "Other"}}, "the model is not BPE, Unigram, WordLevel or WordPiece"),
                ({"model": {"type": "WordLevel", "vocab": {"a": 0}}},
                 "the vocabulary lacks the unk_token ''"),
                ({"model": {"type": "BPE"}}, "there is no vocabulary; is it a tokenizer.json?"),
                ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}},
                 "the vocabulary lacks a piece of this line"),
                ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}},
                 'two pieces, "a b" or ["a", "b"], are expected here'),
                ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "u"}},
                 "the vocabulary lacks the unk_token 'u'"),
                ({"model": {"type": "BPE", "vocab": {"a": 0}, "byte_fallback": True}},
                 "byte_fallback needs all 256 bytes, and there is no"),
                ({"model": {"type": "BPE", "vocab": {"a": 0}, "dropout": 0.1}}, "'dropout' is not supported"),
                ({"model": {"type": "BPE", "vocab": {"a": 0}, "end_of_word_suffix": "w" * 33}},
                 "the end_of_word_suffix 'www"),
                ({"model": {"type": "BPE", "vocab": {"a": 0}, "continuing_subword_prefix": "\u4e2d"},
                  "pre_tokenizer": {"type": "ByteLevel"}},
                 "the continuing_subword_prefix '\u4e2d' is too long, or stands for no bytes"),
                ({"model": {"type": "WordPiece", "vocab": {"a": 0}, "continuing_subword_prefix": "@@"}},
                 "only ## is supported"),
                ({"model": {"type": "WordPiece", "vocab": {"a": 0}}},
                 "the vocabulary lacks the unk_token ''"),
                ({"model": {"type": "Unigram", "vocab": [["a", -1]]}}, "'unk_id' is not the id of a piece"),
                ({"model": {"type": "Unigram", "vocab": [["a", -1]], "unk_id": 1}},
                 "'unk_id' is not the id of a piece"),
                ({"model": {"type": "Unigram", "vocab": [["a"]], "unk_id": 0}}, "a piece with its score"),
                ({"model": {"type": "Unigram", "vocab": [["a", 1e300]], "unk_id": 0}}, "its score too large"),
                ({"model": {"type": "Unigram", "vocab": [["a", -1], ["a", -2]], "unk_id": 0}},
                 "ids 0 and 1 are the same piece 'a'"),
                ({"normalizer": {"type": "ByteLevel"}}, "the normalizer 'ByteLevel' is not supported"),
                ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}] * 17}},
                 "the normalizer 'NFKC' is not"),
                ({"normalizer": {"type": "Sequence", "normalizers": [
                    {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": []}]}]}},
                 "the normalizer 'Sequence' is not supported"),
                ({"normalizer": {"type": "Replace", "pattern": {"Regex": "a+"}}},
                 "the normalizer 'Replace' is not supported"),
                ({"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}},
                 "the pattern '' is not supported: it is empty"),
                ({"normalizer": {"type": "Precompiled"}}, "is not a table of SentencePiece"),
                ({"pre_tokenizer": {"type": "UnicodeScripts"}},
                 "the pre_tokenizer 'UnicodeScripts' is not supported"),
                ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Other"}},
                 "the pre_tokenizer 'Split' is"),
                ({"pre_tokenizer": {"type": "CharDelimiterSplit", "delimiter": ""}},
                 "the pre_tokenizer 'CharDelimiterSplit' is"),
                ({"pre_tokenizer": {"type": "FixedLength", "length": 0}},
                 "'length' is 0, not a whole number"),
                ({"pre_tokenizer": {"type": "Sequence", "pretokenizers":
                                    [{"type": "ByteLevel"}, {"type": "Metaspace", "replacement": "_"}]}},
                 "the pre_tokenizer 'Metaspace' is not supported, or not with"),
                ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "BertPreTokenizer"}] * 9}},
                 "the pre_tokenizer 'BertPre"),
                ({"decoder": {"type": "BPEDecoder", "suffix": ""}},
                 "the decoder 'BPEDecoder' is not supported"),
                ({"pre_tokenizer": {"type": 3}}, "a string is expected here"),
                ({"pre_tokenizer": {"type": "ByteLevel"}}, "no piece stands for the byte 0 alone"),
                ({"decoder": {"type": "CTC"}}, "the decoder 'CTC' is not supported"),
                ({"post_processor": {"type": "Other"}}, "the post_processor is not supported"),
                ({"post_processor": {"type": "BertProcessing", "cls": ["b", 1]}},
                 "the post_processor's 'b' is not a piece"),
                ({"added_tokens": [{"id": 1}]}, "an added token lacks its id or content"),
                ({"added_tokens": [{"id": -1, "content": "x"}]}, "'id' is -1, not a whole number")):
            self.refuse(change, sentence)

    def refuse(self, change, sentence):
        file = {"model": {"type": "BPE", "vocab": {"a": 0, "b" * 9: 1}, "merges": []}, **change}
        done = run("json", self.path(file), os.devnull)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count(b"\n")), (1, b"", 1), change)
        self.assertIn(sentence, done.stderr.decode(), change)

    def test_bad_expressions(self):
        for expression, why in (
                ("(", "a group does not end"), (")", "a parenthesis closes nothing"),
                ("a)b", "a parenthesis closes nothing"), ("[a", "a class does not end"),
                ("[]", "a class is empty"), ("[a&&]", "a class is empty"),
                ("[b-a]", "a class holds no such range"), ("[a-\\d]", "a class holds no such range"),
                ("[[:alpha:]]", "[:...:] is not supported"), ("*a", "it repeats nothing"),
                ("a|+", "it repeats nothing"), ("a{3,2}", "a repetition runs backwards"),
                ("a{2}?", "{n}? is not supported"), ("(?<=a)", "a group of a kind that is not supported"),
                ("(?#)", "a group of a kind"),
                ("\\", "it ends after a backslash"), ("\\b", "an escape that is not supported"),
                ("(ab)\\1", "\\1 is supported only after a group of one character"),
                ("\\1", "\\1 is supported only after"), ("\\pL", "\\p needs a name in braces"),
                ("\\p{Greek}", "\\p is supported with Han and categories, such as L or Lu"),
                ("\\p{", "\\p is supported with Han"), ("\\x{110000}", "an escape lacks its digits"),
                ("\\u12", "an escape lacks its digits"), ("(?i:\u00e9)", "(?i) is supported for ASCII only"),
                ("(" * 21 + ")" * 21, "it is too deep"), ("[" * 21, "it is too deep"),
                ("(?=(?=(?=a)))", "it looks ahead too deeply"), ("a{1001}", "it is too long"),
                ("(((a{9}){9}){9}){9}", "it is too long"), ("a" * 1001, "it is too long"),
                ("[a]" * 121, "it has too many classes"),
                ("[%s]" % ("ab" * 501), "its classes hold too much"), ("a{99999999999}", "it is too long")):
            self.refuse({"normalizer": {"type": "Replace", "pattern": {"Regex": expression}, "content": ""}},
                        why)

    def test_bad_charsmap(self):
        """Each prefix of a table, tables with changed bytes, and invalid base64. Tables that lead back to
        themselves take no time."""
        step, = (step for step in self.golden["unigram"]["file"]["normalizer"]["normalizers"]
                 if step["type"] == "Precompiled")
        table = base64.b64decode(step["precompiled_charsmap"])
        named = lambda text: {"normalizer": {"type": "Precompiled", "precompiled_charsmap": text}}
        cut = [table[:-1], table[:-2], table[:len(table) // 2], table[:4], table[:3], b"", table[:-1] + b"x",
               struct.pack("<I", 6) + bytes(7),
               struct.pack("<I", 1 << 31) + table[4:], struct.pack("<II", 4, 99 << 10 | 1 << 8) + bytes(500),
               struct.pack("<III", 4, 1 << 8, 0) + bytes(8), struct.pack("<I", 0) + bytes(9)]
        whole = step["precompiled_charsmap"]
        odd = whole.rstrip("=") if whole.endswith("=") else whole + "="
        for text in [base64.b64encode(part).decode() for part in cut] + [
                "a!", "a", "abcde", "ab==cd==", step["precompiled_charsmap"][1:], "=" * 8, odd]:
            self.refuse(named(text), "'precompiled_charsmap' is not a table of SentencePiece")
        cyclic = (struct.pack("<I", 1024) +
                  struct.pack("<256I", *(0x61 if i == 0x61 else 0 for i in range(256))) + b"\0")
        file = {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
                **named(base64.b64encode(cyclic).decode())}
        (tokens, _), = encode([b"a" * 100000], "json", self.path(file))
        self.assertEqual(tokens, [[0, 0, 100000]])

    def test_expressions(self):
        """Where Split's words begin and end, and what Replace makes of texts
        (expected_output/tokenizer_expressions.json)."""
        with open(os.path.join(EXPECTED, "tokenizer_expressions.json"), encoding="utf-8") as file:
            golden = json.load(file)
        texts, places = golden["texts"], [[i for i, c in enumerate(text) for _ in c.encode()] + [len(text)]
                                          for text in golden["texts"]]
        words = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}
        letters = {"type": "BPE", "vocab": {f"<0x{byte:02X}>": byte for byte in range(256)}, "merges": [],
                   "byte_fallback": True}
        for split, rows in golden["split"]:
            done = encode([text.encode() for text in texts], "json",
                          self.path({"model": words, "pre_tokenizer": split}))
            for text, at, (tokens, _), want in zip(texts, places, done, rows):
                self.assertEqual([at[place] for token in tokens for place in token[1:]], want,
                                 (split, ascii(text)))
        for expression, rows in golden["replace"]:
            step = {"type": "Replace", "pattern": {"Regex": expression}, "content": "<>"}
            done = encode([text.encode() for text in texts], "said", self.path(
                {"model": letters, "normalizer": step, "decoder": {"type": "ByteFallback"}}))
            for text, (_, said), want in zip(texts, done, rows):
                self.assertEqual(said.decode(), want, (expression, ascii(text)))

    def test_expressions_take_no_long_time(self):
        """Expressions for which other engines need 2 to the power of the text's length."""
        for expression in ("(a*)*b", "(a|a)*b", "(a|aa)+$b", "(?:a?){40}a{40}b", "(?=(a|a)*b)a",
                           "(?>(a|a)*b)|b", "(?:(a+)+){3}b", "()*b|(a?)*?b"):
            file = {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
                    "normalizer": {"type": "Replace", "pattern": {"Regex": expression}, "content": "x"}}
            (tokens, _), = encode([b"a" * 300], "json", self.path(file))
            self.assertEqual(tokens, [[0, 0, 300]], expression)


class NormalForms(unittest.TestCase):
    """Python's, for the characters of Unicode 9: tokenizers, and so unicode.h, have no later decompositions
    and orders."""
    LATER = ((0x7fd, 0x7fd), (0x898, 0x89f), (0x8ca, 0x8d3), (0x9fe, 0x9fe), (0xc3c, 0xc3c), (0xd3b, 0xd3c),
             (0xeba, 0xeba), (0x1715, 0x1715), (0x1abf, 0x1ace), (0x1df6, 0x1dfa), (0x32ff, 0x32ff),
             (0xa7f2, 0xa7f4), (0xa82c, 0xa82c), (0xab69, 0xab69), (0x10781, 0x107ba),
             (0x10d24, 0x10d27), (0x10eab, 0x10eac), (0x10f46, 0x10f50), (0x10f82, 0x10f85),
             (0x11070, 0x11070), (0x1133b, 0x1133b), (0x1145e, 0x1145e),
             (0x11839, 0x1183a), (0x11930, 0x11943), (0x119e0, 0x119e0), (0x11a34, 0x11a34),
             (0x11a47, 0x11a47), (0x11a99, 0x11a99), (0x11d42, 0x11d45),
             (0x11d97, 0x11d97), (0x16ff0, 0x16ff1), (0x1e130, 0x1e136), (0x1e2ae, 0x1e2ae),
             (0x1e2ec, 0x1e2ef), (0x1f16c, 0x1f16c), (0x1fbf0, 0x1fbf9))

    @classmethod
    def setUpClass(cls):
        old, same = unicodedata.ucd_3_2_0, unicodedata.unidata_version == "14.0.0"
        later = {c for first, last in cls.LATER for c in range(first, last + 1)}
        points = [c for c in range(0x110000) if c != 10 and not 0xD800 <= c < 0xE000 and c not in later]
        # any Python has these
        cls.every = [c for c in map(chr, points) if same or old.category(c) != "Cn" or
                     0xAC00 <= ord(c) < 0xD7A4]

    def normalize(self, form, texts):
        """Texts without newlines, through a vocabulary of bytes."""
        model = {"type": "BPE", "vocab": {f"<0x{byte:02X}>": byte for byte in range(256)}, "merges": [],
                 "byte_fallback": True}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"model": model, "normalizer": {"type": form}, "decoder": {"type": "ByteFallback"}},
                      file)
            file.flush()
            (_, said), = encode(["\n".join(texts).encode()], "said", file.name)
        return said.decode().split("\n")

    def compare(self, texts):
        for form in "NFC", "NFD", "NFKC", "NFKD":
            got = self.normalize(form, texts)
            self.assertEqual(len(got), len(texts))
            for text, one in zip(texts, got):
                self.assertEqual(one, unicodedata.normalize(form, text), (form, ascii(text)))

    def test_every_character(self):
        self.assertGreater(len(self.every), 100000)
        self.compare(self.every)

    def test_before_and_behind_accents(self):
        changed = [c for c in self.every if unicodedata.combining(c) or
                   unicodedata.normalize("NFKD", c) != c and not 0xAC00 <= ord(c) < 0xD7A4]
        self.compare([text for c in changed for text in ("a" + c + "\u0301\u0323", "\u0345" + c + "\u0334",
                                                         c + c, "\u0301" + c + "\u3099e")])

    def test_at_random(self):
        rng = random.Random(1)
        accents = [c for c in self.every if unicodedata.combining(c)]
        parts = sorted({part for c in self.every
                        for part in unicodedata.normalize("NFD", c) if unicodedata.normalize("NFD", c) != c})
        changed = [c for c in self.every if unicodedata.normalize("NFKD", c) != c]
        jamo = [chr(c) for first, last in ((0x1100, 0x1115), (0x1160, 0x117a), (0x11a6, 0x11c5),
                                           (0xac00, 0xac40)) for c in range(first, last)]
        kinds = accents, parts, changed, jamo, self.every
        self.compare(["".join(rng.choice(rng.choice(kinds)) for _ in range(rng.randrange(1, 30)))
                      for _ in range(20000)])
        self.compare(["e" + "".join(rng.choice(accents) for _ in range(3000)),
                      "".join(rng.choice(jamo) for _ in range(3000))])


class BadFiles(unittest.TestCase):
    def refuse(self, sentence, files, *arguments):
        """files: what stands in arguments' files, instead of those of expected_output/ where None."""
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
                (b"[UNK]\n\na\n", "0:2: the line is empty, but a piece is expected"),
                (b"a\n[UNK]\nb\na\n", "0: ids 0 and 3 are the same piece 'a'"),
                (b"", "0: there is no line [UNK]; is it a vocabulary of BERT, one piece a line?"),
                (b"\0\x1b[2J\n\0\x1b[2J", "0: ids 0 and 1 are the same piece ''")):
            self.refuse(sentence, [content], "cased")

    def test_bpe(self):
        with open(BPE[0], "rb") as file:
            vocab = file.read()
        for content, sentence in (
                (b"", "0:1: an object, {...}, is expected here"),
                (b"[1]", "0:1: an object, {...}, is expected here"),
                (vocab[:-1], "0:1: a comma or a } is expected here"),
                (vocab + b"x", "0:1: there is extra text after the end"),
                (b'{"a": 0,\n "b": 0}', "0:2: another piece already has the id of this piece"),
                (b'{"a": -1}', "0:1: 'a' is -1, not a whole number between 0 and 4194303"),
                (b'{"a": 1e30}', "0:1: 'a' is 1e+30, not a whole number between 0 and 4194303"),
                (b'{"a": 0.5}', "0:1: 'a' is 0.5, not a whole number between 0 and 4194303"),
                (b'{"a": "0"}', "0:1: a number is expected here"),
                (b'{"a": 0, "b": 1}',
                 "0: no piece stands for the byte 0 alone; byte-level BPE needs all 256"),
                (b'{"a": 0, "a": 1}', "0: ids 0 and 1 are the same piece 'a'"),
                (b'{"": 0}', "0:1: a piece is empty or holds a character that stands for no byte; is it a "
                 "byte-level vocabulary?"),
                (b'{"a b": 0}', "0:1: a piece is empty or holds a character that stands for no byte; is it a "
                 "byte-level vocabulary?"),
                (b'{"\\u4e2d": 0}', "0:1: a piece is empty or holds a character that stands for no byte; is "
                 "it a byte-level vocabulary?"),
                (b'{"a\n": 0}', "0:1: a string does not end on its line"),
                (b'{"a\\x": 0}', "0:1: this escape is not valid in a string")):
            self.refuse(sentence, [content, None], "bpe")
        for content, sentence in (
                (b"#version: 0.2\n- - -\n", "1:2: two pieces with one space between them are expected here"),
                (b"#version: 0.2\n\n- -\n", "1:2: two pieces with one space between them are expected here"),
                (b"th\n", "1:1: two pieces with one space between them are expected here"),
                (b"- -\nq z\n", "1:2: the vocabulary lacks a piece of this line, or the two joined; do the "
                 "files belong together?"),
                (b"- -\n- -", "1:2: the line repeats an earlier one")):
            self.refuse(sentence, [None, content], "bpe")

    def test_locale(self):
        scores = [["<unk>", 0.0], ["a", -1.5], ["b", -2.25], ["ab", -3.0]]
        model = {"model": {"type": "Unigram", "unk_id": 0, "vocab": scores, "byte_fallback": False}}
        with tempfile.TemporaryDirectory() as folder:
            env, path, texts = (comma_locale(folder), os.path.join(folder, "tokenizer.json"),
                                os.path.join(folder, "texts"))
            if env is None:
                self.skipTest("no locale with a decimal comma")
            with open(path, "w") as file:
                json.dump(model, file)
            with open(texts, "wb") as file:
                file.write(struct.pack("<I", 4) + b"abba")
            done = run("json", path, texts, env=env)
        self.assertEqual((done.stdout, done.stderr), (b"3:0:2 2:2:3 1:3:4\t61626261\n", b""))

    def test_missing(self):
        done = run("cased", os.path.join(EXPECTED, "absent"), os.devnull)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot open '", done.stderr)


if __name__ == "__main__":
    unittest.main()
