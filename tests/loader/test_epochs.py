"""Epochs: order, seeds, state, and what is left of an epoch that was not read to its end."""

import contextlib
import gc
import json
import pickle
import time
import weakref

import numpy as np
import pytest
from datasets import Epochs, Info, Numbers, Pid, Random, RandomLater, RandomStream, Slow, shaken

import ropeway as rw
from ropeway.loader.order import IndexOrder, Permutation


def numbers(batches):
    return [n for batch in batches for n in batch["number"].tolist()]


def rows(batches):
    return [row for batch in batches for row in zip(*(a.tolist() for a in batch), strict=True)]


# ---- order -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 63, 64, 65, 1000, 12_345])
def test_a_permutation_has_each_number_once(n):
    permutation = Permutation(n, key=n * 7)
    assert sorted(permutation.block(0, n).tolist()) == list(range(n))
    parts = [permutation.block(k, min(k + 7, n)) for k in range(0, n, 7)]
    assert np.concatenate(parts).tolist() == permutation.block(0, n).tolist()


def test_permutations_differ_by_key_and_look_like_chance():
    blocks = [Permutation(1000, key).block(0, 1000) for key in range(50)]
    assert len({block.tobytes() for block in blocks}) == 50
    firsts = np.array([block[:10] for block in blocks])
    assert 400 < firsts.mean() < 600
    assert abs(np.corrcoef(np.arange(1000), blocks[3])[0, 1]) < 0.15
    fixed = [int((block == np.arange(1000)).sum()) for block in blocks]
    assert sum(fixed) < 150  # one each on average


