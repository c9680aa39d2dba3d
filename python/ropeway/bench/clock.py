"""Times a loop in small groups of turns, so that reading the clock costs a turn next to nothing."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from time import perf_counter

GROUP = 16
"""Turns between two readings of the clock, unless a turn takes long."""


@dataclass
class Stamps:
    """When each group of turns began, and when the last one ended."""

    group: int
    seconds: list[float] = field(default_factory=list)

    def numbers(self, turns: int) -> Iterator[None]:
        """Items for a loop of `turns` turns: asking for the first of a group reads the clock."""
        return chain.from_iterable(map(self._group, range(turns // self.group)))

    def stop(self) -> None:
        """Reads the clock at the end of the last group."""
        self.seconds.append(perf_counter())

    def micros(self) -> list[float]:
        """The mean of a turn in each group, sorted, in microseconds."""
        pairs = zip(self.seconds, self.seconds[1:], strict=False)
        return sorted((end - start) * 1e6 / self.group for start, end in pairs)

    def _group(self, _index: int) -> Iterable[None]:
        self.seconds.append(perf_counter())
        return repeat(None, self.group)


def turns_for(seconds: float, run: Callable[[int], object]) -> int:
    """How many turns of `run` take about `seconds`, found by running more and more of them."""
    turns = 1
    while True:
        start = perf_counter()
        run(turns)
        took = perf_counter() - start
        if took > seconds / 8:
            return max(1, int(turns * seconds / took))
        turns *= 4
