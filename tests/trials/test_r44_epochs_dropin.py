"""R44, next epoch: state, restarts, early break, with the drop-in: webdataset/webdataset#172.

Also libffcv/ffcv#345, fastai/fastai3#5, open-mmlab/mmpretrain#196.
"""

import pytest

from dropin import HEAD

PROGRAM = (
    HEAD
    + """
class Data(Dataset):
    epoch = 0

    def __len__(self):
        return 200

    def __getitem__(self, index):
        return self.epoch, index, torch.full((1024,), float(index))


def belongings():
    gc.collect()
    return [len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")]


if __name__ == "__main__":
    data = Data()
    torch.manual_seed(5)
    loader = DataLoader(data, 8, True, num_workers=2, multiprocessing_context=METHOD)
    orders = []
    for data.epoch in range(3):
        rows = [row for batch in loader for row in zip(batch[0].tolist(), batch[1].tolist())]
        assert {epoch for epoch, _ in rows} == {data.epoch}
        orders.append([index for _, index in rows])
        assert sorted(orders[-1]) == list(range(200))
    assert orders[0] != orders[1] != orders[2] != orders[0]
    next(iter(loader))
    first = belongings()
    for _ in range(20):
        for count, _ in enumerate(loader):
            if count == 2:
                break
    del _
    assert belongings() == first, (first, belongings())
    assert sorted(i for batch in loader for i in batch[1].tolist()) == list(range(200))
"""
)


@pytest.mark.parametrize("method", ["fork"])
def test_epochs_begin_and_end_cleanly(room, method):
    room.run(PROGRAM, method, seconds=110)


PERSISTENT = (
    HEAD
    + """
class Data(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        return index


if __name__ == "__main__":
    loader = DataLoader(
        Data(), 8, num_workers=2, persistent_workers=True, multiprocessing_context=METHOD
    )
    for _ in range(50):
        for count, batch in enumerate(loader):
            if count == 2:
                break
        assert batch.tolist() == list(range(16, 24))
    assert [i for batch in loader for i in batch.tolist()] == list(range(200))
"""
)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_batch_of_an_abandoned_epoch_comes(room, method):
    room.run(PERSISTENT, method, seconds=60)
