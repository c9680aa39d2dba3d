"""R18, exchange: big-endian bytes of a slot are refused by name (cupy/cupy#3652)."""

PROGRAM = """
    import numpy as np
    import ropeway as rw

    FLOATS = (np.arange(1000) / 8).astype(">f4")
    SHORTS = np.arange(1000).astype(">i2")
    TABLE = np.zeros(1000, [("id", ">u2"), ("value", ">f4")])
    TABLE["value"] = FLOATS

    pool = rw.Pool(slots=1, fields={
        "floats": ((1000,), ">f4"), "shorts": ((1000,), ">i2"), "table": ((1000,), TABLE.dtype),
    })
    with pool.acquire() as slot:
        for name, array in (("floats", FLOATS), ("shorts", SHORTS), ("table", TABLE)):
            slot[name] = array
        slot.publish()
    with pool.take(private=True) as slot:
        for array in (slot["floats"], slot["shorts"], slot["table"]["value"]):
            for options in ({}, {"max_version": (1, 3)}):
                try:
                    array.__dlpack__(**options)
                except BufferError as error:
                    assert "byte order" in str(error) and "newbyteorder" in str(error), error
                else:
                    raise AssertionError("big-endian bytes were exported")
            try:
                array.__arrow_c_array__()
            except BufferError as error:
                assert "byte order" in str(error), error
            else:
                raise AssertionError("big-endian bytes were exported")
        # What the error proposes works.
        native = slot["floats"].astype(slot["floats"].dtype.newbyteorder("="))
        assert np.from_dlpack(native).sum(dtype="f8") == 62437.5
        assert slot["table"]["value"].sum(dtype="f8") == 62437.5
        assert slot["shorts"].sum(dtype="f8") == 499500
"""


def test_big_endian_bytes_of_a_slot_are_refused_by_name(room):
    """R18, step 2."""
    room.run(PROGRAM)
