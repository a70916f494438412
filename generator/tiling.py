"""How blocks of a GPU run a small network (network.py): the forms of its kernel, and their estimated costs.

A block holds all values of a tile of samples in shared memory. Beside them are the weights of all products
or, if these do not fit, pieces of them. Products use tensor cores (mma.sync) if the model's precision is not
F32. Values in shared memory are F32 in any case, rounded to 16 bits where a GPU's memory would store 16 bits.
The costs are arithmetic, not measurements: wavefronts of shared memory, instructions and products of a
multiprocessor."""
import math
from dataclasses import dataclass, replace

from .inference import CONVOLUTIONS
from .network import SamplePlan, check

THREADS = 256         # of a block
TILES = (64, 32, 16)  # samples of a tile, and ...
FEW = (8, 4, 2, 1)    # ... of a tile of images
LEAST = 8             # rows of a weight in the smallest piece
# bytes of shared memory that blocks may use: on any GPU, on sm_86 and on sm_90
BUDGETS = (49152, 101376, 232448)
OLDER = 65536         # the same for GPUs without TF32
# the least compute capability that multiplies such factors in one instruction
CAPABILITY = {"f32": 0, "f16": 75, "bf16": 80, "tf32": 80}
CHUNK = {"f16": 16, "bf16": 16, "tf32": 8}  # elements of a row per instruction, in 8 words
# 16-bit multiplications per clock of a multiprocessor, on the slowest GPU; half of it for TF32
TENSOR = 512


@dataclass(frozen=True)
class Card:
    multiprocessors: int
    gigahertz: float
    room: int          # bytes of shared memory that a block may have
    capability: int
    tensor: int        # like TENSOR; for the H100, mma.sync reaches half of wgmma's rate


CARDS = {"H100": Card(132, 1.755, 232448, 90, 1024), "A100": Card(108, 1.41, 166912, 80, 1024),
         "L4": Card(58, 2.04, 101376, 89, 512), "T4": Card(40, 1.59, 65536, 75, 512)}
BATCHES = (1, 256, 16384)  # for which the report prints costs
LAUNCH = 2.5e-6       # seconds from one kernel's end to the start of the next one's work, within a graph
ALONE = 1e-6          # least seconds of a step by itself, and ...
# ... the share of the peak multiplications that a product by itself reaches, or ...
SHARE = 0.6
MEMORY = 14           # ... bytes that its values take from memory per clock of a multiprocessor
GIGAHERTZ = 1.7       # the clock by which kernels are chosen on all GPUs
STAGED = 64           # bytes per clock from the second-level cache to a multiprocessor
FAR, NEAR = 600, 24   # latency in clocks of that cache, and of shared memory
CHANNELS = 8          # most results of a convolution that a thread computes at once
# From this many elements of a row on, all threads share a product, without weights in shared memory: ...
LONG = 4 * THREADS
AT_ONCE = (8, 4)      # ... its columns and samples per step, at most
ELEMENT = 40          # instructions per element of what is no product
CORNER = 30           # and per corner of a cell in a level of a hash grid, without its features
LANES = 128           # of a multiprocessor


class TilePlan(SamplePlan):
    """Inputs and outputs are in shared memory too. So are all values where 16 bytes are read at once."""
    UNIT, WHOLE = 4, True

    @staticmethod
    def array(block):
        """Integers are stored with the other values, as floats."""
        return "f32"

    def pitch(self):
        """The floats from one sample's values to the next one's."""
        return pitch_of(self.sizes()["f32"])

    def is_long(self, width):
        """Whether all threads share a product with rows of this width."""
        return width > LONG

    def linears(self, long=False):
        """(rows per sample, width, outputs) of each product with long rows, or of the others."""
        for t in self.layers():
            if t.op == "linear":
                out, width = self.shape(t.inputs[1])
                if self.is_long(width) == long:
                    yield self.count(t.id) // out, width, out

    def room(self, step):
        """The floats for the warps' partial sums."""
        out, width = self.shape(step.tensor.inputs[1]) if step.tensor.op == "linear" else (0, 0)
        return THREADS // 32 * even(out, AT_ONCE[0]) if self.is_long(width) else 0

    def ends(self):
        """For each convolution, by id: the elementwise steps applied to each of its results, which read
        nothing else."""
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
        """The words of all weights in shared memory, each row with its bias."""
        return sum(out * step_of(width, factors) for _, width, out in self.linears())


