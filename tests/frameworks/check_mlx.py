"""MLX copies what it takes, so that a slot is free at once, and gives away its own memory."""

import mlx.core as mx
import numpy as np
import pytest

import ropeway as rw
from slots import taken

mx.eval(mx.zeros(3) + 1)  # starts its threads


@pytest.mark.parametrize("dtype", ["f4", "f2", "i4", "i8", "u1", "?", "c8"])
@pytest.mark.parametrize("shape", [(), (7,), (2, 1, 3), (0, 3)])
def test_mlx_has_a_copy(dtype, shape, eventually):
    for how in ({}, {"private": True}):
        pool, slot = taken(shape, dtype, **how)
        there = mx.array(slot.array)
        mx.eval(there)
        assert np.array_equal(np.array(there), slot.array)
        assert eventually(lambda: pool.status().slots[0].exports == ())  # noqa: B023
        slot.release()


def test_arrays_of_mlx_come_in():
    values = mx.arange(24, dtype=mx.float32).reshape(4, 6)
    assert np.array_equal(rw.share(values), np.arange(24).reshape(4, 6))
    assert rw.share(values.astype(mx.bfloat16)).dtype.name == "bfloat16"
    pool = rw.Pool(1, shape=(4, 6), dtype="f4")
    with pool.acquire() as slot:
        slot["array"] = values * 2
        assert slot.array[3, 5] == 46
