#!/usr/bin/env python3
"""Turns a torch.nn.Module into a model's spec and its weights, for run_model, gpunn_spec_load and the generator.

    python3 -m generator.export_torch package.module:factory -o NAME --input 8x3x32x32 [--input 8:i64 --loss cross_entropy]

writes NAME.json and NAME.safetensors; factory is a module or a function that returns one. From Python:

    export(net, (images, labels), "net.json", "net.safetensors", loss=torch.nn.CrossEntropyLoss())

Other axes than the batch vary, under names, with --dynamic INPUT:AXIS=NAME, or dynamic_shapes={"images": {2: "H", 3: "W"}}.
The module is captured by torch.export (PyTorch 2.7 and later) or torch.jit.trace (older ones) as it runs in the mode it is in.
Each parameter keeps its name in state_dict. Whatever gpunn cannot express is collected: one Unsupported exception lists all of
it, each with its place in the module's source.
"""
import argparse
import collections
import contextlib
import copy
import functools
import importlib
import inspect
import json
import math
import operator
import os
import re
import string
import sys
import warnings
from dataclasses import dataclass

from . import sizes, spec, table
from .exchange import spec_writer
from .exchange.spec_writer import (Constant, Entry, Parameter, Refused, Value, Writer, broadcast, is_number, json_text, named,
                                   named_sizes, needed_entries, normal_axes, normal_axis, product, shape_text, size_name, text, waves,
                                   write_file)
from .json_text import SpecError
from .exchange.torch_sizes import NotOfOne, Size, Symbols, own_guards
from .sizes import SizeError, any_varies, varies


class Changed(Refused):
    """It changes what others see, in a way that can be captured without changes."""


class Unsupported(Exception):
    """What gpunn cannot express; `problems` holds one text each."""

    def __init__(self, module, problems):
        self.problems = problems
        count = "1 operation" if len(problems) == 1 else f"{len(problems)} operations"
        super().__init__(f"{count} of {module} cannot be exported:" + "".join(f"\n  {p}" for p in problems))


# ---- what the captured graph consists of: a dimension -k stands for k times the batch; what else varies is a sizes.Size --------
# A call of one of PyTorch's operators: op without its overload, as "conv2d"; function evaluates it on real tensors; arguments by
# the names of its schema, with References for tensors, or the Refused that reading them raised; the names of its results, and
# their (shape, dtype) where they are tensors; the place in the source; the path of the module.
Call = collections.namedtuple("Call", "op function arguments results shapes place path")


@dataclass(frozen=True)
class Reference:
    name: str


class Captured:
    def __init__(self):
        self.calls, self.inputs, self.outputs = [], [], []  # calls; references
        self.parameters = {}  # reference: (name, tensor, whether it is a buffer)
        self.constants = {}  # reference: tensor
        self.symbols = Symbols()  # what PyTorch calls the sizes of inputs, and the bounds of named ones


def dtype_name(torch, dtype, of_input=False):
    """gpunn's name of a dtype; what computes with 8 and 16 bits is i32, see wrapped."""
    names = {torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8", torch.bool: "bool"}
    names.update({} if of_input else {torch.int8: "i32", torch.int16: "i32"})
    if not dtype.is_floating_point and dtype not in names:
        raise Refused(f"tensors of {dtype} are not possible")
    return names.get(dtype, "f32")


# ---- capturing ---------------------------------------------------------------------------------------------------------
BATCHES = (2, 3)  # the sizes at which dimensions are compared


def dim_of(values):
    """The dimension that has these sizes at the BATCHES."""
    if values[0] == values[1]:
        return int(values[0])
    factor = values[0] // BATCHES[0]
    if factor < 1 or tuple(factor * b for b in BATCHES) != tuple(values):
        raise Refused(f"a size is {values[0]} for {BATCHES[0]} samples and {values[1]} for {BATCHES[1]}: no multiple of the batch")
    return -int(factor)


def size_of(values):
    """A number that has these values at the BATCHES."""
    dim = dim_of(values)
    return dim if values[0] == values[1] else Size(dim)


def flat(result, name=""):
    """The tensors of a module's result with names: its dictionaries' keys, "output" or "output0"."""
    if isinstance(result, dict):
        return [pair for key, value in result.items() for pair in flat(value, str(key))]
    if isinstance(result, (list, tuple)):
        return [pair for i, value in enumerate(result) for pair in flat(value, f"{name or 'output'}{i}")]
    return [] if result is None else [(name or "output", result)]


def root_of(torch, module, loss, names):
    """A module of tensors only: module, and the loss of its result and the last input; names receives those of its results."""

    class Root(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.loss = module, loss
            self.training = module.training

        def forward(self, *inputs):
            result = self.net(*(inputs[:-1] if self.loss else inputs))
            pairs = flat(result) + ([("loss", self.loss(result, inputs[-1]))] if self.loss else [])
            names[:] = [name for name, _ in pairs]
            return tuple(tensor for _, tensor in pairs)

    return Root()


def own_name(name):
    """A name of Root's as the module's own."""
    return name[4:] if name.startswith("net.") else "" if name == "net" else name


def first_names(root):
    """By parameter and buffer, the first of the names that state_dict has for it."""
    first = {}
    for name, tensor in root.state_dict(keep_vars=True).items():
        first.setdefault(id(tensor), own_name(name))
    return first


def evaluator(function, schema):
    """Calls function with arguments by name; those that PyTorch wants by position so."""
    keywords = {a.name for a in schema.arguments if a.kwarg_only}

    def evaluate(arguments):
        return function(*[x for name, x in arguments.items() if name not in keywords],
                        **{name: x for name, x in arguments.items() if name in keywords})

    evaluate.is_view = any(result.alias_info is not None for result in schema.returns)
    evaluate.defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return evaluate


def source_place(torch, frames):
    """The last of the (file, line, code) that is not PyTorch's own."""
    inside = os.path.dirname(torch.__file__)
    own = [f"{os.path.basename(name)}:{line}" + (f": {code}" if code else "")
           for name, line, code in frames if not name.startswith((inside, __file__))]
    return own[-1] if own else ""


REGIONS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")  # torch.no_grad and torch.autocast


RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@contextlib.contextmanager
def layers_of_any_length(torch):
    """Within, recurrent layers only tell their shapes, where PyTorch would walk along the example's length and so fix it."""
    def shapes(x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):
        states = [h.clone() for h in (hx if isinstance(hx, (list, tuple)) else [hx])]
        return (x.new_empty(x.shape[:2] + (states[0].shape[-1] * (2 if bidirectional else 1),)), *states)

    layers = [getattr(torch.ops.aten, name).input for name in RECURRENT]
    saved = [dict(layer.py_kernels) for layer in layers]

    def use(kernels):
        for layer, own in zip(layers, kernels):
            layer.py_kernels.update(own)
            layer._dispatch_cache.clear()

    use([dict.fromkeys(own, shapes) for own in saved])
    try:
        yield
    finally:
        use(saved)


@contextlib.contextmanager
def any_size(torch):
    """Within, torch.export takes no size for 2 or more, and so records the conditions that are false at 0 or 1. Gives whether
    this PyTorch can."""
    from torch.fx.experimental import _config as config
    can = hasattr(config, "backed_size_oblivious")
    with config.patch(backed_size_oblivious=True) if can else contextlib.nullcontext():
        yield can


def decomposed(torch, node):
    """The graph of the operators that PyTorch makes of one that has no row here; None: it makes nothing of it."""
    target, sources = node.target, node.all_input_nodes
    known = not isinstance(target, torch._ops.OpOverload) or target._schema.name.split("::")[1] in OPERATIONS
    values = [source.meta.get("val") for source in sources]
    modes = [x.fake_mode for x in values if hasattr(x, "fake_mode")]
    if known or target._schema.is_mutable or not modes or not all(isinstance(x, (torch.Tensor, torch.SymInt)) for x in values):
        return None
    from torch._decomp import decomposition_table
    from torch.fx.experimental.proxy_tensor import make_fx

    def apply(*given):
        own = dict(zip(sources, given))
        arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), own.get)
        result = decomposition_table.get(target, target)(*arguments, **keywords)
        return list(result) if isinstance(result, (list, tuple)) else result

    try:
        with modes[0]:
            graph = make_fx(apply)(*values).graph
    except Exception:  # whatever PyTorch's own code raises: the operator is refused by its own name
        return None
    calls = [inner for inner in graph.nodes if inner.op == "call_function"]
    for inner in calls:
        inner.meta.update({key: node.meta.get(key) for key in ("stack_trace", "nn_module_stack")})
    own = [inner.target for inner in calls if isinstance(inner.target, torch._ops.OpOverload)]
    return None if any(other == target or other.namespace != "aten" for other in own) else graph


@contextlib.contextmanager
def noted_backwards(torch):
    """Within, the subclasses of torch.autograd.Function that are applied and are not PyTorch's own; gives their names."""
    names, function = [], torch.autograd.Function
    apply = function.__dict__["apply"]

    def noting(cls, *arguments, **keywords):
        if not cls.__module__.startswith("torch."):
            names.append(cls.__name__)
        return apply.__get__(None, cls)(*arguments, **keywords)

    function.apply = classmethod(noting)
    try:
        yield names
    finally:
        function.apply = apply


def check_backwards(names, trains):
    """Refuses gradients that are not those of the forward operations, or says that they will be lost."""
    if names and trains:
        raise Refused(f"{names[0]} is an autograd.Function, whose own backward would be lost; write it with detach, as in "
                      "x + (f(x) - x).detach(), or export in evaluation mode without a loss")
    if names:
        warnings.warn(f"{names[0]} is an autograd.Function: gradients follow its forward's operations, not its backward", stacklevel=3)


def agrees_at_one(torch, program, root, inputs, varying):
    """Whether a program that was captured for batches of 2 and more gives what the module gives for a batch of 1."""
    one = [x[:1] if axes.get(0) == -1 else x for x, axes in zip(inputs, varying)]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            own = copy.deepcopy(root)(*one)
            captured = program.module(check_guards=False)(*one)
    except Exception:  # of the module or of PyTorch, which has no such program
        return False
    return all(torch.is_tensor(a) and torch.is_tensor(b) and a.shape == b.shape and
               torch.allclose(a.double(), b.double(), 1e-4, 1e-5, equal_nan=True) for a, b in zip(own, captured, strict=True))


def capture_export(torch, root, inputs, varying, bounds, functional=False):
    """By torch.export, whose sizes are symbolic. bounds: of named sizes, as in the spec. functional: nothing is changed in place;
    None if a parameter or buffer is."""
    auto, is_named = torch.export.Dim.AUTO, any(any_varies(axes.values()) for axes in varying)
    with any_size(torch) as is_oblivious, layers_of_any_length(torch) if is_named else contextlib.nullcontext():
        program = torch.export.export(root, inputs, dynamic_shapes={"inputs": tuple(dict.fromkeys(axes, auto) for axes in varying)})
    if functional:
        program = program.run_decompositions({})
        if any(spec.kind != torch.export.graph_signature.OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs):
            return None
    kinds, captured = torch.export.graph_signature.InputKind, Captured()
    state = dict(program.constants, **root.state_dict(keep_vars=True))
    first = first_names(root)
    for spec in program.graph_signature.input_specs:
        if spec.kind == kinds.USER_INPUT:
            captured.inputs.append(spec.arg.name)
        elif spec.kind in (kinds.PARAMETER, kinds.BUFFER):
            tensor = state[spec.target]
            captured.parameters[spec.arg.name] = (first.get(id(tensor), own_name(spec.target)), tensor, spec.kind == kinds.BUFFER)
        else:
            captured.constants[spec.arg.name] = state[spec.target]

    symbols = captured.symbols
    number = symbols.number
    for name, own in bounds.items():
        symbols.narrow(name, own.get("min", 1), own.get("max", math.inf))

    def define(node, axes):
        """Makes known what the axes of an input are."""
        for axis, dim in axes.items():
            place = f"axis {axis} of input {captured.inputs.index(node.name)}"
            limits = program.range_constraints.get(symbols.define(node.meta["val"].shape[axis], dim, place))
            if limits is not None and varies(dim):  # without any_size 2 is PyTorch's own least, of everything
                symbols.narrow(str(dim), int(limits.lower) if limits.lower > 2 or is_oblivious else 1,
                               math.inf if limits.upper > sizes.MOST else int(limits.upper))

    def shape(x):
        return tuple(n.dim if isinstance(n, Size) else n for n in map(number, x.shape)), x.dtype

    def argument(x, known):
        if isinstance(x, torch.fx.Node):
            value = x.meta.get("val")
            return known[x] if x in known else number(value) if isinstance(value, (int, torch.SymInt)) else Reference(x.name)
        return [argument(y, known) for y in x] if isinstance(x, (list, tuple)) else x

    def call(node, name, op, function, given, known):
        lines = (node.meta.get("stack_trace") or "").splitlines()
        frames = [(line.split('"')[1], line.split("line ")[1].split(",")[0], code.strip())
                  for line, code in zip(lines, lines[1:] + [""]) if line.strip().startswith('File "')]
        place, paths = source_place(torch, frames), [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
        value = node.meta.get("val")
        try:
            arguments = {key: argument(x, known) for key, x in given.items()}
            shapes = [shape(v) for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, torch.Tensor)]
        except Refused as why:
            arguments, shapes = why, []
        captured.calls.append(Call(op, function, arguments, [name], shapes, place, own_name(paths[-1]) if paths else ""))
        return Reference(name)

    def value_of(x):
        return x.meta["val"] if isinstance(x, torch.fx.Node) else x

    def open_slice(node, self, dim=0, start=None, end=None, step=1):
        places = [value_of(x) for x in (start or 0, sys.maxsize if end is None else end)]
        symbols.open_slice(node.meta["val"].shape[dim], value_of(self).shape[dim], *places, step)

    def hold_inside(self, dim, index=0, start=0, length=1):
        place = value_of(index or start)
        if isinstance(place, torch.SymInt):
            symbols.inside(value_of(self).shape[dim], place, value_of(length))

    def region(node, inside, known, prefix):
        """The results of a graph within the graph, a part of the module that runs in another mode."""
        operands = [x for x in node.args if isinstance(x, torch.fx.Node)][1:]
        known = dict(zip(inside.nodes, [argument(x, known) for x in operands]))  # its inputs are its first nodes
        results = walk(inside, known, prefix)
        if node.target.__name__ == "wrap_with_set_grad_enabled" and not node.args[0]:
            last = next(n for n in inside.nodes if n.op == "output").args[0]
            results = [call(n, f"{prefix}{i}", "detach", None, {"self": n}, known) for i, n in enumerate(last)]
        return results

    def walk(graph, known, prefix=""):
        """Captures the calls of a graph. known: by node, what it is, where that is not the result that has its name."""
        for node in graph.nodes:
            value, names, op, function, given = node.meta.get("val"), ("x", "index"), "", None, {}
            if node.op == "output":
                return argument(node.args[0], known)
            if node.op != "call_function" or isinstance(value, (int, torch.SymInt, torch.SymFloat, torch.SymBool)):
                continue  # calls that compute sizes: who reads one gets its value
            op = node.target.__name__
            if op in REGIONS:
                inside = next(x for x in node.args if isinstance(x, torch.fx.Node))
                inside = getattr(graph.owning_module, inside.target).graph
                known[node] = region(node, inside, known, f"{prefix}{node.name}.")
            elif op == "getitem" and isinstance(known.get(node.args[0]), list):
                known[node] = known[node.args[0]][node.args[1]]
            elif isinstance(node.target, type):  # a named tuple of results
                known[node] = [argument(x, known) for x in node.args]
            elif (inside := decomposed(torch, node)) is not None:
                given = dict(zip(inside.nodes, [argument(x, known) for x in node.all_input_nodes]))
                known[node] = walk(inside, given, f"{prefix}{node.name}.")
            else:
                if isinstance(node.target, torch._ops.OpOverload):
                    schema = node.target._schema
                    names, op = [a.name for a in schema.arguments], schema.name.split("::")[1]
                    function = evaluator(node.target, schema)
                    given = {a.name: a.default_value if a.has_default_value() else None for a in schema.arguments}
                given.update(list(zip(names, node.args)) + list(node.kwargs.items()))
                if op == "slice":
                    open_slice(node, **given)
                if op in ("select", "narrow"):
                    hold_inside(**given)
                known[node] = call(node, prefix + node.name, op, function, given, known)
        return []

    for node in program.graph.nodes:
        if node.name in captured.inputs:
            define(node, varying[captured.inputs.index(node.name)])
    for condition, place in own_guards(torch, program):
        try:
            symbols.guard(condition)
        except NotOfOne as why:
            if not agrees_at_one(torch, program, root, inputs, varying):
                raise Refused(f"({place}) {why}") from None
        except Refused as why:
            raise Refused(f"({place}) {why}") from None
    captured.outputs = walk(program.graph, {})
    return captured


# What a trace computes with sizes; of div, only that of whole numbers.
NUMBER_OPS = {"aten::add": operator.add, "aten::sub": operator.sub, "aten::mul": operator.mul,
              "aten::floor_divide": operator.floordiv,
              "aten::div": operator.floordiv, "aten::floordiv": operator.floordiv, "aten::remainder": operator.mod}
SAME_NUMBER = ("prim::NumToTensor", "aten::Int", "aten::IntImplicit", "aten::ScalarImplicit")


def capture_trace(torch, root, inputs, varying, _):
    """By torch.jit.trace at two batch sizes, whose graphs differ in the sizes that depend on the batch."""
    if any(any_varies(axes.values()) for axes in varying):
        raise Refused("sizes that vary beside the batch need PyTorch 2.7")
    graphs = []
    for batch in BATCHES:
        example = tuple(torch.cat([x] * batch)[:batch] if axes else x for x, axes in zip(inputs, varying))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graphs.append(torch.jit.trace(copy.deepcopy(root), example, check_trace=False).inlined_graph)
    nodes = [list(graph.nodes()) for graph in graphs]
    if [n.kind() for n in nodes[0]] != [n.kind() for n in nodes[1]]:
        raise Refused("the operations depend on the batch size; use dynamic_batch=False")
    captured, first = Captured(), first_names(root)
    state, known = root.state_dict(keep_vars=True), {}  # known: by a value's name in the first graph, what it is
    values = list(graphs[0].inputs())
    known[values[0].debugName()] = ""  # a module is its path
    captured.inputs = [v.debugName() for v in values[1:]]
    is_buffer = dict({name: True for name, _ in root.named_buffers()}, **{name: False for name, _ in root.named_parameters()})
    shapes = {}

    def at(x, i):
        return -x.dim * BATCHES[i] if isinstance(x, Size) else x

    def tensor_shape(name, types):
        if types[0].kind() != "TensorType" or types[0].sizes() is None:
            return []
        shapes[name] = tuple(map(dim_of, zip(types[0].sizes(), types[1].sizes())))
        return [(shapes[name], types[0].dtype())]

    for value, other in zip(values[1:], list(graphs[1].inputs())[1:]):
        tensor_shape(value.debugName(), (value.type(), other.type()))
    for node, other in zip(*nodes):
        kind, outputs = node.kind(), [v.debugName() for v in node.outputs()]
        given = [known.get(v.debugName(), Reference(v.debugName())) for v in node.inputs()]
        if kind in NUMBER_OPS or kind in SAME_NUMBER:  # sizes and what is computed from them
            scalars = [captured.constants.get(x.name) if isinstance(x, Reference) else None for x in given]
            given = [x if t is None or t.dim() else t.item() for x, t in zip(given, scalars)]
        numbers = all(isinstance(x, (int, Size)) for x in given[:2]) and not (kind == "aten::div" and len(given) == 2)
        if kind == "prim::GetAttr":
            path = f"{given[0]}.{node.s('name')}".lstrip(".")
            if path not in state:
                known[outputs[0]] = path
            else:
                captured.parameters[outputs[0]] = (first[id(state[path])], state[path], is_buffer[path])
                shapes[outputs[0]] = tuple(state[path].shape)
        elif kind == "prim::Constant":
            constant = next(node.outputs()).toIValue()
            if isinstance(constant, torch.Tensor):
                captured.constants[outputs[0]] = constant
                shapes[outputs[0]] = tuple(constant.shape)
            else:
                known[outputs[0]] = constant
        elif kind in ("prim::ListConstruct", "prim::TupleConstruct"):
            known[outputs[0]] = given
        elif kind in ("prim::ListUnpack", "prim::TupleUnpack") and isinstance(given[0], list):
            known.update(zip(outputs, given[0]))
        elif kind in SAME_NUMBER and numbers:
            known[outputs[0]] = given[0]
        elif kind == "aten::size" and len(given) == 2:
            dim = shapes[given[0].name][given[1]]
            known[outputs[0]] = dim if dim >= 0 else Size(dim)
        elif kind in NUMBER_OPS and numbers:
            known[outputs[0]] = size_of([NUMBER_OPS[kind](at(given[0], i), at(given[1], i)) for i in range(2)])
        else:
            frames = [(line.split("(")[0], line.split("(")[1].split(")")[0], "") for line in node.sourceRange().splitlines()
                      if "): " in line]
            place, path = source_place(torch, frames[::-1]), own_name(node.scopeName().split("/")[-1].replace("__module.", ""))
            kinds = [(a.type(), b.type()) for a, b in zip(node.outputs(), other.outputs())]
            if kind in ("prim::ListUnpack", "prim::TupleUnpack"):
                for i, (name, types) in enumerate(zip(outputs, kinds)):
                    shape = tensor_shape(name, types)
                    captured.calls.append(Call("getitem", None, {"x": given[0], "index": i}, [name], shape, place, path))
                continue
            op, function, arguments, found = kind.split("::")[1], None, Refused("it is no operator of PyTorch's"), []
            if kind.startswith("aten::"):
                schema = torch._C.parse_schema(node.schema())
                function = evaluator(getattr(torch.ops.aten, op), schema)
                arguments = dict(zip([a.name for a in schema.arguments], given))
            try:
                for name, types in zip(outputs, kinds):
                    found += tensor_shape(name, types)
            except Refused as why:
                arguments = why
            captured.calls.append(Call(op, function, arguments, outputs, found, place, path))
    result = known.get(next(graphs[0].outputs()).debugName())
    captured.outputs = result if isinstance(result, list) else [Reference(next(graphs[0].outputs()).debugName())]
    return captured


