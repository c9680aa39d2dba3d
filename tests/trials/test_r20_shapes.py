"""R20: arrays of no axes and of no elements keep their shape (mila-iqia/fuel#221)."""

PROGRAM = """
    import multiprocessing, pickle, sys
    import numpy as np
    import ropeway as rw
    from memory import by_dlpack

    SHAPES = [(), (0,), (5, 0), (0, 3, 2), (1,), (1, 1)]
    VALUES = {"float32": 3.5, "int64": 3, "bool": True}
    ARRAYS = [np.full(shape, VALUES[dtype], dtype) for shape in SHAPES for dtype in VALUES]

    def check(array, expected):
        assert array.shape == expected.shape and array.ndim == expected.ndim
        assert array.dtype == expected.dtype
        assert array.tolist() == expected.tolist()

    def echo(handles, there, back):
        for handle, expected in zip(handles, ARRAYS):
            check(pickle.loads(handle), expected)
        while (message := there.get()) is not None:
            back.put(message)

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        shared = [rw.share(array) for array in ARRAYS]
        handles = [pickle.dumps(array) for array in shared]
        there, back = rw.Queue(), rw.Queue()
        child = context.Process(target=echo, args=(handles, there, back))
        child.start()
        for kind in (shared, ARRAYS):
            for number, (array, expected) in enumerate(zip(kind, ARRAYS)):
                for message in (number, array, -number):
                    there.put(message)
                assert back.get() == number
                check(back.get(), expected)
                assert back.get() == -number
        there.put(None)
        child.join()
        assert child.exitcode == 0

        for array, expected in zip(shared, ARRAYS):
            for name, imported in by_dlpack(array):
                assert tuple(imported.shape) == expected.shape, name
                assert imported.tolist() == expected.tolist(), name
                assert str(imported.dtype).removeprefix("torch.") == expected.dtype, name
        pool = rw.Pool(slots=1, fields={
            str(number): (array.shape, array.dtype) for number, array in enumerate(ARRAYS)
        })
        with pool.acquire() as slot:
            for number, array in enumerate(ARRAYS):
                slot[str(number)][...] = array
            slot.publish()
        with pool.take() as slot:
            for number, array in enumerate(ARRAYS):
                check(slot[str(number)], array)
"""


def test_shapes_are_kept_and_nothing_hangs(room, method):
    """R20, without the loader; also as fields of a pool."""
    room.run(PROGRAM, method)
