"""R01: attaching and leaving changes nothing and prints nothing (python/cpython#82300)."""

SUM = 34359607296  # of the numbers 0 to 262143

MAKER = """
    import gc, multiprocessing, os, pickle, signal, subprocess, sys, time
    import numpy as np
    import ropeway as rw

    UNRELATED = '''
    import pickle, sys
    array = pickle.loads(bytes.fromhex(sys.stdin.readline()))
    print(int(array.sum()), flush=True)
    if "wait" in sys.argv:
        sys.stdin.readline()
    '''

    def unrelated(handle, *arguments):
        reader = subprocess.Popen(
            [sys.executable, "-c", UNRELATED, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        reader.stdin.write(handle.hex() + "\\n")
        reader.stdin.flush()
        return reader, int(reader.stdout.readline())

    def fresh(handle):
        reader, total = unrelated(handle)
        reader.communicate()
        return total, reader.returncode

    def killed(handle):
        reader, total = unrelated(handle, "wait")
        reader.kill()
        reader.communicate()
        return total, reader.returncode

    def send_sum(array, sender):
        sender.send(int(array.sum()))

    def by(method):
        def child(handle):
            context = multiprocessing.get_context(method)
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=send_sum, args=(pickle.loads(handle), sender))
            process.start()
            total = receiver.recv()
            process.join()
            return total, process.exitcode
        return child

    def raw_fork(leave):
        def child(handle):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.write(write, b"%d" % A.sum())
                leave(0)
            total = int(os.read(read, 100))
            os.close(read)
            os.close(write)
            return total, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return child

    VISITORS = [  # with the seconds after which the array is looked at
        ("fresh interpreter", fresh, 2),
        ("multiprocessing, fork", by("fork"), 0),
        ("multiprocessing, forkserver", by("forkserver"), 0),
        ("multiprocessing, spawn", by("spawn"), 2),
        ("os.fork, os._exit", raw_fork(os._exit), 0),
        ("os.fork, normal exit", raw_fork(sys.exit), 2),
        ("fresh interpreter, killed", killed, 2),
    ]

    if __name__ == "__main__":
        pattern = np.arange(262144, dtype="uint32")
        A = rw.share(pattern)
        for name, visit, seconds in VISITORS:
            print(name, *visit(pickle.dumps(A)), sep="; ", flush=True)
            time.sleep(seconds)
            assert (A == pattern).all(), name
            print("and later", *fresh(pickle.dumps(A)), sep="; ", flush=True)
        del A
        gc.collect()
        assert rw.status().arrays == 0
"""


def test_visitors_change_nothing_and_print_nothing(room):
    """R01 as reported; also fork, forkserver, and a raw fork that leaves by `os._exit`."""
    lines = room.run(MAKER).splitlines()
    visits, later = lines[::2], lines[1::2]
    assert visits == [
        f"fresh interpreter; {SUM}; 0",
        f"multiprocessing, fork; {SUM}; 0",
        f"multiprocessing, forkserver; {SUM}; 0",
        f"multiprocessing, spawn; {SUM}; 0",
        f"os.fork, os._exit; {SUM}; 0",
        f"os.fork, normal exit; {SUM}; 0",
        f"fresh interpreter, killed; {SUM}; -9",
    ]
    assert later == [f"and later; {SUM}; 0"] * len(visits)


FIRST = """
    import pickle, sys
    import numpy as np
    import ropeway as rw

    A = rw.share(np.arange(262144, dtype="uint32"))
    print(pickle.dumps(A).hex(), flush=True)
    sys.stdin.readline()
"""

HEIR = """
    import pickle, sys
    array = pickle.loads(bytes.fromhex(sys.stdin.readline()))
    print(int(array.sum()), flush=True)
    sys.stdin.readline()
    print(int(array.sum()), flush=True)
    print(pickle.dumps(array).hex(), flush=True)
    sys.stdin.readline()
"""


def test_the_last_user_keeps_the_memory(room):
    """The other side of R01: the maker leaves first, and later readers attach to a reader."""
    maker, heir = room.start(FIRST), room.start(HEIR)
    heir.tell(maker.hear())
    assert heir.hear() == str(SUM)
    maker.check_end()
    heir.tell("")
    assert heir.hear() == str(SUM)
    later = room.start(HEIR)
    later.tell(heir.hear())
    assert later.hear() == str(SUM)
    heir.check_end()
    later.tell("")
    assert later.hear() == str(SUM)
    later.check_end()