def test_an_order_can_begin_anywhere():
    for size, drop in ((1, False), (7, False), (7, True), (10_000, False)):
        order = IndexOrder(20_003, size, drop, shuffle=True, seed=3)
        whole = list(order.batches(2, 0))
        assert len(whole) == len(order)
        for start in (0, 1, len(whole) // 2, len(whole) - 1, len(whole)):
            assert list(order.batches(2, start)) == whole[start:]


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffled_epochs_differ_and_repeat_with_the_seed(loader, workers):
    def run(seed):
        batches = loader(Numbers(100), 8, workers, shuffle=True, seed=seed)
        return [numbers(batches) for _ in range(3)]

    first = run(7)
    assert all(sorted(epoch) == list(range(100)) for epoch in first)
    assert first[0] != first[1] != first[2] != first[0]
    assert run(7) == first
    assert run(8)[0] != first[0]


class Halves:
    """A sampler that hears of the epoch."""

    epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(range(self.epoch, 20, 2))

    def __len__(self):
        return 10


@pytest.mark.parametrize("workers", [0, 2])
def test_samplers_decide_the_keys(loader, workers):
    batches = loader(Numbers(20), 4, workers, sampler=Halves())
    assert len(batches) == 3
    assert numbers(batches) == list(range(0, 20, 2))
    assert numbers(batches) == list(range(1, 20, 2))
    batches = loader(Numbers(20), workers=workers, batch_sampler=[[3, 1], [4], [5, 9, 2]])
    assert [b["number"].tolist() for b in batches] == [[3, 1], [4], [5, 9, 2]]


def test_keys_may_be_anything(loader):
    data = {("a", 1): np.zeros(2), "b": np.ones(2)}
    (batch,) = loader(data, 2, 1, sampler=["b", ("a", 1)])
    assert batch.tolist() == [[1, 1], [0, 0]]


# ---- epochs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_hear_of_the_epoch(loader, workers):
    batches = loader(Epochs(100), 8, workers)
    for epoch in (0, 1, 2):
        assert rows(batches) == [(epoch, index) for index in range(100)]
    batches.set_epoch(9)
    assert {epoch for epoch, _ in rows(batches)} == {9}
    assert {epoch for epoch, _ in rows(batches)} == {10}


def test_workers_live_on_from_epoch_to_epoch(loader):
    batches = loader(Pid(40), 1, 2)
    first = {int(pid) for batch in batches for pid in batch}
    later = {int(pid) for _ in range(5) for batch in batches for pid in batch}
    assert first | later <= set(batches._engine.crew.pids().values())


def test_an_abandoned_epoch_leaves_nothing_behind(loader):
    batches = loader(Epochs(1000), 8, 2)
    for _ in range(50):
        for count, _ in enumerate(batches):
            if count == 2:
                break
    assert rows(batches) == [(50, index) for index in range(1000)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_at_its_end_keeps_nothing_of_its_last_batch(loader, workers):
    iterator = iter(loader(Numbers(8), 4, workers))

    def last():
        batch = None
        with contextlib.suppress(StopIteration):
            while True:
                batch = next(iterator)
        return weakref.ref(batch["array"])

    gc.disable()
    try:
        assert last()() is None
    finally:
        gc.enable()


def test_iterators_that_are_dropped_leave_nothing_behind(loader):
    import os

    batches = loader(Numbers(1000), 8, 2)

    def belongings():
        gc.collect()
        busy = [s for s in batches._engine.pool.status().slots if s.state != "idle"]
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), len(busy)

    def settled():
        end = time.monotonic() + 20
        while belongings()[2] and time.monotonic() < end:
            time.sleep(0.01)
        return belongings()

    next(iter(batches))
    first = settled()
    for _ in range(200):
        iter(batches)
    assert settled() == first
    assert len(batches._engine.pool.status().slots) < 60
    assert numbers(batches) == list(range(1000))


@pytest.mark.parametrize("ordered", [True, False])
def test_two_iterators_over_one_loader_work(loader, ordered):
    batches = loader(Numbers(100), 4, 2, ordered=ordered)
    got = [[], []]
    for one, two in zip(batches, batches, strict=True):
        got[0] += one["number"].tolist()
        got[1] += two["number"].tolist()
    assert sorted(got[0]) == sorted(got[1]) == list(range(100))


def test_breaking_off_stops_work_that_nobody_wants(loader):
    batches = loader(Slow(1000, 0.05), batch_size=100, workers=1)
    iterator = iter(batches)
    time.sleep(0.3)
    iterator.close()
    start = time.monotonic()
    quick = iter(batches)
    batches.dataset = None
    next(quick)
    assert time.monotonic() - start < 3 * 5.0  # one batch takes 5 s, six were planned
    quick.close()


# ---- seeds -------------------------------------------------------------------------------------


def test_randomness_belongs_to_samples_not_to_workers(loader, method):
    def run(workers, seed, method=None):
        batches = loader(Random(64), 4, workers, seed=seed, start_method=method)
        return [rows(batches) for _ in range(2)]

    reference = run(0, 1234)
    assert run(2, 1234, method) == reference
    assert run(1, 1234, method) == reference
    other = run(2, 1235, method)
    drawn = [tuple(row[1:]) for epochs in (reference, other) for epoch in epochs for row in epoch]
    assert len(set(drawn)) == 4 * 64


def test_samples_in_place_that_draw_later_are_seeded_too(loader):
    def run(workers, size):
        return [
            row
            for batch in loader(RandomLater(96), size, workers, seed=3)
            for row in batch["drawn"].tolist()
        ]

    reference = run(0, 8)
    assert run(1, 8) == run(2, 8) == run(2, 16) == run(1, 32) == reference
    assert len({drawn for _, drawn, _ in reference}) == 1 + 96 - 29
    assert len({drawn for *_, drawn in reference}) == 1 + 96 - 51


def test_randomness_is_independent_of_the_order_and_of_the_batch(loader):
    straight = sorted(rows(loader(Random(64), 4, 2, seed=1)))
    shuffled = sorted(rows(loader(Random(64), 16, 1, seed=1, shuffle=True)))
    assert straight == shuffled


def test_randomness_of_a_collate_function_follows_the_seed(loader):
    runs = [list(loader(Numbers(40), 4, n, seed=1, collate=shaken)) for n in (0, 1, 2)]
    assert runs[0] == runs[1] == runs[2]
    assert len({draw for _, draw in runs[0]}) == 10


def test_randomness_of_a_stream_follows_the_seed(loader):
    runs = [rows(loader(RandomStream(40), 4, 2, seed=seed)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_the_callers_generators_are_left_alone(loader):
    import random

    random.seed(5), np.random.seed(5)
    wanted = random.random(), np.random.rand()
    random.seed(5), np.random.seed(5)
    rows(loader(Random(8), 4, 0))
    assert (random.random(), np.random.rand()) == wanted


def test_worker_info_says_what_is_worked_on(loader):
    assert rw.worker_info() is None
    reference = [rows(loader(Info(40), 4, 0, seed=3)) for _ in range(1)]
    batches = loader(Info(40), 4, 2, seed=3)
    assert rows(batches) == reference[0]
    second = rows(batches)
    assert {epoch for _, epoch, *_ in second} == {1}
    assert not {row[2:] for row in second} & {row[2:] for row in reference[0]}
    assert rw.worker_info() is None


def test_without_a_seed_runs_differ(loader):
    one, two = (rows(loader(Random(8), 4, 1)) for _ in range(2))
    assert one != two


# ---- state -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 2), (3, 1), (0, 3), (3, 0)])
@pytest.mark.parametrize("taken", [0, 1, 5, 24, 25])
def test_going_on_is_as_if_nothing_had_happened(loader, before, after, taken):
    def make(workers, seed=7):
        return loader(Numbers(100), 4, workers, shuffle=True, seed=seed)

    whole = make(0)
    reference = [numbers(whole), numbers(whole)]
    first = make(before)
    iterator = iter(first)
    got = numbers(next(iterator) for _ in range(taken))
    state = json.loads(json.dumps(first.state_dict()))
    assert len(pickle.dumps(state)) < 512
    second = make(after, seed=99)
    second.load_state_dict(state)
    assert second.state_dict() == state
    got += numbers(second)
    assert got == reference[0]
    assert numbers(second) == reference[1]
    if taken:
        assert numbers([next(iterator)] if taken < 25 else []) == reference[0][taken * 4 :][:4]


def test_the_state_after_an_epoch_is_that_of_the_next(loader):
    batches = loader(Numbers(20), 4, 2, shuffle=True, seed=1)
    numbers(batches)
    state = batches.state_dict()
    wanted = numbers(batches)
    other = loader(Numbers(20), 4, 0, shuffle=True)
    other.load_state_dict(state)
    assert numbers(other) == wanted


def test_the_state_of_unordered_batches_knows_those_handed_out_early(loader):
    first = loader(Slow(40, 0.5, slow=[0]), 4, 2, ordered=False)
    iterator = iter(first)
    got = numbers(next(iterator) for _ in range(3))
    state = first.state_dict()
    assert state["position"]["batch"] == 0
    assert len(state["position"]["ahead"]) == 3
    second = loader(Numbers(40), 4, 2)
    second.load_state_dict(state)
    assert sorted(got + numbers(second)) == list(range(40))


def test_a_sampler_is_wound_forward(loader):
    first = loader(Numbers(20), 4, 2, sampler=range(19, -1, -1))
    iterator = iter(first)
    got = numbers([next(iterator)])
    second = loader(Numbers(20), 4, 1, sampler=range(19, -1, -1))
    second.load_state_dict(first.state_dict())
    assert got + numbers(second) == list(range(19, -1, -1))


def test_a_state_of_another_loader_is_refused(loader):
    state = loader(Numbers(20), 4, 0).state_dict()
    with pytest.raises(ValueError, match=r"batch_size 4.*5"):
        loader(Numbers(20), 5, 0).load_state_dict(state)
    with pytest.raises(ValueError, match=r"length 20.*21"):
        loader(Numbers(21), 4, 0).load_state_dict(state)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {},
        {"version": 1},
        {"version": 1, "seed": 0, "epoch": 0, "position": 3},
        {"version": 1, "seed": 0, "epoch": -1, "position": {}},
        {"version": 1, "seed": 0, "epoch": 0, "position": {"batch": "2"}},
    ],
)
def test_what_is_no_state_is_refused_and_changes_nothing(loader, wrong):
    batches = loader(Numbers(20), 4, 0, seed=3)
    with pytest.raises(ValueError, match="state"):
        batches.load_state_dict(wrong)
    assert batches.seed == 3
    assert numbers(batches) == list(range(20))


def test_a_loader_pickles_as_what_it_was_made_of(loader):
    first = loader(Numbers(20), 4, 2, shuffle=True, seed=3)
    iterator = iter(first)
    next(iterator)
    copy = pickle.loads(pickle.dumps(first))
    try:
        assert numbers(copy) == numbers(iterator)
    finally:
        copy.close()
