"""R12, exchange: a mask in a slot stays bool for every framework (pytorch/pytorch#114673)."""

PROGRAM = """
    import numpy as np
    import ropeway as rw
    from memory import address, by_dlpack

    VALUES = [[True, False, True], [False, False, True]]

    pool = rw.Pool(slots=1, shape=(2, 3), dtype=bool)
    with pool.acquire() as slot:
        slot["array"] = rw.share(np.array(VALUES))
        slot.publish()
    slot = pool.take(private=True)
    for name, imported in by_dlpack(slot.array):
        assert str(imported.dtype).removeprefix("torch.") == "bool", name
        assert address(imported) == address(slot.array), name
        assert imported.tolist() == VALUES, name
    del imported
    slot.release()
"""

WITHOUT_BOOL = """
    import sys, types
    import numpy as np
    import ropeway as rw

    def never(capsule):
        raise AssertionError("a mask was handed on")

    # Stands for MXNet, whose importer has another code for bool.
    sys.modules["mxnet"] = types.SimpleNamespace(nd=types.SimpleNamespace(from_dlpack=never))
    pool = rw.Pool(slots=1, shape=(3,), dtype=bool)
    with pool.acquire() as slot:
        try:
            rw.asarray(slot.array, like="mxnet")
        except BufferError as error:
            assert "bool" in str(error) and "MXNet" in str(error), error
        else:
            raise AssertionError("no error")
"""


def test_a_mask_in_a_slot_stays_bool(room):
    """R12, steps 1 and 2 for slots."""
    room.run(PROGRAM)


def test_a_framework_without_bool_is_named(room):
    """R12, step 3."""
    room.run(WITHOUT_BOOL)
