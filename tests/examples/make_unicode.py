#!/usr/bin/env python3
"""Writes examples/unicode.h: what Hugging Face's tokenizers do with each character, asked of them one by one.

pip install tokenizers; python3 tests/examples/make_unicode.py"""
import os

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


def main():
    sets, folds = ask()
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
                          ("marks", "accents, which BERT drops when it lowers")):
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
    lines += ["/* clang-format on */", "#endif"]
    with open(os.path.join(ROOT, "examples", "unicode.h"), "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
