"""What comes in from other frameworks is checked, and copied once."""

import gc

import ml_dtypes
import numpy as np
import pytest
from single import is_free, one

import ropeway as rw
from capsules import Handed, Producer, address, used


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("old", [True, False])
def test_foreign_arrays_are_copied_once(versioned, old):
    pool = one()
    values = np.arange(24, dtype="f4").reshape(4, 6)
    producer = Producer(values, versioned=versioned, old=old)
    shared = rw.share(producer)
    assert np.array_equal(shared, values)
    assert address(shared) != address(values)
    del shared
    with pool.acquire() as slot:
        slot["array"] = producer
        assert np.array_equal(slot.array, values)
        slot.fill("array", producer)
    gc.collect()
    assert producer.deleted == 3, "each deleter runs once"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24.0)[::-1],
        np.arange(24.0).reshape(4, 6).T,
        np.arange(24.0).reshape(4, 6)[::2, ::-3],
        np.float32(3.5),
        np.zeros((5, 0)),
        np.arange(3) > 1,
    ],
)
def test_any_layout_is_read(array):
    array = np.asarray(array)
    shared = rw.share(Producer(array))
    assert shared.shape == array.shape
    assert shared.dtype == array.dtype
    assert shared.tolist() == array.tolist()


def test_byte_offsets_and_missing_strides_are_read():
    values = np.arange(24.0)
    there = {"data": address(values) - 64, "byte_offset": 64, "strides": None}
    assert rw.share(Producer(values, **there)).tolist() == values.tolist()


def test_bfloat16_comes_in_as_itself():
    values = np.arange(5).astype(ml_dtypes.bfloat16)
    shared = rw.share(Producer(values, dtype=(4, 16, 1)))
    assert shared.dtype == ml_dtypes.bfloat16
    assert shared.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"version": (2, 0)}, r"DLPack 2\.0"),
        ({"dtype": (2, 64, 4)}, "vectors of 4"),
        ({"dtype": (17, 4, 1)}, "code 17"),
        ({"dtype": (99, 64, 1)}, "code 99"),
        ({"shape": (-1,)}, "negative"),
        ({"shape": (2**62,)}, "more than there can be"),
        ({"shape": (2**31, 2**31, 2**31), "strides": None}, "more than there can be"),
        ({"shape": (3,), "strides": (2**61,)}, "strides"),
        ({"ndim": 65}, "65 axes"),
        ({"ndim": -1}, "-1 axes"),
        ({"data": None}, "no memory"),
        ({"byte_offset": 2**64 - 8}, "address space"),
        ({"data": 8, "shape": (3,), "strides": (-1,)}, "address space"),
    ],
    ids=str,
)
def test_foreign_nonsense_is_refused_and_let_go_of(fields, why):
    pool = one()
    producer = Producer(np.arange(3.0), **fields)
    with pytest.raises(BufferError, match=why):
        rw.share(producer)
    with pool.acquire() as slot, pytest.raises(BufferError, match=why):
        slot["array"] = producer
    assert producer.deleted == 2
    assert is_free(pool)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"data": b"x" * 16}, "outside"),
        ({"data": b"x" * 24, "offset": 8}, "outside"),
        ({"data": b"x" * 24, "offset": -8}, "outside"),
        ({"data": b"x" * 24, "strides": (16,)}, "outside"),
        ({"data": b"x" * 24, "strides": (-8,)}, "outside"),
        ({"data": (2**64 - 16, False)}, "outside"),
        ({"data": (-5, False)}, "outside"),
        ({"data": (16, False), "strides": (2**62,)}, "outside"),
        ({"data": (16, False), "strides": (-16,)}, "outside"),
        ({"data": (0, False)}, "no memory"),
        ({"data": (16, False), "shape": (2**62,)}, "too big"),
        ({"data": (16, False), "shape": (-1,)}, "negative"),
        ({"data": (16, False), "typestr": "|O"}, "object"),
        ({"data": b"x" * 24, "mask": b"xxx"}, "mask"),
        ({}, "bytes-like"),
    ],
    ids=str,
)
def test_an_array_interface_is_not_believed_blindly(said, why):
    class Liar:
        __array_interface__ = {"version": 3, "shape": (3,), "typestr": "<f8", **said}  # noqa: RUF012

    pool = rw.Pool(1, shape=(3,), dtype="f8")
    with pytest.raises((BufferError, TypeError, ValueError), match=why):
        rw.share(Liar())
    with pool.acquire() as slot, pytest.raises((BufferError, TypeError, ValueError), match=why):
        slot["array"] = Liar()
    assert is_free(pool)


