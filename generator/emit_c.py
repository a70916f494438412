"""Writes NAME_kernels.h: a model's CPU kernels, the functions that the CUDA kernels share with them, and the
tables of both.

Templates: kernels.h is the file. math.h and math_cuda.h hold functions. loops.h holds what the loops are made
of. map.c and row.c are the loop of one launch. launch.c runs a launch in slices and threads, and then its
final functions. program.c and update.c are a program and an optimizer's step. emit_network.py has templates
of its own."""
import hashlib
import re
import textwrap

from . import (emit_inference, emit_network, emit_network_cuda, emit_training_cuda, scalar, stamp, tables_c,
               template, update)
from .program import SCALAR, WHOLE

BLOCK = 1024   # elements of a map launch per block, for which narrow operands are looked up once
ROW = 4096     # the longest row that is processed in one piece
SHORT = 64     # shorter runs of a narrow operand are copied to a buffer
LEAST = 16384  # minimum elements of a slice
ABI = 7
C_TYPES = {"f32": "float", "bf16": "float", "f16": "float", "i64": "int64_t", "i32": "int32_t",
           "u8": "uint8_t", "bool": "uint8_t"}
# Local names of the templates and of the lines below. No operand may have them.
LOCALS = ("at", "begin", "c", "call", "end", "i", "i_at", "j", "left", "mode", "n", "row", "slices", "space",
          "stat", "sums")


def emit_header(kernel_set):
    return _header(kernel_set, text_stamp(kernel_set))


def text_stamp(kernel_set):
    """A number that ties the .cu file, and objects compiled from it, to this header."""
    return "0x%sull" % hashlib.sha256(_header(kernel_set, "").encode()).hexdigest()[:16]


def _header(kernel_set, text_stamp):
    name = kernel_set.name
    upper = name.upper()
    functions, kernels, plans = [], [], []
    for kernel in kernel_set.tables()[0]:
        for direction, program in programs(kernel):
            functions += [""] + _comment("%s, %s: %s%s" % (kernel.name, direction, kernel.formula,
                                                           _traffic(program)))
            plans += [plan for plan in (program.network, program.step) if plan]
            if program.on_gpus_alone():
                functions += (emit_training_cuda if program.step else emit_network_cuda).functions(kernel_set)
                continue
            if program.network:
                own, text, _ = emit_network.emit_c(kernel_set)
                functions += own.splitlines()
                kernels += [""] + text.splitlines()
                continue
            for number, launch in enumerate(program.launches):
                prefix = "%s_%s_%s_%d" % (name, kernel.name, direction, number)
                for function in scalar.functions(prefix, launch, scalar.is_fast(kernel_set, launch)):
                    functions += function.text.splitlines() + [""]
                functions.pop()
            kernels += [""] + _Program(kernel_set, kernel, direction, program).text().splitlines()
    hashes = emit_inference.hash_functions(plans, name)
    functions += [""] * bool(hashes) + hashes
    for number, one in enumerate(kernel_set.updates):
        functions += ["", "/* %s */" % one["kind"]] + update.step(kernel_set, number).text.splitlines()
        kernels += [""] + update.emit_c(kernel_set, number).splitlines()
    called = "\n".join(functions + kernels)
    values = {"name": name, "fn": upper + "_FN"}
    alone = kernel_set.network is None or kernel_set.network[0].evaluation.on_gpus_alone()
    whole = "" if alone else emit_network.library(name)
    loops = template.needed(_library(name), called + whole) + [""] * bool(whole) + whole.splitlines()
    return template.load(
        "kernels.h", name=name, NAME=upper, abi=str(ABI),
        opening=stamp.lines(kernel_set, name + "_kernels.h"), stamp=text_stamp,
        math_c=template.needed(template.load("math.h", **values), called + "\n".join(loops)),
        math_cuda=template.needed(template.load("math_cuda.h", **values), "\n".join(functions)),
        functions=functions[1:], loops=loops, kernels=kernels[1:],
        tables=tables_c.emit(kernel_set))


