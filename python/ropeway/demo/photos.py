"""Finds photos on disk and decodes them."""

import importlib.util
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps

from . import DemoError

# Photos that two packages ship in their wheels and that have an upright direction.
PACKAGED = {
    "skimage": [
        "data/astronaut.png",
        "data/brick.png",
        "data/camera.png",
        "data/chelsea.png",
        "data/coffee.png",
        "data/coins.png",
        "data/motorcycle_left.png",
        "data/motorcycle_right.png",
        "data/rocket.jpg",
    ],
    "sklearn": ["datasets/images/china.jpg", "datasets/images/flower.jpg"],
}
SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
MOST_PHOTOS = 5_000
SHORT_SIDE = (
    480  # larger photos are halved, perhaps several times, while the short side stays above
)


class Found(NamedTuple):
    """The photos to use, and what else was there."""

    photos: list[Path]
    left_out: str = ""


def find_photos(folder: Path | None = None) -> Found:
    """Finds the photos of a folder and the folders in it, or the packaged ones.

    Raises `DemoError` when there is none.
    """
    return Found(packaged_photos()) if folder is None else folder_photos(folder)


def packaged_photos() -> list[Path]:
    """Lists the photos that scikit-image and scikit-learn have on disk; imports neither."""
    photos = [path for package, names in PACKAGED.items() for path in _packaged(package, names)]
    if not photos:
        raise DemoError(
            "the demo's photos come with scikit-image and scikit-learn, and neither is installed: "
            "pip install 'ropeway[demo]', or give a folder with photos (ropeway demo FOLDER)"
        )
    return photos


def _packaged(package: str, names: list[str]) -> Iterator[Path]:
    spec = importlib.util.find_spec(package)
    for place in (spec and spec.submodule_search_locations) or ():
        yield from (path for name in names if (path := Path(place, name)).is_file())


def folder_photos(folder: Path) -> Found:
    """Finds the photos in a folder and the folders in it, by suffix, at most `MOST_PHOTOS`."""
    if not folder.is_dir():
        raise DemoError(f"{folder} is not a folder: give one that holds photos")
    photos: list[Path] = []
    others: Counter[str] = Counter()
    for path in (path for path in folder.rglob("*") if path.is_file()):
        suffix = path.suffix.lower()
        if suffix not in SUFFIXES:
            others[suffix or "without a suffix"] += 1
        elif len(photos) < MOST_PHOTOS:
            photos.append(path)
        else:
            others[f"photos after the first {MOST_PHOTOS:,}"] += 1
    by_number = sorted(others.items(), key=lambda item: (-item[1], item[0]))
    left_out = ", ".join(f"{number:,} {kind}" for kind, number in by_number)
    if not photos:
        raise DemoError(
            f"{folder} holds no photo, that is, no file that ends in "
            f"{', '.join(sorted(SUFFIXES))}; it holds {left_out or 'no files at all'}"
        )
    return Found(sorted(photos), left_out)


def decode(path: Path) -> Image.Image:
    """Reads a photo from disk, upright, in RGB, and not much larger than `SHORT_SIDE`.

    Raises whatever the decoders do when the file is no photo that can be read. What they warn of is
    a matter of the file, and not said.
    """
    with warnings.catch_warnings(action="ignore"), Image.open(path) as file:
        file.draft("RGB", (SHORT_SIDE, SHORT_SIDE))  # lets a JPEG be decoded at 1/2, 1/4 or 1/8
        photo = ImageOps.exif_transpose(file).convert("RGB")
    factor = min(photo.size) // SHORT_SIDE
    return photo.reduce(factor) if factor > 1 else photo


def unreadable(path: Path) -> str:
    """Says why a photo can't be read; "" if it can."""
    try:
        decode(path)
    except Exception as error:
        return str(error) or repr(error)
    return ""


class Photos:
    """Photos by number; one that can't be read is passed over for the next that can."""

    def __init__(self, paths: list[Path]):
        self.paths = paths
        self.unreadable: dict[Path, str] = {}

    def __len__(self) -> int:
        return len(self.paths)

    def is_unreadable(self, number: int) -> bool:
        """Whether a photo was passed over."""
        return self.paths[number] in self.unreadable

    def __getitem__(self, number: int) -> Image.Image:
        """Decodes photo `number`, or the next readable one.

        Raises `DemoError` when none is readable.
        """
        for step in range(len(self.paths)):
            path = self.paths[(number + step) % len(self.paths)]
            if path in self.unreadable:
                continue
            try:
                return decode(path)
            except Exception as error:  # decoders fail on bad files in many ways
                self.unreadable[path] = str(error) or repr(error)
        path, reason = next(iter(self.unreadable.items()))
        raise DemoError(
            f"none of {len(self.paths)} photos could be read; the first, {path}: {reason}"
        )
