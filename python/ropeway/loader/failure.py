"""An exception on its way from a worker to the loader."""

import functools
import importlib
import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from ropeway._errors import OutOfMemory, WorkerError

_SHOWN_KEYS = 8


@dataclass(frozen=True)
class Failure:
    """What a worker has to say about an exception."""

    kind: str
    """Name of the exception's type."""
    message: str
    story: str
    """The worker's traceback, as text."""
    what: str
    """What it was raised for: the sample, or those of the batch if it wasn't a single one."""
    worker: int
    pid: int
    pickled: bytes | None
    """The exception itself, if it is an ordinary one."""
    memory: bool = False
    """Whether it was the batch's memory that was short."""

    def text(self) -> str:
        """All of it, for people."""
        return (
            f"worker {self.worker} (process {self.pid}) raised {self.kind} for "
            f"{self.what}: {self.message}\n\n{self.story.rstrip()}"
        )

    def throw(self) -> NoReturn:
        """Raises the exception, with the worker's story as its cause."""
        cause = WorkerError(self.text())
        error = None if self.pickled is None else _unpickled(self.pickled)
        if error is None:
            raise cause
        raise error from cause


class _Bare(NamedTuple):
    """An exception that pickle can't make again: its type's name, and what of it can travel."""

    module: str
    name: str
    arguments: tuple[Any, ...]
    attributes: dict[str, Any]

    @classmethod
    def of(cls, error: Exception) -> "_Bare | None":
        """What can travel of it; None if that doesn't say the same any more."""
        kind = type(error)
        arguments = tuple(x if _travels(x) else repr(x) for x in error.args)
        attributes = {name: x for name, x in vars(error).items() if _travels(x)}
        bare = cls(kind.__module__, kind.__qualname__, arguments, attributes)
        return bare if str(bare.made(kind)) == str(error) else None

    def made(self, kind: type[Exception]) -> Exception:
        """An exception of that type; its `__init__` isn't called."""
        error = kind.__new__(kind, *self.arguments)
        error.args = self.arguments
        vars(error).update(self.attributes)
        return error

    def found(self) -> Exception:
        """The exception, of the type that has this name here."""
        module = importlib.import_module(self.module)
        return self.made(functools.reduce(getattr, self.name.split("."), module))  # type: ignore[arg-type]


def failure(error: BaseException, what: str, worker: int, pid: int) -> Failure:
    """Describes an exception; nothing of it is kept."""
    import traceback  # rarely needed, and every worker imports this module

    story = "".join(traceback.format_exception(error))
    return Failure(
        type(error).__qualname__,
        _message(error),
        story,
        what,
        worker,
        pid,
        _pickled(error),
        isinstance(error, OutOfMemory),
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
    except BaseException as second:
        return f"(its message can't be had: {type(second).__name__})"


def _pickled(error: BaseException) -> bytes | None:
    """The exception as bytes, if the loader can raise it: those that end loops or programs can't.

    It is made again here, as many a class pickles but can't be unpickled.
    """
    if not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration):
        return None
    try:
        data = pickle.dumps(error, protocol=5)
        if type(pickle.loads(data)) is type(error):
            return data
    except Exception:
        pass
    try:
        return pickle.dumps(_Bare.of(error), protocol=5)
    except Exception:
        return None


def _travels(thing: Any) -> bool:
    """Whether something can be pickled and made again."""
    try:
        pickle.loads(pickle.dumps(thing, protocol=5))
    except Exception:
        return False
    return True


def _unpickled(data: bytes) -> Exception | None:
    try:
        error = pickle.loads(data)
        if isinstance(error, _Bare):
            error = error.found()
    except Exception:
        return None
    return error if isinstance(error, Exception) else None
