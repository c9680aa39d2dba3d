"""What is noted about one batch on its way from a loader through a slot to the trainer.

Times are `time.monotonic_ns()`, which all processes of a machine share.
"""

import resource
from typing import Any, NamedTuple

from .place import Place


class Fill(NamedTuple):
    """The loader's half; it travels in the slot's meta."""

    batch: int
    loader: int
    pid: int
    asked: int  # when the loader wanted a slot
    acquired: int  # when it had one
    published: int  # when it was done with it
    faults: int  # page faults of the loader while it wrote into the slot
    place: Place | None  # where its images lay


class HandOff(NamedTuple):
    """A batch that has been trained on."""

    fill: Fill
    slot: int
    images: int
    nbytes: int
    asked: int  # when the trainer wanted a batch
    taken: int
    released: int
    faults: int  # page faults of the trainer from taken to released
    place: Place | None
    loss: float  # mean squared error of the labels, before learning from them
    error: float  # mean error in degrees

    @property
    def in_place(self) -> bool:
        """Whether the trainer read the very bytes that the loader wrote."""
        return self.place is not None and self.place == self.fill.place


def packed(fill: Fill) -> dict[str, Any]:
    """Turns the loader's half into what a slot's meta can carry."""
    return fill._asdict() | {"place": fill.place and list(fill.place)}


def unpacked(meta: dict[str, Any]) -> Fill:
    """Undoes `packed`."""
    return Fill(**meta | {"place": meta["place"] and Place(*meta["place"])})


def page_faults() -> int:
    """Counts the pages that the kernel has given to this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
