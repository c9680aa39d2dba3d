"""A worker: takes plans, fills slots, hands them on."""

import atexit
import contextlib
import gc
import os
import pickle
import sys
import weakref
from dataclasses import dataclass
from typing import Any, NoReturn

from ropeway import _interrupts, _message
from ropeway._errors import Closed, Gone, InUse, Invalid, OutOfMemory, Timeout
from ropeway._pool import Pool
from ropeway.loader import heap, info, life, record
from ropeway.loader.failure import failure, samples
from ropeway.loader.fetch import Fetcher, Result, Skip
from ropeway.loader.layout import Layout
from ropeway.loader.payload import Payload
from ropeway.loader.record import Blob, Kind, Part, Plan
from ropeway.loader.roster import Roster, Row
from ropeway.loader.seeds import Seeds

_LARGE = 16 << 10
STREAMS = 1 << 63
"""Plans for an iterable dataset have this plus the worker's number until they are done."""


@dataclass
class Task:
    """What a worker is started with."""

    pool: Pool
    roster: Roster
    payload: Payload | None
    """The dataset, pickled,"""
    things: tuple[Any, Any] | None
    """or, for workers forked from the parent, as it is."""
    workers: int
    seed: int
    retries: int
    iterable: bool

    def load(self) -> Any:
        """Dataset and collate function."""
        if self.payload is not None:
            return self.payload.load()
        return self.things


def serve(number: int, reader: int, task: Task) -> None:
    """A worker's whole life."""
    life.depend(reader)
    _interrupts.ignore()
    heap.keep()
    with contextlib.suppress(Closed):
        _Worker(number, task).serve()


