#!/usr/bin/env python3
"""Writes examples/unicode.h: what Hugging Face's tokenizers do with each character, asked of them one by one.

pip install tokenizers; python3 tests/examples/make_unicode.py"""
import functools
import os
import struct

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WIDTH = 125
COMPATIBILITY = (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)  # the blocks of CJK's compatibility ideographs


def ranges(points):
    found = []
    for c in sorted(points):
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def runs(mapping):
    """[first, last, step, to of first]: each step-th character moves by the same distance."""
    found = []
    for c, to in sorted(mapping.items()):
        if found:
            run = found[-1]
            step = c - run[1]
            if to - c == run[3] - run[0] and (step == run[2] or run[0] == run[1] and step <= 2):
                run[1], run[2] = c, step
                continue
        found.append([c, c, 1, to])
    return found


def table(comment, declaration, items):
    lines, line = [f"/* {comment} */", f"static const {declaration} = {{"], ""
    for item in items:
        if len(line) + len(item) + 6 > WIDTH:
            lines.append("    " + line.rstrip())
            line = ""
        line += item + ", "
    return lines + ["    " + line.rstrip().rstrip(","), "};", ""]


def ask():
    clean = dict(clean_text=True, handle_chinese_chars=True)
    cased = normalizers.BertNormalizer(strip_accents=False, lowercase=False, **clean)
    uncased = normalizers.BertNormalizer(strip_accents=True, lowercase=True, **clean)
    bert = pre_tokenizers.BertPreTokenizer()
    patterns = {"letters": r"\p{L}", "numbers": r"\p{N}", "spaces": r"\s"}
    kinds = {name: pre_tokenizers.Split(Regex(pattern), "isolated") for name, pattern in patterns.items()}
    sets = {name: set() for name in ("letters", "numbers", "spaces", "punctuation", "ideographs", "controls", "marks")}
    folds = {}
    for c in (c for c in range(0x110000) if not 0xD800 <= c < 0xE000):
        for name, split in kinds.items():
            if len(split.pre_tokenize_str("\1" + chr(c) + "\1")) == 3:
                sets[name].add(c)
        plain = cased.normalize_str("a" + chr(c) + "b")
        if plain == "ab":
            sets["controls"].add(c)
            continue
        if plain == "a b":
            assert c in sets["spaces"]
            continue
        if plain == f"a {chr(c)} b":
            sets["ideographs"].add(c)
        elif len(bert.pre_tokenize_str(plain)) == 3:
            sets["punctuation"].add(c)
        fold = uncased.normalize_str("a" + chr(c) + "b")[1:-1].strip(" ")
        if fold == "":
            sets["marks"].add(c)
        elif fold != chr(c) and not 0xAC00 <= c < 0xD7A4:
            folds[c] = [ord(part) for part in fold]
    assert sets["spaces"] & sets["controls"] == {0x0B, 0x0C, 0x85}  # controls are asked for first
    return sets, folds


def swallowing():
    """A Precompiled that turns each cluster of characters, or each character alone where a cluster has 6 bytes or more, into Z."""
    units = [256 << 10] + [0] * 1023
    for byte in range(1, 256):
        at = 256 ^ byte
        units[at] = (at ^ 512 + byte) << 10 | 1 << 8 | byte
        units[512 + byte] = 1 << 31
    trie = struct.pack("<1024I", *units)
    return normalizers.Precompiled(struct.pack("<I", len(trie)) + trie + b"Z\0")


def ask_clusters():
    """The characters that extend a cluster, begin one, and end one before any accent."""
    one, sets = swallowing(), {"extends": set(), "prepends": set(), "breaks": set()}
    for c in (c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000):
        if one.normalize_str("a" + chr(c)) == "Z":
            sets["extends"].add(c)
        if one.normalize_str(chr(c) + "a") == "Z":
            sets["prepends"].add(c)
        if len((chr(c) + "\u0301").encode()) < 6 and one.normalize_str(chr(c) + "\u0301") == "ZZ":
            sets["breaks"].add(c)
    return sets


