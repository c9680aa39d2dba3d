"""Where the arrays of a batch lie in its memory."""

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ropeway._views import AnyArray, View
from ropeway.loader.structure import SCALARS, ArrayLeaf, MappingNode, Node, fields, is_in_order

_ALIGNMENT = 64

Block = tuple[AnyArray, int]
"""An array of a batch and 0, or an array of several of them and how many they are."""


class Layout:
    """Where the arrays of a batch of some structure lie, for a number of rows."""

    def __init__(self, node: Node, rows: int | None) -> None:
        self.node, self.rows = node, rows
        self._is_array = isinstance(node, ArrayLeaf)
        self._runs: list[_Run] = []
        self.nbytes = 0
        leaves = [leaf for _, leaf in fields(node)]
        for leaf, alike in itertools.groupby(leaves):
            shape = leaf.shape if rows is None else (rows, *leaf.shape)
            size = math.prod(shape) * leaf.dtype.itemsize
            step = -(-size // _ALIGNMENT) * _ALIGNMENT
            count = sum(1 for _ in alike)
            self._runs.append(_run(count, shape, leaf.dtype, self.nbytes, step))
            self.nbytes += count * step
        self._keys, self._kinds = _scalars(node)

    def __reduce__(self) -> Any:
        return Layout, (self.node, self.rows)

    def arrays(self, memory: Any, kind: type[AnyArray] = np.ndarray) -> list[AnyArray]:
        """The arrays of the batch, over its memory (which may be None if it takes no bytes)."""
        found: list[AnyArray] = []
        for run in self._runs:
            found += run.arrays(memory, kind)
        return found

    def blocks(self, memory: Any) -> list[Block]:
        """The arrays of the batch, for `put`: numbers that lie alike in one block."""
        found: list[Block] = []
        for run in self._runs:
            if run.size > 1 and run.step and run.holds_numbers:
                found.append((run.whole(memory, np.ndarray), run.size))
            else:
                found += [(array, 0) for array in run.arrays(memory, np.ndarray)]
        return found

    def flatten(self, sample: Any, arrays: list[Any], others: list[Any]) -> bool:
        """Appends the leaves of a sample, which must have this structure, else raises `Misfit`.

        Whether its keys were seen to be in the order that the batch has them in.
        """
        if self._keys is not None and type(sample) is dict:
            values = sample.values()
            if tuple(map(type, values)) == self._kinds and tuple(sample) == self._keys:
                arrays += values
                return True
        self.node.flatten(sample, arrays, others)
        return self._is_array

    def is_in_order(self, sample: Any) -> bool:
        """Whether a sample that fits has its keys in the order that the batch has them in."""
        return is_in_order(self.node, sample)

    def too_large(self, values: list[Any]) -> OverflowError:
        """The error for a sample with a number that its row can't hold."""
        for (way, leaf), value in zip(fields(self.node), values, strict=True):
            if type(value) is int and leaf.dtype.kind == "i" and not _fits(value, leaf.dtype):
                what = f"field {way}" if way else "the sample"
                return OverflowError(
                    f"{what} is {value}, and a batch holds numbers like it as {leaf.dtype}: make "
                    "it a float or a string in the dataset, or pass a collate function of your own"
                )
        return OverflowError("a number of the sample is too large for its row of the batch")

    def batch(self, memory: Any, others: list[Any]) -> Any:
        """The batch: the structure with arrays over this memory, and these lists, in it."""
        arrays = self.arrays(memory, View)
        if self._keys is not None:
            return dict(zip(self._keys, arrays, strict=True))
        return self.node.build(iter(arrays), iter(others))  # type: ignore[arg-type]

    def rows_of(self, arrays: list[AnyArray], count: int) -> Iterable[Any]:
        """The first rows of the batch, as `row` has them."""
        if self._is_array and arrays[0].ndim > 1:
            return arrays[0][:count]
        return (self.row(arrays, number) for number in range(count))

    def row(self, arrays: list[AnyArray], number: int) -> Any:
        """One row of the batch, as views; what isn't an array is None."""
        views = [array[number, ...] for array in arrays]
        return self.node.build(iter(views), _Nones())  # type: ignore[arg-type]


def put(blocks: list[Block], place: int, values: list[Any]) -> None:
    """Writes the arrays of a sample to its row of a batch."""
    at = 0
    for array, size in blocks:
        if size:
            array[:, place] = values[at : at + size]
            at += size
        else:
            array[place] = values[at]
            at += 1


def _fits(number: int, dtype: "np.dtype[Any]") -> bool:
    info = np.iinfo(dtype)
    return int(info.min) <= number <= int(info.max)


class _Run(NamedTuple):
    """Arrays of the same shape and dtype that follow each other, `step` bytes apart."""

    size: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    step: int
    strides: tuple[int, ...]
    """Of the array that has them all in it, `size` along its first axis,"""
    apart: Callable[[AnyArray], Sequence[AnyArray]]
    """and what takes that apart: faster than iterating, which asks for `__getitem__` each time."""
    holds_numbers: bool
    """Whether each is a column of numbers of a type that Python has."""

    def arrays(self, memory: Any, kind: type[AnyArray]) -> Sequence[AnyArray]:
        """The arrays; one that has them all in it is taken apart faster than each is made."""
        if not self.step:
            return [kind(self.shape, self.dtype) for _ in range(self.size)]
        if self.size == 1:
            return [kind(self.shape, self.dtype, memory, self.offset)]
        return self.apart(self.whole(memory, kind))

    def whole(self, memory: Any, kind: type[AnyArray]) -> AnyArray:
        """The array that has them all in it."""
        return kind((self.size, *self.shape), self.dtype, memory, self.offset, self.strides)


def _run(size: int, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int, step: int) -> _Run:
    inner = [math.prod(shape[axis:]) * dtype.itemsize for axis in range(1, len(shape) + 1)]
    apart = operator.itemgetter(*range(size))
    numbers = len(shape) == 1 and dtype in SCALARS.values()
    return _Run(size, shape, dtype, offset, step, (step, *inner), apart, numbers)


def _scalars(node: Node) -> tuple[tuple[Any, ...] | None, tuple[type, ...]]:
    """Keys and types of a dict that has only Python's numbers; None for other structures."""
    if not isinstance(node, MappingNode) or type(node.empty) is not dict:
        return None, ()
    kinds = {dtype: kind for kind, dtype in SCALARS.items()}
    children = node.children.values()
    if not all(isinstance(leaf, ArrayLeaf) and not leaf.shape for leaf in children):
        return None, ()
    found = [kinds.get(leaf.dtype) for leaf in children]
    if not all(found):
        return None, ()
    return tuple(node.children), tuple(kind for kind in found if kind is not None)


class _Nones:
    def __next__(self) -> None:
        return None
