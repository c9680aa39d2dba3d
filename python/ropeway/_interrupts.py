"""Ctrl-C reaches every process of a terminal, and only the program itself is to answer it."""

import contextlib
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker, util
from typing import Any


@contextlib.contextmanager
def held(context: Any = None) -> Iterator[None]:
    """Holds Ctrl-C back while a process starts, by a context of `multiprocessing` if one is given.

    So the process never sees one, not even before it runs any code of ours; it ends the hold by
    `ignore`.
    """
    if context is not None and context.get_start_method() != "fork":
        resource_tracker.ensure_running()  # it would undo the hold if it were started inside
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore() -> None:
    """Leaves Ctrl-C to the process that has started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextlib.contextmanager
def quiet_at_exit() -> Iterator[None]:
    """Lets a Ctrl-C end what the block waits for: without a word if the program is ending."""
    try:
        yield
    except KeyboardInterrupt:
        if not util.is_exiting():
            raise
