"""Reads the samples of a batch and puts them where the batch lies."""

import itertools
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ropeway._errors import Invalid
from ropeway.loader.info import WorkerInfo
from ropeway.loader.layout import Block, Layout, put
from ropeway.loader.order import tell_epoch
from ropeway.loader.record import Kind, Plan
from ropeway.loader.roster import Progress
from ropeway.loader.seeds import Seeds
from ropeway.loader.structure import (
    ArrayLeaf,
    Misfit,
    Node,
    NoneLeaf,
    OtherLeaf,
    children,
    holds_only_arrays,
    structure,
)

Collate = Callable[[list[Any]], Any]
_BRIEF = 0.02
"""Seconds of work below which a batch is done again, should one of its samples draw: looking at
each costs more where samples take no time, as what is looked at has left the cache by then."""


class Slot(Protocol):
    """Where a batch goes."""

    def memory(self, nbytes: int) -> Any:
        """Memory for the rows, empty so far."""

    def keep(self, thing: Any) -> bytes:
        """Puts an object in; returns what it takes to read it."""

    def lists(self, columns: list[list[Any]]) -> bytes:
        """Puts lists of what isn't an array in; returns what it takes to read them."""


class Skip(Exception):
    """Raised when nobody wants the batch any more."""


class Result:
    """What came of a plan."""

    def __init__(
        self, kind: Kind, layout: Layout | None = None, rest: bytes = b"", samples: int = 0
    ) -> None:
        self.kind, self.layout, self.rest, self.samples = kind, layout, rest, samples


