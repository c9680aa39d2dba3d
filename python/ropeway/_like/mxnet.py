"""MXNet: NDArrays over our memory, by the old capsule."""

from typing import Any

from ropeway._views import AnyArray

_TYPES = ("float16", "float32", "float64", "bfloat16", "int8", "uint8", "int32", "int64")
_MOST = 2**31 - 1


def asarray(x: AnyArray) -> Any:
    """An NDArray that aliases the array, which must be writable and in C order.

    MXNet computes later: the slot stays until its engine has read it.
    """
    import mxnet

    if x.dtype.name not in _TYPES:
        raise BufferError(
            f"MXNet doesn't take dtype {x.dtype.name} by DLPack, but {', '.join(_TYPES)}: "
            "convert it, x.astype(...)"
        )
    if x.size >= _MOST:
        raise BufferError(
            f"MXNet takes arrays of fewer than {_MOST} elements, found {x.size}: give it parts"
        )
    if not x.flags.c_contiguous:
        raise BufferError("MXNet takes arrays in C order without gaps: give it x.copy()")
    return mxnet.nd.from_dlpack(x.__dlpack__())
