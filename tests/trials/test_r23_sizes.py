"""R23, size rounded up to a page: python/cpython#101623.

Also getsentry/arroyo#67, osvenskan/posix_ipc#35. The receiver sees exactly the bytes that were
asked for; the page size is no parameter here, so the trial's second step has no place.
"""

EXACT = """
import multiprocessing as mp
import sys

import numpy as np

import ropeway as rw

CONTEXT = mp.get_context(*sys.argv[1:2])
WANTED = [(size, "u1") for size in (1, 4095, 4096, 4097, 12289, 80_000)] + [(10_000, "f8")]


def reach(array):
    # every byte that can be reached from an array by public means
    yield array.tobytes()
    yield memoryview(array).tobytes()
    owner = array.base
    while owner is not None:
        try:
            yield memoryview(owner).tobytes()
        except TypeError:
            pass
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)


def check(array, count, dtype):
    nbytes = count * np.dtype(dtype).itemsize
    assert array.shape == (count,) and array.dtype == dtype
    assert array.nbytes == nbytes == len(array.tobytes()) == memoryview(array).nbytes
    assert np.from_dlpack(array).shape == (count,)
    assert array.sum(dtype="f8") == 7 * count
    for found in reach(array):
        assert b"\\xff" not in found, (count, len(found), found.count(b"\\xff"))
        assert len(found) == nbytes, (count, len(found))


def start(target, *arguments):
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    return process


def finish(process):
    process.join(30)
    assert process.exitcode == 0, process
"""

QUEUE = (
    EXACT
    + """
def receive(queue, shared):
    for _ in range(16):  # every slot of the queue
        assert (queue.get(timeout=30) == 255).all()
    for count, dtype in WANTED:
        check(queue.get(timeout=30), count, dtype)
    for count, dtype in WANTED:
        check(shared.get(timeout=30), count, dtype)


if __name__ == "__main__":
    queue, shared = rw.Queue(1), rw.Queue(1)
    receiver = start(receive, queue, shared)
    for _ in range(16):
        queue.put(np.full(200_000, 255, "u1"), timeout=30)
    for count, dtype in WANTED:
        queue.put(np.full(count, 7, dtype), timeout=30)
    for count, dtype in WANTED:
        old = rw.empty(200_000, "u1")
        old[:] = 255
        del old
        array = rw.empty(count, dtype)
        array[:] = 7
        check(array, count, dtype)
        shared.put(array, timeout=30)
    finish(receiver)
"""
)

POOL = (
    EXACT
    + """
def receive(pool):
    for count, dtype in WANTED:
        slot = pool.take(timeout=30)
        assert slot.keys() == ["x"]
        check(slot["x"], count, dtype)
        slot.release()


if __name__ == "__main__":
    pool = rw.Pool(1)
    with pool.acquire(timeout=30) as slot:
        slot.add("x", 200_000, "u1")[:] = 255
    receiver = start(receive, pool)
    for count, dtype in WANTED:
        with pool.acquire(timeout=30) as slot:
            slot.add("x", count, dtype)[:] = 7
            slot.publish()
    finish(receiver)
"""
)


def test_a_receiver_sees_exactly_the_bytes_of_the_message(room, method):
    room.run(QUEUE, method)


def test_a_reader_sees_exactly_the_bytes_of_the_slot(room, method):
    room.run(POOL, method)


STALE = (
    EXACT
    + """
queue = rw.Queue(1)


def exchange(message):
    for _ in range(16):  # every slot of the queue
        queue.put(np.full(200_000, 255, "u1"))
        queue.get()
    queue.put(message)
    return queue.get()


pair = exchange([np.full(1, 7, "u1"), np.full(33, 7, "u1"), np.full(9, 7, "f4")])
table = np.full((40, 50), 7, "u1")
pair += exchange([table[:, :3], table[:, 20:27]])
pair += exchange([np.asfortranarray(np.full((5, 7), 7, "u1"))])
for array in pair:
    assert (array == 7).all()
    for found in reach(array):
        assert b"\\xff" not in found, (array.shape, len(found), found.count(b"\\xff"))
"""
)


def test_gaps_between_arrays_of_a_message_hold_nothing_of_earlier_messages(room):
    """A sibling: arrays of one message lie apart by their alignment."""
    room.run(STALE)


ZEROS = (
    EXACT
    + """
for count, dtype in WANTED * 2:
    old = rw.empty(count, dtype)
    old.view("u1")[:] = 255
    del old
    array = rw.zeros(count, dtype)
    assert not array.any() and not bytes(memoryview(array.base)).strip(b"\\0")
"""
)


def test_zeros_are_zero_in_memory_that_was_used_before(room):
    """A sibling: `zeros` knows whether its pages are fresh."""
    room.run(ZEROS)


BOUNDS = (
    EXACT
    + """
import pickle

array = rw.zeros(1, "u1")
restore, (handle, text, shape, offset, strides, writeable) = array.__reduce_ex__(5)
for forged in [(4096,), (2,), (200,)]:
    try:
        restore(handle, text, forged, offset, strides, writeable)
    except (TypeError, ValueError):
        pass
    else:
        raise AssertionError(f"a view of {forged} over 1 byte")
"""
)


def test_the_rest_of_the_page_is_out_of_reach(room):
    """A sibling: the size of the memory is that of the array, not that of its page."""
    room.run(BOUNDS)
