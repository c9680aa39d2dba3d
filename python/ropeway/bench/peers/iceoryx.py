"""iceoryx2: samples that are loaned from shared memory, sent, and seen by the receiver in place."""

# ruff: noqa: D102 - what each loop does is told in Peer

import ctypes
from multiprocessing.context import BaseContext
from typing import Any
from uuid import uuid4

import numpy as np

from .peer import Numbers, Peer, Side, check


class Iceoryx2Polling(Peer):
    """The receiver asks again and again.

    A sample can't be sent on, so a round trip answers with a second sample.
    """

    name = "iceoryx2, polling"
    needs = ("iceoryx2",)
    waits = "polls"
    events = False

    def __init__(self, context: BaseContext, nbytes: int, slots: int, round_trip: bool) -> None:
        super().__init__(context, nbytes, slots, round_trip)
        self.service = f"ropeway-bench-{uuid4().hex}"

    def attach(self, side: Side) -> None:
        import iceoryx2

        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        self.node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
        sends, receives = ("there", "back") if side == "near" else ("back", "there")
        self.publisher = self._publisher(sends)
        self.subscriber = self._arrays(receives).subscriber_builder().create()
        if self.events:
            self.wake = self._events(sends).notifier_builder().create().notify
            self.listener = self._events(receives).listener_builder().create()

    def _arrays(self, direction: str) -> Any:
        import iceoryx2

        name = iceoryx2.ServiceName.new(f"{self.service}-{direction}")
        return (
            self.node.service_builder(name)
            .publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
            .subscriber_max_buffer_size(self.slots)
            .enable_safe_overflow(False)
            .open_or_create()
        )

    def _events(self, direction: str) -> Any:
        import iceoryx2

        name = iceoryx2.ServiceName.new(f"{self.service}-{direction}-events")
        return self.node.service_builder(name).event().open_or_create()

    def _publisher(self, direction: str) -> Any:
        import iceoryx2

        return (
            self._arrays(direction)
            .publisher_builder()
            .initial_max_slice_len(self.nbytes)
            .backpressure_strategy(iceoryx2.BackpressureStrategy.RetryUntilDelivered)
            .create()
        )

    def detach(self) -> None:
        del self.publisher, self.subscriber
        if self.events:
            del self.wake, self.listener
        del self.node

    def trips(self, numbers: Numbers) -> None:
        for number in numbers:
            self._send(number)
            self._receive(number)

    def echo(self, numbers: Numbers) -> None:
        for number in numbers:
            self._receive(number)
            self._send(number)

    def produce(self, numbers: Numbers) -> None:
        for number in numbers:
            self._send(number)

    def consume(self, numbers: Numbers) -> None:
        for number in numbers:
            self._receive(number)
        if self.events:
            self.listener.try_wait()  # the sender may still wait for room for its last event

    def _send(self, number: int | None) -> None:
        sample = self.publisher.loan_slice_uninit(self.nbytes)
        if number is not None:
            self._array(sample)[...] = number
        sample.assume_init().send()
        if self.events:
            self.wake()

    def _receive(self, number: int | None) -> None:
        while (sample := self.subscriber.receive()) is None:
            if self.events:
                self.listener.blocking_wait()
        if number is None:
            _ = ctypes.c_uint8.from_address(sample.payload_ptr).value
        else:
            check(self._array(sample), number)
        sample.delete()

    def _array(self, sample: Any) -> np.ndarray:
        return np.ctypeslib.as_array(
            (ctypes.c_uint8 * self.nbytes).from_address(sample.payload_ptr)
        )


class Iceoryx2Events(Iceoryx2Polling):
    """The receiver sleeps until an event tells it to ask."""

    name = "iceoryx2, events"
    waits = "sleeps"
    events = True
