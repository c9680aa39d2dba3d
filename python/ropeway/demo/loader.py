"""A loader process: decodes photos, turns them, and writes them straight into slots."""

import itertools
import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import ropeway as rw

from .augment import draw_view, label_of, look, random_of, write_pixels
from .handoff import Fill, packed, page_faults
from .photos import Photos
from .place import Places

Pixels = npt.NDArray[np.uint8]
Images = npt.NDArray[np.float32]


class Published(NamedTuple):
    """The report that a batch lies ready."""

    batch: int


class Unreadable(NamedTuple):
    """The report that a photo was passed over."""

    path: Path
    reason: str


class Task(NamedTuple):
    """What one loader is to do."""

    loader: int
    loaders: int
    first: int  # batch
    batches: int | None  # of all loaders; `None` for as long as the pool is open
    seed: int
    photos: list[Path]


def load(reports: Connection, pool: rw.Pool, task: Task) -> None:
    """Fills slots with the batches of the task until there are no more or the pool is closed."""
    photos, places = Photos(task.photos), Places()
    for batch in stream(task.first, task.loaders, task.batches):
        try:
            fill_slot(pool, task, batch, photos, places)
        except rw.Closed:
            break
        reports.send(Published(batch))
    for path, reason in photos.unreadable.items():
        reports.send(Unreadable(path, reason))


def stream(first: int, loaders: int, batches: int | None) -> Iterator[int]:
    """Gives the batch numbers of one loader: every `loaders`-th from its first on, below `batches`.

    Loader k of n begins at k, and one that takes over begins n after the last batch that was
    published. So there is no shared counter, whose lock a process could take with it when it dies.
    """
    return itertools.takewhile(
        lambda number: batches is None or number < batches, itertools.count(first, loaders)
    )


def fill_slot(pool: rw.Pool, task: Task, batch: int, photos: Photos, places: Places) -> None:
    """Fills the next free slot.

    Raises `rw.Closed` when the pool is closed meanwhile; the slot goes back unused then.
    """
    asked = time.monotonic_ns()
    with pool.acquire() as slot:
        acquired, faults = time.monotonic_ns(), 0
        for row in range(len(slot["label"])):
            if pool.closed:
                raise rw.Closed("the pool was closed while a slot was being filled")
            pixels, label = turned(photos, random_of(task.seed, batch, row))
            faults += write_row(slot["image"], slot["label"], row, pixels, label)
        place = places.of(slot["image"])
        slot.meta = packed(
            Fill(
                batch, task.loader, os.getpid(), asked, acquired, time.monotonic_ns(), faults, place
            )
        )
        slot.publish()


def turned(photos: Photos, random: np.random.Generator) -> tuple[Pixels, float]:
    """Decodes a photo and turns it; gives (H, W, 3) pixels and the label.

    Equal randomness gives equal pictures, whichever loader makes them.
    """
    photo = photos[int(random.integers(len(photos)))]
    view = draw_view(photo.size, random)
    return np.asarray(look(photo, view)), label_of(view)


def write_row(images: Images, labels: Images, row: int, pixels: Pixels, label: float) -> int:
    """Writes one image and its label into the slot; gives the page faults that this caused."""
    before = page_faults()
    write_pixels(pixels, images[row])
    labels[row] = label
    return page_faults() - before
