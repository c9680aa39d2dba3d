"""What does the work of a loader: `Shared`, a pool with workers, or `Local`, the caller itself."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ropeway._errors import OutOfMemory
from ropeway.loader.failure import Failure
from ropeway.loader.record import Kind, Plan


@dataclass(frozen=True)
class Work:
    """What an engine is to do."""

    dataset: Any
    collate: Any
    iterable: bool
    workers: int
    window: int
    most_ahead: int
    seed: int
    retries: int
    method: str
    memory_limit: int | None


class Spell(NamedTuple):
    """Work of one worker on a batch, in nanoseconds of the monotonic clock."""

    worker: int
    began: int
    ended: int
    samples: int


class Arrival(NamedTuple):
    """What came of a plan, and when which worker worked on it."""

    kind: Kind
    sequence: int
    batch: Any
    """The batch, or the `Failure`."""
    samples: int
    nbytes: int
    worker: int
    began: int
    ended: int
    spells: tuple[Spell, ...] = ()
    """For a batch that several workers have made: who did what of it."""


class Engine(Protocol):
    """What an epoch asks for."""

    window: int
    """How many batches may be planned ahead;"""
    refill: int
    """more are planned when no more than this are in flight."""
    closed: bool

    def plan(self, plans: list[Plan]) -> int:
        """Has batches made; returns how many of them, as there may be no room for more now."""

    def receive(self, wanted: Iterable[int], ordered: bool, timeout: float | None) -> Arrival:
        """The first of the batches with these numbers, or any of them, when it's there."""

    def drop(self, numbers: Iterable[int]) -> None:
        """Forgets batches that were planned."""

    def sequence(self) -> int:
        """A number for the next plan."""

    def open_run(self) -> int:
        """Begins a run, whose batches are wanted until it is closed."""

    def tidy(self) -> None:
        """Gives back memory that was needed for batches that nobody keeps any more."""

    def close_run(self, run: int) -> None:
        """Says that a run's batches aren't wanted any more."""

    def is_here(self) -> bool:
        """Whether this is the process that the engine works for."""

    def kept(self) -> int:
        """Counts the batches that the caller keeps."""


class Numbers:
    """Numbers of plans and of runs."""

    def __init__(self) -> None:
        self._sequence, self._run = itertools.count(1), itertools.count(1)

    def sequence(self) -> int:
        """A number for the next plan."""
        return next(self._sequence)


def out_of_memory(failure: Failure, engine: Engine) -> OutOfMemory:
    """The error for a batch that there was no memory for."""
    return OutOfMemory(f"{failure.message}. {_kept(engine)}")


def out_of_slots(engine: Engine) -> OutOfMemory:
    """The error for a plan that there is no slot for."""
    return OutOfMemory(f"there is no room for the next batch. {_kept(engine)}")


def _kept(engine: Engine) -> str:
    return (
        f"{engine.kept()} batches are kept by the program: a batch belongs to whoever has an array "
        "of it; copy what is to be kept, and let go of the rest"
    )
