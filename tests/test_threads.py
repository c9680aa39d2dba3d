"""Threads, signal handlers and the garbage collector: any of them may use a pool at any time."""

import contextlib
import gc
import itertools
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ropeway as rw

WATCHDOG = 60


def numbers(slots, **how):
    return rw.Pool(slots, fields={"n": ((8,), "u8")}, **how)


def put(pool, n):
    with pool.acquire(timeout=WATCHDOG) as slot:
        slot["n"][:] = n
        slot.publish()


def get(pool):
    with pool.take(timeout=WATCHDOG) as slot:
        assert (slot["n"] == slot["n"][0]).all()
        return int(slot["n"][0])


def join(*threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG)
        assert not thread.is_alive()


def test_eight_threads_pass_eight_thousand_messages_each():
    pool, got = numbers(6), [[] for _ in range(4)]

    def send(sender):
        for k in range(8000):
            put(pool, sender * 8000 + k)

    def receive(mine):
        with contextlib.suppress(rw.Closed):
            while True:
                mine.append(get(pool))

    takers = [threading.Thread(target=receive, args=(mine,)) for mine in got]
    for taker in takers:
        taker.start()
    join(*(threading.Thread(target=send, args=(sender,)) for sender in range(8)))
    pool.close()
    for taker in takers:
        taker.join(WATCHDOG)
        assert not taker.is_alive()
    assert sorted(n for mine in got for n in mine) == list(range(8 * 8000))
    for mine in got:
        for sender in range(8):
            own = [n for n in mine if n // 8000 == sender]
            assert own == sorted(own), "each sender is heard in its own order"


def test_a_thread_that_dies_lets_go_of_its_lease(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    pool = numbers(1)

    def die(take):
        with take(timeout=WATCHDOG) as slot:
            slot["n"][0] if take == pool.take else slot["n"].fill(1)
            raise RuntimeError

    join(threading.Thread(target=die, args=(pool.acquire,)))
    put(pool, 5)
    join(threading.Thread(target=die, args=(pool.take,)))
    put(pool, 6)
    assert get(pool) == 6


def test_a_lease_outlives_the_thread_that_took_it():
    pool, slots = numbers(1), []
    join(threading.Thread(target=lambda: slots.append(pool.acquire())))
    slots[0]["n"][:] = 4
    slots.pop().publish()
    assert get(pool) == 4


@pytest.mark.parametrize("waits", [False, True])
def test_a_signal_handler_uses_the_pool(waits):
    """The handler passes messages of its own, whatever it has interrupted."""
    pool, own = numbers(2), numbers(64)  # a handler may interrupt another
    heard, counter = [], itertools.count()

    def handle(*_):
        put(own, next(counter))
        heard.append(get(own))
        # In the pool that is waited for, or worked with, too.
        with contextlib.suppress(rw.Timeout):
            pool.acquire(timeout=0).release()

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        if waits:
            held = [pool.acquire(), pool.acquire()]
            with pytest.raises(rw.Timeout):
                pool.take(timeout=0.5)
            del held
        end = time.monotonic() + WATCHDOG
        n = 0
        while len(heard) < 100 and time.monotonic() < end:
            put(pool, n)
            assert get(pool) == n
            n += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert sorted(heard) == list(range(len(heard)))
    assert len(heard) >= 100


class Knot:
    """A cycle that holds a lease or a view until the collector comes."""

    def __init__(self, held):
        self.held, self.me = held, self


def test_the_collector_may_come_at_any_allocation():
    pool, q = numbers(4), rw.Queue(4)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for n in range(200):
            slot = pool.acquire(timeout=WATCHDOG)
            slot["n"][:] = n
            slot.publish()
            Knot(slot)
            with pool.take(timeout=WATCHDOG) as slot:
                assert slot["n"][0] == n
                Knot(slot["n"])
            q.put({"a": np.full(10, n), "b": rw.share(np.full(5, n))})
            found = q.get(timeout=WATCHDOG)
            assert found["a"][0] == n
            assert found["b"][-1] == n
            Knot(found)
            del found, slot
            Knot(pool.acquire(timeout=WATCHDOG))
            gc.collect()  # what had grown old before it was garbage
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert all(slot.state == "idle" for slot in pool.status().slots)
    q.close()


def test_the_collector_in_another_thread_may_end_leases():
    pool = numbers(2)
    over = threading.Event()

    def collect():
        while not over.is_set():
            gc.collect(0)

    collector = threading.Thread(target=collect)
    collector.start()
    for n in range(500):
        put(pool, n)
        Knot(pool.take(timeout=WATCHDOG))
    over.set()
    collector.join(WATCHDOG)
    gc.collect()
    assert all(slot.state == "idle" for slot in pool.status().slots)


def test_threads_use_a_slot_that_another_is_giving_memory(fresh):
    fresh("""
        import faulthandler, threading
        import ropeway as rw
        faulthandler.dump_traceback_later(50, exit=True)
        pool = rw.Pool(1)
        slot, ended = pool.acquire(), threading.Event()

        def add():
            slot.add_field("a", "|u1", 1, (300 << 20,))  # in steps, with a look at signals between
            ended.set()

        threading.Thread(target=add).start()
        while not ended.is_set():
            assert slot.keys() in ([], ["a"])
            slot.meta = 1
        assert slot.keys() == ["a"]
        slot.publish()
    """)


def test_who_gives_its_leases_to_a_thread_pool_waits_for_it():
    pool = numbers(2)

    def work(slot):
        time.sleep(0.05)
        slot["n"][:] = 1
        slot.release()

    with ThreadPoolExecutor(2) as workers:
        done = [workers.submit(work, pool.acquire()) for _ in range(6)]
    assert [each.result() for each in done] == [None] * 6


def test_who_alone_holds_all_is_told_instead_of_waiting_for_itself(fresh):
    fresh("""
        import ropeway as rw
        pool = rw.Pool(1, 8, "u1")
        slot = pool.acquire()
        for wait in pool.acquire, pool.take:
            try:
                wait()
            except rw.InUse as error:
                assert "this thread" in str(error)
            else:
                raise SystemExit("it waited")
    """)
