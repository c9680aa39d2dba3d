"""The one line that shows a run while it goes on."""

import shutil
import sys
import time
from collections import Counter
from statistics import fmean
from typing import TextIO

import ropeway as rw

from .handoff import HandOff
from .summary import loaders_waited, seconds, trainer_waited

WINDOW = 3_000_000_000  # ns; rates are those of the last three seconds
PLAIN_EVERY = 5.0  # seconds between lines where there is no terminal
PLACES = ("free", "fill", "ready", "train")


def places(status: rw.PoolStatus) -> Counter[str]:
    """Counts the slots by where they are."""
    return Counter(place_of_slot(slot.stage, slot.state) for slot in status.slots)


def place_of_slot(stage: str, state: str) -> str:
    """Names where a slot is in this demo's words."""
    held = state.startswith("held")
    if stage == "fill":
        return "fill" if held else "free"
    return "train" if held else "ready"


def waiting(handoffs: list[HandOff]) -> str:
    """Says which side waits for the other, and for how much of its time."""
    trainer, loaders = trainer_waited(handoffs), loaders_waited(handoffs)
    if max(trainer, loaders) < 0.05:
        return "nobody waits"
    return f"trainer waits {trainer:.0%}" if trainer > loaders else f"loaders wait {loaders:.0%}"


def line(handoffs: list[HandOff], status: rw.PoolStatus, elapsed: float) -> str:
    """Writes the line for a moment of the run; what matters less is at the end."""
    counts = places(status)
    slots = " ".join(f"{counts[place]} {place}" for place in PLACES)
    if not handoffs:
        return f"{elapsed:.0f}s starting, {slots}"
    end = handoffs[-1].released
    recent = [h for h in handoffs[-1000:] if h.released > end - WINDOW]
    took = seconds(max(1, end - recent[0].taken))
    rate, gigabytes = (
        sum(h.images for h in recent) / took,
        sum(h.nbytes for h in recent) / took / 1e9,
    )
    loss = fmean(h.loss for h in recent)
    return (
        f"{elapsed:.0f}s {rate:.0f} images/s {gigabytes:.2f} GB/s, {slots}, {waiting(recent)}, "
        f"loss {loss:.3f}"
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
