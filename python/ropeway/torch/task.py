"""What travels in the metadata of a drop-in's slot: a task for a worker, and what came of it.

The task stays in front of the result. If a worker dies between writing the result and handing
the slot on, the one in its place finds both.
"""

import pickle
import struct
from enum import IntEnum
from typing import Any, NamedTuple

_HEAD = struct.Struct("<BxxxIQ")
_WORKER = 32


class Kind(IntEnum):
    """What a slot holds."""

    TASK = 0
    """Nothing yet."""
    RESULT = 1
    """A batch, or an exception."""
    NOTHING = 2
    """Nothing, as the worker's stream has ended, or as it was told to end itself."""
    DEADLY = 3
    """Nothing, as the task has ended too many workers."""


class Record(NamedTuple):
    """A decoded slot."""

    kind: Kind
    number: int
    task: memoryview
    result: memoryview

    def item(self) -> Any:
        """What torch's iterator put into the worker's queue."""
        return pickle.loads(self.task)


def task_bytes(number: int, item: Any) -> bytes:
    """Writes a task."""
    body = pickle.dumps(item, protocol=5)
    return _HEAD.pack(Kind.TASK, len(body), number) + body


def result_bytes(kind: Kind, record: Record, result: bytes = b"") -> bytes:
    """Writes a result behind its task."""
    return b"".join((_HEAD.pack(kind, len(record.task), record.number), record.task, result))


def read(meta: bytes) -> Record:
    """Reads what the other two have written."""
    kind, length, number = _HEAD.unpack_from(meta)
    view = memoryview(meta)
    end = _HEAD.size + length
    return Record(Kind(kind), number, view[_HEAD.size : end], view[end:])


def address(worker: int, task: int) -> int:
    """The number under which a worker takes its task: each worker's are counted from 0."""
    return (worker + 1) << _WORKER | task


def worker_of(number: int) -> tuple[int, int]:
    """Worker and task of a number."""
    return (number >> _WORKER) - 1, number & ((1 << _WORKER) - 1)
