"""Rounds of trials: in each, every contestant has its turn, in a new order and in new processes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from . import floor
from .peers import PEERS
from .trial import Trial

PATIENCE = 60.0
"""Seconds that a trial may take beside what it measures; then it is ended and counts as failed."""

Record = dict[str, Any]
"""What one trial told: its fields, the round, the load before it, and a result or an `error`."""


def hold(trials: Iterable[Trial], rounds: int, progress: Callable[[str], None]) -> list[Record]:
    """Runs every trial once a round and returns what all of them told."""
    trials, records = list(trials), []
    for number in range(1, rounds + 1):
        for done, trial in enumerate(random.sample(trials, len(trials)), 1):
            progress(f"round {number}/{rounds}, {done}/{len(trials)}: {trial.contestant}")
            records += [{"round": number} | record for record in run(trial)]
    return records


def run(trial: Trial) -> list[Record]:
    """Runs one trial in processes of its own."""
    told = {
        "question": trial.question,
        "placement": trial.placement,
        "nbytes": trial.nbytes,
        "slots": trial.slots,
        "load": os.getloadavg()[0],
    }
    try:
        results = _results(trial)
    except TrialError as failure:
        results = {name: {"error": str(failure)} for name in trial.ways or (trial.contestant,)}
    return [told | {"contestant": name} | result for name, result in results.items()]


class TrialError(Exception):
    """A trial ended without an answer."""


def _results(trial: Trial) -> dict[str, Record]:
    if trial.contestant in floor.MEANS:
        return {trial.contestant: ask(floor.command(trial), {}, trial.seconds)}
    peer = PEERS.get(trial.contestant)
    command = [sys.executable, "-m", "ropeway.bench.trial", trial.to_json()]
    results: dict[str, Record] = ask(command, peer.environment if peer else {}, trial.seconds)
    return results


def ask(command: list[str], environment: dict[str, str], seconds: float) -> Any:
    """Runs a command and reads the last line that it prints as JSON."""
    quiet = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(
        command,
        env=os.environ | quiet | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        answer, complaint = process.communicate(timeout=PATIENCE + 10 * seconds)
    except subprocess.TimeoutExpired:
        raise TrialError(f"no answer within {PATIENCE + 10 * seconds:.0f} s") from None
    finally:
        _end_group(process)
    if process.returncode != 0:
        lines = complaint.strip().splitlines() or [f"ended with status {process.returncode}"]
        raise TrialError(lines[-1][:200])
    return json.loads(answer.splitlines()[-1])


def _end_group(process: subprocess.Popen[str]) -> None:
    """Ends what is left of a trial, at first so that the tracker of shared memory can tidy up."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        time.sleep(0.1)
