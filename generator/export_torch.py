#!/usr/bin/env python3
"""Converts a torch.nn.Module to a model's spec and weights, for run_model, gpunn_spec_load and the generator.

    python3 -m generator.export_torch package.module:factory -o NAME --input 8x3x32x32
                                      [--input 8:i64 --loss cross_entropy]

This writes NAME.json and NAME.safetensors, or one file of both if NAME ends in .gpunn. The factory is a
module or a function that returns one. From Python:

    export(net, (images, labels), "net.json", "net.safetensors", loss=torch.nn.CrossEntropyLoss())

Axes other than the batch can vary, under names: --dynamic INPUT:AXIS=NAME, or dynamic_shapes={"images": {2:
"H", 3: "W"}}. The module is captured in its current mode by torch.export (PyTorch 2.7 and later) or
torch.jit.trace (older versions). Each parameter keeps its name in state_dict. If gpunn cannot express
something, one Unsupported exception lists all of it, with each place in the module's source."""
import argparse
import importlib
import inspect
import json
import math
import os
import re
import sys

from . import sizes, spec, table
from .exchange import spec_writer
from .exchange.header import ONE_FILE
from .exchange.spec_writer import (Constant, Parameter, Refused, Value, is_number, json_text, named_sizes,
                                   needed_entries, next_step, normal_axis, write_file)
from .exchange.torch_export.capture import (BATCHES, capture_export, capture_trace, check_backwards,
                                            noted_backwards, own_name, root_of)
from .exchange.torch_export.lowering import Lowering
from .exchange.torch_export.operands import Complex, dtype_name
from .exchange.torch_export.writer import TorchWriter
from .json_text import SpecError
from .sizes import any_varies, varies


class Unsupported(Exception):
    """gpunn cannot express the module. `problems` holds one sentence for each reason."""

    def __init__(self, module, problems):
        self.problems = problems
        count = "1 operation" if len(problems) == 1 else f"{len(problems)} operations"
        super().__init__(f"{count} of {module} cannot be exported:" + "".join(f"\n  {p}" for p in problems))


def tensors_of_state(root):
    return dict(list(root.named_buffers()) + list(root.state_dict(keep_vars=True).items()))


def optimizer_json(optimizer):
    """The spec's optimizer. A dictionary is taken as it is, a torch.optim.Optimizer is translated. SparseAdam
    is adam, which treats tables with sparse gradients as it does."""
    if isinstance(optimizer, dict):
        return optimizer
    import torch
    kind, rows = type(optimizer).__name__, table.optimizers()
    kind = "Adam" if kind == "SparseAdam" else kind
    names = {name.lower(): name for name, one in vars(torch.optim).items() if isinstance(one, type)}
    known = [names[row] for row in rows if row in names]
    if kind not in known:
        raise ValueError(f"optimizer is a {kind}; use one of {', '.join(known)}")
    groups = [{key: x for key, x in group.items() if key != "params"} for group in optimizer.param_groups]
    if any(group != groups[0] for group in groups) or groups[0].get("amsgrad"):
        raise ValueError("the optimizer's groups differ, or amsgrad is set; give it the same settings for "
                         "all parameters")
    result = {"type": kind.lower()}
    adjust = {"match_rms_adamw": 1, "spectral_unclamped": 2}.get(groups[0].get("adjust_lr_fn"), 0)
    own = dict(groups[0], no_nesterov=not groups[0].get("nesterov", True), adjust_lr_fn=adjust)
    lists = {key: name for name, keys in table.LISTS.items() for key in keys}
    for key, *_ in rows[kind.lower()].settings:
        key = lists.get(key, key)
        x = own.get(key, 0)
        if x != optimizer.defaults.get(key, 0) or key in ("lr", "momentum_decay") or x:
            result[key] = list(x) if isinstance(x, tuple) else x
    return result


def stored(tensors):
    """Tensors by name as files hold them. Floats are stored as F32."""
    kinds = {"float32": "F32", "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL"}
    chunks = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu()
        tensor = (tensor.float() if tensor.is_floating_point() else tensor).contiguous()
        chunks[name] = kinds[str(tensor.dtype).split(".")[1]], tensor.shape, tensor.numpy().tobytes()
    return chunks


def save_safetensors(path, tensors):
    """Writes tensors by name. Floats are stored as F32."""
    spec_writer.save_safetensors(path, stored(tensors))


