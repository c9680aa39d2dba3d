"""Batches that several workers make together: the same streams, sooner."""

import gc
import itertools
import os
import pickle
import random
import time

import numpy as np
import pytest
from datasets import (
    AtOnce,
    Deadly,
    Failing,
    Into,
    Made,
    Numbers,
    Random,
    Stream,
    Unreadable,
    everything,
)

import ropeway as rw
from ropeway.loader import split
from ropeway.loader.layout import Layout
from ropeway.loader.record import Plan
from ropeway.loader.structure import structure

PACE = 0.001
"""Seconds for a sample: batches of 64 are long enough to be made in parts."""
WATCHDOG = 30


@pytest.fixture(autouse=True)
def short_parts(monkeypatch):
    """Makes parts of less work than usual, so that the tests are short."""
    monkeypatch.setattr(split, "_LEAST", 0.005)
    monkeypatch.setattr(split, "_LEAST_FIRST", 0.005)


class Paced:
    """Takes its time for each sample of another dataset."""

    def __init__(self, inner):
        self.inner = inner
        if hasattr(inner, "__getitem_into__"):
            self.__class__ = PacedInto

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        time.sleep(PACE)
        return self.inner[index]


class PacedInto(Paced):
    def __getitem_into__(self, index, out):
        time.sleep(PACE)
        self.inner.__getitem_into__(index, out)


class Meeting(Numbers):
    """A sample that waits until others have been read, which another worker must do."""

    def __init__(self, length, epoch, index, others):
        super().__init__(length)
        self.epoch, self.index, self.others = epoch, index, others
        self.read = rw.zeros(length, "i8")

    def __getitem__(self, index):
        epoch = rw.worker_info().epoch
        if epoch < self.epoch:
            time.sleep(PACE)
        elif index == self.index:
            self.wait()
        else:
            self.read[index] = os.getpid()
        return super().__getitem__(index)

    def wait(self):
        end = time.monotonic() + WATCHDOG
        while not self.read[self.others].all():
            if time.monotonic() > end:
                raise TimeoutError(f"nobody has read {np.flatnonzero(self.read == 0)}")
            time.sleep(0.001)


class Changing(Numbers):
    """Samples look otherwise from some index on, but alike within batches of 64."""

    def __getitem__(self, index):
        time.sleep(PACE)
        return np.full(3 + (index >= 640), index)


def is_split(loader):
    return any(len(event.spells) > 1 for event in loader._meter.events)


def plain(thing):
    """Something to compare: arrays as lists."""
    if isinstance(thing, np.ndarray):
        return thing.tolist()
    if isinstance(thing, dict):
        return {key: plain(item) for key, item in thing.items()}
    if isinstance(thing, list | tuple):
        return [plain(item) for item in thing]
    return [plain(vars(thing))] if hasattr(thing, "__dict__") else thing


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("data", [Made(200, everything), Random(200)], ids=["kinds", "random"])
def test_the_stream_is_that_of_whole_batches(loader, data, workers, ordered):
    def epochs(dataset, workers, ordered=True):
        with rw.Loader(dataset, 64, workers, shuffle=True, seed=3, ordered=ordered) as batches:
            found = [[plain(batch) for batch in batches] for _ in range(2)]
            assert is_split(batches) == (workers > 1)
        return found if ordered else [sorted(epoch, key=repr) for epoch in found]

    expected = epochs(data, 0)
    if not ordered:
        expected = [sorted(epoch, key=repr) for epoch in expected]
    assert epochs(Paced(data), workers, ordered) == expected


@pytest.mark.parametrize("method", [None, "fork", "spawn"])
def test_no_row_is_lost_when_workers_die_at_any_row(loader, tmp_path, method):
    deadly = random.Random(5).sample(range(1024), 9)
    data = Paced(Deadly(1024, tmp_path, once=deadly))
    batches = loader(data, 64, 2, start_method=method)
    for _ in range(2):
        got = list(batches)
        assert [n for batch in got for n in batch["number"].tolist()] == list(range(1024))
        for batch in got:
            assert (batch["array"] == batch["number"][:, None, None]).all()
        del batch, got
    batches._engine._watch()
    assert is_split(batches)
    assert batches.stats().restarts >= 8


def test_a_slow_sample_doesn_t_hold_back_the_rest_of_its_batch(loader):
    others = np.r_[8:128]  # the first eight rows are the slow one's part; the next batch isn't
    data = Meeting(256, epoch=1, index=0, others=others)
    batches = loader(data, 64, 2)
    for _ in range(2):
        rows = [n for batch in batches for n in batch["number"].tolist()]
        assert rows == list(range(256))
    assert is_split(batches)


def test_the_first_batch_of_an_epoch_uses_all_workers(loader):
    """Each worker waits in it for the others, which none would come out of alone."""
    data = Gathering(128, workers=3)
    batches = loader(data, 64, 3)
    list(batches)
    next(iter(batches))
    assert len(set(data.read[:64].tolist()) - {0}) == 3


class Gathering(Meeting):
    def __init__(self, length, workers):
        super().__init__(length, 1, None, None)
        self.workers = workers

    def __getitem__(self, index):
        if rw.worker_info().epoch == 1 and index < 64:
            self.read[index] = os.getpid()
            end = time.monotonic() + WATCHDOG
            while len(set(self.read[:64].tolist()) - {0}) < self.workers:
                assert time.monotonic() < end, "alone with the first batch"
                time.sleep(0.001)
        else:
            time.sleep(PACE)
        return Numbers.__getitem__(self, index)


