"""A loader's life: what it holds, what it plans ahead, who may use it."""

import contextlib
import copy
import gc
import itertools
import os
import pickle
import resource
import signal
import subprocess
import threading
import time

import numpy as np
import pytest
from datasets import Epochs, Made, Numbers, Pid, Slow

import ropeway as rw
from ropeway.loader import shared
from ropeway.loader.order import IndexOrder
from ropeway.loader.shared import Shared
from ropeway.loader.zygote import Zygote

WATCHDOG = 30


def numbers(batches):
    return [n for batch in batches for n in batch["number"].tolist()]


def test_a_closed_loader_leaves_no_shared_memory(method):
    gc.collect()
    before = rw._core.arena_snapshot()["arrays"]
    loader = rw.Loader(Numbers(20), 4, 2, start_method=method)
    assert numbers(loader) == list(range(20))
    loader.close()
    del loader
    gc.collect()
    assert rw._core.arena_snapshot()["arrays"] == before


def test_workers_that_were_never_started_leave_no_shared_memory(monkeypatch):
    def start(*how):
        raise KeyboardInterrupt

    gc.collect()
    before = rw._core.arena_snapshot()["arrays"]
    monkeypatch.setattr(Zygote, "start", start)
    batches = rw.Loader(Numbers(8), 4, 2)
    with pytest.raises(KeyboardInterrupt):
        iter(batches)
    batches.close()
    del batches
    gc.collect()
    assert rw._core.arena_snapshot()["arrays"] == before


def test_workers_aren_t_taken_for_older_ones_that_had_their_process_ids(loader):
    batches = loader(Slow(40, 0.002), 4, 2)
    with subprocess.Popen(["true"]) as latest:
        ids = range(latest.pid, latest.pid + 10_000)
    Zygote.get()._reports.update(dict.fromkeys(ids, 0))  # of loaders that were closed
    assert numbers(batches) == list(range(40))
    assert batches.stats().restarts == 0


def test_a_closed_loader_can_be_used_again(loader):
    batches = loader(Epochs(20), 20, 2)
    (first,) = batches
    batches.close()
    (second,) = batches
    assert (first[0][0], second[0][0]) == (0, 1)


def test_the_next_epoch_is_planned_ahead_once_one_was_read_to_its_end(loader):
    batches = loader(Epochs(40), 10, 2)
    assert len(list(batches)) == 4
    assert batches._primed is None
    iterator = iter(batches)
    rows = [next(iterator) for _ in range(4)]
    assert batches._primed is not None
    state = batches.state_dict()
    assert (state["epoch"], state["position"]["batch"]) == (1, 4)  # what is ahead isn't taken
    assert next(iterator, None) is None
    rows += list(batches)
    assert [int(batch[0][0]) for batch in rows] == [1] * 4 + [2] * 4
    assert [int(batch[1][0]) for batch in rows] == [0, 10, 20, 30] * 2
    list(batches)
    batches.set_epoch(0)  # not what was planned
    assert {int(batch[0][0]) for batch in batches} == {0}


def test_dropping_a_loader_that_has_planned_ahead_ends_it(eventually):
    batches = rw.Loader(Pid(40), 10, 2)
    pids = {int(pid) for _ in range(3) for batch in batches for pid in batch}
    del batches
    gc.collect()
    assert eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupted_wait_loses_nothing(loader, workers):
    iterator = iter(loader(Slow(400, 0.002), 4, workers))
    got, interrupts = [], 0
    timer = threading.Event()
    main = threading.get_native_id()

    def interrupt():
        for _ in range(20):
            time.sleep(0.03)
            if timer.is_set():
                return
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    while True:
        try:
            got += numbers([next(iterator)])
        except KeyboardInterrupt:
            interrupts += 1
        except StopIteration:
            break
    timer.set()
    while thread.is_alive():
        try:
            thread.join()
        except KeyboardInterrupt:
            interrupts += 1
    assert main == os.getpid()
    assert interrupts
    assert sorted(set(got)) == got
    missing = set(range(400)) - set(got)
    assert len(missing) <= 4 * interrupts  # lost between this function and the loader, not in it


