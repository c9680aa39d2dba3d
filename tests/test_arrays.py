import array
import copy
import gc
import io
import pickle
import re
from pathlib import Path

import cloudpickle
import joblib
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import ropeway as rw
from ropeway._arrays import address, shared_block

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
DTYPES = ["?", "u1", ">i2", ">f4", "f8", "c16", "g", "S5", "U3", "V7", "M8[ns]", "m8[s]"]
DTYPES += [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4]
DTYPES += [
    np.dtype([("a", "u1"), ("b", ">f8", (2,))], align=True),
    np.dtype((np.record, [("x", "f4")])),
]


def again(x, protocol=pickle.HIGHEST_PROTOCOL):
    handle = pickle.dumps(x, protocol)
    assert len(handle) < 1024
    return pickle.loads(handle)


def assert_same_view(one, other):
    assert type(one) is type(other) is rw.Array
    assert address(one) == address(other)
    assert (one.dtype, one.shape, one.strides) == (other.dtype, other.shape, other.strides)
    assert one.flags.writeable == other.flags.writeable


VIEWS = {
    "whole": lambda a: a,
    "slice": lambda a: a[1:4, ::2],
    "transposed": lambda a: a.T,
    "reversed": lambda a: a[::-1, ::-1],
    "one column": lambda a: a[:, 3],
    "one element": lambda a: a[2, 3, ...],
    "nothing": lambda a: a[5:, :0],
    "other dtype": lambda a: a.view("u1"),
    "two axes more": lambda a: a[None, :, None],
    "view of a view": lambda a: a[1:][::2].T[:3],
    "broadcast": lambda a: np.broadcast_to(a, (3, *a.shape), subok=True),
    "windows": lambda a: np.lib.stride_tricks.sliding_window_view(a, 3, axis=1, subok=True),
    "through ndarray": lambda a: a.view(np.ndarray)[1:].view(rw.Array),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_pickle_as_handles_of_the_same_memory(view, protocol):
    whole = rw.share(np.arange(60.0).reshape(6, 10))
    assert_same_view(again(view(whole), protocol), view(whole))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5, 0), (0, 3, 2), (1,), (1, 1), (4, 3)], ids=str)
def test_every_dtype_and_shape_is_kept(dtype, shape):
    made = rw.zeros(shape, dtype)
    assert (made.shape, made.dtype) == (shape, np.dtype(dtype))
    assert made.tobytes() == bytes(made.nbytes)
    assert_same_view(again(made), made)


def test_fields_of_structures_are_views():
    table = rw.zeros(7, [("a", "u1"), ("b", [("c", "f8"), ("d", "i2", (3,))])])
    again(table["b"]["d"])[2] = [1, 2, 3]
    assert table["b"]["d"].tolist() == [[0, 0, 0], [0, 0, 0], [1, 2, 3], *[[0, 0, 0]] * 4]
    assert not table["a"].any()
    assert_same_view(again(table[["a"]]), table[["a"]])


@given(st.data())
def test_any_index_gives_the_same_view(data):
    shape = data.draw(npst.array_shapes(min_dims=0, max_dims=4, max_side=4))
    whole = rw.empty(shape, "i4")
    index = data.draw(npst.basic_indices(shape, allow_newaxis=True))
    view = whole[index]
    if isinstance(view, np.ndarray):  # a full index gives a scalar
        assert_same_view(again(view), view)


def test_reading_only_stays_reading_only():
    a = rw.zeros(3)
    a.flags.writeable = False
    b = again(a[1:])
    with pytest.raises(ValueError, match="read-only"):
        b[0] = 1


def test_a_view_keeps_the_memory_when_the_array_is_gone():
    a = rw.zeros(100)
    handle = pickle.dumps(a)
    view = a[10:20][::2]
    del a
    gc.collect()
    view[:] = 1
    assert pickle.loads(handle).sum() == view.sum() == 5


