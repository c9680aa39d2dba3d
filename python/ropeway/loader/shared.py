"""A loader's work in worker processes: plans go to them in slots, batches come back in the same."""

import contextlib
import os
import pickle
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing import util
from typing import Any

from ropeway import _interrupts, _message
from ropeway._errors import Closed, OutOfMemory, Timeout, WorkerError
from ropeway._pool import Pool
from ropeway.loader import record
from ropeway.loader.crew import Crew
from ropeway.loader.engine import Arrival, Numbers, Work
from ropeway.loader.failure import Failure, samples
from ropeway.loader.layout import Layout
from ropeway.loader.payload import payload
from ropeway.loader.record import Blob, Kind, Plan
from ropeway.loader.roster import Roster
from ropeway.loader.split import Split, Splitting
from ropeway.loader.stats import WorkerEnding
from ropeway.loader.worker import STREAMS, Letter, Task

_SLICE = 0.005
"""Seconds after which a wait looks for workers that have ended,"""
_LOOK = 0.02
"""and for how long nobody looks where no wait takes that long."""
MOST_SLOTS = 65_536
_PATIENCE = 0.1
_REPORT = 2.0
_KEPT_BYTES = 256 << 20
_KEPT_BATCHES = 16
_BRIEF = 500_000
"""Nanoseconds of work on a batch below which"""
_SMALL = 64 << 10
"""and bytes of it below which more are planned ahead."""


_NO_MEMORY = Failure("OutOfMemory", "memory is short", "", "", 0, 0, None, memory=True)


@dataclass
class _Trouble:
    """What is known about the workers that a batch has cost."""

    endings: list[tuple[WorkerEnding, int]] = field(default_factory=list)


