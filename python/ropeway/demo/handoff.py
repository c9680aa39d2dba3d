"""What is noted about one batch on its way from the loaders to the trainer.

Times are `time.monotonic_ns()`, which all processes of a machine share.
"""

import resource
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .place import Place

NOTE = np.dtype(
    [
        ("loader", "i8"),
        ("pid", "i8"),
        ("began", "i8"),
        ("ended", "i8"),
        ("faults", "i8"),  # page faults while the image was written
        ("device", "i8"),  # where the image lay: all 0 for private memory
        ("inode", "i8"),
        ("offset", "i8"),
        ("unreadable", "i8"),  # number of a photo that was passed over, or -1
    ]
)
"""What a loader notes about an image that it has made; travels with it."""

Notes = npt.NDArray[np.void]


class Fill(NamedTuple):
    """What one loader process has made of a batch."""

    loader: int
    pid: int
    images: int
    began: int
    ended: int
    faults: int  # page faults of the process while it wrote the images


class HandOff(NamedTuple):
    """A batch that has been trained on."""

    batch: int
    fills: tuple[Fill, ...]  # one for each process
    slot: int
    images: int
    nbytes: int
    asked: int  # when the trainer wanted a batch
    taken: int
    released: int
    faults: int  # page faults of the trainer from taken to released
    place: Place | None
    in_place: int  # images that the trainer read where the loader had written them
    unreadable: frozenset[int]  # photos that were passed over, by number
    loss: float  # mean squared error of the labels, before learning from them
    error: float  # mean error in degrees

    @property
    def began(self) -> int:
        """When the first loader began with the batch."""
        return min(fill.began for fill in self.fills)

    @property
    def ready(self) -> int:
        """When the last loader was done with the batch."""
        return max(fill.ended for fill in self.fills)


def fills_of(notes: Notes) -> tuple[Fill, ...]:
    """Tells who had a part in a batch, by process."""
    parts = (notes[notes["pid"] == pid] for pid in np.unique(notes["pid"]))
    return tuple(
        Fill(
            int(part["loader"][0]),
            int(part["pid"][0]),
            len(part),
            int(part["began"].min()),
            int(part["ended"].max()),
            int(part["faults"].sum()),
        )
        for part in parts
    )


def count_in_place(notes: Notes, images: npt.NDArray[Any], place: Place | None) -> int:
    """Counts the images that lie here, at this place, where a loader has written them."""
    if place is None:
        return 0
    offsets = place.offset + images.strides[0] * np.arange(len(images))
    there = (notes["device"] == place.device) & (notes["inode"] == place.inode)
    return int((there & (notes["offset"] == offsets)).sum())


def unreadable_in(notes: Notes) -> frozenset[int]:
    """Gives the numbers of the photos that were passed over."""
    return frozenset(number for number in notes["unreadable"].tolist() if number >= 0)


def page_faults() -> int:
    """Counts the pages that the kernel has given to this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
