"""What does it cost to give an array to another framework, with a lease that follows it?"""

import random
import statistics
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np

from .placement import pin

SHAPE = (64, 64)
NBYTES = 4 * 64 * 64
BLOCK = 2_000
"""Exports in a row of one way."""

IMPORT = "np.from_dlpack of an ndarray"
EXPORT = "export of a slot's array"

WAYS = (
    IMPORT,
    EXPORT,
    "export of an ndarray",
    "np.from_dlpack of a slot's array",
    "a slot's array by its name",
)

Export = Callable[[], object]


def _ways() -> dict[str, Export]:
    """The ways, after a look at what comes out of them."""
    from ropeway import Pool

    lease = Pool(slots=1, shape=SHAPE, dtype="f4").acquire()
    slot: Any = lease.array
    plain: Any = np.ones(SHAPE, "f4")
    slot[...] = plain
    for array in (plain, slot):
        taken = np.from_dlpack(array)
        if taken.ctypes.data != array.ctypes.data or not np.array_equal(taken, plain):
            raise AssertionError("an import isn't what was exported")
    version = (1, 0)
    exports: tuple[Export, ...] = (
        lambda: np.from_dlpack(plain),
        lambda: slot.__dlpack__(max_version=version),
        lambda: plain.__dlpack__(max_version=version),
        lambda: np.from_dlpack(slot),
        lambda: lease["array"],
    )
    return dict(zip(WAYS, exports, strict=True))


def measure(core: int, blocks: int) -> dict[str, dict[str, float]]:
    """Exports in every way, in a new order for each block; the first blocks only warm up."""
    pin(core)
    ways = _ways()
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for block in range(-2, blocks):
        for way in random.sample(list(ways), len(ways)):
            took = _sample(ways[way])
            samples[way] += [took] if block >= 0 else []
    return {way: {"ns": statistics.median(taken)} for way, taken in samples.items()}


def _sample(export: Export) -> float:
    """Nanoseconds of one export with what lets go of it again."""
    start = perf_counter_ns()
    for _ in range(BLOCK):
        export()
    return (perf_counter_ns() - start) / BLOCK
