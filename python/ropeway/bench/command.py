"""The command `ropeway bench`."""

import argparse
import shlex
import sys
from pathlib import Path

from . import claims, contest, floor, loaders, machine, page
from .plan import QUESTIONS, Plan
from .results import Results
from .tables import failures, tables

DESCRIPTION = (
    "Measures what a hand-off costs, next to other ways of doing it; checks answers first. "
    "`ropeway bench loader` measures loaders."
)


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints tables, writes JSON and, where asked, the page; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["loader"]:
        return loaders.main(arguments[1:])
    options = _parser().parse_args(arguments)
    if options.page and options.question is None:
        results = Results.load(options.json)
    else:
        results = _measure(options, shlex.join(["ropeway", "bench", *arguments]))
        results.save(options.json)
        _print(results)
    if options.page:
        options.page.write_text(page.write(results))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropeway bench", description=DESCRIPTION)
    add = parser.add_argument
    add("question", nargs="?", choices=(*QUESTIONS, "all"), help="one only (default: all)")
    add("--rounds", type=int, help="rounds (default: 3)")
    add("--seconds", type=float, help="how long a trial measures (default: 0.2)")
    add("--peers", nargs="+", default=[], metavar="PART", help="only those with PART in their name")
    add("--quick", action="store_true", help="one short round: a look, not a measurement")
    add("--json", type=Path, default=Path("results/bench.json"), help="where results are kept")
    add("--page", type=Path, help="write this page, without a question from the results kept")
    return parser


def _measure(options: argparse.Namespace, command: str) -> Results:
    if floor.program() is None:
        raise SystemExit(
            f"ropeway-floor, the floor of all ratios, was not found on the PATH, in"
            f" target/release or as $ROPEWAY_FLOOR: {floor.BUILD} builds it"
        )
    questions = QUESTIONS if options.question in (None, "all") else (options.question,)
    seconds = options.seconds or (0.05 if options.quick else 0.2)
    rounds = options.rounds or (1 if options.quick else 3)
    plan = Plan(questions, seconds, tuple(options.peers), options.quick)
    about = {"command": command, "rounds": rounds, "not_installed": plan.not_installed()}
    about |= machine.describe()
    return Results(about, contest.hold(plan.trials(), rounds, _progress))


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def _print(results: Results) -> None:
    about = results.about
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(f"{about['date']}, {about['machine']}, load {about['load'][0]}, {about['rounds']} rounds")
    for table in (*tables(results), claims.table(results)):
        print(f"\n{table.title}\n{table.note}\n\n{table}")
    for sentence in failures(results):
        print(f"\nfailed: {sentence}")
    for name, module in about["not_installed"].items():
        print(f"\n{name}: {module} is not installed")
