"""A worker's life depends on the process that it works for.

A pipe whose writing end only that process has: when the process ends, however it ends, the
kernel sends SIGKILL to the worker, whatever the worker is doing. Nothing is ever written.
"""

import contextlib
import fcntl
import os
import pickle
import select
import signal
import threading
from multiprocessing import reduction
from typing import Any

from ropeway._errors import RopewayError

_lock = threading.Lock()
_held: set[int] = set()


class Life:
    """One worker's pipe; closing it kills the worker if it still lives."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        self._owner = os.getpid()
        with _lock:
            _held.add(self._writer)

    def given(self) -> None:
        """Closes the reading end here, once the worker has it."""
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1

    def close(self) -> None:
        """Lets go of the worker."""
        if self._owner != os.getpid():
            return  # closed by the fork already
        self.given()
        if self._writer >= 0:
            with _lock:
                _held.discard(self._writer)
            os.close(self._writer)
            self._writer = -1


class Charge:
    """What a worker that `multiprocessing` starts is given: the reading end, and its task."""

    def __init__(self, reader: int, task: Any) -> None:
        self.reader, self.task = reader, task

    def __reduce__(self) -> Any:
        task = bytes(reduction.ForkingPickler.dumps(self.task))
        return _received, (reduction.DupFd(self.reader), task)


def _received(duplicate: Any, task: bytes) -> Charge:
    reader = duplicate.detach()
    depend(reader)  # before the task, which may be gone by now
    return Charge(reader, opened(task, reader))


def opened(task: bytes, reader: int) -> Any:
    """Unpickles a worker's task.

    Its pool goes with the program, an instant before the pipe: nobody is to read of that.
    """
    try:
        return pickle.loads(task)
    except RopewayError:
        _outlive(reader)
        raise


def depend(reader: int) -> None:
    """Makes this process end with the one that holds the pipe's other end."""
    fcntl.fcntl(reader, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
    os.set_blocking(reader, False)
    with contextlib.suppress(BlockingIOError):
        if os.read(reader, 1) == b"":  # it has ended before it could be noticed
            os.kill(os.getpid(), signal.SIGKILL)


def _outlive(reader: int) -> None:
    """Comes back only if the process at the pipe's other end doesn't end within a second."""
    end = select.poll()
    end.register(reader, 0)  # the end itself is always told, and SIGKILL comes with it
    end.poll(1000)


def _let_go() -> None:
    """Closes the writing ends in a forked child: it isn't the process that workers work for."""
    global _lock
    _lock = threading.Lock()
    for writer in _held:
        with contextlib.suppress(OSError):
            os.close(writer)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
