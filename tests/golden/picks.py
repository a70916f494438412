#!/usr/bin/env python3
"""Makes picks.safetensors beside it, as make_golden.py: elements that integers pick. python3 tests/golden/picks.py"""
import torch
import torch.nn.functional as F
from make_golden import add_case, randn, save


def words(*shape, below=11, dtype=torch.int64):
    return torch.randint(0, below, shape).to(dtype)


def embeddings(out):
    def case(name, tokens, rows, width, padding_idx=None):
        add_case(out, f"embedding.{name}", lambda tokens, l_weight: F.embedding(tokens, l_weight, padding_idx=padding_idx),
                 batch={"tokens": tokens}, params={"l.weight": randn(rows, width)})

    case("plain", words(4, 3), 11, 5)
    case("line", words(9), 11, 16)
    case("one", words(3, 2, below=1), 1, 1)
    case("i32", words(4, 3, dtype=torch.int32), 11, 8)
    case("padding", words(6, 5), 11, 8, 2)
    case("padding_first", words(6, 5), 11, 5, 0)
    case("padding_last", words(6, 5), 11, 5, -1)
    add_case(out, "embedding.computed", lambda tokens, w: F.embedding(tokens, torch.tanh(w)), batch={"tokens": words(4, 3)},
             fixed={"w": randn(11, 5)})
    add_case(out, "embedding.tied",
             lambda tokens, l_weight, head_bias: F.linear(torch.tanh(F.embedding(tokens, l_weight, padding_idx=3)), l_weight,
                                                          head_bias),
             batch={"tokens": words(4, 6)}, params={"l.weight": randn(11, 8), "head.bias": randn(11)})
    add_case(out, "embedding.twice",
             lambda tokens, others, l_weight: F.embedding(tokens, l_weight) * F.embedding(others, l_weight, padding_idx=0),
             batch={"tokens": words(4, 6, below=9), "others": words(4, 6, below=9)}, params={"l.weight": randn(9, 8)})


def gathers(out):
    def case(name, x, axis, index, role="batch"):
        add_case(out, f"gather.{name}", lambda x, index: torch.gather(x, axis, index.long()), **{role: {"x": x, "index": index}})

    case("last", randn(3, 4, 7), -1, words(3, 4, 5, below=7))
    case("middle", randn(3, 4, 7), 1, words(3, 6, 7, below=4))
    case("batch", randn(5, 4), 0, words(5, 4, below=5))
    case("narrow", randn(3, 5, 7, 2), 1, words(3, 2, 4, 2, below=5))
    case("i32", randn(3, 6), 1, words(3, 2, below=6, dtype=torch.int32))
    case("many", randn(2, 5, 3), 1, words(2, 71, 3, below=5))
    case("line", randn(40), 0, words(9, below=40), "fixed")


def main():
    torch.manual_seed(71)
    out = {}
    embeddings(out)
    gathers(out)
    save("picks.safetensors", out)


if __name__ == "__main__":
    main()
