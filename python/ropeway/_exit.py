"""A normal exit isn't a death: tells the pools when this process is about to leave.

`multiprocessing` children that were forked end without running `atexit` handlers (CPython 3.11
and 3.12), but they run finalizers; other processes run `atexit` handlers. Hence both. Importing
`multiprocessing.util` first puts its exit handler behind ours: a child that waits for a slot is
told to stop before the parent waits for the child.
"""

import atexit
import functools
import threading
from collections.abc import Callable
from multiprocessing import util
from typing import ParamSpec, TypeVar

from ropeway import _core

P = ParamSpec("P")
R = TypeVar("R")

_is_leaving = False


class _Anchor:
    """What `register_after_fork` holds weakly: lives as long as this module."""


_anchor = _Anchor()


def _finalize(_: object = None) -> None:
    util.Finalize(None, _core.leave, exitpriority=0)


def _leave() -> None:
    global _is_leaving
    _is_leaving = True
    _core.leave()


def is_leaving() -> bool:
    """Whether this process is at its end: daemon threads go on for a while."""
    return _is_leaving or util.is_exiting()


def end_daemon() -> None:
    """Ends the thread at hand, if it is a daemon and its program is ending.

    For what fails then: nobody is to read of it, as nothing works any more.
    """
    if is_leaving() and threading.current_thread().daemon:
        raise SystemExit from None


def quiet_for_daemons(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function call `end_daemon` for what it raises."""

    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception:
            end_daemon()
            raise

    return quiet


def register() -> None:
    """Registers the exit handlers of this process, and of children that it will fork."""
    atexit.register(_leave)
    _finalize()
    util.register_after_fork(_anchor, _finalize)  # children start with no finalizers