def test_arrays_are_aligned():
    for size, dtype in [(1, "u1"), (7, "u1"), (13, "f4"), (1_000_003, "u1"), (100, "c16")]:
        assert address(rw.empty(size, dtype)) % 64 == 0


def test_zeros_are_zeros_where_memory_is_used_again():
    for _ in range(5):
        a = rw.zeros(5_000, "u1")
        assert not a.any()
        a[:] = 255
        del a


def test_memory_has_the_size_that_was_asked_for():
    for size in (1, 4095, 4096, 4097, 12_289, 80_000):
        a = rw.empty(size, "u1")
        assert a.nbytes == memoryview(a).nbytes == len(a.tobytes()) == size
        assert again(a).nbytes == size


COPIES = {
    "copy": lambda a: a.copy(),
    "copy in Fortran order": lambda a: a.copy("F"),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "deepcopy in a list": lambda a: copy.deepcopy([a])[0],
    "astype": lambda a: a.astype("f4"),
    "astype, same": lambda a: a.astype("f8"),
    "plus": lambda a: a + 1,
    "comparison": lambda a: a > 1,
    "reduction": lambda a: a.sum(axis=0),
    "accumulation": lambda a: np.cumsum(a, axis=0),
    "product": lambda a: a @ a.T,
}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_copies_and_results_are_private_ordinary_arrays(make):
    a = rw.share(np.arange(12.0).reshape(3, 4))
    result = make(a)
    assert type(result) is np.ndarray
    assert not np.shares_memory(result, a)
    before = result.copy()
    a[:] = -1
    assert np.array_equal(result, before)


def test_copy_and_astype_do_what_numpys_do():
    x = np.arange(24.0).reshape(2, 3, 4).transpose(1, 2, 0)
    a = rw.share(np.arange(24.0).reshape(2, 3, 4)).transpose(1, 2, 0)
    for order in "CFAK":
        assert a.copy(order).strides == x.copy(order).strides
        assert a.astype("f4", order=order).strides == x.astype("f4", order=order).strides
    assert copy.copy(a).strides == copy.copy(x).strides
    assert copy.deepcopy(a).strides == copy.deepcopy(x).strides
    assert a.astype("f8", copy=False) is a
    assert type(a.astype("f4", subok=True)) is rw.Array


def test_scalars_come_where_numpy_has_them():
    a, zero_d = rw.share(np.arange(3.0)), rw.share(np.array(2.0))
    assert [type(x) for x in (a.sum(), a.max(), zero_d + 1, -zero_d, a[1])] == [np.float64] * 5
    assert type(zero_d) is rw.Array
    assert float(zero_d) == 2


def test_an_array_has_the_manners_of_a_memmap(tmp_path):
    array = rw.share(np.arange(12.0).reshape(3, 4))
    for view in (array[1:], array.T, array.reshape(-1), array.view("i8"), array.real, array[None]):
        assert type(view) is rw.Array
        assert np.shares_memory(view, array)
    array += 1
    assert type(array) is rw.Array
    for grow in (array.resize, lambda shape: array.resize(shape, refcheck=False)):
        with pytest.raises(ValueError, match="does not own its data"):
            grow((5, 5))
    array.setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1
    for save, load in ((np.save, np.load), (np.savez, lambda file: np.load(file)["arr_0"])):
        with (tmp_path / "file").open("wb+") as file:
            save(file, array)
            file.seek(0)
            assert np.array_equal(load(file), np.arange(1.0, 13).reshape(3, 4))
    array.tofile(tmp_path / "raw")
    assert np.array_equal(np.fromfile(tmp_path / "raw"), np.arange(1.0, 13))
    assert type(np.ma.array(array, mask=array > 3).data) is rw.Array
    assert type(array.view(np.ndarray)) is type(np.asarray(array)) is np.ndarray


