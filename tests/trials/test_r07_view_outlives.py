"""R07: an array keeps its memory, whatever else is dropped or closed (numpy/numpy#18294)."""

import pytest

OUTLIVES = """
    import gc, multiprocessing, os, pickle, sys
    import numpy as np
    import memory
    import ropeway as rw

    def is_mapped(inode):
        return any(inode == mapped for _, _, mapped in memory.mappings())

    def shared_array(handle):
        return pickle.loads(handle), None

    def from_queue(handle):
        queue = pickle.loads(handle)
        return queue.get(), queue

    def from_pool(handle):
        lease = pickle.loads(handle).take(write=True)
        return lease.array, lease

    def close(way, owner):
        if way is from_queue:
            owner.close()
        if way is from_pool:
            try:
                owner.release()
            except rw.InUse as error:
                assert "1 view" in str(error), error
            else:
                raise AssertionError("release went through while a view lived")

    def use(way, handle):
        a, owner = way(handle)
        gc.collect()
        _, inode = memory.place(a)
        a[...] = 1.0
        print(a.sum(), flush=True)

        v = a[10:20][::2]
        del a
        gc.collect()
        v[...] = 1.0
        print(v.sum(), flush=True)

        close(way, owner)
        v[...] = 2.0
        print(v.sum(), flush=True)
        assert is_mapped(inode)
        del v, owner
        gc.collect()
        inherited = multiprocessing.get_start_method() == "fork"  # the parent's own map
        assert inherited or not is_mapped(inode)

    WAYS = {"shared array": shared_array, "queue": from_queue, "pool": from_pool}

    if __name__ == "__main__":
        what, method = sys.argv[1:]
        if what == "shared array":
            keep = rw.zeros(100)
        elif what == "queue":
            keep = rw.Queue()
            keep.put(np.zeros(100))
        else:
            keep = rw.Pool(slots=1, shape=100, dtype="float64")
            keep.acquire().publish()
        multiprocessing.set_start_method(method)
        child = multiprocessing.Process(target=use, args=(WAYS[what], pickle.dumps(keep)))
        child.start()
        child.join()
        assert child.exitcode == 0
"""


@pytest.mark.parametrize("what", ["shared array", "queue", "pool"])
def test_a_view_keeps_its_memory_and_the_last_gives_it_up(room, method, what):
    """R07 as reported, for every kind of memory that there is."""
    assert room.run(OUTLIVES, what, method) == "100.0\n5.0\n10.0\n"


KINDS = """
    import gc
    import numpy as np
    import ropeway as rw
    from memory import by_dlpack

    KINDS = {
        "slice": lambda a: a[10:20][::2],
        "ndarray": np.asarray,
        "other dtype": lambda a: a.view("uint64"),
        "iterator": iter,
        "memoryview": lambda a: memoryview(a)[3:],
        "array of a memoryview": lambda a: np.asarray(memoryview(a)),
        "capsule": lambda a: a.__dlpack__(),
        "frameworks": lambda a: list(by_dlpack(a)),
    }

    def check_refused(move, kind):
        try:
            move()
        except rw.InUse:
            return
        raise AssertionError(f"the slot moved on under {kind}")

    if __name__ == "__main__":
        pool = rw.Pool(slots=1, shape=100, dtype="float64")

        def state():
            gc.collect()
            (slot,) = pool.status().slots
            return slot.stage, slot.state

        for kind, make in KINDS.items():
            slot = pool.acquire()
            view = make(slot["array"])
            check_refused(slot.publish, kind)
            check_refused(slot.release, kind)
            del view
            slot.publish()

            slot = pool.take(write=True)
            view = make(slot["array"])
            check_refused(slot.release, kind)
            with slot:
                pass
            pool.close() if kind == "frameworks" else None
            assert state() == ("use", "held-write"), kind
            del view, slot
            assert state() == ("fill", "idle"), kind
"""


def test_a_slot_waits_for_every_kind_of_view(room):
    """A sibling: what isn't an array, or is one of somebody else's, keeps the slot as well."""
    room.run(KINDS)