def ask_forms():
    """Lower case, canonical decompositions into two (or one and 0), which of them compose, and the order of accents."""
    lowercase, nfd, nfc = normalizers.Lowercase(), normalizers.NFD(), normalizers.NFC()
    every = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    lower = {c: lowercase.normalize_str(chr(c)) for c in every}
    whole = {c: nfd.normalize_str(chr(c)) for c in every if not 0xAC00 <= c < 0xD7A4}
    whole = {c: text for c, text in whole.items() if text != chr(c)}
    several = [c for c, text in whole.items() if len(text) > 1]
    back = {whole[c]: c for c in sorted(several, key=lambda c: nfc.normalize_str(chr(c)) == chr(c))}
    pairs = {}
    for c, text in whole.items():
        first = ord(text[0]) if len(text) <= 2 else back[text[:-1]]
        pairs[c] = (first, ord(text[-1]) if len(text) > 1 else 0)
    composing = [c for c, (a, b) in pairs.items() if b and nfc.normalize_str(chr(a) + chr(b)) == chr(c)]
    moves = lambda a, b: nfd.normalize_str(chr(a) + chr(b)) == chr(b) + chr(a)
    accents = [0x345] + [c for c in every if c not in whole and moves(0x345, c)]
    classes, before = {}, None
    for c in sorted(accents, key=functools.cmp_to_key(lambda a, b: moves(a, b) - moves(b, a))):
        classes[c] = 1 if before is None else classes[before] + moves(c, before)
        before = c
    return {c: text for c, text in lower.items() if text != chr(c)}, pairs, composing, classes


def main():
    sets, folds = ask()
    sets.update(ask_clusters())
    lower, pairs, composing, classes = ask_forms()
    assert [c for c, text in lower.items() if len(text) > 1] == [0x130]
    single = {c: to[0] for c, to in folds.items() if len(to) == 1}
    compatible = [[single.pop(c, 0) for c in range(first, last + 1)] for first, last in COMPATIBILITY]
    lines = [
        "/* unicode.h - what tokenizer.h must know about characters. Written by tests/examples/make_unicode.py from Hugging Face's",
        f" * tokenizers {tokenizers.__version__}: do not edit. Ranges are [first, last] and rise. */",
        "#ifndef UNICODE_H", "#define UNICODE_H", "", "#include <stdint.h>", "", "/* clang-format off */",
        "typedef struct unicode_range { uint32_t first, last; } unicode_range;",
        "typedef struct unicode_fold { uint32_t first, last, step, to; } unicode_fold;", ""]
    for name, comment in (("letters", r"\p{L}"), ("numbers", r"\p{N}"), ("spaces", r"\s"), ("punctuation", "BERT's: each stands alone"),
                          ("ideographs", "BERT's Chinese characters: each stands alone"), ("controls", "BERT drops them"),
                          ("marks", "accents, which BERT drops when it lowers"),
                          ("extends", "belong to the character before them"), ("prepends", "belong to the character behind them"),
                          ("breaks", "to which nothing belongs")):
        lines += table(comment, f"unicode_range unicode_{name}[]", [f"{{{a:#x},{b:#x}}}" for a, b in ranges(sets[name])])
    lines += table("Lowered and without accents: each step-th character from first to last, the first becoming `to`. Hangul\n"
                   "   syllables come apart by their formula and are not here.", "unicode_fold unicode_folds[]",
                   [f"{{{a:#x},{b:#x},{step},{to:#x}}}" for a, b, step, to in runs(single)])
    for (first, last), to in zip(COMPATIBILITY, compatible):
        lines += table(f"The same from {first:#x} to {last:#x}; 0: as it is.", f"uint32_t unicode_from_{first:x}[]",
                       [f"{x:#x}" for x in to])
    several = [[c] + to + [0] * (3 - len(to)) for c, to in sorted(folds.items()) if len(to) > 1]
    lines += table("The few that become more than one: a character and what it becomes, ending at 0.",
                   "uint32_t unicode_splits[][4]", ["{" + ",".join(f"{x:#x}" for x in row) + "}" for row in several])
    lines += table("Lowered. U+0130 becomes two and is not here.", "unicode_fold unicode_lower[]",
                   [f"{{{a:#x},{b:#x},{step},{to:#x}}}" for a, b, step, to in runs({c: ord(to) for c, to in lower.items() if c != 0x130})])
    listed = [c for c in pairs if not any(first <= c <= last for first, last in COMPATIBILITY)]
    lines += table("Characters and the one or two that they are made of (NFD). Hangul and the blocks above are not here.",
                   "uint32_t unicode_parts[][3]", [f"{{{c:#x},{pairs[c][0]:#x},{pairs[c][1]:#x}}}" for c in listed])
    lines += table("Rows of unicode_parts that compose (NFC), by their parts.", "uint16_t unicode_composed[]",
                   [str(listed.index(c)) for c in sorted(composing, key=pairs.get)])
    same = []
    for c, k in sorted(classes.items()):
        if same and same[-1][1:] == [c - 1, k]:
            same[-1][1] = c
        else:
            same.append([c, c, k])
    lines += table("How accents that follow each other are sorted: from, to, place.", "uint32_t unicode_orders[][3]",
                   [f"{{{a:#x},{b:#x},{k}}}" for a, b, k in same])
    lines += [f"enum {{ UNICODE_ORDERS = {max(classes.values())} }}; /* places */", "/* clang-format on */", "#endif"]
    with open(os.path.join(ROOT, "examples", "unicode.h"), "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
