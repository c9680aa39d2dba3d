"""What a run showed, as lines of text."""

from collections.abc import Hashable, Iterable
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from .augment import LARGEST_ANGLE
from .handoff import HandOff

ENDS = 10  # batches at each end of a run whose mean loss is shown


class Death(NamedTuple):
    """A loader that was killed, and who took over."""

    time: int  # monotonic ns
    loader: int
    pid: int
    ending: str
    successor: int  # pid
    batch: int  # where the successor began


def seconds(ns: float) -> float:
    """Turns nanoseconds into seconds."""
    return ns / 1e9


def span(handoffs: list[HandOff]) -> int:
    """Measures from the first batch taken to the last released, in ns; never 0."""
    return max(1, handoffs[-1].released - handoffs[0].taken)


def trainer_waited(handoffs: list[HandOff]) -> float:
    """Gives the share of its time that the trainer waited, from the first batch on."""
    return sum(h.taken - h.asked for h in handoffs[1:]) / span(handoffs)


def loaders_waited(handoffs: Iterable[HandOff]) -> float:
    """Gives the share of their time that the loaders waited for a slot."""
    fills = [h.fill for h in handoffs]
    return sum(f.acquired - f.asked for f in fills) / max(
        1, sum(f.published - f.asked for f in fills)
    )


def verdict(handoffs: list[HandOff]) -> str:
    """Says which side holds the other up."""
    if trainer_waited(handoffs) > loaders_waited(handoffs):
        return "loader-bound: the trainer waits for the loaders more than they wait for it"
    return "consumer-bound: the loaders wait for the trainer more than it waits for them"


def first_and_later(faults: Iterable[tuple[Hashable, int]]) -> str:
    """Tells the median page faults in slots used before, and at the first use of one."""
    seen: set[Hashable] = set()
    first: list[int] = []
    later: list[int] = []
    for use, count in faults:
        (later if use in seen else first).append(count)
        seen.add(use)
    if not later:
        return f"{median(first):,.0f} in a slot met first"
    return f"{median(later):,.0f} ({median(first):,.0f} in a slot met first)"


def faults_line(handoffs: list[HandOff]) -> str:
    """Tells the page faults per batch of both sides."""
    loader = first_and_later(((h.slot, h.fill.pid), h.fill.faults) for h in handoffs)
    trainer = first_and_later((h.slot, h.faults) for h in handoffs)
    return f"per batch, median: loader while writing {loader}, trainer {trainer}"


def copied_line(handoffs: list[HandOff]) -> str:
    """Tells how many bytes were copied, and how that is known."""
    in_place = [h for h in handoffs if h.in_place]
    if len(in_place) < len(handoffs):
        return (
            f"unknown: only in {len(in_place):,} of {len(handoffs):,} hand-offs did the trainer's "
            "images lie where the loader's did"
        )
    inodes = sorted({h.place.inode for h in in_place if h.place})
    return (
        f"0 bytes by ropeway: in all {len(handoffs):,} hand-offs the trainer's images lay where "
        f"the loader's did (inode {', '.join(map(str, inodes))}, same offset)"
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
        f"loader {death.loader} (pid {death.pid}) {death.ending} at "
        f"{seconds(death.time - start):.1f} s; pid {death.successor} took over at batch "
        f"{death.batch}"
    )


def summary(handoffs: list[HandOff], deaths: list[Death], start: int, timeline: Path) -> list[str]:
    """Lays out what a run showed."""
    replaced = [("replaced", replaced_line(death, start)) for death in deaths]
    if not handoffs:
        return laid_out([("images", "none: no batch was handed over"), *replaced])
    took = seconds(span(handoffs))
    images, nbytes = sum(h.images for h in handoffs), sum(h.nbytes for h in handoffs)
    trainer, loaders = trainer_waited(handoffs), loaders_waited(handoffs)
    size, speed = nbytes / 1e9, nbytes / 1e9 / took
    return laid_out(
        [
            ("images", f"{images:,} in {took:.1f} s, {images / took:,.0f} images/s"),
            ("hand-offs", f"{len(handoffs):,}, {size:.2f} GB handed over, {speed:.3f} GB/s"),
            ("copied", copied_line(handoffs)),
            ("page faults", faults_line(handoffs)),
            ("waiting", f"trainer {trainer:.0%} of its time, loaders {loaders:.0%} of theirs"),
            ("verdict", verdict(handoffs)),
            ("loss", loss_line(handoffs)),
            *replaced,
            ("timeline", f"{timeline}"),
        ]
    )


def laid_out(lines: list[tuple[str, str]]) -> list[str]:
    """Puts texts in a column beside their names."""
    return [f"{name:<13}{text}" for name, text in lines]
