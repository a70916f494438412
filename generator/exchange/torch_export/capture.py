"""Captures a module by torch.export or torch.jit.trace: its calls, inputs, parameters and constants.

A dimension -k stands for k times the batch. A dimension that varies in another way is a sizes.Size."""
import collections
import contextlib
import copy
import math
import operator
import os
import sys
import warnings
from dataclasses import dataclass

from ... import sizes
from ..spec_writer import Refused
from .registry import OPERATIONS
from .symbols import NotOfOne, Size, Symbols, own_guards
from ...sizes import any_varies, varies


# A call of one of PyTorch's operators. op: without its overload, as "conv2d". function: evaluates it on real
# tensors. arguments: by the names of its schema, with References for tensors, or the Refused that reading
# them raised. results: the names of its results. shapes: their (shape, dtype) if they are tensors. Also its
# place in the source, and the path of its module.
Call = collections.namedtuple("Call", "op function arguments results shapes place path")


@dataclass(frozen=True)
class Reference:
    name: str


class Captured:
    def __init__(self):
        self.calls, self.inputs, self.outputs = [], [], []  # calls; references
        self.parameters = {}  # reference: (name, tensor, whether it is a buffer)
        self.constants = {}  # reference: tensor
        self.symbols = Symbols()  # PyTorch's symbols for sizes of inputs, and the bounds of named sizes


BATCHES = (2, 3)  # the sizes at which dimensions are compared


def dim_of(values):
    """The dimension that has these sizes at the BATCHES."""
    if values[0] == values[1]:
        return int(values[0])
    factor = values[0] // BATCHES[0]
    if factor < 1 or tuple(factor * b for b in BATCHES) != tuple(values):
        raise Refused(f"a size is {values[0]} for {BATCHES[0]} samples and {values[1]} for {BATCHES[1]}: no "
                      f"multiple of the batch")
    return -int(factor)


def size_of(values):
    """A number that has these values at the BATCHES."""
    dim = dim_of(values)
    return dim if values[0] == values[1] else Size(dim)


def flat(result, name=""):
    """The named tensors of a module's result: by its dictionary's keys, "output" or "output0"."""
    if isinstance(result, dict):
        return [pair for key, value in result.items() for pair in flat(value, str(key))]
    if isinstance(result, (list, tuple)):
        return [pair for i, value in enumerate(result) for pair in flat(value, f"{name or 'output'}{i}")]
    return [] if result is None else [(name or "output", result)]


def root_of(torch, module, loss, names):
    """A module of tensors only: module, and the loss of its result and the last input. names receives the
    names of its results."""

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
    """The module's own name for a name of Root."""
    return name[4:] if name.startswith("net.") else "" if name == "net" else name


def first_names(root):
    """For each parameter and buffer, its first name in state_dict."""
    first = {}
    for name, tensor in root.state_dict(keep_vars=True).items():
        first.setdefault(id(tensor), own_name(name))
    return first


def evaluator(function, schema):
    """A function that calls function with arguments by name, and by position where PyTorch needs that."""
    keywords = {a.name for a in schema.arguments if a.kwarg_only}

    def evaluate(arguments):
        return function(*[x for name, x in arguments.items() if name not in keywords],
                        **{name: x for name, x in arguments.items() if name in keywords})

    evaluate.is_view = any(result.alias_info is not None for result in schema.returns)
    evaluate.defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return evaluate


OWN_FILES = os.path.join(os.path.dirname(sizes.__file__), "")  # the folder generator/


def source_place(torch, frames):
    """The last (file, line, code) that is not PyTorch's own."""
    inside = os.path.dirname(torch.__file__)
    own = [f"{os.path.basename(name)}:{line}" + (f": {code}" if code else "")
           for name, line, code in frames if not name.startswith((inside, OWN_FILES))]
    return own[-1] if own else ""


REGIONS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")  # torch.no_grad and torch.autocast


RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@contextlib.contextmanager
def layers_of_any_length(torch):
    """A context in which recurrent layers only give their shapes. PyTorch would unroll them over the
    example's length, which would fix it."""
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
    """A context in which torch.export does not assume that sizes are 2 or more, so it records conditions that
    are false at 0 or 1. Yields whether this PyTorch can do that."""
    from torch.fx.experimental import _config as config
    can = hasattr(config, "backed_size_oblivious")
    with config.patch(backed_size_oblivious=True) if can else contextlib.nullcontext():
        yield can


