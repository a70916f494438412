"""LSTM, GRU and plain recurrent layers, and their cells."""
from ..spec_writer import Constant, Refused
from .linear_algebra import product_of
from .operands import check_mode
from .registry import operation
from .shapes import split_at


@operation("rnn_tanh", "rnn_relu", "lstm", "gru")
def recurrent(w, call, x, hx=None, params=None, has_biases=True, num_layers=1, dropout=0, train=False,
              bidirectional=False, batch_first=False, batch_sizes=None, **_):
    if batch_sizes is not None:
        raise Refused("packed sequences are not possible; gpunn's layers take their lengths")
    op, directions, parts = call.op.split("_")[0], 2 if bidirectional else 1, 4 if has_biases else 2
    if dropout and num_layers > 1:
        check_mode(w, train)
    starts = [None if isinstance(h, Constant) and not h.tensor.any() else w.f32(w.whole(h))
              for h in (hx if isinstance(hx, list) else [hx])]
    kept, own = sorted(w.wanted - {0}), len(params) // (directions * num_layers)
    y, last = w.permute(x, (1, 0, 2)) if batch_first else w.f32(w.whole(x)), []
    for k in range(num_layers):
        weights = [w.tensor(p) for p in params[k * own * directions:(k + 1) * own * directions]]
        weights, w_hr = ([p for i, p in enumerate(weights) if i % own < parts],
                         weights[parts::own] if own > parts else [])
        given = [h if h is None or num_layers == 1 else w.slice(h, 0, k * directions, (k + 1) * directions)
                 for h in starts]
        if w_hr:
            y, weights, given[0] = unprojected(w, y, weights, w_hr, given[0])
        length, n, hidden = y.shape[0], y.shape[1], weights[1].shape[1]
        node = w.add(op, [y], (length + (len(starts) if kept else 0), n, directions * hidden),
                     states=bool(kept) or None, bidirectional=bidirectional or None,
                     relu=call.op == "rnn_relu" or None, **dict(zip(("h_0", "c_0"), given)), weights=weights)
        y = projected(w, w.slice(node, 0, 0, length), w_hr, 2)
        rows = [w.reshape(w.slice(node, 0, length + i - 1, length + i), (directions, n, hidden))
                for i in kept]
        last.append([projected(w, row, w_hr if i == 1 else [], 0) for i, row in zip(kept, rows)])
        if train and dropout and k + 1 < num_layers:
            y = w.add("dropout", [y], y.shape, p=float(dropout))
    result = [w.permute(y, (1, 0, 2)) if batch_first else y] + [None] * len(starts)
    for i, states in zip(kept, zip(*last)):
        shape = (directions * num_layers,) + states[0].shape[1:]
        result[i] = states[0] if num_layers == 1 else w.add("concat", list(states), shape, dim=0)
    return tuple(result)


def unprojected(w, x, weights, w_hr, h_0):
    """The operands of a layer without proj_size that replaces one with it, as in gpunn_lstm: x, the weights,
    h_0."""
    parts, directions, size = len(weights) // len(w_hr), len(w_hr), w_hr[0].shape[0]
    features = [x]
    for d, own in enumerate(w_hr):
        w_ih, w_hh = weights[d * parts:d * parts + 2]
        around = d * size, (directions - 1 - d) * size
        if h_0 is not None:
            wide = w.add("pad", [w_hh], (w_hh.shape[0], directions * size), before=[0, around[0]],
                         after=[0, around[1]])
            weights[d * parts] = w.add("concat", [w_ih, wide],
                                       (w_hh.shape[0], w_ih.shape[1] + directions * size), dim=1)
            behind = w.known_size(x, 0) - 1
            start = w.slice(h_0, 0, d, d + 1) if directions > 1 else h_0
            features.append(w.add("pad", [start], x.shape[:2] + (size,), before=[d * behind, 0, 0],
                                  after=[behind - d * behind, 0, 0]))
        product = product_of(w, w_hh, own)
        # F32, whatever dtype it sums
        weights[d * parts + 1] = w.add("sum", [w.reshape(product, (1,) + product.shape)], product.shape,
                                       dims=[0])
    if h_0 is not None:
        x = w.add("concat", features, x.shape[:2] + (x.shape[2] + directions * size,), dim=2)
    return x, weights, None


def projected(w, y, w_hr, axis):
    """y of the directions, which share an axis, multiplied by their projections, if there are any."""
    if not w_hr:
        return y
    size = y.shape[axis] // len(w_hr)
    parts = [product_of(w, w.slice(y, axis, d * size, (d + 1) * size) if len(w_hr) > 1 else y, own, True)
             for d, own in enumerate(w_hr)]
    shape = tuple(n * len(parts) if i == axis else n for i, n in enumerate(parts[0].shape))
    return w.add("concat", parts, shape, dim=axis) if len(parts) > 1 else parts[0]


def gates(w, x, weight, bias, count):
    """The parts of x times a weight [count * hidden, in], transposed."""
    y = product_of(w, x, weight, True)
    y = y if bias is None else w.map("add", y, bias)
    return split_at(w, y, 1, [y.full[1] // count] * count)


@operation("lstm_cell")
def lstm_cell(w, call, x, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    i, f, g, o = [w.map("add", a, b)
                  for a, b in zip(gates(w, x, w_ih, b_ih, 4), gates(w, hx[0], w_hh, b_hh, 4))]
    c = w.expr("sigmoid(x0) * x1 + sigmoid(x2) * tanh(x3)", f, hx[1], i, g)
    return w.expr("sigmoid(x) * tanh(y)", o, c), c


@operation("gru_cell")
def gru_cell(w, call, x, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    own, back = gates(w, x, w_ih, b_ih, 3), gates(w, hx, w_hh, b_hh, 3)
    new = w.expr("tanh(x0 + sigmoid(x1 + x2) * x3)", own[2], own[0], back[0], back[2])
    return w.expr("z = sigmoid(x0 + x1); (1 - z) * x2 + z * x3", own[1], back[1], new, hx)


@operation("rnn_tanh_cell", "rnn_relu_cell")
def rnn_cell(w, call, x, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    (own,), (back,) = gates(w, x, w_ih, b_ih, 1), gates(w, hx, w_hh, b_hh, 1)
    return w.map("tanh" if call.op == "rnn_tanh_cell" else "relu", w.map("add", own, back))
