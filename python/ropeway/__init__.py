"""Hands large contiguous arrays between processes and array frameworks without copying a byte."""

import importlib
import os
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from ropeway._shared import SharedDict, SharedList
    from ropeway._status import (
        ExportStatus,
        LostSlot,
        MemberStatus,
        PoolStatus,
        SessionStatus,
        SlotStatus,
        status,
    )
    from ropeway.loader import (
        Loader,
        LoaderStats,
        WorkerEnding,
        WorkerInfo,
        WorkerStats,
        worker_info,
    )

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
    "SessionStatus",
    "SharedDict",
    "SharedList",
    "SlotStatus",
    "Timeout",
    "WorkerEnding",
    "WorkerError",
    "WorkerInfo",
    "WorkerStats",
    "WriteLease",
    "__version__",
    "asarray",
    "empty",
    "share",
    "status",
    "worker_info",
    "zeros",
]

_LATER = {
    "ropeway._shared": ("SharedDict", "SharedList"),
    "ropeway._status": (
        "ExportStatus",
        "LostSlot",
        "MemberStatus",
        "PoolStatus",
        "SessionStatus",
        "SlotStatus",
        "status",
    ),
    "ropeway.loader": (
        "Loader",
        "LoaderStats",
        "WorkerEnding",
        "WorkerInfo",
        "WorkerStats",
        "worker_info",
    ),
}
"""What is imported when it is first asked for: workers and small programs start sooner."""


def __getattr__(name: str) -> Any:
    """Imports what `_LATER` has under that name."""
    for module, names in _LATER.items():
        if name in names or f"ropeway.{name}" == module:
            found = importlib.import_module(module)
            if name in names:
                globals().update({each: getattr(found, each) for each in names})
                return globals()[name]
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """All public names, imported or not."""
    return sorted({*globals(), *__all__, "loader"})


os.environ["ROPEWAY_SESSION"] = _core.session(os.environ.get("ROPEWAY_SESSION"))
_exit.register()
