"""NumPy and MXNet look at one buffer, both ways, and a slot waits for MXNet's engine.

Needs MXNet 1.9.1 with NumPy 1.26; `make test-frameworks FRAMEWORKS=mxnet` sets both up and runs
this.
"""

import gc

import numpy as np

import ropeway as rw

np.bool = np.bool_  # MXNet 1.9.1 asks for a name that NumPy has dropped since
import mxnet as mx  # noqa: E402

import ropeway.mxnet  # noqa: E402

SIDE = 700


def numpy_to_mxnet(pool: rw.Pool) -> None:
    """A slot's array as an NDArray: one address, and each sees what the other writes."""
    with pool.acquire() as slot:
        array = slot["image"]
        there = rw.asarray(array, like="mxnet")
        assert ropeway.mxnet.address(there) == array.ctypes.data
        array[0, 0] = 5
        assert there[0, 0].asscalar() == 5
        there[:] = 1  # is queued
        ropeway.mxnet.wait(there)
        assert (array == 1).all()
        print(f"NumPy and MXNet at {array.ctypes.data:#x}")
        del there, array
        slot.publish()


def mxnet_to_numpy() -> None:
    """An NDArray as an array of NumPy, which keeps its memory."""
    values = mx.nd.arange(12).reshape((3, 4))
    seen = ropeway.mxnet.view(values, write=True)
    assert seen.ctypes.data == ropeway.mxnet.address(values)
    seen[2, 3] = 77
    assert values[2, 3].asscalar() == 77
    del values
    gc.collect()
    assert seen[2, 3] == 77
    print(f"MXNet's own memory at {seen.ctypes.data:#x}, {seen.sum():.0f} in all")


def late_reader(pool: rw.Pool) -> None:
    """Queues a sum that is computed late, and lets go of everything but its result."""
    with pool.take(private=True) as slot:
        image = rw.asarray(slot["image"], like="mxnet")
    busy = mx.nd.ones((SIDE, SIDE))
    for _ in range(12):
        busy = mx.nd.dot(busy, busy) * 1e-4
    total = (image + busy * 0).sum()
    del image, slot
    print("the slot is", pool.status().slots[0].state, "while the sum is queued")
    with pool.acquire() as slot:  # comes when MXNet has read the slot, not earlier
        slot["image"][:] = 777
    assert total.asscalar() == SIDE * SIDE, "the sum has read what was written after it"
    print("the sum is right, and the slot is", pool.status().slots[0].state)


def main() -> None:
    """Runs all three."""
    pool = rw.Pool(1, fields={"image": ((SIDE, SIDE), "float32")})
    numpy_to_mxnet(pool)
    mxnet_to_numpy()
    late_reader(pool)


if __name__ == "__main__":
    main()
