"""R02: a tree that was killed leaves no memory behind (joblib/joblib#198)."""

import signal

from tree import eventually, everybody, segments

LIVE_SESSION = """
    import sys
    import numpy as np
    import ropeway as rw

    array = rw.share(np.arange(1 << 20, dtype="uint64"))
    for line in sys.stdin:
        print(int(array.sum()), rw.status().committed, flush=True)
"""

JOB = """
    import multiprocessing, sys
    import ropeway as rw

    def hold(pool, number, ready, done):
        with pool.acquire() as slot:
            slot["array"][:] = number
            ready.send(None)
            done.recv()

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        pool = rw.Pool(slots=8, shape=(64 << 20,), dtype="uint8")
        queue, array = rw.Queue(), rw.zeros(16 << 20, "uint8")
        queue.put([array, rw.zeros(1 << 20, "uint8"), bytearray(1 << 20)])
        ends = []
        for number in range(3):
            (ready, tell_ready), (done, tell_done) = context.Pipe(False), context.Pipe(False)
            worker = context.Process(target=hold, args=(pool, number, tell_ready, done))
            worker.start()
            ends.append((worker, ready, tell_done))
        for number in range(3, 8):
            with pool.acquire() as slot:
                slot["array"][:] = number
                slot.publish()
        for _, ready, _ in ends:
            ready.recv()
        print("ready", flush=True)
        sys.stdin.readline()
        for worker, _, tell_done in ends:
            tell_done.send(None)
            worker.join()
            assert worker.exitcode == 0
"""


def test_a_killed_tree_gives_its_memory_back(room):
    """R02 as reported, five times, also for arrays and messages; the start methods take turns."""
    live = room.start(LIVE_SESSION)
    live.tell("")
    first = live.hear()
    assert first.startswith(f"{sum(range(1 << 20))} ")
    for method in ("fork", "spawn", "forkserver", "fork", "spawn"):
        victim = room.start(JOB, method)
        assert victim.hear() == "ready"
        taken = _segments_of(victim)
        victim.signal_all(signal.SIGKILL)
        assert victim.wait() == -signal.SIGKILL
        assert victim.errors() == ""
        _check_gone(taken)

        successor = room.start(JOB, method)
        assert successor.hear() == "ready"
        taken = _segments_of(successor)
        successor.check_end()
        _check_gone(taken)

        live.tell("")
        assert live.hear() == first
    live.check_end()


def _segments_of(program):
    found = segments(program.tree())
    assert sum(found.values()) >= 8 * (64 << 20)
    return found.keys()


def _check_gone(inodes):
    assert eventually(lambda: not inodes & segments(everybody()).keys())
