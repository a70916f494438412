"""Writes the module gpunn for Fortran, from the declarations of gpunn.h:

    python3 -m generator.fortran -o gpunn.f90

The comment at its top says how to compile and use it."""
import os
import string
import textwrap

from ..reference import api, command

WIDTH = 132  # columns of free form
KINDS = {"float": "real(c_float)", "double": "real(c_double)", "char": "character(kind=c_char)",
         "signed char": "integer(c_signed_char)", "unsigned char": "integer(c_signed_char)",
         "int": "integer(c_int)", "unsigned": "integer(c_int)", "size_t": "integer(c_size_t)",
         "int32_t": "integer(c_int32_t)", "uint32_t": "integer(c_int32_t)", "uint16_t": "integer(c_int16_t)",
         "int64_t": "integer(c_int64_t)", "uint64_t": "integer(c_int64_t)", "uint8_t": "integer(c_int8_t)"}
TYPED = ("write", "read", "read_grad", "bind")  # what takes arrays
ARRAYS = (("F32", "real(c_float)", 4), ("F64", "real(c_double)", 8), ("I32", "integer(c_int32_t)", 4),
          ("I64", "integer(c_int64_t)", 8))
RANKS = (1, 2, 3, 4)
TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "module.f90")


# ---- texts ----


def indented(lines, depth):
    return "\n".join("    " * depth + line if line else "" for line in lines)


def comment(about):
    return textwrap.wrap(about, WIDTH - 12, initial_indent="! ", subsequent_indent="! ")


def broken(line):
    """A statement in lines that fit, with the mark of continuation."""
    parts = textwrap.wrap(line, WIDTH - 14, break_long_words=False, break_on_hyphens=False)
    return [part + " &" for part in parts[:-1]] + parts[-1:]


# ---- constants and types ----


def renamed():
    """Constants whose name another one has in another case."""
    others = {one.name for one in api.functions()} | set(api.structs())
    return [name for name in api.constants() if name.lower() in others]


def constant(one):
    name = one.name + ("_VALUE" if one.name in renamed() else "")
    if isinstance(one.value, str):
        return "character(len=*), parameter :: %s = '%s'" % (name, one.value)
    if abs(one.value) > 2**31:
        return "integer(c_int64_t), parameter :: %s = %d_c_int64_t" % (name, one.value)
    value = "ibset(0_c_int, 31)" if one.value == -2**31 else one.value
    return "integer(c_int), parameter :: %s = %s" % (name, value)


def base(kind):
    """A type without what a declaration adds to it."""
    return {"NUMBER": KINDS.get(kind.name), "BOOL": "logical(c_bool)", "ENUM": "integer(c_int)",
            "STRUCT": "type(%s)" % kind.name, "FUNCTION": "type(c_funptr)"}.get(kind.kind, "type(c_ptr)")


def default(field):
    """The initial value of a field; a struct has its own."""
    if field.name == "args_":
        return " = GPUNN_VERSION_NUMBER"
    zeros = {"BOOL": ".false.", "STRUCT": "", "FUNCTION": "c_null_funptr", "ENUM": "0",
             "NUMBER": "c_null_char" if field.type.name == "char" else "0"}
    value = zeros.get(field.type.kind, "c_null_ptr")
    return " = " + value if value else ""


def field_line(field):
    sizes = "(%s)" % ", ".join(map(str, reversed(field.type.sizes))) if field.type.sizes else ""
    return "%s :: %s%s%s" % (base(field.type), field.name, sizes, default(field))


def struct_lines(one):
    fields = [line for field in one.fields
              for line in comment(field.about) + [field_line(field)]]
    return comment(one.about) + ["type, bind(c) :: " + one.name] + ["    " + line for line in fields] + [
        "end type"]


# ---- functions ----


def counted(function):
    """{a list of handles: the parameter with its count}"""
    pairs = zip(function.parameters, function.parameters[1:])
    return {one.name: after.name for one, after in pairs
            if is_list(one.type) and one.type.constant and after.name.endswith("count")}


def is_list(kind):
    return kind.kind == "POINTER" and kind.name.endswith("*")


