#!/usr/bin/env python3
"""Makes the files of expected/pytorch/ from the models in zoo.py, with PyTorch: python3
tests/generator/make_zoo.py [NAME...]

NAME.json is what the exporter writes. Everything in NAME.safetensors is computed in float64 from float32
values:
    weight/NAME   parameters and running statistics     in/NAME     inputs
    eval/NAME     outputs in evaluation mode            train/NAME  in training mode, unless that is random
    grad/NAME     the loss's gradients of parameters and inputs in training mode
    step/NAME     parameters and running statistics after `steps` steps of the spec's optimizer
    K:in/NAME     inputs of further sizes, K from 1 on, if sizes vary; K:eval/NAME ... belong to these"""
import os
import sys
import warnings

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(os.path.dirname(HERE)), HERE]
import zoo  # noqa: E402
from generator import export_torch, spec  # noqa: E402
from generator.exchange.torch_export.capture import flat  # noqa: E402

FOLDER = os.path.join(HERE, "expected", "pytorch")
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
              "rmsprop": torch.optim.RMSprop, "adagrad": torch.optim.Adagrad}


def outputs_of(module, inputs, loss, names):
    result = module(*(inputs[:-1] if loss else inputs))
    pairs = flat(result) + ([("loss", loss(result, inputs[-1]))] if loss else [])
    return {name: tensor for name, (_, tensor) in zip(names, pairs)}


def of_floats(tensors):
    """The same, with complex tensors as their two parts, by the exporter's names."""
    result = {}
    for name, x in tensors.items():
        parts = {f"{name}.real": x.real, f"{name}.imag": x.imag} if x.is_complex() else {name: x}
        result.update({key: part.clone() for key, part in parts.items()})
    return result


def exact(x):
    return x.to(torch.complex128) if x.is_complex() else x.double() if x.is_floating_point() else x


def make(name, folder):
    """Writes the two files of a case into folder."""
    module, inputs, loss, output_names = zoo.make(name)
    _, optimizer, steps, repeatable = zoo.CASES[name]
    weights_path = os.path.join(folder, name + ".safetensors")
    written = export_torch.export(module, inputs, os.path.join(folder, name + ".json"), weights_path,
                                  output_names=output_names,
                                  loss=loss or "loss", optimizer=optimizer, **zoo.sizes_of(name)[0])
    model = spec.load(os.path.join(folder, name + ".json"))
    used = [t.name for t in model.tensors if t.kind in ("parameter", "buffer")]
    input_names = [t["name"] for t in written["tensors"] if t["op"] == "input"]
    state = {key: value.clone() for key, value in module.state_dict().items()}
    tensors = {f"weight/{key}": x for key, x in of_floats(state).items() if key in used}
    further = [zoo.make(name, *sizes)[1] for sizes in zoo.sizes_of(name)[1]]
    torch.set_default_dtype(torch.float64)
    try:
        module, state = module._apply(exact), {key: exact(x) for key, x in state.items()}

        def fresh(training):
            module.load_state_dict(state)
            return module.train(training)

        def passes(inputs, prefix=""):
            """The inputs as they are used in the computation, after one pass in each mode."""
            tensors.update({f"{prefix}in/{key}": x for key, x in zip(input_names, inputs)})
            given = [exact(x) for x in inputs]
            with torch.no_grad():
                results = outputs_of(fresh(False), given, loss, written["outputs"])
            tensors.update({f"{prefix}eval/{key}": x for key, x in results.items()})
            if repeatable:
                live = [x.clone().requires_grad_() if x.is_floating_point() else x for x in given]
                results = outputs_of(fresh(True), live, loss, written["outputs"])
                tensors.update({f"{prefix}train/{key}": x for key, x in results.items()})
                module.zero_grad()
                results["loss"].backward()
                own = of_floats({key: p.grad for key, p in module.named_parameters() if p.grad is not None})
                own = {key: x for key, x in own.items() if key in used}
                own.update({key: x.grad for key, x in zip(input_names, live) if x.grad is not None})
                tensors.update({f"{prefix}grad/{key}": x for key, x in own.items()})
            return given

        given = passes(inputs)
        for k, others in enumerate(further, 1):
            passes(others, f"{k}:")
        if steps:
            fresh(True)
            options = {key: tuple(x) if isinstance(x, list) else x
                       for key, x in optimizer.items() if key != "type"}
            trainer = OPTIMIZERS[optimizer["type"]]([p for p in module.parameters() if p.requires_grad],
                                                    **options)
            for _ in range(steps):
                trainer.zero_grad()
                outputs_of(module, given, loss, written["outputs"])["loss"].backward()
                trainer.step()
            tensors.update({f"step/{key}": x
                            for key, x in of_floats(module.state_dict()).items() if key in used})
            tensors["steps"] = torch.tensor(steps)
    finally:
        torch.set_default_dtype(torch.float32)
    export_torch.save_safetensors(weights_path, tensors)
    return sum(x.numel() for x in tensors.values())


def main():
    warnings.simplefilter("ignore")
    for name in sys.argv[1:] or zoo.CASES:
        print(name, make(name, FOLDER))


if __name__ == "__main__":
    main()
