"""ropeway itself, as a user would write it."""

# ruff: noqa: D102 - what each loop does is told in Peer

from multiprocessing.context import BaseContext
from typing import ClassVar

from .peer import Numbers, Peer, check


class Ropeway(Peer):
    """A pool; a round trip has a stage for each way, so that the same array goes there and back."""

    name = "ropeway"
    needs = ("ropeway._core",)
    waits = "spins, yields, then sleeps"

    def __init__(self, context: BaseContext, nbytes: int, slots: int, round_trip: bool) -> None:
        super().__init__(context, nbytes, slots, round_trip)
        from ropeway import Pool

        stages = ("fill", "there", "back") if round_trip else ("fill", "use")
        self.pool = Pool(slots=slots, shape=(nbytes,), dtype="uint8", stages=stages)

    def close(self) -> None:
        self.pool.close()

    def trips(self, numbers: Numbers) -> None:
        acquire, take = self.pool.acquire, self.pool.take
        for number in numbers:
            slot = acquire()
            if number is not None:
                slot.array[...] = number
            slot.publish()
            taken = take()
            if number is None:
                taken.array[0]
            else:
                check(taken.array, number)
            taken.release()

    def echo(self, numbers: Numbers) -> None:
        take = self.pool.take
        for number in numbers:
            slot = take(stage="there", write=True)
            if number is None:
                slot.array[0]
            else:
                check(slot.array, number)
            slot.publish()

    def produce(self, numbers: Numbers) -> None:
        acquire = self.pool.acquire
        for number in numbers:
            slot = acquire()
            if number is not None:
                slot.array[...] = number
            slot.publish()

    def consume(self, numbers: Numbers) -> None:
        take = self.pool.take
        for number in numbers:
            taken = take()
            if number is None:
                taken.array[0]
            else:
                check(taken.array, number)
            taken.release()


class RopewaySleeping(Ropeway):
    """The pool without its spin."""

    name = "ropeway, no spin"
    waits = "sleeps"
    environment: ClassVar[dict[str, str]] = {"ROPEWAY_SPIN": "0"}


class RopewayHandOff(Ropeway):
    """The hand-off alone: the consumer asks for no array of the slot."""

    name = "ropeway, array not looked at"
    one_way_only = True

    def consume(self, numbers: Numbers) -> None:
        take = self.pool.take
        for number in numbers:
            slot = take()
            if number is not None:
                check(slot.array, number)
            slot.release()
