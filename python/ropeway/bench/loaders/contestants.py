"""The contestants: each makes batches of a workload in worker processes, in its usual way or best.

A batch comes as something with an array interface, or as whatever the loader makes of numbers.
"""

import contextlib
import ctypes
import mmap
import multiprocessing
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np

from .workloads import SHAPE, Workload

_LARGE = ("fill", "augment", "jpeg")
_SMALL = ("tiny", "fields", "kill")


class Contestant:
    """A loader of a workload's batches, in order; `close` ends its workers."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    """Modules that must be installed."""
    kinds: ClassVar[tuple[str, ...]] = _LARGE + _SMALL
    hands_over: ClassVar[bool] = True

    def __init__(self, data: Workload, workers: int) -> None:
        self.data, self.workers = data, workers

    @classmethod
    def missing(cls) -> str | None:
        """The first module that is needed and not installed."""
        return next((module for module in cls.needs if find_spec(module) is None), None)

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def close(self) -> None:
        """Ends the workers."""


def _keys(data: Workload) -> list[range]:
    size = data.batch
    return [range(first, first + size) for first in range(0, len(data) - size + 1, size)]


def _stacked(data: Workload, keys: range) -> Any:
    return np.stack([data[key] for key in keys])


def _filled(data: Workload, keys: range, out: Any) -> None:
    for row, key in enumerate(keys):
        data.into(key, out[row])


# ---- limits --------------------------------------------------------------------------------------


def _fill_own(
    data: Workload, number: int, workers: int, buffers: Any, room: Any, done: Any
) -> None:
    buffers = np.zeros((2, data.batch, *SHAPE), "f4") if buffers is None else buffers
    for count, keys in enumerate(_keys(data)[number::workers]):
        room.acquire()
        _filled(data, keys, buffers[count & 1])
        done.release()


class Limit(Contestant):
    """Workers fill buffers of their own and hand nothing over; they get ahead as far as others."""

    name = "limit: hands nothing over"
    kinds = _LARGE
    hands_over = False

    def __iter__(self) -> Iterator[Any]:
        context = multiprocessing.get_context("fork")
        done, room = context.Semaphore(0), context.Semaphore(2 * self.workers + 2)
        self._processes = []
        for number in range(self.workers):
            what = self.data, number, self.workers, self._buffers(), room, done
            self._processes.append(context.Process(target=_fill_own, args=what, daemon=True))
        for process in self._processes:
            process.start()
        nothing = np.zeros((1, 1, 1, 1), "f4")
        for _ in _keys(self.data):
            done.acquire()
            yield nothing
            room.release()

    def _buffers(self) -> Any:
        """The two buffers of a worker; None if it makes them itself."""
        return None

    def close(self) -> None:
        """Ends the workers."""
        for process in self._processes:
            process.terminate()
            process.join()


class LimitShared(Limit):
    """The same in shared memory, which nobody else looks at."""

    name = "limit, shared memory"

    def _buffers(self) -> Any:
        raws = [mmap.mmap(-1, 4 * self.data.batch * int(np.prod(SHAPE))) for _ in range(2)]
        return _arrays(raws, self.data)


def _arrays(raws: Any, data: Workload) -> list[Any]:
    return [np.frombuffer(raw, "f4").reshape(data.batch, *SHAPE) for raw in raws]


def _fill_raw(data: Workload, number: int, workers: int, raws: Any, free: Any, used: Any) -> None:
    arrays = _arrays(raws, data)
    for count, keys in enumerate(_keys(data)[number::workers]):
        token = free.get()
        if token is None:
            return
        _filled(data, keys, arrays[token])
        used.put((token, number + count * workers))


class RawArrays(Contestant):
    """A list of RawArrays and two queues of indices, in whatever order batches get ready."""

    name = "RawArray + 2 queues"
    kinds = _LARGE

    def __iter__(self) -> Iterator[Any]:
        context = multiprocessing.get_context("fork")
        slots = 2 * self.workers + 1
        numbers = self.data.batch * int(np.prod(SHAPE))
        raws = [context.RawArray(ctypes.c_float, numbers) for _ in range(slots)]
        self._free, used = context.Queue(), context.Queue()
        for token in range(slots):
            self._free.put(token)
        self._processes = [
            context.Process(
                target=_fill_raw,
                args=(self.data, n, self.workers, raws, self._free, used),
                daemon=True,
            )
            for n in range(self.workers)
        ]
        for process in self._processes:
            process.start()
        arrays = _arrays(raws, self.data)
        for _ in _keys(self.data):
            token, self.number = used.get()
            yield arrays[token]
            self._free.put(token)

    def close(self) -> None:
        """Ends the workers."""
        for process in self._processes:
            process.terminate()
            process.join()


# ---- ropeway -------------------------------------------------------------------------------------


class Ropeway(Contestant):
    """`rw.Loader` with a dataset that returns arrays."""

    name = "rw.Loader"

    def __iter__(self) -> Iterator[Any]:
        import ropeway

        data = self._dataset()
        self._loader = ropeway.Loader(data, self.data.batch, self.workers, drop_last=True)
        return iter(self._loader)

    def _dataset(self) -> Any:
        return self.data

    def close(self) -> None:
        """Ends the workers."""
        self._loader.close()


class _InPlace:
    def __init__(self, data: Workload) -> None:
        self._data = data
        self.__getitem_into__ = data.into

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return self._data[index]


class RopewayInPlace(Ropeway):
    """`rw.Loader` with a dataset that writes into its row."""

    name = "rw.Loader, in place"
    kinds = _LARGE

    def _dataset(self) -> Any:
        return _InPlace(self.data)


# ---- torch ---------------------------------------------------------------------------------------


class _Tensors:
    def __init__(self, data: Workload) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        import torch

        sample = self._data[index]
        return torch.from_numpy(sample) if isinstance(sample, np.ndarray) else sample


class Torch(Contestant):
    """torch's DataLoader with a dataset that returns tensors, and the default collation."""

    name = "torch"
    needs = ("torch",)

    def __iter__(self) -> Iterator[Any]:
        import torch

        torch.set_num_threads(1)
        loader = self._class()(
            _Tensors(self.data), self.data.batch, num_workers=self.workers, drop_last=True
        )
        self._iterator: Any = iter(loader)
        return iter(self._iterator)

    def _class(self) -> Any:
        from torch.utils.data import DataLoader

        return DataLoader

    def close(self) -> None:
        """Ends the workers."""
        self._iterator._shutdown_workers()


