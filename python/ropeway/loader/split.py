"""Batches that several workers make together, each a part of the rows.

Such a batch lies in a shared array of its own. A part of it is a plan like others, in a slot like
others, that names the array and the rows: so whoever dies with a part loses it to the next
worker, and nobody else writes to its rows meanwhile. The array stays until the last who has it
open lets go of it, so a part that comes too late writes to memory that nobody reads.
"""

import itertools
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import ropeway._arrays as arrays
from ropeway._errors import OutOfMemory
from ropeway.loader.engine import Arrival, Spell
from ropeway.loader.layout import Layout
from ropeway.loader.record import Kind, Part, Plan, Record

_LEAST = 1.0
"""Seconds of work that make a part: what a part costs by itself is to be small beside it, also
where it finds fresh memory."""
_LEAST_FIRST = 0.1
"""The same for a batch that has all workers to itself, and would otherwise keep only one busy."""
_MOST = 4
"""Parts for each worker: more make the wait for a slow sample's neighbours shorter."""
_WEIGHT = 0.2


class Split:
    """A batch in parts."""

    def __init__(self, plan: Plan, layout: Layout, memory: arrays.Array) -> None:
        self.plan = plan
        self.missing: dict[int, Plan] = {}
        """The parts that haven't come yet, in the order of their rows."""
        self._layout, self._memory = layout, memory
        self._columns: dict[int, list[list[Any]]] = {}
        self._spells: list[Spell] = []

    def add(self, part: Plan, noted: Record, others: list[Any]) -> None:
        """Notes a part that has come, and what of it isn't an array."""
        keys = part.keys or []
        if others and part.part is not None:
            self._columns[part.part.first] = others
        self._spells.append(Spell(noted.worker, noted.began, noted.ended, len(keys)))

    def arrival(self) -> Arrival:
        """The batch, when no part is missing."""
        parts = [self._columns[first] for first in sorted(self._columns)]
        others: list[list[Any]] = [
            list(itertools.chain(*columns)) for columns in zip(*parts, strict=True)
        ]
        batch = self._layout.batch(self._memory, others)
        began, ended = min(s.began for s in self._spells), max(s.ended for s in self._spells)
        rows, nbytes, worker = self._layout.rows or 1, self._layout.nbytes, self._spells[0].worker
        spells = tuple(self._spells)
        sequence = self.plan.sequence
        return Arrival(Kind.BATCH, sequence, batch, rows, nbytes, worker, began, ended, spells)


class Splitting:
    """Decides which batches are made in parts: those that take long, once one is known.

    Batches that don't all look alike aren't.
    """

    def __init__(self, workers: int, allowed: bool) -> None:
        self._workers = workers
        self._allowed = allowed and workers > 1
        self._known: bytes | None = None
        self._layouts: dict[int, Layout] = {}
        self._pace = 0.0  # seconds for a row
        self._memories: list[weakref.ref[arrays.Array]] = []

    def learn(self, layout: bytes | None, rows: int, nanoseconds: int) -> None:
        """Notes a batch, or a part without a layout, that has come."""
        if not self._allowed:
            return
        pace = nanoseconds / 1e9 / rows
        if self._known is None:
            self._known, self._pace = layout, pace
        # The first batches take longest, in fresh memory: what is faster counts at once.
        self._pace += (_WEIGHT if pace > self._pace else 1.0) * (pace - self._pace)

    def stop(self) -> None:
        """Says that batches don't all look alike."""
        self._allowed = False

    def split(self, plan: Plan, is_first: bool, sequence: Callable[[], int]) -> Split | None:
        """The batch in parts, which are numbered by `sequence`; None if it is to stay whole.

        The first one is that in front of which no other is on its way.
        """
        keys = plan.keys
        if not self._allowed or self._known is None or keys is None:
            return None
        rows = len(keys)
        least = _LEAST_FIRST if is_first else _LEAST
        parts = min(rows, _MOST * self._workers, int(rows * self._pace / least))
        if parts < 2:
            return None
        layout = self._layout(rows)
        if not layout.nbytes:
            return None
        try:
            memory = arrays.empty((layout.nbytes,), "u1")
        except OutOfMemory:
            return None  # then it's the pool's to say so
        handle = arrays.claim(memory)
        self._memories = [known for known in self._memories if known() is not None]
        self._memories.append(weakref.ref(memory))
        split = Split(plan, layout, memory)
        for number in range(parts):
            first, end = rows * number // parts, rows * (number + 1) // parts
            part = Part(first, rows, self._known, handle)
            each = plan._replace(sequence=sequence(), keys=keys[first:end], part=part)
            split.missing[each.sequence] = each
        return split

    def alive(self) -> int:
        """Counts the batches in parts that are on their way or kept."""
        return sum(known() is not None for known in self._memories)

    def _layout(self, rows: int) -> Layout:
        layout = self._layouts.get(rows)
        if layout is None:
            node = pickle.loads(self._known).node  # type: ignore[arg-type]
            layout = self._layouts[rows] = Layout(node, rows)
        return layout
