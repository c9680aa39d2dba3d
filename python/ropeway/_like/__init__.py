"""Arrays of a framework over the memory of ours: one small module for each framework.

Each is loaded, and its framework imported, only when it is asked for by name.
"""

import importlib
from typing import Any

from ropeway._extent import address
from ropeway._views import AnyArray

FRAMEWORKS = ("torch", "jax", "tensorflow", "mxnet", "cupy", "onnxruntime", "pyarrow")


def asarray(x: AnyArray, *, like: str) -> Any:
    """Gives an array to a framework, at the same address.

    The slot stays where it is until the framework has let go of the memory, which may be later
    than the array's last name, as engines compute when they like. `like` names the framework:
    "torch", "jax", "tensorflow", "mxnet", "cupy" (which copies to its device), "onnxruntime" or
    "pyarrow".

    Raises ValueError for other names, ImportError if the framework isn't there, BufferError for
    what it can't take as it is; the text says what works instead.
    """
    if like not in FRAMEWORKS:
        raise ValueError(f"like must be one of {', '.join(FRAMEWORKS)}; found {like!r}")
    module = importlib.import_module(f"{__name__}.{like}")
    try:
        return module.asarray(x)
    except (RuntimeError, TypeError, ValueError) as error:
        raise BufferError(
            f"{like} can't take this array of dtype {x.dtype}, shape {x.shape}: {error}"
        ) from error


def refuse_read_only(x: AnyArray, framework: str) -> None:
    """Raises BufferError for a read-only array, which `framework` would let be written."""
    if not x.flags.writeable:
        raise BufferError(
            f"{framework} has no read-only arrays and would write through this one: take the slot "
            "with pool.take(private=True), whose arrays may be written and reach nobody, or with "
            "pool.take(write=True), exclusively; or give it x.copy()"
        )


def refuse_unaligned(x: AnyArray, framework: str) -> None:
    """Raises BufferError for memory that doesn't begin at a multiple of 64 bytes."""
    behind = address(x) % 64
    if x.size and behind:
        raise BufferError(
            f"{framework} takes memory from a multiple of 64 bytes on, and this array begins "
            f"{behind} bytes behind one: give it whole rows, or rw.share(x), a copy that is aligned"
        )


def refuse_dtypes(x: AnyArray, framework: str, names: tuple[str, ...]) -> None:
    """Raises BufferError for dtypes that `framework` has no type for."""
    if x.dtype.name in names:
        raise BufferError(
            f"{framework} doesn't take dtype {x.dtype.name} by DLPack: convert it, x.astype(...)"
        )
