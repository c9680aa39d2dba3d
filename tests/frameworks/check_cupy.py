"""CuPy without a GPU: an error that names it, and nothing of the slot is kept."""

import warnings

import pytest

import ropeway as rw
from slots import taken

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import cupy


def test_without_a_gpu_the_error_names_cupy_and_the_slot_is_free(eventually):
    if gpus():
        pytest.skip("there is a GPU")
    pool, slot = taken((4, 6))
    with pytest.raises(BufferError, match=r"cupy can't take this array"):
        rw.asarray(slot.array, like="cupy")
    assert eventually(lambda: pool.status().slots[0].exports == ())
    slot.release()


def test_a_gpu_gets_a_copy_and_the_slot_is_free(eventually):
    if not gpus():
        pytest.skip("there is no GPU")
    pool, slot = taken((4, 6))
    there = rw.asarray(slot.array, like="cupy")
    assert eventually(lambda: pool.status().slots[0].exports == ())
    slot.release()
    assert float(there.sum()) == 24
    with pytest.raises(BufferError, match="CUDA"):
        rw.share(there)


def gpus():
    try:
        return cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0
