"""R20, exchange: arrays of no axes and of no elements keep their shape (mila-iqia/fuel#221)."""

PROGRAM = """
    import numpy as np
    import ropeway as rw
    from memory import by_dlpack

    SHAPES = [(), (0,), (5, 0), (0, 3, 2), (1,), (1, 1)]
    VALUES = {"float32": 3.5, "int64": 3, "bool": True}

    for shape in SHAPES:
        for dtype, value in VALUES.items():
            expected = np.full(shape, value, dtype)
            pool = rw.Pool(slots=1, shape=shape, dtype=dtype)
            with pool.acquire() as slot:
                slot["array"] = rw.share(expected)
                slot.publish()
            with pool.take(private=True) as slot:
                for name, imported in by_dlpack(slot.array):
                    assert tuple(imported.shape) == shape, (name, shape, imported.shape)
                    assert imported.tolist() == expected.tolist(), name
                    assert str(imported.dtype).removeprefix("torch.") == dtype, name
                    if name != "torch":  # back again, through its own export
                        again = rw.share(imported)
                        assert again.shape == shape and again.tolist() == expected.tolist()
"""


def test_shapes_are_kept_by_every_framework(room):
    """R20, step 3, for slots and both ways."""
    room.run(PROGRAM)
