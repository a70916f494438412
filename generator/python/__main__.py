"""Writes the module gpunn for Python, one file, from the declarations of gpunn.h:

    python3 -m generator.python -o gpunn.py

The comment at its top says how to use it."""
import keyword
import os
import string
import textwrap

from ..reference import api, command

WIDTH = 116
TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "module.txt")
KINDS = {"signed char": "c_byte", "unsigned char": "c_ubyte", "unsigned": "c_uint", "size_t": "c_size_t"}
HANDLES = ("Device", "Model", "Tensor", "Optimizer", "Loader", "Group", "Session")
# What module.txt has itself, or what it replaces.
BY_HAND = ("write", "write_as", "write_shape", "read", "read_as", "read_grad", "read_grad_as", "bind",
           "bind_as", "bind_grad", "constant", "backward_from", "data", "data_grad", "to_dlpack",
           "bind_dlpack", "array_free", "write_npy", "write_safetensors", "model_to", "custom",
           "evaluate_classes")
USER = ("user", "arg")  # what C hands back to callbacks; Python's functions need none
PARTS = 256  # most results of gpunn_split and gpunn_chunk


# ---- names and types ----


def short(name):
    return name[len("gpunn_"):]


def safe(name):
    """A name that is no keyword."""
    return name + "_" if keyword.iskeyword(name) else name


def class_name(name):
    return "".join(part.capitalize() for part in short(name).split("_"))


def handle(name):
    """The class of an object; None for other types."""
    return class_name(name) if name.startswith("gpunn_") and class_name(name) in HANDLES else None


def number(name):
    return KINDS.get(name) or "c_" + name.replace("_t", "")


def c_type(kind):
    """The ctypes type of a value as C stores it."""
    names = {"VOID": "None", "NUMBER": number(kind.name), "BOOL": "c_bool", "ENUM": "c_int",
             "TEXT": "c_char_p", "STRUCT": class_name(kind.name)}
    return names.get(kind.kind, "c_void_p") + "".join(" * %d" % size for size in reversed(kind.sizes))


def of_list(kind):
    """The element of a list of objects or texts: its class; None for other types."""
    if kind.kind != "POINTER" or not kind.name.endswith("*"):
        return None
    return "str" if kind.name == "char *" else handle(kind.name.rstrip(" *"))


# ---- callbacks ----


def callback_type(kind):
    """CFUNCTYPE(...) of a function that C calls."""
    found = api.callback(kind.name)
    result = "c_void_p" if found.result.kind in ("TEXT", "POINTER") else c_type(found.result)
    return "CFUNCTYPE(%s)" % ", ".join([result] + [callback_parameter(one.type) for one in found.parameters])


def callback_parameter(kind):
    is_struct = kind.kind == "POINTER" and kind.name in api.structs()
    return "POINTER(%s)" % class_name(kind.name) if is_struct else c_type(kind)


def callback(kind):
    found = api.callback(kind.name)
    drops = bool(found.parameters) and found.parameters[0].name in USER
    failed = {"ENUM": "ERR_CANCELLED", "BOOL": "False", "NUMBER": "-1"}.get(found.result.kind, "None")
    failed = "0" if found.result.name == "size_t" else failed
    return "_Callback(%s, %d, %s)" % (callback_type(kind), drops, failed)


# ---- structs ----


def is_callback(struct, field):
    return field.type.kind == "FUNCTION" and struct.section not in api.INNER


def field_type(struct, field):
    return callback_type(field.type) if is_callback(struct, field) else c_type(field.type)


def pointer_kind(kind):
    """What a pointer in a struct is to, as an entry of _kinds."""
    if of_list(kind):
        return "[%s]" % of_list(kind)
    if handle(kind.name):
        return handle(kind.name)
    if kind.name in api.structs() and api.structs()[kind.name].section not in api.INNER:
        return class_name(kind.name)
    return number(kind.name) if kind.name in api.NUMBERS else "None"


def kinds(struct):
    for field in struct.fields:
        if is_callback(struct, field):
            yield '"%s": %s' % (safe(field.name), callback(field.type))
        elif field.type.kind == "POINTER" and struct.section not in api.INNER:
            yield '"%s": %s' % (safe(field.name), pointer_kind(field.type))


def filled(head, items, end):
    """Items between brackets, in lines that fit."""
    lines, indent = [head], " " * len(head)
    for i, item in enumerate(items):
        item += end if i + 1 == len(items) else ","
        if lines[-1] not in (head, indent) and len(lines[-1]) + 1 + len(item) > WIDTH:
            lines.append(indent)
        lines[-1] += item if lines[-1] in (head, indent) else " " + item
    return lines if items else [head + end]


def struct_lines(struct):
    fields = ['("%s", %s)' % (safe(one.name), field_type(struct, one)) for one in struct.fields]
    lines = ["class %s(_Struct):" % class_name(struct.name)] + doc(struct.about or "Named arguments.", [])
    lines += filled("    _fields_ = [", fields, "]")
    return lines + (filled("    _kinds = {", list(kinds(struct)), "}") if list(kinds(struct)) else [])


def doc(about, more):
    """A docstring in the depth of a function."""
    first = textwrap.wrap('"""' + about, WIDTH - 8, initial_indent="    ", subsequent_indent="    ")
    said = [line for part in more
            for line in textwrap.wrap(part, WIDTH, initial_indent="    ", subsequent_indent="        ")]
    text = first + ([""] + said + ['    """'] if said else [])
    if not said:
        text[-1] += '"""'
    return [line.replace("\\", "\\\\") for line in text]


# ---- functions ----


