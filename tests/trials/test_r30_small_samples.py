"""R30, very small samples, cost per item: google/grain#851.

Also pytorch/pytorch#12831, facebookresearch/spdl#1594. Slots are used again and again: in steady
state no system objects are made or removed.
"""

import re
import shutil

import pytest

BATCHES = """
import multiprocessing as mp
import os
import statistics
import sys
import time

import numpy as np

import ropeway as rw

CONTEXT = mp.get_context(sys.argv[1])
WARM, TIMED = 100, 2000
BATCH = {f"field {k}": np.full(512, k, "f4") for k in range(30)}


def produce(queue, barrier):
    barrier.wait(20)
    for number in range(WARM + TIMED):
        queue.put(BATCH)
        if number == WARM:
            os.access("/begin", os.F_OK)
    os.access("/end", os.F_OK)
    barrier.wait(60)
    if hasattr(queue, "join_thread"):
        queue.close()
        queue.join_thread()


def consume(queue):
    # seconds that each of the timed batches took: taking, touching each array, dropping
    barrier = CONTEXT.Barrier(2)
    process = CONTEXT.Process(target=produce, args=(queue, barrier))
    process.start()
    barrier.wait(20)
    times = []
    for number in range(WARM + TIMED):
        if number == WARM:
            os.access("/begin", os.F_OK)
        start = time.perf_counter()
        batch = queue.get(timeout=20)
        for k, array in enumerate(batch.values()):
            assert array[-1] == k
        del array, batch
        times.append(time.perf_counter() - start)
    os.access("/end", os.F_OK)
    barrier.wait(60)
    process.join(20)
    assert process.exitcode == 0
    return times[WARM:]
"""

TIMES = (
    BATCHES
    + """
if __name__ == "__main__":
    ours = consume(rw.Queue(16))
    theirs = consume(CONTEXT.Queue(16))
    print(statistics.median(ours), sum(ours), statistics.median(theirs), sum(theirs))
"""
)

CALLS = (
    BATCHES
    + """
if __name__ == "__main__":
    consume(rw.Queue(16))
"""
)

TRACED = """
import os
import sys

log, calls, *program = sys.argv[1:]
os.execvp("strace", ["strace", "-fqq", "-o", log, "-e", calls, sys.executable, *program])
"""

MAKING = (
    "open,openat,openat2,creat,memfd_create,ftruncate,fallocate,mmap,munmap,mremap,"
    "unlink,unlinkat,shmget,shmat,shmdt,socket,pipe2,dup,fcntl,close"
)


def test_a_batch_of_small_arrays_costs_less_than_pickling_it(room, method):
    """The trial's bound of 1 ms is printed, not asserted; the contest is, in the best of five."""
    ratios = []
    while min(ratios, default=2) > 1 and len(ratios) < 5:
        median, total, their_median, their_total = map(float, room.run(TIMES, method).split())
        ratios.append(total / their_total)
        print(
            f"{method}: {median * 1e3:.3f} ms a batch, {total:.2f} s in all; "
            f"standard queue {their_median * 1e3:.3f} ms, {their_total:.2f} s"
        )
    assert min(ratios) <= 1, ratios


def test_steady_state_makes_no_system_objects(room, tmp_path, method):
    if shutil.which("strace") is None:
        pytest.skip("there is no strace here")
    program = tmp_path / "calls.py"
    program.write_text(CALLS)
    log = tmp_path / "calls"
    calls = f"trace=access,faccessat,faccessat2,{MAKING}"
    room.run(TRACED, log, calls, program, method, seconds=60)
    calls = list(_between_marks(log.read_text().splitlines()))
    print(f"{method}: {len(calls)} calls over 2,000 batches")
    assert len(calls) <= 200, calls[:20]


def _between_marks(lines):
    """The calls of each process between its own two marks."""
    inside = {}
    for line in lines:
        pid, call = line.split(maxsplit=1)
        if '"/begin"' in call:
            inside[pid] = True
        elif '"/end"' in call:
            inside[pid] = False
        elif inside.get(pid) and re.match(r"\w+\(", call):
            yield line
    assert len(inside) == 2, inside
    assert not any(inside.values()), inside
