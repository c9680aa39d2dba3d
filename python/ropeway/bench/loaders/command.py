"""The command `ropeway bench loader`."""

import argparse
import os
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .. import machine
from ..contest import Record, TrialError, ask
from ..results import Results
from . import claims, page
from .claims import LARGE, SMALL
from .contestants import CONTESTANTS
from .tables import tables
from .trial import LEAST, Trial
from .workloads import write_photos

DESCRIPTION = "Measures what a batch costs that worker processes make; checks answers first."
KINDS = (*LARGE, *SMALL, "kill")


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints tables, writes JSON and, where asked, the page; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(arguments)
    if unknown := set(options.kinds) - {*KINDS, "all"}:
        raise SystemExit(f"ropeway bench loader: no workload {', '.join(sorted(unknown))}")
    if options.page and not options.kinds:
        results = Results.load(options.json)
    else:
        results = _measured(options, shlex.join(["ropeway", "bench", "loader", *arguments]))
        results.save(options.json)
        _print(results)
    if options.page:
        options.page.write_text(page.write(results))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropeway bench loader", description=DESCRIPTION)
    add = parser.add_argument
    add("kinds", nargs="*", metavar="KIND", help=f"workloads: {', '.join(KINDS)} (default: all)")
    add("--workers", type=int, nargs="+", default=[1, 2], help="numbers of workers (1 and 2)")
    add("--rounds", type=int, default=3, help="rounds at most (3)")
    add("--budget", type=float, default=780, help="seconds behind which no trial begins (780)")
    add("--seconds", type=float, default=0.8, help="how long a trial warms up, and measures (0.8)")
    add("--peers", nargs="+", default=[], metavar="PART", help="only those with PART in their name")
    add("--quick", action="store_true", help="one short round: a look, not a measurement")
    add("--json", type=Path, default=Path("results/loader.json"), help="where results are kept")
    add("--page", type=Path, help="write this page, without a workload from the results kept")
    return parser


def _measured(options: Any, command: str) -> Results:
    kinds = list(KINDS) if not options.kinds or "all" in options.kinds else options.kinds
    if options.quick:
        options.rounds, options.seconds = 1, 0.2
    with tempfile.TemporaryDirectory(prefix="ropeway-bench-") as folder:
        lacking = _photos(Path(folder)) if "jpeg" in kinds else None
        about: Record = {"command": command, "seconds": options.seconds, "least": LEAST}
        about |= machine.describe()
        about["not_installed"] = _not_installed(options.peers)
        about["without"] = {} if lacking is None else {"jpeg": lacking}
        kinds = [kind for kind in kinds if kind not in about["without"]]
        records = _rounds(list(_trials(kinds, options, folder)), options)
    about["rounds"] = max((record["round"] for record in records), default=0)
    return Results(about, records)


def _photos(folder: Path) -> str | None:
    """Makes the photos; says what is missing if it can't."""
    try:
        write_photos(folder)
    except (ImportError, FileNotFoundError) as error:
        return str(error)
    return None


def _trials(kinds: Iterable[str], options: Any, folder: str) -> Iterator[Trial]:
    for kind in kinds:
        for name, contestant in CONTESTANTS.items():
            if (
                kind in contestant.kinds
                and not contestant.missing()
                and _wanted(name, options.peers)
            ):
                for workers in options.workers if kind in LARGE else options.workers[-1:]:
                    yield Trial(kind, name, workers, options.seconds, folder)


def _wanted(name: str, peers: list[str]) -> bool:
    return not peers or any(part.lower() in name.lower() for part in peers)


def _not_installed(peers: list[str]) -> dict[str, str]:
    absent = {name: c.missing() for name, c in CONTESTANTS.items() if _wanted(name, peers)}
    return {name: module for name, module in absent.items() if module}


def _rounds(trials: list[Trial], options: Any) -> list[Record]:
    """Runs every trial once a round, in a new order each time, as long as there is time."""
    records: list[Record] = []
    end = time.monotonic() + options.budget
    for number in range(1, options.rounds + 1):
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


def _print(results: Results) -> None:
    about = results.about
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(f"{about['date']}, {about['machine']}, load {about['load'][0]}, {about['rounds']} rounds")
    for table in (*tables(results), claims.table(results)):
        if table.rows:
            print(f"\n{table.title}\n{table.note}\n\n{table}")
    for sentence in page.not_measured(results):
        print(f"\n{sentence}")
