"""`ROPEWAY_DEBUG=1`: who uses an address after letting go of it faults, and nobody else does."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import ropeway as rw

SEGV = -11

PRELUDE = """
import ctypes, os, resource
import numpy as np
import ropeway as rw

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

def pools():
    fixed = rw.Pool(2, fields={"image": ((64, 64), "f4"), "label": ((16,), "i4")})
    assert fixed.packed
    return {"packed": fixed, "elastic": rw.Pool(2)}

def acquire(pool):
    slot = pool.acquire(timeout=10)
    if not pool.packed:
        slot.add("image", (64, 64), "f4")
        slot.add("label", (16,), "i4")
    slot["image"], slot["label"] = 1, 1
    return slot

def publish(pool):
    with acquire(pool) as slot:
        slot.publish()

def read(address):
    return ctypes.c_uint8.from_address(address).value

def write(address):
    ctypes.c_uint8.from_address(address).value = 7

def addresses(array):
    "The first and the last byte."
    return [array.ctypes.data, array.ctypes.data + array.nbytes - 1]
"""


def run(code, debug="1"):
    """Runs code in a fresh interpreter; its exit code and what it has printed."""
    environment = os.environ | {"ROPEWAY_DEBUG": debug}
    if not debug:
        del environment["ROPEWAY_DEBUG"]
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != SEGV:
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.returncode, done.stdout.split()


STALE = {
    "published": """
        slot = acquire(pool)
        stale = addresses(slot["image"])
        slot.publish()
    """,
    "given back unused": """
        slot = acquire(pool)
        stale = addresses(slot["image"])
        slot.release()
    """,
    "read": """
        publish(pool)
        slot = pool.take(timeout=10)
        stale = addresses(slot["image"])
        slot.release()
    """,
    "read, then its last view dropped": """
        publish(pool)
        slot = pool.take(timeout=10)
        view = slot["image"]
        stale = addresses(view)
        slot.__exit__()
        assert read(stale[0]) == 0 and read(stale[1]) == 63, "the view keeps the pages"
        del view
    """,
    "changed": """
        publish(pool)
        slot = pool.take(timeout=10, write=True)
        stale = addresses(slot["image"])
        slot.release()
    """,
    "read through pages of its own": """
        publish(pool)
        slot = pool.take(timeout=10, private=True)
        stale = addresses(slot["image"])
        slot.release()
    """,
    "read through pages to read": """
        publish(pool)
        slot = pool.take(timeout=10, readonly="map")
        stale = addresses(slot["image"])
        slot.release()
    """,
}


@pytest.mark.parametrize("what", STALE)
def test_a_stale_address_faults(what):
    # A child for each access, which makes a pool of its own: what it inherits isn't guarded.
    code = f"""
def attempt(layout, use, byte):
    pool = pools()[layout]
{textwrap.indent(textwrap.dedent(STALE[what]), "    ")}
    print("there", flush=True)
    use(stale[byte])
    print("used", flush=True)

for layout in ("packed", "elastic"):
    for use in (read, write):
        for byte in (0, 1):
            child = os.fork()
            if child == 0:
                attempt(layout, use, byte)
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    assert run(code) == (0, ["there", str(SEGV)] * 8)


@pytest.mark.parametrize("layout", ["packed", "elastic"])
def test_without_the_switch_a_stale_address_is_just_wrong(layout):
    code = f"pool = pools()[{layout!r}]\n" + textwrap.dedent(STALE["read"])
    for debug in ("", "0"):
        assert run(code + "\nread(stale[0]), write(stale[1])\nprint('used')", debug) == (
            0,
            ["used"],
        )


def test_an_array_in_shared_memory_faults_when_it_is_freed():
    code = """
        kept, array = rw.zeros(5000, "u1"), rw.zeros(5000, "u1")
        (stale, _), handle = addresses(array), array.__reduce_ex__(5)
        opened = handle[0](*handle[1])
        del array
        print(read(stale), flush=True)
        del opened, handle
        read(stale)
        print("used")
    """
    assert run(code) == (SEGV, ["0"])
    assert run(code, "")[0] == 0


@pytest.mark.parametrize("layout", ["packed", "elastic"])
def test_the_next_lease_has_its_pages(layout):
    code = f"""
        pool = pools()[{layout!r}]
        for round in range(5):
            slots = [acquire(pool) for _ in range(2)]
            for slot in slots:
                slot["image"][...] = slot["label"][...] = round
                slot.meta = round
                slot.publish()
            ways = {{}}, {{"private": True}}, {{"readonly": "map"}}, {{"write": True}}
            for how in ways[round % 4 :][:1]:
                for _ in range(2):
                    with pool.take(timeout=10, **how) as slot:
                        assert (slot["image"] == round).all() and (slot["label"] == round).all()
                        assert slot.meta == round
        print("whole")
    """
    assert run(code) == (0, ["whole"])


def test_a_free_slot_is_poisoned_even_where_neighbours_share_its_pages():
    code = """
        pool = pools()["packed"]
        publish(pool)
        publish(pool)
        ring = pool.ring("label")
        with pool.take() as slot:
            free = slot.index
        print(*(ring == -1).all(axis=1), *(ring == 1).all(axis=1), flush=True)
        with pool.take() as slot:
            assert slot.index != free and (slot["label"] == 1).all() and (slot["image"] == 1).all()
        with pool.acquire() as slot:
            print(np.isnan(slot["image"]).all())
    """
    code, (*words,) = run(code)
    assert code == 0
    assert sorted(words[:2]) == sorted(words[2:4]) == ["False", "True"]
    assert words[:2] != words[2:4]
    assert words[4] == "True"


def test_a_reader_that_dies_has_spoiled_nothing():
    code = """
        pool = pools()["elastic"]
        publish(pool)
        child = os.fork()
        if child == 0:
            slot = pool.take(timeout=10)
            view = slot["image"]
            os.kill(os.getpid(), 9)
        os.waitpid(child, 0)
        with pool.take(timeout=10) as slot:
            print(slot.deliveries, (slot["image"] == 1).all())
    """
    assert run(code) == (0, ["1", "True"])


def test_a_forked_child_may_look_at_what_it_has_inherited():
    code = """
        pool = pools()["packed"]
        publish(pool)
        slot = pool.take()
        view, shared = slot["image"], rw.zeros(5000)
        slot.__exit__()
        child = os.fork()
        if child == 0:
            fine = (view == 1).all() and not shared.any()
            view[...] = 3
            with acquire(pool) as mine:
                fine = fine and (mine["image"] == 1).all()
            os._exit(not fine)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), (view == 1).all())
    """.replace("view[...] = 3", "view.sum()")
    assert run(code) == (0, ["0", "True"])


def test_nothing_is_poisoned_without_the_switch():
    if os.environ.get("ROPEWAY_DEBUG", "0") != "0":
        pytest.skip("this process has the switch on")
    pool = rw.Pool(1, shape=(4, 16), dtype="f4")
    with pool.acquire() as slot:
        slot.array[...] = 3
    assert (np.asarray(pool.ring()) == 3).all()
