"""R29, copy-on-write growth, with the loader: pytorch/pytorch#5902.

Also pytorch/pytorch#13246, ray-project/ray#34613.
"""

import pytest

PROGRAM = """
import sys
from pathlib import Path

import ropeway as rw

METHOD = None if sys.argv[1] == "default" else sys.argv[1]
COUNT = 300_000


class Data:
    def __init__(self):
        self.paths = rw.SharedList(f"some/folder/of/pictures/{k:09}.jpg" for k in range(COUNT))
        self.labels = rw.SharedDict({f"{k:09}": k % 10 for k in range(1000)})

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        path = self.paths[index]
        return int(path[-13:-4]) == index, self.labels.get(path[-13:-4], -1)


def private(pid):
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().split("Anonymous:")[1]
    return int(rollup.split()[0]) >> 10


if __name__ == "__main__":
    with rw.Loader(Data(), 500, 2, shuffle=True, start_method=METHOD) as loader:
        sizes = []
        for _ in range(3):
            assert all(batch[0].all() for batch in loader)
            pids = loader._engine.crew.pids().values()
            sizes.append(max(private(pid) for pid in pids))
    print(sizes)
    assert sizes[-1] - sizes[0] < 16, sizes
    assert METHOD == "fork" or sizes[-1] < 60, sizes
"""


@pytest.mark.parametrize("method", ["default", "fork", "spawn"])
def test_reading_a_list_costs_a_worker_nothing(room, method):
    room.run(PROGRAM, method, seconds=90)


ROWS = """
import sys
from pathlib import Path

import numpy as np

import ropeway as rw

MIB = 1 << 20


class Rows:
    def __init__(self):
        self.rows = rw.empty((16_384, 4096), "u1")
        self.rows[:] = (np.arange(16_384) % 251)[:, None]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def pss(pids):
    text = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids)
    return sum(int(t.split("\\nPss:")[1].split()[0]) for t in text) * 1024


if __name__ == "__main__":
    for workers in (2, 8):
        with rw.Loader(Rows(), 64, workers) as loader:
            sums = []
            for _ in range(3):
                for number, batch in enumerate(loader):
                    assert (batch[:, 7] == np.arange(number * 64, number * 64 + 64) % 251).all()
                del batch
                sums.append(pss(["self", *loader._engine.crew.pids().values()]))
            pool = loader._engine.pool.status().committed
        assert sums[-1] <= 64 * MIB + pool + 80 * MIB * (workers + 1), (sums, pool)
        assert sums[-1] - sums[0] < 32 * MIB, sums
"""


def test_the_memory_of_the_tree_counts_shared_rows_once(room):
    room.run(ROWS, seconds=90)
