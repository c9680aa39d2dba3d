"""R27, too many open files: pytorch/pytorch#11201.

Also pytorch/pytorch#973, pytorch/pytorch#41465, RolnickLab/ami-data-companion#145.
The number of descriptors depends on the number of pools and processes, not of live arrays.
"""

LIMITED = """
import gc
import multiprocessing as mp
import os
import resource
import sys

import numpy as np

import ropeway as rw

resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
CONTEXT = mp.get_context(*sys.argv[1:2])


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def start(target, *arguments):
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    return process


def finish(processes):
    for process in processes:
        process.join(30)
        assert process.exitcode == 0, process
        process.close()
"""

QUEUE = (
    LIMITED
    + """
def produce(queue, numbers):
    for number in numbers:
        queue.put({"number": number, "data": np.full(100, number, "f8")})


def epoch(count, keep):
    queue = rw.Queue(0 if keep else 64)
    halves = range(0, count, 2), range(1, count, 2)
    workers = [start(produce, queue, half) for half in halves]
    before, most, kept, seen = descriptors(), 0, [], set()
    for number in range(count):
        sample = queue.get(timeout=30)
        assert (sample["data"] == sample["number"]).all()
        seen.add(sample["number"])
        if keep:
            kept.append(sample)
        if number % 50 == 0:
            most = max(most, descriptors())
    assert seen == set(range(count))
    assert all((sample["data"] == sample["number"]).all() for sample in kept)
    finish(workers)
    assert most <= before + 40, (before, most)
    return kept


if __name__ == "__main__":
    kept = epoch(5000, keep=True)
    assert len({sample["data"].ctypes.data for sample in kept}) == 5000
    del kept
    gc.collect()
    counts = []
    for _ in range(20):
        epoch(200, keep=False)
        gc.collect()
        counts.append(descriptors())
    assert counts == counts[:1] * len(counts), counts
"""
)


def test_5000_messages_are_kept_with_256_descriptors(room, method):
    room.run(QUEUE, method, seconds=90)


POOL = (
    LIMITED
    + """
def fill(pool, numbers):
    for number in numbers:
        with pool.acquire(timeout=30) as slot:
            slot["data"][:] = number
            slot.meta = number
            slot.publish()


if __name__ == "__main__":
    pool = rw.Pool(5000, fields={"data": ((100,), "f8")})
    workers = [start(fill, pool, range(half, 5000, 2)) for half in (0, 1)]
    before = descriptors()
    kept = {}
    for _ in range(5000):
        slot = pool.take(timeout=30)
        kept[slot.meta] = slot["data"], slot
    assert descriptors() <= before + 40
    assert all((array == number).all() for number, (array, _) in kept.items())
    finish(workers)
    for number in range(5000):
        array, slot = kept.pop(number)
        del array
        slot.release()
    assert all(slot.state == "idle" and slot.stage == "fill" for slot in pool.status().slots)
    for _ in range(20):
        with rw.Pool(200, shape=(100,), dtype="f8") as other:
            with other.acquire(timeout=30) as slot:
                slot.publish()
            other.take(timeout=30).release()
        del other, slot
        gc.collect()
    assert descriptors() <= before
"""
)


def test_5000_slots_are_held_with_256_descriptors(room, method):
    room.run(POOL, method)


ARRAYS = (
    LIMITED
    + """
def make(queue, count):
    for number in range(count):
        queue.put(rw.share(np.full(100, number, "f8")))


if __name__ == "__main__":
    queue = rw.Queue(32)
    worker = start(make, queue, 5000)
    before, kept = descriptors(), []
    for _ in range(5000):
        kept.append(queue.get(timeout=30))
    finish([worker])
    assert descriptors() <= before + 40
    assert all((array == number).all() for number, array in enumerate(kept))
    maps = sum("memfd:" in line for line in open("/proc/self/maps"))
    assert maps < 40, maps
"""
)


def test_5000_shared_arrays_are_kept_with_256_descriptors(room, method):
    """A sibling: arrays that travel as handles, each with a memory of its own."""
    room.run(ARRAYS, method)


HANDLES = (
    LIMITED
    + """
import pickle

if __name__ == "__main__":
    pool = rw.Pool(2, shape=(10,), dtype="f8")
    array = rw.zeros(10)
    before = descriptors()
    copies = [pickle.loads(pickle.dumps((pool, array))) for _ in range(1000)]
    assert descriptors() == before
    assert len({copy.ctypes.data for _, copy in copies}) == 1
"""
)


def test_opening_a_handle_a_thousand_times_opens_no_descriptor(room):
    """A sibling: the same pool in the same process is the same membership."""
    room.run(HANDLES)
