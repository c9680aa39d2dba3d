"""Shape, dtype and size of an array, checked before memory is asked for."""

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from ropeway import _dtypes

ShapeLike = SupportsIndex | Sequence[SupportsIndex]
"""An int, or ints in an order: what NumPy takes as a shape."""

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


def count(what: str, number: SupportsIndex, least: int | None = None) -> int:
    """Checks an int, with `least` a bound of it; TypeError and ValueError name what it is."""
    try:
        found = operator.index(number)
    except TypeError:
        raise TypeError(f"{what} must be an int, found {number!r}") from None
    if least is not None and found < least:
        raise ValueError(f"{what} must be at least {least}, found {found}")
    if found > _MOST:
        raise ValueError(f"{what} must be at most {_MOST}, found {found}")
    return found


def text(what: str, value: str) -> str:
    """Checks a text that names something; raises TypeError and ValueError, naming what it is."""
    if not isinstance(value, str) or not value:
        raise TypeError(f"{what} must be a str with at least a letter, found {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be text that UTF-8 can write, found {value!r}") from None
    return value


def _numbers(shape: ShapeLike) -> tuple[int, ...]:
    plain = shape.tolist() if isinstance(shape, np.ndarray) else shape
    try:
        if isinstance(plain, bytes | bytearray):  # ints to Python
            raise TypeError
        if isinstance(plain, Sequence):
            return tuple(operator.index(n) for n in plain)
        return (operator.index(plain),)
    except TypeError:
        raise TypeError(
            f"shape must be an int or a tuple of ints, found {shape!r} ({type(shape).__name__})"
        ) from None
