#!/usr/bin/env python3
"""Compares examples/tokenizer.h with Hugging Face's tokenizers on thousands of hostile texts. It covers each
rule of tokenizer.json, random sequences of rules, and the chains of well-known models, over small
vocabularies. Prints one line each, and ends with status 1 at the first difference.

    pip install tokenizers sentencepiece
    python3 tests/examples/compare_tokenizers.py BUILD/tokenize [TEXTS [SEED [FILES]]]

FILES are your own tokenizer.json files, which are compared instead."""
import io
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from make_tokenizer import SENTENCES, TEXTS, hostile
from make_tokenizer_json import BEHAVIORS, EXPRESSIONS, TEXTS as MORE_TEXTS, byte_level, everything, sentences

ODD = ("\ufb01\ufb03\u2460\u247d\u2167\u3392\u33c2\ufdfa\ufdfb\u212b\u2126\u1e9b\u0323\u0307\u0301\u0327"
       "\u0345\u3099\uff76\uff9e\u30ab\uff21\uff11\u3000\u00bd\u00b2\u00b5\u00aa\u00ba\u02b0\u1100\u1161"
       "\u11a8\uac00\uac01\u3131\u320e\ufffc\ufeff\u200b\u200c\u200d\u2028\u00a0\u00ad\u0600\u0661\u0e33"
       "\u0eb3\u0f77\u2a74\U0001d400\U0001d7d8\U0001f132\U0001ee00\U0002f800\ufa1b\u2581\u2581  \t\n\r .,!"
       "?'`\"~$^_-0123aAzZ\u0130\u0131\u00df\u1e9e\u01c5\u4e2d\u3042\ua9c0\u093c\u0928\u24b6\u2160")
RULES = [normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(),
         normalizers.StripAccents(), normalizers.Nmt(), normalizers.Lowercase(), normalizers.Strip(),
         normalizers.Strip(left=True, right=False), normalizers.Strip(left=False, right=True),
         normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581"), normalizers.Replace("``", '"'),
         normalizers.Replace("''", '"'), normalizers.Replace("e", "oo\u0301"),
         *(normalizers.BertNormalizer(*(bool(bits >> k & 1) for k in range(4))) for bits in range(16))]
WORDS = [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit(),
         pre_tokenizers.Digits(), pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.CharDelimiterSplit("e"), pre_tokenizers.CharDelimiterSplit("\u2581"),
         pre_tokenizers.FixedLength(3), *(pre_tokenizers.Punctuation(behavior) for behavior in BEHAVIORS),
         *(pre_tokenizers.Split(" ", behavior) for behavior in BEHAVIORS),
         *(pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
           for scheme in ("always", "first", "never") for split in (True, False))]


def odd(rng, count):
    """Random texts of words, and of characters that normal forms change, in runs."""
    words = SENTENCES.split()
    for _ in range(count):
        text = ""
        for _ in range(rng.randrange(1, 12)):
            text += rng.choice((lambda: rng.choice(ODD) * rng.choice((1, 1, 1, 2, 5)),
                                lambda: rng.choice(words), lambda: " ", lambda: rng.choice(words) + " ",
                                lambda: str(rng.randrange(10 ** rng.randrange(1, 9)))))()
        yield text


