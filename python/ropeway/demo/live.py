"""The one line that shows a run while it goes on."""

import shutil
import sys
import time
from collections import Counter
from statistics import fmean
from typing import TextIO

from .handoff import HandOff
from .summary import seconds, span

WINDOW = 3_000_000_000  # ns; rates are those of the last three seconds
PLAIN_EVERY = 5.0  # seconds between lines where there is no terminal
PLACES = ("free", "fill", "ready", "train")


def places(handoffs: list[HandOff], slots: int) -> Counter[str]:
    """Counts the slots by where they were when the trainer took a batch.

    It is the latest of which the batches behind it, one in each of the other slots, are known.
    """
    taken, *others = handoffs[-slots:]
    return Counter(["train", *(place_at(taken.taken, other) for other in others)])


def place_at(time: int, handoff: HandOff) -> str:
    """Names where a batch's slot was at a time before the trainer took it."""
    if time < handoff.began:
        return "free"
    return "fill" if time < handoff.ready else "ready"


def waiting(handoffs: list[HandOff], loaders: int) -> str:
    """Says which side waits for the other, and for how much of its time."""
    took = span(handoffs)
    trained = sum(h.released - h.taken for h in handoffs)
    filled = sum(fill.ended - fill.began for h in handoffs for fill in h.fills)
    trainer, loader = 1 - trained / took, 1 - filled / (loaders * took)
    if max(trainer, loader) < 0.05:
        return "nobody waits"
    return f"trainer waits {trainer:.0%}" if trainer > loader else f"loaders wait {loader:.0%}"


def line(handoffs: list[HandOff], slots: int, loaders: int, elapsed: float) -> str:
    """Writes the line for a moment of the run; what matters less is at the end."""
    if len(handoffs) < slots:
        return f"{elapsed:.0f}s starting"
    counts = places(handoffs, slots)
    where = " ".join(f"{counts[place]} {place}" for place in PLACES)
    end = handoffs[-1].released
    recent = [h for h in handoffs[-1000:] if h.released > end - WINDOW]
    took = seconds(span(recent))
    rate, gigabytes = (
        sum(h.images for h in recent) / took,
        sum(h.nbytes for h in recent) / took / 1e9,
    )
    loss = fmean(h.loss for h in recent)
    return (
        f"{elapsed:.0f}s {rate:.0f} images/s {gigabytes:.2f} GB/s, {where}, "
        f"{waiting(recent, loaders)}, loss {loss:.3f}"
    )


class LiveLine:
    """Shows the line: again and again in place on a terminal, every few seconds elsewhere."""

    def __init__(self, out: TextIO | None = None):
        self.out = out or sys.stdout
        self.in_place = self.out.isatty()
        self.next_plain = time.monotonic() + PLAIN_EVERY

    def due(self) -> bool:
        """Tells whether a line should be shown now."""
        return self.in_place or time.monotonic() >= self.next_plain

    def show(self, text: str) -> None:
        """Shows the line."""
        if self.in_place:
            width = shutil.get_terminal_size().columns
            self.out.write(f"\r{text[: width - 3]}\x1b[K")  # leaves room for ^C
        else:
            self.next_plain = time.monotonic() + PLAIN_EVERY
            self.out.write(f"{text}\n")
        self.out.flush()

    def clear(self) -> None:
        """Takes the line away, so that what is printed next begins at the left."""
        if self.in_place:
            self.out.write("\r\x1b[K")
            self.out.flush()
