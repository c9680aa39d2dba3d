"""R09: what was put before a process ended can be read after it (pytorch/pytorch#65418)."""

PROGRAM = """
    import gc, multiprocessing, os, signal, sys, time
    import numpy as np
    import ropeway as rw

    def put_all(queue, make, leave):
        for k in range(333):
            queue.put(make(np.full((3, 5), k, "float32")))
        queue.put("end")
        leave()

    def return_():
        pass

    def exit_at_once():
        os._exit(0)

    def be_killed():
        os.kill(os.getpid(), signal.SIGKILL)

    CASES = [
        (np.asarray, return_, 0),
        (np.asarray, exit_at_once, 0),
        (np.asarray, be_killed, -9),
        (rw.share, return_, 0),
        (rw.share, exit_at_once, 0),
    ]

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        queues = [rw.Queue(400) for _ in CASES]
        for queue, (make, leave, status) in zip(queues, CASES):
            child = context.Process(target=put_all, args=(queue, make, leave))
            child.start()
            child.join()
            assert child.exitcode == status
        time.sleep(2)
        for queue in queues:
            assert queue.qsize() == 334
            for k in range(333):
                array = queue.get(timeout=5)
                assert array.shape == (3, 5) and array.dtype == "float32" and (array == k).all()
            del array
            assert queue.get(timeout=5) == "end"
            gc.collect()
            assert all(
                slot.stage == "fill" and slot.state == "idle" for slot in queue.status().slots
            )
        assert rw.status().arrays == 0
"""


def test_messages_outlive_their_sender(room, method):
    """R09 as reported; also a sender that is killed, and arrays that it made in shared memory."""
    room.run(PROGRAM, method)
