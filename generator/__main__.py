"""Writes fused kernels, or a whole model, as C and CUDA: `python3 -m generator MODEL.json -o NAME`.

By default it writes NAME_kernels.h and NAME_kernels.cu. `--inference` writes the model as plain C
(NAME_inference.h), `--device` as a CUDA function (NAME_device.cuh). `--embed MODEL.json WEIGHTS.safetensors`
writes the model and its weights as a header for gpunn (NAME_embedded.h)."""
import argparse
import os
import re
import sys
import traceback

from . import outputs, spec, stamp
from .exchange.header import is_one_file
from .json_text import SpecError

MATHS = ("auto", "accurate", "fast")


class Failure(Exception):
    """An error sentence for standard error, with the exit code."""

    def __init__(self, message, code=1):
        super().__init__(message)
        self.code = code


class Arguments(argparse.ArgumentParser):
    def error(self, message):
        raise Failure("%s; see python3 -m generator --help" % message, 2)


def ascii_of(text):
    """The text without control characters, which a terminal could take for commands."""
    return re.sub("[\x00-\x09\x0b-\x1f\x7f]", lambda found: "\\x%02x" % ord(found[0]),
                  text.encode("ascii", "backslashreplace").decode("ascii"))


def arguments(words):
    parser = Arguments(
        prog="python3 -m generator", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Writes fused kernels for a gpunn model: NAME_kernels.h and NAME_kernels.cu.\n"
        "Compile them with your program, which calls gpunn_use_kernels. Other options\n"
        "write the whole model as C or CUDA.",
        epilog="example:\n  python3 -m generator examples/kernels/simple_nn.json -o simple_nn --report")
    parser.add_argument("model", metavar="MODEL.json",
                        help="spec of the model, which generator/model.schema.json describes, or one file "
                        "with its spec and weights (MODEL.gpunn)")
    parser.add_argument("values", metavar="WEIGHTS.safetensors", nargs="?", help="the same as --weights")
    parser.add_argument("-o", dest="output", metavar="NAME",
                        help="path of the output files without their endings; its last part must be a C "
                        "identifier")
    parser.add_argument("--check", action="store_true",
                        help="write nothing; fail if a file differs from what would be written")
    parser.add_argument("--report", action="store_true",
                        help="print groups, launches and bytes moved, with and without fused kernels")
    parser.add_argument("--registers", action="store_true",
                        help="with --report: compile the kernels with nvcc ($NVCC or nvcc), and print their "
                        "registers per thread for each card")
    parser.add_argument("--emit-model", action="store_true",
                        help="also write NAME_model.h, which builds the model without JSON")
    parser.add_argument("--embed", action="store_true",
                        help="write NAME_embedded.h instead: the model with its weights, for programs that "
                        "read no files")
    parser.add_argument("--store", choices=("f32", "f16", "bf16"),
                        help="dtype of stored weights (default: with --embed as in the file, with --device "
                        "f32)")
    parser.add_argument("--math", choices=MATHS,
                        help="fast math for results stored in 16 bits (auto), for none (accurate) or for all "
                        "(fast); default: the spec's, else auto")
    alone = parser.add_argument_group("instead of kernels, the model as functions that need no gpunn")
    alone.add_argument("--inference", action="store_true",
                       help="write NAME_inference.h: the model's evaluation in plain C99")
    alone.add_argument("--device", action="store_true",
                       help="write NAME_device.cuh: CUDA functions that evaluate one sample per thread, "
                       "to be called within a kernel")
    alone.add_argument("--warp", action="store_true",
                       help="with --device: also a function that evaluates the samples of a warp's lanes "
                       "together on tensor cores; --store f32 multiplies in TF32")
    alone.add_argument("--weights", metavar="FILE",
                       help="include the weights of this safetensors or GGUF file in the output")
    alone.add_argument("--outputs", metavar="NAMES",
                       help="tensors to compute, separated by commas (default: the spec's outputs)")
    alone.add_argument("--batch", metavar="N", type=int, default=1,
                       help="samples per call (default: %(default)s)")
    alone.add_argument("--block", metavar="LENGTHS",
                       help="lengths of the blocks that NAME_forward takes, such as 64,128: values "
                       "of the model's one named size, or of the batch if it has none")
    alone.add_argument("--int8", action="store_true",
                       help="store the weights of products in 8 bits with a scale per row; needs --weights")
    alone.add_argument("--samples", metavar="FILE",
                       help="inputs by name (safetensors), with which to measure and print the error of "
                       "--int8; needs a C compiler, $CC or cc")
    args = parser.parse_args(words)
    args.weights = args.weights or args.values
    check_embed(parser, args)
    check_alone(parser, args)
    if args.output is None and not args.report:
        parser.error("-o NAME is missing")
    if args.registers and not args.report:
        parser.error("--registers needs --report")
    if args.output is None and (args.check or args.emit_model or args.inference or args.device or
                                args.embed):
        parser.error("--check, --emit-model, --inference, --device and --embed need -o NAME")
    return args