class Alarm(Exception):
    """What a program's own signal handler raises."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, Alarm])
@pytest.mark.parametrize(("place", "every"), [("order", 7), ("pool", 47), ("taken", 13)])
def test_an_interrupt_at_any_place_loses_nothing(loader, monkeypatch, place, every, error):
    calls = itertools.count()

    def interrupt():
        if next(calls) % every == every - 1:
            raise error

    if place == "order":
        batches = IndexOrder.batches
        monkeypatch.setattr(
            IndexOrder,
            "batches",
            lambda *args: (keys for keys in batches(*args) if not interrupt()),
        )
    elif place == "pool":
        acquired = Shared._acquired
        monkeypatch.setattr(Shared, "_acquired", lambda self: interrupt() or acquired(self))
    else:
        take = Shared._take
        monkeypatch.setattr(Shared, "_take", lambda self, *how: [take(self, *how), interrupt()][0])
    iterator = None
    got = []
    made = loader(Slow(200, 0.001), 4, 2, shuffle=True, seed=1, timeout=10)
    while iterator is None:
        with contextlib.suppress(error):
            iterator = iter(made)
    while True:
        try:
            got += numbers([next(iterator)])
        except error:
            continue
        except StopIteration:
            break
    monkeypatch.undo()
    assert next(calls) > 50
    assert got == numbers(loader(Slow(200, 0.001), 4, 0, shuffle=True, seed=1))


def test_slots_of_batches_that_are_kept_no_longer_go_with_the_next_epoch(loader):
    batches = loader(Made(200, a_hundred_kilobytes), 1, 2)
    kept = list(batches)
    before = batches._engine.pool.status()
    del kept
    iter(batches)
    after = batches._engine.pool.status()
    assert len([slot for slot in before.slots if slot.state != "absent"]) >= 200
    assert len([slot for slot in after.slots if slot.state != "absent"]) < 80
    assert sum(slot.committed for slot in after.slots) < 80 * 120_000


def a_hundred_kilobytes(index):
    return np.full(100_000, index, "u1")


@pytest.mark.parametrize(("brief", "most"), [(1 << 60, 96), (0, 6)])
def test_batches_that_take_no_time_are_planned_further_ahead_unless_told_otherwise(
    loader, monkeypatch, brief, most
):
    monkeypatch.setattr("ropeway.loader.shared._BRIEF", brief)  # nanoseconds that are no time
    for prefetch, expected in ((None, most), (4, 4)):
        batches = loader(Numbers(400), 1, 2, prefetch=prefetch)
        assert numbers(batches) == list(range(400))
        assert batches._engine.window == expected
        again = pickle.loads(pickle.dumps(batches))
        assert numbers(again) == list(range(400))
        assert again._engine.window == expected
        again.close()


def test_a_lambda_needs_cloudpickle(loader, monkeypatch):
    pytest.importorskip("cloudpickle")
    scale = 3
    batches = loader(Numbers(8), 4, 2, collate=lambda samples: len(samples) * scale)
    assert list(batches) == [12, 12]
    monkeypatch.setitem(__import__("sys").modules, "cloudpickle", None)
    with pytest.raises(TypeError, match="cloudpickle"):
        iter(loader(Numbers(8), 4, 2, collate=lambda samples: samples))


def test_a_class_of_a_function_comes_back_as_itself(loader):
    pytest.importorskip("cloudpickle")

    class Local(dict):
        pass

    (batch,) = loader(Made(4, lambda index: Local(a=index)), 4, 1)
    assert type(batch) is Local
    assert batch["a"].tolist() == [0, 1, 2, 3]


def test_a_loader_works_in_a_thread(loader):
    sums = []

    def run():
        with rw.Loader(Numbers(40), 4, 2) as batches:
            sums.append(sum(numbers(batches)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert sums == [780]


def test_closing_a_loader_ends_the_wait_of_another_thread(loader):
    batches = loader(Slow(8, 30), 4, 1)
    said = []

    def wait():
        try:
            next(iter(batches))
        except rw.Closed as error:
            said.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    while batches._engine is None or batches._engine.roster.read(0).sequence < 0:
        time.sleep(0.01)
    batches.close()
    thread.join(20)
    assert said == ["this iterator was closed with its loader"]


def test_threads_may_share_a_loader(loader):
    """Each has an epoch of its own, also where the next one was planned ahead."""
    shared, found = loader(Numbers(40), 4, 2), []

    def run():
        found.append(list(numbers(shared)))

    for _ in range(60):
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert found == [list(range(40))] * 240


class Reduced(Numbers):
    """Counts how often it is pickled."""

    times = 0

    def __reduce__(self):
        type(self).times += 1
        return Reduced, (self.length,)


def test_a_dataset_is_pickled_once_for_all_workers(loader, method, monkeypatch):
    monkeypatch.setattr(Reduced, "times", 0)
    batches = loader(Reduced(12), 2, 3, start_method=method)
    for _ in range(2):
        assert numbers(batches) == list(range(12))
    os.kill(batches.stats().workers[1].pid, signal.SIGKILL)
    assert numbers(batches) == list(range(12))
    assert Reduced.times == (0 if method == "fork" else 1)


def test_a_dataset_that_has_grown_is_read_to_its_new_end(loader, method):
    items = list(range(4))
    batches = loader(items, 2, 1, start_method=method)
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]
    items.append(4)
    assert len(batches) == 3
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4]]


def test_an_iterator_that_is_copied_names_what_can_be(loader):
    iterator = iter(loader(Numbers(8), 4, 1))
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="pickle the loader"):
            copied(iterator)


class Counted(Numbers):
    """Takes its time, and notes each sample that is read."""

    def __init__(self, length):
        super().__init__(length)
        self.read = rw.zeros(length, "i8")

    def __getitem__(self, index):
        self.read[index] = 1
        time.sleep(0.02 if index >= 64 else 0)
        return super().__getitem__(index)


def test_closing_doesn_t_wait_for_the_rest_of_a_batch(loader, monkeypatch):
    monkeypatch.setattr(shared, "_PATIENCE", WATCHDOG)
    data = Counted(640)
    batches = loader(data, 64, 2)
    iterator = iter(batches)
    next(iterator)
    while not data.read[64]:
        time.sleep(0.001)
    batches.close()
    assert data.read[64:].sum() < 64
    del iterator


class Wasteful(Numbers):
    """Needs some megabytes for each sample, and says how often it has waited for a page."""

    def __getitem__(self, index):
        several = [np.ones(75_000) for _ in range(10)]
        del several
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_workers_keep_the_memory_that_samples_free(loader, method):
    assert faults(loader, method) < 5000


def test_workers_leave_the_heap_to_the_environment(loader, monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert faults(loader, "spawn") > 100_000


def faults(loader, method):
    """Page faults of a worker at 100 samples, after some."""
    counts = [
        n for batch in loader(Wasteful(120), 4, 1, start_method=method) for n in batch.tolist()
    ]
    return counts[-1] - counts[19]
