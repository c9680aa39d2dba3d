"""The dataset on its way to the workers: pickled once, into shared memory, read by all."""

import os
import pickle
import sys
import types
from typing import Any, NamedTuple

import numpy as np

import ropeway._arrays as arrays
from ropeway.loader.surroundings import folder

_IMPORTABLE = "Define both at the top level of a module, or install cloudpickle"
_OPENED_LATER = "Open files, locks and connections in the worker, when a sample is first asked for"


class Payload(NamedTuple):
    """What workers make dataset and collate function of."""

    data: arrays.Array
    modules: tuple[str, ...]
    """Modules that it pays to import before workers are forked."""
    main: dict[str, Any] | None
    """How to get at the main module, if the pickle refers to it."""

    def load(self) -> Any:
        """Makes the objects again."""
        data: Any = self.data
        return pickle.loads(memoryview(data))


def payload(dataset: Any, collate: Any, method: str) -> Payload:
    """Pickles a dataset and a collate function for workers.

    Raises TypeError, naming what can't be pickled, why, and what to do.
    """
    data, main = _pickled((dataset, collate), dataset, method)
    shared = arrays.share(np.frombuffer(data, "u1"))
    arrays.claim(shared)  # the loader holds it until its workers have ended
    return Payload(shared, _modules(dataset, collate), main)


def _pickled(things: Any, dataset: Any, method: str) -> tuple[bytes, dict[str, Any] | None]:
    reason: Exception | None = None
    try:
        data = pickle.dumps(things, protocol=5)
        if b"__main__" not in data and b"__mp_main__" not in data:
            return data, None
        main = main_module()
        if main is not None:
            return data, main
    except Exception as error:
        reason = error
    try:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise TypeError(_refusal(dataset, method, reason, _IMPORTABLE)) from reason
    try:
        return cloudpickle.dumps(things, protocol=5), None
    except Exception as error:
        raise TypeError(_refusal(dataset, method, error, _OPENED_LATER)) from error


def main_module() -> dict[str, Any] | None:
    """How a new process finds the main module; None if it can't.

    A notebook has no file, and multiprocessing runs no ``__main__.py`` of a package, folder or
    zip archive again.
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name.rpartition(".")[2] == "__main__":
        return None
    where: dict[str, Any] = {"sys_path": list(sys.path), "sys_argv": sys.argv}
    if (here := folder()) is not None:
        where["dir"] = here
    if spec is not None:
        return {**where, "init_main_from_name": spec.name}
    path = getattr(main, "__file__", None)
    if path is None or not os.path.exists(path):
        return None
    return {**where, "init_main_from_path": os.path.abspath(path)}


def _refusal(dataset: Any, method: str, reason: Exception | None, advice: str) -> str:
    kind = type(dataset)
    why = (
        f"{type(reason).__name__}: {reason}"
        if reason is not None
        else "it is defined in a __main__ module that a new process can't import"
    )
    how = "by default" if method == "zygote" else f"by {method!r}"
    return (
        f"workers started {how} can't be given the dataset ({kind.__module__}.{kind.__qualname__}) "
        f'or its collate function: {why}. {advice}, or pass start_method="fork" or workers=0'
    )


def _modules(*things: Any) -> tuple[str, ...]:
    """Modules of what can be seen of a dataset without pickling it."""
    found: dict[str, None] = {}
    for thing in things:
        inner = getattr(thing, "__dict__", {})
        for item in (thing, *(inner.values() if isinstance(inner, dict) else ())):
            named = isinstance(item, types.FunctionType | type)
            module = getattr(item if named else type(item), "__module__", None)
            if isinstance(module, str) and module not in ("builtins", "__main__"):
                found[module] = None
    return tuple(found)