# ---- the spec that is being written ------------------------------------------------------------------------------------
class TorchWriter(Writer):
    """The Writer of a module's tensors."""

    def __init__(self, torch, root, taken, modules):
        super().__init__(set(taken) | modules)
        self.torch, self.training, self.modules = torch, root.training, modules
        self.trains = root.trains  # gradients are wanted
        self.own_dtype = dtype_of_parameters(root)
        self.points = []  # two sets of sizes, numbers by names
        self.wanted = set()  # which results of the call at hand are read
        self.ranges = set()  # entries that count the samples: 0, 1, ...
        self.small = set()  # entries of integers that stay below 2^24
        self.steps = {}  # entries of 0, step, 2 step, ...: the step

    def rounds(self, dtype):
        """Whether a cast to a dtype of floats rounds: to 16 bits, in a model that does not compute with these anyway."""
        return dtype in (self.torch.float16, self.torch.bfloat16) and dtype != self.own_dtype

    def constant_of(self, x):
        return Constant(self.torch.tensor(x))

    def numbers(self, values, shape):
        return Constant(self.torch.tensor([float(x) for x in values]).reshape(shape))

    @staticmethod
    def f32_bytes(tensor):
        return tensor.detach().cpu().float().contiguous().numpy().tobytes()

    @staticmethod
    def integer_values(tensor):
        return tensor.detach().cpu().long().flatten().tolist()

    def is_exact(self, x):
        return is_exact(self, x)

    @staticmethod
    def init_of(tensor):
        values = tensor.detach().double()
        mean, spread = float(values.mean()), float(values.std(unbiased=False))
        init = {"kind": "normal", "a": mean, "b": spread} if spread else {"kind": "constant", "a": mean}
        return init if math.isfinite(mean) else None

    def tensor(self, x):
        if isinstance(x, Size):
            if not varies(x.dim):
                raise Refused("the batch size is used as a number")
            x = self.number_of(x.dim)
        return self.whole_numbers(x) if isinstance(x, Constant) and is_large(self, x) else super().tensor(x)

    def counting(self, count):
        result = super().counting(count)
        self.ranges.update([result.entry] if count < 0 else [])
        return result

    def add(self, op, inputs, size, /, *rest, **given):
        for name, x in given.items():
            for y in x if isinstance(x, (list, tuple)) else [x]:
                if isinstance(y, Size):
                    raise Refused(f"its {name} depends on {size_name(y.dim)}")
        return super().add(op, inputs, size, *rest, **given)

    def slice(self, x, axis, start, end, step=1):
        end = None if end == Size(x.full[axis]) else end
        start, end = [place_of(place, x.full[axis]) for place in (start, end)]
        if x.full[axis] > 0 and not any_varies((start, end)) and not range(*slice(start, end, step).indices(x.full[axis])):
            full = x.full[:axis] + (0,) + x.full[axis + 1:]
            return Constant(self.torch.zeros([1 if size < 0 else size for size in full]), full)
        return super().slice(x, axis, start, end, step)

    def free_name(self, call):
        """A name for a layer that has no parameter to tell it."""
        free = call.path not in self.layers and (call.path in self.modules or call.path not in self.taken)
        return call.path if call.path and free else self.unique(call.op)


# ---- the operations ----------------------------------------------------------------------------------------------------
# Each gets the Writer, the Call and the arguments by the names of PyTorch's schema (its self and input are x here); the result is
# a Value, a Constant, or a tuple of them.
OPERATIONS = {}


def operation(*names):
    def register(function):
        OPERATIONS.update({name: function for name in names})
        return function
    return register


def number(x):
    """x as a float, where it is known and has no shape; else None."""
    if isinstance(x, Constant) and x.full == ():
        return float(x.tensor)
    return float(x) if is_number(x) else None


def reads(*names):
    """Names the arguments that an operation reads besides those of its signature."""
    def mark(function):
        function.reads = names
        return function
    return mark


def known_number(name, x):
    if number(x) is None:
        raise Refused(f"its {name} is not known beforehand")
    return number(x)


def table_op(op):
    """An op of gpunn.h's table over x, whose attributes have torch's names and defaults."""
    @reads(*[name for name, _ in op.attrs])
    def lower(w, call, x, **given):
        return w.map(op.name, x, **{name: known_number(name, given.get(name, value)) for name, value in op.attrs})
    return lower


UNARY = {op.name: op for op in table.ops().values() if op.arity == 1}
for torch_name, own in {**{name: name for name in UNARY}, "log_sigmoid": "logsigmoid", "absolute": "abs", "negative": "neg",
                        "sgn": "sign", "special_erf": "erf", "special_expit": "sigmoid", "special_expm1": "expm1",
                        "special_log1p": "log1p"}.items():
    OPERATIONS[torch_name] = table_op(UNARY[own])


def formula(expression):
    """expression over x, y, z with {name} for the operation's arguments."""
    names = [name for _, name, _, _ in string.Formatter().parse(expression) if name]

    @reads(*names)
    def lower(w, call, x, y=None, z=None, **arguments):
        values = {name: text(known_number(name, arguments[name])) for name in names}
        return w.expr(expression.format(**values), *[t for t in (x, y, z) if t is not None])
    return lower


for torch_name, expression in {
        "softshrink": "where(x > {lambd}, x - {lambd}, where(x < -{lambd}, x + {lambd}, 0 * x))",
        "threshold": "where(x <= {threshold}, {value}, x)",
        **named("tan", "ceil", "trunc", "frac", "erfc", "lgamma", "isnan", "isinf", "isfinite", "logical_not"),
        "bitwise_not": named("logical_not")["logical_not"], "sinc": "p = pi * (1 if x == 0 else x); 1 if x == 0 else sin(p) / p",
        "deg2rad": "x * (pi / 180)", "rad2deg": "x * (180 / pi)",
        "isposinf": "where(x > 3.4028234e38, 1, 0)", "isneginf": "where(x < -3.4028234e38, 1, 0)"}.items():
    OPERATIONS[torch_name] = formula(expression)


@operation("atan2", "hypot", "logaddexp", "remainder", "fmod")
def of_two(w, call, x, other):
    return w.map(call.op, x, other)


@operation("round")
def rounded(w, call, x, decimals=0):
    """Halves to the even number; decimals below 0 are places before the point."""
    scale = text(10.0 ** abs(decimals))
    y = w.expr(f"x * {scale}" if decimals > 0 else f"x / {scale}", x) if decimals else x
    y = w.expr(named("round")["round"], y)
    return w.expr(f"x / {scale}" if decimals > 0 else f"x * {scale}", y) if decimals else y


@operation("xlogy")
def xlogy(w, call, x, other):
    return w.expr(named("xlogy")["xlogy"], x, other)


@operation("gelu")
def gelu(w, call, x, approximate="none"):
    return w.map("gelu_tanh" if approximate == "tanh" else "gelu", x)


@operation("elu")
def elu(w, call, x, alpha=1, scale=1, input_scale=1):
    if number(scale) != 1 or number(input_scale) != 1:
        raise Refused("only scales of 1 are possible")
    return w.map("elu", x, alpha=number(alpha))


@operation("clamp", "clip", "clamp_min", "clamp_max")
def clamp(w, call, x, min=None, max=None):
    if all(limit is None or number(limit) is not None for limit in (min, max)):
        return w.map("clamp", x, min=None if min is None else number(min), max=None if max is None else number(max))
    x = x if min is None else w.map("maximum", x, min)
    return x if max is None else w.map("minimum", x, max)


@operation("prelu")
def prelu(w, call, x, weight):
    name, count = w.layer_name(weight=weight), product(weight.full)
    if name:
        return w.layer("prelu", name, x, x.full, {"weight": weight}, num_parameters=None if count == 1 else count)
    return w.map("parametric_relu", x, weight if count == 1 else w.reshape(weight, (count,) + (1,) * (len(x.full) - 2)))


@operation("glu")
def glu(w, call, x, dim=-1):
    dim = normal_axis(dim, len(x.full))
    half = x.full[dim] // 2
    return w.map("mul", w.slice(x, dim, 0, half), w.map("sigmoid", w.slice(x, dim, half, None)))


def truth(w, x):
    """1 where x is true, else 0."""
    return w.f32(x) if dtype_of(w, x) == "bool" else w.expr("where(x == 0, 0, 1)", x)


def logical(name):
    def lower(w, call, x, other):
        dtype, op = call.shapes[0][1], call.op.rpartition("bitwise_")[2].strip("_")
        if call.op.startswith(("bitwise", "__")) and dtype != w.torch.bool:
            y = w.bitwise_of_integers(op, x, other) if dtype != w.torch.uint8 else w.whole(w.bitwise(op, x, other, 0, 255))
            kind = dtype_name(w.torch, dtype)
            return y if y.dtype == kind else w.add("cast", [y], y.shape, y.full, kind=kind, dtype=kind)
        return w.map(name, truth(w, x), truth(w, other))
    return lower


for torch_name, own in {"logical_and": "mul", "bitwise_and": "mul", "__and__": "mul", "logical_or": "maximum",
                        "bitwise_or": "maximum", "__or__": "maximum", "logical_xor": "ne", "bitwise_xor": "ne",
                        "__xor__": "ne"}.items():
    OPERATIONS[torch_name] = logical(own)


@operation("add")
def add(w, call, x, other, alpha=1):
    if call.shapes[0][1] == w.torch.bool:
        return w.map("maximum", truth(w, x), truth(w, other))
    if whole_number(other) == 0 and is_whole(w, x) != call.shapes[0][1].is_floating_point:
        return x
    if number(x) is not None and number(other) is None:
        return w.map("add_scalar", w.scale(other, number(alpha)), value=number(x))
    if number(other) is not None:
        return w.map("add_scalar", x, value=number(other) * number(alpha))
    return w.map("add", x, w.scale(other, number(alpha)))


@operation("sub", "subtract")
def sub(w, call, x, other, alpha=1):
    if number(other) is not None:
        return w.map("add_scalar", x, value=-number(other) * number(alpha))
    return w.map("sub", x, w.scale(other, number(alpha)))


@operation("rsub")
def rsub(w, call, x, other, alpha=1):
    return w.map("sub", other, w.scale(x, number(alpha)))


@operation("mul", "multiply")
def mul(w, call, x, other):
    if isinstance(x, Complex) and isinstance(other, Complex):
        operands = x.real, x.imag, other.real, other.imag
        return Complex(w.expr("x0 * x2 - x1 * x3", *operands), w.expr("x0 * x3 + x1 * x2", *operands))
    if isinstance(x, Complex) or isinstance(other, Complex):
        x, other = (x, other) if isinstance(x, Complex) else (other, x)
        return Complex(mul(w, call, x.real, other), mul(w, call, x.imag, other))
    if number(x) is not None:
        x, other = other, x
    return w.map("mul", x, other) if number(other) is None else w.map("mul_scalar", x, value=number(other))


def batch_mean(w, x, batches):
    """x / (batches times the batch), where x is a sum over the batch; None where it is none."""
    entry = x.entry
    if entry.op.endswith("_loss") or entry.op in ("bce_with_logits", "kl_div", "cross_entropy"):
        if entry.attributes.get("reduction") != "sum" or entry.inputs[0].shape[:1] != (-1,):
            return None
        attributes, classes = dict(entry.attributes), entry.op in ("cross_entropy", "nll_loss")
        if batches == 1 and not classes:
            return w.add(entry.op, entry.inputs, (), **dict(attributes, reduction="batchmean"))
        each = w.add(entry.op, entry.inputs, entry.inputs[1].shape, **dict(attributes, reduction="none"))
        axes, keepdim = list(range(len(each.shape))), False
    elif entry.op == "sum":
        each, keepdim = entry.inputs[0], bool(entry.attributes.get("keepdim"))
        axes = normal_axes(entry.attributes.get("dims"), len(each.shape))
    else:
        return None
    along = [i for i in axes if each.shape[i] < 0]
    if not along:
        return None
    inner = [i for i in axes if i not in along]
    y = w.reduce("sum", each, inner, True) if inner else each
    y = w.reduce("mean", y, along, True)
    return w.scale(w.reshape(y, x.shape), -each.shape[along[0]] / batches)


@operation("div", "divide", "true_divide", "floor_divide")
def div(w, call, x, other, rounding_mode=None):
    if isinstance(x, Complex):
        return Complex(div(w, call, x.real, other), div(w, call, x.imag, other))
    if isinstance(other, Size) and not varies(other.dim):
        y = batch_mean(w, x, -other.dim) if isinstance(x, Value) else None
        if y is None:
            raise Refused("only a sum over the batch can be divided by its size")
    elif number(other):
        y = w.map("mul_scalar", x, value=1 / number(other))
    elif number(x) == 1:
        y = w.map("reciprocal", other)
    else:
        y = w.map("div", x, other)
    if rounding_mode is None and call.op != "floor_divide":
        return y
    if rounding_mode == "trunc":
        return w.expr("where(x < 0, -floor(-x), floor(x))", y if number(other) is None else w.map("div", x, other))
    return w.map("floor_divide", x, other)


@operation("pow", "float_power")
def power(w, call, x, exponent):
    special = {2: "square", 0.5: "sqrt", -1: "reciprocal", -0.5: "rsqrt"}.get(number(exponent))
    if special:
        return w.map(special, x)
    return w.map("pow", x, exponent) if number(exponent) is None else w.map("pow_scalar", x, exponent=number(exponent))


def pair_op(name):
    return lambda w, call, x, other: w.map(name, x, other)


for torch_name in ("maximum", "minimum"):
    OPERATIONS[torch_name] = pair_op(torch_name)


def comparison(name):
    return lambda w, call, x, other: w.map(name, x, other)


def is_large(w, x):
    """Whether x may be an integer of 2^24 or more: one that is given, or such a constant."""
    if isinstance(x, (int, float)):
        return isinstance(x, int) and abs(x) >= 2 ** 24
    if isinstance(x, Constant):
        return not x.tensor.is_floating_point() and bool((x.tensor.double().abs() >= 2 ** 24).any())
    x = w.tensor(x)
    whole = x.dtype in ("i64", "i32")
    while x.entry.op in ("reshape", "cast") and x.entry not in w.small:
        x = x.entry.inputs[0]
    return whole and not (x.is_bool or x.dtype in ("bool", "u8") or x.entry.op in ("argmax", "topk_indices", "one_hot") or
                          x.entry in w.ranges or x.entry in w.small)


for torch_name in ("eq", "ne", "lt", "le", "gt", "ge"):
    OPERATIONS[torch_name] = comparison(torch_name)


@operation("where")
def where(w, call, condition, x, other):
    return w.map("where", condition, x, other)


@operation("masked_fill")
def masked_fill(w, call, x, mask, value):
    return w.map("where", mask, value, x)


@operation("masked_scatter")
def masked_scatter(w, call, x, mask, source):
    """The elements of source, one after another, where the mask holds."""
    inside = w.reshape(w.whole(w.view(w.tensor(truth(w, mask)), x.full)), (product(x.full),))
    source = w.reshape(source, (product(source.full),))
    order = w.add("cumsum", [inside], inside.shape, dim=0)
    place = w.expr(f"min(max(x - 1, 0), {w.known_size(source, 0) - 1})", order)
    own = w.reshape(gather(w, call, source, 0, place), x.full)
    return w.integer("where", mask, own, x) if is_exact(w, x) else w.map("where", mask, own, x)


# Ops that integers have of their own, by torch's names; those of two operands with that of exchanged ones, where there is one.
INTEGER_UNARY = {"neg": "neg", "negative": "neg", "abs": "abs", "absolute": "abs", "sign": "sign", "sgn": "sign"}
INTEGER_BINARY = {"add": ("add", "add"), "sub": ("sub", None), "subtract": ("sub", None), "mul": ("mul", "mul"),
                  "multiply": ("mul", "mul"), "floor_divide": ("floor_divide", None), "remainder": ("remainder", None),
                  "fmod": ("fmod", None), "maximum": ("maximum", "maximum"), "minimum": ("minimum", "minimum"), "eq": ("eq", "eq"),
                  "ne": ("ne", "ne"), "lt": ("lt", "gt"), "gt": ("gt", "lt"), "le": ("le", "ge"), "ge": ("ge", "le")}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def whole_number(x):
    """x as an integer, where it is known and has no shape; else None."""
    if isinstance(x, Constant) and x.full == () and not x.tensor.is_floating_point():
        return int(x.tensor)
    return x if isinstance(x, int) else None


def is_whole(w, x):
    """Whether x is integers or bool, also where gpunn has them as floats."""
    if isinstance(x, Constant):
        return not x.tensor.is_floating_point()
    return isinstance(x, (bool, int)) or (isinstance(x, Value) and (x.is_bool or x.dtype != "f32"))


def integer_pair(w, name, x, other):
    """An op of two integers, of which one may be a number."""
    op, exchanged = INTEGER_BINARY[name]
    if whole_number(x) is not None:
        if exchanged:
            return w.integer(exchanged, other, whole_number(x))
        x = Constant(w.torch.tensor(whole_number(x)))
    return w.integer(op, x, other if whole_number(other) is None else whole_number(other))


def exactly(w, call, op, alpha=1, rounding_mode=None, min=None, max=None, condition=None, mask=None, value=None, **arguments):
    """The result of an op of integers that 32-bit floats may not have; None: it is none."""
    x, other = arguments.get("x"), arguments.get("other")
    given = [y for y in (x, other, min, max, value) if y is not None]
    large = [y for y in given if is_whole(w, y) and is_large(w, y)]
    if not large or not all(is_whole(w, y) for y in given) or call.shapes[0][1].is_floating_point or \
            (op in COMPARISONS and len(large) < 2):
        return None
    if op == "div":
        op = {"floor": "floor_divide", "trunc": "trunc"}.get(rounding_mode, op)
    if op in ("max", "min") and other is not None:
        op = {"max": "maximum", "min": "minimum"}[op]
    if op in INTEGER_UNARY:
        result = w.integer(INTEGER_UNARY[op], x)
    elif op in INTEGER_BINARY or op == "rsub":
        x, other = (other, x) if op == "rsub" else (x, other)
        scaled = other if alpha == 1 else integer_pair(w, "mul", other, alpha)
        result = integer_pair(w, "sub" if op == "rsub" else op, x, scaled)
    elif op == "bitwise_not":
        result = integer_pair(w, "sub", -1, x)
    elif op == "square" or (op == "pow" and 0 < (whole_number(arguments["exponent"]) or 0) < 64):
        count = 2 if op == "square" else whole_number(arguments["exponent"])
        result = functools.reduce(functools.partial(w.integer, "mul"), [x] * count)
    elif op == "trunc":
        result = w.integer("trunc_divide", x, other if whole_number(other) is None else whole_number(other))
    elif op in ("clamp", "clip", "clamp_min", "clamp_max"):
        result = x if min is None else integer_pair(w, "maximum", x, min)
        result = result if max is None else integer_pair(w, "minimum", result, max)
    elif op == "where":
        result = w.integer("where", condition, x, other if whole_number(other) is None else whole_number(other))
    elif op == "masked_fill":
        value = value if whole_number(value) is None else whole_number(value)
        result = w.integer("where", w.integer("logical_not", mask), x, value)
    else:
        return None
    kind = dtype_name(w.torch, call.shapes[0][1])
    return result if result.dtype == kind else w.add("cast", [result], result.shape, result.full, kind=kind, dtype=kind)


