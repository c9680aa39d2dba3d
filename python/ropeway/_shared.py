"""Lists and dicts in shared memory: an index of a dataset that all workers read from one place.

Nothing in them is a Python object, so that reading changes no reference counts, and a forked
worker's memory doesn't grow. Items are made when they are asked for.
"""

import pickle
import struct
import zlib
from array import array as numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from ropeway import _dtypes
from ropeway._arrays import Array, share

_ALIGNMENT = 64
_SHOWN = 6
_INT64 = range(-(1 << 63), 1 << 63)
_WORD = struct.Struct("<q")
_FLOAT = struct.Struct("<d")
_HEAD = struct.Struct("<H")

_STR, _BYTES, _INT, _FLOATING, _BOOL, _NONE, _ARRAY, _TUPLE, _PICKLED = b"sbifonatp"


class SharedList(Sequence[Any]):
    """A list that can't be changed, in shared memory.

    Strings, bytes, numbers, None and arrays are kept as what they are; arrays come out as
    read-only views. Anything else is pickled, each item by itself. Slices are views of the same
    memory. A list pickles as a handle.
    """

    def __init__(self, items: Iterable[Any] = ()) -> None:
        """Copies items into shared memory; raises whatever pickling an item raises."""
        data, ends = bytearray(), numbers("q", [0])
        for item in items:
            _append(data, item)
            ends.append(len(data))
        self._open(share(np.frombuffer(data, "u1")), share(np.frombuffer(ends, "i8")))
        self._places = range(len(ends) - 1)

    def _open(self, data: Array, ends: Array) -> None:
        self._data, self._ends = data, ends
        self._bytes, self._words = _view(data), _view(ends)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> "SharedList": ...
    def __getitem__(self, index: int | slice) -> Any:
        """The item, or a list of the items of a slice that shares this one's memory."""
        if isinstance(index, slice):
            return _restored(self._data, self._ends, self._places[index])
        try:
            place = self._places[index]
        except IndexError:
            raise IndexError(f"index {index} of a SharedList of length {len(self)}") from None
        return self._item(place)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Any]:
        return map(self._item, self._places)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SharedList | list):
            return NotImplemented
        return len(self) == len(other) and all(map(_equal, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return _restored, (self._data, self._ends, self._places)

    def __repr__(self) -> str:
        shown = ", ".join(repr(item) for item in self[:_SHOWN])
        return f"SharedList([{shown}{', …' if len(self) > _SHOWN else ''}], length {len(self)})"

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return self._data.nbytes + self._ends.nbytes

    def _item(self, place: int) -> Any:
        begin, end = self._words[place], self._words[place + 1]
        return _decoded(self._bytes[begin:end], self._data, begin)


class SharedDict(Mapping[Any, Any]):
    """A dict that can't be changed, in shared memory; see `SharedList`.

    Keys are strings, bytes, numbers, None, or tuples of them.
    """

    def __init__(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = ()) -> None:
        """Copies items into shared memory; raises TypeError for a key of another type."""
        pairs = dict(items)
        self._keys = SharedList(_key(key) for key in pairs)
        self._values = SharedList(pairs.values())
        size = 1 << (2 * len(pairs) + 1).bit_length()
        table = np.full(size, -1, "i8")
        for number, key in enumerate(self._keys):
            place = _hash(key) & (size - 1)
            while table[place] >= 0:
                place = (place + 1) & (size - 1)
            table[place] = number
        self._table = share(table)
        self._slots = _view(self._table)

    def __getitem__(self, key: Any) -> Any:
        number = self._find(key)
        if number < 0:
            raise KeyError(key)
        return self._values[number]

    def __contains__(self, key: object) -> bool:
        return self._find(key) >= 0

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Any]:
        for key in self._keys:
            yield _decoded(memoryview(key), None, 0)

    def __reduce__(self) -> Any:
        return _restored_dict, (self._keys, self._values, self._table)

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{key!r}: {self[key]!r}" for key, _ in zip(self, range(_SHOWN), strict=False)
        )
        return f"SharedDict({{{shown}{', …' if len(self) > _SHOWN else ''}}}, length {len(self)})"

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return self._keys.nbytes + self._values.nbytes + self._table.nbytes

    def _find(self, key: Any) -> int:
        try:
            wanted = _key(key)
        except TypeError:
            return -1
        mask = len(self._slots) - 1
        place = _hash(wanted) & mask
        while (number := self._slots[place]) >= 0:
            if self._keys[number] == wanted:
                return int(number)
            place = (place + 1) & mask
        return -1


