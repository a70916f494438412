"""Converts the calls of a captured graph to entries of the spec, and collects what cannot be expressed."""
import inspect

from ... import sizes
from ..spec_writer import Constant, Entry, Parameter, Refused, Value, shape_text, size_name
from . import (attention, complex_fft, convolutions, copies,  # noqa: F401 they fill OPERATIONS
               creation, elementwise, images, indexing, integers, linear_algebra, losses, norms, recurrent,
               reductions, shapes, sorting)
from .capture import Reference
from .complex_fft import of_complex
from .copies import to
from .integers import exactly
from .operands import Complex, complex_parts, dtype_name, is_large, is_whole, small_integers
from .registry import OPERATIONS
from .symbols import Size
from ...sizes import SizeError


class Changed(Refused):
    """The call changes a tensor that others see, in a way that a capture without in-place changes can
    express."""


RANDOM = ("rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "bernoulli", "normal",
          "randperm", "multinomial", "empty", "empty_like", "new_empty", "dropout", "rrelu", "uniform_",
          "normal_", "exponential_", "bernoulli_", "normal_functional", "uniform", "exponential")
# which broadcasting leaves undone
EXPANSIONS = ("expand", "expand_as", "broadcast_to", "broadcast_tensors", "repeat", "tile")
COUNTING = ("add", "sub", "rsub", "mul", "neg", "sum", "cumsum", "gather", "index_select", "where",
            "masked_fill", "maximum", "minimum", "clamp", "floor_divide", "remainder", "slice", "select",
            "permute", "transpose", "cat", "stack", "max", "min", "amax", "amin", "topk", "sort", "pad",
            "constant_pad_nd", "tril", "triu", "scatter", "scatter_add", "abs", "roll", "flip",
            "scatter_reduce", "index_add", "index_copy", "index_fill", "index_put", "index_reduce",
            "slice_scatter", "select_scatter", "copy", "fill", "repeat", "tile", "repeat_interleave",
            "unfold", "unbind", "split", "split_with_sizes", "chunk", "tensor_split", "narrow", "movedim",
            "diagonal", "diag_embed", "cummax", "cummin", "square")
CASTS = ("to", "_to_copy", "type_as")
WRAPPING = ("add", "sub", "subtract", "rsub", "mul", "multiply", "neg", "negative", "pow", "square",
            "bitwise_not", "bitwise_left_shift", "__lshift__")
REDUCTIONS = ("sum", "prod", "mean", "cumsum", "cumprod")
CHECKS = ("_assert_async", "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range",
          "sym_constrain_range_for_size")


def references(x):
    if isinstance(x, Reference):
        return [x.name]
    return [name for y in x for name in references(y)] if isinstance(x, (list, tuple)) else []


def unexpected(call):
    """The error for a call with unexpected arguments. It lists those that are no tensors."""
    given = {name: size_name(x.dim) if isinstance(x, Size) else x for name, x in call.arguments.items()}
    told = ", ".join(f"{name}={x}" for name, x in given.items() if isinstance(x, (int, float, str)) or (
        isinstance(x, list) and x and all(isinstance(y, int) for y in x)))
    return Refused(f"it is not possible with {told or 'these operands'}")


# Arguments that an operation may ignore: where and how the result is stored, and what changes no value of it.
# dtype: see Lowering.
UNREAD = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "copy", "generator",
          "implicit", "sorted", "stable", "half_to_float", "compute_mode", "cudnn_enable", "cudnn_enabled",
          "benchmark", "deterministic", "allow_tf32", "sparse", "out", "path", "unsafe", "requires_grad"}


def check_all_read(function, call):
    """Raises Refused if the operation ignores an argument that is not at its default."""
    names = inspect.signature(function).parameters
    reads = {"self", "input", *UNREAD, *getattr(function, "reads", ()), *names}
    for name, x in call.arguments.items():
        if name not in reads and x is not None and x != getattr(call.function, "defaults", {}).get(name):
            raise Refused(f"its {name}={x} has no counterpart in gpunn")


