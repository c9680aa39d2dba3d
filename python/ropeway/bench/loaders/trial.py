"""One trial: a process that measures one contestant on one workload, told and answering in JSON."""

import contextlib
import gc
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .contestants import CONTESTANTS, Contestant
from .workloads import KINDS, make

LEAST = 12
"""Batches that are checked at first, and that are timed at least."""
_MOST = 200_000
_FEW = 20_000
_TICKS = os.sysconf("SC_CLK_TCK")
_PATIENCE = 20.0
_UNNOTICED = 10.0


class WrongBatchError(Exception):
    """A batch isn't the one that it should be."""


@dataclass(frozen=True)
class Trial:
    """What is measured of whom."""

    kind: str
    contestant: str
    workers: int
    seconds: float
    folder: str | None = None

    def to_json(self) -> str:
        """The argument of the process that measures this trial."""
        return json.dumps(asdict(self))

    def measure(self) -> dict[str, float]:
        """Measures in this process."""
        most = _MOST if KINDS[self.kind].batch == 1 else _FEW
        data = make(self.kind, most * KINDS[self.kind].batch, self.folder)
        contestant = CONTESTANTS[self.contestant](data, self.workers)
        if self.kind == "kill":
            return _detection(contestant)
        return _speed(self.kind, contestant, self.seconds)


def _speed(kind: str, contestant: Contestant, seconds: float) -> dict[str, float]:
    began = time.perf_counter()
    batches = iter(contestant)
    batch = next(batches)
    _touch(batch)
    first = time.perf_counter() - began
    count = _check(contestant, kind, batch, 0)
    while count < LEAST:
        batch = None
        batch = next(batches)
        count = _check(contestant, kind, batch, count)
    warm = time.perf_counter() + seconds  # until memory that is filled again and again is warm
    while time.perf_counter() < warm:
        batch = None
        batch = next(batches)
        count += 1
    used, faults = _cost()
    ahead = 2 * contestant.workers + 2  # got ready meanwhile
    for _ in range(ahead):
        batch = None
        batch = next(batches)
    began, number = time.perf_counter(), 0
    while number < LEAST or time.perf_counter() - began < seconds:
        batch = None
        batch = next(batches)
        _touch(batch)
        number += 1
    took = time.perf_counter() - began
    used_then, faults_then = _cost()
    made = ahead + number
    count = _check(contestant, kind, batch, count + made - 1)
    memory = 0.0
    for _ in range(3):
        batch = None
        batch = next(batches)
        memory = max(memory, _pss())
    batch = None
    held = [batches]
    del batches
    return {
        "batches_s": number / took,
        "cpu_ms": (used_then - used) / made * 1e3,
        "faults": (faults_then - faults) / made,
        "first_s": first,
        "pss_mb": memory,
        "shutdown_s": _shutdown(contestant, held),
    }


def _shutdown(contestant: Contestant, held: list[Any]) -> float:
    """How long it takes until all workers are gone; `held` has the only reference to batches."""
    before = _workers()
    began = time.perf_counter()
    contestant.close()
    held.clear()
    gc.collect()
    end = began + _PATIENCE
    while time.perf_counter() < end and any(map(_is_alive, before)):
        time.sleep(0.001)
    return time.perf_counter() - began


def _detection(contestant: Contestant) -> dict[str, float]:
    """How long it takes from a kill to an exception, or to a batch of a new process."""
    batches = iter(contestant)
    known: set[int] = set()
    pid = 0
    for _ in range(12):
        pid = int(np.asarray(next(batches))[0, 1])
        known.add(pid)
    watchdog = threading.Timer(_UNNOTICED, _give_up)
    watchdog.daemon = True
    watchdog.start()
    os.kill(pid, signal.SIGKILL)
    began = time.perf_counter()
    went_on = 0.0
    while True:
        try:
            batch = np.asarray(next(batches))
        except StopIteration:
            break
        except Exception:
            return {"noticed_s": time.perf_counter() - began, "went_on": went_on}
        if int(batch[-1, 1]) not in known:
            went_on = 1.0
            took = time.perf_counter() - began
            with contextlib.suppress(Exception):
                contestant.close()
            return {"noticed_s": took, "went_on": went_on}
    raise TimeoutError("the kill wasn't noticed: batches came to an end")


def _give_up() -> None:
    """Ends this process, whatever its loader is waiting for."""
    _tell({"error": f"the kill wasn't noticed within {_UNNOTICED:.0f} s"})


# ---- answers -------------------------------------------------------------------------------------


def _touch(batch: Any) -> None:
    if hasattr(batch, "shape") and len(batch.shape) == 4:
        float(batch[0, 0, 0, 0])


def _check(contestant: Contestant, kind: str, batch: Any, number: int) -> int:
    """Compares a batch's samples with those that it should hold; returns the next number."""
    if not contestant.hands_over:
        return number + 1
    data = contestant.data
    number_then = number + 1
    number = getattr(contestant, "number", number)
    keys = range(number * data.batch, (number + 1) * data.batch)
    if kind in ("fill", "augment", "jpeg"):
        found = np.asarray(batch)
        rows = (0, data.batch // 2, data.batch - 1) if kind == "jpeg" else range(data.batch)
        good = all(np.array_equal(found[row], data.sample(keys[row])) for row in rows)
    else:
        values = batch.values() if isinstance(batch, dict) else [batch]
        good = all(float(value[0]) == keys[0] for value in values)
    if not good:
        raise WrongBatchError(f"batch {number} isn't the one that it should be")
    return number_then


# ---- processes -----------------------------------------------------------------------------------


def _stats() -> dict[int, tuple[int, int, int]]:
    """Of this process and all below it: parent, ticks used, minor faults, with ended children's."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(name)] = (
            int(fields[1]),
            sum(map(int, fields[11:15])),
            int(fields[7]) + int(fields[8]),
        )
    mine, grown = {os.getpid()}, True
    while grown:
        below = {pid for pid, (parent, *_) in found.items() if parent in mine} - mine
        mine |= below
        grown = bool(below)
    return {pid: found[pid] for pid in mine if pid in found}


def _cost() -> tuple[float, int]:
    """Seconds of CPU time and minor faults of the process tree."""
    stats = _stats().values()
    return sum(ticks for _, ticks, _ in stats) / _TICKS, sum(faults for *_, faults in stats)


def _pss() -> float:
    """Memory of the process tree in megabytes, what is shared counted once."""
    total = 0
    for pid in _stats():
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
        except OSError:
            continue
    return total * 1024 / 1e6


def _workers() -> list[int]:
    """Processes below this one, but for the standard library's trackers."""
    found = []
    for pid in set(_stats()) - {os.getpid()}:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"resource_tracker" not in command and b"ropeway.loader.zygote" not in command:
                found.append(pid)
    return found


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _tell(answer: dict[str, Any]) -> NoReturn:
    """Answers and ends; whatever a loader can't end stays behind, and is ended by who has asked."""
    print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    answer: dict[str, Any]
    try:
        answer = Trial(**json.loads(sys.argv[1])).measure()
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"[:300]}
    _tell(answer)
