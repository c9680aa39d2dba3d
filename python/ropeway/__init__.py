"""Hands large contiguous arrays between processes and array frameworks without copying a byte."""

import os

from ropeway import _core, _exit
from ropeway._arrays import Array, empty, share, zeros
from ropeway._core import Pointer, ReadLease, WriteLease
from ropeway._errors import (
    Closed,
    Gone,
    Incompatible,
    InUse,
    Invalid,
    NoSuch,
    OutOfMemory,
    PeerDied,
    RopewayError,
    Timeout,
    WorkerError,
)
from ropeway._like import asarray
from ropeway._pool import Pool
from ropeway._queue import Queue
from ropeway._shared import SharedDict, SharedList
from ropeway._status import ExportStatus, LostSlot, MemberStatus, PoolStatus, SlotStatus
from ropeway.loader import Loader, LoaderStats, WorkerInfo, WorkerStats, worker_info

__version__ = _core.__version__

__all__ = [
    "Array",
    "Closed",
    "ExportStatus",
    "Gone",
    "InUse",
    "Incompatible",
    "Invalid",
    "Loader",
    "LoaderStats",
    "LostSlot",
    "MemberStatus",
    "NoSuch",
    "OutOfMemory",
    "PeerDied",
    "Pointer",
    "Pool",
    "PoolStatus",
    "Queue",
    "ReadLease",
    "RopewayError",
    "SharedDict",
    "SharedList",
    "SlotStatus",
    "Timeout",
    "WorkerError",
    "WorkerInfo",
    "WorkerStats",
    "WriteLease",
    "__version__",
    "asarray",
    "empty",
    "share",
    "worker_info",
    "zeros",
]

os.environ["ROPEWAY_SESSION"] = _core.session(os.environ.get("ROPEWAY_SESSION"))
_exit.register()
