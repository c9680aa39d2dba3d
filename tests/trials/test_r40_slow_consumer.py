"""R40, a slow consumer and a bounded queue: eclipse-iceoryx/iceoryx#1541.

Also alex-petrenko/faster-fifo#22, eclipse-iceoryx/iceoryx2#694. With blocking nothing is lost and
memory stays bounded; without it "full" is said exactly at the limit.
"""

from tree import times

FLOW = """
import multiprocessing as mp
import os
import queue as standard
import sys
import time

import numpy as np

import ropeway as rw

CONTEXT, COUNT = mp.get_context(sys.argv[1]), int(sys.argv[2])
SIZE = 64 << 10


def message(number):
    return number, np.full(SIZE, number % 251, "u1")


def check(number, array):
    assert array.shape == (SIZE,) and (array == number % 251).all(), number


def pss():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024


def in_use(queue):
    return sum(slot.state != "idle" or slot.stage != "fill" for slot in queue.status().slots)


def produce(queue, name):
    for number in range(COUNT):
        queue.put((name, *message(number)))
        if number == 100:
            before = pss()
    grown = pss() - before
    queue.put((name, None, grown))


def flow(names):
    # a consumer that sleeps 1 ms for each message
    queue = rw.Queue(16)
    producers = [CONTEXT.Process(target=produce, args=(queue, name)) for name in names]
    for producer in producers:
        producer.start()
    expected, most = dict.fromkeys(names, 0), 0
    while expected:
        name, number, array = queue.get(timeout=20)
        if number is None:
            assert expected.pop(name) == COUNT
            assert array < 8, f"the producer grew by {array:.1f} MiB"
            continue
        assert number == expected[name], (name, number, expected)
        check(number, array)
        expected[name] += 1
        if number % 50 == 0:
            most = max(most, in_use(queue))
        time.sleep(0.001)
    assert most <= 20, most
    assert len(queue.status().slots) <= 20
    for producer in producers:
        producer.join(20)
        assert producer.exitcode == 0
"""

ONE = FLOW + '\n\nif __name__ == "__main__":\n    flow("a")\n'
TWO = FLOW + '\n\nif __name__ == "__main__":\n    flow("ab")\n'


def test_a_blocking_producer_loses_nothing_and_stays_small(room, method):
    room.run(ONE, method, times(10_000, 1_000, method), seconds=90)


def test_two_blocking_producers_each_keep_their_order(room, method):
    room.run(TWO, method, times(10_000, 1_000, method), seconds=110)


FULL = (
    FLOW
    + """
def fill(queue, report):
    count = 0
    try:
        while True:
            queue.put(message(count), block=False)
            count += 1
    except standard.Full:
        pass
    begun = time.monotonic()
    try:
        queue.put(message(count), timeout=0.2)
    except standard.Full:
        report.put((count, time.monotonic() - begun), timeout=20)


if __name__ == "__main__":
    queue, report = rw.Queue(16), rw.Queue()
    for _ in range(3):
        producer = CONTEXT.Process(target=fill, args=(queue, report))
        producer.start()
        count, waited = report.get(timeout=20)
        assert count == 16, count
        assert waited >= 0.2, waited
        print(f"put with a timeout of 0.2 s raised after {waited:.3f} s")
        assert queue.full() and queue.qsize() == 16 and in_use(queue) == 16
        for number in range(16):
            check(*queue.get(timeout=20))
        assert queue.empty()
        producer.join(20)
        assert producer.exitcode == 0
"""
)


def test_full_is_said_exactly_at_the_limit(room, method):
    print(room.run(FULL, method, 0))


KEPT = (
    FLOW
    + """
queue = rw.Queue(16)
kept = []
for number in range(100):
    queue.put(message(number), block=False)
    kept.append(queue.get(block=False))
for number in range(16):
    queue.put(message(number), block=False)
try:
    queue.put(message(16), block=False)
except standard.Full:
    pass
else:
    raise AssertionError("a 17th message")
for number, array in kept:
    check(number, array)
for number in range(16):
    check(*queue.get(block=False))
"""
)


def test_messages_that_were_taken_do_not_count_against_the_limit(room):
    """A sibling: the consumer keeps every array it was sent."""
    room.run(KEPT, "fork", 0)


CROWD = (
    FLOW
    + """
def push(queue, name):
    put = full = 0
    while put < COUNT:
        try:
            queue.put((name, *message(put)), block=False)
            put += 1
        except standard.Full:
            full += 1
            time.sleep(0)


if __name__ == "__main__":
    queue = rw.Queue(3)
    producers = [CONTEXT.Process(target=push, args=(queue, name)) for name in range(4)]
    for producer in producers:
        producer.start()
    expected, most = [0] * 4, 0
    for _ in range(4 * COUNT):
        most = max(most, queue.qsize())
        name, number, array = queue.get(timeout=20)
        assert number == expected[name]
        check(number, array)
        expected[name] += 1
    assert most <= 3, most
    assert queue.empty()
    # 3 that wait, one for each producer, one that the consumer keeps, and some that races add
    assert len(queue.status().slots) <= 16, len(queue.status().slots)
    for producer in producers:
        producer.join(20)
        assert producer.exitcode == 0
"""
)


def test_the_limit_holds_among_producers_that_do_not_wait(room, method):
    """A sibling: four producers at a capacity of three; the queue doesn't grow by their races."""
    room.run(CROWD, method, 2500, seconds=90)


GREEDY = (
    FLOW
    + """
def push(queue):
    for number in range(COUNT):
        queue.put(number)


if __name__ == "__main__":
    queue = rw.Queue(16)
    producers = [CONTEXT.Process(target=push, args=(queue,)) for _ in range(4)]
    for producer in producers:
        producer.start()
    for _ in range(4 * COUNT):
        queue.get(timeout=20)
    for producer in producers:
        producer.join(20)
        assert producer.exitcode == 0
    # 16 that wait, one for each producer, one for the consumer, and some that races add
    assert len(queue.status().slots) <= 24, len(queue.status().slots)
"""
)


def test_a_bounded_queue_does_not_grow_by_races_of_its_producers(room, method):
    """A sibling: four producers that wait, and a consumer that doesn't."""
    room.run(GREEDY, method, 10_000)


FIRM = (
    FLOW
    + """
def fill(pool):
    for number in range(COUNT):
        with pool.acquire(timeout=20) as slot:
            slot.array[:] = number % 251
            slot.meta = number
            slot.publish()


def refused(pool, report):
    begun = time.monotonic()
    for timeout in (0, 0.2):
        try:
            pool.acquire(timeout=timeout)
        except rw.Timeout:
            report.put(time.monotonic() - begun)


if __name__ == "__main__":
    pool, report = rw.Pool(20, shape=(SIZE,), dtype="u1"), rw.Queue()
    producer = CONTEXT.Process(target=fill, args=(pool,))
    producer.start()
    for number in range(COUNT):
        with pool.take(timeout=20) as slot:
            assert slot.meta == number
            check(number, slot.array)
        time.sleep(0.001)
    held = [pool.acquire(timeout=20) for _ in range(20)]
    late = CONTEXT.Process(target=refused, args=(pool, report))
    late.start()
    assert report.get(timeout=20) >= 0 and report.get(timeout=20) >= 0.2
    for process in (producer, late):
        process.join(20)
        assert process.exitcode == 0
    assert len(pool.status().slots) == 20
"""
)


def test_the_slots_of_a_pool_are_its_backpressure(room, method):
    """A sibling: a pool of 20 slots without a queue."""
    room.run(FIRM, method, 500)
