"""Order, seeds, workers and epochs are torch's."""

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import sets
import torch
from alike import assert_alike, taken
from torch.utils.data import DataLoader as Theirs
from torch.utils.data import WeightedRandomSampler, get_worker_info

from ropeway.torch import DataLoader as Ours


def both(dataset, epochs=1, **options):
    """What torch's loader gives, and what ours does, from equal seeds; and draws afterwards."""
    results = []
    for kind in (Theirs, Ours):
        torch.manual_seed(7)
        loader = kind(dataset, **{"num_workers": 2, **options})
        results.append([taken(loader) for _ in range(epochs)] + [torch.rand(4)])
        del loader
        gc.collect()
    return results


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"shuffle": True, "generator": "new"},
        {"batch_size": None, "shuffle": True},
        {"sampler": WeightedRandomSampler([1.0] * 24, 30)},
        {"sampler": [3, 1, 2]},
        {"batch_sampler": [[1, 2], [3], [0, 4, 5]]},
        {"batch_size": None, "sampler": [1, 2, 3]},
        {"drop_last": True, "batch_size": 5},
        {"prefetch_factor": 1},
        {"prefetch_factor": 5},
        {"num_workers": 1},
        {"worker_init_fn": sets.drawing_init},
        {"persistent_workers": True, "shuffle": True},
    ],
    ids=str,
)
def test_order_draws_and_workers_of_each_sample_are_torchs(options):
    """D2, D3, D6, D7, D9: everybody's shuffles and augmentations stay what they are."""
    options = {"batch_size": 4, **options}
    if "batch_sampler" in options:
        del options["batch_size"]
    runs = []
    for kind in (Theirs, Ours):
        torch.manual_seed(7)
        if "generator" in options:
            options["generator"] = torch.Generator().manual_seed(3)
        loader = kind(sets.Drawing(), **{"num_workers": 2, **options})
        runs.append([taken(loader) for _ in range(2)] + [torch.rand(4)])
        del loader
        gc.collect()
    assert_alike(*runs)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_it_is_so_with_other_start_methods(method):
    assert_alike(*both(sets.Drawing(8), batch_size=4, multiprocessing_context=method))


@pytest.mark.parametrize("collate", [None, list])
def test_keys_are_whatever_a_sampler_yields(collate):
    """D10."""
    keys = [3, "word", (1, 2), [1, 2], np.int64(4)]
    options = {"sampler": keys, "batch_size": 2, "num_workers": 1, "collate_fn": collate}
    assert_alike(*both(sets.Keyed(), **options))
    assert_alike(*both(sets.Keyed(), **{**options, "batch_size": None}))


def test_tensors_may_be_keys():
    """With torch's loader, too, but there each starts a thread that stays."""
    (batch,) = Ours(sets.Numbers(4), 2, num_workers=1, sampler=torch.tensor([3, 1]))
    assert batch["label"].tolist() == [3, 1]


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("persistent", [True, False])
def test_streams(sharded, drop_last, persistent):
    """D11."""
    options = {"batch_size": 4, "drop_last": drop_last, "persistent_workers": persistent}
    assert_alike(*both(sets.Stream(31, sharded=sharded), epochs=3, **options))


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_streams(length):
    assert_alike(*both(sets.Stream(length), batch_size=None))
    assert_alike(*both(sets.Stream(length), batch_size=4))


def test_a_worker_knows_itself(kind):
    """D5."""
    loader = kind(sets.Info(), 1, num_workers=2, collate_fn=tuple)
    iterator = iter(loader)
    assert get_worker_info() is None
    rows = [row for (row,) in iterator]
    assert [row[:2] for row in rows] == [(k % 2, 2) for k in range(8)]
    assert [row[2] for row in rows] == [iterator._base_seed + k % 2 for k in range(8)]
    assert all(row[3] for row in rows)
    assert {row[5] for row in rows} == {
        "WorkerInfo(id=0, num",
        "WorkerInfo(id=1, num",
    }
    assert len({row[4] for row in rows} | {os.getpid()}) == 3
    assert get_worker_info() is None


def test_a_worker_runs_one_thread(kind):
    """D4."""
    (row,) = kind(Threads(), 1, num_workers=1, collate_fn=tuple)
    assert row == (1,)


class Threads(sets.Numbers):
    def __init__(self):
        super().__init__(1)

    def __getitem__(self, index):
        return torch.get_num_threads()


def test_worker_init_fn_may_change_the_dataset(kind):
    """D6."""
    loader = kind(sets.Stream(99), 5, num_workers=2, worker_init_fn=sets.set_threads)
    found = sorted(i for batch in loader for i in batch[0].tolist())
    assert found == sorted([*range(0, 10, 2), *range(1, 20, 2)])


@pytest.mark.parametrize("persistent", [True, False])
def test_a_failing_init_is_told_once_as_torchs_is(persistent):
    """D6; behind the first batch torch's own code fails for want of what it couldn't make.

    Workers that persist make it at the beginning of their second epoch.
    """
    options = {"worker_init_fn": sets.failing_init, "persistent_workers": persistent}
    theirs, ours = both(sets.Numbers(10), epochs=2, batch_size=2, **options)
    assert_alike(theirs, ours)
    kinds = [found[0] for found in ours[0] if isinstance(found, tuple)]
    assert kinds == [ValueError, UnboundLocalError]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("of value"),
        KeyError("key"),
        StopIteration("stop"),
        IndexError("index"),
        OSError(2, "no file"),
        sets.Two(1, 2),
        sets.Spoken("said"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "reason"),
    ],
    ids=repr,
)
def test_exceptions_arrive_as_torchs_do(error):
    """D12, D13."""
    assert_alike(*both(sets.Failing(error), batch_size=2))


