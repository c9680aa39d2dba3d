"""The loader: workers read samples and put them straight into the rows of shared batches."""

from ropeway.loader.info import WorkerInfo, worker_info
from ropeway.loader.loader import Loader
from ropeway.loader.stats import LoaderStats, WorkerStats

__all__ = ["Loader", "LoaderStats", "WorkerInfo", "WorkerStats", "worker_info"]
