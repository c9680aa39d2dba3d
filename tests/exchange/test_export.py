"""What an export says: dtype, form, shape, alignment."""

import ml_dtypes
import numpy as np
import pytest
from single import KNOWS_VERSIONS, NEW, is_free, one, taken

import ropeway as rw
from capsules import IS_COPIED, READ_ONLY, Handed, Seen, address
from ropeway._views import View

CODES = {
    "bool": (6, 8),
    "int8": (0, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint8": (1, 8),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "uint64": (1, 64),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "complex64": (5, 64),
    "complex128": (5, 128),
    ml_dtypes.bfloat16: (4, 16),
    ml_dtypes.float8_e3m4: (7, 8),
    ml_dtypes.float8_e4m3: (8, 8),
    ml_dtypes.float8_e4m3b11fnuz: (9, 8),
    ml_dtypes.float8_e4m3fn: (10, 8),
    ml_dtypes.float8_e4m3fnuz: (11, 8),
    ml_dtypes.float8_e5m2: (12, 8),
    ml_dtypes.float8_e5m2fnuz: (13, 8),
    ml_dtypes.float8_e8m0fnu: (14, 8),
}


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_dtypes_go_as_themselves(dtype):
    pool = rw.Pool(1, shape=(3, 5), dtype=dtype)
    with pool.acquire() as slot:
        for array in (slot.array, rw.zeros((3, 5), dtype)):
            for options in (NEW, {}):
                seen = Seen(array.__dlpack__(**options))
                assert seen.dtype == (*CODES[dtype], 1)
                assert (seen.data, seen.byte_offset) == (address(array), 0)
                assert (seen.shape, seen.strides) == ((3, 5), (5, 1))
                assert seen.device == array.__dlpack_device__() == (1, 0)
        del array


@pytest.mark.parametrize("dtype", [d for d in CODES if not isinstance(d, str)], ids=str)
def test_numpy_takes_small_floats_as_themselves_where_it_can_be_told(dtype):
    pool = rw.Pool(1, shape=(3, 5), dtype=dtype)
    with pool.acquire() as slot:
        slot.array[...] = 1
        for array in (slot.array, rw.share(np.ones((3, 5), dtype))):
            if hasattr(np.dtypes, "register_dlpack_dtype"):
                imported = np.from_dlpack(array)
                assert (imported.dtype, address(imported)) == (array.dtype, address(array))
                assert (imported == array).all()
                del imported
            else:
                with pytest.raises((RuntimeError, BufferError), match="Unsupported dtype"):
                    np.from_dlpack(array)
        del array
    assert is_free(pool)


def test_small_floats_outside_of_shared_memory_go_too():
    array = View((3,), ml_dtypes.bfloat16)
    array[...] = [1, 2, 3]
    seen = Seen(capsule := array.__dlpack__(**NEW))
    assert seen.dtype == (4, 16, 1)
    assert rw.share(Handed(capsule)).tolist() == [1, 2, 3]
    assert seen.flags == IS_COPIED or seen.data == address(array)


@pytest.mark.parametrize(
    ("dtype", "instead"),
    [
        (">f4", "byte order"),
        (">i2", "newbyteorder"),
        ("M8[ns]", "int64"),
        ("m8[D]", "int64"),
        ([("a", "f4"), ("b", "i2")], "fields"),
        ("S5", "uint8"),
        ("U3", "uint8"),
        ("V4", "uint8"),
        ("longdouble", "float64"),
        (ml_dtypes.int4, "uint8"),
    ],
    ids=str,
)
def test_what_dlpack_cannot_say_is_refused_with_what_works_instead(dtype, instead):
    pool = rw.Pool(1, shape=(3,), dtype=dtype)
    with pool.acquire() as slot:
        for array in (slot.array, rw.zeros(3, dtype)):
            for options in ({}, NEW):
                with pytest.raises(BufferError, match=instead):
                    array.__dlpack__(**options)
        del array
    assert is_free(pool), "a refusal leaves nothing behind"


def test_the_form_is_chosen_by_max_version():
    pool = one()
    with pool.acquire() as slot:
        array = slot.array
        for options in ({}, {"max_version": None}, {"max_version": (0, 8)}):
            assert Seen(array.__dlpack__(**options)).name == "dltensor"
        for version in ((1, 0), (1, 3), (2, 0)):
            seen = Seen(array.__dlpack__(max_version=version))
            assert (seen.name, seen.version, seen.flags) == ("dltensor_versioned", (1, 3), 0)
        del array


def test_read_only_is_said_or_the_export_refused():
    pool = one()
    slot = taken(pool)
    array = slot.array
    assert Seen(array.__dlpack__(**NEW)).flags == READ_ONLY
    with pytest.raises(BufferError, match=r"private=True.*write=True"):
        array.__dlpack__()
    if KNOWS_VERSIONS:
        assert not np.from_dlpack(array).flags.writeable
    shared = rw.zeros(3)
    shared.flags.writeable = False
    with pytest.raises(BufferError, match="copy"):
        shared.__dlpack__()
    del array
    slot.release()
    with taken(pool, private=True) as slot:
        assert Seen(slot.array.__dlpack__()).name == "dltensor"


def test_a_copy_is_fresh_and_says_so():
    pool = one()
    slot = taken(pool, 7)
    for view in (slot.array, slot.array[::2, 1:], slot.array.T, slot.array[:, ::-1]):
        capsule = view.__dlpack__(**NEW, copy=True)
        seen = Seen(capsule)
        assert seen.flags == IS_COPIED
        assert seen.data != address(view)
        assert seen.data % 64 == 0
        assert np.array_equal(rw.share(Handed(capsule)), view)
    old = slot.array.__dlpack__(copy=True)
    assert Seen(old).name == "dltensor", "a copy may be written, so the old form can say it"
    del view
    slot.release()


def test_a_copy_that_there_is_no_memory_for_is_an_error():
    endless = np.broadcast_to(rw.zeros(1), 2**45, subok=True)
    with pytest.raises(MemoryError, match="copy"):
        endless.__dlpack__(**NEW, copy=True)


def test_other_devices_and_streams_are_refused():
    pool = one()
    with pool.acquire() as slot:
        with pytest.raises(BufferError, match="CPU"):
            slot.array.__dlpack__(**NEW, dl_device=(2, 0))
        with pytest.raises(BufferError, match="stream"):
            slot.array.__dlpack__(**NEW, stream=1)
        for device in ((1, 1), (3, 0), (11, 0), (13, 0)):
            with pytest.raises(BufferError, match="CPU"):
                slot.array.__dlpack__(**NEW, dl_device=device)
        with pytest.raises(BufferError, match="stream"):
            slot.array.__dlpack__(**NEW, stream=0, copy=True)
        slot.array.__dlpack__(**NEW, dl_device=(1, 0), copy=False)
        slot.array.__dlpack__(**NEW, stream=-1)  # says that there is nothing to wait for


def test_shapes_are_said_as_the_standard_wants():
    for make in (rw.zeros, lambda *spec: rw.Pool(1, *spec).acquire().array):
        none = Seen(make((), "f4").__dlpack__(**NEW))
        assert (none.ndim, none.shape, none.strides) == (0, None, None)
        assert none.data
        empty = Seen(make((0, 3), "f4").__dlpack__(**NEW))
        assert (empty.shape, empty.strides, empty.data) == ((0, 3), (3, 1), None)
        flat = make((2, 1, 3), "f4")
        odd = np.lib.stride_tricks.as_strided(flat, strides=(12, 4000, 4), subok=True)
        assert Seen(odd.__dlpack__(**NEW)).strides == (3, 3, 1)
        del flat, odd


def test_strided_views_keep_their_strides():
    pool = one()
    with pool.acquire() as slot:
        slot.array[...] = np.arange(24).reshape(4, 6)
        views = [slot.array[::2], slot.array.T, slot.array[1:, 2:4]]
        for view in views + [slot.array[:, ::-1]] * KNOWS_VERSIONS:
            imported = np.from_dlpack(view)
            assert np.array_equal(imported, view)
            assert address(imported) == address(view)
        with pytest.raises(BufferError, match="negative"):
            slot.array[::-1].__dlpack__()
        del views, view, imported


def test_memory_is_aligned():
    sizes = [1, 3, 7, 13, 100]
    pool = rw.Pool(2, fields={str(n): ((n,), "u1") for n in sizes})
    with pool.acquire(), pool.acquire() as slot:
        assert all(Seen(slot[str(n)].__dlpack__(**NEW)).data % 64 == 0 for n in sizes)
