"""Where the arrays of a message lie in the memory of its slot."""

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ropeway import _dtypes
from ropeway._arrays import copy_elements
from ropeway._extent import address, extent
from ropeway._views import AnyArray, View

_ALIGNMENT = 64
_EFFORT: Any = 10_000  # steps that NumPy may take to find out whether two arrays share an element


Place = tuple[str, tuple[int, ...], tuple[int, ...] | None, int, bool]
"""How to make the view that stands for an array: dtype text, shape, strides (None for C order),
offset within the memory, writeable. A plain tuple, as it is pickled."""


class _Span(NamedTuple):
    """The bytes from the first to the last that an array can touch."""

    begin: int
    end: int
    number: int
    array: AnyArray


class Placement:
    """The places of some arrays: what overlaps stays together, everything else is compact.

    Arrays that share memory are written once, with the gaps between their elements, and come
    out as views of one memory. Any other array is written in C order, or in Fortran order if it
    is contiguous that way. Arrays begin at multiples of 64 bytes; among arrays that share memory
    the largest does, and the others keep their distance to it.
    """

    def __init__(self, arrays: Sequence[AnyArray]) -> None:
        self.nbytes = 0
        self._sources: list[tuple[int, AnyArray]] = []
        if all(array.flags.owndata for array in arrays):  # whoever shares memory is a view
            self.places = [self._alone(array) for array in arrays]
        else:
            self.places = self._arranged(arrays)

    def fill(self, memory: Any) -> None:
        """Copies the arrays into memory of `nbytes` bytes; what lies between them becomes zero."""
        end = 0
        with memoryview(memory) as raw:
            for offset, source in self._sources:
                if offset > end:
                    raw[end:offset] = bytes(offset - end)
                steps = _fortran_steps(source) if _is_fortran(source) else None
                copy_elements(source, np.ndarray(source.shape, source.dtype, raw, offset, steps))
                end = offset + source.nbytes

    def _arranged(self, arrays: Sequence[AnyArray]) -> list[Place]:
        """Places arrays of which some may share memory with others."""
        places: dict[int, Place] = {}
        spans = []
        for number, array in enumerate(arrays):
            if array.nbytes:
                spans.append(_span(number, array))
            else:
                places[number] = self._alone(array)
        for group in _groups(spans):
            if len(group) == 1:
                places[group[0].number] = self._alone(group[0].array)
            else:
                places |= self._together(group)
        return [places[number] for number in range(len(arrays))]

    def _alone(self, array: AnyArray) -> Place:
        nbytes = array.nbytes
        if not nbytes:
            return _place(array, None, 0)
        strides = _fortran_steps(array) if _is_fortran(array) else None
        return _place(array, strides, self._reserve(nbytes, array))

    def _together(self, group: list[_Span]) -> dict[int, Place]:
        begin, end = group[0].begin, max(span.end for span in group)
        largest = max(group, key=lambda span: span.array.nbytes)
        offset = self._reserve(end - begin, _bytes(begin, end, group), largest.begin - begin)
        return {
            span.number: _place(
                span.array, span.array.strides, offset + address(span.array) - begin
            )
            for span in group
        }

    def _reserve(self, nbytes: int, source: AnyArray, anchor: int = 0) -> int:
        """Finds room so that the byte `anchor` of it is aligned; returns its offset."""
        offset = -(-(self.nbytes + anchor) // _ALIGNMENT) * _ALIGNMENT - anchor
        self.nbytes = offset + nbytes
        self._sources.append((offset, source))
        return offset


def views(places: Iterable[Place], memory: Any) -> list[View]:
    """Makes the arrays again, as views of the memory that they were copied to."""
    arrays = []
    for text, shape, strides, offset, writeable in places:
        dtype = _dtypes.decode(text)
        buffer = memory if dtype.itemsize and 0 not in shape else bytearray()
        array = View(shape, dtype, buffer, offset, strides)
        if not writeable:
            array.flags.writeable = False
        arrays.append(array)
    return arrays


def _is_fortran(array: AnyArray) -> bool:
    return array.ndim > 1 and array.flags.fnc


def _fortran_steps(array: AnyArray) -> tuple[int, ...]:
    """The strides of an array of that shape in Fortran order."""
    return tuple(itertools.accumulate((array.itemsize, *array.shape[:-1]), operator.mul))


def _place(array: AnyArray, strides: tuple[int, ...] | None, offset: int) -> Place:
    return _dtypes.encode(array.dtype), array.shape, strides, offset, array.flags.writeable


def _span(number: int, array: AnyArray) -> _Span:
    return _Span(*extent(array), number, array)


def _groups(spans: list[_Span]) -> Iterator[list[_Span]]:
    """Splits spans so that only arrays of one group share memory."""
    group: list[_Span] = []
    end = 0
    for span in sorted(spans, key=_order):
        if span.begin >= end:
            yield from _split(group)
            group, end = [], 0
        group.append(span)
        end = max(end, span.end)
    yield from _split(group)


def _split(group: list[_Span]) -> Iterator[list[_Span]]:
    """Splits spans that overlap by whether the arrays do, if keeping them together is a waste.

    Two columns of a table overlap as spans, but it would take the whole table to keep them
    together.
    """
    if not group:
        return
    length = max(span.end for span in group) - group[0].begin
    if len(group) == 1 or length <= 2 * sum(span.array.nbytes for span in group):
        yield group
        return
    parts: list[list[_Span]] = []
    for span in group:
        joined, apart = [span], []
        for part in parts:
            if any(_share(span, other) for other in part):
                joined += part
            else:
                apart.append(part)
        parts = [*apart, joined]
    yield from (sorted(part, key=_order) for part in parts)


def _order(span: _Span) -> tuple[int, int, int]:
    return span[:3]


def _share(one: _Span, other: _Span) -> bool:
    if one.begin >= other.end or other.begin >= one.end:
        return False
    return np.may_share_memory(one.array, other.array, max_work=_EFFORT)


def _bytes(begin: int, end: int, group: list[_Span]) -> AnyArray:
    """All bytes of a span of memory, as an array that keeps the arrays in it alive."""
    return np.asarray(_Bytes(begin, end, group))


class _Bytes:
    """The interface by which NumPy takes memory by its address."""

    def __init__(self, begin: int, end: int, group: list[_Span]) -> None:
        self._group = group
        self.__array_interface__ = {
            "version": 3,
            "shape": (end - begin,),
            "typestr": "|u1",
            "data": (begin, True),
        }
