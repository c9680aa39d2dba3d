"""The loader."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sized
from typing import Any, Literal, Self

from ropeway._exit import quiet_for_daemons
from ropeway.loader import arguments, crew, stats, zygote
from ropeway.loader.engine import Work, out_of_memory
from ropeway.loader.epoch import Epoch, KeyCourse, Position, StreamCourse
from ropeway.loader.failure import Failure
from ropeway.loader.fetch import as_lists, as_they_are
from ropeway.loader.local import Local
from ropeway.loader.order import BatchSamplerOrder, IndexOrder, Order, SamplerOrder
from ropeway.loader.record import Kind
from ropeway.loader.shared import MOST_SLOTS, Shared

Collate = Callable[[list[Any]], Any] | Literal["list"] | None
"""What makes a batch of samples."""

_MOST_RETRIES = 6
_MOST_WORKERS = 1024
_AHEAD = 16
"""How many times as many batches are made ahead if they take no time: so workers rarely sleep."""


class Loader:
    """Reads samples of a dataset in worker processes, straight into the rows of shared batches.

    A batch has the structure of a sample (dicts, lists, tuples, named tuples, dataclasses, nested;
    types are kept), with a batch axis in front: arrays and numbers become NumPy arrays, strings,
    bytes and other objects become lists, None stays None. The arrays are views of shared memory;
    a batch belongs to the caller as long as any of them lives, also after `close`.

    A dataset has `__getitem__` and `__len__`, or is iterable. `__getitems__(keys)` reads a batch
    at once; `__getitem_into__(key, out)` writes a sample into `out`, which has the structure of a
    sample with arrays that are the rows of the batch; its first one each worker reads with
    `__getitem__` before, to see what samples look like. `set_epoch(epoch)`, where there is one, is
    called in each worker. Random numbers (`random`, `numpy.random`, torch's, `worker_info().rng`)
    depend on seed, epoch and key of a sample alone.

    Workers have the dataset as it was when they started; they start again with an epoch for which
    its length has changed, and after `close`. What an iterable dataset gives is to be the same each
    time, as far as a state is to be gone on with.

    A worker that dies is replaced, and what it was doing is done again. Workers keep up to 64 MiB
    that samples have freed, unless the environment has a say in that (`MALLOC_TRIM_THRESHOLD_`).
    """

    _engine: Any
    _owner: int
    _meter: stats.Meter
    _epoch: int
    """The epoch of the next iterator,"""
    _position: Position
    """and where in it that one begins."""
    _at: int
    """The epoch of the latest iterator,"""
    _course: Any
    """and how far it has come; None if it's at its end."""
    _latest: Callable[[], Epoch | None]
    _primed: Epoch | None
    _habitual: bool
    """Whether an epoch has been read to its end."""
    _bar: Any

    @quiet_for_daemons
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 64,
        workers: int = 2,
        shuffle: bool = False,
        seed: int | None = None,
        drop_last: bool = False,
        ordered: bool = True,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Iterable[Any]] | None = None,
        collate: Collate = None,
        start_method: str | None = None,
        retries: int = 2,
        progress: bool = False,
        *,
        timeout: float | None = None,
        prefetch: int | None = None,
        memory_limit: int | None = None,
    ) -> None:
        """Makes a loader; workers start with the first iterator, and live until `close`.

        `batch_size=None` hands out single samples. `workers=0` works in this process. Without a
        `seed` one is drawn. `ordered=False` hands batches out as they get ready. `collate` is a
        function of a list of samples, or "list" for lists of samples' arrays where shapes differ.
        `start_method` is None (workers are forked from a warm, small process), "fork", "spawn" or
        "forkserver". A sample that ends `retries` + 1 workers is an error. `timeout` bounds the
        wait for a batch, in seconds. `prefetch` is the number of batches that are made ahead,
        2 * workers + 2 if it isn't given, and more if they take no time; `memory_limit` bounds
        the bytes of all batches.

        Raises TypeError and ValueError for arguments that can't be.
        """
        self.dataset = dataset
        self.workers = arguments.count("workers", workers, 0, _MOST_WORKERS)
        self.batch_size = (
            None if batch_size is None else arguments.count("batch_size", batch_size, 1)
        )
        self.shuffle, self.drop_last, self.ordered = bool(shuffle), bool(drop_last), bool(ordered)
        self.sampler, self.batch_sampler, self.collate = sampler, batch_sampler, collate
        self.seed = int.from_bytes(os.urandom(7)) if seed is None else arguments.index("seed", seed)
        self.start_method = arguments.method(start_method)
        self.retries = arguments.count("retries", retries, 0, _MOST_RETRIES)
        self.progress, self.timeout, self.memory_limit = bool(progress), timeout, memory_limit
        self.prefetch = (
            2 * self.workers + 2
            if prefetch is None
            else arguments.count("prefetch", prefetch, 1, MOST_SLOTS)
        )
        self._adaptive = prefetch is None
        self._iterable = arguments.is_iterable(dataset)
        arguments.check(self)
        self._order = None if self._iterable else self._make_order()
        self._begin()
        if self.workers and self.start_method == "zygote":
            crew.check_allowed(self.start_method)
            self._warm = zygote.Zygote.get()  # imports NumPy while the program does other things

    # ---- iterating --------------------------------------------------------------------------

    @quiet_for_daemons
    def __iter__(self) -> Epoch:
        """Begins the next epoch, or goes on with the one of a state that was loaded."""
        if self._owner != os.getpid():
            self._begin()  # a forked child works on its own
        with self._beginning:
            self._follow_length()
            engine = self._started()
            self._meter.start()
            position, self._position = self._position, {}
            iterator = self._primed_for(self._epoch, position)
            if iterator is None:
                iterator = Epoch(engine, self._make_course(self._epoch, position))
            iterator.begin(self)
            self._latest = weakref.ref(iterator)
            self._course = iterator.course
            self._bar = self._make_bar(self._course)
            self._at, self._epoch = self._epoch, self._epoch + 1
        return iterator

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        if not self._iterable:
            return len(self._make_order())
        try:
            samples = len(self.dataset)
        except TypeError:
            raise TypeError("this loader's dataset is iterable and has no length") from None
        size = self.batch_size or 1
        return samples // size if self.drop_last else -(-samples // size)

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next iterator is for."""
        self._epoch = arguments.count("epoch", epoch, 0)
        self._position = {}
        self._course = None

    @quiet_for_daemons
    def close(self) -> None:
        """Ends the workers; batches that were handed out stay. A new iterator starts new ones."""
        engine, self._engine = self._engine, None
        iterator, self._primed = self._latest(), None
        if engine is not None and engine.is_here():
            engine.close()
        if iterator is not None:
            iterator.close()
        self._close_bar()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- state ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: seed, epoch, and the batches of it that were handed out.

        Plain data of some hundred bytes. What was read ahead counts as not taken.
        """
        state: dict[str, Any] = {"version": arguments.STATE_VERSION, "seed": self.seed}
        if self._course is not None:
            state |= {"epoch": self._at, "position": self._course.position()}
        else:
            state |= {"epoch": self._epoch, "position": self._position}
        state |= {"batch_size": self.batch_size, "shuffle": self.shuffle}
        if isinstance(self.dataset, Sized):
            state["length"] = len(self.dataset)
        if self._iterable:
            state["workers"] = self.workers
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iterator go on where another loader was; any number of workers may.

        Raises ValueError if the state isn't one of a loader like this.
        """
        arguments.check_state(state)
        for name, mine in (
            ("batch_size", self.batch_size),
            ("shuffle", self.shuffle),
            ("length", len(self.dataset) if isinstance(self.dataset, Sized) else None),
            ("workers", self.workers if self._iterable else None),
        ):
            if name in state and mine is not None and state[name] != mine:
                raise ValueError(
                    f"the state is of a loader with {name} {state[name]}, this one has {mine}"
                )
        if state["seed"] != self.seed:
            self.close()
            self.seed = state["seed"]
            if not self._iterable:
                self._order = self._make_order()
        self._epoch, self._position = state["epoch"], dict(state["position"])
        self._course = None

    # ---- looking at it ----------------------------------------------------------------------

    def stats(self) -> stats.LoaderStats:
        """How the loader has been doing since its first batch was asked for."""
        return self._meter.stats(self._engine, self.workers)

    def trace(self, path: "str | os.PathLike[str]") -> None:
        """Writes the timeline of the last batches, for chrome://tracing or Perfetto."""
        self._meter.write(path)

    def __repr__(self) -> str:
        state = "not started" if self._engine is None else f"epoch {self._at}"
        return (
            f"<ropeway.Loader of {type(self.dataset).__name__}, batches of {self.batch_size}, "
            f"{self.workers} workers, {state}>"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the arguments; the copy starts afresh, where this one is."""
        state = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {"arguments": state, "adaptive": self._adaptive, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state["arguments"])
        self._adaptive = state["adaptive"]
        self._iterable = arguments.is_iterable(self.dataset)
        self._order = None if self._iterable else self._make_order()
        self._begin()
        self.load_state_dict(state["state"])

    # ---- for its iterators ------------------------------------------------------------------

    def _next(self, iterator: Epoch) -> Any:
        """What `next(iterator)` gives."""
        asked = time.monotonic_ns()
        try:
            arrival = iterator.next(self.ordered, self.timeout)
        except StopIteration:
            if self._course is iterator.course:
                self._course = None  # the state is now that of the next epoch
                self._habitual = True
                self._close_bar()
            raise
        if arrival.kind is Kind.FAILURE:
            self._fail(arrival.batch)
        if self._iterable and self._is_dropped(arrival):
            return self._next(iterator)
        self._meter.count(arrival, asked)
        if iterator.is_planned:
            self._prime(iterator)
        if self._bar is not None:
            self._bar.update()
            self._bar.set_postfix_str(self.stats().verdict, refresh=False)
        return arrival.batch

    def _prime(self, iterator: Epoch) -> None:
        """Plans the next epoch while the last batches of this one are read.

        Only for who has read an epoch to its end before: others may not want a next one.
        """
        order, engine = self._order, self._engine
        if not self._habitual or order is None or not order.repeatable or not self.workers:
            return
        with self._beginning:  # another thread may begin that epoch now
            if self._primed is None and iterator.course is self._course:
                self._primed = Epoch(engine, KeyCourse(order, self._epoch, {}))
            if self._primed is not None:
                self._primed.plan(engine.window - iterator.in_flight)

    def _primed_for(self, epoch: int, position: dict[str, Any]) -> Epoch | None:
        """The epoch that was planned ahead, if it is the one that is wanted."""
        primed, self._primed = self._primed, None
        if primed is not None and (primed.course.epoch != epoch or position):
            primed.close()
            return None
        return primed

    def _fail(self, found: Any) -> None:
        if isinstance(found, Failure):
            if found.memory:
                raise out_of_memory(found, self._engine)
            found.throw()
        raise found

    def _is_dropped(self, arrival: Any) -> bool:
        """Whether this is the short last batch of a stream, which is to be left out."""
        size = self.batch_size
        return self.drop_last and size is not None and arrival.samples < size

    # ---- making it --------------------------------------------------------------------------

    def _begin(self) -> None:
        """Puts the loader where nothing has happened yet."""
        self._owner = os.getpid()
        self._beginning = threading.RLock()
        self._engine = None
        self._epoch = self._at = 0
        self._position = {}
        self._course = self._primed = self._bar = None
        self._latest = _nothing
        self._habitual = False
        self._meter = stats.Meter()

    def _follow_length(self) -> None:
        """Starts over if the dataset's length has changed: the workers know it as it was."""
        order = self._order
        if isinstance(order, IndexOrder) and order.length != len(self.dataset):
            self.close()
            self._order = self._make_order()

    def _started(self) -> Any:
        if self._engine is None or self._engine.closed:
            collate: Any = self.collate
            if self.batch_size is None and self.batch_sampler is None and collate is None:
                collate = as_they_are
            work = Work(
                self.dataset,
                as_lists if collate == "list" else collate,
                self._iterable,
                self.workers,
                self.prefetch,
                self.prefetch * (_AHEAD if self._adaptive else 1),
                self.seed,
                self.retries,
                self.start_method,
                self.memory_limit,
            )
            crew.check_allowed(self.start_method if self.workers else "zygote")
            self._engine = Shared(work) if self.workers else Local(work)
        return self._engine

    def _make_course(self, epoch: int, position: dict[str, Any]) -> KeyCourse | StreamCourse:
        if self._order is not None:
            return KeyCourse(self._order, epoch, position)
        size = 1 if self.batch_size is None else self.batch_size
        return StreamCourse(max(1, self.workers), size, self.drop_last, epoch, position)

    def _make_order(self) -> Order:
        size = 1 if self.batch_size is None else self.batch_size
        if self.batch_sampler is not None:
            return BatchSamplerOrder(self.batch_sampler)
        if self.sampler is not None:
            return SamplerOrder(self.sampler, size, self.drop_last)
        try:
            length = len(self.dataset)
        except TypeError:
            raise TypeError(
                f"the dataset ({type(self.dataset).__name__}) has no length: pass a sampler"
            ) from None
        return IndexOrder(length, size, self.drop_last, self.shuffle, self.seed)

    def _make_bar(self, course: Any) -> Any:
        if not self.progress:
            return None
        self._close_bar()
        try:
            from tqdm.auto import tqdm  # type: ignore[import-untyped, unused-ignore]
        except ImportError:
            raise ImportError("progress=True needs the package tqdm: install it") from None
        try:
            total = len(self)
        except TypeError:
            total = None
        return tqdm(total=total, initial=course.position().get("batch", 0), unit="batch")

    def _close_bar(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()


def _nothing() -> None:
    """What a reference to no iterator gives."""
