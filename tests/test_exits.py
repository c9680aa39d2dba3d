"""How processes end, and what becomes of what they held."""

import multiprocessing
import os
import subprocess
import sys
import textwrap

import pytest

import ropeway as rw

WATCHDOG = 60
kept = []


def numbers(slots):
    return rw.Pool(slots, fields={"n": ((8,), "u8")})


def put(pool, n):
    with pool.acquire(timeout=WATCHDOG) as slot:
        slot["n"][:] = n
        slot.publish()


def keep_a_batch(pool):
    slot = pool.take(timeout=WATCHDOG)
    kept.extend([slot, slot["n"]])


def keep_a_slot(pool):
    slot = pool.acquire(timeout=WATCHDOG)
    kept.extend([slot, slot["n"]])


def test_an_exit_with_a_batch_in_a_global_has_consumed_it(context):
    pool = numbers(1)
    put(pool, 1)
    child = context.Process(target=keep_a_batch, args=(pool,))
    child.start()
    child.join(WATCHDOG)
    assert child.exitcode == 0
    child.close()
    put(pool, 2)  # the slot is free
    with pool.take(timeout=WATCHDOG) as slot:
        assert slot["n"][0] == 2
        assert slot.deliveries == 0
    status = pool.status()
    assert (status.deaths, status.lost) == (0, ())


def test_an_exit_with_a_slot_in_a_global_gives_it_back(context):
    pool = numbers(1)
    child = context.Process(target=keep_a_slot, args=(pool,))
    child.start()
    child.join(WATCHDOG)
    assert child.exitcode == 0
    child.close()
    pool.acquire(timeout=WATCHDOG).release()
    assert pool.waiting() == 0


ENDS = {
    "live views": "",
    "a view in a cycle": "knot = [array]; knot.append(knot)",
    "a view in a module": "sys.view = array",
    "a thread that holds a view": "hold(lambda: time.sleep(60) or array)",
    "a thread that waits for a slot": "hold(lambda: pool.acquire())",
    "a thread that waits for a batch": "hold(lambda: pool.take())",
    "a thread that waits for a message": "hold(lambda: rw.Queue().get())",
    "threads that work": "hold(work); hold(work)",
    "a lease in a generator": "run = iterate(); next(run)",
    "a view in an exit handler": "atexit.register(lambda: array.sum())",
    "a lease in an exit handler": "atexit.register(lambda: slot.ended)",
    "SystemExit within a lease": "sys.exit(0)",
}


@pytest.mark.parametrize("end", ENDS)
def test_an_interpreter_ends_quietly_with(end):
    """Nothing crashes, hangs, or is printed, whatever is alive; thrice, as threads race."""
    code = """
        import atexit, sys, threading, time
        import ropeway as rw

        pool = rw.Pool(2, fields={"n": ((8,), "u8")})
        other = rw.Pool(2, fields={"n": ((8,), "u8")})

        def hold(body):
            threading.Thread(target=body, daemon=True).start()

        def work():
            while True:
                with other.acquire() as slot:
                    slot["n"][:] = 1
                    slot.publish()
                with other.take() as slot:
                    slot["n"].sum()

        def iterate():
            with other.acquire() as slot:
                slot["n"][:] = 1
                yield slot

        with pool.acquire() as slot:
            slot["n"][:] = 1
            slot.publish()
        slot, filled = pool.take(), pool.acquire()
        array, more = slot["n"], filled["n"]
        own = rw.zeros(100)
    """
    code = textwrap.dedent(code) + ENDS[end] + "\ntime.sleep(0.01)\n"
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", code],
            capture_output=True,
            timeout=WATCHDOG,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()


def test_a_raw_fork_in_the_main_module_prints_nothing(fresh):
    """From 3.12 on CPython warns at a fork if there is any second thread: ropeway has none."""
    out = fresh(
        """
        import os, warnings
        warnings.simplefilter("error")
        import numpy, ropeway as rw
        pool, array = rw.Pool(2, shape=8, dtype="f4"), rw.zeros(8)
        slot = pool.acquire()
        pid = os.fork()
        if pid == 0:
            os._exit(int(array.sum()))
        assert os.waitpid(pid, 0)[1] == 0
        slot.release()
        """,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert out == ""


def take_one_by_one(pool):
    for _ in pool:
        pass


def test_children_that_terminate_while_they_wait_are_reaped_by_multiprocessing():
    """`terminate` ends a wait by its signal's default action: no handler of ours is in the way."""
    pool = numbers(1)
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        child = context.Process(target=take_one_by_one, args=(pool,), daemon=True)
        child.start()
        put(pool, 1)
        while pool.waiting():
            pass
        child.terminate()
        child.join(WATCHDOG)
        assert child.exitcode == -15
        child.close()
    pool.acquire(timeout=WATCHDOG).release()