def test_ufuncs_write_into_arrays():
    a = rw.zeros(4)
    a += 1
    assert np.add(a, 1, out=a) is a
    np.multiply(a[::2], 5, out=a[::2])
    assert again(a).tolist() == [10, 2, 10, 2]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_instance_without_shared_memory_pickles_by_value(protocol):
    a = rw.share(np.arange(5))
    for picked in (a[[0, 2]], a[a > 2], np.concatenate([a, a]).view(rw.Array)):
        assert shared_block(picked) is None
        copied = pickle.loads(pickle.dumps(picked, protocol))
        assert np.array_equal(copied, picked)
        assert not np.shares_memory(copied, picked)


class Interface:
    def __init__(self, x):
        self.x = x
        self.__array_interface__ = x.__array_interface__


class Exchange:
    """An array of another framework, as far as DLPack goes."""

    def __init__(self, x, device=(1, 0)):
        self.x, self.device = x, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **how):
        assert self.device[0] == 1, "the capsule of a device was asked for"
        return self.x.__dlpack__(**how)


SOURCES = {
    "ndarray": lambda x: x,
    "Fortran order": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "read-only": lambda x: np.broadcast_to(x[:, :1], x.shape) * 0 + x,
    "memoryview": memoryview,
    "array interface": Interface,
    "DLPack": Exchange,
    "unshared Array": lambda x: x.view(rw.Array),
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_share_copies_whatever_has_memory(make):
    x = np.arange(12, dtype="i4").reshape(3, 4)
    a = rw.share(make(x))
    assert type(a) is rw.Array
    assert a.dtype == x.dtype
    assert np.array_equal(a, x)
    assert a.flags.writeable
    assert_same_view(again(a), a)
    a[:] = 0
    assert x[2, 3] == 11


def test_share_takes_flat_buffers_and_scalars():
    assert rw.share(b"abc").tolist() == [97, 98, 99]
    assert rw.share(bytearray(3)).dtype == np.uint8
    assert rw.share(array.array("d", [0.5])).tolist() == [0.5]
    scalar = rw.share(np.float32(3.5))
    assert (scalar.shape, scalar.dtype, scalar[()]) == ((), np.float32, 3.5)


def test_share_keeps_fortran_order_and_padding():
    assert rw.share(np.zeros((3, 4), order="F")).flags.f_contiguous
    padded = np.full(3, 255, "u1").repeat(16).view(np.dtype([("a", "u1"), ("b", "f8")], align=True))
    assert rw.share(padded).tobytes() == padded.tobytes()


def test_share_gives_back_what_is_shared():
    a = rw.zeros(3)
    view = a[1:]
    assert rw.share(a) is a
    assert rw.share(view) is view


@pytest.mark.parametrize("dtype", [object, [("a", "i4"), ("b", object)]], ids=["object", "field"])
@pytest.mark.parametrize("shape", [(0,), (3,)])
def test_python_objects_are_refused_at_the_door(dtype, shape):
    for make in (rw.empty, rw.zeros):
        with pytest.raises(TypeError, match="object"):
            make(shape, dtype)
    with pytest.raises(TypeError, match="object"):
        rw.share(np.zeros(shape, dtype))


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "message"),
    [
        ((3, -1), "f4", ValueError, "shape (3, -1) has a negative dimension: -1"),
        (-2, "f4", ValueError, "shape (-2,) has a negative dimension: -2"),
        (2.5, "f4", TypeError, "an int or a tuple of ints, found 2.5 (float)"),
        ((2, "3"), "f4", TypeError, "an int or a tuple of ints, found (2, '3') (tuple)"),
        ("33", "f4", TypeError, "an int or a tuple of ints, found '33' (str)"),
        (None, "f4", TypeError, "an int or a tuple of ints, found None (NoneType)"),
        ((2**40, 2**40), "f4", ValueError, f"would take {2**82} bytes; at most {2**63 - 1} can be"),
        (2**60, "f8", ValueError, f"would take {2**63} bytes; at most {2**63 - 1} can be"),
        ((0, 2**62, 2**62), "u1", ValueError, "at most"),
        (3, "nonsense", TypeError, "nonsense"),
    ],
)
def test_arrays_that_cannot_be_are_refused(shape, dtype, error, message):
    for make in (rw.empty, rw.zeros):
        with pytest.raises(error, match=re.escape(message)):
            make(shape, dtype)


