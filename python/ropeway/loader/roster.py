"""Who does what: one row for each worker, and the runs that are still wanted, in shared memory.

A worker writes only its own row; the parent reads it when the worker is late or dead.
"""

import time
from typing import Any, NamedTuple

import ropeway._arrays as arrays

_RUNS = 4096
_PID, _READY, _SEQUENCE, _POSITION, _SINCE, _BATCHES, _SAMPLES, _BUSY = range(8)


class Duty(NamedTuple):
    """What a worker was last seen doing."""

    pid: int
    ready: bool
    sequence: int
    """The batch that it works on, -1 if none."""
    position: int
    """The row that it works on."""
    since: float
    """When it began with that batch, in seconds of the monotonic clock."""
    batches: int
    samples: int
    busy: float
    """Seconds of work so far, with those of the workers that had this number before."""


class Progress(NamedTuple):
    """Where those who read the samples of a batch say how far they are, and see if to go on.

    Sequences of one number, as calls for each sample would take longer than many a sample.
    """

    position: Any
    """Takes the place of the sample that is about to be read; their number, for all of them."""
    wanted: Any
    """Not 0 as long as somebody waits for the batch."""


class Roster:
    """The rows; pickles as handles."""

    def __init__(self, workers: int) -> None:
        self._rows = arrays.zeros((workers, 8), "i8")
        self._rows[:, _SEQUENCE] = -1
        self._runs = arrays.zeros(_RUNS, "u1")
        for array in self._rows, self._runs:
            arrays.claim(array)  # workers open it while their parent has it, or not at all

    # ---- the worker's side ------------------------------------------------------------------

    def row(self, number: int) -> "Row":
        """The row of a worker, for the worker."""
        return Row(self._rows[number], self._runs)

    # ---- the parent's side ------------------------------------------------------------------

    def read(self, number: int) -> Duty:
        """What a worker was last seen doing."""
        row = self._rows[number].tolist()
        return Duty(
            row[_PID],
            bool(row[_READY]),
            row[_SEQUENCE],
            row[_POSITION],
            row[_SINCE] / 1e9,
            row[_BATCHES],
            row[_SAMPLES],
            row[_BUSY] / 1e9,
        )

    def reset(self, number: int) -> None:
        """Makes a row ready for a new worker; the sums go on."""
        self._rows[number, : _SINCE + 1] = 0
        self._rows[number, _SEQUENCE] = -1

    def open_run(self, run: int) -> None:
        """Says that a run's batches are wanted."""
        self._runs[run % _RUNS] = 1

    def close_run(self, run: int) -> None:
        """Says that they aren't any more."""
        self._runs[run % _RUNS] = 0

    def close_runs(self) -> None:
        """Says so of all runs."""
        self._runs[:] = 0


class Row:
    """One worker's row."""

    def __init__(self, row: Any, runs: Any) -> None:
        self._row, self._runs = memoryview(row), memoryview(runs)
        self._began = 0
        self._progress = 0, Progress([0], [0])

    def arrive(self, pid: int) -> None:
        """Says that the worker is there and has its dataset."""
        self._row[_PID] = pid
        self._row[_READY] = 1

    def begin(self, sequence: int) -> int:
        """Notes the beginning of a batch; returns the time."""
        self._began = time.monotonic_ns()
        self._row[_POSITION] = 0
        self._row[_SINCE] = self._began
        self._row[_SEQUENCE] = sequence
        return self._began

    def at(self, position: int) -> None:
        """Notes the sample that is about to be read."""
        self._row[_POSITION] = position

    def progress(self, run: int) -> "Progress":
        """What a batch of that run is read with."""
        if self._progress[0] != run:  # as a rule, it's that of the last batch
            wanted = self._runs[run % _RUNS :][:1]
            self._progress = run, Progress(self._row[_POSITION:][:1], wanted)
        return self._progress[1]

    @property
    def position(self) -> int:
        """The sample that was being read."""
        return int(self._row[_POSITION])

    def end(self, samples: int) -> int:
        """Counts a finished batch; returns the time."""
        now = time.monotonic_ns()
        self._row[_BATCHES] += 1
        self._row[_SAMPLES] += samples
        self._row[_BUSY] += now - self._began
        return now

    def rest(self) -> None:
        """Notes that the batch has been handed on."""
        self._row[_SEQUENCE] = -1

    def wanted(self, run: int) -> bool:
        """Whether a run's batches are still wanted."""
        return bool(self._runs[run % _RUNS])