def test_an_array_interface_may_point_into_a_buffer():
    class Buffered:
        def __init__(self, **said):
            values = np.arange(6.0).tobytes()
            said = {"shape": (3,), "typestr": "<f8", "version": 3, "data": values} | said
            self.__array_interface__ = said

    assert rw.share(Buffered(offset=8)).tolist() == [1, 2, 3]
    assert rw.share(Buffered(offset=40, strides=(-16,))).tolist() == [5, 3, 1]
    assert rw.share(Buffered(shape=(0,), data=(0, False))).tolist() == []
    fields = {"typestr": "|V16", "descr": [("a", "<f8"), ("b", "<f8")]}
    assert rw.share(Buffered(**fields)).tolist() == [(0, 1), (2, 3), (4, 5)]


def test_elements_need_no_alignment():
    memory = np.zeros(33, "u1")
    values = memory[1:].view("f8")
    values[...] = [1, 2, 3, 4]
    assert values.ctypes.data % 8
    pool = rw.Pool(1, shape=(4,), dtype="f8")
    for source in (Producer(values), Interface(values)):
        assert rw.share(source).tolist() == [1, 2, 3, 4]
        with pool.acquire() as slot:
            slot["array"] = source
            assert slot.array.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("device", "name"), [((2, 0), "CUDA"), ((10, 3), "ROCm"), ((8, 0), "Metal")]
)
def test_a_device_is_looked_at_before_anything_is_asked_for(device, name):
    pool = one()
    producer = Producer(np.arange(3.0), device=device, data=0x10)
    with pytest.raises(BufferError, match=name):
        rw.share(producer)
    with pool.acquire() as slot, pytest.raises(BufferError, match=name):
        slot["array"] = producer
    assert producer.asked == 0


def test_memory_pinned_for_a_device_is_the_cpus():
    assert rw.share(Producer(np.arange(3.0), device=(3, 0))).tolist() == [0, 1, 2]


def test_a_capsule_is_taken_once():
    one()
    producer = Producer(np.arange(3.0))
    handed = Handed(producer.__dlpack__())
    assert rw.share(handed).tolist() == [0, 1, 2]
    assert used(handed.capsule)
    with pytest.raises(TypeError, match="once"):
        rw.share(handed)


def test_slots_take_whatever_has_a_buffer():
    pool = one()
    values = np.arange(24, dtype="f4").reshape(4, 6)
    for source in (
        memoryview(values),
        values.tolist(),
        values,
        Interface(values),
        Producer(values),
    ):
        with pool.acquire() as slot:
            slot["array"] = 0
            slot["array"] = source
            assert np.array_equal(slot.array, values)


class Interface:
    """Has nothing but `__array_interface__`."""

    def __init__(self, array):
        self.array, self.__array_interface__ = array, array.__array_interface__


@pytest.mark.parametrize("error", [BufferError, RuntimeError])
def test_what_raises_in_an_export_raises_here(error):
    pool = one()

    class Lazy:
        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **options):
            raise error("needs grad")

    with pytest.raises(BufferError, match=r"Lazy.*needs grad"):
        rw.share(Lazy())
    with pool.acquire() as slot, pytest.raises(BufferError, match=r"Lazy.*needs grad"):
        slot["array"] = Lazy()


def test_a_device_that_dlpack_does_not_know_is_refused():
    class Meta:
        def __dlpack_device__(self):
            raise ValueError("Unknown device type meta for Dlpack")

        def __dlpack__(self, **options):
            raise AssertionError("isn't asked")

    with pytest.raises(BufferError, match=r"Meta.*device.*type meta"):
        rw.share(Meta())


def test_a_device_that_nobody_says_is_refused():
    class Traced:
        def __dlpack__(self, **options):
            raise AssertionError("isn't asked")

    with pytest.raises(BufferError, match=r"Traced.*device"):
        rw.share(Traced())
