"""Consumers of raw addresses get one that stays what it is until they say that they are done."""

import ctypes
import gc

import numpy as np
import pytest
from single import is_free, one, publish, taken

import ropeway as rw
from capsules import address


def test_a_pointer_says_what_lies_where():
    pool = one()
    with pool.acquire() as slot, slot.pointer("array") as pointer:
        assert pointer.address == address(slot.array)
        assert (pointer.nbytes, pointer.shape) == (96, (4, 6))
        assert pointer.dtype == np.dtype("f4")
        assert not pointer.readonly
        ctypes.memset(pointer.address, 0, pointer.nbytes)
        assert not slot.array.any()
        assert slot.pointer().address == pointer.address, "the only array needs no name"


def test_a_slot_waits_for_the_pointer_and_says_so():
    pool = one()
    slot = taken(pool)
    with slot.pointer() as pointer:
        assert pointer.readonly
        with pytest.raises(rw.InUse, match="1 raw pointer"):
            slot.release()
        (export,) = pool.status().slots[0].exports
        assert (export.kind, export.count) == ("raw pointer", 1)
        assert 0 <= export.age_s < 100
    slot.release()
    assert is_free(pool)


def test_a_published_slot_waits_for_the_pointer():
    pool = one()
    with pool.acquire() as slot:
        pointer = slot.pointer()
        with pytest.raises(rw.InUse, match="1 raw pointer"):
            slot.publish()
        pointer.release()
        slot.publish()
    pool.take(timeout=0).release()


def test_the_last_to_let_go_of_an_ended_lease_is_the_pointer():
    pool = one()
    with taken(pool) as slot:
        pointer = slot.pointer()
    assert not is_free(pool)
    with pointer:
        assert not is_free(pool)
    assert is_free(pool)


def test_a_dropped_pointer_lets_go():
    pool = one()
    slot = taken(pool)
    pointer = slot.pointer()
    del pointer
    gc.collect()
    slot.release()


def test_a_released_pointer_has_no_address():
    pool = one()
    with pool.acquire() as slot:
        pointer = slot.pointer()
        pointer.release()
        pointer.release()
        assert pointer.released
        with pytest.raises(rw.Invalid, match="released"):
            _ = pointer.address
        with pytest.raises(rw.Invalid, match="released"), pointer:
            pass


def test_rows_rings_and_shared_arrays_have_addresses():
    pool = rw.Pool(2, shape=(4, 16), dtype="f4")
    publish(pool)
    slot = pool.take()
    with rw.Pointer(slot.array[2]) as pointer:
        assert pointer.address == address(slot.array) + 2 * 64
        assert pointer.shape == (16,)
        with pytest.raises(rw.InUse, match="1 raw pointer"):
            slot.release()
    slot.release()
    with rw.Pointer(pool.ring()) as pointer:
        assert pointer.nbytes == 2 * 4 * 64
    shared = rw.zeros(8, "u1")
    with rw.Pointer(shared[2:5]) as pointer:
        del shared
        gc.collect()
        ctypes.memset(pointer.address, 7, pointer.nbytes)


def test_what_has_no_address_to_keep_is_refused():
    pool = one()
    with pool.acquire() as slot:
        for view in (slot.array.T, slot.array[:, ::2], slot.array[::-1]):
            with pytest.raises(BufferError, match="C order"):
                rw.Pointer(view)
        del view
        with pytest.raises(BufferError, match="share"):
            rw.Pointer(np.zeros(3))
        with pytest.raises(TypeError, match="list"):
            rw.Pointer([1, 2])
        with pytest.raises(KeyError, match='no array "x"'):
            slot.pointer("x")
    assert is_free(pool), "a refusal leaves nothing behind"
