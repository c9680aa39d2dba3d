import gc
import os
import pickle
import queue
import threading
import time
from multiprocessing.queues import Queue as StandardQueue

import numpy as np
import pytest

import ropeway as rw
from queues import WATCHDOG, arrays_alive, slots_in_use, through

# ---- the interface of multiprocessing.Queue ----------------------------------------------------


def test_the_interface_is_that_of_multiprocessing():
    public = {name for name in vars(StandardQueue) if not name.startswith("_")}
    assert public <= set(dir(rw.Queue))


def test_messages_come_in_order(q):
    for number in range(100):
        q.put((number, np.full(3, number)))
    for number in range(100):
        count, array = q.get()
        assert count == number == array[1]


def test_full_is_reported_exactly_at_the_limit():
    q = rw.Queue(16)
    for number in range(16):
        assert not q.full()
        q.put_nowait(number)
    assert q.full()
    with pytest.raises(queue.Full):
        q.put_nowait(16)
    with pytest.raises(queue.Full):
        q.put(16, timeout=0.05)
    assert q.get() == 0
    q.put_nowait(16)
    assert [q.get() for _ in range(16)] == list(range(1, 17))
    assert len(slots_in_use(q)) == 0


def test_empty_is_reported():
    q = rw.Queue()
    assert q.empty()
    for get in (q.get_nowait, lambda: q.get(False), lambda: q.get(timeout=0.05)):
        with pytest.raises(queue.Empty):
            get()
    q.put(None)
    assert not q.empty()
    assert q.qsize() == 1
    assert not q.full()
    assert q.get(True, -1) is None


def test_times_out_no_earlier_than_asked(q):
    begin = time.monotonic()
    with pytest.raises(queue.Empty):
        q.get(timeout=0.2)
    assert time.monotonic() - begin >= 0.2


def test_kept_arrays_do_not_count_as_waiting():
    q = rw.Queue(2)
    kept = []
    for number in range(20):
        q.put(np.full(10, number), timeout=WATCHDOG)
        kept.append(q.get())
    assert [x[0] for x in kept] == list(range(20))


def test_a_closed_queue_raises_what_fits_both():
    q = rw.Queue()
    q.close()
    q.close()
    q.join_thread()
    q.cancel_join_thread()
    for use in (lambda: q.put(1), q.get, q.get_nowait, q.qsize, lambda: pickle.dumps(q)):
        with pytest.raises(rw.Closed):
            use()
        with pytest.raises(ValueError, match="closed"):
            use()
    assert "closed" in repr(q)


def test_closing_drops_what_is_unread():
    q = rw.Queue()
    other = pickle.loads(pickle.dumps(q))
    shared = rw.zeros(1000)
    for _ in range(5):
        q.put((np.zeros(10), shared))
    q.close()
    with pytest.raises(rw.Closed):
        other.get()
    with pytest.raises(rw.Closed):
        other.put(1)
    assert not slots_in_use(other)
    other.close()


def test_closing_elsewhere_only_leaves():
    q = rw.Queue()
    other = pickle.loads(pickle.dumps(q))
    q.put(1)
    other.close()
    with pytest.raises(rw.Closed):
        other.get()
    assert q.get() == 1


def test_waiting_calls_end_when_the_queue_is_closed():
    q = rw.Queue(1)
    other = pickle.loads(pickle.dumps(q))
    q.put(0)
    ended = []

    def wait():
        try:
            other.put(1)
        except rw.Closed:
            ended.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    q.close()
    thread.join(WATCHDOG)
    assert ended == [True]


# ---- errors ------------------------------------------------------------------------------------


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("not me")


class Broken:
    def __reduce__(self):
        return _break, ()


def _break():
    raise RuntimeError("can't be opened")


def test_what_cannot_be_pickled_is_not_half_sent(q):
    shared = rw.zeros(10)
    before = q.status()
    for unfit in (Unpicklable(), lambda: None, threading.Lock()):
        with pytest.raises((RuntimeError, TypeError, AttributeError, pickle.PicklingError)):
            q.put([np.zeros(100), shared, unfit])
    assert q.status().published == before.published
    assert not slots_in_use(q)
    assert through(q, 1) == 1


def test_what_cannot_be_opened_counts_as_taken(q):
    q.put([np.zeros(100), Broken(), rw.zeros(10)])
    q.put("next")
    with pytest.raises(RuntimeError, match="can't be opened"):
        q.get()
    assert q.get() == "next"
    assert not slots_in_use(q)


