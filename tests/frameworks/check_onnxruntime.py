"""ONNX Runtime looks at our memory, and the slot waits for it."""

import gc

import numpy as np
import onnxruntime
import pytest

import ropeway as rw
from capsules import address
from slots import state, taken

onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1))  # starts its threads


@pytest.mark.parametrize("how", [{}, {"private": True}])
def test_onnxruntime_sees_the_same_memory(how):
    pool, slot = taken((4, 6), **how)
    value = rw.asarray(slot.array, like="onnxruntime")
    assert value.data_ptr() == address(slot.array)
    assert value.shape() == [4, 6]
    with pytest.raises(BufferError, match="complex64"):
        rw.asarray(rw.zeros(3, "c8"), like="onnxruntime")
    with slot:
        pass
    assert state(pool) == "held-read"
    del value
    gc.collect()
    assert state(pool) == "idle"
