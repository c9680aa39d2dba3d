"""R37, nested pools and daemonic processes: pytorch/pytorch#15950.

Also facebookresearch/spdl#1590, dask/distributed#2718. What needs no child works in a daemonic
process: slots, queues and arrays need none.
"""

TASKS = """
import multiprocessing as mp
import os
import sys

import numpy as np

import ropeway as rw

CONTEXT = mp.get_context(*sys.argv[1:2])


def begin(*things):
    global POOL, QUEUE
    POOL, QUEUE = things


def task(number):
    assert mp.current_process().daemon
    with POOL.acquire(timeout=20) as slot:
        slot.array[:] = number
        slot.meta = number
        slot.publish()
    QUEUE.put((number, np.full(100, number)), timeout=20)
    return number


def check(pool, queue, numbers):
    seen = {"slots": set(), "messages": set()}
    for _ in numbers:
        with pool.take(timeout=20) as slot:
            assert (slot.array == slot.meta).all()
            seen["slots"].add(slot.meta)
        number, array = queue.get(timeout=20)
        assert (array == number).all()
        seen["messages"].add(number)
    assert seen == {"slots": set(numbers), "messages": set(numbers)}
"""

NESTED = (
    TASKS
    + """
if __name__ == "__main__":
    pool, queue = rw.Pool(4, shape=(1000,), dtype="i8"), rw.Queue(4)
    workers = CONTEXT.Pool(2, begin, (pool, queue))
    for _ in range(2):
        result = workers.map_async(task, range(100))
        check(pool, queue, range(100))
        assert result.get(20) == list(range(100))
    assert workers.map(abs, [-1]) == [1]  # still usable
    workers.close()
    workers.join()
    assert all(slot.state == "idle" and slot.stage == "fill" for slot in pool.status().slots)
    assert queue.empty()
"""
)


def test_daemonic_workers_fill_slots_and_send_messages(room, method):
    room.run(NESTED, method)


TERMINATED = (
    TASKS
    + """
def fill_for_ever(_):
    while True:
        task(1)


if __name__ == "__main__":
    pool, queue = rw.Pool(2, shape=(1000,), dtype="i8"), rw.Queue(2)
    with CONTEXT.Pool(2, begin, (pool, queue)) as workers:
        workers.map_async(fill_for_ever, range(2))
        check(pool, queue, [1])
    # the workers are terminated by SIGTERM, in the middle of their work
    workers.join()
    while pool.waiting():
        pool.take(timeout=5).release()
    for _ in range(2):
        with pool.acquire(timeout=5) as slot:
            slot.publish()
    while not queue.empty():
        queue.get(timeout=5)
    queue.put(2, timeout=5)
    assert queue.get(timeout=5) == 2
"""
)


def test_terminated_daemons_leave_all_slots(room, method):
    """A sibling: the outer pool is terminated while its workers fill."""
    room.run(TERMINATED, method)


MADE = (
    TASKS
    + """
def make(number):
    pool = rw.Pool(2, shape=(10,), dtype="i8")
    with pool.acquire(timeout=20) as slot:
        slot.array[:] = number
        slot.publish()
    queue = rw.Queue()
    queue.put(np.full(10, number))
    assert (queue.get(timeout=20) == number).all()
    assert (pool.take(timeout=20).array == number).all()
    array = rw.zeros(1000)
    array[:] = number
    return array


if __name__ == "__main__":
    with CONTEXT.Pool(2) as workers:
        arrays = workers.map(make, range(20))
        assert all((array == number).all() for number, array in enumerate(arrays))
    assert all((array == number).all() for number, array in enumerate(arrays))
"""
)


def test_daemonic_workers_make_pools_queues_and_arrays_of_their_own(room, method):
    """A sibling: results of a standard pool's `map` come back as handles."""
    room.run(MADE, method)


EXECUTOR = (
    TASKS
    + """
from concurrent.futures import ProcessPoolExecutor


def nested(things):
    begin(*things)
    inner = mp.get_context("fork").Process(target=task_of_child, args=(7,))
    inner.start()
    inner.join(20)
    return inner.exitcode


def task_of_child(number):
    QUEUE.put(number, timeout=20)


if __name__ == "__main__":
    pool, queue = rw.Pool(1, shape=(1,), dtype="u1"), rw.Queue()
    with ProcessPoolExecutor(2, mp_context=CONTEXT) as executor:
        assert list(executor.map(nested, [(pool, queue)] * 4)) == [0] * 4
    assert [queue.get(timeout=20) for _ in range(4)] == [7] * 4
"""
)


def test_grandchildren_send_messages_too(room, method):
    """A sibling: workers that may have children have some, by fork."""
    room.run(EXECUTOR, method)
