"""What the benchmarks of loaders are to show, each with the limit that it is held against."""

from collections.abc import Iterator
from typing import TypedDict

from ..claims import Claim
from ..results import Figure, Results
from ..tables import Table
from .contestants import (
    CONTESTANTS,
    Contestant,
    Limit,
    Ropeway,
    RopewayInPlace,
    RopewayTorch,
    SpdlKept,
    Torch,
    TorchInPlace,
)

LARGE = ("fill", "augment", "jpeg")
SMALL = ("tiny", "fields")

_RATES = (
    (RopewayInPlace, Limit, LARGE, 0.9),
    (RopewayInPlace, Torch, ("fill",), 8.0),
    (RopewayInPlace, SpdlKept, ("fill",), 2.0),
    (RopewayInPlace, Torch, ("augment",), 5.0),
    (RopewayInPlace, TorchInPlace, ("jpeg",), 1.3),
    (RopewayInPlace, SpdlKept, ("jpeg",), 1.1),
    (RopewayTorch, Torch, ("fill", "augment"), 3.0),
    (RopewayTorch, Torch, ("jpeg", *SMALL), 1.0),
)
"""Whose batches/s are at least how many times whose, and on which workloads."""


class Where(TypedDict):
    """Which records are meant."""

    kind: str
    workers: int


def claims(results: Results) -> list[Claim]:
    """The claims that this run has the figures for, with the most workers."""
    groups = (_cpu, _rates, _fastest_peers, _small, _times)
    return [claim for group in groups for claim in group(results) if claim.found is not None]


def table(results: Results) -> Table:
    """The claims as a table."""
    return Table(
        f"What was to be shown, {most_workers(results)} workers",
        "Medians are held against the limits; a ratio is taken within a round.",
        ("claim", "limit", "found", "holds"),
        [claim.cells() for claim in claims(results)],
    )


def losses(results: Results) -> list[str]:
    """A sentence for each comparison that somebody wins who hands batches over."""
    found = []
    for where in _wheres(results):
        ours = results.figure("batches_s", **where, contestant=_own(where["kind"]).name)
        for name in _peers(results, where):
            theirs = results.figure("batches_s", **where, contestant=name)
            if ours and theirs and theirs.median > ours.median:
                found.append(
                    f"{where['kind']}, {where['workers']} workers: {name} makes {theirs} "
                    f"batches/s, {_own(where['kind']).name} {ours}."
                )
    return found


def most_workers(results: Results) -> int:
    """The largest number of workers that was measured."""
    return max((record["workers"] for record in results.records), default=0)


def ratio(results: Results, what: str, one: str, other: str, kind: str) -> Figure | None:
    """The ratio of two contestants, with the most workers."""
    where = {"kind": kind, "workers": most_workers(results)}
    return results.ratio(what, where | {"contestant": one}, where | {"contestant": other})


def _cpu(results: Results) -> Iterator[Claim]:
    for kind in LARGE:
        found = ratio(results, "cpu_ms", RopewayInPlace.name, Limit.name, kind)
        yield Claim(f"{kind}: CPU for each batch, {RopewayInPlace.name} / limit", found, 1.1)


def _rates(results: Results) -> Iterator[Claim]:
    for one, other, kinds, limit in _RATES:
        for kind in kinds:
            found = ratio(results, "batches_s", one.name, other.name, kind)
            what = f"{kind}: batches/s, {one.name} / {_short(other)}"
            yield Claim(what, found, limit, at_least=True)


def _fastest_peers(results: Results) -> Iterator[Claim]:
    for where in _wheres(results):
        if where["workers"] < most_workers(results):
            continue
        rates = {
            name: rate.median
            for name in _peers(results, where)
            if (rate := results.figure("batches_s", **where, contestant=name))
        }
        if rates:
            best, own, kind = max(rates, key=rates.__getitem__), _own(where["kind"]), where["kind"]
            found = ratio(results, "batches_s", own.name, best, kind)
            what = f"{kind}: batches/s, {own.name} / the fastest that hands over, {best}"
            yield Claim(what, found, 1.0, at_least=True)


def _small(results: Results) -> Iterator[Claim]:
    for kind in SMALL:
        found = results.figure("batches_s", kind=kind, contestant=Ropeway.name)
        yield Claim(f"{kind}: batches/s, {Ropeway.name}", found, 20_000, at_least=True)


def _times(results: Results) -> Iterator[Claim]:
    workers = most_workers(results)
    for kind in (*LARGE, *SMALL):
        where = {"kind": kind, "workers": workers, "contestant": _own(kind).name}
        yield Claim(f"{kind}: first batch", results.figure("first_s", **where), 0.3, " s")
        yield Claim(f"{kind}: shutdown", results.figure("shutdown_s", **where), 0.1, " s")
    for name in (Ropeway.name, RopewayTorch.name):
        found = results.figure("noticed_s", kind="kill", contestant=name)
        yield Claim(f"a killed worker is replaced, {name}", found, 0.05, " s")


def _wheres(results: Results) -> Iterator[Where]:
    """The workloads and numbers of workers that were measured."""
    for kind in (*LARGE, *SMALL):
        for workers in sorted({r["workers"] for r in results.records if r["kind"] == kind}):
            yield {"kind": kind, "workers": workers}


def _peers(results: Results, where: Where) -> list[str]:
    """Those who hand batches over and aren't ropeway's."""
    return [
        name
        for name in results.contestants(**where)
        if CONTESTANTS[name].hands_over
        and not issubclass(CONTESTANTS[name], Ropeway | RopewayTorch)
    ]


def _own(kind: str) -> type[Contestant]:
    """Ropeway at its best."""
    return RopewayInPlace if kind in LARGE else Ropeway


def _short(contestant: type[Contestant]) -> str:
    return contestant.name.partition(":")[0]
