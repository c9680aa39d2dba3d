"""The tables of a run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from . import export, fill, floor
from .contest import Record
from .peers import PEERS
from .placement import ONE_CORE, TWO_CORES
from .plan import LARGE, MIB, SIZED, SIZES, SMALL
from .results import Figure, Results, Where


@dataclass(frozen=True)
class Table:
    """A title, a note that says how to read it, and cells of text."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def __str__(self) -> str:
        """The cells as Markdown with its columns aligned."""
        lines = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, tuple("-" * width for width in widths))
        return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def tables(results: Results) -> list[Table]:
    """A table for each question that was asked."""
    made = (roundtrip, sizes, oneway, filling, descriptors, exports)
    return [table for make in made if (table := make(results)).rows]


def roundtrip(results: Results) -> Table:
    """Everybody with small arrays; who is fast on two cores comes first."""
    rows = []
    names = results.contestants(question="roundtrip", nbytes=SMALL)
    for name in ranked(names, lambda name: trip(results, name, TWO_CORES)):
        row = [name, waits(name)]
        for placement in (ONE_CORE, TWO_CORES):
            where = {"question": "roundtrip", "nbytes": SMALL, "placement": placement}
            own, futex = where | {"contestant": name}, where | {"contestant": floor.FUTEX}
            row += [text(results, "p50_us", own), str(results.ratio("p50_us", own, futex) or "-")]
        rows.append(tuple(row))
    return Table(
        "Round trip of a filled array of 4 KiB",
        "Microseconds; the ratio is to the raw futex of the same round and placement.",
        ("contestant", "who waits", "one core", "/ futex", "two cores", "/ futex"),
        rows,
    )


def sizes(results: Results) -> Table:
    """Ropeway at every size, the others at a small and a large one."""
    large = {"question": "roundtrip", "nbytes": LARGE, "placement": ONE_CORE}
    others = [(name, ONE_CORE) for name in results.contestants(**large)]
    rows = []
    for name, placement in dict.fromkeys((*SIZED, *others)):
        where = {"question": "roundtrip", "contestant": name, "placement": placement}
        cells = [text(results, "p50_us", where | {"nbytes": nbytes}) for nbytes in SIZES]
        if any(cell != "-" for cell in cells[1:]):
            rows.append((name, placement, *cells))
    columns = ("4 KiB", *(f"{nbytes // MIB} MiB" for nbytes in SIZES[1:]))
    return Table("Round trip by size", "Microseconds.", ("contestant", "placement", *columns), rows)


def oneway(results: Results) -> Table:
    """Everybody, the fastest first."""
    question = {"question": "oneway"}
    futex = question | {"contestant": floor.FUTEX}
    rows = []
    names = results.contestants(**question)
    for name in ranked(names, lambda name: rate(results, name), descending=True):
        own = question | {"contestant": name}
        ratio = str(results.ratio("per_s", own, futex) or "-")
        millions = text(results, "per_s", own, scale=1e-6)
        rows.append((name, waits(name), millions, ratio))
    return Table(
        "One-way hand-offs",
        "Millions of arrays of 4 KiB a second: 16 slots, one producer, one consumer, two cores."
        " The raw futex is no upper limit: who is faster runs dry more often, and has to be woken.",
        ("contestant", "who waits", "million/s", "/ futex"),
        rows,
    )


def filling(results: Results) -> Table:
    """Each way of filling."""
    private = {"question": "fill", "contestant": fill.PRIVATE}
    rows = []
    for way in results.contestants(question="fill"):
        own = private | {"contestant": way}
        share = results.figure("faulted_share", **own)
        ratio = str(results.ratio("cpu_ms", own, private) or "-")
        faults = f"{share.median:.2%}" if share else "-"
        rows.append((way, text(results, "cpu_ms", own), ratio, faults))
    return Table(
        f"Filling a batch of {fill.NBYTES / 1e6:.1f} MB",
        "CPU time of one fill in milliseconds; page faults as a share of the batch's pages.",
        ("memory", "CPU ms", "/ private, kept", "faults"),
        rows,
    )


def descriptors(results: Results) -> Table:
    """What the first round found; the others must find the same."""
    records = [r for r in results.records if r["question"] == "descriptors" and r["round"] == 1]
    records.sort(key=lambda record: list(PEERS).index(record["contestant"]))
    return Table(
        "Descriptors and mappings",
        "What a run of hand-offs added in both processes, with RLIMIT_NOFILE at 64.",
        ("contestant", "hand-offs", "new descriptors", "new mappings", "of them shared"),
        [(record["contestant"], *_new(record)) for record in records],
    )


def exports(results: Results) -> Table:
    """Each way of giving an array away."""
    over = {"question": "export", "contestant": export.IMPORT}
    rows = []
    for way in results.contestants(question="export"):
        own = over | {"contestant": way}
        rows.append((way, text(results, "ns", own), str(results.ratio("ns", own, over) or "-")))
    return Table(
        "Giving an array to another framework",
        "Nanoseconds, with what lets go of it again.",
        ("way", "ns", f"/ {export.IMPORT}"),
        rows,
    )


def _new(record: Record) -> tuple[str, ...]:
    if "error" in record:
        return ("failed", "-", "-", "-")
    near, far = record["new_near"], record["new_far"]
    return (f"{record['turns']:,}", *(f"{near[what] + far[what]:+d}" for what in near))


def failures(results: Results) -> list[str]:
    """A sentence for each thing that went wrong in some trial."""
    found = [
        f"{record['contestant']}, {record['question']} on {record['placement']}: {record['error']}"
        for record in results.records
        if "error" in record
    ]
    return list(dict.fromkeys(found))


def trip(results: Results, name: str, placement: str) -> Figure | None:
    """The round trip of a small array."""
    where = {"question": "roundtrip", "nbytes": SMALL, "placement": placement}
    return results.figure("p50_us", contestant=name, **where)


def rate(results: Results, name: str) -> Figure | None:
    """One-way hand-offs, in millions a second."""
    found = results.figure("per_s", question="oneway", contestant=name)
    return found.scaled(1e-6) if found else None


def text(results: Results, what: str, where: Where, scale: float = 1.0) -> str:
    """A figure; "failed" where every round went wrong, "-" where none was held."""
    if figure := results.figure(what, **where):
        return str(figure.scaled(scale))
    return "failed" if results.error(**where) else "-"


def waits(name: str) -> str:
    """What a receiver of this contestant does that finds nothing."""
    return floor.WAITS.get(name) or PEERS[name].waits


def ranked(
    names: Iterable[str], figure: Callable[[str], Figure | None], descending: bool = False
) -> list[str]:
    """The names by their figure; those without one come last."""
    found = {name: figure(name) for name in names}
    medians = {name: one.median for name, one in found.items() if one}
    with_one = sorted(medians, key=medians.__getitem__, reverse=descending)
    return with_one + [name for name in found if name not in medians]
