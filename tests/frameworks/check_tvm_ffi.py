"""TVM's FFI exchanges arrays by the table of C functions, without a call of Python."""

import gc

import numpy as np
import pytest
import tvm_ffi

import ropeway as rw
from capsules import address
from slots import taken


@tvm_ffi.register_global_func("ropeway.check")
def called(tensor):
    """Gets what a function in C would get."""
    SEEN.append((type(tensor), tensor.data_ptr()))
    return tensor


SEEN = []
FUNCTION = tvm_ffi.get_global_func("ropeway.check")
FUNCTION(np.zeros(1))  # loads what it loads at its first call
SEEN.clear()


@pytest.mark.parametrize("how", [{}, {"readonly": "map"}, {"private": True}], ids=str)
def test_arrays_go_through_a_function_at_their_address(how, eventually):
    pool, slot = taken((4, 6), **how)
    back = FUNCTION(slot.array)  # comes as an array of the type that went in
    assert SEEN.pop() == (tvm_ffi.Tensor, address(slot.array))
    assert type(back) is np.ndarray
    assert address(back) == address(slot.array)
    assert not back.flags.writeable  # TVM drops the flag, so it is never believed
    assert (back == 1).all()
    with pytest.raises(rw.InUse, match="array: 1 DLPack capsule"):
        slot.release()
    del back
    gc.collect()
    assert eventually(lambda: pool.status().slots[0].exports == ())
    slot.release()


@pytest.mark.parametrize("dtype", ["f4", "f2", "i1", "i8", "u2", "?"])
@pytest.mark.parametrize("shape", [(), (7,), (2, 1, 3), (0, 3)])
def test_tensors_keep_the_slot(dtype, shape, eventually):
    pool, slot = taken(shape, dtype, private=True)
    tensor = tvm_ffi.from_dlpack(slot.array)
    assert tuple(tensor.shape) == shape
    assert np.array_equal(np.from_dlpack(tensor), slot.array)
    if slot.array.size:
        assert tensor.data_ptr() == address(slot.array)
        with pytest.raises(rw.InUse, match="1 DLPack capsule"):
            slot.release()
    assert np.array_equal(rw.share(tensor), slot.array)
    del tensor
    gc.collect()
    assert eventually(lambda: pool.status().slots[0].exports == ())
    slot.release()


@pytest.mark.parametrize("dtype", [">f4", "M8[ns]", "S4", [("x", "i4"), ("y", "f8")]], ids=str)
def test_what_dlpack_cannot_say_is_refused(dtype):
    with pytest.raises(BufferError, match="DLPack can't say"):
        FUNCTION(rw.zeros(3, dtype))


def test_an_array_of_our_type_in_other_memory_goes_as_a_copy():
    array = rw.zeros((4, 6))[[0, 2]]  # NumPy makes these in memory of its own
    array[...] = 3
    assert (FUNCTION(array) == 3).all()