def texts_of(rng, count):
    return TEXTS + MORE_TEXTS + list(hostile(rng, count // 2)) + list(odd(rng, count - count // 2))


def ours(program, file, texts):
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("tokenizer.json", "texts")]
        with open(paths[0], "w", encoding="utf-8") as out:
            out.write(file)
        with open(paths[1], "wb") as out:
            for text in texts:
                out.write(struct.pack("<I", len(text.encode())) + text.encode())
        done = subprocess.run([program, "json", *paths], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        return done.stderr.decode().strip()
    rows = [line.partition("\t") for line in done.stdout.decode().split("\n")[:-1]]
    return [([int(token.split(":")[0]) for token in tokens.split()],
             bytes.fromhex(said).decode(errors="replace")) for tokens, _, said in rows]


def survived(call, *arguments):
    """None if tokenizers panics, as its Replace does for some texts."""
    try:
        return call(*arguments)
    except BaseException as error:
        if "Panic" not in type(error).__name__:
            raise
        return None


def theirs(made, text):
    """Hugging Face's ids, and the text to which they decode."""
    encoded = survived(lambda: made.encode(text, add_special_tokens=False))
    return encoded and (encoded.ids, made.decode(encoded.ids))


def compare(program, name, made, texts):
    got, panics = ours(program, made.to_str(), texts), 0
    if isinstance(got, str):
        print(f"{name}: {got}")
        return False
    for text, row in zip(texts, got):
        want = theirs(made, text)
        panics += want is None
        if want and row != want:
            print(f"{name}: {ascii(text)}\n  got  {row[0]} {ascii(row[1])}\n  want {want[0]} "
                  f"{ascii(want[1])}")
            return False
    print(f"{name}: {len(texts)} texts" +
          (f", {panics} of which tokenizers does not survive" if panics else ""))
    return True


def exact(normalizer, pre_tokenizer, texts):
    """Each character is a piece, at the beginning of a word or within one, so that ids show all effects of
    the rules."""
    made = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    found = set()
    for text in texts:
        text = survived(normalizer.normalize_str, text) if normalizer else text
        found.update(c for piece, _ in pre_tokenizer.pre_tokenize_str(text or "") for c in piece)
    pieces = [prefix + c for c in sorted(found) for prefix in ("", "##")]
    made.model = models.WordPiece({piece: i for i, piece in enumerate(["[UNK]", *dict.fromkeys(pieces)])},
                                  unk_token="[UNK]", max_input_chars_per_word=1 << 20)
    if normalizer:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizer
    return made


def rules(rng, count):
    """Each rule alone, each expression with each behavior, and random sequences."""
    plain = pre_tokenizers.Split("\0", "isolated")
    for rule in RULES:
        yield repr(rule), rule, plain
    for form in normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD():
        # shows what begins at the text's start
        first = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        yield (f"first {form!r}", form,
               pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"."), "isolated"), first]))
    for name, expression in EXPRESSIONS.items():
        yield f"replace {name}", normalizers.Replace(Regex(expression), "<>"), plain
        for behavior in BEHAVIORS:
            for invert in False, True:
                yield (f"split {name} {behavior} {invert}", None,
                       pre_tokenizers.Split(Regex(expression), behavior, invert))
    def whole(expression):
        """Excludes empty matches, after which tokenizers' Replace reports wrong offsets, and what follows
        them."""
        said = normalizers.Replace(Regex(expression), "xx").normalize_str("\u0378")
        return not ("xx" in said and "\u0378" in said)

    full = [expression for expression in EXPRESSIONS.values() if whole(expression)]
    for rule in WORDS:
        yield json.loads(exact(None, rule, ["a"]).to_str())["pre_tokenizer"], None, rule
    for _ in range(count):
        normal = [rng.choice(RULES) if rng.random() < 0.8 else
                  normalizers.Replace(Regex(rng.choice(full)), rng.choice(" \u2581xe"))
                  for _ in range(rng.randrange(4))]
        words = [rng.choice(WORDS) if rng.random() < 0.5 else
                 pre_tokenizers.Split(Regex(rng.choice(list(EXPRESSIONS.values()))), rng.choice(BEHAVIORS),
                                      rng.random() < 0.3) for _ in range(rng.randrange(1, 4))]
        made = exact(normalizers.Sequence(normal), pre_tokenizers.Sequence(words), ["a"])
        read = json.loads(made.to_str())
        yield f"{read['normalizer']} {read['pre_tokenizer']}", made.normalizer, made.pre_tokenizer


