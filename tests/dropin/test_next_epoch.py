"""An epoch begins in the memory of the one before, and sees nothing else of it."""

import copy
import gc
import multiprocessing
import pickle
import resource
from pathlib import Path

import pytest
import sets
import torch
from torch.utils.data import get_worker_info

from ropeway.torch import DataLoader

HUGE = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
SIZE = 3 << 20


def make(dataset=None, **options):
    data = sets.Numbers(40) if dataset is None else dataset
    return DataLoader(data, **{"batch_size": 4, "num_workers": 2, **options})


def epoch(loader):
    """The labels of an epoch, checked against the images, and the pool that they came through."""
    iterator, labels = iter(loader), []
    for batch in iterator:
        assert (batch["image"] == batch["label"].view(-1, 1, 1, 1)).all()
        labels += batch["label"].tolist()
    return labels, iterator._context.pool.id


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": True}, {"in_order": False}, {"prefetch_factor": 5}, {"retries": 0}],
    ids=str,
)
def test_epochs_that_came_to_their_end_use_one_pool(options):
    loader = make(**options)
    epochs = [epoch(loader) for _ in range(4)]
    assert [sorted(labels) for labels, _ in epochs] == [list(range(40))] * 4
    assert len({pool for _, pool in epochs}) == 1


@pytest.mark.parametrize("length", [0, 5, 31])
def test_streams_do_so_too(length):
    loader, pools = make(sets.Stream(length)), set()
    for _ in range(4):
        iterator = iter(loader)
        assert sorted(i for batch in iterator for i in batch[0].tolist()) == list(range(length))
        pools.add(iterator._context.pool.id)
    assert len(pools) == 1


def test_nothing_is_left_of_the_workers_of_many_epochs():
    loader = make(sets.Numbers(4), batch_size=2)
    for _ in range(10):
        epoch(loader)
    iterator = iter(loader)
    list(iterator)
    status = iterator._context.pool.status()
    assert (status.deaths, len(status.lost)) == (0, 0)
    assert len(status.members) <= 3
    assert len(status.slots) <= 2 * 2 + 1 + 2


def test_batches_that_are_kept_stay_as_they_are():
    loader, kept, pools = make(), [], set()
    for _ in range(4):
        iterator = iter(loader)
        batches = [batch for batch in iterator if int(batch["label"][0]) % 20 == 0]
        kept += batches
        pools.add(iterator._context.pool.id)
    del iterator, batches
    assert [batch["label"].tolist() for batch in kept] == [[0, 1, 2, 3], [20, 21, 22, 23]] * 4
    for batch in kept:
        assert (batch["image"] == batch["label"].view(-1, 1, 1, 1)).all()
    assert len({batch["image"].data_ptr() for batch in kept}) == 8
    assert len(pools) < 4


def test_a_pool_that_has_grown_goes_with_its_batches():
    loader = make()
    iterator = iter(loader)
    kept = list(iterator)
    grown = iterator._context.pool.id
    assert len(iterator._context.pool.status().slots) > 2 * 5
    del iterator
    assert epoch(loader)[1] != grown
    assert [int(batch["image"][0, 0, 0, 0]) for batch in kept] == list(range(0, 40, 4))


@pytest.mark.parametrize("count", [0, 1, 9, 10])
def test_an_epoch_that_is_left_early_reaches_no_other(count):
    loader = make()
    for _ in range(3):
        iterator = iter(loader)
        for _ in range(count):
            next(iterator)
        del iterator
        assert epoch(loader)[0] == list(range(40))


def test_an_epoch_that_is_left_early_is_read_no_further(tmp_path):
    iterator = iter(make(Touching(20, tmp_path), batch_size=1, num_workers=1, prefetch_factor=20))
    next(iterator)
    iterator._shutdown_workers()
    assert len(list(tmp_path.iterdir())) < 15
    assert iterator._workers[0].exitcode == 0


class Touching(sets.Slow):
    """Takes its time, and leaves a file for each sample."""

    def __init__(self, length, folder):
        super().__init__(length, range(length), 0.1)
        self.folder = folder

    def __getitem__(self, index):
        (self.folder / str(index)).touch()
        return super().__getitem__(index)


