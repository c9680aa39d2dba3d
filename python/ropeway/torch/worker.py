"""A worker of the drop-in: what torch's own does, on slots."""

import contextlib
import gc
import os
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from torch._utils import ExceptionWrapper
from torch.utils.data import IterDataPipe, _utils
from torch.utils.data.dataloader import _DatasetKind
from torch.utils.data.graph_settings import apply_random_seed

from ropeway import _interrupts
from ropeway._errors import Closed, InUse, Timeout
from ropeway._pool import Pool
from ropeway.loader import heap, life
from ropeway.loader.failure import samples
from ropeway.loader.roster import Roster
from ropeway.loader.worker import die
from ropeway.torch import parcel, task
from ropeway.torch.berth import Berth
from ropeway.torch.chance import Notes
from ropeway.torch.rows import Fetcher
from ropeway.torch.task import Kind, Record

_NO_FETCHER = "cannot access local variable 'fetcher' where it is not associated with a value"


@dataclass(frozen=True)
class Job:
    """What a worker is started with."""

    pool: Pool
    roster: Roster
    notes: Notes
    retries: int
    arguments: dict[str, Any]
    """Those of torch's `_worker_loop`, by name."""
    keys: Any
    """What an iterable dataset's worker is given for keys."""
    begun: bool = False
    """Whether this one is in the place of a dead worker that had begun,"""
    waiting: list[tuple[int, bool]] = field(default_factory=list)
    """the tasks that one may have left, and whether each begins an epoch,"""
    next: int = 0
    """the number of the task behind them,"""
    fetched: int = 0
    """and how many batches of its epoch were fetched before them."""


def serve(charge: life.Charge) -> None:
    """A worker's whole life."""
    life.depend(charge.reader)
    _interrupts.ignore()
    heap.keep()
    with contextlib.suppress(Closed):
        _Worker(charge.task).serve()
    with contextlib.suppress(AttributeError):
        _utils.worker._worker_info = None


