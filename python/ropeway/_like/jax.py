"""JAX: arrays over our memory, which JAX takes for constant."""

from typing import Any

import numpy as np

from ropeway import _core
from ropeway._like import refuse_unaligned
from ropeway._views import AnyArray

_WIDE = ("int64", "uint64", "float64", "complex128")


def asarray(x: AnyArray) -> Any:
    """A JAX array that aliases the array; whoever may write must not, as long as JAX has it."""
    import jax

    if not jax.config.jax_enable_x64 and x.dtype.name in _WIDE:
        raise BufferError(
            f"JAX would make a 32-bit copy of dtype {x.dtype}: set jax_enable_x64, or convert it"
        )
    refuse_unaligned(x, "JAX")
    if x.size and not x.transpose(np.argsort(x.strides)[::-1]).flags.c_contiguous:
        raise BufferError(
            "JAX takes arrays without gaps, their axes in any order, and found strides "
            f"{x.strides} over shape {x.shape}: give it rw.share(x), a copy"
        )
    return jax.numpy.from_dlpack(_Constant(x), copy=False)


class _Constant:
    """Gives JAX, which never writes, the form that its version asks for, read-only or not."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.__dlpack_device__ = array.__dlpack_device__

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **options: Any) -> Any:
        if max_version is None and isinstance(self._array, _core.Exchange):
            return _core.constant_capsule(self._array)
        return self._array.__dlpack__(max_version=max_version, **options)
