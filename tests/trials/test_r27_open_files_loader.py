"""R27, too many open files, with the loader: pytorch/pytorch#11201."""

import pytest

PROGRAM = """
import gc
import os
import resource
import sys

import numpy as np

import ropeway as rw

resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
METHOD = None if sys.argv[1] == "default" else sys.argv[1]


class Data:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"index": index, "array": np.full(100, index, "f8")}


def descriptors():
    return len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    start = descriptors()
    with rw.Loader(Data(5000), None, 2, start_method=METHOD) as loader:
        kept, most = [], 0
        for sample in loader:
            kept.append(sample)
            most = max(most, descriptors())
    assert most <= start + 40, (start, most)
    assert len(kept) == 5000
    assert all(s["index"] == k and (s["array"] == k).all() for k, s in enumerate(kept))
    del kept, sample, loader
    gc.collect()
    with rw.Loader(Data(800), 4, 2, start_method=METHOD) as loader:
        counts = []
        for _ in range(20):
            assert sum(len(batch["index"]) for batch in loader) == 800
            counts.append(descriptors())
    assert counts == counts[:1] * 20, counts
"""


def test_5000_samples_are_kept_with_256_descriptors(room, loader_method):
    room.run(PROGRAM, loader_method, seconds=60)


LOADERS = (
    PROGRAM.split("if __name__")[0]
    + """
if __name__ == "__main__":
    counts = []
    for _ in range(10):
        with rw.Loader(Data(40), 4, 2, start_method=METHOD) as loader:
            assert len(list(loader)) == 10
        del loader
        gc.collect()
        counts.append(descriptors())
    assert counts == counts[:1] * 10, counts
"""
)


@pytest.mark.parametrize("method", ["default", "fork", "spawn"])
def test_loaders_that_come_and_go_leave_no_descriptor(room, method):
    """A sibling: many loaders, one after the other."""
    room.run(LOADERS, method, seconds=60)