class _Worker:
    def __init__(self, job: Job) -> None:
        self._job = job
        the = job.arguments
        self._number: int = the["worker_id"]
        self._kind, self._dataset = the["dataset_kind"], the["dataset_holder"].pop()
        self._iterable = self._kind == _DatasetKind.Iterable
        self._row = job.roster.row(self._number)
        self._note = job.notes.of(self._number)
        self._berth = Berth()
        self._ended = False
        self._where = f"in DataLoader worker process {self._number}"
        self._untold: Any = None
        """An error from before the first batch, until that is asked for."""
        self._fetcher: Any = None
        self._rng = torch.Generator()
        self._begin()
        self._row.arrive(os.getpid())

    def _begin(self) -> None:
        """What torch does before the first task."""
        the, number = self._job.arguments, self._number
        _utils.signal_handling._set_worker_signal_handlers()
        torch.multiprocessing._set_thread_name("pt_data_worker")
        torch.set_num_threads(1)
        seed = the["base_seed"] + number
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(_utils.worker._generate_state(the["base_seed"], number))
        self._shuffle(the.get("shared_seed"))
        _utils.worker._worker_info = _utils.worker.WorkerInfo(
            id=number, num_workers=the["num_workers"], seed=seed, dataset=self._dataset
        )
        try:
            if the["init_fn"] is not None:
                the["init_fn"](number)
        except Exception as error:
            self._untold = self._wrapped(error)
        else:
            self._make_fetcher()

    def _shuffle(self, seed: Any) -> None:
        if isinstance(self._dataset, IterDataPipe):
            self._rng.manual_seed(seed)
            self._dataset = apply_random_seed(self._dataset, self._rng)

    def _make_fetcher(self) -> None:
        the = self._job.arguments
        self._fetcher = None
        try:
            theirs = _DatasetKind.create_fetcher(
                self._kind,
                self._dataset,
                the["auto_collation"],
                the["collate_fn"],
                the["drop_last"],
            )
        except Exception as error:  # of the dataset's `__iter__`
            self._untold = self._wrapped(error)
            return
        self._fetcher = Fetcher(
            theirs, the["collate_fn"], self._berth, self._row.at, self._iterable
        )

    # ---- tasks --------------------------------------------------------------------------------

    def serve(self) -> None:
        """Does tasks until there are no more."""
        lease, number = self._first()
        while True:
            with lease:
                try:
                    goes_on = self._handle(lease, number, task.read(lease.meta_bytes))
                except Closed:
                    raise
                except BaseException:
                    die()
            del lease
            if not goes_on:
                return
            number += 1
            lease = self._take(number, None)

    def _first(self) -> tuple[Any, int]:
        """The first task that is left; a worker that has died may have done some."""
        fetched = self._job.fetched
        for number, begins_epoch in self._job.waiting:
            with contextlib.suppress(Timeout):
                lease = self._take(number, 0)
                self._catch_up(number, fetched)
                return lease, number
            fetched = 0 if begins_epoch else fetched + 1
        self._catch_up(self._job.next, fetched)
        return self._take(self._job.next, None), self._job.next

    def _take(self, number: int, timeout: float | None) -> Any:
        return self._job.pool.take(
            "work", write=True, number=task.address(self._number, number), timeout=timeout
        )

    def _catch_up(self, number: int, fetched: int) -> None:
        """Brings generators and stream to where the worker before was when it began this task."""
        if not self._job.begun:
            return
        if number > 0:
            self._untold = None
        with contextlib.suppress(Exception):
            if self._note.restore_epoch():
                self._make_fetcher()
            for _ in range(fetched if self._iterable else 0):
                self._pass_over()
        if fetched > 0:  # it was told with the first of them
            self._untold = None
        self._note.restore(number)

    def _pass_over(self) -> None:
        """Reads what the worker before has read already."""
        try:
            self._fetch(self._job.keys)
        except StopIteration:
            self._ended = True
        except Exception:
            return

    def _handle(self, lease: Any, number: int, record: Record) -> bool:
        item = record.item()
        if record.kind is not Kind.TASK:  # a worker has died just before it handed this on
            self._redo(number, item)
        else:
            self._row.begin(number)
            if lease.deliveries > self._job.retries:
                lease.meta_bytes = task.result_bytes(Kind.DEADLY, record)
            else:
                self._answer(lease, number, record, item)
            self._row.end(1)
        self._hand_on(lease)
        self._row.rest()
        return item is not None

    def _redo(self, number: int, item: Any) -> None:
        """Leaves this worker as if it had done a task that is done."""
        if isinstance(item, _utils.worker._ResumeIteration):
            self._resume(number, item)
        elif self._untold is not None:
            self._untold = None
        elif self._iterable and item is not None:
            self._pass_over()
        self._note.restore(number + 1)

    def _answer(self, lease: Any, number: int, record: Record, item: Any) -> None:
        if item is None:
            lease.meta_bytes = task.result_bytes(Kind.NOTHING, record)
        elif isinstance(item, _utils.worker._ResumeIteration):
            self._resume(number, item)
            self._send(lease, record, (item, None))
        elif self._ended:
            lease.meta_bytes = task.result_bytes(Kind.NOTHING, record)
        else:
            index, keys = item
            self._berth.begin(lease)
            data = self._fetched(keys)
            self._note.save(number)
            self._send(lease, record, (index, data))

    def _resume(self, number: int, item: Any) -> None:
        """Begins an epoch, as workers that persist do."""
        self._ended = False
        self._note.begin_epoch(number)
        self._shuffle(item.seed)
        self._make_fetcher()

    def _fetched(self, keys: Any) -> Any:
        untold, self._untold = self._untold, None
        if untold is not None:
            return untold
        try:
            return self._fetch(keys)
        except StopIteration as error:
            if self._iterable:
                self._ended = True
                return _utils.worker._IterableDatasetStopIteration(self._number)
            return self._wrapped(error, keys)
        except BaseException as error:
            return self._wrapped(error, keys)

    def _fetch(self, keys: Any) -> Any:
        """Reads a batch; without a fetcher, it is torch's error for want of one."""
        if self._fetcher is None:
            raise UnboundLocalError(_NO_FETCHER)
        return self._fetcher.fetch(keys)

    def _send(self, lease: Any, record: Record, answer: tuple[Any, Any]) -> None:
        try:
            result = parcel.pack(answer, self._berth)
        except BaseException as error:
            wrapped = self._wrapped(error, record.item()[1])
            result = parcel.pack((answer[0], wrapped), Berth())
        lease.meta_bytes = task.result_bytes(Kind.RESULT, record, result)

    def _wrapped(self, error: BaseException, keys: Any = None) -> Any:
        """An exception on its way to the parent, as something that can be raised there."""
        keys = list(keys) if isinstance(keys, list | tuple) else [] if keys is None else [keys]
        if not self._iterable and keys:
            place = self._row.position
            named = [keys[place]] if place < len(keys) else keys
            with contextlib.suppress(Exception):
                error.add_note(f"at {samples(named)}")
        wrapper = ExceptionWrapper((type(error), error, error.__traceback__), self._where)
        error.__traceback__ = None  # it holds views of the slot
        return _sendable(wrapper)

    # ---- handing on ---------------------------------------------------------------------------

    def _hand_on(self, lease: Any) -> None:
        """Hands the slot on; who has kept a view of it finds it elsewhere from now on."""
        for remedy in (self._berth.move_out, gc.collect, _nothing):
            try:
                lease.publish()
                break
            except InUse:
                if remedy is _nothing:
                    raise
                remedy()
        self._berth.end()


def _nothing() -> None:
    """No remedy."""


def _sendable(wrapper: Any) -> Any:
    """Makes the parent raise a RuntimeError for what it can't raise, or what can't get there."""
    if not _travels(wrapper):
        wrapper.exc_type = _Unraisable(wrapper.exc_type.__name__)
    return wrapper


def _travels(wrapper: Any) -> bool:
    """Whether the parent will raise what this wraps, or torch's RuntimeError in its place."""
    kind = wrapper.exc_type
    if not issubclass(kind, Exception):
        return False
    try:
        parcel.pack(wrapper, Berth())
    except Exception:
        return False
    try:
        wrapper.reraise()
    except (kind, RuntimeError):
        return True
    except Exception:  # of a type that takes no `message` though it has one
        return False
    return False


class _Unraisable:
    """Stands for an exception's type that the parent can't raise; torch makes a RuntimeError."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_: object) -> Any:
        raise TypeError(f"{self.__name__} can't be raised here")
