#!/usr/bin/env python3
"""Writes attention.safetensors with PyTorch: python3 tests/golden/attention.py. The form is
make_golden.py's."""
import torch
import torch.nn.functional as F

from make_golden import add_case, inf, randn, save


def attention(q, k, v, mask=None, is_causal=False, last=False, **options):
    q, k, v = (x.transpose(1, 2) if last else x for x in (q, k, v))
    if mask is not None and mask.is_floating_point():
        mask = mask.double()
    if mask is not None and is_causal:  # torch rejects both together
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
        add_case(out, f"attention.{name}",
                 lambda q, k, v, mask=None: attention(q, k, v, mask, last=last, **options), batch=inputs,
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
    case("blocks", (1, 1, 131, 3), (1, 1, 263, 3))
    case("blocks_causal", (1, 2, 261, 3), is_causal=True)

    def whole(qkv, **options):
        return attention(*qkv.unbind(2), last=True, **options)

    add_case(out, "attention.all_in_one", whole, batch={"qkv": randn(2, 5, 3, 2, 8)})
    add_case(out, "attention.all_in_one_causal", lambda qkv: whole(qkv, is_causal=True),
             batch={"qkv": randn(3, 7, 3, 1, 4)})
    add_case(out, "attention.same", lambda x: attention(x, x, x), batch={"x": randn(2, 2, 5, 4)})
    return out


def rotary_embeddings(out):
    """transformers' own functions of Llama, of GPT-NeoX where only some features turn, and of GPT-J."""
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as interleaved
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as halves
    torch.manual_seed(22)

    def turned(x, positions, theta=10000.0, dims=None, pairs=False, last=False, frequencies=None):
        x = x.transpose(1, 2) if last else x
        dims = dims or x.shape[-1]
        if frequencies is None:
            frequencies = theta ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)
        angle = positions.reshape(-1, x.shape[2], 1) * frequencies
        y, rest = x[..., :dims], x[..., dims:]
        if pairs:  # transformers' GPT-J has rows before heads
            y = interleaved(y.transpose(1, 2), angle.sin(), angle.cos()).transpose(1, 2)
        else:
            y = halves(y, y, torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin())[0]
        y = torch.cat((y, rest), -1)
        return y.transpose(1, 2) if last else y

    def case(name, shape, positions, batch=False, frequencies=None, **options):
        inputs, fixed = {"x": randn(*shape)}, {}
        (inputs if batch else fixed)["positions"] = positions
        if frequencies is not None:
            fixed["frequencies"] = frequencies
        add_case(
            out, f"rotary_embedding.{name}",
            lambda x, positions, frequencies=None: turned(x, positions, frequencies=frequencies, **options),
            batch=inputs, fixed=fixed, no_grad=("frequencies",))

    case("halves", (2, 3, 5, 8), torch.arange(5))
    case("interleaved", (2, 3, 5, 8), torch.arange(5), pairs=True)
    case("rows_first", (2, 5, 3, 8), torch.tensor([7, 0, 300, 4, 5], dtype=torch.int32), last=True,
         theta=500000.0)
    case("each", (3, 2, 4, 6), torch.randint(0, 50, (3, 4)), batch=True)
    case("each_interleaved", (3, 4, 2, 6), torch.randint(0, 50, (3, 4)), batch=True, last=True, pairs=True)
    case("some", (2, 3, 5, 10), torch.arange(2, 7), dims=4)
    case("frequencies", (2, 3, 5, 6), torch.arange(5), frequencies=torch.tensor([0.9, 0.25, 0.002]))


