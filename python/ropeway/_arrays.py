"""Arrays in the session's memory: they pickle as handles and open onto the same bytes."""

import pickle
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from ropeway import _core, _dtypes
from ropeway._errors import Incompatible
from ropeway._extent import address
from ropeway._layout import Layout, ShapeLike, layout
from ropeway._sources import is_masked, source
from ropeway._views import AnyArray, View


class Array(View):
    """An ndarray in memory that other processes can share: made by `empty`, `zeros`, `share`.

    It and its views pickle as handles of a few hundred bytes, by every route that pickles, and
    come out as views of the same memory. Copies and results of arithmetic are ordinary arrays;
    where NumPy gives a copy this type all the same (``a[[0, 2]]``), it pickles by value.
    The memory lives as long as any process has a view of it, or a handle waits to be opened.
    """

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickles the handle, and where in its memory this view lies."""
        block = shared_block(self)
        if block is None:
            return super().__reduce_ex__(protocol)  # by value
        text = _dtypes.encode(self.dtype)
        offset = address(self) - block.address
        place = (text, self.shape, offset, self.strides, self.flags.writeable)
        return _open, (block.handle, *place)


def empty(shape: ShapeLike, dtype: npt.DTypeLike = float) -> Array:
    """Makes an array in shared memory; its contents are whatever was there.

    Raises TypeError and ValueError for shapes and dtypes that can't be, `OutOfMemory` if there
    is no memory for it.
    """
    return _make(layout(shape, dtype))[0]


def zeros(shape: ShapeLike, dtype: npt.DTypeLike = float) -> Array:
    """Makes an array of zeros in shared memory; raises what `empty` raises."""
    array, block = _make(layout(shape, dtype))
    if not block.fresh:
        view(block, "|u1", (block.nbytes,)).fill(0)
    return array


def share(x: Any) -> Array:
    """Copies an array into shared memory, once; a shared `Array` comes back as it is.

    Takes whatever has `__dlpack__` (in the CPU's memory), `__arrow_c_array__`,
    `__array_interface__` or the buffer protocol; keeps dtype, shape and memory order (C or F).
    Raises TypeError for anything else and for dtypes with Python objects, BufferError for the
    memory of another device and for what the protocol can't say.
    """
    if isinstance(x, Array) and shared_block(x) is not None:
        return x
    if is_masked(x):
        raise TypeError("share() would drop the mask of a masked array: share its data and mask")
    plain = source(x, "share()")
    wanted = layout(plain.shape, plain.dtype)
    array, _ = _make(wanted, "F" if plain.flags.fnc else "C")
    copy_elements(plain, array)
    return array


def claim(array: Array) -> bytes:
    """Pickles an array so that it goes with its last holder, opened from this pickle or not.

    Whoever is to open it must do so while somebody, such as the caller, holds it.
    """
    handle = pickle.dumps(array, protocol=5)
    pickle.loads(handle)
    return handle


def view(export: Any, text: str, shape: tuple[int, ...]) -> View:
    """Makes an array over an `Export` (whose slot stays while it lives) or a `Block`."""
    return View(shape, _dtypes.decode(text), export)


def shared_block(array: AnyArray) -> "_core.Block | None":
    """Finds the shared memory under an array, None if there is none."""
    owner = array.base
    while owner is not None and not isinstance(owner, _core.Block):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner


def copy_elements(source: AnyArray, target: AnyArray) -> None:
    """Copies all bytes of all elements, also the padding of structures, which NumPy skips."""
    if source.dtype.names is not None and source.nbytes:
        raw = np.dtype((np.void, source.dtype.itemsize))
        source, target = source.view(raw), target.view(raw)
    target[...] = source  # np.copyto takes three times as long for a few bytes


def _make(wanted: Layout, order: Literal["C", "F"] = "C") -> "tuple[Array, _core.Block]":
    block: Any = _core.allocate(wanted.nbytes)
    return Array(wanted.shape, wanted.dtype, block, order=order), block


def _open(
    handle: bytes,
    text: str,
    shape: tuple[int, ...],
    offset: int,
    strides: tuple[int, ...],
    writeable: bool,
) -> Array:
    """Opens what `Array.__reduce_ex__` wrote; NumPy checks that it lies within the memory.

    Raises Incompatible if it doesn't.
    """
    block: Any = _core.open_block(handle)
    dtype = _dtypes.decode(text)
    try:
        array = Array(shape, dtype, block, offset, strides)
    except (TypeError, ValueError, OverflowError) as error:
        raise Incompatible(
            f"an array's handle: {dtype} of shape {shape} and strides {strides} from byte {offset} "
            f"on doesn't lie in memory of {block.nbytes} bytes: {error}"
        ) from None
    array.flags.writeable = writeable
    return array
