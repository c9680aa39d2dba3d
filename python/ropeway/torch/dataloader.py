"""The drop-in for `torch.utils.data.DataLoader`."""

import queue
import time
from typing import Any, TypeVar

import torch
import torch.utils.data
from torch.utils.data import _utils, dataloader

from ropeway.torch.context import Context, WorkerDied
from ropeway.torch.spare import Spare

T_co = TypeVar("T_co", covariant=True)

_SLICE = 0.005
"""Seconds of a wait after which workers that have died are looked for."""


class DataLoader(torch.utils.data.DataLoader[T_co]):  # type: ignore[misc, unused-ignore]
    """`torch.utils.data.DataLoader`, with batches that lie in shared slots that are used again.

    It takes the same arguments and behaves in the same way, with these differences where there
    are workers:

    - A tensor of a batch lies in a slot and can be written to; the slot is the program's as long
      as a tensor of it lives. `tensor.is_shared()` is False: torch doesn't know of the slot.
    - With the default `collate_fn` a dataset's tensors are written to their rows of the batch
      when they come, not kept until all are there.
    - A worker that dies is replaced, its batch is read again, and the random generators go on as
      if nothing had happened; what the dataset object itself remembers in a worker is lost. A
      batch that has ended `retries` + 1 workers raises `WorkerDied`, a RuntimeError that names
      its sample. With `retries=0` the first death ends the epoch, as with torch.
    - What torch's loader hangs or dies of is an error: results and exceptions that can't be
      pickled, exceptions that aren't an `Exception`, too many kept batches.
    - Workers ignore Ctrl-C, and end within an instant when this process does, however it ends.
    """

    def __init__(self, *args: Any, retries: int = 2, **options: Any) -> None:
        """Makes a loader; see torch for the arguments, `retries` is above."""
        if not isinstance(retries, int) or not 0 <= retries <= 200:
            raise ValueError(f"retries must be an int from 0 to 200, found {retries!r}")
        super().__init__(*args, **options)
        self.retries = retries
        self._spare = Spare()

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return _MultiProcessingDataLoaderIter(self)


class _Seen:
    """A loader as torch's iterator sees it: with a context of ours."""

    def __init__(self, loader: Any, context: Context) -> None:
        self._loader, self.multiprocessing_context = loader, context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _MultiProcessingDataLoaderIter(
    dataloader._MultiProcessingDataLoaderIter  # type: ignore[misc, unused-ignore]
):
    """torch's iterator, over a pool. It is named as torch's is, for the sake of profiles."""

    _shutdown = True  # until torch has made something that it could shut down

    def __init__(self, loader: Any) -> None:
        base = loader.multiprocessing_context or torch.multiprocessing
        self._context = Context(loader, base, loader.retries, loader._spare)
        self._watched = time.monotonic()
        super().__init__(_Seen(loader, self._context))

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if first_iter and self._context.retries:
            # torch's handler of SIGCHLD raises for processes that it knows.
            _utils.signal_handling._remove_worker_pids(id(self))
            self._worker_pids_set = False
        super()._reset(loader, first_iter)

    def _next_data(self) -> Any:
        if not self._context.is_here():
            raise RuntimeError(
                "this iterator belongs to the parent of this process: make a new one"
            )
        return super()._next_data()

    def _try_get_data(self, timeout: float = _utils.MP_STATUS_CHECK_INTERVAL) -> tuple[bool, Any]:
        end = time.monotonic() + timeout
        while True:
            self._watch()
            left = end - time.monotonic()
            try:
                return True, self._data_queue.get(timeout=max(0.0, min(left, _SLICE)))
            except queue.Empty:
                self._context.check_progress()
                if left > _SLICE:
                    continue
            if not self._context.retries:
                found: tuple[bool, Any] = super()._try_get_data(0)
                return found
            if self._timeout > 0:
                raise RuntimeError(
                    f"DataLoader timed out after {self._timeout} seconds{self._who_is_late()}"
                )
            return False, None

    def _watch(self) -> None:
        """Replaces workers that have died."""
        now = time.monotonic()
        if now - self._watched < _SLICE:
            return
        self._watched = now
        for number, worker in enumerate(self._context.workers):
            if worker.exitcode is None or not self._workers_status[number]:
                continue
            if not self._context.retries:
                super()._try_get_data(0)
                return
            worker.replace(shared_seed=self._shared_seed)

    def _who_is_late(self) -> str:
        text, now = "", time.monotonic()
        for worker in self._context.workers:
            duty = self._context.roster.read(worker.number)
            if duty.sequence >= 0:
                text += (
                    f"; worker {worker.number} (process {worker.pid}) has been at its batch for "
                    f"{now - duty.since:.1f} s, at place {duty.position} of it"
                )
        return text

    def _shutdown_workers(self) -> None:
        if not self._shutdown and not self._context.is_here():
            return  # a forked child has a copy of it, and no workers
        if not self._shutdown:
            all_came = getattr(self, "_rcvd_idx", 0) >= getattr(self, "_send_idx", 1)
            self._context.is_done = all_came and not self._persistent_workers
        super()._shutdown_workers()
        if self._shutdown:
            for worker in self._context.workers:
                worker.release()
            self._context.settle()


__all__ = ["DataLoader", "WorkerDied"]
