"""What an array of a slot is besides: an ordinary array to whoever computes with it."""

import copy
import pickle

import numpy as np
import pytest
from single import one

import ropeway as rw


def test_results_and_copies_are_ordinary_arrays():
    pool = one()
    with pool.acquire() as slot:
        array = slot.array
        array[...] = 2
        for result in (
            array + 1,
            1 - array,
            array.copy(),
            array.astype("f8"),
            copy.copy(array),
            copy.deepcopy(array),
            np.abs(array),
        ):
            assert type(result) is np.ndarray
            assert not np.shares_memory(result, array)
        assert type(array.sum()) is np.float32
        kept = array
        kept += 1
        assert kept is array
        assert (array == 3).all()
        del array, kept


def test_linear_algebra_gives_ordinary_arrays(fresh):
    fresh("""
        import numpy as np
        import ropeway as rw

        with rw.Pool(1, shape=(4, 4), dtype="f4").acquire() as slot:
            slot.array[...] = np.eye(4) * 2
            for result in (slot.array @ slot.array, np.linalg.inv(slot.array)):
                assert not np.shares_memory(result, slot.array)
                # The linear algebra of NumPy 1 knows of no way to say so.
                assert type(result) is np.ndarray or np.__version__ < "2"
            assert (np.linalg.inv(slot.array) == np.eye(4) / 2).all()
    """)


def test_it_pickles_by_value():
    pool = one()
    with pool.acquire() as slot:
        slot.array[...] = 3
        copied = pickle.loads(pickle.dumps(slot.array, 5))
        assert type(copied) is np.ndarray
        assert (copied == 3).all()
        q = rw.Queue()
        q.put(slot.array)
        assert (q.get() == 3).all()
        q.close()


def test_frameworks_are_asked_for_by_name():
    with pytest.raises(ValueError, match="torch, jax"):
        rw.asarray(rw.zeros(3), like="numpy")
