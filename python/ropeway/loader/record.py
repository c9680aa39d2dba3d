"""What travels in the metadata of a loader's slot: the plan of a batch, and what came of it.

The plan stays in front of the result, so that at no instant a slot is without one. If a worker
dies between writing the result and handing the slot on, the next one finds both.
"""

import pickle
import struct
from enum import IntEnum
from typing import Any, NamedTuple

_HEAD = struct.Struct("<BBHIIqq")


class Kind(IntEnum):
    """What a slot holds."""

    PLAN = 0
    """Nothing yet."""
    BATCH = 1
    """Rows that were written in place, and lists of what isn't an array."""
    MESSAGE = 2
    """Any object, with its arrays out of band."""
    FAILURE = 3
    """What went wrong."""
    END = 4
    """Nothing, as the iterable dataset's stream has ended."""
    SKIPPED = 5
    """Nothing, as nobody waits for it any more."""
    DIED = 6
    """Nothing, as the work has killed too many workers."""
    MISFIT = 7
    """Nothing, as samples of this part don't look like those of the batches before."""


_KINDS = tuple(Kind)


class Part(NamedTuple):
    """Some of the rows of a batch that several workers make together."""

    first: int
    """The first of the rows,"""
    rows: int
    """of how many in the whole batch."""
    layout: bytes
    """The layout of a batch like it, if perhaps of another number of rows; pickled."""
    memory: bytes
    """The shared array that the whole batch lies in; pickled."""


class Blob(NamedTuple):
    """Stands for large bytes, which lie in the slot."""

    begin: int
    end: int


class Plan(NamedTuple):
    """What is to be put into a slot."""

    sequence: int
    """Number of the batch among all that the loader has planned."""
    run: int
    """Number of the iterator that planned it, for `Roster`."""
    epoch: int
    keys: list[Any] | None
    """Keys of the samples; None for an iterable dataset."""
    stream: int = 0
    """For an iterable dataset: the worker whose stream it is,"""
    start: int = 0
    """how many samples of the stream go before,"""
    size: int = 0
    """and how many are wanted."""
    part: Part | None = None
    """Which rows these are of the batch; None for all."""


class Record(NamedTuple):
    """A decoded slot."""

    kind: Kind
    plan: bytes
    layout: bytes
    rest: memoryview
    worker: int
    began: int
    """When the work began, in nanoseconds of the monotonic clock."""
    ended: int


def plan_bytes(plan: Plan) -> bytes:
    """Writes a plan."""
    fields = tuple(plan) if plan.part is None else (*plan[:-1], tuple(plan.part))
    body = pickle.dumps(fields, protocol=5)
    return _HEAD.pack(0, 0, 0, len(body), 0, 0, 0) + body


def result_bytes(
    kind: Kind,
    plan: bytes,
    layout: bytes = b"",
    rest: Any = b"",
    worker: int = 0,
    times: tuple[int, int] = (0, 0),
) -> bytes:
    """Writes a result behind its plan."""
    return b"".join(
        (_HEAD.pack(kind, 0, worker, len(plan), len(layout), *times), plan, layout, rest)
    )


def read(meta: bytes) -> Record:
    """Reads what the other two have written."""
    kind, _, worker, plan, layout, began, ended = _HEAD.unpack_from(meta)
    begin = _HEAD.size + plan
    return Record(
        _KINDS[kind],
        meta[_HEAD.size : begin],
        meta[begin : begin + layout],
        memoryview(meta)[begin + layout :],
        worker,
        began,
        ended,
    )


def read_plan(record: Record) -> Plan:
    """Reads the plan of a record."""
    plan = Plan(*pickle.loads(record.plan))
    return plan if plan.part is None else plan._replace(part=Part(*plan.part))