def test_workers_end_well_if_the_program_keeps_every_slot(monkeypatch):
    monkeypatch.setattr("ropeway.torch.spare._MOST_SLOTS", 5)
    iterator = iter(make(sets.Numbers(20)))
    for worker in iterator._workers:
        worker.terminate = pytest.fail  # called for those that don't end by themselves
    kept = list(iterator)
    assert [worker.exitcode for worker in iterator._workers] == [0, 0]
    assert torch.cat([batch["label"] for batch in kept]).tolist() == list(range(20))


def test_a_death_ends_the_pool_with_its_epoch(tmp_path):
    loader = make(sets.Deadly(40, tmp_path, [9]))
    pools = []
    for _ in range(3):
        iterator = iter(loader)
        assert [i for batch in iterator for i in batch[0].tolist()] == list(range(40))
        pools.append(iterator._context.pool.id)
    assert pools[0] != pools[1] == pools[2]


def test_iterators_at_the_same_time_have_pools_of_their_own():
    loader = make()
    first = epoch(loader)[1]
    one, two = iter(loader), iter(loader)
    assert one._context.pool.id == first != two._context.pool.id
    for a, b in zip(one, two, strict=True):
        assert a["label"].tolist() == b["label"].tolist()
        assert a["image"].data_ptr() != b["image"].data_ptr()
    assert epoch(loader)[1] in (first, two._context.pool.id)


def test_other_numbers_of_workers_or_batches_take_another_pool():
    loader = make()
    pools = [epoch(loader)[1]]
    loader.prefetch_factor = 3
    pools.append(epoch(loader)[1])
    loader.num_workers = 1
    pools.append(epoch(loader)[1])
    assert len(set(pools)) == 3


def test_copies_begin_with_pools_of_their_own():
    loader = make()
    mine = epoch(loader)[1]
    for other in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert epoch(other)[1] != mine
    assert epoch(loader)[1] == mine


def test_forked_children_begin_with_pools_of_their_own():
    loader = make()
    mine = epoch(loader)[1]
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    children = [context.Process(target=send_epoch, args=(sender, loader)) for _ in range(2)]
    for child in children:
        child.start()
    results = [epoch(loader)]
    for _ in children:
        assert receiver.poll(60)
        results.append(receiver.recv())
    for child in children:
        child.join(60)
        assert child.exitcode == 0
        child.close()
    receiver.close(), sender.close()
    assert [labels for labels, _ in results] == [list(range(40))] * 3
    assert results[0][1] == mine
    assert len({pool for _, pool in results}) == 3


def send_epoch(sender, loader):
    sender.send(epoch(loader))


@pytest.mark.skipif(
    not HUGE.exists() or "[deny]" in HUGE.read_text(),
    reason="this system has no huge pages for shared memory, so new workers have many faults",
)
def test_workers_of_the_second_epoch_have_nearly_no_faults():
    first, second = faults()
    assert sum(second[1]) < sum(first[1]) / 4


def test_the_program_has_nearly_no_faults_in_the_second_epoch():
    first, second = faults()
    assert second[0] < first[0] / 4


def faults():
    """Page faults of two epochs: this process's in batches, each worker's from first to last."""
    loader = make(Faults(40 * 4), batch_size=4)
    counted = []
    for _ in range(2):
        iterator, here, seen = iter(loader), 0, {}
        for image, worker, count in iterator:
            before = minor_faults()
            image += 1
            here += minor_faults() - before
            seen.setdefault(int(worker[0]), []).extend(count.tolist())
        counted.append((here, [each[-1] - each[0] for each in seen.values()]))
        del iterator, image
        gc.collect()
    return counted


def minor_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class Faults(sets.Numbers):
    """One image again and again, and how many page faults its worker has had."""

    def __init__(self, length):
        super().__init__(length)
        self.image = torch.ones(SIZE, dtype=torch.uint8)

    def __getitem__(self, index):
        return self.image, get_worker_info().id, minor_faults()
