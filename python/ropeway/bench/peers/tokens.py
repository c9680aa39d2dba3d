"""Arrays in memory that both processes map once; what travels is the number of one of them."""

# ruff: noqa: D102 - what each loop does is told in Peer

import ctypes
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from multiprocessing.context import BaseContext
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from .peer import Numbers, Peer, Side, check

Channel = tuple[Callable[[Any], Any], Callable[[], Any]]
"""How a token is put in and got out."""


class Tokens(Peer):
    """`slots` arrays, and two queues of tokens: `there` to the far process and `back` from it."""

    def __init__(self, context: BaseContext, nbytes: int, slots: int, round_trip: bool) -> None:
        super().__init__(context, nbytes, slots, round_trip)
        self.memory = self.allocate(context)
        self.there, self.back = self.queue(context), self.queue(context)

    def allocate(self, context: BaseContext) -> Any:
        """Makes the memory of all arrays."""
        return SharedMemory(create=True, size=self.nbytes * self.slots)

    def buffer(self) -> Any:
        """The memory as a buffer."""
        return self.memory.buf

    def queue(self, context: BaseContext) -> Any:
        """Makes what tokens travel through."""
        raise NotImplementedError

    def channel(self, queue: Any) -> Channel:
        """The two ends of a queue in this process."""
        return queue.put, queue.get

    def token(self, index: int) -> Any:
        """What travels for an array."""
        return index

    def attach(self, side: Side) -> None:
        arrays = np.frombuffer(self.buffer(), np.uint8)[: self.slots * self.nbytes].reshape(
            self.slots, -1
        )
        self.arrays = {self.token(index): array for index, array in enumerate(arrays)}
        (self.put_there, self.get_there), (self.put_back, self.get_back) = map(
            self.channel, (self.there, self.back)
        )
        if side == "near" and not self.round_trip:
            for token in self.arrays:
                self.put_there(token)

    def close(self) -> None:
        if isinstance(self.memory, SharedMemory):
            self.memory.unlink()

    def trips(self, numbers: Numbers) -> None:
        arrays, put, get, token = self.arrays, self.put_there, self.get_back, self.token(0)
        for number in numbers:
            if number is not None:
                arrays[token][...] = number
            put(token)
            array = arrays[get()]
            if number is None:
                array[0]
            else:
                check(array, number)

    def echo(self, numbers: Numbers) -> None:
        arrays, get, put = self.arrays, self.get_there, self.put_back
        for number in numbers:
            token = get()
            if number is None:
                arrays[token][0]
            else:
                check(arrays[token], number)
            put(token)

    def produce(self, numbers: Numbers) -> None:
        arrays, get, put = self.arrays, self.get_there, self.put_back
        for number in numbers:
            token = get()
            if number is not None:
                arrays[token][...] = number
            put(token)

    def consume(self, numbers: Numbers) -> None:
        arrays, get, put = self.arrays, self.get_back, self.put_there
        for number in numbers:
            token = get()
            if number is None:
                arrays[token][0]
            else:
                check(arrays[token], number)
            put(token)


class RawArrayQueues(Tokens):
    """The answer that questions on this get most often."""

    name = "RawArray + 2 Queues"

    def allocate(self, context: BaseContext) -> Any:
        return context.RawArray(ctypes.c_uint8, self.nbytes * self.slots)

    def buffer(self) -> Any:
        return self.memory

    def queue(self, context: BaseContext) -> Any:
        return context.Queue()


class SharedMemorySimpleQueues(Tokens):
    """The same without feeder threads."""

    name = "shared_memory + SimpleQueue"

    def queue(self, context: BaseContext) -> Any:
        return context.SimpleQueue()


class SharedMemoryFasterFifo(Tokens):
    """Tokens through a ring in shared memory."""

    name = "shared_memory + faster-fifo"
    needs = ("faster_fifo",)

    def queue(self, context: BaseContext) -> Any:
        from faster_fifo import Queue

        return Queue(max_size_bytes=4096)


class SharedMemoryPipe(Tokens):
    """The cheapest thing that Python offers to carry a value: one byte through a pipe."""

    name = "shared_memory + a byte through os.pipe"

    def queue(self, context: BaseContext) -> Any:
        return context.Pipe(duplex=False)

    def channel(self, queue: Any) -> Channel:
        receiver, sender = queue
        return partial(os.write, sender.fileno()), partial(os.read, receiver.fileno(), 1)

    def token(self, index: int) -> bytes:
        return bytes([index])


class SharedMemorySemaphore(Tokens):
    """Carries no value: one sender and one receiver, both of which count which array is next."""

    name = "shared_memory + Semaphore, no value"
    carries_value = False

    def queue(self, context: BaseContext) -> Any:
        return context.Semaphore(0)

    def channel(self, queue: Any) -> Channel:
        return lambda _token: queue.release(), queue.acquire

    def attach(self, side: Side) -> None:
        super().attach(side)
        self.order: Iterator[np.ndarray] = cycle(self.arrays.values())

    def trips(self, numbers: Numbers) -> None:
        release, acquire, array = self.there.release, self.back.acquire, self.arrays[0]
        for number in numbers:
            if number is not None:
                array[...] = number
            release()
            acquire()
            if number is None:
                array[0]
            else:
                check(array, number)

    def echo(self, numbers: Numbers) -> None:
        self._receive(numbers, self.there.acquire, self.back.release)

    def produce(self, numbers: Numbers) -> None:
        acquire, release = self.there.acquire, self.back.release
        for number, array in zip(numbers, self.order, strict=False):
            acquire()
            if number is not None:
                array[...] = number
            release()

    def consume(self, numbers: Numbers) -> None:
        self._receive(numbers, self.back.acquire, self.there.release)

    def _receive(
        self, numbers: Numbers, acquire: Callable[[], Any], release: Callable[[], Any]
    ) -> None:
        for number, array in zip(numbers, self.order, strict=False):
            acquire()
            if number is None:
                array[0]
            else:
                check(array, number)
            release()
