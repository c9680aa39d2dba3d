"""What a dataset can ask about the worker that it is in."""

from typing import Any

import numpy as np

from ropeway.loader.order import mixed
from ropeway.loader.seeds import Seeds

_current: "WorkerInfo | None" = None


class WorkerInfo:
    """The worker that a dataset's code runs in, and the sample that it is asked for."""

    def __init__(self, number: int, workers: int, dataset: Any, seed: int, seeds: Seeds) -> None:
        self._number, self._workers = number, workers
        self.dataset = dataset
        """The worker's own copy of the dataset."""
        self.base_seed = seed
        """The seed of the loader."""
        self.epoch = 0
        """The epoch of the sample that is asked for."""
        self.sharded = False
        self._seeds = seeds

    @property
    def id(self) -> int:
        """The worker's number, from 0; asking says that the dataset shards itself."""
        self.sharded = True
        return self._number

    @property
    def workers(self) -> int:
        """The number of workers; asking says that the dataset shards itself."""
        self.sharded = True
        return self._workers

    @property
    def seed(self) -> int:
        """A seed that depends on the loader's seed, the epoch and the key of the sample alone."""
        return self._seeds.word

    @property
    def rng(self) -> "np.random.Generator":
        """A new generator for the sample at hand."""
        return np.random.Generator(np.random.Philox(key=mixed(self._seeds.word, 1)))

    def __repr__(self) -> str:
        return f"<ropeway worker {self._number} of {self._workers}, epoch {self.epoch}>"


def worker_info() -> WorkerInfo | None:
    """The worker that calls; None in a process that isn't one."""
    return _current


def enter(info: WorkerInfo | None) -> None:
    """Says which worker this process is."""
    global _current
    _current = info
