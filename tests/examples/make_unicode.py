#!/usr/bin/env python3
"""Writes examples/unicode.h: how Hugging Face's tokenizers treat each character, tested one by one.

pip install tokenizers; python3 tests/examples/make_unicode.py"""
import functools
import os
import struct

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WIDTH = 125
CATEGORIES = (
    "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cs Cn".split())
# the only symbols that match \w
CIRCLED = (0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189)
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
    """[first, last, step, image of first]: each step-th character moves by the same distance."""
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


def parts_of(split, text):
    """The pieces of a text, which contains no surrogates."""
    return [piece for piece, _ in split.pre_tokenize_str(text)]


def matching(expression, every):
    """The characters that an expression matches."""
    return {ord(c) for piece in parts_of(
        pre_tokenizers.Split(Regex(f"(?:{expression})+"), "removed", invert=True), every) for c in piece}


def ask_categories(every):
    """The index in CATEGORIES of each character's category, as in tokenizers' expressions."""
    found = {}
    for place, name in enumerate(CATEGORIES):
        found.update(dict.fromkeys(matching(rf"\p{{{name}}}", every), place))
    of = lambda *names: {c for c, place in found.items() if CATEGORIES[place].startswith(names)}
    assert len(found) == len(every) and matching(r"\d", every) == of("Nd")
    circled = {c for first, last in CIRCLED for c in range(first, last + 1)}
    words = of("L", "M", "Nd", "Nl", "Pc") | circled
    assert matching(r"[\w]", every) == words and matching(r"\w", every) == words | set(
        b"\xb2\xb3\xb9\xbc\xbd\xbe")
    return found, words


def ask():
    clean = dict(clean_text=True, handle_chinese_chars=True)
    cased = normalizers.BertNormalizer(strip_accents=False, lowercase=False, **clean)
    accents = normalizers.BertNormalizer(strip_accents=True, lowercase=False, **clean)
    bert = pre_tokenizers.BertPreTokenizer()
    sets = {name: set() for name in ("punctuation", "ideographs", "controls", "marks")}
    for c in (c for c in range(0x110000) if not 0xD800 <= c < 0xE000):
        plain = cased.normalize_str("a" + chr(c) + "b")
        if plain == "ab":
            sets["controls"].add(c)
            continue
        if plain == f"a {chr(c)} b":
            sets["ideographs"].add(c)
        elif len(bert.pre_tokenize_str(plain)) == 3:
            sets["punctuation"].add(c)
        if accents.normalize_str("a" + chr(c) + "b") == "ab":
            sets["marks"].add(c)
    return sets


def swallowing():
    """A Precompiled that replaces by Z each cluster of characters, or each character of a cluster of 6 bytes
    or more."""
    units = [256 << 10] + [0] * 1023
    for byte in range(1, 256):
        at = 256 ^ byte
        units[at] = (at ^ 512 + byte) << 10 | 1 << 8 | byte
        units[512 + byte] = 1 << 31
    trie = struct.pack("<1024I", *units)
    return normalizers.Precompiled(struct.pack("<I", len(trie)) + trie + b"Z\0")


def ask_clusters():
    """The characters that extend a cluster, that begin one, and that end one before any accent."""
    one, sets = swallowing(), {"extends": set(), "prepends": set(), "breaks": set()}
    for c in (c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000):
        if one.normalize_str("a" + chr(c)) == "Z":
            sets["extends"].add(c)
        if one.normalize_str(chr(c) + "a") == "Z":
            sets["prepends"].add(c)
        if len((chr(c) + "\u0301").encode()) < 6 and one.normalize_str(chr(c) + "\u0301") == "ZZ":
            sets["breaks"].add(c)
    return sets


