"""Queues that carry the array itself: pickled, copied through a pipe or ring, made anew."""

# ruff: noqa: D102 - what each loop does is told in Peer

from multiprocessing.context import BaseContext
from typing import Any

import numpy as np

from .peer import Numbers, Peer, Side, check


class Copies(Peer):
    """Two queues of arrays, `there` and `back`, made by `queue`."""

    copies = True

    def __init__(self, context: BaseContext, nbytes: int, slots: int, round_trip: bool) -> None:
        super().__init__(context, nbytes, slots, round_trip)
        self.there, self.back = self.queue(context), self.queue(context)

    def queue(self, context: BaseContext) -> Any:
        """Makes one queue."""
        raise NotImplementedError

    def attach(self, side: Side) -> None:
        self.kept = np.ones(self.nbytes, np.uint8)

    def message(self, number: int | None) -> Any:
        """What is sent: a new array for each number, as the last may still wait to be pickled."""
        return self.kept if number is None else np.full(self.nbytes, number, np.uint8)

    def trips(self, numbers: Numbers) -> None:
        put, get = self.there.put, self.back.get
        for number in numbers:
            put(self.message(number))
            look(get(), number)

    def echo(self, numbers: Numbers) -> None:
        get, put = self.there.get, self.back.put
        for number in numbers:
            array = get()
            look(array, number)
            put(array)

    def produce(self, numbers: Numbers) -> None:
        put = self.back.put
        for number in numbers:
            put(self.message(number))

    def consume(self, numbers: Numbers) -> None:
        get = self.back.get
        for number in numbers:
            look(get(), number)


def look(array: Any, number: int | None) -> None:
    """Reads one element, or checks all."""
    if number is None:
        int(array[0])
    else:
        check(np.asarray(array), number)


class QueueOfArrays(Copies):
    """A feeder thread pickles each array and writes it to a pipe."""

    name = "multiprocessing.Queue of arrays"

    def queue(self, context: BaseContext) -> Any:
        return context.Queue(self.slots)


class FasterFifoOfArrays(Copies):
    """Each array is pickled into a ring in shared memory."""

    name = "faster-fifo of arrays"
    needs = ("faster_fifo",)

    def queue(self, context: BaseContext) -> Any:
        from faster_fifo import Queue

        return Queue(max_size_bytes=(self.nbytes + 4096) * (self.slots + 1))


class TorchFresh(Copies):
    """A private tensor in each message: torch copies it to a new piece of shared memory."""

    name = "torch.multiprocessing.Queue, fresh tensor"
    needs = ("torch",)

    def queue(self, context: BaseContext) -> Any:
        from torch.multiprocessing import get_context

        return get_context("spawn").Queue(self.slots)

    def message(self, number: int | None) -> Any:
        from torch import from_numpy

        return from_numpy(super().message(number))


class TorchShared(TorchFresh):
    """One tensor that lies in shared memory already and is sent again and again."""

    name = "torch.multiprocessing.Queue, shared tensor"
    copies = False

    def attach(self, side: Side) -> None:
        super().attach(side)
        self.shared = super().message(None).clone().share_memory_()

    def message(self, number: int | None) -> Any:
        return self.shared if number is None else super().message(number)
