"""A run of the demo from start to end."""

import os
import time
from pathlib import Path

import ropeway as rw

from . import DemoError
from .child import Child, keep_to_one_thread
from .handoff import HandOff
from .live import LiveLine, line
from .options import Options
from .photos import Found, find_photos, unreadable
from .stop import Stop
from .summary import Death, death, laid_out, seconds, summary
from .timeline import draw
from .trainer import check_installed, train

TICK = 0.1  # seconds between looks at the processes
GRACE = 0.3  # seconds that the trainer has to end when told to
MOST_TOLD = 10  # photos that couldn't be read


class Run:
    """The trainer, and what it has reported so far."""

    def __init__(self, options: Options, photos: list[Path]):
        self.options, self.photos = options, photos
        self.start = time.monotonic_ns()
        self.handoffs: list[HandOff] = []
        self.stats: rw.LoaderStats | None = None
        self.trainer = Child("the trainer", train, photos, options)

    @property
    def elapsed(self) -> float:
        """Gives the seconds since the start."""
        return seconds(time.monotonic_ns() - self.start)

    def hear(self) -> None:
        """Takes in what the trainer has reported. Raises `DemoError` if it has failed."""
        failed = self.trainer.failed
        for handoff, stats in self.trainer.heard():
            self.handoffs.append(handoff)
            self.stats = stats
        if failed:
            raise DemoError(f"{self.trainer.name} {self.trainer.ending}")

    @property
    def line(self) -> str:
        """Tells how it goes."""
        return line(self.handoffs, self.options.slots, self.options.loaders, self.elapsed)

    @property
    def deaths(self) -> list[Death]:
        """Tells of the loaders that were killed."""
        endings = self.stats.endings if self.stats else ()
        return [death(ending, self.handoffs) for ending in endings]


def run(options: Options, stop: Stop) -> int:
    """Runs the demo and prints its summary. Gives the exit status."""
    check_installed(options.framework)
    check_writable(options.timeline)
    found = find_photos(options.folder)
    keep_to_one_thread()
    print(introduction(options, found), flush=True)
    live = LiveLine()
    it = Run(options, found.photos)
    try:
        while not it.trainer.ended and not stop.signal:
            time.sleep(TICK)
            it.hear()
            if live.due():
                live.show(it.line)
        it.hear()
    finally:
        it.trainer.hang_up()
        it.trainer.finish(time.monotonic() + GRACE)
        live.clear()
    if stop.signal:
        print(f"stopped after {it.elapsed:.1f} s and {len(it.handoffs)} batches")
    else:
        conclude(it)
    return stop.status


def introduction(options: Options, found: Found) -> str:
    """Says what is about to happen."""
    left_out = f" (left out: {found.left_out})" if found.left_out else ""
    return (
        f"photos: {len(found.photos):,}{left_out}, loaders: {options.loaders}, "
        f"trainer: {options.framework}, slots: {options.slots} of {options.batch_size} images; "
        "Ctrl-C stops"
    )


def check_writable(timeline: Path) -> None:
    """Raises `DemoError` if the picture can't be written where it is to go."""
    folder = timeline.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise DemoError(f"--timeline {timeline}: {folder} is not a folder that can be written to")
    if timeline.exists() and not (timeline.is_file() and os.access(timeline, os.W_OK)):
        raise DemoError(
            f"--timeline {timeline}: what is there is not a file that can be written to"
        )


def conclude(it: Run) -> None:
    """Draws the timeline and prints the summary."""
    deaths, timeline = it.deaths, it.options.timeline
    if it.handoffs:
        draw(it.handoffs, deaths, it.start).save(timeline, "PNG")
    lines = summary(it.handoffs, it.stats, deaths, it.start, timeline)
    print("\n".join(lines + passed_over(it)))


def passed_over(it: Run) -> list[str]:
    """Tells of the photos that couldn't be read; of many, only of the first."""
    paths = [
        it.photos[number]
        for number in sorted(frozenset().union(*(h.unreadable for h in it.handoffs)))
    ]
    told = [f"{path}: {unreadable(path)}" for path in paths[:MOST_TOLD]]
    if len(paths) > MOST_TOLD:
        told.append(f"and {len(paths) - MOST_TOLD:,} more photos that could not be read")
    return laid_out([("passed over", text) for text in told])
