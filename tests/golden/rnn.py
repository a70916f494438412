#!/usr/bin/env python3
"""Writes rnn.safetensors with PyTorch: rnn, lstm, gru and their cells. python3 tests/golden/rnn.py"""
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from make_golden import add_case, randn, save


def run(kind, options, states):
    """A function of inputs and parameters by name: y, or, flattened and behind each other, y, h_n and c_n."""
    def fn(x, lengths=None, h_0=None, c_0=None, **params):
        layer = kind(x.shape[-1], **options).double()
        length = x.shape[1 if options.get("batch_first") else 0]
        state = (h_0, c_0) if c_0 is not None else h_0
        if lengths is not None:
            x = pack_padded_sequence(x, lengths, options.get("batch_first", False), enforce_sorted=False)
        weights = {name[2:]: t for name, t in params.items()}
        y, last = torch.func.functional_call(layer, weights, (x,) if state is None else (x, state))
        if lengths is not None:
            y = pad_packed_sequence(y, options.get("batch_first", False), total_length=length)[0]
        if not states:
            return y
        return torch.cat([t.flatten() for t in [y] + (list(last) if kind is nn.LSTM else [last])])
    return fn


def add(out, name, kind, shape, hidden, states=False, start=False, lengths=None, **options):
    """x has that shape; start: with initial states."""
    options = dict(options, hidden_size=hidden)
    layer = kind(shape[-1], **options)
    n = shape[0 if options.get("batch_first") else 1]
    rows = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    fixed = {"x": randn(*shape)}
    if start:
        fixed["h_0"] = randn(rows, n, options.get("proj_size") or hidden, scale=0.5)
        if kind is nn.LSTM:
            fixed["c_0"] = randn(rows, n, hidden)
    if lengths is not None:
        fixed["lengths"] = torch.tensor(lengths)
    batch = {"x": fixed.pop("x")} if options.get("batch_first") and len(fixed) == 1 else {}
    params = {"l." + key: randn(*t.shape, scale=1.5 * hidden ** -0.5) for key, t in layer.named_parameters()}
    add_case(out, name, run(kind, {key: value for key, value in options.items() if key != "dropout"}, states),
             batch=batch, fixed=fixed, params=params)


def add_cell(out, name, kind, n, features, hidden, start=True, **options):
    """Its new h and, of lstm, c behind it along the last axis; start: with initial states."""
    cell = kind(features, hidden, **options)
    is_lstm = kind is nn.LSTMCell

    def fn(x, h=None, c=None, **params):
        state = None if h is None else (h, c) if is_lstm else h
        y = torch.func.functional_call(cell.double(), {key[2:]: t for key, t in params.items()}, (x, state))
        return torch.cat(y, 1) if is_lstm else y

    states = {key: randn(n, hidden) for key in ("h", "c")[:1 + is_lstm]} if start else {}
    params = {"l." + key: randn(*t.shape, scale=hidden ** -0.5) for key, t in cell.named_parameters()}
    add_case(out, name, fn, batch={"x": randn(n, features), **states}, params=params)


def main():
    torch.manual_seed(50)
    out = {}
    for name, kind in (("rnn", nn.RNN), ("lstm", nn.LSTM), ("gru", nn.GRU)):
        add(out, name + ".plain", kind, (5, 3, 4), 6)
        add(out, name + ".one", kind, (1, 1, 1), 1)
        add(out, name + ".batch_first", kind, (3, 4, 5), 7, batch_first=True)
        add(out, name + ".no_bias", kind, (4, 2, 3), 5, bias=False)
        add(out, name + ".both", kind, (4, 3, 5), 4, bidirectional=True)
        add(out, name + ".start", kind, (3, 2, 4), 5, states=True, start=True)
        add(out, name + ".layers", kind, (3, 2, 4), 3, num_layers=2, bidirectional=True, states=True,
            start=True)
        add(out, name + ".lengths", kind, (5, 4, 3), 4, states=True, start=True, lengths=[3, 5, 1, 4],
            bidirectional=True)
        add(out, name + ".lengths_plain", kind, (3, 4, 5), 4, lengths=[2, 4, 3], batch_first=True,
            states=True, num_layers=2)
        add(out, name + ".wide", kind, (3, 9, 19), 33)
    for name, kind in (("rnn_cell", nn.RNNCell), ("lstm_cell", nn.LSTMCell), ("gru_cell", nn.GRUCell)):
        add_cell(out, name + ".plain", kind, 3, 4, 6)
        add_cell(out, name + ".zeros", kind, 1, 5, 1, start=False)
        add_cell(out, name + ".no_bias", kind, 17, 3, 7, bias=False)
    add_cell(out, "rnn_cell.relu", nn.RNNCell, 3, 4, 5, nonlinearity="relu")
    add(out, "rnn.relu", nn.RNN, (4, 3, 4), 5, nonlinearity="relu")
    add(out, "lstm.projected", nn.LSTM, (5, 3, 4), 6, proj_size=2)
    add(out, "lstm.projected_one", nn.LSTM, (1, 1, 1), 2, bias=False, proj_size=1, states=True, start=True)
    add(out, "lstm.projected_layers", nn.LSTM, (4, 3, 5), 7, proj_size=3, num_layers=2, bidirectional=True,
        states=True, start=True)
    add(out, "lstm.projected_lengths", nn.LSTM, (3, 5, 2), 4, proj_size=3, batch_first=True,
        bidirectional=True, states=True, start=True, lengths=[2, 5, 1])
    add(out, "lstm.projected_wide", nn.LSTM, (3, 9, 19), 33, proj_size=17, states=True)
    save("rnn.safetensors", out)


if __name__ == "__main__":
    main()