def sentencepiece_table(name):
    """SentencePiece's own table: nmt_nfkc is XLM-R's, T5's and others', nmt_nfkc_cf also lowers."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(SENTENCES.strip().splitlines()),
                                             model_writer=model, vocab_size=400, normalization_rule_name=name,
                                             hard_vocab_limit=False, minloglevel=2)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


def trained(model, trainer, normalizer, words, decoder, **how):
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    made = Tokenizer(model)
    if normalizer:
        made.normalizer = normalizers.Sequence(list(normalizer))
    if words:
        made.pre_tokenizer = pre_tokenizers.Sequence(words)
    if decoder:
        made.decoder = decoder
    made.train_from_iterator(sentences(), trainer(special_tokens=special, show_progress=False, **how))
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    return made


def unigram(*normalizer, words=(), scheme="always"):
    return trained(models.Unigram(), trainers.UnigramTrainer, normalizer,
                   [*words, pre_tokenizers.Metaspace(prepend_scheme=scheme)],
                   decoders.Metaspace(prepend_scheme=scheme), vocab_size=500, unk_token="<unk>")


def bpe(words, decoder, *normalizer, fallback=False, model={}, **how):
    made = trained(models.BPE(unk_token="<unk>", **model), trainers.BpeTrainer, normalizer, words, decoder,
                   vocab_size=1200, limit_alphabet=200, **how)
    if not fallback:
        return made
    read = json.loads(made.to_str())
    vocab, merges = read["model"]["vocab"], [tuple(pair) for pair in read["model"]["merges"]]
    for byte in range(256):
        vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
    made.model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return made


def bytes_of(words, *normalizer, **how):
    made = byte_level(**how)
    made.pre_tokenizer = pre_tokenizers.Sequence(words)
    if normalizer:
        made.normalizer = normalizers.Sequence(list(normalizer))
    return made


def split_bytes(*expressions):
    words = [pre_tokenizers.Split(Regex(EXPRESSIONS[name]), "isolated") for name in expressions]
    return bytes_of([*words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def families():
    """The chains of transformers' classes and converters, and of published files."""
    replace, split, strip = ((lambda pattern, to: normalizers.Replace(Regex(pattern), to)),
                             pre_tokenizers.WhitespaceSplit(), normalizers.Strip)
    quotes = normalizers.Replace("``", '"'), normalizers.Replace("''", '"')
    spoken = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for name in "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf":
        table = normalizers.Precompiled(sentencepiece_table(name))
        yield f"xlm-roberta, camembert, {name}", unigram(table, replace(" {2,}", " "), words=[split])
        yield f"t5, {name}", unigram(table, strip(left=False, right=True), replace(" {2,}", "\u2581"))
    yield "mt5, marian, pegasus", unigram(table, replace(" {2,}", " "), words=[split])
    yield "albert, xlnet", unigram(*quotes, normalizers.NFKD(), normalizers.StripAccents(),
                                   normalizers.Lowercase(), table, replace(" {2,}", " "))
    yield "rembert", unigram(*quotes, replace(" {2,}", " "), normalizers.NFKD(), normalizers.StripAccents(),
                             table, scheme="never")
    yield "deberta-v3", unigram(normalizers.Lowercase(), replace(r"\s{2,}|[\n\r\t]", " "), normalizers.NFC(),
                                strip(left=False, right=True),
                                words=[pre_tokenizers.Punctuation(behavior="isolated")])
    yield "big_bird", unigram(strip(left=False, right=False), replace(" {2,}", "\u2581"))
    yield "siglip", unigram(normalizers.Lowercase(), replace(EXPRESSIONS["siglip"], ""), replace(r"\s+", " "),
                            strip())
    yield "nmt", unigram(normalizers.Nmt(), normalizers.NFKC(), replace(" {2,}", " "))
    yield "seamless", bpe([pre_tokenizers.Metaspace(prepend_scheme="first")],
                          decoders.Metaspace(prepend_scheme="first"), replace(r"[\n\r\t]", " "),
                          normalizers.NFKC(), strip(left=False, right=True), replace(" +\u2581", "\u2581"),
                          replace("^\u2581+$", ""), replace(" {2,}", "\u2581"))
    yield "nllb", bpe([pre_tokenizers.Metaspace()], decoders.Metaspace(), table, replace(" {2,}", " "),
                      model={"fuse_unk": True})
    yield "llama", bpe([], decoders.Sequence([*spoken, decoders.Strip(" ", 1, 0)]),
                       normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581"), fallback=True)
    yield "llama, mistral", bpe([pre_tokenizers.Metaspace(prepend_scheme="first", split=False)],
                                decoders.Sequence([*spoken, decoders.Strip(" ", 1, 0)]), fallback=True)
    yield "gemma", bpe([pre_tokenizers.Split(" ", "merged_with_previous")], decoders.Sequence(spoken),
                       normalizers.Replace(" ", "\u2581"), fallback=True)
    helium = bpe([pre_tokenizers.Split("\n", "contiguous")],
                 decoders.Sequence([*spoken, decoders.Strip(" ", 1, 0)]), normalizers.Prepend(" "),
                 normalizers.Replace(" ", "\u2581"), fallback=True)
    helium.add_tokens([AddedToken("the", normalized=False, single_word=True),
                       AddedToken("\n", normalized=False),
                       AddedToken("o", normalized=True, single_word=True)])
    yield "helium", helium
    herbert = [pre_tokenizers.BertPreTokenizer()], decoders.BPEDecoder("</w>")
    yield "herbert", bpe(*herbert, normalizers.BertNormalizer(lowercase=False, strip_accents=False),
                         model={"end_of_word_suffix": "</w>"}, end_of_word_suffix="</w>")
    yield "prefix", bpe([pre_tokenizers.Whitespace()], decoders.WordPiece(),
                        model={"continuing_subword_prefix": "##"}, continuing_subword_prefix="##")
    yield "gpt-neox, phi-2, modernbert", bytes_of([plain], normalizers.NFC())
    yield "nougat", bytes_of([pre_tokenizers.Split("SPL1T-TH1S-Pl3A5E", "removed"),
                              pre_tokenizers.Digits(individual_digits=True),
                              pre_tokenizers.Split(Regex(EXPRESSIONS["galactica"]), "isolated"),
                              pre_tokenizers.Split("\n", "isolated"), plain], normalizers.NFKC())
    yield "starcoder, smollm", bytes_of([pre_tokenizers.Digits(individual_digits=True), plain])
    for expressions in (("qwen3.5",), ("tekken",), ("kimi",), ("cl100k",), ("bloom",),
                        ("thousands", "deepseek-cjk", "deepseek"), ("newlines", "deepseek-coder")):
        yield " ".join(expressions), split_bytes(*expressions)
    bert = trained(models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer,
                   [normalizers.BertNormalizer()], [pre_tokenizers.BertPreTokenizer()], decoders.WordPiece(),
                   vocab_size=700)
    yield "bert", bert


def main():
    program, count, seed = sys.argv[1], int((sys.argv[2:] or [200])[0]), int((sys.argv[3:] or [1])[0])
    rng = random.Random(seed)
    texts = texts_of(rng, count)
    if sys.argv[4:]:
        sys.exit(not all(compare(program, path, Tokenizer.from_file(path), texts) for path in sys.argv[4:]))
    good = all(compare(program, name, made, texts) for name, made in [*families(), *everything()])
    good = good and all(compare(program, name, exact(normalizer, words, texts), texts)
                        for name, normalizer, words in rules(rng, count))
    sys.exit(not good)


if __name__ == "__main__":
    main()
