"""R25, exchange: read-only stays read-only, and reading works everywhere (numpy/numpy#20742)."""

PROGRAM = """
    import importlib.util, multiprocessing, sys, warnings
    import numpy as np
    import ropeway as rw

    warnings.simplefilter("error")
    VALUES = np.arange(12, dtype="f4")
    VALUES.flags.writeable = False

    def consume(pool):
        with pool.take(timeout=20) as slot:
            array = slot.array
            assert not array.flags.writeable and (array == VALUES).all()
            try:
                array[0] = 99
            except ValueError:
                pass
            else:
                raise AssertionError("written")
            assert not np.from_dlpack(array).flags.writeable
            try:
                array.__dlpack__()
            except BufferError as error:
                assert "private=True" in str(error) and "write=True" in str(error), error
            else:
                raise AssertionError("an unversioned capsule of a read-only array")
            if importlib.util.find_spec("jax"):
                assert rw.asarray(array, like="jax").tolist() == VALUES.tolist()
            if importlib.util.find_spec("torch"):
                try:
                    rw.asarray(array, like="torch")
                except BufferError:
                    pass
                else:
                    raise AssertionError("torch would have written")
            del array
        for how in ({"readonly": "map"}, {"private": True}):
            with pool.take(timeout=20, **how) as slot:
                assert (slot.array == VALUES).all()
                assert slot.array.flags.writeable == ("private" in how)
                if "private" in how:
                    memory = np.from_dlpack(slot.array)
                    if importlib.util.find_spec("torch"):
                        memory = __import__("torch").from_dlpack(slot.array)
                    memory[0] = 99
                    assert slot.array[0] == 99
                    del memory

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        pool = rw.Pool(slots=3, shape=(12,), dtype="f4")
        for _ in range(3):
            with pool.acquire(timeout=20) as slot:
                slot["array"] = VALUES
                slot.publish()
        child = context.Process(target=consume, args=(pool,))
        child.start()
        child.join()
        assert child.exitcode == 0
        slots = [pool.acquire(timeout=20) for _ in range(3)]
        for slot in slots:
            with slot:
                assert not (slot.array == 99).any(), "a consumer has changed the producer's bytes"
"""


def test_read_only_data_is_read_everywhere_and_never_changed(room, method):
    """R25, steps 1 and 2 for slots, by all three kinds of take."""
    room.run(PROGRAM, method)