def leave() -> NoReturn:
    """Ends a forked process as a normal exit does, but without taking the interpreter down."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


def die() -> NoReturn:
    """Ends a process for an exception that nobody has foreseen.

    It doesn't give back what it holds, so that this counts as a death: there is a limit to those.
    """
    import traceback

    try:
        traceback.print_exc()
    finally:
        os._exit(1)


class _Worker:
    def __init__(self, number: int, task: Task) -> None:
        self._number, self._task = number, task
        self._row = task.roster.row(number)
        self._fetcher: Fetcher | None = None
        self._layouts: dict[int, tuple[Layout, bytes]] = {}
        self._part_layouts: dict[tuple[bytes, int], Layout] = {}
        self._rows: weakref.ref[Any] | None = None
        """The memory of the last part; nobody has views of it any more when it is handed on."""
        self._broken: BaseException | None = None
        try:
            self._prepare()
        except BaseException as error:
            self._broken = error
        self._row.arrive(os.getpid())

    def _prepare(self) -> None:
        task = self._task
        dataset, collate = task.load()
        seeds = Seeds(task.seed)
        about = info.WorkerInfo(self._number, task.workers, dataset, task.seed, seeds)
        info.enter(about)
        self._fetcher = Fetcher(dataset, collate, about, seeds)

    def serve(self) -> None:
        """Works until the pool is closed."""
        number = STREAMS + self._number if self._task.iterable else None
        while True:
            lease = self._task.pool.take("work", write=True, number=number)
            with lease:
                try:
                    self._handle(lease)
                except Closed:
                    raise
                except BaseException:
                    die()

    def _handle(self, lease: Any) -> None:
        noted = record.read(lease.meta_bytes)
        plan = record.read_plan(noted)
        began = self._row.begin(plan.sequence)
        samples = 0
        if noted.kind is Kind.PLAN:  # else a worker has died just before it handed this on
            kind, layout, rest, samples = self._work(lease, plan)
            times = began, self._row.end(samples)
            lease.meta_bytes = record.result_bytes(
                kind, noted.plan, layout, rest, self._number, times
            )
            if self._keeps_rows():
                self._refuse_views(lease, noted.plan, plan)
        lease.number = plan.sequence
        self._publish(lease, noted.plan, plan)
        self._row.rest()

    def _work(self, lease: Any, plan: Plan) -> tuple[Kind, bytes, bytes, int]:
        if lease.deliveries > self._task.retries:
            return Kind.DIED, b"", b"", 0
        if not self._row.wanted(plan.run):
            return Kind.SKIPPED, b"", b"", 0
        try:
            if self._broken is not None:
                raise self._broken
            result = self._filled(lease, plan)
        except Skip:
            return Kind.SKIPPED, b"", b"", 0
        except BaseException as error:
            return Kind.FAILURE, b"", self._failure(error, plan), 0
        return result.kind, self._layout_bytes(result), result.rest, result.samples

    def _filled(self, lease: Any, plan: Plan) -> Result:
        fetcher: Any = self._fetcher
        progress = self._row.progress(plan.run)
        if plan.part is None:
            return fetcher.fill(plan, _Slot(lease), progress)  # type: ignore[no-any-return]
        try:
            memory = pickle.loads(plan.part.memory)
        except Gone:
            raise Skip from None
        self._rows = weakref.ref(memory)
        layout = self._part_layout(plan.part)
        return fetcher.fill_part(  # type: ignore[no-any-return]
            plan, layout, memory, _Slot(lease), progress
        )

    def _part_layout(self, part: Part) -> Layout:
        known = self._part_layouts.get((part.layout, part.rows))
        if known is None:
            if len(self._part_layouts) > 64:
                self._part_layouts.clear()
            known = Layout(pickle.loads(part.layout).node, part.rows)
            self._part_layouts[part.layout, part.rows] = known
        return known

    def _keeps_rows(self) -> bool:
        """Whether somebody here still has views of the rows of the last part."""
        rows, self._rows = self._rows, None
        if rows is None or rows() is None:
            return False
        gc.collect()
        return rows() is not None

    def _layout_bytes(self, result: Result) -> bytes:
        layout = result.layout
        if layout is None or self._rows is not None:
            return b""
        known = self._layouts.get(id(layout))
        if known is None or known[0] is not layout:
            if len(self._layouts) > 64:
                self._layouts.clear()
            known = self._layouts[id(layout)] = layout, _dumps(layout)
        return known[1]

    def _failure(self, error: BaseException, plan: Plan) -> bytes:
        keys, place = plan.keys or [], self._row.position
        what = samples(keys[place : place + 1] or keys)
        if error is self._broken:
            what = "the dataset itself"
        said = failure(error, what, self._number, os.getpid())
        error.__traceback__ = None  # it holds views of the slot
        return pickle.dumps(said, protocol=5)

    def _publish(self, lease: Any, plan_bytes: bytes, plan: Plan) -> None:
        """Hands the slot on, unless the dataset has kept views of it."""
        try:
            lease.publish()
            return
        except OutOfMemory:
            self._publish_plan(lease, plan)
            return
        except InUse:
            gc.collect()
        try:
            lease.publish()
        except InUse:
            self._refuse_views(lease, plan_bytes, plan)

    def _refuse_views(self, lease: Any, plan_bytes: bytes, plan: Plan) -> NoReturn:
        """Says so and ends this process, as only so do the views go."""
        error = Invalid(
            "the dataset keeps views of the rows that it was given to write to; they belong "
            "to it only until __getitem_into__ returns"
        )
        lease.meta_bytes = record.result_bytes(
            Kind.FAILURE, plan_bytes, b"", self._failure(error, plan), self._number
        )
        lease.number = plan.sequence
        with contextlib.suppress(InUse):
            lease.publish()  # if not handed on, then written: the next worker does it
        os._exit(1)

    def _publish_plan(self, lease: Any, plan: Plan) -> None:
        """Hands a slot on as it came, as there is no memory even for saying why."""
        number = STREAMS + plan.stream if plan.keys is None else plan.sequence
        lease.number = number
        lease.release()
        with (
            contextlib.suppress(Timeout),  # then another worker tries
            self._task.pool.take("work", write=True, number=number, timeout=0) as again,
        ):
            again.number = plan.sequence
            again.publish()


class _Slot:
    """Where a worker's batch goes."""

    def __init__(self, lease: Any) -> None:
        self._lease = lease

    def memory(self, nbytes: int) -> Any:
        """Memory for the rows."""
        if not nbytes:
            return None
        self._lease.add_field("data", "|u1", 1, (nbytes,))
        return self._lease.export("data")[0]

    def keep(self, thing: Any) -> bytes:
        """Puts an object in, its arrays out of band; returns what it takes to read it."""
        message = _message.Message(thing)
        try:
            letter = Letter(self._lease)
            message.write(letter)  # type: ignore[arg-type]
            return letter.meta_bytes
        except BaseException:
            message.withdraw()
            raise

    def lists(self, columns: list[list[Any]]) -> bytes:
        """Puts lists in, their large bytes behind the rows, so that no pickle copies them."""
        blobs: list[bytes] = []
        end = 0
        for column in columns:
            for place, item in enumerate(column):
                if type(item) is bytes and len(item) >= _LARGE:
                    blobs.append(item)
                    column[place] = Blob(end, end + len(item))
                    end += len(item)
        if blobs:
            self._lease.add_field("blobs", "|u1", 1, (end,))
            with memoryview(self._lease.export("blobs")[0]) as memory:
                at = 0
                for blob in blobs:
                    memory[at : at + len(blob)] = blob
                    at += len(blob)
        return pickle.dumps(columns, protocol=5)


class Letter:
    """A lease, to a message, whose metadata are a part of the slot's."""

    def __init__(self, lease: Any, meta: bytes = b"") -> None:
        self.meta_bytes = meta
        self.add_field, self.export, self.keys = lease.add_field, lease.export, lease.keys


def _dumps(thing: Any) -> bytes:
    """Pickles, with cloudpickle what that has brought here: classes of the main module."""
    try:
        return pickle.dumps(thing, protocol=5)
    except Exception:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]

        return bytes(cloudpickle.dumps(thing, protocol=5))


__all__ = ["STREAMS", "Letter", "Row", "Task", "die", "leave", "serve"]
