"""The structure of a sample: its arrays go to rows of a batch, and come out in the same structure.

A structure is a tree. Its leaves are arrays (scalars are arrays without axes), `None`, and
whatever else a sample holds (strings, bytes, objects), which a batch has as a list. Its nodes
are dicts, lists, tuples, named tuples and dataclasses, and keep their types.
"""

import copy
import dataclasses
import sys
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ropeway._errors import Invalid
from ropeway._sources import device_of, is_masked, source
from ropeway._views import AnyArray

SCALARS: dict[type, np.dtype[Any]] = {
    bool: np.dtype(np.bool_),
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}
"""The numbers that Python has, and their dtypes."""


ALIKE = 'make them alike in the dataset, or pass collate="list" or a function of your own'
AN_ARRAY = "make it an array in the dataset, or pass a collate function of your own"


class Misfit(Invalid):
    """Raised for a sample that doesn't have the structure of the others in its batch."""

    def __init__(self, expected: str, found: str, remedy: str = ALIKE) -> None:
        super().__init__(expected, found, remedy)
        self.path: list[object] = []
        self.expected, self.found, self.remedy = expected, found, remedy

    @property
    def field(self) -> str:
        """The way to what doesn't fit."""
        return "".join(f"[{key!r}]" for key in reversed(self.path))

    def __str__(self) -> str:
        what = f"field {self.field}" if self.path else "the sample"
        return (
            f"{what} is {self.found}, where the first sample of its batch has {self.expected}: "
            f"{self.remedy}"
        )


class ArrayLeaf(NamedTuple):
    """An array or a scalar."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def flatten(self, value: Any, arrays: list[Any], others: list[Any]) -> None:
        """Appends the array, which must have this shape and dtype."""
        array: AnyArray | None
        if type(value) is np.ndarray:
            array = value
        elif SCALARS.get(type(value)) is self.dtype and not self.shape:
            arrays.append(value)
            return
        else:
            array = as_array(value)
        if array is None:
            raise Misfit(_describe(self), _kind(value))
        if array.shape != self.shape or array.dtype != self.dtype:
            raise Misfit(_describe(self), _describe(ArrayLeaf(array.shape, array.dtype)))
        arrays.append(array)

    def build(self, arrays: "Sequence[AnyArray]", others: Any) -> Any:
        """The next array."""
        return next(arrays)  # type: ignore[call-overload]


class OtherLeaf(NamedTuple):
    """A string, bytes or any other object."""

    kind: str

    def flatten(self, value: Any, arrays: list[Any], others: list[Any]) -> None:
        """Appends the object."""
        if value is not None and as_array(value) is not None:
            raise Misfit(self.kind, _kind(value))
        others.append(value)

    def build(self, arrays: Any, others: Any) -> Any:
        """The next list of objects."""
        return next(others)


class NoneLeaf(NamedTuple):
    """None in every sample, None in the batch."""

    def flatten(self, value: Any, arrays: list[Any], others: list[Any]) -> None:
        """Checks that it is None."""
        if value is not None:
            raise Misfit("None", _kind(value))

    def build(self, arrays: Any, others: Any) -> Any:
        """None."""
        return None


class MappingNode(NamedTuple):
    """A dict or another mutable mapping; `empty` is one of its type without items."""

    empty: Any
    children: dict[Any, Any]

    def flatten(self, value: Any, arrays: list[Any], others: list[Any]) -> None:
        """Appends the leaves, key by key."""
        pairs = zip(self.children.items(), self.items(value), strict=True)
        for (key, child), item in pairs:
            try:
                child.flatten(item, arrays, others)
            except Misfit as misfit:
                misfit.path.append(key)
                raise

    def items(self, value: Any) -> list[Any]:
        """What a mapping of this type has under these keys; raises `Misfit` for others."""
        if type(value) is not type(self.empty):
            raise Misfit(type(self.empty).__name__, _kind(value))
        try:
            if len(value) == len(self.children):
                return [value[key] for key in self.children]
        except KeyError:
            pass
        raise Misfit(f"keys {list(self.children)}", f"a {_kind(value)} with keys {list(value)}")

    def build(self, arrays: Any, others: Any) -> Any:
        """The mapping of what the children build."""
        items = {key: child.build(arrays, others) for key, child in self.children.items()}
        if type(self.empty) is dict:
            return items
        mapping = copy.copy(self.empty)
        mapping.update(items)
        return mapping


class SequenceNode(NamedTuple):
    """A list, a tuple or a named tuple."""

    kind: type
    children: tuple[Any, ...]

    def flatten(self, value: Any, arrays: list[Any], others: list[Any]) -> None:
        """Appends the leaves, item by item."""
        for number, (child, item) in enumerate(zip(self.children, self.items(value), strict=True)):
            try:
                child.flatten(item, arrays, others)
            except Misfit as misfit:
                misfit.path.append(number)
                raise

    def items(self, value: Any) -> Sequence[Any]:
        """A sequence of this type and length, else raises `Misfit`."""
        sequence: Any = value
        if type(value) is self.kind and len(sequence) == len(self.children):
            return sequence  # type: ignore[no-any-return]
        size = f"{self.kind.__name__} of length {len(self.children)}"
        if not isinstance(value, list | tuple):
            raise Misfit(size, _kind(value))
        raise Misfit(size, f"{_kind(value)} of length {len(value)}", AN_ARRAY)

    def build(self, arrays: Any, others: Any) -> Any:
        """The sequence of what the children build."""
        items = [child.build(arrays, others) for child in self.children]
        if self.kind is list:
            return items
        make = getattr(self.kind, "_make", self.kind)
        return make(items)


class DataclassNode(NamedTuple):
    """An instance of a dataclass."""

    kind: type
    children: dict[str, Any]

    def flatten(self, value: Any, arrays: list[Any], others: list[Any]) -> None:
        """Appends the leaves, field by field."""
        pairs = zip(self.children.items(), self.items(value), strict=True)
        for (name, child), item in pairs:
            try:
                child.flatten(item, arrays, others)
            except Misfit as misfit:
                misfit.path.append(name)
                raise

    def items(self, value: Any) -> list[Any]:
        """The fields of an instance of this class; raises `Misfit` for others."""
        if type(value) is not self.kind:
            raise Misfit(self.kind.__name__, _kind(value))
        return [getattr(value, name) for name in self.children]

    def build(self, arrays: Any, others: Any) -> Any:
        """An instance with what the children build; `__init__` isn't called."""
        thing: Any = object.__new__(self.kind)
        for name, child in self.children.items():
            object.__setattr__(thing, name, child.build(arrays, others))
        return thing


