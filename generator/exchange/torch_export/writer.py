"""The Writer of a module's tensors, which keeps the spec's entries."""
import math

from ..spec_writer import Constant, Refused, Writer, size_name
from .operands import is_exact, is_large, place_of
from .symbols import Size
from ...sizes import any_varies, varies


class TorchWriter(Writer):
    """The Writer of a module's tensors."""

    def __init__(self, torch, root, taken, modules):
        super().__init__(set(taken) | modules)
        self.torch, self.training, self.modules = torch, root.training, modules
        self.trains = root.trains  # whether gradients are needed
        self.own_dtype = dtype_of_parameters(root)
        self.points = []  # two sets of sizes, as numbers by names
        self.wanted = set()  # indices of the current call's results that are read
        self.ranges = set()  # entries that count the samples: 0, 1, ...
        self.small = set()  # entries of integers that stay below 2^24
        self.steps = {}  # entries of 0, step, 2 step, ...: the step

    def rounds(self, dtype):
        """Whether a cast to a float dtype rounds: to 16 bits, in a model that does not compute in 16 bits
        anyway."""
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
        if (x.full[axis] > 0 and not any_varies((start, end)) and
            not range(*slice(start, end, step).indices(x.full[axis]))):
            full = x.full[:axis] + (0,) + x.full[axis + 1:]
            return Constant(self.torch.zeros([1 if size < 0 else size for size in full]), full)
        return super().slice(x, axis, start, end, step)

    def free_name(self, call):
        """A name for a layer without a named parameter."""
        free = call.path not in self.layers and (call.path in self.modules or call.path not in self.taken)
        return call.path if call.path and free else self.unique(call.op)


def dtype_of_parameters(module):
    """The float dtype of all parameters, or None if they differ."""
    floats = {p.dtype for p in module.parameters() if p.is_floating_point()}
    return floats.pop() if len(floats) == 1 else None
