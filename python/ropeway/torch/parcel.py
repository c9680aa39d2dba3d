"""What a batch looks like on its way: a pickle, with tensors and buffers beside it in the slot.

Tensors are taken apart as `torch.multiprocessing` does it, so what can travel there can travel
here; only where their bytes lie is different. Tensors that overlap still do when they arrive.
"""

import array
import copyreg
import functools
import io
import math
import pickle
import struct
from collections.abc import Iterator
from multiprocessing import reduction
from typing import Any, NamedTuple

import numpy as np
import torch

from ropeway.torch.berth import Berth

_HEAD = struct.Struct("<III")  # bytes of the table, of the pickle, number of tensors
_FIELD = "rest"
_LYING, _COPIED, _INLINE = range(3)
_SMALL = 4096
_ALIGNMENT = 64

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class _Span(NamedTuple):
    """The bytes of a storage that a tensor can touch."""

    storage: Any
    begin: int
    end: int


def tensor(number: int, *_: Any) -> Any:
    """Stands in a pickle for a tensor; never called under this name."""
    raise pickle.UnpicklingError(f"tensor {number} of a batch was unpickled without its slot")


def storage(number: int) -> Any:
    """Stands in a pickle for a storage; never called under this name."""
    raise pickle.UnpicklingError(f"storage {number} of a batch was unpickled without its slot")


def pack(thing: Any, berth: Berth) -> bytes:
    """Puts an object into a slot; returns what it takes to read it.

    What is small travels in the bytes that are returned. Raises whatever pickling raises.
    """
    body = io.BytesIO()
    pickler = _Pickler(body)
    pickler.dump(thing)
    pieces, places, loose = _arranged(pickler.spans, berth)
    loose += [np.frombuffer(buffer.raw(), "u1") for buffer in pickler.buffers]
    pieces += [(_COPIED, part.nbytes) for part in loose[len(loose) - len(pickler.buffers) :]]
    total, inline = sum(_padded(part.nbytes) for part in loose), b""
    if total > _SMALL:
        _copy(loose, np.frombuffer(berth.field(_FIELD, total), "u1"))
    else:
        memory = np.zeros(total, "u1")
        _copy(loose, memory)
        inline = memory.tobytes()
        pieces = [(_INLINE if kind == _COPIED else kind, n) for kind, n in pieces]
    table = array.array("q", (word for pair in (*places, *pieces) for word in pair)).tobytes()
    head = _HEAD.pack(len(table), body.tell(), len(places))
    return b"".join((head, table, body.getbuffer(), inline))


def unpack(data: memoryview, lease: Any) -> Any:
    """Makes an object again; its tensors and arrays lie in the slot. Raises as unpickling does."""
    table, body, tensors = _HEAD.unpack_from(data)
    words = array.array("q", data[_HEAD.size : _HEAD.size + table].tobytes())
    pairs = list(zip(words[::2], words[1::2], strict=True))
    body_end = _HEAD.size + table + body
    pieces = list(_pieces(pairs[tensors:], lease, data[body_end:]))
    numbers = {number for number, _ in pairs[:tensors]}
    buffers = [piece for number, piece in enumerate(pieces) if number not in numbers]
    file = io.BytesIO(data[_HEAD.size + table : body_end])
    return _Unpickler(file, _Memory(pairs[:tensors], pieces), buffers).load()


class _Pickler(pickle.Pickler):
    """Takes tensors, storages and buffers out of what it pickles; nothing of it refers to it."""

    def __init__(self, file: io.BytesIO) -> None:
        self.spans: list[_Span] = []
        self.buffers: list[pickle.PickleBuffer] = []
        super().__init__(file, protocol=5, buffer_callback=self.buffers.append)
        extra: Any = reduction.ForkingPickler
        self.dispatch_table = {**copyreg.dispatch_table, **extra._extra_reducers}
        theirs = extra._extra_reducers[torch.UntypedStorage]
        self.dispatch_table[torch.UntypedStorage] = functools.partial(_reduced, self.spans, theirs)

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or not is_plain(obj):
            return NotImplemented
        size, strides = tuple(obj.shape), obj.stride()
        begin = obj.storage_offset()
        last = sum((n - 1) * stride for n, stride in zip(size, strides, strict=True))
        end = begin + last + 1 if math.prod(size) else begin
        item = obj.itemsize
        self.spans.append(_Span(obj.untyped_storage(), begin * item, end * item))
        return tensor, (len(self.spans) - 1, obj.dtype, size, strides)


