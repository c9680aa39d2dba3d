"""Loaders, queues, pools and arrays where a limit stands in the way or the system refuses a call.

Each program tries all four in such a place: what isn't possible is one of ropeway's own errors, in
words that name what is missing. When there is enough again, all four work.
"""

import errno
import json
import platform

import pytest

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the numbers of system calls are those of x86-64"
)

PROGRAM = '''
import ctypes, errno, json, os, resource, struct, sys
import numpy as np
import ropeway as rw

libc = ctypes.CDLL(None, use_errno=True)


def forbid(number, error, place=None, value=None):
    """Lets a system call fail from now on, or only if an argument has that value."""
    row = lambda code, yes, no, k: struct.pack("HBBI", code, yes, no, k)
    rows = row(0x20, 0, 0, 0) + row(0x15, 0, 1 if place is None else 3, number)
    if place is not None:
        rows += row(0x20, 0, 0, 16 + 8 * place) + row(0x15, 0, 1, value)
    rows += row(0x06, 0, 0, 0x00050000 | error) + row(0x06, 0, 0, 0x7FFF0000)
    text = ctypes.create_string_buffer(rows)
    program = struct.pack("HxxxxxxQ", len(rows) // 8, ctypes.addressof(text))
    program = ctypes.create_string_buffer(program)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0) == 0


rw.Loader  # is imported now
NUMBERS = [np.full(1000, i, "i4") for i in range(40)]


def use_loader():
    with rw.Loader(NUMBERS, batch_size=4, workers=2) as loader:
        assert sum(int(batch[:, 0].sum()) for batch in loader) == 780


def use_queue():
    q = rw.Queue(2)
    q.put(np.arange(1000))
    assert q.get(timeout=30).sum() == 499500
    q.close()


def use_pool():
    pool = rw.Pool(2, shape=(1000,), dtype="f4")
    with pool.acquire(timeout=30) as slot:
        slot.array[:] = 1
        slot.publish()
    with pool.take(timeout=30) as slot:
        assert slot.array.sum() == 1000


def use_array():
    assert rw.zeros(1000).sum() == 0


USES = {"loader": use_loader, "queue": use_queue, "pool": use_pool, "array": use_array}


def attempt():
    said = {}
    for name, use in USES.items():
        try:
            use()
        except rw.RopewayError as error:
            said[name] = str(error)
    return said


def limit(which, most):
    before = resource.getrlimit(which)
    resource.setrlimit(which, (most, before[1]))
    return before


def limited(which, most):
    before = limit(which, most)
    said = attempt()
    resource.setrlimit(which, before)
    assert attempt() == {}, "there is enough again"
    return said
'''


@pytest.fixture
def place(fresh):
    """Runs the program in a place made by some lines of code; what it said against each use."""

    def run(code):
        return json.loads(fresh(f"{PROGRAM}\nuse_array()\n{code}\nprint(json.dumps(said))"))

    return run


def test_descriptors_that_are_used_up_are_named_and_arrays_go_on(place):
    said = place(
        "few = len(os.listdir('/proc/self/fd'))\nsaid = limited(resource.RLIMIT_NOFILE, few - 1)"
    )
    assert set(said) == {"loader", "queue", "pool"}
    assert all("Too many open files" in text for text in said.values()), said


def test_a_loader_without_enough_descriptors_says_what_it_is_about(place):
    said = place(
        "few = len(os.listdir('/proc/self/fd'))\nsaid = limited(resource.RLIMIT_NOFILE, few + 4)"
    )
    assert said == {"loader": "workers can't be started: [Errno 24] Too many open files"}


def test_a_loader_that_may_start_no_process_says_so(place):
    """As where RLIMIT_NPROC or a cgroup's pids.max is reached."""
    said = place(
        f"for call in (56, 57, 58, 435):\n    forbid(call, {errno.EAGAIN})\nsaid = attempt()"
    )
    assert set(said) == {"loader"}
    assert said["loader"].startswith("workers can't be started: [Errno 11]")


def test_a_loader_whose_next_worker_may_not_start_says_so_and_can_be_used_later(fresh):
    """The process that forks workers is there, and its control group has no more for it."""
    said = fresh(PROGRAM + WITHIN_A_GROUP)
    if said.startswith("skip"):
        pytest.skip(said)
    assert said.startswith("workers can't be started: [Errno 11]")