def test_shapes_are_understood_as_numpy_does():
    assert rw.empty(np.int8(3)).shape == (3,)
    assert rw.empty([2, np.int64(3)], "f4").shape == (2, 3)
    assert rw.empty(2, ("f4", (3, 1))).shape == (2, 3, 1)
    assert rw.empty(2, "S").dtype == "S1"
    assert rw.empty(2).dtype == float


def test_other_things_are_not_shared():
    with pytest.raises(TypeError, match=r"found list: make an array of it first"):
        rw.share([1, 2])
    with pytest.raises(TypeError, match="mask"):
        rw.share(np.ma.masked_array([1, 2], [True, False]))


@pytest.mark.parametrize(("device", "name"), [((2, 0), "CUDA"), ((77, 1), "unknown")])
def test_memory_of_a_device_is_refused_unread(device, name):
    with pytest.raises(BufferError, match=re.escape(f"{device} ({name}")):
        rw.share(Exchange(np.zeros(3), device))


def test_every_way_of_pickling_gives_a_handle():
    a = rw.share(np.arange(1000.0))
    file = io.BytesIO()
    joblib.dump(a[::2], file)
    assert file.tell() < 2048
    file.seek(0)
    assert_same_view(joblib.load(file), a[::2])
    assert_same_view(cloudpickle.loads(cloudpickle.dumps(a)), a)
    buffers = []
    assert_same_view(pickle.loads(pickle.dumps(a, 5, buffer_callback=buffers.append)), a)
    assert not buffers


def change(a, *views):
    """In a child: checks what came, and writes where the parent looks."""
    assert a.dtype == np.float64
    assert a[:10].tolist() == list(range(10))
    for number, view in enumerate(views):
        view[...] = -1 - number


def make_views(a):
    return a, a[1000:2000:2], a.reshape(2048, -1)[:, 7], a[5, ...]


def test_children_get_the_same_memory_as_arguments(child):
    a = rw.share(np.arange(2048.0 * 16))
    with child(change, *make_views(a)):
        pass
    assert a[5] == -3
    assert a[7] == -2
    assert (a[1000:2000:2][a[1000:2000:2] != -2] == -1).all()
    assert a[8] == 8


def test_pools_of_multiprocessing_take_arrays(context):
    a = rw.zeros(100)
    with context.Pool(2, initializer=np.copyto, initargs=(a[:1], 5)) as pool:
        assert pool.map(np.sum, [a[:1], a[1:]]) == [5, 0]
        pool.starmap(np.copyto, [(a[1:2], 6), (a[2:3], 7)])
        pool.close()
        pool.join()
    assert a[:4].tolist() == [5, 6, 7, 0]


def echo(connection):
    view = connection.recv()
    view[0] += 1
    connection.send(view)
    connection.close()


def test_pipes_carry_arrays_there_and_back(context, child):
    a = rw.zeros(10)
    here, there = context.Pipe()
    with child(echo, there):
        here.send(a[3:])
        assert_same_view(here.recv(), a[3:])
    assert a[3] == 1
    here.close()
    there.close()


def test_an_unrelated_interpreter_opens_a_handle(fresh):
    a = rw.share(np.arange(262_144, dtype="u4"))
    code = "import pickle, sys; a = pickle.load(sys.stdin.buffer); print(a.sum()); a[0] = 7"
    assert fresh(code, stdin=pickle.dumps(a)) == "34359607296\n"
    assert a[0] == 7


def test_nothing_is_mapped_or_opened_anew_in_the_same_process():
    arrays = [rw.zeros(1000) for _ in range(50)]
    maps = Path("/proc/self/maps").read_text().count("memfd:")
    opened = [again(a) for a in arrays for _ in range(3)]
    assert Path("/proc/self/maps").read_text().count("memfd:") == maps
    assert len(opened) == 150
