"""Pools of one slot, and what there is to ask of it."""

import numpy as np

import ropeway as rw

NEW = {"max_version": (1, 3)}
"""What consumers of today ask for."""

KNOWS_VERSIONS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
"""Whether NumPy asks for the form that can say read-only."""


def one():
    """A pool of one slot."""
    return rw.Pool(1, shape=(4, 6), dtype="f4")


def publish(pool, value=1):
    with pool.acquire(timeout=10) as slot:
        slot.array[...] = value
        slot.publish()


def taken(pool, value=1, **how):
    """A slot that was published and taken."""
    publish(pool, value)
    return pool.take(timeout=10, **how)


def is_free(pool):
    return pool.status().slots[0].state == "idle"