def pitch_of(count):
    """The next odd multiple of 4. At this distance, rows are read 16 bytes at a time without bank
    conflicts."""
    fours = -(-count // 4)
    return 4 * (fours + 1 - fours % 2)


def step_of(width, factors):
    """The words from one row of a weight to the next: whole chunks of factors, and the bias."""
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
    whole: bool   # whether all weights fit at once
    bytes: int    # of shared memory
    fills: bool = False  # only for batches with a tile for each multiprocessor


def tiling(plan, factors, samples, budget):
    """None: it does not fit."""
    values = samples * plan.pitch()
    left = (budget // 4 - values) // 4 * 4
    if left < max((min(out, LEAST) * step_of(width, factors) for _, width, out in plan.linears()), default=0):
        return None
    floats = min(left, plan.staged(factors))
    return Tiling(factors, samples, floats, floats == plan.staged(factors), 4 * (values + floats))


def forms(plan):
    """The kernel's forms. The first one that suits the GPU and the batch is taken. TF32 has more forms, for
    GPUs without it. (): it fits no GPU."""
    precision, found = plan.model.precision, []
    for factors, budget in [(precision, budget) for budget in reversed(BUDGETS)] + [("f32", OLDER)] * (
            precision == "tf32"):
        sizes = TILES + FEW if plan.has_images() else TILES
        fitting = [one for one in (tiling(plan, factors, samples, budget) for samples in sizes) if one]
        if fitting:
            quickest = min(fitting, key=lambda one: cycles(plan, one) / one.samples)
            found += [replace(quickest, fills=True)] * (quickest is not fitting[-1]) + fitting[-1:]
    # of equal forms the last, after all that need more
    return tuple(reversed(dict.fromkeys(reversed(found))))


def form_for(plan, batch, multiprocessors, room, capability):
    """The form that a launch takes, as in network_device.h. None: none fits, or single steps should be
    faster."""
    form = next((one for one in forms(plan) if one.bytes <= room and CAPABILITY[one.factors] <= capability and
                 not (
                     one.fills and batch < multiprocessors * one.samples)), None)
    return form if form and clocks(plan, form, batch, multiprocessors) <= clocks_apart(
        plan, form.factors, batch, multiprocessors) else None


def form_on(plan, batch, card):
    return form_for(plan, batch, card.multiprocessors, card.room, card.capability)


def refusal(plan):
    """The reason why no GPU has such a kernel, or None."""
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
    """Multiplications per clock of a multiprocessor."""
    return LANES if factors == "f32" else tensor * CHUNK[factors] // 16


def each_of(tiles, teams):
    """The columns, or tiles of columns, whose sums a thread or a warp computes at once."""
    return next((n for n in (8, 4, 2) if tiles > n // 2 * teams), 1)


def rows_at_once(form, width, out):
    """The rows of a weight that fit shared memory at once."""
    wide, room = 1 if form.factors == "f32" else 8, form.floats // step_of(width, form.factors)
    return out if form.whole or room >= out else room // wide * wide


def product_cycles(form, rows, width, out, tensor):
    """The clocks of a multiprocessor for a tile, as linear in network_device.h works."""
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
    """For a chunk, the factors of 16 samples are 4 words a lane, each rounded from one number or two, and
    those of 8 columns are 2 words."""
    slots, chunk = form.samples // 16, CHUNK[form.factors]
    teams = THREADS // 32 // slots
    each, warps = each_of(tiles, teams), slots * min(teams, tiles)
    numbers = chunk // 2
    wavefronts, instructions = numbers + 2 * each, numbers + 4 + 3 * each
    products = each * 16 * 8 * chunk / rate_of(form.factors, tensor)
    return -(-tiles // (teams * each)) * -(-width // chunk) * max(
        warps * max(wavefronts, instructions / 4, products), NEAR)


def even(count, most):
    """The number at once, at most so many, that makes all turns equal."""
    return -(-count // -(-count // most))


def channels_of(samples, places, groups, out):
    """The results of a convolution's group that a thread computes at once, as convolve in network_device.h
    does."""
    return even(out, min(max(samples * places * groups * out // THREADS, 1), CHANNELS, out))


def long_cycles(form, rows, width, out):
    """A thread has elements of each row in turn, for some columns and samples. Then warps add up their lanes'
    sums, as long_linear in network_device.h does."""
    columns, samples = even(out, AT_ONCE[0]), min(form.samples, AT_ONCE[1])
    turns, warps = rows * -(-out // columns) * -(-form.samples // samples), THREADS // 32
    instructions = -(-width // THREADS) * (columns + samples + columns * samples) + 10 * columns * samples
    return turns * (max(4 * columns * width / STAGED, warps * instructions / 4) + FAR + 2 * NEAR)


def convolution_cycles(form, places, width, out):
    """A factor of the image is one word for all channels of a thread. A factor of a weight is one word for
    all of a warp."""
    each = channels_of(form.samples, places, 1, out)
    warps = -(-form.samples * places * -(-out // each) // 32)
    return warps * width * (2 * each + 3) / 4 + width * NEAR


def cycles(plan, form, tensor=TENSOR):
    """The clocks of a multiprocessor for a tile."""
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
    """The clocks per sample of one multiprocessor, for each hash grid."""
    grids = [step.tensor for step in plan.steps if step.tensor.op == "hash_grid_encoding"]
    rows = [plan.count(t.id) // plan.shape(t.inputs[1])[1] << plan.shape(t.inputs[0])[-1] for t in grids]
    return [count * (CORNER + plan.shape(t.inputs[1])[1]) / LANES for t, count in zip(grids, rows)]


def staging(form):
    """The clocks before the first tile."""
    return 4 * form.floats / STAGED + FAR if form.whole else 0


def clocks(plan, form, batch, multiprocessors, tensor=TENSOR):
    return staging(form) + -(-batch // (form.samples * multiprocessors)) * cycles(plan, form, tensor)


def apart(plan):
    """The additional clocks to start single steps instead of one launch. Elementwise steps join the product
    before them."""
    launches = sum(not step.members for step in plan.steps)
    return (launches * (LAUNCH + ALONE) - LAUNCH) * GIGAHERTZ * 1e9


def each_apart(plan, factors):
    """The clocks per sample of one multiprocessor for those steps."""
    linears = sum(linear_apart(factors, *one) for long in (False, True) for one in plan.linears(long))
    windows = sum(product_apart(factors, places * width * out, moved)
                  for places, width, out, moved in plan.convolutions())
    return linears + windows + sum(hashes(plan))


def linear_apart(factors, rows, width, out):
    return rows * product_apart(factors, width * out, width + out)


def product_apart(factors, multiplications, moved):
    """The clocks of a single product that moves so many numbers."""
    return max(multiplications / (SHARE * rate_of(factors, TENSOR)),
               (2 if factors in ("bf16", "f16") else 4) * moved / MEMORY)


def clocks_apart(plan, factors, batch, multiprocessors):
    return apart(plan) + batch * each_apart(plan, factors) / multiprocessors


def seconds(plan, form, batch, card):
    return LAUNCH + clocks(plan, form, batch, card.multiprocessors, card.tensor) / (card.gigahertz * 1e9)
