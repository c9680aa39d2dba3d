"""Kills Python processes that share pools, queues, arrays and loaders, and looks at what is left.

`python harness/kill.py ROUNDS [SEED] [KIND]`. This process makes everything, as a main program
does, and lives through all rounds; the others are forked in each round. After it every message
must have arrived once and whole, or be reported lost with the number of its dead holder; every
slot must be free, and this process must have what it had before.
"""

import collections
import gc
import sys
import time
from multiprocessing import forkserver, resource_tracker

import belongings
from deeds import DEEDS
from ledger import ledger
from loading import play_loader
from rounds import Round
from starting import play_started
from voices import Voices

import ropeway as rw

KINDS = (
    "queue: SIGKILL of a producer",
    "queue: SIGKILL of a consumer",
    "queue: SIGSTOP, SIGCONT",
    "pool: SIGKILL of a producer",
    "pool: SIGKILL of a middle stage",
    "pool: SIGKILL of a consumer",
    "arrays: SIGKILL of a sender",
    "arrays: SIGKILL of a receiver",
    *(f"pool: {deed} within a lease" for deed in DEEDS),
    *(f"queue: {deed} with live views" for deed in DEEDS),
    "start method spawn: SIGKILL",
    "start method forkserver: SIGKILL",
    "loader: SIGKILL of a worker",
    "loader: SIGKILL of the zygote",
)
SLOW = {name for name in KINDS if name.startswith(("start", "loader"))}


def main():
    """Plays rounds and prints a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.monotonic_ns()
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    kinds = [kind for kind in KINDS if only in kind]
    table = {kind: collections.Counter() for kind in kinds}
    times = {kind: [] for kind in kinds}
    voices = Voices()
    warm_up()
    start = time.monotonic()
    played = 0
    for turn in range(rounds * 10):
        kind = kinds[turn % len(kinds)]
        # Rounds that start interpreters take as long as twenty others.
        if kind in SLOW and turn // len(kinds) % 20 and not SLOW.issuperset(kinds):
            continue
        if played == rounds:
            break
        played += 1
        before = belongings.of_this_process()
        one = seed + turn
        if kind.startswith("loader"):
            ledger.clear()
            ended = play_loader(one, ledger, kills_zygote="zygote" in kind)
            recoveries, lost = [], 0
        elif kind.startswith("start"):
            ended, recoveries, lost = play_started(kind, one)
        else:
            ended, recoveries, lost = Round(kind, one).play()
        left = belongings.left(before)
        if left:
            ledger.complain(f"left behind: {left}")
        if heard := voices.heard():
            ledger.complain(f"on standard error: {heard}")
        complaints = ledger.complaints()
        if complaints:
            voices.say(f"round {played} (kill.py 1 {one} {kind!r}):\n{complaints}")
        table[kind].update(rounds=1, ended=ended, lost=lost, failed=bool(complaints))
        times[kind] += recoveries
    show(table, times)
    print(f"{played} rounds in {time.monotonic() - start:.0f} s, seed {seed}")
    sys.exit(any(row["failed"] for row in table.values()))


def warm_up():
    """Starts what lives on for good, before anything is counted."""
    resource_tracker.ensure_running()
    forkserver.ensure_running()
    ledger.clear()
    play_loader(0, ledger)
    rw.empty(1, "u1")
    gc.collect()
    gc.freeze()


def show(table, times):
    """Prints the table; times in ms."""
    head = ("what befell", "rounds", "ended", "lost", "failed", "back p50", "p99", "max", ">100 ms")
    print("{:40}{:>8}{:>7}{:>6}{:>8}{:>10}{:>8}{:>8}{:>9}".format(*head))
    table["all"] = sum(table.values(), collections.Counter())
    times["all"] = [took for each in times.values() for took in each]
    for kind, row in table.items():
        if not row["rounds"]:
            continue
        took = sorted(times[kind])
        parts = [
            f"{took[round((len(took) - 1) * p)] * 1e3:.1f}" if took else "-" for p in (0.5, 0.99, 1)
        ]
        late = sum(one > 0.1 for one in took)
        print(
            f"{kind:40}{row['rounds']:8}{row['ended']:7}{row['lost']:6}{row['failed']:8}"
            f"{parts[0]:>10}{parts[1]:>8}{parts[2]:>8}{late:9}"
        )


if __name__ == "__main__":
    main()