def _reduced(spans: list[_Span], theirs: Any, obj: Any) -> Any:
    """How a storage is pickled; torch does it for those of other devices."""
    if obj.device.type != "cpu":
        return theirs(obj)
    spans.append(_Span(obj, 0, obj.nbytes()))
    return storage, (len(spans) - 1,)


class _Unpickler(pickle.Unpickler):
    """Puts tensors, storages and buffers back."""

    def __init__(self, file: Any, memory: "_Memory", buffers: list[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._memory = memory

    def find_class(self, module: str, name: str, /) -> Any:
        if module == __name__:
            return getattr(self._memory, name)
        return super().find_class(module, name)


class _Memory:
    """The pieces of a batch, and storages over them."""

    def __init__(self, places: list[tuple[int, int]], pieces: list[Any]) -> None:
        self._places, self._pieces = places, pieces
        self._storages: list[Any] = [None] * len(pieces)

    def tensor(self, number: int, dtype: Any, size: Any, strides: Any) -> Any:
        """The tensor of that number."""
        offset = self._places[number][1] // dtype.itemsize
        return torch.empty(0, dtype=dtype).set_(self.storage(number), offset, size, strides)

    def storage(self, number: int) -> Any:
        """The storage that the tensor of that number is over."""
        piece = self._places[number][0]
        made = self._storages[piece]
        if made is None:
            made = self._storages[piece] = storage_over(self._pieces[piece])
        return made


def is_plain(value: Any) -> bool:
    """Whether a tensor is nothing but dtype, shape and strides over a CPU's memory."""
    return bool(
        value.layout is torch.strided
        and value.device.type == "cpu"
        and not value.requires_grad
        and not value.is_nested
        and not value.is_quantized
        and not value.is_conj()
        and not value.is_neg()
    )


def storage_over(memory: Any) -> Any:
    """A storage over memory that it keeps alive."""
    if not len(memory):
        return torch.UntypedStorage(0)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


def _arranged(
    spans: list[_Span], berth: Berth
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[Bytes]]:
    """The pieces of memory for spans, each span's piece and offset, and pieces to be copied.

    A storage that lies in the slot is a piece; of others each run of overlapping spans is.
    """
    pieces: list[tuple[int, int]] = []
    places: list[tuple[int, int]] = [(0, 0)] * len(spans)
    loose: list[Bytes] = []
    by_storage: dict[int, list[int]] = {}
    for number, span in enumerate(spans):
        by_storage.setdefault(span.storage._cdata, []).append(number)
    for numbers in by_storage.values():
        whole = spans[numbers[0]].storage
        field = berth.field_of(whole)
        if field is not None:
            for number in numbers:
                places[number] = len(pieces), spans[number].begin
            pieces.append((_LYING, field))
            continue
        for begin, end, run in _runs(spans, numbers):
            for number in run:
                places[number] = len(pieces), spans[number].begin - begin
            pieces.append((_COPIED, end - begin))
            loose.append(_bytes(whole)[begin:end])
    return pieces, places, loose


def _runs(spans: list[_Span], numbers: list[int]) -> Iterator[tuple[int, int, list[int]]]:
    """Runs of spans of a storage that overlap, from a multiple of the alignment on."""
    begin, end, run = 0, 0, list[int]()
    for number in sorted(numbers, key=lambda number: spans[number].begin):
        span = spans[number]
        if run and span.begin >= end:
            yield begin, end, run
            run = []
        if not run:
            begin, end = span.begin // _ALIGNMENT * _ALIGNMENT, span.end
        end = max(end, span.end)
        run.append(number)
    if run:
        yield begin, max(begin, end), run


def _bytes(whole: Any) -> Bytes:
    data: Bytes = torch.empty(0, dtype=torch.uint8).set_(whole).numpy()
    return data


def _pieces(pairs: list[tuple[int, int]], lease: Any, inline: memoryview) -> Iterator[Any]:
    """The memory of each piece, writable."""
    own = bytearray(inline)
    copied = None
    offsets = {_COPIED: 0, _INLINE: 0}
    for kind, number in pairs:
        if kind == _LYING:
            yield memoryview(lease.export(str(number))[0])
            continue
        if kind == _COPIED and copied is None:
            copied = memoryview(lease.export(_FIELD)[0])
        memory = copied if kind == _COPIED else memoryview(own)
        offset = offsets[kind]
        offsets[kind] += _padded(number)
        yield memory[offset : offset + number]  # type: ignore[index]


def _copy(parts: list[Bytes], memory: Bytes) -> None:
    offset = 0
    for part in parts:
        memory[offset : offset + part.nbytes] = part
        offset += _padded(part.nbytes)


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
