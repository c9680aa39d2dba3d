"""R16, object dtype, with the loader: python/cpython#117262; also python/cpython#87357."""

import pytest

PROGRAM = """
import sys

import numpy as np

import ropeway as rw

METHOD = None if sys.argv[1] == "default" else sys.argv[1]


class Data:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"img": np.full((3, 3), index, "u1"), "obj": np.array([{}, "x", None], object)}


if __name__ == "__main__":
    with rw.Loader(Data(), 2, int(sys.argv[2]), start_method=METHOD) as loader:
        for _ in range(2):
            for number, batch in enumerate(loader):
                assert batch["img"].dtype == "u1" and (batch["img"][1] == 2 * number + 1).all()
                assert [list(obj) for obj in batch["obj"]] == [[{}, "x", None]] * 2
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_objects_are_pickled_beside_what_is_shared(room, loader_method, workers):
    room.run(PROGRAM, loader_method, workers)