def ask_forms(every):
    """Lower case; canonical decompositions into two characters (or one and 0); which of these compose; the
    order of accents; and compatibility decompositions of other characters (NFKD)."""
    lowercase, nfd, nfc, nfkd = (normalizers.Lowercase(), normalizers.NFD(), normalizers.NFC(),
                                 normalizers.NFKD())
    lower = {c: lowercase.normalize_str(chr(c)) for c in every}
    whole = {c: nfd.normalize_str(chr(c)) for c in every if not 0xAC00 <= c < 0xD7A4}
    compatible = {c: nfkd.normalize_str(chr(c)) for c in every}
    compatible = {c: text for c, text in compatible.items() if text != nfd.normalize_str(chr(c))}
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
    return {c: text for c, text in lower.items() if text != chr(c)}, pairs, composing, classes, compatible


def category_runs(found):
    """The beginning of each run of a category, times 32, and its index. Alternating capitals and small
    letters are one run."""
    turn, runs_ = len(CATEGORIES), []
    for c, place in sorted(found.items()):
        last = runs_[-1] if runs_ else (None, None, None)
        if place == last[1] or last[1] == turn and place == (c - last[0] & 1) and c == last[2] + 1:
            runs_[-1] = (last[0], last[1], c)
        elif place == 1 and last[1] == 0 and last[2] == last[0] and c == last[0] + 1:
            runs_[-1] = (last[0], turn, c)
        else:
            runs_.append((c, place, c))
    return [first << 5 | place for first, place, _ in runs_]


def compatible_rows(compatible):
    """[first, last, parts, at]: characters that become as many parts each. The parts are in sequence from
    `at` on in the second list. With parts 0 they become one character, `at` further on."""
    rows, units, singles = [], [], {c: ord(text) for c, text in compatible.items() if len(text) == 1}
    long = [run for run in runs(singles) if run[2] == 1 and run[1] - run[0] >= 2]
    rows = [[first, last, 0, to] for first, last, _, to in long]
    groups = []
    for c, text in sorted(compatible.items()):
        if any(first <= c <= last for first, last, _, _ in long):
            continue
        if groups and groups[-1][0] + len(groups[-1][1]) == c and len(groups[-1][1][0]) == len(text):
            groups[-1][1].append(text)
        else:
            groups.append((c, [text]))
    for c, texts in sorted(groups, key=lambda group: -sum(map(len, group[1]))):
        new = [ord(part) for text in texts for part in text]
        at = next((i for i in range(len(units) - len(new) + 1) if units[i:i + len(new)] == new), len(units))
        units[at:at + len(new)] = new
        rows.append([c, c + len(texts) - 1, len(texts[0]), at])
    return sorted(rows), units