class Fetcher:
    """Reads samples of a dataset, in a worker or in the caller's process."""

    def __init__(self, dataset: Any, collate: Any, info: WorkerInfo, seeds: Seeds) -> None:
        self._dataset, self._collate = dataset, collate
        self._info, self._seeds = info, seeds
        self._epoch: int | None = None
        self._node: Node | None = None
        self._in_rows = False
        """Whether samples can be written into rows, as they hold nothing but arrays."""
        self._layouts: dict[int, Layout] = {}
        self._many = getattr(dataset, "__getitems__", None)
        self._into = getattr(dataset, "__getitem_into__", None)
        self._stream: Stream | None = None
        self._looks_often = True
        """Whether each sample is looked at for random numbers it has drawn, not each batch."""

    def fill(self, plan: Plan, slot: Slot, progress: Progress) -> Result:
        """Does what a plan says; raises `Skip` if it isn't wanted any more."""
        self._tell_epoch(plan.epoch)
        if plan.keys is None:
            return self._fill_from_stream(plan, slot, progress)
        if not plan.keys:
            raise Invalid("the batch_sampler gave a batch without keys: there is no batch of none")
        if self._collate is not None:
            samples = self._samples(plan, progress)
            return self._collated(samples, slot, progress)
        if self._many is not None:
            return self._fill_from(
                iter(self._at_once(plan, progress)), len(plan.keys), slot, progress
            )
        return self._fill_rows(plan, slot, progress)

    def fill_part(
        self, plan: Plan, layout: Layout, memory: Any, slot: Slot, progress: Progress
    ) -> Result:
        """Fills some rows of a batch; raises `Skip` if it isn't wanted any more."""
        self._tell_epoch(plan.epoch)
        keys, first = plan.keys or [], plan.part.first if plan.part is not None else 0
        if self._into is not None and holds_only_arrays(layout.node):
            rows = [array[first : first + len(keys)] for array in layout.arrays(memory)]
            self._write_into(plan, layout, rows, progress)
            return Result(Kind.BATCH, layout, b"", len(keys))
        try:
            blocks = layout.blocks(memory)
            others = [
                _write(layout, blocks, place, sample)
                for place, sample in enumerate(self._each(plan, progress), first)
            ]
        except Misfit:
            return Result(Kind.MISFIT)
        return Result(Kind.BATCH, layout, self._kept(others, slot, progress), len(keys))

    def _tell_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch = self._info.epoch = epoch
            self._stream = None
            tell_epoch(self._dataset, epoch)

    # ---- one sample after the other ---------------------------------------------------------

    def _fill_rows(self, plan: Plan, slot: Slot, progress: Progress) -> Result:
        if self._into is not None and self._in_rows:
            return self._fill_into(plan, slot, progress)
        keys = plan.keys or []
        samples = self._each(plan, progress)
        if self._into is None or self._node is not None:
            return self._fill_from(samples, len(keys), slot, progress)
        first = next(samples)
        self._settle(structure(first))
        if self._in_rows:
            return self._fill_into(plan, slot, progress)
        return self._fill_from(itertools.chain((first,), samples), len(keys), slot, progress)

    def _each(self, plan: Plan, progress: Progress) -> Iterator[Any]:
        for place, key in enumerate(plan.keys or []):
            if not progress.wanted[0]:
                raise Skip
            progress.position[0] = place
            yield self._sample(plan.epoch, key)

    def _sample(self, epoch: int, key: Any) -> Any:
        self._seeds.begin(epoch, key)
        sample = self._dataset[key]
        if self._seeds.begin_again():
            sample = self._dataset[key]
        return sample

    def _fill_into(self, plan: Plan, slot: Slot, progress: Progress) -> Result:
        """Lets the dataset write its samples into their rows: all, also one read already."""
        keys = plan.keys or []
        layout = self._layout(len(keys))
        arrays = layout.arrays(slot.memory(layout.nbytes))
        self._write_into(plan, layout, arrays, progress)
        return Result(Kind.BATCH, layout, b"", len(keys))

    def _write_into(
        self, plan: Plan, layout: Layout, arrays: list[Any], progress: Progress
    ) -> None:
        into: Any = self._into
        seeds, keys, (position, wanted) = self._seeds, plan.keys or [], progress
        seeds.epoch = plan.epoch
        began, again = time.monotonic(), True
        while again:
            often, eager = self._looks_often, seeds.is_eager
            rows = layout.rows_of(arrays, len(keys))
            for place, (key, out) in enumerate(zip(keys, rows, strict=True)):
                if not wanted[0]:
                    raise Skip
                position[0], seeds.key = place, key
                if eager:
                    seeds.seed()
                into(key, out)
                if often and seeds.begin_again():
                    into(key, out)
                    eager = seeds.is_eager
            again = not often and seeds.begin_again()
        self._looks_often = time.monotonic() - began > _BRIEF

    # ---- all at once ------------------------------------------------------------------------

    def _samples(self, plan: Plan, progress: Progress) -> list[Any]:
        return self._at_once(plan, progress) if self._many else list(self._each(plan, progress))

    def _at_once(self, plan: Plan, progress: Progress) -> list[Any]:
        keys = plan.keys or []
        progress.position[0] = len(keys)
        self._seeds.begin(plan.epoch, keys[0])
        samples = list(self._many(keys))  # type: ignore[misc]
        if self._seeds.begin_again():
            samples = list(self._many(keys))  # type: ignore[misc]
        if len(samples) != len(keys):
            raise Invalid(f"__getitems__ gave {len(samples)} samples for {len(keys)} keys")
        return samples

    # ---- a stream of samples ----------------------------------------------------------------

    def _fill_from_stream(self, plan: Plan, slot: Slot, progress: Progress) -> Result:
        stream = self._stream
        if stream is None or stream.position != plan.start or stream.run != plan.run:
            self._seeds.begin(plan.epoch, ~plan.stream)
            self._seeds.seed()
            stream = self._stream = Stream(self._dataset, self._info, plan)
        samples = stream.part(plan.start, plan.size)
        if not samples:
            return Result(Kind.END)
        if self._collate is not None:
            return self._collated(samples, slot, progress)
        return self._fill_from(iter(samples), len(samples), slot, progress)

    # ---- into the slot ----------------------------------------------------------------------

    def _fill_from(
        self, samples: Iterator[Any], rows: int, slot: Slot, progress: Progress
    ) -> Result:
        """Writes samples to their rows; the first one says what they look like."""
        layout, values, rest = self._first(next(samples), rows)
        blocks = layout.blocks(slot.memory(layout.nbytes))
        _put(layout, blocks, 0, values)
        others = [rest]
        others += [_write(layout, blocks, place, sample) for place, sample in enumerate(samples, 1)]
        return Result(Kind.BATCH, layout, self._kept(others, slot, progress), rows)

    def _collated(self, samples: list[Any], slot: Slot, progress: Progress) -> Result:
        progress.position[0] = len(samples)
        batch = self._collate(samples)
        if self._seeds.begin_again():
            batch = self._collate(samples)
        rest = slot.keep(batch)
        return Result(Kind.MESSAGE, None, rest, len(samples))

    def _first(self, sample: Any, rows: int) -> tuple[Layout, list[Any], list[Any]]:
        """The layout by which the others of the batch are to go, and the leaves of the first."""
        values: list[Any] = []
        others: list[Any] = []
        if self._node is not None:
            try:
                layout = self._layout(rows)
                if layout.flatten(sample, values, others) or layout.is_in_order(sample):
                    return layout, values, others
            except Misfit:
                pass
            values, others = [], []
        self._settle(structure(sample))
        layout = self._layout(rows)
        layout.flatten(sample, values, others)
        return layout, values, others

    def _kept(self, others: list[list[Any]], slot: Slot, progress: Progress) -> bytes:
        """What isn't an array in the samples, as lists for the batch."""
        columns = [list(column) for column in zip(*others, strict=True)]
        if not columns:
            return b""
        try:
            return slot.lists(columns)
        except Exception:
            for place, row in enumerate(others):  # which one is it that can't be pickled?
                progress.position[0] = place
                pickle.dumps(row, protocol=5)
            raise

    def _settle(self, node: Node) -> None:
        self._node, self._in_rows = node, holds_only_arrays(node)
        self._layouts.clear()

    def _layout(self, rows: int) -> Layout:
        layout = self._layouts.get(rows)
        if layout is None:
            layout = self._layouts[rows] = Layout(self._node, rows)  # type: ignore[arg-type]
        return layout


