"""A loader's work in the caller's own process."""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from ropeway._extent import address
from ropeway.loader import info
from ropeway.loader.engine import Arrival, Numbers, Work
from ropeway.loader.fetch import Fetcher, Result
from ropeway.loader.record import Kind, Plan
from ropeway.loader.roster import Progress
from ropeway.loader.seeds import GlobalState, Seeds

_ALIGNMENT = 64


class Local(Numbers):
    """The caller's own process: makes a batch when it is asked for."""

    window = refill = 1
    closed = False

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._seeds = Seeds(work.seed, eager=True)
        about = info.WorkerInfo(0, 1, work.dataset, work.seed, self._seeds)
        self._fetcher = Fetcher(work.dataset, work.collate, about, self._seeds)
        self._about = about
        self._plans: dict[int, Plan] = {}

    def plan(self, plans: list[Plan]) -> int:
        """Notes the plans."""
        self._plans.update((plan.sequence, plan) for plan in plans)
        return len(plans)

    def receive(self, wanted: Iterable[int], ordered: bool, timeout: float | None) -> Arrival:
        """Makes the batch; the global generators of random numbers are as before afterwards."""
        plan = self._plans[next(iter(wanted))]
        began = time.monotonic_ns()
        slot = _Heap()
        nbytes = 0
        try:
            result = self._filled(plan, slot)
            batch = slot.sent
            if result.layout is not None:
                batch = result.layout.batch(slot.data, slot.others)
                nbytes = result.layout.nbytes
        except Exception as error:
            result = Result(Kind.FAILURE)
            batch = _unending(error)
        del self._plans[plan.sequence]
        ended = time.monotonic_ns()
        return Arrival(result.kind, plan.sequence, batch, result.samples, nbytes, 0, began, ended)

    def _filled(self, plan: Plan, slot: "_Heap") -> Result:
        state, before = GlobalState(), info.worker_info()
        info.enter(self._about)
        try:
            return self._fetcher.fill(plan, slot, Progress([0], [1]))
        finally:
            info.enter(before)
            state.restore()

    def drop(self, numbers: Iterable[int]) -> None:
        """Forgets plans."""
        for number in numbers:
            self._plans.pop(number, None)

    def open_run(self) -> int:
        """Begins a run."""
        return next(self._run)

    def tidy(self) -> None:
        """Does nothing."""

    def close_run(self, run: int) -> None:
        """Does nothing."""

    def is_here(self) -> bool:
        """Whether this is the process that the engine works for."""
        return True

    def kept(self) -> int:
        """Unknown here, and no matter."""
        return 0

    def close(self) -> None:
        """Does nothing."""


def _unending(error: Exception) -> Exception:
    """The error itself, or another for one that would end the loop over the batches."""
    if not isinstance(error, StopIteration):
        return error
    instead = RuntimeError(f"the dataset raised StopIteration: {error}")
    instead.__cause__ = error
    return instead


class _Heap:
    """Where a batch goes that stays in this process."""

    def __init__(self) -> None:
        self.data: Any = None
        self.sent: Any = None
        self.others: list[Any] = []

    def memory(self, nbytes: int) -> Any:
        """Memory for the rows, aligned as a slot's is."""
        data = np.empty(nbytes + _ALIGNMENT, "u1")
        start = -address(data) % _ALIGNMENT
        self.data = data[start : start + nbytes]
        return self.data

    def lists(self, columns: list[list[Any]]) -> bytes:
        """Notes the lists themselves."""
        self.others = columns
        return b""

    def keep(self, thing: Any) -> bytes:
        """Keeps an object as it is."""
        self.sent = thing
        return b""
