"""What the benchmarks are to show, each with the limit that it is held against."""

from collections.abc import Iterator
from dataclasses import dataclass

from . import export, fill, floor
from .peers import PEERS, Ropeway, RopewaySleeping
from .placement import ONE_CORE, TWO_CORES
from .plan import SIZED, SIZES, SMALL
from .results import Figure, Results, short
from .tables import Table, rate, trip


@dataclass(frozen=True)
class Claim:
    """`found` is held against `limit`, which it may not exceed, or must reach where `at_least`."""

    what: str
    found: Figure | float | None
    limit: float
    unit: str = ""
    at_least: bool = False
    never: bool = False
    """Whether the worst round counts, not the median."""

    @property
    def holds(self) -> bool:
        """Whether what was found keeps to the limit."""
        found = self.found
        if isinstance(found, Figure):
            found = found.high if self.never else found.median
        assert found is not None, "`claims` leaves out what wasn't measured"
        return found >= self.limit if self.at_least else found <= self.limit

    def cells(self) -> tuple[str, ...]:
        """The claim as a row of a table."""
        found = short(self.found) if isinstance(self.found, float) else self.found
        bound = "at least" if self.at_least else "never over" if self.never else "at most"
        return (
            self.what,
            f"{bound} {short(self.limit)}{self.unit}",
            f"{found}{self.unit}",
            "yes" if self.holds else "no",
        )


def claims(results: Results) -> list[Claim]:
    """The claims that this run has the figures for."""
    groups = (_roundtrip, _spinning, _sizes, _oneway, _fill, _descriptors, _export)
    return [claim for group in groups for claim in group(results) if claim.found is not None]


def table(results: Results) -> Table:
    """The claims as a table."""
    return Table(
        "What was to be shown",
        "Medians are held against the limits.",
        ("claim", "limit", "found", "holds"),
        [claim.cells() for claim in claims(results)],
    )


def losses(results: Results) -> list[str]:
    """A sentence for each comparison that a peer wins against ropeway as it comes."""
    found = []
    for placement in (ONE_CORE, TWO_CORES):
        ours = trip(results, Ropeway.name, placement)
        for name in results.contestants(question="roundtrip", nbytes=SMALL, placement=placement):
            theirs = trip(results, name, placement)
            if _is_peer(name) and ours and theirs and theirs.median < ours.median:
                found.append(
                    f"Round trip, {placement}: {name} takes {theirs} µs, ropeway {ours} µs."
                )
    ours = rate(results, Ropeway.name)
    for name in results.contestants(question="oneway"):
        theirs = rate(results, name)
        if _is_peer(name) and ours and theirs and theirs.median > ours.median:
            found.append(f"One way: {name} hands over {theirs} million/s, ropeway {ours}.")
    return found


def _roundtrip(results: Results) -> Iterator[Claim]:
    for name, placement, limit, never in (
        (RopewaySleeping.name, ONE_CORE, 1.6, False),
        (RopewaySleeping.name, TWO_CORES, 1.6, False),
        (Ropeway.name, ONE_CORE, 1.6, False),
        (Ropeway.name, ONE_CORE, 3.0, True),
    ):
        where = {"question": "roundtrip", "nbytes": SMALL, "placement": placement}
        over = where | {"contestant": floor.FUTEX}
        ratio = results.ratio("p50_us", where | {"contestant": name}, over)
        yield Claim(f"round trip / raw futex, {placement}: {name}", ratio, limit, never=never)


def _spinning(results: Results) -> Iterator[Claim]:
    yield Claim(
        "round trip spinning on two cores, from Python",
        trip(results, Ropeway.name, TWO_CORES),
        1.5,
        " µs",
    )
    yield Claim(
        "round trip spinning on two cores, from Rust",
        trip(results, floor.RUST, TWO_CORES),
        0.5,
        " µs",
    )


def _sizes(results: Results) -> Iterator[Claim]:
    for name, placement in SIZED:
        where = {"question": "roundtrip", "contestant": name, "placement": placement}
        found = [
            figure.median
            for nbytes in SIZES
            if (figure := results.figure("p50_us", **where, nbytes=nbytes))
        ]
        if len(found) > 1:
            yield Claim(
                f"slowest / fastest of {len(found)} sizes, {placement}: {name}",
                max(found) / min(found),
                1.1,
            )


def _oneway(results: Results) -> Iterator[Claim]:
    ours = rate(results, Ropeway.name)
    if ours is None:
        return
    yield Claim("one-way hand-offs", ours, 1.0, " million/s", at_least=True)
    peers = filter(_is_peer, results.contestants(question="oneway"))
    rates = {name: found for name in peers if (found := rate(results, name))}
    for carries, whom in ((True, "the fastest peer"), (False, "a peer that carries no value")):
        names = [name for name in rates if PEERS[name].carries_value == carries]
        if names:
            best = max(names, key=lambda name: rates[name].median)
            over = {"question": "oneway", "contestant": best}
            ratio = results.ratio("per_s", over | {"contestant": Ropeway.name}, over)
            yield Claim(f"one-way hand-offs / {whom}: {best}", ratio, 1.0, at_least=True)


def _fill(results: Results) -> Iterator[Claim]:
    slot = {"question": "fill", "contestant": fill.SLOT}
    ratio = results.ratio("cpu_ms", slot, {"question": "fill", "contestant": fill.PRIVATE})
    yield Claim("CPU time of filling a reused slot / a private warm array", ratio, 1.1)
    yield Claim(
        "pages that fault in filling a reused slot, share",
        results.figure("faulted_share", **slot),
        0.01,
    )


def _export(results: Results) -> Iterator[Claim]:
    own, over = (
        {"question": "export", "contestant": way} for way in (export.EXPORT, export.IMPORT)
    )
    yield Claim(f"{export.EXPORT} / {export.IMPORT}", results.ratio("ns", own, over), 1.5)


def _descriptors(results: Results) -> Iterator[Claim]:
    for record in results.records:
        if (
            record["question"] == "descriptors"
            and record["contestant"] == Ropeway.name
            and "turns" in record
        ):
            for what in ("descriptors", "shared mappings"):
                new = record["new_near"][what] + record["new_far"][what]
                yield Claim(f"new {what} in {record['turns']:,} hand-offs", float(new), 0.0)


def _is_peer(name: str) -> bool:
    return name in PEERS and not issubclass(PEERS[name], Ropeway)
