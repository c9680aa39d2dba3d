"""The command `ropeway`: demo, ls, top, bench."""

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ropeway import _core

# Commands that read their own arguments: the module, whose `main(arguments)` gives the exit status,
# and what it does.
OTHERS = {
    "ls": ("ropeway._ls", "list your open pools and who holds their slots"),
    "top": ("ropeway._top", "watch your open pools"),
    "bench": ("ropeway.bench", "measure what handing over arrays costs here"),
}


def parser() -> argparse.ArgumentParser:
    """Makes the parser of the command line."""
    text = "Hands large arrays between processes without a copy."
    result = argparse.ArgumentParser("ropeway", description=text)
    result.add_argument("--version", action="version", version=f"ropeway {_core.__version__}")
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND")
    text = "loaders decode and turn photos, a trainer learns from them in place"
    _add_demo_options(commands.add_parser("demo", help=text, description=text))
    for name, (_, text) in OTHERS.items():
        commands.add_parser(name, help=text, description=text, add_help=False)
    return result


def _add_demo_options(demo: argparse.ArgumentParser) -> None:
    """Adds options that are `None` unless given; their defaults stand where they are used."""
    number, amount = _number(int, 1), _number(float, 0.001, 1e9)
    option = demo.add_argument
    option("folder", nargs="?", type=Path, help="photos of your own, instead of packaged ones")
    option("--seconds", type=amount, help="length of the run (default: 35, without --batches)")
    option("--batches", type=number, help="number of batches after which the run ends")
    option("--batch-size", type=_number(int, 1, 4_096), help="images in a batch (default: 32)")
    option("--slots", type=_number(int, 1, 1_000), help="batches that exist at once (default: 4)")
    option("--loaders", type=_number(int, 1, 200), help="loader processes (default: 2)")
    option("--framework", choices=("numpy", "jax", "torch"), help="the trainer's (default: numpy)")
    option("--seed", type=_number(int, 0), help="equal seeds give equal batches (default: 0)")
    option("--timeline", type=Path, help="PNG to draw the run into (default: timeline.png)")
    option = demo.add_argument_group("with two large arrays instead of photos").add_argument
    option("--classic", action="store_true", help="fill and consume them in small steps")
    option("--elements", type=number, help="int32 in each array (default: 125,000,000)")
    option("--rounds", type=number, help="arrays to fill and consume (default: 2)")


def _number(
    kind: type[int] | type[float], least: float, most: float = 2**63 - 1
) -> Callable[[str], float]:
    """Makes what reads a number within bounds from the command line."""

    def number(text: str) -> float:
        value = kind(text.replace(",", ""))
        if not least <= value <= most:  # NaN is never within them
            raise argparse.ArgumentTypeError(f"must be {least:,} to {most:,}, found {text}")
        return value

    number.__name__ = kind.__name__
    return number


def demo(chosen: dict[str, Any]) -> int:
    """Runs the demo with the options that were given."""
    from ropeway.demo.stop import Stop

    with Stop() as stop:
        return _classic(chosen, stop) if chosen.pop("classic") else _photos(chosen, stop)


def _classic(chosen: dict[str, Any], stop: Any) -> int:
    from ropeway.demo import classic

    return classic.run(_options(classic.Options, chosen, "ropeway demo --classic"), stop)


def _photos(chosen: dict[str, Any], stop: Any) -> int:
    from ropeway.demo import DemoError

    if importlib.util.find_spec("PIL") is None:
        raise DemoError(
            "the demo decodes its photos with Pillow, which isn't installed: "
            "pip install 'ropeway[demo]'"
        )
    from ropeway.demo import run
    from ropeway.demo.options import Options

    if "batches" in chosen:
        chosen.setdefault("seconds", None)
    return run.run(_options(Options, chosen, "ropeway demo without --classic"), stop)


def _options(kind: Any, chosen: dict[str, Any], what: str) -> Any:
    """Makes the options of a demo, if all that were given have a meaning there."""
    from ropeway.demo import DemoError

    for name in chosen:
        if name not in kind._fields:
            option = "FOLDER" if name == "folder" else f"--{name.replace('_', '-')}"
            raise DemoError(f"{what} takes no {option}")
    return kind(**chosen)


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; gives the exit status."""
    chosen, rest = parser().parse_known_args(arguments)
    if rest and chosen.command not in OTHERS:
        parser().error(f"unknown arguments: {' '.join(rest)}")
    given = {name: value for name, value in vars(chosen).items() if value is not None}
    command = given.pop("command")
    return _reported(lambda: _other(command, rest) if command in OTHERS else demo(given))


def _other(command: str, arguments: list[str]) -> int:
    try:
        status: int = importlib.import_module(OTHERS[command][0]).main(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _reported(command: Callable[[], int]) -> int:
    """Runs a command whose errors are sentences for the person who started it."""
    from ropeway import RopewayError
    from ropeway.demo import DemoError

    try:
        return command()
    except (DemoError, RopewayError) as error:
        print(f"ropeway: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ropeway: stopped", file=sys.stderr)
        return 130
