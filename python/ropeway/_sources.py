"""Arrays of other frameworks as NumPy sees them, without a copy: what is copied into our memory."""

import json
import math
import sys
from typing import Any

import numpy as np

from ropeway import _core, _dtypes
from ropeway._extent import AnyArray, address, extent

_VERSION = (1, 3)


def source(x: Any, what: str) -> AnyArray:
    """An ordinary array over the memory of something.

    Takes whatever has `__dlpack__` (in memory that the CPU can read), `__arrow_c_array__`,
    `__array_interface__` or the buffer protocol. Raises BufferError for the memory of a device,
    which isn't asked for, and for what a protocol can't say; TypeError for anything else.
    """
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    found = _exchanged(x, what)
    if found is not None:
        return found
    try:
        buffer = memoryview(x)
    except TypeError:
        raise TypeError(
            f"{what} takes an array, or an object with __dlpack__, __arrow_c_array__, "
            "__array_interface__ or the buffer protocol; found "
            f"{type(x).__name__}: make an array of it first"
        ) from None
    return np.asarray(buffer)


def for_numpy(x: Any) -> Any:
    """The same, but leaves it to NumPy what to do with anything else (lists, numbers)."""
    if isinstance(x, np.ndarray | np.generic | int | float | list | tuple):
        return x
    found = _exchanged(x, "a slot")
    return x if found is None else found


def is_masked(x: Any) -> bool:
    """Whether this is a masked array; doesn't import NumPy's module for them, which takes long."""
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(x, module.MaskedArray)


def _exchanged(x: Any, what: str) -> AnyArray | None:
    """What one of the protocols for arrays gives; None if there is none."""
    arrow = hasattr(x, "__arrow_c_array__")
    try:
        if hasattr(x, "__dlpack__"):
            try:
                return _by_dlpack(x)
            except TypeError:  # Arrow says so of what DLPack has no words for, such as lists
                if not arrow:
                    raise
        if arrow:
            return _by_arrow(x)
    except (BufferError, RuntimeError) as error:
        raise BufferError(f"{what} can't take this {type(x).__name__}: {error}") from error
    return _by_interface(x, what) if hasattr(x, "__array_interface__") else None


def device_of(x: Any) -> tuple[int, int]:
    """Kind and number of the device that an object with DLPack lies on.

    Raises BufferError if it doesn't say, or one that DLPack doesn't know, like PyTorch's "meta".
    """
    try:
        kind, number = map(int, x.__dlpack_device__())
    except (AttributeError, TypeError, ValueError) as error:
        raise BufferError(f"it doesn't say its device as DLPack does: {error}") from error
    return kind, number


def _by_dlpack(x: Any) -> AnyArray:
    _core.check_device(*device_of(x))
    if getattr(x, "is_neg", bool)():  # PyTorch refuses to export a lazy conjugate, but not this
        raise BufferError("its signs are turned by a flag that DLPack can't say: x.resolve_neg()")
    try:
        capsule = x.__dlpack__(max_version=_VERSION)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        capsule = x.__dlpack__()  # is older than the argument
    return by_capsule(capsule)


def by_capsule(capsule: Any) -> AnyArray:
    """An array over what is in a DLPack capsule, to read.

    Also where the capsule allows writing: what has been through other hands may have lost the sign
    that it may only be read (TVM drops it, as PyTorch and JAX do).
    """
    return _over(_core.import_dlpack(capsule))


def _by_arrow(x: Any) -> AnyArray:
    foreign = _core.import_arrow(*x.__arrow_c_array__())
    array = _over(foreign)
    if foreign.rows is None:
        return array
    rows = json.loads(foreign.rows)
    if rows.get("permutation", []) != sorted(rows.get("permutation", [])):
        raise BufferError(f"its rows are permuted ({rows['permutation']}): make a copy in C order")
    if math.prod(rows["shape"]) != math.prod(array.shape[1:]):
        raise BufferError(f"its rows have {array.shape[1:]} numbers, and shape {rows['shape']}")
    return array.reshape(array.shape[0], *rows["shape"])


class _Said:
    """Says once more what an object's `__array_interface__` has said, and keeps the memory."""

    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__array_interface__, self.owner = interface, owner


def _by_interface(x: Any, what: str) -> AnyArray:
    """NumPy believes whatever the interface says; here it must lie within memory that there is."""
    owner, said = x, dict(x.__array_interface__)
    kind, data = type(x).__name__, said.get("data")
    if said.get("mask") is not None:
        raise BufferError(f"{what} would drop the mask of this {kind}: fill it first")
    low, high = 1, sys.maxsize
    if not isinstance(data, tuple):
        owner = np.frombuffer(x if data is None else data, "u1")
        low, high = extent(owner)
        said["data"] = (low + said.pop("offset", 0), True)
    elif not data[0]:
        if 0 not in said.get("shape", ()):
            raise BufferError(f"{what} can't take this {kind}: it has elements and no memory")
        owner = np.empty(1, "u1")
        said["data"] = (address(owner), True)
    array = np.asarray(_Said(said, owner))
    if array.dtype.hasobject:
        raise TypeError(f"{what} takes no Python objects, found dtype {array.dtype}")
    begin, end = extent(array)
    if array.size and not low <= begin <= end <= high:
        raise BufferError(
            f"{what} can't take this {kind}: shape {array.shape} and strides {array.strides} "
            f"reach from {begin:#x} to {end:#x}, outside of its memory, {low:#x} to {high:#x}"
        )
    return array


def _over(foreign: "_core.Foreign") -> AnyArray:
    """An array over checked memory; NumPy checks once more that it lies within the buffer."""
    dtype = _dtypes.decode(foreign.dtype)
    if 0 in foreign.shape:
        return np.empty(foreign.shape, dtype)
    buffer: Any = foreign
    return np.ndarray(foreign.shape, dtype, buffer, foreign.offset, foreign.strides)
