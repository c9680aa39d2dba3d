"""The small, JSON-like value that travels with a slot (`slot.meta`)."""

import json
from typing import Any

import numpy as np

from ropeway._errors import Incompatible


class _Unfit(Exception):
    """What can't be kept, and the way to it, innermost key first."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path: list[object] = []


def encode(value: Any) -> bytes:
    """Writes None, bool, int, float, str, and lists and dicts (with str keys) of them.

    Tuples become lists, NumPy's scalars Python's; NaN and the infinities are kept. Raises
    TypeError, naming the way to it, for anything else, ValueError for what is nested too deeply.
    """
    try:
        return json.dumps(_plain(value), separators=(",", ":")).encode()
    except _Unfit as unfit:
        way = "".join(f"[{key!r}]" for key in reversed(unfit.path))
        raise TypeError(f"slot.meta{way} {unfit}") from None
    except RecursionError:
        raise ValueError("slot.meta is nested too deeply, or holds itself") from None


def decode(data: bytes) -> Any:
    """Reads what `encode` wrote; no bytes at all are None.

    Raises Incompatible for anything else.
    """
    try:
        return json.loads(data) if data else None
    except (ValueError, RecursionError) as error:
        raise Incompatible(f"slot.meta: {len(data)} bytes that aren't metadata: {error}") from None


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.bool_() | np.integer() | np.floating():
            return _scalar(value)
        case list() | tuple():
            return [_inner(i, item) for i, item in enumerate(value)]
        case dict():
            return {_key(key): _inner(key, item) for key, item in value.items()}
        case np.ndarray():
            raise _Unfit(f"is an array of shape {value.shape}; put it into a field of the slot")
        case _:
            raise _Unfit(
                f"is of type {type(value).__qualname__}; it can be None, bool, int, float, str, "
                "or a list or dict of them"
            )


def _scalar(value: "np.bool_ | np.integer[Any] | np.floating[Any]") -> bool | int | float:
    if isinstance(value, np.bool_):
        return bool(value)
    return int(value) if isinstance(value, np.integer) else float(value)


def _inner(key: object, value: Any) -> Any:
    try:
        return _plain(value)
    except _Unfit as unfit:
        unfit.path.append(key)
        raise


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    raise _Unfit(f"has the key {key!r} of type {type(key).__qualname__}; a key must be a str")
