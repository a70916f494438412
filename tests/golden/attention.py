#!/usr/bin/env python3
"""Makes attention.safetensors beside it with PyTorch: python3 tests/golden/attention.py. The form is make_golden.py's."""
import torch
import torch.nn.functional as F

from make_golden import add_case, inf, randn, save


def attention(q, k, v, mask=None, is_causal=False, last=False, **options):
    q, k, v = (x.transpose(1, 2) if last else x for x in (q, k, v))
    if mask is not None and mask.is_floating_point():
        mask = mask.double()
    if mask is not None and is_causal:  # which torch does not take together
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        mask = mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -inf)
        is_causal = False
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, **options)
    return y.transpose(1, 2) if last else y


def scaled_dot_product_attention():
    torch.manual_seed(20)
    out = {}

    def case(name, q, k=None, v=None, mask=None, batch_mask=None, last=False, **options):
        q, k = randn(*q), randn(*k or q)
        inputs = {"q": q, "k": k, "v": randn(*v) if v else randn(*k.shape)}
        fixed = {} if mask is None else {"mask": mask}
        if batch_mask is not None:
            inputs["mask"] = batch_mask
        add_case(out, f"attention.{name}", lambda q, k, v, mask=None: attention(q, k, v, mask, last=last, **options), batch=inputs,
                 fixed=fixed, no_grad=("mask",))

    def choice(*shape):
        mask = torch.rand(shape) < 0.6
        mask[..., 0] = True
        return mask

    case("plain", (2, 3, 5, 8), (2, 3, 7, 8))
    case("one", (1, 1, 1, 1))
    case("one_row", (3, 2, 1, 16), (3, 2, 19, 16))
    case("value_size", (2, 2, 6, 4), (2, 2, 9, 4), (2, 2, 9, 7))
    case("scale", (2, 2, 4, 6), scale=0.75)
    case("heads_last", (2, 5, 3, 8), (2, 7, 3, 8), last=True)
    case("heads_last_value_size", (2, 5, 3, 4), (2, 7, 3, 4), (2, 7, 3, 9), last=True)
    case("causal", (2, 2, 9, 4), is_causal=True)
    case("causal_tall", (2, 2, 9, 4), (2, 2, 5, 4), is_causal=True)
    case("causal_wide", (2, 2, 5, 4), (2, 2, 9, 4), is_causal=True)
    case("choice", (2, 3, 5, 4), (2, 3, 7, 4), batch_mask=choice(2, 3, 5, 7))
    case("choice_padding", (3, 2, 5, 4), (3, 2, 7, 4), batch_mask=choice(3, 1, 1, 7))
    case("choice_square", (3, 2, 5, 4), (3, 2, 7, 4), mask=choice(5, 7))
    rows = choice(5, 7)
    rows[1], rows[4] = False, False
    case("choice_nothing", (3, 2, 5, 4), (3, 2, 7, 4), mask=rows)
    column = torch.tensor([True, False, True, True, False]).reshape(5, 1)
    case("choice_rows", (2, 2, 5, 4), (2, 2, 7, 4), mask=column)
    case("choice_causal", (2, 2, 6, 4), mask=choice(6, 6), is_causal=True)
    case("added", (2, 3, 5, 4), (2, 3, 7, 4), batch_mask=randn(2, 3, 5, 7))
    case("added_heads", (3, 2, 5, 4), (3, 2, 7, 4), mask=randn(2, 1, 7))
    case("added_rows", (3, 2, 5, 4), (3, 2, 7, 4), mask=randn(5, 1))
    case("added_infinite", (3, 2, 5, 4), (3, 2, 7, 4), mask=torch.zeros(5, 7).masked_fill(~rows, -inf))
    case("added_causal", (2, 2, 6, 4), mask=randn(2, 6, 6), is_causal=True)
    case("grouped", (2, 6, 5, 4), (2, 2, 7, 4), enable_gqa=True)
    case("grouped_last", (2, 5, 4, 8), (2, 7, 1, 8), last=True, enable_gqa=True, is_causal=True)
    case("blocks", (1, 1, 131, 9), (1, 1, 263, 9))
    case("blocks_causal", (1, 2, 261, 3), is_causal=True)
    case("blocks_masked", (1, 1, 129, 4), (1, 1, 300, 4), mask=torch.rand(129, 300) < 0.02)

    def whole(qkv, **options):
        return attention(*qkv.unbind(2), last=True, **options)

    add_case(out, "attention.all_in_one", whole, batch={"qkv": randn(2, 5, 3, 2, 8)})
    add_case(out, "attention.all_in_one_causal", lambda qkv: whole(qkv, is_causal=True), batch={"qkv": randn(3, 7, 3, 1, 4)})
    add_case(out, "attention.same", lambda x: attention(x, x, x), batch={"x": randn(2, 2, 5, 4)})
    save("attention.safetensors", out)


if __name__ == "__main__":
    scaled_dot_product_attention()
