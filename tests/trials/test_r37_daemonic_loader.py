"""R37, nested pools and daemonic processes, with the loader: pytorch/pytorch#15950.

Also facebookresearch/spdl#1590, dask/distributed#2718.
"""

PROGRAM = """
import multiprocessing as mp
import sys

import ropeway as rw

METHOD = None if sys.argv[1] == "default" else sys.argv[1]
CONTEXT = mp.get_context("fork" if METHOD is None else METHOD)


def total(workers):
    try:
        with rw.Loader(range(100), 4, workers, start_method=METHOD) as loader:
            return sum(int(batch.sum()) for batch in loader)
    except RuntimeError as error:
        assert "daemonic" in str(error) and "workers=0" in str(error), error
        return "refused"


if __name__ == "__main__":
    with CONTEXT.Pool(2) as pool:
        assert pool.map(total, [0, 0]) == [4950, 4950]
        wanted = 4950 if METHOD is None else "refused"
        assert pool.map(total, [2, 2]) == [wanted] * 2
        assert pool.map(abs, [-1, 2]) == [1, 2]
        pool.close()
        pool.join()
    assert total(2) == 4950
"""


def test_a_loader_in_a_daemonic_process_works_or_is_refused(room, loader_method):
    room.run(PROGRAM, loader_method)


NESTED = """
import ropeway as rw


class Inner:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index


class Outer(Inner):
    def __getitem__(self, index):
        with rw.Loader(Inner(), 5, 1) as loader:
            return index * sum(int(batch.sum()) for batch in loader)


if __name__ == "__main__":
    with rw.Loader(Outer(), 5, 2) as loader:
        assert [n for batch in loader for n in batch.tolist()] == [45 * n for n in range(10)]
"""


def test_a_loader_within_a_loaders_worker_works(room):
    """A sibling: a dataset that has a loader itself."""
    room.run(NESTED)


THREADS = """
import threading

import ropeway as rw

if __name__ == "__main__":
    sums = []

    def run():
        with rw.Loader(range(100), 4, 2) as loader:
            sums.append(sum(int(batch.sum()) for batch in loader))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [4950] * 4
"""


def test_loaders_in_threads_work(room):
    """A sibling: one loader in each of several threads."""
    room.run(THREADS)
