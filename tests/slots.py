"""Pools of one slot, for tests that are about its array."""

import ropeway as rw


def taken(shape, dtype="f4", value=1, **how):
    """A pool of one slot that was published and taken, and its lease."""
    pool = rw.Pool(1, shape=shape, dtype=dtype)
    with pool.acquire() as slot:
        slot.array[...] = value
        slot.publish()
    return pool, pool.take(**how)


def state(pool):
    return pool.status().slots[0].state
