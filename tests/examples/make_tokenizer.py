#!/usr/bin/env python3
"""Writes tests/examples/expected_output/tokenizer*: small vocabularies, hostile and multilingual texts, and
what Hugging Face's tokenizers make of them. pip install tokenizers; python3
tests/examples/make_tokenizer.py"""
import json
import os
import random

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
EXPECTED = os.path.join(HERE, "expected_output")
SENTENCES = """
The quick brown fox jumps over the lazy dog, doesn't it? They've said that we'll see what I'd done; \
you're right.
How many layers does the model have? The model has twelve layers, 768 hidden units and 110,000,000 parameters.
I'm not able to read this; unaffable, unbelievable, embeddings, tokenization, transformers, \
transforming, transformed.
Le café était fermé, où l'élève naïf a mangé une crêpe à Noël pour 3,50 €. L'œuvre où Zoë dîne n'a \
ni tête ni façade.
Größe, Übung, Straße und Füße: die Mädchen möchten süße Äpfel. El niño mañana comerá piñas en \
España ¿verdad? ¡Sí!
Příliš žluťoučký kůň úpěl ďábelské ódy. Zażółć gęślą jaźń. Árvíztűrő tükörfúrógép. İstanbul'da ışık ve ağaç.
Съешь же ещё этих мягких французских булок, да выпей чаю. Їжак їсть, ґудзик; йод и ёлка. Београд, \
ћуприја и ђак.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ὁ ἄνθρωπος ἐστὶν ἀγαθός· Σίσυφος ΣΊΣΥΦΟΣ ὀδυσσεύς.
Nếu bạn đi nhanh, hãy đi một mình; tiếng Việt rất đẹp và phức tạp.
我们在北京学习机器学习,模型有十二层。東京タワーへ行きました。がんばってください、パーティー!
한국어 형태소 분석기는 좋은 값을 얻었다. 서울에서 만나요.
اللغة العربية جميلة، أليس كذلك؟ مُحَمَّد. עברית היא שפה יפה, נכון?
I've we've you've they've; I'll you'll they'll; I'd you'd; we're you're they're; it's he's; can't \
don't won't; I'm 'M 'VE.
豈 丽 更 한 각 ㄱ
हिन्दी भाषा में ड़ और ढ़ हैं; नमस्ते। বাংলা ভাষা কোনো। ภาษาไทยไม่มีช่องว่าง
"""
TEXTS = [
    "", " ", "  \t\n ", "Hello, world!", "hello  world   again    ", "   leading",
    "I'm we've they'll you're he'd it's can't DON'T 'S 'sx ''s",
    "a\tb\nc\rd\r\ne\u000bf\u000cg\u0085h\u00a0i\u2028j\u3000k", " \n a  \n\n b\u00a0 c \u00a0d",
    "x \u2003y\u200bz\ufeffw\u00adv", "Ünïcödé ÀÉÎÕÜ ñ ç ø ł đ",
    "e\u0301le\u0300ve n\u0303 a\u0308\u0304 \u0301start end\u0301 \u0301", "İI ıi ẞß ǅ ﬁ Å K Ω ΣΑΣ",
    "\u1e9b\u0323 \u01d5 \u1fa7 \u0390 \u1ffc", "Привет, МИР! ёЁ йЙ", "Ὀδυσσεύς ΐ ΰ · ; ;",
    "中文字符mixed英文text。", "東京タワーがぎぐ パピプ ｶﾞ", "한국어 각 힣", "\uf900\uf9ff\U0002f800 \u2e80 \u3400\U00020000",
    "हिन्दी ड़ কো ொ ೊ ൌ", "مُحَمَّد שָׁלוֹם", "ภาษาไทย", "😀 👨‍👩‍👧 🇫🇷 ☃️ 🏳️‍🌈", "1234 12.5 3,000 ½ ² Ⅷ ٣٤ ௧ ①",
    "$100 + 5% = ^_^ `code` ~x|y <tag> \\ { } [ ]", "“quotes” ‘single’ — – … ‹› «» ¿¡ § ¶ ·",
    "[CLS] [SEP] [MASK] [UNK] [PAD] <s> </s> <mask> <|endoftext|>",
    "\0nul\0 \x01\x1f\x7f\x9f \ufffd \ue000 \U000f0000 \u0378", "a" * 100, "a" * 101,
    "tokenization" * 8 + "toke", "tokenization" * 8 + "token", "é" * 100, "e\u0301" * 101, "中" * 120,
    "." * 300, "ab" * 400, " " * 300, "\n" * 50 + "x",
    "transformers transforming untransformed embeddings unaffableness", "##ing ## #hash a##b",
    "\U0001d15e \U0001d160 \U0001d400 \U0001d7ce \U0010fffd \U0001e922",
    "http://example.com/a_b-c?d=e&f=%20#g foo@bar.org C++ C# .NET",
    "\u0f43 \u0344 \u2126 \u212b \u1100\u1161\u11a8 \u3131", "ⅷ ⓐ Ⓐ ａＢ Ꭰ Ა ჭ",
]