@operation("logit")
def logit(w, call, x, eps=None):
    limited = "x" if eps is None else f"clamp(x, {text(eps)}, {text(1 - eps)})"
    return w.expr(f"p = {limited}; log(p / (1 - p))", x)


@operation("nan_to_num")
def nan_to_num(w, call, x, nan=None, posinf=None, neginf=None):
    high, low = [text(limit if given is None else given) for limit, given in ((3.4028235e38, posinf), (-3.4028235e38, neginf))]
    return w.expr(f"{text(nan or 0)} if x != x else {high} if x > 3.4028234e38 else {low} if x < -3.4028234e38 else x", x)


@operation("lerp")
def lerp(w, call, x, end, weight):
    return w.expr("x + z * (y - x)", x, end, weight)


@operation("addcmul")
def addcmul(w, call, x, tensor1, tensor2, value=1):
    return w.map("add", x, w.scale(w.map("mul", tensor1, tensor2), number(value)))


@operation("addcdiv")
def addcdiv(w, call, x, tensor1, tensor2, value=1):
    return w.map("add", x, w.scale(w.map("div", tensor1, tensor2), number(value)))


# -- what changes neither values nor their order --
@operation("detach")
def detach(w, call, x):
    if not has_gradient(x):
        return same(w, call, x)
    x = w.f32(x)
    return w.map("detach", x, view_of=x)


@operation("fill", "zero")
def fill(w, call, x, value=0):
    if number(value) is None:
        return copied(w, call, x, value)
    dtype = call.shapes[0][1]
    value = Constant(w.torch.tensor(value if is_number(value) else number(value)).to(dtype))
    y = w.view(w.tensor(value), x.full)
    return y if dtype.is_floating_point or dtype == w.torch.bool or is_large(w, value) else small_integers(w, y)


@operation("copy")
def copied(w, call, x, src, **_):
    return w.view(w.f32(src) if call.shapes[0][1].is_complex else to(w, call, src), x.full)


@operation("contiguous", "alias", "lift", "lift_fresh", "lift_fresh_copy", "requires_grad")
def same(w, call, x, **_):
    return w.view(x, x.full) if isinstance(x, Value) else x


@operation("clone")
def clone(w, call, x, **_):
    x = w.tensor(x)
    result = w.view(x, x.full)
    result.memory = result  # PyTorch's copy
    return result


@operation("to", "_to_copy", "type_as", "float", "double", "half", "bfloat16", "_cast_Float")
@reads("other")
def to(w, call, x, **_):
    dtype = call.shapes[0][1]
    if dtype.is_complex:
        return x if isinstance(x, Complex) else Complex(w.f32(x), w.view(w.tensor(0.0), x.full))
    if dtype.is_floating_point:
        x = w.f32(x)
        return rounded_to_half(w, x, dtype) if w.rounds(dtype) else w.view(x, x.full)
    kind = dtype_name(w.torch, dtype)
    x = w.whole(x)
    return x if kind == x.dtype else w.add("cast", [x], x.shape, kind=kind, dtype=kind)


def rounded_to_half(w, x, dtype):
    """x rounded to the nearest number of 16 bits, to the even one of two; the gradient passes unchanged."""
    bits, least, most = (10, -14, 65504.0) if dtype == w.torch.float16 else (7, -126, 3.3895314e38)
    fixed = w.map("detach", x)
    unit = w.expr(f"exp2(max(floor(log2(max(abs(x), 1e-38))), {text(least)}) - {text(bits)})", fixed)
    nearest = w.map("mul", w.expr(named("round")["round"], w.map("div", fixed, unit)), unit)
    nearest = w.expr(f"y if abs(y) <= {text(most)} else x * 3e38", fixed, nearest)
    return w.expr("x + (z - y) if abs(x) <= 3.4028234e38 else x", x, fixed, nearest)


@operation("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as", "ravel")
@reads("size", "shape", "dim", "sizes", "start_dim", "end_dim", "other")
def reshape(w, call, x, **_):
    return w.reshape(x, call.shapes[0][0])


@operation("expand", "expand_as", "broadcast_to")
@reads("size", "other")
def expand(w, call, x, **_):
    full = call.shapes[0][0]
    return Constant(x.tensor, full) if isinstance(x, Constant) else w.view(w.tensor(x), full)


@operation("broadcast_tensors")
def broadcast_tensors(w, call, tensors):
    full = broadcast([x.full for x in tensors])
    return tuple(x if x.full == full else w.view(w.tensor(x), full) for x in tensors)


@operation("arange")
def arange(w, call, end, start=0, step=1, **_):
    count = call.shapes[0][0][0]
    if any(isinstance(x, Size) for x in (start, step)):
        raise Refused("it begins at a size that varies or has such a step")
    result = w.scale(w.counting(count), step or 1)
    result = w.map("add_scalar", result, value=float(start)) if start else result
    if not start and step not in (None, 1):
        w.steps[result.entry] = step
    return result if call.shapes[0][1].is_floating_point else w.integers(result, INDICES)


@operation("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full", "scalar_tensor",
           "empty", "empty_like", "new_empty")
@reads("size")
def full(w, call, fill_value=None, s=None, **_):
    shape, dtype = call.shapes[0]
    value = float("ones" in call.op) if fill_value is None and s is None else number(s if fill_value is None else fill_value)
    fixed = shape if all(d >= 0 for d in shape) else ()  # of which a part may be changed
    return Constant(w.torch.full(fixed, value, dtype=dtype), shape)


# -- shapes --
@operation("permute")
def permute(w, call, x, dims):
    return w.permute(x, [normal_axis(d, len(x.full)) for d in dims])


@operation("transpose", "swapaxes", "swapdims", "t", "mT", "numpy_T")
def transpose(w, call, x, dim0=None, dim1=None, axis0=None, axis1=None):
    rank = len(x.full)
    one, other = (dim0 if dim0 is not None else axis0), (dim1 if dim1 is not None else axis1)
    if one is None:
        one, other = -1, -2
        if rank < 2:
            return x
    order = list(range(rank))
    order[one], order[other] = order[other], order[one]
    return w.permute(x, order)


@operation("movedim", "moveaxis")
def movedim(w, call, x, source, destination):
    rank = len(x.full)
    source = [normal_axis(d, rank) for d in (source if isinstance(source, list) else [source])]
    destination = [normal_axis(d, rank) for d in (destination if isinstance(destination, list) else [destination])]
    order = [i for i in range(rank) if i not in source]
    for d, s in sorted(zip(destination, source)):
        order.insert(d, s)
    return w.permute(x, order)


@operation("cat", "concat", "concatenate")
def cat(w, call, tensors, dim=0, **_):
    tensors = w.alike([w.whole(x) for x in tensors if 0 not in x.full])
    return w.add("concat", tensors, call.shapes[0][0], kind=tensors[0].dtype, dim=normal_axis(dim, len(tensors[0].shape)))


@operation("stack")
def stack(w, call, tensors, dim=0):
    dim = normal_axis(dim, len(tensors[0].full) + 1)
    tensors = w.alike([w.whole(w.reshape(x, x.full[:dim] + (1,) + x.full[dim:])) for x in tensors])
    return w.add("concat", tensors, call.shapes[0][0], kind=tensors[0].dtype, dim=dim)


@operation("slice")
def slice_(w, call, x, dim=0, start=None, end=None, step=1):
    return w.slice(x, normal_axis(dim, len(x.full)), start, end, step)


@operation("narrow")
def narrow(w, call, x, dim, start, length):
    dim = normal_axis(dim, len(x.full))
    start = place_from_start(start, x.full[dim])
    return w.slice(x, dim, start, start + place_of(length, x.full[dim]))


def place_of(x, size):
    """A place along an axis of that size as a number, or a dimension that varies."""
    if isinstance(x, Size) and not varies(x.dim):
        raise Refused("it cuts the batch" if size < 0 else "its place depends on the batch size")
    return x.dim if isinstance(x, Size) else x


def place_from_start(x, size):
    """The same, counted from the end where it is a number below 0."""
    x = place_of(x, size)
    return x if varies(x) else normal_axis(x, size)


def pick(w, x, dim, index):
    if x.full[dim] < 0 and not varies(x.full[dim]):
        raise Refused("it takes one sample of the batch")
    index = place_from_start(index, x.full[dim])
    return w.reshape(w.slice(x, dim, index, index + 1), x.full[:dim] + x.full[dim + 1:])


@operation("select")
def select(w, call, x, dim, index):
    return pick(w, x, normal_axis(dim, len(x.full)), index)


@operation("unbind")
def unbind(w, call, x, dim=0):
    dim = normal_axis(dim, len(x.full))
    return tuple(pick(w, x, dim, i) for i in range(w.known_size(x, dim)))


def split_at(w, x, dim, sizes):
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(w.slice(x, dim, start, start + size) for start, size in zip(starts, sizes))


@operation("split", "split_with_sizes", "unsafe_split")
def split(w, call, x, split_size=None, dim=0, split_sizes=None):
    dim, counts = normal_axis(dim, len(x.full)), split_size if split_sizes is None else split_sizes
    if isinstance(counts, list):
        return split_at(w, x, dim, [place_of(count, x.full[dim]) for count in counts])
    size = w.known_size(x, dim)
    return split_at(w, x, dim, [min(counts, size - i) for i in range(0, size, counts)])


