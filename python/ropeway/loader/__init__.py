"""The loader: workers read samples and put them straight into the rows of shared batches."""

from typing import TYPE_CHECKING, Any

from ropeway.loader.info import WorkerInfo, worker_info

if TYPE_CHECKING:
    from ropeway.loader.loader import Loader
    from ropeway.loader.stats import LoaderStats, WorkerEnding, WorkerStats

__all__ = [
    "Loader",
    "LoaderStats",
    "WorkerEnding",
    "WorkerInfo",
    "WorkerStats",
    "worker_info",
]


def __getattr__(name: str) -> Any:
    """Imports what only those need who make loaders: workers do without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ropeway.loader import loader, stats

    made = loader.Loader, stats.LoaderStats, stats.WorkerEnding, stats.WorkerStats
    globals().update({each.__name__: each for each in made})
    return globals()[name]


def __dir__() -> list[str]:
    """All public names, imported or not."""
    return sorted({*globals(), *__all__})
