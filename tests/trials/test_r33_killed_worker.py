"""R33, a worker killed inside a critical section: birdnet-team/birdnet#73.

Also python/cpython#96062, neumovelab/myoassist#35. There is no lock that can die with its owner:
the others go on, and what the dead held is free again.
"""

import pytest
from tree import times

WORKERS = """
import multiprocessing as mp
import os
import random
import signal
import sys
import time

import numpy as np

import ropeway as rw

CONTEXT, ROUNDS = mp.get_context(sys.argv[1]), int(sys.argv[2])
CONTEXT.set_forkserver_preload(["ropeway"])  # or a round takes as long as by spawn
RANDOM = random.Random(33)


def work(pool, queue):
    number = 0
    while True:
        number += 1
        with pool.acquire() as slot:
            slot["batch"][:] = number
            slot.meta = [os.getpid(), number]
            slot.publish()
        queue.put((os.getpid(), number, np.full(1000, number)))


def start(*arguments, target=work):
    process = CONTEXT.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def kill(process):
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.join(5)
    assert process.exitcode == -signal.SIGKILL


def consume(pool, queue):
    # one batch and one message, both right
    with pool.take(timeout=5) as slot:
        pid, number = slot.meta
        assert (slot["batch"] == number).all(), (pid, number, slot["batch"])
        assert slot.deliveries == 0
    sender, number, array = queue.get(timeout=5)
    assert (array == number).all(), (sender, number, array)
    return pid


def held(pool, pid):
    return [slot for slot in pool.status().slots if slot.pid == pid and slot.state != "idle"]


def check_freed(pool, queue, pid):
    # within 5 s nothing is held by the dead, while the consumer goes on
    end = time.monotonic() + 5
    while held(pool, pid) or held(queue, pid):
        assert time.monotonic() < end, (held(pool, pid), held(queue, pid))
        consume(pool, queue)
"""

ROUNDS = (
    WORKERS
    + """
if __name__ == "__main__":
    pool = rw.Pool(16, fields={"batch": ((16, 1000), "i8")})
    queue = rw.Queue(16)
    workers = [start(pool, queue) for _ in range(4)]
    for _ in range(ROUNDS):
        end = time.monotonic() + 0.05 + RANDOM.random() * 0.01
        while time.monotonic() < end:
            consume(pool, queue)
        victim = workers.pop(RANDOM.randrange(2))  # one of the older ones
        kill(victim)
        check_freed(pool, queue, victim.pid)
        victim.close()
        workers.append(start(pool, queue))
    for worker in workers:
        kill(worker)
    pool.sweep()
    assert 0 < pool.status().deaths <= ROUNDS + 4, pool.status()

    # other workers on the same pool
    while pool.waiting():
        pool.take(timeout=5).release()
    while queue.qsize():
        queue.get(timeout=5)
    workers = [start(pool, queue) for _ in range(4)]
    pids = {worker.pid for worker in workers}
    assert all(consume(pool, queue) in pids for _ in range(10))
    for worker in workers:
        kill(worker)
        worker.close()
    pool.sweep()
    while pool.waiting():
        pool.take(timeout=5).release()
    assert all(slot.state == "idle" and slot.stage == "fill" for slot in pool.status().slots)
    assert not pool.status().lost and not queue.status().lost
"""
)


@pytest.mark.timeout(400)
def test_the_others_go_on_when_a_worker_is_stopped_and_killed(room, method):
    room.run(ROUNDS, method, times(200, 20, method), seconds=300)


ORPHANS = (
    WORKERS
    + """
def wait(handles, sender):
    pool, queue = handles
    for waiting in (pool.take, pool.acquire, queue.get):
        try:
            waiting(timeout=20)
        except rw.PeerDied as error:
            sender.send(str(error))
        except BaseException as error:
            sender.send(repr(error))
    sender.close()


def create(sender):
    pool, queue = rw.Pool(1, shape=(3,), dtype="u1"), rw.Queue()
    sender.send((pool, queue))
    time.sleep(60)


if __name__ == "__main__":
    (things, sender), (errors, reporter) = CONTEXT.Pipe(False), CONTEXT.Pipe(False)
    creator = start(sender, target=create)
    handles = things.recv()
    waiter = start(handles, reporter, target=wait)
    time.sleep(0.2)
    kill(creator)
    reporter.close()
    for _ in range(3):
        assert errors.poll(20)
        error = errors.recv()
        assert str(creator.pid) in error and "died" in error, error
    waiter.join(20)
    assert waiter.exitcode == 0
"""
)


def test_who_waits_for_a_dead_creator_is_told_its_number(room, method):
    """A sibling: the process that made pool and queue is killed while another waits."""
    room.run(ORPHANS, method, 1)


READER = (
    WORKERS
    + """
def read(pool, queue):
    slot = pool.take(timeout=20)
    queue.put((slot.meta, slot.deliveries))
    time.sleep(60)


if __name__ == "__main__":
    pool, queue = rw.Pool(2, shape=(1000,), dtype="i8"), rw.Queue()
    with pool.acquire() as slot:
        slot.array[:] = 33
        slot.meta = "once"
        slot.publish()
    for deliveries in range(2):
        reader = start(pool, queue, target=read)
        assert queue.get(timeout=20) == ("once", deliveries)
        kill(reader)
    slot = pool.take(timeout=5)
    assert (slot.array == 33).all() and slot.meta == "once" and slot.deliveries == 2
    slot.release()
    assert not pool.status().lost
"""
)


def test_what_a_dead_reader_held_comes_again(room, method):
    """A sibling: the consumer is killed, not the producer."""
    room.run(READER, method, 1)


STOPPED = (
    WORKERS
    + """
def half(pool, queue):
    slot = pool.acquire(timeout=20)
    slot.array[:500] = 1
    queue.put("half")
    slot.array[500:] = 1
    time.sleep(60)


if __name__ == "__main__":
    pool, queue = rw.Pool(1, shape=(1000,), dtype="i8"), rw.Queue()
    worker = start(pool, queue, target=half)
    assert queue.get(timeout=20) == "half"
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        pool.acquire(timeout=0.3)
    except rw.Timeout as error:
        assert str(worker.pid) in str(error), error
    else:
        raise AssertionError("a stopped worker isn't dead")
    (slot,) = pool.status().slots
    assert slot.pid == worker.pid and slot.state == "held-write"
    worker.kill()
    worker.join(5)
    slot = pool.acquire(timeout=5)
    slot.array[:] = 2
    slot.publish()
    assert (pool.take(timeout=5).array == 2).all()
"""
)


def test_a_stopped_worker_keeps_its_slot_and_is_named(room, method):
    """A sibling: nothing is taken back on time alone."""
    room.run(STOPPED, method, 1)