def input_names_of(module, count, loss):
    """The names of forward's arguments."""
    names = [p.name for p in inspect.signature(module.forward).parameters.values()
             if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = names[:count - bool(loss)]
    names += [f"input{i}" for i in range(len(names), count - bool(loss))]
    return names + (["target"] if loss else [])


def varying_axes(inputs, names, dynamic_batch, dynamic_shapes, bounds):
    """For each input, {axis: dimension} of its varying axes."""
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
                raise ValueError(f"dynamic_shapes: the example's {size}, axis {axis} of {name}, is "
                                 f"{x.shape[axis]}; PyTorch takes "
                                 "that for fixed: give an example of 2 or more")
    return result


def sample_points(inputs, varying):
    """Two sets of sizes. Whatever is equal for both depends on none of them."""
    points = [{"batch": batch} for batch in BATCHES]
    for x, axes in zip(inputs, varying):
        for axis, dim in axes.items():
            if varies(dim):
                (_, multiple), = dim.terms
                points[0][str(dim)], points[1][str(dim)] = x.shape[axis], x.shape[axis] + multiple
    return points


def all_bounds(varying, found, given):
    """The "sizes" of the spec: PyTorch's bounds, narrowed by those that the caller passes."""
    result = {}
    for name in dict.fromkeys(str(dim) for axes in varying for dim in axes.values() if varies(dim)):
        own, (least, most) = dict(given.get(name, {})), found.get(name, (1, math.inf))
        least, most = max(least, own.get("min", 1)), min(most, own.get("max", math.inf))
        own.update({key: value for key, value, usual in (("min", least, 1), ("max", most, math.inf))
                    if value != usual})
        result[name] = own
    return result


def lowered(torch, root, captured, inputs, varying, input_names, result_names):
    """The Lowering of all calls. It holds the problems."""
    state = tensors_of_state(root)
    taken = [own_name(name) for name in state] + input_names + list(result_names)
    writer = TorchWriter(torch, root, taken,
                         {own_name(name).rpartition(".")[0] for name in state} - set(taken))
    known = {}
    writer.points = sample_points(inputs, varying)
    for reference, name, x, axes in zip(captured.inputs, input_names, inputs, varying):
        kind = dtype_name(torch, x.dtype, of_input=True)
        shape = tuple(axes.get(axis, size) for axis, size in enumerate(x.shape))
        known[reference] = writer.add("input", [], shape, kind=kind, name=name,
                                      dtype=None if kind == "f32" else kind, shape=shape)
        known[reference].is_bool = x.dtype == torch.bool
    shared = {}
    for reference, (name, tensor, is_buffer) in captured.parameters.items():
        if name not in shared:
            shared[name] = (Constant(tensor.detach().clone(), name=name) if is_buffer else
                            Parameter(name, tensor, tensor.requires_grad) if not tensor.is_complex() else
                            Complex(*[Parameter(f"{name}.{part}", getattr(tensor, part), tensor.requires_grad)
                                      for part in ("real", "imag")]))
        known[reference] = shared[name]
    known.update({reference: Constant(tensor.detach().clone())
                  for reference, tensor in captured.constants.items()})
    lowering = Lowering(torch, captured, writer, known)
    lowering.run()
    return lowering


def result_of(x):
    """A result of the module, if gpunn has it."""
    if isinstance(x, Complex):
        raise Refused("it is complex; return torch.view_as_real of it")
    if not isinstance(x, (Value, Constant, Parameter)) and not is_number(x):
        raise Refused("gpunn does not compute it" if x is None else "it is no tensor")
    return x


def export(module, example_inputs, path_json, path_safetensors, input_names=None, output_names=None,
           dynamic_batch=True, loss=None, optimizer=None, dynamic_shapes=None, bounds=None):
    """Writes the spec of module and the values of its parameters, to one file (path_json "net.gpunn") if
    path_safetensors is None.

    example_inputs: tensors of the inputs' shapes. dynamic_batch: True (default): the first dimension is the
    batch, for each input with as many elements there as the first input. False: all sizes are fixed. Or a
    bool for each input. loss: the name of the output that is the loss, or a function of module's result and
    the last of example_inputs, such as torch.nn.CrossEntropyLoss(). input_names default to the names of
    forward's arguments. output_names default to the keys of its dictionary, or "output", "output0", ...
    optimizer: a torch.optim.Optimizer, or the spec's dictionary. dynamic_shapes: {input: {axis: name}} of
    further axes that vary. bounds: the spec's "sizes" of these names, such as {"H": {"max": 512, "multiple":
    4}}, where PyTorch does not find them itself. Returns the written spec as a dictionary. Raises Unsupported
    with the list of what cannot be expressed."""
    import torch

    example_inputs = tuple(example_inputs)
    if not example_inputs or not all(isinstance(x, torch.Tensor) for x in example_inputs):
        raise ValueError("example_inputs must be tensors")
    criterion, bounds = loss if callable(loss) else None, bounds or {}
    input_names = list(input_names or input_names_of(module, len(example_inputs), criterion))
    varying = varying_axes(example_inputs, input_names, dynamic_batch, dynamic_shapes, bounds)
    named_sizes({str(dim) for axes in varying for dim in axes.values() if varies(dim)}, bounds)
    inputs = tuple(torch.cat([x, x]) if axes.get(0) == -1 and x.shape[0] == 1 else x
                   for x, axes in zip(example_inputs, varying))
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
    except Exception as error:  # PyTorch's tracing can raise anything
        shapes = ", ".join("x".join(map(str, x.shape)) for x in example_inputs)
        hint = ("; the first axis is the batch, --fixed-batch (dynamic_batch=False) may help" if any(
            axes.get(0) == -1 for axes in varying) else "")
        raise Unsupported(title,
                          [f"PyTorch cannot capture it with --input {shapes}{hint}: {error}"]) from error
    if output_names is not None:
        result_names[:len(output_names)] = output_names
    if (len(set(input_names + result_names)) != len(input_names + result_names) or
        len(input_names) != len(inputs)):
        raise ValueError(
            f"inputs {input_names} and outputs {result_names} need names of their own, one for each")

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
    written = {"gpunn_spec": 1, "name": os.path.splitext(os.path.basename(path_json))[0],
               "precision": precision}
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
    except SpecError as why:  # PyTorch can compute it and gpunn cannot, at these varying sizes
        raise Unsupported(title, [str(why)]) from why
    weights = {p.name: p.tensor.float() for e in entries for p in e.weights}
    if path_safetensors is None:
        spec_writer.save_model(path_json, json_text(written), stored(weights))
    else:
        write_file(path_json, [json_text(written).encode("ascii")])
        save_safetensors(path_safetensors, weights)
    return written


def example_of(torch, text_):
    """Parses "8x3x32x32" or "name=8x10:i64" to (name, tensor)."""
    name, _, rest = text_.rpartition("=")
    shape, _, dtype = rest.partition(":")
    dtypes = {"f32": torch.float32, "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8,
              "bool": torch.bool, "": torch.float32}
    if dtype not in dtypes or not all(n.isdigit() for n in shape.split("x")):
        raise SystemExit(f"--input {text_}: [NAME=]8x3x32x32[:DTYPE] is needed, with DTYPE one of f32, i64, "
                         f"i32, u8, bool")
    return name, torch.zeros([int(n) for n in shape.split("x")], dtype=dtypes[dtype])


def dynamic_axis(text_):
    found = re.fullmatch(r"(.+):(\d+)=([A-Za-z_]\w*)", text_, re.ASCII)
    if not found:
        raise argparse.ArgumentTypeError("INPUT:AXIS=NAME is needed, such as tokens:1=T")
    return found.group(1), int(found.group(2)), found.group(3)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python3 -m generator.export_torch", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Converts a PyTorch module to a spec and weights. Needs PyTorch.",
        epilog="example:\n  python3 -m generator.export_torch my_file:net -o net --input 1x3x32x32")
    parser.add_argument("module", help="package.module:factory, where factory is a torch.nn.Module or a "
                        "function that returns one")
    parser.add_argument("-o", dest="name", metavar="NAME", required=True,
                        help="write NAME.json and NAME.safetensors; one file if NAME ends in .gpunn")
    parser.add_argument("--input", action="append", required=True, metavar="[NAME=]8x3x32x32[:DTYPE]",
                        help="shape of an input (default dtype: f32); repeat for each input")
    parser.add_argument("--fixed-batch", action="store_true",
                        help="fix the batch size to the example's (default: the first axis varies)")
    parser.add_argument("--dynamic", action="append", type=dynamic_axis, default=[],
                        metavar="INPUT:AXIS=NAME",
                        help="let another axis vary between runs, as a size with this name; axes may share a "
                        "name")
    parser.add_argument("--bounds", type=json.loads, default={}, metavar="JSON",
                        help='bounds of these sizes that PyTorch does not find: {"H": {"max": 512, '
                        '"multiple": 4}}')
    parser.add_argument("--loss", help="name of the output that is the loss, or a loss of "
                        "torch.nn.functional, whose target is the last --input")
    parser.add_argument("--optimizer", type=json.loads, metavar="JSON",
                        help='optimizer of the spec, such as {"type": "adam", "lr": 0.001}')
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
    shapes = {name: {axis: size for own, axis, size in options.dynamic if own == name}
              for name, _, _ in options.dynamic}
    try:
        one = options.name.endswith(ONE_FILE)
        written = export(module, [x for _, x in examples], options.name + ".json" * (not one),
                         None if one else options.name + ".safetensors",
                         input_names=names if all(names) else None,
                         dynamic_batch=not options.fixed_batch, loss=loss, optimizer=options.optimizer,
                         dynamic_shapes=shapes, bounds=options.bounds)
    except (Unsupported, Refused, ValueError, OSError) as error:
        raise SystemExit(str(error)) from error
    print(next_step(options.name, written))


if __name__ == "__main__":
    main()
