"""Scaled dot-product attention."""
import math

from ..spec_writer import Constant, product
from .creation import dropout
from .linear_algebra import product_of
from .operands import has_gradient, number
from .registry import operation
from .shapes import inside_triangle


def attention_mask(w, mask):
    """A mask as the op takes it: bool, or F32 that is added."""
    if isinstance(mask, Constant) and mask.tensor.dtype == w.torch.bool:
        mask = Constant(w.torch.zeros(mask.tensor.shape).masked_fill(~mask.tensor, -math.inf), mask.full)
    is_choice = not isinstance(mask, Constant) and w.tensor(mask).is_bool
    x = w.tensor(mask) if is_choice else w.f32(mask)
    return (w.add("cast", [x], x.shape, x.full, kind="bool", dtype="bool") if is_choice and
            x.dtype != "bool" else x)


@operation("scaled_dot_product_attention")
def attention(w, call, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
              enable_gqa=False):
    operands, lead = [w.f32(w.whole(x)) for x in (query, key, value)], query.full[:-2]
    square = attn_mask is None or len(lead) == 2 or len(attn_mask.full) <= 2
    alike = all(x.full[:-2] == lead for x in operands) or (enable_gqa and len(lead) == 2)
    if not lead or not square or not alike or has_gradient(attn_mask, w.trains):
        return plain_attention(w, call, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    last = len(lead) == 2 and all(x.entry.op == "permute" and x.entry.attributes["dims"] == [0, 2, 1, 3]
                                  for x in operands)
    if last:
        operands = [x.entry.inputs[0] for x in operands]
    elif len(lead) != 2:
        operands = [w.reshape(x, (product(lead), 1) + x.full[-2:]) for x in operands]
    result = operands[0].full[:3] + operands[2].full[3:]
    y = w.add("scaled_dot_product_attention", operands, result, is_causal=True if is_causal else None,
              mask=None if attn_mask is None else attention_mask(w, attn_mask),
              dropout_p=number(dropout_p) if number(dropout_p) and w.training else None,
              scale=None if scale is None else number(scale), enable_gqa=True if enable_gqa else None,
              heads_last=True if last else None)
    return w.permute(y, [0, 2, 1, 3]) if last else y if len(lead) == 2 else w.reshape(y, call.shapes[0][0])


def for_all_heads(w, x, heads):
    """Repeats the heads of grouped keys or values for the heads of queries that read them."""
    lead, (own, rows, size) = x.full[:-3], x.full[-3:]
    many = w.view(w.tensor(w.reshape(x, lead + (own, 1, rows, size))), lead + (own, heads // own, rows, size))
    return w.reshape(many, lead + (heads, rows, size))


def softmax_of_rows(w, scores, may_be_empty):
    """Softmax of each row. may_be_empty: rows of only -inf become 0 without a gradient, as in PyTorch's
    attention."""
    scores = w.whole(scores)
    highest = w.reduce("max", scores, [-1], keepdim=True) if may_be_empty else None

    def without_empty(x):
        return w.expr("0 if y < -3.4028235e38 else x", x, highest) if may_be_empty else x

    return without_empty(w.add("softmax", [without_empty(scores)], scores.full, dim=len(scores.full) - 1))


def plain_attention(w, call, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    """Attention as products and softmax: for a mask that has a gradient, and for shapes that broadcast."""
    if enable_gqa:
        key, value = [for_all_heads(w, x, query.full[-3]) for x in (key, value)]
    scores = w.scale(product_of(w, query, key, True),
                     1 / math.sqrt(query.full[-1]) if scale is None else number(scale))
    if is_causal:
        scores = w.map("where", inside_triangle(w, *scores.shape[-2:]), scores, -math.inf)
    if attn_mask is not None:
        is_choice = (attn_mask.tensor.dtype == w.torch.bool if isinstance(attn_mask, Constant) else
                     w.tensor(attn_mask).is_bool)
        scores = (w.map("where", attn_mask, scores, -math.inf) if is_choice else
                  w.map("add", scores, attn_mask))
    weights = softmax_of_rows(w, scores, attn_mask is not None and not has_gradient(attn_mask, False))
    if number(dropout_p):
        weights = dropout(w, call, weights, number(dropout_p), w.training)
    return product_of(w, weights, value)