def layers(out):
    """torch.nn's layers of attention, called l."""
    torch.manual_seed(21)

    def case(name, module, call, batch=None, fixed=None):
        params = {f"l.{key}": randn(*p.shape, scale=0.3, shift=0.1 if p.dim() == 1 else 0.0)
                  for key, p in module.named_parameters()}
        module = module.double().train()

        def fn(**given):
            own = {key: given.pop(f"l_{key.replace('.', '_')}") for key, _ in module.named_parameters()}
            inputs = {key: x.double() if x.is_floating_point() else x for key, x in given.items()}
            return torch.func.functional_call(module, own, *call(**inputs))
        add_case(out, name, fn, batch=batch, fixed=fixed, params=params, no_grad=("mask", "padding"))

    def first(name, module, call, average=None, **inputs):
        """MultiheadAttention's result, without the weights. average, as in torch: with them after it."""
        class First(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = module

            def forward(self, *args, **options):
                if average is None:
                    return self.inner(*args, need_weights=False, **options)[0]
                y, weights = self.inner(*args, average_attn_weights=average, **options)
                return torch.cat([y if self.inner.batch_first else y.transpose(0, 1),
                                  weights if average else weights.transpose(1, 2).flatten(2)], 2)

            def named_parameters(self, *args, **options):
                return [(key[6:], p) for key, p in super().named_parameters(*args, **options)]

        wrapped = First()
        params = {f"l.{key}": randn(*p.shape, scale=0.3, shift=0.1 if p.dim() == 1 else 0.0)
                  for key, p in wrapped.named_parameters()}
        wrapped = wrapped.double().train()

        def fn(**given):
            own = {f"inner.{key}": given.pop(f"l_{key.replace('.', '_')}")
                   for key, _ in wrapped.named_parameters()}
            inputs = {key: x.double() if x.is_floating_point() else x for key, x in given.items()}
            return torch.func.functional_call(wrapped, own, *call(**inputs))
        add_case(out, name, fn, params=params, no_grad=("mask", "padding"), **inputs)

    attend, x, padding = torch.nn.MultiheadAttention, randn(3, 5, 8), torch.rand(3, 5) < 0.3
    padding[:, 0] = False
    square = torch.ones(5, 5, dtype=torch.bool).triu(1)
    first("multi_head.self", attend(8, 2, batch_first=True), lambda x: ((x, x, x),), batch={"x": x})
    first("multi_head.rows", attend(8, 2), lambda x: ((x, x, x),), fixed={"x": x})
    first("multi_head.causal", attend(8, 4, batch_first=True),
          lambda x: ((x, x, x), {"attn_mask": square.double() * -1e30}), batch={"x": x})
    first("multi_head.cross", attend(8, 2, batch_first=True), lambda x, y: ((x, y, y),),
          batch={"x": x, "y": randn(3, 4, 8)})
    first("multi_head.sizes", attend(8, 2, kdim=6, vdim=5), lambda x, y, z: ((x, y, z),),
          fixed={"x": x, "y": randn(4, 5, 6), "z": randn(4, 5, 5)})
    first("multi_head.padding", attend(8, 2, batch_first=True),
          lambda x, padding: ((x, x, x), {"key_padding_mask": padding}), batch={"x": x, "padding": padding})
    first("multi_head.masks", attend(8, 2, batch_first=True),
          lambda x, padding, mask: ((x, x, x), {"key_padding_mask": padding, "attn_mask": mask}),
          batch={"x": x, "padding": padding}, fixed={"mask": square})
    first("multi_head.added", attend(8, 2, batch_first=True), lambda x, padding, mask: (
        (x, x, x),
        {"key_padding_mask": torch.zeros(3, 5).double().masked_fill(padding, -inf), "attn_mask": mask}),
          batch={"x": x, "padding": padding}, fixed={"mask": randn(5, 5)})
    first("multi_head.each", attend(8, 2, batch_first=True), lambda x, mask: ((x, x, x), {"attn_mask": mask}),
          fixed={"x": x, "mask": randn(6, 5, 5)})
    nn, memory = torch.nn, randn(3, 4, 8)
    rest = torch.random.get_rng_state()
    first("multi_head.weights", attend(8, 2, batch_first=True), lambda x: ((x, x, x),), True, batch={"x": x})
    first("multi_head.weights_of_heads", attend(8, 2, batch_first=True),
          lambda x, y, padding, mask: ((x, y, y), {"key_padding_mask": padding, "attn_mask": mask}), False,
          batch={"x": x, "y": randn(3, 4, 8), "padding": padding[:, :4]}, fixed={"mask": square[:, :4]})
    first("multi_head.weights_added", attend(8, 4, kdim=6, vdim=5),
          lambda x, y, z, mask: ((x, y, z), {"attn_mask": mask}), True,
          fixed={"x": x, "y": randn(3, 5, 6), "z": randn(3, 5, 5), "mask": randn(3, 3)})
    first("multi_head.weights_causal", attend(8, 2, batch_first=True),
          lambda x: ((x, x, x), {"attn_mask": square}), False, batch={"x": x})
    torch.random.set_rng_state(rest)
    options = {"dim_feedforward": 12, "dropout": 0.0, "batch_first": True}
    case("transformer.encoder_layer", nn.TransformerEncoderLayer(8, 2, **options), lambda x: ((x,),),
         batch={"x": x})
    case("transformer.encoder_layer_first",
         nn.TransformerEncoderLayer(8, 2, activation="gelu", norm_first=True, **options),
         lambda x, padding: ((x,), {"src_key_padding_mask": padding}), batch={"x": x, "padding": padding})
    case("transformer.decoder_layer", nn.TransformerDecoderLayer(8, 2, **options),
         lambda x, y: ((x, y), {"tgt_mask": square}), batch={"x": x, "y": memory})
    case("transformer.decoder_layer_first", nn.TransformerDecoderLayer(8, 2, 12, 0.0, norm_first=True),
         lambda x, y: ((x, y),), fixed={"x": x, "y": randn(4, 5, 8)})
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, **options), 2, nn.LayerNorm(8),
                                    enable_nested_tensor=False)
    case("transformer.encoder", encoder, lambda x: ((x,),), batch={"x": x})
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, **options), 2)
    case("transformer.decoder", decoder, lambda x, y, padding: ((x, y), {"memory_key_padding_mask": padding}),
         batch={"x": x, "y": memory, "padding": padding[:, :4]})


if __name__ == "__main__":
    cases = scaled_dot_product_attention()
    layers(cases)
    rotary_embeddings(cases)
    save("attention.safetensors", cases)
