"""The kernel of an optimizer's step: template update.cu."""
from . import floats, scalar, template, update_c

THREADS = 256


def emit_update(name, update):
    """The text of a kernel and the function of that name that launches it."""
    kind, half = update["kind"], update["half_dtype"]
    value = {key: scalar.number(floats.f32(update[key])) for key in ("momentum", "beta1", "beta2", "alpha", "eps")}
    rest = {key: update_c.rest(update[key]) for key in ("dampening", "beta1", "beta2", "alpha")}
    apart = kind in ("adamw", "lion") or update["decoupled"]
    step, shrunk = ([], "p * n.shrink") if apart else (["g += u.weight_decay * p;"], "p")
    names = {}  # of the state: its number
    if kind == "sgd":
        if update["momentum"]:
            names = {"m": 0}
            step.append("m[j] = n.first ? g : %s * in_m[j] + %s * g;" % (value["momentum"], rest["dampening"]))
            step.append("g += %s * m[j];" % value["momentum"] if update["nesterov"] else "g = m[j];")
        step.append("p -= n.rate * g;")
    elif kind == "adamax":
        names = {"m": 0, "most": 1}
        step += ["m[j] = %s * in_m[j] + %s * g;" % (value["beta1"], rest["beta1"]),
                 "const float now = fabsf(g) + %s, before = %s * in_most[j];" % (value["eps"], value["beta2"]),
                 "most[j] = before > now ? before : now;", "p -= n.rate * (m[j] / most[j]);"]
    elif kind == "lion":
        names = {"m": 0}
        step += ["const float way = %s * in_m[j] + %s * g;" % (value["beta1"], rest["beta1"]),
                 "p = p * n.shrink - n.rate * (way > 0 ? 1 : way < 0 ? -1 : way);",
                 "m[j] = %s * in_m[j] + %s * g;" % (value["beta2"], rest["beta2"])]
    elif kind in ("adam", "adamw", "nadam", "radam"):
        names = {"m": 0, "v": 1}
        move = {"nadam": "(n.lead * g + n.rate * m[j]) / (sqrtf(v[j]) * n.root_scale + %s)",
                "radam": "n.rate * (n.root_scale > 0 ? m[j] / (sqrtf(v[j]) + %s) : m[j])"}.get(
                    kind, "n.rate * (m[j] / (sqrtf(v[j]) * n.root_scale + %s))") % value["eps"]
        step += ["m[j] = %s * in_m[j] + %s * g;" % (value["beta1"], rest["beta1"]),
                 "v[j] = %s * in_v[j] + %s * g * g;" % (value["beta2"], rest["beta2"]),
                 "p = %s - %s;" % (shrunk, move)]
    elif kind == "adagrad":
        names = {"sum": 0}
        step += ["sum[j] = in_sum[j] + g * g;", "p -= n.rate * (g / (sqrtf(sum[j]) + %s));" % value["eps"]]
    else:
        names = {"v": 0}
        step += ["v[j] = %s * in_v[j] + %s * g * g;" % (value["alpha"], rest["alpha"]), "float square = v[j];"]
        if update["centered"]:
            names["average"] = 2
            step += ["average[j] = in_average[j] + %s * (g - in_average[j]);" % rest["alpha"],
                     "square -= average[j] * average[j];"]
        step.append("g /= sqrtf(square) + %s;" % value["eps"])
        if update["momentum"]:
            names["buffer"] = 1
            step += ["g += %s * in_buffer[j];" % value["momentum"], "buffer[j] = g;"]
        step.append("p -= n.rate * g;")
    pack = 4 if half == "f32" else 8
    stores = ["store(u.state[%d], i, %s);" % (at, state) for state, at in names.items()]
    pointers = ["parameter", "gradient"] + ["state[%d]" % at for at in names.values()]
    if half != "f32":
        stores.append("if (u.half) store((%s *)u.half, i, parameter);" % half)
        pointers.append("half")
    return template.load(
        "update.cu", function=name, comment=kind, threads=str(THREADS), pack=str(pack), tile=str(THREADS * pack),
        loads=["const pack<V, float> in_%s = load<V>(u.state[%d], i);" % (state, at) for state, at in names.items()],
        states=["numbers<V> %s;" % ", ".join(names)] if names else [], step=step, stores=stores,
        aligned=" && ".join("aligned(u->%s, 16)" % pointer for pointer in pointers))
