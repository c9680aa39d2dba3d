"""Batches that are made where they lie: each sample's tensors go to their rows at once.

The samples that torch's collate function is given hold rows of the batch in place of tensors of
their own; stacking them finds that they lie stacked already. Whatever doesn't fit goes the way
that torch's own code has for it, with its errors.
"""

from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate

from ropeway.torch.berth import Berth
from ropeway.torch.parcel import is_plain

_LEAST = 4096
_torchs_stack = collate.default_collate_fn_map[torch.Tensor]
_torchs_array = collate.default_collate_fn_map.get(np.ndarray)


class Batch:
    """One batch's tensors, by their place among those of a sample."""

    def __init__(self, berth: Berth, rows: int) -> None:
        self._berth, self._count = berth, rows
        self._tensors: list[Any] = []
        self._rows: list[list[Any] | None] = []
        self._by_first: dict[int, int] = {}
        self._at = self._sample = 0

    @property
    def is_worth_it(self) -> bool:
        """Whether the first sample had anything that lies in the slot."""
        return bool(self._by_first)

    def placed(self, number: int, sample: Any) -> Any:
        """A sample with rows in place of its tensors."""
        self._at, self._sample = 0, number
        return self._placed(sample)

    def stacked(self, parts: Any) -> Any:
        """The tensor whose rows these are; None if they aren't."""
        number = self._by_first.get(id(parts[0]))
        rows = None if number is None else self._rows[number]
        if rows is None or len(rows) != len(parts):
            return None
        if any(row is not part for row, part in zip(rows, parts, strict=True)):
            return None
        return self._tensors[number]  # type: ignore[index]

    def _placed(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.Tensor:
            return self._row(value, value) if is_plain(value) else value
        if kind is np.ndarray:
            return self._row(value, _as_tensor(value))
        if kind is dict:
            return {key: self._placed(item) for key, item in value.items()}
        if kind is list or kind is tuple:
            return kind(map(self._placed, value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return kind(*map(self._placed, value))
        return value

    def _row(self, value: Any, source: Any) -> Any:
        at, self._at = self._at, self._at + 1
        if source is None:
            return value
        if self._sample == 0:
            self._add(source)
        if at >= len(self._rows):
            return value
        rows = self._rows[at]
        if rows is None:
            return value
        row = rows[self._sample]
        if row.shape != source.shape or row.dtype is not source.dtype:
            return value
        row.copy_(source)
        return row

    def _add(self, source: Any) -> None:
        nbytes = source.nbytes * self._count
        made = None
        if nbytes >= _LEAST:
            made = self._berth.tensor((self._count, *source.shape), source.dtype, nbytes)
        self._tensors.append(made)
        self._rows.append(None if made is None else list(made.unbind(0)))
        if made is not None:
            self._by_first[id(self._rows[-1][0])] = len(self._rows) - 1  # type: ignore[index]


class Collate:
    """torch's `default_collate`, with stacks that are made in the slot."""

    def __init__(self, berth: Berth) -> None:
        self.berth = berth
        self.batch: Batch | None = None
        if self._is_torchs_own():
            # A collate function that calls torch's, or a dataset that does, gets slots, too.
            collate.default_collate_fn_map[torch.Tensor] = self.stack

    def __call__(self, samples: Any) -> Any:
        """Makes a batch of samples."""
        return collate.default_collate(samples)

    @property
    def takes_rows(self) -> bool:
        """Whether nobody has changed how torch collates tensors and arrays."""
        functions = collate.default_collate_fn_map
        return (
            functions.get(torch.Tensor) == self.stack and functions.get(np.ndarray) is _torchs_array
        )

    def _is_torchs_own(self) -> bool:
        function: Any = collate.default_collate_fn_map.get(torch.Tensor)
        return function is _torchs_stack or isinstance(getattr(function, "__self__", None), Collate)

    def stack(self, parts: Any, *, collate_fn_map: Any = None) -> Any:
        """Torch's `collate_tensor_fn`."""
        if self.batch is not None:
            made = self.batch.stacked(parts)
            if made is not None:
                return made
        first = parts[0]
        if type(first) is not torch.Tensor or not is_plain(first):
            return _torchs_stack(parts, collate_fn_map=collate_fn_map)
        shape = (len(parts), *first.shape)
        nbytes = sum(part.numel() for part in parts) * first.itemsize
        equal = nbytes == first.nbytes * len(parts)
        out = self.berth.tensor(shape, first.dtype, nbytes) if nbytes >= _LEAST and equal else None
        if out is None:
            out = torch.empty(shape, dtype=first.dtype)
        return torch.stack(parts, 0, out=out)


class Fetcher:
    """What torch's fetchers do, with the place of each sample told, and rows in the slot.

    `at` is called with the place of a sample before it is read, and with their number before
    something is done with all of them.
    """

    def __init__(self, theirs: Any, collate_fn: Any, berth: Berth, at: Any, iterable: bool) -> None:
        self._theirs, self._at, self._iterable = theirs, at, iterable
        self._collate = Collate(berth)
        self._by_default = collate_fn is collate.default_collate

    def fetch(self, keys: Any) -> Any:
        """Reads a batch, or a sample where there are none."""
        theirs = self._theirs
        dataset = theirs.dataset
        many = getattr(dataset, "__getitems__", None)
        if self._iterable or not theirs.auto_collation:
            return theirs.fetch(keys)
        if many:
            self._at(len(keys))
            return theirs.fetch(keys)
        keys = list(keys)
        if not self._by_default:
            samples = [self._read(n, key) for n, key in enumerate(keys)]
            self._at(len(keys))
            return theirs.collate_fn(samples)
        return self._in_place(keys)

    def _read(self, number: int, key: Any) -> Any:
        self._at(number)
        return self._theirs.dataset[key]

    def _in_place(self, keys: list[Any]) -> Any:
        collating = self._collate
        batch = Batch(collating.berth, len(keys))
        samples: list[Any] = []
        useful = collating.takes_rows
        for number, key in enumerate(keys):
            sample = self._read(number, key)
            if useful:
                sample = batch.placed(number, sample)
                useful = number > 0 or batch.is_worth_it
            samples.append(sample)
        collating.batch = batch
        self._at(len(keys))
        try:
            return collating(samples)
        finally:
            collating.batch = None


def _as_tensor(value: Any) -> Any:
    """A tensor over an array; None for those that torch's own code is to refuse or to warn of."""
    if not value.flags.writeable:
        return None
    try:
        return torch.from_numpy(value)
    except (TypeError, ValueError):
        return None
