"""On which cores the two processes of a trial run."""

import os
from pathlib import Path

ONE_CORE = "one core"
TWO_CORES = "two cores"

Cores = tuple[int, int]
"""The core of the near process and that of the far one."""


def placements() -> dict[str, Cores]:
    """The placements that this machine has; a machine with one core has no `TWO_CORES`."""
    first, *others = sorted(os.sched_getaffinity(0))
    found = {ONE_CORE: (first, first)}
    if others:
        siblings = _siblings(first)
        apart = [core for core in others if core not in siblings]
        found[TWO_CORES] = (first, (apart or others)[0])
    return found


def pin(core: int) -> None:
    """Keeps this process, and what it starts from now on, on one core."""
    os.sched_setaffinity(0, {core})


def _siblings(core: int) -> set[int]:
    """The hardware threads that share a core with this one."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return {core}
    bounds = [span.split("-") for span in text.strip().split(",")]
    return {thread for span in bounds for thread in range(int(span[0]), int(span[-1]) + 1)}
