"""In which order samples are read, and how they are grouped to batches."""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

_BLOCK = 8192
_ROUNDS = 6
_MASK = (1 << 64) - 1

Keys = list[Any]
"""The keys of one batch, as the dataset takes them: mostly ints."""


class Order(Protocol):
    """What a loader asks for the batches of an epoch."""

    repeatable: bool
    """Whether an epoch can be asked for ahead of time and again."""

    def batches(self, epoch: int, start: int) -> Iterator[Keys]:
        """The keys of each batch of an epoch from batch `start` on."""

    def __len__(self) -> int: ...


class Permutation:
    """A permutation of 0 … n-1 that a key chooses, generated block by block, never stored.

    A Feistel network over the smallest even number of bits that can hold n-1, walked until it
    gives a number below n: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002. The
    round function is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
    """

    def __init__(self, n: int, key: int) -> None:
        self._n = n
        self._half = max(1, math.ceil((n - 1).bit_length() / 2))
        self._keys = [np.uint64(mixed(key, number)) for number in range(_ROUNDS)]

    def block(self, start: int, stop: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """The numbers at positions start … stop-1."""
        numbers = self._encrypt(np.arange(start, stop, dtype=np.uint64))
        outside = np.flatnonzero(numbers >= self._n)
        while outside.size:
            numbers[outside] = self._encrypt(numbers[outside])
            outside = outside[numbers[outside] >= self._n]
        permuted: np.ndarray[Any, np.dtype[np.int64]] = numbers.astype(np.int64)
        return permuted

    def _encrypt(self, numbers: Any) -> Any:
        half = np.uint64(self._half)
        mask = np.uint64((1 << self._half) - 1)
        left, right = numbers >> half, numbers & mask
        for key in self._keys:
            left, right = right, left ^ (_finalised(right + key) & mask)
        return (left << half) | right


class IndexOrder:
    """All indices of a dataset, in their order or in one that seed and epoch choose."""

    repeatable = True

    def __init__(
        self, length: int, batch_size: int, drop_last: bool, shuffle: bool, seed: int
    ) -> None:
        self.length = length
        self._size, self._drop_last = batch_size, drop_last
        self._shuffle, self._seed = shuffle, seed

    def batches(self, epoch: int, start: int) -> Iterator[Keys]:
        """The indices of each batch of an epoch from batch `start` on."""
        size = self._size
        per_block = max(1, _BLOCK // size) * size
        permutation = Permutation(self.length, mixed(self._seed, epoch)) if self._shuffle else None
        end = len(self) * size if self._drop_last else self.length
        for begin in range(start * size, end, per_block):
            stop = min(begin + per_block, end)
            block = permutation.block(begin, stop).tolist() if permutation else range(begin, stop)
            for first in range(0, stop - begin, size):
                yield list(block[first : first + size])

    def __len__(self) -> int:
        whole, rest = divmod(self.length, self._size)
        return whole if self._drop_last or not rest else whole + 1


class SamplerOrder:
    """The keys that a sampler gives, grouped to batches."""

    repeatable = False

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        self._sampler, self._size, self._drop_last = sampler, batch_size, drop_last

    def batches(self, epoch: int, start: int) -> Iterator[Keys]:
        """The keys of each batch from batch `start` on; the sampler hears of the epoch."""
        tell_epoch(self._sampler, epoch)
        keys = iter(self._sampler)
        while batch := list(itertools.islice(keys, self._size)):
            if len(batch) < self._size and self._drop_last:
                return
            if start > 0:
                start -= 1
                continue
            yield batch

    def __len__(self) -> int:
        whole, rest = divmod(_length(self._sampler, "sampler"), self._size)
        return whole if self._drop_last or not rest else whole + 1


class BatchSamplerOrder:
    """The batches that a batch sampler gives."""

    repeatable = False

    def __init__(self, batch_sampler: Iterable[Iterable[Any]]) -> None:
        self._batches = batch_sampler

    def batches(self, epoch: int, start: int) -> Iterator[Keys]:
        """The keys of each batch from batch `start` on; the sampler hears of the epoch."""
        tell_epoch(self._batches, epoch)
        for keys in itertools.islice(iter(self._batches), start, None):
            yield list(keys)

    def __len__(self) -> int:
        return _length(self._batches, "batch_sampler")


def mixed(*words: int) -> int:
    """Mixes words to one of 64 bits that looks like chance."""
    state = 0
    for word in words:
        state = (state + (word & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def tell_epoch(thing: Any, epoch: int) -> None:
    """Calls `set_epoch` of whatever has it."""
    set_epoch = getattr(thing, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)


def _finalised(words: Any) -> Any:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _length(sampler: Any, what: str) -> int:
    try:
        return len(sampler)
    except TypeError:
        raise TypeError(f"the {what} has no length, so this loader has none") from None
