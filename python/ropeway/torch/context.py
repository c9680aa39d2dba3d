"""What torch's iterator takes for a multiprocessing context: its queues are a pool's slots.

torch's own iterator, unchanged, decides which batch is made when by whom, and when it is handed
out. It does so with queues, an event and processes, and gets those from here.
"""

import collections
import contextlib
import inspect
import os
import queue
import threading
import time
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import _utils

from ropeway import _interrupts
from ropeway._errors import Closed, OutOfMemory, Timeout, WorkerError
from ropeway.loader import life
from ropeway.loader.failure import samples
from ropeway.loader.roster import Roster
from ropeway.loader.stats import WorkerEnding
from ropeway.loader.surroundings import equal_hashes
from ropeway.torch import parcel, task, worker
from ropeway.torch.chance import Notes
from ropeway.torch.spare import Spare
from ropeway.torch.task import Kind

_SLICE = 0.02
_HOPELESS = 10


class WorkerDied(WorkerError, RuntimeError):
    """Raised for a batch that has ended too many workers; names its samples and the signals."""


class Context:
    """Queues, an event and processes for one iterator of torch's."""

    def __init__(self, loader: Any, base: Any, retries: int, spare: Spare) -> None:
        workers = loader.num_workers
        self.base, self.retries = base, retries
        self._owner = os.getpid()
        self._spare, self._slots = spare, max(1, loader.prefetch_factor) * workers + 1
        self.pool = spare.take(self._slots)
        self.roster, self.notes = Roster(workers), Notes(workers)
        self.keys = None if loader.batch_size is None else [None] * loader.batch_size
        self.workers: list[Worker] = []
        self._later: collections.deque[tuple[int, bytes]] = collections.deque()
        self._awake: collections.deque[Any] = collections.deque()
        self._lock = threading.Lock()  # where there is pinning, a thread receives
        self._is_ending = self.is_done = False
        """Whether all batches were received, so that nothing can be left in the pool."""

    def is_here(self) -> bool:
        """Whether this is the process that the workers work for."""
        return self._owner == os.getpid()

    def Queue(self) -> "Queue":  # noqa: N802
        """A queue; a worker's tasks or all results, as it turns out."""
        return Queue(self)

    def Event(self) -> "Event":  # noqa: N802
        """The event that ends the workers."""
        return Event(self)

    def Process(self, target: Any, args: tuple[Any, ...]) -> "Worker":  # noqa: N802
        """A worker that has torch's arguments."""
        arguments = dict(inspect.signature(target).bind(*args).arguments)
        made = Worker(self, arguments)
        self.workers.append(made)
        return made

    # ---- tasks --------------------------------------------------------------------------------

    def send(self, number: int, data: bytes) -> None:
        """Gives a worker a task, as soon as there is a slot for it."""
        self._later.append((number, data))
        self._flush()
        self._check_end()

    def _flush(self) -> None:
        with self._lock:
            while self._later:
                number, data = self._later[0]
                try:
                    with self.pool.acquire(timeout=0) as slot:
                        slot.number, slot.meta_bytes = number, data
                        try:
                            slot.publish()
                        finally:  # also when an interrupt comes behind it
                            if slot.ended:
                                self._later.popleft()
                except (Timeout, OutOfMemory):
                    return
                except Closed:
                    self._later.clear()
                    return

    def check_progress(self) -> None:
        """Raises `OutOfMemory` if it is only the program that could make room; nothing is lost."""
        self._flush()
        if not self._later or sum(len(worker.tasks) for worker in self.workers) > len(self._later):
            return
        slots = self.pool.status().slots
        kept = sum(slot.stage == "use" and slot.state != "idle" for slot in slots)
        raise OutOfMemory(
            f"there is no room for the next batch. {kept} batches are kept by the program: a batch "
            "belongs to whoever has a tensor of it; clone what is to be kept, let go of the rest"
        )

    # ---- the end ------------------------------------------------------------------------------

    def end(self) -> None:
        """Lets the workers end: at the task that says so if all is done, or else now."""
        self._is_ending = True
        with contextlib.suppress(Closed):
            if self.is_done:
                self.pool.discard()  # makes room for the workers' last tasks
                self._flush()
        self._check_end()

    def _check_end(self) -> None:
        if self._is_ending and (self._later or not self.is_done):
            self.is_done = False
            with contextlib.suppress(Closed):
                self.pool.abort()

    def settle(self) -> None:
        """Leaves the pool to the next epoch, if its workers have ended well."""
        if self.is_done and all(worker.exitcode == 0 for worker in self.workers):
            self._spare.give(self.pool, self._slots)
        elif self.is_done:
            self.pool.abort()
        self.is_done = False

    # ---- results ------------------------------------------------------------------------------

    def receive(self, timeout: float) -> Any:
        """The next result. Raises `queue.Empty` if there is none in time."""
        end = time.monotonic() + timeout
        while True:
            if self._awake:
                return self._awake.popleft()
            self._flush()
            left = end - time.monotonic()
            try:
                lease = self.pool.take(write=True, timeout=max(0.0, min(left, _SLICE)))
            except (Timeout, Closed):
                if left <= _SLICE:
                    raise queue.Empty from None
                continue
            with lease:
                result = self._result(lease)
            if result is not None:
                return result

    def wake(self, item: Any) -> None:
        """Makes `receive` return this."""
        self._awake.append(item)

    def _result(self, lease: Any) -> Any:
        record = task.read(lease.meta_bytes)
        number, at = task.worker_of(record.number)
        begins_epoch = self.workers[number].done(at)
        if record.kind is Kind.NOTHING:
            return None
        item = record.item()
        index = item if begins_epoch else item[0]
        if record.kind is Kind.DEADLY:
            return index, _Fatal(self.workers[number], item[1])
        try:
            return parcel.unpack(record.result, lease)
        except Exception:
            return index, ExceptionWrapper(where=f"with a batch of DataLoader worker {number}")