def test_a_full_queue_keeps_no_shared_array():
    q = rw.Queue(1)
    q.put(0)
    before = arrays_alive()
    for _ in range(3):
        with pytest.raises(queue.Full):
            q.put_nowait(rw.zeros(1000))
    assert arrays_alive() == before


class Interrupted:
    """A lease during whose `publish` somebody presses Ctrl-C."""

    def __init__(self, lease):
        vars(self)["lease"] = lease

    def __getattr__(self, name):
        return getattr(self.lease, name)

    def __setattr__(self, name, value):
        setattr(self.lease, name, value)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.lease.__exit__(*error)

    def publish(self):
        self.lease.publish()
        raise KeyboardInterrupt


def test_a_message_that_was_put_is_whole_also_if_put_is_interrupted(q, monkeypatch):
    shared = rw.zeros(4)
    acquire = q._acquire
    monkeypatch.setattr(q, "_acquire", lambda *how: Interrupted(acquire(*how)))
    with pytest.raises(KeyboardInterrupt):
        q.put({"shared": shared})
    del shared
    gc.collect()
    assert q.get(timeout=WATCHDOG)["shared"].tolist() == [0] * 4


def test_unread_shared_arrays_go_with_the_queue():
    before = arrays_alive()
    q = rw.Queue()
    for _ in range(10):
        q.put(rw.zeros(1000))
    assert arrays_alive() == before + 10
    q.close()
    assert arrays_alive() == before


# ---- between processes -------------------------------------------------------------------------


def put_numbers(q, count, size, name=0):
    for number in range(count):
        q.put((name, number, np.full(size, number % 251, "u1")), timeout=WATCHDOG)


def test_nothing_is_lost_with_a_slow_reader(child):
    q = rw.Queue(16)
    with child(put_numbers, q, 1000, 65_536):
        for expected in range(1000):
            _, number, array = q.get(timeout=WATCHDOG)
            assert number == expected
            assert array.shape == (65_536,)
            assert (array == number % 251).all()
    assert q.empty()
    del array
    assert not slots_in_use(q)


def test_each_writers_messages_keep_their_order(child):
    q = rw.Queue(4)
    last = [-1, -1]
    with child(put_numbers, q, 300, 100, 0), child(put_numbers, q, 300, 100, 1):
        for _ in range(600):
            name, number, _array = q.get(timeout=WATCHDOG)
            assert number == last[name] + 1
            last[name] = number
    assert last == [299, 299]


def put_and_exit(q, leave):
    for k in range(333):
        q.put(np.full((3, 5), k, "f4"))
    q.put(None)
    if leave:
        os._exit(0)


@pytest.mark.parametrize("leave", [False, True], ids=["return", "os._exit"])
def test_what_was_put_can_be_read_after_the_writer_has_gone(child, leave):
    q = rw.Queue(400)
    with child(put_and_exit, q, leave):
        pass
    for k in range(333):
        array = q.get(timeout=WATCHDOG)
        assert array.shape == (3, 5)
        assert (array == k).all()
    assert q.get() is None
    del array
    assert not slots_in_use(q)


def double(tasks, results):
    while (array := tasks.get(timeout=WATCHDOG)) is not None:
        array *= 2
        results.put(array)


def test_queues_travel_through_queues(child):
    tasks, results = rw.Queue(), rw.Queue()
    with child(double, tasks, results):
        for number in range(20):
            tasks.put(np.full(1000, number))
        tasks.put(None)
        for number in range(20):
            assert results.get(timeout=WATCHDOG)[3] == 2 * number
    assert through(tasks, results).qsize() == 0


def read_one(q):
    assert q.get(timeout=WATCHDOG).sum() == 0


def test_nobody_hangs_on_unread_messages(child):
    q = rw.Queue(5000)
    for _ in range(2000):
        q.put(rw.zeros(128))
    with child(read_one, q):
        pass
    q.close()


def test_an_unrelated_interpreter_reads_a_queue(fresh):
    q = rw.Queue()
    q.put({"x": np.arange(5)})
    code = (
        "import pickle, sys; q = pickle.load(sys.stdin.buffer); print(q.get()['x'].sum()); q.put(7)"
    )
    assert fresh(code, stdin=pickle.dumps(q)) == "10\n"
    assert q.get() == 7


def test_arguments_that_cannot_be_are_named(q):
    with pytest.raises(TypeError, match="maxsize must be an int, found '3'"):
        rw.Queue("3")
    for call in (q.get, lambda timeout: q.put(1, timeout=timeout)):
        with pytest.raises(TypeError, match="seconds or None, found '1'"):
            call(timeout="1")
    assert q.empty()
    largest = rw.Queue(1 << 40)  # as many as there can be
    assert not largest.full()
    largest.close()
