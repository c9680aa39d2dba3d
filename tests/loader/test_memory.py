"""What a loader does where memory is short: order stays, nothing is lost, and it can be used on."""

import time

import numpy as np
import pytest

import ropeway as rw

ROW = 64 << 10


class Uneven:
    """Large samples, every second of which takes so long that the next one finds memory first."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index % 2 == 0:
            time.sleep(0.05)
        return np.full(ROW, index, "u1")


class UnevenStream:
    """The same as two streams, one of them slow."""

    def __iter__(self):
        worker = rw.worker_info()
        for index in range(worker.id, 24, worker.workers):
            if worker.id == 0:
                time.sleep(0.05)
            yield np.full(ROW, index, "u1")


def kept_until_memory_is_out(batches):
    kept = []
    with pytest.raises(rw.OutOfMemory, match="are kept"):
        kept.extend(batches)
    return kept


@pytest.mark.parametrize("dataset", [Uneven(), UnevenStream()], ids=["keys", "streams"])
@pytest.mark.parametrize("rows", [7, 8])
def test_a_batch_that_finds_no_memory_is_not_overtaken(loader, dataset, rows):
    batches = loader(dataset, 1, 2, prefetch=4, memory_limit=rows * ROW + ROW // 2)
    kept = kept_until_memory_is_out(batches)
    assert [int(batch[0, -1]) for batch in kept] == list(range(len(kept)))
    assert 2 <= len(kept) <= rows
    del kept
    assert [int(batch[0, -1]) for batch in batches] == list(range(24))


def test_without_order_no_batch_is_lost_or_doubled_where_memory_is_short(loader):
    batches = loader(Uneven(), 1, 2, prefetch=4, memory_limit=7 * ROW + ROW // 2, ordered=False)
    kept = kept_until_memory_is_out(batches)
    assert len({int(batch[0, -1]) for batch in kept}) == len(kept)
    del kept
    assert sorted(int(batch[0, -1]) for batch in batches) == list(range(24))


def test_with_room_for_one_batch_beside_the_loops_own_all_come_in_order(loader):
    batches = loader(Uneven(), 1, 2, prefetch=4, memory_limit=2 * ROW + ROW // 2)
    assert [int(batch[0, -1]) for batch in batches] == list(range(24))
