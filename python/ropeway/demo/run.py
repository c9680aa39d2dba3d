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
from .photos import find_photos, unreadable
from .stop import Stop
from .summary import Death, death, seconds, summary
from .timeline import draw
from .trainer import check_installed, train

TICK = 0.1  # seconds between looks at the processes
GRACE = 0.3  # seconds that the trainer has to end when told to


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
    photos = find_photos(options.folder)
    keep_to_one_thread()
    print(introduction(options, photos), flush=True)
    live = LiveLine()
    it = Run(options, photos)
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


def introduction(options: Options, photos: list[Path]) -> str:
    """Says what is about to happen."""
    return (
        f"photos: {len(photos)}, loaders: {options.loaders}, trainer: {options.framework}, "
        f"slots: {options.slots} of {options.batch_size} images; Ctrl-C stops"
    )


def check_writable(timeline: Path) -> None:
    """Raises `DemoError` if the picture can't be written where it is to go."""
    folder = timeline.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise DemoError(f"--timeline {timeline}: {folder} is not a folder that can be written to")


def conclude(it: Run) -> None:
    """Draws the timeline and prints the summary."""
    deaths, timeline = it.deaths, it.options.timeline
    if it.handoffs:
        draw(it.handoffs, deaths, it.start).save(timeline, "PNG")
    print("\n".join(summary(it.handoffs, it.stats, deaths, it.start, timeline)))
    for number in sorted(frozenset().union(*(h.unreadable for h in it.handoffs))):
        path = it.photos[number]
        print(f"{'passed over':<13}{path}: {unreadable(path)}")
