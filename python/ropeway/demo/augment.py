"""Turns a photo by a random angle, which becomes the label."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

SIDE = 224  # pixels of a view in each direction
LARGEST_ANGLE = 45.0  # degrees to either side
SMALLEST_ZOOM = 0.6  # of the largest view that fits in the photo


class View(NamedTuple):
    """What part of a photo is looked at, and how it is turned."""

    angle: float  # degrees, counterclockwise
    x: float  # centre in the photo's pixels
    y: float
    zoom: float  # photo pixels per pixel of the view


def draw_view(size: tuple[int, int], random: np.random.Generator) -> View:
    """Draws a view that lies inside a photo of this size whatever the angle.

    So there is no black corner that would give the angle away.
    """
    width, height = size
    angle = random.uniform(-LARGEST_ANGLE, LARGEST_ANGLE)
    half_diagonal = random.uniform(SMALLEST_ZOOM, 1) * min(size) / 2
    x = random.uniform(half_diagonal, width - half_diagonal)
    y = random.uniform(half_diagonal, height - half_diagonal)
    return View(angle, x, y, half_diagonal / (SIDE / 2 * math.sqrt(2)))


def look(photo: Image.Image, view: View) -> Image.Image:
    """Cuts the view out of the photo, turned, in one bilinear step."""
    cos = view.zoom * math.cos(math.radians(view.angle))
    sin = view.zoom * math.sin(math.radians(view.angle))
    half = SIDE / 2
    to_photo = (cos, -sin, view.x - half * (cos - sin), sin, cos, view.y - half * (sin + cos))
    return photo.transform(
        (SIDE, SIDE), Image.Transform.AFFINE, to_photo, Image.Resampling.BILINEAR
    )


def write_pixels(pixels: npt.NDArray[np.uint8], image: npt.NDArray[np.float32]) -> None:
    """Writes (H, W, 3) uint8 pixels into a (3, H, W) float32 array, with values from -1 to 1."""
    np.multiply(pixels.transpose(2, 0, 1), np.float32(2 / 255), out=image)
    image -= 1


def label_of(view: View) -> float:
    """Gives the number that the network is to find: the angle, from -1 to 1."""
    return view.angle / LARGEST_ANGLE


def degrees(label: float) -> float:
    """Turns a label, or an error in labels, into degrees."""
    return label * LARGEST_ANGLE
