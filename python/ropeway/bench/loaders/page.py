"""Writes the page in the documentation from the results of a run."""

from ..results import Results
from . import claims
from .tables import failures, tables

METHOD = """\
## How it is measured

- All contestants make batches of the same datasets; photos are real ones, cut to 500 x 375 pixels.
  *Fill* writes a constant and shows what a loader itself costs, as memory is all that it waits for.
- Each trial is a process of its own, with workers of its own. The order is drawn again in every
  round, so a slow minute of the machine meets everybody. A figure is the median over the rounds,
  with the lowest and the highest in brackets; a ratio is taken within a round first.
- The first {least} batches are compared with what the dataset gives, then batches are read for
  {seconds} s until memory that is filled again and again is warm, then for {seconds} s and at least
  {least} batches with the clock running. The last of them is compared again.
- The consumer reads one element of each batch and lets go of it. Memory that is fresh each time is
  a loader's own cost, and counted.
- *limit* is the floor: workers fill two private buffers each, in place, and hand nothing over. They
  get ahead of the consumer by two batches a worker and two. *limit, shared memory* does so in
  shared memory, so that the difference between the two isn't a loader's.
- *rw.Loader* and *torch* have datasets that return arrays and tensors; those *in place* write into
  the row, or into a new shared tensor of a whole batch. *ropeway.torch* is the program of *torch*
  with one import changed. *SPDL's pool, kept buffer* fills one buffer, which the pool copies.
"""


def write(results: Results) -> str:
    """The page as Markdown."""
    about = results.about
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    method = METHOD.format(least=about["least"], seconds=about["seconds"]).strip()
    parts = [
        "# Benchmarks of loaders",
        f"Measured on {about['date']}: {about['machine']}; {versions}.\n"
        f"Up to {about['rounds']} rounds; load average {about['load'][0]} when they began.",
        f"`{about['command']}` measures it again; `ropeway bench loader --page PATH` writes this "
        "page.",
        method,
    ]
    for table in (claims.table(results), *tables(results)):
        parts += [f"## {table.title}", table.note, str(table)]
    parts += ["## Where ropeway loses", _list(_losses(results)) or "Nowhere in this run."]
    parts += ["## Not measured", _list(not_measured(results)) or "Everything was."]
    return "\n\n".join(parts) + "\n"


def not_measured(results: Results) -> list[str]:
    """A sentence for each contestant, workload and trial that there is nothing of."""
    about = results.about
    absent = [f"{name}: `{module}` is not installed." for name, module in _absent(about)]
    without = [f"{name}: {reason}" for name, reason in about["without"].items()]
    return absent + without + [f"Failed: {sentence}" for sentence in failures(results)]


def _absent(about: dict[str, object]) -> list[tuple[str, str]]:
    absent = about["not_installed"]
    assert isinstance(absent, dict)
    return list(absent.items())


def _losses(results: Results) -> list[str]:
    missed = [claim.cells() for claim in claims.claims(results) if not claim.holds]
    return claims.losses(results) + [
        f"Not reached: {what}: {found}, {limit}." for what, limit, found, _ in missed
    ]


def _list(sentences: list[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
