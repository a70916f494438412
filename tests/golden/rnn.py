#!/usr/bin/env python3
"""Writes rnn.safetensors with PyTorch: rnn, lstm, gru and their cells. python3 tests/golden/rnn.py"""
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from make_golden import add_case, randn, save


def by_steps(layer, x, reset, lengths, state):
    """y and the final states of a layer that forgets its states, of shape [rows, n, ...], before the steps
    that reset [length, n] names. Past their lengths sequences keep their states."""
    results = []
    for t in range(x.shape[0]):
        on = torch.ones(x.shape[1], dtype=torch.bool) if lengths is None else t < lengths
        anew = (reset[t] != 0) & on
        before = [torch.where(anew[:, None], torch.zeros_like(s), s) for s in state]
        y, last = layer(x[t:t + 1], tuple(before) if len(before) == 2 else before[0])
        last = last if len(before) == 2 else [last]
        state = [torch.where(on[:, None], new, old) for new, old in zip(last, state)]
        results.append(y * on[:, None])
    return torch.cat(results), state


def run(kind, options, states):
    """A function of inputs and parameters by name: y, or, flattened and behind each other, y, h_n and c_n."""
    def fn(x, lengths=None, h_0=None, c_0=None, reset=None, **params):
        layer = kind(x.shape[-1], **options).double()
        weights = {name[2:]: t for name, t in params.items()}
        if reset is not None:
            turn = (lambda t: t.transpose(0, 1)) if options.get("batch_first") else (lambda t: t)
            first = dict(options, batch_first=False)
            own = kind(x.shape[-1], **first).double()
            rows = options.get("num_layers", 1)
            sizes = [options.get("proj_size") or options["hidden_size"], options["hidden_size"]]
            start = [given if given is not None else x.new_zeros(rows, turn(x).shape[1], size)
                     for given, size in zip((h_0, c_0)[:1 + (kind is nn.LSTM)], sizes)]
            y, last = by_steps(lambda *given: torch.func.functional_call(own, weights, given), turn(x),
                               turn(reset), lengths, start)
            return torch.cat([t.flatten() for t in [turn(y)] + last]) if states else turn(y)
        length = x.shape[1 if options.get("batch_first") else 0]
        state = (h_0, c_0) if c_0 is not None else h_0
        if lengths is not None:
            x = pack_padded_sequence(x, lengths, options.get("batch_first", False), enforce_sorted=False)
        y, last = torch.func.functional_call(layer, weights, (x,) if state is None else (x, state))
        if lengths is not None:
            y = pad_packed_sequence(y, options.get("batch_first", False), total_length=length)[0]
        if not states:
            return y
        return torch.cat([t.flatten() for t in [y] + (list(last) if kind is nn.LSTM else [last])])
    return fn


def add(out, name, kind, shape, hidden, states=False, start=False, lengths=None, reset=None, **options):
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
    if reset is not None:
        fixed["reset"] = torch.tensor(reset, dtype=torch.uint8)
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
    for name, kind in (("rnn", nn.RNN), ("lstm", nn.LSTM), ("gru", nn.GRU)):
        add(out, name + ".reset", kind, (5, 3, 4), 6,
            reset=[[0, 1, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1], [0, 0, 0]])
        add(out, name + ".reset_start", kind, (4, 3, 2), 5, start=True, states=True,
            reset=[[1, 0, 0], [0, 0, 1], [0, 0, 0], [1, 1, 0]])
        add(out, name + ".reset_layers", kind, (3, 4, 2), 3, num_layers=2, batch_first=True, start=True,
            states=True, reset=[[0, 0, 0, 1], [1, 0, 1, 0], [0, 1, 1, 1]])
        add(out, name + ".reset_lengths", kind, (5, 4, 3), 4, start=True, states=True, lengths=[3, 5, 1, 4],
            reset=[[0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1]])
        add(out, name + ".reset_long", kind, (33, 9, 2), 3,
            reset=[[(t * 7 + i * 5) % 11 < 2 for i in range(9)] for t in range(33)])
    add(out, "lstm.reset_projected", nn.LSTM, (4, 3, 2), 5, proj_size=2, start=True, states=True,
        reset=[[1, 0, 0], [0, 0, 1], [0, 0, 0], [1, 1, 0]])
    save("rnn.safetensors", out)


if __name__ == "__main__":
    main()
