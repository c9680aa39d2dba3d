"""R22, alignment: jax-ml/jax#29810; also NVIDIA/warp#550, dmlc/dlpack#99.

Memory that is handed out is aligned well enough to be taken as it is, by whatever process.
"""

import importlib.util

import pytest

ALIGNED = """
import multiprocessing as mp
import random
import sys

import numpy as np

import ropeway as rw

SIZES = 1, 3, 7, 13, 100, 1_000_003
DTYPES = "u1", "f4", "c16"
CONTEXT = mp.get_context(*sys.argv[1:2])


def arrays():
    # what has these sizes in bytes, and what has as many elements; in mixed order
    wanted = [(size, "u1") for size in SIZES] + [(25, "f4"), (6, "c16")]
    wanted += [(size, dtype) for size in SIZES for dtype in DTYPES]
    random.Random(22).shuffle(wanted)
    return wanted


def places(things):
    return {name: array.ctypes.data % 64 for name, array in things}


def check(things):
    wrong = {name: place for name, place in places(things).items() if place}
    assert not wrong, wrong


def two_processes(target, *arguments):
    workers = [CONTEXT.Process(target=target, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0, worker


def check_views(framework):
    # imports without a copy, at the array's own address
    for size, dtype in arrays():
        array = rw.zeros(size, dtype)
        array[0] = 1
        framework(array)
"""

MADE = (
    ALIGNED
    + """
def look(queue, made):
    check(enumerate(made))
    for _ in made:
        check([queue.get(timeout=30)])


if __name__ == "__main__":
    queue = rw.Queue()
    made = [rw.empty(size, dtype) for size, dtype in arrays()]
    check(enumerate(made))
    for array in made * 2:
        queue.put((array.size, array))
    two_processes(look, queue, made)
"""
)

POOLED = (
    ALIGNED
    + """
def look(pool):
    for _ in range(2):
        slot = pool.take(timeout=30)
        check((name, slot[name]) for name in slot.keys())
        slot.release()


if __name__ == "__main__":
    pool = rw.Pool(4)
    for number in range(4):
        with pool.acquire(timeout=30) as slot:
            for number, (size, dtype) in enumerate(arrays()):
                check([(number, slot.add(str(number), size, dtype))])
            slot.publish()
    two_processes(look, pool)
"""
)

SAMPLES = (
    ALIGNED
    + """
FIELDS = {
    "a": ((3, 5), "u1"),
    "b": ((7,), "f4"),
    "c": ((1,), "u1"),
    "d": ((3,), "c16"),
    "e": ((11, 13), "i2"),
}


def look(queue, *pools):
    sample = queue.get(timeout=30)
    check(sample.items())
    assert all((sample[name] == 7).all() for name in FIELDS)
    for pool in pools:
        slot = pool.take(timeout=30)
        check((name, slot[name]) for name in FIELDS)
        slot.release()


if __name__ == "__main__":
    queue = rw.Queue()
    sample = {name: np.full(shape, 7, dtype) for name, (shape, dtype) in FIELDS.items()}
    batches = [
        {name: ((batch, *shape), dtype) for name, (shape, dtype) in FIELDS.items()}
        for batch in (3, 64)
    ]
    pools = [rw.Pool(2, fields=batch) for batch in batches]
    assert [pool.packed for pool in pools] == [False, True]
    check([("ring", pools[1].ring("a"))])
    for _ in range(2):
        queue.put(sample)
        for pool in pools:
            with pool.acquire(timeout=30) as slot:
                check((name, slot[name]) for name in FIELDS)
                slot.publish()
    two_processes(look, queue, *pools)
"""
)


def test_arrays_of_every_size_are_aligned_in_every_process(room, method):
    room.run(MADE, method)


def test_arrays_added_to_slots_are_aligned_in_every_process(room, method):
    room.run(POOLED, method)


def test_fields_of_odd_sizes_are_aligned_in_every_process(room, method):
    room.run(SAMPLES, method)


NUMPY = (
    ALIGNED
    + """
def take(array):
    view = np.from_dlpack(array)
    assert view.ctypes.data == array.ctypes.data and view[0] == 1
    view[0] = 2
    assert array[0] == 2


check_views(take)
"""
)

JAX = (
    ALIGNED
    + """
import jax

jax.config.update("jax_enable_x64", True)


def take(array):
    view = jax.dlpack.from_dlpack(array, copy=False)
    assert view.unsafe_buffer_pointer() == array.ctypes.data and view[0] == 1


check_views(take)
queue = rw.Queue()
queue.put({"a": np.ones(3, "u1"), "b": np.ones(7, "f4"), "c": np.ones(1_000_003, "c16")})
sample = queue.get()
for name in "abc":
    take(sample[name])
"""
)

TORCH = (
    ALIGNED
    + """
import torch


def take(array):
    view = torch.from_dlpack(array)
    assert view.data_ptr() == array.ctypes.data and view[0] == 1
    view[0] = 2
    assert array[0] == 2


check_views(take)
"""
)


@pytest.mark.parametrize(
    ("framework", "program"), [("numpy", NUMPY), ("jax", JAX), ("torch", TORCH)]
)
def test_frameworks_take_the_memory_as_it_is(room, framework, program):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} isn't installed")
    room.run(program, "spawn", seconds=100)


AFTER = (
    ALIGNED
    + """
queue = rw.Queue()
for length in (1, 65, 4097, 100_001, 3, 2_000_001, 63):
    queue.put([np.zeros(length, "u1"), b"x" * length, np.zeros(length, "u1"), np.zeros((), "c16")])
    check(enumerate(array for array in queue.get() if isinstance(array, np.ndarray)))
"""
)


def test_arrays_of_a_message_are_aligned_whatever_lies_between_them(room):
    """A sibling: pickled bytes and arrays of odd lengths share one slot, which grows on the way."""
    room.run(AFTER)


UNALIGNED = (
    ALIGNED
    + """
raw = np.zeros(1000, "u1")
start = -raw.ctypes.data % 64 + 1
skew = raw[start : start + 400].view("f4")
skew[:] = np.arange(100)
assert not skew.flags.aligned
check([("shared", rw.share(skew))])
queue = rw.Queue()
queue.put(skew)
got = queue.get()
check([("sent", got)])
assert got.flags.aligned and (got == skew).all()
"""
)


def test_unaligned_sources_come_out_aligned(room):
    """A sibling: what is copied into shared memory doesn't keep its skew."""
    room.run(UNALIGNED)
