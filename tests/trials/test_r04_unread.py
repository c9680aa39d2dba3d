"""R04: a queue with unread messages lets everybody go (python/cpython#91594)."""

import signal

import pytest

CHILD_PUTS = """
    import multiprocessing, pickle, sys
    import ropeway as rw

    def put_all(queue):
        number = 0
        try:
            for number in range(10_000):
                queue.put(rw.zeros(1024, "uint8"))
        except rw.Closed:
            print("closed", flush=True)

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        queue = rw.Queue(int(sys.argv[2]))
        twin = pickle.loads(pickle.dumps(queue))  # to look at it once it is closed
        child = context.Process(target=put_all, args=(queue,))
        child.start()
        assert queue.get().sum() == 0
        queue.close()
        child.join()
        assert child.exitcode == 0
        assert all(slot.stage == "fill" and slot.state == "idle" for slot in twin.status().slots)
        assert rw.status().arrays == 0
"""

PARENT_PUTS = """
    import multiprocessing, queue, sys
    import ropeway as rw

    def take_one(queue, sender):
        assert queue.get().sum() == 0
        sender.send(None)

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        capacity = int(sys.argv[2])
        messages = rw.Queue(capacity)
        receiver, sender = context.Pipe(False)
        child = context.Process(target=take_one, args=(messages, sender))
        child.start()
        try:
            for number in range(10_000):
                if number == 1:
                    receiver.recv()
                messages.put(rw.zeros(1024, "uint8"), block=False)
        except queue.Full:
            assert number == capacity + 1
        child.join()
        assert child.exitcode == 0
        assert messages.qsize() == min(10_000 - 1, capacity)
"""

CHILD_BLOCKED = """
    import multiprocessing, os, signal, sys, time
    import ropeway as rw

    def wait(call, queue, sender):
        sender.send(None)
        try:
            if call == "put":
                queue.put(rw.zeros(1024, "uint8"))
            else:
                queue.get()
        except rw.Closed as error:
            print(type(error).__name__, flush=True)

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        call, capacity, end = sys.argv[2], int(sys.argv[3]), sys.argv[4]
        messages = rw.Queue(capacity)
        if call == "put":
            for _ in range(capacity):
                messages.put(rw.zeros(1024, "uint8"))
            assert messages.full()
        receiver, sender = context.Pipe(False)
        child = context.Process(target=wait, args=(call, messages, sender))
        child.start()
        receiver.recv()
        time.sleep(0.2)
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
"""

OVERTAKEN = """
    import multiprocessing, pickle, sys, time
    import ropeway as rw

    def put_all(queue):
        try:
            while True:
                queue.put(rw.zeros(1024, "uint8"))
        except rw.Closed:
            pass

    if __name__ == "__main__":
        context = multiprocessing.get_context("fork")
        for number in range(100):
            queue = rw.Queue(64)
            twin = pickle.loads(pickle.dumps(queue))
            child = context.Process(target=put_all, args=(queue,))
            child.start()
            queue.get()
            time.sleep(number % 7 * 0.0003)
            queue.close()
            child.join()
            assert twin.qsize() == 0
            assert rw.status().arrays == 0
"""


@pytest.fixture(params=[64, 20_000])
def capacity(request):
    return request.param


def test_the_reader_leaves_with_messages_unread(room, method, capacity):
    """Step 1: the child's `put` ends by `Closed`, if it waited, and the slots are free again."""
    printed = room.run(CHILD_PUTS, method, capacity)
    assert printed == "closed\n" or (capacity == 20_000 and printed == "")


def test_the_writer_leaves_with_messages_unread(room, method, capacity):
    """Step 2: nothing is closed, nothing is flushed."""
    room.run(PARENT_PUTS, method, capacity)


def test_the_maker_leaves_while_a_put_waits(room, method, capacity):
    """Step 3: the parent's normal end closes the queue before it waits for the child."""
    assert room.run(CHILD_BLOCKED, method, "put", capacity, "normal") == "QueueClosed\n"


def test_the_maker_leaves_while_a_get_waits(room, method):
    """A sibling of step 3: the other wait."""
    assert room.run(CHILD_BLOCKED, method, "get", 64, "normal") == "QueueClosed\n"


@pytest.mark.parametrize("call", ["put", "get"])
def test_the_maker_is_killed_while_a_call_waits(room, method, call):
    """A sibling of step 3: the queue dies with its maker, and whoever waits hears of it."""
    program = room.start(CHILD_BLOCKED, method, call, 64, "killed")
    program.check_end(-signal.SIGKILL)
    room.check_nothing_left()
    assert (program.output(), program.errors()) == ("PeerDied\n", "")


def test_a_put_that_is_overtaken_by_close_leaves_nothing(room):
    """A sibling of step 1, many times: `close` comes in the middle of a `put`."""
    room.run(OVERTAKEN)