def test_a_dataset_that_always_fails_gives_as_many_exceptions_as_batches(kind):
    """D12."""
    found = taken(kind(sets.Failing(ValueError("no"), range(9), 9), 4, num_workers=2))
    assert [error for error, _ in found] == [ValueError] * 3


def test_the_sample_is_named():
    iterator = iter(Ours(sets.Failing(ValueError("no"), [0]), 2, num_workers=1))
    with pytest.raises(ValueError, match="at sample 0") as caught:
        next(iterator)
    iterator._shutdown_workers()
    assert "in DataLoader worker process 0" in str(caught.value)
    assert "in __getitem__" in str(caught.value)


@pytest.mark.parametrize("options", [{"collate_fn": sets.refusing}, {"dataset": sets.AtOnce(8)}])
def test_no_sample_is_named_for_what_others_did(options):
    loader = Ours(**{"dataset": sets.Numbers(8), "batch_size": 4, "num_workers": 1, **options})
    iterator = iter(loader)
    with pytest.raises(ValueError, match="at samples 0, 1, 2, 3"):
        next(iterator)
    iterator._shutdown_workers()


@pytest.mark.parametrize("what", ["lambda", "raises", "exit", "base", "local", "group"])
def test_what_torch_hangs_or_dies_of_is_an_error(what):
    loader = Ours(Awkward(what), 1, num_workers=1, collate_fn=list)
    found = taken(loader)
    kinds = {"lambda": AttributeError, "raises": OSError}
    assert [issubclass(e[0], kinds.get(what, RuntimeError)) for e in found] == [True] * 2
    words = {
        "lambda": "pickle",
        "raises": "refuses",
        "exit": "SystemExit: 3",
        "base": "Base: low",
        "local": "Local: here",
        "group": "Exception Group Traceback",
    }
    assert all(words[what] in "\n".join(lines) for _, lines in found), found


class Base(BaseException):
    pass


class Refusing:
    def __reduce__(self):
        raise OSError("refuses to be pickled")


class Awkward(sets.Numbers):
    def __init__(self, what):
        super().__init__(2)
        self.what = what

    def __getitem__(self, index):
        class Local(Exception):
            pass

        if self.what == "exit":
            raise SystemExit(3)
        if self.what == "base":
            raise Base("low")
        if self.what == "group":  # torch's loader raises a TypeError about its making
            raise ExceptionGroup("together", [ValueError("one")])
        if self.what == "local":
            raise Local("here")
        return Refusing() if self.what == "raises" else lambda: 0


def test_results_come_as_they_get_ready_out_of_order(kind):
    """D8."""
    loader = kind(
        sets.Slow(6, slow=[0], seconds=1.0), None, num_workers=2, in_order=False, prefetch_factor=1
    )
    found = list(loader)
    assert sorted(found) == list(range(6))
    assert found[0] != 0
    assert found[-1] == 0 or found.index(0) > 1


def test_timeouts(kind):
    """D15."""
    iterator = iter(kind(sets.Slow(2, slow=[1], seconds=2.5), 1, num_workers=1, timeout=1))
    assert next(iterator).tolist() == [0]
    with pytest.raises(RuntimeError, match="DataLoader timed out after 1 seconds"):
        next(iterator)


def test_at_the_end_of_an_epoch_the_workers_are_gone(kind):
    """D18."""
    iterator = iter(kind(sets.Numbers(8), 2, num_workers=2))
    pids = [worker.pid for worker in iterator._workers]
    assert len(list(iterator)) == 4
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert [worker.exitcode for worker in iterator._workers] == [0, 0]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


def test_dropping_an_iterator_ends_its_workers(kind, eventually):
    """D19."""
    iterator = iter(kind(sets.Numbers(100), 2, num_workers=2))
    next(iterator)
    pids = [worker.pid for worker in iterator._workers]
    del iterator
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_persistent_workers_have_one_iterator(kind):
    """D20."""
    loader = kind(Counting(12), 2, num_workers=2, persistent_workers=True, collate_fn=tuple)
    first = iter(loader)
    pids = [worker.pid for worker in first._workers]
    rows = [row for batch in first for row in batch]
    second = iter(loader)
    assert second is first
    assert [worker.pid for worker in second._workers] == pids
    next(second)
    third = iter(loader)  # in mid-epoch: what is outstanding is drained
    again = [row for batch in third for row in batch]
    assert [index for index, _ in rows] == [index for index, _ in again] == list(range(12))
    assert max(count for _, count in again) > 6 >= max(count for _, count in rows)
    seed = third._base_seed
    assert iter(loader)._base_seed == seed
    loader._iterator._shutdown_workers()


class Counting(sets.Numbers):
    """Counts in a worker."""

    count = 0

    def __getitem__(self, index):
        self.count += 1
        return index, self.count


def test_several_loaders_at_once_and_in_threads(kind):
    """D21."""
    one, two = (iter(kind(sets.Numbers(8), 2, num_workers=1)) for _ in range(2))
    pairs = list(zip(one, two, strict=True))
    assert all(torch.equal(a["label"], b["label"]) for a, b in pairs)
    del one, two, pairs
    found = []

    def run():
        found.append([b["label"].tolist() for b in kind(sets.Numbers(6), 3, num_workers=1)])

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [[[0, 1, 2], [3, 4, 5]]] * 3


def test_what_cannot_be_pickled_is_refused_at_once(kind):
    """D1."""
    data = sets.Numbers(4)
    data.function = lambda: 0
    loader = kind(data, num_workers=1, multiprocessing_context="spawn")
    with (
        pytest.warns(UserWarning, match="Got pickle error"),
        pytest.raises((AttributeError, TypeError), match="pickle"),
    ):
        iter(loader)
