"""R20, 0-d and zero-size arrays, through the loader: mila-iqia/fuel#221."""

import pytest

PROGRAM = """
import sys

import numpy as np

import ropeway as rw

METHOD = None if sys.argv[1] == "default" else sys.argv[1]


class Data:
    def __init__(self, sample):
        self.sample = sample

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.sample


def batches(sample, size):
    with rw.Loader(Data(sample), size, int(sys.argv[2]), start_method=METHOD) as loader:
        yield from loader


if __name__ == "__main__":
    for dtype, value in (("f4", 3.5), ("i8", 3), ("?", True)):
        for batch in batches(np.array(value, dtype), 4):
            assert (batch.shape, batch.dtype) == ((4,), np.dtype(dtype)) and (batch == value).all()
    for shape in ((5, 0), (0,), (0, 3, 2), (1,), (1, 1)):
        for batch in batches(np.ones(shape, "f4"), 2):
            assert batch.shape == (2, *shape) and batch.dtype == "f4" and (batch == 1).all()
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_shapes_are_kept(room, loader_method, workers):
    room.run(PROGRAM, loader_method, workers)
