"""What every test stands on: a check that nothing was left behind, children, fresh interpreters."""

import os

# A fork ends the threads of NumPy's BLAS and the next product starts them again: no leftovers.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import contextlib
import ctypes
import gc
import multiprocessing
import re
import signal
import subprocess
import sys
import textwrap
import time
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import hypothesis
import pytest

import ropeway as rw
from ropeway import _core

WATCHDOG = 60.0

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background: programs of the tests would inherit it, and hear no Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

CLONE_NEWNS, MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 0x20000, 2, 4, 0x4000, 0x40000


def _own_dev_shm():
    """Gives this process a /dev/shm of its own, where it may: others' files come and go there."""
    libc = ctypes.CDLL(None)
    if libc.unshare(CLONE_NEWNS) == 0:  # root may
        libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None)
        libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=1777")


_own_dev_shm()

hypothesis.settings.register_profile("ropeway", deadline=None, database=None)
hypothesis.settings.load_profile("ropeway")


@pytest.fixture(scope="session", autouse=True)
def helpers_of_multiprocessing():
    """Starts what multiprocessing keeps alive for good, and the session's memory."""
    resource_tracker.ensure_running()
    forkserver.ensure_running()
    rw.empty(1, "u1")
    gc.collect()
    gc.freeze()  # what is there already is looked at no more


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Notes whether a test has failed: its traceback keeps things alive then."""
    report = yield
    item.has_failed = getattr(item, "has_failed", False) or report.failed
    return report


@pytest.fixture(autouse=True)
def nothing_left_behind(request, helpers_of_multiprocessing):
    """Fails a test that leaves a process, descriptor, thread, file, mapping or held slot."""
    before = _belongings()
    yield
    for child in multiprocessing.active_children():
        child.kill()
        child.join(WATCHDOG)
        pytest.fail(f"{child} was still alive")
    if request.node.has_failed:
        return
    assert _eventually(lambda: not _new(before)), _new(before)
    held = [slot for pool in _pools() for slot in _held(pool)]
    assert not held, f"slots were still held: {held}"


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def context(request):
    """A multiprocessing context, each in turn."""
    return multiprocessing.get_context(request.param)


@pytest.fixture
def child(context):
    """Starts a function in a child process; leaving the block waits for a normal end."""

    @contextlib.contextmanager
    def start(target, *args, exitcode=0):
        process = context.Process(target=target, args=args)
        process.start()
        try:
            yield process
            process.join(WATCHDOG)
            assert not process.is_alive(), "the child didn't end"
            assert process.exitcode == exitcode
        finally:
            process.kill()
            process.join()
            process.close()

    return start


@pytest.fixture
def fresh():
    """Runs code in a fresh interpreter, which must end well and quietly; returns its output."""

    def run(code, stdin=b"", **how):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            input=stdin,
            **how,
            capture_output=True,
            timeout=WATCHDOG,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
        return done.stdout.decode()

    return run


@pytest.fixture
def q():
    """A queue without a limit."""
    q = rw.Queue()
    yield q
    q.close()


@pytest.fixture
def eventually():
    """Waits until a condition holds; False if the watchdog comes first."""
    return _eventually


def _eventually(condition):
    end = time.monotonic() + WATCHDOG / 6
    while not condition():
        if time.monotonic() > end:
            return False
        gc.collect()
        time.sleep(0.01)
    return True


def _new(before):
    """What this process has that it didn't have before."""
    return {what: new for what, now in _belongings().items() if (new := now - before[what])}


def _belongings():
    gc.collect()
    return {
        "children": _children(),
        "descriptors": _descriptors(),
        "threads": set(os.listdir("/proc/self/task")),
        "files in /dev/shm": set(os.listdir("/dev/shm")),
        "mapped segments": set(re.findall(r" (\d+) +/memfd:", Path("/proc/self/maps").read_text())),
    }


def _children():
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            found |= set((task / "children").read_text().split())
    return found


def _descriptors():
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add((descriptor, os.readlink(f"/proc/self/fd/{descriptor}")))
    return found


def _pools():
    for thing in gc.get_objects():
        if isinstance(thing, _core.Pool):
            yield thing
        elif type(thing) is rw.Queue and thing._pool is not None:
            yield thing._pool


def _held(pool):
    return [slot for slot in pool.snapshot()["slots"] if slot["state"] not in ("absent", "idle")]