def attributes(function, one):
    """What follows the type of a parameter that C takes by reference; None: it takes the value."""
    kind, name = one.type, one.name
    if kind.kind == "TEXT":
        return "intent(in)%s :: %s(*)" % (", optional" * api.may_be_null(function, name), name)
    if kind.kind != "POINTER" or kind.name == "void" or kind.name not in KINDS and not is_list(kind) and (
            kind.name not in api.structs()):
        return None
    if kind.name in api.structs():
        intent = "intent(in), target" if kind.constant else "intent(inout)"
        return "%s%s :: %s" % (intent, ", optional" * api.may_be_null(function, name), name)
    if kind.constant:
        return "intent(in) :: %s(*)" % name
    several = any(other.name in ("count", "capacity") for other in function.parameters)
    return "intent(inout) :: %s(*)" % name if several else "intent(out), optional :: %s" % name


def pointed(kind):
    """The type of what a pointer is to, where Fortran passes that by reference."""
    if kind.kind == "TEXT":
        return "character(kind=c_char)"
    return KINDS.get(kind.name) or ("type(%s)" % kind.name if kind.name in api.structs() else "type(c_ptr)")


def c_parameter(function, one):
    given = attributes(function, one)
    return "%s, %s" % (pointed(one.type), given) if given else "%s, value :: %s" % (base(one.type), one.name)


def callback_parameter(one):
    """Of a function that C calls. Only structs have a type there."""
    if one.type.kind == "POINTER" and one.type.name in api.structs():
        intent = "in" if one.type.constant else "inout"
        return "type(%s), intent(%s) :: %s" % (one.type.name, intent, one.name)
    return "%s, value :: %s" % (base(one.type), one.name)


def prototype(name, result, parameters, declared, binding):
    """The interface of a function in C."""
    kind = "subroutine" if result.kind == "VOID" else "function"
    head = "%s %s(%s) %s" % (kind, name, ", ".join(parameters), binding)
    given = ["import"] + declared + ([] if result.kind == "VOID" else ["%s :: %s" % (base(result), name)])
    return broken(head) + ["    " + line for line in given] + ["end " + kind]


def taken(function):
    """The parameters of a function, with the struct of named arguments."""
    args = api.Type("STRUCT", function.struct)
    return function.parameters + ([api.Variable("args", args, "")] if function.struct else [])


def interface(function, name):
    declared = [c_parameter(function, one) for one in taken(function)]
    return prototype(name, function.result, [one.name for one in taken(function)], declared,
                     "bind(c, name='%s')" % function.symbol)


def is_wrapped(function):
    kinds = {function.result.kind} | {one.type.kind for one in function.parameters}
    return bool(function.struct or counted(function) or kinds & {"TEXT", "BOOL"})


def dummy(function, one):
    """A parameter of a wrapper."""
    if one.type.kind == "TEXT":
        return "character(len=*), intent(in)%s :: %s" % (
            ", optional" * api.may_be_null(function, one.name), one.name)
    if one.type.kind == "BOOL":
        return "logical, intent(in) :: " + one.name
    if one.name in counted(function):
        return "type(c_ptr), intent(in) :: %s(:)" % one.name
    return c_parameter(function, one).replace("value ::", "intent(in) ::")


def passed(function, one):
    """What a wrapper passes on."""
    lists = counted(function)
    if one.type.kind == "TEXT":
        optional = api.may_be_null(function, one.name)
        return "c_" + one.name if optional else "trim(%s) // c_null_char" % one.name
    if one.type.kind == "BOOL":
        return "logical(%s, c_bool)" % one.name
    if one.name in lists.values():
        return "size(%s)" % next(name for name, count in lists.items() if count == one.name)
    return one.name


def wrapper(function):
    """A procedure in Fortran's types around the one in C's."""
    kept = [one for one in function.parameters if one.name not in counted(function).values()]
    texts = [one.name for one in kept if one.type.kind == "TEXT" and api.may_be_null(function, one.name)]
    declared = [dummy(function, one) for one in kept]
    names, given = [one.name for one in kept], [passed(function, one) for one in function.parameters]
    body = ["if (present(%s)) c_%s = trim(%s) // c_null_char" % (name, name, name) for name in texts]
    local = ["character(:), allocatable :: c_" + name for name in texts]
    if function.struct:
        declared.append("type(%s), intent(in), optional :: args" % function.struct)
        names, given = names + ["args"], given + ["c_args"]
        local.append("type(%s) :: c_args" % function.struct)
        body.append("if (present(args)) c_args = args")
    call = "c_%s(%s)" % (function.name, ", ".join(given))
    kind, result, value = returned(function, call)
    return comment(function.about) + broken("%s %s(%s)" % (kind, function.name, ", ".join(names))) + [
        "    " + line for line in declared + result + local + body + broken(value)] + ["end " + kind, ""]


