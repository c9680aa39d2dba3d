"""MXNet 1.9: NDArrays over memory of ropeway, and NDArrays' own memory for others.

MXNet computes later, on threads of its own. A slot that was given to it waits until the last queued
operation has read it. Whoever looks at memory that MXNet writes, or publishes it, calls `wait`
first.
"""

import ctypes
from typing import Any, Literal

import numpy as np

from ropeway import _core
from ropeway._sources import by_capsule
from ropeway._views import AnyArray

_TYPES = ("float16", "float32", "float64", "bfloat16", "int8", "uint8", "int32", "int64")
_MOST = 2**31 - 1

__all__ = ["Exported", "address", "asarray", "exported", "view", "wait"]


def asarray(x: AnyArray) -> Any:
    """An NDArray at the address of an array, which must be writable and in C order.

    Operations on it are queued: the slot stays until MXNet has read it, however early the last name
    of the NDArray goes. An operation that writes into it by ``out=`` may leave a layout of oneDNN
    there instead of rows (convolutions do): call `wait` before anybody else looks, or write with
    ``y.copyto(x)`` or ``x[:] = y``, which keep to rows.

    Raises BufferError for what MXNet can't take: read-only arrays, gaps, 2**31 - 1 elements or
    more, dtypes other than float16, float32, float64, bfloat16, int8, uint8, int32 and int64, and
    arrays of no axes or no elements unless ``mxnet.util.set_np_shape(True)`` was called.
    """
    import mxnet

    if x.dtype.name not in _TYPES:
        if x.dtype.kind not in "biufc":
            x.__dlpack__()  # of what isn't a number it says itself what works instead
        way = "x.view('uint8')" if x.dtype == bool else "x.astype(...)"
        raise BufferError(
            f"MXNet doesn't take dtype {x.dtype} by DLPack, but {', '.join(_TYPES)}: give it {way}"
        )
    if x.size >= _MOST:
        raise BufferError(
            f"MXNet takes arrays of fewer than {_MOST} elements, found {x.size}: give it parts"
        )
    if (x.shape == () or x.size == 0) and not mxnet.util.is_np_shape():
        raise BufferError(
            f"to MXNet shape {x.shape} is one that it doesn't know yet: call "
            "mxnet.util.set_np_shape(True) first"
        )
    if not x.flags.c_contiguous:
        raise BufferError("MXNet takes arrays in C order without gaps: give it x.copy()")
    return mxnet.nd.from_dlpack(x.__dlpack__())


class Exported:
    """An NDArray with `__dlpack__`, which MXNet's own lack: for `rw.share` and `np.from_dlpack`.

    Each export waits for what is queued to write the NDArray; with `write=True` also for what is
    queued to read it.
    """

    def __init__(self, array: Any, *, write: bool = False) -> None:
        self._array, self._write = array, write

    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """An unversioned capsule, whatever is asked for, as MXNet knows no other.

        Raises BufferError for bool, for copies and for other devices.
        """
        import mxnet

        if np.dtype(self._array.dtype) == bool:
            raise BufferError("MXNet exports bool as numbers of one bit: give x.astype('uint8')")
        if copy:
            raise BufferError("MXNet exports its own memory only: give x.copy()")
        device = self.__dlpack_device__()
        if stream is not None or dl_device not in (None, device):
            raise BufferError(
                f"the NDArray is on device {device} and is exported there only, without a stream; "
                f"asked for device {dl_device}, stream {stream}"
            )
        _in_rows(self._array)
        if self._write:
            return mxnet.nd.to_dlpack_for_write(self._array)
        return mxnet.nd.to_dlpack_for_read(self._array)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The kind and the number of the device, as DLPack has them."""
        context = self._array.context
        kinds = {"cpu": 1, "gpu": 2, "cpu_pinned": 3, "cpu_shared": 1}
        return kinds[context.device_type], context.device_id if context.device_type == "gpu" else 0


def exported(array: Any, *, write: bool = False) -> Exported:
    """An NDArray as others can take it; see `Exported`.

    Raises TypeError for anything but a dense NDArray.
    """
    _check(array)
    return Exported(array, write=write)


def view(array: Any, *, write: bool = False) -> AnyArray:
    """An ndarray over an NDArray's own memory, which it keeps; read-only unless `write`.

    Waits for what is queued to write the NDArray, and if `write` for what is queued to read it.
    MXNet doesn't know of the view: after queueing more, `wait` before looking again. Raises
    TypeError for anything but a dense NDArray, BufferError for bool and for memory of a GPU.
    """
    given = exported(array, write=write)
    kind, number = given.__dlpack_device__()
    _core.check_device(kind, number)
    plain = by_capsule(given.__dlpack__())
    if not write or plain.size == 0:
        return plain
    there: AnyArray = np.asarray(_Memory(plain, plain.view(np.uint8)))
    return there.view(plain.dtype).reshape(plain.shape)


def wait(*arrays: Any) -> None:
    """Waits until nothing queued reads or writes these NDArrays any more.

    Afterwards their memory has their values in rows, also where an operation of oneDNN has left
    another layout. Raises TypeError for anything but dense NDArrays, and what a queued operation
    has raised.
    """
    for array in arrays:
        _check(array)
        _call("MXNDArrayWaitToWrite", array.handle)
        _in_rows(array)


def address(array: Any) -> int:
    """The address of an NDArray's first element, once what is queued to write it is done."""
    _check(array)
    return _in_rows(array)


def _in_rows(array: Any) -> int:
    """Puts an NDArray's memory into rows, if oneDNN has left another layout; its address.

    Waits for what is queued to write it, as only then its layout is known.
    """
    array.wait_to_read()
    place = ctypes.c_void_p()
    _call("MXNDArrayGetData", array.handle, ctypes.byref(place))
    return place.value or 0


def _call(function: Literal["MXNDArrayWaitToWrite", "MXNDArrayGetData"], *arguments: Any) -> None:
    from mxnet import base

    base.check_call(getattr(base._LIB, function)(*arguments))


def _check(array: Any) -> None:
    import mxnet

    if not isinstance(array, mxnet.nd.NDArray) or array.stype != "default":
        found = getattr(array, "stype", type(array).__name__)
        raise TypeError(f"a dense NDArray of MXNet expected, found {found}")


class _Memory:
    """Says that memory may be written, and keeps it."""

    def __init__(self, keeper: AnyArray, raw: AnyArray) -> None:
        self._keeper = keeper
        place = raw.__array_interface__["data"][0]
        self.__array_interface__ = {
            "version": 3,
            "shape": (keeper.nbytes,),
            "typestr": "|u1",
            "data": (place, False),
        }
