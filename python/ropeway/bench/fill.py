"""What does it cost to fill a batch, in memory that was used before and in fresh memory?"""

import random
import resource
import statistics
from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from multiprocessing.shared_memory import SharedMemory
from time import thread_time_ns

import numpy as np

from .peers import check
from .placement import pin

SHAPE = (32, 3, 224, 224)
DTYPE = np.dtype("float32")
NBYTES = int(np.prod(SHAPE)) * DTYPE.itemsize
PAGES = NBYTES // resource.getpagesize()

BLOCK = 8
"""Fills in a row of one way, so that each finds the caches as it left them itself."""

PRIVATE = "private array, kept"
SLOT = "ropeway slot, kept"

Fill = Callable[[int, bool], None]
"""Fills a batch with a number and, where asked, checks the whole batch at the end of its way."""


def private_kept() -> Fill:
    """One array, filled again and again."""
    array = np.zeros(SHAPE, DTYPE)

    def fill(number: int, checked: bool) -> None:
        array[...] = number
        if checked:
            check(array, number)

    return fill


def private_fresh() -> Fill:
    """Memory that the kernel has just given: an allocator may hand out what was used before."""

    def fill(number: int, checked: bool) -> None:
        array = np.frombuffer(mmap(-1, NBYTES, MAP_PRIVATE | MAP_ANONYMOUS), DTYPE)
        array[...] = number
        if checked:
            check(array, number)

    return fill


def shared_memory_kept() -> Fill:
    """One segment, filled again and again."""
    memory = SharedMemory(create=True, size=NBYTES)
    memory.unlink()

    def fill(number: int, checked: bool) -> None:
        array = np.ndarray(SHAPE, DTYPE, memory.buf)
        array[...] = number
        if checked:
            check(array, number)

    return fill


def shared_memory_fresh() -> Fill:
    """A segment for each batch."""

    def fill(number: int, checked: bool) -> None:
        memory = SharedMemory(create=True, size=NBYTES)
        memory.unlink()
        array = np.ndarray(SHAPE, DTYPE, memory.buf)
        array[...] = number
        if checked:
            check(array, number)
        del array
        memory.close()

    return fill


def ropeway_kept() -> Fill:
    """The slot goes its whole way round, and that is timed with it."""
    from ropeway import Pool

    pool = Pool(slots=1, shape=SHAPE, dtype=DTYPE)

    def fill(number: int, checked: bool) -> None:
        slot = pool.acquire()
        slot.array[...] = number
        slot.publish()
        taken = pool.take()
        if checked:
            check(taken.array, number)
        taken.release()

    return fill


WAYS: dict[str, Callable[[], Fill]] = {
    PRIVATE: private_kept,
    SLOT: ropeway_kept,
    "shared_memory, kept": shared_memory_kept,
    "private memory, fresh each time": private_fresh,
    "shared_memory, fresh each time": shared_memory_fresh,
}


def measure(core: int, ways: list[str], blocks: int) -> dict[str, dict[str, float]]:
    """Fills a batch in every way, in a new order for each block; the first blocks only warm up."""
    pin(core)
    fills = {way: WAYS[way]() for way in ways}
    for fill in fills.values():
        for number in (7, 8):
            fill(number, True)
    samples: dict[str, list[tuple[float, int]]] = {way: [] for way in fills}
    for block in range(-2, blocks):
        for way in random.sample(ways, len(ways)):
            taken = [_sample(fills[way], number) for number in range(BLOCK)]
            samples[way] += taken if block >= 0 else []
    return {way: _summary(taken) for way, taken in samples.items()}


def _sample(fill: Fill, number: int) -> tuple[float, int]:
    """CPU time in milliseconds and minor page faults of one fill."""
    faults, start = _faults(), thread_time_ns()
    fill(number, False)
    took = thread_time_ns() - start
    return took / 1e6, _faults() - faults


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def _summary(samples: list[tuple[float, int]]) -> dict[str, float]:
    faults = statistics.mean(faults for _, faults in samples)
    return {
        "cpu_ms": statistics.median(ms for ms, _ in samples),
        "faults": faults,
        "faulted_share": faults / PAGES,
    }
