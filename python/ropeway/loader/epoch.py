"""One pass over a dataset: what is planned, what is in flight, what has been handed out."""

import collections
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from ropeway._errors import Closed, RopewayError
from ropeway._exit import end_daemon
from ropeway.loader.engine import Engine, out_of_slots
from ropeway.loader.order import Keys, Order
from ropeway.loader.record import Kind, Plan

_ATTEMPTS = 2

Position = dict[str, Any]
"""Where an epoch is: plain data."""


class Course(Protocol):
    """The plans of an epoch, and how far it has come."""

    epoch: int

    def plan(self, sequence: int, run: int) -> Plan | None:
        """The next plan, None if there is none (any more)."""

    def resume(self, known: Iterable[int]) -> None:
        """Goes on after an interrupt, behind the plans with these numbers."""

    def again(self, plan: Plan, sequence: int) -> Plan:
        """A plan once more, under another number."""

    def arrived(self, plan: Plan, kind: Kind) -> bool:
        """Notes what has come of a plan; False if it is no batch to be handed out."""

    def position(self) -> Position:
        """Where the epoch is, so that it can go on from there."""


class KeyCourse:
    """The plans for a dataset that has keys."""

    def __init__(self, order: Order, epoch: int, position: Position) -> None:
        self.epoch = epoch
        self._done: int = position.get("batch", 0)
        self._ahead: set[int] = set(position.get("ahead", ()))
        self._order, self._next = order, self._done
        self._batches: Iterator[Keys] = order.batches(epoch, self._done)
        self._numbers: dict[int, int] = {}

    def resume(self, known: Iterable[int]) -> None:
        """Asks again for the batches behind those: an interrupt ends what gives them."""
        if self._order.repeatable:
            self._numbers = {sequence: self._numbers[sequence] for sequence in known}
            last = max((self._done - 1, *self._ahead, *self._numbers.values()))
            self._next = last + 1
            self._batches = self._order.batches(self.epoch, self._next)

    def plan(self, sequence: int, run: int) -> Plan | None:
        """The next plan, None at the end."""
        for keys in self._batches:
            number, self._next = self._next, self._next + 1
            if number not in self._ahead:
                self._numbers[sequence] = number
                return Plan(sequence, run, self.epoch, keys)
        return None

    def again(self, plan: Plan, sequence: int) -> Plan:
        """A plan once more, under another number."""
        self._numbers[sequence] = self._numbers.pop(plan.sequence)
        return plan._replace(sequence=sequence)

    def arrived(self, plan: Plan, kind: Kind) -> bool:
        """Counts the batch."""
        number = self._numbers.pop(plan.sequence)
        if number == self._done and not self._ahead:
            self._done += 1
            return True
        self._ahead.add(number)
        while self._done in self._ahead:
            self._ahead.discard(self._done)
            self._done += 1
        return True

    def position(self) -> Position:
        """Batches handed out, and those that were handed out before others."""
        if self._ahead:
            return {"batch": self._done, "ahead": sorted(self._ahead)}
        return {"batch": self._done}


class StreamCourse:
    """The plans for an iterable dataset: each worker's stream in turn."""

    def __init__(
        self, streams: int, size: int, drop_last: bool, epoch: int, position: Position
    ) -> None:
        self.epoch, self._size, self._drop_last = epoch, size, drop_last
        self._streams = streams
        self._delivered: list[int] = list(position.get("streams", [0] * streams))
        self._ended: set[int] = set(position.get("ended", ()))
        self._planned = list(self._delivered)
        self._turn: int = position.get("turn", 0)
        self._next = self._turn

    def resume(self, known: Iterable[int]) -> None:
        """Does nothing."""

    def plan(self, sequence: int, run: int) -> Plan | None:
        """The next plan; None when all streams have ended."""
        for _ in range(self._streams):
            stream, self._next = self._next, (self._next + 1) % self._streams
            if stream not in self._ended:
                start = self._planned[stream] * self._size
                self._planned[stream] += 1
                return Plan(sequence, run, self.epoch, None, stream, start, self._size)
        return None

    def again(self, plan: Plan, sequence: int) -> Plan:
        """A plan once more, under another number."""
        return plan._replace(sequence=sequence)

    def arrived(self, plan: Plan, kind: Kind) -> bool:
        """Counts the batch, or notes the end of its stream."""
        self._turn = (plan.stream + 1) % self._streams
        if kind is Kind.END:
            self._ended.add(plan.stream)
            return False
        self._delivered[plan.stream] += 1
        return True

    def position(self) -> Position:
        """Batches handed out of each stream, streams that have ended, and whose turn it is."""
        return {
            "streams": list(self._delivered),
            "ended": sorted(self._ended),
            "turn": self._turn,
        }