def is_out(function, one):
    """Whether C writes a result through a parameter."""
    kind = one.type
    if kind.kind != "POINTER" or kind.constant or kind.name == "void" or handle(kind.name):
        return False
    return bool(of_list(kind)) or kind.name in api.NUMBERS or kind.name in api.structs()


def sizes(function):
    """{a count: the parameter whose elements or bytes it counts}"""
    pairs = list(zip(function.parameters, function.parameters[1:]))
    return {after.name: one.name for one, after in pairs
            if of_list(one.type) and after.name.endswith("count")
            or one.name in ("data", "text") and after.name == "size"}


def out_count(function):
    """How many results a list of them has: an expression; None: it is one."""
    if any(one.name == "capacity" for one in function.parameters):
        return str(PARTS)
    lists = [name for count, name in sizes(function).items() if count.endswith("count")]
    return "len(%s)" % lists[0] if lists else None


def argument(function, one):
    """What a function passes to C for a parameter."""
    if is_out(function, one):
        kind = of_list(one.type) or (
            number(one.type.name) if one.type.name in api.NUMBERS else class_name(one.type.name))
        count = out_count(function) if of_list(one.type) else None
        return "Out(%s%s)" % (kind, ", " + count if count else "")
    if one.name in USER and one.type.kind == "POINTER":
        return "None"
    if one.name == "capacity":
        return str(PARTS)
    counted = sizes(function).get(one.name)
    if counted == "data":
        return "memory.bytes"
    if counted:
        return "len(%s)" % ("os.fsencode(text)" if counted == "text" else counted)
    return "memory.address" if one.name == "data" else safe(one.name)


def is_given(function, one):
    """Whether Python's function has a parameter."""
    return argument(function, one) == safe(one.name) or one.name == "data"


def options(function):
    return [one for one in api.structs()[function.struct].fields
            if one.name not in ("args_",) + USER] if function.struct else []


def signature(function):
    given = [one for one in function.parameters if is_given(function, one)]
    names, defaults = [], [api.may_be_null(function, one.name) for one in given]
    for i, one in enumerate(given):
        names.append(safe(one.name) + ("=None" if all(defaults[i:]) else ""))
    return names + [safe(one.name) + "=None" for one in options(function)]


def function_lines(function):
    passed = [argument(function, one) for one in function.parameters]
    named = ["%s=%s" % (safe(one.name), safe(one.name)) for one in options(function)]
    args = ["%s(%s)" % (class_name(function.struct), ", ".join(named))] if function.struct else []
    more = ["%s: %s" % (safe(one.name), one.about) for one in options(function) if one.about]
    lines = filled("def %s(" % short(function.name), signature(function), "):")
    lines += doc(function.about or "torch.optim's optimizer of this name.", more)
    call = ['"%s"' % function.symbol] + passed + args
    lines += ["    memory = _Memory.of(data)"] * ("memory.address" in call)
    ending = ")[1]" if any(one.name == "capacity" for one in function.parameters) else ")"
    return lines + filled("    return _call(", call, ending)


def closing(function):
    """The class that a function frees; None for others."""
    is_one = function.name.endswith(("_close", "_destroy")) and len(function.parameters) == 1
    return handle(function.parameters[0].type.name) if is_one else None


def functions():
    for function in api.functions():
        if closing(function):
            name = function.parameters[0].name
            lines = ["def %s(%s):" % (short(function.name), name)] + doc(function.about, [])
            yield lines + ["    %s.close()" % name]
        elif short(function.name) not in BY_HAND:
            yield function_lines(function)


def parameter_type(function, one):
    """The type of a parameter in the table of functions."""
    kind = one.type
    if is_out(function, one) or kind.kind == "POINTER" and kind.name == "void *":
        return "c_void_p"
    if of_list(kind):
        return "_list(%s)" % of_list(kind)
    if kind.kind == "POINTER" and handle(kind.name):
        return handle(kind.name)
    if kind.kind == "POINTER" and kind.name in api.structs():
        return "POINTER(%s)" % class_name(kind.name)
    return {"TEXT": "_Text", "FUNCTION": callback(kind) if kind.kind == "FUNCTION" else ""}.get(
        kind.kind, c_type(kind))


def result_type(function):
    if function.result.kind == "POINTER" and handle(function.result.name):
        return handle(function.result.name)
    return "STATUS" if function.result.name == "gpunn_status" else c_type(function.result)


def row(function):
    types = [parameter_type(function, one) for one in function.parameters]
    types += [class_name(function.struct)] if function.struct else []
    return filled('    "%s": (%s, [' % (function.symbol, result_type(function)), types, "]),")


# ---- the module ----


def constants():
    for one in api.constants().values():
        value = '"%s"' % one.value if isinstance(one.value, str) else one.value
        yield "%s = %s" % (one.name[len("GPUNN_"):], value)


def handles():
    closers = {closing(one): one for one in api.functions() if closing(one)}
    for name in HANDLES:
        lines = ["class %s(Handle):" % name, '    """gpunn_%s"""' % name.lower()]
        yield lines + (['    closing = "%s"' % closers[name].symbol] if name in closers else [])


def joined(blocks):
    return "\n\n\n".join("\n".join(lines) for lines in blocks)


def module():
    with open(TEMPLATE, encoding="ascii") as file:
        text = string.Template(file.read())
    return text.substitute(
        version=api.constants()["GPUNN_VERSION"].value, constants="\n".join(constants()),
        handles=joined(handles()), structs=joined(map(struct_lines, api.structs().values())) + "\n",
        table="\n".join(line for one in api.functions() for line in row(one)), functions=joined(functions()))


def main(arguments=None):
    command.run(arguments, "python", "Python", "gpunn.py", module)


if __name__ == "__main__":
    main()
