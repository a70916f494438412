"""Small kernel sets for the emitters' tests, built by hand: one for each kind of launch and of operand."""
import os
from dataclasses import replace

from generator import grad, ir, partition, spec, table
from generator.program import (SCALAR, WHOLE, Domain, Instance, Kernel, KernelSet, Launch, Operand, Program,
                               Store, Sum)


def update(kind, half_dtype="f32", **settings):
    usual = {key: default for key, _, default in table.optimizers()[kind].settings}
    assert set(settings) <= set(usual), kind
    return dict(usual, **settings, kind=kind, half_dtype=half_dtype)


class Builder:
    """One program. Operands are created when they are first used."""

    def __init__(self, per_batch, inner=1):
        self.graph, self.per_batch, self.inner = ir.Graph(), per_batch, inner
        self.operands, self.launches = [], []

    def operand(self, name, role="value", index=None, dtype="f32", place=WHOLE, count=None, **fields):
        if count is None:
            div, mod = place
            count = (0, self.per_batch // div) if mod == 0 else (mod, 0)
        index = len([one for one in self.operands if one.role == role]) if index is None else index
        operand = Operand(name, role, index, dtype, place, count, **fields)
        self.operands.append(operand)
        return operand

    def load(self, name, **fields):
        return self.graph.load(self.operand(name, read=True, **fields))

    def out(self, name, **fields):
        return self.operand(name, written=True, **fields)

    def launch(self, stores=(), sums=(), finals=(), family="map", fixed=0):
        domain = Domain(fixed, 0 if fixed else self.per_batch, self.inner if family == "row" else 1)
        stores, finals = (tuple(Store(*one) for one in some) for some in (stores, finals))
        self.launches.append(Launch(family, domain, stores, tuple(sums), finals))

    def program(self):
        stats = [one for one in self.operands if one.role == "stat"]
        return Program(tuple(one for one in self.operands if one.role != "stat") + tuple(stats),
                       tuple(self.launches))


def kernel_set(name, kernels, updates=(), math="auto"):
    return KernelSet(name, "0" * 64, "python3 -m generator %s.json -o %s" % (name, name), math, 9,
                     tuple(kernels), (Instance(0, (3, 0)),) if kernels else (), (), tuple(updates))


def kernel(number=0, evaluation=None, forward=None, backward=None, nodes=(("relu f32 [N,8]", (0,)),),
           random_streams=0, loss=False):
    programs = [one.program() if one else None for one in (evaluation, forward, backward)]
    return Kernel("g%d" % number, "y = f(x)", tuple(nodes), ("f32 [N,8]",), (), random_streams, "any", loss,
                  *programs)


def gelu(channels=5, plane=70):
    """W6: y = gelu(x * scale + shift) + r by channels, and its gradients."""
    place = (plane, channels)
    forward = Builder(channels * plane)
    graph = forward.graph
    z = graph.add(graph.mul(forward.load("x"), forward.load("scale", place=place)),
                  forward.load("shift", place=place))
    r = forward.load("r")
    forward.launch([(forward.out("y", index=-1), graph.add(graph.apply("gelu", {}, [z]), r))])
    backward = Builder(channels * plane)
    graph = backward.graph
    x, scale, shift = (backward.load("x"), backward.load("scale", place=place),
                       backward.load("shift", place=place))
    dy = backward.load("dy", role="gradient", index=-1)
    wanted = {"role": "gradient", "optional": True, "accumulate": True}
    z = graph.add(graph.mul(x, scale), shift)
    dz = graph.derivative("gelu", 0, {}, [z], graph.apply("gelu", {}, [z]), dy)
    sums = [Sum(0, graph.mul(dz, x), place, channels), Sum(1, dz, place, channels)]
    backward.launch([(backward.out("dx", index=0, **wanted), graph.mul(dz, scale))], sums,
                    [(backward.out("dscale", index=1, place=place, **wanted), graph.total(0)),
                     (backward.out("dshift", index=2, place=place, **wanted), graph.total(1))])
    return kernel(forward=forward, backward=backward)


def relu(dtype="f32"):
    """y = relu(x + b), b by column; its gradient, and b's."""
    forward = Builder(10)
    graph = forward.graph
    forward.launch([(forward.out("y", index=-1, dtype=dtype), graph.apply(
        "relu", {}, [graph.add(forward.load("x", dtype=dtype), forward.load("b", place=(1, 10)))]))])
    backward = Builder(10)
    graph = backward.graph
    y, dy = (backward.load("y", index=-1, dtype=dtype),
             backward.load("dy", role="gradient", index=-1, dtype=dtype))
    dx = graph.derivative("relu", 0, {}, [None], y, dy)
    backward.launch(
        [(backward.out("dx", role="gradient", index=0, dtype=dtype, optional=True, shares="dy"), dx)],
        [Sum(0, dx, (1, 10), 10)],
        [(backward.out("db", role="gradient", index=1, place=(1, 10), accumulate=True), graph.total(0))])
    return kernel(forward=forward, backward=backward)


def mixed():
    """Operands of every kind at once, some of them absent: integers, masks, rows, short periods, strides,
    scalars."""
    b = Builder(12 * 35)
    graph = b.graph
    x, flags, numbers = (b.load("x"), b.load("flags", dtype="bool"),
                         b.load("numbers", dtype="i64", place=(35, 0), count=(0, 12)))
    small, scale, temperature = (b.load("small", place=(5, 7)), b.load("scale", place=(1, 35)),
                                 b.load("temperature", place=SCALAR))
    first, extra = (b.load("first", place=(35, 12), stride=5, count=(60, 0)),
                    b.load("extra", optional=True, absent=0.5))
    late = b.load("late", place=(1, 420), optional=True, absent=2.0)
    value = graph.op("exp", graph.div(graph.add(graph.mul(x, small), scale), temperature))
    value = graph.where(flags, value, graph.op("pow", graph.op("abs", x), numbers))
    value = graph.add(graph.add(value, graph.mul(first, extra)), late)
    wave = graph.op("sin", graph.mul(graph.const(2), x))
    b.launch([(b.out("y", index=-1), value), (b.out("z", index=-2, optional=True), wave)],
             [Sum(0, value, SCALAR, 1), Sum(1, x, (5, 7), 7)],
             [(b.out("average", index=-3, place=SCALAR, count=(1, 0)),
               graph.div(graph.total(0), graph.count(0, 420))),
              (b.out("parts", index=-4, place=(5, 7), accumulate=True),
               graph.add(graph.total(1), graph.total(0)))])
    return kernel(forward=b)


def batch_norm(channels=3, plane=70):
    """Training batch norm and relu: statistics into scratch, then the values."""
    place, b = (plane, channels), Builder(channels * plane)
    graph = b.graph
    x = b.load("x")
    shift = graph.load(Operand("sample", "value", 0, "f32", place, (0, channels * plane), read=True,
                               stride=plane))
    b.operands.append(shift.attr)
    weight, bias = b.load("weight", index=1, place=place), b.load("bias", index=2, place=place)
    running = b.operand("running_mean", index=3, place=place, read=True, written=True)
    m = graph.count(0, plane)
    mean_stat = b.operand("mean", role="stat", place=place, read=True, written=True)
    rstd = b.operand("rstd", role="kept", index=0, place=place, read=True, written=True)
    terms = grad.batch_norm_terms(graph, x, shift)
    mean, variance = grad.batch_norm_moments(graph, [graph.total(0), graph.total(1)], shift, m)
    old = graph.load(running)
    b.launch([], [Sum(i, term, place, channels) for i, term in enumerate(terms)],
             [(mean_stat, mean), (rstd, grad.inverse_root(graph, variance, 1e-5)),
              (running, graph.add(graph.mul(graph.const(0.9), old), graph.mul(graph.const(0.1), mean)))])
    y = grad.batch_norm_apply(graph, x, weight, bias, graph.load(mean_stat), graph.load(rstd))
    b.launch([(b.out("y", index=-1), graph.apply("relu", {}, [y]))])
    return kernel(forward=b)


def layer_norm(inner=99, dtype="f32"):
    """h = x + r, y = layer_norm(h) with stored statistics; backward with the gradients of weight and bias."""
    b = Builder(4 * inner, inner)
    graph = b.graph
    h = graph.round(dtype, graph.add(b.load("x", dtype=dtype), b.load("r", dtype=dtype)))
    weight, bias = b.load("weight", place=(1, inner)), b.load("bias", place=(1, inner))
    mean = graph.div(graph.rowred("sum", h), graph.const(inner))
    away = graph.sub(h, mean)
    rstd = grad.inverse_root(graph, graph.div(graph.rowred("sum", graph.mul(away, away)), graph.const(inner)),
                             1e-5)
    y = graph.add(graph.mul(graph.mul(away, rstd), weight), bias)
    kept = {"role": "kept", "place": (inner, 0)}
    b.launch([(b.out("h", index=-1, dtype=dtype), h), (b.out("y", index=-2, dtype=dtype), y),
              (b.out("mean", **kept), mean), (b.out("rstd", **kept), rstd)], family="row")
    back = Builder(4 * inner, inner)
    graph = back.graph
    h, weight = back.load("h", index=-1, dtype=dtype), back.load("weight", index=2, place=(1, inner))
    mean, rstd = (back.load("mean", role="kept", place=(inner, 0)),
                  back.load("rstd", role="kept", place=(inner, 0)))
    dy = back.load("dy", role="gradient", index=-2, dtype=dtype)
    dh = back.load("dh", role="gradient", index=-1, dtype=dtype, optional=True)
    away, k, n = graph.sub(h, mean), graph.mul(dy, weight), graph.const(inner)
    slope = graph.mul(graph.mul(rstd, rstd), graph.div(graph.rowred("sum", graph.mul(k, away)), n))
    dx = graph.mul(graph.sub(graph.sub(k, graph.div(graph.rowred("sum", k), n)), graph.mul(away, slope)),
                   rstd)
    dx = graph.add(dx, dh)
    wanted = {"role": "gradient", "optional": True, "accumulate": True}
    back.launch([(back.out("dx", index=0, dtype=dtype, **wanted), dx),
                 (back.out("dr", index=1, dtype=dtype, **wanted), dx)],
                [Sum(0, graph.mul(dy, graph.mul(away, rstd)), (1, inner), inner),
                 Sum(1, dy, (1, inner), inner)],
                [(back.out("dweight", index=2, place=(1, inner), **wanted), graph.total(0)),
                 (back.out("dbias", index=3, place=(1, inner), **wanted), graph.total(1))], family="row")
    return kernel(forward=b, backward=back)


def group_norm(groups=2, channels=6, plane=35, dtype="f32"):
    """y = group_norm(x) + r with stored statistics; backward, where the sums for each channel are a launch of
    their own."""
    inner, place = channels // groups * plane, (plane, channels)
    b = Builder(channels * plane, inner)
    graph = b.graph
    x, weight, bias = b.load("x", dtype=dtype), b.load("weight", place=place), b.load("bias", place=place)
    mean = graph.div(graph.rowred("sum", x), graph.const(inner))
    away = graph.sub(x, mean)
    rstd = grad.inverse_root(graph, graph.div(graph.rowred("sum", graph.mul(away, away)), graph.const(inner)),
                             1e-5)
    y = graph.add(graph.add(graph.mul(graph.mul(away, rstd), weight), bias), b.load("r", dtype=dtype))
    kept = {"role": "kept", "place": (inner, 0)}
    b.launch([(b.out("y", index=-1, dtype=dtype), y), (b.out("mean", **kept), mean),
              (b.out("rstd", **kept), rstd)], family="row")
    back = Builder(channels * plane, inner)
    graph = back.graph
    x, weight = back.load("x", index=0, dtype=dtype), back.load("weight", index=1, place=place)
    mean, rstd = (back.load("mean", role="kept", place=(inner, 0)),
                  back.load("rstd", role="kept", place=(inner, 0)))
    dy = back.load("dy", role="gradient", index=-1, dtype=dtype)
    away, k, n = graph.sub(x, mean), graph.mul(dy, weight), graph.const(inner)
    wanted = {"role": "gradient", "optional": True, "accumulate": True}
    back.launch([],
                [Sum(0, graph.mul(dy, graph.mul(away, rstd)), place, channels), Sum(1, dy, place, channels)],
                [(back.out("dweight", index=1, place=place, **wanted), graph.total(0)),
                 (back.out("dbias", index=2, place=place, **wanted), graph.total(1))])
    slope = graph.mul(graph.mul(rstd, rstd), graph.div(graph.rowred("sum", graph.mul(k, away)), n))
    inside = graph.sub(graph.sub(k, graph.div(graph.rowred("sum", k), n)), graph.mul(away, slope))
    back.launch([(back.out("dx", index=0, dtype=dtype, **wanted), graph.mul(inside, rstd))], family="row")
    return kernel(forward=b, backward=back)


def cross_entropy(classes=10, dtype="i64", smoothing=0.1, weighted=False):
    """The loss, the mean over the rows that are not ignored, and its gradient in one program."""
    attrs = {"ignore_index": -100, "label_smoothing": smoothing}
    b = Builder(classes, classes)
    graph = b.graph
    x, label = b.load("logits"), b.load("labels", index=1, dtype=dtype, place=(classes, 0), count=(0, 1))
    operands = [x, label] + [b.load("weight", index=2, place=(1, classes))] * weighted
    divisor = b.operand("divisor", role="stat", place=SCALAR, count=(1, 0), read=True, written=True)
    weight = grad.loss_weight(graph, "cross_entropy", attrs, operands, classes)
    b.launch([], [Sum(0, weight, SCALAR, 1, True)], [(divisor, graph.total(0))], family="row")
    seed = graph.div(b.load("dloss", role="gradient", index=-1, place=SCALAR, count=(1, 0)),
                     graph.load(divisor))
    cost = grad.forward(graph, "cross_entropy", attrs, operands, classes)
    dx = grad.backward(graph, "cross_entropy", attrs, operands, cost, seed, classes)[0]
    b.launch([(b.out("dlogits", role="gradient", index=0, optional=True, accumulate=True), dx)],
             [Sum(0, cost, SCALAR, 1, True)], [(b.out("loss", index=-1, place=SCALAR, count=(1, 0)),
                                                graph.div(graph.total(0), graph.load(divisor)))],
             family="row")
    text = "cross_entropy reduction=mean ignore_index=-100 label_smoothing=0.1 f32 []"
    return kernel(forward=b, loss=True, nodes=((text, (0, 1)),))


def softmax(inner=40, long=False):
    """y = softmax(x / temperature + position). position has a period of three rows; temperature has a value
    per row."""
    inner = 9001 if long else inner
    b = Builder(3 * inner, inner)
    graph = b.graph
    x = graph.div(b.load("x"), b.load("temperature", place=(inner, 0)))
    x = graph.add(x, b.load("position", place=(1, 3 * inner), optional=True))
    b.launch([(b.out("y", index=-1),
               graph.mul(grad.forward(graph, "softmax", {}, [x], inner), b.load("tiny", place=(1, 8)))),
              (b.out("top", index=-2, place=(inner, 0)), graph.rowred("max", x))],
             [Sum(0, x, (1, inner), inner)],
             [(b.out("columns", index=-3, place=(1, inner)), graph.total(0))], family="row")
    return kernel(evaluation=b)


def dropout(inner=77, family="map"):
    """y = dropout(x) + dropout(r)."""
    b = Builder(3 * inner, inner)
    graph = b.graph
    value = graph.add(graph.mul(b.load("x"), graph.keep(0, 0.1)), graph.mul(b.load("r"), graph.keep(1, 0.5)))
    stores = [(b.out("y", index=-1), value)]
    if family == "row":
        stores.append((b.out("total", index=-2, place=(inner, 0)), graph.rowred("sum", value)))
    b.launch(stores, family=family)
    return kernel(forward=b, random_streams=2,
                  nodes=(("dropout p=0.1 f32 [N,231]", (0,)), ("dropout p=0.5 f32 [N,231]", (1,))))


def functions():
    """Every function of the tables' language."""
    b = Builder(64)
    graph = b.graph
    x, z = b.load("x"), b.load("z")
    for number, op in enumerate(name for name, arity in ir.FUNCTIONS.items() if arity == 1):
        b.launch([(b.out(op + "_x", index=-1 - number), graph.op(op, x))])
    pairs = ("min", "max", "pow", "div", "floordiv", "atan2", "hypot", "fmod", "remainder")
    stores = [(b.out(op + "_xz", index=-30 - i), graph.op(op, x, z)) for i, op in enumerate(pairs)]
    for i, op in enumerate(ir.COMPARISONS):
        stores.append((b.out(op + "_xz", index=-40 - i), graph.where(graph.op(op, x, z), x, graph.neg(z))))
    stores.append((b.out("root", index=-50), graph.div(graph.const(1), graph.op("sqrt", z))))
    b.launch(stores)
    return kernel(forward=b)


def network():
    """A small network as one kernel, alone."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "specs", "small", "network.json")
    made = partition.partition(spec.load(path), "network", "python3 -m generator network.json -o network")
    return replace(made, kernels=(), evaluation=(), training=(), updates=(), step=None)


def step():
    """Its training step, alone."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "specs", "small", "step.json")
    made = partition.partition(spec.load(path), "step", "python3 -m generator step.json -o step")
    return replace(made, kernels=(), evaluation=(), training=(), updates=(), network=None)


SETS = {
    "gelu": lambda: kernel_set("gelu", [gelu()]),
    "relu": lambda: kernel_set("relu", [relu()]),
    "relu_half": lambda: kernel_set("relu_half", [relu("bf16")]),
    "mixed": lambda: kernel_set("mixed", [mixed()]),
    "batch_norm": lambda: kernel_set("batch_norm", [batch_norm()]),
    "layer_norm": lambda: kernel_set("layer_norm", [layer_norm()]),
    "layer_norm_half": lambda: kernel_set("layer_norm_half", [layer_norm(64, "bf16")]),
    "group_norm": lambda: kernel_set("group_norm", [group_norm()]),
    "long_groups": lambda: kernel_set("long_groups", [group_norm(2, 4, 2500)]),
    "cross_entropy": lambda: kernel_set("cross_entropy", [cross_entropy()]),
    "weighted": lambda: kernel_set("weighted", [cross_entropy(10, "u8", 0, True)]),
    "softmax": lambda: kernel_set("softmax", [softmax()]),
    "long_rows": lambda: kernel_set("long_rows", [softmax(long=True)]),
    "single": lambda: kernel_set("single", [softmax(1)]),
    "dropout": lambda: kernel_set("dropout", [dropout()]),
    "dropout_rows": lambda: kernel_set("dropout_rows", [dropout(family="row")]),
    "network": network,
    "step": step,
    "functions": lambda: kernel_set("functions", [functions()]),
    "updates": lambda: kernel_set("updates", [], [
        update("sgd"), update("sgd", momentum=0.9, dampening=0.1),
        update("sgd", momentum=0.9, nesterov=True, maximize=True),
        update("adam"), update("adamw"), update("rmsprop", alpha=0.99, momentum=0.9, centered=True),
        update("rmsprop", alpha=0.99), update("adagrad", eps=1e-10), update("adamax"), update("nadam"),
        update("nadam", decoupled_weight_decay=True), update("radam", maximize=True),
        update("radam", decoupled_weight_decay=True), update("lion"), update("adadelta")]),
    }