def returned(function, call):
    """Of a wrapper: its kind, the declaration of its result, and the statement that sets it."""
    if function.result.kind == "VOID":
        return "subroutine", [], "call " + call
    types = {"TEXT": ("character(:), allocatable", "gpunn_from_c(%s)"), "BOOL": ("logical", "logical(%s)")}
    kind, value = types.get(function.result.kind, (base(function.result), "%s"))
    return "function", ["%s :: %s" % (kind, function.name)], "%s = %s" % (function.name, value % call)


def interfaces():
    """Of all functions."""
    for function in api.functions():
        if function.name in generics():
            continue
        name = "c_" * is_wrapped(function) + function.name
        yield from [] if is_wrapped(function) else comment(function.about)
        yield from interface(function, name)


def callbacks():
    """The abstract interfaces of functions that C calls, except those of backends and kernels."""
    for struct in api.structs().values():
        if struct.section in api.INNER:
            continue
        for one in struct.fields:
            if one.type.kind == "FUNCTION":
                yield from callback("%s_%s" % (struct.name, one.name), one)
    for function in api.functions():
        for one in function.parameters:
            if one.type.kind == "FUNCTION":
                yield from callback("%s_%s" % (function.name, one.name), one)


def callback(name, one):
    found = api.callback(one.type.name)
    declared = [callback_parameter(each) for each in found.parameters]
    return comment(one.about) + prototype(name, found.result, [each.name for each in found.parameters],
                                          declared, "bind(c)")


# ---- arrays ----


def generics():
    return ["gpunn_" + name for name in TYPED]


def specific(name, dtype, rank):
    return "%s_%s_%d" % (name, dtype.lower(), rank)


def generic(function):
    """A function that takes an address, or an array of several types and ranks."""
    yield from comment(function.about)
    yield "interface " + function.name
    yield from ("    " + line for line in interface(function, "c_" + function.name))
    for dtype, _, _ in ARRAYS:
        yield "    module procedure " + ", ".join(specific(function.name, dtype, rank) for rank in RANKS)
    yield "end interface"
    names = [specific(function.name, dtype, rank) for dtype, _, _ in ARRAYS for rank in RANKS]
    yield from broken("private :: " + ", ".join(names))


def typed(function, dtype, kind, size, rank):
    """A function that takes an array of one type and rank."""
    how = {"gpunn_write": "intent(in), contiguous, target", "gpunn_bind": "pointer, contiguous, intent(in)"}
    name = specific(function, dtype, rank)
    return ["function %s(t, array) result(status)" % name,
            "    type(c_ptr), intent(in) :: t",
            "    %s, %s :: array(%s)" % (kind, how.get(function, "intent(inout), contiguous, target"),
                                         ", ".join(":" * rank)),
            "    integer(c_int) :: status",
            "    status = %s_as(t, GPUNN_%s, c_loc(array), %d * size(array, kind=c_size_t))" %
            (function, dtype, size),
            "end function", ""]


# ---- the module ----


def constants():
    last = ""
    for one in api.constants().values():
        yield from comment(one.about) if one.about != last else []
        yield constant(one)
        last = one.about


def types():
    return [line for one in api.structs().values() for line in struct_lines(one) + [""]]


def procedures():
    for function in api.functions():
        if is_wrapped(function):
            yield from wrapper(function)
    for name in generics():
        for row in ARRAYS:
            for rank in RANKS:
                yield from typed(name, *row, rank)


def module():
    with open(TEMPLATE, encoding="ascii") as file:
        text = string.Template(file.read())
    arrays = [line for one in api.functions() if one.name in generics() for line in generic(one)]
    return text.substitute(
        version=api.constants()["GPUNN_VERSION"].value,
        renamed="\n".join(comment(", ".join(renamed()) + ".")),
        constants=indented(constants(), 1), types=indented(types(), 1).rstrip(),
        callbacks=indented(callbacks(), 2), interfaces=indented(interfaces(), 2),
        generics=indented(arrays, 1), procedures=indented(procedures(), 1).rstrip())


def main(arguments=None):
    command.run(arguments, "fortran", "Fortran", "gpunn.f90", module)


if __name__ == "__main__":
    main()
