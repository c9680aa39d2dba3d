"""The command `ropeway bench loader`."""

import argparse
import json
import os
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .. import machine
from ..contest import TrialError, ask
from ..results import Figure
from ..tables import Table
from .contestants import (
    CONTESTANTS,
    Limit,
    RopewayInPlace,
    RopewayTorch,
    SpdlKept,
    Torch,
    TorchInPlace,
)
from .trial import Trial
from .workloads import BATCH, FIELDS, SHAPE, write_photos

DESCRIPTION = "Measures what a batch costs that worker processes make; checks answers first."
LARGE = ("fill", "augment", "jpeg")
SMALL = ("tiny", "fields")
COLUMNS = (
    ("batches/s", "batches_s", 1.0),
    ("CPU ms", "cpu_ms", 1.0),
    ("faults", "faults", 1.0),
    ("first s", "first_s", 1.0),
    ("shutdown s", "shutdown_s", 1.0),
    ("PSS MB", "pss_mb", 1.0),
)

Record = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints tables, writes JSON; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ropeway-bench-") as folder:
        if unknown := set(options.kinds) - {*LARGE, *SMALL, "kill"}:
            raise SystemExit(f"ropeway bench loader: no workload {', '.join(sorted(unknown))}")
        lacking = _photos(Path(folder)) if "jpeg" in options.kinds else None
        kinds = [kind for kind in options.kinds if kind != "jpeg" or lacking is None]
        trials = list(_trials(kinds, options, folder))
        about: Record = {"command": shlex.join(["ropeway", "bench", "loader", *arguments])}
        about |= machine.describe()
        about["not_installed"] = _not_installed(options.peers)
        about["without"] = {} if lacking is None else {"jpeg": lacking}
        records = _rounds(trials, options)
    about["rounds"] = max((record["round"] for record in records), default=0)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"about": about, "records": records}, indent=1))
    _print(about, records)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropeway bench loader", description=DESCRIPTION)
    add = parser.add_argument
    every = (*LARGE, *SMALL, "kill")
    add("kinds", nargs="*", default=list(every), help="workloads (all)")
    add("--workers", type=int, nargs="+", default=[1, 2], help="numbers of workers (1 and 2)")
    add("--rounds", type=int, default=3, help="rounds at most (3)")
    add("--budget", type=float, default=420, help="seconds behind which no trial begins (420)")
    add("--seconds", type=float, default=0.8, help="how long a trial measures (0.8)")
    add("--peers", nargs="+", default=[], metavar="PART", help="only those with PART in their name")
    add("--quick", action="store_true", help="one short round: a look, not a measurement")
    add("--json", type=Path, default=Path("results/loader.json"), help="where results are kept")
    return parser


def _photos(folder: Path) -> str | None:
    """Makes the photos; says what is missing if it can't."""
    try:
        write_photos(folder)
    except (ImportError, FileNotFoundError) as error:
        return str(error)
    return None


def _trials(kinds: Iterable[str], options: Any, folder: str) -> Iterator[Trial]:
    seconds = 0.2 if options.quick else options.seconds
    for kind in kinds:
        for name, contestant in CONTESTANTS.items():
            if (
                kind in contestant.kinds
                and not contestant.missing()
                and _wanted(name, options.peers)
            ):
                for workers in options.workers if kind in LARGE else options.workers[-1:]:
                    yield Trial(kind, name, workers, seconds, folder)


def _wanted(name: str, peers: list[str]) -> bool:
    return not peers or any(part.lower() in name.lower() for part in peers)


def _not_installed(peers: list[str]) -> dict[str, str]:
    absent = {name: c.missing() for name, c in CONTESTANTS.items() if _wanted(name, peers)}
    return {name: module for name, module in absent.items() if module}


def _rounds(trials: list[Trial], options: Any) -> list[Record]:
    """Runs every trial once a round, in a new order each time, as long as there is time."""
    records: list[Record] = []
    end = time.monotonic() + options.budget
    for number in range(1, 2 if options.quick else options.rounds + 1):
        for done, trial in enumerate(random.sample(trials, len(trials)), 1):
            if time.monotonic() > end:
                return records
            if sys.stderr.isatty():
                text = f"round {number}, {done}/{len(trials)}: {trial.kind}, {trial.contestant}"
                print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            records.append(_run(trial) | {"round": number})
    return records


def _run(trial: Trial) -> Record:
    told = {"kind": trial.kind, "contestant": trial.contestant, "workers": trial.workers}
    told["load"] = os.getloadavg()[0]
    command = [sys.executable, "-m", "ropeway.bench.loaders.trial", trial.to_json()]
    try:
        answer: Record = ask(command, {}, trial.seconds)
    except TrialError as failure:
        answer = {"error": str(failure)}
    return told | answer


# ---- tables --------------------------------------------------------------------------------------


