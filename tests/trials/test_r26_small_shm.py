"""R26, a small /dev/shm and SIGBUS: python/cpython#114390.

Also pytorch/pytorch#5247, joblib/joblib#513, joblib/joblib#168. Memory is there before it is
promised, or an ordinary error says how much was asked for and how much there is.
"""

import shutil
import subprocess

import pytest


@pytest.fixture
def small_room(room):
    """A room whose /dev/shm has 16 MiB, of its own; skips where that isn't allowed."""
    probe = ["unshare", "--mount", "true"]
    if shutil.which("unshare") is None or subprocess.run(probe, check=False).returncode:
        pytest.skip("this user may not have a mount of its own")
    return room


SMALL = """
import gc
import multiprocessing as mp
import os
import subprocess
import sys

import numpy as np

import ropeway as rw

CONTEXT = mp.get_context(*sys.argv[1:2])
MIB = 1 << 20


def shrink():
    subprocess.run(["mount", "-o", "remount,size=16m", "/dev/shm"], check=True)
    room = os.statvfs("/dev/shm")
    assert room.f_blocks * room.f_frsize == 16 * MIB


def fill_mount():
    with open("/dev/shm/filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(MIB))
        except OSError as error:
            assert error.errno == 28, error
    assert os.statvfs("/dev/shm").f_bfree == 0


def start(target, *arguments):
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    return process


def finish(*processes):
    for process in processes:
        process.join(20)
        assert process.exitcode == 0, process


def write_all(pool, value):
    leases = [pool.acquire(timeout=20) for _ in range(2)]
    for lease in leases:
        lease.array[:] = value
        assert (lease.array == value).all()
        lease.release()
"""

POOLS = (
    SMALL
    + """
shrink()
pool = rw.Pool(8, shape=(4 * MIB,), dtype="u1")
leases = [pool.acquire(timeout=20) for _ in range(8)]
for value, lease in enumerate(leases):
    lease.array[:] = value
assert all((lease.array == value).all() for value, lease in enumerate(leases))
for lease in leases:
    lease.release()
write_all(rw.Pool(2, shape=(4 * MIB,), dtype="u1"), 7)
assert os.statvfs("/dev/shm").f_bfree * os.statvfs("/dev/shm").f_frsize == 16 * MIB
"""
)

FULL = (
    SMALL
    + """
if __name__ == "__main__":
    shrink()
    pool = rw.Pool(2, shape=(4 * MIB,), dtype="u1")
    array = rw.empty(4 * MIB, "u1")
    fill_mount()
    write_all(pool, 7)
    finish(start(write_all, pool, 8))
    array[:] = 9
    os.unlink("/dev/shm/filler")
"""
)

WORKERS = (
    SMALL
    + """
def work(queue, numbers):
    for number in numbers:
        queue.put((number, np.full(6 * MIB, number, "u1")), timeout=20)


if __name__ == "__main__":
    shrink()
    queue = rw.Queue(4)
    workers = [start(work, queue, range(half, 16, 2)) for half in (0, 1)]
    batches = dict(queue.get(timeout=20) for _ in range(16))
    assert all((batch == number).all() for number, batch in batches.items())
    finish(*workers)
"""
)


def test_pools_larger_than_the_mount_can_be_written(small_room):
    small_room.run(POOLS)


def test_a_full_mount_takes_nothing_from_slots_that_were_made(small_room, method):
    """Without semaphores of multiprocessing, which need the mount."""
    small_room.run(FULL, method)


def test_workers_send_large_batches_over_a_small_mount(small_room, method):
    small_room.run(WORKERS, method)


REFUSED = """
import re
import sys

import ropeway as rw

ASKED = 1 << 44


def refused(ask):
    try:
        ask()
    except rw.OutOfMemory as error:
        assert isinstance(error, MemoryError)
        numbers = [int(number) for number in re.findall(r"\\d{6,}", str(error))]
        assert max(numbers) >= ASKED > min(numbers), error
        return
    raise AssertionError("16 TiB were promised")


def again(queue, pool):
    queue.put(b"x")
    assert queue.get(timeout=20) == b"x" and queue.qsize() == 0
    with pool.acquire(timeout=20) as slot:
        slot.add("x", 3, "u1")[:] = 1
        slot.publish()
    pool.take(timeout=20).release()
    assert rw.zeros(3).sum() == 0


queue, pool = rw.Queue(2), rw.Pool(1)
refused(lambda: rw.empty(ASKED, "u1"))
refused(lambda: rw.Pool(4, shape=(ASKED // 4,), dtype="u1"))
again(queue, pool)
slot = pool.acquire(timeout=20)
refused(lambda: slot.add("x", ASKED, "u1"))
slot.release()
again(queue, pool)
"""

LIMITED = """
import numpy as np

import ropeway as rw

MIB = 1 << 20
try:
    rw.Pool(8, shape=(4 * MIB,), dtype="u1", memory_limit=16 * MIB)
except rw.OutOfMemory as error:
    assert str(32 * MIB) in str(error) and str(16 * MIB) in str(error), error
else:
    raise AssertionError("a pool above its own limit")
pool = rw.Pool(4, memory_limit=16 * MIB)
held = []
for _ in range(3):
    slot = pool.acquire(timeout=20)
    slot.add("x", 4 * MIB, "u1")[:] = 1
    held.append(slot)
slot = pool.acquire(timeout=20)
try:
    slot.add("x", 8 * MIB, "u1")
except rw.OutOfMemory as error:
    assert str(8 * MIB) in str(error) and str(16 * MIB) in str(error), error
else:
    raise AssertionError("a slot above the pool's limit")
assert slot.keys() == []
slot.add("x", 3 * MIB, "u1")[:] = 1
for slot in [*held, slot]:
    slot.publish()
assert sum(pool.take(timeout=20).array.sum() for _ in range(4)) == 15 * MIB
assert pool.status().committed <= 16 * MIB
"""

FILES_OF_1_MIB = """
import resource

import numpy as np

import ropeway as rw

# `ulimit -f`: a larger file raises SIGXFSZ in a program that doesn't ignore it
pool = rw.Pool(2, shape=(1 << 16,), dtype="u1")
try:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    made = rw.Pool(2, shape=(1 << 22,), dtype="u1")
    made.acquire(timeout=20).array[:] = 1
except rw.RopewayError as error:
    assert str(1 << 20) in str(error), error
pool.acquire(timeout=20).array[:] = 1
"""


def test_more_than_the_machine_has_is_refused_by_a_sentence_with_both_numbers(room):
    """A sibling: no SIGBUS and no killer of processes, whatever size is asked for."""
    room.run(REFUSED)


def test_a_pool_keeps_to_its_own_limit(room):
    """A sibling: `memory_limit` refuses what is above it, and the slot stays usable."""
    room.run(LIMITED)


def test_a_limit_on_the_size_of_files_is_an_error_and_no_signal(room):
    """A sibling: the segment is a file to the kernel."""
    room.run(FILES_OF_1_MIB)
