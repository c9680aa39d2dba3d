"""The workers of a loader: starting them, noticing their ends, replacing them."""

import collections
import contextlib
import multiprocessing
import os
import pickle
import sys
import time
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any, Protocol

from ropeway import _interrupts
from ropeway._errors import WorkerError
from ropeway._exit import is_leaving
from ropeway.loader import life, zygote
from ropeway.loader.roster import Duty
from ropeway.loader.stats import WorkerEnding
from ropeway.loader.surroundings import equal_hashes
from ropeway.loader.worker import Task, serve

_HOPELESS = 10
_PAUSE = 0.002
_NOTED = 100
"""Endings that are remembered."""


class Hand(Protocol):
    """One worker process."""

    pid: int

    def status(self) -> int | None:
        """None while it lives, else as in `WorkerEnding`.

        Raises `zygote.Died` if it can't be known.
        """

    def close(self) -> None:
        """Kills it if it still lives, and lets go of it."""


class Crew:
    """Workers with the numbers 0 … n-1."""

    def __init__(self, task: Task, method: str) -> None:
        self._task, self.method = task, method
        self._hands: dict[int, Hand] = {}
        self.restarts = [0] * task.workers
        self.endings: collections.deque[WorkerEnding] = collections.deque(maxlen=_NOTED)
        self._early = 0
        self._proven = False
        self._owner = os.getpid()
        check_allowed(method)
        try:
            for number in range(task.workers):
                self._start(number)
        except BaseException:
            self.stop(0.0)
            raise

    def ended(self) -> list[tuple[WorkerEnding, Duty]]:
        """Workers that have ended since the last look, and what they were doing."""
        found = []
        for number, hand in list(self._hands.items()):
            try:
                status = hand.status()
                if status is None:
                    continue
            except zygote.Died:
                status = None
            del self._hands[number]
            hand.close()
            ending = WorkerEnding(number, hand.pid, status, time.monotonic())
            found.append((ending, self._task.roster.read(number)))
        return found

    def replace(self, ending: WorkerEnding, duty: Duty) -> None:
        """Starts a worker in the place of one that has ended.

        Raises `WorkerError` if workers end before they have made anything of their dataset.
        """
        self._proven = self._proven or duty.ready or self._somebody_is_ready()
        self._early = 0 if duty.ready else self._early + 1
        by_itself = ending.status is not None and ending.status >= 0
        if self._early >= _HOPELESS or (self._early and by_itself and not self._proven):
            raise WorkerError(
                f"{ending} before it was ready; what it wrote to standard error says more "
                f"(workers are started by {self.method!r})"
            )
        self.restarts[ending.number] += 1
        self.endings.append(ending)
        self._start(ending.number)

    def pids(self) -> dict[int, int]:
        """The process ids of the workers that live, by number."""
        return {number: hand.pid for number, hand in self._hands.items()}

    def stop(self, patience: float) -> None:
        """Waits for the workers, which know that they are to end, and kills those that don't."""
        if self._owner != os.getpid():
            return
        end = time.monotonic() + patience
        try:
            while self._hands and time.monotonic() < end:
                if not self.ended():
                    time.sleep(_PAUSE)
        finally:  # also when an interrupt ends the wait
            hands, self._hands = self._hands, {}
            with contextlib.ExitStack() as closing:
                for hand in hands.values():
                    closing.callback(hand.close)

    def _somebody_is_ready(self) -> bool:
        return any(self._task.roster.read(number).ready for number in self._hands)

    def _start(self, number: int) -> None:
        self._task.roster.reset(number)
        kind = _Forked if self.method == "zygote" else _Process
        with zygote.starting():
            self._hands[number] = kind(number, self._task, self.method)


class _Forked:
    """A worker that the zygote has forked."""

    def __init__(self, number: int, task: Task, method: str) -> None:
        self._life = life.Life()
        try:
            self.pid = self._started(number, pickle.dumps(task, protocol=5), task)
        except BaseException:
            self._life.close()
            raise
        self._life.given()

    def _started(self, number: int, data: bytes, task: Task) -> int:
        for _ in range(2):
            self._zygote = zygote.Zygote.get()
            try:
                if task.payload is not None:
                    self._zygote.prepare(task.payload.modules, task.payload.main)
                return self._zygote.start(number, self._life.reader, data)
            except zygote.Died:
                continue
        raise WorkerError("workers can't be started: the process that forks them ends at once")

    def status(self) -> int | None:
        """None while it lives, else how it has ended."""
        status = self._zygote.status(self.pid)
        return None if status is None else os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Kills it if it still lives."""
        self._life.close()


class _Process:
    """A worker that `multiprocessing` has started."""

    def __init__(self, number: int, task: Task, method: str) -> None:
        context: Any = multiprocessing.get_context(method)
        self._life = life.Life()
        charge = life.Charge(self._life.reader, task)
        self._process = context.Process(
            target=_serve, args=(number, charge), name=f"ropeway-worker-{number}"
        )
        try:
            with _interrupts.held(context), _without_missing_file(), equal_hashes():
                self._process.start()
        except BaseException:
            self._life.close()
            raise
        self._life.given()
        self.pid = self._process.pid

    def status(self) -> int | None:
        """None while it lives, else how it has ended.

        Raises `zygote.Died` where SIGCHLD is ignored: the kernel tells nobody how children ended.
        """
        let_go = connection.wait([self._process.sentinel], timeout=0)
        status: int | None = self._process.exitcode
        if status is None and let_go and not _is_there(self.pid):
            raise zygote.Died
        return status

    def close(self) -> None:
        """Kills it if it still lives."""
        self._life.close()
        self._process.join()
        if not is_leaving():  # else multiprocessing waits for it, too
            with contextlib.suppress(ValueError):  # nobody knows how it ended
                self._process.close()


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def _without_missing_file() -> Iterator[None]:
    """Hides the file of a main module that has none ("<stdin>"), as new processes look for it."""
    main = vars(sys.modules["__main__"])
    file = main.get("__file__")
    if file is None or os.path.exists(file):
        yield
        return
    del main["__file__"]
    try:
        yield
    finally:
        main["__file__"] = file


def _serve(number: int, charge: life.Charge) -> None:
    """What `multiprocessing` runs in a worker."""
    serve(number, charge.reader, charge.task)


def check_allowed(method: str) -> None:
    """Raises RuntimeError where workers can't be started by that method."""
    if zygote.preparing:
        raise RuntimeError(
            "a loader was started while a worker's process imports the main module: put what the "
            'script does under `if __name__ == "__main__":`'
        )
    if method != "zygote" and multiprocessing.current_process().daemon:
        raise RuntimeError(
            f"this process is daemonic, and multiprocessing gives such processes no children by "
            f"{method!r}: pass start_method=None or workers=0, or start this process with "
            "daemon=False"
        )
