#!/usr/bin/env python3
"""Makes expected_output/lora.safetensors with transformers and peft (pip install peft): python3
tests/examples/make_lora.py

For test_lora's configurations NAME, computed in float64, with weights, adapters and a text that the test
computes by the same rule:
    NAME/losses    of ten steps of AdamW on the adapters
    NAME/ADAPTER   each matrix after them
    NAME/logits    of the prompt's tokens then"""
import os
import sys

import peft
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))
from tests import tensor_file  # noqa: E402
from tests.examples.make_llama import load, make_golden  # noqa: E402
from tests.examples.test_llama import CONFIGS, PROMPT  # noqa: E402
from tests.examples.test_lora import ALPHA, BATCH, CONTEXT, LAYERS, LR, RANK  # noqa: E402
from tests.examples.test_lora import STEPS, TEXT, adapter  # noqa: E402


def tensor(t):
    return torch.tensor(tensor_file.values(t), dtype=torch.float64).reshape(t[1])


def main():
    out, samples = {}, torch.tensor(TEXT).reshape(STEPS, BATCH, CONTEXT + 1)
    for name in ("grouped", "tied"):
        net = peft.get_peft_model(load(CONFIGS[name]), peft.LoraConfig(
            r=RANK, lora_alpha=ALPHA, target_modules=list(LAYERS), task_type="CAUSAL_LM")).double()
        peft.set_peft_model_state_dict(net, {k: tensor(t) for k, t in adapter(CONFIGS[name]).items()})
        optimizer, losses = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=LR), []
        net.train()
        for batch in samples:
            logits = net(batch[:, :-1]).logits
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().float())
        net.eval()
        with torch.no_grad():
            out[name + "/logits"] = net(torch.tensor([PROMPT])).logits[0].float()
        out[name + "/losses"] = torch.stack(losses)
        for key, t in peft.get_peft_model_state_dict(net).items():
            out[f"{name}/{key}"] = t.detach().float()
    make_golden.HERE = os.path.join(HERE, "expected_output")
    make_golden.save("lora.safetensors", out)


if __name__ == "__main__":
    main()