@operation("chunk", "unsafe_chunk")
def chunk(w, call, x, chunks, dim=0):
    size = w.known_size(x, normal_axis(dim, len(x.full)))
    return split(w, call, x, max(1, -(-size // chunks)), dim)


@operation("tensor_split")
def tensor_split(w, call, x, sections=None, indices=None, dim=0):
    dim = normal_axis(dim, len(x.full))
    size = w.known_size(x, dim)
    if sections is not None:
        indices = [i * (size // sections) + min(i, size % sections) for i in range(1, sections)]
    return tuple(w.slice(x, dim, start, end) for start, end in zip([0] + indices, indices + [size]))


@operation("roll")
def roll(w, call, x, shifts, dims=()):
    shifts, dims = [[y] if isinstance(y, int) else list(y) for y in (shifts, dims)]
    if not dims:
        return w.reshape(roll(w, call, w.reshape(x, (product(x.full),)), shifts, [0]), x.full)
    for shift, dim in zip(shifts, dims):
        dim = normal_axis(dim, len(x.full))
        cut = -shift % w.known_size(x, dim)
        if cut:
            parts = [w.slice(x, dim, cut, None), w.slice(x, dim, 0, cut)]
            x = w.add("concat", parts, x.full, kind=parts[0].dtype, dim=dim)
    return x


@operation("fft_fftshift", "fft_ifftshift")
def shifted(w, call, x, dim=None):
    dims = list(range(len(x.full))) if dim is None else dim if isinstance(dim, list) else [dim]
    sizes = [w.known_size(x, normal_axis(axis, len(x.full))) for axis in dims]
    return roll(w, call, x, [size // 2 if call.op == "fft_fftshift" else -(size // 2) for size in sizes], dims)


@operation("flip")
def flip(w, call, x, dims):
    for dim in dims:
        x = w.flip(x, normal_axis(dim, len(x.full)))
    return x


@operation("tril", "triu")
def triangle(w, call, x, diagonal=0):
    """Of matrices that a run computes."""
    inside = inside_triangle(w, *x.full[-2:], call.op == "tril", diagonal)
    return w.integer("where", inside, x, 0) if is_exact(w, x) else w.map("where", inside, x, 0.0)


def inside_triangle(w, rows, columns, lower=True, diagonal=0):
    """1 below the diagonal and on it, or above it, else 0."""
    if rows < 0 or columns < 0:
        return w.triangle_of_sizes(rows, columns, lower, diagonal)
    ones = w.torch.ones(rows, columns)
    return Constant(ones.tril(diagonal) if lower else ones.triu(diagonal))


@operation("diagonal")
def diagonal(w, call, x, offset=0, dim1=0, dim2=1):
    return w.diagonal(x, normal_axis(dim1, len(x.full)), normal_axis(dim2, len(x.full)), offset)


@operation("diag_embed")
def diag_embed(w, call, x, offset=0, dim1=-2, dim2=-1):
    rank, size = len(x.full), w.known_size(x, len(x.full) - 1)
    if offset or (normal_axis(dim1, rank + 1), normal_axis(dim2, rank + 1)) != (rank - 1, rank):
        raise Refused("only the main diagonal of the last two axes is possible")
    x = w.reshape(x, x.full + (1,))
    if is_exact(w, x):
        return w.integer("mul", x, Constant(w.torch.eye(size, dtype=w.torch.int64)))
    return w.map("mul", x, Constant(w.torch.eye(size)))


def slice_of_size_scatter(w, call, x, src, dim, start, end, step, index):
    """slice_scatter along an axis that varies: what is before src, src, and what is behind it."""
    size = x.full[dim]
    if not varies(size) or step != 1:
        raise Refused(f"it changes parts of {size_name(size)}")
    if index is not None:
        start = place_from_start(index, size)
        src, end = w.reshape(src, x.full[:dim] + (1,) + x.full[dim + 1:]), start + 1
    start, end = [sizes.slice_index(place_of(place, size), size) for place in (start or 0, sys.maxsize if end is None else end)]
    parts = [w.slice(x, dim, 0, start)] if start != 0 else []
    return cat(w, call, parts + [src] + ([w.slice(x, dim, end, None)] if end != size else []), dim)


@operation("slice_scatter", "select_scatter")
def slice_scatter(w, call, x, src, dim=0, start=None, end=None, step=1, index=None):
    dim = normal_axis(dim, len(x.full))
    if x.full[dim] < 0:
        if index is None and w.slice(x, dim, start, end, step) is x:
            return src
        return slice_of_size_scatter(w, call, x, src, dim, start, end, step, index)
    if index is not None:
        start = normal_axis(index, x.full[dim])
        src, end = w.reshape(src, x.full[:dim] + (1,) + x.full[dim + 1:]), start + 1
    start, end, step = slice(start, end, step).indices(x.full[dim])
    if step != 1:
        return index_add(w, call._replace(op="index_copy"), x, dim, Constant(w.torch.arange(start, end, step)), src)
    return cat(w, call, [w.slice(x, dim, 0, start), src, w.slice(x, dim, end, None)], dim)


@operation("unfold")
def windows(w, call, x, dimension, size, step):
    """Tensor.unfold: the cells of each window along a new last axis, a slice for each."""
    dim = normal_axis(dimension, len(x.full))
    count = call.shapes[0][0][dim]
    parts = [w.slice(x, dim, i, i + (count - 1) * step + 1, step) for i in range(size)]
    return stack(w, call, parts, len(x.full))


@operation("im2col")
def im2col(w, call, x, kernel_size, dilation, padding, stride):
    """torch.nn.Unfold: a slice for each cell of the kernel."""
    n, c, height, width = x.full
    x = pad(w, call._replace(shapes=[((n, c, height + 2 * padding[0], width + 2 * padding[1]), call.shapes[0][1])]), x,
            [padding[1], padding[1], padding[0], padding[0]])
    rows, columns = [(size - d * (k - 1) - 1) // s + 1 for size, k, d, s in zip(x.full[2:], kernel_size, dilation, stride)]
    cells = []
    for i in range(kernel_size[0]):
        band = w.slice(x, 2, i * dilation[0], i * dilation[0] + (rows - 1) * stride[0] + 1, stride[0])
        for j in range(kernel_size[1]):
            cell = w.slice(band, 3, j * dilation[1], j * dilation[1] + (columns - 1) * stride[1] + 1, stride[1])
            cells.append(w.reshape(cell, (n, c, 1, rows * columns)))
    y = w.add("concat", [w.f32(w.whole(cell)) for cell in cells], (n, c, len(cells), rows * columns), dim=2)
    return w.reshape(y, (n, c * len(cells), rows * columns))


@operation("col2im")
def col2im(w, call, x, output_size, kernel_size, dilation, padding, stride):
    """torch.nn.Fold: a transposed convolution whose weight puts each cell of a column in its place."""
    cells, c = product(kernel_size), x.full[1] // product(kernel_size)
    counts = [(size + 2 * p - d * (k - 1) - 1) // s + 1
              for size, p, d, k, s in zip(output_size, padding, dilation, kernel_size, stride)]
    own = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in zip(counts, stride, padding, dilation, kernel_size)]
    weight = Constant(w.torch.eye(cells).repeat(c, 1).reshape([c * cells, 1] + list(kernel_size)))
    shape = call.shapes[0]
    y = conv(w, call._replace(op="conv_transpose2d"),
             w.reshape(x, x.full[:-1] + tuple(counts)), weight, None, stride, padding, dilation, c,
             output_padding=[size - n for size, n in zip(output_size, own)])
    return w.reshape(y, shape[0])


@operation("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d",
           "replication_pad3d")
def pad_with_own(w, call, x, padding):
    return pad(w, call, x, padding, "reflect" if call.op.startswith("reflection") else "replicate")


@operation("pad", "constant_pad_nd")
def pad(w, call, x, pad, mode="constant", value=None):
    before, after = [0] * len(x.full), [0] * len(x.full)
    for i in range(len(pad) // 2):
        before[-1 - i], after[-1 - i] = pad[2 * i], pad[2 * i + 1]
    for axis in range(len(x.full)):
        if before[axis] < 0 or after[axis] < 0:
            x = w.slice(x, axis, max(0, -before[axis]), x.full[axis] + min(0, after[axis]))
    before, after = [[max(0, p) for p in side] for side in (before, after)]
    if not any(before + after):
        return x
    if is_exact(w, x) and mode == "constant":
        return padded_integers(w, x, before, after, int(value or 0))
    value = number(value or 0)
    return w.add("pad", [w.f32(w.whole(x))], call.shapes[0][0], before=before, after=after,
                 mode=None if mode == "constant" else mode, value=value or None)


def padded_integers(w, x, before, after, value):
    for axis, sides in enumerate(zip(before, after)):
        parts = [w.integers(w.whole(Constant(w.torch.tensor(value), x.full[:axis] + (size,) + x.full[axis + 1:])), ("i64",))
                 if size else None for size in sides]
        parts = [y for y in (parts[0], w.integers(w.whole(x), ("i64",)), parts[1]) if y is not None]
        shape = x.full[:axis] + (sum(y.full[axis] for y in parts),) + x.full[axis + 1:]
        x = w.add("concat", parts, shape, kind="i64", dim=axis) if len(parts) > 1 else x
    return x


@operation("repeat", "tile")
def repeat(w, call, x, repeats=None, dims=None):
    repeats = [times.dim if isinstance(times, Size) else times for times in (dims if repeats is None else repeats)]
    repeats = [1] * (len(x.full) - len(repeats)) + repeats
    shape = (1,) * (len(repeats) - len(x.full)) + x.full
    one, many = (), ()
    for times, size in zip(repeats, shape):
        one, many = one + ((1, size) if times != 1 else (size,)), many + ((times, size) if times != 1 else (size,))
    return w.reshape(w.view(w.tensor(w.reshape(x, one)), many), call.shapes[0][0])


@operation("repeat_interleave")
@reads("output_size")
def repeat_interleave(w, call, x, repeats, dim=None, **_):
    if dim is None or not isinstance(repeats, int):
        raise Refused("a number and a dim are needed")
    dim = normal_axis(dim, len(x.full))
    one, many = (x.full[:dim + 1] + (times,) + x.full[dim + 1:] for times in (1, repeats))
    return w.reshape(w.view(w.tensor(w.reshape(x, one)), many), call.shapes[0][0])


RESIZES = {"nearest": "nearest", "_upsample_nearest_exact": "nearest-exact", "linear": "linear", "bilinear": "linear",
           "trilinear": "linear", "bicubic": "cubic"}


@operation("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
           "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
           "upsample_trilinear3d", "upsample_bicubic2d")
def interpolate(w, call, x, output_size=None, align_corners=False, scale_factors=None, scales=None, scales_d=None, scales_h=None,
                scales_w=None):
    axes = int(call.op[-2])
    if scale_factors is None:
        scale_factors = [scales] if axes == 1 else [scales_d, scales_h, scales_w][-axes:]
    if None in scale_factors:
        scale_factors = None
    x, size = batched(w, x, axes), list(call.shapes[0][0][-axes:])
    mode = RESIZES[call.op[:-2].replace("upsample_", "", 0 if call.op[0] == "_" else 1)]
    y = w.add("interpolate", [x], x.shape[:2] + tuple(size), size=alike(size),
              scale_factor=scale_factors and alike([float(scale) for scale in scale_factors]),
              mode=None if mode == "nearest" else mode, align_corners=align_corners or None)
    return w.reshape(y, call.shapes[0][0])


@operation("_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa")
@reads("align_corners", "scale_factors", "output_size", "scales_h", "scales_w")
def resample(w, call, x, **arguments):
    """Each axis by a matrix, which is what PyTorch makes of that axis of the unit matrix."""
    for axis, scale in ((2, "scales_h"), (3, "scales_w")):
        old, new = w.known_size(x, axis), call.shapes[0][0][axis]
        given = dict(arguments, output_size=[new, old], scales_h=arguments.get(scale), scales_w=None)
        if arguments.get("scale_factors"):
            given.update(output_size=None, scale_factors=[arguments["scale_factors"][axis - 2], 1.0])
        given["self"] = given["input"] = w.torch.eye(old).reshape(1, 1, old, old)
        matrix = call.function({name: given[name] for name in call.arguments})
        x = w.along(x, axis, Constant(matrix.reshape(new, old)))
    return x


@operation("pixel_shuffle")
def pixel_shuffle(w, call, x, upscale_factor):
    n, c, height, width = x.full
    r = upscale_factor
    return w.reshape(w.permute(w.reshape(x, (n, c // (r * r), r, r, height, width)), [0, 1, 4, 2, 5, 3]), call.shapes[0][0])


@operation("pixel_unshuffle")
def pixel_unshuffle(w, call, x, downscale_factor):
    n, c, height, width = x.full
    r = downscale_factor
    return w.reshape(w.permute(w.reshape(x, (n, c, height // r, r, width // r, r)), [0, 1, 3, 5, 2, 4]), call.shapes[0][0])


@operation("channel_shuffle")
def channel_shuffle(w, call, x, groups):
    n, c = x.full[:2]
    order = [0, 2, 1] + list(range(3, len(x.full) + 1))
    return w.reshape(w.permute(w.reshape(x, (n, groups, c // groups) + x.full[2:]), order), x.full)


# -- reductions --
def reduction(name):
    return lambda w, call, x, dim=None, keepdim=False, **_: w.reduce(name, x, dim, keepdim)


OPERATIONS.update({"sum": reduction("sum"), "mean": reduction("mean"), "amax": reduction("max")})


@operation("amin")
def amin(w, call, x, dim=None, keepdim=False):
    return negative(w, w.reduce("max", negative(w, x), dim, keepdim))


def is_exact(w, x):
    """Whether x holds integers that 32-bit floats may not have."""
    return is_whole(w, x) and is_large(w, x)


def negative(w, x):
    return w.integer("neg", x) if is_exact(w, x) else w.map("neg", x)


def score_of(w, x, dim):
    """Floats whose first maximum along an axis stands where x's does."""
    if not is_exact(w, x):
        return w.f32(w.whole(x))
    return w.f32(w.whole(w.integer("eq", x, w.reduce("max", x, dim, True))))


@operation("argmax")
def argmax(w, call, x, dim=None, keepdim=False):
    if dim is None:
        x, dim = w.reshape(x, (product(x.full),)), 0
    dim = normal_axis(dim, len(x.full))
    return w.add("argmax", [score_of(w, x, dim)], call.shapes[-1][0], kind="i64", dim=dim, keepdim=keepdim or None)


@operation("argmin")
def argmin(w, call, x, dim=None, keepdim=False):
    return argmax(w, call, negative(w, x), dim, keepdim)


@operation("topk")
def topk(w, call, x, k, dim=-1, largest=True, **_):
    dim = normal_axis(dim, len(x.full))
    if is_exact(w, x):
        return topk_of_integers(w, w.whole(x), k, dim, largest)
    x = w.f32(w.whole(x))
    places = w.add("topk_indices", [x], x.shape[:dim] + (k,) + x.shape[dim + 1:], kind="i64", k=k, dim=dim,
                   largest=None if largest else False)
    return w.add("gather", [x, places], places.shape, dim=dim), places


def topk_of_integers(w, x, k, dim, largest):
    """By their last 24 bits, then by those before them, and so on: each sort leaves equals in the order of the one before."""
    x, count, places = w.integers(x, ("i64",)), w.known_size(x, dim), None
    for shift in (0, 24, 48):
        part = w.integer("floor_divide", x, 1 << shift) if shift else x
        part = w.f32(part if shift == 48 else w.integer("remainder", part, 1 << 24))
        part = part if places is None else w.add("gather", [part, places], places.shape, dim=dim)
        order = w.add("topk_indices", [part], x.shape, kind="i64", k=count, dim=dim, largest=None if largest else False)
        places = order if places is None else w.add("gather", [places, order], order.shape, kind="i64", dim=dim)
    places = w.slice(places, dim, 0, k)
    return w.add("gather", [x, places], places.shape, kind="i64", dim=dim), places


class Complex:
    """A complex tensor, as its real and its imaginary part."""

    def __init__(self, real, imag):
        self.real, self.imag = real, imag
        self.full = () if is_number(real) else real.full


def complex_parts(x):
    """Constants that are complex, as the two tensors that gpunn has of them."""
    if isinstance(x, list):
        return [complex_parts(y) for y in x]
    if isinstance(x, complex):
        return Complex(x.real, x.imag)
    if isinstance(x, Constant) and x.tensor.is_complex():
        return Complex(*[Constant(part.contiguous(), x.full, x.name and f"{x.name}.{name}")
                         for name, part in (("real", x.tensor.real), ("imag", x.tensor.imag))])
    return x


def of_products(function):
    """A product of two tensors, of which one at least is complex, from the products of their parts."""
    def lower(w, call, **arguments):
        names = [name for name, x in arguments.items() if isinstance(x, (Complex, Value, Constant, Parameter))]
        pair = arguments.get("tensors") or [arguments[name] for name in names]

        def product(*parts):
            if len(pair) != 2:
                raise Refused("complex numbers are possible in a product of two tensors only")
            parts = [getattr(x, part) if isinstance(x, Complex) else x if part == "real" else None for x, part in zip(pair, parts)]
            given = {"tensors": parts} if "tensors" in arguments else dict(zip(names, parts))
            return None if any(x is None for x in parts) else function(w, call, **dict(arguments, **given))

        real, both, cross, other = [product(*parts.split()) for parts in ("real real", "imag imag", "real imag", "imag real")]
        imag = cross if other is None else other if cross is None else w.map("add", cross, other)
        return Complex(real if both is None else w.map("sub", real, both), imag)
    return lower


def of_parts(function):
    """A linear operation of the real parts, then of the imaginary ones, which real operands have as zeros."""
    def part(name, key, x):
        if isinstance(x, list) and key == "tensors":
            return [part(name, key, y) for y in x]
        return getattr(x, name) if isinstance(x, Complex) else 0.0 if name == "imag" and key in ("x", "other", "src") else x

    def lower(w, call, **arguments):
        parts = [{key: part(name, key, x) for key, x in arguments.items()} for name in ("real", "imag")]
        return Complex(*[function(w, call, **given) for given in parts])
    return lower


def of_length(w, x, dim, n):
    """The first n along an axis, zeros behind them."""
    dim = normal_axis(dim, len(x.full))
    size = x.full[dim]
    if n is None or n == size:
        return x
    if isinstance(x, Complex):
        return Complex(of_length(w, x.real, dim, n), of_length(w, x.imag, dim, n))
    x = w.f32(w.whole(w.slice(x, dim, 0, min(n, size))))
    after = [max(0, n - size) if i == dim else 0 for i in range(len(x.shape))]
    return w.add("pad", [x], tuple(d + a for d, a in zip(x.shape, after)), before=[0] * len(after), after=after) if n > size else x


def norm_scale(norm, count, inverse):
    return {"ortho": 1 / math.sqrt(count), "forward": 1 if inverse else 1 / count}.get(norm, 1 / count if inverse else 1)


@operation("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_fftn", "fft_fft2", "fft_ifftn", "fft_ifft2", "fft_rfftn",
           "fft_rfft2", "fft_irfftn", "fft_irfft2")
def fourier(w, call, x, n=None, s=None, dim=None, norm=None):
    """One axis after another. Of real numbers, half of the last axis is kept: it is the first of a transform, the last back."""
    rank, half, inverse = len(x.full), "rfft" in call.op, "_i" in call.op
    if dim is None:
        dim = list(range(rank - len(s) if s else 0, rank)) if call.op.endswith("n") else -1
    axes = [normal_axis(axis, rank) for axis in (dim if isinstance(dim, (list, tuple)) else [dim])]
    for axis, size in list(zip(axes, s or [n] * len(axes)))[::-1 if half and not inverse else 1]:
        real, size = half and axis == axes[-1], None if size == -1 else size
        count = call.shapes[0][0][axis] if real and inverse else x.full[axis] if size is None else size
        if count < 0:
            raise Refused(f"the axis is {size_name(count)}")
        x, scale = of_length(w, x, axis, count // 2 + 1 if real and inverse else count), norm_scale(norm, count, inverse)
        parts = [x.real, x.imag] if isinstance(x, Complex) else [x]
        x = (w.real_of_half(parts, axis, count, scale) if real and inverse else
             Complex(*w.fourier(parts, axis, count // 2 + 1 if real else count, inverse, scale)))
    return x


def wave_matrices(w, rows, size):
    return [w.torch.tensor(wave, dtype=w.torch.float64).reshape(rows, size) for wave in waves(rows, size)]


def stft_weight(w, rows, n_fft, win_length, window, scale):
    """The window times the cosines, then the sines backwards, of each frequency, [2 rows, n_fft]; and the window."""
    length = win_length or n_fft
    own = w.torch.ones(length) if window is None else window.tensor
    own = w.torch.nn.functional.pad(own.double(), ((n_fft - length) // 2, n_fft - length - (n_fft - length) // 2))
    cos, sin = wave_matrices(w, rows, n_fft)
    return w.torch.cat([cos, -sin]) * own * scale, own


@operation("stft")
def stft(w, call, x, n_fft, hop_length=None, win_length=None, window=None, normalized=False, onesided=True, return_complex=None,
         **_):
    """A convolution with a channel for each row of the weight."""
    count = n_fft // 2 + 1 if onesided is not False else n_fft
    weight, _ = stft_weight(w, count, n_fft, win_length, window, n_fft ** -0.5 if normalized else 1)
    rows, frames = x.full[:-1] or (1,), (x.full[-1] - n_fft) // (hop_length or n_fft // 4) + 1
    y = conv(w, call._replace(op="conv1d", shapes=[(rows + (2 * count, frames), call.shapes[0][1])]),
             w.reshape(x, rows + (1,) + x.full[-1:]), Constant(weight.float()[:, None]), stride=hop_length or n_fft // 4)
    parts = [w.reshape(w.slice(y, 1, i, i + count), x.full[:-1] + (count, frames)) for i in (0, count)]
    return Complex(*parts) if return_complex else stack(w, call, parts, len(parts[0].full))


@operation("istft")
def istft(w, call, x, n_fft, hop_length=None, win_length=None, window=None, center=True, normalized=False, onesided=None,
          length=None, return_complex=False):
    """A transposed convolution of frames by the same weight, over what the windows' squares add up to."""
    lead, (count, frames), hop = x.full[:-2], x.full[-2:], hop_length or n_fft // 4
    if return_complex or frames < 0:
        raise Refused(f"its frames are {size_name(frames)}" if frames < 0 else "complex results are not possible")
    weight, own = stft_weight(w, count, n_fft, win_length, window, n_fft ** -0.5 if normalized else 1 / n_fft)
    if count != n_fft or onesided:
        times = w.torch.tensor([1.0 if 2 * k % n_fft == 0 else 2.0 for k in range(count)] * 2)
        weight *= times[:, None]
    rows, size, start = lead or (1,), n_fft + hop * (frames - 1), n_fft // 2 if center else 0
    squares = w.torch.nn.functional.conv_transpose1d(w.torch.ones(1, 1, frames).double(), own.square()[None, None], stride=hop)
    y = w.add("concat", [w.f32(w.whole(w.reshape(part, rows + (count, frames)))) for part in (x.real, x.imag)],
              rows + (2 * count, frames), dim=1)
    y = conv(w, call._replace(op="conv_transpose1d", shapes=[(rows + (1, size), call.shapes[0][1])]), y,
             Constant(weight.float()[:, None]), stride=hop)
    end = min(size, start + length) if length else size - start
    y = w.slice(w.map("div", y, Constant((squares + (squares == 0)).float())), 2, start, end)
    return w.reshape(of_length(w, y, 2, length), call.shapes[0][0])


@operation("abs", "absolute")
def absolute(w, call, x):
    if isinstance(x, Complex):
        return w.expr("s = x * x + y * y; " + ROOT.replace("x", "s"), x.real, x.imag)
    return w.map("abs", x)


@operation("complex", "polar")
def complex_of(w, call, real=None, imag=None, abs=None, angle=None):
    if call.op == "complex":
        return Complex(w.f32(w.whole(real)), w.f32(w.whole(imag)))
    return Complex(*[w.map("mul", abs, w.map(wave, angle)) for wave in ("cos", "sin")])


@operation("conj", "_conj", "conj_physical", "_conj_physical", "resolve_conj", "resolve_neg", "angle")
def conjugated(w, call, x):
    if call.op == "angle":
        return w.map("atan2", x.imag, x.real)
    return x if call.op.startswith("resolve") else Complex(x.real, w.map("neg", x.imag))


@operation("real", "imag", "view_as_real", "view_as_complex")
def parts_of_complex(w, call, x):
    if call.op == "view_as_complex":
        return Complex(*[pick(w, x, len(x.full) - 1, i) for i in range(2)])
    return stack(w, call, [x.real, x.imag], len(x.full)) if call.op == "view_as_real" else getattr(x, call.op)


@operation("sort", "argsort")
def sort(w, call, x, dim=-1, descending=False, **_):
    """By their places, of equals the first one first."""
    if not x.full:
        raise Refused("a single number is not sorted")
    y, places = topk(w, call, x, w.known_size(x, normal_axis(dim, len(x.full))), dim, descending)
    return places if call.op == "argsort" else (y, places)


@operation("kthvalue", "median")
def kthvalue(w, call, x, k=None, dim=None, keepdim=False):
    """median: the lower of two middle elements; NaN where one is."""
    flat, dim = dim is None, normal_axis(dim or 0, max(1, len(x.full)))
    x = w.reshape(x, (product(x.full),)) if flat else x
    k = (w.known_size(x, dim) + 1) // 2 if k is None else k
    y, places = [w.slice(z, dim, k - 1, k) for z in topk(w, call, x, k, dim, False)]
    if call.op == "median" and y.dtype == "f32":
        y = w.map("where", w.reduce("max", w.expr("where(x == x, 0, 1)", x), dim, True), math.nan, y)
    y, places = (y, places) if keepdim else [w.reshape(z, x.full[:dim] + x.full[dim + 1:]) for z in (y, places)]
    return y if flat else (y, small_integers(w, places))


@operation("searchsorted")
def searchsorted(w, call, sorted_sequence, x, right=False, side=None, sorter=None, **_):
    """How many elements of the last axis of the sequence come before each x."""
    if sorter is not None:
        raise Refused("a sorter is not possible")
    row = sorted_sequence.full[:-1]
    places = w.reshape(sorted_sequence, row + (1,) * (len(x.full) - len(row)) + sorted_sequence.full[-1:])
    before = w.map("le" if right or side == "right" else "lt", places, w.reshape(x, x.full + (1,)))
    return small_integers(w, w.reduce("sum", before, -1))


@operation("__lshift__", "__rshift__", "bitwise_left_shift", "bitwise_right_shift")
def shift(w, call, x, other):
    """By a number of bits, which rounds down where bits are lost."""
    op, bits = "mul" if "left" in call.op or "lsh" in call.op else "floor_divide", whole_number(other)
    if isinstance(other, Constant) and bool(((other.tensor >= 0) & (other.tensor < 63)).all()):
        return w.integer(op, x, Constant(w.torch.ones_like(other.tensor, dtype=w.torch.int64) << other.tensor, other.full))
    if bits is None or not 0 <= bits < 63:
        raise Refused("only a known number of bits is possible")
    return w.integer(op, x, 1 << bits)


@operation("prod")
def prod(w, call, x, dim=None, keepdim=False, **_):
    if dim is None:
        x, dim = w.reshape(x, (product(x.full),)), 0
    return w.reshape(w.fold("mul", x, normal_axis(dim, len(x.full))), call.shapes[0][0])


@operation("cumprod")
def cumprod(w, call, x, dim, **_):
    return w.running("mul", x, normal_axis(dim, len(x.full)))


@operation("cummax", "cummin")
def cummax(w, call, x, dim):
    """The place of each is that of the last element that was as large as all before it."""
    dim, x = normal_axis(dim, len(x.full)), w.copied(w.whole(x))
    y = w.running("maximum" if call.op == "cummax" else "minimum", x, dim)
    if 1 not in w.wanted:
        return y, None
    own = w.reshape(w.counting(x.full[dim]), x.full[dim:dim + 1] + (1,) * (len(x.full) - 1 - dim))
    last = (w.expr("z if x == y or x != x else 0", x, y, own) if x.dtype == "f32" else
            w.map("mul", w.integer("eq", x, y), own))
    return y, small_integers(w, w.running("maximum", last, dim))


def small_integers(w, x):
    """x as integers, which stay below 2^24."""
    x = w.integers(x, INDICES)
    w.small.add(x.entry)
    return x


@operation("any", "all")
def any_(w, call, x, dim=None, keepdim=False):
    return w.reduce("max", truth(w, x), dim, keepdim) if call.op == "any" else amin(w, call, truth(w, x), dim, keepdim)


@operation("count_nonzero")
def count_nonzero(w, call, x, dim=None):
    return small_integers(w, w.reduce("sum", w.expr("where(x == 0, 0, 1)", x), dim))


def running_sum_of_size(w, x, axis):
    """Along an axis that varies: a product with a triangle of ones. Up to 4096 integers below 2^36 have exact sums, by two parts."""
    if is_exact(w, x):
        low, high = [running_sum_of_size(w, w.f32(w.integer(op, x, 1 << 12)), axis) for op in ("remainder", "floor_divide")]
        return w.integer("add", w.integers(low, ("i64",)), w.integer("mul", w.integers(high, ("i64",)), 1 << 12))
    order = [i for i in range(len(x.full)) if i != axis] + [axis]
    y = product_of(w, w.permute(x, order), inside_triangle(w, x.full[axis], x.full[axis], False))
    return w.permute(y, [order.index(i) for i in range(len(order))])


@operation("cumsum")
def cumsum(w, call, x, dim, **_):
    axis = normal_axis(dim, len(x.full))
    if varies(x.full[axis]):
        return running_sum_of_size(w, x, axis)
    x = w.copied(w.whole(x))
    return w.add("cumsum", [x], x.shape, kind="f32" if x.dtype == "f32" else "i64", dim=axis)


@operation("one_hot")
def one_hot(w, call, x, num_classes=-1):
    classes = call.shapes[0][0][-1]
    y = w.add("one_hot", [w.whole(w.integers(x))], call.shapes[0][0], num_classes=classes)
    return w.add("cast", [y], y.shape, kind="i64", dtype="i64")


def picked_with(index_of, w, call, x, dim, keepdim):
    """The elements, and their places; of equals only the one that is picked has a gradient."""
    x, dim = w.copied(w.whole(x)), normal_axis(dim, len(x.full))
    if not x.shape:
        return x, Constant(w.torch.tensor(0))
    ahead, behind = x.shape[:dim], x.shape[dim + 1:]
    score = score_of(w, x if index_of is argmax else negative(w, x), dim)
    place = w.add("argmax", [score], ahead + (1,) + behind, kind="i64", dim=dim, keepdim=True)
    y = w.add("gather", [x, place], place.shape, kind=x.dtype, dim=dim)
    return tuple(z if keepdim else w.reshape(z, ahead + behind) for z in (y, place))


@operation("max")
def maximum(w, call, x, other=None, dim=None, keepdim=False):
    if other is not None:
        return w.map("maximum", x, other)
    if dim is None:
        return w.reduce("max", x)
    return picked_with(argmax, w, call, x, dim, keepdim)


@operation("min")
def minimum(w, call, x, other=None, dim=None, keepdim=False):
    if other is not None:
        return w.map("minimum", x, other)
    if dim is None:
        return amin(w, call, x)
    return picked_with(argmin, w, call, x, dim, keepdim)


@operation("var")
def var(w, call, x, dim=None, unbiased=True, correction=None, keepdim=False):
    axes = normal_axes(dim, len(x.full))
    count, lost = product([x.full[i] for i in axes]), (1 if unbiased else 0) if correction is None else number(correction)
    if count < 0 and lost:
        raise Refused(f"the correction would depend on {size_name(count)}; use correction=0" if varies(count) else
                      "the correction would depend on the batch size; use correction=0")
    for _ in range(2):  # again, since the mean of large values is rounded
        x = w.map("sub", x, w.reduce("mean", x, axes, True))
    squares = w.map("square", x)
    if count - lost <= 0 and lost:
        return w.map("div", w.reduce("sum", squares, axes, keepdim), 0)
    y = w.reduce("mean", squares, axes, keepdim)
    return w.scale(y, count / (count - lost)) if lost else y


ROOT = "where(x == 0, 0, sqrt(where(x == 0, 1, x)))"  # with a gradient of 0 at 0, as PyTorch's norms and deviations


@operation("std")
@reads("dim", "unbiased", "correction", "keepdim")
def std(w, call, x, **arguments):
    return w.expr(ROOT, var(w, call, x, **arguments))


@operation("var_mean", "std_mean")
@reads("unbiased", "correction", "keepdim")
def var_mean(w, call, x, dim=None, **arguments):
    y = (std if call.op == "std_mean" else var)(w, call, x, dim=dim, **arguments)
    return y, w.reduce("mean", x, dim, arguments.get("keepdim", False))


@operation("linalg_vector_norm", "norm", "frobenius_norm")
def norm(w, call, x, ord=2, p=None, dim=None, keepdim=False, **_):
    order = number(ord if p is None else p)
    if order == 2:
        return w.expr(ROOT, w.reduce("sum", w.map("square", x), dim, keepdim))
    if order in (1, math.inf):
        return w.reduce("sum" if order == 1 else "max", w.map("abs", x), dim, keepdim)
    if order == -math.inf:
        return w.map("neg", w.reduce("max", w.expr("-abs(x)", x), dim, keepdim))
    if order == 0:
        return w.reduce("sum", w.expr("where(x == 0, 0, 1)", x), dim, keepdim)
    total = w.reduce("sum", w.expr(f"where(x == 0, 0, pow(abs(where(x == 0, 1, x)), {text(order)}))", x), dim, keepdim)
    return w.expr(f"where(x == 0, 0, pow(where(x == 0, 1, x), {text(1 / order)}))", total)


@operation("dist")
def dist(w, call, x, other, p=2):
    return norm(w, call, w.map("sub", x, other), p=p)


@operation("pairwise_distance")
def pairwise_distance(w, call, x1, x2, p=2.0, eps=1e-6, keepdim=False):
    return norm(w, call, w.expr(f"x - y + {text(eps)}", x1, x2), p=p, dim=-1, keepdim=keepdim)


@operation("cdist", "_cdist_forward")
def cdist(w, call, x1, x2, p=2.0, **_):
    """Of all pairs, by their differences: what a product of matrices would round away near 0 stays."""
    rank = len(x1.full)
    x1 = w.reshape(x1, x1.full[:-1] + (1,) + x1.full[-1:])
    x2 = w.reshape(x2, x2.full[:-2] + (1,) + x2.full[-2:])
    return norm(w, call, w.map("sub", x1, x2), p=p, dim=rank)


@operation("logsumexp")
def logsumexp(w, call, x, dim, keepdim=False):
    top = w.expr("detach(x if abs(x) <= 3.4028234e38 else 0)", w.reduce("max", x, dim, True))
    y = w.map("log", w.reduce("sum", w.expr("exp(x - y)", x, top), dim, keepdim))
    return w.map("add", y, top if keepdim else w.reshape(top, y.shape))


@operation("softmax", "_softmax", "log_softmax", "_log_softmax")
def softmax(w, call, x, dim, **_):
    x = w.f32(w.whole(x))
    return w.add(call.op.lstrip("_"), [x], x.shape, dim=normal_axis(dim, len(x.shape)))


@operation("cosine_similarity")
def cosine_similarity(w, call, x1, x2, dim=1, eps=1e-8):
    units = []
    for x in (x1, x2):
        length = w.expr(ROOT, w.reduce("sum", w.map("square", x), dim, True))
        units.append(w.expr(f"x / (y + detach(max(y, {text(eps)}) - y))", x, length))  # PyTorch's gradient ignores the limit
    return w.reduce("sum", w.map("mul", *units), dim)


# -- products --
@operation("linear")
def linear(w, call, x, weight, bias=None):
    name = w.layer_name(weight=weight, bias=bias)
    if name:
        shape = x.full[:-1] + weight.full[:1]
        return w.layer("linear", name, x, shape, {"weight": weight, "bias": bias}, out_features=weight.full[0],
                       bias=False if bias is None else None)
    name = w.layer_name(bias=bias) if bias is not None else w.free_name(call)
    if name and isinstance(weight, Parameter) and weight.value:  # another layer's
        return w.layer("linear", name, x, x.full[:-1] + weight.full[:1], {"bias": bias}, out_features=weight.full[0],
                       bias=False if bias is None else None, weight=weight.value)
    y = product_of(w, x, weight, True)
    return y if bias is None else w.map("add", y, bias)


@operation("rnn_tanh", "rnn_relu", "lstm", "gru")
def recurrent(w, call, x, hx=None, params=None, has_biases=True, num_layers=1, dropout=0, train=False, bidirectional=False,
              batch_first=False, batch_sizes=None, **_):
    if batch_sizes is not None:
        raise Refused("packed sequences are not possible; gpunn's layers take their lengths")
    op, directions, parts = call.op.split("_")[0], 2 if bidirectional else 1, 4 if has_biases else 2
    if dropout and num_layers > 1:
        check_mode(w, train)
    starts = [None if isinstance(h, Constant) and not h.tensor.any() else w.f32(w.whole(h))
              for h in (hx if isinstance(hx, list) else [hx])]
    kept, own = sorted(w.wanted - {0}), len(params) // (directions * num_layers)
    y, last = w.permute(x, (1, 0, 2)) if batch_first else w.f32(w.whole(x)), []
    for k in range(num_layers):
        weights = [w.tensor(p) for p in params[k * own * directions:(k + 1) * own * directions]]
        weights, w_hr = [p for i, p in enumerate(weights) if i % own < parts], weights[parts::own] if own > parts else []
        given = [h if h is None or num_layers == 1 else w.slice(h, 0, k * directions, (k + 1) * directions) for h in starts]
        if w_hr:
            y, weights, given[0] = unprojected(w, y, weights, w_hr, given[0])
        length, n, hidden = y.shape[0], y.shape[1], weights[1].shape[1]
        node = w.add(op, [y], (length + (len(starts) if kept else 0), n, directions * hidden), states=bool(kept) or None,
                     bidirectional=bidirectional or None, relu=call.op == "rnn_relu" or None, **dict(zip(("h_0", "c_0"), given)),
                     weights=weights)
        y = projected(w, w.slice(node, 0, 0, length), w_hr, 2)
        rows = [w.reshape(w.slice(node, 0, length + i - 1, length + i), (directions, n, hidden)) for i in kept]
        last.append([projected(w, row, w_hr if i == 1 else [], 0) for i, row in zip(kept, rows)])
        if train and dropout and k + 1 < num_layers:
            y = w.add("dropout", [y], y.shape, p=float(dropout))
    result = [w.permute(y, (1, 0, 2)) if batch_first else y] + [None] * len(starts)
    for i, states in zip(kept, zip(*last)):
        shape = (directions * num_layers,) + states[0].shape[1:]
        result[i] = states[0] if num_layers == 1 else w.add("concat", list(states), shape, dim=0)
    return tuple(result)


def unprojected(w, x, weights, w_hr, h_0):
    """What a layer without proj_size reads in place of one with it, as gpunn_lstm has it: x, the weights, h_0."""
    parts, directions, size = len(weights) // len(w_hr), len(w_hr), w_hr[0].shape[0]
    features = [x]
    for d, own in enumerate(w_hr):
        w_ih, w_hh = weights[d * parts:d * parts + 2]
        around = d * size, (directions - 1 - d) * size
        if h_0 is not None:
            wide = w.add("pad", [w_hh], (w_hh.shape[0], directions * size), before=[0, around[0]], after=[0, around[1]])
            weights[d * parts] = w.add("concat", [w_ih, wide], (w_hh.shape[0], w_ih.shape[1] + directions * size), dim=1)
            behind = w.known_size(x, 0) - 1
            start = w.slice(h_0, 0, d, d + 1) if directions > 1 else h_0
            features.append(w.add("pad", [start], x.shape[:2] + (size,), before=[d * behind, 0, 0], after=[behind - d * behind, 0, 0]))
        product = product_of(w, w_hh, own)
        weights[d * parts + 1] = w.add("sum", [w.reshape(product, (1,) + product.shape)], product.shape, dims=[0])  # F32, whatever it adds
    if h_0 is not None:
        x = w.add("concat", features, x.shape[:2] + (x.shape[2] + directions * size,), dim=2)
    return x, weights, None


def projected(w, y, w_hr, axis):
    """y of the directions, which share an axis of it, by their weights; by none, as it is."""
    if not w_hr:
        return y
    size = y.shape[axis] // len(w_hr)
    parts = [product_of(w, w.slice(y, axis, d * size, (d + 1) * size) if len(w_hr) > 1 else y, own, True)
             for d, own in enumerate(w_hr)]
    shape = tuple(n * len(parts) if i == axis else n for i, n in enumerate(parts[0].shape))
    return w.add("concat", parts, shape, dim=axis) if len(parts) > 1 else parts[0]


def gates(w, x, weight, bias, count):
    """The parts of x times a weight [count * hidden, in], transposed."""
    y = product_of(w, x, weight, True)
    y = y if bias is None else w.map("add", y, bias)
    return split_at(w, y, 1, [y.full[1] // count] * count)


@operation("lstm_cell")
def lstm_cell(w, call, x, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    i, f, g, o = [w.map("add", a, b) for a, b in zip(gates(w, x, w_ih, b_ih, 4), gates(w, hx[0], w_hh, b_hh, 4))]
    c = w.expr("sigmoid(x0) * x1 + sigmoid(x2) * tanh(x3)", f, hx[1], i, g)
    return w.expr("sigmoid(x) * tanh(y)", o, c), c


@operation("gru_cell")
def gru_cell(w, call, x, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    own, back = gates(w, x, w_ih, b_ih, 3), gates(w, hx, w_hh, b_hh, 3)
    new = w.expr("tanh(x0 + sigmoid(x1 + x2) * x3)", own[2], own[0], back[0], back[2])
    return w.expr("z = sigmoid(x0 + x1); (1 - z) * x2 + z * x3", own[1], back[1], new, hx)


@operation("rnn_tanh_cell", "rnn_relu_cell")
def rnn_cell(w, call, x, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    (own,), (back,) = gates(w, x, w_ih, b_ih, 1), gates(w, hx, w_hh, b_hh, 1)
    return w.map("tanh" if call.op == "rnn_tanh_cell" else "relu", w.map("add", own, back))


INDICES = ("i64", "i32")


@operation("embedding")
def embedding(w, call, weight, indices, padding_idx=-1, scale_grad_by_freq=False, **_):
    if scale_grad_by_freq:
        raise Refused("scale_grad_by_freq is not possible")
    tokens = w.integers(w.whole(indices), INDICES)
    name = w.layer_name(weight=weight)
    parts, shared = ({"weight": weight}, None) if name else ({}, w.f32(w.whole(weight)))
    return w.layer("embedding", name or w.free_name(call), tokens, tokens.shape + weight.full[1:], parts,
                   num_embeddings=weight.full[0], embedding_dim=weight.full[1],
                   padding_idx=None if padding_idx == -1 else padding_idx, weight=shared)


def bag_length(w, offsets, count):
    """How many of `count` words each bag has, where the offsets are known to be so far apart; None: not all alike."""
    if isinstance(offsets, Constant):
        places, length = offsets.tensor.tolist(), count // max(1, len(offsets.tensor)) if count > 0 else 0
        return length if length and places == list(range(0, count, length)) else None
    entry = offsets.entry
    while entry.op in ("reshape", "cast"):
        entry = entry.inputs[0].entry
    length = w.steps.get(entry)
    return length if length and product(offsets.full + (length,)) == count else None


def joined_bags(w, rows, offsets, op):
    """Rows [words, ...] joined for each bag by "add" or "maximum", [bags, ...]; of empty bags 0 or -inf."""
    (count, *rest), bags = rows.full, offsets.full[0]
    length = bag_length(w, offsets, count)
    if length:
        return w.reduce("sum" if op == "add" else "max", w.reshape(rows, (bags, length, *rest)), 1)
    places = w.reshape(w.counting(count), (count, 1))
    bag = w.map("add_scalar", w.reduce("sum", w.map("le", offsets, places), 1), value=-1.0)
    every = w.view(w.tensor(w.reshape(bag, (count,) + (1,) * len(rest))), rows.full)
    start = w.tensor(0.0 if op == "add" else -math.inf)
    return w.scatter(w.view(start, (bags, *rest)), 0, every, rows, op)


@operation("_embedding_bag", "_embedding_bag_forward_only", "embedding_bag")
def embedding_bag(w, call, weight, indices, offsets, scale_grad_by_freq=False, mode=0, per_sample_weights=None,
                  include_last_offset=False, padding_idx=-1, **_):
    """mode 0: sums, 1: means, 2: maxima of the rows that each bag names; padding does not count."""
    if w.wanted - {0}:
        raise Refused("only the rows of the bags are possible")
    offsets = w.slice(offsets, 0, 0, -1) if include_last_offset else offsets
    rows = embedding(w, call, weight, indices, -1 if padding_idx is None else padding_idx, scale_grad_by_freq)
    count, column = rows.full[0], (rows.full[0], 1)
    counted = w.tensor(1.0) if padding_idx in (None, -1) else w.reshape(w.map("ne", indices, padding_idx), column)
    counts = joined_bags(w, w.whole(w.view(w.tensor(counted), column)), offsets, "add") if mode else None
    if mode == 2:
        rows = w.map("where", counted, rows, -math.inf)
        y = w.expr("x if y > 0 else 0", joined_bags(w, w.whole(rows), offsets, "maximum"), counts)
        return y, None, None, None
    rows = rows if padding_idx in (None, -1) else w.map("mul", rows, counted)
    rows = rows if per_sample_weights is None else w.map("mul", rows, w.reshape(per_sample_weights, (count, 1)))
    y = joined_bags(w, w.whole(rows), offsets, "add")
    return (w.expr("x / max(y, 1)", y, counts) if mode else y), None, None, None


@operation("histc")
def histc(w, call, x, bins=100, min=0, max=0):
    """How many elements lie in each of equal intervals from min to max; 0, 0: those of x."""
    x = w.reshape(x, (product(x.full),))
    low, high = number(min), number(max)
    if low == high:
        low, high = negative(w, w.reduce("max", negative(w, x))), w.reduce("max", x)
        low, high = w.expr("x - 1 if x == y else x", low, high), w.expr("y + 1 if x == y else y", low, high)
    inside = w.expr("where(x < y, 0, where(x <= z, 1, 0))", x, low, high)
    place = w.expr(f"min(max(floor((x - y) / (z - y) * {bins}), 0), {bins - 1})", w.map("where", inside, x, low), low, high)
    return w.scatter(w.view(w.tensor(0.0), (bins,)), 0, place, w.map("detach", inside), "add")


@operation("gather")
def gather(w, call, x, dim, index, **_):
    inputs = [w.copied(w.whole(x)), w.integers(w.whole(index), INDICES)]
    return w.add("gather", inputs, inputs[1].shape, kind=inputs[0].dtype, dim=normal_axis(dim, len(x.full)))


def is_batch_range(w, x):
    """Whether x is 0, 1, ... of the batch, [N, 1, ...]."""
    if not isinstance(x, Value) or x.full != (-1,) + (1,) * (len(x.full) - 1):
        return False
    entry = x.entry
    while entry.op in ("reshape", "cast"):
        entry = entry.inputs[0].entry
    return entry in w.ranges


def joined_index(w, indices, sizes):
    """What indices into axes of these sizes are in the one axis that these become."""
    result, stride = Constant(w.torch.tensor(0)), product(sizes)
    if stride > 2 ** 24:
        raise Refused(f"it picks one of {stride} elements; gpunn counts to 2^24 there")
    for index, size in zip(indices, sizes):
        stride //= size
        if isinstance(index, Constant):
            part = Constant(index.tensor.long() % size * stride, index.full)
        else:
            is_place = w.tensor(index).entry.op in ("argmax", "topk_indices")  # never below 0
            part = w.scale(w.f32(index) if is_place else w.expr(f"x if x >= 0 else x + {size}", index), stride)
        if isinstance(result, Constant) and isinstance(part, Constant):
            result = Constant(result.tensor + part.tensor, broadcast([result.full, part.full]))
        else:
            result = part if isinstance(result, Constant) and not result.tensor.any() else w.map("add", result, part)
    return result


def is_range(w, index, size):
    """Whether an index of one axis of more than 1 is 0, 1, ... up to a size that varies."""
    if not isinstance(index, Value) or [n for n in index.full if n != 1] != [size] or size > 0:
        return False
    entry = index.entry
    while entry.op in ("reshape", "cast"):
        entry = entry.inputs[0].entry
    return entry in w.ranges


def spread_by_ranges(w, x, indices):
    """x indexed by such ranges of its first axes, each along another axis of the result: x[b, t] of b [N, 1, 1] and t [1, 1, T] is
    x as [N, 1, T]. None: something else is indexed."""
    if None in indices or not all(is_range(w, y, size) for y, size in zip(indices, x.full)):
        return None
    rank = max(len(y.full) for y in indices)
    axes = [next(i for i, n in enumerate((1,) * (rank - len(y.full)) + y.full) if n != 1) for y in indices]
    if len(set(axes)) < len(axes):
        return None
    order = sorted(range(len(axes)), key=axes.__getitem__)
    x = w.permute(x, order + list(range(len(axes), len(x.full))))
    return w.reshape(x, tuple(indices[axes.index(i)].full[i - rank] if i in axes else 1 for i in range(rank)) + x.full[len(axes):])


@operation("index")
def index_(w, call, x, indices):
    spread = spread_by_ranges(w, x, indices)
    y = picked(w, call, x, indices) if spread is None else spread
    whole = not call.shapes[0][1].is_floating_point and call.shapes[0][1] != w.torch.bool
    return w.integers(y, INDICES) if whole and isinstance(y, Value) else y


def picked(w, call, x, indices):
    """The elements of x at the indices, of which those that are tensors broadcast."""
    indices = indices + [None] * (len(x.full) - len(indices))  # one for each axis; None: all of it
    if any(index is not None and dtype_of(w, index) in ("bool", "u8") for index in indices):
        raise Refused("how many elements a mask takes depends on its values")
    by_sample = x.full[0] == -1 and is_batch_range(w, indices[0])
    if by_sample and isinstance(x, Constant) and x.tensor.shape[0] == 1 and all(not isinstance(y, Value) for y in indices[1:]):
        others = [slice(None) if y is None else y.tensor.long().expand(y.full) for y in indices[1:]]  # alike for all samples
        one = w.torch.zeros((1,) * len(indices[0].full), dtype=w.torch.int64)
        return Constant(x.tensor.expand((1,) + x.full[1:])[tuple([one] + others)], call.shapes[0][0])
    axes = [i for i, index in enumerate(indices) if index is not None and not (by_sample and i == 0)]
    for i in axes:
        if x.full[i] < 0:
            raise Refused(f"it picks elements of {size_name(x.full[i])}" if varies(x.full[i]) else "it picks samples of the batch")
    taken, sizes, rest = [indices[i] for i in axes], [x.full[i] for i in axes], [i for i, y in enumerate(indices) if y is None]
    shape = broadcast([y.full for y in indices if y is not None])  # of the picks: in place of adjacent axes, else in front
    first = 1 if by_sample else axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    x = w.permute(x, [0] * by_sample + rest[:first - by_sample] + axes + rest[first - by_sample:])
    lead, tail = x.full[:first], x.full[first + len(axes):]
    x, index = w.reshape(x, lead + (product(sizes),) + tail), joined_index(w, taken, sizes)
    if isinstance(index, Constant) and index.full[-1:] == x.full[first:first + 1] == (product(index.full),) and \
            w.torch.equal(index.tensor.expand(index.full).flatten(), w.torch.arange(index.full[-1])):
        return w.reshape(x, call.shapes[0][0])  # all in their order
    if not lead and product(tail) > 0:
        y = embedding(w, call, w.reshape(x, (product(sizes), product(tail))), w.reshape(index, shape))
    else:
        picks = shape[1:] if by_sample else shape
        index = w.view(w.tensor(index), shape if by_sample else index.full)
        index = w.reshape(index, (lead if by_sample else (1,) * len(lead)) + (product(picks),) + (1,) * len(tail))
        y = gather(w, call, x, first, w.view(w.tensor(index), lead + (product(picks),) + tail))
    return w.reshape(y, call.shapes[0][0])


def dtype_of(w, x):
    """The dtype of an operand, bool for what is that in PyTorch."""
    if isinstance(x, Constant):
        return dtype_name(w.torch, x.tensor.dtype)
    x = w.tensor(x)
    return "bool" if x.is_bool else x.dtype


@operation("index_select")
def index_select(w, call, x, dim, index):
    dim, rank = normal_axis(dim, len(x.full)), len(x.full)
    index = w.view(w.tensor(w.reshape(index, tuple(index.full[0] if i == dim else 1 for i in range(rank)))), call.shapes[0][0])
    return gather(w, call, x, dim, index)


def places(w, index, size):
    """An index as gather and scatter_add read it, none below 0."""
    if isinstance(index, Constant):
        if size < 0 and index.tensor.min() < 0:
            raise Refused(f"it counts from the end of {size_name(size)}")
        return Constant(index.tensor.long() % size if size > 0 else index.tensor, index.full)
    return index


@operation("scatter", "scatter_add")
def scatter(w, call, x, dim, index, src=None, value=None, reduce=None):
    dim = normal_axis(dim, len(x.full))
    if src is None:
        value = value if isinstance(value, Constant) else Constant(w.torch.tensor(value))
    src = w.view(w.tensor(value), index.full) if src is None else part_of(w, src, index.full)
    reduction = "add" if call.op == "scatter_add" else {"multiply": "mul"}.get(reduce, reduce)
    return w.scatter(x, dim, places(w, index, x.full[dim]), src, reduction)


@operation("scatter_reduce")
def scatter_reduce(w, call, x, dim, index, src, reduce, include_self=True):
    dim = normal_axis(dim, len(x.full))
    return scattered(w, x, dim, places(w, index, x.full[dim]), part_of(w, src, index.full), reduce, include_self)


def part_of(w, x, full):
    """The first elements along each axis, as many as full says."""
    for axis, size in enumerate(full):
        x = x if x.full[axis] == size else w.slice(x, axis, 0, size)
    return x


# By PyTorch's names of reductions: how two elements are joined, and what joins without effect.
JOINS = {"sum": ("add", 0.0), "mean": ("add", 0.0), "prod": ("mul", 1.0), "amax": ("maximum", -math.inf),
         "amin": ("minimum", math.inf)}


def scattered(w, x, dim, index, src, reduce, include_self):
    """src joined to x at the places of index; not include_self: to each other only."""
    (op, neutral), (x, src), count = JOINS[reduce], w.alike([w.whole(x), w.whole(src)]), None
    if reduce == "mean" or not include_self:
        count = w.scatter(w.zeros(x), dim, index, w.view(w.tensor(1.0), index.full), "add")
    if x.dtype != "f32":
        least, most = -1 << 63, (1 << 63) - 1
        x = x if include_self else w.integer("where", w.integer("eq", count, 0), x, int(max(least, min(neutral, most))))
        y = w.scatter(x, dim, index, src, op)
        return y if reduce != "mean" else w.integer(
            "floor_divide", y, w.integer("add", count, 1) if include_self else w.integer("maximum", count, 1))
    y = w.scatter(x if include_self else w.map("where", count, neutral, x), dim, index, src, op)
    return y if reduce != "mean" else w.expr("x / (y + 1)" if include_self else "x / max(y, 1)", y, count)


def slices_of(w, x, dim, index):
    """index [count] as one for each element of the slices of x that it names."""
    full = x.full[:dim] + index.full + x.full[dim + 1:]
    one = tuple(size if i == dim else 1 for i, size in enumerate(full))
    return w.view(w.tensor(w.reshape(places(w, index, x.full[dim]), one)), full)


@operation("index_add", "index_copy", "index_fill")
def index_add(w, call, x, dim, index, source=None, alpha=1, value=None):
    dim = normal_axis(dim, len(x.full))
    every = slices_of(w, x, dim, index)
    if source is None:
        value = Constant(w.torch.tensor(value)) if is_number(value) else value
        source = w.view(w.tensor(value), every.full)
    elif number(alpha) != 1:
        source = mul(w, call, source, alpha) if not is_exact(w, source) else integer_pair(w, "mul", source, alpha)
    return w.scatter(x, dim, every, source, "add" if call.op == "index_add" else None)


@operation("index_reduce")
def index_reduce(w, call, x, dim, index, source, reduce, include_self=True):
    dim = normal_axis(dim, len(x.full))
    return scattered(w, x, dim, slices_of(w, x, dim, index), source, reduce, include_self)


@operation("index_put")
def index_put(w, call, x, indices, values, accumulate=False, **_):
    """Of places in the first axes, joined to one."""
    if any(index is None or dtype_of(w, index) in ("bool", "u8") for index in indices) or any(d < 0 for d in x.full):
        raise Refused("only places in the first axes of a tensor without the batch are possible")
    sizes, tail = x.full[:len(indices)], x.full[len(indices):]
    index, shape = joined_index(w, indices, sizes), broadcast([y.full for y in indices])
    index = w.reshape(w.view(w.tensor(index), shape), (product(shape), 1))
    every = w.view(w.tensor(index), (product(shape), product(tail)))
    values = w.reshape(w.view(w.tensor(values), shape + tail), every.full)
    y = w.scatter(w.reshape(x, (product(sizes), product(tail))), 0, every, values, "add" if accumulate else None)
    return w.reshape(y, x.full)


def product_of(w, a, b, transpose_b=False):
    """torch.matmul, vectors too."""
    rank_a, rank_b = len(a.full), len(b.full)
    if rank_a == 1:
        a = w.reshape(a, (1,) + a.full)
    if rank_b == 1:
        b = w.reshape(b, b.full + (1,))
    y = w.matmul(a, b, transpose_b)
    shape = y.shape[:-2] + (() if rank_a == 1 else y.shape[-2:-1]) + (() if rank_b == 1 else y.shape[-1:])
    return w.reshape(y, shape)


@operation("matmul", "mm", "bmm", "mv", "dot")
def matmul(w, call, x, other=None, mat2=None, vec=None, tensor=None, **_):
    return product_of(w, x, next(y for y in (other, mat2, vec, tensor) if y is not None))


@operation("outer", "ger")
def outer(w, call, x, vec2):
    return w.map("mul", w.reshape(x, x.full + (1,)), vec2)


@operation("bilinear")
def bilinear(w, call, input1, input2, weight, bias=None):
    """sum over i, j of x1[i] weight[k][i][j] x2[j]: each pair's products as one row."""
    (count, one, other), lead = weight.full, input1.full[:-1]
    pairs = w.map("mul", w.reshape(input1, lead + (one, 1)), w.reshape(input2, lead + (1, other)))
    y = product_of(w, w.reshape(pairs, lead + (one * other,)), w.reshape(weight, (count, one * other)), True)
    return y if bias is None else w.map("add", y, bias)


@operation("addmm", "baddbmm", "addbmm")
def addmm(w, call, x, mat1=None, mat2=None, batch1=None, batch2=None, beta=1, alpha=1, **_):
    if call.op == "addbmm":
        raise Refused("it sums over the batch")
    y = w.scale(product_of(w, *((mat1, mat2) if batch1 is None else (batch1, batch2))), number(alpha))
    return y if number(beta) == 0 else w.map("add", w.scale(x, number(beta)), y)


@operation("einsum")
def einsum(w, call, equation, tensors, **_):
    return w.einsum(equation, tensors)


def has_gradient(x, of_inputs=True):
    """Whether x is a learned parameter or computed from such, or from floating-point inputs."""
    if not isinstance(x, Value):
        return isinstance(x, Parameter) and x.tensor.requires_grad
    found = {x.entry: None} if x.dtype == "f32" else {}
    pending = list(found)
    while pending:
        entry = pending.pop()
        if (of_inputs and entry.op == "input") or any(isinstance(p, Parameter) and p.tensor.requires_grad for p in entry.weights):
            return True
        reads = [y.entry for y in entry.reads() if y.dtype == "f32" and y.entry not in found] if entry.op != "detach" else []
        found.update(dict.fromkeys(reads))
        pending += reads
    return False


def attention_mask(w, mask):
    """A mask as the op takes it: bool, or F32 that is added."""
    if isinstance(mask, Constant) and mask.tensor.dtype == w.torch.bool:
        mask = Constant(w.torch.zeros(mask.tensor.shape).masked_fill(~mask.tensor, -math.inf), mask.full)
    is_choice = not isinstance(mask, Constant) and w.tensor(mask).is_bool
    x = w.tensor(mask) if is_choice else w.f32(mask)
    return w.add("cast", [x], x.shape, x.full, kind="bool", dtype="bool") if is_choice and x.dtype != "bool" else x


@operation("scaled_dot_product_attention")
def attention(w, call, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    operands, lead = [w.f32(w.whole(x)) for x in (query, key, value)], query.full[:-2]
    square = attn_mask is None or len(lead) == 2 or len(attn_mask.full) <= 2
    alike = all(x.full[:-2] == lead for x in operands) or (enable_gqa and len(lead) == 2)
    if not lead or not square or not alike or has_gradient(attn_mask, w.trains):
        return plain_attention(w, call, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    last = len(lead) == 2 and all(x.entry.op == "permute" and x.entry.attributes["dims"] == [0, 2, 1, 3] for x in operands)
    if last:
        operands = [x.entry.inputs[0] for x in operands]
    elif len(lead) != 2:
        operands = [w.reshape(x, (product(lead), 1) + x.full[-2:]) for x in operands]
    result = operands[0].full[:3] + operands[2].full[3:]
    y = w.add("scaled_dot_product_attention", operands, result, is_causal=True if is_causal else None,
              mask=None if attn_mask is None else attention_mask(w, attn_mask),
              dropout_p=number(dropout_p) if number(dropout_p) and w.training else None,
              scale=None if scale is None else number(scale), enable_gqa=True if enable_gqa else None,
              heads_last=True if last else None)
    return w.permute(y, [0, 2, 1, 3]) if last else y if len(lead) == 2 else w.reshape(y, call.shapes[0][0])


def for_all_heads(w, x, heads):
    """The heads of grouped keys or values, each as often as heads of queries read it."""
    lead, (own, rows, size) = x.full[:-3], x.full[-3:]
    many = w.view(w.tensor(w.reshape(x, lead + (own, 1, rows, size))), lead + (own, heads // own, rows, size))
    return w.reshape(many, lead + (heads, rows, size))


def softmax_of_rows(w, scores, may_be_empty):
    """Softmax of each row. may_be_empty: rows of -inf alone become 0 and have no gradient, as PyTorch's attention has it."""
    scores = w.whole(scores)
    highest = w.reduce("max", scores, [-1], keepdim=True) if may_be_empty else None

    def without_empty(x):
        return w.expr("0 if y < -3.4028235e38 else x", x, highest) if may_be_empty else x

    return without_empty(w.add("softmax", [without_empty(scores)], scores.full, dim=len(scores.full) - 1))


def plain_attention(w, call, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    """Of products and softmax: for a mask that has a gradient, and shapes that broadcast."""
    if enable_gqa:
        key, value = [for_all_heads(w, x, query.full[-3]) for x in (key, value)]
    scores = w.scale(product_of(w, query, key, True), 1 / math.sqrt(query.full[-1]) if scale is None else number(scale))
    if is_causal:
        scores = w.map("where", inside_triangle(w, *scores.shape[-2:]), scores, -math.inf)
    if attn_mask is not None:
        is_choice = attn_mask.tensor.dtype == w.torch.bool if isinstance(attn_mask, Constant) else w.tensor(attn_mask).is_bool
        scores = w.map("where", attn_mask, scores, -math.inf) if is_choice else w.map("add", scores, attn_mask)
    weights = softmax_of_rows(w, scores, attn_mask is not None and not has_gradient(attn_mask, False))
    if number(dropout_p):
        weights = dropout(w, call, weights, number(dropout_p), w.training)
    return product_of(w, weights, value)


# -- layers --
def need_layer(w, name):
    if name is None:
        raise Refused("its weights must be the parameters of one layer that has a name and is used once")
    return name


def along(setting, axes):
    """A setting of a window, one number for each spatial axis."""
    setting = [setting] if isinstance(setting, int) else list(setting)
    return setting * axes if len(setting) == 1 else setting


def alike(setting):
    """As the spec has it: one number where all are equal."""
    return setting[0] if len(set(setting)) == 1 else setting


def batched(w, x, axes):
    """x as [n, channels, ...] with so many spatial axes."""
    return w.f32(w.reshape(x, x.full if len(x.full) == axes + 2 else (1,) + x.full))


@operation("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "_convolution",
           "convolution", "_convolution_mode")
def conv(w, call, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, transposed=False, output_padding=0, **_):
    axes, transposed = len(weight.full) - 2, transposed or call.op.startswith("conv_transpose")
    name, parts, given, added = w.layer_name(weight=weight, bias=bias), {"weight": weight, "bias": bias}, {}, None
    kernel, channels = list(weight.full[2:]), weight.full[1] * groups if transposed else weight.full[0]
    if name is None:  # another layer's, or computed
        name, parts, given = w.free_name(call), {}, {"weight": w.f32(w.whole(weight))}
        if isinstance(bias, Parameter):
            given["bias"] = w.tensor(bias)
        elif bias is not None:
            added = w.reshape(bias, (channels,) + (1,) * axes)
    x, shape = batched(w, x, axes), call.shapes[0][0]
    if padding == "same":
        missing = [d * (k - 1) for d, k in zip(along(dilation, axes), kernel)]
        padding = [m // 2 for m in missing]
        if any(m % 2 for m in missing):  # PyTorch's one more at the end
            before, after, padding = [0, 0] + padding, [0, 0] + [m - m // 2 for m in missing], 0
            x = w.add("pad", [x], tuple(d + b + a for d, b, a in zip(x.full, before, after)), before=before, after=after)
    elif padding == "valid":
        padding = 0

    def unless(default, setting):
        setting = along(setting, axes)
        return None if set(setting) == {default} else alike(setting)

    given.setdefault("bias", False if bias is None or added else None)
    y = w.layer("conv%s%dd" % ("_transpose" if transposed else "", axes), name, x,
                shape if len(shape) == axes + 2 else (1,) + shape, parts, out_channels=channels, kernel_size=alike(kernel),
                stride=unless(1, stride), padding=unless(0, padding), dilation=unless(1, dilation),
                output_padding=unless(0, output_padding), groups=None if groups == 1 else groups, **given)
    return w.reshape(w.map("add", y, added) if added else y, shape)


@operation("_weight_norm")
def weight_norm(w, call, v, g, dim=0):
    dims = [i for i in range(len(v.full)) if dim == -1 or i != normal_axis(dim, len(v.full))]
    return w.map("mul", v, w.map("div", g, w.map("sqrt", w.reduce("sum", w.map("square", v), dims, True))))


@operation("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d")
def pool(w, call, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, count_include_pad=True,
         divisor_override=None):
    axes = int(call.op[-2])
    x, kernel, padding = batched(w, x, axes), along(kernel_size, axes), along(padding, axes)
    stride = along(stride, axes) if stride else kernel
    if divisor_override is not None:
        after = pool_reach(call, x, kernel, stride, padding, [1] * axes)
        x = pool(w, call, padded_by(w, x, padding, after, None), kernel, stride)
        return w.scale(x, product(kernel) / divisor_override)
    if set(along(dilation, axes)) != {1}:
        return dilated_pool(w, call, x, kernel, stride, padding, along(dilation, axes))
    y = w.add(call.op, [x], x.shape[:2] + tuple(call.shapes[0][0][-axes:]), kernel_size=alike(kernel),
              stride=None if stride == kernel else alike(stride), padding=alike(padding) if any(padding) else None,
              ceil_mode=ceil_mode or None, count_include_pad=None if count_include_pad else False)
    return w.reshape(y, call.shapes[0][0])


def pool_reach(call, x, kernel, stride, padding, dilation):
    """By axis, how many cells behind x the last window reaches."""
    sizes = call.shapes[0][0][-len(kernel):]
    ends = [(n - 1) * s + d * (k - 1) + 1 for n, k, s, d in zip(sizes, kernel, stride, dilation)]
    return [max(0, end - size - p) for end, size, p in zip(ends, x.full[2:], padding)]


def padded_by(w, x, before, after, value):
    """x with so many values before and after it along its last axes."""
    if not any(before) and not any(after):
        return x
    shape = x.full[:2] + tuple(p + size + a for p, size, a in zip(before, x.full[2:], after))
    return w.add("pad", [x], shape, before=[0, 0] + list(before), after=[0, 0] + list(after), value=value)


def dilated_pool(w, call, x, kernel, stride, padding, dilation):
    """Maxima with gaps in their windows, one axis after another: a slice for each cell of the kernel."""
    sizes = call.shapes[0][0][-len(kernel):]
    x = padded_by(w, x, padding, pool_reach(call, x, kernel, stride, padding, dilation), -math.inf)
    for axis, (n, k, s, d) in enumerate(zip(sizes, kernel, stride, dilation), 2):
        cells = [w.slice(x, axis, i * d, i * d + (n - 1) * s + 1, s) for i in range(k)]
        x = cells[0]
        for cell in cells[1:]:
            x = w.map("maximum", x, cell)
    return w.reshape(x, call.shapes[0][0])


@operation("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def pool_with_indices(w, call, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False):
    plain = call._replace(op=call.op[:10])
    if 1 not in w.wanted:
        return pool(w, plain, x, kernel_size, stride, padding, dilation, ceil_mode), None
    axes, shape = int(call.op[8]), call.shapes[0][0]
    x, kernel, padding, dilation = batched(w, x, axes), along(kernel_size, axes), along(padding, axes), along(dilation, axes)
    stride, sizes = along(stride, axes) if stride else kernel, x.full[2:]
    x = padded_by(w, x, padding, pool_reach(plain, x, kernel, stride, padding, dilation), -math.inf)
    y, places = w.pooled_places(x, kernel, stride, dilation, padding, shape[-axes:], sizes)
    return w.reshape(y, shape), w.reshape(small_integers(w, places), shape)


@operation("max_unpool2d", "max_unpool3d")
@reads("stride", "padding")
def unpool(w, call, x, indices, output_size=None, **_):
    """Each value where it was the largest."""
    axes, shape = int(call.op[-2]), call.shapes[0][0]
    lead, cells = shape[:-axes], product(x.full[-axes:])
    blank = w.whole(w.view(w.tensor(0.0), lead + (product(shape[-axes:]),)))
    x, indices = [w.reshape(y, lead + (cells,)) for y in (x, indices)]
    return w.reshape(w.scatter(blank, len(lead), indices, x), shape)


@operation("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
           "adaptive_max_pool3d")
def adaptive_pool(w, call, x, output_size):
    axes = int(call.op[-2])
    x, size = batched(w, x, axes), list(call.shapes[0][0][-axes:])
    y = w.reshape(w.add(call.op, [x], x.shape[:2] + tuple(size), output_size=alike(size)), call.shapes[0][0])
    return (y, None) if "max" in call.op else y


@operation("grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sample(w, call, x, grid, interpolation_mode=0, padding_mode=0, align_corners=False, mode="bilinear"):
    mode = ("bilinear", "nearest", "bicubic")[interpolation_mode] if interpolation_mode else mode
    padding_mode = ("zeros", "border", "reflection")[padding_mode] if is_number(padding_mode) else padding_mode
    if mode == "bicubic":
        return w.cubic_sample(w.f32(w.whole(x)), w.f32(w.whole(grid)), padding_mode, align_corners)
    return w.add("grid_sample", [w.f32(w.whole(x)), w.f32(w.whole(grid))], call.shapes[0][0],
                 mode=None if mode == "bilinear" else mode, padding_mode=None if padding_mode == "zeros" else padding_mode,
                 align_corners=align_corners or None)


@operation("roi_align")
def roi_align(w, call, x, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    """Of torchvision."""
    return w.add("roi_align", [w.f32(w.whole(x)), w.f32(w.whole(rois))], call.shapes[0][0],
                 output_size=alike([pooled_height, pooled_width]), spatial_scale=None if spatial_scale == 1 else spatial_scale,
                 sampling_ratio=sampling_ratio if sampling_ratio > 0 else None, aligned=aligned or None)


@operation("roi_pool", "ps_roi_pool", "ps_roi_align")
@reads("x", "rois", "spatial_scale", "pooled_height", "pooled_width", "sampling_ratio")
def other_regions(w, call, **_):
    raise Refused("how large its windows are depends on values; use roi_align" if call.op == "roi_pool" else
                  "it has no counterpart in gpunn; use roi_align")


@operation("deform_conv2d")
@reads("use_mask")
def deform_conv(w, call, x, weight, offset, mask, bias, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups,
                offset_groups, use_mask):
    """Of torchvision: the kernel's cells as points of one grid_sample, then a convolution of 1x1 over channels and cells."""
    (n, c), (count, own, kh, kw), (rows, columns) = x.full[:2], weight.full, call.shapes[0][0][2:]
    height, width = w.known_size(x, 2), w.known_size(x, 3)
    cells, parts, each = kh * kw, product([n, offset_groups]), c // offset_groups
    offset = w.reshape(offset, (parts, cells, 2, rows, columns))

    def coordinate(axis, size, out, k, stride, padding, dilation):
        start = w.torch.arange(k)[:, None] * dilation - padding + w.torch.arange(out) * stride  # [k, out]
        start = (start[:, None, :, None] if axis == 0 else start[None, :, None, :]).expand(kh, kw, rows, columns)
        moved = w.map("add", pick(w, offset, 2, axis), Constant(start.float().reshape(1, cells, rows, columns)))
        return w.expr(f"(2 * x + 1) / {size} - 1", moved)

    y = coordinate(0, height, rows, kh, stride_h, pad_h, dilation_h)
    grid = stack(w, call, [coordinate(1, width, columns, kw, stride_w, pad_w, dilation_w), y], 4)
    taken = w.add("grid_sample", [w.f32(w.reshape(x, (parts, each, height, width))),
                                  w.reshape(grid, (parts, cells * rows, columns, 2))], (parts, each, cells * rows, columns))
    taken = w.reshape(taken, (parts, each, cells, rows, columns))
    taken = w.map("mul", taken, w.reshape(mask, (parts, 1, cells, rows, columns))) if use_mask else taken
    return conv(w, call._replace(op="conv2d"), w.reshape(taken, (n, c * cells, rows, columns)),
                w.reshape(weight, (count, own * cells, 1, 1)), bias, groups=groups)


@operation("affine_grid", "affine_grid_generator")
def affine_grid(w, call, theta, size, align_corners=False):
    return w.add("affine_grid", [w.f32(w.whole(theta))], call.shapes[0][0], size=list(call.shapes[0][0][1:-1]),
                 align_corners=align_corners or None)


def check_mode(w, training):
    if training != w.training:
        raise Refused("its mode, of training or evaluation, is not the model's")


@operation("batch_norm", "_native_batch_norm_legit", "native_batch_norm")
def batch_norm(w, call, x, weight, bias, running_mean, running_var, training, momentum, eps, **_):
    if running_mean is None:
        return batch_norm_of_batch(w, call, x, weight, bias, eps)
    check_mode(w, training)
    parts = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    return norm_with_statistics(w, "batch_norm", x, parts, momentum, eps, affine=False if weight is None else None)


def norm_with_statistics(w, op, x, parts, momentum, eps, **given):
    if number(momentum) is None:
        raise Refused("momentum=None is not possible")
    if (parts["weight"] is None) != (parts["bias"] is None) or not 2 <= len(x.full) <= 5:
        raise Refused("only x of 2 to 5 axes, with weight and bias or without both, are possible")
    return w.layer("%s%dd" % (op, max(len(x.full) - 2, 1)), need_layer(w, w.layer_name(**parts)), x, x.full, parts,
                   eps=None if eps == 1e-5 else eps, momentum=None if momentum == 0.1 else momentum, **given)


def batch_norm_of_batch(w, call, x, weight, bias, eps):
    """Without running statistics, by those of the samples at hand in either mode."""
    parts = {} if weight is None and bias is None else {"weight": weight, "bias": bias}
    name = w.free_name(call) if not parts else w.layer_name(**parts) if None not in (weight, bias) else None
    if name and 2 <= len(x.full) <= 5:
        return w.layer("batch_norm%dd" % max(len(x.full) - 2, 1), name, x, x.full, parts, eps=None if eps == 1e-5 else eps,
                       affine=None if parts else False, track_running_stats=False)
    axes = [i for i in range(len(x.full)) if i != 1]
    centred = w.map("sub", x, w.reduce("mean", x, axes, True))
    y = w.expr(f"x / sqrt(y + {text(eps)})", centred, w.reduce("mean", w.map("square", centred), axes, True))
    return scaled_channels(w, y, weight, bias)


def norm_of_last(w, call, op, x, dims, eps, weight, bias):
    """layer_norm or rms_norm over the last dims axes: a layer, or one without parameters, which are applied after it."""
    default = 1e-5 if op == "layer_norm" else None
    eps, dims = None if eps == default else eps, None if dims == 1 else dims
    name = w.layer_name(weight=weight, bias=bias) if weight is not None else None
    if name:
        return w.layer(op, name, x, x.full, {"weight": weight, "bias": bias}, dims=dims, eps=eps,
                       bias=False if bias is None and op == "layer_norm" else None)
    y = w.layer(op, w.free_name(call), x, x.full, {}, dims=dims, eps=eps, elementwise_affine=False)
    y = y if weight is None else w.map("mul", y, weight)
    return y if bias is None else w.map("add", y, bias)


@operation("layer_norm", "native_layer_norm")
def layer_norm(w, call, x, normalized_shape, weight=None, bias=None, eps=1e-5, **_):
    return norm_of_last(w, call, "layer_norm", x, len(normalized_shape), eps, weight, bias)


@operation("rms_norm")
def rms_norm(w, call, x, normalized_shape, weight=None, eps=None):
    return norm_of_last(w, call, "rms_norm", x, len(normalized_shape), eps, weight, None)


@operation("instance_norm")
def instance_norm(w, call, x, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, **_):
    if running_mean is None:
        return group_norm(w, call, x, weight=weight, bias=bias, eps=eps)
    if w.training and not use_input_stats:  # which no training changes
        mean, var = [w.reshape(y, y.full + (1,) * (len(x.full) - 2)) for y in (running_mean, running_var)]
        return scaled_channels(w, w.expr(f"(x - y) / sqrt(z + {text(eps)})", x, mean, var), weight, bias)
    check_mode(w, use_input_stats)
    parts = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    return norm_with_statistics(w, "instance_norm", x, parts, momentum, eps, affine=None if weight is None else True,
                                track_running_stats=True)


@operation("group_norm")
def group_norm(w, call, x, num_groups=None, weight=None, bias=None, eps=1e-5, **_):
    groups = num_groups or x.full[1]
    eps, name = None if eps == 1e-5 else eps, None if None in (weight, bias) else w.layer_name(weight=weight, bias=bias)
    if name:
        return w.layer("group_norm", name, x, x.full, {"weight": weight, "bias": bias}, num_groups=groups, eps=eps)
    y = w.layer("group_norm", w.free_name(call), x, x.full, {}, num_groups=groups, eps=eps, affine=False)
    return scaled_channels(w, y, weight, bias)


def scaled_channels(w, x, weight, bias):
    """x times weight plus bias, where these are given: one number a channel."""
    column = (x.full[1],) + (1,) * (len(x.full) - 2)
    y = x if weight is None else w.map("mul", x, w.reshape(weight, column))
    return y if bias is None else w.map("add", y, w.reshape(bias, column))


@operation("dropout")
def dropout(w, call, x, p, train):
    check_mode(w, train)
    x = w.f32(w.whole(x))
    return w.add("dropout", [x], x.shape, p=p) if p else x


@operation("rrelu")
def rrelu(w, call, x, lower=1 / 8, upper=1 / 3, training=False, **_):
    check_mode(w, training)
    x = w.f32(w.whole(x))
    if not training:
        return w.map("leaky_relu", x, negative_slope=(lower + upper) / 2)
    return w.add("rrelu", [x], x.shape, lower=float(lower), upper=float(upper))


@operation("rand_like", "randn_like")
def random_like(w, call, x, **_):
    x = w.f32(w.whole(x))
    return w.add(call.op, [x], x.shape)


@operation("rand", "randn")
@reads("size")
def random(w, call, *_, **__):
    return w.drawn(call.op, call.shapes[0][0])


@operation("randint", "randint_like")
@reads("size")
def random_integers(w, call, high, low=0, **_):
    count = high - low
    if count > 2 ** 24 or max(abs(low), abs(high)) > 2 ** 24:
        raise Refused("it draws integers above 2^24, where gpunn has not every integer")
    y = w.expr(f"min(floor(x * {count}), {count - 1}) + {text(low)}", w.drawn("rand", call.shapes[0][0]))
    return y if call.shapes[0][1].is_floating_point else small_integers(w, y)


@operation("randperm")
def permutation(w, call, n, **_):
    """The order of random numbers."""
    drawn = w.drawn("rand", call.shapes[0][0])
    return w.add("topk_indices", [drawn], drawn.shape, kind="i64", k=w.known_size(drawn, 0), dim=0)


@operation("bernoulli")
def bernoulli(w, call, x, p=None, **_):
    if p is None:
        p = x
    shape = call.shapes[0][0]
    return w.view(w.map("lt", w.drawn("rand", shape), p if number(p) is None else number(p)), shape)


@operation("normal", "normal_functional")
@reads("size")
def normal(w, call, x=None, mean=0.0, std=1.0, **_):
    """x: of the shape of the result where it changes in place, else nothing."""
    return w.expr("x * y + z", w.drawn("randn", call.shapes[0][0]), std, mean)


@operation("uniform", "exponential")
@reads("from", "to", "lambd")
def uniform(w, call, x, **given):
    drawn = w.drawn("rand", call.shapes[0][0])
    if call.op == "exponential":
        return w.expr(f"-log(1 - x) / {text(given.get('lambd', 1.0))}", drawn)
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    return w.expr(f"{text(low)} + x * {text(high - low)}", drawn)


@operation("multinomial")
def multinomial(w, call, x, num_samples, replacement=False, **_):
    """Of exponential variables with these rates the first one is each class with its probability, and the next ones follow so
    without replacement."""
    shape, lead = x.full, x.full[:-1]
    if replacement and num_samples > 1:
        shape = lead + (num_samples,) + x.full[-1:]
        x = w.reshape(x, lead + (1,) + x.full[-1:])
    score = w.expr("y / max(-log(1 - x), 1e-30)", w.drawn("rand", shape), x)
    count = num_samples if shape == lead + x.full[-1:] else 1
    y = w.add("topk_indices", [score], shape[:-1] + (count,), kind="i64", k=count, dim=len(shape) - 1)
    return w.reshape(y, call.shapes[0][0])


# -- losses --
def reduction_name(x):
    return {0: "none", 1: None, 2: "sum"}[x]  # None: the mean, the default


def loss(name, *options):
    """A loss of two equal shapes; options: its further arguments, weights or numbers."""
    @reads(*options)
    def lower(w, call, x, target, reduction=1, **arguments):
        x, target = w.f32(w.whole(x)), w.f32(w.whole(target))
        if x.shape != target.shape:
            raise Refused(f"input {shape_text(x.shape)} and target {shape_text(target.shape)} differ")
        given = {key: arguments.get(key) for key in options}
        given = {key: y if y is None or isinstance(y, bool) else number(y) if key in ("delta", "beta") else w.f32(y)
                 for key, y in given.items() if y is not False}
        return w.add(name, [x, target], x.shape if reduction == 0 else (), reduction=reduction_name(reduction), **given)
    return lower


OPERATIONS.update({
    "mse_loss": loss("mse_loss"), "l1_loss": loss("l1_loss"), "huber_loss": loss("huber_loss", "delta"),
    "smooth_l1_loss": loss("smooth_l1_loss", "beta"), "binary_cross_entropy": loss("bce_loss", "weight"),
    "binary_cross_entropy_with_logits": loss("bce_with_logits", "weight", "pos_weight"), "kl_div": loss("kl_div", "log_target")})


@operation("poisson_nll_loss")
def poisson_nll_loss(w, call, x, target, log_input, full, eps, reduction):
    x, target = w.f32(w.whole(x)), w.f32(w.whole(target))
    y = w.add("poisson_nll_loss", [x, target], x.shape if reduction == 0 else (), reduction=reduction_name(reduction),
              log_input=None if log_input else False, eps=number(eps))
    y.entry.attributes.update({"full": True} if full else {})
    return y


@operation("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")
def class_loss(w, call, x, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0):
    op = "cross_entropy" if call.op == "cross_entropy_loss" else "nll_loss"
    x = w.f32(w.whole(x))
    if len(target.full) == len(x.shape) and op == "cross_entropy":
        return soft_cross_entropy(w, x, target, weight, reduction, label_smoothing)
    target = w.whole(w.integers(target))
    shape = target.shape
    if len(x.shape) == 1:
        x, target = w.reshape(x, (1,) + x.shape), w.reshape(target, (1,))
    y = w.add(op, [x, target], target.shape if reduction == 0 else (), reduction=reduction_name(reduction),
              ignore_index=None if ignore_index == -100 else ignore_index, label_smoothing=label_smoothing or None,
              weight=None if weight is None else w.tensor(weight))
    return w.reshape(y, shape) if reduction == 0 else y


@operation("multi_margin_loss")
def multi_margin_loss(w, call, x, target, p=1, margin=1, weight=None, reduction=1):
    x, target = w.f32(w.whole(x)), w.whole(w.integers(target))
    if len(x.shape) != 2:
        raise Refused("x [n, classes] is needed")
    return w.add("multi_margin_loss", [x, target], target.shape if reduction == 0 else (), reduction=reduction_name(reduction),
                 p=None if p == 1 else number(p), margin=number(margin), weight=None if weight is None else w.tensor(weight))


def loss_of_three(w, name, operands, equal, reduction, **options):
    x = [w.f32(w.whole(t)) for t in operands]
    if any(t.shape != x[0].shape for t in x[:equal]):
        raise Refused("shapes differ; expand the smaller one")
    return w.add(name, x, x[0].shape[:-1] if reduction == 0 else (), reduction=reduction_name(reduction), **options)


@operation("triplet_margin_loss")
def triplet_margin_loss(w, call, anchor, positive, negative, margin=1.0, p=2, eps=1e-6, swap=False, reduction=1):
    return loss_of_three(w, call.op, (anchor, positive, negative), 3, reduction, margin=number(margin), p=number(p),
                         eps=number(eps), swap=swap or None)


@operation("cosine_embedding_loss")
def cosine_embedding_loss(w, call, input1, input2, target, margin=0.0, reduction=1):
    return loss_of_three(w, call.op, (input1, input2, target), 2, reduction, margin=number(margin))


def formula_loss(expression):
    """expression over x, y, z, the loss's tensors, with {name} for its numbers."""
    @reads("input1", "input2", "target", "margin")
    def lower(w, call, reduction=1, **arguments):
        tensors = [t for t in arguments.values() if isinstance(t, (Value, Constant, Parameter))]
        each = w.expr(expression.format(**{name: text(v) for name, v in arguments.items() if is_number(v)}), *tensors)
        return each if reduction == 0 else w.reduce("mean" if reduction == 1 else "sum", each)
    return lower


for torch_name, expression in {"margin_ranking_loss": "max({margin} - z * (x - y), 0)", "soft_margin_loss": "log1p(exp(-y * x))",
                               "hinge_embedding_loss": "where(y == 1, x, 0) + where(y == -1, max({margin} - x, 0), 0)"}.items():
    OPERATIONS[torch_name] = formula_loss(expression)


def soft_cross_entropy(w, x, target, weight, reduction, label_smoothing):
    """Against probabilities of the classes."""
    axis = 1 if len(x.shape) > 1 else 0
    if label_smoothing:
        target = w.expr(f"{text(1 - label_smoothing)} * x + {text(label_smoothing / x.shape[axis])}", target)
    terms = w.expr("-(x * y)", target, w.add("log_softmax", [x], x.shape, dim=axis))
    if weight is not None:
        terms = w.map("mul", terms, w.reshape(weight, weight.full + (1,) * (len(x.shape) - axis - 1)))
    each = w.reduce("sum", terms, axis)
    return each if reduction == 0 or not each.shape else w.reduce("mean" if reduction == 1 else "sum", each)


# ---- the export --------------------------------------------------------------------------------------------------------
RANDOM = ("rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "bernoulli", "normal", "randperm", "multinomial",
          "empty", "empty_like", "new_empty", "dropout", "rrelu", "uniform_", "normal_", "exponential_", "bernoulli_",
          "normal_functional", "uniform", "exponential")
EXPANSIONS = ("expand", "expand_as", "broadcast_to", "broadcast_tensors", "repeat", "tile")  # which broadcasting leaves undone
COUNTING = ("add", "sub", "rsub", "mul", "neg", "sum", "cumsum", "gather", "index_select", "where", "masked_fill", "maximum",
            "minimum", "clamp", "floor_divide", "remainder", "slice", "select", "permute", "transpose", "cat", "stack", "max", "min",
            "amax", "amin", "topk", "sort", "pad", "constant_pad_nd", "tril", "triu", "scatter", "scatter_add", "abs", "roll", "flip",
            "scatter_reduce", "index_add", "index_copy", "index_fill", "index_put", "index_reduce", "slice_scatter",
            "select_scatter", "copy", "fill", "repeat", "tile", "repeat_interleave", "unfold", "unbind", "split",
            "split_with_sizes", "chunk", "tensor_split", "narrow", "movedim", "diagonal", "diag_embed", "cummax", "cummin",
            "square")
CASTS = ("to", "_to_copy", "type_as")
WRAPPING = ("add", "sub", "subtract", "rsub", "mul", "multiply", "neg", "negative", "pow", "square", "bitwise_not",
            "bitwise_left_shift", "__lshift__")
REDUCTIONS = ("sum", "prod", "mean", "cumsum", "cumprod")
LINEAR = ("add", "sub", "rsub", "neg", "sum", "mean", "cumsum", "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze",
          "permute", "transpose", "movedim", "slice", "select", "narrow", "cat", "stack", "expand", "clone", "contiguous",
          "detach", "roll", "flip", "slice_scatter", "select_scatter", "copy", "fft_fftshift", "fft_ifftshift")  # of complex numbers, part by part
PRODUCTS = ("matmul", "mm", "bmm", "mv", "dot", "outer", "ger", "einsum")
OF_COMPLEX = ("mul", "multiply", "div", "divide", "true_divide", "abs", "absolute", "angle", "conj", "_conj", "conj_physical",
              "_conj_physical", "resolve_conj", "resolve_neg", "real", "imag", "view_as_real", "istft", "fft_fft", "fft_ifft",
              "fft_irfft", "fft_fftn", "fft_fft2", "fft_ifftn", "fft_ifft2", "fft_irfftn", "fft_irfft2", "to", "_to_copy")
CHECKS = ("_assert_async", "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size")


def references(x):
    if isinstance(x, Reference):
        return [x.name]
    return [name for y in x for name in references(y)] if isinstance(x, (list, tuple)) else []


def of_complex(op):
    """The operation where an operand is complex."""
    if op in LINEAR:
        return of_parts(OPERATIONS[op])
    if op in PRODUCTS:
        return of_products(OPERATIONS[op])
    if op not in OF_COMPLEX:
        raise Refused("complex numbers are not possible")
    return OPERATIONS[op]


def unexpected(call):
    """What is said of a call that its operation did not expect: its arguments but for tensors."""
    given = {name: size_name(x.dim) if isinstance(x, Size) else x for name, x in call.arguments.items()}
    told = ", ".join(f"{name}={x}" for name, x in given.items() if isinstance(x, (int, float, str)) or (
        isinstance(x, list) and x and all(isinstance(y, int) for y in x)))
    return Refused(f"it is not possible with {told or 'these operands'}")


# What an operation may leave unread: where and how the result is stored, and what changes no value of it. dtype: see Lowering.
UNREAD = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "copy", "generator", "implicit", "sorted",
          "stable", "half_to_float", "compute_mode", "cudnn_enable", "cudnn_enabled", "benchmark", "deterministic", "allow_tf32",
          "sparse", "out", "path", "unsafe", "requires_grad"}


def check_all_read(function, call):
    """Refuses a call of which the operation would not read an argument that is not at its default."""
    names = inspect.signature(function).parameters
    reads = {"self", "input", *UNREAD, *getattr(function, "reads", ()), *names}
    for name, x in call.arguments.items():
        if name not in reads and x is not None and x != getattr(call.function, "defaults", {}).get(name):
            raise Refused(f"its {name}={x} has no counterpart in gpunn")


class Lowering:
    """Turns the calls of a Captured into entries; known: what each reference of its is."""

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
            except (Refused, TypeError, IndexError, KeyError, AttributeError, RuntimeError, ValueError, OverflowError,
                    SizeError) as why:
                self.has_changes |= isinstance(why, Changed)
                why = why if isinstance(why, (Refused, SizeError)) else unexpected(call)
                where = ", ".join(([f"in {call.path}"] if call.path else []) + ([call.place] if call.place else []))
                self.problems.append(f"{call.op}{' (' + where + ')' if where else ''}: {why}")
                results = []
            for name, result in zip(call.results, results or self.stand_ins(call)):
                self.known[name] = result

    def stand_ins(self, call):
        """What stands for the results of a call that was refused, so that the calls after it are looked at too."""
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
        """One result for each name in call.results; a tuple stands for a list of PyTorch's."""
        if isinstance(call.arguments, Refused):
            raise call.arguments
        in_place = call.op.endswith("_") and not call.op.startswith("__")
        op, w = call.op[:-1] if in_place else call.op, self.writer
        if op in CHECKS:
            return [None] * len(call.results)
        if call.function is None and op not in OPERATIONS and op != "getitem":
            raise Refused("it has no counterpart in gpunn")
        changed = next((self.known.get(x.name) for x in call.arguments.values() if isinstance(x, Reference)), None)
        if in_place and isinstance(changed, Refused):
            return [changed] * len(call.results)  # once more
        arguments = {"x" if name in ("self", "input") else name: self.resolve(x) for name, x in call.arguments.items()}
        given = arguments.get("x")
        if op == "getitem":
            return [given[arguments["index"]]]
        if in_place and isinstance(given, Constant) and given.name and not given.tensor.is_floating_point():
            why = Refused(f"it reads the buffer {given.name} of integers after forward has changed it")
            self.known.update({name: why for name, x in self.known.items() if x is given})
            return [why] * len(call.results)  # nothing reads the batches that batch_norm counts
        constant = self.constant(call, arguments, index)
        if constant is not None:
            return list(constant) if len(call.results) > 1 else [constant]
        if op not in OPERATIONS:
            raise Refused("it has no counterpart in gpunn")
        w.wanted = self.wanted(call)
        arguments = {name: complex_parts(x) for name, x in arguments.items()}
        function = OPERATIONS[op]
        if any(isinstance(x, Complex) for y in arguments.values() for x in (y if isinstance(y, list) else [y])):
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
        return values if len(call.results) > 1 else [tuple(values) if isinstance(result, tuple) else values[0]]

    def converted(self, call, op, arguments):
        """The arguments of a sum or such, whose operand PyTorch converts first where it is given a dtype of integers."""
        dtype, x = arguments.get("dtype"), arguments.get("x")
        if op not in REDUCTIONS or dtype is None or dtype.is_floating_point or is_whole(self.writer, x):
            return arguments
        return dict(arguments, x=to(self.writer, call._replace(shapes=[(x.full, dtype)]), x))

    def counted(self, value, call, op, arguments):
        """A result as integers again, where it counts with integers that stay below 2^24: those that are computed here do."""
        w, dtype = self.writer, call.shapes[0][1] if call.shapes else self.torch.float32
        if not isinstance(value, Value) or value.dtype != "f32" or dtype.is_floating_point or dtype == self.torch.bool:
            return value
        counted = [y for name, y in arguments.items() if name not in ("index", "indices")]
        operands = [x for y in counted for x in (y if isinstance(y, list) else [y])]
        if op not in COUNTING or any(is_large(w, x) for x in operands if isinstance(x, (int, Value, Constant))):
            return value
        return small_integers(w, value)

    def wrapped(self, value, call, op, arguments):
        """A result of integers of 8 or 16 bits, of which PyTorch keeps the last bits where it has more."""
        torch, dtype = self.torch, call.shapes[0][1] if call.shapes else None
        least, count = {torch.uint8: (0, 256), torch.int8: (-128, 256), torch.int16: (-32768, 65536)}.get(dtype, (0, 0))
        of_float = op in CASTS and not is_whole(self.writer, arguments["x"])
        if not count or not isinstance(value, Value) or op not in WRAPPING + CASTS or of_float:
            return value
        w = self.writer
        value = w.integer("sub", w.whole_numbers(value), least) if least else w.whole_numbers(value)
        value = w.integer("remainder", value if value.dtype == "i64" else w.integers(value, ("i64",)), count)
        value = w.integer("add", value, least) if least else value
        return w.add("cast", [value], value.shape, value.full, kind=dtype_name(torch, dtype), dtype=dtype_name(torch, dtype))

    def wanted(self, call):
        """The numbers of the call's results that are read."""
        if len(call.results) > 1:
            return {i for i, name in enumerate(call.results) if name in self.last_use}
        return {c.arguments["index"] for c in self.parts(call) if c.results[0] in self.last_use}

    def constant(self, call, arguments, index):
        """The result of a call of constants only; None: it is none."""
        values = [self.known[name] for name in references(list(call.arguments.values()))]
        sizes = [y for x in arguments.values() for y in (x if isinstance(x, list) else [x]) if isinstance(y, Size)]
        if call.function is None or call.op in RANDOM or not all(isinstance(v, Constant) for v in values):
            return None
        if sizes or any(v.full != tuple(v.tensor.shape) for v in values):
            return self.expanded_constant(call) if values and not call.op.endswith("_") else None

        def plain(x):
            return x.tensor if isinstance(x, Constant) else [plain(y) for y in x] if isinstance(x, list) else x

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
        """The same where something is expanded, to the batch say: a result that is alike for all samples of any batch."""
        def at(x, point):
            if isinstance(x, Constant):
                return x.tensor.expand([sizes.value_at(d, point) for d in x.full])
            return [at(y, point) for y in x] if isinstance(x, list) else sizes.value_at(x.dim, point) if isinstance(x, Size) else x

        if call.op in EXPANSIONS or len(call.shapes) != 1 or len(call.results) > 1:
            return None
        full, results = call.shapes[0][0], []
        for point in self.writer.points:
            with self.torch.no_grad():
                results.append(call.function({name: at(self.resolve(x), point) for name, x in call.arguments.items()}))
        if not isinstance(results[0], self.torch.Tensor):
            return None
        one = Constant(results[0][tuple(slice(0, 1) if d < 0 else slice(None) for d in full)], full)
        if call.function.is_view:
            one.memory = next(self.known[name].memory for name in references(list(call.arguments.values())))
        return one if all(self.torch.equal(one.tensor.expand_as(x), x) for x in results) else None

    def change(self, given, result, index):
        """An operation in place: from now on, the names of given stand for result."""
        memory = given.memory if isinstance(given, Value) else None
        of_parameter = isinstance(given, Parameter) or (memory and (memory.parameter or memory.entry.op == "parameter"))
        if not isinstance(result, Value) or of_parameter or getattr(given, "name", None):
            raise Changed("it changes a parameter or buffer")

        self.need_no_other_view(given, index, True)
        self.known.update({name: result for name, x in self.known.items() if x is given})

    def need_no_other_view(self, given, index, copied=False):
        """copied: it is a new tensor from now on, which shares its memory with none."""
        def storage(x):
            return x.tensor.untyped_storage().data_ptr()

        for name, x in self.known.items():
            if x is given or not isinstance(x, (Value, Constant)) or self.last_use.get(name, -1) <= index:
                continue
            shared = isinstance(given, Constant) and isinstance(x, Constant) and storage(x) == storage(given)
            if (shared and copied) or (x.memory is given.memory and not shared):
                raise Changed("it changes a tensor of which another view is used later")


def tensors_of_state(root):
    return dict(list(root.named_buffers()) + list(root.state_dict(keep_vars=True).items()))


def optimizer_json(optimizer):
    """The spec's optimizer: a dictionary is taken as it is, a torch.optim.Optimizer translated."""
    if isinstance(optimizer, dict):
        return optimizer
    import torch
    kind, rows = type(optimizer).__name__, table.optimizers()
    names = {name.lower(): name for name, one in vars(torch.optim).items() if isinstance(one, type)}
    known = [names[row] for row in rows if row in names]
    if kind not in known:
        raise ValueError(f"optimizer is a {kind}; use one of {', '.join(known)}")
    groups = [{key: x for key, x in group.items() if key != "params"} for group in optimizer.param_groups]
    if any(group != groups[0] for group in groups) or groups[0].get("amsgrad"):
        raise ValueError("the optimizer's groups differ, or amsgrad is set; give it the same settings for all parameters")
    result = {"type": kind.lower()}
    for key, *_ in rows[kind.lower()].settings:
        if key == "beta2":
            continue
        key = "betas" if key == "beta1" else key
        x = groups[0][key]
        if x != optimizer.defaults[key] or key in ("lr", "momentum_decay") or x:
            result[key] = list(x) if isinstance(x, tuple) else x
    return result


def save_safetensors(path, tensors):
    """Writes tensors by name, floats as F32."""
    kinds = {"float32": "F32", "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL"}
    chunks = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu()
        tensor = (tensor.float() if tensor.is_floating_point() else tensor).contiguous()
        chunks[name] = kinds[str(tensor.dtype).split(".")[1]], tensor.shape, tensor.numpy().tobytes()
    spec_writer.save_safetensors(path, chunks)


def input_names_of(module, count, loss):
    """The names of forward's arguments."""
    names = [p.name for p in inspect.signature(module.forward).parameters.values()
             if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = names[:count - bool(loss)]
    names += [f"input{i}" for i in range(len(names), count - bool(loss))]
    return names + (["target"] if loss else [])


def varying_axes(inputs, names, dynamic_batch, dynamic_shapes, bounds):
    """By input, {axis: dimension} of those that vary."""
    batched = [dynamic_batch] * len(inputs) if isinstance(dynamic_batch, bool) else list(dynamic_batch)
    if dynamic_batch is True:
        batched = [x.dim() > 0 and x.shape[:1] == inputs[0].shape[:1] for x in inputs]
    result = [{0: -1} if b else {} for b in batched]
    for name, axes in (dynamic_shapes or {}).items():
        if name not in names:
            raise ValueError(f"dynamic_shapes: there is no input {name!r}, but {', '.join(names)}")
        x = inputs[names.index(name)]
        for axis, size in axes.items():
            if not -x.dim() <= axis < x.dim():
                raise ValueError(f"dynamic_shapes: input {name} {list(x.shape)} has no axis {axis}")
            axis = normal_axis(axis, x.dim())
            result[names.index(name)][axis] = sizes.named_dim(size, bounds.get(size, {}).get("multiple", 1))
            if x.shape[axis] < 2 and size != "batch":
                raise ValueError(f"dynamic_shapes: the example's {size}, axis {axis} of {name}, is {x.shape[axis]}; PyTorch takes "
                                 "that for fixed: give an example of 2 or more")
    return result


def sample_points(inputs, varying):
    """Two sets of sizes, at which what depends on none of them is alike."""
    points = [{"batch": batch} for batch in BATCHES]
    for x, axes in zip(inputs, varying):
        for axis, dim in axes.items():
            if varies(dim):
                (_, multiple), = dim.terms
                points[0][str(dim)], points[1][str(dim)] = x.shape[axis], x.shape[axis] + multiple
    return points


def all_bounds(varying, found, given):
    """The "sizes" of the spec: what PyTorch found, narrowed by what is given."""
    result = {}
    for name in dict.fromkeys(str(dim) for axes in varying for dim in axes.values() if varies(dim)):
        own, (least, most) = dict(given.get(name, {})), found.get(name, (1, math.inf))
        least, most = max(least, own.get("min", 1)), min(most, own.get("max", math.inf))
        own.update({key: value for key, value, usual in (("min", least, 1), ("max", most, math.inf)) if value != usual})
        result[name] = own
    return result


def lowered(torch, root, captured, inputs, varying, input_names, result_names):
    """The Lowering of all calls, whose problems tell what it could not."""
    state = tensors_of_state(root)
    taken = [own_name(name) for name in state] + input_names + list(result_names)
    writer = TorchWriter(torch, root, taken, {own_name(name).rpartition(".")[0] for name in state} - set(taken))
    known = {}
    writer.points = sample_points(inputs, varying)
    for reference, name, x, axes in zip(captured.inputs, input_names, inputs, varying):
        kind = dtype_name(torch, x.dtype, of_input=True)
        shape = tuple(axes.get(axis, size) for axis, size in enumerate(x.shape))
        known[reference] = writer.add("input", [], shape, kind=kind, name=name, dtype=None if kind == "f32" else kind,
                                      shape=shape)
        known[reference].is_bool = x.dtype == torch.bool
    shared = {}
    for reference, (name, tensor, is_buffer) in captured.parameters.items():
        if name not in shared:
            shared[name] = (Constant(tensor.detach().clone(), name=name) if is_buffer else
                            Parameter(name, tensor, tensor.requires_grad) if not tensor.is_complex() else
                            Complex(*[Parameter(f"{name}.{part}", getattr(tensor, part), tensor.requires_grad)
                                      for part in ("real", "imag")]))
        known[reference] = shared[name]
    known.update({reference: Constant(tensor.detach().clone()) for reference, tensor in captured.constants.items()})
    lowering = Lowering(torch, captured, writer, known)
    lowering.run()
    return lowering


def dtype_of_parameters(module):
    """The dtype of floats that all parameters have, or None."""
    floats = {p.dtype for p in module.parameters() if p.is_floating_point()}
    return floats.pop() if len(floats) == 1 else None


def result_of(x):
    """A result of the module, where it is one that gpunn has."""
    if isinstance(x, Complex):
        raise Refused("it is complex; return torch.view_as_real of it")
    if not isinstance(x, (Value, Constant, Parameter)) and not is_number(x):
        raise Refused("gpunn does not compute it" if x is None else "it is no tensor")
    return x


def export(module, example_inputs, path_json, path_safetensors, input_names=None, output_names=None, dynamic_batch=True,
           loss=None, optimizer=None, dynamic_shapes=None, bounds=None):
    """Writes the spec of module and the values of its parameters.

    example_inputs: tensors of the shapes that it gets. dynamic_batch: True: the first dimension of those inputs that have as many
    there as the first input is the batch; False: all sizes are fixed; or a bool for each input. loss: the name of the output that
    is the loss, or a function of module's result and the last of example_inputs, as torch.nn.CrossEntropyLoss(). input_names
    default to the names of forward's arguments, output_names to the keys of its dictionary, or "output", "output0", ...
    optimizer: a torch.optim.Optimizer, or the spec's dictionary. dynamic_shapes: {input: {axis: name}} of further axes that vary;
    bounds: the spec's "sizes" of these names, {"H": {"max": 512, "multiple": 4}}, where PyTorch does not find them itself. The
    written spec as a dictionary is returned; Unsupported lists what cannot be expressed.
    """
    import torch

    example_inputs = tuple(example_inputs)
    if not example_inputs or not all(isinstance(x, torch.Tensor) for x in example_inputs):
        raise ValueError("example_inputs must be tensors")
    criterion, bounds = loss if callable(loss) else None, bounds or {}
    input_names = list(input_names or input_names_of(module, len(example_inputs), criterion))
    varying = varying_axes(example_inputs, input_names, dynamic_batch, dynamic_shapes, bounds)
    named_sizes({str(dim) for axes in varying for dim in axes.values() if varies(dim)}, bounds)
    inputs = tuple(torch.cat([x, x]) if axes.get(0) == -1 and x.shape[0] == 1 else x for x, axes in zip(example_inputs, varying))
    result_names = []
    root = root_of(torch, module, criterion, result_names)
    root.trains = bool(loss or module.training)
    title = type(module).__name__
    by_export = tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 7)
    try:
        with noted_backwards(torch) as names:
            captured = (capture_export if by_export else capture_trace)(torch, root, inputs, varying, bounds)
        check_backwards(names, root.trains)
    except Refused as why:
        raise Unsupported(title, [str(why)]) from why
    except Exception as error:  # whatever PyTorch's own tracing raises
        hint = " (dynamic_batch=False may help)" if any(axes.get(0) == -1 for axes in varying) else ""
        raise Unsupported(title, [f"PyTorch cannot capture it{hint}: {error}"]) from error
    if output_names is not None:
        result_names[:len(output_names)] = output_names
    if len(set(input_names + result_names)) != len(input_names + result_names) or len(input_names) != len(inputs):
        raise ValueError(f"inputs {input_names} and outputs {result_names} need names of their own, one for each")

    names = input_names, result_names
    lowering = lowered(torch, root, captured, inputs, varying, *names)
    if lowering.has_changes and by_export:
        captured = capture_export(torch, root, inputs, varying, bounds, functional=True)
        lowering = lowered(torch, root, captured, inputs, varying, *names) if captured else lowering
    if lowering.problems:
        raise Unsupported(title, lowering.problems)
    results = []
    for name, x in zip(result_names, lowering.resolve(lowering.captured.outputs)):
        try:
            x = lowering.writer.whole(result_of(x))
            if x.entry.op in ("input", "parameter", "constant") or x.entry.name or x.parameter:
                x = lowering.writer.add("reshape", [x], x.shape, kind=x.dtype, shape=x.shape)
            x.entry.name = name
            results.append(x.entry)
        except Refused as why:
            lowering.problems.append(f"the result {name}: {why}")
    if lowering.problems:
        raise Unsupported(title, lowering.problems)

    entries, symbols = needed_entries(lowering.writer.entries, results), lowering.captured.symbols
    precision = {torch.bfloat16: "bf16", torch.float16: "f16"}.get(lowering.writer.own_dtype, "f32")
    written = {"gpunn_spec": 1, "name": os.path.splitext(os.path.basename(path_json))[0], "precision": precision}
    if any(any_varies(axes.values()) for axes in varying):
        written["sizes"] = all_bounds(varying, symbols.bounds, bounds)
    written.update(tensors=[e.json() for e in entries], outputs=[e.name for e in results])
    if loss:
        written["loss"] = "loss" if criterion else loss
        if written["loss"] not in result_names:
            raise ValueError(f"loss is {loss!r}, which is none of the outputs {result_names}")
    if optimizer is not None:
        written["optimizer"] = optimizer_json(optimizer)
    try:
        model = spec.parse(json_text(written))
        if "sizes" in written:
            for dim in dict.fromkeys(dim for t in model.tensors for dim in t.shape if varies(dim)):
                symbols.hold_positive(dim)
            written["sizes"] = all_bounds(varying, symbols.bounds, bounds)
            spec.parse(json_text(written))
    except SpecError as why:  # what PyTorch can compute and gpunn cannot, at sizes that vary say
        raise Unsupported(title, [str(why)]) from why
    write_file(path_json, [json_text(written).encode("ascii")])
    save_safetensors(path_safetensors, {p.name: p.tensor.float() for e in entries for p in e.weights})
    return written


# ---- the command -------------------------------------------------------------------------------------------------------
def example_of(torch, text_):
    """8x3x32x32 or name=8x10:i64 as (name, tensor)."""
    name, _, rest = text_.rpartition("=")
    shape, _, dtype = rest.partition(":")
    dtypes = {"f32": torch.float32, "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "bool": torch.bool,
              "": torch.float32}
    if dtype not in dtypes or not all(n.isdigit() for n in shape.split("x")):
        raise SystemExit(f"--input {text_}: [NAME=]8x3x32x32[:DTYPE] is needed, with DTYPE one of f32, i64, i32, u8, bool")
    return name, torch.zeros([int(n) for n in shape.split("x")], dtype=dtypes[dtype])


def dynamic_axis(text_):
    found = re.fullmatch(r"(.+):(\d+)=([A-Za-z_]\w*)", text_, re.ASCII)
    if not found:
        raise argparse.ArgumentTypeError("INPUT:AXIS=NAME is needed, such as tokens:1=T")
    return found.group(1), int(found.group(2)), found.group(3)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python3 -m generator.export_torch",
                                     description="Turns a PyTorch module into a spec and weights.")
    parser.add_argument("module", help="package.module:factory, a module or a function that returns one")
    parser.add_argument("-o", dest="name", required=True, help="writes NAME.json and NAME.safetensors")
    parser.add_argument("--input", action="append", required=True, metavar="[NAME=]8x3x32x32[:DTYPE]", help="one for each input")
    parser.add_argument("--fixed-batch", action="store_true", help="the batch size is the example's, always")
    parser.add_argument("--dynamic", action="append", type=dynamic_axis, default=[], metavar="INPUT:AXIS=NAME",
                        help="an axis that varies between runs, under a name, which several may share")
    parser.add_argument("--bounds", type=json.loads, default={}, metavar="JSON",
                        help='of such names, where PyTorch does not find them: {"H": {"max": 512, "multiple": 4}}')
    parser.add_argument("--loss", help="an output's name, or a loss of torch.nn.functional: the last --input is its target")
    parser.add_argument("--optimizer", type=json.loads, metavar="JSON", help='such as {"type": "adam", "lr": 0.001}')
    options = parser.parse_args(arguments)
    try:
        import torch
    except ImportError:
        raise SystemExit("PyTorch is needed: pip install torch, or apt-get install python3-torch") from None
    sys.path.insert(0, os.getcwd())
    package, _, attribute = options.module.partition(":")
    try:
        module = getattr(importlib.import_module(package), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SystemExit(f"{options.module}: {error}") from error
    module = module if isinstance(module, torch.nn.Module) else module()
    examples = [example_of(torch, x) for x in options.input]
    names = [name for name, _ in examples]
    loss = getattr(torch.nn.functional, options.loss, options.loss) if options.loss else None
    shapes = {name: {axis: size for own, axis, size in options.dynamic if own == name} for name, _, _ in options.dynamic}
    try:
        export(module, [x for _, x in examples], options.name + ".json", options.name + ".safetensors",
               input_names=names if all(names) else None, dynamic_batch=not options.fixed_batch, loss=loss,
               optimizer=options.optimizer, dynamic_shapes=shapes, bounds=options.bounds)
    except (Unsupported, Refused, ValueError, OSError) as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
