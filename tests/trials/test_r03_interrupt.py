"""R03: one interrupt ends the whole tree, with one traceback (mosaicml/streaming#781).

With a pool and workers of one's own; what the loader adds is tried where the loader is.
"""

import signal
import time

import pytest
from tree import interrupt, times

PROGRAM = """
    import multiprocessing, signal, sys, time
    import ropeway as rw

    EACH = 2500  # samples, by each of 4 workers

    def produce(pool):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for _ in range(EACH):
                with pool.acquire() as slot:
                    time.sleep(0.002)
                    slot["array"][:] = 1
                    slot.publish()
        except rw.Closed:
            return

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        pool = rw.Pool(slots=8, shape=(4096,), dtype="uint8")
        for _ in range(4):
            context.Process(target=produce, args=(pool,)).start()
        for number in range(4 * EACH):
            with pool.take() as slot:
                assert slot["array"].sum() == 4096
            if number == 0:
                print("first", flush=True)
"""


def test_an_interrupt_ends_the_tree_and_the_next_start_works(room, method):
    """Workers that wait for a slot when the main process is interrupted hear that it is over."""
    interrupt(room, PROGRAM, method, times(5, 2, method))


WAITING = """
    import sys
    import ropeway as rw

    queue = rw.Queue(1)
    pool = rw.Pool(slots=2, shape=8, dtype="uint8", max_slots=2)
    elsewhere = pool.acquire()
    calls = {
        "put": lambda: (queue.put(None), queue.put(None)),
        "get": lambda: queue.get(),
        "acquire": lambda: (pool.acquire(), pool.acquire(timeout=100)),
        "take": lambda: pool.take(),
        "iterate": lambda: list(pool),
    }
    print("waiting", flush=True)
    calls[sys.argv[1]]()
"""


@pytest.mark.parametrize("call", ["put", "get", "acquire", "take", "iterate"])
def test_every_wait_can_be_interrupted(room, call):
    """A sibling: the interrupt comes while the main process itself waits."""
    program = room.start(WAITING, call)
    assert program.hear() == "waiting"
    time.sleep(0.2)
    program.signal_all(signal.SIGINT)
    assert program.wait() == -signal.SIGINT
    assert program.errors().count("Traceback") == 1
    assert program.errors().endswith("KeyboardInterrupt\n")