class Shared(Numbers):
    """A pool, and workers that fill its slots."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work, self._owner = work, os.getpid()
        self.pool = Pool(
            slots=work.window,
            stages=("plan", "work", "use"),
            max_slots=MOST_SLOTS,
            memory_limit=work.memory_limit,
            repeatable=("work",),
            redeliveries=255,
        )
        self.roster = Roster(work.workers)
        things = (work.dataset, work.collate)
        forked = work.method == "fork"
        task = Task(
            self.pool,
            self.roster,
            None if forked else payload(*things, work.method),
            things if forked else None,
            work.workers,
            work.seed,
            work.retries,
            work.iterable,
        )
        self._task = task
        self._layouts: dict[bytes, Layout] = {}
        self._latest_layout: tuple[bytes, Layout | None] = (b"", None)
        self._plans: dict[int, Plan] = {}
        self._troubles: dict[int, _Trouble] = {}
        self._arrived: dict[int, Any] = {}
        self._dropped: set[int] = set()
        self._splits: dict[int, Split] = {}
        self._parts: dict[int, Split] = {}
        in_rows = work.collate is None and not hasattr(work.dataset, "__getitems__")
        self._splitting = Splitting(work.workers, in_rows and work.memory_limit is None)
        self._most_planned = 0
        self._is_short = False  # of memory
        self._watched = time.monotonic()
        self._warned = False
        self._nbytes = 0
        self._spell = _BRIEF  # nanoseconds of work on a batch, lately
        self._set_window()
        self.closed = False
        self.crew = Crew(task, work.method)
        what = self.pool, self.roster, self.crew
        self._finalizer: Any = util.Finalize(self, _close, what, exitpriority=20)

    # ---- planning ---------------------------------------------------------------------------

    def plan(self, plans: list[Plan]) -> int:
        """Puts plans into free slots; returns how many, as none may be free and none added."""
        self._clear()
        whole: list[Plan] = []
        done = 0
        for plan in plans:
            is_first = not self._plans and not whole
            split = self._splitting.split(plan, is_first, self.sequence)
            if split is None:
                whole.append(plan)
                continue
            published = self._publish(whole)
            done += published
            if published < len(whole) or not self._put(split):
                return done
            whole = []
            done += 1
        return done + self._publish(whole)

    def _put(self, split: Split) -> bool:
        """Puts the parts of a batch into free slots: all, or none."""
        self._splits[split.plan.sequence] = split
        parts = list(split.missing.values())
        self._parts.update((part.sequence, split) for part in parts)
        if self._publish(parts) == len(parts):
            return True
        self.drop([split.plan.sequence])
        return False

    def _publish(self, plans: list[Plan]) -> int:
        """Publishes at once what there are slots for, so that few have to be woken; how many."""
        slots: list[Any] = []
        done = 0
        try:
            for plan in plans:
                slot = self._acquired()
                if slot is None:
                    break
                slots.append(slot)
                slot.meta_bytes = record.plan_bytes(plan)
                slot.number = STREAMS + plan.stream if plan.keys is None else plan.sequence
                self._plans[plan.sequence] = plan
            for slot in slots:
                slot.publish()
                done += 1
        except OutOfMemory:
            pass
        finally:
            for slot, plan in zip(slots, plans, strict=False):
                if not slot.ended:
                    self._plans.pop(plan.sequence, None)
                    slot.release()
        self._most_planned = max(self._most_planned, len(self._plans), self.window)
        self._look_at_kept(max((slot.index for slot in slots), default=0))
        return done

    def _look_at_kept(self, index: int) -> None:
        """Warns, once, if slots had to be added for batches that are kept."""
        if self._warned:
            return
        kept = index - self._most_planned + self._splitting.alive() - len(self._splits)
        if kept > _KEPT_BATCHES:
            self._warn(kept + len(self._splits))

    def _acquired(self) -> Any:
        """A free slot, one that has memory already if memory is short; None if there is none."""
        wanted = self._with_memory() if self._is_short else set()
        if self._is_short and not wanted and self._plans:
            return None  # some will come back
        others: list[Any] = []
        try:
            while True:
                slot = self.pool.acquire(timeout=0)
                if not wanted or slot.index in wanted:
                    return slot
                others.append(slot)
        except Timeout:
            return None
        finally:
            for slot in others:
                slot.release()

    def _with_memory(self) -> set[int]:
        """The free slots that have about as much memory as any."""
        slots = self.pool.status().slots
        much = max(slot.committed for slot in slots) // 2
        return {
            slot.index
            for slot in slots
            if (slot.stage, slot.state) == ("plan", "idle") and slot.committed >= much
        }

    def drop(self, numbers: Iterable[int]) -> None:
        """Takes back plans that nobody has begun; what comes of the others is thrown away."""
        for number in self._with_parts(numbers):
            if self._plans.pop(number, None) is None:
                continue
            lease = self._arrived.pop(number, None)
            if lease is not None:
                _throw_away(lease)
                continue
            self._dropped.add(number)
            with (
                contextlib.suppress(Timeout, Closed),
                self.pool.take("work", write=True, number=number, timeout=0) as lease,
            ):
                lease.meta_bytes = record.result_bytes(Kind.SKIPPED, b"")
                lease.publish()
        self._clear()

    def _with_parts(self, numbers: Iterable[int]) -> list[int]:
        """The numbers of plans, with those of the missing parts for batches in parts."""
        found = []
        for number in numbers:
            split = self._splits.pop(number, None)
            found += [number] if split is None else list(split.missing)
        for number in found:
            self._parts.pop(number, None)
        return found

    def open_run(self) -> int:
        """Begins a run, whose batches are wanted until it is closed."""
        run = next(self._run)
        self._is_short = False
        self._set_window()
        self.roster.open_run(run)
        return run

    def _set_window(self) -> None:
        """Plans far ahead and many at a time where batches take no time: fewer have to be woken.

        Elsewhere two at a time, as long as that leaves one for each worker and one more.
        """
        window, workers = self._work.window, self._work.workers
        if self._spell < _BRIEF and self._nbytes < _SMALL:
            self.window = self._work.most_ahead
            self.refill = self.window // 2
        else:
            self.window = window
            self.refill = window - (2 if window > workers + 2 else 1)

    def tidy(self) -> None:
        """Takes slots out that were added for batches that nobody keeps any more."""
        self.pool.trim(self._most_planned + _KEPT_BATCHES)

    def close_run(self, run: int) -> None:
        """Says that a run's batches aren't wanted any more."""
        self.roster.close_run(run)

    # ---- receiving --------------------------------------------------------------------------

    def receive(self, wanted: Iterable[int], ordered: bool, timeout: float | None) -> Arrival:
        """The first of the batches with these numbers, or any of them, when it's there."""
        now = time.monotonic()
        end = None if timeout is None else now + timeout
        if now - self._watched > _LOOK:
            self._watch()
        while True:
            lease = self._take(wanted, ordered)
            if lease is not None:
                arrival = self._opened(lease)
                if arrival is not None:
                    return arrival
                continue
            self._watch()
            if end is not None and time.monotonic() > end:
                raise Timeout(self._who_is_late(next(iter(wanted)), timeout))

    def _take(self, wanted: Iterable[int], ordered: bool) -> Any:
        if ordered:
            number = next(iter(wanted))
            if number in self._splits:
                number = next(iter(self._splits[number].missing))
            lease = self._arrived.pop(number, None)
            if lease is not None:
                return lease
            try:
                return self.pool.take(write=True, number=number, timeout=_SLICE)
            except Timeout:
                return None
        wanted = self._awaited(wanted)
        for number in wanted:
            if number in self._arrived:
                return self._arrived.pop(number)
        try:
            lease = self.pool.take(write=True, timeout=_SLICE)
        except Timeout:
            return None
        number = lease.number
        if number in self._dropped:
            self._dropped.discard(number)
            _throw_away(lease)
        elif number in wanted:
            return lease
        else:
            self._arrived[number] = lease
        return None

    def _awaited(self, wanted: Iterable[int]) -> Iterable[int]:
        """The numbers of slots to wait for: of batches, or of their missing parts."""
        if not self._splits:
            return wanted
        splits = self._splits
        return [n for k in wanted for n in (splits[k].missing if k in splits else (k,))]

    def _opened(self, lease: Any) -> Arrival | None:
        """What a slot holds; None if that doesn't complete a batch."""
        with lease:
            noted = record.read(lease.meta_bytes)
            number = lease.number
            plan = self._plans.pop(number)
            split = self._parts.pop(number, None)
            kind = Kind.FAILURE if noted.kind in (Kind.DIED, Kind.PLAN) else noted.kind
            try:
                if split is not None and kind in (Kind.BATCH, Kind.MISFIT):
                    return self._joined(split, number, noted, _others(noted, lease))
                batch, rows, nbytes = self._contents(noted, lease, plan)
            except Exception as error:  # it can't be read here; those behind it may
                kind, batch, rows, nbytes = Kind.FAILURE, error, 0, 0
        if isinstance(batch, Failure) and batch.memory:
            self._is_short = True
        self._troubles.pop(number, None)
        if split is not None:  # that one failure is the batch's
            split.missing.pop(number, None)
            number = split.plan.sequence
            self.drop([number])
        self._note_spell(noted)
        return Arrival(kind, number, batch, rows, nbytes, noted.worker, noted.began, noted.ended)

    def _note_spell(self, noted: record.Record) -> None:
        was_brief = self._spell < _BRIEF
        self._spell += (noted.ended - noted.began - self._spell) // 8
        if (self._spell < _BRIEF) != was_brief and not self._is_short:
            self._set_window()

    def _joined(
        self, split: Split, number: int, noted: record.Record, others: list[Any]
    ) -> Arrival | None:
        """The batch, if this was its last part; one whose rows don't fit is planned as a whole."""
        self._troubles.pop(number, None)
        part = split.missing.pop(number)
        batch = split.plan.sequence
        if noted.kind is Kind.BATCH:
            split.add(part, noted, others)
            self._splitting.learn(None, len(part.keys or ()), noted.ended - noted.began)
            if split.missing:
                return None
            del self._splits[batch]
            arrival = split.arrival()
            self._nbytes = arrival.nbytes
            return arrival
        self._splitting.stop()
        self.drop([batch])
        if self._publish([split.plan]):
            return None
        return Arrival(Kind.FAILURE, batch, _NO_MEMORY, 0, 0, noted.worker, 0, 0)

    def _contents(self, noted: record.Record, lease: Any, plan: Plan) -> tuple[Any, int, int]:
        if noted.kind is Kind.BATCH:
            layout = self._layout(noted.layout)
            memory = lease.export("data")[0] if layout.nbytes else None
            others = _others(noted, lease)
            self._nbytes = layout.nbytes
            if layout.rows:
                self._splitting.learn(noted.layout, layout.rows, noted.ended - noted.began)
            batch = layout.batch(memory, others)
            return batch, layout.rows or 1, layout.nbytes
        if noted.kind is Kind.MESSAGE:
            letter: Any = Letter(lease, bytes(noted.rest))
            rows = len(plan.keys) if plan.keys is not None else plan.size
            return _message.read(letter), rows, 0
        if noted.kind is Kind.FAILURE:
            return pickle.loads(noted.rest), 0, 0
        if noted.kind is Kind.DIED:
            return self._fatal(plan), 0, 0
        if noted.kind is Kind.PLAN:
            return _NO_MEMORY, 0, 0
        return None, 0, 0

    def _layout(self, pickled: bytes) -> Layout:
        known, layout = self._latest_layout
        if layout is None or pickled != known:  # as a rule, it's that of the last batch
            layout = self._layouts.get(pickled)
            if layout is None:
                if len(self._layouts) > 64:
                    self._layouts.clear()
                layout = self._layouts[pickled] = pickle.loads(pickled)
            self._latest_layout = pickled, layout
        return layout

    # ---- watching over the workers ----------------------------------------------------------

    def _watch(self) -> None:
        """Notices workers that have ended, and starts others in their places."""
        self._watched = time.monotonic()
        ended = self.crew.ended()
        if ended:
            self.pool.sweep()  # what they held is for others from now on
        for ending, duty in ended:
            if duty.sequence >= 0:
                trouble = self._troubles.setdefault(duty.sequence, _Trouble())
                trouble.endings.append((ending, duty.position))
            self._restore_streams(ending.number)
            try:
                self.crew.replace(ending, duty)
            except BaseException:
                self.close()
                raise

    def _restore_streams(self, number: int) -> None:
        """Finds plans that a dead worker has renumbered but not handed on."""
        if not self._work.iterable:
            return
        for sequence, plan in list(self._plans.items()):
            if plan.stream == number:
                with (
                    contextlib.suppress(Timeout, Closed),
                    self.pool.take("work", write=True, number=sequence, timeout=0) as lease,
                ):
                    lease.number = STREAMS + number

    def _fatal(self, plan: Plan) -> WorkerError:
        """The error for work that has killed too many workers."""
        end = time.monotonic() + _REPORT
        trouble = self._troubles.setdefault(plan.sequence, _Trouble())
        while len(trouble.endings) <= self._work.retries and time.monotonic() < end:
            self._watch()
            time.sleep(0.002)
        keys = plan.keys or []
        endings = trouble.endings
        at = endings[-1][1] if endings else len(keys)
        keys = [keys[at]] if at < len(keys) else keys
        what = samples(keys) if keys else f"stream {plan.stream} behind sample {plan.start}"
        story = "; ".join(str(ending) for ending, _ in endings) or "nothing is known of their ends"
        return WorkerError(
            f"{what} has ended {self._work.retries + 1} workers, and isn't tried again: {story}"
        )

    def _who_is_late(self, number: int, timeout: float | None) -> str:
        text = f"batch number {number} didn't come within {timeout} s"
        now = time.monotonic()
        for worker, pid in self.crew.pids().items():
            duty = self.roster.read(worker)
            if duty.sequence < 0:
                text += f"; worker {worker} (process {pid}) is idle"
                continue
            plan = self._plans.get(duty.sequence)
            keys = plan.keys if plan is not None and plan.keys else []
            what = samples(keys[duty.position : duty.position + 1] or keys)
            split = self._parts.get(duty.sequence)
            batch = duty.sequence if split is None else split.plan.sequence
            text += (
                f"; worker {worker} (process {pid}) has worked on batch number {batch} "
                f"for {now - duty.since:.1f} s, at {what}"
            )
        return text

    def is_here(self) -> bool:
        """Whether this is the process that the engine works for."""
        return self._owner == os.getpid()

    # ---- slots ------------------------------------------------------------------------------

    def _clear(self) -> None:
        """Throws away what came of plans that were dropped."""
        for number in list(self._dropped):
            with contextlib.suppress(Timeout, Closed):
                _throw_away(self.pool.take(write=True, number=number, timeout=0))
                self._dropped.discard(number)

    def kept(self) -> int:
        """Counts the batches that the caller keeps."""
        slots = self.pool.status().slots
        in_slots = sum(slot.stage == "use" and slot.state != "idle" for slot in slots)
        return in_slots + self._splitting.alive() - len(self._splits)

    def _warn(self, slots: int) -> None:
        nbytes = slots * self._nbytes
        if nbytes < _KEPT_BYTES:
            return
        self._warned = True
        warnings.warn(
            f"the loader has added slots: {slots} batches, {nbytes >> 20} MiB in all, are kept. "
            "A batch belongs to you as long as an array of it lives; copy what you want to keep",
            ResourceWarning,
            stacklevel=5,
        )

    def close(self) -> None:
        """Ends the workers; batches that are kept stay."""
        self.closed = True
        leases, self._arrived = self._arrived, {}
        for lease in leases.values():
            _throw_away(lease)
        self._splits, self._parts = {}, {}
        self._finalizer()


def _others(noted: record.Record, lease: Any) -> list[Any]:
    """What isn't an array in a batch: lists, whose large bytes lie in the slot."""
    if not noted.rest:
        return []
    columns: list[Any] = pickle.loads(noted.rest)
    if "blobs" in lease:
        with memoryview(lease.export("blobs")[0]) as memory:
            columns = [
                [bytes(memory[x.begin : x.end]) if type(x) is Blob else x for x in column]
                for column in columns
            ]
    return columns


def _throw_away(lease: Any) -> None:
    with lease:
        noted = record.read(lease.meta_bytes)
        if noted.kind is Kind.MESSAGE:
            letter: Any = Letter(lease, bytes(noted.rest))
            _message.discard(letter)


def _close(pool: Pool, roster: Roster, crew: Crew) -> None:
    with _interrupts.quiet_at_exit():
        roster.close_runs()
        with contextlib.suppress(Closed):
            pool.abort()
        crew.stop(_PATIENCE)
        pool.sweep()
