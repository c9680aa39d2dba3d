"""Stretches of time: who held which slot when, and how much of that overlapped."""

from collections.abc import Iterable
from typing import NamedTuple

from .handoff import HandOff

FREE, FILLING, READY, TRAINING, WAITING = (
    "waiting to be filled",
    "filling",
    "ready",
    "training",
    "waiting",
)


class Span(NamedTuple):
    """A stretch of time (monotonic ns) in one row of the picture."""

    start: int
    end: int
    stage: str
    text: str = ""


def slot_rows(handoffs: list[HandOff]) -> dict[str, list[Span]]:
    """Tells what each slot went through."""
    rows: dict[int, list[Span]] = {}
    for h in sorted(handoffs, key=lambda h: h.fill.acquired):
        row, fill = rows.setdefault(h.slot, []), h.fill
        if row:
            row.append(Span(row[-1].end, fill.acquired, FREE))
        row.append(
            Span(fill.acquired, fill.published, FILLING, f"{fill.batch} by loader {fill.loader}")
        )
        row.append(Span(fill.published, h.taken, READY, f"{fill.batch}"))
        row.append(Span(h.taken, h.released, TRAINING, f"{fill.batch}"))
    return {f"slot {slot}": rows[slot] for slot in sorted(rows)}


def process_rows(handoffs: list[HandOff]) -> dict[str, list[Span]]:
    """Tells what each process did."""
    rows: dict[str, list[Span]] = {
        f"loader {n}": [] for n in sorted({h.fill.loader for h in handoffs})
    }
    rows["trainer"] = []
    for h in handoffs:
        fill, text = h.fill, f"{h.fill.batch}"
        row = rows[f"loader {fill.loader}"]
        row.append(Span(fill.asked, fill.acquired, WAITING))
        row.append(Span(fill.acquired, fill.published, FILLING, text))
        rows["trainer"].append(Span(h.asked, h.taken, WAITING))
        rows["trainer"].append(Span(h.taken, h.released, TRAINING, text))
    return rows


def fillings(handoffs: list[HandOff]) -> list[tuple[int, int]]:
    """Gives the stretches in which at least one loader filled a slot."""
    return merged((h.fill.acquired, h.fill.published) for h in handoffs)


def trainings(handoffs: list[HandOff]) -> list[tuple[int, int]]:
    """Gives the stretches in which the trainer learned."""
    return merged((h.taken, h.released) for h in handoffs)


def merged(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins stretches that touch or overlap."""
    result: list[tuple[int, int]] = []
    for start, end in sorted(stretches):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def shared(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> int:
    """Measures the time that two lists of merged stretches have in common."""
    total = i = j = 0
    while i < len(a) and j < len(b):
        total += max(0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def overlap(handoffs: list[HandOff]) -> float:
    """Gives the share of the training time in which a loader was filling another slot."""
    training = trainings(handoffs)
    return shared(training, fillings(handoffs)) / max(
        1, sum(end - start for start, end in training)
    )