def corpus():
    with open(os.path.join(HERE, "..", "..", "LICENSE"), encoding="utf-8") as file:
        return SENTENCES.strip().splitlines() * 3 + file.read().splitlines()


def hostile(rng, count):
    """Texts of characters from everywhere. Characters that the tokenizers treat specially are more
    frequent."""
    odd = (" \t\n'’.,-_#[]<>|stredvmlSTé\u0301\u0308\u200d\u00ad\u00a0\u3000"
           "中日가각한がパाَ½²٣😀\ufffd\0\x7f\x85\u2028ΣİßǅⅧ")
    for _ in range(count):
        kind, length = rng.random(), rng.randrange(1, 60)
        draw = ((lambda: rng.choice(odd)) if kind < 0.5 else
                (lambda: chr(rng.randrange(0x20, 0x3000))) if kind < 0.8 else (
                    lambda: chr(rng.choice((rng.randrange(0xd800), rng.randrange(0xe000, 0x110000))))))
        yield "".join(draw() for _ in range(length))


def wordpiece(lower, vocab=None):
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def bpe(vocab=None, merges=None, digits=False):
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=True)
    tokenizer.pre_tokenizer = (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
                               if digits else words)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write(name, text):
    with open(os.path.join(EXPECTED, name), "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def vocabularies():
    """vocab of WordPiece (pieces of both cases), and vocab and merges of BPE."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = list(special)
    for lower in True, False:
        trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=special, show_progress=False)
        trained = wordpiece(lower)
        trained.train_from_iterator(corpus(), trainer)
        pieces += sorted(set(trained.get_vocab()) - set(pieces))
    trained = bpe()
    trainer = trainers.BpeTrainer(vocab_size=1400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False,
                                  special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    trained.train_from_iterator(corpus(), trainer)
    model = json.loads(trained.to_str())["model"]
    return ({piece: i for i, piece in enumerate(pieces)}, model["vocab"],
            [tuple(pair) for pair in model["merges"]])


def main():
    vocab, bytes_vocab, merges = vocabularies()
    write("tokenizer_vocab.txt", "".join(piece + "\n" for piece in vocab))
    write("tokenizer_vocab.json", json.dumps(bytes_vocab))  # \u escapes, as GPT-2's
    write("tokenizer_merges.txt", "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    texts = TEXTS + SENTENCES.strip().splitlines() + list(hostile(random.Random(1), 150))
    golden = {"texts": texts}
    every = {"uncased": wordpiece(True, vocab), "cased": wordpiece(False, vocab),
             "bpe": bpe(bytes_vocab, merges), "digits": bpe(bytes_vocab, merges, digits=True)}
    write("tokenizer_split.json", json.dumps(
        {"version": "1.0", "pre_tokenizer": json.loads(every["digits"].to_str())["pre_tokenizer"]}))
    for name, tokenizer in every.items():
        golden[name] = []
        for text in texts:
            encoded = tokenizer.encode(text, add_special_tokens=False)
            row = list(encoded.ids)
            # in bytes; those of BPE count characters, and follow from its pieces
            if name in ("uncased", "cased"):
                at = [0]
                for c in text:
                    at.append(at[-1] + len(c.encode()))
                row = [[i, at[start], at[end]] for i, (start, end) in zip(row, encoded.offsets)]
            golden[name].append(row)
    write("tokenizer.json", json.dumps(golden, separators=(",", ":")).replace("]],[[", "]],\n[["))


if __name__ == "__main__":
    main()
