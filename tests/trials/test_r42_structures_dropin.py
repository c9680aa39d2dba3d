"""R42, namedtuples, dicts and nested samples, with the drop-in: pytorch/pytorch#14613."""

import pytest

from dropin import HEAD

PROGRAM = (
    HEAD
    + """
import collections

P = collections.namedtuple("P", "x y meta")


class Data(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return P(np.ones(3, "f4"), 7, {"k": [np.arange(2, dtype="i2"), "txt"]})


if __name__ == "__main__":
    for batch in DataLoader(Data(), 4, num_workers=2, multiprocessing_context=METHOD):
        assert type(batch) is P and batch.x.shape == (4, 3) and batch.x.dtype is torch.float32
        assert batch.y.dtype is torch.int64 and batch.y.tolist() == [7] * 4
        numbers, words = batch.meta["k"]
        assert numbers.dtype is torch.int16 and numbers.shape == (4, 2)
        assert list(words) == ["txt"] * 4
"""
)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_structure_that_went_in_comes_out(room, method):
    room.run(PROGRAM, method, seconds=60)
