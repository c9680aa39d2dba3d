"""Shape, dtype and size of an array, checked before memory is asked for."""

import math
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from ropeway import _dtypes

ShapeLike = SupportsIndex | Iterable[SupportsIndex]
"""An int, or ints: what NumPy takes as a shape."""

_MOST = 2**63 - 1


class Layout(NamedTuple):
    """A checked shape and dtype, the dtype's text, and the bytes that they take."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    text: str
    nbytes: int


def layout(shape: ShapeLike, dtype: npt.DTypeLike) -> Layout:
    """Checks shape and dtype of an array that is to be made.

    As with `numpy.empty`, a sub-array dtype adds its axes to the shape, and a text dtype without
    a length gets length 1. Raises TypeError for a shape of something else than ints and for
    dtypes with Python objects, ValueError for negative and for too large sizes.
    """
    numbers = _numbers(shape)
    if negative := [n for n in numbers if n < 0]:
        raise ValueError(f"shape {numbers} has a negative dimension: {negative[0]}")
    item = np.empty((0,), dtype)
    dtype, numbers = item.dtype, numbers + item.shape[1:]
    text = _dtypes.encode(dtype)
    size = dtype.itemsize * math.prod(n for n in numbers if n)
    if size > _MOST:
        raise ValueError(
            f"an array of shape {numbers} and dtype {dtype} would take {size} bytes; "
            f"at most {_MOST} can be"
        )
    return Layout(numbers, dtype, text, 0 if 0 in numbers else size)


def describe(shape: ShapeLike, dtype: npt.DTypeLike) -> tuple[str, int, tuple[int, ...]]:
    """Returns (dtype text, itemsize, shape): an array in the words of the native module."""
    checked = layout(shape, dtype)
    return checked.text, checked.dtype.itemsize, checked.shape


def count(what: str, number: SupportsIndex, least: int) -> int:
    """Checks an int of at least `least`; raises TypeError and ValueError, naming what it is."""
    try:
        found = operator.index(number)
    except TypeError:
        raise TypeError(f"{what} must be an int, found {number!r}") from None
    if not least <= found <= _MOST:
        bound = f"at least {least}" if found < least else f"at most {_MOST}"
        raise ValueError(f"{what} must be {bound}, found {found}")
    return found


def _numbers(shape: ShapeLike) -> tuple[int, ...]:
    try:
        if isinstance(shape, Iterable):
            return tuple(operator.index(n) for n in shape)
        return (operator.index(shape),)
    except TypeError:
        raise TypeError(
            f"shape must be an int or a tuple of ints, found {shape!r} ({type(shape).__name__})"
        ) from None