WITHIN_A_GROUP = """
from pathlib import Path
from ropeway.loader.zygote import Zygote

mounts = [Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")]
mount = next((m for m in mounts if (m / "cgroup.procs").exists()), mounts[1])
group = mount / f"ropeway-test-{os.getpid()}"
try:
    group.mkdir()
    (group / "pids.max").write_text("1")
except OSError as error:
    print("skip: no cgroup for processes can be made here:", error)
    sys.exit()
try:
    loader = rw.Loader(NUMBERS, batch_size=4, workers=2)
    zygote = Zygote.get()
    (group / "cgroup.procs").write_text(str(zygote._process.pid))
    try:
        next(iter(loader))
    except rw.WorkerError as error:
        print(error)
    (group / "pids.max").write_text("max")
    assert sum(int(batch[:, 0].sum()) for batch in loader) == 780
    loader.close()
    zygote.close()
finally:
    group.rmdir()
"""


def test_too_few_addresses_are_named_with_numbers(place):
    said = place(
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "most = pages * 4096 + (200 << 20)\n"
        "said = limited(resource.RLIMIT_AS, most)\n"
        "assert all(f'RLIMIT_AS is {most}' in text for text in said.values()), said\n"
    )
    assert "loader" in said


def test_too_short_files_are_named_with_numbers(place):
    said = place("said = limited(resource.RLIMIT_FSIZE, 1 << 20)")
    assert set(said) == {"loader", "queue", "pool"}
    assert all("RLIMIT_FSIZE is 1048576" in text for text in said.values()), said


def test_locked_memory_is_named_and_fills_nothing(place):
    said = place(
        "assert libc.mlockall(2) == 0\nsaid = attempt()\nlibc.munlockall()\nassert not attempt()"
    )
    assert set(said) == {"loader", "queue", "pool", "array"}
    assert all("mlockall" in text for text in said.values()), said


CALLS = {
    "memfd_create": (319, errno.ENOSYS, ""),
    "F_OFD_SETLK": (72, errno.EINVAL, ", 1, 37"),
    "F_ADD_SEALS": (72, errno.EPERM, ", 1, 1033"),
    "MADV_DONTDUMP": (28, errno.EPERM, ", 2, 16"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_refused_is_named(place, call):
    """A loader fails like a pool; its processes can't even import ropeway, and say so as well."""
    number, error, argument = CALLS[call]
    said = place(f"del USES['loader']\nforbid({number}, {error}{argument})\nsaid = attempt()")
    assert {"queue", "pool"} <= set(said)
    assert all(call in text for text in said.values()), said


def test_without_sockets_loaders_and_queues_work(place):
    """Nothing but names of pools is in the network namespace."""
    assert place(f"forbid(41, {errno.EPERM})\nsaid = attempt()") == {}


def test_a_loader_in_a_small_control_group_is_told_the_numbers_and_works(fresh):
    said = fresh(WITHIN_A_SMALL_GROUP)
    if said.startswith("skip"):
        pytest.skip(said)
    asked, then = said.splitlines()
    assert "335544320 bytes asked" in asked
    assert "the cgroup's memory." in asked
    assert then == "32 samples"


WITHIN_A_SMALL_GROUP = """
import os
import sys
import time
from pathlib import Path

mounts = [("memory", "memory.limit_in_bytes"), ("", "memory.max")]
for mount, file in mounts:
    group = Path("/sys/fs/cgroup") / mount / f"ropeway-test-{os.getpid()}"
    try:
        group.mkdir()
        with open(group / file, "r+") as limit:
            limit.write(str(400 << 20))
        break
    except OSError as error:
        why = error
        if group.is_dir():
            group.rmdir()
else:
    print("skip: no cgroup with a memory limit can be made here:", why)
    sys.exit()

child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    for _ in range(1000):
        try:
            group.rmdir()
            break
        except OSError:
            time.sleep(0.01)
    sys.exit(os.waitstatus_to_exitcode(status))

(group / "cgroup.procs").write_text(str(os.getpid()))

import numpy as np

import ropeway as rw


class Large:
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return 32

    def __getitem__(self, i):
        return np.broadcast_to(np.uint8(i), self.size)


def load(size):
    with rw.Loader(Large(size), batch_size=8, workers=2, start_method="fork") as loader:
        return sum(len(batch) for batch in loader)


try:
    load(40 << 20)
except rw.OutOfMemory as error:
    print(error)
print(load(1000), "samples")
"""
