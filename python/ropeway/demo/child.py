"""Starts the demo's processes and hears what they report."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from ropeway import _interrupts

from . import DemoError

ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


class Failed(NamedTuple):
    """The last report of a process that can't go on."""

    sentence: str


class Child:
    """A spawned process and the pipe on which it reports."""

    def __init__(self, name: str, work: Callable[..., None], *arguments: Any):
        spawn = multiprocessing.get_context("spawn")
        self.name = name
        self.reports, sender = spawn.Pipe(duplex=False)
        self.process = spawn.Process(
            target=_run, args=(work, sender, *arguments), name=name, daemon=True
        )
        with _interrupts.held(spawn):
            self.process.start()
        sender.close()
        self.pid: int = self.process.pid or 0

    def heard(self) -> Iterator[Any]:
        """Gives what has been reported since the last call.

        Raises `DemoError` with the sentence of a failure.
        """
        with contextlib.suppress(EOFError, OSError):
            while self.reports.poll():
                report = self.reports.recv()
                if isinstance(report, Failed):
                    raise DemoError(f"{self.name}: {report.sentence}")
                yield report

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self.process.exitcode is not None

    @property
    def failed(self) -> bool:
        """Whether the process has ended otherwise than it should."""
        return bool(self.process.exitcode)

    @property
    def ending(self) -> str:
        """Says how the process ended."""
        code = self.process.exitcode or 0
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit status {code}" if code else "ended cleanly"

    def hang_up(self) -> None:
        """Hears no more reports; the process ends when it is about to give the next one."""
        self.reports.close()

    def finish(self, deadline: float) -> None:
        """Waits for the end until the deadline (of `time.monotonic`), then kills."""
        self.process.join(max(0, deadline - time.monotonic()))
        if not self.ended:
            self.process.kill()
            self.process.join()


def _run(work: Callable[..., None], reports: Connection, *arguments: Any) -> None:
    """Does a child's work; Ctrl-C is the parent's to hear."""
    _interrupts.ignore()
    from ropeway import RopewayError

    try:
        work(reports, *arguments)
    except (DemoError, RopewayError) as error:
        reports.send(Failed(str(error)))
    except BrokenPipeError:  # the parent is gone
        pass


def keep_to_one_thread() -> None:
    """Makes matrix products in processes started from now on use one thread each.

    What the user has set stays.
    """
    for name in ONE_THREAD:
        os.environ.setdefault(name, "1")
