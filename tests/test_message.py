import collections
import dataclasses
import gc
import pickle
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import ropeway as rw
from queues import slots_in_use, through
from ropeway._arrays import address
from ropeway._views import View

Point = collections.namedtuple("Point", "x y meta")


class Names(dict):
    def first(self):
        return next(iter(self))


@dataclasses.dataclass
class Sample:
    image: np.ndarray
    label: int


def test_structures_are_kept(q):
    p = Point(np.ones(3, "f4"), 7, {"k": [np.array([1, 2], "i2"), "txt"], "n": None})
    ordered = collections.OrderedDict(b=np.arange(2), a=1)
    p2, ordered2, names, sample = through(q, (p, ordered, Names(z=1, a=2), Sample(np.eye(2), 3)))
    assert type(p2) is Point
    assert (p2.x.dtype, p2.x.tolist(), p2.y) == (np.float32, [1, 1, 1], 7)
    assert (p2.meta["k"][0].tolist(), p2.meta["k"][1], p2.meta["n"]) == ([1, 2], "txt", None)
    assert type(ordered2) is collections.OrderedDict
    assert list(ordered2) == ["b", "a"]
    assert type(names) is Names
    assert names.first() == "z"
    assert type(sample) is Sample
    assert sample.image.tolist() == np.eye(2).tolist()


def test_arrays_come_out_as_views_of_one_slot(q):
    one, other = through(q, [np.zeros(1000), np.ones(1000)])
    assert type(one) is View
    assert one.flags.writeable
    assert not one.flags.owndata
    assert len(slots_in_use(q)) == 1
    del one
    assert len(slots_in_use(q)) == 1
    view = other[5:7]
    del other
    assert len(slots_in_use(q)) == 1
    assert view.tolist() == [1, 1]
    del view
    assert not slots_in_use(q)


def test_aliases_are_kept(q):
    a = np.arange(10.0)
    first, view, third, swapped = through(q, [a, a[1:], a, a[::-2]])
    assert first is third
    view[0] = -1
    swapped[0] = -9
    assert first.tolist() == [0, -1, 2, 3, 4, 5, 6, 7, 8, -9]
    assert not a.flags.owndata or a[1] == 1


def test_arrays_without_common_elements_are_written_apart(q):
    table = np.arange(100_000.0).reshape(1000, 100)
    q.put([table[:, 3], table[:, 50]])
    (slot,) = slots_in_use(q)
    assert slot.committed < table.nbytes / 2
    one, other = q.get()
    assert np.array_equal(one, table[:, 3])
    assert np.array_equal(other, table[:, 50])
    assert one.flags.c_contiguous


DTYPES = ["?", ">i2", ">f4", "c16", "g", "S5", "U3", "V7", "M8[ns]", "m8[s]"]
DTYPES += [ml_dtypes.bfloat16, ml_dtypes.int4, [("a", "u1"), ("b", ">f8", (2,))]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5, 0), (1, 1), (4, 3)], ids=str)
def test_every_dtype_and_shape_is_kept(q, dtype, shape):
    size = np.zeros(shape, dtype).nbytes
    x = np.ndarray(shape, dtype, bytearray(np.resize([1, 0, 0, 0], size).astype("u1")))
    before, y, after = through(q, ["before", x, "after"])
    assert (before, after) == ("before", "after")
    assert (y.dtype, y.shape, y.tobytes()) == (x.dtype, x.shape, x.tobytes())
    assert type(y) is View


def test_dates_and_not_a_time(q):
    x = np.array(["2010-01-01", "2010-01-02", "2010-01-03", "NaT"], "M8[ns]")
    y = through(q, x)
    assert y.dtype == x.dtype
    assert y.view("i8").tolist() == [
        1262304000000000000,
        1262390400000000000,
        1262476800000000000,
        -9223372036854775808,
    ]


def test_values_of_other_byte_order_are_kept(q):
    assert through(q, np.arange(1000).astype(">i2")).sum(dtype="f8") == 499500
    y = through(q, (np.arange(1000) / 8).astype(">f4"))
    assert (y.dtype, y.sum(dtype="f8")) == (">f4", 62437.5)


def test_memory_order_is_kept(q):
    x = np.arange(24.0).reshape(4, 6)
    c, f, strided, reverse = through(q, [x.copy(), np.asfortranarray(x), x.copy()[::2], x[::-1]])
    assert c.flags.c_contiguous
    assert f.flags.f_contiguous
    assert strided.flags.c_contiguous
    assert np.array_equal(f, x)
    assert np.array_equal(strided, x[::2])
    assert np.array_equal(reverse, x[::-1])


def test_read_only_stays_read_only(q):
    x = np.arange(12, dtype="f4")
    x.flags.writeable = False
    y, z = through(q, [x, np.arange(3)])
    with pytest.raises(ValueError, match="read-only"):
        y[0] = 1
    z[0] = 1
    assert y.tolist() == x.tolist()


