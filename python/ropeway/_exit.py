"""A normal exit isn't a death: tells the pools when this process is about to leave.

`multiprocessing` children that were forked end without running `atexit` handlers (CPython 3.11
and 3.12), but they run finalizers; other processes run `atexit` handlers. Hence both. Importing
`multiprocessing.util` first puts its exit handler behind ours: a child that waits for a slot is
told to stop before the parent waits for the child.
"""

import atexit
from multiprocessing import util

from ropeway import _core


class _Anchor:
    """What `register_after_fork` holds weakly: lives as long as this module."""


_anchor = _Anchor()


def _finalize(_: object = None) -> None:
    util.Finalize(None, _core.leave, exitpriority=0)


def register() -> None:
    """Registers the exit handlers of this process, and of children that it will fork."""
    atexit.register(_core.leave)
    _finalize()
    util.register_after_fork(_anchor, _finalize)  # children start with no finalizers
