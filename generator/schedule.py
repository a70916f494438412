"""How a launch runs on a GPU: the template, the width of its packs, the number of threads. It is chosen from
the launch, or by the spec's schedule: {"threads": of a block, "packs": that a thread loads before it
computes, "looped": no rows in registers}."""
from dataclasses import dataclass
from functools import lru_cache

from . import scalar
from .program import SCALAR, WHOLE

BYTES = {"f32": 4, "bf16": 2, "f16": 2, "i64": 8, "i32": 4, "u8": 1, "bool": 1}
STORED = ("f32", "bf16", "f16")

THREADS = 256
LOOP_THREADS = 512      # of a block that loops over a long row
# Floats of a slice of sums that single blocks add up. For more, a second kernel is faster.
WIDEST_FINISH = 2048
LONGEST_IN_WARP = 1024  # elements of a row that a warp holds, and a block:
LONGEST_IN_BLOCK = 16384
# Most elements of a row for a thread of a block, with its registers for them. The first that fits is taken.
SHARES = ((16, 64), (32, 112))

# Below this many elements, each block of the next launch computes the sums that it needs, without a launch
# for them.
MOST_ALONE = 4096


class EmitError(Exception):
    """A launch that no template fits. Partition makes none."""


@dataclass(frozen=True)
class Shape:
    """team: threads that share a row. unroll: packs that a thread loads before it computes."""
    template: str
    pack: int
    threads: int
    unroll: int = 1
    team: int = 1


def power_of_2(count, most=32):
    power = 1
    while power < count and power < most:
        power *= 2
    return power


def divisor(pack, length):
    """The largest pack that divides the length, at most `pack`."""
    while length % pack:
        pack //= 2
    return pack


def unique(items):
    found = []
    for one in items:
        if one not in found:
            found.append(one)
    return found


@lru_cache(maxsize=1024)
def functions(launch):
    """The functions of scalar.py, without a prefix."""
    return scalar.functions("a_b_c_0", launch)


def operands(launch):
    """The operands that a launch reads, and those that it writes, in the order of use."""
    read = [slot.key for one in functions(launch)
            for slot in one.parameters if slot.kind in ("load", "column")]
    return unique(read), unique([slot.key for one in functions(launch)
                                 for slot in one.results if slot.kind == "store"])


def placed(launch):
    """The sums with a place, not over all elements."""
    return [one for one in launch.sums if one.place != SCALAR]


def streams(launch):
    """Operands with a value for each element: (read, written)."""
    read, _ = operands(launch)
    return ([one for one in read if one.place == WHOLE],
            [store.operand for store in launch.stores if store.operand.place == WHOLE])


def check(launch):
    """Raises EmitError."""
    inner = launch.domain.inner
    sums = unique([one.place for one in placed(launch)])
    for store in launch.stores + launch.finals:
        if store.operand.dtype not in STORED:
            raise EmitError("'%s' cannot be stored as %s" % (store.operand.name, store.operand.dtype))
    for store in launch.stores:
        if store.operand.place != WHOLE and not (launch.family == "row" and
                                                 scalar.of_row(store.operand.place, inner)):
            raise EmitError("'%s' is stored where it has no value for each element" % store.operand.name)
    if len(sums) > 1 or (launch.family == "row" and sums not in ([], [(1, inner)])):
        raise EmitError("sums at places that a launch cannot have together")
    for function in functions(launch):
        place = function.results[0].key.place if function.scope == "final" else None
        for slot in function.parameters if place else ():
            if slot.kind == "load" and slot.key.place != place and slot.key.place[1] != 1:
                raise EmitError("'%s' stands at another place than the sums" % slot.key.name)
            if slot.kind == "total" and launch.sums[slot.key].place not in (place, SCALAR):
                raise EmitError("a final of another place than its sum")


def shape_of(launch, schedule=None):
    """Raises EmitError if no template fits."""
    check(launch)
    schedule = schedule or {}
    if schedule.get("threads", 32) % 32 or schedule.get("threads", 32) > 1024 or schedule.get("packs", 1) > 8:
        raise EmitError("a schedule's threads are a multiple of 32, at most 1024, and its packs at most 8")
    read, written = streams(launch)
    pack = min(8, 16 // min([BYTES[one.dtype] for one in read + written] or [4]))
    if any(slot.kind == "keep" for function in functions(launch) for slot in function.parameters):
        pack = 8  # which share one random number
    if launch.family == "row":
        return _row_shape(launch, pack, read, schedule)
    threads, sums = schedule.get("threads", THREADS), placed(launch)
    if not sums:
        at_once = sum(BYTES[one.dtype] * pack for one in read)
        return Shape("map", pack, threads, schedule.get("packs", 1 if at_once > 16 else 2))
    div, mod = sums[0].place
    unroll = schedule.get("packs", 1 if written else 2)
    if div == 1:
        return Shape("columns", divisor(pack, mod), threads, unroll)
    return Shape("channels", divisor(pack, div), threads, unroll)


def finishes(launch):
    """Whether the kernel's last block computes what follows from its sums."""
    return bool(launch.finals) and sum(one.count for one in placed(launch)) <= WIDEST_FINISH


def leads(launch, other, schedule=None):
    """Whether the launch only sums everything, so that each block of the next launch can compute its sums."""
    results, read = [store.operand for store in launch.finals], operands(other)[0]
    if launch.stores or not results or not finishes(other) or shape_of(launch, schedule).template != "map":
        return False
    return shape_of(other, schedule).template in ("row", "row_loop") and all(
        one.role == "stat" and one.place == SCALAR and one in read for one in results)


def _row_shape(launch, pack, read, schedule):
    inner, sums = launch.domain.inner, placed(launch)
    pack = divisor(pack, inner)
    # Registers for each element of a thread: for loads, one for computing, and the sums.
    added = [store.operand
             for store in launch.stores if store.operand.accumulate and store.operand.place == WHOLE]
    registers = sum(max(1, BYTES[one.dtype] / 4) for one in read + added) + 1 + len(sums) + len(
        _waiting(launch))
    each = -(-inner // pack // 32) * pack
    looped = schedule.get("looped", inner > LONGEST_IN_BLOCK)
    if not looped and inner <= LONGEST_IN_WARP and each * registers <= 112:
        threads = schedule.get("threads", 128 if each * registers > 64 and not sums else THREADS)
        return Shape("row", pack, threads, 1, power_of_2(inner // pack))
    for share, most in () if looped else SHARES:
        for team in range(64, 1025, 32):
            each = -(-inner // pack // team) * pack
            if each <= share and each * registers <= min(65536 // team - 24, most):
                return Shape("row", pack, team * max(1, THREADS // team if sums else 1), 1, team)
    threads = schedule.get("threads", LOOP_THREADS)
    return Shape("row_loop", pack, threads, 1, threads)


def _waiting(launch):
    """Operands that are narrower than the rows but wait in registers: those per column that a reduction reads
    too, and irregular ones."""
    inner, found = launch.domain.inner, []
    for function in functions(launch):
        reduces = any(slot.kind == "reduction" for slot in function.results)
        for slot in function.parameters if function.scope == "element" else ():
            if (slot.kind == "load" and slot.key.place != WHOLE and
                not scalar.of_row(slot.key.place, inner) and (
                    reduces or slot.key.place != (1, inner))):
                found.append(slot.key)
    return unique(found)