def decomposed(torch, node):
    """The graph into which PyTorch decomposes an operator that has no function here. None: there is none."""
    target, sources = node.target, node.all_input_nodes
    known = not isinstance(target, torch._ops.OpOverload) or target._schema.name.split("::")[1] in OPERATIONS
    values = [source.meta.get("val") for source in sources]
    modes = [x.fake_mode for x in values if hasattr(x, "fake_mode")]
    if (known or target._schema.is_mutable or not modes or
        not all(isinstance(x, (torch.Tensor, torch.SymInt)) for x in values)):
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
    except Exception:  # PyTorch's code can raise anything; then the operator is refused by its own name
        return None
    calls = [inner for inner in graph.nodes if inner.op == "call_function"]
    for inner in calls:
        inner.meta.update({key: node.meta.get(key) for key in ("stack_trace", "nn_module_stack")})
    own = [inner.target for inner in calls if isinstance(inner.target, torch._ops.OpOverload)]
    return None if any(other == target or other.namespace != "aten" for other in own) else graph


@contextlib.contextmanager
def noted_backwards(torch):
    """A context that yields the names of the applied subclasses of torch.autograd.Function, except PyTorch's
    own."""
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
    """Refuses gradients that differ from those of the forward operations, or warns that they will be lost."""
    if names and trains:
        raise Refused(f"{names[0]} is an autograd.Function, whose own backward would be lost; write it with "
                      f"detach, as in "
                      "x + (f(x) - x).detach(), or export in evaluation mode without a loss")
    if names:
        warnings.warn(f"{names[0]} is an autograd.Function: gradients follow its forward's operations, not "
                      f"its backward", stacklevel=3)


def agrees_at_one(torch, program, root, inputs, varying):
    """Whether a program that was captured for batches of 2 and more equals the module for a batch of 1."""
    one = [x[:1] if axes.get(0) == -1 else x for x, axes in zip(inputs, varying)]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            own = copy.deepcopy(root)(*one)
            captured = program.module(check_guards=False)(*one)
    except Exception:  # the module's or PyTorch's error: there is no such program
        return False
    return all(torch.is_tensor(a) and torch.is_tensor(b) and a.shape == b.shape and
               torch.allclose(a.double(), b.double(), 1e-4, 1e-5, equal_nan=True)
               for a, b in zip(own, captured, strict=True))


def capture_export(torch, root, inputs, varying, bounds, functional=False):
    """Captures by torch.export, with symbolic sizes. bounds: of named sizes, as in the spec. functional: no
    in-place changes. Returns None if a parameter or buffer is changed in place."""
    auto, is_named = torch.export.Dim.AUTO, any(any_varies(axes.values()) for axes in varying)
    with any_size(torch) as is_oblivious, layers_of_any_length(
            torch) if is_named else contextlib.nullcontext():
        program = torch.export.export(
            root, inputs, dynamic_shapes={"inputs": tuple(dict.fromkeys(axes, auto) for axes in varying)})
    if functional:
        program = program.run_decompositions({})
        if any(spec.kind != torch.export.graph_signature.OutputKind.USER_OUTPUT
               for spec in program.graph_signature.output_specs):
            return None
    kinds, captured = torch.export.graph_signature.InputKind, Captured()
    state = dict(program.constants, **root.state_dict(keep_vars=True))
    first = first_names(root)
    for spec in program.graph_signature.input_specs:
        if spec.kind == kinds.USER_INPUT:
            captured.inputs.append(spec.arg.name)
        elif spec.kind in (kinds.PARAMETER, kinds.BUFFER):
            tensor = state[spec.target]
            captured.parameters[spec.arg.name] = (first.get(id(tensor), own_name(spec.target)), tensor,
                                                  spec.kind == kinds.BUFFER)
        else:
            captured.constants[spec.arg.name] = state[spec.target]

    symbols = captured.symbols
    number = symbols.number
    for name, own in bounds.items():
        symbols.narrow(name, own.get("min", 1), own.get("max", math.inf))

    def define(node, axes):
        """Defines the axes of an input."""
        for axis, dim in axes.items():
            place = f"axis {axis} of input {captured.inputs.index(node.name)}"
            limits = program.range_constraints.get(symbols.define(node.meta["val"].shape[axis], dim, place))
            if limits is not None and varies(dim):  # without any_size PyTorch's own minimum is always 2
                symbols.narrow(str(dim), int(limits.lower) if limits.lower > 2 or is_oblivious else 1,
                               math.inf if limits.upper > sizes.MOST else int(limits.upper))

    def shape(x):
        return tuple(n.dim if isinstance(n, Size) else n for n in map(number, x.shape)), x.dtype

    def argument(x, known):
        if isinstance(x, torch.fx.Node):
            value = x.meta.get("val")
            return (known[x] if x in known else number(value) if isinstance(value, (int, torch.SymInt)) else
                    Reference(x.name))
        return [argument(y, known) for y in x] if isinstance(x, (list, tuple)) else x

    def call(node, name, op, function, given, known):
        lines = (node.meta.get("stack_trace") or "").splitlines()
        frames = [(line.split('"')[1], line.split("line ")[1].split(",")[0], code.strip())
                  for line, code in zip(lines, lines[1:] + [""]) if line.strip().startswith('File "')]
        place, paths = (source_place(torch, frames),
                        [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()])
        value = node.meta.get("val")
        try:
            arguments = {key: argument(x, known) for key, x in given.items()}
            shapes = [shape(v) for v in (value if isinstance(value, (list, tuple)) else [value])
                      if isinstance(v, torch.Tensor)]
        except Refused as why:
            arguments, shapes = why, []
        captured.calls.append(Call(op, function, arguments, [name], shapes, place,
                                   own_name(paths[-1]) if paths else ""))
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
        """The results of a graph within the graph: a part of the module that runs in another mode."""
        operands = [x for x in node.args if isinstance(x, torch.fx.Node)][1:]
        # its inputs are its first nodes
        known = dict(zip(inside.nodes, [argument(x, known) for x in operands]))
        results = walk(inside, known, prefix)
        if node.target.__name__ == "wrap_with_set_grad_enabled" and not node.args[0]:
            last = next(n for n in inside.nodes if n.op == "output").args[0]
            results = [call(n, f"{prefix}{i}", "detach", None, {"self": n}, known)
                       for i, n in enumerate(last)]
        return results

    def walk(graph, known, prefix=""):
        """Captures the calls of a graph. known: by node, its value, if that is not the result with its
        name."""
        for node in graph.nodes:
            value, names, op, function, given = node.meta.get("val"), ("x", "index"), "", None, {}
            if node.op == "output":
                return argument(node.args[0], known)
            if node.op != "call_function" or isinstance(value,
                                                        (int, torch.SymInt, torch.SymFloat, torch.SymBool)):
                continue  # calls that compute sizes; their readers get the value
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
                    given = {a.name: a.default_value if a.has_default_value() else None
                             for a in schema.arguments}
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


