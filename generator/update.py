"""An optimizer's step as a function of single numbers, from its row in gpunn.h. The CPU loop and the CUDA
kernel call it. Settings that an optimizer never changes are constants in the text; the others are passed at
run time."""
from collections import namedtuple

from . import floats, ir, scalar, table, template

# settings that are no part of the text, as in gpunn.h
FREE = ("lr", "weight_decay", "maximize", "initial_accumulator_value")
THREADS = 256

# name: of the function. parameters: those before its results p and states. states: the indices of the states
# in use.
Update = namedtuple("Update", "name kind parameters values states text")
Given = namedtuple("Given", "name")  # a number that is passed at run time


def setting(update, key):
    return floats.f32(float(update[key]))


def step(kernel_set, number):
    """The Update of that number in a KernelSet."""
    update = kernel_set.updates[number]
    row, graph = table.optimizers()[update["kind"]], ir.Graph()
    values = {"p": None, "g": None, "lr": "n.lr"}
    values.update((key, "u.setting[%d]" % i)
                  for i, (key, *_) in enumerate(row.settings) if key == "weight_decay")
    values.update((name, "n.once[%d]" % i) for i, (name, _) in enumerate(row.once))
    names = {name: graph.load(Given(name)) for name in values}
    names.update((key, graph.const(setting(update, key))) for key, *_ in row.settings if key not in FREE)
    states = [k for k, needed in enumerate(row.states) if needed == "ALWAYS" or setting(update, needed) != 0]
    names.update(("s%d" % k, graph.load(Given("s%d" % k)) if k in states else graph.const(0))
                 for k in range(3))
    for name, text in row.step:
        names[name] = graph.text(text, names)
    results = [(name, "store", Given(name), names[name]) for name in ["p"] + ["s%d" % k for k in states]]
    name = "%s_update%d" % (kernel_set.name, number)
    _, parameters, _, text = scalar.function(kernel_set.name, name + "_step", results)
    return Update(name, update["kind"], [slot.key.name for slot in parameters], values, states, text)


def call(update, places):
    """The call of the function. places: {name: expression} of p, g, states and, with & before, results."""
    arguments = [places.get(name, name) for name in update.parameters]
    return scalar.wrapped(update.name + "_step(", arguments + places["results"], ");")


def emit_c(kernel_set, number):
    """The loop for the CPU, as lines."""
    update = step(kernel_set, number)
    numbers = ["const float %s = %s;" % (name, update.values[name].replace("u.", "u->"))
               for name in update.parameters if update.values.get(name)]
    places = {"p": "p[i]", "results": ["&p[i]"] + ["&s%d[i]" % k for k in update.states]}
    places.update(("s%d" % k, "s%d[i]" % k) for k in update.states)
    return template.load("update.c", name=kernel_set.name, NAME=kernel_set.name.upper(), function=update.name,
                         comment=update.kind, numbers=numbers, call=call(update, places),
                         states=["float *const s%d = u->state[%d];" % (k, k) for k in update.states])


def emit_cuda(kernel_set, number):
    """The text of the kernel and of the function that launches it."""
    update, half = step(kernel_set, number), kernel_set.updates[number]["half_dtype"]
    names = ["s%d" % k for k in update.states]
    numbers = ["const float %s = %s;" % (name, update.values[name])
               for name in update.parameters if update.values.get(name)]
    places = {"p": "in_p[j]", "results": ["&p[j]"] + ["&%s[j]" % name for name in names]}
    places.update((name, "in_%s[j]" % name) for name in names)
    pointers = ["parameter", "gradient"] + ["state[%d]" % k for k in update.states]
    stores = ["store(u.state[%d], i, s%d);" % (k, k) for k in update.states]
    if half != "f32":
        stores.append("if (u.half) store((%s *)u.half, i, p);" % half)
        pointers.append("half")
    pack = 4 if half == "f32" else 8
    return template.load(
        "update.cu", function=update.name, comment=update.kind, threads=str(THREADS), pack=str(pack),
        tile=str(THREADS * pack), numbers=numbers,
        loads=["const pack<V, float> in_s%d = load<V>(u.state[%d], i);" % (k, k) for k in update.states],
        results="numbers<V> %s;" % ", ".join(["p"] + names), call=call(update, places), stores=stores,
        aligned=" && ".join("aligned(u->%s, 16)" % pointer for pointer in pointers))