def main():
    every = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    text = "".join(map(chr, [0] + every))
    categories, words = ask_categories(text)
    spaces = matching(r"\s", text)
    strip, digits, whitespace = (normalizers.StripAccents(), pre_tokenizers.Digits(),
                                 pre_tokenizers.Whitespace())
    combining = {c for c in every if strip.normalize_str(chr(c)) == ""}
    sets = {**ask(), **ask_clusters(), "spaces": spaces, "combining": combining,
            "han": matching(r"\p{Han}", text)}
    assert spaces & sets["controls"] == {0x0B, 0x0C, 0x85}  # controls are tested first
    # what tokenizer.h has as expressions
    later = {*range(0x11DE0, 0x11DEA), *range(0x16FF4, 0x16FF7)}
    assert matching(r"\p{N}", text) | later == {c for c in every
                                                if len(digits.pre_tokenize_str("a" + chr(c))) == 2}
    assert words | {0x200C, 0x200D} == {c for c in every
                                        if len(whitespace.pre_tokenize_str("a" + chr(c) + "a")) == 1}
    lower, pairs, composing, classes, compatible = ask_forms(every)
    assert [c for c, text in lower.items() if len(text) > 1] == [0x130]
    blocks = [[pairs.get(c, (0, 0))[0] for c in range(first, last + 1)] for first, last in COMPATIBILITY]
    lines = [
        "/* unicode.h - what tokenizer.h must know about characters. Written by "
        "tests/examples/make_unicode.py from Hugging Face's",
        f" * tokenizers {tokenizers.__version__}: do not edit. Ranges are [first, last] and rise. */",
        "#ifndef UNICODE_H", "#define UNICODE_H", "", "#include <stdint.h>", "", "/* clang-format off */",
        "typedef struct unicode_range { uint32_t first, last; } unicode_range;",
        "typedef struct unicode_fold { uint32_t first, last, step, to; } unicode_fold;", ""]
    lines += table("Where a category begins, times 32, and its place in this list; capitals and small "
                   "letters by turns are one.",
                   "uint32_t unicode_categories[]", [f"{run:#x}" for run in category_runs(categories)])
    lines += [f'#define UNICODE_CATEGORIES "{"".join(CATEGORIES)}"',
              f"enum {{ UNICODE_IN_TURN = {len(CATEGORIES)} }};", ""]
    for name, comment in (
            ("spaces", r"\s"), ("han", r"\p{Han}"), ("punctuation", "BERT's: each stands alone"),
            ("ideographs", "BERT's Chinese characters: each stands alone"), ("controls", "BERT drops them"),
            ("marks", "accents, which BERT drops when it lowers"), ("combining", "StripAccents drops them"),
            ("extends", "belong to the character before them"),
            ("prepends", "belong to the character behind them"), ("breaks", "to which nothing belongs")):
        lines += table(comment, f"unicode_range unicode_{name}[]",
                       [f"{{{a:#x},{b:#x}}}" for a, b in ranges(sets[name])])
    for (first, last), to in zip(COMPATIBILITY, blocks):
        lines += table(f"What characters from {first:#x} to {last:#x} are (NFD); 0: themselves.",
                       f"uint32_t unicode_from_{first:x}[]", [f"{x:#x}" for x in to])
    lines += table("Lowered: each step-th character from first to last, the first becoming `to`. U+0130 "
                   "becomes two and is not here.", "unicode_fold unicode_lower[]",
                   [f"{{{a:#x},{b:#x},{step},{to:#x}}}"
                    for a, b, step, to in runs({c: ord(to) for c, to in lower.items() if c != 0x130})])
    listed = [c for c in pairs if not any(first <= c <= last for first, last in COMPATIBILITY)]
    lines += table("Characters and the one or two that they are made of (NFD). Hangul and the blocks above "
                   "are not here.", "uint32_t unicode_parts[][3]",
                   [f"{{{c:#x},{pairs[c][0]:#x},{pairs[c][1]:#x}}}" for c in listed])
    lines += table("Rows of unicode_parts that compose (NFC), by their parts.", "uint16_t unicode_composed[]",
                   [str(listed.index(c)) for c in sorted(composing, key=pairs.get)])
    rows, units = compatible_rows(compatible)
    assert max(units) < 1 << 16
    lines += table("Characters that stand for others (NFKD): from, to, of how many parts each, and where in "
                   "unicode_compatible_parts the\n"
                   "   first one's begin; 0 parts: what the first becomes, and each behind it the next.",
                   "uint32_t unicode_compatible[][4]",
                   [f"{{{a:#x},{b:#x},{parts},{at}}}" for a, b, parts, at in rows])
    lines += table("", "uint16_t unicode_compatible_parts[]", [str(unit) for unit in units])[1:]
    same = []
    for c, k in sorted(classes.items()):
        if same and same[-1][1:] == [c - 1, k]:
            same[-1][1] = c
        else:
            same.append([c, c, k])
    lines += table("How accents that follow each other are sorted: from, to, place.",
                   "uint32_t unicode_orders[][3]", [f"{{{a:#x},{b:#x},{k}}}" for a, b, k in same])
    orders, parts = max(classes.values()), max(map(len, compatible.values()))
    lines += [f"enum {{ UNICODE_ORDERS = {orders}, UNICODE_MOST_PARTS = {parts} }}; "
              "/* places; parts of one */", "/* clang-format on */", "#endif"]
    with open(os.path.join(ROOT, "examples", "unicode.h"), "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
