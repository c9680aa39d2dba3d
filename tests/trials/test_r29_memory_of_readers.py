"""R29, copy-on-write growth and pages that are counted many times: pytorch/pytorch#5902.

Also pytorch/pytorch#13246, ray-project/ray#34613, and a page on num_workers, htop and memory.
Reading costs nothing per worker, and our own numbers count a shared byte once.
"""

from tree import times

READERS = """
import multiprocessing as mp
import os
import sys

import numpy as np

import ropeway as rw

METHOD, MIB = sys.argv[1], int(sys.argv[2])
CONTEXT = mp.get_context(METHOD)
ROWS = MIB * 256
BATCH, EPOCHS = 64, 3


def read(array, indices, queue, end, number, workers):
    for _ in range(EPOCHS):
        for start in range(number * BATCH, ROWS, workers * BATCH):
            queue.put(array[indices[start : start + BATCH]], timeout=20)
        queue.put(number, timeout=20)
    end.get(timeout=20)


def children(pid):
    for thread in os.listdir(f"/proc/{pid}/task"):
        for child in open(f"/proc/{pid}/task/{thread}/children").read().split():
            yield int(child)
            yield from children(child)


def pss():
    # in MiB, over the tree; what the start method itself keeps running is in it too
    total = 0
    for pid in [os.getpid(), *children(os.getpid())]:
        for line in open(f"/proc/{pid}/smaps_rollup"):
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def shared_bytes():
    # what the kernel has given to the memory files that this process has open
    sizes = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:"):
                status = os.stat(f"/proc/self/fd/{name}")
                sizes[status.st_ino] = status.st_blocks * 512
        except FileNotFoundError:  # the listing's own
            pass
    return sum(sizes.values())


def epochs(array, indices, workers):
    queue, end = rw.Queue(16), rw.Queue()
    processes = [
        CONTEXT.Process(target=read, args=(array, indices, queue, end, number, workers))
        for number in range(workers)
    ]
    for process in processes:
        process.start()
    sizes, total = [], 0
    ended = 0
    while ended < workers * EPOCHS:
        batch = queue.get(timeout=20)
        if isinstance(batch, int):
            ended += 1
            if ended % workers == 0:
                sizes.append(pss())
            continue
        total += int(batch[:, 0].sum())
    assert total == EPOCHS * (ROWS * (ROWS - 1) // 2), total
    pool = queue.status().committed / (1 << 20)
    ours = rw.status()
    assert ours.bytes == array.nbytes + indices.nbytes and ours.members > workers, ours
    said = ours.bytes + queue.status().committed
    assert abs(said - shared_bytes()) <= 0.01 * said, (said, shared_bytes())
    for _ in processes:
        end.put(None)
    for process in processes:
        process.join(20)
        assert process.exitcode == 0, process
    assert sizes[-1] - sizes[0] < 32, sizes
    # the server from which workers are forked is one process more
    most = MIB + pool + 80 * (workers + 1 + (METHOD == "forkserver"))
    assert max(sizes) <= most, (sizes, most)
    return max(sizes), pool


if __name__ == "__main__":
    array = rw.empty((ROWS, 1024), "i4")
    array[:] = np.arange(ROWS, dtype="i4")[:, None]
    indices = rw.share(np.random.default_rng(29).permutation(ROWS))
    two, pool = epochs(array, indices, 2)
    eight, _ = epochs(array, indices, 8)
    assert eight - two <= 80 * 6, (two, eight)
    assert pool < 16, pool
    print(f"{METHOD}: {two:.0f} MiB with 2 workers, {eight:.0f} with 8")
"""


def test_reading_costs_no_memory_per_worker(room, method):
    print(room.run(READERS, method, times(512, 128, method), seconds=100))


ONCE = """
import multiprocessing as mp
import sys

import numpy as np

import ropeway as rw

CONTEXT = mp.get_context(*sys.argv[1:2])
MIB = 1 << 20


def hold(array, pool, ready, end):
    assert (array == 1).all()
    ready.put((rw.status().bytes, pool.status().committed))
    end.get(timeout=20)


if __name__ == "__main__":
    array = rw.zeros(32 * MIB, "u1")
    array[:] = 1
    pool = rw.Pool(2, shape=(MIB,), dtype="u1")
    for _ in range(2):
        with pool.acquire(timeout=20) as slot:
            slot.array[:] = 1
            slot.publish()
    ready, end = rw.Queue(), rw.Queue()
    processes = [CONTEXT.Process(target=hold, args=(array, pool, ready, end)) for _ in range(4)]
    for process in processes:
        process.start()
    for _ in processes:
        assert ready.get(timeout=20) == (32 * MIB, 2 * MIB)
    assert rw.status().bytes == 32 * MIB
    for _ in processes:
        end.put(None)
    for process in processes:
        process.join(20)
        assert process.exitcode == 0
    views = [array[k:] for k in range(100)]
    assert rw.status().bytes == 32 * MIB
    del array, views
    assert rw.status().bytes == 0
"""


def test_every_process_counts_a_shared_byte_once(room, method):
    """A sibling: the numbers are the same in whatever process asks, and fall when arrays go."""
    room.run(ONCE, method)


UNREAD = """
import multiprocessing as mp
import os
import sys

import numpy as np

import ropeway as rw


def private():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) / 1024


def read(queue):
    array = queue.get(timeout=20)
    total = int(array.sum())  # NumPy's buffers are there from now on
    before = private()
    for _ in range(20):
        for row in array:
            total += int(row[0])
    assert private() - before < 8, (before, private())


if __name__ == "__main__":
    queue = rw.Queue()
    queue.put(rw.share(np.ones((16 * 256, 1024), "i4")))
    process = mp.get_context(sys.argv[1]).Process(target=read, args=(queue,))
    process.start()
    process.join(25)
    assert process.exitcode == 0
"""


def test_reading_makes_no_private_pages(room, method):
    """A sibling: no reference counts lie in the shared pages."""
    room.run(UNREAD, method)
