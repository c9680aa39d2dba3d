"""R30, very small samples, with the loader: google/grain#851."""

PROGRAM = """
import sys
import time

import numpy as np

import ropeway as rw

NAMES = [f"field{k}" for k in range(30)]
READY = {name: np.full(512, k, "f4") for k, name in enumerate(NAMES)}
COUNT = int(sys.argv[1])


class Data:
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return READY


def touch(batch):
    assert all(batch[name][0, 0] == k for k, name in enumerate(NAMES))


if __name__ == "__main__":
    with rw.Loader(Data(), 1, 1) as loader:
        seen, times = 0, []
        for batch in loader:
            begin = time.perf_counter()
            touch(batch)
            del batch
            times.append(time.perf_counter() - begin)
            seen += 1
        assert seen == COUNT
        print(sorted(times)[COUNT // 2])
"""


def test_a_batch_of_30_fields_is_touched_and_dropped_in_a_millisecond(room):
    assert float(room.run(PROGRAM, 2100)) <= 1e-3


COUNTED = (
    PROGRAM.replace(
        "        seen, times = 0, []",
        """        def maps():
            pids = ["self", *loader._engine.crew.pids().values()]
            return [open(f"/proc/{pid}/maps").read().count("memfd") for pid in pids]

        seen, times, counts = 0, [], set()""",
    )
    .replace(
        "            seen += 1",
        """            seen += 1
            if seen > 100 and seen % 50 == 0:
                counts.add(tuple(maps()))""",
    )
    .replace(
        "        print(sorted", "        assert len(counts) == 1, counts\n        print(sorted"
    )
)


def test_no_mappings_come_and_go_with_batches(room):
    """What a counter of system calls would show, without one."""
    room.run(COUNTED, 2100)
