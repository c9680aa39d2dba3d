"""An exception on its way from a worker to the loader."""

import pickle
from dataclasses import dataclass
from typing import Any, NoReturn

from ropeway._errors import WorkerError

_SHOWN_KEYS = 8


@dataclass(frozen=True)
class Failure:
    """What a worker has to say about an exception."""

    kind: str
    """Name of the exception's type."""
    message: str
    story: str
    """The worker's traceback, as text."""
    keys: list[Any]
    """The key of the sample, or those of the batch if it wasn't a single one."""
    worker: int
    pid: int
    pickled: bytes | None
    """The exception itself, if it can be pickled and is an ordinary one."""
    memory: bool = False
    """Whether memory was short."""

    def text(self) -> str:
        """All of it, for people."""
        return (
            f"worker {self.worker} (process {self.pid}) raised {self.kind} for "
            f"{samples(self.keys)}: {self.message}\n\n{self.story.rstrip()}"
        )

    def throw(self) -> NoReturn:
        """Raises the exception, with the worker's story as its cause."""
        cause = WorkerError(self.text())
        error = None if self.pickled is None else _unpickled(self.pickled)
        if error is None:
            raise cause
        raise error from cause


def failure(error: BaseException, keys: list[Any], worker: int, pid: int) -> Failure:
    """Describes an exception; nothing of it is kept."""
    import traceback  # rarely needed, and every worker imports this module

    story = "".join(traceback.format_exception(error))
    return Failure(
        type(error).__qualname__,
        _message(error),
        story,
        keys,
        worker,
        pid,
        _pickled(error),
        isinstance(error, MemoryError),
    )


def samples(keys: list[Any]) -> str:
    """Names samples by their keys."""
    if not keys:
        return "its stream"
    if len(keys) == 1:
        return f"sample {keys[0]!r}"
    shown = ", ".join(map(repr, keys[:_SHOWN_KEYS]))
    more = f", … ({len(keys)} in all)" if len(keys) > _SHOWN_KEYS else ""
    return f"samples {shown}{more}"


def _message(error: BaseException) -> str:
    if isinstance(error, KeyError) and len(error.args) == 1:
        return str(error.args[0])
    try:
        return str(error)
    except Exception as second:
        return f"(its message can't be had: {type(second).__name__})"


def _pickled(error: BaseException) -> bytes | None:
    """The exception as bytes, if the loader can raise it: those that end loops or programs can't.

    It is made again here, as many a class pickles but can't be unpickled.
    """
    if not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration):
        return None
    try:
        data = pickle.dumps(error, protocol=5)
        return data if type(pickle.loads(data)) is type(error) else None
    except Exception:
        return None


def _unpickled(data: bytes) -> Exception | None:
    try:
        error = pickle.loads(data)
    except Exception:
        return None
    return error if isinstance(error, Exception) else None