# A trace's operators on sizes; div only between integers.
NUMBER_OPS = {"aten::add": operator.add, "aten::sub": operator.sub, "aten::mul": operator.mul,
              "aten::floor_divide": operator.floordiv,
              "aten::div": operator.floordiv, "aten::floordiv": operator.floordiv,
              "aten::remainder": operator.mod}


SAME_NUMBER = ("prim::NumToTensor", "aten::Int", "aten::IntImplicit", "aten::ScalarImplicit")


def capture_trace(torch, root, inputs, varying, _):
    """Captures by torch.jit.trace at two batch sizes. The graphs differ in the sizes that depend on the
    batch."""
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
    # known: the value for each name in the first graph
    state, known = root.state_dict(keep_vars=True), {}
    values = list(graphs[0].inputs())
    known[values[0].debugName()] = ""  # a module is its path
    captured.inputs = [v.debugName() for v in values[1:]]
    is_buffer = dict({name: True for name, _ in root.named_buffers()},
                     **{name: False for name, _ in root.named_parameters()})
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
        numbers = (all(isinstance(x, (int, Size)) for x in given[:2]) and
                   not (kind == "aten::div" and len(given) == 2))
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
            known[outputs[0]] = size_of([NUMBER_OPS[kind](at(given[0], i), at(given[1], i))
                                         for i in range(2)])
        else:
            frames = [(line.split("(")[0], line.split("(")[1].split(")")[0], "")
                      for line in node.sourceRange().splitlines() if "): " in line]
            place, path = (source_place(torch, frames[::-1]),
                           own_name(node.scopeName().split("/")[-1].replace("__module.", "")))
            kinds = [(a.type(), b.type()) for a, b in zip(node.outputs(), other.outputs())]
            if kind in ("prim::ListUnpack", "prim::TupleUnpack"):
                for i, (name, types) in enumerate(zip(outputs, kinds)):
                    shape = tensor_shape(name, types)
                    captured.calls.append(Call("getitem", None, {"x": given[0], "index": i}, [name], shape,
                                               place, path))
                continue
            op, function, arguments, found = (kind.split("::")[1], None,
                                              Refused("it is no operator of PyTorch's"), [])
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
    captured.outputs = (result if isinstance(result, list) else
                        [Reference(next(graphs[0].outputs()).debugName())])
    return captured
