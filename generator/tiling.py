"""How blocks of a GPU take a small network (network.py): forms of its kernel, and what they should cost.

A block holds all values of a tile of samples in shared memory, and beside them the weights of all products or, where these do not
fit, pieces of them. The costs are arithmetic, not measurements: wavefronts of shared memory and instructions of a multiprocessor.
"""
from dataclasses import dataclass, replace

from .network import SamplePlan, check

THREADS = 256         # of a block
TILES = (64, 32, 16)  # samples of one
LEAST = 8             # rows of a weight in the smallest piece
BUDGETS = (49152, 101376, 232448)  # bytes of shared memory that blocks may have: any GPU's, sm_86's and sm_90's
# Multiprocessors, GHz and bytes of shared memory that a block may have.
CARDS = {"H100": (132, 1.755, 232448), "A100": (108, 1.41, 166912), "L4": (58, 2.04, 101376), "T4": (40, 1.59, 65536)}
BATCHES = (1, 256, 16384)  # of which the costs are told
LAUNCH = 2.5e-6       # seconds from one kernel's end to the next one's work, within a graph
ALONE = 1e-6          # that a step by itself takes at least, and ...
SHARE = 0.6           # ... the share of a multiplication at each clock and lane that a product by itself reaches, or ...
MEMORY = 14           # ... bytes that its values take from memory in a clock of a multiprocessor
GIGAHERTZ = 1.7       # by which kernels are chosen on all GPUs
STAGED = 64           # bytes that a multiprocessor takes from the second-level cache in a clock
FAR, NEAR = 600, 24   # clocks until that cache answers, and until shared memory does
ELEMENT = 40          # instructions for an element of what is no product
LANES = 128           # of a multiprocessor


class TilePlan(SamplePlan):
    """Inputs and outputs lie in shared memory too, and all values where 16 bytes are read at once."""
    UNIT, WHOLE = 4, True

    def pitch(self):
        """Floats from one sample's values to the next one's."""
        return pitch_of(self.sizes()["f32"])

    def linears(self):
        """(rows a sample, width, outputs) of each product."""
        for step in self.steps:
            if step.tensor.op == "linear":
                out, width = self.shape(step.tensor.inputs[1])
                yield self.count(step.tensor.id) // out, width, out

    def staged(self):
        """Floats of all weights as they lie in shared memory, each row with its bias."""
        return sum(out * pitch_of(width + 1) for _, width, out in self.linears())


def pitch_of(count):
    """The next odd multiple of 4: so far apart, rows are read 16 bytes at a time without a conflict of banks."""
    fours = -(-count // 4)
    return 4 * (fours + 1 - fours % 2)


def tile_plan(plan):
    """The TilePlan of a SamplePlan's model."""
    return TilePlan(plan.model, 1, check)


@dataclass(frozen=True)
class Tiling:
    samples: int
    floats: int   # of shared memory, for weights
    whole: bool   # all of them at once
    bytes: int    # of shared memory
    fills: bool = False  # for batches alone of which each multiprocessor gets a tile


def tiling(plan, samples, budget):
    """None: it does not fit."""
    values = samples * plan.pitch()
    left = (budget // 4 - values) // 4 * 4
    if left < max(min(out, LEAST) * pitch_of(width + 1) for _, width, out in plan.linears()):
        return None
    floats = min(left, plan.staged())
    return Tiling(samples, floats, floats == plan.staged(), 4 * (values + floats))


def forms(plan):
    """The kernel's forms; the first that is for a GPU and a batch is taken. () : no GPU has room for one."""
    found = []
    for budget in reversed(BUDGETS):
        fitting = [one for one in (tiling(plan, samples, budget) for samples in TILES) if one]
        if fitting:
            quickest = min(fitting, key=lambda one: cycles(plan, one) / one.samples)
            found += [replace(quickest, fills=True)] * (quickest is not fitting[-1]) + fitting[-1:]
    return tuple(reversed(dict.fromkeys(reversed(found))))  # of those alike the last, behind all that need more


def form_for(plan, batch, multiprocessors, room):
    """The form that a launch takes; None: none fits, or steps by themselves should be quicker. As network_device.h has it."""
    form = next((one for one in forms(plan) if one.bytes <= room and not (
        one.fills and batch < multiprocessors * one.samples)), None)
    return form if form and clocks(plan, form, batch, multiprocessors) <= clocks_apart(plan, batch, multiprocessors) else None


def refusal(plan):
    """Why no GPU has such a kernel; None: some have."""
    if not forms(plan):
        return "values of %d samples take %d bytes of shared memory, where no block has more than %d with weights" % (
            TILES[-1], 4 * TILES[-1] * plan.pitch(), BUDGETS[-1])
    if not any(form_for(plan, batch, multiprocessors, room) for multiprocessors, _, room in CARDS.values() for batch in BATCHES):
        return "step by step should be quicker, with %d multiplications a sample" % plan.products()
    return None


# ---- costs ----
def product_cycles(form, rows, width, out):
    """Of a multiprocessor, for a tile. As multiply in network_device.h has it."""
    slots = min(form.samples, 32)
    own, teams, warps = form.samples // slots, THREADS // slots, THREADS // 32
    piece = out if form.whole else min(out, form.floats // pitch_of(width + 1))
    each = next((n for n in (8, 4, 2) if piece > n // 2 * teams), 1)
    pieces = -(-out // piece)
    passes = pieces * -(-piece // (teams * each))
    wavefronts, instructions = own * slots / 8 + each * (32 // slots), 4 * own * each + own + each
    cost = rows * passes * -(-width // 4) * max(warps * max(wavefronts, instructions / 4), NEAR)
    return cost if form.whole else cost + 4 * out * width / STAGED + pieces * FAR


def cycles(plan, form):
    """Of a multiprocessor, for a tile."""
    products = sum(product_cycles(form, *one) for one in plan.linears())
    others = [plan.count(step.tensor.id) for step in plan.steps if step.tensor.op != "linear"]
    return products + sum(form.samples * count * ELEMENT / LANES + NEAR for count in others) + 2 * FAR


def staging(form):
    """Clocks before the first tile."""
    return 4 * form.floats / STAGED + FAR if form.whole else 0


def clocks(plan, form, batch, multiprocessors):
    return staging(form) + -(-batch // (form.samples * multiprocessors)) * cycles(plan, form)


def apart(plan):
    """Of the steps by themselves, elementwise ones with products before them: clocks more than this one launch has to begin, and
    clocks a sample of one multiprocessor."""
    launches = sum(not step.members for step in plan.steps)
    each = sum(rows * max(width * out / (LANES * SHARE), 4 * (width + out) / MEMORY) for rows, width, out in plan.linears())
    return (launches * (LAUNCH + ALONE) - LAUNCH) * GIGAHERTZ * 1e9, each


def clocks_apart(plan, batch, multiprocessors):
    fixed, per_sample = apart(plan)
    return fixed + batch * per_sample / multiprocessors


def seconds(plan, form, batch, multiprocessors, gigahertz):
    return LAUNCH + clocks(plan, form, batch, multiprocessors) / (gigahertz * 1e9)
