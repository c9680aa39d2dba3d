"""R08: a shared array pickles as a handle by every route that pickles (numpy/numpy#25561)."""

import pytest

PROGRAM = """
    import concurrent.futures, copy, gc, multiprocessing, os, pickle, subprocess, sys
    import numpy as np
    import ropeway as rw
    from memory import place, private_bytes

    N = 8 << 20
    VALUES = {
        "whole": lambda: np.arange(N, dtype="float64"),
        "stepped": lambda: np.arange(1000, 2000, 2, dtype="float64"),
        "column": lambda: np.arange(7, N, 4096, dtype="float64"),
    }

    def views(a):
        return {"whole": a, "stepped": a[1000:2000:2], "column": a.reshape(2048, 4096)[:, 7]}

    # What the receiver does, in two steps, with the sender's answer between them.

    def keep(arrays):
        sys.received = arrays  # not in this module: under cloudpickle each call has its own

    def first():
        before = private_bytes()
        total = sum(float(array.sum()) for array in sys.received.values())
        grown = private_bytes() - before
        seen = {
            name: (array.dtype.str, array.shape, array.strides, array[1], array[-1])
            for name, array in sys.received.items()
        }
        whole = sys.received["whole"]
        whole[0] = -1
        return total, seen, {place(array) for array in sys.received.values()}, grown

    def second():
        return tuple(float(array[1]) for array in sys.received.values())

    def answer(connection, get, *arguments):
        keep(get(*arguments))
        for step in (first, second):
            connection.recv()
            connection.send(step())

    # The routes. Each gives a function that has the receiver do a step.

    def child(context, get, *arguments):
        ours, theirs = context.Pipe()
        process = context.Process(target=answer, args=(theirs, get, *arguments))
        process.start()

        def do(step, _keep=arguments):
            ours.send(None)
            result = ours.recv()
            if step is second:
                process.join()
                assert process.exitcode == 0
            return result
        return do

    def by_argument(context, arrays):
        return child(context, dict, arrays)

    def by_standard_queue(context, arrays):
        queue = context.SimpleQueue()
        queue.put(arrays)
        return child(context, type(queue).get, queue)

    def by_pipe(context, arrays):
        receiver, sender = context.Pipe(False)
        sender.send(arrays)
        return child(context, type(receiver).recv, receiver)

    def by_queue(context, arrays):
        queue = rw.Queue()
        queue.put(arrays)
        return child(context, rw.Queue.get, queue)

    def shelf_content(shelf):
        return shelf["arrays"]

    def by_manager(context, arrays):
        manager = context.Manager()
        shelf = manager.dict(arrays=arrays)
        do = child(context, shelf_content, shelf)

        def and_shut_down(step):
            result = do(step)
            if step is second:
                manager.shutdown()
            return result
        return and_shut_down

    def by_initializer(context, arrays):
        pool = context.Pool(1, keep, (arrays,))

        def do(step):
            result = pool.apply(step)
            if step is second:
                pool.close()
                pool.join()
            return result
        return do

    def by_executor(context, arrays):
        executor = concurrent.futures.ProcessPoolExecutor(1, context)
        executor.submit(keep, arrays).result()

        def do(step):
            result = executor.submit(step).result()
            if step is second:
                executor.shutdown()
            return result
        return do

    def by_loky(context, arrays):
        loky = __import__("joblib.externals.loky", fromlist=["ProcessPoolExecutor"])
        executor = loky.ProcessPoolExecutor(1, context=loky.backend.get_context("loky"))
        executor.submit(keep, arrays).result()

        def do(step):
            result = executor.submit(step).result()
            if step is second:
                executor.shutdown()
            return result
        return do

    def by_standard_input(context, arrays):
        process = subprocess.Popen(
            [sys.executable, __file__, "receive"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        process.stdin.write(pickle.dumps(arrays))

        def do(step):
            process.stdin.write(pickle.dumps(None))
            process.stdin.flush()
            result = pickle.load(process.stdout)
            if step is second:
                process.communicate()
                assert process.returncode == 0
            return result
        return do

    def check(route, context):
        a = rw.share(VALUES["whole"]())
        arrays = views(a)
        do = route(context, arrays)
        total, seen, where, grown = do(first)
        assert total == sum(float(make().sum()) for make in VALUES.values())
        assert seen == {
            name: (array.dtype.str, array.shape, array.strides, array[1], array[-1])
            for name, array in arrays.items()
        }
        assert where == {place(a)}
        assert a[0] == -1
        a[1], a[1002], a[4096 + 7] = -2, -3, -4
        assert do(second) == (-2, -3, -4)
        assert grown < a.nbytes / 10, grown

    def receive():
        keep(pickle.load(sys.stdin.buffer))
        for step in (first, second):
            pickle.load(sys.stdin.buffer)
            sys.stdout.buffer.write(pickle.dumps(step()))
            sys.stdout.buffer.flush()

    def lengths():
        for name, view in views(rw.share(VALUES["whole"]())).items():
            for protocol in range(2, 6):
                handle = pickle.dumps(view, protocol)
                assert len(handle) < 4096, (name, protocol, len(handle))
                assert (pickle.loads(handle) == VALUES[name]()).all()

    def copies():
        a = rw.share(VALUES["whole"]())
        copies = [a.copy(), copy.deepcopy(a), copy.copy(a), np.array(a)]
        a[...] = -1
        for private in copies:
            assert (private == VALUES["whole"]()).all()
            assert place(private) != place(a)
            assert len(pickle.dumps(private)) > private.nbytes

    if __name__ == "__main__":
        what, *method = sys.argv[1:]
        if method:
            check(globals()[what], multiprocessing.get_context(*method))
        else:
            globals()[what]()
        gc.collect()
        assert what == "receive" or rw.status().arrays == 0
"""


def test_pickles_are_short_and_open_onto_the_memory(room):
    """Step 1, with every protocol."""
    room.run(PROGRAM, "lengths")


def test_copies_are_private(room):
    """Step 4."""
    room.run(PROGRAM, "copies")


@pytest.mark.parametrize("route", ["argument", "initializer", "standard_queue", "pipe", "queue"])
def test_routes_of_multiprocessing(room, method, route):
    """Steps 2 and 3: the same memory in both directions, and no copy."""
    room.run(PROGRAM, f"by_{route}", method)


@pytest.mark.parametrize("route", ["executor", "manager"])
def test_other_routes(room, method, route):
    """The siblings: by concurrent.futures, and through the process of a Manager."""
    room.run(PROGRAM, f"by_{route}", method)


def test_standard_input_of_an_unrelated_program(room):
    """A sibling: nothing of multiprocessing is there."""
    room.run(PROGRAM, "by_standard_input", "spawn")


def test_loky(room):
    """A sibling: joblib's processes, started by fork and exec, that pickle by cloudpickle."""
    pytest.importorskip("joblib")
    room.run(PROGRAM, "by_loky", "spawn")
