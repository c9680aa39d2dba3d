"""What every contestant offers: two loops for each of the two processes."""

from collections.abc import Iterable
from importlib.util import find_spec
from multiprocessing.context import BaseContext
from typing import ClassVar, Literal

import numpy as np

Side = Literal["near", "far"]
Numbers = Iterable[int | None]


class Peer:
    """One way to hand arrays from process to process.

    The near process makes the peer and keeps the time; the far one gets it by pickle when it is
    spawned.  Each loop takes one turn per item of `numbers`.  Where the item is a number, the
    sender fills the array with it and the receiver checks every element; where it is None, the
    array stays as it is and the receiver reads one element.  So the loop that is timed is the loop
    that was checked.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    """Modules that must be installed."""
    waits: ClassVar[str] = "sleeps"
    """What a receiver does that finds nothing: "sleeps", "polls", "spins, yields, then sleeps"."""
    copies: ClassVar[bool] = False
    """Whether the array's bytes travel, so that large arrays take long."""
    carries_value: ClassVar[bool] = True
    """Whether the receiver is told which array it got."""
    one_way_only: ClassVar[bool] = False
    environment: ClassVar[dict[str, str]] = {}
    """Variables set for both processes."""

    def __init__(self, context: BaseContext, nbytes: int, slots: int, round_trip: bool) -> None:
        self.nbytes, self.slots, self.round_trip = nbytes, slots, round_trip

    @classmethod
    def missing(cls) -> str | None:
        """The first module that is needed and not installed."""
        return next((module for module in cls.needs if find_spec(module) is None), None)

    def attach(self, side: Side) -> None:
        """Makes this process ready to hand over; called once in each process, before any loop."""

    def detach(self) -> None:
        """Lets go of what `attach` made; called in each process, after all loops."""

    def close(self) -> None:
        """Frees what outlives both processes; called in the near one, last."""

    def trips(self, numbers: Numbers) -> None:
        """Near: hands an array over and gets it back."""
        raise NotImplementedError

    def echo(self, numbers: Numbers) -> None:
        """Far: gets an array and hands the same back."""
        raise NotImplementedError

    def produce(self, numbers: Numbers) -> None:
        """Far: hands arrays over, at most `slots` ahead of the receiver."""
        raise NotImplementedError

    def consume(self, numbers: Numbers) -> None:
        """Near: receives the arrays and lets them go again."""
        raise NotImplementedError


class ContentsError(Exception):
    """An array arrived with other contents than it was sent with."""


def check(array: np.ndarray, number: int) -> None:
    """Raises `ContentsError` unless every element of `array` is `number`."""
    low, high = int(array.min()), int(array.max())
    if (low, high) != (number, number):
        raise ContentsError(
            f"an array of {array.nbytes} bytes was sent full of {number} and holds {low} to {high}"
        )
