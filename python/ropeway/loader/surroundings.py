"""What a worker finds around it, as it is for the process that it works for when it starts."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_HASHES = "PYTHONHASHSEED"
_hash_seed = str(int.from_bytes(os.urandom(4)))
"""Sets of strings have an order that goes with it: for all workers, that is to be the same."""


class Surroundings(NamedTuple):
    """Environment, arguments, folder and file mode of a process."""

    environment: dict[str, str]
    arguments: list[str]
    folder: str | None
    umask: int | None

    @classmethod
    def now(cls) -> "Surroundings":
        """Those of this process."""
        return cls(dict(os.environ), sys.argv, folder(), _umask())

    def take_on(self) -> None:
        """Makes them those of this process, which keeps its limits of threads if none are set."""
        for name in os.environ.keys() - self.environment.keys() - set(_THREADS):
            del os.environ[name]
        os.environ.update(self.environment)
        sys.argv = self.arguments
        if self.umask is not None:
            os.umask(self.umask)
        if self.folder is not None:
            with contextlib.suppress(OSError):
                os.chdir(self.folder)


def folder() -> str | None:
    """The current folder; None if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def of_a_zygote() -> dict[str, str]:
    """The environment of a process that forks workers."""
    limits = dict.fromkeys(_THREADS, "1")
    return {_HASHES: _hash_seed, **limits, **os.environ}


@contextlib.contextmanager
def equal_hashes() -> Iterator[None]:
    """Lets processes that are started meanwhile have the same order of sets, as all workers do."""
    if _HASHES in os.environ:
        yield
        return
    os.environ[_HASHES] = _hash_seed
    try:
        yield
    finally:
        os.environ.pop(_HASHES, None)


def _umask() -> int | None:
    """The file mode mask, which can't be asked for without setting it, but looked up."""
    with contextlib.suppress(OSError), open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return None
