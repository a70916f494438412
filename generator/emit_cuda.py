"""Writes NAME_kernels.cu: the CUDA kernels of a kernel set, and the functions that launch them.

A launch of a program becomes one kernel, made from a template. What follows from its sums is computed by the
last block or, where there are many sums, by one more kernel. Templates:
    map.cu       single elements, and sums of all of them
    columns.cu   the same with a sum for each column of a matrix
    channels.cu  the same with a sum for each channel of images in channels-first order
    row.cu       rows that stay in registers; row_loop.cu: rows that are too long for that
    final.cu     the last step of many sums
    alone.cu     sums that each block of the next launch computes for itself, which saves a launch
    update.cu    an optimizer's step
    network.cu   a small network, in emit_network_cuda.py
    training.cu  a training step of one, in emit_training_cuda.py
The functions of scalar.py do the arithmetic; NAME_kernels.h holds them. This file loads and stores their
operands."""
import re

from . import emit_c, emit_network_cuda, emit_training_cuda, scalar, stamp, template, update
from .program import SCALAR, WHOLE
from .schedule import (  # noqa: F401
    BYTES, MOST_ALONE, EmitError, finishes, leads, operands, placed, power_of_2, shape_of, streams, unique)

DIRECTIONS = ("evaluation", "forward", "backward")
TYPES = {"f32": "float", "bf16": "bf16", "f16": "f16", "i64": "int64_t", "i32": "int32_t", "u8": "uint8_t",
         "bool": "boolean"}


def count_text(fixed, per_batch):
    """A number of elements, as a C expression of batch."""
    if not per_batch:
        return "(size_t)%d" % fixed
    return ("%d + " % fixed if fixed else "") + ("(size_t)batch" if per_batch == 1 else
                                                 "(size_t)batch * %d" % per_batch)