def _restored(data: Array, ends: Array, places: range) -> SharedList:
    self = SharedList.__new__(SharedList)
    self._open(data, ends)
    self._places = places
    return self


def _restored_dict(keys: SharedList, values: SharedList, table: Array) -> SharedDict:
    self = SharedDict.__new__(SharedDict)
    self._keys, self._values, self._table = keys, values, table
    self._slots = _view(table)
    return self


def _view(array: Any) -> memoryview:
    return memoryview(array)


def _append(data: bytearray, item: Any) -> None:
    """Writes an item behind others: a letter for its type, then what it is made of."""
    kind = type(item)
    if kind is np.ndarray and not item.dtype.hasobject:
        _append_array(data, item)
    elif (plain := _plain(item)) is not None:
        data += plain
    else:
        data.append(_PICKLED)
        data += pickle.dumps(item, protocol=5)


def _plain(item: Any) -> bytes | None:
    """The bytes of a simple item, None for any other."""
    kind: Any = type(item)
    text: bytes
    if kind is str:
        text = item.encode("utf-8", "surrogatepass")
        return b"s" + text
    if kind is bytes:
        text = item
        return b"b" + text
    if kind is bool:
        return b"o" + bytes([item])
    if kind is int and item in _INT64:
        return b"i" + _WORD.pack(item)
    if kind is float:
        return b"f" + _FLOAT.pack(item)
    return b"n" if item is None else None


def _append_array(data: bytearray, item: "np.ndarray[Any, Any]") -> None:
    head = pickle.dumps((_dtypes.encode(item.dtype), item.shape), protocol=5)
    data.append(_ARRAY)
    data += _HEAD.pack(len(head)) + head
    data += bytes(-len(data) % _ALIGNMENT)
    data += item.tobytes()


def _decoded(raw: memoryview, memory: Array | None, begin: int) -> Any:
    """Makes an item of its bytes, which begin there in the memory of the list."""
    kind, rest = raw[0], raw[1:]
    if kind == _STR:
        return str(rest, "utf-8", "surrogatepass")
    if kind == _BYTES:
        return bytes(rest)
    if kind == _INT:
        return _WORD.unpack(rest)[0]
    if kind == _FLOATING:
        return _FLOAT.unpack(rest)[0]
    if kind == _BOOL:
        return bool(rest[0])
    if kind == _NONE:
        return None
    if kind == _TUPLE:
        return tuple(_decoded(part, None, 0) for part in _parts(rest))
    if kind == _ARRAY:
        (length,) = _HEAD.unpack_from(rest)
        text, shape = pickle.loads(rest[2 : 2 + length])
        place = begin + 3 + length
        place += -place % _ALIGNMENT
        view: np.ndarray[Any, Any] = np.ndarray(shape, _dtypes.decode(text), memory, place)
        view.flags.writeable = False
        return view
    return pickle.loads(rest)


def _key(key: Any) -> bytes:
    """The bytes of a key, the same for keys that are equal."""
    if type(key) is tuple:
        parts = [_key(part) for part in key]
        return b"t" + b"".join(_WORD.pack(len(part)) + part for part in parts)
    if isinstance(key, bool | float) and key == key and abs(key) < 1 << 63 and int(key) == key:
        key = int(key)
    plain = _plain(key)
    if plain is None:
        raise TypeError(
            f"a key of a SharedDict is a str, bytes, number, None, or a tuple of them; found "
            f"{key!r} of type {type(key).__name__}"
        )
    return plain


def _parts(raw: memoryview) -> Iterator[memoryview]:
    while raw:
        (length,) = _WORD.unpack_from(raw)
        yield raw[_WORD.size : _WORD.size + length]
        raw = raw[_WORD.size + length :]


def _hash(key: bytes) -> int:
    """The same in every process, unlike `hash`."""
    word = zlib.crc32(key)
    return (word ^ (zlib.adler32(key) << 16)) * 0x9E3779B1 >> 8


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(two, np.ndarray):
        return np.array_equal(one, two)
    return bool(one == two)
