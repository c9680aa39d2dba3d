"""R44, next epoch: state, restarts, early break: webdataset/webdataset#172.

Also libffcv/ffcv#345, fastai/fastai3#5, open-mmlab/mmpretrain#196.
"""

PROGRAM = """
import gc
import os
import sys
import time

import ropeway as rw

METHOD = None if sys.argv[1] == "default" else sys.argv[1]


class Data:
    epoch = -1

    def __len__(self):
        return 1000

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return self.epoch, index


def make():
    return rw.Loader(Data(), 8, 4, shuffle=True, seed=5, start_method=METHOD)


def rows(loader):
    return [row for batch in loader for row in zip(*(a.tolist() for a in batch))]


def belongings(loader):
    gc.collect()
    end = time.monotonic() + 10
    while True:
        busy = [s for s in loader._engine.pool.status().slots if s.state != "idle"]
        if not busy or time.monotonic() > end:
            break
        time.sleep(0.01)
    here = [len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")]
    return (*here, sorted(loader._engine.crew.pids().values()), len(busy))


if __name__ == "__main__":
    runs = []
    for _ in range(2):
        with make() as loader:
            runs.append([rows(loader) for _ in range(3)])
    assert runs[0] == runs[1]
    orders = []
    for number, epoch in enumerate(runs[0]):
        assert {e for e, _ in epoch} == {number}
        orders.append([index for _, index in epoch])
        assert sorted(orders[-1]) == list(range(1000))
    assert orders[0] != orders[1] != orders[2] != orders[0]

    with make() as loader:
        for _ in range(50):
            for count, _ in enumerate(loader):
                if count == 2:
                    break
        del _
        whole = rows(loader)
        assert {e for e, _ in whole} == {50} and sorted(i for _, i in whole) == list(range(1000))

        next(iter(loader))
        first = belongings(loader)
        for _ in range(499):
            iter(loader)
        assert belongings(loader) == first, (first, belongings(loader))

    with make() as loader:
        rows(loader), rows(loader)
        pids = loader._engine.crew.pids()
        end = time.monotonic() + 30
        while not any(s.stage == "use" for s in loader._engine.pool.status().slots):
            assert time.monotonic() < end, "the next epoch's batches come before they are asked for"
            time.sleep(0.01)
        next(iter(loader))
        assert loader._engine.crew.pids() == pids
"""


def test_epochs_begin_and_end_cleanly(room, loader_method):
    room.run(PROGRAM, loader_method, seconds=60)