def _print(about: Record, records: list[Record]) -> None:
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(f"{about['date']}, {about['machine']}, load {about['load'][0]}, {about['rounds']} rounds")
    workers = sorted({record["workers"] for record in records})
    for kind in (*LARGE, *SMALL):
        for number in workers:
            table = _table(records, kind, number)
            if table.rows:
                print(f"\n{table.title}\n{table.note}\n\n{table}")
    for table in (_detection(records), _ratios(records)):
        if table.rows:
            print(f"\n{table.title}\n{table.note}\n\n{table}")
    errors = {
        f"{r['contestant']}, {r['kind']}, {r['workers']} workers: {r['error']}": None
        for r in records
        if "error" in r
    }
    for sentence in errors:
        print(f"\nfailed: {sentence}")
    for name, module in about["not_installed"].items():
        print(f"\n{name}: {module} is not installed")
    for name, reason in about["without"].items():
        print(f"\nwithout {name}: {reason}")


def _table(records: list[Record], kind: str, workers: int) -> Table:
    what = {
        "fill": "Fill",
        "augment": "NumPy augmentation",
        "jpeg": "JPEG decoding of photos",
        "tiny": "One number a batch",
        "fields": f"{FIELDS} numbers a batch",
    }[kind]
    size = 4 * BATCH * SHAPE[0] * SHAPE[1] * SHAPE[2] / 1e6
    note = f"Batches of {size:.1f} MB" if kind in LARGE else "Batches of one sample"
    rows = []
    names = [n for n in CONTESTANTS if _values(records, "batches_s", kind, n, workers)]
    for name in names:
        cells = [_cell(records, key, kind, name, workers, scale) for _, key, scale in COLUMNS]
        rows.append((name, *cells))
    return Table(
        f"{what}, {workers} {'worker' if workers == 1 else 'workers'}",
        note + "; CPU time and page faults are those of the process tree, for each batch.",
        ("contestant", *(title for title, *_ in COLUMNS)),
        rows,
    )


def _detection(records: list[Record]) -> Table:
    rows = []
    for name in CONTESTANTS:
        found = [r for r in records if r["kind"] == "kill" and r["contestant"] == name]
        good = [r for r in found if "noticed_s" in r]
        if good:
            took = Figure.of(r["noticed_s"] for r in good)
            went_on = all(r["went_on"] for r in good)
            rows.append((name, str(took), "goes on" if went_on else "ends with an error"))
        elif found:
            rows.append((name, "-", "neither"))
    return Table(
        "A worker is killed",
        "Seconds until an exception, or until a batch of a new worker has come.",
        ("contestant", "s", "then it"),
        rows,
    )


_CLAIMS = (
    (RopewayInPlace.name, "cpu_ms", Limit.name, "fill augment jpeg", "<=", 1.1),
    (RopewayInPlace.name, "batches_s", Limit.name, "fill augment jpeg", ">=", 0.9),
    (RopewayInPlace.name, "batches_s", Torch.name, "fill", ">=", 8.0),
    (RopewayInPlace.name, "batches_s", SpdlKept.name, "fill", ">=", 2.0),
    (RopewayInPlace.name, "batches_s", Torch.name, "augment", ">=", 5.0),
    (RopewayInPlace.name, "batches_s", TorchInPlace.name, "jpeg", ">=", 1.3),
    (RopewayInPlace.name, "batches_s", SpdlKept.name, "jpeg", ">=", 1.1),
    (RopewayTorch.name, "batches_s", Torch.name, "fill augment", ">=", 3.0),
    (RopewayTorch.name, "batches_s", Torch.name, "jpeg tiny fields", ">=", 1.0),
)


def _ratios(records: list[Record]) -> Table:
    """What was to be shown, and what came out, with the most workers."""
    workers = max((record["workers"] for record in records), default=0)
    rows = []
    for one, key, other, kinds, relation, bound in _CLAIMS:
        for kind in kinds.split():
            ratio = _ratio(records, key, kind, one, other, workers)
            if ratio is not None:
                held = ratio >= bound if relation == ">=" else ratio <= bound
                what = "CPU" if key == "cpu_ms" else "batches/s"
                wanted = f"{relation} {bound}"
                cells = (f"{one} / {other}", kind, what, f"{ratio:.2f}", wanted)
                rows.append((*cells, "yes" if held else "no"))
    return Table(
        f"Ratios, {workers} workers",
        "Of medians over the rounds.",
        ("of", "workload", "what", "ratio", "wanted", "held"),
        rows,
    )


def _ratio(
    records: list[Record], key: str, kind: str, one: str, other: str, workers: int
) -> float | None:
    sides = [_values(records, key, kind, name, workers) for name in (one, other)]
    if not all(sides):
        return None
    above, below = map(statistics.median, sides)
    return above / below if below else None


def _values(records: list[Record], key: str, kind: str, name: str, workers: int) -> list[float]:
    where = {"kind": kind, "contestant": name, "workers": workers}
    return [r[key] for r in records if key in r and where.items() <= r.items()]


def _cell(records: list[Record], key: str, kind: str, name: str, workers: int, scale: float) -> str:
    figure = Figure.of(_values(records, key, kind, name, workers))
    return "-" if figure is None else str(figure.scaled(scale))