def check_embed(parser, args):
    if args.embed and (args.inference or args.device or args.report or args.emit_model or args.math):
        parser.error("--embed writes NAME_embedded.h alone; leave out --inference, --device, --report, "
                     "--emit-model and --math")
    if args.embed and not args.weights and os.path.isfile(args.model) and is_one_file(args.model):
        args.weights = args.model
    if args.embed and not args.weights:
        parser.error("--embed takes MODEL.json WEIGHTS.safetensors, or MODEL.gpunn")
    if args.store and not (args.embed or args.device):
        parser.error("--store needs --embed or --device")


def check_alone(parser, args):
    """Rejects options without the options that they need, and options that exclude each other."""
    if (args.inference or args.device) and (args.report or args.emit_model or args.math):
        parser.error(
            "--report, --emit-model and --math are for kernels, which --inference and --device do not write")
    if not args.inference and (args.weights and not args.embed or args.int8 or args.samples or
                               args.block or args.batch != 1):
        parser.error("--weights, --batch, --block, --int8 and --samples need --inference")
    if args.block and (args.device or args.samples):
        parser.error("--block goes with neither --device nor --samples")
    if args.block and not re.fullmatch("[1-9][0-9]{0,8}(,[1-9][0-9]{0,8})*", args.block):
        parser.error("--block %s: give lengths of 1 or more, separated by commas" % args.block)
    if args.warp and not args.device:
        parser.error("--warp needs --device")
    if args.outputs and not (args.inference or args.device):
        parser.error("--outputs needs --inference or --device")
    if args.batch < 1:
        parser.error("--batch %d: at least 1 is needed" % args.batch)
    if args.int8 and args.device:
        parser.error("--int8 and --device do not go together: one struct of weights would have two forms")
    if args.int8 and not args.weights:
        parser.error("--int8 needs --weights: the scales come from them")
    if args.samples and not args.int8:
        parser.error("--samples needs --int8, whose error it measures")


def identifier(output):
    name = os.path.basename(output)
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,62}", name):
        raise Failure("-o %s: '%s' begins the names of C functions; use a letter, then letters, digits or _" %
                      (output, name), 2)
    return name


def load(args, fixed=None):
    model = spec.load(args.model, fixed)
    if not model.tensors:
        raise Failure("%s: the model has no tensors" % args.model)
    return model


def chosen(model, names, path):
    """The ids of the tensors with these names or labels in the spec."""
    known = {name: t.id for t in model.tensors for name in (t.name, t.label) if name is not None}
    for name in names:
        if name not in known:
            raise Failure("%s: --outputs: there is no tensor '%s'%s" %
                          (path, name, spec.nearest(name, list(known))))
    return [known[name] for name in names]


def blocks(args, model):
    """The plans of --block, by length."""
    from . import inference
    named, plans = list(model.sizes.items()), {}
    if len(named) > 1:
        raise Failure("%s: --block sets one size, but the model has %d: %s" %
                      (args.model, len(named), ", ".join(name for name, _ in named)))
    for length in sorted(set(map(int, args.block.split(",")))):
        for name, bounds in named:
            if (length < bounds["min"] or 0 < bounds["max"] < length or length % bounds["multiple"]):
                raise Failure("%s: --block %d: the size '%s' is %s" % (
                    args.model, length, name, ", ".join("%s %d" % one for one in bounds.items() if one[1])))
        own = load(args, {name: length for name, _ in named})
        own.outputs = model.outputs
        plans[length] = inference.Plan(own, args.batch if named else length, rings=False)
    return plans


def generate_alone(args):
    """Returns the files by path, and the command that renews them."""
    from . import emit_device, emit_inference, inference, weights
    model, name = load(args), identifier(args.output)
    if args.outputs:
        model.outputs = chosen(model, args.outputs.split(","), args.model)
    options = (["--inference"] * args.inference + ["--device"] * args.device + ["--warp"] * args.warp +
               ["--int8"] * args.int8)
    options += ["--store", args.store] if args.store else []
    options += ["--outputs", args.outputs] if args.outputs else []
    options += ["--batch", str(args.batch)] if args.batch != 1 else []
    options += ["--block", args.block] if args.block else []
    source = stamp.Source(model.sha256(), stamp.command(args.model, args.output, options, args.weights))
    files = {}
    try:
        if args.device:
            stored = args.store or "f32"
            text = emit_device.emit_device(emit_device.plan_of(model, stored), source, name, stored,
                                           args.warp)
            files[args.output + "_device.cuh"] = text
        if args.inference:
            plans = blocks(args, model) if args.block else {0: inference.Plan(model, args.batch)}
            plan = next(iter(plans.values()))
            numbers = weights.read(args.weights, plan) if args.weights else None
            small = weights.quantize(plan, numbers) if args.int8 else {}
            text = emit_inference.emit_blocks(plans, source, name, numbers, small)
            files[args.output + "_inference.h"] = text
            if args.samples:
                exact = emit_inference.emit_inference(plan, source, name, numbers)
                sys.stdout.write(ascii_of(weights.cost(plan, name, exact, text, args.samples)))
    except (inference.Refused, weights.WeightsError) as fault:
        raise Failure("%s: %s" % (args.model, fault)) from None
    return {path: text.encode("ascii") for path, text in files.items()}, source.command