def ascii_text(text):
    """The text in ASCII, as a C comment may hold it."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("\\", "/")


def comment(text, width=104):
    lines, line = [], ""
    for word in ascii_text(text).split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = ""
        line += (" " if line else "") + word
    return "\n * ".join(lines + [line])


class LaunchEmitter:
    """The kernel of one launch. n: the C expression of its number of elements in the host's code."""

    def __init__(self, prefix, launch, fast, schedule, formula):
        self.prefix, self.launch, self.formula = prefix, launch, formula
        self.kernel = prefix + "_kernel"
        self.shape = shape_of(launch, schedule)
        self.inner = launch.domain.inner  # elements of a row
        functions = scalar.functions(prefix, launch, fast)
        self.finals = [one for one in functions if one.scope == "final"]
        self.steps = [one for one in functions if one.scope != "final"]
        self.element = None  # the last function of elements, if it reduces nothing over rows
        for last in self.steps[-1:]:
            if last.scope == "element" and all(slot.kind != "reduction" for slot in last.results):
                self.element = self.steps.pop()
        self.read, self.written = operands(launch)
        self.placed = placed(launch)
        if self.shape.template == "columns":
            self.inner = self.placed[0].count
        self.scalars = [one for one in launch.sums if one.place == SCALAR]
        self.floats = sum(one.count for one in self.placed)  # sums of a slice
        self.finishes = finishes(launch)
        # the launch whose sums this one computes first; whether this is such a launch
        self.ahead, self.is_ahead = None, False
        parameters = [slot for function in functions for slot in function.parameters]
        self.counts = unique([slot.key for slot in parameters if slot.kind == "count"])
        self.random_streams = unique([slot.key for slot in parameters if slot.kind == "keep"])

    # ---- operands ------------------------------------------------------------------------------------------
    def all_operands(self):
        return self.read + [one for one in self.written if one not in self.read]

    def members(self):
        lines = []
        for one in self.all_operands():
            lines.append("%s%s *%s;" % ("" if one in self.written else "const ", TYPES[one.dtype],
                                        member(one)))
        lines += ["%s *half_%s;" % (TYPES[one.half], one.name) for one in self.written if one.half]
        lines += ["bool add_%s;" % one.name for one in self.written if one.accumulate]
        lines += ["float count%d;" % i for i in range(len(self.counts))]
        if self.random_streams:
            lines.append("const uint64_t *random;")
            lines += ["unsigned random_stream%d;" % k for k, _ in self.random_streams]
        if self.placed:
            lines.append("float *partial; /* [slice][sum][%d] */" % self.placed[0].count)
        if self.scalars:
            lines.append("float *scalars; /* [block][sum] */")
        if self.finishes:
            lines.append("unsigned *counters;")
        if self.ahead:
            lines += ["%s_operands ahead;" % self.ahead.kernel,
                      "unsigned ahead_count; /* 0: its results exist already */"]
        return lines

    def where(self, one):
        """How the kernel reads an operand: once ("scalar"), once for a row, column or channel, as a stream,
        or at an index of its own for each pack ("narrow")."""
        if one.place[1] == 1:
            return "scalar"
        if self.shape.template in ("row", "row_loop", "columns"):
            if one.place[0] % self.inner == 0:
                return "row"
            if one.place == (1, self.inner) and one.stride == 1:
                return "fixed" if self.shape.template == "columns" else "column"
        if self.shape.template == "channels" and one.place == self.placed[0].place:
            return "channel"
        return "stream" if one.place == WHOLE and one.stride == 1 else "narrow"

    def of_function(self, function, *kinds):
        """The operands that a function reads in one of these ways."""
        keys = [slot.key for slot in function.parameters if slot.kind == "load"]
        return [one for one in keys if self.where(one) in kinds]

    def all_functions(self):
        return self.steps + ([self.element] if self.element else [])

    def single(self, one, index):
        """The C expression of one number in memory, as a float."""
        text = "number(o.%s[%s])" % (member(one), index)
        return "o.%s ? %s : %s" % (member(one), text, scalar.number(one.absent)) if one.optional else text

    def scalar_loads(self):
        every = unique([one for function in self.all_functions()
                        for one in self.of_function(function, "scalar")])
        lines, made = [], []
        if self.ahead:
            made = [slot.key for slot in self.ahead.finals[0].results]
            names = ["in_" + one.name for one in made]
            lines = ["float %s;" % ", ".join(names), "if (o.ahead_count > 0)",
                     "    %s_alone<%d>(o.ahead, o.ahead_count, %s);" % (
                         self.ahead.kernel, self.shape.threads, ", ".join(names)), "else {"]
            lines += ["    in_%s = %s;" % (one.name, self.single(one, "0")) for one in made] + ["}"]
        return lines + ["const float in_%s = %s;" % (one.name, self.single(one, "0"))
                        for one in every if one not in made]

    def place_loads(self):
        """Loads for the channel or column of a thread, which stays the same."""
        lines = []
        for one in self.of_function(self.element, "channel", "fixed"):
            if self.where(one) == "channel":
                lines.append("const float in_%s = %s;" %
                             (one.name, self.single(one, index_text("channel", 1, 0, one.stride))))
            else:
                lines.append("const pack<V, %s> in_%s = %s;" %
                             (TYPES[one.dtype], one.name, self.load(one, "column")))
        return lines

    def row_loads(self):
        labels = unique([slot.key for function in self.all_functions()
                         for slot in function.parameters if slot.kind == "column"])
        lines = ["const int64_t at_%s = (int64_t)o.%s[%s];" % (one.name, member(one), self.row_index(one))
                 for one in labels]
        every = [one for function in self.all_functions() for one in self.of_function(function, "row")]
        return lines + ["const float in_%s = %s;" % (one.name, self.single(one, self.row_index(one)))
                        for one in unique(every)]

    def row_index(self, one):
        return "0" if one.place[1] == 1 else index_text("row", one.place[0] // self.inner, one.place[1],
                                                        one.stride)

    def load(self, one, index):
        if one.optional:
            return "load_if<V>(o.%s != NULL, o.%s, %s)" % (member(one), member(one), index)
        return "load<V>(o.%s, %s)" % (member(one), index)

    def packs_read(self, functions, without=()):
        """The operands that the functions read by packs, without duplicates."""
        ways = ("stream", "column", "narrow")
        return unique([one for function in functions
                       for one in self.of_function(function, *ways) if one not in without])

    @staticmethod
    def keeps(functions):
        return unique([slot.key for function in functions
                       for slot in function.parameters if slot.kind == "keep"])

    def loads(self, functions, olds=()):
        """Loads for pack i."""
        lines = []
        for one in self.packs_read(functions):
            if self.where(one) == "narrow":
                value = "narrow<V, %d, %d, %d>(o.%s, i)" % (one.place + (one.stride, member(one)))
                if one.optional:
                    value = "o.%s ? %s : same<V>(%s)" % (member(one), value, scalar.number(one.absent))
                lines.append("const numbers<V> in_%s = %s;" % (one.name, value))
            else:
                value = self.load(one, "column" if self.where(one) == "column" else "i")
                lines.append("const pack<V, %s> in_%s = %s;" % (TYPES[one.dtype], one.name, value))
        for one in olds:
            lines.append("const pack<V, %s> old_%s = load_if<V>(o.add_%s, o.%s, i);" % (
                TYPES[one.dtype], one.name, one.name, member(one)))
        return lines + ["const numbers<V> keep%d = kept<V, %d>(o.random, o.random_stream%d, i);" %
                        (k, scalar.threshold(p), k) for k, p in self.keeps(functions)]

    def loads_of_all(self, packs, size, olds=(), keeps=()):
        """Loads of `size` packs, at at[] or column_of[]. They do not wait for each other and have few
        branches."""
        lines = []
        for one in packs:
            narrow, place = self.where(one) == "narrow", "column_of" if self.where(one) == "column" else "at"
            if narrow:
                lines.append("numbers<V> in_%s[%s];" % (one.name, size))
                text = "narrow_each<%d, %d, %d>(in_%s, o.%s, at);" % (
                    one.place + (one.stride, one.name, member(one)))
            else:
                lines.append("pack<V, %s> in_%s[%s]%s;" %
                             (TYPES[one.dtype], one.name, size, " = {}" if one.optional else ""))
                text = "load_each(in_%s, o.%s, %s);" % (one.name, member(one), place)
            lines.append(("if (o.%s) " % member(one) if one.optional else "") + text)
            if narrow and one.optional:
                fill = "for (int k = 0; k < %s; k++) in_%s[k] = same<V>(%s);" % (
                    size, one.name, scalar.number(one.absent))
                lines += ["else", "    " + fill]
        for one in olds:
            lines += ["pack<V, %s> old_%s[%s] = {};" % (TYPES[one.dtype], one.name, size),
                      "if (o.add_%s) load_each(old_%s, o.%s, at);" % (one.name, one.name, member(one))]
        for k, p in keeps:
            lines += ["numbers<V> keep%d[%s];" % (k, size),
                      "kept_each<%d>(keep%d, o.random, o.random_stream%d, at);" % (scalar.threshold(p), k, k)]
        return lines

    def index(self, lines):
        """Defines i, the pack's index, if the lines use it."""
        if not any(re.search(r"\bi\b", line) for line in lines):
            return []
        if self.shape.template == "channels":
            return ["const unsigned i = (at / PACKS * %d + channel) * PACKS + at %% PACKS;" %
                    self.placed[0].count]
        if self.shape.template == "columns":
            return ["const unsigned i = row * PACKS + column;"]
        return ["const size_t i = (size_t)row * PACKS + column;"]

    # ---- calls ---------------------------------------------------------------------------------------------
    def argument(self, slot, subscript):
        if slot.kind == "load":
            where = self.where(slot.key)
            if where in ("scalar", "row", "channel"):
                return "in_" + slot.key.name
            text = "in_%s%s[j]" % (slot.key.name, "" if where == "fixed" else subscript)
            if slot.key.optional and slot.key.absent != 0 and where != "narrow":
                return "o.%s ? %s : %s" % (member(slot.key), text, scalar.number(slot.key.absent))
            return text
        if slot.kind == "keep":
            return "keep%d%s[j]" % (slot.key[0], subscript)
        if slot.kind == "column":
            return "at_%s == (int64_t)column * V + j ? 1.0f : 0.0f" % slot.key.name
        return self.shared_argument(slot)

    def shared_argument(self, slot):
        if slot.kind == "count":
            return "o.count%d" % self.counts.index(slot.key)
        return {"reduction": "reduced%d", "row": "row%d", "total": "total%d"}[slot.kind] % slot.key

    def element_call(self, subscript):
        """The call for element j, and the lines that use its sums."""
        if self.element is None:
            return []
        sums = [slot for slot in self.element.results if slot.kind == "sum"]
        arguments = [self.argument(slot, subscript) for slot in self.element.parameters]
        for slot in self.element.results:
            arguments.append("&out_%s[j]" % slot.key.name if slot.kind == "store" else "&add%d" % slot.key)
        lines = ["float %s;" % ", ".join("add%d" % slot.key for slot in sums)] if sums else []
        lines += scalar.wrapped(self.element.name + "(", arguments, ");")
        return lines + ["%s += add%d;" % (self.accumulator(slot.key, subscript), slot.key) for slot in sums]

    def accumulator(self, number, subscript):
        place = next(one.place for one in self.launch.sums if one.number == number)
        if self.shape.template == "map":
            return "sums[%d]" % [one.number for one in self.scalars].index(number)
        if place == SCALAR or self.shape.template == "channels":
            return "sum%d" % number
        if self.shape.template == "row_loop":
            return "sum%d[j]" % number
        return "sum%d[%s][j]" % (number, "k" if subscript or self.shape.template == "row" else "0")

    def stored(self):
        return [slot.key for slot in self.element.results if slot.kind == "store"] if self.element else []

    def results(self):
        return ["numbers<V> out_%s;" % one.name for one in self.stored()]

    def stores(self, subscript):
        lines = []
        for one in self.stored():
            out = text = "out_" + one.name
            if one.accumulate:
                text = "plus_if(o.add_%s, %s, old_%s%s)" % (one.name, out, one.name, subscript)
            if one.half:
                lines += ["%s = %s;" % (out, text)] * one.accumulate
                lines.append("if (o.half_%s) store(o.half_%s, i, %s);" % (one.name, one.name, out))
                text = out
            lines.append(("if (o.%s) " % member(one) if may_be_null(one) else "") +
                         "store(o.%s, i, %s);" % (member(one), text))
        return lines

    def olds(self):
        return [one for one in self.stored() if one.accumulate]

    # ---- rows ----------------------------------------------------------------------------------------------
    def stages(self):
        """Reductions over the row, in registers or in memory, and the functions of their results for the
        whole row."""
        kinds = {one.number: one.kind for one in scalar.reductions(self.launch)}
        looped = self.shape.template == "row_loop"
        lead = "thread == 0" if looped else "thread == 0 && live"
        lines = []
        for function in self.steps:
            arguments = [self.argument(slot, "" if looped else "[k]") for slot in function.parameters]
            if function.scope == "row":
                lines += self.row_step(function, arguments, lead)
                continue
            numbers = [slot.key for slot in function.results]
            op = {number: {"sum": "sum", "max": "larger"}[kinds[number]] for number in numbers}
            lines += ["float reduced%d = %s::start();" % (number, op[number]) for number in numbers]
            call = ["float %s;" % ", ".join("part%d" % number for number in numbers)]
            call += scalar.wrapped(function.name + "(",
                                   arguments + ["&part%d" % number for number in numbers], ");")
            call += ["reduced%d = %s()(reduced%d, part%d);" % (number, op[number], number, number)
                     for number in numbers]
            inner = ["#pragma unroll", "for (int j = 0; j < V; j++) {"] + indented(call) + ["}"]
            if looped:
                body = self.loads([function])
                body = self.index(body) + body
                lines += ["#pragma unroll 2",
                          "for (unsigned column = thread; column < PACKS; column += %d) {" %
                          self.shape.threads]
            else:
                body = ["const unsigned column = thread + (unsigned)k * TEAM;", "if (column >= PACKS) break;"]
                lines += ["#pragma unroll", "for (int k = 0; k < K; k++) {"]
            lines += indented(body + inner) + ["}"]
            teams = self.shape.threads // self.shape.team if self.shape.team > 32 else 1
            over = "%d, %d" % (self.shape.team, teams) if teams > 1 else "%d" % self.shape.team
            lines += ["reduced%d = reduce<%s>(reduced%d, %s());" % (number, over, number, op[number])
                      for number in numbers]
        return lines

    def row_step(self, function, arguments, lead):
        names = {"row": "row%s", "store": "out_%s", "sum": "add%s"}
        results = [names[slot.kind] % (slot.key.name if slot.kind == "store" else slot.key)
                   for slot in function.results]
        lines = ["float %s;" % ", ".join(results)]
        lines += scalar.wrapped(function.name + "(", arguments + ["&" + name for name in results], ");")
        once = []
        for slot in function.results:
            if slot.kind == "store":
                once.append(self.store_one(slot.key, self.row_index(slot.key)))
            elif slot.kind == "sum":
                once.append("sum%d += add%d;" % (slot.key, slot.key))
        return lines + (["if (%s) {" % lead] + indented(once) + ["}"] if once else [])

    def store_one(self, one, index):
        add = "o.add_" + one.name if one.accumulate else "false"
        text = "store_one(%s, o.%s, %s, out_%s);" % (add, member(one), index, one.name)
        return ("if (o.%s) " % member(one) if may_be_null(one) else "") + text

    # ---- sums ----------------------------------------------------------------------------------------------
    def accumulators(self):
        size = {"row": "[K]", "columns": "[1]"}.get(self.shape.template)
        lines = []
        for one in self.launch.sums:
            if one.place != SCALAR and self.shape.template == "row_loop":
                lines.append("float *const sums%d = o.partial + %s;" %
                             (one.number, self.slice_of(one, "blockIdx.x")))
                continue
            wide = one.place != SCALAR and size
            lines.append("numbers<V> sum%d%s = {};" % (one.number, size) if wide else
                         "float sum%d = 0;" % one.number)
        return lines

    def slice_of(self, one, block):
        """Where a block's sums of one kind begin."""
        return "((size_t)%s * %d + %d) * %d" % (block, len(self.placed), self.placed.index(one), one.count)

    def sums_in_memory(self):
        """For rows too long for registers: (loads, stores) of the block's sums for a pack of columns."""
        placed_here = self.placed if self.shape.template == "row_loop" else []
        loads = [line for one in placed_here for line in (
            "numbers<V> sum%d = {};" % one.number,
            "if (row != blockIdx.x) sum%d = numbers_of(load<V>(sums%d, column));" % (one.number, one.number))]
        return loads, ["store(sums%d, column, sum%d);" % (one.number, one.number) for one in placed_here]

    def totals(self):
        """Lines at the kernel's end that reduce and store the sums."""
        lines, shape = [], self.shape
        for one in self.placed:
            if shape.template == "channels":
                lines += self.block_total(one, "o.partial[%s + channel]" % self.slice_of(one, "blockIdx.y"))
            elif shape.template == "columns":
                lines.append("reduce_teams<%d, TEAM, 1, V>(sum%d, o.partial + %s, first, PACKS);" % (
                    shape.threads, one.number, self.slice_of(one, "blockIdx.y")))
            elif shape.template == "row":
                lines.append("reduce_teams<%d, TEAM, K, V>(sum%d, o.partial + %s, 0, PACKS);" % (
                    shape.threads, one.number, self.slice_of(one, "blockIdx.x")))
        block = ("(blockIdx.y * gridDim.x + blockIdx.x)" if shape.template in ("columns", "channels") else
                 "blockIdx.x")
        for s, one in enumerate(self.scalars):
            lines += self.block_total(one, "o.scalars[(size_t)%s * %d + %d]" % (block, len(self.scalars), s))
        return lines + self.finish()

    def block_total(self, one, to):
        name = "sum%d" % one.number
        return ["%s = reduce<%d>(%s, sum());" % (name, self.shape.threads, name),
                "if (threadIdx.x == 0) %s = %s;" % (to, name)]

    # ---- the texts -----------------------------------------------------------------------------------------
    def doc(self):
        read, written = streams(self.launch)
        moved = "reads %d and writes %d bytes per element" % (sum(BYTES[one.dtype] for one in read),
                                                                     sum(BYTES[one.dtype] for one in written))
        return comment("%s: %s; %s." % (self.prefix, self.formula, moved))

    def text(self):
        shape = self.shape
        values = dict(doc=self.doc(), kernel=self.kernel, members=self.members(), threads=str(shape.threads),
                      scalars=self.scalar_loads(), results=self.results())
        every, element = self.all_functions(), [self.element] if self.element else []
        if shape.template == "map":
            values.update(loads=self.loads_of_all(self.packs_read(element), "U", self.olds(),
                                                  self.keeps(element)),
                          call=self.element_call("[u]"), stores=self.stores("[u]"), unroll=str(shape.unroll),
                          sums=bool(self.scalars), sum_count=str(len(self.scalars)), finish=self.finish(),
                          sums_parameter=", float *sums" if self.scalars else "")
            return template.load("map.cu", **values) + (self.alone_text() if self.is_ahead else "")
        values.update(accumulators=self.accumulators(), totals=self.totals())
        if shape.template == "row":
            early = [one for function in self.steps for one in self.of_function(function, "column")]
            late = [one for function in element
                    for one in unique(self.of_function(function, "column")) if one not in early]
            loads = self.loads_of_all(self.packs_read(every, late), "K", self.olds(), self.keeps(every))
            late_loads = self.loads_of_all(late, "K")
            by = {place: any(place + ")" in line for line in loads + late_loads)
                  for place in ("at", "column_of")}
            stores = self.stores("[k]")
            values.update(inner=str(self.inner), team=str(shape.team), sums=bool(self.launch.sums),
                          rows=self.row_loads(),
                          by_place=by["at"], by_column=by["column_of"], loads=loads, stages=self.stages(),
                          late_loads=late_loads, element=bool(element), index=self.index(stores),
                          call=self.element_call("[k]"), stores=stores)
            return template.load("row.cu", **values)
        sums_loaded, sums_stored = self.sums_in_memory()
        loads, stores = self.loads(element, self.olds()) + sums_loaded, self.stores("") + sums_stored
        values.update(index=self.index(loads + stores), loads=loads, call=self.element_call(""),
                      stores=stores)
        if shape.template == "row_loop":
            values.update(inner=str(self.inner), element=bool(element), rows=self.row_loads(),
                          stages=self.stages())
            return template.load("row_loop.cu", **values)
        div, mod = self.placed[0].place
        values.update(count=str(mod), unroll=str(shape.unroll))
        if shape.template == "columns":
            return template.load("columns.cu", **values, columns=self.place_loads(), rows=self.row_loads())
        return template.load("channels.cu", **values, area=str(div), channels=self.place_loads())

    def final_name(self, i):
        return "%s_final%s" % (self.kernel, i or "")

    def final_place(self, function):
        place = function.results[0].key.place
        return place, 1 if place == SCALAR else place[1]

    def final_sums(self, function):
        needed = [slot.key for slot in function.parameters if slot.kind == "total"]
        return [one for one in self.launch.sums if one.number in needed]

    def final_counts(self, function):
        """The arguments that tell the kernel into how many parts the sums are divided."""
        sums = self.final_sums(function)
        return ["slices"] * any(one.place != SCALAR for one in sums) + ["blocks"] * any(
            one.place == SCALAR for one in sums)

    def final_lines(self, function):
        """Lines that compute the stored results from the totals of a place."""
        stored = [slot.key for slot in function.results]
        lines = ["float %s;" % ", ".join("out_" + one.name for one in stored)]
        return lines + self.final_call(function) + [self.store_one(one, "place") for one in stored]

    def final_call(self, function):
        place, _ = self.final_place(function)
        made = [slot.key for slot in self.ahead.finals[0].results] if self.ahead else []
        lines = ["const float in_%s = %s;" % (slot.key.name,
                                              self.single(slot.key, self.final_index(slot.key, place)))
                 for slot in function.parameters if slot.kind == "load" and slot.key not in made]
        arguments = ["in_" + slot.key.name if slot.kind == "load" else self.shared_argument(slot)
                     for slot in function.parameters]
        arguments += ["&out_" + slot.key.name for slot in function.results]
        return lines + scalar.wrapped(function.name + "(", arguments, ");")

    def alone_text(self):
        """The text for the next launch, which computes these sums itself."""
        results = ", ".join("float &out_" + slot.key.name for slot in self.finals[0].results)
        totals = ["const float total%d = reduce<THREADS>(sums[%d], sum());" % (one.number, s)
                  for s, one in enumerate(self.scalars)]
        return template.load("alone.cu", kernel=self.kernel, sum_count=str(len(self.scalars)),
                             results=results, totals=totals, made=self.final_call(self.finals[0]))

    def finish(self):
        """Lines in which the last block computes the results of sums over everything."""
        if not self.finishes:
            return []
        threads, twofold = self.shape.threads, self.shape.template in ("columns", "channels")
        blocks = "gridDim.x * gridDim.y" if twofold else "gridDim.x"
        last = "is_last_block(o.counters, %s)" % blocks
        if self.placed:
            slices = "blockIdx.y, gridDim.y, gridDim.x" if twofold else "blockIdx.x, gridDim.x, 1"
            last = "gathered<%d, %d>(o.partial, %s, o.counters)" % (threads, self.floats, slices)
        lines = ["const float total%d = total_of<%d>(o.scalars + %d, %d, %s);" %
                 (one.number, threads, s, len(self.scalars), blocks) for s, one in enumerate(self.scalars)]
        for function in self.finals:
            _, count = self.final_place(function)
            totals = ["const float total%d = o.partial[%d + place];" %
                      (one.number, self.placed.index(one) * count)
                      for one in self.final_sums(function) if one.place != SCALAR]
            lines.append("for (unsigned place = threadIdx.x; place < %d; place += %d) {" % (count, threads))
            lines += indented(totals + self.final_lines(function)) + ["}"]
        return ["if (%s) {" % last] + indented(lines) + ["}"]

    def final_texts(self):
        for i, function in enumerate(() if self.finishes else self.finals):
            _, count = self.final_place(function)
            totals = []
            for one in self.final_sums(function):
                if one.place == SCALAR:
                    value = "o.scalars + %d, %d, blocks, 0, 1" % (self.scalars.index(one), len(self.scalars))
                else:
                    value = "o.partial + %d, %d, slices, place, %d" % (
                        self.placed.index(one) * count, self.floats, count)
                totals.append("const float total%d = (float)reduce_slices(%s);" % (one.number, value))
            yield template.load(
                "final.cu", kernel=self.kernel, final=self.final_name(i), count=str(count), totals=totals,
                parameters="".join(", unsigned " + name for name in self.final_counts(function)),
                made=self.final_lines(function))

    @staticmethod
    def final_index(one, place):
        return index_text("place", 1, 0, one.stride) if one.place == place and place != SCALAR else "0"

    # ---- the host's side -----------------------------------------------------------------------------------
    def elements(self):
        return count_text(self.launch.domain.fixed, self.launch.domain.per_batch)

    def count_of_lines(self):
        """The number of rows, or of images for channels. It is the last argument of all kernels except those
        of map.cu."""
        if self.shape.template in ("row", "row_loop"):
            return "n / %d" % self.inner
        div, mod = self.placed[0].place
        return "n / %d" % (div * mod)

    def tiles(self, pack):
        """The number of blocks side by side that share the columns."""
        packs = self.placed[0].count // pack
        return -(-packs // power_of_2(packs))

    def slices(self):
        """The number of parts of each sum, as a C expression of n and multiprocessors."""
        shape, lines = self.shape, self.count_of_lines()
        if shape.template in ("row", "row_loop"):
            return self.row_blocks()
        busy = "(size_t)multiprocessors * %d" % max(1, 2048 // shape.threads)
        if shape.template == "columns":
            team = power_of_2(self.placed[0].count // shape.pack)
            return "clamped(at_least(%s, %d), at_least(%s, %d))" % (
                lines, shape.threads // team, busy, self.tiles(shape.pack))
        div, mod = self.placed[0].place
        return "clamped(at_least(%s * %d, %d), at_least(%s, %d))" % (
            lines, div // shape.pack, shape.threads, busy, mod)

    def row_blocks(self):
        lines, teams = self.count_of_lines(), self.shape.threads // self.shape.team
        busy = "(size_t)multiprocessors * %d" % max(1, 1024 // self.shape.threads)
        # There are few slices, and their sums move at most a tenth of the rows' bytes.
        if self.placed and self.shape.template == "row":
            moved = sum(BYTES[one.dtype] for side in streams(self.launch) for one in side)
            busy = "clamped(%s / %d, (size_t)multiprocessors * %d)" % (
                lines, -(-80 * len(self.placed) // moved), max(1, 512 // self.shape.threads))
            busy = "larger_of((size_t)multiprocessors, %s)" % busy
        blocks = "at_least(%s, %d)" % (lines, teams)
        return ("clamped(%s, %s)" % (blocks, busy) if self.launch.sums or
                self.shape.template == "row_loop" else blocks)

    def blocks(self, launches):
        """The number of blocks of a launch. For the workspace it is the largest possible number."""
        shape = self.shape
        if shape.template == "map":
            return "clamped(at_least(n, %d), (size_t)multiprocessors * %d)" % (
                shape.pack * shape.threads * shape.unroll, max(1, 2048 // shape.threads))
        if shape.template == "columns":
            wide_tiles, tiles = self.tiles(shape.pack), self.tiles(1)
            if not self.checks() or wide_tiles == tiles:
                return "slices * %d" % wide_tiles
            return "slices * (wide ? %d : %d)" % (wide_tiles, tiles) if launches else "slices * %d" % tiles
        if shape.template == "channels":
            return "slices * %d" % self.placed[0].count
        return "slices" if self.placed else self.row_blocks()

    def geometry(self, launches):
        """Lines that define slices and blocks, where the launches or the workspace need them."""
        lines = []
        if self.placed:
            lines.append("const unsigned slices = (unsigned)%s;" % self.slices())
        counted = self.scalars and not (launches and self.finishes and
                                        self.shape.template in ("columns", "channels"))
        if counted or (launches and self.shape.template in ("row", "row_loop")):
            text = self.blocks(launches)
            lines.append("const unsigned blocks = %s;" %
                         (text if text.startswith("slices") else "(unsigned)" + text))
        return lines

    def workspace(self):
        """Lines that raise `most` to the sums that this launch needs, and decline sizes that overflow."""
        limit = (self.count_of_lines() if self.shape.template in ("row", "row_loop") else
                 "n / %d" % self.shape.pack)
        lines = ["const size_t n = %s;" % self.elements(), "if (%s > MOST) return SIZE_MAX;" % limit]
        parts = []
        if self.placed:
            parts.append("area((size_t)slices * %d)" % (len(self.placed) * self.placed[0].count))
        if self.scalars:
            parts.append("area((size_t)blocks * %d)" % len(self.scalars))
        if parts:
            lines += self.geometry(False) + ["most = larger_of(most, %s);" % " + ".join(parts)]
        return lines

    def checks(self):
        """Conditions that the memory of operands accessed by packs is aligned."""
        pack, ways = self.shape.pack, ("stream", "column", "fixed", "narrow")
        read = [one for function in self.all_functions() for one in self.of_function(function, *ways)]
        if pack == 1:
            return []
        found = [(member(one), one.dtype) for one in unique(read + self.stored()) if self.by_packs(one)]
        found += [("half_" + one.name, one.half) for one in self.stored() if one.half]
        return ["aligned(o.%s, %d)" % (name, min(16, BYTES[dtype] * pack)) for name, dtype in found]

    def by_packs(self, one):
        if self.where(one) != "narrow":
            return True
        return one.place[0] == 1 and one.stride == 1 and one.place[1] % self.shape.pack == 0

    def run(self, pointer, numbers):
        """Lines that launch the kernels. pointer(operand): its memory. numbers: indices in call->data."""
        memory = "&o = ahead" if self.is_ahead else "o = {}"
        lines = ["const size_t n = %s;" % self.elements(), "%s_operands %s;" % (self.kernel, memory)]
        for one in self.all_operands():
            const = "" if one in self.written else "const "
            lines.append("o.%s = (%s%s *)%s;" % (member(one), const, TYPES[one.dtype], pointer(one)))
        for one in self.written:
            if one.half:
                lines.append("o.half_%s = (%s *)call->half[%d];" %
                             (one.name, TYPES[one.half], numbers[one.name]))
            if one.accumulate:
                there = "o.%s && " % member(one) if may_be_null(one) else ""
                lines.append("o.add_%s = %scall->accumulate[%d] != 0;" % (one.name, there, numbers[one.name]))
        for i, (fixed, per_batch) in enumerate(self.counts):
            lines.append("o.count%d = (float)(%s);" % (i, count_text(fixed, per_batch)))
        if self.random_streams:
            lines.append("o.random = call->random;")
            lines += ["o.random_stream%d = call->random_streams[%d];" % (k, k)
                      for k, _ in self.random_streams]
        if self.ahead:
            lines += ["o.ahead = ahead;", "o.ahead_count = alone ? (unsigned)ahead_count : 0;"]
        if self.is_ahead:
            launched = self.launched()
            return lines + ["if (!alone) {"] + indented(launched) + ["}"]
        return lines + self.launched()

    def launched(self):
        lines = []
        if self.checks():
            lines.append("const bool wide = %s;" % " && ".join(self.checks()))
            if self.shape.template in ("map", "columns", "channels"):
                lines.append("if (!wide && n > MOST) return -(int)cudaErrorMisalignedAddress;")
        lines += self.geometry(True)
        if self.placed:
            lines.append("o.partial = (float *)(workspace + partials);")
        if self.scalars:
            offset = (" + area((size_t)slices * %d)" % (len(self.placed) * self.placed[0].count)
                      if self.placed else "")
            lines.append("o.scalars = (float *)(workspace + partials%s);" % offset)
        if self.finishes:
            lines.append("o.counters = call->counters;")
        lines += self.main_launch()
        for i, function in enumerate(() if self.finishes else self.finals):
            _, count = self.final_place(function)
            counts = self.final_counts(function)
            threads = "final_threads(%d, %s)" % (count, (counts + ["1"])[0])
            lines.append("GPUNN__LAUNCH_ON(call->stream, %s, %d, %s);" % (
                self.final_name(i), -(-count // power_of_2(count)), ", ".join([threads, "o"] + counts)))
        return lines

    def main_launch(self):
        """The launch of the kernel for packs, or of the one for single elements where memory is not
        aligned."""
        shape, lines, either = self.shape, [], bool(self.checks())
        grids = ["blocks"] * 2
        if shape.template != "map":
            counts = ["(unsigned)(%s)" % self.count_of_lines()] * 2
        else:
            lines.append("const size_t packs = %s;" % ("wide ? n / %d : n" if either else "n / %d") %
                         shape.pack)
            if not self.scalars:
                tile = shape.threads * shape.unroll
                lines.append("const unsigned blocks = (unsigned)clamped(at_least(packs, %d), MOST);" % tile)
            counts = ["(unsigned)packs, (unsigned)(n %% %d)" % shape.pack, "(unsigned)packs, 0u"]
        if shape.template == "columns":
            grids = ["dim3(%d, slices)" % self.tiles(pack) for pack in (shape.pack, 1)]
        elif shape.template == "channels":
            grids = ["dim3(%d, slices)" % self.placed[0].count] * 2
        calls = ["GPUNN__LAUNCH_ON(call->stream, %s<%d>, %s, %d, o, %s);" %
                 (self.kernel, pack, grid, shape.threads, count)
                 for pack, grid, count in zip((shape.pack, 1), grids, counts)]
        return lines + (["if (wide)", "    " + calls[0], "else", "    " + calls[1]] if either else calls[:1])


def member(one):
    """The operand's name in the kernel's struct."""
    return one.name + "_" if one.name in scalar.RESERVED else one.name


def may_be_null(one):
    return one.optional or one.shares is not None


def indented(lines):
    return ["    " + line if line else "" for line in lines]


def index_text(base, div, mod, stride):
    text = base if div == 1 else "%s / %d" % (base, div)
    if mod:
        text = "%s %% %d" % (text, mod)
    return text if stride == 1 else "(size_t)(%s) * %d" % (text, stride)


# ---- programs ----------------------------------------------------------------------------------------------
def emit_program(kernel_set, kernel, direction, program):
    """The texts of a program's kernels and of the two functions that the runtime calls."""
    name = "%s_%s_%s" % (kernel_set.name, kernel.name, direction)
    launches = [LaunchEmitter("%s_%d" % (name, i), launch, scalar.is_fast(kernel_set, launch),
                              kernel.schedule, kernel.formula) for i, launch in enumerate(program.launches)]
    if len(launches) == 2 and leads(*program.launches, kernel.schedule):
        launches[0].is_ahead, launches[1].ahead = True, launches[0]
    numbers = {one.name: i for i, one in enumerate(one for one in program.operands if one.role != "stat")}

    def pointer(one):
        return ("(workspace + at_%s)" % one.name if one.role == "stat" else
                "call->data[%d]" % numbers[one.name])

    areas, end = [], "0"
    for one in program.operands:
        if one.role == "stat":
            areas.append("const size_t at_%s = %s;" % (one.name, end))
            end = "at_%s + area(%s)" % (one.name, count_text(*one.count))
    sums = any(launch.sums for launch in program.launches)
    if sums:
        areas.append("const size_t partials = %s;" % end)
        end = "partials + most"
    run = []
    for one in launches:
        if one.is_ahead:
            run += ["%s_operands ahead = {};" % one.kernel, "const size_t ahead_count = %s;" % one.elements(),
                    "const bool alone = ahead_count <= %d;" % MOST_ALONE]
        run += ["{"] + indented(one.run(pointer, numbers)) + ["}"]
    room = [line for one in launches for line in ["{"] + indented(one.workspace()) + ["}"]]
    texts = [text for one in launches for text in [one.text()] + list(one.final_texts())]
    body = " ".join(areas + run)
    said = comment("%s, %s: %s" % (kernel.name, direction, kernel.formula))
    return texts + [template.load("launch.cu", function=name, comment=said, areas=areas, run=run, room=room,
                                  result=end, sums=sums, busy="multiprocessors" in body,
                                  per_batch="batch" in body, space=bool(areas))]


def programs_of(kernel_set, kernel, direction, program):
    """The texts of a kernel's programs. Empty if a GPU has no such kernel."""
    if program and program.step:
        return [emit_training_cuda.emit_cuda(kernel_set)]
    if program and program.network:
        text = emit_network_cuda.emit_cuda(kernel_set)
        return [text] if text else []
    return emit_program(kernel_set, kernel, direction, program) if program else []


def emit_cuda(kernel_set):
    """The text of NAME_kernels.cu."""
    name = kernel_set.name
    texts, table = [], []
    for kernel in kernel_set.tables()[0]:
        row = []
        for direction in DIRECTIONS:
            program = getattr(kernel, direction)
            own = programs_of(kernel_set, kernel, direction, program)
            if not own:
                row.append("{NULL, NULL}")
                continue
            texts += own
            function = "%s_%s_%s" % (name, kernel.name, direction)
            row.append("{%s, %s_workspace}" % (function, function))
        table.append("{%s}," % ", ".join(row))
    updates = ["%s_update%d" % (name, i) for i in range(len(kernel_set.updates))]
    texts += [update.emit_cuda(kernel_set, i) for i in range(len(updates))]
    body, library = ("\n".join(texts),
                     template.load("device.cu") + "\n" + emit_network_cuda.library(kernel_set))
    library += "\n" + emit_training_cuda.library(kernel_set) if kernel_set.step else ""
    device = template.needed(library, body)
    return template.load(
        "file.cu", name=name, upper=name.upper(), opening=stamp.lines(kernel_set, name + "_kernels.cu"),
        stamp=emit_c.text_stamp(kernel_set),
        device=device, kernels=body.splitlines(), has_network="GPUNN__LAUNCH_SHARED" in body, launches=table,
        updates=[one + "," for one in updates], has_kernels=bool(table), has_updates=bool(updates))
