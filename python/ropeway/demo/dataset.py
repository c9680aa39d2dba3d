"""The dataset: photos from disk, each turned by a random angle, written straight into a batch."""

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

import ropeway as rw

from .augment import SIDE, draw_view, label_of, look, write_pixels
from .handoff import NOTE, page_faults
from .photos import Photos
from .place import Places

Field = npt.NDArray[Any]


class Sample(NamedTuple):
    """An image, its label, and how it came about; a batch has the same fields with all rows."""

    image: Field  # (3, SIDE, SIDE) float32
    label: Field  # () float32
    note: Field  # () NOTE


class TurnedPhotos:
    """As many samples as wanted of a few photos; sample by sample another photo and angle."""

    def __init__(self, paths: list[Path], length: int):
        self.photos = Photos(paths)
        self.length = length
        self.places = Places()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        """Makes a sample in memory of its own."""
        image = np.empty((3, SIDE, SIDE), np.float32)
        sample = Sample(image, np.empty((), np.float32), np.empty((), NOTE))
        self.__getitem_into__(index, sample)
        return sample

    def __getitem_into__(self, index: int, out: Sample) -> None:
        """Makes a sample in a row of a batch, and notes there who did it, when and where."""
        began = time.monotonic_ns()
        worker = rw.worker_info()
        assert worker is not None
        random = worker.rng
        number = int(random.integers(len(self.photos)))
        photo = self.photos[number]
        pixels, label = turned(photo, random)
        faults = page_faults()
        write_pixels(pixels, out.image)
        faults = page_faults() - faults
        out.label[...] = label
        unreadable = number if self.photos.is_unreadable(number) else -1
        place = self.places.of(out.image) or (0, 0, 0)
        who = worker.id, os.getpid()
        out.note[...] = (*who, began, time.monotonic_ns(), faults, *place, unreadable)


def turned(photo: Image.Image, random: np.random.Generator) -> tuple[npt.NDArray[np.uint8], float]:
    """Turns a photo at random; gives (H, W, 3) pixels and the label."""
    view = draw_view(photo.size, random)
    return np.asarray(look(photo, view)), label_of(view)
