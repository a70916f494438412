"""The tables of a generated header, with which the runtime matches a model (gpunn.h, >>kernels)."""
from . import emit_network, floats, scalar, stamp, table, template
from .update import FREE

DIRECTIONS = ("evaluation", "forward", "backward")


def _string(text):
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"')


def _dtype(dtype):
    return "GPUNN_" + dtype.upper()


def _array(kind, name, entries):
    """A static array, with one entry a line or, for numbers, as many as fit."""
    return ["static const %s %s[] = {" % (kind, name)] + ["    %s," % entry for entry in entries] + ["};"]


def _numbers(kind, name, entries):
    lines, line = ["static const %s %s[] = {" % (kind, name)], "   "
    for entry in entries:
        if len(line) + len(entry) + 2 > scalar.WIDTH:
            lines.append(line)
            line = "   "
        line += " %s," % entry
    return lines + [line, "};"]


def emit(kernel_set):
    """The tables as lines of C."""
    name = kernel_set.name
    lines, kernels = [], []
    every, *instances_of = kernel_set.tables()
    for kernel in every:
        prefix = "%s_%s" % (name, kernel.name)
        for number, (_, operands) in enumerate(kernel.nodes):
            if operands:
                numbers = ["127" if one is None else str(one) for one in operands]
                lines += _numbers("signed char", "%s_operands%d" % (prefix, number), numbers)
        lines += _array("gpunn_kernel_node", prefix + "_nodes", [
            "{%s, %s, %d}" % (_string(text), "%s_operands%d" % (prefix, number) if operands else "NULL",
                              len(operands)) for number, (text, operands) in enumerate(kernel.nodes)])
        if kernel.externals:
            lines += _array("char *const", prefix + "_externals",
                            [_string(text) for text in kernel.externals])
        if kernel.kept:
            lines += _array("gpunn_kernel_kept", prefix + "_kept", [
                "{%s, %d, %d}" % (_dtype(kept.dtype), kept.fixed, kept.per_batch) for kept in kernel.kept])
        entries = []
        for direction in DIRECTIONS:
            program = getattr(kernel, direction)
            if not program:
                entries.append("{NULL, 0, NULL, NULL, 0}")
                continue
            operands = [operand for operand in program.operands if operand.role != "stat"]
            place = {operand.name: i for i, operand in enumerate(operands)}
            lines += _array("gpunn_kernel_operand", "%s_%s_operands" % (prefix, direction), [
                "{GPUNN_KERNEL_%s, %d, %d, %s, %s, %d, %d}" % (
                    operand.role.upper(), operand.read, operand.written, _dtype(operand.dtype),
                    _dtype(operand.half) if operand.half else 0, operand.index,
                    place[operand.shares] if operand.shares else -1) for operand in operands])
            function = "%s_%s" % (prefix, direction)
            if program.on_gpus_alone():
                entries.append("{%s_operands, %d, NULL, NULL, 0}" % (function, len(operands)))
                continue
            cache = emit_network.emit_c(kernel_set)[2] if program.network else "0"
            entries.append("{%s_operands, %d, %s, %s_workspace, %s}" %
                           (function, len(operands), function, function, cache))
        kernels += ["{%s," % _string(kernel.name), " %s," % _string(kernel.formula),
                    " %s_nodes, %d," % (prefix, len(kernel.nodes)),
                    " %s, %d," % (prefix + "_externals" if kernel.externals else "NULL",
                                  len(kernel.externals)),
                    " %s, %d," % (prefix + "_kept" if kernel.kept else "NULL", len(kernel.kept)),
                    " GPUNN_KERNEL_%s, %s," %
                    ({"any": "ANY", "first": "CHANNELS_FIRST", "last": "CHANNELS_LAST"}[kernel.layout],
                     "true" if kernel.loss else "false"),
                    " {%s," % entries[0], "  %s," % entries[1], "  %s}," % entries[2],
                    " %d, %d, GPUNN_PRECISION_%s}," % (kernel.measured + (kernel.precision.upper(),))]
    counts = []
    if kernels:
        lines += ["static const gpunn_kernel %s_set[] = {" % name] + ["    " + line for line in kernels] + [
            "};"]
    for kind, instances in zip(("evaluation", "training"), instances_of):
        for number, instance in enumerate(instances):
            lines += _numbers("int", "%s_%s%d" % (name, kind, number), map(str, instance.tensors))
        if instances:
            lines += _array("gpunn_kernel_instance", "%s_%s" % (name, kind), [
                "{%d, %s_%s%d}" % (instance.kernel, name, kind, number)
                for number, instance in enumerate(instances)])
        counts.append(("%s_%s" % (name, kind) if instances else "NULL", len(instances)))
    if kernel_set.updates:
        lines += ["static const gpunn_kernel_update %s_updates[] = {" % name]
        for number, update in enumerate(kernel_set.updates):
            lines.append("    {%s, %s_update%d}," % (_pattern(update), name, number))
        lines.append("};")
    return lines + template.load(
        "set.c", name=name, NAME=name.upper(), version=_string(stamp.VERSION),
        sha256=_string(kernel_set.spec_sha256),
        command=_string(kernel_set.command), kernels="%s_set" % name if kernels else "NULL",
        kernel_count=str(len(every)), tensor_count=str(kernel_set.tensor_count), evaluation=counts[0][0],
        evaluation_count=str(counts[0][1]), training=counts[1][0], training_count=str(counts[1][1]),
        updates=name + "_updates" if kernel_set.updates else "NULL",
        update_count=str(len(kernel_set.updates))).splitlines()


def _pattern(update):
    """Kind, settings and half_dtype of a gpunn_kernel_update."""
    values = [0 if key in FREE else floats.f32(float(update[key]))
              for key, *_ in table.optimizers()[update["kind"]].settings]
    return "GPUNN_UPDATE_%s, {%s}, %s" % (update["kind"].upper(), ", ".join(map(scalar.number, values)),
                                          _dtype(update["half_dtype"]))