@pytest.mark.parametrize(
    ("data", "how"),
    [
        (Numbers(400), {"collate": list}),
        (Numbers(400), {"collate": "list"}),
        (Numbers(400), {"workers": 1}),
        (Numbers(400), {"memory_limit": 64 << 20}),
        (AtOnce(400), {}),
        (Stream(400), {}),
    ],
    ids=["collate", "list", "one worker", "limit", "at once", "stream"],
)
def test_batches_stay_whole_where_parts_make_no_sense(loader, data, how):
    slow = SlowStream(400) if isinstance(data, Stream) else Paced(data)
    if isinstance(data, AtOnce):
        slow = SlowAtOnce(400)
    batches = loader(slow, 64, **{"workers": 2, **how})
    assert len(list(batches)) == 7 + (slow.__class__ is SlowStream)
    assert not is_split(batches)


class SlowStream(Stream):
    def __iter__(self):
        for index in range(self.length):
            time.sleep(PACE)
            yield index


class SlowAtOnce(AtOnce):
    def __getitems__(self, keys):
        time.sleep(PACE * len(keys))
        return super().__getitems__(keys)


def test_a_batch_that_looks_otherwise_is_made_whole(loader):
    batches = loader(Changing(1024), 64, 2)
    for _ in range(2):
        shapes = [(batch.shape, int(batch[0, 0])) for batch in batches]
        assert shapes == [((64, 3 + (k >= 10)), 64 * k) for k in range(16)]
    assert is_split(batches)
    assert not batches._engine._splits
    assert not batches._engine._parts


def test_an_exception_in_a_part_names_its_sample_and_the_rest_comes(loader):
    batches = loader(Paced(Failing(512, ValueError("bad luck"), bad=(451,))), 64, 2)
    got = []
    iterator = iter(batches)
    with pytest.raises(ValueError, match="bad luck") as caught:
        got.extend(n for batch in iterator for n in batch["number"].tolist())
    assert "sample 451" in str(caught.value.__cause__)
    got += [n for batch in iterator for n in batch["number"].tolist()]
    assert got == [n for n in range(512) if n // 64 != 7]
    assert is_split(batches)


def test_a_sample_that_kills_its_workers_is_named_in_a_part_too(loader, tmp_path):
    batches = loader(Paced(Deadly(512, tmp_path, always=[451])), 64, 2, retries=1)
    iterator = iter(batches)
    with pytest.raises(rw.WorkerError, match=r"sample 451 has ended 2 workers.*SIGKILL.*SIGKILL"):
        list(iterator)
    assert list(iterator) == []


def test_rows_that_a_dataset_keeps_are_refused_in_a_part_too(loader):
    batches = loader(Paced(Later(512)), 64, 2)
    with pytest.raises(rw.Invalid, match="keeps views"):
        list(batches)
    assert is_split(batches)


class Later(Into):
    kept: list = []  # noqa: RUF012

    def __getitem_into__(self, index, out):
        super().__getitem_into__(index, out)
        if index == 451:
            self.kept.append(out["array"])


def test_parts_leave_nothing_behind():
    gc.collect()
    before = rw._core.arena_snapshot()["arrays"]
    batches = rw.Loader(Paced(Numbers(1024)), 64, 2)
    list(batches)
    for _ in range(3):
        iterator = iter(batches)
        kept = next(iterator)
        del iterator
    assert next(iter(batches))["number"][5] == 5
    batches.close()
    assert kept["number"].tolist() == list(range(64))
    del kept, batches
    gc.collect()
    assert rw._core.arena_snapshot()["arrays"] == before


def test_a_loader_that_is_closed_keeps_no_parts(loader):
    batches = loader(Paced(Numbers(4096)), 64, 2)
    iterator = iter(batches)
    for _ in range(4):
        next(iterator)
    engine = batches._engine
    assert engine._splits
    batches.close()
    gc.collect()
    assert engine._splitting.alive() == 0


def test_a_part_that_can_t_be_read_fails_its_batch_and_the_rest_comes(loader):
    batches = loader(Paced(Made(512, unreadable)), 64, 2, timeout=10)
    iterator, got = iter(batches), []
    with pytest.raises(ValueError, match="can't be read"):
        got.extend(n for batch in iterator for n in batch["number"].tolist())
    got += [n for batch in iterator for n in batch["number"].tolist()]
    assert got == [n for n in range(512) if n // 64 != 7]
    assert is_split(batches)


def unreadable(index):
    return {"number": index, "thing": Unreadable(index if index == 451 else None)}


def splitting_of(pace):
    """What has seen a batch whose rows took that many seconds, and a plan for the next."""
    splitting = split.Splitting(2, True)
    layout = Layout(structure(np.zeros(4)), 8)
    splitting.learn(pickle.dumps(layout), 8, nanoseconds=int(8e9 * pace))
    return splitting, Plan(0, 0, 0, [*range(8)])


def test_only_long_batches_are_split_where_others_keep_the_workers_busy(monkeypatch):
    monkeypatch.undo()
    numbers = itertools.count().__next__
    splitting, plan = splitting_of(pace=0.05)
    assert splitting.split(plan, is_first=True, sequence=numbers) is not None
    assert splitting.split(plan, is_first=False, sequence=numbers) is None
    splitting, plan = splitting_of(pace=0.5)
    assert splitting.split(plan, is_first=False, sequence=numbers) is not None


def test_a_pace_that_was_slow_at_first_stops_the_splitting_at_once():
    """In fresh memory all batches are slow, and parts lie in fresh memory."""
    numbers = itertools.count().__next__
    splitting, plan = splitting_of(pace=0.1)
    assert splitting.split(plan, is_first=False, sequence=numbers) is not None
    splitting.learn(None, 8, nanoseconds=10**6)
    assert splitting.split(plan, is_first=False, sequence=numbers) is None
