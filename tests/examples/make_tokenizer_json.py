#!/usr/bin/env python3
"""Writes tests/examples/expected_output/tokenizer_json.json: small tokenizer.json files of each family, and
what Hugging Face's tokenizers make of the texts of expected_output/tokenizer.json and of some more with added
tokens; and tokenizer_expressions.json: how Split and Replace take the expressions of known models, and some
of all that Oniguruma has. pip install tokenizers sentencepiece; python3
tests/examples/make_tokenizer_json.py"""
import io
import json
import os

import sentencepiece
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

from make_tokenizer import EXPECTED, SENTENCES, write

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n"
        r"]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
EXPRESSIONS = {
    "llama3": LLAMA3, "qwen2": QWEN, "gpt4o": GPT4O,
    "tekken": GPT4O.replace(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", ""),
    "qwen3.5": QWEN.replace(r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+").replace(
        r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+"),
    "cl100k": (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| "
               r"?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"), "clip": CLIP,
    "bloom": " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+",
    "deepseek": (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| "
                 r"?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
    "kimi": "[\\p{Han}]+|" + GPT4O.replace(r"\p{Lo}\p{M}]", r"\p{Lo}\p{M}&&[^\p{Han}]]"),
    "deepseek-cjk": "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", "deepseek-coder": r"\s?\p{L}+",
    "newlines": "[\\r\\n]", "galactica": r"[\(\)\[\]\{\}]|([!\"#\$%\&'\*\+,\-\./:;<=>\?\\\^_`\|\~])\1*",
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "thousands": r"\d{1,3}(?=(?:\d{3})*\b)".replace(r"\b", r"(?!\d)"), "falcon": "[0-9][0-9][0-9]",
    "siglip": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]\^_`{|}~]",
    "blanks": r"\s+", "two": " {2,}", "nllb": r"[\n\r\t]", "barthez": r"\s{2,}|[\n\r\t]",
    "seamless": " +\u2581", "only": "^\u2581+$", "end": r"\s+$", "line": "^", "line_end": "$",
    "letters": "e*", "text": r"\A.|.\z", "lazy": r"a+?|\S{2,4}?e", "words": r"\w+|[^\w\s]+", "empty": r"\d*",
    "lines": r"^.", "atomic": r"(?>\s+)\S|(?:ab|a)(?!c)\S", "and": r"[\p{L}&&[^a-m\u4e00-\u9fff]]+",
    "property": r"\p{^Lu}\P{Ll}|\p{Nd}+", "case": r"(?i:[a-k]+|qu?|st)",
}
BEHAVIORS = "isolated", "removed", "contiguous", "merged_with_previous", "merged_with_next"
TEXTS = ["<s>of the</s> model <mask> of<mask>the", "the<|end|>\n of <|end|> <|end|>the",
         "</s></s> <mask>  <mask>", "X<extra_0> y <extra_0>",
         "I'LL DON'T it'S we'\u017f 'Ss", "a\n\n b \r\n\r\n  c\t\n",
         "1 12 123 1234 12345\u0663\u0664\u0665\u0666", "!?\n\n..\r\n $$ x\u0301y e\u0301\u0302\u0303",
         "  two  spaces   three ", "\u2581under\u2581\u2581score \u2581",
         "\u00e9\u0301\u0327 \u0327\u0301e \u1100\u1161\u11a8\u1161 \uac00\u11a8",
         "\u0958\u2126\u212b\ufb4f \U0001d15e q\u0307\u0323 \u0344",
         "ﬁ\u0301 ½\u0301x \u2460 \u3000\u3000Ａ １ \u200b\u200d \u00ad-",
         "\u0600\u0661 \u0600\u0301a a\u0301\u0302 b\u0308\u0301", "\u0130I\u0131 \u1e9e \u03a3\u03c3\u03c2",
         "\ufdfa \u2167\u3392 \u1e9b\u0323 \u320e\u3131 \u0e33 \U0001d7d8\U0001f132 \uff76\uff9e "
         "\u02b0\u00b5 \ufb03 \u00b2\u24b6_x\u200cy",
         "a\u0305\u0301 e\u0301\u0305", "<|end|>>of<|end|>", "\u00ad\u200bof", "Xbc bc Xb \u2603"]

# their offsets into the text are compared; other files change the text first
PLACED = "llama", "llama3", "wordpiece", "wordpiece_lower"


def charsmap():
    """SentencePiece's table of some rules, from one character or several to none, one or several."""
    rules = {"\ufb01": "fi", "\u00bd": "1/2", "\u3000": " ", "\t": " ", "\n": " ", "\u00ad": "", "\u200b": "",
             "e\u0301": "\u00e9",
             "\u2460": "1", "a\u0301": "\u00e1", "b\u0308\u0301": "B", "\u1100\u1161": "\uac00"}
    rules.update({chr(0xff01 + i): chr(0x21 + i) for i in range(94)})
    path = "/dev/shm/gpunn-rules.tsv"
    with open(path, "w", encoding="utf-8") as file:
        for source, to in rules.items():
            file.write(" ".join(f"{ord(c):X}"
                                for c in source) + "\t" + " ".join(f"{ord(c):X}" for c in to) + "\n")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(SENTENCES.strip().splitlines()),
                                             model_writer=model, vocab_size=400, normalization_rule_tsv=path,
                                             hard_vocab_limit=False, minloglevel=2)
    os.remove(path)
    from sentencepiece import sentencepiece_model_pb2 as pb
    proto = pb.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


def sentences():
    return SENTENCES.strip().splitlines() * 4


def unigram(table):
    """As XLM-R's and T5's."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.Precompiled(table),
                                            normalizers.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=500, special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
                                      unk_token="<unk>", show_progress=False)
    made.train_from_iterator(sentences(), trainer)
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
                                                        special_tokens=[("<s>", 0), ("</s>", 2)])
    return made


def t5(pieces, table):
    """Another way to the same result: words between spaces first, and bytes for unknown characters."""
    bytes_ = [(f"<0x{byte:02X}>", -20.0 - byte / 256) for byte in range(256)]
    made = Tokenizer(models.Unigram([tuple(piece) for piece in pieces] + bytes_, unk_id=3,
                                    byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Precompiled(table),
                                            normalizers.Strip(left=False, right=True),
                                            normalizers.Replace(Regex(" {2,}"), "\u2581")])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                                  pre_tokenizers.Metaspace(prepend_scheme="first")])
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                      decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.add_tokens([AddedToken("<extra_0>", rstrip=True, normalized=True)])
    return made


def llama(fallback):
    """As Llama's: BPE of characters without words. Unknown ones become bytes or the unknown piece."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trained.train_from_iterator(sentences(), trainers.BpeTrainer(vocab_size=850, special_tokens=special,
                                                                 limit_alphabet=150, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    vocab, merges = model["vocab"], [tuple(pair) for pair in model["merges"]]
    made = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=fallback))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"),
                                            normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                      decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                        special_tokens=[("<s>", 1)])
    if not fallback:
        made.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(),
                                                normalizers.Replace(" ", "\u2581")])
        made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        made.add_tokens([AddedToken("the model", normalized=True)])
    return made


def albert(pieces):
    """As ALBERT's and XLNet's."""
    made = Tokenizer(models.Unigram([tuple(piece) for piece in pieces], unk_id=3))
    made.normalizer = normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.Replace("''", '"'),
                                            normalizers.NFKD(), normalizers.StripAccents(),
                                            normalizers.Lowercase(),
                                            normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.Metaspace()])
    made.decoder = decoders.Metaspace()
    return made


def suffixed(alphabet, normalizer, words, decoder):
    """Words whose last piece ends in </w>."""
    made = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.normalizer, made.pre_tokenizer, made.decoder = normalizer, words, decoder
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", "<s>", "</s>"],
                                  initial_alphabet=alphabet, limit_alphabet=300,
                                  end_of_word_suffix="</w>", show_progress=False)
    made.train_from_iterator(sentences(), trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    return made


def clip():
    """As CLIP's."""
    normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "),
                                       normalizers.Lowercase()])
    words = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CLIP), "removed", invert=True),
                                     pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return suffixed(pre_tokenizers.ByteLevel.alphabet(), normalizer, words, decoders.ByteLevel())


def openai_gpt():
    return suffixed([], normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(),
                    decoders.BPEDecoder("</w>"))


def falcon():
    """Digits and Split see the characters that stand for bytes."""
    made = byte_level()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
         pre_tokenizers.Digits(), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
    return made


def words():
    """Whole words, added ones that are never within another, and what a normalizer makes of these."""
    vocab = dict.fromkeys(word.strip(".,;?") for word in SENTENCES.lower().split())
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[UNK]", *vocab])},
                                      unk_token="[UNK]"))
    made.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Lowercase(),
                                            normalizers.Replace(" ", "  ")])
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.CharDelimiterSplit("'"), pre_tokenizers.FixedLength(12)])
    made.add_tokens([AddedToken("of", single_word=True), AddedToken("The Model", normalized=True),
                     AddedToken("X", normalized=False, single_word=True)])
    return made


def few():
    """Pieces between which the unknown piece's score decides."""
    made = Tokenizer(models.Unigram([("<unk>", 0.0), ("b", -1.0), ("Xb", -9.0), ("c", -9.9), ("bc", -0.5),
                                     (" ", -2.0)], unk_id=0))
    made.decoder = decoders.Fuse()
    return made


def byte_level(kept=None, **how):
    with open(os.path.join(EXPECTED, "tokenizer_vocab.json"), encoding="utf-8") as file:
        vocab = json.load(file)
    with open(os.path.join(EXPECTED, "tokenizer_merges.txt"), encoding="utf-8") as file:
        merges = [tuple(line.split()) for line in file.read().splitlines()[1:]][:kept]
    made = Tokenizer(models.BPE(vocab, merges, **how))
    made.decoder = decoders.ByteLevel()
    return made


def split(expression, **how):
    """As Llama 3's and Qwen 2's."""
    made = byte_level(**how)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(expression), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.add_special_tokens(["<s>", "</s>", "<|end|>>", AddedToken("<|end|>", rstrip=True, special=True)])
    return made


def wordpiece():
    with open(os.path.join(EXPECTED, "tokenizer_vocab.txt"), encoding="utf-8") as file:
        vocab = {piece: i for i, piece in enumerate(file.read().splitlines())}
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=40))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(["[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]"])
    made.post_processor = processors.BertProcessing(("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"]))
    return made


def everything():
    table = charsmap()
    first = unigram(table)
    yield "unigram", first
    yield "t5", t5(json.loads(first.to_str())["model"]["vocab"], table)
    yield "few", few()
    yield "albert", albert(json.loads(first.to_str())["model"]["vocab"])
    yield "clip", clip()
    yield "openai_gpt", openai_gpt()
    yield "falcon", falcon()
    yield "gpt4o", split(GPT4O)
    yield "words", words()
    yield "llama", llama(True)
    yield "llama_unknown", llama(False)
    roberta = byte_level()
    roberta.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(),
                                                     pre_tokenizers.ByteLevel(add_prefix_space=True)])
    roberta.add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True, special=True)])
    roberta.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    yield "roberta", roberta
    yield "llama3", split(LLAMA3, kept=200, ignore_merges=True)
    qwen = split(QWEN)
    qwen.normalizer = normalizers.NFC()
    yield "qwen2", qwen
    yield "wordpiece", wordpiece()
    lower = wordpiece()
    lower.normalizer = normalizers.BertNormalizer(strip_accents=False, clean_text=False,
                                                  handle_chinese_chars=False)
    lower.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(),
         pre_tokenizers.Digits(individual_digits=True)])
    lower.decoder = None
    yield "wordpiece_lower", lower


def expressions(texts):
    """The ends of words, counted in characters, for each expression, and for some with each behavior; and the
    results of Replace."""
    splits = [(name, "isolated", False) for name in EXPRESSIONS]
    splits += [(name, behavior, invert) for name in ("blanks", "two", "words", "lines", "gpt2")
               for behavior in BEHAVIORS for invert in (False, True)]
    rows = []
    for name, behavior, invert in splits:
        split = pre_tokenizers.Split(Regex(EXPRESSIONS[name]), behavior, invert)
        rows.append([json.loads(split.__getstate__()),
                     [[x for _, place in split.pre_tokenize_str(text) for x in place] for text in texts]])
    said = [[expression, [normalizers.Replace(Regex(expression), "<>").normalize_str(text) for text in texts]]
            for expression in EXPRESSIONS.values()]
    return {"texts": texts, "split": rows, "replace": said}


def main():
    with open(os.path.join(EXPECTED, "tokenizer.json"), encoding="utf-8") as file:
        texts = TEXTS + [text for text in json.load(file)["texts"] if len(text) < 250][::4]
    golden = {"texts": texts}
    for name, made in everything():
        file = json.loads(made.to_str())
        model = file["model"]
        if "wordpiece" in name:
            model["vocab"] = "tokenizer_vocab.txt"
        elif made.decoder.__class__.__name__ == "ByteLevel" and name != "clip":
            model["vocab"] = "tokenizer_vocab.json"
            if len(model["merges"]) > 200:
                model["merges"] = "tokenizer_merges.txt"
        rows = []
        for text in texts:
            encoded = made.encode(text, add_special_tokens=False)
            rows.append([encoded.ids, made.decode(encoded.ids)])
            if name in PLACED:
                rows[-1] += [[x for pair in encoded.offsets for x in pair]]
        around = made.encode("a")
        golden[name] = {"file": file,
                        "around": [list(around.ids), made.decode(around.ids, skip_special_tokens=False)],
                        "rows": rows}
    write("tokenizer_expressions.json", json.dumps(expressions(TEXTS + SENTENCES.strip().splitlines()[::6]),
                                                   separators=(",", ":")).replace("]],[[", "]],\n[["))
    write("tokenizer_json.json",
          json.dumps(golden, separators=(",", ":"), ensure_ascii=True).replace("],[[", "],\n[["))


if __name__ == "__main__":
    main()
