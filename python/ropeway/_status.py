"""What a pool or a session looks like at one moment: frozen values for people and programs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropeway import _core


@dataclass(frozen=True, slots=True)
class ExportStatus:
    """What keeps a slot where it is, in this process: exports of one kind of one array."""

    array: str
    """Name of the array; those behind a slot's eighth are counted with that one."""
    kind: str
    """"array", "DLPack capsule", "Arrow array" or "raw pointer"."""
    count: int
    """How many of them live."""
    age_s: float
    """For how many seconds there has been one without a break."""


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """One slot."""

    index: int
    """Its number within the pool."""
    stage: str
    """The stage that it is at."""
    state: str
    """"idle", "held-read" or "held-write"."""
    pid: int | None
    """The process that holds it, None if nobody does."""
    thread: int | None
    """The thread that claimed it, where known."""
    held_s: float | None
    """For how many seconds it has been held."""
    deliveries: int
    """How often it came back because its reader died."""
    generation: int
    """How often it has moved."""
    committed: int
    """Bytes of memory that it has."""
    exports: tuple[ExportStatus, ...] = ()
    """What keeps it where it is, if this process holds it."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One process that may hold slots."""

    pid: int
    """Its process id, in its own namespace."""
    alive: bool
    """Whether it lives."""
    left: bool
    """Whether it has said that it is leaving."""
    announced: int
    """Bytes that it is about to take."""


@dataclass(frozen=True, slots=True)
class LostSlot:
    """A batch that is lost, as its holder died while changing it or too many readers died."""

    index: int
    """The slot that held it."""
    generation: int
    """The generation of the slot when it was lost."""
    stage: str
    """The stage that it was lost at."""
    pid: int | None
    """Process id of the last holder, where known."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """One pool; what happens while it is being read may be in it or not."""

    label: str
    """What messages call the pool."""
    state: str
    """"open", "closed", "aborted", or "orphaned" (the creator has died)."""
    published: int
    """How many slots have been published so far, over all stages."""
    deaths: int
    """How many members have died so far."""
    committed: int
    """Bytes of memory that all slots have."""
    memory_limit: int | None
    """The most bytes that they may have, None if only the machine sets a limit."""
    slots: tuple[SlotStatus, ...]
    """The slots that exist."""
    members: tuple[MemberStatus, ...]
    """The processes that may hold slots."""
    lost: tuple[LostSlot, ...]
    """The last loss of each slot that has lost a batch."""


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """The arrays of a session, made by `empty`, `zeros` and `share` in any of its processes."""

    arrays: int
    """How many there are: somebody holds them, or their handles wait to be opened."""
    bytes: int
    """Their bytes; each counts once, however many processes and views there are of it."""
    unclaimed: int
    """How many were pickled and have not been opened by anybody yet."""
    unclaimed_bytes: int
    """Their bytes."""
    committed: int
    """Bytes of memory that the session has for arrays, with what is kept to be used again."""
    members: int
    """How many processes have that memory open."""


def status() -> SessionStatus:
    """Tells what the arrays of this process's session take; pools and queues tell it themselves."""
    return SessionStatus(**_core.arena_snapshot())


def read(snapshot: Mapping[str, Any]) -> PoolStatus:
    """Makes a status of the native module's snapshot."""
    fields = dict(snapshot)
    for slot in fields["slots"]:
        slot["exports"] = tuple(ExportStatus(*export) for export in slot["exports"])
    for key, kind in (("slots", SlotStatus), ("members", MemberStatus), ("lost", LostSlot)):
        fields[key] = tuple(kind(**item) for item in fields[key])
    return PoolStatus(**fields)
