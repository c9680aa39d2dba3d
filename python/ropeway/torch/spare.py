"""The pool of an epoch that has ended, kept for the next: its pages are there already."""

import os
from typing import Any

from ropeway._errors import Closed
from ropeway._pool import Pool
from ropeway._status import PoolStatus

_MOST_SLOTS = 65_536
_GROWTH = 2


class Spare:
    """At most one pool, with nothing in it but batches that the program keeps.

    It is for one process alone: copies and forked children begin with none.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[int, int, Pool]] = []

    def take(self, slots: int) -> Pool:
        """The kept pool if it is of so many slots, a new one otherwise."""
        try:
            owner, of, pool = self._kept.pop()
        except IndexError:
            pass
        else:
            if (owner, of) == (os.getpid(), slots):
                return pool
        return Pool(
            slots=slots,
            stages=("plan", "work", "use"),
            max_slots=_MOST_SLOTS,
            repeatable=("work",),
            redeliveries=255,
        )

    def give(self, pool: Pool, slots: int) -> None:
        """Keeps a pool for the next epoch if all is over in it, and ends it otherwise.

        Its workers must be gone. One that has seen a death is ended, and one that has grown much:
        its memory goes with its batches.
        """
        try:
            pool.sweep()
            pool.discard()  # workers say at their end that they have nothing
            status = pool.status()
        except Closed:
            return
        if status.deaths or len(status.slots) > _GROWTH * slots or not _is_over(status):
            pool.abort()
        else:
            self._kept[:] = [(os.getpid(), slots, pool)]

    def __reduce__(self) -> Any:
        return Spare, ()


def _is_over(status: PoolStatus) -> bool:
    """Whether each slot is free or a batch that this process keeps."""
    return all(
        (slot.stage == "plan" and slot.state == "idle")
        or (slot.stage == "use" and slot.pid == os.getpid())
        for slot in status.slots
    )
