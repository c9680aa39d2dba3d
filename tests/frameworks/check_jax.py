"""JAX looks at our memory, and the slot waits for its engine."""

import gc

import jax
import numpy as np
import pytest

import ropeway as rw
from capsules import address
from slots import state, taken

jax.config.update("jax_platforms", "cpu")
jax.numpy.zeros(1).block_until_ready()  # starts its threads


@pytest.mark.parametrize("dtype", ["f4", "i4", "?", "u1", "c8", "f2"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 1, 3), (0, 3)])
def test_jax_sees_the_same_memory(dtype, shape, eventually):
    for give, how in [
        (lambda x: rw.asarray(x, like="jax"), {}),
        (lambda x: rw.asarray(x, like="jax"), {"readonly": "map"}),
        (jax.numpy.from_dlpack, {"private": True}),
    ]:
        pool, slot = taken(shape, dtype, **how)
        array = slot.array
        there = give(array)
        assert there.shape == shape
        assert there.dtype == array.dtype
        assert there.tolist() == array.tolist()
        if array.size:
            assert there.unsafe_buffer_pointer() == address(array)
        del there, array
        assert eventually(lambda: pool.status().slots[0].exports == ())  # noqa: B023
        slot.release()


def test_jax_refuses_to_narrow():
    _, slot = taken((3,), "f8")
    if not jax.config.jax_enable_x64:
        with pytest.raises(BufferError, match="x64"):
            rw.asarray(slot.array, like="jax")
    slot.release()


def test_a_slot_waits_for_jaxs_engine(eventually):
    """Early recycling gives 777 for 1: the queued operation reads what the next writer wrote."""
    n = 900

    def long(v):
        for _ in range(20):
            v = jax.numpy.dot(v, v) * 1e-3
        return v

    busy, late = jax.jit(long), jax.jit(lambda v, b: v + b * 0)
    ones = jax.numpy.ones((n, n))
    late(ones, busy(ones)).block_until_ready()
    pool = rw.Pool(1, shape=(n, n), dtype="f4")
    early = 0
    for _ in range(3):
        with pool.acquire(timeout=30) as slot:
            slot.array[...] = 1
            slot.publish()
        with pool.take() as slot:
            there = rw.asarray(slot.array, like="jax")
        result = late(there, busy(ones))
        del there, slot
        gc.collect()
        if not result.is_ready():
            early += state(pool) == "idle"
        with pool.acquire(timeout=30) as slot:  # comes when the engine has read the array
            slot.array[...] = 777
        assert float(result[0, 0]) == 1
        assert float(result[-1, -1]) == 1
    assert early == 0, "the slot was free while the operation was queued"
    del result
    assert eventually(lambda: state(pool) == "idle")


def test_arrays_of_jax_come_in():
    values = jax.numpy.arange(24, dtype="float32").reshape(4, 6)
    shared = rw.share(values)
    assert np.array_equal(shared, np.asarray(values))
    half = rw.share(values.astype(jax.numpy.bfloat16))
    assert half.dtype.name == "bfloat16"
    assert half[3, 5] == 23
    pool = rw.Pool(1, shape=(4, 6), dtype="f4")
    with pool.acquire() as slot:
        slot["array"] = values * 2
        assert slot.array[3, 5] == 46


def test_jitted_functions_take_arrays_of_slots(eventually):
    pool, slot = taken((8, 8))
    assert float(jax.jit(lambda x: x.sum())(slot.array)) == 64
    gc.collect()
    assert eventually(lambda: pool.status().slots[0].exports == ())
    slot.release()