def _library(name):
    """The functions that the loops call: loops.h, and those of inference_ops.h for rows of networks."""
    values = {"name": name, "NAME": name.upper()}
    own = template.load("loops.h", block=str(BLOCK), row=str(ROW), **values)
    rows = template.load("inference_ops.h", fn=values["NAME"] + "_FN", space="", products=[], **values)
    return "\n\n".join((own.rstrip("\n"), template.without(rows, own)))


def programs(kernel):
    """(direction, program) for each program of the kernel."""
    return [(direction, getattr(kernel, direction))
            for direction in tables_c.DIRECTIONS if getattr(kernel, direction)]


def _comment(text):
    """Lines of a comment."""
    lines = textwrap.wrap(text.replace("*/", "* /").replace("/*", "/ *"), scalar.WIDTH - 6,
                          break_on_hyphens=False)
    return ("/* %s */" % "\n * ".join(lines)).splitlines()


def _traffic(program):
    """The bytes that a GPU reads and writes in a program, as text."""
    fixed, per_batch = program.bytes_per_batch
    parts = ["%d per sample" % per_batch] * bool(per_batch) + [str(fixed)] * bool(fixed)
    return "; bytes: " + " and ".join(parts) if parts else ""


def _times(expression, factor):
    return expression if factor == 1 else "%s * %d" % (expression, factor)


def _affine(fixed, per_batch, batch="call->batch"):
    return str(fixed) if not per_batch else _times(batch, per_batch)


def _index(place, element, stride=1):
    """The index in the operand with this place for the launch's element `element`."""
    div, mod = place
    if mod == 1:
        return "0"
    text = element if div == 1 else "%s / %d" % (element, div)
    return _times(text + (" %% %d" % mod if mod else ""), stride)