class Lowering:
    """Converts the calls of a Captured to entries. known: the value of each of its references."""

    def __init__(self, torch, captured, writer, known):
        self.torch, self.captured, self.writer, self.known = torch, captured, writer, known
        self.problems, self.last_use, self.has_changes = [], {}, False
        for i, call in enumerate(captured.calls):
            if isinstance(call.arguments, dict):
                self.last_use.update({name: i for name in references(list(call.arguments.values()))})
        self.last_use.update({name: len(captured.calls) for name in references(captured.outputs)})

    def resolve(self, x):
        if isinstance(x, Reference):
            known = self.known.get(x.name, Refused("it reads something that is no tensor"))
            if isinstance(known, Refused):
                raise known
            return known
        return [self.resolve(y) for y in x] if isinstance(x, (list, tuple)) else x

    def run(self):
        for i, call in enumerate(self.captured.calls):
            try:
                results = self.results(call, i)
            except (Refused, TypeError, IndexError, KeyError, AttributeError, RuntimeError, ValueError,
                    OverflowError, SizeError) as why:
                self.has_changes |= isinstance(why, Changed)
                why = why if isinstance(why, (Refused, SizeError)) else unexpected(call)
                where = ", ".join(([f"in {call.path}"] if call.path else []) +
                                  ([call.place] if call.place else []))
                self.problems.append(f"{call.op}{' (' + where + ')' if where else ''}: {why}")
                results = []
            for name, result in zip(call.results, results or self.stand_ins(call)):
                self.known[name] = result

    def stand_ins(self, call):
        """Placeholders for the results of a refused call, so that later calls are checked too."""
        values = tuple(Value(shape, dtype="f32" if dtype.is_floating_point else "i64")
                       for shape, dtype in call.shapes or [((), self.torch.float32)])
        for value in values:
            value.entry = Entry("", "", [], {}, None, None, [])
        if len(call.results) > 1:
            return list(values)
        return [values if len(values) > 1 or self.parts(call) else values[0]]

    def parts(self, call):
        """The calls that take a part of this call's list."""
        return [c for c in self.captured.calls if c.op == "getitem" and isinstance(c.arguments, dict) and
                isinstance(c.arguments["x"], Reference) and c.arguments["x"].name == call.results[0]]

    def results(self, call, index):
        """One result for each name in call.results. A tuple stands for a list of PyTorch's."""
        if isinstance(call.arguments, Refused):
            raise call.arguments
        in_place = call.op.endswith("_") and not call.op.startswith("__")
        op, w = call.op[:-1] if in_place else call.op, self.writer
        if op in CHECKS:
            return [None] * len(call.results)
        if call.function is None and op not in OPERATIONS and op != "getitem":
            raise Refused("it has no counterpart in gpunn")
        changed = next((self.known.get(x.name) for x in call.arguments.values() if isinstance(x, Reference)),
                       None)
        if in_place and isinstance(changed, Refused):
            return [changed] * len(call.results)  # once more
        arguments = {"x" if name in ("self", "input") else name: self.resolve(x)
                     for name, x in call.arguments.items()}
        given = arguments.get("x")
        if op == "getitem":
            return [given[arguments["index"]]]
        if in_place and isinstance(given, Constant) and given.name and not given.tensor.is_floating_point():
            why = Refused(f"it reads the buffer {given.name} of integers after forward has changed it")
            self.known.update({name: why for name, x in self.known.items() if x is given})
            return [why] * len(call.results)  # nothing reads batch_norm's count of batches
        constant = self.constant(call, arguments, index)
        if constant is not None:
            return list(constant) if len(call.results) > 1 else [constant]
        if op not in OPERATIONS:
            raise Refused("it has no counterpart in gpunn")
        w.wanted = self.wanted(call)
        arguments = {name: complex_parts(x) for name, x in arguments.items()}
        function = OPERATIONS[op]
        if any(isinstance(x, Complex) for y in arguments.values()
               for x in (y if isinstance(y, list) else [y])):
            if in_place:
                raise Changed("it changes a complex tensor")
            function = of_complex(op)
        check_all_read(OPERATIONS[op], call)
        arguments = self.converted(call, op, arguments)
        result = exactly(w, call, op, **arguments) if call.shapes else None
        result = function(w, call._replace(op=op), **arguments) if result is None else result
        values = [self.wrapped(self.counted(x, call, op, arguments), call, op, arguments)
                  for x in (result if isinstance(result, tuple) else (result,))]
        for value, (shape, dtype) in zip(values, call.shapes):
            if not isinstance(value, Value):
                continue
            value.is_bool = dtype == self.torch.bool
            if value.full != shape:
                raise Refused(f"its result would be {shape_text(value.full)}, not {shape_text(shape)}")
            if value.dtype == "f32" and not dtype.is_floating_point and dtype != self.torch.bool:
                raise Refused("gpunn does not compute with integers")
        if in_place:
            self.change(given, values[0], index)
        return values if len(call.results) > 1 else [tuple(values) if isinstance(result, tuple) else
                                                     values[0]]

    def converted(self, call, op, arguments):
        """The arguments of a sum or similar. PyTorch first converts the operand if an integer dtype is
        given."""
        dtype, x = arguments.get("dtype"), arguments.get("x")
        if op not in REDUCTIONS or dtype is None or dtype.is_floating_point or is_whole(self.writer, x):
            return arguments
        return dict(arguments, x=to(self.writer, call._replace(shapes=[(x.full, dtype)]), x))

    def counted(self, value, call, op, arguments):
        """A result as integers again, if it counts with integers that stay below 2^24."""
        w, dtype = self.writer, call.shapes[0][1] if call.shapes else self.torch.float32
        if (not isinstance(value, Value) or value.dtype != "f32" or dtype.is_floating_point or
            dtype == self.torch.bool):
            return value
        counted = [y for name, y in arguments.items() if name not in ("index", "indices")]
        operands = [x for y in counted for x in (y if isinstance(y, list) else [y])]
        if op not in COUNTING or any(is_large(w, x)
                                     for x in operands if isinstance(x, (int, Value, Constant))):
            return value
        return small_integers(w, value)

    def wrapped(self, value, call, op, arguments):
        """A result of 8-bit or 16-bit integers, wrapped to these bits as in PyTorch."""
        torch, dtype = self.torch, call.shapes[0][1] if call.shapes else None
        least, count = {torch.uint8: (0, 256), torch.int8: (-128, 256),
                        torch.int16: (-32768, 65536)}.get(dtype, (0, 0))
        of_float = op in CASTS and not is_whole(self.writer, arguments["x"])
        if not count or not isinstance(value, Value) or op not in WRAPPING + CASTS or of_float:
            return value
        w = self.writer
        value = w.integer("sub", w.whole_numbers(value), least) if least else w.whole_numbers(value)
        value = w.integer("remainder", value if value.dtype == "i64" else w.integers(value, ("i64",)), count)
        value = w.integer("add", value, least) if least else value
        return w.add("cast", [value], value.shape, value.full, kind=dtype_name(torch, dtype),
                     dtype=dtype_name(torch, dtype))

    def wanted(self, call):
        """The indices of the call's results that are read."""
        if len(call.results) > 1:
            return {i for i, name in enumerate(call.results) if name in self.last_use}
        return {c.arguments["index"] for c in self.parts(call) if c.results[0] in self.last_use}

    def constant(self, call, arguments, index):
        """The result of a call on constants only. None: it has other operands."""
        values = [self.known[name] for name in references(list(call.arguments.values()))]
        sizes = [y for x in arguments.values()
                 for y in (x if isinstance(x, list) else [x]) if isinstance(y, Size)]
        if call.function is None or call.op in RANDOM or not all(isinstance(v, Constant) for v in values):
            return None
        if sizes or any(v.full != tuple(v.tensor.shape) for v in values):
            return self.expanded_constant(call) if values and not call.op.endswith("_") else None

        def plain(x):
            return (x.tensor if isinstance(x, Constant) else [plain(y) for y in x] if isinstance(x, list) else
                    x)

        if call.op.endswith("_") and isinstance(arguments.get("x"), Constant):
            self.need_no_other_view(arguments["x"], index)
        with self.torch.no_grad():
            result = call.function({name: plain(self.resolve(x)) for name, x in call.arguments.items()})
        for v in values if call.op.endswith("_") else []:
            v.name = None  # no longer the buffer
        if isinstance(result, self.torch.Tensor):
            return Constant(result)
        return tuple(Constant(r) for r in result) if isinstance(result, (list, tuple)) else None

    def expanded_constant(self, call):
        """The same for expanded constants, to the batch for example: the result is equal for all samples of
        any batch."""
        def at(x, point):
            if isinstance(x, Constant):
                return x.tensor.expand([sizes.value_at(d, point) for d in x.full])
            return ([at(y, point) for y in x] if isinstance(x, list) else
                    sizes.value_at(x.dim, point) if isinstance(x, Size) else x)

        if call.op in EXPANSIONS or len(call.shapes) != 1 or len(call.results) > 1:
            return None
        full, results = call.shapes[0][0], []
        for point in self.writer.points:
            with self.torch.no_grad():
                results.append(
                    call.function({name: at(self.resolve(x), point) for name, x in call.arguments.items()}))
        if not isinstance(results[0], self.torch.Tensor):
            return None
        one = Constant(results[0][tuple(slice(0, 1) if d < 0 else slice(None) for d in full)], full)
        if call.function.is_view:
            one.memory = next(self.known[name].memory for name in references(list(call.arguments.values())))
        return one if all(self.torch.equal(one.tensor.expand_as(x), x) for x in results) else None

    def change(self, given, result, index):
        """An in-place operation: from now on, the names of given stand for result."""
        memory = given.memory if isinstance(given, Value) else None
        of_parameter = isinstance(given, Parameter) or (memory and
                                                        (memory.parameter or memory.entry.op == "parameter"))
        if not isinstance(result, Value) or of_parameter or getattr(given, "name", None):
            raise Changed("it changes a parameter or buffer")

        self.need_no_other_view(given, index, True)
        self.known.update({name: result for name, x in self.known.items() if x is given})

    def need_no_other_view(self, given, index, copied=False):
        """copied: it becomes a new tensor that shares its memory with none."""
        def storage(x):
            return x.tensor.untyped_storage().data_ptr()

        for name, x in self.known.items():
            if x is given or not isinstance(x, (Value, Constant)) or self.last_use.get(name, -1) <= index:
                continue
            shared = isinstance(given, Constant) and isinstance(x, Constant) and storage(x) == storage(given)
            if (shared and copied) or (x.memory is given.memory and not shared):
                raise Changed("it changes a tensor of which another view is used later")