class Epoch:
    """An iterator over the batches of one epoch.

    It has no loader as long as it only plans ahead for the time when it begins.
    """

    def __init__(self, engine: Engine, course: Any) -> None:
        self.course = course
        self._engine = engine
        self._loader: Any = None
        self._flight: dict[int, Plan] = {}
        self._waiting: collections.deque[Plan] = collections.deque()
        self._attempts: dict[int, int] = {}
        self._first: Plan | None = None
        """A batch that found no memory, and that those behind it mustn't overtake."""
        self._planned_all = self._over = False
        self._closed: str | None = "this iterator was closed with its loader"
        self.run = engine.open_run()

    def begin(self, loader: Any) -> None:
        """Makes it an iterator of that loader, which it keeps."""
        self._loader = loader
        self._engine.tidy()
        self.plan(self._engine.window)

    def __iter__(self) -> "Epoch":
        return self

    def __next__(self) -> Any:
        try:
            return self._loader._next(self)
        except Exception:
            end_daemon()
            raise

    def __reduce__(self) -> Any:
        raise TypeError(
            "an iterator of a loader can't be pickled or copied; pickle the loader: the copy goes "
            "on where its latest iterator is"
        )

    def next(self, ordered: bool, timeout: float | None) -> Any:
        """The next arrival that is to be handed out; StopIteration at the end."""
        if not self._engine.is_here():
            raise Closed("this iterator belongs to the parent of this process: make a new one")
        try:
            while True:
                if self._over or self._engine.closed:
                    raise Closed(self._closed) if self._closed else StopIteration
                if self._first is not None:
                    self._make_room(timeout)
                    continue
                if len(self._flight) <= self._engine.refill:
                    self.plan(self._engine.window)
                if not self._flight:
                    self._closed = None
                    self.close()
                    continue
                arrival = self._engine.receive(self._flight, ordered, timeout)
                plan = self._flight.pop(arrival.sequence)
                kind = arrival.kind
                if kind is Kind.FAILURE and _is_short_of_memory(arrival) and self._again(plan):
                    continue
                if self.course.arrived(plan, kind):
                    return arrival
        except Closed:
            if self._engine.closed and self._closed is not None:
                raise Closed(self._closed) from None  # by another thread, during the wait
            raise
        except (RopewayError, StopIteration):
            raise
        except BaseException:  # a signal's handler has raised it, wherever that was
            self._plan_anew()  # a batch may have been lost on its way here
            raise

    @property
    def in_flight(self) -> int:
        """How many batches are planned and not handed out."""
        return len(self._flight)

    @property
    def is_planned(self) -> bool:
        """Whether there is nothing left to plan."""
        return self._planned_all

    def plan(self, room: int) -> None:
        """Plans ahead; where there is no slot for that, waits for what is in flight."""
        room -= len(self._flight)
        while len(self._waiting) < room and (plan := self._next_plan()) is not None:
            self._waiting.append(plan)
        plans = list(itertools.islice(self._waiting, max(0, room)))
        if not plans:
            return
        for plan in plans[: self._engine.plan(plans)]:
            self._flight[plan.sequence] = plan
            self._waiting.popleft()
        if not self._flight and self._loader is not None:
            raise out_of_slots(self._engine)

    def close(self) -> None:
        """Gives back what is in flight."""
        if self._over:
            return
        self._over = True
        if self._engine.is_here() and not self._engine.closed:
            self._engine.close_run(self.run)
            self._engine.drop(self._flight)
        self._flight = {}

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "run") and not is_finalizing():  # else the engine has ended already
            self.close()

    def _next_plan(self) -> Plan | None:
        if self._planned_all:
            return None
        plan: Plan | None = self.course.plan(self._engine.sequence(), self.run)
        self._planned_all = plan is None
        return plan

    def _again(self, plan: Plan) -> bool:
        """Plans a batch once more that there was no memory for, with fewer in flight."""
        self._engine.window = max(1, min(self._engine.window, len(self._flight)))
        attempts = self._attempts.get(plan.sequence, 0) + 1
        if attempts > _ATTEMPTS:
            return False
        self._attempts[plan.sequence] = attempts
        self._first = self._renumbered(plan)
        self._plan_first()
        return True

    def _plan_first(self) -> None:
        """Plans the batch that found no memory, if there is a slot for it."""
        if self._first is not None and self._engine.plan([self._first]):
            self._flight = {self._first.sequence: self._first, **self._flight}
            self._first = None

    def _make_room(self, timeout: float | None) -> None:
        """Gives the memory of the last batch in flight to the one that found none."""
        if self._flight:
            last = next(reversed(self._flight))
            self._engine.receive([last], True, timeout)  # and throws it away
            self._waiting.appendleft(self._renumbered(self._flight.pop(last)))
        self._plan_first()
        if not self._flight:
            raise out_of_slots(self._engine)

    def _renumbered(self, plan: Plan) -> Plan:
        again: Plan = self.course.again(plan, self._engine.sequence())
        if plan.sequence in self._attempts:
            self._attempts[again.sequence] = self._attempts.pop(plan.sequence)
        return again

    def _plan_anew(self) -> None:
        """Plans all again that is in flight, or perhaps is: an interrupt can come anywhere."""
        first = () if self._first is None else (self._first,)
        every = (*first, *self._flight.values(), *self._waiting)
        plans = {plan.sequence: plan for plan in every}
        self._flight, self._first = {}, None
        self._engine.drop(plans)
        self.course.resume(plans)
        self._waiting = collections.deque(map(self._renumbered, plans.values()))


def _is_short_of_memory(arrival: Any) -> bool:
    return bool(getattr(arrival.batch, "memory", False))
