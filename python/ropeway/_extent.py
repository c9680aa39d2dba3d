"""Where the bytes of an array lie, whatever its strides."""

from typing import Any

import numpy as np

AnyArray = np.ndarray[Any, np.dtype[Any]]


def address(array: AnyArray) -> int:
    """The address of the array's first element."""
    place: int = array.__array_interface__["data"][0]
    return place


def extent(array: AnyArray) -> tuple[int, int]:
    """The addresses of the lowest byte and behind the highest byte of any element."""
    begin = end = address(array)
    if array.flags.forc:
        return begin, end + array.nbytes
    for length, stride in zip(array.shape, array.strides, strict=True):
        reach = (length - 1) * stride
        begin, end = begin + min(reach, 0), end + max(reach, 0)
    return begin, end + array.itemsize
