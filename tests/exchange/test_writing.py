"""Who may write to the array of a slot, and who sees it."""

import os
import subprocess
import sys

import pytest
from single import one, publish

import ropeway as rw


def test_private_pages_reach_nobody_and_are_fresh_in_the_next_round():
    # The labels of slots share a page.
    pool = rw.Pool(2, fields={"image": ((64, 30), "f4"), "label": ((16,), "i4")})
    for value in (1, 2, 3):
        with pool.acquire() as slot:
            slot["image"] = value
            slot["label"] = value
            slot.publish()
        with pool.take(private=True) as slot:
            for name in ("image", "label"):
                assert (slot[name] == value).all()
                slot[name][...] = 77
                assert (slot[name] == 77).all(), "an array is the same each time"
        with pool.acquire() as slot:
            assert not any((slot[name] == 77).any() for name in ("image", "label"))


def test_private_arrays_are_delivered_again_as_they_were_published():
    pool = one()
    publish(pool, 5)
    child = os.fork()
    if child == 0:
        slot = pool.take(timeout=10, private=True)
        slot.array[...] = 77
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    with pool.take(timeout=10) as slot:
        assert (slot.array == 5).all()
        assert slot.deliveries == 1


def test_a_write_to_read_only_pages_faults_whatever_the_flag_says():
    program = """
import ctypes, resource
import ropeway as rw
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
pool = rw.Pool(1, shape=(100,), dtype="f4")
with pool.acquire() as slot:
    slot.array[:] = 1
    slot.publish()
slot = pool.take(readonly="map")
array = slot.array
print(array.sum(), array.flags.writeable, flush=True)
ctypes.memset(array.ctypes.data, 0, 1)
print("written", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (-11, b"100.0 False\n"), done.stderr.decode()


def test_arguments_of_take_that_cannot_be_are_refused():
    pool = one()
    publish(pool)
    for how in (
        {"readonly": "flag"},
        {"readonly": "map", "private": True},
        {"write": True, "private": True},
    ):
        with pytest.raises(ValueError, match=r"readonly|private"):
            pool.take(timeout=0, **how)
    pool.take(timeout=0).release()
