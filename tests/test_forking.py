"""Forks, in every way that Python has, with leases held and threads that wait."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import ropeway as rw

WATCHDOG = 60


def numbers(slots):
    return rw.Pool(slots, fields={"n": ((64,), "u8")})


def put(pool, n):
    with pool.acquire(timeout=WATCHDOG) as slot:
        slot["n"][:] = n
        slot.publish()


def get(pool):
    with pool.take(timeout=WATCHDOG) as slot:
        assert (slot["n"] == slot["n"][0]).all()
        return int(slot["n"][0])


def holders(pool):
    return [slot.pid for slot in pool.status().slots if slot.state.startswith("held")]


def in_child(body):
    """Runs a function in a forked child, which must end well."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(WATCHDOG)
        code = 1
        try:
            body()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    return pid


def reap(pid, code=0):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code


def test_a_child_has_a_view_of_its_own_and_no_lease():
    pool = numbers(2)
    put(pool, 7)
    read, write = pool.take(), pool.acquire()
    write["n"][:] = 8
    seen, filled = read["n"], write["n"]

    def misuse():
        nonlocal seen, filled
        assert (seen[0], filled[0]) == (7, 8), "what is inherited can be read"
        filled[:] = 666
        for refused in (write.publish, write.release, read.release):
            with pytest.raises((rw.Invalid, rw.InUse)):
                refused()
        del seen, filled
        gc.collect()
        assert len(holders(pool)) == 2

    reap(in_child(misuse))
    assert holders(pool) == [os.getpid()] * 2
    assert (filled == 8).all(), "what the child writes stays its own"
    del seen, filled
    read.release()
    write.publish()
    assert get(pool) == 8


def test_a_child_of_a_child_joins_by_itself():
    pool = numbers(4)
    mine = pool.acquire()

    def child():
        reap(in_child(lambda: put(pool, 1)))
        its = pool.acquire(timeout=WATCHDOG)
        reap(in_child(lambda: put(pool, 2)))
        assert sorted(holders(pool)) == sorted([os.getpid(), os.getppid()])
        its.release()

    reap(in_child(child))
    assert (get(pool), get(pool)) == (1, 2)
    mine.release()


@pytest.mark.parametrize("wait", ["acquire", "take", "get", "put"])
def test_a_fork_while_another_thread_waits(wait):
    """The waiting thread isn't there in the child, whose own waits work."""
    full, empty = numbers(1), numbers(1)
    held = full.acquire()
    q, q_full = rw.Queue(), rw.Queue(1)
    q_full.put(0)
    waits = {
        "acquire": lambda: full.acquire(timeout=WATCHDOG).release(),
        "take": lambda: empty.take(timeout=WATCHDOG).release(),
        "get": lambda: q.get(timeout=WATCHDOG),
        "put": lambda: q_full.put(1, timeout=WATCHDOG),
    }
    waiter = threading.Thread(target=waits[wait])
    waiter.start()
    time.sleep(0.02)

    def child():
        assert threading.active_count() == 1
        for timeouts in (lambda: full.acquire(timeout=0.06), lambda: empty.take(timeout=0.06)):
            with pytest.raises(rw.Timeout):
                timeouts()
        own = numbers(1)
        put(own, 5)
        assert get(own) == 5

    for _ in range(5):
        reap(in_child(child))
    assert waiter.is_alive()
    held.release()
    put(empty, 1)
    q.put("end")
    assert q_full.get() == 0
    waiter.join(WATCHDOG)
    assert not waiter.is_alive()
    for each in (q, q_full):
        each.close()


def test_a_child_that_exits_at_once_gives_back_what_it_held():
    pool = numbers(2)

    def child():
        slot = pool.acquire(timeout=WATCHDOG)
        assert holders(pool).count(os.getpid()) == 1
        os._exit(int(slot.ended))

    for _ in range(20):
        reap(in_child(child))
    slots = [pool.acquire(timeout=WATCHDOG) for _ in range(2)]
    pool.sweep()
    assert pool.status().deaths == 20
    for slot in slots:
        slot.release()


@pytest.mark.parametrize("how", [{}, {"close_fds": False}, {"start_new_session": True}])
def test_programs_that_are_started_within_a_lease_have_nothing_of_it(how):
    """By vfork, by posix_spawn, and by fork and exec."""
    pool = numbers(1)
    slot = pool.acquire()
    array = slot["n"]
    array[:] = 3
    look = (
        "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')"
    )
    look += " if os.path.exists(f'/proc/self/fd/{n}')]); print(open('/proc/self/maps').read())"
    out = subprocess.run([sys.executable, "-S", "-c", look], capture_output=True, check=True, **how)
    assert b"ropeway" not in out.stdout
    assert holders(pool) == [os.getpid()]
    assert (array == 3).all()
    del array
    slot.publish()
    assert get(pool) == 3


def test_a_fork_at_any_instant_of_another_threads_work():
    """No lock of the other thread is taken along."""
    pool, q = numbers(4), rw.Queue(4)
    over = threading.Event()

    def work():
        n = 0
        while not over.is_set():
            put(pool, n)
            assert get(pool) == n
            q.put((n, np.full(100, n)))
            assert q.get()[0] == n
            n += 1

    thread = threading.Thread(target=work)
    thread.start()

    def child():
        put(own, 1)
        assert get(own) == 1
        own_queue.put(rw.share(np.ones(10)))
        assert own_queue.get().sum() == 10

    own, own_queue = numbers(2), rw.Queue()
    for _ in range(30):
        reap(in_child(child))
    over.set()
    thread.join(WATCHDOG)
    assert not thread.is_alive()
    for each in (q, own_queue):
        each.close()


@pytest.fixture
def fork_soon():
    """Forks in a signal's handler, 10 ms after it was called; the children."""
    children = []
    before = signal.signal(signal.SIGALRM, lambda *_: children.append(os.fork()))

    def soon():
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        return children

    yield soon
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def error_of(call):
    try:
        call()
    except rw.RopewayError as error:
        return str(error)
    return ""


def test_a_child_that_a_signals_handler_forks_claims_nothing_for_its_parent(fork_soon):
    pool = numbers(1)
    with pool.acquire():
        children = fork_soon()
        error = error_of(lambda: pool.acquire(timeout=0.5))
        if children == [0]:
            os._exit(0 if "interrupted" in error else 1)
        assert os.waitpid(children[0], 0)[1] == 0
    assert "no slot came" in error
    put(pool, 1)


@pytest.mark.parametrize(
    "take",
    [
        lambda size: rw.empty(size, "u1"),
        lambda size: rw.Pool(1).acquire().add("a", (size,), "u1"),
        lambda size: rw.Pool(1, size, "u1").acquire(),
    ],
    ids=["array", "slot", "packed slot"],
)
def test_a_child_that_a_signals_handler_forks_takes_no_memory_for_its_parent(fork_soon, take):
    children = fork_soon()
    error = error_of(lambda: take(256 << 20))  # in steps, with a look at signals between
    while not children:
        time.sleep(0.001)
    if children == [0]:
        os._exit(0)
    assert os.waitpid(children[0], 0)[1] == 0
    assert not error
