"""The state of a worker's random generators, noted so that one in its place can go on from there.

A worker's generators are seeded once and run on from batch to batch, as torch has it. So a worker
that replaces a dead one needs the state after the last batch that was handed on.
"""

import importlib
import pickle
import random
from typing import Any

import numpy as np
import torch

import ropeway._arrays as arrays
from ropeway.loader.seeds import _watched

_ROOM = 16_384
_TAG, _LENGTH = 0, 1
_NONE = -1


class Notes:
    """Notes of all workers, in shared memory; pickles as a handle."""

    def __init__(self, workers: int) -> None:
        self._notes = arrays.zeros((workers, 3, _ROOM), "u1")
        self._notes[:, :, :8].view("i8")[...] = _NONE
        arrays.claim(self._notes)

    def of(self, number: int) -> "Note":
        """The notes of one worker."""
        return Note(self._notes[number])


class Note:
    """Three notes of one worker: two that take turns, and one from where its epoch began.

    A note is tagged with the task behind which it was made. The older one stays until a task
    later, so a worker may die while it writes.
    """

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self._heads = rows[:, :16].view("i8")
        self._turn = 0
        importlib.import_module("numpy.random")  # what isn't imported isn't watched
        self._watched = _watched()
        self._seen: Any = None

    def save(self, task: int) -> None:
        """Notes the state behind a task, if it has changed."""
        seen = self._look()
        if seen is not None and seen == self._seen:
            return
        self._seen = seen
        self._write(self._turn, task, _state())
        self._turn = 1 - self._turn

    def begin_epoch(self, task: int) -> None:
        """Notes the state at the beginning of an epoch."""
        self._write(2, task, _state())

    def restore(self, task: int) -> None:
        """Sets the generators to the state before a task, if it was noted."""
        tags = self._heads[:2, _TAG].tolist()
        known = [turn for turn in (0, 1) if _NONE < tags[turn] < task]
        if known:
            newest = max(known, key=lambda turn: tags[turn])
            self._turn = 1 - newest
            self._read(newest)

    def restore_epoch(self) -> bool:
        """Sets the generators as they were when the epoch began; False if that isn't noted."""
        if self._heads[2, _TAG] == _NONE:
            return False
        self._read(2)
        return True

    def _look(self) -> Any:
        """Words that change when a generator is drawn from; None if that can't be seen."""
        if self._watched is None:
            return None
        words = [words[place] for words, places in self._watched for place in places]
        return words, torch.get_rng_state().numpy().tobytes()

    def _write(self, number: int, task: int, state: bytes) -> None:
        if len(state) > _ROOM - 16:
            return
        self._heads[number, _TAG] = _NONE
        self._rows[number, 16 : 16 + len(state)] = np.frombuffer(state, "u1")
        self._heads[number, _LENGTH] = len(state)
        self._heads[number, _TAG] = task

    def _read(self, number: int) -> None:
        length = int(self._heads[number, _LENGTH])
        python, legacy, torchs = pickle.loads(self._rows[number, 16 : 16 + length].tobytes())
        random.setstate(python)
        np.random.set_state(legacy)
        torch.set_rng_state(torch.frombuffer(bytearray(torchs), dtype=torch.uint8))


def _state() -> bytes:
    torchs = torch.get_rng_state().numpy().tobytes()
    return pickle.dumps((random.getstate(), np.random.get_state(), torchs), protocol=5)
