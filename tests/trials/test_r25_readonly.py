"""R25, read-only buffers: numpy/numpy#20742.

Also jax-ml/jax#40789, pytorch/pytorch#37581, ray-project/ray#369. Reading read-only data works
everywhere, read-only stays read-only, errors are BufferError (exchange) or ValueError (writing).
"""

from importlib.util import find_spec

import pytest

READ_ONLY = """
import multiprocessing as mp
import sys
import warnings

import numpy as np

import ropeway as rw

warnings.simplefilter("error")
CONTEXT = mp.get_context(*sys.argv[1:2])
VALUES = np.arange(12, dtype="f4")
VALUES.flags.writeable = False


def check(array):
    assert not array.flags.writeable
    assert (array == VALUES).all()
    try:
        array[0] = 99
    except ValueError:
        pass
    else:
        raise AssertionError("written")
    assert not np.from_dlpack(array).flags.writeable
    try:
        array.__dlpack__()
    except BufferError:
        pass
    else:
        raise AssertionError("an unversioned capsule of a read-only array")
    assert memoryview(array).readonly
    assert (array == VALUES).all()


def shared():
    array = rw.share(VALUES)
    array.flags.writeable = False
    return array


def start(target, *arguments):
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    return process


def finish(process):
    process.join(20)
    assert process.exitcode == 0, process
"""

CONSUMER = (
    READ_ONLY
    + """
def consume(queue, pool, array):
    check(queue.get(timeout=20))
    check(queue.get(timeout=20))
    check(queue.get(timeout=20)["field"])
    check(array)
    slot = pool.take(timeout=20)
    check(slot.array)
    try:
        slot.array.flags.writeable = True
    except ValueError:
        pass
    else:
        raise AssertionError("a read lease became writable")
    slot.release()


if __name__ == "__main__":
    queue, pool, array = rw.Queue(), rw.Pool(1, shape=(12,), dtype="f4"), shared()
    check(array)
    queue.put(VALUES)
    queue.put(array)
    queue.put({"field": VALUES, "other": np.zeros(3)})
    with pool.acquire(timeout=20) as slot:
        slot.array[:] = VALUES
        slot.publish()
    finish(start(consume, queue, pool, array))
    array.flags.writeable = True  # the maker's own
    assert (array == VALUES).all()
"""
)

MIXED = (
    READ_ONLY
    + """
queue = rw.Queue()
writable = VALUES.copy()
frozen = writable.view()
frozen.flags.writeable = False
queue.put((writable, frozen))
writable, frozen = queue.get()
assert writable.flags.writeable and not frozen.flags.writeable
writable[0] = 5
assert frozen[0] == 5
"""
)

POOL = (
    READ_ONLY
    + """
pool = rw.Pool(1, shape=(12,), dtype="f4")
with pool.acquire() as slot:
    slot.array[:] = VALUES
    slot.publish()
slot = pool.take()
check(slot.array)
export, _, _ = slot.export("array")
assert export.readonly and memoryview(export).readonly
del export
slot.release()
with pool.acquire() as slot:
    slot.array[:] = VALUES
    slot.publish()
slot = pool.take(write=True)
assert slot.array.flags.writeable
slot.array[0] = 5
slot.release()
"""
)

COPIES = (
    READ_ONLY
    + """
array = shared()
check(array[:])
for private in (array.copy(), array + 0, np.array(array)):
    private[0] = 99
check(array)
"""
)

JAX = (
    READ_ONLY
    + """
import jax

queue = rw.Queue()
queue.put(VALUES)
for array in (shared(), queue.get()):
    try:
        taken = jax.dlpack.from_dlpack(array)
    except BufferError:
        taken = jax.numpy.asarray(array)
    assert (np.asarray(taken) == VALUES).all()
"""
)

TORCH = (
    READ_ONLY
    + """
import torch


def consume(array):
    try:
        tensor = torch.from_dlpack(array)
    except BufferError:
        return
    tensor[0] = 99


if __name__ == "__main__":
    array = shared()
    finish(start(consume, array))
    assert (array == VALUES).all(), array
"""
)


def test_read_only_arrays_stay_read_only_in_the_consumer(room, method):
    room.run(CONSUMER, method)


def test_a_read_only_view_stays_a_view_of_its_writable_array(room):
    """A sibling: both go in one message and share memory."""
    room.run(MIXED)


def test_a_slot_is_read_only_unless_taken_to_write(room):
    """A sibling: what a reader gets from a pool can't be made writable."""
    room.run(POOL)


def test_views_are_read_only_and_copies_are_not(room):
    """A sibling: the flag belongs to the memory, not to the values."""
    room.run(COPIES)


@pytest.mark.skipif(find_spec("jax") is None, reason="jax isn't installed")
def test_jax_reads_what_is_read_only(room):
    room.run(JAX)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch isn't installed")
@pytest.mark.xfail(reason="torch drops DLPack's read-only flag, and the pages are writable")
def test_torch_does_not_write_through_what_is_read_only(room):
    room.run(TORCH, "spawn")