Node = ArrayLeaf | OtherLeaf | NoneLeaf | MappingNode | SequenceNode | DataclassNode


def structure(sample: Any) -> Node:
    """The structure of a sample."""
    if sample is None:
        return NoneLeaf()
    kind = type(sample)
    if kind in SCALARS:
        return ArrayLeaf((), SCALARS[kind])
    array = as_array(sample)
    if array is not None:
        return ArrayLeaf(array.shape, array.dtype)
    if isinstance(sample, MutableMapping):
        items = {key: structure(item) for key, item in sample.items()}
        return MappingNode({} if kind is dict else _emptied(sample), items)
    if isinstance(sample, list | tuple):
        return SequenceNode(kind, tuple(structure(item) for item in sample))
    if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        names = [field.name for field in dataclasses.fields(sample)]
        return DataclassNode(kind, {name: structure(getattr(sample, name)) for name in names})
    return OtherLeaf(_kind(sample))


def children(node: Node) -> Iterable[tuple[Any, Node]]:
    """What is below a node, by name or number."""
    if isinstance(node, MappingNode | DataclassNode):
        return node.children.items()
    return enumerate(node.children) if isinstance(node, SequenceNode) else ()


def fields(node: Node) -> list[tuple[str, ArrayLeaf]]:
    """The arrays of a structure and the ways to them, in the order of `flatten`."""
    if isinstance(node, ArrayLeaf):
        return [("", node)]
    return [
        (f"[{name!r}]{way}", leaf) for name, child in children(node) for way, leaf in fields(child)
    ]


def holds_only_arrays(node: Node | None) -> bool:
    """Whether a structure has no leaves but arrays and None."""
    if node is None or isinstance(node, OtherLeaf):
        return False
    return all(holds_only_arrays(child) for _, child in children(node))


def is_in_order(node: Node, sample: Any) -> bool:
    """Whether the mappings of a sample that fits have their keys in the structure's order."""
    if isinstance(node, ArrayLeaf | OtherLeaf | NoneLeaf):
        return True
    if isinstance(node, MappingNode) and list(sample) != list(node.children):
        return False
    pairs = zip(children(node), node.items(sample), strict=True)
    return all(is_in_order(child, item) for (_, child), item in pairs)


def as_array(value: Any) -> AnyArray | None:
    """An array over what a sample holds, None if it isn't made of numbers.

    Arrays of other frameworks count if they have DLPack and lie in the CPU's memory. Raises
    TypeError for those that lie elsewhere.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject or is_masked(value):
            return None
        return np.asarray(value)
    if isinstance(value, str | bytes | list | tuple | dict) or value is None:
        return None
    if isinstance(value, bool | int | float | complex):
        return np.asarray(value, _scalar_dtype(value))
    if isinstance(value, np.generic):
        return None if value.dtype.hasobject else np.asarray(value)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _from_framework(value)
    return None


def _scalar_dtype(value: complex) -> np.dtype[Any]:
    if isinstance(value, np.generic):  # numpy.float64 is a float
        return value.dtype
    for kind in (bool, int, float, complex):
        if isinstance(value, kind):
            return SCALARS[kind]
    raise TypeError(f"{value!r} isn't a number")


def _from_framework(value: Any) -> AnyArray:
    where = _elsewhere(value)
    if where is not None:
        raise TypeError(
            f"a sample holds a {type(value).__module__}.{type(value).__name__} on device {where}: "
            "a loader carries arrays in the CPU's memory; move it there in the dataset, or move "
            "the batch to the device after the loader"
        )
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return np.asarray(value.detach().numpy())
    return source(value, "a loader")


def _elsewhere(value: Any) -> str | None:
    """The device that an array lies on, None if its memory is the CPU's."""
    try:
        device = device_of(value)
    except BufferError:
        return str(getattr(value, "device", "unknown"))
    return None if device[0] in (1, 3) else str(device)


def _emptied(mapping: Any) -> Any:
    empty = copy.copy(mapping)
    empty.clear()
    return empty


def _kind(value: Any) -> str:
    return type(value).__name__


def _describe(leaf: ArrayLeaf) -> str:
    return f"an array of shape {leaf.shape} and dtype {leaf.dtype}"