class Stream:
    """A worker's part of an iterable dataset.

    The worker with number i keeps every n-th sample beginning with the i-th, of n workers, unless
    the dataset has asked `worker_info()` for them: then it shards itself.
    """

    def __init__(self, dataset: Any, info: WorkerInfo, plan: Plan) -> None:
        self.run, self.position = plan.run, 0
        info.sharded = False
        self._samples = iter(dataset)
        self._info, self._part = info, plan.stream
        self._begun = False

    def part(self, start: int, count: int) -> list[Any]:
        """The samples from `start` on, fewer at the end; those before are passed over.

        Also at the end, and if the iterator raises, it is those behind them that are next.
        """
        try:
            while self.position < start and self._take(1):
                pass
            return self._take(count)
        finally:
            self.position = start + count

    def _take(self, count: int) -> list[Any]:
        taken: list[Any] = []
        while len(taken) < count:
            try:
                sample = next(self._samples)
            except StopIteration:
                break
            if not self._begun:
                self._begun = True
                if not self._info.sharded:
                    parts, part = self._info._workers, self._part
                    rest = itertools.chain((sample,), self._samples)
                    self._samples = itertools.islice(rest, part, None, parts)
                    continue
            taken.append(sample)
        self.position += len(taken)
        return taken


def as_lists(samples: list[Any]) -> Any:
    """Collates samples to the structure of one, with lists of what they have there."""
    node = structure(samples[0])
    columns = zip(*(_leaves(node, sample) for sample in samples), strict=True)
    lists: Any = map(list, columns)
    return node.build(lists, lists)


def as_they_are(samples: list[Any]) -> Any:
    """The only sample, as it is: for loaders that don't make batches."""
    return samples[0]


def _write(layout: Layout, blocks: list[Block], place: int, sample: Any) -> list[Any]:
    """Writes a sample to its row; returns what of it isn't an array."""
    values: list[Any] = []
    others: list[Any] = []
    in_order = layout.flatten(sample, values, others)
    if not (in_order or place or layout.is_in_order(sample)):
        raise Misfit("its keys in another order", "of the same keys")
    _put(layout, blocks, place, values)
    return others


def _put(layout: Layout, blocks: list[Block], place: int, values: list[Any]) -> None:
    """Writes the arrays of a sample to its row."""
    try:
        put(blocks, place, values)
    except OverflowError:
        raise layout.too_large(values) from None


def _leaves(node: Node, sample: Any) -> list[Any]:
    """The leaves of a sample, of whatever shapes, except for those that are always None."""
    if isinstance(node, NoneLeaf):
        return []
    if isinstance(node, ArrayLeaf | OtherLeaf):
        return [sample]
    found: list[Any] = []
    for (name, child), item in zip(children(node), node.items(sample), strict=True):
        try:
            found += _leaves(child, item)
        except Misfit as misfit:
            misfit.path.append(name)
            raise
    return found
