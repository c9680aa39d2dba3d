"""R26, small /dev/shm, with the loader: python/cpython#114390; also pytorch/pytorch#5247."""

PROGRAM = """
import subprocess
import sys

import numpy as np

import ropeway as rw


class Data:
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return np.full(6 << 20, index, "u1")


if __name__ == "__main__":
    subprocess.run(["mount", "-o", "remount,size=16M", "/dev/shm"], stderr=subprocess.DEVNULL)
    with rw.Loader(Data(), 1, 2, prefetch=4) as loader:
        kept = list(loader)
    assert [int(batch[0, -1]) for batch in kept] == list(range(24))
"""


def test_the_mount_does_not_matter(room):
    room.run(PROGRAM)


LIMITED = (
    PROGRAM.split("if __name__")[0]
    + """
if __name__ == "__main__":
    with rw.Loader(Data(), 1, 2, prefetch=4, memory_limit=48 << 20) as loader:
        kept = []
        try:
            for batch in loader:
                kept.append(batch)
        except rw.OutOfMemory as error:
            assert "kept" in str(error) and str(len(kept)) in str(error), error
        assert 2 <= len(kept) < 24, len(kept)
        assert [int(batch[0, -1]) for batch in kept] == list(range(len(kept)))
        del kept, batch
        assert [int(batch[0, -1]) for batch in loader] == list(range(24))
"""
)


def test_a_memory_limit_is_an_error_in_time(room):
    """A sibling: the limit is our own."""
    room.run(LIMITED)
