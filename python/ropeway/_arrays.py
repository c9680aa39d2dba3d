"""Arrays in the session's memory: they pickle as handles and open onto the same bytes."""

from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from ropeway import _core, _dtypes
from ropeway._layout import Layout, ShapeLike, layout

_HOST_DEVICES = {1: "CPU", 3: "CPU, pinned for CUDA"}
_OTHER_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI"}

AnyArray = np.ndarray[Any, np.dtype[Any]]


class Array(AnyArray):
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
            return super().__reduce_ex__(protocol)
        text = _dtypes.encode(self.dtype)
        offset = address(self) - block.address
        place = (text, self.shape, offset, self.strides, self.flags.writeable)
        return _open, (block.handle, *place)

    def __array_wrap__(
        self, array: AnyArray, context: Any = None, return_scalar: bool | None = None
    ) -> Any:
        """Leaves results of ufuncs what they are: ordinary arrays, scalars where NumPy has them."""
        if array is self:
            return array
        if return_scalar is None:  # NumPy 1 doesn't say
            return_scalar = array.ndim == 0
        if return_scalar:
            return array[()]
        return array if type(array) is np.ndarray else array.view(np.ndarray)

    if not TYPE_CHECKING:  # ndarray's own signatures hold

        def __dlpack__(self, **options):
            """Exports this memory; BufferError, which names the dtype, if DLPack can't say it."""
            try:
                return super().__dlpack__(**options)
            except BufferError as error:
                raise BufferError(f"{error} This array has dtype {self.dtype}.") from None

        def copy(self, order="C"):
            """Returns a private copy, an ordinary array."""
            return np.asarray(self).copy(order)

        def __copy__(self):
            return np.asarray(self).copy("K")

        def __deepcopy__(self, memo):
            return np.asarray(self).copy("K")

        def astype(self, dtype, order="K", casting="unsafe", subok=False, copy=True):
            """Returns an ordinary array of that dtype (itself if nothing changes, `copy=False`)."""
            plain = np.asarray(self)
            result = plain.astype(dtype, order, casting, copy=copy)
            if result is plain:
                return self
            return result.view(Array) if subok else result


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

    Takes whatever has `__dlpack__` (in the CPU's memory), `__array_interface__` or the buffer
    protocol; keeps dtype, shape and memory order (C or F). Raises TypeError for anything else
    and for dtypes with Python objects, BufferError for the memory of another device.
    """
    if isinstance(x, Array) and shared_block(x) is not None:
        return x
    source = _source(x)
    wanted = layout(source.shape, source.dtype)
    array, _ = _make(wanted, "F" if source.flags.fnc else "C")
    copy_elements(source, array)
    return array


def view(export: Any, text: str, shape: tuple[int, ...]) -> AnyArray:
    """Makes an ordinary array over an `Export` (whose slot stays while it lives) or a `Block`."""
    return np.ndarray(shape, _dtypes.decode(text), export)


def shared_block(array: AnyArray) -> "_core.Block | None":
    """Finds the shared memory under an array, None if there is none."""
    owner = array.base
    while owner is not None and not isinstance(owner, _core.Block):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner


def address(array: AnyArray) -> int:
    """The address of the array's first element."""
    place: int = array.__array_interface__["data"][0]
    return place


def copy_elements(source: AnyArray, target: AnyArray) -> None:
    """Copies all bytes of all elements, also the padding of structures, which NumPy skips."""
    if source.dtype.names is not None and source.nbytes:
        raw = np.dtype((np.void, source.dtype.itemsize))
        source, target = source.view(raw), target.view(raw)
    np.copyto(target, source)


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
    """Opens what `Array.__reduce_ex__` wrote; NumPy checks that it lies within the memory."""
    block: Any = _core.open_block(handle)
    array = Array(shape, _dtypes.decode(text), block, offset, strides)
    array.flags.writeable = writeable
    return array


def _source(x: Any) -> AnyArray:
    """An ordinary array over the memory of something, without a copy where it has one."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError("share() would drop the mask of a masked array: share its data and mask")
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    if hasattr(x, "__dlpack__"):
        _refuse_other_devices(x)
        return np.from_dlpack(x)
    if hasattr(x, "__array_interface__"):
        return np.asarray(x)
    try:
        buffer = memoryview(x)
    except TypeError:
        raise TypeError(
            "share() takes an array, or an object with the buffer protocol, __dlpack__ or "
            f"__array_interface__; found {type(x).__name__}: make an array of it first"
        ) from None
    return np.asarray(buffer)


def _refuse_other_devices(x: Any) -> None:
    """Raises BufferError for the memory of a device, before anything of it is asked for."""
    device = tuple(map(int, x.__dlpack_device__()))
    if device[0] not in _HOST_DEVICES:
        name = _OTHER_DEVICES.get(device[0], "unknown to ropeway")
        raise BufferError(
            f"share() takes arrays in the CPU's memory, found a {type(x).__name__} on device "
            f"{device} ({name}): copy it to the CPU first"
        )
