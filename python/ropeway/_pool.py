"""The pool of slots, under the names that people use."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

import numpy.typing as npt

from ropeway import _arrays, _core, _layout, _views
from ropeway._errors import Closed, Incompatible, NoSuch, PeerDied

if TYPE_CHECKING:
    from ropeway import _status

FieldLike = tuple[_layout.ShapeLike, npt.DTypeLike]
"""Shape and dtype of one array of each slot."""

_Schema = list[tuple[str, str, int, tuple[int, ...]]]
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Pool(_core.Pool):
    """Slots in shared memory that processes fill, hand on and take.

    A pool pickles as a handle. Its memory goes when the last process has let go of it.
    """

    def __new__(
        cls,
        slots: SupportsIndex,
        shape: _layout.ShapeLike | None = None,
        dtype: npt.DTypeLike | None = None,
        *,
        fields: Mapping[str, FieldLike] | None = None,
        stages: Sequence[str] = ("fill", "use"),
        name: str | None = None,
        memory_limit: int | None = None,
        max_slots: int | None = None,
        repeatable: Sequence[str] = (),
        redeliveries: SupportsIndex = 3,
    ) -> Self:
        """Makes a pool.

        With `shape` and `dtype` each slot has one array (`slot.array`); with `fields`, a mapping
        of names to (shape, dtype), it has those; with neither, whoever fills a slot adds arrays
        to it (`slot.add`). The number of slots is firm unless `max_slots` allows more. `name`
        lets other processes of this user find the pool by `Pool.open`. `memory_limit` bounds the
        bytes of all slots together.

        A slot whose reader has died is delivered again, up to `redeliveries` times (always from 8
        on); one that was taken to write isn't, unless its stage is `repeatable`: then the work of
        that stage can be done again from what was published to it.

        Raises TypeError and ValueError for arguments that can't be.
        """
        least = _layout.count("slots", slots, 1)
        names = _stages(stages)
        core = _core.create(
            least,
            _schema(shape, dtype, fields),
            names,
            _name(name),
            None if memory_limit is None else _layout.count("memory_limit", memory_limit, 1),
            None if max_slots is None else _layout.count("max_slots", max_slots, least),
            None,
            _repeatable(repeatable, names),
            min(_layout.count("redeliveries", redeliveries, 0), 255),
        )
        return super().__new__(cls, core)

    @classmethod
    def open(cls, name: str) -> Self:
        """Finds the pool of that name that a process of this user has made.

        Raises `Gone` if there is none.
        """
        return _core.Pool.__new__(cls, _core.find(_layout.text("the name of a pool", name)))

    def __reduce__(self) -> Any:
        return _attach, (type(self), self.handle)

    def __iter__(self) -> "Iterator[_core.ReadLease]":
        """Takes slots until the pool is closed and drained.

        Each is released when the next is asked for, which raises `InUse` if views of it live.
        """
        slot = None
        while True:
            if slot is not None and not slot.ended:
                slot.release()
            try:
                slot = self.take()
            except PeerDied:
                raise
            except Closed:
                return
            yield slot

    def ring(self, field: str | None = None) -> _views.AnyArray:
        """The arrays of one field of all slots as one contiguous array, slots along axis 0.

        The field may be left out if there is only one. Whoever uses the ring must know which
        slots it holds. Raises Incompatible for pools whose slots aren't packed (each field must
        take a multiple of 64 bytes), NoSuch (a KeyError) for a field that there isn't.
        """
        schema = self.schema or []
        names = [name for name, *_ in schema]
        if field is None and len(names) == 1:
            (field,) = names
        if field not in names:
            raise NoSuch(f"pool {self.id[:8]}: no field {field!r}; it has {names}")
        if not self.packed:
            raise Incompatible(_why_not_packed(schema))
        _, text, _, shape = schema[names.index(field)]
        export, slots = self.ring_export(field)
        return _arrays.view(export, text, (slots, *shape))

    def status(self) -> "_status.PoolStatus":
        """Says what the pool looks like now: slots, members, losses, memory."""
        from ropeway import _status

        return _status.read(self.snapshot())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the pool."""
        self.close()

    def __repr__(self) -> str:
        name = self.name or self.id[:8]
        fields = "".join(
            f", {field}: {text} {shape}" for field, text, _, shape in self.schema or []
        )
        state = "closed" if self.closed else "open"
        return f"<ropeway.Pool {name!r}, {state}, {' -> '.join(self.stages)}{fields}>"


def _attach(cls: type[Pool], handle: bytes) -> Pool:
    return _core.Pool.__new__(cls, _core.attach(handle))


def _schema(
    shape: _layout.ShapeLike | None,
    dtype: npt.DTypeLike | None,
    fields: Mapping[str, FieldLike] | None,
) -> _Schema | None:
    if fields is None:
        if shape is None and dtype is None:
            return None
        if shape is None or dtype is None:
            raise TypeError("a pool takes shape and dtype together, found only one of them")
        return [("array", *_layout.describe(shape, dtype))]
    if shape is not None or dtype is not None:
        raise TypeError("a pool takes either shape and dtype, or fields, found both")
    if not isinstance(fields, Mapping):
        raise TypeError(f"fields must map names to (shape, dtype), found {fields!r}")
    if not fields:
        raise ValueError("fields must name at least one array; leave it out for slots without")
    return [_field(name, spec) for name, spec in fields.items()]


def _field(name: str, spec: FieldLike) -> tuple[str, str, int, tuple[int, ...]]:
    _layout.text("the name of a field", name)
    if not isinstance(spec, tuple) or len(spec) != 2:
        raise TypeError(f"field {name!r} must be a tuple (shape, dtype), found {spec!r}")
    shape, dtype = spec
    try:
        return name, *_layout.describe(shape, dtype)
    except (TypeError, ValueError) as error:
        raise type(error)(f"field {name!r}: {error}") from None


def _stages(stages: Sequence[str]) -> tuple[str, ...]:
    if isinstance(stages, str) or not isinstance(stages, Sequence):
        raise TypeError(f"stages must be a tuple of names, found {stages!r}")
    names = tuple(_layout.text("the name of a stage", name) for name in stages)
    if not 2 <= len(names) <= 16 or len(set(names)) < len(names):
        raise ValueError(f"stages must be 2 to 16 different names, found {names}")
    return names


def _repeatable(repeatable: Sequence[str], stages: tuple[str, ...]) -> list[int]:
    middle = stages[1:-1]
    if isinstance(repeatable, str) or not set(repeatable) <= set(middle):
        raise ValueError(
            f"repeatable must be a tuple of middle stages {middle}, found {repeatable!r}"
        )
    return [stages.index(name) for name in repeatable]


def _name(name: str | None) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, found {name!r}")
    if not _NAME.fullmatch(name):
        raise ValueError(f"name must be 1 to 64 letters, digits, '_', '.' or '-', found {name!r}")
    return name


def _why_not_packed(schema: _Schema) -> str:
    """Names the first field that can't be packed, and lengths of its first axis that could."""
    for name, _, itemsize, shape in schema:
        size = itemsize * math.prod(shape)
        if size % 64 == 0 and size > 0:
            continue
        why = f"field {name!r} takes {size} bytes of each slot, and only multiples of 64 are packed"
        if not shape or not (row := itemsize * math.prod(shape[1:])):
            return why
        step = 64 // math.gcd(64, row)
        below, above = shape[0] // step * step, -(-(shape[0] + 1) // step) * step
        fits = f"{below} or {above}" if below else str(above)
        return f"{why}; with {fits} instead of {shape[0]} along the first axis they would be"
    return "the slots of this pool aren't packed"