class Queue:
    """What torch takes for a queue."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.worker: Worker | None = None

    def put(self, item: Any) -> None:
        """Gives a task to the worker whose queue it is, or wakes who waits for results."""
        if self.worker is None:
            self._context.wake(item)
        else:
            self.worker.give(item)

    def get(self, timeout: float = 0.0) -> Any:
        """The next result. Raises `queue.Empty` if there is none in time."""
        return self._context.receive(timeout)

    def cancel_join_thread(self) -> None:
        """Does nothing; there is no thread."""

    def close(self) -> None:
        """Does nothing; the slots go with the pool."""


class Event:
    """What torch takes for the event that says that all is over."""

    def __init__(self, context: Context) -> None:
        self._context, self._set = context, False

    def set(self) -> None:
        """Ends the workers; batches that are kept stay."""
        if not self._set:
            self._set = True
            self._context.end()

    def is_set(self) -> bool:
        """Whether it has been set."""
        return self._set


class Worker:
    """What torch takes for a worker process; behind it is one process after the other."""

    daemon = True

    def __init__(self, context: Context, arguments: dict[str, Any]) -> None:
        self._context, self.number = context, arguments["worker_id"]
        for name in ("index_queue", "data_queue", "done_event"):
            mine = arguments.pop(name)
            if name == "index_queue":
                mine.worker = self
        self._arguments = arguments
        self.tasks: dict[int, bool] = {}
        """Those without a result so far, and whether each begins an epoch."""
        self._next = self._fetched = 0
        self.endings: list[tuple[WorkerEnding, int, int]] = []
        """How processes have ended, at which task and sample."""
        self.restarts = self._early = 0
        self._process: Any = None
        self._life: life.Life | None = None

    def __getattr__(self, name: str) -> Any:
        """What `multiprocessing.Process` has: pid, exitcode, is_alive, join, terminate …."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._process, name)

    def start(self) -> None:
        """Starts the first process."""
        self._start(begun=False)

    def give(self, item: Any) -> None:
        """Gives the worker a task."""
        number, self._next = self._next, self._next + 1
        begins_epoch = isinstance(item, _utils.worker._ResumeIteration)
        data = task.task_bytes(task.address(self.number, number), item)
        self.tasks[number] = begins_epoch
        self._context.send(task.address(self.number, number), data)

    def done(self, number: int) -> bool:
        """Notes that there is a result; whether it is that of the beginning of an epoch."""
        begins_epoch = self.tasks.pop(number)
        self._fetched = 0 if begins_epoch else self._fetched + 1
        return begins_epoch

    def replace(self, **arguments: Any) -> None:
        """Puts a new process in the place of one that has ended.

        Raises `WorkerDied` if that can't get better.
        """
        duty = self._context.roster.read(self.number)
        ending = WorkerEnding(self.number, self.pid, self.exitcode, time.monotonic())
        self.endings.append((ending, duty.sequence, duty.position))
        self._early = 0 if duty.ready else self._early + 1
        if self._early and (ending.status is None or ending.status >= 0):
            self._early = _HOPELESS
        if self._early >= _HOPELESS:
            raise WorkerDied(
                f"DataLoader worker (pid(s) {ending.pid}) exited unexpectedly: {ending} before it "
                "was ready; what it wrote to standard error says more"
            )
        self.release()
        self._context.pool.sweep()
        self._context.roster.reset(self.number)
        self._arguments |= arguments
        self.restarts += 1
        self._start(begun=bool(duty.ready) or self._next > len(self.tasks))

    def release(self) -> None:
        """Lets go of the process, which is killed if it still lives."""
        held, self._life = self._life, None
        if held is not None:
            held.close()

    def _start(self, begun: bool) -> None:
        context = self._context
        holder = self._arguments["dataset_holder"]
        job = worker.Job(
            context.pool,
            context.roster,
            context.notes,
            context.retries,
            {**self._arguments, "dataset_holder": list(holder)},
            context.keys,
            begun,
            sorted(self.tasks.items()) if begun else [],
            self._next if begun else 0,
            self._fetched,
        )
        held = life.Life()
        try:
            process = context.base.Process(
                target=worker.serve, args=(life.Charge(held.reader, job),)
            )
            process.daemon = True
            with _interrupts.held(context.base), equal_hashes():
                process.start()
        except BaseException as error:
            held.close()
            if "daemonic" in str(error):  # torch's text says no way out
                raise AssertionError(
                    f"{error}: pass num_workers=0, or start this process with daemon=False"
                ) from None
            raise
        held.given()
        self._process, self._life = process, held


class _Fatal(ExceptionWrapper):  # type: ignore[misc]
    """The error for a batch that has ended too many workers."""

    def __init__(self, at: Worker, keys: Any) -> None:
        self._worker, self._keys = at, keys

    def reraise(self) -> None:
        """Raises it."""
        endings = self._worker.endings
        keys = list(self._keys) if isinstance(self._keys, list | tuple) else [self._keys]
        place = endings[-1][2] if endings else len(keys)
        named = [keys[place]] if place < len(keys) else keys
        named = [key for key in named if key is not None]
        pids = ", ".join(str(ending.pid) for ending, *_ in endings)
        story = "; ".join(str(ending) for ending, *_ in endings)
        raise WorkerDied(
            f"DataLoader worker (pid(s) {pids}) exited unexpectedly: {samples(named)} ended "
            f"{len(endings)} workers, and isn't tried again: {story}"
        )
