"""Builds ONNX's Attention and recurrent layers."""
import math

from .arrays import Array, check_count, gathered, strides
from .onnx_ops import counted, operation
from .spec_writer import Constant, Parameter, Refused, Value, size_name, text


# ---- attention ---------------------------------------------------------------------------------------------
def heads_of(w, x, heads):
    """x as [n, heads, rows, size]."""
    if len(x.full) == 4:
        return w.f32(w.whole(x))
    n, rows, width = x.full
    return w.permute(w.reshape(w.f32(x), (n, rows, heads, width // heads)), (0, 2, 1, 3))


def added_mask(w, mask, columns):
    """A mask as it is added to scores: true takes part. Missing columns do not."""
    if w.kind_of(mask) == "bool":
        mask = w.map("where", mask, 0.0, -math.inf)
    missing = columns - mask.full[-1]
    if missing > 0 and mask.full[-1] != 1:
        after = [0] * (len(mask.full) - 1) + [missing]
        mask = w.add("pad", [w.f32(w.whole(mask))], (), before=[0] * len(after), after=after, value=-math.inf)
    return mask


def biases(w, call, mask, past, valid, rows, columns):
    """What is added to the scores of attention: masks, causality and windows, and -inf past the end of a
    static cache."""
    left, right, causal = (call.get("left_window_size", -1), call.get("right_window_size", -1),
                           call.get("is_causal", 0))
    tests = (["x + y >= 0"] * bool(causal) + ["x + y <= %d" % left] * (left >= 0) +
             ["x + y >= -%d" % right] * (right >= 0))
    result = [added_mask(w, mask, columns)] if mask is not None else []
    if valid is not None:
        valid = w.reshape(w.f32(valid), (valid.full[0], 1, 1, 1))
        result.append(w.map("where", w.map("lt", counted(columns), valid), 0.0, -math.inf))
    if tests:
        if rows < 0:
            raise Refused("causal attention over %s is not possible" % size_name(rows))
        check_count(rows * columns)
        ahead = Array("float32", (rows, columns), [float(i - j) for i in range(rows) for j in range(columns)])
        offset = float(past) if valid is None else w.map("add_scalar", valid, value=float(-rows))
        seen = w.expr(" * ".join("(%s)" % test for test in tests), Constant(ahead), offset)
        result.append(w.map("where", seen, 0.0, -math.inf))
    return result


@operation("Attention", kind="own")
def attention(w, call, q, k, v, mask=None, past_key=None, past_value=None, valid=None):
    flat, kind = len(q.full) == 3, w.kind_of(q)
    q, k, v = [heads_of(w, x, call.get(name, 0))
               for x, name in ((q, "q_num_heads"), (k, "kv_num_heads"), (v, "kv_num_heads"))]
    past = 0 if past_key is None else past_key.full[2]
    if past_key is not None:
        k, v = [w.add("concat", [w.f32(w.whole(old)), w.whole(new)], (), dim=2)
                for old, new in ((past_key, k), (past_value, v))]
    k, v, present = w.whole(k), w.whole(v), (k, v)
    scale, softcap = call.get("scale", None) or 1 / math.sqrt(q.full[3]), call.get("softcap", 0.0)
    added = biases(w, call, mask, past, valid, q.full[2], k.full[2])
    if softcap or len(call.outputs) > 3:
        y, shown = plain_attention(w, call, q, k, v, added, scale, softcap)
    else:
        y, shown = fused_attention(w, q, k, v, added, scale), None
    if flat:
        y = w.permute(y, (0, 2, 1, 3))
        y = w.reshape(y, y.full[:2] + (y.full[2] * y.full[3],))
    return [w.as_kind(x, kind) for x in (y,) + present + (shown,) if x is not None][:len(call.outputs)]


def summed(w, parts):
    result = parts[0]
    for part in parts[1:]:
        result = w.map("add", result, part)
    return result


def fused_attention(w, q, k, v, added, scale):
    """One op. A mask of three axes has one matrix for each head."""
    groups = q.full[1] != k.full[1]
    return w.add("scaled_dot_product_attention", [q, k, v], (), scale=float(scale),
                 enable_gqa=True if groups else None,
                 mask=w.f32(w.whole(summed(w, added))) if added else None)


def plain_attention(w, call, q, k, v, added, scale, softcap):
    """Attention as products and a softmax. Also returns the scores that qk_matmul_output_mode asks for."""
    if q.full[1] != k.full[1]:
        k, v = [repeated(w, x, q.full[1] // k.full[1]) for x in (k, v)]
    mode = call.get("qk_matmul_output_mode", 0)
    scores = w.scale(w.matmul(q, k, True), scale)
    if softcap:
        scores = w.expr("%s * tanh(x / %s)" % (text(softcap), text(softcap)), scores)
    biased = summed(w, [scores] + added)
    weights = w.add("softmax", [w.whole(biased)], (), dim=3)
    if added:  # rows in which every column may be masked
        open_rows = w.map("gt", w.reduce("max", w.whole(w.view(w.f32(summed(w, added)), biased.full)), [3],
                                         True), -3.4e38)
        weights = w.map("where", open_rows, weights, 0.0)
    shown = {0: scores, 1: scores if softcap else biased, 2: biased, 3: weights}[mode]
    return w.matmul(weights, v), shown


def repeated(w, x, times):
    n, heads, rows, size = x.full
    return w.reshape(w.view(w.tensor(w.reshape(x, (n, heads, 1, rows, size))), (n, heads, times, rows, size)),
                     (n, heads * times, rows, size))


# ---- recurrent layers --------------------------------------------------------------------------------------
GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}  # positions of gpunn's gates among ONNX's
FUNCTIONS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}


def of_direction(w, x, what, name, d, gates, order):
    """The weights of one direction with reordered gates: a parameter, or computed from others."""
    if isinstance(x, Value) and not w.inputs_of(x):
        x, rows = w.slice(w.f32(w.whole(x)), 0, d, d + 1), x.full[1] // gates
        parts = [w.slice(x, 1, gate * rows, (gate + 1) * rows) for gate in order]
        return w.reshape(w.add("concat", parts, (), dim=1) if len(parts) > 1 else parts[0],
                         (len(order) * rows,) + x.full[2:])
    x = w.known_array(x, what)
    rows, steps = x.shape[1] // gates, strides(x.shape)
    values = []
    for gate in order:
        shape = (rows,) + x.shape[2:]
        values += gathered(x.values, shape, steps[1:], d * steps[0] + gate * rows * steps[1])
    return w.tensor(Parameter(name, Array(x.kind, (len(order) * rows,) + x.shape[2:], values), True))


def recurrent_weights(w, call, name, w_ih, w_hh, bias, directions):
    """The parameters of each direction, in the order of gpunn's ops."""
    order, suffixes, result = GATES[call.op], ("", "_reverse"), []
    gates = len(order)
    for d in range(directions):
        parts = [("weight_ih", w_ih, "W", gates, order), ("weight_hh", w_hh, "R", gates, order)]
        if bias is not None:
            parts += [("bias_ih", bias, "B", 2 * gates, order),
                      ("bias_hh", bias, "B", 2 * gates, [gates + i for i in order])]
        result += [of_direction(w, x, what, "%s.%s_l0%s" % (name, part, suffixes[d]), d, *of)
                   for part, x, what, *of in parts]
    return result


def is_zero(x):
    return isinstance(x, (Constant, Parameter)) and not any(x.tensor.values)


def check_recurrent(call, directions, peepholes):
    wanted = FUNCTIONS[call.op] * directions
    given = [name.lower() for name in call.get("activations", wanted)]
    if given != wanted and not (call.op == "RNN" and set(given) == {"relu"}):
        raise Refused("the activations %s are not possible" % ", ".join(given))
    if call.get("clip", 0) or peepholes is not None or call.get("input_forget", 0):
        raise Refused("clip, peepholes and input_forget are not possible")
    return "relu" in given


@operation("LSTM", "GRU", "RNN")
def recurrent(w, call, x, w_ih, w_hh, bias=None, lengths=None, h_0=None, c_0=None, peepholes=None):
    direction = call.get("direction", "forward")
    directions, last_first = 2 if direction == "bidirectional" else 1, bool(call.get("layout", 0))
    relu = check_recurrent(call, directions, peepholes)
    name, hidden = w.free_name(call), w_hh.full[2]
    weights = recurrent_weights(w, call, name, w_ih, w_hh, bias, directions)
    x = w.permute(x, (1, 0, 2)) if last_first else w.f32(w.whole(x))
    if direction == "reverse":
        if lengths is not None:
            raise Refused("lengths in the reverse direction alone are not possible")
        x = w.flip(x, 0)
    starts = [None if h is None or is_zero(h) else w.permute(h, (1, 0, 2)) if last_first else
              w.f32(w.whole(h)) for h in (h_0, c_0)]
    starts = starts[:2 if call.op == "LSTM" else 1]
    wanted = any(call.outputs[1:])
    if call.op == "GRU" and not call.get("linear_before_reset", 0):
        if lengths is not None:
            raise Refused("lengths together with linear_before_reset=0 are not possible")
        node = reset_first(w, x, weights, directions, hidden, starts[0])
        return recurrent_results(w, call, node, x, directions, hidden, 1, last_first)
    given = dict(zip(("h_0", "c_0"), starts),
                 lengths=None if lengths is None else w.integers(w.whole(lengths), ("i64", "i32")))
    node = w.add(call.op.lower(), [x], (), weights=weights, bidirectional=True if directions == 2 else None,
                 states=True if wanted else None, relu=True if relu else None, **given)
    return recurrent_results(w, call, node, x, directions, hidden, len(starts), last_first)


def reset_first(w, x, weights, directions, hidden, start):
    """A GRU whose reset gate acts before the product, step by step. Returns the results, then the last
    states."""
    length, n, own = x.full[0], x.full[1], len(weights) // directions
    sides, last = [], []
    for d in range(directions):
        w_ih, w_hh, *biases = weights[d * own:(d + 1) * own]
        inputs = w.matmul(x, w_ih, True)
        for bias in biases:  # both are added before a gate's function
            inputs = w.map("add", inputs, bias)
        gate_weights, new_weight = w.slice(w_hh, 0, 0, 2 * hidden), w.slice(w_hh, 0, 2 * hidden, None)
        zeros = Constant(w.constant_of(0.0).tensor, (n, hidden))
        h = w.whole(zeros) if start is None else w.reshape(w.slice(start, 0, d, d + 1), (n, hidden))
        steps = [None] * length
        for t in reversed(range(length)) if d else range(length):
            given = w.reshape(w.slice(inputs, 0, t, t + 1), (n, 3 * hidden))
            gates = w.expr("sigmoid(x + y)", w.slice(given, 1, 0, 2 * hidden),
                           w.matmul(h, gate_weights, True))
            reset, keep = w.slice(gates, 1, 0, hidden), w.slice(gates, 1, hidden, None)
            new = w.matmul(w.map("mul", reset, h), new_weight, True)
            h = w.expr("(1 - x0) * tanh(x1 + x2) + x0 * x3", keep, w.slice(given, 1, 2 * hidden, None), new,
                       h)
            steps[t] = w.reshape(h, (1, n, hidden))
        sides.append(w.add("concat", steps, (), dim=0))
        last.append(w.reshape(h, (1, n, hidden)))
    if directions == 1:
        return w.add("concat", sides + last, (), dim=0)
    # with the memory of [directions, n, hidden]
    states = w.reshape(w.add("concat", last, (), dim=0), (1, n, 2 * hidden))
    return w.add("concat", [w.add("concat", sides, (), dim=2), states], (), dim=0)


def recurrent_results(w, call, node, x, directions, hidden, states, last_first):
    """Y [length, directions, n, hidden] and the last states [directions, n, hidden]. Layout 1 has n first."""
    length, n = x.full[0], x.full[1]
    y = w.reshape(w.slice(node, 0, 0, length), (length, n, directions, hidden))
    y = w.flip(y, 0) if call.get("direction", "") == "reverse" else y
    results = [w.permute(y, (1, 0, 2, 3) if last_first else (0, 2, 1, 3))]
    for i in range(states if any(call.outputs[1:]) else 0):
        state = w.reshape(w.slice(node, 0, length + i, length + i + 1), (directions, n, hidden))
        results.append(w.permute(state, (1, 0, 2)) if last_first else state)
    return results

