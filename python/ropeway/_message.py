"""A message: any picklable object, as a pickle beside the arrays that were in it."""

import functools
import io
import pickle
import struct
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from ropeway import _core, _dtypes
from ropeway._arrays import Array, shared_block
from ropeway._errors import Gone
from ropeway._placement import Placement, views
from ropeway._views import AnyArray, View

_HEAD = struct.Struct("<I")  # bytes of the table of arrays that follows


def array(number: int) -> AnyArray:
    """Stands in the pickle for an array of the message; never called under this name."""
    raise pickle.UnpicklingError(f"array {number} of a message was unpickled without the message")


class Message:
    """An object, pickled and measured, before any slot is asked for.

    Raises whatever pickling the object raises; nothing is left behind then.
    """

    def __init__(self, obj: Any) -> None:
        body = io.BytesIO()
        pickler = _Pickler(body)
        self._blocks = pickler.newly_pickled
        try:
            pickler.dump(obj)
            buffers = [np.asarray(buffer.raw()) for buffer in pickler.buffers]
            self._placement = Placement(pickler.arrays + buffers)
        except BaseException:
            self.withdraw()
            raise
        table = b""
        if self._placement.places or pickler.handles:
            handles = tuple(pickler.handles)
            content = (self._placement.places, len(pickler.arrays), handles)
            table = pickle.dumps(content, protocol=5)
        self._meta = b"".join((_HEAD.pack(len(table)), table, body.getbuffer()))

    @property
    def nbytes(self) -> int:
        """What the message takes of a slot."""
        return self._placement.nbytes + len(self._meta)

    def write(self, lease: "_core.WriteLease") -> None:
        """Writes the message into an empty slot."""
        if self._placement.nbytes:
            lease.add_field("data", "|u1", 1, (self._placement.nbytes,))
            self._placement.fill(lease.export("data")[0])
        lease.meta_bytes = self._meta

    def withdraw(self) -> None:
        """Lets go of the shared arrays in a message that nobody will read."""
        _claim(block.handle for block in self._blocks)


def read(lease: "_core.WriteLease") -> Any:
    """Makes the object of a message again; its arrays are views of the slot.

    Raises whatever unpickling raises.
    """
    meta = lease.meta_bytes
    places, arrays, handles = _table(meta)
    body = _HEAD.size + _HEAD.unpack_from(meta)[0]
    try:
        if not places:
            return pickle.loads(memoryview(meta)[body:])
        memory = lease.export("data")[0] if lease.keys() else None
        return _Unpickler(meta, body, views(places, memory), arrays).load()
    except BaseException:
        _claim(handles)
        raise


def discard(lease: "_core.WriteLease") -> None:
    """Lets go of the shared arrays in a message that stays unread."""
    _claim(_table(lease.meta_bytes)[2])


class _Pickler(pickle.Pickler):
    """Takes the arrays and buffers out of what it pickles, and notes shared arrays."""

    def __init__(self, file: io.BytesIO) -> None:
        self.arrays: list[AnyArray] = []
        self.buffers: list[pickle.PickleBuffer] = []
        self.handles: dict[bytes, None] = {}
        self.newly_pickled: list[_core.Block] = []
        super().__init__(file, protocol=5, buffer_callback=self.buffers.append)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Array):
            block = shared_block(obj)
            if block is not None:
                self._note(block)
                return NotImplemented
        elif type(obj) is not np.ndarray and type(obj) is not View:
            _refuse_graphs(obj)
            return NotImplemented
        if not _travels(obj.dtype):
            return NotImplemented
        self.arrays.append(obj)
        return array, (len(self.arrays) - 1,)

    def _note(self, block: "_core.Block") -> None:
        if not block.pickled:
            self.newly_pickled.append(block)
        self.handles[block.handle] = None


class _Unpickler(pickle.Unpickler):
    """Puts the arrays and buffers back where they were."""

    def __init__(self, meta: bytes, body: int, all_views: list[Any], arrays: int) -> None:
        file = io.BytesIO(meta)
        file.seek(body)
        super().__init__(file, buffers=[memoryview(view) for view in all_views[arrays:]])
        self._arrays = all_views

    def find_class(self, module: str, name: str, /) -> Any:
        if name == array.__name__ and module == __name__:
            return self._arrays.__getitem__
        return super().find_class(module, name)


def _refuse_graphs(obj: Any) -> None:
    """Raises TypeError for results of PyTorch's gradient graph; pickling would drop the graph."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(obj, torch.Tensor):
        return
    if obj.requires_grad and not obj.is_leaf:
        raise TypeError(
            "this tensor is a result that gradients go through (requires_grad), and its graph "
            "can't go to another process: put x.detach()"
        )


@functools.lru_cache(maxsize=256)
def _travels(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype can lie in a slot; others are pickled as NumPy does."""
    try:
        _dtypes.encode(dtype)
    except TypeError:
        return False
    return True


def _table(meta: bytes) -> tuple[list[Any], int, tuple[bytes, ...]]:
    """The places of the arrays and buffers, how many are arrays, and handles in the pickle."""
    (length,) = _HEAD.unpack_from(meta)
    if not length:
        return [], 0, ()
    table: tuple[list[Any], int, tuple[bytes, ...]] = pickle.loads(
        memoryview(meta)[_HEAD.size : _HEAD.size + length]
    )
    return table


def _claim(handles: Iterable[bytes]) -> None:
    """Opens shared arrays and drops them, so that they go with their last holder."""
    for handle in handles:
        try:
            _core.open_block(handle)
        except Gone:
            continue
