"""R14: dates pass like any dtype of fixed size, unit included (dask/distributed#635)."""

PROGRAM = """
    import multiprocessing, sys
    import numpy as np
    import ropeway as rw
    from memory import place

    ARRAYS = {
        "M8[ns]": np.array(["2010-01-01", "2010-01-02", "2010-01-03", "NaT"], "M8[ns]"),
        "m8[s]": np.array([0, 86400, -1], "m8[s]"),
        "M8[D]": np.empty(0, "M8[D]"),
    }
    NUMBERS = [
        1262304000000000000, 1262390400000000000, 1262476800000000000, -9223372036854775808
    ]

    def check(arrays):
        for dtype, array in arrays.items():
            assert array.dtype == np.dtype(dtype)
            assert array.shape == ARRAYS[dtype].shape
            assert array.tobytes() == ARRAYS[dtype].tobytes()
        assert arrays["M8[ns]"].view("i8").tolist() == NUMBERS

    def return_all(arrays, there, back):
        check(arrays)
        back.put(place(arrays["M8[ns]"]))
        while (message := there.get()) is not None:
            check(message)
            back.put(message)

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        there, back = rw.Queue(), rw.Queue()
        shared = {dtype: rw.share(array) for dtype, array in ARRAYS.items()}
        child = context.Process(target=return_all, args=(shared, there, back))
        child.start()
        assert back.get() == place(shared["M8[ns]"])
        for message in (shared, ARRAYS):
            there.put(message)
            check(back.get())
        there.put(shared)
        assert place(back.get()["m8[s]"]) == place(shared["m8[s]"])
        there.put(None)
        child.join()
        assert child.exitcode == 0

        for dtype, array in shared.items():
            try:
                np.from_dlpack(array)
            except (BufferError, TypeError) as error:
                assert str(array.dtype) in str(error), error
            else:
                raise AssertionError("dates were exported")
        pool = rw.Pool(slots=1, fields={d: (a.shape, d) for d, a in ARRAYS.items()})
        with pool.acquire() as slot:
            for dtype, array in ARRAYS.items():
                slot[dtype][...] = array
            slot.publish()
        with pool.take() as slot:
            check({dtype: slot[dtype] for dtype in slot.keys()})
"""


def test_dates_keep_their_unit_and_are_not_exported(room, method):
    """R14, without the loader; also as fields of a pool."""
    room.run(PROGRAM, method)
