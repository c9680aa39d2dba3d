"""Datasets that all contestants read: the same samples, as an array or written in place."""

import os
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

SHAPE = (3, 224, 224)
BATCH = 64
FIELDS = 30
_MEAN = (np.array([0.485, 0.456, 0.406], "f4") * 255).reshape(3, 1, 1)
_SCALE = (1 / (np.array([0.229, 0.224, 0.225], "f4") * 255)).reshape(3, 1, 1)
_PRIMES = 7919, 104_729

Pixels = np.ndarray[Any, np.dtype[Any]]


class Workload:
    """Samples of `SHAPE`; `into` writes one, `sample` returns a new one."""

    batch: ClassVar[int] = BATCH

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def into(self, index: int, out: Pixels) -> None:
        """Writes a sample."""
        raise NotImplementedError

    def sample(self, index: int) -> Any:
        """Makes a sample."""
        out = np.empty(SHAPE, "f4")
        self.into(index, out)
        return out

    def __getitem__(self, index: int) -> Any:
        if index >= self.length:
            raise IndexError(index)
        return self.sample(int(index))


class Fill(Workload):
    """A constant: what it costs to write the bytes."""

    def into(self, index: int, out: Pixels) -> None:
        """Writes a sample."""
        out.fill(index)


class Augment(Workload):
    """Crops, flips and normalises pictures that are in memory."""

    _pictures: ClassVar[Pixels | None] = None

    def into(self, index: int, out: Pixels) -> None:
        """Writes a sample."""
        if Augment._pictures is None:
            Augment._pictures = np.random.default_rng(0).integers(0, 256, (64, 256, 256, 3), "u1")
        top, left = (index * prime % 33 for prime in _PRIMES)
        crop = Augment._pictures[index % 64, top : top + 224, left : left + 224]
        crop = crop[:, ::-1] if index * 31 & 1 else crop
        np.subtract(crop.transpose(2, 0, 1), _MEAN, out=out)
        out *= _SCALE


class Jpeg(Workload):
    """Decodes photos of 500 x 375 pixels, cuts, scales and normalises them."""

    def __init__(self, length: int, folder: str) -> None:
        super().__init__(length)
        self.files = sorted(map(str, Path(folder).glob("*.jpg")))

    def into(self, index: int, out: Pixels) -> None:
        """Writes a sample."""
        from PIL import Image

        with Image.open(self.files[index % len(self.files)]) as photo:
            side = 250 + index * _PRIMES[0] % 120
            left, top = index * 31 % (500 - side), index * 17 % (376 - side)
            box = left, top, left + side, top + side
            small = photo.convert("RGB").resize(SHAPE[1:], Image.Resampling.BILINEAR, box=box)
        np.subtract(np.asarray(small).transpose(2, 0, 1), _MEAN, out=out)
        out *= _SCALE


class Tiny(Workload):
    """One number."""

    batch = 1

    def sample(self, index: int) -> Any:
        """Makes a sample."""
        return float(index)


class Fields(Workload):
    """A dict of numbers."""

    batch = 1

    def sample(self, index: int) -> Any:
        """Makes a sample."""
        return {f"field {number}": float(index) for number in range(FIELDS)}


class Pids(Workload):
    """Says who made the sample: for killing that process."""

    batch = 4

    def sample(self, index: int) -> Any:
        """Makes a sample."""
        time.sleep(0.002)
        return np.array([index, os.getpid()], "i8")


KINDS: dict[str, type[Workload]] = {
    "fill": Fill,
    "augment": Augment,
    "jpeg": Jpeg,
    "tiny": Tiny,
    "fields": Fields,
    "kill": Pids,
}


def make(kind: str, length: int, folder: str | None) -> Workload:
    """The dataset of a workload; `folder` holds the photos."""
    if kind == "jpeg":
        return Jpeg(length, folder or "")
    return KINDS[kind](length)


def write_photos(folder: Path, count: int = 128) -> None:
    """Cuts pictures of 500 x 375 pixels out of the packaged photos.

    Raises ImportError if Pillow is missing, FileNotFoundError if there are no photos.
    """
    from PIL import Image

    from ropeway.demo.photos import packaged_photos

    chance = np.random.default_rng(1)
    photos = [Image.open(path).convert("RGB") for path in packaged_photos()]
    photos = [photo for photo in photos if min(photo.size) >= 300]
    if not photos:
        raise FileNotFoundError("no packaged photos: install scikit-image and scikit-learn")
    for number in range(count):
        photo = photos[number % len(photos)]
        width, height = photo.size
        scale = chance.uniform(0.6, 1.0) * min(width / 500, height / 375)
        wide, high = int(500 * scale), int(375 * scale)
        left, top = int(chance.integers(width - wide + 1)), int(chance.integers(height - high + 1))
        box = left, top, left + wide, top + high
        cut = photo.resize((500, 375), Image.Resampling.BICUBIC, box=box)
        cut.save(folder / f"{number:05}.jpg", quality=90)
