"""What holds for every framework: one memory, a slot that waits, and never a wrong number."""

import gc
import threading

import numpy as np
import pytest
from adapters import framework as frameworks

import ropeway as rw
from capsules import address
from slots import state, taken

SHAPES = [(7,), (), (1,), (2, 1, 3), (0, 3)]
NEVER = [">f4", "M8[ns]", "S4", "U2", [("x", "i4"), ("y", "f8")]]
WAYS = [{"private": True}, {"write": True}]


def dtypes():
    """Those of NumPy, and of ml_dtypes where it is installed."""
    names = [*frameworks.Framework.dtypes, *frameworks.OF_ML_DTYPES]
    pytest.importorskip("numpy")
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        names = names[: -len(frameworks.OF_ML_DTYPES)]
    return names


def plain(values):
    """Numbers that every dtype can be compared in."""
    values = np.asarray(values)
    return values.astype("complex128" if values.dtype.kind == "c" else "float64")


def let_go(slot, eventually, pool):
    """Releases the slot when nothing is left of what a framework had."""
    assert eventually(lambda: pool.status().slots[0].exports == ())
    slot.release()


@pytest.mark.parametrize("dtype", dtypes())
@pytest.mark.parametrize("shape", SHAPES)
def test_it_sees_the_same_memory_or_refuses(framework, dtype, shape, eventually):
    pool, slot = taken(shape, dtype, private=True)
    array = slot.array
    if array.size > 1:
        array[...] = (np.arange(array.size).reshape(shape) % 2).astype(array.dtype)
    if dtype not in framework.dtypes or shape in framework.odd_shapes:
        with pytest.raises(framework.refusal, match=r"\w+ \w+ \w+"):
            framework.take(array)
    else:
        there = framework.take(array)
        assert tuple(np.shape(framework.values(there))) == shape
        assert np.array_equal(plain(framework.values(there)), plain(array))
        if array.size:
            assert framework.address(there) == address(array)
        del there
    del array
    let_go(slot, eventually, pool)


@pytest.mark.parametrize("dtype", NEVER, ids=str)
def test_what_no_framework_has_is_refused(framework, dtype, eventually):
    pool = rw.Pool(1, shape=(3,), dtype=dtype)
    with pool.acquire() as slot, pytest.raises(framework.refusal, match=r"\w+ \w+ \w+"):
        framework.take(slot.array)
    assert eventually(lambda: state(pool) == "idle")


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_a_write_on_one_side_is_seen_on_the_other(framework, how, eventually):
    pool, slot = taken((4, 6), **how)
    array = slot.array
    there = framework.take(array)
    array[1, 2] = 5
    assert framework.values(there)[1, 2] == 5
    if framework.writes:
        framework.write(there, 9)
        assert (array == 9).all()
    del there, array
    let_go(slot, eventually, pool)


@pytest.mark.parametrize("how", [{}, {"readonly": "map"}], ids=str)
def test_what_may_only_be_read_is_never_written(framework, how, eventually):
    pool, slot = taken((4, 6), **how)
    if framework.readonly == "refused":
        with pytest.raises(BufferError, match=r"private=True.*write=True"):
            framework.take(slot.array)
    else:
        there = framework.take(slot.array)
        assert framework.address(there) == address(slot.array)
        if framework.readonly == "kept":
            with pytest.raises(ValueError, match="read-only"):
                framework.write(there, 9)
        assert (slot.array == 1).all()
        del there
    let_go(slot, eventually, pool)


def test_the_slot_moves_on_when_the_last_is_gone_and_not_before(framework, eventually):
    pool, slot = taken((4, 6), private=True)
    there = framework.take(slot.array)
    gc.collect()
    with pytest.raises(rw.InUse, match=r"1 \w+"):
        slot.release()
    assert pool.status().slots[0].exports
    part = framework.part(there)
    with slot:
        pass
    assert state(pool) == "held-read"
    for _ in range(3):
        gc.collect()
    assert state(pool) == "held-read"
    assert framework.values(there).sum() == 24
    del there
    keeps = framework.address(part) != 0 and state(pool) == "held-read"
    assert keeps or framework.name in ("tensorflow", "jax")
    del part
    assert eventually(lambda: state(pool) == "idle")


def test_threads_may_take_and_let_go(framework, eventually):
    pool = rw.Pool(3, shape=(8, 8), dtype="f4")
    failures, handed = [], []

    def consume():
        try:
            while True:
                slot = pool.take(private=True, timeout=30)
                there = framework.take(slot.array)
                assert framework.values(there).sum() == 64 * slot.array[0, 0]
                with slot:  # ends the lease; what `there` is goes in another thread
                    handed.append(there)
                del there
                if len(handed) > 1:
                    handed.pop(0)
        except rw.Closed:
            pass
        except BaseException as error:
            failures.append(error)
            pool.abort()

    threads = [threading.Thread(target=consume) for _ in range(2)]
    for thread in threads:
        thread.start()
    for k in range(60):
        with pool.acquire(timeout=30) as slot:
            slot.array[...] = k
            slot.publish()
    pool.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    handed.clear()
    assert not failures, failures
    del slot
    assert eventually(lambda: all(s.state in ("idle", "absent") for s in pool.status().slots))