class RopewayTorch(Torch):
    """The same with one import changed."""

    name = "ropeway.torch"

    def _class(self) -> Any:
        from ropeway.torch import DataLoader

        return DataLoader


class _SharedBatches:
    def __init__(self, data: Workload) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(_keys(self._data))

    def __getitem__(self, number: int) -> Any:
        import torch

        shape = (self._data.batch, *SHAPE)
        storage = torch.UntypedStorage._new_shared(4 * int(np.prod(shape)))
        batch = torch.empty(0).set_(storage, 0, shape)
        first = number * self._data.batch
        _filled(self._data, range(first, first + self._data.batch), batch.numpy())
        return batch


class TorchInPlace(Torch):
    """torch at its best: a dataset of whole batches, each written into a new shared tensor."""

    name = "torch, in place"
    kinds = _LARGE

    def __iter__(self) -> Iterator[Any]:
        import torch
        from torch.utils.data import DataLoader

        torch.set_num_threads(1)
        loader = DataLoader(_SharedBatches(self.data), None, num_workers=self.workers)
        self._iterator: Any = iter(loader)
        return iter(self._iterator)


# ---- others --------------------------------------------------------------------------------------


class Grain(Contestant):
    """Grain's batch and mp_prefetch."""

    name = "Grain"
    needs = ("grain",)
    kinds = (*_LARGE, "tiny", "kill")

    def __iter__(self) -> Iterator[Any]:
        import sys

        import grain.python as grain  # type: ignore[import-not-found, unused-ignore]
        from absl import flags  # type: ignore[import-not-found, unused-ignore]

        if not flags.FLAGS.is_parsed():
            flags.FLAGS(sys.argv[:1])
        source: Any = self.data
        self._iterator = iter(
            grain.MapDataset.source(source)
            .batch(self.data.batch, drop_remainder=True)
            .to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2))
            .mp_prefetch(
                grain.MultiprocessingOptions(num_workers=self.workers, per_worker_buffer_size=2)
            )
        )
        return iter(self._iterator)

    def close(self) -> None:
        """Ends the workers."""
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
        del self._iterator


class _Batches:
    """What one subprocess of SPDL iterates over."""

    def __init__(self, data: Workload, number: int, workers: int, kept: bool) -> None:
        self._data, self._number, self._workers, self._kept = data, number, workers, kept

    def __call__(self) -> "_Batches":
        return self

    def __iter__(self) -> Iterator[Any]:
        out = np.empty((self._data.batch, *SHAPE), "f4") if self._kept else None
        for keys in _keys(self._data)[self._number :: self._workers]:
            if out is None:
                yield _stacked(self._data, keys)
            else:
                _filled(self._data, keys, out)
                yield out


class Spdl(Contestant):
    """SPDL's subprocesses, one for each worker, with its pool of shared segments."""

    name = "SPDL's pool"
    needs = ("spdl",)
    kinds: ClassVar[tuple[str, ...]] = (*_LARGE, "kill")
    kept: ClassVar[bool] = False

    def __iter__(self) -> Iterator[Any]:
        from spdl.pipeline import (  # type: ignore[import-not-found, unused-ignore]
            SharedMemorySegmentPool,
            iterate_in_subprocess,
        )

        multiprocessing.set_start_method("fork", force=True)
        nbytes = 4 * self.data.batch * int(np.prod(SHAPE)) + 4096
        self._arenas = [SharedMemorySegmentPool(nbytes, 5) for _ in range(self.workers)]
        sources = [
            iterate_in_subprocess(
                _Batches(self.data, number, self.workers, self.kept),
                buffer_size=2,
                mp_context="fork",
                arena=arena,
            )
            for number, arena in enumerate(self._arenas)
        ]
        self._iterators = [iter(source) for source in sources]
        while True:
            for iterator in self._iterators:
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                yield batch
                del batch

    def close(self) -> None:
        """Ends the workers."""
        for iterator in self._iterators:
            close = getattr(iterator, "close", None)
            if close is not None:
                with contextlib.suppress(Exception):
                    close()
        self._iterators = []
        for arena in self._arenas:
            with contextlib.suppress(Exception):
                arena.unlink()


class SpdlKept(Spdl):
    """SPDL at its best: the worker fills one buffer, which the pool copies."""

    name = "SPDL's pool, kept buffer"
    kinds = _LARGE
    kept = True


CONTESTANTS: dict[str, type[Contestant]] = {
    contestant.name: contestant
    for contestant in (
        Limit,
        LimitShared,
        RawArrays,
        RopewayInPlace,
        Ropeway,
        RopewayTorch,
        TorchInPlace,
        Torch,
        Grain,
        Spdl,
        SpdlKept,
    )
}
