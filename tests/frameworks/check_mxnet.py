"""MXNet, both ways: what it lacks, its engine, and the layouts of oneDNN."""

import gc

import numpy as np
import pytest
from adapters import load

import ropeway as rw
from capsules import Seen, address
from slots import state, taken

load("mxnet")
import mxnet as mx  # noqa: E402  after what its import needs

import ropeway.mxnet  # noqa: E402


def convolution(out=None, data=None):
    """An operation whose result oneDNN keeps in a layout of its own."""
    data = mx.nd.ones((8, 16, 8, 8)) if data is None else data
    weight = mx.nd.ones((16, 16, 3, 3))
    weight[3] = 2
    options = {} if out is None else {"out": out}
    return mx.nd.Convolution(data, weight, no_bias=True, kernel=(3, 3), num_filter=16, **options)


def test_numpy_sees_an_ndarrays_memory():
    values = mx.nd.arange(24).reshape((4, 6))
    seen = ropeway.mxnet.view(values)
    assert address(seen) == ropeway.mxnet.address(values)
    assert np.array_equal(seen, np.arange(24).reshape(4, 6))
    assert not seen.flags.writeable
    written = ropeway.mxnet.view(values, write=True)
    assert address(written) == address(seen)
    written[1, 2] = 77
    assert values[1, 2].asscalar() == 77
    values[:] = 5
    ropeway.mxnet.wait(values)
    assert (seen == 5).all()
    assert (written == 5).all()


@pytest.mark.parametrize("write", [False, True])
def test_a_view_keeps_the_memory_when_the_ndarray_is_gone(write):
    values = mx.nd.ones((512, 512))
    seen = ropeway.mxnet.view(values, write=write)
    del values
    gc.collect()
    for _ in range(8):
        mx.nd.zeros((512, 512)).wait_to_read()
    assert (seen == 1).all()


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint8", "int32", "int64"])
def test_views_have_the_dtype(dtype):
    values = mx.nd.ones((3, 4), dtype=dtype)
    for write in (False, True):
        seen = ropeway.mxnet.view(values, write=write)
        assert seen.dtype == dtype
        assert (seen == 1).all()
    pool = rw.Pool(1, shape=(3, 4), dtype=dtype)
    with pool.acquire() as slot:
        slot["array"] = ropeway.mxnet.exported(values)
        assert (slot.array == 1).all()


def test_an_ndarray_is_exported_by_its_wrapper():
    values = mx.nd.ones((3, 4))
    for write in (False, True):
        given = ropeway.mxnet.exported(values, write=write)
        assert given.__dlpack_device__() == (1, 0)
        seen = Seen(given.__dlpack__(max_version=(1, 3)))
        assert seen.name == "dltensor"
        assert seen.data == ropeway.mxnet.address(values)
        assert np.from_dlpack(given).ctypes.data == seen.data
    for odd in ({"copy": True}, {"stream": 1}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError):
            given.__dlpack__(**odd)
    with pytest.raises(BufferError, match="bool"):
        rw.share(ropeway.mxnet.exported(mx.nd.ones(3).astype("bool")))
    with pytest.raises(TypeError, match="dense NDArray"):
        ropeway.mxnet.exported(np.ones(3))
    with pytest.raises(TypeError, match="csr"):
        ropeway.mxnet.exported(mx.nd.ones((3, 3)).tostype("csr"))


def test_what_onednn_leaves_in_a_slot_is_put_into_rows():
    expected = convolution().asnumpy()
    pool = rw.Pool(1, shape=expected.shape, dtype="f4")
    slot = pool.acquire()
    there = rw.asarray(slot.array, like="mxnet")
    convolution(out=there)
    there.wait_to_read()  # MXNet's own wait leaves the layout as it is
    assert np.array_equal(there.asnumpy(), expected)
    ropeway.mxnet.wait(there)
    assert np.array_equal(slot.array, expected)
    assert ropeway.mxnet.address(there) == address(slot.array)
    slot.array[...] = 0
    convolution().copyto(there)
    ropeway.mxnet.wait(there)
    assert np.array_equal(slot.array, expected)
    slot.array[...] = 0
    there[:] = convolution()
    ropeway.mxnet.wait(there)
    assert np.array_equal(slot.array, expected)
    del there
    with slot:
        pass


def test_results_of_onednn_are_exported_in_rows():
    expected = convolution().asnumpy()
    assert np.array_equal(rw.share(ropeway.mxnet.exported(convolution())), expected)
    assert np.array_equal(ropeway.mxnet.view(convolution()), expected)


def test_results_that_are_not_there_yet_are_exported_in_rows():
    expected = convolution().asnumpy() + 1
    for give in (lambda x: rw.share(ropeway.mxnet.exported(x)), ropeway.mxnet.view):
        busy = mx.nd.ones((700, 700))
        for _ in range(12):
            busy = mx.nd.dot(busy, busy) * 1e-4
        data = mx.nd.ones((8, 16, 8, 8)) + busy[0, 0] * 0
        assert np.array_equal(give(convolution(data=data)) + 1, expected)


def test_waiting_is_for_reads_too():
    """Without the wait, the queued operation may read what was written after it."""
    pool, slot = taken((700, 700), private=True)
    busy = mx.nd.ones((700, 700))
    there = rw.asarray(slot.array, like="mxnet")
    for _ in range(12):
        busy = mx.nd.dot(busy, busy) * 1e-4
    late = there + busy * 0
    ropeway.mxnet.wait(there)
    slot.array[...] = 777
    assert late[-1, -1].asscalar() == 1
    del there, late
    with slot:
        pass
    mx.nd.waitall()
    assert state(pool) == "idle"


def test_the_tape_keeps_the_slot_until_backward(eventually):
    pool, slot = taken((64,), value=3, private=True)
    there = rw.asarray(slot.array, like="mxnet")
    there.attach_grad()
    with mx.autograd.record():
        loss = (there * there).sum()
    gradient = there.grad
    with slot:
        del there
    mx.nd.waitall()
    assert state(pool) == "held-read"
    loss.backward()
    assert gradient.asnumpy().tolist() == [6] * 64
    del loss
    assert eventually(lambda: state(pool) == "idle")


def test_shapes_of_numpy_are_taken_where_mxnet_knows_them():
    for shape in ((), (0, 3)):
        with pytest.raises(BufferError, match="set_np_shape"):
            rw.asarray(rw.zeros(shape, "f4"), like="mxnet")
        with mx.util.np_shape(True):
            there = rw.asarray(rw.zeros(shape, "f4"), like="mxnet")
            assert there.shape == shape
            assert (there + 1).asnumpy().tolist() == np.ones(shape).tolist()


def test_refusals_say_what_works():
    for dtype, way in [("?", "uint8"), ("i2", "astype"), ("c8", "astype"), (">f4", "astype")]:
        with pytest.raises(BufferError, match=way):
            rw.asarray(rw.zeros(3, dtype), like="mxnet")
    with pytest.raises(BufferError, match="2147483647"):
        rw.asarray(np.broadcast_to(np.int8(0), 2**31), like="mxnet")
