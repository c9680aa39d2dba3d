"""Randomness that belongs to a sample: keyed by (seed, epoch, key), whoever does the work.

Seeding NumPy's and Python's generators takes longer than many a sample. So a worker seeds them
once, and looks after each sample, or each batch where that takes no time, whether it has drawn
from them. The first that has is done again, seeded, and from then on each sample is seeded before
it is asked for. Generators of NumPy that nobody has imported yet can't have been drawn from, so
workers don't import them to begin with.
"""

import ctypes
import random
import sys
import zlib
from typing import Any

import numpy as np

from ropeway.loader.order import mixed

_WORDS = 625
_Watched = list[tuple[Any, tuple[int, ...]]]


class Seeds:
    """Seeds the global generators of this process for one sample after the other."""

    def __init__(self, seed: int, eager: bool = False) -> None:
        self._seed = seed
        self.key: Any = 0
        """The sample at hand."""
        self.epoch = 0
        self._seen: list[int] = []
        self._watched: _Watched | None = None if eager else _watched()
        if self._watched is not None:
            _seed_all(mixed(seed), imported_only=True)
            self._look()

    def begin(self, epoch: int, key: Any) -> None:
        """Says which sample comes next."""
        self.epoch, self.key = epoch, key
        if self._watched is None:
            _seed_all(self.word)

    @property
    def is_eager(self) -> bool:
        """Whether the generators are seeded for each sample."""
        return self._watched is None

    def seed(self) -> None:
        """Seeds the generators now."""
        _seed_all(self.word)
        if self._watched is not None:
            self._watched = _watched()  # by now NumPy's are imported
        self._look()

    def begin_again(self) -> bool:
        """Whether numbers were drawn since the last look without being seeded; seeds now."""
        if self._watched is None:
            return False
        if len(self._watched) == 1 and "numpy.random" in sys.modules:
            self.seed()
            return True
        if self._look():
            self._watched = None
            _seed_all(self.word)
            return True
        return False

    @property
    def word(self) -> int:
        """64 bits for the sample at hand."""
        return mixed(self._seed, self.epoch, key_number(self.key))

    def _look(self) -> bool:
        """Whether a generator has moved since the last look."""
        if self._watched is None:
            return True
        if "torch" in sys.modules:
            return True
        seen = [words[place] for words, places in self._watched for place in places]
        moved, self._seen = seen != self._seen, seen
        return moved


class GlobalState:
    """The state of the global generators, to be put back: for work in the caller's process."""

    def __init__(self) -> None:
        self._numpy, self._python = np.random.get_state(), random.getstate()
        torch = sys.modules.get("torch")
        self._torch = None if torch is None else torch.get_rng_state()

    def restore(self) -> None:
        """Puts the state back."""
        np.random.set_state(self._numpy)
        random.setstate(self._python)
        torch = sys.modules.get("torch")
        if torch is not None and self._torch is not None:
            torch.set_rng_state(self._torch)


def key_number(key: Any) -> int:
    """A number for the key of a sample: itself if it is one."""
    try:
        return int(key.__index__())
    except (AttributeError, TypeError):
        text = repr(key).encode()
        return zlib.crc32(text) << 32 | zlib.adler32(text)


def _seed_all(word: int, imported_only: bool = False) -> None:
    random.seed(word)
    if not imported_only or "numpy.random" in sys.modules:
        np.random.seed((word & 0xFFFFFFFF, word >> 32))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(word >> 1)


def _watched() -> _Watched | None:
    """The memory of the generators, and the words of it that a draw changes; None if unknown.

    NumPy's is left out if it isn't imported.

    Both are Mersenne twisters: 624 words and a position, which NumPy keeps behind the words and
    CPython in front of them. A position alone comes round after 624 draws, the first word with
    it doesn't.
    """
    try:
        instance = random._inst
        behind_head = id(instance) + object.__basicsize__
        python_words = (ctypes.c_uint32 * _WORDS).from_address(behind_head)
        if not _proven(instance, python_words, 0):
            return None
        watched: _Watched = [(python_words, (0, 1))]
        if "numpy.random" in sys.modules:
            legacy: Any = np.random.mtrand._rand
            state = legacy._bit_generator.ctypes.state_address
            numpy_words = (ctypes.c_uint32 * _WORDS).from_address(state)
            if not _proven(legacy, numpy_words, 624):
                return None
            watched.append((numpy_words, (624, 0)))
    except (AttributeError, TypeError, ValueError):
        return None
    return watched


def _proven(generator: Any, words: Any, place: int) -> bool:
    """Whether the position of a generator is where it is looked for."""
    state = generator.getstate() if hasattr(generator, "getstate") else None
    position = state[1][-1] if state else generator.get_state()[2]
    key = state[1][0] if state else int(generator.get_state()[1][0])
    return bool(words[place] == position and words[1 if place == 0 else 0] == key)
