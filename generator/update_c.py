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
    weight = "g += decay * %s;" % ("p" if kind == "sgd" else "parameter[i]")
    if kind == "sgd":
        steps = [weight, "p -= numbers.rate * g;"]
        if update["momentum"]:
            states = ["m"]
            ahead = "g + %s * m_next" % value["momentum"] if update["nesterov"] else "m_next"
            steps = [weight, "const float m_next = %s_where(numbers.first, g, %s * m[i] + %s * g);" % (
                name, value["momentum"], rest(update["dampening"])), "m[i] = m_next;", "p -= numbers.rate * (%s);" % ahead]
    elif kind in ("adam", "adamw"):
        states = ["m", "v"]
        steps = [weight] * (kind == "adam") + [
            "kept[j] = %s * m[i] + %s * g;" % (value["beta1"], rest(update["beta1"])),
            "root[j] = %s * v[i] + %s * g * g;" % (value["beta2"], rest(update["beta2"])), "m[i] = kept[j];", "v[i] = root[j];"]
        moves = ["p = %s - numbers.rate * (kept[j] / (root[j] * numbers.root_scale + %s));" % (
            "p * numbers.shrink" if kind == "adamw" else "p", value["eps"])]
        constants = constants if kind == "adam" else []
    elif kind == "rmsprop":
        states = ["v"] + ["buffer"] * bool(update["momentum"]) + ["average"] * bool(update["centered"])
        steps = [weight, "const float square = %s * v[i] + %s * g * g;" % (value["alpha"], rest(update["alpha"])),
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
        steps = [weight, "kept[j] = g;", "root[j] = sum[i] + g * g;", "sum[i] = root[j];"]
        moves = ["p -= numbers.rate * (kept[j] / (root[j] + %s));" % value["eps"]]
    places = {"m": 0, "v": 1 if kind in ("adam", "adamw") else 0, "buffer": 1, "average": 2, "sum": 0}
    pointers = ["float *const %s = u->state[%d];" % (state, places[state]) for state in states]
    return template.load("update.c", name=name, NAME=name.upper(), function="%s_update%d" % (name, number), comment=kind,
                         constants=constants, states=pointers, step=steps, move=moves, roots=bool(moves))
