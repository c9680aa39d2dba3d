"""A run of the demo from start to end."""

import math
import os
import time
from pathlib import Path
from typing import NamedTuple

import ropeway as rw

from . import DemoError
from .augment import SIDE
from .child import Child, keep_to_one_thread
from .handoff import HandOff
from .live import LiveLine, line
from .loader import Published, Task, Unreadable, load
from .photos import find_photos
from .stop import Stop
from .summary import Death, seconds, summary
from .timeline import draw
from .trainer import check_installed, train

TICK = 0.1  # seconds between looks at the processes
GRACE = 0.3  # seconds that a process has to end when told to
MOST_FRUITLESS = 3  # times that a loader is replaced without having published anything


class Options(NamedTuple):
    """What the command line says."""

    folder: Path | None = None
    seconds: float | None = 35.0
    batches: int | None = None
    batch_size: int = 32
    slots: int = 4
    loaders: int = 2
    framework: str = "numpy"
    seed: int = 0
    timeline: Path = Path("timeline.png")


class Loaders:
    """The loader processes, each with its own stream of batches; a killed one is replaced."""

    def __init__(self, pool: rw.Pool, photos: list[Path], options: Options):
        self.pool, self.photos, self.options = pool, photos, options
        self.next = list(range(options.loaders))
        self.fruitless = [0] * options.loaders
        self.deaths: list[Death] = []
        self.unreadable: dict[Path, str] = {}
        self.children = [self._start(loader) for loader in range(options.loaders)]

    def _start(self, loader: int) -> Child:
        options = self.options
        task = Task(
            loader, options.loaders, self.next[loader], options.batches, options.seed, self.photos
        )
        return Child(f"loader {loader}", load, self.pool, task)

    @property
    def ended(self) -> bool:
        """Whether every loader has ended."""
        return all(child.ended for child in self.children)

    def hear(self) -> None:
        """Notes how far each loader has come."""
        for loader, child in enumerate(self.children):
            for report in child.heard():
                if isinstance(report, Published):
                    self.next[loader] = report.batch + self.options.loaders
                    self.fruitless[loader] = 0
                elif isinstance(report, Unreadable):
                    self.unreadable[report.path] = report.reason

    def replace_dead(self) -> None:
        """Starts a new loader where one was killed. Raises `DemoError` where that doesn't help."""
        dead = [k for k, child in enumerate(self.children) if child.failed]
        if dead:
            self.hear()  # the last that they reported
        for loader in dead:
            self._replace(loader, self.children[loader])

    def _replace(self, loader: int, child: Child) -> None:
        self.fruitless[loader] += 1
        if not child.killed or self.fruitless[loader] > MOST_FRUITLESS:
            raise DemoError(f"{child.name} {child.ending}")
        successor = self.children[loader] = self._start(loader)
        self.deaths.append(
            Death(
                time.monotonic_ns(),
                loader,
                child.pid,
                child.ending,
                successor.pid,
                self.next[loader],
            )
        )


class Run:
    """The processes of a run, and what they have done so far."""

    def __init__(self, options: Options, photos: list[Path]):
        self.options = options
        self.start = time.monotonic_ns()
        self.handoffs: list[HandOff] = []
        count = options.batch_size
        fields = {"image": ((count, 3, SIDE, SIDE), "float32"), "label": ((count,), "float32")}
        self.pool = rw.Pool(slots=options.slots, fields=fields)
        self.loaders = Loaders(self.pool, photos, options)
        self.trainer = Child("the trainer", train, self.pool, options.framework, options.seed)
        self.closed = False

    @property
    def elapsed(self) -> float:
        """Gives the seconds since the start."""
        return seconds(time.monotonic_ns() - self.start)

    def hear(self) -> None:
        """Takes in what the processes have reported."""
        self.handoffs += self.trainer.heard()
        self.loaders.hear()

    def look(self) -> None:
        """Hears everybody, replaces killed loaders, and closes the pool when it is time."""
        self.hear()
        if self.trainer.failed:
            raise DemoError(f"{self.trainer.name} {self.trainer.ending}")
        if not self.closed:
            self.loaders.replace_dead()
            self._close_in_time()

    def _close_in_time(self) -> None:
        if self.loaders.ended or self._trained() >= (self.options.seconds or math.inf):
            self.pool.close()
            self.closed = True

    def _trained(self) -> float:
        """Gives the seconds since the first batch; importing a framework can take long."""
        return seconds(time.monotonic_ns() - self.handoffs[0].taken) if self.handoffs else 0

    @property
    def ended(self) -> bool:
        """Whether the trainer has ended, which it does when the pool is closed and drained."""
        return self.trainer.ended

    def finish(self) -> None:
        """Ends whatever still runs."""
        self.pool.abort()
        deadline = time.monotonic() + GRACE
        for child in (*self.loaders.children, self.trainer):
            child.finish(deadline)


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
        while not it.ended and not stop.signal:
            time.sleep(TICK)
            it.look()
            if live.due():
                live.show(line(it.handoffs, it.pool.status(), it.elapsed))
        it.hear()
    finally:
        it.finish()
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
    deaths, timeline = it.loaders.deaths, it.options.timeline
    if it.handoffs:
        draw(it.handoffs, deaths, it.start).save(timeline, "PNG")
    print("\n".join(summary(it.handoffs, deaths, it.start, timeline)))
    for path, reason in it.loaders.unreadable.items():
        print(f"{'passed over':<13}{path}: {reason}")
