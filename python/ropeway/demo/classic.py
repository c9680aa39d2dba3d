"""Two large arrays: a loader fills them and a processor consumes them, both in small steps."""

import time
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import ropeway as rw

from . import DemoError
from .child import Child
from .handoff import page_faults
from .stop import Stop

SLOTS = 2
STEP = 1_024  # elements between two looks at the stop signal
TICK = 0.05  # seconds between looks at the processes
GRACE = 0.6  # seconds that a process has to end when told to


class Options(NamedTuple):
    """What the command line says."""

    elements: int = 125_000_000
    rounds: int = 2


class Filled(NamedTuple):
    """The loader's report of a round."""

    round: int
    elements: int
    seconds: float
    faults: int


class Consumed(NamedTuple):
    """The processor's report of a round."""

    round: int
    elements: int
    seconds: float
    checksum: int


def checksum(round: int, elements: int) -> int:
    """Gives the sum that the first elements of a round must have: element i holds i + round."""
    return elements * (elements - 1) // 2 + elements * round


def load(reports: Connection, pool: rw.Pool, rounds: int) -> None:
    """The loader's work: fills one array in each round."""
    for round in range(rounds):
        try:
            with pool.acquire() as slot:
                filled = fill(slot.array, round, pool)
                if not pool.closed:
                    slot.publish()
        except rw.Closed:
            return
        reports.send(filled)


def fill(array: npt.NDArray[np.int32], round: int, pool: rw.Pool) -> Filled:
    """Fills an array step by step; stops at the next step once the pool is closed."""
    begin, faults, done = time.monotonic(), page_faults(), 0
    ramp = np.arange(round, round + STEP, dtype=array.dtype)
    for start in range(0, array.size, STEP):
        if pool.closed:
            break
        step = array[start : start + STEP]
        np.add(ramp[: step.size], start, out=step)
        done += step.size
    return Filled(round, done, time.monotonic() - begin, page_faults() - faults)


def process(reports: Connection, pool: rw.Pool, rounds: int) -> None:
    """The processor's work: consumes one array in each round."""
    for round in range(rounds):
        try:
            with pool.take() as slot:
                consumed = consume(slot.array, round, pool)
        except rw.Closed:
            return
        reports.send(consumed)


def consume(array: npt.NDArray[np.int32], round: int, pool: rw.Pool) -> Consumed:
    """Sums an array step by step; stops at the next step once the pool is closed."""
    begin, total, done = time.monotonic(), 0, 0
    for start in range(0, array.size, STEP):
        if pool.closed:
            break
        step = array[start : start + STEP]
        total += int(step.sum(dtype=np.int64))
        done += step.size
    return Consumed(round, done, time.monotonic() - begin, total)


def run(options: Options, stop: Stop) -> int:
    """Runs both processes to their end or to Ctrl-C, and prints the checksum and the time.

    Gives the exit status.
    """
    if options.elements + options.rounds > 2**31:
        raise DemoError(f"--elements must be below 2**31 - rounds, found {options.elements:,}")
    gigabytes = SLOTS * options.elements * 4 / 1e9
    print(
        f"two arrays of {options.elements:,} int32 ({gigabytes:.3g} GB): a loader fills them, "
        f"a processor consumes them, in steps of {STEP:,} elements",
        flush=True,
    )
    begin = time.monotonic()
    pool = rw.Pool(slots=SLOTS, shape=(options.elements,), dtype="int32")
    loader = Child("the loader", load, pool, options.rounds)
    processor = Child("the processor", process, pool, options.rounds)
    children = loader, processor
    try:
        reports = watch(children, stop)
    finally:
        pool.close()
        deadline = time.monotonic() + GRACE
        for child in children:
            child.finish(deadline)
    took = time.monotonic() - begin
    totals = Totals(reports + [report for child in children for report in child.heard()])
    endings = ", ".join(f"{child.name} {child.ending}" for child in children)
    if stop.signal:
        print(f"stopped after {took:.1f} s: checksum {totals}; {endings}")
        return stop.status
    print("\n".join(totals.rounds()))
    print(f"checksum {totals}")
    print(f"time     {took:.2f} s from the start of both processes to their end; {endings}")
    return 0 if totals.right and totals.consumed == options.elements * options.rounds else 1


def watch(children: tuple[Child, ...], stop: Stop) -> list[Filled | Consumed]:
    """Hears both processes until they end or a stop is asked for.

    Raises `DemoError` if one is killed.
    """
    reports: list[Filled | Consumed] = []
    while not stop.signal and not all(child.ended for child in children):
        time.sleep(TICK)
        for child in children:
            reports += child.heard()
            if child.failed:
                raise DemoError(f"{child.name} {child.ending}")
    return reports


class Totals:
    """What both processes did, added up."""

    def __init__(self, reports: list[Filled | Consumed]):
        self.fills = [report for report in reports if isinstance(report, Filled)]
        self.uses = [report for report in reports if isinstance(report, Consumed)]
        self.consumed = sum(use.elements for use in self.uses)
        self.checksum = sum(use.checksum for use in self.uses)
        self.expected = sum(checksum(use.round, use.elements) for use in self.uses)

    @property
    def right(self) -> bool:
        """Whether every element that was consumed had the value that was filled in."""
        return self.checksum == self.expected

    def rounds(self) -> list[str]:
        """Tells how long each round took."""
        return [
            f"round {fill.round}  filled in {fill.seconds:.2f} s ({fill.faults:,} page faults), "
            f"consumed in {use.seconds:.2f} s"
            for fill, use in zip(self.fills, self.uses, strict=False)
        ]

    def __str__(self) -> str:
        verdict = "as expected" if self.right else f"but {self.expected:,} was expected"
        return f"{self.checksum:,} over {self.consumed:,} elements, {verdict}"
