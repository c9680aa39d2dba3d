"""How a loader is doing: what it waited for, and what its workers did."""

import collections
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ropeway.loader.engine import Spell

_EVENTS = 20_000


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One worker."""

    number: int
    """Its number."""
    pid: int
    """Its process id, 0 if it has ended."""
    busy_s: float
    """Seconds that it has worked."""
    share: float
    """That, as a share of the time since the loader's first batch was asked for."""
    batches: int
    """Batches, or parts of batches, that it has made."""
    samples: int
    """Samples that it has read."""
    faults: int
    """Page faults of its process."""
    restarts: int
    """How often it was replaced."""


@dataclass(frozen=True, slots=True)
class WorkerEnding:
    """The end of a worker that was still needed."""

    number: int
    """Its number, which the worker in its place has too."""
    pid: int
    """Its process id."""
    status: int | None
    """The exit status, or the negated number of the signal; None where it can't be known."""
    noticed: float
    """When the loader noticed, in seconds of `time.monotonic`."""

    @property
    def how(self) -> str:
        """What happened to it, in words: "was killed by SIGSEGV"."""
        if self.status is None:
            return "has ended in an unknown way"
        if self.status >= 0:
            return f"ended with exit status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = f"signal {-self.status}"
        hint = ", perhaps as memory was short" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"

    def __str__(self) -> str:
        return f"worker {self.number} (process {self.pid}) {self.how}"


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """A loader, since its first batch was asked for."""

    seconds: float
    """Time since then."""
    batches: int
    """Batches handed out."""
    samples: int
    """Samples in them."""
    nbytes: int
    """Bytes of the arrays that were filled in place."""
    wait_s: float
    """Seconds that the consumer has waited for batches."""
    idle_s: float
    """Seconds that workers have waited for slots to fill, on average."""
    restarts: int
    """Workers that were replaced."""
    workers: tuple[WorkerStats, ...]
    """The workers."""
    endings: tuple[WorkerEnding, ...]
    """How workers ended that had to be replaced, at most the latest hundred."""

    @property
    def samples_per_s(self) -> float:
        """Samples handed out each second."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def waiting(self) -> float:
        """The share of time in which the consumer waited."""
        return self.wait_s / self.seconds if self.seconds else 0.0

    @property
    def verdict(self) -> str:
        """What holds things up, in words: the side that waits less holds up the other."""
        if not self.batches:
            return "no batch has been handed out yet"
        waits = f"the consumer waits {self.waiting:.0%} of the time"
        if not self.workers:
            return f"no workers: {waits}"
        share = sum(worker.share for worker in self.workers) / len(self.workers)
        count = len(self.workers)
        busy = f"{count} worker{'s' if count > 1 else ''} busy {share:.0%}"
        bound = "loader-bound" if self.waiting > 1 - share else "consumer-bound"
        return f"{bound}: {busy}, {waits}"


class Event(NamedTuple):
    """One batch, in nanoseconds of the monotonic clock."""

    sequence: int
    worker: int
    began: int
    ended: int
    asked: int
    handed: int
    samples: int
    spells: tuple[Spell, ...]

    def work(self) -> tuple[Spell, ...]:
        """Who made what of it."""
        return self.spells or (Spell(self.worker, self.began, self.ended, self.samples),)


class Meter:
    """Counts what a loader hands out."""

    def __init__(self) -> None:
        self._events: collections.deque[tuple[Any, ...]] = collections.deque(maxlen=_EVENTS)
        self.began: int | None = None
        self.batches = self.samples = self.nbytes = self.wait = 0

    def count(self, arrival: Any, asked: int) -> None:
        """Counts a batch that was asked for at some time and is handed out now."""
        now = time.monotonic_ns()
        _, sequence, _, samples, nbytes, worker, began, ended, spells = arrival
        self.batches += 1
        self.samples += samples
        self.nbytes += nbytes
        self.wait += now - asked
        self._events.append((sequence, worker, began, ended, asked, now, samples, spells))

    @property
    def events(self) -> list[Event]:
        """The last batches."""
        return [Event(*event) for event in self._events]

    def start(self) -> None:
        """Begins to count, unless it has begun."""
        if self.began is None:
            self.began = time.monotonic_ns()

    def stats(self, engine: Any, workers: int) -> LoaderStats:
        """What was counted so far."""
        seconds = 0.0 if self.began is None else (time.monotonic_ns() - self.began) / 1e9
        crew = _crew(engine, workers, seconds)
        idle = sum(max(0.0, seconds - worker.busy_s) for worker in crew) / (len(crew) or 1)
        return LoaderStats(
            seconds,
            self.batches,
            self.samples,
            self.nbytes,
            self.wait / 1e9,
            idle,
            sum(worker.restarts for worker in crew),
            crew,
            tuple(engine.crew.endings) if crew else (),
        )

    def write(self, path: "str | os.PathLike[str]") -> None:
        """Writes the timeline of the last batches in Chrome's trace format."""
        handed_out = self.events
        events = [
            {
                "name": f"batch {event.sequence}",
                "ph": "X",
                "pid": 1,
                "tid": thread,
                "ts": begin / 1e3,
                "dur": (end - begin) / 1e3,
                "args": {"samples": samples},
            }
            for event in handed_out
            for thread, begin, end, samples in (
                *((spell.worker + 1, *spell[1:]) for spell in event.work()),
                (0, event.asked, event.handed, event.samples),
            )
        ]
        numbers = sorted({spell.worker for event in handed_out for spell in event.work()})
        names = {0: "consumer waits", **{n + 1: f"worker {n}" for n in numbers}}
        threads = [
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}
            for thread, name in names.items()
        ]
        Path(path).write_text(json.dumps({"traceEvents": threads + events}))


def _crew(engine: Any, workers: int, seconds: float) -> tuple[WorkerStats, ...]:
    if engine is None or not workers:
        return ()
    pids = engine.crew.pids()
    found = []
    for number in range(workers):
        duty = engine.roster.read(number)
        pid = pids.get(number, 0)
        share = min(1.0, duty.busy / seconds) if seconds else 0.0
        found.append(
            WorkerStats(
                number,
                pid,
                duty.busy,
                share,
                duty.batches,
                duty.samples,
                _faults(pid),
                engine.crew.restarts[number],
            )
        )
    return tuple(found)


def _faults(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0
    return int(fields[7]) + int(fields[9])
