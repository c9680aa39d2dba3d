"""Dtypes as text, for handles and for the description of a slot.

A dtype of NumPy's own is written as `dtype.str` (``<f4``, ``<M8[ns]``), one of ml_dtypes by its
name (``bfloat16``), anything with fields or sub-arrays as JSON. Nothing is ever pickled or
evaluated, so that a text from shared memory can do no harm.
"""

import contextlib
import functools
import importlib
import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from ropeway import _core
from ropeway._errors import Incompatible

_PLAIN = re.compile(r"[<>|=]?[biufcSUVMm]\d+(\[\d*[A-Za-z]+(/\d+)?\])?")
_NAME = re.compile(r"b?(float|complex|u?int)\d+[a-z0-9_]*")


def encode(dtype: npt.DTypeLike) -> str:
    """Writes a dtype as text.

    Raises TypeError for dtypes that hold Python objects and for those of unknown packages.
    """
    dtype = np.dtype(dtype)
    if dtype.names is None and dtype.subdtype is None:
        return _plain_text(dtype)
    _refuse_objects(dtype)
    return json.dumps(_spec(dtype), separators=(",", ":"))


def decode(text: str) -> np.dtype[Any]:
    """Reads a dtype from text; ml_dtypes is imported if the text needs it.

    Raises Incompatible if the text isn't one that `encode` writes, ImportError if ml_dtypes is
    needed and missing. A structure is a new dtype each time, as its field names can be changed.
    """
    if not isinstance(text, str):
        raise _unknown(text)
    if not text.startswith(("{", "[")):
        return _decode_plain(text)
    try:
        return _dtype(json.loads(text))
    except Incompatible:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
        OverflowError,
    ) as error:
        raise _unknown(text) from error


def _spec(dtype: np.dtype[Any]) -> Any:
    """The dtype as something that JSON can hold."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [_spec(base), list(shape)]
    if dtype.names is not None:
        return _struct_spec(dtype)
    return _plain_text(dtype)


def _refuse_objects(dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise TypeError(
            f"dtype {dtype} holds Python objects (dtype object): pointers, which mean nothing in "
            "another process. Convert the array to a dtype of fixed size (numbers, 'S', 'U', "
            "datetime64), or put it on a ropeway.Queue, which pickles such arrays"
        )


@functools.lru_cache(maxsize=256)
def _plain_text(dtype: np.dtype[Any]) -> str:
    _refuse_objects(dtype)
    if dtype.type.__module__ == "ml_dtypes" and dtype.isnative:
        _teach_numpy(dtype)
        return dtype.name
    if dtype.isbuiltin != 2 and _PLAIN.fullmatch(dtype.str):  # 2: registered by a package
        return dtype.str
    raise TypeError(
        f"dtype {dtype} (type {dtype.type.__module__}.{dtype.type.__name__}) isn't one of NumPy's "
        "own or of ml_dtypes in native byte order: view the array as unsigned integers instead"
    )


def _struct_spec(dtype: np.dtype[Any]) -> dict[str, Any]:
    names = dtype.names or ()
    fields = [dtype.fields[name] for name in names] if dtype.fields else []
    titles = [field[2] if len(field) == 3 else None for field in fields]
    for title in titles:
        if not isinstance(title, str | None):
            raise TypeError(f"dtype {dtype}: a title must be a str, found {title!r}")
    spec = {
        "names": list(names),
        "formats": [_spec(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "itemsize": dtype.itemsize,
    }
    if any(title is not None for title in titles):
        spec["titles"] = titles
    if dtype.isalignedstruct:
        spec["aligned"] = True
    if dtype.type is np.record:
        spec["type"] = "record"
    elif dtype.type is not np.void:
        spec["type"] = dtype.str
    return spec


def _dtype(spec: Any) -> np.dtype[Any]:
    """The dtype of a parsed spec; whatever is wrong with it raises some error."""
    if isinstance(spec, str):
        return _decode_plain(spec)
    if isinstance(spec, list):
        base, shape = spec
        return np.dtype((_dtype(base), tuple(shape)))
    kind, aligned = spec.pop("type", None), spec.pop("aligned", False)
    spec["formats"] = [_dtype(part) for part in spec["formats"]]
    dtype = np.dtype(spec, align=aligned)
    if kind == "record":
        return np.dtype((np.record, dtype))
    return dtype if kind is None else np.dtype((_decode_plain(kind), spec))


@functools.lru_cache(maxsize=256)
def _decode_plain(text: str) -> np.dtype[Any]:
    if _PLAIN.fullmatch(text):
        try:
            return np.dtype(text)
        except TypeError as error:
            raise _unknown(text) from error
    if not _NAME.fullmatch(text):
        raise _unknown(text)
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError as error:
        raise ImportError(
            f"an array of dtype {text} arrived, which needs the package ml_dtypes: install it"
        ) from error
    scalar = getattr(ml_dtypes, text, None)
    if not isinstance(scalar, type):
        raise _unknown(text)
    dtype = np.dtype(scalar)
    _teach_numpy(dtype)
    return dtype


def _teach_numpy(dtype: np.dtype[Any]) -> None:
    """Tells NumPy DLPack's code of a dtype of ml_dtypes, so that `np.from_dlpack` takes it.

    NumPy can be told from 2.5 on; before, it refuses such capsules, and other frameworks don't.
    """
    register = getattr(np.dtypes, "register_dlpack_dtype", None)
    if register is not None:
        # Raised for dtypes without a code, and if NumPy knows of another dtype for it.
        with contextlib.suppress(BufferError, ValueError):
            register(_core.dlpack_code(dtype.name), dtype)


def _unknown(text: str) -> Incompatible:
    return Incompatible(f"{text!r} isn't the text of a dtype that this version can read")
