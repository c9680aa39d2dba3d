"""Arrays over memory that ropeway holds."""

from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from ropeway import _core

AnyArray = np.ndarray[Any, np.dtype[Any]]

if TYPE_CHECKING:
    _Base = AnyArray
else:
    _Base = _core.array_base()


class View(_Base, _core.Exchange):
    """An ndarray over memory that ropeway holds, such as an array of a slot.

    It gives itself to other frameworks by DLPack and Arrow; the slot doesn't move on before the
    last of them has let go, on whatever thread. Results of ufuncs and copies are ordinary arrays,
    and it pickles by value, as one.
    """

    __slots__ = ()

    # Python looks at ndarray first, which has some of these too.
    __array_wrap__ = _core.Exchange.__array_wrap__
    __dlpack__ = _core.Exchange.__dlpack__
    __dlpack_device__ = _core.Exchange.__dlpack_device__
    __dlpack_c_exchange_api__ = _core.exchange_api()

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickles the values, as an ordinary array."""
        return np.asarray(self).__reduce_ex__(protocol)

    if not TYPE_CHECKING:  # ndarray's own signatures hold

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
            return result.view(type(self)) if subok else result
