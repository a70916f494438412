#!/usr/bin/env python3
"""Makes expected_output/llama.safetensors with transformers: python3 tests/examples/make_llama.py

For each of test_llama's configurations NAME, computed in float64, with weights that the test computes by the
same rule:
    NAME/logits  of the prompt's tokens
    NAME/text    the prompt and its greedy continuation, the same with and without a cache"""
import os
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "golden"))
import make_golden  # noqa: E402
sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))
from tests import tensor_file  # noqa: E402
from tests.examples.test_llama import CONFIGS, PROMPT, WRITTEN, weights  # noqa: E402


def load(config):
    made = AutoConfig.for_model(**{"model_type": "llama", **config}, bos_token_id=None, eos_token_id=None)
    net = AutoModelForCausalLM.from_config(made).double().eval()
    state = {name: torch.tensor(tensor_file.values(t), dtype=torch.float64).reshape(t[1])
             for name, t in weights(config).items()}
    missing, unexpected = net.load_state_dict(state, strict=False)
    assert not unexpected and missing == ["lm_head.weight"] * bool(config.get("tie_word_embeddings")), (
        missing, unexpected)
    net.tie_weights()
    return net


def write_on(net):
    """Greedy, with a cache. The logits are those of the whole text."""
    tokens, cache, text = torch.tensor([PROMPT]), None, list(PROMPT)
    for _ in range(WRITTEN):
        step = net(tokens, past_key_values=cache, use_cache=True)
        cache, last = step.past_key_values, step.logits[0, -1]
        assert torch.allclose(last, net(torch.tensor([text])).logits[0, -1], rtol=1e-6, atol=1e-6)
        two = last.topk(2).values
        assert two[0] - two[1] > 1e-4, "too close: %s" % two
        tokens = last.argmax().reshape(1, 1)
        text.append(int(tokens))
    return text


def main():
    out = {}
    with torch.no_grad():
        for name, config in CONFIGS.items():
            net = load(config)
            out[name + "/logits"] = net(torch.tensor([PROMPT])).logits[0].float()
            out[name + "/text"] = torch.tensor(write_on(net), dtype=torch.int32)
    make_golden.HERE = os.path.join(HERE, "expected_output")
    make_golden.save("llama.safetensors", out)


if __name__ == "__main__":
    main()
