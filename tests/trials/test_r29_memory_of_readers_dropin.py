"""R29, copy-on-write growth, with the drop-in: pytorch/pytorch#5902."""

import pytest

from dropin import HEAD

PROGRAM = (
    HEAD
    + """
import ropeway as rw

COUNT = 100_000


class Data(Dataset):
    def __init__(self):
        self.paths = rw.SharedList(f"some/folder/of/pictures/{k:09}.jpg" for k in range(COUNT))

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return int(self.paths[index][-13:-4]) == index


def private(pid):
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().split("Anonymous:")[1]
    return int(rollup.split()[0]) >> 10


if __name__ == "__main__":
    loader = DataLoader(
        Data(), 500, True, num_workers=2, persistent_workers=True, multiprocessing_context=METHOD
    )
    sizes = []
    for _ in range(3):
        assert all(batch.all() for batch in loader)
        sizes.append(max(private(worker.pid) for worker in loader._iterator._workers))
    assert sizes[-1] - sizes[0] < 16, sizes
"""
)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_reading_a_list_costs_a_worker_nothing(room, method):
    room.run(PROGRAM, method, seconds=100)
