"""How blocks of a GPU take a small network (network.py): forms of its kernel, and what they should cost.

A block holds all values of a tile of samples in shared memory, and beside them the weights of all products or, where these do not
fit, pieces of them. Products are those of tensor cores (mma.sync) where the model's precision is no F32; values lie there as F32 all the same, rounded to
16 bits where a GPU's memory would have them so. The costs are arithmetic, not measurements: wavefronts of shared memory, instructions
and products of a multiprocessor.
"""
import math
from dataclasses import dataclass, replace

from .inference import CONVOLUTIONS
from .network import SamplePlan, check

THREADS = 256         # of a block
TILES = (64, 32, 16)  # samples of one, and ...
FEW = (8, 4, 2, 1)    # ... of images
LEAST = 8             # rows of a weight in the smallest piece
# bytes of shared memory that blocks may have: any GPU's, sm_86's and sm_90's
BUDGETS = (49152, 101376, 232448)
OLDER = 65536         # the same of GPUs without TF32
# the least that multiplies such factors in one instruction
CAPABILITY = {"f32": 0, "f16": 75, "bf16": 80, "tf32": 80}
CHUNK = {"f16": 16, "bf16": 16, "tf32": 8}  # numbers of a row that it takes, in 8 words
# multiplications of 16 bits in a clock of a multiprocessor, of the slowest; TF32: half of them
TENSOR = 512


@dataclass(frozen=True)
class Card:
    multiprocessors: int
    gigahertz: float
    room: int          # bytes of shared memory that a block may have
    capability: int
    tensor: int        # as TENSOR; of the H100 what mma.sync reaches, half of what its wgmma has


CARDS = {"H100": Card(132, 1.755, 232448, 90, 1024), "A100": Card(108, 1.41, 166912, 80, 1024),
         "L4": Card(58, 2.04, 101376, 89, 512), "T4": Card(40, 1.59, 65536, 75, 512)}
BATCHES = (1, 256, 16384)  # of which the costs are told
LAUNCH = 2.5e-6       # seconds from one kernel's end to the next one's work, within a graph
ALONE = 1e-6          # that a step by itself takes at least, and ...
# ... the share of a multiplication at each clock and lane that a product by itself reaches, or ...
SHARE = 0.6
MEMORY = 14           # ... bytes that its values take from memory in a clock of a multiprocessor
GIGAHERTZ = 1.7       # by which kernels are chosen on all GPUs
STAGED = 64           # bytes that a multiprocessor takes from the second-level cache in a clock
FAR, NEAR = 600, 24   # clocks until that cache answers, and until shared memory does
CHANNELS = 8          # of a convolution's results that a thread has at once, at most
# numbers of a row from which on all threads share a product, without weights in shared memory: ...
LONG = 4 * THREADS
AT_ONCE = (8, 4)      # ... columns and samples of it, at most
ELEMENT = 40          # instructions for an element of what is no product
CORNER = 30           # and for a corner of a cell in a level of a hash grid, beside those of its features
LANES = 128           # of a multiprocessor


class TilePlan(SamplePlan):
    """Inputs and outputs lie in shared memory too, and all values where 16 bytes are read at once."""
    UNIT, WHOLE = 4, True

    @staticmethod
    def array(block):
        """Integers lie among the others, as numbers."""
        return "f32"

    def pitch(self):
        """Floats from one sample's values to the next one's."""
        return pitch_of(self.sizes()["f32"])

    def is_long(self, width):
        """Whether all threads share a product of rows of such a width."""
        return width > LONG

    def linears(self, long=False):
        """(rows a sample, width, outputs) of each product, of those whose rows are long or of the others."""
        for t in self.layers():
            if t.op == "linear":
                out, width = self.shape(t.inputs[1])
                if self.is_long(width) == long:
                    yield self.count(t.id) // out, width, out

    def room(self, step):
        """The parts of sums that warps have."""
        out, width = self.shape(step.tensor.inputs[1]) if step.tensor.op == "linear" else (0, 0)
        return THREADS // 32 * even(out, AT_ONCE[0]) if self.is_long(width) else 0

    def ends(self):
        """Steps that are done with each result of the convolution before them, by its id: elementwise ones that read nothing else."""
        steps = [step for step in self.steps if step.members and len(step.operands) == 1]
        return {i: step for step in steps for i in step.operands if self.tensors[i].op in CONVOLUTIONS and
                self.at[i][0].root() is self.at[step.tensor.id][0].root()}

    def convolutions(self):
        """(places of the result, width of a sum, outputs, elements of x and y) of each."""
        for t in self.layers():
            if t.op in CONVOLUTIONS:
                out, *width = self.shape(t.inputs[1])
                yield (self.count(t.id) // out, math.prod(width), out,
                       self.count(t.inputs[0]) + self.count(t.id))

    def staged(self, factors):
        """Words of all weights as they lie in shared memory, each row with its bias."""
        return sum(out * step_of(width, factors) for _, width, out in self.linears())


