"""PyArrow looks at our memory, and the slot waits for it."""

import gc

import numpy as np
import pyarrow
import pytest

import ropeway as rw
from capsules import address
from slots import state, taken

pyarrow.array(range(3)).to_pylist()  # starts its threads


@pytest.mark.parametrize(
    "dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
)
def test_arrow_sees_the_same_memory(dtype):
    pool, slot = taken((5,), dtype, value=range(5))
    array = rw.asarray(slot.array, like="pyarrow")
    assert array.to_pylist() == list(range(5))
    assert array.type == pyarrow.from_numpy_dtype(dtype)
    assert array.buffers()[1].address == address(slot.array)
    with pytest.raises(rw.InUse, match="1 Arrow array"):
        slot.release()
    part = array[2:4]
    with slot:
        del array
    assert state(pool) == "held-read"
    del part
    gc.collect()
    assert state(pool) == "idle"


def test_a_batch_is_a_fixed_shape_tensor():
    pool, slot = taken((4, 2, 3), value=np.arange(24).reshape(4, 2, 3))
    array = pyarrow.array(slot.array)
    assert isinstance(array, pyarrow.FixedShapeTensorArray)
    assert array.type.shape == [2, 3]
    assert len(array) == 4
    there = array.to_numpy_ndarray()
    assert np.array_equal(there, slot.array)
    assert address(there) == address(slot.array)
    back = rw.share(array)
    assert back.shape == (4, 2, 3)
    assert np.array_equal(back, slot.array)
    with slot:
        del array
    assert state(pool) == "held-read"
    del there
    gc.collect()
    assert state(pool) == "idle"


def test_what_arrow_cannot_say_is_refused():
    for array, why in [
        (rw.zeros(3, "?"), "uint8"),
        (rw.zeros((), "f4"), "reshape"),
        (rw.zeros(3, "c8"), "uint8"),
        (rw.zeros(3, ">f4"), "byte order"),
        (rw.zeros((4, 4))[:, ::2], "C order"),
    ]:
        with pytest.raises(BufferError, match=why):
            array.__arrow_c_array__()


class Arrow:
    """Speaks nothing but the Arrow C data interface."""

    def __init__(self, array):
        self.__arrow_c_array__ = array.__arrow_c_array__


@pytest.mark.parametrize("give", [Arrow, lambda array: array], ids=["Arrow alone", "as it is"])
def test_arrays_of_arrow_come_in(give):
    numbers = pyarrow.array([1, 2, 3, 4, 5], pyarrow.int16())
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.arange(12.0)), 3)
    for array, expected in [
        (numbers, [1, 2, 3, 4, 5]),
        (numbers[1:3], [2, 3]),
        (numbers[:0], []),
        (lists, np.arange(12.0).reshape(4, 3).tolist()),
        (lists[2:], [[6, 7, 8], [9, 10, 11]]),
    ]:
        assert rw.share(give(array)).tolist() == expected
    pool = rw.Pool(1, shape=(5,), dtype="i2")
    with pool.acquire() as slot:
        slot["array"] = give(numbers)
        assert slot.array.tolist() == [1, 2, 3, 4, 5]
    for array, why in [
        (pyarrow.array([1, None]), "nulls"),
        (pyarrow.array([True, False]), "bits"),
        (pyarrow.array(["a"]), "fixed size"),
        (pyarrow.FixedSizeListArray.from_arrays(pyarrow.array([1, None]), 2), "nulls"),
    ]:
        with pytest.raises(BufferError, match=why):
            rw.share(give(array))
