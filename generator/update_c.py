"""An optimizer's step for the CPU, in one pass over parameters, gradients and state: torch.optim's formulas, as >>update in
gpunn.h has them. What an optimizer does not change in its life is in the text as numbers; the rest comes at run time."""
from . import floats, scalar, template


def decimal(value):
    """The decimal that was meant by a float, as gpunn.h's gpunn__decimal."""
    return int(float(value) * 1e7 + 0.5) / 1e7


def rest(value):
    """1 minus a share, as the formulas take it."""
    return scalar.number(floats.f32(1 - decimal(floats.f32(value))))


def emit(kernel_set, number, update):
    """The C function of a KernelSet's update."""
    name, kind = kernel_set.name, update["kind"]
    value = {key: scalar.number(floats.f32(update[key])) for key in ("momentum", "beta1", "beta2", "alpha", "eps")}
    states, constants, moves = [], ["const float decay = u->weight_decay;"], []
    weight = ["g += decay * %s;" % ("p" if kind in ("sgd", "adamax") else "parameter[i]")]
    shrunk = "p"
    if kind in ("adamw", "lion") or update["decoupled"]:
        constants, weight, shrunk = [], [], "p * numbers.shrink"
    if kind == "sgd":
        steps = weight + ["p -= numbers.rate * g;"]
        if update["momentum"]:
            states = ["m"]
            ahead = "g + %s * m_next" % value["momentum"] if update["nesterov"] else "m_next"
            steps = weight + ["const float m_next = %s_where(numbers.first, g, %s * m[i] + %s * g);" % (
                name, value["momentum"], rest(update["dampening"])), "m[i] = m_next;", "p -= numbers.rate * (%s);" % ahead]
    elif kind == "adamax":
        states = ["m", "most"]
        steps = weight + [
            "const float m_next = %s * m[i] + %s * g;" % (value["beta1"], rest(update["beta1"])),
            "const float now = fabsf(g) + %s, before = %s * most[i];" % (value["eps"], value["beta2"]),
            "const float most_next = %s_where(before > now, before, now);" % name, "m[i] = m_next;", "most[i] = most_next;",
            "p -= numbers.rate * (m_next / most_next);"]
    elif kind == "lion":
        states = ["m"]
        steps = ["const float old = m[i], way = %s * old + %s * g;" % (value["beta1"], rest(update["beta1"])),
                 "p = p * numbers.shrink - numbers.rate * %s_where(way > 0, 1.0f, %s_where(way < 0, -1.0f, way));" % (name, name),
                 "m[i] = %s * old + %s * g;" % (value["beta2"], rest(update["beta2"]))]
    elif kind in ("adam", "adamw", "nadam", "radam"):
        states = ["m", "v"]
        steps = weight + [
            "kept[j] = %s * m[i] + %s * g;" % (value["beta1"], rest(update["beta1"])),
            "root[j] = %s * v[i] + %s * g * g;" % (value["beta2"], rest(update["beta2"])), "m[i] = kept[j];", "v[i] = root[j];"]
        moves = ["p = %s - numbers.rate * (kept[j] / (root[j] * numbers.root_scale + %s));" % (shrunk, value["eps"])]
        if kind == "nadam":
            steps.append("kept[j] = numbers.lead * g + numbers.rate * kept[j];")
            moves = ["p = %s - kept[j] / (root[j] * numbers.root_scale + %s);" % (shrunk, value["eps"])]
        if kind == "radam":
            moves = ["p = %s - numbers.rate * %s_where(numbers.root_scale > 0, kept[j] / (root[j] + %s), kept[j]);" % (
                shrunk, name, value["eps"])]
    elif kind == "rmsprop":
        states = ["v"] + ["buffer"] * bool(update["momentum"]) + ["average"] * bool(update["centered"])
        steps = weight + ["const float square = %s * v[i] + %s * g * g;" % (value["alpha"], rest(update["alpha"])),
                 "v[i] = square;", "kept[j] = g;"]
        if update["centered"]:
            steps += ["const float average_next = average[i] + %s * (g - average[i]);" % rest(update["alpha"]),
                      "average[i] = average_next;"]
        steps.append("root[j] = square%s;" % (" - average_next * average_next" if update["centered"] else ""))
        moves = ["float move = kept[j] / (root[j] + %s);" % value["eps"]]
        if update["momentum"]:
            moves += ["move += %s * buffer[i];" % value["momentum"], "buffer[i] = move;"]
        moves.append("p -= numbers.rate * move;")
    else:
        states = ["sum"]
        steps = weight + ["kept[j] = g;", "root[j] = sum[i] + g * g;", "sum[i] = root[j];"]
        moves = ["p -= numbers.rate * (kept[j] / (root[j] + %s));" % value["eps"]]
    places = {"m": 0, "v": 0 if kind == "rmsprop" else 1, "most": 1, "buffer": 1, "average": 2, "sum": 0}
    pointers = ["float *const %s = u->state[%d];" % (state, places[state]) for state in states]
    return template.load("update.c", name=name, NAME=name.upper(), function="%s_update%d" % (name, number), comment=kind,
                         constants=constants, states=pointers, step=steps, move=moves, roots=bool(moves))