def test_arrays_are_aligned(q):
    sizes = (1, 3, 7, 13, 100, 1_000_003)
    for array in through(q, [np.zeros(n, dtype) for n in sizes for dtype in ("u1", "c16")]):
        assert address(array) % 64 == 0
    odd = np.zeros(1001, "u1")[1:]
    assert address(max(through(q, [odd[7:], odd, odd[3:]]), key=len)) % 64 == 0


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 12_289, 80_000])
def test_nothing_of_an_earlier_message_is_left(q, size):
    for _ in range(10):
        through(q, np.full(100_000, 255, "u1"))
    padded = np.dtype([("a", "u1"), ("b", "f8")], align=True)
    x = np.full(size * 16, 7, "u1").view(padded)
    y, z = through(q, [np.full(size, 7, "u1"), x[::3]])
    assert y.nbytes == memoryview(y).nbytes == size
    assert (y == 7).all()
    assert set(z.tobytes()) == {7}


def test_objects_inside_arrays_are_pickled(q):
    img, obj = np.arange(10_000, dtype="u1"), np.array([{}, "x", None, np.ones(3)], object)
    got = through(q, {"img": img, "obj": obj})
    assert got["obj"][:3].tolist() == [{}, "x", None]
    assert got["obj"][3].tolist() == [1, 1, 1]
    assert not got["img"].flags.owndata
    assert np.array_equal(got["img"], img)
    fields = np.zeros(2, [("a", "f4"), ("b", object)])
    assert through(q, fields).dtype == fields.dtype


def test_subclasses_pickle_as_they_like(q):
    masked = np.ma.masked_array([1, 2, 3], [False, True, False])
    got = through(q, [masked, np.rec.array([(1, 2.0)], names="a,b")])
    assert [type(x) for x in got] == [np.ma.MaskedArray, np.recarray]
    assert got[0].tolist() == [1, None, 3]
    assert got[1].b[0] == 2.0


def test_shared_arrays_travel_as_handles(q):
    a = rw.zeros(1000)
    whole, view, picked = through(q, [a, a[::2], a[[1, 2]]])
    assert type(whole) is type(view) is rw.Array
    whole[2] = 5
    assert a[2] == view[1] == 5
    assert address(whole) == address(a)
    assert not np.shares_memory(picked, a)
    del picked
    assert not slots_in_use(q)


class WithBuffer:
    """Hands its bytes out of band, as data frames and others do."""

    def __init__(self, data):
        self.data = data

    def __reduce_ex__(self, protocol):
        return WithBuffer, (pickle.PickleBuffer(self.data),)


def test_buffers_of_other_types_travel_in_the_slot_too(q):
    one, array, other = through(
        q, [WithBuffer(bytearray(b"abc" * 1000)), np.arange(5), WithBuffer(b"xyz")]
    )
    assert bytes(one.data) == b"abc" * 1000
    assert bytes(other.data) == b"xyz"
    assert array.tolist() == [0, 1, 2, 3, 4]
    memoryview(one.data)[0] = 1
    assert memoryview(other.data).readonly
    assert len(slots_in_use(q)) == 1


def test_large_objects_without_arrays_travel(q):
    text = "x" * 3_000_000
    assert through(q, [text, list(range(1000))]) == [text, list(range(1000))]


def test_a_message_without_arrays_frees_its_slot_at_once(q):
    kept = through(
        q, {"a": [1, 2], "b": "text", "empty": np.zeros((0, 3)), "scalar": np.float32(1)}
    )
    assert kept["empty"].shape == (0, 3)
    assert kept["empty"].flags.writeable
    assert not slots_in_use(q)


nested = st.recursive(
    st.none()
    | st.integers()
    | st.text()
    | npst.arrays(
        npst.scalar_dtypes() | npst.nested_dtypes(max_itemsize=200),
        npst.array_shapes(min_dims=0, min_side=0, max_side=4),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def equal(one, other):
    if isinstance(other, np.ndarray):
        assert type(one) is View
        same = (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        return same and one.flags.writeable == other.flags.writeable
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


shared_queue = rw.Queue()


@given(nested)
def test_any_structure_comes_out_equal(obj):
    assert equal(through(shared_queue, obj), obj)


@given(st.data())
def test_any_views_of_one_array_keep_their_aliases(data):
    shape = data.draw(npst.array_shapes(min_dims=1, max_dims=3, max_side=8))
    base = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    index = npst.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True)
    views = data.draw(st.lists(index.map(lambda i: base[i]), min_size=1, max_size=6))
    views = [v for v in views if isinstance(v, np.ndarray)]
    got = through(shared_queue, views)
    for one, view in zip(got, views, strict=True):
        assert (one.shape, one.tolist()) == (view.shape, view.tolist())
    for one, view in zip(got, views, strict=True):
        view[...] = -1
        one[...] = -1
        assert [x.tolist() for x in got] == [x.tolist() for x in views]


def test_nothing_that_was_put_is_kept_alive(q):
    array = np.zeros(1000)
    gone = weakref.ref(array)
    gc.disable()
    try:
        q.put([array, WithBuffer(bytearray(10))])
        del array
        assert gone() is None
    finally:
        gc.enable()


def test_frameworks_take_arrays_that_came_out_and_the_slot_waits(q):
    imported = np.from_dlpack(through(q, {"a": np.arange(1000.0)})["a"])
    gc.collect()
    assert len(slots_in_use(q)) == 1
    assert imported.tolist() == list(range(1000))
    del imported
    assert not slots_in_use(q)
    array = through(q, np.arange(1000.0))
    capsule = array.__dlpack__(max_version=(1, 3))
    exports = {export.kind: export.count for export in slots_in_use(q)[0].exports}
    assert exports["DLPack capsule"] == 1
    del array, capsule
    assert not slots_in_use(q)
