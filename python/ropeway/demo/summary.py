"""What a run showed, as lines of text."""

from collections.abc import Hashable, Iterable
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import ropeway as rw

from .augment import LARGEST_ANGLE
from .handoff import HandOff

ENDS = 10  # batches at each end of a run whose mean loss is shown


class Death(NamedTuple):
    """A loader that was killed, and who took over."""

    time: int  # monotonic ns
    loader: int
    pid: int
    how: str
    successor: int | None  # pid; `None` if none has made anything
    batch: int | None  # the first that the successor had a part in


def death(ending: rw.WorkerEnding, handoffs: list[HandOff]) -> Death:
    """Tells of a loader's end, with what the hand-offs show of its successor."""
    time = round(ending.noticed * 1e9)
    later = (
        (fill.pid, h.batch)
        for h in handoffs
        for fill in h.fills
        if fill.loader == ending.number and fill.began > time
    )
    return Death(time, ending.number, ending.pid, ending.how, *next(later, (None, None)))


def seconds(ns: float) -> float:
    """Turns nanoseconds into seconds."""
    return ns / 1e9


def span(handoffs: list[HandOff]) -> int:
    """Measures from the first batch taken to the last released, in ns; never 0."""
    return max(1, handoffs[-1].released - handoffs[0].taken)


def waiting_line(stats: rw.LoaderStats) -> str:
    """Tells how long each side waited."""
    idle = 1 - fmean(worker.share for worker in stats.workers)
    return f"trainer {stats.waiting:.0%} of its time, loaders {idle:.0%} of theirs"


def first_and_later(faults: Iterable[tuple[set[Hashable], int]]) -> str:
    """Tells the median page faults in slots used before, and at the first use of one.

    A first use is one with anything in its set that wasn't there before.
    """
    seen: set[Hashable] = set()
    first: list[int] = []
    later: list[int] = []
    for uses, count in faults:
        (later if uses <= seen else first).append(count)
        seen |= uses
    if not later:
        return f"{median(first):,.0f} in a slot met first"
    return f"{median(later):,.0f} ({median(first):,.0f} in a slot met first)"


def faults_line(handoffs: list[HandOff]) -> str:
    """Tells the page faults per batch of both sides."""
    loaders = first_and_later(
        ({(h.slot, fill.pid) for fill in h.fills}, sum(fill.faults for fill in h.fills))
        for h in handoffs
    )
    trainer = first_and_later(({h.slot}, h.faults) for h in handoffs)
    return f"per batch, median: loaders while writing {loaders}, trainer {trainer}"


def copied_line(handoffs: list[HandOff]) -> str:
    """Tells how many bytes were copied, and how that is known."""
    images, in_place = sum(h.images for h in handoffs), sum(h.in_place for h in handoffs)
    if in_place < images:
        return (
            f"unknown: only {in_place:,} of {images:,} images did the trainer read where a loader "
            "had written them"
        )
    inodes = sorted({h.place.inode for h in handoffs if h.place})
    return (
        f"0 bytes by ropeway: in all {len(handoffs):,} hand-offs the trainer read all images where "
        f"the loaders had written them (inode {', '.join(map(str, inodes))}, same offsets)"
    )


def loss_line(handoffs: list[HandOff]) -> str:
    """Tells how the network improved."""
    ends = min(ENDS, (len(handoffs) + 1) // 2)
    first, last = handoffs[:ends], handoffs[-ends:]
    losses = f"{fmean(h.loss for h in first):.3f} → {fmean(h.loss for h in last):.3f}"
    errors = f"{fmean(h.error for h in first):.1f}° → {fmean(h.error for h in last):.1f}°"
    guess = LARGEST_ANGLE / 2
    return (
        f"{losses}, mean error {errors} (first and last {ends} batches; "
        f"always guessing 0° errs by {guess}°)"
    )


def replaced_line(death: Death, start: int) -> str:
    """Tells who took over from a killed loader."""
    return (
        f"at {seconds(death.time - start):.1f} s loader {death.loader} (pid {death.pid}) "
        f"{death.how}; {successor(death)}"
        + ("" if death.batch is None else f" with batch {death.batch}")
    )


def successor(death: Death) -> str:
    """Tells who took over."""
    if death.successor is None:
        return "the one in its place had nothing to do any more"
    return f"pid {death.successor} took over"


def summary(
    handoffs: list[HandOff],
    stats: rw.LoaderStats | None,
    deaths: list[Death],
    start: int,
    timeline: Path,
) -> list[str]:
    """Lays out what a run showed."""
    replaced = [("replaced", replaced_line(death, start)) for death in deaths]
    if not handoffs or stats is None:
        return laid_out([("images", "none: no batch was handed over")])
    took = seconds(span(handoffs))
    images, nbytes = sum(h.images for h in handoffs), sum(h.nbytes for h in handoffs)
    size, speed = nbytes / 1e9, nbytes / 1e9 / took
    return laid_out(
        [
            ("images", f"{images:,} in {took:.1f} s, {images / took:,.0f} images/s"),
            ("hand-offs", f"{len(handoffs):,}, {size:.2f} GB handed over, {speed:.3f} GB/s"),
            ("copied", copied_line(handoffs)),
            ("page faults", faults_line(handoffs)),
            ("waiting", waiting_line(stats)),
            ("verdict", stats.verdict),
            ("loss", loss_line(handoffs)),
            *replaced,
            ("timeline", f"{timeline}"),
        ]
    )


def laid_out(lines: list[tuple[str, str]]) -> list[str]:
    """Puts texts in a column beside their names."""
    return [f"{name:<13}{text}" for name, text in lines]