def embed(args):
    """Returns the files by path, and the command that renews them."""
    from . import emit_embedded, weights
    model, name = load(args), identifier(args.output)
    options = ["--embed"] + (["--store", args.store] if args.store else [])
    source = stamp.Source(model.sha256(), stamp.command(args.model, args.output, options, args.weights))
    try:
        file = emit_embedded.archive(model, args.weights, args.store and args.store.upper())
    except weights.WeightsError as fault:
        raise Failure("%s: %s" % (args.model, fault)) from None
    return ({args.output +
             "_embedded.h": emit_embedded.emit_embedded(model, source, name, file).encode("ascii")},
            source.command)


def generate(args):
    """Returns the files by path, and the kernel set."""
    from . import emit_c, emit_cuda, emit_model, partition, schedule
    model = load(args)
    model.math = args.math or model.math
    output = args.output or os.path.splitext(args.model)[0]
    name = identifier(output) if args.output else "model"
    options = (["--math", args.math] if args.math else []) + (["--emit-model"] if args.emit_model else [])
    try:
        kernels = partition.partition(model, name=name, command=stamp.command(args.model, output, options))
        files = {output + "_kernels.h": emit_c.emit_header(kernels),
                 output + "_kernels.cu": emit_cuda.emit_cuda(kernels)}
    except (partition.FuseError, schedule.EmitError) as fault:
        raise Failure("%s: %s" % (model.fuse_place, fault)) from None
    if args.emit_model:
        files[output + "_model.h"] = emit_model.emit_model(model, kernels)
    return {path: text.encode("ascii") for path, text in files.items()}, model, kernels


def check(files, command):
    for path, data in files.items():
        try:
            with open(path, "rb") as file:
                found = file.read().replace(b"\r\n", b"\n")
        except FileNotFoundError:
            raise Failure("%s is missing; write it with: %s" % (path, command)) from None
        if found != data:
            raise Failure("%s is stale; renew it with: %s" % (path, command))


def write(files):
    """Writes all files or, as far as that is possible, none. Each file is written beside its target first. At
    the end these replace the targets. Links are followed, and modes stay as they were."""
    waiting = []
    try:
        for path, data in files.items():
            if os.path.isdir(path):
                raise Failure("%s cannot be written: it is a folder" % path)
            try:
                if outputs.is_special(path):
                    outputs.write_special(path, [data])
                else:
                    waiting.append(outputs.begin(path, [data]))
            except OSError as fault:
                raise Failure("%s cannot be written: %s" % (path, fault.strerror)) from None
        for part, path in list(waiting):
            try:
                outputs.replace(part, path)
            except OSError as fault:
                raise Failure("%s cannot be replaced: %s" % (path, fault.strerror)) from None
            waiting.remove((part, path))
    finally:
        for part, _ in waiting:
            os.unlink(part)


def print_registers(files, kernels):
    from . import registers
    try:
        found = registers.measure(files, kernels)
    except registers.NoCompiler as fault:
        raise Failure(str(fault)) from None
    sys.stdout.write(ascii_of("\n" + "\n".join(registers.lines(found)) + "\n"))


def run(words):
    args = arguments(words)
    if args.output is not None:
        identifier(args.output)
    if args.inference or args.device or args.embed:
        files, command = embed(args) if args.embed else generate_alone(args)
    else:
        files, model, kernels = generate(args)
        command = kernels.command
    if args.report:
        from . import report
        sys.stdout.write(ascii_of(report.report(model, kernels)))
        sys.stdout.flush()
    if args.registers:
        print_registers(files, kernels)
    if args.check:
        check(files, command)
    elif args.output is not None:
        write(files)


def main(words=None):
    """Returns the exit code. An error is one sentence on standard error."""
    try:
        run(sys.argv[1:] if words is None else words)
        return 0
    except Failure as fault:
        code, message = fault.code, str(fault)
    except SpecError as fault:
        code, message = 1, str(fault)
    except OSError as fault:
        code, message = 1, "%s%s" % (fault.strerror or fault,
                                     ": %s" % fault.filename if fault.filename else "")
    except KeyboardInterrupt:
        return 130
    except Exception as fault:  # a fault of the generator, not of the user
        if os.environ.get("GPUNN_GENERATOR_TRACE"):
            traceback.print_exc()
        place = traceback.extract_tb(fault.__traceback__)[-1]
        code, message = 3, "internal error, please report it with the spec: %s: %s (%s:%d)" % (
            type(fault).__name__, fault, os.path.basename(place.filename), place.lineno)
    sys.stderr.write("generator: %s\n" % " ".join(ascii_of(message).split()))
    return code


if __name__ == "__main__":
    sys.exit(main())