class _Launch:
    """The loop of one launch: how its operands are read and where its results go."""

    def __init__(self, owner, prefix, launch):
        self.owner, self.prefix, self.launch = owner, prefix, launch
        self.set_name, self.upper = owner.kernel_set.name, owner.kernel_set.name.upper()
        functions = scalar.functions(prefix, launch, scalar.is_fast(owner.kernel_set, launch))
        self.finals = [one for one in functions if one.scope == "final"]
        self.body = [one for one in functions if one.scope != "final"]
        self.written = {store.operand.name for store in launch.stores + launch.finals}
        offset, self.offsets = 0, {}
        for one in launch.sums:
            self.offsets[one.number] = offset
            offset += one.count
        self.width = (offset + 7) // 8 * 8
        # long rows are processed in pieces
        self.pieces = launch.family == "row" and launch.domain.inner > ROW
        self.room = min(ROW, launch.domain.inner) if launch.family == "row" else BLOCK
        used = [slot.key for one in self.body for slot in one.parameters if slot.kind in ("load", "column")]
        self.used = used + [store.operand for store in launch.stores]
        self.begin()

    def begin(self):
        """Begins a new C function or block, with no names in use."""
        self.names = scalar.Names()
        self.names.taken.update(LOCALS)
        self.variables, self.locals = {}, {}
        self.head, self.buffers = [], []

    # ---- names ---------------------------------------------------------------------------------------------
    def pointer(self, operand, lines=None):
        """The variable with the operand's pointer. It is declared at the first call."""
        if operand.name not in self.variables:
            name = self.variables[operand.name] = self.names.new(operand.name)
            kind = ("" if operand.name in self.written else "const ") + C_TYPES[operand.dtype]
            where = "(%s *)call->data[%d]" % (kind, self.owner.number(operand))
            if operand.role == "stat":
                where = "stat[%d]" % operand.index
            (self.head if lines is None else lines).append("%s *const %s = %s;" % (kind, name, where))
        return self.variables[operand.name]

    def buffer(self, name, room=None):
        name = self.names.new(name)
        self.buffers.append("float %s[%s];" % (name, self.room if room is None else room))
        return name

    def count(self, key, lines):
        fixed, per_batch = key
        if ("count", key) not in self.locals:
            name = self.locals["count", key] = self.names.new("elements")
            value = " + ".join(filter(None, [str(fixed) if fixed else "", _times("call->batch", per_batch)]))
            lines.append("const float %s = (float)(%s);" % (name, value))
        return self.locals["count", key]

    @staticmethod
    def number(operand, element):
        """The C expression of the operand's value, as a float."""
        if operand.dtype == "bool":
            return "(float)(%s != 0)" % element
        return element if C_TYPES[operand.dtype] == "float" else "(float)%s" % element

    def one(self, operand, index):
        text = self.number(operand, "%s[%s]" % (self.variables[operand.name], index))
        if operand.optional and operand.name not in self.written:
            return "%s != NULL ? %s : %s" % (self.variables[operand.name], text,
                                             scalar.number(operand.absent))
        return text

    # ---- operands of elements ------------------------------------------------------------------------------
    def absent(self, operand):
        """A buffer filled with the value of an absent optional operand."""
        key = "absent", operand.name
        if key not in self.locals:
            self.locals[key] = self.buffer(operand.name + "_absent",
                                           "%s_BLOCK" % self.upper if self.room < BLOCK else None)
            fill = "%s_fill(%s, %s);" % (self.set_name, self.locals[key], scalar.number(operand.absent))
            if self.room > BLOCK:
                fill = "for (int j = 0; j < %d; ++j) %s[j] = %s;" % (
                    self.room, self.locals[key], scalar.number(operand.absent))
            self.head.append(fill)
        return self.locals[key]

    @staticmethod
    def streams(operand):
        """Whether the operand is read in place, element by element."""
        plain = C_TYPES[operand.dtype] == "float" or not operand.optional
        return operand.place == WHOLE and operand.stride == 1 and plain

    def stream(self, operand, offset, lines):
        """The C expression of element j of a contiguous run that begins at `offset`."""
        name = self.variables[operand.name]
        if operand.optional and operand.name not in self.written:
            at = self.names.new(operand.name + "_at")
            lines.append("const float *const %s = %s != NULL ? %s + %s : %s;" %
                         (at, name, name, offset, self.absent(operand)))
            return "%s[j]" % at
        return self.number(operand, "%s[%s]" % (name, "j" if offset == "0" else offset + " + j"))

    def laid_out(self, operand, element, lines):
        """Copies an operand that changes often to a contiguous buffer."""
        name, (div, mod) = self.variables[operand.name], operand.place
        plain = C_TYPES[operand.dtype] == "float" and operand.stride == 1
        buffer = self.buffer(operand.name + "_block")
        if plain and div == 1:
            fill = "%s_repeat(%s, %s, %s, n, %d);" % (self.set_name, buffer, name, element, mod)
        elif plain:
            fill = "%s_expand(%s, %s, %s, n, %d, %d);" % (self.set_name, buffer, name, element, div, mod)
        else:
            index = _index((div, mod), "(%s + j)" % element, operand.stride)
            fill = "for (int j = 0; j < n; ++j) %s[j] = %s;" % (
                buffer, self.number(operand, "%s[%s]" % (name, index)))
        if operand.optional:
            lines.append("if (%s == NULL)" % name)
            lines.append("    for (int j = 0; j < n; ++j) %s[j] = %s;" %
                         (buffer, scalar.number(operand.absent)))
            lines += ["else", "    " + fill]
        else:
            lines.append(fill)
        return buffer + "[j]"

    def keep(self, slot, element, lines):
        random_stream, p = slot.key
        room = "(%d + 255) / 256 * 256 + 256" % self.room
        name, buffer = self.names.new(slot.name), self.buffer(slot.name + "_block", room)
        lines.append("const float *const %s = %s_keep(call, %d, %du, %s, n, %s);" % (
            name, self.set_name, random_stream, int((1 - p) * 65536 + 0.5), element, buffer))
        return name + "[j]"

    def target(self, operand, offset, lines, after):
        """Where element j of a stored operand goes. An operand that may be NULL, or accumulates, passes
        through a buffer."""
        name = self.variables[operand.name]
        maybe, added = operand.optional or operand.shares is not None, operand.accumulate
        if not maybe and not added:
            return "&%s[%s + j]" % (name, offset)
        block, at = self.buffer(operand.name + "_block"), self.names.new(operand.name + "_at")
        tests = ["%s == NULL" % name] * maybe + ["call->accumulate[%d]" % self.owner.number(operand)] * added
        lines.append("float *const %s = %s ? %s : %s + %s;" % (at, " || ".join(tests), block, name, offset))
        if added:
            test = "%s == %s" % (at, block) + " && %s != NULL" % name * maybe
            after.append("if (%s) %s_add(%s + %s, %s, n);" % (test, self.set_name, name, offset, block))
        return "&%s[j]" % at

    def copied(self, operand):
        """The operand of which this one, which may be NULL, is a plain copy. None: it is no copy."""
        value = next(store.value for store in self.launch.stores if store.operand is operand)
        if not (operand.optional or operand.shares) or value.op != "load":
            return None
        source = value.attr
        plain = self.streams(source) and C_TYPES[source.dtype] == "float" and not source.optional
        return source if plain else None

    def copy(self, operand, source, offset, lines):
        """Writes the copy ahead of the loop, whose own result is then unused."""
        name, unused = self.variables[operand.name], self.names.new(operand.name + "_unused")
        to, number = ("%s + %s, %s + %s" % (name, offset, self.variables[source.name], offset),
                      self.owner.number(operand))
        lines.append("float %s;" % unused)
        if operand.accumulate:
            lines.append("if (%s != NULL && call->accumulate[%d]) %s_add(%s, n);" %
                         (name, number, self.set_name, to))
        test = " && !call->accumulate[%d]" % number if operand.accumulate else ""
        lines.append("if (%s != NULL%s) %s_copy(%s, n);" % (name, test, self.set_name, to))
        return "&" + unused

    def sum_up(self, one, buffer, element):
        """The C line that adds a buffer of n contributions to a sum."""
        offset = self.offsets[one.number]
        sums = "sums + %d" % offset if offset else "sums"
        div, mod = one.place
        if one.place == SCALAR:
            return "sums[%d] += (double)%s_sum(%s, n);" % (offset, self.set_name, buffer)
        if div == 1:
            return "%s_add_columns(%s, %s, %s, n, %d);" % (self.set_name, sums, buffer, element, mod)
        return "%s_add_channels(%s, %s, %s, n, %d, %d);" % (self.set_name, sums, buffer, element, div, mod)

    def store_one(self, operand, index, value):
        """Stores one number."""
        name = self.variables[operand.name]
        place = "%s[%s]" % (name, index)
        text = value
        if operand.accumulate:
            text = "call->accumulate[%d] ? %s + %s : %s" % (self.owner.number(operand), place, value, value)
        test = "if (%s != NULL) " % name if operand.optional or operand.shares is not None else ""
        return "%s%s = %s;" % (test, place, text)

    # ---- texts ---------------------------------------------------------------------------------------------
    @staticmethod
    def call_lines(function, arguments):
        return scalar.wrapped(function.name + "(", arguments, ");", indent=16)

    def uses_stats(self):
        return any(operand.role == "stat" for operand in self.used)

    def loop_text(self):
        """The C function that runs one slice of the launch."""
        self.begin()
        for operand in self.used:
            self.pointer(operand)
        return self.map_text() if self.launch.family == "map" else self.row_text()

    def map_text(self):
        lines, after, function = [], [], self.body[0]
        run = self.run(function)
        lines.append("const int n = %s_least(%s_BLOCK, end - i);" % (self.set_name, self.upper))
        if run:
            left = "const int left = %s_least(%s_BLOCK, end - i)" % (self.set_name, self.upper)
            lines = [left + ", n = %s_least(left, %d - i %% %d);" % (self.set_name, run, run)]
        arguments = []
        for slot in function.parameters:
            if slot.kind == "count":
                arguments.append(self.count(slot.key, self.head))
                continue
            if slot.kind == "keep":
                arguments.append(self.keep(slot, "i", lines))
                continue
            operand = slot.key
            div, mod = operand.place
            if self.streams(operand):
                arguments.append(self.stream(operand, "i", lines))
            elif mod == 1:
                arguments.append(self.single(operand, "0", self.head))
            elif run and div > 1 and div % run == 0:
                arguments.append(self.single(operand, _index((div, mod), "i", operand.stride), lines))
            elif run and div == 1 and mod % run == 0 and operand.stride == 1:
                arguments.append(self.stream(operand, "i %% %d" % mod, lines))
            else:
                arguments.append(self.laid_out(operand, "i", lines))
        arguments += self.element_results(function, "i", lines, after)
        return template.load("map.c", comment=self.comment(), function=self.prefix, NAME=self.upper,
                             operands=self.opening(),
                             places=lines, after=after, call=self.call_lines(function, arguments))

    def comment(self):
        return "%s, %s: %s" % (self.owner.kernel.name, self.owner.direction, ", ".join(
            [store.operand.name
             for store in self.launch.stores] + ["sum%d" % one.number for one in self.launch.sums]))

    def opening(self):
        """The declarations: buffers stand before the lines that fill them."""
        unused = ["(void)call;"] * (not any("call->" in line for line in self.head))
        unused += ["(void)stat;"] * (not self.uses_stats()) + ["(void)sums;"] * (not self.launch.sums)
        return self.buffers + self.head + unused

    def single(self, operand, index, lines):
        name = self.names.new(operand.name + "_0")
        lines.append("const float %s = %s;" % (name, self.one(operand, index)))
        return name

    def run(self, function):
        """The elements after which some narrow operand starts anew. None: none does, or they do too often."""
        periods = []
        for slot in function.parameters:
            if slot.kind == "load":
                div, mod = slot.key.place
                period = div if div > 1 else mod if slot.key.stride == 1 else 0
                if period >= SHORT:
                    periods.append(period)
        return min(periods) if periods else None

    def element_results(self, function, element, lines, after):
        """The arguments for the results of a function of elements, from `element` on. Lines that use the
        results go to `after`."""
        arguments = []
        for slot in function.results:
            if slot.kind == "store":
                source = self.copied(slot.key)
                arguments.append(self.target(slot.key, element, lines, after) if source is None else
                                 self.copy(slot.key, source, element, lines))
            else:
                one = next(one for one in self.launch.sums if one.number == slot.key)
                buffer = self.buffer("sum%d_block" % slot.key)
                arguments.append("&%s[j]" % buffer)
                after.append(self.sum_up(one, buffer, element))
        return arguments

    def row_text(self):
        inner, body = self.launch.domain.inner, []
        self.shared = {}  # (kind, key): expression of a parameter that is constant over the row
        self.row_streams = {}  # the same for elements of the row
        element = "i_at" if self.pieces else "i"
        reductions = {one.number: one for one in scalar.reductions(self.launch)}
        for function in self.body:
            if function.scope == "row":
                self.row_function(function, body)
            else:
                self.row_elements(function, element, body, reductions)
        text = "\n".join(body)
        if not self.pieces and re.search(r"\bn\b", text):
            self.head.append("const int n = %d;" % inner)
        start = ["const int64_t i = %s;" % _times("row", inner)] if re.search(r"\bi\b", text) else []
        return template.load("row.c", comment=self.comment(), function=self.prefix, NAME=self.upper,
                             operands=self.opening(), body=start + body)

    def row_value(self, slot, lines):
        """The C expression of a parameter that is constant over a row."""
        key = slot.kind, getattr(slot.key, "name", slot.key)
        if key in self.shared:
            return self.shared[key]
        if slot.kind == "count":
            self.shared[key] = self.count(slot.key, self.head)
        else:
            operand, inner = slot.key, self.launch.domain.inner
            div, mod = operand.place
            if mod == 1:
                self.shared[key] = self.single(operand, "0", self.head)
            else:
                self.shared[key] = self.single(operand, _index((div // inner, mod), "row", operand.stride),
                                               lines)
        return self.shared[key]

    def row_function(self, function, body):
        arguments, after = [self.row_value(slot, body) for slot in function.parameters], []
        for slot in function.results:
            value = self.names.new(slot.name + "_value" if slot.kind == "store" else slot.name)
            body.append("float %s;" % value)
            arguments.append("&" + value)
            if slot.kind == "row":
                self.shared["row", slot.key] = value
            elif slot.kind == "sum":
                after.append("sums[%d] += (double)%s;" % (self.offsets[slot.key], value))
            else:
                div, mod = slot.key.place
                after.append(self.store_one(slot.key, _index((div // self.launch.domain.inner, mod), "row"),
                                            value))
        body += self.call_lines(function, arguments) + after

    def row_elements(self, function, element, body, reductions):
        inner, arguments, lines, after = self.launch.domain.inner, [], [], []
        offset = "at" if self.pieces else "0"
        if not self.pieces:
            lines = body
        for slot in function.parameters:
            if (slot.kind in ("reduction", "row", "count") or
                (slot.kind == "load" and scalar.of_row(slot.key.place, inner))):
                arguments.append(self.row_value(slot, body))
            elif slot.kind == "column":
                column = self.column(slot.key, body)
                arguments.append("(float)(%sj == %s)" % ("at + " if self.pieces else "", column))
            else:
                # A whole row looks an operand up once, pieces of a row once per function.
                key = slot.kind, getattr(slot.key, "name", slot.key)
                if self.pieces or key not in self.row_streams:
                    self.row_streams[key] = self.row_stream(slot, element, offset, lines)
                arguments.append(self.row_streams[key])
        totals = []
        for slot in function.results:
            if slot.kind == "reduction":
                one = reductions[slot.key]
                buffer, total = (self.buffer("terms%d" % slot.key),
                                 self.names.new("%s%d" % (one.kind, slot.key)))
                arguments.append("&%s[j]" % buffer)
                self.shared["reduction", slot.key] = total
                totals.append((one.kind, total, buffer))
        results = function._replace(
            results=tuple(slot for slot in function.results if slot.kind != "reduction"))
        arguments += self.element_results(results, element, lines, after)
        loop = ["%s_VECTOR" % self.upper, "for (int j = 0; j < n; ++j)"]
        loop += ["    " + line for line in self.call_lines(function, arguments)]
        if not self.pieces:
            body += loop + after
            for kind, total, buffer in totals:
                reduce = {"sum": "sum", "max": "highest"}[kind]
                body.append("const float %s = %s_%s(%s, n);" % (total, self.set_name, reduce, buffer))
            return
        for kind, total, buffer in totals:
            if kind == "sum":
                body.append("double %s_so_far = 0;" % total)
                after.append("%s_so_far += (double)%s_sum(%s, n);" % (total, self.set_name, buffer))
            else:
                body.append("float %s = -INFINITY;" % total)
                after.append("%s = %s_max(%s, %s_highest(%s, n));" %
                             (total, self.set_name, total, self.set_name, buffer))
        body.append("for (int at = 0, n; at < %d; at += n) {" % inner)
        body.append("    const int64_t i_at = i + at;")
        body.append("    n = %s_least(%s_ROW, %d - at);" % (self.set_name, self.upper, inner))
        body += ["    " + line for line in lines + loop + after] + ["}"]
        for kind, total, _ in totals:
            if kind == "sum":
                body.append("const float %s = (float)%s_so_far;" % (total, total))

    def column(self, label, body):
        key = "column", label.name
        if key not in self.shared:
            name, inner = self.variables[label.name], self.launch.domain.inner
            column = self.shared[key] = self.names.new(label.name + "_column")
            index = _index((label.place[0] // inner, label.place[1]), "row", label.stride)
            body.append("const int %s = %s_column((int64_t)%s[%s], %d);" %
                        (column, self.set_name, name, index, inner))
        return self.shared[key]

    def row_stream(self, slot, element, offset, lines):
        if slot.kind == "keep":
            return self.keep(slot, element, lines)
        operand, inner = slot.key, self.launch.domain.inner
        div, mod = operand.place
        if self.streams(operand):
            return self.stream(operand, element, lines)
        if div == 1 and mod and mod % inner == 0 and operand.stride == 1:
            start = "0" if mod == inner else "i %% %d" % mod
            return self.stream(operand, " + ".join(part for part in (start, offset) if part != "0") or "0",
                               lines)
        return self.laid_out(operand, element, lines)

    # ---- around the loop -----------------------------------------------------------------------------------
    def slices(self, batch):
        """The number of slices, as a C expression."""
        domain = self.launch.domain
        least = max(LEAST, 32 * max([one.count for one in self.launch.sums], default=0))
        return "%s_slices(%s, %d)" % (self.set_name, _affine(domain.fixed, domain.per_batch, batch), least)

    def launch_lines(self):
        domain, inner = self.launch.domain, self.launch.domain.inner if self.launch.family == "row" else 1
        finals = []
        for function in self.finals:
            finals += self.final_lines(function)
        return template.load(
            "launch.c", name=self.set_name, function=self.prefix, slices=self.slices("call->batch"),
            grain=str(self.grain()), count=_affine(domain.fixed // inner, domain.per_batch // inner),
            stat="stat" if self.uses_stats() else "NULL",
            sums="sums" if self.launch.sums else "NULL", width=str(self.width), finals=finals).splitlines()

    def grain(self):
        """A slice has a multiple of this number of elements or rows."""
        return 1 if self.launch.family == "row" else self.run(self.body[0]) or 16

    def final_lines(self, function):
        self.begin()
        place = function.results[0].key.place
        lines, arguments, stores, body = [], [], [], []
        for slot in function.parameters:
            if slot.kind == "total":
                one = next(one for one in self.launch.sums if one.number == slot.key)
                index = "" if one.place == SCALAR else " + c"
                offset = " + %d" % self.offsets[one.number] if self.offsets[one.number] else ""
                arguments.append("%s_total(sums%s%s, slices, %d)" %
                                 (self.set_name, offset, index, self.width))
            elif slot.kind == "count":
                arguments.append(self.count(slot.key, lines))
            else:
                name = self.pointer(slot.key, lines)
                index = "0" if slot.key.place == SCALAR else _times("c", slot.key.stride)
                value = self.names.new(slot.key.name + "_0")
                body.append("const float %s = %s;" % (value, self.one(slot.key, index)))
                arguments.append(value)
        for slot in function.results:
            self.pointer(slot.key, lines)
            value = self.names.new(slot.name + "_value")
            body.append("float %s;" % value)
            arguments.append("&" + value)
            stores.append(self.store_one(slot.key, "0" if place == SCALAR else "c", value))
        inside = body + self.call_lines(function, arguments) + stores
        if place == SCALAR:
            return ["{"] + ["    " + line for line in lines + inside] + ["}"]
        head = ["{"] + ["    " + line for line in lines]
        loop = (["    for (int64_t c = 0; c < %d; ++c) {" % place[1]] +
                ["        " + line for line in inside] + ["    }"])
        return head + loop + ["}"]


class _Program:
    """A program's launches, in order, and its workspace. The workspace holds scratch operands, then the sums
    of the current launch."""

    def __init__(self, kernel_set, kernel, direction, program):
        self.kernel_set, self.kernel, self.direction, self.program = kernel_set, kernel, direction, program
        self.function = "%s_%s_%s" % (kernel_set.name, kernel.name, direction)
        self.numbers = {operand.name: i for i, operand in enumerate(program.operands)}
        self.stats = sorted((operand for operand in program.operands if operand.role == "stat"),
                            key=lambda one: one.index)
        self.launches = [_Launch(self, "%s_%d" % (self.function, i), launch)
                         for i, launch in enumerate(program.launches)]

    def number(self, operand):
        return self.numbers[operand.name]

    def text(self):
        texts, lines = [], []
        for launch in self.launches:
            texts.append(launch.loop_text())
            lines += launch.launch_lines()
        texts.append(template.load("program.c", function=self.function, checks=self.checks(),
                                   memory=self.memory(), launches=lines, space=self.space()))
        return "\n".join(texts)

    def room(self, stat, batch):
        return "%s_room(%s, sizeof(float))" % (self.kernel_set.name, _affine(*stat.count, batch=batch))

    def memory(self):
        """C lines that assign the workspace."""
        sums = any(one.launch.sums for one in self.launches)
        lines = ["char *space = (char *)call->workspace;"] * bool(self.stats or sums)
        lines += ["float *stat[%d];" % len(self.stats)] * bool(self.stats)
        for stat in self.stats:
            lines += ["stat[%d] = (float *)(void *)space;" % stat.index,
                      "space += %s;" % self.room(stat, "call->batch")]
        return lines + ["double *const sums = (double *)(void *)space;"] * sums

    def space(self):
        """C lines that compute the size of the workspace."""
        lines, sums = ["(void)batch;", "(void)threads;"], [one for one in self.launches if one.launch.sums]
        if not self.stats and not sums:
            return lines + ["return 0;"]
        lines += ["size_t bytes = 0, most = 0, sums;"] if sums else ["size_t bytes = 0;"]
        lines += ["bytes += %s;" % self.room(stat, "batch") for stat in self.stats]
        for one in sums:
            lines += ["sums = %s;" % self.room_of(one), "if (sums > most) most = sums;"]
        return lines + ["return bytes + most;" if sums else "return bytes;"]

    def room_of(self, launch):
        return "%s_room(%s * (int64_t)%d, sizeof(double))" % (
            self.kernel_set.name, launch.slices("batch"), launch.width)

    def checks(self):
        """C lines that return an error for class labels out of range, before anything is written."""
        ignored = []
        for text, _ in self.kernel.nodes:
            match = re.match(r"(?:cross_entropy|nll)\b.* ignore_index=(-?\d+)", text)
            if match and match.group(1) not in ignored:
                ignored.append(match.group(1))
        lines, done = [], set()
        slots = [(slot, launch) for launch in self.launches for function in launch.body
                 for slot in function.parameters]
        for slot, launch in slots:
            if slot.kind != "column" or slot.key.name in done:
                continue
            done.add(slot.key.name)
            number, kind = self.number(slot.key), C_TYPES[slot.key.dtype]
            test = "".join(" && label != %s" % value for value in ignored)
            inner = launch.launch.domain.inner
            lines += ["const %s *const labels%d = (const %s *)call->data[%d];" % (kind, number, kind, number),
                      "for (int64_t i = 0; i < %s; ++i) {" % _affine(*slot.key.count),
                      "    const int64_t label = (int64_t)labels%d[i];" % number,
                      "    if ((label < 0 || label >= %d)%s) return GPUNN_ERR_ARGUMENT;" % (inner, test), "}"]
        return lines
