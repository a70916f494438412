"""Makes expected_output/char_lstm_lstm.safetensors and _gru with PyTorch: weights before and after 20 steps,
the loss of each, a text and what the trained model says next. python3 tests/examples/make_char_lstm.py"""
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
HIDDEN, EMBED, LAYERS, BATCH, LENGTH, STEPS, LR, CLIP, SAMPLE = 16, 8, 2, 4, 8, 20, 0.02, 1.0, 40


class Model(nn.Module):
    def __init__(self, cell, vocabulary):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, EMBED)
        self.rnn = cell(EMBED, HIDDEN, LAYERS)
        self.head = nn.Linear(HIDDEN, vocabulary)

    def forward(self, tokens, state):
        y, state = self.rnn(self.embed(tokens), state)
        return self.head(y), state


def detached(state):
    return tuple(t.detach() for t in state) if isinstance(state, tuple) else state.detach()


def make(name, cell):
    torch.manual_seed(7)
    text = "".join("%d times %d is %d; " % (a, b, a * b) for a in range(2, 5)
                   for b in range(3, 7)).encode()[:4 * 50]
    tokens = {byte: i for i, byte in enumerate(sorted(set(text)))}
    data = torch.tensor([tokens[byte] for byte in text])
    model = Model(cell, len(tokens))
    out = {"before." + key: t.clone() for key, t in model.state_dict().items()}
    adam = torch.optim.Adam(model.parameters(), lr=LR)
    streams = data.view(BATCH, -1)
    pieces = (streams.shape[1] - 1) // LENGTH
    losses, state = [], None
    for step in range(STEPS):
        first = step % pieces * LENGTH
        state = None if first == 0 else detached(state)
        logits, state = model(streams[:, first:first + LENGTH].t(), state)
        loss = F.cross_entropy(logits.flatten(0, 1), streams[:, first + 1:first + LENGTH + 1].t().flatten())
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        adam.step()
        losses.append(loss.item())
    said, state = [data[0]], None
    with torch.no_grad():
        while len(said) < SAMPLE:
            logits, state = model(said[-1].view(1, 1), state)
            said.append(logits.flatten().argmax())
    bytes_of = sorted(tokens)
    out.update({"after." + key: t.clone() for key, t in model.state_dict().items()})
    out["text"] = torch.tensor(list(text), dtype=torch.uint8)
    out["losses"] = torch.tensor(losses)
    out["said"] = torch.tensor([bytes_of[i] for i in said], dtype=torch.uint8)
    save_file(out, os.path.join(HERE, "expected_output", "char_lstm_%s.safetensors" % name))


if __name__ == "__main__":
    make("lstm", nn.LSTM)
    make("gru", nn.GRU)
