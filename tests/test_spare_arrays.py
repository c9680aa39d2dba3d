"""Arrays of slots are made of those that have died, and nothing of the first life shows."""

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import ropeway as rw
from ropeway import _core


def pool() -> rw.Pool:
    return rw.Pool(slots=2, shape=(2, 3, 64), dtype="f4")


def test_an_array_that_has_died_is_used_again() -> None:
    with pool() as p, p.acquire() as slot:
        first = id(slot.array)
        assert [id(slot.array) for _ in range(5)] == [first] * 5


def reshape(array: np.ndarray) -> None:
    array.shape = (6, 64)


def same_number_of_axes(array: np.ndarray) -> None:
    array.shape = (3, 2, 64)


def lock(array: np.ndarray) -> None:
    array.flags.writeable = False


def retype(array: np.ndarray) -> None:
    array.dtype = "i4"


def buffer(array: np.ndarray) -> None:
    memoryview(array).release()


@pytest.mark.parametrize("change", [reshape, same_number_of_axes, lock, retype, buffer])
@pytest.mark.filterwarnings("ignore:Setting the (shape|dtype):DeprecationWarning")
def test_what_a_holder_changes_is_gone_with_the_array(
    change: Callable[[np.ndarray], None],
) -> None:
    with pool() as p, p.acquire() as slot:
        for _ in range(3):
            array = slot.array
            array[...] = 7
            change(array)
            del array
            again = slot.array
            assert (again.shape, again.dtype) == ((2, 3, 64), np.dtype("f4"))
            assert again.strides == (768, 256, 4)
            assert again.flags.c_contiguous
            assert not again.flags.f_contiguous
            assert again.flags.aligned
            assert again.flags.writeable
            assert (again == 7).all()
            del again


def test_axes_of_one_element_get_the_strides_of_a_new_array() -> None:
    with rw.Pool(slots=1, shape=(1, 64, 1), dtype="f4") as p, p.acquire() as slot:
        for _ in range(3):
            array = slot.array
            assert array.strides == (256, 4, 4)
            assert array.flags.c_contiguous
            assert array.flags.f_contiguous
            del array


def test_a_reader_gets_what_it_may_only_read_and_where_its_slot_lies() -> None:
    with rw.Pool(slots=2, shape=(64,), dtype="f4") as p:
        for number in range(6):
            with p.acquire() as slot:
                slot.array[...] = number
                slot.publish()
            with p.take() as slot:
                array = slot.array
                assert (array == number).all()
                with pytest.raises(ValueError, match="read-only"):
                    array[0] = 1
                with pytest.raises(ValueError, match="WRITEABLE"):
                    array.flags.writeable = True
                del array


def test_a_dead_array_is_dead_to_weak_references() -> None:
    with pool() as p, p.acquire() as slot:
        array = slot.array
        seen = weakref.ref(array)
        del array
        assert seen() is None
        again = slot.array
        assert seen() is None
        assert again.shape == (2, 3, 64)
        del again


def test_the_memory_of_a_dead_array_that_somebody_has_stays_theirs() -> None:
    with pool() as p:
        slot = p.acquire()
        slot.array[...] = 5
        memory = slot.array.base
        with pytest.raises(rw.InUse, match="1 array"):
            slot.publish()
        other = p.acquire()
        other.array[...] = 9
        assert set(np.frombuffer(memory, "f4")) == {5.0}
        del memory
        slot.publish()
        other.release()


def test_what_waits_for_its_next_use_has_no_memory() -> None:
    with pool() as p, p.acquire() as slot:
        assert slot.array.flags.writeable
        waiting = [x for x in gc.get_objects() if isinstance(x, _core.Export) and not x.nbytes]
        assert waiting
        assert {bytes(x) for x in waiting} == {b""}
        # Whoever has found one keeps it from being used again.
        assert all(slot.array.base is not x for x in waiting)


def test_slices_keep_their_slot_when_the_array_itself_is_forgotten() -> None:
    with pool() as p:
        slot = p.acquire()
        slice_ = slot.array[1]
        slot.array[...] = 4
        with pytest.raises(rw.InUse):
            slot.publish()
        assert (slice_ == 4).all()
        del slice_
        slot.publish()


def test_pools_of_many_shapes_take_turns() -> None:
    shapes = [(64,), (2, 64), (64, 2), (16, 4), (4, 16, 1), (1024,)]
    with (
        rw.Pool(slots=1, fields={str(n): (shape, "f4") for n, shape in enumerate(shapes)}) as p,
        p.acquire() as slot,
    ):
        for _ in range(4):
            for n, shape in enumerate(shapes):
                slot[str(n)][...] = n
                assert slot[str(n)].shape == shape
            assert all((slot[str(n)] == n).all() for n in range(len(shapes)))
