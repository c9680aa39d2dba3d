"""The tables of a run."""

from ..results import Results
from ..tables import Table
from .claims import LARGE, SMALL
from .contestants import CONTESTANTS
from .workloads import BATCH, FIELDS, SHAPE

_COLUMNS = (
    ("batches/s", "batches_s"),
    ("CPU ms", "cpu_ms"),
    ("faults", "faults"),
    ("first s", "first_s"),
    ("shutdown s", "shutdown_s"),
    ("PSS MB", "pss_mb"),
)
_TITLES = {
    "fill": "Fill",
    "augment": "NumPy augmentation",
    "jpeg": "JPEG decoding of photos",
    "tiny": "One number a batch",
    "fields": f"{FIELDS} numbers a batch",
}


def tables(results: Results) -> list[Table]:
    """A table for each workload and number of workers, and one of what a kill brings."""
    workers = sorted({record["workers"] for record in results.records})
    made = [_costs(results, kind, number) for kind in (*LARGE, *SMALL) for number in workers]
    return [table for table in (*made, _detection(results)) if table.rows]


def failures(results: Results) -> list[str]:
    """A sentence for each trial that failed."""
    sentences = (
        f"{r['contestant']}, {r['kind']}, {r['workers']} workers: {r['error']}"
        for r in results.records
        if "error" in r
    )
    return list(dict.fromkeys(sentences))


def _costs(results: Results, kind: str, workers: int) -> Table:
    size = 4 * BATCH * SHAPE[0] * SHAPE[1] * SHAPE[2] / 1e6
    note = f"Batches of {size:.1f} MB" if kind in LARGE else "Batches of one sample"
    where = {"kind": kind, "workers": workers}
    rows = []
    for name in CONTESTANTS:
        figures = [results.figure(key, **where, contestant=name) for _, key in _COLUMNS]
        if any(figures):
            rows.append((name, *("-" if figure is None else str(figure) for figure in figures)))
    return Table(
        f"{_TITLES[kind]}, {workers} {'worker' if workers == 1 else 'workers'}",
        note + "; CPU time and page faults are those of the process tree, for each batch.",
        ("contestant", *(title for title, _ in _COLUMNS)),
        rows,
    )


def _detection(results: Results) -> Table:
    rows = []
    for name in CONTESTANTS:
        found = [r for r in results.records if (r["kind"], r["contestant"]) == ("kill", name)]
        good = [r for r in found if "noticed_s" in r]
        if good:
            took = results.figure("noticed_s", kind="kill", contestant=name)
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
