"""R18: big-endian bytes are never taken for little-endian ones (cupy/cupy#3652)."""

PROGRAM = """
    import multiprocessing, sys
    import numpy as np
    import ropeway as rw
    from memory import place

    FLOATS = (np.arange(1000) / 8).astype(">f4")
    SHORTS = np.arange(1000).astype(">i2")
    TABLE = np.zeros(1000, [("id", ">u2"), ("value", ">f4")])
    TABLE["value"] = FLOATS
    ARRAYS = {"floats": FLOATS, "shorts": SHORTS, "table": TABLE}

    def check(arrays):
        for name, array in arrays.items():
            assert array.dtype == ARRAYS[name].dtype, name
        assert arrays["floats"].sum(dtype="f8") == 62437.5
        assert arrays["shorts"].sum(dtype="f8") == 499500
        assert arrays["table"]["value"].sum(dtype="f8") == 62437.5
        assert not np.isnan(arrays["floats"]).any()

    def receive(arrays, there, back, pool):
        check(arrays)
        back.put({name: place(array) for name, array in arrays.items()})
        check(there.get())
        with pool.take() as slot:
            check({name: slot[name] for name in slot.keys()})

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        shared = {name: rw.share(array) for name, array in ARRAYS.items()}
        there, back = rw.Queue(), rw.Queue()
        pool = rw.Pool(slots=1, fields={name: (a.shape, a.dtype) for name, a in ARRAYS.items()})
        with pool.acquire() as slot:
            for name, array in ARRAYS.items():
                slot[name][...] = array
            slot.publish()
        child = context.Process(target=receive, args=(shared, there, back, pool))
        child.start()
        assert back.get() == {name: place(array) for name, array in shared.items()}
        there.put(ARRAYS)
        child.join()
        assert child.exitcode == 0

        for array in (shared["floats"], shared["shorts"], shared["table"]["value"].copy()):
            try:
                np.from_dlpack(array)
            except BufferError as error:
                assert "byte order" in str(error), error
            else:
                raise AssertionError("big-endian bytes were exported")
"""


def test_values_of_the_other_byte_order_stay_equal(room, method):
    """R18, without the loader; also as fields of a pool and of a structure."""
    room.run(PROGRAM, method)