def pitch_of(count):
    """The next odd multiple of 4: so far apart, rows are read 16 bytes at a time without a conflict of banks."""
    fours = -(-count // 4)
    return 4 * (fours + 1 - fours % 2)


def step_of(width, factors):
    """Words from one row of a weight to the next: whole chunks of factors, and the bias."""
    chunk = CHUNK.get(factors)
    return pitch_of((-(-width // chunk) * 8 if chunk else width) + 1)


def tile_plan(plan):
    """The TilePlan of a SamplePlan's model."""
    made = TilePlan(plan.model, 1, check)
    made.storage = plan.storage
    return made


@dataclass(frozen=True)
class Tiling:
    factors: str  # of products: f32, or tf32, bf16, f16 by tensor cores
    samples: int
    floats: int   # of shared memory, for weights
    whole: bool   # all of them at once
    bytes: int    # of shared memory
    fills: bool = False  # for batches alone of which each multiprocessor gets a tile


def tiling(plan, factors, samples, budget):
    """None: it does not fit."""
    values = samples * plan.pitch()
    left = (budget // 4 - values) // 4 * 4
    if left < max((min(out, LEAST) * step_of(width, factors) for _, width, out in plan.linears()), default=0):
        return None
    floats = min(left, plan.staged(factors))
    return Tiling(factors, samples, floats, floats == plan.staged(factors), 4 * (values + floats))


def forms(plan):
    """The kernel's forms; the first that is for a GPU and a batch is taken. TF32 has more of them for GPUs that lack it. () : no GPU
    has room for one."""
    precision, found = plan.model.precision, []
    for factors, budget in [(precision, budget) for budget in reversed(BUDGETS)] + [("f32", OLDER)] * (
            precision == "tf32"):
        sizes = TILES + FEW if plan.has_images() else TILES
        fitting = [one for one in (tiling(plan, factors, samples, budget) for samples in sizes) if one]
        if fitting:
            quickest = min(fitting, key=lambda one: cycles(plan, one) / one.samples)
            found += [replace(quickest, fills=True)] * (quickest is not fitting[-1]) + fitting[-1:]
    # of those alike the last, behind all that need more
    return tuple(reversed(dict.fromkeys(reversed(found))))


def form_for(plan, batch, multiprocessors, room, capability):
    """The form that a launch takes; None: none fits, or steps by themselves should be quicker. As network_device.h has it."""
    form = next((one for one in forms(plan) if one.bytes <= room and CAPABILITY[one.factors] <= capability and
                 not (
                     one.fills and batch < multiprocessors * one.samples)), None)
    return form if form and clocks(plan, form, batch, multiprocessors) <= clocks_apart(
        plan, form.factors, batch, multiprocessors) else None


def form_on(plan, batch, card):
    return form_for(plan, batch, card.multiprocessors, card.room, card.capability)


def refusal(plan):
    """Why no GPU has such a kernel; None: some have."""
    if not forms(plan):
        least = FEW[-1] if plan.has_images() else TILES[-1]
        return ("values of %d sample%s take %d bytes of shared memory, where no block has more than %d with "
                "weights" % (
                    least, "s" * (least > 1), 4 * least * plan.pitch(), BUDGETS[-1]))
    if not any(form_on(plan, batch, card) for card in CARDS.values() for batch in BATCHES):
        return "step by step should be quicker, with %d multiplications a sample" % plan.products()
    return None


# ---- costs ----
def rate_of(factors, tensor):
    """Multiplications in a clock of a multiprocessor."""
    return LANES if factors == "f32" else tensor * CHUNK[factors] // 16


def each_of(tiles, teams):
    """Columns, or tiles of them, whose sums a thread, or a warp, has at once."""
    return next((n for n in (8, 4, 2) if tiles > n // 2 * teams), 1)


def rows_at_once(form, width, out):
    """Of a weight, in shared memory."""
    wide, room = 1 if form.factors == "f32" else 8, form.floats // step_of(width, form.factors)
    return out if form.whole or room >= out else room // wide * wide


def product_cycles(form, rows, width, out, tensor):
    """Of a multiprocessor, for a tile. As linear in network_device.h has it."""
    wide, piece = 1 if form.factors == "f32" else 8, rows_at_once(form, width, out)
    pieces = -(-out // piece)
    count = multiply_cycles if form.factors == "f32" else tile_cycles
    cost = rows * pieces * count(form, width, -(-piece // wide), tensor)
    return cost if form.whole else cost + 4 * out * width / STAGED + pieces * FAR


def multiply_cycles(form, width, columns, _):
    slots = min(form.samples, 32)
    own, teams, warps = form.samples // slots, THREADS // slots, THREADS // 32
    each = each_of(columns, teams)
    wavefronts, instructions = own * slots / 8 + each * min(32 // slots, 4), 4 * own * each + own + each
    return -(-columns // (teams * each)) * -(-width // 4) * max(warps * max(wavefronts, instructions / 4),
                                                                NEAR)


def tile_cycles(form, width, tiles, tensor):
    """A chunk's factors of 16 samples are 4 words a lane, which are rounded from one number or two, and those of 8 columns 2 words."""
    slots, chunk = form.samples // 16, CHUNK[form.factors]
    teams = THREADS // 32 // slots
    each, warps = each_of(tiles, teams), slots * min(teams, tiles)
    numbers = chunk // 2
    wavefronts, instructions = numbers + 2 * each, numbers + 4 + 3 * each
    products = each * 16 * 8 * chunk / rate_of(form.factors, tensor)
    return -(-tiles // (teams * each)) * -(-width // chunk) * max(
        warps * max(wavefronts, instructions / 4, products), NEAR)


def even(count, most):
    """How many of them at once make turns alike, of at most so many."""
    return -(-count // -(-count // most))


def channels_of(samples, places, groups, out):
    """Of a group of a convolution, how many results a thread has at once. As convolve in network_device.h has it."""
    return even(out, min(max(samples * places * groups * out // THREADS, 1), CHANNELS, out))


def long_cycles(form, rows, width, out):
    """A thread has a number of each row in turn, for some columns and samples; then warps add up their lanes' sums. As long_linear in
    network_device.h has it."""
    columns, samples = even(out, AT_ONCE[0]), min(form.samples, AT_ONCE[1])
    turns, warps = rows * -(-out // columns) * -(-form.samples // samples), THREADS // 32
    instructions = -(-width // THREADS) * (columns + samples + columns * samples) + 10 * columns * samples
    return turns * (max(4 * columns * width / STAGED, warps * instructions / 4) + FAR + 2 * NEAR)


def convolution_cycles(form, places, width, out):
    """A factor of the image is one word for all of a thread's channels, one of a weight one word for all of a warp."""
    each = channels_of(form.samples, places, 1, out)
    warps = -(-form.samples * places * -(-out // each) // 32)
    return warps * width * (2 * each + 3) / 4 + width * NEAR


def cycles(plan, form, tensor=TENSOR):
    """Of a multiprocessor, for a tile."""
    products = sum(product_cycles(form, *one, tensor) for one in plan.linears())
    products += sum(convolution_cycles(form, *one[:3]) for one in plan.convolutions())
    products += sum(long_cycles(form, *one) for one in plan.linears(long=True))
    done = plan.layers() + [step.tensor for step in plan.ends().values()]
    others = [step.tensor for step in plan.steps if step.tensor not in done and
              step.tensor.op != "hash_grid_encoding"]
    values = sum(form.samples * plan.count(t.id) * ELEMENT / LANES + (FAR if t.op == "embedding" else NEAR)
                 for t in others)
    return products + values + form.samples * sum(hashes(plan)) + FAR * len(hashes(plan)) + 2 * FAR


def hashes(plan):
    """Clocks a sample of one multiprocessor for each hash grid."""
    grids = [step.tensor for step in plan.steps if step.tensor.op == "hash_grid_encoding"]
    rows = [plan.count(t.id) // plan.shape(t.inputs[1])[1] << plan.shape(t.inputs[0])[-1] for t in grids]
    return [count * (CORNER + plan.shape(t.inputs[1])[1]) / LANES for t, count in zip(grids, rows)]


def staging(form):
    """Clocks before the first tile."""
    return 4 * form.floats / STAGED + FAR if form.whole else 0


def clocks(plan, form, batch, multiprocessors, tensor=TENSOR):
    return staging(form) + -(-batch // (form.samples * multiprocessors)) * cycles(plan, form, tensor)


def apart(plan):
    """Of the steps by themselves, elementwise ones with products before them: clocks more than this one launch has to begin."""
    launches = sum(not step.members for step in plan.steps)
    return (launches * (LAUNCH + ALONE) - LAUNCH) * GIGAHERTZ * 1e9


def each_apart(plan, factors):
    """Clocks a sample of one multiprocessor, of those steps."""
    linears = sum(linear_apart(factors, *one) for long in (False, True) for one in plan.linears(long))
    windows = sum(product_apart(factors, places * width * out, moved)
                  for places, width, out, moved in plan.convolutions())
    return linears + windows + sum(hashes(plan))


def linear_apart(factors, rows, width, out):
    return rows * product_apart(factors, width * out, width + out)


def product_apart(factors, multiplications, moved):
    """Of a product by itself that moves so many numbers."""
    return max(multiplications / (SHARE * rate_of(factors, TENSOR)),
               (2 if factors in ("bf16", "f16") else 4) * moved / MEMORY)


def clocks_apart(plan, factors, batch, multiprocessors):
    return apart(plan) + batch * each_apart(plan, factors) / multiprocessors


def seconds(plan, form, batch, card):
    return LAUNCH + clocks(plan, form, batch, card.multiprocessors, card.tensor) / (card.gigahertz * 1e9)