LAYOUTS = {
    "fortran": lambda x: x.T,
    "gaps": lambda x: x[:, ::2],
    "reversed": lambda x: x[::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_layouts_are_taken_as_they_are_or_refused(framework, layout, eventually):
    pool, slot = taken((4, 6), value=np.arange(24).reshape(4, 6), private=True)
    array = LAYOUTS[layout](slot.array)
    if layout in framework.layouts:
        there = framework.take(array)
        assert np.array_equal(framework.values(there), array)
        assert framework.address(there) == address(array)
        del there
    else:
        with pytest.raises(framework.refusal, match=r"copy|share"):
            framework.take(array)
    del array
    let_go(slot, eventually, pool)


def test_memory_that_begins_anywhere_is_taken_where_it_lies_or_refused(framework, eventually):
    """TensorFlow would end the process at its first operation, JAX would copy."""
    pool, slot = taken((64,), value=np.arange(64), private=True)
    array = slot.array[1:]
    if framework.aligned:
        with pytest.raises(framework.refusal, match=r"64 bytes.*share"):
            framework.take(array)
        array = rw.share(array)
    there = framework.take(array)
    assert framework.address(there) == address(array)
    assert np.array_equal(framework.values(there), np.arange(1, 64))
    del there, array
    let_go(slot, eventually, pool)


@pytest.mark.parametrize("dtype", dtypes())
def test_every_bit_goes_in_and_comes_out(framework, dtype, eventually):
    """NaNs with a payload and numbers below the normal ones among them."""
    if dtype not in framework.dtypes or dtype == "bool":
        pytest.skip(f"{framework.name} doesn't take {dtype}, or not every bit of it")
    pool, slot = taken((64,), dtype, value=0, write=True)
    raw = np.asarray(slot.array).view(f"u{min(slot.array.itemsize, 8)}")
    raw[...] = np.random.default_rng(0).integers(0, np.iinfo(raw.dtype).max, raw.shape, raw.dtype)
    raw[:3] = 1, np.iinfo(raw.dtype).max, np.iinfo(raw.dtype).max >> 1
    expected = raw.tobytes()
    there = framework.take(slot.array)
    back = rw.share(framework.offer(there))
    assert (back.dtype, back.tobytes()) == (slot.array.dtype, expected)
    assert raw.tobytes() == expected
    del there, raw
    let_go(slot, eventually, pool)


def test_a_slice_begins_where_it_should(framework, eventually):
    """Rows of 64 bytes, so that every framework can take them where they lie."""
    pool, slot = taken((4, 16), value=np.arange(64).reshape(4, 16), private=True)
    array = slot.array[1:3]
    there = framework.take(array)
    assert framework.address(there) == address(slot.array) + 64
    assert np.array_equal(framework.values(there), array)
    del there, array
    let_go(slot, eventually, pool)


def test_its_own_arrays_come_in(framework):
    values = [0.0, 1.0, 2.0, 3.0]
    own = framework.offer(framework.make(values))
    shared = rw.share(own)
    assert np.array_equal(plain(shared), values)
    pool = rw.Pool(1, shape=(4,), dtype="f4")
    with pool.acquire() as slot:
        slot["array"] = framework.offer(framework.make(values))
        assert slot.array.tolist() == values


def test_a_slot_waits_for_what_is_queued(framework, eventually):
    """Early recycling gives 777 for 1: the queued operation reads what the next writer wrote."""
    size = 900 if framework.name == "jax" else 700
    pool = rw.Pool(1, shape=(size, size), dtype="f4")
    for _ in range(3):
        with pool.acquire(timeout=30) as slot:
            slot.array[...] = 1
            slot.publish()
        with pool.take(write=True) as slot:
            there = framework.take(slot.array)
        queued = framework.late(there)
        if queued is None:
            pytest.skip(f"{framework.name} computes at once")
        ready, result = queued
        del there, slot
        gc.collect()
        early = state(pool) == "idle" and not ready()
        with pool.acquire(timeout=30) as slot:  # comes when the engine has read the array
            slot.array[...] = 777
        assert result() == 1
        assert not early or framework.name == "mxnet"
        del ready, result, queued
    assert eventually(lambda: state(pool) == "idle")


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_more_elements_than_31_bits_count(framework, dtype):
    """Slots that nobody has held take no memory, however long the ring over them is."""
    if dtype not in framework.dtypes:
        pytest.skip(f"{framework.name} doesn't take {dtype}")
    ring = rw.Pool(5, shape=(2**29 + 64,), dtype=dtype).ring()
    array = ring.reshape(-1)
    array[:2], array[-3:] = 7, (1, 2, 3)
    assert array.size > 2**31
    if framework.name == "mxnet":
        with pytest.raises(BufferError, match="2147483647"):
            framework.take(array)
        return
    there = framework.take(array)
    assert framework.address(there) == address(array)
    last = framework.last(there)
    assert last is None or last.tolist() == [1, 2, 3]
    column = ring[::4, -1]  # a step of more than 31 bits
    if "gaps" in framework.layouts:
        assert framework.values(framework.take(column)).tolist() == [0, 3]
    else:
        with pytest.raises(framework.refusal, match=r"\w+ \w+ \w+"):
            framework.take(column)
