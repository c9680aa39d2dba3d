"""Which trials a run holds, and which contestants take part."""

from collections.abc import Iterator
from dataclasses import dataclass

from . import export, fill, floor
from .peers import PEERS, Ropeway, RopewaySleeping
from .placement import ONE_CORE, TWO_CORES, placements
from .trial import Trial

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

SMALL = 4 * KIB
LARGE = 16 * MIB
SIZES = (SMALL, MIB, LARGE, 256 * MIB, GIB)

ONE_WAY_SLOTS = 16
DESCRIPTOR_SLOTS = 4

QUESTIONS = ("roundtrip", "oneway", "fill", "descriptors", "export")

SIZED = ((RopewaySleeping.name, ONE_CORE), (Ropeway.name, TWO_CORES))
"""Who is measured at every size, and where: one that sleeps, one that spins."""


@dataclass(frozen=True)
class Plan:
    """What the user asked for."""

    questions: tuple[str, ...]
    seconds: float
    peers: tuple[str, ...] = ()
    """Parts of names; none means everybody."""
    quick: bool = False

    def trials(self) -> list[Trial]:
        """Every trial of one round."""
        return [trial for question in self.questions for trial in getattr(self, question)()]

    def roundtrip(self) -> Iterator[Trial]:
        """Everybody with small arrays, on one core and on two; some with large ones."""
        for placement in placements():
            for name in (floor.FUTEX, floor.SPIN, *self.rust(), *self.names()):
                yield Trial("roundtrip", name, placement, SMALL, seconds=self.seconds)
        for name, placement in SIZED:
            if name in self.names() and placement in placements():
                for nbytes in SIZES[1:2] if self.quick else SIZES[1:]:
                    yield Trial("roundtrip", name, placement, nbytes, seconds=self.seconds)
        for name in () if self.quick else self.names():
            if not issubclass(PEERS[name], Ropeway):
                yield Trial("roundtrip", name, ONE_CORE, LARGE, seconds=self.seconds)

    def oneway(self) -> Iterator[Trial]:
        """Everybody, on two cores where there are two."""
        placement = TWO_CORES if TWO_CORES in placements() else ONE_CORE
        for name in (floor.FUTEX, floor.SPIN, *self.rust(), *self.names(one_way=True)):
            yield Trial("oneway", name, placement, SMALL, ONE_WAY_SLOTS, self.seconds)

    def fill(self) -> Iterator[Trial]:
        """All ways of filling, in one process that takes turns."""
        ways = [way for way in fill.WAYS if way != fill.SLOT or Ropeway.missing() is None]
        yield Trial(
            "fill",
            "all ways",
            ONE_CORE,
            fill.NBYTES,
            turns=1 if self.quick else 8,
            ways=tuple(ways),
        )

    def descriptors(self) -> Iterator[Trial]:
        """A million hand-offs of ropeway, fewer of the others."""
        placement = TWO_CORES if TWO_CORES in placements() else ONE_CORE
        for name in self.names():
            turns = 5_000 if self.quick or not issubclass(PEERS[name], Ropeway) else 1_000_000
            yield Trial("descriptors", name, placement, SMALL, DESCRIPTOR_SLOTS, turns=turns)

    def export(self) -> Iterator[Trial]:
        """All ways of giving an array away, in one process that takes turns."""
        if Ropeway.missing() is None:
            turns = 3 if self.quick else 30
            yield Trial(
                "export", "all ways", ONE_CORE, export.NBYTES, turns=turns, ways=export.WAYS
            )

    def names(self, one_way: bool = False) -> list[str]:
        """The contestants in Python that take part."""
        return [
            name
            for name, peer in PEERS.items()
            if self.wanted(name) and peer.missing() is None and (one_way or not peer.one_way_only)
        ]

    def rust(self) -> list[str]:
        """The Rust pool, if it takes part."""
        return [floor.RUST] if self.wanted(floor.RUST) else []

    def wanted(self, name: str) -> bool:
        """Whether the user asked for this contestant."""
        return not self.peers or any(part.lower() in name.lower() for part in self.peers)

    def not_installed(self) -> dict[str, str]:
        """The wanted contestants that can't take part, each with the module that is missing."""
        absent = {name: peer.missing() for name, peer in PEERS.items() if self.wanted(name)}
        return {name: module for name, module in absent.items() if module}
