"""The emitters' input: a group's programs, each a few launches over a domain of elements.

A Program is one direction of one group (evaluation, forward in training, backward). It names its operands
(memory) and lists its launches. A launch visits every element of its domain once, stores some expressions and
sums others. Its finals run after it, once for each element of a sum's place. Emitters use only this; they
look at no spec and no model.

Elements of a domain are numbered 0 .. n-1, with n = fixed + batch * per_batch. If other sizes than the batch
vary, a kernel's batch is their product. An operand of a smaller shape is read at index (i // div) % mod (mod
0: no modulo). Places (div, mod) are whole (1, 0), columns (1, C), rows (C, 0), channels (H*W, C) or a scalar
(1, 1). The index is multiplied by the stride, which is 1 unless one sample of each channel is read."""
from dataclasses import dataclass, field
from typing import Optional, Tuple

WHOLE = (1, 0)
SCALAR = (1, 1)


@dataclass(frozen=True)
class Operand:
    name: str                 # unique C identifier in its program: the spec's name if there is one
    # value, gradient, kept or stat (scratch of this program, f32, between launches)
    role: str
    index: int                # value, gradient: external >= 0, node -1, -2, ...; kept, stat: number
    # in the memory of a GPU: f32 bf16 f16 i64 i32 u8 bool. C kernels: f32 for bf16 and f16
    dtype: str
    place: Tuple[int, int]    # (div, mod) in the domain of the launches that use it
    count: Tuple[int, int]    # elements: fixed, per batch (one of them 0)
    read: bool = False
    written: bool = False
    # its pointer may be NULL: then a store is skipped, and a load gives `absent`
    optional: bool = False
    accumulate: bool = False  # += instead of = may be requested
    absent: float = 0.0
    shares: Optional[str] = None  # operand whose memory it may share (gpunn_kernel_operand.shares)
    stride: int = 1           # the element read is stride * ((i // div) % mod)
    half: Optional[str] = None  # bf16 or f16: CUDA kernels store this copy too, on request


@dataclass(frozen=True)
class Domain:
    fixed: int                # elements without a batch
    per_batch: int            # elements per batch; one of both is 0
    inner: int                # length of a row (row launches); else 1


@dataclass(frozen=True)
class Store:
    operand: Operand
    value: object             # ir.Node


@dataclass(frozen=True)
class Sum:
    """The sum (or max) of an expression over all elements with one place. In finals its value is
    ir.total(number)."""
    number: int               # in its launch
    value: object             # ir.Node
    # SCALAR, columns (1, C) or channels (div, mod). A launch has at most one place besides SCALAR.
    place: Tuple[int, int]
    count: int                # number of places, that is mod
    # row launches: the value depends only on the row and counts once per row (place SCALAR)
    over_rows: bool = False


@dataclass(frozen=True)
class Launch:
    family: str               # map or row
    domain: Domain
    stores: Tuple[Store, ...] = ()
    sums: Tuple[Sum, ...] = ()
    finals: Tuple[Store, ...] = ()   # over the places of the sums: all with one place and count


@dataclass(frozen=True)
class Labels:
    """A C kernel returns GPUNN_ERR_ARGUMENT when a label is neither in 0 .. classes-1 nor `ignore`."""
    operand: Operand
    classes: int
    ignore: int


@dataclass(frozen=True)
class Program:
    # in the order of gpunn_kernel_call.data, with stats last (they are not in it)
    operands: Tuple[Operand, ...]
    launches: Tuple[Launch, ...]
    # bytes moved in the declared dtypes: fixed, per batch; with stats and narrow operands
    bytes_per_batch: Tuple[int, int] = (0, 0)
    labels: Tuple[Labels, ...] = ()
    # inference.Plan of a sample, instead of launches
    network: object = field(default=None, repr=False, compare=False)
    # training.StepPlan of a sample, instead of launches
    step: object = field(default=None, repr=False, compare=False)

    def on_gpus_alone(self):
        return bool(self.step or self.network and self.network.has_images())


@dataclass(frozen=True)
class Kept:
    dtype: str
    fixed: int
    per_batch: int


@dataclass(frozen=True)
class Kernel:
    """A distinct group. nodes: (text, operand numbers; None: left out). externals: "f32 [N,768]"."""
    name: str                 # g0, g1, ...
    formula: str              # "y = gelu(x * s + b) + r"
    nodes: Tuple[Tuple[str, Tuple[Optional[int], ...]], ...]
    externals: Tuple[str, ...]
    kept: Tuple[Kept, ...]
    random_streams: int       # random nodes
    layout: str               # any, first or last
    loss: bool
    evaluation: Optional[Program]
    forward: Optional[Program]
    backward: Optional[Program]
    schedule: dict = field(default_factory=dict, compare=False)   # overrides from the spec: threads, packs
    # its batch is the number of elements of that tensor divided by that number; (0, 0): the model's batch
    measured: Tuple[int, int] = (0, 0)
    precision: str = "f32"    # of its products: the model's, if there are any


@dataclass(frozen=True)
class Instance:
    kernel: int
    tensors: Tuple[int, ...]  # ids: nodes, then externals


@dataclass(frozen=True)
class KernelSet:
    name: str                 # C identifier: NAME of NAME_kernels
    spec_sha256: str
    command: str              # command that renews the files
    math: str                 # auto, accurate or fast
    tensor_count: int         # of the model with that hash
    kernels: Tuple[Kernel, ...]
    evaluation: Tuple[Instance, ...]
    training: Tuple[Instance, ...]
    updates: Tuple[dict, ...]  # gpunn_update's fields by name; "half_dtype" is "f32" for none
    # evaluation as one kernel, with ids; if it cannot run, the other kernels do
    network: Optional[Tuple[Kernel, Tuple[int, ...]]] = None
    step: Optional[Tuple[Kernel, Tuple[int, ...]]] = None     # a training step as one kernel, likewise

    def tables(self):
        """All kernels, and the instances of evaluation and training. Whole networks come first, so the others
        only take what is left."""
        kernels, first = [], []
        for whole in (self.network, self.step):
            first.append([Instance(len(kernels), whole[1])] if whole else [])
            kernels += [whole[0]] if whole else []
        evaluation, training = [
            tuple(own + [Instance(one.kernel + len(kernels), one.tensors) for one in some])
            for own, some in zip(first, (self.evaluation, self.training))]
        return tuple(kernels) + self.kernels, evaluation, training
