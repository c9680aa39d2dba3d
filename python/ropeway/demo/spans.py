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
    for h in handoffs:
        row, text = rows.setdefault(h.slot, []), f"{h.batch}"
        if row:
            row.append(Span(row[-1].end, h.began, FREE))
        row.append(Span(h.began, h.ready, FILLING, f"{text} by {loaders_of(h)}"))
        row.append(Span(h.ready, h.taken, READY, text))
        row.append(Span(h.taken, h.released, TRAINING, text))
    return {f"slot {slot}": rows[slot] for slot in sorted(rows)}


def loaders_of(handoff: HandOff) -> str:
    """Names those who had a part in a batch."""
    numbers = sorted({fill.loader for fill in handoff.fills})
    return f"loader{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def process_rows(handoffs: list[HandOff]) -> dict[str, list[Span]]:
    """Tells what each process did."""
    numbers = sorted({fill.loader for h in handoffs for fill in h.fills})
    rows: dict[str, list[Span]] = {f"loader {number}": [] for number in numbers}
    fills = sorted((fill.began, fill, h.batch) for h in handoffs for fill in h.fills)
    for _, fill, batch in fills:
        row = rows[f"loader {fill.loader}"]
        if row and row[-1].end < fill.began:
            row.append(Span(row[-1].end, fill.began, WAITING))
        row.append(Span(fill.began, fill.ended, FILLING, f"{batch}"))
    rows["trainer"] = [
        span
        for h in handoffs
        for span in (
            Span(h.asked, h.taken, WAITING),
            Span(h.taken, h.released, TRAINING, f"{h.batch}"),
        )
    ]
    return rows


def fillings(handoffs: list[HandOff]) -> list[tuple[int, int]]:
    """Gives the stretches in which at least one loader filled a slot."""
    return merged((fill.began, fill.ended) for h in handoffs for fill in h.fills)


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
