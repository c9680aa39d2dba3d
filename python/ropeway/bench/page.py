"""Writes the page in the documentation from the results of a run."""

from . import claims
from .results import Results
from .tables import failures, tables

METHOD = """\
## How it is measured

- Two processes, near and far. Each trial starts both anew, and the order of the trials is drawn
  again in every round, so a slow minute of the machine meets everybody. A figure is the median over
  the rounds, with the lowest and the highest in brackets; a ratio is taken within a round first.
- *One core*: both processes are pinned to the same core, so a wake-up is a context switch.
  *Two cores*: each has its own, and an idle core has to be woken. A hand-off that sleeps costs
  several times more on two cores, so a figure without its placement says nothing.
- Arrays are filled before the clock starts, and the receiver reads one element of each. For those
  who don't copy, what is timed is therefore a hand-off, not the bandwidth of the memory.
- Answers are checked first: numbered arrays go through the very loop that is timed afterwards, and
  the receiver compares every element.
- The clock is read once in 16 turns.
- *Raw futex* and *raw spin* are the floor: a Rust program (`crates/bench`) whose processes share
  two counters and nothing else.
- *ropeway* is a pool as it comes: where that has helped lately it polls a little, and yields the
  processor to others on the same core, before it sleeps. *ropeway, no spin* sleeps at once
  (`ROPEWAY_SPIN=0`).
- iceoryx2 can't send a received sample on, so it answers with a second one. A semaphore carries no
  value: it shows what a call from Python costs, and serves one sender and one receiver only.
"""


def write(results: Results) -> str:
    """The page as Markdown."""
    about = results.about
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    parts = [
        "# Benchmarks",
        f"Measured on {about['date']}: {about['machine']}; {versions}.\n"
        f"{about['rounds']} rounds; load average {about['load'][0]} when they began.",
        f"`{about['command']}` measures it again; `ropeway bench --page PATH` writes this page.\n"
        "[loaders.md](loaders.md) is about loaders.",
        METHOD.strip(),
    ]
    for table in (claims.table(results), *tables(results)):
        parts += [f"## {table.title}", table.note, str(table)]
    parts += ["## Where ropeway loses", _losses(results)]
    parts += ["## Not measured", _not_measured(results)]
    return "\n\n".join(parts) + "\n"


def _losses(results: Results) -> str:
    missed = [claim.cells() for claim in claims.claims(results) if not claim.holds]
    sentences = claims.losses(results)
    sentences += [f"Not reached: {what}: {found}, {limit}." for what, limit, found, _ in missed]
    return _list(sentences) or "Nowhere in this run."


def _not_measured(results: Results) -> str:
    absent = results.about["not_installed"]
    sentences = [f"{name}: `{module}` is not installed." for name, module in absent.items()]
    return _list(sentences + failures(results)) or "Everything was."


def _list(sentences: list[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
