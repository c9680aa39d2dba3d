"""R16: arrays of Python objects are refused at the door (python/cpython#117262)."""

PROGRAM = """
    import multiprocessing, sys
    import numpy as np
    import ropeway as rw
    from memory import place

    OBJECTS = [
        np.array([{}, "x", None], dtype=object),
        np.zeros(2, [("a", "i4"), ("b", object)]),
        np.empty(0, object),
    ]

    def refused(call, *arguments):
        try:
            call(*arguments)
        except TypeError as error:
            assert "object" in str(error), error
        else:
            raise AssertionError("an array of objects was taken")

    def answer(there, back):
        message = there.get()
        back.put((place(message["img"]), message["obj"].tolist(), message))

    if __name__ == "__main__":
        before = rw.status()
        pool = rw.Pool(slots=1)
        for array in OBJECTS:
            refused(rw.share, array)
            refused(rw.empty, array.shape, array.dtype)
            refused(rw.Pool, 1, array.shape, array.dtype)
            with pool.acquire() as slot:
                refused(slot.add, "x", array.shape, array.dtype)
                assert slot.keys() == []
        assert rw.status() == before
        assert pool.status().committed == 0

        context = multiprocessing.get_context(sys.argv[1])
        there, back = rw.Queue(), rw.Queue()
        child = context.Process(target=answer, args=(there, back))
        child.start()
        image = rw.share(np.arange(12, dtype="uint8").reshape(3, 4))
        there.put({"img": image, "obj": OBJECTS[0]})
        where, objects, message = back.get()
        assert where == place(image)
        assert objects == message["obj"].tolist() == [{}, "x", None]
        image[0, 0] = 99
        assert message["img"][0, 0] == 99
        child.join()
        assert child.exitcode == 0

        with pool.acquire() as slot:
            slot.add("x", 3, "f4")[:] = 1
            slot.publish()
        with pool.take() as slot:
            assert slot["x"].sum() == 3
"""


def test_objects_are_refused_before_a_byte_is_written(room, method):
    """R16, without the loader; on a queue the objects are pickled and the image isn't."""
    room.run(PROGRAM, method)
