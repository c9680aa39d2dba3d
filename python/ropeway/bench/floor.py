"""The floor: a Rust program that hands over with a futex, a spin or ropeway's pool."""

import os
import shutil
from pathlib import Path

from .placement import placements
from .trial import Trial

FUTEX = "raw futex"
SPIN = "raw spin"
RUST = "ropeway from Rust"
MEANS = {FUTEX: "futex", SPIN: "spin", RUST: "pool"}
WAITS = {FUTEX: "sleeps", SPIN: "polls", RUST: "spins, yields, then sleeps"}

BUILD = "cargo build --release -p ropeway-bench"


def program() -> str | None:
    """Where the program is: in $ROPEWAY_FLOOR, on the PATH, or built in this or a parent folder."""
    named = os.environ.get("ROPEWAY_FLOOR") or shutil.which("ropeway-floor")
    if named:
        return named
    here = Path.cwd()
    built = (folder / "target/release/ropeway-floor" for folder in (here, *here.parents))
    return next((str(path) for path in built if path.exists()), None)


def command(trial: Trial) -> list[str]:
    """The command line that measures a trial; what it prints is one line of JSON."""
    near, far = placements()[trial.placement]
    return [
        program() or "ropeway-floor",
        MEANS[trial.contestant],
        "--slots",
        str(trial.slots),
        "--bytes",
        str(trial.nbytes),
        "--seconds",
        str(trial.seconds),
        "--cores",
        f"{near},{far}",
    ]
